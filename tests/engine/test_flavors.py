"""The scan of flavors: rows through `assign`, one rule each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.flavors import (
    Assignment,
    Cursor,
    Mode,
    Oracle,
    assign,
    demand,
    holds,
    is_preferred,
    reduce_counts,
    requests,
    turns,
)
from admission.engine.ledger import Charge, Ledger
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Check,
    CheckState,
    ClusterQueue,
    Cohort,
    Detail,
    Flavor,
    FlavorQuotas,
    FlavorResource,
    Fungibility,
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
    Rules,
    Taint,
    Toleration,
    Topology,
    TopologyRequest,
    Transformation,
    Workload,
)
from admission.engine.project import sentence
from admission.engine.quota import QuotaNode
from admission.names import HOSTNAME_LABEL

QUOTA_ONLY = replace(MUSTER, capacity_unless_elastic=False)
"""Nodes are left out, unless a flavor has a topology."""
FAIR = replace(QUOTA_ONLY, promises=False)
CLASSICAL = replace(FAIR, fair_sharing=False)


def group(covered: Sequence[str], **flavors: Sequence[Quota | int]) -> ResourceGroup:
    return ResourceGroup(
        tuple(covered),
        tuple(
            FlavorQuotas(
                name,
                tuple((r, q if isinstance(q, Quota) else Quota(q)) for r, q in zip(covered, quotas, strict=True)),
            )
            for name, quotas in flavors.items()
        ),
    )


def gang(*pod_sets: PodSet, **more: Any) -> Workload:
    return Workload("ns", "gang", uid="u", pod_sets=pod_sets, **more)


def pods(name: str = "main", count: int = 1, each: Mapping[str, int] | None = None, **more: Any) -> PodSet:
    shape = {key: more.pop(key) for key in ("node_selector", "affinity", "tolerations") if key in more}
    return PodSet(name, count, PodShape(requests=tuple(sorted((each or {}).items())), **shape), **more)


class Setting:
    """A queue `q`, its flavors and what is used, ready to be asked."""

    def __init__(
        self,
        *groups: ResourceGroup,
        flavors: Sequence[Flavor] = (),
        others: Sequence[ClusterQueue] = (),
        cohorts: Sequence[Cohort] = (),
        used: Mapping[str, Mapping[FlavorResource, int]] | None = None,
        rules: Rules = QUOTA_ONLY,
        nodes: Sequence[Node] = (),
        topologies: Sequence[Topology] = (),
        **queue: Any,
    ) -> None:
        self.queue = ClusterQueue("q", groups=groups, **queue)
        named = {f.name: Flavor(f.name) for g in groups for f in g.flavors}
        self.flavors = {**named, **{flavor.name: flavor for flavor in flavors}}
        self.rules = rules
        self.ledger = Ledger(rules)
        self.ledger.set_queues([self.queue, *others], cohorts)
        for of, amounts in (used or {}).items():
            self.ledger.charge(Charge(("used", of), of, of, tuple(amounts.items())))
        self.topologies = {topology.name: topology for topology in topologies}
        for topology in topologies:
            self.ledger.nodes.put_topology(topology)
        for node in nodes:
            self.ledger.nodes.put_node(node)
        self.asked: list[tuple[FlavorResource, int]] = []

    def assign(
        self, workload: Workload, cursor: Cursor = (), answer: tuple[Mode, int] = (Mode.PREEMPT, 0), **more: Any
    ) -> Assignment:
        def oracle(_: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
            self.asked.append((fr, amount))
            return answer

        told: Oracle = more.pop("oracle", oracle)
        return assign(
            self.ledger,
            self.queue,
            requests(workload, self.queue, self.rules),
            cursor,
            told,
            workload=workload,
            flavors=self.flavors,
            rules=self.rules,
            topologies=self.topologies,
            **more,
        )


def chosen(assignment: Assignment) -> dict[str, dict[str, str]]:
    return {c.name: {r: f.flavor for r, f in c.flavors.items()} for c in assignment.pod_sets}


TWO = group(["gpu"], one=[4], two=[8])


HARD, SOFT = Taint("k", "v", "NoExecute"), Taint("k", "v", "PreferNoSchedule")
TAINTED, SOFTLY = Flavor("one", node_taints=(HARD,)), Flavor("one", node_taints=(SOFT,))
ZONED = Flavor("one", node_labels=(("zone", "a"),))
IN_A, IN_B = (Requirement("zone", "In", ("a",)),), (Requirement("zone", "In", ("b",)),)
ELSEWHERE = (Requirement("other", "Exists"),)


@pytest.mark.parametrize(
    ("shape", "flavor", "detail"),
    [
        ({}, TAINTED, Detail.FLAVOR_TAINT),
        ({}, SOFTLY, None),
        ({"tolerations": (Toleration("k", "Equal", "v"),)}, TAINTED, None),
        ({"tolerations": (Toleration("k", "Equal", "w"),)}, TAINTED, Detail.FLAVOR_TAINT),
        ({"tolerations": (Toleration("k", "Exists", "", "NoSchedule"),)}, TAINTED, Detail.FLAVOR_TAINT),
        ({"tolerations": (Toleration("", "Exists"),)}, TAINTED, None),
        ({"tolerations": (Toleration("k", "Exists", seconds=3600),)}, TAINTED, None),
        ({}, replace(TAINTED, tolerations=(Toleration("k", "Exists"),)), None),
        ({"node_selector": (("zone", "b"),)}, ZONED, Detail.FLAVOR_AFFINITY),
        ({"node_selector": (("other", "b"),)}, ZONED, None),
        ({"affinity": (IN_B,)}, ZONED, Detail.FLAVOR_AFFINITY),
        ({"affinity": (IN_B, IN_A)}, ZONED, None),
        # A term that says nothing of this flavor's keys leaves every flavor open.
        ({"affinity": (IN_B, ELSEWHERE)}, ZONED, None),
    ],
)
def test_a_flavor_whose_nodes_the_pods_could_never_use_is_passed_over(
    shape: dict[str, Any], flavor: Flavor, detail: Detail | None
) -> None:
    got = Setting(TWO, flavors=[flavor]).assign(gang(pods(each={"gpu": 1}, **shape)))
    assert got.mode is Mode.FIT
    assert chosen(got)["main"]["gpu"] == ("one" if detail is None else "two")
    if detail is not None:
        (short,) = got.pod_sets[0].attempts[0].shortfalls
        assert short.detail is detail
        assert (detail is Detail.FLAVOR_AFFINITY) is ("zone" in short.limited_by)
        assert (detail is Detail.FLAVOR_AFFINITY) is short.limited_by.endswith("; its nodes have a")


@pytest.mark.parametrize(
    ("requirement", "labels", "good"),
    [
        (Requirement("k", "In", ("a", "b")), {"k": "b"}, True),
        (Requirement("k", "In", ("a",)), {}, False),
        (Requirement("k", "NotIn", ("a",)), {}, True),
        (Requirement("k", "NotIn", ("a",)), {"k": "a"}, False),
        (Requirement("k", "Exists"), {"k": ""}, True),
        (Requirement("k", "DoesNotExist"), {"k": ""}, False),
        (Requirement("k", "Gt", ("3",)), {"k": "4"}, True),
        (Requirement("k", "Gt", ("3",)), {"k": "3"}, False),
        (Requirement("k", "Lt", ("3",)), {"k": "2"}, True),
        (Requirement("k", "Lt", ("3",)), {"k": "x"}, False),
        (Requirement("k", "Lt", ("3",)), {}, False),
        (Requirement("k", "Gt", ("3",)), {"k": "1_000"}, False),
        (Requirement("k", "Lt", ("1_000",)), {"k": "3"}, False),
        (Requirement("k", "Gt", ("3",)), {"k": "9" * 20}, False),
    ],
)
def test_match_expressions(requirement: Requirement, labels: dict[str, str], good: bool) -> None:
    assert holds(requirement, labels) is good


# ---------------------------------------------------------------- modes and fungibility


def borrower(**queue: Any) -> Setting:
    """`one` can be had by borrowing, `two` needs eviction, `three` fits."""
    return Setting(
        group(["gpu"], one=[2], two=[4], three=[4]),
        cohort="c",
        others=[ClusterQueue("other", "c", groups=(group(["gpu"], one=[4], two=[0], three=[0]),))],
        used={"q": {("two", "gpu"): 3}},
        **queue,
    )


@pytest.mark.parametrize(
    ("fungibility", "flavor", "mode", "tried"),
    [
        (Fungibility(), "one", Mode.FIT, 0),
        (Fungibility(stop_when_borrowing=False), "three", Mode.FIT, -1),
        (Fungibility(stop_when_borrowing=False, stop_when_preempting=True), "two", Mode.PREEMPT, 1),
    ],
)
def test_the_scan_stops_where_the_queue_lets_it(fungibility: Fungibility, flavor: str, mode: Mode, tried: int) -> None:
    got = borrower(fungibility=fungibility).assign(gang(pods(each={"gpu": 4})))
    choice = got.pod_sets[0].flavors["gpu"]
    assert (choice.flavor, choice.mode, choice.tried, got.mode) == (flavor, mode, tried, mode)


@pytest.mark.parametrize(
    ("prefer_eviction", "flavor"),
    [(False, "one"), (True, "two")],
)
def test_preference_decides_between_borrowing_and_evicting(prefer_eviction: bool, flavor: str) -> None:
    setting = Setting(
        group(["gpu"], one=[2], two=[4]),
        cohort="c",
        others=[ClusterQueue("other", "c", groups=(group(["gpu"], one=[4], two=[0]),))],
        used={"q": {("two", "gpu"): 3}},
        fungibility=Fungibility(stop_when_borrowing=False, preempt_over_borrow=prefer_eviction),
    )
    got = setting.assign(gang(pods(each={"gpu": 4})))
    assert chosen(got)["main"]["gpu"] == flavor


def test_who_finds_no_victims_is_below_all_that_could_go() -> None:
    liking = Fungibility(preempt_over_borrow=True)
    assert is_preferred((Mode.PREEMPT, 3), (Mode.NO_CANDIDATES, 0), liking)
    assert not is_preferred((Mode.NO_CANDIDATES, 0), (Mode.FIT, 9), liking)
    assert is_preferred((Mode.NO_CANDIDATES, 0), (Mode.NO_FIT, 0), liking)
    assert not is_preferred((Mode.NO_FIT, 0), (Mode.NO_FIT, 1), liking)


def test_the_cursor_goes_on_behind_the_flavor_tried_last_and_wraps_at_the_end() -> None:
    setting = borrower(fungibility=Fungibility())
    first = setting.assign(gang(pods(each={"gpu": 4})))
    assert first.cursor == (("main", "gpu", 0),)
    assert first.pending_flavors
    second = setting.assign(gang(pods(each={"gpu": 4})), first.cursor)
    assert chosen(second)["main"]["gpu"] == "three"  # `two` needs eviction, and the queue goes on from that
    assert second.cursor == (("main", "gpu", -1),)
    assert not second.pending_flavors
    assert chosen(setting.assign(gang(pods(each={"gpu": 4})), second.cursor)) == chosen(first)


@pytest.mark.parametrize(
    ("amount", "policy", "rules", "mode", "reason"),
    [
        (4, Preemption(), CLASSICAL, Mode.PREEMPT, None),  # within nominal: its own queue may give way
        (6, Preemption(), CLASSICAL, Mode.NO_FIT, Reason.WAITING_FOR_QUOTA),  # borrowing, and no policy lets it evict
        (6, Preemption(borrow_within_cohort=PreemptionPolicy.LOWER_PRIORITY), CLASSICAL, Mode.PREEMPT, None),
        (6, Preemption(), FAIR, Mode.PREEMPT, None),  # preset: reclaim unless said otherwise
        (6, Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER), FAIR, Mode.NO_FIT, Reason.WAITING_FOR_QUOTA),
        (9, Preemption(), FAIR, Mode.NO_FIT, Reason.EXCEEDS_MAX_QUOTA),
        # It waits for what becomes free, as everybody: the search says that nobody may go for it.
        (6, Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER), QUOTA_ONLY, Mode.PREEMPT, None),
    ],
)
def test_eviction_is_thought_of_only_where_some_policy_allows_it(
    amount: int, policy: Preemption, rules: Rules, mode: Mode, reason: Reason | None
) -> None:
    setting = Setting(
        group(["gpu"], one=[4]),
        cohort="c",
        others=[ClusterQueue("other", "c", groups=(group(["gpu"], one=[4]),))],
        used={"other": {("one", "gpu"): 5}},
        preemption=policy,
        rules=rules,
    )
    got = setting.assign(gang(pods(each={"gpu": amount})))
    assert (got.mode, got.reason) == (mode, reason)
    assert setting.asked == ([(("one", "gpu"), amount)] if mode is Mode.PREEMPT else [])


@pytest.mark.parametrize(("amount", "mode"), [(6, Mode.PREEMPT), (9, Mode.NO_FIT)])
def test_what_a_lower_cohort_has_is_taken_back_from_who_borrows_it_further_up(amount: int, mode: Mode) -> None:
    """As Kueue, though it is more than nominal; what is more than that cohort has is nobody's to take back."""
    setting = Setting(
        group(["gpu"], one=[4]),
        cohort="inner",
        cohorts=[Cohort("inner", "all"), Cohort("all")],
        others=[
            ClusterQueue("other", "inner", groups=(group(["gpu"], one=[4]),)),
            ClusterQueue("above", "all", groups=(group(["gpu"], one=[4]),)),
        ],
        used={"above": {("one", "gpu"): 8}},
        rules=CLASSICAL,
    )
    assert setting.assign(gang(pods(each={"gpu": amount}))).mode is mode


