"""Start and stop: the one write that starts a gang on its nodes, and the writes that take it back byte for byte.

A start unsuspends the job and says where its pods go, in one JSON patch that applies only to the version of the job for
which room was reserved. What was there before goes into one annotation on the job itself, so that whoever finds the
job, after whatever crash, can put the owner's template back.

A pod set is pinned in the least of three forms that leaves kube-scheduler no choice that matters:

    domain  a node selector is all: elastic flavors, whose nodes are not counted, or one domain that is the whole pin
    ranks   one list of hosts, by rank, in an annotation; as each pod is created the API server (or the webhook) gives
            it its own host: no write per pod
    gates   each pod waits behind a scheduling gate until the controller names its host: one write per pod, for pods
            that cannot be told apart, lists that are too long, and clusters where nobody rewrites pods

A Job's flavor labels and tolerations are written into its template, where people see them. A JobSet's children keep
every key that was ever written into them, so its templates get a fixed set of labels and annotations, all of them
overwritten at each start, and the pod policy makes node selector, tolerations and gate from them.

Every write of this module must be sent with the field manager `names.job_manager`: the policies that guard jobs tell
our writes from others' by the right to admit and by that name together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from admission.engine.model import Admission, Check, Flavor, PodSetAssignment, Toleration
from admission.jobs.kinds import (
    JOB,
    JOBSET,
    JobKind,
    Json,
    Operation,
    Slot,
    annotations_of,
    at,
    completions_follow,
    condition,
    condition_of,
    digits,
    inverse_of,
    items,
    obj,
    objects,
    owners_form,
    started_by_another,
    survives_a_pod,
    text,
    texts,
    undoes,
    whole,
)
from admission.jobs.requests import NODE_NAME
from admission.names import (
    HOSTNAME_LABEL,
    JOB_COMPLETION_INDEX,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_NAMESPACED_JOB_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    LABELS_OF_JOB,
    Names,
)

DOMAIN, RANKS, GATES = "domain", "ranks", "gates"

_Pairs = Literal["labels", "annotations", "node_selectors"]

HOSTS_LIMIT = 100_000
"""Bytes of all host lists of a job together. All annotations of an object may have 256 KiB; but the list is read for
each pod that is made, and beyond this two writes for a pod are the cheaper way."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Start:
    """The write that starts a gang. `patch` is a JSON patch."""

    patch: list[Operation]
    problems: tuple[str, ...] = ()
    """Why it must not be started (then `patch` is empty): the job is not what was admitted."""
    refused: str = ""
    """Why it can never be started as it is (then `patch` is empty): what a check adds contradicts the template."""


# ---------------------------------------------------------------- reserved keys


def template_labels(names: Names) -> tuple[str, ...]:
    """Labels of pod templates that only we write."""
    return (names.managed_label, names.workload_uid_label, names.pod_set_label)


def template_annotations(names: Names) -> tuple[str, ...]:
    """Annotations of pod templates that only we write; all of them are overwritten at each start of a JobSet."""
    return (
        names.pin_form_annotation,
        names.hosts_annotation,
        names.selector_annotation,
        names.tolerations_annotation,
        names.rank_stride_annotation,
    )


# ---------------------------------------------------------------- plain lists, for CEL has no JSON parser


