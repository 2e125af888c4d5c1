"""What Prometheus and the kubelet are told, read by Prometheus' own parser and over real HTTP."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import aiohttp
import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from admission.api.config import load_config
from admission.controller.lifecycle import EvictWorkload
from admission.controller.setup import counted_by_itself
from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admit,
    Assumed,
    ClusterQueue,
    Detail,
    Evict,
    EvictReason,
    Flavor,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    PodSet,
    PodShape,
    Put,
    Quota,
    ResourceGroup,
    Rules,
    Standing,
    Transformation,
    Usage,
    Verdict,
    Workload,
)
from admission.engine.roster import QueueNumbers
from admission.engine.state import State
from admission.kube import port
from admission.quantity import INT64_MAX
from admission.web import health
from admission.web.metrics import FAMILIES, Metrics

GPU = "nvidia.com/gpu"


class Small:
    """A cohort on one node of 24 GPUs: team-a (16 of its own) runs a gang of 20 on what team-b lends, and a gang
    of 9 waits."""

    def __init__(self, rules: Rules = MUSTER) -> None:
        self.state = State(rules)

        def groups(gpus: int) -> tuple[ResourceGroup, ...]:
            return (
                ResourceGroup(covered=(GPU,), flavors=(FlavorQuotas(name="h100", quotas=((GPU, Quota(gpus)),)),)),
                ResourceGroup(covered=("cpu",), flavors=(FlavorQuotas(name="any", quotas=(("cpu", Quota(8_500)),)),)),
            )

        for value in (
            Flavor(name="h100", node_labels=(("gpu", "h100"),)),
            Flavor(name="any", elastic=True),
            Node(name="n", labels=(("gpu", "h100"),), allocatable=((GPU, 24), ("cpu", 64_000), ("pods", 10))),
            Node(name="gone", labels=(("gpu", "h100"),), allocatable=((GPU, 8), ("pods", 10)), ready=False),
            ClusterQueue(name="team-a", cohort="all", groups=groups(16), namespace_selector=LabelSelector()),
            ClusterQueue(name="team-b", cohort="all", groups=groups(12), namespace_selector=LabelSelector()),
            Namespace(name="a"),
            LocalQueue(namespace="a", name="main", cluster_queue="team-a"),
            self.gang("first", 20, 1_000),
            self.gang("second", 9, 2_000),
        ):
            self.state.apply(Put(value))
        self.plan = decide(self.state, 10_000, 100)
        for decision in self.plan.decisions:
            self.state.apply(Assumed(decision))

    @staticmethod
    def gang(name: str, gpus: int, created: int) -> Workload:
        pods = PodSet(name="main", count=1, shape=PodShape(requests=(("cpu", 500), (GPU, gpus))))
        return Workload(namespace="a", name=name, uid=name, queue="main", created=created, pod_sets=(pods,))

    def queues(self) -> Iterator[tuple[str, str, QueueNumbers, Usage]]:
        tree = self.state.ledger.tree
        lent = tree.lent()
        for name in ("team-a", "team-b"):
            node = tree.queue(name)
            assert node is not None
            yield "ClusterQueue", name, self.state.queue_numbers(name), lent.get(node, {})
        yield "Cohort", "all", self.state.cohort_numbers("all"), {}

    def cluster_queues(self) -> list[str]:
        return ["team-a", "team-b"]

    labels: ClassVar[dict[str, str]] = {"team": "a"}
    """Of the LocalQueues."""

    def local_queues(self) -> list[tuple[str, str, str, dict[str, str]]]:
        return [("a", "main", "team-a", self.labels), ("b", "main", "team-b", {})]

    def waiting(self) -> list[tuple[str, Verdict, float]]:
        return [
            ("team-a", verdict, 8.0)
            for verdict in self.plan.verdicts
            if verdict.key[1] != "first" and verdict.standing is not Standing.ADMITTED
        ]

    def held_by(self, key: tuple[str, str]) -> tuple[Workload, float] | None:
        value = self.state.workload(key)
        return (value, 30.0) if value is not None and value.admitted else None

    def held_up(self) -> list[tuple[Literal["reserved", "leaving", "overdue"], str, float]]:
        return [
            ("reserved", "team-b", 3.0),
            ("leaving", "team-a", 4.0),
            ("overdue", "team-a", 1.0),
            ("reserved", "team-b", 7.0),
            ("leaving", "team-a", 2.0),
        ]

    def inactive(self) -> list[tuple[str, str]]:
        return [("team-b", "Stopped")]

    def flavors(self) -> list[tuple[str, str, int, int]]:
        return self.state.flavor_totals()

    def queue_of_gang(self, key: tuple[str, str]) -> str:
        value = self.state.workload(key)
        return self.state.queue_of(value) if value is not None else ""

    def api_calls(self) -> list[tuple[tuple[str, str, str, int], int]]:
        return [(("PATCH", "workloads", "status", 200), 3)]

    def watch_age(self) -> list[tuple[str, float]]:
        return [("Pod", 1.5)]

    leads = True

    def leading(self) -> bool:
        return self.leads

    def standstills(self) -> list[tuple[str, int]]:
        return [("made", 0)]

    def held(self) -> tuple[str, bool] | None:
        return ("policy", True)

    def events_dropped(self) -> dict[str, int]:
        return {"queue": 2}

    def certificates_end(self) -> dict[str, float]:
        return {"webhook": 1_900_000_000.0, "web": 1_950_000_000.0}


class Clock:
    """Seconds, as many as a test says."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def seen(gang: Workload) -> Any:
    """As informers have it."""
    return SimpleNamespace(view=SimpleNamespace(value=gang))


