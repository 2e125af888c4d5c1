"""A real Kubernetes control plane on this machine, without containers: what the end-to-end suite runs against.

    with ControlPlane() as cp:
        cp.add_nodes(4, gpus=8)
        cp.namespace("team-a")
        cp.create(job)
        cp.wait(lambda: finished(cp.get("job", "train", "team-a")), 30, "the job to finish")

It is etcd, kube-apiserver, kube-controller-manager, kube-scheduler, the JobSet controller, and kwok, which plays the
kubelets: a pod that is bound to one of its nodes becomes Running and, if a Job owns it, ends after a second, or after
the delay of its annotation. All listen on 127.0.0.1 on ports of their own choice, so that several can run side by side.

`cp` is itself an API client (see `api_client`) with the rights of a cluster administrator. The processes are children
of the thread that enters the context and die with it.
"""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import copy
import dataclasses
import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from admission.sandbox.play import free_port
from e2e import build
from e2e.api_client import (
    METADATA_ONLY,
    PATIENCE,
    STRATEGIC,
    ApiClient,
    ApiError,
    Object,
    Objects,
    Resource,
    condition,
    merged,
)
from e2e.credentials import Authority
from e2e.processes import Process, wait_ready

COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kwok", "jobset-controller")
JOBSET_NAMESPACE = "jobset-system"
JOBSET_USER = f"system:serviceaccount:{JOBSET_NAMESPACE}:jobset-controller-manager"
MAKERS = ("cronjobs", "deployments", "statefulsets", "daemonsets", "replicasets")  # who makes jobs and pods
KEPT_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease", JOBSET_NAMESPACE})
MANAGED_GROUPS = frozenset({"muster.dev", "kueue.x-k8s.io"})
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

KWOK_LABEL = {"type": "kwok"}  # kwok plays the kubelet of nodes with this label
READY_SECONDS = "pod-ready.stage.kwok.x-k8s.io/delay"  # pod annotation, "90s": how long until a bound pod is Ready
RUN_SECONDS = "pod-complete.stage.kwok.x-k8s.io/delay"  # pod annotation, "90s": how long a Job's pod runs
FAIL = "kwok.x-k8s.io/fail"  # pod annotation, "true": the pod fails instead of ending well
FAIL_SECONDS = "pod-container-running-failed.stage.kwok.x-k8s.io/delay"  # and after how long

LOST = "kwok.x-k8s.io/lost"  # pod annotation: its node is lost, nothing happens to the pod; see set_node_ready

AuditKey = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Timing:
    """How fast the fake kubelets are and how soon a silent one is given up, in seconds."""

    pod_ready: float = 0.15  # bound to Running and Ready, without the annotation
    pod_run: float = 1.0  # Running to Succeeded, for pods of Jobs, without the annotation
    pod_delete: float = 0.1  # deleted to gone
    node_lease: int = 40  # kwok renews after a quarter of it
    node_monitor_period: float = 2.0
    node_monitor_grace: float = 50.0  # must be longer than a lease
    toleration: int = 300  # how long pods stay on a lost node before they are deleted


