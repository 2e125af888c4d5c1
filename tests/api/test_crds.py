"""`crds/` is what the models say, and what a structural schema may hold. A real API server has its say in `e2e`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field

from admission.api import crd
from admission.api.kinds import KINDS, Kind
from admission.api.schema import GROUP, Resource, Rule
from admission.api.structural import NotStructuralError, schema_of
from admission.names import KUEUE_GROUP, MUSTER_GROUP, Names

ROOT = Path(__file__).parents[2]
KUEUE_SHORT_NAMES = {"cq", "lq", "queue", "queues", "rf", "flavor", "flavors", "co", "kwl", "wl", "wpc", "ac", "topo"}
KUEUE_SHORT_NAMES |= {"mkc", "mkconf", "prc"}
Schema = dict[str, Any]


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema inside a schema."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def test_the_files_are_what_the_models_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check"]) == 0
    assert crd.main(["--out", str(tmp_path)]) == 0
    assert crd.main(["--out", str(tmp_path), "--check"]) == 0
    one = min(tmp_path.iterdir())
    one.write_text(one.read_text() + "# touched\n")
    (tmp_path / "muster.dev_gone.yaml").write_text("")
    assert crd.main(["--out", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr().err
    assert one.name in said
    assert "muster.dev_gone.yaml" in said
    assert crd.main(["--out", str(tmp_path)]) == 0
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == crd.files(Names())


@pytest.mark.parametrize("group", [MUSTER_GROUP, KUEUE_GROUP])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_structural(kind: Kind, group: str) -> None:
    text = crd.files(Names(group))[f"{group}_{kind.plural}.yaml"]
    assert len(text) < 200_000
    assert GROUP not in text
    document = yaml.safe_load(text)
    names, version = document["spec"]["names"], document["spec"]["versions"][0]
    assert document["metadata"]["name"] == f"{names['plural']}.{group}"
    root = version["schema"]["openAPIV3Schema"]
    assert root["properties"]["metadata"] == {"type": "object"}
    for path, schema in nodes(root):
        flexible = schema.get("x-kubernetes-int-or-string")
        assert flexible or schema.get("type") in ("object", "array", "string", "integer", "boolean"), path
        assert not schema.keys() & {"$ref", "$defs", "oneOf", "allOf", "not", "const", "title", "uniqueItems"}, path
        assert ("anyOf" in schema) == bool(flexible), path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert schema.get("default", 0) is not None, path
        if schema.get("type") == "array":
            assert "maxItems" in schema or path.endswith(("levels[]",)), f"{path}: a rule over it would cost too much"
            assert schema["x-kubernetes-list-type"] in ("map", "set", "atomic"), path
            if schema["x-kubernetes-list-type"] == "map":
                item = schema["items"]
                for key in schema["x-kubernetes-list-map-keys"]:
                    assert key in item.get("required", ()) or "default" in item["properties"][key], path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        if schema.get("type") == "string" and path not in (".apiVersion", ".kind"):
            assert schema.keys() & {"maxLength", "enum", "format"} or ".podSetUpdates" in path, f"{path}: no bound"
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            assert len(rule["message"]) <= 2048
            assert "\n" not in rule["message"] + rule["rule"]
            assert rule["rule"].count("(") == rule["rule"].count(")")


def test_nothing_of_kueue_is_taken() -> None:
    for kind in KINDS:
        assert not set(kind.short_names) & KUEUE_SHORT_NAMES
        ours = crd.crd(kind, Names())["spec"]
        assert ours["group"] == "muster.dev"
        assert ours["names"]["categories"] == ["muster"]
        assert "kueue.x-k8s.io" not in json.dumps(ours)
        theirs = crd.crd(kind, Names(KUEUE_GROUP))["spec"]
        assert theirs["names"]["shortNames"] == list(kind.kueue_short_names)
        assert theirs["versions"][0]["name"] == "v1beta2"
        assert "muster.dev" not in json.dumps(theirs)


def test_printer_columns_point_at_fields() -> None:
    for kind in KINDS:
        root = schema_of(kind.model, Names())
        for column in kind.columns:
            at = root
            for step in re.findall(r"[A-Za-z]+", column.path.split("[")[0]):
                if at == {"type": "object"}:  # metadata
                    break
                at = at["properties"][step]


def test_every_rule_has_one_twin() -> None:
    """A rule that only the API server knows would be a lie in the sandbox."""
    from admission.api.workload import PriorityClassRef

    def rules(model: Any, seen: set[Any]) -> Iterator[tuple[Any, Rule]]:
        if model in seen or not hasattr(model, "rules"):
            return
        seen.add(model)
        for rule in model.rules:
            yield model, rule
        for info in model.model_fields.values():
            yield from inside(info.annotation, seen)

    def inside(annotation: Any, seen: set[Any]) -> Iterator[tuple[Any, Rule]]:
        if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
            yield from rules(annotation, seen)
        for argument in getattr(annotation, "__args__", ()):
            yield from inside(argument, seen)

    found = [pair for kind in KINDS for pair in rules(kind.model, set())]
    assert len(found) > 40
    for model, rule in found:
        if model is not PriorityClassRef:  # its twin needs to know the group
            assert (rule.holds is None) != (rule.keeps is None), rule
        assert ("oldSelf" in rule.cel) == (rule.keeps is not None), rule


class Union(Resource):
    what: int | list[int] = 0


class Many(Resource):
    what: set[int] = Field(default_factory=set)


class Pair(Resource):
    what: tuple[int, str] = (0, "")


class Fine(Resource):
    what: Literal["one"] = "one"


def test_what_no_structural_schema_can_say_is_refused_here() -> None:
    for model in (Union, Many, Pair):
        with pytest.raises(NotStructuralError, match="what"):
            schema_of(model, Names())
    assert schema_of(Fine, Names())["properties"]["what"] == {"type": "string", "enum": ["one"], "default": "one"}
