from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.kube.flow import Backoff, Flow, Told
from tests.kube.virtual import virtually


@given(st.floats(0.001, 10), st.floats(0.001, 100), st.integers(1, 50))
def test_pauses_lie_between_base_and_cap(base, cap, times):
    backoff = Backoff(base, max(base, cap))
    pauses = [backoff.next() for _ in range(times)]
    assert all(base <= pause <= max(base, cap) for pause in pauses)
    assert all(later <= 3 * sooner or later <= base * 3 for sooner, later in itertools.pairwise(pauses))


def test_a_rate_is_kept():
    async def main() -> None:
        flow = Flow(start=100, most=100, qps=10, burst=5)
        times = []
        for _ in range(25):
            await flow.enter()
            times.append(asyncio.get_running_loop().time())
            flow.leave()
        assert times[4] == 0.0
        assert abs(times[-1] - 2.0) < 0.05

    virtually(main)


def test_a_push_back_closes_the_gate_and_halves_once_a_second():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        flow = Flow(start=32)
        for _ in range(8):
            flow.pushed_back(3.0)
        assert flow.limit == 16
        order = []

        async def one(n: int) -> None:
            await flow.enter()
            order.append((n, loop.time()))

        await asyncio.gather(*(one(n) for n in range(16)))
        assert [n for n, _ in order] == list(range(16))
        assert all(at >= 3.0 for _, at in order)

    virtually(main)


def test_the_limit_grows_only_while_it_is_used_and_stays_in_bounds():
    async def main() -> None:
        flow = Flow(start=4, least=2, most=6)
        for _ in range(100):
            await flow.enter()
            flow.good(0.01)
            flow.leave()
        assert flow.limit == 4
        for _ in range(4):
            await flow.enter()
        for _ in range(100):
            flow.good(0.01)
        assert flow.limit > 4
        for _ in range(20):
            await asyncio.sleep(2)
            flow.good(30.0)
        assert flow.limit == 4
        for _ in range(20):
            await asyncio.sleep(2)
            flow.pushed_back(0)
        assert flow.limit == 2
        await asyncio.sleep(2)
        flow.good(30.0)
        assert flow.limit == 2

    virtually(main)


def test_requests_of_one_namespace_that_hang_leave_places_to_others_and_to_what_is_nobodys():
    async def main() -> None:
        flow = Flow()
        hang = [asyncio.ensure_future(flow.enter("noisy")) for _ in range(200)]
        await asyncio.sleep(0)
        assert flow.in_flight == 32
        for lane in ("quiet", "", "another", "quiet") * 100:
            await asyncio.wait_for(flow.enter(lane), 300)
            flow.good(0.01)
            flow.leave(lane)
        assert flow.limit > 48, "somebody waits, and the server answers well"
        for _ in range(200):
            flow.leave("noisy")
            await asyncio.sleep(0)
        assert all(one.done() for one in hang)
        assert (flow.in_flight, flow.waiting) == (0, 0)

    virtually(main)


@given(st.lists(st.sampled_from(["enter", "leave", "cancel", "push", "good"]), max_size=60))
def test_no_place_is_lost_or_doubled(moves):
    async def main() -> None:
        flow = Flow(start=3, least=1, most=5)
        waiting: list[asyncio.Task[None]] = []
        for move in moves:
            if move == "enter":
                waiting.append(asyncio.ensure_future(flow.enter()))
                await asyncio.sleep(0)
            elif move == "leave" and (inside := [t for t in waiting if t.done()]):
                waiting.remove(inside[0])
                flow.leave()
            elif move == "cancel" and (outside := [t for t in waiting if not t.done()]):
                # Sometimes in the very moment at which its place is granted.
                outside[0].cancel()
                waiting.remove(outside[0])
                await asyncio.gather(outside[0], return_exceptions=True)
            elif move == "push":
                flow.pushed_back(0.5)
            elif move == "good":
                flow.good(0.01)
            await asyncio.sleep(0)
            assert flow.in_flight >= sum(t.done() for t in waiting)
        for _ in range(200):
            await asyncio.sleep(1)
            for task in [t for t in waiting if t.done()]:
                waiting.remove(task)
                flow.leave()
        assert waiting == []
        assert flow.in_flight == 0
        assert flow.waiting == 0

    virtually(main)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=300))
def test_what_goes_on_is_told_at_once_then_ever_more_seldom(steps):
    at = [0.0]
    told = Told(10.0, 600.0, clock=lambda: at[0])
    said = []
    for step in steps:
        if told.due():
            said.append(at[0])
        at[0] += step
    assert said[0] == 0.0
    pauses = [later - sooner for sooner, later in itertools.pairwise(said)]
    wanted = [min(600.0, 10.0 * 2**i) for i in range(len(pauses))]
    assert all(pause >= least for pause, least in zip(pauses, wanted, strict=True))
    assert told.times == len(steps)
    assert told.over() == pytest.approx(sum(steps))
    assert told.over() is None
    at[0] += 2000
    assert told.due()
    at[0] += 10
    assert told.due(), "so long after it was over, it begins anew"


@given(st.lists(st.floats(0.01, 5), min_size=10, max_size=300))
def test_what_ends_and_comes_back_at_once_is_told_as_seldom_as_what_goes_on(steps):
    at = [0.0]
    told = Told(10.0, 600.0, clock=lambda: at[0])
    begun, ended = [], []
    for step in steps:
        if told.due():
            begun.append(at[0])
        at[0] += step
        if told.over() is not None:
            ended.append(at[0])
    pauses = [later - sooner for sooner, later in itertools.pairwise(begun)]
    assert all(pause >= min(600.0, 10.0 * 2**i) for i, pause in enumerate(pauses))
    assert len(ended) == len(begun)
