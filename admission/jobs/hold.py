"""What the API server must change and refuse so that a queued job gets no pod before its admission.

These functions are the rules in Python; `controller.policies` says the same in CEL, for API servers that evaluate it
themselves, and a test holds both to the same answers on the same rows. The webhook uses these where there are no such
policies.

    default_queue a job that is created without a queue label gets the LocalQueue `default` of its namespace
    mutate_job    a queued job is suspended when it is created; after that its `spec.suspend` is ours, and what others
                  write there is put back without a word, so that an unchanged manifest applied again changes nothing
    validate_job  the second net: no start by others, queue label, size and template of what was admitted, our keys
    mutate_pod    a pod of an admitted gang gets its host, the flavor's selector and tolerations, and the gang class
    validate_pod  a pod that carries our marker and not its pin is refused: a missing rule stops pods, never frees them

A write is ours when its caller may admit (the API server's authorizer says so) and it names our field manager: the
first alone is true of every cluster administrator, and so of most GitOps tools, which mean nothing by a `suspend` that
they repeat. An administrator who does mean it says `--field-manager`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from admission import quantity
from admission.jobs.kinds import (
    JOB,
    JOBSET,
    JobKind,
    JobView,
    Json,
    Operation,
    annotations_of,
    containers_of,
    digits,
    items,
    kind_of,
    labels_of,
    obj,
    objects,
    text,
    texts,
)
from admission.jobs.pins import (
    DOMAIN,
    GATES,
    RANKS,
    REQUIRED,
    is_gated,
    no_such_taint,
    pinned_affinity,
    pointer,
    rank_host,
    selector_value,
    template_annotations,
    template_labels,
    tolerations_value,
)
from admission.jobs.requests import LIMITS, Limits, excess
from admission.names import (
    DEFAULT_QUEUE,
    JOB_COMPLETION_INDEX,
    JOB_TRACKING_FINALIZER,
    JOBS_OF_KUEUE,
    JOBSET_GROUP,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_LABELS,
    JOBSET_NAME_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    JOBSET_UID_LABEL,
    LABELS_OF_JOB,
    Names,
)

PRIORITY = 1_000_000_000
"""Value of the gang class: the highest that a class of users may have, and it never preempts."""

PATIENCE_S = 300
"""Seconds for which pods of gangs tolerate any NoExecute taint, as they do a lost node: within that the whole gang is
suspended, where one deleted pod would fail most jobs for good. This toleration comes last, because Kubernetes takes the
first that tolerates a taint."""


CONTAINERS = ("containers", "initContainers")
"""Fields of a pod's spec whose containers ask for resources."""

OWNERS_LABELS = (
    *LABELS_OF_JOB,
    JOB_COMPLETION_INDEX,
    JOBSET_NAME_LABEL,
    JOBSET_UID_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    JOBSET_JOB_INDEX_LABEL,
)
"""Labels by which the controllers of Jobs and JobSets find their pods: a pod that loses them is let go and runs on."""

QUEUED_OWNERS = ("batch/Job", f"{JOBSET_GROUP}/JobSet", *JOBS_OF_KUEUE)
"""GROUP/KIND of objects that are queued as a whole, by Muster or by Kueue: a Job or JobSet that one of them makes is a
part of it, and gets no queue of its own."""


@dataclass(frozen=True, slots=True)
class Identities:
    """Names that the controllers of Kubernetes and JobSet go by; values of the installation."""

    job_controllers: tuple[str, ...] = (
        "system:serviceaccount:kube-system:job-controller",
        "system:kube-controller-manager",
    )
    jobset_controllers: tuple[str, ...] = ("system:serviceaccount:jobset-system:jobset-controller-manager",)


IDENTITIES = Identities()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, and what the API server's authorizer says of them."""

    user: str = ""
    may_admit: bool = False
    runs_jobsets: bool = False
    """May write the status of JobSets in all namespaces: the JobSet controller."""
    runs_pods: bool = False
    """May delete pods in all namespaces: a controller of Kubernetes (of Jobs, of garbage), no tenant."""
    evicts_all: bool = False
    """May evict pods in all namespaces: drains nodes (cluster-autoscaler), no tenant."""
    field_manager: str = ""

    def is_us(self, names: Names) -> bool:
        return self.may_admit and self.field_manager == names.job_manager

    def is_jobset_controller(self, identities: Identities) -> bool:
        # Who may admit may do everything, as a rule: an administrator, not a controller.
        return self.user in identities.jobset_controllers or (self.runs_jobsets and not self.may_admit)

    def writes_children(self, identities: Identities) -> bool:
        """Do they create the Jobs of JobSets, or remove owner references as the garbage collector does?"""
        return self.is_jobset_controller(identities) or self.user in identities.job_controllers


