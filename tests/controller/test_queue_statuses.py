"""Statuses of queues: how much of the API server they take (little, while jobs wait for writes of theirs), and what
they say of an object that an API server without the rules of the kinds has stored."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.controller import decode, queue_status
from admission.controller.actuate import Options
from admission.controller.app import Controller
from admission.controller.lifecycle import Settings
from admission.controller.resources import ours
from admission.engine.model import (
    MUSTER,
    Admission,
    ClusterQueue,
    Cohort,
    Flavor,
    LocalQueue,
    PodSet,
    PodShape,
    Put,
    Workload,
)
from admission.engine.state import State
from admission.jobs import values
from admission.kube.client import Client
from admission.names import KUEUE_GROUP, Names
from tests.chart.runbooks import finds
from tests.controller.lab import World, cluster_queue, local_queue, own
from tests.controller.test_keep import running, until


async def sees(controller: Controller, local_queues: int) -> None:
    """So many LocalQueues of one ClusterQueue: all of them are looked at anew where that comes after them."""

    async def synced() -> bool:
        stores = [len(controller.informers[kind].store) for kind in ("LocalQueue", "ClusterQueue")]
        return stores == [local_queues, 1]

    await until(synced)


@pytest.mark.parametrize(("waiting", "most"), [(0, None), (1, (20, 5)), (1000, (20, 5))])
async def test_statuses_give_way_to_jobs(world: World, waiting: int, most: tuple[int, int] | None) -> None:
    async with running(world, leads=False) as controller:
        for i in range(waiting):
            controller.jobs.add(("Job", f"ns-{i % 7}", f"job-{i}"))
        assert controller.stale.at_once() == most


async def test_a_slow_server_does_not_keep_new_statuses_behind_old_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred that are due some are written, and then it is looked anew which are due first."""
    await world.put(cluster_queue("team-a", 16))
    for i in range(100):
        await world.put(local_queue(f"main-{i:03}", "team-a"))
    async with running(world, leads=False) as controller:
        await sees(controller, 100)
        wrote: list[str] = []

        async def slowly(queue: tuple[str, str, str], *_: Any) -> bool:
            wrote.append(queue[2])
            await asyncio.sleep(controller.tuning.queue_status_s / 2)
            return True

        monkeypatch.setattr(controller.stale, "_write_one", slowly)
        first = await controller.stale.write()
        assert 0 < first < 100
        assert first + await controller.stale.write() < 100
        assert len(set(wrote)) == len(wrote)


@pytest.mark.parametrize(
    ("most", "first"),
    [
        ((20, 2), ["left-0", "left-1", "left-2", "main-00", "main-01"]),
        ((2, 1), ["left-0", "left-1", "left-2"]),
        ((1, 2), ["left-0", "left-1", "left-2"]),
    ],
)
async def test_queues_that_the_last_gang_left_are_told_of_before_others(
    world: World, monkeypatch: pytest.MonkeyPatch, most: tuple[int, int], first: list[str]
) -> None:
    """Who waits for a queue to be done, as load generators do, takes a status that is not yet so for the truth."""
    await world.put(own("ClusterQueue", "team-a", {}))
    for i in range(10):
        await world.put(own("LocalQueue", f"main-{i:02}", {"clusterQueue": "team-a"}, namespace="ml"))
    for i in range(3):
        await world.put(local_queue(f"left-{i}", "team-a"))
    async with running(world, leads=False) as controller:
        await sees(controller, 13)
        wrote: list[str] = []

        async def written(queue: tuple[str, str, str], *_: Any) -> None:
            wrote.append(queue[2])

        monkeypatch.setattr(controller.stale, "_write_one", written)
        controller.stale._stale.pop(("ClusterQueue", "", "team-a"), None)
        assert await controller.stale.write(most) == len(first)
        assert wrote == first
        assert await controller.stale.write() == 13 - len(first)


