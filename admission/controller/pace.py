"""When to decide on what has changed, and on how much: soon, on as much as possible at once, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median_low

_SECOND = 1.0
_OF_ITS_WRITES = 1 / 3
_LONGEST_WAIT = 2.0  # seconds
_REMEMBERED = 30.0  # seconds
_NAMESPACES = 32


class WriteTimes:
    """How long it takes until a decision is written: of the namespaces that were written in last, the median, each by
    its latest write. Where one tenant's writes take long, as with a webhook that does not answer, those of others
    count."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, float]] = {}
        """Namespace -> (when, seconds), in the order of time."""

    def took(self, namespace: str, seconds: float) -> None:
        self._latest.pop(namespace, None)
        self._latest[namespace] = (asyncio.get_running_loop().time(), seconds)
        if len(self._latest) > _NAMESPACES:
            del self._latest[next(iter(self._latest))]

    def seconds(self) -> float:
        """0.0 where nothing was written lately."""
        since = asyncio.get_running_loop().time() - _REMEMBERED
        return median_low([took for at, took in self._latest.values() if at >= since] or [0.0])


class Pace:
    """`changed` says that there is something to decide; `due` waits for the moment, and `took` tells what it cost.

    A change is decided on when `quiet` seconds have gone by in which nothing else came, so that a burst is one
    decision, and after `window` seconds at the latest. Where there is always something, `rest` times what the last
    decision took passes first, up to a second: what happens meanwhile costs no decision of its own, and the rest of the
    process has its time. It is no more than the window where the last decision kept the writers (`busy`) and stopped
    before its end (`more`). Who comes after a pause waits for `quiet` alone.

    Where the API server is slow, a third of the time that `writes` take passes first, up to two seconds, and all that
    is found to do then is done; so much time goes into one and the other in turn. Nobody starts before his write is
    there, and who is admitted just before a more important one of his queue comes, or one who is entitled to what he
    borrows, is evicted for that, often before he ran.

    While more was decided than is being written (`behind`), another decision helps nobody: it would be made too early,
    and stand in line. It is made when the line is short again, or, for who would be ahead in that line, after a second
    and that rest.

    Nothing else is done while a decision is made: pods wait for their hosts, probes for their answer and the lease for
    its renewal. `steps`, the trials that the next decision may make, follow what trials cost in this cluster, so that a
    decision takes about `longest` seconds at most: fewer when the last took longer, more when it stopped far from that.
    """

    def __init__(
        self,
        quiet: float,
        window: float,
        rest: float,
        *,
        longest: float = 0.5,
        least_steps: int = 100,
        most_steps: int = 500,
        behind: Callable[[], bool] = lambda: False,
        writes: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.steps = most_steps
        self._longest = longest
        self._least = least_steps
        self._most = most_steps
        self._quiet = quiet
        self._window = window
        self._rest = rest
        self._behind = behind
        self._writes = writes
        self._took = 0.0
        self._rested_at = 0.0
        self._at_work_since: float | None = None
        """Since the last wait for what is being written."""
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def due(self) -> None:
        await self._changed.wait()
        loop = asyncio.get_running_loop()
        held_up_until = loop.time() + _SECOND + self._rest * self._took
        while self._behind() and (left := held_up_until - loop.time()) > 0.0:  # noqa: ASYNC110  # a line, not an event
            await asyncio.sleep(min(self._window, left))
        until = loop.time() + self._window
        resting = self._rested_at - loop.time()
        if resting > 0.0:
            await asyncio.sleep(resting)
        while (left := until - loop.time()) > 0.0:
            self._changed.clear()
            await asyncio.sleep(min(self._quiet, left))
            if not self._changed.is_set():
                break
        self._changed.clear()

    def took(self, seconds: float, steps: int = 0, *, more: bool = False, busy: bool = False) -> None:
        """A decision is made, and took so long and so many trials."""
        if seconds > self._longest:
            wanted = min(self.steps, int(steps * self._longest / seconds))
            self.steps = max(self._least, self.steps // 4, wanted)
        elif steps >= self.steps and seconds < self._longest / 2:
            self.steps = min(self._most, self.steps * 2)
        self._took = seconds
        now = asyncio.get_running_loop().time()
        rest = min(self._rest * seconds, self._window if more and busy else _SECOND)
        wait = min(self._writes() * _OF_ITS_WRITES, _LONGEST_WAIT)
        if self._at_work_since is None:
            self._at_work_since = now - seconds
        if not more or now + rest - self._at_work_since >= wait:
            rest, self._at_work_since = max(rest, wait), None
        self._rested_at = now + rest
