"""The Dockerfile, read: there is no engine here to build it with. THOROUGH=1 runs its steps in a folder instead."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from admission.api.config import Configuration

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> list[list[tuple[str, str]]]:
    """Stages, each a list of (INSTRUCTION, rest), begun by its FROM; what comes before the first is stage 0."""
    stages: list[list[tuple[str, str]]] = [[]]
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest.strip()))
    return stages


ARGUMENTS, BUILD, FINAL = instructions()


def copied() -> list[str]:
    """What is copied out of this folder."""
    return [
        source
        for word, rest in BUILD + FINAL
        if word == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    ]


def test_both_stages_are_of_one_named_version() -> None:
    ((_, python),) = ARGUMENTS
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-\w+", python)
    assert [stage[0] for stage in (BUILD, FINAL)] == [
        ("FROM", "python:${PYTHON} AS build"),
        ("FROM", "python:${PYTHON}"),
    ]
    minor = int(python.removeprefix("PYTHON=3.").partition("-")[0])
    wheels = re.findall(r"cp3(\d+)-\w*manylinux\w*_(x86_64|aarch64)", (ROOT / "uv.lock").read_text())
    assert {(str(minor), arch) for arch in ("x86_64", "aarch64")} <= set(wheels), "wheels, so that nothing is compiled"


def test_the_image_is_small_and_nobodys_root() -> None:
    words = [word for word, _ in FINAL]
    assert not {"RUN", "ADD", "VOLUME"} & set(words), "the last stage only takes what was built"
    assert dict(FINAL)["USER"] == "65532:65532"
    assert dict(FINAL)["ENTRYPOINT"] == '["muster"]'
    assert words.index("USER") > words.index("COPY")
    spec = list(yaml.safe_load_all((ROOT / "config" / "controller.yaml").read_text()))[1]["spec"]["template"]["spec"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"]), "the image says it"
    ports = {str(port["containerPort"]) for port in spec["containers"][0]["ports"]}
    assert set(dict(FINAL)["EXPOSE"].split()) == ports | {str(Configuration().webhook.port)}
    assert not re.search(r"(?i)(password|token|secret|api_key)\s*=", TEXT)


def test_what_is_installed_is_what_is_locked() -> None:
    ran = " ".join(rest for word, rest in BUILD if word == "RUN")
    assert re.search(r"uv==\d+\.\d+\.\d+", ran)
    for command in re.findall(r"uv (?:sync|export)[^&]*", ran):
        assert "--frozen" in command
        assert "--no-default-groups" in command
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    if not Path(uv).exists():
        pytest.skip("uv is not here")
    arguments = ["export", "--frozen", "--no-default-groups", "--no-emit-project", "--format", "requirements-txt"]
    listed = subprocess.run([uv, *arguments, "--offline"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^\s*#.*\n", "", listed)).splitlines()
    assert len(wanted) > 20
    assert all("--hash=sha256:" in line for line in wanted)
    assert not any(line.startswith(("pytest", "hypothesis", "ruff", "mypy")) for line in wanted)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    rules = [r for r in (ROOT / ".dockerignore").read_text().splitlines() if r and not r.startswith("#")]
    assert rules[0] == "*"
    for source in copied():
        assert (ROOT / source).exists()
        last = [rule for rule in rules if fnmatch(source.removeprefix("./"), rule.removeprefix("!").rstrip("/"))][-1]
        assert last.startswith("!"), source
    needed = re.findall(
        r'(?m)^(?:readme = |license-files = \[|packages = \[)"([\w.]+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert {"README.md", "LICENSE", "admission"} <= set(needed)
    assert {*needed, "crds"} <= {source.removeprefix("./") for source in copied()}


@pytest.mark.thorough
@pytest.mark.skipif(not os.environ.get("THOROUGH"), reason="THOROUGH=1: asks a package index for the build backend")
def test_its_steps_make_a_program_that_runs(tmp_path: Path) -> None:
    for source in copied():
        target = tmp_path / "src" / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"), "UV_PYTHON": sys.executable}
    environment.pop("VIRTUAL_ENV", None)
    for step in re.findall(r"uv sync[^&\n]*", " && ".join(rest for word, rest in BUILD if word == "RUN")):
        subprocess.run(
            [uv, *shlex.split(step)[1:]], cwd=tmp_path / "src", env=environment, check=True, capture_output=True
        )
    muster = tmp_path / "env" / "bin" / "muster"
    ran = subprocess.run([muster, "controller", "--help"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "--config" in ran.stdout
    assert list((tmp_path / "env").glob("lib/*/site-packages/admission/crds/*.yaml"))
