"""Pods of others that a gang's rules select, against kube-scheduler's own way of asking: one node, all pods."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from admission.engine.model import (
    Admission,
    AntiAffinity,
    LabelSelector,
    Node,
    PodSet,
    PodShape,
    Requirement,
    Workload,
    matches,
)
from admission.jobs.neighbours import Neighbours, Stand, Who
from tests.engine.placement_oracle import meets

NODES = [Node(f"n{i}", labels=(("host", f"n{i}"), *((("zone", "ab"[i % 2]),) if i < 4 else ()))) for i in range(5)]
LABELS = {node.name: dict(node.labels) for node in NODES}

apps = st.sampled_from(["x", "y", "z"])
needs = st.one_of(
    st.builds(lambda values: Requirement("app", "In", tuple(values)), st.lists(apps, min_size=1, max_size=2)),
    st.builds(lambda value: Requirement("app", "NotIn", (value,)), apps),
    st.sampled_from([Requirement("tier", "Exists"), Requirement("tier", "In", ("1",))]),
)
asked = st.builds(
    lambda key, all_of, where: AntiAffinity(key, LabelSelector(tuple(all_of)), where),
    st.sampled_from(["zone", "host"]),
    st.lists(needs, max_size=2),
    st.sampled_from([("ns",), ("other",), ()]),
)
shapes = st.builds(
    lambda apart, near: PodShape(apart=tuple(apart), near=tuple(near)),
    st.lists(asked, max_size=2, unique=True),
    st.lists(asked, max_size=2, unique=True),
)
labels = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y", "1"]), max_size=2)
stands = st.builds(
    lambda where, marks, node, gang: (Stand(where, tuple(sorted(marks.items())), (node,), gang=gang),),
    st.sampled_from(["ns", "other"]),
    labels,
    st.sampled_from(sorted(LABELS)),
    st.sampled_from(["", "0", "1"]),
)
events = st.one_of(
    st.tuples(st.just("stands"), st.integers(0, 4), stands | st.just(())),
    st.tuples(st.just("asks"), st.integers(0, 2), shapes),
    st.tuples(st.just("runs"), st.integers(0, 2), shapes),
    st.tuples(st.just("forget"), st.integers(0, 2), st.none()),
)


def allowed(shape: PodShape, there: Mapping[Who, tuple[Stand, ...]], node: Node) -> bool:
    """InterPodAffinity of kube-scheduler, for a pod whose rules select its own kind."""
    others = [stand for these in there.values() for stand in these]
    mine = dict(node.labels)

    def selects(one: AntiAffinity, stand: Stand) -> bool:
        return (stand.namespace in one.namespaces or not one.namespaces) and matches(one.selector, dict(stand.labels))

    def beside(one: AntiAffinity, stand: Stand) -> bool:
        return one.key in mine and LABELS[stand.nodes[0]].get(one.key) == mine[one.key]

    if any(selects(one, stand) and beside(one, stand) for one in shape.apart for stand in others):
        return False
    like = [stand for stand in others if all(selects(one, stand) for one in shape.near)] if shape.near else []
    # Who stands where there is no such domain is not counted.
    like = [stand for stand in like if any(one.key in LABELS[stand.nodes[0]] for one in shape.near)]
    return not like or all(any(beside(one, stand) for stand in like) for one in shape.near)


@given(st.lists(events, max_size=25))
def test_the_nodes_that_others_leave_are_those_of_kube_scheduler(
    said: list[tuple[str, int, PodShape | tuple[Stand, ...] | None]],
) -> None:
    there: dict[Who, tuple[Stand, ...]] = {}
    asking: dict[int, Workload] = {}
    laid: dict[int, Workload] = {}
    told = Neighbours(lambda: list(there.items()), lambda node: LABELS[node])
    for what, i, value in said:
        if what == "stands":
            assert isinstance(value, tuple)
            who = ("pod", "ns", str(i))
            there[who] = value
            for key in told.stands(who, value):
                laid[int(key[1])] = told.laid_on(asking[int(key[1])])
        elif what != "forget":
            assert isinstance(value, PodShape)
            sets = (PodSet("main", 1, value), PodSet("plain", 1, PodShape()))
            given = Admission("q", ()) if what == "runs" else None
            asking[i] = Workload("ns", str(i), uid=str(i), pod_sets=sets, admission=given)
            laid[i] = told.laid_on(asking[i])
        elif i in asking:
            told.forget(("ns", str(i)))
            del asking[i], laid[i]
        for number, gang in asking.items():
            terms = laid[number].pod_sets[0].shape.affinity
            got = {
                node.name
                for node in NODES
                if terms is None or any(all(meets(node, need) for need in term) for term in terms)
            }
            own = str(number) if gang.admission is not None else "none"  # they are others while it waits
            others = {who: these for who, these in there.items() if these and these[0].gang != own}
            wanted = {node.name for node in NODES if allowed(gang.pod_sets[0].shape, others, node)}
            assert laid[number].pod_sets[1] is gang.pod_sets[1], "it has no rules"
            assert got == wanted, (gang.pod_sets[0].shape, there)
