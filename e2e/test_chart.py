"""The chart, installed by Helm on a real API server; and the controller with what it gave it: rights and configuration.

A replica runs as a process here, with a token of the ServiceAccount that was rendered and the file that was rendered,
but for its ports. Every request that it makes is audited: none is forbidden, and what it was granted and never asked
for is told. Helm is the binary on PATH, else the SDK that PyPI has (`helm-python-sdk`); without either these tests are
skipped.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.controller import certificates
from admission.names import JOBS_HELD, KUEUE_GROUP, Names
from admission.sandbox.play import free_port
from charts.monitoring import ALERTS, DASHBOARDS
from e2e import build, kueue
from e2e import test_main_job as main_job
from e2e.api_client import APPLY, STRATEGIC, ApiClient, ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.event_log import EventLog
from e2e.forked import SOURCES
from e2e.gangs import admitted, done, ended, entry_of, reason, workload_of
from e2e.installed import (
    HOME,
    TUNING,
    USER,
    Installed,
    Replica,
    cluster_queue,
    flavor,
    job,
    jobset,
    local_queue,
    pod_template,
    undefine,
)
from e2e.invariants import check, report
from e2e.prompt import Prompt
from tests.chart.helm import template
from tests.chart.promql import Scrape, evaluate, parser, scrape
from tests.chart.test_chart import MATRIX
from tests.docs.blocks import block

sdk: Any = importlib.import_module("helm_python") if importlib.util.find_spec("helm_python") else None
BINARY = shutil.which("helm")
pytestmark = pytest.mark.skipif(sdk is None and BINARY is None, reason="neither helm nor helm-python-sdk is there")

CHART = SOURCES / "charts" / "muster"
NAMES = Names()

ASKED_ELSEWHERE = {
    # Never requested: the API server's authorizer is asked whether somebody may.
    (NAMES.group, "workloads", "admit"),
    ("batch", "jobs/finalizers", "update"),
    ("jobset.x-k8s.io", "jobsets/finalizers", "update"),
}

RARE = {
    ("", "events", "patch"),  # an event that comes again within minutes
    ("", "events", "list"),  # pods that are refused for a minute
    ("batch", "jobs/status", "patch"),  # reminders; API servers before 1.36 keep a suspended Job's start time
    ("batch", "jobs", "get"),  # a Workload whose job the copies do not show
    ("jobset.x-k8s.io", "jobsets", "get"),
    (NAMES.group, "workloads", "get"),  # a create whose answer was lost
    ("", "pods", "delete"),  # what is left of a gang on a node that is lost
    ("", "pods/eviction", "create"),  # a pod that stays behind when its gang has gone
    # Somebody looks at the page, or asks the visibility API: test_visibility.py
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ("apiregistration.k8s.io", "apiservices", "update"),
}
"""Rights for what these tests do not bring about."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own: its audit log has what the controller reads, too."""
    policy = tmp_path_factory.mktemp("audit") / "policy.yaml"
    rules = [{"level": "Metadata", "users": [USER]}, {"level": "None"}]
    made = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
    policy.write_text(yaml.safe_dump(made))
    with ControlPlane(apiserver_flags=[f"--audit-policy-file={policy}"]) as cp:
        yield cp


class HelmError(Exception):
    """What Helm says when it refuses."""


class Release:
    """A release of the chart on a control plane."""

    def __init__(self, cp: ControlPlane, name: str = "muster") -> None:
        self.cp = cp
        self.name = name

    def install(self, **values: Any) -> list[Object]:
        return self._settled(self._run("install", values))

    def upgrade(self, **values: Any) -> list[Object]:
        return self._settled(self._run("upgrade", values))

    def uninstall(self) -> None:
        self._run("uninstall", None)

    def _run(self, action: str, values: Object | None) -> str:
        """The manifest of the release."""
        if BINARY is not None:
            return self._by_binary(BINARY, action, values)
        options: Object = {"namespace": HOME, "create_namespace": True} if action == "install" else {"namespace": HOME}
        # A configuration keeps what it once discovered, so that each action has its own.
        with sdk.Config(kubeconfig_path=self.cp.kubeconfig(), namespace=HOME) as config:
            try:
                if values is None:
                    config.uninstall(self.name)
                    return ""
                return str(getattr(config, action)(str(CHART), self.name, values, **options)["manifest"])
            except sdk.HelmError as error:
                raise HelmError(str(error)) from None

    def _by_binary(self, binary: str, action: str, values: Object | None) -> str:
        common = ["--kubeconfig", str(self.cp.kubeconfig()), "--namespace", HOME]
        more = [] if values is None else [str(CHART), "--values", "-"]
        more += ["--create-namespace"] if action == "install" else []
        commands = [[binary, action, self.name, *common, *more]]
        if values is not None:
            commands.append([binary, "get", "manifest", self.name, *common])
        for command in commands:
            ran = subprocess.run(
                command, input=json.dumps(values or {}), capture_output=True, text=True, check=False, timeout=300
            )
            if ran.returncode:
                raise HelmError(ran.stderr)
        return ran.stdout

    def _settled(self, manifest: str) -> list[Object]:
        """The objects of a manifest, once the kinds among them are served."""
        objects = [document for document in yaml.safe_load_all(manifest) if document]
        for one in objects:
            if one["kind"] == "CustomResourceDefinition":
                self.cp.wait_established(one["metadata"]["name"])
        return objects


