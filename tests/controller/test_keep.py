"""What is in use does not vanish, by the controller's own loops on a sandbox; and how those loops end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.controller.actuate import Options
from admission.controller.answers import State
from admission.controller.app import Controller, Tuning
from admission.controller.change import held_back
from admission.controller.finalizers import used_by
from admission.controller.lifecycle import Settings
from admission.controller.stale import _STATUS_OF
from admission.engine.model import (
    MUSTER,
    Admission,
    CheckRule,
    ClusterQueue,
    Cohort,
    Flavor,
    FlavorQuotas,
    LabelSelector,
    PodSetAssignment,
    Put,
    Quota,
    Requirement,
    ResourceGroup,
    Workload,
)
from admission.engine.state import State as Engine
from admission.jobs.values import rfc3339
from admission.kube.client import Fenced, NotFound, unanswered
from tests.controller import lab
from tests.controller.lab import GPU, NAMES, World, cluster_queue, job, local_queue, own, workload

FLAVOR = {"nodeLabels": {"gpu": "h100"}, "topologyName": "racks"}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"gpu": "h100", "kubernetes.io/hostname": "n"}},
    "status": {
        "allocatable": {"nvidia.com/gpu": "16", "cpu": "64", "memory": "1Ti", "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
CHECK = own(
    "AdmissionCheck",
    "budget",
    {"controllerName": "example.com/budget"},
    status={"conditions": [lab.condition("Active", True, "Active", "It answers")]},
)
JOBS = "/apis/batch/v1/namespaces/ml/jobs"
QUEUE = ("ClusterQueue", "team-a")
PLURALS = {
    "ClusterQueue": "clusterqueues",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "AdmissionCheck": "admissionchecks",
}


@asynccontextmanager
async def running(
    world: World,
    *,
    leads: bool = True,
    explain_after_s: float = 0.0,
    sweep_s: float = 30.0,
    at: int = lab.NOW,
    **options: Any,
) -> AsyncIterator[Controller]:
    controller = Controller(
        world.client,
        names=NAMES,
        rules=MUSTER,
        settings=Settings(),
        options=Options(can_rank=True),
        tuning=Tuning(explain_after_s=explain_after_s, sweep_s=sweep_s),
        now=lambda: at,
        **options,
    )
    tasks = [asyncio.ensure_future(controller.watch()), *([asyncio.ensure_future(controller.lead())] if leads else [])]
    try:
        yield controller
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What the condition gives, once it is true. The limit is there against hanging for ever."""
    async with asyncio.timeout(300):
        while not (found := await condition()):
            await asyncio.sleep(0.01)
    return found


def path(kind: str, name: str) -> str:
    return f"/apis/{NAMES.api_version}/{PLURALS[kind]}/{name}"


async def test_marking_many_queues_does_not_race_with_their_statuses(world: World) -> None:
    many = 60
    for i in range(many):
        await world.put(cluster_queue(f"team-{i}", 16))

    async with running(world) as controller:

        async def marked() -> bool:
            found = controller.informers["ClusterQueue"].store.values()
            return len(found) == many and all(one.finalizers == (NAMES.finalizer,) and one.status for one in found)

        await until(marked)
        assert controller.client.counts["PATCH", "clusterqueues", "", 200] == many
        assert controller.client.counts["PATCH", "clusterqueues", "", 409] == 0


async def test_that_finalizers_may_not_be_written_is_told_once(world: World) -> None:
    """It is tried again each half minute, of all that are there: each was a line."""
    for i in range(20):
        await world.put(own("ClusterQueue", f"team-{i:02}", {}))
    async with running(world, leads=False) as controller:

        async def seen() -> bool:
            return len(controller.informers["ClusterQueue"].store) == 20

        await until(seen)
        world.denied.add("PATCH clusterqueues")
        with capture_logs() as logged:
            assert [await controller.keeper.once() for _ in range(3)] == [0, 0, 0]
        assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["finalizer not written"]
        world.denied.clear()
        assert await controller.keeper.once() == 20


