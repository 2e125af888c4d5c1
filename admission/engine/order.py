"""Who is next: within a queue, and between queues.

*Within a queue* a gang stands by what it is: the one for which room is being freed first, then higher priority, then
longer in the queue, then uid and name. With usage-decayed fairness the LocalQueue that used least comes before all of
that. The order is total, and no clock is in it, so a sorted queue stays sorted.

*Between queues* two orders exist. The classical one sorts the gangs of a cycle by how far up the tree they must borrow,
then by priority and age. The fair one is a tournament: at every cohort the children send their best gang, and the child
whose share would be smaller wins; the winner of the root goes first, and its admission changes the shares for the next
round. A child is compared by its own subtree only, so after an admission nothing changes but the nodes above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import total_ordering
from heapq import heappop, heappush
from typing import Any

from admission.engine.model import FlavorResource, Key, LocalQueue, Rules, Usage, UsageFairness, Workload
from admission.engine.quota import NOTHING_BORROWED, QuotaNode, Share, Tree

QueueKey = tuple[int, int, int, str, str, str, str]
"""(0 if room is being freed for it else 1, -priority, stamp, arrival, uid, namespace, name): smallest first."""


def stamp(gang: Workload) -> int:
    """Since when the gang counts as waiting."""
    return gang.created if gang.queue_stamp is None else gang.queue_stamp


def since(gang: Workload) -> int:
    """Since when it waits by the clock: a gang that lost a node stands first (stamp 0) and is no older for that."""
    return stamp(gang) or gang.created


def queue_key(gang: Workload, sticky: bool) -> QueueKey:
    """Its place in its queue. `sticky`: others are leaving to make room for it."""
    return (0 if sticky else 1, *_age(gang))


def _age(gang: Workload) -> tuple[int, int, str, str, str, str]:
    return (-gang.effective_priority, stamp(gang), gang.arrival, gang.uid, gang.namespace, gang.name)


def key_of(place: QueueKey) -> Key:
    return (place[5], place[6])


# ---------------------------------------------------------------- usage-decayed fairness


def decay(fairness: UsageFairness, elapsed_ms: int) -> float:
    """The weight of what is used now against what was remembered, after so long: 1 - 0.5^(elapsed / half-life)."""
    if fairness.half_life_ms <= 0:
        return 1.0
    return float(1.0 - 0.5 ** (elapsed_ms / fairness.half_life_ms))


def consumed(
    fairness: UsageFairness,
    before: Mapping[str, float],
    elapsed_ms: int,
    using: Mapping[str, int],
    lately: Iterable[tuple[int, Mapping[str, int]]] = (),
) -> dict[str, float]:
    """What a LocalQueue has consumed per resource, `elapsed_ms` after `before` was noted; forgotten at once when the
    half-life is 0. lately: what was used for so long (ms), and not for all of that time."""
    weight = decay(fairness, elapsed_ms)
    if fairness.half_life_ms <= 0:
        return dict.fromkeys(sorted({*before, *using}), 0.0)
    out = {
        name: before.get(name, 0.0) * (1.0 - weight) + using.get(name, 0) * weight for name in sorted({*before, *using})
    }
    for lasted_ms, amounts in lately:
        part = decay(fairness, lasted_ms)
        for name, amount in sorted(amounts.items()):
            out[name] = out.get(name, 0.0) + amount * part
    return out


def penalty(fairness: UsageFairness, requests: Mapping[str, int]) -> dict[str, float]:
    """What an admission counts for until the next sample sees it: one sampling interval's worth of its requests."""
    weight = decay(fairness, fairness.sampling_ms) if fairness.half_life_ms > 0 else 0.0
    return {name: amount * weight for name, amount in requests.items()}


def usage_value(fairness: UsageFairness, queue: LocalQueue | None, extra: Mapping[str, float]) -> float:
    """The one number by which LocalQueues of a ClusterQueue are ordered; infinite at weight zero. A core weighs as much
    as a device."""
    amounts = dict(queue.consumed) if queue is not None else {}
    for name, amount in extra.items():
        amounts[name] = amounts.get(name, 0.0) + amount
    weights = dict(fairness.weights)
    units = ((name, amount / 1000 if name == "cpu" else amount) for name, amount in sorted(amounts.items()))
    total = sum(weights.get(name, 1.0) * amount for name, amount in units)
    weight = Fraction(1) if queue is None else queue.weight
    if weight <= 0:
        return float("inf")
    return total / float(weight)


# ---------------------------------------------------------------- between queues


Rank = tuple[Any, ...]
"""How a child of a cohort stands in the tournament with the gang it sends. Smaller goes first."""


@total_ordering
class _Ties:
    """`Share.vector`, worked out only where the shares themselves are equal."""

    __slots__ = ("_share",)

    def __init__(self, share: Share) -> None:
        self._share = share

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ties) and self._share.vector() == other._share.vector()

    def __lt__(self, other: _Ties) -> bool:
        return self._share.vector() < other._share.vector()

    def __hash__(self) -> int:
        return hash(self._share.vector())


_NO_TIES = _Ties(NOTHING_BORROWED)


def _ties(share: Share) -> _Ties:
    return _NO_TIES if share is NOTHING_BORROWED else _Ties(share)


def _of_its_own(node: QuotaNode, asked: Usage) -> float:
    """How much of its own quota of what is asked for is in use, of the resource of which it is most; 1 where it has
    none."""
    used, subtree = node.usage, node.subtree
    return max([used.get(fr, 0) / quota if (quota := subtree.get(fr, 0)) else 1.0 for fr in asked], default=1.0)