class ControlPlane(ApiClient):
    """A control plane for as long as the context lasts.

    `components` are those of COMPONENTS that run beside etcd and kube-apiserver; `apiserver_only` is none of them.
    `users` are people with a static token, and their groups. `audit` False leaves the audit log out. `kubernetes`: of
    another minor version than the usual (see `build.MODULES`).
    """

    def __init__(
        self,
        *,
        apiserver_only: bool = False,
        components: Iterable[str] = COMPONENTS,
        apiserver_flags: Sequence[str] = (),
        users: Mapping[str, Sequence[str]] | None = None,
        timing: Timing | None = None,
        audit: bool = True,
        kubernetes: str = os.environ.get("KUBERNETES", ""),
        keep: bool = bool(os.environ.get("MUSTER_E2E_KEEP")),
        say: bool = False,
    ) -> None:
        self.components = () if apiserver_only else tuple(c for c in COMPONENTS if c in set(components))
        self.timing = timing or Timing()
        self.keep = keep
        self.audit = audit
        self.kubernetes = kubernetes
        self.started_in: dict[str, float] = {}
        self._say = say
        self._apiserver_flags = list(apiserver_flags)
        _remove_stale()
        self.work_dir = Path(tempfile.mkdtemp(prefix=f"muster-e2e-{os.getpid()}-"))
        self._authority = Authority(self.work_dir / "pki")
        self.ca_file = self._authority.ca_file
        self._server = self._authority.server("server")
        self._signing_key = self._authority.signing_key("service-account")
        self._users = {"admin": ("system:masters",)} | {name: tuple(g) for name, g in (users or {}).items()}
        self._tokens = {name: secrets.token_hex(16) for name in self._users}
        self._ports: dict[str, int] = {}
        self._processes: dict[str, Process] = {}
        self.audit_log = self.work_dir / "audit.log"
        self._audited: tuple[int, int, Objects] = (0, 0, [])  # read from here to there, and what it says
        context = ssl.create_default_context(cafile=str(self.ca_file))
        super().__init__(f"https://127.0.0.1:{self._port_of('kube-apiserver')}", context, self._tokens["admin"])

    # -- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.keep = True
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.keep = self.keep or (kind is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit)))
        self.close()

    def close(self) -> None:
        """End all processes; the work folder goes too, unless it is kept."""
        super().close()
        for process in reversed(self._processes.values()):
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.reap()
        if self.keep:
            (self.work_dir / "keep").touch()  # see _remove_stale
            print(f"logs of the control plane: {self.work_dir}", flush=True)
        else:
            shutil.rmtree(self.work_dir, ignore_errors=True)

    def _start(self) -> None:
        names = build.of_kubernetes(self.kubernetes, ("etcd", "kube-apiserver", "kubectl", *self.components))
        found = build.ensure(names.values(), say=False)
        self._binaries = {name: found[one] for name, one in names.items()}
        began = time.monotonic()
        self._spawn("etcd", self._etcd())
        apiserver = self._spawn("kube-apiserver", self._apiserver())
        wait_ready({"kube-apiserver": (apiserver, self.ready)}, 60 * PATIENCE)
        self._note("kube-apiserver", began)
        waiting: dict[str, tuple[Process, Callable[[], bool]]] = {}
        for name, command in (
            ("kube-controller-manager", self._controller_manager),
            ("kube-scheduler", self._scheduler),
            ("kwok", self._kwok),
            ("jobset-controller", self._jobset),
        ):
            if name in self.components:
                scheme = "http" if name in ("kwok", "jobset-controller") else "https"
                process = self._spawn(name, command())
                waiting[name] = process, self._probe(name, f"{scheme}://127.0.0.1:{self._port_of(name)}/healthz", began)
        wait_ready(waiting, 60 * PATIENCE)
        if "jobset-controller" in self.components:
            self._jobset_webhooks()
        if "kube-controller-manager" in self.components:
            self.wait(lambda: self.find("serviceaccount", "default", "default"), 30, "the default service account")
        self._note("all", began)

    def _note(self, name: str, began: float) -> None:
        self.started_in.setdefault(name, time.monotonic() - began)
        if self._say:
            print(f"{name:24} ready after {self.started_in[name]:.1f} s", flush=True)

    def _spawn(self, name: str, arguments: Sequence[str | Path]) -> Process:
        process = Process(name, [self._binaries[name], *arguments], self.work_dir / f"{name}.log")
        self._processes[name] = process
        process.start()
        return process

    def _probe(self, name: str, url: str, began: float) -> Callable[[], bool]:
        def answers() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=10, context=self._context) as response:
                    ready = bool(response.status == 200)
            except OSError:
                return False
            self._note(name, began)
            return ready

        return answers

    def _port_of(self, name: str) -> int:
        while name not in self._ports:
            if (port := free_port()) not in self._ports.values():
                self._ports[name] = port
        return self._ports[name]

    def ready(self) -> bool:
        """Whether the API server says that it is."""
        try:
            return self.raw("GET", "/readyz", timeout=10)[0] == 200
        except OSError:
            return False

    # -- the command lines ---------------------------------------------------------------------------------------

    def _etcd(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{self._port_of(name)}" for name in ("etcd", "etcd-peer"))
        return [
            f"--data-dir={self.work_dir / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--quota-backend-bytes={8 << 30}",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        tokens = self.work_dir / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(
            "".join(f'{self._tokens[user]},{user},{user},"{",".join(g)}"\n' for user, g in self._users.items())
        )
        certificate, key = self._server
        proxy_certificate, proxy_key = self._authority.client("front-proxy")
        flags = [
            f"--etcd-servers=http://127.0.0.1:{self._port_of('etcd')}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port_of('kube-apiserver')}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.ca_file}",
            f"--requestheader-client-ca-file={self.ca_file}",  # for aggregated APIs
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy_certificate}",
            f"--proxy-client-key-file={proxy_key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._signing_key}",
            f"--service-account-signing-key-file={self._signing_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--max-requests-inflight=4000",
            "--max-mutating-requests-inflight=2000",
            f"--default-not-ready-toleration-seconds={self.timing.toleration}",
            f"--default-unreachable-toleration-seconds={self.timing.toleration}",
        ]
        disabled = ["TaintNodesByCondition"]  # our nodes are born ready; the node controller taints those that are not
        if "kube-controller-manager" not in self.components:  # nobody makes service accounts
            disabled.append("ServiceAccount")
        flags.append(f"--disable-admission-plugins={','.join(disabled)}")
        if self.audit:
            nothing = {"level": "None"}
            reads = {"verbs": ["get", "list", "watch"]}
            leases = {"group": "coordination.k8s.io", "resources": ["leases"]}
            rules = [nothing | reads, nothing | {"namespaces": ["kube-node-lease"], "resources": [leases]}]
            policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
            file = self._write("audit-policy.yaml", policy | {"rules": [*rules, {"level": "Metadata"}]})
            flags += [f"--audit-policy-file={file}", f"--audit-log-path={self.audit_log}", "--audit-log-maxsize=100000"]
        return flags + self._apiserver_flags

    def _controller_manager(self) -> list[str]:
        return [
            *self._client("kube-controller-manager"),
            "--controllers=*,-node-ipam-controller,-ttl-controller",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._signing_key}",
            f"--root-ca-file={self.ca_file}",
            "--concurrent-job-syncs=20",
            f"--node-monitor-period={self.timing.node_monitor_period}s",
            f"--node-monitor-grace-period={self.timing.node_monitor_grace}s",
            "--node-eviction-rate=100",
            "--secondary-node-eviction-rate=100",
        ]

    def _scheduler(self) -> list[str]:
        return self._client("kube-scheduler")

    def _client(self, name: str) -> list[str]:
        """What the API server's own clients are told alike."""
        certificate, key = self._server
        kubeconfig = self.kubeconfig(f"system:{name}")
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port_of(name)}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ]

    def _kwok(self) -> list[str]:
        options = {"podPlayStageParallelism": 16, "nodePlayStageParallelism": 8, "nodeLeaseParallelism": 8}
        options["podsOnNodeSyncParallelism"] = (
            4  # unset beside others it is 0: pods bound before kwok came stay Pending
        )
        config = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
        file = self._write("kwok.yaml", config, *_stages(build.manifests("kwok") / "stages", self.timing))
        selector = ",".join(f"{key}={value}" for key, value in KWOK_LABEL.items())
        return [
            f"--kubeconfig={self.kubeconfig('system:kwok', ['system:masters'])}",
            f"--config={file}",
            f"--manage-nodes-with-label-selector={selector}",
            f"--node-lease-duration-seconds={self.timing.node_lease}",
            "--cidr=10.128.0.0/9",
            "--node-ip=127.0.0.1",
            f"--server-address=127.0.0.1:{self._port_of('kwok')}",
        ]

    def _jobset(self) -> list[str]:
        manifests = build.manifests("jobset")
        for file in sorted((manifests / "crds").glob("*.yaml")):
            kind = yaml.safe_load(file.read_text())
            # JobSet's rules name fields of metadata that this API server cannot compile.
            self.apply(_without_rules(kind) if self.kubernetes == "1.31" else kind)
        subject = {"kind": "ServiceAccount", "name": JOBSET_USER.rpartition(":")[2], "namespace": JOBSET_NAMESPACE}
        role = yaml.safe_load((manifests / "rbac" / "role.yaml").read_text())
        role["metadata"]["name"] = "jobset-manager-role"
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "jobset-manager-role"}
        binding = merged(_named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "jobset-manager"), {
            "roleRef": ref, "subjects": [subject],
        })  # fmt: skip
        account = merged(_named("v1", "ServiceAccount", subject["name"]), {"metadata": {"namespace": JOBSET_NAMESPACE}})
        self.apply([_named("v1", "Namespace", JOBSET_NAMESPACE), account, role, binding])
        certificate, key = self.server_certificate
        folder = self.work_dir / "jobset-webhook"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(certificate, folder / "tls.crt")
        shutil.copyfile(key, folder / "tls.key")
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._port_of("jobset-webhook"), "certDir": str(folder)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._port_of('jobset-controller')}"},
            "metrics": {"bindAddress": "0"},
            "clientConnection": {"qps": 1000, "burst": 2000},
        }
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{JOBSET_NAMESPACE}"]
        return [
            f"--kubeconfig={self._certificate_kubeconfig(JOBSET_USER, groups)}",
            f"--config={self._write('jobset.yaml', config)}",
            "--zap-log-level=info",
        ]

    def _jobset_webhooks(self) -> None:
        """JobSet's own webhook configurations, pointed at the process instead of at a Service."""
        webhooks = build.manifests("jobset") / "webhooks"
        bundle = base64.b64encode(self.ca_file.read_bytes()).decode()
        replaced = {}
        for patch in sorted((webhooks / "patches").glob("*.yaml")):
            for operation in yaml.safe_load(patch.read_text()):
                replaced[operation["value"]["name"]] = operation["value"]
        for configuration in yaml.safe_load_all((webhooks / "manifests.yaml").read_text()):
            hooks = [replaced.get(hook["name"], hook) for hook in configuration["webhooks"]]
            for hook in hooks:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self._port_of('jobset-webhook')}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": bundle}
            configuration["webhooks"] = hooks
            configuration["metadata"]["name"] = "jobset-" + configuration["metadata"]["name"]
            self.apply(configuration)

    def _write(self, name: str, *documents: Object) -> Path:
        path = self.work_dir / name
        path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
        return path

    # -- identities ----------------------------------------------------------------------------------------------

    @property
    def server_certificate(self) -> tuple[Path, Path]:
        """(certificate, key) for 127.0.0.1, which the API server trusts by `ca_file`."""
        return self._server

    def token(self, user: str = "admin") -> str:
        """A bearer token: of "admin", of one of `users`, or of a service account, "system:serviceaccount:ns:name"."""
        if user in self._tokens:
            return self._tokens[user]
        account = _service_account(user)
        if account is None:
            raise LookupError(f"{user!r} has no token: name it in users=, or use kubeconfig() or as_user()")
        namespace, name = account
        if self.find("serviceaccount", name, namespace) is None:
            self.create(merged(_named("v1", "ServiceAccount", name), {"metadata": {"namespace": namespace}}))
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.request("POST", path, request | {"spec": {"expirationSeconds": 86400}})
        return str(answer["status"]["token"])

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file. Any name goes: with its token where it has one, else with a certificate."""
        if (user in self._tokens and not groups) or _service_account(user):
            return self._kubeconfig(user, {"token": self.token(user)})
        return self._certificate_kubeconfig(user, groups)

    def as_user(self, user: str, groups: Sequence[str] = ()) -> ApiClient:
        """A client with the rights of somebody else."""
        if (user in self._tokens and not groups) or _service_account(user):
            return self.with_token(self.token(user))
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*self._authority.client(user, groups))
        return ApiClient(self.url, context)

    def _certificate_kubeconfig(self, user: str, groups: Sequence[str]) -> Path:
        certificate, key = self._authority.client(user, groups)
        return self._kubeconfig(user, {"client-certificate": str(certificate), "client-key": str(key)})

    def _kubeconfig(self, user: str, credentials: Object) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        return self._write(f"kubeconfig-{re.sub(r'[^A-Za-z0-9.-]', '-', user)}.yaml", config)

    # -- objects -------------------------------------------------------------------------------------------------

    @property
    def kubectl_path(self) -> Path:
        """The program, of the same version as the API server."""
        return Path(self._binaries["kubectl"])

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, user: str = "admin") -> str:  # noqa: A002
        """What kubectl prints (with its complaints, when it fails unchecked)."""
        command = [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig(user)}"]
        command.append(f"--cache-dir={self.work_dir / 'kubectl-cache'}")
        done = subprocess.run(
            [*command, *arguments], check=False, input=input, text=True, capture_output=True, timeout=300
        )
        if done.returncode == 0:
            return done.stdout
        if check:
            raise AssertionError(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout + done.stderr

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """A namespace in which pods can be made at once. That it exists already is no error."""
        self.apply(merged(_named("v1", "Namespace", name), {"metadata": {"labels": dict(labels or {})}}))
        if "kube-controller-manager" in self.components:
            self.wait(lambda: self.find("serviceaccount", "default", name), 30, f"the service account of {name}")
        return name

    def add_nodes(
        self,
        count: int,
        gpus: int = 8,
        *,
        cpu: str = "96",
        memory: str = "1Ti",
        labels: Mapping[str, str] | None = None,
        prefix: str = "node",
        start: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Nodes PREFIX-START.. with their GPUs, Ready. `extra` is merged into each (taints, more resources)."""
        nodes = []
        for index in range(start, start + count):
            size = {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": str(gpus)}
            node = _named("v1", "Node", f"{prefix}-{index}")
            node["metadata"]["labels"] = dict(labels or {})
            node["status"] = {"capacity": size, "allocatable": size}
            nodes.append(merged(node, extra or {}))
        return self.add_node_objects(nodes)

    def add_node_objects(self, nodes: Iterable[Object], wait: bool = True) -> list[str]:
        """Nodes as given, with what a kubelet adds: its hostname label and Ready=True; kwok plays them from then on."""
        complete = []
        for node in nodes:
            name = node["metadata"]["name"]
            labels = {"kubernetes.io/hostname": name}
            for prefix in "", "beta.":  # without the old names the node controller would add them, one write each
                labels |= {f"{prefix}kubernetes.io/os": "linux", f"{prefix}kubernetes.io/arch": "amd64"}
            status: Object = {"nodeInfo": dict(_NODE_INFO), "addresses": [{"type": "Hostname", "address": name}]}
            status["conditions"] = [_ready("True", "KubeletReady", "kwok plays this kubelet")]
            base: Object = {"metadata": {"labels": labels | KWOK_LABEL}, "status": status}
            complete.append(merged(base, {"apiVersion": "v1", "kind": "Node"} | node))
        self.create_all(complete)
        names = [node["metadata"]["name"] for node in complete]
        if wait and "kube-controller-manager" in self.components:
            self.wait(lambda: not set(names) & self._not_ready(), 60, f"{len(names)} nodes to be ready", every=0.3)
        return names

    def _not_ready(self) -> set[str]:
        tainted = "node.kubernetes.io/not-ready"
        return {
            node["metadata"]["name"]
            for node in self.list("node")
            if condition(node, "Ready") != "True" or any(t["key"] == tainted for t in node["spec"].get("taints", ()))
        }

    def set_node_ready(self, name: str, ready: bool, wait: bool = True) -> None:
        """Lose a node, or give it back.

        A lost node's kubelet is silent: kwok no longer plays it, so that its lease ages and its pods neither end nor,
        once deleted, go away. Its Ready condition becomes Unknown at once, and that of its pods False, as they would
        after the grace period. A node given back plays on; its pods run their time again from the start.
        """
        played = "kwok" in self.components
        (label, value), = KWOK_LABEL.items()  # fmt: skip
        if played and not ready:  # kwok's timers of these pods are cancelled before it forgets the node
            self._mark_pods(name, {"metadata": {"annotations": {LOST: "true"}}})
        renewed = self._lease_renewed(name)
        status, reason = ("True", "KubeletReady") if ready else ("Unknown", "NodeStatusUnknown")
        message = "kwok plays this kubelet" if ready else "Kubelet stopped posting node status."
        body: Object = {"status": {"conditions": [_ready(status, reason, message)]}}
        mark: Object = {"metadata": {"labels": {label: value if ready else None}}}
        # kwok is to see no node of its own that is not ready: it would make it ready, and say since its creation.
        if not ready:
            self.patch("node", name, mark)
        self.patch("node", name, body, subresource="status", content_type=STRATEGIC)
        if ready:
            self.patch("node", name, mark)
        pod_status = _ready("True", "", "") if ready else _ready("False", "NodeNotReady", "Node is not ready")
        pod_status.pop("lastHeartbeatTime")
        self._mark_pods(name, {"status": {"conditions": [pod_status]}}, "status")
        if played and ready:
            self.wait(lambda: self._lease_renewed(name) != renewed, 30, f"kwok to play {name} again")
            self._mark_pods(name, {"metadata": {"annotations": {LOST: None}}})
        if wait and "kube-controller-manager" in self.components:
            self.wait(lambda: self._tainted(name) != ready, 30, f"the taint of {name} to {'go' if ready else 'come'}")

    def _mark_pods(self, node: str, body: Object, subresource: str | None = None) -> None:
        for pod in self.list("pods", fieldSelector=f"spec.nodeName={node}"):
            if pod["status"].get("phase") in ("Pending", "Running"):
                meta = pod["metadata"]
                options = {"subresource": subresource, "content_type": STRATEGIC}
                try:
                    self.patch("pod", meta["name"], body, meta["namespace"], **options)
                except ApiError as error:
                    if error.status != 404:
                        raise

    def _lease_renewed(self, node: str) -> str | None:
        lease = self.find("lease", node, "kube-node-lease")
        return lease["spec"].get("renewTime") if lease else None

    def _tainted(self, name: str) -> bool:
        keys = {taint["key"] for taint in self.get("node", name)["spec"].get("taints", ())}
        return bool(keys & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})

    def clean(self) -> None:
        """Remove what tests made: nodes, jobs, pods, namespaces, and the objects of the managed groups.

        Finalizers are cut, so objects go even when their controllers are not there. CRDs, policies and RBAC stay.
        A namespace is finalized before it is deleted: five seconds after each deletion the namespace controller looks
        whether one of that name is being deleted and not finalized, even for a moment, and empties it. By the time that
        it does, the next test's could have the name.
        """
        for process in self._processes.values():
            process.signal(signal.SIGCONT)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            namespaces = [ns["metadata"]["name"] for ns in self.list("namespace")]
            doomed = [name for name in namespaces if name not in KEPT_NAMESPACES]
            mine = [r for r in self.resources(refresh=True) if r.group in MANAGED_GROUPS and "delete" in r.verbs]
            sets = ["jobsets"] if self.has("jobsets.jobset.x-k8s.io") else []
            for kind in (*MAKERS, *sets, "jobs", *(f"{r.plural}.{r.group}" for r in mine if r.namespaced), "pods"):
                list(pool.map(self._purge, [kind] * 2, ["default", None]))
            list(pool.map(self._purge, ["nodes", *(f"{r.plural}.{r.group}" for r in mine if not r.namespaced)]))
            list(pool.map(self._remove_namespace, doomed))
            left = [r for r in self.resources() if r.namespaced and "deletecollection" in r.verbs]
            list(pool.map(self._empty, left, [set(doomed)] * len(left)))
        leftovers = ("nodes", "pods", "jobs")
        self.wait(lambda: not any(self.list(kind) for kind in leftovers), 30, "the cluster to be empty")

    def _purge(self, kind: str, namespace: str | None = None) -> None:
        """Delete all of a kind (in all namespaces when none is named), again until none is left."""
        now = {"gracePeriodSeconds": 0} if kind == "pods" else {}
        for attempt in range(50):
            try:
                left = self.list(kind, namespace)
            except ApiError as error:
                if error.status != 404:
                    raise
                return  # discovery shows a kind for some time after its CRD has gone
            if not left:
                return
            places = {item["metadata"].get("namespace") for item in left}
            for place in places:
                self.delete_all(kind, place, **now)
            for item in left if attempt else ():
                meta = item["metadata"]
                if meta.get("finalizers"):
                    try:
                        self.patch(kind, meta["name"], {"metadata": {"finalizers": None}}, meta.get("namespace"))
                    except ApiError as error:
                        if error.status not in (404, 409):
                            raise
            time.sleep(0.02 * min(attempt, 10))

    def _remove_namespace(self, namespace: str) -> None:
        def gone() -> bool:
            found = self.find("namespace", namespace)
            if found is not None and found["spec"].pop("finalizers", None):
                self.replace(found, "finalize")
            elif found is not None:
                self.delete("namespace", namespace)
            return found is None

        self.wait(gone, 30, f"namespace {namespace} to go", every=0.005)

    def _empty(self, resource: Resource, namespaces: set[str]) -> None:
        """Delete all of a resource in these namespaces, which are no more."""
        try:
            there = self.request("GET", resource.path(), accept=METADATA_ONLY)["items"] or ()
        except ApiError as error:
            if error.status != 404:
                raise
            return  # discovery shows a kind for some time after its CRD has gone
        for namespace in sorted(namespaces & {item["metadata"]["namespace"] for item in there}):
            self.request("DELETE", resource.path(namespace), params={"propagationPolicy": "Background"})

    # -- processes and figures -----------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """Stop a component where it stands, as a machine that hangs."""
        self._processes[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._processes[name].signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """SIGKILL, and nothing starts it again but `restart`."""
        self._processes[name].kill()

    def restart(self, name: str) -> None:
        """Start a component again that was killed (or kill it first), from the thread that entered the context."""
        self._processes[name].kill()
        if name == "kwok":  # its successor, who is somebody else, would wait until the leases have run out
            self.delete_all("leases", "kube-node-lease")
        self._processes[name].start()
        if name in ("etcd", "kube-apiserver"):
            wait_ready({name: (self._processes[name], self.ready)}, 60 * PATIENCE)

    def snapshot(self, to: Path) -> Path:
        """What etcd holds now, in this folder; it is down for a moment."""
        self.kill("etcd")
        shutil.copytree(self.work_dir / "etcd", to)
        self.restart("etcd")
        return to

    def put_back(self, snapshot: Path, *, bump: int = 0) -> None:
        """As whoever restores a backup: all components begin anew on what etcd held then. bump: etcd counts on from so
        many revisions above, and no older one can be watched from (etcdutl's --bump-revision and --mark-compacted)."""
        for name in reversed(("etcd", "kube-apiserver", *self.components)):
            self.kill(name)
        shutil.rmtree(self.work_dir / "etcd")
        shutil.copytree(snapshot, self.work_dir / "etcd")
        self._processes["etcd"].start()
        if bump:
            self.wait(lambda: self._etcd_put("bump"), 20, "etcd to answer")
            for _ in range(bump):
                revision = self._etcd_put("bump")
            self._etcd_ask("compaction", {"revision": revision})
        for name in ("kube-apiserver", *self.components):
            self.restart(name)

    def _etcd_put(self, key: str) -> str:
        """Write something; the revision after it."""
        answer = self._etcd_ask("put", {"key": base64.b64encode(key.encode()).decode()})
        return str(answer["header"]["revision"])

    def _etcd_ask(self, what: str, body: Object) -> Object:
        url = f"http://127.0.0.1:{self._port_of('etcd')}/v3/kv/{what}"
        asked = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(asked, timeout=20) as response:
            answer: Object = json.load(response)
        return answer

    def metrics(self, component: str = "kube-apiserver") -> str:
        """The Prometheus text of kube-apiserver, kube-controller-manager or kube-scheduler."""
        server = self if component == "kube-apiserver" else None
        url = f"https://127.0.0.1:{self._port_of(component)}"
        status, text = (server or ApiClient(url, self._context, self.token())).raw("GET", "/metrics")
        if status != 200:
            raise ApiError(status, "GET", f"{url}/metrics", text.decode(errors="replace"))
        return text.decode()

    def usage(self) -> dict[str, tuple[float, int]]:
        """Of each component: CPU seconds so far, peak memory in bytes."""
        return {name: process.usage() for name, process in self._processes.items()}

    def audit_mark(self) -> int:
        """Where the audit log ends now, for `since`."""
        return self.audit_log.stat().st_size if self.audit_log.exists() else 0

    def audit_events(self, since: int = 0) -> Objects:
        """The audit events of all writes (leases of nodes aside) since a mark."""
        if not self.audit_log.exists():
            return []
        begin, end, events = self._audited
        if since != begin:
            end, events = since, []
        with self.audit_log.open("rb") as log:
            log.seek(end)
            *lines, _ = log.read().split(b"\n")
        events += [json.loads(line) for line in lines]
        self._audited = since, end + sum(len(line) + 1 for line in lines), events
        return list(events)

    def audit_counts(
        self, user: str | None = None, verbs: Iterable[str] = WRITES, since: int = 0, succeeded: bool = True
    ) -> collections.Counter[AuditKey]:
        """How many requests of each (user, verb, resource, subresource); dry runs never count."""
        counts: collections.Counter[AuditKey] = collections.Counter()
        wanted = frozenset(verbs)
        for event in self.audit_events(since):
            name, verb, target = event["user"].get("username", ""), event["verb"], event.get("objectRef") or {}
            if event["stage"] != "ResponseComplete" or verb not in wanted or (user is not None and name != user):
                continue
            if "dryRun=" in event["requestURI"] or (succeeded and event["responseStatus"].get("code", 0) >= 400):
                continue
            counts[name, verb, target.get("resource", ""), target.get("subresource", "")] += 1
        return counts


_KWOK_INFO = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "machineID")
_NODE_INFO = dict.fromkeys((*_KWOK_INFO, "osImage", "systemUUID"), "kwok") | {
    "architecture": "amd64",
    "operatingSystem": "linux",
}