async def test_statuses_that_are_refused_are_offered_a_few_at_a_time_and_told_once(world: World) -> None:
    """As where a right is missing: each was tried, and logged, every second."""
    await world.put(own("ClusterQueue", "team-a", {}))
    for i in range(40):
        await world.put(own("LocalQueue", f"main-{i:02}", {"clusterQueue": "team-a"}, namespace="ml"))
    async with running(world, leads=False) as controller:
        await sees(controller, 40)
        # As many at a time, and no less on a slow machine.
        controller.stale.tuning = dataclasses.replace(
            controller.tuning, queue_status_s=60.0, queue_statuses_per_s=5 / 60
        )

        async def offered() -> int:
            controller.stale.add_all()
            return await controller.stale.write()

        world.denied.add("PATCH localqueues")
        with capture_logs() as logs:
            assert [await offered() for _ in range(5)] == [40, 5, 5, 5, 5]
        warned = [line for line in logs if line["log_level"] == "warning"]
        told = [(line["kind"], line["namespace"], line["name"]) for line in warned]
        assert sorted(told) == [("LocalQueue", "ml", f"main-{i:02}") for i in range(40)]
        assert all(finds("MusterWritesFail", line["event"]) for line in warned)
        world.denied.clear()
        assert [await offered() for _ in range(3)] == [5, 35, 0]


async def test_what_refuses_a_status_in_other_words_each_time_is_told_once(world: World) -> None:
    await world.put(own("ClusterQueue", "team-a", {}))
    await world.put(local_queue("main", "team-a"))
    ports = itertools.count(40_000)

    def away(request: web.Request) -> web.Response | None:
        if request.method != "PATCH" or "localqueues" not in request.path:
            return None
        said = f'failed calling webhook "w": read tcp 10.0.0.1:{next(ports)}: connection reset by peer'
        return web.json_response({"kind": "Status", "code": 500, "message": said}, status=500)

    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        world.sandbox.faults.append(away)
        with capture_logs() as logs:
            for _ in range(5):
                controller.stale.add_all()
                assert await controller.stale.write() == 1
    assert [line["name"] for line in logs if line["log_level"] == "warning"] == ["main"]


def group(resource: str, flavor: str, **more: int) -> dict[str, Any]:
    quota = {"name": resource, "nominalQuota": 8, **more}
    return {"coveredResources": [resource], "flavors": [{"name": flavor, "resources": [quota]}]}


NAMES = Names()
OF: dict[str, tuple[type, Any, Any]] = {
    "ClusterQueue": (ClusterQueue, values.cluster_queue, queue_status.queue_status),
    "LocalQueue": (LocalQueue, values.local_queue, queue_status.local_queue_status),
    "Cohort": (Cohort, values.cohort, queue_status.cohort_status),
}


@pytest.mark.parametrize(
    ("kind", "spec", "active", "said"),
    [
        ("ClusterQueue", {"resourceGroups": [group("cpu", "x")]}, "True", ("Can admit new workloads",)),
        (
            "ClusterQueue",
            {"resourceGroups": [group("cpu", "x"), group("cpu", "y")]},
            "True",
            ("Can admit new workloads; but it is written wrong: ", "the first counts", "put it into one"),
        ),
        ("ClusterQueue", {"resourceGroups": [group("cpu", "x", borrowingLimit=1)]}, "True", ("write cohortName",)),
        (
            "ClusterQueue",
            {"cohortName": "all", "resourceGroups": [group("cpu", "x", lendingLimit=99)]},
            "True",
            ("lendingLimit is more than nominalQuota",),
        ),
        ("Cohort", {"parentName": "it"}, "False", ("runs into a cycle", "parentName names the Cohort itself")),
        ("LocalQueue", {"clusterQueue": "Team A"}, "False", ("does not exist", "is no object name")),
    ],
)
def test_what_a_rule_would_have_refused_stands_in_the_condition(
    kind: str, spec: dict[str, Any], active: str, said: tuple[str, ...]
) -> None:
    engine_class, read, status_of = OF[kind]
    raw = {"metadata": {"name": "it", "namespace": "ml" if kind == "LocalQueue" else "", "uid": "u"}, "spec": spec}
    raw["metadata"] = {key: value for key, value in raw["metadata"].items() if value}
    seen = decode.item(decode.judged(kind, read), NAMES, msgspec.Raw(msgspec.json.encode(raw)), keep_status=True)
    assert isinstance(seen.value, engine_class)
    state = State(MUSTER)
    for one in (Flavor("x"), Flavor("y"), seen.value):
        state.apply(Put(one))
    (condition,) = status_of(state, seen, 5_000)["conditions"]
    assert (condition["type"], condition["status"]) == ("Active", active)
    assert all(part in condition["message"] for part in said), condition["message"]
    assert ("written wrong" in condition["message"]) is bool(seen.problems)


