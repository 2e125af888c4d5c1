"""Expressions of Prometheus, parsed by the parser that PyPI has (promql-parser) and tried on scrapes.

`query` does what the alerts and dashboards use of the language: selectors, functions over a range, histogram_quantile,
aggregation, arithmetic, comparison, and/or/unless. What it does not know it refuses. It asks whoever keeps the samples:
`evaluate` of two scrapes (functions over a range look at both, whatever range is written), `tests.chart.timeline` of
hours of them. An expression that names a metric or a label that no program shows is found by `names`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pytest
from prometheus_client.parser import text_string_to_metric_families

parser: Any = importlib.import_module("promql_parser") if importlib.util.find_spec("promql_parser") else None
needs_parser = pytest.mark.skipif(parser is None, reason="promql-parser is not there: uv sync --group chart")

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = Mapping[tuple[str, Labels], float]


def scrape(text: str) -> Scrape:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def names(expression: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels that are asked of it) of each selector: its matchers, and what is grouped by around it."""

    def walk(node: Any, around: set[str]) -> Iterator[tuple[str, set[str]]]:
        kind = type(node).__name__
        if kind == "VectorSelector":
            yield node.name, around | {one.name for one in node.matchers.matchers}
        elif kind == "MatrixSelector":
            yield from walk(node.vector_selector, around)
        elif kind == "AggregateExpr":
            yield from walk(node.expr, around | set(node.modifier.labels if node.modifier else ()))
        elif kind == "BinaryExpr":
            matching = node.modifier.matching if node.modifier else None
            more = set(matching.labels) if matching else set()
            yield from walk(node.lhs, around | more)
            passed = str(node.op) in ("and", "unless") and matching is not None and "Include" in str(matching.type)
            yield from walk(node.rhs, more if passed else around | more)  # of what passes nothing is in the answer
        elif kind == "Call":
            for one in node.args:
                yield from walk(one, around)
        elif kind in ("ParenExpr", "UnaryExpr"):
            yield from walk(node.expr, around)

    return walk(parser.parse(expression), set())


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Any:
    return parser.parse(expression)


class Source(Protocol):
    """Samples, as of one moment."""

    @property
    def now(self) -> float: ...
    def instant(self, node: Any) -> Vector:
        """What a selector finds."""

    def over(self, function: str, node: Any) -> Vector:
        """What a function gives of the range of each series that a selector finds."""


OVER_A_RANGE = ("rate", "increase", "changes", "last_over_time", "max_over_time", "avg_over_time")


def query(expression: str, source: Source) -> Vector:
    """What the expression gives."""

    def ev(node: Any) -> Vector | float:
        kind = type(node).__name__
        if kind == "NumberLiteral":
            return float(node.val)
        if kind == "ParenExpr":
            return ev(node.expr)
        if kind == "UnaryExpr":
            return _each(ev(node.expr), lambda x: -x)
        if kind == "VectorSelector":
            return source.instant(node)
        if kind == "Call":
            return call(node.func.name, node.args)
        if kind == "AggregateExpr":
            return _aggregate(str(node.op), node.modifier, _vector(ev(node.expr)))
        if kind == "BinaryExpr":
            return _binary(str(node.op), node.modifier, ev(node.lhs), ev(node.rhs))
        raise NotImplementedError(kind)

    def call(name: str, args: list[Any]) -> Vector | float:
        if name in OVER_A_RANGE:
            (ranged,) = args
            assert ranged.range.total_seconds() > 0
            return source.over(name, ranged)
        values = [ev(one) for one in args]
        if name == "time":
            return source.now
        if name == "vector":
            return {frozenset(): float(values[0])}  # type: ignore[arg-type]
        if name == "absent":
            return {} if _vector(values[0]) else {frozenset(): 1.0}
        if name == "histogram_quantile":
            return _quantile(float(values[0]), _vector(values[1]))  # type: ignore[arg-type]
        raise NotImplementedError(name)

    answer = ev(_parsed(expression))
    return {frozenset(): answer} if isinstance(answer, float) else answer


@dataclass(frozen=True)
class _TwoScrapes:
    before: Scrape
    after: Scrape
    seconds: float
    now: float

    def instant(self, node: Any) -> Vector:
        return select(node, self.before if node.offset else self.after)

    def over(self, function: str, node: Any) -> Vector:
        old, new = select(node.vector_selector, self.before), select(node.vector_selector, self.after)
        if function == "last_over_time":
            return {**old, **new}
        if function == "max_over_time":
            return {labels: max(value, old.get(labels, value)) for labels, value in {**old, **new}.items()}
        if function == "avg_over_time":
            return {labels: (value + old.get(labels, value)) / 2 for labels, value in {**old, **new}.items()}
        if function == "changes":
            return {labels: float(old.get(labels, value) != value) for labels, value in {**old, **new}.items()}
        over = self.seconds if function == "rate" else 1.0
        # Of a series that was not there before there is one sample: no increase is known, whatever its value.
        return {labels: (value - old[labels]) / over for labels, value in new.items() if labels in old}


