"""What becomes of a job that Kueue has managed: what is to be written for it, or why it cannot be taken over as it is.

`take_over` judges one job by what the API server has of it: itself, its Workload of Kueue's, the one of Muster's where
an import was there before, and the Jobs of a JobSet. Nothing here reads or writes; `migrate` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from admission.controller.change import MANAGER
from admission.jobs import values
from admission.jobs.kinds import (
    JobKind,
    JobView,
    Operation,
    annotations_of,
    at,
    completions_follow,
    condition,
    condition_of,
    labels_of,
    millis,
    name_of,
    obj,
    objects,
    text,
    texts,
    view,
    whole,
)
from admission.jobs.pins import pointer
from admission.jobs.workload import build_workload, matches
from admission.names import ADMITTED, EVICTED, KUEUE_GROUP, QUOTA_RESERVED, Names

Json = dict[str, Any]
Keys = dict[str, str | None]
"""Labels or annotations to write; None takes one off."""
KUEUE = Names(KUEUE_GROUP)
_RAN = "accumulatedPastExecutionTimeSeconds"
"""Of a Workload's status: how long it has run in earlier admissions."""


@dataclass(frozen=True)
class Managed:
    """A job that is not finished, and what there is of it."""

    kind: JobKind
    raw: Json
    view: JobView
    theirs: Json | None
    """Its Workload of Kueue's."""
    ours: Json | None
    """Its Workload of Muster's, where it has one already."""
    children: tuple[Json, ...] = ()
    """The Jobs of a JobSet."""


@dataclass(frozen=True)
class Known:
    """What jobs may name, Kueue's and Muster's."""

    queues: Mapping[tuple[str, str], str]
    """LocalQueue -> the ClusterQueue that it points to, where that will not be there; else ""."""
    classes: frozenset[str]


@dataclass(frozen=True)
class Takeover:
    """What is to be written for a job. With `refused`, which says why, nothing of it is."""

    refused: str = ""
    outdated: Json | None = None
    """Its Workload of Muster's, which is to go first."""
    workload: Json | None = None
    """The one that is to be made then, with the status that it is to have."""
    merge: Json | None = None
    """Merge patch of the job; None: nothing is to be written, or `patch`."""
    patch: tuple[Operation, ...] = ()
    """JSON patch of the job, where its pod templates change as well."""
    notes: tuple[str, ...] = ()
    """What becomes of it."""
    warned: tuple[str, ...] = ()
    """What keeps Muster from starting it, now or when it was stopped."""
    lines: tuple[str, ...] = ()
    """What differs: "path: before -> after". Empty where there is nothing to write."""


def take_over(one: Managed, known: Known, names: Names) -> Takeover:
    """`names` are Muster's. Who asks again when all was written is told of no difference."""
    # Later its owner may have changed, or taken off, what was carried over.
    carried = _carried(one, names)
    labels, annotations, notes = _wanted(one, names, carried=carried)
    template, lines = ([], []) if carried or not one.view.suspended else _template(one, names)
    after = _written(one.raw, labels, annotations, template)
    outdated = workload = None
    if not carried:
        if why := _why_not(one):
            return Takeover(refused=why)
        if not one.view.suspended:
            workload, why = _workload(one, after, names)
            if workload is None:
                return Takeover(refused=why)
            if one.ours is not None and not (
                _asks_for(one.ours, workload) and matches(one.ours, one.kind, after, names)
            ):
                outdated = one.ours  # what holds room may not be changed
            lines.insert(0, f"Workload: {'as it was' if one.ours else '-'} -> admitted as Kueue admitted it")
        elif one.ours is not None and isinstance(status_of(one.ours).get("admission"), dict):
            # By it Muster would start the job, into room that Kueue may have given away.
            outdated = one.ours
            lines.insert(0, "Workload: admitted -> - (Kueue has stopped the job since)")
    for place, wanted in (("labels", labels), ("annotations", annotations)):
        had = _held(one.raw, place)
        lines += [
            f"metadata.{place}.{key}: {'taken off' if v is None else had.get(key, '-') + ' -> ' + v}"
            for key, v in wanted.items()
        ]
    fields = {place: said for place, said in (("labels", labels), ("annotations", annotations)) if said}
    return Takeover(
        outdated=outdated,
        workload=workload,
        merge={"metadata": {"uid": one.view.uid, **fields}} if fields and not template else None,
        patch=tuple(_patch(one, fields, template)) if template else (),
        notes=tuple(notes),
        warned=tuple(_warned(one, after, known, names)),
        lines=tuple(lines),
    )