def played(small: Small, *, by_resource: bool = True) -> Metrics:
    """Metrics that were told all that a run of it tells: the first gang held what it got for ten seconds."""
    clock = Clock()
    metrics = Metrics(small, version="1.2.3", by_resource=by_resource, clock=clock)
    metrics.plan(small.plan, 0.002)
    for decision in small.plan.decisions:
        metrics.decision(decision)
        if isinstance(decision, Admit):
            metrics.admitted(decision.key)
            metrics.workload(None, seen(small.state.workloads[decision.key]))
            metrics.readiness(decision.key, "starting")
    clock.now += 4
    metrics.readiness(("a", "first"), "")
    clock.now += 6
    for reason in (EvictReason.IN_COHORT_RECLAMATION, EvictReason.FLAVOR_MIGRATION):
        metrics.decision(
            Evict(
                key=("a", "first"),
                uid="first",
                reason=reason,
                preemptor=("b", "x"),
                preemptor_uid="x",
            )
        )
    metrics.step(("Job", "a", "first"), EvictWorkload("NodeFailures", "Lost node n"))
    metrics.evicted(("a", "first"), "NodeFailures", "")
    metrics.failure(None, TimeoutError())
    metrics.undecided()
    metrics.drift(0)
    return metrics


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_a_former_leader_found_is_not_said_for_the_one_that_leads_now() -> None:
    """An alert on the most of all replicas would else see the proof of the one that does not look any more."""
    small = Small()
    metrics = played(small)
    metrics.drift(3)
    told = samples(metrics.text())
    of_leaders = {"muster_jobs_held", "muster_standstill_gangs"}
    nobody_asks = "muster_pending_requests", frozenset({("cluster_queue", "team-b"), ("resource", GPU)})
    assert of_leaders <= {name for name, _ in told}
    assert (told["muster_ledger_drift", frozenset()], told[nobody_asks]) == (3, 0)
    small.leads = False
    after = samples(metrics.text())
    assert not of_leaders & {name for name, _ in after}
    assert nobody_asks not in after
    assert after["muster_ledger_drift", frozenset()] == 0


