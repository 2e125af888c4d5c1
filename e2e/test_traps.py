"""Where Kubernetes breaks a naive admission controller, and what owners do to their jobs, with all of Muster there.

What concerns hold and pins alone, without a controller, is `test_hold`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from e2e.api_client import ApiError, Object, condition, finished
from e2e.control_plane import READY_SECONDS, ControlPlane
from e2e.gangs import (
    GPU,
    admitted,
    chosen_nodes,
    done,
    ended,
    entry_of,
    pause,
    ready,
    reason,
    running,
    running_pods,
    succeed,
    teams,
    workload_of,
)
from e2e.installed import NAMES, Installed, job, jobset, ours, pod_template
from e2e.invariants import check, report

H100 = {"gpu": "h100"}


def _nodes_of(cp: ControlPlane, namespace: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in running_pods(cp, namespace)}


def _cordon(cp: ControlPlane, names: set[str]) -> None:
    for name in names:
        cp.patch("nodes", name, {"spec": {"unschedulable": True}})


def _stop(cp: ControlPlane, queue: str, policy: str) -> None:
    cp.patch("clusterqueues", queue, {"spec": {"stopPolicy": policy}})


def _suspended(cp: ControlPlane, kind: str, namespace: str, name: str) -> bool:
    return bool(cp.get(kind, name, namespace)["spec"]["suspend"])


def _phases(cp: ControlPlane, namespace: str) -> list[str]:
    return [pod["status"]["phase"] for pod in cp.list("pods", namespace)]


def test_a_start_that_is_cut_short_gives_nothing_back_before_its_pods_are_gone(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(16, gpus=8, labels=H100)
    teams(cp, {"team-a": 128})
    cp.apply([job("team-a", "wide", 100, gpus=1, seconds=4), jobset("team-a", "set", {"w": (4, 5)}, gpus=1, seconds=4)])
    left = [("jobs", "wide"), ("jobsets", "set")]

    def stopped_as_they_start() -> bool:
        for kind, name in [one for one in left if not _suspended(cp, one[0], "team-a", one[1])]:
            pause(cp, kind, "team-a", name)
            left.remove((kind, name))
        return not left

    cp.wait(stopped_as_they_start, 30, "both to start", every=0.002)
    for kind, name in (("jobs", "wide"), ("jobsets", "set")):
        over = done(cp, kind, "team-a", name)  # on a slow machine its pods may be quicker than who stops them
        cp.wait(lambda n=name, o=over: not admitted(cp, "team-a", n) or o(), 40, f"{name} to be stopped")  # type: ignore[misc]
    assert not running_pods(cp, "team-a")
    time.sleep(2)
    assert not [p for p in cp.list("pods", "team-a") if p["status"]["phase"] != "Succeeded"], "pods after the stop"
    for kind, name in (("jobs", "wide"), ("jobsets", "set")):
        pause(cp, kind, "team-a", name, None)
        cp.wait(done(cp, kind, "team-a", name), 60, f"{name} to run when its owner lets it")


def test_a_jobset_that_starts_in_order_and_is_stopped_meanwhile_leaves_at_once(muster: Installed) -> None:
    """It says Suspended=True from before until the last of its Jobs is started."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(3, gpus=8, labels=H100)
    teams(cp, {"team-a": 24})
    sets = {"leader": (1, 1), "workers": (2, 1)}
    manifest = jobset("team-a", "set", sets, seconds=None, startupPolicy={"startupPolicyOrder": "InOrder"})
    notes = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"]
    notes |= {READY_SECONDS: "1000s", READY_SECONDS.replace("delay", "jitter-delay"): "1000s"}
    _stop(cp, "team-a", "Hold")
    cp.apply(manifest)

    def held() -> bool:
        return condition(cp.get("jobsets", "set", "team-a"), "Suspended") == "True"

    cp.wait(held, 30, "it to be held")
    _stop(cp, "team-a", "None")
    cp.wait(running(cp, "team-a", 1), 30, "its leader to start")
    assert held(), "it is not started as a whole"
    pause(cp, "jobsets", "team-a", "set")
    cp.wait(lambda: not admitted(cp, "team-a", "set"), 60, "it to be stopped")
    assert not cp.list("pods", "team-a")
    assert entry_of(workload_of(cp, "team-a", "set"), "Evicted")["message"] == "The job is paused by its owner"


