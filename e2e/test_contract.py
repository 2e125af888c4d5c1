"""The sandbox cannot lie: the contract tests that it passes are passed by the real control plane too."""

from __future__ import annotations

import os
import subprocess
import sys

from e2e.control_plane import ControlPlane
from e2e.forked import SOURCES


def test_the_real_control_plane_keeps_the_contract_of_the_sandbox(cp: ControlPlane) -> None:
    cp.clean()
    cp.add_nodes(2, gpus=8)
    # Two at a time, for they mostly wait.
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/contract", "-k", "real", "-p", "no:cacheprovider", "-n", "2"],
        cwd=SOURCES,
        env={**os.environ, "MUSTER_CONTRACT_KUBECONFIG": str(cp.kubeconfig())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    assert " passed" in ran.stdout
