"""From Kueue to Muster: what becomes of its quota, field by field, and of a job, by what Kueue has decided of it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from admission.api.crd import crd
from admission.api.kinds import KINDS, validate_object
from admission.controller import change
from admission.controller.ask import Ask
from admission.controller.migrate import from_cluster, from_files, quota
from admission.jobs.kinds import at
from admission.jobs.values import rfc3339
from admission.kube.client import Kind
from admission.names import JOBSET_GROUP, KUEUE_GROUP, Names
from admission.sandbox.store import Request
from tests.controller.lab import (
    ADMITTED_,
    GPU,
    RESERVED,
    STARTED,
    T0,
    World,
    admission,
    cluster_queue,
    condition,
    job,
    own,
    workload,
)

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
    "an older check": (
        theirs("AdmissionCheck", {"controllerName": "example.com/budget", "retryDelayMinutes": 15}, "v1beta1"),
        {"controllerName": "example.com/budget"},
    ),
    "a queue that is not stopped": (
        theirs("ClusterQueue", {**SPEC, "stopPolicy": "None"}),
        {**SPEC, "preemption": NEVER},
    ),
    "a queue that is stopped": (
        theirs("LocalQueue", {"clusterQueue": "x", "stopPolicy": "Hold"}, namespace="team"),
        {"clusterQueue": "x", "stopPolicy": "Hold"},
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
        "labels": {"team": "a", f"{KUEUE_GROUP}/managed": "true", "app.kubernetes.io/instance": "quota"},
        "annotations": {"argocd.argoproj.io/tracking-id": f"quota:{KUEUE_GROUP}/{given['kind']}:/x"},
    }
    (out,) = quota([given])
    assert (out["apiVersion"], out["kind"], out["spec"]) == (NAMES.api_version, given["kind"], spec)
    assert out["metadata"].get("labels") == {"team": "a"}, "an application of Argo CD's would prune what is not its own"
    assert not {"resourceVersion", "finalizers", "annotations"} & set(out["metadata"])
    assert validate_object(out, NAMES, None) == []
    assert quota([out]) == [out], "what is Muster's already is left alone"


def test_what_muster_has_no_kind_for_is_left_alone():
    given = theirs("MultiKueueConfig", {"clusters": ["far"]})
    assert quota([given]) == [given]


# ---------------------------------------------------------------- jobs

EVICTED_ = condition("Evicted", True, "Preempted", "for another")
FINISHED_ = condition("Finished", True, "WorkloadSliceReplaced", "by a larger one")
Json = dict[str, Any]


def merged(held: Any, more: Any) -> Any:
    if not isinstance(held, dict) or not isinstance(more, dict):
        return more
    return held | {key: merged(held.get(key), value) for key, value in more.items()}


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


def placed_on(node: str) -> Json:
    out = admitted()
    (part,) = out["status"]["admission"]["podSetAssignments"]
    slices = [{"domainCount": 1, "valuesPerLevel": [{"universal": node}], "podCounts": {"universal": part["count"]}}]
    part["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": slices}
    return out


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
CLASS = ("metadata", "labels", NAMES.priority_class_label)
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
IN_WEST: Json = {"status": {"clusterName": "west"}}
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
    "it was evicted before, and has a longest time": Row(
        merged(runs(), {"metadata": {"labels": {KUEUE.max_exec_time_label: "60"}}}),
        (merged(admitted(), {"status": {"accumulatedPastExecutionTimeSeconds": 40}}),),
        "changed",
        "goes on running",
        {LABEL: "main"},
        {("spec", "maximumExecutionTimeSeconds"): 60, ("status", "accumulatedPastExecutionTimeSeconds"): 40},
    ),
    "it has run before, has a longest time and waits": Row(
        merged(waits(), {"metadata": {"labels": {KUEUE.max_exec_time_label: "60"}}}),
        (merged(decided(), {"status": {"accumulatedPastExecutionTimeSeconds": 40}}),),
        "changed",
        "the 40 s that it has run do not count towards its longest time",
        {LABEL: "main"},
    ),
    "it runs in another cluster": Row(
        runs(managedBy=f"{KUEUE_GROUP}/multikueue"),
        (merged(admitted(), IN_WEST),),
        "refused",
        "MultiKueue runs it in cluster west, and Muster would see none of its pods here: let it finish, or stop it "
        "with Kueue first (kueuectl stop workload w)",
    ),
    "it runs in another cluster, and its Job here waits": Row(
        waits(), (merged(admitted(), IN_WEST),), "refused", "MultiKueue runs it in cluster west"
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
    "it has a class": Row(
        merged(waits(), {"metadata": {"labels": {KUEUE.priority_class_label: "prod"}}}),
        (decided(),),
        "changed",
        "waits with Muster",
        {LABEL: "main", CLASS: "prod"},
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
        (placed_on("n1"),),
        "changed",
        "the topology that its pod template asks for is not carried over",
        {LABEL: "main", (*ASKS, NAMES.required_topology_annotation): None},
        {
            ("spec", "podSets", "0", "topologyRequest"): None,
            ("status", "admission", "podSetAssignments", "0", "count"): 2,
            ("status", "admission", "podSetAssignments", "0", "topologyAssignment"): None,
        },
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
        a_set(),
        (decided(),),
        "refused",
        f"its Job train-main-0 still has Kueue's gate {KUEUE_GROUP}/topology in its pod template, and would keep it: "
        "delete that Job",
        child=("topology",),
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
    await world.put(own("LocalQueue", "main", {"clusterQueue": "team-a"}, namespace="ml"))
    await world.put(own("LocalQueue", "adrift", {"clusterQueue": "gone"}, namespace="ml"))
    await world.put(cluster_queue("team-a", 16))
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


async def says(kueue, row, after):
    """What the job and its Workload, if it is to have one, became."""
    assert {place: at(after, place) for place in row.carried} == row.carried
    workloads = await kueue.ask().read(kueue.ask().workloads)
    assert len(workloads) == (row.workload is not None)
    for one in workloads:
        assert {place: at(one, place) for place in row.workload} == row.workload


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
    await says(kueue, row, after)
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
    "its owner moved it to another queue": ("it waits", {"metadata": {"labels": {NAMES.queue_label: "other"}}}),
    "its owner took its class off": (
        "it has a class",
        {"metadata": {"labels": {NAMES.priority_class_label: None}}},
    ),
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
    await kueue.put(workload(made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1")}))
    await kueue.client.merge_patch(TRAIN, then)
    after = await kueue.client.get(TRAIN)
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert said.did.value == "unchanged", said
    assert await kueue.client.get(TRAIN) == after


LATER_RESERVED = condition("QuotaReserved", True, "QuotaReserved", "again", T0 + 600_000)
LATER_ADMITTED = condition("Admitted", True, "Admitted", "again", T0 + 600_000)
NOT_RESERVED = condition("QuotaReserved", False, "Pending", "it was stopped", T0 + 600_000)
PENDING = {"conditions": [condition("QuotaReserved", False, "WaitingForQuota", "it waits", T0 + 30_000)]}
IT_RUNS = {"spec": {"suspend": False}}
KEPT = ("metadata", "labels", "kept")
RAN = "accumulatedPastExecutionTimeSeconds"
FLAVOR = ("status", "admission", "podSetAssignments", "0", "flavors", GPU)


def elsewhere(*conditions: Json) -> Json:
    """Status of a Workload that Kueue gave another flavor."""
    status: Json = admitted()["status"] | {"conditions": list(conditions)}
    status["admission"]["podSetAssignments"][0]["flavors"] = {GPU: "h200"}
    return status


@dataclass(frozen=True)
class Back:
    """What was imported, went back to Kueue, and is imported again."""

    given: str
    ours: Json | None
    """Status of a Workload that Muster made meanwhile."""
    theirs: Json | None
    """What Kueue's Workload becomes."""
    job: Json
    """What becomes of the job."""
    did: str
    says: str
    carried: dict[tuple[str, ...], Any] = field(default_factory=dict)
    workload: dict[tuple[str, ...], Any] | None = None
    """Of Muster's Workload afterwards; None: there is none."""
    became: Json = field(default_factory=dict)
    """What Muster wrote meanwhile into the status of the Workload that was made."""


