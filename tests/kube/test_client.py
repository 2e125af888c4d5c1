from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from yarl import URL

from admission.kube import client as kube
from admission.kube import credentials
from admission.kube.client import Client, Fenced, Kind
from admission.kube.credentials import Credentials
from e2e.credentials import Authority
from tests.kube.server import Server, answer, drop, hang, passing, status

CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
A = CONFIG_MAPS.path("a")
X = CONFIG_MAPS.path("a", "x")


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        (CONFIG_MAPS, (), "/api/v1/configmaps"),
        (CONFIG_MAPS, ("a",), "/api/v1/namespaces/a/configmaps"),
        (CONFIG_MAPS, ("a", "x"), "/api/v1/namespaces/a/configmaps/x"),
        (Kind("batch", "v1", "jobs", "Job"), ("a", "x", "status"), "/apis/batch/v1/namespaces/a/jobs/x/status"),
        (Kind("", "v1", "nodes", "Node", namespaced=False), ("ignored", "n"), "/api/v1/nodes/n"),
        (
            Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
            (None, "system:x/y"),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x%2Fy",
        ),
    ],
)
def test_paths(kind, args, path):
    assert kind.path(*args) == path


def test_an_object_of_a_namespaced_kind_has_a_namespace():
    with pytest.raises(ValueError, match="namespace"):
        CONFIG_MAPS.path(None, "x")


TOO_LARGE = "etcdserver: request is too large"
LARGER = "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2900027 vs. 2097152)"
DENIED = 'admission webhook "w.example.com" denied the request: not in this namespace'
TWICE = (
    "failed to create typed patch object (/a; muster.dev/v1beta1, Kind=ClusterQueue): "
    '.spec.resourceGroups[0].flavors: duplicate entries for key [name="h100"]'
)
AWAY = 'Internal error occurred: failed calling webhook "w.example.com": connection refused'


@pytest.mark.parametrize(
    ("code", "body", "kind", "reason", "message", "ambiguous"),
    [
        (400, status(400, "", DENIED), kube.Invalid, "Bad Request", DENIED, False),
        (403, status(403, "Forbidden", DENIED), kube.Forbidden, "Forbidden", DENIED, False),
        (404, status(404, "NotFound", DENIED), kube.Invalid, "NotFound", DENIED, False),
        (409, status(409, "Conflict", DENIED), kube.Invalid, "Conflict", DENIED, False),
        (429, status(429, "TooManyRequests", DENIED), kube.Invalid, "TooManyRequests", DENIED, False),
        (401, status(401, "Unauthorized"), kube.Unauthorized, "Unauthorized", "", False),
        (403, status(403, "Forbidden", "no"), kube.Forbidden, "Forbidden", "no", False),
        (
            403,
            {**status(403, "Forbidden"), "details": {"causes": [{"reason": "NamespaceTerminating"}]}},
            kube.Terminating,
            "Forbidden",
            "",
            False,
        ),
        (404, status(404, "NotFound", "gone"), kube.NotFound, "NotFound", "gone", False),
        (404, "404 page not found\n", kube.NotFound, "Not Found", "404 page not found", False),
        (409, status(409, "Conflict", "old"), kube.Conflict, "Conflict", "old", False),
        (409, status(409, "AlreadyExists"), kube.AlreadyExists, "AlreadyExists", "", False),
        (410, status(410, "Expired"), kube.Gone, "Expired", "", False),
        (415, "[1]", kube.ApiError, "Unsupported Media Type", "[1]", False),
        (413, status(413, "RequestEntityTooLarge"), kube.Invalid, "RequestEntityTooLarge", "", False),
        (422, status(422, "Invalid"), kube.Invalid, "Invalid", "", False),
        (500, status(500, "", TOO_LARGE), kube.Invalid, "Internal Server Error", TOO_LARGE, False),
        (500, status(500, "", LARGER), kube.Invalid, "Internal Server Error", LARGER, False),
        (500, status(500, "", TWICE), kube.Invalid, "Internal Server Error", TWICE, False),
        (302, "", kube.ApiError, "Found", "", False),
        (500, status(500, "InternalError"), kube.Unavailable, "InternalError", "", True),
        (500, status(500, "InternalError", AWAY), kube.Unavailable, "InternalError", AWAY, False),
        (500, status(500, "", DENIED), kube.Unavailable, "Internal Server Error", DENIED, False),
        (502, "<html>", kube.Unavailable, "Bad Gateway", "<html>", True),
        (504, status(504, "Timeout"), kube.Unavailable, "Timeout", "", True),
    ],
)
async def test_failures_have_types_and_are_sent_once(
    server: Server, client: Client, *, code, body, kind, reason, message, ambiguous
):
    server.faults.append(answer(code, body) if isinstance(body, dict) else answer(code, text=body))
    with pytest.raises(kind) as caught:
        await client.create(A, {"metadata": {"name": "x"}})
    error = caught.value
    assert (type(error), error.status, error.reason, error.message) == (kind, code, reason, message)
    assert error.ambiguous is ambiguous
    assert len(server.requests) == 1
    assert client.counts == {("POST", "configmaps", "", code): kind is not kube.Terminating}


