"""Child processes that never outlive their parent.

Each runs in a session of its own (Ctrl-C at the terminal reaches only the parent, which ends them in its own order)
and asks the kernel to be killed when the thread that started it ends, so that even a SIGKILL of the parent leaves
nothing behind. Start them from a thread that lives as long as they shall.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Looked up here: between fork and exec the loader's lock may be held by a thread that is not there any more."""


class Process:
    """One component: what it is started with, its log, and the running process while there is one."""

    def __init__(self, name: str, arguments: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.arguments = [str(argument) for argument in arguments]
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        parent = os.getpid()
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.arguments,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent),  # noqa: PLW1509 - two system calls, no locks
            )

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of its group, and wait."""
        self.signal(signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        if self._popen is not None:
            self._popen.wait()

    def tail(self, lines: int = 15) -> str:
        text = self.log.read_bytes()[-20000:].decode(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def usage(self) -> tuple[float, int]:
        """CPU seconds used so far and the peak resident size in bytes; zeros when it does not run."""
        if self.pid is None:
            return 0.0, 0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        return ticks / os.sysconf("SC_CLK_TCK"), peak * 1024


def wait_ready(waiting: dict[str, tuple[Process, Callable[[], bool]]], timeout: float) -> None:
    """Until every probe answers true; a process that ends meanwhile, or stays silent, fails with its log."""
    give_up = time.monotonic() + timeout
    pending = dict(waiting)
    while pending:
        for name, (process, ready) in list(pending.items()):
            if not process.running:
                raise RuntimeError(f"{name} ended while it was starting ({process.log}):\n{process.tail()}")
            if ready():
                del pending[name]
        if pending and time.monotonic() > give_up:
            name, (process, _) = next(iter(pending.items()))
            raise RuntimeError(f"{name} is not ready after {timeout:g} s ({process.log}):\n{process.tail()}")
        time.sleep(0.05)


def die_with(parent: int) -> None:
    """In a child: be killed when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