def test_numbers_behind_a_no() -> None:
    setting = Setting(
        group(["gpu"], one=[Quota(4, borrowing_limit=2)]),
        cohort="c",
        others=[ClusterQueue("other", "c", groups=(group(["gpu"], one=[10]),))],
        used={"q": {("one", "gpu"): 3}},
        rules=replace(QUOTA_ONLY, fair_sharing=False),
    )
    (short,) = setting.assign(gang(pods(count=5, each={"gpu": 1}))).why().shortfalls
    assert (short.detail, short.limited_by) == (Detail.BORROWING_LIMIT, "q")
    assert (short.requested, short.nominal, short.used, short.available, short.borrowable) == (5, 4, 3, 3, 2)
    never = setting.assign(gang(pods(count=7, each={"gpu": 1})))
    assert never.reason is Reason.EXCEEDS_MAX_QUOTA
    assert never.why().detail is Detail.NEVER_FITS_QUOTA
    full = Setting(group(["gpu"], one=[4]), used={"q": {("one", "gpu"): 3}}).assign(gang(pods(each={"gpu": 2})))
    assert (full.why().reason, full.why().detail) == (Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT)


# ---------------------------------------------------------------- what is asked


def test_pod_sets_are_charged_on_top_of_each_other() -> None:
    setting = Setting(TWO)
    got = setting.assign(gang(pods("a", 3, {"gpu": 1}), pods("b", 1, {"gpu": 2}), pods("c", 1, {"gpu": 1})))
    assert chosen(got) == {"a": {"gpu": "one"}, "b": {"gpu": "two"}, "c": {"gpu": "one"}}
    assert got.usage == {("one", "gpu"): 4, ("two", "gpu"): 2}


