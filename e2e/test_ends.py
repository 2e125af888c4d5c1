"""Jobs that come to their end as they are stopped, or while they are held: Kubernetes is to call them finished."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.api_client import ApiError, condition, finished
from e2e.control_plane import LOST, ControlPlane
from e2e.gangs import admitted, ended, entry_of, pause, ready, reason, running_pods, succeed, teams, workload_of
from e2e.installed import Installed, job, jobset

INDEX = "batch.kubernetes.io/job-completion-index"


def _told(cp: ControlPlane, name: str) -> str:
    """What its Workload says of its end."""
    entry = entry_of(workload_of(cp, "team-a", name), "Finished")
    return str(entry.get("reason", "")) if entry.get("status") == "True" else ""


def test_a_held_job_whose_owner_wants_no_more_than_is_done_is_complete(muster: Installed) -> None:
    """Held, it has no startTime any more, without which the API server lets nobody call it finished."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 32})
    cp.apply([job("team-a", "train", 4, seconds=None)])
    cp.wait(ready(cp, "team-a", 4), 30, "its pods to run")
    for pod in running_pods(cp, "team-a"):
        if pod["metadata"]["labels"][INDEX] in ("0", "1"):
            succeed(cp, pod)
    cp.wait(lambda: cp.get("jobs", "train", "team-a")["status"].get("succeeded") == 2, 20, "two indexes to be done")
    pause(cp, "jobs", "team-a", "train")
    cp.wait(lambda: not admitted(cp, "team-a", "train"), 30, "it to be stopped")
    cp.patch("jobs", "train", {"spec": {"parallelism": 2, "completions": 2}}, "team-a")
    cp.wait(lambda: _told(cp, "train") == "Succeeded", 20, "its Workload to be finished")
    cp.wait(lambda: finished(cp.get("jobs", "train", "team-a")) == "Complete", 20, "it to be complete")


def _no_start_time(cp: ControlPlane) -> None:
    """Have the API server refuse status writes that give a Job a startTime, as it does those that come too late."""
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-start-time"}}
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs/status"], "operations": ["UPDATE"]}
    refused = {"expression": "!has(object.status.startTime) || has(oldObject.status.startTime)"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [refused]}
    bound = {"policyName": "no-start-time", "validationActions": ["Deny"]}
    cp.apply([{**made, "kind": "ValidatingAdmissionPolicy", "spec": spec}])
    cp.apply([{**made, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}])
    cp.create(job("team-a", "probe", queue=None, suspend=True))

    def in_force() -> bool:
        try:
            patch = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
            cp.patch("jobs", "probe", patch, "team-a", subresource="status", dryRun="All")
        except ApiError as error:
            return "no-start-time" in str(error)
        return False

    cp.wait(in_force, 20, "the policy to be in force")
    cp.delete("jobs", "probe", "team-a", propagationPolicy="Background")