BACK: dict[str, Back] = {
    "Kueue started what waited": Back(
        "it waits",
        PENDING,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        IT_RUNS,
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", ("status", "conditions", "1", "status"): "True"},
    ),
    "it runs, and Kueue has only kept room for it": Back(
        "it waits", PENDING, {"status": elsewhere(RESERVED)}, IT_RUNS, "refused", "Kueue has not admitted it", {}, {}
    ),
    "Kueue goes on with what it had admitted before Muster queued it": Back(
        "it waits",
        {"conditions": [NOT_RESERVED]},
        {"status": elsewhere(RESERVED, ADMITTED_)},
        IT_RUNS,
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200"},
    ),
    "Kueue started it anew, elsewhere": Back(
        "it runs",
        None,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        {},
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", ("spec", "active"): True, KEPT: "it"},
    ),
    "Muster had sent it back": Back(
        "it waits",
        {"conditions": [condition("Requeued", True, "Preempted", "again")], "requeueState": {"count": 1}},
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        IT_RUNS,
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", KEPT: None, ("status", "requeueState"): None},
    ),
    "Muster had queued it again, and Kueue started it anew": Back(
        "it runs",
        None,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        {},
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", KEPT: None},
        {"conditions": [RESERVED, ADMITTED_, condition("Requeued", True, "Preempted", "again")]},
    ),
    "Muster had counted a try, and Kueue started it anew": Back(
        "it runs",
        None,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        {},
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", ("status", "requeueState"): None},
        {"requeueState": {"count": 1}},
    ),
    "it had run with Muster, and Kueue started it anew": Back(
        "it runs",
        None,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        {},
        "changed",
        "goes on running",
        {LABEL: "main"},
        {FLAVOR: "h200", ("status", RAN): None},
        {RAN: 60},
    ),
    "Kueue is evicting it": Back(
        "it runs",
        None,
        {"status": elsewhere(RESERVED, ADMITTED_, condition("Evicted", True, "Preempted", "now", T0 + 600_000))},
        {},
        "refused",
        "Kueue is evicting it",
        {},
        {FLAVOR: "h100"},
    ),
    "Kueue has stopped it": Back(
        "it runs",
        None,
        {"status": {"conditions": [NOT_RESERVED], "admission": None}},
        {"spec": {"suspend": True}},
        "changed",
        "waits with Muster",
        {LABEL: "main"},
    ),
    "it runs with another size": Back(
        "it runs", None, None, {"spec": {"parallelism": 1}}, "refused", "asks for 1 pods in pod set main now", {}, {}
    ),
    "Kueue let go on what was stopped": Back(
        "it was stopped",
        None,
        {"spec": {"active": True}, "status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        IT_RUNS,
        "changed",
        "goes on running",
        {LABEL: "main", PAUSE: None},
        {FLAVOR: "h200", ("spec", "active"): True},
    ),
    "Kueue lets what was stopped wait": Back(
        "it was stopped",
        None,
        {"spec": {"active": True}},
        {"metadata": {"labels": {NAMES.queue_label: None}}},
        "changed",
        f"the label {NAMES.pause_label} keeps it stopped until it is taken off",
        {PAUSE: "true"},
    ),
    "its owner moved it to another of Kueue's queues": Back(
        "it waits",
        PENDING,
        None,
        {"metadata": {"labels": {KUEUE.queue_label: "adrift"}}},
        "changed",
        "waits with Muster",
        {LABEL: "adrift"},
        {},
    ),
    "Muster had started it, and Kueue did after that": Back(
        "it waits",
        PENDING,
        {"status": elsewhere(LATER_RESERVED, LATER_ADMITTED)},
        IT_RUNS | {"metadata": {"annotations": {NAMES.inverse_annotation: '{"undo": [], "for": "u"}'}}},
        "changed",
        "goes on running",
        {LABEL: "main", (*NOTES, NAMES.inverse_annotation): None},
        {FLAVOR: "h200"},
    ),
}


@pytest.mark.parametrize("name", BACK)
async def test_what_went_back_to_kueue_is_carried_over_as_kueue_leaves_it(kueue, name):
    row = BACK[name]
    made = await put(kueue, JOBS[row.given])
    await from_cluster(kueue.ask(), apply=True)
    if row.ours is not None:
        await kueue.put(workload(made, row.ours))
    for one in await kueue.ask().read(kueue.ask().workloads):
        mark = {"metadata": {"labels": {"kept": "it"}}}
        at_ours = kueue.ask().workloads.path("ml", one["metadata"]["name"])
        await kueue.client.merge_patch(at_ours, mark)
        if row.became:
            await kueue.client.merge_patch(f"{at_ours}/status", {"status": row.became})
    path = f"/apis/{KUEUE.api_version}/namespaces/ml/workloads/w"
    for part in (row.theirs or {}).keys() & {"spec", "status"}:
        sub = "/status" if part == "status" else ""
        await kueue.client.merge_patch(path + sub, {part: row.theirs[part]})
    await kueue.client.merge_patch(TRAIN, row.job)
    before = await kueue.client.get(TRAIN), await kueue.ask().read(kueue.ask().workloads)
    for apply in (False, True):
        (said,) = (await from_cluster(kueue.ask(), apply=apply)).rows
        assert (said.did.value, row.says in said.message) == (row.did, True), said
        if not apply or row.did == "refused":
            now = await kueue.client.get(TRAIN), await kueue.ask().read(kueue.ask().workloads)
            assert now == before, "nothing is written"
    after = await kueue.client.get(TRAIN)
    await says(kueue, row, after)
    if row.did != "refused":
        (again,) = (await from_cluster(kueue.ask(), apply=True)).rows
        assert again.did.value == "unchanged", again


@pytest.mark.parametrize("name", ["it waits", "it asks for a topology", "it runs"])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_job_that_is_deleted_meanwhile_keeps_no_other_back(kueue, name, dry_run):
    await put(kueue, JOBS[name])
    await kueue.put(merged(waits(), {"metadata": {"name": "other"}}))
    store = kueue.sandbox.store
    at_once = {"propagationPolicy": "Background"}
    left = [Request("delete", store.kind("batch", "jobs"), "ml", "train", at_once)]

    def deleted(request: web.Request) -> None:
        """Just before something is written to it."""
        if (request.method, request.path) == ("PATCH", TRAIN) and left and ("dryRun" in request.query) is dry_run:
            store.do(left.pop(), T0)

    kueue.sandbox.faults.append(deleted)
    changes = await from_cluster(kueue.ask(), apply=True)
    assert not left
    rows = {row.subject: row for row in changes.rows}
    assert rows["job/other"].did.value == "changed"
    assert at(await kueue.client.get(TRAIN.replace("train", "other")), LABEL) == "main"
    if dry_run:
        assert "job/train" not in rows, "it is not there when all is written"
    else:
        assert rows["job/train"].did.value == "skipped"
        assert rows["job/train"].message.startswith("it was deleted meanwhile: ")


@pytest.mark.parametrize("name", ["it waits", "it asks for a topology"])
async def test_a_job_that_is_made_anew_meanwhile_is_another(kueue, name):
    made = await put(kueue, JOBS[name])
    store = kueue.sandbox.store
    kind = store.kind("batch", "jobs")
    left = [
        Request("delete", kind, "ml", "train", {"propagationPolicy": "Background"}),
        Request("create", kind, "ml", body=waits(notes={"of": "another"})),
    ]

    def anew(request: web.Request) -> None:
        """Just before something is written to it."""
        if (request.method, request.path) == ("PATCH", TRAIN) and "dryRun" not in request.query:
            while left:
                store.do(left.pop(0), T0)

    kueue.sandbox.faults.append(anew)
    (row,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert not left
    assert row.did.value == "refused", row
    now = await kueue.client.get(TRAIN)
    assert now["metadata"]["uid"] != made["metadata"]["uid"]
    assert at(now, LABEL) is None


async def test_an_import_that_nobody_answers_any_more_says_what_it_has_done(kueue):
    await put(kueue, JOBS["it waits"])
    await kueue.put(theirs("ResourceFlavor", {"nodeLabels": {"gpu": "h100"}}))
    left = [1]

    def away(request: web.Request) -> web.Response | None:
        if (request.method, request.path) == ("PATCH", TRAIN) and "dryRun" not in request.query:
            left.clear()
        return None if left else web.Response(status=503)

    kueue.sandbox.faults.append(away)
    rows = {row.subject: row for row in (await from_cluster(kueue.ask(), apply=True)).rows}
    assert rows["resourceflavor/x"].did.value == "created"
    assert rows["job/train"].did.value == "refused"
    assert rows["job/train"].message.startswith("nobody knows whether it was written: ")
    assert [row.did.value for subject, row in rows.items() if subject.startswith("cronjob")] == ["refused"]


async def test_files_of_a_cluster_with_kueues_objects_may_hold_more_than_quota(kueue):
    ask = Ask(kueue.client, KUEUE, T0)
    given = [theirs("ResourceFlavor", {}), theirs("ProvisioningRequestConfig", {"provisioningClassName": "atomic"})]
    rows = (await change.put(ask, given, "", dry_run=False)).rows
    assert [row.did.value for row in rows] == ["skipped", "created"]


@pytest.mark.parametrize("comes_back", [False, True])
async def test_an_import_whose_quota_could_not_be_written_takes_no_job_over(kueue, comes_back):
    await put(kueue, JOBS["it waits"])
    for name in ("x", "y"):
        await kueue.put(theirs("ResourceFlavor", {"nodeLabels": {"gpu": "h100"}}, name=name))
    away: list[str] = []

    def faults(request: web.Request) -> web.Response | None:
        wrote = request.method == "PATCH" and "dryRun" not in request.query
        if wrote and request.path.endswith("/resourceflavors/y"):
            away.append(request.path)
            return web.Response(status=503)
        return web.Response(status=503) if away and not comes_back else None

    kueue.sandbox.faults.append(faults)
    rows = {row.subject: row.did.value for row in (await from_cluster(kueue.ask(), apply=True)).rows}
    assert (rows["resourceflavor/x"], rows["resourceflavor/y"]) == ("created", "refused")
    assert (rows["job/*"], rows["cronjob/*"]) == ("refused", "refused")
    kueue.sandbox.faults.clear()
    assert at(await kueue.client.get(TRAIN), LABEL) is None


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


# ---------------------------------------------------------------- what is said, and what is refused

REQUIRED_APART = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"of": "others"}}}
        ]
    }
}
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
]
BEYOND: dict[str, tuple[Json, str]] = {
    "spread over domains": (
        {"spec": {"template": {"spec": {"topologySpreadConstraints": SPREAD}}}},
        "DoNotSchedule (topologyKey zone) cannot be honoured",
    ),
    "near others": ({"spec": {"template": {"spec": {"affinity": REQUIRED_APART}}}}, "podAffinity to other pods"),
    "a class that is not there": (
        {"metadata": {"labels": {KUEUE.priority_class_label: "prod"}}},
        "there is no WorkloadPriorityClass prod",
    ),
    "a queue that is not there": (
        {"metadata": {"labels": {KUEUE.queue_label: "other"}}},
        "there is no LocalQueue other in its namespace",
    ),
    "a queue that points nowhere": (
        {"metadata": {"labels": {KUEUE.queue_label: "adrift"}}},
        "there is no ClusterQueue gone, to which its LocalQueue adrift points",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize(
    ("of", "then"),
    [
        ("it waits", "waits with Muster; Muster cannot start it: "),
        ("it runs", "stopped later, it cannot start again: "),
    ],
)
async def test_what_muster_cannot_start_is_said(kueue, of, then, name):
    more, why = BEYOND[name]
    row = JOBS[of]
    await put(kueue, replace(row, job=merged(row.job, more)))
    for apply, did in ((False, "changed"), (True, "changed"), (True, "unchanged")):
        (said,) = (await from_cluster(kueue.ask(), apply=apply)).rows
        assert said.did.value == did, said
        assert why in said.message
        assert then in said.message or did == "unchanged"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"spec": {"managedBy": f"{KUEUE_GROUP}/multikueue"}}, "leave managedBy out"),
        ({"metadata": {"labels": {KUEUE.max_exec_time_label: "soon"}}}, "'soon' is no number of seconds above 0"),
    ],
)
@pytest.mark.parametrize(("of", "did"), [("it waits", "changed"), ("it runs", "refused")])
async def test_what_muster_does_not_queue_is_said_where_it_waits_and_refused_where_it_runs(kueue, more, why, of, did):
    await put(kueue, replace(JOBS[of], job=merged(JOBS[of].job, more)))
    (said,) = (await from_cluster(kueue.ask(), apply=False)).rows
    assert (said.did.value, why in said.message) == (did, True), said
    assert "Muster cannot start it: " in said.message or did == "refused"


CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def without(world: World, *, group: str, but: str = "") -> None:
    """No CRDs of a group, or none but those of another version."""
    for one in KINDS:
        made = crd(one, Names(group))
        await world.client.delete(f"{CRD_PATH}/{made['metadata']['name']}")
        if but:
            made["spec"]["versions"][0]["name"] = but
            await world.client.create(CRD_PATH, made)


@pytest.mark.parametrize(
    ("names", "group", "but", "says"),
    [
        (KUEUE, NAMES.group, "", "Muster's CRDs are not installed: that is step 1"),
        (NAMES, NAMES.group, "", "Muster's CRDs are not installed: that is step 1"),
        (KUEUE, "", "", f"objects are carried over into {NAMES.group} alone: leave out --api-group {KUEUE_GROUP}"),
        (NAMES, KUEUE_GROUP, "v1beta1", f"this cluster serves only {KUEUE_GROUP}/v1beta1: upgrade Kueue first"),
        (NAMES, KUEUE_GROUP, "", f"this cluster does not serve {KUEUE_GROUP}"),
    ],
)
async def test_nothing_is_carried_over_from_nowhere_or_to_nowhere(kueue, names, group, but, says):
    await kueue.client.create(f"/apis/{KUEUE.api_version}/clusterqueues", theirs("ClusterQueue", SPEC))
    if group:
        await without(kueue, group=group, but=but)
    for apply in (False, True):
        ask = Ask(kueue.client, names, T0)
        answers = [await from_cluster(ask, apply=apply)]
        if group != KUEUE_GROUP:
            answers.append(await from_files(ask, [theirs("ClusterQueue", SPEC)], "", apply=apply))
        for answer in answers:
            (said,) = answer.rows
            assert (said.did.value, says in said.message) == ("refused", True), said
    if group != KUEUE_GROUP:
        kept = await kueue.client.get(f"/apis/{KUEUE.api_version}/clusterqueues/x")
        assert [one["manager"] for one in kept["metadata"]["managedFields"]] != ["muster-cli"]


