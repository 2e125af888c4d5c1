"""Each invariant against hand-made logs: one that breaks it and one that does not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from e2e.event_log import ADDED, DELETED, MODIFIED, Entry
from e2e.invariants import (
    check,
    check_fencing,
    check_quiet,
    end_state,
    figures,
    replay,
    report,
    terms,
    unled,
)

GROUP = "muster.dev"
Object = dict[str, Any]


class Story:
    """A log written step by step; one revision and one second each."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._known: set[str] = set()

    def put(self, obj: Object, seconds: float = 1.0) -> Object:
        uid = obj["metadata"]["uid"]
        self._enter(MODIFIED if uid in self._known else ADDED, obj, seconds)
        self._known.add(uid)
        return obj

    def drop(self, obj: Object, seconds: float = 1.0) -> None:
        self._known.discard(obj["metadata"]["uid"])
        self._enter(DELETED, obj, seconds)

    def _enter(self, kind: str, obj: Object, seconds: float) -> None:
        revision = len(self.entries) + 1
        at = (self.entries[-1].at if self.entries else 0.0) + seconds
        self.entries.append(Entry(revision, obj["kind"], kind, copy.deepcopy(obj), at))


def named(kind: str, name: str, namespace: str | None = "team", **rest: Any) -> Object:
    meta: Object = {"name": name, "uid": f"{kind}-{name}"}
    if namespace:
        meta["namespace"] = namespace
    return {"kind": kind, "metadata": meta} | rest


def queue(name: str, gpus: int | str, cohort: str | None = None, **limits: int) -> Object:
    quota: Object = {"name": "nvidia.com/gpu", "nominalQuota": gpus} | limits
    spec: Object = {"resourceGroups": [{"flavors": [{"name": "h100", "resources": [quota]}]}]}
    if cohort:
        spec["cohortName"] = cohort
    return named("ClusterQueue", name, None, spec=spec)


def cohort(name: str, parent: str | None = None) -> Object:
    return named("Cohort", name, None, spec={"parentName": parent} if parent else {})


def template(gpus: int = 1, **metadata: Any) -> Object:
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]
    return {"metadata": metadata, "spec": {"containers": containers}}


def job(name: str = "train", pods: int = 2, gpus: int = 1, **spec: Any) -> Object:
    body = {"suspend": True, "parallelism": pods, "completions": pods, "template": template(gpus)} | spec
    made = named("Job", name, spec=body)
    made["metadata"]["labels"] = {f"{GROUP}/queue-name": "main"}
    return made


def jobset(name: str = "set", replicas: int = 2, pods: int = 2) -> Object:
    part: Object = {"name": "workers", "replicas": replicas, "template": {"spec": job(pods=pods)["spec"]}}
    del part["template"]["spec"]["suspend"]
    made = named("JobSet", name, spec={"suspend": True, "replicatedJobs": [part]})
    made["metadata"]["labels"] = {f"{GROUP}/queue-name": "main"}
    return made


def owned(obj: Object, owner: Object) -> Object:
    reference = {"kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    obj["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    return obj


def workload(of: Object, name: str = "", **conditions: tuple[str, str]) -> Object:
    made = owned(named("Workload", name or f"wl-{of['metadata']['name']}", spec={}, status={}), of)
    made["metadata"]["labels"] = {f"{GROUP}/job-uid": of["metadata"]["uid"]}
    return with_conditions(made, **(conditions or {"QuotaReserved": ("False", "Pending")}))


def with_conditions(obj: Object, **conditions: tuple[str, str]) -> Object:
    listed = [{"type": kind, "status": status, "reason": reason} for kind, (status, reason) in conditions.items()]
    obj.setdefault("status", {})["conditions"] = listed
    return obj


def admitted(wl: Object, gpus: int = 2, pods: int = 2, to: str = "a", pod_set: str = "main") -> Object:
    assignment = {"name": pod_set, "count": pods, "flavors": {"nvidia.com/gpu": "h100"}}
    assignment["resourceUsage"] = {"nvidia.com/gpu": str(gpus)}
    wl = with_conditions(copy.deepcopy(wl), QuotaReserved=("True", "QuotaReserved"), Admitted=("True", "Admitted"))
    wl["status"]["admission"] = {"clusterQueue": to, "podSetAssignments": [assignment]}
    return wl


def ended(wl: Object) -> Object:
    wl = copy.deepcopy(wl)
    wl["status"]["conditions"].append({"type": "Finished", "status": "True", "reason": "Succeeded"})
    return wl


def started(obj: Object, **changes: Any) -> Object:
    obj = copy.deepcopy(obj)
    obj["spec"] |= {"suspend": False} | changes
    return obj


def done(obj: Object) -> Object:
    obj = copy.deepcopy(obj)
    obj["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    return obj


def pod(of: Object, index: int = 0, node: str | None = "n1", phase: str = "Running", gpus: int = 1) -> Object:
    name = f"{of['metadata']['name']}-{index}"
    spec: Object = {"containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": gpus}}}]}
    if node:
        spec["nodeName"] = node
    return owned(named("Pod", name, spec=spec, status={"phase": phase}), of)


