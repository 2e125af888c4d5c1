"""A work queue of keys: each key is worked on by one worker at a time, and never forgotten while it is dirty.

Adding a key that waits changes nothing; adding one that is being worked on brings it back afterwards. A key can also be
asked for at a later time; the earliest time wins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")


class KeyedQueue(Generic[K]):
    """See the module. `work(key)` must not raise; `workers` keys are worked on at once."""

    def __init__(self, work: Callable[[K], Awaitable[None]], workers: int) -> None:
        self._work = work
        self._workers = workers
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()
        self._busy: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._busy

    def add(self, key: K) -> None:
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._waiting.append(key)
            self._wake.set()

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

    async def _worker(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            key = self._waiting.popleft()
            self._dirty.discard(key)
            self._busy.add(key)
            try:
                await self._work(key)
            finally:
                self._busy.discard(key)
                if key in self._dirty:
                    self._waiting.append(key)
                    self._wake.set()
