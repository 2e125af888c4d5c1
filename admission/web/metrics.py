"""Prometheus metrics, folded from the stream of Plans, decisions and steps, and read from the State when scraped.

`FAMILIES` is all of them: name, type, labels and meaning; the reference page, the alerts and the dashboards are held to
it. Label values come from names of queues, cohorts, flavors and resources, and from closed enums: their number is
bounded by what the platform team wrote, never by how many jobs there are. Amounts are in the base unit of the resource
(cores, bytes, devices), times in seconds.

The namespace of a LocalQueue is `queue_namespace`: `namespace` is a label that Prometheus puts on what it scrapes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from admission import quantity
from admission.engine.booking import is_device
from admission.engine.ledger import charge_of
from admission.engine.model import (
    Admit,
    Decision,
    Detail,
    Evict,
    EvictReason,
    Key,
    LabelSelector,
    Plan,
    Reason,
    Verdict,
    Workload,
    matches,
)
from admission.engine.project import evicted_as

_Cost = tuple[str, ...]
"""The labels of an amount; the last one is the resource."""

_CYCLE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_WAIT = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)


@dataclass(frozen=True)
class Family:
    """One metric. A counter is shown with `_total`, a histogram with `_bucket`, `_sum` and `_count`."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def series(self) -> tuple[str, ...]:
        """Names under which its samples stand."""
        if self.type == "counter":
            return (f"{self.name}_total",)
        if self.type == "histogram":
            return tuple(f"{self.name}_{end}" for end in ("bucket", "sum", "count"))
        return (self.name,)


_AMOUNTS = {
    "nominal_quota": "Quota of its own; of a Cohort, with that of all below it.",
    "reserved": "Held by gangs with a reservation, the admitted ones among them.",
    "used": "Held by gangs that are admitted.",
    "borrowed": "Held beyond its own quota, in a cohort; of a Cohort, beyond what is shared in it.",
    "lent": "Of its own quota, what its siblings hold.",
}
_OF_QUEUE = ("cluster_queue", "cohort", "flavor", "resource")
_OF_COHORT = ("cohort", "flavor", "resource")