def ranks(
    queue: QuotaNode, gang: Workload, usage: Usage, rules: Rules, requested: frozenset[FlavorResource] | None = None
) -> dict[str, Rank]:
    """Per node of the queue's path below the root (by name, `queue:` or `cohort:` before it), how it stands when
    `gang`, which would take `usage`, is what it sends.

    Progressive filling: the share before. Among those who borrow nothing yet: who still would not with the gang, then
    who has used least of its own (else who has all of its quota in use borrows first, a little, and gives it back to
    who has not). Then the share with the gang added; where all are equal, both over all resources, so that a gang that
    does not use the dominant one still counts. Else: who borrows nothing of what is asked for
    (where that is a rule), then the share with the gang added. Then higher priority, then age.
    """
    resources = frozenset(fr[1] for fr in usage) if rules.contested_share else None
    age = _age(gang)
    out: dict[str, Rank] = {}
    if not rules.fill_progressively:
        for node, after in Tree.shares_with(queue, usage, resources):
            borrows = False
            if "FairSharingPrioritizeNonBorrowing" in rules.gates:
                borrows = after.borrows_any(requested if requested is not None else usage)
            out[node.label] = (borrows, after, *age)
        return out
    for node, rest in Tree.rising(queue, usage):
        counted = None if node.is_queue else resources
        before, after = node.share(None, counted), node.share(rest, counted)
        own = 0.0 if before.borrowing or not after.borrowing else _of_its_own(node, rest)
        out[node.label] = (before, own, after, _ties(before), _ties(after), *age)
    return out


class Standings:
    """The ranks of queues under progressive filling, as they were asked for last: as long as nothing moved on its path,
    a queue that sends the same gang stands as it stood. (Each cycle begins with all queues that wait.)"""

    def __init__(self) -> None:
        self._known: dict[str, tuple[QueueKey, Usage, tuple[object, ...], dict[str, Rank]]] = {}

    def ranks(self, queue: QuotaNode, place: QueueKey, gang: Workload, usage: Usage, rules: Rules) -> dict[str, Rank]:
        """As `ranks`; `place` is that of `gang` in its queue, and `usage` the same object as long as it stands there
        and asks for the same."""
        known = self._known.get(queue.name)
        if known is not None and known[0] == place and known[1] is usage:
            for node, standing in zip(queue.path(), known[2], strict=False):
                if node.standing() is not standing:
                    break
            else:
                return known[3]
        out = ranks(queue, gang, usage, rules)
        standings = tuple([node.standing() for node in queue.path()[:-1]])
        self._known[queue.name] = (place, usage, standings, out)
        return out

    def forget(self) -> None:
        """Other queues, or other quota."""
        self._known.clear()


class Tournament:
    """Whose gang goes next under one root. Each queue enters with `enter`; `best` names the winner; after the winner
    was dealt with, it enters again with its next gang or `leave`s. An entry may go stale when shares change elsewhere
    on its path; `ranked` is asked for the ranks of an entry whenever they are compared anew."""

    def __init__(self, root: QuotaNode, ranked: Callable[[QuotaNode], dict[str, Rank]]) -> None:
        self._root = root
        self._ranked = ranked
        self._in: set[str] = set()
        self._winner: dict[str, tuple[QuotaNode, dict[str, Rank]] | None] = {}
        self._below: dict[str, dict[str, tuple[Rank, QuotaNode, dict[str, Rank]]]] = {}
        self._heaps: dict[str, list[tuple[Rank, str]]] = {}
        """The same, the first on top; entries that were replaced since are skipped."""

    def enter(self, queue: QuotaNode) -> None:
        """The queue has a gang to send, or another than before."""
        self._in.add(queue.name)
        self._climb(queue)

    def enter_all(self, queues: Sequence[QuotaNode]) -> None:
        """All of them enter at once: what is above several of them is compared once."""
        self._in.update(queue.name for queue in queues)
        levels: dict[int, dict[str, QuotaNode]] = {}
        for queue in queues:
            levels.setdefault(len(queue.path()), {})[queue.label] = queue
        for depth in range(max(levels, default=0), 0, -1):
            for node in levels.get(depth, {}).values():
                self._settle(node)
                if node.parent is not None:
                    levels.setdefault(depth - 1, {})[node.parent.label] = node.parent

    def leave(self, queue: QuotaNode) -> None:
        self._in.discard(queue.name)
        self._climb(queue)

    def best(self) -> QuotaNode | None:
        if self._root.is_queue:
            return self._root if self._root.name in self._in else None
        entry = self._winner.get(self._root.label)
        return None if entry is None else entry[0]

    def _climb(self, queue: QuotaNode) -> None:
        for node in queue.path():
            self._settle(node)

    def _settle(self, node: QuotaNode) -> None:
        """Who wins at this node, and how that one stands one level up."""
        name = node.label
        if node.is_queue:
            entry = (node, self._ranked(node)) if node.name in self._in else None
        else:
            # Ranks of the path above depend on usage there, which moved: ask again for the winner below.
            first = self._first(name)
            entry = None
            if first is not None:
                _, winner, ranks = first
                entry = (winner, ranks if node.parent is None else self._ranked(winner))
        self._winner[name] = entry
        above = node.parent
        if above is None:
            return
        field = self._below.setdefault(above.label, {})
        if entry is None:
            field.pop(name, None)
        else:
            rank = entry[1][name]
            field[name] = (rank, entry[0], entry[1])
            heappush(self._heaps.setdefault(above.label, []), (rank, name))

    def _first(self, name: str) -> tuple[Rank, QuotaNode, dict[str, Rank]] | None:
        """Of the children of a node, whose rank is the smallest."""
        below, heap = self._below.get(name, {}), self._heaps.get(name, [])
        while heap:
            rank, child = heap[0]
            held = below.get(child)
            if held is not None and held[0] is rank:
                return held
            heappop(heap)
        return None
