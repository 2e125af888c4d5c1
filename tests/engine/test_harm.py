"""A pod that comes alone stands where it harms least those that may come: against the definition, pod by pod."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from admission.engine.capacity import Capacity, Placement, PlaceRequest, place
from admission.engine.model import MUSTER, Admission, Flavor, Node, PodSet, PodSetAssignment, TopologyAssignment

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
STEPS = 12


def node(name: str, cpu: int, gpus: int) -> Node:
    return Node(name, ((HOST, name),), (), (("cpu", cpu), (GPU, gpus), ("pods", 110)))


def request(cpu: int, gpus: int, count: int = 1) -> PlaceRequest:
    amounts = tuple((name, amount) for name, amount in (("cpu", cpu), (GPU, gpus)) if amount)
    return PlaceRequest(PodSet("main", count), count, amounts, (Flavor("gpu"),))


def put(capacity: Capacity, name: str, asked: PlaceRequest) -> str | None:
    """Place and charge; the node of the first pod."""
    got = place(capacity, [asked], rules=MUSTER, explain=False)
    if not isinstance(got, Placement):
        return None
    admission = Admission("q", (PodSetAssignment("main", (), (), asked.count, got["main"]),))
    capacity.charge(("ns", name), name, admission, {"main": dict(asked.per_pod)})
    return got["main"].domains[0].values[-1]


def test_a_small_pod_leaves_the_node_whole_on_which_large_ones_may_come() -> None:
    capacity = Capacity()
    for i in range(3):
        capacity.put_node(node(f"n{i}", 64, 8))
    assert put(capacity, "large", request(32, 8)) == "n0"
    assert put(capacity, "small", request(4, 1)) == "n1"
    assert put(capacity, "other", request(4, 1)) == "n1"
    assert put(capacity, "next", request(32, 8)) == "n2"


def test_a_pod_without_devices_leaves_the_cpu_that_pods_with_devices_need() -> None:
    capacity = Capacity()
    capacity.put_node(node("a", 40, 4))
    capacity.put_node(node("b", 70, 4))
    put(capacity, "known", request(8, 1))
    # On "a", which is fuller, three devices would be left that nobody could use.
    assert put(capacity, "plain", request(26, 0)) == "b"


def test_a_gang_whose_pods_are_all_done_counts_for_nothing() -> None:
    capacity = Capacity()
    nobody = Admission("q", (PodSetAssignment("main", (), (), 0, TopologyAssignment((HOST,), ())),))
    capacity.charge(("ns", "done"), "done", nobody, {"main": {"cpu": 1, GPU: 1}})
    assert capacity.popular() == []
    capacity.release(("ns", "done"))


KINDS = st.tuples(st.integers(1, 12), st.integers(0, 4))


@given(
    st.lists(st.tuples(st.integers(4, 48), st.integers(0, 8)), min_size=1, max_size=6),
    st.lists(KINDS, min_size=1, max_size=10),
    KINDS,
)
def test_no_other_node_would_be_harmed_less(
    nodes: list[tuple[int, int]], before: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    capacity = Capacity()
    for i, (cpu, gpus) in enumerate(nodes):
        capacity.put_node(node(f"n{i}", cpu, gpus))
    for i, kind in enumerate(before):
        put(capacity, str(i), request(*kind))
    known = [(kind, pods) for kind, pods in capacity.popular()]
    free = {one.name: capacity.free(one.name) for one in capacity.nodes()}
    cpu, gpus = asked

    def lost(room: dict[str, int]) -> Fraction:
        out = Fraction(0)
        for kind, pods in known:
            if any(room[name] < amount for name, amount in kind):
                out += pods * room[GPU]
        return out / sum(pods for _, pods in known)

    def harm(name: str) -> int:
        room = free[name]
        after = {**room, "cpu": room["cpu"] - cpu, GPU: room[GPU] - gpus, "pods": room["pods"] - 1}
        return ceil((lost(after) - lost(room)) * STEPS)

    may = [n for n, room in free.items() if room["cpu"] >= cpu and room[GPU] >= gpus]
    bare = [n for n in may if dict(capacity.node(n).allocatable)[GPU] == 0]  # type: ignore[union-attr]
    chosen = put(capacity, "asked", request(*asked))
    assert (chosen is None) == (not may)
    if chosen is None or not known:
        return
    if not gpus and bare:
        may = bare  # nodes with devices only if need be
    assert harm(chosen) == min(map(harm, may))
