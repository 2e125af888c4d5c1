"""Labels, owner references and selectors that anybody may write: they keep nobody's quota, and stop nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from admission.controller.lifecycle import ReleaseWorkload, RestoreJob, Settings, next_step
from admission.controller.world import World as Shell
from admission.engine.model import MUSTER
from admission.engine.state import State
from admission.jobs.hold import Caller, mutate_job, validate_job, validate_pod
from admission.jobs.kinds import JOB, JobView, view
from tests.controller.lab import NAMES, World, condition, job
from tests.controller.test_follows import JOBS, a_town, holds, its_workload, reads
from tests.controller.test_keep import begun, running, until
from tests.controller.test_world import HOLDS, KEY, SET, pod, seen
from tests.controller.test_world import JOB as RUNS

TENANT = Caller(user="tenant")
PODS = "/api/v1/namespaces/ml/pods"
SUSPENDED = condition("Suspended", True, "JobSuspended", "")


def pod_of_another(name: str, owner: str, job_uid: str) -> dict[str, Any]:
    """It asks for nothing, and says by its labels, or by its owner too, that it is of a Job."""
    who: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "idle-1", "uid": "rs-1"}
    if owner == "Job":
        who = {"apiVersion": "batch/v1", "kind": "Job", "name": "one", "uid": job_uid}
    owners = [{**who, "controller": True}]
    containers = [{"name": "c", "image": "pause"}]
    labels = {"batch.kubernetes.io/controller-uid": job_uid, "jobset.sigs.k8s.io/jobset-uid": job_uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": labels, "ownerReferences": owners},
        "spec": {"terminationGracePeriodSeconds": 10**9, "nodeName": "n", "containers": containers},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize("owner", ["ReplicaSet", "Job"])
@pytest.mark.parametrize("how", ["finished", "evicted"])
async def test_a_pod_that_says_it_is_of_a_job_keeps_nothing_for_it(world: World, how: str, owner: str) -> None:
    await a_town(world, 16)
    async with running(world) as controller:
        uid = (await world.put(job("one", "main")))["metadata"]["uid"]
        await world.client.merge_patch(f"{JOBS}/one/status", {"status": {"conditions": [SUSPENDED]}})

        async def stopped() -> bool:
            return not await begun(world, "one")

        assert await until(lambda: begun(world, "one"))
        pod = pod_of_another("idle-1-x", owner, uid)
        assert validate_pod(None, pod, TENANT, NAMES) is None, "anybody may make it"
        await world.put(pod)
        if how == "finished":
            done = [condition("SuccessCriteriaMet", True, "x", ""), condition("Complete", True, "x", "")]
            await world.client.merge_patch(f"{JOBS}/one/status", {"status": {"succeeded": 2, "conditions": done}})
        else:
            resumed = condition("Suspended", False, "JobResumed", "")
            runs = {"startTime": "2027-01-15T08:00:00Z", "conditions": [resumed]}
            await world.client.merge_patch(f"{JOBS}/one/status", {"status": runs})
            drain = {"spec": {"stopPolicy": "HoldAndDrain"}}
            await world.client.merge_patch("/apis/muster.dev/v1beta1/namespaces/ml/localqueues/main", drain)
            assert await until(stopped)
            # The Job controller has adopted it, deletes it, and waits for its end.
            left = {"terminating": 1} if owner == "Job" else {}
            gone = {"startTime": None, "active": 0, "conditions": [SUSPENDED], **left}
            await world.client.merge_patch(f"{JOBS}/one/status", {"status": gone})

        async def released() -> bool:
            return controller.state.queue_numbers("team-a").reserving == 0

        assert await until(released)
        if how == "evicted":

            async def restored() -> bool:
                kept = (await world.client.get(f"{JOBS}/one"))["metadata"].get("annotations") or {}
                return NAMES.inverse_annotation not in kept

            assert await until(restored)


@pytest.mark.parametrize(
    ("kind", "namespace", "counts"),
    [("JobSet", "ns", True), ("JobSet", "evil", False), ("Anything", "ns", False), ("Anything", "evil", False)],
)
def test_who_is_a_job_of_a_jobset(kind: str, namespace: str, counts: bool) -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": kind, "name": "set", "uid": "j1", "controller": True}
    metadata = {"name": "a", "namespace": namespace, "uid": "c1", "resourceVersion": "1", "ownerReferences": [owner]}
    child = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": False, "template": {"spec": {"containers": [{"name": "c"}]}}},
    }
    anybody = mutate_job(None, child, TENANT, NAMES) == [] and validate_job(None, child, TENANT, NAMES) is None
    assert anybody == (kind != "JobSet")
    shell = Shell(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)
    parent = replace(SET, uid="j1", started=False, labelled=True, suspended=True, suspended_condition=True)
    shell.job_seen(parent)
    shell.workload_seen(seen(replace(HOLDS, evicted="Preempted", evicted_at=1)))
    shell.job_seen(view(JOB, child, NAMES))
    due = next_step(shell.sight(("JobSet", "ns", "set"), 10**9), Settings(), 10**9)
    assert (due.step == ReleaseWorkload()) != counts, "it is released when none of its Jobs runs"


async def test_the_jobs_of_a_jobset_that_was_stopped_say_nothing_of_its_start_when_it_is_its_owners_again(
    world: World,
) -> None:
    """Else they would run as a gang's without a queue, where nobody clears the start time that forbids the change."""
    await a_town(world, 16)
    sets = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets"
    spec = {key: value for key, value in job("x", pods=1)["spec"].items() if key != "suspend"}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": "ml", "labels": {NAMES.queue_label: "main"}},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": spec}}]},
    }
    async with running(world):
        uid = (await world.put(made))["metadata"]["uid"]

        async def runs() -> bool:
            return not (await world.client.get(f"{sets}/set"))["spec"]["suspend"]

        async def stops() -> bool:
            return not await runs()

        assert await until(runs)
        entry = (await world.client.get(f"{sets}/set"))["spec"]["replicatedJobs"][0]
        owner = {"apiVersion": made["apiVersion"], "kind": "JobSet", "name": "set", "uid": uid, "controller": True}
        child = {**job("set-w-0"), "spec": {**entry["template"]["spec"], "suspend": True}}
        child["metadata"] = {"name": "set-w-0", "namespace": "ml", "ownerReferences": [owner]}
        await world.put({**child, "status": {"startTime": "2027-01-15T08:00:00Z", "conditions": [SUSPENDED]}})
        told: list[Any] = []

        async def look() -> bool:
            whole, part = await world.client.get(f"{sets}/set"), await world.client.get(f"{JOBS}/set-w-0")
            noted = NAMES.inverse_annotation in (whole["metadata"].get("annotations") or {})
            told.append((noted, NAMES.managed_label in part["spec"]["template"]["metadata"].get("labels", {})))
            return not noted

        await look()
        await world.client.merge_patch(f"{sets}/set", {"metadata": {"labels": {NAMES.pause_label: "true"}}})
        assert await until(stops)
        await world.client.merge_patch(f"{sets}/set/status", {"status": {"conditions": [SUSPENDED]}})
        assert await until(look)
        assert (told[0], told[-1]) == ((True, True), (False, False))
        assert "startTime" not in (await world.client.get(f"{JOBS}/set-w-0"))["status"]