async def test_what_is_in_use_waits_for_its_end_and_what_is_not_goes_at_once(world: World) -> None:
    queue = cluster_queue("team-a", 16)
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "budget"}]}
    levels = {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}
    for one in (
        NODE,
        own("Topology", "racks", levels),
        own("ResourceFlavor", "h100", FLAVOR),
        own("ResourceFlavor", "spare", {}),
        CHECK,
        queue,
        local_queue("main", "team-a"),
    ):
        await world.put(one)
    kept = [("ClusterQueue", "team-a"), ("ResourceFlavor", "h100"), ("Topology", "racks"), ("AdmissionCheck", "budget")]

    async def there(kind: str, name: str) -> dict[str, Any] | None:
        try:
            return await world.client.get(path(kind, name))
        except NotFound:
            return None

    async with running(world) as controller:

        async def marked() -> bool:
            found = [await there(kind, name) for kind, name in [*kept, ("ResourceFlavor", "spare")]]
            return all(one and one["metadata"].get("finalizers") == [NAMES.finalizer] for one in found)

        await until(marked)
        await world.client.delete(path("ResourceFlavor", "spare"))

        async def gone() -> bool:
            return await there("ResourceFlavor", "spare") is None

        await until(gone)
        made = await world.put(job("train", "main"))

        async def reserved() -> bool:
            return controller.state.queue_numbers("team-a").reserving == 1

        await until(reserved)
        workloads_ = f"/apis/{NAMES.api_version}/namespaces/ml/workloads"
        [one] = (await world.client.get(workloads_))["items"]
        said = {"name": "budget", "state": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        answer = {
            "apiVersion": NAMES.api_version,
            "kind": "Workload",
            "metadata": {"name": one["metadata"]["name"], "namespace": "ml"},
            "status": {"admissionChecks": [said]},
        }
        await world.client.apply(f"{workloads_}/{one['metadata']['name']}/status", answer, manager="budget")

        async def admitted() -> bool:
            return controller.state.queue_numbers("team-a").admitted == 1

        await until(admitted)  # who only reserves gives it back
        for kind, name in kept:
            await world.client.delete(path(kind, name))

        async def told() -> bool:
            events = (await world.client.get("/api/v1/namespaces/default/events"))["items"]
            said = {
                (e["involvedObject"]["kind"], e["message"].partition(": ")[2]) for e in events if e["reason"] == "InUse"
            }
            return said >= {
                ("ClusterQueue", "1 gang holds quota of it"),
                ("ResourceFlavor", "gangs of ClusterQueue team-a hold quota of it"),
                ("Topology", "ResourceFlavor h100 names it"),
                ("AdmissionCheck", "ClusterQueue team-a names it"),
            }

        await until(told)
        for kind, name in kept:
            found = await there(kind, name)
            assert found is not None
            assert found["metadata"]["deletionTimestamp"]
        active = await until(lambda: inactive(world))
        assert active["reason"] == "Terminating"
        await world.client.delete(
            f"/apis/batch/v1/namespaces/ml/jobs/{made['metadata']['name']}", propagation="Background"
        )

        async def all_gone() -> bool:
            return not any([await there(kind, name) for kind, name in kept])

        await until(all_gone)


async def test_a_new_leader_whose_watch_hangs_lets_no_queue_go_that_is_in_use(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one gave quota of it away, and ended; then it was deleted."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    queues = f"/apis/{NAMES.api_version}/clusterqueues"
    async with running(world, leads=False) as second:
        copy = second.informers["Workload"]
        async with running(world) as first:

            async def marked() -> bool:
                found = [await world.client.get(path(*one)) for one in (QUEUE, ("ResourceFlavor", "h100"))]
                return all(one["metadata"].get("finalizers") for one in found)

            await until(marked)
            monkeypatch.setattr(copy, "_take", lambda line: "")
            await world.put(job("train", "main"))

            async def reserved() -> bool:
                items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
                return any(one.get("status", {}).get("admission") for one in items)

            await until(reserved)
            assert first.leading
        await world.client.delete(path(*QUEUE))

        async def heard() -> bool:
            return second.informers["ClusterQueue"].store["", "team-a"].deleting

        await until(heard)
        monkeypatch.setattr(copy, "_heard_at", float("-inf"))
        world.denied.add("PATCH status")  # by which the queue would be another than the one that may go
        leading = asyncio.ensure_future(second.lead())

        async def let_go_or_told() -> bool:
            if not (await world.client.get(queues))["items"]:
                return True
            events = (await world.client.get("/api/v1/namespaces/default/events"))["items"]
            return any(one["reason"] == "InUse" for one in events)

        await until(let_go_or_told)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
    assert (await world.client.get(path(*QUEUE)))["metadata"]["finalizers"] == [NAMES.finalizer]


def test_what_still_needs_a_flavor() -> None:
    """Also one that no queue names any more, while a gang holds quota of it; and one that a Cohort names alone."""
    state = Engine(MUSTER)

    def groups(flavor: str) -> tuple[ResourceGroup, ...]:
        return (ResourceGroup((GPU,), (FlavorQuotas(flavor, ((GPU, Quota(8)),)),)),)

    for name in ("old", "new", "shared", "idle"):
        state.apply(Put(Flavor(name, topology="racks" if name == "idle" else "")))
    state.apply(Put(Cohort("all", groups=groups("shared"))))
    state.apply(Put(ClusterQueue("team", groups=groups("old"))))
    given = Admission("team", (PodSetAssignment("main", ((GPU, "old"),), ((GPU, 2),), 2),))
    state.apply(Put(Workload("ml", "w", uid="w", queue="main", admission=given, reserved_at=1)))
    state.apply(Put(ClusterQueue("team", groups=groups("new"), checks=(CheckRule("budget"),))))
    assert used_by(state) == {
        ("ClusterQueue", "team"): "1 gang holds quota of it",
        ("ResourceFlavor", "old"): "gangs of ClusterQueue team hold quota of it",
        ("ResourceFlavor", "new"): "ClusterQueue team names it",
        ("ResourceFlavor", "shared"): "Cohort all names it",
        ("AdmissionCheck", "budget"): "ClusterQueue team names it",
        ("Topology", "racks"): "ResourceFlavor idle names it",
    }


@pytest.mark.parametrize("there", [True, False])
async def test_a_job_without_a_label_waits_in_the_queue_of_its_namespace(world: World, there: bool) -> None:
    for one in (NODE, own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16)):
        await world.put(one)
    if there:
        await world.put(local_queue("default", "team-a"))
    bare = job("bare")
    bare["metadata"]["labels"].pop(NAMES.queue_label)
    await world.put(bare)
    async with running(world, default_queue="default"):

        async def decided() -> dict[str, Any] | None:
            items = (await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]
            held = [
                c
                for one in items
                for c in one.get("status", {}).get("conditions") or ()
                if c["type"] == "QuotaReserved"
            ]
            return held[0] if held else None

        condition = await until(decided)
        if there:
            assert condition["status"] == "True"
            await until(lambda: begun(world, "bare"))
        else:
            assert (condition["status"], condition["reason"]) == ("False", "Misconfigured")
            assert "default" in condition["message"]


@pytest.mark.parametrize("how", ["jobs without a label are not queued", "the namespace is not governed"])
async def test_who_is_not_governed_any_more_stays_held_and_is_told_and_found(world: World, how: str) -> None:
    everywhere = LabelSelector((Requirement("kubernetes.io/metadata.name", "Exists", ()),))
    nowhere = LabelSelector((Requirement("muster", "In", ("governed",)),))
    selected = nowhere if how.startswith("the namespace") else everywhere
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)

    async def jobs() -> dict[str, Any]:
        return {one["metadata"]["name"]: one for one in (await world.client.get(JOBS))["items"]}

    async def said(reason: str) -> set[tuple[str, str]]:
        return {(one["involvedObject"]["name"], one["message"]) for one in await events(world, reason)}

    async with running(world, default_queue="main", looked_at=everywhere):
        await world.put(job("runs", ""))
        await until(lambda: one_is(jobs, "runs", suspended=False))
        await world.put(job("waits", ""))
        await until(lambda: workloads(world, 2))
    # Of their owners' own: one that is suspended, one that runs.
    await world.put(job("theirs", ""))
    async with running(world, default_queue="", looked_at=selected):
        await until(lambda: one_is(jobs, "runs", suspended=True))
        stopped = {"conditions": [lab.condition("Suspended", True, "JobSuspended", "")]}
        await world.client.merge_patch(f"{JOBS}/runs/status", {"status": stopped})
        await until(lambda: workloads(world, 0))

        async def both() -> bool:
            return {name for name, _ in await said("InvalidJob")} == {"runs", "waits"}

        await until(both)
        shown = await world.ask().jobs("ml")
        assert {(row.name, row.state) for row in shown.rows} == {("runs", State.HELD), ("waits", State.HELD)}
        why = await world.ask().why("waits", "ml")
        assert (why.standing.state, why.standing.detail) == (State.HELD, "InvalidSpec")
        assert "it stays suspended" in why.standing.message
        assert {raw["metadata"]["name"] for _, raw in await held_back(world.ask(), None)} == {"runs", "waits"}
        # Whoever starts one has it, and it is nobody's afterwards.
        await world.client.merge_patch(f"{JOBS}/waits", {"spec": {"suspend": False}})

        async def unmarked(name: str) -> bool:
            return NAMES.ungoverned_label not in (await jobs())[name]["metadata"]["labels"]

        await until(lambda: unmarked("waits"))
    async with running(world, default_queue="main", looked_at=everywhere):
        await until(lambda: unmarked("runs"))
        await until(lambda: workloads(world, 3))


