"""The Workload that stands for a job: made from the job, and compared with it.

It says what the job asks for, in the job owner's words: templates as the owner wrote them, with what the API server
will add to the pods (LimitRange, RuntimeClass) already in them, or beside them in Workloads of Kueue's kind, and
without what a start wrote into the job. Its name follows from the job's kind, name and uid, so that making it twice
gives the same object and a job of the same name that was deleted does not stand in the way.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from admission.engine.model import Key, Reason, Why
from admission.jobs.devices import Devices
from admission.jobs.kinds import (
    JOB,
    JobKind,
    Json,
    Slot,
    annotations_of,
    at,
    claim_templates,
    device_classes,
    fewest_pods,
    items,
    obj,
    objects,
    owners_form,
    said_by_labels,
    spec_hash,
    starts_together,
    text,
    texts,
    whole,
)
from admission.jobs.requests import (
    LIMITS,
    Limits,
    asked_by_class_name,
    beside_class,
    beyond_defaults,
    by_child,
    class_mark,
    complete,
    defaults_mark,
    excess,
    limits_mark,
    out_of_bounds,
    over_limits,
    over_quota,
    quotas_mark,
    refused_children,
    topology_request,
    with_added,
    with_devices,
)
from admission.names import JOBSET_NO_SCHEDULE_TAINT, JOBSET_NODE_SELECTOR, Names

PriorityRef = tuple[str, str]
"""(kind, name): ("WorkloadPriorityClass" | "PriorityClass", name)."""

TEMPLATES_BYTES = 1 << 20
"""Of all templates of a job together, as JSON: the API server's store takes objects of 1.5 MiB, and what is decided is
written to the same Workload."""
_TOLD = 3
"""Of what LimitRanges refuse in a pod set, so that an Event holds what is wrong with others, too."""
_MOST_PODS = 2**31 - 1
_LABEL_LIMIT = 63
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def workload_name(kind: JobKind, name: str, uid: str) -> str:
    """At most 63 characters, a valid object name and label value."""
    mark = hashlib.sha256(f"{kind.group}/{kind.kind}/{name}/{uid}".encode()).hexdigest()[:8]
    return f"{kind.kind.lower()}-{name}"[: _LABEL_LIMIT - 9].rstrip("-.") + "-" + mark


def called(gang: Key, owner: tuple[str, str]) -> str:
    """A gang by the (kind, name) of its job, as people know it; one without a job by its Workload."""
    return f"{owner[0] or 'Workload'} {gang[0]}/{owner[1] or gang[1]}"


def in_jobs_words(why: Why, job_of: Callable[[Key], str]) -> Why:
    """A reason that speaks of another gang, with what that is `called`. job_of: of a gang; "" where there is none."""
    namespace, _, name = why.subject.partition("/")
    job = job_of((namespace, name))
    return replace(why, subject=job) if job else why


def switched_off(evicted: Json) -> str:
    """What is told of a gang whose Workload is not active, by nobody that is known: what it was last evicted for, as
    that condition has it, may be why."""
    why = text(evicted.get("message")) if text(evicted.get("reason")).startswith(Reason.DEACTIVATED.value) else ""
    return f"Its Workload is switched off (spec.active is false){f': {why}' if why else ''}"


def _asks_for_none(spec: Json) -> bool:
    """Is a Job left without pods by its owner, until he says how many, and does not complete meanwhile."""
    return whole(spec.get("parallelism"), 1) == 0 and whole(spec.get("completions"), 1) > 0


@dataclass(slots=True)
class _PodSets:
    """The pod sets of a Workload, read one by one from the slots of its job; parameters as of `build_workload`."""

    kind: JobKind
    owned: Json
    """The job as its owner wrote it."""
    names: Names
    namespace: str
    limit_ranges: Sequence[Json]
    runtime_classes: Mapping[str, Json] | None
    devices: Devices | None
    entries: list[Json] = field(default_factory=list)
    """For spec.podSets."""
    specs: list[Json] = field(default_factory=list)
    """Of the pods, with nothing added to them."""
    classes: dict[str, str] = field(default_factory=dict)
    """RuntimeClass -> a mark of what it adds to pods."""
    claims: dict[str, str] = field(default_factory=dict)
    """ResourceClaimTemplate or DeviceClass -> a mark of what it asks for."""
    problems: list[str] = field(default_factory=list)

    def add(self, slot: Slot, *, tell_size: bool) -> None:
        """tell_size: that a pod set has too many pods is a problem to tell (else the job's size was told)."""
        spec = obj(slot.template.get("spec"))
        runtime = text(spec.get("runtimeClassName"))
        runtime_class = (self.runtime_classes or {}).get(runtime)
        if runtime and self.runtime_classes is not None:
            self.classes[runtime] = class_mark(runtime_class)
            if runtime_class is None and slot.count:
                self.problems.append(f"pod set {slot.pod_set}: RuntimeClass {runtime!r} does not exist")
        made = as_made(slot)
        self.specs.append(obj(made.get("spec")))
        template = complete(made, limit_ranges=self.limit_ranges, runtime_class=runtime_class)
        refused = self._refused_pods(slot, obj(template.get("spec")), runtime_class) if slot.count else []
        if slot.count > _MOST_PODS and tell_size:
            self.problems.append(
                f"pod set {slot.pod_set}: {slot.count} pods are more than a Workload can have of one ({_MOST_PODS})"
            )
        self.problems.extend(f"pod set {slot.pod_set}: none of its pods can be made: {one}" for one in refused[:_TOLD])
        entry: Json = {"name": slot.pod_set, "count": slot.count, "template": self._with_devices(slot, template)}
        request, wrong = topology_request(
            annotations_of(slot.template),
            self.names,
            indexed=slot.ranks is not None,
            replicas=slot.replicas if slot.labels else 0,
            by_child=bool(slot.notes) or by_child(spec),
        )
        self.problems.extend(f"pod set {slot.pod_set}: {problem}" for problem in wrong)
        if request is not None and slot.count:
            entry["topologyRequest"] = request
        self.entries.append(entry)

    def _refused_pods(self, slot: Slot, full: Json, runtime_class: Json | None) -> list[str]:
        """Why the API server would refuse each pod of a slot, in words. full: their spec with defaults added."""
        spec = obj(slot.template.get("spec"))
        refused = out_of_bounds(full, self.limit_ranges)
        if self.kind != JOB:
            refused += over_limits(spec) + refused_children(obj(at(self.owned, slot.path[:-1])))
        refused = refused or beyond_defaults(spec, self.limit_ranges)
        unknown = bool(text(spec.get("runtimeClassName"))) and runtime_class is None
        if self.runtime_classes is not None and not unknown:
            refused += beside_class(spec, runtime_class)
        return refused

    def _with_devices(self, slot: Slot, template: Json) -> Json:
        """The template with a note of the devices that its pods claim, as far as `devices` knows."""
        spec = obj(slot.template.get("spec"))
        by_name = asked_by_class_name(template)
        if self.devices is None:
            return template
        if items(spec.get("resourceClaims")) or by_name:
            asked = self.devices.asked(self.namespace, objects(spec.get("resourceClaims")), by_name)
            template = with_devices(template, self.names, "; ".join(asked.problems) or asked.devices)
        self.claims |= self.devices.marks(self.namespace, claim_templates(slot.template), device_classes(slot.template))
        return template


def build_workload(
    kind: JobKind,
    raw: Json,
    names: Names,
    *,
    queue: str = "",
    priority: int = 0,
    priority_ref: PriorityRef | None = None,
    arrival: str = "",
    limit_ranges: Sequence[Json] = (),
    quotas: Sequence[Json] = (),
    runtime_classes: Mapping[str, Json] | None = None,
    devices: Devices | None = None,
    limits: Limits = LIMITS,
) -> tuple[Json, tuple[str, ...]]:
    """(the Workload that stands for a job, problems in words for its owner: with any, it must not be created).

    `queue` counts where the job names none. `priority_ref` is (kind, name) of the class that the priority is of.
    `limit_ranges`, `quotas`: those of the job's namespace. `runtime_classes` by name; None: not known. `devices` knows
    what ResourceClaims of its pods ask for; without it such a Workload is admitted nowhere."""
    meta = obj(raw.get("metadata"))
    namespace = text(meta.get("namespace"))
    owned = owners_form(raw, names)
    labels, annotations = texts(meta.get("labels")), texts(meta.get("annotations"))
    slots = kind.slots(owned)
    # The rules of hold refuse such a job when it is created. Where they are not in force, it could not be started.
    beyond = excess(kind, owned, limits)
    read = _PodSets(kind, owned, names, namespace, limit_ranges, runtime_classes, devices)
    for slot in slots:
        read.add(slot, tell_size=not beyond)
    pod_sets, problems = read.entries, [*beyond, *read.problems]
    if kind == JOB and _asks_for_none(obj(owned.get("spec"))):
        # Admitted with none, it could not be given some without being stopped first.
        problems.append("parallelism is 0: it asks for no pods, and is queued when it asks for some")
    enough, unmet = fewest_pods(kind, owned, slots, names)
    problems.extend(unmet)
    if enough is not None:
        pod_sets[0]["minCount"] = enough
    if quotas:
        fewest = [(whole(one.get("minCount"), one["count"]), obj(one["template"].get("spec"))) for one in pod_sets]
        problems.extend(over_quota(fewest, quotas, together=starts_together(owned))[:_TOLD])
    if names.as_kueue:
        for entry, plain in zip(pod_sets, read.specs, strict=True):
            full = entry["template"]
            entry["template"] = with_added({**full, "spec": plain}, full, names)
    queue = labels.get(names.queue_label) or queue
    if queue and not _OBJECT_NAME.fullmatch(queue):
        # A label may be what no object can be called: the API server would refuse the Workload, time and again.
        problems.append(
            f"label {names.queue_label}: no LocalQueue can be called {queue!r}: names have lower-case letters, digits, "
            "'-' and '.'; correct the label"
        )
    if (size := _stored_bytes([entry["template"] for entry in pod_sets])) > TEMPLATES_BYTES:
        problems.append(
            f"the pod templates come to {-(-size // 1024)} KiB of JSON, and those of a queued job have at most "
            f"{TEMPLATES_BYTES // 1024} KiB together: keep data in a ConfigMap"
        )
    name, uid = text(meta.get("name")), text(meta.get("uid"))
    spec_out: Json = {
        "podSets": pod_sets,
        "queueName": queue,
        "priority": priority,
        "active": labels.get(names.pause_label) != "true",
    }
    if priority_ref is not None:
        group = names.group if priority_ref[0] == "WorkloadPriorityClass" else "scheduling.k8s.io"
        spec_out["priorityClassRef"] = {"group": group, "kind": priority_ref[0], "name": priority_ref[1]}
    limit, unread = said_by_labels(labels, annotations, names)
    problems.extend(unread)
    if limit is not None:
        spec_out["maximumExecutionTimeSeconds"] = limit
    notes = {names.spec_hash_annotation: spec_hash(slots, kind.size(owned))}
    if arrival:
        notes[names.arrival_annotation] = arrival
    if added := defaults_mark(
        limits_mark(limit_ranges) + quotas_mark(quotas), read.classes.items(), read.claims.items()
    ):
        notes[names.defaults_annotation] = added
    if labels.get(names.pause_label) == "true":
        notes[names.pause_label] = "true"
    if gated := annotations.get(names.gated_by_annotation):
        notes[names.gated_by_annotation] = gated
    out: Json = {
        "apiVersion": names.api_version,
        "kind": "Workload",
        "metadata": {
            "name": workload_name(kind, name, uid),
            "namespace": namespace,
            "labels": {names.job_uid_label: uid},
            "annotations": notes,
            "ownerReferences": [
                {
                    "apiVersion": kind.api_version,
                    "kind": kind.kind,
                    "name": name,
                    "uid": uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec_out,
    }
    return out, tuple(problems)


def _stored_bytes(value: object) -> int:
    """Of a part of a custom resource in the store, which keeps JSON and escapes what is special in HTML."""
    said = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(said.encode("utf-8", "surrogatepass")) + 5 * sum(said.count(special) for special in "<>&\u2028\u2029")


def as_made(slot: Slot) -> Json:
    """The template with what the kind's own controller adds to its pods: labels, for affinity of a gang to itself may
    select them, volumes of claims that it makes, and what it needs for exclusive placement."""
    if not slot.labels:
        return slot.template
    spec, meta = obj(slot.template.get("spec")), obj(slot.template.get("metadata"))
    meta = {**meta, "labels": {**obj(meta.get("labels")), **dict(slot.labels)}}
    if slot.notes:
        meta["annotations"] = {**obj(meta.get("annotations")), **dict(slot.notes)}
    if slot.volumes:
        added = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in slot.volumes]
        spec = {**spec, "volumes": [*items(spec.get("volumes")), *added]}
    if any(key == JOBSET_NODE_SELECTOR for key, _ in slot.notes):
        reserved = {"key": JOBSET_NO_SCHEDULE_TAINT, "operator": "Exists", "effect": "NoSchedule"}
        spec = {**spec, "tolerations": [*items(spec.get("tolerations")), reserved]}
    return {**slot.template, "metadata": meta, "spec": spec}


def matches(workload: Json, kind: JobKind, raw: Json, names: Names) -> bool:
    """Does a Workload still say what its job says? A gang that holds quota may meanwhile have less left to run."""
    owned = owners_form(raw, names)
    slots = kind.slots(owned)
    notes = annotations_of(workload)
    if notes.get(names.spec_hash_annotation) != spec_hash(slots, kind.size(owned)):
        return False
    if isinstance(obj(workload.get("status")).get("admission"), dict):
        return True
    said = [(entry.get("name"), entry.get("count")) for entry in obj(workload.get("spec")).get("podSets") or ()]
    return said == [(slot.pod_set, slot.count) for slot in slots]