def test_a_run_is_counted() -> None:
    small = Small()
    found = samples(played(small).text())
    (admit,) = [decision for decision in small.plan.decisions if isinstance(decision, Admit)]
    assert admit.key == ("a", "first")
    queue, cohort = {"cluster_queue": "team-a"}, {"cohort": "all"}
    lender = {"cluster_queue": "team-b", **cohort, "flavor": "h100", "resource": GPU}
    gpus = {**queue, **cohort, "flavor": "h100", "resource": GPU}
    spent = {**queue, "flavor": "h100", "resource": GPU}
    of_b = {**spent, "cluster_queue": "team-b", "queue_namespace": "b", "local_queue": "main"}
    all_gpus = {**cohort, "flavor": "h100", "resource": GPU}
    cores = {**queue, **cohort, "flavor": "any", "resource": "cpu"}
    for metric, labels, value in (
        ("muster_build_info", {"version": "1.2.3"}, 1),
        ("muster_leading", {}, 1),
        ("muster_jobs_held", {"mode": "policy"}, 1),
        ("muster_standstill_gangs", {"step": "made"}, 0),
        ("muster_admitted_workloads_total", queue, 1),
        ("muster_admission_wait_seconds_sum", queue, 9),
        ("muster_evicted_workloads_total", {**queue, "reason": "Preempted", "cause": "InCohortReclamation"}, 1),
        ("muster_evicted_workloads_total", {**queue, "reason": "FlavorMigration", "cause": ""}, 1),
        ("muster_evicted_workloads_total", {**queue, "reason": "NodeFailures", "cause": ""}, 1),
        ("muster_steps_total", {"step": "EvictWorkload"}, 1),
        ("muster_write_failures_total", {"error": "TimeoutError"}, 1),
        ("muster_ledger_drift", {}, 0),
        ("muster_cycle_duration_seconds_count", {}, 1),
        ("muster_cycle_steps_total", {}, small.plan.steps),
        ("muster_cycle_failures_total", {}, 1),
        ("muster_cluster_queue_inactive", {"cluster_queue": "team-b", "reason": "Stopped"}, 1),
        ("muster_workloads", {**queue, "state": "pending"}, 1),
        ("muster_workloads", {**queue, "state": "reserved"}, 0),
        ("muster_workloads", {**queue, "state": "admitted"}, 1),
        ("muster_pending_workloads", {**queue, "reason": "WaitingForQuota"}, 1),
        ("muster_pending_requests", {**queue, "resource": GPU}, 9),
        ("muster_pending_requests", {**queue, "resource": "cpu"}, 0.5),
        ("muster_pending_requests", {"cluster_queue": "team-b", "resource": GPU}, 0),
        ("muster_cluster_queue_used_seconds_total", spent, 200),
        ("muster_cluster_queue_used_seconds_total", {**spent, "cluster_queue": "team-b"}, 0),
        ("muster_cluster_queue_used_seconds_total", {**queue, "flavor": "any", "resource": "cpu"}, 5),
        ("muster_local_queue_used_seconds_total", {**spent, "queue_namespace": "a", "local_queue": "main"}, 200),
        ("muster_local_queue_used_seconds_total", of_b, 0),
        ("muster_cluster_queue_idle_seconds_total", {**spent, "state": "starting"}, 80),
        ("muster_cluster_queue_idle_seconds_total", {**spent, "state": "leaving"}, 0),
        ("muster_cluster_queue_idle_seconds_total", {**spent, "cluster_queue": "team-b", "state": "reserved"}, 0),
        ("muster_evicted_seconds_total", {**spent, "reason": "Preempted"}, 600),
        ("muster_evicted_seconds_total", {**spent, "reason": "NodeFailures"}, 600),
        ("muster_evicted_seconds_total", {**spent, "reason": "PodsReadyTimeout"}, 0),
        ("muster_oldest_pending_seconds", queue, 8),
        ("muster_oldest_reserved_seconds", {"cluster_queue": "team-b"}, 7),
        ("muster_oldest_leaving_seconds", {"cluster_queue": "team-a"}, 4),
        ("muster_oldest_overdue_seconds", {"cluster_queue": "team-a"}, 1),
        ("muster_cluster_queue_nominal_quota", gpus, 16),
        ("muster_cluster_queue_reserved", gpus, 20),
        ("muster_cluster_queue_used", gpus, 20),
        ("muster_cluster_queue_borrowed", gpus, 4),
        ("muster_cluster_queue_lent", gpus, 0),
        ("muster_cluster_queue_lent", lender, 4),
        ("muster_cluster_queue_nominal_quota", cores, 8.5),
        ("muster_cluster_queue_used", cores, 0.5),
        ("muster_cluster_queue_weighted_share", {**queue, **cohort}, 143),  # 4 of 28 that could be lent
        ("muster_cohort_nominal_quota", all_gpus, 28),
        ("muster_cohort_reserved", all_gpus, 20),
        ("muster_cohort_used", all_gpus, 20),
        ("muster_cohort_borrowed", all_gpus, 0),
        ("muster_cohort_lent", all_gpus, 0),
        ("muster_cohort_weighted_share", cohort, 0),
        ("muster_flavor_nominal_quota", {"flavor": "h100", "resource": GPU}, 28),
        ("muster_flavor_capacity", {"flavor": "h100", "resource": GPU}, 24),
        (
            "muster_api_requests_total",
            {"verb": "PATCH", "resource": "workloads", "subresource": "status", "code": "200"},
            3,
        ),
        (
            "muster_api_requests_total",
            {"verb": "PATCH", "resource": "workloads", "subresource": "status", "code": "403"},
            0,  # an alert asks for its increase
        ),
        ("muster_watch_age_seconds", {"kind": "Pod"}, 1.5),
        ("muster_events_dropped_total", {"why": "queue"}, 2),
        ("muster_webhook_certificate_expiry_timestamp_seconds", {}, 1_900_000_000),
        ("muster_web_certificate_expiry_timestamp_seconds", {}, 1_950_000_000),
    ):
        assert found[metric, frozenset(labels.items())] == value, metric
    assert not [name for name, labels in found if name.startswith("muster_flavor") and ("flavor", "any") in labels]
    assert not [labels for name, labels in found if "_idle_" in name and ("resource", "cpu") in labels]