def selector_text(selector: Mapping[str, str]) -> str:
    """`k=v,k=v`, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def selector_value(said: str) -> dict[str, str]:
    return {key: value for key, _, value in (part.partition("=") for part in said.split(",") if part)}


def tolerations_text(tolerations: Iterable[Toleration]) -> str:
    """`key=value:effect,...`, with `:seconds` behind where it is for so long; no value: any value; `=` for a value: the
    empty one; no effect: any."""
    return ",".join(
        f"{t.key}={'' if t.operator == 'Exists' else t.value or '='}:{t.effect}"
        + ("" if t.seconds is None else f":{max(0, t.seconds)}")
        for t in dict.fromkeys(tolerations)
    )


def tolerations_value(said: str) -> list[Json]:
    out = []
    for part in said.split(","):
        if not part:
            continue
        head, _, rest = part.partition(":")
        effect, _, seconds = rest.partition(":")
        key, _, value = head.partition("=")
        entry: Json = {"operator": "Equal" if value else "Exists"}
        if key:
            entry["key"] = key
        if value not in ("", "="):
            entry["value"] = value
        if effect:
            entry["effect"] = effect
        if (limit := digits(seconds)) is not None:
            entry["tolerationSeconds"] = limit
        out.append(entry)
    return out


def toleration_object(value: Toleration) -> Json:
    fields = {"key": value.key, "operator": value.operator, "value": value.value, "effect": value.effect}
    out: Json = {key: said for key, said in fields.items() if said}
    return out if value.seconds is None else out | {"tolerationSeconds": value.seconds}


# ---------------------------------------------------------------- hosts


def hosts_of(assignment: PodSetAssignment) -> list[str]:
    """One node name for each pod of an assignment, in rank order; empty where its domains are not single nodes."""
    topology = assignment.topology
    if topology is None or not topology.levels or topology.levels[-1] != HOSTNAME_LABEL:
        return []
    return [domain.values[-1] for domain in topology.domains for _ in range(domain.count)]


def places_of(assignment: PodSetAssignment) -> list[dict[str, str]]:
    """One node selector for each pod, where domains are wider than nodes."""
    topology = assignment.topology
    if topology is None or not topology.levels or topology.levels[-1] == HOSTNAME_LABEL:
        return []
    return [
        dict(zip(topology.levels, domain.values, strict=True))
        for domain in topology.domains
        for _ in range(domain.count)
    ]


def open_hosts(assignment: PodSetAssignment, taken: Iterable[str]) -> list[str]:
    """Hosts of an assignment that have no pod yet, each as often as it may still get one, in rank order.

    `taken` names the host of every live pod of the pod set, once for each.
    """
    left = Counter(taken)
    out = []
    for host in hosts_of(assignment):
        if left[host] > 0:
            left[host] -= 1
        else:
            out.append(host)
    return out


def hosts_for(assignment: PodSetAssignment, taken: Iterable[str], ranks: Sequence[int | None]) -> list[str | None]:
    """A host for each of these pods, by their ranks (None: it has no index), out of those that are open: its own by the
    list, as the form `ranks` gives it, while that is open, else the first that is left. None: nothing is left.
    """
    listed, left = hosts_of(assignment), open_hosts(assignment, taken)
    out: list[str | None] = [None] * len(ranks)
    for i, rank in enumerate(ranks):
        if rank is not None and rank < len(listed) and listed[rank] in left:
            out[i] = listed[rank]
            left.remove(listed[rank])
    for i, host in enumerate(out):
        if host is None and left:
            out[i] = left.pop(0)
    return out


def ranked_hosts(slot: Slot, hosts: Sequence[str]) -> list[str] | None:
    """The list by rank, with nothing at the ranks that are done; None when hosts and ranks do not go together."""
    live = slot.live_ranks()
    if slot.ranks is None or len(live) != len(hosts):
        return None
    out = [""] * slot.ranks
    for rank, host in zip(live, hosts, strict=True):
        out[rank] = host
    return out


def rank_of(labels: Mapping[str, str], stride: int) -> int | None:
    """A pod's rank in its pod set; None for a pod without an index. Twin of the pod policy's expression."""
    index = digits(labels.get(JOB_COMPLETION_INDEX, ""))
    job_index = digits(labels.get(JOBSET_JOB_INDEX_LABEL, "0")) if stride else 0
    if index is None or job_index is None or (stride and index >= stride):
        return None  # the last: it would take the rank of another child job's pod
    return job_index * stride + index


def rank_host(labels: Mapping[str, str], hosts: str, stride: int) -> str | None:
    """The host of a pod by its labels, from the list as the annotation has it; None when the list does not say."""
    rank = rank_of(labels, stride)
    listed = hosts.split(",") if hosts else []
    return listed[rank] or None if rank is not None and rank < len(listed) else None


# ---------------------------------------------------------------- start


def start(
    kind: JobKind,
    raw: Json,
    workload_uid: str,
    admission: Admission,
    flavors: Mapping[str, Flavor],
    names: Names,
    *,
    can_rank: bool,
    checks: Sequence[Check] = (),
    tainted: Collection[str] = (),
) -> Start:
    """The write that starts a held job as it was admitted.

    `can_rank`: policies or the webhook rewrite pods as they are created. `checks` may add to pod templates: labels,
    annotations, node selectors and tolerations. They add only: where the template, a flavor or another check says
    otherwise of the same key, or the key is one of ours, the job is refused. `tainted`: flavors of which some node has
    a taint that takes pods off it; pods whose nodes kube-scheduler chooses are kept from those.
    """
    owned = owners_form(raw, names)
    slots = kind.slots(owned)
    given = {assignment.name: assignment for assignment in admission.pod_sets}
    if problems := _not_as_admitted(kind, raw, slots, given, names):
        return Start([], tuple(problems))
    on = {
        part.name: [flavor for name in admission.flavors_of(part) if (flavor := flavors.get(name)) is not None]
        for part in admission.pod_sets
    }
    clashes = [clash for slot in slots for clash in _clashes(slot, on[slot.pod_set], checks, names)]
    if clashes:
        return Start([], refused="; ".join(clashes))
    edit = _Edit(raw)
    forms = set()
    noted: Json = {}
    budget = HOSTS_LIMIT
    # A pod that is replaced gets another host, and a list of hosts is written but once.
    survives = survives_a_pod(kind, owned, names)
    for slot in slots:
        assignment = given[slot.pod_set]
        selector, tolerations = _additions(slot.pod_set, on[slot.pod_set], checks)
        elastic = {flavor.name for flavor in on[slot.pod_set] if flavor.elastic and assignment.topology is None}
        if not elastic.isdisjoint(tainted):
            tolerations.append(Toleration(no_such_taint(names), "Exists", "", "NoExecute"))
        form, hosts = _form(slot, assignment, can_rank=can_rank and not survives, budget=budget)
        listed = ",".join(hosts)
        budget -= len(listed)
        if form == DOMAIN and (places := places_of(assignment)):
            selector |= places[0]
        forms.add(form)
        labels = {
            names.managed_label: "true",
            names.workload_uid_label: workload_uid,
            names.pod_set_label: slot.pod_set,
        }
        notes = {names.pin_form_annotation: form}
        if kind.fixed_template:
            notes |= {
                names.hosts_annotation: listed,
                names.selector_annotation: selector_text(selector),
                names.tolerations_annotation: tolerations_text(tolerations),
                names.rank_stride_annotation: str(slot.stride),
            }
        elif form == RANKS:
            notes[names.hosts_annotation] = listed
        labels |= _added(checks, "labels", slot.pod_set)
        notes |= _added(checks, "annotations", slot.pod_set)
        edit.entries((*slot.path, "metadata", "labels"), labels)
        edit.entries((*slot.path, "metadata", "annotations"), notes)
        # A Job that outlived its JobSet carries annotations of the JobSet's start.
        edit.without(
            (*slot.path, "metadata", "annotations"), [k for k in template_annotations(names) if k not in notes]
        )
        if not kind.fixed_template:
            # The number of the owner's own: for rules in CEL, which see his manifest applied again and read no JSON.
            noted["tolerations"] = len(items(obj(slot.template.get("spec")).get("tolerations")))
            _pin_template(edit, slot, selector, tolerations, names, gated=form == GATES)
            if assignment.count < slot.count:
                # Partial admission: the Job runs so many pods at a time.
                edit.entries(("spec",), {"parallelism": assignment.count})
    version = text(obj(raw.get("metadata")).get("resourceVersion"))
    inverse = {
        "for": workload_uid,
        # Of the job, which tells this start from every other one of it.
        "from": version,
        "forms": sorted(forms),
        **noted,
        "undo": edit.undo,
    }
    note = json.dumps(inverse, separators=(",", ":"), ensure_ascii=False)
    # This annotation needs no undo: it goes when the template is put back.
    marked = _Edit(raw)
    marked.entries(("metadata", "annotations"), {names.inverse_annotation: note})
    patch = [
        *_exactly(raw, "resourceVersion"),
        *edit.patch,
        *marked.patch,
        {"op": "add", "path": "/spec/suspend", "value": False},
    ]
    return Start(patch)


def _not_as_admitted(
    kind: JobKind, raw: Json, slots: Sequence[Slot], given: Mapping[str, PodSetAssignment], names: Names
) -> list[str]:
    """Why the job cannot be started by this admission (`given`, by pod set), in words; empty if it can."""
    problems = [f"pod set {slot.pod_set} was not admitted" for slot in slots if slot.pod_set not in given]
    for slot in slots:
        admitted = given[slot.pod_set].count if slot.pod_set in given else slot.count
        if admitted > slot.count or (admitted < slot.count and kind.fixed_template):
            problems.append(f"pod set {slot.pod_set} asks for {slot.count} pods and {admitted} were admitted")
    if inverse_of(raw, names) is not None:
        problems.append("it still carries what an earlier start wrote")
    if obj(raw.get("spec")).get("suspend") is not True:
        problems.append("it is not suspended")
    return problems


def _pin_template(
    edit: _Edit,
    slot: Slot,
    selector: Mapping[str, str],
    tolerations: Sequence[Toleration],
    names: Names,
    *,
    gated: bool,
) -> None:
    """Write node selector, tolerations and our scheduling gate into the template of a Job. What its owner wrote for the
    same label stays."""
    own = texts(obj(slot.template.get("spec")).get("nodeSelector"))
    edit.entries((*slot.path, "spec", "nodeSelector"), {k: v for k, v in sorted(selector.items()) if k not in own})
    edit.append((*slot.path, "spec", "tolerations"), [toleration_object(t) for t in tolerations])
    # Nobody would take Kueue's gate for elastic jobs off the pods: it is left out.
    gates = [{"name": names.topology_gate}] if gated else []
    edit.append((*slot.path, "spec", "schedulingGates"), gates, but={"name": names.elastic_gate})


def no_such_taint(names: Names) -> str:
    """Key of a taint that no node has. Pods are given some minutes on a node whose taint would take them off at once,
    so that the gang is stopped whole, but not those that tolerate this one for good: kube-scheduler puts pods with a
    few minutes onto tainted nodes as well."""
    return f"{names.group}/no-such-taint"


def _additions(
    pod_set: str, flavors: Sequence[Flavor], checks: Sequence[Check]
) -> tuple[dict[str, str], list[Toleration]]:
    """Node selector and tolerations that a pod set gets with its flavors and checks."""
    selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    for flavor in flavors:
        selector.update(flavor.node_labels)
        tolerations.extend(flavor.tolerations)
    selector |= _added(checks, "node_selectors", pod_set)
    for check in checks:
        for name, more in check.tolerations:
            if name == pod_set:
                tolerations.extend(more)
    return selector, list(dict.fromkeys(tolerations))


def _added(checks: Sequence[Check], field: _Pairs, pod_set: str) -> dict[str, str]:
    """Keys that checks add to a pod set."""
    return {
        key: value
        for check in checks
        for name, pairs in getattr(check, field)
        if name == pod_set
        for key, value in pairs
    }


def _clashes(slot: Slot, flavors: Sequence[Flavor], checks: Sequence[Check], names: Names) -> list[str]:
    """Where what a check adds contradicts what is there, in words."""
    meta = obj(slot.template.get("metadata"))
    by_flavor = {key: (f"flavor {flavor.name}", value) for flavor in flavors for key, value in flavor.node_labels}
    ours = {*template_labels(names), *template_annotations(names), names.pinned_annotation}
    out = []
    fields: tuple[tuple[_Pairs, str, object], ...] = (
        ("labels", "label", meta.get("labels")),
        ("annotations", "annotation", meta.get("annotations")),
        ("node_selectors", "node selector", obj(slot.template.get("spec")).get("nodeSelector")),
    )
    for field, word, own in fields:
        said = {key: ("the job", value) for key, value in texts(own).items()}
        if field == "node_selectors":
            said = {**by_flavor, **said}
        for check in checks:
            for name, pairs in getattr(check, field):
                if name != slot.pod_set:
                    continue
                for key, value in pairs:
                    who, there = said.setdefault(key, (f"check {check.name}", value))
                    text = f"check {check.name} adds the {word} {key}={value} to pod set {slot.pod_set}"
                    if key in ours and field != "node_selectors":
                        out.append(f"{text}, and only the controller writes that key")
                    elif there != value:
                        out.append(f"{text}, and {who} says {there}")
    return out


def _form(slot: Slot, assignment: PodSetAssignment, *, can_rank: bool, budget: int) -> tuple[str, list[str]]:
    if text(obj(slot.template.get("spec")).get("nodeName")):
        return DOMAIN, []  # its owner chose the one node, and the API server takes no such pod with a gate
    hosts = hosts_of(assignment)
    if not hosts:
        return (GATES if len({tuple(sorted(p.items())) for p in places_of(assignment)}) > 1 else DOMAIN), []
    if can_rank and assignment.count == slot.count:
        ranked = ranked_hosts(slot, hosts)
        if ranked is not None and len(",".join(ranked)) <= budget:
            return RANKS, ranked
    return GATES, []


class _Edit:
    """Adds to an object, keeping a JSON patch and how to undo it.

    An undo entry is [path, what was there], or [path] where nothing was.
    """

    def __init__(self, raw: Json) -> None:
        self._raw = raw
        self._made: set[tuple[str, ...]] = set()
        self.patch: list[Operation] = []
        self.undo: list[list[Any]] = []

    def _holder(self, path: tuple[str, ...], empty: Any) -> Any:
        """What lies there, made if nothing does."""
        if path in self._made:
            return empty
        here = at(self._raw, path)
        if here is None:
            if path[:-1] not in self._made and at(self._raw, path[:-1]) is None:
                self._holder(path[:-1], {})
            self.patch.append({"op": "add", "path": pointer(path), "value": empty})
            if not any(path[: len(made)] == made for made in self._made):
                self.undo.append(self._was(path))
            self._made.add(path)
            return empty
        return here

    def _was(self, path: tuple[str, ...]) -> list[Any]:
        return [list(path), at(self._raw, path)] if _there(self._raw, path) else [list(path)]

    def entries(self, path: tuple[str, ...], values: Mapping[str, Any]) -> None:
        """Set keys of a map."""
        if not values:
            return
        held = self._holder(path, {})
        for key, value in values.items():
            self.patch.append({"op": "add", "path": pointer((*path, key)), "value": value})
            if path not in self._made:
                self.undo.append([[*path, key], held[key]] if key in held else [[*path, key]])

    def without(self, path: tuple[str, ...], keys: Sequence[str]) -> None:
        """Take keys out of a map."""
        held = obj(at(self._raw, path))
        for key in keys:
            if key in held:
                self.patch.append({"op": "remove", "path": pointer((*path, key))})
                self.undo.append([[*path, key], held[key]])

    def append(self, path: tuple[str, ...], values: Sequence[Json], but: Json | None = None) -> None:
        """Add to a list what is not in it, and take `but` out of it."""
        have = items(at(self._raw, path))
        wanted = [value for value in have if value != but] + [value for value in values if value not in have]
        if wanted == have:
            return
        self.undo.append(self._was(path))
        self.patch.append({"op": "add", "path": pointer(path), "value": wanted})


def pointer(path: Sequence[str]) -> str:
    """A JSON pointer."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)


