from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from admission.controller.webhook import BODY_LIMIT, Webhook, configurations
from admission.engine.model import matches
from admission.jobs.hold import Messages
from admission.jobs.requests import label_selector
from admission.kube.access import Access, Unfenced
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
    webhook = Webhook(Access(authorizer, clock=clock), NAMES)
    async with TestClient(TestServer(webhook.app)) as made:
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
    [(None, "ann", True), (3600, "ann", True), (3601, "ann", False), (10**9, "ann", False), (3601, "admin", True)],
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
        webhook = Webhook(Access(Unfenced(kube)), NAMES)
        async with TestClient(TestServer(webhook.app)) as hook:

            async def admit(_: web.Request) -> web.Response:
                allowed, _ = await ask(hook, "/validate-jobs", started)
                return web.json_response({"allowed": allowed})

            server.faults += [admit, *[answer(201, {"status": {"allowed": True}})] * 2]
            path = "/apis/batch/v1/namespaces/a/jobs/j"
            assert await kube.merge_patch(path, {"spec": {"suspend": False}}) == {"allowed": True}


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b"{}", 400), (b'{"request":{"uid":""}}', 400), (b" " * (2 * BODY_LIMIT + 1), 413)],
)
async def test_what_is_no_review_is_refused(client: TestClient[Any, Any], body: bytes, status: int) -> None:
    for path in ("/mutate-jobs", "/validate-pods"):
        assert (await client.post(path, data=body)).status == status


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
