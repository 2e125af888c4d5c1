"""From Kueue to Muster: a cluster with jobs that Kueue admitted, as Kueue leaves it when its controller is gone."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from admission.controller import migrate, policies
from admission.controller.ask import Ask
from admission.jobs.kinds import at
from admission.kube.client import Client
from admission.names import KUEUE_GROUP, Names
from e2e import build
from e2e.api_client import APPLY, ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, done, entry_of, running_pods, workload_of
from e2e.installed import NAMES, Installed, job, jobset
from tests.docs.blocks import block

KUEUE = Names(KUEUE_GROUP)
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
def kueue(muster: Installed) -> Iterator[ControlPlane]:
    """Kueue's CRDs; they go again, for most tests call kinds by names that both groups have."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")
    files = sorted((build.manifests("kueue") / "crds").glob("*.yaml"))
    for file in files:
        cp.apply(file.read_text())
    cp.wait(lambda: cp.has(f"workloads.{KUEUE_GROUP}"), 30, "Kueue's CRDs to be served")
    yield cp
    for left in cp.list(f"workloads.{KUEUE_GROUP}"):
        meta = left["metadata"]
        cp.patch(f"workloads.{KUEUE_GROUP}", meta["name"], {"metadata": {"finalizers": None}}, meta["namespace"])
    names = [file.stem.partition("_")[2] + f".{KUEUE_GROUP}" for file in files]
    unbind(cp)

    def deleted() -> bool:
        """Not before the policy that keeps CRDs is seen to be gone."""
        try:
            for name in names:
                cp.delete("customresourcedefinition", name)
        except ApiError as error:
            if error.status != 403:
                raise
            return False
        return True

    cp.wait(deleted, 30, "the CRDs to be deleted")
    cp.wait(lambda: not any(cp.find("customresourcedefinition", name) for name in names), 60, "the CRDs to be gone")
    cp.resources(refresh=True)


def unbind(cp: ControlPlane) -> None:
    """No policy of Muster's binds; those of both groups have the same names."""
    for one in policies.policies(KUEUE):
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
        "ownerReferences": [{**reference, "controller": True}],
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
    name = stands_for(cp, owner, made["spec"]["template"])
    usage = {"name": "main", "count": 1, "flavors": {GPU: "h100"}, "resourceUsage": {GPU: str(gpus)}}
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": NOW}
        for kind in ("QuotaReserved", "Admitted")
    ]
    admission = {"clusterQueue": "team-a", "podSetAssignments": [usage]}
    body = theirs("Workload", name, {}, "team-a")
    body.pop("spec")
    body["status"] = {"conditions": conditions, "admission": admission}
    path = f"/apis/{KUEUE.api_version}/namespaces/team-a/workloads/{name}/status"
    cp.request("PATCH", path, body, params={"fieldManager": KUEUE.admission_manager}, content_type=APPLY)


def guide(cp: ControlPlane, begins: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The command of docs/migrate.md that begins so, as people start it, and more arguments."""
    program, *arguments = shlex.split(block("docs/migrate.md", begins).text, comments=True)
    programs = {
        "muster": [sys.executable, "-m", "admission.cli"],
        "kubectl": [str(build.ensure(["kubectl"])["kubectl"])],
    }
    command = [*programs[program], *arguments, *more, "--kubeconfig", str(cp.kubeconfig())]
    return subprocess.run(command, check=False, capture_output=True, text=True)


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
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 30, "the first job's pod to run")
    pod = running_pods(cp, "team-a")[0]["metadata"]["uid"]
    hook: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "kueue-validating-webhook-configuration"},
        "webhooks": [{
            "name": "vjob.kb.io", "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "kueue-webhook-service", "namespace": "kueue-system"}},
            "rules": [{"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"],
                       "resources": ["nones"]}],
        }],
    }  # fmt: skip
    cp.apply(hook)
    rows = imported(cp, apply=True)
    assert rows[f"validatingwebhookconfiguration/{hook['metadata']['name']}"]["did"] == "refused"
    cp.delete("validatingwebhookconfiguration", hook["metadata"]["name"])

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
    assert (entry["status"], entry["lastTransitionTime"], carried["spec"]["priority"]) == ("True", NOW, 7)
    assert [one["metadata"]["uid"] for one in running_pods(cp, "team-a")] == [pod], "what ran goes on running"

    def charged() -> bool:
        status = cp.get(f"clusterqueues.{NAMES.group}", "team-a")["status"]
        return bool(status["flavorsReservation"][0]["resources"][0]["total"] == "8")

    cp.wait(charged, 30, "the queue to be charged with what goes on running, and that alone")
    left = guide(cp, "kubectl get workloads.kueue.x-k8s.io")
    assert (left.returncode, set(left.stdout.split())) == (0, {
        f"workload.{KUEUE_GROUP}/{name}-abcde" for name in ("job-runs", "job-stopped", "jobset-stopped")
    }), left  # fmt: skip


def test_kueue_mode_runs_jobs_with_kueues_own_objects(muster: Installed, kueue: ControlPlane) -> None:
    cp = kueue
    set_up(cp)
    cp.apply(policies.objects(KUEUE))
    muster.start(config={"apiGroup": KUEUE_GROUP})
    made = job("team-a", "train", 2, gpus=8, seconds=2, queue=None, labels={KUEUE.queue_label: "main"})
    big = job("team-a", "big", 3, gpus=8, seconds=2, queue=None, labels={KUEUE.queue_label: "main"})
    cp.wait(lambda: cp.create(made, dryRun="All")["spec"].get("suspend"), 30, "the policies to hold a job of Kueue's")
    cp.create(made)
    cp.create(big)
    cp.wait(done(cp, "jobs", "team-a", "train"), 90, "the job to finish")

    def workload(name: str) -> Object:
        found = [
            one
            for one in cp.list(f"workloads.{KUEUE_GROUP}", "team-a")
            if one["metadata"]["ownerReferences"][0]["name"] == name
        ]
        return found[0] if found else {}

    cp.wait(lambda: entry_of(workload("train"), "Finished").get("status") == "True", 30, "its Workload to say so")
    cp.wait(lambda: entry_of(workload("big"), "QuotaReserved").get("reason") == "ExceedsMaxQuota", 30, "a reason")
    assert cp.get("job", "big", "team-a")["spec"]["suspend"]
    assert {entry["manager"] for entry in workload("train")["metadata"]["managedFields"]} >= {KUEUE.admission_manager}
