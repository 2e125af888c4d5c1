"""Published answers of dominant-resource fairness, by the whole engine: deep backlogs, one plan, who got how many.

All quota stands on the root cohort and none on the queues, so that everything is borrowed and only shares decide. The
flavor is elastic: nodes say nothing here. Orders are not compared where they hang on the rule for ties, which is
Muster's own (lower share with the gang added, then priority and age).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest

from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admit,
    Assumed,
    Flavor,
    Gone,
    LabelSelector,
    LocalQueue,
    Namespace,
    PodSet,
    PodShape,
    Put,
    Workload,
)
from admission.engine.state import State
from tests.engine.trees import FLAVOR, cohort, queue

Demands = Mapping[str, Sequence[int]]


class Cluster:
    """Queues `name -> demand of one gang` under one pool, with `parents` where they are not directly below it."""

    def __init__(
        self,
        capacity: Sequence[int],
        demands: Demands,
        weights: Sequence[int] = (),
        parents: Mapping[str, str] | None = None,
        backlog: int = 40,
    ) -> None:
        self.state = State(MUSTER)
        self.demands = demands
        self.count = 0
        none = {f"r{i}": 0 for i in range(len(capacity))}
        inner = parents or {}
        self.put(Flavor(FLAVOR, elastic=True), Namespace("ns"))
        self.put(cohort("pool", "", {f"r{i}": amount for i, amount in enumerate(capacity)}))
        self.put(*(cohort(name, "pool") for name in sorted(set(inner.values()))))
        every = list(weights) or [1] * len(demands)
        for name, weight in zip(demands, every, strict=True):
            self.put(
                queue(name, inner.get(name, "pool"), none, weight=Fraction(weight), namespace_selector=LabelSelector()),
                LocalQueue("ns", name.lower(), name),
            )
        for name, demand in demands.items():
            self.submit(name, demand, backlog)

    def put(self, *values: object) -> None:
        for value in values:
            self.state.apply(Put(value))  # type: ignore[arg-type]

    def submit(self, name: str, demand: Sequence[int], times: int) -> None:
        requests = tuple((f"r{i}", amount) for i, amount in enumerate(demand) if amount)
        for _ in range(times):
            self.count += 1
            gang = f"{name.lower()}-{self.count:04}"
            sets = (PodSet("main", 1, PodShape(requests=requests)),)
            self.put(Workload("ns", gang, uid=gang, queue=name.lower(), created=1000, pod_sets=sets))

    def fill(self) -> str:
        """One plan, carried out: the queues in the order in which they were served."""
        plan = decide(self.state, 2000, 1_000_000)
        order = []
        for decision in plan.decisions:
            assert isinstance(decision, Admit)
            self.state.apply(Assumed(decision))
            order.append(decision.admission.cluster_queue)
        return " ".join(order)

    def running(self) -> dict[str, int]:
        held = Counter(charge.queue for charge in self.state.ledger.charges.values())
        return {name: held[name] for name in self.demands}

    def finish(self, name: str) -> None:
        """The gang of the queue that started first ends."""
        key = min(key for key, charge in self.state.ledger.charges.items() if charge.queue == name)
        self.state.apply(Gone(Workload, key))


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "gangs"),
    [
        pytest.param((9, 18), {"A": (1, 4), "B": (3, 1)}, (), {"A": 3, "B": 2}, id="V1"),
        pytest.param((9, 18), {"A": (1, 4), "B": (3, 1)}, (2, 1), {"A": 4, "B": 1}, id="V2"),
        pytest.param((9, 18), {"A": (1, 4), "B": (3, 1)}, (1, 2), {"A": 3, "B": 2}, id="V3"),
        pytest.param((12,), {"A": (1,), "B": (2,), "C": (3,)}, (1, 2, 3), {"A": 2, "B": 2, "C": 2}, id="V5"),
        pytest.param((6, 100), {"A": (1, 1), "B": (1, 2), "C": (2, 1)}, (), {"A": 2, "B": 2, "C": 1}, id="V6"),
        pytest.param(
            (64, 512, 4096),
            {"A": (8, 64, 512), "B": (1, 32, 64), "C": (0, 16, 128)},
            (),
            {"A": 3, "B": 5, "C": 10},
            id="V7",
        ),
        pytest.param(
            (12, 96, 768),
            {"A": (1, 4, 32), "B": (1, 16, 64), "C": (0, 8, 64)},
            (2, 1, 1),
            {"A": 8, "B": 2, "C": 4},
            id="V8",
        ),
    ],
)
def test_flat(capacity: Sequence[int], demands: Demands, weights: Sequence[int], gangs: dict[str, int]) -> None:
    cluster = Cluster(capacity, demands, weights)
    cluster.fill()
    assert cluster.running() == gangs
    assert cluster.fill() == ""


def test_v1_and_v2_in_the_published_order() -> None:
    demands = {"A": (1, 4), "B": (3, 1)}
    assert Cluster((9, 18), demands).fill() == "A B A B A"
    assert Cluster((9, 18), demands, (2, 1)).fill() == "A B A A A"


def test_v4_a_queue_that_asks_for_less_leaves_the_rest_to_the_other() -> None:
    cluster = Cluster((9, 18), {"A": (1, 4), "B": (3, 1)}, backlog=0)
    cluster.submit("A", (1, 4), 1)
    cluster.submit("B", (3, 1), 9)
    cluster.fill()
    assert cluster.running() == {"A": 1, "B": 2}


HIERARCHIES = {
    "H1": (10, {"n1": (1, 1), "n21": (1, 0), "n22": (0, 1)}, {"n21": "n2", "n22": "n2"}, (5, 5, 5)),
    "H2": (10, {"n1": (0, 1), "n21": (1, 0), "n22": (0, 1)}, {"n21": "n2", "n22": "n2"}, (5, 10, 5)),
    "H3": (
        30,
        {"n1": (1, 0), "n2": (1, 0), "n31": (1, 0), "n32": (0, 1), "n4": (0, 1)},
        {"n31": "n3", "n32": "n3"},
        (10, 10, 10, 15, 15),
    ),
}


@pytest.mark.parametrize("name", HIERARCHIES)
def test_hierarchies(name: str) -> None:
    size, demands, parents, gangs = HIERARCHIES[name]
    cluster = Cluster((size, size), demands, parents=parents)
    cluster.fill()
    assert tuple(cluster.running().values()) == gangs


def test_h2_the_child_that_keeps_ending_is_not_starved() -> None:
    size, demands, parents, gangs = HIERARCHIES["H2"]
    cluster = Cluster((size, size), demands, parents=parents)
    cluster.fill()
    for _ in range(12):
        cluster.finish("n22")
        cluster.fill()
        assert tuple(cluster.running().values()) == gangs


def test_x7_queues_that_do_not_use_their_dominant_resource_take_turns() -> None:
    """Both hold half of the GPUs; what waits asks for CPU only, and no share moves."""
    cluster = Cluster((10, 100), {"A": (5, 0), "B": (5, 0)}, backlog=1)
    cluster.fill()
    cluster.submit("A", (0, 10), 6)
    cluster.submit("B", (0, 10), 6)
    order = cluster.fill().split()
    assert len(order) == 10
    assert all(abs(order[:n].count("A") - order[:n].count("B")) <= 1 for n in range(len(order)))
