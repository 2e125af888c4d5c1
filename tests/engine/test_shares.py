"""Weighted dominant shares: the vectors of the theory, and what must not change them.

With quota on the cohort and none on its queues the tree is textbook DRF. `fill` gives one gang at a time to the sibling
with the lowest share, on the real tree; `continuous` is the same in Fractions with divisible gangs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.engine.model import Cohort, FlavorQuotas, Quota, ResourceGroup
from admission.engine.quota import QuotaNode, Share, Tree
from admission.quantity import INT64_MAX
from tests.engine.trees import cohort, fr, queue

Demands = Mapping[str, Sequence[int]]


def usage(demand: Sequence[int]) -> dict[tuple[str, str], int]:
    return {fr(f"r{i}"): amount for i, amount in enumerate(demand) if amount}


def pool(capacity: Sequence[int], demands: Demands, weights: Sequence[int] = ()) -> Tree:
    """One cohort with all the quota, one queue per demand with none."""
    none = {f"r{i}": 0 for i in range(len(capacity))}
    every = list(weights) or [1] * len(demands)
    return Tree.build(
        [queue(name, "pool", none, weight=Fraction(w)) for name, w in zip(demands, every, strict=True)],
        [cohort("pool", "", {f"r{i}": amount for i, amount in enumerate(capacity)})],
    )


def key(node: QuotaNode, demand: Mapping[tuple[str, str], int]) -> tuple[Share, str]:
    """Lowest share before the gang; equal shares by name, as the published orders have it."""
    contested = None if node.is_queue else frozenset(resource for _, resource in demand)
    return node.share(None, contested), node.name


def choose(node: QuotaNode, demands: Demands, tree: Tree) -> QuotaNode | None:
    """The queue below `node` that is next, of those whose gang fits."""
    if node.is_queue:
        return node if node.name in demands and node.fits(usage(demands[node.name])) else None
    found = [(child, leaf) for child in node.children if (leaf := choose(child, demands, tree)) is not None]
    if not found:
        return None
    return min(found, key=lambda pair: key(pair[0], usage(demands[pair[1].name])))[1]


def fill(tree: Tree, demands: Demands) -> str:
    """Progressive filling to the end: the order in which gangs were given."""
    order = ""
    while (leaf := choose(tree.roots()[0], demands, tree)) is not None:
        tree.add(leaf, usage(demands[leaf.name]))
        order += leaf.name[0]
    return order


def continuous(
    capacity: Sequence[Fraction | int],
    demands: Sequence[Sequence[Fraction | int]],
    weights: Sequence[int] = (),
    caps: Mapping[int, int] | None = None,
) -> list[Fraction]:
    """Progressive filling with divisible gangs: gangs per user."""
    n = len(demands)
    w = list(weights) or [1] * n
    left = [Fraction(c) for c in capacity]
    gangs = [Fraction(0)] * n
    share = [max(Fraction(d[r]) / capacity[r] for r in range(len(capacity))) for d in demands]
    live = set(range(n))
    while live:
        speed = {i: Fraction(w[i]) / share[i] for i in live}  # gangs per unit of weighted share
        step: Fraction | None = None
        for r in range(len(capacity)):
            rate = sum(speed[i] * Fraction(demands[i][r]) for i in live)
            if rate:
                step = left[r] / rate if step is None else min(step, left[r] / rate)
        for i in live & set(caps or {}):
            step = min(step, (caps[i] - gangs[i]) / speed[i]) if step is not None else None  # type: ignore[index]
        assert step is not None
        for i in live:
            gangs[i] += step * speed[i]
            for r in range(len(capacity)):
                left[r] -= step * speed[i] * Fraction(demands[i][r])
        full = {r for r in range(len(capacity)) if left[r] == 0}
        live -= {i for i in live if any(demands[i][r] for r in full)}
        live -= {i for i in live if caps and i in caps and gangs[i] == caps[i]}
    return gangs


# ---------------------------------------------------------------- V: flat


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "order"),
    [
        ((9, 18), {"A": (1, 4), "B": (3, 1)}, (), "ABABA"),  # V1
        ((9, 18), {"A": (1, 4), "B": (3, 1)}, (2, 1), "ABAAA"),  # V2
        ((9, 18), {"A": (1, 4), "B": (3, 1)}, (1, 2), None),  # V3: A 3, B 2
        ((12,), {"A": (1,), "B": (2,), "C": (3,)}, (1, 2, 3), None),  # V5
        ((6, 100), {"A": (1, 1), "B": (1, 2), "C": (2, 1)}, (), None),  # V6
        ((64, 512, 4096), {"A": (8, 64, 512), "B": (1, 32, 64), "C": (0, 16, 128)}, (), "ABCCBCCABCCBCCABCC"),  # V7
        ((12, 96, 768), {"A": (1, 4, 32), "B": (1, 16, 64), "C": (0, 8, 64)}, (2, 1, 1), None),  # V8
    ],
)
def test_flat_vectors_in_whole_gangs(
    capacity: Sequence[int], demands: Demands, weights: Sequence[int], order: str | None
) -> None:
    expected = {
        (9, 18): {(): (3, 2), (2, 1): (4, 1), (1, 2): (3, 2)},
        (12,): {(1, 2, 3): (2, 2, 2)},
        (6, 100): {(): (2, 2, 1)},
        (64, 512, 4096): {(): (3, 5, 10)},
        (12, 96, 768): {(2, 1, 1): (8, 2, 4)},
    }[tuple(capacity)][tuple(weights)]
    tree = pool(capacity, demands, weights)
    got = fill(tree, demands)
    assert tuple(got.count(name) for name in demands) == expected
    if order is not None:
        assert got == order


def test_v7_uses_what_it_says() -> None:
    demands = {"A": (8, 64, 512), "B": (1, 32, 64), "C": (0, 16, 128)}
    tree = pool((64, 512, 4096), demands)
    fill(tree, demands)
    assert [tree.cohort("pool").usage[fr(f"r{i}")] for i in range(3)] == [29, 512, 3136]  # type: ignore[union-attr]


def test_v5_shares_are_in_the_ratio_of_the_weights() -> None:
    demands = {"A": (1,), "B": (2,), "C": (3,)}
    tree = pool((12,), demands, (1, 2, 3))
    fill(tree, demands)
    held = {node.name: Fraction(node.usage[fr("r0")], 12) for node in tree.queues()}
    assert held == {"A": Fraction(1, 6), "B": Fraction(1, 3), "C": Fraction(1, 2)}
    assert {node.share().weighted for node in tree.queues()} == {Fraction(1, 6)}


F = Fraction


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "caps", "gangs"),
    [
        ((9, 18), [(1, 4), (3, 1)], (), None, (3, 2)),  # V1
        ((9, 18), [(1, 4), (3, 1)], (2, 1), None, (F(54, 13), F(18, 13))),  # V2: 4.1538, 1.3846
        ((9, 18), [(1, 4), (3, 1)], (1, 2), None, (F(9, 5), F(12, 5))),  # V3
        ((9, 18), [(1, 4), (3, 1)], (), {0: 1}, (1, F(8, 3))),  # V4
        ((3, 3), [(2, 1), (1, 2)], (), None, (1, 1)),  # V9: more of one resource ...
        ((6, 3), [(2, 1), (1, 2)], (), None, (F(3, 2), F(3, 4))),  # ... and the second loses
        ((100, 100), [(4, 1), (1, 16)], (), None, (20, 5)),  # V10: when the third leaves, both gain
        ((9, 18), [(1, 4), (3, 2)], (), None, (F(27, 10) + F(3, 10), 2)),  # V11: B lies, and gets no more
        ((9, 18), [(1, 4), (4, 1)], (), None, None),  # V11: B lies, and gets less
        ((30, 30), [(1, 3), (1, 1)], (), None, None),  # V12: DRF keeps the half that asset fairness breaks
    ],
)
def test_fractional_vectors(
    capacity: Sequence[int],
    demands: Sequence[Sequence[int]],
    weights: Sequence[int],
    caps: Mapping[int, int] | None,
    gangs: tuple[Fraction, ...] | None,
) -> None:
    got = continuous(capacity, demands, weights, caps)
    if gangs is not None:
        assert tuple(got) == gangs
    elif capacity == (9, 18):
        assert got[1] * 4 / 3 < 2 + F(1, 3)
        assert min(got[1] * 4 // 3, got[1]) < 2  # usable gangs of (3, 1): CPU and memory held over what one takes
    else:
        assert all(max(g * d[r] / capacity[r] for r in range(2)) >= F(1, 2) for g, d in zip(got, demands, strict=True))


def test_v10_three_users() -> None:
    got = continuous((100, 100), [(4, 1), (1, 16), (16, 1)])
    assert [round(float(g), 2) for g in got] == [12.12, 3.03, 3.03]


def test_v13_shares_over_servers_count_the_whole_pool() -> None:
    """Two servers as two flavors: quota of the pool is their sum; 10 gangs each, the dominant share 10/14."""
    total = {"cpu": (20, 120), "mem": (120, 20)}  # tenths, per server
    pooled = Cohort(
        name="pool",
        groups=(
            ResourceGroup(
                ("cpu", "mem"),
                tuple(
                    FlavorQuotas(f"s{i}", tuple((res, Quota(total[res][i])) for res in ("cpu", "mem"))) for i in (0, 1)
                ),
            ),
        ),
    )
    none = (
        ResourceGroup(
            ("cpu", "mem"), tuple(FlavorQuotas(f"s{i}", (("cpu", Quota(0)), ("mem", Quota(0)))) for i in (0, 1))
        ),
    )
    queues = [queue("A", "pool"), queue("B", "pool")]
    tree = Tree.build([type(q)(name=q.name, cohort=q.cohort, groups=none) for q in queues], [pooled])
    a, b = tree.queue("A"), tree.queue("B")
    assert a is not None
    assert b is not None
    tree.add(a, {("s0", "cpu"): 20, ("s0", "mem"): 100})
    tree.add(b, {("s1", "cpu"): 100, ("s1", "mem"): 20})
    assert a.share().weighted == b.share().weighted == Fraction(10, 14)
    assert (a.share().dominant, b.share().dominant) == ("mem", "cpu")


# ---------------------------------------------------------------- H: hierarchies


def hierarchy(size: int, nodes: Mapping[str, str]) -> Tree:
    none = {"r0": 0, "r1": 0}
    inner = sorted({parent for parent in nodes.values() if parent != "root"})
    return Tree.build(
        [queue(name, parent, none) for name, parent in nodes.items()],
        [cohort("root", "", {"r0": size, "r1": size}), *(cohort(name, "root") for name in inner)],
    )


def held(tree: Tree, demands: Demands) -> dict[str, int]:
    out = {}
    for name, demand in demands.items():
        node = tree.queue(name)
        assert node is not None
        resource = next(i for i, amount in enumerate(demand) if amount)
        out[name] = node.usage.get(fr(f"r{resource}"), 0) // demand[resource]
    return out


def test_h1_an_inner_node_does_not_lose_by_having_children() -> None:
    demands = {"x1": (1, 1), "y21": (1, 0), "y22": (0, 1)}
    tree = hierarchy(10, {"x1": "root", "y21": "n2", "y22": "n2"})
    fill(tree, demands)
    assert held(tree, demands) == {"x1": 5, "y21": 5, "y22": 5}


def test_h2_a_child_does_not_starve_for_what_its_sibling_holds() -> None:
    demands = {"n1": (0, 1), "n21": (1, 0), "n22": (0, 1)}
    tree = hierarchy(10, {"n1": "root", "n21": "n2", "n22": "n2"})
    fill(tree, demands)
    assert held(tree, demands) == {"n1": 5, "n21": 10, "n22": 5}
    for _ in range(12):
        leaf = tree.queue("n22")
        assert leaf is not None
        tree.subtract(leaf, usage(demands["n22"]))
        fill(tree, demands)
        assert held(tree, demands) == {"n1": 5, "n21": 10, "n22": 5}


def test_h2_starves_by_the_plain_sum() -> None:
    """The difference that `Rules.contested_share` is for: by the plain sum the inner node's share is 1 all the time."""
    demands = {"n1": (0, 1), "n21": (1, 0), "n22": (0, 1)}
    tree = hierarchy(10, {"n1": "root", "n21": "n2", "n22": "n2"})
    for name, times in (("n1", 6), ("n21", 10), ("n22", 4)):
        node = tree.queue(name)
        assert node is not None
        tree.add(node, {k: v * times for k, v in usage(demands[name]).items()})
    inner, other, leaf = tree.cohort("n2"), tree.queue("n1"), tree.queue("n22")
    assert inner is not None
    assert other is not None
    assert leaf is not None
    tree.subtract(leaf, usage(demands["n22"]))
    assert inner.share() > other.share()
    assert inner.share(None, frozenset({"r1"})) < other.share(None, frozenset({"r1"}))


