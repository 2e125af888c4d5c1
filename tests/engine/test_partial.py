"""Gangs refused in every size and flavor they may have: what wakes them, what is kept for them, what they are told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from admission.engine.model import (
    KUEUE,
    MUSTER,
    Detail,
    Flavor,
    Quota,
    Reason,
    Rules,
    Topology,
    TopologyRequest,
    Workload,
)
from admission.names import HOSTNAME_LABEL
from tests.engine.town import INITIAL_TOO, SECOND, START, Town, cohort, elastic, gang, node, queue

MINUTE = 60 * SECOND


def may_shrink(value: Workload, least: int) -> Workload:
    (pods,) = value.pod_sets
    return replace(value, pod_sets=(replace(pods, min_count=least),))


@pytest.mark.parametrize(("pods", "least"), [(1, 1), (3, 1), (2, 1), (6, 1)])
def test_time_that_makes_a_smaller_size_lawful_wakes_it(pods: int, least: int) -> None:
    """Its victim is spared in its first minutes. Two pods fit the cohort, more never do."""
    free = queue("a", "root", [("f", {"gpu": 0})]), queue("c", "root", [("f", {"gpu": 0})])
    town = Town(*elastic("f"), cohort("root", "", [("f", {"gpu": 4})]), *free, rules=INITIAL_TOO)
    town.twin = True
    town.put(gang("a1", "a", each={"gpu": 4}))
    town.cycle()
    town.put(may_shrink(gang("c1", "c", pods, each={"gpu": 2}), least))
    plan = town.cycle()
    assert plan.next_at == town.now + 5 * MINUTE
    (verdict,) = plan.verdicts
    assert verdict.why.reason is Reason.WAITING_FOR_QUOTA
    town.now = plan.next_at
    town.cycle()
    assert town.evictions == {("ns", "a1"): 1}


@pytest.mark.parametrize("flavors", [("f", "g"), ("g", "f")])
def test_time_that_makes_a_flavor_lawful_wakes_it(flavors: tuple[str, str]) -> None:
    """In `f` its victim is spared in its first minutes; in `g` nobody may ever go for it, and the search ends there."""
    town = Town(*elastic(*flavors), cohort("root", "", [("f", {"gpu": 4}), ("g", {"gpu": 2})]), rules=INITIAL_TOO)
    town.put(*(queue(name, "root", [(flavor, {"gpu": 0})]) for name, flavor in (("a", "f"), ("b", "g"))))
    town.put(queue("c", "root", [(flavor, {"gpu": 0}) for flavor in flavors]))
    town.twin = True
    town.put(gang("b1", "b"), gang("b2", "b"), gang("a1", "a", each={"gpu": 4}))
    town.cycle()
    town.put(gang("c1", "c", each={"gpu": 2}))
    plan = town.cycle()
    assert plan.next_at == town.now + 5 * MINUTE
    town.now = plan.next_at
    town.cycle()
    assert town.evictions == {("ns", "a1"): 1}


def on_nodes(**free: int) -> list[Any]:
    return [Flavor("f"), queue("a", "", [("f", {"gpu": 60})]), *(node(name, gpu=gpu) for name, gpu in free.items())]


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
@pytest.mark.parametrize(
    ("of", "least", "room", "pods"),
    [(16, 5, 11, 8), (16, 4, 15, 12), (16, 4, 7, 4), (16, 5, 7, None), (16, 1, 3, None), (15, 4, 11, 8)],
)
def test_a_gang_of_slices_gets_as_many_as_are_whole(
    of: int, least: int, room: int, pods: int | None, rules: Rules
) -> None:
    """By Kueue's rules, too: it had more pods than places, of 3 pods in slices of 4 none had one."""
    town = Town(*on_nodes(n0=room), Topology("net", (HOSTNAME_LABEL,)), Flavor("f", topology="net"), rules=rules)
    value = may_shrink(gang("sliced", "a", of), least)
    (asked,) = value.pod_sets
    slices = TopologyRequest(slice_required=HOSTNAME_LABEL, slice_size=4)
    town.put(replace(value, pod_sets=(replace(asked, topology=slices),)))
    town.cycle()
    got = town.gang("sliced").admission
    assert (None if got is None else got.pods) == pods


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_slices_of_no_size_are_refused_whatever_may_be_left_out(rules: Rules) -> None:
    town = Town(*on_nodes(n0=9), Topology("net", (HOSTNAME_LABEL,)), Flavor("f", topology="net"), rules=rules)
    value = may_shrink(gang("sliced", "a", 4), 1)
    (asked,) = value.pod_sets
    slices = TopologyRequest(slice_required=HOSTNAME_LABEL)
    town.put(replace(value, pod_sets=(replace(asked, topology=slices),)))
    town.cycle()
    told = town.state.explain(value.key)
    assert told is not None
    assert [one.message for one in told.why.misfits] == ["slice topology requested, but slice size not provided"]


