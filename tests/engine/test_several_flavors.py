"""Random towns whose queues have several flavors, some of them elastic: every decision keeps the book, and when nothing
more happens the town comes to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from random import Random  # noqa: TID251  # seeded
from typing import Any

import pytest
from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.filling import Filling
from admission.engine.flavors import Mode, Pinned
from admission.engine.ledger import Ledger
from admission.engine.model import (
    MUSTER,
    Admit,
    ClusterQueue,
    Cohort,
    Evict,
    Flavor,
    Fungibility,
    Key,
    Node,
    PodSet,
    PodShape,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    StopPolicy,
    Strategy,
    Workload,
)
from admission.engine.state import State
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, elastic, gang, groups, node, queue

MINUTE = 60 * SECOND
QUEUES = "abcd"
ASKS = ({"gpu": 1}, {"gpu": 2}, {"gpu": 1, "cpu": 1}, {"cpu": 2}, {"gpu": 3}, {"gpu": 2, "cpu": 2})
WITHIN = (
    PreemptionPolicy.LOWER_PRIORITY,
    PreemptionPolicy.LOWER_PRIORITY,
    PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
)


def quota(dice: Random) -> Quota:
    return Quota(dice.randint(0, 9), dice.choice((None, None, dice.randint(0, 9))), None)


def town(dice: Random) -> Town:
    flavors = [f"f{i}" for i in range(dice.choice((2, 2, 3)))]
    out: list[object] = [Flavor(one, node_labels=(("pool", one),), elastic=dice.random() < 0.4) for one in flavors]
    for name, parent, most in (("root", "", 4), ("inner", "root", 2)):
        own: list[tuple[str, dict[str, int | Quota]]] = [
            (one, {"gpu": dice.randint(0, most), "cpu": dice.randint(0, most)}) for one in flavors
        ]
        out.append(cohort(name, parent, own))
    for name in QUEUES:
        mine = dice.sample(flavors, dice.randint(1, len(flavors)))
        out.append(
            queue(
                name,
                dice.choice(("root", "inner")),
                [(one, {"gpu": quota(dice), "cpu": quota(dice)}) for one in mine],
                weight=dice.choice((Fraction(1), Fraction(2), Fraction(1, 2))),
                strategy=dice.choice(list(Strategy)),
                fungibility=Fungibility(dice.random() < 0.6, dice.random() < 0.4, dice.random() < 0.2),
                preemption=Preemption(within_cluster_queue=dice.choice(WITHIN)),
            )
        )
    for one in flavors:
        for i in range(dice.randint(2, 5)):
            made = node(f"{one}-{i}", gpu=dice.randint(2, 8), cpu=dice.randint(2, 9))
            out.append(replace(made, labels=tuple(sorted((*made.labels, ("pool", one))))))
    return Town(*out)


def happens(town: Town, dice: Random, count: int) -> None:
    match dice.choice(("arrive", "arrive", "arrive", "end", "wait", *["cycle"] * 4, "edit", "turn", "leave")):
        case "arrive":
            asks, pods, priority, where = (
                dice.choice(ASKS),
                dice.randint(1, 3),
                dice.choice((0, 0, 5, 9)),
                dice.choice(QUEUES),
            )
            for i in range(dice.randint(1, 4)):
                created = town.now - START
                town.put(gang(f"g{count:03}-{i}", where, pods, each=asks, priority=priority, created=created))
        case "end" if gangs := sorted(town.gangs(), key=lambda one: one.name):
            town.remove(Workload, dice.choice(gangs).key)
        case "wait":
            town.now += dice.choice((1, 4, 6, 11, 61)) * MINUTE
        case "cycle":
            town.cycle()
            if dice.random() < 0.5:
                town.leave()
            town.now += SECOND * dice.choice((0, 1, 30))
        case "edit":
            old = town.objects["ClusterQueue", dice.choice(QUEUES)]
            assert isinstance(old, ClusterQueue)
            names = [one.name for group in old.groups for one in group.flavors]
            new = queue(old.name, old.cohort, [(one, {"gpu": quota(dice), "cpu": quota(dice)}) for one in names])
            town.put(replace(old, groups=new.groups, generation=old.generation + 1))
        case "turn":
            one = town.objects[dice.choice(sorted(key for key in town.objects if key[0] == "Node"))]
            assert isinstance(one, Node)
            town.put(replace(one, ready=dice.random() < 0.5))
        case "leave":
            town.leave()


@pytest.mark.parametrize("seed", [*range(40), 351])
def test_a_town_comes_to_rest(seed: int) -> None:
    """351: who came back needed the end of another's claim, and was kept away then: claims went to and fro for ever."""
    dice = Random(seed)
    there = town(dice)
    for count in range(dice.randint(20, 60)):
        happens(there, dice, count)
    for _ in range(4):
        assert there.rests(60), there.log[-8:]
        there.now += 61 * MINUTE


