"""From Kueue to Muster in one cluster: quota is carried over, what runs goes on running, what waits waits with Muster.

`quota` translates objects; `from_cluster` reads a cluster in which Kueue has managed jobs, and gives, for each job,
what Muster needs to know of it: its queue label, and where it runs already, a Workload with the same admission, made
before the label, so that at no time a running job looks like one that was never admitted. Every step can be repeated.

Two controllers must not manage the same jobs: nothing is written while Kueue's webhooks are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from admission.controller import change
from admission.controller.ask import NODES, Ask, newest, resource_of
from admission.controller.change import Change, Changes, Did
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.jobs.kinds import JobKind, JobView, obj, objects, text, texts, view
from admission.jobs.workload import build_workload
from admission.kube.client import AlreadyExists, ApiError, Kind
from admission.names import ADMITTED, EVICTED, FINISHED, JOBSET_GROUP, KUEUE_GROUP, QUOTA_RESERVED, Names

Json = dict[str, Any]
KUEUE = Names(KUEUE_GROUP)
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
_KINDS = {kind for kind, _, _ in change.QUOTA_KINDS}
_HOOKS = "admissionregistration.k8s.io"
_WEBHOOKS = (
    Kind(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False),
    Kind(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
)


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

    `ask.names` are Muster's own. Raises ApiError when nobody answers.
    """
    found = await _read(ask)
    tried = await _put_all(ask, found, dry_run=True)
    blocked = await _still_there(ask)
    if not apply or tried.refused or blocked:
        did = Did.REFUSED if apply else Did.SKIPPED
        rows = tuple(Change(subject, did, message=why) for subject, why in blocked)
        return Changes((*rows, *tried.rows), True, ask.hidden)
    return await _put_all(ask, found, dry_run=False)


async def _read(ask: Ask) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for kind, plural, namespaced in (
        *change.QUOTA_KINDS,
        ("Workload", "workloads", True),
        *((kind, _PLURALS[kind], False) for kind in ELSEWHERE),
    ):
        at = Kind(KUEUE_GROUP, KUEUE.version, plural, kind, namespaced)
        found[kind] = list(await ask.read(at, None) or ())
    return found


async def _still_there(ask: Ask) -> list[tuple[str, str]]:
    out = []
    for kind in _WEBHOOKS:
        for one in await ask.read(kind) or ():
            services = [obj(obj(hook.get("clientConfig")).get("service")) for hook in objects(one.get("webhooks"))]
            if any(text(service.get("name")).startswith("kueue-") for service in services):
                name = text(obj(one.get("metadata")).get("name"))
                why = "Kueue is still there: scale its controller to 0 and delete this before --apply"
                out.append((f"{kind.kind.lower()}/{name}", why))
    return out


async def _put_all(ask: Ask, found: dict[str, list[Json]], *, dry_run: bool) -> Changes:
    refused = _checks_of_kueue(found)
    rows = [
        Change(f"{kind.lower()}/{_name(one)}", Did.SKIPPED, message=why)
        for kind, why in ELSEWHERE.items()
        for one in found.get(kind, ())
    ]
    rows += refused
    away = {row.subject for row in refused}  # they have their rows already
    given = quota([one for kind, _, _ in change.QUOTA_KINDS for one in found[kind]], ask.names)
    given = [one for one in given if f"{text(one.get('kind')).lower()}/{_name(one)}" not in away]
    put = await change.put(ask, given, "", dry_run=dry_run)
    nodes = [texts(obj(node.get("metadata")).get("labels")) for node in await ask.read(NODES) or ()]
    rows += [_with_note(row, found, nodes) for row in put.rows]
    rows += await _jobs(ask, found["Workload"], dry_run=dry_run)
    return Changes(tuple(rows), dry_run, ask.hidden)


