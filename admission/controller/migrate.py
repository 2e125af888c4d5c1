"""From Kueue to Muster in one cluster: quota is carried over, what runs goes on running, what waits waits with Muster.

`quota` translates objects; `from_cluster` reads a cluster in which Kueue has managed jobs, and gives, for each job,
what Muster needs to know of it: its queue label, and where it runs already, a Workload with the same admission, made
before the label, so that at no time a running job looks like one that was never admitted. Every step can be repeated.
What is to be written for a job is judged in `takeover`.

Two controllers must not manage the same jobs: nothing is written while Kueue's webhooks are there or its controller
runs. Nor while its visibility API is registered: once nobody answers it, the deletion of every namespace waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from admission.controller import change
from admission.controller.ask import Ask
from admission.controller.change import Change, Changes, Did
from admission.controller.resources import API_SERVICES, NODES, QUOTA, of_jobs, ours
from admission.controller.standing import current, stop_policy_of
from admission.controller.takeover import KUEUE, Known, Managed, status_of, take_over
from admission.jobs.kinds import KINDS as JOB_KINDS
from admission.jobs.kinds import condition, items, labels_of, name_of, obj, objects, text, texts, view, whole
from admission.kube.client import AlreadyExists, ApiError, Kind, NotFound
from admission.kube.lease import LEASES
from admission.names import ADMITTED, DEFAULT_QUEUE, FINISHED, KUEUE_GROUP, NODEPOOL_LABEL, Names

Json = dict[str, Any]
MUSTER = Names()
ELSEWHERE = {
    "MultiKueueCluster": "Muster sends no jobs to other clusters",
    "MultiKueueConfig": "Muster sends no jobs to other clusters",
    "ProvisioningRequestConfig": "Muster makes no ProvisioningRequests",
}
_CONTROLLERS = {
    f"{KUEUE_GROUP}/multikueue": "Muster sends no jobs to other clusters",
    f"{KUEUE_GROUP}/provisioning-request": "Muster makes no ProvisioningRequests",
}
"""Of admission checks that Kueue itself answers."""
_OLDER = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}
"""Values of spec.flavorFungibility in v1beta1."""
_TRACKING = {"app.kubernetes.io/instance", "argocd.argoproj.io/instance", "argocd.argoproj.io/tracking-id"}
"""By these Argo CD knows what is of an application, and deletes of that what its repository does not have."""
_CRON_JOBS = Kind("batch", "v1", "cronjobs", "CronJob", True)
_HOOKS = "admissionregistration.k8s.io"
_WEBHOOKS = (
    Kind(_HOOKS, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False),
    Kind(_HOOKS, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
)
_DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
_MANAGERS = "control-plane=controller-manager"
"""Label of Kueue's Deployment, from its manifests as from its chart, and of some others'."""
_HOOK_PATHS = tuple(f"/{verb}-{KUEUE_GROUP.replace('.', '-')}-" for verb in ("validate", "mutate"))
"""How the paths begin of the webhooks for Kueue's own kinds, whatever the release and its Service are called."""


def quota(given: Sequence[Json], names: Names | None = None) -> list[Json]:
    """Kueue's quota objects (v1beta1 or v1beta2) as Muster's; what Muster has no kind for is left as it is."""
    return [_translated(one, names or Names()) if _of_kueue(one, QUOTA) else one for one in given]


def _of_kueue(one: Json, kinds: Iterable[str]) -> bool:
    return text(one.get("apiVersion")).partition("/")[0] == KUEUE_GROUP and text(one.get("kind")) in kinds


def _translated(one: Json, names: Names) -> Json:
    out = change.as_written(one)
    out["apiVersion"] = names.api_version
    for field in ("labels", "annotations"):
        said = texts(obj(out.get("metadata")).get(field))
        kept = {k: v for k, v in said.items() if k not in _TRACKING and not _is_kueues(k)}
        out["metadata"].pop(field, None)
        if kept:
            out["metadata"][field] = kept
    spec = out.get("spec")
    if not isinstance(spec, dict):
        return out
    if spec.get("stopPolicy") == "None":
        # Left out it means the same; said, it would fight with who has stopped Muster's queue since.
        del spec["stopPolicy"]
    if one.get("kind") == "AdmissionCheck":
        spec.pop("retryDelayMinutes", None)  # v1beta1, where nobody read it
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
    if not await ask.served(ours(MUSTER, "Workload")):
        why = "Muster's CRDs are not installed: that is step 1 (kubectl apply --server-side -k crds)"
    elif ask.names.group != MUSTER.group:
        why = f"objects are carried over into {MUSTER.group} alone: leave out --api-group {ask.names.group}"
    return (Change(subject, Did.REFUSED, message=why),) if why else ()