def evaluate(expression: str, before: Scrape, after: Scrape, *, seconds: float = 60.0, now: float = 0.0) -> Vector:
    """What the expression gives at the second scrape, `seconds` after the first, at the time `now`."""
    return query(expression, _TwoScrapes(before, after, seconds, now))


def _vector(value: Vector | float) -> Vector:
    assert isinstance(value, dict)
    return value


def _each(value: Vector | float, change: Callable[[float], float]) -> Vector | float:
    return change(value) if isinstance(value, float) else {labels: change(one) for labels, one in value.items()}


def select(node: Any, scraped: Scrape) -> Vector:
    """Those of the samples that a selector finds."""

    def fits(labels: Mapping[str, str]) -> bool:
        for one in node.matchers.matchers:
            have, how = labels.get(one.name, ""), str(one.op).rpartition(".")[2]
            equal = have == one.value if how in ("Equal", "NotEqual") else re.fullmatch(one.value, have) is not None
            if equal == how.startswith("Not"):
                return False
        return True

    return {
        labels: value
        for (name, labels), value in scraped.items()
        if node.name in (None, name) and fits({**dict(labels), "__name__": name})
    }


def _aggregate(op: str, modifier: Any, vector: Vector) -> Vector:
    if op == "topk":  # a run has fewer series than are asked for
        return vector
    if modifier is not None:
        assert str(modifier.type).endswith("By")
    keys = set(modifier.labels) if modifier else set()
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(frozenset(pair for pair in labels if pair[0] in keys), []).append(value)
    how: Callable[[list[float]], float] = {"sum": sum, "max": max, "min": min, "count": len}[op]  # type: ignore[assignment]
    return {labels: float(how(values)) for labels, values in groups.items()}


_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda one, other: one / other if other else one * math.inf,
}
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


def _binary(op: str, modifier: Any, left: Vector | float, right: Vector | float) -> Vector | float:
    if op in _ARITHMETIC:
        if isinstance(left, float) and isinstance(right, float):
            return _ARITHMETIC[op](left, right)
        if isinstance(right, float):
            return _each(left, lambda x: _ARITHMETIC[op](x, right))
        if isinstance(left, float):
            return _each(right, lambda x: _ARITHMETIC[op](left, x))
    if op in _COMPARED and isinstance(right, float):
        return {labels: value for labels, value in _vector(left).items() if _COMPARED[op](value, right)}
    matching = modifier.matching if modifier else None

    def of(labels: Labels) -> Labels:
        if matching is None:
            return labels
        assert str(matching.type).endswith("Include")
        return frozenset(pair for pair in labels if pair[0] in set(matching.labels))

    one, other = _vector(left), _vector(right)
    there = {of(labels): value for labels, value in other.items()}
    if op == "or":
        have = {of(labels) for labels in one}
        return {**one, **{labels: value for labels, value in other.items() if of(labels) not in have}}
    if op in ("and", "unless"):
        return {labels: value for labels, value in one.items() if (of(labels) in there) == (op == "and")}
    # Prometheus refuses what matches several series on a side, but for those that match nothing.
    assert len({of(labels) for labels in one}) == len(one), "many to one"
    assert len(there) == len(other), "one to many"
    if op in _COMPARED:
        return {
            labels: value
            for labels, value in one.items()
            if of(labels) in there and _COMPARED[op](value, there[of(labels)])
        }
    if op in _ARITHMETIC:
        of_both = [labels for labels in one if of(labels) in there]
        return {of(labels): _ARITHMETIC[op](one[labels], there[of(labels)]) for labels in of_both}
    raise NotImplementedError(op)


def _quantile(q: float, vector: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in vector.items():
        bound = float(dict(labels)["le"])
        groups.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, value))
    out: Vector = {}
    for labels, buckets in groups.items():
        buckets.sort()
        total = buckets[-1][1]
        if not total:
            out[labels] = math.nan
            continue
        rank, low, below = q * total, 0.0, 0.0
        for bound, value in buckets:
            if value >= rank:
                out[labels] = (
                    low if math.isinf(bound) else low + (bound - low) * ((rank - below) / (value - below or 1))
                )
                break
            low, below = bound, value
    return out
