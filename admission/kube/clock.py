"""What time it is by the API server.

Deadlines are counted from what others wrote: when a pod could not be scheduled, when a node was lost, when a job was
created. A controller whose own clock is minutes ahead would find them all over at once. So its time is that of the API
server, as far as the `Date` of its answers tells, which is whole seconds: small differences are left as they are, and a
larger one counts when two answers in a row say the same. In between it goes by the monotonic clock: somebody who sets
this machine's moves nothing. That somebody sets the API server's ahead is known by it, too (`set_ahead`): nothing that
was begun before has lasted longer for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import structlog

from admission.kube.flow import Told

_log = structlog.get_logger(__name__)

SLACK_MS = 2_000
"""Clocks that differ by less are taken for the same."""
_QUICK_MS = 5_000
"""An answer that took longer says little."""
_EVERY_MS = 1_000
_MOST = 8
"""So many times that it was set ahead are kept: a clock that runs slow is, by little, for ever."""


def steady() -> Callable[[], int]:
    """Milliseconds since the epoch by this machine's clock, as it is set now."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + offset) // 1_000_000


@dataclass(frozen=True, slots=True)
class SetAhead:
    """The API server's clock was last set ahead at `at`, by the clock as it was, and by so much; ms. `earlier`: the
    same of the times before that, the first first."""

    at: int = 0
    by: int = 0
    earlier: tuple[tuple[int, int], ...] = ()

    def now(self, then: int) -> int:
        """A time that somebody wrote down, by the clock as it is now: what lasts since then lasts no longer."""
        for at, by in (*self.earlier, (self.at, self.by)):
            if 0 < then <= at:
                then += by
        return then

    def further(self, at: int, by: int) -> SetAhead:
        """It was set ahead once more."""
        return SetAhead(at, by, (*self.earlier, (self.at, self.by))[-_MOST:] if self.at else ())

    def back(self, by: int) -> SetAhead:
        """It was set back by so much: to where it would be, mostly, had it not been set ahead."""
        left = self
        while left.at and by > SLACK_MS:
            if by < left.by - SLACK_MS:
                return replace(left, by=left.by - by)
            by -= left.by
            left = SetAhead(*left.earlier[-1], left.earlier[:-1]) if left.earlier else NOT_SET
        return left


NOT_SET = SetAhead()
"""It was not, as far as was heard."""


class ServerClock:
    """`now`: milliseconds since the epoch by the API server. `local`: the same by this machine, when it began."""

    def __init__(self, local: Callable[[], int] | None = None) -> None:
        self.local = local or steady()
        self.ahead_ms = 0
        """How far `local` is ahead of the API server's clock; negative when it is behind."""
        self.set_ahead = NOT_SET
        self._wrong = Told()
        self._known = False
        self._heard_at = 0
        self._before: tuple[int, int] | None = None
        """Between what the difference lay by the answer before, where it was none of those known."""

    def now(self) -> int:
        return self.local() - self.ahead_ms

    def wall(self) -> datetime:
        """The same, as what is written for people says it. In UTC."""
        return datetime.fromtimestamp(self.now() / 1000, UTC)

    @property
    def doubtful(self) -> bool:
        """Was nothing heard yet, or something else once: another answer is needed to know."""
        return not self._heard_at or self._before is not None

    def heard(self, date: str | None, asked: int) -> None:
        """An answer with this `Date` header, to what was asked at `asked` by `local`. Never fails."""
        came = self.local()
        soon = self._before is None and 0 <= came - self._heard_at < _EVERY_MS
        if date is None or soon or came - asked > _QUICK_MS:
            return
        try:
            told = int(parsedate_to_datetime(date).timestamp() * 1000)
        except (ValueError, OverflowError):
            return
        self._heard_at = came
        # It was written between the two moments, and in the second that it names.
        least, most = asked - told - 1000, came - told
        if least - SLACK_MS <= self.ahead_ms <= most + SLACK_MS:
            self._before, self._known = None, True
            return
        before, self._before = self._before, (least, most)
        if before is None or before[0] > most or least > before[1]:
            return
        was, was_ahead_ms = self.now(), self.ahead_ms
        self._before = None
        self.ahead_ms = 0 if least - SLACK_MS <= 0 <= most + SLACK_MS else (least + most) // 2
        if self._known and (by := was_ahead_ms - self.ahead_ms):
            self.set_ahead = self.set_ahead.further(was, by) if by > 0 else self.set_ahead.back(-by)
        self._known = True
        if self.ahead_ms:
            # Of several API servers one may go wrong: who speaks changes all the time.
            tell = _log.warning if self._wrong.due() else _log.debug
            tell("this clock is not the API server's, whose time is taken", ahead_s=self.ahead_ms / 1000)
        elif self._wrong.over() is not None:
            _log.info("this clock is the API server's again")