async def _unread(ask: Ask) -> tuple[Change, ...]:
    """Why what Kueue has cannot be read; nothing when it can."""
    kind = ours(KUEUE, "Workload")
    if await ask.served(kind):
        return ()
    older = await ask.served(Kind(kind.group, "v1beta1", kind.plural, kind.kind, True))
    why = f"this cluster serves only {KUEUE_GROUP}/v1beta1: upgrade Kueue first"
    why = why if older else f"this cluster does not serve {KUEUE_GROUP}: there is nothing to carry over"
    return (Change(f"customresourcedefinition/workloads.{KUEUE_GROUP}", Did.REFUSED, message=why),)


async def _read(ask: Ask) -> dict[str, list[Json]]:
    return {kind: list(await ask.read(ours(KUEUE, kind)) or ()) for kind in (*QUOTA, "Workload", *ELSEWHERE)}


async def _still_there(ask: Ask) -> list[Change]:
    """Kueue's webhook configurations, and its visibility API."""
    out = []
    for kind in _WEBHOOKS:
        for one in await ask.read(kind) or ():
            if any(_is_kueues_hook(obj(hook.get("clientConfig"))) for hook in objects(one.get("webhooks"))):
                name = name_of(one)
                why = "Kueue is still there: scale its controller to 0 and delete this before --apply"
                out.append(Change(f"{kind.kind.lower()}/{name}", Did.REFUSED, message=why))
    for one in await ask.read(API_SERVICES) or ():
        if text(obj(one.get("spec")).get("group")) == KUEUE.visibility_group:
            why = "nobody answers it once Kueue is stopped, and until it is gone no namespace of the cluster can be "
            why += "deleted: delete this before --apply"
            out.append(Change(f"apiservice/{name_of(one)}", Did.REFUSED, message=why))
    return out


async def _still_runs(ask: Ask) -> list[Change]:
    """Kueue's controller: its Deployment, or else the Lease of one that runs elsewhere or is just ending."""
    out = []
    for one in await ask.read(_DEPLOYMENTS, label_selector=_MANAGERS) or ():
        where, name = change.key_of(one)
        asked = whole(obj(one.get("spec")).get("replicas"), 1)
        there = max(asked, whole(status_of(one).get("replicas"), 0))
        if there and _is_kueues_manager(one):
            scale = f"kubectl -n {where} scale deployment {name} --replicas=0"
            why = f"Kueue runs ({there} replicas): {scale}" if asked else f"Kueue ends ({there} replicas): wait for it"
            out.append(Change(f"deployment/{name}", Did.REFUSED, where, why))
    for lease in () if out else await ask.read(LEASES, field_selector=f"metadata.name={KUEUE.rival_lease}") or ():
        if not ask.led_by_nobody(lease):
            holder, (where, name) = text(obj(lease.get("spec")).get("holderIdentity")), change.key_of(lease)
            why = f"Kueue leads ({holder}), or did a moment ago: stop it where it runs, and wait until this has ended"
            out.append(Change(f"lease/{name}", Did.REFUSED, where, why))
    return out


def _is_kueues_manager(deployment: Json) -> bool:
    labels = labels_of(deployment)
    return labels.get("app.kubernetes.io/name") == "kueue" or name_of(deployment).endswith("kueue-controller-manager")


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
    rows = list(put.rows)
    if put.broke_off:  # no job goes to a queue that is not there
        rows += [
            Change(f"{of}/*", Did.REFUSED, message="not tried: its quota is not written") for of in ("job", "cronjob")
        ]
        return Changes(tuple(rows), dry_run, ask.hidden)
    for subject, looked in (
        ("job", partial(_jobs, ask, found, dry_run=dry_run)),
        ("cronjob", partial(_cron_jobs, ask)),
    ):
        try:
            rows += await looked()
        except ApiError as error:
            if dry_run:
                raise
            rows.append(Change(f"{subject}/*", Did.REFUSED, message=change.not_tried(error)))
    return Changes(tuple(rows), dry_run, ask.hidden)


