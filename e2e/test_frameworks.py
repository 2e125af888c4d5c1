"""Other software makes jobs, and writes them again as it goes: they are queued as others. docs/tasks/frameworks.md."""

from __future__ import annotations

import time
from typing import Any

from e2e.control_plane import ControlPlane
from e2e.gangs import WORKLOADS, admitted, done, entry_of, running_pods, teams, workload_of
from e2e.installed import NAMES, Installed, job, jobset, pod_template
from e2e.test_gitops import versions

CLUSTER_QUEUES, TRAINER = f"clusterqueues.{NAMES.group}", "trainer"
KEPT = {"successfulJobsHistoryLimit": 100}


def test_who_applies_its_jobset_each_time_it_looks_writes_nothing_and_starts_nothing(muster: Installed) -> None:
    """As Kubeflow Trainer does, whose TrainJob says by `suspend` whether its JobSet is to run."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    muster.started()
    meta = {"name": "train", "namespace": "team-a"}
    owner = cp.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})  # a TrainJob's stand-in
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "train", "uid": owner["metadata"]["uid"]}

    def looks(suspend: bool) -> None:
        made = jobset("team-a", "train", {"node": (1, 2)}, seconds=None, suspend=suspend)
        made["metadata"]["ownerReferences"] = [{**ref, "controller": True, "blockOwnerDeletion": True}]
        cp.apply(made, manager=TRAINER)

    def looks_again(suspend: bool, suspended: bool) -> None:
        """What it applies changes nothing; the first time, at most, it is noted that it wrote `suspend`, too."""
        cp.wait(lambda: _still(cp), 30, "nothing to change any more")
        spec = cp.get("jobsets", "train", "team-a")["spec"]
        looks(suspend)
        before = versions(cp)
        for _ in range(3):
            looks(suspend)
        assert _still(cp)
        assert versions(cp) == before
        assert cp.get("jobsets", "train", "team-a")["spec"] == spec
        assert spec["suspend"] is suspended

    cp.create(job("team-a", "first", 1, seconds=None))
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 30, "one to hold half of the quota")
    looks(suspend=False)
    cp.wait(lambda: len(cp.list(WORKLOADS, "team-a")) == 2, 30, "it to be queued")
    looks_again(suspend=False, suspended=True)
    looks_again(suspend=True, suspended=True)
    cp.delete("jobs", "first", "team-a")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "it to run")
    looks_again(suspend=True, suspended=False)
    cp.patch(CLUSTER_QUEUES, "team-a", {"spec": {"stopPolicy": "HoldAndDrain"}})
    cp.wait(lambda: not cp.list("pods", "team-a"), 30, "it to be evicted")
    looks_again(suspend=False, suspended=True)
    cp.patch(CLUSTER_QUEUES, "team-a", {"spec": {"stopPolicy": "None"}})
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "it to run again")


def test_what_a_cronjob_makes_waits_in_its_queue(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    muster.started()
    cp.create(job("team-a", "first", 1, seconds=None))
    cp.wait(lambda: admitted(cp, "team-a", "first"), 30, "one to hold the quota")
    cp.create(_cronjob("forbids", "Forbid", of_jobs={NAMES.queue_label: "main"}))
    cp.create(_cronjob("replaces", "Replace", of_jobs={NAMES.queue_label: "main"}))
    # Kubernetes gives a Job without labels of its own those of its pods.
    cp.create(_cronjob("says-it-of-pods", "Forbid", of_pods={NAMES.queue_label: "main"}))
    cp.create(_cronjob("says-it-of-itself", "Forbid", of_itself={NAMES.queue_label: "main"}))
    all_of_them = ("forbids", "replaces", "says-it-of-pods", "says-it-of-itself")
    cp.wait(lambda: all(_made(cp, one) for one in all_of_them), 60, "each to make its Job")
    (astray,) = _made(cp, "says-it-of-itself")
    assert cp.get("jobs", astray, "team-a")["spec"]["suspend"] is False
    cp.delete("cronjobs", "says-it-of-itself", "team-a")
    (waits,), (of_pods,) = _made(cp, "forbids"), _made(cp, "says-it-of-pods")
    replaced = cp.wait(lambda: _made(cp, "replaces"), 30, "one to be there")
    cp.wait(lambda: set(_made(cp, "replaces")) - set(replaced), 60, "it to be replaced while it waits")
    cp.patch("cronjobs", "replaces", {"spec": {"suspend": True}}, "team-a")
    assert (_made(cp, "forbids"), _made(cp, "says-it-of-pods")) == ([waits], [of_pods])
    cp.kubectl("create", "job", "by-hand", "--from=cronjob/forbids", "-n", "team-a")
    for name in (waits, of_pods, "by-hand"):
        assert cp.get("jobs", name, "team-a")["spec"]["suspend"] is True
    assert {pod["metadata"]["labels"]["job-name"] for pod in cp.list("pods", "team-a")} <= {"first", astray}
    cp.patch("cronjobs", "says-it-of-pods", {"spec": {"suspend": True}}, "team-a")
    cp.delete("jobs", "first", "team-a")
    cp.wait(done(cp, "jobs", "team-a", waits, of_pods, "by-hand"), 60, "what waited to run to its end")
    cp.wait(lambda: set(_made(cp, "forbids")) - {waits, "by-hand"}, 60, "the next one to be made")


def test_a_pod_of_which_a_container_is_done_keeps_nobody_from_running(muster: Installed) -> None:
    """A helper beside the main container ends once it is done; the kubelet calls the pod not ready from then on."""
    cp = muster.cp
    first_leader = muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    template = pod_template(seconds=None)
    template["spec"]["containers"].append({"name": "helper", "image": "c"})
    codes = {"done": 0, "failed": 1}
    cp.apply([job("team-a", name, 1, template=template) for name in codes])
    cp.wait(lambda: all(_ready(cp, name) == 1 for name in codes), 30, "their pods to be ready")
    pods = {pod["metadata"]["labels"]["job-name"]: pod["metadata"] for pod in running_pods(cp, "team-a")}
    first_leader.stop()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now}
    for name, code in codes.items():
        works = {"name": "c", "ready": True, "state": {"running": {"startedAt": now}}}
        over = {"name": "helper", "ready": False, "state": {"terminated": {"exitCode": code, "finishedAt": now}}}
        statuses = [{"image": "c", "imageID": "", "restartCount": 0, **one} for one in (works, over)]
        status = {"conditions": [unready], "containerStatuses": statuses}
        cp.patch("pods", pods[name]["name"], {"status": status}, "team-a", subresource="status")
    cp.wait(lambda: not any(_ready(cp, name) for name in codes), 30, "Kubernetes to call them not ready")
    again = {"backoffBaseSeconds": 600}
    muster.started(config={"waitForPodsReady": {"timeout": "4s", "recoveryTimeout": "4s", "requeuingStrategy": again}})
    cp.wait(lambda: entry_of(workload_of(cp, "team-a", "failed"), "Evicted"), 60, "the other to be evicted")
    assert entry_of(workload_of(cp, "team-a", "failed"), "Evicted")["reason"] == "PodsReadyTimeout"
    _still(cp)
    assert not entry_of(workload_of(cp, "team-a", "done"), "Evicted")
    assert cp.get("pods", pods["done"]["name"], "team-a")["metadata"]["uid"] == pods["done"]["uid"]


def _ready(cp: ControlPlane, name: str) -> int:
    return int(cp.get("jobs", name, "team-a").get("status", {}).get("ready") or 0)


def _cronjob(
    name: str,
    policy: str,
    of_jobs: dict[str, str] | None = None,
    of_pods: dict[str, str] | None = None,
    of_itself: dict[str, str] | None = None,
) -> dict[str, Any]:
    """With labels at one of the three places."""
    spec = job("team-a", name)["spec"]
    spec["template"]["metadata"]["labels"] = of_pods or {}
    template = {"metadata": {"labels": of_jobs or {}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": "team-a", "labels": of_itself or {}},
        "spec": {"schedule": "@every 4s", "concurrencyPolicy": policy, "jobTemplate": template, **KEPT},
    }


def _made(cp: ControlPlane, cronjob: str) -> list[str]:
    """Jobs of a CronJob, those that are on their way out left out."""
    metas = [one["metadata"] for one in cp.list("jobs", "team-a")]
    there = [meta for meta in metas if "deletionTimestamp" not in meta]
    return [meta["name"] for meta in there for ref in meta.get("ownerReferences", ()) if ref["name"] == cronjob]


def _still(cp: ControlPlane) -> bool:
    """Nothing was written within a second."""
    before = versions(cp)
    time.sleep(1)
    return versions(cp) == before