def test_a_topology_group_shares_its_flavor() -> None:
    together = TopologyRequest(group="g")
    got = Setting(TWO).assign(
        gang(pods("leader", 1, {"gpu": 1}, topology=together), pods("workers", 4, {"gpu": 1}, topology=together))
    )
    assert chosen(got) == {"leader": {"gpu": "two"}, "workers": {"gpu": "two"}}


def test_groups_of_resources_choose_apart_and_resources_of_a_group_together() -> None:
    setting = Setting(group(["cpu", "gpu"], one=[8000, 1], two=[8000, 8]), group(["license"], pool=[5]))
    got = setting.assign(gang(pods(count=2, each={"cpu": 1000, "gpu": 1, "license": 2})))
    assert chosen(got)["main"] == {"cpu": "two", "gpu": "two", "license": "pool"}
    assert dict(got.admission("q").pod_sets[0].usage) == {"cpu": 2000, "gpu": 2, "license": 4}


@pytest.mark.parametrize(
    ("ignore", "each", "mode"),
    [
        (False, {"gpu": 1, "odd": 1}, Mode.NO_FIT),
        (True, {"gpu": 1, "odd": 1}, Mode.FIT),
        (False, {"gpu": 1, "odd": 0}, Mode.FIT),
    ],
)
def test_a_resource_that_the_queue_does_not_cover(ignore: bool, each: dict[str, int], mode: Mode) -> None:
    got = Setting(TWO, rules=replace(QUOTA_ONLY, ignore_undeclared=ignore)).assign(gang(pods(each=each)))
    assert got.mode is mode
    if mode is Mode.FIT:
        assert got.usage == {("one", "gpu"): 1}
    else:
        assert (got.reason, got.why().detail) == (Reason.NO_MATCHING_FLAVOR, Detail.RESOURCE_NOT_COVERED)


def test_pods_are_counted_where_the_queue_covers_them() -> None:
    setting = Setting(group(["pods"], f=[3]))
    assert setting.assign(gang(pods(count=3))).usage == {("f", "pods"): 3}
    assert setting.assign(gang(pods(count=4))).mode is Mode.NO_FIT


def test_reclaimable_pods_are_not_asked_for_again() -> None:
    setting = Setting(group(["gpu"], f=[3]))
    got = setting.assign(gang(pods(count=5, each={"gpu": 1}), reclaimable=(("main", 2),)))
    assert (got.mode, got.pod_sets[0].request.count) == (Mode.FIT, 3)


def test_excluded_prefixes_and_transformations() -> None:
    rules = replace(
        QUOTA_ONLY,
        excluded_prefixes=("noise.example/",),
        transformations=(
            Transformation("mig.example/1g", (("memory", Fraction(5)), ("credits", Fraction(1, 2))), retain=False),
            Transformation("cpu", (("core-hours", Fraction(3, 2)),), multiply_by="hours"),
            Transformation("dropped", retain=False),
            Transformation("seats", (("cpu", Fraction(1)),), multiply_by="cpu", retain=False),
        ),
    )
    workload = gang(
        pods(
            count=2,
            each={
                "noise.example/a": 4,
                "mig.example/1g": 3,
                "cpu": 500,
                "hours": 4,
                "dropped": 1,
                "memory": 1,
                "seats": 3,
            },
        )
    )
    (got,) = requests(workload, ClusterQueue("q"), rules)
    assert dict(got.each) == {"memory": 16, "credits": 2, "cpu": 2000, "core-hours": 3, "hours": 4}
    assert dict(got.total) == {"memory": 32, "credits": 4, "cpu": 4000, "core-hours": 6, "hours": 8}


def test_allowed_flavors_and_pinned_flavors_narrow_the_scan() -> None:
    setting = Setting(TWO)
    assert (
        chosen(setting.assign(gang(pods(each={"gpu": 1}), allowed_flavors=frozenset({"two"}))))["main"]["gpu"] == "two"
    )
    assert chosen(setting.assign(gang(pods(each={"gpu": 1})), pinned={"main": {"gpu": "two"}}))["main"]["gpu"] == "two"
    none = setting.assign(gang(pods(each={"gpu": 1}), allowed_flavors=frozenset()))
    assert (none.mode, none.reason) == (Mode.NO_FIT, Reason.NO_MATCHING_FLAVOR)


THREE = group(["gpu"], one=[4], two=[8], three=[8])


