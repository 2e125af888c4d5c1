"""Status of ClusterQueues, LocalQueues and Cohorts: numbers of the engine's State, written seldom.

A queue's numbers change with every arrival and every finish; what is written is the state at the end of an interval, at
most once per object and interval, and only where it differs from what is stored. The last state is always written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from admission import quantity
from admission.controller.conditions import Condition, with_conditions
from admission.controller.decode import Item
from admission.engine import order
from admission.engine.activity import Activity
from admission.engine.ledger import charge_of
from admission.engine.model import ClusterQueue, Cohort, FlavorResource, LocalQueue
from admission.engine.roster import QueueNumbers
from admission.engine.state import State
from admission.jobs.kinds import millis
from admission.jobs.values import rfc3339
from admission.names import ACTIVE

INT64_MAX = quantity.INT64_MAX


def queue_status(state: State, seen: Item[ClusterQueue], now: int) -> dict[str, Any]:
    return _of_tree(seen, state.queue_numbers(seen.name), state.queue_active(seen.name), now)


def cohort_status(state: State, seen: Item[Cohort], now: int) -> dict[str, Any]:
    return _of_tree(seen, state.cohort_numbers(seen.name), state.cohort_active(seen.name), now)


def _of_tree(seen: Item[Any], numbers: QueueNumbers, active: Activity, now: int) -> dict[str, Any]:
    share = {"weightedShare": min(numbers.weighted_share, INT64_MAX)}
    return _with_active(seen, {**_counted(numbers, borrowed=True), "fairSharing": share}, active, now)


def local_queue_status(state: State, seen: Item[LocalQueue], now: int) -> dict[str, Any]:
    numbers = state.local_queue_numbers((seen.namespace, seen.name))
    status = _counted(numbers, borrowed=False)
    if (sample := _sample(state, seen, numbers, now)) is not None:
        status["fairSharing"] = {"weightedShare": 0, "admissionFairSharingStatus": sample}
    return _with_active(seen, status, state.local_queue_active((seen.namespace, seen.name)), now)


def _counted(numbers: QueueNumbers, *, borrowed: bool) -> dict[str, Any]:
    return {
        "pendingWorkloads": numbers.pending,
        "reservingWorkloads": numbers.reserving,
        "admittedWorkloads": numbers.admitted,
        "flavorsReservation": flavors(numbers, reserved=True, borrowed=borrowed),
        "flavorsUsage": flavors(numbers, reserved=False, borrowed=borrowed),
    }


def next_sample(state: State, seen: Item[LocalQueue], now: int) -> int | None:
    """When the decayed usage of a LocalQueue is due to be noted again; None where no turns are taken by it. At once
    where it was noted far ahead: the clock was set back since."""
    fairness, local = state.rules.usage_fairness, seen.value
    queue = state.cluster_queue(local.cluster_queue)
    if fairness is None or queue is None or not queue.usage_based_fairness:
        return None
    last = millis(_noted(seen).get("lastUpdate"))
    if last > now + fairness.sampling_ms:
        return now
    return last + fairness.sampling_ms if last else 0


def _noted(seen: Item[LocalQueue]) -> dict[str, Any]:
    held = ((seen.status or {}).get("fairSharing") or {}).get("admissionFairSharingStatus")
    return held if isinstance(held, dict) else {}


def _sample(state: State, seen: Item[LocalQueue], numbers: QueueNumbers, now: int) -> dict[str, Any] | None:
    """status.fairSharing.admissionFairSharingStatus as it should be: as it stands between samples, and while there is
    no ClusterQueue, which may be about to be made anew; else a new one.

    The first sample starts the count at nothing. Times are whole seconds on both ends, as they are stored, so that no
    part of an interval counts twice.
    """
    due = next_sample(state, seen, now)
    if due is None:
        unknown = state.rules.usage_fairness is not None and state.cluster_queue(seen.value.cluster_queue) is None
        return _noted(seen) or None if unknown else None
    if now < due:
        return _noted(seen)
    at = now - now % 1000
    using = _added_up(numbers.used.items())
    amounts: dict[str, float] = {}
    fairness, elapsed = state.rules.usage_fairness, max(0, at - seen.value.consumed_at)
    if due and fairness is not None:
        lately: list[tuple[int, dict[str, int]]] = []
        if elapsed > fairness.sampling_ms:  # who came since has not run for all of it
            for gang in state.holders((seen.namespace, seen.name)):
                if gang.admitted and gang.admitted_at > seen.value.consumed_at:
                    asked = _added_up(charge_of(gang).usage)
                    using = {name: amount - asked.get(name, 0) for name, amount in using.items()}
                    lately.append((max(fairness.sampling_ms, at - gang.admitted_at), asked))
        amounts = order.consumed(fairness, dict(seen.value.consumed), elapsed, using, lately)
    return {
        "consumedResources": {
            name: quantity.format_fraction(name, amount) for name, amount in sorted(amounts.items()) if amount
        },
        "lastUpdate": rfc3339(at),
    }


def _added_up(amounts: Iterable[tuple[FlavorResource, int]]) -> dict[str, int]:
    """Of all flavors."""
    out: dict[str, int] = {}
    for (_, resource), amount in amounts:
        out[resource] = out.get(resource, 0) + amount
    return out


def flavors(numbers: QueueNumbers, *, reserved: bool, borrowed: bool = True) -> list[dict[str, Any]]:
    """[{name, resources: [{name, total, borrowed}]}], in the order in which the queue names them first; then what its
    gangs hold of flavors that it names no more."""
    amounts, beyond = (numbers.reserved, numbers.borrowed) if reserved else (numbers.used, numbers.borrowed_used)
    out: dict[str, list[dict[str, Any]]] = {}
    for flavor, resource in numbers.order:
        total = amounts.get((flavor, resource), 0)
        entry = {"name": resource, "total": quantity.format(resource, total)}
        if borrowed:
            entry["borrowed"] = quantity.format(resource, beyond.get((flavor, resource), 0))
        # A cohort's queues need not name the resources of a flavor side by side, and a list has each flavor once.
        out.setdefault(flavor, []).append(entry)
    return [{"name": flavor, "resources": entries} for flavor, entries in out.items()]


def with_hold(status: dict[str, Any], seen: Item[Any], held: Condition, now: int) -> dict[str, Any]:
    """`status` with the condition that says what holds jobs back in this cluster."""
    before = {**(seen.status or {}), "conditions": status["conditions"]}
    return {**status, "conditions": with_conditions(before, [held], now, seen.generation)["conditions"]}


def _with_active(seen: Item[Any], status: dict[str, Any], active: Activity, now: int) -> dict[str, Any]:
    is_active, reason, message = active
    if seen.problems:  # it is used for as far as it can be read; who wrote it looks here
        message += f"; but it is written wrong: {'; '.join(seen.problems)}"
    conditions = with_conditions(seen.status or {}, [(ACTIVE, is_active, reason, message)], now, seen.generation)
    status["conditions"] = conditions["conditions"]
    return status


def differs(stored: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Is a write due? Equal numbers in other clothes (a missing list for an empty one) are equal."""
    held = {key: value for key, value in (stored or {}).items() if key in wanted}
    if held == wanted:
        return False
    return bool(_bare(held) != _bare(wanted))


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _bare(v) for k, v in value.items() if v not in (None, [], {}) and k != "lastTransitionTime"}
    if isinstance(value, list):
        return [_bare(one) for one in value]
    return value
