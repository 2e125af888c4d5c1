"""Gangs that lost a node: what they claim, where they stand again, and who goes before whom."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    Admit,
    Assumed,
    AvoidedNode,
    Claim,
    ClusterQueue,
    Domain,
    Evict,
    Flavor,
    FlavorQuotas,
    Gone,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    Plan,
    PodSet,
    PodSetAssignment,
    PodShape,
    Preemption,
    PreemptionPolicy,
    Put,
    Quota,
    Replace,
    ResourceGroup,
    Rules,
    Standing,
    Topology,
    TopologyAssignment,
    TopologyRequest,
    Workload,
)
from admission.engine.state import State

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"


def town(racks: dict[str, list[str]], queues: tuple[str, ...] = ("q",), rules: Rules = MUSTER) -> State:
    """Nodes of 8 GPUs in racks, and queues with more quota than nodes."""
    state = State(rules)
    group = ResourceGroup((GPU,), (FlavorQuotas("f", ((GPU, Quota(320)),)),))
    values: list[Any] = [Namespace("a", ()), Flavor("f", topology="net"), Topology("net", ("rack", HOST))]
    values += [node(name, rack) for rack, names in racks.items() for name in names]
    for name in queues:
        values += [ClusterQueue(name, groups=(group,), namespace_selector=LabelSelector()), LocalQueue("a", name, name)]
    for value in values:
        state.apply(Put(value))
    return state


def node(name: str, rack: str, **said: Any) -> Node:
    return Node(name, ((HOST, name), ("rack", rack)), (), ((GPU, 8), ("pods", 10)), **said)


def gang(name: str, pods: int, queue: str = "q", asked: TopologyRequest | None = None, **said: Any) -> Workload:
    shape = PodShape(requests=((GPU, 8),))
    pod_set = PodSet("main", pods, shape, topology=asked)
    return Workload("a", name, uid=name, queue=queue, pod_sets=(pod_set,), **{"created": 100, **said})


def on(of: Workload, *hosts: str) -> Workload:
    """The gang admitted on these nodes, one pod on each."""
    topology = TopologyAssignment((HOST,), tuple(Domain((h,), 1) for h in hosts))
    got = PodSetAssignment("main", ((GPU, "f"),), ((GPU, 8 * len(hosts)),), len(hosts), topology)
    return replace(of, admission=Admission(of.queue, (got,)), reserved_at=200, admitted=True, admitted_at=200)


def hit(of: Workload) -> Workload:
    """It is on its way out, for it lost a node."""
    return replace(of, evicted="NodeFailures", evicted_at=400, queue_stamp=0)


def hosts(admission: Admission) -> list[str]:
    (part,) = admission.pod_sets
    assert part.topology is not None
    return [domain.values[-1] for domain in part.topology.domains for _ in range(domain.count)]


def decided(plan: Plan) -> list[tuple[str, str, list[str]]]:
    return [
        (type(d).__name__, d.key[1], hosts(d.record.admission if isinstance(d, Claim) else d.admission))
        for d in plan.decisions
        if isinstance(d, Claim | Admit | Replace)
    ]


def lose(state: State, rack: str, *names: str) -> None:
    for name in names:
        state.apply(Put(node(name, rack, ready=False, lost_since=300)))


def released(of: Workload, plan: Plan) -> Workload:
    """It as its objects say once its last pod is gone: the claim stays."""
    record = next((d.record for d in plan.decisions if isinstance(d, Claim) and d.key == of.key), None)
    return replace(of, admission=None, admitted=False, claims=record)


Row = tuple[dict[str, list[str]], TopologyRequest | None, list[str], list[str], list[str] | None]
ROWS: dict[str, Row] = {
    # racks, asked, stood on, lost, stands again on (None: no room for it now)
    "the next free node takes its rank": ({"r": ["n0", "n1", "n2", "n3"]}, None, ["n0", "n1"], ["n0"], ["n2", "n1"]),
    "several nodes in one decision": (
        {"r": ["n0", "n1", "n2", "n3", "n4"]},
        None,
        ["n0", "n1", "n2"],
        ["n0", "n2"],
        ["n3", "n1", "n4"],
    ),
    "the rest of its rack before another": (
        {"r": ["n0", "n1", "n2"], "s": ["n3", "n4", "n5"]},
        TopologyRequest(required="rack"),
        ["n0", "n1"],
        ["n1"],
        ["n0", "n2"],
    ),
    "a rack that is full now is left whole": (
        {"r": ["n0", "n1"], "s": ["n2", "n3", "n4"]},
        TopologyRequest(required="rack"),
        ["n0", "n1"],
        ["n1"],
        ["n2", "n3"],
    ),
    "slices are made whole where the rest of them stands": (
        {"r": ["n0", "n1", "n2"], "s": ["n3", "n4"]},
        TopologyRequest(slice_required="rack", slice_size=2),
        ["n0", "n1", "n3", "n4"],
        ["n1"],
        ["n0", "n2", "n3", "n4"],
    ),
    "no room for it": ({"r": ["n0", "n1"]}, None, ["n0", "n1"], ["n1"], None),
}


@pytest.mark.parametrize("row", ROWS)
def test_who_lost_nodes_claims_what_is_left_of_them_and_stands_there_again(row: str) -> None:
    racks, asked, stood, lost, again = ROWS[row]
    state = town(racks)
    one = hit(on(gang("one", len(stood), asked=asked), *stood))
    state.apply(Put(one))
    lose(state, next(rack for rack, names in racks.items() if lost[0] in names), *lost)
    plan = decide(state, 500, 1000)
    assert decided(plan) == ([("Claim", "one", again)] if again else [])
    for decision in plan.decisions:
        state.apply(Assumed(decision))
    assert not decide(state, 501, 1000).decisions, "said once"
    state.apply(Put(released(one, plan)))
    last = decide(state, 600, 1000)
    assert decided(last) == ([("Admit", "one", again)] if again else [])
    assert not state.drift()


def test_nobody_takes_the_room_of_a_gang_that_comes_back() -> None:
    state = town({"r": ["n0", "n1", "n2", "n3", "n4"]}, ("q", "other"))
    one = hit(on(gang("one", 2), "n0", "n1"))
    for value in (one, on(gang("two", 1), "n4")):
        state.apply(Put(value))
    lose(state, "r", "n0")
    for name, queue, created in (("older", "q", 50), ("newer", "q", 300), ("stranger", "other", 10)):
        state.apply(Put(gang(name, 2, queue, created=created)))
    first = decide(state, 500, 1000)
    assert decided(first) == [("Claim", "one", ["n2", "n1"])], "n3 alone is left for gangs of two"
    for decision in first.decisions:
        state.apply(Assumed(decision))
    assert not decide(state, 501, 1000).decisions
    # The copy that a new leader makes from the objects decides alike.
    fresh = town({"r": ["n0", "n1", "n2", "n3", "n4"]}, ("q", "other"))
    lose(fresh, "r", "n0")
    back = released(one, first)
    for value in (*(gang(n, 2, q, created=c) for n, q, c in (("older", "q", 50), ("stranger", "other", 10))), back):
        fresh.apply(Put(value))
    fresh.apply(Put(on(gang("two", 1), "n4")))
    state.apply(Put(back))
    state.apply(Put(gang("small", 1, "other", created=500)))
    fresh.apply(Put(gang("small", 1, "other", created=500)))
    plan = decide(state, 600, 1000)
    assert sorted(decided(plan)) == [("Admit", "one", ["n2", "n1"]), ("Admit", "small", ["n3"])]
    assert sorted(decided(decide(fresh, 600, 1000))) == sorted(decided(plan))


def test_what_a_gang_has_on_a_node_in_two_parts_it_does_not_claim_again() -> None:
    """Ranks 0 and 2 stand on n0, as after an earlier loss."""
    state = town({"r": ["n0", "n1", "n2"]})
    for name, gpus in (("n0", 16), ("n2", 4)):
        state.apply(Put(replace(node(name, "r"), allocatable=((GPU, gpus), ("pods", 10)))))
    pod_set = PodSet("main", 3, PodShape(requests=((GPU, 4),)))
    one = hit(replace(on(gang("one", 3), "n0", "n1", "n0"), pod_sets=(pod_set,)))
    state.apply(Put(one))
    lose(state, "r", "n1")
    plan = decide(state, 500, 1000)
    assert decided(plan) == [("Claim", "one", ["n0", "n2", "n0"])]
    for decision in plan.decisions:
        state.apply(Assumed(decision))
    state.apply(Put(gang("two", 1)))
    assert decided(decide(state, 501, 1000)) == [("Admit", "two", ["n0"])]


def test_a_survivor_that_is_no_longer_fit_is_replaced_too() -> None:
    state = town({"r": ["n0", "n1", "n2", "n3"]})
    one = hit(on(gang("one", 2), "n0", "n1"))
    state.apply(Put(one))
    lose(state, "r", "n0")
    first = decide(state, 500, 1000)
    assert decided(first) == [("Claim", "one", ["n2", "n1"])]
    for decision in first.decisions:
        state.apply(Assumed(decision))
    state.apply(Put(node("n1", "r", unschedulable=True)))
    state.apply(Put(released(one, first)))
    assert decided(decide(state, 600, 1000)) == [("Admit", "one", ["n2", "n3"])]


def test_only_the_lost_pods_of_a_gang_that_survives_their_loss_are_placed_anew() -> None:
    state = town({"r": ["n0", "n1", "n2"], "s": ["n3", "n4", "n5"]})
    one = on(gang("one", 3), "n0", "n1", "n3")
    for value in (replace(one, lost_nodes=("n0", "n3")), gang("later", 2)):
        state.apply(Put(value))
    lose(state, "r", "n0")
    lose(state, "s", "n3")
    plan = decide(state, 500, 1000)
    (first, *rest) = decided(plan)
    assert (first[0], first[1], len(set(first[2])), first[2][1]) == ("Replace", "one", 3, "n1")
    assert not {"n0", "n3"} & set(first[2])
    assert [(what, who) for what, who, _ in rest] == [], "one node is left, and it asks for two"


@pytest.mark.parametrize("avoided", [(), (AvoidedNode("n1", 10_000, "OutOfcpu"),)], ids=["", "avoided"])
def test_pods_on_a_node_that_is_not_lost_yet_stay_there(avoided: tuple[AvoidedNode, ...]) -> None:
    """It has been silent for seconds, and may be back: who has another place would be evicted from it."""
    state = town({"r": ["n0", "n1", "n2", "n3"]})
    state.apply(Put(replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",), avoid=avoided)))
    lose(state, "r", "n0", "n1")
    assert decided(decide(state, 500, 1000)) == [("Replace", "one", ["n2", "n1"])]


def test_a_gang_that_leaves_after_all_holds_the_nodes_on_which_it_stands() -> None:
    """Not those that were to take the place of lost ones, which was not written in time."""
    state = town({"r": ["n0", "n1", "n2"]})
    one = replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",))
    state.apply(Put(one))
    lose(state, "r", "n0")
    (decision,) = decide(state, 500, 1000).decisions
    assert isinstance(decision, Replace)

    def held() -> list[str]:
        counts = state.workload(one.key)
        assert counts is not None
        assert counts.admission is not None
        return sorted(hosts(counts.admission))

    state.apply(Assumed(decision))
    assert held() == ["n1", "n2"]
    assert not decide(state, 501, 1000).decisions
    state.apply(Put(hit(one)))
    assert held() == ["n0", "n1"]


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
def test_a_gang_that_leaves_gets_no_other_nodes(rules: Rules) -> None:
    state = town({"r": ["n0", "n1", "n2"]}, rules=rules)
    state.apply(Put(replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",), evicted="Preempted", evicted_at=400)))
    lose(state, "r", "n0")
    assert not decide(state, 500, 1000).decisions


@pytest.mark.parametrize("fair", [False, True])
def test_by_kueues_rules_lost_nodes_are_made_good_before_anybody_starts(fair: bool) -> None:
    state = town({"r": ["n0", "n1", "n2"]}, rules=replace(KUEUE, fair_sharing=fair))
    one = replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",))
    state.apply(Put(one))
    state.apply(Put(gang("new", 1, created=50, priority=9)))
    lose(state, "r", "n0")
    assert [(what, who) for what, who, _ in decided(decide(state, 500, 1000))] == [("Replace", "one")]


def test_by_kueues_rules_a_gang_is_told_that_there_are_no_nodes_in_place_of_those_it_lost() -> None:
    """It is evicted for that."""
    state = town({"r": ["n0", "n1"]}, rules=KUEUE)
    state.apply(Put(replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",))))
    lose(state, "r", "n0")
    plan = decide(state, 500, 1000)
    assert not plan.decisions
    assert [(verdict.key[1], verdict.standing) for verdict in plan.verdicts] == [("one", Standing.PARKED)]


def test_nodes_that_a_gang_avoids_do_not_take_the_place_of_lost_ones() -> None:
    """Its pods were refused there of late."""
    state = town({"r": ["n0", "n1", "n2", "n3"]})
    avoided = (AvoidedNode("n2", 10_000, "OutOfcpu"),)
    state.apply(Put(replace(on(gang("one", 2), "n0", "n1"), lost_nodes=("n0",), avoid=avoided)))
    lose(state, "r", "n0")
    assert decided(decide(state, 500, 1000)) == [("Replace", "one", ["n3", "n1"])]


def test_pods_that_are_done_get_no_nodes_again() -> None:
    """Two of four gave theirs back."""
    state = town({"r": ["n0", "n1", "n2"]})
    stood = on(gang("one", 4), "n0", "n1")
    assert stood.admission is not None
    (part,) = stood.admission.pod_sets
    given = replace(stood.admission, pod_sets=(replace(part, count=4, usage=((GPU, 32),)),))
    state.apply(Put(replace(stood, admission=given, reclaimable=(("main", 2),), lost_nodes=("n0",))))
    lose(state, "r", "n0")
    plan = decide(state, 500, 1000)
    assert decided(plan) == [("Replace", "one", ["n2", "n1"])]
    (decision,) = plan.decisions
    assert isinstance(decision, Replace)
    assert [(one.count, one.usage) for one in decision.admission.pod_sets] == [(4, ((GPU, 32),))]


@pytest.mark.parametrize(
    ("pods", "stands", "done", "found"),
    [
        # One slice is done, and gave its nodes back; two pods of the other are.
        (8, ["s0", "s1", "s2", "s3"], 6, [["s0", "s1", "s2", "s4"]]),
        (8, ["r0", "r1", "r2", "r3", "s0", "s1", "s2", "s3"], 2, [["r0", "r1", "r2", "r3", "s0", "s1", "s2", "s4"]]),
        # The short one is left.
        (7, ["s0", "s1", "s3"], 4, [["s0", "s1", "s2"]]),
    ],
)
def test_slices_that_are_done_get_no_nodes_again(
    pods: int, stands: list[str], done: int, found: list[list[str]]
) -> None:
    state = town({"r": ["r0", "r1", "r2", "r3"], "s": ["s0", "s1", "s2", "s3", "s4"]})
    stood = on(gang("one", pods, asked=TopologyRequest(slice_required="rack", slice_size=4)), *stands)
    assert stood.admission is not None
    (part,) = stood.admission.pod_sets
    given = replace(stood.admission, pod_sets=(replace(part, count=pods, usage=((GPU, 8 * pods),)),))
    state.apply(Put(replace(stood, admission=given, reclaimable=(("main", done),), lost_nodes=("s3",))))
    lose(state, "s", "s3")
    assert [where for what, _, where in decided(decide(state, 500, 1000)) if what == "Replace"] == found


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_the_short_slice_stands_where_the_rest_of_a_whole_one_had_no_room(leaves: bool) -> None:
    """Two pods fit on a node, and the second place beside it is another gang's."""
    state = town({"r": ["n0", "n1", "n2"]})
    half = PodShape(requests=((GPU, 4),))

    def on_halves(name: str, *hosts: str) -> Workload:
        of = on(gang(name, len(hosts)), *hosts)
        asked = TopologyRequest(slice_required=HOST, slice_size=2)
        assert of.admission is not None
        (part,) = of.admission.pod_sets
        given = replace(of.admission, pod_sets=(replace(part, usage=((GPU, 4 * len(hosts)),)),))
        return replace(of, pod_sets=(PodSet("main", len(hosts), half, topology=asked),), admission=given)

    one = on_halves("one", "n0", "n0", "n1")
    one = hit(one) if leaves else replace(one, lost_nodes=("n0",))
    for value in (one, on_halves("other", "n1")):
        state.apply(Put(value))
    lose(state, "r", "n0")
    what = "Claim" if leaves else "Replace"
    plan = decide(state, 500, 1000)
    assert decided(plan) == [(what, "one", ["n2", "n2", "n1"])]
    for decision in plan.decisions:
        state.apply(Assumed(decision))
    if leaves:
        state.apply(Put(released(one, plan)))
        assert decided(decide(state, 600, 1000)) == [("Admit", "one", ["n2", "n2", "n1"])]