def unschedulable(of: Object, index: int) -> Object:
    made = pod(of, index, node=None, phase="Pending")
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return made


def node(name: str = "n1", gpus: int = 8, ready: str = "True") -> Object:
    made = named("Node", name, None, status={"allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "8"}})
    return with_conditions(made, Ready=(ready, "Kubelet"))


# -- a run without fault ------------------------------------------------------------------------------------------


def whole_life(story: Story) -> None:
    """Queued, reserved, started, evicted, restored, released, reserved again, started, finished."""
    story.put(queue("a", 4))
    story.put(node())
    mine = story.put(job(pods=2))
    wl = story.put(workload(mine))
    for _ in range(2):
        story.put(admitted(wl))
        running = started(mine, template=template(nodeSelector={"pool": "h100"}, labels={f"{GROUP}/managed": "true"}))
        story.put(running)
        for index in range(2):
            story.put(pod(mine, index, node=None, phase="Pending"))
            story.put(pod(mine, index))
        if _ == 0:
            story.put(running | {"spec": running["spec"] | {"suspend": True}})
            for index in range(2):
                story.drop(pod(mine, index))
            story.put(mine)
            story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))
    for index in range(2):
        story.put(pod(mine, index, phase="Succeeded"))
    story.put(done(running))
    story.put(ended(admitted(wl)))


def test_a_run_without_fault() -> None:
    story = Story()
    whole_life(story)
    violations = check(story.entries)
    assert not violations, report(violations)
    seen = figures(story.entries)
    assert (seen.jobs, seen.starts, seen.evictions, seen.partial_gangs) == (1, 2, 1, 0)
    assert seen.waits == {"team/train": 2.0}
    assert seen.ready == {"team/train": 5.0}
    assert end_state(story.entries) == {"team/train": "Complete; Admitted,Finished,QuotaReserved; "}


# -- I1: quota ----------------------------------------------------------------------------------------------------


def reserve(story: Story, name: str, gpus: int, to: str) -> Object:
    mine = story.put(job(name, pods=1, gpus=gpus))
    wl = workload(mine)
    story.put(wl)
    return story.put(admitted(wl, gpus, 1, to))


def quota_exceeded(story: Story) -> None:
    story.put(queue("a", 4))
    reserve(story, "one", 3, "a")
    reserve(story, "two", 2, "a")


def quota_filled(story: Story) -> None:
    story.put(queue("a", 4))
    reserve(story, "one", 3, "a")
    reserve(story, "two", 1, "a")


def quota_freed_and_used(story: Story) -> None:
    story.put(queue("a", 4))
    first = reserve(story, "one", 4, "a")
    story.put(ended(first))
    reserve(story, "two", 4, "a")


def borrowed_too_much(story: Story) -> None:
    story.put(cohort("team"))
    story.put(queue("a", 4, "team", borrowingLimit=1))
    story.put(queue("b", 4, "team"))
    reserve(story, "one", 6, "a")


def borrowed_what_is_there(story: Story) -> None:
    story.put(queue("a", 4, "team", borrowingLimit=2))
    story.put(queue("b", 4, "team"))
    reserve(story, "one", 6, "a")


def borrowed_what_is_not_lent(story: Story) -> None:
    story.put(queue("a", 4, "team"))
    story.put(queue("b", 4, "team", lendingLimit=1))
    reserve(story, "one", 6, "a")


