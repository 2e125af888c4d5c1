"""A Workload follows its job, and what others wrote on it stays."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.api.kinds import validate_object
from admission.controller.app import Controller
from admission.controller.standing import by_objects
from admission.engine.model import Admit, Decision
from admission.jobs.devices import Asks, DeviceClass, Listed, Template
from admission.jobs.kinds import millis
from admission.jobs.values import rfc3339
from admission.jobs.values import workload as read
from admission.kube.clock import SetAhead
from admission.names import OF_DEVICE_CLASS
from tests.controller.lab import (
    API,
    GPU,
    NAMES,
    NOW,
    T0,
    Json,
    World,
    admission,
    cluster_queue,
    condition,
    job,
    local_queue,
    own,
    workload,
)
from tests.controller.test_keep import CHECK, NODE, begun, quiet, running, told, until, workloads

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
WORKLOADS = f"/apis/{API}/namespaces/ml/workloads"
CLASSES = f"/apis/{API}/workloadpriorityclasses"


async def a_town(world: World, nominal: int) -> None:
    for one in (own("ResourceFlavor", "h100"), cluster_queue("team-a", nominal), local_queue("main", "team-a"), NODE):
        await world.put(one)
    for name, value in (("low", 1), ("high", 100)):
        body = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        await world.client.create(CLASSES, body)


async def its_workload(world: World) -> Json | None:
    found = (await world.client.get(WORKLOADS))["items"]
    return found[0] if found else None


def reads(world: World, what: Callable[[Json], Any]) -> Callable[[], Awaitable[Any]]:
    async def look() -> Any:
        found = await its_workload(world)
        return found is not None and what(found)

    return look


def holds(raw: Json) -> bool:
    return "admission" in raw.get("status", {})


async def change(world: World, path: str, patch: Json) -> None:
    await world.client.merge_patch(path, patch)


def names_lost_nodes(raw: Json) -> bool:
    return "unhealthyNodes" in raw.get("status", {})


async def test_a_gang_keeps_a_node_that_is_back(world: World) -> None:
    """Other nodes were asked for, and there were none before it was back: its pods run there, and would be taken off it
    once another is free."""
    await a_town(world, 16)
    other = {"name": "m", "labels": {"kubernetes.io/hostname": "m"}}
    await world.put({**NODE, "metadata": other, "spec": {"unschedulable": True}})
    survives = job("train", "main")
    survives["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "true"}
    nodes = "/api/v1/nodes"
    async with running(world) as controller:
        await world.put(survives)
        await until(lambda: begun(world))
        await world.client.delete(f"{nodes}/n")
        assert await until(reads(world, names_lost_nodes))
        await world.put(NODE)

        async def back() -> bool:
            return not controller.world.lost_nodes

        await until(back)
        await until(lambda: quiet(controller))
        await change(world, f"{nodes}/m", {"spec": {"unschedulable": False}})
        assert await until(reads(world, lambda raw: not names_lost_nodes(raw)))
        now = await its_workload(world)
    assert now is not None
    assert json.dumps("n") in json.dumps(now["status"]["admission"]["podSetAssignments"])


async def test_what_a_gang_lost_in_an_earlier_reservation_it_has_not_lost_in_this_one(world: World) -> None:
    await a_town(world, 0)
    async with running(world) as controller:
        await world.put(job("train", "main"))
        made = await until(lambda: its_workload(world))
        lost = {"unhealthyNodes": [{"name": "n"}]}
        body = {**{key: made[key] for key in ("apiVersion", "kind")}, "metadata": {"name": made["metadata"]["name"]}}
        path = f"{WORKLOADS}/{made['metadata']['name']}/status"
        await world.client.apply(path, {**body, "status": lost}, manager=NAMES.admission_manager)
        decided: list[Decision] = []
        controller.watchers.decision.append(decided.append)
        await change(world, f"/apis/{API}/clusterqueues/team-a", {"spec": cluster_queue("team-a", 16)["spec"]})
        assert await until(reads(world, lambda raw: holds(raw) and not names_lost_nodes(raw)))
        await until(lambda: quiet(controller))
    assert [type(one) for one in decided] == [Admit]


async def test_jobs_of_one_second_stand_in_line_as_they_were_made(world: World) -> None:
    """Some while no controller was there, some since; whatever happens to one of them that waits."""
    await a_town(world, 0)
    made = [f"train-{number * 7 % 24}" for number in range(24)]

    async def make(names: list[str]) -> None:
        for name in names:
            await world.put(job(name, "main"))

    async def in_line() -> list[str] | None:
        found = (await world.client.get(WORKLOADS))["items"]
        values = {raw["metadata"]["ownerReferences"][0]["name"]: read(raw, NAMES)[0] for raw in found}
        told = by_objects(values.values())
        names = sorted(values, key=lambda name: told[values[name].key].position)
        return names if len(names) == len(made) else None

    await make(made[:12])
    async with running(world):
        await make(made[12:])
        await change(world, f"{JOBS}/{made[12]}", {"metadata": {"labels": {"seen": "late"}}})
        assert await until(in_line) == made


async def test_a_job_is_admitted_once_its_gate_is_taken_away(world: World) -> None:
    await a_town(world, 16)
    gated = job("train", "main")
    gated["metadata"]["annotations"] = {NAMES.gated_by_annotation: "example.com/data"}
    async with running(world):
        await world.put(gated)
        await until(reads(world, lambda raw: NAMES.gated_by_annotation in raw["metadata"]["annotations"]))
        await change(world, f"{JOBS}/train", {"metadata": {"annotations": {NAMES.gated_by_annotation: None}}})
        await until(reads(world, holds))


async def test_of_two_workloads_of_a_job_that_goes_by_which_it_does_not_run(world: World) -> None:
    """Kueue makes a second one for an elastic job that grows: given quota, it would be charged beside the first."""
    await a_town(world, 64)
    async with running(world):
        made = await world.put(job("train", "main"))
        await until(reads(world, holds))
        second = workload(made, {}, queue="main")
        second["metadata"] |= {"name": "job-train-grown", "finalizers": [NAMES.finalizer]}
        await world.put(second)
        await until(lambda: workloads(world, 1))
    left = await its_workload(world)
    assert left is not None
    assert holds(left)
    assert left["metadata"]["name"] != "job-train-grown"


async def test_who_asks_for_more_resources_than_a_status_holds_is_told_why_it_waits(world: World) -> None:
    await a_town(world, 16)
    made = job("one", "main")
    many = {f"example.com/r{i}": "1" for i in range(65)}
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": many, "limits": many}
    async with running(world):
        await world.put(made)

        def told(raw: Json) -> bool:
            conditions = raw.get("status", {}).get("conditions", ())
            return any(one["reason"] == "NoMatchingFlavor" for one in conditions)

        assert await until(reads(world, told))


async def test_a_limit_of_run_time_that_changes_while_a_job_waits(world: World) -> None:
    await a_town(world, 4)
    limited = job("train", "main")
    limited["metadata"]["labels"][NAMES.max_exec_time_label] = "60"
    async with running(world):
        await world.put(limited)
        await until(reads(world, lambda raw: raw["spec"].get("maximumExecutionTimeSeconds") == 60))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.max_exec_time_label: None}}})
        await until(reads(world, lambda raw: "maximumExecutionTimeSeconds" not in raw["spec"]))


UNQUEUED: dict[str, tuple[Json, str]] = {
    "no limit of run time": ({"labels": {NAMES.max_exec_time_label: "5m"}}, "'5m' is no number of seconds above 0"),
    "a Workload of another": ({"labels": {NAMES.prebuilt_label: "mine"}}, "'mine' would be charged beside"),
    "and by annotation": ({"annotations": {NAMES.prebuilt_label: "mine"}}, "take the annotation off"),
    "more than it may have": ({"annotations": {NAMES.min_parallelism_annotation: "9"}}, "'9' is not from 1 to"),
}


@pytest.mark.parametrize("name", UNQUEUED)
async def test_who_says_what_cannot_be_meant_is_told_and_holds_no_place(world: World, name: str) -> None:
    """It would run in another way than its owner meant."""
    says, words = UNQUEUED[name]
    await a_town(world, 4)
    async with running(world):
        await world.put(job("train", "main"))
        await until(lambda: its_workload(world))
        await change(world, f"{JOBS}/train", {"metadata": says})

        (message,) = await until(lambda: told(world))
        assert words in message

        async def gone() -> bool:
            return await its_workload(world) is None

        await until(gone)
        assert (await world.ask().why("train", "ml")).standing.message == message
        taken_back = {place: dict.fromkeys(keys) for place, keys in says.items()}
        await change(world, f"{JOBS}/train", {"metadata": taken_back})
        await until(lambda: its_workload(world))


async def test_a_job_that_waits_may_come_to_say_that_fewer_pods_are_enough(world: World) -> None:
    await a_town(world, 8)
    notes = {NAMES.min_parallelism_annotation: "1"}
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: "conditions" in raw.get("status", {})))
        await change(world, f"{JOBS}/train", {"metadata": {"annotations": notes}})
        found = await until(reads(world, lambda raw: holds(raw) and raw))
    assert found["status"]["admission"]["podSetAssignments"][0]["count"] == 1


async def test_who_misspells_a_key_is_told_once_and_goes_on(world: World) -> None:
    await a_town(world, 16)
    async with running(world):
        made = job("train", "main")
        made["metadata"]["annotations"] = {"muster.dev/replace-lost-pod": "true"}
        await world.put(made)
        (message,) = await until(lambda: told(world, "UnknownKey"))
        assert message == (
            "It goes on without: annotation muster.dev/replace-lost-pod, which is not known "
            f"(did you mean {NAMES.replace_lost_pods_annotation}?)"
        )
        await until(reads(world, lambda raw: bool(raw.get("status", {}).get("admission"))))
        assert len(await told(world, "UnknownKey")) == 1


async def test_whose_value_is_none_is_told_whenever_it_is_written(world: World) -> None:
    await a_town(world, 16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, holds))
        said = {NAMES.replace_lost_pods_annotation: "yes"}
        await change(world, f"{JOBS}/train", {"metadata": {"annotations": said}})
        (message,) = await until(lambda: told(world, "UnknownKey"))
        assert message == (
            f"It goes on without: annotation {NAMES.replace_lost_pods_annotation}, whose value 'yes' is neither 'true' "
            "nor 'false'"
        )


async def test_who_boosts_a_priority_by_what_is_no_number_is_told(world: World) -> None:
    await a_town(world, 16)
    async with running(world):
        await world.put(job("train", "main"))
        made = await until(lambda: its_workload(world))
        boost = {"metadata": {"annotations": {NAMES.priority_boost_annotation: "high"}}}
        await change(world, f"{WORKLOADS}/{made['metadata']['name']}", boost)
        (message,) = await until(lambda: told(world, "UnknownKey"))
        assert message == (
            f"It goes on without: annotation {NAMES.priority_boost_annotation} of its Workload, whose value 'high' is "
            "no whole number from -2147483648 to 2147483647"
        )


async def test_who_says_what_cannot_be_read_while_it_runs_is_told(world: World) -> None:
    await a_town(world, 16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(lambda: begun(world))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "yes"}}})
        (message,) = await until(lambda: told(world))
        assert "'yes' is neither 'true' nor 'false'" in message
        assert await begun(world)


async def test_what_others_say_of_a_waiting_workload_stays_when_its_job_changes(world: World) -> None:
    await a_town(world, 4)
    waiting = job("train", "main")
    waiting["metadata"]["labels"][NAMES.priority_class_label] = "low"
    said = {NAMES.priority_boost_annotation: "50", NAMES.allowed_flavors_annotation: "h100", "example.com/a": "b"}
    async with running(world):
        await world.put(waiting)
        made = await until(lambda: its_workload(world))
        path = f"{WORKLOADS}/{made['metadata']['name']}"
        await change(
            world, path, {"metadata": {"annotations": said}, "spec": {"preemptionGates": [{"name": "example.com/g"}]}}
        )
        await change(world, f"{CLASSES}/low", {"value": 6})
        found = await until(reads(world, lambda raw: raw["spec"]["priority"] == 6 and raw))
    assert said.items() <= found["metadata"]["annotations"].items()
    assert found["spec"]["preemptionGates"] == [{"name": "example.com/g"}]


async def test_the_priority_of_a_gang_that_holds_quota_follows_its_class(world: World) -> None:
    await a_town(world, 16)
    given = job("train", "main")
    given["metadata"]["labels"][NAMES.priority_class_label] = "low"
    async with running(world) as controller:
        await world.put(given)
        await until(reads(world, holds))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.priority_class_label: "high"}}})
        found = await until(reads(world, lambda raw: raw["spec"]["priority"] == 100 and raw))
        assert found["spec"]["priorityClassRef"]["name"] == "high"
        await change(world, f"{CLASSES}/high", {"value": 200})
        found = await until(reads(world, lambda raw: raw["spec"]["priority"] == 200 and raw))
        assert holds(found)
        assert controller.state.workloads[("ml", found["metadata"]["name"])].priority == 200


async def test_a_pause_that_ends_before_the_gang_has_left_ends(world: World) -> None:
    await a_town(world, 16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, holds))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "true"}}})
        await until(reads(world, lambda raw: raw["spec"]["active"] is False))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: None}}})
        # Nobody runs jobs here: that its pods are gone is said for their controller.
        stopped = {"conditions": [condition("Suspended", True, "JobSuspended", "")]}
        await change(world, f"{JOBS}/train/status", {"status": stopped})
        await until(reads(world, lambda raw: raw["spec"]["active"] is True))


async def test_whoever_is_set_active_again_begins_anew(world: World) -> None:
    await a_town(world, 4)
    made = await world.put(job("train", "main"))
    status = {"requeueState": {"count": 7, "requeueAt": "2030-01-01T00:00:00Z"}, "outOfStock": ["h100"]}
    await world.put(workload(made, status, queue="main", active=False))
    async with running(world):
        await until(reads(world, lambda raw: raw["status"].keys().isdisjoint({"requeueState", "outOfStock"})))


async def test_a_backoff_that_was_written_by_a_clock_far_ahead_lasts_from_now(world: World) -> None:
    """Its jobs waited until then."""
    await a_town(world, 16)
    made = await world.put(job("train", "main"))
    ahead = NOW + 365 * 86_400_000
    status = {
        "conditions": [condition("Evicted", True, "PodsReadyTimeout", "Late", ahead)],
        "requeueState": {"count": 3, "requeueAt": rfc3339(ahead + 240_000)},
    }
    await world.put(workload(made, status, queue="main"))
    async with running(world):
        now = {"count": 3, "requeueAt": rfc3339(NOW + 240_000)}
        await until(reads(world, lambda raw: raw["status"].get("requeueState") == now))


ENDS: dict[str, Callable[[World, Json], Any]] = {
    "its job was deleted": lambda world, made: world.client.delete(f"{JOBS}/train", propagation="Background"),
    "it was deleted itself": lambda world, made: world.client.delete(f"{WORKLOADS}/{made['metadata']['name']}"),
}


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("how", ENDS)
async def test_a_workload_with_our_finalizer_goes_when_nothing_is_left_of_it(
    world: World, how: str, finished: bool
) -> None:
    """As those have that Kueue made, where Muster takes its place."""
    await a_town(world, 4)
    done = {"conditions": [condition("Complete", True, "Done", "")], "startTime": "2026-01-01T00:00:00Z"}
    owner = await world.put(job("train", "main", status=done if finished else None))
    status = {"conditions": [condition("Finished", True, "Succeeded", "")]} if finished else {}
    kept = workload(owner, status, queue="main")
    kept["metadata"]["finalizers"] = [NAMES.finalizer]
    made = await world.put(kept)
    async with running(world) as controller:
        await until(lambda: settled(controller, made))
        await ENDS[how](world, made)

        async def gone() -> bool:
            found = (await world.client.get(WORKLOADS))["items"]
            return all(one["metadata"]["uid"] != made["metadata"]["uid"] for one in found)

        await until(gone)


def _no_list_of_whole_jobs(request: web.Request) -> web.Response | None:
    """A namespace may have tens of thousands, of a megabyte each: only their names, and some at a time."""
    whole = "PartialObjectMetadata" not in request.headers["Accept"] or "limit" not in request.query
    return web.json_response({}, status=500) if whole and request.path == JOBS else None


async def test_a_workload_without_its_owners_name_is_of_a_job_all_the_same(world: World) -> None:
    """Whoever deletes a job and lets its dependents be takes its name from them."""
    await a_town(world, 4)
    nameless = workload(await world.put(job("train", "main")), {}, queue="main")
    del nameless["metadata"]["ownerReferences"]
    made = await world.put(nameless)
    async with running(world, leads=False) as controller:
        await until(lambda: settled(controller, made))
        seen = controller.world.workloads["ml", made["metadata"]["name"]]
        world.sandbox.faults.append(_no_list_of_whole_jobs)
        assert not await controller.actuator.job_is_gone(seen)
        await world.client.delete(f"{JOBS}/train", propagation="Background")
        assert await controller.actuator.job_is_gone(seen)


async def settled(controller: Controller, made: Json) -> bool:
    return ("ml", made["metadata"]["name"]) in controller.world.workloads


async def test_a_workload_of_a_kind_of_others_is_bare(world: World) -> None:
    """External kinds label their Workloads with the uid of their job, too."""
    await a_town(world, 16)
    wrapped = job("a", "main")
    wrapped["metadata"]["uid"] = "u-1"
    made = workload(wrapped, {}, queue="main")
    made["metadata"]["ownerReferences"][0] |= {"apiVersion": "example.com/v1", "kind": "AppWrapper"}
    async with running(world):
        made = await world.put(made)
        await until(reads(world, holds))
        await change(world, f"{WORKLOADS}/{made['metadata']['name']}", {"spec": {"active": False}})

        def evicted(raw: Json) -> bool:
            conditions = raw["status"]["conditions"]
            return any(c["type"] == "Evicted" and c["reason"] == "Deactivated" for c in conditions)

        await until(reads(world, evicted))


async def test_who_waits_behind_a_bare_workload_is_told_that_it_is_one(world: World) -> None:
    """As `muster submit` tells it."""
    await a_town(world, 16)
    await queue_says(world, queueingStrategy="StrictFIFO")
    async with running(world):
        await world.put(job("runs", "main", pods=1))
        await until(lambda: begun(world, "runs"))
        large = job("large", "main", pods=2)
        large["metadata"]["uid"] = "u-1"
        bare = workload(large, {}, queue="main", priority=1)
        del bare["metadata"]["ownerReferences"], bare["metadata"]["labels"]
        await world.put(bare)
        await world.put(job("small", "main", pods=1))

        async def waits() -> str:
            said = (await world.ask().why("small", "ml")).standing.message
            return said if said.startswith("Waits behind") else ""

        assert await until(waits) == "Waits behind Workload ml/job-large, the first of a StrictFIFO queue"


READY = {"name": "budget", "state": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
RESERVED = [condition("QuotaReserved", True, "QuotaReserved", "")]
RUNS = [*RESERVED, condition("Admitted", True, "Admitted", "")]


@pytest.mark.parametrize(
    ("conditions", "checks", "spec", "becomes"),
    [
        (RUNS, [], {"active": False}, ("Evicted", "Deactivated")),
        (RUNS, [], {"maximumExecutionTimeSeconds": 60}, ("Evicted", "DeactivatedDueToMaximumExecutionTimeExceeded")),
        (RESERVED, [READY], {}, ("Admitted", "Admitted")),
    ],
    ids=["deactivated", "its time is over", "its checks are ready"],
)
async def test_what_became_due_for_a_bare_workload_while_nobody_led(
    world: World, conditions: list[Json], checks: list[Json], spec: Json, becomes: tuple[str, str]
) -> None:
    await a_town(world, 16)
    if checks:
        await world.put({**CHECK, "metadata": {"name": "budget"}})
        wanted = {"spec": {"admissionChecksStrategy": strategy({"budget": []})}}
        await change(world, "/apis/muster.dev/v1beta1/clusterqueues/team-a", wanted)
    wrapped = job("a", "main")
    wrapped["metadata"]["uid"] = "u-1"
    status = {"conditions": conditions, "admission": admission("n"), **({"admissionChecks": checks} if checks else {})}
    made = workload(wrapped, status, queue="main")
    made["metadata"]["ownerReferences"][0] |= {"apiVersion": "example.com/v1", "kind": "AppWrapper"}
    made["spec"] |= spec
    await world.put(made)

    def came(raw: Json) -> bool:
        held = raw.get("status", {}).get("conditions", ())
        return any((c["type"], c["reason"]) == becomes and c["status"] == "True" for c in held)

    with capture_logs() as lines:
        async with running(world):
            assert await until(reads(world, came))
    assert becomes[0].lower() in [line["event"] for line in lines]


# ---------------------------------------------------------------- admission checks


async def asks(world: World, checks: Json, **flavors: int) -> None:
    """Flavors with a node each, and a queue that has so much of them and asks these checks: name -> onFlavors."""
    for name in flavors:
        await world.put(own("ResourceFlavor", name, {"nodeLabels": {"gpu": name}}))
        labels = {"gpu": name, "kubernetes.io/hostname": name}
        await world.put({**NODE, "metadata": {"name": name, "labels": labels}})
    for name in ("budget", "late"):
        await world.put({**CHECK, "metadata": {"name": name}})
    given = [{"name": name, "resources": [{"name": GPU, "nominalQuota": nominal}]} for name, nominal in flavors.items()]
    group = {"coveredResources": [GPU], "flavors": given}
    spec = {"namespaceSelector": {}, "resourceGroups": [group], "admissionChecksStrategy": strategy(checks)}
    await world.put(own("ClusterQueue", "team-a", spec))
    await world.put(local_queue("main", "team-a"))


def strategy(checks: Json) -> Json | None:
    rules = [{"name": name, **({"onFlavors": on} if on else {})} for name, on in checks.items()]
    return {"admissionChecks": rules} if rules else None


async def queue_says(world: World, **said: Any) -> None:
    await change(world, f"/apis/{API}/clusterqueues/team-a", {"spec": said})


async def answer(world: World, state: str, check: str = "budget", **more: Any) -> None:
    """As the controller of a check writes its entry, and no more, with a field manager of its own."""
    made = await until(lambda: its_workload(world))
    meta = {"name": made["metadata"]["name"], "namespace": "ml"}
    said = {"name": check, "state": state, "message": "why", "lastTransitionTime": rfc3339(T0), **more}
    body = {"apiVersion": API, "kind": "Workload", "metadata": meta, "status": {"admissionChecks": [said]}}
    await world.client.apply(f"{WORKLOADS}/{meta['name']}/status", body, manager=f"checker-{check}")


def listed(raw: Json) -> Json:
    return {check["name"]: check["state"] for check in raw.get("status", {}).get("admissionChecks") or ()}


def is_admitted(raw: Json) -> bool:
    return any(c["type"] == "Admitted" and c["status"] == "True" for c in raw.get("status", {}).get("conditions") or ())


async def test_the_checks_of_a_reservation_follow_its_queue(world: World) -> None:
    await asks(world, {"budget": None}, h100=16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending"}))
        await queue_says(world, admissionChecksStrategy=strategy({"budget": None, "late": None}))
        await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending", "late": "Pending"}))
        await answer(world, "Pending", "late")  # its controller owns of the entry what it says
        await answer(world, "Ready")
        found = await until(reads(world, lambda raw: listed(raw) == {"budget": "Ready", "late": "Pending"} and raw))
        assert not is_admitted(found)
        said = next(one for one in found["status"]["conditions"] if one["type"] == "Admitted")
        assert said["message"] == "Waiting for admission checks: budget, late"
        await queue_says(world, admissionChecksStrategy=strategy({"budget": None}))
        found = await until(reads(world, lambda raw: is_admitted(raw) and raw))
        assert listed(found) == {"budget": "Ready"}


async def test_a_reservation_of_which_nothing_is_asked_any_more_is_admitted(world: World) -> None:
    await asks(world, {"budget": None}, h100=16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending"}))
        await queue_says(world, admissionChecksStrategy=None)
        found = await until(reads(world, lambda raw: is_admitted(raw) and raw))
        assert listed(found) == {}


@pytest.mark.parametrize("late", ["Retry", "Rejected"])
async def test_the_check_of_a_flavor_that_a_gang_has_no_more_says_nothing(world: World, late: str) -> None:
    await asks(world, {"budget": ["h100"]}, h100=16, spot=16)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending"}))
        await answer(world, "Pending")  # its controller owns of the entry what it says
        await queue_says(world, stopPolicy="Hold")
        await until(reads(world, lambda raw: not holds(raw)))
        spot = {"name": "spot", "resources": [{"name": GPU, "nominalQuota": 16}]}
        none = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": 0}]}
        groups = [{"coveredResources": [GPU], "flavors": [none, spot]}]
        await queue_says(world, stopPolicy="None", resourceGroups=groups)
        found = await until(reads(world, lambda raw: is_admitted(raw) and raw))
        assert listed(found) == {}
        await answer(world, late)
        # The next write of it comes later than one for the answer would.
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "true"}}})
        found = await until(reads(world, lambda raw: entry(raw, "Evicted")["status"] == "True" and raw))
        assert found["metadata"]["annotations"][NAMES.pause_label] == "true"
        assert entry(found, "Evicted")["message"] == "The job is paused by its owner"


def entry(raw: Json, kind: str) -> Json:
    return next(one for one in raw["status"]["conditions"] if one["type"] == kind)


async def test_who_waits_is_put_off_by_a_late_answer_and_asked_again(world: World) -> None:
    await asks(world, {"budget": None}, h100=4)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: "conditions" in raw.get("status", {})))
        await answer(world, "Retry", requeueAfterSeconds=60)
        found = await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending"} and raw))
        assert (
            found["status"]["admissionChecks"][0]["message"]
            == "Asked again with the next reservation. Before: Retry, why"
        )
        assert found["status"]["admissionChecks"][0]["retryCount"] == 1
        assert 60_000 <= millis(found["status"]["requeueState"]["requeueAt"]) - NOW <= 61_000


async def test_a_check_is_asked_again_whatever_the_length_of_its_answer(world: World) -> None:
    await asks(world, {"budget": None}, h100=4)
    async with running(world):
        await world.put(job("train", "main"))
        await until(reads(world, lambda raw: "conditions" in raw.get("status", {})))
        await answer(world, "Retry", message="x" * 32_768)
        found = await until(reads(world, lambda raw: listed(raw) == {"budget": "Pending"} and raw))
    said = found["status"]["admissionChecks"][0]["message"]
    assert said.startswith("Asked again with the next reservation. Before: Retry, xxx")
    assert not validate_object(found)


async def test_who_waits_is_deactivated_by_a_late_answer_and_asked_again_when_it_is_active(world: World) -> None:
    await asks(world, {"budget": None}, h100=4)
    async with running(world):
        await world.put(job("train", "main"))
        made = await until(reads(world, lambda raw: "conditions" in raw.get("status", {}) and raw))
        await answer(world, "Rejected")
        await until(reads(world, lambda raw: not raw["spec"]["active"] and listed(raw) == {"budget": "Pending"}))
        await change(world, f"{WORKLOADS}/{made['metadata']['name']}", {"spec": {"active": True}})
        group = {
            "coveredResources": [GPU],
            "flavors": [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 16}]}],
        }
        await queue_says(world, resourceGroups=[group])
        found = await until(reads(world, lambda raw: holds(raw) and raw))
        assert listed(found) == {"budget": "Pending"}
        await answer(world, "Ready")
        await until(reads(world, is_admitted))


LIMITS = "/api/v1/namespaces/ml/limitranges"
CLASSES_OF_RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"


def limit_range(cpu: str, *, kind: str = "Container") -> Json:
    spec = {"limits": [{"type": kind, "default": {"cpu": cpu}}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults", "namespace": "ml"}, "spec": spec}


def runtime_class(cpu: str) -> Json:
    meta = {"name": "sandboxed"}
    overhead = {"podFixed": {"cpu": cpu}}
    return {
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": meta, "handler": "x", "overhead": overhead
    }  # fmt: skip


def cpu_of(raw: Json) -> Any:
    """What the Workload says of one pod: the container's request, and the overhead."""
    spec = raw["spec"]["podSets"][0]["template"]["spec"]
    request = spec["containers"][0]["resources"]["requests"].get("cpu")
    return request or spec.get("overhead", {}).get("cpu")


