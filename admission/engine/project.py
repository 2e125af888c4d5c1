"""What the API says of a gang: conditions and events of a verdict or a decision, in one plain sentence with numbers.

Pure: the same value gives the same words, in the condition, the event, the command line and the web page. Types and
reasons are Kueue's; the sentences are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from admission import quantity
from admission.engine.model import (
    Admit,
    Cancel,
    CheckState,
    Claim,
    Decision,
    Detail,
    Evict,
    EvictReason,
    Misfit,
    Reason,
    Replace,
    Shortfall,
    Standing,
    Value,
    Verdict,
    Why,
    Workload,
)
from admission.names import ADMITTED, BLOCKED_ON_GATES, EVICTED, PREEMPTED, QUOTA_RESERVED

Condition = tuple[str, bool, str, str]
"""(type, status, reason, message)."""

Event = tuple[str, str, str]
"""(Normal or Warning, reason, message)."""


class Projection(Value, frozen=True):
    conditions: tuple[Condition, ...] = ()
    events: tuple[Event, ...] = ()
    requests: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """(pod set, total requests) of a gang that waits; empty otherwise."""


def project(workload: Workload, what: Verdict | Decision) -> Projection:
    """Conditions that change, and events to tell, when this is what became of the workload.

    An Evict concerns two: give it with its victim, and with the gang that it makes room for."""
    match what:
        case Verdict():
            return _verdict(workload, what)
        case Admit():
            return _admit(workload, what)
        case Evict():
            return _evicted(what) if what.key == workload.key else _evicting(what)
        case Claim() if workload.admission is not None:
            text = "The nodes that it has left, and others for those it lost, are kept for it until its pods are gone"
            return Projection(events=(("Normal", "RoomKept", text),))
        case Claim(record=record) if not record.victims:
            return Projection()  # nobody was evicted: the verdict that comes with it says what it waits for
        case Claim(record=record):
            leave = f"{len(record.victims)} evicted workload(s)"
            waits = sentence(Why(Reason.WAITING_FOR_PREEMPTED, Detail.VICTIMS_LEAVING, subject=leave))
            return Projection(((QUOTA_RESERVED, False, Reason.WAITING_FOR_PREEMPTED.value, waits),))
        case Cancel(why=why):
            text = sentence(why)
            return Projection(
                (
                    (QUOTA_RESERVED, False, why.reason.value, text),
                    (ADMITTED, False, "NoReservation", "The workload has no reservation"),
                )
            )
        case Replace():
            return _replace(workload, what)


def _replace(workload: Workload, what: Replace) -> Projection:
    if workload.lost_nodes:
        lost = ", ".join(workload.lost_nodes)
        return Projection(events=(("Normal", "NodesReplaced", f"Lost nodes were replaced in its assignment: {lost}"),))
    if workload.admitted or any(check.state is not CheckState.READY for check in workload.checks):
        return Projection()
    queue = what.admission.cluster_queue
    return Projection(
        conditions=((ADMITTED, True, "Admitted", "The workload is admitted"),),
        events=(("Normal", "Admitted", f"Admitted by ClusterQueue {queue}, its nodes chosen"),),
    )


def _verdict(workload: Workload, verdict: Verdict) -> Projection:
    if workload.admission is not None and workload.lost_nodes and verdict.standing is Standing.PARKED:
        lost = ", ".join(workload.lost_nodes)
        text = f"Evicted, for no other nodes were found for the lost ones: {lost}"
        return Projection(
            conditions=((EVICTED, True, "NodeFailures", text),),
            events=(("Normal", "EvictedDueToNodeFailures", text),),
        )
    if verdict.standing is Standing.ADMITTED or workload.admission is not None:
        return Projection()
    text = sentence(verdict.why)
    gated = verdict.why.detail is Detail.PREEMPTION_GATED
    return Projection(
        conditions=(
            (QUOTA_RESERVED, False, verdict.why.reason.value, text),
            (ADMITTED, False, "NoReservation", "The workload has no reservation"),
            *([(BLOCKED_ON_GATES, True, "PreemptionGated", text)] if gated else []),
        ),
        events=(("Warning", verdict.why.reason.value, text),),
        requests=verdict.requests,
    )


def _admit(workload: Workload, admit: Admit) -> Projection:
    queue = admit.admission.cluster_queue
    given, asked = admit.admission.pods, sum(one.count for one in workload.pod_sets)
    reserved = f"Quota reserved in ClusterQueue {queue}"
    if given < asked:
        reserved += f" for {given} of {asked} pods at a time"
    conditions: list[Condition] = [(QUOTA_RESERVED, True, "QuotaReserved", reserved)]
    waited = f"waited {_duration(admit.waited_ms)}"
    events: list[Event] = [("Normal", "QuotaReserved", f"{reserved}, {waited}")]
    if admit.admitted:
        conditions.append((ADMITTED, True, "Admitted", "The workload is admitted"))
        events.append(("Normal", "Admitted", f"Admitted by ClusterQueue {queue}, {waited}"))
    else:
        pending = ", ".join(admit.checks)
        conditions.append((ADMITTED, False, "UnsatisfiedAdmissionChecks", f"Waiting for admission checks: {pending}"))
    if workload.blocked_on_gates:
        conditions.append((BLOCKED_ON_GATES, False, "QuotaReserved", "Previously: its preemption gate was closed"))
    if workload.evicted:
        conditions.append((EVICTED, False, "QuotaReserved", "Previously: evicted"))
        conditions.append((PREEMPTED, False, "QuotaReserved", "Previously: preempted"))
    return Projection(tuple(conditions), tuple(events))


_FOR = {
    EvictReason.IN_CLUSTER_QUEUE: "which comes before it in ClusterQueue {queue}",
    EvictReason.IN_COHORT_RECLAMATION: "which takes back what is nominally ClusterQueue {queue}'s",
    EvictReason.IN_COHORT_FAIR_SHARING: "whose ClusterQueue {queue} has the smaller share",
    EvictReason.IN_COHORT_RECLAIM_WHILE_BORROWING: "which has priority over it, from ClusterQueue {queue}",
}


def _evicting(evict: Evict) -> Projection:
    """For the gang that somebody is evicted for."""
    if evict.reason is EvictReason.FLAVOR_MIGRATION:
        return Projection()
    namespace, name = evict.key
    text = f"Evicted workload {namespace}/{name} (UID: {evict.uid}) to make room for this one"
    return Projection(events=(("Normal", "PreemptedWorkload", text),))


def evicted_as(why: EvictReason) -> tuple[str, str]:
    """(reason of the condition Evicted, that of Preempted where it is set, else ""): as what an eviction counts."""
    return (why.value, "") if why is EvictReason.FLAVOR_MIGRATION else (PREEMPTED, why.value)


def _evicted(evict: Evict) -> Projection:
    reason, cause = evicted_as(evict.reason)
    namespace, name = evict.preemptor
    if evict.reason is EvictReason.FLAVOR_MIGRATION:
        text = f"Evicted for {namespace}/{name} (UID: {evict.preemptor_uid}), which has room in a better flavor"
        return Projection(
            conditions=((EVICTED, True, reason, text),),
            events=(("Normal", f"EvictedDueTo{reason}", text),),
        )
    text = (
        f"Preempted to make room for workload {namespace}/{name} (UID: {evict.preemptor_uid}), "
        f"{_FOR[evict.reason].format(queue=evict.preemptor_queue)}"
    )
    return Projection(
        conditions=((EVICTED, True, reason, text), (PREEMPTED, True, cause, text)),
        events=(("Normal", f"EvictedDueTo{reason}", text), ("Normal", "Preempted", text)),
    )


# ---------------------------------------------------------------- words


def sentence(why: Why) -> str:
    """One plain sentence with the numbers that a person can act on."""
    if why.detail is Detail.INVALID and why.misfits:
        return f"Its placement requirements cannot be read: {why.misfits[0].message}"
    if why.detail in _FIXED:
        return _FIXED[why.detail].format(subject=why.subject)
    if why.detail is Detail.BACKOFF:
        where = f", on flavor {why.subject} first" if why.subject else ""
        return f"Waits until {_time(why.until)} before it is tried again{where}"
    if why.detail is Detail.CLAIMED:
        if why.subject == "it":
            ends = f"the claim holds until {_time(why.until)}" if why.until else "the claim holds until it starts"
            return f"Room is kept for it as running workloads end; {ends}"
        return f"The room it needs is kept for {why.subject} until {_time(why.until) if why.until else 'that starts'}"
    if why.detail is Detail.VICTIMS_LEAVING or why.reason is Reason.WAITING_FOR_PREEMPTED:
        return f"Waits for {why.subject or 'evicted workloads'} to leave; the room they free is kept for it"
    match why.reason:
        case Reason.DEACTIVATED:
            return "The workload is deactivated; set spec.active to true to queue it again"
        case Reason.ON_HOLD:
            return f"{why.subject} is stopped; it waits until the stop policy is lifted"
        case Reason.GATED:
            return f"Held by its owner: {why.subject}"
        case Reason.QUOTA_RESERVED:
            return "Quota is reserved"
        case Reason.PENDING_EVALUATION:
            return "Is looked at in the next cycle"
        case _:
            pass
    if why.reason is Reason.PLACEMENT_FAILED and why.misfits:
        misfit = why.misfits[0]
        beside = [short for short in why.shortfalls if short.flavor == misfit.flavor and short.requested]
        kept = f"; room kept for those who were passed over, such as {why.subject}, is not free" if why.subject else ""
        return _together([misfit_sentence(misfit, quota=not beside) + kept, *_shortfalls(why, beside)])
    if why.shortfalls:
        return _together(_shortfalls(why, why.shortfalls))
    if why.misfits:
        return misfit_sentence(why.misfits[0])
    return why.subject or "It does not fit"


def _shortfalls(why: Why, shortfalls: Iterable[Shortfall]) -> list[str]:
    """A sentence for each resource that is short: what the reason speaks of comes first. Of flavors that would all do,
    the one that came closest speaks for all; the others are counted."""
    alike: dict[tuple[str, tuple[str, ...]], dict[str, list[Shortfall]]] = {}
    for short in shortfalls:
        alike.setdefault((short.pod_set, short.covers), {}).setdefault(short.flavor, []).append(short)
    told: dict[tuple[str, str], Shortfall] = {}
    for flavors in alike.values():
        closest = [max(flavors.values(), key=lambda shorts: min(map(_closeness, shorts)))]
        if closest[0][0].detail is Detail.FLAVOR_TOPOLOGY:
            # Each lacks something else, and any of them may be the one to mend.
            closest = [shorts for shorts in flavors.values() if shorts[0].detail is Detail.FLAVOR_TOPOLOGY][:3]
        for short in (short for shorts in closest for short in shorts):
            # The last of several pod sets asks for what the others take, too.
            what = short.flavor, short.resource or short.limited_by
            if what not in told or told[what].requested <= short.requested:
                told[what] = short
    ordered = sorted(told.values(), key=lambda short: short.detail is not why.detail)
    # Whom it might evict was asked once for all of it.
    words = [shortfall_sentence(replace(short, candidates=0, unlawful=())) for short in ordered[:-1]]
    words += [shortfall_sentence(short) for short in ordered[-1:]]
    others = len({flavor for flavors in alike.values() for flavor in flavors}.difference(flavor for flavor, _ in told))
    if others:
        words[-1] += f"; {others} other flavor(s) do not fit either"
    return words


def _together(sentences: Sequence[str]) -> str:
    """One after the other, as all of it is needed."""
    first, *more = sentences
    return first + "".join(f". Also n{text[1:]}" if text.startswith("Needs") else f"; {text}" for text in more)


_FIXED = {
    Detail.QUEUE_MISSING: "LocalQueue {subject} does not exist in this namespace; create it, or correct the label",
    Detail.CLUSTER_QUEUE_MISSING: "ClusterQueue {subject}, which the LocalQueue points to, does not exist",
    Detail.CLUSTER_QUEUE_INACTIVE: "ClusterQueue {subject}",
    Detail.COHORT_CYCLE: "ClusterQueue {subject}",
    Detail.NAMESPACE_NOT_SELECTED: "ClusterQueue {subject} takes no workloads of this namespace (namespaceSelector)",
    Detail.NAMESPACE_TERMINATING: "Namespace {subject} is being deleted, and no pods can be made there any more",
    Detail.BEHIND_HEAD: "Waits behind {subject}, the first of a StrictFIFO queue",
    Detail.WORKLOAD_DELETED: (
        "Its Workload was deleted and is kept by the finalizer {subject}; the job is queued anew when that is taken off"
    ),
    Detail.PAUSED: "Its owner paused it (label {subject}: true); take the label off the job to queue it again",
    Detail.PREEMPTION_GATED: "Would have to evict others, which its preemption gate forbids",
    Detail.VARIANT_ADMITTED: "Another variant of this job is admitted, in a flavor that comes before this one's",
    Detail.NEXT_CYCLE: "Is looked at in the next cycle",
    Detail.CHECKS_PENDING: "An admission check asked for a retry or refused; it waits for that to be cleared",
    Detail.INVALID: "{subject}",
    Detail.VOLUME_PENDING: "{subject}",
    Detail.PODS_LINGER: (
        "Pods of its last start still end ({subject}), and its Job makes no others before they are gone"
    ),
    Detail.CLAIMS_UNCLEAR: "The devices that its pods ask for cannot be counted: {subject}",
    Detail.NOT_MANAGED: "It stands for {subject}, which Kueue's own controller starts and stops, and nobody here",
}


def _closeness(short: Shortfall) -> tuple[int, int]:
    grade = {
        Detail.COHORT_SHORT: 5,
        Detail.QUOTA_SHORT: 5,
        Detail.BORROWING_LIMIT: 4,
        Detail.NEVER_FITS_QUOTA: 3,
        Detail.FLAVOR_TAINT: 2,
        Detail.FLAVOR_AFFINITY: 2,
        Detail.FLAVOR_TOPOLOGY: 2,
    }.get(short.detail, 1)
    return grade, short.available - short.requested


def shortfall_sentence(short: Shortfall) -> str:
    """Of one (flavor, resource): asked, had, and where in the tree it ends."""
    match short.detail:
        case Detail.FLAVOR_TAINT:
            return f"Flavor {short.flavor} has the taint {short.limited_by}, which the pods do not tolerate"
        case Detail.FLAVOR_AFFINITY:
            return f"Flavor {short.flavor} is not what the pods select ({short.limited_by})"
        case Detail.FLAVOR_MISSING:
            return f"ResourceFlavor {short.flavor} does not exist"
        case Detail.FLAVOR_TOPOLOGY:
            return f"Flavor {short.flavor}: {short.limited_by}"
        case Detail.FLAVOR_NOT_ALLOWED:
            return f"Flavor {short.flavor} is not among those it may use"
        case Detail.RESOURCE_NOT_COVERED:
            return f"Needs {short.resource}, for which the ClusterQueue has no quota in any flavor"
        case _:
            pass
    own = max(0, short.nominal - short.used)
    borrow = max(0, min(short.borrowable, short.borrowable - max(0, short.used - short.nominal)))
    now = max(0, short.available)
    free = max(0, now - own)
    allowed = now if short.allowed is None else max(0, short.allowed)
    never = short.detail is Detail.NEVER_FITS_QUOTA
    numbers = {short.requested, short.nominal}
    numbers |= {short.nominal + short.borrowable, short.borrowable} if never else {own, borrow, now, free, allowed}
    # In the units of what does not change from moment to moment.
    like = short.requested, short.nominal
    words = quantity.words(short.resource, *numbers, digits=3, like=like, up=(short.requested,))
    said = dict(zip(numbers, words, strict=True))
    asked = f"needs {said[short.requested]} {short.resource} of flavor {short.flavor}"
    if never:
        text = (
            f"{asked}; the ClusterQueue can never have more than {said[short.nominal + short.borrowable]} "
            f"({said[short.nominal]} its own, {said[short.borrowable]} to borrow), limited by {short.limited_by}"
        )
    else:
        parts = [f"{said[own]} left of {said[short.nominal]}"]
        if now < own:
            had, rest = (said[now], "the rest") if now else ("none", "it")
            parts[0] += f" ({had} of it now: {rest} is lent, or kept for a gang that waits)"
        if borrow:
            parts.append(f"{said[borrow]} more could be borrowed")
        if short.detail is Detail.BORROWING_LIMIT:
            parts.append(f"the borrowing limit of {short.limited_by} allows only {said[allowed]}")
        elif short.detail is Detail.COHORT_SHORT:
            parts.append(f"cohort {short.limited_by} has {said[free] if free else 'none'} free")
        text = f"{asked}; its ClusterQueue has {', '.join(parts)}"
    if short.candidates or short.unlawful:
        refused = ", ".join(f"{count} {reason}" for reason, count in short.unlawful)
        text += f"; of {short.candidates} running workload(s) none may be evicted for it"
        text += f" ({refused})" if refused else ""
    return _capital(text)


def misfit_sentence(misfit: Misfit, *, quota: bool = True) -> str:
    """Of the nodes: how many pods they hold, and what is in the way; whether quota would allow it."""
    if misfit.message:
        return _capital(misfit.message)
    if misfit.detail is Detail.NO_NODES:
        return f"No node belongs to flavor {misfit.flavor}; {misfit.pods} pod(s) of {misfit.pod_set} need one"
    where = f" within one {misfit.level}" if misfit.level else ""
    where += " beside its other pod sets" if misfit.beside else ""
    text = (
        f"{'Quota allows it, but the' if quota else 'The'} nodes of flavor {misfit.flavor} hold {misfit.placeable} of "
        f"{misfit.pods} pod(s) of {misfit.pod_set}{where}"
    )
    if misfit.excluded:
        text += f"; of {misfit.nodes} node(s): " + ", ".join(
            f"{count} {_kept_out(reason)}" for reason, count in misfit.excluded
        )
    if misfit.detail is Detail.NODES_UNUSABLE:
        text += f"; with none of them kept out, and empty, they could take {misfit.sound} of {misfit.pods}"
    elif misfit.detail is Detail.NODES_TAKEN:
        text += (
            "; pods that are no gang's hold room there: without these, and with none of them kept out, they could take "
            f"{misfit.sound} of {misfit.pods}"
        )
    elif misfit.detail is Detail.NEVER_FITS_NODES:
        text += "; it would not fit if they were empty"
        if misfit.sound > misfit.placeable:
            text += f" (those kept out included, they could take {misfit.sound} of {misfit.pods})"
        for resource, each, most in misfit.beyond:
            said, there = quantity.words(resource, each, max(0, most), up=(each,))
            text += f"; a pod asks for {said} {resource}, of which no node could give more than {there}"
    elif misfit.fits_when_empty:
        text += "; it fits once running workloads end"
    return text


_LIVE = re.compile(
    r"(?<=its ClusterQueue has )\S+(?= left of )"
    r"| \(\S+ of it now: [^)]*\)"
    r"|, \S+ more could be borrowed"
    r"|(?<= allows only )\S+"
    r"|\S+ free(?=[;.]|$)"
    r"|; of \d+ running workload\(s\) none may be evicted for it( \([^)]*\))?"
    r"|(?<= hold )\d+(?= of )"
    r"|; of \d+ node\(s\): [^;]*"
    r"|(?<= could take )\d+(?= of )"
    r"|(?<=no node could give more than )[^;.]+"
    r"| \(those kept out included, [^)]*\)"
)


def bound(text: str) -> str:
    """A sentence less what it counts of the moment: who is refused for the same reason, ends at the same place and asks
    for as much is told the same."""
    return _LIVE.sub("", text)


_STATES = ("not ready", "cordoned", "avoided")


def _kept_out(reason: str) -> str:
    """Of nodes, by what `capacity` calls the reason: a state, a demand of the pods, or a resource that is short."""
    if reason in _STATES:
        return reason
    kind, _, what = reason.partition(" ")
    if kind == "taint":
        return f"with the taint {what}"
    if reason.startswith("host port "):
        return f"where {reason} is taken"
    return f"kept out by {reason}" if what else f"with too little {reason} left"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _duration(ms: int) -> str:
    seconds = ms // 1000
    parts: Iterable[tuple[int, str]] = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    text = "".join(f"{value}{unit}" for value, unit in parts if value)
    return text or "0s"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
