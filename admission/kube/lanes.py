"""Who is next of those that wait in lanes, and how much of what there is one lane may have at once.

Lanes take turns: whoever sends thousands stands in their own way, and delays nobody else's first by more than one of
each other lane. Nor does whose work takes long take all there is: see `Shares`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """What waits, in lanes that take turns; first in, first out within a lane."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[T]] = OrderedDict()
        """The first lane is next, and none is empty."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def append(self, lane: Hashable, one: T) -> None:
        self._lanes.setdefault(lane, deque()).append(one)

    def pop(self, may: Callable[[Hashable], bool]) -> tuple[Hashable, T] | None:
        """(lane, one) of the first lane that may have a turn; the others keep theirs. None if none may."""
        lane = next(filter(may, self._lanes), None)
        if lane is None:
            return None
        waiting = self._lanes.pop(lane)
        one = waiting.popleft()
        if waiting:
            self._lanes[lane] = waiting
        return lane, one

    def remove(self, lane: Hashable, one: T) -> None:
        """Who waits in this lane leaves it. Raises ValueError when it does not."""
        waiting = self._lanes.get(lane, deque())
        waiting.remove(one)
        if not waiting:
            del self._lanes[lane]

    def pop_last(self, but: Hashable) -> T | None:
        """The last of the longest lane, of several of that whose turn is last; None where none is longer than `but`."""
        longest = max(reversed(self._lanes), key=lambda lane: len(self._lanes[lane]), default=None)
        if longest is None or len(self._lanes[longest]) <= len(self._lanes.get(but, ())):
            return None
        one = self._lanes[longest][-1]
        self.remove(longest, one)
        return one


class Shares:
    """How many of `most` places each lane holds.

    A lane may hold three times what it and all others leave free, an eighth of all not counted: two thirds when it is
    alone, less the more there are, and never all. So there is a place at once for who comes, however long those who
    were there before go on holding theirs; and who holds none may have any. Nothing needs to be known of who is slow.
    Lane "" is nobody's, and may take whatever is free.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: Counter[Hashable] = Counter()

    def may_take(self, lane: Hashable) -> bool:
        free = self.most - self.total
        held = self._held[lane] if lane else 0
        return free > 0 and (not held or held < 3 * (free - self.most // 8))

    def take(self, lane: Hashable, places: int = 1) -> None:
        self.total += places
        self._held[lane] += places

    def give_back(self, lane: Hashable, places: int = 1) -> None:
        self.total -= places
        self._held[lane] -= places
        if not self._held[lane]:
            del self._held[lane]
