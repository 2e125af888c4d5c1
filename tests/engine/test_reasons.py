"""Every reason for which a gang can wait, reached by `decide`: its numbers, its words, and the way back from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from admission.api.reasons import DETAILS, REASONS, detail_of
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    Check,
    CheckState,
    Detail,
    Flavor,
    LabelSelector,
    LocalQueue,
    Namespace,
    PodSet,
    PodShape,
    PodUsage,
    Preemption,
    PreemptionPolicy,
    Quota,
    Reason,
    Requirement,
    ResourceGroup,
    StopPolicy,
    Strategy,
    Taint,
    Topology,
    TopologyRequest,
    Why,
)
from admission.engine.project import bound, sentence
from tests.engine.town import BUDGET, SECOND, START, Town, cohort, elastic, gang, groups, node, queue

F = "f"
MINUTE = 60 * SECOND
NO_CPU = replace(MUSTER, excluded_prefixes=("cpu",))
ONE: list[tuple[str, dict[str, int | Quota]]] = [(F, {"gpu": 4})]
LOWER = Preemption(within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY)


def alone(**more: object) -> Town:
    return Town(*elastic(F), queue("a", "", ONE, **more))


def with_flavor(flavor: Flavor, **more: object) -> Town:
    """The gang `new` asks for one gpu of a queue with one flavor."""
    town = Town(flavor, queue("a", "", ONE))
    town.put(replace(gang("new", "a"), **more))  # type: ignore[arg-type]
    return town


def shaped(shape: PodShape, **more: object) -> dict[str, object]:
    requests = shape.requests or (("gpu", 1),)
    return {"pod_sets": (PodSet("main", 1, replace(shape, requests=requests), **more),)}  # type: ignore[arg-type]


def put_new(town: Town, *before: object, **more: object) -> Town:
    town.put(*before)
    town.put(replace(gang("new", "a", 5), **more))
    return town


def borrowing_ends() -> Town:
    town = Town(*elastic(F), cohort("root"), queue("a", "root", [(F, {"gpu": Quota(2, 2)})]))
    town.put(queue("b", "root", [(F, {"gpu": 6})]), gang("old", "a", 3))
    town.settle()
    town.put(gang("new", "a", 2, created=1))
    return town


def cohort_ends() -> Town:
    town = Town(*elastic(F), cohort("root"))
    town.put(*(queue(name, "root", [(F, {"gpu": 2})]) for name in "ab"))
    town.put(gang("old", "b", 2), gang("older", "a", 1))
    town.settle()
    town.put(gang("new", "a", 2, created=1))
    return town


def quota_ends() -> Town:
    town = alone()
    town.put(gang("old", "a", 3))
    town.settle()
    town.put(gang("new", "a", 2, created=1))
    return town


def nodes_end() -> Town:
    town = Town(Flavor(F), node("n0", gpu=4), queue("a", "", [(F, {"gpu": 9})]), gang("old", "a", 3))
    town.settle()
    town.put(gang("new", "a", 2, created=1))
    return town


def nodes_unwell() -> Town:
    town = Town(Flavor(F), replace(node("n0", gpu=4), ready=False), queue("a", "", [(F, {"gpu": 9})]))
    town.put(node("n1", gpu=1), gang("new", "a", 3))
    return town


def nodes_of_others() -> Town:
    pod = PodUsage(("x", "p"), "p", "n0", (("gpu", 1),))
    return Town(Flavor(F), node("n0", gpu=5), pod, queue("a", "", [(F, {"gpu": 9})]), gang("new", "a", 5))


def too_large() -> Town:
    return Town(Flavor(F), node("n0", gpu=2), queue("a", "", [(F, {"gpu": 9})]), gang("new", "a", 5))


def kept_for_another() -> Town:
    town = alone()
    town.put(gang("old", "a", 3))
    town.settle()
    town.put(gang("large", "a", 4, priority=1, created=1))
    town.now += 20 * MINUTE
    town.settle()
    town.put(gang("new", "a", 1, created=town.now - START))
    return town


def leaving() -> Town:
    town = alone(preemption=LOWER)
    town.put(gang("old", "a", 4))
    town.settle()
    town.put(gang("new", "a", 4, priority=1, created=1))
    return town


def gated_eviction() -> Town:
    town = leaving()
    town.put(replace(town.gang("new"), preemption_gated=True))
    return town


def next_cycle() -> Town:
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": 2})]), rules=KUEUE)
    town.put(*(queue(name, "root", [(F, {"gpu": 0})]) for name in "ab"))
    town.put(gang("old", "b", 2), gang("new", "a", 2, created=1))
    return town


def variant() -> Town:
    town = Town(*elastic("x", "y"), rules=replace(KUEUE, gates=KUEUE.gates | {"ConcurrentAdmission"}))
    town.put(queue("a", "", [("x", {"gpu": 4}), ("y", {"gpu": 4})]))
    town.put(gang("old", "a", allowed_flavors=frozenset({"x"}), parent_uid="job"))
    town.settle()
    town.put(gang("new", "a", created=1, allowed_flavors=frozenset({"y"}), parent_uid="job"))
    return town


def behind() -> Town:
    town = alone(strategy=Strategy.STRICT_FIFO)
    town.put(gang("head", "a", 9), gang("new", "a", 1, created=1))
    return town


def outside() -> Town:
    town = alone()
    selector = LabelSelector((Requirement("team", "In", ("x",)),))
    town.put(replace(queue("a", "", ONE), namespace_selector=selector), gang("new", "a"))
    return town


def emptied() -> Town:
    town = alone()
    town.put(Namespace("ns", terminating=True), gang("new", "a"))
    return town


def backing_off() -> Town:
    return put_new(alone(), requeue_at=START + MINUTE)


def asking(state: CheckState) -> Town:
    town = alone()
    town.put(gang("new", "a", checks=(Check("c", state),)))
    return town


def no_level() -> Town:
    town = Town(Flavor(F, topology="t"), Topology("t", ("zone",)), node("n0", gpu=4), queue("a", "", ONE))
    town.put(replace(gang("new", "a"), **shaped(PodShape(), topology=TopologyRequest(required="rack"))))
    return town


def no_slices() -> Town:
    town = Town(Flavor(F, topology="t"), Topology("t", ("zone",)), queue("a", "", ONE))
    town.put(replace(node("n0", gpu=4), labels=(("kubernetes.io/hostname", "n0"), ("zone", "z"))))
    request = TopologyRequest(required="zone", slice_required="zone")
    town.put(replace(gang("new", "a"), **shaped(PodShape(), topology=request)))
    return town


def uncounted(shape: PodShape, *beside: PodSet, **more: object) -> Town:
    """Its cpus are left out of quota."""
    town = Town(Flavor(F, topology="t"), Topology("t", ("zone",)), queue("a", "", ONE), rules=NO_CPU)
    town.put(replace(node("n0", gpu=4, cpu=2), labels=(("kubernetes.io/hostname", "n0"), ("zone", "z"))))
    town.put(replace(gang("new", "a"), pod_sets=(PodSet("main", 1, shape, **more), *beside)))  # type: ignore[arg-type]
    return town


ROWS: dict[str, tuple[Callable[[], Town], Reason, Detail]] = {
    "no local queue": (lambda: put_new(Town()), Reason.MISCONFIGURED, Detail.QUEUE_MISSING),
    "no queue": (
        lambda: put_new(Town(), LocalQueue("ns", "a", "nowhere")),
        Reason.MISCONFIGURED,
        Detail.CLUSTER_QUEUE_MISSING,
    ),
    "no such flavor": (
        lambda: put_new(Town(), queue("a", "", ONE)),
        Reason.MISCONFIGURED,
        Detail.CLUSTER_QUEUE_INACTIVE,
    ),
    "circle": (
        lambda: put_new(Town(*elastic(F)), cohort("x", "y"), cohort("y", "x"), queue("a", "x", ONE)),
        Reason.MISCONFIGURED,
        Detail.COHORT_CYCLE,
    ),
    "namespace": (outside, Reason.MISCONFIGURED, Detail.NAMESPACE_NOT_SELECTED),
    "namespace that goes": (emptied, Reason.MISCONFIGURED, Detail.NAMESPACE_TERMINATING),
    "held": (lambda: put_new(alone(stop_policy=StopPolicy.HOLD)), Reason.ON_HOLD, Detail.NONE),
    "off": (lambda: put_new(alone(), active=False), Reason.DEACTIVATED, Detail.NONE),
    "deleted": (
        lambda: put_new(alone(), active=False, kept_by="example.com/backup"),
        Reason.DEACTIVATED,
        Detail.WORKLOAD_DELETED,
    ),
    "paused": (
        lambda: put_new(alone(), active=False, paused_by="muster.dev/pause"),
        Reason.DEACTIVATED,
        Detail.PAUSED,
    ),
    "gated": (lambda: put_new(alone(), gated="held back by team/x"), Reason.GATED, Detail.NONE),
    "volume": (
        lambda: put_new(alone(), unbound="PersistentVolumeClaim data does not exist in namespace ns"),
        Reason.GATED,
        Detail.VOLUME_PENDING,
    ),
    "pods of before": (
        lambda: put_new(alone(), lingering="p on node n"),
        Reason.GATED,
        Detail.PODS_LINGER,
    ),
    "not managed": (
        lambda: put_new(alone(), unmanaged="RayJob ray"),
        Reason.MISCONFIGURED,
        Detail.NOT_MANAGED,
    ),
    "claims": (
        lambda: put_new(alone(), pod_sets=(PodSet("main", 1, PodShape(unclear="ResourceClaimTemplate two: none")),)),
        Reason.GATED,
        Detail.CLAIMS_UNCLEAR,
    ),
    "backoff": (backing_off, Reason.SUSPENDED, Detail.BACKOFF),
    "retry": (lambda: asking(CheckState.RETRY), Reason.PENDING_EVALUATION, Detail.CHECKS_PENDING),
    "rejected": (lambda: asking(CheckState.REJECTED), Reason.PENDING_EVALUATION, Detail.CHECKS_PENDING),
    "next cycle": (next_cycle, Reason.WAITING_FOR_QUOTA, Detail.NEXT_CYCLE),
    "variant": (variant, Reason.PENDING_EVALUATION, Detail.VARIANT_ADMITTED),
    "not covered": (
        lambda: put_new(alone(), **shaped(PodShape(requests=(("tpu", 1),)))),
        Reason.NO_MATCHING_FLAVOR,
        Detail.RESOURCE_NOT_COVERED,
    ),
    "taint": (
        lambda: with_flavor(Flavor(F, node_taints=(Taint("spot", "", "NoSchedule"),), elastic=True)),
        Reason.NO_MATCHING_FLAVOR,
        Detail.FLAVOR_TAINT,
    ),
    "selector": (
        lambda: with_flavor(
            Flavor(F, node_labels=(("gpu", "h100"),), elastic=True),
            **shaped(PodShape(node_selector=(("gpu", "a100"),))),
        ),
        Reason.NO_MATCHING_FLAVOR,
        Detail.FLAVOR_AFFINITY,
    ),
    "no level": (no_level, Reason.NO_MATCHING_FLAVOR, Detail.FLAVOR_TOPOLOGY),
    "not allowed": (
        lambda: put_new(alone(), allowed_flavors=frozenset({"other"})),
        Reason.NO_MATCHING_FLAVOR,
        Detail.FLAVOR_NOT_ALLOWED,
    ),
    "never": (lambda: put_new(alone()), Reason.EXCEEDS_MAX_QUOTA, Detail.NEVER_FITS_QUOTA),
    "quota": (quota_ends, Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT),
    "limit": (borrowing_ends, Reason.WAITING_FOR_QUOTA, Detail.BORROWING_LIMIT),
    "cohort": (cohort_ends, Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT),
    "claimed": (kept_for_another, Reason.WAITING_FOR_QUOTA, Detail.CLAIMED),
    "behind": (behind, Reason.WAITING_FOR_QUOTA, Detail.BEHIND_HEAD),
    "victims": (leaving, Reason.WAITING_FOR_PREEMPTED, Detail.VICTIMS_LEAVING),
    "gate": (gated_eviction, Reason.GATED, Detail.PREEMPTION_GATED),
    "nodes": (nodes_end, Reason.PLACEMENT_FAILED, Detail.NODES_SHORT),
    "no nodes": (lambda: with_flavor(Flavor(F)), Reason.PLACEMENT_FAILED, Detail.NO_NODES),
    "unwell nodes": (nodes_unwell, Reason.PLACEMENT_FAILED, Detail.NODES_UNUSABLE),
    "nodes of others": (nodes_of_others, Reason.PLACEMENT_FAILED, Detail.NODES_TAKEN),
    "small nodes": (too_large, Reason.PLACEMENT_FAILED, Detail.NEVER_FITS_NODES),
    "refused": (
        lambda: put_new(
            Town(Flavor(F), node("n0", gpu=9), queue("a", "", ONE)), **shaped(PodShape(refused="spreads over zones"))
        ),
        Reason.PLACEMENT_FAILED,
        Detail.CONSTRAINT_REFUSED,
    ),
    "levels that come with no flavor": (
        lambda: uncounted(PodShape(requests=(("cpu", 1),)), topology=TopologyRequest(required="zone")),
        Reason.PLACEMENT_FAILED,
        Detail.CONSTRAINT_REFUSED,
    ),
    "nodes too small for what no quota counts": (
        lambda: uncounted(PodShape(requests=(("cpu", 3),)), PodSet("gpus", 1, PodShape(requests=(("gpu", 1),)))),
        Reason.PLACEMENT_FAILED,
        Detail.NEVER_FITS_NODES,
    ),
    "invalid": (no_slices, Reason.PLACEMENT_FAILED, Detail.INVALID),
}


def why(row: str) -> Why:
    town = ROWS[row][0]()
    plan = decide(town.state, town.now, BUDGET)
    told = [verdict.why for verdict in plan.verdicts if verdict.key == ("ns", "new")]
    assert told, plan.verdicts
    return told[-1]


@pytest.mark.parametrize("row", ROWS)
def test_a_reason_is_reached_and_has_its_words(row: str) -> None:
    _, reason, detail = ROWS[row]
    got = why(row)
    assert (got.reason, got.detail) == (reason, detail)
    words = sentence(got)
    assert len(words) > 15, words
    if detail is Detail.NONE:
        assert REASONS[reason].means
    else:
        assert detail_of(reason, words) is detail, words
        assert DETAILS[detail].means


def test_all_of_them_are_reached() -> None:
    """But the flavor that vanished while the queue was active, and the one value that is no reason to wait."""
    assert {reason for _, reason, _ in ROWS.values()} == set(Reason) - {Reason.QUOTA_RESERVED}
    assert {detail for _, _, detail in ROWS.values()} == set(Detail) - {Detail.FLAVOR_MISSING}


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ("quota", {"requested": 2, "nominal": 4, "used": 3, "available": 1, "borrowable": 0, "limited_by": "a"}),
        ("limit", {"requested": 2, "nominal": 2, "used": 3, "available": 1, "borrowable": 2, "limited_by": "a"}),
        ("cohort", {"requested": 2, "nominal": 2, "used": 1, "available": 1, "borrowable": 2, "limited_by": "root"}),
        ("never", {"requested": 5, "nominal": 4, "used": 0, "available": 4, "borrowable": 0, "limited_by": "a"}),
    ],
)
def test_the_numbers_of_quota(row: str, numbers: dict[str, object]) -> None:
    (short,) = why(row).shortfalls
    assert {name: getattr(short, name) for name in numbers} == numbers
    assert (short.flavor, short.resource) == (F, "gpu")


def test_who_might_not_be_evicted_and_why() -> None:
    """Candidates for eviction are counted, and those that were not lawful by why."""
    town = Town(*elastic(F), cohort("root"), rules=MUSTER)
    town.put(*(queue(name, "root", [(F, {"gpu": 4})], preemption=LOWER) for name in "ab"))
    town.put(gang("b1", "b", 4), gang("a1", "a", 3))
    town.settle()
    town.put(gang("new", "a", 2, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    (short,) = verdict.why.shortfalls
    assert short.candidates == 2
    assert dict(short.unlawful) == {"of too high a priority": 1, "within the quota of their queue or cohort": 1}
    assert "of 2 running workload(s) none may be evicted for it (1 of too high a priority, 1 within" in sentence(
        verdict.why
    )


def test_a_queue_that_takes_nothing_back_is_told_that_this_is_why_nobody_goes() -> None:
    """What others borrow of it is not within their quota, whatever it may do about that."""
    never = Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER)
    town = Town(*elastic(F), cohort("root"), rules=MUSTER)
    town.put(*(queue(name, "root", [(F, {"gpu": 4})], preemption=never) for name in "ab"))
    town.put(gang("borrows", "b", 6))
    town.settle()
    town.put(gang("new", "a", 4, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    assert "none may be evicted for it (1 of other queues, and reclaimWithinCohort is Never)" in sentence(verdict.why)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 1000),
        ({"evicted": "NodeFailures", "queue_stamp": 0, "evicted_at": START + 990 * SECOND}, 10),
        ({"evicted": "Preempted", "evicted_at": START + 990 * SECOND}, 10),
        ({"evicted": "PodsReadyTimeout", "queue_stamp": START + 900 * SECOND, "evicted_at": START + 900 * SECOND}, 100),
        ({"evicted": "Preempted", "evicted_at": START + 900 * SECOND, "requeue_at": START + 960 * SECOND}, 40),
    ],
)
def test_who_was_evicted_has_waited_since_then(more: dict[str, object], seconds: int) -> None:
    """What it ran before, for days perhaps, it did not wait."""
    town = Town(*elastic(F), rules=MUSTER)
    town.put(queue("a", "", [(F, {"gpu": 4})]), gang("back", "a", 4, **more))
    (admit,) = decide(town.state, START + 1000 * SECOND, BUDGET).decisions
    assert isinstance(admit, Admit)
    assert admit.waited_ms == seconds * SECOND


@pytest.mark.parametrize(
    ("out", "only", "where"),
    [
        ((), "", ""),
        ((F,), "", ", on flavor g first"),
        ((F, "g"), "", f", on flavor {F} first"),
        (("h",), "", ""),
        ((F,), F, ""),
    ],
)
def test_who_waits_for_its_next_try_is_told_where_that_is(out: tuple[str, ...], only: str, where: str) -> None:
    """h is of another queue; where it may use one flavor only there is nothing to tell."""
    town = Town(*elastic(F, "g", "h"), queue("a", "", [(F, {"gpu": 4}), ("g", {"gpu": 4})]))
    allowed = frozenset({only}) if only else None
    town.put(gang("x", "a", requeue_at=START + 60 * SECOND, out_of_stock=out, allowed_flavors=allowed))
    told = town.state.explain(("ns", "x"))
    assert told is not None
    assert sentence(told.why).endswith(f"before it is tried again{where}")


TWO: list[tuple[str, dict[str, int | Quota]]] = [(F, {"cpu": 8, "gpu": 8})]
APART = (*groups([("g", {"cpu": 8})]), *groups([(F, {"gpu": 8})]))


@pytest.mark.parametrize(
    ("of", "cpu", "gpu", "detail", "said"),
    [
        pytest.param(groups(TWO), 1, 1, Detail.QUOTA_SHORT, ["5m cpu", "5 gpu"], id="two of one flavor"),
        pytest.param(groups(TWO), 1, 4, Detail.NEVER_FITS_QUOTA, ["20 gpu", "5m cpu"], id="one of them for ever"),
        pytest.param(groups(TWO), 2, 4, Detail.NEVER_FITS_QUOTA, ["10m cpu", "20 gpu"], id="both for ever"),
        pytest.param(APART, 1, 1, Detail.QUOTA_SHORT, ["5m cpu", "5 gpu"], id="of two groups"),
        pytest.param(APART, 1, 4, Detail.NEVER_FITS_QUOTA, ["20 gpu", "5m cpu"], id="the second group for ever"),
        pytest.param(APART, 2, 1, Detail.NEVER_FITS_QUOTA, ["10m cpu", "5 gpu"], id="the first group for ever"),
        pytest.param(groups([(F, {"cpu": 8})]), 2, 1, Detail.RESOURCE_NOT_COVERED, ["gpu", "10m cpu"], id="unknown"),
    ],
)
def test_everything_that_is_short_is_said(
    of: tuple[ResourceGroup, ...], cpu: int, gpu: int, detail: Detail, said: list[str]
) -> None:
    """Who makes good what is said is not refused for something else that was known; the detail comes first."""
    town = Town(*elastic(F, "g"), replace(queue("a"), groups=of))
    covered = {name for group in of for name in group.covered}
    each = {name: amount for name, amount in {"cpu": 1, "gpu": 2}.items() if name in covered}
    town.put(gang("old", "a", 4, each=each))
    town.settle()
    town.put(gang("new", "a", 5, each={"cpu": cpu, "gpu": gpu}, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    words = sentence(verdict.why)
    assert [
        part.partition("eeds ")[2].partition(" of flavor")[0].partition(", for")[0] for part in words.split(". ")
    ] == said
    assert verdict.why.detail is detail_of(verdict.why.reason, words) is detail


@pytest.mark.parametrize(
    ("counts", "detail", "said"),
    [
        pytest.param((5, 3), Detail.COHORT_SHORT, "Needs 8 gpu", id="as many as there are"),
        pytest.param((5, 4), Detail.NEVER_FITS_QUOTA, "Needs 9 gpu", id="more than there are, together"),
        pytest.param((3, 2, 4), Detail.NEVER_FITS_QUOTA, "Needs 9 gpu", id="of three"),
        pytest.param((5, 4, 3), Detail.NEVER_FITS_QUOTA, "Needs 12 gpu", id="of two of three"),
    ],
)
def test_pod_sets_that_together_never_fit_are_told_so_while_the_first_of_them_waits(
    counts: tuple[int, ...], detail: Detail, said: str
) -> None:
    never = Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER)
    town = Town(
        *elastic(F), queue("a", "lab", [(F, {"gpu": 2})], preemption=never), queue("b", "lab", [(F, {"gpu": 6})])
    )
    town.put(gang("old", "b", 6))
    town.settle()
    shape = PodShape(requests=(("gpu", 1),))
    sets = tuple(PodSet(f"p{i}", count, shape) for i, count in enumerate(counts))
    town.put(replace(gang("new", "a", created=1), pod_sets=sets))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    assert verdict.why.detail is detail
    assert sentence(verdict.why).startswith(said)


@pytest.mark.parametrize(("quotas", "pods"), [((8,), 8), ((8, 20), 10)], ids=["one flavor", "two flavors"])
def test_pod_sets_that_quota_could_hold_are_told_what_else_keeps_them_off(quotas: tuple[int, ...], pods: int) -> None:
    names = [f"f{i}" for i in range(len(quotas))]
    town = Town(*(Flavor(name, node_taints=(Taint("t", "", "NoSchedule"),), elastic=True) for name in names))
    town.put(queue("a", "", [(name, {"gpu": quota}) for name, quota in zip(names, quotas, strict=True)]))
    sets = (PodSet("p0", pods, PodShape(requests=(("gpu", 1),))), PodSet("p1", 1, PodShape()))
    town.put(replace(gang("new", "a"), pod_sets=sets))
    (verdict,) = decide(town.state, town.now, BUDGET).verdicts
    assert verdict.why.detail is Detail.FLAVOR_TAINT


def test_room_that_is_kept_until_a_gang_starts_is_told_once() -> None:
    """The claim is renewed every few minutes, and whoever waits for it, or behind it, is told nothing new."""
    town = kept_for_another()
    told = []
    renewed = set()
    for _ in range(10):
        town.settle()
        record = town.gang("large").claims
        assert record is not None
        renewed.add(record.until)
        told.append([verdict.why for name in ("large", "new") if (verdict := town.state.explain(("ns", name)))])
        town.now += 2 * MINUTE
    assert len(renewed) > 2
    assert told == [told[0]] * 10
    assert [sentence(why) for why in told[0]] == [
        "Room is kept for it as running workloads end; the claim holds until it starts",
        "The room it needs is kept for ns/large until that starts",
    ]


def test_who_lost_its_node_and_is_passed_over_keeps_its_claim_until_it_starts() -> None:
    """What it claimed on its way out ended after five minutes; this is the other kind, though it says no different."""
    town = Town(Flavor(F), queue("a", "", [(F, {"gpu": 8})]), node("n0", gpu=4), node("n1", gpu=4))
    town.put(gang("hit", "a", 1, each={"gpu": 4}), gang("runs", "a", 1, each={"gpu": 4}, created=1))
    town.settle()
    (host,) = [domain.values[-1] for part in town.gang("hit").admission.pod_sets for domain in part.topology.domains]
    town.put(replace(node(host, gpu=4), ready=False))
    left = replace(town.gang("hit"), admission=None, admitted=False, reserved_at=0, admitted_at=0)
    town.put(replace(left, evicted="NodeFailures", evicted_at=town.now, queue_stamp=0))
    town.settle()
    assert town.gang("hit").claims is None
    town.now += MUSTER.passed_over_ms + SECOND
    told = set()
    for _ in range(10):
        town.settle()
        verdict = town.state.explain(("ns", "hit"))
        assert verdict is not None
        told.add(sentence(verdict.why))
        town.now += 2 * MINUTE
    assert told == {"Room is kept for it as running workloads end; the claim holds until it starts"}


def test_room_that_is_kept_for_a_gang_of_another_tree_is_named() -> None:
    """Nodes would hold it at once, but for what is kept on them: that is no gang that never fits."""
    town = Town(
        Flavor("f"),
        queue("a", "", [("f", {"gpu": 8})]),
        queue("z", "", [("f", {"gpu": 8})]),
        node("n1", gpu=4),
        node("n2", gpu=4),
        gang("runs", "a", 1, each={"gpu": 4}),
    )
    town.settle()
    town.put(gang("big", "a", 2, each={"gpu": 4}))
    town.now += MUSTER.passed_over_ms + SECOND
    town.settle()
    town.put(gang("small", "z", 1, created=town.now))
    town.settle()
    verdict = town.state.explain(("ns", "small"))
    assert verdict is not None
    assert sentence(verdict.why) == (
        "Quota allows it, but the nodes of flavor f hold 0 of 1 pod(s) of main; of 2 node(s): 2 with too little gpu "
        "left; it fits once running workloads end; room kept for those who were passed over, such as ns/big, is not "
        "free"
    )


@pytest.mark.parametrize(
    ("gpus", "others", "said"),
    [
        pytest.param(9, 0, "; a pod asks for 9 gpu, of which no node could give more than 8", id="than any node has"),
        pytest.param(8, 1, "; a pod asks for 8 gpu, of which no node could give more than 7", id="beside others' pods"),
        pytest.param(3, 0, "", id="its pods are too many, and not too large"),
    ],
)
def test_who_asks_for_more_on_one_pod_than_a_node_has_is_told_how_much_would_do(
    gpus: int, others: int, said: str
) -> None:
    """Of the flavor's nodes: another's may be larger."""
    town = Town(Flavor(F, node_labels=(("pool", "a"),)), queue("a", "", [(F, {"gpu": 99})]))
    small, large = node("n0", gpu=8), node("n1", gpu=16)
    town.put(
        replace(small, labels=(*small.labels, ("pool", "a"))), replace(large, labels=(*large.labels, ("pool", "b")))
    )
    if others:
        town.put(PodUsage(("kube-system", "agent"), "uid-agent", "n0", (("gpu", others),)))
    town.put(gang("wide", "a", 9, each={"gpu": gpus}))
    town.settle()
    verdict = town.state.explain(("ns", "wide"))
    assert verdict is not None
    words = sentence(verdict.why)
    assert words.endswith(f"it would not fit if they were empty{said}"), words
    assert bound(words) == bound(words.replace("more than 8", "more than 6"))


def test_what_can_never_be_had_ends_where_it_would_with_nobody_there() -> None:
    """Who raises the limit that others leave it now gains nothing: the root has no more."""
    town = Town(*elastic(F), cohort("root", "", [(F, {"gpu": 4})]), queue("a", "root", [(F, {"gpu": Quota(8, 10)})]))
    town.put(gang("old", "a", 8))
    town.settle()
    town.put(gang("new", "a", 16, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    assert sentence(verdict.why).endswith("can never have more than 12 (8 its own, 4 to borrow), limited by root")


def test_a_borrowing_limit_allows_as_much_as_it_says() -> None:
    """The cohort has less than that, and is named once the limit allows all of it."""
    town = Town(*elastic(F), cohort("root"), queue("a", "root", [(F, {"gpu": Quota(2, 4)})]))
    town.put(queue("b", "root", [(F, {"gpu": 9})]), gang("old", "b", 8), gang("mine", "a", 1))
    town.settle()
    town.put(gang("new", "a", 6, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    assert "the borrowing limit of a allows only 5" in sentence(verdict.why)


def test_a_borrowing_limit_below_what_is_borrowed_allows_nothing() -> None:
    town = Town(*elastic(F), queue("a", "root", [(F, {"gpu": Quota(2, 4)})]), queue("b", "root", [(F, {"gpu": 9})]))
    town.put(gang("mine", "a", 6))
    town.settle()
    town.put(queue("a", "root", [(F, {"gpu": Quota(2, 1)})]), gang("new", "a", 3, created=1))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    assert "the borrowing limit of a allows only 0" in sentence(verdict.why)


TOGETHER = {
    "never": (
        (node("n0", gpu=6),),
        (),
        Detail.NEVER_FITS_NODES,
        2,
        "it would not fit if they were empty",
    ),
    "not now": (
        (node("n0", gpu=10),),
        (gang("old", "a", 3),),
        Detail.NODES_SHORT,
        3,
        "it fits once running workloads end",
    ),
    "with a node that is cordoned": (
        (node("n0", gpu=6), replace(node("n1", gpu=2), unschedulable=True)),
        (),
        Detail.NODES_UNUSABLE,
        2,
        "of 2 node(s): 1 cordoned; with none of them kept out, and empty, they could take 4 of 4",
    ),
    "not even with that": (
        (node("n0", gpu=6), replace(node("n1", gpu=1), unschedulable=True)),
        (),
        Detail.NEVER_FITS_NODES,
        2,
        "of 2 node(s): 1 cordoned; it would not fit if they were empty (those kept out included, they could take 3 of ",
    ),
}


@pytest.mark.parametrize("row", TOGETHER)
def test_pod_sets_that_would_fit_alone_are_told_how_much_is_left_beside_the_others(row: str) -> None:
    nodes, before, detail, left, said = TOGETHER[row]
    town = Town(Flavor(F), *nodes, queue("a", "", [(F, {"gpu": 20})]), *before)
    town.settle()
    shape = PodShape(requests=(("gpu", 1),))
    town.put(replace(gang("new", "a", created=1), pod_sets=tuple(PodSet(f"p{i}", 4, shape) for i in range(2))))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    words = sentence(verdict.why)
    assert f"hold {left} of 4 pod(s) of p1 beside its other pod sets; {said}" in words
    assert verdict.why.detail is detail_of(verdict.why.reason, words) is detail


@pytest.mark.parametrize("strategy", Strategy)
def test_the_numbers_of_who_was_passed_by_are_those_of_now(strategy: Strategy) -> None:
    """It needs eight, and others have come and gone since it was tried: what is told live is what there is. Who stands
    behind it is refused as it is, but where nobody is looked at behind the first."""
    town = alone()
    town.put(queue("a", "", [(F, {"gpu": 8})], strategy=strategy), gang("one", "a", 4), gang("other", "a", 4))
    town.settle()
    town.put(gang("new", "a", 8, created=1), gang("behind", "a", 8, created=2))
    town.settle()
    told = []
    for gone in ("", "one"):
        town.remove(type(town.gang("new")), ("ns", gone))
        town.settle()
        verdict = town.state.explain(("ns", "new"))
        assert verdict is not None
        told.append([(short.used, short.available) for short in verdict.why.shortfalls])
        assert town.state.refused_since(("ns", "new")) == (verdict if gone else None), "news since it was told"
        behind = town.state.refused_since(("ns", "behind"))
        assert (behind and behind.why) == (None if strategy is Strategy.STRICT_FIFO else verdict.why)
    assert told == [[(8, 0)], [(4, 4)]]


def test_who_was_passed_by_is_told_what_a_borrowing_limit_allows_now() -> None:
    town = Town(*elastic(F), queue("a", "root", [(F, {"gpu": Quota(2, 4)})]), queue("b", "root", [(F, {"gpu": 20})]))
    town.put(gang("one", "a", 3), gang("other", "a", 3))
    town.settle()
    town.put(gang("new", "a", 6, created=1))
    town.settle()
    said = []
    for gone in ("", "one"):
        town.remove(type(town.gang("new")), ("ns", gone))
        town.settle()
        verdict = town.state.explain(("ns", "new"))
        assert verdict is not None
        said.append(sentence(verdict.why).partition("the borrowing limit of a allows only ")[2])
    assert said == ["0", "3"]


def test_the_detail_is_that_of_what_is_said_where_pod_sets_end_at_different_places() -> None:
    """Two pods end at what the cohort has; all five, of which it is told, at the borrowing limit."""
    town = Town(*elastic(F), queue("a", "root", [(F, {"gpu": Quota(0, 5)})]), queue("b", "root", [(F, {"gpu": 5})]))
    town.put(gang("old", "a", 1), gang("others", "b", 3))
    town.settle()
    shape = PodShape(requests=(("gpu", 1),))
    town.put(replace(gang("new", "a", created=1), pod_sets=tuple(PodSet(f"p{n}", n, shape) for n in (2, 3))))
    (verdict,) = [v for v in decide(town.state, town.now, BUDGET).verdicts if v.key == ("ns", "new")]
    words = sentence(verdict.why)
    assert "Needs 5 gpu" in words
    assert verdict.why.detail is detail_of(verdict.why.reason, words) is Detail.BORROWING_LIMIT