class Messages:
    """The messages of refusals."""

    def __init__(self, names: Names, limits: Limits = LIMITS) -> None:
        queue = f"the label {names.queue_label}"
        self.created_running = f"a job with {queue} is created suspended: leave spec.suspend out, and it is set"
        self.started = "this job is started by Muster when there is room for all of it: leave spec.suspend out"
        self.child = "the Jobs of a JobSet are started by the JobSet controller: leave spec.suspend out"
        self.child_frozen = (
            "the Jobs of a JobSet are made and changed by the JobSet controller: leave ownerReferences, parallelism, "
            f"completions, template and the labels {JOBSET_LABELS}... as they are, and change the JobSet"
        )
        self.label = (
            f"{queue} can be added, changed and removed only while the job is suspended and "
            f"holds nothing: create the job anew, or pause it first with the label {names.pause_label}: 'true'"
        )
        self.empty_label = f"{queue} is empty: name a LocalQueue, or leave the label out"
        self.template_label = f"{queue} belongs on the JobSet itself: remove it from spec.replicatedJobs[].template"
        self.frozen = (
            "this job holds room for what it asked for: parallelism, completions, templates and the failurePolicy of a "
            "JobSet stay as they are until it is suspended and restored; pause it with the label "
            f"{names.pause_label}: 'true' to change them"
        )
        self.limit = (
            f"the label {names.max_exec_time_label} of a job that runs stays as it is, for its time was set as it was "
            f"admitted; pause the job with the label {names.pause_label}: 'true' to change it"
        )
        self.reserved = (
            f"labels {names.managed_label}, {names.workload_uid_label} and {names.pod_set_label}, the annotations of "
            f"{names.group} that place pods, and the gate {names.topology_gate} are written by Muster only: remove "
            f"them from the pod template, and the annotation {names.inverse_annotation} from the job, or have it "
            "restored, with all of them, by a cluster administrator"
        )
        self.inverse = (
            f"the annotation {names.inverse_annotation} is written by Muster only: remove it, or have the job restored "
            "by a cluster administrator"
        )
        self.pod_marker = (
            f"pods with the label {names.managed_label} are made by Jobs that Muster started: remove the label, and "
            f"make a Job or a JobSet with {queue} instead; one that is restored from a backup makes its pods anew"
        )
        self.pod_unpinned = (
            "this pod belongs to an admitted gang and has no pin: the policy that places it is missing or did not run"
        )
        self.pod_gate = f"the gate {names.topology_gate} and the labels of an admitted pod are changed by Muster only"
        self.pod_owner = (
            "the owner of an admitted pod, the finalizer of the Job controller, and the labels and annotations by "
            "which it is counted are changed by Kubernetes and Muster only"
        )
        self.pod_resize = (
            "an admitted pod keeps the resources that its gang was admitted with: create the job anew to change them"
        )
        self.pod_grace = f"a pod of a gang has at most {limits.grace_s} s to end: leave the grace period out"
        self.priority_class = f"the PriorityClass {names.priority_class} is for pods of admitted gangs only"
        self.priority_above = (
            f"pods in this namespace have a priority of at most {PRIORITY}: a higher one would preempt admitted gangs"
        )


def not_queued(job: JobView, names: Names) -> str:
    """Why a held job is not queued, and what its owner can do about it."""
    label = names.queue_label
    if job.ungoverned and not job.labelled:
        return (
            "It names no queue, and such jobs are not queued here (any more): it stays suspended. Put the label "
            f"{label} on it, or start it (spec.suspend: false)"
        )
    if not job.queue:
        return Messages(names).empty_label
    return (
        f"Jobs of namespace {job.namespace} are not queued (namespaceSelector of the configuration), and the label "
        f"{label} holds this one: have the namespace governed, or take the label off and start the job"
    )


# ---------------------------------------------------------------- jobs


def _suspended(job: Json | None) -> bool:
    return obj(obj(job).get("spec")).get("suspend") is True


