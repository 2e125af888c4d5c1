"""Everything that README and docs show is tried somewhere, and what a cluster is not needed for is judged here."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from admission.api import lint
from admission.api.config import load_config
from admission.api.kinds import BY_NAME, validate_object
from admission.cli import cli
from admission.engine.model import Node
from admission.jobs import devices
from admission.names import Names
from charts.monitoring import ALERTS
from tests.chart.helm import needs_helm, template
from tests.chart.test_chart import bare, of
from tests.covered import said_by
from tests.docs.blocks import (
    COMMANDS,
    ELSEWHERE,
    PAGES,
    ROOT,
    WATCH,
    Block,
    Elsewhere,
    block,
    blocks,
    elsewhere,
    examples,
    played,
    spans,
    tried_by,
)
from tests.docs.test_fairness_doc import PAGES as SCENARIOS

BLOCKS = [one for page in PAGES for one in blocks(page)]
YAML = [pytest.param(one, id=one.where) for one in BLOCKS if one.language == "yaml"]
BY_HAND = [one for one in ELSEWHERE if one.because]
KINDS = r"(?m)^kind:"


def documents(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_no_page_has_what_a_merge_leaves_behind(page: str) -> None:
    assert not re.findall(r"(?m)^(?:<{7}|={7}|>{7})(?: .*)?$", (ROOT / page).read_text("utf-8"))


# ---------------------------------------------------------------- all that is shown is tried


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_tried_or_has_a_reason(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert re.findall(r"(?m)^(?:<{7}|={7}|>{7}).*", text) == [], "a merge that was left half done"
    fences = len(re.findall(r"(?m)^ *```", text))
    assert fences == 2 * len(blocks(page)), "a fence that is not closed, or with more than a language"
    for one in blocks(page):
        assert tried_by(one), f"{one.where}: nothing tries it: see tests/docs/blocks.py"
        if one.language == "scenario":
            assert Path(page).name in SCENARIOS, one.where
        if one.language == "promql" and page != WATCH:
            assert one.text.strip() in {alert.expr.replace("@LONG_WAIT@", "86400") for alert in ALERTS}, one.where
    outside = re.sub(r"(?ms)^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"))
    assert not re.findall(r"(?m)^ {4,}(?:\$ )?(?:muster|kubectl|helm|make|kind|docker) .*$", outside), "not in a fence"


@pytest.mark.parametrize("known", ELSEWHERE, ids=lambda one: f"{one.page}: {one.begins[:30]}")
def test_what_is_played_elsewhere_is(known: Elsewhere) -> None:
    """The test is there, and names the page and how the block begins."""
    assert [one for one in blocks(known.page) if elsewhere(one) is known], "no such block"
    assert bool(known.by) != bool(known.because)
    if known.by:
        said = said_by(known.by)
        assert known.page in said, known.by
        for text in (one.text for one in blocks(known.page) if elsewhere(one) is known):
            assert [one for one in said if len(one) > 3 and text.startswith(one)], (known.by, text)


def test_pages_that_are_played_are_known_to_who_plays_them() -> None:
    source = (ROOT / "e2e" / "test_docs.py").read_text("utf-8")
    for page in PAGES:
        assert not played(page) or f'"{page}": ' in source, page


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("one", [one for one in BLOCKS if one.language == "sh"], ids=lambda one: one.where)
def test_a_shell_can_read_it(one: Block) -> None:
    ran = subprocess.run(["bash", "-n", "-c", one.text], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def said(text: str) -> list[tuple[str, str]]:
    """(program, command) of each command of a program of ours in a piece of shell."""
    out = []
    quiet = re.sub(r"'[^']*'", "x", text.replace("\\\n", " ").replace('"$@"', ""))  # nothing in them ends a command
    for line in quiet.splitlines():
        bare_line = re.sub(r"(^|\s)#.*", "", line.strip().removeprefix("$ "))
        for part in re.split(r"\|\||&&|[|;]|\$\(|\bdo\b|\buntil\b", bare_line):
            command = part.strip().strip("\"'()").removeprefix("exec ").removeprefix("kubectl ")
            found = re.match(r"(?:\S*/)?(muster|make) +(.*)", command)
            if found is not None:
                out.append((found[1], re.split(r" [<>]|\.\.\.", found[2] + " ")[0].strip()))
    return out


SHOWN = [
    *((one.where, command) for one in BLOCKS if one.language in ("sh", "console") for command in said(one.text)),
    *((f"{COMMANDS}: {about}", command) for about, line in examples() for command in said(line)),
    *((f"{page}:{line}", command) for page in PAGES for line, text in spans(page) for command in said(text)),
]


@pytest.mark.parametrize(("program", "command"), sorted({command for _, command in SHOWN}))
def test_a_command_and_its_options_are_there(program: str, command: str) -> None:
    where = [place for place, shown in SHOWN if shown == (program, command)]
    words = shlex.split(command)
    if program == "make":
        targets = (ROOT / "Makefile").read_text("utf-8")
        for word in words:
            name, is_variable, _ = word.partition("=")
            there = (
                f"{name}=" in targets or f"$({name}" in targets if is_variable else re.search(rf"(?m)^{name}:", targets)
            )
            assert there, (where, word)
        return
    if not words or words[0].isupper():  # COMMAND
        return
    with click.Context(cli, info_name="muster", help_option_names=["-h", "--help"]) as top:
        name, found, rest = cli.resolve_command(top, words)
        assert found is not None, where
        while isinstance(found, click.Group) and rest:
            name, found, rest = found.resolve_command(top, rest)
            assert found is not None, where
        # A placeholder stands where one of some words must.
        rest = ["bash" if word == "SHELL" else word for word in rest]
        try:
            found.make_context(name, list(rest), parent=top)
        except click.MissingParameter:
            assert not rest, (where, rest)  # the name of the command alone
        except click.UsageError as error:
            raise AssertionError(f"{where}: {error.format_message()}") from None


@pytest.mark.parametrize("known", BY_HAND, ids=lambda one: f"{one.page}: {one.begins[:30]}")
def test_what_nobody_can_play_here_names_what_there_is(known: Elsewhere) -> None:
    text = block(known.page, known.begins).text
    gate = (ROOT / ".ci" / "run").read_text("utf-8")
    for program, command in said(text):
        if program == "make" and ".ci/run" in known.because:
            name = command.split()[0]
            assert f"make {name}" in gate or f"tests.bench.{ {'bench': 'engine'}.get(name, name) }" in gate, name
    for build in re.findall(r"docker build .*", text):
        assert shlex.split(build)[-1] == "."
        assert (ROOT / "Dockerfile").is_file()


@needs_helm
def test_what_is_forwarded_and_what_kind_gets_is_in_the_chart() -> None:
    objects = template({"hold": "policy"})
    text = block("docs/page.md", "kubectl --namespace muster-system port-forward").text
    (service, port) = re.findall(r"service/(\S+) \d+:(\d+)", text)[0]
    assert int(port) in [one["port"] for one in of(objects, "Service", service)["spec"]["ports"]]
    text = block("docs/install.md", "kind create cluster").text
    values = dict(one.split("=") for one in re.findall(r"--set (\S+)", text))
    assert set(values) == {"image.repository"}
    image = of(template({"image": {"repository": values["image.repository"]}}), "Deployment")
    (container,) = image["spec"]["template"]["spec"]["containers"]
    built = re.findall(r"--tag (\S+)", text)
    assert built == re.findall(r"load docker-image (\S+)", text) == [container["image"]]
    (rolled,) = re.findall(r"rollout status deployment/(\S+)", text)
    assert of(objects, "Deployment", rolled)


def test_the_short_names_of_readme_are_those_of_the_kinds() -> None:
    said = dict(re.findall(r"`(\w+)` *\((\w+)\)", (ROOT / "README.md").read_text("utf-8").replace("\n", " ")))
    kinds = {name: kind for kind in said.values() if kind in BY_NAME for name in BY_NAME[kind].short_names}
    assert said.items() <= kinds.items()
    assert len(said) == 4


# ---------------------------------------------------------------- manifests and values


@pytest.mark.parametrize("one", [one for one in YAML if re.search(KINDS, one.values[0].text)])
def test_a_manifest_is_right(one: Block) -> None:
    for document in documents(one.text):
        if document["kind"] == "Configuration":
            assert load_config(one.text)
        elif document["kind"] in BY_NAME:
            assert validate_object(document, Names(), strict=True) == []
        elif document["kind"] == "DeviceClass":
            gpu = devices.Device("gpu-0", "n0", (("attributes", "gpu.nvidia.com", "type", "gpu"),))
            listed = devices.Slice("n0", ("gpu.nvidia.com", "n0"), devices=(gpu,))
            there = devices.Devices([devices.device_class(document, Names())[0], listed])
            assert there.laid_on(Node("n0")).allocatable == (("nvidia.com/gpu", 1),)
        elif document["kind"] == "ResourceClaimTemplate":
            assert devices.claim_template(document, Names())[0].asks == devices.Asks((("gpu.nvidia.com", 2),))
        else:
            assert (document["kind"], Names().queue_label in document["metadata"]["labels"]) == ("Job", True)
    read, found = lint.read(one.text, one.page)
    assert found == []
    assert [finding for finding in lint.lint(read) if finding.severity is lint.Severity.ERROR] == []


@needs_helm
@pytest.mark.parametrize("one", [one for one in YAML if not re.search(KINDS, one.values[0].text)])
def test_values_render(one: Block) -> None:
    (values,) = documents(one.text)
    if set(values) == {"metadata"}:  # what one adds to a job
        assert values["metadata"]["labels"][Names().queue_label]
        return
    assert template({"hold": "policy", **values})


@needs_helm
def test_the_two_forms_of_quota_are_one() -> None:
    short, long = (one.text for one in blocks("docs/tasks/quota.md") if one.language == "yaml")
    made = bare(template(documents(short)[0]))
    for one in documents(long):
        meta = one["metadata"]
        found = made[one["kind"], meta["name"]] if one["kind"] != "LocalQueue" else _local(short, meta["namespace"])
        if one["kind"] == "ClusterQueue":  # by label, or by a list of one
            assert found["spec"].pop("namespaceSelector")
            assert one["spec"].pop("namespaceSelector")
        assert _texts(found["spec"]) == _texts(one["spec"])
    assert set(made) == {(one["kind"], one["metadata"]["name"]) for one in documents(long)}


def _local(short: str, namespace: str) -> dict[str, Any]:
    objects = template(documents(short)[0])
    return of([one for one in objects if one["metadata"].get("namespace") == namespace], "LocalQueue", "main")


def _texts(value: Any) -> Any:
    """Quantities may be numbers."""
    if isinstance(value, dict):
        return {key: _texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text("utf-8")):
        page = path.parent / target if target else path
        if not target.startswith("http") and page.suffix == ".md":
            assert anchor in anchors(page), (target, anchor)


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text("utf-8"))
    bare = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in re.findall(r"(?m)^#+ (.*)$", text)]
    return {heading.replace(" ", "-") for heading in bare}
