"""Who comes back when room changes on nodes, and what they are told; nodes of gangs that have several flavors."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine import table
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    AntiAffinity,
    ClusterQueue,
    Detail,
    Exclusive,
    Flavor,
    FlavorQuotas,
    Fungibility,
    LabelSelector,
    Node,
    PodSet,
    PodShape,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    Reason,
    Requirement,
    ResourceGroup,
    Strategy,
    Taint,
    Toleration,
    Topology,
    TopologyRequest,
    Transformation,
    Workload,
)
from admission.names import JOBSET_NAME_LABEL, JOBSET_REPLICATED_JOB_LABEL
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, gang, node, queue

F = "f"
GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
HOUR = 3600 * SECOND


def stray(name: str, on: str, **amounts: int) -> PodUsage:
    return PodUsage(("x", name), name, on, tuple(sorted(amounts.items())))


@pytest.mark.parametrize("another", ["a pod of nobody's", "a gang of another tree"])
@pytest.mark.parametrize("of", ["own", "other"])
def test_who_may_evict_comes_back_when_the_rest_of_a_node_becomes_free(another: str, of: str) -> None:
    """It needs both: what becomes free, and what somebody holds there who must go for it."""
    within = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)
    town = Town(
        Flavor(F),
        node("n1", gpu=8),
        cohort("c", "", [(F, {"gpu": 0})]),
        queue("own", "c", [(F, {"gpu": 8})], preemption=within),
        queue("other", "c", [(F, {"gpu": 0})]),
        queue("apart", "", [(F, {"gpu": 8})]),
    )
    town.put(gang("victim", of, each={"gpu": 4}))
    town.settle()
    beside = stray("p", "n1", gpu=4) if another == "a pod of nobody's" else gang("beside", "apart", each={"gpu": 4})
    town.put(beside)
    town.settle()
    town.now += HOUR
    town.put(gang("wants", "own", each={"gpu": 8}, priority=5, created=town.now - START))
    town.settle()
    assert "victim" in town.admitted()
    town.remove(type(beside), beside.key)
    town.settle()
    town.leave()
    town.settle()
    assert town.admitted() == ["wants"]


@pytest.mark.parametrize("another", ["a pod of nobody's", "a gang of another tree"])
def test_who_waits_for_a_rack_comes_back_when_its_nodes_have_room_together(another: str) -> None:
    """Where racks are the lowest level, none of a rack's nodes need have room for a pod alone."""
    town = Town(
        Topology("racks", ("rack",)),
        Flavor(F, topology="racks"),
        *(replace(node(name, gpu=4), labels=((HOST, name), ("rack", "r"))) for name in ("n1", "n2")),
        queue("q", "", [(F, {"gpu": 80})]),
        queue("apart", "", [(F, {"gpu": 80})]),
        rules=KUEUE,
    )
    beside = stray("p", "n1", gpu=4) if another == "a pod of nobody's" else gang("beside", "apart", each={"gpu": 4})
    town.put(beside)
    town.settle()
    town.put(gang("wants", "q", each={"gpu": 6}, created=1))
    town.settle()
    assert "wants" in town.pending()
    town.remove(type(beside), beside.key)
    town.settle()
    assert town.admitted() == ["wants"]


def test_a_pod_of_nobodys_changes_what_empty_nodes_would_hold() -> None:
    town = Town(Flavor(F), node("n1", gpu=4), queue("q", "", [(F, {"gpu": 80})]))
    town.put(gang("runs", "q", 4))
    town.settle()
    town.put(gang("waits", "q", 4, created=1))
    for pod, detail in ((None, Detail.NODES_SHORT), (stray("p", "n1", gpu=1), Detail.NODES_TAKEN)):
        if pod is not None:
            town.put(pod)
        town.settle()
        told = town.state.explain(("ns", "waits"))
        assert told is not None
        assert told.why.detail is detail
    town.remove(PodUsage, ("x", "p"))
    town.settle()
    told = town.state.explain(("ns", "waits"))
    assert told is not None
    assert told.why.detail is Detail.NODES_SHORT


# ---------------------------------------------------------------- a zone fails