@pytest.mark.parametrize("refused", ["as it is written", "by the API server"])
async def test_a_held_job_without_a_label_that_cannot_be_queued_is_found(world: World, refused: str) -> None:
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    made = job("wrong", "")

    def refuse(request: web.Request) -> web.Response | None:
        body = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "too much"}
        mine = request.method == "POST" and request.path.endswith("/workloads")
        return web.json_response(body, status=422) if mine else None

    if refused == "as it is written":
        made["metadata"]["labels"] = {NAMES.max_exec_time_label: "soon"}
    else:
        world.sandbox.faults.append(refuse)
    await world.put(made)

    async def labels() -> dict[str, str]:
        return dict((await world.client.get(f"{JOBS}/wrong"))["metadata"].get("labels") or {})

    async def noted() -> bool:
        return NAMES.ungoverned_label in await labels()

    async with running(world, default_queue="main") as controller:
        await until(noted)
        for key in controller.world.jobs:
            controller.jobs.add(key)
        await until(lambda: quiet(controller))
        assert controller.client.counts["PATCH", "jobs", "", 200] == 1
        assert [(row.name, row.state) for row in (await world.ask().jobs("ml")).rows] == [("wrong", State.HELD)]
    assert [raw["metadata"]["name"] for _, raw in await held_back(world.ask(), None)] == ["wrong"]
    # Mended, it is queued as any other, and its Workload says that it is held.
    if refuse in world.sandbox.faults:
        world.sandbox.faults.remove(refuse)
    await world.client.merge_patch(f"{JOBS}/wrong", {"metadata": {"labels": {NAMES.max_exec_time_label: None}}})
    async with running(world, default_queue="main"):
        await until(lambda: workloads(world, 1))

        async def clean() -> bool:
            return not await noted()

        await until(clean)