def borrowed_across_the_tree(story: Story) -> None:
    """b's cohort lends two levels up; a takes all of it, and b's own reservation then finds nothing."""
    story.put(cohort("root"))
    story.put(cohort("left", "root"))
    story.put(cohort("right", "root"))
    story.put(queue("a", 1, "left"))
    story.put(queue("b", 3, "right"))
    reserve(story, "one", 4, "a")


def borrowed_across_the_tree_twice(story: Story) -> None:
    borrowed_across_the_tree(story)
    reserve(story, "two", 1, "b")


def own_share_beside_an_overdrawn_cohort(story: Story) -> None:
    """The cohort is over its quota after a cut, but what b does not lend is b's whatever the others do."""
    story.put(queue("a", 4, "team"))
    story.put(queue("b", 4, "team", lendingLimit=0))
    reserve(story, "one", 4, "a")
    story.put(queue("a", 1, "team"), seconds=60)
    reserve(story, "two", 4, "b")


def reserved_over_a_cut(story: Story) -> None:
    story.put(queue("a", 4))
    reserve(story, "one", 3, "a")
    story.put(queue("a", 2), seconds=60)
    story.put(node(), seconds=60)
    reserve(story, "two", 1, "a")


def cut_below_usage(story: Story) -> None:
    story.put(queue("a", 4))
    reserve(story, "one", 3, "a")
    story.put(queue("a", 2), seconds=60)
    story.put(node(), seconds=60)


def reserved_as_the_quota_was_cut(story: Story) -> None:
    story.put(queue("a", 4))
    mine = story.put(job("one", pods=1, gpus=4))
    wl = story.put(workload(mine))
    story.put(queue("a", 2), seconds=60)
    story.put(admitted(wl, 4, 1), seconds=0.1)


def reserved_by_what_was_offered_for_a_moment(story: Story) -> None:
    story.put(queue("a", 4))
    story.put(queue("a", 6), 0.5)
    story.put(queue("a", 2), 0.5)
    story.put(job("one", pods=1), 0.1)
    story.put(admitted(workload(job("one", pods=1)), 6, 1), 0.1)


def reserved_in_a_cycle(story: Story) -> None:
    story.put(cohort("x", "y"))
    story.put(cohort("y", "x"))
    story.put(queue("a", 4, "x"))
    reserve(story, "one", 1, "a")