SERVICE = {"namespace": "batch", "name": "webhook-service"}


@pytest.mark.parametrize(
    ("client", "there"),
    [
        ({"service": {**SERVICE, "name": "kueue-webhook-service"}}, True),
        ({"service": {**SERVICE, "name": "batch-kueue-webhook-service"}}, True),
        ({"service": {**SERVICE, "path": "/validate-kueue-x-k8s-io-v1beta2-clusterqueue"}}, True),
        ({"service": {**SERVICE, "path": "/mutate-kueue-x-k8s-io-v1beta2-workload"}}, True),
        ({"url": "https://kueue.example/mutate-batch-v1-job"}, True),
        ({"url": "https://127.0.0.1:1/validate-kueue-x-k8s-io-v1beta2-clusterqueue"}, True),
        ({"service": {**SERVICE, "path": "/mutate-batch-v1-job"}}, False),
        ({"url": "https://policies.example/validate"}, False),
    ],
)
@pytest.mark.parametrize("family", ["Validating", "Mutating"])
async def test_kueue_is_known_by_its_webhooks(kueue, family, client, there):
    class Hooked(Ask):
        """The sandbox has no Services."""

        async def read(self, kind: Kind, namespace: str | None = None, **selectors: str) -> list[Json] | None:
            hooks = kind.kind == f"{family}WebhookConfiguration"
            return [hook(client, family)] if hooks else await super().read(kind, namespace, **selectors)

    await put(kueue, JOBS["it waits"])
    for apply, did in ((False, "skipped"), (True, "refused")):
        rows = (await from_cluster(Hooked(kueue.client, NAMES, T0), apply=apply)).rows
        told = [row for row in rows if row.subject == f"{family.lower()}webhookconfiguration/hook"]
        assert [row.did.value for row in told] == ([did] if there else [])
        assert len(rows) == (1 if there and apply else 1 + there), "nothing is tried while Kueue is there"