def _patch(one: Managed, fields: dict[str, Keys], template: list[Operation]) -> list[Operation]:
    """A merge patch would replace the list of a JobSet's templates whole."""
    exactly = (("uid", one.view.uid), ("resourceVersion", one.view.resource_version))
    return [
        *({"op": "test", "path": f"/metadata/{place}", "value": value} for place, value in exactly),
        *(
            {"op": "add", "path": f"/metadata/{place}", "value": _merged(_held(one.raw, place), said)}
            for place, said in fields.items()
        ),
        *template,
    ]


def _carried(one: Managed, names: Names) -> bool:
    """Is it Muster's already, with what has to be known of it? Not so once Kueue has had it again."""
    ours, theirs = one.ours, one.theirs
    if ours is None or names.queue_label not in labels_of(one.raw) or _decided(theirs) > _decided(ours):
        return False
    if one.view.suspended:
        return True
    if not isinstance(status_of(ours).get("admission"), dict) or not condition(ours, ADMITTED):
        return False
    copied = _since(ours, ADMITTED) == _since(theirs, ADMITTED)
    return not copied or matches(ours, one.kind, one.raw, names)


def _decided(workload: Json | None) -> int:
    """When it was made, given room, or stopped, whatever came last, in ms."""
    made = millis(obj(obj(workload).get("metadata")).get("creationTimestamp"))
    return max(made, *(_since(workload, kind) for kind in (QUOTA_RESERVED, ADMITTED, EVICTED)))


def _since(workload: Json | None, kind: str) -> int:
    return millis(condition_of(obj(workload), kind).get("lastTransitionTime"))


def _written(raw: Json, labels: Keys, annotations: Keys, template: list[Operation]) -> Json:
    """The job as it will be."""
    out = deepcopy(raw)
    for operation in template:
        *way, last = operation["path"].strip("/").split("/")
        at(out, way)[last] = operation["value"]
    meta = obj(out.get("metadata"))
    for place, wanted in (("labels", labels), ("annotations", annotations)):
        meta[place] = _merged(_held(raw, place), wanted)
    return out


def _wanted(one: Managed, names: Names, *, carried: bool) -> tuple[Keys, Keys, list[str]]:
    """(labels, annotations, what to say of it) that are to be written to a job."""
    job, theirs = one.view, one.theirs
    said, annotated = labels_of(one.raw), annotations_of(one.raw)
    pairs = (
        (KUEUE.queue_label, names.queue_label),
        (KUEUE.priority_class_label, names.priority_class_label),
        (KUEUE.max_exec_time_label, names.max_exec_time_label),
    )
    labels: Keys = {new: said[old] for old, new in pairs if said.get(old) and said.get(new) != said[old]}
    if carried:
        # Another queue or class: of Kueue's side since, where an import wrote the one that is there; else of Muster's.
        written = _labels_of(one.raw, MANAGER)
        labels = {new: value for new, value in labels.items() if new in written}
        return labels, {}, ["waits with Muster" if job.suspended else "goes on running"]
    annotations: Keys = {}
    alone: list[str] = []
    for old, new in (
        (KUEUE.gated_by_annotation, names.gated_by_annotation),
        (KUEUE.min_parallelism_annotation, names.min_parallelism_annotation),
    ):
        if not annotated.get(old) or annotated.get(new) == annotated[old]:
            continue
        if old == KUEUE.min_parallelism_annotation and completions_follow(annotated):
            alone.append(f"{old} is not carried over: Muster would lower the parallelism alone, not the completions")
            continue
        annotations[new] = annotated[old]
    notes = annotations_of(theirs)
    if not job.suspended:
        # Left from when Muster had it: a pause would stop it, and what a start by Muster wrote was taken back by Kueue.
        labels |= {names.pause_label: None} if said.get(names.pause_label) == "true" else {}
        annotations |= {names.inverse_annotation: None} if names.inverse_annotation in annotated else {}
        if any(annotations_of(part).get(key) for part in _templates(one) for key in KUEUE.topology_annotations):
            alone.append("the topology that its pod template asks for is not carried over: evicted later, it has none")
        return labels, annotations, ["goes on running", *alone]
    alone += [f"{old} of its Workload is not carried over" for old, _ in _of_workloads(names) if notes.get(old)]
    if (ran := _ran(obj(theirs))) and said.get(KUEUE.max_exec_time_label):
        alone.append(f"the {ran} s that it has run do not count towards its longest time")
    if obj(obj(theirs).get("spec")).get("active") is not False:
        return labels, annotations, ["waits with Muster", *alone]
    if said.get(names.pause_label) != "true":
        labels[names.pause_label] = "true"
    stays = f"stays stopped, for its Workload is not active, until the label {names.pause_label} is taken off"
    return labels, annotations, [stays, *alone]


