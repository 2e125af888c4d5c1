"""What fires, and when, as hours of an installation go by; and that ordinary life wakes nobody.

Replicas show their real metrics, told what happens; a Prometheus as the chart sets one up scrapes them each half minute
and evaluates the alerts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from msgspec import structs

from admission.engine.model import Admit, Evict, EvictReason, Usage, Verdict
from admission.engine.roster import QueueNumbers
from admission.web.metrics import REPEATED, Metrics
from charts.monitoring import ALERTS
from tests.chart.promql import needs_parser
from tests.chart.timeline import Fired, Prometheus
from tests.web.test_metrics import Clock, Small

BEGAN = 1_800_000_000.0
SCRAPE_S, JUDGE_S = 30, 60
"""The chart's, and Prometheus' own."""
SMALL = Small()
LONG_WAIT_S = 3600
MINUTE, HOUR = 60, 3600


@dataclass
class Cluster:
    """What all replicas see."""

    clock: Clock
    queues: list[str] = field(default_factory=lambda: ["team-a", "team-b"])
    pending: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[str, Verdict, float]] = field(default_factory=list)
    """The last: since when."""
    held_up: list[tuple[Literal["reserved", "leaving", "overdue"], str, float]] = field(default_factory=list)
    inactive: list[tuple[str, str]] = field(default_factory=list)
    standstills: dict[str, int] = field(default_factory=lambda: {"made": 0, "placed": 0})
    held: bool | None = True
    capacity: int = 64
    certificate: float = BEGAN + 60 * 86400
    page: float = BEGAN + 60 * 86400


class Seen(Small):
    """The cluster as one replica shows it: as `admission.controller.numbers`, what only a leader knows only while it
    leads."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.leads = False
        self.silent: dict[str, float] = {}
        """Kind -> since when nothing was heard of it."""
        self.calls: dict[tuple[str, str, str, int], int] = {("PATCH", "workloads", "status", 200): 1}

    def queues(self) -> Iterator[tuple[str, str, QueueNumbers, Usage]]:
        for kind, name, numbers, lent in super().queues():
            if kind == "ClusterQueue" and name in self.cluster.queues:
                admitted, reserved = self.cluster.admitted.get(name, 0), self.cluster.reserved.get(name, 0)
                counts = {"pending": self.cluster.pending.get(name, 0), "admitted": admitted}
                yield kind, name, structs.replace(numbers, **counts, reserving=admitted + reserved), lent

    def cluster_queues(self) -> list[str]:
        return self.cluster.queues

    def waiting(self) -> list[tuple[str, Verdict, float]]:
        now = self.cluster.clock.now
        return [(queue, why, now - since) for queue, why, since in self.cluster.waiting if self.leads]

    def held_up(self) -> list[tuple[Literal["reserved", "leaving", "overdue"], str, float]]:
        now = self.cluster.clock.now
        return [(state, queue, now - since) for state, queue, since in self.cluster.held_up if self.leads]

    def inactive(self) -> list[tuple[str, str]]:
        return self.cluster.inactive if self.leads else []

    def flavors(self) -> list[tuple[str, str, int, int]]:
        return [("h100", "nvidia.com/gpu", 28, self.cluster.capacity)]

    def queue_of_gang(self, key: tuple[str, str]) -> str:
        return "team-a"

    def held_by(self, key: tuple[str, str]) -> None:
        return None

    def api_calls(self) -> list[tuple[tuple[str, str, str, int], int]]:
        return list(self.calls.items())

    def watch_age(self) -> list[tuple[str, float]]:
        now = self.cluster.clock.now
        return [(kind, now - self.silent.get(kind, now - 20.0)) for kind in ("Node", "Pod", "Workload")]

    def standstills(self) -> list[tuple[str, int]]:
        return list(self.cluster.standstills.items())

    def held(self) -> tuple[str, bool] | None:
        return None if self.cluster.held is None else ("webhook", self.cluster.held)

    def certificates_end(self) -> dict[str, float]:
        return {"webhook": self.cluster.certificate, "web": self.cluster.page}


