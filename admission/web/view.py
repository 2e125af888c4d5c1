"""What can be seen of a running controller, as plain values: who waits where and why, who has what, who sits where.

Everything is read from the copies and the State that the controller decides on, when somebody asks, and in pages of
bounded size; nothing is computed that a decision waits for. Positions are the order in which the engine goes through a
queue. A reason is that of the last verdict on the replica that leads; on the others, which decide nothing, it is the
one that the leader wrote (their positions are their own: the order follows from the objects alone).

What a person may see is a `Sight`; whoever asks here has found out already what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from admission import quantity
from admission.api.reasons import advice_for, detail_of, reason_of
from admission.engine.counts import keeps_off
from admission.engine.model import (
    Detail,
    FlavorResource,
    Key,
    Reason,
    Shortfall,
    StopPolicy,
    Usage,
    Verdict,
    Why,
    Workload,
)
from admission.engine.project import sentence
from admission.engine.quota import QuotaNode
from admission.engine.roster import QueueNumbers
from admission.engine.state import State
from admission.jobs.kinds import JobView, condition_of, leaving, runs
from admission.jobs.workload import called, in_jobs_words, switched_off
from admission.names import EVICTED, QUOTA_RESERVED

Json = dict[str, Any]

MOST = 1000
"""Rows of one answer."""


def number(query: Mapping[str, str], name: str, default: int) -> int:
    """What a query says of a number. Raises ValueError."""
    said = query.get(name, "")
    if not said:
        return default
    if not said.isascii() or not said.isdigit() or len(said) > 9:
        raise ValueError(f"{name}={said[:40]}: write a whole number from 0")
    return int(said)


class Seen(Protocol):
    """A Workload as the controller keeps it."""

    @property
    def key(self) -> Key: ...
    @property
    def uid(self) -> str: ...
    @property
    def deleting(self) -> bool: ...
    @property
    def status(self) -> Mapping[str, Any]: ...


class Source(Protocol):
    """A running controller, for reading."""

    @property
    def state(self) -> State: ...
    @property
    def revision(self) -> int: ...
    def leading(self) -> bool: ...
    def ready(self) -> str: ...
    def now(self) -> int: ...
    def verdict(self, key: Key) -> Verdict | None: ...
    def owner(self, key: Key) -> tuple[str, str]: ...
    def job(self, key: Key) -> JobView | None: ...
    def workload(self, key: Key) -> Seen | None: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """What one person may see. `namespaces` None: all of them."""

    user: str
    namespaces: frozenset[str] | None = None
    queues: bool = True
    """ClusterQueues and Cohorts."""
    nodes: bool = True

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gang stands, from 0."""

    in_cluster_queue: int
    in_local_queue: int
    waiting: int
    """How many wait in its LocalQueue."""


@dataclass(slots=True)
class _Line:
    """Who waits in a ClusterQueue, as of a revision; their places, once somebody asks."""

    revision: int
    keys: list[Key]
    places: dict[Key, Place] | None = None


