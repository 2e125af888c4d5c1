"""Kinds of jobs, as data: where each kind keeps its pod templates, its counts, and how it went.

Muster governs what it can read from here and nothing else. A `JobKind` says where the templates of a kind lie and how
many pods each stands for; `view` folds one object of such a kind into a `JobView`, the few facts that the controller
keeps of it in memory. Both are total: whatever the object says, the answer is a value, and what was wrong with it is in
`problems`, in words for its owner.

A pod set's pods have ranks when its pods carry an index. `Slot` says how a rank is made of the labels of a pod:
rank = job index x stride + completion index, where a Job has only the second and a JobSet's replicated job both.

While a job runs, its template holds what the start wrote there; the object carries the inverse, and everything here
speaks of the template as its owner wrote it (`owners_form`).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from admission.engine.model import Value, Workload
from admission.names import (
    EQUAL_COMPLETIONS,
    JOBSET_EXCLUSIVE_TOPOLOGY,
    JOBSET_GROUP,
    JOBSET_NAME_LABEL,
    JOBSET_NODE_SELECTOR,
    JOBSET_REPLICATED_JOB_LABEL,
    OF_DEVICE_CLASS,
    Names,
)

Json = dict[str, Any]
Operation = dict[str, Any]
"""One operation of a JSON patch."""

JobKey = tuple[str, str, str]
"""(kind, namespace, name)."""

MAIN = "main"
"""Name of the pod set of a kind that has only one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One pod set of a job: a pod template and how many pods of it there are."""

    pod_set: str
    path: tuple[str, ...]
    """Where in the object the pod template lies."""
    template: Json
    count: int
    """Pods that are still to run, all at once."""
    ranks: int | None
    """Length of a list with one host for each rank, done ones included; None: the pods cannot be told apart."""
    stride: int = 0
    """Ranks per child job; 0 where there are no child jobs."""
    done: tuple[tuple[int, int], ...] = ()
    """Ranks that will not run again, as inclusive ranges."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the kind's own controller adds to the pods."""
    notes: tuple[tuple[str, str], ...] = ()
    """Annotations that it adds and that decide where they may stand."""
    volumes: tuple[tuple[str, str], ...] = ()
    """(volume, PersistentVolumeClaim) that it adds."""
    replicas: int = 1
    per_job: int = 0
    """Pods of each child job, done or not, that it has at a time; 0 where there are no child jobs."""

    def live_ranks(self) -> list[int]:
        """Ranks that are still to run, in order; empty without ranks."""
        if self.ranks is None:
            return []
        live: list[int] = []
        at = 0
        for first, last in self.done:
            live.extend(range(at, first))
            at = last + 1
        live.extend(range(at, self.ranks))
        return live


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job is doing, by its own status."""

    suspended: bool = False
    """Its controller says that it is suspended."""
    suspended_ms: int = 0
    """Since when it says so; 0 where it does not."""
    probed_ms: int = 0
    """When somebody last said of a Job whether it is suspended; 0: never."""
    started: bool = False
    """A start time is set."""
    active: int = 0
    """Pods, as all counts here."""
    ready: int = 0
    succeeded: int = 0
    terminating: int = 0
    finished: str | None = None
    """"Succeeded" or "Failed" once it is."""
    ending: str | None = None
    """The same of one that has come to its end, and whose last pods are still ending: it makes none any more."""
    message: str = ""
    due: int = 0
    """Pods that ought to be there by now."""
    at_once: int = 0
    """Pods at a time, while none is done."""
    left: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class JobKind:
    """A kind of job. `slots` and `outcome` read an object in its owner's form."""

    kind: str
    group: str
    version: str
    plural: str
    slots: Callable[[Json], tuple[Slot, ...]] = field(repr=False)
    outcome: Callable[[Json, Sequence[Slot]], Outcome] = field(repr=False)
    size: Callable[[Json], Any] = field(repr=False)
    """What of the object, beside the templates, says how many pods there are: for comparing."""
    fixed_template: bool = False
    """The kind's children keep what was once written into them: a start writes only keys that it always overwrites."""
    frozen_by_start_time: bool = False
    """The template may be refused to change while a start time is set (API servers up to 1.35)."""
    run_by: str = ""
    """Value of spec.managedBy that says the same as none: run by the kind's own controller."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


class JobView(Value, frozen=True):
    """What the controller keeps of a job."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int = 0
    queue: str = ""
    """LocalQueue that it names; "" when it names none."""
    labelled: bool = False
    """It has the queue label, which holds it, whatever that says."""
    ungoverned: bool = False
    """It names no queue, is held and cannot be queued, or such jobs stopped being queued; noted on it, for nothing else
    says that it was held."""
    priority_class: str = ""
    """WorkloadPriorityClass that it names."""
    pod_priority_class: str = ""
    """priorityClassName of its (first) pod template."""
    pod_priority_classes: tuple[str, ...] = ()
    """Those of all templates of pods still to run."""
    runtime_classes: tuple[str, ...] = ()
    """That its pod templates name."""
    claim_templates: tuple[str, ...] = ()
    """ResourceClaimTemplates that they name."""
    device_classes: tuple[str, ...] = ()
    """DeviceClasses that they ask for by the classes' own names."""
    service_accounts: tuple[str, ...] = ()
    """ServiceAccounts that the templates of pods still to run name; `default`, which each namespace is given, is left
    out."""
    owner: tuple[str, str, str] | None = None
    """(apiVersion, kind, uid) of its controller."""
    suspended: bool = False
    """spec.suspend; absent is false."""
    suspended_condition: bool = False
    suspended_ms: int = 0
    """Since when its controller says so."""
    probed_ms: int = 0
    """When it, or we in its stead, last said whether the Job is suspended."""
    start_time_set: bool = False
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    terminating: int = 0
    finished: str | None = None
    """"Succeeded", "Failed", or None."""
    ending: str | None = None
    """The same of one that is not finished only because its last pods are still ending."""
    message: str = ""
    """Of its end."""
    deleting: bool = False
    created_ms: int = 0
    arrival: str = ""
    """Of two jobs the smaller text came first: of which moment it is, and which version of the API server's."""
    counts: tuple[tuple[str, int], ...] = ()
    """(pod set, pods still to run)."""
    spec_hash: str = ""
    """Of templates and counts as its owner wrote them; what a start writes does not change it."""
    pods_expected: int = 0
    """Pods that ought to be there, ready or done, by now (replicated jobs that start later are not due)."""
    pods_at_once: int = 0
    """Pods that it has at a time, while none is done."""
    fewest: int | None = None
    """With so many of its pods still to run it may start; None: only with all."""
    left: tuple[tuple[str, int], ...] = ()
    """(pod set, pods that run or will run) of pod sets of which some will not run again."""
    started: bool = False
    """It carries what a start wrote, and must be restored before it is started again."""
    started_for: str = ""
    """uid of the Workload for which it was started."""
    started_by_another: bool = False
    """It carries what the start of another controller wrote, whose place is taken here (a Job of a JobSet, too)."""
    marked_for: str = ""
    """uid of the Workload that the marker in its own template names: a started Job's, a JobSet's child's, and one's
    whose JobSet is gone."""
    template_frozen: bool = False
    """Its kind's template may be refused to change while a start time is set."""
    paused: bool = False
    gated_by: str = ""
    max_execution_s: int | None = None
    gates: bool = False
    """It was started with pods that wait behind our scheduling gate."""
    survives: bool = False
    """It says that it survives the loss of a pod, and a pod that fails does not end it."""
    waits_for_failed: bool = False
    """Its Jobs make no pod beside one that is still ending (podReplacementPolicy: Failed)."""
    problems: tuple[str, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    """What it says by labels and annotations of our group that says nothing where it stands, in words."""

    @property
    def key(self) -> JobKey:
        return self.kind, self.namespace, self.name

    @property
    def of_jobset(self) -> bool:
        """Did JobSet's controller make it."""
        return self.owner is not None and self.owner[1] == JOBSET.kind and self.owner[0].startswith(f"{JOBSET_GROUP}/")

    @property
    def runs(self) -> bool:
        """Is it started, and every pod that is due ready."""
        return not self.suspended and self.ready >= self.pods_expected

    def ready_of(self, pods: int) -> int:
        """Pods of a gang that has so many at a time which are ready, or done with none to follow."""
        # For a moment a job counts a pod beside the one that takes over from it.
        return min(pods, self.ready + min(self.succeeded, max(0, pods - self.pods_expected)))

    @property
    def kept_back(self) -> bool:
        """We hold it, or have held it and nobody started it since: whether it is queued or not."""
        return self.suspended and (self.labelled or self.ungoverned)


def runs(value: Workload, job: JobView | None) -> bool:
    """Does an admitted gang run. What is behind a bare Workload is not known, and is taken to."""
    return job.runs if job is not None else not value.job_uid


DELETED = "Deleted"
ORPHANED = "Orphaned"
ENDED = ("Succeeded", "Failed")


def leaving(
    value: Workload, job: JobView | None, *, deleted: bool, orphaned: bool, evicted: str = ""
) -> tuple[str, str] | None:
    """(reason, message) of a gang that holds quota and is on its way out: its job has come to its end (a reason of
    ENDED), it was evicted, or its job was deleted (DELETED), perhaps without its pods (ORPHANED). None when it stays,
    or holds nothing.

    deleted: its Workload is being deleted, which counts where the job is gone: that takes its Workload along.
    orphaned: its Workload has no owner (any more). evicted: what its eviction says.
    """
    if value.admission is None:
        return None
    if job is not None and (ended := job.finished or job.ending):
        return ended, job.message
    if value.evicted:
        return value.evicted, evicted
    if deleted if job is None else job.deleting:
        return DELETED, "It was deleted"
    if orphaned and value.job_uid:
        said = "Its job was deleted without its pods, which run on: it is charged until the last of them is gone"
        return ORPHANED, said
    return None


# ---------------------------------------------------------------- reading what anybody may have written


def obj(value: Any) -> Json:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[Json]:
    return [item for item in items(value) if isinstance(item, dict)]


def containers_of(pod_spec: Json) -> list[Json]:
    """Those that run, then those that start them."""
    return [*objects(pod_spec.get("containers")), *objects(pod_spec.get("initContainers"))]


def claim_templates(template: Json) -> list[str]:
    """ResourceClaimTemplates that a pod template names."""
    claims = objects(obj(template.get("spec")).get("resourceClaims"))
    return [name for one in claims if (name := text(one.get("resourceClaimTemplateName")))]


def _service_account(spec: Json) -> str:
    # A JobSet keeps the older name as its owner wrote it.
    return text(spec.get("serviceAccountName")) or text(spec.get("serviceAccount"))


def device_classes(template: Json) -> list[str]:
    """DeviceClasses that a pod template asks for by their own names."""
    names = set[str]()
    for container in containers_of(obj(template.get("spec"))):
        resources = obj(container.get("resources"))
        names.update(map(str, (*obj(resources.get("requests")), *obj(resources.get("limits")))))
    return [name.removeprefix(OF_DEVICE_CLASS) for name in names if name.startswith(OF_DEVICE_CLASS)]


def whole(value: Any, default: int) -> int:
    """An int32 that counts something: never negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        return default
    return min(max(value, 0), 2**31 - 1)


def digits(said: str) -> int | None:
    """A whole number that somebody wrote, of at most ten digits; None for anything else."""
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 10 else None


def json_of(said: str) -> Any:
    """What a text says in JSON; None where it cannot be read, or is so deep that it could not be written again."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return found if _is_within(found, 64) else None


def _is_within(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else items(value)
    return levels > 0 and all(_is_within(one, levels - 1) for one in inner)


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def texts(value: Any) -> dict[str, str]:
    """A map of strings; other entries are left out."""
    return {k: v for k, v in obj(value).items() if isinstance(v, str)}


def name_of(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("name"))


def namespace_of(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("namespace"))


def labels_of(raw: Json | None) -> dict[str, str]:
    """Of an object or a pod template."""
    return texts(obj(obj(raw).get("metadata")).get("labels"))


def annotations_of(raw: Json | None) -> dict[str, str]:
    return texts(obj(obj(raw).get("metadata")).get("annotations"))


def millis(stamp: Any) -> int:
    """An RFC 3339 time as ms since the epoch; 0 for anything else."""
    return _millis(stamp) if isinstance(stamp, str) and stamp else 0


@lru_cache(maxsize=4096)
def _millis(stamp: str) -> int:
    """Many objects carry the same few seconds."""
    try:
        at = datetime.fromisoformat(stamp)
        return round(at.timestamp() * 1000) if at.tzinfo else 0
    except (ValueError, OverflowError):
        return 0


def condition(raw: Json, kind: str) -> Json | None:
    """The condition of that type, if it is True."""
    found = condition_of(raw, kind)
    return found if found.get("status") == "True" else None


def condition_of(raw: Json, kind: str) -> Json:
    """The condition of that type, True or not; {} where there is none."""
    conditions = objects(obj(raw.get("status")).get("conditions"))
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def _ranges(listed: Any, below: int) -> list[tuple[int, int]]:
    """Indexes as the Job controller writes them, "1,3-5", as inclusive ranges below `below`."""
    ranges = []
    for part in text(listed).split(","):
        first, dash, last = part.partition("-")
        low, high = digits(first), digits(last if dash else first)
        if low is None or high is None:
            continue
        high = min(high, below - 1)
        if low <= high:
            ranges.append((low, high))
    return ranges


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


# ---------------------------------------------------------------- the owner's form


def at(raw: Json, path: Sequence[str]) -> Any:
    """What lies at a path of keys and list indexes; None where there is nothing."""
    here: Any = raw
    for key in path:
        if isinstance(here, dict):
            here = here.get(key)
        elif isinstance(here, list) and (index := digits(key)) is not None and index < len(here):
            here = here[index]
        else:
            return None
    return here


def inverse_of(raw: Json, names: Names) -> Json | None:
    """What was there before the start, from the annotation on the job itself; None when it was not started, or another
    controller has stopped it and started it since."""
    note = annotations_of(raw).get(names.inverse_annotation)
    return None if note is None or started_by_another(raw, names) else obj(json_of(note))


def started_by_another(raw: Json, names: Names) -> bool:
    """Do its pod templates say what a start writes, but not for which Workload, as we do?"""
    spec = obj(raw.get("spec"))
    templates = [spec.get("template"), *(at(entry, ("template", "spec", "template")) for _, entry in _replicated(raw))]
    labels = {key for one in templates for key in obj(obj(obj(one).get("metadata")).get("labels"))}
    return names.pod_set_label in labels and names.workload_uid_label not in labels


def owners_form(raw: Json, names: Names) -> Json:
    """The object with what a start wrote taken back. The argument is not changed; without a start it is the answer. A
    parallelism of 0 no start writes: its owner did since."""
    inverse = inverse_of(raw, names)
    if inverse is None:
        return raw
    out = copy.deepcopy(raw)
    for path, was in undoes(inverse):
        if path != PARALLELISM or at(raw, path) != 0:
            _put_back(out, path, was)
    annotations = obj(obj(out.get("metadata")).get("annotations"))
    annotations.pop(names.inverse_annotation, None)
    return out


PARALLELISM = ["spec", "parallelism"]


def undoes(inverse: Json) -> Iterator[tuple[list[str], list[Any]]]:
    """(path, [what was there] or []) of what a start writes. Of nothing else: a note may come with a manifest, by a
    tool that has all rights and applies what anybody wrote."""
    for entry in items(inverse.get("undo")):
        path = items(entry[0]) if isinstance(entry, list) and entry else []
        if all(isinstance(key, str) for key in path) and _is_of_a_start(path):
            yield path, entry[1:]


def _is_of_a_start(path: list[str]) -> bool:
    if path[:2] == ["spec", "replicatedJobs"] and path[3:6] == ["template", "spec", "template"]:
        at_template = path[6:]
    elif path[:2] == ["spec", "template"]:
        at_template = path[2:]
    else:
        return path == PARALLELISM
    match at_template:
        case ["metadata"] | ["metadata", "labels" | "annotations"] | ["metadata", "labels" | "annotations", _]:
            return True
        case ["spec", "nodeSelector"] | ["spec", "nodeSelector", _]:
            return True
        case ["spec", "tolerations" | "schedulingGates"]:
            return True
    return False


def _put_back(raw: Json, path: Sequence[str], was: Sequence[Any]) -> None:
    holder = at(raw, path[:-1])
    if not isinstance(holder, dict):
        return
    if was:
        holder[path[-1]] = was[0]
    else:
        holder.pop(path[-1], None)


def spec_hash(slots: Sequence[Slot], size: Any) -> str:
    """16 hex digits over the templates and what says how many pods there are."""
    return digest([size, [[slot.pod_set, slot.template, *([slot.notes] if slot.notes else ())] for slot in slots]])


def digest(said: object) -> str:
    """16 hex digits over what can be written as JSON."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- Job


def _job_size(spec: Json) -> tuple[int, int | None, bool]:
    """(parallelism, completions or None, indexed) of a JobSpec, defaults as Kubernetes has them."""
    completions = whole(spec["completions"], 1) if spec.get("completions") is not None else None
    parallelism = whole(spec.get("parallelism"), 1)
    if completions is None and spec.get("parallelism") is None:
        completions = 1
    return parallelism, completions, spec.get("completionMode") == "Indexed" and completions is not None


def _job_slots(raw: Json) -> tuple[Slot, ...]:
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    parallelism, completions, indexed = _job_size(spec)
    succeeded = whole(status.get("succeeded"), 0)
    done: tuple[tuple[int, int], ...] = ()
    if completions is None:
        # Once a pod of a work queue has succeeded, no more are made.
        count = parallelism if not succeeded else 0
    else:
        if indexed:
            done = _merged(
                _ranges(status.get("completedIndexes"), completions) + _ranges(status.get("failedIndexes"), completions)
            )
            left = completions - sum(last - first + 1 for first, last in done)
        else:
            left = completions - succeeded
        count = min(parallelism, max(left, 0))
    ranked = indexed and completions is not None and parallelism >= completions
    return (
        Slot(
            pod_set=MAIN,
            path=("spec", "template"),
            template=obj(spec.get("template")),
            count=count,
            ranks=completions if ranked else None,
            done=done,
        ),
    )


def _job_outcome(raw: Json, slots: Sequence[Slot]) -> Outcome:
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    parallelism, completions, _ = _job_size(spec)
    count = slots[0].count
    done, failed = condition(raw, "Complete"), condition(raw, "Failed")
    met, missed = condition(raw, "SuccessCriteriaMet"), condition(raw, "FailureTarget")
    finished = "Succeeded" if done is not None else "Failed" if failed is not None else None
    ending = None if finished else "Succeeded" if met is not None else "Failed" if missed is not None else None
    end = done or failed or met or missed
    suspended = condition(raw, "Suspended")
    # Of a work queue no more are made, and those that run go on; of one that ends neither. An index fails when its pod
    # is deleted, before that has ended.
    left = whole(status.get("active"), 0) if completions is None or ending else count
    left += whole(status.get("terminating"), 0)
    return Outcome(
        suspended=suspended is not None,
        suspended_ms=millis(obj(suspended).get("lastTransitionTime")),
        probed_ms=millis(condition_of(raw, "Suspended").get("lastProbeTime")),
        started=status.get("startTime") is not None,
        active=whole(status.get("active"), 0),
        ready=whole(status.get("ready"), 0),
        succeeded=whole(status.get("succeeded"), 0),
        terminating=whole(status.get("terminating"), 0),
        finished=finished,
        ending=ending,
        message=text(end.get("message")) if end is not None else "",
        due=count,
        at_once=parallelism if completions is None else min(parallelism, completions),
        left=((MAIN, left),) if left < parallelism and (ending or _progressed(status)) else (),
    )


def _progressed(status: Json) -> bool:
    return bool(whole(status.get("succeeded"), 0) or text(status.get("failedIndexes")))


def _job_counts(raw: Json) -> Any:
    spec = obj(raw.get("spec"))
    return [*_job_size(spec)]


# ---------------------------------------------------------------- JobSet


def _replicated(raw: Json) -> list[tuple[int, Json]]:
    return [
        (index, entry)
        for index, entry in enumerate(items(obj(raw.get("spec")).get("replicatedJobs")))
        if isinstance(entry, dict)
    ]


def _jobset_slots(raw: Json) -> tuple[Slot, ...]:
    slots = []
    name = name_of(raw)
    made = claims_made(raw)
    succeeded = _jobs_done(raw)
    of_set = _exclusive_of(raw)
    for index, entry in _replicated(raw):
        spec = obj(obj(entry.get("template")).get("spec"))
        parallelism, completions, indexed = _job_size({"completionMode": "Indexed", **spec})
        replicas = whole(entry.get("replicas"), 1)
        pods = parallelism if completions is None else min(parallelism, completions)
        ranked = indexed and completions is not None and parallelism >= completions
        # Of a few that are done nobody says which.
        over = 0 < replicas <= succeeded.get(text(entry.get("name")), 0)
        ranks = replicas * (completions or 0) if ranked else None
        slots.append(
            Slot(
                pod_set=text(entry.get("name")),
                path=("spec", "replicatedJobs", str(index), "template", "spec", "template"),
                template=obj(spec.get("template")),
                count=0 if over else replicas * pods,
                ranks=ranks,
                done=((0, ranks - 1),) if over and ranks else (),
                stride=completions or 0 if ranked else 0,
                labels=((JOBSET_NAME_LABEL, name), (JOBSET_REPLICATED_JOB_LABEL, text(entry.get("name")))),
                notes=_exclusive_notes(of_set, entry),
                volumes=_mounted(obj(obj(spec.get("template")).get("spec")), made),
                replicas=replicas,
                per_job=pods,
            )
        )
    return tuple(slots)


def _jobs_done(raw: Json) -> dict[str, int]:
    """Replicated job -> child jobs that are done and do not run again, whether the set is stopped and started anew or
    not. A set that restarts makes them anew, so that nothing of it can be given away before its end; so does any set
    with those that are deleted once they are done."""
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    policy = obj(spec.get("failurePolicy"))
    if whole(policy.get("maxRestarts"), 0) > 0 or any(
        rule.get("action") == "RestartJobSetAndIgnoreMaxRestarts" for rule in objects(policy.get("rules"))
    ):
        return {}
    made_anew = {
        text(entry.get("name"))
        for _, entry in _replicated(raw)
        if obj(obj(entry.get("template")).get("spec")).get("ttlSecondsAfterFinished") is not None
    }
    return {
        name: whole(entry.get("succeeded"), 0)
        for entry in objects(status.get("replicatedJobsStatus"))
        if (name := text(entry.get("name"))) not in made_anew
    }


def claims_made(raw: Json) -> dict[str, tuple[str, Json]]:
    """Volume -> (PersistentVolumeClaim, its template) that JobSet's controller makes for a JobSet, held or not."""
    name = name_of(raw)
    return {
        volume: (f"{volume}-{name}", template)
        for policy in objects(obj(raw.get("spec")).get("volumeClaimPolicies"))
        for template in objects(policy.get("templates"))
        if (volume := name_of(template))
    }


def _mounted(pod_spec: Json, made: Mapping[str, tuple[str, Json]]) -> tuple[tuple[str, str], ...]:
    """Of claims that are made for a JobSet, those that pods get: whose container mounts a volume of that name."""
    if not made:
        return ()
    containers = containers_of(pod_spec)
    mounts = {text(mount.get("name")) for one in containers for mount in objects(one.get("volumeMounts"))}
    return tuple((volume, made[volume][0]) for volume in sorted(mounts & made.keys()))


def _exclusive_notes(of_set: dict[str, str], entry: Json) -> tuple[tuple[str, str], ...]:
    """What the pods of a replicated job say of exclusive placement: their template's word, over it the JobSet's, over
    it the Job template's."""
    pods, job = obj(at(entry, ("template", "spec", "template"))), obj(entry.get("template"))
    return tuple(sorted((_exclusive_of(pods) | of_set | _exclusive_of(job)).items()))


def _exclusive_of(holder: Json) -> dict[str, str]:
    """What it says by its annotations. The strategy counts only beside the annotation that it belongs to."""
    said = obj(obj(holder.get("metadata")).get("annotations"))
    if not isinstance(said.get(JOBSET_EXCLUSIVE_TOPOLOGY), str):
        return {}
    return {
        key: said[key] for key in (JOBSET_EXCLUSIVE_TOPOLOGY, JOBSET_NODE_SELECTOR) if isinstance(said.get(key), str)
    }


def starts_together(raw: Json) -> bool:
    """Do all pods of a job start at once? Those that come later may find that the first have ended."""
    spec = obj(raw.get("spec"))
    in_order = obj(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    return not in_order and not any(entry.get("dependsOn") for entry in objects(spec.get("replicatedJobs")))


def _jobset_outcome(raw: Json, slots: Sequence[Slot]) -> Outcome:
    spec, status = obj(raw.get("spec")), obj(raw.get("status"))
    by_name = {text(entry.get("name")): entry for entry in objects(status.get("replicatedJobsStatus"))}
    entries = {text(entry.get("name")): entry for _, entry in _replicated(raw)}
    replicas_of = {slot.pod_set: slot.replicas for slot in reversed(slots)}
    in_order = obj(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    over = _jobs_done(raw)
    due = active = ready = succeeded = 0
    before_ready = True
    left = []
    for slot in slots:
        state = by_name.get(slot.pod_set, {})
        jobs_done = min(whole(state.get("succeeded"), 0), slot.replicas)
        jobs_ready = whole(state.get("ready"), 0) + jobs_done
        per_job = slot.per_job
        # The set counts its child jobs; a child is ready, or done, with all of its pods.
        active += whole(state.get("active"), 0) * per_job
        ready += whole(state.get("ready"), 0) * per_job
        succeeded += jobs_done * per_job
        # What has begun runs on, whatever becomes of what came before.
        begun = bool(whole(state.get("active"), 0) or jobs_ready)
        waits = in_order and not before_ready
        for dependency in objects(entries.get(slot.pod_set, {}).get("dependsOn")):
            other = by_name.get(text(dependency.get("name")), {})
            replicas = replicas_of.get(text(dependency.get("name")), 0)
            reached = whole(other.get("succeeded"), 0)
            if dependency.get("status") != "Complete":
                reached += whole(other.get("ready"), 0)
            waits = waits or reached < replicas
        if begun or not waits:
            due += (slot.replicas - jobs_done) * per_job
        before_ready = before_ready and jobs_ready >= slot.replicas
        if jobs_over := min(over.get(slot.pod_set, 0), slot.replicas):
            left.append((slot.pod_set, (slot.replicas - jobs_over) * per_job))
    done, failed = condition(raw, "Completed"), condition(raw, "Failed")
    end, suspended = done or failed, condition(raw, "Suspended")
    return Outcome(
        suspended=suspended is not None,
        suspended_ms=millis(obj(suspended).get("lastTransitionTime")),
        active=active,
        ready=ready,
        succeeded=succeeded,
        finished=None if end is None else "Succeeded" if done is not None else "Failed",
        message=text(end.get("message")) if end is not None else "",
        due=due,
        at_once=sum(slot.replicas * slot.per_job for slot in slots),
        left=tuple(left),
    )


def _jobset_counts(raw: Json) -> Any:
    out = []
    for _, entry in _replicated(raw):
        spec = obj(obj(entry.get("template")).get("spec"))
        out.append([text(entry.get("name")), whole(entry.get("replicas"), 1), *_job_size(spec)])
    return out


JOB = JobKind(
    kind="Job",
    group="batch",
    version="v1",
    plural="jobs",
    slots=_job_slots,
    outcome=_job_outcome,
    size=_job_counts,
    frozen_by_start_time=True,
    run_by="kubernetes.io/job-controller",
)
JOBSET = JobKind(
    kind="JobSet",
    group=JOBSET_GROUP,
    version="v1alpha2",
    plural="jobsets",
    slots=_jobset_slots,
    outcome=_jobset_outcome,
    size=_jobset_counts,
    fixed_template=True,
    run_by="jobset.sigs.k8s.io/jobset-controller",
)
KINDS = (JOB, JOBSET)
KIND_OF: Mapping[str, JobKind] = {kind.kind: kind for kind in KINDS}


def kind_of(raw: Json) -> JobKind | None:
    """The kind of an object, by its group and kind, whatever its version."""
    group = text(raw.get("apiVersion")).partition("/")[0]
    return next((kind for kind in KINDS if (kind.group, kind.kind) == (group, raw.get("kind"))), None)


def owner_in(references: Iterable[Json]) -> tuple[str, str]:
    """(kind, name) of the controller among owner references; "" where there is none. Other groups have kinds of the
    same name as ours: of one of theirs the group stands behind it, KIND.GROUP."""
    ref = next((one for one in references if one.get("controller") is True), {})
    kind, group = text(ref.get("kind")), text(ref.get("apiVersion")).rpartition("/")[0]
    ours = KIND_OF[kind].group if kind in KIND_OF else group
    return kind if not group or group == ours else f"{kind}.{group}", text(ref.get("name"))


YES_OR_NO: Mapping[str, bool] = {"true": True, "false": False}
KUEUES_YES_OR_NO: Mapping[str, bool] = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
"""Of annotations that Kueue has, too: as Go reads them."""


def survives_a_pod(kind: JobKind, raw: Json, names: Names) -> bool:
    """Does its owner say so, and is it so?"""
    annotations = annotations_of(raw)
    if annotations.get(names.replace_lost_pods_annotation) != "true":
        return False
    return _outlives_a_pod(kind, raw, whole(obj(raw.get("status")).get("failed"), 0))


def _outlives_a_pod(kind: JobKind, raw: Json, failed: int) -> bool:
    """Does it go on after another pod that is stopped? failed: pods that failed already."""
    return all(_goes_on(job, failed if kind is JOB else 0) for job in _job_specs(kind, raw))


def _job_specs(kind: JobKind, raw: Json) -> list[Json]:
    """Of a Job, and of those that a JobSet makes."""
    if kind is JOB:
        return [obj(raw.get("spec"))]
    return [obj(obj(entry.get("template")).get("spec")) for _, entry in _replicated(raw)]


def _replaces_failed_only(spec: Json) -> bool:
    """As the API server fills it in: a podFailurePolicy asks for it."""
    said = spec.get("podReplacementPolicy")
    return said == "Failed" or (said is None and spec.get("podFailurePolicy") is not None)


def _goes_on(spec: Json, failed: int) -> bool:
    """A pod that is deleted counts against the backoffLimit, unless the first rule that applies to it says otherwise.
    Those by exit codes may apply, or not: its node may be too ill to say any."""
    may_count = False
    for rule in objects(obj(spec.get("podFailurePolicy")).get("rules")):
        action, by_codes = rule.get("action"), _applies_to_a_stopped_pod(obj(rule.get("onExitCodes")))
        by_condition = any(
            pattern.get("type") == "DisruptionTarget" and pattern.get("status", "True") == "True"
            for pattern in objects(rule.get("onPodConditions"))
        )
        if action in ("FailJob", "FailIndex") and (by_codes or by_condition):
            return False
        if by_condition and action == "Ignore" and not may_count:
            return True
        if by_condition:
            break
        may_count = may_count or (by_codes and action == "Count")
    return _failures_left(spec, failed)


def _applies_to_a_stopped_pod(codes: Json) -> bool:
    """By SIGTERM, and by SIGKILL after that."""
    values, inside = items(codes.get("values")), codes.get("operator") == "In"
    return bool(codes) and any((code in values) is inside for code in (143, 137))


def _failures_left(spec: Json, failed: int) -> bool:
    if spec.get("backoffLimitPerIndex") is not None:
        in_all = spec.get("backoffLimit") is None or whole(spec["backoffLimit"], 0) > failed
        return in_all and whole(spec.get("backoffLimitPerIndex"), 0) > 0
    return whole(spec["backoffLimit"], 0) > failed if spec.get("backoffLimit") is not None else failed < 6


# ---------------------------------------------------------------- the view


def view(kind: JobKind, raw: Json, names: Names, *, every: bool = False) -> JobView:
    """What the controller keeps of an object. Never raises; what is wrong with the object is in `problems`. every: jobs
    without a queue label are queued, too."""
    meta, spec = obj(raw.get("metadata")), obj(raw.get("spec"))
    labels, annotations = texts(meta.get("labels")), texts(meta.get("annotations"))
    queue = labels.get(names.queue_label, "")
    inverse = inverse_of(raw, names)
    owned = raw if inverse is None else owners_form(raw, names)
    slots = kind.slots(owned)
    # How it goes is asked of what runs: a gang that was admitted in part has less parallelism than its owner wrote.
    outcome = kind.outcome(raw, slots if inverse is None else kind.slots(raw))
    owner = next((ref for ref in objects(meta.get("ownerReferences")) if ref.get("controller") is True), None)
    limit, unread = said_by_labels(labels, annotations, names)
    fewest, cannot_be = fewest_pods(kind, owned, slots, names)
    problems = [*_problems(kind, slots, inverse), *unread, *cannot_be]
    specs = [obj(slot.template.get("spec")) for slot in slots]
    to_run = [spec for spec, slot in zip(specs, slots, strict=True) if slot.count]
    return JobView(
        kind=kind.kind,
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        resource_version=text(meta.get("resourceVersion")),
        generation=whole(meta.get("generation"), 0),
        queue=queue,
        labelled=names.queue_label in labels,
        ungoverned=names.ungoverned_label in labels,
        priority_class=labels.get(names.priority_class_label, ""),
        pod_priority_class=next((found for spec in specs if (found := text(spec.get("priorityClassName")))), ""),
        pod_priority_classes=tuple(sorted({text(spec.get("priorityClassName")) for spec in to_run} - {""})),
        runtime_classes=tuple(sorted({text(spec.get("runtimeClassName")) for spec in specs} - {""})),
        claim_templates=tuple(sorted({name for slot in slots for name in claim_templates(slot.template)})),
        device_classes=tuple(sorted({name for slot in slots for name in device_classes(slot.template)})),
        service_accounts=tuple(sorted({_service_account(spec) for spec in to_run} - {"", "default"})),
        owner=None
        if owner is None
        else (text(owner.get("apiVersion")), text(owner.get("kind")), text(owner.get("uid"))),
        suspended=spec.get("suspend") is True,
        suspended_condition=outcome.suspended,
        suspended_ms=outcome.suspended_ms,
        probed_ms=outcome.probed_ms,
        start_time_set=outcome.started,
        active=outcome.active,
        ready=outcome.ready,
        succeeded=outcome.succeeded,
        terminating=outcome.terminating,
        finished=outcome.finished,
        ending=outcome.ending,
        message=outcome.message,
        deleting=meta.get("deletionTimestamp") is not None,
        created_ms=millis(meta.get("creationTimestamp")),
        arrival=f"{text(meta.get('creationTimestamp'))}/{text(meta.get('resourceVersion')):0>12}"
        if queue or every
        else "",
        counts=tuple((slot.pod_set, slot.count) for slot in slots),
        # Jobs that nobody queues cost nothing.
        spec_hash=spec_hash(slots, kind.size(owned)) if queue or every or inverse is not None else "",
        pods_expected=outcome.due,
        pods_at_once=outcome.at_once,
        left=outcome.left,
        started=inverse is not None,
        started_for=text(inverse.get("for")) if inverse is not None else "",
        started_by_another=started_by_another(raw, names),
        marked_for=labels_of(spec.get("template")).get(names.workload_uid_label, "") if kind is JOB else "",
        template_frozen=kind.frozen_by_start_time,
        paused=labels.get(names.pause_label) == "true",
        gated_by=annotations.get(names.gated_by_annotation, ""),
        max_execution_s=limit,
        gates=inverse is not None and "gates" in items(inverse.get("forms")),
        survives=survives_a_pod(kind, raw, names),
        fewest=fewest,
        waits_for_failed=any(map(_replaces_failed_only, _job_specs(kind, raw))),
        problems=tuple(problems),
        unknown_keys=unknown_keys(kind, owned, slots, names) if queue or every or inverse is not None else (),
    )


def completions_follow(annotations: Mapping[str, str]) -> bool:
    """Does a job that may run in parts want its completions to be as many as its pods?"""
    return KUEUES_YES_OR_NO.get(annotations.get(EQUAL_COMPLETIONS, ""), False)


def fewest_pods(kind: JobKind, owned: Json, slots: Sequence[Slot], names: Names) -> tuple[int | None, list[str]]:
    """(with how many of its pods still to run a job may start, None: only with all; what is wrong with what it says of
    that). owned: as its owner wrote it."""
    annotations = annotations_of(owned)
    said = annotations.get(names.min_parallelism_annotation, "")
    if not said or kind is not JOB or completions_follow(annotations):
        return None, []
    enough, (parallelism, *_) = digits(said), _job_size(obj(owned.get("spec")))
    if enough is None or not 0 < enough <= parallelism:
        return None, [f"annotation {names.min_parallelism_annotation}: {said[:20]!r} is not from 1 to the parallelism"]
    # Of one that is partly done fewer may be left than that.
    return min(enough, slots[0].count) or None, []


def said_by_labels(
    labels: Mapping[str, str], annotations: Mapping[str, str], names: Names
) -> tuple[int | None, list[str]]:
    """(longest run time in seconds, what is wrong with the labels that say how long a job runs, whether at all, and by
    which Workload, which an annotation may say as well)."""
    problems = []
    limit, paused = labels.get(names.max_exec_time_label), labels.get(names.pause_label)
    seconds = digits(limit or "")
    good = seconds is not None and 0 < seconds < 2**31
    if limit is not None and not good:
        problems.append(
            f"label {names.max_exec_time_label}: {limit[:20]!r} is no number of seconds above 0: write 300 for five "
            "minutes, or leave the label out"
        )
    if paused not in (None, "true", "false"):
        problems.append(f"label {names.pause_label}: {paused[:20]!r} is neither 'true' nor 'false'")
    for form, said in (("label", labels), ("annotation", annotations)):
        if prebuilt := said.get(names.prebuilt_label):
            problems.append(
                f"{form} {names.prebuilt_label}: {prebuilt[:63]!r} would be charged beside the Workload that is made "
                f"for this job: take the {form} off, and delete that one"
            )
    return seconds if good else None, problems


_REPLICATED = "replicatedJobs[].template"
_MOST_UNKNOWN = 16
"""Keys that are told of a job. More an Event could not hold; and nobody looks for what thousands of them may mean."""
_MOST_MEANT = 2
"""Of so many it is said what they may mean: each is compared with all that are known, whenever the job changes."""


def unknown_keys(kind: JobKind, raw: Json, slots: Sequence[Slot], names: Names) -> tuple[str, ...]:
    """Labels and annotations of our group, on a job, on its pod templates and on what a JobSet makes its Jobs of, that
    say nothing where they stand: their keys are not known or read elsewhere (in Kueue's group, where others have keys,
    nobody knows that), or their values are none that count. Of many the first."""
    said: dict[tuple[str, str], dict[str, set[str]]] = {}
    ours = f"{names.group}/"
    pods = [obj(slot.template.get("metadata")) for slot in slots]
    jobs = [obj(obj(entry.get("template")).get("metadata")) for _, entry in _replicated(raw)]
    for place, metas in (("job", [obj(raw.get("metadata"))]), ("pods", pods), (_REPLICATED, jobs)):
        for form in ("label", "annotation"):
            found: dict[str, set[str]] = {}
            for meta in metas:
                for key, value in texts(meta.get(f"{form}s")).items():
                    if key.startswith(ours):
                        found.setdefault(key, set()).add(value)
            if found:
                said[form, place] = found
    out: list[str] = []
    for (form, place), keys in said.items():
        for key in sorted(keys):
            if len(out) >= _MOST_UNKNOWN:
                return tuple(out)
            wrong = (
                [] if names.as_kueue else [_unread_there(form, place, key, names, said, near=len(out) < _MOST_MEANT)]
            )
            if not any(wrong):
                wrong = [_no_value(kind, raw, key, value, names) for value in sorted(keys[key])]
            out += [f"{form} {key}{'' if place == 'job' else f' of {place}'}, {one}" for one in wrong if one]
    return tuple(out)


def _unread_there(
    form: str, place: str, key: str, names: Names, said: Mapping[tuple[str, str], Mapping[str, object]], *, near: bool
) -> str:
    """Why a key says nothing at its place, whatever its value; "" where it is read, and where it stands there, too, as
    with tools that put the same on a job and its pods. near: with what it may mean."""
    read = next((where for where, keys in names.said_by_owners.items() if key in keys), None)
    if read is None:
        if key in names.said_of_workloads:
            return "which is read of Workloads only"
        if key in names.all_keys:
            return ""
        return f"which is not known{_meant(key, names) if near else ''}"
    if key in said.get(read, ()):
        return ""
    if form != read[0]:
        return f"which is read as {read[0]} only"
    job = "the JobSet" if place == _REPLICATED else "the job"
    return f"which is read of {'pod templates' if read[1] == 'pods' else job} only"


@lru_cache(maxsize=256)  # a job is read again whenever it changes
def _meant(key: str, names: Names) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, sorted(frozenset().union(*names.said_by_owners.values())), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _no_value(kind: JobKind, raw: Json, key: str, value: str, names: Names) -> str:
    """Why what a key says changes nothing; "" where it counts, says nothing, or is refused where it is read."""
    if not value:
        return ""
    if key == names.min_parallelism_annotation and kind is not JOB:
        return "which is read of Jobs only"
    if key == names.min_parallelism_annotation and completions_follow(annotations_of(raw)):
        return (
            f"which does not count beside {EQUAL_COMPLETIONS}, for the completions would stay as they are: it waits "
            "for room for all of its pods"
        )
    read = {names.replace_lost_pods_annotation: YES_OR_NO, names.unconstrained_topology_annotation: KUEUES_YES_OR_NO}
    if key in read and value not in read[key]:
        return f"whose value {value[:20]!r} is neither 'true' nor 'false'"
    if key == names.replace_lost_pods_annotation and value == "true" and not _outlives_a_pod(kind, raw, 0):
        return (
            "which counts only where a pod that is stopped does not fail its Job: give that a backoffLimit above 0, or "
            "a podFailurePolicy that ignores DisruptionTarget, and no rule that fails it for that, or for exit code "
            "143 or 137"
        )
    return ""


def _problems(kind: JobKind, slots: Sequence[Slot], inverse: Mapping[str, Any] | None) -> list[str]:
    problems = []
    if not slots:
        problems.append(f"the {kind.kind} has no pod template")
    problems.extend(
        f"pod set {slot.pod_set!r} has no containers"
        for slot in slots
        if not objects(obj(slot.template.get("spec")).get("containers"))
    )
    times = Counter(slot.pod_set for slot in slots)
    problems.extend(f"pod set {name!r} stands twice" for name in sorted(times) if times[name] > 1)
    if inverse is not None and not isinstance(inverse.get("undo"), list):
        problems.append("the annotation that says how to restore the template cannot be read")
    return problems
