"""The visibility API: who is believed, what they may ask, and that the order it tells is the order of admission."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from admission.controller import certificates, line
from admission.controller.answers import Jobs, State
from admission.controller.ask import Ask
from admission.kube.client import Client
from admission.names import KUEUE_GROUP, Names
from admission.sandbox.store import User
from admission.web import health
from admission.web.server import Web
from admission.web.visibility import FrontProxy
from e2e.credentials import Authority
from tests.web.running import NAMES, Running, controller, running

ROOT = "/apis/visibility.muster.dev/v1beta1"
OF_A = f"{ROOT}/namespaces/team-a/localqueues/main/pendingworkloads"
ALL_OF_A = f"{ROOT}/clusterqueues/team-a/pendingworkloads"
Json = dict[str, Any]


class Asking:
    """The API server's side: a TLS client with the front proxy's certificate, or with another."""

    def __init__(self, folder: Path, shown: Web, bundle: bytes) -> None:
        self._folder = folder
        self._bundle = bundle
        self._shown = shown
        self.authority = Authority(folder / "front-proxy")
        self._stranger = Authority(folder / "stranger")
        self.data = {
            "requestheader-client-ca-file": self.authority.ca_file.read_text(),
            "requestheader-allowed-names": '["front-proxy"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-uid-headers": '["X-Remote-Uid"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        self.url = ""

    def _context(self, certificate: str) -> ssl.SSLContext:
        made = ssl.create_default_context(cadata=self._bundle.decode())
        if certificate == "stranger":
            made.load_cert_chain(*self._stranger.client("front-proxy"))
        elif certificate:
            made.load_cert_chain(*self.authority.client(certificate))
        return made

    async def get(
        self, path: str, user: str = "olga", groups: tuple[str, ...] = ("platform",), certificate: str = "front-proxy",
        **headers: str,
    ) -> tuple[int, Json]:  # fmt: skip
        said = [("X-Remote-User", user)] if user else []
        said += [("X-Remote-Group", group) for group in groups] + list(headers.items())
        connector = aiohttp.TCPConnector(ssl=self._context(certificate))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"{self.url}{path}", headers=said) as answer,
        ):
            return answer.status, await answer.json()


@pytest.fixture
async def town() -> AsyncIterator[Running]:
    async with running() as one:
        yield one


@pytest.fixture
async def asking(town: Running, tmp_path: Path) -> AsyncIterator[Asking]:
    have = certificates.issue(None, ["localhost"], datetime.now(UTC))  # noqa: TID251 - certificates live by it
    context = certificates.context(have)
    made = Asking(tmp_path, town.web, have.bundle)
    context.load_verify_locations(cadata=town.web.believe(made.data))
    context.verify_mode = ssl.CERT_OPTIONAL
    runner = await health.serve(town.web.app, "localhost:0", context)
    made.url = f"https://localhost:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


async def test_who_is_believed_and_what_they_may_ask(town: Running, asking: Asking) -> None:
    platform, tenant = ("olga", ("platform",)), ("ann", ("team-a",))
    other = f"{ROOT}/namespaces/team-b/localqueues/main/pendingworkloads"
    rows: list[tuple[str, tuple[str, tuple[str, ...]], str, int, str]] = [
        (ALL_OF_A, platform, "front-proxy", 200, ""),
        (OF_A, platform, "front-proxy", 200, ""),
        (OF_A, tenant, "front-proxy", 200, ""),
        (ALL_OF_A, tenant, "front-proxy", 403, 'User "ann" cannot get resource "clusterqueues/pendingworkloads"'),
        (other, tenant, "front-proxy", 403, 'in the namespace "team-b"'),
        (ALL_OF_A, platform, "", 401, "only the API server"),  # headers alone prove nothing
        (ALL_OF_A, platform, "ann", 401, "only the API server"),  # signed by the CA, and not the front proxy
        (ALL_OF_A, ("", ("platform",)), "front-proxy", 401, "only the API server"),  # speaks for nobody
        (f"{ROOT}/clusterqueues/nil/pendingworkloads", platform, "front-proxy", 404, 'clusterqueues "nil" not found'),
        (f"{ROOT}/namespaces/team-a/localqueues/nil/pendingworkloads", tenant, "front-proxy", 404, "not found"),
        (f"{OF_A}?limit=-1", tenant, "front-proxy", 400, "limit=-1: write a whole number from 0"),
        (f"{OF_A}?offset=%D9%A1", tenant, "front-proxy", 400, "write a whole number"),
        (f"{OF_A}?limit=99999999999999999999", tenant, "front-proxy", 400, "write a whole number"),
    ]
    for path, (user, groups), certificate, status, told in rows:
        found, body = await asking.get(path, user, groups, certificate)
        assert (found, body["kind"]) == (status, "PendingWorkloadsSummary" if status == 200 else "Status"), (path, body)
        assert told in body.get("message", ""), body
        assert status == 200 or (body["code"], body["status"]) == (status, "Failure")
    with pytest.raises((aiohttp.ClientError, OSError)):  # somebody else's CA does not get past the handshake
        await asking.get(ALL_OF_A, certificate="stranger")


async def test_the_api_server_is_asked_about_the_caller_and_about_what_is_asked_for(
    town: Running, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    async def allowed(user: Json, *what: str, namespace: str, name: str) -> bool:
        seen.append((user, what, namespace, name))
        return False

    monkeypatch.setattr(town.web.visibility._access, "allowed", allowed)
    more = {"X-Remote-Uid": "u-7", "X-Remote-Extra-Example.com%2FScopes": "read"}
    for path in (OF_A, ALL_OF_A):
        assert (await asking.get(path, "ann", ("team-a", "team-b"), **more))[0] == 403
    caller = {"username": "ann", "uid": "u-7", "groups": ["team-a", "team-b"]}
    caller["extra"] = {"example.com/scopes": ["read"]}
    group = "visibility.muster.dev"
    assert seen == [
        (caller, (group, "localqueues", "get", "pendingworkloads"), "team-a", "main"),
        (caller, (group, "clusterqueues", "get", "pendingworkloads"), "", "team-a"),
    ]


async def test_where_too_many_wait_to_be_looked_up_the_api_says_so(town: Running, asking: Asking) -> None:
    town.web.visibility._access._rights._most = 0
    status, body = await asking.get(ALL_OF_A)
    assert (status, body["reason"]) == (503, "ServiceUnavailable")
    assert body["message"] == "too many callers wait to be looked up; try again in a moment"


async def test_the_order_that_is_told_is_the_order_of_admission(town: Running) -> None:
    """Everybody waits behind a gang that holds all quota; then room for one at a time comes free."""
    await town.submit("team-b", "holds-b", pods=1)
    await town.submit("team-a", "holds-a", pods=2)
    await town.until(lambda: town.running() == {"holds-a", "holds-b"})
    node = "/api/v1/nodes/node-3"
    await town.client.merge_patch(node, {"spec": {"unschedulable": True}})
    names = ["low-1", "high-1", "low-2", "high-2", "low-3"]
    for name in names:
        await town.submit("team-a", name, pods=2, priority="urgent" if name.startswith("high") else "")
        await town.until(town.settled(name))
    view, state = town.web.visibility._view, town.controller.state
    told = [town.controller.numbers.owner(key)[1] for key in view.line("team-a")]
    assert sorted(told) == sorted(names)
    assert view.line("team-a") == state.pending("team-a")
    came = ["holds-a"]
    for _ in names:
        await town.delete("team-a", came[-1])
        came += await town.until(lambda gone=frozenset(came): town.running() - {"holds-b"} - gone)
    assert came[1:] == told


async def test_pages_make_the_whole_and_every_no_has_numbers(town: Running, asking: Asking) -> None:
    for i in range(7):
        await town.submit("team-a", f"job-{i}", pods=3, priority="urgent" if i % 3 == 0 else "")
    await town.until(town.settled(*(f"job-{i}" for i in range(7))))
    status, whole = await asking.get(ALL_OF_A)
    assert status == 200
    items = whole["items"]
    assert whole["metadata"] == {}
    assert whole["live"] is True
    assert [item["positionInClusterQueue"] for item in items] == list(range(len(items)))
    assert [item["positionInLocalQueue"] for item in items] == list(range(len(items)))
    pages: list[Json] = []
    for offset in range(0, len(items) + 2, 2):
        _, page = await asking.get(f"{ALL_OF_A}?offset={offset}&limit=2")
        pages += page["items"]
        assert page["metadata"].get("remainingItemCount", 0) == max(0, len(items) - offset - 2)
    assert [page["metadata"] for page in pages] == [item["metadata"] for item in items]
    _, mine = await asking.get(OF_A, "ann", ("team-a",))
    assert mine["items"] == items
    for item in items:
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"]) == ("batch/v1", "Job")
        assert (item["localQueueName"], item["pods"], item["requests"]) == ("main", 3, {"nvidia.com/gpu": "24"})
        assert item["reason"]
        assert item["message"]
    short = next(item for item in items if item["numbers"] and "requested" in item["numbers"][0])
    assert short["numbers"][0]["requested"] == "24"


async def test_a_replica_that_does_not_lead_tells_the_same(town: Running) -> None:
    """Same order, and the reasons that the leader wrote; no numbers, for it decides nothing."""
    for i in range(4):
        await town.submit("team-a", f"job-{i}", pods=3)
    await town.until(town.settled(*(f"job-{i}" for i in range(4))))
    follower = controller(town.client)
    watching = asyncio.create_task(follower.watch())
    try:
        await town.until(lambda: follower.synced)
        theirs = Web(follower.numbers, town.client, NAMES).visibility._view
        ours = town.web.visibility._view
        waiting = await town.until(lambda: ours.line("team-a"))
        await town.until(lambda: theirs.line("team-a") == waiting)
        assert {key: theirs.places("team-a")[key] for key in waiting} == dict(ours.places("team-a"))
        await town.until(lambda: [theirs.why(key)[:3] for key in waiting] == [ours.why(key)[:3] for key in waiting])
        assert all(theirs.why(key)[3] is None for key in waiting)
        assert not theirs.source.leading()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_those_who_may_not_stand_in_line_come_last(town: Running, asking: Asking) -> None:
    await town.submit("team-a", "gone", pods=2)
    await town.until(lambda: town.running() == {"gone"})
    queue = f"/apis/{NAMES.api_version}/namespaces/team-a/localqueues"
    second = {"apiVersion": NAMES.api_version, "kind": "LocalQueue", "metadata": {"name": "second"}}
    await town.client.create(queue, second | {"spec": {"clusterQueue": "team-a", "stopPolicy": "Hold"}})
    held = {**_job("stopped"), "metadata": {"name": "stopped", "labels": {NAMES.queue_label: "second"}}}
    await town.client.create("/apis/batch/v1/namespaces/team-a/jobs", held)
    await town.until(lambda: "stopped" in town.workloads())
    await town.submit("team-a", "later", pods=3)
    await town.until(town.settled("later", "stopped"))
    _, body = await asking.get(ALL_OF_A)
    told = [(item["metadata"]["ownerReferences"][0]["name"], item["reason"]) for item in body["items"]]
    assert [name for name, _ in told] == ["later", "stopped"]
    assert told[1][1] == "OnHold"
    assert [item["positionInLocalQueue"] for item in body["items"]] == [0, 0]


def _job(name: str) -> Json:
    from tests.web.running import job

    return job("team-a", name, 8, 1)


async def test_commands_tell_what_the_api_tells(town: Running, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rights of either; and what the objects say where it is not served, not allowed, or not answering."""
    monkeypatch.setattr(line, "_PAGE", 3)
    names = [f"job-{i}" for i in range(7)]
    for i, name in enumerate(names):
        await town.submit("team-a", name, pods=3, priority="urgent" if i % 3 == 0 else "")
    await town.until(town.settled(*names))
    _, whole = await asking.get(ALL_OF_A)
    async with asyncio.timeout(300):  # what is said of them settles, too, before it is compared
        while len(whole["items"]) != len(names) - len(town.running()) or any(
            item["reason"] == "PendingEvaluation" for item in whole["items"]
        ):
            await asyncio.sleep(0.05)
            _, whole = await asking.get(ALL_OF_A)
    told = [(item["metadata"]["name"], item["positionInLocalQueue"] + 1) for item in whole["items"]]
    said = {item["metadata"]["name"]: (item["reason"], item["detail"], item["message"]) for item in whole["items"]}

    async def jobs(token: str, namespace: str | None) -> Jobs:
        async with Client.plain(town.cluster.url, token=token, backoff=(0.001, 0.01)) as client:
            return await Ask(client, NAMES, town.controller.now()).jobs(namespace)

    def rows(answer: Jobs) -> list[tuple[str, int | None]]:
        return [(row.workload, row.position) for row in answer.rows if row.state is State.WAITING]

    async def forward(path: str, user: User) -> tuple[int, Json]:
        return await asking.get(path, user.name, user.groups)

    async def refuse(path: str, user: User) -> tuple[int, Json]:
        status, body = await forward(path, user)
        return (status, body) if path == ROOT else (403, {"kind": "Status", "code": 403, "reason": "Forbidden"})

    async def away(_path: str, _user: User) -> tuple[int, Json]:
        return 503, {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": "no replica runs"}

    town.cluster.aggregated = forward
    for token, namespace in (("ann-token", "team-a"), ("ops-token", "team-a"), ("ops-token", None)):
        answer = await jobs(token, namespace)
        assert (rows(answer), answer.live, answer.silent) == (told, True, "")
        waiting = [row for row in answer.rows if row.state is State.WAITING]
        assert {row.workload: (row.reason, row.detail, row.message) for row in waiting} == said
        assert {row.waiting for row in waiting} == {len(told)}
    async with Client.plain(town.cluster.url, token="ann-token", backoff=(0.001, 0.01)) as client:
        for i, item in enumerate(whole["items"], 1):
            (owner,) = item["metadata"]["ownerReferences"]
            why = await Ask(client, NAMES, town.controller.now()).why(owner["name"], "team-a")
            assert (why.live, why.standing.position, why.standing.waiting) == (True, i, len(told))
            assert [lack.requested for lack in why.lacks] == [one.get("requested", "") for one in item["numbers"]]

    for other, silent in ((None, False), (refuse, False), (away, True)):
        town.cluster.aggregated = other
        answer = await jobs("ann-token", "team-a")
        assert (rows(answer), answer.live) == (told, False)
        assert ("visibility.muster.dev does not answer (no replica runs)" in answer.silent) == silent


async def test_discovery_is_what_the_aggregator_reads(town: Running, asking: Asking) -> None:
    async def plain(path: str, accept: str = "application/json") -> tuple[int, Json]:
        return await asking.get(path, "", (), "", Accept=accept)

    only = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    assert (await plain("/apis", only))[0] == 406
    assert (await plain("/apis", f"{only}, application/json"))[1]["groups"][0]["name"] == "visibility.muster.dev"
    assert (await plain("/apis/visibility.muster.dev"))[1]["preferredVersion"]["version"] == "v1beta1"
    resources = (await plain(ROOT))[1]["resources"]
    assert {(one["name"], one["namespaced"]) for one in resources} == {
        ("clusterqueues/pendingworkloads", False),
        ("localqueues/pendingworkloads", True),
    }
    assert (await plain("/openapi/v3"))[1] == {"paths": {}}
    assert (await plain("/openapi/v2"))[1]["swagger"] == "2.0"
    # Beside Kueue's own clients: its group and version, in the same shape.
    async with TestClient(TestServer(Web(town.controller.numbers, town.client, Names(KUEUE_GROUP)).app)) as kueue:
        root = "/apis/visibility.kueue.x-k8s.io/v1beta2"
        async with kueue.get(root) as answer:
            assert [one["name"] for one in (await answer.json())["resources"]] == [one["name"] for one in resources]
        async with kueue.get(f"{root}/namespaces/team-a/localqueues/main/pendingworkloads") as answer:
            assert answer.status == 401


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "without an aggregation layer"),
        ({"requestheader-client-ca-file": "no PEM"}, "without an aggregation layer"),
        (
            {"requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----", "requestheader-allowed-names": '"x"'},
            "is no list",
        ),
        ({"requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----", "requestheader-allowed-names": "{"}, ""),
    ],
)
def test_a_front_proxy_that_is_not_named_is_not_believed(data: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError) as error:
        FrontProxy.from_config(data)
    assert told in str(error.value)


def test_headers_are_those_that_the_config_names() -> None:
    ca = "-----BEGIN CERTIFICATE-----"
    made = FrontProxy.from_config(
        {
            "requestheader-client-ca-file": ca,
            "requestheader-username-headers": json.dumps(["X-One", "X-Two"]),
            "requestheader-uid-headers": json.dumps(["X-Uid"]),
        }
    )
    assert (made.names, made.user, made.uid, made.groups) == ((), ("X-One", "X-Two"), ("X-Uid",), ("X-Remote-Group",))
