"""Elastic flavors on the real control plane: nodes that are made when pods wait for them, and go when they like."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from click.testing import CliRunner

from admission.cli import cli
from e2e.api_client import finished
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, entry_of, running_pods, workload_of
from e2e.installed import Installed, cluster_queue, flavor, job, jobset, local_queue

SPOT = {"gpu": "h100", "capacity": "spot"}
RESERVED = {"gpu": "h100", "capacity": "reserved"}


class Autoscaler(threading.Thread):
    """Makes a spot node for each pod that kube-scheduler has found none for and that may be on one, up to so many, and
    removes none: whoever pays for them is patient for longer than a test."""

    def __init__(self, cp: ControlPlane, most: int) -> None:
        super().__init__(daemon=True)
        self._cp, self._most, self._made, self._over = cp, most, 0, threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(0.5):
            pods, nodes = self._cp.list("pods"), self._cp.list("nodes")
            waiting = sum(
                entry_of(pod, "PodScheduled").get("reason") == "Unschedulable"
                and pod["spec"].get("nodeSelector", {}).items() <= SPOT.items()
                for pod in pods
            )
            nodes = [node for node in nodes if SPOT.items() <= node["metadata"]["labels"].items()]
            open_ones = {node["metadata"]["name"] for node in nodes if not node["spec"].get("taints")}
            idle = open_ones - {pod["spec"].get("nodeName") for pod in pods}
            if (more := min(waiting - len(idle), self._most - len(nodes))) > 0:
                self._cp.add_nodes(more, labels=SPOT, prefix="spot", start=self._made)
                self._made += more


def spot(cp: ControlPlane) -> None:
    cp.apply([flavor("spot", SPOT, elastic=True), cluster_queue("team-a", {GPU: 64}, "spot")])
    cp.namespace("team-a")
    cp.apply([local_queue("team-a", "team-a")])


def pods_of(cp: ControlPlane, name: str) -> dict[str, str]:
    """Name -> node of the pods of a gang that run."""
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in running_pods(cp, "team-a")
        if pod["metadata"]["name"].startswith(f"{name}-") and not pod["metadata"].get("deletionTimestamp")
    }


def test_gangs_whose_nodes_go_start_anew_as_a_whole_and_fail_nobody(muster: Installed) -> None:
    """Kubernetes takes the pods off 40 s after a node was deleted, and a Job without retries fails with the first."""
    cp = muster.cp
    spot(cp)
    muster.started()
    with Autoscaler(cp, most=16):
        jobs = {name: job("team-a", name, 2, seconds=None) for name in ("deleted", "tainted", "untouched")}
        # As most jobs with GPUs have it. It bears some taints for good, and not the one that comes.
        jobs["tainted"]["spec"]["template"]["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
        cp.apply(list(jobs.values()))
        cp.apply([jobset("team-a", "set", {"w": (2, 1)}, seconds=None)])
        names = ("deleted", "tainted", "untouched", "set")
        cp.wait(lambda: all(len(pods_of(cp, name)) == 2 for name in names), 60, "all to run")
        first = {name: pods_of(cp, name) for name in names}
        gone = {name: min(first[name].values()) for name in names if name != "untouched"}
        cp.patch("node", gone["tainted"], {"spec": {"taints": [{"key": "reclaimed", "effect": "NoExecute"}]}})
        for name in ("deleted", "set"):
            cp.delete("node", gone[name])

        def moved(name: str) -> bool:
            now = pods_of(cp, name)
            return len(now) == 2 and not set(now) & set(first[name]) and gone[name] not in now.values()

        cp.wait(lambda: all(map(moved, ("deleted", "tainted", "set"))), 60, "them to run on others")
    assert pods_of(cp, "untouched") == first["untouched"]
    for name in names:
        one = cp.find("jobs", name, "team-a") or cp.get("jobsets", name, "team-a")
        assert (finished(one), one["status"].get("failed", 0), one["status"].get("restarts", 0)) == (None, 0, 0)
        status = (workload_of(cp, "team-a", name) or {})["status"]
        assert not status.get("avoidNodes"), "kube-scheduler chose them, and would again"


def test_a_gang_that_gets_no_nodes_on_one_flavor_is_tried_on_the_next(muster: Installed) -> None:
    """Of the reserved pool there is one node for two pods, and no autoscaler makes another."""
    cp = muster.cp
    queue = cluster_queue("team-a", {GPU: 64}, "reserved")
    (group,) = queue["spec"]["resourceGroups"]
    group["flavors"].append({**group["flavors"][0], "name": "spot"})
    cp.apply([flavor("reserved", RESERVED, elastic=True), flavor("spot", SPOT, elastic=True), queue])
    cp.namespace("team-a")
    cp.apply([local_queue("team-a", "team-a")])
    cp.add_nodes(1, labels=RESERVED, prefix="reserved")
    again = {"timeout": "5s", "recoveryTimeout": "5s", "requeuingStrategy": {"backoffBaseSeconds": 5}}
    muster.started(config={"waitForPodsReady": again})

    def told() -> str:
        return str(entry_of(workload_of(cp, "team-a", "any"), "Evicted").get("message", ""))

    with Autoscaler(cp, most=8):
        cp.apply([job("team-a", "any", 2, seconds=None)])
        cp.wait(lambda: told().endswith("Flavor spot is tried first next time"), 40, "it to give its place up")
        assert (workload_of(cp, "team-a", "any") or {})["status"]["outOfStock"] == ["reserved"]
        given = ["why", "any", "--namespace", "team-a", "--kubeconfig", str(cp.kubeconfig())]
        assert " ".join(told().split()) in " ".join(CliRunner().invoke(cli, given).output.split())
        cp.wait(
            lambda: any(told() in event.get("message", "") for event in cp.list("events", "team-a")),
            20,
            "an event that says so",
        )
        cp.wait(lambda: len(pods_of(cp, "any")) == 2, 60, "it to run where there are nodes")
        assert all(node.startswith("spot") for node in pods_of(cp, "any").values())


def test_a_node_that_comes_with_a_taint_stops_nobody(muster: Installed) -> None:
    """As where the agent of the network takes it off once it is ready there."""
    cp = muster.cp
    spot(cp)
    muster.started()
    cp.apply([job("team-a", "early", 2, seconds=None)])

    def waiting() -> list[str]:
        said = {pod["metadata"]["name"]: entry_of(pod, "PodScheduled").get("reason") for pod in cp.list("pods")}
        return [name for name, reason in said.items() if reason == "Unschedulable"]

    cp.wait(lambda: len(waiting()) == 2, 60, "its pods to wait for nodes")
    first = {pod["metadata"]["uid"] for pod in cp.list("pods", "team-a")}
    taint = {"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoExecute"}
    nodes = cp.add_nodes(2, labels=SPOT, prefix="spot", extra={"spec": {"taints": [taint]}})
    cp.wait(lambda: len(pods_of(cp, "early")) == 2, 60, "them to come")
    for node in nodes:
        cp.patch("node", node, {"spec": {"taints": None}})
    cp.add_nodes(2, labels=SPOT, prefix="spot", start=2)
    cp.apply([job("team-a", "late", 2, seconds=None)])
    cp.wait(lambda: len(pods_of(cp, "late")) == 2, 60, "the next to run")
    assert {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")} >= first
    assert not entry_of(workload_of(cp, "team-a", "early"), "Evicted")