@dataclass
class Replica:
    """A process."""

    seen: Seen
    metrics: Metrics
    began: float
    reached: bool = True


class Installation:
    """Pods by name, of which each is a target of Prometheus; and what is to happen, by seconds from the beginning."""

    def __init__(self, pods: tuple[str, ...] = ("0", "1")) -> None:
        self.clock = Clock()
        self.clock.now = BEGAN - 7 * 86400
        self.cluster = Cluster(self.clock)
        self.pods: dict[str, Replica | None] = {}
        """None: its container waits to be started again."""
        self.prometheus = Prometheus(BEGAN, {"@LONG_WAIT@": str(LONG_WAIT_S)})
        self._due: list[tuple[float, Callable[[], None]]] = []
        for pod in pods:
            self.start(pod)
        self.lead(pods[0])
        self.clock.now = BEGAN

    def start(self, pod: str) -> None:
        seen = Seen(self.cluster)
        self.pods[pod] = Replica(seen, Metrics(seen, version="1", by_resource=False, clock=self.clock), self.clock.now)

    def end(self, pod: str) -> None:
        """Its container; its pod stays."""
        self.pods[pod] = None

    def delete(self, pod: str) -> None:
        del self.pods[pod]
        self.prometheus.forget(self.clock.now, pod)

    def lead(self, pod: str) -> None:
        """It and nobody else; "" is nobody."""
        for name, replica in self.pods.items():
            if replica is not None:
                replica.seen.leads = name == pod

    @property
    def leader(self) -> Metrics:
        """Its metrics, which are told what it does."""
        (found,) = [one for one in self.pods.values() if one is not None and one.seen.leads]
        return found.metrics

    def at(self, seconds: float, do: Callable[[], Any]) -> None:
        self._due.append((BEGAN + seconds, do))

    def each(self, every: float, do: Callable[[], Any], begin: float = 0, end: float = 24 * HOUR) -> None:
        for i in range(int((end - begin) / every)):
            self.at(begin + i * every, do)

    def run(self, seconds: float) -> list[Fired]:
        """What fired by then."""
        self._due.sort(key=lambda one: one[0])
        while self.clock.now < BEGAN + seconds:
            while self._due and self._due[0][0] <= self.clock.now:
                self._due.pop(0)[1]()
            second = int(self.clock.now - BEGAN)
            for number, (pod, replica) in enumerate(sorted(self.pods.items())):
                if second % SCRAPE_S == (7 * number) % SCRAPE_S:
                    there = replica is not None and replica.reached
                    more = {"process_start_time_seconds": replica.began} if replica is not None else {}
                    text = replica.metrics.text().decode() if replica is not None and there else None
                    self.prometheus.scrape(self.clock.now, pod, text, more)
            if second % JUDGE_S == JUDGE_S - 1:
                self.prometheus.judge(self.clock.now)
            self.clock.now += 1
        return self.prometheus.fired

    # ---------------------------------------------------------------- what happens

    def admit(self, waited: float = 60.0) -> None:
        (decision,) = [one for one in SMALL.plan.decisions if isinstance(one, Admit)]
        self.leader.decision(structs.replace(decision, waited_ms=int(waited * 1000)))
        self.leader.admitted(decision.key)

    def evict(self, reason: str, cause: str = "") -> None:
        self.leader.evicted(("a", "first"), reason, cause)

    def preempt(self) -> None:
        self.leader.decision(Evict(("a", "first"), "first", EvictReason.IN_COHORT_RECLAMATION, ("b", "x"), "x"))

    def decide(self, seconds: float = 0.01) -> None:
        self.leader.plan(structs.replace(SMALL.plan, decisions=()), seconds)

    def undecided(self) -> None:
        self.leader.undecided()

    def waits(self, queue: str = "team-a", since: float = 0.0) -> None:
        (row,) = SMALL.waiting()
        self.cluster.waiting.append((queue, row[1], BEGAN + since))
        self.cluster.pending[queue] = self.cluster.pending.get(queue, 0) + 1

    def hand_over(self, at: float, to: str, nobody_for: float) -> None:
        self.at(at, lambda: self.lead(""))
        self.at(at + nobody_for, lambda: self.lead(to))


