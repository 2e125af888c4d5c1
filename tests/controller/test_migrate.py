"""From Kueue to Muster: what becomes of its quota, field by field, and of a job, by what Kueue has decided of it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from admission.api.crd import crd
from admission.api.kinds import KINDS, validate_object
from admission.controller.migrate import from_cluster, quota
from admission.jobs.kinds import at
from admission.names import JOBSET_GROUP, KUEUE_GROUP, Names
from admission.sandbox.store import Request
from tests.controller.lab import ADMITTED_, GPU, RESERVED, STARTED, T0, World, condition, job, workload

NAMES = Names()
KUEUE = Names(KUEUE_GROUP)
SPEC: dict[str, Any] = {
    "namespaceSelector": {},
    "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]}
    ],
}
NEVER = {"reclaimWithinCohort": "Never"}


def theirs(kind: str, spec: dict[str, Any], version: str = "v1beta2", **meta: Any) -> dict[str, Any]:
    return {"apiVersion": f"{KUEUE_GROUP}/{version}", "kind": kind, "metadata": {"name": "x", **meta}, "spec": spec}


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a queue as it is": (
        theirs("ClusterQueue", {**SPEC, "cohortName": "c", "preemption": {"reclaimWithinCohort": "Any"}}),
        {**SPEC, "cohortName": "c", "preemption": {"reclaimWithinCohort": "Any"}},
    ),
    "what is not said means Never": (theirs("ClusterQueue", SPEC), {**SPEC, "preemption": NEVER}),
    "an older queue": (
        theirs("ClusterQueue", {**SPEC, "cohort": "c", "admissionChecks": ["ok"]}, "v1beta1"),
        {
            **SPEC,
            "cohortName": "c",
            "preemption": NEVER,
            "admissionChecksStrategy": {"admissionChecks": [{"name": "ok"}]},
        },
    ),
    "an older queue's word for no other flavor": (
        theirs("ClusterQueue", {**SPEC, "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}}),
        {
            **SPEC,
            "preemption": NEVER,
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"},
        },
    ),
    "and for the next one": (
        theirs("ClusterQueue", {**SPEC, "flavorFungibility": {"whenCanPreempt": "TryNextFlavor"}}),
        {**SPEC, "preemption": NEVER, "flavorFungibility": {"whenCanPreempt": "TryNextFlavor"}},
    ),
    "a flavor": (theirs("ResourceFlavor", {"nodeLabels": {"gpu": "h100"}}), {"nodeLabels": {"gpu": "h100"}}),
    "a LocalQueue": (theirs("LocalQueue", {"clusterQueue": "x"}, namespace="team"), {"clusterQueue": "x"}),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_object_is_translated(name):
    given, spec = ROWS[name]
    given["metadata"] |= {
        "resourceVersion": "7",
        "finalizers": [f"{KUEUE_GROUP}/resource-in-use"],
        "labels": {"team": "a", f"{KUEUE_GROUP}/managed": "true"},
    }
    (out,) = quota([given])
    assert (out["apiVersion"], out["kind"], out["spec"]) == (NAMES.api_version, given["kind"], spec)
    assert out["metadata"].get("labels") == {"team": "a"}
    assert not {"resourceVersion", "finalizers"} & set(out["metadata"])
    assert validate_object(out, NAMES, None) == []
    assert quota([out]) == [out], "what is Muster's already is left alone"


def test_what_muster_has_no_kind_for_is_left_alone():
    given = theirs("MultiKueueConfig", {"clusters": ["far"]})
    assert quota([given]) == [given]


# ---------------------------------------------------------------- jobs

EVICTED_ = condition("Evicted", True, "Preempted", "for another")
FINISHED_ = condition("Finished", True, "WorkloadSliceReplaced", "by a larger one")
Json = dict[str, Any]


def of_kueue(made: Json, **fields: Any) -> Json:
    """A job with Kueue's queue label, as its owner wrote it."""
    made["metadata"]["labels"] = {KUEUE.queue_label: "main"}
    made["metadata"]["annotations"] = fields.pop("notes", {})
    (place,) = [made["spec"]["template"]] if "template" in made["spec"] else templates_of(made)
    place["metadata"] = {"annotations": fields.pop("asks", {})}
    if gates := fields.pop("gates", ()):
        place["spec"]["schedulingGates"] = [{"name": f"{KUEUE_GROUP}/{gate}"} for gate in gates]
    made["spec"] |= fields
    return made