def test_h3_a_full_resource_blocks_nobody_else() -> None:
    demands = {"n1": (1, 0), "n2": (1, 0), "n31": (1, 0), "n32": (0, 1), "n4": (0, 1)}
    tree = hierarchy(30, {"n1": "root", "n2": "root", "n31": "n3", "n32": "n3", "n4": "root"})
    fill(tree, demands)
    assert held(tree, demands) == {"n1": 10, "n2": 10, "n31": 10, "n32": 15, "n4": 15}


# ---------------------------------------------------------------- K: the formula


def three(weight: int = 1) -> tuple[Tree, QuotaNode]:
    tree = Tree.build(
        [queue(name, "c", {"gpu": 4}, weight=Fraction(weight if name == "A" else 1)) for name in "ABC"], []
    )
    node = tree.queue("A")
    assert node is not None
    return tree, node


@pytest.mark.parametrize(
    ("used", "weight", "value", "share"),
    [
        (8, 1, 334, Fraction(1, 3)),  # K1
        (8, 2, 167, Fraction(1, 6)),
        (4, 1, 0, Fraction(0)),  # K3
        (1, 1, 0, Fraction(0)),
        (8, 0, INT64_MAX, Fraction(1, 3)),  # weight 0 and borrowing: beyond all
        (4, 0, 0, Fraction(0)),  # weight 0 within nominal: nothing
    ],
)
def test_share_of_what_is_borrowed_over_what_can_be_lent(used: int, weight: int, value: int, share: Fraction) -> None:
    tree, node = three(weight)
    tree.add(node, {fr("gpu"): used})
    assert (node.share().value_status(), node.share().weighted) == (value, share)
    assert node.share().borrowing == (used > 4)


