"""The manifests and values that the documentation shows: judged by the schema, the linter and the chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.api import lint
from admission.api.kinds import BY_NAME, validate_object
from admission.names import Names
from tests.chart.helm import needs_helm, template
from tests.chart.test_chart import bare, of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "charts" / "muster" / "README.md"])
BLOCKS = [
    pytest.param(block, id=f"{page.stem} {number}")
    for page in PAGES
    if page.parent.name == "tasks"
    for number, block in enumerate(re.findall(r"(?ms)^```yaml\n(.*?)^```", page.read_text("utf-8")))
]


def documents(block: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(block) if one]


@pytest.mark.parametrize("block", [one for one in BLOCKS if "apiVersion:" in one.values[0]])
def test_a_manifest_is_right(block: str) -> None:
    for one in documents(block):
        assert one["kind"] in BY_NAME
        assert validate_object(one, Names(), strict=True) == []
    read, found = lint.read(block, "page")
    assert found == []
    assert [one for one in lint.lint(read) if one.severity is lint.Severity.ERROR] == []


@needs_helm
@pytest.mark.parametrize("block", [one for one in BLOCKS if "apiVersion:" not in one.values[0]])
def test_values_render(block: str) -> None:
    (values,) = documents(block)
    assert template({"hold": "policy", **values})


@needs_helm
def test_the_two_forms_of_quota_are_one() -> None:
    short, long = (one.values[0] for one in BLOCKS if str(one.id).startswith("quota "))
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target
