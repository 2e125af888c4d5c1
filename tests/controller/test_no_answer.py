"""Writes that got no answer: what may still come is waited for, and what did not come is not taken for written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from itertools import pairwise
from typing import Any

import pytest

from admission.controller.actuate import Actuator
from admission.controller.app import Controller
from admission.controller.lifecycle import EvictWorkload
from admission.engine.model import Admission, Assumed, Domain, PodSetAssignment, Replace, TopologyAssignment
from admission.kube.client import Forbidden, Unavailable
from tests.controller.lab import World, admission, condition, job, workload
from tests.controller.test_follows import JOBS, WORKLOADS, a_town, change, holds, its_workload, reads
from tests.controller.test_keep import NODE, running, until

CANNOT_START = EvictWorkload("Deactivated", "Cannot start: why", deactivate=True, cause="AdmissionCheck")


async def admitted(world: World) -> str:
    """The Job `train` is admitted: the name of its Workload."""
    await a_town(world, 16)
    owner = await world.put(job("train", "main"))
    status = {"conditions": [condition(kind, True, kind, "") for kind in ("QuotaReserved", "Admitted")]}
    made = await world.put(workload(owner, {**status, "admission": admission("n")}, queue="main"))
    return str(made["metadata"]["name"])


@asynccontextmanager
async def informed(world: World) -> AsyncIterator[Controller]:
    """A controller that knows the job and its Workload, and does nothing by itself."""
    async with running(world, leads=False) as controller:

        async def known() -> bool:
            return bool(controller.world.workloads and controller.world.jobs)

        await until(known)
        yield controller


async def test_a_start_that_may_still_come_keeps_its_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection breaks under a start, and the gang is evicted before the server applies it."""
    await a_town(world, 16)
    broke = asyncio.Event()
    late: list[asyncio.Task[Any]] = []
    send = world.client.json_patch

    async def json_patch(path: str, ops: list[dict[str, Any]], **options: Any) -> Any:
        starts = {"op": "add", "path": "/spec/suspend", "value": False} in ops
        if not starts or not path.endswith("/one"):
            return await send(path, ops, **options)
        if broke.is_set():
            raise Unavailable(0, "NoAnswer", "still no connection")

        async def slow() -> Any:
            await asyncio.sleep(1)
            return await send(path, ops, **options)

        late.append(asyncio.ensure_future(slow()))
        broke.set()
        raise Unavailable(0, "NoAnswer", "the connection broke")

    monkeypatch.setattr(world.client, "json_patch", json_patch)
    async with running(world):
        made = await world.put(job("one", "main"))
        made["status"] = {"conditions": [condition("Suspended", True, "JobSuspended", "")]}
        await world.client.put(f"{JOBS}/one/status", made)
        await broke.wait()
        name = (await its_workload(world))["metadata"]["name"]
        await change(world, f"{WORKLOADS}/{name}", {"spec": {"active": False}})
        await world.put(job("two", "main"))  # all devices, as the first
        await asyncio.gather(*late)
        suspended = {one["metadata"]["name"]: one["spec"]["suspend"] for one in (await world.client.get(JOBS))["items"]}
        holds = {
            one["metadata"]["ownerReferences"][0]["name"]: "admission" in one.get("status", {})
            for one in (await world.client.get(WORKLOADS))["items"]
        }
    assert not suspended["one"]
    assert holds["one"]
    assert not holds["two"]


