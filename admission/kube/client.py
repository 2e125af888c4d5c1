"""The one client of the API server: bytes and dicts in and out, every failure an `ApiError` that tells what is known.

What a caller must know about a failed write is whether it may have happened. A push-back (429), a conflict or a refusal
did not happen; a lost connection, a timeout or a 5xx after the request went out may have (`ambiguous`). The client
therefore repeats reads, repeats push-backs, and repeats no write that may have been applied: whoever asked for it looks
again and decides. For the same reason the HTTP library's own repetition of PUT and DELETE is off.

Every write passes `fence` just before it is sent, and is over, one way or the other, `write_timeout` seconds after the
call: the client gives up then, and the server is told the same limit. `lease.py` counts on both. A write that was sent
ends by itself where its caller is cancelled: cut off, it would be in doubt for all that time (`settle`).

Watches have a session of their own, since each pins a connection. So has each who is urgent: where all connections die
at once and nobody is told (an address that moves to another machine), each that is kept open costs whoever is given it
a whole time limit, and the lease has time for one of its own. Names and labels are the caller's concern; this module
knows only paths (`Kind.path`).
"""

# ruff: noqa: N818  # the errors are named as the API server names its reasons

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import structlog
from yarl import URL

from admission.kube import credentials as _credentials
from admission.kube.clock import ServerClock
from admission.kube.credentials import Credentials
from admission.kube.flow import Backoff, Flow, Told

_log = structlog.get_logger(__name__)

JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
"""Of a list the metadata alone, where the server can."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_LONGEST_LINE = 64 << 20  # bytes; the largest object a server stores is some MiB
_LONGEST_PAGE = 64 << 20  # bytes; of several objects
_CONNECT = 10.0  # seconds
_BESIDE = 32  # connections for each that passes no gate: the lease, and reviews (see access.py)
_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that is gone is noticed after half a minute, also by who only listens, as a watch does: seconds, times."""


class Fenced(Exception):
    """Raised by a fence: the leader may not write any more. Nothing was sent."""


class ApiError(Exception):
    """An answer that is not a success, or none at all.

    status: HTTP status, 0 when there was no answer. reason, message: of the Status object, or the best that is known.
    body: the Status object, None when the answer was not JSON. retry_after: seconds the server asked for.
    ambiguous: a write that may have been applied all the same.
    """

    ambiguous = False

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.body = body
        self.retry_after = retry_after

    @property
    def causes(self) -> list[dict[str, Any]]:
        """`details.causes` of the Status object: what exactly was wrong, one by one."""
        details = (self.body or {}).get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        return causes if isinstance(causes, list) else []


class Unauthorized(ApiError):
    pass


class Forbidden(ApiError):
    pass


class Terminating(Forbidden):
    """Nothing is created in a namespace that is being deleted; that is no right that is missing."""


class NotFound(ApiError):
    pass


class Unserved(ApiError):
    """404 for something that was to be created: its kind is not served, or its namespace is not there. Raised by who
    knows that nothing else can be missing."""


class Conflict(ApiError):
    """409: an older resourceVersion, another field's owner, or a name that is taken (`AlreadyExists`)."""


class AlreadyExists(Conflict):
    pass


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422; 400, as where the kind lacks a field that was to be created or changed strictly; an object that is too large
    for the API server (413) or its store (500); and what an admission webhook denies, which may say so by any 4xx."""


class Undeclared(ApiError):
    """500 for an apply that names fields which the kind does not declare; nothing was written.

    fields: those that the answer names, which need not be all: names from the object's top, those of lists left out.
    """

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        found = _UNDECLARED.findall(self.message)
        return tuple(dict.fromkeys(tuple(re.sub(r"\[[^\]]*\]", "", one).split(".")) for one in found))


class TooManyRequests(ApiError):
    pass


class Unavailable(ApiError):
    """5xx, or no answer. `ambiguous` unless the request cannot have reached the server."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        body: dict[str, Any] | None = None,
        retry_after: float | None = None,
        *,
        ambiguous: bool = True,
    ) -> None:
        super().__init__(status, reason, message, body, retry_after)
        self.ambiguous = ambiguous