def test_a_held_job_may_be_edited_and_starts_as_it_is_then(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 64})
    cp.apply(job("team-a", "edited", 4, seconds=None))
    cp.wait(lambda: reason(cp, "team-a", "edited")[0] == "TopologyPlacementFailed", 20, "it to wait for nodes")
    cp.patch("jobs", "edited", {"spec": {"parallelism": 2, "completions": 2}}, "team-a")
    cp.wait(running(cp, "team-a", 2), 30, "the smaller gang to run")
    found = workload_of(cp, "team-a", "edited")
    assert found is not None
    assert [p["count"] for p in found["status"]["admission"]["podSetAssignments"]] == [2]
    with pytest.raises(ApiError) as refusal:
        cp.patch("jobs", "edited", {"spec": {"parallelism": 3, "completions": 3}}, "team-a")
    assert refusal.value.status in (403, 422)
    # Paused it may be changed again: another shape on the same nodes.
    pause(cp, "jobs", "team-a", "edited")
    cp.wait(lambda: not admitted(cp, "team-a", "edited"), 30, "it to be stopped")
    entry = entry_of(workload_of(cp, "team-a", "edited"), "Evicted")
    assert (entry["status"], entry["reason"]) == ("True", "Deactivated")
    assert reason(cp, "team-a", "edited")[0]
    pause(cp, "jobs", "team-a", "edited", None)
    cp.wait(running(cp, "team-a", 2), 30, "it to run again")


def test_a_lost_node_moves_the_whole_gang_and_fails_nobody(muster: Installed) -> None:
    cp = muster.cp
    muster.started(config={"nodeLossGracePeriod": "3s"})
    cp.add_nodes(4, gpus=8, labels=H100)
    teams(cp, {"team-a": 32})
    cp.apply([job("team-a", "train", 2, seconds=None)])
    cp.wait(running(cp, "team-a", 2), 30, "its pods to run")
    lost = min(_nodes_of(cp, "team-a"))
    cp.set_node_ready(lost, False, wait=False)
    cp.wait(lambda: _suspended(cp, "jobs", "team-a", "train"), 10, "the whole gang to be suspended")
    entry = entry_of(workload_of(cp, "team-a", "train"), "Evicted")
    assert (entry["status"], entry["reason"]) == ("True", "NodeFailures"), entry
    assert lost in entry["message"], entry

    def moved() -> bool:
        pods = [p for p in running_pods(cp, "team-a") if "deletionTimestamp" not in p["metadata"]]
        return len(pods) == 2 and lost not in {p["spec"]["nodeName"] for p in pods}

    cp.wait(moved, 40, "the gang to run elsewhere")
    cp.set_node_ready(lost, True)  # and its old pod ends, which is no failure of the Job
    cp.wait(ended(cp, "jobs", "team-a", "train"), 40, "it to finish")
    assert finished(cp.get("jobs", "train", "team-a")) == "Complete"


def test_a_foreign_pod_of_higher_priority_breaks_no_gang(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 16})
    cp.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "loud"}, "value": 10**6}
    )
    cp.apply([job("team-a", "train", 2, seconds=None)])
    cp.wait(running(cp, "team-a", 2), 30, "its pods to run")
    template = pod_template(8)
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loud", "namespace": "default"},
        "spec": template["spec"] | {"priorityClassName": "loud"},
    }
    cp.create(pod)
    cp.wait(lambda: condition(cp.get("pods", "loud", "default"), "PodScheduled") == "False", 20, "it to find no room")
    cp.wait(ended(cp, "jobs", "team-a", "train"), 40, "the gang to finish unharmed")
    assert finished(cp.get("jobs", "train", "team-a")) == "Complete"
    cp.wait(lambda: cp.get("pods", "loud", "default")["spec"].get("nodeName"), 20, "then the foreign pod to run")
    # It holds a node now: a gang of two waits, and says why; one of one pod goes.
    cp.apply([job("team-a", "both", 2), job("team-a", "one", 1)])
    cp.wait(done(cp, "jobs", "team-a", "one"), 30, "a gang that fits beside it")
    cp.wait(lambda: reason(cp, "team-a", "both")[0] == "TopologyPlacementFailed", 20, "the other to be told")
    cp.delete("pods", "loud", "default", gracePeriodSeconds=0)
    cp.wait(done(cp, "jobs", "team-a", "both"), 30, "it to go when the node is free")


