from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from admission.controller import webhook
from admission.controller.webhook import BODY_LIMIT, Webhook, configurations
from admission.engine.model import matches
from admission.jobs.hold import Messages
from admission.jobs.requests import label_selector
from admission.kube import port
from admission.kube.access import RIGHTS_AT_ONCE, RIGHTS_WAITING, Access, Unfenced
from admission.kube.client import Client, Unavailable
from admission.kube.flow import Flow
from admission.names import JOB_COMPLETION_INDEX, Names
from tests.kube.server import Server, answer

NAMES = Names()
ADMINS = {"admin", "muster"}


class Authorizer:
    """Answers SubjectAccessReviews as an API server would, and counts them."""

    def __init__(self) -> None:
        self.asked = 0

    async def create(self, path: str, obj: dict[str, Any], /) -> dict[str, Any]:
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self.asked += 1
        attributes = obj["spec"]["resourceAttributes"]
        allowed = obj["spec"]["user"] in ADMINS and attributes["verb"] in ("admit", "update")
        allowed |= (obj["spec"]["user"], attributes["verb"], attributes["subresource"]) == (
            "drain",
            "create",
            "eviction",
        )
        return {**obj, "status": {"allowed": allowed}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authorizer() -> Authorizer:
    return Authorizer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(authorizer: Authorizer, clock: Clock) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(Webhook(Access(authorizer, clock=clock), NAMES).app)) as made:
        yield made


def review(new: dict[str, Any], old: dict[str, Any] | None = None, *, user: str = "ann", manager: str = "k") -> Any:
    request = {
        "uid": "u1",
        "operation": "CREATE" if old is None else "UPDATE",
        "object": new,
        "oldObject": old,
        "userInfo": {"username": user, "groups": ["people"]},
        "options": {"fieldManager": manager},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def ask(client: TestClient[Any, Any], path: str, body: Any) -> tuple[bool, Any]:
    """(allowed, patch or message)"""
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    answer = (await response.json())["response"]
    assert answer["uid"] == "u1"
    if not answer["allowed"]:
        return False, answer["status"]["message"]
    return True, json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []


def job(suspend: bool | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "labels": {NAMES.queue_label: "q"} if labels is None else labels},
        "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}
        | ({} if suspend is None else {"suspend": suspend}),
    }


HELD = [{"op": "add", "path": "/spec/suspend", "value": True}]


async def test_a_job_is_held_and_only_we_start_it(client: TestClient[Any, Any]) -> None:
    assert await ask(client, "/mutate-jobs", review(job())) == (True, HELD)
    assert await ask(client, "/mutate-jobs", review(job(), user="muster", manager=NAMES.job_manager)) == (True, HELD)
    assert await ask(client, "/mutate-jobs", review(job(labels={}))) == (True, [])
    assert await ask(client, "/mutate-governed-jobs", review(job(labels={}))) == (True, HELD)
    started = review(job(False), job(True))
    assert await ask(client, "/mutate-jobs", started) == (True, HELD)
    allowed, message = await ask(client, "/validate-jobs", started)
    assert not allowed
    assert "leave spec.suspend out" in message
    ours = review(job(False), job(True), user="muster", manager=NAMES.job_manager)
    assert await ask(client, "/mutate-jobs", ours) == (True, [])
    assert await ask(client, "/validate-jobs", ours) == (True, [])


async def test_pods_are_pinned_and_unpinned_ones_refused(client: TestClient[Any, Any]) -> None:
    def pod(index: str) -> dict[str, Any]:
        labels = {NAMES.managed_label: "true", JOB_COMPLETION_INDEX: index}
        notes = {NAMES.pin_form_annotation: "ranks", NAMES.hosts_annotation: "n0,n1"}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
        return {"metadata": {"labels": labels, "annotations": notes, "ownerReferences": [owner]}, "spec": {}}

    by_job = "system:serviceaccount:kube-system:job-controller"
    allowed, patch = await ask(client, "/mutate-pods", review(pod("1")))
    assert allowed
    assert "n1" in json.dumps(patch)
    allowed, message = await ask(client, "/mutate-pods", review(pod("7"), user=by_job))
    assert not allowed
    assert "rank" in message
    allowed, message = await ask(client, "/mutate-pods", review(pod("7")))
    assert not allowed
    assert f"make a Job or a JobSet with the label {NAMES.queue_label} instead" in message
    allowed, _ = await ask(client, "/validate-pods", review(pod("1"), user="admin"))
    assert not allowed


