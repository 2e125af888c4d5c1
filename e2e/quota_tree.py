"""The cohort tree, recomputed from ClusterQueue and Cohort specs alone, for judging reservations.

An oracle, so plain and apart from the controller's own arithmetic: a queue or cohort keeps `local` of its quota to
itself (what its lending limit withholds), its parent sees only what goes beyond that, and the only limits are what a
node may hold: with a borrowing limit its quota plus that, and at the root the quota of the whole tree.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from e2e.quantities import milli

FlavorResource = tuple[str, str]
Usage = Counter[FlavorResource]


@dataclasses.dataclass
class Node:
    """A ClusterQueue or a Cohort: its quota with all below it, and what is used of that."""

    name: str
    parent: Node | None
    nominal: dict[FlavorResource, int]
    borrowing: dict[FlavorResource, int]
    lending: dict[FlavorResource, int]
    children: list[Node] = dataclasses.field(default_factory=list)
    quota: dict[FlavorResource, int] = dataclasses.field(default_factory=dict)
    usage: Usage = dataclasses.field(default_factory=Counter)

    def local(self, key: FlavorResource) -> int:
        return max(0, self.quota.get(key, 0) - self.lending[key]) if key in self.lending else 0

    def limit(self, key: FlavorResource) -> int | None:
        """The most that may be used in this node, as far as the node itself says."""
        if self.parent is None:
            return self.quota.get(key, 0)
        return self.quota.get(key, 0) + self.borrowing[key] if key in self.borrowing else None


class QuotaTree:
    """The queues and cohorts of one moment, with the usage charged to them."""

    def __init__(self, queues: Mapping[str, Any], cohorts: Mapping[str, Any]) -> None:
        parents = {name: spec.get("parentName") or None for name, spec in cohorts.items()}
        self.queues: dict[str, Node] = {}
        self._cohorts: dict[str, Node] = {}
        self.broken: set[str] = set()  # cohorts on or below a cycle: nothing may be reserved there

        def cohort(name: str, path: tuple[str, ...]) -> Node | None:
            if name in path or name in self.broken:
                self.broken.update(path)
                return None
            if name not in self._cohorts:
                above = parents.get(name)
                parent = cohort(above, (*path, name)) if above else None
                if above and parent is None:
                    self.broken.add(name)
                    return None
                self._cohorts[name] = _node(name, parent, cohorts.get(name, {}))
            return self._cohorts[name]

        for name in parents:
            cohort(name, ())
        for name, spec in queues.items():
            above = spec.get("cohortName") or spec.get("cohort")
            parent = cohort(above, ()) if above else None
            if not above or parent is not None:
                self.queues[name] = _node(name, parent, spec)
        for root in [n for n in (*self.queues.values(), *self._cohorts.values()) if n.parent is None]:
            _sum_up(root)

    def charge(self, queue: str, usage: Usage, sign: int = 1) -> None:
        node = self.queues.get(queue)
        if node is not None:
            for key, amount in usage.items():
                for at, rise in _path(node, key, sign * amount):
                    at.usage[key] += rise

    def over(self, queue: str, usage: Usage) -> list[str]:
        """What was exceeded by charging `usage`, which is in already: only nodes whose usage that raised count."""
        node = self.queues.get(queue)
        if node is None and all(amount <= 0 for amount in usage.values()):
            return []  # something was given back
        if node is None:
            return [f"queue {queue} does not exist or its cohorts form a cycle"]
        complaints = []
        for key, amount in usage.items():
            if amount <= 0:
                continue
            if key not in node.nominal:
                complaints.append(f"{queue} has no quota for {key[1]} in flavor {key[0]}")
            rise, at = amount, node
            while rise > 0:
                limit, used = at.limit(key), at.usage[key]
                if limit is not None and used > limit:
                    complaints.append(f"{at.name} uses {used / 1000:g} of {limit / 1000:g} {key[1]} in flavor {key[0]}")
                if at.parent is None:
                    break
                local = at.local(key)
                rise = max(0, used - local) - max(0, used - rise - local)
                at = at.parent
        return complaints


def _path(node: Node, key: FlavorResource, rise: int) -> Iterator[tuple[Node, int]]:
    """Each node from a queue to the root, with what a change of the queue's usage changes there."""
    at: Node | None = node
    while at is not None and rise:
        before, local = at.usage[key], at.local(key)
        yield at, rise
        rise = max(0, before + rise - local) - max(0, before - local)
        at = at.parent


def _node(name: str, parent: Node | None, spec: Mapping[str, Any]) -> Node:
    node = Node(name, parent, {}, {}, {})
    if parent is not None:
        parent.children.append(node)
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                key = flavor["name"], resource["name"]
                node.nominal[key] = milli(resource.get("nominalQuota", 0))
                if resource.get("borrowingLimit") is not None:
                    node.borrowing[key] = milli(resource["borrowingLimit"])
                if resource.get("lendingLimit") is not None:
                    node.lending[key] = milli(resource["lendingLimit"])
    return node


def _sum_up(node: Node) -> None:
    node.quota = dict(node.nominal)
    for child in node.children:
        _sum_up(child)
        for key, amount in child.quota.items():
            node.quota[key] = node.quota.get(key, 0) + amount - child.local(key)