def test_who_waits_asks_for_what_quota_counts() -> None:
    """It stands beside quota, on the dashboard."""
    as_credits = Transformation(GPU, (("example.com/credits", Fraction(3)),), retain=False)
    small = Small(structs.replace(MUSTER, transformations=(as_credits,), excluded_prefixes=("cpu",)))
    credits_ = FlavorQuotas(name="h100", quotas=(("example.com/credits", Quota(30)),))
    group = ResourceGroup(covered=("example.com/credits",), flavors=(credits_,))
    small.state.apply(Put(ClusterQueue(name="team-a", groups=(group,), namespace_selector=LabelSelector())))
    small.state.apply(Put(small.gang("third", 8, 3_000)))
    small.plan = decide(small.state, 20_000, 100)
    found = {labels: n for (name, labels), n in samples(Metrics(small).text()).items() if name.endswith("_requests")}
    assert {dict(labels)["resource"]: n for labels, n in found.items() if n} == {"example.com/credits": 24}


def test_quota_of_what_no_node_has_is_held_against_no_nodes() -> None:
    """Credits, say, as which requests for devices count: an alert would tell for ever that nodes have none."""
    outputs = (("example.com/credits", Fraction(3)), (GPU, Fraction(1)))
    small = Small(structs.replace(MUSTER, transformations=(Transformation("example.com/slice", outputs),)))
    credits_ = FlavorQuotas(name="h100", quotas=(("example.com/credits", Quota(100)),))
    group = ResourceGroup(covered=("example.com/credits",), flavors=(credits_,))
    small.state.apply(Put(ClusterQueue(name="team-c", groups=(group,))))
    told = {labels for name, labels in samples(Metrics(small).text()) if name.startswith("muster_flavor")}
    assert told == {frozenset({("flavor", "h100"), ("resource", GPU)})}