@pytest.mark.parametrize("message", ["exceeded quota: jobs", 'admission webhook "w" denied the request'])
async def test_an_object_that_is_refused_is_no_sign_of_a_server_that_begins(server: Server, client: Client, message):
    server.put("x")
    server.faults.append(drop())
    await client.get(X)
    server.faults.append(answer(403, status(403, "Forbidden", message)))
    with pytest.raises(kube.Forbidden):
        await client.create(A, {"metadata": {"name": "y"}})


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_server_refuses_that_has_just_begun_is_asked_again_and_counts_as_no_refusal(
    server: Server, client: Client, monkeypatch, *, late: bool
):
    """Its roles are not read yet. When they should be, a 403 is one."""
    server.put("x")
    server.faults.append(drop())
    await client.get(X)
    if late:
        monkeypatch.setattr(kube, "BEGINS_S", 0.0)
    server.faults += [answer(403, status(403, "Forbidden", "no"))] * 2
    if late:
        with pytest.raises(kube.Forbidden):
            await client.get(X)
    else:
        await client.get(X)
        server.faults.append(answer(403, status(403, "Forbidden", "no")))
        with pytest.raises(kube.Beginning) as caught:
            await client.get(X, attempts=1)
        assert kube.unanswered(caught.value)
        server.faults.append(answer(403, status(403, "Forbidden", "no")))
        with pytest.raises(kube.Beginning):
            async for _ in client.watch_lines(CONFIG_MAPS.path(), resource_version="1"):
                pass
    assert [code for *_, code in client.counts.elements()].count(403) == late


async def test_causes_are_read_from_the_status(server: Server, client: Client):
    server.faults.append(answer(422, status(422, "Invalid", causes=[{"field": "spec.x", "message": "bad"}])))
    with pytest.raises(kube.Invalid) as caught:
        await client.create(A, {"metadata": {"name": "x"}})
    assert caught.value.causes == [{"field": "spec.x", "message": "bad"}]


@pytest.mark.parametrize(
    "fault", [answer(500), answer(503, headers={"Retry-After": "0"}), drop(), answer(429, headers={"Retry-After": "0"})]
)
async def test_reads_are_repeated(server: Server, client: Client, fault):
    server.put("x", colour="red")
    server.faults += [fault, fault]
    assert (await client.get(X))["data"] == {"colour": "red"}
    assert server.count("GET") == 3


async def test_reads_give_up_after_the_attempts(server: Server, client: Client):
    server.faults += [answer(500)] * 9
    with pytest.raises(kube.Unavailable) as caught:
        await client.get(X, attempts=3)
    assert len(server.requests) == 3
    assert not caught.value.ambiguous


@pytest.mark.parametrize("method", ["create", "put", "delete", "merge_patch"])
async def test_a_write_whose_reply_was_lost_is_ambiguous_and_not_repeated(server: Server, client: Client, method):
    old = server.put("x") if method != "create" else None
    if method == "create":
        apply, call = lambda: server.put("x"), client.create(A, {"metadata": {"name": "x"}})
    elif method == "delete":
        apply, call = lambda: server.delete("x"), client.delete(X, uid=old["metadata"]["uid"])
    elif method == "put":
        apply, call = lambda: server.put("x", done="yes"), client.put(X, old)
    else:
        apply, call = lambda: server.put("x", done="yes"), client.merge_patch(X, {"data": {"done": "yes"}})
    await client.get(CONFIG_MAPS.path("a"), query={"warm": "up"})  # a kept-alive connection tempts the library most
    before = len(server.requests)
    server.faults.append(drop(apply))
    with pytest.raises(kube.Unavailable) as caught:
        await call
    assert caught.value.ambiguous
    assert caught.value.status == 0
    assert len(server.requests) == before + 1


async def test_a_write_that_cannot_have_arrived_is_not_ambiguous():
    async with Client.plain("http://127.0.0.1:1", backoff=(0.001, 0.002)) as client:
        with pytest.raises(kube.Unavailable) as caught:
            await client.create(A, {"metadata": {"name": "x"}}, attempts=2)
    assert not caught.value.ambiguous
    assert client.counts["POST", "configmaps", "", 0] == 2


async def test_a_black_hole_is_given_up(server: Server, client: Client):
    server.faults.append(hang())
    with pytest.raises(kube.Unavailable) as caught:
        await client.create(A, {"metadata": {"name": "x"}}, timeout=0.5)
    assert caught.value.ambiguous
    assert client.flow.in_flight == 0


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ("all the time", ["a request was not answered in time, others were"]),
        ("at first", ["the API server does not answer", "the API server answers again"]),
        ("never", ["the API server does not answer", "the API server answers again"]),
    ],
)
async def test_one_request_that_takes_too_long_is_no_outage(server: Server, client: Client, settle, others, said):
    server.put("x", colour="red")
    await client.get(X)
    server.faults.append(hang())
    with capture_logs() as lines:
        late = asyncio.create_task(client.create(A, {"metadata": {"name": "y"}}, timeout=1.5))
        await settle(lambda: server.count("POST") == 1)
        if others != "never":
            await client.get(X)
        while not late.done():
            if others == "all the time":
                await client.get(X)
            await asyncio.sleep(0.001)
        with pytest.raises(kube.Unavailable):
            await late
        await client.get(X)
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == said


