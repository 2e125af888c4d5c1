"""How much of the API server the statuses of queues take: little, while jobs wait for writes of theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from admission.controller.app import Controller
from tests.controller.lab import World, cluster_queue, local_queue, own
from tests.controller.test_keep import running, until


async def sees(controller: Controller, local_queues: int) -> None:
    async def synced() -> bool:
        return len(controller.informers["LocalQueue"].store) == local_queues

    await until(synced)


@pytest.mark.parametrize(("waiting", "most"), [(0, None), (1, (20, 5)), (1000, (20, 5))])
async def test_statuses_give_way_to_jobs(world: World, waiting: int, most: tuple[int, int] | None) -> None:
    async with running(world, leads=False) as controller:
        for i in range(waiting):
            controller.jobs.add(("Job", f"ns-{i % 7}", f"job-{i}"))
        assert controller.statuses_at_once() == most


async def test_a_slow_server_does_not_keep_new_statuses_behind_old_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred that are due some are written, and then it is looked anew which are due first."""
    await world.put(cluster_queue("team-a", 16))
    for i in range(100):
        await world.put(local_queue(f"main-{i:03}", "team-a"))
    async with running(world, leads=False) as controller:
        await sees(controller, 100)
        wrote: list[str] = []

        async def slowly(queue: tuple[str, str, str], *_: Any) -> bool:
            wrote.append(queue[2])
            await asyncio.sleep(controller.tuning.queue_status_s / 2)
            return True

        monkeypatch.setattr(controller, "_write_queue", slowly)
        first = await controller.write_queue_status()
        assert 0 < first < 100
        assert first + await controller.write_queue_status() < 100
        assert len(set(wrote)) == len(wrote)


@pytest.mark.parametrize(
    ("most", "first"),
    [
        ((20, 2), ["left-0", "left-1", "left-2", "main-00", "main-01"]),
        ((2, 1), ["left-0", "left-1", "left-2"]),
        ((1, 2), ["left-0", "left-1", "left-2"]),
    ],
)
async def test_queues_that_the_last_gang_left_are_told_of_before_others(
    world: World, monkeypatch: pytest.MonkeyPatch, most: tuple[int, int], first: list[str]
) -> None:
    """Who waits for a queue to be done, as load generators do, takes a status that is not yet so for the truth."""
    await world.put(own("ClusterQueue", "team-a", {}))
    for i in range(10):
        await world.put(own("LocalQueue", f"main-{i:02}", {"clusterQueue": "team-a"}, namespace="ml"))
    for i in range(3):
        await world.put(local_queue(f"left-{i}", "team-a"))
    async with running(world, leads=False) as controller:
        await sees(controller, 13)
        wrote: list[str] = []

        async def written(queue: tuple[str, str, str], *_: Any) -> bool:
            wrote.append(queue[2])
            return True

        monkeypatch.setattr(controller, "_write_queue", written)
        controller._stale.pop(("ClusterQueue", "", "team-a"), None)
        assert await controller.write_queue_status(most) == len(first)
        assert wrote == first
        assert await controller.write_queue_status() == 13 - len(first)