def _warned(one: Managed, after: Json, known: Known, names: Names) -> list[str]:
    """What keeps a job that waits from being started by Muster, however much room there is, and what would keep one
    that runs, once it was stopped."""
    job = view(one.kind, after, names)
    made, problems = build_workload(one.kind, {**after, "status": {}}, names)
    _, unsupported = values.pod_sets(made["spec"]["podSets"], names, job.namespace)
    found = list(dict.fromkeys([*problems, *job.problems, *unsupported]))
    if (job.namespace, job.queue) not in known.queues:
        found.append(f"there is no LocalQueue {job.queue} in its namespace")
    elif missing := known.queues[job.namespace, job.queue]:
        found.append(f"there is no ClusterQueue {missing}, to which its LocalQueue {job.queue} points")
    if job.priority_class and job.priority_class not in known.classes:
        found.append(f"there is no WorkloadPriorityClass {job.priority_class}")
    then = "Muster cannot start it" if job.suspended else "stopped later, it cannot start again"
    out = [f"{then}: {'; '.join(found)}"] if found else []
    if job.suspended and job.paused and obj(obj(one.theirs).get("spec")).get("active") is not False:
        out.append(f"the label {names.pause_label} keeps it stopped until it is taken off")
    return out


def _why_not(one: Managed) -> str:
    """Why a job cannot be carried over as it stands; "" when it can."""
    theirs = one.theirs
    if theirs is not None and (cluster := text(status_of(theirs).get("clusterName"))):
        why = f"MultiKueue runs it in cluster {cluster}, and Muster would see none of its pods here"
        return f"{why}: let it finish, or stop it with Kueue first (kueuectl stop workload {name_of(theirs)})"
    gates = [gate for slot in _templates(one) for gate in _gates(slot)]
    if one.view.suspended:
        if left := [gate for gate in gates if gate != KUEUE.elastic_gate]:
            why = f"Kueue's gate {left[0]} is still in its pod template, and nobody would take it off the pods"
            return f"{why}: let Kueue put the template back, or take the gate out of it"
        for child in one.children:
            if left := _gates(obj(obj(child.get("spec")).get("template"))):
                why = f"its Job {name_of(child)} still has Kueue's gate {left[0]} in its pod template, and would keep"
                return f"{why} it: delete that Job, and the JobSet makes it anew"
        return ""
    if theirs is None or not condition(theirs, ADMITTED):
        why = "it runs, and Kueue has not admitted it: Muster would stop it"
        return f"{why}; suspend it, or take its label {KUEUE.queue_label} off"
    if condition(theirs, EVICTED):
        return "Kueue is evicting it: wait until that is over"
    if obj(theirs.get("spec")).get("active") is False:
        return "its Workload is not active, and Kueue is to stop it: wait until that is over"
    if gates:
        why = f"Kueue's gate {gates[0]} is in its pod template, and nobody would take it off new pods"
        return f"{why}: let it finish, or stop it with Kueue first (kueuectl stop workload {name_of(theirs)})"
    return ""


def _templates(one: Managed) -> list[Json]:
    return [slot.template for slot in one.kind.slots(one.raw)]


def _gates(template: Json) -> list[str]:
    """Kueue's scheduling gates in a pod template."""
    found = [text(gate.get("name")) for gate in objects(obj(template.get("spec")).get("schedulingGates"))]
    return [name for name in found if name.startswith(f"{KUEUE_GROUP}/")]


def _of_workloads(names: Names) -> tuple[tuple[str, str], ...]:
    """Annotations that people write on Workloads, Kueue's and Muster's."""
    return (
        (KUEUE.priority_boost_annotation, names.priority_boost_annotation),
        (KUEUE.allowed_flavors_annotation, names.allowed_flavors_annotation),
    )


def _template(one: Managed, names: Names) -> tuple[list[Operation], list[str]]:
    """(what to change in the pod templates of a job that waits, what differs)."""
    patch: list[Operation] = []
    lines: list[str] = []
    for slot in one.kind.slots(one.raw):
        said, at = annotations_of(slot.template), ".".join(slot.path)
        wanted = {
            new: said[old]
            for old, new in zip(KUEUE.topology_annotations, names.topology_annotations, strict=True)
            if said.get(old) and said.get(new) != said[old]
        }
        if wanted:
            meta = {**obj(slot.template.get("metadata")), "annotations": {**said, **wanted}}
            patch.append({"op": "add", "path": pointer((*slot.path, "metadata")), "value": meta})
            lines += [f"{at}.metadata.annotations.{key}: {said.get(key, '-')} -> {v}" for key, v in wanted.items()]
        if KUEUE.elastic_gate in _gates(slot.template):
            gates = objects(obj(slot.template.get("spec")).get("schedulingGates"))
            kept = [gate for gate in gates if gate.get("name") != KUEUE.elastic_gate]
            patch.append({"op": "add", "path": pointer((*slot.path, "spec", "schedulingGates")), "value": kept})
            lines.append(f"{at}.spec.schedulingGates: {KUEUE.elastic_gate} -> -")
    return patch, lines