def templates_of(jobset: Json) -> list[Json]:
    return [entry["template"]["spec"]["template"] for entry in jobset["spec"]["replicatedJobs"]]


def waits(**fields: Any) -> Json:
    return of_kueue(job("train", ""), **fields)


def runs(*, status: Json | None = None, **fields: Any) -> Json:
    return of_kueue(job("train", "", status=status or STARTED), **fields)


def a_set(**fields: Any) -> Json:
    """A JobSet that waits, whose one replicated job has two Jobs of two pods."""
    spec = job("x", "")["spec"]
    spec.pop("suspend")
    made = {
        "apiVersion": f"{JOBSET_GROUP}/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "main", "replicas": 2, "template": {"spec": spec}}]},
    }
    return of_kueue(made, **fields)


def decided(
    *conditions: Json,
    pods: int = 2,
    pod_set: str = "main",
    notes: Json | None = None,
    active: bool = True,
    name: str = "w",
) -> Json:
    """A Workload as Kueue has it."""
    out = theirs("Workload", {"queueName": "main", "priority": 7, "active": active}, namespace="ml")
    out["metadata"] |= {"name": name, "annotations": notes or {}}
    out["status"] = {"conditions": list(conditions)}
    if conditions:
        part = {"name": pod_set, "count": pods, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: str(8 * pods)}}
        out["status"]["admission"] = {"clusterQueue": "team-a", "podSetAssignments": [part]}
    return out


def admitted(**fields: Any) -> Json:
    return decided(RESERVED, ADMITTED_, **fields)


@dataclass(frozen=True)
class Row:
    job: Json
    workloads: tuple[Json, ...]
    did: str
    says: str
    """Part of the message."""
    carried: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """What is at these paths of the job afterwards."""
    workload: dict[tuple[str, ...], Any] | None = None
    """The same of the Workload that is made; None: none is."""
    child: tuple[str, ...] = ()
    """Gates of a Job of it."""
    pod_set: str = "main"


LABEL = ("metadata", "labels", NAMES.queue_label)
PAUSE = ("metadata", "labels", NAMES.pause_label)
NOTES = ("metadata", "annotations")
ASKS = ("spec", "template", "metadata", "annotations")
IN_SET = ("spec", "replicatedJobs", "0", "template", "spec", "template")
GATES_ = ("spec", "template", "spec", "schedulingGates")
COUNT = ("status", "admission", "podSetAssignments", "0", "count")
RACK = {KUEUE.required_topology_annotation: "rack"}
SLICES = {
    KUEUE.preferred_topology_annotation: "block",
    KUEUE.slice_required_topology_annotation: "rack",
    KUEUE.slice_size_annotation: "2",
    KUEUE.group_name_annotation: "together",
}
BOOSTED = {KUEUE.priority_boost_annotation: "5", KUEUE.allowed_flavors_annotation: "h100"}
DONE_ONE = {**STARTED, "active": 1, "ready": 1, "succeeded": 1, "completedIndexes": "0"}

