"""What is played: queues, workloads, nodes, as numbers. Facts of Kueue's own benchmark; cpu in whole cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
QUOTA = 20
"""Nominal cores of a ClusterQueue; it may borrow 100 more."""
RACK = "cloud.provider.com/topology-rack"
BLOCK = "cloud.provider.com/topology-block"
HOST = "kubernetes.io/hostname"
RUN_LABEL = f"{GROUP}/performance-scheduler-running-ms"
CLASS_LABEL = f"{GROUP}/performance-scheduler-class"

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Set:
    """Workloads of one kind in each queue; one is created every `every_ms`."""

    name: str
    count: int
    every_ms: int
    run_ms: int
    priority: int
    cores: int
    pods: int = 1
    topology: tuple[tuple[str, Any], ...] = ()
    """Of spec.podSets[].topologyRequest."""


@dataclasses.dataclass(frozen=True)
class Size:
    name: str
    cohorts: int
    queues: int
    """In each cohort."""
    sets: tuple[Set, ...]
    racks: int = 0
    hosts: int = 0
    """In each rack."""

    @property
    def workloads(self) -> int:
        return self.cohorts * self.queues * sum(one.count for one in self.sets)

    @property
    def core_seconds(self) -> float:
        """What all of it asks for."""
        return self.cohorts * self.queues * sum(one.count * one.cores * one.run_ms for one in self.sets) / 1000

    @property
    def quota_bound_s(self) -> float:
        """Nobody is quicker than that, with all quota in use all the time."""
        return self.core_seconds / (self.cohorts * self.queues * QUOTA)

    def scaled(self, scale: float) -> Size:
        """Fewer workloads, in the same queues."""
        sets = tuple(dataclasses.replace(one, count=max(1, round(one.count * scale))) for one in self.sets)
        return dataclasses.replace(self, sets=sets)


def _three_ways(name: str, counts: tuple[int, int, int], slice_size: int, **rest: Any) -> tuple[Set, ...]:
    ways: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
        ("required", (("required", RACK),)),
        ("preferred", (("preferred", RACK),)),
        ("balanced", (("podSetSliceRequiredTopology", RACK), ("podSetSliceSize", slice_size))),
    )
    return tuple(
        Set(f"{name}-{way}", count, topology=topology, **rest)
        for (way, topology), count in zip(ways, counts, strict=True)
    )


SIZES = {
    size.name: size
    for size in (
        Size(
            "baseline",
            cohorts=5,
            queues=6,
            sets=(
                Set("small", 350, every_ms=100, run_ms=200, priority=50, cores=1),
                Set("medium", 100, every_ms=500, run_ms=500, priority=100, cores=5),
                Set("large", 50, every_ms=1200, run_ms=1000, priority=200, cores=20),
            ),
        ),
        Size(
            "large_scale",
            cohorts=10,
            queues=100,
            sets=(
                Set("small", 35, every_ms=60, run_ms=150, priority=50, cores=1),
                Set("medium", 11, every_ms=300, run_ms=350, priority=100, cores=5),
                Set("large", 4, every_ms=700, run_ms=700, priority=200, cores=20),
            ),
        ),
        Size(
            "topology",
            cohorts=5,
            queues=6,
            sets=(
                *_three_ways(
                    "small", (120, 120, 110), 1, every_ms=100, run_ms=200, priority=50, cores=1, pods=2
                ),
                *_three_ways("medium", (34, 33, 33), 2, every_ms=500, run_ms=500, priority=100, cores=5, pods=4),
                *_three_ways("large", (17, 17, 16), 4, every_ms=1200, run_ms=1000, priority=200, cores=20, pods=8),
            ),
            racks=10,
            hosts=64,
        ),
    )
}  # fmt: skip


def nodes(size: Size) -> Iterator[Object]:
    for rack in range(size.racks):
        for host in range(size.hosts):
            name = f"node-b0-r{rack}-n{host}"
            amounts = {"cpu": "96", "memory": "256Gi", "pods": "110"}
            labels = {BLOCK: "b0", RACK: f"b0-r{rack}", HOST: name, "tas-node-group": "true"}
            status = {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
            }
            yield {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "status": status,
            }


def shared(size: Size) -> Iterator[Object]:
    """The flavor, and its topology."""
    spec: Object = {}
    if size.racks:
        levels = [{"nodeLabel": label} for label in (BLOCK, RACK, HOST)]
        yield _object("Topology", "default-topology", {"levels": levels})
        spec = {"nodeLabels": {"tas-node-group": "true"}, "topologyName": "default-topology"}
    yield _object("ResourceFlavor", "rf", spec)


def queue_names(size: Size) -> Iterator[tuple[str, str]]:
    """(queue, its cohort); a queue's namespace and LocalQueue have its name."""
    for cohort in range(size.cohorts):
        for queue in range(size.queues):
            yield f"cq-{cohort}-{queue}", f"cohort-{cohort}"


def queue(name: str, cohort: str) -> list[Object]:
    """ClusterQueue, Namespace and LocalQueue."""
    quota = {"name": "cpu", "nominalQuota": str(QUOTA), "borrowingLimit": "100"}
    spec = {
        "cohortName": cohort,
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "rf", "resources": [quota]}]}],
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        _object("ClusterQueue", name, spec),
        _object("LocalQueue", name, {"clusterQueue": name}, namespace=name),
    ]


def workload(kind: Set, queue: str, name: str) -> Object:
    requests = {"cpu": f"{kind.cores * 1000 // kind.pods}m"}
    pod_set: Object = {
        "name": "main",
        "count": kind.pods,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "pause", "resources": {"requests": requests}}],
            }
        },
    }
    if kind.topology:
        pod_set["topologyRequest"] = dict(kind.topology)
    made = _object("Workload", name, {"queueName": queue, "priority": kind.priority, "podSets": [pod_set]}, queue)
    made["metadata"]["labels"] = {RUN_LABEL: str(kind.run_ms), CLASS_LABEL: kind.name}
    return made


def _object(kind: str, name: str, spec: Object, namespace: str = "") -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": VERSION, "kind": kind, "metadata": meta, "spec": spec}
