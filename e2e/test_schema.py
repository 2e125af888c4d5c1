"""The CRDs on a real API server: it takes them, and it accepts, refuses, defaults and prunes as `validate_object` says.

The rows are those of `tests/api/rows.py`. Where the sandbox or the webhook answer for the API server, they ask
`validate_object`; this is what makes that honest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.api import crd
from admission.api.kinds import BY_NAME, KINDS, default_object, prune_object, validate_object
from admission.names import KUEUE_GROUP, Names
from e2e.control_plane import ControlPlane
from tests.api.rows import CQ, HELD, ROWS, Object, Row, edited

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/muster.dev/v1beta1"


@pytest.fixture(scope="module")
def cp() -> Iterator[ControlPlane]:
    with ControlPlane(apiserver_only=True, audit=False) as cp:
        documents = [yaml.safe_load(path.read_text()) for path in sorted(Path("crds").glob("muster.dev_*.yaml"))]
        for document in documents:
            cp.request("POST", CRDS, document)
        for document in documents:
            name = document["metadata"]["name"]
            cp.wait(lambda name=name: established(cp, name), 30, f"{name} to be served")  # type: ignore[misc]
        yield cp


def rules(schema: Any) -> Iterator[str]:
    """What the rules of a schema say, those inside it too."""
    if isinstance(schema, list):
        for part in schema:
            yield from rules(part)
    elif isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations") or ())
        for part in schema.values():
            yield from rules(part)


RULES = {message for kind in KINDS for message in rules(crd.crd(kind, Names()))}


def established(cp: ControlPlane, name: str) -> bool:
    definition = cp.request("GET", f"{CRDS}/{name}")
    conditions = {c["type"]: c for c in definition.get("status", {}).get("conditions", ())}
    broken = conditions.get("NonStructuralSchema", {}).get("status") == "True"
    assert not broken, conditions["NonStructuralSchema"]["message"]
    plural, _, group = name.partition(".")
    version = definition["spec"]["versions"][0]["name"]
    return (
        conditions.get("Established", {}).get("status") == "True"
        and cp.raw("GET", f"/apis/{group}/{version}/{plural}")[0] == 200
    )


def collection(obj: Object) -> str:
    kind = BY_NAME[obj["kind"]]
    return f"{GROUP}/namespaces/default/{kind.plural}" if kind.namespaced else f"{GROUP}/{kind.plural}"


def send(cp: ControlPlane, method: str, path: str, obj: Object | None = None) -> tuple[int, Any]:
    code, body = cp.raw(method, path, obj, params={"fieldValidation": "Ignore"})
    return code, json.loads(body)


def write(cp: ControlPlane, row: Row) -> tuple[int, Any]:
    """The answer to the last write of a row; nothing is left behind."""
    path = collection(row.new)
    name = (row.old or row.new)["metadata"].get("name", "")
    try:
        if row.old is None:
            return send(cp, "POST", path, row.new)
        code, stored = send(cp, "POST", path, row.old)
        assert code == 201, stored
        if "status" in row.old:
            code, stored = send(cp, "PUT", f"{path}/{name}/status", with_version(row.old, stored))
            assert code == 200, stored
        target = f"{path}/{name}" + ("/status" if row.status else "")
        return send(cp, "PUT", target, with_version(row.new, stored))
    finally:
        cp.raw("DELETE", f"{path}/{name}")


def with_version(obj: Object, stored: Object) -> Object:
    return edited(obj, {"metadata.resourceVersion": stored["metadata"]["resourceVersion"]})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(cp: ControlPlane, row: Row) -> None:
    code, answer = write(cp, row)
    if row.says is None:
        assert code in (200, 201), answer
        part = "status" if row.status else "spec"
        wanted = default_object(prune_object(row.new))
        assert answer.get(part) == wanted.get(part), "the API server fills in or drops something else"
    else:
        assert code == 422, answer
        assert (row.server or row.says) in answer["message"], answer["message"]
        if row.old is None:
            known = str(validate_object(row.new))
            besides = {rule for rule in RULES if rule in answer["message"] and rule not in known}
            also = (
                "in the same order",
                "lendingLimit is more",
            )  # of a list without items, of an absurd limit: it is so
            assert not {rule for rule in besides if not any(part in rule for part in also)}, "this rule is kept"


def test_pruned_alike(cp: ControlPlane) -> None:
    wrong = edited(HELD, {"spec.x": 1, "spec.podSets[0].y": {"z": 1}, "spec.podSets[0].template.metadata": {"a": 1}})
    code, answer = write(cp, Row("", wrong))
    assert code == 201
    assert answer["spec"] == default_object(prune_object(wrong))["spec"]
    assert validate_object(wrong) == []


def test_the_dearest_queue_stays_within_the_budget(cp: ControlPlane) -> None:
    """As much as the schema allows, with long names; rules are also metered while they run."""
    groups = [
        {
            "coveredResources": [f"example.com/{'r' * 200}-{g}-{r}" for r in range(16)],
            "flavors": [
                {
                    "name": f"{'f' * 200}-{g}-{f}",
                    "resources": [
                        {
                            "name": f"example.com/{'r' * 200}-{g}-{r}",
                            "nominalQuota": "1000000000000.500",
                            "borrowingLimit": "1000000000000500m",
                            "lendingLimit": "1000000000000.500",
                        }
                        for r in range(16)
                    ],
                }
                for f in range(16)
            ],
        }
        for g in range(16)
    ]
    code, answer = write(cp, Row("", edited(CQ, {"spec.resourceGroups": groups})))
    assert code == 201, answer["message"]


def test_the_same_kinds_in_the_group_of_kueue(cp: ControlPlane) -> None:
    for text in crd.files(Names(KUEUE_GROUP)).values():
        code, answer = send(cp, "POST", CRDS, yaml.safe_load(text))
        assert code == 201, answer


def test_names_to_type(cp: ControlPlane) -> None:
    for kind in KINDS:
        for short in kind.short_names:
            assert cp.resource(short).kind == kind.name
