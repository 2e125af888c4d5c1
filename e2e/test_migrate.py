"""From Kueue to Muster: a cluster with jobs that Kueue admitted, as Kueue leaves it when its controller is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from admission.controller import migrate, policies
from admission.controller.ask import Ask
from admission.controller.installation import Settings
from admission.jobs.kinds import at
from admission.jobs.values import rfc3339
from admission.kube.client import Client
from admission.names import KUEUE_GROUP, Names
from admission.sandbox.play import free_port
from e2e.api_client import APPLY, ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, done, entry_of, running_pods, workload_of
from e2e.installed import NAMES, Installed, job, jobset
from e2e.kueue import LEASE, Kueue, available, kinds
from e2e.prompt import Prompt
from tests.docs.blocks import block

KUEUE = Names(KUEUE_GROUP)
WORKLOADS = f"workloads.{KUEUE_GROUP}"
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
def kueue(muster: Installed) -> Iterator[ControlPlane]:
    """Two nodes, a namespace, and Kueue's CRDs."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")
    with kinds(cp):
        yield cp
        unbind(cp)


def unbind(cp: ControlPlane) -> None:
    """No policy of Muster's binds; those of both groups have the same names."""
    for one in policies.policies(KUEUE, Settings(governed_namespaces={}, defaulted_namespaces={})):
        if one["kind"].endswith("PolicyBinding"):
            cp.delete(f"{one['kind'].lower()}s", one["metadata"]["name"])


def theirs(kind: str, name: str, spec: Object, namespace: str = "") -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": KUEUE.api_version, "kind": kind, "metadata": meta, "spec": spec}


def set_up(cp: ControlPlane) -> None:
    quota = {"name": GPU, "nominalQuota": 16}
    cp.apply(
        [
            theirs("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}),
            theirs("ResourceFlavor", "cloud", {"nodeLabels": {"gpu": "none"}}),
            theirs("AdmissionCheck", "capacity", {"controllerName": f"{KUEUE_GROUP}/provisioning-request"}),
            theirs("ClusterQueue", "team-a", {
                "namespaceSelector": {},
                "resourceGroups": [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]}],
            }),
            theirs("LocalQueue", "main", {"clusterQueue": "team-a"}, "team-a"),
        ]
    )  # fmt: skip


def stands_for(cp: ControlPlane, owner: Object, template: Object, **spec: Any) -> str:
    """The name of a Workload of Kueue's that is made for a job with one pod."""
    meta = owner["metadata"]
    workload = theirs("Workload", f"{owner['kind'].lower()}-{meta['name']}-abcde", {
        "queueName": "main", "priority": 7, **spec,
        "podSets": [{"name": "main", "count": 1, "template": {"spec": template["spec"]}}],
    }, "team-a")  # fmt: skip
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {key: meta[key] for key in ("name", "uid")}
    workload["metadata"] |= {
        "labels": {KUEUE.job_uid_label: meta["uid"]},
        "finalizers": [KUEUE.finalizer],
        "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
    }
    return str(cp.create(workload)["metadata"]["name"])


def stopped_by_hand(cp: ControlPlane, made: Object, template: Object) -> None:
    """A job that asks for a topology and waits, for somebody switched off the Workload that Kueue made for it."""
    template["metadata"] = {"annotations": {KUEUE.required_topology_annotation: "rack"}}
    made["spec"]["suspend"] = True
    stands_for(cp, cp.create(made), template, active=False)


def admitted_by_kueue(cp: ControlPlane, name: str, gpus: int) -> None:
    """A Job that runs with the Workload that Kueue made for it."""
    made = job("team-a", name, 1, gpus=gpus, seconds=None, queue=None, labels={KUEUE.queue_label: "main"})
    made["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "h100"}
    owner = cp.create(made)
    admit(cp, stands_for(cp, owner, made["spec"]["template"]), gpus, NOW)


def admit(cp: ControlPlane, name: str, gpus: int, at: str) -> None:
    """What Kueue writes of a Workload that it admits."""
    usage = {"name": "main", "count": 1, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: str(gpus)}}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at}
        for kind in ("QuotaReserved", "Admitted")
    ]
    admission = {"clusterQueue": "team-a", "podSetAssignments": [usage]}
    body = theirs("Workload", name, {}, "team-a")
    body.pop("spec")
    body["status"] = {"conditions": conditions, "admission": admission}
    path = f"/apis/{KUEUE.api_version}/namespaces/team-a/workloads/{name}/status"
    cp.request("PATCH", path, body, params={"fieldManager": KUEUE.admission_manager}, content_type=APPLY)