@pytest.mark.parametrize(
    ("group", "version", "there"),
    [
        (f"visibility.{KUEUE_GROUP}", "v1beta1", True),
        (f"visibility.{KUEUE_GROUP}", "v1beta2", True),
        (KUEUE_GROUP, "v1beta2", False),
        (NAMES.visibility_group, NAMES.version, False),
    ],
)
async def test_kueues_visibility_api_is_in_the_way_of_deleting_namespaces(kueue, group, version, there):
    name = f"{version}.{group}"
    one = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}}

    class Aggregated(Ask):
        """The sandbox has no aggregated APIs."""

        async def read(self, kind: Kind, namespace: str | None = None, **selectors: str) -> list[Json] | None:
            found = [one | {"spec": {"group": group, "version": version}}]
            return found if kind.kind == "APIService" else await super().read(kind, namespace, **selectors)

    await put(kueue, JOBS["it waits"])
    for apply, did in ((False, "skipped"), (True, "refused")):
        rows = (await from_cluster(Aggregated(kueue.client, NAMES, T0), apply=apply)).rows
        told = [row for row in rows if row.subject == f"apiservice/{name}"]
        assert [(row.did.value, "no namespace of the cluster can be deleted" in row.message) for row in told] == (
            [(did, True)] if there else []
        )
        assert len(rows) == (1 if there and apply else 1 + there)


def hook(client: Json, family: str = "Validating", group: str = "none.example") -> Json:
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["*"]}
    one = {"name": "v.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [rule]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{family}WebhookConfiguration",
        "metadata": {"name": "hook"},
        "webhooks": [{**one, "clientConfig": client}],
    }


def deployment(name: str, asked: int | None, there: int, **labels: str) -> Json:
    meta = {"name": name, "namespace": "ml", "labels": {"control-plane": "controller-manager", **labels}}
    spec = {} if asked is None else {"replicas": asked}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": spec,
        "status": {"replicas": there},
    }


