"""A gang that got no nodes on an elastic flavor: what is remembered of that, and what is told."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from admission.controller.lifecycle import EvictWorkload, Settings
from admission.controller.statuses import Statuses
from admission.engine.model import Evict, EvictReason
from admission.jobs.values import rfc3339
from admission.kube.client import Conflict, Kind
from tests.controller.lab import (
    ADMITTED_,
    GPU,
    NAMES,
    RESERVED,
    T0,
    World,
    admission,
    condition,
    job,
    local_queue,
    own,
    template,
    workload,
)
from tests.controller.test_follows import entry, its_workload
from tests.controller.test_keep import NODE, running, until

CAPACITY = "example.com/capacity"


async def a_gang(
    world: World,
    flavors: str,
    out: str = "",
    *,
    asks: str = "",
    waits: int = 1,
    requeue: dict[str, Any] | None = None,
    **status: Any,
) -> None:
    """A queue of these elastic flavors; in the first of them a gang of two pods was admitted a quarter of an hour ago.
    So many pods have no node. `asks`: the capacity that it selects."""
    names = flavors.split()
    await world.put({**NODE, "metadata": {"name": "n1"}})  # one that does not exist is missed, and what is on it lost
    for name in names:
        await world.put(own("ResourceFlavor", name, {"nodeLabels": {CAPACITY: name}, "elastic": True}))
    quotas = [{"name": name, "resources": [{"name": GPU, "nominalQuota": 64}]} for name in names]
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    await world.put(own("ClusterQueue", "team-a", {"namespaceSelector": {}, "resourceGroups": groups}))
    await world.put(local_queue("main", "team-a"))
    made = job("train", "main", status={"active": 2, "ready": 2 - waits, "startTime": rfc3339(T0)})
    if asks:
        made["spec"]["template"]["spec"]["nodeSelector"] = {CAPACITY: asks}
    made = await world.put(made)
    given = {"name": "main", "count": 2, "flavors": {GPU: names[0]}, "resourceUsage": {GPU: "16"}}
    held = {
        "conditions": [RESERVED, ADMITTED_],
        "admission": {"clusterQueue": "team-a", "podSetAssignments": [given]},
        **({"outOfStock": out.split()} if out else {}),
        **({"requeueState": requeue} if requeue else {}),
    }
    stands = await world.put(workload(made, {}, queue="main"))
    await write_status(world, stands, held)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": made["metadata"]["uid"]}
    marks = {
        NAMES.managed_label: "true",
        NAMES.workload_uid_label: stands["metadata"]["uid"],
        NAMES.pod_set_label: "main",
    }
    for number in range(2):
        waiting = number < waits
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes"}
        if not waiting:
            said = {"type": "Ready", "status": "True"}
        await world.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"train-{number}",
                    "namespace": "ml",
                    "labels": marks,
                    "ownerReferences": [{**owner, "controller": True}],
                },
                "spec": {**template(8)["spec"], **({} if waiting else {"nodeName": "n1"})},
                "status": {
                    "phase": "Pending" if waiting else "Running",
                    "conditions": [{**said, "lastTransitionTime": rfc3339(T0)}],
                    **status,
                },
            }
        )


async def write_status(world: World, workload: dict[str, Any], status: dict[str, Any]) -> None:
    """As the controller has written it: what it leaves out later goes."""
    meta = {"name": workload["metadata"]["name"], "namespace": "ml"}
    await Statuses(world.client, NAMES).write(Kind(NAMES.group, NAMES.version, "workloads", "Workload"), meta, status)


async def evicted(world: World) -> dict[str, Any] | None:
    found = await its_workload(world)
    conditions = (found or {}).get("status", {}).get("conditions", ())
    return found if any(one["type"] == "Evicted" for one in conditions) else None


ONLY = "Its queue has no flavor but spot that it may use, which is tried again"


@pytest.mark.parametrize(
    ("flavors", "asks", "before", "after", "told"),
    [
        ("spot", "", "", "spot", ONLY),
        ("spot demand", "", "", "spot", "Flavor demand is tried first next time"),
        ("spot demand", "spot", "", "spot", ONLY),
        ("spot demand other", "", "demand", "demand spot", "Flavor other is tried first next time"),
        # They took turns, and it is the next one's.
        ("spot demand", "", "spot demand", "demand spot", "Flavor demand is tried first next time"),
        ("spot demand", "", "gone", "gone spot", "Flavor demand is tried first next time"),
    ],
)
async def test_a_flavor_without_nodes_is_remembered_and_which_is_next_is_told(
    world: World, flavors: str, asks: str, before: str, after: str, told: str
) -> None:
    await a_gang(world, flavors, before, asks=asks)
    async with running(world):
        found = await until(lambda: evicted(world))
        assert found["status"]["outOfStock"] == after.split()
        said = entry(found, "Evicted")["message"]
        assert said.startswith("Only 1 of 2 pods are ready")
        assert said.endswith(f"kube-scheduler finds no node for 1 of them: 0/9 nodes. {told}")

        async def event() -> bool:
            events = (await world.client.get("/api/v1/namespaces/ml/events"))["items"]
            return any(one["reason"].startswith("EvictedDueTo") and said in one["message"] for one in events)

        await until(event)


async def test_pods_that_fail_on_their_nodes_say_nothing_of_the_flavor(world: World) -> None:
    crashing = {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(T0)}]}
    await a_gang(world, "spot demand", "demand", waits=0, **crashing)
    async with running(world):
        found = await until(lambda: evicted(world))
        assert entry(found, "Evicted")["reason"] == "PodsReadyTimeout"
        assert found["status"]["outOfStock"] == ["demand"]
        assert "next time" not in entry(found, "Evicted")["message"]


@pytest.mark.parametrize(
    ("waits", "loses", "after"),
    [(1, False, ["demand"]), (1, True, ["demand", "spot"]), (0, False, None), (0, True, ["spot"])],
)
async def test_who_ran_comes_back_in_its_queues_order(
    world: World, waits: int, loses: bool, after: list[str] | None
) -> None:
    """No write of its own says that it runs: what was before is forgotten with the eviction that ends it. `loses`: that
    is for nodes that it lost, and of which no others came."""
    await a_gang(world, "spot demand", "demand", waits=waits)
    key = ("Job", "ml", "train")
    async with running(world, at=T0 + 100_000) as controller:

        async def looked_at() -> bool:
            tally = controller.world.sight(key, T0 + 100_000).pods
            return len(controller.world.workloads) == 1 and (tally.live, tally.ready) == (2, 2 - waits)

        async def evicts() -> bool:
            (gang,) = controller.world.workloads.values()
            assert gang.view.value.out_of_stock == ("demand",)
            with suppress(Conflict):
                if loses:
                    step = EvictWorkload("PodsReadyTimeout", "Late", True, out_of_stock=("spot",))
                    await controller.actuator.take(key, step)
                else:
                    why = EvictReason.IN_COHORT_RECLAMATION
                    await controller.actuator.carry_out(Evict(gang.key, gang.uid, why, ("ml", "other"), "u", "team-a"))
                return True
            return False

        await until(looked_at)
        await until(evicts)
        found = await until(lambda: evicted(world))
        assert found["status"].get("outOfStock") == after


HOUR = 3_600_000


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize(
    ("waits", "lasts", "kueue", "counts"),
    [(0, HOUR, False, 0), (0, HOUR // 2, False, 7), (1, HOUR, False, 7), (0, HOUR, True, 7)],
)
async def test_of_who_ran_well_for_longer_than_it_would_wait_no_earlier_try_counts(
    world: World, waits: int, lasts: int, kueue: bool, counts: int, preempted: bool
) -> None:
    """It would wait an hour for the one pod that it lost in weeks."""
    await a_gang(world, "spot", waits=waits, requeue={"count": 7})
    key, now = ("Job", "ml", "train"), T0 + 60_000 + lasts
    async with running(world, at=now) as controller:
        controller.actuator._settings = Settings(as_kueue=kueue)

        async def evicts() -> bool:
            tally = controller.world.sight(key, now).pods
            if len(controller.world.workloads) < 1 or (tally.live, tally.ready) != (2, 2 - waits):
                return False
            (gang,) = controller.world.workloads.values()
            with suppress(Conflict):
                if preempted:
                    why = EvictReason.IN_COHORT_RECLAMATION
                    await controller.actuator.carry_out(Evict(gang.key, gang.uid, why, ("ml", "other"), "u", "team-a"))
                else:
                    await controller.actuator.take(key, EvictWorkload("PodsReadyTimeout", "Late", True))
                return True
            return False

        await until(evicts)
        found = await until(lambda: evicted(world))
    assert found["status"].get("requeueState", {}).get("count", 0) == counts + (not preempted)


@pytest.mark.parametrize(("broke_after", "counts"), [(60_000, 8), (HOUR, 1)])
async def test_who_broke_soon_has_not_run_well_however_long_it_was_waited_for(
    world: World, broke_after: int, counts: int
) -> None:
    """With a recovery timeout of an hour its tries would never end, and the shortest wait be between them."""
    await a_gang(world, "spot", waits=0, requeue={"count": 7})
    key, now = ("Job", "ml", "train"), T0 + 60_000 + broke_after
    async with running(world, at=now) as controller:

        async def ran() -> bool:
            return any(controller.world.ran_whole(gang) for gang in controller.world.workloads.values())

        async def is_behind() -> bool:
            return controller.world.sight(key, now).pods.behind_since == now

        async def evicts() -> bool:
            with suppress(Conflict):
                await controller.actuator.take(key, EvictWorkload("PodsReadyTimeout", "Late", True))
                return True
            return False

        await until(ran)
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(now)}
        status = {"status": {"phase": "Running", "conditions": [condition]}}
        await world.client.merge_patch("/api/v1/namespaces/ml/pods/train-0/status", status)
        await until(is_behind)
        controller.actuator._now = lambda: now + HOUR
        await until(evicts)
        found = await until(lambda: evicted(world))
    assert found["status"]["requeueState"]["count"] == counts


@pytest.mark.parametrize(
    ("reason", "after"), [("PodsReadyTimeout", ["spot"]), ("DeactivatedDueToRequeuingLimitExceeded", None)]
)
async def test_who_is_given_up_begins_anew_with_its_queues_order(
    world: World, reason: str, after: list[str] | None
) -> None:
    made = await world.put(job("train", "main"))
    stands = await world.put(workload(made, {}, queue="main", active=after is not None))
    held = {"conditions": [RESERVED, condition("Evicted", True, reason, "Late")], "admission": admission("n1")}
    await write_status(world, stands, {**held, "outOfStock": ["spot"]})
    async with running(world):

        async def released() -> dict[str, Any] | None:
            found = await its_workload(world)
            return found if found is not None and "admission" not in found["status"] else None

        found = await until(released)
        assert found["status"].get("outOfStock") == after