def land_changes(town: Town, dice: Random) -> None:
    """What is asked of whom, and by whom, is another from now on."""
    old = town.objects.get(("ClusterQueue", dice.choice(QUEUES)))
    flavor = town.objects.get(("Flavor", dice.choice(("f0", "f1"))))
    match dice.choice(("moves", "weighs", "stops", "elastic", "gone", "rank", "fewer", "apart")):
        case "moves" if isinstance(old, ClusterQueue):
            town.put(replace(old, cohort=dice.choice(("root", "inner", ""))))
        case "weighs" if isinstance(old, ClusterQueue):
            town.put(replace(old, weight=dice.choice((Fraction(0), Fraction(1), Fraction(3)))))
        case "stops" if isinstance(old, ClusterQueue):
            town.put(replace(old, stop_policy=dice.choice((StopPolicy.NONE, StopPolicy.HOLD))))
        case "elastic" if isinstance(flavor, Flavor):
            town.put(replace(flavor, elastic=not flavor.elastic))
        case "gone" if isinstance(flavor, Flavor):
            town.remove(Flavor, flavor.name)
            if dice.random() < 0.8:
                town.cycle()
                town.put(flavor)
        case "apart":
            parent = dice.choice(("", "root", "inner"))  # which may close a ring
            there = town.objects["Cohort", dice.choice(("root", "inner"))]
            assert isinstance(there, Cohort)
            town.put(replace(there, parent=parent))
        case what if gangs := sorted(town.gangs(), key=lambda one: one.name):
            value = dice.choice(gangs)
            if what == "rank":
                town.put(replace(value, priority=dice.choice((-5, 0, 5, 9))))
            elif value.admission is not None and not value.evicted:
                town.put(replace(value, reclaimable=(("main", 1),)))


@pytest.mark.parametrize("seed", range(12))
def test_a_town_whose_land_changes_comes_to_rest(seed: int) -> None:
    """And whoever is told all of it at once has nothing to do then."""
    dice = Random(f"land {seed}")
    there = town(dice)
    for count in range(dice.randint(20, 60)):
        happens(there, dice, count)
        if dice.random() < 0.3:
            land_changes(there, dice)
            assert there.state.drift() == []
    for _ in range(3):
        assert there.rests(60), there.log[-8:]
        plan = decide(there.fresh(), there.now, BUDGET)
        assert there.by_turns(plan) or not [one for one in plan.decisions if isinstance(one, Admit | Evict)]
        there.now += 61 * MINUTE


ONE, TWO = (Flavor(name, node_labels=(("pool", name),)) for name in ("one", "two"))


def of(pool: str, name: str, gpus: int) -> Node:
    made = node(name, gpu=gpus)
    return replace(made, labels=tuple(sorted((*made.labels, ("pool", pool)))))


def two_parts(name: str, where: str, drivers: int, workers: int, only: str = "") -> Workload:
    """Pods of one gpu each; the workers in one flavor alone, if it is given."""
    shape = PodShape(requests=(("gpu", 1),))
    narrow = replace(shape, node_selector=(("pool", only),)) if only else shape
    parts = (PodSet("driver", drivers, shape), PodSet("worker", workers, narrow))
    return replace(gang(name, where), pod_sets=parts)


def flavors_of(town: Town, name: str) -> dict[str, str]:
    admission = town.gang(name).admission
    return {} if admission is None else {part.name: dict(part.flavors)["gpu"] for part in admission.pod_sets}