def test_all_that_is_shown_is_declared_and_all_that_is_declared_is_shown() -> None:
    """By name, type, help and labels; and every name is one that Prometheus' guide would have."""
    shown = {family.name: family for family in text_string_to_metric_families(played(Small()).text().decode())}
    assert {name for name in shown if not name.startswith(("process_", "muster_build"))} >= {
        family.name for family in FAMILIES if family.name != "muster_build_info"
    }
    for name, family in shown.items():
        if name.startswith("process_") or name.endswith("_created"):
            continue
        (declared,) = [one for one in FAMILIES if one.name == name]
        assert (family.type, family.documentation) == (declared.type, declared.help)
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert sample.name in declared.series()
                assert set(sample.labels) - {"le"} == set(declared.labels)
    for declared in FAMILIES:
        assert declared.help.endswith(".") or "; " in declared.help
        assert not declared.name.endswith(("_total", "_count", "_sum", "_milliseconds", "_ms"))
        assert not set(declared.labels) & {"namespace", "name", "pod", "job", "uid", "workload"}, "unbounded"


def test_what_was_held_is_counted_to_the_second_by_who_leads_whenever_it_is_asked() -> None:
    """Between two scrapes a gang comes, shrinks and goes; a queue goes, with what it used."""
    small, clock = Small(), Clock()
    metrics = Metrics(small, clock=clock)
    gang = small.state.workloads["a", "first"]
    labels = frozenset({"cluster_queue": "team-a", "flavor": "h100", "resource": GPU}.items())
    story: tuple[tuple[Workload | None, bool, float], ...] = (
        (gang, True, 2.5),
        (gang, True, 2.5),
        (structs.replace(gang, reclaimable=(("main", 1),)), True, 100.0),
        (gang, False, 1_000.0),  # another leads, and counts it, and nobody asks this one meanwhile
        (gang, True, 0.0),
        (structs.replace(gang, admitted=False), True, 1_000.0),
        (gang, True, 1.0),
        (structs.replace(gang, finished=True), True, 1_000.0),
        (gang, True, 1.0),
        (None, True, 1_000.0),
    )
    old = None
    for new, leads, seconds in story:
        if leads != small.leads:
            small.leads = False  # told before it does, and after it did
            metrics.turn()
            small.leads = leads
        metrics.workload(old and seen(old), new and seen(new))
        clock.now += seconds
        old = new
    metrics.evicted(gang.key, "Preempted", "")
    used, lost = "muster_cluster_queue_used_seconds_total", "muster_evicted_seconds_total"
    found = samples(metrics.text())
    assert (found[used, labels], found[lost, labels | {("reason", "Preempted")}]) == (20 * (2.5 + 2.5 + 1 + 1), 600)
    small.cluster_queues = lambda: ["team-b"]  # type: ignore[method-assign]
    small.queues = lambda: iter(())  # type: ignore[method-assign]
    metrics.text()
    assert not [name for name, _ in samples(metrics.text()) if name in (used, lost)]


USED, OF_LOCAL, IDLE_FOR = (
    f"muster_{what}_seconds_total" for what in ("cluster_queue_used", "local_queue_used", "cluster_queue_idle")
)