def _exactly(raw: Json, *fields: str) -> list[Operation]:
    """Tests that the object is the one that was read."""
    meta = obj(raw.get("metadata"))
    return [
        {"op": "test", "path": f"/metadata/{field}", "value": meta[field]}
        for field in ("uid", *fields)
        if field in meta
    ]


# ---------------------------------------------------------------- stop


def suspend(raw: Json, names: Names) -> list[Operation]:
    """The write that stops a job. What the start wrote stays until the pods are gone, for by it the job is guarded: a
    JobSet that took its queue label off meanwhile would start its Jobs again, which still say what was given to it.

    It applies only to the start that was seen (where none is noted, to the spec): a job that was stopped and started
    again since then is left alone.
    """
    note = annotations_of(raw).get(names.inverse_annotation)
    if note is None:
        patch = _exactly(raw, "generation")
    else:
        at_note = pointer(("metadata", "annotations", names.inverse_annotation))
        patch = [*_exactly(raw), {"op": "test", "path": at_note, "value": note}]
    patch.append({"op": "add", "path": "/spec/suspend", "value": True})
    return patch


def restore(raw: Json, names: Names) -> list[Operation] | None:
    """The write that puts a stopped job's template back as its owner wrote it; None when there is nothing to put back.

    A Job takes it only once its controller has seen that it is suspended.
    """
    if inverse_of(raw, names) is None:
        return None
    return [*_exactly(raw, "generation"), *_undo(raw, names)]


