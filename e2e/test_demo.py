"""The day of the demo on a real control plane of its own, as `make demo REAL=1` plays it."""

from __future__ import annotations

import re
import subprocess
import sys


def test_everything_that_must_hold_holds_on_a_real_control_plane() -> None:
    command = [sys.executable, "-m", "admission.cli", "demo", "--real"]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    held = re.findall(r"^  (yes|NO )  (.+)$", done.stdout, re.MULTILINE)
    assert len(held) == 7, done.stdout
    assert {answer for answer, _ in held} == {"yes"}
