"""Lanes take turns, and none holds so much that nothing is left for who comes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.kube.lanes import Lanes, Shares


def _filled(most: int, lanes: int) -> dict[str, int]:
    """What each holds when all want all there is and give nothing back."""
    shares, held = Shares(most), dict.fromkeys(map(str, range(lanes)), 0)
    for lane in itertools.cycle(held):
        if not any(map(shares.may_take, held)):
            return held
        if shares.may_take(lane):
            shares.take(lane)
            held[lane] += 1
    raise AssertionError


@pytest.mark.parametrize(("lanes", "each"), [(1, 32), (3, 12), (10, 4), (20, 2)])
def test_what_lanes_hold_that_give_nothing_back(lanes: int, each: int) -> None:
    held = _filled(48, lanes).values()
    assert min(held) >= each
    assert sum(held) <= 42


@given(st.integers(1, 128), st.integers(1, 40))
def test_there_is_a_place_for_who_comes(most: int, lanes: int) -> None:
    held = _filled(most, lanes)
    assert max(held.values()) - min(held.values()) <= 1
    if most >= 8 * lanes:
        shares = Shares(most)
        for lane, places in held.items():
            for _ in range(places):
                shares.take(lane)
        assert shares.may_take("new")
        shares.take("new")
        assert shares.may_take("newer")
        assert shares.may_take(""), "what is nobody's has what is free"
    if lanes == 1:
        assert held["0"] >= most * 5 // 8 or most < 8, "it is not much that is kept for who may come"


@given(st.integers(1, 48), st.lists(st.sampled_from("abc"), max_size=60), st.integers(0, 60))
def test_what_is_given_back_leaves_no_trace(most: int, taken: list[str], kept: int) -> None:
    """Who went on and off holds what the others left it, as if nobody had come before."""
    shares, fresh = Shares(most), Shares(most)
    for lane in taken:
        shares.take(lane)
    for lane in taken[kept:]:
        shares.give_back(lane)
    for lane in taken[:kept]:
        fresh.take(lane)
    assert shares.total == fresh.total == len(taken[:kept])
    for lane in "abcd" * most:
        assert shares.may_take(lane) == fresh.may_take(lane)
        if fresh.may_take(lane):
            shares.take(lane)
            fresh.take(lane)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=30),
    st.lists(st.sets(st.sampled_from("abc")), max_size=40),
)
def test_who_may_not_go_keeps_its_turn(waiting: list[tuple[str, int]], may_go: list[set[str]]) -> None:
    lanes = Lanes[tuple[str, int]]()
    for one in waiting:
        lanes.append(one[0], one)
    left = list(waiting)
    passed: dict[str, int] = {}
    for may in (*may_go, *({"a", "b", "c"} for _ in waiting)):
        found = lanes.pop(may.__contains__)
        here = {lane for lane, _ in left}
        if not here & may:
            assert found is None
            continue
        assert found is not None
        lane, one = found
        assert one == next(each for each in left if each[0] == lane), "first in, first out"
        for other in here & may - {lane}:
            passed[other] = passed.get(other, 0) + 1
            assert passed[other] <= 2, "each other lane has one turn before it"
        passed[lane] = 0
        left.remove(one)
        assert len(lanes) == len(left)
    assert not lanes
    assert not left