def test_a_job_that_was_taken_from_its_jobset_is_none_of_its_jobs() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "j1", "controller": True}
    metadata = {"name": "a", "namespace": "ns", "uid": "c1", "resourceVersion": "1", "ownerReferences": [owner]}
    child = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"suspend": False}}
    shell = Shell(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)
    shell.job_seen(JobView(kind="JobSet", namespace="ns", name="set", uid="j1", resource_version="1", suspended=True))
    shell.job_seen(view(JOB, child, NAMES))
    assert shell.sight(("JobSet", "ns", "set"), 10**9).unheard == 1
    taken = view(JOB, {**child, "metadata": {**metadata, "ownerReferences": []}}, NAMES)
    shell.job_seen(taken)
    assert shell.sight(("JobSet", "ns", "set"), 10**9).unheard == 0
    shell.job_lost(taken)
    assert shell.sight(("JobSet", "ns", "set"), 10**9).unheard == 0


@pytest.mark.parametrize("label", ["jobset_uid", "owner_uid"])
@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("gone", [(), ("Workload",), ("Workload", "Job")])
def test_a_gang_whose_pods_say_that_they_are_of_another_job_keeps_nothing_for_it(
    label: str, gone: tuple[str, ...], adopted: bool
) -> None:
    """By labels of its template: of a plain Job it may name any JobSet, and with a selector of its own any Job."""
    evicted = seen(replace(HOLDS, evicted="Preempted", evicted_at=1))
    stopped = replace(RUNS, suspended=True, suspended_condition=True, terminating=int(adopted))
    other = replace(RUNS, name="y", uid="j2")
    its = seen(replace(HOLDS, name="v", uid="w2", job_uid="j2"))
    shell = Shell(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)
    for job_of in (stopped, other):
        shell.job_seen(job_of)
    for workload in (evicted, its):
        shell.workload_seen(workload)
    held_by = "j1" if adopted else "j2"
    shell.pod_seen(pod("y-0", workload_uid="w2", held_by=held_by, **{"owner_uid": "j2", label: "j1"}))
    if "Workload" in gone:
        shell.workload_lost(its)
    if "Job" in gone:
        shell.job_lost(other)
    tally = shell.sight(KEY, 10**9).pods
    assert (tally.live, tally.strangers) == (0, int(adopted))
    assert next_step(shell.sight(KEY, 10**9), Settings(), 10**9).step == RestoreJob()
    shell.pod_seen(pod("x-0"))
    shell.workload_lost(evicted)
    assert shell.sight(KEY, 10**9).pods.live == 1, "what it has made itself is its own, without its Workload too"


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
@pytest.mark.parametrize(
    ("suspended_ms", "said", "deleting", "counts"),
    [
        (1000, {"evicted": "Preempted", "evicted_at": 1000}, False, False),
        (1000, {}, True, False),
        # Before it starts they are waited for, for a while.
        (1000, {}, False, True),
        # It ran when it got its room: a gang that was imported.
        (2000, {"evicted": "Preempted", "evicted_at": 1000}, False, True),
        (0, {"evicted": "Preempted", "evicted_at": 1000}, False, True),
    ],
)
def test_a_pod_that_somebody_gave_a_job_which_never_started_keeps_nothing_for_it(
    kind: str, suspended_ms: int, said: dict[str, Any], deleting: bool, counts: bool
) -> None:
    """It owns it, its controller has deleted it, and it takes a year to end."""
    held = replace(RUNS, kind=kind, started=False, suspended=True, suspended_condition=True, terminating=1)
    child = replace(held, kind="Job", name="child", uid="c1", owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "j1"))
    shell = Shell(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)
    shell.job_seen(replace(held, deleting=deleting, suspended_ms=suspended_ms))
    if kind == "JobSet":
        shell.job_seen(child)
    shell.workload_seen(seen(replace(HOLDS, reserved_at=1000, **said)))
    owner = "c1" if kind == "JobSet" else "j1"
    shell.pod_seen(pod("p", workload_uid="", owner_uid=owner, held_by=owner, terminating=True))
    sight = shell.sight((kind, "ns", "train"), 10**9)
    assert (sight.pods.live, sight.pods.strangers) == ((1, 0) if counts else (0, 1))
    if "evicted" in said and kind == "Job":
        assert next_step(sight, Settings(), 10**9).step == (None if counts else ReleaseWorkload())


def anti_affinity(label: str, values: list[str]) -> dict[str, Any]:
    asked = {"matchExpressions": [{"key": label, "operator": "In", "values": values}]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": asked}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


async def test_a_selector_that_names_a_value_twice_ends_nothing(world: World) -> None:
    await a_town(world, 16)
    made = job("train", "main", pods=1)
    made["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    made["spec"]["template"]["spec"]["affinity"] = anti_affinity("app", ["x", "x"])
    async with running(world):
        await world.put(made)
        assert await until(lambda: its_workload(world))
        await world.client.delete(f"{JOBS}/train", propagation="Background")

        async def gone() -> bool:
            return await its_workload(world) is None

        assert await until(gone)
        for i in range(3):
            pod = pod_of_another(f"web-{i}", "ReplicaSet", "nobody")
            pod["spec"]["affinity"] = anti_affinity(f"app-{i}", ["x", "x"])
            await world.put(pod)
        await asyncio.sleep(0.2)
        for i in range(3):
            await world.client.merge_patch(f"{PODS}/web-{i}/status", {"status": {"phase": "Succeeded"}})
        await world.put(job("next", "main", pods=1))
        assert await until(reads(world, holds))
