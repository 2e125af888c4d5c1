"""A shell as a reader of the documentation has it: `muster`, `kubectl`, and `helm` where it can be had, on PATH.

    with Prompt(cp, folder) as prompt:
        ran = prompt.run("muster jobs -A | head -3")

`muster` is the program itself, forked from a process that has its libraries loaded: to load them takes more than a
second of CPU, to fork a hundredth. `helm` is the binary on PATH, else `python -m e2e.helm`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.build import ensure
from e2e.control_plane import ControlPlane

SOURCES = Path(__file__).resolve().parent.parent
HAS_HELM = shutil.which("helm") is not None or importlib.util.find_spec("helm_python") is not None
_SHIM = """#!{python} -ISs
import json, os, signal, socket, sys
ask = socket.socket(socket.AF_UNIX)
ask.connect({path!r})
said = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode()
socket.send_fds(ask, [len(said).to_bytes(8, "big")], [0, 1, 2])
ask.sendall(said)
pid = int.from_bytes(ask.recv(8), "big")
signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
sys.exit((ask.recv(1) or b"\\xff")[0])
"""


class Prompt:
    """See the module. Commands run in `folder` with the rights of an admin, and leave nothing outside of it but in the
    cluster: it is their HOME too."""

    def __init__(self, cp: ControlPlane, folder: Path, *, cwd: Path = SOURCES) -> None:
        self.cwd = cwd
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        self._socket = folder / "muster.socket"
        _script(bin_folder / "muster", _SHIM.format(python=sys.executable, path=str(self._socket)))
        if HAS_HELM and shutil.which("helm") is None:
            _script(bin_folder / "helm", f'#!/bin/sh\nPYTHONPATH={SOURCES} exec {sys.executable} -m e2e.helm "$@"\n')
        (bin_folder / "kubectl").symlink_to(ensure(["kubectl"], say=False)["kubectl"])
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "KUBECONFIG": str(cp.kubeconfig("admin")),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "e2e.prompt", str(self._socket)]
        self._server = subprocess.Popen(command, cwd=SOURCES, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._server.stdout is not None
        self._server.kill()
        self._server.wait(10)
        self._server.stdout.close()

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
            return subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self.cwd, env=self.environment, stdout=out, stderr=out
            )

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


# ---------------------------------------------------------------- what `muster` is forked from


def serve(path: str) -> None:
    """Fork a `muster` for each connection, with the streams, folder, arguments and environment that it sends."""
    from admission import cli
    from admission.controller import ask, change, migrate, tell, whatif
    from admission.kube import client

    del ask, change, migrate, tell, whatif, client  # loaded is all they must be
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(16)
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            size, streams, *_ = socket.recv_fds(connection, 8, 3)
            said = b""
            while len(said) < int.from_bytes(size, "big"):
                said += connection.recv(1 << 16)
            if os.fork() == 0:
                server.close()
                _one(cli.cli, connection, streams, *json.loads(said))
            connection.close()
            for stream in streams:
                os.close(stream)


def _one(command: Any, connection: socket.socket, streams: list[int], cwd: str, said: list[str], env: Any) -> None:
    """In the child: be that command, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background has it ignored
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    connection.sendall(os.getpid().to_bytes(8, "big"))
    code = 1
    try:
        command(said, prog_name="muster")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    for number in (0, 1, 2):  # who reads a pipe sees its end no later than the code
        os.close(number)
    connection.sendall(bytes([code & 255]))
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
