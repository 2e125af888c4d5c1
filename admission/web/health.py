"""Health, readiness and metrics over HTTP.

`/healthz` says that the process runs its loop; `/readyz` that every list is in, so that this replica could lead at
once; `/metrics` is for Prometheus. Nothing here is in the way of a decision.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable

from aiohttp import web


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


MOST_CONNECTIONS = 512
"""Of one port. Anybody who reaches it can open them, and each costs memory of the process that decides."""
HANDSHAKE_S = 5.0
"""So long a connection by TLS may take to begin, and to end."""
IDLE_S = 120.0
"""A connection over which nothing is asked for so long is closed."""


async def serve(app: web.Application, address: str, tls: ssl.SSLContext | None = None) -> web.AppRunner:
    """Serve on "host:port" (an empty host is every interface); the runner is to be cleaned up by the caller."""
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2, keepalive_timeout=IDLE_S)
    await runner.setup()
    await _Site(runner, host.strip("[]"), int(port), tls).start()
    return runner


class _Site(web.BaseSite):
    """A port with so many connections and no more: for a new one the oldest makes room."""

    def __init__(self, runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls)
        self._at = host or None, port

    @property
    def name(self) -> str:
        return f"{self._at[0] or '*'}:{self._at[1]}"

    async def start(self) -> None:
        await super().start()
        loop, (host, port) = asyncio.get_running_loop(), self._at
        tls = self._ssl_context
        self._server = await loop.create_server(
            self._accepted,
            host,
            port,
            ssl=tls,
            backlog=128,
            # Who says nothing is not counted before its handshake is over, nor once it is to go.
            ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            ssl_shutdown_timeout=HANDSHAKE_S if tls else None,
        )

    def _accepted(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        for oldest in server.connections[: max(0, len(server.connections) + 1 - MOST_CONNECTIONS)]:
            oldest.force_close()
        return server()