@pytest.mark.parametrize(
    ("grace", "user", "allowed"),
    [
        (None, "ann", True),
        (3600, "ann", True),
        (3601, "ann", False),
        (10**9, "ann", False),
        (3601, "admin", True),
        (10**9, "drain", True),
    ],
)
async def test_who_is_evicted_ends_in_time(
    client: TestClient[Any, Any], authorizer: Authorizer, grace: int | None, user: str, allowed: bool
) -> None:
    """The Job controller deletes no pod that is being deleted already: it would keep what its gang is to give back."""
    options = {} if grace is None else {"deleteOptions": {"gracePeriodSeconds": grace}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "a"}, **options}
    got, said = await ask(client, "/validate-evictions", review(eviction, user=user))
    assert got == allowed
    assert allowed or said == Messages(NAMES).pod_grace
    assert authorizer.asked == 0 or (grace or 0) > 3600, "nobody waits for the authorizer where nodes are drained"


async def test_the_authorizer_is_asked_seldom(
    client: TestClient[Any, Any], authorizer: Authorizer, clock: Clock
) -> None:
    for _ in range(5):
        await ask(client, "/mutate-jobs", review(job(False), job(True)))
    assert authorizer.asked == 2
    clock.now = 6
    await ask(client, "/mutate-jobs", review(job(False), job(True)))
    assert authorizer.asked == 4


async def test_a_pod_that_asks_without_end_keeps_the_api_server_waiting_for_nothing(authorizer: Authorizer) -> None:
    """Whoever reaches the port may ask in anybody's name."""
    gate, reviewed = asyncio.Event(), authorizer.create

    async def create(path: str, obj: dict[str, Any], /) -> dict[str, Any]:
        await gate.wait()
        return await reviewed(path, obj)

    authorizer.create = create  # type: ignore[method-assign]
    found = Access(authorizer)
    people = [{"username": f"nobody-{n}"} for n in range(RIGHTS_AT_ONCE + RIGHTS_WAITING)]
    asked = [found.allowed(one, NAMES.group, "workloads", "admit", source="10.0.0.9") for one in people]
    flood = [asyncio.ensure_future(one) for one in asked]
    async with TestClient(TestServer(Webhook(found, NAMES).app)) as client:
        asking = asyncio.ensure_future(ask(client, "/mutate-jobs", review(job(False), job(True))))
        while not any(one.done() for one in flood):  # somebody of the longest line goes
            await asyncio.sleep(0)
        gate.set()
        assert await asking == (True, HELD)
    await asyncio.gather(*flood, return_exceptions=True)


async def test_where_nobody_says_who_asks_that_is_said_to_him_and_once_in_the_log(
    client: TestClient[Any, Any], authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """By an API server that is busy: it reads the answer of a webhook that fails to whoever made the job. It was a
    traceback in the log for each."""

    async def busy(*_: Any) -> Any:
        raise Unavailable(504, "Timeout", "the request did not complete in time", ambiguous=False)

    monkeypatch.setattr(authorizer, "create", busy)
    with capture_logs() as lines:
        for path in ("/mutate-jobs", "/validate-jobs") * 10:
            response = await client.post(path, json=review(job(False), job(True)))
            assert response.status == 500
            assert "did not complete in time" in await response.text()
    assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["not reviewed"]
    assert caplog.records == []
    monkeypatch.undo()
    assert await ask(client, "/mutate-jobs", review(job(False), job(True))) == (True, HELD)


async def test_a_write_that_waits_for_the_webhook_does_not_keep_it_waiting() -> None:
    """The API server asks the webhook about each write of the controller, and answers when it has its answer."""
    started = review(job(False), job(True), user="muster", manager=NAMES.job_manager)
    async with Server() as server, Client.plain(server.url, flow=Flow(start=1, most=1), write_timeout=5) as kube:
        made = Webhook(Access(Unfenced(kube)), NAMES)
        async with TestClient(TestServer(made.app)) as hook:

            async def admit(_: web.Request) -> web.Response:
                allowed, _ = await ask(hook, "/validate-jobs", started)
                return web.json_response({"allowed": allowed})

            server.faults += [admit, *[answer(201, {"status": {"allowed": True}})] * 2]
            path = "/apis/batch/v1/namespaces/a/jobs/j"
            assert await kube.merge_patch(path, {"spec": {"suspend": False}}) == {"allowed": True}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"request":{"uid":""}}', 400),
        (b'{"request":{"uid":"\xff"}}', 400),
        (b'{"request":' + b"[" * 100_000, 400),
        (b" " * (2 * BODY_LIMIT + 1), 413),
    ],
)
async def test_what_is_no_review_is_refused(client: TestClient[Any, Any], body: bytes, status: int) -> None:
    for path in ("/mutate-jobs", "/validate-pods"):
        assert (await client.post(path, data=body)).status == status


async def test_what_is_compressed_is_not_read(authorizer: Authorizer) -> None:
    """It would take a thousand times the memory that it is charged for."""
    made = Webhook(Access(authorizer), NAMES)
    body = gzip.compress(json.dumps(review(job(False))).encode() + b" " * (BODY_LIMIT))
    async with TestClient(TestServer(made.app)) as client:
        told = await client.post("/mutate-jobs", data=body, headers={"Content-Encoding": "gzip"})
        assert told.status == 415
        assert not made.reviewed