def _is_child(job: Json | None) -> bool:
    return _is_part_of(obj(job), JOBSET)


def _is_part_of(one: Json, kind: JobKind) -> bool:
    """Of one of this kind, by its owner reference (which proves nothing of who made it)."""
    return any(
        ref.get("kind") == kind.kind
        and text(ref.get("apiVersion")).startswith(f"{kind.group}/")
        and ref.get("controller") is True
        for ref in objects(_owners(one))
    )


def _is_marked(job: Json | None, names: Names) -> bool:
    """Does the template of a Job carry our marker? So does that of a JobSet's child, and it still does when somebody
    took the JobSet from it."""
    template = obj(obj(obj(job).get("spec")).get("template"))
    return names.managed_label in labels_of(template)


def _is_held(old: Json | None, new: Json, caller: Caller, names: Names, identities: Identities, governed: bool) -> bool:
    """In this request, does Muster decide `spec.suspend` of this job?"""
    if caller.is_us(names) and old is not None:
        return False
    if _is_child(new) and caller.is_jobset_controller(identities):
        return False  # whatever label somebody put on it: its JobSet is what is held
    if names.queue_label in labels_of(new) or (old is not None and names.queue_label in labels_of(old)):
        return True
    if old is not None and (_is_child(old) or _is_marked(old, names)) and not caller.is_jobset_controller(identities):
        return True
    return governed


def default_queue(new: Json, names: Names) -> list[Operation]:
    """JSON patch that puts a Job or JobSet into the LocalQueue `default`, which its namespace has, as it is created.
    None for one whose queue label names another, or with an owner of QUEUED_OWNERS."""
    if labels_of(new).get(names.queue_label) or any(map(_is_queued_owner, objects(_owners(new)))):
        return []
    patch: list[Operation] = []
    if not isinstance(obj(new.get("metadata")).get("labels"), dict):
        patch.append({"op": "add", "path": "/metadata/labels", "value": {}})
    patch.append({"op": "add", "path": pointer(("metadata", "labels", names.queue_label)), "value": DEFAULT_QUEUE})
    # Here, for `mutate_job` may have had its turn already.
    return patch if _suspended(new) else [*patch, {"op": "add", "path": "/spec/suspend", "value": True}]


def _is_queued_owner(ref: Json) -> bool:
    kind = f"{text(ref.get('apiVersion')).partition('/')[0]}/{text(ref.get('kind'))}"
    return ref.get("controller") is True and kind in QUEUED_OWNERS


def mutate_job(
    old: Json | None,
    new: Json,
    caller: Caller,
    names: Names,
    *,
    identities: Identities = IDENTITIES,
    governed: bool = False,
) -> list[Operation]:
    """JSON patch for a Job or JobSet that is created (`old` is None) or updated. `governed`: its namespace is."""
    patch: list[Operation] = []
    if _is_held(old, new, caller, names, identities, governed):
        wanted = True if old is None else _suspended(old)
        if _suspended(new) != wanted:
            patch.append({"op": "add", "path": "/spec/suspend", "value": wanted})
    if old is not None and not caller.is_us(names):
        patch += _put_back(old, new, names) if kind_of(new) is JOBSET else _as_it_was_given(old, new, names)
    return patch


def as_written(parallelism: object) -> str:
    """The text in the note of a start which says that the owner of a Job wrote this parallelism, and got a smaller
    one."""
    return f'[["spec","parallelism"],{parallelism}]'


def as_selected(label: str) -> str:
    """The text there which says that the owner of a Job, whose template selects nodes, did not select by this label."""
    return f'[["spec","template","spec","nodeSelector","{label}"]]'


def as_tolerated(tolerations: object) -> str:
    """The text there which says how many tolerations the template of a Job had before the start added others."""
    return f'"tolerations":{tolerations},'


