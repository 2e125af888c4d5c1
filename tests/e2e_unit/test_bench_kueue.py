"""What Kueue's runner started ends with it, also where it gives up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from e2e.bench import kueue

RUNNER = """
import subprocess, sys
left = subprocess.Popen(["sleep", "600"], process_group=0)
print(left.pid, flush=True)
sys.exit(3)
"""


def test_a_runner_that_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    log = tmp_path / "runner.log"
    assert kueue._run([sys.executable, "-c", RUNNER], os.environ, log) == 3
    command = Path(f"/proc/{int(log.read_text())}/cmdline")
    assert not command.exists() or not command.read_bytes(), "one that has ended has none"
