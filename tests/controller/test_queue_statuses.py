"""How much of the API server the statuses of queues take: little, while jobs wait for writes of theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controller.lab import World, cluster_queue, local_queue
from tests.controller.test_keep import running, until


@pytest.mark.parametrize(("waiting", "most"), [(0, None), (1, 5), (1000, 5)])
async def test_statuses_give_way_to_jobs(world: World, waiting: int, most: int | None) -> None:
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

        async def synced() -> bool:
            return len(controller.informers["LocalQueue"].store) == 100

        await until(synced)
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