def restore_as(kind: JobKind, raw: Json, pod_sets: Sequence[Json], names: Names) -> list[Operation]:
    """The write that takes out of a stopped job's templates what another controller's start wrote, and left no note of:
    they are as in the `spec.podSets` of the Workload that it had made before. Of a pod set that is not there, the keys
    go that only a start writes. A gate of that controller goes in any case, for nobody takes it off pods any more."""
    known = {text(one.get("name")): obj(one.get("template")) for one in pod_sets}
    patch = [op for slot in kind.slots(raw) for op in _like(raw, slot.path, known.get(slot.pod_set), names)]
    annotations = annotations_of(raw)
    least = annotations.get(names.min_parallelism_annotation)
    count = whole(obj(pod_sets[0]).get("count"), 0) if len(pod_sets) == 1 else 0
    spec = obj(raw.get("spec"))
    if kind is JOB and least and whole(spec.get("parallelism"), 1) < count:
        # The API server takes other completions of such a Job alone.
        both = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
        fields = ("parallelism", "completions") if both and completions_follow(annotations) else ("parallelism",)
        patch += [{"op": "add", "path": f"/spec/{field}", "value": count} for field in fields]
    if names.inverse_annotation in annotations:
        patch.append({"op": "remove", "path": pointer(("metadata", "annotations", names.inverse_annotation))})
    return [*_exactly(raw, "generation"), *patch]


