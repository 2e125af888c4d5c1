"""Hold and pin by policies, on a real API server: what tenants, administrators and GitOps tools can and cannot do.

The controller is not there: a user with its rights plays it, with the patches of `jobs.pins`. The last tests ask the
rules in Python (`jobs.hold`) and the policies in CEL about the same rows.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from admission.controller import certificates, policies
from admission.controller.installation import Settings
from admission.controller.webhook import Webhook, configurations
from admission.engine.model import Admission, Domain, Flavor, PodSetAssignment, Toleration, TopologyAssignment
from admission.jobs import hold, pins
from admission.jobs.kinds import JOB, JOBSET, JobKind, owners_form
from admission.jobs.requests import excess
from admission.kube.access import Access
from admission.names import DEFAULT_QUEUE, HOSTNAME_LABEL, KUEUE_GROUP, Names
from e2e.api_client import ApiClient, ApiError, Object, condition, merged
from e2e.control_plane import JOBSET_USER, ControlPlane
from tests.docs.blocks import block

NAMES = Names()
LABEL = {NAMES.queue_label: "main"}
SPACE = "hold"
FLAVOR = Flavor(
    "gpu",
    node_labels=(("type", "kwok"),),
    tolerations=(Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"), Toleration("team", "Equal", "a", "")),
)
ROOT = Path(__file__).parents[1]
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
RESTORE = NAMES.inverse_annotation


@pytest.fixture(scope="module")
def plane(cp: ControlPlane) -> Iterator[ControlPlane]:
    """With CRD-less policies and roles, a tenant's rights, and six nodes."""
    cp.namespace("muster-system")
    cp.namespace(SPACE)
    cp.apply(policies.objects(NAMES))
    rules = [{"apiGroups": ["", "batch", "jobset.x-k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    cp.apply({**_rbac("ClusterRole", "hold-tenant"), "rules": rules})
    cp.apply(
        [
            _binding("RoleBinding", "hold-tenant", "tenant"),
            _binding("ClusterRoleBinding", "muster-controller", "muster"),
        ]
    )
    cp.add_nodes(6, prefix="host")
    for probe in (job("probe"), jobset("probe")):
        cp.wait(functools.partial(_offered, cp, probe), 30, "the policies to be in force")
    pod = merged(_pod(), {"metadata": {"annotations": {NAMES.pinned_annotation: "true"}}})
    offer = functools.partial(cp.create, pod, dryRun="All")
    cp.wait(functools.partial(_refused, offer), 30, "the pod policies to be in force")
    yield cp
    for node in cp.list("nodes"):
        cp.delete("nodes", node["metadata"]["name"])


def _offered(cp: ApiClient, probe: Object) -> bool:
    """Would it be stored suspended?"""
    return cp.create(probe, dryRun="All")["spec"].get("suspend") is True


@pytest.fixture
def tenant(plane: ControlPlane) -> Iterator[ApiClient]:
    yield plane.with_token(plane.token("tenant"))
    for kind in ("jobsets", "jobs"):
        plane.delete_all(kind, SPACE)
    plane.delete_all("pods", SPACE, gracePeriodSeconds=0)
    plane.wait(
        lambda: not any(plane.list(kind, SPACE) for kind in ("jobsets", "jobs", "pods")), 30, "an empty namespace"
    )


@pytest.fixture
def muster(plane: ControlPlane) -> ApiClient:
    return plane.with_token(plane.token("muster"))


# ---------------------------------------------------------------- objects


def _rbac(kind: str, name: str) -> Object:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}


def _binding(kind: str, role: str, user: str) -> Object:
    meta = {"name": f"{role}-{user}"} | ({"namespace": SPACE} if kind == "RoleBinding" else {})
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return {**_rbac(kind, role), "metadata": meta, "roleRef": ref, "subjects": [subject]}


def job(name: str, pods: int = 3, labels: Object | None = None, **spec: Any) -> Object:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    template = {
        "metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "600s"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    size = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": SPACE, "labels": dict(LABEL if labels is None else labels)},
        "spec": {**size, "template": template, **spec},
    }


def jobset(name: str, labels: Object | None = None, **spec: Any) -> Object:
    def replicated(role: str, replicas: int, pods: int) -> Object:
        return {"name": role, "replicas": replicas, "template": {"spec": job("", pods)["spec"]}}

    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": SPACE, "labels": dict(LABEL if labels is None else labels)},
        "spec": {"replicatedJobs": [replicated("driver", 1, 1), replicated("workers", 2, 2)], **spec},
    }


def admission(**hosts: Sequence[str]) -> Admission:
    def one(name: str) -> PodSetAssignment:
        domains = tuple(Domain((f"host-{host}",), 1) for host in hosts[name])
        topology = TopologyAssignment((HOSTNAME_LABEL,), domains)
        return PodSetAssignment(name, (("nvidia.com/gpu", "gpu"),), (), len(domains), topology)

    return Admission("team-a", tuple(one(name) for name in hosts))


def _plural(kind: JobKind) -> str:
    return f"{kind.plural}.{kind.group}"


def start(muster: ApiClient, kind: JobKind, name: str, can_rank: Any = True, **hosts: Any) -> Object:
    """Hosts of each pod set by their numbers: main="201"."""

    def started() -> Object:
        raw = muster.get(_plural(kind), name, SPACE)
        plan = pins.start(kind, raw, "w-1", admission(**hosts), {"gpu": FLAVOR}, NAMES, can_rank=can_rank)
        assert not plan.problems
        return muster.patch(_plural(kind), name, plan.patch, SPACE, fieldManager=NAMES.job_manager)

    return muster.wait(started, 10, "the start to be accepted")


def stop(muster: ApiClient, kind: JobKind, name: str) -> Object:
    """Suspend, wait, restore; the object as it is then."""
    plural = _plural(kind)
    raw = muster.get(plural, name, SPACE)
    muster.patch(plural, name, pins.suspend(raw, NAMES), SPACE, fieldManager=NAMES.job_manager)

    def gone() -> bool:
        seen = muster.get(plural, name, SPACE)
        return condition(seen, "Suspended") == "True" and not seen["status"].get("active")

    muster.wait(gone, 20, "the job to be suspended")

    def restored() -> Object:
        seen = muster.get(plural, name, SPACE)
        patch = pins.restore(seen, NAMES)
        return seen if patch is None else muster.patch(plural, name, patch, SPACE, fieldManager=NAMES.job_manager)

    return muster.wait(restored, 10, "the template to be restored")


def pods_of(cp: ApiClient, name: str, count: int) -> list[Object]:
    def bound() -> list[Object]:
        pods = [p for p in cp.list("pods", SPACE) if p["metadata"]["name"].startswith(f"{name}-")]
        live = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
        assert len(live) == count, [p["metadata"]["name"] for p in live]
        assert all(p["spec"].get("nodeName") for p in live), [p["status"] for p in live]
        return live

    warnings = lambda: [e["message"] for e in cp.list("events", SPACE) if e["type"] == "Warning"]  # noqa: E731
    return cp.wait(bound, 20, f"{count} pods of {name} to be bound", describe=warnings)


def _refused(write: Callable[[], object]) -> str:
    """The message of a refusal by a policy; "" when the write went through."""
    try:
        write()
    except ApiError as error:
        if error.status not in (403, 422) or "AdmissionPolicy" not in error.message:
            raise
        return error.message
    return ""


def _pod(**spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": SPACE, "labels": {NAMES.managed_label: "true"}},
        "spec": {"containers": [{"name": "c", "image": "x"}], "restartPolicy": "Never", **spec},
    }


# ---------------------------------------------------------------- hold


@pytest.mark.parametrize("make", [job, jobset], ids=["Job", "JobSet"])
def test_a_labelled_job_is_held_whatever_it_says_and_an_unlabelled_one_runs(
    plane: ControlPlane, tenant: ApiClient, make: Callable[..., Object]
) -> None:
    manifests: list[Object] = [{}, {"suspend": False}, {"suspend": True}]
    for index, said in enumerate(manifests):
        created = tenant.create(merged(make(f"held-{index}"), {"spec": said}))
        assert created["spec"]["suspend"] is True
    tenant.create(make("free", labels={}))
    plane.wait(lambda: [p for p in plane.list("pods", SPACE) if p["metadata"]["name"].startswith("free-")], 20, "pods")
    assert not [p for p in plane.list("pods", SPACE) if p["metadata"]["name"].startswith("held-")]


