"""The cohort tree: amounts by their definitions, on rows and on random trees."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.engine.model import ClusterQueue, Cohort, Quota
from admission.engine.quota import QuotaNode, Tree
from tests.engine.trees import RESOURCES, cohort, configurations, fr, queue, usage_by_definition, usage_of_tree

A = fr("a")


def at(tree: Tree, name: str) -> QuotaNode:
    node = tree.queue(name) or tree.cohort(name)
    assert node is not None
    return node


Config = tuple[list[ClusterQueue], list[Cohort]]


@st.composite
def operations(draw: st.DrawFn) -> tuple[Config, list[tuple[str, str, int]]]:
    config = draw(configurations())
    names = [q.name for q in config[0]]
    steps = draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(RESOURCES), st.integers(1, 15)), max_size=12)
    )
    return config, steps


@given(operations(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_adding_and_subtracting_are_exact_inverses_in_any_order(case: tuple[Config, list], random: object) -> None:
    (queues, cohorts), steps = case
    tree = Tree.build(queues, cohorts)
    held: dict[str, dict] = {}
    for name, resource, amount in steps:
        tree.add(at(tree, name), {fr(resource): amount})
        mine = held.setdefault(name, {})
        mine[fr(resource)] = mine.get(fr(resource), 0) + amount
        assert usage_of_tree(tree) == usage_by_definition(tree, held)
    leaving = list(steps)
    random.shuffle(leaving)  # type: ignore[attr-defined]
    for name, resource, amount in leaving:
        tree.subtract(at(tree, name), {fr(resource): amount})
        held[name][fr(resource)] -= amount
        assert usage_of_tree(tree) == usage_by_definition(tree, held)
    assert not any(usage_of_tree(tree).values())


def lawful(node: QuotaNode, resource: str) -> bool:
    """Do all limits on the way to the root hold as usage stands?"""
    key = fr(resource)
    for n in node.path():
        used, local, subtree = n.usage.get(key, 0), n.local_quota(key), n.subtree.get(key, 0)
        quota = n.quotas.get(key)
        if n.parent is None:
            return used <= subtree
        limit = None if quota is None else quota.borrowing_limit
        if limit is not None and max(0, used - local) > subtree - local + limit:
            return False
    raise AssertionError


@given(operations(), st.sampled_from(RESOURCES))
@settings(max_examples=300, deadline=None)
def test_available_is_the_most_that_can_be_added_within_every_limit(case: tuple[Config, list], resource: str) -> None:
    (queues, cohorts), steps = case
    tree = Tree.build(queues, cohorts)
    key = fr(resource)
    for name, other, amount in steps:
        node = at(tree, name)
        take = min(amount, node.available(fr(other)))
        tree.add(node, {fr(other): take})
    for node in tree.queues():
        free = node.available(key)
        if not free and not lawful(node, resource):
            continue
        most = 0
        while most < 200:
            tree.add(node, {key: most + 1})
            good = lawful(node, resource)
            tree.subtract(node, {key: most + 1})
            if not good:
                break
            most += 1
        assert free == most
        assert bool(node.limit_of(key, most + 1))
        assert not node.limit_of(key, most)
        assert node.fits({key: most})
        assert not node.fits({key: most + 1})
        assert most <= node.potential(key)


@given(operations())
@settings(max_examples=300, deadline=None)
def test_what_siblings_hold_of_each_quota(case: tuple[Config, list]) -> None:
    (queues, cohorts), steps = case
    tree = Tree.build(queues, cohorts)
    for name, resource, amount in steps:
        tree.add(at(tree, name), {fr(resource): amount})
    lent = tree.lent()
    for node in (*tree.queues(), *tree.cohorts()):
        for key in map(fr, RESOURCES):
            over = unused = mine = own = 0
            if node.parent is not None:
                own = node.parent.quotas[key].nominal if key in node.parent.quotas else 0
                for child in node.parent.children:
                    shared = child.subtree.get(key, 0) - child.local_quota(key)
                    risen = max(0, child.usage.get(key, 0) - child.local_quota(key))
                    over += max(0, risen - shared)
                    unused += max(0, shared - risen)
                    mine = max(0, shared - risen) if child is node else mine
            given_away = min(max(0, over - own), unused)
            assert lent.get(node, {}).get(key, 0) == (given_away * mine // unused if unused else 0)


@given(configurations(), st.sampled_from(RESOURCES))
@settings(max_examples=200, deadline=None)
def test_potential_is_what_is_available_with_nobody_there(config: Config, resource: str) -> None:
    tree = Tree.build(*config)
    for node in (*tree.queues(), *tree.cohorts()):
        assert node.potential(fr(resource)) == node.balance(fr(resource))


@given(operations(), st.sampled_from(RESOURCES))
@settings(max_examples=200, deadline=None)
def test_borrowing_height_grows_with_the_amount_and_is_zero_within_own_quota(
    case: tuple[Config, list], resource: str
) -> None:
    (queues, cohorts), steps = case
    tree = Tree.build(queues, cohorts)
    for name, other, amount in steps:
        tree.add(at(tree, name), {fr(other): amount})
    for node in tree.queues():
        heights = [node.borrowing_height(fr(resource), amount)[0] for amount in range(1, 30)]
        assert heights == sorted(heights)
        for amount, height in enumerate(heights, 1):
            if not node.exceeds(fr(resource), amount):
                assert height == 0
            elif node.parent is not None:
                assert height > 0


def test_lending_limit_keeps_the_rest_local() -> None:
    tree = Tree.build([queue("lender", "c", {"a": Quota(10, lending_limit=3)}), queue("other", "c", {"a": 2})], [])
    assert at(tree, "c").subtree[A] == 5
    assert at(tree, "other").available(A) == 5
    tree.add(at(tree, "lender"), {A: 7})
    assert A not in at(tree, "c").usage  # all of it is local
    assert at(tree, "other").available(A) == 5
    tree.add(at(tree, "lender"), {A: 1})
    assert at(tree, "c").usage[A] == 1
    assert at(tree, "other").available(A) == 4
    gone = [(at(tree, "lender"), [(A, 8)])]
    assert at(tree, "other").available_without([A], gone) == {A: 5}, "the rest comes back to its owner alone"


def test_borrowing_limit_names_the_node_at_which_a_request_ends() -> None:
    tree = Tree.build(
        [queue("q", "inner", {"a": Quota(2, borrowing_limit=8)}), queue("r", "root", {"a": 20})],
        [cohort("inner", "root", {"a": Quota(0, borrowing_limit=3)}), cohort("root")],
    )
    q = at(tree, "q")
    assert q.available(A) == 5
    assert [n.name for n in q.limit_of(A, 6)] == ["inner"]
    assert [n.name for n in q.limit_of(A, 11)] == ["q", "inner"]
    assert [n.name for n in q.limit_of(A, 23)] == ["q", "inner", "root"]
    assert q.borrowing_height(A, 2) == (0, True)
    assert q.borrowing_height(A, 3) == (2, False)


@given(operations(), st.sampled_from(RESOURCES))
@settings(max_examples=300, deadline=None)
def test_a_borrowing_limit_allows_the_most_at_which_a_request_does_not_end(
    case: tuple[Config, list], resource: str
) -> None:
    (queues, cohorts), steps = case
    tree, key = Tree.build(queues, cohorts), fr(resource)
    for name, of, amount in steps:
        tree.add(at(tree, name), {fr(of): amount})
    for node in (at(tree, one.name) for one in queues):
        for end in node.path():
            quota = end.quotas.get(key)
            allowed = node.allowed_by(end, key)
            if end.parent is None:
                continue
            assert (allowed is None) == (quota is None or quota.borrowing_limit is None)
            if allowed is not None and allowed >= 0:
                assert end not in node.limit_of(key, allowed)
                assert end in node.limit_of(key, allowed + 1)


@given(configurations(), st.sampled_from(RESOURCES))
@settings(max_examples=300, deadline=None)
def test_what_a_node_could_hold_at_most_ends_at_the_limit_without_which_it_would_be_more(
    config: Config, resource: str
) -> None:
    """Of limits that end it alike the lowest is told: it has to be raised in any case."""
    queues, cohorts = config
    tree, key = Tree.build(queues, cohorts), fr(resource)
    for node in (at(tree, one.name) for one in queues):
        end, most = node.potential_end(key), node.potential(key)
        assert end is next(iter(node.limit_of(key, most + 1)))
        assert node.limit_of(key, most) == ()


def test_what_is_local_on_the_way_is_not_borrowed_further_up() -> None:
    """Of 9 more at q, 3 are local to q and 4 to inner; only the rest must come out of the root."""
    tree = Tree.build(
        [queue("q", "inner", {"a": Quota(3, lending_limit=0)}), queue("r", "root", {"a": 2})],
        [cohort("inner", "root", {"a": Quota(4, lending_limit=0)}), cohort("root")],
    )
    q = at(tree, "q")
    assert [q.borrowing_height(A, n) for n in (3, 4, 7, 8, 9, 10)] == [
        (0, True),
        (1, True),
        (1, True),
        (2, False),
        (2, False),
        (2, False),
    ]
    assert (q.available(A), q.potential(A)) == (9, 9)
    deep = Tree.build(
        [queue("q", "inner", {"a": Quota(3, lending_limit=0)}), queue("r", "top", {"a": 20})],
        [cohort("inner", "middle", {"a": 1}), cohort("middle", "top", {"a": 2}), cohort("top")],
    )
    # 6 = 3 local + 3 of the subtree of middle.
    assert [at(deep, "q").borrowing_height(A, n) for n in (4, 6, 7)] == [(1, True), (2, True), (3, False)]


def test_quota_cut_below_usage_leaves_nothing_and_evicts_nobody() -> None:
    tree = Tree.build([queue("q", "", {"a": 4})], [])
    tree.add(at(tree, "q"), {A: 10})
    q = at(tree, "q")
    assert (q.balance(A), q.available(A), q.usage[A]) == (-6, 0, 10)
    assert q.fits({A: 0}), "who asks for none of it has nothing to do with that"
    assert not q.fits({A: 1})
    assert [q.available_without([A], [(q, [(A, gone)])]) for gone in (4, 8)] == [{A: 0}, {A: 2}]


@pytest.mark.parametrize(
    ("cohorts", "in_cycle"),
    [
        ([cohort("x", "x", {"a": 5})], {"x", "q"}),
        ([cohort("x", "y", {"a": 5}), cohort("y", "x")], {"x", "y", "q"}),
        ([cohort("x", "y", {"a": 5}), cohort("y", "z"), cohort("z", "y")], {"x", "y", "z", "q"}),
    ],
)
def test_cohort_cycle_flags_all_that_hang_on_it_and_nothing_else(cohorts: list[Cohort], in_cycle: set[str]) -> None:
    tree = Tree.build([queue("q", "x", {"a": 5}), queue("sound", "s", {"a": 5})], [*cohorts, cohort("s")])
    nodes = (*tree.queues(), *tree.cohorts())
    assert {node.name for node in nodes if node.in_cycle} == in_cycle
    for node in nodes:
        assert node.available(A) == (5 if node.name in ("sound", "s") else 0)
        assert bool(node.limit_of(A, 1)) == node.in_cycle
    tree.add(at(tree, "q"), {A: 1})  # whatever is charged there is still counted, and taken back
    tree.subtract(at(tree, "q"), {A: 1})
    assert not at(tree, "q").usage


def test_cohorts_may_be_implicit_and_parents_missing() -> None:
    tree = Tree.build([queue("q", "named-only", {"a": 1})], [cohort("c", "missing", {"a": 2})])
    assert [root.name for root in tree.roots()] == ["missing", "named-only"]
    assert at(tree, "named-only").spec is None
    assert at(tree, "c").available(A) == 2
    assert at(tree, "missing").height == 1


def test_a_deep_tree_does_not_overflow_and_heights_count_its_levels() -> None:
    depth = 300
    cohorts = [cohort(f"c{i}", f"c{i - 1}" if i else "") for i in range(depth)]
    tree = Tree.build([queue("q", f"c{depth - 1}", {"a": 3})], cohorts)
    assert at(tree, "c0").height == depth
    assert at(tree, "q").available(A) == 3
    assert at(tree, "q").weight == Fraction(1)