def used(raw: Json) -> Json:
    found: Json = raw["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
    return found


def asking(**said: Any) -> Json:
    made = job("train", "main")
    made["spec"]["template"]["spec"].update(said)
    return made


async def a_town_with_cpus(world: World) -> None:
    queue = cluster_queue("team-a", 16)
    cpus = {"name": "cpu", "nominalQuota": 10}
    flavor = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": 16}, cpus]}
    queue["spec"]["resourceGroups"] = [{"coveredResources": [GPU, "cpu"], "flavors": [flavor]}]
    for one in (own("ResourceFlavor", "h100"), queue, local_queue("main", "team-a"), NODE):
        await world.put(one)


DEFAULTS: dict[str, tuple[Callable[[str], Json], str, Json]] = {
    "a LimitRange": (limit_range, f"{LIMITS}/defaults", asking()),
    "a RuntimeClass": (runtime_class, f"{CLASSES_OF_RUNTIMES}/sandboxed", asking(runtimeClassName="sandboxed")),
}


@pytest.mark.parametrize("led", [True, False], ids=["while somebody leads", "while nobody leads"])
@pytest.mark.parametrize("name", DEFAULTS)
async def test_who_waits_asks_for_what_is_added_to_its_pods_now(world: World, name: str, led: bool) -> None:
    saying, path, asked = DEFAULTS[name]
    await a_town_with_cpus(world)
    await world.put(saying("50"))
    patch = {key: saying("3")[key] for key in ("spec", "overhead") if key in saying("3")}
    async with running(world):
        await world.put(asked)
        await until(reads(world, lambda raw: "conditions" in raw.get("status", {}) and cpu_of(raw) == "50"))
        if led:
            await change(world, path, patch)
            found = await until(reads(world, lambda raw: holds(raw) and raw))
    if not led:
        await change(world, path, patch)
        async with running(world):
            found = await until(reads(world, lambda raw: holds(raw) and raw))
    assert cpu_of(found) == "3"
    assert used(found)["cpu"] == "6"


async def test_who_waits_and_names_a_runtime_class_that_goes_is_not_queued(world: World) -> None:
    await a_town_with_cpus(world)
    await world.put(runtime_class("50"))
    async with running(world):
        await world.put(asking(runtimeClassName="sandboxed"))
        await until(lambda: its_workload(world))
        await world.client.delete(f"{CLASSES_OF_RUNTIMES}/sandboxed")

        async def gone() -> bool:
            return await its_workload(world) is None

        await until(gone)
        await world.put(runtime_class("1"))
        await until(reads(world, holds))


ACCOUNTS = "/api/v1/namespaces/ml/serviceaccounts"
TRAINER = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer", "namespace": "ml"}}


async def test_whose_pods_name_a_service_account_that_is_not_there_is_told_and_given_nothing(world: World) -> None:
    """No pod of it can be made. Who runs is let be, and so is who names what each namespace is given."""
    await a_town_with_cpus(world)

    async with running(world) as controller:
        await world.put(asking(serviceAccountName="trainer"))
        (said,) = await until(lambda: told(world))
        assert said.startswith("ServiceAccount 'trainer' (serviceAccountName of its pods) does not exist")
        assert not controller.state.workloads
        await world.put(TRAINER)
        await until(reads(world, holds))
        await world.client.delete(f"{ACCOUNTS}/trainer")

        async def gone() -> bool:
            return not controller.world.defaults.has_account("ml", "trainer")

        await until(gone)
        assert holds(await its_workload(world) or {})
        usual = job("usual", "main", pods=1)
        usual["spec"]["template"]["spec"]["serviceAccountName"] = "default"
        await world.put(usual)

        async def queued() -> bool:
            return len(controller.state.workloads) == 2

        await until(queued)


async def test_where_service_accounts_may_not_be_seen_those_that_jobs_name_are_taken_to_be_there(world: World) -> None:
    await a_town_with_cpus(world)
    world.denied = {"serviceaccounts"}
    async with running(world):
        await world.put(asking(serviceAccountName="trainer"))
        await until(reads(world, holds))


def at_most(gpus: int) -> Json:
    """Of each container."""
    made = limit_range("1")
    made["spec"]["limits"][0] = {"type": "Container", "max": {GPU: str(gpus)}}
    return made


def in_all(gpus: int) -> Json:
    """In the namespace."""
    meta = {"name": "quota", "namespace": "ml"}
    spec = {"hard": {f"requests.{GPU}": str(gpus)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}


REFUSING: dict[str, tuple[str, Json, Json, str]] = {
    "a LimitRange": (
        f"{LIMITS}/defaults",
        at_most(4),
        at_most(8),
        (
            "pod set main: none of its pods can be made: LimitRange 'defaults': "
            f"container 'main' may have 4 {GPU} at most (it has: limit 8, request 8)"
        ),
    ),
    "a ResourceQuota": (
        "/api/v1/namespaces/ml/resourcequotas/quota",
        in_all(12),
        in_all(16),
        f"ResourceQuota 'quota' allows 12 requests.{GPU} in the namespace, and its pods ask for 16 at once",
    ),
}


@pytest.mark.parametrize("name", REFUSING)
async def test_whose_pods_its_namespace_never_takes_is_told_and_given_nothing(world: World, name: str) -> None:
    """Until it allows them. Whom it comes to forbid while it waits is queued no more, and who runs is let be."""
    path, less, more, words = REFUSING[name]
    await a_town_with_cpus(world)
    await world.put(less)
    async with running(world) as controller:
        await world.put(asking())
        assert await until(lambda: told(world)) == [words]
        assert not controller.world.workloads
        await change(world, path, {"spec": more["spec"]})
        first = await until(reads(world, lambda raw: holds(raw) and raw))
        await until(lambda: begun(world))
        await world.put(job("later", "main"))

        async def queued(count: int) -> bool:
            there = [seen.view.value.name for seen in controller.world.workloads.values()]
            return len(there) == count and first["metadata"]["name"] in there

        await until(lambda: queued(2))
        await change(world, path, {"spec": less["spec"]})
        await until(lambda: queued(1))
        assert set(await told(world)) == {words}
        assert await begun(world)


async def test_what_is_added_to_pods_and_changes_nothing_writes_nothing(world: World) -> None:
    """Workloads of before that carry no mark are not written anew either, where they say the same."""
    await a_town_with_cpus(world)
    spec = asking()["spec"]["template"]["spec"]
    spec["containers"][0]["resources"]["requests"]["cpu"] = "50"
    spec["containers"][0]["resources"]["limits"]["cpu"] = "50"
    asked = asking(**spec)
    await world.put(limit_range("7"))
    async with running(world):
        await world.put(asked)
        made = await until(reads(world, lambda raw: "conditions" in raw.get("status", {}) and raw))
    path = f"{WORKLOADS}/{made['metadata']['name']}"
    await change(world, path, {"metadata": {"annotations": {NAMES.defaults_annotation: None}}})
    ours = world.client.counts["PATCH", "workloads", "", 200]
    async with running(world) as controller:
        await until(lambda: settled(controller, made))
        await change(world, f"{LIMITS}/defaults", {"spec": limit_range("8")["spec"]})
        await world.put(job("later", "main", gpus=1))

        async def later() -> bool:
            return len(controller.world.workloads) == 2

        await until(later)
        assert controller.client.counts["PATCH", "workloads", "", 200] == ours
    assert (await world.client.get(path))["metadata"]["generation"] == made["metadata"]["generation"]


async def test_a_gang_of_which_more_is_asked_before_its_start_is_reserved_anew(world: World) -> None:
    await a_town_with_cpus(world)
    await world.put(limit_range("1"))
    stopped = {"conditions": [condition("Suspended", True, "JobSuspended", "")]}
    made = await world.put({**asking(), "status": stopped})
    reserved = workload(made, {"admission": {"clusterQueue": "team-a", "podSetAssignments": [{
        "name": "main", "count": 2, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: "16"},
    }]}, "conditions": [
        condition("QuotaReserved", True, "QuotaReserved", ""), condition("Admitted", True, "Admitted", "")
    ]}, queue="main")  # fmt: skip
    await world.put(reserved)
    async with running(world):
        found = await until(reads(world, lambda raw: holds(raw) and "cpu" in used(raw) and raw))
    assert cpu_of(found) == "1"
    assert used(found)["cpu"] == "2"


async def test_a_local_queue_that_is_made_anew_takes_along_who_waits(world: World) -> None:
    """And who holds quota stays charged where it was admitted."""
    await a_town(world, 16)
    await world.put(cluster_queue("team-b", 16, cohort="other"))  # of the same one, the second would borrow from it
    await world.put({**NODE, "metadata": {"name": "m", "labels": {"kubernetes.io/hostname": "m"}}})

    async def queues() -> dict[str, str]:
        found = (await world.client.get(WORKLOADS))["items"]
        held = {raw["metadata"]["ownerReferences"][0]["name"]: raw.get("status", {}).get("admission") for raw in found}
        return {name: admission["clusterQueue"] for name, admission in held.items() if admission}

    async with running(world):
        await world.put(job("first", "main"))
        await until(lambda: when(queues, {"first": "team-a"}))
        await world.put(job("second", "main"))
        at = f"/apis/{API}/namespaces/ml/localqueues/main"
        await world.client.delete(at)
        await world.put(local_queue("main", "team-b"))
        await until(lambda: when(queues, {"first": "team-a", "second": "team-b"}))


async def when(what: Callable[[], Awaitable[Any]], wanted: Any) -> bool:
    return bool(await what() == wanted)


NOTHING_FITS = {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "none"}}}}}
ANEW: dict[str, tuple[Json, Json, bool]] = {
    "a pause that ends": (
        {"metadata": {"labels": {NAMES.pause_label: "true"}}},
        {"metadata": {"labels": {NAMES.pause_label: None}}},
        True,
    ),
    "a gate that goes": (
        {"metadata": {"annotations": {NAMES.gated_by_annotation: "example.com/budget"}}},
        {"metadata": {"annotations": {NAMES.gated_by_annotation: None}}},
        True,
    ),
    "another queue": (
        {"metadata": {"labels": {NAMES.queue_label: "elsewhere"}}},
        {"metadata": {"labels": {NAMES.queue_label: "main"}}},
        True,
    ),
    "other nodes": (NOTHING_FITS, {"spec": {"template": {"spec": {"nodeSelector": None}}}}, True),
    "more pods": ({}, {"spec": {"parallelism": 3, "completions": 3}}, True),
    "fewer pods": ({}, {"spec": {"parallelism": 1, "completions": 1}}, False),
    "another image": ({}, {"spec": {"template": {"metadata": {"labels": {"run": "2"}}}}}, False),
    "another class": ({}, {"metadata": {"labels": {NAMES.priority_class_label: "high"}}}, False),
}


