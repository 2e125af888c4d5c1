"""Muster on a control plane, as a cluster has it: CRDs, policies, roles, and controllers in processes of their own.

    with Installed(cp) as muster:
        muster.start()          # a replica; more than one may run
        cp.apply(...)

The controllers act as the ServiceAccount that the chart gives them, never as admin. Their logs are kept beside the
control plane's, and `trouble()` returns what in them should not be there.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import yaml

from admission.api import crd
from admission.controller import policies
from admission.names import Names
from e2e.api_client import METADATA_ONLY, ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.event_log import EventLog
from e2e.forked import SOURCES, Forked, Loaded

NAMES = Names()
HOME = "muster-system"
USER = f"system:serviceaccount:{HOME}:muster-controller"
TUNING = {"explain_after_s": 1.0, "sweep_s": 3600.0}
"""Who waits is told why after a second instead of five, which only spare a write for who starts within them. And nobody
is looked at whom nothing woke: what a test waits for, however long, comes of what happened, not of the next sweep."""


Key = tuple[str, str, str]

_as_left: WeakKeyDictionary[ControlPlane, dict[Key, tuple[str, int]]] = WeakKeyDictionary()
"""What was installed on a control plane, by kind, namespace and name, with uid and version."""


@cache
def _definitions() -> tuple[Object, ...]:
    return tuple(yaml.safe_load(text) for text in crd.files(NAMES).values())


def _key(obj: Object) -> Key:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _versions(cp: ControlPlane, made: Sequence[Object]) -> dict[Key, tuple[str, int]]:
    """Of these objects those that are there: the generation of the spec, or, where a kind counts none, the version of
    the whole."""
    out = {}
    wanted = {_key(obj) for obj in made}
    for resource in {cp.resource_of(obj) for obj in made}:
        for item in cp.request("GET", resource.path(), accept=METADATA_ONLY)["items"] or ():
            meta, key = item["metadata"], _key({**item, "kind": resource.kind})
            if key in wanted:
                out[key] = meta["uid"], int(meta.get("generation") or meta["resourceVersion"])
    return out


@cache
def loaded() -> Loaded:
    """What the controllers of this process are forked from, and end with."""
    return Loaded().__enter__()


class Replica:
    """One controller process."""

    def __init__(self, process: Forked, log: Path, credential: str = "") -> None:
        self.process = process
        self.log = log
        self.credential = credential
        """Of its token, which no other replica has: audit events say with which a write was made."""

    def kill(self) -> None:
        """SIGKILL: no goodbye, the lease is not given up."""
        self.process.kill()
        self.process.wait(60)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """SIGTERM, as a kubelet sends it, and the exit code."""
        self.process.terminate()
        return int(self.process.wait(120))

    def stop(self) -> int:
        """SIGINT, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return int(self.process.wait(60))

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def leads(self) -> bool:
        """It has come to lead; it may not any more."""
        return any(line.get("event") == "leading" and "jobs" in line for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        """Its log, one JSON object a line; what is no JSON becomes {"raw": ...}."""
        out = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                out.append(json.loads(line))
            except ValueError:
                out.append({"raw": line, "level": "error"})
        return out


class Installed:
    """See the module. Installing twice on one control plane changes nothing."""

    def __init__(self, cp: ControlPlane, folder: Path) -> None:
        self.cp = cp
        self.folder = folder
        self.replicas: list[Replica] = []
        self.log: EventLog | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for replica in self.replicas:
            replica.stop()

    @staticmethod
    def install(cp: ControlPlane) -> None:
        """CRDs, policies, roles; waits until the policies hold. Of what was installed before only what somebody changed
        or removed is written."""
        made = (*_definitions(), *policies.objects(NAMES))
        left, there = _as_left.get(cp, {}), _versions(cp, made)
        wanted = [obj for obj in made if _key(obj) not in there or there[_key(obj)] != left.get(_key(obj))]
        if not wanted:
            return
        cp.apply(obj for obj in wanted if obj in _definitions())
        cp.namespace(HOME)
        cp.apply(obj for obj in wanted if obj not in _definitions())

        def holds() -> bool:
            probe = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "probe", "namespace": "default", "labels": {NAMES.queue_label: "probe"}},
                "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}}},
            }
            return bool(cp.create(probe, dryRun="All")["spec"].get("suspend"))

        cp.wait(holds, 30, "the policies to hold a labelled Job")
        _as_left[cp] = _versions(cp, made)

    def start(
        self,
        identity: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        tuning: Mapping[str, float] = TUNING,
    ) -> Replica:
        """Start a replica. `config`: keys of the configuration file over the test's defaults. `tuning`: what of its
        `Tuning` differs from what users have; {} where a test counts writes."""
        said: dict[str, Any] = {
            "apiVersion": "config.muster.dev/v1beta1",
            "kind": "Configuration",
            "health": {"bindAddress": "0"},
            "metrics": {"bindAddress": "0"},
            "web": {"bindAddress": "0"},
            "leaderElection": {"leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s"},
            **(config or {}),
        }
        named = identity or f"replica-{len(self.replicas)}-{time.monotonic_ns()}"
        return self.begin(said, "--identity", named, "--log-level", "debug", tuning=tuning)

    def begin(self, said: Mapping[str, Any], *arguments: str, tuning: Mapping[str, float]) -> Replica:
        """Start a replica with this configuration file and these arguments beside."""
        number, kubeconfig = len(self.replicas), self.cp.kubeconfig(USER)
        path, log = self.folder / f"muster-{number}.yaml", self.folder / f"muster-{number}.log"
        path.write_text(yaml.safe_dump(said))
        where = ["--kubeconfig", str(kubeconfig), "--namespace", HOME, "--config", str(path)]
        process = loaded().start(["controller", *where, *arguments], log, cwd=SOURCES, tuning=tuning)
        self.replicas.append(Replica(process, log, _credential(kubeconfig)))
        return self.replicas[-1]

    def started(
        self,
        identity: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        tuning: Mapping[str, float] = TUNING,
    ) -> Replica:
        """Start a replica and wait until it leads."""
        replica = self.start(identity, config=config, tuning=tuning)

        def leads() -> bool:
            if not replica.running:
                raise RuntimeError(f"the controller ended with {replica.process.returncode}; see {replica.log}")
            return replica.leads

        self.cp.wait(leads, 60, "the controller to lead", describe=lambda: replica.log.read_text()[-2000:])
        return replica

    def forget_leader(self) -> None:
        """What its lease would do in its own time, once a leader is known to be dead."""
        lease = self.cp.find("leases", "muster-controller", HOME)
        if lease is not None:
            self.cp.delete("leases", "muster-controller", HOME)

    def trouble(self) -> list[str]:
        """Lines that no healthy run has: exceptions, errors, drift."""
        return [
            f"{replica.log.name}: {json.dumps(line)[:2000]}"
            for replica in self.replicas
            for line in replica.lines()
            if line.get("level") in ("error", "critical") or "exception" in line or "Traceback" in str(line)
        ]