class TooLong(ApiError):
    """The answer has more bytes than are to be read."""


class Beginning(Unavailable):
    """403 of a server that was not there a moment ago: it answers before it has read its roles, and has none yet to
    allow anything by. Not ambiguous."""


_UNDECLARED = re.compile(r"(?:^|\s)\.(\S+(?:\[[^\]]*\]\S*)*): field not declared in schema")

LONGEST_WAIT_S = 60.0
"""Nobody who asks to be left alone is so for longer: what stands before an API server (a load balancer that is being
looked after) may ask for an hour, and be back in a minute."""
BEGINS_S = 15.0
"""So long after a connection was refused, or broke, a 403 is put down to `Beginning`."""
_BY_ADMISSION = re.compile(r"exceeded quota|denied")
"""403 of who was let in, but not with this object."""
_TOO_LARGE = re.compile("etcdserver: request is too large|trying to send message larger than max")
"""Said by the store, and by the API server's own client of it."""
_UNTYPED = "failed to create typed patch object"
"""Said of an apply that names something twice, say: as if the server had failed (kubernetes#98024)."""
_DENIED = re.compile(r'admission webhook "[^"]*" denied the request')
"""What begins so says the webhook, and by a code of its own: none at all is 400, and its 429 or 409 are no word of the
API server."""
_UNASKED = "failed calling webhook"
"""What an API server says that stored nothing, for a webhook of somebody is away."""

_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(status: int, data: bytes | msgspec.Raw, retry_after: str | None = None, reason: str = "") -> ApiError:
    """The error that an answer's status and body stand for. `retry_after` is the header's text (seconds)."""
    body: Any = None
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError:
        message = bytes(data)[:512].decode("utf-8", "replace").strip()
    if isinstance(body, dict):
        reason = str(body.get("reason") or reason)
        message = str(body.get("message") or "")
    elif body is not None:
        message, body = str(body)[:512], None
    wait: float | None = None
    details = (body or {}).get("details")
    if isinstance(details, dict) and isinstance(details.get("retryAfterSeconds"), int | float):
        wait = float(details["retryAfterSeconds"])
    if retry_after is not None and retry_after.strip().isdigit():
        wait = float(retry_after)
    if wait is not None:
        wait = min(max(wait, 0.0), LONGEST_WAIT_S)
    if status == 500 and _UNDECLARED.search(message):
        return Undeclared(status, reason or "InternalError", message, body, wait)
    if status == 500 and (_TOO_LARGE.search(message) or message.startswith(_UNTYPED)):
        return Invalid(status, reason or "InternalError", message, body, wait)
    denied = _DENIED.match(message) is not None
    if status >= 500:
        admitted = not denied and _UNASKED not in message
        return Unavailable(status, reason or "InternalError", message, body, wait, ambiguous=admitted)
    known = _BY_STATUS.get(status, ApiError)
    if denied and known is not Forbidden:
        known = Invalid
    if known is Conflict and reason == "AlreadyExists":
        known = AlreadyExists
    made = known(status, reason or "Unknown", message, body, wait)
    if known is Forbidden and any(one.get("reason") == "NamespaceTerminating" for one in made.causes):
        return Terminating(status, reason, message, body, wait)
    return made


@dataclass(frozen=True)
class Kind:
    """A resource of the API server: where it is served and what it is called."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, of a collection, or (no namespace) of the collection of all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        elif self.namespaced and name is not None:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=":"))
            if subresource is not None:
                parts.append(subresource)
        return "/".join(parts)


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `items` share the page's buffer: decode them and let them go."""

    items: list[msgspec.Raw]
    resource_version: str


_decode_list = msgspec.json.Decoder(_List).decode
_decode_any = msgspec.json.Decoder().decode


@lru_cache(maxsize=256)
def _encoded(query: tuple[tuple[str, str], ...]) -> str:
    """Writes of one kind all ask alike."""
    return urlencode(query)