async def test_a_read_on_a_dead_connection_is_asked_again_on_another(server: Server):
    server.put("x", colour="red")
    server.faults += [hang(), hang()]
    async with Client.plain(server.url, read_idle=0.03, backoff=(0.001, 0.01)) as client:
        assert (await client.get(X, attempts=50))["data"] == {"colour": "red"}
    assert server.count("GET") >= 3


class Passage:
    """Forwards connections to a server. `die`: those that are open bring nothing any more, and nobody is told, as where
    an address moves to another machine."""

    def __init__(self, server: Server) -> None:
        self._port = URL(server.url).port
        self._open: set[asyncio.Task[None]] = set()
        self._ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        """Or the loop would break what nobody reads from any more."""
        self.url = ""

    async def __aenter__(self) -> Passage:
        self._listening = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        self.die()
        for _, writer in self._ends:
            writer.close()

    def die(self) -> None:
        for one in self._open:
            one.cancel()
        self._open.clear()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [(reader, writer), (there, back)]

        async def forward(come: asyncio.StreamReader, go: asyncio.StreamWriter) -> None:
            while data := await come.read(1 << 16):
                go.write(data)

        self._open |= {asyncio.ensure_future(forward(reader, back)), asyncio.ensure_future(forward(there, writer))}


@pytest.mark.parametrize("left_by", ["", "reviews"])
async def test_the_lease_has_not_to_try_each_connection_that_died(server: Server, settle, left_by: str):
    """It has time for one that brings no answer, and not for each that others left."""
    server.put("x", colour="red")
    release = asyncio.Event()

    async def slow(_: web.Request) -> None:
        await release.wait()

    async with Passage(server) as passage, Client.plain(passage.url, backoff=(0.001, 0.01)) as client:
        server.faults += [slow] * 8
        several = [asyncio.ensure_future(client.get(X, urgent=left_by)) for _ in range(8)]
        await settle(lambda: len(server.requests) == 8)
        release.set()
        await asyncio.gather(*several)
        await client.get(X, urgent="lease")
        passage.die()
        with pytest.raises(kube.Unavailable):
            await client.get(X, urgent="lease", attempts=1, timeout=0.2)
        assert (await client.get(X, urgent="lease", attempts=1))["data"] == {"colour": "red"}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells what timers a connection has")
async def test_a_watch_asks_whether_the_other_machine_is_there(server: Server, client: Client, settle):
    """It sends nothing by itself: that the other one lost its power would be noticed when the line has been silent for
    minutes."""

    async def follow() -> None:
        async with aclosing(client.watch_lines(A, resource_version="1")) as lines:
            async for _ in lines:
                pass

    following = asyncio.ensure_future(follow())
    await settle(lambda: bool(server.watches))
    at = f"0100007F:{URL(server.url).port:04X}"

    def timers() -> list[str]:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [line[5][:2] for line in lines if line[2] == at and line[3] == "01"]

    await settle(lambda: timers() in (["00"], ["02"]))  # what was sent is acknowledged
    assert timers() == ["02"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


@asynccontextmanager
async def cut_off_from(folder: Path, *, tls: bool, write_timeout: float) -> AsyncIterator[tuple[Server, Client]]:
    if not tls:
        async with Server() as server, Client.plain(server.url, write_timeout=write_timeout) as client:
            yield server, client
        return
    authority = Authority(folder, plain=False)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.server("server"))
    async with Server(context) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": "ca.crt"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        who = (await Client.from_kubeconfig(str(folder / "kubeconfig")))._who
        async with Client(who, write_timeout=write_timeout) as client:
            yield server, client


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux can be told, and asked")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("pushed_back", [False, True])
async def test_a_write_that_was_given_up_while_the_line_was_cut_does_not_come_when_it_is_back(
    tmp_path: Path, tls: bool, pushed_back: bool
):
    """Else the kernel of a former leader's machine would send it for minutes after another has begun to lead; or, of
    one that was sent when half of its time was over, for as long as all of it."""
    async with cut_off_from(tmp_path, tls=tls, write_timeout=2.0) as (server, client):
        server.put("x")
        await client.get(X)
        line = server.requests[-1].transport.get_extra_info("socket")
        at = f"0100007F:{line.getpeername()[1]:04X}"

        def open_still() -> bool:
            return any(each.split()[1] == at for each in Path("/proc/net/tcp").read_text().splitlines()[1:])

        def cut() -> None:
            drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
            line.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(drop_all)))

        async def later(_: web.Request) -> web.Response:
            asyncio.get_running_loop().call_later(0.1, cut)
            said = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "later"}
            return web.json_response(said, status=429, headers={"Retry-After": "1"})

        if pushed_back:
            server.faults.append(later)
        else:
            cut()
        with pytest.raises(kube.Unavailable):
            await client.merge_patch(X, {"data": {}})
        had = server.count("PATCH")
        assert had == pushed_back
        if not pushed_back:
            for _ in range(100):
                if not open_still():
                    break
                await asyncio.sleep(0.01)
        line.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        async with asyncio.timeout(60):
            while open_still() and server.count("PATCH") == had:
                await asyncio.sleep(0.01)
        assert server.count("PATCH") == had


