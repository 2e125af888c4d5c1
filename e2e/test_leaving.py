"""Jobs that their owner deletes and that do not go: what they hold is counted while their pods live, and taken back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from admission.cli import cli
from e2e.control_plane import LOST, ControlPlane
from e2e.gangs import (
    WORKLOADS,
    admitted,
    entry_of,
    let_collector_know_workloads,
    reason,
    running_pods,
    teams,
    workload_of,
)
from e2e.installed import NAMES, Installed, job, jobset, pod_template

FINALIZER = "example.com/backup"


def _used(cp: ControlPlane, queue: str) -> str:
    status = cp.get("clusterqueues", queue).get("status") or {}
    usage = status.get("flavorsReservation") or ()
    return str(usage[0]["resources"][0]["total"]) if usage else ""


def _of_owner(name: str, kind: str) -> dict[str, Any]:
    if kind == "jobs":
        return job("team-a", name, 2, seconds=None)
    return jobset("team-a", name, {"w": (2, 1)}, seconds=None)


@pytest.mark.parametrize("kind", ["jobs", "jobsets"])
@pytest.mark.parametrize("how", ["orphaned", "kept by a finalizer"])
def test_a_deleted_job_that_does_not_go_gives_back_what_it_borrowed(muster: Installed, how: str, kind: str) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 0, "team-b": 16})
    made = _of_owner("stays", kind)
    if how != "orphaned":
        made["metadata"]["finalizers"] = [FINALIZER]
    cp.apply([made])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "its pods to run")
    if how == "orphaned":
        let_collector_know_workloads(cp)
    cp.delete(kind, "stays", "team-a", propagationPolicy="Orphan" if how == "orphaned" else "Background")

    def gone_for_us() -> bool:
        found = cp.find(kind, "stays", "team-a")
        return found is None if how == "orphaned" else bool((found or {})["metadata"].get("deletionTimestamp"))

    cp.wait(gone_for_us, 30, "it to be deleted")
    # Its pods run on, and are charged for as long.
    assert len(running_pods(cp, "team-a")) == 2
    cp.wait(lambda: _used(cp, "team-a") == "16", 20, "what it borrowed to be charged still")
    cp.apply([job("team-b", "owner", 2, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-b", "owner"), 60, "the owner to get its quota back")
    cp.wait(lambda: len(running_pods(cp, "team-b")) == 2, 60, "its pods to run")
    assert running_pods(cp, "team-a") == []
    cp.wait(lambda: not cp.list(WORKLOADS, "team-a"), 60, "its Workload to go")
    if how != "orphaned":
        cp.patch(kind, "stays", {"metadata": {"finalizers": None}}, "team-a")


def test_a_waiting_job_that_is_being_deleted_takes_no_room(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    first = job("team-a", "first", 1, seconds=None)
    first["metadata"]["finalizers"] = [FINALIZER]
    muster.started()
    cp.apply([job("team-a", "runs", 1, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-a", "runs"), 60, "the first to run")
    cp.apply([first])
    cp.wait(lambda: workload_of(cp, "team-a", "first"), 30, "the next to be queued")
    cp.delete("jobs", "first", "team-a")
    cp.wait(lambda: workload_of(cp, "team-a", "first") is None, 30, "it to be out of the queue")
    cp.apply([job("team-a", "second", 1, seconds=None)])
    cp.delete("jobs", "runs", "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "second"), 60, "the one behind it to run")
    cp.patch("jobs", "first", {"metadata": {"finalizers": None}}, "team-a")


def test_a_deleted_workload_that_somebody_keeps_holds_nothing_once_its_pods_are_gone(muster: Installed) -> None:
    """Deleted by an administrator, kept by a finalizer: its job is stopped, and queued anew when it is gone."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    cp.apply([job("team-a", "first", 1, seconds=None)])
    cp.wait(lambda: running_pods(cp, "team-a"), 60, "its pod to run")

    def kept(name: str) -> str:
        entry = workload_of(cp, "team-a", name)
        assert entry is not None
        cp.patch(WORKLOADS, entry["metadata"]["name"], {"metadata": {"finalizers": [FINALIZER]}}, "team-a")
        return str(entry["metadata"]["name"])

    def runs_alone(name: str) -> bool:
        pods = running_pods(cp, "team-a")
        return admitted(cp, "team-a", name) and [p["metadata"]["labels"]["job-name"] for p in pods] == [name]

    first = kept("first")
    cp.delete(WORKLOADS, first, "team-a")
    cp.apply([job("team-a", "second", 1, seconds=None)])
    cp.wait(lambda: runs_alone("second"), 60, "the next to have its room, after its pod")
    cp.wait(
        lambda: FINALIZER in entry_of(cp.get(WORKLOADS, first, "team-a"), "QuotaReserved")["message"],
        30,
        "it to say what keeps it",
    )
    assert cp.get("jobs", "first", "team-a")["spec"]["suspend"] is True
    # Its job goes, too: so does what that held, and the job is not made to wait for a Workload that nobody takes away.
    second = kept("second")
    cp.delete("jobs", "second", "team-a", propagationPolicy="Background")
    cp.wait(lambda: "admission" not in cp.get(WORKLOADS, second, "team-a")["status"], 60, "it to hold nothing")
    assert running_pods(cp, "team-a") == []
    for name in (first, second):
        cp.patch(WORKLOADS, name, {"metadata": {"finalizers": None}}, "team-a")
    cp.wait(lambda: runs_alone("first"), 60, "the first to be queued anew, and to run")