class Charted(Installed):
    """Muster as a release has it."""

    objects: list[Object]
    metrics = ""
    """Where the last replica shows its metrics."""

    def scrape(self) -> Scrape:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            return scrape(answer.read().decode())

    def config(self) -> Object:
        """The file that was rendered, on ports of its own."""
        (found,) = [o for o in self.objects if "config.yaml" in o.get("data", ())]
        said: Object = yaml.safe_load(found["data"]["config.yaml"])
        off = {"bindAddress": "0"}
        web = {"bindAddress": f"127.0.0.1:{free_port()}"}
        self.metrics = f"127.0.0.1:{free_port()}"
        return {
            **said,
            "health": off,
            "metrics": {"bindAddress": self.metrics},
            "web": web,
            "webhook": {"host": "127.0.0.1", "port": free_port()},
        }

    def start(
        self,
        identity: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        tuning: Mapping[str, float] = TUNING,
    ) -> Replica:
        """With the file that the chart gave."""
        assert config is None
        said = self.config()
        at = ["--webhook-url", f"https://127.0.0.1:{said['webhook']['port']}"] if said["hold"] == "webhook" else []
        return self.begin(said, *at, tuning=tuning)


@contextlib.contextmanager
def running(cp: ControlPlane, folder: Path, objects: list[Object], *, group: str = NAMES.group) -> Iterator[Charted]:
    """A run that is judged: invariants, logs, and rights."""
    mark = cp.audit_mark()
    with EventLog(cp, group) as log, Charted(cp, folder) as muster:
        muster.log, muster.objects = log, objects
        yield muster
        log.catch_up()
        trouble = muster.trouble()
    violations = check(log, at_end=False, group=group)
    assert not violations, report(violations)
    assert not trouble, "\n".join(trouble)
    # A webhook configuration that was deleted: by the chart's rights the controller may fill it and not make it. A
    # proof of the hold: a policy refuses it where the API server has not read yet the other one, which holds.
    forbidden = [
        e
        for e in cp.audit_events(mark)
        if e.get("responseStatus", {}).get("code") in (401, 403)
        and not (e["verb"] == "create" and "webhookconfigurations" in e["requestURI"])
        and not (e["verb"] == "create" and "/jobs?dryRun=All" in e["requestURI"])
    ]
    assert not forbidden, json.dumps([[e["verb"], e["requestURI"], e["responseStatus"]] for e in forbidden], indent=1)


# ---------------------------------------------------------------- rights


Right = tuple[str, str, str]


def granted(cp: ControlPlane) -> set[Right]:
    """(group, resource, verb) of all that is bound to the ServiceAccount, as the API server has it."""
    name = USER.rpartition(":")[2]
    rights: set[Right] = set()
    for bindings, roles in (("clusterrolebindings", "clusterroles"), ("rolebindings", "roles")):
        for binding in cp.list(bindings):
            if not any(s["kind"] == "ServiceAccount" and s["name"] == name for s in binding.get("subjects", ())):
                continue
            role = cp.get(roles, binding["roleRef"]["name"], binding["metadata"].get("namespace"))
            for rule in role["rules"]:
                rights |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    return rights


def used(cp: ControlPlane, since: int) -> set[Right]:
    rights: set[Right] = set()
    for event in cp.audit_events(since):
        target = event.get("objectRef")
        if event["user"]["username"] != USER or not target:
            continue
        resource = target.get("resource", "") + (f"/{target['subresource']}" if target.get("subresource") else "")
        rights.add((target.get("apiGroup", ""), resource, event["verb"]))
    return rights


def _shown(rights: set[Right]) -> str:
    return ", ".join(f"{verb} {resource}{f'.{group}' if group else ''}" for group, resource, verb in sorted(rights))


# ---------------------------------------------------------------- tests


TEAM = {"cohort": "all", "quota": [{"flavor": "gpu", "resources": {"nvidia.com/gpu": 32}}], "createNamespaces": True}
QUOTA = {
    "only": True,
    "flavors": {"gpu": {"nodeLabels": {"gpu": "h100"}}},
    "topologies": {"hosts": ["kubernetes.io/hostname"]},
    "cohorts": {"all": {}},
    "teams": {"vision": TEAM, "speech": TEAM},
}