@pytest.mark.parametrize("touched", [False, True], ids=["nobody else wrote", "somebody else wrote"])
async def test_other_nodes_that_were_not_written_count_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    await a_town(world, 16)
    await world.put({**NODE, "metadata": {"name": "m", "labels": {"gpu": "h100", "kubernetes.io/hostname": "m"}}})
    status = {
        "conditions": [
            condition("QuotaReserved", True, "QuotaReserved", ""),
            condition("Admitted", True, "Admitted", ""),
        ],
        "admission": admission("n"),
        "unhealthyNodes": [{"name": "n"}],
    }
    owner = job("a", "main") | {"metadata": {"name": "a", "namespace": "ml", "uid": "u-1"}}
    name = (await world.put(workload(owner, status, queue="main")))["metadata"]["name"]
    key = ("ml", name)
    async with running(world, leads=False) as controller:

        async def there() -> bool:
            return key in controller.world.workloads and "m" in controller.world.nodes

        await until(there)

        async def lost(*_: Any, **__: Any) -> bytes:
            if touched:
                await world.client.merge_patch(f"{WORKLOADS}/{name}", {"metadata": {"annotations": {"x": "y"}}})
            raise Unavailable(0, "NoAnswer", "the connection broke, and the server never saw it")

        monkeypatch.setattr(world.client, "apply_raw", lost)
        monkeypatch.setattr(world.client, "write_timeout", 0.2)
        gang = controller.world.workloads[key].view.value
        assert gang.admission is not None
        part = gang.admission.pod_sets[0]
        there_now = TopologyAssignment(("kubernetes.io/hostname",), (Domain(("m",), 2),))
        moved = Admission("team-a", (PodSetAssignment("main", part.flavors, part.usage, 2, there_now),))
        decision = Replace(key, gang.uid, moved)
        controller.state.apply(Assumed(decision))
        controller._decisions["Workload", *key] = decision
        await controller._look(("Workload", *key))

        async def undone() -> bool:
            counted = controller.state.workload(key)
            return counted is not None and bool(counted.lost_nodes)

        assert await until(undone)


@pytest.mark.parametrize("applied", [True, False], ids=["the server did it", "the server never saw it"])
async def test_who_is_switched_off_is_told_what_for_though_that_got_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """No object says that but the condition, which is written next."""
    name = await admitted(world)
    send = world.client.merge_patch

    async def merge_patch(path: str, patch: dict[str, Any], **options: Any) -> Any:
        if applied:
            await send(path, patch, **options)
        raise Unavailable(0, "NoAnswer", "the connection broke")

    async with informed(world) as controller:
        monkeypatch.setattr(world.client, "merge_patch", merge_patch)
        monkeypatch.setattr(world.client, "write_timeout", 0.2)
        with nullcontext() if applied else pytest.raises(Unavailable):
            await controller.actuator.take(("Job", "ml", "train"), CANNOT_START)
    raw = await world.client.get(f"{WORKLOADS}/{name}")
    told = [(one["reason"], one["message"]) for one in raw["status"]["conditions"] if one["type"] == "Evicted"]
    assert told == ([("DeactivatedDueToAdmissionCheck", "Cannot start: why")] if applied else [])
    assert raw["spec"]["active"] is not applied


async def test_who_may_not_look_what_became_of_a_write_looks_seldom(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many may be waiting as there are workers, on an API server that is in trouble as it is."""
    await admitted(world)
    loop, raw = asyncio.get_running_loop(), world.client.raw
    looks: list[float] = []

    async def merge_patch(*_: Any, **__: Any) -> Any:
        raise Unavailable(0, "NoAnswer", "the connection broke")

    async def refused(method: str, path: str, **options: Any) -> bytes:
        if "/workloads/" not in path or len(looks) == 4:
            return await raw(method, path, **options)
        looks.append(loop.time())
        raise Forbidden(403, "Forbidden", "not now")

    async with informed(world) as controller:
        monkeypatch.setattr(world.client, "merge_patch", merge_patch)
        monkeypatch.setattr(world.client, "raw", refused)
        monkeypatch.setattr(world.client, "write_timeout", 0.0)
        with pytest.raises(Unavailable):
            await controller.actuator.take(("Job", "ml", "train"), CANNOT_START)
    assert len(looks) == 4
    assert all(later - one > 0.5 for one, later in pairwise(looks))


async def test_a_decision_that_is_not_there_counts_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write went well, and what is stored does not show it."""
    await a_town(world, 16)
    written: list[Any] = []
    carry_out = Actuator.carry_out

    async def loses_the_first(actuator: Actuator, decision: Any, *more: Any) -> str:
        written.append(decision)
        return "0" * 8 if len(written) == 1 else await carry_out(actuator, decision, *more)

    monkeypatch.setattr(Actuator, "carry_out", loses_the_first)
    async with running(world):
        await world.put(job("one", "main"))
        assert await until(reads(world, holds))
    assert len(written) == 2