def both(one: int | Quota, two: int | Quota) -> list[tuple[str, dict[str, int | Quota]]]:
    return [("one", {"gpu": one}), ("two", {"gpu": two})]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("borrowed", [True, False])
def test_who_finds_nobody_to_evict_in_one_flavor_is_tried_in_the_next(borrowed: bool, stops: bool) -> None:
    """In the first there may be borrowers, and its one large node is held by a gang that nobody may evict."""
    town = Town(ONE, TWO, of("one", "large", 4), of("one", "small", 2), of("two", "other", 4), cohort("root"))
    town.put(queue("apart", "", [("one", {"gpu": 4})]), queue("b", "root", [("one", {"gpu": 0})]))
    town.put(queue("c", "root", [("two", {"gpu": 0})]))
    town.put(queue("a", "root", both(4, 4), fungibility=Fungibility(stop_when_preempting=stops)))
    town.put(gang("x", "apart", each={"gpu": 4}))
    town.settle()
    town.put(*([gang("b1", "b", each={"gpu": 2})] if borrowed else []), gang("c1", "c", each={"gpu": 4}))
    town.settle()
    town.put(gang("mine", "a", each={"gpu": 4}))
    assert town.settle() == 1
    assert flavors_of(town, "mine") == {"main": "two"}
    assert town.admitted() == [*(["b1"] if borrowed else []), "mine", "x"]


@pytest.mark.parametrize("quota", [True, False])
@pytest.mark.parametrize("pods", [(1, 4), (3, 4), (2, 1, 4), (1, 1, 2, 3), (1, 1, 1, 1, 3), (2, 2, 3)], ids=str)
def test_a_pod_set_leaves_a_flavor_to_another_that_needs_it(quota: bool, pods: tuple[int, ...]) -> None:
    """Of the first there are four, of the second three."""
    nodes = [*(of("one", f"one-{i}", 1) for i in range(4)), *(of("two", f"two-{i}", 1) for i in range(3))]
    town = Town(*(elastic("one", "two") if quota else [ONE, TWO, *nodes]))
    town.put(queue("a", "", both(4, 3) if quota else both(9, 9)))
    shape = PodShape(requests=(("gpu", 1),))
    parts = tuple(PodSet(f"part-{i}", count, shape) for i, count in enumerate(pods))
    town.put(replace(gang("mine", "a"), pod_sets=parts))
    town.settle()
    assert town.admitted() == ["mine"]


@pytest.mark.parametrize("driver_first", [True, False])
def test_who_may_have_one_flavor_only_has_it_whichever_pod_set_comes_first(driver_first: bool) -> None:
    town = Town(ONE, TWO, of("one", "n1", 2), of("two", "n2", 2), queue("a", "", both(9, 9)))
    town.put(
        replace(
            gang("mine", "a"),
            pod_sets=(
                PodSet("driver", 1, PodShape(requests=(("gpu", 2),))),
                PodSet("worker", 1, PodShape(requests=(("gpu", 1),), node_selector=(("pool", "one"),))),
            )[:: 1 if driver_first else -1],
        )
    )
    town.settle()
    assert flavors_of(town, "mine") == {"driver": "two", "worker": "one"}


@pytest.mark.parametrize("stops", [False, True])
def test_others_are_evicted_for_a_pod_set_of_which_another_needs_what_is_free(stops: bool) -> None:
    """The driver could have what is free, which is all that the worker may use."""
    town = Town(ONE, TWO, of("one", "n1", 1), of("two", "n2", 1), cohort("root"))
    town.put(queue("b", "root", [("one", {"gpu": 0})]))
    town.put(queue("a", "root", both(1, 1), fungibility=Fungibility(stop_when_preempting=stops)))
    town.put(gang("b1", "b"))
    town.settle()
    town.put(two_parts("mine", "a", 1, 1, only="two"))
    assert town.settle() == 1
    assert flavors_of(town, "mine") == {"driver": "one", "worker": "two"}