@pytest.mark.parametrize(("free", "found"), [(3, 4), (1, 2), (0, None)])
def test_who_runs_with_fewer_pods_than_it_would_have_claims_for_those(free: int, found: int | None) -> None:
    state = town({"r": [f"n{i}" for i in range(2 + free)]})
    stood = on(gang("one", 4), "n0", "n1")
    (asked,) = stood.pod_sets
    one = hit(replace(stood, pod_sets=(replace(asked, min_count=1),)))
    state.apply(Put(one))
    lose(state, "r", "n0")
    plan = decide(state, 500, 1000)
    assert [(what, len(where)) for what, _, where in decided(plan)] == ([("Claim", found)] if found else [])
    for decision in plan.decisions:
        state.apply(Assumed(decision))
    state.apply(Put(released(one, plan)))
    last = decided(decide(state, 600, 1000))
    assert [(what, len(where), "n1" in where) for what, _, where in last] == [("Admit", found or 1, True)]


def test_pod_sets_that_share_a_rack_share_it_when_all_nodes_of_one_are_lost() -> None:
    state = town({"r": ["n0", "n1", "n2", "n3"], "s": ["n4", "n5"]})
    asked = TopologyRequest(required="rack", group="g")
    lead = on(gang("one", 1, asked=asked), "n0")
    work = on(gang("one", 2, asked=asked), "n1", "n2")
    assert lead.admission is not None
    assert work.admission is not None
    pod_sets = tuple(replace(of.pod_sets[0], name=name) for of, name in ((lead, "lead"), (work, "work")))
    given = (replace(lead.admission.pod_sets[0], name="lead"), replace(work.admission.pod_sets[0], name="work"))
    one = replace(work, pod_sets=pod_sets, admission=replace(work.admission, pod_sets=given))
    state.apply(Put(replace(one, lost_nodes=("n1", "n2"))))
    lose(state, "r", "n1", "n2")
    assert not decide(state, 500, 1000).decisions, "one node is left in its rack"
    state.apply(Put(node("n6", "r")))
    (decision,) = decide(state, 501, 1000).decisions
    assert isinstance(decision, Replace)
    found = [[d.values[-1] for d in part.topology.domains] for part in decision.admission.pod_sets if part.topology]
    assert found == [["n0"], ["n3", "n6"]]


