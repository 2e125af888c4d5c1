"""The web page: a few static files, and the view as JSON for whoever may see it.

    GET /                       the page; no rights needed, for it holds nothing of the cluster
    GET /api/me                 who asks, and what they may see
    GET /api/queues /api/jobs /api/job /api/nodes
    GET /api/changes            server-sent events: one when what is shown has changed, at most one a second

A caller shows a bearer token (Authorization header), typed into the page or added by an authenticating proxy; the API
server says whose it is (TokenReview) and what they may see (SubjectAccessReview: list workloads, clusterqueues, nodes).
There are no cookies and no writes: nothing can be done in somebody's name. Streams are bounded in number and age.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from aiohttp import web

from admission.kube.access import Access, Busy
from admission.kube.client import ApiError
from admission.names import Names
from admission.web.stories import Stories
from admission.web.view import Sight, View, number

Json = dict[str, Any]
Answer = Callable[[web.Request, Sight], Json]

FILES = {
    "": ("index.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
MOST_STREAMS, MOST_STREAMS_OF_ONE = 128, 8
_ACCOUNT = "system:serviceaccount:"
STREAM_S = 600.0
"""A stream ends after so long, and its page comes again, with its rights looked up anew."""
TICK_S, QUIET_S = 1.0, 15.0
FRESH_S, MOST_ANSWERS, MOST_BYTES = 1.0, 64, 16 << 20
"""An answer is given again for so long, though something has changed; its `revision` says of when it is. So many are
kept, of so many bytes together."""
OLD_S = 10.0
"""After so long it is found anew in any case: the time that it tells goes on where nothing happens."""
MOST_REVIEWS = 8
"""Access reviews of one caller at a time."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Page:
    """See the module. `routes` are what is served."""

    def __init__(self, view: View, stories: Stories, access: Access, names: Names) -> None:
        self._view = view
        self._stories = stories
        self._access = access
        self._group = names.group
        self._streams: Counter[str] = Counter()
        self._closing = asyncio.Event()
        self._answers: OrderedDict[tuple[str, Sight], tuple[int, float, bytes]] = OrderedDict()
        """(revision, when, body) of what was asked of late: many pages cost hardly more than one."""
        self._bytes = 0
        """Of these bodies."""
        folder = resources.files("admission.web") / "static"
        self._files = {name: ((folder / file).read_bytes(), kind) for name, (file, kind) in FILES.items()}
        self.routes = [
            *(web.get(f"/{name}", self._file) for name in FILES),
            web.get("/api/me", self._answering(self._me)),
            web.get("/api/queues", self._answering(self._queues)),
            web.get("/api/jobs", self._answering(self._jobs)),
            web.get("/api/job", self._answering(self._job)),
            web.get("/api/nodes", self._answering(self._nodes)),
            web.get("/api/changes", self._changes),
        ]

    async def close(self, _: web.Application) -> None:
        """End the streams; a server that stops would wait for them."""
        self._closing.set()

    async def _file(self, request: web.Request) -> web.Response:
        body, kind = self._files[request.path.rpartition("/")[2]]
        tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    # ------------------------------------------------------------ who asks

    async def sight(self, request: web.Request) -> Sight:
        """What the caller may see. Raises HTTPUnauthorized, HTTPServiceUnavailable."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            bearer = scheme.lower() == "bearer"
            user = await self._access.user_of(token.strip(), source=request.remote or "") if bearer else None
            if user is None:
                raise web.HTTPUnauthorized(
                    text="a bearer token of this cluster is needed", headers={"WWW-Authenticate": "Bearer"}
                )
            return await self._sight(user)
        except (ApiError, OSError, TimeoutError) as error:
            told = error.message if isinstance(error, Busy) else "the API server did not answer a review"
            raise web.HTTPServiceUnavailable(text=told, headers={"Retry-After": "2"}) from None

    async def _sight(self, user: Json) -> Sight:
        every, queues, nodes = await asyncio.gather(
            self._access.allowed(user, self._group, "workloads", "list"),
            self._access.allowed(user, self._group, "clusterqueues", "list"),
            self._access.allowed(user, "", "nodes", "list"),
        )
        namespaces: frozenset[str] | None = None
        if not every:
            state = self._view.source.state
            left = iter(sorted({key[0] for key in state.local_queues} | {key[0] for key in state.workloads}))
            seen: set[str] = set()

            async def ask() -> None:
                for namespace in left:
                    if await self._access.allowed(user, self._group, "workloads", "list", namespace=namespace):
                        seen.add(namespace)

            asking = [asyncio.ensure_future(ask()) for _ in range(MOST_REVIEWS)]
            try:
                await asyncio.gather(*asking)
            finally:
                for one in asking:
                    one.cancel()  # where one failed, nobody waits for what the others would find
            namespaces = frozenset(seen)
        return Sight(str(user["username"]), namespaces, queues=queues, nodes=nodes)

    # ------------------------------------------------------------ what they see

    def _answering(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answered(request: web.Request) -> web.Response:
            source, headers = self._view.source, {**HEADERS, "Cache-Control": "no-store"}
            try:
                sight = await self.sight(request)
                if not_ready := source.ready():
                    raise web.HTTPServiceUnavailable(text=not_ready, headers={"Retry-After": "2"})
                asked = (request.path_qs, sight)
                known = self._answers.get(asked)
                fresh = OLD_S if known is not None and known[0] == source.revision else FRESH_S
                if known is None or time.monotonic() - known[1] >= fresh:
                    about = {"now": source.now(), "leading": source.leading(), "revision": source.revision}
                    body = json.dumps(about | answer(request, sight)).encode()
                    known = self._keep(asked, (source.revision, time.monotonic(), body))
            except web.HTTPException as refused:
                return _refused(refused)
            except ValueError as error:
                return web.json_response({"message": str(error)}, status=400, headers=headers)
            return web.Response(body=known[2], content_type="application/json", headers=headers)

        return answered

    def _keep(self, asked: tuple[str, Sight], answer: tuple[int, float, bytes]) -> tuple[int, float, bytes]:
        old = self._answers.pop(asked, None)
        self._answers[asked] = answer
        self._bytes += len(answer[2]) - (len(old[2]) if old is not None else 0)
        while len(self._answers) > MOST_ANSWERS or self._bytes > MOST_BYTES:
            self._bytes -= len(self._answers.popitem(last=False)[1][2])
        return answer

    def _me(self, _: web.Request, sight: Sight) -> Json:
        return {
            "user": sight.user,
            "namespaces": sorted(sight.namespaces) if sight.namespaces is not None else None,
            "queues": sight.queues,
            "nodes": sight.nodes,
        }

    def _queues(self, _: web.Request, sight: Sight) -> Json:
        return self._view.queues(sight)

    def _jobs(self, request: web.Request, sight: Sight) -> Json:
        query = request.query
        return self._view.jobs(
            sight,
            queue=query.get("queue", ""),
            namespace=query.get("namespace", ""),
            offset=number(query, "offset", 0),
            limit=number(query, "limit", 100),
        )

    def _nodes(self, request: web.Request, sight: Sight) -> Json:
        query = request.query
        return self._view.nodes(sight, offset=number(query, "offset", 0), limit=number(query, "limit", 200))

    def _job(self, request: web.Request, sight: Sight) -> Json:
        key = (request.query.get("namespace", ""), request.query.get("workload", ""))
        if not sight.sees(key[0]):
            raise web.HTTPForbidden(text=f"you may not see the jobs of namespace {key[0]}")
        story = self._stories.of(key)
        try:
            shown = self._view.job(key)
        except KeyError:
            if not story:
                raise web.HTTPNotFound(text=f"no Workload {key[1]} in namespace {key[0]} is known here") from None
            kind, name = self._view.source.owner(key)
            ended = self._view.source.job(key)
            shown = {"namespace": key[0], "workload": key[1], "kind": kind or "Workload", "name": name or key[1]}
            state = (
                "finished" if (ended is not None and ended.finished) or story[-1]["what"] == "Finished" else "deleted"
            )
            shown |= {"state": state, "since": story[-1]["at"], "reason": (ended.finished if ended else "") or ""}
            shown |= {"message": ended.message if ended is not None else ""}
        return {"job": shown, "story": story}

    # ------------------------------------------------------------ changes

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        try:
            sight = await self.sight(request)
        except web.HTTPException as refused:
            return _refused(refused)
        reader = _reader(sight.user)
        if self._streams.total() >= MOST_STREAMS or self._streams[reader] >= MOST_STREAMS_OF_ONE:
            return web.json_response(
                {"message": "too many pages are open; this one looks again now and then"},
                status=503,
                headers={**HEADERS, "Retry-After": "30"},
            )
        self._streams[reader] += 1
        try:
            return await self._stream(request)
        except (ConnectionError, TimeoutError):
            raise asyncio.CancelledError from None  # the reader is gone, or does not read
        finally:
            self._streams[reader] -= 1
            self._streams += Counter()  # drops those at 0

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        ends = time.monotonic() + STREAM_S
        told, spoke = -1, 0.0
        source = self._view.source
        while time.monotonic() < ends and not self._closing.is_set():
            tick = time.monotonic()
            if source.revision != told:
                told, spoke = source.revision, tick
                # A client that does not read is not written for: the write ends in a timeout, and the stream with it.
                async with asyncio.timeout(QUIET_S):
                    await response.write(f"event: changed\ndata: {told}\n\n".encode())
            elif tick - spoke >= QUIET_S:
                spoke = tick
                async with asyncio.timeout(QUIET_S):
                    await response.write(b": still here\n\n")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), TICK_S)
        return response


def _reader(user: str) -> str:
    """As whom a user counts: all ServiceAccounts of a namespace as one, for their owner may make any number."""
    return user.rpartition(":")[0] if user.startswith(_ACCOUNT) else user


def _refused(why: web.HTTPException) -> web.Response:
    headers = {name: why.headers[name] for name in ("Retry-After", "WWW-Authenticate") if name in why.headers}
    return web.json_response(
        {"message": why.text}, status=why.status, headers={**HEADERS, "Cache-Control": "no-store", **headers}
    )
