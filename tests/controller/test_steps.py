"""What one step, or one decision, writes, and what it leaves alone. Nobody leads here: each is taken by hand, on a
cluster that is as the test has it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from admission.controller import decode
from admission.controller import lifecycle as life
from admission.controller.app import Controller
from admission.engine.model import Evict, EvictReason
from admission.jobs.kinds import KIND_OF
from admission.jobs.values import rfc3339
from admission.jobs.values import workload as read
from admission.kube.client import Conflict, NotFound, TooManyRequests
from tests.controller.lab import (
    ADMITTED_,
    NAMES,
    NOW,
    RESERVED,
    T0,
    Json,
    World,
    admission,
    cluster_queue,
    condition,
    job,
    local_queue,
    own,
    template,
    workload,
)
from tests.controller.test_follows import JOBS, WORKLOADS, its_workload
from tests.controller.test_keep import NODE, running, until
from tests.controller.test_out_of_stock import write_status

KEY = ("Job", "ml", "train")
PODS = "/api/v1/namespaces/ml/pods"
MINUTE = 60_000


async def a_gang(world: World, *, held: bool = False, slices: int = 0, **status: Any) -> Json:
    """A Job of two pods, in slices of so many, that was admitted to n1 and n2, and started unless it is `held`; its
    Workload."""
    for one in (own("ResourceFlavor", "h100"), cluster_queue("team-a", 16), local_queue("main", "team-a")):
        await world.put(one)
    for name in ("n1", "n2"):
        await world.put({**NODE, "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    made = await world.put(job("train", "main", status=None if held else {"startTime": rfc3339(T0)}))
    asks = workload(made, {}, queue="main")
    if slices:
        asks["spec"]["podSets"][0]["topologyRequest"] = {
            "podSetSliceRequiredTopology": "rack",
            "podSetSliceSize": slices,
        }
    stands = await world.put(asks)
    said = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2"), **status}
    await write_status(world, stands, said)
    return stands


def a_pod(gang: Json, name: str, *, phase: str = "Pending", node: str = "", pin: str = "", gated: bool = False) -> Json:
    owner = gang["metadata"]["ownerReferences"][0]
    marks = {
        NAMES.managed_label: "true",
        NAMES.workload_uid_label: gang["metadata"]["uid"],
        NAMES.pod_set_label: "main",
    }
    spec = template(8)["spec"]
    if node:
        spec["nodeName"] = node
    if pin:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pin]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if gated:
        spec["schedulingGates"] = [{"name": NAMES.topology_gate}]
    meta = {"name": name, "namespace": "ml", "labels": marks, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


async def sees(controller: Controller, pods: int = 0) -> None:
    async def all_of_it() -> bool:
        known = controller.world
        return (len(known.workloads), len(known.jobs), len(known._pods), len(known.nodes)) == (1, 1, pods, 2)

    await until(all_of_it)


async def stored(world: World) -> Json:
    found = await its_workload(world)
    assert found is not None
    return found


def nodes_of(raw: Json) -> list[tuple[str, int]]:
    given = read(raw, NAMES)[0].admission
    assert given is not None
    held = given.pod_sets[0].topology
    assert held is not None
    return [(domain.values[-1], domain.count) for domain in held.domains]


# ---------------------------------------------------------------- what leaves


@pytest.mark.parametrize("step", [life.DeleteWorkload("the job names no queue"), life.LetWorkloadGo()], ids=str)
async def test_what_was_reserved_since_it_was_looked_at_is_not_deleted(world: World, step: life.Step) -> None:
    """As by the leader before, whose last write a new one may know late: the quota would be free while its pods run."""
    gang = await a_gang(world, held=True)
    if isinstance(step, life.LetWorkloadGo):
        path = f"{WORKLOADS}/{gang['metadata']['name']}"
        await world.client.merge_patch(path, {"metadata": {"finalizers": [NAMES.finalizer]}})
        await world.client.delete(path)
    async with running(world, leads=False) as controller:
        await sees(controller)
        known = controller.world.workloads["ml", gang["metadata"]["name"]]
        value = replace(known.view.value, admission=None, admitted=False)
        before = replace(known, resource_version="1", view=replace(known.view, value=value))
        controller.world.workload_seen(before)
        with pytest.raises(Conflict):
            await controller.actuator.take(KEY, step)
    assert (await stored(world))["metadata"]["uid"] == gang["metadata"]["uid"]


@pytest.mark.parametrize("what", ["it is not being deleted", "it is another of that name", "it is"])
async def test_our_finalizer_is_taken_off_what_is_being_deleted_alone(world: World, what: str) -> None:
    gang = await a_gang(world, held=True)
    path = f"{WORKLOADS}/{gang['metadata']['name']}"
    await world.client.merge_patch(path, {"metadata": {"finalizers": [NAMES.finalizer]}})
    if what != "it is not being deleted":
        await world.client.delete(path)
    async with running(world, leads=False) as controller:
        await sees(controller)
        known = controller.world.workloads["ml", gang["metadata"]["name"]]
        await controller.actuator.let_go(
            replace(known, uid="another") if what == "it is another of that name" else known
        )
    left = await its_workload(world)
    assert (left is None) == (what == "it is")
    if left is not None:
        assert left["metadata"]["finalizers"] == [NAMES.finalizer]


ADDS = {
    "name": "budget",
    "state": "Ready",
    "message": "yes",
    "lastTransitionTime": rfc3339(T0),
    "podSetUpdates": [{"name": "main", "labels": {"a": "b"}}],
}
FEWER: Json = {"spec": {"parallelism": 1}}
ANOTHER: Json = {"spec": {"template": {"metadata": {"labels": {"a": "c"}}}}}


@pytest.mark.parametrize("started", [False, True], ids=["it is as it is known", "another started it since"])
@pytest.mark.parametrize(
    ("before", "since", "why"),
    [
        ({}, {}, "What is added to its pods was changed after its reservation; it is reserved anew"),
        (FEWER, {"spec": {"parallelism": 2}}, "pod set main asks for 1 pods and 2 were admitted"),
        (ANOTHER, {"spec": {"template": {"metadata": {"labels": {"a": None}}}}}, "Cannot start: check budget adds "),
    ],
    ids=["a LimitRange", "its size", "what a check adds"],
)
async def test_nobody_is_evicted_for_what_keeps_a_job_from_its_start_that_was_started_since(
    world: World, before: Json, since: Json, why: str, started: bool
) -> None:
    """As by the leader before, of which a new one may hear late: its gang runs."""
    await a_gang(world, held=True, admissionChecks=[ADDS] if before is ANOTHER else [])
    path = f"{JOBS}/train"
    known = await world.client.merge_patch(path, before)
    if not before:
        limits = [{"type": "Container", "defaultRequest": {"cpu": "1"}}]
        await world.put(
            {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "metadata": {"name": "usual", "namespace": "ml"},
                "spec": {"limits": limits},
            }
        )
    async with running(world, leads=False) as controller:
        await sees(controller)

        async def told_of_it() -> bool:
            return bool(before or controller.world.defaults.limits_of("ml"))

        await until(told_of_it)
        if started:
            await world.client.merge_patch(path, {"spec": {"suspend": False, **since.get("spec", {})}})

            async def heard() -> bool:
                return not controller.world.jobs[KEY].suspended

            await until(heard)
            old = decode.job(KIND_OF["Job"], NAMES, Raw(json.encode(known)), controller.recent)
            controller.world.job_seen(old)
        with pytest.raises(Conflict) if started else nullcontext():
            await controller.actuator.take(KEY, life.StartJob())
    found = await stored(world)
    told = [one["message"] for one in found["status"]["conditions"] if one["type"] == "Evicted"]
    assert [one.startswith(why) for one in told] == ([] if started else [True])
    assert found["spec"]["active"] is (started or before is not ANOTHER)


@pytest.mark.parametrize(("reason", "tries"), [("Preempted", {"count": 2}), ("Deactivated", None)])
async def test_of_what_a_gang_had_nothing_counts_for_the_next_time_but_its_tries_and_how_long_it_ran(
    world: World, reason: str, tries: Json | None
) -> None:
    """Pods that were done are made anew, and a check that was ready is asked anew. Who was switched off begins anew."""
    out = condition("Evicted", True, reason, "Out", T0 + 3 * MINUTE)
    await a_gang(
        world,
        conditions=[RESERVED, ADMITTED_, out],
        reclaimablePods=[{"name": "main", "count": 1}],
        admissionChecks=[ADDS],
        requeueState={"count": 2},
        accumulatedPastExecutionTimeSeconds=100,
    )
    async with running(world, leads=False) as controller:
        await sees(controller)
        await controller.actuator.take(KEY, life.ReleaseWorkload())
    status = (await stored(world))["status"]
    assert status.keys().isdisjoint({"admission", "reclaimablePods"})
    (check,) = status["admissionChecks"]
    assert (check["state"], check.get("podSetUpdates")) == ("Pending", [])
    assert status.get("requeueState") == tries
    assert status.get("accumulatedPastExecutionTimeSeconds") == (None if tries is None else 220)


@pytest.mark.parametrize(
    ("reason", "before", "after"),
    [
        (EvictReason.IN_COHORT_FAIR_SHARING, [], 1),
        (EvictReason.IN_COHORT_FAIR_SHARING, [T0], 2),
        (EvictReason.IN_COHORT_FAIR_SHARING, [T0] * 16, 16),
        (EvictReason.IN_COHORT_RECLAMATION, [T0], 1),
    ],
)
async def test_evictions_by_fair_sharing_are_noted_and_no_others(
    world: World, reason: EvictReason, before: Sequence[int], after: int
) -> None:
    """Promises R6 and R8 spare whom they hit often."""
    await a_gang(world, fairEvictions=[rfc3339(at) for at in before])
    async with running(world, leads=False) as controller:
        await sees(controller)
        (gang,) = controller.world.workloads.values()
        await controller.actuator.carry_out(Evict(gang.key, gang.uid, reason, ("ml", "other"), "u", "team-a"))
    noted = (await stored(world))["status"]["fairEvictions"]
    new = [rfc3339(NOW)] if reason is EvictReason.IN_COHORT_FAIR_SHARING else []
    assert noted == [*map(rfc3339, before), *new][-16:]
    assert len(noted) == after


async def test_a_node_is_blamed_once_for_each_time_that_it_was_lost(world: World) -> None:
    """Else it would be avoided for a day when another is lost, or comes back."""

    async def blamed() -> dict[str, bool]:
        told = (await stored(world))["status"]["avoidNodes"]
        return {one["node"]: one["until"] > rfc3339(NOW) for one in told}

    await a_gang(world)
    async with running(world, leads=False) as controller:
        await sees(controller)
        take = controller.actuator.take
        await take(KEY, life.ReplaceNodes(("n1",), ("n1",)))
        assert await blamed() == {"n1": False}
        await take(KEY, life.ReplaceNodes(("n1", "n2"), ("n1", "n2")))
        assert await blamed() == {"n1": False, "n2": False}
        await take(KEY, life.EvictWorkload("NodeFailures", "Lost node n1", nodes=("n1",)))
        assert await blamed() == {"n1": True, "n2": False}


@pytest.mark.parametrize(
    ("before", "taken", "blamed"),
    [
        ((), False, {"n2": False}),
        (("n2",), False, {"n2": True}),
        (("n1",), False, {"n1": False, "n2": False}),
        (("n2",), True, {"n2": False}),  # of this the next decision knows
    ],
)
async def test_a_node_that_kube_scheduler_refuses_for_what_is_not_known_is_to_blame(
    world: World, before: tuple[str, ...], taken: bool, blamed: dict[str, bool]
) -> None:
    """Else the gang would go there again, for ever, though others would do."""
    earlier = [{"node": node, "until": rfc3339(NOW - 10 * MINUTE), "reason": ""} for node in before]
    gang = await a_gang(world, **({"avoidNodes": earlier} if earlier else {}))
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "volume limits"}
    waits = a_pod(gang, "b", pin="n2")
    waits["status"]["conditions"] = [{**said, "lastTransitionTime": rfc3339(T0)}]
    for pod in (a_pod(gang, "a", node="n1", phase="Running"), waits):
        await world.put(pod)
    if taken:
        other = a_pod(gang, "other", node="n2", phase="Running")
        other["metadata"] = {"name": "other", "namespace": "ml"}
        other["spec"]["containers"] = template(16)["spec"]["containers"]
        await world.put(other)

    async def evicted() -> Json | None:
        found = await stored(world)
        return found if any(one["type"] == "Evicted" for one in found["status"]["conditions"]) else None

    async with running(world):
        found = await until(evicted)
    told = found["status"].get("avoidNodes", ())
    assert {one["node"]: one["until"] > rfc3339(NOW) for one in told} == blamed
    assert all(one["until"] < rfc3339(NOW + 120 * MINUTE) for one in told), "it may take it in an hour"


# ---------------------------------------------------------------- pods


STRAY: dict[str, tuple[Json, bool]] = {
    "its Job is gone": ({"job": "gone"}, True),
    "its Job is another of that name": ({"job": "other"}, True),
    "its Job is being deleted": ({"job": "deleting"}, True),
    "nobody's any more": ({"owners": []}, True),
    "its Job is there, and was not seen": ({}, False),
    "it is of no gang": ({"labels": {}, "owners": []}, False),
}


@pytest.mark.parametrize("case", STRAY)
async def test_a_pod_is_stopped_that_no_job_would_stop(world: World, case: str) -> None:
    said, goes = STRAY[case]
    gang = await a_gang(world)
    pod = a_pod(gang, "p")
    if said.get("job") == "other":
        pod["metadata"]["ownerReferences"][0]["uid"] = "before"
    pod["metadata"]["ownerReferences"] = said.get("owners", pod["metadata"]["ownerReferences"])
    pod["metadata"]["labels"] = said.get("labels", pod["metadata"]["labels"])
    await world.put(pod)
    if said.get("job") == "deleting":
        await world.client.merge_patch(f"{JOBS}/train", {"metadata": {"finalizers": ["example.com/kept"]}})
    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        if said.get("job") in ("gone", "deleting"):
            await world.client.delete(f"{JOBS}/train", propagation="Orphan" if said["job"] == "gone" else "Background")
        step = life.StopPods((), (("ml", "p"),))
        if case.endswith("was not seen"):
            with pytest.raises(Conflict):
                await controller.actuator.stop_pods(step)
        else:
            await controller.actuator.stop_pods(step)
    try:
        left = await world.client.get(f"{PODS}/p")
    except NotFound:
        left = {"metadata": {"deletionTimestamp": "then"}}
    assert ("deletionTimestamp" in left["metadata"]) is goes


GATED: dict[str, tuple[dict[str, Json], Json]] = {
    "the first gets the first": ({"a": {"gated": True}}, {"a": "n1"}),
    "both get theirs": ({"a": {"gated": True}, "b": {"gated": True}}, {"a": "n1", "b": "n2"}),
    "another stands there": ({"a": {"gated": True}, "b": {"node": "n1", "phase": "Running"}}, {"a": "n2"}),
    "another is on its way there": ({"a": {"gated": True}, "b": {"pin": "n1"}}, {"a": "n2"}),
    "another was done there": ({"a": {"gated": True}, "b": {"node": "n1", "phase": "Failed"}}, {"a": "n1"}),
    "another leaves before it came there": ({"a": {"gated": True, "leaves": True}, "b": {"gated": True}}, {"b": "n1"}),
    "it is another of that name": ({"a": {"gated": True, "other": True}}, {}),
    "another was let go there, and that is not known": ({"a": {"gated": True}, "b": {"pin": "n1", "late": True}}, {}),
}


@pytest.mark.parametrize("case", GATED)
async def test_a_gated_pod_is_let_go_to_a_host_that_has_none(world: World, case: str) -> None:
    there, wanted = GATED[case]
    gang = await a_gang(world)
    for name, said in there.items():
        pod = a_pod(gang, name, **{key: value for key, value in said.items() if key not in ("leaves", "other", "late")})
        if said.get("leaves"):
            pod["metadata"]["finalizers"] = ["example.com/kept"]
        await world.put(pod)
        if said.get("leaves"):
            await world.client.delete(f"{PODS}/{name}")
    async with running(world, leads=False) as controller:
        await sees(controller, len(there))
        for name in [name for name, said in there.items() if said.get("other")]:
            controller.world.pod_seen(replace(controller.world._pods["ml", name], uid="before"))
        late = [name for name, said in there.items() if said.get("late")]
        for name in late:
            controller.world.pod_seen(replace(controller.world._pods["ml", name], pinned="", gated=True))
        with pytest.raises(Conflict) if late else nullcontext():
            await controller.actuator.take(KEY, life.Ungate(tuple(("ml", name) for name in there)))
    let: dict[str, str] = {}
    for name, said in there.items():
        spec = (await world.client.get(f"{PODS}/{name}"))["spec"]
        if said.get("gated") and not spec.get("schedulingGates"):
            (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                "nodeSelectorTerms"
            ]
            let[name] = term["matchFields"][0]["values"][0]
    assert let == wanted


async def test_a_budget_that_keeps_a_pod_on_a_lost_node_keeps_no_other_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the one driver of many workers."""
    gang = await a_gang(world)
    for name in ("driver", "worker"):
        await world.put(a_pod(gang, name, phase="Running", node="n3"))
    create = world.client.create

    async def refuses(path: str, body: Json, **options: Any) -> Json:
        if path.endswith("/driver/eviction"):
            raise TooManyRequests(429, "TooManyRequests", "it would violate the pod's disruption budget")
        return await create(path, body, **options)

    monkeypatch.setattr(world.client, "create", refuses)
    async with running(world, leads=False) as controller:
        await sees(controller, 2)
        with pytest.raises(TooManyRequests):
            await controller.actuator.take(KEY, life.EvictPods((("ml", "driver"), ("ml", "worker"))))
    there = (await world.client.get(PODS))["items"]
    left = [one["metadata"]["name"] for one in there if "deletionTimestamp" not in one["metadata"]]
    assert left == ["driver"]