def _as_it_was_given(old: Json, new: Json, names: Names) -> list[Operation]:
    """JSON patch that keeps what a start changed in a Job when its owner applies the unchanged manifest again: a
    smaller parallelism, and the fields that clients write as a whole (node selector, tolerations)."""
    note = annotations_of(old).get(names.inverse_annotation, "")
    given, written = (obj(one.get("spec")).get("parallelism") for one in (old, new))
    patch: list[Operation] = []
    if given is not None and given != written and as_written(written) in note:
        patch.append({"op": "add", "path": "/spec/parallelism", "value": given})
    was, is_ = (obj(obj(obj(one.get("spec")).get("template")).get("spec")) for one in (old, new))
    selector, own = texts(was.get("nodeSelector")), texts(is_.get("nodeSelector"))
    added = [key for key in selector if key not in own]
    if added and own and own.items() <= selector.items() and all(as_selected(key) in note for key in added):
        patch.append({"op": "add", "path": "/spec/template/spec/nodeSelector", "value": selector})
    borne, owns = items(was.get("tolerations")), items(is_.get("tolerations"))
    if owns and borne[: len(owns)] == owns and as_tolerated(len(owns)) in note:
        path = "/spec/template/spec/tolerations/-"
        patch += [{"op": "add", "path": path, "value": one} for one in borne[len(owns) :]]
    return patch


def _put_back(old: Json, new: Json, names: Names) -> list[Operation]:
    """Our keys in the templates of a JobSet that was started, where somebody wrote the whole list anew, the note of the
    start, where somebody wrote the whole object anew, and amounts that are written otherwise.

    Client-side apply does the first, for it knows no lists of custom resources, and `kubectl replace` both. Where our
    keys are still there they are not put back, and a change of the owner's is theirs to answer for. JobSet's webhook
    writes the amounts of one that is created anew (2 becomes "2", 1024Mi 1Gi), and lets stand what is applied later.
    """
    note = annotations_of(old).get(names.inverse_annotation)
    if note is None:
        return []
    before = {text(e.get("name")): e for e in objects(obj(old.get("spec")).get("replicatedJobs"))}
    patch: list[Operation] = []
    if names.inverse_annotation not in annotations_of(new):
        if isinstance(obj(new.get("metadata")).get("annotations"), dict):
            path = pointer(("metadata", "annotations", names.inverse_annotation))
            patch.append({"op": "add", "path": path, "value": note})
        else:
            whole = {names.inverse_annotation: note}
            patch.append({"op": "add", "path": "/metadata/annotations", "value": whole})
    for index, entry in enumerate(objects(obj(new.get("spec")).get("replicatedJobs"))):
        was = before.get(text(entry.get("name")), {})
        meta, path = _inner_meta(was), f"/spec/replicatedJobs/{index}/template/spec/template"
        if names.managed_label in texts(meta.get("labels")) and names.managed_label not in texts(
            _inner_meta(entry).get("labels")
        ):
            patch.append({"op": "add", "path": f"{path}/metadata", "value": meta})
        patch += [
            {"op": "add", "path": path + pointer(("spec", *where)), "value": amount}
            for where, amount in _written_otherwise(_inner(was), _inner(entry))
        ]
    return patch


def _written_otherwise(old: Json, new: Json) -> Iterator[tuple[tuple[str, ...], object]]:
    """(path in the spec of a pod template, as it was) of each amount that is equal to what was there, in another
    spelling."""
    for group in CONTAINERS:
        pairs = zip(items(obj(old.get("spec")).get(group)), items(obj(new.get("spec")).get(group)), strict=False)
        for index, (was, is_) in enumerate(pairs):
            for field in ("limits", "requests"):
                before, after = (obj(obj(obj(one).get("resources")).get(field)) for one in (was, is_))
                for resource, amount in after.items():
                    kept = before.get(resource)
                    if resource in before and kept != amount and quantity.same(kept, amount):
                        yield (group, str(index), "resources", field, resource), kept
    volumes = zip(items(obj(old.get("spec")).get("volumes")), items(obj(new.get("spec")).get("volumes")), strict=False)
    for index, (was, is_) in enumerate(volumes):
        kept, amount = (obj(obj(one).get("emptyDir")).get("sizeLimit") for one in (was, is_))
        if kept != amount and quantity.same(kept, amount):
            yield ("volumes", str(index), "emptyDir", "sizeLimit"), kept


def _inner(entry: Json) -> Json:
    return obj(obj(obj(entry.get("template")).get("spec")).get("template"))


def _inner_meta(entry: Json) -> Json:
    return obj(_inner(entry).get("metadata"))


def _child_templates(kind: JobKind, job: Json | None) -> dict[str, Json]:
    """Pod templates by name of their pod set."""
    if job is None:
        return {}
    if kind is JOB:
        return {"": obj(obj(job.get("spec")).get("template"))}
    return {text(entry.get("name")): _inner(entry) for entry in objects(obj(job.get("spec")).get("replicatedJobs"))}