async def test_a_refusal_of_a_watch_that_does_not_come_whole_is_given_up(server: Server):
    """Else who follows would be blind for minutes, and not know it."""

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=503, headers={"Content-Length": "100"})
        await response.prepare(request)
        await asyncio.sleep(3600)
        raise AssertionError

    server.faults.append(half)
    async with asyncio.timeout(60), Client.plain(server.url, read_timeout=0.2) as client:
        with pytest.raises(kube.Unavailable):
            async for _ in client.watch_lines(A, resource_version="1"):
                pass


async def test_a_read_of_a_slow_server_is_waited_for_ever_more_patiently(server: Server):
    server.put("x", colour="red")

    async def slow(_: web.Request) -> None:
        await asyncio.sleep(0.3)

    server.faults += [slow] * 50
    async with Client.plain(server.url, read_idle=0.05, backoff=(0.001, 0.01)) as client:
        assert (await client.get(X, attempts=8))["data"] == {"colour": "red"}


async def test_the_server_is_told_the_limit_of_a_write(server: Server, client: Client):
    await client.create(A, {"metadata": {"name": "x"}})
    assert 1000 < _ms(server.requests[-1].query["timeout"]) <= 5000


def _ms(told: str) -> int:
    """Of a duration as the API server reads it."""
    return int(told.removesuffix("ms")) if told.endswith("ms") else 1000 * int(told.removesuffix("s"))


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("limit", [0.4, 0.7, 1.6, 2.9, 60.0])
async def test_the_server_is_told_no_longer_limit_than_the_client_has(
    server: Server, client: Client, limit: float, fenced: bool
):
    """It could still apply a write when that is thought to be over. The next leader waits for no longer than that of
    the client, whoever allows a fenced write more."""
    client.fence = (lambda: None) if fenced else None
    await client.create(A, {"metadata": {"name": "x"}}, timeout=limit)
    most = min(limit, client.write_timeout) if fenced else limit
    told = _ms(server.requests[-1].query["timeout"])
    assert most * 200 < told <= most * 1000
    assert told < 1000 or not told % 100, "it is the same for all that begin together"


async def test_the_server_is_told_what_is_left_of_the_limit(server: Server, client: Client):
    """Who is told the whole of it again could still apply the write when it is thought to be over."""
    server.faults.append(answer(429, headers={"Retry-After": "1"}))
    await client.create(A, {"metadata": {"name": "x"}})
    told, left = (_ms(request.query["timeout"]) for request in server.requests)
    assert 4000 < told <= 5000
    assert left <= 4000


async def test_a_push_back_is_repeated_for_writes_too_and_slows_everybody(server: Server, client: Client):
    limit = client.flow.limit
    server.faults += [answer(429, status(429, "TooManyRequests"), headers={"Retry-After": "0"})] * 2
    await client.create(A, {"metadata": {"name": "x"}})
    assert server.count("POST") == 3
    assert limit / 2 <= client.flow.limit < limit / 2 + 1


async def test_a_push_back_that_names_no_time_is_repeated_too(server: Server, client: Client):
    server.faults.append(answer(429))
    await client.create(A, {"metadata": {"name": "x"}})
    assert server.count("POST") == 2


async def test_of_writes_in_doubt_the_last_end_counts(server: Server, client: Client):
    client.fence = lambda: None
    server.faults += [answer(500), answer(500)]
    for limit in (client.write_timeout, 0.5):
        with pytest.raises(kube.Unavailable):
            await client.create(A, {"metadata": {"name": "x"}}, timeout=limit)
    assert await client.settle(0) > 0.5


async def test_a_push_back_beyond_the_time_allowed_is_reported(server: Server, client: Client):
    server.faults.append(answer(429, headers={"Retry-After": "60"}))
    with pytest.raises(kube.TooManyRequests) as caught:
        await client.create(A, {"metadata": {"name": "x"}})
    assert caught.value.retry_after == 60
    # The gate is closed for whoever comes next, but not for what is urgent.
    with pytest.raises(kube.Unavailable) as refused:
        await client.create(A, {"metadata": {"name": "y"}}, timeout=0.01)
    assert (refused.value.reason, refused.value.ambiguous) == ("Throttled", False)
    await client.create(A, {"metadata": {"name": "z"}}, urgent="lease")
    assert ("a", "z") in server.objects


@pytest.mark.parametrize(("asked", "waits"), [("3600", 60), ("-5", None), ("0", 0)])
async def test_nobody_is_left_alone_for_an_hour(server: Server, client: Client, asked: str, waits: float | None):
    """A load balancer in front of the server asks for as long as its maintenance may last."""
    server.faults.append(answer(503, headers={"Retry-After": asked}))
    with pytest.raises(kube.Unavailable) as caught:
        await client.create(A, {"metadata": {"name": "x"}}, attempts=1)
    assert caught.value.retry_after == waits


@pytest.mark.parametrize(("path", "counted"), [("pods/p/eviction", ("pods", "eviction")), ("events", ("events", ""))])
async def test_what_one_namespace_may_not_have_is_an_answer_and_no_push_back(
    server: Server, client: Client, path: str, counted: tuple[str, str]
):
    """A disruption budget refuses an eviction, and a limit on the Events of a namespace one of them; both are its
    tenants' to use up."""
    limit = client.flow.limit
    server.faults.append(answer(429, status(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}])))
    with pytest.raises(kube.TooManyRequests):
        await client.create(f"/api/v1/namespaces/a/{path}", {"metadata": {"name": "p"}})
    assert len(server.requests) == 1
    assert client.flow.limit >= limit
    assert client.counts["POST", *counted, 429] == 1
    await client.create(A, {"metadata": {"name": "y"}})


