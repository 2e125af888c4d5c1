"""From Kueue to Muster in one cluster: quota is carried over, what runs goes on running, what waits waits with Muster.

`quota` translates objects; `from_cluster` reads a cluster in which Kueue has managed jobs, and gives, for each job,
what Muster needs to know of it: its queue label, and where it runs already, a Workload with the same admission, made
before the label, so that at no time a running job looks like one that was never admitted. Every step can be repeated.

Two controllers must not manage the same jobs: nothing is written while Kueue's webhooks are there or its controller
runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from admission.controller import change
from admission.controller.ask import LEASES, NODES, Ask, newest, resource_of
from admission.controller.change import Change, Changes, Did
from admission.controller.conditions import condition
from admission.jobs import values
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.jobs.kinds import JobKind, JobView, Operation, at, millis, obj, objects, text, texts, view, whole
from admission.jobs.pins import pointer
from admission.jobs.workload import build_workload, matches
from admission.kube.client import AlreadyExists, ApiError, Kind, NotFound
from admission.names import (
    ADMITTED,
    DEFAULT_QUEUE,
    EVICTED,
    FINISHED,
    JOBSET_GROUP,
    KUEUE_GROUP,
    QUOTA_RESERVED,
    Names,
)

Json = dict[str, Any]
Keys = dict[str, str | None]
"""Labels or annotations to write; None takes one off."""
KUEUE = Names(KUEUE_GROUP)
MUSTER = Names()
ELSEWHERE = {
    "MultiKueueCluster": "Muster sends no jobs to other clusters",
    "MultiKueueConfig": "Muster sends no jobs to other clusters",
    "ProvisioningRequestConfig": "Muster makes no ProvisioningRequests",
}
_PLURALS = {
    "MultiKueueCluster": "multikueueclusters",
    "MultiKueueConfig": "multikueueconfigs",
    "ProvisioningRequestConfig": "provisioningrequestconfigs",
}
_CONTROLLERS = {
    f"{KUEUE_GROUP}/multikueue": "Muster sends no jobs to other clusters",
    f"{KUEUE_GROUP}/provisioning-request": "Muster makes no ProvisioningRequests",
}
"""Of admission checks that Kueue itself answers."""
_OLDER = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}
"""Values of spec.flavorFungibility in v1beta1."""
_ELASTIC_GATE = f"{KUEUE_GROUP}/elastic-job"
"""Kueue puts it into the template of an elastic job when that is created, and takes it off each pod."""
_EQUAL = f"{KUEUE_GROUP}/job-completions-equal-parallelism"
_KINDS = {kind for kind, _, _ in change.QUOTA_KINDS}
_CRON_JOBS = Kind("batch", "v1", "cronjobs", "CronJob", True)
_HOOKS = "admissionregistration.k8s.io"
_WEBHOOKS = (
    Kind(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False),
    Kind(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
)
_DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
_MANAGERS = "control-plane=controller-manager"
"""Label of Kueue's Deployment, from its manifests as from its chart, and of some others'."""
_LEASE = f"c1f6bfd2.{KUEUE_GROUP}"
"""Of Kueue's leader, in whatever namespace it runs."""
_HOOK_PATHS = tuple(f"/{verb}-{KUEUE_GROUP.replace('.', '-')}-" for verb in ("validate", "mutate"))
"""How the paths begin of the webhooks for Kueue's own kinds, whatever the release and its Service are called."""


def quota(given: Sequence[Json], names: Names | None = None) -> list[Json]:
    """Kueue's quota objects (v1beta1 or v1beta2) as Muster's; what Muster has no kind for is left as it is."""
    return [_translated(one, names or Names()) if _of_kueue(one, _KINDS) else one for one in given]


def _of_kueue(one: Json, kinds: Iterable[str]) -> bool:
    return text(one.get("apiVersion")).partition("/")[0] == KUEUE_GROUP and text(one.get("kind")) in kinds