def amounts(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """GPU seconds that are not 0, by the values of a label."""
    return {
        dict(labels)[label]: value
        for (sample, labels), value in samples(metrics.text()).items()
        if sample == name and ("resource", GPU) in labels and value
    }


def test_what_stands_idle_is_counted_by_why_and_only_once_it_is_known() -> None:
    """A gang of 20 is reserved, admitted, ready, not ready any more, evicted, and comes back. Who begins to lead has
    not looked at its pods yet, and says nothing of them."""
    small, clock = Small(), Clock()
    metrics = Metrics(small, clock=clock)
    gang = small.state.workloads["a", "first"]
    reserved, leaves = structs.replace(gang, admitted=False), structs.replace(gang, evicted="Preempted")
    story: tuple[tuple[Workload | str | None, float, str], ...] = (
        (reserved, 1, "reserved"),
        (gang, 2, ""),
        ("starting", 4, "starting"),
        (structs.replace(gang, priority=1), 8, "starting"),  # it changes meanwhile in something else
        ("", 16, ""),
        ("recovering", 32, "recovering"),
        (leaves, 64, "leaving"),
        ("starting", 128, "leaving"),
        (None, 32768, "leaving"),
        (structs.replace(gang, admission=None, admitted=False, evicted="Preempted"), 256, ""),
        ("starting", 512, ""),
        (gang, 1024, ""),
        ("", 2048, ""),
        ("starting", 8192, "starting"),
        (None, 16384, ""),
        (structs.replace(gang, finished=True), 4096, ""),
    )
    expected: dict[str, float] = {}
    for step, seconds, idle in story:
        if step is None:
            metrics.turn()
        elif isinstance(step, str):
            metrics.readiness(gang.key, step)
        else:
            metrics.workload(None, seen(step))
        clock.now += seconds
        if idle:
            expected[idle] = expected.get(idle, 0) + 20 * seconds
    assert amounts(metrics, IDLE_FOR, "state") == expected
    used = 20 * sum(seconds for step, seconds, _ in story[1:9]) + 20 * (1024 + 2048 + 8192 + 16384)
    assert amounts(metrics, USED, "cluster_queue") == {"team-a": used}
    assert amounts(metrics, OF_LOCAL, "queue_namespace") == {"a": used}


def test_the_wait_for_checks_is_counted_with_that_before_it_and_of_who_is_admitted_alone() -> None:
    """Reserved after five seconds, and admitted three later. Who is evicted while its checks are open was not."""
    small, clock = Small(), Clock()
    metrics = Metrics(small, clock=clock)
    (admit,) = [decision for decision in small.plan.decisions if isinstance(decision, Admit)]
    evict = Evict(admit.key, admit.uid, EvictReason.IN_COHORT_RECLAMATION, ("b", "x"), "x")

    def waited() -> tuple[float, float]:
        found, queue = samples(metrics.text()), frozenset({("cluster_queue", "team-a")})
        return tuple(found[f"muster_admission_wait_seconds_{what}", queue] for what in ("count", "sum"))  # type: ignore[return-value]

    for evicted in (lambda: metrics.decision(evict), lambda: metrics.evicted(admit.key, "AdmissionCheck", "")):
        metrics.decision(structs.replace(admit, admitted=False, waited_ms=5_000))
        clock.now += 100
        evicted()
        metrics.admitted(admit.key)  # under another leader's reservation
        assert waited() == (0, 0)
    metrics.decision(structs.replace(admit, admitted=False, waited_ms=5_000))
    small.queue_of_gang = lambda _: ""  # type: ignore[method-assign]  # it is deleted ...
    waited()
    small.queue_of_gang = lambda _: "team-a"  # type: ignore[method-assign]  # ... and made anew
    metrics.admitted(admit.key)
    assert waited() == (0, 0)
    metrics.decision(structs.replace(admit, admitted=False, waited_ms=5_000))
    clock.now += 3
    metrics.admitted(admit.key)
    metrics.admitted(admit.key)
    assert waited() == (1, 8)


def test_of_many_that_wait_the_longest_is_told_and_not_of_those_that_no_nodes_would_hold() -> None:
    small = Small()
    (row,) = small.waiting()
    _, verdict, _ = row
    never = structs.replace(verdict, why=structs.replace(verdict.why, detail=Detail.NEVER_FITS_NODES))
    small.waiting = lambda: [("team-a", verdict, 8.0), ("team-a", verdict, 5.0), ("team-a", never, 9.0)]  # type: ignore[method-assign]
    found, queue = samples(Metrics(small).text()), frozenset({("cluster_queue", "team-a")})
    assert found["muster_oldest_pending_seconds", queue] == 8
    assert found["muster_pending_workloads", queue | {("reason", "WaitingForQuota")}] == 3


def test_what_is_counted_of_a_gang_whose_queue_nobody_knows_stays() -> None:
    small = Small()
    metrics = Metrics(small)
    small.queue_of_gang = lambda _: ""  # type: ignore[method-assign]
    metrics.evicted(("a", "gone"), "Deactivated", "")
    labels = frozenset({"cluster_queue": "", "reason": "Deactivated", "cause": ""}.items())
    for _ in range(2):
        assert samples(metrics.text())["muster_evicted_workloads_total", labels] == 1


def test_who_is_preempted_first_is_seen() -> None:
    """Of a queue that holds something, by whoever leads: of a series that begins with a number no increase is known."""
    small = Small()
    small.leads = False
    metrics = Metrics(small)
    metrics.workload(None, seen(small.state.workloads["a", "first"]))
    found = {
        (dict(labels)["cluster_queue"], dict(labels)["cause"])
        for (name, labels), value in samples(metrics.text()).items()
        if name == "muster_evicted_workloads_total" and ("reason", "Preempted") in labels and not value
    }
    causes = [one.value for one in EvictReason if one is not EvictReason.FLAVOR_MIGRATION]
    assert found == {("team-a", cause) for cause in causes}


def test_what_local_queues_used_adds_up_and_goes_with_them() -> None:
    """Two LocalQueues of one ClusterQueue; one is deleted while its gang runs."""
    small, clock = Small(), Clock()
    metrics = Metrics(small, clock=clock)
    gang = small.state.workloads["a", "first"]
    other = structs.replace(gang, namespace="b", name="other", key=("b", "other"))
    rows = [("a", "main", "team-a", small.labels), ("b", "main", "team-a", {})]
    small.local_queues = lambda: list(rows)  # type: ignore[method-assign]
    metrics.workload(None, seen(gang))
    clock.now += 10
    metrics.workload(None, seen(other))
    clock.now += 5
    assert amounts(metrics, OF_LOCAL, "queue_namespace") == {"a": 300, "b": 100}
    assert amounts(metrics, USED, "cluster_queue") == {"team-a": 400}
    del rows[1]
    clock.now += 5
    assert amounts(metrics, OF_LOCAL, "queue_namespace") == {"a": 400, "b": 200}
    metrics.workload(seen(other), None)
    assert amounts(metrics, OF_LOCAL, "queue_namespace") == {"a": 400}
    assert amounts(metrics, USED, "cluster_queue") == {"team-a": 600}


NOT_OF_A_TEAM = "{key: team, operator: DoesNotExist}"


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ("metrics: {localQueueMetrics: {}}", {"a", "b"}),
        ("metrics: {localQueueMetrics: {localQueueSelector: {matchLabels: {team: a}}}}", {"a"}),
        (f"metrics: {{localQueueMetrics: {{localQueueSelector: {{matchExpressions: [{NOT_OF_A_TEAM}]}}}}}}", {"b"}),
        ("metrics: {localQueueMetrics: {enable: false}}", set()),
    ],
)
def test_which_local_queues_are_counted_by_themselves_is_configured(config: str, shown: set[str]) -> None:
    small, clock = Small(), Clock()
    selected = counted_by_itself(load_config(config))
    metrics = Metrics(small, clock=clock, local_queues=selected)
    metrics.workload(None, seen(small.state.workloads["a", "first"]))
    clock.now += 10
    found = {dict(labels)["queue_namespace"] for name, labels in samples(metrics.text()) if name == OF_LOCAL}
    assert found == shown
    assert amounts(metrics, OF_LOCAL, "queue_namespace") == ({"a": 200} if "a" in shown else {})
    small.local_queues = list  # type: ignore[method-assign]  # without a label of its own now
    assert bool(amounts(metrics, OF_LOCAL, "queue_namespace")) == ("b" in shown)
    assert amounts(metrics, USED, "cluster_queue") == {"team-a": 200}