def guide(cp: ControlPlane, begins: str, *more: str, name: str = "") -> subprocess.CompletedProcess[str]:
    """The block of docs/migrate.md that begins so, line by line, as people start it, with more arguments; `name` for
    NAME. The answer is that of the last line, or of the first that fails."""
    programs = {
        "muster": [sys.executable, "-m", "admission.cli"],
        "kubectl": [str(cp.kubectl_path)],
    }
    for line in block("docs/migrate.md", begins).text.strip().splitlines():
        said = shlex.split(line.replace("NAMESPACE", "team-a").replace("NAME", name), comments=True)
        command = [*programs[said[0]], *said[1:], *more, "--kubeconfig", str(cp.kubeconfig())]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
        if answer.returncode:
            break
    return answer


LED, DEPLOYED = f"lease/{LEASE}", "deployment/kueue-controller-manager"
REGISTERED = [f"apiservice/{version}.visibility.{KUEUE_GROUP}" for version in ("v1beta1", "v1beta2")]


def deploy_kueue(cp: ControlPlane, replicas: int = 1) -> None:
    """A Deployment as Kueue's manifests have it."""
    cp.namespace("kueue-system")
    marks = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    meta = {"name": "kueue-controller-manager", "namespace": "kueue-system", "labels": marks}
    pod = {"metadata": {"labels": marks}, "spec": {"containers": [{"name": "manager", "image": "x"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": marks}, "template": pod}
    cp.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})


def register_visibility(cp: ControlPlane) -> None:
    """Kueue's visibility API, which nobody answers."""
    for version in ("v1beta1", "v1beta2"):
        spec: Object = {"group": f"visibility.{KUEUE_GROUP}", "version": version, "groupPriorityMinimum": 100}
        spec |= {"versionPriority": 100, "insecureSkipTLSVerify": True}
        spec["service"] = {"name": "kueue-visibility-server", "namespace": "kueue-system"}
        meta = {"name": f"{version}.visibility.{KUEUE_GROUP}"}
        cp.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": meta, "spec": spec})


def led_by_kueue(cp: ControlPlane) -> None:
    """The Lease that its leader renewed just now."""
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251 - as its leader does
    held = {"holderIdentity": "kueue-0", "leaseDurationSeconds": 15, "renewTime": renewed}
    meta = {"name": LEASE, "namespace": "kueue-system"}
    cp.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": held})


def a_pod_of_kueues(cp: ControlPlane) -> None:
    """A plain Pod that waits, and its Workload."""
    container = {"name": "main", "image": "x"}
    meta = {
        "name": "plain",
        "namespace": "team-a",
        "labels": {f"{KUEUE_GROUP}/managed": "true"},
        "finalizers": [f"{KUEUE_GROUP}/managed"],
    }
    spec = {"containers": [container], "schedulingGates": [{"name": f"{KUEUE_GROUP}/admission"}]}
    pod = cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    stands_for(cp, pod, {"spec": {"containers": [container]}})


def told(cp: ControlPlane) -> dict[str, Any]:
    """{subject: row} of the command's dry run."""
    answer = guide(cp, "muster import --from kueue\n", "-o", "json")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    return {row["subject"]: row for row in json.loads(answer.stdout)["rows"]}


def imported(cp: ControlPlane, *, apply: bool) -> dict[str, Any]:
    """The same in this process."""

    async def work() -> dict[str, Any]:
        async with Client.plain(cp.url, cp.token(), tls=cp.tls) as client:
            changes = await migrate.from_cluster(Ask(client, NAMES, 0), apply=apply)
        return {row["subject"]: row for row in changes.as_json()["rows"]}

    return asyncio.run(work())


def test_what_kueue_admitted_goes_on_and_what_it_held_is_admitted_by_muster(
    muster: Installed, kueue: ControlPlane
) -> None:
    cp = kueue
    set_up(cp)
    admitted_by_kueue(cp, "runs", 8)
    held = job("team-a", "waits", 1, gpus=8, seconds=2, queue=None, labels={KUEUE.queue_label: "main"}, suspend=True)
    cp.create(held)
    stopped = job("team-a", "stopped", 1, queue=None, labels={KUEUE.queue_label: "main"})
    stopped_by_hand(cp, stopped, stopped["spec"]["template"])
    set_ = jobset("team-a", "stopped", {"main": (1, 1)}, queue=None, labels={KUEUE.queue_label: "main"})
    stopped_by_hand(cp, set_, set_["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
    nightly = job("team-a", "none", 1, queue=None, labels={KUEUE.queue_label: "main"})
    cp.create(
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "nightly", "namespace": "team-a"},
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"metadata": {"labels": nightly["metadata"]["labels"]},
                                                             "spec": nightly["spec"]}},
        }
    )  # fmt: skip
    a_pod_of_kueues(cp)
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 30, "the first job's pod to run")
    pod = running_pods(cp, "team-a")[0]["metadata"]["uid"]
    hook: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "batch-validating-webhook-configuration"},
        "webhooks": [{
            "name": "vjob.kb.io", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "batch-webhook-service", "namespace": "batch",
                                         "path": "/validate-kueue-x-k8s-io-v1beta2-workload"}},
            "rules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                       "resources": ["jobs"]}],
        }],
    }  # fmt: skip
    cp.apply(hook)
    deploy_kueue(cp)
    register_visibility(cp)
    led_by_kueue(cp)
    still = f"validatingwebhookconfiguration/{hook['metadata']['name']}"
    # Its controller is gone: nobody answers it.
    said = "a webhook that is asked first does not answer"
    cp.wait(lambda: said in imported(cp, apply=False)["job/waits"]["message"], 30, "the webhook to be asked")
    assert {imported(cp, apply=False)[subject]["did"] for subject in (still, DEPLOYED, *REGISTERED)} == {"skipped"}
    rows = imported(cp, apply=True)
    assert {subject: row["did"] for subject, row in rows.items()} == dict.fromkeys(
        (still, DEPLOYED, *REGISTERED), "refused"
    )
    cp.delete("validatingwebhookconfiguration", hook["metadata"]["name"])
    rows = imported(cp, apply=True)
    assert {subject: row["did"] for subject, row in rows.items()} == dict.fromkeys((DEPLOYED, *REGISTERED), "refused")
    # As it says, and as the guide does; and then as long as Kueue's leader may be there.
    cp.kubectl(*rows[DEPLOYED]["message"].partition(": kubectl ")[2].split())
    stopped_so = guide(cp, "kubectl -n kueue-system scale deployment")
    assert stopped_so.returncode == 0, stopped_so
    cp.wait(lambda: list(imported(cp, apply=True)) == [LED], 30, "the Deployment to have ended")
    cp.patch("leases", LEASE, {"spec": {"holderIdentity": ""}}, "kueue-system")

    cp.wait(lambda: said not in imported(cp, apply=False)["job/waits"]["message"], 30, "the webhook to be gone")
    rows = told(cp)
    assert {subject: row["did"] for subject, row in rows.items()} == {
        "resourceflavor/h100": "created",
        "resourceflavor/cloud": "created",
        "admissioncheck/capacity": "skipped",
        "clusterqueue/team-a": "created",
        "localqueue/main": "created",
        "job/runs": "refused",
        "job/waits": "changed",
        "job/stopped": "changed",
        "jobset/stopped": "changed",
        "workload/pod-plain-abcde": "skipped",
        "cronjob/nightly": "skipped",
    }
    assert "elastic" in rows["resourceflavor/cloud"]["message"]
    assert cp.list(f"clusterqueues.{NAMES.group}") == [], "a dry run writes nothing"
    assert NAMES.queue_label not in cp.get("job", "runs", "team-a")["metadata"]["labels"]

    # Muster's policies are there already, and let nobody label a job that runs.
    assert "only while the job is suspended" in rows["job/runs"]["message"]
    imported(cp, apply=True)
    assert cp.list(f"clusterqueues.{NAMES.group}") == [], "all or nothing"
    unbind(cp)
    cp.wait(lambda: imported(cp, apply=False)["job/runs"]["did"] == "changed", 30, "the policies to hold no longer")
    done_so = guide(cp, "muster import --from kueue --apply")
    assert done_so.returncode == 0, done_so.stdout + done_so.stderr
    assert {row["did"] for row in imported(cp, apply=True).values()} <= {"unchanged", "skipped"}
    # Back to Kueue, which admits anew what runs.
    later = rfc3339(time.time_ns() // 10**9 * 1000 + 2000)
    admit(cp, "job-runs-abcde", 8, later)
    rows = imported(cp, apply=True)
    assert {subject for subject, row in rows.items() if row["did"] == "changed"} == {"job/runs"}
    assert {row["did"] for row in imported(cp, apply=True).values()} <= {"unchanged", "skipped"}
    Installed.install(cp)
    muster.started()
    cp.wait(lambda: admitted(cp, "team-a", "waits"), 60, "the job that waited to be admitted")
    cp.wait(done(cp, "jobs", "team-a", "waits"), 60, "it to finish")
    for plural, path in (("jobs", ()), ("jobsets", ("replicatedJobs", "0", "template", "spec"))):
        one = cp.get(plural, "stopped", "team-a")
        assert one["spec"]["suspend"], one
        assert one["metadata"]["labels"][NAMES.pause_label] == "true"
        assert at(one, ("spec", *path, "template", "metadata", "annotations")) == {
            KUEUE.required_topology_annotation: "rack",
            NAMES.required_topology_annotation: "rack",
        }
    carried = workload_of(cp, "team-a", "runs")
    assert carried is not None
    entry = entry_of(carried, "Admitted")
    assert (entry["status"], entry["lastTransitionTime"], carried["spec"]["priority"]) == ("True", later, 7)
    assert [one["metadata"]["uid"] for one in running_pods(cp, "team-a")] == [pod], "what ran goes on running"

    def charged() -> bool:
        status = cp.get(f"clusterqueues.{NAMES.group}", "team-a")["status"]
        return bool(status["flavorsReservation"][0]["resources"][0]["total"] == "8")

    cp.wait(charged, 30, "the queue to be charged with what goes on running, and that alone")
    freed = guide(cp, "kubectl -n NAMESPACE patch pod", name="plain")
    assert freed.returncode == 0, freed
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "the plain Pod to run")
    cp.delete("pod", "plain", "team-a")
    cp.wait(lambda: cp.find("pod", "plain", "team-a") is None, 30, "it to be gone")
    # The garbage collector looks for new kinds every 30 s; when it knows Kueue's, it deletes what has no owner.
    lost = {"kind": "Job", "metadata": {"name": "lost", "uid": "lost"}, "apiVersion": "batch/v1"}
    stray = stands_for(cp, lost, stopped["spec"]["template"])
    cp.wait(
        lambda: "deletionTimestamp" in cp.get(WORKLOADS, stray, "team-a")["metadata"], 90, "garbage to be collected"
    )
    cp.patch(WORKLOADS, stray, {"metadata": {"finalizers": None}}, "team-a")
    stopped_one = "job-stopped-abcde"
    cp.delete("job", "stopped", "team-a", propagationPolicy="Foreground")
    cp.wait(
        lambda: "deletionTimestamp" in cp.get(WORKLOADS, stopped_one, "team-a")["metadata"], 30, "it to be waited for"
    )
    assert cp.get("job", "stopped", "team-a")["metadata"]["deletionTimestamp"]
    freed = guide(cp, "kubectl -n NAMESPACE patch workloads.kueue.x-k8s.io", name=stopped_one)
    assert freed.returncode == 0, freed
    cp.wait(lambda: cp.find("job", "stopped", "team-a") is None, 30, "the job to be gone with its Workload")
    left = guide(cp, "kubectl get workloads.kueue.x-k8s.io")
    assert (left.returncode, set(left.stdout.split())) == (0, {
        f"workload.{KUEUE_GROUP}/{name}-abcde" for name in ("job-runs", "jobset-stopped", "pod-plain")
    }), left  # fmt: skip