def busy(some: Installation) -> None:
    """Gangs come, wait in line, run and are preempted; queues are full."""
    some.cluster.admitted = {"team-a": 3, "team-b": 2}
    some.waits()

    def one_goes() -> None:
        some.admit(waited=1800)
        some.cluster.waiting[0] = (*some.cluster.waiting[0][:2], some.clock.now - 1700)

    some.each(90, one_goes)
    some.each(1200, some.preempt)
    some.each(20, some.decide)


def rollout(some: Installation, at: float, old: tuple[str, str], new: tuple[str, str]) -> None:
    """As the Deployment does it: one more, then one less, twice; the first to go leads."""
    some.at(at, lambda: some.start(new[0]))
    some.hand_over(at + 20, old[1], 3)
    some.at(at + 21, lambda: some.delete(old[0]))
    some.at(at + 30, lambda: some.start(new[1]))
    some.hand_over(at + 50, new[0], 3)
    some.at(at + 51, lambda: some.delete(old[1]))


def crash_loop(some: Installation, pod: str, lives: float, *, leads: bool = False) -> None:
    """As the kubelet starts it again: after 10 seconds, then after pauses that double to five minutes; of one that
    lived for ten minutes they begin anew."""
    at, pause = 10 * MINUTE, 10.0
    while at < 6 * HOUR:
        some.at(at, lambda: some.end(pod))
        some.at(at + pause, lambda: some.start(pod))
        if leads:
            some.at(at + pause + min(lives, 30) / 2, lambda: some.lead(pod))
        at += pause + lives
        pause = 10.0 if lives >= 10 * MINUTE else min(2 * pause, 300.0)


def silent_kind(some: Installation) -> None:
    """Nodes may not be watched any more. A leader leaves the Lease to others ever later, and leads on."""
    for replica in some.pods.values():
        assert replica is not None
        replica.seen.silent["Node"] = BEGAN
    at, patience = 0.0, 30.0
    while at < 3 * HOUR:
        at, patience = at + patience, min(2 * patience, 3600.0)
        some.hand_over(at, "0", 40)


def outage(some: Installation, at: float, lasts: float) -> None:
    """Nobody can renew the Lease; whoever leads next waits the old one out."""
    some.at(at, lambda: [some.leader.failure(None, TimeoutError()) for _ in range(30)])
    some.hand_over(at + 10, "1", lasts + 15)


def node_dies(some: Installation) -> None:
    """Eight gangs of one queue ran there, and start elsewhere."""
    busy(some)

    def goes() -> None:
        some.cluster.capacity -= 8
        for _ in range(8):
            some.evict("NodeFailures")

    some.at(20 * MINUTE, goes)


def pool_without_stock(some: Installation) -> None:
    """Eight gangs lost their nodes at once, and no others came in time."""
    busy(some)
    some.at(25 * MINUTE, lambda: [some.evict("PodsReadyTimeout", "WaitForStart") for _ in range(8)])


def unreached(some: Installation, *pods: str, at: float, lasts: float) -> None:
    def reach(reached: bool) -> None:
        for pod in pods:
            replica = some.pods[pod]
            assert replica is not None
            replica.reached = reached

    some.at(at, lambda: reach(False))
    some.at(at + lasts, lambda: reach(True))


