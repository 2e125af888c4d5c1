"""Statuses on kinds that are older than the controller: what these lack is left out, and nothing else is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from admission.controller.statuses import LEFT_OUT_S, Statuses
from admission.kube.client import Kind, Undeclared, error_of
from tests.controller.lab import NAMES, World, crds, own

QUEUES = Kind(NAMES.group, NAMES.version, "clusterqueues", "ClusterQueue", namespaced=False)
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
FAILED = "failed to create typed patch object"
AMOUNT = {"name": "nvidia.com/gpu", "total": "8", "borrowed": "2"}
USAGE = [{"name": "h100", "resources": [AMOUNT]}]
ACTIVE = {
    "type": "Active",
    "status": "True",
    "reason": "Ready",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
STATUS = {"pendingWorkloads": 3, "fairSharing": {"weightedShare": 5}, "flavorsUsage": USAGE, "conditions": [ACTIVE]}


async def lacking(world: World, *fields: str) -> None:
    """The kind of ClusterQueues without these fields of its status."""
    definition = deepcopy(next(one for one in crds() if one["spec"]["names"]["kind"] == "ClusterQueue"))
    for field in fields:
        at = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        *above, last = field.split(".")
        for name in above:
            at = at["properties"][name]
            at = at.get("items", at)
        del at["properties"][last]
    path = CRD.path(name=definition["metadata"]["name"])
    there = await world.client.get(path)
    definition["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
    await world.client.put(path, definition)


@pytest.fixture
async def clock() -> list[float]:
    return [0.0]


@pytest.fixture
async def statuses(world: World, clock: list[float]) -> Statuses:
    await world.put(own("ClusterQueue", "q", {"namespaceSelector": {}}))
    return Statuses(world.client, NAMES, clock=lambda: clock[0])


async def write(statuses: Statuses, status: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = msgspec.json.decode(await statuses.write(QUEUES, {"name": "q"}, status))["status"]
    return written


@pytest.mark.parametrize(
    ("lacks", "left"),
    [
        ((), STATUS),
        (("fairSharing",), {key: value for key, value in STATUS.items() if key != "fairSharing"}),
        (("fairSharing", "flavorsUsage"), {"pendingWorkloads": 3, "conditions": [ACTIVE]}),
        (
            ("flavorsUsage.resources.borrowed",),
            {**STATUS, "flavorsUsage": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "8"}]}]},
        ),
    ],
)
async def test_what_a_kind_lacks_is_left_out_and_said_once(
    world: World, statuses: Statuses, lacks: tuple[str, ...], left: dict[str, Any]
) -> None:
    await lacking(world, *lacks)
    with capture_logs() as logs:
        assert await write(statuses, STATUS) == left
        assert await write(statuses, {**STATUS, "pendingWorkloads": 4}) == {**left, "pendingWorkloads": 4}
    said = [field for line in logs for field in line["lacks"]]
    assert said == [f"status.{field}" for field in sorted(lacks)]
    assert statuses.stored("ClusterQueue", STATUS) == left
    assert statuses.stored("Cohort", STATUS) == STATUS
    assert statuses.has("ClusterQueue", "fairSharing") == ("fairSharing" in left)
    refused = [status for (*_, status), times in world.client.counts.items() if times and status == 500]
    assert len(refused) == bool(lacks)


async def test_what_says_who_runs_is_not_left_out(world: World, statuses: Statuses) -> None:
    await lacking(world, "conditions.reason", "fairSharing")
    with pytest.raises(Undeclared) as refused:
        await write(statuses, STATUS)
    assert ("status", "conditions", "reason") in refused.value.fields
    assert not refused.value.ambiguous
    assert "status" not in await world.client.get(QUEUES.path(name="q"))


async def test_kinds_that_were_upgraded_are_found(world: World, statuses: Statuses, clock: list[float]) -> None:
    await lacking(world, "fairSharing")
    assert "fairSharing" not in await write(statuses, STATUS)
    await lacking(world)
    clock[0] += LEFT_OUT_S - 1
    assert "fairSharing" not in await write(statuses, STATUS)
    clock[0] += 1
    assert await write(statuses, STATUS) == STATUS


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            f"{FAILED} (a/w; muster.dev/v1beta1, Kind=Workload): .status.claim: field not declared in schema",
            (("status", "claim"),),
        ),
        (
            f"""{FAILED} (/q; muster.dev/v1beta1, Kind=ClusterQueue): errors:
  .status.flavorsUsage[name="a b"].resources[name="nvidia.com/gpu"].new: field not declared in schema
  .status.decision: expected string, got &value.valueUnstructured{{Value:5}}
  .status.zzz: field not declared in schema""",
            (("status", "flavorsUsage", "resources", "new"), ("status", "zzz")),
        ),
        (f"{FAILED} (a/w; v1, Kind=W): .status.x: expected string, got 5", None),
    ],
)
def test_the_fields_that_an_answer_names(message: str, fields: tuple[tuple[str, ...], ...] | None) -> None:
    """As Kubernetes 1.36 words them."""
    error = error_of(500, msgspec.json.encode({"kind": "Status", "code": 500, "message": message}))
    assert (error.fields if isinstance(error, Undeclared) else None) == fields