async def test_while_workloads_are_not_served_their_creates_are_few_and_told_once(world: World) -> None:
    def unserved(request: web.Request) -> web.Response | None:
        mine = request.method == "POST" and request.path.endswith("/workloads")
        return web.Response(status=404, text="404 page not found") if mine else None

    waits: dict[str, list[float]] = {"one": [], "two": []}
    world.sandbox.faults.append(unserved)
    with capture_logs() as logged:
        async with running(world) as controller:

            def at_once(key: tuple[str, str, str], seconds: float) -> None:
                waits[key[2]].append(seconds)
                if len(waits[key[2]]) < 10:
                    controller.jobs.add(key)

            controller.jobs.add_after = at_once  # type: ignore[method-assign]
            for name in waits:
                await world.put(job(name))

            async def tried() -> bool:
                return all(len(given) == 10 for given in waits.values())

            await until(tried)
            world.sandbox.faults.remove(unserved)
            controller.jobs.add(("Job", "ml", "one"))
            await until(lambda: workloads(world, 1))
    assert waits == {name: [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0] for name in waits}
    assert [line["log_level"] for line in logged if line["event"] == "write failed"].count("warning") == 1


async def quiet(controller: Controller) -> bool:
    return controller.jobs.idle


async def one_is(jobs: Callable[[], Awaitable[dict[str, Any]]], name: str, *, suspended: bool) -> bool:
    return (await jobs())[name]["spec"]["suspend"] is suspended