@pytest.mark.parametrize("what", ANEW)
async def test_who_comes_into_a_queue_or_asks_for_something_else_waits_from_then_on(world: World, what: str) -> None:
    """Else a job that was made long ago and did not wait, or waited for what never fits, would stand first with
    whatever it asks for then, and have room kept for it at once."""
    before, after, anew = ANEW[what]
    await a_town(world, 4)
    given = job("train", "main")
    given["spec"] |= {"parallelism": 2, "completions": 2}
    await world.put(given)
    await change(world, f"{JOBS}/train", before)

    async def comes_to_be(known: object) -> Json:
        def other(raw: Json) -> Any:
            said = {key: note for key, note in raw["metadata"]["annotations"].items() if "since" not in key}
            found = (raw["spec"], said)
            return found != known and found

        found: Json = await until(reads(world, other))
        return found

    async with running(world) as controller:
        known = await comes_to_be(None)
        await change(world, f"{JOBS}/train", after)
        assert await comes_to_be(known)
        (gang,) = controller.state.workloads.values()
        there = await its_workload(world)
        assert there is not None
        made_at = millis(there["metadata"]["creationTimestamp"])
        assert made_at < NOW
        assert gang.created == (NOW if anew else made_at)


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ([Template("ml", "two", Asks((("gpu", 2),)), NOW)], True),
        ([Template("ml", "two", Asks((("gpu", 2),)), T0)], False),
        ([DeviceClass("gpu", GPU, NOW)], False),
    ],
    ids=["a template that is made anew", "one that is heard of late", "a class that is renamed"],
)
async def test_who_asks_for_something_else_by_its_claims_waits_from_then_on(
    world: World, changed: list[Listed], anew: bool
) -> None:
    await a_town(world, 4)
    given = job("train", "main")
    given["spec"]["template"]["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "two"}]
    await world.put(given)
    async with running(world) as controller:
        for one in (DeviceClass("gpu"), Template("ml", "two", Asks((("gpu", 1),)), T0)):
            controller.world.devices_changed(None, one)
        counted = json.dumps(["gpu", OF_DEVICE_CLASS + "gpu", 1], separators=(",", ":"))
        first = await until(reads(world, lambda raw: counted in str(raw["spec"]) and raw))
        for one in changed:
            controller.world.devices_changed(None, one)
        await until(reads(world, lambda raw: raw["spec"] != first["spec"]))
        (gang,) = controller.state.workloads.values()
        assert gang.created == (NOW if anew else millis(first["metadata"]["creationTimestamp"]))


NO_TIME = {"metadata": {"labels": {NAMES.max_exec_time_label: "5m"}}}
LOST: dict[str, tuple[str, bool]] = {
    "a LimitRange forbids it for a while": (f"{LIMITS}/defaults", True),
    "an administrator deletes it": ("", True),
    "the ServiceAccount of its pods goes for a while": (f"{ACCOUNTS}/trainer", False),
    "its owner makes it one that cannot be queued": (f"{JOBS}/train", False),
}


async def test_a_job_is_given_nothing_while_its_owner_asks_for_no_pods(world: World) -> None:
    """Admitted with none, it could not be scaled up without being stopped; so it waits for a number."""
    await a_town_with_cpus(world)
    none, some = {"spec": {"parallelism": 0}}, {"spec": {"parallelism": 2}}
    made = job("train", "main", pods=4)
    async with running(world) as controller:
        await world.put({**made, "spec": {**made["spec"], **none["spec"]}})

        async def gone() -> bool:
            return not controller.state.workloads

        (message,) = await until(lambda: told(world))
        assert message == "parallelism is 0: it asks for no pods, and is queued when it asks for some"
        assert await gone()
        await change(world, f"{JOBS}/train", {"spec": {"parallelism": 9}})
        await until(reads(world, lambda raw: "conditions" in raw.get("status", {})))
        await change(world, f"{JOBS}/train", none)
        await until(gone)
        await change(world, f"{JOBS}/train", some)
        await until(reads(world, holds))


@pytest.mark.parametrize("gpus", [16, 8], ids=["with all of its pods", "with one of two"])
async def test_a_job_whose_owner_asks_for_no_pods_any_more_gives_back_what_it_holds(world: World, gpus: int) -> None:
    """As tools do that end a Job so. It is not started again with as many as it had before."""
    await a_town(world, gpus)
    made = job("train", "main")
    made["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1"}
    async with running(world):
        await world.put(made)

        async def started() -> bool:
            return not (await world.client.get(f"{JOBS}/train"))["spec"]["suspend"]

        await until(started)
        await change(world, f"{JOBS}/train", {"spec": {"parallelism": 0}})

        async def evicted() -> Any:
            found = await its_workload(world)
            conditions = (found or {}).get("status", {}).get("conditions", [])
            return [one["message"] for one in conditions if (one["type"], one["status"]) == ("Evicted", "True")]

        assert await until(evicted) == ["Its owner set parallelism to 0: it asks for no pods any more"]
        stopped = {"conditions": [condition("Suspended", True, "JobSuspended", "")]}
        await change(world, f"{JOBS}/train/status", {"status": stopped})

        async def restored() -> Any:
            raw = await world.client.get(f"{JOBS}/train")
            return NAMES.inverse_annotation not in raw["metadata"].get("annotations", {}) and raw["spec"]

        spec = await until(restored)
        assert (spec["suspend"], spec["parallelism"]) == (True, 0)


@pytest.mark.parametrize("how", LOST)
async def test_a_job_that_lost_its_workload_comes_back_to_its_place(world: World, how: str) -> None:
    """But not where its owner could so let it grow old outside."""
    path, keeps = LOST[how]
    await a_town_with_cpus(world)
    await world.put(at_most(16))
    await world.put(TRAINER)
    waits = job("train", "main", gpus=16)
    waits["spec"]["template"]["spec"]["serviceAccountName"] = "trainer"
    await world.put(waits)
    at = f"{WORKLOADS}/"

    async def gone() -> bool:
        return await its_workload(world) is None

    async with running(world):
        first = await until(reads(world, lambda raw: "conditions" in raw.get("status", {}) and raw))
        if not path:
            await world.client.delete(at + first["metadata"]["name"])
        elif path.startswith(ACCOUNTS):
            await world.client.delete(path)
            await until(gone)
            await world.put(TRAINER)
        else:
            less, more = NO_TIME, {"metadata": {"labels": {NAMES.max_exec_time_label: None}}}
            if keeps:
                less, more = {"spec": at_most(8)["spec"]}, {"spec": at_most(16)["spec"]}
            await change(world, path, less)
            await until(gone)
            await change(world, path, more)
        again = await until(reads(world, lambda raw: raw["metadata"]["uid"] != first["metadata"]["uid"] and raw))
    since = again["metadata"]["annotations"].get(NAMES.queued_since_annotation)
    assert since == (first["metadata"]["creationTimestamp"] if keeps else None)


async def test_who_had_its_room_until_its_pause_keeps_its_age_but_for_the_pause(world: World) -> None:
    await a_town(world, 8)
    await world.put(job("train", "main", pods=1))

    async with running(world) as controller:

        async def is_(admitted: bool) -> bool:
            (gang,) = controller.state.workloads.values() or (None,)
            return gang is not None and (gang.admission is not None) == admitted

        await until(lambda: is_(admitted=True))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: "true"}}})
        await until(reads(world, lambda raw: [c for c in raw["status"]["conditions"] if c["reason"] == "Deactivated"]))
        stopped = {"conditions": [condition("Suspended", True, "JobSuspended", "")]}
        await change(world, f"{JOBS}/train/status", {"status": stopped})
        await until(lambda: is_(admitted=False))
        await change(world, f"{JOBS}/train", {"metadata": {"labels": {NAMES.pause_label: None}}})
        await until(lambda: is_(admitted=True))
        (gang,) = controller.state.workloads.values()
        there = await its_workload(world)
        assert there is not None
        assert millis(there["metadata"]["creationTimestamp"]) == gang.created < NOW


