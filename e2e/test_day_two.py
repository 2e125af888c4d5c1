"""What a platform team does, and what happens to it, with gangs that run: while nobody leads, and by tools that delete
what they make anew."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from admission.cli import cli
from e2e.api_client import Object
from e2e.control_plane import ControlPlane
from e2e.gangs import (
    GPU,
    WORKLOADS,
    admitted,
    entry_of,
    let_collector_know_workloads,
    reason,
    running_pods,
    teams,
    workload_of,
)
from e2e.installed import NAMES, USER, Installed, cluster_queue, cohort, flavor, job, jobset, local_queue, ours

TEAMS = ("team-a", "team-b", "team-c", "team-d", "team-e")
FLAVORS = [flavor(labels={"gpu": "h100"}), flavor("old", labels={"gpu": "a100"})]


def quota(name: str, gpus: int, *flavors: str, in_cohort: str = "all", **spec: Any) -> Object:
    """A ClusterQueue with quota of the first flavor, and nothing but what it borrows of the others."""
    made = cluster_queue(name, {GPU: gpus}, flavors[0] if flavors else "gpu", cohortName=in_cohort, **spec)
    for more in flavors[1:]:
        of_more = {"name": more, "resources": [{"name": GPU, "nominalQuota": "0"}]}
        made["spec"]["resourceGroups"][0]["flavors"].append(of_more)
    return made


def reserved(cp: ControlPlane) -> dict[str, int]:
    """ClusterQueue -> GPUs that its status says are reserved, of all flavors."""
    out = {}
    for queue in cp.list("clusterqueues"):
        of = (queue.get("status") or {}).get("flavorsReservation") or ()
        out[queue["metadata"]["name"]] = sum(int(one["resources"][0]["total"]) for one in of)
    return {name: amount for name, amount in out.items() if amount}


def live_pods(cp: ControlPlane) -> dict[str, str]:
    """uid -> namespace/job of pods of GPU jobs that run."""
    return {
        pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['labels']['job-name']}"
        for team in TEAMS
        for pod in running_pods(cp, team)
    }


def test_what_changed_while_nobody_led_is_taken_in_and_nobody_is_stopped_for_it(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(10, gpus=8, labels={"gpu": "h100"})
    cp.add_nodes(1, gpus=8, labels={"gpu": "a100"}, prefix="old")
    cp.apply([*FLAVORS, cohort("all"), cohort("other")])
    cp.apply({"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": {"name": "p"}, "value": 5})
    for team in TEAMS:
        cp.namespace(team)
        cp.apply([quota(team, 16, "gpu", "old"), local_queue(team, team)])
    leader = muster.started()
    cp.create_all([job(team, name, seconds=None) for team in TEAMS for name in ("first", "second")])
    cp.wait(lambda: len(live_pods(cp)) == 10, 60, "two gangs of each team to run")
    waits = [job(team, "waits", 2, seconds=None, labels={NAMES.priority_class_label: "p"}) for team in TEAMS]
    cp.create_all(waits)
    cp.wait(lambda: all(reason(cp, team, "waits")[0] for team in TEAMS), 60, "the others to be told why they wait")
    let_collector_know_workloads(cp)
    before = live_pods(cp)
    leader.kill()
    muster.forget_leader()

    # A queue is renamed: the LocalQueue is made anew, and the old one goes when it may. Until then the new one is on
    # hold, for its quota is there twice.
    cp.apply([quota("renamed", 16, stopPolicy="Hold")])
    cp.delete("localqueues", "main", "team-a")
    cp.wait(lambda: cp.find("localqueues", "main", "team-a") is None, 10, "the LocalQueue to go")
    cp.apply([local_queue("team-a", "renamed")])
    cp.delete("clusterqueues", "team-a")
    # Quota is cut below what is used, a flavor taken away, a queue moved to another cohort.
    cp.apply([quota("team-b", 8), quota("team-c", 8, "old"), quota("team-d", 16, in_cohort="other")])
    # A node's labels say another flavor.
    node = cp.list("pods", "team-d", labelSelector="job-name=first")[0]["spec"]["nodeName"]
    cp.patch("nodes", node, {"metadata": {"labels": {"gpu": "a100"}}})
    # The class has another value, and an administrator switches one off and stops one by hand.
    cp.delete("workloadpriorityclasses", "p")
    cp.apply({"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": {"name": "p"}, "value": 7})
    off = (workload_of(cp, "team-b", "waits") or {})["metadata"]["name"]
    cp.patch(WORKLOADS, off, {"spec": {"active": False}}, "team-b")
    stopped = {"spec": {"suspend": True}}
    assert cp.patch("jobs", "second", stopped, "team-e", fieldManager=NAMES.job_manager)["spec"]["suspend"] is True
    # One is deleted and its pods live on, another with its pods; a third is made anew under its name.
    cp.delete("jobs", "second", "team-d", propagationPolicy="Orphan")
    cp.delete("jobs", "second", "team-c", propagationPolicy="Foreground")
    cp.delete("jobs", "waits", "team-d", propagationPolicy="Background")
    cp.wait(lambda: cp.find("jobs", "waits", "team-d") is None, 30, "it to go")
    cp.create(job("team-d", "waits", 1, seconds=None))
    cp.wait(lambda: workload_of(cp, "team-c", "second") is None, 30, "what stood for it to go")
    mark = cp.audit_mark()
    leader = muster.started()

    # Of team-c: quota of its new flavor alone, and one node of that is free. Of team-e: stopped by hand, queued anew.
    def said() -> dict[str, str]:
        return {team: reason(cp, team, "waits")[0] for team in TEAMS}

    told = {
        "team-a": "OnHold",
        "team-b": "Deactivated",
        "team-c": "ExceedsMaxQuota",
        "team-d": "WaitingForQuota",
        "team-e": "WaitingForQuota",
    }
    cp.wait(lambda: said() == told, 60, "each that waits to be told why, as it is now")
    cp.wait(lambda: admitted(cp, "team-e", "second"), 60, "who was stopped by hand to be admitted again")
    cp.wait(lambda: len(live_pods(cp)) == 9, 60, "it to run")
    after = live_pods(cp)
    gone = Counter(before[uid] for uid in before.keys() - after.keys())
    assert gone == {"team-c/second": 1, "team-e/second": 1}, "what was deleted, and what was stopped by hand"
    assert Counter(after.values()) == Counter(before.values()) - Counter(["team-c/second"])
    assert entry_of(workload_of(cp, "team-e", "second"), "Requeued")["reason"] == "OutOfSync"
    assert (workload_of(cp, "team-e", "waits") or {})["spec"]["priority"] == 7
    # What is charged is what runs, by queue; and the queue that was renamed goes with the last of its gangs.
    each = {"team-a": 16, "team-b": 16, "team-c": 8, "team-d": 16, "team-e": 16}
    cp.wait(lambda: reserved(cp) == each, 20, "what is charged to be what runs")
    for name in ("first", "second"):
        cp.delete("jobs", name, "team-a", propagationPolicy="Background")
    cp.wait(lambda: cp.find("clusterqueues", "team-a") is None, 60, "the old queue to go")
    cp.apply([quota("renamed", 16)])
    cp.wait(lambda: admitted(cp, "team-a", "waits"), 60, "the new one to admit")
    refused = [e for e in cp.audit_events(mark) if e["user"]["username"] == USER and e["responseStatus"]["code"] >= 400]
    assert len(refused) < 5, refused


def test_quota_that_a_tool_deletes_and_makes_anew_is_charged_again(muster: Installed) -> None:
    """All of it, in any order, with gangs that run; then by force, as who takes the finalizers off."""
    cp = muster.cp
    for rack in ("r0", "r1"):
        cp.add_nodes(2, gpus=8, labels={"gpu": "h100", "rack": rack}, prefix=rack)
    levels = {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}
    made = [
        ours("Topology", "racks", levels),
        flavor(labels={"gpu": "h100"}, topologyName="racks"),
        cohort("all"),
        *(quota(team, 16) for team in TEAMS[:2]),
        *(local_queue(team, team) for team in TEAMS[:2]),
    ]
    for team in TEAMS[:2]:
        cp.namespace(team)
    cp.apply(made)
    leader = muster.started()
    cp.create_all([job("team-a", "runs", 2, seconds=None), jobset("team-b", "runs", {"w": (2, 1)}, seconds=None)])
    cp.wait(lambda: len(live_pods(cp)) == 4, 60, "both to run")
    cp.create(job("team-a", "waits", 2, seconds=None))
    cp.wait(lambda: reason(cp, "team-a", "waits")[0] == "WaitingForQuota", 30, "another to wait")
    before, each = live_pods(cp), {"team-a": 16, "team-b": 16}
    everything = yaml.safe_dump_all(made)

    def why() -> str:
        return reason(cp, "team-a", "waits")[1]

    cp.kubectl("delete", "--wait=false", "-f", "-", input=everything)
    cp.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(made[::-1]))
    cp.wait(lambda: "is terminating" in why(), 30, "that its queue is being deleted to be told")
    assert reserved(cp) == each
    cp.kubectl("delete", "--wait=false", "-f", "-", input=everything)
    for kind in ("topologies", "resourceflavors", "clusterqueues"):
        for one in cp.list(kind):
            cp.patch(kind, one["metadata"]["name"], {"metadata": {"finalizers": None}})
    cp.wait(lambda: "does not exist" in why(), 30, "that its queue is gone to be told")
    cp.kubectl("apply", "-f", "-", input=everything)
    cp.wait(lambda: reserved(cp) == each, 30, "what runs to be charged as before")
    cp.wait(lambda: reason(cp, "team-a", "waits")[0] == "WaitingForQuota", 30, "what waits to wait for it")
    # A leader that was not there for any of it sees the same.
    leader.stop()
    muster.started()
    assert live_pods(cp) == before
    assert reserved(cp) == each
    cp.delete("jobs", "runs", "team-a", propagationPolicy="Background")
    cp.wait(lambda: admitted(cp, "team-a", "waits"), 60, "the next to have its place")


def test_who_is_refused_pods_is_told_by_whom_and_gives_back_all_that_it_has(muster: Installed) -> None:
    """One pod of two, by a ResourceQuota; all, by PodSecurity; and the Jobs of a JobSet, of which one is refused."""
    cp = muster.cp
    cp.add_nodes(6, gpus=8, labels={"gpu": "h100"})
    cp.apply([flavor(labels={"gpu": "h100"}), cluster_queue("all", {GPU: 48})])
    limits = {"team-a": {"pods": "2"}, "team-b": {}, "team-c": {"count/jobs.batch": "1"}}
    for team, hard in limits.items():
        cp.namespace(team, {"pod-security.kubernetes.io/enforce": "restricted"} if team == "team-b" else {})
        cp.apply(local_queue(team, "all"))
        if hard:
            meta = {"name": "few", "namespace": team}
            cp.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}})
            cp.wait(lambda team=team: cp.get("resourcequotas", "few", team).get("status"), 20, "it to count")  # type: ignore[misc]
    spec = {"nodeSelector": {"gpu": "none"}, "containers": [{"name": "c", "image": "c"}]}
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "team-a"}, "spec": spec})
    never = {"backoffBaseSeconds": 600}
    muster.started(config={"waitForPodsReady": {"timeout": "8s", "recoveryTimeout": "8s", "requeuingStrategy": never}})
    cp.create_all([job(team, "gang", 2, seconds=None) for team in ("team-a", "team-b")])
    cp.create(jobset("team-c", "gang", {"w": (2, 1)}, seconds=None))
    cp.create(job("team-a", "never", 3, seconds=None))
    says = {
        "team-a": "exceeded quota: few, requested: pods=1",
        "team-b": "violates PodSecurity",
        "team-c": "exceeded quota: few, requested: count/jobs.batch=1",
    }

    def why(team: str, name: str = "gang") -> str:
        given = ["why", name, "--namespace", team, "--kubeconfig", str(cp.kubeconfig())]
        return CliRunner().invoke(cli, given).output.replace("\n", " ")

    for team, words in says.items():
        cp.wait(lambda team=team, words=words: words in why(team), 30, f"the gang of {team} to be told who refuses it")  # type: ignore[misc]
    for team, words in says.items():
        cp.wait(lambda team=team: entry_of(workload_of(cp, team, "gang"), "Evicted"), 30, f"{team} to be evicted")  # type: ignore[misc]
        left = entry_of(workload_of(cp, team, "gang"), "Evicted")
        assert left["reason"] == "PodsReadyTimeout"
        assert "the API server refuses more: " in left["message"]
        assert words in left["message"]
    # Whom it could never hold gets nothing, and needs not try.
    words = "ResourceQuota 'few' allows 2 pods in the namespace, and its pods ask for 3 at once"
    assert words in why("team-a", "never")
    assert workload_of(cp, "team-a", "never") is None
    # The controller of the JobSet is stuck, and is waited for before its share is given to others.
    cp.wait(lambda: reserved(cp) == {"all": 16}, 30, "the two others to give all of it back")
    assert not live_pods(cp)


def test_a_node_that_is_relabelled_keeps_its_gang_until_a_pod_is_made_again(muster: Installed) -> None:
    """The gang goes whole to the nodes that are left; why says meanwhile where to look."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    muster.started(config={"podsUnschedulableTimeout": "6s"})
    cp.create(job("team-a", "runs", 2, gpus=4, seconds=None, backoffLimit=6))
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "the gang to run")
    (old,) = {pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a")}
    cp.patch("node", old, {"metadata": {"labels": {"gpu": "h200"}}})
    cp.delete("pods", running_pods(cp, "team-a")[0]["metadata"]["name"], "team-a")
    given = ["why", "runs", "--namespace", "team-a", "--kubeconfig", str(cp.kubeconfig())]
    cp.wait(lambda: "relabelled" in CliRunner().invoke(cli, given).output, 40, "why to point at the nodes")

    def elsewhere() -> bool:
        hosts = {pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a")}
        return len(running_pods(cp, "team-a")) == 2 and old not in hosts

    cp.wait(elsewhere, 60, "all of it to be on the other node")
    status = (workload_of(cp, "team-a", "runs") or {})["status"]
    assert not status.keys() & {"requeueState", "avoidNodes"}, "it is neither a failed try nor the fault of the node"


def test_a_right_that_is_taken_away_is_told_on_the_job_and_it_starts_when_that_is_back(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    muster.started()
    role = cp.get("clusterroles", "muster-controller")
    rules = [
        {**rule, "verbs": [v for v in rule["verbs"] if v != "patch"]} if rule["resources"] == ["jobs"] else rule
        for rule in role["rules"]
    ]
    cp.patch("clusterroles", "muster-controller", {"rules": rules})
    cp.create(job("team-a", "waits", seconds=None))
    given = ["why", "waits", "--namespace", "team-a", "--kubeconfig", str(cp.kubeconfig())]

    def told() -> bool:
        said = CliRunner().invoke(cli, given).output.replace("\n", " ")
        return "NotStarted" in said and 'cannot patch resource "jobs"' in said

    cp.wait(told, 30, "the job to be told which right is missing")
    cp.patch("clusterroles", "muster-controller", {"rules": role["rules"]})
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 60, "it to run")


def test_who_could_not_be_heard_of_while_the_api_server_was_away_has_his_time_anew(tmp_path: Path) -> None:
    """Its kubelets say that its pods are ready when they are back, which is later than the controller."""
    with ControlPlane(users={"muster": ("controllers",)}) as cp:
        Installed.install(cp)
        with Installed(cp, tmp_path) as muster:
            cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
            teams(cp, {"team-a": 8})
            muster.started(config={"waitForPodsReady": {"timeout": "15s", "recoveryTimeout": "15s"}})
            cp.kill("kwok")
            cp.create(job("team-a", "starts", seconds=None))
            cp.wait(lambda: [p for p in cp.list("pods", "team-a") if p["spec"].get("nodeName")], 30, "it to be placed")
            cp.kill("kube-apiserver")
            time.sleep(16)
            cp.restart("kube-apiserver")
            for name in ("kube-controller-manager", "kube-scheduler"):
                cp.restart(name)

            def led() -> int:
                return sum(line.get("event") == "leading" for line in muster.replicas[0].lines())

            cp.wait(lambda: led() == 2, 60, "the controller to lead again")
            time.sleep(3)
            cp.restart("kwok")
            cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 60, "it to run")
            assert "Evicted" not in str(workload_of(cp, "team-a", "starts"))