class View:
    """See the module."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lines: dict[str, _Line] = {}

    # ------------------------------------------------------------ pending

    def line(self, queue: str) -> list[Key]:
        """All that wait in a ClusterQueue, in the engine's order; those that may not stand in line come last."""
        return self._line(queue).keys

    def places(self, queue: str) -> Mapping[Key, Place]:
        line = self._line(queue)
        if line.places is None:
            line.places = self._places(line.keys)
        return line.places

    def _line(self, queue: str) -> _Line:
        state = self.source.state
        if not self.source.leading():
            state.advance(self.source.now())  # nobody decides here, so nobody told it the time
        known = self._lines.get(queue)
        if known is not None and known.revision == self.source.revision:
            return known
        keys = state.pending(queue)
        at = state.queues.get(queue)
        if at is not None and at.usage_based_fairness and state.rules.usage_fairness is not None:
            keys.sort(key=lambda key: state.local_usage((key[0], state.workloads[key].queue)))
        keys += state.blocked_in(queue)
        found = self._lines[queue] = _Line(self.source.revision, keys)
        if len(self._lines) > len(state.queues) + 1:
            self._lines = {name: line for name, line in self._lines.items() if name in state.queues}
        return found

    def _places(self, keys: Sequence[Key]) -> dict[Key, Place]:
        """Of a whole line."""
        workloads = self.source.state.workloads
        counts: dict[Key, int] = {}
        own: list[tuple[Key, int]] = []
        for key in keys:
            local = (key[0], workloads[key].queue)
            own.append((local, counts.get(local, 0)))
            counts[local] = counts.get(local, 0) + 1
        stands = zip(keys, own, strict=True)
        return {key: Place(i, mine, counts[local]) for i, (key, (local, mine)) in enumerate(stands)}

    def _job_of(self, key: Key) -> str:
        return called(key, self.source.owner(key)) if key in self.source.state.workloads else ""

    def why(self, key: Key) -> tuple[Reason | None, Detail, str, Why | None]:
        """(reason, detail, sentence, the numbers behind it where this replica has them) of a gang that waits."""
        source = self.source
        verdict = source.verdict(key) if source.leading() else None
        if verdict is None:
            verdict = source.state.explain(key)
            unknown = verdict is None or verdict.why.detail is Detail.NEXT_CYCLE
            if unknown and (told := self._told(key)) is not None:
                return told
        if verdict is None:
            return None, Detail.NONE, "", None
        why = in_jobs_words(verdict.why, self._job_of)
        if why.reason is Reason.DEACTIVATED and why.detail is Detail.NONE:
            return why.reason, why.detail, switched_off(self._condition(key, EVICTED)), why
        return why.reason, why.detail, sentence(why), why

    def _told(self, key: Key) -> tuple[Reason | None, Detail, str, None] | None:
        """What the leader wrote."""
        entry = self._condition(key, QUOTA_RESERVED)
        if entry.get("status") != "False":
            return None
        reason, message = reason_of(str(entry.get("reason", ""))), str(entry.get("message", ""))
        return reason, detail_of(reason, message), message, None

    def _condition(self, key: Key, kind: str) -> Json:
        seen = self.source.workload(key)
        return {} if seen is None else condition_of({"status": seen.status}, kind)

    # ------------------------------------------------------------ queues

    def queues(self, sight: Sight) -> Json:
        """Cohorts, ClusterQueues and LocalQueues, each after its parent, with its depth: the first, and how many."""
        state = self.source.state
        below: dict[str, list[Key]] = {}
        for key in sorted(state.local_queues):
            if sight.sees(key[0]):
                below.setdefault(state.local_queues[key].cluster_queue, []).append(key)
        rows: list[Json] = []
        if sight.queues:
            tree = state.ledger.tree
            lent = tree.lent()
            for root in tree.roots():
                self._branch(root, 0, lent, below, rows)
        for keys in below.values():
            rows.extend(self._local(key, 0) for key in keys)
        return {"total": len(rows), "items": rows[: 5 * MOST]}

    def _branch(
        self,
        node: QuotaNode,
        depth: int,
        lent: Mapping[QuotaNode, Usage],
        below: dict[str, list[Key]],
        rows: list[Json],
    ) -> None:
        state, name = self.source.state, node.name
        numbers = state.queue_numbers(name) if node.is_queue else state.cohort_numbers(name)
        if node.is_queue:
            active, _, why = state.queue_active(name)
        else:
            active, _, why = state.cohort_active(name)
        spec = state.queues.get(name) if node.is_queue else None
        own, held = numbers.nominal, node.held_by_all()
        pairs = dict.fromkeys(numbers.order)
        pairs.update(dict.fromkeys(sorted(own)))
        rows.append(
            _row("ClusterQueue" if node.is_queue else "Cohort", name, depth, numbers)
            | {
                "parent": node.parent.name if node.parent is not None else "",
                "quota": [
                    _quota(node, fr, own.get(fr, 0), held.get(fr, 0), lent.get(node, {}).get(fr, 0)) for fr in pairs
                ],
                "share": numbers.weighted_share if node.parent is not None else None,
                "active": active,
                "message": "" if active else why,
                "stopped": spec is not None and spec.stop_policy is not StopPolicy.NONE,
            }
        )
        for child in node.children:
            self._branch(child, depth + 1, lent, below, rows)
        if node.is_queue:
            rows.extend(self._local(key, depth + 1) for key in below.pop(name, ()))

    def _local(self, key: Key, depth: int) -> Json:
        state = self.source.state
        numbers = state.local_queue_numbers(key)
        active, _, why = state.local_queue_active(key)
        return _row("LocalQueue", key[1], depth, numbers) | {
            "namespace": key[0],
            "parent": state.local_queues[key].cluster_queue,
            "quota": [_used(fr, amount) for fr, amount in sorted(numbers.reserved.items())],
            "active": active,
            "message": "" if active else why,
            "stopped": state.local_queues[key].stop_policy is not StopPolicy.NONE,
        }

    # ------------------------------------------------------------ jobs

    def jobs(self, sight: Sight, *, queue: str = "", namespace: str = "", offset: int = 0, limit: int = 100) -> Json:
        """Gangs that are not finished: those that wait, in the order of their queues, then those that hold quota."""
        state = self.source.state

        def shown(key: Key) -> bool:
            return sight.sees(key[0]) and (not namespace or key[0] == namespace)

        queues = [queue] if queue else self._queues_of(sight, namespace)
        narrow = bool(namespace) or sight.namespaces is not None
        end, waiting = offset + min(limit, MOST), 0
        part: list[Key] = []
        for name in queues:
            if not narrow:
                # All of a queue that the page does not reach is counted, not looked at.
                pending = state.waiting(name)
                if waiting + pending <= offset or waiting >= end:
                    waiting += pending
                    continue
            keys = [key for key in self.line(name) if shown(key)] if name in state.queues else []
            part += keys[max(0, offset - waiting) : max(0, end - waiting)]
            waiting += len(keys)
        total = waiting
        rest = [] if queue else [[key for key in state.astray() if shown(key)]]
        holding = [queue] if queue else state.held_queues()
        rest += [[gang.key for gang in state.holders(name) if shown(gang.key)] for name in holding]
        for keys in rest:
            part += keys[max(0, offset - total) : max(0, end - total)]
            total += len(keys)
        waiting += len(rest[0]) if not queue else 0
        return {"total": total, "waiting": waiting, "offset": offset, "items": [self.job(key) for key in part]}

    def _queues_of(self, sight: Sight, namespace: str) -> list[str]:
        """Names of the ClusterQueues in which gangs that may be seen wait."""
        state = self.source.state
        if not namespace and sight.namespaces is None:
            return sorted(state.queues)
        seen = {
            local.cluster_queue
            for key, local in state.local_queues.items()
            if sight.sees(key[0]) and (not namespace or key[0] == namespace)
        }
        return sorted(seen & set(state.queues))

    def job(self, key: Key) -> Json:
        """One gang, as it stands. Raises KeyError when there is none of this name, or none any more."""
        state = self.source.state
        gang = state.workloads[key]
        queue = state.queue_of(gang)
        kind, name = self.source.owner(key)
        job = self.source.job(key)
        out: Json = {
            "namespace": key[0],
            "workload": key[1],
            "kind": kind or "Workload",
            "name": name or key[1],
            "queue": gang.queue,
            "clusterQueue": queue,
            "priority": gang.effective_priority,
            "created": gang.created,
            "pods": sum(pod_set.count for pod_set in gang.pod_sets),
            "requests": [_amount(name, amount) for name, amount in gang.requests],
        }
        if gang.admission is None:
            reason, detail, message, why = self.why(key)
            place = self.places(queue).get(key) if queue in state.queues else None
            advice = advice_for(reason, detail)
            out |= {
                "state": "waiting",
                "reason": reason.value if reason is not None else "",
                "detail": detail.value,
                "message": message,
                "since": max(gang.created, gang.evicted_at),
                "numbers": _numbers(why),
                "means": advice.means if advice is not None else "",
                "owner": advice.owner if advice is not None else "",
                "platform": advice.platform if advice is not None else "",
            }
            if place is not None and state.blocked(key) is None:
                out |= {"position": place.in_local_queue + 1, "of": place.waiting, "ahead": place.in_cluster_queue}
            return out
        given = gang.admission.pods
        ready = job.ready_of(given) if job is not None else 0
        workload = self.source.workload(key)
        leaves = leaving(gang, job, deleted=workload is not None and workload.deleting, orphaned=not kind)
        if leaves is not None:
            state_, since = "leaving", gang.evicted_at or gang.admitted_at
        elif not gang.admitted:
            state_, since = "reserved", gang.reserved_at
        else:
            state_, since = ("running" if runs(gang, job) else "starting"), gang.admitted_at
        checks = [c for c in gang.checks if not gang.admitted]
        message = "; ".join(f"{c.name}: {c.state.value} {c.message}".strip() for c in checks)
        return out | {
            "state": state_,
            "reason": leaves[0] if leaves is not None else "",
            "message": leaves[1] if leaves is not None else message,
            "since": since,
            "ready": ready,
            "given": given,
            "where": where(gang),
        }

    # ------------------------------------------------------------ nodes

    def nodes(self, sight: Sight, *, offset: int = 0, limit: int = 200) -> Json:
        """Nodes by name, and who holds what there; gangs of namespaces that may not be seen have no name."""
        state = self.source.state
        book = state.ledger.nodes
        every = book.nodes() if sight.nodes else []
        devices = sorted({name for node in every for name, amount in node.allocatable if "/" in name and amount})
        shown = devices or ["cpu", "memory"]
        rows = []
        for node in every[offset : offset + min(limit, MOST)]:
            free = book.free(node.name)
            holders: dict[tuple[str, str, str], dict[str, int]] = {}
            for uid, held in book.occupants(node.name).items():
                who = self._holder(uid, sight)
                quantity.add(holders.setdefault(who, {}), {r: n for r, n in held.items() if r in shown})
            rows.append(
                {
                    "name": node.name,
                    "ready": node.ready,
                    "cordoned": node.unschedulable,
                    "taints": list(keeps_off(node, state.flavors.values())),
                    "capacity": [_of_node(r, n, free.get(r, 0)) for r, n in node.allocatable if r in shown and n],
                    "gangs": [
                        {
                            "label": label,
                            "namespace": namespace,
                            "workload": workload,
                            "holds": [_amount(r, n) for r, n in sorted(held.items()) if n],
                        }
                        for (label, namespace, workload), held in holders.items()
                        if any(held.values())
                    ],
                }
            )
        return {"total": len(every), "offset": offset, "resources": shown, "items": rows}

    def _holder(self, uid: str, sight: Sight) -> tuple[str, str, str]:
        """(label, namespace, Workload); the last two only of gangs that may be seen."""
        if not uid:
            return "pods outside Muster", "", ""
        gang = self.source.state.by_uid(uid)
        if gang is None:
            return "a gang that is gone", "", ""
        if not sight.sees(gang.namespace):
            return "another team", "", ""
        return f"{gang.namespace}/{self.source.owner(gang.key)[1] or gang.name}", gang.namespace, gang.name