def test_kueue_mode_runs_jobs_with_kueues_own_objects(muster: Installed, kueue: ControlPlane) -> None:
    cp = kueue
    set_up(cp)
    a_pod_of_kueues(cp)
    cp.apply(policies.objects(KUEUE))
    muster.start(config={"apiGroup": KUEUE_GROUP})
    made = job("team-a", "train", 2, gpus=8, seconds=2, queue=None, labels={KUEUE.queue_label: "main"})
    made["spec"]["template"]["spec"]["schedulingGates"] = [{"name": KUEUE.elastic_gate}]  # as Kueue left it
    big = job("team-a", "big", 3, gpus=8, seconds=2, queue=None, labels={KUEUE.queue_label: "main"})
    cp.wait(lambda: cp.create(made, dryRun="All")["spec"].get("suspend"), 30, "the policies to hold a job of Kueue's")
    cp.create(made)
    cp.create(big)
    cp.wait(done(cp, "jobs", "team-a", "train"), 90, "the job to finish")

    def workload(name: str) -> Object:
        found = [one for one in cp.list(WORKLOADS, "team-a") if one["metadata"]["ownerReferences"][0]["name"] == name]
        return found[0] if found else {}

    cp.wait(lambda: entry_of(workload("train"), "Finished").get("status") == "True", 30, "its Workload to say so")
    cp.wait(lambda: entry_of(workload("big"), "QuotaReserved").get("reason") == "ExceedsMaxQuota", 30, "a reason")
    cp.wait(lambda: entry_of(workload("plain"), "QuotaReserved").get("reason") == "Misconfigured", 30, "another")
    # As a ReplicaSet makes it: Kueue has marked the template of its Deployment.
    serves = {"name": "serves", "namespace": "team-a", "labels": {KUEUE.managed_label: "true"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": serves, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    cp.create(pod, dryRun="All")
    serves["labels"] = dict.fromkeys(KUEUE.gang_marks, "true")
    assert "muster-p" in refusal(cp, pod), "with our mark beside that it would be of a gang"
    assert cp.get("job", "big", "team-a")["spec"]["suspend"]
    assert {entry["manager"] for entry in workload("train")["metadata"]["managedFields"]} >= {KUEUE.admission_manager}


OWNED = {
    "by a Job that is queued": ("batch/v1", "Job", True),
    "by a JobSet": ("jobset.x-k8s.io/v1alpha2", "JobSet", True),
    "by what Kueue queues and Muster does not": ("kubeflow.org/v2beta1", "MPIJob", True),
    "by nobody's controller": ("batch/v1", "Job", False),
    "by a CronJob": ("batch/v1", "CronJob", True),
    "by another tool": ("argoproj.io/v1alpha1", "Workflow", True),
}
"""Who owns a job without a label: apiVersion, kind, and whether as its controller."""


def test_in_kueue_mode_a_job_without_a_label_gets_the_local_queue_default(
    muster: Installed, kueue: ControlPlane
) -> None:
    cp = kueue
    set_up(cp)
    cp.namespace("team-b")
    cp.apply(theirs("LocalQueue", "default", {"clusterQueue": "team-a"}, "team-a"))
    where = {"matchExpressions": [{"key": "muster", "operator": "NotIn", "values": ["ungoverned"]}]}
    settings = Settings(defaulted_namespaces=where)
    cp.apply(policies.objects(KUEUE, settings))
    muster.start(config={"apiGroup": KUEUE_GROUP})

    def offered(made: Object) -> tuple[str, bool]:
        """(queue, suspended) as it would be stored."""
        seen = cp.create(made, dryRun="All")
        labels = seen["metadata"].get("labels", {})
        return labels.get(KUEUE.queue_label, ""), bool(seen["spec"].get("suspend"))

    plain, into_default, left_alone = job("team-a", "plain", 1, queue=None), ("default", True), ("", False)
    cp.wait(lambda: offered(plain) == into_default, 60, "the policy to have a queue for a job without one")
    rows: dict[str, tuple[Object, tuple[str, bool]]] = {
        "a JobSet": (jobset("team-a", "set", {"w": (1, 1)}, queue=None), into_default),
        "with labels of its own": (job("team-a", "own", 1, queue=None, labels={"a": "b"}), into_default),
        "suspended by its owner": (job("team-a", "off", 1, queue=None, suspend=True), into_default),
        "with a label": (job("team-a", "named", 1, queue=None, labels={KUEUE.queue_label: "main"}), ("main", True)),
        "with an empty label": (job("team-a", "empty", 1, queue=None, labels={KUEUE.queue_label: ""}), into_default),
        "where there is no such queue": (job("team-b", "elsewhere", 1, queue=None), left_alone),
        "a JobSet where there is none": (jobset("team-b", "set", {"w": (1, 1)}, queue=None), left_alone),
    }
    for case, (version, kind, controller) in OWNED.items():
        made = job("team-a", "owned", 1, queue=None)
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": version, "kind": kind, "name": "x", "uid": "x", "controller": controller}
        ]
        # The Jobs of a JobSet are made by its controller alone.
        rows[case] = made, left_alone if case.startswith(("by a Job", "by what")) else into_default
    by_jobset, _ = rows.pop("by a JobSet")
    wrong = {case: (said, wanted) for case, (made, wanted) in rows.items() if (said := offered(made)) != wanted}
    assert not wrong, wrong
    with pytest.raises(ApiError, match="made and changed by the JobSet controller"):
        offered(by_jobset)
    nowhere = job("team-b", "empty", 1, queue=None, labels={KUEUE.queue_label: ""})
    cp.wait(lambda: "is empty: name a LocalQueue" in refusal(cp, nowhere), 30, "an empty label to be refused elsewhere")
    # Not in the namespaces whose jobs Muster does not look at.
    cp.patch("namespaces", "team-a", {"metadata": {"labels": {"muster": "ungoverned"}}})
    cp.wait(lambda: offered(plain) == left_alone, 30, "the namespace to be let be")
    cp.patch("namespaces", "team-a", {"metadata": {"labels": {"muster": None}}})
    cp.wait(lambda: offered(plain) == into_default, 30, "and to be looked at again")

    for made in (plain, jobset("team-a", "set", {"w": (1, 1)}, queue=None)):
        cp.create(made)
    cp.create(job("team-b", "free", 1, queue=None))
    cp.wait(done(cp, "jobs", "team-a", "plain"), 60, "the job to finish")
    cp.wait(done(cp, "jobsets", "team-a", "set"), 60, "the JobSet to finish, with Jobs that have no queue of their own")
    cp.wait(done(cp, "jobs", "team-b", "free"), 60, "the job to finish that no queue is charged for")
    queues = {one["metadata"]["ownerReferences"][0]["name"]: one["spec"]["queueName"] for one in cp.list(WORKLOADS)}
    assert queues == {"plain": "default", "set": "default"}
    # Applied again as it was written, without the label.
    big = job("team-a", "big", 3, queue=None)
    for _ in range(2):
        cp.kubectl("apply", "-f", "-", input=json.dumps(big))
        seen = cp.get("job", "big", "team-a")
        assert (seen["metadata"]["labels"][KUEUE.queue_label], seen["spec"]["suspend"]) == into_default

    # Who governs whole namespaces beside it.
    muster.replicas[0].stop()
    muster.forget_leader()
    cp.apply(theirs("LocalQueue", "main", {"clusterQueue": "team-a"}, "team-b"))
    team_b = {"matchLabels": {"kubernetes.io/metadata.name": "team-b"}}
    cp.apply(policies.policies(KUEUE, Settings(governed_namespaces=team_b, defaulted_namespaces=where)))
    muster.started(config={"apiGroup": KUEUE_GROUP, "manageJobsWithoutQueueName": True, "defaultQueueName": "main"})
    governed = job("team-b", "governed", 1, queue=None)
    cp.wait(lambda: offered(governed) == ("", True), 30, "all jobs of the other namespace to be held")
    cp.create(governed)
    cp.create(job("team-a", "again", 1, queue=None))
    cp.wait(done(cp, "jobs", "team-b", "governed"), 60, "it to finish")
    cp.wait(done(cp, "jobs", "team-a", "again"), 60, "the other to finish")
    queues = {one["metadata"]["ownerReferences"][0]["name"]: one["spec"]["queueName"] for one in cp.list(WORKLOADS)}
    assert (queues["governed"], queues["again"]) == ("main", "default")


def refusal(cp: ControlPlane, made: Object) -> str:
    """What a dry run of its creation is refused with; empty when it is not."""
    try:
        cp.create(made, dryRun="All")
    except ApiError as error:
        return error.message
    return ""


def uninstalled(muster: Installed) -> None:
    """As `helm uninstall` leaves it, which e2e/test_chart.py plays."""
    for replica in muster.replicas:
        replica.stop()
    assert muster.log is not None
    muster.log.stop()  # nothing holds any more
    unbind(muster.cp)


def of_kueues(name: str, *, pods: int = 1, **more: Any) -> Object:
    """A Job for Kueue's queue that runs until it is deleted."""
    return job("team-a", name, pods, seconds=None, queue=None, labels={KUEUE.queue_label: "main"}, **more)


def uids(cp: ControlPlane, *names: str) -> dict[str, set[str]]:
    """The pods that run, by job."""
    out: dict[str, set[str]] = {name: set() for name in names}
    for pod in running_pods(cp, "team-a"):
        owner = pod["metadata"]["ownerReferences"][0]["name"]
        if owner in out:
            out[owner].add(pod["metadata"]["uid"])
    return out


def started_with(cp: ControlPlane, name: str, pods: int) -> bool:
    return len(uids(cp, name)[name]) == pods


def workload_by_kueue(cp: ControlPlane, name: str) -> Object:
    found = [one for one in cp.list(WORKLOADS, "team-a") if one["metadata"]["ownerReferences"][0]["name"] == name]
    return found[0] if found else {}


def test_from_muster_back_to_kueue(muster: Installed, kueue: ControlPlane, tmp_path: Path) -> None:
    """Kueue's own controller has the jobs before and afterwards, where it was built; else see what it would find."""
    cp = kueue
    with Kueue(cp) if available() else contextlib.nullcontext() as real, Prompt(cp, tmp_path) as prompt:
        waits = of_kueues("waits", pods=2)
        if real is None:
            set_up(cp)
            admitted_by_kueue(cp, "runs", 8)
            waits["spec"]["suspend"] = True
        else:
            real.start()
            set_up(cp)
            cp.create(of_kueues("runs"))
        cp.create(waits)
        cp.wait(lambda: len(uids(cp, "runs")["runs"]) == 1, 60, "the first job's pod to run")
        pods = uids(cp, "runs")
        if real is not None:
            cp.wait(lambda: workload_by_kueue(cp, "waits"), 30, "Kueue to have queued the other")
            refused = {subject: row["did"] for subject, row in imported(cp, apply=True).items()}
            hooks = {f"{family}webhookconfiguration/{real.hooks(family)}" for family in ("validating", "mutating")}
            assert refused == dict.fromkeys({LED, *hooks}, "refused"), "Kueue is there"
            real.stop()
        unbind(cp)
        cp.wait(lambda: imported(cp, apply=False)["job/runs"]["did"] == "changed", 30, "the policies to hold no longer")
        done_so = guide(cp, "muster import --from kueue --apply")
        assert done_so.returncode == 0, done_so.stdout + done_so.stderr
        Installed.install(cp)
        muster.started()
        cp.create(job("team-a", "short", 1, seconds=2))
        cp.wait(lambda: admitted(cp, "team-a", "short"), 30, "a job to be admitted by Muster")
        cp.create(job("team-a", "since", 2, seconds=None))
        cp.create(job("team-a", "paused", 1, labels={NAMES.pause_label: "true"}))

        def follow(begins: str) -> None:
            ran = prompt.run(f"set -eo pipefail\n{block('docs/migrate.md', begins).text}")
            assert ran.returncode == 0, ran.stdout

        follow("for queue in $(kubectl get clusterqueues.muster.dev")
        cp.wait(done(cp, "jobs", "team-a", "short"), 60, "what Muster has started to finish")
        uninstalled(muster)
        follow("for kind in jobs.batch")
        labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in cp.list("jobs", "team-a")}
        queues = {name: said[KUEUE.queue_label] for name, said in labels.items() if KUEUE.queue_label in said}
        assert queues == dict.fromkeys(("runs", "waits", "since"), "main")
        assert imported(cp, apply=False)["clusterqueue/team-a"]["did"] == "unchanged", "who comes again may"
        deploy_kueue(cp, replicas=0)
        if real is not None:
            real.start()
        follow("kubectl --namespace kueue-system scale deployment")
        assert cp.get("deployments", "kueue-controller-manager", "kueue-system")["spec"]["replicas"] == 1
        for name in ("waits", "since", "paused"):
            assert cp.get("jobs", name, "team-a")["spec"]["suspend"], name
        assert uids(cp, "runs") == pods, "what Kueue has started goes on"
        if real is None:
            return
        cp.wait(lambda: workload_by_kueue(cp, "since"), 30, "Kueue to have queued what was made meanwhile")
        assert entry_of(workload_by_kueue(cp, "runs"), "Admitted")["status"] == "True"
        for ends, starts in (("runs", "waits"), ("waits", "since")):
            cp.delete("jobs", ends, "team-a", propagationPolicy="Background")
            cp.wait(partial(started_with, cp, starts, 2), 90, f"Kueue to start {starts} when {ends} has gone")
        assert cp.get("jobs", "paused", "team-a")["spec"]["suspend"]


