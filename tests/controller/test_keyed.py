"""The queue of jobs: every key is worked on, one worker at a time, and lanes take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.controller.keyed import KeyedQueue
from tests.kube.virtual import virtually

Key = tuple[str, int]


@asynccontextmanager
async def _running(queue: KeyedQueue[Any]) -> AsyncIterator[None]:
    """Until all of it is worked off; raises what a worker raised."""
    task = asyncio.create_task(queue.run())
    yield
    while not (queue.idle or task.done()):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _worked(keys: list[Key], workers: int) -> list[Key]:
    order: list[Key] = []
    busy: Counter[Key] = Counter()

    async def work(key: Key) -> None:
        busy[key] += 1
        assert busy[key] == 1
        order.append(key)
        await asyncio.sleep(0)
        busy[key] -= 1

    queue: KeyedQueue[Key] = KeyedQueue(work, workers, lambda key: key[0])
    for key in keys:
        queue.add(key)
    async with _running(queue):
        pass
    return order


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=40),
    st.integers(1, 4),
)
def test_each_key_is_worked_on_once_and_no_lane_is_ahead_of_one_that_waits(keys: list[Key], workers: int) -> None:
    order = asyncio.run(_worked(keys, workers))
    assert sorted(order) == sorted(set(keys))
    of_lane = Counter(lane for lane, _ in order)
    served: Counter[str] = Counter()
    for lane, _ in order:
        waits = [served[other] for other in of_lane if served[other] < of_lane[other]]
        assert served[lane] <= min(waits), "a lane has another turn before all that wait had theirs"
        served[lane] += 1
    for lane in of_lane:  # first in, first out within a lane
        assert [k for k in order if k[0] == lane] == [k for k in dict.fromkeys(keys) if k[0] == lane]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.booleans()), max_size=60),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=20),
    st.integers(1, 3),
)
def test_who_presses_has_every_other_turn(adds: list[tuple[str, int, bool]], more: list[Key], workers: int) -> None:
    """Keys come to press while they wait; some are added again while others, and they themselves, are worked on."""
    pressing: set[Key] = set()
    order: list[Key] = []
    at_work: set[Key] = set()
    later = list(more)

    async def work(key: Key) -> None:
        assert key not in at_work
        at_work.add(key)
        order.append(key)
        await asyncio.sleep(0)
        if later:
            queue.add(later.pop())
        at_work.discard(key)

    queue: KeyedQueue[Key] = KeyedQueue(work, workers, lambda key: key[0], lambda key: key in pressing)
    for lane, number, presses in adds:
        if presses:
            pressing.add((lane, number))
        queue.add((lane, number))
    assert len(queue) == len({key[:2] for key in adds})

    async def run() -> None:
        async with _running(queue):
            pass

    asyncio.run(run())
    assert len(queue) == 0
    assert set(order) == {*((lane, number) for lane, number, _ in adds), *(more if order else ())}
    if not more:
        assert len(order) == len(set(order))
        pressed = [key in pressing for key in order]
        for at, one in enumerate(pressed[1:], 1):
            if pressed[at - 1] == one:
                assert (not one) not in pressed[at:], "two turns, and others wait"


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=6), st.lists(st.integers(0, 2), max_size=12))
def test_who_came_to_press_while_it_waited_is_worked_on_by_one_at_a_time(
    adds: list[tuple[int, bool]], more: list[int]
) -> None:
    """It stands in both lines, and is added again while it is worked on."""
    at_work: Counter[int] = Counter()
    most = 0

    async def work(key: int) -> None:
        nonlocal most
        at_work[key] += 1
        most = max(most, *at_work.values())
        if more:
            queue.add(more.pop())
        await asyncio.sleep(0)
        at_work[key] -= 1

    pressing: set[int] = set()
    queue: KeyedQueue[int] = KeyedQueue(work, 3, presses=pressing.__contains__)
    for key, presses in adds:
        if presses:
            pressing.add(key)
        queue.add(key)

    async def run() -> None:
        async with _running(queue):
            pass

    asyncio.run(run())
    assert most <= 1


def test_a_key_that_is_added_while_it_is_worked_on_comes_back() -> None:
    seen: list[int] = []

    async def run() -> None:
        async def work(key: int) -> None:
            seen.append(key)
            if len(seen) < 3:
                queue.add(key)

        queue: KeyedQueue[int] = KeyedQueue(work, 2)
        queue.add(1)
        async with _running(queue):
            pass

    asyncio.run(run())
    assert seen == [1, 1, 1]


async def _nobody_can_go_on() -> None:
    """Turns, and no time: of that a slow machine has any amount between two of them."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_as_many_are_at_work_as_there_are_keys_and_workers() -> None:
    async def run() -> list[int]:
        at_work: list[int] = []
        go_on = asyncio.Event()

        async def work(key: int) -> None:
            at_work.append(key)
            await go_on.wait()

        queue: KeyedQueue[int] = KeyedQueue(work, 3)
        task = asyncio.create_task(queue.run())
        seen = []
        for keys in ((1, 2), (3, 4)):  # to workers of whom all, and then one, have nothing to do
            await _nobody_can_go_on()
            for key in keys:
                queue.add(key)
            await _nobody_can_go_on()
            seen.append(len(at_work))
        go_on.set()
        while not queue.idle:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [*seen, len(at_work)]

    assert asyncio.run(run()) == [2, 3, 4]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("aabc"), st.integers(0, 2)), min_size=80, max_size=200), st.integers(1, 24))