@pytest.mark.parametrize(
    ("out", "full", "first", "flavor"),
    [
        ("", "", "one", "one"),
        ("one", "", "two", "two"),
        ("two", "", "one", "one"),
        ("one two", "", "three", "three"),
        ("one two three", "", "one", "one"),
        ("two three one", "", "two", "two"),
        ("gone one", "", "two", "two"),
        # Only those have quota on which it got no nodes.
        ("two one", "three", "three", "two"),
        ("one two", "two three", "three", "one"),
    ],
)
def test_flavors_on_which_it_got_no_nodes_are_tried_last_in_turn(out: str, full: str, first: str, flavor: str) -> None:
    setting = Setting(THREE, used={"q": {(name, "gpu"): 8 for name in full.split()}})
    workload = gang(pods(each={"gpu": 2}), out_of_stock=tuple(out.split()))
    assert chosen(setting.assign(workload))["main"]["gpu"] == flavor
    assert demand(workload, setting.queue, MUSTER).first == {(first, "gpu"): 2}


def test_of_each_group_the_flavors_that_a_gang_could_use_are_told_in_turn() -> None:
    setting = Setting(
        group(["gpu"], one=[4], two=[8], three=[8]),
        group(["cpu"], small=[4], large=[4]),
        flavors=[Flavor("three", node_labels=(("zone", "a"),)), Flavor("large", node_taints=(HARD,))],
    )

    def told(out: tuple[str, ...], **more: Any) -> list[str]:
        workload = gang(pods(each={"gpu": 1}, node_selector=(("zone", "b"),)), pods("other"), out_of_stock=out, **more)
        known = setting.flavors, setting.rules, setting.topologies
        return [" ".join(names) for names in turns(setting.ledger, setting.queue, workload, ["main"], *known)]

    assert told(()) == ["one two", "small"]
    assert told(("one", "small")) == ["two one", "small"]
    assert told(("one",), allowed_flavors=frozenset({"one"})) == ["one", ""]
    setting.ledger.set_queues([], [])
    assert told(()) == []


def test_a_flavor_that_nobody_has_is_said() -> None:
    setting = Setting(TWO)
    del setting.flavors["one"]
    got = setting.assign(gang(pods(each={"gpu": 1})))
    assert chosen(got)["main"]["gpu"] == "two"
    assert got.pod_sets[0].attempts[0].shortfalls[0].detail is Detail.FLAVOR_MISSING


@pytest.mark.parametrize(("feasible", "expected"), [(10, 10), (7, 7), (4, 4), (3, None)])
def test_partial_admission_finds_the_largest_count(feasible: int, expected: int | None) -> None:
    tried: list[int] = []

    def attempt(counts: Mapping[str, int]) -> int | None:
        tried.append(counts["w"])
        return counts["w"] if counts["w"] <= feasible else None

    got = reduce_counts([pods("w", 10, min_count=4), pods("d", 1)], attempt)
    assert got == expected
    assert all(4 <= count <= 10 for count in tried)
    assert reduce_counts([pods("w", 10)], attempt) is None


def test_a_queue_that_is_not_in_the_tree_fits_nothing() -> None:
    setting = Setting(TWO)
    setting.ledger.set_queues([], [])
    got = setting.assign(gang(pods(each={"gpu": 1})))
    assert (got.mode, got.reason) == (Mode.NO_FIT, Reason.MISCONFIGURED)


# ---------------------------------------------------------------- nodes


def node(name: str, gpus: int, **labels: str) -> Node:
    return Node(
        name=name,
        labels=tuple(sorted({HOSTNAME_LABEL: name, **labels}.items())),
        allocatable=(("gpu", gpus), ("pods", 10)),
    )


A, B = Flavor("one", node_labels=(("kind", "a"),)), Flavor("two", node_labels=(("kind", "b"),))


def on_nodes(*nodes: Node, flavors: Sequence[Flavor] = (A, B), rules: Rules = MUSTER, **more: Any) -> Setting:
    return Setting(TWO, flavors=flavors, rules=rules, nodes=nodes, **more)


def test_the_nodes_decide_for_every_flavor() -> None:
    setting = on_nodes(node("n1", 4, kind="a"))
    got = setting.assign(gang(pods(count=2, each={"gpu": 2})))
    assert got.mode is Mode.FIT
    topology = got.admission("q").pod_sets[0].topology
    assert topology is not None
    assert [(domain.values, domain.count) for domain in topology.domains] == [(("n1",), 2)]


def test_a_flavor_whose_nodes_are_too_small_is_left_for_the_next() -> None:
    setting = on_nodes(node("n1", 1, kind="a"), node("n2", 1, kind="a"), node("m", 8, kind="b"))
    got = setting.assign(gang(pods(count=1, each={"gpu": 2})))
    assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, "two")


def test_a_flavor_whose_nodes_are_too_small_is_left_for_one_that_others_hold() -> None:
    """Of the first quota is free: it would be waited for, for ever."""
    setting = on_nodes(node("n1", 1, kind="a"), node("m", 8, kind="b"), used={"q": {("two", "gpu"): 8}})
    got = setting.assign(gang(pods(count=1, each={"gpu": 2})))
    assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.PREEMPT, "two")


@pytest.mark.parametrize("state", CheckState)
def test_what_a_check_adds_counts_once_it_is_ready(state: CheckState) -> None:
    check = Check("c", state, node_selectors=(("main", (("disk", "fast"),)),))
    setting = on_nodes(node("n1", 4, kind="a"), node("m", 4, kind="b", disk="fast"))
    got = setting.assign(gang(pods(each={"gpu": 1}), checks=(check,)))
    assert chosen(got)["main"]["gpu"] == ("two" if state is CheckState.READY else "one")


@pytest.mark.parametrize("taken", [False, True])
def test_a_pod_set_that_asks_for_no_quota_goes_with_the_rest_to_nodes_that_hold_both(taken: bool) -> None:
    """The nodes of the first flavor could never hold it, or are taken."""
    first = node("n1", 4, kind="a", **({"disk": "fast"} if taken else {}))
    setting = on_nodes(first, node("n2", 4, kind="a"), node("m", 4, kind="b", disk="fast"))
    if taken:
        setting.ledger.nodes.put_pod(PodUsage(("x", "pods"), "x", "n1", (("pods", 10),)))
    side = pods("side", node_selector=(("disk", "fast"),))
    got = setting.assign(gang(side, pods(each={"gpu": 1})))
    assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, "two")


PRICES = (Flavor("spot", node_labels=(("price", "low"),)), Flavor("demand", node_labels=(("price", "high"),)))
KINDS = (Flavor("h100", node_labels=(("kind", "h"),)), Flavor("a100", node_labels=(("kind", "a"),)))
CPUS, GPUS = group(["cpu"], spot=[100], demand=[100]), group(["gpu"], h100=[100], a100=[100])
ANY_CPU, ONE_KIND = group(["cpu"], anywhere=[100]), group(["gpu"], h100=[100])
PRICED = [
    Node(
        f"{price}-{kind}",
        (("kind", kind), (HOSTNAME_LABEL, f"{price}-{kind}"), ("price", price)),
        allocatable=(("cpu", 9), ("gpu", 4), ("pods", 9)),
    )
    for price in ("low", "high")
    for kind in ("h", "a")
]
"""One node of each."""


