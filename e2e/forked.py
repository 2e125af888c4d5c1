"""`muster` forked from a process that has its libraries loaded: to load them takes two seconds of CPU, to fork a
hundredth. It is the program itself, with the streams, folder, arguments and environment that it is given. `tuning`: of
the controller's `Tuning`, what differs from what users have.

    with Loaded() as loaded:
        controller = loaded.start(["controller", "--kubeconfig", ...], log, cwd=SOURCES)

What was forked ends with what it was forked from, and that with whoever started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.processes import die_with

SOURCES = Path(__file__).resolve().parent.parent
_numbers = itertools.count()


class Forked:
    """One `muster` that runs, or has run: as a Popen is."""

    def __init__(self, arguments: Sequence[str], connection: socket.socket) -> None:
        self.arguments = arguments
        self._connection = connection
        self.pid = int.from_bytes(connection.recv(8), "big")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._code(0)

    def wait(self, timeout: float) -> int:
        """The exit code; -9 of one that was killed. Raises subprocess.TimeoutExpired."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self.arguments), timeout)
        return code

    def _code(self, timeout: float) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._connection, select.POLLIN)
            if waiting.poll(timeout * 1000):
                said = self._connection.recv(1)
                self.returncode = said[0] if said else -signal.SIGKILL
                self._connection.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Loaded:
    """The process with the libraries. `address`: of its socket, which is no file and goes with it."""

    def __init__(self) -> None:
        name = f"muster-{os.getpid()}-{next(_numbers)}"
        self.address = f"\0{name}"
        self._command = [sys.executable, "-m", "e2e.forked", name]
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        parent = os.getpid()
        self._server = subprocess.Popen(
            self._command,
            cwd=SOURCES,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: die_with(parent),  # noqa: PLW1509 - two system calls, no locks
        )
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

    def start(
        self, arguments: Sequence[str], log: Path, *, cwd: Path, tuning: Mapping[str, float] | None = None
    ) -> Forked:
        """`muster` with these arguments; what it prints goes to `log`."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        said = json.dumps([str(cwd), list(arguments), dict(os.environ), dict(tuning or {})]).encode()
        with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), out.fileno(), out.fileno()]
            socket.send_fds(connection, [len(said).to_bytes(8, "big")], streams)
        connection.sendall(said)
        return Forked(arguments, connection)


def serve(name: str) -> None:
    """Fork a `muster` for each connection, with the streams, folder, arguments, environment and tuning that it sends.
    It says its pid, 8 bytes, and at its end its exit code, one byte."""
    from admission import cli

    os.environ |= cli.UNUSED  # as the program does
    from admission.controller import change, migrate, serve, tell, whatif
    from admission.kube import credentials
    from admission.web import health, metrics

    del change, migrate, serve, tell, whatif, credentials, health, metrics  # loaded is all they must be
    gc.set_threshold(*cli.COLLECTED_AFTER)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen(16)
        # A child has one thread, and the locks that others held as it was forked stay held.
        assert len(os.listdir("/proc/self/task")) == 1, "a library has begun threads"  # noqa: PTH208
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            size, streams, *_ = socket.recv_fds(connection, 8, 3)
            said = b""
            while len(said) < int.from_bytes(size, "big"):
                said += connection.recv(1 << 16)
            parent = os.getpid()
            if os.fork() == 0:
                die_with(parent)
                server.close()
                _one(cli.cli, connection, streams, *json.loads(said))
            connection.close()
            for stream in streams:
                os.close(stream)


def _one(
    command: Any,
    connection: socket.socket,
    streams: list[int],
    cwd: str,
    said: list[str],
    env: dict[str, str],
    tuning: dict[str, float] | None = None,
) -> None:
    """In the child: be that command, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background has it ignored
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    connection.sendall(os.getpid().to_bytes(8, "big"))
    code = 1
    try:
        if tuning:
            _tune(tuning)
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


def _tune(tuning: dict[str, float]) -> None:
    """The controller that starts in this process has these instead of its own."""
    from admission.api.config import Configuration
    from admission.controller import serve, setup

    def tuned(config: Any) -> Any:
        return dataclasses.replace(setup.tuning_of(config), **tuning)  # type: ignore[arg-type]

    tuned(Configuration())  # a name that it does not have ends it here
    vars(serve)["tuning_of"] = tuned


if __name__ == "__main__":
    serve(sys.argv[1])