def test_an_indexed_job_that_was_half_done_asks_for_what_is_left(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels=H100)
    teams(cp, {"team-a": 32})
    template = pod_template(8, None)
    cp.apply([job("team-a", "train", 4, template=template)])
    cp.wait(lambda: _phases(cp, "team-a") == ["Running"] * 4, 30, "its pods to run")
    for pod in running_pods(cp, "team-a"):
        if pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] in ("0", "2"):
            succeed(cp, pod)
    cp.wait(lambda: cp.get("jobs", "train", "team-a")["status"].get("succeeded") == 2, 20, "two indexes to be done")
    _stop(cp, "team-a", "HoldAndDrain")
    cp.wait(lambda: not admitted(cp, "team-a", "train"), 30, "it to be evicted")
    _cordon(cp, {"node-0", "node-1"})
    _stop(cp, "team-a", "None")
    cp.wait(
        lambda: sorted(_phases(cp, "team-a")) == ["Running"] * 2 + ["Succeeded"] * 2, 30, "the rest to run on two nodes"
    )
    found = workload_of(cp, "team-a", "train")
    assert found is not None
    (assignment,) = found["status"]["admission"]["podSetAssignments"]
    assert assignment["count"] == 2
    assert assignment["resourceUsage"][GPU] == "16"
    again = {p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for p in running_pods(cp, "team-a")}
    assert again == {"1", "3"}
    assert _nodes_of(cp, "team-a") == {"node-2", "node-3"}
    for pod in running_pods(cp, "team-a"):
        succeed(cp, pod)
    cp.wait(done(cp, "jobs", "team-a", "train"), 30, "it to be complete")


def test_pods_without_an_index_are_gated_pinned_and_let_go(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels=H100)
    teams(cp, {"team-a": 32})
    cp.apply(
        [
            job("team-a", "loose", 3, gpus=4, seconds=None, completionMode="NonIndexed"),
            # More completions than pods at once: each that ends makes room for another, on the same nodes.
            job("team-a", "long", 2, gpus=4, seconds=None, completions=5),
        ]
    )
    cp.wait(running(cp, "team-a", 5), 30, "all pods to be let go")
    found = workload_of(cp, "team-a", "loose")
    assert found is not None
    bound = [
        p["spec"]["nodeName"] for p in running_pods(cp, "team-a") if p["metadata"]["labels"]["job-name"] == "loose"
    ]
    assert sorted(bound) == sorted(*chosen_nodes(found).values())
    # What its owner says of nodes binds also where pods are sent one by one: it narrows, and nothing of it is lost.
    free = "node-3"
    terms: list[Object] = [
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]},
        {"matchExpressions": [{"key": "nobody", "operator": "Exists"}]},
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    narrow = pod_template(4, 4, nodeSelector={"kubernetes.io/hostname": free}, affinity=affinity)
    cp.apply([job("team-a", "narrow", 1, template=narrow, completionMode="NonIndexed")])
    cp.wait(done(cp, "jobs", "team-a", "narrow"), 60, "it to run on the node that it names")
    (pod,) = [p for p in cp.list("pods", "team-a") if p["metadata"]["labels"]["job-name"] == "narrow"]
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    pin = [{"key": "metadata.name", "operator": "In", "values": [free]}]
    assert required["nodeSelectorTerms"] == [{**term, "matchFields": pin} for term in terms]
    assert (pod["spec"]["nodeName"], pod["spec"]["nodeSelector"]["kubernetes.io/hostname"]) == (free, free)
    cp.wait(ended(cp, "jobs", "team-a", "loose", "long"), 60, "both to finish")
    used = {p["spec"]["nodeName"] for p in cp.list("pods", "team-a") if p["metadata"]["labels"]["job-name"] == "long"}
    found = workload_of(cp, "team-a", "long")
    assert found is not None
    assert used <= set(*chosen_nodes(found).values())