@pytest.mark.parametrize("others", ["small", "full"])
@pytest.mark.parametrize(
    ("groups", "price", "kind", "flavors"),
    [
        ((ANY_CPU, GPUS), "low", "h", ("anywhere", "h100")),
        ((ANY_CPU, GPUS), "low", "a", ("anywhere", "a100")),
        ((CPUS, ONE_KIND), "low", "h", ("spot", "h100")),
        ((CPUS, ONE_KIND), "high", "h", ("demand", "h100")),
        ((CPUS, GPUS), "low", "h", ("spot", "h100")),
        ((CPUS, GPUS), "low", "a", ("spot", "a100")),
        ((CPUS, GPUS), "high", "h", ("demand", "h100")),
        ((CPUS, GPUS), "high", "a", ("demand", "a100")),
        ((CPUS, GPUS), "", "", ("spot", "h100")),
    ],
)
def test_flavors_of_several_groups_are_tried_together(
    groups: tuple[ResourceGroup, ...], price: str, kind: str, flavors: tuple[str, str], others: str
) -> None:
    """One node, of this price and kind, has room; or none."""
    nodes = []
    for one in PRICED:
        small = others == "small" and one.name != f"{price}-{kind}"
        nodes.append(replace(one, allocatable=(("cpu", 9), ("gpu", 1 if small else 4), ("pods", 9))))
    setting = Setting(*groups, flavors=(*PRICES, *KINDS), nodes=nodes, rules=MUSTER)
    for one in nodes if others == "full" else ():
        if one.name != f"{price}-{kind}":
            setting.ledger.nodes.put_pod(PodUsage(("x", one.name), one.name, one.name, (("gpu", 3),)))
    got = setting.assign(gang(pods(each={"cpu": 1, "gpu": 2})))
    assert (got.mode is Mode.FIT) == bool(price)
    assert tuple(chosen(got)["main"].values()) == flavors if price else got.mode is Mode.NO_FIT


def test_a_flavor_that_is_liked_less_is_left_with_all_others_when_the_one_liked_more_never_holds_it() -> None:
    """It borrows of the flavor of which there are nodes, and would rather evict from the other."""
    setting = Setting(
        CPUS,
        group(["gpu"], h100=[0], a100=[100]),
        flavors=(*PRICES, *KINDS),
        others=[ClusterQueue("other", groups=(ONE_KIND,), cohort="all")],
        nodes=[one for one in PRICED if one.name.endswith("-h")],
        rules=MUSTER,
        cohort="all",
        fungibility=Fungibility(stop_when_borrowing=False, preempt_over_borrow=True),
    )
    got = setting.assign(gang(pods(each={"cpu": 1, "gpu": 2})))
    assert (got.mode, chosen(got)["main"]) == (Mode.FIT, {"cpu": "spot", "gpu": "h100"})


def test_each_of_many_pod_sets_is_tried_with_flavors_of_several_groups_together() -> None:
    names = tuple(f"part-{i}" for i in range(18))
    nodes = [replace(one, allocatable=(("cpu", 99), ("gpu", 99), ("pods", 99))) for one in PRICED]
    setting = Setting(CPUS, GPUS, flavors=(*PRICES, *KINDS), nodes=nodes, rules=MUSTER)
    for one in nodes[:-1]:
        setting.ledger.nodes.put_pod(PodUsage(("x", one.name), one.name, one.name, (("gpu", 99),)))
    got = setting.assign(gang(*(pods(count=1, each={"cpu": 1, "gpu": 1}, name=name) for name in names)))
    assert got.mode is Mode.FIT
    assert {tuple(chosen(got)[name].values()) for name in names} == {("demand", "a100")}


def test_full_nodes_of_all_flavors_of_several_groups_mean_eviction_from_the_first() -> None:
    setting = Setting(CPUS, GPUS, flavors=(*PRICES, *KINDS), nodes=PRICED, rules=MUSTER)
    for i in range(4):
        placed = setting.assign(gang(pods(each={"cpu": 1, "gpu": 4}))).admission("q")
        per_pod = (("main", (("cpu", 1), ("gpu", 4), ("pods", 1))),)
        setting.ledger.charge(Charge(("ns", f"g{i}"), f"g{i}", "q", (), placed, per_pod))
    got = setting.assign(gang(pods(each={"cpu": 1, "gpu": 4})))
    assert (got.mode, chosen(got)["main"]) == (Mode.PREEMPT, {"cpu": "spot", "gpu": "h100"})
    assert got.need_preemption() == {("spot", "cpu"), ("h100", "gpu")}


def test_no_flavor_whose_nodes_could_ever_hold_it() -> None:
    setting = on_nodes(node("n1", 1, kind="a"), node("m", 1, kind="b"))
    got = setting.assign(gang(pods(count=1, each={"gpu": 2})))
    assert (got.mode, got.reason) == (Mode.NO_FIT, Reason.PLACEMENT_FAILED)
    assert got.why().reason is Reason.PLACEMENT_FAILED
    assert {misfit.flavor for misfit in got.why().misfits} == {"one", "two"}


def test_no_nodes_at_all_fit_nothing_unless_the_flavor_is_elastic() -> None:
    assert on_nodes().assign(gang(pods(each={"gpu": 1}))).mode is Mode.NO_FIT
    elastic = on_nodes(flavors=[A, replace(B, elastic=True)])
    got = elastic.assign(gang(pods(each={"gpu": 1})))
    assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, "two")
    assert got.admission("q").pod_sets[0].topology is None


@pytest.mark.parametrize("each", [{"gpu": 1}, {}], ids=str)
@pytest.mark.parametrize("elastic", [True, False])
def test_what_no_quota_can_count_is_admitted_nowhere(each: dict[str, int], elastic: bool) -> None:
    setting = on_nodes(node("n1", 4, kind="a"), flavors=[replace(A, elastic=elastic), replace(B, elastic=elastic)])
    plain = pods(each=each)
    got = setting.assign(
        gang(pods("first", each={"gpu": 1}), replace(plain, shape=replace(plain.shape, uncounted="no")))
    )
    assert got.mode is Mode.NO_FIT
    assert [(m.pod_set, m.detail, m.message) for m in got.why().misfits] == [("main", Detail.CONSTRAINT_REFUSED, "no")]
    assert setting.assign(gang(pods("first", each={"gpu": 1}), plain)).mode is Mode.FIT
    none = replace(plain, count=0, shape=replace(plain.shape, uncounted="no"))
    assert setting.assign(gang(pods("first", each={"gpu": 1}), none)).mode is Mode.FIT


