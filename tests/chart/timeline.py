"""A Prometheus that scrapes replicas of Muster for hours and evaluates the alerts, as far as the rules need one.

Semantics as in Prometheus' promql/functions.go and rules/alerting.go: a selector finds the last sample of five minutes,
and none of a series that its target showed no more, or whose target was not reached; ranges are open on the left;
increases are extrapolated, and count on over resets; an alert fires when its expression gave the same labels at each
evaluation for as long as `for` says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from charts.monitoring import ALERTS
from tests.chart.promql import Labels, Scrape, Vector, query, scrape, select
from tests.chart.promql import names as selected

LOOKBACK_S = 300.0
Series = tuple[str, Labels]
_Samples = dict[str, dict[Series, tuple[list[float], list[float | None]]]]
"""By name: times, and values; None where the series ended."""


@lru_cache(maxsize=4096)
def _read(line: str) -> Scrape:
    return scrape(line)


@lru_cache
def _asked() -> frozenset[str]:
    """Metrics that some alert asks for."""
    return frozenset(metric for alert in ALERTS for metric, _ in selected(alert.expr.replace("@LONG_WAIT@", "1")))


@dataclass
class Fired:
    """An alert that fired, and when, in seconds since the timeline began."""

    name: str
    labels: Mapping[str, str]
    at: float
    value: float
    until: float | None = None


@dataclass
class Prometheus:
    """Times are seconds since the epoch. asked: what the chart puts into the expressions."""

    began: float
    asked: Mapping[str, str]
    fired: list[Fired] = field(default_factory=list)
    _samples: _Samples = field(default_factory=dict)
    _shown: dict[str, set[Series]] = field(default_factory=dict)
    _active: dict[tuple[str, Labels], float] = field(default_factory=dict)
    _firing: dict[tuple[str, Labels], Fired] = field(default_factory=dict)

    def scrape(self, now: float, instance: str, text: str | None, more: Mapping[str, float]) -> None:
        """What a target shows; None of one that is not reached. more: of the process itself."""
        by_scraper = {(name, "muster-metrics") for name in ("job", "service")} | {("namespace", "muster-system")}
        by_scraper |= {(name, instance) for name in ("instance", "pod")}
        found: dict[Series, float] = {}
        if text is not None:
            samples: dict[Series, float] = {}
            for line in text.splitlines():
                if line.partition(" ")[0].partition("{")[0] in _asked():
                    samples.update(_read(line))
            samples.update({(name, frozenset()): value for name, value in more.items()})
            found = {(name, labels | by_scraper): value for (name, labels), value in samples.items()}
        found["up", frozenset(by_scraper)] = float(text is not None)
        self._scraped(now, instance, found)

    def forget(self, now: float, instance: str) -> None:
        """It is a target no more."""
        self._scraped(now, instance, {})

    def _scraped(self, now: float, instance: str, found: Mapping[Series, float]) -> None:
        for series in self._shown.get(instance, set()) - set(found):
            self._add(series, now, None)
        for series, value in found.items():
            self._add(series, now, value)
        self._shown[instance] = set(found)

    def _add(self, series: Series, now: float, value: float | None) -> None:
        times, values = self._samples.setdefault(series[0], {}).setdefault(series, ([], []))
        times.append(now)
        values.append(value)

    def judge(self, now: float) -> None:
        """Evaluate all alerts."""
        at = _At(now, self._samples)
        for alert in ALERTS:
            expression = alert.expr
            for name, value in self.asked.items():
                expression = expression.replace(name, value)
            told = query(expression, at)
            for key in [key for key in self._active if key[0] == alert.name and key[1] not in told]:
                del self._active[key]
                if (over := self._firing.pop(key, None)) is not None:
                    over.until = now - self.began
            for labels, value in told.items():
                since = self._active.setdefault((alert.name, labels), now)
                if now - since >= _seconds(alert.after) and (alert.name, labels) not in self._firing:
                    fired = Fired(alert.name, dict(labels), now - self.began, value)
                    self._firing[alert.name, labels] = fired
                    self.fired.append(fired)


@dataclass(frozen=True)
class _At:
    """All that was scraped until this moment."""

    now: float
    samples: _Samples

    def instant(self, node: Any) -> Vector:
        found, at = {}, self.now - (node.offset.total_seconds() if node.offset else 0.0)
        for series, (times, values) in self.samples.get(node.name, {}).items():
            last = bisect_right(times, at) - 1
            if last >= 0 and times[last] > at - LOOKBACK_S and (value := values[last]) is not None:
                found[series] = value
        return select(node, found)

    def over(self, function: str, node: Any) -> Vector:
        lasts, offset = node.range.total_seconds(), node.vector_selector.offset
        end = self.now - (offset.total_seconds() if offset else 0.0)
        some: dict[Series, list[tuple[float, float]]] = {}
        for series, (times, values) in self.samples.get(node.vector_selector.name, {}).items():
            within = range(bisect_right(times, end - lasts), bisect_right(times, end))
            points = [(times[i], value) for i in within if (value := values[i]) is not None]
            if points:
                some[series] = points
        chosen = select(node.vector_selector, {series: float(i) for i, series in enumerate(some)})
        ordered = list(some.values())
        out: Vector = {}
        for labels, i in chosen.items():
            value = _over(function, ordered[int(i)], end - lasts, end)
            if value is not None:
                out[labels] = value
        return out


def _over(function: str, points: list[tuple[float, float]], begin: float, end: float) -> float | None:
    values = [value for _, value in points]
    if function == "last_over_time":
        return values[-1]
    if function == "max_over_time":
        return max(values)
    if function == "avg_over_time":
        return sum(values) / len(values)
    if function == "changes":
        return float(sum(one != other for one, other in pairwise(values)))
    if function not in ("rate", "increase"):
        raise NotImplementedError(function)
    if len(points) < 2:
        return None
    grown = values[-1] - values[0] + sum(a for a, b in pairwise(values) if b < a)
    first, last = points[0][0], points[-1][0]
    between = (last - first) / (len(points) - 1)
    before, after = first - begin, end - last
    if before >= between * 1.1:
        before = between / 2
    if grown > 0 and values[0] >= 0:
        before = min(before, (last - first) * values[0] / grown)
    if after >= between * 1.1:
        after = between / 2
    grown *= (last - first + before + after) / (last - first)
    return grown / (end - begin) if function == "rate" else grown


def _seconds(after: str) -> float:
    return float(after[:-1]) * {"s": 1, "m": 60, "h": 3600}[after[-1]]