@pytest.mark.parametrize(
    ("code", "said", "in_doubt"),
    [(429, DENIED, False), (500, AWAY, False), (500, TOO_LARGE, False), (500, "etcdserver: request timed out", True)],
    ids=["denied by a webhook", "its webhook is away", "too large", "nobody knows"],
)
async def test_what_was_not_stored_is_in_no_doubt_and_slows_nobody(
    server: Server, client: Client, code: int, said: str, *, in_doubt: bool
):
    """A leader that ends waits until none of its writes can come late."""
    limit, client.fence = client.flow.limit, lambda: None
    server.faults.append(answer(code, status(code, "", said), headers={"Retry-After": "60"}))
    with pytest.raises(kube.ApiError):
        await client.create(A, {"metadata": {"name": "x"}})
    assert (await client.settle(0) > 0) is in_doubt
    assert client.flow.limit >= limit
    await client.create(A, {"metadata": {"name": "y"}})
    assert server.count("POST") == 2


async def test_a_server_that_has_no_time_for_events_pushes_back(server: Server, client: Client):
    server.faults.append(answer(429, headers={"Retry-After": "60"}))
    with pytest.raises(kube.TooManyRequests):
        await client.create("/api/v1/namespaces/a/events", {"metadata": {"name": "e"}})
    with pytest.raises(kube.Unavailable, match="no place in time"):
        await client.create(A, {"metadata": {"name": "y"}}, timeout=0.01)


async def test_a_fenced_write_is_not_sent(server: Server, client: Client):
    server.put("x")

    def fence() -> None:
        raise Fenced

    client.fence = fence
    calls = [
        lambda **o: client.create(A, {"metadata": {"name": "y"}}, **o),
        lambda **o: client.put(X, server.objects["a", "x"], **o),
        lambda **o: client.merge_patch(X, {}, **o),
        lambda **o: client.json_patch(X, [], **o),
        lambda **o: client.apply(X, {}, manager="m", **o),
        lambda **o: client.delete(X, **o),
    ]
    for call in calls:
        with pytest.raises(Fenced):
            await call()
    assert server.requests == []
    assert client.flow.in_flight == 0
    await client.get(X)
    await client.merge_patch(X, {}, dry_run=True)
    await client.merge_patch(X, {}, fenced=False)
    assert len(server.requests) == 3


async def test_the_fence_is_asked_again_before_each_repetition(server: Server, client: Client):
    asked = []

    def fence() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Fenced

    client.fence = fence
    server.faults += [answer(429, headers={"Retry-After": "0"})] * 5
    with pytest.raises(Fenced):
        await client.create(A, {"metadata": {"name": "x"}})
    assert server.count("POST") == 1


@pytest.mark.parametrize("answered", [True, False])
async def test_whoever_is_cancelled_leaves_its_write_to_end(server: Server, client: Client, settle, answered: bool):
    """Its caller does nothing more; what waited for a place is not sent; and what is never answered is in doubt."""
    release, done = asyncio.Event(), []

    async def slow(_: object) -> None:
        await release.wait()
        done.append("answered")

    async def step() -> None:
        await client.create(A, {"metadata": {"name": "y"}})
        done.append("went on")

    client.fence = lambda: None
    client.flow = kube.Flow(start=1, most=1)
    server.faults += [slow]
    steps = [asyncio.ensure_future(step()) for _ in range(2)]
    await settle(lambda: server.count("POST") == 1 and client.flow.waiting == 1)
    for one in steps:
        one.cancel()
    results = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(one) for one in results] == [asyncio.CancelledError] * 2
    assert (done, client.flow.in_flight) == ([], 1)
    if answered:
        settling = asyncio.ensure_future(client.settle(3600))
        await asyncio.sleep(0)
        assert not settling.done()
        release.set()
        assert await settling == 0
        assert done == ["answered"]
    else:
        assert 0 < await client.settle(0.01) <= client.write_timeout
    assert client.cut_off == (0 if answered else 1)
    await asyncio.sleep(0)
    assert not client._sending, "or each write would be kept for ever"
    assert client.flow.in_flight == 0
    assert server.count("POST") == 1


async def test_nobody_asks_what_became_of_a_write_whose_caller_was_cancelled(server: Server, client: Client, settle):
    """It failed: no traceback is logged for that."""
    release, told = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))

    async def slow(request: web.Request) -> web.StreamResponse | None:
        await release.wait()
        return await answer(409)(request)

    client.fence = lambda: None
    server.faults += [slow]
    write = asyncio.ensure_future(client.create(A, {"metadata": {"name": "y"}}))
    await settle(lambda: server.count("POST") == 1)
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    release.set()
    await client.settle(3600)
    del write
    gc.collect()
    assert told == []


