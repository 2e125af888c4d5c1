"""Random towns whose queues have several flavors, some of them elastic: every decision keeps the book, and when nothing
more happens the town comes to rest."""

from __future__ import annotations

from fractions import Fraction
from random import Random  # noqa: TID251  # seeded

import pytest
from msgspec.structs import replace

from admission.engine.model import (
    ClusterQueue,
    Flavor,
    Fungibility,
    Node,
    Preemption,
    PreemptionPolicy,
    Quota,
    Strategy,
    Workload,
)
from tests.engine.town import SECOND, START, Town, cohort, gang, node, queue

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
