"""What `muster nodes` shows while devices count by another name than those who run on them asked for."""

from __future__ import annotations

from typing import Any

import pytest

from admission.controller import tell
from admission.controller.occupancy import Occupancy
from admission.engine.model import Flavor, Taint, Toleration
from admission.jobs import devices
from admission.names import OF_DEVICE_CLASS, Names

NAMES = Names()
GPU, BY_CLASS = "nvidia.com/gpu", f"{OF_DEVICE_CLASS}gpu"
Json = dict[str, Any]


def node(name: str, gpus: int, capacity: int | None = None) -> Json:
    # Where there was a device plugin before, the kubelet goes on to say that it has none.
    status = {
        "allocatable": {GPU: str(gpus), "pods": "110"},
        "capacity": {GPU: str(gpus if capacity is None else capacity), "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": {}}, "status": status}


def pod(gang: bool) -> Json:
    labels = {NAMES.managed_label: "true", NAMES.workload_uid_label: "w1"} if gang else {}
    resources = {"requests": {GPU: "3"}, "limits": {GPU: "3"}}
    return {
        "metadata": {"name": "a", "namespace": "ml", "uid": "a", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": "Running"},
    }


def workload() -> Json:
    one = {"name": "main", "flavors": {GPU: "f"}, "resourceUsage": {GPU: "3"}, "count": 1}
    one["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": [
        {"domainCount": 1, "valuesPerLevel": [{"universal": "n1"}], "podCounts": {"universal": 1}}]}  # fmt: skip
    template = {"spec": pod(gang=True)["spec"]}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"}
    return {
        "metadata": {"name": "w", "namespace": "ml", "uid": "w1"},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [one]}, "conditions": [reserved]},
    }


@pytest.mark.parametrize("gang", [True, False], ids=["a gang", "somebody else"])
@pytest.mark.parametrize(
    ("resource", "capacity", "holds", "quotas", "row", "mark"),
    [
        (GPU, 0, True, [], {GPU: (1, 4)}, ""),
        ("", 0, True, [BY_CLASS], {BY_CLASS: (1, 4), GPU: (0, 0)}, f" (3 {GPU} count as {BY_CLASS} now)"),
        ("", 0, True, [], {GPU: (0, 0)}, f" (3 {GPU} count as {BY_CLASS} now)"),
        (None, 0, True, [], {GPU: (0, 0)}, f" (3 {GPU} are of a DeviceClass that is gone)"),
        # They are gone, and whoever runs there has too many.
        ("", 0, False, [], {GPU: (-3, 0)}, ""),
        ("", 4, False, [], {GPU: (-3, 0)}, f" (4 {GPU} not allocatable)"),
    ],
)
def test_devices_that_count_by_another_name_are_not_missing(
    gang: bool,
    resource: str | None,
    capacity: int,
    holds: bool,
    quotas: list[str],
    row: dict[str, tuple[int, int]],
    mark: str,
) -> None:
    four = devices.Slice("n1", ("d", "n1"), devices=tuple(devices.Device(f"gpu-{i}", "n1") for i in range(4)))
    held = tuple((four.pool, one.name) for one in four.devices[:3])
    listed: list[devices.Listed] = [] if resource is None else [devices.DeviceClass("gpu", resource)]
    if holds:
        listed += [four, devices.Claim("ml", "c", held, ("a", "a"), True, devices.Asks((("gpu", 3),)))]
    there = Occupancy(
        [node("n1", 0, capacity), node("n2", 8)],
        [],
        [workload()] if gang else [],
        [pod(gang)],
        NAMES,
        devices.Devices(listed, quotas=quotas),
    )
    first, second = there.rows([])
    free = dict(first.free)
    assert {name: (free[name], whole) for name, whole in first.capacity} == row
    assert tell._ails(first) == mark
    assert dict(second.free)[GPU] == 8


@pytest.mark.parametrize(
    ("named", "own", "pods"),
    [
        (("pool", "gpu", "NoSchedule"), (), 8),
        (("pool", "other", "NoSchedule"), (), 0),
        (("pool", "gpu", "NoExecute"), (), 0),
        (None, (Toleration("pool", "Exists"),), 8),
        (None, (), 0),
    ],
)
def test_the_largest_gang_tolerates_what_its_flavor_names(
    named: tuple[str, str, str] | None, own: tuple[Toleration, ...], pods: int
) -> None:
    one = node("n1", 8)
    one["spec"] = {"taints": [{"key": "pool", "value": "gpu", "effect": "NoSchedule"}]}
    there = Occupancy([one], [], [], [], NAMES, devices.Devices())
    taints = () if named is None else (Taint(*named),)
    (size,) = there.largest([Flavor("f", node_taints=taints, tolerations=own)], {GPU: 1})
    assert size.pods == pods
