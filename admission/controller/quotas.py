"""Who has what of the quota: the cohort tree with what its queues hold, as their objects say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from admission import quantity
from admission.controller.answers import QueueRow, Room
from admission.controller.standing import stop_policy_of
from admission.engine.flavors import PODS
from admission.engine.model import FlavorResource, Usage
from admission.engine.quota import QuotaNode, Tree
from admission.jobs import values
from admission.jobs.kinds import condition_of, name_of, namespace_of, obj, objects, text, whole
from admission.names import Names

Json = dict[str, Any]


class Forest:
    """See the module."""

    def __init__(self, queues: Sequence[Json], cohorts: Sequence[Json], names: Names) -> None:
        self.queues = {name_of(raw): raw for raw in queues}
        """The ClusterQueues."""
        self._cohorts = {name_of(raw): raw for raw in cohorts}
        self._tree = Tree.build(
            (values.cluster_queue(raw, names)[0] for raw in queues), (values.cohort(raw, names)[0] for raw in cohorts)
        )
        for raw in queues:
            node = self._tree.queue(name_of(raw))
            if node is not None:
                self._tree.add(node, _held(raw))
        self._lent = self._tree.lent()

    def room_for(self, queue: str, requests: Iterable[tuple[str, int]], pods: int, fewest: int) -> tuple[Room, ...]:
        """Quota of a ClusterQueue for what a job of so many pods asks, which may start with the fewest of them; nothing
        where there is no such queue."""
        node = self._tree.queue(queue)
        if node is None:
            return ()
        asked = {**dict(requests), PODS: pods}
        own, held = node.nominal_of_all(), node.held_by_all()
        least = {name: -(-amount * fewest // pods) if pods else 0 for name, amount in asked.items()}
        found = ((fr, self._room(node, fr, own, held, asked[fr[1]])) for fr in node.quotas if fr[1] in asked)
        return tuple(replace(room, least=least[fr[1]]) for fr, room in found)

    def rows(self, below: dict[str, list[QueueRow]]) -> list[QueueRow]:
        """Of all, each behind its parent. `below`: LocalQueues by ClusterQueue, which are taken out."""
        return [row for root in self._tree.roots() for row in self._rows(root, 0, below)]

    def _rows(self, node: QuotaNode, depth: int, below: dict[str, list[QueueRow]]) -> list[QueueRow]:
        raw = (self.queues if node.is_queue else self._cohorts).get(node.name, {})
        status, active, why_not = _active(raw)
        own, held = node.nominal_of_all(), node.held_by_all()
        pairs: dict[FlavorResource, None] = dict.fromkeys(node.quotas)
        pairs.update(dict.fromkeys(sorted(own)))
        # Gangs go on with a flavor that their queue names no more.
        pairs.update(dict.fromkeys(sorted(fr for fr, amount in held.items() if amount)))
        mine = QueueRow(
            kind="ClusterQueue" if node.is_queue else "Cohort",
            name=node.name,
            depth=depth,
            parent=node.parent.name if node.parent is not None else "",
            room=tuple(self._room(node, fr, own, held) for fr in pairs),
            pending=whole(status.get("pendingWorkloads"), 0),
            admitted=whole(status.get("admittedWorkloads"), 0),
            share=None if node.parent is None else node.share().value_status(),
            active=active and not node.in_cycle,
            why_not=why_not or ("its cohorts name each other in a circle" if node.in_cycle else ""),
            stopped=bool(stop_policy_of(raw)),
        )
        if node.is_queue:
            return [mine, *(replace(row, depth=depth + 1) for row in below.pop(node.name, ()))]
        rows = [row for child in node.children for row in self._rows(child, depth + 1, below)]
        queues = [row for row in rows if row.kind == "ClusterQueue"]  # as amounts are: of the rows below, of one moment
        pending, admitted = sum(row.pending for row in queues), sum(row.admitted for row in queues)
        return [replace(mine, pending=pending, admitted=admitted), *rows]

    def _room(self, node: QuotaNode, fr: FlavorResource, own: Usage, held: Usage, asked: int = 0) -> Room:
        """`own` and `held`: of the node and all below it, by pair."""
        most = node.potential(fr)
        end = node.potential_end(fr) if asked > most else node.end_of(fr, asked) if asked else None
        return Room(
            flavor=fr[0],
            resource=fr[1],
            nominal=own.get(fr, 0),
            used=held.get(fr, 0),
            borrowed=node.borrowed(fr),
            lent=self._lent.get(node, {}).get(fr, 0),
            free=node.available(fr),
            most=most,
            asked=asked,
            limited_by=end.name if end is not None else "",
        )


def local_row(raw: Json, target: str) -> QueueRow:
    """A LocalQueue of the ClusterQueue `target`."""
    status, active, why_not = _active(raw)
    return QueueRow(
        kind="LocalQueue",
        name=name_of(raw),
        namespace=namespace_of(raw),
        parent=target,
        room=tuple(Room(flavor, resource, used=amount) for (flavor, resource), amount in _held(raw).items()),
        pending=whole(status.get("pendingWorkloads"), 0),
        admitted=whole(status.get("admittedWorkloads"), 0),
        active=active,
        why_not=why_not,
        stopped=bool(stop_policy_of(raw)),
    )


def _held(raw: Json) -> dict[FlavorResource, int]:
    """What a queue's status says that it holds."""
    out: dict[FlavorResource, int] = {}
    status = obj(raw.get("status"))
    for flavor in objects(status.get("flavorsReservation")):
        for resource in objects(flavor.get("resources")):
            try:
                amount = quantity.parse(text(resource.get("name")), resource.get("total") or "0")
            except quantity.QuantityError:
                continue
            if amount > 0:
                out[text(flavor.get("name")), text(resource.get("name"))] = amount
    return out


def _active(raw: Json) -> tuple[Json, bool, str]:
    """(status, active, why not)."""
    condition = condition_of(raw, "Active")
    active = condition.get("status") != "False"
    return obj(raw.get("status")), active, "" if active else text(condition.get("message"))