def given_back_in_a_cycle(story: Story) -> None:
    story.put(queue("a", 4, "x"))
    wl = reserve(story, "one", 4, "a")
    story.put(cohort("x", "y"))
    story.put(cohort("y", "x"), seconds=60)
    held = copy.deepcopy(wl)
    held["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    story.put(held, seconds=60)


def reserved_in_a_flavor_not_offered(story: Story) -> None:
    story.put(queue("a", 4))
    mine = story.put(job("one", pods=1))
    wl = admitted(workload(mine), 1, 1)
    wl["status"]["admission"]["podSetAssignments"][0]["flavors"] = {"nvidia.com/gpu": "other"}
    story.put(wl)


def deleted(story: Story, pods_gone: bool) -> None:
    """A job is deleted with its Workload; its pods linger or not; another takes the quota."""
    story.put(queue("a", 4))
    story.put(node())
    mine = story.put(job("one", pods=2, gpus=2))
    held = admitted(story.put(workload(mine)), 4, 2)
    story.put(held)
    story.put(started(mine))
    for index in range(2):
        story.put(pod(mine, index, gpus=2))
    story.drop(mine)
    story.drop(held)
    for index in range(2 if pods_gone else 1):
        story.drop(pod(mine, index, gpus=2))
    reserve(story, "two", 4, "a")


def reclaimable_pods_free_their_share(story: Story) -> None:
    story.put(queue("a", 4))
    mine = story.put(job("one", pods=4))
    held = admitted(story.put(workload(mine)), 4, 4)
    story.put(held)
    held = copy.deepcopy(held)
    held["status"]["reclaimablePods"] = [{"name": "main", "count": 3}]
    story.put(held)
    reserve(story, "two", 3, "a")


# -- I2: nodes ----------------------------------------------------------------------------------------------------


def node_overcommitted(story: Story) -> None:
    story.put(node(gpus=1))
    bare = story.put(named("Job", "foreign", spec={"parallelism": 2, "template": template()}))
    story.put(pod(bare, 0))
    story.put(pod(bare, 1))


def node_used_in_turn(story: Story) -> None:
    story.put(node(gpus=1))
    bare = story.put(named("Job", "foreign", spec={"parallelism": 2, "template": template()}))
    story.put(pod(bare, 0))
    story.put(pod(bare, 0, phase="Succeeded"))
    story.put(pod(bare, 1))
    story.drop(pod(bare, 1))
    story.put(pod(bare, 2))


# -- I3: gang -----------------------------------------------------------------------------------------------------


def prepared(story: Story, mine: Object) -> Object:
    story.put(queue("a", 64))
    story.put(node(gpus=64))
    story.put(mine)
    return story.put(workload(mine))


def started_unreserved(story: Story) -> None:
    mine = job()
    prepared(story, mine)
    story.put(started(mine))


def started_then_reserved(story: Story) -> None:
    mine = job()
    wl = prepared(story, mine)
    story.put(started(mine))
    story.put(admitted(wl))


def reserved_then_started(story: Story) -> None:
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(started(mine))


def grown_while_running(story: Story) -> None:
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(started(mine))
    story.put(started(mine, parallelism=3, completions=3))


def reserved_for_fewer(story: Story) -> None:
    mine = job(pods=3)
    story.put(admitted(prepared(story, mine), 2, 2))
    story.put(started(mine))


def reserved_for_cheaper_pods(story: Story) -> None:
    mine = job(pods=2, gpus=2)
    story.put(admitted(prepared(story, mine), 2, 2))
    story.put(started(mine))


def one_completion_of_many_workers(story: Story) -> None:
    mine = job(pods=5, completions=2)
    story.put(admitted(prepared(story, mine), 2, 2))
    story.put(started(mine))


def jobset_reserved(story: Story) -> None:
    mine = jobset(replicas=2, pods=2)
    story.put(admitted(prepared(story, mine), 4, 4, pod_set="workers"))
    story.put(started(mine))
    story.put(owned(named("Job", "set-workers-0", spec={"suspend": False, "template": template()}), mine))


def jobset_reserved_in_part(story: Story) -> None:
    mine = jobset(replicas=2, pods=2)
    story.put(admitted(prepared(story, mine), 2, 2, pod_set="workers"))
    story.put(started(mine))


def jobset_reserved_without(story: Story, succeeded: int) -> None:
    """The first of its two parts, which has so many of two Jobs behind it."""
    mine = jobset(replicas=2, pods=2)
    mine["spec"]["replicatedJobs"].append(copy.deepcopy(mine["spec"]["replicatedJobs"][0]) | {"name": "more"})
    mine["status"] = {"replicatedJobsStatus": [{"name": "workers", "succeeded": succeeded}]}
    story.put(admitted(prepared(story, mine), 4, 4, pod_set="more"))
    story.put(started(mine))


def child_runs_alone(story: Story) -> None:
    mine = jobset()
    prepared(story, mine)
    story.put(owned(named("Job", "set-workers-0", spec={"suspend": False, "template": template()}), mine))


def unlabelled_job_runs(story: Story) -> None:
    story.put(queue("a", 1))
    story.put(named("Job", "free", spec={"parallelism": 9, "template": template()}))


def reservation_lost_while_running(story: Story) -> None:
    mine = job()
    wl = prepared(story, mine)
    story.put(admitted(wl))
    story.put(started(mine))
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))


def workload_deleted_while_running(story: Story, stopped_after: float) -> None:
    """It takes a moment until that is seen; the Jobs of a JobSet are stopped a moment later still."""
    mine = jobset(replicas=1, pods=1)
    held = admitted(prepared(story, mine), 1, 1, pod_set="workers")
    story.put(held)
    story.put(started(mine))
    child = owned(named("Job", "set-workers-0", spec={"suspend": False, "template": template()}), mine)
    story.put(child)
    story.drop(held)
    story.put(mine, seconds=stopped_after)
    story.put(child | {"status": {"active": 1}})
    story.put(child | {"spec": child["spec"] | {"suspend": True}})


def released_silently(story: Story) -> None:
    wl = prepared(story, job())
    story.put(admitted(wl))
    story.put(wl)


def deleted_while_running(story: Story) -> None:
    mine = job()
    held = admitted(prepared(story, mine))
    story.put(held)
    running = started(mine)
    story.put(running)
    running["metadata"]["deletionTimestamp"] = "now"
    story.put(running)
    story.drop(held)
    story.drop(running)


# -- I4: identity -------------------------------------------------------------------------------------------------