def test_k2_flavors_of_a_resource_are_summed_and_not_netted() -> None:
    def quotas(name: str) -> object:
        return ResourceGroup(
            ("gpu",), (FlavorQuotas("x", (("gpu", Quota(10)),)), FlavorQuotas("y", (("gpu", Quota(10)),)))
        )

    queues = [type(queue(n))(name=n, cohort="c", groups=(quotas(n),)) for n in "AB"]  # type: ignore[arg-type]
    tree = Tree.build(queues, [])
    node = tree.queue("A")
    assert node is not None
    tree.add(node, {("x", "gpu"): 12, ("y", "gpu"): 5})
    assert node.share().weighted == Fraction(2, 40)
    assert node.share().borrowed == (("x", "gpu"),)
    tree.add(node, {("y", "gpu"): 8})
    assert node.share().weighted == Fraction(5, 40)
    assert node.share().borrowed == (("x", "gpu"), ("y", "gpu"))


def test_a_share_is_of_what_the_parent_could_lend_not_of_the_whole_tree() -> None:
    tree = Tree.build(
        [queue("q", "inner", {"gpu": 0}), queue("r", "root", {"gpu": 90})],
        [cohort("inner", "root", {"gpu": Quota(10, borrowing_limit=10)}), cohort("root")],
    )
    q, inner = tree.queue("q"), tree.cohort("inner")
    assert q is not None
    assert inner is not None
    tree.add(q, {fr("gpu"): 15})
    assert q.share().weighted == Fraction(15, 20)
    assert inner.share().weighted == Fraction(5, 100)


