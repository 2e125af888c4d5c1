"""A shell as a reader of the documentation has it: `muster`, `kubectl`, and `helm` where it can be had, on PATH.

    with Prompt(cp, folder) as prompt:
        ran = prompt.run("muster jobs -A | head -3")

`muster` is the program itself, forked (see `forked`). `helm` is the binary on PATH, else `python -m e2e.helm`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.control_plane import ControlPlane
from e2e.forked import SOURCES
from e2e.installed import loaded

HAS_HELM = shutil.which("helm") is not None or importlib.util.find_spec("helm_python") is not None
_SHIM = """#!{python} -ISs
import json, os, signal, socket, sys
ask = socket.socket(socket.AF_UNIX)
ask.connect({address!r})
said = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
socket.send_fds(ask, [len(said).to_bytes(8, "big")], [0, 1, 2])
ask.sendall(said)
pid = int.from_bytes(ask.recv(8), "big")
signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
sys.exit((ask.recv(1) or b"\\xff")[0])
"""


class Prompt:
    """See the module. Commands run in `folder` with the rights of an admin, and leave nothing outside of it but in the
    cluster: it is their HOME too. Those that go on end with it."""

    def __init__(self, cp: ControlPlane, folder: Path, *, cwd: Path = SOURCES) -> None:
        self.cwd = cwd
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        self._going: list[subprocess.Popen[bytes]] = []
        _script(bin_folder / "muster", _SHIM.format(python=sys.executable, address=loaded().address))
        if HAS_HELM and shutil.which("helm") is None:
            _script(bin_folder / "helm", f'#!/bin/sh\nPYTHONPATH={SOURCES} exec {sys.executable} -m e2e.helm "$@"\n')
        (bin_folder / "kubectl").symlink_to(cp.kubectl_path)
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "KUBECONFIG": str(cp.kubeconfig("admin")),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._going:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(120)

    def run(self, text: str, *, shell: str = "bash", typed: str = "") -> subprocess.CompletedProcess[str]:
        """The lines of a block, in one shell; its exit code is the last line's. Standard error is part of stdout.
        `typed`: what somebody answers on a terminal; nobody is there without."""
        keyboard, there = os.openpty()
        try:
            os.write(keyboard, typed.encode())
            return subprocess.run(
                [shell, "-c", text],
                cwd=self.cwd,
                env=self.environment,
                stdin=there if typed else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=300,
            )
        finally:
            os.close(keyboard)
            os.close(there)

    def start(self, text: str, log: Path) -> subprocess.Popen[bytes]:
        """One command, which goes on: until it is sent a signal."""
        with log.open("wb") as out:
            self._going.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {text}"], cwd=self.cwd, env=self.environment, stdout=out, stderr=out
                )
            )
        return self._going[-1]

    def until_interrupted(self, text: str, shows: str) -> int:
        """Run a command until it has printed `shows`, and interrupt it as a person does; its exit code."""
        with subprocess.Popen(
            ["bash", "-c", f"exec {text}"],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            seen = b""
            while shows.encode() not in seen:
                more = process.stdout.readline()
                assert more, seen.decode()
                seen += more
            process.send_signal(signal.SIGINT)
            process.stdout.read()
        return process.returncode


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