def test_a_gang_that_is_stopped_as_its_pods_succeed_is_complete(muster: Installed) -> None:
    """Its controller could not note the start yet (others write to its status, too), and then finds it suspended with
    all of its pods done."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    _no_start_time(cp)
    try:
        cp.apply([job("team-a", "quick", 2, seconds=None)])
        cp.wait(ready(cp, "team-a", 2), 30, "its pods to run")
        for pod in running_pods(cp, "team-a"):
            succeed(cp, pod)
        cp.wait(lambda: not running_pods(cp, "team-a"), 20, "its pods to be done")
        assert "startTime" not in cp.get("jobs", "quick", "team-a")["status"]
        pause(cp, "jobs", "team-a", "quick")
        cp.wait(lambda: condition(cp.get("jobs", "quick", "team-a"), "SuccessCriteriaMet") == "True", 60, "its end")
        assert cp.get("jobs", "quick", "team-a")["spec"]["suspend"]
        cp.wait(lambda: _told(cp, "quick") == "Succeeded", 20, "its quota to be free")
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            cp.delete(kind, "no-start-time")
    cp.wait(lambda: finished(cp.get("jobs", "quick", "team-a")) == "Complete", 60, "it to be complete")


@pytest.mark.parametrize("kind", ["jobs", "jobsets"])
def test_a_gang_whose_pods_fail_for_good_as_they_are_stopped_has_failed(muster: Installed, kind: str) -> None:
    """By its podFailurePolicy, which its controller asks of pods as well that it has stopped itself."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}}
    if kind == "jobs":
        made = job("team-a", "gang", 2, seconds=None, podFailurePolicy={"rules": [rule]})
    else:
        made = jobset("team-a", "gang", {"w": (1, 2)}, seconds=None)
        made["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"] = {"rules": [rule]}
    cp.apply([made])
    cp.wait(ready(cp, "team-a", 2), 30, "its pods to run")
    pods = [pod["metadata"]["name"] for pod in running_pods(cp, "team-a")]
    for name in pods:
        cp.patch("pods", name, {"metadata": {"annotations": {LOST: "true"}}}, "team-a")
    pause(cp, kind, "team-a", "gang")

    def stopped() -> bool:
        return all("deletionTimestamp" in cp.get("pods", name, "team-a")["metadata"] for name in pods)

    cp.wait(stopped, 30, "its pods to be told to end")
    over: dict[str, Any] = {"name": "c", "image": "c", "imageID": "", "ready": False, "restartCount": 0}
    over["state"] = {"terminated": {"exitCode": 143}}
    for name in pods:
        status: dict[str, Any] = {"phase": "Failed", "containerStatuses": [over]}
        cp.patch("pods", name, {"status": status}, "team-a", subresource="status")
    at = "gang" if kind == "jobs" else "gang-w-0"
    cp.wait(lambda: condition(cp.get("jobs", at, "team-a"), "FailureTarget") == "True", 20, "its controller to see it")
    for name in pods:
        cp.delete("pods", name, "team-a", gracePeriodSeconds=0)
    cp.wait(lambda: finished(cp.get(kind, "gang", "team-a")) == "Failed", 30, "it to be called failed")
    cp.wait(lambda: _told(cp, "gang") == "Failed", 30, "its Workload to be told")


def test_a_jobset_one_of_whose_jobs_fails_with_its_node_gives_its_quota_back(muster: Installed) -> None:
    """A node that dies while it is drained: the Job fails, and its controller says that when the pod is gone, which
    nobody ends there. It does not say that the Job is suspended either."""
    cp = muster.cp
    muster.started(config={"nodeLossGracePeriod": "3s"})
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    cp.apply([jobset("team-a", "set", {"w": (2, 1)}, seconds=None, failurePolicy={"maxRestarts": 3})])
    cp.wait(ready(cp, "team-a", 2), 30, "its pods to run")
    cp.apply([job("team-a", "next", 2, seconds=None)])
    drained = running_pods(cp, "team-a")[0]
    child, lost = drained["metadata"]["labels"]["job-name"], drained["spec"]["nodeName"]
    cp.set_node_ready(lost, False, wait=False)
    cp.delete("pods", drained["metadata"]["name"], "team-a")
    cp.wait(lambda: condition(cp.get("jobs", child, "team-a"), "FailureTarget") == "True", 20, "its Job to fail")
    cp.wait(lambda: admitted(cp, "team-a", "next"), 60, "its quota to go to who waits")
    assert condition(cp.get("jobs", child, "team-a"), "Failed") is None
    cp.wait(ended(cp, "jobs", "team-a", "next"), 40, "that to finish")
    cp.wait(lambda: reason(cp, "team-a", "set")[0] == "AdmissionGated", 20, "it to wait for that pod alone")
    assert drained["metadata"]["name"] in reason(cp, "team-a", "set")[1]
    cp.set_node_ready(lost, True)
    cp.wait(lambda: cp.get("jobsets", "set", "team-a")["status"]["restarts"] == 1, 60, "it to begin anew")
    cp.wait(ready(cp, "team-a", 2), 60, "it to run again")
