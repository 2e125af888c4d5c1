"""The gangs of one queue that are worth a trial, in order, for the length of one decision."""

from __future__ import annotations

import heapq

from admission.engine import order
from admission.engine.line import Used
from admission.engine.model import (
    Admission,
    Key,
    Workload,
)
from admission.engine.order import QueueKey
from admission.engine.state import State


class Walk:
    """The gangs of one queue that are worth a trial, in order. The line itself is not touched."""

    def __init__(self, state: State, name: str) -> None:
        self.state = state
        self.queue = state.queues[name]
        self.line = line = state.lines[name]
        self.strict = self.queue.strict
        self.taken: dict[int, int] = {}
        """Bucket -> gangs of it that were dealt with in this cycle."""
        self.fair = fair = state.rules.usage_fairness is not None and self.queue.usage_based_fairness
        self._heap: list[tuple[float, QueueKey, int]] | None = None
        self._given: dict[Key, list[Admission]] = {}
        """LocalQueue -> what this cycle gave it."""
        self._used: dict[Key, float] = {}
        self._stale = False
        if self.strict or fair:
            buckets = [(held[0], bucket) for bucket, held in self.line.buckets.items()] if self.strict else line.live()
            self._heap = [(self._usage(place) if fair else 0.0, place, bucket) for place, bucket in buckets]
            heapq.heapify(self._heap)

    def turn(self) -> tuple[QueueKey, int] | None:
        """The first has its turn: from now on the walk goes by a copy of the line. (In most cycles most queues only
        show who is first.)"""
        if self._heap is None:
            self._heap = [(0.0, place, bucket) for place, bucket in self.line.live()]
        return self.peek()

    @property
    def used(self) -> Used:
        return self._usage if self.fair else None

    def _usage(self, place: QueueKey) -> float:
        gang = self.state.workloads[order.key_of(place)]
        local = gang.namespace, gang.queue
        if (given := self._given.get(local)) is None:
            return self.state.local_usage(local)
        if local not in self._used:
            self._used[local] = self.state.local_usage(local, given)
        return self._used[local]

    def give(self, gang: Workload, admission: Admission) -> None:
        """This cycle admits it, and that counts for whose turn is next, however many are dealt with at once."""
        if self.fair:
            local = gang.namespace, gang.queue
            self._given.setdefault(local, []).append(admission)
            self._used.pop(local, None)
            self._stale = True

    def peek(self) -> tuple[QueueKey, int] | None:
        if self._heap is None:
            return self.line.top()
        if not self._heap:
            return None
        _, place, bucket = self._heap[0]
        if self.strict and bucket in self.line.parked:
            return None
        return place, bucket

    def next(self) -> None:
        """The gang was dealt with: on to the next."""
        assert self._heap
        usage, _, bucket = self._heap[0]
        taken = self.taken[bucket] = self.taken.get(bucket, 0) + 1
        held = self.line.buckets[bucket]
        if taken < len(held):
            heapq.heapreplace(self._heap, (usage, held[taken], bucket))
        else:
            heapq.heappop(self._heap)
        if self._stale:
            self._heap = [(self._usage(place), place, known) for _, place, known in self._heap]
            heapq.heapify(self._heap)
            self._stale = False

    def add(self, bucket: int) -> bool:
        """A bucket that was parked is worth a trial after all; those of it that were dealt with are not. False where
        it takes part already."""
        if self._heap is None:
            return True  # the line shows it
        if any(known == bucket for _, _, known in self._heap):
            return False
        held, taken = self.line.buckets[bucket], self.taken.get(bucket, 0)
        if taken < len(held):
            usage = self._usage(held[taken]) if self.fair else 0.0
            heapq.heappush(self._heap, (usage, held[taken], bucket))
        return True

    def leave_waiting(self) -> None:
        """The gang waits, and what it waits for is kept for it: the next may go, unless all stand behind this one."""
        if self.strict:
            self.skip()
        else:
            self.next()

    def skip(self) -> None:
        """The gang cannot go, nor can those like it."""
        assert self._heap
        if self.strict:
            self._heap.clear()
        else:
            heapq.heappop(self._heap)
