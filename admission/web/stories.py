"""What happened to each job, in memory: each change of a Workload's conditions, with its time, reason and numbers.

Every decision becomes a condition of the Workload, so that what is kept here is the stream of decisions as the API
server confirmed it, and every replica keeps the same. It begins when the replica does; of what was before, the
conditions that still stand are kept. Bounded: of the jobs that changed last, the last changes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from admission.engine.model import Key, Workload
from admission.jobs.kinds import millis
from admission.names import ADMITTED, EVICTED, FINISHED, PODS_READY, PREEMPTED, QUOTA_RESERVED
from admission.web import view

Json = dict[str, Any]

MOST_JOBS, MOST_ENTRIES = 2000, 32

_TITLES = {
    (QUOTA_RESERVED, "True"): "Quota and nodes reserved",
    (QUOTA_RESERVED, "False"): "Waits",
    (ADMITTED, "True"): "Admitted",
    (EVICTED, "True"): "Evicted",
    (PREEMPTED, "True"): "Preempted",
    (PODS_READY, "True"): "Pods ready",
    (PODS_READY, "False"): "Pods not ready",
    (FINISHED, "True"): "Finished",
}
"""(condition, status) of what is told; the others only end what these began."""


class _WorkloadView(Protocol):
    @property
    def value(self) -> Workload: ...


class Seen(view.Seen, Protocol):
    """A Workload as the controller keeps it, with what the engine sees of it."""

    @property
    def view(self) -> _WorkloadView: ...


class Stories:
    """See the module. `now` in ms since the epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._told: OrderedDict[Key, tuple[str, deque[Json]]] = OrderedDict()

    def seen(self, old: Seen | None, new: Seen | None) -> None:
        """A Workload changed. Quick; never raises."""
        if new is None:
            return
        known = self._told.get(new.key)
        if known is None or known[0] != new.uid:
            known = (new.uid, deque(maxlen=MOST_ENTRIES))
            created = new.view.value.created
            known[1].append(
                {"at": created, "what": "Created", "reason": "", "message": "", "decision": "", "where": []}
            )
        entries = known[1]
        before = {entry.get("type"): entry for entry in (old.status.get("conditions") or ())} if old is not None else {}
        fresh = [entry for entry in new.status.get("conditions") or () if before.get(entry.get("type")) != entry]
        if new.view.value.finished and not (old is not None and old.view.value.finished):
            fresh.append({"type": FINISHED, "status": "True"})  # the conditions of one that is finished are not kept
        for entry in sorted(fresh, key=lambda entry: (millis(entry.get("lastTransitionTime")), _rank(entry))):
            title = _TITLES.get((str(entry.get("type")), str(entry.get("status"))))
            if title is None or (title == "Pods not ready" and not new.view.value.admitted):
                continue
            same = before.get(entry.get("type"), {}).get("lastTransitionTime") == entry.get("lastTransitionTime")
            at = millis(entry.get("lastTransitionTime"))
            told = {
                "at": self._now() if same or not at else at,
                "what": title,
                "reason": str(entry.get("reason", "")),
                "message": str(entry.get("message", "")),
                "decision": str(new.status.get("decision", "")),
                "where": view.where(new.view.value) if entry.get("type") == QUOTA_RESERVED else [],
            }
            last = entries[-1]
            if (last["what"], last["reason"]) == (title, told["reason"]):
                entries[-1] = {**told, "at": last["at"]}  # the same no with newer numbers
            else:
                entries.append({**told, "at": max(told["at"], last["at"])})  # theirs are whole seconds
        self._told[new.key] = known
        self._told.move_to_end(new.key)
        while len(self._told) > MOST_JOBS:
            self._told.popitem(last=False)

    def of(self, key: Key) -> list[Json]:
        """Oldest first; of one that is finished, too."""
        known = self._told.get(key)
        return list(known[1]) if known is not None else []


def _rank(entry: Mapping[str, Any]) -> int:
    """Of what happened within one second: what is evicted was admitted before, and what waits was evicted."""
    order = (ADMITTED, PODS_READY, EVICTED, PREEMPTED, QUOTA_RESERVED)
    if (entry.get("type"), entry.get("status")) == (QUOTA_RESERVED, "True"):
        return -1
    return order.index(str(entry["type"])) if entry.get("type") in order else len(order)