async def workloads(world: World, count: int) -> bool:
    return len((await world.client.get(f"/apis/{NAMES.api_version}/namespaces/ml/workloads"))["items"]) == count


async def events(world: World, reason: str) -> list[dict[str, Any]]:
    there = (await world.client.get("/api/v1/namespaces/ml/events"))["items"]
    return [event for event in there if event["reason"] == reason]


async def told(world: World, reason: str = "InvalidJob") -> list[str]:
    return [event["message"] for event in await events(world, reason)]


async def begun(world: World, name: str = "train") -> bool:
    return (await world.client.get(f"{JOBS}/{name}"))["spec"]["suspend"] is False


async def test_a_job_whose_label_is_empty_is_told_and_found(world: World) -> None:
    empty = job("train", "")
    empty["metadata"]["labels"] = {NAMES.queue_label: ""}
    await world.put(empty)
    async with running(world):
        (message,) = await until(lambda: told(world))
    assert message.endswith("is empty: name a LocalQueue, or leave the label out")
    why = await world.ask().why("train", "ml")
    assert (why.standing.state, why.standing.detail, why.standing.message) == (State.HELD, "InvalidSpec", message)
    assert [(row.name, row.state) for row in (await world.ask().jobs("ml")).rows] == [("train", State.HELD)]
    assert len(await held_back(world.ask(), None)) == 1


async def test_a_job_over_which_the_controller_fails_is_told_once_and_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr("admission.controller.actuate.Actuator._create", fails)
    await world.put(cluster_queue("team-a", 16))
    await world.put(local_queue("main", "team-a"))
    async with running(world) as controller:
        await world.put(job("train", "main"))
        await until(lambda: events(world, "StepFailed"))
        controller.jobs.add(("Job", "ml", "train"))
        await until(lambda: quiet(controller))
        await controller.events.flush(everything=True)

        async def told_twice() -> bool:  # the writer of Events may be at it already
            return [one["count"] for one in await events(world, "StepFailed")] == [2]

        await until(told_twice)
        (event,) = await events(world, "StepFailed")
    assert "by a defect of the controller" in event["message"]
    why = await world.ask().why("train", "ml")
    assert (why.standing.state, why.standing.message) == (State.HELD, event["message"])