def readiness(address: str) -> str:
    """What /readyz says; empty while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        return error.read().decode().strip()
    except OSError:
        return ""


def template_of(cp: ControlPlane, name: str) -> tuple[Object, Object]:
    """(metadata, node selector) of its pods."""
    template = cp.get("job", name, "team-a")["spec"]["template"]
    return template["metadata"], template["spec"].get("nodeSelector", {})


@pytest.mark.skipif(not available(), reason="needs Kueue itself: python -m e2e.build kueue")
def test_kueue_mode_there_and_back(muster: Installed, kueue: ControlPlane) -> None:
    """What runs goes on, whoever has started it, and what waits is started by who is there."""
    cp = kueue
    with Kueue(cp) as real:
        real.start()
        set_up(cp)
        cp.create(of_kueues("first"))
        cp.create(of_kueues("tiny", gpus=1))
        cp.wait(lambda: all(uids(cp, "first", "tiny").values()), 60, "Kueue to start two jobs")
        cp.create(of_kueues("waits", pods=2))
        cp.wait(lambda: workload_by_kueue(cp, "waits"), 30, "Kueue to have queued another")
        cp.apply(policies.objects(KUEUE))
        ready = f"127.0.0.1:{free_port()}"
        replica = muster.start(config={"apiGroup": KUEUE_GROUP, "health": {"bindAddress": ready}})
        cp.wait(lambda: "Kueue leads" in readiness(ready), 60, "Muster to find that Kueue leads")
        real.stop()
        assert not replica.leads
        cp.wait(lambda: replica.leads and readiness(ready) == "ok", 60, "Muster to lead once Kueue has ended")
        cp.wait(lambda: cp.create(of_kueues("x"), dryRun="All")["spec"].get("suspend"), 30, "the policies to hold")
        cp.create(
            jobset("team-a", "set", {"w": (2, 1)}, gpus=2, seconds=None, queue=None, labels={KUEUE.queue_label: "main"})
        )
        usual = {GPU: "3"}
        limits = [{"type": "Container", "default": usual, "defaultRequest": usual}]
        meta = {"name": "usual", "namespace": "team-a"}
        cp.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": {"limits": limits}})
        second = of_kueues("second")
        second["spec"]["template"]["spec"]["containers"][0].pop("resources")
        cp.create(second)
        names = ("first", "second", "set-w-0", "set-w-1")
        cp.wait(lambda: all(uids(cp, *names).values()), 60, "Muster to start others beside it")
        before = uids(cp, *names)
        assert any(KUEUE_GROUP in str(part) for part in template_of(cp, "tiny"))
        tiny = workload_by_kueue(cp, "tiny")["metadata"]["name"]
        cp.patch(WORKLOADS, tiny, {"spec": {"active": False}}, "team-a")
        cp.wait(
            lambda: entry_of(cp.get(WORKLOADS, tiny, "team-a"), "QuotaReserved")["status"] == "False", 30, "its end"
        )
        assert not any(KUEUE_GROUP in str(part) or "h100" in str(part) for part in template_of(cp, "tiny"))
        assert not entry_of(cp.get(WORKLOADS, tiny, "team-a"), "PodsReady"), "nobody here says what became of that"
        cp.create(of_kueues("late"))
        cp.wait(lambda: entry_of(workload_by_kueue(cp, "late"), "QuotaReserved"), 30, "Muster to say why another waits")
        uninstalled(muster)
        real.start()
        cp.delete("jobs", "first", "team-a", propagationPolicy="Background")
        cp.wait(lambda: uids(cp, "late")["late"], 90, "Kueue to start what waited, into the room of what has gone")
        assert uids(cp, *names[1:]) == {name: before[name] for name in names[1:]}
        assert cp.get("jobs", "waits", "team-a")["spec"]["suspend"], "it needs more than is left"
