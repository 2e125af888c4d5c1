"""One book for quota and nodes: whatever is tried is taken back exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.booking import Amounts, Booking, booking_of
from admission.engine.capacity import Capacity, PlaceRequest
from admission.engine.counts import Filter
from admission.engine.ledger import Charge, Ledger, charge_of, claim_of, usage_of
from admission.engine.model import (
    MUSTER,
    Admission,
    Domain,
    Key,
    Misfit,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    PodUsage,
    Quota,
    TopologyAssignment,
    Workload,
)
from admission.names import HOSTNAME_LABEL
from tests.engine import town
from tests.engine.trees import cohort, fr, queue, usage_of_tree

GPU = fr("gpu")
NODES = ("n1", "n2")


def book() -> Ledger:
    ledger = Ledger(MUSTER)
    ledger.set_queues([queue("a", "c", {"gpu": 4}), queue("b", "c", {"gpu": 4})], [cohort("c", "", {"gpu": 8})])
    for name in NODES:
        ledger.nodes.put_node(Node(name=name, labels=((HOSTNAME_LABEL, name),), allocatable=(("gpu", 8), ("pods", 10))))
    return ledger


def with_pods() -> Ledger:
    """Pods of some gangs are there, whether these hold anything or not."""
    ledger = book()
    for i, name in enumerate("uvw"):
        pod = PodUsage(("ns", f"pod-{name}"), name, NODES[i % 2], (("gpu", 2), ("pods", 1)), workload_uid=f"uid-{name}")
        ledger.nodes.put_pod(pod)
    return ledger


def charge(name: str, of: str = "a", gpus: int = 1, node: str = "", kind: Any = "gang") -> Charge:
    assigned = TopologyAssignment((HOSTNAME_LABEL,), (Domain((node,), 1),)) if node else None
    admission = Admission(of, (PodSetAssignment("main", (("gpu", "f"),), (("gpu", gpus),), 1, assigned),))
    return Charge(
        ("ns", name),
        f"uid-{name}",
        of,
        usage_of(admission),
        admission if node else None,
        (("main", (("gpu", gpus), ("pods", 1))),),
        kind,
    )


def picture(ledger: Ledger) -> Any:
    return (
        usage_of_tree(ledger.tree),
        dict(ledger.charges),
        dict(ledger.claims),
        {name: ledger.nodes.free(name) for name in NODES},
    )


def versions(ledger: Ledger) -> Any:
    """What is remembered of the book holds while these are the same."""
    return ledger.version, ledger.nodes.version, [ledger.version_of(root) for root in ledger.tree.roots()]


steps = st.lists(
    st.tuples(
        st.sampled_from(["charge", "release", "claim", "unclaim", "mark", "rollback", "keep", "outer"]),
        st.sampled_from("uvwxyz"),
        st.sampled_from("ab"),
        st.integers(1, 5),
        st.sampled_from(["", *NODES]),
    ),
    max_size=30,
)


def change(ledger: Ledger, op: str, name: str, of: str, gpus: int, node: str) -> None:
    """One step, if it is about a charge or a claim and can be done."""
    key = ("ns", name)
    if op == "charge" and key not in ledger.charges:
        ledger.charge(charge(name, of, gpus, node))
    elif op == "release" and key in ledger.charges:
        ledger.release(key)
    elif op == "claim":
        ledger.claim(charge(name, of, gpus, node, "claim"), until=gpus)
    elif op == "unclaim":
        ledger.unclaim(key)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_rollback_restores_exactly_whatever_was_done_and_however_marks_nest(ops: list[Any]) -> None:
    ledger = with_pods()
    open_marks: list[tuple[int, Any]] = []
    for op, name, of, gpus, node in ops:
        change(ledger, op, name, of, gpus, node)
        if op == "mark":
            open_marks.append((ledger.mark(), (picture(ledger), versions(ledger))))
        elif op == "rollback" and open_marks:
            mark, was = open_marks.pop()
            ledger.rollback(mark)
            assert (picture(ledger), versions(ledger)) == was
        elif op == "outer" and open_marks:
            mark, was = open_marks[0]
            open_marks.clear()
            ledger.rollback(mark)
            assert (picture(ledger), versions(ledger)) == was
        elif op == "keep" and open_marks:
            ledger.keep(open_marks.pop()[0])
        assert ledger.drift() == []
    for mark, was in reversed(open_marks):
        ledger.rollback(mark)
        assert (picture(ledger), versions(ledger)) == was
    assert not ledger._journal


@given(steps, steps, st.sets(st.sampled_from("uvwxyz")), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_left_of_a_trial_is_charged_by_the_next_who_does_and_taken_out_by_all_else(
    before: list[Any], ops: list[Any], names: set[str], confirmed: bool
) -> None:
    def play(ledger: Ledger, ops: list[Any]) -> None:
        for op, name, of, gpus, node in ops:
            change(ledger, op, name, of, gpus, node)
            if op == "outer":
                ledger.set_aside(charge(name, of, gpus, node, "claim"), until=gpus)

    tried, plain = with_pods(), with_pods()
    play(tried, before)
    play(plain, before)
    mark = tried.mark()
    play(tried, ops)
    new = [at for key, at in sorted(tried.charges.items()) if key[1] in names and key not in plain.charges]
    tried.leave(mark, new)
    for one in new if confirmed else ():
        tried.charge(one)
        plain.charge(one)
    tried.take_standing_out()
    assert picture(tried) == picture(plain)
    assert tried.drift() == []
    with pytest.raises(ValueError):
        tried.rollback(mark)


def test_pods_that_linger_hold_their_room_after_their_gang_was_tried() -> None:
    ledger = with_pods()
    mark = ledger.mark()
    ledger.charge(charge("u", "a", 2, "n1"))
    assert ledger.nodes.free("n1")["gpu"] == 8 - 2 - 2
    ledger.release(("ns", "u"))  # what if it were evicted: with its pods
    assert ledger.nodes.free("n1")["gpu"] == 8 - 2
    ledger.charge(charge("u", "a", 2, "n1"))
    ledger.rollback(mark)
    assert ledger.nodes.free("n1")["gpu"] == 8 - 2 - 2


def test_a_claim_is_taken_room_for_others_and_free_for_its_owner() -> None:
    ledger = book()
    ledger.claim(charge("mine", "a", 16, "n1", "claim"), until=5)
    assert not ledger.tree.queue("b").fits({GPU: 1})  # type: ignore[union-attr]
    assert ledger.nodes.free("n1")["gpu"] == 8 - 16
    with ledger.suspended(("ns", "mine")):
        assert ledger.tree.queue("a").fits({GPU: 16})  # type: ignore[union-attr]
        assert ledger.nodes.free("n1")["gpu"] == 8
    assert ledger.nodes.free("n1")["gpu"] == 8 - 16
    ledger.claim(charge("mine", "a", 2, "", "claim"), until=6)  # in place of the first
    assert ledger.claims["ns", "mine"].until == 6
    assert ledger.tree.queue("b").available(GPU) == 14  # type: ignore[union-attr]


def test_an_owner_may_hold_a_charge_and_a_claim_on_the_same_node() -> None:
    ledger = book()
    ledger.charge(charge("x", "a", 2, "n1"))
    ledger.claim(charge("x", "a", 3, "n1", "claim"), until=1)
    assert ledger.nodes.free("n1")["gpu"] == 8 - 5
    ledger.unclaim(("ns", "x"))
    assert ledger.nodes.free("n1")["gpu"] == 8 - 2


def test_charges_outlive_their_queue_and_count_again_when_it_returns() -> None:
    ledger = book()
    ledger.charge(charge("x", "a", 3))
    ledger.set_queues([queue("b", "c", {"gpu": 4})], [])
    assert ledger.tree.cohort("c").usage == {}  # type: ignore[union-attr]
    assert ("ns", "x") in ledger.charges
    assert ledger.tree.queue("a") is None
    ledger.set_queues([queue("a", "d", {"gpu": 2}), queue("b", "c", {"gpu": 4})], [])
    assert ledger.tree.queue("a").usage == {GPU: 3}  # type: ignore[union-attr]
    assert ledger.tree.cohort("d").usage == {GPU: 3}  # type: ignore[union-attr]
    assert ledger.drift() == []


def test_claims_stay_when_quota_changes() -> None:
    ledger = book()
    ledger.claim(charge("x", "a", 3, "n1", "claim"), until=7)
    ledger.set_queues([queue("a", "", {"gpu": 5})], [])
    assert ledger.tree.queue("a").usage == {GPU: 3}  # type: ignore[union-attr]
    assert ledger.drift() == []
    ledger.unclaim(("ns", "x"))
    assert ledger.tree.queue("a").usage == {}  # type: ignore[union-attr]
    assert ledger.nodes.free("n1")["gpu"] == 8


held = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.sampled_from(["", *NODES]), st.booleans()), max_size=4
)


@given(held, held, held, st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3)))
@settings(max_examples=200, deadline=None)
def test_a_question_what_if_is_answered_as_if_it_were_so(
    gangs: list[Any], claims: list[Any], aside: list[Any], leave: set[int], give_up: set[int], binds: set[int]
) -> None:
    """Gangs that leave, claims that end and room that is set aside are laid over the book of nodes for a question. The
    answers are those of a book in which they did so, and the book is left as it was."""

    def filled() -> Ledger:
        ledger = book()
        for i, (of, gpus, node, pods) in enumerate(gangs):
            if pods:  # more than is charged: a sidecar
                stands = PodUsage(
                    ("ns", f"pod{i}"), f"pod{i}", NODES[i % 2], (("gpu", gpus + 1),), workload_uid=f"uid-g{i}"
                )
                ledger.nodes.put_pod(stands)
            ledger.charge(charge(f"g{i}", of, gpus, node))
        for i, (of, gpus, node, _) in enumerate(claims):
            ledger.claim(charge(f"c{i}", of, gpus, node, "claim"), until=1)
        for i, (of, gpus, node, _) in enumerate(aside):
            ledger.set_aside(charge(f"k{i}", of, gpus, node, "claim"), until=1)
        return ledger

    def answers(ledger: Ledger) -> Any:
        out: list[Any] = [usage_of_tree(ledger.tree)]
        for pods, gpus, empty in (
            (1, 1, False),
            (1, 3, False),
            (2, 4, False),
            (4, 2, False),
            (1, 8, True),
            (1, 7, True),
        ):
            wanted = PodSet("main", pods, PodShape(requests=(("gpu", gpus),)))
            asked = PlaceRequest(wanted, pods, (("gpu", gpus), ("pods", 1)))
            answer = ledger.places([asked], empty=empty)
            out.append(
                answer if isinstance(answer, Misfit) else {name: place.domains for name, place in answer.items()}
            )
        return out

    going = [("ns", f"g{i}") for i in sorted(leave) if i < len(gangs)]
    ended = [("ns", f"c{i}") for i in sorted(give_up) if i < len(claims)]
    bound = {("ns", f"k{i}") for i in sorted(binds) if i < len(aside)}
    asked = filled()
    before = picture(asked), answers(asked)
    root = asked.tree.roots()[0]
    with (
        asked.trial(),
        asked.beside(asked.aside.keys() - bound, root),
        asked.unclaimed_on_nodes([*ended, *bound]),
    ):
        told_of_nodes = answers(asked)[1:]
    with asked.trial(), asked.beside(asked.aside.keys() - bound, root), asked.without_claims(ended):
        with asked.as_if_gone([asked.charges[key] for key in going]):
            told = answers(asked)
        one_less = next(iter(sorted(bound)), None)
        if one_less is not None:
            asked.unclaim(one_less)
        told_later = answers(asked)
    assert (picture(asked), answers(asked)) == before
    assert asked.drift() == []

    done = filled()
    with done.trial():
        for key in ended:
            done.unclaim(key)
        was_of_nodes = answers(done)[1:]
        for key in sorted(bound):
            done.claim(done.aside[key].charge, until=1)
        with done.trial():
            for key in going:
                done.release(key)
            was = answers(done)
        if one_less is not None:
            done.unclaim(one_less)
        was_later = answers(done)
    assert told_of_nodes == was_of_nodes
    assert told == was
    assert told_later == was_later


DEVICE = "example.com/gpu"
taken = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3)), max_size=4)


@given(taken, taken, st.sets(st.integers(0, 3)), taken)
@settings(max_examples=100, deadline=None)
def test_what_is_laid_over_the_nodes_is_counted_as_if_it_were_there(
    gangs: list[Any], aside: list[Any], gone: set[int], later: list[Any]
) -> None:
    """Counts, and what a pod more would cost others, with rooms set aside and gangs gone, before and after something
    else is booked: those of a table on which all of it is so."""

    def nodes() -> Capacity:
        out = Capacity()
        for i in range(8):
            out.put_node(Node(f"n{i}", (), allocatable=(("cpu", 9 + i % 3), (DEVICE, 4), ("pods", 5 + i % 2))))
        return out

    def booking(at: int, node: int, amount: int) -> Booking:
        where = TopologyAssignment((HOSTNAME_LABEL,), (Domain((f"n{node}",), 1),))
        took = {"main": ((DEVICE, amount), ("cpu", 2 * amount), ("pods", 1))}
        return booking_of(f"uid-{at}", Admission("q", (PodSetAssignment("main", (), (), 1, where),)), took)

    def seen(book: Capacity) -> list[Any]:
        kinds: tuple[Amounts, ...] = (((DEVICE, 1), ("pods", 1)), (("cpu", 3), (DEVICE, 2)))
        out: list[Any] = []
        for wanted in (Filter((), (), None, ()), Filter((), (("nobody", "has"),), None, ())):
            for pod in (((DEVICE, 2), ("pods", 1)), (("cpu", 3), ("pods", 1)), ()):
                out += [book.table.counts(wanted, pod, empty).tolist() for empty in (False, True)]
        for pod in (((DEVICE, 1), ("cpu", 1)), ((DEVICE, 4),)):
            for weights in ((1, 0), (2, 3)):
                popular = list(zip(kinds, weights, strict=True))
                out.append(book.table.harm(popular, pod, np.arange(8), False).tolist())
        out.append(book.table.untouched(np.arange(8), False).tolist())
        return out

    leave = [i for i in sorted(gone) if i < len(gangs)]
    asked, done = nodes(), nodes()
    for i, (node, amount) in enumerate(gangs):
        asked.book(("ns", f"g{i}"), booking(i, node, amount))
        if i not in leave:
            done.book(("ns", f"g{i}"), booking(i, node, amount))
    for i, (node, amount) in enumerate(aside):
        asked.set_aside(("ns", f"k{i}"), booking(100 + i, node, amount))
        done.put_pod(PodUsage(("ns", f"k{i}"), f"k{i}", f"n{node}", ((DEVICE, amount), ("cpu", 2 * amount))))
    over = frozenset[Key](), frozenset((("ns", f"g{i}"), f"uid-{i}") for i in leave), frozenset[Key]()
    before = seen(asked)
    with asked.as_if(*over):
        assert seen(asked) == seen(done)
    for i, (node, amount) in enumerate(later):
        for book_ in (asked, done):
            book_.book(("ns", f"l{i}"), booking(200 + i, node, amount))
    with asked.as_if(*over):
        assert seen(asked) == seen(done)
    for i in range(len(later)):
        asked.release(("ns", f"l{i}"))
    assert seen(asked) == before


KEPT = st.integers(0, 5)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("aside"), KEPT, st.integers(0, 3)),
            st.tuples(st.just("up"), KEPT),
            st.tuples(st.just("ask"), st.frozensets(KEPT), st.frozensets(KEPT)),
            st.tuples(st.just("nodes"), st.booleans()),
        ),
        max_size=14,
    ),
)
@settings(max_examples=100, deadline=None)
def test_what_is_set_aside_is_counted_alike_whatever_was_asked_before(steps: list[Any]) -> None:
    """With any of it spared, after any other questions and changes: as on a book that was never asked."""

    def fresh() -> Capacity:
        out = Capacity()
        for i in range(3 + more):
            out.put_node(Node(f"n{i}", (), allocatable=(("cpu", 9), (DEVICE, 4), ("pods", 5))))
        for key, booking in kept.items():
            out.set_aside(key, booking)
        return out

    def counts(book: Capacity, spared: frozenset[int], bare: frozenset[int]) -> list[list[int]]:
        keys = [frozenset(("ns", f"k{i}") for i in some) for some in (spared, bare)]
        with book.as_if(keys[0], frozenset(), keys[1]):
            return [
                book.table.counts(Filter((), (), None, ()), ((DEVICE, 1), ("cpu", 1)), empty).tolist()
                for empty in (False, True)
            ]

    kept: dict[Key, Booking] = {}
    more = 0
    asked = fresh()
    for step in steps:
        match step:
            case "aside", i, node:
                where = TopologyAssignment((HOSTNAME_LABEL,), (Domain((f"n{node}",), 1),))
                took = {"main": ((DEVICE, 1 + i % 3), ("cpu", 2), ("pods", 1))}
                admission = Admission("q", (PodSetAssignment("main", (), (), 1, where),))
                kept["ns", f"k{i}"] = booking_of(f"uid-{i}", admission, took)
                asked.set_aside(("ns", f"k{i}"), kept["ns", f"k{i}"])
            case "up", i:
                kept.pop(("ns", f"k{i}"), None)
                asked.give_up(("ns", f"k{i}"))
            case "ask", spared, bare:
                assert counts(asked, spared, bare) == counts(fresh(), spared, bare)
            case "nodes", comes:
                more = int(comes)
                if comes:
                    asked.put_node(Node("n3", (), allocatable=(("cpu", 9), (DEVICE, 4), ("pods", 5))))
                else:
                    asked.remove_node("n3")
    assert counts(asked, frozenset(), frozenset()) == counts(fresh(), frozenset(), frozenset())


@pytest.mark.parametrize("uid", ["uid-g", ""])
def test_what_a_gang_would_give_back_is_what_it_holds_now(uid: str) -> None:
    """Asked after each change: as on a book that was never asked before."""
    key: Key = ("ns", "g")

    def on(host: str, gpus: int) -> Booking:
        where = TopologyAssignment((HOSTNAME_LABEL,), (Domain((host,), 1),))
        admission = Admission("q", (PodSetAssignment("main", (), (), 1, where),))
        return booking_of(uid, admission, {"main": (("gpu", gpus), ("pods", 1))})

    def stands(name: str, host: str, gpus: int) -> PodUsage:
        return PodUsage(("ns", name), name, host, (("gpu", gpus), ("pods", 1)), workload_uid=uid)

    def there(name: str) -> Node:
        return Node(name, ((HOSTNAME_LABEL, name),), allocatable=(("gpu", 8), ("pods", 10)))

    changes: list[Callable[[Capacity], Any]] = [
        lambda nodes: [nodes.put_node(there(name)) for name in NODES],
        lambda nodes: nodes.book(key, on("n1", 2)),
        lambda nodes: nodes.put_pod(stands("a", "n1", 3)),
        lambda nodes: nodes.put_pod(stands("b", "n2", 4)),
        lambda nodes: nodes.put_pod(stands("b", "n1", 4)),
        lambda nodes: nodes.hide(uid),
        lambda nodes: nodes.show(uid),
        lambda nodes: nodes.remove_pod(("ns", "a")),
        lambda nodes: nodes.book(key, on("n2", 5)),
        lambda nodes: nodes.remove_node("n1"),
        lambda nodes: nodes.put_node(there("n0")),
        lambda nodes: nodes.release(key),
    ]

    def counts(nodes: Capacity) -> list[int]:
        with nodes.as_if(None, frozenset({(key, uid)}), None):
            return nodes.table.counts(Filter((), (), None, ()), (("gpu", 1),), False).tolist()

    asked = Capacity()
    for i, change in enumerate(changes, 1):
        change(asked)
        fresh = Capacity()
        for earlier in changes[:i]:
            earlier(fresh)
        assert counts(asked) == counts(fresh), i
        if uid or i == 2:  # pods of nobody are no gang's
            assert counts(asked) == [8] * len(asked.nodes()), "it holds all that is held"


def test_what_is_misused_is_refused() -> None:
    ledger = book()
    ledger.charge(charge("x"))
    with pytest.raises(ValueError, match="already"):
        ledger.charge(charge("x"))
    with pytest.raises(KeyError):
        ledger.release(("ns", "nobody"))
    with pytest.raises(ValueError, match="not open"):
        ledger.rollback(0)
    with ledger.trial(), pytest.raises(RuntimeError):
        ledger.set_queues([], [])


def test_an_exception_inside_a_trial_leaves_the_book_as_it_was() -> None:
    ledger = book()
    was = picture(ledger)

    def fail() -> None:
        with ledger.trial():
            ledger.charge(charge("x", "a", 3, "n1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert picture(ledger) == was


def test_a_drifted_tree_is_told() -> None:
    ledger = book()
    ledger.charge(charge("x", "a", 3))
    ledger.tree.queue("a").usage[GPU] = 4  # type: ignore[union-attr]
    assert ledger.drift() == ["<queue a>: f/gpu is 4, should be 3"]


@pytest.mark.parametrize("parts", [1, 3])
def test_drifted_nodes_are_told(parts: int) -> None:
    """Whatever is booked on nodes comes from a pod or a charge; what does not is found, in its part of the nodes."""
    ledger = Ledger(MUSTER)
    for name in ("n0", "n1", "n2", "n3"):
        ledger.nodes.put_node(town.node(name, gpu=8))
    ledger.nodes.put_pod(PodUsage(("ns", "p"), "p", "n1", (("gpu", 1),), workload_uid="uid-g"))
    ledger.nodes.put_pod(PodUsage(("ns", "q"), "q", "n2", (("gpu", 2),)))
    where = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 1), Domain(("n3",), 2)))
    admission = Admission("a", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 3),), 3, where),))
    ledger.charge(charge_of(town.gang("g", "a", 3), admission))

    def drift() -> list[str]:
        return [text for part in range(parts) for text in ledger.drift(part, parts)]

    assert drift() == []
    with ledger.trial():
        ledger.release(("ns", "g"))
        assert drift() == []
    ledger.nodes._hosts["n3"].foreign["gpu"] = 5
    assert drift() == ["node n3: gpu free is 1, should be 6"]
    ledger.nodes._hosts["n3"].foreign.clear()
    ledger.nodes.release(("ns", "g"))
    assert drift()[0].startswith("('ns', 'g') is booked on nodes and not here")


def test_charge_of_a_workload_leaves_out_pods_that_will_not_run_again() -> None:
    shape = PodShape(requests=(("cpu", 500), ("gpu", 2)), host_ports=("80",))
    admission = Admission(
        "a", (PodSetAssignment("w", (("cpu", "f"), ("gpu", "f")), (("cpu", 2000), ("gpu", 8), ("other", 3)), 4),)
    )
    gang = Workload("ns", "x", uid="u", pod_sets=(PodSet("w", 4, shape),), admission=admission)
    got = charge_of(gang)
    assert got.usage == ((fr("cpu"), 2000), (fr("gpu"), 8))  # what has no flavor uses no quota
    assert got.admission is None  # names no nodes
    assert dict(got.per_pod)["w"] == (("cpu", 500), ("gpu", 2), ("host-port/80", 1), ("pods", 1))
    less = Workload("ns", "x", uid="u", pod_sets=gang.pod_sets, admission=admission, reclaimable=(("w", 1),))
    assert charge_of(less).usage == ((fr("cpu"), 1500), (fr("gpu"), 6))
    with pytest.raises(ValueError, match="no admission"):
        charge_of(Workload("ns", "x"))


@pytest.mark.parametrize(
    ("count", "gpus", "done", "usage"),
    [(4, 10, 1, ((GPU, 6),)), (4, 10, 4, ()), (4, 10, 5, ()), (0, 0, 1, ()), (4, 10, 0, ((GPU, 10),))],
    ids=["whole pods", "all", "more than all", "of none", "none"],
)
def test_what_is_charged_beside_pods_that_will_not_run_again(
    count: int, gpus: int, done: int, usage: tuple[Any, ...]
) -> None:
    admission = Admission(
        "a", (PodSetAssignment("w", (("gpu", "f"), ("cpu", "f")), (("gpu", gpus), ("cpu", 0)), count),)
    )
    gang = Workload("ns", "x", uid="u", admission=admission, reclaimable=(("w", done),), evicted="Preempted")
    assert charge_of(gang).usage == usage
    assert [charge_of(gang, kind=kind).leaves for kind in ("gang", "claim")] == [True, False]


def test_a_claim_of_one_that_still_holds_nodes_is_of_the_others() -> None:
    def on(*hosts: str) -> Admission:
        where = TopologyAssignment((HOSTNAME_LABEL,), tuple(Domain((host,), 1) for host in hosts))
        return Admission("a", (PodSetAssignment("w", (("gpu", "f"),), (("gpu", len(hosts)),), len(hosts), where),))

    shape = PodShape(requests=(("gpu", 1),))
    gang = Workload("ns", "x", uid="u", pod_sets=(PodSet("w", 3, shape),), admission=on("n1", "n2"))
    claim = claim_of(gang, on("n1", "n1", "n3"))
    assert claim.usage == ()
    assert {host: dict(amounts)["gpu"] for host, amounts in claim.booking.hosts} == {"n1": 1, "n3": 1}


def test_what_is_asked_of_another_tree_is_not_remembered_of_the_book() -> None:
    ledger = book()
    ledger.charge(charge("x", "a", 3))
    ledger.claim(charge("c", "a", 2, "", "claim"), until=1)
    node = ledger.tree.queue("a")
    assert node is not None

    def used() -> int:
        return ledger.remembered(node.root, "used", lambda: node.usage.get(GPU, 0))

    assert used() == 5
    with ledger.without_gangs("a"):
        assert used() == 2, "what is claimed"
    assert used() == 5


def test_who_stands_on_no_nodes_counts_on_empty_ones_by_the_quota_of_now() -> None:
    ledger = book()
    ledger.charge(charge("x", "a", 3))
    for step, a in enumerate((Quota(4), Quota(4, lending_limit=0), Quota(4))):
        ledger.set_queues([queue("a", "c", {"gpu": a}), queue("b", "c", {"gpu": 4})], [])
        node = ledger.tree.queue("a")
        assert node is not None
        for more in (0, 1):
            if more:
                ledger.charge(charge(f"none-{step}", "a", 1))
                ledger.charge(charge(f"on-{step}", "a", 1, "n1"))
                ledger.claim(charge(f"claim-{step}", "a", 1, "n2", "claim"), until=1)
            with ledger.on_empty_nodes("a"):
                assert node.usage == {GPU: 3 + 2 * (step + more)}
            assert ledger.drift() == []


def test_who_leaves_counts_twice_for_the_first_claim_until_it_has_left() -> None:
    ledger = book()
    ledger.charge(replace(charge("v", "b", 3), leaves=True))
    for until, name in enumerate(("first", "second"), 1):
        ledger.claim(charge(name, "a", 3, "", "claim"), until, ("uid-v",))
    root = ledger.tree.roots()[0]
    assert {key[1]: twice.usage for key, twice in ledger.doubly(root).items()} == {"first": {GPU: 3}, "second": {}}
    ledger.release(("ns", "v"))
    assert ledger.doubly(root) == {}


def test_what_is_only_set_aside_has_no_end() -> None:
    ledger = book()
    ledger.claim(charge("c", "a", 1, "", "claim"), until=7)
    ledger.set_aside(charge("k", "a", 1, "", "claim"), until=7)
    assert [ledger.end_of(held) for held in (*ledger.claims.values(), *ledger.aside.values())] == [7, 0]


def test_gangs_that_are_off_the_nodes_for_a_while_come_back_with_their_pods() -> None:
    ledger = with_pods()
    gone = charge("u", "a", 1, "n1")  # its pod holds two
    ledger.charge(gone)
    was = picture(ledger)
    with ledger.emptied() as emptied:
        emptied.leaves(gone)
        assert ledger.nodes.free("n1")["gpu"] == 8 - 2, "the pod of another"
    assert picture(ledger) == was
    assert ledger.drift() == []