def test_who_asks_for_slices_in_both_ways_gets_as_many_as_are_whole_of_the_widest() -> None:
    net = Topology("net", ("rack", HOSTNAME_LABEL))
    there = replace(node("n0", gpu=13), labels=((HOSTNAME_LABEL, "n0"), ("rack", "r")))
    town = Town(*on_nodes(), there, net, Flavor("f", topology="net"))
    value = may_shrink(gang("sliced", "a", 16), 1)
    (asked,) = value.pod_sets
    slices = TopologyRequest(slice_required="rack", slice_size=8, slices=((HOSTNAME_LABEL, 2),))
    town.put(replace(value, pod_sets=(replace(asked, topology=slices),)))
    town.cycle()
    got = town.gang("sliced").admission
    assert got is not None
    assert got.pods == 8


QUOTA = [*elastic("f"), queue("a", "", [("f", {"gpu": 6})])]
# A gang of `b` waits for one that does not end, and half of the cohort is kept for it.
BESIDE = [*elastic("f"), queue("a", "root", [("f", {"gpu": 6})]), queue("b", "root", [("f", {"gpu": Quota(6, 0)})])]


@pytest.mark.parametrize(
    ("objects", "pods", "least"),
    [
        pytest.param(QUOTA, 6, 6, id="whole"),
        pytest.param(QUOTA, 5, 4, id="the whole would fit"),
        pytest.param(QUOTA, 8, 4, id="the whole is beyond quota"),
        pytest.param(on_nodes(n0=3, n1=3), 8, 4, id="the whole is beyond the nodes"),
        pytest.param(BESIDE, 8, 4, id="the whole is beyond what is left beside room kept for another"),
    ],
)
def test_room_is_kept_for_a_size_that_fits(objects: list[Any], pods: int, least: int) -> None:
    """Small gangs fill the queue, each minute one ends and another comes. R11 stops that."""
    town = Town(*objects)
    number = 0

    def small() -> None:
        nonlocal number
        number += 1
        town.put(gang(f"s{number:03}", "a", created=town.now - START, each={"gpu": 3}))

    if objects is BESIDE:
        town.put(gang("long", "b", each={"gpu": 3}), gang("after", "b", created=1, each={"gpu": 6}))
    for _ in range(3):
        small()
        town.cycle()
        town.now += MINUTE
    town.put(may_shrink(gang("big", "a", pods, created=town.now - START), least))
    for _ in range(13):
        town.now += MINUTE
        small()
        runs = [one for one in town.gangs() if one.admission is not None and one.queue == "a"]
        town.remove(Workload, min(one.key for one in runs if one.name != "big"))
        town.cycle()
        told = town.state.explain(("ns", "big"))
        if town.gang("big").admission is not None:
            return
        assert told is not None
        assert told.why.detail not in (Detail.NEVER_FITS_QUOTA, Detail.NEVER_FITS_NODES)
    pytest.fail(f"{told}, {town.gang('big').claims}")