def test_a_jobset_that_has_succeeded_before_its_pods_are_gone_is_charged_until_they_are(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 16})
    policy = {"operator": "Any", "targetReplicatedJobs": ["driver"]}
    value = jobset("team-a", "first", {"driver": (1, 1), "workers": (1, 2)}, gpus=4, seconds=None, successPolicy=policy)
    _, workers = [part["template"]["spec"] for part in value["spec"]["replicatedJobs"]]
    workers["template"]["metadata"]["finalizers"] = ["example.com/slow"]
    cp.apply([value])
    cp.wait(running(cp, "team-a", 3), 30, "its pods to run")
    cp.apply([job("team-a", "second", 2, seconds=1)])
    (driver,) = [pod for pod in running_pods(cp, "team-a") if "driver" in pod["metadata"]["name"]]
    succeed(cp, driver)
    cp.wait(done(cp, "jobsets", "team-a", "first"), 30, "the driver to end, and with it all of the set")
    going = [p for p in running_pods(cp, "team-a") if "workers" in p["metadata"]["name"]]
    assert len(going) == 2
    assert not entry_of(workload_of(cp, "team-a", "first"), "Finished")
    assert not admitted(cp, "team-a", "second")
    for pod in going:
        cp.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}}, "team-a")
    cp.wait(done(cp, "jobs", "team-a", "second"), 60, "the next to go when they are gone")
    assert entry_of(workload_of(cp, "team-a", "first"), "Finished")["reason"] == "Succeeded"


def test_a_pod_that_is_lost_after_long_has_time_to_come_back(muster: Installed) -> None:
    """A Job waits before it makes another for a pod that was taken away, and a JobSet that restarts has no pods for a
    moment: the time that pods had from the start of the gang has long gone by then."""
    cp = muster.cp
    first_leader = muster.started()  # pods have all the time that a busy machine takes to get them ready
    cp.add_nodes(4, gpus=8, labels=H100)
    teams(cp, {"team-a": 32})
    restarts = jobset("team-a", "set", {"workers": (2, 1)}, seconds=None, failurePolicy={"maxRestarts": 3})
    cp.apply([job("team-a", "train", 2, seconds=None, backoffLimit=6), restarts])
    cp.wait(ready(cp, "team-a", 4), 30, "their pods to be ready")
    first_leader.stop()
    muster.started(config={"waitForPodsReady": {"timeout": "2s", "recoveryTimeout": "60s"}})
    time.sleep(3)
    first = {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}
    one = {p["metadata"]["labels"]["job-name"]: p["metadata"]["name"] for p in running_pods(cp, "team-a")}
    cp.delete("pods", one["train"], "team-a")
    cp.patch("pods", one["set-workers-0"], {"status": {"phase": "Failed"}}, "team-a", subresource="status")

    def again() -> bool:
        pods = [p for p in running_pods(cp, "team-a") if "deletionTimestamp" not in p["metadata"]]
        return len(pods) == 4 and len({p["metadata"]["uid"] for p in pods} - first) == 3

    cp.wait(again, 60, "one pod to be made anew, and all of the set")
    for name in ("train", "set"):
        assert not entry_of(workload_of(cp, "team-a", name), "Evicted"), name