def test_a_root_has_no_share_and_what_nobody_lends_has_none() -> None:
    tree, node = three()
    tree.add(node, {fr("gpu"): 100})
    root = tree.cohort("c")
    assert root is not None
    assert root.share().value_status() == 0
    alone = Tree.build([queue("q", "c", {"gpu": 0})], [])
    q = alone.queue("q")
    assert q is not None
    alone.add(q, {fr("gpu"): 1})
    share = q.share()
    assert (share.borrowing, share.value_status(), share.dominant) == (True, 0, "")


def test_what_is_told_of_a_share() -> None:
    """Of equal resources the first by name gives it, and no number is beyond what a status can say."""
    none = {"gpu": 0, "cpu": 0}
    tree = Tree.build([queue("q", "c", none, weight=Fraction(2))], [cohort("c", "", {"gpu": 4, "cpu": 2})])
    q = tree.queue("q")
    assert q is not None
    tree.add(q, {fr("gpu"): 2, fr("cpu"): 1})
    assert (q.share().dominant, q.share().weighted, q.share().value_status()) == ("cpu", F(1, 4), 250)
    tree.subtract(q, {fr("gpu"): 1})
    assert q.share().vector() == (F(1, 4), F(1, 8))
    tree.add(q, {fr("gpu"): 10**20})
    assert (q.share().infinite, q.share().value_status()) == (False, INT64_MAX)


