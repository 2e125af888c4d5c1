"""A work queue of keys: each key is worked on by one worker at a time, and never forgotten while it is dirty.

Adding a key that waits changes nothing; adding one that is being worked on brings it back afterwards. A key can also be
asked for at a later time; the earliest time wins.

Keys wait in lanes, which take turns: whoever adds thousands stands in their own way, and delays nobody else's first by
more than one of each other lane.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K")


class KeyedQueue(Generic[K]):
    """See the module. `work(key)` must not raise; `workers` keys are worked on at once. `lane(key)`: whose it is."""

    def __init__(
        self, work: Callable[[K], Awaitable[None]], workers: int, lane: Callable[[K], Hashable] = lambda key: None
    ) -> None:
        self._work = work
        self._workers = workers
        self._lane = lane
        self._waiting: OrderedDict[Hashable, deque[K]] = OrderedDict()
        """By lane; the first lane is next, and none is empty."""
        self._dirty: set[K] = set()
        self._busy: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that have nothing to do; one of them is woken for one key, for waking costs each."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._busy)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._busy

    def add(self, key: K) -> None:
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._line_up(key)

    def _line_up(self, key: K) -> None:
        self._waiting.setdefault(self._lane(key), deque()).append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._idle:
            worker = self._idle.popleft()
            if not worker.done():
                worker.set_result(None)
                return

    def _next(self) -> K:
        lane, keys = self._waiting.popitem(last=False)
        key = keys.popleft()
        if keys:
            self._waiting[lane] = keys
        return key

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key when `seconds` have passed, unless an earlier time was asked for."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        held = self._later.get(key)
        if held is not None:
            if held.when() <= due:
                return
            held.cancel()
        self._later[key] = loop.call_at(due, self._due, key)

    def not_later(self, key: K) -> None:
        """No later time is asked for any more: a key that is gone leaves no timer behind."""
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()

    def _due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._worker())
        finally:
            for handle in self._later.values():
                handle.cancel()
            self._later.clear()
            self._busy.clear()
            self._idle.clear()

    async def _worker(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                woken: asyncio.Future[None] = loop.create_future()
                self._idle.append(woken)
                await woken
            key = self._next()
            self._dirty.discard(key)
            self._busy.add(key)
            try:
                await self._work(key)
            finally:
                self._busy.discard(key)
                if key in self._dirty:
                    self._line_up(key)