def test_by_policy_a_job_and_a_jobset_run_with_what_the_chart_gives(plane: ControlPlane, tmp_path: Path) -> None:
    cp, release, mark = plane, Release(plane), plane.audit_mark()
    with pytest.raises(HelmError, match=r"quota: this cluster does not serve muster\.dev/v1beta1 yet"):
        release.install(quota={**QUOTA, "only": False})
    began = time.monotonic()
    objects = release.install()
    kinds = {one["kind"] for one in objects}
    assert "MutatingAdmissionPolicy" in kinds, "the API server has them, and auto means them"
    assert "MutatingWebhookConfiguration" not in kinds
    assert {one["metadata"]["name"] for one in objects if one["kind"] == "Secret"} <= {"muster-web"}
    for wrong in ({}, {"quota": {**QUOTA, "only": False}}):
        with pytest.raises(
            HelmError, match=r"a cluster holds one Muster, and here it is the release muster: .*quota\.only"
        ):
            Release(cp, "muster-quota").install(**wrong)
    with pytest.raises(HelmError, match=r"quota\.only: the release muster is Muster itself"):
        release.upgrade(quota=QUOTA)
    quota = Release(cp, "muster-quota").install(quota=QUOTA)
    print(f"\nmuster and its quota installed after {time.monotonic() - began:.1f} s")
    for one in [*objects, *quota]:  # nothing that the API server would drop
        cp.apply(one, dryRun="All", fieldValidation="Strict")
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    with running(cp, tmp_path, objects) as muster:
        scrapes = [play(muster, "HeldByPolicy")]
        print(f"from nothing to the end of the first gangs: {time.monotonic() - began:.1f} s")
        _delete_a_queue_in_use(cp, "vision")
    with running(cp, tmp_path, _again(cp, release)) as muster:
        main_job.test_a_borrower_gives_back_requeues_resumes_and_its_template_is_as_its_owner_wrote_it(muster)
        scrapes.append(muster.scrape())
    _judge_rights(cp, mark, "policy")
    _judge_panels(scrapes)


def _delete_a_queue_in_use(cp: ControlPlane, team: str) -> None:
    """It stays for as long as a gang holds quota of it, admits nothing meanwhile, and goes then; so does a flavor."""
    cp.apply(job(team, "last", 2, seconds=None))
    cp.wait(lambda: admitted(cp, team, "last"), 30, "a gang to be admitted")
    cp.delete("clusterqueues.muster.dev", team)
    cp.delete("resourceflavors.muster.dev", "gpu")
    cp.apply(job(team, "late", 1))
    cp.wait(
        lambda: entry_of(cp.get("clusterqueues.muster.dev", team), "Active").get("reason") == "Terminating",
        30,
        "the queue to admit nothing more",
    )
    assert cp.get("clusterqueues.muster.dev", team)["metadata"]["finalizers"] == [NAMES.finalizer]
    cp.wait(ended(cp, "jobs", team, "last"), 60, "the gang to finish")
    cp.wait(lambda: cp.find("clusterqueues.muster.dev", team) is None, 30, "the queue to go")
    assert cp.get("jobs", "late", team)["spec"]["suspend"] is True
    assert cp.find("resourceflavors.muster.dev", "gpu") is not None, "another queue names it"


OF_TIME_AND_LOAD = {
    "MusterCycleSlow",
    "MusterQueueBlocked",
    "MusterQuotaAboveCapacity",
    "MusterRestarts",
    "MusterWatchSilent",
    "MusterWritesFail",
}
"""What a moment may show on a slow machine, and alerts tell only after minutes."""


def _judge_panels(scrapes: list[Scrape]) -> None:
    """Each panel of the dashboards shows something of these runs, and no alert but for those that time makes."""
    if parser is None:
        return
    put = {"$__rate_interval": "5m", "$cluster_queue": "vision|team-a", "$cohort": ".*", "$resource": "nvidia.com/gpu"}

    def asked(expression: str) -> str:
        for name, value in put.items():
            expression = expression.replace(name, value)
        return expression.replace("@LONG_WAIT@", "86400")

    panels = [(f"{board.name}: {panel.title}", panel) for board in DASHBOARDS for panel in board.panels]
    for title, panel in panels:
        for expression, _ in panel.queries:
            shown = any(evaluate(asked(expression), dict.fromkeys(one, 0.0), one) for one in scrapes)
            assert shown or title.endswith("Failed writes"), f"{title}: {expression}"
    print(f"{len(panels)} panels of {len(DASHBOARDS)} dashboards show something of the run")
    for alert in ALERTS:
        if alert.name not in OF_TIME_AND_LOAD:
            assert not [one for one in scrapes if evaluate(asked(alert.expr), {}, one)], alert.name