def test_who_has_the_right_alone_starts_nothing_and_who_says_it_too_does(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    tenant.create(job("a"))
    on = {"spec": {"suspend": False}}
    for client, manager in ((tenant, "x"), (tenant, NAMES.job_manager), (muster, "x"), (plane, "kubectl")):
        assert client.patch("jobs", "a", on, SPACE, fieldManager=manager)["spec"]["suspend"] is True
    assert plane.patch("jobs", "a", on, SPACE, fieldManager=NAMES.job_manager)["spec"]["suspend"] is False


def _apply(cp: ControlPlane, user: str, form: str, manifest: Object) -> str:
    arguments = {"client": [], "server": ["--server-side"], "force": ["--server-side", "--force-conflicts"]}[form]
    return cp.kubectl("apply", *arguments, "-f", "-", input=json.dumps(manifest), user=user)


def _without_status(obj: Object) -> Object:
    """What clients write of an object, with who wrote it and when; its status may change at any time."""
    fields = [entry for entry in obj["metadata"]["managedFields"] if entry.get("subresource") != "status"]
    kept = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return {"metadata": kept | {"managedFields": fields}, "spec": obj["spec"]}


@pytest.mark.parametrize("form", ["client", "server", "force"])
@pytest.mark.parametrize("said", [None, False, True], ids=["absent", "false", "true"])
@pytest.mark.parametrize(
    ("kind", "user"),
    [(JOB, "tenant"), (JOBSET, "tenant"), (JOB, "admin")],
    ids=["Job-tenant", "JobSet-tenant", "Job-admin"],
)
def test_an_unchanged_manifest_applied_again_changes_nothing(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient, kind: JobKind, user: str, said: bool | None, form: str
) -> None:
    del tenant
    manifest = merged((job if kind is JOB else jobset)("git"), {"spec": {} if said is None else {"suspend": said}})
    _apply(plane, user, form, manifest)
    plural = _plural(kind)

    def seen_suspended() -> Object:
        seen = plane.get(plural, "git", SPACE)
        assert condition(seen, "Suspended") == "True"
        return seen

    held = plane.wait(seen_suspended, 20, "the job to be seen suspended")
    _apply(plane, user, form, manifest)
    again = plane.get(plural, "git", SPACE)
    # Client-side apply writes lists of custom resources anew, and drops what JobSet's webhook put into them.
    rewritten = kind is JOBSET and form == "client"
    if not rewritten:
        assert _without_status(again) == _without_status(held)
    assert again["spec"]["suspend"] is True
    hosts = {"main": "012"} if kind is JOB else {"driver": "0", "workers": "1234"}
    start(muster, kind, "git", **hosts)
    pods_of(plane, "git", sum(map(len, hosts.values())))
    before = plane.get(plural, "git", SPACE)
    if said is True and form == "server":
        # The one form that is told so: it claims a field that is ours, and does not insist.
        with pytest.raises(AssertionError, match=f"conflict with .{NAMES.job_manager}. .*spec.suspend"):
            _apply(plane, user, form, manifest)
    else:
        _apply(plane, user, form, manifest)
    after = plane.get(plural, "git", SPACE)
    assert after["spec"]["suspend"] is False
    if rewritten:
        inner = [[r["template"]["spec"] for r in seen["spec"]["replicatedJobs"]] for seen in (before, after)]
        assert inner[0] == inner[1]
    else:
        assert after["spec"] == before["spec"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert len(pods_of(plane, "git", sum(map(len, hosts.values())))) == sum(map(len, hosts.values()))


@pytest.mark.parametrize("form", ["client", "server", "force"])
def test_a_job_that_says_itself_where_it_may_go_is_applied_again(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient, form: str
) -> None:
    del tenant
    place = {"nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [{"key": "own", "operator": "Exists"}]}
    manifest = merged(job("git"), {"spec": {"template": {"spec": place}}})
    _apply(plane, "tenant", form, manifest)
    start(muster, JOB, "git", main="012")
    before = plane.get("jobs", "git", SPACE)
    spec = before["spec"]["template"]["spec"]
    assert (len(spec["nodeSelector"]), len(spec["tolerations"])) == (2, 3)
    if form == "server":
        # The one form that is told so: it claims what is ours, too, and does not insist.
        with pytest.raises(AssertionError, match=f"conflict.* with .{NAMES.job_manager}"):
            _apply(plane, "tenant", form, manifest)
    else:
        _apply(plane, "tenant", form, manifest)
    after = plane.get("jobs", "git", SPACE)
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
    for change in ({"tolerations": [{"key": "other", "operator": "Exists"}]}, {"nodeSelector": {"other": "a"}}):
        with pytest.raises(AssertionError, match=r"holds room for what it asked for|field is immutable"):
            _apply(plane, "tenant", "force", merged(manifest, {"spec": {"template": {"spec": change}}}))
    restored = stop(muster, JOB, "git")["spec"]["template"]["spec"]
    assert {key: restored[key] for key in place} == place


# ---------------------------------------------------------------- pins


def test_each_pod_of_a_job_gets_the_host_of_its_rank_also_within_terms_of_its_own(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    manifest = job("ranked", pods=4)
    terms = [
        {"matchExpressions": [{"key": "type", "operator": "In", "values": ["kwok"]}]},
        {"matchExpressions": [{"key": "nope", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["host-5"]}]},
    ]
    manifest["spec"]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}
            ],
        }
    }
    tenant.create(manifest)
    start(muster, JOB, "ranked", main="3013")
    for pod in pods_of(plane, "ranked", 4):
        rank = int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
        spec, notes = pod["spec"], pod["metadata"]["annotations"]
        assert spec["nodeName"] == f"host-{'3013'[rank]}"
        assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
            NAMES.priority_class,
            hold.PRIORITY,
            "Never",
        )
        assert spec["nodeSelector"] == {"type": "kwok"}
        assert {"key": "team", "operator": "Equal", "value": "a"} in spec["tolerations"]
        pin = {"key": "metadata.name", "operator": "In", "values": [spec["nodeName"]]}
        required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [t["matchFields"][-1] for t in required["nodeSelectorTerms"]] == [pin] * 3
        assert spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert NAMES.hosts_annotation not in notes
        assert notes[NAMES.pinned_annotation] == "true"