def _translated(one: Json, names: Names) -> Json:
    out = change.as_written(one)
    out["apiVersion"] = names.api_version
    for field in ("labels", "annotations"):
        kept = {k: v for k, v in texts(obj(out.get("metadata")).get(field)).items() if not _is_kueues(k)}
        out["metadata"].pop(field, None)
        if kept:
            out["metadata"][field] = kept
    spec = out.get("spec")
    if not isinstance(spec, dict):
        return out
    if one.get("kind") == "ClusterQueue":
        if "cohort" in spec:  # v1beta1
            spec["cohortName"] = spec.pop("cohort")
        if isinstance(spec.get("admissionChecks"), list):  # v1beta1
            rules = [{"name": name} for name in spec.pop("admissionChecks")]
            spec.setdefault("admissionChecksStrategy", {"admissionChecks": rules})
        if isinstance(spec.get("flavorFungibility"), dict):
            spec["flavorFungibility"] = {
                key: _OLDER.get(said, said) if isinstance(said, str) else said
                for key, said in spec["flavorFungibility"].items()
            }
        # Left out, it means Never to Kueue and Any to Muster.
        preemption = dict(obj(spec.get("preemption")))
        spec["preemption"] = {"reclaimWithinCohort": "Never", **preemption}
    if one.get("kind") == "Cohort" and "parent" in spec:  # v1alpha1
        spec["parentName"] = spec.pop("parent")
    return out


def _is_kueues(key: str) -> bool:
    return key.partition("/")[0].endswith(KUEUE_GROUP)


async def from_cluster(ask: Ask, *, apply: bool) -> Changes:
    """What becomes of all that Kueue has here; with `apply`, it is done, unless something of it is refused.

    `ask.names` are Muster's own, or it is refused. Raises ApiError when nobody answers.
    """
    if lacking := await _lacking(ask) or await _unread(ask):
        return Changes(lacking, True, ask.hidden)
    did = Did.REFUSED if apply else Did.SKIPPED
    # First: where nobody answers them any more, the dry run of every job would fail.
    blocked = tuple(replace(one, did=did) for one in (*await _still_there(ask), *await _still_runs(ask)))
    if blocked and apply:
        return Changes(blocked, True, ask.hidden)
    first = (*blocked, *_unseen(ask))
    found = await _read(ask)
    done = await _put_all(ask, found, dry_run=True)
    if apply and not done.refused:
        done = await _put_all(ask, found, dry_run=False)
    return replace(done, rows=(*first, *done.rows))


async def from_files(ask: Ask, given: Sequence[Json], namespace: str, *, apply: bool) -> Changes:
    """The same of Kueue's quota objects in files, without jobs; `namespace` is that of objects which name none."""
    if lacking := await _lacking(ask):
        return Changes(lacking, True, ask.hidden)
    tried = await _put_quota(ask, given, namespace, dry_run=True)
    if not apply or tried.refused:
        return tried
    return await _put_quota(ask, given, namespace, dry_run=False)


async def _lacking(ask: Ask) -> tuple[Change, ...]:
    """Why nothing can be carried over; nothing when it can."""
    subject, why = f"customresourcedefinition/workloads.{MUSTER.group}", ""
    if not await ask.served(_kind(MUSTER, "Workload", "workloads", namespaced=True)):
        why = "Muster's CRDs are not installed: that is step 1 (kubectl apply --server-side -k crds)"
    elif ask.names.group != MUSTER.group:
        why = f"objects are carried over into {MUSTER.group} alone: leave out --api-group {ask.names.group}"
    return (Change(subject, Did.REFUSED, message=why),) if why else ()


async def _unread(ask: Ask) -> tuple[Change, ...]:
    """Why what Kueue has cannot be read; nothing when it can."""
    kind = _kind(KUEUE, "Workload", "workloads", namespaced=True)
    if await ask.served(kind):
        return ()
    older = await ask.served(Kind(kind.group, "v1beta1", kind.plural, kind.kind, True))
    why = f"this cluster serves only {KUEUE_GROUP}/v1beta1: upgrade Kueue first"
    why = why if older else f"this cluster does not serve {KUEUE_GROUP}: there is nothing to carry over"
    return (Change(f"customresourcedefinition/workloads.{KUEUE_GROUP}", Did.REFUSED, message=why),)


def _kind(names: Names, kind: str, plural: str, *, namespaced: bool) -> Kind:
    return Kind(names.group, names.version, plural, kind, namespaced)


async def _read(ask: Ask) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for kind, plural, namespaced in (
        *change.QUOTA_KINDS,
        ("Workload", "workloads", True),
        *((kind, _PLURALS[kind], False) for kind in ELSEWHERE),
    ):
        found[kind] = list(await ask.read(_kind(KUEUE, kind, plural, namespaced=namespaced), None) or ())
    return found


