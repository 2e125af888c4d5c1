"""Writes of one tenant that hang delay nobody else: a cluster in virtual time (see `storm`)."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251  # seeded, and not of the engine
from collections.abc import Callable
from typing import Any

import pytest

from admission.names import QUOTA_RESERVED
from admission.sandbox.actors import RUN_TIME
from tests.controller.lab import API, GPU, cluster_queue, job, local_queue, own
from tests.controller.storm import Replica, Town, Weather, Wire, played

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
    "status": {
        "allocatable": {GPU: "1000", "cpu": "9000", "memory": "1Ti", "pods": "9000"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
OURS = f"/apis/{API}"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"

Hangs = Callable[[str, str], bool]


def starts(method: str, path: str) -> bool:
    return method == "PATCH" and "/namespaces/noisy-" in path and "/jobs/" in path


def workloads(method: str, path: str) -> bool:
    return method == "PATCH" and "/namespaces/noisy-" in path and "/workloads/" in path


def everything(method: str, path: str) -> bool:
    return "/namespaces/noisy-" in path


class Tenants:
    """Some whose requests hang, with many jobs, and one who has none yet."""

    def __init__(self, noisy: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.town = Town()
        self.user = Wire(self.town, Weather(random.Random(1)), "admin-token")
        self.weather = Weather(random.Random(2))
        self.replica = Replica(self.town, self.weather)
        self.noisy = [f"noisy-{i}" for i in range(noisy)]

    async def begin(self, jobs: int, *, quota: int = 500, leads: bool = True) -> None:
        user = self.user
        await user.create(f"{OURS}/resourceflavors", own("ResourceFlavor", "h100"))
        await user.create("/api/v1/nodes", NODE)
        for name in (*self.noisy, "quiet"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await user.create("/api/v1/namespaces", body)
            nominal = 1 if name == "quiet" else quota
            await user.create(f"{OURS}/clusterqueues", cluster_queue(name, nominal, cohort=""))
            await user.create(f"{OURS}/namespaces/{name}/localqueues", local_queue("main", name, name))
        if leads:
            self.replica.lead()
        for i in range(jobs):
            for name in self.noisy:
                await self.submit(name, f"j{i}")

    async def submit(self, namespace: str, name: str) -> None:
        made = job(name, "main", pods=1, gpus=1)
        made["metadata"]["namespace"] = namespace
        made["spec"]["template"]["metadata"] = {"annotations": {RUN_TIME: "48h"}}
        await self.user.create(JOBS.format(namespace), made)

    async def until(self, holds: Callable[[], Any]) -> float:
        """Virtual seconds until it holds."""
        began = self.loop.time()
        async with asyncio.timeout(600):
            while not holds():
                await asyncio.sleep(0.05)
        return self.loop.time() - began

    def runs(self, name: str) -> bool:
        return any(
            one["metadata"]["name"] == name and not one["spec"].get("suspend")
            for one in self.town.store.objects("batch", "jobs")
            if one["metadata"]["namespace"] == "quiet"
        )

    def told(self, name: str) -> bool:
        """Is it said of a job of the quiet one why it waits?"""
        for one in self.town.store.objects(API.partition("/")[0], "workloads"):
            if one["metadata"]["namespace"] == "quiet" and name in one["metadata"]["name"]:
                said = one.get("status", {}).get("conditions", ())
                return any((each["type"], each["status"]) == (QUOTA_RESERVED, "False") for each in said)
        return False

    def shown(self) -> bool:
        """Does the queue of the quiet one say that a job of it holds room?"""
        found = self.town.store.find(API.partition("/")[0], "localqueues", "quiet", "main")
        return bool(found and found.get("status", {}).get("reservingWorkloads"))

    async def end(self) -> None:
        await self.replica.end()
        await self.town.end()


async def _started(noisy: int, hangs: Hangs | None, quota: int = 500) -> tuple[float, float, float]:
    tenants = Tenants(noisy)
    if hangs is not None:
        tenants.weather.hangs = hangs
    await tenants.begin(60 if noisy else 0, quota=quota)
    await asyncio.sleep(3)
    await tenants.submit("quiet", "first")
    runs = await tenants.until(lambda: tenants.runs("first"))
    shown = await tenants.until(tenants.shown)
    await tenants.submit("quiet", "second")
    told = await tenants.until(lambda: tenants.told("second"))
    await tenants.end()
    return runs, shown, told


@pytest.mark.parametrize("noisy", [1, 3])
@pytest.mark.parametrize("hangs", [starts, workloads, everything])
@pytest.mark.parametrize("quota", [500, 20])
def test_who_hangs_delays_nobody_else(monkeypatch: pytest.MonkeyPatch, noisy: int, hangs: Hangs, quota: int) -> None:
    """quota: for all jobs of each, or for some, so that of the others is said why they wait."""
    runs_alone, shown_alone, told_alone = played(monkeypatch, 1, lambda: _started(0, None))
    runs, shown, told = played(monkeypatch, 1, lambda: _started(noisy, hangs, quota))
    assert runs <= runs_alone + 0.5
    assert shown <= shown_alone + 3.0
    assert told <= told_alone + 2.0


def test_a_new_leader_waits_for_none_of_who_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> float:
        tenants = Tenants(2)
        await tenants.begin(60, leads=False)
        await tenants.submit("quiet", "first")
        await asyncio.sleep(1)
        tenants.weather.hangs = everything
        tenants.replica.lead()
        took = await tenants.until(lambda: tenants.runs("first"))
        await tenants.end()
        return took

    assert played(monkeypatch, 1, story) < 4.0