@pytest.mark.parametrize("kind", ["jobs", "jobsets"])
def test_a_job_whose_workload_is_deleted_is_queued_anew_when_its_pods_are_gone(muster: Installed, kind: str) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    cp.apply([_of_owner("first", kind)])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "its pods to run")
    pods = [pod["metadata"]["name"] for pod in running_pods(cp, "team-a")]
    for name in pods:
        cp.patch("pods", name, {"metadata": {"annotations": {LOST: "true"}}}, "team-a")
    entry = workload_of(cp, "team-a", "first")
    assert entry is not None
    cp.delete(WORKLOADS, entry["metadata"]["name"], "team-a")
    cp.apply([job("team-a", "second", 1, seconds=None)])

    def stopped() -> bool:
        return all("deletionTimestamp" in cp.get("pods", name, "team-a")["metadata"] for name in pods)

    cp.wait(stopped, 60, "its pods to be stopped")
    cp.wait(lambda: workload_of(cp, "team-a", "second"), 30, "the next to be queued")
    time.sleep(3)
    assert workload_of(cp, "team-a", "first") is None
    assert not admitted(cp, "team-a", "second"), "nodes are free, and no quota"
    for name in pods:
        cp.patch("pods", name, {"metadata": {"annotations": {LOST: None}}}, "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "second"), 60, "the next to start")
    cp.wait(lambda: workload_of(cp, "team-a", "first"), 30, "the first to be queued anew")


def test_nothing_starts_in_a_namespace_that_is_being_deleted(muster: Installed) -> None:
    """Kubernetes deletes jobs there with the last of the pods, and those may take their time. (It may be about to when
    this is over: no other test has a namespace of that name.)"""
    cp = muster.cp
    muster.started()
    cp.add_nodes(3, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"closing": 16, "team-b": 8})
    cp.apply([job("closing", "runs", 1, seconds=None), job("team-b", "runs", 1, seconds=None)])
    survives = job("closing", "survives", 1, seconds=None, backoffLimit=6)
    cp.apply([survives])
    cp.wait(lambda: len(running_pods(cp, "closing")) == 2, 60, "its pods to run")
    cp.apply([job("closing", "waits", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "closing", "waits")[0] == "WaitingForQuota", 30, "another to wait")
    slow = next(p["metadata"]["name"] for p in running_pods(cp, "closing") if "runs" in p["metadata"]["name"])
    cp.patch("pods", slow, {"metadata": {"annotations": {LOST: "true"}}}, "closing")
    cp.delete("namespace", "closing")
    cp.wait(lambda: len(running_pods(cp, "closing")) == 1, 30, "but one pod to go")
    # What has no pods left gives its quota back, what waits is told, and what still has one is charged.
    cp.wait(lambda: reason(cp, "closing", "waits")[0] == "Misconfigured", 30, "what waits to be told")
    assert "is being deleted" in reason(cp, "closing", "waits")[1]
    cp.wait(lambda: _used(cp, "closing") == "8", 30, "the quota of the pod that is left to be charged alone")
    cp.apply([job("team-b", "more", 1, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-b", "more"), 30, "another team to borrow what is free")
    cp.delete("jobs", "more", "team-b")
    cp.wait(lambda: workload_of(cp, "team-b", "more") is None, 30, "that to be free again")
    assert all(one["spec"]["suspend"] for one in cp.list("jobs", "closing") if one["metadata"]["name"] != "runs")
    cp.patch("pods", slow, {"metadata": {"annotations": {LOST: None}}}, "closing")
    cp.wait(lambda: _used(cp, "closing") == "0", 30, "its quota to be free with its last pod")
    assert running_pods(cp, "closing") == []


def test_more_pods_than_were_admitted_send_their_gang_back(muster: Installed) -> None:
    """Pods that an administrator took from their Job, which makes others in their place; and pods that their owner
    deletes and that take long to end, with others made beside them: one GPU of quota, and two that work."""
    cp = muster.cp
    muster.started(config={"podsUnschedulableTimeout": "5s"})
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 3})
    slow = pod_template(1, None, terminationGracePeriodSeconds=3600)
    cp.apply([job("team-a", "gang", 2, gpus=1, seconds=None), job("team-a", "twice", 1, template=slow, backoffLimit=9)])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 60, "their pods to run")
    pods = {pod["metadata"]["labels"]["job-name"]: pod["metadata"]["name"] for pod in running_pods(cp, "team-a")}
    cp.patch("pods", pods["twice"], {"metadata": {"annotations": {LOST: "true"}}}, "team-a")
    cp.delete("pods", pods["twice"], "team-a")
    taken = pods["gang"]
    labels = {"batch.kubernetes.io/controller-uid": None, "controller-uid": None}
    cp.patch("pods", taken, {"metadata": {"ownerReferences": None, "labels": labels}}, "team-a")

    def told(name: str) -> bool:
        evicted = entry_of(workload_of(cp, "team-a", name), "Evicted")
        return evicted.get("reason") == "OutOfSync" and "were admitted" in evicted["message"]

    for name in ("gang", "twice"):
        cp.wait(lambda name=name: told(name), 60, f"{name} to be evicted")  # type: ignore[misc]
    cp.wait(lambda: cp.find("pods", taken, "team-a") is None, 30, "the pod that was taken to be stopped")
    found = workload_of(cp, "team-a", "twice") or {}
    assert "admission" in found["status"], "it holds what it has until the last of its pods has ended"
    cp.patch("pods", pods["twice"], {"metadata": {"annotations": {LOST: None}}}, "team-a")
    for name in pods:
        cp.delete("jobs", name, "team-a", propagationPolicy="Background")
    cp.wait(lambda: not cp.list(f"workloads.{NAMES.group}", "team-a"), 60, "the end")


def test_a_jobset_whose_jobs_are_deleted_from_under_their_pods_is_sent_back_at_once(muster: Installed) -> None:
    """Its controller makes such a Job anew at once, and the pods of the old one run on."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 1})
    cp.apply(jobset("team-a", "set", {"w": (1, 1)}, gpus=1, seconds=None))
    most = 0

    def multiplied() -> bool:
        nonlocal most
        pods = running_pods(cp, "team-a")
        most = max(most, len(pods))
        for pod in [pod for pod in pods if LOST not in pod["metadata"]["annotations"]]:
            cp.patch("pods", pod["metadata"]["name"], {"metadata": {"annotations": {LOST: "true"}}}, "team-a")
            cp.delete("jobs", "set-w-0", "team-a", propagationPolicy="Orphan")
        return bool(entry_of(workload_of(cp, "team-a", "set"), "Evicted"))

    cp.wait(multiplied, 30, "it to be evicted")
    assert most <= 4, "of the one that was admitted"
    evicted = entry_of(workload_of(cp, "team-a", "set"), "Evicted")
    assert (evicted["reason"], "were admitted" in evicted["message"]) == ("OutOfSync", True), evicted
    cp.delete("jobsets", "set", "team-a", propagationPolicy="Background")
    cp.delete_all("pods", "team-a", gracePeriodSeconds=0)
    cp.wait(lambda: not cp.list(WORKLOADS, "team-a"), 60, "the end")


def test_a_jobset_that_runs_again_what_it_has_given_back_is_sent_back(muster: Installed) -> None:
    """Its owner deletes a Job of it that is done, whose quota somebody else has by then: it is made anew."""
    cp = muster.cp
    muster.started(config={"podsUnschedulableTimeout": "5s"})
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 2})
    cp.apply(jobset("team-a", "set", {"long": (1, 1), "short": (1, 1)}, gpus=1, seconds=None))

    def both_run() -> bool:
        return [pod["status"].get("phase") for pod in running_pods(cp, "team-a")] == ["Running"] * 2

    cp.wait(both_run, 60, "its pods to run")
    short = next(pod["metadata"]["name"] for pod in running_pods(cp, "team-a") if "short" in pod["metadata"]["name"])
    cp.patch("pods", short, {"status": {"phase": "Succeeded"}}, "team-a", subresource="status")
    cp.apply(job("team-a", "next", 1, gpus=1, seconds=None))
    cp.wait(lambda: admitted(cp, "team-a", "next"), 60, "another to have what it gave back")
    cp.delete("jobs", "set-short-0", "team-a", propagationPolicy="Background")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 60, "three pods to run on a quota of two")

    def evicted() -> str:
        said = entry_of(workload_of(cp, "team-a", "set"), "Evicted")
        return str(said.get("message", "")) if said.get("reason") == "OutOfSync" else ""

    cp.wait(evicted, 30, "it to be evicted")
    said = "1 pods of its pod set short run or are still ending, and 0 are charged: 1 were done, and their quota was "
    assert evicted() == f"{said}given back; they were made anew"
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 30, "its pods to end")
    for kind, name in (("jobsets", "set"), ("jobs", "next")):
        cp.delete(kind, name, "team-a", propagationPolicy="Background")
    cp.wait(lambda: not cp.list(WORKLOADS, "team-a"), 60, "the end")


def test_what_failed_as_its_pod_was_deleted_is_charged_until_the_pod_has_ended(muster: Installed) -> None:
    """An index fails with the deletion of its pod, and a pod may have an hour to end."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 2})
    slow = pod_template(1, None, terminationGracePeriodSeconds=3600)
    fails = job("team-a", "fails", 2, template=slow, backoffLimitPerIndex=0, maxFailedIndexes=2)
    del fails["spec"]["backoffLimit"]
    cp.apply(fails)
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "its pods to run")
    cp.apply(job("team-a", "waits", 1, gpus=1, seconds=None))
    first = min(pod["metadata"]["name"] for pod in running_pods(cp, "team-a"))
    cp.patch("pods", first, {"metadata": {"annotations": {LOST: "true"}}}, "team-a")
    cp.delete("pods", first, "team-a")
    cp.wait(lambda: cp.get("jobs", "fails", "team-a")["status"].get("failedIndexes") == "0", 20, "its index to fail")
    time.sleep(6.5)  # more than what is done keeps its quota for
    assert (_used(cp, "team-a"), admitted(cp, "team-a", "waits")) == ("2", False)
    cp.patch("pods", first, {"metadata": {"annotations": {LOST: None}}}, "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "waits"), 30, "its quota to go to who waits, once it has ended")


def test_a_pod_that_a_job_has_adopted_keeps_nothing_of_its_gang(muster: Installed) -> None:
    """Of a tenant, who may give it any time to end: its node lets it be, as kubelet would one that does not stop."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 0, "team-b": 16})
    cp.apply([job("team-a", "gang", 2, seconds=None)])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "its pods to run")
    labels = cp.list("pods", "team-a")[0]["metadata"]["labels"]
    stays = {"pod-delete.stage.kwok.x-k8s.io/delay": "24h", "pod-complete.stage.kwok.x-k8s.io/delay": "24h"}
    meta = {
        "name": "stranger",
        "namespace": "team-a",
        "labels": {key: value for key, value in labels.items() if not key.startswith(f"{NAMES.group}/")},
        "annotations": stays,
    }
    containers = [{"name": "c", "image": "c"}]
    spec = {"terminationGracePeriodSeconds": 10**8, "restartPolicy": "Never", "containers": containers}
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def adopted() -> dict[str, Any]:
        found: dict[str, Any] = cp.get("pods", "stranger", "team-a")["metadata"]
        return found if found.get("ownerReferences") and found.get("deletionTimestamp") else {}

    cp.wait(adopted, 30, "the Job controller to adopt it, and to delete it, for the Job has such a pod")
    cp.apply([job("team-b", "owner", 2, seconds=None)])
    cp.wait(lambda: len(running_pods(cp, "team-b")) == 2, 60, "the owner of the quota to run")
    assert adopted()
    assert cp.get("jobs", "gang", "team-a")["status"]["terminating"] == 1
    assert not cp.get("jobs", "gang", "team-a")["metadata"].get("annotations", {}).get(NAMES.inverse_annotation)
    cp.delete("pods", "stranger", "team-a", gracePeriodSeconds=0)


@pytest.mark.parametrize("kind", ["jobs", "jobsets"])
def test_a_pod_that_a_job_was_given_before_it_started_keeps_nothing_for_it(muster: Installed, kind: str) -> None:
    """The gang waits for it as it starts; whoever is to have the room meanwhile does not."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 0, "team-b": 16})
    made = _of_owner("gang", kind)
    made["metadata"]["labels"][NAMES.pause_label] = "true"
    cp.apply([made])
    cp.wait(lambda: any(entry_of(one, "Suspended") for one in cp.list("jobs", "team-a")), 30, "it to be held")
    cp.wait(lambda: entry_of(cp.get(kind, "gang", "team-a"), "Suspended"), 30, "its controller to say so")
    of = cp.list("jobs", "team-a")[0]
    stays = {"pod-delete.stage.kwok.x-k8s.io/delay": "24h", "pod-complete.stage.kwok.x-k8s.io/delay": "24h"}
    meta = {
        "name": "stranger",
        "namespace": "team-a",
        "labels": of["spec"]["selector"]["matchLabels"],
        "annotations": stays,
    }
    spec = {
        "terminationGracePeriodSeconds": 10**8,
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "c"}],
    }
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def ends() -> bool:
        meta = cp.get("pods", "stranger", "team-a")["metadata"]
        return bool(meta.get("ownerReferences") and meta.get("deletionTimestamp"))

    cp.wait(ends, 30, "the Job controller to adopt it, and to delete it, for the Job is suspended")
    time.sleep(1.1)  # the times of the API are whole seconds
    cp.patch(kind, "gang", {"metadata": {"labels": {NAMES.pause_label: None}}}, "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "gang"), 30, "it to be admitted")
    cp.apply([job("team-b", "owner", 2, seconds=None)])
    cp.wait(lambda: len(running_pods(cp, "team-b")) == 2, 60, "the owner of the quota to run")
    assert ends()
    cp.delete("pods", "stranger", "team-a", gracePeriodSeconds=0)


@pytest.mark.parametrize("label", ["jobset.sigs.k8s.io/jobset-uid", "batch.kubernetes.io/controller-uid"])
def test_a_gang_that_says_it_is_of_another_job_keeps_nothing_for_it(muster: Installed, label: str) -> None:
    """By labels of its template, which are its owner's where nobody else sets them: of a JobSet, in a plain Job; and of
    a Job that selects its pods by other labels."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 1, "team-b": 16})
    named = {"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
    cp.apply([{**named, "value": 100}])
    cp.apply([job("team-a", "large", 1, seconds=None)])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 60, "its pod to run")
    small = job("team-a", "small", 1, gpus=1, seconds=None, labels={NAMES.priority_class_label: "high"})
    small["spec"] |= {"manualSelector": True, "selector": {"matchLabels": {"app": "small"}}}
    uid = cp.get("jobs", "large", "team-a")["metadata"]["uid"]
    small["spec"]["template"]["metadata"]["labels"] = {"app": "small", label: uid}
    cp.apply([small])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "the small one to run")
    cp.apply([job("team-b", "owner", 1, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-b", "owner"), 60, "the owner to get its quota back")
    assert [pod["metadata"]["labels"][label] for pod in running_pods(cp, "team-a")] == [uid]
    cp.wait(lambda: _used(cp, "team-a") == "1", 20, "the large one to hold nothing any more")


def admission_policy(name: str, *, binding: bool = False) -> dict[str, Any]:
    """One that somebody asked for beside those of Muster, and that refuses nothing here."""
    kind = "ValidatingAdmissionPolicy" + ("Binding" if binding else "")
    rule = {"apiGroups": ["example.com"], "apiVersions": ["*"], "resources": ["none"], "operations": ["CREATE"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "refused"}],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    return {**made, "spec": bound if binding else spec}


def test_policies_that_are_taken_away_are_missed_and_are_seen_again(muster: Installed) -> None:
    cp = muster.cp
    more = [admission_policy("more"), admission_policy("more", binding=True)]
    cp.apply(more)
    muster.started(config={"holdProofPeriod": "1s", "requiredPolicies": ["more"]})
    teams(cp, {"team-a": 8})

    def held() -> tuple[str, str]:
        entry = entry_of(cp.get("clusterqueues", "team-a"), "JobsHeld")
        return entry.get("status", ""), entry.get("message", "")

    cp.wait(lambda: held()[0] == "True", 20, "the hold to be proven")
    for kind, name, said in (
        ("mutatingadmissionpolicybindings", "muster-hold", "MutatingAdmissionPolicyBinding muster-hold"),
        ("validatingadmissionpolicies", "muster-pods", "ValidatingAdmissionPolicy muster-pods"),
        ("validatingadmissionpolicybindings", "more", "ValidatingAdmissionPolicyBinding more"),
        ("priorityclasses", "muster-gang", "PriorityClass muster-gang"),
    ):
        cp.delete(kind, name)
        cp.wait(lambda said=said: held()[0] == "False" and said in held()[1], 30, f"{name} to be missed")  # type: ignore[misc]
        told = CliRunner().invoke(cli, ["queues", "--kubeconfig", str(cp.kubeconfig())]).output.replace("\n", " ")
        assert "Jobs are not held" in told, told
        assert said.split()[-1] in told, told
        Installed.install(cp)
        cp.apply(more)
        cp.wait(lambda: held()[0] == "True", 30, f"{name} to be seen again")


def test_what_ran_before_anybody_held_it_starts_anew_once_its_pods_are_gone(
    installed: ControlPlane, tmp_path: Path
) -> None:
    cp = installed
    cp.clean()
    Installed.install(cp)
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 32})
    cp.delete("mutatingadmissionpolicybindings", "muster-hold")
    cp.delete("validatingadmissionpolicybindings", "muster-jobs")

    early = [jobset("team-a", f"early-{n}", {"w": (2, 1)}, gpus=1, seconds=None) for n in range(8)]

    def slips() -> bool:
        return not cp.create(early[0], dryRun="All")["spec"].get("suspend")

    cp.wait(slips, 30, "labelled jobs to be held no more")
    cp.create_all(early)
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 16, 30, "them to run")
    Installed.install(cp)
    with Installed(cp, tmp_path) as muster:
        muster.started()  # the JobSets are stopped and admitted within a moment, often before their controller saw it

        def placed() -> bool:
            pods = [p for p in running_pods(cp, "team-a") if "deletionTimestamp" not in p["metadata"]]
            return len(pods) == 16 and all(NAMES.workload_uid_label in pod["metadata"]["labels"] for pod in pods)

        cp.wait(placed, 30, "all pods to be those of a start of Muster's")
        assert not muster.trouble()