@pytest.mark.parametrize(
    ("call", "method", "content_type", "query", "body"),
    [
        (lambda c: c.merge_patch(X, {"a": 1}), "PATCH", kube.MERGE_PATCH, {}, b'{"a":1}'),
        (lambda c: c.json_patch(X, [{"op": "test"}]), "PATCH", kube.JSON_PATCH, {}, b'[{"op":"test"}]'),
        (
            lambda c: c.apply(X, {"a": 1}, manager="m"),
            "PATCH",
            kube.APPLY_PATCH,
            {"fieldManager": "m", "force": "true"},
            b'{"a":1}',
        ),
        (lambda c: c.apply(X, {}, manager="m", force=False), "PATCH", kube.APPLY_PATCH, {"fieldManager": "m"}, b"{}"),
        (lambda c: c.put(X, b"{}"), "PUT", kube.JSON, {}, b"{}"),
        (
            lambda c: c.delete(X, uid="u", propagation="Foreground", dry_run=True),
            "DELETE",
            kube.JSON,
            {"dryRun": "All"},
            (
                b'{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u"},'
                b'"propagationPolicy":"Foreground","dryRun":["All"]}'
            ),
        ),
    ],
)
async def test_what_is_sent(server: Server, client: Client, *, call, method, content_type, query, body):
    server.faults.append(answer(200, {}))
    await call(client)
    (request,) = server.requests
    assert request.method == method
    assert request.headers["Content-Type"] == content_type
    assert {k: v for k, v in request.query.items() if k != "timeout"} == query
    assert await request.read() == body


async def test_pages_come_from_one_revision(server: Server, client: Client):
    for i in range(5):
        server.put(f"x{i}")
    pages = []
    async for page in client.list_pages(A, limit=2):
        pages.append(page)
        server.put("x9")  # after the first page: no part of this list
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert {page.resource_version for page in pages} == {"105"}
    assert client.counts["LIST", "configmaps", "", 200] == 3


async def test_of_objects_that_say_much_fewer_come_at_a_time(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
):
    """A tenant may have hundreds that are each as large as they may be: a page of them would fill the memory."""
    monkeypatch.setattr(kube, "_LONGEST_PAGE", 8 << 10)
    for i in range(40):
        server.put(f"x{i:02}", data="x" * 2000 if 10 <= i < 20 else "x")
    names, most, asked = [], 0, []
    async for page in client.list_pages(A, limit=16):
        names += [json.loads(bytes(raw))["metadata"]["name"] for raw in page.items]
        most = max(most, sum(map(len, map(bytes, page.items))))
        asked.append(int(server.requests[-1].query["limit"]))
    assert names == [f"x{i:02}" for i in range(40)]
    assert most <= 8 << 10
    assert asked[-1] == 16, "as many as before where they say little"
    assert client.flow.in_flight == 0
    server.put("huge", data="x" * 10_000)
    assert [len(page.items) async for page in client.list_pages(A, limit=0)] == [41]
    assert len([raw async for page in client.list_pages(A, limit=1) for raw in page.items]) == 41, (
        "one is read in any case"
    )


async def test_an_expired_token_is_gone(server: Server, client: Client):
    for i in range(3):
        server.put(f"x{i}")
    with pytest.raises(kube.Gone):  # noqa: PT012
        async for _ in client.list_pages(A, limit=2):
            server.compact()


async def test_an_answer_that_is_not_a_list_is_unavailable(server: Server, client: Client):
    server.faults.append(answer(200, text="<html>"))
    with pytest.raises(kube.Unavailable, match="NotAList"):
        async for _ in client.list_pages(A):
            pass


async def test_a_url_with_a_path_and_a_trailing_slash(server: Server):
    async with Client.plain(server.url + "/k8s/clusters/c-1/", "secret") as client:
        server.faults.append(answer(200, {}))
        await client.get(X)
    assert server.requests[0].path == "/k8s/clusters/c-1" + X
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


async def test_a_refused_token_is_read_again_once(server: Server):
    tokens = iter(["Bearer new"])

    async def reload(force: bool) -> str | None:
        assert force
        return next(tokens)

    who = Credentials(server.url, authorization="Bearer old", reload=reload)
    async with Client(who) as client:
        server.put("x")
        server.faults += [answer(401), passing(), answer(401)]
        await client.get(X)
        with pytest.raises(kube.Unauthorized):  # there is no newer one: the plug-in failed
            await client.get(X)
    assert [r.headers["Authorization"] for r in server.requests] == ["Bearer old", "Bearer new", "Bearer new"]


async def test_a_token_is_read_again_as_time_passes(server: Server):
    now, tokens = [0.0], iter(["Bearer 2", "Bearer 3"])

    async def reload(force: bool) -> str | None:
        assert not force
        return next(tokens)

    who = Credentials(server.url, authorization="Bearer 1", reload=reload, reload_every=60, clock=lambda: now[0])
    seen = []
    for at in (0, 59, 60, 61, 119, 121):
        now[0] = at
        seen.append(await who.header())
    assert seen == ["Bearer 1", "Bearer 1", "Bearer 2", "Bearer 2", "Bearer 2", "Bearer 3"]


@pytest.mark.parametrize("call", ["get", "merge_patch"])
async def test_a_call_with_one_attempt_is_heard_with_a_new_token(server: Server, call: str):
    """As those of the lease are: else nobody would lead once the token has changed."""

    async def reload(_: bool) -> str | None:
        return "Bearer new"

    server.put("x")
    async with Client(Credentials(server.url, authorization="Bearer old", reload=reload)) as client:
        server.faults += [answer(401), passing(), answer(401), answer(500)]
        body = () if call == "get" else ({},)
        assert (await getattr(client, call)(X, *body, attempts=1))["metadata"]["name"] == "x"
        with pytest.raises(kube.Unauthorized):  # the newest there is
            await getattr(client, call)(X, *body, attempts=1)
        with pytest.raises(kube.Unavailable):
            await getattr(client, call)(X, *body, attempts=1)
    assert len(server.requests) == 4


