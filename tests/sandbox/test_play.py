"""The demo, as `make demo SERVE=1` starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from admission.controller.hold import missing
from admission.controller.policies import priority_class
from admission.kube.client import Client
from admission.sandbox import play
from admission.sandbox.http import Sandbox


def test_it_serves_a_page_from_its_first_moment_until_it_is_interrupted(tmp_path: Path) -> None:
    # As on a terminal: who runs tests in the background has SIGINT ignored.
    program = "import signal; signal.signal(2, signal.default_int_handler); from admission.cli import main; main()"
    command = ["demo", "--serve", "--seconds", "3600"]
    with subprocess.Popen([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        told = next(found for line in demo.stdout if (found := re.search(r"The page: (\S+) +\(token: (\S+)\)", line)))
        page = ""
        while "<html" not in page:
            assert demo.poll() is None
            try:
                with urllib.request.urlopen(told[1], timeout=10) as answer:
                    page = answer.read().decode()
            except OSError:  # the controller is still starting
                continue
        assert "Muster" in page
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    assert demo.returncode == 130


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
