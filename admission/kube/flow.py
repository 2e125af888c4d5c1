"""How hard the API server may be pressed: one gate before every request that is not urgent.

The server's own priority levels answer overload with 429 and `Retry-After`; before that they queue, and latency rises.
So the number of requests in flight is found, not configured: it grows by one per full round of good answers while it is
used up, and falls by half on a push-back, at most once a second (additive increase, multiplicative decrease). A
`Retry-After` closes the gate for everybody, because the level that pushed back is shared. A token bucket is there for
who must promise a rate. Waiters stand in lanes, by the namespace that their requests are for, and none has more than
its share of the places (see `lanes`): where one tenant's writes take long, as with a webhook that does not answer,
other tenants' find room. Renewing the lease does not pass this gate: a controller that
is throttled must not lose its leadership to the throttling. Nor do reviews of access (access.py): a write may hold its
place here until one of them is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from secrets import SystemRandom
from time import monotonic
from typing import TypeVar

from admission.kube.lanes import Lanes, Shares

_chance = SystemRandom()
T = TypeVar("T")


class Backoff:
    """Decorrelated jitter: each pause is drawn between `base` and thrice the pause before, up to `cap` (seconds)."""

    def __init__(self, base: float, cap: float) -> None:
        self._base = base
        self._cap = cap
        self._last = 0.0

    def next(self) -> float:
        self._last = min(self._cap, _chance.uniform(self._base, max(self._base, self._last * 3)))
        return self._last

    def reset(self) -> None:
        self._last = 0.0


def between(low: float, high: float) -> float:
    """A number drawn evenly from [low, high]: for spreading what would otherwise happen at once."""
    return _chance.uniform(low, high)


async def in_turns(items: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """The items; after each `at_once` of them all else in this process has a turn (Leases, probes), and may change what
    they are taken from."""
    for count, item in enumerate(items, 1):
        yield item
        if count % at_once == 0:
            await asyncio.sleep(0)


class Told:
    """When to say what goes on and on: at once, then after pauses that double from `first` to `most` seconds. What ends
    and comes back within such a pause has gone on.

    clock: monotonic seconds.
    """

    def __init__(self, first: float = 10.0, most: float = 600.0, *, clock: Callable[[], float] = monotonic) -> None:
        self._first = first
        self._most = most
        self._clock = clock
        self._pause = 0.0
        self._since: float | None = None
        self._next = float("-inf")
        self._said = False
        self.times = 0
        """How often it happened since it began."""

    def due(self) -> bool:
        """It happened (again): is that to be said?"""
        now = self._clock()
        self.times += 1
        anew = self._since is None
        if self._since is None:
            self._since = now
        if now < self._next:
            return False
        old = anew and now > self._next + self._pause
        self._pause = min(self._most, self._pause * 2) if self._pause and not old else self._first
        self._next = now + self._pause
        self._said = True
        return True

    def over(self) -> float | None:
        """It is over: seconds that it lasted, once; None if there was nothing, or nothing was said of it."""
        if self._since is None:
            return None
        lasted, said = self._clock() - self._since, self._said
        self._since, self._said, self.times = None, False, 0
        return lasted if said else None


class Flow:
    """The gate. `enter` waits for a place, `leave` gives it back; `good` and `pushed_back` teach it.

    `qps` and `burst` are requests per second and requests; None means no rate is promised.
    """

    def __init__(
        self, *, start: int = 48, least: int = 2, most: int = 128, qps: float | None = None, burst: int = 100
    ) -> None:
        self.limit = float(start)
        self._start = float(start)
        self._shares = Shares(start)
        self._least = least
        self.most = most
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = 0.0
        self._closed_until = 0.0
        self._cut_at = float("-inf")
        self._waiting = Lanes[asyncio.Future[None]]()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        return self._shares.total

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter_at_once(self, lane: str = "") -> bool:
        """Takes a place if there is one for which nobody waits."""
        if self._waiting or self._opens_in(asyncio.get_running_loop().time()) > 0.0 or not self._may_take(lane):
            return False
        self._take(lane)
        return True

    async def enter(self, lane: str = "") -> None:
        """Waits for a place. Cancelling the wait takes no place. lane: whose it is, "" if nobody's."""
        if self.enter_at_once(lane):
            return
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(lane, place)
        self._pump()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given a place all the same
                self.leave(lane)
            raise

    def leave(self, lane: str = "") -> None:
        self._shares.give_back(lane)
        self._pump()

    def good(self, seconds: float, *, slow: float = 5.0) -> None:
        """A request was answered after `seconds`; one that took longer than `slow` takes back of what was added to the
        start, and no more: others may be who keeps the server busy, and would starve us."""
        if seconds > slow:
            self._cut(0.8, self._start)
        elif self._waiting or self.in_flight >= int(self.limit) - 1:
            self.limit = min(float(self.most), self.limit + 1.0 / self.limit)

    def pushed_back(self, retry_after: float) -> None:
        """The server said 429: close the gate for `retry_after` seconds and halve what may be in flight."""
        self._cut(0.5, self._least)
        self._closed_until = max(self._closed_until, asyncio.get_running_loop().time() + retry_after)

    def _cut(self, factor: float, least: float) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._cut_at + 1.0:
            self._cut_at = now
            self.limit = max(min(self.limit, least), self.limit * factor)

    def _opens_in(self, now: float) -> float:
        """Seconds until the next place by the clock's reckoning; infinity when only a `leave` can free one."""
        if self.in_flight >= int(self.limit):
            return float("inf")
        wait = max(0.0, self._closed_until - now)
        if self._qps is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._qps)
            self._filled_at = now
            if self._tokens < 1.0:
                wait = max(wait, (1.0 - self._tokens) / self._qps)
        return wait

    def _may_take(self, lane: Hashable) -> bool:
        self._shares.most = int(self.limit)
        return self._shares.may_take(lane)

    def _take(self, lane: Hashable) -> None:
        self._shares.take(lane)
        if self._qps is not None:
            self._tokens -= 1.0

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            loop = asyncio.get_running_loop()
            wait = self._opens_in(loop.time())
            if wait == float("inf"):
                return
            if wait > 0.0:
                # The loop's clock is coarse: never ask for less than it can tell apart, or the pump spins.
                self._timer = loop.call_later(max(wait, 0.001), self._pump)
                return
            if (found := self._waiting.pop(self._may_take)) is None:
                return
            lane, place = found
            if not place.done():  # else its waiter was cancelled
                self._take(lane)
                place.set_result(None)