def test_who_was_turned_away_to_what_another_needs_comes_back_when_its_nodes_are_free() -> None:
    town = Town(ONE, TWO, of("one", "n1", 1), of("two", "n2", 1), queue("a", "", both(1, 1)))
    town.twin = True
    town.put(PodUsage(("x", "pod"), "pod", "n1", (("gpu", 1),)))
    town.put(two_parts("mine", "a", 1, 1, only="two"))
    town.settle()
    assert town.admitted() == []
    town.remove(PodUsage, ("x", "pod"))
    town.settle()
    assert flavors_of(town, "mine") == {"driver": "one", "worker": "two"}


@pytest.mark.parametrize("stops", [False, True])
def test_a_smaller_size_is_tried_in_all_flavors(stops: bool) -> None:
    """In the first there are borrowers, and only a node that nobody may be evicted from is large enough for a pod."""
    small = [of("one", f"small-{i}", 1) for i in range(8)]
    town = Town(ONE, TWO, of("one", "large", 8), *small, of("two", "other", 4), cohort("root"))
    town.put(queue("apart", "", [("one", {"gpu": 8})]), queue("b", "root", [("one", {"gpu": 0})]))
    town.put(queue("a", "root", both(8, 8), fungibility=Fungibility(stop_when_preempting=stops)))
    town.put(gang("x", "apart", each={"gpu": 8}))
    town.settle()
    town.put(gang("b1", "b", 8))
    town.settle()
    mine = gang("mine", "a", 4, each={"gpu": 2})
    town.put(replace(mine, pod_sets=(replace(mine.pod_sets[0], min_count=2),)))
    assert town.settle() == 0
    admission = town.gang("mine").admission
    assert admission is not None
    assert (admission.pods, flavors_of(town, "mine")) == (2, {"main": "two"})


@pytest.mark.parametrize("least", [4, 2])
def test_who_was_evicted_from_a_second_flavor_is_not_evicted_from_it_again(least: int) -> None:
    """Who waits is entitled to it there, with as many pods as it needs, and to nothing in the flavor that it tries
    first."""
    town = Town(*elastic("one", "two"), cohort("root", "", [("two", {"gpu": 4 - least})]))
    town.put(queue("a", "root", both(0, least), weight=Fraction(1, 4)), queue("b", "root", [("two", {"gpu": 0})]))
    town.put(gang("back", "b", 4))
    town.settle()
    town.put(gang("first", "a", least, created=1))
    assert town.settle() == 1
    following = gang("next", "a", 4, created=2)
    town.put(replace(following, pod_sets=(replace(following.pod_sets[0], min_count=least),)))
    town.remove(Workload, ("ns", "first"))
    assert town.settle() == 0
    assert town.admitted() == ["next"]


@pytest.mark.parametrize(
    ("flavors", "quota", "only"),
    [
        pytest.param(("one", "three"), 0, "", id="of other flavors"),
        pytest.param(("one", "two"), 0, "", id="of larger shares"),
        pytest.param(("one", "two"), 8, "one", id="whose pods may use others alone"),
    ],
)
def test_who_comes_back_asks_nobody_who_could_not_evict_it(
    monkeypatch: pytest.MonkeyPatch, flavors: tuple[str, str], quota: int, only: str
) -> None:
    town = Town(*(Flavor(one, (("pool", one),), elastic=True) for one in ("one", "two", "three")), cohort("root"))
    town.put(queue("a", "root", [("two", {"gpu": 4})]), queue("b", "root", [("two", {"gpu": 0})]))
    town.put(gang("long", "a", 4))
    town.settle()
    looks: Counter[str] = Counter()
    look = Filling.look

    def counted(run: Filling, gang: Workload, *arguments: Any, **options: Any) -> Any:
        looks[gang.queue] += bool(run.as_if)
        return look(run, gang, *arguments, **options)

    monkeypatch.setattr(Filling, "look", counted)
    for at in range(5):
        own: dict[str, dict[str, int | Quota]] = {one: {"gpu": quota if one == "two" else 0} for one in flavors}
        town.put(queue(f"q{at}", "root", list(own.items())))
        made = gang(f"g{at}", f"q{at}", 8, created=at + 2)
        shape = replace(made.pod_sets[0].shape, node_selector=(("pool", only),) if only else ())
        town.put(replace(made, pod_sets=(replace(made.pod_sets[0], shape=shape),)))
    town.settle()
    town.put(gang("back", "b", 4, created=1, evicted="Preempted", evicted_at=town.now))
    town.remove(Workload, ("ns", "long"))
    town.cycle()
    assert "back" in town.admitted()
    assert not +looks


