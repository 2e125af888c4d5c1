"""Changes that must not change a decision, by `decide`: scales, names, split resources, idle queues, order of input.

Each plays a small cluster twice, as it is and as it is changed, to rest, and compares who runs and how often somebody
was evicted on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.model import KUEUE, MUSTER, Preemption, PreemptionPolicy, Quota, Rules
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, elastic, gang, queue

HOUR = 3600 * SECOND
LEAVES = ("a", "b", "c")


@dataclass(frozen=True)
class Gang:
    name: str
    queue: str
    pods: int
    each: Mapping[str, int]
    priority: int
    round: int


@dataclass(frozen=True)
class Case:
    quota: Mapping[str, Mapping[str, int]]
    """Of the root, the inner cohort and the queues."""
    parent: Mapping[str, str]
    weight: Mapping[str, Fraction]
    within: Mapping[str, bool]
    gangs: tuple[Gang, ...]


amounts = st.fixed_dictionaries({"gpu": st.integers(0, 5), "cpu": st.integers(0, 5)})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    asked = st.tuples(
        st.sampled_from(LEAVES),
        st.integers(1, 2),
        st.sampled_from(({"gpu": 1}, {"gpu": 2}, {"cpu": 1}, {"gpu": 1, "cpu": 1}, {"gpu": 1, "cpu": 2})),
        st.sampled_from((0, 0, 5)),
        st.integers(0, 2),
    )
    return Case(
        quota={name: draw(amounts) for name in ("root", "inner", *LEAVES)},
        parent={name: draw(st.sampled_from(("root", "inner"))) for name in LEAVES},
        weight={name: draw(st.sampled_from((Fraction(1), Fraction(2), Fraction(1, 2)))) for name in ("inner", *LEAVES)},
        within={name: draw(st.booleans()) for name in LEAVES},
        gangs=tuple(Gang(f"g{at}", *row) for at, row in enumerate(draw(st.lists(asked, min_size=2, max_size=8)))),
    )


def play(case: Case, rules: Rules, *, extra: tuple[object, ...] = (), reverse: bool = False) -> Town:
    """Three rounds of arrivals, an hour apart, each to rest."""
    town = Town(*elastic("f"), rules=rules)

    def quota(name: str) -> list[tuple[str, dict[str, int | Quota]]]:
        return [("f", dict(case.quota[name]))]

    inner = replace(cohort("inner", "root", quota("inner")), weight=case.weight["inner"])
    values: list[object] = [cohort("root", "", quota("root")), inner]
    for name, parent in case.parent.items():
        policy = PreemptionPolicy.LOWER_PRIORITY if case.within[name] else PreemptionPolicy.NEVER
        values.append(
            queue(
                name,
                parent,
                quota(name),
                weight=case.weight[name],
                preemption=Preemption(within_cluster_queue=policy, reclaim_within_cohort=PreemptionPolicy.ANY),
            )
        )
    values += extra
    town.put(*(reversed(values) if reverse else values))
    for number in range(3):
        arrive = [one for one in case.gangs if one.round == number]
        for one in reversed(arrive) if reverse else arrive:
            born = town.now - START + case.gangs.index(one)
            town.put(gang(one.name, one.queue, one.pods, each=dict(one.each), priority=one.priority, created=born))
        town.rests(30)  # Kueue's fair sharing may have none, which is one of its differences
        town.now += HOUR
    return town


def outcome(town: Town) -> tuple[list[str], dict[str, int]]:
    return town.admitted(), {key[1]: count for key, count in sorted(town.evictions.items())}


def scaled(case: Case) -> Case:
    """All amounts seven times as large."""
    return dataclasses.replace(
        case,
        quota={name: {res: 7 * n for res, n in held.items()} for name, held in case.quota.items()},
        gangs=tuple(dataclasses.replace(one, each={res: 7 * n for res, n in one.each.items()}) for one in case.gangs),
    )


def split(case: Case) -> Case:
    """Every gpu has a twin, of which there is as much everywhere."""

    def twin(held: Mapping[str, int]) -> dict[str, int]:
        return {**held, **({"gpu-too": held["gpu"]} if "gpu" in held else {})}

    return dataclasses.replace(
        case,
        quota={name: twin(held) for name, held in case.quota.items()},
        gangs=tuple(dataclasses.replace(one, each=twin(one.each)) for one in case.gangs),
    )


def unused(case: Case) -> Case:
    """There is quota of something that nobody asks for."""
    return dataclasses.replace(case, quota={name: {**held, "license": 9} for name, held in case.quota.items()})


def heavier(case: Case) -> Case:
    """All weights three times as large."""
    return dataclasses.replace(case, weight={name: 3 * weight for name, weight in case.weight.items()})


PRESETS = {"muster": MUSTER, "kueue": KUEUE, "kueue-fair": replace(KUEUE, fair_sharing=True)}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("change", [scaled, split, unused, heavier])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(case=cases())
def test_what_must_not_matter(change: Callable[[Case], Case], preset: str, case: Case) -> None:
    rules = PRESETS[preset]
    assert outcome(play(case, rules)) == outcome(play(change(case), rules))


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases())
def test_an_idle_queue_changes_nothing(preset: str, case: Case) -> None:
    idle = queue("idle", "inner", [("f", {"gpu": 0, "cpu": 0})])
    assert outcome(play(case, PRESETS[preset])) == outcome(play(case, PRESETS[preset], extra=(idle,)))


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases())
def test_the_order_of_input_changes_nothing(preset: str, case: Case) -> None:
    assert outcome(play(case, PRESETS[preset])) == outcome(play(case, PRESETS[preset], reverse=True))


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases())
def test_a_new_controller_has_nothing_to_do_where_the_old_one_had_nothing(preset: str, case: Case) -> None:
    """What decisions remember stands on the objects: at rest, a State made anew comes to rest without a decision."""
    town = play(case, PRESETS[preset])
    if not town.rests(30):  # anew, for an hour has passed
        assert preset == "kueue-fair", "it came to no rest"
        return
    other = town.fresh()
    for _ in range(40):
        plan = decide(other, town.now, BUDGET)
        assert not plan.decisions
        if not plan.more:
            break


@settings(max_examples=30, deadline=None, derandomize=True)
@given(case=cases(), names=st.permutations(LEAVES))
def test_names_of_queues_change_nothing(case: Case, names: list[str]) -> None:
    """Ties end by age and the gang's own uid, so that no two gangs here are tied."""
    other = dict(zip(LEAVES, names, strict=True))

    def renamed(held: Mapping[str, object]) -> dict[str, object]:
        return {other.get(name, name): value for name, value in held.items()}

    twin = dataclasses.replace(
        case,
        quota=renamed(case.quota),  # type: ignore[arg-type]
        parent=renamed(case.parent),  # type: ignore[arg-type]
        weight=renamed(case.weight),  # type: ignore[arg-type]
        within=renamed(case.within),  # type: ignore[arg-type]
        gangs=tuple(dataclasses.replace(one, queue=other[one.queue]) for one in case.gangs),
    )
    assert outcome(play(case, MUSTER)) == outcome(play(twin, MUSTER))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    total=st.integers(4, 12),
)
def test_a_queue_in_two_halves_gets_what_it_got_whole(sizes: list[int], total: int) -> None:
    """A queue is cut in two with half its weight each. Together they get what the whole one got, but for one gang."""

    def shares(halves: bool) -> dict[str, int]:
        town = Town(*elastic("f"), cohort("root"))
        names = [f"q{at}" for at in range(len(sizes))]
        parts = [*names[1:], *(("q0x", "q0y") if halves else ("q0",))]
        for name in parts:
            weight = Fraction(1, 2) if name in ("q0x", "q0y") else Fraction(1)
            town.put(queue(name, "root", [("f", {"gpu": 0})], weight=weight))
        for name in parts:
            size = sizes[int(name[1])]
            for at in range(total + 1):
                town.put(gang(f"{name}-{at:02}", name, size, created=at))
        town.settle()
        town.put(cohort("root", "", [("f", {"gpu": total})]))
        town.settle()
        held: dict[str, int] = {}
        for one in town.gangs():
            if one.admission is not None:
                held[one.queue[:2]] = held.get(one.queue[:2], 0) + one.pod_sets[0].count
        return held

    whole, halves = shares(False), shares(True)
    for name in {*whole, *halves}:
        assert abs(whole.get(name, 0) - halves.get(name, 0)) <= 2 * max(sizes)