def test_pods_that_are_done_or_have_failed_stand_for_none_that_is_not_ready(muster: Installed) -> None:
    cp = muster.cp
    again = {"backoffBaseSeconds": 600}
    first_leader = muster.started()  # as above
    cp.add_nodes(6, gpus=8, labels=H100)
    teams(cp, {"team-a": 48})
    cp.apply([job("team-a", "fails", 2, seconds=None, backoffLimit=6), job("team-a", "ends", 4, seconds=None)])
    cp.wait(ready(cp, "team-a", 6), 30, "their pods to be ready")
    first_leader.stop()
    muster.started(config={"waitForPodsReady": {"timeout": "4s", "recoveryTimeout": "4s", "requeuingStrategy": again}})
    time.sleep(5)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    unready = [{"type": "Ready", "status": "False", "lastTransitionTime": now}]
    pods = sorted(running_pods(cp, "team-a"), key=lambda pod: pod["metadata"]["name"])
    ends = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"]["job-name"] == "ends"]
    fails = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"]["job-name"] == "fails"]
    for name in ends[:2]:
        status = {"phase": "Succeeded", "conditions": unready}
        cp.patch("pods", name, {"status": status}, "team-a", subresource="status")
    cp.wait(lambda: cp.get("jobs", "ends", "team-a")["status"].get("succeeded") == 2, 30, "two to be counted as done")
    time.sleep(5)
    assert not any(entry_of(workload_of(cp, "team-a", name), "Evicted") for name in ("ends", "fails"))
    unready[0]["lastTransitionTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    cp.patch("pods", ends[2], {"status": {"conditions": unready}}, "team-a", subresource="status")
    status = {"phase": "Failed", "conditions": unready}
    cp.patch("pods", fails[0], {"status": status}, "team-a", subresource="status")
    for name in ("ends", "fails"):
        cp.wait(lambda name=name: entry_of(workload_of(cp, "team-a", name), "Evicted"), 30, f"{name} to be evicted")  # type: ignore[misc]
        assert entry_of(workload_of(cp, "team-a", name), "Evicted")["reason"] == "PodsReadyTimeout"


def test_pods_of_another_namespace_are_no_part_of_a_gang_whatever_their_labels_say(muster: Installed) -> None:
    cp = muster.cp
    muster.started(config={"podsUnschedulableTimeout": "1s"})
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 16, "team-b": 0})
    cp.apply([job("team-a", "train", 2, seconds=None)])
    cp.wait(running(cp, "team-a", 2), 30, "its pods to run")
    found = workload_of(cp, "team-a", "train")
    assert found is not None
    labels = {
        NAMES.workload_uid_label: found["metadata"]["uid"],
        NAMES.pod_set_label: "main",
        "batch.kubernetes.io/controller-uid": found["metadata"]["labels"][NAMES.job_uid_label],
    }
    spec = pod_template(0)["spec"] | {"nodeSelector": {"nobody": "has-it"}}
    meta = {"name": "liar", "namespace": "team-b", "labels": labels}
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    cp.wait(lambda: condition(cp.get("pods", "liar", "team-b"), "PodScheduled") == "False", 20, "it to find no node")
    time.sleep(4)
    assert not entry_of(workload_of(cp, "team-a", "train"), "Evicted")
    pause(cp, "jobs", "team-a", "train")
    cp.wait(
        lambda: cp.get("clusterqueues", "team-a")["status"]["reservingWorkloads"] == 0, 40, "its quota to be free again"
    )
    pause(cp, "jobs", "team-a", "train", None)
    cp.wait(running(cp, "team-a", 2), 40, "it to run again")