def test_full_nodes_of_both_flavors_mean_eviction_of_the_first() -> None:
    setting = on_nodes(node("n1", 4, kind="a"), node("m", 4, kind="b"))
    running = setting.assign(gang(pods(each={"gpu": 4})))
    for name in ("one", "two"):
        placed = running.admission("q") if name == "one" else None
        if placed is None:
            placed = setting.assign(gang(pods(each={"gpu": 4}))).admission("q")
        # Charged on nodes only, so that quota is not what is short.
        setting.ledger.charge(Charge(("ns", name), name, "q", (), placed, (("main", (("gpu", 4), ("pods", 1))),)))
    got = setting.assign(gang(pods(each={"gpu": 4})))
    assert got.mode is Mode.PREEMPT
    assert chosen(got)["main"]["gpu"] == "one"
    assert got.need_preemption() == {("one", "gpu")}
    assert got.why().reason is Reason.PLACEMENT_FAILED


def test_a_claim_of_its_own_is_no_obstacle() -> None:
    setting = on_nodes(node("n1", 4, kind="a"))
    workload = gang(pods(each={"gpu": 4}))
    admission = setting.assign(workload).admission("q")
    claim = Charge(
        workload.key, "u", "q", ((("one", "gpu"), 4),), admission, (("main", (("gpu", 4), ("pods", 1))),), "claim"
    )
    setting.ledger.claim(claim, until=1)
    assert setting.assign(workload).mode is Mode.FIT
    other = replace(workload, name="other", uid="v")
    assert setting.assign(other, answer=(Mode.NO_CANDIDATES, 0)).mode is not Mode.FIT


@pytest.mark.parametrize(
    ("rules", "request_", "flavor"),
    [
        (KUEUE, TopologyRequest(required="rack"), "two"),
        (KUEUE, TopologyRequest(required="block"), None),
        (KUEUE, None, "one"),
        (MUSTER, TopologyRequest(required="rack"), "two"),
        (MUSTER, TopologyRequest(required=HOSTNAME_LABEL), "one"),
        (MUSTER, TopologyRequest(required="block"), None),
        (MUSTER, None, "one"),
    ],
)
def test_a_flavor_without_the_level_that_is_asked_for(
    rules: Rules, request_: TopologyRequest | None, flavor: str | None
) -> None:
    setting = on_nodes(
        node("n1", 4, kind="a"),
        node("m", 4, kind="b", rack="r"),
        flavors=[A, replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
        rules=rules,
    )
    got = setting.assign(gang(pods(each={"gpu": 1}, topology=request_)))
    if flavor is None:
        assert (got.mode, got.reason) == (Mode.NO_FIT, Reason.NO_MATCHING_FLAVOR)
    else:
        assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, flavor)


@pytest.mark.parametrize(
    ("count", "request_", "flavor"),
    [
        (2, TopologyRequest(required="rack"), "two"),
        (2, TopologyRequest(required=HOSTNAME_LABEL), "two"),
        (1, TopologyRequest(required="rack"), "two"),
        (1, TopologyRequest(required=HOSTNAME_LABEL), "one"),
        (2, TopologyRequest(slice_required="rack", slice_size=1), "two"),
        (2, TopologyRequest(required="block"), None),
        (2, TopologyRequest(preferred="rack"), "one"),
        (2, TopologyRequest(unconstrained=True), "one"),
        (2, None, "one"),
    ],
)
def test_who_must_stand_together_is_given_no_flavor_whose_nodes_nobody_chooses(
    count: int, request_: TopologyRequest | None, flavor: str | None
) -> None:
    setting = on_nodes(
        node("m", 4, kind="b", rack="r"),
        flavors=[replace(A, topology="t", elastic=True), replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
    )
    got = setting.assign(gang(pods(count=count, each={"gpu": 1}, topology=request_)))
    if flavor is None:
        assert (got.mode, got.reason) == (Mode.NO_FIT, Reason.NO_MATCHING_FLAVOR)
        assert "Flavor one: nodes of an elastic flavor are not chosen" in sentence(got.why())
    else:
        assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, flavor)