def test_which_flavors_others_may_use_is_looked_up_once_for_all_who_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(*elastic("one", "two"), cohort("root"))
    town.put(queue("a", "root", [("two", {"gpu": 4})]), gang("long", "a", 4))
    town.put(*(queue(f"b{i}", "root", [("two", {"gpu": 0})]) for i in range(4)))
    town.settle()
    for at in range(5):
        town.put(queue(f"q{at}", "root", [(one, {"gpu": 0}) for one in ("one", "two")]))
        town.put(gang(f"g{at}", f"q{at}", 8, created=at + 4))
    town.settle()
    asked: Counter[Key] = Counter()
    turns = State.turns

    def counted(state: State, gang: Workload, *arguments: Any) -> Any:
        asked[gang.key] += 1
        return turns(state, gang, *arguments)

    monkeypatch.setattr(State, "turns", counted)
    back = [gang(f"back{i}", f"b{i}", created=i, evicted="Preempted", evicted_at=town.now) for i in range(4)]
    town.put(*back)
    town.remove(Workload, ("ns", "long"))
    town.decide()
    assert asked == {("ns", f"g{at}"): 1 for at in range(5)}


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("on_nodes", [True, False])
def test_nobody_is_evicted_from_a_flavor_that_another_pod_set_may_leave(on_nodes: bool, stops: bool) -> None:
    """The driver could have what is free of either, the worker may use one alone. Not where the queue would rather
    evict than try the next flavor."""
    nodes = [of("one", "n1", 1), of("one", "n2", 1), of("two", "n3", 1)]
    town = Town(*([ONE, TWO, *nodes] if on_nodes else [replace(one, elastic=True) for one in (ONE, TWO)]))
    town.put(cohort("root"), queue("b", "root", [("one", {"gpu": 0})]))
    town.put(queue("a", "root", both(2, 1), fungibility=Fungibility(stop_when_preempting=stops)))
    town.put(gang("b1", "b"))
    town.settle()
    town.put(two_parts("mine", "a", 1, 1, only="one"))
    assert town.decide().steps == 1, "it costs no other look"
    assert town.settle() == stops
    assert flavors_of(town, "mine") == {"driver": "one" if stops else "two", "worker": "one"}


def test_room_is_kept_in_another_flavor_where_that_of_the_first_is_kept_for_another() -> None:
    """Who was passed over, and finds all of the first flavor kept for one that waits longer."""
    town = Town(*elastic("one", "two"), cohort("root"))
    town.put(queue("x", "root", [("one", {"gpu": 0})]), queue("y", "root", both(0, 0)), queue("s", "root", both(4, 4)))
    town.put(*(gang(f"s{i}", "s", created=i) for i in range(8)))
    town.settle()
    for name, where in (("large", "x"), ("other", "y")):
        town.put(gang(name, where, 4, created=town.now - START))
        town.now += 2 * MUSTER.passed_over_ms
        town.settle()
    assert sorted(key[1] for key in town.kept()) == ["large", "other"]