def _reserved(template: Json, names: Names) -> dict[str, str]:
    """Our keys in a pod template, with their values."""
    meta = obj(template.get("metadata"))
    labels, notes = texts(meta.get("labels")), texts(meta.get("annotations"))
    found = {key: labels[key] for key in template_labels(names) if key in labels}
    found |= {key: notes[key] for key in (*template_annotations(names), names.pinned_annotation) if key in notes}
    if is_gated(template, names):
        found[names.topology_gate] = ""
    return found


def _is_restored(old: Json | None, new: Json, caller: Caller, names: Names) -> bool:
    """Is a job created as it was while it ran, from a backup? It is held, and its template put back by the note that it
    carries. Only from callers who may admit: a note may say anything of the job."""
    noted = names.inverse_annotation in annotations_of(new)
    return old is None and noted and _suspended(new) and caller.may_admit


def _queue_labels_inside(job: Json | None, names: Names) -> set[str]:
    entries = objects(obj(obj(job).get("spec")).get("replicatedJobs"))
    return {text(entry.get("name")) for entry in entries if names.queue_label in labels_of(entry.get("template"))}


def _notes_inside(job: Json | None, names: Names) -> set[str]:
    """Replicated jobs whose template carries our note: their Jobs would have it too, and be refused."""
    entries = objects(obj(obj(job).get("spec")).get("replicatedJobs"))
    noted = (entry for entry in entries if names.inverse_annotation in annotations_of(entry.get("template")))
    return {text(entry.get("name")) for entry in noted}


def _owners(raw: Json) -> list[object]:
    return items(obj(raw.get("metadata")).get("ownerReferences"))


def _place_in_set(raw: Json) -> dict[str, str]:
    """The labels by which JobSet's controller counts a Job as one of its own, and as done, which frees its quota."""
    return {key: said for key, said in labels_of(raw).items() if key.startswith(JOBSET_LABELS)}


def _sizes(kind: JobKind, job: Json) -> object:
    """The number of pods of each pod set; of a JobSet also its restarts, because without these the quota of pods that
    are done was given back."""
    spec = obj(job.get("spec"))
    if kind is JOB:
        return spec.get("parallelism"), spec.get("completions"), spec.get("template")
    return spec.get("failurePolicy"), [
        (entry.get("name"), entry.get("replicas"), obj(entry.get("template")).get("spec"))
        for entry in objects(spec.get("replicatedJobs"))
    ]


def _ends(kind: JobKind, old: Json, new: Json) -> bool:
    """Does its owner set parallelism to 0, and change nothing else? Tools end a Job in this way: it is stopped, and
    what it holds is given back."""
    spec, was = obj(new.get("spec")), obj(old.get("spec"))
    same = all(spec.get(field) == was.get(field) for field in ("completions", "template"))
    return kind is JOB and spec.get("parallelism") == 0 and same


