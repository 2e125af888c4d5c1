"""Health, readiness and metrics over HTTP.

`/healthz` says that the process runs its loop; `/readyz` that every list is in, so that this replica could lead at
once; `/metrics` is for Prometheus. Nothing here is in the way of a decision.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable

from aiohttp import web

from admission.kube import port


def application(*, ready: Callable[[], str], metrics: Callable[[], Iterable[bytes]]) -> web.Application:
    """`ready()` is "" when ready, else why not. `metrics()` is text in parts, between which others have their turn."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why_not = ready()
        return web.Response(text=f"{why_not or 'ok'}\n", status=503 if why_not else 200)

    async def scrape(_: web.Request) -> web.Response:
        parts = []
        for part in metrics():
            parts.append(part)
            await asyncio.sleep(0)
        return web.Response(body=b"".join(parts), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application(client_max_size=64 * 1024)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", scrape)
    return app


IDLE_S = 120.0
"""A connection over which nothing is asked for so long is closed."""


async def serve(app: web.Application, address: str, tls: ssl.SSLContext | None = None) -> web.AppRunner:
    """Serve on "host:port" (an empty host is every interface); the runner is to be cleaned up by the caller."""
    host, _, at = address.rpartition(":")
    return await port.listen(app, host.strip("[]"), int(at), tls, idle_s=IDLE_S)