def test_a_stopped_job_is_its_owners_again_and_starts_elsewhere(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    manifest = job("moves")
    manifest["spec"]["template"]["spec"] |= {"nodeSelector": {"kubernetes.io/os": "linux"}}
    created = tenant.create(manifest)
    start(muster, JOB, "moves", main="012")
    pods_of(plane, "moves", 3)
    restored = stop(muster, JOB, "moves")
    assert restored["spec"] == created["spec"]
    assert restored["metadata"].get("annotations") == created["metadata"].get("annotations")
    start(muster, JOB, "moves", main="345")
    assert sorted(p["spec"]["nodeName"] for p in pods_of(plane, "moves", 3)) == ["host-3", "host-4", "host-5"]


def test_a_jobset_evicted_and_admitted_elsewhere_keeps_nothing_of_its_old_place(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    created = tenant.create(jobset("set"))
    plane.wait(lambda: condition(plane.get("jobsets", "set", SPACE), "Suspended"), 20, "the JobSet to be seen")

    def placed(driver: str, workers: str) -> None:
        start(muster, JOBSET, "set", driver=driver, workers=workers)
        hosts = {
            (
                p["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"],
                p["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"],
                p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"],
            ): p["spec"]["nodeName"]
            for p in pods_of(plane, "set", 5)
        }
        wanted = {("driver", "0", "0"): driver} | {
            ("workers", str(i // 2), str(i % 2)): workers[i] for i in range(len(workers))
        }
        assert hosts == {key: f"host-{host}" for key, host in wanted.items()}

    placed("0", "1234")
    restored = stop(muster, JOBSET, "set")
    assert restored["spec"] == created["spec"]
    plane.wait(lambda: not plane.list("pods", SPACE), 20, "its pods to go")
    placed("5", "4321")
    stop(muster, JOBSET, "set")
    plane.wait(lambda: not plane.list("pods", SPACE), 20, "its pods to go")
    child = plane.get("jobs", "set-workers-0", SPACE)
    patch = pins.restore_child(child, restored, NAMES)
    assert patch
    clean = muster.patch("jobs", "set-workers-0", patch, SPACE, fieldManager=NAMES.job_manager)
    assert "muster.dev/" not in json.dumps(clean["spec"]["template"])


def test_a_pod_made_again_gets_its_slot_and_gates_place_what_has_no_rank(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    tenant.create(job("again", pods=2, backoffLimit=5))
    start(muster, JOB, "again", main="25")
    first = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods_of(plane, "again", 2)}
    victim = next(name for name in first if name.startswith("again-1-"))
    plane.delete("pods", victim, SPACE, gracePeriodSeconds=0)
    plane.wait(lambda: victim not in {p["metadata"]["name"] for p in plane.list("pods", SPACE)}, 10, "it to go")
    assert sorted(p["spec"]["nodeName"] for p in pods_of(plane, "again", 2)) == ["host-2", "host-5"]

    tenant.create(job("gated", pods=3, completionMode="NonIndexed"))
    start(muster, JOB, "gated", main="044")

    def gated() -> list[Object]:
        return [
            p
            for p in plane.list("pods", SPACE)
            if p["metadata"]["name"].startswith("gated-") and pins.is_gated(p, NAMES)
        ]

    waiting = plane.wait(lambda: gated() if len(gated()) == 3 else None, 20, "three gated pods")
    assert waiting
    message = _refused(
        lambda: tenant.patch("pods", waiting[0]["metadata"]["name"], {"spec": {"schedulingGates": None}}, SPACE)
    )
    assert NAMES.topology_gate in message
    for pod, host in zip(waiting, ("host-0", "host-4", "host-4"), strict=True):
        muster.patch("pods", pod["metadata"]["name"], pins.ungate(pod, host, NAMES), SPACE)
    assert sorted(p["spec"]["nodeName"] for p in pods_of(plane, "gated", 3)) == ["host-0", "host-4", "host-4"]


def test_without_the_policy_that_pins_pods_there_are_no_pods(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    tenant.create(job("bare"))
    binding = plane.get("mutatingadmissionpolicybindings", "muster-pins")
    plane.delete("mutatingadmissionpolicybindings", "muster-pins")
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "bare", "uid": "b", "controller": True}
        marks = {"annotations": {NAMES.pin_form_annotation: "domain"}, "ownerReferences": [owner]}
        pod = merged(_pod(), {"metadata": marks})
        # An administrator's pod is let through by the rule of identity, so this asks the rule of pins alone.
        plane.wait(
            lambda: "has no pin" in _refused(lambda: plane.create(pod, dryRun="All")), 20, "the policy to be gone"
        )
        start(muster, JOB, "bare", main="012")
        refusals = lambda: [e for e in plane.list("events", SPACE) if "has no pin" in e["message"]]  # noqa: E731
        plane.wait(refusals, 20, "refused pods")
        assert not [p for p in plane.list("pods", SPACE) if p["metadata"]["name"].startswith("bare-")]
    finally:
        plane.apply(
            {key: binding[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "muster-pins"}}
        )
    plane.wait(lambda: not _refused(lambda: plane.create(pod, dryRun="All")), 20, "the policy to be back")
    plane.wait(lambda: len([p for p in plane.list("pods", SPACE) if "bare-" in p["metadata"]["name"]]) == 3, 60, "pods")


def test_a_held_job_that_its_owner_edits_takes_no_start(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    tenant.create(job("edited"))
    plane.wait(lambda: condition(plane.get("jobs", "edited", SPACE), "Suspended"), 20, "the job to be seen")
    time.sleep(0.5)
    raw = plane.get("jobs", "edited", SPACE)
    plan = pins.start(JOB, raw, "w-1", admission(main="012"), {"gpu": FLAVOR}, NAMES, can_rank=True)
    tenant.patch("jobs", "edited", {"spec": {"parallelism": 400}}, SPACE)
    with pytest.raises(ApiError) as refused:
        muster.patch("jobs", "edited", plan.patch, SPACE, fieldManager=NAMES.job_manager)
    assert refused.value.status in (409, 422)
    assert plane.get("jobs", "edited", SPACE)["spec"]["suspend"] is True


def test_a_foreign_pod_of_higher_priority_takes_no_pod_of_a_gang(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "hold-high"}}
    plane.apply({**high, "value": 900_000_000, "preemptionPolicy": "PreemptLowerPriority"})
    tenant.create(job("gang", pods=2))
    start(muster, JOB, "gang", main="00")
    before = {p["metadata"]["uid"] for p in pods_of(plane, "gang", 2)}
    foreign = _pod(priorityClassName="hold-high", nodeSelector={HOSTNAME_LABEL: "host-0"})
    foreign["metadata"]["labels"] = {}
    foreign["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    tenant.create(foreign)
    plane.wait(
        lambda: condition(plane.get("pods", "p", SPACE), "PodScheduled") == "False", 20, "it to be refused a node"
    )
    time.sleep(1)
    assert {p["metadata"]["uid"] for p in pods_of(plane, "gang", 2)} == before
    assert not plane.get("pods", "p", SPACE)["status"].get("nominatedNodeName")


# ---------------------------------------------------------------- label games


def test_label_games(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    label = NAMES.queue_label
    # Taken off, or changed, while it runs; put on while it runs.
    tenant.create(job("runs"))
    start(muster, JOB, "runs", main="012")
    for value in (None, "other"):
        assert label in _refused(
            functools.partial(tenant.patch, "jobs", "runs", {"metadata": {"labels": {label: value}}}, SPACE)
        )
    tenant.create(job("plain", labels={}))
    assert label in _refused(lambda: tenant.patch("jobs", "plain", {"metadata": {"labels": LABEL}}, SPACE))
    # While it waits, it may go to another queue.
    tenant.create(job("waits"))
    tenant.patch("jobs", "waits", {"metadata": {"labels": {label: "other"}}}, SPACE)
    # Off with the label and on with the job in one write: it stays suspended.
    both = {"metadata": {"labels": {label: None}}, "spec": {"suspend": False}}
    assert tenant.patch("jobs", "waits", both, SPACE)["spec"]["suspend"] is True
    # Inside a JobSet.
    inside = jobset("inside")
    inside["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": LABEL}
    assert "belongs on the JobSet" in _refused(lambda: tenant.create(inside))
    # A child of a held JobSet.
    tenant.create(jobset("set"))
    plane.wait(lambda: plane.find("jobs", "set-driver-0", SPACE), 20, "its child")
    assert tenant.patch("jobs", "set-driver-0", {"spec": {"suspend": False}}, SPACE)["spec"]["suspend"] is True
    assert not [p for p in plane.list("pods", SPACE) if p["metadata"]["name"].startswith("set-")]


def test_the_jobs_of_a_jobset_are_its_own(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    tenant.create(jobset("set"))
    plane.wait(lambda: plane.find("jobs", "set-workers-0", SPACE), 20, "a child")
    child = plane.get("jobs", "set-workers-0", SPACE)
    edits: dict[str, Object] = {
        "resources": _in_template(
            {"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "64"}}}]}}
        ),
        "parallelism": {"spec": {"parallelism": 400}},
        "owner": {"metadata": {"ownerReferences": None}},
        "place": {"metadata": {"labels": {"jobset.sigs.k8s.io/replicatedjob-name": "driver"}}},
        "no place": {"metadata": {"labels": {"jobset.sigs.k8s.io/replicatedjob-name": None}}},
    }

    def refused() -> dict[str, bool]:
        return {
            name: "made and changed by the JobSet controller"
            in _refused(functools.partial(tenant.patch, "jobs", "set-workers-0", edit, SPACE))
            for name, edit in edits.items()
        }

    assert all(refused().values()), refused()
    # One that only says that it is a child would be started with the others.
    forged = job("forged", pods=400, labels={"jobset.sigs.k8s.io/replicatedjob-name": "workers"}, suspend=True)
    forged["metadata"]["ownerReferences"] = child["metadata"]["ownerReferences"]
    assert "made and changed by the JobSet controller" in _refused(lambda: tenant.create(forged))
    plane.wait(lambda: condition(plane.get("jobsets", "set", SPACE), "Suspended"), 20, "the JobSet to be seen")
    # As by `kubectl label jobs --all`: it is started with its JobSet, whose Jobs have no queue of their own.
    tenant.patch("jobs", "set-workers-0", {"metadata": {"labels": LABEL}}, SPACE)
    start(muster, JOBSET, "set", driver="0", workers="1234")
    pods_of(plane, "set", 5)
    edits.pop("resources")  # the API server itself refuses it of a Job that runs
    assert all(refused().values()), refused()
    # The garbage collector takes the owner from them; what they are does not change with it.
    tenant.delete("jobsets", "set", SPACE, propagationPolicy="Orphan")
    plane.wait(
        lambda: not plane.get("jobs", "set-workers-0", SPACE)["metadata"].get("ownerReferences"), 30, "an orphan"
    )
    grown = _refused(lambda: tenant.patch("jobs", "set-workers-0", {"spec": {"parallelism": 400}}, SPACE))
    assert "holds room" in grown
    off = {"spec": {"suspend": True}}
    assert tenant.patch("jobs", "set-workers-0", off, SPACE)["spec"]["suspend"] is False
    pods_of(plane, "set", 5)


def test_a_pod_of_a_gang_stays_its_own(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    tenant.create(job("gang", pods=2))
    start(muster, JOB, "gang", main="01")
    pod = pods_of(plane, "gang", 2)[0]["metadata"]
    edits: dict[str, tuple[str, Object]] = {
        "owner": ("by which it is counted", {"ownerReferences": None}),
        "finalizer": ("by which it is counted", {"finalizers": None}),
        "selector": ("by which it is counted", {"labels": {"batch.kubernetes.io/controller-uid": "x"}}),
        "pinned": ("by which it is counted", {"annotations": {NAMES.pinned_annotation: None}}),
        "marker": ("changed by Muster only", {"labels": {NAMES.managed_label: None}}),
        "gang": ("changed by Muster only", {"labels": {NAMES.workload_uid_label: "other"}}),
    }
    for name, (said, meta) in edits.items():
        message = _refused(functools.partial(tenant.patch, "pods", pod["name"], {"metadata": meta}, SPACE))
        assert said in message, (name, message)
    for_years = {"gracePeriodSeconds": 10**9}
    assert "s to end" in _refused(lambda: tenant.delete("pods", pod["name"], SPACE, **for_years))
    here = f"/api/v1/namespaces/{SPACE}/pods"
    for path in (f"{here}/{pod['name']}", here):  # one, and all that are there
        assert "s to end" in _refused(functools.partial(tenant.request, "DELETE", path, for_years)), path
    meta = {"name": pod["name"], "namespace": SPACE, "labels": {NAMES.managed_label: "false"}}
    taken = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    apply = functools.partial(tenant.apply, taken, NAMES.job_manager)
    assert "changed by Muster only" in _refused(apply)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"], "namespace": SPACE}}
    path = f"{here}/{pod['name']}/eviction"
    assert "s to end" in _refused(lambda: tenant.request("POST", path, {**eviction, "deleteOptions": for_years}))
    # Who drains nodes gives pods of others as long as they have.
    rules = [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    plane.apply({**_rbac("ClusterRole", "hold-drain"), "rules": rules})
    plane.apply(_binding("ClusterRoleBinding", "hold-drain", "drainer"))
    dry = {**eviction, "deleteOptions": {**for_years, "dryRun": ["All"]}}
    plane.as_user("drainer").request("POST", path, dry)
    assert "deletionTimestamp" not in plane.get("pods", pod["name"], SPACE)["metadata"]
    tenant.patch("pods", pod["name"], {"metadata": {"labels": {"role": "master"}}}, SPACE)
    # The Job controller and the garbage collector still do what they must.
    tenant.delete("jobs", "gang", SPACE, propagationPolicy="Background")
    plane.wait(lambda: not plane.list("pods", SPACE), 30, "its pods to go")


def test_a_job_that_holds_room_keeps_its_size(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    tenant.create(job("big"))
    start(muster, JOB, "big", main="012")
    assert "holds room" in _refused(lambda: tenant.patch("jobs", "big", {"spec": {"parallelism": 2}}, SPACE))
    assert "holds room" in _refused(
        lambda: tenant.patch("jobs", "big", {"spec": {"parallelism": 400, "completions": 400}}, SPACE)
    )
    assert "restore" in _refused(
        lambda: tenant.patch("jobs", "big", {"metadata": {"annotations": {RESTORE: None}}}, SPACE)
    )
    pods_of(plane, "big", 3)


def test_a_jobset_of_more_jobs_than_its_controller_should_make_is_refused_with_numbers(
    plane: ControlPlane, tenant: ApiClient
) -> None:
    many = jobset("many")
    replicate(many, 1, 4096)
    assert "at most 4096 Jobs" in _refused(lambda: tenant.create(many))
    replicate(many, 1, 4095)
    assert tenant.create(many, dryRun="All")["spec"]["suspend"] is True
    replicate(many, 1, 2)
    tenant.create(many)
    replicas = [{"op": "replace", "path": "/spec/replicatedJobs/1/replicas", "value": 2**31 - 1}]
    assert "at most 4096 Jobs" in _refused(lambda: tenant.patch("jobsets", "many", replicas, SPACE))
    plane.wait(lambda: plane.find("jobs", "many-workers-1", SPACE), 20, "its Jobs, held")


def test_a_jobset_that_holds_room_restarts_as_it_did_before(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    """The rule of its kind sees no field that was not there before."""
    restarts = {"spec": {"failurePolicy": {"maxRestarts": 3}}}
    tenant.create(jobset("once"))
    start(muster, JOBSET, "once", driver="0", workers="1234")
    assert "holds room" in _refused(lambda: tenant.patch("jobsets", "once", restarts, SPACE))
    tenant.create(jobset("waits"))
    tenant.patch("jobsets", "waits", restarts, SPACE)


def test_who_may_make_pods_of_gangs(plane: ControlPlane, tenant: ApiClient) -> None:
    index = {"batch.kubernetes.io/job-completion-index": "7"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    forged: dict[str, Object] = {
        "no pin": {},
        "in a domain": {"annotations": {NAMES.pin_form_annotation: "domain"}},
        "of no rank": {"annotations": {NAMES.pin_form_annotation: "ranks"}},
        "beyond all ranks": {
            "annotations": {NAMES.pin_form_annotation: "ranks", NAMES.hosts_annotation: "host-0"},
            "labels": index,
        },
        "of no node": {"annotations": {NAMES.pin_form_annotation: "domain", NAMES.selector_annotation: "x"}},
        "of a Job": {"ownerReferences": [owner]},
    }
    instead = f"remove the label, and make a Job or a JobSet with the label {NAMES.queue_label} instead"
    for name, meta in forged.items():
        said = _refused(functools.partial(tenant.create, merged(_pod(), {"metadata": meta})))
        assert instead in said, (name, said)
        assert "no such key" not in said, (name, said)
    other = _pod(priorityClassName=NAMES.priority_class)
    other["metadata"]["labels"] = {}
    assert "PriorityClass" in _refused(lambda: tenant.create(other))
    crafted = job("crafted", labels={})
    crafted["spec"]["template"]["metadata"]["labels"] = {NAMES.managed_label: "true"}
    assert "written by Muster only" in _refused(lambda: tenant.create(crafted))
    gated = job("gated", labels={})
    gated["spec"]["template"]["spec"]["schedulingGates"] = [{"name": NAMES.topology_gate}]
    assert "written by Muster only" in _refused(lambda: tenant.create(gated))


def test_the_installation_is_taken_as_it_is(plane: ControlPlane) -> None:
    program, *arguments = block("docs/install.md", "kubectl apply --server-side -k config").text.split()
    assert (program, arguments.pop()) == ("kubectl", "config")
    made = plane.kubectl(*arguments, str(ROOT / "config"), "--force-conflicts", "--dry-run=server")
    assert "deployment.apps/muster-controller serverside-applied" in made
    for kind in ("mutatingadmissionpolicies", "validatingadmissionpolicies"):
        for policy in plane.list(kind):
            assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings"), policy


def test_what_kubectl_installed_another_manager_may_apply_too(plane: ControlPlane) -> None:
    files = ["config/policies.yaml", "config/priority.yaml", "config/roles.yaml"]
    arguments = [argument for file in files for argument in ("-f", str(ROOT / file))]
    try:
        plane.kubectl("apply", "--server-side", "--force-conflicts", *arguments)
        said = plane.kubectl("apply", "--server-side", "--field-manager=helm", "--dry-run=server", *arguments)
    finally:
        plane.apply(policies.objects(NAMES))  # with the rights of both modes, as it was
    assert said.count("serverside-applied") == sum((ROOT / f).read_text().count("apiVersion: ") for f in files)


def test_in_governed_namespaces_every_job_is_held(plane: ControlPlane, tenant: ApiClient) -> None:
    settings = Settings(governed_namespaces={"matchLabels": {"muster": "governed"}})
    extra = [o for o in policies.policies(NAMES, settings) if o["metadata"]["name"].endswith("-namespaces")]
    assert len(extra) == 10
    above = _pod(priorityClassName="system-node-critical")
    above["metadata"]["labels"] = {}
    tenant.create(above, dryRun="All")  # Kubernetes itself lets everybody do so
    plane.patch("namespaces", SPACE, {"metadata": {"labels": {"muster": "governed"}}})
    plane.apply(extra)
    try:
        plain = job("plain", labels={})
        plane.wait(lambda: tenant.create(plain, dryRun="All")["spec"]["suspend"], 20, "the policy to be in force")
        # Each policy comes into force by itself: waited for one by one.
        refused = "would preempt admitted gangs"
        plane.wait(lambda: refused in _refused(lambda: tenant.create(above, dryRun="All")), 20, "the other in force")
        tenant.create(plain)
        assert tenant.patch("jobs", "plain", {"spec": {"suspend": False}}, SPACE)["spec"]["suspend"] is True
        tenant.create(jobset("set"))
        plane.wait(lambda: plane.find("jobs", "set-workers-1", SPACE), 20, "children of a held JobSet")
    finally:
        plane.patch("namespaces", SPACE, {"metadata": {"labels": {"muster": None}}})
        for obj in extra:
            plane.delete(obj["kind"], obj["metadata"]["name"])


# ---------------------------------------------------------------- the same rows, in Python and in CEL


def patched(value: Any, operations: Sequence[Object]) -> Any:
    """A JSON patch applied; no operation of ours moves or copies."""
    out = copy.deepcopy(value)
    for operation in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        here = out
        for key in path:
            here = here[int(key)] if isinstance(here, list) else here[key]
        if operation["op"] == "remove":
            del here[last]
        elif operation["op"] == "add":
            here[last] = copy.deepcopy(operation["value"])
    return out


def merge_patched(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    out = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            out.pop(key, None)
        else:
            out[key] = merge_patched(out.get(key), change)
    return out


CALLERS = {
    "tenant": ("tenant", "kubectl", hold.Caller(user="tenant", field_manager="kubectl")),
    "tenant, our manager": ("tenant", NAMES.job_manager, hold.Caller(user="tenant", field_manager=NAMES.job_manager)),
    "admin": (
        "admin",
        "kubectl",
        hold.Caller(user="admin", may_admit=True, runs_jobsets=True, field_manager="kubectl"),
    ),
    "muster": (
        "muster",
        NAMES.job_manager,
        hold.Caller(user="muster", may_admit=True, field_manager=NAMES.job_manager),
    ),
    "jobset": (JOBSET_USER, "jobset", hold.Caller(user=JOBSET_USER, runs_jobsets=True, field_manager="jobset")),
}
TEMPLATE = ("spec", "template")


def _in_template(change: Object) -> Object:
    return {"spec": {"template": change}}


CONTAINER = {"name": "c", "image": "x"}


def _selecting(key: str, values: int) -> Object:
    return {"labelSelector": {"matchExpressions": [{"key": key, "operator": "In", "values": _values(values)}]}}


def _values(count: int) -> list[str]:
    return [f"v{i}" for i in range(count)]


def _pods_apart(terms: int, *, values: int = 1) -> Object:
    return {
        "podAntiAffinity": {
            pins.REQUIRED: [
                {"topologyKey": "kubernetes.io/hostname", **_selecting(f"k{i}", values)} for i in range(terms)
            ]
        }
    }


def _spreads(count: int, *, values: int = 1) -> list[Object]:
    how = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**how, "topologyKey": f"k{i}", **_selecting("a", values)} for i in range(count)]


def _on_nodes(terms: int, *, values: int) -> Object:
    term = {"matchExpressions": [{"key": "a", "operator": "In", "values": _values(values)}]}
    return {"nodeAffinity": {pins.REQUIRED: {"nodeSelectorTerms": [term] * terms}}}


def _ports(count: int) -> list[Object]:
    return [{"containerPort": 1 + i, "protocol": "TCP"} for i in range(count)]


def _volumes(count: int) -> list[Object]:
    return [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": "a"}} for i in range(count)]


JOBSET_OWNER = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "set",
    "uid": "00000000-0000-0000-0000-000000000000",
    "controller": True,
}
OTHERWISE_OWNED: dict[str, Object] = {
    "of another kind": {"kind": "Train"},
    "of another group": {"apiVersion": "example.com/v1"},
    "that does not control it": {"controller": False},
}
CHANGES: dict[str, Object] = {
    "nothing": {},
    "on": {"spec": {"suspend": False}},
    "suspend removed": {"spec": {"suspend": None}},
    "off": {"spec": {"suspend": True}},
    "label off": {"metadata": {"labels": {NAMES.queue_label: None}}},
    "label changed": {"metadata": {"labels": {NAMES.queue_label: "other"}}},
    "another time": {"metadata": {"labels": {NAMES.max_exec_time_label: "60"}}},
    "label off, on": {"metadata": {"labels": {NAMES.queue_label: None}}, "spec": {"suspend": False}},
    "label changed, on": {"metadata": {"labels": {NAMES.queue_label: "z"}}, "spec": {"suspend": False}},
    "pause": {"metadata": {"labels": {NAMES.pause_label: "true"}}},
    "restore written": {"metadata": {"annotations": {RESTORE: "{}"}}},
    "restore emptied": {"metadata": {"annotations": {RESTORE: ""}}},
    "restore removed": {"metadata": {"annotations": {RESTORE: None}}},
    "grows": {"spec": {"parallelism": 9}},
    "asks for no pods": {"spec": {"parallelism": 0}},
    "asks for none of another kind": {"spec": {"parallelism": 0, "completions": 9}},
    "marker": _in_template({"metadata": {"labels": {NAMES.managed_label: "true"}}}),
    "hosts": _in_template({"metadata": {"annotations": {NAMES.hosts_annotation: "host-0"}}}),
    "other annotation": _in_template({"metadata": {"annotations": {"example.com/a": "b"}}}),
    "gate": _in_template({"spec": {"schedulingGates": [{"name": NAMES.topology_gate}]}}),
    "owners off": {"metadata": {"ownerReferences": None}},
    "place in its set": {"metadata": {"labels": {"jobset.sigs.k8s.io/replicatedjob-name": "other"}}},
    "owner put on": {"metadata": {"ownerReferences": [JOBSET_OWNER]}},
    **{
        f"owner {which} put on": {"metadata": {"ownerReferences": [{**JOBSET_OWNER, **said}]}}
        for which, said in OTHERWISE_OWNED.items()
    },
    "bigger": _in_template({"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}),
    "patient": _in_template({"spec": {"terminationGracePeriodSeconds": 3601}}),
    "as patient as may be": _in_template({"spec": {"terminationGracePeriodSeconds": 3600}}),
    "notes": {"metadata": {"annotations": {"example.com/a": "x" * (64 << 10)}}},
    "notes of many bytes": {"metadata": {"annotations": {"example.com/a": "é" * (33 << 10)}}},
    "as many bytes of notes as may be": {"metadata": {"annotations": {"example.com/a": "é" * (30 << 10)}}},
    "notes inside": _in_template({"metadata": {"annotations": {"example.com/a": "x" * (64 << 10)}}}),
    "labels": _in_template({"metadata": {"labels": {f"l{i}": "" for i in range(257)}}}),
    "many expressions": _in_template(
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        pins.REQUIRED: {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}] * 300}]
                        }
                    }
                }
            }
        }
    ),
    "many terms": _in_template(
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        pins.REQUIRED: {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * 129
                        }
                    }
                }
            }
        }
    ),
    "many tolerations": _in_template(
        {"spec": {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(257)]}}
    ),
    "many pod terms": _in_template({"spec": {"affinity": _pods_apart(33)}}),
    "as many pod terms as may be": _in_template({"spec": {"affinity": _pods_apart(32, values=5)}}),
    "many values in pod terms": _in_template({"spec": {"affinity": _pods_apart(2, values=128)}}),
    "many spreads": _in_template({"spec": {"topologySpreadConstraints": _spreads(33)}}),
    "as many spreads as may be": _in_template({"spec": {"topologySpreadConstraints": _spreads(32)}}),
    "many values in spreads": _in_template({"spec": {"topologySpreadConstraints": _spreads(2, values=128)}}),
    "many values of nodes": _in_template({"spec": {"affinity": _on_nodes(1, values=4097)}}),
    "as many values of nodes as may be": _in_template({"spec": {"affinity": _on_nodes(128, values=32)}}),
    "many labels of nodes": _in_template({"spec": {"nodeSelector": {f"k{i}": "v" for i in range(257)}}}),
    "as many labels of nodes as may be": _in_template({"spec": {"nodeSelector": {f"k{i}": "v" for i in range(256)}}}),
    "many ports": _in_template({"spec": {"containers": [{**CONTAINER, "ports": _ports(129)}]}}),
    "as many ports as may be": _in_template({"spec": {"containers": [{**CONTAINER, "ports": _ports(128)}]}}),
    "many claims": _in_template({"spec": {"volumes": _volumes(65)}}),
    "as many claims as may be": _in_template({"spec": {"volumes": _volumes(64)}}),
    "of the system": _in_template({"spec": {"priorityClassName": "system-node-critical"}}),
    "of gangs": _in_template({"spec": {"priorityClassName": NAMES.priority_class}}),
    "run by another": {"spec": {"managedBy": "example.com/other"}},
    "run by its own": {"spec": {"managedBy": "kubernetes.io/job-controller"}},
}


def _verdict(old: Object | None, new: Object, caller: hold.Caller) -> tuple[str, Any]:
    """("refused", message) or ("suspend", value) by the rules in Python."""
    after = patched(new, hold.mutate_job(old, new, caller, NAMES))
    message = hold.validate_job(old, after, caller, NAMES)
    return ("refused", message) if message else ("suspend", after["spec"].get("suspend") is True)


def _agree(said: tuple[str, Any], got: tuple[str, Any], kind: JobKind, new: Object) -> bool:
    """Where more than one policy refuses, the API server says one of their messages, and not always the same."""
    return got == said or (said[0] == got[0] == "refused" and got[1] in excess(kind, new))


def _asked(write: Callable[[], Object]) -> tuple[str, Any] | None:
    """The same by the API server; None when it refuses for reasons of its own."""
    try:
        return "suspend", write()["spec"].get("suspend") is True
    except ApiError as error:
        _, found, message = error.message.partition("denied request: ")
        return ("refused", message) if found else None


def test_python_and_cel_agree_about_jobs(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    clients = {
        user: plane.as_user(user) if ":" in user else plane.with_token(plane.token(user))
        for user, _, _ in CALLERS.values()
    }
    olds = {
        "held": job("held"),
        "unlabelled, off": job("off", labels={}, suspend=True),
        "unlabelled": job("on", labels={}),
    }
    for manifest in olds.values():
        tenant.create(manifest)
    tenant.create(job("started"))
    start(muster, JOB, "started", main="012")
    tenant.create(jobset("set"))
    plane.wait(lambda: plane.find("jobs", "set-driver-0", SPACE), 20, "a child")
    names = {case: manifest["metadata"]["name"] for case, manifest in olds.items()}
    names |= {"started": "started", "child": "set-driver-0"}
    time.sleep(1)  # statuses settle, so that what Python sees is what the API server has
    wrong: list[Any] = []
    rows = 0
    for (case, name), (change, patch) in itertools.product(names.items(), CHANGES.items()):
        old = plane.get("jobs", name, SPACE)
        new = merge_patched(old, patch)
        for who, (user, manager, caller) in CALLERS.items():
            said = _verdict(old, new, caller)
            options = {"fieldManager": manager, "dryRun": "All"}
            got = _asked(functools.partial(clients[user].patch, "jobs", name, patch, SPACE, **options))
            if got is None:
                continue
            rows += 1
            if not _agree(said, got, JOB, new):
                wrong.append((case, change, who, said, got))
    for who, (user, manager, caller) in CALLERS.items():
        for change, patch in CHANGES.items():
            for labels in (LABEL, {}):
                new = merge_patched(job("new", labels=labels), patch)
                new["metadata"].setdefault("labels", {})
                said = _verdict(None, new, caller)
                got = _asked(functools.partial(clients[user].create, new, fieldManager=manager, dryRun="All"))
                if got is None:
                    continue
                rows += 1
                if not _agree(said, got, JOB, new):
                    wrong.append(("created", change, who, labels, said, got))
    assert not wrong, "\n".join(map(str, wrong))
    assert rows > 300


def test_python_and_cel_agree_about_jobsets(plane: ControlPlane, tenant: ApiClient, muster: ApiClient) -> None:
    def child(new: Object) -> Object:
        spec: Object = new["spec"]["replicatedJobs"][1]["template"]["spec"]
        return spec

    def shared(new: Object, limit: str) -> Object:
        child(new)["template"]["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"sizeLimit": limit}}]
        return new

    tenant.create(jobset("held"))
    tenant.create(shared(jobset("started"), "1Gi"))
    plane.wait(lambda: condition(plane.get("jobsets", "started", SPACE), "Suspended"), 20, "the JobSet to be seen")
    start(muster, JOBSET, "started", driver="0", workers="1234")
    tenant.create(jobset("free", labels={}, suspend=True))
    time.sleep(1)

    def edit(change: Callable[[Object], object]) -> Callable[[Object], Object]:
        def made(old: Object) -> Object:
            new = copy.deepcopy(old)
            change(new)
            return new

        return made

    def inner(new: Object) -> Object:
        meta: Object = new["spec"]["replicatedJobs"][1]["template"]["spec"]["template"].setdefault("metadata", {})
        return meta

    def asks(new: Object, **asked: Any) -> None:
        child(new)["template"]["spec"]["containers"][0]["resources"] = {"limits": asked}

    edits = {
        "nothing": edit(lambda new: None),
        "the same amount": edit(lambda new: asks(new, **{"nvidia.com/gpu": 4})),
        "another amount": edit(lambda new: asks(new, **{"nvidia.com/gpu": 5})),
        "an amount more": edit(lambda new: asks(new, **{"nvidia.com/gpu": 4, "cpu": 1})),
        "an amount less": edit(asks),
        "the same size": edit(lambda new: shared(new, "1024Mi")),
        "another size": edit(lambda new: shared(new, "1025Mi")),
        "a container more": edit(lambda new: child(new)["template"]["spec"]["containers"].append(dict(SIDECAR))),
        "on": edit(lambda new: new["spec"].update(suspend=False)),
        "gone": edit(lambda new: new["spec"].pop("suspend", None)),
        "label off": edit(lambda new: new["metadata"].update(labels={})),
        "another time": edit(
            lambda new: new["metadata"].setdefault("labels", {}).update({NAMES.max_exec_time_label: "9"})
        ),
        "label other": edit(lambda new: new["metadata"].update(labels={NAMES.queue_label: "b"})),
        "marker": edit(lambda new: inner(new).setdefault("labels", {}).update({NAMES.managed_label: "true"})),
        "hosts": edit(lambda new: inner(new).setdefault("annotations", {}).update({NAMES.hosts_annotation: "a"})),
        "unmarked": edit(lambda new: inner(new).update(labels={})),
        "written anew": edit(
            lambda new: [r["template"]["spec"]["template"].pop("metadata", 0) for r in new["spec"]["replicatedJobs"]]
        ),
        "fine": edit(lambda new: inner(new).setdefault("annotations", {}).update({"example.com/x": "y"})),
        "run by another": edit(lambda new: new["spec"].update(managedBy="example.com/other")),
        "children run by another": edit(lambda new: child(new).update(managedBy="example.com/other")),
        "children run by their own": edit(lambda new: child(new).update(managedBy="kubernetes.io/job-controller")),
        "many pod terms": edit(lambda new: child(new)["template"]["spec"].update(affinity=_pods_apart(33))),
        "many claims made": edit(
            lambda new: new["spec"].update(
                volumeClaimPolicies=[{"templates": [_claim(f"c{i}") for i in range(33)]} for _ in range(2)]
            )
        ),
        "many Jobs": edit(lambda new: replicate(new, 2, 4095)),
        "as many Jobs as may be": edit(lambda new: replicate(new, 1, 4095)),
        "many Jobs and less than none": edit(lambda new: replicate(new, -(2**31) + 1, 2**31 - 1)),
        "all as much as may be": edit(lambda new: new["spec"].update(replicatedJobs=_as_much_as_may_be(new))),
        "many sets": edit(
            lambda new: new["spec"]["replicatedJobs"].extend(
                {**new["spec"]["replicatedJobs"][0], "name": f"r{i}"} for i in range(17)
            )
        ),
        "as many sets as may be": edit(
            lambda new: new["spec"]["replicatedJobs"].extend(
                {**new["spec"]["replicatedJobs"][0], "name": f"r{i}"} for i in range(16)
            )
        ),
        "patient": edit(
            lambda new: new["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"].update(
                terminationGracePeriodSeconds=10**9
            )
        ),
        "notes": edit(lambda new: new["metadata"].setdefault("annotations", {}).update({"a/b": "x" * (64 << 10)})),
        "labels": edit(
            lambda new: child(new)["template"].update(metadata={"labels": {f"l{i}": "" for i in range(257)}})
        ),
        "label inside": edit(
            lambda new: (
                new["spec"]["replicatedJobs"][0]["template"].setdefault("metadata", {}).update(labels=dict(LABEL))
            )
        ),
        "restore inside": edit(
            lambda new: (
                new["spec"]["replicatedJobs"][0]["template"]
                .setdefault("metadata", {})
                .update(annotations={RESTORE: "{}"})
            )
        ),
        "restore": edit(lambda new: new["metadata"].update(annotations={})),
        "restore emptied": edit(lambda new: new["metadata"].setdefault("annotations", {}).update({RESTORE: ""})),
        "without Jobs": edit(lambda new: new["spec"].pop("replicatedJobs")),
        "replaced": edit(
            lambda new: [
                new["metadata"].pop("annotations", 0),
                *(r["template"]["spec"]["template"].pop("metadata", 0) for r in new["spec"]["replicatedJobs"]),
            ]
        ),
    }
    wrong: list[Any] = []
    rows = 0
    for who, (user, manager, caller) in CALLERS.items():
        if who == "jobset":
            continue
        client = plane.with_token(plane.token(user))
        for name, (change, made) in itertools.product(("held", "started", "free"), edits.items()):
            old = plane.get("jobsets", name, SPACE)
            new = made(old)
            said = _verdict(old, new, caller)
            got = _asked(functools.partial(client.replace, new, fieldManager=manager, dryRun="All"))
            rows += got is not None
            if got is not None and not _agree(said, got, JOBSET, new):
                wrong.append((name, change, who, said, got))
        for change, made in edits.items():
            new = made(jobset("new"))
            said = _verdict(None, new, caller)
            got = _asked(functools.partial(client.create, new, fieldManager=manager, dryRun="All"))
            rows += got is not None
            if got is not None and not _agree(said, got, JOBSET, new):
                wrong.append(("created", change, who, said, got))
    assert not wrong, "\n".join(map(str, wrong))
    assert rows > 80


SIDECAR: Object = {"name": "more", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 4}}}


def replicate(new: Object, *replicas: int) -> None:
    for entry, count in zip(new["spec"]["replicatedJobs"], replicas, strict=True):
        entry["replicas"] = count
        entry["template"]["spec"] |= {"parallelism": 1, "completions": 1}


def _claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


def _as_much_as_may_be(new: Object) -> list[Object]:
    """Sets of a JobSet of which each is at all limits."""
    sets = [copy.deepcopy(new["spec"]["replicatedJobs"][0]) for _ in range(18)]
    for i, entry in enumerate(sets):
        entry["name"], entry["replicas"] = f"r{i}", 4096 // 18
        entry.pop("dependsOn", None)
        spec = entry["template"]["spec"]["template"]["spec"]
        apart = _pods_apart(32, values=5)
        spec |= {
            "affinity": {
                **apart,
                "podAffinity": apart["podAntiAffinity"],
                **_on_nodes(128, values=32),
            },
            "topologySpreadConstraints": _spreads(32, values=5),
            "tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(256)],
            "nodeSelector": {f"k{i}": "v" for i in range(256)},
            "volumes": _volumes(64),
        }
        spec["containers"][0]["ports"] = _ports(128)
    return sets


def _affinity(*terms: Object) -> Object:
    return {"nodeAffinity": {pins.REQUIRED: {"nodeSelectorTerms": list(terms)}}}


POD_ROWS: dict[str, tuple[Object, Object, Object]] = {
    # annotations, labels, spec
    "rank": ({"pin": "ranks", "hosts": "host-0,host-1"}, {"index": "1"}, {}),
    "rank beyond the list": ({"pin": "ranks", "hosts": "host-0"}, {"index": "1"}, {}),
    "rank that is done": ({"pin": "ranks", "hosts": "host-0,,host-2"}, {"index": "1"}, {}),
    "no index": ({"pin": "ranks", "hosts": "host-0"}, {}, {}),
    "no hosts": ({"pin": "ranks"}, {"index": "0"}, {}),
    "stride": ({"pin": "ranks", "hosts": "a,b,c,d", "rank-stride": "2"}, {"index": "1", "job": "1"}, {}),
    "stride 0": ({"pin": "ranks", "hosts": "a,b", "rank-stride": "0"}, {"index": "1", "job": "1"}, {}),
    "empty strings": ({"pin": "domain", "hosts": "", "node-selector": "", "tolerations": ""}, {}, {}),
    "selector": ({"pin": "domain", "node-selector": "a=b,c.d/e=f"}, {}, {"nodeSelector": {"x": "y"}}),
    "selector, none there": ({"pin": "domain", "node-selector": "a=b,c="}, {}, {}),
    "tolerations": (
        {"pin": "domain", "tolerations": "a=b:NoSchedule,c=:,d=e:,f=:NoExecute:60,g=h:NoExecute:5,i==:NoSchedule"},
        {},
        {"tolerations": [{"operator": "Exists"}]},
    ),
    "tolerated for good": (
        {"pin": "domain", "tolerations": "c=:NoSchedule"},
        {},
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]},
    ),
    "tolerated for a while": (
        {"pin": "domain", "tolerations": "c=:NoSchedule"},
        {},
        {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
    ),
    "the flavor tolerates for good": ({"pin": "domain", "tolerations": "c=:NoSchedule,d=e:NoExecute"}, {}, {}),
    "the flavor tolerates all for good": ({"pin": "domain", "tolerations": "c=:NoSchedule,=:NoExecute"}, {}, {}),
    "some of its nodes are tainted": ({"pin": "domain", "tolerations": "muster.dev/no-such-taint=:NoExecute"}, {}, {}),
    "some of the nodes of a Job are": (
        {"pin": "domain"},
        {},
        {"tolerations": [{"key": "muster.dev/no-such-taint", "operator": "Exists", "effect": "NoExecute"}]},
    ),
    "gates": ({"pin": "gates"}, {}, {}),
    "gates, others there": ({"pin": "gates"}, {}, {"schedulingGates": [{"name": "example.com/x"}]}),
    "gates, there": ({"pin": "gates"}, {}, {"schedulingGates": [{"name": NAMES.topology_gate}]}),
    "unknown form": ({"pin": "magic"}, {}, {}),
    "no form": ({}, {}, {}),
    "affinity without node affinity": (
        {"pin": "ranks", "hosts": "host-0"},
        {"index": "0"},
        {"affinity": {"podAffinity": {}}},
    ),
    "preferred only": (
        {"pin": "ranks", "hosts": "host-0"},
        {"index": "0"},
        {
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 5, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
                    ]
                }
            }
        },
    ),
    "terms": (
        {"pin": "ranks", "hosts": "host-0"},
        {"index": "0"},
        {
            "affinity": _affinity(
                {
                    "matchExpressions": [
                        {"key": "a", "operator": "In", "values": ["b", "c"]},
                        {"key": "d", "operator": "Exists"},
                    ]
                },
                {},
                {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["host-9"]}]},
            )
        },
    ),
    "as many terms and values as may be": (
        {"pin": "ranks", "hosts": "host-0"},
        {"index": "0"},
        {"affinity": _on_nodes(128, values=32)},
    ),
    "beyond its child job": (
        {"pin": "ranks", "hosts": "a,b,c,d", "rank-stride": "2"},
        {"index": "2", "job": "0"},
        {},
    ),
    "a list at its limit": (
        {"pin": "ranks", "hosts": ",".join(f"gpu-node-{i:06}.example.internal" for i in range(pins.HOSTS_LIMIT // 33))},
        {"index": str(pins.HOSTS_LIMIT // 33 - 1)},
        {},
    ),
    "priority of its own": ({"pin": "domain"}, {}, {"priorityClassName": "system-node-critical"}),
}


FIELDS = ("affinity", "nodeSelector", "schedulingGates", "priorityClassName", "priority", "preemptionPolicy")


def test_python_and_cel_agree_about_pods(plane: ControlPlane, tenant: ApiClient) -> None:
    del tenant
    by_controller = plane.as_user(JOB_CONTROLLER, ["system:serviceaccounts", "system:serviceaccounts:kube-system"])
    caller = hold.Caller(user=JOB_CONTROLLER)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    wrong: list[Any] = []
    owned = {f"with an owner {which}": said for which, said in OTHERWISE_OWNED.items()}
    rows = {row: (*said, owner) for row, said in POD_ROWS.items()}
    rows |= {row: ({"pin": "domain"}, {}, {}, owner | said) for row, said in owned.items()}
    for row, (notes, labels, spec, of) in rows.items():
        pod = _pod(**copy.deepcopy(spec))
        meta = pod["metadata"]
        meta["ownerReferences"] = [of]
        if notes:
            meta["annotations"] = {f"{NAMES.group}/{key}": value for key, value in notes.items()}
        keys = {"index": "batch.kubernetes.io/job-completion-index", "job": "jobset.sigs.k8s.io/job-index"}
        meta["labels"] |= {keys[key]: value for key, value in labels.items()}
        said: Object | None = None
        try:
            said = patched(pod, hold.mutate_pod(pod, NAMES))
            if hold.validate_pod(None, said, caller, NAMES) is not None:
                said = None
        except hold.UnpinnableError:
            said = None
        got: Object | None = None
        try:
            got = by_controller.create(pod, dryRun="All")
        except ApiError as error:
            if "denied request" not in error.message and error.status != 422:
                raise
        if (said is None) != (got is None):
            wrong.append((row, said, got))
        elif said is not None and got is not None:
            defaults = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
            tolerations = [t for t in got["spec"].get("tolerations", ()) if t.get("key") not in defaults]
            wrong.extend(
                (row, field, said["spec"].get(field), got["spec"].get(field))
                for field in FIELDS
                if said["spec"].get(field) != got["spec"].get(field)
            )
            if said["spec"].get("tolerations", []) != tolerations:
                wrong.append((row, "tolerations", said["spec"].get("tolerations"), tolerations))
            if said["metadata"].get("annotations") != got["metadata"].get("annotations"):
                wrong.append(
                    (row, "annotations", said["metadata"].get("annotations"), got["metadata"].get("annotations"))
                )
    assert not wrong, "\n".join(map(str, wrong))


def test_the_owners_form_of_a_running_job_is_what_its_owner_wrote(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    for kind, manifest, hosts in (
        (JOB, job("one"), {"main": "012"}),
        (JOBSET, jobset("many"), {"driver": "3", "workers": "4455"}),
    ):
        created = tenant.create(manifest)
        name = manifest["metadata"]["name"]
        start(muster, kind, name, **hosts)
        running = plane.get(_plural(kind), name, SPACE)
        assert owners_form(running, NAMES)["spec"] == {**created["spec"], "suspend": False}


# ---------------------------------------------------------------- the same by webhook


class _Reviews:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def create(self, path: str, obj: Object, /) -> Object:
        answer: Object = await asyncio.to_thread(self._client.request, "POST", path, obj)
        return answer


def test_the_webhook_holds_and_pins_where_there_are_no_policies(
    plane: ControlPlane, tenant: ApiClient, muster: ApiClient
) -> None:
    """Under another group's names, for which this API server has no policies."""
    names = Names(KUEUE_GROUP)
    held = certificates.issue(None, ("127.0.0.1",), datetime.now(UTC))  # noqa: TID251 - TLS looks at the clock
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    webhook = Webhook(Access(_Reviews(plane)), names, has_queue=lambda *queue: queue == (SPACE, DEFAULT_QUEUE))
    runner = run(webhook.serve(0, certificates.context(held), host="127.0.0.1"))
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    made = configurations(names, ca_bundle=held.bundle, url=url, defaulted_namespaces={})
    # Both groups give their pods the same class here, and the policies know only their own.
    guard = [o for o in policies.policies(NAMES) if o["metadata"]["name"] == "muster-priority-class"]
    role = {"apiGroups": [names.group], "resources": ["workloads"], "verbs": ["admit"]}
    labels = {names.queue_label: "q"}
    try:
        plane.apply([*made, {**_rbac("ClusterRole", "hold-admit"), "rules": [role]}])
        plane.apply(_binding("ClusterRoleBinding", "hold-admit", "muster"))
        plane.delete("validatingadmissionpolicybindings", "muster-priority-class")
        plane.wait(lambda: tenant.create(job("w", labels=labels), dryRun="All")["spec"]["suspend"], 20, "the webhook")
        assert tenant.create(job("w", labels=labels))["spec"]["suspend"] is True
        plane.wait(lambda: condition(plane.get("jobs", "w", SPACE), "Suspended"), 20, "the job to be seen")
        assert tenant.patch("jobs", "w", {"spec": {"suspend": False}}, SPACE)["spec"]["suspend"] is True
        raw = muster.get("jobs", "w", SPACE)
        plan = pins.start(JOB, raw, "w-1", admission(main="321"), {"gpu": FLAVOR}, names, can_rank=True)
        muster.patch("jobs", "w", plan.patch, SPACE, fieldManager=names.job_manager)
        found = {p["metadata"]["name"][:3]: p["spec"]["nodeName"] for p in pods_of(plane, "w", 3)}
        assert found == {"w-0": "host-3", "w-1": "host-2", "w-2": "host-1"}
        with pytest.raises(ApiError, match="holds room"):
            tenant.patch("jobs", "w", {"spec": {"parallelism": 1}}, SPACE)
        nothing: tuple[Object, ...] = ({names.queue_label: ""}, {})
        for plain in [made_of("plain", labels=said) for said in nothing for made_of in (job, jobset)]:
            seen = tenant.create(plain, dryRun="All")
            assert (seen["metadata"]["labels"], seen["spec"]["suspend"]) == ({names.queue_label: "default"}, True)
        assert (
            "suspend" not in plane.create(merged(plain, {"metadata": {"namespace": "default"}}), dryRun="All")["spec"]
        )
        run(runner.cleanup())
        tenant.create(job("free", labels={}))  # nobody answers, and jobs without the label go on
        pods_of(plane, "free", 3)
        with pytest.raises(ApiError):
            tenant.create(job("stuck", labels=labels))
    finally:
        for obj in made:
            plane.delete(obj["kind"], "muster")
        plane.apply(guard)
        run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