def test_a_gang_that_is_admitted_again_with_less_gives_back_only_what_is_done(muster: Installed) -> None:
    """Nobody is admitted onto quota that pods still use: neither what was done before, nor workers of a queue of work
    that go on when the first of them has ended."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(6, gpus=8, labels=H100)
    teams(cp, {"team-a": 48})

    def one_ends(name: str) -> None:
        mine = [p for p in running_pods(cp, "team-a") if p["metadata"]["labels"]["job-name"] == name]
        succeed(cp, min(mine, key=lambda pod: str(pod["metadata"]["name"])))
        cp.wait(lambda: cp.get("jobs", name, "team-a")["status"].get("succeeded") == 1, 30, "one to be done")

    def held() -> str:
        return str(cp.get("clusterqueues", "team-a")["status"]["flavorsReservation"][0]["resources"][0]["total"])

    cp.apply([job("team-a", "train", 4, seconds=None)])
    cp.wait(running(cp, "team-a", 4), 30, "its pods to run")
    one_ends("train")
    pause(cp, "jobs", "team-a", "train")
    cp.wait(lambda: not admitted(cp, "team-a", "train"), 60, "it to give its quota back")
    pause(cp, "jobs", "team-a", "train", None)
    workers: dict[str, Any] = {"parallelism": 3, "completions": None, "completionMode": "NonIndexed"}
    cp.apply([job("team-a", "queue", 3, seconds=None, **workers)])
    cp.wait(running(cp, "team-a", 6), 40, "what is left of it to run, and a queue of work beside it")
    cp.wait(lambda: held() == "48", 10, "all of it to be counted")
    one_ends("queue")
    cp.apply([job("team-a", "next", 2, seconds=None)])  # one host is free, and it wants two
    cp.wait(lambda: held() == "40", 60, "what is done to be given back")
    time.sleep(6)
    assert held() == "40"
    assert not admitted(cp, "team-a", "next")


def test_what_its_owner_says_of_nodes_is_respected(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels=H100 | {"zone": "east"}, prefix="east")
    cp.add_nodes(2, gpus=8, labels=H100 | {"zone": "west"}, prefix="west")
    taint = {"spec": {"taints": [{"key": "special", "value": "yes", "effect": "NoSchedule"}]}}
    cp.add_nodes(1, gpus=8, labels=H100, prefix="special", extra=taint)
    teams(cp, {"team-a": 64})
    tolerates = [{"key": "special", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
    selector = {"kubernetes.io/hostname": "special-0"}
    terms = [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["west"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    rows: dict[str, tuple[int, dict[str, Any], set[str]]] = {
        "western": (2, {"nodeSelector": {"zone": "west"}}, {"west-0", "west-1"}),
        "eastern": (2, {"affinity": affinity}, {"east-0", "east-1"}),
        "chosen": (1, {"nodeSelector": selector, "tolerations": tolerates}, {"special-0"}),
    }
    for name, (pods, spec, _) in rows.items():
        cp.create(job("team-a", name, pods, template=pod_template(8, None, **spec)))
    cp.wait(running(cp, "team-a", 5), 30, "all to run")
    for name, (_, _, nodes) in rows.items():
        mine = [p for p in running_pods(cp, "team-a") if p["metadata"]["labels"]["job-name"] == name]
        assert {p["spec"]["nodeName"] for p in mine} == nodes, name


def test_a_job_deleted_while_it_runs_is_charged_until_its_pods_are_gone(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    muster.started()
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 16})
    template = pod_template(8, None)
    template["metadata"]["finalizers"] = ["example.com/slow"]
    cp.apply([job("team-a", "first", 2, template=template)])
    cp.wait(running(cp, "team-a", 2), 30, "its pods to run")
    cp.apply([job("team-a", "second", 2)])
    cp.delete("jobs", "first", "team-a")
    cp.wait(lambda: cp.find("jobs", "first", "team-a") is None, 20, "the Job to be gone")
    time.sleep(3)
    left = [p for p in cp.list("pods", "team-a") if "deletionTimestamp" in p["metadata"]]
    held = [p for p in left if p["status"]["phase"] in ("Pending", "Running")]
    if held:
        assert not admitted(cp, "team-a", "second"), "started while the pods of the other were still there"
    for pod in cp.list("pods", "team-a"):
        cp.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}}, "team-a")
    cp.wait(done(cp, "jobs", "team-a", "second"), 40, "the next to go")
    log.catch_up()
    violations = check(log, at_end=False)
    assert not violations, report(violations)


def test_priorities_order_a_queue_and_strict_queues_block(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels=H100)
    teams(cp, {"team-a": 8, "strict": 8}, strict={"queueingStrategy": "StrictFIFO"})
    for name, value in (("high", 100), ("low", -100)):
        meta = {"name": name}
        cp.apply({"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": meta, "value": value})
    cp.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "mid"}, "value": 50})
    cp.apply([ours("Cohort", "all", {})])
    muster.started()

    def classed(name: str, **options: Any) -> Object:
        return job("team-a", name, 1, seconds=1, **options)

    cp.create(job("team-a", "running", 1, seconds=None))
    cp.wait(lambda: admitted(cp, "team-a", "running"), 20, "the queue to be full")
    cp.create(job("strict", "filler", 1, seconds=None))
    cp.wait(lambda: admitted(cp, "strict", "filler"), 20, "the strict queue to be full")
    cp.create(classed("d-low", labels={NAMES.priority_class_label: "low"}))
    cp.create(classed("c-plain"))
    cp.create(classed("b-mid", template=pod_template(8, 1, priorityClassName="mid")))
    cp.create(classed("a-high", labels={NAMES.priority_class_label: "high"}))
    names = ["a-high", "b-mid", "c-plain", "d-low"]
    cp.wait(lambda: all(reason(cp, "team-a", name)[0] for name in names), 30, "all to wait")
    cp.wait(ended(cp, "jobs", "team-a", "running"), 30, "the queue to be free")
    cp.wait(done(cp, "jobs", "team-a", *names), 60, "all to finish")
    began = {name: cp.get("jobs", name, "team-a")["status"]["startTime"] for name in names}
    assert sorted(names, key=lambda name: began[name]) == names, began
    # The head of the strict queue waits for more than is free; nobody behind it goes first, not even what fits.
    cp.create(job("strict", "head", 2, gpus=8))
    time.sleep(1.1)
    cp.create(job("strict", "small", 1, gpus=0))
    cp.create(job("team-a", "small", 1, gpus=1))
    cp.wait(done(cp, "jobs", "team-a", "small"), 20, "another queue to go on")
    assert not admitted(cp, "strict", "small")
    assert not admitted(cp, "strict", "head")


def test_pods_that_are_not_ready_in_time_send_the_gang_back_with_more_patience_each_time(muster: Installed) -> None:
    cp = muster.cp
    again = {"backoffBaseSeconds": 1, "backoffMaxSeconds": 60, "backoffLimitCount": 2}
    muster.started(config={"waitForPodsReady": {"timeout": "2s", "requeuingStrategy": again}})
    cp.add_nodes(4, gpus=8, labels=H100)
    teams(cp, {"team-a": 32})
    template = pod_template(8, 1)
    template["metadata"]["annotations"][READY_SECONDS] = "90s"
    cp.apply([job("team-a", "stuck", 2, template=template), job("team-a", "fine", 2, seconds=1)])
    cp.wait(done(cp, "jobs", "team-a", "fine"), 30, "the other to run")
    times: list[str] = []

    def tries() -> int:
        found = workload_of(cp, "team-a", "stuck") or {}
        state = found.get("status", {}).get("requeueState") or {}
        if state.get("requeueAt") and state["requeueAt"] not in times:
            times.append(state["requeueAt"])
        return int(state.get("count", 0))

    cp.wait(lambda: tries() == 1, 30, "a first eviction")
    entry = entry_of(workload_of(cp, "team-a", "stuck"), "Evicted")
    assert (entry["status"], entry["reason"]) == ("True", "PodsReadyTimeout"), entry
    assert "0 of 2" in entry["message"]
    cp.wait(lambda: tries() == 2, 30, "a second")
    cp.wait(lambda: (workload_of(cp, "team-a", "stuck") or {})["spec"]["active"] is False, 40, "it to be given up")
    cp.wait(lambda: cp.get("clusterqueues", "team-a")["status"]["reservingWorkloads"] == 0, 60, "its quota to be back")
    assert len(times) == 2, times
    assert _suspended(cp, "jobs", "team-a", "stuck")


def test_a_drained_jobset_goes_elsewhere_and_keeps_nothing_of_its_old_place(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(3, gpus=8, labels=H100, prefix="old")
    teams(cp, {"team-a": 64})
    manifest = jobset("team-a", "sim", {"driver": (1, 1), "workers": (2, 1)}, seconds=None)

    def templates() -> dict[str, Any]:
        """Of the JobSet and its Jobs."""
        made = {one["metadata"]["name"]: one["spec"]["template"] for one in cp.list("jobs", "team-a")}
        return {**made, "": cp.get("jobsets", "sim", "team-a")["spec"]["replicatedJobs"]}

    _stop(cp, "team-a", "Hold")
    cp.apply(manifest)
    cp.wait(lambda: len(templates()) == 4, 30, "its Jobs to be made")
    before = templates()
    _stop(cp, "team-a", "None")
    cp.wait(running(cp, "team-a", 3), 30, "its pods to run")
    assert _nodes_of(cp, "team-a") == {"old-0", "old-1", "old-2"}
    _stop(cp, "team-a", "HoldAndDrain")
    cp.wait(lambda: not cp.list("pods", "team-a"), 30, "the queue to be drained")
    cp.wait(lambda: not admitted(cp, "team-a", "sim"), 20, "its quota to be given back")
    entry = entry_of(workload_of(cp, "team-a", "sim"), "Evicted")
    assert (entry["status"], entry["reason"]) == ("True", "ClusterQueueStopped")
    assert templates() == before
    _cordon(cp, {"old-0", "old-1", "old-2"})
    cp.add_nodes(3, gpus=8, labels=H100, prefix="new")
    _stop(cp, "team-a", "None")
    cp.wait(running(cp, "team-a", 3), 30, "its pods to run elsewhere")
    assert _nodes_of(cp, "team-a") == {"new-0", "new-1", "new-2"}
    cp.delete("jobsets", "sim", "team-a")
    # Kubernetes' garbage collector looks for new kinds every half a minute: this test stands last, that it knows them.
    cp.wait(lambda: workload_of(cp, "team-a", "sim") is None, 60, "its Workload to go")
    cp.wait(lambda: cp.get("clusterqueues", "team-a")["status"]["reservingWorkloads"] == 0, 60, "its quota to be back")
