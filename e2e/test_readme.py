"""README, run: every `sh` block that is marked is executed as it stands, against the real control plane.

<!-- run -->         executed to its end; a block that fails fails the test
<!-- background -->  started, and stopped when the test is over
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.build import ensure
from e2e.control_plane import ControlPlane
from e2e.gangs import admitted
from e2e.installed import SOURCES, Installed

HERE = Path(sys.executable).parent
BLOCK = re.compile(r"<!-- (run|background) -->\n```sh\n(.*?)```", re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(path.read_text())]


@pytest.mark.parametrize("page", ["README.md"])
def test_what_the_page_says_runs(cp: ControlPlane, page: str, tmp_path: Path) -> None:
    cp.clean()
    cp.add_nodes(6, gpus=8, cpu="96", memory="1Ti", labels={"gpu": "h100"})
    kubectl = ensure(["kubectl"])["kubectl"].parent
    environment = {**os.environ, "KUBECONFIG": str(cp.kubeconfig()), "PATH": f"{kubectl}:{os.environ['PATH']}"}
    config = tmp_path / "ports.yaml"
    config.write_text("health: {bindAddress: '0'}\nmetrics: {bindAddress: '0'}\nweb: {bindAddress: '0'}\n")
    going: list[subprocess.Popen[bytes]] = []
    said = ""
    try:
        for how, text in blocks(SOURCES / page):
            if how == "background":
                # The ports of the page may be taken here; everything else is as it says.
                shown = text.strip() + f" --config {config}"
                log = (tmp_path / "background.log").open("wb")
                going.append(
                    subprocess.Popen(
                        ["bash", "-c", f"exec {shown}"], cwd=SOURCES, env=environment, stdout=log, stderr=log
                    )
                )
                continue
            ran = subprocess.run(
                ["bash", "-c", text], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
            )
            said += ran.stdout
            asked = "muster why" in text  # 1 says that the job waits, which it may
            assert ran.returncode == 0 or (asked and ran.returncode == 1), f"{text}\n{ran.stdout}\n{ran.stderr}"
        assert "true" in said, "the job was held"
        cp.wait(lambda: cp.get("jobs", "train", "team-a")["spec"].get("suspend") is False, 60, "the sample to start")
        cp.apply((SOURCES / "config/samples/jobset.yaml").read_text())
        cp.wait(lambda: cp.get("jobsets", "sweep", "team-b")["spec"].get("suspend") is False, 60, "the other to start")
    finally:
        for process in going:
            process.send_signal(signal.SIGINT)
            process.wait(20)


def test_the_first_look_on_kind_shows_one_that_runs_and_one_that_waits(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=0, labels={"kubernetes.io/os": "linux"})
    muster.started()
    ((_, text),) = blocks(SOURCES / "docs" / "install.md")
    kubectl = ensure(["kubectl"])["kubectl"].parent
    environment = {**os.environ, "KUBECONFIG": str(cp.kubeconfig()), "PATH": f"{HERE}:{kubectl}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 1 says that the job waits
    assert "job/second" in ran.stdout, ran.stdout + ran.stderr
    assert "LocalQueue main -> ClusterQueue team-a" in ran.stdout, ran.stdout
    cp.wait(lambda: admitted(cp, "team-a", "first"), 30, "the first to start")
    cp.delete("jobs", "first", "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "second"), 60, "the second, once there is room")