def test_queues_of_a_cohort_may_name_the_resources_of_a_flavor_by_turns() -> None:
    """A flavor is a key of the list: an API server stores no status in which one stands twice."""
    state = State(MUSTER)
    for name, resource, flavor in (("a", "cpu", "x"), ("b", "cpu", "y"), ("c", "memory", "x")):
        raw = {"metadata": {"name": name}, "spec": {"cohortName": "it", "resourceGroups": [group(resource, flavor)]}}
        state.apply(Put(values.cluster_queue(raw, NAMES)[0]))
    cohort = decode.item(
        values.cohort, NAMES, msgspec.Raw(b'{"metadata": {"name": "it", "uid": "u"}}'), keep_status=True
    )
    status = queue_status.cohort_status(state, cohort, 5_000)
    for told in (status["flavorsReservation"], status["flavorsUsage"]):
        named = [(flavor["name"], [resource["name"] for resource in flavor["resources"]]) for flavor in told]
        assert named == [("x", ["cpu", "memory"]), ("y", ["cpu"])]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (NAMES, {"pendingWorkloads": 2, "reservingWorkloads": 0, "admittedWorkloads": 0}),
        (Names(KUEUE_GROUP), {}),
    ],
)
def test_a_cohort_counts_the_gangs_of_all_below_it(names: Names, told: dict[str, int]) -> None:
    """Where its kind has a place for that, which Kueue's has not."""
    state = State(MUSTER)
    state.apply(Put(Cohort("lab", parent="it")))
    for name, cohort in (("a", "it"), ("b", "lab")):
        raw = {"metadata": {"name": name}, "spec": {"cohortName": cohort, "resourceGroups": [group("cpu", "x")]}}
        state.apply(Put(values.cluster_queue(raw, NAMES)[0]))
        state.apply(Put(LocalQueue("ml", name, name)))
        pods = (PodSet("main", 1, PodShape(requests=(("cpu", 1),))),)
        state.apply(Put(Workload("ml", f"of-{name}", queue=name, uid=name, pod_sets=pods)))
    raw_cohort = msgspec.Raw(b'{"metadata": {"name": "it", "uid": "u"}}')
    cohort_seen = decode.item(values.cohort, NAMES, raw_cohort, keep_status=True)
    stored = names.stored("Cohort", queue_status.cohort_status(state, cohort_seen, 5_000))
    assert {name: count for name, count in stored.items() if name.endswith("Workloads")} == told


@pytest.mark.parametrize(("judges", "wrong"), [(True, 1), (False, 0)])
async def test_rules_are_judged_where_the_api_server_may_have_none(world: World, judges: bool, wrong: int) -> None:
    limited = own("ClusterQueue", "it", {"resourceGroups": [group("cpu", "x", borrowingLimit=1)]})
    await world.put(limited)
    async with running(world, leads=False, judges=judges) as controller:

        async def seen() -> Any:
            return controller.informers["ClusterQueue"].store.get(("", "it"))

        assert len((await until(seen)).problems) == wrong


async def test_what_is_written_wrong_is_logged_once(world: World) -> None:
    async with running(world, leads=False) as controller:
        with capture_logs() as lines:
            seen = [decode.Item("", "x", "u", "1", Flavor("x"), wrong) for wrong in ((), ("a",), ("a",), (), ("a",))]
            for old, new in zip([None, *seen], seen, strict=False):
                controller._on_item(Flavor, old, new)
    told = [(line["kind"], line["name"]) for line in lines if line["event"] == "written wrong"]
    assert told == [("ResourceFlavor", "x")] * 2


