"""A controller that finds what an older one wrote: who runs is not stopped for it, and what was noted is understood."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from admission.jobs.kinds import condition_of
from admission.jobs.values import rfc3339
from admission.names import JOBSET_GROUP, QUOTA_RESERVED
from admission.sandbox.store import Store
from tests.controller.lab import GPU, NAMES, World, job
from tests.controller.test_keep import running, until

WRITTEN = tuple(yaml.load_all((Path(__file__).parent / "older.yaml").read_bytes(), yaml.CSafeLoader))
AT = int(datetime.fromisoformat("2026-11-28T07:26:00Z").timestamp() * 1000)
WORKLOADS = (NAMES.group, "workloads")
KINDS = (("batch", "jobs"), (JOBSET_GROUP, "jobsets"), ("", "pods"), WORKLOADS)
WAIT = {"late": "ExceedsMaxQuota", "waits": "TopologyPlacementFailed", "backoff": "Suspended"}
"""Job -> the reason that it is told."""
RANKS = "/apis/batch/v1/namespaces/a/jobs/ranks"

Json = dict[str, Any]


def put_back(store: Store) -> None:
    """As they are in the store of an API server: with their uids, and the statuses that they had."""
    for one in WRITTEN:
        kind = store.kind_of(one["apiVersion"], one["kind"])
        assert kind is not None
        store._put(kind, {**one, "metadata": dict(one["metadata"])}, None)


def versions(store: Store) -> dict[tuple[str, str], str]:
    """(kind, job) or (kind, name) -> version, of all that belongs to gangs."""
    return {
        (plural, owner_of(one) if (group, plural) == WORKLOADS else one["metadata"]["name"]): one["metadata"][
            "resourceVersion"
        ]
        for group, plural in KINDS
        for one in store.objects(group, plural)
    }


def owner_of(one: Json) -> str:
    return str(one["metadata"]["ownerReferences"][0]["name"])


def workloads(store: Store) -> dict[str, Json]:
    """By job."""
    return {owner_of(one): one for one in store.objects(*WORKLOADS)}


async def test_who_runs_runs_on_and_is_put_back_as_its_owner_wrote_it(world: World) -> None:
    store, client = world.sandbox.store, world.client
    for name in "ab":
        await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    put_back(store)
    before = versions(store)
    async with running(world, at=AT) as controller:
        late = job("late", "main", pods=16)
        await world.put({**late, "metadata": {**late["metadata"], "namespace": "a"}})

        async def told() -> bool:
            known = workloads(store)
            return all(condition_of(known.get(one, {}), QUOTA_RESERVED).get("reason") == WAIT[one] for one in WAIT)

        await until(told)
        after = versions(store)
        changed = {key for key in after if after[key] != before.get(key)}
        assert changed == {("jobs", "late"), *(("workloads", name) for name in WAIT)}
        assert dict(controller.state.queue_numbers("a").reserved) == {("gpu", GPU): 36}

        # Its owner pauses one, and the Job controller stops it.
        async def suspended() -> Json | None:
            ranks = await client.get(RANKS)
            return ranks if ranks["spec"]["suspend"] else None

        async def holds_nothing() -> bool:
            return "admission" not in workloads(store)["ranks"]["status"]

        await client.merge_patch(RANKS, {"metadata": {"labels": {NAMES.pause_label: "true"}}})
        stopped = await until(suspended)
        at = {"lastProbeTime": rfc3339(AT), "lastTransitionTime": rfc3339(AT)}
        says = {"type": "Suspended", "status": "True", "reason": "JobSuspended", **at}
        await client.put(
            f"{RANKS}/status", {**stopped, "status": {"active": 0, "terminating": 0, "conditions": [says]}}
        )
        for pod in ("ranks-0-gcscr", "ranks-1-984m8"):
            await client.delete(f"/api/v1/namespaces/a/pods/{pod}", grace_seconds=0)
        await until(holds_nothing)
        ranks = await client.get(RANKS)
        assert ranks["spec"]["template"] == workloads(store)["ranks"]["spec"]["podSets"][0]["template"]
        assert not ranks["metadata"].get("annotations")