def test_what_was_used_of_a_flavor_that_has_no_quota_any_more_is_told() -> None:
    small, clock = Small(), Clock()
    metrics = Metrics(small, clock=clock)
    metrics.workload(None, seen(small.state.workloads["a", "first"]))
    clock.now += 10
    rows = [(kind, name, structs.replace(numbers, order=()), lent) for kind, name, numbers, lent in small.queues()]
    small.queues = lambda: iter(rows)  # type: ignore[method-assign]
    assert amounts(metrics, USED, "cluster_queue") == {"team-a": 200}


@pytest.mark.parametrize(("share", "told"), [(143, 143), (INT64_MAX, math.inf)])
def test_an_infinite_share_is_told_as_such(share: int, told: float) -> None:
    small = Small()
    (_, _, numbers, _), *_ = small.queues()
    row = ("ClusterQueue", "team-a", structs.replace(numbers, weighted_share=share), {})
    small.queues = lambda: iter([row])  # type: ignore[method-assign]
    labels = frozenset({"cluster_queue": "team-a", "cohort": "all"}.items())
    assert samples(Metrics(small).text())["muster_cluster_queue_weighted_share", labels] == told


def test_amounts_by_resource_can_be_left_out() -> None:
    names = {name for name, _ in samples(played(Small(), by_resource=False).text())}
    assert not [name for name in names if name.endswith(("_nominal_quota", "_used")) and "flavor" not in name]
    assert "muster_cluster_queue_weighted_share" in names