def _checks_of_kueue(found: dict[str, list[Json]]) -> list[Change]:
    """Checks that only Kueue answers: jobs of a queue that asks one would wait for ever."""
    theirs = {
        _name(one): _CONTROLLERS[text(obj(one.get("spec")).get("controllerName"))]
        for one in found["AdmissionCheck"]
        if text(obj(one.get("spec")).get("controllerName")) in _CONTROLLERS
    }
    rows = [Change(f"admissioncheck/{name}", Did.SKIPPED, message=why) for name, why in theirs.items()]
    for one in found["ClusterQueue"]:
        rules = objects(obj(obj(one.get("spec")).get("admissionChecksStrategy")).get("admissionChecks"))
        used = [name for rule in rules if (name := text(rule.get("name"))) in theirs]
        if used:
            why = f"it asks the admission check {used[0]} ({theirs[used[0]]}): take it out of the ClusterQueue first"
            rows.append(Change(f"clusterqueue/{_name(one)}", Did.REFUSED, message=why))
    return rows


def _with_note(row: Change, found: dict[str, list[Json]], nodes: list[dict[str, str]]) -> Change:
    """What will be decided otherwise than before."""
    kind, _, name = row.subject.partition("/")
    if kind != "resourceflavor" or row.did is Did.REFUSED:
        return row
    spec = next((obj(one.get("spec")) for one in found["ResourceFlavor"] if _name(one) == name), {})
    wanted = texts(spec.get("nodeLabels"))
    if any(all(labels.get(key) == value for key, value in wanted.items()) for labels in nodes):
        return row
    note = (
        "no node has its labels now, and Muster admits onto nodes that are there: set spec.elastic where they are made"
    )
    return Change(row.subject, row.did, row.namespace, note, row.lines)


# ---------------------------------------------------------------- jobs


async def _jobs(ask: Ask, workloads: list[Json], *, dry_run: bool) -> list[Change]:
    rows: list[Change] = []
    known: set[str] = set()
    by_owner: dict[str, list[Json]] = {}
    for workload in workloads:
        for ref in objects(obj(workload.get("metadata")).get("ownerReferences")):
            by_owner.setdefault(text(ref.get("uid")), []).append(workload)
    for kind in JOB_KINDS:
        for raw in await ask.read(resource_of(kind), None) or ():
            job = view(kind, raw, KUEUE)
            known.add(job.uid)
            child = job.owner is not None and job.owner[0].startswith(f"{JOBSET_GROUP}/")
            if job.queue and job.finished is None and not child and not job.deleting:
                rows.append(await _job(ask, kind, raw, job, newest(by_owner.get(job.uid, ())), dry_run=dry_run))
    for workload in workloads:
        refs = objects(obj(workload.get("metadata")).get("ownerReferences"))
        if _true(workload, FINISHED) or any(text(ref.get("uid")) in known for ref in refs):
            continue
        owner = f"{text(refs[0].get('kind'))} {text(refs[0].get('name'))}" if refs else "no object"
        why = f"it stands for {owner}, which Muster does not manage: what it runs is not counted in any queue"
        where = text(obj(workload.get("metadata")).get("namespace"))
        rows.append(Change(f"workload/{_name(workload)}", Did.SKIPPED, where, why))
    return rows