def lease(renewed_ms: int, holder: str = "kueue-0", name: str = f"c1f6bfd2.{KUEUE_GROUP}") -> Json:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": rfc3339(renewed_ms).replace("Z", ".0Z")}
    meta = {"name": name, "namespace": "ml"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


OF_KUEUE = {"app.kubernetes.io/name": "kueue"}
DEPLOYED = "deployment/kueue-controller-manager"
LED = f"lease/c1f6bfd2.{KUEUE_GROUP}"
STANDING: dict[str, tuple[list[Json], list[Json], tuple[str, str] | None]] = {
    "it runs": (
        [deployment("kueue-controller-manager", 1, 1)],
        [lease(T0)],
        (DEPLOYED, "kubectl -n ml scale deployment kueue-controller-manager --replicas=0"),
    ),
    "by another name": (
        [deployment("q-controller-manager", 2, 0, **OF_KUEUE)],
        [],
        ("deployment/q-controller-manager", "(2"),
    ),
    "as many as are usual": ([deployment("kueue-controller-manager", None, 0)], [], (DEPLOYED, "Kueue runs (1")),
    "it ends": ([deployment("kueue-controller-manager", 0, 1)], [], (DEPLOYED, "Kueue ends (1 replicas): wait for it")),
    "it is not deployed, and leads": ([], [lease(T0)], (LED, "Kueue leads (kueue-0), or did a moment ago")),
    "it has just ended, and has not said so": (
        [deployment("kueue-controller-manager", 0, 0)],
        [lease(T0 - 20_000)],
        (LED, "wait until this has ended"),
    ),
    "it is stopped": ([deployment("kueue-controller-manager", 0, 0)], [lease(T0, holder="")], None),
    "it was stopped long ago": ([], [lease(T0 - 60_000)], None),
    "others of that label": ([deployment("jobset-controller-manager", 1, 1)], [], None),
    "the leader of others": ([], [lease(T0, name="b8b2488c.jobset.x-k8s.io")], None),
}


@pytest.mark.parametrize("name", STANDING)
async def test_nothing_is_written_while_kueue_runs(kueue, name):
    deployments, leases, wanted = STANDING[name]

    class Deploying(Ask):
        """The sandbox has no Deployments."""

        async def read(self, kind: Kind, namespace: str | None = None, **selectors: str) -> list[Json] | None:
            deployed = kind.kind == "Deployment"
            return deployments if deployed else await super().read(kind, namespace, **selectors)

    for one in leases:
        await kueue.put(one)
    await put(kueue, JOBS["it waits"])
    for apply, did in ((False, "skipped"), (True, "refused")):
        rows = (await from_cluster(Deploying(kueue.client, NAMES, T0), apply=apply)).rows
        told = [row for row in rows if row.subject.startswith(("deployment/", "lease/"))]
        assert [(row.subject, row.did.value, row.namespace) for row in told] == (
            [(wanted[0], did, "ml")] if wanted else []
        )
        assert all(wanted is not None and wanted[1] in row.message for row in told), told
        assert ("job/train" in {row.subject for row in rows}) is (not apply or wanted is None)


@pytest.mark.parametrize("denied", [{"deployments*"}, {"leases*"}, {"deployments*", "leases*"}, set()])
async def test_who_may_not_see_whether_kueue_runs_is_told_so(kueue, denied):
    kueue.denied |= denied
    await put(kueue, JOBS["it waits"])
    for apply in (False, True):
        changes = await from_cluster(kueue.ask(), apply=apply)
        told = [row for row in changes.rows if row.subject == DEPLOYED]
        which = " and ".join(sorted(one.rstrip("*") for one in denied))
        assert [row.did.value for row in told] == (["skipped"] if denied else [])
        assert all(f"you may not list {which} of all namespaces" in row.message for row in told), told
        assert len(changes.hidden) == len(denied)
        assert "job/train" in {row.subject for row in changes.rows}


async def test_a_webhook_that_nobody_answers_is_told_of_each_job(kueue):
    await put(kueue, JOBS["it waits"])
    await kueue.put(hook({"url": "http://127.0.0.1:1/validate-kueue-x-k8s-io-v1beta2-workload"}, group="batch"))
    still, said = (await from_cluster(kueue.ask(), apply=False)).rows
    assert (still.did.value, said.did.value) == ("skipped", "refused")
    assert said.message.startswith("a webhook that is asked first does not answer: ")


def its_node(labels: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}}