async def _begins(server: TestServer, size: int) -> asyncio.StreamReader:
    """A request of a pod's, of which no more comes than its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
    writer.write(f"POST /mutate-jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    await writer.drain()
    reader.writer = writer  # type: ignore[attr-defined] # kept open as long as it
    return reader


async def test_so_much_is_read_at_a_time_of_one_address_and_of_others_all_the_same(authorizer: Authorizer) -> None:
    made = Webhook(Access(authorizer), NAMES)
    server = TestServer(made.app)
    async with TestClient(server) as client:
        begun = [await _begins(server, 2 * BODY_LIMIT) for _ in range(64)]
        told = [asyncio.ensure_future(one.readline()) for one in begun]
        while made.reading < (64 - sum(one.done() for one in told)) * 2 * BODY_LIMIT:
            await asyncio.sleep(0)
        assert {one.result() for one in told if one.done()} == {b"HTTP/1.1 503 Service Unavailable\r\n"}
        assert 0 < made.reading <= 32 << 20
        assert await (await _begins(server, 1 << 40)).readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
        assert await ask(client, "/mutate-jobs", review(job(False), job(True))) == (True, HELD)
        for one in told:
            one.cancel()


async def test_a_request_that_does_not_come_is_not_waited_for(
    authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "READ_S", 0.01)
    made = Webhook(Access(authorizer), NAMES)
    server = TestServer(made.app)
    async with TestClient(server) as client:
        late = await _begins(server, BODY_LIMIT)
        assert await late.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        assert made.reading == 0
        no_length = await client.post("/mutate-jobs", data=_in_parts())
        assert no_length.status == 411


async def test_a_pod_that_opens_connections_without_end_keeps_the_api_server_waiting_for_nothing(
    authorizer: Authorizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "MOST_CONNECTIONS", 8)
    runner = await Webhook(Access(authorizer), NAMES).serve(0, None, host="127.0.0.1")
    host, at = runner.addresses[0][:2]
    opened = [await asyncio.open_connection(host, at, local_addr=("127.0.0.2", 0)) for _ in range(50)]
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            ended = await asyncio.gather(*(reader.read() for reader, _ in opened[:42]))
            assert set(ended) == {b""}
            body = review(job(False), job(True))
            async with session.post(f"http://{host}:{at}/mutate-jobs", json=body) as answer:
                assert answer.status == 200
    finally:
        for _, writer in opened:
            writer.close()
        await runner.cleanup()


async def _in_parts() -> AsyncIterator[bytes]:
    yield b"{}"


async def test_objects_of_any_shape_are_answered(client: TestClient[Any, Any]) -> None:
    shapes: list[Any] = [{}, {"metadata": None, "spec": []}, {"metadata": {"labels": [1]}, "spec": {"suspend": "yes"}}]
    for path in ("/mutate-jobs", "/validate-jobs", "/mutate-pods", "/validate-pods"):
        for shape in shapes:
            for kind in ("Job", "JobSet"):
                named = {
                    "apiVersion": "batch/v1" if kind == "Job" else "jobset.x-k8s.io/v1alpha2",
                    "kind": kind,
                    **shape,
                }
                await ask(client, path, review(named, named))
                await ask(client, path, review(named))


@pytest.mark.parametrize("home", ["muster-system", "elsewhere"])
def test_no_webhook_is_asked_of_what_its_own_replicas_are_made_of(home: str) -> None:
    for configuration in configurations(NAMES, ca_bundle=b"ca", service=(home, "muster"), home=home):
        for hook in configuration["webhooks"]:
            selector = label_selector(hook["namespaceSelector"], "", [])
            every = ("kube-system", "muster-system", "elsewhere")
            asked = {name for name in every if matches(selector, {"kubernetes.io/metadata.name": name})}
            assert asked == {"muster-system", "elsewhere"} - {home}, hook["name"]


def test_nothing_without_a_label_depends_on_the_webhook() -> None:
    but_home = {"matchExpressions": [{"key": "name", "operator": "NotIn", "values": ["kube-system"]}]}
    made = configurations(NAMES, ca_bundle=b"ca", service=("muster-system", "muster"), defaulted_namespaces=but_home)
    for configuration in made:
        for hook in configuration["webhooks"]:
            keyed = "Exists" in json.dumps(hook.get("objectSelector", {})).replace("DoesNotExist", "")
            assert keyed or hook["failurePolicy"] == "Ignore", hook["name"]
            assert "kube-system" in json.dumps(hook["namespaceSelector"])
            assert hook["timeoutSeconds"] <= 5
    names: Callable[[Any], list[str]] = lambda c: [hook["name"] for hook in c["webhooks"]]  # noqa: E731
    assert all(len(set(names(c))) == len(names(c)) for c in made)
