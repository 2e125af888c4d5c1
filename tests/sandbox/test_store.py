"""The store: its ring, its pages, and that a watcher who replays events ends with what a list shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.sandbox.kinds import JOB, NODE, new_store
from admission.sandbox.patches import apply_merge, compare, from_fields, json_patch, merge_patch, owned_paths, to_fields
from admission.sandbox.shapes import Report, Shape, canonical_quantity
from admission.sandbox.store import APPLY, JSON, MERGE, Kind, Refused, Request, Store

NOW = 1_700_000_000_000


def store(**settings_: Any) -> tuple[Store, Kind]:
    made = new_store(now=NOW, **settings_)
    kind = made.kind("", "configmaps")
    assert kind is not None
    return made, kind


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}


def test_the_ring_forgets_and_says_so() -> None:
    made, kind = store(history=8)
    made.create(kind, config_map("a", n="0"), NOW)
    begun = made.revision
    for number in range(1, 30):
        made.do(Request("patch", kind, "default", "a", {"data": {"n": str(number)}}, content_type=MERGE), NOW)
    with pytest.raises(Refused) as refused:
        made.since(kind, begun)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert [e.revision for e in made.since(kind, made.revision - 3)] == [
        made.revision - 2,
        made.revision - 1,
        made.revision,
    ]
    made.forget(kind)
    assert made.since(kind, made.revision) == []
    with pytest.raises(Refused):
        made.since(kind, made.revision - 1)


def test_a_page_from_a_forgotten_moment_is_expired() -> None:
    made, kind = store(history=4)
    for name in "abc":
        made.create(kind, config_map(name), NOW)
    _, _, token, left = made.page(kind, limit=1)
    assert left == 2
    for number in range(20):
        made.do(Request("patch", kind, "default", "a", {"data": {"n": str(number)}}, content_type=MERGE), NOW)
    with pytest.raises(Refused) as refused:
        made.page(kind, limit=1, token=token)
    assert refused.value.code == 410


OPS = st.lists(
    st.tuples(st.sampled_from(["create", "patch", "delete", "hold", "free"]), st.sampled_from("abcd")), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(OPS, st.integers(0, 40), st.integers(1, 3))
def test_replay_ends_where_a_list_is(ops: list[tuple[str, str]], cut: int, page: int) -> None:
    """From the list at any moment, in pages read later, and the events since, comes the state now."""
    made, kind = store()
    seen: dict[str, str] = {}
    since, token = made.revision, ""
    for number, (op, name) in enumerate(ops):
        if number == cut:
            items, since, token, _ = made.page(kind, "default", limit=page)
            seen = {i.obj["metadata"]["name"]: i.obj["metadata"]["resourceVersion"] for i in items}
        request = {
            "create": Request("create", kind, "default", body=config_map(name)),
            "patch": Request("patch", kind, "default", name, {"data": {"n": str(number)}}, content_type=MERGE),
            "delete": Request("delete", kind, "default", name, {}),
            "hold": Request(
                "patch", kind, "default", name, {"metadata": {"finalizers": ["a.b/c"]}}, content_type=MERGE
            ),
            "free": Request("patch", kind, "default", name, {"metadata": {"finalizers": None}}, content_type=MERGE),
        }[op]
        try:
            made.do(request, NOW)
        except Refused as refused:
            assert refused.code in (404, 409, 422)  # noqa: PT017 - any of them, and none is fine as well
    if cut >= len(ops):
        return
    while token:
        items, revision, token, _ = made.page(kind, "default", limit=page, token=token)
        assert revision == since
        seen |= {i.obj["metadata"]["name"]: i.obj["metadata"]["resourceVersion"] for i in items}
    for event in made.since(kind, since):
        if event.type == "DELETED":
            del seen[event.key[1]]
        else:
            assert (event.type == "ADDED") == (event.key[1] not in seen)
            seen[event.key[1]] = event.new.obj["metadata"]["resourceVersion"]
    assert seen == {
        o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in made.objects("", "configmaps", "default")
    }


def test_same_requests_same_store() -> None:
    def run() -> list[Any]:
        made, kind = store(seed="x")
        for name in "ba":
            made.create(kind, config_map(name), NOW)
        made.do(Request("create", kind, "default", body={**config_map(""), "metadata": {"generateName": "g-"}}), NOW)
        return list(made.objects("", "configmaps"))

    assert run() == run()


LEAVES = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y"]), st.booleans())
DOCS = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(LEAVES, lambda d: st.dictionaries(st.sampled_from("abc"), d, max_size=3), max_leaves=6),
    max_size=3,
)


@given(DOCS, DOCS)
def test_applying_makes_it_so_and_owns_it(live: dict[str, Any], applied: dict[str, Any]) -> None:
    merged = apply_merge(live, applied, None)
    assert apply_merge(merged, applied, None) == merged
    changed, removed = compare(live, merged, None)
    assert not removed or changed
    owned = owned_paths(applied, None) - {()}
    assert from_fields(to_fields(owned)) == owned


@given(DOCS, DOCS)
def test_merge_patch_is_idempotent(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("operations", "wanted"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "move", "from": "/a/0", "path": "/b"}], {"a": [2], "b": 1}),
        ([{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1, 2], "b": [1, 2]}),
        ([{"op": "test", "path": "/zzz", "value": None}], {"a": [1, 2]}),
        ([{"op": "replace", "path": "", "value": {}}], {}),
    ],
)
def test_json_patch(operations: list[Any], wanted: Any) -> None:
    target = {"a": [1, 2]}
    assert json_patch(target, operations) == wanted
    assert target == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1000Mi", "1000Mi"),
        ("1000", "1k"),
        ("8", "8"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("1.5Gi", "1536Mi"),
        ("-1", "-1"),
    ],
)
def test_quantities_are_canonical(text: str, wanted: str) -> None:
    assert canonical_quantity(text) == wanted


def test_a_quantity_that_is_none_is_refused() -> None:
    made, _ = store()
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "many"}}}
    with pytest.raises(Refused) as refused:
        made.create(NODE, node, NOW)
    assert refused.value.code == 400


def test_lists_of_custom_resources_keep_unknown_fields_only_where_told() -> None:
    schema = {
        "type": "object",
        "properties": {
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "shut": {
                "type": "array",
                "items": {"type": "object", "properties": {"a": {"type": "integer", "default": 3}}},
            },
        },
    }
    report = Report()
    out = Shape(schema, custom=True).conform({"open": {"x": None, "y": 1}, "shut": [{"b": 1}], "more": 1}, report)
    assert out == {"open": {"x": None, "y": 1}, "shut": [{"a": 3}]}
    assert report.unknown == ["shut[0].b", "more"]


def test_in_process_admission_may_change_and_refuse() -> None:
    made, kind = store()

    def hook(change: Any) -> None:
        if change.request.verb == "create" and change.request.kind is kind:
            change.new["data"] = {"by": "hook"}

    made.admission.append(hook)
    assert made.create(kind, config_map("a", x="1"), NOW)["data"] == {"by": "hook"}


def test_validators_are_asked() -> None:
    def refuse(new: dict[str, Any], old: dict[str, Any] | None) -> list[tuple[str, str, str]]:
        return [("spec.parallelism", "FieldValueInvalid", "Invalid value: 1: say 2 instead")] if old else []

    made = new_store(now=NOW, validators={("batch", "jobs"): refuse})
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {"template": template},
    }
    made.create(JOB, job, NOW)
    body = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    with pytest.raises(Refused, match="say 2 instead"):
        made.do(Request("patch", JOB, "default", "a", body, content_type=JSON), NOW)
    with pytest.raises(Refused, match="say 2 instead"):
        made.do(
            Request("patch", JOB, "default", "a", {**job, "spec": {"suspend": True}}, content_type=APPLY, force=True),
            NOW,
        )
