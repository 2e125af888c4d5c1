"""Who waits and who holds quota, by LocalQueue and by ClusterQueue, and the numbers that statuses show of it.

A gang either waits, in its LocalQueue, or holds, in its LocalQueue and in the ClusterQueue of its reservation: the two
need not hang together any more. It is entered as it counts, and taken out as it was entered; tables have no entries
that are empty, so that who is gone leaves nothing behind.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import field

from admission.engine import order
from admission.engine.booking import add_amounts
from admission.engine.ledger import usage_of
from admission.engine.model import (
    Admission,
    ClusterQueue,
    Cohort,
    FlavorResource,
    Key,
    LocalQueue,
    Rules,
    StopPolicy,
    Value,
    Workload,
    discard,
    drop,
)
from admission.engine.quota import QuotaNode
from admission.engine.shortage import NEW


class QueueNumbers(Value, frozen=True):
    """What a status shows of a ClusterQueue, LocalQueue or Cohort."""

    pending: int = 0
    reserving: int = 0
    """Gangs with a reservation, the admitted ones among them."""
    admitted: int = 0
    reserved: Mapping[FlavorResource, int] = field(default_factory=dict)
    used: Mapping[FlavorResource, int] = field(default_factory=dict)
    """Of the admitted ones."""
    nominal: Mapping[FlavorResource, int] = field(default_factory=dict)
    order: tuple[FlavorResource, ...] = ()
    """In the order in which the object names them; then what is held of flavors that it names no more."""
    weighted_share: int = 0
    borrowed: Mapping[FlavorResource, int] = field(default_factory=dict)
    """Of `reserved`, what is beyond its own quota; nothing without a cohort, where it is borrowed from nobody. Of a
    Cohort: of what its members take of the part that they share, for what a lending limit keeps from it is theirs."""
    borrowed_used: Mapping[FlavorResource, int] = field(default_factory=dict)
    """Of `used`, the same."""
    cohort: str = ""


class Roster:
    """See the module. Every gang is in it at most once: as one that waits, or as one that holds."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.waiting_in: dict[Key, set[Key]] = {}
        """LocalQueue -> its gangs without a reservation."""
        self._kept_out_of: Counter[Key] = Counter()
        """How many of those are switched off or gated."""
        self._locals_of: dict[str, set[Key]] = {}
        self._holding_in: dict[Key, dict[Key, Workload]] = {}
        """LocalQueue -> its gangs with a reservation."""
        self._holding_of: dict[str, dict[Key, Workload]] = {}
        self._holders: dict[str, tuple[Workload, ...]] = {}
        self._latest: list[tuple[int, Key]] | None = None
        """Of `latest`, once somebody asked."""
        self._reserved: dict[str | Key, dict[FlavorResource, int]] = {}
        self._used: dict[str | Key, dict[FlavorResource, int]] = {}
        self._admitted: Counter[str | Key] = Counter()
        self._usage: dict[Key, float] = {}
        """Of `usage`."""

    # -- entering

    def route(self, local: Key, queue: str) -> None:
        """A LocalQueue leads to this ClusterQueue."""
        self._locals_of.setdefault(queue, set()).add(local)
        self._usage.pop(local, None)

    def unroute(self, local: Key, queue: str) -> None:
        discard(self._locals_of, queue, local)
        self._usage.pop(local, None)

    def wait(self, gang: Workload) -> None:
        """A gang without a reservation."""
        local = (gang.namespace, gang.queue)
        self.waiting_in.setdefault(local, set()).add(gang.key)
        if _kept_out(gang):
            add(self._kept_out_of, local, 1)

    def wait_no_more(self, gang: Workload) -> None:
        local = (gang.namespace, gang.queue)
        discard(self.waiting_in, local, gang.key)
        if _kept_out(gang):
            add(self._kept_out_of, local, -1)

    def hold(self, gang: Workload, queue: str, usage: Sequence[tuple[FlavorResource, int]]) -> None:
        """A gang with a reservation of so much in this ClusterQueue."""
        local = (gang.namespace, gang.queue)
        self._holding_in.setdefault(local, {})[gang.key] = gang
        self._holding_of.setdefault(queue, {})[gang.key] = gang
        if self._latest is not None:
            insort(self._latest, _came(gang))
        self._count(gang, queue, usage, 1)

    def hold_no_more(self, gang: Workload, queue: str, usage: Sequence[tuple[FlavorResource, int]]) -> None:
        """As it was entered."""
        drop(self._holding_in, (gang.namespace, gang.queue), gang.key)
        drop(self._holding_of, queue, gang.key)
        if self._latest is not None:
            del self._latest[bisect_left(self._latest, _came(gang))]
        self._count(gang, queue, usage, -1)

    def _count(self, gang: Workload, queue: str, usage: Sequence[tuple[FlavorResource, int]], sign: int) -> None:
        local = (gang.namespace, gang.queue)
        self._holders.pop(queue, None)
        self._usage.pop(local, None)
        for owner in (queue, local):
            tables = [self._reserved, self._used] if gang.admitted else [self._reserved]
            if gang.admitted:
                add(self._admitted, owner, sign)
            for table in tables:
                held = table.setdefault(owner, {})
                add_amounts(held, usage, sign)
                if not held:
                    del table[owner]

    # -- asking

    @property
    def anybody_waits(self) -> bool:
        return bool(self.waiting_in)

    def is_used(self, queue: str | Key) -> bool:
        """Does any gang wait in this ClusterQueue, or LocalQueue, or hold quota of it?"""
        if isinstance(queue, tuple):
            return bool(self.waiting_in.get(queue) or self._holding_in.get(queue))
        return bool(self.waiting(queue) or self._holding_of.get(queue))

    def locals_of(self, queue: str) -> list[Key]:
        """The LocalQueues that lead to a ClusterQueue, by key."""
        return sorted(self._locals_of.get(queue, ()))

    def holders(self, queue: str | Key) -> tuple[Workload, ...]:
        """Gangs that hold quota of a ClusterQueue, by key; the same object until somebody comes or goes. Or those who
        hold it by way of a LocalQueue."""
        if isinstance(queue, tuple):
            return tuple(gang for _, gang in sorted(self._holding_in.get(queue, {}).items()))
        known = self._holders.get(queue)
        if known is None:
            held = self._holding_of.get(queue)
            if held is None:
                return ()
            known = self._holders[queue] = tuple(held[key] for key in sorted(held))
        return known

    def latest(self) -> Sequence[tuple[int, Key]]:
        """(minus when it came, gang) of all that hold, those first that came last: who is to leave, then by admission,
        or by reservation where there is none yet. Only to look at, and only until somebody comes or goes."""
        if self._latest is None:
            self._latest = sorted(_came(gang) for held in self._holding_of.values() for gang in held.values())
        return self._latest

    def held_queues(self) -> list[str]:
        """Names of the ClusterQueues, deleted ones too, of which somebody holds quota; sorted."""
        return sorted(self._holding_of)

    def waiting(self, queue: str) -> int:
        """How many wait in a ClusterQueue."""
        return sum(len(self.waiting_in.get(local, ())) for local in self._locals_of.get(queue, ()))

    def usage(self, key: Key, local: LocalQueue | None, also: Sequence[Admission] = ()) -> float:
        """Usage of a LocalQueue for the order inside its ClusterQueue; 0 without usage-decayed fairness. `also`: what
        it is given beside what it holds."""
        fairness = self._rules.usage_fairness
        if fairness is None:
            return 0.0
        known = None if also else self._usage.get(key)
        if known is None:
            since = 0 if local is None else local.consumed_at
            holders = sorted(self._holding_in.get(key, {}).items())
            held = [gang.admission for _, gang in holders if gang.reserved_at >= since and gang.admission is not None]
            extra: dict[str, float] = {}
            for given in (*held, *also):
                for name, amount in order.penalty(fairness, requests_of(given)).items():
                    extra[name] = extra.get(name, 0.0) + amount
            known = order.usage_value(fairness, local, extra)
            if local is not None and not also:
                self._usage[key] = known
        return known

    # -- numbers

    def of_queue(
        self, name: str, spec: ClusterQueue | None, node: QuotaNode | None, locals_: Mapping[Key, LocalQueue]
    ) -> QueueNumbers:
        """Of a ClusterQueue; `node` is its place in the tree, None where only what its gangs are and hold is asked."""
        pending = sum(self._pending_in(key, locals_.get(key)) for key in self._locals_of.get(name, ()))
        return self._numbers(name, pending, len(self._holding_of.get(name, ())), node, spec)

    def of_local(self, key: Key, local: LocalQueue | None, spec: ClusterQueue | None) -> QueueNumbers:
        """Of a LocalQueue; `spec` is its ClusterQueue."""
        return self._numbers(key, self._pending_in(key, local), len(self._holding_in.get(key, ())), None, spec)

    @staticmethod
    def of_cohort(spec: Cohort | None, node: QuotaNode, members: Mapping[str, QueueNumbers]) -> QueueNumbers:
        """Of a Cohort: of all ClusterQueues below it (by name) together."""
        reserved: dict[FlavorResource, int] = {}
        used: dict[FlavorResource, int] = {}
        pending = reserving = admitted = 0
        frs: dict[FlavorResource, None] = {}
        for own in members.values():
            pending += own.pending
            reserving += own.reserving
            admitted += own.admitted
            for into, amounts in ((reserved, own.reserved), (used, own.used)):
                for fr, amount in amounts.items():
                    into[fr] = into.get(fr, 0) + amount
            frs.update(dict.fromkeys(own.order))
        return QueueNumbers(
            pending=pending,
            reserving=reserving,
            admitted=admitted,
            reserved=reserved,
            used=used,
            nominal=node.nominal_of_all(),
            order=tuple(dict.fromkeys((*(() if spec is None else _named(spec)), *frs))),
            weighted_share=node.share().value_status(),
            borrowed=_beyond(node, {name: own.reserved for name, own in members.items()}),
            borrowed_used=_beyond(node, {name: own.used for name, own in members.items()}),
        )

    def _pending_in(self, key: Key, local: LocalQueue | None) -> int:
        """Of those that wait in a LocalQueue, how many its status tells of."""
        waiting = len(self.waiting_in.get(key, ()))
        if self._rules.count_kept_out:
            return waiting
        stopped = local is not None and local.stop_policy is not StopPolicy.NONE
        return 0 if stopped else waiting - self._kept_out_of[key]

    def _numbers(
        self, owner: str | Key, pending: int, holding: int, node: QuotaNode | None, spec: ClusterQueue | None
    ) -> QueueNumbers:
        reserved, used = dict(self._reserved.get(owner, {})), dict(self._used.get(owner, {}))
        return QueueNumbers(
            pending=pending,
            reserving=holding,
            admitted=self._admitted[owner],
            reserved=reserved,
            used=used,
            nominal={} if node is None else {fr: quota.nominal for fr, quota in node.quotas.items()},
            order=tuple(dict.fromkeys((*(() if spec is None else _named(spec)), *sorted(reserved)))),
            weighted_share=0 if node is None else node.share().value_status(),
            borrowed={} if node is None else _beyond(node, {node.name: reserved}),
            borrowed_used={} if node is None else _beyond(node, {node.name: used}),
            cohort="" if spec is None else spec.cohort,
        )


