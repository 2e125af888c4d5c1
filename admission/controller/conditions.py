"""The status of a Workload as the next write should leave it.

All status of a Workload belongs to one field manager, applied whole and conditional on its resourceVersion: what an
apply leaves out is removed, so each function takes the status as it is stored and returns a new one. A condition's
transition time moves only when its status does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from admission.jobs.values import rfc3339
from admission.names import PREEMPTED

Condition = tuple[str, bool, str, str]
"""(type, status, reason, message)."""

_OURS = (
    "conditions",
    "admission",
    "requeueState",
    "admissionChecks",
    "claim",
    "schedulingStats",
    "accumulatedPastExecutionTimeSeconds",
    "avoidNodes",
    "outOfStock",
    "resourceRequests",
    "reclaimablePods",
    "unhealthyNodes",
    "fairEvictions",
    "decision",
)
MESSAGE_LIMIT = 1024


def condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    for one in status.get("conditions") or ():
        if one.get("type") == kind:
            return dict(one)
    return None


def with_conditions(status: dict[str, Any], changes: Iterable[Condition], now: int, generation: int) -> dict[str, Any]:
    """`status` with each condition set; the others as they were. Only the fields that Muster owns are carried over."""
    out = {name: status[name] for name in _OURS if name in status}
    conditions = [dict(one) for one in status.get("conditions") or ()]
    for kind, holding, reason, message in changes:
        text = "True" if holding else "False"
        entry = next((one for one in conditions if one["type"] == kind), None)
        if entry is None:
            if not holding and kind == PREEMPTED:
                continue  # it never was: there is nothing that is over
            entry = {"type": kind}
            conditions.append(entry)
        if entry.get("status") != text:
            entry["lastTransitionTime"] = rfc3339(now)
        entry.update(status=text, reason=reason, message=message[:MESSAGE_LIMIT], observedGeneration=generation)
    out["conditions"] = conditions
    return out