async def test_a_pod_that_came_back_with_its_node_since_it_was_looked_at_is_left_there(world: World) -> None:
    """Whoever was paused in between would take it off a node that is well again."""
    gang = await a_gang(world)
    await world.put(a_pod(gang, "worker", phase="Running", node="n1"))
    async with running(world, leads=False) as controller:
        await sees(controller, 1)
        before = controller.world._pods["ml", "worker"]
        ready = [{"type": "Ready", "status": "True"}]
        now = await world.client.merge_patch(f"{PODS}/worker/status", {"status": {"conditions": ready}})

        async def heard() -> bool:
            return controller.world._pods["ml", "worker"].resource_version == now["metadata"]["resourceVersion"]

        await until(heard)
        controller.world.pod_seen(before)
        with pytest.raises(Conflict):
            await controller.actuator.take(KEY, life.EvictPods((("ml", "worker"),)))
    assert "deletionTimestamp" not in (await world.client.get(f"{PODS}/worker"))["metadata"]


@pytest.mark.parametrize("known", [True, False], ids=["known by its name", "not known any more"])
async def test_a_job_by_the_name_of_one_that_is_to_be_stopped_is_left_alone(world: World, known: bool) -> None:
    await a_gang(world)
    async with running(world, leads=False) as controller:
        await sees(controller)
        before = controller.world.jobs[KEY]
        await world.client.delete(f"{JOBS}/train", propagation="Background")
        await world.put(job("train", "", status={}))

        async def heard() -> bool:
            return KEY not in controller.world.jobs or controller.world.jobs[KEY].uid != before.uid

        await until(heard)
        if known:
            controller.world.jobs[KEY] = before
        else:
            controller.world.jobs.pop(KEY, None)
        with pytest.raises((Conflict, NotFound)):
            await controller.actuator.stop_pods(life.StopPods((KEY,), ()))
    assert not (await world.client.get(f"{JOBS}/train"))["spec"].get("suspend")


