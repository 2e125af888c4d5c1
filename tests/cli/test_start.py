"""How the program starts: what it imports, how it completes, how it ends."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from admission.cli import UNUSED, cli, complete_for_kubectl

HEAVY = ("pydantic", "aiohttp", "numpy", "kubernetes_asyncio", "rich", "yaml", "structlog", "msgspec")


@pytest.mark.parametrize(
    "arguments", [["version"], ["--help"], ["why", "--help"], ["create", "queue", "--help"], ["completion", "zsh"]]
)
def test_what_needs_no_cluster_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from admission.cli import cli\n"
        f"try: cli({arguments!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


_KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u, namespace: n}}],
 clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {token: secret}}]}
"""


def test_the_controller_starts_without_what_it_does_not_use(tmp_path: Path) -> None:
    """A kubeconfig is read as ever, without the generated classes of the library that reads it; and who imports that
    library afterwards has all of it."""
    (tmp_path / "config").write_text(_KUBECONFIG)
    code = (
        "import asyncio, sys; from admission.commands.options import configure_logs; configure_logs('json', 'info')\n"
        "import admission.controller.serve, admission.web.metrics; from admission.kube.client import Client\n"
        f"client = asyncio.run(Client.from_kubeconfig({str(tmp_path / 'config')!r}))\n"
        "print(client.url, client.namespace, asyncio.run(client._who.header()))\n"
        "unused = ('rich', 'cryptography', 'admission.api.kinds', 'kubernetes_asyncio', 'kubernetes_asyncio.client')\n"
        "print('loaded:', [name for name in unused if name in sys.modules])\n"
        "import kubernetes_asyncio.client, kubernetes_asyncio.config, rich.console\n"
        "print(kubernetes_asyncio.client.V1Job.__name__, kubernetes_asyncio.config.load_kube_config.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "http://127.0.0.1:1 n Bearer secret",
        "loaded: []",
        "V1Job load_kube_config",
    ]


def test_libraries_begin_no_threads() -> None:
    """There would be one for each core of the node, and a container may have but a few."""
    code = (
        "import os, sys; from admission import cli; sys.argv = ['muster', 'version']\n"
        "try: cli.main()\n"
        "except SystemExit: import admission.controller.serve, admission.web.metrics\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    env = {name: value for name, value in os.environ.items() if name not in UNUSED}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize("where", ["full", "unread", "hangs"])
def test_what_cannot_be_logged_ends_nobody_and_keeps_nobody(where: str) -> None:
    code = (
        "import structlog; from admission.commands.options import configure_logs; configure_logs('json', 'info')\n"
        "for n in range(300): structlog.get_logger().info('a line', number=n, much='x' * 9000)\n"
        "print('goes on', flush=True); input(); structlog.get_logger().info('later')"
    )
    reader, stream = os.pipe() if where != "full" else (os.open("/dev/null", os.O_RDONLY), os.open("/dev/full", 1))
    if where == "unread":
        os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
    )
    os.close(stream)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert select.select([process.stdout], [], [], 300)[0], "it waits for who reads its log"
        assert process.stdout.readline() == "goes on\n"
        process.stdin.write("\n")
        process.stdin.close()
        told = [] if where != "hangs" else [json.loads(line) for line in os.fdopen(reader)]
        assert process.wait(300) == 0
    finally:
        process.kill()
    if where != "hangs":
        return
    numbers = [line["number"] for line in told if "number" in line]
    left_out, *later = [line for line in told if "number" not in line]
    assert left_out["event"] == "lines of the log were left out: nobody read them"
    assert numbers == list(range(len(numbers))), "whole, and in order"
    assert 100 < len(numbers) == 301 - left_out["lines"] - len(later)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("asked", ["explain-reasons", "explain-reasons --markdown", "version"])
def test_an_answer_that_cannot_be_written_is_none(asked: str, unbuffered: str) -> None:
    """On a full disk. For scripts 1 is an answer."""
    program = f"exec {sys.executable} -c 'from admission.cli import main; main()' {asked} >/dev/full"
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["/bin/sh", "-c", program], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (2, "muster: the answer cannot be written: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("asked", "code"), [("queues --kubeconfig none", 4), ("lint good.yaml", 0)])
def test_who_has_no_streams_is_told_by_the_code(tmp_path: Path, asked: str, code: int, closed: str) -> None:
    """As of a program that starts it with these closed; what it opens takes none of their numbers."""
    (tmp_path / "good.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    program = f"exec {sys.executable} -c 'from admission.cli import main; main()' {asked} {closed}"
    done = subprocess.run(
        ["sh", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr


def test_text_that_a_terminal_does_not_know_ends_nothing(tmp_path: Path) -> None:
    """Of those whose locale is no UTF-8."""
    text = "{apiVersion: muster.dev/v1beta1, kind: ClusterQueue, metadata: {name: a}, spec: {größe: 1}}"
    (tmp_path / "queue.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from admission.cli import main; main()", "lint", str(tmp_path / "queue.yaml")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "gr\\xf6\\xdfe" in done.stdout


_RUNS_OUT = {
    "a task of it": "raise ExceptionGroup('tasks', [ExceptionGroup('of them', [MemoryError()])])",
    "what nobody waits for": "asyncio.get_running_loop().call_soon(bytearray, 1 << 60); await asyncio.sleep(3600)",
}


@pytest.mark.parametrize("who", _RUNS_OUT)
def test_a_controller_that_runs_out_of_memory_says_so_and_ends(who: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(_KUBECONFIG)
    quiet = {"apiVersion": "config.muster.dev/v1beta1", "kind": "Configuration"}
    quiet |= {name: {"bindAddress": "0"} for name in ("health", "metrics", "web")}
    (tmp_path / "quiet").write_text(json.dumps(quiet))
    files = ["--kubeconfig", str(tmp_path / "config"), "--config", str(tmp_path / "quiet")]
    code = (
        "import asyncio; from admission.cli import cli; from admission.controller import serve\n"
        f"async def fails(*_, **__): {_RUNS_OUT[who]}\n"
        f"serve.serve = fails; cli({['controller', *files]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["event"], line["level"]) == ("ends, to begin anew", "error")
    assert "resources.limits.memory" in line["why"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [(["wh"], ["why"]), (["queues", "-o", "j"], ["json"]), (["create", ""], ["queue"])],
)
def test_kubectl_asks_for_completions(
    typed: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As kubectl reads it: a word a line, with a tab before what it means, and last what the shell is to do."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-muster", *typed])
    complete_for_kubectl()
    *words, directive = capsys.readouterr().out.splitlines()
    assert [word.partition("\t")[0] for word in words] == offered
    assert directive == ":4"


def test_a_command_that_is_not_there_is_bad_use() -> None:
    assert CliRunner().invoke(cli, ["whi"]).exit_code == 2
    assert "No such command" in CliRunner().invoke(cli, ["whi"]).output