async def _put_quota(ask: Ask, given: Sequence[Json], namespace: str, *, dry_run: bool) -> Changes:
    translated = quota([one for one in given if not _of_kueue(one, ELSEWHERE)], ask.names)
    rows = [
        Change(f"{text(one.get('kind')).lower()}/{name_of(one)}", Did.SKIPPED, message=ELSEWHERE[one["kind"]])
        for one in given
        if _of_kueue(one, ELSEWHERE)
    ]
    # Files may name checks that only the cluster has.
    there = await ask.read(ours(KUEUE, "AdmissionCheck"))
    refused = _checks_of_kueue(translated, there or ())
    away = {row.subject for row in refused}  # they have their rows already
    # Read first: of what is written is told, whoever answers after that.
    nodes = [labels_of(node) for node in await ask.read(NODES) or ()]
    queues = await _cluster_queues(ask, given)
    stopped = await _stopped(ask)
    put = await change.put(
        ask,
        [one for one in translated if f"{text(one.get('kind')).lower()}/{name_of(one)}" not in away],
        namespace,
        dry_run=dry_run,
    )
    rows += refused
    said = {(text(one.get("kind")).lower(), *change.key_of(one)): one for one in given}
    for row in put.rows:
        of = _given(row, said)
        rows.append(row if row.did is Did.REFUSED else _if_stopped(_with_note(row, of, nodes, queues), of, stopped))
    return Changes(tuple(rows), dry_run, ask.hidden)


def _checks_of_kueue(given: Sequence[Json], there: Sequence[Json]) -> list[Change]:
    """Checks that only Kueue answers: jobs of a queue that asks one would wait for ever."""

    def answered_by_kueue(checks: Iterable[Json]) -> dict[str, str]:
        said = {name_of(one): text(obj(one.get("spec")).get("controllerName")) for one in checks}
        return {name: _CONTROLLERS[controller] for name, controller in said.items() if controller in _CONTROLLERS}

    own = answered_by_kueue(one for one in given if one.get("kind") == "AdmissionCheck")
    theirs = answered_by_kueue(there) | own
    rows = [Change(f"admissioncheck/{name}", Did.SKIPPED, message=why) for name, why in own.items()]
    for one in given:
        rules = objects(obj(obj(one.get("spec")).get("admissionChecksStrategy")).get("admissionChecks"))
        used = [name for rule in rules if (name := text(rule.get("name"))) in theirs]
        if used and one.get("kind") == "ClusterQueue":
            why = f"it asks the admission check {used[0]} ({theirs[used[0]]}): take it out of the ClusterQueue first"
            rows.append(Change(f"clusterqueue/{name_of(one)}", Did.REFUSED, message=why))
    return rows


def _given(row: Change, said: Mapping[tuple[str, str, str], Json]) -> Json:
    """The object of Kueue's that a row is of. said: by (kind, namespace, name)."""
    kind, _, name = row.subject.partition("/")
    return said.get((kind, row.namespace, name)) or said.get((kind, "", name), {})


async def _cluster_queues(ask: Ask, given: Iterable[Json]) -> frozenset[str]:
    """Those that will be there."""
    there = await ask.read(ask.kind("ClusterQueue")) or ()
    return frozenset(name_of(one) for one in (*there, *(one for one in given if one.get("kind") == "ClusterQueue")))


async def _stopped(ask: Ask) -> dict[tuple[str, str, str], str]:
    """The stop policies of Muster's queues that are stopped, by (kind, namespace, name)."""
    kinds = (ask.kind("ClusterQueue"), ask.local_queues)
    return {
        (kind.kind.lower(), *change.key_of(one)): policy
        for kind in kinds
        for one in await ask.read(kind) or ()
        if (policy := stop_policy_of(one))
    }


def _if_stopped(row: Change, given: Json, stopped: Mapping[tuple[str, str, str], str]) -> Change:
    """A queue that was stopped on Muster's side alone, to go back to Kueue, stays so. given: Kueue's object."""
    kind, _, name = row.subject.partition("/")
    policy = stopped.get((kind, row.namespace, name))
    if policy is None or stop_policy_of(given):
        return row
    resume = f"muster resume {f'{kind}/{name} -n {row.namespace}' if row.namespace else name}"
    if policy == "Hold":
        why = f"it stays stopped, as it is in {MUSTER.group} (Hold), until `{resume}`"
        return replace(row, message="; ".join([row.message, why] if row.message else [why]))
    why = f"it is stopped in {MUSTER.group} ({policy}): all that Kueue runs there would be stopped. First: `{resume}`"
    return replace(row, did=Did.REFUSED, message=why)


