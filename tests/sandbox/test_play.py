"""The demo, as `make demo SERVE=1` starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path


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
