"""An API server of one kind (mostly configmaps) that keeps real books and misbehaves on request.

Requests can be answered by a script instead of by the books: `faults` is a list of functions (request) -> response or
None, one for each request in turn; None leaves it to the books. Watches follow `history`; `cut` and `utter` act on
open ones.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def status(code: int, reason: str, message: str = "", **details: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return body | ({"details": details} if details else {})


class Server:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.revision = 100
        self.oldest = 0  # watches and tokens from before this revision are answered by 410
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.faults: list[Fault] = []
        self.requests: list[web.Request] = []
        self.watches: list[web.StreamResponse] = []
        self.absent = False
        self.url = ""
        self._changed = asyncio.Event()
        self._uids = 0
        self._runner: web.AppRunner | None = None
        self._snapshots: dict[str, list[dict[str, Any]]] = {}

    async def __aenter__(self) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._changed.set()
        await self._runner.cleanup()

    # --- the books ---------------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        namespace: str = "a",
        *,
        uid: str | None = None,
        body: dict[str, Any] | None = None,
        **data: Any,
    ) -> dict[str, Any]:
        """Stores an object: of `body` without its metadata, or a ConfigMap of `data`."""
        key = (namespace, name)
        old = self.objects.get(key)
        if old is None and uid is None:
            self._uids += 1
            uid = f"u{self._uids}"
        self.revision += 1
        new = ({"data": data} if body is None else body) | {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or old["metadata"]["uid"],
                "resourceVersion": str(self.revision),
            },
        }
        self.objects[key] = new
        self._note("MODIFIED" if old else "ADDED", new)
        return new

    def delete(self, name: str, namespace: str = "a", *, silently: bool = False) -> None:
        old = self.objects.pop((namespace, name))
        self.revision += 1
        last = json.loads(json.dumps(old))
        last["metadata"]["resourceVersion"] = str(self.revision)
        if not silently:
            self._note("DELETED", last)

    def say(self, kind: str, obj: dict[str, Any]) -> None:
        """Sends an event that the books know nothing of."""
        self.revision += 1
        self._note(kind, obj)

    def bookmark(self) -> None:
        self.revision += 1
        self._note("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}})

    def compact(self) -> None:
        self.oldest = self.revision + 1
        self.revision += 1

    def _note(self, kind: str, obj: dict[str, Any]) -> None:
        self.history.append((self.revision, kind, obj))
        self._changed.set()
        self._changed = asyncio.Event()

    async def cut(self, partial: bytes = b"") -> None:
        """Ends every open watch at once, after some last bytes."""
        cut, self.watches[:] = self.watches[:], []
        for response in cut:
            if partial:
                with suppress(ConnectionError):
                    await response.write(partial)
            if response._req.transport is not None:
                response._req.transport.close()

    async def utter(self, data: bytes) -> None:
        for response in list(self.watches):
            await response.write(data)

    # --- HTTP --------------------------------------------------------------------------------------------------------

    def count(self, method: str, **query: str) -> int:
        return sum(
            1
            for request in self.requests
            if request.method == method and all(request.query.get(k) == v for k, v in query.items())
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        await request.read()
        if self.faults:
            reply = await self.faults.pop(0)(request)
            if reply is not None:
                return reply
        if self.absent:
            return web.Response(status=404, text="404 page not found\n")
        parts = request.path.split("/")
        parts = parts[parts.index("namespaces") :] if "namespaces" in parts else []
        namespace = parts[1] if parts else None
        name = parts[3] if len(parts) > 3 else None
        if request.query.get("watch"):
            return await self._watch(request)
        if request.method == "GET" and name is None:
            return self._list(request)
        if request.method == "POST":
            body = await request.json()
            name = body["metadata"]["name"]
            if (namespace, name) in self.objects:
                return web.json_response(status(409, "AlreadyExists", "it is there"), status=409)
            return web.json_response(self.put(name, namespace, body=body), status=201)
        old = self.objects.get((namespace, name))
        if old is None:
            return web.json_response(status(404, "NotFound", f"{name} is not there"), status=404)
        if request.method == "GET":
            return web.json_response(old)
        if request.method == "DELETE":
            self.delete(name, namespace)
            return web.json_response(old)
        body = await request.json()
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != old["metadata"]["resourceVersion"]:
            return web.json_response(status(409, "Conflict", "the object has been modified"), status=409)
        return web.json_response(self.put(name, namespace, body=old | body))

    def _list(self, request: web.Request) -> web.Response:
        limit = int(request.query.get("limit", "0"))
        token = request.query.get("continue")
        start = 0
        if token is None:
            revision = str(self.revision)
            self._snapshots[revision] = [self.objects[key] for key in sorted(self.objects)]
        else:
            revision, offset = token.split(":")
            start = int(offset)
            if int(revision) < self.oldest:
                return web.json_response(status(410, "Expired", "the token is too old"), status=410)
        everything = self._snapshots[revision]
        items = everything[start : start + limit] if limit else everything
        meta: dict[str, Any] = {"resourceVersion": revision}
        if limit and start + limit < len(everything):
            meta["continue"] = f"{revision}:{start + limit}"
            meta["remainingItemCount"] = len(everything) - start - limit
        return web.json_response({"kind": "ConfigMapList", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return web.json_response(status(410, "Expired", "too old resource version"), status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches.append(response)
        at = 0
        try:
            while True:
                changed = self._changed
                while at < len(self.history):
                    revision, kind, obj = self.history[at]
                    at += 1
                    if revision > since:
                        await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")
                await changed.wait()
                if self._runner is None or request.transport is None:
                    return response
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            if response in self.watches:
                self.watches.remove(response)


def answer(code: int, body: Any = None, *, text: str | None = None, headers: dict[str, str] | None = None) -> Fault:
    """A fault: this answer instead of the true one."""

    async def fault(_: web.Request) -> web.StreamResponse:
        if text is not None:
            return web.Response(status=code, text=text, headers=headers)
        return web.json_response(body if body is not None else status(code, "X"), status=code, headers=headers)

    return fault


def passing() -> Fault:
    """No fault: this request is left to the books."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return None

    return fault


def hang() -> Fault:
    """Takes the request and never answers."""

    async def fault(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    return fault


def drop(before: Callable[[], Any] | None = None) -> Fault:
    """Closes the connection without an answer, after doing `before`: applied, and the reply lost."""

    async def fault(request: web.Request) -> web.StreamResponse:
        if before is not None:
            before()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    return fault