def _with_note(row: Change, given: Json, nodes: list[dict[str, str]], queues: frozenset[str]) -> Change:
    """What will be decided otherwise than before. given: Kueue's object; queues: ClusterQueues that will be there."""
    kind, _, name = row.subject.partition("/")
    spec, notes = obj(given.get("spec")), list[str]()
    if kind == "admissioncheck":
        notes.append(
            f"queues that ask it admit nobody until {text(spec.get('controllerName'))} makes it Active, and answers, "
            f"in {MUSTER.group}, too"
        )
    if kind == "clusterqueue" and row.did is Did.CREATED and obj(given.get("metadata")).get("deletionTimestamp"):
        notes.append(
            "it is being deleted, and Kueue lets nobody in any more; Muster will: write stopPolicy: Hold into its spec "
            "before --apply"
        )
    if kind == "clusterqueue" and _evicts_while_borrowing(spec):
        notes.append(
            "nothing acts on its borrowWithinCohort: who borrows evicts by shares, whatever the priorities, unless "
            "Muster's configuration says preset: kueue"
        )
    if kind == "clusterqueue" and spec.get("concurrentAdmissionPolicy"):
        notes.append(
            "nothing acts on its concurrentAdmissionPolicy: each job waits for its flavors in their order, and stays "
            "on the one that it gets"
        )
    if kind == "resourceflavor" and given:
        wanted = texts(spec.get("nodeLabels"))
        its = [labels for labels in nodes if all(labels.get(key) == value for key, value in wanted.items())]
        if not its:
            notes.append(
                "no node has its labels now, and Muster admits onto nodes that are there: set spec.elastic where they "
                "are made"
            )
        elif spec.get("elastic") is not True and any(NODEPOOL_LABEL in labels for labels in its):
            notes.append(
                "Karpenter makes its nodes when pods wait for them, and Muster admits onto nodes that are there: set "
                "spec.elastic, unless their number is fixed"
            )
    if kind == "localqueue" and (points_to := text(spec.get("clusterQueue"))) and points_to not in queues:
        notes.append(f"there is no ClusterQueue {points_to}: its jobs wait until there is")
    if kind == "localqueue" and name == DEFAULT_QUEUE:
        notes.append(
            "it was the queue of jobs without a label: set localQueueDefaulting in Muster's configuration, or they "
            "start at once, and no queue is charged (docs/tasks/tenants.md)"
        )
    return replace(row, message="; ".join(notes)) if notes else row


def _evicts_while_borrowing(spec: Json) -> bool:
    policy = obj(obj(spec.get("preemption")).get("borrowWithinCohort")).get("policy")
    return policy not in (None, "Never")


# ---------------------------------------------------------------- jobs


async def _jobs(ask: Ask, found: dict[str, list[Json]], *, dry_run: bool) -> list[Change]:
    rows: list[Change] = []
    managed: list[Managed] = []
    workloads = found["Workload"]
    seen: set[str] = set()
    by_owner = _by_owner(workloads)
    ours = _by_owner(await ask.read(ask.workloads) or ())
    classes = ask.kind("WorkloadPriorityClass")
    cluster_queues = await _cluster_queues(ask, found["ClusterQueue"])
    local_queues = {
        change.key_of(one): text(obj(one.get("spec")).get("clusterQueue"))
        for one in (*found["LocalQueue"], *(await ask.read(ask.local_queues) or ()))
    }
    known = Known(
        {key: "" if name in cluster_queues else name for key, name in local_queues.items()},
        frozenset(name_of(one) for one in (*found["WorkloadPriorityClass"], *(await ask.read(classes) or ()))),
    )
    jobs = [(kind, raw) for kind in JOB_KINDS for raw in await ask.read(of_jobs(kind)) or ()]
    children = _by_owner(raw for _, raw in jobs)
    for kind, raw in jobs:
        job = view(kind, raw, KUEUE)
        seen.add(job.uid)
        # Of a kind that Muster does not manage: its row is that of its owner's Workload.
        child = job.of_jobset or (job.owner is not None and job.uid not in by_owner and job.owner[2] in by_owner)
        if not job.queue or job.finished is not None or child:
            continue
        theirs = current(one for one in by_owner.get(job.uid, ()) if not condition(one, FINISHED))
        if job.deleting:
            rows.append(Change(f"{job.kind.lower()}/{job.name}", Did.SKIPPED, job.namespace, _going(raw, theirs)))
            continue
        mine = current(ours.get(job.uid, ()))
        managed.append(Managed(kind, raw, job, theirs, mine, tuple(children.get(job.uid, ()))))
    away: list[ApiError] = []

    async def taken_over(one: Managed) -> Change:
        row = Change(f"{one.view.kind.lower()}/{one.view.name}", Did.REFUSED, one.view.namespace)
        if away:
            return replace(row, message=change.not_tried(away[0]))
        try:
            return await _job(ask, one, known, dry_run=dry_run)
        except ApiError as error:
            if dry_run:
                raise
            away.append(error)
            return replace(row, message=change.unheard(error))

    rows += await change.together(taken_over, ((one,) for one in managed))
    # Variants of a job, one for each flavor, stand for its Workload: its row speaks for them.
    seen |= {text(obj(workload.get("metadata")).get("uid")) for workload in workloads}
    for workload in workloads:
        refs = objects(obj(workload.get("metadata")).get("ownerReferences"))
        if not condition(workload, FINISHED) and not any(text(ref.get("uid")) in seen for ref in refs):
            where, name = change.key_of(workload)
            rows.append(Change(f"workload/{name}", Did.SKIPPED, where, _not_managed(workload, refs)))
    return rows