# ---------------------------------------------------------------- values


def _amount(resource: str, amount: int) -> Json:
    return {"resource": resource, "amount": amount, "text": quantity.words(resource, amount)[0]}


def _of_node(resource: str, amount: int, free: int) -> Json:
    everything, left, used = quantity.words(resource, amount, max(0, free), max(0, amount - free))
    texts = {"all": everything, "free": left, "used": used}
    return {"resource": resource, "amount": amount, "free": free, "texts": texts}


def _row(kind: str, name: str, depth: int, numbers: QueueNumbers) -> Json:
    return {
        "kind": kind,
        "name": name,
        "namespace": "",
        "depth": depth,
        "pending": numbers.pending,
        "reserving": numbers.reserving,
        "admitted": numbers.admitted,
    }


def _used(fr: FlavorResource, amount: int) -> Json:
    return {"flavor": fr[0], "resource": fr[1], "used": amount, "texts": {"used": quantity.words(fr[1], amount)[0]}}


def _quota(node: QuotaNode, fr: FlavorResource, nominal: int, used: int, lent: int) -> Json:
    """Quota of one (flavor, resource), of the node and all below it; `used` has what is kept for somebody by a claim in
    it."""
    amounts = {
        "nominal": nominal,
        "used": used,
        "borrowed": node.borrowed(fr),
        "lent": lent,
        "free": node.available(fr),
    }
    texts = dict(zip(amounts, quantity.words(fr[1], *amounts.values()), strict=True))
    return {"flavor": fr[0], "resource": fr[1], **amounts, "texts": texts}