async def _still_there(ask: Ask) -> list[Change]:
    """Kueue's webhook configurations."""
    out = []
    for kind in _WEBHOOKS:
        for one in await ask.read(kind) or ():
            if any(_is_kueues_hook(obj(hook.get("clientConfig"))) for hook in objects(one.get("webhooks"))):
                name = text(obj(one.get("metadata")).get("name"))
                why = "Kueue is still there: scale its controller to 0 and delete this before --apply"
                out.append(Change(f"{kind.kind.lower()}/{name}", Did.REFUSED, message=why))
    return out


async def _still_runs(ask: Ask) -> list[Change]:
    """Kueue's controller: its Deployment, or else the Lease of one that runs elsewhere or is just ending."""
    out = []
    for one in await ask.read(_DEPLOYMENTS, label_selector=_MANAGERS) or ():
        where, name = change.key_of(one)
        asked = whole(obj(one.get("spec")).get("replicas"), 1)
        there = max(asked, whole(_status(one).get("replicas"), 0))
        if there and _is_kueues_manager(one):
            scale = f"kubectl -n {where} scale deployment {name} --replicas=0"
            why = f"Kueue runs ({there} replicas): {scale}" if asked else f"Kueue ends ({there} replicas): wait for it"
            out.append(Change(f"deployment/{name}", Did.REFUSED, where, why))
    for lease in () if out else await ask.read(LEASES, field_selector=f"metadata.name={_LEASE}") or ():
        if not ask.led_by_nobody(lease):
            holder, (where, name) = text(obj(lease.get("spec")).get("holderIdentity")), change.key_of(lease)
            why = f"Kueue leads ({holder}), or did a moment ago: stop it where it runs, and wait until this has ended"
            out.append(Change(f"lease/{name}", Did.REFUSED, where, why))
    return out


def _is_kueues_manager(deployment: Json) -> bool:
    labels = _held(deployment, "labels")
    return labels.get("app.kubernetes.io/name") == "kueue" or _name(deployment).endswith("kueue-controller-manager")


def _unseen(ask: Ask) -> tuple[Change, ...]:
    """What is said where one may not see whether Kueue runs."""
    hidden = [
        kind.plural for kind in (_DEPLOYMENTS, LEASES) if any(h.startswith(f"{kind.plural} ") for h in ask.hidden)
    ]
    why = (
        f"you may not list {' and '.join(hidden)} of all namespaces, which say whether Kueue still runs: be sure that "
    )
    why += "it does not before --apply"
    return (Change("deployment/kueue-controller-manager", Did.SKIPPED, message=why),) if hidden else ()


def _is_kueues_hook(client: Json) -> bool:
    """Not by the rules of the webhook: a policy engine may have some for Kueue's group, too."""
    service, url = obj(client.get("service")), text(client.get("url"))
    called = f"{text(service.get('name'))} {url}"
    return "kueue" in called or any(path in f"{text(service.get('path'))} {url}" for path in _HOOK_PATHS)


async def _put_all(ask: Ask, found: dict[str, list[Json]], *, dry_run: bool) -> Changes:
    given = [one for kind, of_kind in found.items() if kind != "Workload" for one in of_kind]
    put = await _put_quota(ask, given, "", dry_run=dry_run)
    rows = [*put.rows, *await _jobs(ask, found, dry_run=dry_run), *await _cron_jobs(ask)]
    return Changes(tuple(rows), dry_run, ask.hidden)


async def _put_quota(ask: Ask, given: Sequence[Json], namespace: str, *, dry_run: bool) -> Changes:
    translated = quota([one for one in given if not _of_kueue(one, ELSEWHERE)], ask.names)
    rows = [
        Change(f"{text(one.get('kind')).lower()}/{_name(one)}", Did.SKIPPED, message=ELSEWHERE[one["kind"]])
        for one in given
        if _of_kueue(one, ELSEWHERE)
    ]
    # Files may name checks that only the cluster has.
    there = await ask.read(_kind(KUEUE, "AdmissionCheck", "admissionchecks", namespaced=False))
    refused = _checks_of_kueue(translated, there or ())
    away = {row.subject for row in refused}  # they have their rows already
    put = await change.put(
        ask,
        [one for one in translated if f"{text(one.get('kind')).lower()}/{_name(one)}" not in away],
        namespace,
        dry_run=dry_run,
    )
    nodes = [texts(obj(node.get("metadata")).get("labels")) for node in await ask.read(NODES) or ()]
    flavors = {_name(one): obj(one.get("spec")) for one in translated if one.get("kind") == "ResourceFlavor"}
    rows += refused
    rows += [row if row.did is Did.REFUSED else _with_note(row, flavors, nodes) for row in put.rows]
    return Changes(tuple(rows), dry_run, ask.hidden)