def _going(job: Json, theirs: Json | None) -> str:
    """What becomes of a job that is being deleted."""
    why = "it is being deleted, and left alone: what still runs of it no queue is charged for"
    awaited = "foregroundDeletion" in items(obj(job.get("metadata")).get("finalizers"))
    if awaited and KUEUE.finalizer in items(obj(obj(theirs).get("metadata")).get("finalizers")):
        why += f"; it goes when the finalizer {KUEUE.finalizer} is off its Workload {name_of(obj(theirs))}, which "
        why += "nobody takes off once Kueue is stopped"
    return why


def _not_managed(workload: Json, refs: list[Json]) -> str:
    """What becomes of something that is no Job and no JobSet."""
    kind = text(refs[0].get("kind")) if refs else ""
    what = f"it stands for {kind} {text(refs[0].get('name'))}" if refs else "it stands for no object"
    what += f" and {len(refs) - 1} more" if len(refs) > 1 else ""
    what += ", which Muster does not manage"
    runs = condition(workload, ADMITTED)
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
        labels = labels_of(obj(one.get("spec")).get("jobTemplate"))
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


async def _job(ask: Ask, one: Managed, known: Known, *, dry_run: bool) -> Change:
    """One job that is not finished: its labels and annotations, and before them, where it runs, its Workload."""
    job, plan = one.view, take_over(one, known, ask.names)
    subject, path = f"{job.kind.lower()}/{job.name}", of_jobs(one.kind).path(job.namespace, job.name)
    if plan.refused:
        return Change(subject, Did.REFUSED, job.namespace, plan.refused)
    try:
        if plan.outdated is not None:
            await _remove(ask, plan.outdated, dry_run=dry_run)
        if plan.workload is not None:
            await _make(ask, plan.workload, dry_run=dry_run)
        if plan.patch:
            await ask.client.json_patch(path, list(plan.patch), dry_run=dry_run, field_manager=change.MANAGER)
        elif plan.merge is not None:
            await ask.client.merge_patch(path, plan.merge, dry_run=dry_run, field_manager=change.MANAGER)
    except NotFound as error:
        return Change(subject, Did.SKIPPED, job.namespace, f"it was deleted meanwhile: {error.message}")
    except ApiError as error:
        said = change.refusal(error)
        why = f"its pod template, which says where its pods may go, cannot be changed: {said}"
        return Change(subject, Did.REFUSED, job.namespace, why if plan.patch and error.status < 500 else said)
    if not plan.lines:
        return Change(subject, Did.UNCHANGED, job.namespace, "; ".join(plan.warned))
    return Change(subject, Did.CHANGED, job.namespace, "; ".join([*plan.notes, *plan.warned]), plan.lines)


async def _make(ask: Ask, workload: Json, *, dry_run: bool) -> None:
    """Create a Workload, if it is not there, and write its status."""
    where, name = change.key_of(workload)
    made = {key: value for key, value in workload.items() if key != "status"}
    with contextlib.suppress(AlreadyExists):
        await ask.client.create(ask.workloads.path(where), made, dry_run=dry_run)
    if not dry_run:
        body = {"apiVersion": made["apiVersion"], "kind": "Workload", "metadata": {"name": name, "namespace": where}}
        path = ask.workloads.path(where, name, "status")
        await ask.client.apply(path, {**body, "status": workload["status"]}, manager=ask.names.admission_manager)


async def _remove(ask: Ask, workload: Json, *, dry_run: bool) -> None:
    """Delete a Workload of Muster's, its finalizer too: nobody leads who would take that off."""
    meta, path = obj(workload.get("metadata")), ask.workloads.path(*change.key_of(workload))
    with contextlib.suppress(NotFound):
        if meta.get("finalizers"):
            off = {"metadata": {"uid": meta.get("uid"), "finalizers": None}}
            await ask.client.merge_patch(path, off, dry_run=dry_run, field_manager=change.MANAGER)
        await ask.client.delete(path, uid=text(meta.get("uid")), dry_run=dry_run)
