"""What tests of gangs set up and ask: teams with quota, and what became of a job by the API objects alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.api_client import condition, finished
from e2e.control_plane import RUN_SECONDS, ControlPlane
from e2e.installed import NAMES, cluster_queue, cohort, flavor, job, local_queue, ours

GPU = "nvidia.com/gpu"
WORKLOADS = f"workloads.{NAMES.group}"


def teams(cp: ControlPlane, quotas: dict[str, int], **specs: Any) -> None:
    """A team each: namespace, LocalQueue `main`, ClusterQueue of its name in cohort `all`."""
    cp.apply([flavor(labels={"gpu": "h100"}), cohort("all")])
    for team, gpus in quotas.items():
        cp.namespace(team)
        cp.apply([cluster_queue(team, {GPU: gpus}, cohortName="all", **specs.get(team, {})), local_queue(team, team)])


def workload_of(cp: ControlPlane, namespace: str, name: str) -> dict[str, Any] | None:
    for one in cp.list(WORKLOADS, namespace):
        if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences") or ()):
            return dict(one)
    return None


def entry_of(obj: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """A condition, or {}."""
    entries = ((obj or {}).get("status") or {}).get("conditions") or ()
    return next((dict(entry) for entry in entries if entry["type"] == kind), {})


def reason(cp: ControlPlane, namespace: str, name: str) -> tuple[str, str]:
    """(reason, message) of the gang's condition QuotaReserved."""
    entry = entry_of(workload_of(cp, namespace, name), "QuotaReserved")
    return entry.get("reason", ""), entry.get("message", "")


def pause(cp: ControlPlane, kind: str, namespace: str, name: str, said: str | None = "true") -> None:
    """Its owner takes it out of the queue, or stops it; None: lets it go on."""
    cp.patch(kind, name, {"metadata": {"labels": {NAMES.pause_label: said}}}, namespace)


def admitted(cp: ControlPlane, namespace: str, name: str) -> bool:
    return entry_of(workload_of(cp, namespace, name), "Admitted").get("status") == "True"


def done(cp: ControlPlane, kind: str, namespace: str, *names: str) -> Callable[[], bool]:
    def look() -> bool:
        there = {one["metadata"]["name"]: one for one in cp.list(kind, namespace)}
        return all(finished(there[name]) for name in names)

    return look


def ended(cp: ControlPlane, kind: str, namespace: str, *names: str) -> Callable[[], bool]:
    """As `done`, of gangs that run until they are stopped, which a test looks at for as long as it likes: each look
    ends the pods that run."""
    over = done(cp, kind, namespace, *names)

    def look() -> bool:
        for pod in running_pods(cp, namespace):
            owner = pod["metadata"]["labels"]
            if {owner["job-name"], owner.get("jobset.sigs.k8s.io/jobset-name")} & set(names):
                succeed(cp, pod)
        return over()

    return look


def succeed(cp: ControlPlane, pod: dict[str, Any]) -> None:
    """Have a pod that is ready end well. By whoever plays its kubelet: he may be about to say once more that it runs,
    and would say so over what another wrote."""
    meta = pod["metadata"]
    cp.patch("pods", meta["name"], {"metadata": {"annotations": {RUN_SECONDS: "10ms"}}}, meta["namespace"])


def running_pods(cp: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    return [
        dict(pod)
        for pod in cp.list("pods", namespace)
        if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running")
    ]


def running(cp: ControlPlane, namespace: str, count: int) -> Callable[[], bool]:
    """So many pods are on nodes, and not done."""
    return lambda: len(running_pods(cp, namespace)) == count


def ready(cp: ControlPlane, namespace: str, count: int) -> Callable[[], bool]:
    return lambda: [condition(pod, "Ready") for pod in running_pods(cp, namespace)] == ["True"] * count


def chosen_nodes(workload: dict[str, Any]) -> dict[str, list[str]]:
    """Pod set -> node names in rank order, as the Workload's status says."""
    out: dict[str, list[str]] = {}
    for assignment in workload["status"]["admission"]["podSetAssignments"]:
        nodes: list[str] = []
        for part in assignment["topologyAssignment"]["slices"]:
            values, counts = part["valuesPerLevel"][-1], part["podCounts"]
            if "universal" in values:
                names = [values["universal"]] * part["domainCount"]
            else:
                said = values["individual"]
                names = [said.get("prefix", "") + root + said.get("suffix", "") for root in said["roots"]]
            each = counts.get("individual") or [counts["universal"]] * part["domainCount"]
            for name, count in zip(names, each, strict=True):
                nodes += [name] * count
        out[assignment["name"]] = nodes
    return out


def let_collector_know_workloads(cp: ControlPlane) -> None:
    """Garbage is collected of kinds that the collector has heard of, half a minute after they came: before that a Job
    that is deleted with `Orphan` leaves its Workload an owner that is gone."""
    owner = cp.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": "team-a"}})
    template = job("team-a", "owned", seconds=None)["spec"]["template"]
    owned = ours("Workload", "owned", {"podSets": [{"name": "main", "count": 1, "template": template}]}, "team-a")
    uid = owner["metadata"]["uid"]
    owned["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]
    cp.create(owned)
    cp.delete("configmaps", "owner", "team-a")
    cp.wait(lambda: cp.find(WORKLOADS, "owned", "team-a") is None, 90, "the collector of garbage to know Workloads")
