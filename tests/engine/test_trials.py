"""What a change costs, in trials: a count, the same on every machine."""

from __future__ import annotations

import gc
import random  # noqa: TID251  # seeded

import pytest

from admission.engine.cycle import decide
from admission.engine.line import Line
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    Assumed,
    Flavor,
    Gone,
    Put,
    Rules,
    Workload,
)
from admission.engine.order import Tournament
from admission.engine.state import State
from admission.engine.trial import Run, Trial
from admission.engine.victims import Search
from admission.engine.walk import Walk
from tests.bench.engine import NOW, Size, Tally, fill, full, gang, leave, settle, town
from tests.engine.town import SECOND, START, Town, cohort, queue
from tests.engine.town import gang as gang_of

SIZE = Size(queues=12, cohorts=4, nodes=60, pending=360)


def finishes(number: int, rules: Rules, *, forget: bool) -> tuple[list[int], State]:
    """Trials after each of so many finishes in a full cluster, until nothing more is decided; where the engine is to
    `forget`, it remembers nothing when somebody finishes."""
    state = town(SIZE, rules)
    state.apply(Put(Flavor("cloud", elastic=True)))  # of no queue here
    fill(state, SIZE, random.Random(7), SIZE.pending)
    settle(state, NOW, Tally())
    dice = random.Random(3)
    steps, now = [], NOW
    for at in range(number):
        now += 1_000
        holders = sorted(one.key for queue in sorted(state.queues) for one in state.holders(queue))
        state.apply(Gone(Workload, holders[dice.randrange(len(holders))]))
        state.apply(Put(gang(dice, 5_000 + at, SIZE)))
        steps.append(0)
        if forget:
            state.memos.forget()
        while True:
            plan = decide(state, now, 100_000)
            steps[-1] += plan.steps
            for decision in plan.decisions:
                state.apply(Assumed(decision))
            leave(state, plan, now)
            if not plan.decisions and not plan.more:
                break
    return steps, state


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_a_finish_costs_trials_only_where_it_may_matter(rules: Rules) -> None:
    remembered, _ = finishes(6, rules, forget=False)
    anew, _ = finishes(6, rules, forget=True)
    assert sum(remembered) * 3 < sum(anew), (remembered, anew)
    assert sorted(remembered)[len(remembered) // 2] <= 40, remembered


def test_who_could_never_go_has_nobody_look_through_the_whole_queue_for_each_that_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another queue takes what became free from under all of them; who is first of theirs is asked of each."""
    waiting = 150
    town = Town(Flavor("f", elastic=True), cohort("c"), *(queue(name, "c", [("f", {"gpu": 1000})]) for name in "ab"))
    town.put(gang_of("own", "a", 999), gang_of("runs", "b", 1000))
    town.settle()
    town.put(*(gang_of(f"small{i}", "b", 50, created=i) for i in range(20)))
    town.put(gang_of("never", "a", 3000, priority=5))
    town.put(*(gang_of(f"g{i}", "a", 60 + i, created=100 + i) for i in range(waiting)))
    town.settle()
    looked, look = [0], Line._never

    def counted(line: Line, bucket: int) -> bool:
        looked[0] += 1
        return look(line, bucket)

    monkeypatch.setattr(Line, "_never", counted)
    town.remove(Workload, ("ns", "runs"))
    town.settle()
    assert len(town.admitted()) == 21
    assert waiting < looked[0] < 10 * waiting


@pytest.mark.parametrize("seed", range(2))
def test_an_arrival_costs_one_trial(seed: int) -> None:
    """In a full cluster at rest a gang like others that were refused is refused without a trial of the others."""
    state, _ = full(SIZE, Tally())
    dice = random.Random(seed)
    plan = decide(state, NOW, 100_000)
    assert not [d for d in plan.decisions if isinstance(d, Admit)]
    state.apply(Put(gang(dice, 9_000, SIZE)))
    assert decide(state, NOW, 100_000).steps <= 3


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_a_decision_leaves_no_garbage(rules: Rules) -> None:
    """Objects that refer to each other in a ring stay until Python's collector comes by; everything waits for it then,
    in a large cluster for a tenth of a second."""
    size = Size(queues=10, cohorts=1, nodes=20, pending=200)
    state = town(size, rules)
    fill(state, size, random.Random(7), size.pending)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        settle(state, NOW, tally := Tally())
        gc.collect()
        left = {type(one).__name__ for one in gc.garbage if isinstance(one, Run | Search | Trial | Walk | Tournament)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
    assert tally.admitted


def test_who_may_evict_nobody_for_now_is_tried_when_it_may_or_when_there_is_room() -> None:
    """A claim came to nothing, for those who were to leave for it did not; what others give back is not enough."""
    town = Town(
        queue("a", "root", [("f", {"gpu": 4})]), queue("b", "root", [("f", {"gpu": 4})]), Flavor("f", elastic=True)
    )
    town.put(*(gang_of(f"a{i}", "a", created=i) for i in range(8)))
    town.settle()
    town.put(gang_of("b0", "b", 4, created=10))
    town.cycle()
    stays = [one.name for one in town.gangs() if one.evicted]
    assert len(stays) == 4
    town.now += MUSTER.claim_ms + 5 * SECOND
    town.cycle()
    assert not town.state.ledger.claims
    for name in stays[:3]:
        town.remove(Workload, ("ns", name))
        assert town.cycle().steps == 0, name
    town.remove(Workload, ("ns", stays[3]))
    town.cycle()
    assert "b0" in town.admitted()


def test_who_is_asked_whether_another_may_go_first_is_asked_once_whatever_a_decision_may_cost() -> None:
    """In each of six trees room is kept for eight that lack more than became free, and one more that was passed over
    like them would take it. They are asked before it goes, and a decision ends before their turn: in the next the book
    says no again of them."""
    town = Town(Flavor("f", elastic=True))
    for tree in "abcdef":
        names = [f"{tree}{at}" for at in range(8)]
        town.put(*(queue(name, tree, [("f", {"gpu": 0})]) for name in (*names, f"{tree}-small")))
        town.put(queue(f"{tree}-holds", tree, [("f", {"gpu": 40})]))
        town.put(*(gang_of(f"{tree}-h{at}", f"{tree}-holds", created=at) for at in range(40)))
        town.settle()
        town.put(*(gang_of(f"{name}-0", name, 4, created=100 + at) for at, name in enumerate(names)))
        town.put(gang_of(f"{tree}-s0", f"{tree}-small", 2, created=200))
    town.now += 2 * MUSTER.passed_over_ms
    town.settle()
    assert len(town.kept()) == 54
    for left in "01":
        for tree in "abcdef":
            town.remove(Workload, ("ns", f"{tree}-h{left}"))
        town.budget = 5
        plans = []
        while not plans or plans[-1].more or plans[-1].decisions:
            plans.append(town.cycle())
    assert [name for name in town.admitted() if name.endswith("-s0")] == [f"{tree}-s0" for tree in "abcdef"]
    assert sum(plan.steps for plan in plans) == 12, "two looks at each that goes"


def test_who_would_fit_but_for_the_room_of_others_is_asked_again_without_a_trial() -> None:
    """Room is kept for a large gang that came long before twenty others, each of which would fit into what is free.
    Another gang ends: the book says no again of all of them."""
    names = [f"q{at:02}" for at in range(20)]
    town = Town(Flavor("f", elastic=True))
    town.put(*(queue(name, "root", [("f", {"gpu": 0})]) for name in ("large", *names)))
    town.put(queue("holds", "root", [("f", {"gpu": 200})]))
    town.put(*(gang_of(f"h{at:03}", "holds", created=at) for at in range(200)))
    town.settle()
    town.put(gang_of("first", "large", 90, created=300))
    town.now += 2 * MUSTER.passed_over_ms
    town.settle()
    town.put(*(gang_of(f"{name}-0", name, 4, created=town.now - START + at) for at, name in enumerate(names)))
    for _ in range(12):
        town.now += 100 * SECOND
        town.settle()
    for at in range(10):
        town.remove(Workload, ("ns", f"h{at:03}"))
    town.settle()
    assert len(town.kept()) == 21
    assert len(town.admitted()) == 190
    steps = []
    for at in range(10, 14):
        town.remove(Workload, ("ns", f"h{at:03}"))
        steps.append(town.cycle().steps)
    assert steps == [0] * 4