JOBS: dict[str, Row] = {
    "it waits": Row(waits(), (decided(),), "changed", "waits with Muster", {LABEL: "main", PAUSE: None}),
    "it waits, and Kueue has not seen it": Row(waits(), (), "changed", "waits with Muster", {LABEL: "main"}),
    "it runs": Row(
        runs(), (admitted(),), "changed", "goes on running", {LABEL: "main"}, {COUNT: 2, ("spec", "priority"): 7}
    ),
    # An elastic job: a younger Workload asks for more.
    "it runs by the older of two": Row(
        runs(),
        (admitted(name="old"), decided(name="young", pods=4)),
        "changed",
        "goes on running",
        {LABEL: "main"},
        {COUNT: 2},
    ),
    "it runs by the younger of two": Row(
        runs(),
        (decided(RESERVED, ADMITTED_, FINISHED_, pods=1, name="old"), admitted(name="young")),
        "changed",
        "goes on running",
        {LABEL: "main"},
        {COUNT: 2},
    ),
    "it asks for more than it has": Row(
        runs(parallelism=3, completions=3),
        (admitted(name="old"), decided(name="young", pods=3)),
        "refused",
        "asks for 3 pods in pod set main now, and Kueue admitted 2",
    ),
    "it asks for less than it has": Row(
        runs(parallelism=1, completions=1), (admitted(),), "refused", "asks for 1 pods in pod set main now"
    ),
    "some of it is done": Row(
        runs(status=DONE_ONE),
        (admitted(),),
        "changed",
        "goes on running",
        {LABEL: "main"},
        {COUNT: 2, ("spec", "podSets", "0", "count"): 2},
    ),
    "some of it was done when it was admitted": Row(
        runs(status=DONE_ONE), (admitted(pods=1),), "changed", "goes on running", {LABEL: "main"}, {COUNT: 1}
    ),
    "it has other pod sets": Row(
        runs(),
        (admitted(pod_set="driver"),),
        "refused",
        "its pod sets are ['main'], and Kueue admitted ['driver']",
        pod_set="driver",
    ),
    "it runs without admission": Row(
        runs(), (decided(),), "refused", "Kueue has not admitted it: Muster would stop it"
    ),
    "it runs, and Kueue has not seen it": Row(runs(), (), "refused", "suspend it, or take its label"),
    "its only Workload has finished": Row(
        runs(), (decided(RESERVED, ADMITTED_, FINISHED_),), "refused", "Kueue has not admitted it"
    ),
    "it is being evicted": Row(
        runs(), (decided(RESERVED, ADMITTED_, EVICTED_),), "refused", "Kueue is evicting it: wait"
    ),
    "it is about to be stopped": Row(runs(), (admitted(active=False),), "refused", "Kueue is to stop it: wait"),
    "it was stopped": Row(
        waits(), (decided(active=False),), "changed", "stays stopped", {LABEL: "main", PAUSE: "true"}
    ),
    "it is gated": Row(
        waits(notes={KUEUE.gated_by_annotation: "acme.dev/budget"}),
        (decided(),),
        "changed",
        "waits with Muster",
        {LABEL: "main", (*NOTES, NAMES.gated_by_annotation): "acme.dev/budget"},
    ),
    "fewer pods will do": Row(
        waits(notes={KUEUE.min_parallelism_annotation: "1"}),
        (decided(),),
        "changed",
        "waits with Muster",
        {(*NOTES, NAMES.min_parallelism_annotation): "1"},
    ),
    "fewer pods will do, and it runs": Row(
        runs(notes={KUEUE.min_parallelism_annotation: "1"}),
        (admitted(),),
        "changed",
        "goes on running",
        {(*NOTES, NAMES.min_parallelism_annotation): "1"},
        {("spec", "podSets", "0", "minCount"): 1},
    ),
    "fewer pods will do, with fewer completions": Row(
        waits(
            notes={
                KUEUE.min_parallelism_annotation: "1",
                f"{KUEUE_GROUP}/job-completions-equal-parallelism": "true",
            }
        ),
        (decided(),),
        "changed",
        "job-min-parallelism is not carried over",
        {LABEL: "main", (*NOTES, NAMES.min_parallelism_annotation): None},
    ),
    "it asks for a topology": Row(
        waits(asks=RACK),
        (decided(),),
        "changed",
        "waits with Muster",
        {
            LABEL: "main",
            (*ASKS, NAMES.required_topology_annotation): "rack",
            (*ASKS, KUEUE.required_topology_annotation): "rack",
        },
    ),
    "it asks for a topology, is gated and was stopped": Row(
        waits(asks=RACK, notes={KUEUE.gated_by_annotation: "acme.dev/budget", "mine": "kept"}),
        (decided(active=False),),
        "changed",
        "stays stopped",
        {
            LABEL: "main",
            PAUSE: "true",
            ("metadata", "labels", KUEUE.queue_label): "main",
            (*NOTES, NAMES.gated_by_annotation): "acme.dev/budget",
            (*NOTES, "mine"): "kept",
            (*ASKS, NAMES.required_topology_annotation): "rack",
        },
    ),
    "a JobSet asks for slices of a topology": Row(
        a_set(asks=SLICES),
        (decided(),),
        "changed",
        "waits with Muster",
        {
            LABEL: "main",
            (*IN_SET, "metadata", "annotations", NAMES.preferred_topology_annotation): "block",
            (*IN_SET, "metadata", "annotations", NAMES.slice_required_topology_annotation): "rack",
            (*IN_SET, "metadata", "annotations", NAMES.slice_size_annotation): "2",
            (*IN_SET, "metadata", "annotations", NAMES.group_name_annotation): "together",
            (*IN_SET, "spec", "containers", "0", "name"): "main",
        },
    ),
    "its template may not be changed": Row(
        {**waits(asks=RACK), "status": {"startTime": STARTED["startTime"], "active": 1}},
        (decided(),),
        "refused",
        "its pod template, which says where its pods may go, cannot be changed",
    ),
    "it runs, and asks for a topology": Row(
        runs(asks=RACK),
        (admitted(),),
        "changed",
        "the topology that its pod template asks for is not carried over",
        {LABEL: "main", (*ASKS, NAMES.required_topology_annotation): None},
        {("spec", "podSets", "0", "topologyRequest"): None},
    ),
    "its Workload has a boost, and it runs": Row(
        runs(),
        (admitted(notes=BOOSTED),),
        "changed",
        "goes on running",
        {LABEL: "main"},
        {
            (*NOTES, NAMES.priority_boost_annotation): "5",
            (*NOTES, NAMES.allowed_flavors_annotation): "h100",
        },
    ),
    "its Workload has a boost, and it waits": Row(
        waits(),
        (decided(notes=BOOSTED),),
        "changed",
        f"{KUEUE.priority_boost_annotation} of its Workload is not carried over; {KUEUE.allowed_flavors_annotation} of",
        {LABEL: "main"},
    ),
    "Kueue placed it": Row(
        runs(asks=RACK, gates=["topology"]),
        (admitted(),),
        "refused",
        f"Kueue's gate {KUEUE_GROUP}/topology is in its pod template, and nobody would take it off new pods: let it "
        "finish, or stop it with Kueue first (kueuectl stop workload w)",
    ),
    "it waits with the gate of a place": Row(
        waits(gates=["topology"]), (decided(),), "refused", "is still in its pod template"
    ),
    "a Job of a JobSet kept that gate": Row(
        a_set(), (decided(),), "refused", "its Job train-main-0 still has Kueue's gate", child=("topology",)
    ),
    "an elastic job runs": Row(
        runs(gates=["elastic-job"]), (admitted(),), "refused", f"Kueue's gate {KUEUE_GROUP}/elastic-job is in its pod"
    ),
    "an elastic job waits": Row(
        waits(gates=["elastic-job"]), (decided(),), "changed", "waits with Muster", {LABEL: "main", GATES_: None}
    ),
}