FAMILIES: tuple[Family, ...] = (
    Family("muster_build_info", "gauge", "1, with the version of the program.", ("version",)),
    Family("muster_leading", "gauge", "1 on the replica that decides, 0 on the others."),
    Family("muster_jobs_held", "gauge", "By the leader: 1 if its last proof found jobs held, else 0.", ("mode",)),
    Family(
        "muster_standstill_gangs",
        "gauge",
        "By the leader: admitted gangs that wait for their pods to be made, or placed, while for half a minute none of "
        "any gang were; else 0.",
        ("step",),
    ),
    Family("muster_workloads", "gauge", "Gangs by state: pending, reserved, admitted.", ("cluster_queue", "state")),
    Family(
        "muster_cluster_queue_inactive",
        "gauge",
        "By the leader: 1 for each ClusterQueue that admits nothing, by the reason of its condition Active.",
        ("cluster_queue", "reason"),
    ),
    Family("muster_pending_workloads", "gauge", "Gangs that wait, by reason.", ("cluster_queue", "reason")),
    Family(
        "muster_oldest_pending_seconds",
        "gauge",
        "Since the gang that waits longest for quota or nodes was created, or evicted; without those that the nodes "
        "could not hold if no gang were on them, for their size, for what they demand, or for pods of others.",
        ("cluster_queue",),
    ),
    Family(
        "muster_oldest_reserved_seconds",
        "gauge",
        "Since the gang that waits longest for its admission checks got its quota.",
        ("cluster_queue",),
    ),
    Family(
        "muster_oldest_leaving_seconds",
        "gauge",
        "Since the eviction of the gang that was evicted first and still holds its quota: its pods have not ended.",
        ("cluster_queue",),
    ),
    Family(
        "muster_oldest_overdue_seconds",
        "gauge",
        "The same, since the end of its pods' grace periods.",
        ("cluster_queue",),
    ),
    Family(
        "muster_admitted_workloads",
        "counter",
        "Gangs admitted: reserved, and all admission checks ready.",
        ("cluster_queue",),
    ),
    Family(
        "muster_evicted_workloads",
        "counter",
        "Gangs evicted, by the reason of the condition Evicted; cause: of Preempted, for whom; of Deactivated and "
        "PodsReadyTimeout, why.",
        ("cluster_queue", "reason", "cause"),
    ),
    Family(
        "muster_cluster_queue_used_seconds",
        "counter",
        "Amount times seconds that admitted gangs held: device seconds, core seconds; counted by the one that leads.",
        ("cluster_queue", "flavor", "resource"),
    ),
    Family(
        "muster_local_queue_used_seconds",
        "counter",
        "The same of each LocalQueue; queue_namespace is its namespace.",
        ("cluster_queue", "queue_namespace", "local_queue", "flavor", "resource"),
    ),
    Family(
        "muster_cluster_queue_idle_seconds",
        "counter",
        "Devices times seconds that gangs held and did not all run. reserved: admission checks were open, which is not "
        "in what was used; starting: not all pods were ready yet; recovering: they were, and were no more; leaving: "
        "evicted, and pods were ending.",
        ("cluster_queue", "state", "flavor", "resource"),
    ),
    Family(
        "muster_evicted_seconds",
        "counter",
        "Of it, what gangs that were evicted had held since their admission, which is the most that they lose.",
        ("cluster_queue", "reason", "flavor", "resource"),
    ),
    Family(
        "muster_pending_requests",
        "gauge",
        "What gangs that wait for quota or nodes ask for, as quota counts it.",
        ("cluster_queue", "resource"),
    ),
    Family(
        "muster_admission_wait_seconds",
        "histogram",
        "From a gang's creation, or its last return to the queue, to its admission.",
        ("cluster_queue",),
        _WAIT,
    ),
    Family("muster_cycle_duration_seconds", "histogram", "Time that one decision cycle took.", (), _CYCLE),
    Family("muster_cycle_steps", "counter", "Trials made by decision cycles."),
    Family("muster_cycle_failures", "counter", "Decision cycles that failed, by a defect of Muster."),
    Family("muster_steps", "counter", "Steps taken in the lives of jobs.", ("step",)),
    Family("muster_write_failures", "counter", "Writes that failed.", ("error",)),
    *(Family(f"muster_cluster_queue_{what}", "gauge", text, _OF_QUEUE) for what, text in _AMOUNTS.items()),
    Family(
        "muster_cluster_queue_weighted_share",
        "gauge",
        "Dominant share of what it borrows, in thousandths, divided by its weight; +Inf where that is 0.",
        ("cluster_queue", "cohort"),
    ),
    *(Family(f"muster_cohort_{what}", "gauge", text, _OF_COHORT) for what, text in _AMOUNTS.items()),
    Family("muster_cohort_weighted_share", "gauge", "The same of a Cohort.", ("cohort",)),
    Family(
        "muster_flavor_nominal_quota",
        "gauge",
        "Nominal quota of all ClusterQueues and Cohorts for a flavor that is not elastic; without what no node has, as "
        "requests for something else count as it (resources.transformations).",
        ("flavor", "resource"),
    ),
    Family(
        "muster_flavor_capacity",
        "gauge",
        "Allocatable of the nodes of a flavor that is not elastic and are ready and not cordoned.",
        ("flavor", "resource"),
    ),
    Family(
        "muster_ledger_drift",
        "gauge",
        "Differences between the books and their recomputation, and between what was watched and what the API server "
        "has; must be 0.",
    ),
    Family(
        "muster_api_requests",
        "counter",
        "Answers of the API server; code 0 is none. Refusals by namespaces that are being deleted are left out.",
        ("verb", "resource", "subresource", "code"),
    ),
    Family("muster_watch_age_seconds", "gauge", "Since a watch last said anything.", ("kind",)),
    Family("muster_events_dropped", "counter", "Events that were given up, by why.", ("why",)),
    Family(
        "muster_webhook_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the webhook's certificate ends; absent where policies hold.",
    ),
    Family(
        "muster_web_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate of the page and the visibility API ends; absent where they are served without.",
    ),
)
"""Beside them stand `process_*`, of the process itself."""