def _like(raw: Json, path: tuple[str, ...], was: Json | None, names: Names, *, child: bool = False) -> list[Operation]:
    """What makes the template at `path` say of its place what `was` says, and no more in labels and annotations. child:
    of a Job of a JobSet, which has more of them than the JobSet."""
    patch: list[Operation] = []
    prefix = f"{names.group}/"
    for group, form in (("labels", "label"), ("annotations", "annotation")):
        at_group = (*path, "metadata", group)
        held, own = texts(at(raw, at_group)), texts(obj(obj(was).get("metadata")).get(group))
        said = names.said_by_owners[form, "pods"]
        gone = [
            key
            for key in held
            if (key.startswith(prefix) and key not in said)
            or not (was is None or child or key in own or key in LABELS_OF_JOB)
        ]
        paths = [at_group] if len(gone) == len(held) else [(*at_group, key) for key in gone]
        patch += [{"op": "remove", "path": pointer(one)} for one in paths if gone]
    spec = obj(at(raw, (*path, "spec")))
    for field in ("nodeSelector", "tolerations", "schedulingGates"):
        wanted = spec.get(field) if was is None else obj(was.get("spec")).get(field)
        if field == "schedulingGates":
            wanted = [gate for gate in objects(wanted) if not text(gate.get("name")).startswith(prefix)]
        if wanted and wanted != spec.get(field):
            patch.append({"op": "add", "path": pointer((*path, "spec", field)), "value": wanted})
        elif not wanted and field in spec:
            patch.append({"op": "remove", "path": pointer((*path, "spec", field))})
    return patch


