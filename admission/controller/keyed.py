"""A work queue of keys: each key is worked on by one worker at a time, and never forgotten while it is dirty.

Adding a key that waits changes nothing; adding one that is being worked on brings it back afterwards. A key can also be
asked for at a later time; the earliest time wins.

Keys wait in lanes, which take turns and have no more than their shares of the workers (see `admission.kube.lanes`).
Keys that press have lanes of their own, and every other turn is theirs: what waits for a write (a start, a finish) does
not stand behind thousands who have just come, nor these behind it for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from admission.kube.lanes import Lanes, Shares

K = TypeVar("K")
_STRETCH_S = 0.02
"""Where work waits for nothing, all else waits for it: leases, probes, pods that ask for their hosts."""


class KeyedQueue(Generic[K]):
    """See the module. `work(key)` must not raise; `workers` keys are worked on at once. `lane(key)`: whose it is, ""
    if nobody's; `presses(key)` is asked when it is added."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        workers: int,
        lane: Callable[[K], str] = lambda key: "",
        presses: Callable[[K], bool] = lambda key: False,
    ) -> None:
        self._work = work
        self._shares = Shares(workers)
        self._lane = lane
        self._presses = presses
        self._ordinary, self._pressing = Lanes[K](), Lanes[K]()
        """Who came to press while it waited stands in both. Who was worked on since is passed by."""
        self._press: set[K] = set()
        """Keys that wait and press."""
        self._pressing_next = False
        self._dirty: set[K] = set()
        self._busy: dict[K, float] = {}
        """Since when each is worked on; the loop's seconds."""
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that have nothing to do; one of them is woken for one key, for waking costs each."""
        self._rests_at = 0.0
        self._resumes = False

    def __len__(self) -> int:
        return len(self._dirty) + sum(key not in self._dirty for key in self._busy)

    @property
    def idle(self) -> bool:
        return not self._dirty and not self._busy

    def held_up(self, seconds: float) -> set[str]:
        """Lanes in which a key has been worked on for longer."""
        since = asyncio.get_running_loop().time() - seconds
        return {self._lane(key) for key, began in self._busy.items() if began < since}

    def add(self, key: K) -> None:
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self._press and ((presses := self._presses(key)) or key not in self._dirty):
            self._dirty.add(key)
            self._line_up(key, presses)

    def _line_up(self, key: K, presses: bool) -> None:
        if presses:
            self._press.add(key)
        (self._pressing if presses else self._ordinary).append(self._lane(key), key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._idle:
            worker = self._idle.popleft()
            if not worker.done():
                worker.set_result(None)
                return

    def _next(self) -> K | None:
        lines = (self._pressing, self._ordinary) if self._pressing_next else (self._ordinary, self._pressing)
        for line in lines:
            while (found := line.pop(self._shares.may_take)) is not None:
                _, key = found
                if key in self._dirty and key not in self._busy:
                    self._pressing_next = line is self._ordinary
                    return key
        return None

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
                for _ in range(self._shares.most):
                    group.create_task(self._worker())
        finally:
            for handle in self._later.values():
                handle.cancel()
            self._later.clear()
            self._idle.clear()
            self._resumes = False

    def _resume(self, loop: asyncio.AbstractEventLoop) -> None:
        self._resumes = False
        self._rests_at = loop.time() + _STRETCH_S

    async def _worker(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while loop.time() >= self._rests_at:
                # All workers rest until the loop has gone round once: each for itself would make a round of many.
                if not self._resumes:
                    self._resumes = True
                    loop.call_soon(self._resume, loop)
                await asyncio.sleep(0)
            while (key := self._next()) is None:
                woken: asyncio.Future[None] = loop.create_future()
                self._idle.append(woken)
                await woken
            self._dirty.discard(key)
            self._press.discard(key)
            self._busy[key] = loop.time()
            lane = self._lane(key)
            self._shares.take(lane)
            if self._ordinary or self._pressing:
                self._wake_one()  # what ended may have left others more than one worker
            try:
                await self._work(key)
            finally:
                del self._busy[key]
                self._shares.give_back(lane)
                if key in self._dirty:
                    self._line_up(key, self._presses(key))