async def _job(ask: Ask, kind: JobKind, raw: Json, job: JobView, workload: Json | None, *, dry_run: bool) -> Change:
    """One job that is not finished: its label, and before it, where it runs, its Workload."""
    names = ask.names
    subject = f"{job.kind.lower()}/{job.name}"
    labels = texts(obj(raw.get("metadata")).get("labels"))
    pairs = (
        (KUEUE.queue_label, names.queue_label),
        (KUEUE.priority_class_label, names.priority_class_label),
        (KUEUE.max_exec_time_label, names.max_exec_time_label),
    )
    wanted = {new: labels[old] for old, new in pairs if labels.get(old) and labels.get(new) != labels[old]}
    lines = [f"metadata.labels.{key}: {labels.get(key, '-')} -> {value}" for key, value in wanted.items()]
    runs = workload is not None and _true(workload, ADMITTED) and not job.suspended
    try:
        if runs and workload is not None:
            if _true(workload, EVICTED):
                return Change(subject, Did.REFUSED, job.namespace, "Kueue is evicting it: wait until that is over")
            if not await ask.read(ask.workloads, job.namespace, label_selector=f"{names.job_uid_label}={job.uid}"):
                problem = await _workload(ask, kind, raw, {**labels, **wanted}, workload, dry_run=dry_run)
                if problem:
                    return Change(subject, Did.REFUSED, job.namespace, problem)
                lines.insert(0, "Workload: - -> admitted as Kueue admitted it")
        if wanted:
            patch = {"metadata": {"uid": job.uid, "labels": wanted}}
            path = resource_of(kind).path(job.namespace, job.name)
            await ask.client.merge_patch(path, patch, dry_run=dry_run, field_manager=change.MANAGER)
    except ApiError as error:
        if error.status not in (400, 403, 409, 422):
            raise
        return Change(subject, Did.REFUSED, job.namespace, error.message)
    if not lines:
        return Change(subject, Did.UNCHANGED, job.namespace)
    message = "goes on running" if runs else "waits with Muster"
    return Change(subject, Did.CHANGED, job.namespace, message, tuple(lines))


async def _workload(
    ask: Ask, kind: JobKind, raw: Json, labels: dict[str, str], theirs: Json, *, dry_run: bool
) -> str:  # fmt: skip
    """Make the Workload of a job that runs, with the admission that it has; why not, if it cannot be made."""
    names, spec = ask.names, obj(theirs.get("spec"))
    ref = obj(spec.get("priorityClassRef"))
    made, problems = build_workload(
        kind,
        {**raw, "metadata": {**obj(raw.get("metadata")), "labels": labels}},
        names,
        priority=spec["priority"] if isinstance(spec.get("priority"), int) else 0,
        priority_ref=(text(ref.get("kind")), text(ref.get("name"))) if ref.get("name") else None,
    )
    if problems:
        return "; ".join(problems)
    where, name = made["metadata"]["namespace"], made["metadata"]["name"]
    admission = dict(obj(obj(theirs.get("status")).get("admission")))
    # Its pods are where they are, and are counted there: nodes named here would be charged twice.
    admission["podSetAssignments"] = [
        {key: value for key, value in one.items() if key in ("name", "flavors", "resourceUsage", "count")}
        for one in objects(admission.get("podSetAssignments"))
    ]
    had, have = ({one["name"] for one in parts} for parts in (made["spec"]["podSets"], admission["podSetAssignments"]))
    if had != have:
        return f"its pod sets are {sorted(had)}, and Kueue admitted {sorted(have)}"
    conditions = [
        {key: one[key] for key in ("type", "status", "reason", "message", "lastTransitionTime") if key in one}
        for one in objects(obj(theirs.get("status")).get("conditions"))
        if one.get("type") in (QUOTA_RESERVED, ADMITTED)
    ]
    with contextlib.suppress(AlreadyExists):
        await ask.client.create(ask.workloads.path(where), made, dry_run=dry_run)
    if not dry_run:
        meta = {"name": name, "namespace": where}
        body = {"apiVersion": names.api_version, "kind": "Workload", "metadata": meta}
        status = {"conditions": conditions, "admission": admission}
        path = ask.workloads.path(where, name, "status")
        await ask.client.apply(path, {**body, "status": status}, manager=names.admission_manager)
    return ""


def _name(raw: Json) -> str:
    return text(obj(raw.get("metadata")).get("name"))


def _true(raw: Json, kind: str) -> bool:
    found = objects(obj(raw.get("status")).get("conditions"))
    return any(one.get("type") == kind and one.get("status") == "True" for one in found)