def reserved_twice(story: Story) -> None:
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(admitted(workload(mine, "second")))


def reserved_again_after_the_end(story: Story) -> None:
    mine = job()
    held = admitted(prepared(story, mine))
    story.put(held)
    story.drop(held)
    story.put(admitted(workload(mine, "second")))


def label_of_another(story: Story) -> None:
    mine = job()
    wl = prepared(story, mine)
    wl["metadata"]["labels"][f"{GROUP}/job-uid"] = "somebody"
    story.put(wl)


def owner_recreated_under_its_name(story: Story) -> None:
    """The same name and another uid is another job, with a Workload of its own."""
    mine = job()
    held = admitted(prepared(story, mine))
    story.put(held)
    story.drop(mine)
    story.drop(held)
    again = job()
    again["metadata"]["uid"] = "Job-train-again"
    story.put(again)
    story.put(admitted(workload(again, "again")))


# -- I5: release --------------------------------------------------------------------------------------------------


def evicted(story: Story, gone: bool, lost: bool = False) -> None:
    mine = job(pods=1)
    wl = prepared(story, mine)
    story.put(admitted(wl, 1, 1))
    story.put(started(mine))
    story.put(pod(mine))
    story.put(mine)
    terminating = pod(mine)
    terminating["metadata"]["deletionTimestamp"] = "now"
    story.put(terminating)
    if lost:
        story.put(node(gpus=64, ready="Unknown"))
    if gone:
        story.drop(terminating)
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))


def finished_while_a_pod_runs(story: Story) -> None:
    mine = job(pods=1)
    held = admitted(prepared(story, mine), 1, 1)
    story.put(held)
    story.put(started(mine))
    story.put(pod(mine))
    story.put(done(started(mine)))
    story.put(ended(held))


def jobset_released(story: Story, gone: bool) -> None:
    """The pods of a JobSet are those of its Jobs."""
    mine = jobset(replicas=1, pods=1)
    wl = prepared(story, mine)
    story.put(admitted(wl, 1, 1, pod_set="workers"))
    story.put(started(mine))
    child = owned(named("Job", "set-workers-0", spec={"suspend": False, "template": template()}), mine)
    story.put(child)
    story.put(pod(child))
    story.put(mine)
    story.put(child | {"spec": child["spec"] | {"suspend": True}})
    if gone:
        story.drop(pod(child))
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))


# -- I6: restore --------------------------------------------------------------------------------------------------


def restored(story: Story, left: Object, edited: bool = False, resized: bool = False) -> None:
    mine = job(pods=1)
    wl = prepared(story, mine)
    if edited:
        mine = copy.deepcopy(mine)
        mine["spec"]["template"] = template(4)
        story.put(mine)
    story.put(admitted(wl, 8, 1))
    note = {"metadata": mine["metadata"] | {"annotations": {f"{GROUP}/restore": "{}"}}}
    story.put(started(mine, template=template(labels={f"{GROUP}/managed": "true"})) | note)
    mine = mine | {"spec": mine["spec"] | {"template": left} if left else mine["spec"]}
    story.put(mine)
    if resized:  # by its user, as soon as it is his again
        story.put(mine | {"spec": mine["spec"] | {"parallelism": 5}})
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))


def pinned_before_it_was_reserved(story: Story) -> None:
    """Equal to what was reserved, but that carried a key which its user never wrote."""
    mine = job(pods=1)
    wl = prepared(story, mine)
    marked = copy.deepcopy(mine)
    marked["spec"]["template"] = template(annotations={f"{GROUP}/hosts": "n1"})
    story.put(marked)
    story.put(admitted(wl, 1, 1))
    story.put(started(marked))
    story.put(marked)
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))


# -- I9: no lost job ----------------------------------------------------------------------------------------------


def job_without_workload(story: Story) -> None:
    story.put(job())
    story.put(node(), seconds=30)


def job_too_young_to_be_queued(story: Story) -> None:
    story.put(job())
    story.put(node())


def waits_untold(story: Story, told: bool) -> None:
    mine = job()
    prepared(story, mine)
    if not told:
        story.put(named("Workload", "wl-train", spec={}, status={}) | {"metadata": workload(mine)["metadata"]})
    story.put(node(gpus=64), seconds=60)


def admitted_and_forgotten(story: Story) -> None:
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(node(gpus=64), seconds=60)