@lru_cache(maxsize=4096)
def _resource_of(path: str) -> tuple[str, str]:
    """(resource, subresource) of a path, for counting."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:] if parts[0] == "api" else [path]
    if len(parts) > 2 and parts[0] == "namespaces" and parts[2] not in {"status", "finalize"}:
        parts = parts[2:]
    return (parts[0] if parts else "", parts[2] if len(parts) > 2 else "")


@lru_cache(maxsize=4096)
def _namespace_of(path: str) -> str:
    """Of the objects of a path; "" of what is in none."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    return parts[1] if len(parts) > 2 and parts[0] == "namespaces" else ""


def for_what_it_is(error: ApiError) -> bool:
    """Is an object, or a change of it, refused for what it says, and by no right that its writer lacks?"""
    by_admission = type(error) is Forbidden and _BY_ADMISSION.search(error.message) is not None
    return isinstance(error, Invalid) or by_admission


def unanswered(error: Exception) -> bool:
    """Did the API server not answer, or as one that has just begun? That is told here, once for all that is not
    written."""
    return isinstance(error, ApiError) and (not error.status or isinstance(error, Beginning))


class Client:
    """Talks to one API server as one identity. Enter it (`async with`) before use.

    fence: called before each write that has not opted out; raises `Fenced` to stop it.
    counts: answers by (verb, resource, subresource, status); status 0 is no answer. `Terminating` and `Beginning` are
    left out: they are no 403 that a right would mend.
    read_timeout, write_timeout: seconds for a call with all its attempts; read_idle: seconds without a byte after which
    a read is asked again on another connection, twice as patiently each time: the server may be slow and not gone.
    clock: the API server's, as its answers tell. cut_off: fenced writes for whose end `settle` last did not wait.
    """

    def __init__(
        self,
        who: Credentials,
        *,
        flow: Flow | None = None,
        user_agent: str = "muster",
        read_timeout: float = 60.0,  # a server's own, as a rule
        read_idle: float = 10.0,
        write_timeout: float = 10.0,
        backoff: tuple[float, float] = (0.25, 8.0),
    ) -> None:
        self.flow = flow or Flow()
        self.fence: Callable[[], None] | None = None
        self.counts: Counter[tuple[str, str, str, int]] = Counter()
        self.read_timeout = read_timeout
        self.read_idle = read_idle
        self.write_timeout = write_timeout
        self.clock = ServerClock()
        self.cut_off = 0
        self._away = Told()
        self._late = Told()
        self._heard_at = float("-inf")
        """When anything was answered last; the loop's seconds."""
        self._missed_at = float("-inf")
        """When a connection was refused, or broke, last."""
        self._who = who
        self._agent = user_agent
        self._backoff = backoff
        self._sending: set[asyncio.Future[bytes]] = set()
        """Fenced writes that are under way."""
        self._doubtful_until = float("-inf")
        self._unary: aiohttp.ClientSession | None = None
        self._beside: dict[str, aiohttp.ClientSession] = {}
        """By who is urgent."""
        self._streams: aiohttp.ClientSession | None = None
        self._past: list[aiohttp.ClientSession] = []
        self._opened_with = who.certificates

    @classmethod
    async def from_kubeconfig(cls, path: str | None = None, context: str | None = None, **options: Any) -> Client:
        """`path` None means $KUBECONFIG or ~/.kube/config. `options` are those of the constructor."""
        return cls(await _credentials.from_kubeconfig(path, context), **options)

    @classmethod
    async def from_environment(cls, **options: Any) -> Client:
        """The pod's service account inside a cluster, else the kubeconfig."""
        if os.environ.get("KUBERNETES_SERVICE_HOST") and _credentials.TOKEN.exists():
            return cls(_credentials.in_cluster(), **options)
        return await cls.from_kubeconfig(**options)

    @classmethod
    def plain(cls, url: str, token: str | None = None, *, tls: ssl.SSLContext | None = None, **options: Any) -> Client:
        """A server by its URL, with a fixed bearer token or none."""
        return cls(Credentials(url, authorization=f"Bearer {token}" if token else None, tls=tls), **options)

    @property
    def namespace(self) -> str:
        """Of the service account or the kubeconfig's context."""
        return self._who.namespace

    @property
    def url(self) -> str:
        return self._who.base_url

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.settle(0)
        now = (self._unary, self._streams, *self._beside.values())
        sessions = [session for session in (*now, *self._past) if session is not None]
        self._unary = self._streams = None
        self._beside = {}
        self._past = []
        for session in sessions:
            await session.close()

    def _open(self) -> None:
        self._unary = self._session(limit=self.flow.most)
        self._beside = {}
        self._streams = self._session(limit=0, requests=False)
        self._opened_with = self._who.certificates

    async def _sessions(self, urgent: str = "") -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
        """For requests of who is urgent so, for streams. A connection keeps the client certificate that it was made
        with, and one that is busy never ends: with another certificate others are made, and what is under way goes on
        on the old ones."""
        if self._unary is None or self._streams is None:
            raise RuntimeError("the client is not open: use `async with`")
        if self._opened_with != self._who.certificates:
            past, self._past = self._past, [self._unary, self._streams, *self._beside.values()]
            self._open()
            for session in past:
                await session.close()
        if urgent and urgent not in self._beside:
            self._beside[urgent] = self._session(limit=_BESIDE)
        return self._beside[urgent] if urgent else self._unary, self._streams

    def _session(self, *, limit: int, requests: bool = True) -> aiohttp.ClientSession:
        connector = (_Connector if requests else aiohttp.TCPConnector)(
            limit=limit,
            ssl=self._who.tls if self._who.tls is not None else True,
            keepalive_timeout=30.0,
            socket_factory=partial(_socket, taken_within=self.write_timeout) if requests else _socket,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # an API server sets none, and looking for them costs each request
            trust_env=False,  # reading the environment for each request costs more than the request
            auto_decompress=True,
            read_bufsize=1 << 20,
            headers=[
                ("User-Agent", self._agent),
                ("Accept", JSON),
                ("Accept-Encoding", "identity"),
                *self._who.acts_as,
            ],
        )
        # No public switch exists: left on, a PUT whose reply was lost is sent again and answered by a false conflict.
        session._retry_connection = False
        return session

    # --- one request -------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | dict[str, Any] | list[Any] | None = None,
        content_type: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the limit is also told to the server
        fenced: bool = True,
        urgent: str = "",
        attempts: int = 5,
    ) -> dict[str, Any]:
        """One call, repeated where that is safe, and its JSON answer ({} when it is empty).

        timeout: seconds for the whole call; None takes the client's, which a fenced write cannot exceed. fenced: False
        for what changes no state the leader owns (reviews, its own lease). urgent: who does not wait at the flow gate,
        in a word; each has connections of its own. Raises ApiError and Fenced.
        """
        data = await self.raw(
            method,
            path,
            query=query,
            body=body,
            content_type=content_type,
            timeout=timeout,
            fenced=fenced,
            urgent=urgent,
            attempts=attempts,
        )
        if not data:
            return {}
        try:
            decoded = _decode_any(data)
        except msgspec.DecodeError as error:
            raise Unavailable(200, "NotJSON", f"{path}: {error}", ambiguous=method != "GET") from error
        return cast("dict[str, Any]", decoded)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | dict[str, Any] | list[Any] | None = None,
        content_type: str | None = None,
        accept: str = JSON,
        timeout: float | None = None,  # noqa: ASYNC109
        fenced: bool = True,
        urgent: str = "",
        attempts: int = 5,
        most: int | None = None,
    ) -> bytes:
        """As `request`, with the answer's bytes. Raises TooLong for more than `most` of them."""
        write = method not in {"GET", "HEAD"}
        loop = asyncio.get_running_loop()
        allowed = timeout if timeout is not None else self.write_timeout if write else self.read_timeout
        query = dict(query or {})
        fence = self.fence if write and fenced and query.get("dryRun") != "All" else None
        if fence is not None:
            allowed = min(allowed, self.write_timeout)  # the next leader waits no longer than that
        deadline = loop.time() + allowed
        limited = write and "timeout" not in query
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": content_type or JSON} if data is not None else {})
        call = _Call(
            method=method,
            verb="LIST" if method == "GET" and "limit" in query else method,
            path=path,
            data=data,
            deadline=deadline,
            fence=fence,
            urgent=urgent,
            lane=_namespace_of(path),
            most=most,
        )
        backoff = Backoff(*self._backoff)
        refreshed = False
        attempt = 1
        while True:
            try:
                async with nullcontext() if self._who.fresh else asyncio.timeout_at(deadline):
                    authorization = await self._who.header()
            except TimeoutError:
                raise Unavailable(0, "NoCredentials", f"{path}: not read in time", ambiguous=False) from None
            if authorization is not None:
                headers["Authorization"] = authorization
            try:
                if not urgent:
                    await self._enter(path, call.lane, deadline)
                if limited:
                    query["timeout"] = _in_ms(deadline - loop.time())
                idle = None if write else self.read_idle * 2 ** (attempt - 1)
                sent = self._once(call, self._url(path, query), headers, idle)
                return await (sent if fence is None else self._by_itself(sent))
            except Unauthorized:
                # Sent once more, and not counted as an attempt: it was refused unread, and the lease has one attempt
                # only.
                if refreshed or not await self._refresh(authorization, deadline):
                    raise
                refreshed = True
                continue
            except ApiError as error:
                if attempt == attempts or not _repeatable(error, path, write=write):
                    raise
                pause = max(backoff.next(), error.retry_after or 0.0)
                if loop.time() + pause >= deadline:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _refresh(self, stale: str | None, deadline: float) -> bool:
        """Is there another identity to show, with time left to do so?"""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._who.refresh(stale=stale)
        except TimeoutError:
            return False

    async def _enter(self, path: str, lane: str, deadline: float) -> None:
        if self.flow.enter_at_once(lane):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self.flow.enter(lane)
        except TimeoutError:
            raise Unavailable(0, "Throttled", f"{path}: no place in time", ambiguous=False) from None

    async def _by_itself(self, sent: Coroutine[Any, Any, bytes]) -> bytes:
        """Send as a task of its own, which goes on when the caller is cancelled: a write is not cut off half-way."""
        sending = asyncio.ensure_future(sent)
        self._sending.add(sending)
        sending.add_done_callback(self._sent)
        return await asyncio.shield(sending)

    def _sent(self, sending: asyncio.Future[bytes]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # else asyncio would log one that nobody waits for any more as never retrieved

    async def _once(self, call: _Call, url: URL, headers: dict[str, str], idle: float | None) -> bytes:
        """One attempt; gives back its place at the flow gate. idle: seconds without a byte of the answer after which a
        read is given up, so that a dead connection does not use up the time in which another could answer."""
        loop = asyncio.get_running_loop()
        verb, path, write = call.verb, call.path, call.write
        doubtful = False
        """Might the write be applied though it has no clear answer?"""
        try:
            session, _ = await self._sessions(call.urgent)
            if call.fence is not None:
                call.fence()
                doubtful = True
            started, asked = loop.time(), self.clock.local()
            left = max(0.001, call.deadline - started)
            try:
                async with session.request(
                    call.method,
                    url,
                    data=call.data,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=left, sock_connect=min(_CONNECT, left), sock_read=idle),
                    allow_redirects=False,
                    proxy=self._who.proxy,
                    server_hostname=self._who.server_hostname,
                ) as answer:
                    content = await (answer.read() if call.most is None else _at_most(answer, call.most))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._count(verb, path, 0, loop.time() - started, late=isinstance(error, TimeoutError))
                if isinstance(error, aiohttp.ClientConnectorCertificateError):
                    # The certificate authority may have been rotated.
                    await self._refresh(headers.get("Authorization"), call.deadline)
                unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
                said = f"{call.method} {path}: {type(error).__name__} {error}"
                raise Unavailable(0, "NoAnswer", said, ambiguous=write and not unsent) from error
            seconds = loop.time() - started
            if answer.content_type == JSON:  # else it may be a proxy's answer, by another clock
                self.clock.heard(answer.headers.get("Date"), asked)
            doubtful = doubtful and answer.status >= 500
            if 200 <= answer.status < 300:
                self._count(verb, path, answer.status, seconds)
                if not call.urgent:
                    self.flow.good(seconds)
                return content
            failure = self._failure(answer.status, content, answer.headers.get("Retry-After"), answer.reason or "")
            doubtful = doubtful and failure.ambiguous
            self._count(verb, path, answer.status, seconds, told=not isinstance(failure, Terminating | Beginning))
            if isinstance(failure, Unavailable) and not write:
                failure.ambiguous = False
            if isinstance(failure, TooManyRequests) and not call.urgent and _pushes_back(failure, path):
                self.flow.pushed_back(failure.retry_after if failure.retry_after is not None else 1.0)
            raise failure
        finally:
            if doubtful:
                self._doubtful_until = max(self._doubtful_until, call.deadline)
            if not call.urgent:
                self.flow.leave(call.lane)

    async def settle(self, seconds: float) -> float:
        """Lets the fenced writes that are under way end for so long, and cuts off those that are left. Returns the
        seconds until none that was cut off, or had no clear answer, can still be applied; 0 when there is none."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=seconds)
            self.cut_off = len(late)
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return max(0.0, self._doubtful_until - asyncio.get_running_loop().time())

    def _failure(self, status: int, content: bytes, retry_after: str | None, reason: str) -> ApiError:
        """As `error_of`, which does not know when the server began."""
        failure = error_of(status, content, retry_after, reason)
        begins = asyncio.get_running_loop().time() < self._missed_at + BEGINS_S
        if begins and type(failure) is Forbidden and not for_what_it_is(failure):
            return Beginning(status, failure.reason, failure.message, failure.body, ambiguous=False)
        return failure

    def _count(
        self, verb: str, path: str, status: int, seconds: float, *, told: bool = True, late: bool = False
    ) -> None:
        """late: it was given up by its time limit."""
        resource, subresource = _resource_of(path)
        self.counts[verb, resource, subresource, status] += told
        now = asyncio.get_running_loop().time()
        if not status and not late:
            self._missed_at = now
        if status:
            self._heard_at = now
            if (lasted := self._away.over()) is not None:
                _log.info("the API server answers again", url=self.url, after_s=round(lasted, 1))
        elif late and self._heard_at > now - seconds / 2:  # not those alone that were answered before an outage began
            if self._late.due():
                _log.warning(
                    "a request was not answered in time, others were",
                    url=self.url,
                    verb=verb,
                    path=path,
                    seconds=round(seconds, 1),
                    times=self._late.times,
                )
        elif self._away.due():
            _log.warning("the API server does not answer", url=self.url, verb=verb, path=path, times=self._away.times)

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        text = self._who.base_url + path
        return URL(f"{text}?{_encoded(tuple(query.items()))}" if query else text, encoded=True)

    # --- verbs ------------------------------------------------------------------------------------------------------

    async def get(self, path: str, **options: Any) -> dict[str, Any]:
        return await self.request("GET", path, **options)

    async def create(
        self,
        path: str,
        obj: dict[str, Any] | bytes,
        *,
        dry_run: bool = False,
        strict: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """POST to a collection (or to a subresource that is created, as `eviction`). strict: Invalid where the kind has
        no place for a field, instead of an object that lacks it."""
        query = _query(dry_run, strict=strict)
        return await self.request("POST", path, query=query, body=obj, **options)

    async def put(self, path: str, obj: dict[str, Any] | bytes, **options: Any) -> dict[str, Any]:
        return await self.request("PUT", path, body=obj, **options)

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Deletes the object if it still is the one with `uid`, and in this version (Conflict if not).

        propagation: Background, Foreground or Orphan. Returns the object as it is left, or a Status.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        exactly = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in exactly.items() if value is not None}:
            body["preconditions"] = preconditions
        if propagation is not None:
            body["propagationPolicy"] = propagation
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if dry_run:
            body["dryRun"] = ["All"]
        return await self.request("DELETE", path, query=_query(dry_run), body=body, **options)

    async def merge_patch(
        self,
        path: str,
        patch: dict[str, Any],
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        strict: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """RFC 7396; `metadata.resourceVersion` in the patch makes it conditional. Lists are replaced whole. strict: as
        of `create`."""
        query = _query(dry_run, field_manager, strict=strict)
        return await self.request("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH, **options)

    async def json_patch(
        self,
        path: str,
        ops: list[dict[str, Any]],
        *,
        dry_run: bool = False,
        field_manager: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """RFC 6902; a `test` that fails is Invalid (422)."""
        return await self.request(
            "PATCH", path, query=_query(dry_run, field_manager), body=ops, content_type=JSON_PATCH, **options
        )

    async def apply(
        self,
        path: str,
        obj: dict[str, Any],
        *,
        manager: str,
        force: bool = True,
        dry_run: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Server-side apply. `obj` carries apiVersion, kind and metadata.name, and no managedFields."""
        query = _query(dry_run, manager)
        if force:
            query["force"] = "true"
        return await self.request("PATCH", path, query=query, body=obj, content_type=APPLY_PATCH, **options)

    async def apply_raw(self, path: str, obj: dict[str, Any], *, manager: str, **options: Any) -> bytes:
        """Server-side apply by force; the answer's bytes."""
        query = {**_query(False, manager), "force": "true"}
        return await self.raw("PATCH", path, query=query, body=obj, content_type=APPLY_PATCH, **options)

    # --- lists and watches --------------------------------------------------------------------------------------------

    async def list_pages(
        self,
        path: str,
        *,
        limit: int = 500,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        bare: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
        attempts: int = 5,
    ) -> AsyncGenerator[Page, None]:
        """A list, page by page, from one revision.

        Without `resource_version` it is as new as the store itself; with it, it is that revision exactly. `limit` 0
        takes all in one page. Of objects that say much fewer come at a time. bare: of each object only its metadata.
        Raises Gone when the revision was compacted on the way: what came before is then worth nothing, start again.
        """
        query: dict[str, str] = {}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        if resource_version is not None:
            query["resourceVersion"] = resource_version
            query["resourceVersionMatch"] = "Exact"
        accept, now = METADATA if bare else JSON, limit
        while True:
            query["limit"] = str(now)
            most = _LONGEST_PAGE if now > 1 else None
            try:
                data = await self.raw(
                    "GET", path, query=query, accept=accept, timeout=timeout, attempts=attempts, most=most
                )
            except TooLong:
                now = max(1, now // 8)
                continue
            now = min(limit, now * 2)
            try:
                page = _decode_list(data)
            except msgspec.DecodeError as error:
                raise Unavailable(200, "NotAList", f"{path}: {error}", ambiguous=False) from error
            yield Page(page.items or [], page.metadata.resource_version)
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_
            query.pop("resourceVersion", None)  # the token says which
            query.pop("resourceVersionMatch", None)

    async def watch_lines(
        self,
        path: str,
        *,
        resource_version: str,
        timeout_seconds: int = 300,
        idle_timeout: float | None = None,
        opened: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a watch from `resource_version` on, each one whole, until the server ends it in good order.

        opened: called when the server has accepted it, which may be long before the first line.
        Raises Gone (410), and Unavailable when it is not accepted within `read_timeout`, when the stream breaks, ends
        within a line, or brings nothing for `idle_timeout` seconds (None: somewhat more than `timeout_seconds`).
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "allowWatchBookmarks": "true",
        }
        idle = idle_timeout if idle_timeout is not None else timeout_seconds + 30.0
        loop = asyncio.get_running_loop()
        started = loop.time()
        status = 0
        try:
            async with asyncio.timeout_at(started + self.read_timeout):
                authorization = await self._who.header()
                _, session = await self._sessions()
                accepted = await session.get(
                    self._url(path, query),
                    headers={} if authorization is None else {"Authorization": authorization},
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=idle),
                    allow_redirects=False,
                    proxy=self._who.proxy,
                    server_hostname=self._who.server_hostname,
                )
            async with accepted as answer:
                status = answer.status
                if status == 200:
                    self._count("WATCH", path, status, loop.time() - started)
                    if opened is not None:
                        opened()
                else:
                    async with asyncio.timeout_at(started + self.read_timeout):
                        content = await answer.read()
                    failure = self._failure(status, content, answer.headers.get("Retry-After"), answer.reason or "")
                    self._count("WATCH", path, status, loop.time() - started, told=not isinstance(failure, Beginning))
                    if isinstance(failure, Unauthorized):
                        await self._refresh(authorization, loop.time() + self.read_timeout)
                    if isinstance(failure, Unavailable):
                        failure.ambiguous = False
                    raise failure
                rest: list[bytes] = []
                held = 0
                async for chunk in answer.content.iter_any():
                    head, *others = chunk.split(b"\n")
                    rest.append(head)
                    held += len(head)
                    if held > _LONGEST_LINE:
                        raise Unavailable(200, "LineTooLong", path, ambiguous=False)
                    if not others:
                        continue
                    others.insert(0, b"".join(rest))
                    rest = [others.pop()]
                    held = len(rest[0])
                    for line in others:
                        if line:
                            yield line
                if held:
                    raise Unavailable(200, "CutShort", f"{path}: the stream ended within a line", ambiguous=False)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not status:
                self._count("WATCH", path, 0, loop.time() - started, late=isinstance(error, TimeoutError))
            raise Unavailable(0, "StreamBroken", f"{path}: {type(error).__name__} {error}", ambiguous=False) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call, the same in all of its attempts."""

    method: str
    verb: str
    """As it is counted: LIST, or else the method."""
    path: str
    data: bytes | None
    deadline: float
    """By the loop's clock."""
    fence: Callable[[], None] | None
    """Asked right before each attempt of a write; raises Fenced."""
    urgent: str
    """See `Client.request`."""
    lane: str
    """At the flow gate."""
    most: int | None
    """Bytes of the answer."""

    @property
    def write(self) -> bool:
        return self.method not in {"GET", "HEAD"}