FLAVOR_ = theirs("ResourceFlavor", {"nodeLabels": {"gpu": "h100"}})
LOCAL = theirs("LocalQueue", {"clusterQueue": "team-a"}, namespace="ml")
TO_X = theirs("LocalQueue", {"clusterQueue": "x"}, namespace="ml")
BORROWING = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}
MOVING = {**SPEC, "concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}}}
FAR = theirs("AdmissionCheck", {"controllerName": f"{KUEUE_GROUP}/multikueue"}, name="far")
ASKING = {**SPEC, "admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}}
QUOTA: dict[str, tuple[list[Json], list[Json], list[tuple[str, str, str]]]] = {
    "a flavor without nodes": ([FLAVOR_], [], [("resourceflavor/x", "created", "no node has its labels now")]),
    "a flavor with nodes": ([FLAVOR_], [its_node({"gpu": "h100"})], [("resourceflavor/x", "created", "")]),
    "a flavor with nodes that come when pods wait for them": (
        [FLAVOR_],
        [its_node({"gpu": "h100", "karpenter.sh/nodepool": "gpus"})],
        [("resourceflavor/x", "created", "Karpenter makes its nodes when pods wait for them")],
    ),
    "a flavor of such nodes that says so": (
        [merged(FLAVOR_, {"spec": {"elastic": True}})],
        [its_node({"gpu": "h100", "karpenter.sh/nodepool": "gpus"})],
        [("resourceflavor/x", "created", "")],
    ),
    "a queue that asks what Kueue answers": (
        [theirs("ClusterQueue", ASKING), FAR],
        [],
        [
            ("admissioncheck/far", "skipped", "Muster sends no jobs to other clusters"),
            ("clusterqueue/x", "refused", "it asks the admission check far"),
        ],
    ),
    "the same, of an older version": (
        [theirs("ClusterQueue", {**SPEC, "admissionChecks": ["far"]}, "v1beta1"), FAR],
        [],
        [
            ("admissioncheck/far", "skipped", "Muster sends no jobs to other clusters"),
            ("clusterqueue/x", "refused", "it asks the admission check far"),
        ],
    ),
    "a check that only the cluster has": (
        [theirs("ClusterQueue", ASKING)],
        [FAR],
        [("clusterqueue/x", "refused", "it asks the admission check far")],
    ),
    "a check that somebody else answers": (
        [theirs("AdmissionCheck", {"controllerName": "example.com/budget"})],
        [],
        [("admissioncheck/x", "created", "until example.com/budget makes it Active, and answers, in muster.dev, too")],
    ),
    "what there is no kind for": (
        [theirs("MultiKueueConfig", {"clusters": ["far"]})],
        [],
        [("multikueueconfig/x", "skipped", "Muster sends no jobs to other clusters")],
    ),
    "the queue of jobs without a label": (
        [merged(LOCAL, {"metadata": {"name": "default"}}), LOCAL],
        [],
        [
            (
                "localqueue/default",
                "created",
                "it was the queue of jobs without a label: set localQueueDefaulting",
            ),
            ("localqueue/x", "created", ""),
        ],
    ),
    "a queue that points nowhere": (
        [TO_X],
        [],
        [("localqueue/x", "created", "there is no ClusterQueue x: its jobs wait until there is")],
    ),
    "the queue that it points to is there with it": (
        [theirs("ClusterQueue", SPEC), TO_X],
        [],
        [("clusterqueue/x", "created", ""), ("localqueue/x", "created", "")],
    ),
    "queues of one name": (
        [merged(TO_X, {"metadata": {"namespace": "other"}}), LOCAL],
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}],
        [
            ("localqueue/x", "created", ""),
            ("localqueue/x", "created", "there is no ClusterQueue x: its jobs wait until there is"),
        ],
    ),
    "a queue that evicts while it borrows": (
        [theirs("ClusterQueue", {**SPEC, "preemption": BORROWING})],
        [],
        [("clusterqueue/x", "created", "nothing acts on its borrowWithinCohort: who borrows evicts by shares")],
    ),
    "variants of jobs": (
        [theirs("ClusterQueue", MOVING)],
        [],
        [("clusterqueue/x", "created", "nothing acts on its concurrentAdmissionPolicy: each job waits for its")],
    ),
}


@pytest.mark.parametrize("name", QUOTA)
async def test_files_and_the_cluster_are_told_the_same_of(kueue, name):
    files, there, rows = QUOTA[name]
    for one in there:
        await kueue.put(one)
    said = (await from_files(kueue.ask(), files, "ml", apply=False)).rows
    for row, (subject, did, says) in zip(said, rows, strict=True):
        assert (row.subject, row.did.value) == (subject, did)
        assert says in row.message if says else not row.message
    if name.startswith(("a flavor", "the queue", "a check that somebody")):
        for one in files:
            await kueue.put(one)
        assert (await from_cluster(kueue.ask(), apply=False)).rows == said
        assert (await from_files(kueue.ask(), files, "ml", apply=True)).rows == said, "and it is done"


@pytest.mark.parametrize(
    ("policy", "did", "says"),
    [
        ("Hold", "unchanged", "it stays stopped, as it is in muster.dev (Hold), until `muster resume "),
        ("HoldAndDrain", "refused", "all that Kueue runs there would be stopped. First: `muster resume "),
    ],
)
@pytest.mark.parametrize(
    ("queue", "path", "named"),
    [
        (theirs("ClusterQueue", {**SPEC, "stopPolicy": "None"}), "clusterqueues/x", "x`"),
        (
            theirs("LocalQueue", {"clusterQueue": "team-a", "stopPolicy": "None"}, namespace="ml"),
            "namespaces/ml/localqueues/x",
            "localqueue/x -n ml`",
        ),
    ],
)
async def test_who_comes_again_finds_a_queue_stopped_as_it_was_left(kueue, queue, path, named, policy, did, says):
    """docs/migrate.md, Going back: Muster's queue is stopped, Kueue's is not."""
    await kueue.put(deepcopy(queue))
    await put(kueue, JOBS["it runs"])
    assert not (await from_cluster(kueue.ask(), apply=True)).refused
    path = f"/apis/{NAMES.api_version}/{path}"
    await kueue.client.merge_patch(path, {"spec": {"stopPolicy": policy}}, field_manager="kubectl-patch")
    said, job_ = (await from_cluster(kueue.ask(), apply=True)).rows
    assert (said.did.value, f"{says}{named}" in said.message) == (did, True), said
    assert (await kueue.client.get(path))["spec"]["stopPolicy"] == policy
    await kueue.client.merge_patch(path, {"spec": {"stopPolicy": "None"}}, field_manager="muster-cli")
    said, job_ = (await from_cluster(kueue.ask(), apply=True)).rows
    assert (said.did.value, said.message, job_.did.value) == ("unchanged", "", "unchanged")