def _numbers(why: Why | None) -> list[Json]:
    """What was asked and what there is, per flavor: of quota, then of nodes."""
    if why is None:
        return []
    out: list[Json] = [_short(short) for short in why.shortfalls if short.requested]
    out += [
        {"flavor": misfit.flavor, "podSet": misfit.pod_set, "pods": misfit.pods, "placeable": misfit.placeable}
        for misfit in why.misfits
    ]
    return out


def where(gang: Workload) -> list[Json]:
    """Where a gang is, or will be: per pod set its flavors, and (node or lowest domain, pods) in rank order."""
    return [
        {
            "podSet": part.name,
            "pods": part.count,
            "flavors": sorted({flavor for _, flavor in part.flavors}),
            "nodes": [
                {"name": domain.values[-1], "pods": domain.count}
                for domain in (part.topology.domains if part.topology is not None else ())
            ],
        }
        for part in (gang.admission.pod_sets if gang.admission is not None else ())
    ]


def pending(view: View, keys: Sequence[Key], offset: int, limit: int) -> Iterator[tuple[Key, Place]]:
    """A page of gangs that wait, each with its place; those that stopped waiting meanwhile are left out."""
    state = view.source.state
    for key in keys[offset : offset + min(limit, MOST)]:
        place = view.places(state.queue_of(state.workloads[key])).get(key)
        if place is not None:
            yield key, place


def of_local_queue(view: View, local: Key) -> list[Key]:
    """The line of one LocalQueue."""
    state = view.source.state
    return [
        key
        for key in view.line(state.local_queues[local].cluster_queue)
        if (key[0], state.workloads[key].queue) == local
    ]


def _short(short: Shortfall) -> Json:
    amounts = {
        "requested": short.requested,
        "available": max(0, short.available),
        "nominal": short.nominal,
        "used": short.used,
    }
    exact = {what: quantity.format(short.resource, amount) for what, amount in amounts.items()}
    words = quantity.words(short.resource, *amounts.values(), digits=3, up=(short.requested,))
    texts = dict(zip(amounts, words, strict=True))
    return {
        "flavor": short.flavor,
        "resource": short.resource,
        **exact,
        "texts": texts,
        "limitedBy": short.limited_by,
    }