@pytest.mark.parametrize("leaving", [False, True], ids=["stays", "leaves"])
def test_who_lost_nodes_has_a_turn_though_many_before_it_find_none(leaving: bool) -> None:
    """Whatever changes on nodes between cycles may have given those before it other nodes."""
    stood = {f"g{i}": (f"n{i}", f"k{i}") for i in range(9)}
    state = town({"r": [host for name in stood for host in stood[name]], "s": ["n", "k", "free"]})
    stood["last"] = ("n", "k")
    for name, (lost, kept) in stood.items():
        one = on(gang(name, 2, asked=TopologyRequest(required="rack")), lost, kept)
        state.apply(Put(hit(one) if leaving else replace(one, lost_nodes=(lost,))))
        lose(state, "s" if name == "last" else "r", lost)
    found = []
    for cycle in range(8):
        found += decided(decide(state, 500 + cycle, 4))
        state.apply(Put(node("other", "t", ready=False, lost_since=cycle + 1)))
    assert found[:1] == [("Claim" if leaving else "Replace", "last", ["free", "k"])]


@pytest.mark.parametrize(
    ("created", "gone"),
    [pytest.param(10, ["run"], id="older than who runs"), pytest.param(70, [], id="newer, too")],
)
def test_who_lost_a_node_does_not_stand_for_those_who_are_older(created: int, gone: list[str]) -> None:
    """It stands first, and is too new to evict who runs; one like it that stands behind it may be older."""
    older = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY)
    group = ResourceGroup((GPU,), (FlavorQuotas("f", ((GPU, Quota(24)),)),))
    state = town({"r": ["n1", "n2", "n3"]})
    state.apply(Put(ClusterQueue("q", groups=(group,), namespace_selector=LabelSelector(), preemption=older)))
    state.apply(Put(on(gang("run", 3, created=50), "n1", "n2", "n3")))
    state.apply(Put(replace(gang("young", 2, created=100), evicted="NodeFailures", evicted_at=60, queue_stamp=0)))
    state.apply(Put(gang("old", 2, created=created)))
    plan = decide(state, 1_000, 100)
    assert [d.key[1] for d in plan.decisions if isinstance(d, Evict)] == gone


@pytest.mark.parametrize("rules", [MUSTER, KUEUE], ids=["muster", "kueue"])
@pytest.mark.parametrize(
    "change", [Put(Flavor("f", elastic=True)), Put(Flavor("f")), Gone(Flavor, "f")], ids=["elastic", "plain", "gone"]
)
def test_nobody_gets_the_node_that_it_lost(change: Put | Gone, rules: Rules) -> None:
    """Since it started, its flavor has become one of which no nodes are chosen, or is gone."""
    state = town({"r": ["n0", "n1", "n2"]}, rules=rules)
    state.apply(Put(replace(on(gang("hit", 2), "n0", "n1"), lost_nodes=("n0",))))
    lose(state, "r", "n0")
    state.apply(change)
    assert all("n0" not in stands for _, _, stands in decided(decide(state, 1_000, 100)))