def test_what_only_comes_with_its_nodes_may_be_of_an_elastic_flavor() -> None:
    """As licences that count beside devices, whose nodes are chosen."""
    setting = Setting(
        group(["gpu"], two=[100]),
        group(["licence"], one=[100]),
        nodes=[node("m", 4, kind="b", rack="r")],
        flavors=[replace(A, elastic=True, node_labels=()), replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
        rules=MUSTER,
    )
    got = setting.assign(gang(pods(each={"gpu": 1, "licence": 1}, topology=TopologyRequest(required="rack"))))
    assert chosen(got)["main"] == {"gpu": "two", "licence": "one"}


def test_who_asks_for_nothing_that_is_counted_goes_with_its_group_where_another_flavor_brings_the_nodes() -> None:
    """A leader without devices, whose workers have devices and licences."""
    labels = ((HOSTNAME_LABEL, "m"), ("kind", "b"), ("rack", "r"))
    setting = Setting(
        group(["gpu"], two=[100]),
        group(["licence"], one=[100]),
        nodes=[Node("m", labels, allocatable=(("cpu", 8), ("gpu", 4), ("licence", 4), ("pods", 10)))],
        flavors=[replace(A, elastic=True, node_labels=()), replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
        rules=replace(MUSTER, excluded_prefixes=("cpu",)),
    )
    together = TopologyRequest(required="rack", group="g")
    leader = pods("leader", each={"cpu": 1}, topology=together)
    got = setting.assign(gang(leader, pods("workers", 2, each={"gpu": 1, "licence": 1}, topology=together)))
    assert (got.mode, chosen(got)["workers"]) == (Mode.FIT, {"gpu": "two", "licence": "one"})


CREDITS = replace(MUSTER, transformations=(Transformation("gpu", (("credits", Fraction(2)),)),))


def test_what_devices_are_counted_as_beside_them_asks_for_no_level_of_its_own() -> None:
    """Their nodes are chosen by the flavor of the devices."""
    setting = Setting(
        group(["gpu"], two=[100]),
        group(["credits"], one=[100]),
        nodes=[node("m", 4, kind="b", rack="r")],
        flavors=[replace(A, node_labels=()), replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
        rules=CREDITS,
    )
    got = setting.assign(gang(pods(each={"gpu": 1}, topology=TopologyRequest(required="rack"))))
    assert (got.mode, chosen(got)["main"]) == (Mode.FIT, {"gpu": "two", "credits": "one"})


@pytest.mark.parametrize(("required", "mode"), [("rack", Mode.NO_FIT), ("", Mode.FIT)])
def test_who_must_stand_together_has_no_quota_by_credits_alone_whose_nodes_nobody_chooses(
    required: str, mode: Mode
) -> None:
    """Quota counts its devices as credits, and not as devices."""
    (counted,) = CREDITS.transformations
    setting = Setting(
        group(["credits"], one=[100]),
        nodes=[node("m", 4, kind="b", rack="r")],
        flavors=[replace(A, elastic=True)],
        rules=replace(CREDITS, transformations=(replace(counted, retain=False),)),
    )
    asked = TopologyRequest(required=required) if required else None
    got = setting.assign(gang(pods(count=2, each={"gpu": 1}, topology=asked)))
    assert got.mode is mode


@pytest.mark.parametrize(
    ("solid", "elastic", "fits"),
    [("memory", "cpu", True), ("cpu", "nvidia.com/gpu", False), ("nvidia.com/gpu", "cpu", True)],
)
def test_nodes_that_are_chosen_by_another_flavor_keep_a_level_of_a_topology(
    solid: str, elastic: str, fits: bool
) -> None:
    """Devices come with their nodes, whatever else is asked for."""
    amounts = (("cpu", 8), ("memory", 8), ("nvidia.com/gpu", 8), ("pods", 10))
    setting = Setting(
        group([solid], two=[100]),
        group([elastic], one=[100]),
        nodes=[Node("m", ((HOSTNAME_LABEL, "m"), ("kind", "b"), ("rack", "r")), allocatable=amounts)],
        flavors=[replace(A, elastic=True, node_labels=()), replace(B, topology="t")],
        topologies=[Topology("t", ("rack", HOSTNAME_LABEL))],
        rules=MUSTER,
    )
    got = setting.assign(gang(pods(count=2, each={solid: 1, elastic: 1}, topology=TopologyRequest(required="rack"))))
    assert (got.mode, got.reason) == ((Mode.FIT, None) if fits else (Mode.NO_FIT, Reason.NO_MATCHING_FLAVOR))
    if fits:
        assert got.admission("q").pod_sets[0].topology is not None


@pytest.mark.parametrize("tainted", ["one", "two"])
def test_of_flavors_to_choose_from_the_mildest_reason_is_told(tainted: str) -> None:
    """Of the other it asks too much."""
    taint = Flavor(tainted, node_taints=(Taint("key", "", "NoSchedule"),))
    got = Setting(group(["gpu"], one=[4], two=[4]), flavors=[taint]).assign(gang(pods(each={"gpu": 5})))
    assert (got.mode, got.reason) == (Mode.NO_FIT, Reason.EXCEEDS_MAX_QUOTA)


# Three flavors in order, each of nodes of its own: in no topology, in racks of two, in blocks of racks of three.
FABRICS = (
    Flavor("plain", node_labels=(("kind", "p"),)),
    Flavor("racks", node_labels=(("kind", "r"),), topology="flat"),
    Flavor("blocks", node_labels=(("kind", "b"),), topology="deep"),
)
NETS = (Topology("flat", ("rack", HOSTNAME_LABEL)), Topology("deep", ("block", "rack", HOSTNAME_LABEL)))
FABRIC_NODES = (
    *(node(f"p{i}", 8, kind="p") for i in range(2)),
    *(node(f"r{i}", 8, kind="r", rack=f"x{i // 2}") for i in range(4)),
    *(node(f"b{i}", 8, kind="b", rack=f"y{i // 3}", block=f"z{i // 6}") for i in range(12)),
)
ALL_THREE = group(["gpu"], plain=[1000], racks=[1000], blocks=[1000])


NO_BLOCK = (
    "plain: flavor has no topology, and so no level block; racks: topology flat has no level block (it has rack, "
    f"{HOSTNAME_LABEL}); blocks: 6 of 7"
)
NO_ZONE = (
    "plain: flavor has no topology, and so no level zone; racks: topology flat has no level zone (it has rack, "
    f"{HOSTNAME_LABEL}); blocks: topology deep has no level zone (it has block, rack, {HOSTNAME_LABEL})"
)


@pytest.mark.parametrize(
    ("asked", "count", "flavor", "hosts"),
    [
        # Who asks for no domain takes the first flavor whose nodes hold it, topology or not.
        (None, 2, "plain", "p0 p1"),
        (None, 4, "racks", "r0 r1 r2 r3"),
        (None, 5, "blocks", "b0 b1 b2 b3 b4"),
        (TopologyRequest(unconstrained=True), 2, "plain", "p0 p1"),
        (TopologyRequest(unconstrained=True), 3, "racks", "r0 r1 r2"),
        (TopologyRequest(required=HOSTNAME_LABEL), 1, "plain", "p0"),
        # A level is looked for in each flavor's own topology.
        (TopologyRequest(required="rack"), 2, "racks", "r0 r1"),
        (TopologyRequest(required="rack"), 3, "blocks", "b0 b1 b2"),
        (TopologyRequest(required="block"), 2, "blocks", "b0 b1"),
        (TopologyRequest(preferred="rack"), 2, "racks", "r0 r1"),
        (TopologyRequest(preferred="rack"), 3, "racks", "r0 r1 r2"),
        (TopologyRequest(preferred="rack"), 5, "blocks", "b0 b1 b2 b3 b4"),
        (TopologyRequest(preferred="block"), 1, "blocks", "b0"),
        (TopologyRequest(slice_required="rack", slice_size=2), 4, "racks", "r0 r1 r2 r3"),
        (TopologyRequest(slice_required="rack", slice_size=3), 3, "blocks", "b0 b1 b2"),
        (TopologyRequest(required="block", slice_required="rack", slice_size=2), 4, "blocks", "b0 b1 b3 b4"),
        # Nowhere, and of each flavor why.
        (
            TopologyRequest(required="rack"),
            4,
            "",
            "plain: flavor has no topology, and so no level rack; racks: 2 of 4; blocks: 3 of 4",
        ),
        (
            TopologyRequest(required="block"),
            7,
            "",
            NO_BLOCK,
        ),
        (
            TopologyRequest(required="zone"),
            1,
            "",
            NO_ZONE,
        ),
    ],
)
def test_flavors_of_different_topologies_are_tried_in_order(
    asked: TopologyRequest | None, count: int, flavor: str, hosts: str
) -> None:
    setting = Setting(ALL_THREE, flavors=FABRICS, rules=MUSTER, nodes=FABRIC_NODES, topologies=NETS)
    got = setting.assign(gang(pods(count=count, each={"gpu": 8}, topology=asked)))
    if flavor:
        assert (got.mode, chosen(got)["main"]["gpu"]) == (Mode.FIT, flavor)
        assert stands(got, "main") == hosts
        return
    assert got.mode is Mode.NO_FIT
    why = got.why()
    said = {short.flavor: short.limited_by for short in why.shortfalls if short.detail is Detail.FLAVOR_TOPOLOGY}
    said |= {misfit.flavor: f"{misfit.placeable} of {misfit.pods}" for misfit in why.misfits}
    assert "; ".join(f"{name}: {said[name]}" for name in ("plain", "racks", "blocks")) == hosts
    if hosts == NO_ZONE:
        assert sentence(why) == "; ".join(f"Flavor {part}" for part in hosts.split("; "))


def test_pod_sets_of_one_gang_may_get_flavors_of_different_topologies_and_a_group_gets_one() -> None:
    setting = Setting(ALL_THREE, flavors=FABRICS, rules=MUSTER, nodes=FABRIC_NODES, topologies=NETS)
    lead = pods("lead", 1, {"gpu": 8}, topology=TopologyRequest(required="block"))
    work = pods("work", 2, {"gpu": 8}, topology=TopologyRequest(required="rack"))
    rest = pods("rest", 1, {"gpu": 8})
    got = setting.assign(gang(lead, work, rest))
    assert got.mode is Mode.FIT
    assert chosen(got) == {"lead": {"gpu": "blocks"}, "work": {"gpu": "racks"}, "rest": {"gpu": "plain"}}
    assert [stands(got, name) for name in ("lead", "work", "rest")] == ["b0", "r0 r1", "p0"]
    together = [
        replace(of, topology=replace(of.topology, group="g")) if of.topology is not None else of for of in (lead, work)
    ]
    got = setting.assign(gang(*together))
    assert chosen(got) == {"lead": {"gpu": "blocks"}, "work": {"gpu": "blocks"}}
    assert {host for name in ("lead", "work") for host in stands(got, name).split()} == {"b0", "b1", "b2"}


def stands(got: Assignment, name: str) -> str:
    assignment = next(part.topology for part in got.admission("q").pod_sets if part.name == name)
    assert assignment is not None
    return " ".join(domain.values[-1] for domain in assignment.domains for _ in range(domain.count))


def test_nodes_that_are_chosen_later() -> None:
    setting = on_nodes(node("n1", 1, kind="a"))
    got = setting.assign(gang(pods(each={"gpu": 4})), delay=lambda flavor: flavor == "one")
    assert got.mode is Mode.FIT
    assert got.pod_sets[0].topology is None


# ---------------------------------------------------------------- any queue, any usage

amount = st.integers(0, 6)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Setting, Workload]:
    names = [f"f{i}" for i in range(draw(st.integers(1, 3)))]

    def quotas() -> ResourceGroup:
        limit = st.none() | amount
        return group(
            ["cpu", "gpu"],
            **{name: [Quota(draw(amount), draw(limit), draw(limit)) for _ in range(2)] for name in names},
        )

    used = {
        of: {(draw(st.sampled_from(names)), draw(st.sampled_from(["cpu", "gpu"]))): draw(amount)}
        for of in ("q", "other")
    }
    setting = Setting(
        quotas(),
        cohort=draw(st.sampled_from(["", "c"])),
        others=[ClusterQueue("other", "c", groups=(quotas(),))],
        used=used,
        fungibility=Fungibility(draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
        rules=draw(st.sampled_from([QUOTA_ONLY, KUEUE])),
    )
    sets = [
        pods(f"p{i}", draw(st.integers(0, 2)), {"cpu": draw(amount), "gpu": draw(amount)})
        for i in range(draw(st.integers(1, 2)))
    ]
    return setting, gang(*sets)


@given(
    situations(),
    st.permutations(["f0", "f1", "f2", "gone"]),
    st.integers(0, 4),
    st.sampled_from([Mode.NO_CANDIDATES, Mode.PREEMPT, Mode.RECLAIM]),
)
@settings(max_examples=200, deadline=None)
def test_flavors_that_take_turns_are_tried_as_by_a_queue_that_names_them_in_that_order(
    situation: tuple[Setting, Workload], names: list[str], many: int, answer: Mode
) -> None:
    """To the end of the scan, cursor for cursor."""
    setting, workload = situation
    out = tuple(names[:many])
    (only,) = setting.queue.groups
    by_name = {flavor.name: flavor for flavor in only.flavors}
    ordered = [*(name for name in by_name if name not in out), *(name for name in out if name in by_name)]
    written = replace(setting.queue, groups=(replace(only, flavors=tuple(by_name[name] for name in ordered)),))

    def looks(queue: ClusterQueue, workload: Workload) -> list[Assignment]:
        setting.queue = queue
        found = [setting.assign(workload, answer=(answer, 0))]
        while found[-1].pending_flavors and len(found) < 8:
            found.append(setting.assign(workload, found[-1].cursor, (answer, 0)))
        return found

    assert looks(setting.queue, replace(workload, out_of_stock=out)) == looks(written, workload)


@given(situations(), st.sampled_from([Mode.NO_CANDIDATES, Mode.PREEMPT, Mode.RECLAIM]))
@settings(max_examples=300, deadline=None)
def test_what_is_said_to_fit_fits_and_the_ledger_is_left_alone(
    situation: tuple[Setting, Workload], answer: Mode
) -> None:
    setting, workload = situation
    node = setting.ledger.tree.queue("q")
    assert node is not None
    version, before = setting.ledger.version, dict(node.usage)
    got = setting.assign(workload, answer=(answer, 0))
    assert (setting.ledger.version, dict(node.usage)) == (version, before)
    assert setting.assign(workload, answer=(answer, 0)) == got
    asked = requests(workload, setting.queue, setting.rules)
    if got.mode is Mode.NO_FIT:
        assert got.reason in (Reason.EXCEEDS_MAX_QUOTA, Reason.WAITING_FOR_QUOTA)
    else:
        total: dict[FlavorResource, int] = {}
        for choice, request in zip(got.pod_sets, asked, strict=True):
            assert set(choice.flavors) == {resource for resource, _ in request.total}
            assert len({taken.flavor for taken in choice.flavors.values()}) <= 1
            for resource, amounts in request.total:
                key = (choice.flavors[resource].flavor, resource)
                if amounts:
                    total[key] = total.get(key, 0) + amounts
        assert {fr: amounts for fr, amounts in got.usage.items() if amounts} == total
        assert all(node.potential(fr) >= amounts for fr, amounts in got.usage.items())
    if got.mode is Mode.FIT:
        assert node.fits(got.usage)
        assert got.why().shortfalls == ()
    if len(asked) == 1 and not setting.queue.fungibility.stop_when_preempting:
        # With one pod set, whatever flavor fits as a whole is found; preference may still choose to evict.
        fits = any(
            all(node.available((flavor.name, resource)) >= amounts for resource, amounts in asked[0].total)
            for flavor in setting.queue.groups[0].flavors
        )
        if fits and not setting.queue.fungibility.preempt_over_borrow and asked[0].count:
            assert got.mode is Mode.FIT
