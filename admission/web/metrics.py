"""Prometheus metrics, folded from the stream of Plans, decisions and steps, and read from the State when scraped.

Label values come from names of queues, cohorts, flavors and resources, and from closed enums: their number is bounded
by what the platform team wrote, never by how many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from admission.engine.model import Admit, Decision, Evict, Plan, Verdict

_CYCLE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_WAIT = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)


class Numbers(Protocol):
    """What the metrics read when they are scraped."""

    def queues(self) -> Iterable[tuple[str, str, Any]]:
        """(kind: ClusterQueue or Cohort, name, QueueNumbers)."""

    def verdicts(self) -> Iterable[Verdict]: ...
    def queue_of(self, key: tuple[str, str]) -> str: ...
    def api_calls(self) -> Iterable[tuple[tuple[str, str, str, int], int]]: ...
    def watch_age(self) -> Iterable[tuple[str, float]]: ...
    def leading(self) -> bool: ...


class Metrics:
    """All metrics of one controller."""

    def __init__(self, numbers: Numbers) -> None:
        self.registry = CollectorRegistry()
        self._cycle = Histogram(
            "muster_cycle_duration_seconds", "Time one decision cycle took.", buckets=_CYCLE, registry=self.registry
        )
        self._steps = Counter("muster_cycle_steps", "Trials made by decision cycles.", registry=self.registry)
        self._admitted = Counter(
            "muster_admitted_workloads", "Gangs admitted.", ["cluster_queue"], registry=self.registry
        )
        self._wait = Histogram(
            "muster_admission_wait_seconds",
            "From a gang's creation to its reservation.",
            ["cluster_queue"],
            buckets=_WAIT,
            registry=self.registry,
        )
        self._evicted = Counter(
            "muster_evicted_workloads", "Gangs evicted for another gang.", ["reason"], registry=self.registry
        )
        self._taken = Counter("muster_steps", "Steps taken in the lives of jobs.", ["step"], registry=self.registry)
        self._failed = Counter("muster_write_failures", "Writes that failed.", ["error"], registry=self.registry)
        self._drift = Gauge(
            "muster_ledger_drift", "Differences between the books and their recomputation; 0.", registry=self.registry
        )
        self._events_dropped = Gauge("muster_events_dropped", "Events given up under load.", registry=self.registry)
        self.registry.register(_Scraped(numbers))

    def plan(self, plan: Plan, seconds: float) -> None:
        self._cycle.observe(seconds)
        self._steps.inc(plan.steps)

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            self._admitted.labels(decision.admission.cluster_queue).inc()
            self._wait.labels(decision.admission.cluster_queue).observe(decision.waited_ms / 1000)
        elif isinstance(decision, Evict):
            self._evicted.labels(decision.reason.value).inc()

    def step(self, _key: object, step: object) -> None:
        self._taken.labels(type(step).__name__).inc()

    def failure(self, _key: object, error: Exception) -> None:
        self._failed.labels(type(error).__name__).inc()

    def drift(self, count: int) -> None:
        self._drift.set(count)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Scraped:
    """Numbers that are read rather than counted."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._queues()
        yield self._pending()
        calls = GaugeMetricFamily(
            "muster_api_calls", "Answers of the API server.", labels=["verb", "resource", "subresource", "code"]
        )
        for (verb, resource, subresource, code), count in self._numbers.api_calls():
            calls.add_metric([verb, resource, subresource, str(code)], count)
        yield calls
        age = GaugeMetricFamily("muster_watch_age_seconds", "Since a watch last said anything.", labels=["kind"])
        for kind, seconds in self._numbers.watch_age():
            age.add_metric([kind], seconds)
        yield age
        leading = GaugeMetricFamily("muster_leading", "1 on the replica that decides.")
        leading.add_metric([], float(self._numbers.leading()))
        yield leading

    def _queues(self) -> Iterator[Metric]:
        counts = GaugeMetricFamily("muster_workloads", "Gangs of a ClusterQueue.", labels=["cluster_queue", "state"])
        amounts = GaugeMetricFamily(
            "muster_quota",
            "Quota and its use, in the units of the resource (milli for cpu).",
            labels=["kind", "name", "flavor", "resource", "what"],
        )
        share = GaugeMetricFamily("muster_weighted_share", "Weighted dominant share.", labels=["kind", "name"])
        for kind, name, numbers in self._numbers.queues():
            if kind == "ClusterQueue":
                counts.add_metric([name, "pending"], numbers.pending)
                counts.add_metric([name, "reserving"], numbers.reserving)
                counts.add_metric([name, "admitted"], numbers.admitted)
            share.add_metric([kind, name], float(numbers.weighted_share))
            for flavor, resource in numbers.order:
                pair = (flavor, resource)
                nominal, reserved = numbers.nominal.get(pair, 0), numbers.reserved.get(pair, 0)
                for what, amount in (
                    ("nominal", nominal),
                    ("reserved", reserved),
                    ("used", numbers.used.get(pair, 0)),
                    ("borrowed", max(0, reserved - nominal)),
                ):
                    amounts.add_metric([kind, name, flavor, resource, what], amount)
        yield counts
        yield amounts
        yield share

    def _pending(self) -> Metric:
        pending = GaugeMetricFamily(
            "muster_pending_workloads", "Gangs that wait, by reason.", labels=["cluster_queue", "reason"]
        )
        counted: dict[tuple[str, str], int] = {}
        for verdict in self._numbers.verdicts():
            at = (self._numbers.queue_of(verdict.key), verdict.why.reason.value)
            counted[at] = counted.get(at, 0) + 1
        for (queue, reason), count in sorted(counted.items()):
            pending.add_metric([queue, reason], count)
        return pending
