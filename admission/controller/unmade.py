"""Decisions whose writes failed: each keeps its room until it is made again.

A write fails in passing (somebody wrote the object meanwhile, the API server changes its leader), and is decided again
on what is there then. If the decision counted no more in between, what it had set aside would go to whoever is next,
who would be evicted for it a moment later, and at the end of an outage the latest comers would start first. So it
counts on until a newer version of its Workload comes, or until a wait is over that doubles with each failure in a row.
Who waits and whose writes fail again and again keeps nothing from others: the decision counts no more, and the gang
sits out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from admission.engine.model import Decision, Key
from admission.jobs.kinds import JobKey

FIRST_S, LONGEST_S = 0.1, 60.0
KEEPS_ROOM_S = 5.0
"""Room is kept for no wait that is longer: from the seventh failure on, about six seconds after the first."""


@dataclass(frozen=True, slots=True)
class _Kept:
    job: JobKey
    decision: Decision
    timer: asyncio.TimerHandle


class Unmade:
    """See the module. `again(job, decision)` is told when a decision that was kept counts no more."""

    def __init__(self, again: Callable[[JobKey, Decision], None]) -> None:
        self._again = again
        self._failures: dict[Key, tuple[int, float]] = {}
        """Writes of decisions on a gang that failed in a row, and when the last did (the loop's seconds)."""
        self._kept: dict[Key, _Kept] = {}

    def keeps(self, gang: Key) -> bool:
        """Is a decision on it to be made again that counts meanwhile."""
        return gang in self._kept

    def failed(self, job: JobKey, decision: Decision, *, waits: bool) -> float:
        """Its write failed: seconds for which the gang is to sit out, the decision counting no more; 0: it is kept.
        Only who `waits` can sit out; whatever else is decided on who holds quota takes none from others."""
        gang, loop = decision.key, asyncio.get_running_loop()
        failures, last = self._failures.get(gang, (0, 0.0))
        if loop.time() > last + 2 * LONGEST_S:
            failures = 0
        self._failures[gang] = failures + 1, loop.time()
        wait = min(LONGEST_S, FIRST_S * 2.0 ** min(failures, 16))
        if waits and wait > KEEPS_ROOM_S:
            return wait
        self._kept[gang] = _Kept(job, decision, loop.call_later(wait, self.news, gang))
        return 0.0

    def made(self, gang: Key) -> None:
        """A decision on it was written, or it is gone."""
        self.news(gang)
        self._failures.pop(gang, None)

    def news(self, gang: Key) -> None:
        """It is another now, or has waited long enough."""
        if (kept := self._taken(gang)) is not None:
            self._again(kept.job, kept.decision)

    def let_go(self, gang: Key) -> Decision | None:
        """The decision that was kept: what becomes of it is the caller's to say."""
        kept = self._taken(gang)
        return None if kept is None else kept.decision

    def _taken(self, gang: Key) -> _Kept | None:
        kept = self._kept.pop(gang, None)
        if kept is not None:
            kept.timer.cancel()
        return kept

    def clear(self) -> None:
        """Nobody leads here any more."""
        for gang in tuple(self._kept):
            self.news(gang)
        self._failures.clear()