def test_what_becomes_of_a_gang_is_shown_of_all_queues_above_it() -> None:
    """Also of the one whose quota it holds, where its LocalQueue leads elsewhere by now; and in a loop once of each."""
    controller = Controller(
        Client.plain("http://127.0.0.1:1"),
        names=NAMES,
        rules=MUSTER,
        settings=Settings(),
        options=Options(can_rank=False),
    )
    for one in (
        Cohort("lab", parent="it"),
        Cohort("it"),
        Cohort("round", parent="round"),
        ClusterQueue("a", cohort="lab"),
        ClusterQueue("b", cohort="round"),
        LocalQueue("ml", "main", "b"),
    ):
        controller.state.apply(Put(one))
    controller.stale._stale.clear()
    controller.stale.add_of(Workload("ml", "w", queue="main", uid="w", admission=Admission("a", ())))
    assert set(controller.stale._stale) == {
        ("LocalQueue", "ml", "main"),
        ("ClusterQueue", "", "a"),
        ("ClusterQueue", "", "b"),
        ("Cohort", "", "lab"),
        ("Cohort", "", "it"),
        ("Cohort", "", "round"),
    }


async def test_a_status_that_was_refused_is_offered_again_though_nothing_changes(world: World) -> None:
    await world.put(own("ClusterQueue", "team-a", {}))
    await world.put(own("LocalQueue", "main", {"clusterQueue": "team-a"}, namespace="ml"))
    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        world.denied.add("PATCH localqueues")
        assert [await controller.stale.write() for _ in range(2)] == [1, 1]
        world.denied.clear()
        assert [await controller.stale.write() for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "namespace", "name"), [("LocalQueue", "ml", "main"), ("ClusterQueue", "", "team-a"), ("Cohort", "", "lab")]
)
async def test_no_status_is_written_over_one_that_was_not_seen(
    world: World, kind: str, namespace: str, name: str
) -> None:
    """As by a leader that was paused, over what the next one wrote. When that is known it is tried again."""
    queue = own("ClusterQueue", "team-a", {"cohortName": "lab"})
    queue["metadata"]["finalizers"] = [NAMES.finalizer]
    for one in (own("Cohort", "lab"), queue, own("LocalQueue", "main", {"clusterQueue": "team-a"}, namespace="ml")):
        await world.put(one)
    path = ours(NAMES, kind).path(namespace, name)
    failed: list[Any] = []
    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        await controller.informers[kind].synced.wait()
        controller.watchers.failure.append(lambda *about: failed.append(about))
        store = controller.informers[kind].store
        before = store[namespace, name]
        merged = await world.client.merge_patch(f"{path}/status", {"status": {"pendingWorkloads": 7}})

        async def heard() -> Any:
            now = store[namespace, name]
            return now if now.resource_version == merged["metadata"]["resourceVersion"] else None

        after = await until(heard)
        store[namespace, name] = before
        await controller.stale.write()
        assert (await world.client.get(path))["status"] == {"pendingWorkloads": 7}
        assert await controller.stale.write() == 0
        store[namespace, name] = after
        controller.stale.add(kind, namespace, name)
        assert await controller.stale.write() == 1
        assert (await world.client.get(path))["status"]["pendingWorkloads"] == 0
    assert not failed


@pytest.mark.parametrize("changes", [True, False])
async def test_what_changes_while_a_status_is_being_written_is_not_taken_for_written(
    world: World, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    await world.put(own("ClusterQueue", "team-a", {}))
    await world.put(own("LocalQueue", "main", {"clusterQueue": "team-a"}, namespace="ml"))
    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        write, main = controller.statuses.write, ("LocalQueue", "ml", "main")

        async def meanwhile(*said: Any) -> Any:
            if changes:
                controller.stale.add(*main)
            return await write(*said)

        monkeypatch.setattr(controller.statuses, "write", meanwhile)
        assert await controller.stale.write() == 1
        assert (main in controller.stale._stale) is changes
