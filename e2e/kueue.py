"""Kueue's own controller on a control plane, for those who come from it and go back to it.

    with Kueue(cp) as kueue:
        kueue.start()       # and its webhooks; what it is to manage may be created now
        kueue.stop()        # as docs/migrate.md says: its controller, and its webhooks

It has Jobs and JobSets among its integrations, and acts as a cluster administrator. `python -m e2e.build kueue` builds
it once; without it, or where no mount namespace can be made (which it needs for a path under /etc that it insists on),
`available()` is false.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import yaml

from admission.names import KUEUE_GROUP
from admission.sandbox.play import free_port
from e2e import build
from e2e.api_client import Object
from e2e.control_plane import ControlPlane
from e2e.installed import undefine
from e2e.processes import Process

NAMESPACE = "kueue-system"
LEASE = f"c1f6bfd2.{KUEUE_GROUP}"
ASKED_BY = ("batch-v1-job", "jobset-x-k8s-io", "kueue-x-k8s-io")
"""What the paths of its webhooks have in them that are of use here."""
IN_ETC = "mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && ln -s {certificates} /etc/kueue/metrics/certs"


def define(cp: ControlPlane) -> list[str]:
    """Kueue's CRDs; their names."""
    files = sorted((build.manifests("kueue") / "crds").glob("*.yaml"))
    for file in files:
        cp.apply(file.read_text())
    cp.wait(lambda: cp.has(f"workloads.{KUEUE_GROUP}"), 30, "Kueue's CRDs to be served")
    return [f"{file.stem.partition('_')[2]}.{KUEUE_GROUP}" for file in files]


@contextlib.contextmanager
def kinds(cp: ControlPlane) -> Iterator[None]:
    """They go again, as most tests name kinds that both groups have; no policy may keep them then."""
    names = define(cp)
    yield
    for kind in names:
        for meta in (left["metadata"] for left in cp.list(kind)):
            if meta.get("finalizers"):
                cp.patch(kind, meta["name"], {"metadata": {"finalizers": None}}, meta.get("namespace"))
    undefine(cp, names)


def available() -> bool:
    if build.find("kueue") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


class Kueue:
    """See the module."""

    def __init__(self, cp: ControlPlane) -> None:
        self.cp = cp
        self.folder = cp.work_dir / "kueue"
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when its leader works, and answers for its webhooks."""
        self.cp.namespace(NAMESPACE)
        self._process = Process("kueue", self._command(), self.folder / "kueue.log")
        self._process.start()
        self.cp.wait(self._serves, 60, "Kueue to serve its webhooks", describe=self._process.tail)
        self.cp.apply(self._webhooks())
        self.cp.wait(self._leads, 60, "Kueue to lead", describe=self._process.tail)

    def stop(self) -> None:
        if self._process is None:
            return
        for made in self._webhooks():
            self.cp.delete(made["kind"], made["metadata"]["name"])
        self._process.signal(signal.SIGTERM)
        self._process.reap()
        self._process = None

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.running, self._process.tail()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _leads(self) -> bool:
        lease = self.cp.find("leases", LEASE, NAMESPACE)
        return bool(lease and lease["spec"].get("holderIdentity"))

    def _command(self) -> list[str]:
        certificates = self.folder / "certificates"
        certificates.mkdir(exist_ok=True)
        for source, name in zip(self.cp.server_certificate, ("tls.crt", "tls.key"), strict=True):
            shutil.copyfile(source, certificates / name)
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "leaderElection": {"leaderElect": True, "resourceName": LEASE, "resourceNamespace": NAMESPACE},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(certificates)},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
            "metrics": {"bindAddress": "0"},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod"]},
        }
        file = self.folder / "kueue.yaml"
        file.write_text(yaml.safe_dump(config))
        program = build.ensure(["kueue"], say=False)["kueue"]
        # Its visibility server wants a folder under /, and nobody asks it here.
        run = f"exec {program} --config={file} --kubeconfig={self.cp.kubeconfig()}"
        run += " --feature-gates=VisibilityOnDemand=false"
        return ["unshare", "-m", "sh", "-c", f"{IN_ETC.format(certificates=certificates)} && {run}"]

    @staticmethod
    def hooks(family: str) -> str:
        """The name of its configuration of validating or mutating webhooks."""
        return f"kueue-{family}-webhook-configuration"

    def _webhooks(self) -> list[Object]:
        """Its webhook configurations, pointed at the process instead of at a Service."""
        bundle = base64.b64encode(self.cp.ca_file.read_bytes()).decode()
        out = []
        for made in yaml.safe_load_all((build.manifests("kueue") / "webhooks" / "manifests.yaml").read_text()):
            made["metadata"]["name"] = f"kueue-{made['metadata']['name']}"
            hooks = {hook["clientConfig"]["service"]["path"]: hook for hook in made["webhooks"]}
            made["webhooks"] = [
                {**hook, "clientConfig": {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}}
                for path, hook in hooks.items()
                if any(part in path for part in ASKED_BY)
            ]
            out.append(made)
        return out