REPEATED = (
    ("PodsReadyTimeout", "WaitForStart"),
    ("PodsReadyTimeout", "WaitForRecovery"),
    ("NodeFailures", ""),
    ("AdmissionCheck", ""),
)
"""(reason, cause) of evictions that come back by themselves; an alert counts them."""
IDLE = ("reserved", "starting", "recovering", "leaving")
"""How a gang stands that holds devices and does not run whole."""
_LOSES = ("Preempted", "NodeFailures", "PodsReadyTimeout")
"""Reasons for which gangs are mostly evicted that ran."""
ERRORS = ("Conflict", "Forbidden", "Invalid", "TooManyRequests", "Unavailable", "TimeoutError")
"""What writes mostly fail with."""

_EVERY = LabelSelector()
_BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}


class Numbers(Protocol):
    """What the metrics read when they are scraped."""

    def queues(self) -> Iterable[tuple[str, str, Any, Mapping[tuple[str, str], int]]]:
        """(kind: ClusterQueue or Cohort, name, QueueNumbers, (flavor, resource) -> what siblings hold of its quota)."""

    def waiting(self) -> Iterable[tuple[str, Verdict, float]]:
        """(ClusterQueue, why and what it asks for, seconds since its creation or eviction) of each gang that waits."""

    def held_by(self, key: tuple[str, str]) -> tuple[Workload, float] | None:
        """A gang that is admitted, and for how many seconds; None of others."""

    def held_up(self) -> Iterable[tuple[Literal["reserved", "leaving", "overdue"], str, float]]:
        """(state, ClusterQueue, seconds) of each gang that has its quota and is not admitted yet, since its
        reservation, or was evicted, since then, and since its pods ought to have ended."""

    def cluster_queues(self) -> Iterable[str]: ...
    def inactive(self) -> Iterable[tuple[str, str]]:
        """(ClusterQueue, reason of its condition Active) of each that admits nothing."""

    def local_queues(self) -> Iterable[tuple[str, str, str, Mapping[str, str]]]:
        """(namespace, name, ClusterQueue, labels)."""

    def flavors(self) -> Iterable[tuple[str, str, int, int]]:
        """(flavor, resource, nominal quota, capacity) of those that are not elastic."""

    def queue_of_gang(self, key: tuple[str, str]) -> str:
        """Its ClusterQueue; "" if there is none."""

    def api_calls(self) -> Iterable[tuple[tuple[str, str, str, int], int]]: ...
    def watch_age(self) -> Iterable[tuple[str, float]]: ...
    def leading(self) -> bool: ...
    def standstills(self) -> list[tuple[str, int]]: ...
    def held(self) -> tuple[str, bool] | None:
        """(mode, are jobs held), once it was tried."""

    def events_dropped(self) -> Mapping[str, int]: ...
    def certificates_end(self) -> Mapping[str, float]:
        """Of `webhook` and `web`, where one is served: seconds since the epoch."""