def finished_and_still_charged(story: Story) -> None:
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(started(mine))
    story.put(done(started(mine)))
    story.put(node(gpus=64), seconds=60)


def suspended_with_a_finished_workload(story: Story, reason: str) -> None:
    mine = job()
    prepared(story, mine)
    story.put(workload(mine, Finished=("True", reason)))
    story.put(node(gpus=64), seconds=60)


# -- I11: accounting ----------------------------------------------------------------------------------------------


def reported(story: Story, total: str, reserving: int) -> None:
    reserve_in = queue("a", 4)
    story.put(reserve_in)
    mine = story.put(job("one", pods=1, gpus=3))
    story.put(admitted(story.put(workload(mine)), 3, 1))
    story.put(started(mine))
    resource = {"name": "nvidia.com/gpu", "total": total}
    status = {"reservingWorkloads": reserving, "flavorsReservation": [{"name": "h100", "resources": [resource]}]}
    story.put(reserve_in | {"status": status})


def left_alone(story: Story, total: str, ended: bool = False) -> None:
    """Its job and its Workload are deleted, and its pod runs on."""
    reserve_in = story.put(queue("a", 4))
    mine = story.put(job("one", pods=1, gpus=3))
    held = admitted(story.put(workload(mine)), 3, 1)
    story.put(held)
    story.put(started(mine))
    story.put(pod(mine, 0, gpus=3))
    story.drop(mine)
    story.drop(held)
    if ended:
        story.drop(pod(mine, 0, gpus=3))
    resource = {"name": "nvidia.com/gpu", "total": total}
    story.put(reserve_in | {"status": {"flavorsReservation": [{"name": "h100", "resources": [resource]}]}})


# -- I13: no reservation is written over --------------------------------------------------------------------------


