"""Wrong objects of every kind: refused with a sentence, or told in a condition; and nobody else waits for them.

What the schemas of our own kinds refuse is `test_schema`; here is what only a cluster can show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.api_client import ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, done, entry_of, reason, running_pods, teams, workload_of
from e2e.installed import NAMES, Installed, cluster_queue, cohort, flavor, job, jobset, local_queue, ours, pod_template


def _with(template: Object, requests: Mapping[str, str]) -> Object:
    template["spec"]["containers"][0]["resources"] = {"requests": dict(requests), "limits": dict(requests)}
    return template


def _asking(obj: Object, requests: Mapping[str, str]) -> Object:
    """A JobSet whose pods ask for this; the API server reads only those of Jobs."""
    _with(obj["spec"]["replicatedJobs"][0]["template"]["spec"]["template"], requests)
    return obj


def _inside(obj: Object, labels: Mapping[str, str]) -> Object:
    obj["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": dict(labels)}
    return obj


def _saying(obj: Object, annotations: Mapping[str, str]) -> Object:
    obj["metadata"]["annotations"] = dict(annotations)
    return obj


def _template(**metadata: Any) -> Object:
    template = pod_template(1)
    template["metadata"] = metadata
    return template


REFUSED: dict[str, tuple[Object, str]] = {
    "negative quota": (cluster_queue("bad", {GPU: -1}), "nominalQuota"),
    "absurd quota": (cluster_queue("bad", {GPU: "1e30"}), "nominalQuota"),
    "quota that is a word": (cluster_queue("bad", {GPU: "lots"}), "nominalQuota"),
    "a resource twice": (
        ours(
            "ClusterQueue", "bad", {"resourceGroups": [cluster_queue("x", {GPU: 1})["spec"]["resourceGroups"][0]] * 2}
        ),
        "two",
    ),
    "a cohort above itself": (ours("Cohort", "bad", {"parentName": "bad"}), "parent"),
    "a LocalQueue to nowhere at all": (local_queue("team-a", "", "bad"), "clusterQueue"),
    "a negative request": (job("team-a", "bad", template=_with(pod_template(), {GPU: "-1"})), "greater than or equal"),
    "a request that is a word": (job("team-a", "bad", template=_with(pod_template(), {GPU: "many"})), "quantit"),
    "half a GPU": (job("team-a", "bad", template=_with(pod_template(), {GPU: "500m"})), "integer"),
    "negative pods": (job("team-a", "bad", -1), "greater than or equal to 0"),
    "our keys in a template": (
        job("team-a", "bad", template=_template(annotations={NAMES.hosts_annotation: "node-0"})),
        NAMES.group,
    ),
    "a queue inside a JobSet": (
        _inside(jobset("team-a", "bad", {"w": (1, 1)}), {NAMES.queue_label: "main"}),
        "queue",
    ),
    "a queue name that is empty": (job("team-a", "bad", queue=None, labels={NAMES.queue_label: ""}), "leave the label"),
    "a queue name that is no name": (job("team-a", "bad", queue="Not A Name!"), "label"),
}
"""An object, and a part of what the API server says to it."""

WAITS: dict[str, tuple[Object, str, str]] = {
    "no such LocalQueue": (
        job("team-a", "queue-none", queue="none"),
        "Misconfigured",
        "LocalQueue none does not exist",
    ),
    "a LocalQueue of somebody else": (job("team-a", "queue-other", queue="only-b"), "Misconfigured", "does not exist"),
    "a LocalQueue that points nowhere": (job("team-a", "queue-adrift", queue="adrift"), "Misconfigured", "nowhere"),
    "a flavor that nobody has": (job("team-a", "flavor-none", queue="no-flavor"), "Misconfigured", "unheard-of"),
    "a cohort that goes in a circle": (job("team-a", "cycle", queue="cycle"), "Misconfigured", "cycle"),
    "a namespace that is not selected": (job("team-a", "shut", queue="shut"), "Misconfigured", "namespace"),
    "a queue with no quota": (job("team-a", "zero", queue="zero"), "ExceedsMaxQuota", "0"),
    "a flavor without nodes": (
        job("team-a", "nodeless", queue="nodeless"),
        "TopologyPlacementFailed",
        "No node belongs to flavor",
    ),
    "a stopped queue": (job("team-a", "held", queue="held"), "OnHold", "held"),
    "more than there will ever be": (job("team-a", "huge", 5), "ExceedsMaxQuota", "40 nvidia.com/gpu"),
    "10^5 pods": (job("team-a", "crowd", 100_000), "ExceedsMaxQuota", "Needs 800k nvidia.com/gpu"),
    "10^6 pods": (
        job("team-a", "throng", 1_000_000, completionMode="NonIndexed"),
        "ExceedsMaxQuota",
        "Needs 8M nvidia.com/gpu",
    ),
    "an absurd amount": (
        job("team-a", "absurd", 3, template=_with(pod_template(), {GPU: "9223372036854775807"})),
        "ExceedsMaxQuota",
        GPU,
    ),
    "an exponent beyond all numbers": (
        _asking(jobset("team-a", "exponent", {"w": (1, 1)}), {GPU: "1", "cpu": "1E1000000"}),
        "TopologyPlacementFailed",
        "exponent out of range",
    ),
    "a resource without quota": (
        job("team-a", "uncovered", template=_with(pod_template(), {GPU: "1", "example.com/fpga": "1"})),
        "NoMatchingFlavor",
        "example.com/fpga",
    ),
    "a template that contradicts its flavor": (
        job("team-a", "contrary", template=pod_template(nodeSelector={"gpu": "t4"})),
        "NoMatchingFlavor",
        "select",
    ),
    "a pod wider than any node": (
        job("team-a", "wide", 1, gpus=9),
        "TopologyPlacementFailed",
        "would not fit if they were empty",
    ),
    "a JobSet wider than all": (jobset("team-a", "wide-set", {"w": (5, 1)}), "ExceedsMaxQuota", "40 nvidia.com/gpu"),
    "a host that is not there": (
        job("team-a", "host-none", template=pod_template(nodeSelector={"kubernetes.io/hostname": "gone"})),
        "TopologyPlacementFailed",
        "",
    ),
}
"""A job that can never go, its reason, and a part of the sentence."""

RUNS: dict[str, Object] = {
    "suspend: false of its own": job("team-b", "eager", suspend=False),
    "nothing to do": job("team-b", "idle", 0),
    "an annotation with a value that is none": _saying(
        job("team-b", "wordy"), {NAMES.replace_lost_pods_annotation: "yes"}
    ),
    "no requests": job("team-b", "frugal", template=_with(pod_template(), {})),
    "a quota with a decimal suffix": job("team-b", "plain", queue="decimal"),
}


def _apply_bad_queues(cp: ControlPlane) -> None:
    cp.apply(
        [
            local_queue("team-b", "team-b", "only-b"),
            local_queue("team-a", "nowhere", "adrift"),
            cluster_queue("no-flavor", {GPU: 8}, "unheard-of"),
            local_queue("team-a", "no-flavor", "no-flavor"),
            ours("Cohort", "round-a", {"parentName": "round-b"}),
            ours("Cohort", "round-b", {"parentName": "round-a"}),
            cluster_queue("cycle", {GPU: 8}, cohortName="round-a"),
            local_queue("team-a", "cycle", "cycle"),
            cluster_queue("shut", {GPU: 8}, namespaceSelector={"matchLabels": {"team": "none"}}),
            local_queue("team-a", "shut", "shut"),
            cluster_queue("zero", {GPU: 0}),
            local_queue("team-a", "zero", "zero"),
            flavor("nodeless", {"gpu": "unbuilt"}),
            cluster_queue("nodeless", {GPU: 8}, "nodeless"),
            local_queue("team-a", "nodeless", "nodeless"),
            cluster_queue("held", {GPU: 8}, stopPolicy="Hold"),
            local_queue("team-a", "held", "held"),
            cluster_queue("decimal", {GPU: "8e0"}),
            local_queue("team-b", "decimal", "decimal"),
        ]
    )


def test_what_is_wrong_is_refused_or_told_and_nobody_else_waits(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    cp.apply([flavor(labels={"gpu": "h100"}), cohort("all")])
    for team in ("team-a", "team-b"):
        cp.namespace(team)
        cp.apply([cluster_queue(team, {GPU: 32}), local_queue(team, team)])
    wrong: dict[str, Any] = {}
    for name, (obj, says) in REFUSED.items():
        try:
            cp.create(obj)
            wrong[name] = "accepted"
        except ApiError as error:
            if says not in error.message or error.status >= 500:
                wrong[name] = f"{error.status}: {error.message}"
    assert not wrong, json.dumps(wrong, indent=1)
    _apply_bad_queues(cp)
    cp.create_all(obj for obj, _, _ in WAITS.values())
    began = time.monotonic()
    cp.create(job("team-b", "good", 2))
    cp.wait(lambda: admitted(cp, "team-b", "good"), 10, "a good job beside them to be admitted")
    print(f"\na good job beside {len(WAITS)} hopeless ones was admitted after {time.monotonic() - began:.1f} s")
    cp.create_all(RUNS.values())

    def told() -> bool:
        wrong.clear()
        for name, (obj, why, says) in WAITS.items():
            got, sentence = reason(cp, "team-a", obj["metadata"]["name"])
            if got != why or says not in sentence:
                wrong[name] = (got, sentence)
        assert not wrong, json.dumps(wrong, indent=1)
        return True

    cp.wait(told, 25, "each to be told why it waits", every=0.5)
    cp.create(job("team-b", "nobody", 1, parallelism=0))  # which Kubernetes leaves there for ever
    bulky = pod_template()
    bulky["spec"]["containers"][0]["args"] = ["x" * 1_500_000]  # which leaves its Workload no status
    cp.create(job("team-b", "bulky", 4, template=bulky))
    cp.create(job("team-b", "classless", labels={NAMES.priority_class_label: "none"}))
    cp.wait(
        lambda: "does not exist; there are: none" in str([e["message"] for e in cp.list("events", "team-b")]),
        20,
        "the class to be missed",
    )
    cp.wait(
        lambda: "parallelism is 0" in str([e["message"] for e in cp.list("events", "team-b")]),
        20,
        "a job of no pods to be told that it asks for none",
    )
    cp.wait(
        lambda: "at most 1024 KiB together" in str([e["message"] for e in cp.list("events", "team-b")]),
        20,
        "the job that is too large to be told so",
    )
    cp.wait(
        lambda: "neither 'true' nor 'false'" in str([e["message"] for e in cp.list("events", "team-b")]),
        20,
        "what says nothing to be told",
    )
    for obj in RUNS.values():
        cp.wait(done(cp, "jobs", "team-b", obj["metadata"]["name"]), 30, f"{obj['metadata']['name']} to run")
    assert cp.list("pods", "team-a") == []
    for name, why in (("no-flavor", "unheard-of"), ("cycle", "cycle")):
        active = entry_of(cp.get("clusterqueues", name), "Active")
        assert active["status"] == "False", name
        assert why in active["message"], active
    assert entry_of(cp.get("localqueues", "adrift", "team-a"), "Active")["status"] == "False"


def test_changes_while_a_gang_runs_are_refused_and_a_queue_may_go_under_load(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16, "team-b": 16})
    cp.create_all([job("team-a", f"run-{n}", 1, seconds=None) for n in range(2)])
    cp.create(job("team-a", "free", 1, queue=None, gpus=0, seconds=None))
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "the gangs to run")
    # Not before: one of the same second may stand before them, and all 32 GPUs would be its own.
    cp.create(job("team-a", "waits", 4, seconds=None))
    label = {"metadata": {"labels": {NAMES.queue_label: "other"}}}
    no_label = {"metadata": {"labels": {NAMES.queue_label: None}}}
    for name, patch in (
        ("run-0", label),
        ("run-0", no_label),
        ("run-0", {"spec": {"parallelism": 3}}),
        ("free", {"metadata": {"labels": {NAMES.queue_label: "main"}}}),
    ):
        with pytest.raises(ApiError) as refusal:
            cp.patch("jobs", name, patch, "team-a")
        assert refusal.value.status in (403, 422), refusal.value
        assert NAMES.group in refusal.value.message or "Muster" in refusal.value.message
    cp.wait(lambda: kept(cp, "team-a"), 20, "the queue to be kept for as long as it is in use")
    cp.delete("clusterqueues", "team-a")
    cp.delete("localqueues", "main", "team-a")
    cp.create(job("team-b", "next", 2, seconds=2))
    cp.wait(done(cp, "jobs", "team-b", "next"), 30, "a job of another queue to run")
    cp.wait(lambda: reason(cp, "team-a", "waits")[0] == "Misconfigured", 20, "the waiting gang to be told")
    assert len(running_pods(cp, "team-a")) == 3, "what runs goes on"
    assert cp.find("clusterqueues", "team-a") is not None, "it stays for as long as gangs hold quota of it"
    for n in range(2):
        cp.delete("jobs", f"run-{n}", "team-a")
    cp.wait(lambda: workload_of(cp, "team-a", "run-0") is None, 30, "its Workload to go")
    cp.wait(lambda: cp.find("clusterqueues", "team-a") is None, 30, "the queue to go with its last gang")
    teams(cp, {"team-a": 32, "team-b": 0})
    cp.wait(lambda: admitted(cp, "team-a", "waits"), 30, "the waiting gang to go once the queue is back")


def kept(cp: ControlPlane, queue: str) -> bool:
    found = cp.find("clusterqueues", queue)
    return found is not None and NAMES.finalizer in found["metadata"].get("finalizers", ())


def test_who_is_not_governed_any_more_is_told_and_starts_when_its_owner_says_so(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    governs = muster.started(config={"manageJobsWithoutQueueName": True, "defaultQueueName": "main"})
    cp.create(job("team-a", "runs", queue=None, seconds=None))
    cp.wait(lambda: admitted(cp, "team-a", "runs") and running_pods(cp, "team-a"), 60, "a job without a label to run")
    cp.create(job("team-a", "waits", queue=None))
    cp.wait(lambda: workload_of(cp, "team-a", "waits"), 30, "another to wait")
    governs.stop()
    muster.started()

    def left() -> set[str]:
        found = [one for one in cp.list("jobs", "team-a") if one["spec"].get("suspend")]
        return {one["metadata"]["name"] for one in found if NAMES.ungoverned_label in one["metadata"].get("labels", {})}

    cp.wait(lambda: left() == {"runs", "waits"}, 60, "both to be noted")
    cp.wait(lambda: not cp.list("workloads", "team-a"), 30, "nothing to stand for them")
    told = [one for one in cp.list("events", "team-a") if one["reason"] == "InvalidJob"]
    assert {one["involvedObject"]["name"] for one in told} <= {"runs", "waits"}
    cp.patch("jobs", "waits", {"spec": {"suspend": False}}, "team-a")
    cp.wait(done(cp, "jobs", "team-a", "waits"), 60, "its owner's start to be let be")
