"""Quota trees for tests: short to write, and drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from admission.engine.model import ClusterQueue, Cohort, FlavorQuotas, FlavorResource, Quota, ResourceGroup
from admission.engine.quota import Tree

FLAVOR = "f"


def groups(quotas: Mapping[str, Quota | int], flavor: str = FLAVOR) -> tuple[ResourceGroup, ...]:
    """One group of one flavor; a bare int is a nominal quota without limits."""
    rows = tuple((name, q if isinstance(q, Quota) else Quota(q)) for name, q in quotas.items())
    return (ResourceGroup(tuple(quotas), (FlavorQuotas(flavor, rows),)),) if rows else ()


def queue(name: str, cohort: str = "", quotas: Mapping[str, Quota | int] | None = None, **more: Any) -> ClusterQueue:
    return ClusterQueue(name=name, cohort=cohort, groups=groups(quotas or {}), **more)


def cohort(name: str, parent: str = "", quotas: Mapping[str, Quota | int] | None = None, **more: Any) -> Cohort:
    return Cohort(name=name, parent=parent, groups=groups(quotas or {}), **more)


def fr(resource: str, flavor: str = FLAVOR) -> FlavorResource:
    return (flavor, resource)


RESOURCES = ("a", "b")

_limit = st.none() | st.integers(0, 12)


@st.composite
def configurations(draw: st.DrawFn, weights: bool = False) -> tuple[list[ClusterQueue], list[Cohort]]:
    """Up to 3 levels of cohorts, up to 5 queues, two resources, any limits."""
    names = [f"c{i}" for i in range(draw(st.integers(1, 4)))]

    def quotas() -> dict[str, Quota | int]:
        out: dict[str, Quota | int] = {}
        for resource in draw(st.sets(st.sampled_from(RESOURCES))):
            out[resource] = Quota(draw(st.integers(0, 12)), draw(_limit), draw(_limit))
        return out

    def weight() -> Fraction:
        return Fraction(draw(st.integers(0, 4)), draw(st.integers(1, 3))) if weights else Fraction(1)

    cohorts = [
        cohort(name, draw(st.sampled_from(["", *names[:i]])), quotas(), weight=weight()) for i, name in enumerate(names)
    ]
    queues = [
        queue(f"q{i}", draw(st.sampled_from(["", *names])), quotas(), weight=weight())
        for i in range(draw(st.integers(1, 5)))
    ]
    return queues, cohorts


def usage_by_definition(tree: Tree, at_queues: Mapping[str, Mapping[FlavorResource, int]]) -> dict[str, Any]:
    """Usage of every node from that of the queues: what children hold beyond their local quota, summed."""
    out: dict[str, Any] = {}

    def of(node: Any) -> dict[FlavorResource, int]:
        if node.is_queue:
            total = {key: amount for key, amount in at_queues.get(node.name, {}).items() if amount}
        else:
            total = {}
            for child in node.children:
                for key, amount in of(child).items():
                    rise = max(0, amount - child.local_quota(key))
                    if rise:
                        total[key] = total.get(key, 0) + rise
        out[f"{'q' if node.is_queue else 'c'}/{node.name}"] = total
        return total

    for root in tree.roots():
        of(root)
    return out


def usage_of_tree(tree: Tree) -> dict[str, Any]:
    return {
        **{f"q/{node.name}": dict(node.usage) for node in tree.queues()},
        **{f"c/{node.name}": dict(node.usage) for node in tree.cohorts()},
    }