def test_infinite_shares_are_last_and_compared_among_themselves() -> None:
    none = {"gpu": 0}
    tree = Tree.build(
        [queue("zero-small", "c", none, weight=Fraction(0)), queue("zero-big", "c", none, weight=Fraction(0)),
         queue("one", "c", none)],
        [cohort("c", "", {"gpu": 10})],
    )  # fmt: skip
    for name, amount in (("zero-small", 1), ("zero-big", 2), ("one", 7)):
        node = tree.queue(name)
        assert node is not None
        tree.add(node, {fr("gpu"): amount})
    assert [n.name for n in sorted(tree.queues(), key=QuotaNode.share)] == ["one", "zero-small", "zero-big"]


def test_x7_a_queue_that_does_not_use_the_dominant_resource_still_counts() -> None:
    none = {"gpu": 0, "cpu": 0}
    tree = Tree.build([queue("A", "c", none), queue("B", "c", none)], [cohort("c", "", {"gpu": 10, "cpu": 100})])
    a, b = tree.queue("A"), tree.queue("B")
    assert a is not None
    assert b is not None
    for node in (a, b):
        tree.add(node, {fr("gpu"): 5})
    tree.add(a, {fr("cpu"): 10})
    assert a.share() == b.share()
    assert a.share().vector() > b.share().vector()


def test_shares_with_follows_a_gang_up_the_tree() -> None:
    tree = Tree.build(
        [queue("q", "inner", {"gpu": Quota(4, lending_limit=1)}), queue("r", "root", {"gpu": 8})],
        [cohort("inner", "root"), cohort("root")],
    )
    node = tree.queue("q")
    assert node is not None
    foreseen = {n.name: s for n, s in Tree.shares_with(node, {fr("gpu"): 6})}
    tree.add(node, {fr("gpu"): 6})
    assert foreseen == {n.name: n.share() for n in node.path() if n.parent is not None}