def _ready(status: str, reason: str, message: str) -> Object:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": "Ready", "status": status, "reason": reason, "message": message} | times


def _named(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


def _service_account(user: str) -> tuple[str, str] | None:
    parts = user.split(":")
    return (parts[2], parts[3]) if len(parts) == 4 and parts[:2] == ["system", "serviceaccount"] else None


def _stages(folder: Path, timing: Timing) -> Objects:
    """kwok's own stages with our delays: one write for a pod that becomes ready, one for its end.

    Its stages for pods draw a delay between the one wanted and a jitter of 5 s (and take the jitter where that is
    shorter): here the delay is exact. Added: pods that fail when annotated, and the end of a terminating pod that
    still has a finalizer, as of a Job that replaces pods only once they failed; and pods on a lost node, whose only
    stage never comes (kwok keeps the timer of the last stage that a pod matched, even when it forgets the node).
    """

    def load(path: str) -> Object:
        loaded: Object = yaml.safe_load((folder / path).read_text())
        return loaded

    ready, complete = load("pod/fast/pod-ready.yaml"), load("pod/general/pod-complete.yaml")
    delete = load("pod/general/pod-delete.yaml")
    ready["spec"]["delay"] = {"durationFrom": {"expressionFrom": f'.metadata.annotations["{READY_SECONDS}"]'}}
    for stage, seconds in ((ready, timing.pod_ready), (complete, timing.pod_run), (delete, timing.pod_delete)):
        stage["spec"]["delay"]["durationMilliseconds"] = int(seconds * 1000)
        for jitter in "jitterDurationMilliseconds", "jitterDurationFrom":
            stage["spec"]["delay"].pop(jitter, None)
    failing = load("pod/chaos/pod-container-running-failed.yaml")
    failing["spec"]["delay"]["durationMilliseconds"] = int(timing.pod_run * 1000)
    failing["spec"]["delay"].pop("jitterDurationMilliseconds")
    failing["spec"]["delay"].pop("jitterDurationFrom")
    annotated = {"key": f'.metadata.annotations["{FAIL}"]', "values": ["true"]}
    failing["spec"]["selector"]["matchExpressions"][0] = annotated | {"operator": "In"}
    complete["spec"]["selector"]["matchExpressions"].append(annotated | {"operator": "NotIn"})
    ended = copy.deepcopy(delete)
    ended["metadata"]["name"] = "pod-terminated"
    ended["spec"]["selector"]["matchExpressions"] = [
        {"key": ".metadata.deletionTimestamp", "operator": "Exists"},
        {"key": ".metadata.finalizers", "operator": "Exists"},
        {"key": ".status.phase", "operator": "NotIn", "values": ["Succeeded", "Failed"]},
    ]
    ended["spec"]["delay"] = {"durationMilliseconds": int(timing.pod_delete * 1000)}
    ended["spec"]["next"] = {"statusTemplate": "phase: Failed\nreason: Terminated\n"}
    ended["spec"].pop("weightFrom", None)
    lost = {"key": f'.metadata.annotations["{LOST}"]', "values": ["true"]}
    for stage in (ready, complete, delete, failing, ended):
        stage["spec"]["selector"]["matchExpressions"].append(lost | {"operator": "NotIn"})
    silent = copy.deepcopy(ended)
    silent["metadata"]["name"] = "pod-on-lost-node"
    silent["spec"]["selector"]["matchExpressions"] = [lost | {"operator": "In"}]
    silent["spec"]["delay"] = {"durationMilliseconds": 10**9}
    return [load("node/fast/node-initialize.yaml"), ready, complete, delete, failing, ended, silent]


def _without_rules(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_rules(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}


def _remove_stale() -> None:
    """Work folders of processes that were killed before they could remove them."""
    for folder in Path(tempfile.gettempdir()).glob("muster-e2e-*-*"):
        owner = folder.name.split("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and not (folder / "keep").exists():
            shutil.rmtree(folder, ignore_errors=True)