def test_by_webhook_after_an_upgrade_and_after_uninstall_nothing_is_in_the_way(
    plane: ControlPlane, tmp_path: Path
) -> None:
    cp, release = plane, Release(plane)
    _again(cp, release)
    mark = cp.audit_mark()
    objects = release.upgrade(hold="webhook")
    assert not cp.list("mutatingadmissionpolicies")
    guards = {p["metadata"]["name"] for p in cp.list("validatingadmissionpolicies")}
    beside = ("priority-class", "kinds", "job-templates", "jobset-templates", "pod-deletes", "pod-evictions")
    assert guards == {f"muster-{one}" for one in beside}
    # Nobody ran for years: leaf and CA have ended. Who starts next makes them anew, and tells the API server.
    ended = certificates.issue(None, ["127.0.0.1"], datetime.now(UTC) - timedelta(days=6 * 365))  # noqa: TID251 - TLS looks
    stored = {key: base64.b64encode(value).decode() for key, value in ended.data().items()}
    cp.patch("secrets", "muster-webhook", {"data": stored}, HOME)
    with running(cp, tmp_path, objects) as muster:
        Release(cp, "muster-quota").install(quota=QUOTA)
        cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
        play(muster, "HeldByWebhook")
        hooks = cp.get("mutatingwebhookconfigurations", "muster")["webhooks"]
        assert {hook["clientConfig"]["url"].rsplit("/", 1)[0] for hook in hooks} == {
            f"https://127.0.0.1:{yaml.safe_load((tmp_path / 'muster-0.yaml').read_text())['webhook']['port']}"
        }
        # Another revision takes nothing away from what the controller wrote.
        release.upgrade(hold="webhook", replicas=3)
        assert cp.get("mutatingwebhookconfigurations", "muster")["webhooks"] == hooks
        assert cp.get("secrets", "muster-webhook", HOME)["data"]["tls.crt"] not in ("", stored["tls.crt"])
        # Deleted, and the chart installed again, as the alert says: it is empty, and the replicas have not changed.
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
            cp.delete(kind, "muster")
        release.upgrade(hold="webhook", replicas=3)
        cp.wait(
            lambda: cp.get("mutatingwebhookconfigurations", "muster").get("webhooks") == hooks,
            90,
            "it to be written again",
        )
    _judge_rights(cp, mark, "webhook")
    with pytest.raises(ApiError):
        cp.create(job("vision", "nobody-answers"))
    # Nor does our mark get by meanwhile: when somebody answers again its pods would be taken for those of a gang.
    marked = {**pod_template(0), "metadata": {"labels": {NAMES.managed_label: "true"}}}
    of_set = jobset("vision", "marked", {"a": (1, 1)}, queue=None)
    of_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = marked
    for made in (job("vision", "marked", queue=None, template=marked), of_set):
        with pytest.raises(ApiError, match="written by Muster only"):
            cp.create(made)
    release.uninstall()
    assert cp.find("mutatingwebhookconfigurations", "muster") is None
    assert cp.find("secrets", "muster-webhook", HOME) is None
    assert cp.list("validatingadmissionpolicies") == []
    assert cp.get("customresourcedefinitions", "workloads.muster.dev")
    assert cp.list("workloads.muster.dev"), "what was decided stays"
    free = cp.create(job("vision", "free", gpus=0))
    assert "suspend" not in free["spec"] or free["spec"]["suspend"] is False
    cp.wait(done(cp, "jobs", "vision", "free"), 30, "a labelled job to run as any other")


