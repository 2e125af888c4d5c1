"""The gangs that wait in one ClusterQueue, in order, and what is known of those that cannot go.

Gangs of equal shape and priority share a *bucket*: what one is refused the others need not ask. A bucket that is not
worth a trial is *parked* with its memo, until somebody takes it out. Each bucket is a sorted list, and a heap of their
first gangs says who is next; entries that went stale are skipped when they are met, so that parking costs nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator

from admission.engine import order
from admission.engine.ledger import Charge
from admission.engine.model import Key, Value, Verdict
from admission.engine.order import QueueKey
from admission.engine.shortage import Lack


class Memo(Value, frozen=True):
    """Why a bucket is not worth a trial before something changes: the answer that its first gang was given."""

    verdict: Verdict
    on_nodes: bool
    """More room on nodes may change it (what happens in its quota tree always may)."""
    until: int | None = None
    """Time alone may change it then."""
    lack: Lack | None = None
    """What it lacked, if that is all that a change in the quota tree could make good."""
    turned: bool = False
    """It was refused by what is charged and claimed, and would be without what is set aside for others."""
    kept_from: Lack | None = None
    """Of a gang for whom room is set aside, and that was refused only because room that is set aside for others left
    too little quota: what it would have taken. Which of them has its turn first decides, so that it has a turn whenever
    its tree changes."""
    never: bool = False
    """It would not go in an empty cluster either, so that gangs behind it need not wait for it."""
    keeps: Charge | None = None
    """Of the head of a strict queue, under Kueue's rules: what it keeps from others in every cycle ..."""
    look: object = None
    """... and what came of the look at it, for reuse."""


Used = Callable[[QueueKey], float] | None
"""What the LocalQueue of a place has used; None where that does not count."""


class Line:
    """The gangs that wait in one ClusterQueue: buckets of interchangeable gangs, each in order, and which of the
    buckets are parked."""

    def __init__(self, turned: set[Key]) -> None:
        self.buckets: dict[int, list[QueueKey]] = {}
        self._turned = turned
        self.parked: dict[int, Memo] = {}
        self.heap: list[tuple[QueueKey, int]] = []
        """(first gang, bucket) of every bucket that is not parked; entries that are no longer so are skipped."""
        self._head: tuple[QueueKey, int] | None = None
        """`first`, if it is known."""

    def __len__(self) -> int:
        return sum(map(len, self.buckets.values()))

    def add(self, place: QueueKey, bucket: int) -> None:
        held = self.buckets.setdefault(bucket, [])
        insort(held, place)
        if self._head is not None and place < self._head[0]:
            self._head = (place, bucket)
        if held[0] is place and bucket not in self.parked:
            self._push(bucket)

    def _push(self, bucket: int) -> None:
        heapq.heappush(self.heap, (self.buckets[bucket][0], bucket))
        if len(self.heap) > 2 * len(self.buckets):
            self.live()  # where nobody decides, nobody skips what has gone stale

    def remove(self, place: QueueKey, bucket: int) -> bool:
        """True when the bucket is empty now, and gone."""
        held = self.buckets[bucket]
        at = bisect_left(held, place)
        del held[at]
        if self._head is not None and self._head[0] == place:
            self._head = None
        self._turned.discard(order.key_of(place))
        if not held:
            del self.buckets[bucket]
            self.parked.pop(bucket, None)
            return True
        if at == 0 and bucket not in self.parked:
            self._push(bucket)
        return False

    def park(self, bucket: int, memo: Memo) -> None:
        held = self.buckets.get(bucket)
        if held is None:
            return
        self.parked[bucket] = memo
        if len(held) == 1:
            (self._turned.add if memo.turned else self._turned.discard)(order.key_of(held[0]))

    def unpark(self, bucket: int) -> bool:
        memo = self.parked.pop(bucket, None)
        if memo is None:
            return False
        if memo.turned:
            self._turned.discard(order.key_of(self.buckets[bucket][0]))
        self._push(bucket)
        return True

    def top(self) -> tuple[QueueKey, int] | None:
        """The first that is not parked."""
        heap = self.heap
        while heap:
            place, bucket = heap[0]
            held = None if bucket in self.parked else self.buckets.get(bucket)
            if held is not None and held[0] == place:
                return heap[0]
            heapq.heappop(heap)
        return None

    def live(self) -> list[tuple[QueueKey, int]]:
        """The heap of buckets to be tried, as the caller's own copy. Drops what has gone stale."""
        heads = {
            (place, bucket)
            for place, bucket in self.heap
            if bucket not in self.parked and bucket in self.buckets and self.buckets[bucket][0] == place
        }
        if len(heads) != len(self.heap):
            self.heap = list(heads)
            heapq.heapify(self.heap)
        return list(self.heap)

    def first(self, by: Used = None) -> tuple[QueueKey, int]:
        """The gang at its head, parked or not, and its bucket. Not for an empty line. `by`: who used least is first."""
        firsts = ((held[0], bucket) for bucket, held in self.buckets.items())
        if by is not None:
            return min(firsts, key=lambda one: (by(one[0]), one))
        if self._head is None:
            self._head = min(firsts)
        return self._head

    def first_but(self, gone: Collection[QueueKey], by: Used = None) -> tuple[QueueKey, int] | None:
        """The same of those who may go one day, when these are looked away from; None when nobody is left."""
        if self.buckets and not gone and not self._never(self.first(by)[1]):
            return self.first(by)
        firsts = (
            (place, bucket)
            for bucket, held in self.buckets.items()
            if not self._never(bucket)
            and (place := next((place for place in held if place not in gone), None)) is not None
        )
        return min(firsts, default=None, key=None if by is None else lambda one: (by(one[0]), one))

    def is_first(self, place: QueueKey, gone: Collection[QueueKey], by: Used = None) -> bool:
        """Does nobody stand before this place who may go one day, but these."""
        head, bucket = self.first(by)
        if head == place or not (head in gone or self._never(bucket)):
            return head == place  # as mostly
        mine = 0.0 if by is None else by(place)
        for bucket, held in self.buckets.items():
            for other in held:
                if other >= place if by is None else (by(other), other) >= (mine, place):
                    break
                if other not in gone:
                    if self._never(bucket):
                        break
                    return False
        return True

    def _never(self, bucket: int) -> bool:
        memo = self.parked.get(bucket)
        return memo is not None and memo.never

    def waiting(self) -> bool:
        return any(bucket not in self.parked for bucket in self.buckets)

    def held_up(self, by: Used = None) -> bool:
        """Is its head parked. Not for an empty line."""
        return self.first(by)[1] in self.parked

    def ahead(self, place: QueueKey, by: Used = None) -> int:
        """How many stand before this place."""
        if by is None:
            return sum(bisect_left(held, place) for held in self.buckets.values())
        # Who shares a bucket shares a LocalQueue, where usage counts.
        mine = by(place)
        used = ((held, by(held[0])) for held in self.buckets.values())
        return sum(len(held) if usage < mine else bisect_left(held, place) for held, usage in used if usage <= mine)

    def __iter__(self) -> Iterator[QueueKey]:
        """All of it, in order, as far as it is asked for."""
        return heapq.merge(*self.buckets.values())
