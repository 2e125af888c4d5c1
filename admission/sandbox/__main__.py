"""`python -m admission.sandbox`: a cluster in one process, for kubectl and controllers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import yaml

from admission.sandbox.http import Sandbox
from admission.sandbox.shapes import Object
from admission.sandbox.store import Request


def read_definitions(folder: Path | None) -> list[Object]:
    """The CustomResourceDefinitions in the YAML files of a folder."""
    if folder is None:
        return []
    documents = [d for path in sorted(folder.glob("*.y*ml")) for d in yaml.safe_load_all(path.read_text())]
    return [d for d in documents if isinstance(d, dict) and d.get("kind") == "CustomResourceDefinition"]


async def serve(port: int, kubeconfig: Path | None, definitions: list[Object], time_scale: float) -> None:
    """Serve until SIGINT or SIGTERM, with these CustomResourceDefinitions installed."""
    sandbox = Sandbox(time_scale=time_scale)
    await sandbox.start(port=port)
    for definition in definitions:
        kind = sandbox.store.kind("apiextensions.k8s.io", "customresourcedefinitions")
        assert kind is not None
        sandbox.store.do(Request("create", kind, body=definition, manager="sandbox"), sandbox.clock())
    if kubeconfig is not None:
        sandbox.write_kubeconfig(kubeconfig)
    where = f"; kubectl --kubeconfig {kubeconfig}" if kubeconfig else ""
    sys.stdout.write(f"serving on {sandbox.url}{where}\n")
    sys.stdout.flush()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await sandbox.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m admission.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig here")
    parser.add_argument("--crds", type=Path, help="a folder of CustomResourceDefinitions to install")
    parser.add_argument("--time-scale", type=float, default=1.0, help="divides the run times of pods")
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.kubeconfig, read_definitions(given.crds), given.time_scale))


if __name__ == "__main__":
    main()