def its_node_is_gone(some: Installation) -> None:
    """Nobody deletes the Node: the pod ends for ever, and is no target once it ends (the ServiceMonitor leaves out who
    does); another is made in its place."""
    busy_without_decisions(some)
    unreached(some, "0", at=10 * MINUTE, lasts=5 * MINUTE - 1)
    some.hand_over(10 * MINUTE + 5, "1", 25)
    some.at(15 * MINUTE, lambda: (some.delete("0"), some.start("2")))


def two_rollouts(some: Installation) -> None:
    busy_without_decisions(some)
    rollout(some, 20 * MINUTE, ("0", "1"), ("2", "3"))
    rollout(some, 40 * MINUTE, ("2", "3"), ("4", "5"))


def busy_without_decisions(some: Installation) -> None:
    some.cluster.admitted = {"team-a": 3, "team-b": 2}
    some.waits()


def one_is_killed(some: Installation) -> None:
    busy_without_decisions(some)
    some.at(20 * MINUTE, lambda: some.end("0"))
    some.at(20 * MINUTE + 12, lambda: some.start("0"))
    some.hand_over(20 * MINUTE + 1, "1", 24)


def all_begin_anew(some: Installation) -> None:
    busy_without_decisions(some)
    for pod in ("0", "1"):
        some.at(20 * MINUTE, lambda pod=pod: some.end(pod))
        some.at(21 * MINUTE, lambda pod=pod: some.start(pod))
    some.at(21.5 * MINUTE, lambda: some.lead("1"))


def a_queue_goes(some: Installation) -> None:
    some.waits("team-a")

    def goes() -> None:
        some.cluster.queues = ["team-b"]
        some.cluster.waiting.clear()
        some.cluster.inactive.clear()

    some.at(0, lambda: some.cluster.inactive.append(("team-a", "FlavorNotFound")))
    some.at(9 * MINUTE, goes)


def a_check_answers_at_last(some: Installation) -> None:
    """And a pod ends at last, and a gang gets its room."""
    busy_without_decisions(some)
    some.each(90, some.admit)
    some.cluster.waiting[0] = (*some.cluster.waiting[0][:2], BEGAN - LONG_WAIT_S + 60)
    some.cluster.held_up += [("reserved", "team-a", BEGAN - 3500), ("overdue", "team-b", BEGAN - 500)]
    some.at(4.5 * MINUTE, some.cluster.held_up.clear)
    some.at(14 * MINUTE, some.cluster.waiting.clear)


ORDINARY: dict[str, Callable[[Installation], Any]] = {
    "no jobs": lambda some: None,
    "no queues yet": lambda some: some.cluster.queues.clear(),
    "a busy day": busy,
    "two releases": two_rollouts,
    "the leader is killed": one_is_killed,
    "all begin anew": all_begin_anew,
    "the leader is not reached once": lambda some: unreached(some, "0", at=20 * MINUTE, lasts=40),
    "nobody is reached once": lambda some: unreached(some, "0", "1", at=20 * MINUTE, lasts=40),
    "a queue is deleted": a_queue_goes,
    "what took too long ends": a_check_answers_at_last,
    "a node dies": node_dies,
    "a pool has no stock, once": pool_without_stock,
    "the node under a replica is gone": its_node_is_gone,
    "two minutes without the API server": lambda some: outage(some, 20 * MINUTE, 120),
}


@needs_parser
@pytest.mark.parametrize("life", ORDINARY)
def test_ordinary_life_wakes_nobody(life: str) -> None:
    some = Installation()
    ORDINARY[life](some)
    assert some.run(1.3 * HOUR) == []


def _now(do: Callable[[Installation], Any], at: float = 10 * MINUTE) -> Callable[[Installation], Any]:
    return lambda some: some.at(at, lambda: do(some))


def _each(every: float, do: Callable[[Installation], Any], end: float = 24 * HOUR) -> Callable[[Installation], Any]:
    return lambda some: some.each(every, lambda: do(some), 10 * MINUTE, end)


def _set(**values: Any) -> Callable[[Installation], Any]:
    """Of the cluster, after ten minutes."""
    return _now(lambda some: [setattr(some.cluster, name, value) for name, value in values.items()])