def test_no_worker_is_idle_for_whom_there_is_work(moves: list[tuple[str, int]], workers: int) -> None:
    """Works that take any time: one comes, or one that is under way ends."""

    async def run() -> None:
        ends: dict[Key, asyncio.Event] = {}

        async def work(key: Key) -> None:
            ends[key] = asyncio.Event()
            await ends[key].wait()
            del ends[key]

        queue: KeyedQueue[Key] = KeyedQueue(work, workers, lambda key: key[0])
        waits: set[Key] = set()

        async def settled() -> Counter[str]:
            for _ in range(workers + 5):
                await asyncio.sleep(0)
            waits.difference_update(ends)
            return Counter(lane for lane, _ in ends)

        async with _running(queue):
            for number, (lane, comes) in enumerate(moves):
                if comes:
                    waits.add((lane, number))
                    queue.add((lane, number))
                elif mine := [key for key in ends if key[0] == lane]:
                    ends[mine[0]].set()
                held = await settled()
                free = workers - held.total()
                for lane_of, _ in waits:
                    mine_now = held[lane_of]
                    assert free == 0 or mine_now >= max(1, 3 * (free - workers // 8)), (lane_of, held)
            while ends:
                for event in list(ends.values()):
                    event.set()
                await settled()
            assert not waits

    asyncio.run(run())


def test_who_takes_for_ever_leaves_workers_to_others() -> None:
    async def run() -> list[int]:
        at_work = Counter[str]()

        async def work(key: Key) -> None:
            at_work[key[0]] += 1
            await asyncio.sleep(3600 if key[0] != "quick" else 0)

        queue: KeyedQueue[Key] = KeyedQueue(work, 48, lambda key: key[0], lambda key: key[0] != "quick")
        task = asyncio.create_task(queue.run())
        seen = []
        for lane in ("slow", "slower", "quick"):
            for number in range(500):
                queue.add((lane, number))
            while at_work["quick"] < 500 if lane == "quick" else not at_work[lane]:
                await asyncio.sleep(0)
            await _nobody_can_go_on()
            seen.append(at_work[lane])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return seen

    alone, beside, quick = asyncio.run(run())
    assert (alone, quick) == (32, 500)
    assert 1 <= beside < 16


@pytest.mark.parametrize("asked", [(10.0, 20.0), (20.0, 10.0), (20.0, 10.0, 15.0), (10.0, 10.0)])
def test_of_the_times_asked_for_a_key_the_earliest_alone_counts(asked: tuple[float, ...]) -> None:
    worked: list[float] = []

    async def main() -> None:
        async def work(_: str) -> None:
            worked.append(asyncio.get_running_loop().time())

        queue: KeyedQueue[str] = KeyedQueue(work, 1)
        running = asyncio.ensure_future(queue.run())
        for seconds in asked:
            queue.add_after("a", seconds)
        await asyncio.sleep(60)
        running.cancel()

    virtually(main)
    assert worked == [10.0]


def test_a_key_that_asks_for_no_later_time_leaves_no_timer() -> None:
    async def run() -> tuple[int, int]:
        asks = True

        async def work(key: int) -> None:
            queue.not_later(key)
            if asks:
                queue.add_after(key, 30 * 86_400.0)

        queue: KeyedQueue[int] = KeyedQueue(work, 2)
        task = asyncio.create_task(queue.run())
        timers = []
        for again in (True, False):
            asks = again
            for key in range(50):
                queue.add(key)
            while not queue.idle:
                await asyncio.sleep(0)
            timers.append(len(queue._later))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return timers[0], timers[1]

    assert asyncio.run(run()) == (50, 0)


def test_work_that_waits_for_nothing_lets_others_have_their_turn() -> None:
    """A look at each of 100,000 jobs would keep the lease from being renewed: for each worker, and all together."""
    stretches: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def work(key: int) -> None:
            until = loop.time() + 0.002
            while loop.time() < until:
                pass
            worked[0] += 1

        worked = [0]
        queue: KeyedQueue[int] = KeyedQueue(work, 16)
        async with _running(queue):
            await asyncio.sleep(0.01)
            for key in range(200):
                queue.add(key)
            while not queue.idle:
                before = worked[0]
                await asyncio.sleep(0)
                stretches.append(worked[0] - before)

    asyncio.run(run())
    assert sum(stretches) == 200
    assert max(stretches) <= 20, "others wait for more than some of it"