@pytest.mark.parametrize("verb", ["POST", "PATCH"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, "User 'muster' cannot {verb} this"),
        (400, 'admission webhook "w" denied the request: no {verb} for you'),
        (409, 'admission webhook "w" denied the request: no {verb} for you'),
        (500, 'Internal error occurred: failed calling webhook "w": connection refused'),
    ],
    ids=["a right was taken away", "a webhook denies it", "by a code of its own", "a webhook is away for long"],
)
async def test_a_job_of_which_a_write_is_refused_is_told_why(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: str, code: int, said: str
) -> None:
    """The write that makes its Workload, or the one that starts it."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    said = said.format(verb="create" if verb == "POST" else "patch")
    wait = Controller._wait_after
    monkeypatch.setattr(Controller, "_wait_after", lambda *given: wait(*given) / 1000)

    def refuse(request: web.Request) -> web.Response | None:
        body = {"kind": "Status", "code": code, "message": said}
        mine = request.method == verb and request.path.endswith("/workloads" if verb == "POST" else "/jobs/train")
        return web.json_response(body, status=code) if mine else None

    world.sandbox.faults.append(refuse)
    async with running(world):
        await world.put(job("train", "main"))
        (message,) = await until(lambda: told(world, "Refused"))
    assert said in message
    why = await world.ask().why("train", "ml")
    if verb == "POST":
        assert (why.standing.state, why.standing.message) == (State.HELD, message)
    else:
        assert why.standing.state is State.STARTING
        assert [(one.reason, said in one.message) for one in why.unready] == [("NotStarted", True)]


@pytest.mark.parametrize("what", ["why a gang waits", "how a queue stands"])
async def test_a_defect_over_what_is_shown_ends_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 0), local_queue("main", "team-a")):
        await world.put(one)
    failed: list[Exception] = []

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("a defect")

    if what == "why a gang waits":
        monkeypatch.setattr("admission.controller.app.project", fails)
    else:
        monkeypatch.setitem(_STATUS_OF, "LocalQueue", fails)

    async def fell() -> bool:
        return bool(failed)

    async with running(world) as controller:
        # What gets no answer in time, on a machine with much to do, is no defect.
        controller.watchers.failure.append(lambda _, error: None if unanswered(error) else failed.append(error))
        await world.put(job("train", "main"))
        await until(fell)
        spec = cluster_queue("team-a", 16)["spec"]
        await world.client.merge_patch(path("ClusterQueue", "team-a"), {"spec": spec})
        await until(lambda: begun(world))
    assert {type(error) for error in failed} == {AssertionError}


@pytest.mark.parametrize("what", ["is_orphan", "add"])
async def test_all_else_has_a_turn_while_everybody_is_looked_through(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At a takeover, and with each sweep: of 50,000 jobs it took some tenths of a second, in which no Lease was renewed
    and no probe answered."""
    many, at_once = 60, 10
    monkeypatch.setattr("admission.controller.app.LOOKED_AT_ONCE", at_once, raising=False)
    for i in range(many):
        await world.put(workload(await world.put(job(f"train-{i:02}", "main")), {}, queue="main"))
    turns, calls = 0, Counter[int]()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def nothing(*_: Any) -> None: ...

    async with running(world, leads=False, sweep_s=0.001) as controller:

        async def known() -> bool:
            return len(controller.world.jobs) == len(controller.world.workloads) == many

        await until(known)
        for step in ("take", "take_bare", "carry_out"):
            monkeypatch.setattr(controller.actuator, step, nothing)
        of: Any = controller.jobs if what == "add" else controller.world
        asked = getattr(of, what)

        def counted(one: Any) -> Any:
            calls[turns] += 1
            return asked(one)

        monkeypatch.setattr(of, what, counted)
        tasks = [asyncio.ensure_future(count()), asyncio.ensure_future(controller.lead())]

        async def swept() -> bool:
            return calls.total() >= 2 * many

        await until(swept)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert max(calls.values()) <= at_once


