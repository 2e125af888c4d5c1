"""A copy that differs from what the API server has is found, told and mended; one that is late is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from admission.controller.app import Controller
from admission.web.metrics import Metrics
from tests.controller.lab import World
from tests.controller.test_keep import NODE, running, until

NODES = ("LIST", "nodes", "", 200)


@asynccontextmanager
async def checking(world: World) -> AsyncIterator[tuple[Controller, list[float]]]:
    """A controller that compares without a pause, and what its metric said after each turn."""
    async with running(world, leads=False) as controller:
        for informer in controller.informers.values():
            await informer.synced.wait()
        controller.leading = True  # the metric is the leader's
        controller.tuning = replace(controller.tuning, check_s=0.01)
        metrics, said = Metrics(controller.numbers), list[float]()
        metrics.follow(controller.watchers)
        controller.watchers.drift.append(lambda _: said.append(drift(metrics)))
        task = asyncio.create_task(controller._check_books())
        try:
            yield controller, said
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def drift(metrics: Metrics) -> float:
    families = text_string_to_metric_families(metrics.text().decode())
    return next(one.samples[0].value for one in families if one.name == "muster_ledger_drift")


def watched(world: World, arrives: Callable[[bytes], Awaitable[bool]]) -> None:
    """Each line of a watch of nodes arrives when this says so, or (False) never."""
    lines = world.client.watch_lines

    async def some(path: str, **options: Any) -> AsyncGenerator[bytes, None]:
        async for line in lines(path, **options):
            if not path.endswith("/nodes") or await arrives(line):
                yield line

    world.client.watch_lines = some  # type: ignore[method-assign]


async def test_an_event_that_a_watch_lost_is_found_told_and_mended(world: World) -> None:
    async def all_but_one(line: bytes) -> bool:
        return b'"name":"lost"' not in line

    watched(world, all_but_one)
    async with checking(world) as (controller, said):
        await world.put(NODE | {"metadata": {"name": "lost"}})
        await world.put(NODE)

        async def mended() -> bool:
            return "lost" in controller.world.nodes and said[-1] == 0

        await until(mended)
        assert max(said) == 1
        assert controller.informers["Node"].relists >= 2


async def test_a_watch_that_is_late_has_lost_nothing(world: World) -> None:
    go_on = asyncio.Event()

    async def late(_: bytes) -> bool:
        return await go_on.wait()

    watched(world, late)
    async with checking(world) as (controller, said):
        await world.put(NODE)
        looked = controller.client.counts[NODES]

        async def looked_again() -> bool:
            return controller.client.counts[NODES] > looked + 1

        async def arrived() -> bool:
            return NODE["metadata"]["name"] in controller.world.nodes

        await until(looked_again)
        assert not await arrived()
        go_on.set()
        await until(arrived)
        assert set(said) == {0}
        assert controller.informers["Node"].relists == 1