# ---------------------------------------------------------------- what must not change a share

amounts = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4)
sizes = st.tuples(st.integers(1, 30), st.integers(1, 30))
factors = st.integers(2, 1000)


def shares(size: Sequence[int], use: Sequence[Sequence[int]], weights: Sequence[Fraction] = ()) -> list[Share]:
    none = {f"r{i}": 0 for i in range(len(size))}
    every = list(weights) or [Fraction(1)] * len(use)
    tree = Tree.build(
        [queue(f"q{i}", "c", none, weight=every[i]) for i in range(len(use))],
        [cohort("c", "", {f"r{i}": amount for i, amount in enumerate(size)})],
    )
    for i, row in enumerate(use):
        node = tree.queue(f"q{i}")
        assert node is not None
        tree.add(node, usage(row))
    return [node.share() for node in tree.queues()]


@given(sizes, amounts, factors)
@settings(max_examples=100, deadline=None)
def test_scaling_everything_changes_no_share(size: tuple[int, int], use: list, factor: int) -> None:
    scaled = shares([s * factor for s in size], [[a * factor for a in row] for row in use])
    assert scaled == shares(size, use)


@given(sizes, amounts)
@settings(max_examples=100, deadline=None)
def test_splitting_a_resource_name_idle_queues_and_unused_resources_change_no_share(
    size: tuple[int, int], use: list
) -> None:
    plain = shares(size, use)
    assert shares([*size, size[0]], [[*row, row[0]] for row in use]) == plain
    assert shares(size, [*use, (0, 0)])[: len(use)] == plain
    assert shares([*size, 7], [[*row, 0] for row in use]) == plain
    assert list(reversed(shares(size, list(reversed(use))))) == plain


@given(sizes, amounts)
@settings(max_examples=100, deadline=None)
def test_a_queue_split_in_two_of_half_the_weight_has_the_same_shares(size: tuple[int, int], use: list) -> None:
    doubled = [[a * 2 for a in row] for row in use]
    whole = shares(size, doubled)
    half = [Fraction(1)] * (len(use) - 1) + [Fraction(1, 2)] * 2
    parts = shares(size, [*doubled[:-1], use[-1], use[-1]], half)
    assert parts[:-2] == whole[:-1]
    assert parts[-2] == parts[-1] == whole[-1]


@given(sizes, amounts)
@settings(max_examples=100, deadline=None)
def test_order_of_shares_is_the_order_of_their_exact_values(size: tuple[int, int], use: list) -> None:
    got = shares(size, use)
    exact = [max(Fraction(a, s) for a, s in zip(row, size, strict=True)) for row in use]
    assert [share.weighted for share in got] == exact
    assert [i for i, _ in sorted(enumerate(got), key=lambda pair: pair[1])] == [
        i for i, _ in sorted(enumerate(exact), key=lambda pair: pair[1])
    ]


@given(
    st.tuples(st.integers(4, 40), st.integers(4, 40)),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any), min_size=2, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_whole_gangs_stay_within_one_gang_of_each_other(size: tuple[int, int], demands: list) -> None:
    """Gap bound: a queue is ahead of another by at most one of its own gangs, unless the other's next does not fit."""
    named = {f"{'ABCD'[i]}": demand for i, demand in enumerate(demands)}
    tree = pool(size, named)
    fill(tree, named)
    for ahead in tree.queues():
        gang = max(Fraction(a, s) for a, s in zip(named[ahead.name], size, strict=True))
        for behind in tree.queues():
            if behind.fits(usage(named[behind.name])):
                assert ahead.share().weighted - behind.share().weighted <= gang
