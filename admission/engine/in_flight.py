"""Decisions whose writes are on their way, laid over the objects as they were seen last.

A decision counts from when it is assumed: until the object shows it, or is past it, or the write failed. Of one gang
there is one at a time, or an admission and what was decided on it before the admission was seen; both are written in
one go, in this order.
"""

from __future__ import annotations

from msgspec.structs import replace

from admission.engine.model import Admit, Claim, Decision, Evict, Key, Replace, Workload
from admission.engine.shortage import NEW


class InFlight:
    """See the module. Each method answers how the gang counts from then on; None where nothing changed, or no object of
    it was seen."""

    def __init__(self) -> None:
        self._seen: dict[Key, Workload] = {}
        self._decided: dict[Key, tuple[Decision, ...]] = {}

    def seen(self, value: Workload) -> Workload | None:
        """The object is so now."""
        key = value.key
        old = self._seen.get(key)
        if old == value:
            return None
        decided = self._decided.pop(key, ())
        self._seen[key] = value
        if old is not None and old.uid != value.uid:
            decided = ()
        if old is not None and value.admission is None and value.evicted and value.evicted_at > old.evicted_at:
            decided = ()  # admitted, evicted and released since: what was assumed is past
        while decided and _shows(value, decided[0]):
            decided = decided[1:]
        if decided:
            self._decided[key] = decided
        return self._laid_over(value)

    def gone(self, key: Key) -> None:
        """There is no such object any more, or it counts no more."""
        self._seen.pop(key, None)
        self._decided.pop(key, None)

    def assume(self, decision: Decision) -> Workload | None:
        """It is decided, and will be written."""
        key = decision.key
        value = self._seen.get(key)
        if value is None or (decision.uid and value.uid and decision.uid != value.uid):
            return None
        before = self._decided.get(key, ())
        if not isinstance(decision, Admit) and before and isinstance(before[0], Admit):
            # The admission that it is about is not seen yet.
            self._decided[key] = (before[0], decision)
        elif _shows(value, decision):
            return None
        else:
            self._decided[key] = (decision,)
        return self._laid_over(value)

    def failed(self, decision: Decision) -> Workload | None:
        """It was not written. What was decided after it rests on it; what stands in its place does not."""
        decided = self._decided.get(decision.key, ())
        value = self._seen.get(decision.key)
        if decision not in decided or value is None:
            return None
        del self._decided[decision.key]
        if left := decided[: decided.index(decision)]:
            self._decided[decision.key] = left
        return self._laid_over(value)

    def assumes(self, decision: Decision) -> bool:
        """Does this decision count, and nothing after it, though no object shows it."""
        return self._decided.get(decision.key) == (decision,)

    def _laid_over(self, value: Workload) -> Workload:
        for decision in self._decided.get(value.key, ()):
            value = written(value, decision, NEW)
        return value


def written(value: Workload, decision: Decision, at: int) -> Workload:
    """The gang as it will be once the write of the decision is seen; at: the moment of the write."""
    match decision:
        case Admit():
            return replace(
                value,
                admission=decision.admission,
                admitted=decision.admitted,
                reserved_at=at,
                admitted_at=at if decision.admitted else 0,
                evicted="",
                evicted_for="",
                claims=None,
                cursor=(),
                requeue_at=0,
            )
        case Evict():
            return replace(value, evicted="Preempted", evicted_for=decision.preemptor_uid, evicted_at=at)
        case Claim():
            return replace(value, claims=decision.record)
        case Replace():
            return replace(value, admission=decision.admission, lost_nodes=())
        case _:
            return replace(value, admission=None, admitted=False)


def _shows(value: Workload, decision: Decision) -> bool:
    """Does the object say what was decided (or that it is past that)."""
    match decision:
        case Admit():
            return value.admission is not None
        case Evict():
            return value.admission is None or bool(value.evicted)
        case Claim():
            return (value.admission is not None and value.evicted != "NodeFailures") or (
                value.claims is not None and value.claims.until == decision.record.until
            )
        case Replace():
            return value.admission is None or value.admission == decision.admission or bool(value.evicted)
        case _:
            return value.admission is None