def validate_job(
    old: Json | None,
    new: Json,
    caller: Caller,
    names: Names,
    *,
    identities: Identities = IDENTITIES,
    limits: Limits = LIMITS,
    governed: bool = False,
) -> str | None:
    """Why a Job or JobSet must be refused, after `mutate_job`; None when it is good."""
    kind = kind_of(new)
    if kind is None or (caller.is_us(names) and old is not None):
        return None
    say = Messages(names)
    jobset_controller = caller.is_jobset_controller(identities)
    queue, had = labels_of(new).get(names.queue_label), labels_of(old).get(names.queue_label)
    if queue == "" and had != "":
        return say.empty_label
    if _is_held(old, new, caller, names, identities, governed):
        if old is None and not _suspended(new):
            return say.created_running
        if old is not None and _suspended(old) and not _suspended(new):
            return say.child if had is None and queue is None and _is_child(old) else say.started
    holds = old is not None and (names.inverse_annotation in annotations_of(old) or not _suspended(old))
    if old is not None and queue != had and holds:
        return say.label
    limit, was = (labels_of(one).get(names.max_exec_time_label, "") for one in (new, old))
    if limit != was and annotations_of(old).get(names.inverse_annotation):
        return say.limit
    if _queue_labels_inside(new, names) - _queue_labels_inside(old, names):
        return say.template_label
    if _notes_inside(new, names) - _notes_inside(old, names):
        return say.inverse
    if kind is JOB and (_is_child(old) or _is_child(new)) and not caller.writes_children(identities):
        kept = old is not None and all(of(old) == of(new) for of in (_owners, _place_in_set, partial(_sizes, kind)))
        if not kept:
            return say.child_frozen
    started = old is not None and (
        names.inverse_annotation in annotations_of(old)
        or (kind is JOB and _is_marked(old, names) and not caller.writes_children(identities))
    )
    if old is not None and started and _sizes(kind, old) != _sizes(kind, new) and not _ends(kind, old, new):
        return say.frozen
    restored = _is_restored(old, new, caller, names)
    if not (kind is JOB and jobset_controller) and not restored:
        before = {name: _reserved(template, names) for name, template in _child_templates(kind, old).items()}
        for name, template in _child_templates(kind, new).items():
            if not _reserved(template, names).items() <= before.get(name, {}).items():
                return say.reserved
    noted, was_noted = (annotations_of(one).get(names.inverse_annotation) for one in (new, old))
    if noted != was_noted and not restored:
        return say.inverse
    if queue is not None or (governed and not (kind is JOB and _is_child(new))):  # its JobSet was asked
        before_it = excess(kind, old, limits) if old is not None else ()
        return next((wrong for wrong in excess(kind, new, limits) if wrong not in before_it), None)
    return None


# ---------------------------------------------------------------- pods


class UnpinnableError(Exception):
    """A pod with our marker for which there is no pin; the message says why. The pod must be refused."""


def is_managed(pod: Json | None, names: Names) -> bool:
    return labels_of(pod).keys() >= set(names.gang_marks)


def _has_job(pod: Json) -> bool:
    return _is_part_of(pod, JOB)


def is_of_job(pod: Json, user: str, identities: Identities) -> bool:
    """Is a pod owned by a Job, and created by the Job controller?"""
    return user in identities.job_controllers and _has_job(pod)


def mutate_pod(pod: Json, names: Names) -> list[Operation]:
    """JSON patch for a pod that is created. Applied twice it changes nothing more. Raises UnpinnableError."""
    if not is_managed(pod, names):
        return []
    meta, spec = obj(pod.get("metadata")), obj(pod.get("spec"))
    notes = texts(meta.get("annotations"))
    if names.pinned_annotation in notes:
        return []
    form = notes.get(names.pin_form_annotation, "")
    patch: list[Operation] = []
    if form == RANKS:
        stride = digits(notes.get(names.rank_stride_annotation, ""))
        host = rank_host(texts(meta.get("labels")), notes.get(names.hosts_annotation, ""), stride or 0)
        if host is None:
            raise UnpinnableError("its rank is not in the list of hosts")
        patch.append({"op": "add", "path": "/spec/affinity", "value": pinned_affinity(spec.get("affinity"), host)})
    elif form == GATES:
        if not is_gated(pod, names):
            gates = [*objects(spec.get("schedulingGates")), {"name": names.topology_gate}]
            patch.append({"op": "add", "path": "/spec/schedulingGates", "value": gates})
    elif form != DOMAIN:
        raise UnpinnableError(f"annotation {names.pin_form_annotation} is {form!r}")
    if selector := selector_value(notes.get(names.selector_annotation, "")):
        own = texts(spec.get("nodeSelector"))
        patch.append({"op": "add", "path": "/spec/nodeSelector", "value": {**own, **selector}})
    tolerations = [
        *objects(spec.get("tolerations")),
        *tolerations_value(notes.get(names.tolerations_annotation, "")),
    ]
    if not any(_bears_all(one, names) for one in tolerations):
        tolerations.append({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE_S})
    if tolerations != items(spec.get("tolerations")):
        patch.append({"op": "add", "path": "/spec/tolerations", "value": tolerations})
    patch += [
        {"op": "add", "path": "/spec/priorityClassName", "value": names.priority_class},
        {"op": "add", "path": "/spec/priority", "value": PRIORITY},
        {"op": "add", "path": "/spec/preemptionPolicy", "value": "Never"},
        {"op": "add", "path": pointer(("metadata", "annotations", names.pinned_annotation)), "value": "true"},
    ]
    if names.hosts_annotation in notes:
        patch.append({"op": "remove", "path": pointer(("metadata", "annotations", names.hosts_annotation))})
    return patch