async def test_a_queue_that_is_being_deleted_is_told_to_let_others_in_again(kueue):
    await kueue.put(FLAVOR_)
    await kueue.put(theirs("ClusterQueue", SPEC, finalizers=[KUEUE.finalizer]))

    async def said() -> str:
        rows = (await from_cluster(kueue.ask(), apply=False)).rows
        return next(row.message for row in rows if row.subject == "clusterqueue/x")

    assert not await said()
    await kueue.client.delete(f"/apis/{KUEUE.api_version}/clusterqueues/x")
    assert "stopPolicy: Hold" in await said()


@pytest.mark.parametrize("name", ["it runs", "it waits", "it waits, and Kueue has not seen it"])
@pytest.mark.parametrize("keeps", ["foregroundDeletion", "example.com/stays"])
async def test_a_job_that_is_being_deleted_is_left_alone_and_told(kueue, name, keeps):
    row = deepcopy(JOBS[name])
    row.job["metadata"]["finalizers"] = [keeps]
    for one in row.workloads:
        one["metadata"]["finalizers"] = [KUEUE.finalizer]
    await put(kueue, row)
    await kueue.client.delete(TRAIN)
    before = await kueue.client.get(TRAIN)
    for apply in (False, True):
        (said,) = (await from_cluster(kueue.ask(), apply=apply)).rows
        assert (said.subject, said.did.value, said.namespace) == ("job/train", "skipped", "ml")
        assert said.message.startswith("it is being deleted, and left alone: what still runs of it no queue is charged")
        awaits = keeps == "foregroundDeletion" and bool(row.workloads)
        assert (f"the finalizer {KUEUE.finalizer} is off its Workload w" in said.message) is awaits
    assert await kueue.client.get(TRAIN) == before
    assert not await kueue.ask().read(kueue.ask().workloads)


async def test_variants_of_a_job_are_its_own(kueue):
    """Kueue's concurrentAdmissionPolicy makes a Workload for each flavor, which the job's own Workload owns."""
    await put(kueue, JOBS["it runs"])
    (parent,) = await kueue.ask().read(Kind(KUEUE_GROUP, KUEUE.version, "workloads", "Workload", True))
    variant = deepcopy(parent)
    owner = {"apiVersion": KUEUE.api_version, "kind": "Workload", "name": "w", "uid": parent["metadata"]["uid"]}
    variant["metadata"] = {"name": "w-h100", "namespace": "ml", "ownerReferences": [owner | {"controller": True}]}
    await kueue.put(variant)
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert (said.subject, said.did.value) == ("job/train", "changed")


OWNED: dict[str, tuple[str, Json, str]] = {
    "it runs": ("RayJob", admitted(), "what it runs is not counted in any queue"),
    "it waits": ("RayJob", decided(), "once Kueue is gone, nobody starts it"),
    "a pod runs": ("Pod", admitted(), f"any queue; the finalizer {KUEUE_GROUP}/managed, if it has that, stay on it"),
    "a pod waits": ("Pod", decided(), f"starts it; Kueue's gate {KUEUE_GROUP}/admission and the finalizer"),
}


@pytest.mark.parametrize("name", OWNED)
async def test_what_muster_does_not_manage_is_told_what_becomes_of_it(kueue, name):
    kind, of_theirs, says = OWNED[name]
    of_theirs = deepcopy(of_theirs)
    of_theirs["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": kind, "name": "it", "uid": "u"}]
    of_theirs["spec"]["podSets"] = [{"name": "main", "count": 2, "template": job("x", "")["spec"]["template"]}]
    await kueue.put(of_theirs)
    (said,) = (await from_cluster(kueue.ask(), apply=False)).rows
    assert (said.subject, said.did.value) == ("workload/w", "skipped")
    assert f"it stands for {kind} it, which Muster does not manage: " in said.message
    assert says in said.message


async def test_a_cron_job_of_kueues_is_told_what_to_change(kueue):
    made = {"name": "cronjobs.batch"}
    names = {"plural": "cronjobs", "kind": "CronJob"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    version["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = True
    spec = {"group": "batch", "scope": "Namespaced", "names": names, "versions": [version]}
    await kueue.client.create(
        CRD_PATH,
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": made, "spec": spec},
    )
    for name, labels in (("kueues", [KUEUE]), ("both", [KUEUE, NAMES]), ("none", [])):
        template = {"metadata": {"labels": {one.queue_label: "main" for one in labels}}}
        await kueue.put(
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"schedule": "0 0 * * *", "jobTemplate": template},
            }
        )
    (said,) = (await from_cluster(kueue.ask(), apply=True)).rows
    assert (said.subject, said.did.value, said.namespace) == ("cronjob/kueues", "skipped", "ml")
    assert f"write {NAMES.queue_label} into the labels of spec.jobTemplate" in said.message