def _all_end(some: Installation) -> None:
    for pod in some.pods:
        some.end(pod)


def _both_lead(some: Installation) -> None:
    for one in some.pods.values():
        assert one is not None
        one.seen.leads = True


def _decisions_fail(some: Installation) -> None:
    """After 1, 2, 4 seconds and so on, at last each minute."""
    at, pause = 600.0, 1.0
    while at < 2 * HOUR:
        some.at(at, some.undecided)
        at, pause = at + pause, min(60.0, 2 * pause)


def _starts_fail(some: Installation) -> None:
    """Ten gangs, of which each is evicted after five minutes and comes back after one, two, four and so on."""
    busy(some)
    for gang in range(10):
        at, pause = 600.0 + 7 * gang, 60.0
        while at < 6 * HOUR:
            some.at(at, lambda: some.evict("PodsReadyTimeout", "WaitForStart"))
            at, pause = at + pause + 300, min(3600.0, 2 * pause)


def _waves(some: Installation, every: float, reason: str, cause: str = "") -> None:
    """Eight gangs at a time: they were admitted together."""
    some.each(every, lambda: [some.evict(reason, cause) for _ in range(8)], 10 * MINUTE)


def _slow(some: Installation) -> None:
    some.each(10, lambda: some.decide(1.5), 600)


def _starves(some: Installation) -> None:
    busy_without_decisions(some)
    some.each(90, some.admit)


def _refused(some: Installation) -> None:
    """The right to write Workloads goes."""

    def refused() -> None:
        for one in some.pods.values():
            if one is not None and one.seen.leads:
                key = ("PATCH", "workloads", "status", 403)
                one.seen.calls[key] = one.seen.calls.get(key, 0) + 1
                one.metrics.failure(None, PermissionError())

    some.each(60, refused, 600)