def _bears_all(toleration: Json, names: Names) -> bool:
    """Does a pod by this toleration bear every NoExecute taint for good? Or does it say, by the key of no taint that
    there is (`pins.no_such_taint`), that it shall bear none for a while?"""
    for_good = toleration.get("tolerationSeconds") is None and toleration.get("effect") in (None, "", "NoExecute")
    return for_good and toleration.get("key") in (None, "", no_such_taint(names))


def is_patient(options: Json, *, limits: Limits = LIMITS) -> bool:
    """Do these delete options give a pod a longer grace period than pods of gangs may have?"""
    grace = options.get("gracePeriodSeconds")
    return isinstance(grace, int) and grace > limits.grace_s


def validate_delete(
    pod: Json | None, options: Json, caller: Caller, names: Names, *, limits: Limits = LIMITS
) -> str | None:
    """Why a pod must not be deleted with these options; None when it may. pod: None for an Eviction, which does not say
    whose pod it is. (Once it is being deleted nobody else can shorten its grace period.)"""
    of_gang = pod is None or is_managed(pod, names)
    lawful = caller.may_admit or (pod is None and caller.evicts_all)
    long = of_gang and is_patient(options, limits=limits) and not lawful
    return Messages(names, limits).pod_grace if long else None


def _resources(pod: Json) -> list[object]:
    """Resources of all containers, sidecars included: all of them can be resized in place."""
    spec = obj(pod.get("spec"))
    return [spec.get("resources"), *((one.get("name"), one.get("resources")) for one in containers_of(spec))]


def _belonging(pod: Json, names: Names) -> object:
    """The fields that say which job and gang a pod belongs to: without one of them it would run on uncounted."""
    labels, notes = labels_of(pod), annotations_of(pod)
    return (
        _owners(pod),
        JOB_TRACKING_FINALIZER in items(obj(pod.get("metadata")).get("finalizers")),
        [labels.get(key) for key in OWNERS_LABELS],
        [notes.get(key) for key in (*template_annotations(names), names.pinned_annotation)],
    )


def _has_pin(pod: Json, names: Names) -> bool:
    notes, spec = annotations_of(pod), obj(pod.get("spec"))
    if notes.get(names.pinned_annotation) != "true" or names.hosts_annotation in notes:
        return False
    if spec.get("priorityClassName") != names.priority_class:
        return False
    form = notes.get(names.pin_form_annotation)
    if form == RANKS:
        required = obj(obj(obj(spec.get("affinity")).get("nodeAffinity")).get(REQUIRED))
        terms = objects(required.get("nodeSelectorTerms"))
        return isinstance(required.get("nodeSelectorTerms"), list) and all(
            any(part.get("operator") == "In" for part in objects(term.get("matchFields"))) for term in terms
        )
    return form == DOMAIN or (form == GATES and is_gated(pod, names))


def validate_pod(
    old: Json | None,
    pod: Json,
    caller: Caller,
    names: Names,
    *,
    identities: Identities = IDENTITIES,
    governed: bool = False,
) -> str | None:
    """Why a pod must be refused, after `mutate_pod`; None when it is good."""
    say = Messages(names)
    if old is not None:
        if caller.may_admit or not (is_managed(old, names) or is_managed(pod, names)):
            return None
        same = all(labels_of(old).get(key) == labels_of(pod).get(key) for key in template_labels(names))
        if not same or is_gated(old, names) != is_gated(pod, names):
            return say.pod_gate
        if _resources(old) != _resources(pod):
            return say.pod_resize
        by_system = caller.runs_pods or caller.user in identities.job_controllers
        return None if by_system or _belonging(old, names) == _belonging(pod, names) else say.pod_owner
    if not is_managed(pod, names):
        if obj(pod.get("spec")).get("priorityClassName") == names.priority_class and not caller.may_admit:
            return say.priority_class
        above = obj(pod.get("spec")).get("priority")
        if governed and isinstance(above, int) and above > PRIORITY and not caller.may_admit:
            return say.priority_above
        return None
    # Restored without its Job, a pod would run for ever beside that, and count for nobody.
    if not is_of_job(pod, caller.user, identities) and not (caller.may_admit and _has_job(pod)):
        return say.pod_marker
    return None if _has_pin(pod, names) else say.pod_unpinned
