"""How the program starts: what it imports, how it completes, how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