def undefine(cp: ControlPlane, names: Sequence[str]) -> None:
    """Delete these CRDs, once the policy that keeps them is seen to be gone."""

    def deleted() -> bool:
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


def credential_of(event: Mapping[str, Any]) -> str:
    """Whose request an audit event is, as `Replica.credential` names it."""
    return "".join(event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id") or ())


def _credential(kubeconfig: Path) -> str:
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    claims = token.split(".")[1]
    return f"JTI={json.loads(base64.urlsafe_b64decode(claims + '=' * (-len(claims) % 4)))['jti']}"


# ---------------------------------------------------------------- objects that tests write


def flavor(name: str = "gpu", labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return ours("ResourceFlavor", name, {**({"nodeLabels": dict(labels)} if labels else {}), **spec})


def cohort(name: str, quota: Mapping[str, int | str] | None = None, flavor: str = "gpu", **spec: Any) -> dict[str, Any]:
    if quota:
        spec["resourceGroups"] = [group(quota, flavor)]
    return ours("Cohort", name, spec)


def group(quota: Mapping[str, int | str], flavor: str = "gpu") -> dict[str, Any]:
    """A resource group of one flavor: resource -> nominal quota."""
    return {
        "coveredResources": list(quota),
        "flavors": [{"name": flavor, "resources": [{"name": r, "nominalQuota": str(q)} for r, q in quota.items()]}],
    }


def cluster_queue(name: str, quota: Mapping[str, int | str], flavor: str = "gpu", **spec: Any) -> dict[str, Any]:
    return ours("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": [group(quota, flavor)], **spec})


def local_queue(namespace: str, queue: str, name: str = "main", **spec: Any) -> dict[str, Any]:
    return ours("LocalQueue", name, {"clusterQueue": queue, **spec}, namespace)


def ours(kind: str, name: str, spec: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": NAMES.api_version, "kind": kind, "metadata": meta, "spec": dict(spec)}


def pod_template(gpus: int = 8, seconds: float | None = 2, **spec: Any) -> dict[str, Any]:
    """Pods of `gpus` GPUs that run `seconds`; None: until they are stopped."""
    amounts = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    note = {} if seconds is None else {"pod-complete.stage.kwok.x-k8s.io/delay": f"{seconds}s"}
    if seconds is not None and seconds > 5:
        note["pod-complete.stage.kwok.x-k8s.io/jitter-delay"] = f"{seconds}s"
    if seconds is None:
        note = {
            "pod-complete.stage.kwok.x-k8s.io/delay": "24h",
            "pod-complete.stage.kwok.x-k8s.io/jitter-delay": "24h",
        }
    return {
        "metadata": {"annotations": note},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "c", "resources": {"requests": amounts, "limits": amounts}}],
            **spec,
        },
    }


def _queued(namespace: str, name: str, queue: str | None, labels: Mapping[str, str] | None) -> Object:
    marks = {**({NAMES.queue_label: queue} if queue else {}), **(labels or {})}
    return {"name": name, "namespace": namespace, **({"labels": marks} if marks else {})}


def job(
    namespace: str,
    name: str,
    pods: int = 1,
    *,
    gpus: int = 8,
    seconds: float | None = 2,
    queue: str | None = "main",
    labels: Mapping[str, str] | None = None,
    template: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """An indexed Job of `pods` pods, as its owner writes it."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _queued(namespace, name, queue, labels),
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": dict(template) if template is not None else pod_template(gpus, seconds),
            **spec,
        },
    }


def jobset(
    namespace: str,
    name: str,
    sets: Mapping[str, tuple[int, int]],
    *,
    gpus: int = 8,
    seconds: float | None = 2,
    queue: str | None = "main",
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A JobSet of {replicated job: (replicas, pods of each)}."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _queued(namespace, name, queue, labels),
        "spec": {
            "replicatedJobs": [
                {
                    "name": part,
                    "replicas": replicas,
                    "template": {
                        "spec": {
                            "parallelism": pods,
                            "completions": pods,
                            "completionMode": "Indexed",
                            "backoffLimit": 0,
                            "template": pod_template(gpus, seconds),
                        }
                    },
                }
                for part, (replicas, pods) in sets.items()
            ],
            **spec,
        },
    }