class _Connector(aiohttp.TCPConnector):
    """A connection on which a request was given up ends at once. By TLS it would wait for the other side's goodbye, and
    what was not sent yet would be sent meanwhile. (No public switch exists.)"""

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close and protocol.transport is not None:
            protocol.transport.abort()
        super()._release(key, protocol, should_close=should_close)


def _socket(address: aiohttp.AddrInfoType, taken_within: float | None = None) -> socket.socket:
    """Of a connection, for this address. taken_within: seconds; what the other machine has not taken by then is not
    sent any more. A closed connection has the kernel try for minutes: a write that was given up would come after all.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, much in _ALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), much)
    if taken_within is not None:
        # What is not sent when it is closed is dropped then.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(taken_within * 1000))
    return made


def _in_ms(seconds: float) -> str:
    """A limit as the API server is told it: not above it, and above a second the same for all that begin together."""
    ms = max(1, int(seconds * 1000))
    return f"{ms if ms < 1000 else ms - ms % 100}ms"


async def _at_most(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Its body. Raises TooLong."""
    parts, held = [], 0
    async for chunk in answer.content.iter_any():
        held += len(chunk)
        if held > most:
            raise TooLong(answer.status, "TooLong", f"{answer.url.path}: more than {most} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _repeatable(error: ApiError, path: str, *, write: bool) -> bool:
    """Whether the same request may be sent again without a look at what it did."""
    if isinstance(error, TooManyRequests):
        return _pushes_back(error, path)
    if isinstance(error, Unavailable):
        return not (write and (error.ambiguous or error.status >= 500))  # a webhook that is away is so for a while
    return False


def _pushes_back(error: TooManyRequests, path: str) -> bool:
    """Is it the server that has too much to do? An eviction is refused with 429 for the sake of a disruption budget,
    and an Event where those of a namespace are limited (admission plugin EventRateLimit): whoever may write there can
    use that up, and would keep us from all others. A server that has too much to do says when to come again."""
    resource, subresource = _resource_of(path)
    return subresource != "eviction" and (resource != "events" or error.retry_after is not None)


def _query(dry_run: bool, field_manager: str | None = None, *, strict: bool = False) -> dict[str, str]:
    query = {}
    if strict:
        query["fieldValidation"] = "Strict"
    if dry_run:
        query["dryRun"] = "All"
    if field_manager is not None:
        query["fieldManager"] = field_manager
    return query