class Metrics:
    """All metrics of one controller. by_resource: amounts of each queue, cohort, flavor and resource among them;
    local_queues: and of the LocalQueues with these labels, None: of none."""

    def __init__(
        self,
        numbers: Numbers,
        *,
        version: str = "",
        by_resource: bool = True,
        local_queues: LabelSelector | None = _EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody asks for
        self.registry = CollectorRegistry()
        self._numbers = numbers
        counted = {
            name: _counted(_BY_NAME[f"muster_{name}"], self.registry)
            for name in (
                "cycle_duration_seconds",
                "cycle_steps",
                "cycle_failures",
                "admitted_workloads",
                "admission_wait_seconds",
                "evicted_workloads",
                "steps",
                "write_failures",
                "ledger_drift",
                "build_info",
            )
        }
        self._cycle: Histogram = counted["cycle_duration_seconds"]
        self._steps: Counter = counted["cycle_steps"]
        self._undecided: Counter = counted["cycle_failures"]
        self._admitted: Counter = counted["admitted_workloads"]
        self._wait: Histogram = counted["admission_wait_seconds"]
        self._evicted: Counter = counted["evicted_workloads"]
        self._taken: Counter = counted["steps"]
        self._failed: Counter = counted["write_failures"]
        self._used = _Used(numbers.leading, clock)
        self._by_queue: set[tuple[Any, ...]] = set()
        """(metric, ClusterQueue, other labels) of the series that were begun."""
        self._clock = clock
        self._reserved: dict[tuple[str, str], float] = {}
        """Gangs whose checks are open, by a clock that began when they began to wait. Of those that were reserved under
        another leader that is not known: they are counted, and their wait is not."""
        self._drift = 0
        # What was found by one that led once is of that time: whoever leads finds it anew.
        counted["ledger_drift"].set_function(lambda: self._drift if numbers.leading() else 0)
        counted["build_info"].labels(version).set(1)
        for error in ERRORS:
            self._failed.labels(error)
        self.registry.register(_Scraped(numbers, self._used, by_resource=by_resource, local_queues=local_queues))
        ProcessCollector(registry=self.registry)

    def follow(self, watchers: Any) -> None:
        """Have a controller tell all that is counted."""
        for what in (
            "plan",
            "undecided",
            "decision",
            "admitted",
            "evicted",
            "step",
            "failure",
            "drift",
            "workload",
            "readiness",
            "turn",
        ):
            getattr(watchers, what).append(getattr(self, what))

    def plan(self, plan: Plan, seconds: float) -> None:
        self._cycle.observe(seconds)
        self._steps.inc(plan.steps)

    def undecided(self) -> None:
        self._undecided.inc()

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            if decision.admitted:
                self._of(self._wait, decision.admission.cluster_queue).observe(decision.waited_ms / 1000)
            else:
                self._reserved[decision.key] = self._clock() - decision.waited_ms / 1000
        elif isinstance(decision, Evict):
            self._reserved.pop(decision.key, None)
            self._was_evicted(decision.key, *evicted_as(decision.reason))

    def admitted(self, gang: tuple[str, str]) -> None:
        queue = self._numbers.queue_of_gang(gang)
        self._of(self._admitted, queue).inc()
        if (since := self._reserved.pop(gang, None)) is not None:
            self._of(self._wait, queue).observe(self._clock() - since)

    def evicted(self, gang: tuple[str, str], reason: str, cause: str) -> None:
        self._reserved.pop(gang, None)
        self._was_evicted(gang, reason, cause)

    def _was_evicted(self, gang: tuple[str, str], reason: str, cause: str) -> None:
        self._of(self._evicted, self._numbers.queue_of_gang(gang), reason, cause).inc()
        if (held := self._numbers.held_by(gang)) is not None:
            self._used.lost(*held, reason)

    def workload(self, _old: Any, new: Any) -> None:
        """A Workload as the informers had it, and as they have it."""
        if new is not None:
            self._used.is_now(new.view.value)
        elif _old is not None:
            self._used.is_gone(_old.view.value.key)

    def readiness(self, gang: Key, lacks: str) -> None:
        """Of an admitted gang: `starting` or `recovering` while not all of its pods are ready, else ""."""
        self._used.stands(gang, lacks)

    def turn(self) -> None:
        """It is about to lead, or leads no more: what was held since the last look, another counts."""
        self._used.begin_anew()

    def step(self, _key: tuple[str, str, str], step: object) -> None:
        self._taken.labels(type(step).__name__).inc()

    def failure(self, _key: object, error: Exception) -> None:
        self._failed.labels(type(error).__name__).inc()

    def drift(self, count: int) -> None:
        self._drift = count

    def text(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """The same, one metric at a time, so that whoever asks can let others have their turn in between: of a thousand
        queues the whole takes a second. All numbers are of the moment in which the first part is asked for."""
        self._keep_to_the_queues()
        for metric in list(self.registry.collect()):
            yield generate_latest(_One(metric))

    def _of(self, metric: Any, queue: str, *more: str) -> Any:
        self._by_queue.add((metric, queue, *more))
        return metric.labels(queue, *more)

    def _keep_to_the_queues(self) -> None:
        """What alerts ask the increase of begins at 0 for each queue, on replicas that do not lead as well: of a series
        that is born with a number Prometheus does not see the increase. What was counted of queues that are gone
        goes with them."""
        known = set(self._numbers.cluster_queues())
        for queue in known:
            self._of(self._admitted, queue)
            self._of(self._wait, queue)
            for reason, cause in REPEATED:
                self._of(self._evicted, queue, reason, cause)
        for queue in known & self._used.queues():  # dashboards ask it of these, and others have nobody to evict
            for reason, cause in map(evicted_as, EvictReason):
                self._of(self._evicted, queue, reason, cause)
        for metric, *labels in [one for one in self._by_queue if one[1] and one[1] not in known]:
            self._by_queue.discard((metric, *labels))
            metric.remove(*labels)
        self._used.keep_to(known, {(namespace, name) for namespace, name, *_ in self._numbers.local_queues()})
        for gang in [gang for gang in self._reserved if not self._numbers.queue_of_gang(gang)]:
            del self._reserved[gang]  # deleted while its checks were open


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class _Meter:
    """Amounts times seconds. Each change settles what was held until then, so that a scrape costs as much as there are
    costs, and nothing hangs on how often there is one."""

    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads
        self._now: dict[_Cost, tuple[int, float]] = {}
        """(what is held, since when it is not counted yet)."""
        self.total: dict[_Cost, float] = {}
        """Amount times seconds, in the units of the engine, until it was settled last."""

    def add(self, cost: _Cost, amount: int, now: float) -> None:
        """More is held from now on, or less."""
        held, since = self._settle(cost, now)
        if held := held + amount:
            self._now[cost] = held, since
        else:
            del self._now[cost]

    def settle(self, now: float) -> None:
        for cost in list(self._now):
            self._settle(cost, now)

    def keep_to(self, known: Callable[[_Cost], bool]) -> None:
        """What was counted of others, and of which nobody holds anything, goes."""
        for cost in [cost for cost in self.total if cost not in self._now and not known(cost)]:
            del self.total[cost]

    def _settle(self, cost: _Cost, now: float) -> tuple[int, float]:
        held, since = self._now.get(cost, (0, now))
        self.total[cost] = self.total.get(cost, 0.0) + (held * (now - since) if self._leads() else 0.0)
        self._now[cost] = held, now
        return held, now


@dataclass(frozen=True, slots=True)
class _Held:
    """What a gang holds, and for whom it is counted."""

    cluster_queue: str
    local_queue: Key
    usage: tuple[tuple[tuple[str, str], int], ...]
    admitted: bool
    idle: str
    """One of IDLE; "" while it runs whole, or while nobody has looked at its pods yet."""


class _Used:
    """What gangs hold, over time: by ClusterQueue, by LocalQueue, and while they stand idle. All of it changes in the
    same moments, so that one adds up to the other."""

    def __init__(self, leads: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_queue, self.by_local, self.idle = (_Meter(leads) for _ in range(3))
        """(ClusterQueue, flavor, resource); (ClusterQueue, namespace, LocalQueue, flavor, resource); (ClusterQueue, how
        it stands, flavor, resource)."""
        self._gangs: dict[Key, _Held] = {}
        self._lost: dict[tuple[str, _Cost], float] = {}
        """Of gangs that were evicted, by reason, as in `by_queue`."""

    def settle(self) -> None:
        """Bring the totals up to now."""
        now = self._clock()
        for meter in (self.by_queue, self.by_local, self.idle):
            meter.settle(now)

    def begin_anew(self) -> None:
        """Count from now on. Who led before may have seen pods since that are not looked at yet."""
        self.settle()
        for key, held in list(self._gangs.items()):
            if held.idle in _BY_PODS:
                self._changes(key, replace(held, idle=""))

    def is_now(self, gang: Workload) -> None:
        before = self._gangs.get(gang.key)
        now = None
        if gang.admission is not None and not gang.finished:
            charge = charge_of(gang)
            known = before.idle if before is not None and before.idle in _BY_PODS and gang.admitted else ""
            idle = "leaving" if gang.evicted else known if gang.admitted else "reserved"
            now = _Held(charge.queue, (gang.namespace, gang.queue), charge.usage, gang.admitted, idle)
        self._changes(gang.key, now)

    def is_gone(self, key: Key) -> None:
        self._changes(key, None)

    def stands(self, key: Key, lacks: str) -> None:
        """It is admitted, and its pods were looked at."""
        held = self._gangs.get(key)
        if held is not None and held.admitted and held.idle not in ("leaving", lacks):
            self._changes(key, replace(held, idle=lacks))

    def lost(self, gang: Workload, seconds: float, reason: str) -> None:
        """It is evicted, so long after it was admitted."""
        charge = charge_of(gang)
        for (flavor, resource), amount in charge.usage:
            cost = (reason, (charge.queue, flavor, resource))
            self._lost[cost] = self._lost.get(cost, 0.0) + amount * seconds

    def losses(self) -> Iterator[tuple[str, _Cost, float]]:
        """(reason, what, amount times seconds so far). What is held, or was, begins at 0 for the usual reasons."""
        begun = dict.fromkeys(((reason, cost) for cost in self.by_queue.total for reason in _LOSES), 0.0)
        for (reason, cost), amount in (begun | self._lost).items():
            yield reason, cost, amount

    def queues(self) -> set[str]:
        """ClusterQueues of gangs that are admitted, or were."""
        return {cost[0] for cost in self.by_queue.total}

    def keep_to(self, queues: set[str], local_queues: set[Key]) -> None:
        """What was counted of queues that are gone, and of which nobody holds anything, goes."""
        self.by_queue.keep_to(lambda cost: cost[0] in queues)
        self.by_local.keep_to(lambda cost: cost[0] in queues and cost[1:3] in local_queues)
        self.idle.keep_to(lambda cost: cost[0] in queues)
        for reason, cost in [lost for lost in self._lost if lost[1] not in self.by_queue.total]:
            del self._lost[reason, cost]

    def _changes(self, key: Key, now: _Held | None) -> None:
        before = self._gangs.get(key)
        if before == now:
            return
        at = self._clock()
        if before is not None:
            self._count(before, -1, at)
            del self._gangs[key]
        if now is not None:
            self._gangs[key] = now
            self._count(now, 1, at)

    def _count(self, held: _Held, sign: int, at: float) -> None:
        for fr, amount in held.usage:
            if held.admitted:
                self.by_queue.add((held.cluster_queue, *fr), sign * amount, at)
                self.by_local.add((held.cluster_queue, *held.local_queue, *fr), sign * amount, at)
            if held.idle and is_device(fr[1]):
                self.idle.add((held.cluster_queue, held.idle, *fr), sign * amount, at)


_BY_PODS = ("starting", "recovering")
"""Of IDLE, what only pods tell."""


def _counted(family: Family, registry: CollectorRegistry) -> Any:
    if family.type == "histogram":
        return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=registry)
    made = Counter if family.type == "counter" else Gauge
    return made(family.name, family.help, family.labels, registry=registry)


class _Scraped:
    """Numbers that are read rather than counted."""

    def __init__(self, numbers: Numbers, used: _Used, *, by_resource: bool, local_queues: LabelSelector | None) -> None:
        self._numbers = numbers
        self._used = used
        self._by_resource = by_resource
        self._local_queues = local_queues

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        made: dict[str, Metric] = {}

        def put(name: str, value: float, *labels: str) -> None:
            family = _BY_NAME[f"muster_{name}"]
            if family.name not in made:
                kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
                made[family.name] = kind(family.name, family.help, labels=family.labels)
            made[family.name].add_metric(list(labels), value)  # type: ignore[attr-defined]

        self._collect(put)
        yield from made.values()

    def _collect(self, put: Any) -> None:
        numbers = self._numbers
        put("leading", float(numbers.leading()))
        if numbers.leading() and (held := numbers.held()) is not None:
            put("jobs_held", float(held[1]), held[0])
        if numbers.leading():
            for step, gangs in numbers.standstills():
                put("standstill_gangs", gangs, step)
        for queue, reason in numbers.inactive():
            put("cluster_queue_inactive", 1, queue, reason)
        counted = self._queues(put)
        self._waiting(put, counted if numbers.leading() else [])
        for flavor, resource, nominal, capacity in numbers.flavors():
            put("flavor_nominal_quota", _base(resource, nominal), flavor, resource)
            put("flavor_capacity", _base(resource, capacity), flavor, resource)
        calls = dict(numbers.api_calls())
        for verb, resource, subresource in sorted({asked[:3] for asked in calls}):
            calls.setdefault((verb, resource, subresource, 403), 0)  # begins at 0: an alert asks for its increase
        for (verb, resource, subresource, code), count in calls.items():
            put("api_requests", count, verb, resource, subresource, str(code))
        for kind, seconds in numbers.watch_age():
            put("watch_age_seconds", seconds, kind)
        for why, count in sorted(numbers.events_dropped().items()):
            put("events_dropped", count, why)
        for name, ends in numbers.certificates_end().items():
            put(f"{name}_certificate_expiry_timestamp_seconds", ends)

    def _queues(self, put: Any) -> list[tuple[str, str]]:
        """What ClusterQueues count: (ClusterQueue, resource)."""
        used: dict[_Cost, float] = {}
        idle: dict[_Cost, float] = {}
        named: dict[str, tuple[tuple[str, str], ...]] = {}
        counted: dict[tuple[str, str], None] = {}
        for kind, name, numbers, lent in self._numbers.queues():
            prefix = "cluster_queue" if kind == "ClusterQueue" else "cohort"
            labels = (name, numbers.cohort) if kind == "ClusterQueue" else (name,)
            if kind == "ClusterQueue":
                put("workloads", numbers.pending, name, "pending")
                put("workloads", numbers.reserving - numbers.admitted, name, "reserved")
                put("workloads", numbers.admitted, name, "admitted")
            share = numbers.weighted_share
            put(f"{prefix}_weighted_share", math.inf if share >= quantity.INT64_MAX else float(share), *labels)
            if kind == "ClusterQueue":
                named[name] = numbers.order
            for flavor, resource in numbers.order if self._by_resource else ():
                pair = (flavor, resource)
                nominal, reserved = numbers.nominal.get(pair, 0), numbers.reserved.get(pair, 0)
                for what, amount in (
                    ("nominal_quota", nominal),
                    ("reserved", reserved),
                    ("used", numbers.used.get(pair, 0)),
                    ("borrowed", numbers.borrowed.get(pair, 0)),
                    ("lent", lent.get(pair, 0)),
                ):
                    put(f"{prefix}_{what}", _base(resource, amount), *labels, flavor, resource)
                if kind == "ClusterQueue":  # begins at 0: of a series that is born with a number no increase is seen
                    used[name, flavor, resource] = 0.0
                    if is_device(resource):
                        idle.update(((name, state, flavor, resource), 0.0) for state in IDLE)
                    counted[name, resource] = None
        if not self._by_resource:
            return list(counted)
        self._used.settle()
        used.update(self._used.by_queue.total)
        idle.update(self._used.idle.total)
        for metric, amounts in (
            ("cluster_queue_used_seconds", used),
            ("cluster_queue_idle_seconds", idle),
            ("local_queue_used_seconds", self._of_local_queues(named)),
        ):
            for cost, amount in amounts.items():
                put(metric, _base(cost[-1], amount), *cost)
        for reason, (queue, flavor, resource), amount in self._used.losses():
            put("evicted_seconds", _base(resource, amount), queue, reason, flavor, resource)
        return list(counted)

    def _of_local_queues(self, named: Mapping[str, Iterable[tuple[str, str]]]) -> dict[_Cost, float]:
        """What those that are to be seen used. named: ClusterQueue -> (flavor, resource), which begin at 0."""
        out: dict[_Cost, float] = {}
        if self._local_queues is None:
            return out
        seen: dict[_Cost, bool] = {}
        for namespace, name, queue, labels in self._numbers.local_queues():
            if matches(self._local_queues, labels):
                out.update(((queue, namespace, name, *fr), 0.0) for fr in named.get(queue, ()))
                seen[namespace, name] = True
            else:
                seen[namespace, name] = False
        of_gone = matches(self._local_queues, {})  # gangs go on whose LocalQueue was deleted
        totals = self._used.by_local.total.items()
        out.update((cost, amount) for cost, amount in totals if seen.get(cost[1:3], of_gone))
        return out

    def _waiting(self, put: Any, counts: Iterable[tuple[str, str]]) -> None:
        """counts: (ClusterQueue, resource) of which 0 is said where nobody asks."""
        counted: dict[tuple[str, str], int] = {}
        oldest: dict[str, float] = {}
        asked = dict.fromkeys(counts, 0)
        for queue, verdict, seconds in self._numbers.waiting():
            why, reason = verdict.why, verdict.why.reason.value
            counted[queue, reason] = counted.get((queue, reason), 0) + 1
            if why.reason in _FOR_ROOM:
                if why.detail not in _PASSED_BY_NOBODY:
                    oldest[queue] = max(oldest.get(queue, 0.0), seconds)
                for _, amounts in verdict.requests if self._by_resource else ():
                    for resource, amount in amounts:
                        asked[queue, resource] = asked.get((queue, resource), 0) + amount
        for (queue, resource), amount in sorted(asked.items()):
            put("pending_requests", _base(resource, amount), queue, resource)
        for (queue, reason), count in sorted(counted.items()):
            put("pending_workloads", count, queue, reason)
        for queue, seconds in sorted(oldest.items()):
            put("oldest_pending_seconds", seconds, queue)
        longest: dict[tuple[str, str], float] = {}
        for what, queue, seconds in self._numbers.held_up():
            longest[what, queue] = max(longest.get((what, queue), 0.0), seconds)
        for (state, queue), seconds in sorted(longest.items()):
            put(f"oldest_{state}_seconds", seconds, queue)


_FOR_ROOM = {Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED}
_PASSED_BY_NOBODY = {Detail.NEVER_FITS_NODES, Detail.NODES_TAKEN, Detail.CONSTRAINT_REFUSED, Detail.INVALID}
"""They would not start if they were alone."""


def _base(resource: str, amount: float) -> float:
    """Cores for cpu, of which the engine counts thousandths."""
    return amount / 1000 if resource == "cpu" else float(amount)