async def test_a_workload_that_was_restored_without_its_job_keeps_no_room(world: World) -> None:
    """As a backup has it, with what it held: its job comes back as another, and waits for that room."""
    await a_town(world, 16)
    async with running(world, sweep_s=3600.0) as controller:

        async def looked() -> bool:
            return controller.leading and controller.synced

        await until(looked)
        lost = {**job("one", "main"), "metadata": {"name": "one", "namespace": "ml", "uid": "of-before"}}
        held = {"admission": admission("n"), "conditions": [condition("QuotaReserved", True, "QuotaReserved", "")]}
        restored = workload(lost, held, queue="main")
        del restored["metadata"]["ownerReferences"]
        await world.put(restored)
        uid = (await world.put(job("one", "main")))["metadata"]["uid"]

        async def alone() -> bool:
            found = (await world.client.get(WORKLOADS))["items"]
            return [one["metadata"]["labels"][NAMES.job_uid_label] for one in found] == [uid]

        await until(alone)
        await until(reads(world, lambda one: one.get("status", {}).get("admission")))


@pytest.mark.parametrize("by", [3_600_000, 0])
async def test_a_gang_runs_for_its_time_though_the_api_servers_clock_is_set_ahead(world: World, by: int) -> None:
    await a_town(world, 16)
    async with running(world) as controller:
        made = job("one", "main")
        made["metadata"]["labels"][NAMES.max_exec_time_label] = "600"
        await world.put(made)
        await until(reads(world, lambda one: one.get("status", {}).get("admission")))
        world.client.clock.set_ahead = SetAhead(NOW, by)
        controller.now = lambda: NOW + 3_600_000
        key = ("Job", "ml", "one")
        controller.jobs.add(key)

        async def looked_at() -> bool:
            return controller.jobs.idle

        await until(looked_at)
        held = await its_workload(world)
        assert held is not None
        stopped = any(one["type"] == "Evicted" for one in held["status"]["conditions"])
        assert stopped == (by == 0), "its time has passed where the clock was not set"