def written_over(story: Story, how: str) -> None:
    story.put(queue("a", 8))
    story.put(queue("b", 8))
    held = admitted(story.put(workload(story.put(job("one", pods=2)))))
    held["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {"slices": ["n1"]}
    if how == "lost":
        held["status"]["unhealthyNodes"] = [{"name": "n1"}]
    story.put(held)
    held = copy.deepcopy(held)
    held["status"].pop("unhealthyNodes", None)
    (given,) = held["status"]["admission"]["podSetAssignments"]
    if how == "queue":
        held["status"]["admission"]["clusterQueue"] = "b"
    elif how == "done":
        held["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    if how in ("nodes", "lost", "done"):
        given["topologyAssignment"] = {"slices": ["n2"]}
    story.put(held)


# -- two leaders --------------------------------------------------------------------------------------------------


def given_twice(story: Story, put_right: bool) -> None:
    story.put(queue("a", 4))
    reserve(story, "one", 3, "a")
    wl = workload(job("two"))
    reserve(story, "two", 2, "a")
    if put_right:
        story.put(with_conditions(wl, Evicted=("True", "OutOfSync")))
    for _ in range(6):
        story.put(node(), 5.0)


def run_by_one_and_released_by_the_other(story: Story, put_right: bool) -> None:
    mine = job(pods=1)
    wl = prepared(story, mine)
    story.put(admitted(wl, 1, 1))
    story.put(started(mine))
    story.put(pod(mine))
    story.put(with_conditions(copy.deepcopy(wl), Evicted=("True", "Preempted")))
    if put_right:
        story.put(mine)
    for _ in range(6):
        story.put(node(), 5.0)


@pytest.mark.parametrize(
    ("tell", "expected"), [(given_twice, {"I1"}), (run_by_one_and_released_by_the_other, {"I3", "I5"})]
)
def test_what_two_leaders_do_is_put_right(tell: Callable[[Story, bool], None], expected: set[str]) -> None:
    def found(put_right: bool, **settings: Any) -> set[str]:
        story = Story()
        tell(story, put_right)
        return {v.invariant for v in check(story.entries, at_end=False, **settings)}

    assert found(True) == expected, "one leader does no such thing"
    assert found(True, rivalries=[(0.0, 15.0)]) == set()
    assert found(False, rivalries=[(0.0, 15.0)]) == expected - {"I5"}
    assert found(True, rivalries=[(0.0, 1.0)]) == expected, "it was over"


ROWS: list[tuple[Callable[[Story], None], str]] = [
    (quota_exceeded, "I1"),
    (quota_filled, ""),
    (quota_freed_and_used, ""),
    (borrowed_too_much, "I1"),
    (borrowed_what_is_there, ""),
    (borrowed_what_is_not_lent, "I1"),
    (borrowed_across_the_tree, ""),
    (borrowed_across_the_tree_twice, "I1"),
    (own_share_beside_an_overdrawn_cohort, ""),
    (reserved_over_a_cut, "I1"),
    (cut_below_usage, ""),
    (reserved_as_the_quota_was_cut, ""),
    (reserved_by_what_was_offered_for_a_moment, ""),
    (reserved_in_a_cycle, "I1"),
    (given_back_in_a_cycle, ""),
    (reserved_in_a_flavor_not_offered, "I1"),
    (lambda s: deleted(s, pods_gone=False), "I1"),
    (lambda s: deleted(s, pods_gone=True), ""),
    (reclaimable_pods_free_their_share, ""),
    (node_overcommitted, "I2"),
    (node_used_in_turn, ""),
    (started_unreserved, "I3"),
    (started_then_reserved, "I3"),
    (reserved_then_started, ""),
    (grown_while_running, "I3"),
    (reserved_for_fewer, "I3"),
    (reserved_for_cheaper_pods, "I3"),
    (one_completion_of_many_workers, ""),
    (jobset_reserved, ""),
    (jobset_reserved_in_part, "I3"),
    (lambda s: jobset_reserved_without(s, 1), "I3"),
    (lambda s: jobset_reserved_without(s, 2), ""),
    (child_runs_alone, "I3"),
    (unlabelled_job_runs, ""),
    (reservation_lost_while_running, "I3"),
    (lambda s: workload_deleted_while_running(s, 3), ""),
    (lambda s: workload_deleted_while_running(s, 30), "I3"),
    (released_silently, "I12"),
    (deleted_while_running, ""),
    (reserved_twice, "I4"),
    (reserved_again_after_the_end, ""),
    (label_of_another, "I4"),
    (owner_recreated_under_its_name, ""),
    (lambda s: evicted(s, gone=False), "I5"),
    (lambda s: evicted(s, gone=True), ""),
    (lambda s: evicted(s, gone=False, lost=True), ""),
    (finished_while_a_pod_runs, "I5"),
    (lambda s: jobset_released(s, gone=False), "I5"),
    (lambda s: jobset_released(s, gone=True), ""),
    (lambda s: restored(s, {}), ""),
    (lambda s: restored(s, {}, edited=True), ""),
    (lambda s: restored(s, template(labels={f"{GROUP}/managed": "true"})), "I6"),
    (lambda s: restored(s, template(labels={})), "I6"),  # {} and absent differ
    (lambda s: restored(s, {}, resized=True), ""),
    (lambda s: restored(s, template(labels={}), resized=True), "I6"),
    (pinned_before_it_was_reserved, "I6"),
    (lambda s: written_over(s, "queue"), "I13"),
    (lambda s: written_over(s, "nodes"), "I13"),
    (lambda s: written_over(s, "lost"), ""),
    (lambda s: written_over(s, "done"), ""),
]
AT_END: list[tuple[Callable[[Story], None], str]] = [
    (job_without_workload, "I9"),
    (job_too_young_to_be_queued, ""),
    (lambda s: waits_untold(s, told=False), "I9"),
    (lambda s: waits_untold(s, told=True), ""),
    (admitted_and_forgotten, "I9"),
    (finished_and_still_charged, "I9"),
    (lambda s: suspended_with_a_finished_workload(s, "Succeeded"), "I9"),
    (lambda s: suspended_with_a_finished_workload(s, "FailedToStart"), ""),
    (lambda s: reported(s, "3", 1), ""),
    (lambda s: reported(s, "2", 1), "I11"),
    (lambda s: reported(s, "3", 2), "I11"),
    (lambda s: left_alone(s, "3"), ""),
    (lambda s: left_alone(s, "0"), "I11"),
    (lambda s: left_alone(s, "0", ended=True), ""),
]


@pytest.mark.parametrize(("tell", "expected"), ROWS)
def test_at_every_revision(tell: Callable[[Story], None], expected: str) -> None:
    story = Story()
    tell(story)
    violations = check(story.entries, at_end=False)
    assert {v.invariant for v in violations} == ({expected} if expected else set()), report(violations)


@pytest.mark.parametrize(("tell", "expected"), AT_END)
def test_at_the_end(tell: Callable[[Story], None], expected: str) -> None:
    story = Story()
    tell(story)
    violations = check(story.entries)
    assert {v.invariant for v in violations} == ({expected} if expected else set()), report(violations)


def test_a_controller_that_started_later_does_not_know_what_was_deleted() -> None:
    story = Story()
    left_alone(story, "0")
    assert check(story.entries, watching=story.entries[-1].at) == []


def test_what_was_there_before_the_log_is_not_judged() -> None:
    story = Story()
    quota_exceeded(story)
    assert check(story.entries, at_end=False, started=len(story.entries)) == []


def test_lists_of_the_start_in_any_order() -> None:
    """Each kind enters at the revision of its own list: pods before the Jobs and queues that they belong to."""
    story = Story()
    jobset_released(story, gone=True)
    started_at = len(story.entries) - 2
    by_kind = sorted(story.entries[:started_at], key=lambda e: e.kind, reverse=True)
    shuffled = [Entry(index + 1, e.kind, e.type, e.object, e.at) for index, e in enumerate(by_kind)]
    assert check([*shuffled, *story.entries[started_at:]], at_end=False, started=started_at) == []


def test_partial_gangs_and_waiting_pods() -> None:
    story = Story()
    mine = job()
    story.put(admitted(prepared(story, mine)))
    story.put(started(mine))
    story.put(pod(mine, 0))
    story.put(unschedulable(mine, 1))
    story.put(pod(mine, 1), seconds=7)
    judge = replay(story.entries, at_end=False)
    assert (judge.figures.partial_gangs, judge.figures.max_unschedulable) == (1, 7.0)


# -- over audit events --------------------------------------------------------------------------------------------


def request(user: str, verb: str, resource: str, name: str = "x", at: str = "1", **rest: Any) -> Object:
    event = {"user": {"username": user}, "verb": verb, "stage": "ResponseComplete", "stageTimestamp": at}
    event |= {"objectRef": {"resource": resource, "namespace": "team", "name": name}, "requestURI": "/apis"}
    return event | {"responseStatus": {"code": 200}} | rest


@pytest.mark.parametrize(
    ("event", "noisy"),
    [
        (request("muster", "patch", "workloads"), True),
        (request("muster", "update", "leases"), False),
        (request("muster", "create", "events"), False),
        (request("muster", "patch", "jobs", requestURI="/apis?dryRun=All"), False),
        (request("muster", "patch", "jobs", responseStatus={"code": 409}), False),
        (request("alice", "patch", "jobs"), False),
    ],
)
def test_quiet(event: Object, noisy: bool) -> None:
    assert [v.invariant for v in check_quiet([event], "muster")] == (["I8"] if noisy else [])


def test_fencing() -> None:
    def who(event: Object) -> str:
        return str(event["user"]["username"])

    first = request("one", "patch", "workloads", at="1")
    second = request("two", "patch", "workloads", at="2")
    late = request("one", "patch", "workloads", at="3")
    elsewhere = request("one", "patch", "workloads", name="y", at="4")
    refused = request("one", "patch", "workloads", at="5", responseStatus={"code": 409})
    assert check_fencing([first, second, elsewhere, refused], ["one", "two"], who) == []
    violations = check_fencing([late, first, second], ["one", "two"], who)
    assert [(v.invariant, v.object) for v in violations] == [("I10", "workloads/team/x")]


def test_who_leads_again_writes_by_right() -> None:
    def who(event: Object) -> str:
        return str(event["user"]["username"])

    def lease(by: str, at: str) -> Object:
        return request(by, "update", "leases", at=at)

    first, second = request("one", "patch", "workloads", at="2"), request("two", "patch", "workloads", at="4")
    again = request("one", "patch", "workloads", at="6")
    paused = [lease("one", "1"), first, lease("two", "3"), second, again]
    led = [*paused, lease("one", "5")]
    assert terms(paused, ["one", "two"], who) == ["one", "two"]
    assert terms(led, ["one", "two"], who) == ["one", "two", "one"]
    assert unled(paused, terms(paused, ["one", "two"], who), who) == [again]
    assert len(check_fencing(paused, terms(paused, ["one", "two"], who), who)) == 1
    assert unled(led, terms(led, ["one", "two"], who), who) == []
    assert check_fencing(led, terms(led, ["one", "two"], who), who) == []