def _workload(one: Managed, after: Json, names: Names) -> tuple[Json | None, str]:
    """(the Workload of a job that runs, with the admission that it has; why there can be none)."""
    theirs = obj(one.theirs)
    spec = obj(theirs.get("spec"))
    ref = obj(spec.get("priorityClassRef"))
    made, problems = build_workload(
        one.kind,
        # Without its status, it asks for what it asked Kueue for, not for what is left of it.
        {**after, "status": {}},
        names,
        priority=spec["priority"] if isinstance(spec.get("priority"), int) else 0,
        priority_ref=(text(ref.get("kind")), text(ref.get("name"))) if ref.get("name") else None,
    )
    if problems:
        return None, "; ".join(problems)
    notes = annotations_of(theirs)
    made["metadata"]["annotations"] |= {new: notes[old] for old, new in _of_workloads(names) if old in notes}
    admission = dict(obj(status_of(theirs).get("admission")))
    # Its pods are where they are, and are counted there: nodes named here would be charged twice.
    admission["podSetAssignments"] = [
        {key: value for key, value in part.items() if key in ("name", "flavors", "resourceUsage", "count")}
        for part in objects(admission.get("podSetAssignments"))
    ]
    if wrong := _sizes_differ(one.view, made["spec"]["podSets"], admission["podSetAssignments"]):
        return None, wrong
    conditions = [
        {key: said[key] for key in ("type", "status", "reason", "message", "lastTransitionTime") if key in said}
        for said in objects(status_of(theirs).get("conditions"))
        if said.get("type") in (QUOTA_RESERVED, ADMITTED)
    ]
    status = {"conditions": conditions, "admission": admission}
    return {**made, "status": {**status, **({_RAN: ran} if (ran := _ran(theirs)) else {})}}, ""


def _ran(workload: Json) -> int:
    return whole(status_of(workload).get(_RAN), 0)


def _asks_for(ours: Json, made: Json) -> bool:
    """Does a Workload say what is to be made, its pod sets aside, and is nothing left of another run in its status?"""
    spec, status = obj(ours.get("spec")), status_of(ours)
    said = {one.get("type") for one in objects(status.get("conditions"))}
    same = name_of(ours) == name_of(made) and all(
        spec.get(key) == value for key, value in made["spec"].items() if key != "podSets"
    )
    return (
        same
        and said <= {QUOTA_RESERVED, ADMITTED}
        and set(status) <= {"conditions", "admission", _RAN}
        and _ran(ours) == _ran(made)
    )


def _sizes_differ(job: JobView, asked: list[Json], admitted: list[Json]) -> str:
    """How what a job asks for now differs from what Kueue admitted; "" when it does not. Pods that were done when it
    was admitted, after an eviction, were not admitted again."""
    given = {text(part.get("name")): part.get("count") for part in admitted}
    wanted = {text(part.get("name")): whole(part.get("count"), 0) for part in asked}
    if set(given) != set(wanted):
        return f"its pod sets are {sorted(wanted)}, and Kueue admitted {sorted(given)}"
    left = dict(job.left)
    for name, count in wanted.items():
        had = whole(given[name], count)
        if not left.get(name, count) <= had <= count:
            why = f"it asks for {count} pods in pod set {name} now, and Kueue admitted {had}"
            return f"{why}: give it the size that was admitted, or let Kueue admit it as it is"
    return ""


def _labels_of(raw: Json, manager: str) -> set[str]:
    """The labels of an object that this field manager wrote last."""
    entries = objects(obj(raw.get("metadata")).get("managedFields"))
    fields = [obj(obj(one.get("fieldsV1")).get("f:metadata")) for one in entries if one.get("manager") == manager]
    return {key.removeprefix("f:") for one in fields for key in obj(one.get("f:labels"))}


def _merged(had: dict[str, str], wanted: Keys) -> dict[str, str]:
    return {key: value for key, value in {**had, **wanted}.items() if value is not None}


def _held(raw: Json | None, field: str) -> dict[str, str]:
    """Labels or annotations of an object, or of a pod template."""
    return texts(obj(obj(raw).get("metadata")).get(field))


def status_of(raw: Json | None) -> Json:
    return obj(obj(raw).get("status"))
