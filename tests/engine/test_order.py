"""Order within a queue, and the arithmetic of usage-decayed fairness (vectors F1 and F2)."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine import order
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    ClusterQueue,
    Cohort,
    Detail,
    LocalQueue,
    Rules,
    Strategy,
    UsageFairness,
)
from admission.engine.quota import AsIf, Tree
from tests.engine.town import BUDGET, START, Town, elastic, gang, queue
from tests.engine.trees import RESOURCES, configurations, fr

HOUR = 3_600_000


def test_queue_order() -> None:
    gangs = [
        gang("late", "q", created=9),
        gang("early", "q", created=1),
        gang("back", "q", created=0, queue_stamp=START + 100),
        gang("high", "q", created=50, priority=7),
        gang("twin-b", "q", created=1, uid="uid-early2"),
        gang("third", "q", created=1, uid="uid-a", arrival="3"),
        gang("second", "q", created=1, uid="uid-b", arrival="2"),
    ]
    ranked = sorted(gangs, key=lambda one: order.queue_key(one, False))
    assert [one.name for one in ranked] == ["high", "early", "twin-b", "second", "third", "late", "back"]
    assert min(gangs, key=lambda one: order.queue_key(one, one.name == "late")).name == "late"
    boosted = [replace(one, priority_boost=8) if one.name == "back" else one for one in gangs]
    assert min(boosted, key=lambda one: order.queue_key(one, False)).name == "back"


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
@pytest.mark.parametrize(
    ("evicted", "by_eviction", "first"),
    [
        ("PodsReadyTimeout", True, "young"),
        ("PodsReadyTimeout", False, "back"),
        ("AdmissionCheck", False, "young"),
        ("NodeFailures", False, "back"),
    ],
)
def test_who_did_not_get_ready_stands_where_the_configuration_says(
    rules: Rules, evicted: str, by_eviction: bool, first: str
) -> None:
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})]), rules=replace(rules, evict_stamp=by_eviction))
    stamp = 0 if evicted == "NodeFailures" else START + 100
    town.put(gang("back", "a", created=1, evicted=evicted, evicted_at=START + 100, queue_stamp=stamp))
    town.put(gang("young", "a", created=2))
    plan = decide(town.state, START + 200, BUDGET)
    assert [d.key[1] for d in plan.decisions] == [first]


@pytest.mark.parametrize(("rules", "first"), [(MUSTER, "back"), (KUEUE, "young")], ids=["muster", "kueue"])
def test_who_lost_a_node_goes_before_all_others_but_by_kueues_rules(rules: Rules, first: str) -> None:
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})]), rules=rules)
    town.put(gang("back", "a", created=5, evicted="NodeFailures", evicted_at=START + 100, queue_stamp=0))
    town.put(gang("young", "a", created=2))
    plan = decide(town.state, START + 200, BUDGET)
    assert [d.key[1] for d in plan.decisions] == [first]


def test_f1_half_life() -> None:
    fairness = UsageFairness(half_life_ms=HOUR)
    used: dict[str, float] = {}
    seen = []
    for _ in range(3):
        used = order.consumed(fairness, used, HOUR, {"gpu": 10})
        seen.append(used["gpu"])
    assert seen == [5.0, 7.5, 8.75]
    assert order.consumed(UsageFairness(half_life_ms=0), used, HOUR, {"gpu": 10, "cpu": 1}) == {"cpu": 0.0, "gpu": 0.0}


def test_f2_weight_and_penalty() -> None:
    fairness = UsageFairness(half_life_ms=168 * HOUR, sampling_ms=300_000)
    assert order.decay(fairness, 300_000) == pytest.approx(3.4376e-4, rel=1e-4)
    assert order.penalty(fairness, {"gpu": 8})["gpu"] == pytest.approx(0.0027501, rel=1e-4)


def test_the_local_queue_that_used_least_goes_first_before_priority() -> None:
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR))
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})], usage_based_fairness=True), rules=rules)
    for name, used, weight in (("x", 8.0, 1), ("y", 2.0, 1), ("z", 3.0, 2)):
        town.put(LocalQueue("ns", name, "a", weight=Fraction(weight), consumed=(("gpu", used),), consumed_at=START))
        town.put(gang(name, name, 1, priority=9 if name == "x" else 0))
    plan = decide(town.state, town.now, BUDGET)
    assert [d.key[1] for d in plan.decisions] == ["z"]


@pytest.mark.parametrize(("weights", "first"), [((), "gpus"), ((("gpu", 20.0),), "cpus"), ((("cpu", 0.5),), "cpus")])
def test_a_core_counts_as_much_as_a_device(weights: tuple[tuple[str, float], ...], first: str) -> None:
    """One has used 8 GPUs and a core, the other 10 cores."""
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR, weights=weights))
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})], usage_based_fairness=True), rules=rules)
    for name, used in (("gpus", (("cpu", 1000.0), ("gpu", 8.0))), ("cpus", (("cpu", 10_000.0),))):
        town.put(LocalQueue("ns", name, "a", consumed=used, consumed_at=START), gang(name, name, 1))
    plan = decide(town.state, town.now, BUDGET)
    assert [d.key[1] for d in plan.decisions] == [first]


def test_an_admission_counts_once_before_the_next_sample() -> None:
    """Two LocalQueues that start equal take turns, though only one writes its usage."""
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR))
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 1})], usage_based_fairness=True), rules=rules)
    for name in "xy":
        town.put(LocalQueue("ns", name, "a", consumed_at=START - 1))
        for i in range(2):
            town.put(gang(f"{name}{i}", name, 1, created=i))
    town.cycle()
    assert town.admitted() == ["x0"]
    town.put(queue("a", "", [("f", {"gpu": 2})], usage_based_fairness=True))
    town.cycle()
    assert town.admitted() == ["x0", "y0"]


@pytest.mark.parametrize("budget", [1, 5, BUDGET])
def test_local_queues_share_what_is_free_however_much_is_decided_at_once(budget: int) -> None:
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR))
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 20})], usage_based_fairness=True), rules=rules)
    town.budget = budget
    for name in "xy":
        town.put(LocalQueue("ns", name, "a", consumed_at=START - 1))
    town.put(*(gang(f"{name}{i:02}", name, created=i) for name in "xy" for i in range(30)))
    for _ in range(25):
        town.cycle()
    assert Counter(name[0] for name in town.admitted()) == {"x": 10, "y": 10}


def test_the_first_of_a_strict_queue_is_who_used_least() -> None:
    """Others are told of that one, and room is kept for it when it was passed over; whoever is older waits behind."""
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR))
    strict = queue("a", "", [("f", {"gpu": 4})], usage_based_fairness=True, strategy=Strategy.STRICT_FIFO)
    town = Town(*elastic("f"), strict, rules=rules)
    for name, used in (("x", 8.0), ("y", 2.0)):
        town.put(LocalQueue("ns", name, "a", consumed=(("gpu", used),), consumed_at=START))
    town.put(gang("holds", "x", 2))
    town.cycle()
    town.put(gang("old", "x", 4, created=1), gang("young", "y", 4, created=2))
    town.cycle()
    told = town.state.explain(("ns", "old"))
    assert told is not None
    assert (told.why.detail, told.why.subject) == (Detail.BEHIND_HEAD, "ns/young")
    assert [town.state.position(("ns", name)) for name in ("young", "old")] == [0, 1]
    town.now += rules.passed_over_ms + 10
    town.cycle()
    assert [town.gang(name).claims is not None for name in ("young", "old")] == [True, False]


@pytest.mark.parametrize("change", [{"weight": Fraction(9)}, {"consumed": ()}], ids=["weight", "usage"])
def test_room_is_kept_for_who_is_first_as_another_share_is_due_to_its_local_queue(change: dict[str, Any]) -> None:
    rules = replace(MUSTER, usage_fairness=UsageFairness(half_life_ms=HOUR))
    town = Town(*elastic("f"), queue("a", "", [("f", {"gpu": 4})], usage_based_fairness=True), rules=rules)
    used = {name: LocalQueue("ns", name, "a", consumed=(("gpu", 8.0),), consumed_at=START) for name in "xyz"}
    town.put(*used.values(), replace(used["y"], consumed=(("gpu", 2.0),)))
    town.put(gang("holds", "z", 2))
    town.cycle()
    town.put(gang("old", "x", 4, created=1), gang("young", "y", 4, created=2))
    town.cycle()
    town.put(replace(used["x"], **change))
    town.now += rules.passed_over_ms + 10
    town.put(gang("small", "z", 2, created=town.now - START))
    town.cycle()
    assert town.admitted() == ["holds"]
    assert [town.gang(name).claims is not None for name in ("young", "old")] == [False, True]


_moves = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(RESOURCES), st.integers(-6, 6), st.booleans()), min_size=1, max_size=12
)


@given(configurations(weights=True), _moves, st.sampled_from((MUSTER, KUEUE)))
def test_where_a_queue_stands_is_never_remembered_wrongly(
    configuration: tuple[list[ClusterQueue], list[Cohort]], moves: list[tuple[int, str, int, bool]], rules: Rules
) -> None:
    tree = Tree.build(*configuration)
    nodes = list(tree.queues())
    asked = {node.name: (gang(node.name, node.name), {fr("a"): 3, fr("b"): 1}) for node in nodes}
    known = order.Standings()

    def look() -> None:
        for node in nodes:
            one, usage = asked[node.name]
            place = order.queue_key(one, False)
            assert known.ranks(node, place, one, usage, rules) == order.ranks(node, one, usage, rules)

    for which, resource, amount, for_a_question in moves:
        node = nodes[which % len(nodes)]
        look()
        if for_a_question:
            with AsIf([(node, ((fr(resource), amount),))], 1):
                look()
        else:
            node.move_all(((fr(resource), amount),), 1)
    look()