async def _forever(_: bool) -> str | None:
    await asyncio.sleep(3600)
    raise AssertionError


@pytest.mark.parametrize(
    ("every", "limit", "error"),
    [(float("inf"), 3.0, kube.Unauthorized), (0.0, 0.05, kube.Unavailable)],
    ids=["asked for by a 401", "asked for by its age"],
)
async def test_a_plugin_that_hangs_takes_no_longer_than_the_call(server: Server, every, limit, error):
    server.faults += [answer(401)] * 3
    who = Credentials(server.url, authorization="Bearer old", reload=_forever, reload_every=every)
    async with Client(who, read_timeout=limit, write_timeout=limit) as client:

        async def watch() -> None:
            async for _ in client.watch_lines(A, resource_version="1"):
                pass

        calls = (client.get(X), client.merge_patch(X, {}), watch())
        for found in await asyncio.gather(*calls, return_exceptions=True):
            assert type(found) is error
            assert not found.ambiguous


async def test_a_plugin_that_hangs_is_given_up_and_what_was_known_shown(server: Server, monkeypatch):
    monkeypatch.setattr(credentials, "_LONGEST", 0.02)
    who = Credentials(server.url, authorization="Bearer old", reload=_forever, reload_every=0.0)
    async with Client(who) as client:
        server.put("x")
        await client.get(X)
    assert server.requests[0].headers["Authorization"] == "Bearer old"


async def test_who_gives_up_on_a_plugin_leaves_it_to_the_others(server: Server):
    ready, times = asyncio.Event(), []

    async def reload(force: bool) -> str | None:
        times.append(force)
        await ready.wait()
        return "Bearer new"

    async with Client(Credentials(server.url, authorization="Bearer old", reload=reload)) as client:
        server.put("x")
        server.faults += [answer(401), answer(401)]
        gives_up, waits = asyncio.ensure_future(client.get(X)), asyncio.ensure_future(client.get(X))
        while server.faults or not times:
            await asyncio.sleep(0.001)
        gives_up.cancel()
        await asyncio.gather(gives_up, return_exceptions=True)
        ready.set()
        await waits
    assert times == [True]


@pytest.fixture
async def kubeconfig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Path, Authority]]:
    """Of a server that knows callers by their certificates, and no "old" any more once something was deleted; it
    answers with the name. Parameter: are its certificates plain."""
    authority = Authority(tmp_path, plain=getattr(request, "param", False))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls.load_cert_chain(*authority.server("server"))
    tls.verify_mode = ssl.CERT_REQUIRED
    refused: set[str] = set()

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        (name,) = [pair[0][1] for pair in request.transport.get_extra_info("peercert")["subject"]]
        if request.method == "DELETE":
            refused.add("old")
        return web.json_response({"name": name}, status=401 if name in refused else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", who)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    path = tmp_path / "kubeconfig"
    server = {"server": f"https://127.0.0.1:{runner.addresses[0][1]}", "certificate-authority": "ca.crt"}
    user = {"client-certificate": "mine.crt", "client-key": "mine.key"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    _lay(path, authority, "old")
    yield path, authority
    await runner.cleanup()


def _lay(path: Path, authority: Authority, name: str, parts: tuple[str, ...] = ("crt", "key")) -> None:
    for part, file in zip(("crt", "key"), authority.client(name), strict=True):
        if part in parts:
            (path.parent / f"mine.{part}").write_bytes(file.read_bytes())


async def test_a_client_certificate_that_is_renewed_in_place_is_shown(kubeconfig: tuple[Path, Authority]):
    """On the connections that are open, too: those were made with the old one."""
    path, authority = kubeconfig
    async with await Client.from_kubeconfig(str(path)) as client:
        assert await client.get("/x") == {"name": "old"}
        _lay(path, authority, "new", ("crt",))  # half of it: the old one is shown on
        assert not await client._who.refresh(stale=None)
        async with Client(client._who) as other:  # on connections of its own
            assert await other.get("/x") == {"name": "old"}
        _lay(path, authority, "new")
        assert await client.delete("/x", attempts=1) == {"name": "new"}  # it was said 401 first
        assert await client.get("/x", attempts=1) == {"name": "new"}


@pytest.mark.parametrize("kubeconfig", [True, False], indirect=True, ids=["plain", "whole"])
async def test_the_authority_of_an_older_cluster_is_trusted(kubeconfig: tuple[Path, Authority], monkeypatch):
    """Python from 3.13 on wants more of certificates than those have that many clusters made for themselves."""
    ordinary = ssl.create_default_context

    def strict(*args: Any, **more: Any) -> ssl.SSLContext:
        made = ordinary(*args, **more)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    async with await Client.from_kubeconfig(str(kubeconfig[0])) as client:
        assert await client.get("/x", attempts=1) == {"name": "old"}


def _config(tmp_path: Path, server: str, user: dict[str, Any] | None = None, **cluster: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


async def test_of_several_kubeconfigs_the_first_that_names_one_says_which_context_is_current(tmp_path: Path) -> None:
    """As for kubectl, beside which one types."""
    paths = [tmp_path / "none"]
    for name in ("people", "lab", "plant"):
        (tmp_path / name).mkdir()
        path = Path(_config(tmp_path / name, f"http://{name}.example.com"))
        told = json.loads(path.read_text().replace('"a"', f'"{name}"').replace('"c"', f'"{name}"'))
        path.write_text(json.dumps(told if name != "people" else told | {"current-context": ""}))
        paths.append(path)
    made = await credentials.from_kubeconfig(os.pathsep.join(map(str, paths)))
    assert made.base_url == "http://lab.example.com"


API, TEN, SIX = "https://api.example.com:6443", "https://10.1.2.3:6443", "https://[fd00::1]:6443"
PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        (API, {}, None),
        (API, {"HTTPS_PROXY": PROXY}, PROXY),
        (API, {"https_proxy": PROXY}, PROXY),
        (API, {"HTTPS_PROXY": "proxy.example.com:3128"}, PROXY),
        (API, {"HTTP_PROXY": PROXY}, None),
        ("http://api.example.com", {"HTTP_PROXY": PROXY}, PROXY),
        (API, {"HTTPS_PROXY": PROXY, "no_proxy": "example.com"}, None),
        *((f"https://{host}:6443", {"HTTPS_PROXY": PROXY}, None) for host in ("127.0.0.1", "localhost", "[::1]")),
        *(
            (url, {"HTTPS_PROXY": PROXY, "NO_PROXY": said}, None if excepted else PROXY)
            for url, excepted, all_said in (
                (API, True, ("a, api.example.com", "example.com", ".Example.com", "*.example.com", "*")),
                (API, True, ("api.example.com:6443",)),
                (API, False, ("api.example.com:443", "ample.com", "b.api.example.com", ":", "")),
                (TEN, True, ("10.0.0.0/8", "10.1.2.3", "10.1.2.3:6443")),
                (TEN, False, ("192.168.0.0/16", "10.1.2.3:80", "2.3", "fd00::/8")),
                (SIX, True, ("fd00::/8", "fd00::1", "[fd00::1]:6443")),
            )
            for said in all_said
        ),
    ],
)
async def test_a_proxy_of_the_environment_is_taken_as_kubectl_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, environment: dict[str, str], proxy: str | None
):
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (await credentials.from_kubeconfig(_config(tmp_path, url))).proxy == proxy
    named = _config(tmp_path, url, **{"proxy-url": "http://of.the.cluster"})
    assert (await credentials.from_kubeconfig(named)).proxy == "http://of.the.cluster"