@pytest.mark.parametrize("budget", [1, 10, 100])
@pytest.mark.parametrize("leaving", [True, False])
def test_where_a_zone_fails_others_have_their_turns(leaving: bool, budget: int) -> None:
    """40 gangs lost their only node, and there is no other one; nobody waits for that but they."""
    town = Town(Flavor(F), *(node(f"n{i:02}", gpu=1) for i in range(40)), queue("q", "", [(F, {"gpu": 100})]))
    town.put(*(gang(f"g{i:02}", "q") for i in range(40)))
    town.settle()
    for held in town.gangs():
        assert held.admission is not None
        assert held.admission.pod_sets[0].topology is not None
        host = held.admission.pod_sets[0].topology.domains[0].values[-1]
        lost = town.objects["Node", host]
        assert isinstance(lost, Node)
        town.put(replace(lost, ready=False, lost_since=1))
        evicted = replace(held, evicted="NodeFailures", evicted_at=town.now, queue_stamp=0)
        town.put(evicted if leaving else replace(held, lost_nodes=(host,)))
    town.put(Flavor("cloud", elastic=True), queue("apart", "", [("cloud", {"gpu": 5})]), gang("easy", "apart"))
    calls, decisions = 0, []
    while not decisions:
        plan = decide(town.state, town.now, budget)
        decisions = [decision.key[1] for decision in plan.decisions]
        calls += 1
        assert plan.steps <= budget + 1
        assert calls <= 2, "each call leaves half of its trials to others"
    assert decisions == ["easy"]
    # Each is asked once, and again only when something changed.
    more = 0
    while decide(town.state, town.now, budget).more:
        more += 1
        assert more <= 40
    assert decide(town.state, town.now, budget).steps <= 1
    town.put(node("new", gpu=1))
    found: list[object] = []
    for _ in range(45):
        found += [d.key for d in decide(town.state, town.now, budget).decisions if d.key[1] != "easy"]
        if found:
            break
    assert len(found) == 1


# ---------------------------------------------------------------- several flavors


def of_kind(name: str, kind: str) -> Node:
    return Node(name, ((HOST, name), ("kind", kind)), allocatable=(("gpu", 4), ("pods", 10)))


@pytest.mark.parametrize(
    ("first", "quota"),
    [
        (Flavor("a", (("kind", "a"),)), 2),
        (Flavor("a", (("kind", "a"),), node_taints=(Taint("x", "y", "NoSchedule"),)), 8),
    ],
)
def test_who_waits_for_nodes_of_one_flavor_is_not_told_that_another_can_never_do(first: Flavor, quota: int) -> None:
    town = Town(
        first,
        Flavor("b", (("kind", "b"),)),
        of_kind("n1", "a"),
        of_kind("n2", "b"),
        queue("q", "", [("a", {"gpu": quota}), ("b", {"gpu": 8})]),
    )
    town.put(gang("runs", "q", 4))
    town.settle()
    town.put(gang("waits", "q", 4, created=1))
    town.settle()
    told = town.state.explain(("ns", "waits"))
    assert told is not None
    assert (told.why.reason, told.why.detail) == (Reason.PLACEMENT_FAILED, Detail.NODES_SHORT)
    assert (told.why.misfits[0].flavor, told.why.misfits[0].fits_when_empty) == ("b", True)


def two_groups(cpu: str, gpu: str) -> ClusterQueue:
    rows = ((("cpu",), cpu), ((GPU,), gpu))
    groups = tuple(ResourceGroup(covers, (FlavorQuotas(name, ((covers[0], Quota(10**6)),)),)) for covers, name in rows)
    return ClusterQueue("q", groups=groups, namespace_selector=LabelSelector())