def _checks_of_kueue(given: Sequence[Json], there: Sequence[Json]) -> list[Change]:
    """Checks that only Kueue answers: jobs of a queue that asks one would wait for ever."""

    def answered_by_kueue(checks: Iterable[Json]) -> dict[str, str]:
        said = {_name(one): text(obj(one.get("spec")).get("controllerName")) for one in checks}
        return {name: _CONTROLLERS[controller] for name, controller in said.items() if controller in _CONTROLLERS}

    own = answered_by_kueue(one for one in given if one.get("kind") == "AdmissionCheck")
    theirs = answered_by_kueue(there) | own
    rows = [Change(f"admissioncheck/{name}", Did.SKIPPED, message=why) for name, why in own.items()]
    for one in given:
        rules = objects(obj(obj(one.get("spec")).get("admissionChecksStrategy")).get("admissionChecks"))
        used = [name for rule in rules if (name := text(rule.get("name"))) in theirs]
        if used and one.get("kind") == "ClusterQueue":
            why = f"it asks the admission check {used[0]} ({theirs[used[0]]}): take it out of the ClusterQueue first"
            rows.append(Change(f"clusterqueue/{_name(one)}", Did.REFUSED, message=why))
    return rows


def _with_note(row: Change, flavors: dict[str, Json], nodes: list[dict[str, str]]) -> Change:
    """What will be decided otherwise than before."""
    kind, _, name = row.subject.partition("/")
    note = ""
    if kind == "resourceflavor" and name in flavors:
        wanted = texts(flavors[name].get("nodeLabels"))
        if not any(all(labels.get(key) == value for key, value in wanted.items()) for labels in nodes):
            note = "no node has its labels now, and Muster admits onto nodes that are there: set spec.elastic where "
            note += "they are made"
    if kind == "localqueue" and name == DEFAULT_QUEUE:
        note = "it was the queue of jobs without a label: set localQueueDefaulting in Muster's configuration, or they "
        note += "start at once, and no queue is charged (docs/tasks/tenants.md)"
    return replace(row, message=note) if note else row


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class _Job:
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
class _Known:
    """What jobs may name, Kueue's and Muster's."""

    queues: frozenset[tuple[str, str]]
    classes: frozenset[str]