async def test_what_is_asked_goes_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("NO_PROXY", "")
    server.put("x")
    async with await Client.from_kubeconfig(_config(tmp_path, "http://api.example.invalid")) as client:
        await client.get(X, attempts=1)
    assert server.requests[-1].headers["Host"] == "api.example.invalid"


async def test_a_proxy_that_speaks_something_else_is_told(tmp_path: Path):
    with pytest.raises(ValueError, match="proxy socks5://localhost:1080: http and https are the only ones"):
        await Client.from_kubeconfig(_config(tmp_path, API, **{"proxy-url": "socks5://localhost:1080"}))


async def test_who_acts_as_somebody_by_the_kubeconfig_does_so_here(tmp_path: Path, server: Server):
    """Else a command had more rights than kubectl with the same file."""
    user = {"token": "secret", "as": "tenant", "as-uid": "7", "as-groups": ["a", "b"]}
    user["as-user-extra"] = {"example.com/x": ["1", "2"]}
    async with await Client.from_kubeconfig(_config(tmp_path, server.url, user)) as client:
        server.put("x")
        await client.get(X)
    sent = server.requests[-1].headers
    assert (sent["Impersonate-User"], sent["Impersonate-Uid"]) == ("tenant", "7")
    assert sent.getall("Impersonate-Group") == ["a", "b"]
    assert sent.getall("Impersonate-Extra-example.com%2Fx") == ["1", "2"]


async def test_requests_in_flight_are_bounded_and_waiting_ones_can_be_cancelled(server: Server):
    release = asyncio.Event()
    running = peak = 0

    async def slow(_: object) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await release.wait()
        running -= 1

    server.put("x")
    server.faults += [slow] * 20
    async with Client.plain(server.url, flow=kube.Flow(start=5, most=5)) as client:  # four are for one namespace
        calls = [asyncio.ensure_future(client.get(X)) for _ in range(20)]
        while client.flow.waiting < 16 or running < 4:
            await asyncio.sleep(0.001)
        for call in calls[4:10]:
            call.cancel()
        release.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert client.flow.in_flight == 0
    assert peak == 4
    assert sum(isinstance(one, asyncio.CancelledError) for one in done) == 6
    assert len(server.requests) == 14


async def test_the_environment_is_left_alone(server: Server, client: Client, monkeypatch):
    # Reading proxies and netrc for each request costs more than the request; the switch must not come back.
    assert isinstance(client._unary, aiohttp.ClientSession)
    assert client._unary.trust_env is False
    assert client._streams.trust_env is False
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    server.put("x")
    await client.get(X)