FAULTS: dict[str, tuple[Callable[[Installation], Any], set[str], float]] = {
    "all are gone": (_now(_all_end), {"MusterNotLeading"}, 15),
    "nobody leads": (_now(lambda some: some.lead("")), {"MusterNotLeading"}, 15),
    "two lead": (_now(_both_lead), {"MusterNotLeading"}, 15),
    "one ends after 90 seconds": (lambda some: crash_loop(some, "1", 90), {"MusterRestarts"}, 45),
    "one ends after 2 seconds": (lambda some: crash_loop(some, "1", 2), {"MusterRestarts"}, 45),
    "one is not reached": (
        lambda some: unreached(some, "1", at=10 * MINUTE, lasts=24 * HOUR),
        {"MusterRestarts"},
        60,
    ),
    "a rollout that cannot go on": (
        lambda some: (some.at(10 * MINUTE, lambda: some.start("2")), crash_loop(some, "2", 3)),
        {"MusterRestarts"},
        60,
    ),
    "one of three ends at once": (
        lambda some: (some.start("2"), crash_loop(some, "2", 3)),
        {"MusterRestarts"},
        60,
    ),
    "one ends after 8 minutes": (lambda some: crash_loop(some, "1", 480), {"MusterRestarts"}, 45),
    "one ends after 20 minutes": (lambda some: crash_loop(some, "1", 1200), {"MusterRestarts"}, 105),
    "the only one ends after 8 minutes": (
        lambda some: (some.delete("1"), crash_loop(some, "0", 480, leads=True)),
        {"MusterRestarts", "MusterNotLeading"},
        65,
    ),
    "jobs are not held": (_set(held=False), {"MusterJobsNotHeld"}, 20),
    "the books differ": (_now(lambda some: some.leader.drift(2)), {"MusterLedgerDrift"}, 20),
    "decisions fail": (_decisions_fail, {"MusterDecisionsFail"}, 25),
    "the certificate ends": (_set(certificate=BEGAN + 6 * 86400), {"MusterWebhookCertificate"}, 80),
    "the page's certificate ends": (_set(page=BEGAN + 6 * 86400), {"MusterWebCertificate"}, 80),
    "nobody runs": (_now(lambda some: some.waits()), {"MusterQueueBlocked"}, 45),
    "a flavor is gone": (_set(inactive=[("team-a", "FlavorNotFound")]), {"MusterQueueInactive"}, 25),
    "one is passed by": (_starves, {"MusterGangStarved"}, 85),
    "a check does not answer": (
        lambda some: some.cluster.held_up.append(("reserved", "team-a", BEGAN)),
        {"MusterChecksWait"},
        75,
    ),
    "no pods are made": (_set(standstills={"made": 3, "placed": 0}), {"MusterPodsStandStill"}, 15),
    "a pod does not end": (
        lambda some: some.cluster.held_up.append(("overdue", "team-a", BEGAN)),
        {"MusterPodsLinger"},
        20,
    ),
    "all wait long": (
        lambda some: (busy_without_decisions(some), some.each(120, lambda: some.admit(5000), 600)),
        {"MusterLongWait"},
        30,
    ),
    "nodes are gone": (_set(capacity=20), {"MusterQuotaAboveCapacity"}, 45),
    "gangs do not start": (_starts_fail, {"MusterEvictionsRepeat"}, 60),
    "gangs that fail in step": (
        lambda some: _waves(some, 31 * MINUTE, "PodsReadyTimeout", "WaitForStart"),
        {"MusterEvictionsRepeat"},
        60,
    ),
    "gangs that fail in step, with the longest backoff": (
        lambda some: _waves(some, 65 * MINUTE, "PodsReadyTimeout", "WaitForStart"),
        {"MusterEvictionsRepeat"},
        105,
    ),
    "a rack comes and goes": (lambda some: _waves(some, 20 * MINUTE, "NodeFailures"), {"MusterEvictionsRepeat"}, 60),
    "a right is gone": (_refused, {"MusterForbidden", "MusterWritesFail"}, 30),
    "writes of one job fail": (
        _each(60, lambda some: some.leader.failure(None, ValueError())),
        {"MusterWritesFail"},
        35,
    ),
    "nodes may not be watched": (silent_kind, {"MusterWatchSilent"}, 60),
    "decisions are late": (_slow, {"MusterCycleSlow"}, 40),
}


@needs_parser
@pytest.mark.parametrize("fault", FAULTS)
def test_what_breaks_is_told_once_and_as_what_it_is(fault: str) -> None:
    """Within so many minutes after the beginning, and for as long as it lasts."""
    breaks, alerts, within = FAULTS[fault]
    some = Installation()
    breaks(some)
    fired = list(some.run(within * MINUTE))
    assert {one.name for one in fired} == alerts
    for one in fired:
        (alert,) = [alert for alert in ALERTS if alert.name == one.name]
        assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.runbook)) <= set(one.labels)
    if fault not in ENDS_AND_COMES_BACK:
        assert some.run((within + 20) * MINUTE) == fired
        assert not [one for one in fired if one.until is not None]


ENDS_AND_COMES_BACK = {"the only one ends after 8 minutes"}


def test_each_alert_has_its_fault() -> None:
    assert {alert.name for alert in ALERTS} == {name for _, alerts, _ in FAULTS.values() for name in alerts}


@needs_parser
@pytest.mark.parametrize(("reason", "cause"), REPEATED)
def test_the_first_evictions_are_seen(reason: str, cause: str) -> None:
    """Their series was there before, at 0: else Prometheus would know of no increase."""
    some = Installation()
    some.cluster.admitted = {"team-a": 3}
    for minute in (10, 20, 30):
        some.at(minute * MINUTE, lambda: [some.evict(reason, cause) for _ in range(2)])
    assert {one.name for one in some.run(65 * MINUTE)} == {"MusterEvictionsRepeat"}