@pytest.mark.parametrize(("why_not", "status"), [("", 200), ("waiting for the first list of Pod", 503)])
async def test_readiness_says_what_is_missing(why_not: str, status: int) -> None:
    app = health.application(ready=lambda: why_not, metrics=lambda: (b"up 1\n",))
    runner = await health.serve(app, "127.0.0.1:0")
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            async with session.get("/readyz") as answer:
                assert (answer.status, (await answer.text()).strip()) == (status, why_not or "ok")
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            async with session.get("/metrics") as answer:
                assert await answer.text() == "up 1\n"
    finally:
        await runner.cleanup()


async def test_who_opens_connections_without_end_keeps_nobody_out_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each costs the process that decides some of its memory, for as long as it is open."""
    monkeypatch.setattr(port, "MOST_CONNECTIONS", 8)
    runner = await health.serve(health.application(ready=lambda: "", metrics=lambda: ()), "127.0.0.1:0")
    host, at = runner.addresses[0][:2]
    streams = [await asyncio.open_connection(host, at) for _ in range(50)]
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{at}/healthz") as answer:
            assert answer.status == 200
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*(reader.read() for reader, _ in streams[:42]))
        assert set(ended) == {b""}, "the oldest make room"
        assert runner.server is not None
        assert len(runner.server.connections) <= 8
    finally:
        for _, writer in streams:
            writer.close()
        await runner.cleanup()


async def test_who_asks_nothing_for_a_while_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "IDLE_S", 0.05)
    runner = await health.serve(health.application(ready=lambda: "", metrics=lambda: ()), "127.0.0.1:0")
    try:
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
    finally:
        await runner.cleanup()


async def test_a_scrape_lets_others_have_their_turn() -> None:
    turns: list[str] = []

    def metrics() -> Iterator[bytes]:
        asyncio.get_running_loop().call_soon(turns.append, "another")
        yield b"up 1\n"
        turns.append("the second metric")
        yield b"down 1\n"

    runner = await health.serve(health.application(ready=lambda: "", metrics=metrics), "127.0.0.1:0")
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
            assert await answer.text() == "up 1\ndown 1\n"
    finally:
        await runner.cleanup()
    assert turns == ["another", "the second metric"]