def _undo(raw: Json, names: Names) -> list[Operation]:
    owned = owners_form(raw, names)
    patch: list[Operation] = []
    for path, _ in undoes(inverse_of(raw, names) or {}):
        if _there(owned, path):
            was = at(owned, path)
            if was != at(raw, path) or not _there(raw, path):
                patch.append({"op": "add", "path": pointer(path), "value": was})
        elif _there(raw, path):
            patch.append({"op": "remove", "path": pointer(path)})
    patch.append({"op": "remove", "path": pointer(("metadata", "annotations", names.inverse_annotation))})
    return patch


def _there(raw: Json, path: Sequence[str]) -> bool:
    holder = at(raw, path[:-1])
    return isinstance(holder, dict) and path[-1] in holder


def clear_start_time(kind: JobKind, raw: Json) -> list[Operation] | None:
    """The status write without which older API servers refuse `restore`; None when none is needed."""
    if not kind.frozen_by_start_time or obj(raw.get("status")).get("startTime") is None:
        return None
    return [*_exactly(raw, "resourceVersion"), {"op": "remove", "path": "/status/startTime"}]


def remind(raw: Json, now: str) -> list[Operation]:
    """The status write that wakes the Job controller and tells it nothing: that the condition Suspended was looked at
    now. Where there is none it is said to be False, as of a Job that was never suspended; a controller that finds it
    suspended says so over that."""
    said = condition_of(raw, "Suspended")
    return _say_of_suspension(raw, {**said, "lastProbeTime": now}) if said else say_resumed(raw, now)


