"""How the program starts: what it imports, how it completes, how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from admission.cli import cli, complete_for_kubectl

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