async def test_who_may_not_be_started_leaves_its_room_to_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook of somebody denies it: it would hold its quota, and its nodes, for as long as that says so."""
    for one in (NODE, own("ResourceFlavor", "h100", {}), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    wait = Controller._wait_after
    monkeypatch.setattr(Controller, "_wait_after", lambda *given: wait(*given) / 1000)
    at_once = Settings(refused_ms=0)
    monkeypatch.setattr("tests.controller.test_keep.Settings", lambda: at_once)
    said = 'admission webhook "w" denied the request: no job of yours'

    def refuse(request: web.Request) -> web.Response | None:
        denied = request.method == "PATCH" and request.path.endswith("/jobs/train")
        return web.json_response({"kind": "Status", "code": 400, "message": said}, status=400) if denied else None

    world.sandbox.faults.append(refuse)
    async with running(world):
        held = await world.put(job("train", "main"))
        held["status"] = {"conditions": [lab.condition("Suspended", True, "JobSuspended", "")]}
        await world.client.put(f"{JOBS}/train/status", held)
        await world.put(job("other", "main"))
        await until(lambda: begun(world, "other"))
        why = await world.ask().why("train", "ml")
    assert why.standing.state is State.WAITING
    assert any(one.reason == "EvictedDueToPodsReadyTimeout" and said in one.message for one in why.history)


async def test_a_labelled_job_outside_the_governed_namespaces_is_told_and_goes_when_its_namespace_is(
    world: World,
) -> None:
    for one in (
        NODE,
        own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}),
        cluster_queue("team-a", 16),
        local_queue("main", "team-a"),
    ):
        await world.put(one)
    await world.put(job("train", "main"))

    async def suspended() -> bool:
        return not await begun(world)

    async def label(value: str | None) -> None:
        await world.client.merge_patch("/api/v1/namespaces/ml", {"metadata": {"labels": {"muster": value}}})

    async with running(world, looked_at=LabelSelector((Requirement("muster", "In", ("governed",)),))):
        (message,) = await until(lambda: told(world))
        assert message.startswith("Jobs of namespace ml are not queued (namespaceSelector of the configuration)")
        await label("governed")
        await until(lambda: begun(world))
        await label(None)
        await until(suspended)
        why = await until(lambda: told(world, "EvictedDueToDeactivated"))
    assert why == ["The namespace is not governed any more"]


async def test_who_cannot_be_queued_as_it_is_keeps_the_server_busy_with_nothing(world: World) -> None:
    """It is looked at again and again. While writes are under way, others are told less of why they wait."""
    await world.put(cluster_queue("team-a", 16))
    await world.put(local_queue("main", "team-a"))
    asked = job("train", "main")
    asked["metadata"]["labels"][lab.NAMES.priority_class_label] = "no-such"
    await world.put(asked)
    async with running(world) as controller:
        await until(lambda: told(world))
        looks: list[object] = []
        controller.watchers.step.append(lambda _, step: looks.append(step))
        controller._wrote_at -= 3600
        controller.jobs.add(("Job", "ml", "train"))

        async def looked_at() -> bool:
            return bool(looks) and controller.jobs.idle

        await until(looked_at)
        assert not controller._busy()


async def inactive(world: World) -> dict[str, Any] | None:
    status = (await world.client.get(path("ClusterQueue", "team-a"))).get("status") or {}
    return next((c for c in status.get("conditions") or () if c["type"] == "Active" and c["status"] == "False"), None)


@pytest.mark.parametrize("others", [[], ["example.com/other"]])
async def test_finalizers_of_others_are_left_alone(world: World, others: list[str]) -> None:
    flavor = own("ResourceFlavor", "h100")
    flavor["metadata"]["finalizers"] = others
    await world.put(flavor)
    at = path("ResourceFlavor", "h100")
    async with running(world):

        async def is_ours() -> bool:
            return NAMES.finalizer in ((await world.client.get(at))["metadata"].get("finalizers") or ())

        await until(is_ours)
        assert (await world.client.get(at))["metadata"]["finalizers"] == [*others, NAMES.finalizer]
        await world.client.delete(at)

        async def released() -> bool:
            try:
                return (await world.client.get(at))["metadata"]["finalizers"] == others
            except NotFound:
                return not others

        await until(released)


async def synced(controller: Controller) -> bool:
    return controller.synced


async def leads(controller: Controller) -> bool:
    return controller.leading


async def _statuses(controller: Controller) -> None:
    await controller.stale.write()


async def _finalizers(controller: Controller) -> None:
    await controller.keeper.once()


@pytest.mark.parametrize("write", [_statuses, _finalizers])
async def test_a_fence_that_one_write_meets_leaves_no_other_under_way(
    world: World, write: Callable[[Controller], Awaitable[None]]
) -> None:
    """The next leader may be let in once those that were sent have ended."""
    for name in ("a", "b", "c"):
        await world.put(cluster_queue(f"team-{name}", 16))
        await world.put(local_queue(name, f"team-{name}"))
    passed = 0

    def fence() -> None:
        nonlocal passed
        passed += 1
        if passed == 2:
            raise Fenced

    async with running(world, leads=False) as controller:
        await until(lambda: synced(controller))
        world.client.fence = fence
        with pytest.raises(ExceptionGroup) as caught:
            await write(controller)
        world.client.fence = None
        assert caught.group_contains(Fenced)
        assert await world.client.settle(10) == 0
        assert world.client.flow.in_flight == 0
        assert passed <= 3


async def test_who_leads_and_who_does_not_any_more_is_a_change(world: World) -> None:
    """Or pages would be told for ever what was so then."""
    async with running(world, leads=False) as controller:
        await until(lambda: synced(controller))
        before = controller.revision
        leading = asyncio.ensure_future(controller.lead())
        await until(lambda: leads(controller))
        assert controller.revision > before
        before = controller.revision
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        assert not controller.leading
        assert controller.revision > before


async def test_what_a_deleted_job_holds_on_a_lost_node_is_free_when_that_counts_as_gone(world: World) -> None:
    """And not at the next look at everybody, which is seldom."""
    for one in (NODE, own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}), cluster_queue("team-a", 16)):
        await world.put(one)
    await world.put({**NODE, "metadata": {**NODE["metadata"], "name": "other"}})
    await world.put(local_queue("main", "team-a"))
    workloads, pods = f"/apis/{NAMES.api_version}/namespaces/ml/workloads", "/api/v1/namespaces/ml/pods"

    async def admitted(name: str) -> dict[str, Any]:
        for one in (await world.client.get(workloads))["items"]:
            if one["metadata"]["ownerReferences"][0]["name"] == name and one.get("status", {}).get("admission"):
                return one
        return {}

    async with running(world, sweep_s=3600.0) as controller:
        await world.put(job("old", "main"))
        held = await until(lambda: admitted("old"))
        labels = {NAMES.managed_label: "true", NAMES.workload_uid_label: held["metadata"]["uid"]}
        meta = {"name": "p", "namespace": "ml", "finalizers": ["example.com/kubelet"]}
        meta["labels"] = {**labels, NAMES.pod_set_label: "main"}
        spec = {**lab.template(8)["spec"], "nodeName": "n"}
        await world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        await world.client.delete(f"{pods}/p")
        silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(lab.NOW)}
        node = await world.client.get("/api/v1/nodes/n")
        await world.client.put("/api/v1/nodes/n/status", {**node, "status": {**NODE["status"], "conditions": [silent]}})

        async def lingers() -> bool:
            pod = controller.informers["Pod"].store.get(("ml", "p"))
            return bool(controller.world.lost_nodes) and pod is not None and pod.terminating

        await until(lingers)
        await world.client.delete(f"{JOBS}/old")
        await world.client.delete(f"{workloads}/{held['metadata']['name']}")
        await world.put(job("next", "main"))

        async def waits() -> bool:
            return any(one.get("status") for one in (await world.client.get(workloads))["items"])

        await until(waits)
        assert not await admitted("next")
        controller.now = lambda: lab.NOW + controller.world.lost_after_ms
        await until(lambda: admitted("next"))