@pytest.mark.parametrize(
    ("cpu", "gpu", "on_nodes"),
    [
        ("solid", "cloud", [[], [], []]),  # nodes with GPUs are made when they are needed
        ("cloud", "solid", [["n1"]]),  # GPUs are where they are, and so must be the CPUs beside them
    ],
)
def test_the_flavor_of_the_devices_says_whether_nodes_are_chosen(cpu: str, gpu: str, on_nodes: list[list[str]]) -> None:
    there = Node("n1", ((HOST, "n1"),), allocatable=(("cpu", 10), (GPU, 8), ("pods", 10)))
    town = Town(Flavor("solid"), Flavor("cloud", elastic=True), there, two_groups(cpu, gpu))
    town.put(*(gang(f"g{i}", "q", each={"cpu": 6, GPU: 1}, created=i) for i in range(3)))
    town.settle()
    chosen = []
    for value in town.gangs():
        if value.admission is not None:
            topology = value.admission.pod_sets[0].topology
            chosen.append([] if topology is None else [domain.values[-1] for domain in topology.domains])
    assert chosen == on_nodes


@pytest.mark.parametrize(("retain", "gpu"), [(True, "cloud"), (False, None), (True, "metal")])
def test_what_devices_count_as_chooses_no_nodes(retain: bool, gpu: str | None) -> None:
    """Credits for GPUs are of a flavor of their own (or, without `retain`, of that of the GPUs)."""
    credit = Transformation(GPU, (("example.com/credits", Fraction(1)),), retain=retain)
    rows = {"cpu": "solid", "example.com/credits": "cloud" if gpu is None else "budget"} | ({GPU: gpu} if gpu else {})
    groups = tuple(ResourceGroup((of,), (FlavorQuotas(name, ((of, Quota(10**6)),)),)) for of, name in rows.items())
    value = ClusterQueue("q", groups=groups, namespace_selector=LabelSelector())
    there = Node("n1", ((HOST, "n1"),), allocatable=(("cpu", 10), (GPU, 1), ("pods", 10)))
    cloud = Flavor("cloud", (("kind", "cloud"),), elastic=True)
    rules = replace(MUSTER, transformations=(credit,))
    town = Town(*map(Flavor, ("solid", "metal", "budget")), cloud, there, value, rules=rules)
    town.put(*(gang(f"g{i}", "q", each={"cpu": 1, GPU: 1}, created=i) for i in range(2)))
    town.settle()
    given = [one.admission for one in town.gangs() if one.admission is not None]
    assert [one.pod_sets[0].topology is not None for one in given] == ([True] if gpu == "metal" else [False, False])


def test_a_pod_set_without_quota_stands_with_the_others_as_they_do() -> None:
    """It gets the tolerations that count when its nodes are chosen."""
    flavor = Flavor(F, tolerations=(Toleration("gpu", "Exists"),))
    there = replace(node("n1", cpu=64, gpu=8), taints=(Taint("gpu", "", "NoSchedule"),))
    town = Town(flavor, there, queue("q", "", [(F, {"gpu": 8})]), rules=replace(MUSTER, ignore_undeclared=True))
    value = gang("g", "q", 2, each={"gpu": 4, "cpu": 1})
    town.put(replace(value, pod_sets=(PodSet("launcher", 1, PodShape(requests=(("cpu", 1),))), *value.pod_sets)))
    (decision,) = decide(town.state, town.now, BUDGET).decisions
    assert isinstance(decision, Admit)
    launcher, main = decision.admission.pod_sets
    assert launcher.flavors == ()
    assert decision.admission.flavors_of(launcher) == decision.admission.flavors_of(main) == (F,)