@pytest.mark.parametrize("slices", [0, 1, 2])
@pytest.mark.parametrize(
    ("pods", "left"),
    [
        ({"n1": "Succeeded", "n2": "Running"}, [("n2", 1)]),
        ({"n2": "Running"}, [("n2", 1)]),
        ({"n1": "Running", "n2": "Running"}, [("n1", 1), ("n2", 1)]),  # that one is done was not seen here yet
        ({}, [("n1", 1), ("n2", 1)]),
        ({"n1": "Succeeded", "n3": "Running"}, [("n1", 1), ("n2", 1)]),  # it stands where none was to
    ],
    ids=str,
)
async def test_with_the_quota_of_pods_that_are_done_their_nodes_are_given_back(
    world: World, pods: dict[str, str], left: list[tuple[str, int]], slices: int
) -> None:
    """Of a slice when all of it is done: else nobody would know any more who is in which."""
    gang = await a_gang(world, slices=slices)
    for node, phase in pods.items():
        await world.put(a_pod(gang, f"on-{node}", phase=phase, node=node))
    async with running(world, leads=False) as controller:
        await sees(controller, len(pods))
        await controller.actuator.take(KEY, life.GiveBack((("main", 1),)))
    now = await stored(world)
    assert now["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    assert nodes_of(now) == ([("n1", 1), ("n2", 1)] if slices == 2 else left)


# ---------------------------------------------------------------- what has changed since it was looked at


async def test_a_job_that_was_changed_since_it_was_looked_at_is_not_started(world: World) -> None:
    await a_gang(world, held=True)
    async with running(world, leads=False) as controller:
        await sees(controller)
        known = controller.world
        before = known.jobs[KEY]
        await world.client.merge_patch(f"{JOBS}/train", {"metadata": {"annotations": {"asks": "for more"}}})

        async def changed() -> bool:
            return known.jobs[KEY].resource_version != before.resource_version

        await until(changed)
        known.jobs[KEY] = before
        with pytest.raises(Conflict):
            await controller.actuator.take(KEY, life.StartJob())
    assert (await world.client.get(f"{JOBS}/train"))["spec"]["suspend"] is True