def say_resumed(raw: Json, now: str) -> list[Operation]:
    """The status write that says Suspended=False of a Job, in its controller's words."""
    said = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
    return _say_of_suspension(raw, {**said, "lastProbeTime": now, "lastTransitionTime": now})


def say_started(raw: Json, now: str) -> list[Operation]:
    """The status write that gives a Job which has come to its end, and has no start time, that of its end: of its
    controller's own clock, so that it is no later than the completion time that is still to come."""
    end = condition(raw, "SuccessCriteriaMet") or condition(raw, "FailureTarget") or {}
    at = text(end.get("lastTransitionTime")) or now
    return [*_exactly(raw, "resourceVersion"), {"op": "add", "path": "/status/startTime", "value": at}]


def _say_of_suspension(raw: Json, said: Json) -> list[Operation]:
    others = [one for one in objects(obj(raw.get("status")).get("conditions")) if one.get("type") != "Suspended"]
    return [*_exactly(raw, "resourceVersion"), {"op": "add", "path": "/status/conditions", "value": [*others, said]}]


def restore_child(child: Json, parent: Json, names: Names, *, checks: Sequence[Check] = ()) -> list[Operation] | None:
    """The write that takes out of a suspended child Job what a start wrote into its JobSet; None when there is nothing.
    parent: the JobSet as its owner wrote it."""
    meta = obj(at(child, ("spec", "template", "metadata")))
    pod_set = texts(meta.get("labels")).get(names.pod_set_label, "")
    template = next((slot.template for slot in JOBSET.slots(parent) if slot.pod_set == pod_set), {})
    patch: list[Operation] = []
    if started_by_another(child, names):
        patch = _like(child, ("spec", "template"), template or None, names, child=True)
        return [*_exactly(child, "generation"), *patch]
    groups: tuple[tuple[_Pairs, tuple[str, ...]], ...] = (
        ("labels", template_labels(names)),
        ("annotations", template_annotations(names)),
    )
    for group, keys in groups:
        held, own = obj(meta.get(group)), texts(obj(template.get("metadata")).get(group))
        added = [key for key in _added(checks, group, pod_set) if key not in own]
        path = ("spec", "template", "metadata", group)
        gone = [key for key in dict.fromkeys((*keys, *added)) if key in held]
        patch.extend({"op": "remove", "path": pointer((*path, key))} for key in gone)
    return [*_exactly(child, "generation"), *patch] if patch else None