@pytest.mark.parametrize(
    ("key", "left"), [(HOST, {"n1", "n2", "n3"}), ("zone", {"n2", "n3"}), ("absent", {"n0", "n1", "n2", "n3"})]
)
def test_nobody_is_put_beside_a_pod_that_keeps_everybody_away(key: str, left: set[str]) -> None:
    """As pods are read that ask more than is read."""
    nodes = [node(f"n{i}", gpu=8) for i in range(4)]
    zones = [replace(one, labels=(*one.labels, ("zone", "ab"[i // 2]))) for i, one in enumerate(nodes)]
    alone = replace(stray("p", "n0"), apart=(AntiAffinity(key, LabelSelector()),))
    town = Town(Flavor(F), *zones, queue("q", "", [(F, {"gpu": 32})]), alone)
    town.put(*(gang(f"g{i}", "q", each={"gpu": 8}) for i in range(4)))
    town.settle()
    given = [town.gang(name).admission for name in town.admitted()]
    assert {one.pod_sets[0].topology.domains[0].values[-1] for one in given} == left


def test_columns_of_what_those_who_wait_name_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports, labels that no node has, and combinations: whoever waits may name any. The answers stay the same."""
    found = []
    for cells in (table.CELLS, 100):
        monkeypatch.setattr(table, "CELLS", cells)
        town = Town(Flavor(F), *(node(f"n{i}", gpu=8) for i in range(10)), queue("q", "", [(F, {"gpu": 60})]))
        for i in range(40):
            ports, labels = tuple(str(i * 8 + j) for j in range(8)), ((f"label-{i}", "v"),) if i % 2 else ()
            shape = PodShape((("gpu", 1),), labels, host_ports=ports)
            town.put(replace(gang(f"g{i}", "q"), pod_sets=(PodSet("main", 2, shape),)))
            town.settle()
        kept = town.state._ledger.nodes.table
        assert len(kept._columns) < 10
        assert (len(kept.free) > 100) == (cells > 100)
        found.append({name: town.gang(name).admission for name in town.admitted()})
    assert found[0] == found[1]
    assert len(found[0]) == 20


def racks(levels: tuple[str, ...]) -> list[object]:
    """Two racks of two nodes with four GPUs each."""
    names = [("n1", "r1"), ("n2", "r1"), ("n3", "r2"), ("n4", "r2")]
    return [
        Topology("net", levels),
        *(replace(node(name, gpu=4), labels=((HOST, name), ("rack", rack))) for name, rack in names),
    ]


PRESETS = {"muster": MUSTER, "kueue": KUEUE, "kueue-fair": replace(KUEUE, fair_sharing=True)}
gangs_asked = st.tuples(
    st.sampled_from(("a", "b", "alone")),
    st.sampled_from(((1, 1), (1, 3), (2, 2), (2, 4), (3, 4))),
    st.sampled_from((0, 0, 5)),
    st.sampled_from(("", "rack", HOST)),
)
events = st.one_of(
    gangs_asked,
    st.integers(0, 20),
    st.sampled_from(("pod comes", "pod goes", "node comes", "node goes")),
)


@pytest.mark.parametrize("levels", [("rack", HOST), ("rack",)], ids=["hosts", "racks"])
@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    lower=st.booleans(),
    quota=st.sampled_from((3, 8, 16)),
    second=st.booleans(),
    elastic=st.booleans(),
    smaller=st.booleans(),
    limit=st.sampled_from((None, 0, 3)),
    strategy=st.sampled_from(Strategy),
    fungibility=st.builds(Fungibility, st.booleans(), st.booleans(), st.booleans()),
    arrive=st.lists(gangs_asked, min_size=3, max_size=8),
    happens=st.lists(events, max_size=8),
)
def test_nobody_is_hidden_whom_nodes_would_let_go(
    preset: str,
    levels: tuple[str, ...],
    lower: bool,
    quota: int,
    second: bool,
    elastic: bool,
    smaller: bool,
    limit: int | None,
    strategy: Strategy,
    fungibility: Fungibility,
    arrive: list[tuple[str, tuple[int, int], int, str]],
    happens: list[tuple[str, tuple[int, int], int, str] | int | str],
) -> None:
    """At rest, whoever remembers nothing finds nothing to do."""
    policy = PreemptionPolicy.LOWER_PRIORITY if lower else PreemptionPolicy.NEVER
    evicts = Preemption(within_cluster_queue=policy, reclaim_within_cohort=PreemptionPolicy.ANY)
    amounts = {F: quota, **({"more": 2} if second else {})}
    flavors = [(name, {"gpu": Quota(amount, borrowing_limit=limit)}) for name, amount in amounts.items()]
    rules = {"preemption": evicts, "strategy": strategy, "fungibility": fungibility}
    town = Town(rules=PRESETS[preset])
    town.put(
        *racks(levels),
        Flavor(F, topology="net"),
        Flavor("more", topology="" if elastic else "net", elastic=elastic),
        cohort("c", "", []),
        *(queue(name, "c", flavors, **rules) for name in "ab"),
        queue("alone", "", flavors, **rules),
    )
    number = 0

    def come(asked: tuple[str, tuple[int, int], int, str]) -> None:
        nonlocal number
        number += 1
        name, (pods, gpus), priority, level = asked
        made = gang(f"g{number}", name, pods, each={"gpu": gpus}, priority=priority, created=town.now - START)
        if smaller and pods > 1:
            made = replace(made, pod_sets=tuple(replace(one, min_count=1) for one in made.pod_sets))
        if level in levels:
            request = TopologyRequest(required=level)
            made = replace(made, pod_sets=tuple(replace(one, topology=request) for one in made.pod_sets))
        town.put(made)

    for one in arrive:
        come(one)
    town.rests(30)  # Kueue's fair sharing may have none
    for what in happens:
        if isinstance(what, tuple):
            come(what)
        elif isinstance(what, int):
            holders = sorted(one.key for one in town.gangs() if one.admission is not None)
            if holders:
                town.remove(Workload, holders[what % len(holders)])
        elif what == "pod comes":
            town.put(stray("p", "n1", gpu=3))
        elif what == "pod goes":
            town.remove(PodUsage, ("x", "p"))
        elif what == "node comes":
            town.put(*racks(levels))
        else:
            town.remove(Node, "n4")
        if town.rests(30):
            town.state.memos.forget()
            left = decide(town.state, town.now, BUDGET)
            assert not left.decisions, left.decisions
            while left.more:
                left = decide(town.state, town.now, BUDGET)
                assert not left.decisions, left.decisions


@pytest.mark.parametrize("order", list(permutations(("its pods go", "theirs of nodes that are gone", "it is anew"))))
def test_a_jobset_that_is_made_again_comes_back_when_the_pods_of_the_last_one_go(order: tuple[str, ...]) -> None:
    """One pod lingers on a node that is lost, and keeps its rack: to the child job of its name, and to no other."""
    racks = {"a": "r1", "b": "r1", "c": "r1", "d": "r2", "e": "r2", "f": "r2", "g": "r3"}
    names = ((JOBSET_NAME_LABEL, "set"), (JOBSET_REPLICATED_JOB_LABEL, "w"))
    shape = PodShape(
        requests=(("gpu", 8),), of_jobset=True, exclusive=Exclusive("rack", 2), namespace="ns", labels=names
    )

    def named(uid: str) -> Workload:
        return replace(gang("set", "q", 4), uid=uid, pod_sets=(PodSet("w", 4, shape),))

    def pod(host: str, child: int) -> PodUsage:
        return PodUsage(
            key=("ns", f"pod-{host}"),
            uid=f"pod-{host}",
            node=host,
            requests=(("gpu", 8), ("pods", 1)),
            workload_uid="old",
            of_jobset=True,
            exclusive_key="rack",
            child=("ns/set-w", child),
        )

    nodes = [replace(node(name, gpu=8), labels=((HOST, name), ("rack", rack))) for name, rack in racks.items()]
    town = Town(Flavor(F), queue("q", "", [(F, {"gpu": 64})]), *nodes, named("old"))
    (first,) = town.cycle().decisions
    assert isinstance(first, Admit)
    town.put(pod("a", 0), pod("b", 0), pod("d", 1), pod("e", 1), pod("x", 0), pod("y", 0))
    town.put(replace(nodes[4], ready=False))
    town.remove(Workload, ("ns", "set"))
    for step in order:
        town.decide()
        if step == "it is anew":
            town.put(named("new"))
        else:
            for host in "abd" if step == "its pods go" else "xy":
                town.remove(PodUsage, ("ns", f"pod-{host}"))
    (admit,) = town.cycle().decisions
    assert isinstance(admit, Admit)
    topology = admit.admission.pod_sets[0].topology
    assert topology is not None
    assert [domain.values[-1] for domain in topology.domains] == ["a", "b", "d", "f"]


@pytest.mark.parametrize("seen", ["before", "after", "gone"])
@pytest.mark.parametrize("first", ["again", "other"])
def test_pods_that_linger_bind_no_jobset_but_the_next_of_their_name(first: str, seen: str) -> None:
    """Two that are alike wait in one queue; pods of an earlier one of the name of one of them keep a rack for it,
    whether they are seen before it or after, and bind nobody when they are gone."""
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    nodes = [replace(node(name, gpu=8), labels=((HOST, name), ("rack", rack))) for name, rack in racks.items()]
    pod = PodUsage(
        key=("ns", "p"),
        uid="p",
        node="a",
        requests=(("gpu", 8), ("pods", 1)),
        workload_uid="gone",
        of_jobset=True,
        exclusive_key="rack",
        child=("ns/again-w", 0),
    )
    town = Town(Flavor(F), queue("q", "", [(F, {"gpu": 64})]), *nodes, *([] if seen == "after" else [pod]))
    town.put(replace(nodes[0], ready=False))
    for name in ("again", "other"):
        names = ((JOBSET_NAME_LABEL, name), (JOBSET_REPLICATED_JOB_LABEL, "w"))
        shape = PodShape((("gpu", 8),), of_jobset=True, exclusive=Exclusive("rack", 1), namespace="ns", labels=names)
        made = gang(name, "q", created=int(name != first))
        town.put(replace(made, pod_sets=(PodSet("w", 1, shape),)))
    if seen == "after":
        town.put(pod)
    elif seen == "gone":
        town.remove(PodUsage, pod.key)
    where = {}
    for admit in town.cycle().decisions:
        assert isinstance(admit, Admit)
        topology = admit.admission.pod_sets[0].topology
        assert topology is not None
        where[admit.key[1]] = topology.domains[0].values[-1]
    if seen == "gone":
        assert {where[first], *where.values()} == {"b", "c"}
    else:
        assert where == {"again": "b", "other": "c"}


def test_jobsets_with_exclusive_placement_that_are_alike_are_looked_at_once() -> None:
    nodes = [replace(node(f"n{i}", gpu=8), labels=((HOST, f"n{i}"), ("rack", f"r{i}"))) for i in range(4)]
    town = Town(Flavor(F), queue("q", "", [(F, {"gpu": 640})]), *nodes)
    for i in range(40):
        names = ((JOBSET_NAME_LABEL, f"set-{i}"), (JOBSET_REPLICATED_JOB_LABEL, "w"))
        shape = PodShape((("gpu", 8),), of_jobset=True, exclusive=Exclusive("rack", 1), namespace="ns", labels=names)
        town.put(replace(gang(f"g{i:02}", "q", created=i), pod_sets=(PodSet("w", 1, shape),)))
    town.settle()
    assert town.admitted() == ["g00", "g01", "g02", "g03"]
    town.remove(Workload, ("ns", "g00"))
    assert sum(town.cycle().steps for _ in range(4)) <= 4
    assert town.admitted() == ["g01", "g02", "g03", "g04"]


def test_who_was_kept_away_comes_back_when_those_have_left_who_kept_it_away() -> None:
    """Two of one template keep each other off their rack. One waits for a whole node, and when that is free the other
    is on the rack: it gives back little where it stood, and all of the rack to the one that waits."""
    mine = (("app", "x"),)
    apart = AntiAffinity("rack", LabelSelector((Requirement("app", "In", ("x",)),)), ("ns",))

    def spread(name: str, local: str, gpu: int, created: int) -> Workload:
        shape = PodShape((("gpu", gpu),), one_per_domain=("rack",), apart=(apart,), namespace="ns", labels=mine)
        return replace(gang(name, local, created=created), pod_sets=(PodSet("main", 1, shape),))

    town = Town(Flavor(F), *(queue(name, "", [(F, {"gpu": 64})]) for name in ("q", "apart", "third")))
    town.put(*(replace(node(name, gpu=8), labels=((HOST, name), ("rack", "r"))) for name in ("n1", "n2")))
    town.put(gang("whole", "third", each={"gpu": 8}), gang("most", "third", each={"gpu": 7}, created=1))
    town.settle()
    town.put(spread("waits", "q", 8, 2))
    town.settle()
    town.put(spread("other", "apart", 1, 3))
    town.settle()
    assert town.admitted() == ["most", "other", "whole"]
    town.remove(Workload, ("ns", "whole"))
    town.settle()
    assert town.pending() == ["waits"]
    town.remove(Workload, ("ns", "other"))
    town.settle()
    assert town.admitted() == ["most", "waits"]