def test_governed_namespaces_queue_all_jobs_and_keep_bare_gpu_pods_out(plane: ControlPlane, tmp_path: Path) -> None:
    cp, release = plane, Release(plane)
    where = {"namespaceSelector": {"matchLabels": {"muster": "governed"}}, "manageJobsWithoutQueueName": True}
    cp.clean()
    objects = release.install(
        config={**where, "defaultQueueName": "main", "holdProofPeriod": "1s"},
        refuseBarePods=["nvidia.com/gpu", "memory", "deviceclass.resource.kubernetes.io/gpu", "resourceClaims"],
    )
    cp.namespace("governed")
    cp.namespace("free")

    def pod(namespace: str, gpus: int, name: str = "bare") -> Object:
        spec = pod_template(gpus)["spec"]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}

    there = pod("governed", 0, "there")
    there["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}}
    cp.create(there)
    cp.namespace("governed", {"muster": "governed"})

    def refused() -> bool:
        try:
            cp.create(pod("governed", 1), dryRun="All")
        except ApiError as error:
            return "make a Job or a JobSet with the label muster.dev/queue-name" in str(error)
        return False

    cp.wait(refused, 20, "the policy to be seen")
    cp.create(pod("governed", 0), dryRun="All")
    starts, whole, claims, named = (pod("governed", 0) for _ in range(4))
    starts["spec"]["initContainers"] = pod_template(1)["spec"]["containers"]
    starts["spec"]["initContainers"][0]["name"] = "i"
    whole["spec"]["resources"] = {"requests": {"memory": "1Gi"}}  # of the pod, and of no container
    # A device by its class, with no claim.
    claims["spec"]["containers"][0]["resources"] = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
    named["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
    for asks in (starts, whole, claims, named):
        with pytest.raises(ApiError, match="make a Job or a JobSet"):
            cp.create(asks, dryRun="All")
    cp.create(pod("governed", 0))

    def resize(name: str, **amounts: str) -> None:
        more = {"spec": {"containers": [{"name": "c", "resources": {"requests": amounts}}]}}
        cp.patch("pods", name, more, "governed", subresource="resize", content_type=STRATEGIC, dryRun="All")

    for name, memory in (("bare", "1Gi"), ("there", "2Gi")):
        resize(name, cpu="500m")
        with pytest.raises(ApiError, match="make a Job or a JobSet"):
            resize(name, memory=memory)
        cp.delete("pods", name, "governed", gracePeriodSeconds=0)
    with pytest.raises(ApiError, match="remove Muster first"):
        cp.delete("customresourcedefinitions", "workloads.muster.dev", dryRun="All")
    cp.create(pod("free", 1), dryRun="All")
    for namespace, held in (("governed", True), ("free", False)):
        made = cp.create(job(namespace, "unlabelled", queue=None), dryRun="All")
        assert bool(made["spec"].get("suspend")) is held
    quota = {**QUOTA, "teams": {"governed": {"quota": TEAM["quota"]}}, "cohorts": {}}
    Release(cp, "muster-quota").install(quota=quota)
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    with running(cp, tmp_path, objects) as muster:
        muster.started()
        cp.apply(job("governed", "unlabelled", 2, queue=None))
        cp.wait(done(cp, "jobs", "governed", "unlabelled"), 60, "a job without a label to run by the default queue")
        entry = workload_of(cp, "governed", "unlabelled")
        assert entry is not None
        assert entry["spec"]["queueName"] == "main"
        assert entry["status"]["admission"]["clusterQueue"] == "governed"

        def proven() -> tuple[str, str]:
            told = entry_of(cp.get("clusterqueues", "governed"), "JobsHeld")
            return told.get("status", ""), told.get("message", "")

        cp.wait(lambda: proven()[0] == "True", 20, "the hold to be proven")
        cp.delete("validatingadmissionpolicybindings", "muster-bare-pods")
        cp.wait(lambda: "Binding muster-bare-pods" in proven()[1], 20, "what keeps bare pods out to be missed")
        cp.delete("mutatingadmissionpolicybindings", "muster-hold-namespaces")
        cp.wait(lambda: "Binding muster-hold-namespaces" in proven()[1], 20, "the hold of unlabelled jobs to be missed")
    release.uninstall()


def _follow(prompt: Prompt, page: str, begins: str) -> str:
    """Run a block of a page, as its reader would."""
    ran = prompt.run(f"set -eo pipefail\n{block(page, begins).text}")
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def test_the_guide_followed_from_install_to_removal_leaves_no_job_stuck(plane: ControlPlane, tmp_path: Path) -> None:
    """README.md and docs/install.md, by their own lines. The replicas of the release are pods that kwok says are ready;
    what decides is a process beside them, with their rights and their file."""
    cp, gpu = plane, {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    cp.clean()
    cp.add_nodes(2, gpus=8, labels=gpu)
    with Prompt(cp, tmp_path) as prompt:
        follow = partial(_follow, prompt)
        follow("README.md", "helm install muster charts/muster")
        # The namespace is deleted, and with it what Helm knows of its releases: installed again, they have all of it.
        quota = {queue["metadata"]["uid"] for queue in cp.list("clusterqueues.muster.dev")}
        again = [line for line in block("README.md", "helm install muster").text.splitlines() if "helm install" in line]
        ran = prompt.run("\n".join(("set -e", "kubectl delete namespace muster-system", *again)))
        assert ran.returncode == 0, ran.stdout
        assert {queue["metadata"]["uid"] for queue in cp.list("clusterqueues.muster.dev")} == quota
        ran = prompt.run("helm uninstall muster-quota -n muster-system && helm uninstall muster -n muster-system")
        assert ran.returncode == 0, ran.stdout
        cp.clean()
        cp.add_nodes(2, gpus=8, labels=gpu)

        page = "docs/install.md"
        began = time.monotonic()
        assert "successfully rolled out" in follow(page, "helm install muster charts/muster")
        follow(page, "for team in")
        with running(cp, tmp_path, [cp.get("configmaps", "muster-controller", HOME)]) as muster:
            replica = muster.started()
            cp.apply(job("vision", "runs", 1, seconds=None))
            cp.wait(lambda: admitted(cp, "vision", "runs"), 30, "a gang to be admitted")
            print(f"\nfrom nothing to the first gang, by the guide alone: {time.monotonic() - began:.1f} s")
            follow(page, "helm upgrade muster")
            follow(page, "for queue in")
            cp.apply([job("vision", "waits", 1), jobset("vision", "waits-too", {"w": (1, 1)})])
            cp.wait(ended(cp, "jobs", "vision", "runs"), 60, "what runs to finish")
            assert cp.get("jobs", "waits", "vision")["spec"]["suspend"] is True
            assert replica.stop() == 0
        follow(page, "helm uninstall")
        follow(page, "held() {")
        cp.wait(done(cp, "jobs", "vision", "waits"), 60, "the Job to run")
        cp.wait(done(cp, "jobsets", "vision", "waits-too"), 60, "the JobSet to run")
        follow(page, "for kind in")
    assert not [c for c in cp.list("customresourcedefinitions") if c["metadata"]["name"].endswith(".muster.dev")]
    cp.resources(refresh=True)


def _without_kinds(cp: ControlPlane) -> None:
    kinds = [crd["metadata"]["name"] for crd in cp.list("customresourcedefinitions")]
    undefine(cp, [name for name in kinds if name.endswith(f".{NAMES.group}")])


def test_kinds_that_were_applied_before_are_taken_over_and_nothing_is_lost(plane: ControlPlane, tmp_path: Path) -> None:
    """Who began with README's five minutes, or by docs/migrate.md with the kinds alone, and goes on with the chart."""
    cp = plane
    cp.clean()
    _without_kinds(cp)
    with Prompt(cp, tmp_path) as prompt:
        follow = partial(_follow, prompt)
        follow("docs/migrate.md", "kubectl apply --server-side -k crds")
        cp.wait_established("clusterqueues.muster.dev")
        cp.resources(refresh=True)
        there = cp.create(cluster_queue("carried-over", {"nvidia.com/gpu": 8}))
        refused = prompt.run(block("docs/install.md", "helm install muster charts/muster").text)
        assert "invalid ownership metadata" in refused.stdout
        release = Release(cp)
        assert "CustomResourceDefinition" not in {one["kind"] for one in release.install(crds={"install": False})}
        with pytest.raises(HelmError, match="invalid ownership metadata"):
            release.upgrade(crds={"install": True})
        release.uninstall()
        for before, page, begins in (
            ("", "docs/install.md", "kubectl apply --server-side -k crds"),
            ("README.md", "docs/migrate.md", "helm install muster charts/muster"),
        ):
            if before:
                follow(before, "kubectl apply --server-side")
            follow(page, begins)
            owner = cp.get("customresourcedefinitions", "clusterqueues.muster.dev")["metadata"]["annotations"]
            assert (owner["meta.helm.sh/release-name"], owner["helm.sh/resource-policy"]) == ("muster", "keep")
            follow("docs/install.md", "helm upgrade muster")
            follow("docs/install.md", "helm uninstall")
        assert cp.get("clusterqueues.muster.dev", "carried-over")["metadata"]["uid"] == there["metadata"]["uid"]


def test_in_kueue_mode_a_job_of_kueues_runs_with_what_the_chart_gives(plane: ControlPlane, tmp_path: Path) -> None:
    """Over Kueue's own kinds, by the lines of docs/migrate.md; Muster's kinds are not there."""
    cp, names = plane, Names(KUEUE_GROUP)
    cp.clean()
    _without_kinds(cp)
    cp.namespace("team-a")
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    with kueue.kinds(cp), Prompt(cp, tmp_path) as prompt:
        with pytest.raises(HelmError, match="invalid ownership metadata"):
            Release(cp).install(apiGroup=KUEUE_GROUP)
        there = {crd["metadata"]["name"]: crd["metadata"]["uid"] for crd in cp.list("customresourcedefinitions")}
        _follow(prompt, "docs/migrate.md", "helm install --set apiGroup=kueue.x-k8s.io")
        # By other values alone it would manage its own group again.
        with pytest.raises(HelmError, match=r"apiGroup: this release manages kueue\.x-k8s\.io"):
            Release(cp).upgrade(replicas=3, crds={"install": False})
        assert there == {
            crd["metadata"]["name"]: crd["metadata"]["uid"] for crd in cp.list("customresourcedefinitions")
        }
        roles = [*cp.list("clusterroles"), *cp.list("roles")]
        rules = [r for role in roles if role["metadata"]["name"].startswith("muster") for r in role.get("rules") or ()]
        assert {g for rule in rules for g in rule["apiGroups"] if "kueue" in g or "muster" in g} == {
            names.group,
            names.visibility_group,
        }
        guard = template({"apiGroup": KUEUE_GROUP, "hold": "policy", "refuseBarePods": ["nvidia.com/gpu"]})
        guard = [one for one in guard if one["metadata"]["name"] == "muster-bare-pods"]
        cp.apply(guard)
        for labels in ({}, {names.managed_label: "true"}, {names.workload_uid_label: "x"}):
            meta = {"name": "bare", "namespace": "team-a", "labels": labels}
            bare = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_template(1)["spec"]}
            cp.wait(partial(_kept_out, cp, bare), 20, f"a bare pod with {labels} to be refused")
        with running(cp, tmp_path, [cp.get("configmaps", "muster-controller", HOME)], group=names.group) as muster:
            muster.started()
            quota = {"nvidia.com/gpu": 16}
            made = [flavor("h100", {"gpu": "h100"}), cluster_queue("team-a", quota, "h100")]
            made += [local_queue("team-a", "team-a", name) for name in ("main", "default")]
            cp.apply([{**one, "apiVersion": names.api_version} for one in made])
            label = {names.queue_label: "main"}
            plain = job("team-a", "plain", 1, queue=None)
            # The API server looks for new kinds every ten seconds.
            cp.wait(
                lambda: cp.create(plain, dryRun="All")["metadata"].get("labels", {}).get(names.queue_label),
                60,
                "a job without a label to get a queue",
            )
            cp.apply(
                [
                    job("team-a", "train", 2, queue=None, labels=label),
                    jobset("team-a", "set", {"w": (2, 1)}, gpus=4, queue=None, labels=label),
                ]
            )
            cp.create(plain)
            cp.apply(job("team-a", "by-gate", 2, queue=None, labels=label, completionMode="NonIndexed"))
            for kind, name in (("jobs", "train"), ("jobsets", "set"), ("jobs", "plain"), ("jobs", "by-gate")):
                cp.wait(done(cp, kind, "team-a", name), 90, f"{name} to finish")
            _proven(cp, "team-a", "HeldByPolicy")
            queues = {w["metadata"]["ownerReferences"][0]["name"]: w["spec"]["queueName"] for w in cp.list("workloads")}
            assert queues == {"train": "main", "set": "main", "plain": "default", "by-gate": "main"}
            with pytest.raises(ApiError, match="remove Muster first"):
                cp.delete("customresourcedefinitions", "workloads.kueue.x-k8s.io", dryRun="All")
            cp.apply(job("team-a", "runs", 1, seconds=None, queue=None, labels=label))
            cp.wait(lambda: cp.get("jobs", "runs", "team-a")["status"].get("active"), 30, "a job to run")
            cp.apply(job("team-a", "waits", 2, seconds=None, queue=None, labels=label))
            cp.wait(lambda: len(cp.list("workloads")) == 6, 30, "another to wait")
            assert not [w for w in cp.list("workloads") if entry_of(w, "Preempted")]
            assert not [w for w in cp.list("workloads") if entry_of(w, "Admitted").get("status") == "False"]
            with _switched_off(cp, "waits", "Deactivated"):
                pass
            # The one that ran keeps its place: had it been switched on at once, it could have come first again.
            with _switched_off(cp, "runs", "Deactivated"):
                cp.wait(lambda: cp.get("jobs", "waits", "team-a")["status"].get("active"), 30, "the other to run")
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            cp.delete(kind, "muster-bare-pods")
        _follow(prompt, "docs/migrate.md", "helm uninstall muster")
        assert there == {
            crd["metadata"]["name"]: crd["metadata"]["uid"] for crd in cp.list("customresourcedefinitions")
        }
        held = {name: cp.get("jobs", name, "team-a")["spec"]["suspend"] for name in ("runs", "waits")}
        assert held == {"runs": True, "waits": False}
        for name in held:
            cp.delete("jobs", name, "team-a", propagationPolicy="Background")


def _kept_out(cp: ControlPlane, pod: Object) -> bool:
    """Is a pod refused for what it asks for?"""
    try:
        cp.create(pod, dryRun="All")
    except ApiError as error:
        return "instead of a pod" in str(error)
    return False


@contextlib.contextmanager
def _switched_off(cp: ControlPlane, name: str, why: str) -> Iterator[None]:
    """As Kueue says it: who is switched off is evicted, whether it ran or waited; who ran is queued again in so many
    words as soon as it is switched on, and not only when it is admitted."""

    def gang() -> Object:
        return next(w for w in cp.list("workloads") if w["metadata"]["ownerReferences"][0]["name"] == name)

    def said(condition: str) -> tuple[str, str]:
        entry = entry_of(gang(), condition)
        return entry.get("status", ""), entry.get("reason", "")

    workload = gang()["metadata"]["name"]
    ran = cp.get("jobs", name, "team-a")["status"].get("active")
    cp.patch("workloads", workload, {"spec": {"active": False}}, "team-a")
    cp.wait(lambda: said("Evicted") == ("True", why), 30, "it to be evicted")
    cp.wait(lambda: "admission" not in gang()["status"], 30, "it to hold nothing")
    assert said("Requeued") == (("False", why) if ran else ("", ""))
    yield
    cp.patch("workloads", workload, {"spec": {"active": True}}, "team-a")
    if ran:
        cp.wait(lambda: said("Requeued") == ("True", "Reactivated"), 30, "it to be queued again")


def test_people_have_the_rights_of_the_chart_and_no_more(plane: ControlPlane) -> None:
    cp, release = plane, Release(plane)
    cp.clean()
    release.install(rbac={"queueAdmins": ["platform"]}, restrictPriorities=["urgent"])
    cp.namespace("team-a")
    edit = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": "team-a"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}],
    }
    cp.apply(edit)
    tenant, platform = cp.as_user("ada"), cp.as_user("grace", ["platform"])
    cp.wait(lambda: tenant.list("workloads.muster.dev", "team-a") == [], 20, "the roles to be aggregated")
    assert tenant.list("localqueues.muster.dev", "team-a") == []
    queue, local = cluster_queue("team-a", {"nvidia.com/gpu": 8}), local_queue("team-a", "team-a")
    for attempt in (
        lambda: tenant.create(local),
        lambda: tenant.create(queue),
        lambda: tenant.list("workloads.muster.dev", "default"),
        lambda: tenant.list("clusterqueues.muster.dev"),
        lambda: platform.create(job("team-a", "a")),
        lambda: tenant.delete("workloads.muster.dev", "any", "team-a"),
        lambda: platform.patch("workloads.muster.dev", "any", {"spec": {"active": False}}, "team-a"),
    ):
        with pytest.raises(ApiError) as error:
            attempt()
        assert error.value.status == 403
    platform.create(queue)
    platform.create(local)
    assert platform.delete("workloads.muster.dev", "any", "team-a") is None  # allowed, and there is none
    # Until the API server has seen the policy that suspends it, the one that guards it refuses it.
    cp.wait(lambda: tenant.create(job("team-a", "train"), dryRun="All")["spec"]["suspend"], 20, "a job to be held")
    _who_may_use_a_priority(cp, tenant, edit)
    release.uninstall()


def _who_may_use_a_priority(cp: ControlPlane, tenant: ApiClient, edit: Object) -> None:
    """The namespaces of teams whose quota names it; others are told what to do."""
    cp.namespace("team-b")
    cp.apply({**edit, "metadata": {"name": "tenant", "namespace": "team-b"}})
    teams = {"urgents": {"namespaces": ["team-a"], "localQueues": ["other"], "priorities": ["urgent"]}}
    Release(cp, "muster-quota").install(quota={"only": True, "priorities": {"urgent": 10}, "teams": teams})

    def tried(namespace: str) -> str:
        urgent = job(namespace, "urgent", labels={NAMES.priority_class_label: "urgent"})
        try:
            tenant.create(urgent, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    refused = "you may not use the priority class urgent in team-b"
    cp.wait(lambda: refused in tried("team-b"), 20, "the policy to be seen")
    cp.wait(lambda: tried("team-a") == "", 20, "the right to be seen")
    # One that has it may give it up, or take one that anybody may use; and nobody gets it by an update.
    for namespace, name, had in (("team-a", "had", "urgent"), ("team-b", "plain", None)):
        cp.create(job(namespace, name, labels={NAMES.priority_class_label: had} if had else {}))

    def labelled(namespace: str, name: str, label: str | None) -> None:
        change = {"metadata": {"labels": {NAMES.priority_class_label: label}}}
        tenant.patch("jobs", name, change, namespace, dryRun="All")

    labelled("team-a", "had", None)
    labelled("team-a", "had", "of-no-restriction")
    with pytest.raises(ApiError, match="may not use the priority class urgent in team-b"):
        labelled("team-b", "plain", "urgent")


OF_OTHERS = {
    "cert-manager": ("cert-manager.io_certificates", "cert-manager.io_issuers"),
    "prometheus-operator": ("monitoring.coreos.com_servicemonitors", "monitoring.coreos.com_prometheusrules"),
}
"""Kinds of others that the chart writes, by the module that they are of."""


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> ControlPlane:
    """An API server that knows every kind which the chart may render."""
    if not plane.has("workloads.muster.dev"):
        Release(plane).install()
    for module, files in OF_OTHERS.items():
        for name in files:
            plane.apply((build.manifests(module) / "crds" / f"{name}.yaml").read_text())
    return plane


@pytest.mark.parametrize("row", sorted(MATRIX))
def test_no_field_of_any_rendering_is_unknown_to_the_api_server(served: ControlPlane, row: str) -> None:
    for one in template(MATRIX[row]):
        namespace = one["metadata"].get("namespace")
        if namespace:  # not merged with the one that is there, whose ports may be others
            one["metadata"]["name"] += "-again"
        if namespace and served.find("namespace", namespace) is None:
            served.namespace(namespace)
        path = served.resource_of(one).path(namespace, one["metadata"]["name"])
        said = {"fieldManager": "e2e", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
        served.request("PATCH", path, one, params=said, content_type=APPLY)


def play(muster: Charted, held: str) -> Scrape:
    """A Job, a JobSet and a Job without index run; a fourth is edited and taken out while it waits. What the metrics
    say in the midst of it."""
    cp = muster.cp
    muster.started()
    check = {"apiVersion": NAMES.api_version, "kind": "AdmissionCheck", "metadata": {"name": "unused"}}
    cp.apply({**check, "spec": {"controllerName": "example.com/nobody"}})
    cp.apply([job("vision", "train", 4), jobset("speech", "sim", {"driver": (1, 1), "workers": (1, 3)})])
    cp.wait(lambda: admitted(cp, "vision", "train") and admitted(cp, "speech", "sim"), 30, "both to be admitted")
    scraped: list[Scrape] = []
    _edit_a_held_job(cp, "vision", lambda: scraped.append(muster.scrape()))
    cp.wait(done(cp, "jobs", "vision", "train"), 60, "the Job to finish")
    cp.wait(done(cp, "jobsets", "speech", "sim"), 60, "the JobSet to finish")
    cp.apply(job("vision", "without-index", 2, completionMode="NonIndexed"))
    cp.wait(done(cp, "jobs", "vision", "without-index"), 60, "a Job to finish whose pods are pinned one by one")
    _proven(cp, "vision", held)
    return scraped[0]


def _proven(cp: ControlPlane, queue: str, held: str) -> None:
    def proof() -> tuple[str, str]:
        entry = entry_of(cp.get("clusterqueues", queue), JOBS_HELD)
        return entry["status"], entry["reason"]

    # The first proof may have been before the API server had read the policies.
    cp.wait(lambda: proof() == ("True", held), 15, "the proof that jobs are held", describe=proof)


def _edit_a_held_job(cp: ControlPlane, namespace: str, waiting: Callable[[], None]) -> None:
    """Its owner makes it smaller while it waits, and takes it out of the queue."""
    cp.apply(job(namespace, "huge", 100))
    cp.wait(lambda: reason(cp, namespace, "huge")[0], 30, "the reason why it waits")
    waiting()
    cp.patch("jobs", "huge", {"spec": {"parallelism": 90, "completions": 90}}, namespace)
    cp.wait(lambda: "720 nvidia.com/gpu" in reason(cp, namespace, "huge")[1], 30, "its new size to be told")
    cp.patch("jobs", "huge", {"metadata": {"labels": {NAMES.queue_label: None}}}, namespace)
    cp.wait(lambda: workload_of(cp, namespace, "huge") is None, 30, "its Workload to go")
    cp.delete("jobs", "huge", namespace)


def _again(cp: ControlPlane, release: Release) -> list[Object]:
    """Emptied, with the release in its namespace, which goes as well; what has no namespace is taken over."""
    cp.clean()
    return release.install()


def _judge_rights(cp: ControlPlane, since: int, mode: str) -> None:
    """Nothing was granted that nobody uses, but for what is rare; printed, and it does not grow unseen."""
    have, asked = granted(cp), used(cp, since)
    assert not any("*" in right for right in have)
    unused = have - asked - ASKED_ELSEWHERE
    print(f"\n{mode}: {len(have)} rights granted, {len(have & asked)} used; never: {_shown(unused) or 'none'}")
    assert unused <= RARE, _shown(unused - RARE)