def _beyond(node: QuotaNode, held: Mapping[str, Mapping[FlavorResource, int]]) -> dict[FlavorResource, int]:
    """What a node takes beyond its own quota, by what its queues hold."""
    if node.parent is None:
        return {}
    over = ((fr, amount - node.subtree.get(fr, 0)) for fr, amount in _taken(node, held).items())
    return {fr: amount for fr, amount in over if amount > 0}


def _taken(node: QuotaNode, held: Mapping[str, Mapping[FlavorResource, int]]) -> Mapping[FlavorResource, int]:
    """What is taken of the quota of a node: of a cohort, of the part that its children share."""
    if node.is_queue:
        return held.get(node.name, {})
    out: dict[FlavorResource, int] = {}
    for child in node.children:
        for fr, amount in _taken(child, held).items():
            if (shared := amount - child.local_quota(fr)) > 0:
                out[fr] = out.get(fr, 0) + shared
    return out


def requests_of(admission: Admission) -> dict[str, int]:
    """Resource -> amount, over all flavors."""
    out: dict[str, int] = {}
    for (_, resource), amount in usage_of(admission):
        out[resource] = out.get(resource, 0) + amount
    return out


def _came(gang: Workload) -> tuple[int, Key]:
    return -(NEW if gang.evicted else gang.admitted_at or gang.reserved_at), gang.key


def _kept_out(gang: Workload) -> bool:
    return not gang.active or bool(gang.gated)


def _named(spec: ClusterQueue | Cohort) -> tuple[FlavorResource, ...]:
    return tuple(
        (flavor.name, resource) for group in spec.groups for flavor in group.flavors for resource, _ in flavor.quotas
    )


Counted = TypeVar("Counted")


def add(table: Counter[Counted], name: Counted, number: int) -> None:
    """Of a table that has no zeros."""
    table[name] += number
    if not table[name]:
        del table[name]
