"""The demo, as `make demo SERVE=1` starts it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from admission.controller.policies import priority_class
from admission.controller.proof import missing
from admission.kube.client import Client
from admission.sandbox import play
from admission.sandbox.http import Sandbox


@contextlib.contextmanager
def serving(folder: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    # As on a terminal: who runs tests in the background has SIGINT ignored.
    program = "import signal; signal.signal(2, signal.default_int_handler); from admission.cli import main; main()"
    command = ["demo", "--serve", "--seconds", str(seconds)]
    with subprocess.Popen(
        [sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def test_it_serves_a_page_from_its_first_moment_until_it_is_interrupted(tmp_path: Path) -> None:
    with serving(tmp_path, 3600) as demo:
        assert demo.stdout is not None
        told = next(found for line in demo.stdout if (found := re.search(r"The page: (\S+) +\(token: (\S+)\)", line)))
        page = ""
        while "<html" not in page:
            assert demo.poll() is None
            try:
                with urllib.request.urlopen(told[1], timeout=300) as answer:
                    page = answer.read().decode()
            except OSError:  # the controller is still starting
                continue
        assert "Muster" in page
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait() == 130


def test_it_stays_up_after_its_day_with_a_kubeconfig(tmp_path: Path) -> None:
    """Of a day that was too short, here: it says so, and stays up all the same."""
    with serving(tmp_path, 0.1) as demo:
        assert demo.stdout is not None
        told = next(found for line in demo.stdout if (found := re.search(r"export KUBECONFIG=(\S+)", line)))
        assert "muster queues" in demo.stdout.readline()
        command = [sys.executable, "-m", "admission.cli", "queues", "-o", "name", "--kubeconfig", told[1]]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert set(play.TEAMS) <= {line.rpartition("/")[2] for line in listed.split()}
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait() == 1


@pytest.mark.parametrize(
    ("ran_h", "leaves", "dies"),
    [
        pytest.param({"small": 1, "large": 1}, "", "gpu-01", id="most pods, the first by name"),
        pytest.param({"small": 1, "large": 5.5}, "", "gpu-00", id="the large one is about to end"),
        pytest.param({"small": 1, "large": 4.5}, "", "gpu-00", id="the large one ends about when its node is missed"),
        pytest.param({"small": 5.5, "large": 5.5}, "", "gpu-01", id="both are"),
        pytest.param({"small": 5.5, "large": 1}, "large", "gpu-00", id="the large one was evicted"),
    ],
)
def test_the_node_that_dies_has_a_gang_that_runs_on(ran_h: dict[str, float], leaves: str, dies: str) -> None:
    witness, hour_s = play.Witness(), 1000.0
    for gang, nodes in (
        (play.Gang(0, "a", "small", 1, 6), ["gpu-00"]),
        (play.Gang(0, "a", "large", 2, 6), ["gpu-02", "gpu-01"]),
    ):
        witness.stories["a", gang.name] = story = play.Story(gang)
        for node in nodes:
            pod = play._Pod("a", f"{gang.name}-{node}", "", "", node, "Running", 8, gang.name, False)
            witness.on_pod(None, pod)
        assert story.running_since is not None
        story.running_since -= ran_h[gang.name] * hour_s
        if gang.name == leaves:
            left = play._Workload("a", "w", "", "", gang.name, True, "Preempted", "", "")
            witness.on_workload(None, left)
    assert play._busiest(witness, hour_s) == dies


async def test_what_the_hold_needs_beside_the_webhook_is_there(tmp_path: Path) -> None:
    """Else `muster queues` says first of all that jobs are not held."""
    sandbox = Sandbox()
    await sandbox.start()
    try:
        sandbox.write_kubeconfig(tmp_path / "kubeconfig")
        async with await Client.from_kubeconfig(str(tmp_path / "kubeconfig")) as client:
            await play._install(client, real=False)
            assert await missing(client, [priority_class(play.NAMES)]) == []
    finally:
        await sandbox.stop()