def test_nodes_are_asked_of_each_flavor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of them there is quota, and a gang that nobody may evict has the nodes."""
    calls = 0

    def counted(of: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return of(*arguments, **options)

        return call

    for name in ("places", "room"):
        monkeypatch.setattr(Ledger, name, counted(getattr(Ledger, name)))
    took = []
    for many in (4, 16):
        names = [f"f{i:02}" for i in range(many)]
        town = Town(*(Flavor(name, node_labels=(("pool", name),)) for name in names))
        town.put(*(of(name, f"n-{name}", 4) for name in names))
        town.put(queue("apart", "", [(name, {"gpu": 4}) for name in names]))
        town.put(queue("a", "root", [(name, {"gpu": 4}) for name in names]))
        town.put(*(gang(f"x{i}", "apart", each={"gpu": 4}) for i in range(many)))
        town.settle()
        assert len(town.admitted()) == many
        town.put(gang("mine", "a", each={"gpu": 2}))
        calls = 0
        town.cycle()
        assert len(town.admitted()) == many
        took.append(calls)
    assert took[1] <= 6 * took[0]


PARTS = ({"gpu": 1}, {"gpu": 2}, {"cpu": 1}, {"cpu": 2, "gpu": 1}, {"cpu": 0, "gpu": 1}, {})


def town_of_groups(dice: Random) -> Town:
    """Prices of cpu and kinds of gpu are groups of their own; each node has a price and a kind."""
    prices, kinds = ("low", "high"), ("h", "k")
    out: list[object] = [Flavor(one, node_labels=(("price", one),)) for one in prices]
    out += [Flavor(one, node_labels=(("kind", one),)) for one in kinds]
    out.append(cohort("root"))
    for name in QUEUES:
        of_cpu = groups([(one, {"cpu": quota(dice)}) for one in dice.sample(prices, dice.randint(1, 2))])
        of_gpu = groups([(one, {"gpu": quota(dice)}) for one in dice.sample(kinds, dice.randint(1, 2))])
        fungibility = Fungibility(dice.random() < 0.6, dice.random() < 0.4, dice.random() < 0.2)
        made = queue(name, dice.choice(("root", "root", "")), fungibility=fungibility)
        out.append(replace(made, groups=(*of_cpu, *of_gpu)))
    for price, kind, i in product(prices, kinds, range(2)):
        one = node(f"{price}-{kind}-{i}", gpu=dice.randint(0, 5), cpu=dice.randint(1, 8))
        out.append(replace(one, labels=tuple(sorted((*one.labels, ("kind", kind), ("price", price))))))
    return Town(*out)


def of_parts(dice: Random, name: str) -> Workload:
    made = gang(name, dice.choice(QUEUES), priority=dice.choice((0, 0, 5)))
    shapes = [PodShape(requests=tuple(sorted(dice.choice(PARTS).items()))) for _ in range(dice.randint(1, 3))]
    parts = [PodSet(f"part-{i}", dice.randint(1, 4), shape) for i, shape in enumerate(shapes)]
    if dice.random() < 0.25:
        parts[0] = replace(parts[0], min_count=dice.randint(1, parts[0].count))
    return replace(made, pod_sets=tuple(parts))


def ways(spec: ClusterQueue, value: Workload) -> list[Pinned]:
    """All flavors that its pod sets might get."""
    per_part: list[list[dict[str, str]]] = []
    for part in value.pod_sets:
        of_group = [
            [{res: one.name for res, _ in part.shape.requests if res in group.covered} for one in group.flavors]
            for group in spec.groups
        ]
        per_part.append([{res: one for got in way for res, one in got.items()} for way in product(*of_group)])
    names = [part.name for part in value.pod_sets]
    return [dict(zip(names, way, strict=True)) for way in product(*per_part)]


@pytest.mark.parametrize("seed", [*range(10), 20])
def test_nobody_waits_who_could_go_in_other_flavors(seed: int) -> None:
    """Several groups of flavors, several pod sets: who waits when all is at rest fits in no flavors, and in none may it
    evict others."""
    dice = Random(seed)
    town = town_of_groups(dice)
    town.twin = True
    for count in range(dice.randint(5, 20)):
        town.put(of_parts(dice, f"g{count:02}"))
        if dice.random() < 0.5:
            town.rests(60)
        if gangs := [one for one in town.gangs() if one.admission is not None and dice.random() < 0.1]:
            town.remove(Workload, gangs[0].key)
    assert town.rests(60), town.log[-8:]
    if town.kept():
        return
    run = Filling(town.state, town.now, BUDGET, town.state.ledger.nodes.effort.spent)
    for value in town.gangs():
        if value.admission is None and not value.evicted:
            spec = town.state.queues[value.queue]
            for pinned in ways(spec, value):
                trial = run.look(value, spec, pinned=pinned)
                assert trial.mode is not Mode.FIT, (value.name, pinned)
                assert not trial.found.enough, (value.name, pinned, trial.found)