async def _jobs(ask: Ask, found: dict[str, list[Json]], *, dry_run: bool) -> list[Change]:
    rows: list[Change] = []
    workloads = found["Workload"]
    seen: set[str] = set()
    by_owner = _by_owner(workloads)
    ours = _by_owner(await ask.read(ask.workloads) or ())
    classes = ask.kind("workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False)
    known = _Known(
        frozenset(change.key_of(one) for one in (*found["LocalQueue"], *(await ask.read(ask.local_queues) or ()))),
        frozenset(_name(one) for one in (*found["WorkloadPriorityClass"], *(await ask.read(classes) or ()))),
    )
    jobs = [(kind, raw) for kind in JOB_KINDS for raw in await ask.read(resource_of(kind)) or ()]
    children = _by_owner(raw for _, raw in jobs)
    for kind, raw in jobs:
        job = view(kind, raw, KUEUE)
        seen.add(job.uid)
        child = job.owner is not None and job.owner[0].startswith(f"{JOBSET_GROUP}/")
        # Of a kind that Muster does not manage: its row is that of its owner's Workload.
        child = child or (job.owner is not None and job.uid not in by_owner and job.owner[2] in by_owner)
        if job.queue and job.finished is None and not child and not job.deleting:
            mine = newest(ours.get(job.uid, ()))
            one = _Job(kind, raw, job, _current(by_owner.get(job.uid, ())), mine, tuple(children.get(job.uid, ())))
            rows.append(await _job(ask, one, known, dry_run=dry_run))
    for workload in workloads:
        refs = objects(obj(workload.get("metadata")).get("ownerReferences"))
        if not _true(workload, FINISHED) and not any(text(ref.get("uid")) in seen for ref in refs):
            where, name = change.key_of(workload)
            rows.append(Change(f"workload/{name}", Did.SKIPPED, where, _not_managed(workload, refs)))
    return rows


def _not_managed(workload: Json, refs: list[Json]) -> str:
    """What becomes of something that is no Job and no JobSet."""
    kind = text(refs[0].get("kind")) if refs else ""
    what = f"it stands for {kind} {text(refs[0].get('name'))}" if refs else "it stands for no object"
    what += f" and {len(refs) - 1} more" if len(refs) > 1 else ""
    what += ", which Muster does not manage"
    runs = _true(workload, ADMITTED)
    then = "what it runs is not counted in any queue" if runs else "once Kueue is gone, nobody starts it"
    if kind == "Pod":
        # Pods of Deployments and the like have no finalizer.
        gate = "" if runs else f"Kueue's gate {KUEUE_GROUP}/admission and "
        then += f"; {gate}the finalizer {KUEUE_GROUP}/managed, if it has that, stay on it: docs/migrate.md, Plain Pods"
    return f"{what}: {then}"


async def _cron_jobs(ask: Ask) -> list[Change]:
    """Those that make jobs for Kueue. They are as their owners, or a GitOps tool, want them."""
    rows = []
    for one in await ask.read(_CRON_JOBS) or ():
        labels = _held(obj(obj(one.get("spec")).get("jobTemplate")), "labels")
        if labels.get(KUEUE.queue_label) and not labels.get(MUSTER.queue_label):
            where, name = change.key_of(one)
            why = f"its jobs name a queue of Kueue's alone, and would start at once: write {MUSTER.queue_label} into "
            why += "the labels of spec.jobTemplate"
            rows.append(Change(f"cronjob/{name}", Did.SKIPPED, where, why))
    return rows


def _by_owner(given: Iterable[Json]) -> dict[str, list[Json]]:
    out: dict[str, list[Json]] = {}
    for one in given:
        for ref in objects(obj(one.get("metadata")).get("ownerReferences")):
            out.setdefault(text(ref.get("uid")), []).append(one)
    return out


def _current(workloads: Iterable[Json]) -> Json | None:
    """The Workload by which a job stands. An elastic job that asks for more has a younger one that waits, beside the
    one by which it runs."""
    left = [one for one in workloads if not _true(one, FINISHED)]
    return newest([one for one in left if _true(one, ADMITTED) and not _true(one, EVICTED)] or left)


def _carried(one: _Job, names: Names) -> bool:
    """Is it Muster's already, with what has to be known of it? Not so once Kueue has had it again."""
    ours, theirs = one.ours, one.theirs
    if ours is None or names.queue_label not in _held(one.raw, "labels") or _decided(theirs) > _decided(ours):
        return False
    if one.view.suspended:
        return True
    if not isinstance(_status(ours).get("admission"), dict) or not _true(ours, ADMITTED):
        return False
    copied = _since(ours, ADMITTED) == _since(theirs, ADMITTED)
    return not copied or matches(ours, one.kind, one.raw, names)


def _decided(workload: Json | None) -> int:
    """When it was made, given room, or stopped, whatever came last, in ms."""
    made = millis(obj(obj(workload).get("metadata")).get("creationTimestamp"))
    return max(made, *(_since(workload, kind) for kind in (QUOTA_RESERVED, ADMITTED, EVICTED)))


def _since(workload: Json | None, kind: str) -> int:
    return millis((condition(_status(workload), kind) or {}).get("lastTransitionTime"))


async def _job(ask: Ask, one: _Job, known: _Known, *, dry_run: bool) -> Change:
    """One job that is not finished: its labels and annotations, and before them, where it runs, its Workload."""
    names, job = ask.names, one.view
    subject = f"{job.kind.lower()}/{job.name}"
    # Later its owner may have changed, or taken off, what was carried over.
    carried = _carried(one, names)
    labels, annotations, notes = _wanted(one, names, carried=carried)
    template, lines = ([], []) if carried or not job.suspended else _template(one, names)
    after = _written(one.raw, labels, annotations, template)
    warned = _warned(one, after, known, names)
    try:
        if not carried and (why := _why_not(one)):
            return Change(subject, Did.REFUSED, job.namespace, why)
        if not carried and not job.suspended:
            problem = await _workload(ask, one, after, dry_run=dry_run)
            if problem:
                return Change(subject, Did.REFUSED, job.namespace, problem)
            lines.insert(0, f"Workload: {'as it was' if one.ours else '-'} -> admitted as Kueue admitted it")
        elif not carried and one.ours is not None and isinstance(_status(one.ours).get("admission"), dict):
            # By it Muster would start the job, into room that Kueue may have given away.
            await _remove(ask, one.ours, dry_run=dry_run)
            lines.insert(0, "Workload: admitted -> - (Kueue has stopped the job since)")
        for field, wanted in (("labels", labels), ("annotations", annotations)):
            held = _held(one.raw, field)
            lines += [
                f"metadata.{field}.{key}: {'taken off' if v is None else held.get(key, '-') + ' -> ' + v}"
                for key, v in wanted.items()
            ]
        await _write(ask, one, labels, annotations, template, dry_run=dry_run)
    except ApiError as error:
        said = change.refusal(error)
        why = f"its pod template, which says where its pods may go, cannot be changed: {said}"
        return Change(subject, Did.REFUSED, job.namespace, why if template and error.status < 500 else said)
    if not lines:
        return Change(subject, Did.UNCHANGED, job.namespace, "; ".join(warned))
    return Change(subject, Did.CHANGED, job.namespace, "; ".join([*notes, *warned]), tuple(lines))


async def _write(
    ask: Ask, one: _Job, labels: Keys, annotations: Keys, template: list[Operation], *, dry_run: bool
) -> None:  # fmt: skip
    """What is wanted of a job, in one write."""
    path = resource_of(one.kind).path(one.view.namespace, one.view.name)
    fields = {field: said for field, said in (("labels", labels), ("annotations", annotations)) if said}
    if template:
        # A merge patch would replace the list of a JobSet's templates whole.
        exactly = (("uid", one.view.uid), ("resourceVersion", one.view.resource_version))
        patch: list[Operation] = [
            *({"op": "test", "path": f"/metadata/{field}", "value": value} for field, value in exactly),
            *(
                {"op": "add", "path": f"/metadata/{field}", "value": _merged(_held(one.raw, field), said)}
                for field, said in fields.items()
            ),
            *template,
        ]
        await ask.client.json_patch(path, patch, dry_run=dry_run, field_manager=change.MANAGER)
    elif fields:
        merged = {"metadata": {"uid": one.view.uid, **fields}}
        await ask.client.merge_patch(path, merged, dry_run=dry_run, field_manager=change.MANAGER)


def _merged(held: dict[str, str], wanted: Keys) -> dict[str, str]:
    return {key: value for key, value in {**held, **wanted}.items() if value is not None}


def _written(raw: Json, labels: Keys, annotations: Keys, template: list[Operation]) -> Json:
    """The job as it will be."""
    out = deepcopy(raw)
    for operation in template:
        *way, last = operation["path"].strip("/").split("/")
        at(out, way)[last] = operation["value"]
    meta = obj(out.get("metadata"))
    for field, wanted in (("labels", labels), ("annotations", annotations)):
        meta[field] = _merged(_held(raw, field), wanted)
    return out


def _wanted(one: _Job, names: Names, *, carried: bool) -> tuple[Keys, Keys, list[str]]:
    """(labels, annotations, what to say of it) that are to be written to a job."""
    job, theirs = one.view, one.theirs
    said, annotated = _held(one.raw, "labels"), _held(one.raw, "annotations")
    pairs = (
        (KUEUE.queue_label, names.queue_label),
        (KUEUE.priority_class_label, names.priority_class_label),
        (KUEUE.max_exec_time_label, names.max_exec_time_label),
    )
    labels: Keys = {new: said[old] for old, new in pairs if said.get(old) and said.get(new) != said[old]}
    if carried:
        return labels, {}, ["waits with Muster" if job.suspended else "goes on running"]
    annotations: Keys = {}
    alone: list[str] = []
    for old, new in (
        (KUEUE.gated_by_annotation, names.gated_by_annotation),
        (KUEUE.min_parallelism_annotation, names.min_parallelism_annotation),
    ):
        if not annotated.get(old) or annotated.get(new) == annotated[old]:
            continue
        if old == KUEUE.min_parallelism_annotation and annotated.get(_EQUAL, "").lower() in ("true", "t", "1"):
            alone.append(f"{old} is not carried over: Muster would lower the parallelism alone, not the completions")
            continue
        annotations[new] = annotated[old]
    notes = _held(theirs, "annotations")
    if not job.suspended:
        # Left from when Muster had it: a pause would stop it, and what a start by Muster wrote was taken back by Kueue.
        labels |= {names.pause_label: None} if said.get(names.pause_label) == "true" else {}
        annotations |= {names.inverse_annotation: None} if names.inverse_annotation in annotated else {}
        if any(_held(part, "annotations").get(key) for part in _templates(one) for key in _topology(KUEUE)):
            alone.append("the topology that its pod template asks for is not carried over: evicted later, it has none")
        return labels, annotations, ["goes on running", *alone]
    alone += [f"{old} of its Workload is not carried over" for old, _ in _of_workloads(names) if notes.get(old)]
    if obj(obj(theirs).get("spec")).get("active") is not False:
        return labels, annotations, ["waits with Muster", *alone]
    if said.get(names.pause_label) != "true":
        labels[names.pause_label] = "true"
    stays = f"stays stopped, for its Workload is not active, until the label {names.pause_label} is taken off"
    return labels, annotations, [stays, *alone]


def _warned(one: _Job, after: Json, known: _Known, names: Names) -> list[str]:
    """What keeps a job that waits from being started by Muster, however much room there is, and what would keep one
    that runs, once it was stopped."""
    job = view(one.kind, after, names)
    made, problems = build_workload(one.kind, {**after, "status": {}}, names)
    _, unsupported = values.pod_sets(made["spec"]["podSets"], names, job.namespace)
    found = list(dict.fromkeys([*problems, *job.problems, *unsupported]))
    if (job.namespace, job.queue) not in known.queues:
        found.append(f"there is no LocalQueue {job.queue} in its namespace")
    if job.priority_class and job.priority_class not in known.classes:
        found.append(f"there is no WorkloadPriorityClass {job.priority_class}")
    then = "Muster cannot start it" if job.suspended else "stopped later, it cannot start again"
    out = [f"{then}: {'; '.join(found)}"] if found else []
    if job.suspended and job.paused and obj(obj(one.theirs).get("spec")).get("active") is not False:
        out.append(f"the label {names.pause_label} keeps it stopped until it is taken off")
    return out


def _why_not(one: _Job) -> str:
    """Why a job cannot be carried over as it stands; "" when it can."""
    theirs = one.theirs
    gates = [gate for slot in _templates(one) for gate in _gates(slot)]
    if one.view.suspended:
        if left := [gate for gate in gates if gate != _ELASTIC_GATE]:
            why = f"Kueue's gate {left[0]} is still in its pod template, and nobody would take it off the pods"
            return f"{why}: let Kueue put the template back, or take the gate out of it"
        for child in one.children:
            if left := _gates(obj(obj(child.get("spec")).get("template"))):
                why = f"its Job {_name(child)} still has Kueue's gate {left[0]} in its pod template, and would keep it"
                return f"{why}: delete that Job, and the JobSet makes it anew"
        return ""
    if theirs is None or not _true(theirs, ADMITTED):
        why = "it runs, and Kueue has not admitted it: Muster would stop it"
        return f"{why}; suspend it, or take its label {KUEUE.queue_label} off"
    if _true(theirs, EVICTED):
        return "Kueue is evicting it: wait until that is over"
    if obj(theirs.get("spec")).get("active") is False:
        return "its Workload is not active, and Kueue is to stop it: wait until that is over"
    if gates:
        why = f"Kueue's gate {gates[0]} is in its pod template, and nobody would take it off new pods"
        return f"{why}: let it finish, or stop it with Kueue first (kueuectl stop workload {_name(theirs)})"
    return ""


def _templates(one: _Job) -> list[Json]:
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


def _topology(names: Names) -> tuple[str, ...]:
    """Annotations of a pod template that say where its pods may stand to each other."""
    return (
        names.required_topology_annotation,
        names.preferred_topology_annotation,
        names.unconstrained_topology_annotation,
        names.slice_required_topology_annotation,
        names.slice_size_annotation,
        names.slice_layers_annotation,
        names.group_name_annotation,
    )


def _template(one: _Job, names: Names) -> tuple[list[Operation], list[str]]:
    """(what to change in the pod templates of a job that waits, what differs)."""
    patch: list[Operation] = []
    lines: list[str] = []
    for slot in one.kind.slots(one.raw):
        said, at = _held(slot.template, "annotations"), ".".join(slot.path)
        wanted = {
            new: said[old]
            for old, new in zip(_topology(KUEUE), _topology(names), strict=True)
            if said.get(old) and said.get(new) != said[old]
        }
        if wanted:
            meta = {**obj(slot.template.get("metadata")), "annotations": {**said, **wanted}}
            patch.append({"op": "add", "path": pointer((*slot.path, "metadata")), "value": meta})
            lines += [f"{at}.metadata.annotations.{key}: {said.get(key, '-')} -> {v}" for key, v in wanted.items()]
        if _ELASTIC_GATE in _gates(slot.template):
            gates = objects(obj(slot.template.get("spec")).get("schedulingGates"))
            kept = [gate for gate in gates if gate.get("name") != _ELASTIC_GATE]
            patch.append({"op": "add", "path": pointer((*slot.path, "spec", "schedulingGates")), "value": kept})
            lines.append(f"{at}.spec.schedulingGates: {_ELASTIC_GATE} -> -")
    return patch, lines


async def _workload(ask: Ask, one: _Job, after: Json, *, dry_run: bool) -> str:
    """Make the Workload of a job that runs, with the admission that it has; why not, if it cannot be made."""
    names, theirs = ask.names, obj(one.theirs)
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
        return "; ".join(problems)
    notes = _held(theirs, "annotations")
    made["metadata"]["annotations"] |= {new: notes[old] for old, new in _of_workloads(names) if old in notes}
    where, name = made["metadata"]["namespace"], made["metadata"]["name"]
    admission = dict(obj(obj(theirs.get("status")).get("admission")))
    # Its pods are where they are, and are counted there: nodes named here would be charged twice.
    admission["podSetAssignments"] = [
        {key: value for key, value in part.items() if key in ("name", "flavors", "resourceUsage", "count")}
        for part in objects(admission.get("podSetAssignments"))
    ]
    if wrong := _sizes_differ(one.view, made["spec"]["podSets"], admission["podSetAssignments"]):
        return wrong
    conditions = [
        {key: said[key] for key in ("type", "status", "reason", "message", "lastTransitionTime") if key in said}
        for said in objects(_status(theirs).get("conditions"))
        if said.get("type") in (QUOTA_RESERVED, ADMITTED)
    ]
    if one.ours is not None and not (_asks_for(one.ours, made) and matches(one.ours, one.kind, after, names)):
        # What holds room may not be changed.
        await _remove(ask, one.ours, dry_run=dry_run)
    with contextlib.suppress(AlreadyExists):
        await ask.client.create(ask.workloads.path(where), made, dry_run=dry_run)
    if not dry_run:
        body = {"apiVersion": names.api_version, "kind": "Workload", "metadata": {"name": name, "namespace": where}}
        status = {"conditions": conditions, "admission": admission}
        path = ask.workloads.path(where, name, "status")
        await ask.client.apply(path, {**body, "status": status}, manager=names.admission_manager)
    return ""


def _asks_for(ours: Json, made: Json) -> bool:
    """Does a Workload say what is to be made, its pod sets aside, and is nothing left of another run in its status?"""
    spec, status = obj(ours.get("spec")), _status(ours)
    said = {one.get("type") for one in objects(status.get("conditions"))}
    same = _name(ours) == _name(made) and all(
        spec.get(key) == value for key, value in made["spec"].items() if key != "podSets"
    )
    return same and said <= {QUOTA_RESERVED, ADMITTED} and set(status) <= {"conditions", "admission"}


async def _remove(ask: Ask, workload: Json, *, dry_run: bool) -> None:
    """Delete a Workload of Muster's, its finalizer too: nobody leads who would take that off."""
    meta, path = obj(workload.get("metadata")), ask.workloads.path(*change.key_of(workload))
    with contextlib.suppress(NotFound):
        if meta.get("finalizers"):
            off = {"metadata": {"uid": meta.get("uid"), "finalizers": None}}
            await ask.client.merge_patch(path, off, dry_run=dry_run, field_manager=change.MANAGER)
        await ask.client.delete(path, uid=text(meta.get("uid")), dry_run=dry_run)


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


def _held(raw: Json | None, field: str) -> dict[str, str]:
    """Labels or annotations of an object, or of a pod template."""
    return texts(obj(obj(raw).get("metadata")).get(field))


def _status(raw: Json | None) -> Json:
    return obj(obj(raw).get("status"))


def _name(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("name"))


def _true(raw: Json, kind: str) -> bool:
    found = objects(obj(raw.get("status")).get("conditions"))
    return any(one.get("type") == kind and one.get("status") == "True" for one in found)