def unselect(child: Json, parent: Json, given_up: Collection[tuple[str, str]] | None = None) -> list[Operation] | None:
    """The write after which a suspended child Job selects nodes by nothing that its JobSet has given up. None when it
    does not. parent: the JobSet as its owner wrote it. given_up: (pod set, label); None: it is not known what that was,
    and all goes that the JobSet does not say, and its controller does not add, with it what webhooks wrote into Jobs.
    """
    of = texts(obj(child.get("metadata")).get("labels")).get(JOBSET_REPLICATED_JOB_LABEL, "")
    template = next((slot.template for slot in JOBSET.slots(parent) if slot.pod_set == of), None)
    if template is None:
        return None
    own = {JOBSET_NAMESPACED_JOB_LABEL, *texts(obj(template.get("spec")).get("nodeSelector"))}
    path = ("spec", "template", "spec", "nodeSelector")
    held = obj(at(child, path))
    gone = [key for key in held if key not in own and (given_up is None or (of, key) in given_up)]
    patch: list[Operation] = [{"op": "remove", "path": pointer((*path, key))} for key in gone]
    return [*_exactly(child, "generation"), *patch] if patch else None


# ---------------------------------------------------------------- pods


def pinned_affinity(affinity: object, node: str, *, gated: bool = False) -> Json:
    """A pod's affinity with its node added to each of its own terms. Terms that match nothing are left out, but for a
    pod that is there, and gated: the API server lets nobody change how many it has."""
    pin = {"key": NODE_NAME, "operator": "In", "values": [node]}
    out = dict(obj(affinity))
    node_affinity = dict(obj(out.get("nodeAffinity")))
    required = node_affinity.get(REQUIRED)
    terms = [
        {**term, "matchFields": [*items(term.get("matchFields")), pin]} if matches else term
        for term in objects(obj(required).get("nodeSelectorTerms"))
        if (matches := bool(term.get("matchExpressions") or term.get("matchFields"))) or gated
    ]
    if not isinstance(required, dict):
        terms = [{"matchFields": [pin]}]
    node_affinity[REQUIRED] = {"nodeSelectorTerms": terms}
    return {**out, "nodeAffinity": node_affinity}


def is_gated(pod: Json, names: Names) -> bool:
    gates = objects(obj(pod.get("spec")).get("schedulingGates"))
    return any(gate.get("name") == names.topology_gate for gate in gates)


def gate_off(pod: Json, names: Names) -> list[Operation]:
    """What takes our gate off a pod; nothing where it has none."""
    gates = objects(obj(pod.get("spec")).get("schedulingGates"))
    index = next((i for i, gate in enumerate(gates) if gate.get("name") == names.topology_gate), None)
    if index is None:
        return []
    at_gate = f"/spec/schedulingGates/{index}"
    return [{"op": "test", "path": f"{at_gate}/name", "value": names.topology_gate}, {"op": "remove", "path": at_gate}]


def ungate(pod: Json, place: str | Mapping[str, str], names: Names) -> list[Operation]:
    """The write that sends a gated pod to its node (or to the domain that a selector names) and lets it go.

    Written twice it fails the second time (the gate is no more there) and changes nothing.
    """
    spec = obj(pod.get("spec"))
    off = gate_off(pod, names)
    if not off:
        return []
    patch = [*_exactly(pod), *off]
    if isinstance(place, str):
        affinity = pinned_affinity(spec.get("affinity"), place, gated=True)
        patch.append({"op": "add", "path": "/spec/affinity", "value": affinity})
    else:
        selector = {**place, **texts(spec.get("nodeSelector"))}
        patch.append({"op": "add", "path": "/spec/nodeSelector", "value": selector})
    return patch
