"""Kueue's own command line, `kueuectl`, beside Muster in Kueue mode: create, list, stop, resume, delete."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from admission.controller import policies
from admission.names import KUEUE_GROUP, Names
from admission.sandbox.play import free_port
from e2e import build
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, running_pods
from e2e.installed import Installed, job
from e2e.kueue import kinds
from e2e.test_migrate import unbind
from e2e.test_visibility import aggregated

KUEUE = Names(KUEUE_GROUP)
WORKLOADS = f"workloads.{KUEUE_GROUP}"
pytestmark = pytest.mark.skipif(build.find("kueuectl") is None, reason="python -m e2e.build kueuectl builds it")


@pytest.fixture
def kueue(muster: Installed) -> Iterator[ControlPlane]:
    """Two nodes, a namespace, Kueue's CRDs, and Muster with Kueue's group and its visibility API."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")
    port = free_port()
    with kinds(cp), aggregated(cp, port, KUEUE):
        cp.apply(policies.objects(KUEUE))
        muster.started(config={"apiGroup": KUEUE_GROUP, "web": {"bindAddress": f"127.0.0.1:{port}"}})
        yield cp
        unbind(cp)


def kueuectl(cp: ControlPlane, words: str) -> list[list[str]]:
    """The rows of what it prints."""
    environment = os.environ | {"KUBECONFIG": str(cp.kubeconfig())}
    command = [str(build.ensure(["kueuectl"], say=False)["kueuectl"]), *words.split()]
    answer = subprocess.run(command, check=False, env=environment, text=True, capture_output=True, timeout=60)
    assert answer.returncode == 0, f"{words}: {answer.stderr}"
    return [row.split() for row in answer.stdout.splitlines()]


def listed(cp: ControlPlane, more: str = "") -> dict[str, tuple[str, ...]]:
    """Job -> LocalQueue, ClusterQueue, status and, of who waits, position."""
    rows = kueuectl(cp, f"list workload -n team-a {more}")[1:]
    return {name: tuple(rest[: 4 if rest[2] == "PENDING" else 3]) for _, kind, name, *rest in rows if kind == "job"}


def test_kueuectl(kueue: ControlPlane) -> None:
    cp = kueue
    kueuectl(cp, "create resourceflavor h100 --node-labels gpu=h100")
    kueuectl(cp, f"create clusterqueue team-a --cohort all --nominal-quota h100:{GPU}=16")
    kueuectl(cp, "create localqueue main --clusterqueue team-a --namespace team-a")
    jobs = {
        name: job("team-a", name, 2, gpus=8, seconds=None, queue=None, labels={KUEUE.queue_label: "main"})
        for name in ("train", "next")
    }
    held = lambda: cp.create(jobs["train"], dryRun="All")["spec"].get("suspend")  # noqa: E731
    cp.wait(held, 30, "the policies to hold a job")
    cp.create(jobs["train"])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 60, "it to run")
    cp.create(jobs["next"])

    def are(**states: str) -> None:
        """Each job is ADMITTED, or PENDING in this position."""
        wanted = {name: ("main", "team-a", *state.split()) for name, state in states.items()}
        cp.wait(lambda: listed(cp) == wanted, 60, f"{states}", describe=lambda: listed(cp))

    def queues_are(pending: int, admitted: int, *, active: bool) -> None:
        def told() -> bool:
            cluster = kueuectl(cp, f"list clusterqueue --active {str(active).lower()}")[1:]
            return [row[:5] for row in cluster] == [["team-a", "all", f"{pending}", f"{admitted}", f"{active}".lower()]]

        cp.wait(told, 30, "the queue's numbers", describe=lambda: kueuectl(cp, "list clusterqueue"))

    are(train="ADMITTED", next="PENDING 0")
    queues_are(1, 1, active=True)
    assert listed(cp, "--for job/next") == {"next": ("main", "team-a", "PENDING", "0")}
    assert [row[:4] for row in kueuectl(cp, "list localqueue -n team-a")[1:]] == [["main", "team-a", "1", "1"]]
    pods = kueuectl(cp, "list pods -n team-a --for job/train")[1:]
    assert sorted(row[0] for row in pods) == sorted(pod["metadata"]["name"] for pod in running_pods(cp, "team-a"))

    names = {one["metadata"]["ownerReferences"][0]["name"]: one["metadata"]["name"] for one in cp.list(WORKLOADS)}
    kueuectl(cp, f"stop workload {names['train']} -n team-a")
    are(train="PENDING 0", next="ADMITTED")
    queues_are(0, 1, active=True)  # by Kueue's rules nobody counts who is stopped
    kueuectl(cp, f"resume workload {names['train']} -n team-a")
    queues_are(1, 1, active=True)
    kueuectl(cp, "stop clusterqueue team-a")
    are(train="PENDING 0", next="PENDING 1")
    queues_are(2, 0, active=False)
    cp.wait(lambda: not running_pods(cp, "team-a"), 60, "no pod to run")
    kueuectl(cp, "resume clusterqueue team-a")
    are(train="ADMITTED", next="PENDING 0")
    kueuectl(cp, "stop localqueue main -n team-a --keep-already-running")
    kueuectl(cp, f"stop workload {names['train']} -n team-a")
    cp.wait(lambda: not running_pods(cp, "team-a"), 60, "no pod to run in a queue that is stopped")
    kueuectl(cp, "resume localqueue main -n team-a")
    are(train="PENDING 0", next="ADMITTED")
    kueuectl(cp, "delete workload --all -n team-a --yes")
    cp.wait(lambda: not cp.list("jobs", "team-a"), 60, "the jobs to go with their Workloads")
    # It leaves the pods of jobs behind, by Kubernetes' default: they hold their quota for as long as they run.
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "its pods to go on")
    assert [one["metadata"]["name"] for one in cp.list(WORKLOADS)] == [names["next"]]
    for pod in running_pods(cp, "team-a"):
        cp.delete("pods", pod["metadata"]["name"], "team-a")
    cp.wait(lambda: not cp.list(WORKLOADS), 60, "its Workload to end with them")
