"""What is forked has the streams, folder, signals and exit codes of the program, and does not outlive its parent."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from admission.commands.local import version_number
from e2e.forked import Forked, Loaded

KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u, namespace: n}}],
 clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {token: secret}}]}
"""
CONFIG = """
{apiVersion: config.muster.dev/v1beta1, kind: Configuration,
 health: {bindAddress: "0"}, metrics: {bindAddress: "0"}, web: {bindAddress: "0"}}
"""


def test_it_runs_and_ends_as_the_program_does(tmp_path: Path) -> None:
    (tmp_path / "nobody").write_text(KUBECONFIG)
    (tmp_path / "right").write_text(CONFIG)
    (tmp_path / "wrong").write_text("kind: Configuration\nnoSuchKey: 1\n")

    with Loaded() as loaded:

        def waits(name: str) -> tuple[Forked, Path]:
            """A controller whose API server does not answer."""
            arguments = ["controller", "--config", "right", "--kubeconfig", "nobody", "--identity", name]
            return loaded.start(arguments, tmp_path / name, cwd=tmp_path), tmp_path / name

        going = (told, _), (left, _) = waits("told"), waits("left")
        said = loaded.start(["version"], tmp_path / "said", cwd=tmp_path)
        assert said.wait(300) == 0
        assert (tmp_path / "said").read_text() == f"{version_number()}\n"
        refused = loaded.start(["controller", "--config", "wrong"], tmp_path / "refused", cwd=tmp_path)
        assert refused.wait(300) == 2
        assert "noSuchKey" in (tmp_path / "refused").read_text()
        mistuned = loaded.start(["version"], tmp_path / "mistuned", cwd=tmp_path, tuning={"no_such_figure": 1.0})
        assert mistuned.wait(300) == 1
        assert "no_such_figure" in (tmp_path / "mistuned").read_text()
        for process, log in going:
            while not log.read_text():  # that it does not answer
                assert process.poll() is None
                time.sleep(0.02)
        with pytest.raises(subprocess.TimeoutExpired):
            told.wait(0)
        told.terminate()
        assert told.wait(300) == told.returncode == 0
        told.kill()  # it is nobody's pid any more
    assert left.wait(300) == -9, "it ends with what it was forked from"