@pytest.fixture
async def kueue(world: World) -> World:
    kind = world.sandbox.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
    assert kind is not None
    for one in KINDS:
        world.sandbox.store.do(Request("create", kind, body=crd(one, KUEUE), manager="test"), T0)
    return world


async def put(world: World, row: Row) -> Json:
    """The job of a row, with its Workloads; the answer is the job as stored."""
    made = await world.put(deepcopy(row.job))
    owner = {key: made[key] for key in ("apiVersion", "kind")} | {
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    for later, one in enumerate(row.workloads):
        left = deepcopy(one)
        left["spec"]["podSets"] = [{"name": row.pod_set, "count": 2, "template": job("x", "")["spec"]["template"]}]
        left["metadata"]["ownerReferences"] = [owner]
        world.sandbox.clock = partial(int, T0 + 1000 * later)
        await world.put(left)
    if row.child:
        child = of_kueue(job("train-main-0", ""), gates=row.child)
        child["metadata"]["ownerReferences"] = [owner]
        await world.put(child)
    return made


@pytest.mark.parametrize("name", JOBS)
async def test_a_job_is_carried_over_as_kueue_left_it(kueue, name):
    row = JOBS[name]
    made = await put(kueue, row)
    path = f"/apis/{made['apiVersion']}/namespaces/ml/{made['kind'].lower()}s/train"
    before = await kueue.client.get(path)
    for apply in (False, True):
        (said,) = (await from_cluster(kueue.ask(), apply=apply)).rows
        assert (said.subject, said.did.value) == (f"{made['kind'].lower()}/train", row.did), said
        assert row.says in said.message
        if not apply or row.did == "refused":
            assert await kueue.client.get(path) == before, "nothing is written"
            assert await kueue.ask().read(kueue.ask().workloads) == []
    if row.did == "refused":
        return
    after = await kueue.client.get(path)
    assert {place: at(after, place) for place in row.carried} == row.carried
    workloads = await kueue.ask().read(kueue.ask().workloads)
    assert len(workloads) == (row.workload is not None)
    for one in workloads:
        assert {place: at(one, place) for place in row.workload} == row.workload
    (again,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert again.did.value == "unchanged", again
    assert await kueue.client.get(path) == after


async def test_an_import_that_broke_off_is_taken_up_again(kueue):
    await put(kueue, JOBS["it runs"])
    await from_cluster(kueue.ask(), apply=True)
    (whole,) = await kueue.ask().read(kueue.ask().workloads)
    path = f"{kueue.ask().workloads.path('ml', whole['metadata']['name'])}/status"
    await kueue.client.merge_patch(path, {"status": {"admission": None, "conditions": None}})
    off = {"metadata": {"labels": {NAMES.queue_label: None}}}
    await kueue.client.merge_patch(TRAIN, off)
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert said.did.value == "changed"
    (again,) = await kueue.ask().read(kueue.ask().workloads)
    assert again["status"] == whole["status"]
    assert at(await kueue.client.get(TRAIN), LABEL) == "main"


TRAIN = "/apis/batch/v1/namespaces/ml/jobs/train"
LATER: dict[str, tuple[str, Json]] = {
    "its owner let it go on": ("it was stopped", {"metadata": {"labels": {NAMES.pause_label: None}}}),
    "its owner took the gate away": ("it is gated", {"metadata": {"annotations": {NAMES.gated_by_annotation: None}}}),
    "Muster started it": ("it waits", {"spec": {"suspend": False}}),
    "its owner asks for no topology": (
        "it asks for a topology",
        {"spec": {"template": {"metadata": {"annotations": {NAMES.required_topology_annotation: None}}}}},
    ),
}


@pytest.mark.parametrize("name", LATER)
async def test_what_became_of_a_job_with_muster_is_left_as_it_is(kueue, name):
    given, then = LATER[name]
    made = await put(kueue, JOBS[given])
    await from_cluster(kueue.ask(), apply=True)
    await kueue.put(workload(made, {}))
    await kueue.client.merge_patch(TRAIN, then)
    after = await kueue.client.get(TRAIN)
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert said.did.value == "unchanged", said
    assert await kueue.client.get(TRAIN) == after


async def test_a_job_of_something_that_muster_does_not_manage_is_left_alone(kueue):
    owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "ray", "uid": "u-ray", "controller": True}
    child = runs()
    child["metadata"]["ownerReferences"] = [owner]
    await kueue.put(child)
    of_ray = admitted()
    of_ray["metadata"]["ownerReferences"] = [owner]
    of_ray["spec"]["podSets"] = [{"name": "main", "count": 2, "template": child["spec"]["template"]}]
    await kueue.put(of_ray)
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert (said.subject, said.did.value) == ("workload/w", "skipped")
    assert "RayJob ray" in said.message
    assert at(await kueue.client.get(TRAIN), LABEL) is None
