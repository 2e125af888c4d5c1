"""What an API server does, held against the sandbox and, where there is one, against a real one.

Each test is written once. What it says of codes, reasons and fields is what the real server did; so a sandbox that passes
does the same.
"""  # noqa: E501

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from admission.sandbox.http import VERSION
from admission.sandbox.shapes import builtin
from tests.contract.builtin_schemas import of_openapi
from tests.contract.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, Object

GADGETS = "gadgets.contract.muster.dev/v1"
JOBS = "jobs.batch/v1"
JOBSETS = "jobsets.jobset.x-k8s.io/v1alpha2"


def config_map(name: str, data: Object | None = None, **meta: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": data or {"a": "1"}}


def gadget(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "contract.muster.dev/v1",
        "kind": "Gadget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


def job(
    name: str,
    *,
    suspend: bool = True,
    pods: int = 1,
    run: str = "",
    meta: Object | None = None,
    pod: Object | None = None,
    **spec: Any,
) -> Object:
    annotations = {"pod-complete.stage.kwok.x-k8s.io/delay": run} if run else {}
    container = {"name": "main", "image": "busybox:1", "resources": {"limits": {"cpu": "1000m"}}}
    template = {
        "metadata": {"annotations": annotations, "labels": {"mine": "yes"}},
        "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})},
    }
    body = {"suspend": suspend, "parallelism": pods, "completions": pods, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **(meta or {})}, "spec": body}


def made(api: Api, plural: str, obj: Object, **query: Any) -> Object:
    status, answer = api.call("POST", api.path(plural), obj, **query)
    assert status == 201, answer
    return answer


def refusal(answer: tuple[int, Object]) -> tuple[int, str]:
    status, body = answer
    assert body.get("kind") == "Status", body
    assert body["status"] == "Failure"
    assert body["code"] == status
    return status, body["reason"]


def fields_of(answer: tuple[int, Object]) -> set[str]:
    return {cause["field"] for cause in answer[1]["details"]["causes"]}


def condition(obj: Object, name: str) -> str | None:
    found = [c for c in obj.get("status", {}).get("conditions", ()) if c["type"] == name]
    return found[0]["status"] if found else None


def pods_of(api: Api, name: str) -> list[Object]:
    answer = api.ok("GET", api.path("pods"), labelSelector=f"batch.kubernetes.io/job-name={name}")
    found: list[Object] = answer["items"]
    return found


# Creating


def test_create_fills_in_what_the_server_owns(api: Api) -> None:
    obj = made(api, "configmaps", config_map("a", uid="mine", creationTimestamp="2001-01-01T00:00:00Z"))
    meta = obj["metadata"]
    assert (obj["apiVersion"], obj["kind"], meta["namespace"]) == ("v1", "ConfigMap", api.namespace)
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2020"
    assert meta["resourceVersion"].isdigit()
    assert "generation" not in meta
    (owner,) = meta["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("contract", "Update")
    assert api.ok("GET", api.path("configmaps", "a")) == obj


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1"}


def test_create_twice_is_a_conflict(api: Api) -> None:
    made(api, "configmaps", config_map("a"))
    answer = api.call("POST", api.path("configmaps"), config_map("a"))
    assert refusal(answer) == (409, "AlreadyExists")
    assert answer[1]["details"] == {"name": "a", "kind": "configmaps"}
    assert answer[1]["message"] == 'configmaps "a" already exists'


def test_generate_name(api: Api) -> None:
    body = config_map("")
    body["metadata"] = {"generateName": "some-"}
    names = {made(api, "configmaps", body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("some-") and len(name) == 10 for name in names)


@pytest.mark.parametrize(
    ("body", "wanted", "field"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, (422, "Invalid"), "metadata.name"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_Valid"}},
            (422, "Invalid"),
            "metadata.name",
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"a": "b c"}}},
            (422, "Invalid"),
            "metadata.labels",
        ),
        (config_map("a", annotations={"a b": ""}), (422, "Invalid"), "metadata.annotations"),
        (config_map("a", annotations={f"x.y/{'z' * 64}": ""}), (422, "Invalid"), "metadata.annotations"),
        *(
            (
                config_map("a", ownerReferences=[{**OWNER, part: ""}]),
                (422, "Invalid"),
                f"metadata.ownerReferences.{part}",
            )
            for part in OWNER
        ),
        (config_map("a", ownerReferences=[{}]), (422, "Invalid"), "metadata.ownerReferences.uid"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, (400, "BadRequest"), None),
        ({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}}, (400, "BadRequest"), None),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a/b": ""}},
            (422, "Invalid"),
            "data[a/b]",
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "other"}},
            (400, "BadRequest"),
            None,
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "7"}},
            (500, None),
            None,
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": 1}},
            (400, "BadRequest"),
            None,
        ),
    ],
)
def test_create_refused(api: Api, body: Object, wanted: tuple[int, str | None], field: str | None) -> None:
    answer = api.call("POST", api.path("configmaps"), body)
    assert answer[0] == wanted[0], answer
    assert answer[1].get("reason") == wanted[1] or wanted[1] is None
    if field:
        assert field in fields_of(answer)


def test_a_body_that_does_not_say_what_it_is(api: Api) -> None:
    assert made(api, "configmaps", {"metadata": {"name": "a"}})["kind"] == "ConfigMap"
    assert refusal(api.call("POST", api.path(GADGETS), {"metadata": {"name": "a"}, "spec": {"size": 1}})) == (
        400,
        "BadRequest",
    )


def test_create_in_a_namespace_that_is_not_there(api: Api) -> None:
    answer = api.call("POST", api.path("configmaps", namespace="nowhere"), config_map("a"))
    assert refusal(answer) == (404, "NotFound")
    assert answer[1]["message"] == 'namespaces "nowhere" not found'


def test_not_found(api: Api) -> None:
    answer = api.call("GET", api.path(JOBS, "none"))
    assert refusal(answer) == (404, "NotFound")
    assert answer[1]["message"] == 'jobs.batch "none" not found'
    assert answer[1]["details"] == {"name": "none", "group": "batch", "kind": "jobs"}


def test_unknown_fields(api: Api) -> None:
    body = config_map("a") | {"spam": 1}
    assert refusal(api.call("POST", api.path("configmaps"), body, fieldValidation="Strict")) == (400, "BadRequest")
    assert "spam" not in made(api, "configmaps", body)
    other = gadget("g", spam=1)
    assert refusal(api.call("POST", api.path(GADGETS), other, fieldValidation="Strict")) == (400, "BadRequest")
    assert "spam" not in made(api, GADGETS, other)["spec"]


def test_dry_run_stores_nothing(api: Api) -> None:
    made(api, "configmaps", config_map("a"), dryRun="All")
    assert api.call("GET", api.path("configmaps", "a"))[0] == 404
    made(api, "configmaps", config_map("a"))
    api.ok("PATCH", api.path("configmaps", "a"), {"data": {"a": "2"}}, MERGE, dryRun="All")
    api.ok("DELETE", api.path("configmaps", "a"), dryRun="All")
    assert api.ok("GET", api.path("configmaps", "a"))["data"] == {"a": "1"}


# Updating


def test_put_with_an_old_version_is_a_conflict(api: Api) -> None:
    old = made(api, "configmaps", config_map("a"))
    new = api.ok("PUT", api.path("configmaps", "a"), old | {"data": {"a": "2"}})
    assert int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    answer = api.call("PUT", api.path("configmaps", "a"), old | {"data": {"a": "3"}})
    assert refusal(answer) == (409, "Conflict")
    assert answer[1]["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to the '  # noqa: E501
        "latest version and try again"
    )
    assert answer[1]["details"] == {"name": "a", "kind": "configmaps"}
    patch = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    assert refusal(api.call("PATCH", api.path("configmaps", "a"), patch, MERGE)) == (409, "Conflict")


def test_put_without_a_version(api: Api) -> None:
    made(api, "configmaps", config_map("a"))
    assert api.ok("PUT", api.path("configmaps", "a"), config_map("a", {"b": "1"}))["data"] == {"b": "1"}
    made(api, GADGETS, gadget("g"))
    answer = api.call("PUT", api.path(GADGETS, "g"), gadget("g", size=2))
    assert refusal(answer) == (422, "Invalid")
    assert fields_of(answer) == {"metadata.resourceVersion"}


def test_put_with_another_uid_or_name(api: Api) -> None:
    made(api, "configmaps", config_map("a"))
    assert refusal(api.call("PUT", api.path("configmaps", "a"), config_map("a", uid="other"))) == (409, "Conflict")
    assert refusal(api.call("PUT", api.path("configmaps", "a"), config_map("b"))) == (400, "BadRequest")
    assert refusal(api.call("PUT", api.path("configmaps", "b"), config_map("b"))) == (404, "NotFound")


def test_an_update_that_changes_nothing_keeps_the_version(api: Api) -> None:
    old = made(api, "configmaps", config_map("a"))
    for answer in (
        api.ok("PUT", api.path("configmaps", "a"), old),
        api.ok("PATCH", api.path("configmaps", "a"), {"data": {"a": "1"}}, MERGE),
        api.ok("PATCH", api.path("configmaps", "a"), [], JSON_PATCH),
    ):
        assert answer["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


def test_merge_patch(api: Api) -> None:
    made(api, "configmaps", config_map("a", {"a": "1", "b": "2"}))
    new = api.ok("PATCH", api.path("configmaps", "a"), {"data": {"a": None, "c": "3"}}, MERGE)
    assert new["data"] == {"b": "2", "c": "3"}


def test_json_patch(api: Api) -> None:
    made(api, "configmaps", config_map("a", {"a": "1"}))
    where = api.path("configmaps", "a")
    ops = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/metadata/annotations", "value": {"x/y": "1"}},
        {"op": "replace", "path": "/metadata/annotations/x~1y", "value": "2"},
    ]
    assert api.ok("PATCH", where, ops, JSON_PATCH)["metadata"]["annotations"] == {"x/y": "2"}
    assert refusal(api.call("PATCH", where, [{"op": "test", "path": "/data/a", "value": "9"}], JSON_PATCH)) == (
        422,
        "Invalid",
    )
    assert refusal(api.call("PATCH", where, [{"op": "remove", "path": "/data/zzz"}], JSON_PATCH)) == (422, "Invalid")
    assert refusal(api.call("PATCH", where, {"not": "a list"}, JSON_PATCH)) == (400, "BadRequest")


def test_patch_of_what_is_not_there_or_in_no_known_form(api: Api) -> None:
    assert refusal(api.call("PATCH", api.path("configmaps", "none"), {}, MERGE)) == (404, "NotFound")
    made(api, "configmaps", config_map("a"))
    assert refusal(api.call("PATCH", api.path("configmaps", "a"), {}, "text/plain")) == (415, "UnsupportedMediaType")
    made(api, GADGETS, gadget("g"))
    assert refusal(api.call("PATCH", api.path(GADGETS, "g"), {}, STRATEGIC)) == (415, "UnsupportedMediaType")


def test_strategic_merge_by_key(api: Api) -> None:
    made(api, JOBS, job("a", pod={"tolerations": [{"key": "x", "operator": "Exists"}]}))
    patch = {
        "spec": {"template": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "1Gi"}}}]}}}
    }
    new = api.ok("PATCH", api.path(JOBS, "a"), patch, STRATEGIC)
    (container,) = new["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "busybox:1"
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    patch = {"spec": {"template": {"spec": {"tolerations": [{"key": "y", "operator": "Exists"}]}}}}
    new = api.ok("PATCH", api.path(JOBS, "a"), patch, STRATEGIC)
    assert [t["key"] for t in new["spec"]["template"]["spec"]["tolerations"]] == ["y"]


def test_what_an_update_cannot_change(api: Api) -> None:
    old = made(api, "configmaps", config_map("a"))
    patch = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7}, "data": {"a": "2"}}
    new = api.ok("PATCH", api.path("configmaps", "a"), patch, MERGE)
    assert new["metadata"]["creationTimestamp"] == old["metadata"]["creationTimestamp"]
    assert refusal(api.call("PATCH", api.path("configmaps", "a"), {"metadata": {"uid": "x"}}, MERGE)) == (
        422,
        "Invalid",
    )
    assert refusal(api.call("PATCH", api.path("configmaps", "a"), {"metadata": {"name": "x"}}, MERGE)) == (
        400,
        "BadRequest",
    )


# Status and generation


def test_spec_and_status_have_doors_of_their_own(api: Api) -> None:
    body = gadget("g") | {"status": {"phase": "Done"}}
    obj = made(api, GADGETS, body)
    assert "status" not in obj
    assert obj["metadata"]["generation"] == 1
    obj = api.ok("PATCH", api.path(GADGETS, "g", "status"), {"spec": {"size": 9}, "status": {"phase": "Run"}}, MERGE)
    assert (obj["spec"]["size"], obj["status"], obj["metadata"]["generation"]) == (1, {"phase": "Run"}, 1)
    obj = api.ok("PATCH", api.path(GADGETS, "g"), {"spec": {"size": 9}, "status": {"phase": "Bad"}}, MERGE)
    assert (obj["spec"]["size"], obj["status"], obj["metadata"]["generation"]) == (9, {"phase": "Run"}, 2)
    obj = api.ok("PATCH", api.path(GADGETS, "g"), {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert obj["metadata"]["generation"] == 2
    obj["status"] = {"phase": "Put", "count": 3}
    obj = api.ok("PUT", api.path(GADGETS, "g", "status"), obj)
    assert obj["status"] == {"phase": "Put", "count": 3}
    assert obj["metadata"]["labels"] == {"a": "b"}


def test_custom_resources_default_prune_and_refuse(api: Api) -> None:
    obj = made(api, GADGETS, gadget("g"))
    assert obj["spec"] == {"size": 1, "color": "red"}
    for spec, field in (
        ({"size": 0}, "spec.size"),
        ({"size": "one"}, "spec.size"),
        ({"color": "green"}, "spec.color"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]"),
        ({"parts": [{"weight": 1}]}, "spec.parts[0].name"),
        ({"tags": ["x", "x"]}, "spec.tags[1]"),
    ):
        answer = api.call("POST", api.path(GADGETS), gadget("h", **spec))
        assert refusal(answer) == (422, "Invalid"), spec
        assert field in fields_of(answer), (spec, answer)
    bare = {"apiVersion": "contract.muster.dev/v1", "kind": "Gadget", "metadata": {"name": "h"}}
    answer = api.call("POST", api.path(GADGETS), bare)
    assert (refusal(answer), fields_of(answer)) == ((422, "Invalid"), {"spec"})


# Server-side apply


def apply(api: Api, plural: str, obj: Object, manager: str, sub: str = "", **query: Any) -> tuple[int, Object]:
    return api.call("PATCH", api.path(plural, obj["metadata"]["name"], sub), obj, APPLY, fieldManager=manager, **query)


def test_apply_creates_and_then_is_quiet(api: Api) -> None:
    status, obj = apply(api, GADGETS, gadget("g", size=2), "one")
    assert status == 201
    (owner,) = obj["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("one", "Apply")
    assert owner["fieldsV1"] == {"f:spec": {"f:size": {}}}
    status, again = apply(api, GADGETS, gadget("g", size=2), "one")
    assert (status, again["metadata"]["resourceVersion"]) == (200, obj["metadata"]["resourceVersion"])


def test_apply_conflicts_and_force(api: Api) -> None:
    apply(api, GADGETS, gadget("g", size=2), "one")
    answer = apply(api, GADGETS, gadget("g", size=3), "two")
    assert refusal(answer) == (409, "Conflict")
    assert answer[1]["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".spec.size"}
    ]
    status, obj = apply(api, GADGETS, gadget("g", size=3), "two", force="true")
    assert (status, obj["spec"]["size"]) == (200, 3)
    assert [e["manager"] for e in obj["metadata"]["managedFields"]] == ["two"]


def test_apply_of_an_equal_value_shares_it(api: Api) -> None:
    apply(api, GADGETS, gadget("g", size=2), "one")
    status, obj = apply(api, GADGETS, gadget("g", size=2, color="blue"), "two")
    assert (status, obj["spec"]) == (200, {"size": 2, "color": "blue"})
    assert sorted(e["manager"] for e in obj["metadata"]["managedFields"]) == ["one", "two"]
    assert refusal(apply(api, GADGETS, gadget("g", size=3), "one")) == (409, "Conflict")
    status, obj = apply(api, GADGETS, gadget("g", size=2), "two")
    assert obj["spec"]["color"] == "red"  # let go by its only owner, defaulted again


def test_apply_with_a_version(api: Api) -> None:
    old = made(api, GADGETS, gadget("g"))
    api.ok("PATCH", api.path(GADGETS, "g"), {"metadata": {"labels": {"a": "b"}}}, MERGE)
    body = gadget("g")
    body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    assert refusal(apply(api, GADGETS, body, "one")) == (409, "Conflict")
    status = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "status": {"phase": "Run"}}
    assert refusal(api.call("PATCH", api.path(GADGETS, "g", "status"), status, MERGE)) == (409, "Conflict")
    body["metadata"] = {"name": "g", "uid": "other"}
    assert refusal(apply(api, GADGETS, body, "one")) == (422, "Invalid")


def test_apply_lets_go_of_what_it_no_longer_says(api: Api) -> None:
    parts = [{"name": "a", "weight": 1}, {"name": "b", "weight": 2, "note": "x"}]
    apply(api, GADGETS, gadget("g", parts=parts, tags=["p", "q"]), "one")
    other = {"apiVersion": "contract.muster.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}}
    status, obj = apply(api, GADGETS, other | {"spec": {"parts": [{"name": "a", "note": "two"}], "tags": ["r"]}}, "two")
    assert status == 200
    assert obj["spec"]["tags"] == ["p", "q", "r"]
    status, obj = apply(api, GADGETS, gadget("g", parts=[{"name": "b", "weight": 2}], tags=["q"]), "one")
    assert obj["spec"]["parts"] == [{"name": "a", "note": "two"}, {"name": "b", "weight": 2}]
    assert obj["spec"]["tags"] == ["q", "r"]
    status, obj = apply(api, GADGETS, gadget("g"), "one")
    assert obj["spec"]["parts"] == [{"name": "a", "note": "two"}]
    assert obj["spec"]["tags"] == ["r"]


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        ("ab", "ba", "ba"),
        ("abc", "cab", "cab"),
        ("abd", "bxa", "bdxa"),
        ("dab", "ba", "dba"),
        ("adb", "ba", "dba"),
        ("dea", "xa", "dexa"),
        ("de", "xa", "dexa"),
    ],
)
@pytest.mark.parametrize("kind", ["parts", "tags"])
def test_apply_puts_entries_in_its_order(api: Api, kind: str, live: str, applied: str, merged: str) -> None:
    """An apply that says the same in another order is a change, and the next one is none."""

    def listed(names: str) -> list[Any]:
        return [{"name": name} if kind == "parts" else name for name in names]

    made(api, GADGETS, gadget("g", **{kind: listed(live)}))
    status, obj = apply(api, GADGETS, gadget("g", **{kind: listed(applied)}), "one")
    assert (status, obj["spec"][kind]) == (200, listed(merged))
    status, again = apply(api, GADGETS, gadget("g", **{kind: listed(applied)}), "one")
    assert again["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]


def test_apply_against_an_update(api: Api) -> None:
    made(api, JOBS, job("a"))
    applied = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "labels": {"x": "y"}}}
    status, obj = apply(api, JOBS, applied | {"spec": {"parallelism": 1}}, "one")
    assert (status, obj["metadata"]["labels"]["x"]) == (200, "y")
    answer = apply(api, JOBS, applied | {"spec": {"parallelism": 2}}, "two")
    assert refusal(answer) == (409, "Conflict")
    assert {c["message"].split(" using")[0] for c in answer[1]["details"]["causes"]} == {
        'conflict with "one"',
        'conflict with "contract"',
    }
    obj = api.ok("PATCH", api.path(JOBS, "a"), {"spec": {"parallelism": 3}}, MERGE, fieldManager="hand")
    status, obj = apply(api, JOBS, applied, "one")
    assert (status, obj["spec"]["parallelism"]) == (200, 3)


def test_apply_of_status(api: Api) -> None:
    made(api, GADGETS, gadget("g"))
    body = {
        "apiVersion": "contract.muster.dev/v1",
        "kind": "Gadget",
        "metadata": {"name": "g"},
        "status": {"phase": "Run"},
    }
    status, obj = apply(api, GADGETS, body, "one", "status")
    assert (status, obj["status"]) == (200, {"phase": "Run"})
    owner = next(e for e in obj["metadata"]["managedFields"] if e["manager"] == "one")
    assert (owner["subresource"], owner["fieldsV1"]) == ("status", {"f:status": {"f:phase": {}}})
    body["status"] = {"count": 1}
    assert apply(api, GADGETS, body, "one", "status")[1]["status"] == {"count": 1}


def test_apply_refused(api: Api) -> None:
    assert refusal(api.call("PATCH", api.path(GADGETS, "g"), gadget("g"), APPLY)) == (422, "Invalid")
    obj = gadget("g")
    obj["metadata"]["managedFields"] = [{"manager": "x"}]
    assert refusal(apply(api, GADGETS, obj, "one")) == (400, "BadRequest")
    made(api, GADGETS, gadget("g"))
    answer = api.call("PATCH", api.path(GADGETS, "g"), {}, MERGE, force="true")
    assert refusal(answer) == (422, "Invalid")
    assert refusal(apply(api, GADGETS, gadget("none"), "one", "status")) == (404, "NotFound")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"parts": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, '.spec.parts: duplicate entries for key [name="a"]'),
        ({"tags": ["p", "p"]}, '.spec.tags: duplicate entries for key [="p"]'),
        ({"parts": "none"}, ".spec.parts: expected list, got "),
        ({"color": [1]}, ".spec.color: expected string, got "),
    ],
    ids=["twice in a list of entries", "twice in a set", "no list", "no text"],
)
def test_apply_of_what_is_not_as_the_kind_has_it_is_no_fault_of_the_object_s(api: Api, spec: Object, told: str) -> None:
    """It is said as if the server had failed: by 500, and without a reason."""
    status, answer = apply(api, GADGETS, gadget("g", **spec), "one")
    assert (status, answer.get("reason", "")) == (500, "")
    assert told in answer["message"]
    assert refusal(api.call("GET", api.path(GADGETS, "g"))) == (404, "NotFound")


@pytest.mark.parametrize("size", [None, 1.5])
def test_apply_of_nothing_or_a_part_for_a_whole_number_is_refused_as_by_create(api: Api, size: float | None) -> None:
    assert refusal(apply(api, GADGETS, gadget("g", size=size), "one")) == (422, "Invalid")


@pytest.mark.parametrize("there", [False, True], ids=["created", "changed"])
def test_apply_of_a_field_that_the_kind_lacks_changes_nothing(api: Api, there: bool) -> None:
    """Of several, the real one names those that it comes to first."""
    if there:
        made(api, GADGETS, gadget("g"))
    status, answer = apply(api, GADGETS, {**gadget("g"), "unheard": {"of": 1}}, "one")
    assert status == 500
    assert answer["message"].endswith("Kind=Gadget): .unheard: field not declared in schema")
    if there:
        obj = {**gadget("g"), "status": {"unheard": 1}}
        status, answer = apply(api, GADGETS, obj, "one", "status")
        assert status == 500
        assert answer["message"].endswith(".status.unheard: field not declared in schema")
        assert api.ok("GET", api.path(GADGETS, "g")).get("status") is None
    else:
        assert refusal(api.call("GET", api.path(GADGETS, "g"))) == (404, "NotFound")


# Lists and watches


def test_list_in_pages_shows_one_moment(api: Api) -> None:
    for name in "abcde":
        made(api, "configmaps", config_map(name, labels={"mine": "yes"}))
    where = api.path("configmaps")
    first = api.ok("GET", where, limit=2, labelSelector="mine=yes")
    assert [o["metadata"]["name"] for o in first["items"]] == ["a", "b"]
    api.ok("DELETE", api.path("configmaps", "d"))
    made(api, "configmaps", config_map("dd", labels={"mine": "yes"}))
    second = api.ok("GET", where, limit=5, labelSelector="mine=yes", **{"continue": first["metadata"]["continue"]})
    assert [o["metadata"]["name"] for o in second["items"]] == ["c", "d", "e"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]
    assert refusal(api.call("GET", where, **{"continue": "nonsense"})) == (400, "BadRequest")


def test_selectors(api: Api) -> None:
    for name, team in (("a", "x"), ("b", "y"), ("c", "")):
        made(api, "configmaps", config_map(name, labels={"team": team, "sel": "1"} if team else {"sel": "1"}))

    def names(**query: str) -> list[str]:
        return [o["metadata"]["name"] for o in api.ok("GET", api.path("configmaps"), **query)["items"]]

    assert names(labelSelector="team=x") == ["a"]
    assert names(labelSelector="sel,team!=x") == ["b", "c"]
    assert names(labelSelector="team in (x,y),sel=1") == ["a", "b"]
    assert names(labelSelector="sel,team notin (y)") == ["a", "c"]
    assert names(labelSelector="sel,!team") == ["c"]
    assert names(fieldSelector="metadata.name=b") == ["b"]
    assert refusal(api.call("GET", api.path("configmaps"), fieldSelector="data.a=1")) == (400, "BadRequest")
    assert refusal(api.call("GET", api.path("configmaps"), labelSelector="a in b")) == (400, "BadRequest")


def test_watch_from_a_version(api: Api) -> None:
    where = api.path("configmaps")
    first = made(api, "configmaps", config_map("a", labels={"w": "1"}))
    since = first["metadata"]["resourceVersion"]
    api.ok("PATCH", api.path("configmaps", "a"), {"data": {"a": "2"}}, MERGE)
    with api.watch(where, resourceVersion=since, timeoutSeconds=10, labelSelector="w=1") as events:
        event = next(events)
        assert (event["type"], event["object"]["data"]) == ("MODIFIED", {"a": "2"})
        made(api, "configmaps", config_map("b"))
        api.ok("PATCH", api.path("configmaps", "b"), {"metadata": {"labels": {"w": "1"}}}, MERGE)
        event = next(events)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "b")
        api.ok("PATCH", api.path("configmaps", "a"), {"metadata": {"labels": None}}, MERGE)
        event = next(events)
        assert (event["type"], event["object"]["metadata"]["labels"]) == ("DELETED", {"w": "1"})
        left = api.ok("GET", api.path("configmaps", "a"))["metadata"]["resourceVersion"]
        assert event["object"]["metadata"]["resourceVersion"] == left
        api.ok("DELETE", api.path("configmaps", "b"))
        event = next(events)
        assert event["type"] == "DELETED"
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(left)


@pytest.mark.parametrize("version", ["", "0"])
def test_watch_from_now_shows_what_is(api: Api, version: str) -> None:
    made(api, "configmaps", config_map("a", labels={"now": api.namespace}))
    query = {"resourceVersion": version} if version else {}
    with api.watch(api.path("configmaps"), timeoutSeconds=10, labelSelector=f"now={api.namespace}", **query) as events:
        event = next(events)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


def test_watch_from_the_past_is_expired(api: Api) -> None:
    with api.watch(api.path(GADGETS), resourceVersion="1", timeoutSeconds=5) as events:
        event = next(events)
    assert event["type"] == "ERROR"
    status = event["object"]
    assert (status["kind"], status["code"], status["reason"], status["status"]) == ("Status", 410, "Expired", "Failure")


def test_watch_ends_in_time(api: Api) -> None:
    since = api.ok("GET", api.path("configmaps"))["metadata"]["resourceVersion"]
    began = time.monotonic()
    with api.watch(api.path("configmaps"), resourceVersion=since, timeoutSeconds=1) as events:
        assert [
            e for e in events if e["type"] != "BOOKMARK" and e["object"]["metadata"]["name"] != "kube-root-ca.crt"
        ] == []
    assert time.monotonic() - began > 0.5


def test_watch_list_ends_with_a_bookmark(api: Api) -> None:
    made(api, GADGETS, gadget("g"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with api.watch(api.path(GADGETS), timeoutSeconds=10, **query) as events:
        event = next(events)
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "g")
        event = next(events)
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
        assert event["object"]["kind"] == "Gadget"


# Deleting


def test_delete_and_its_preconditions(api: Api) -> None:
    obj = made(api, "configmaps", config_map("a"))
    where = api.path("configmaps", "a")
    answer = api.call("DELETE", where, {"preconditions": {"uid": "other"}})
    assert refusal(answer) == (409, "Conflict")
    answer = api.call("DELETE", where, {"preconditions": {"resourceVersion": "1"}})
    assert refusal(answer) == (409, "Conflict")
    status, body = api.call("DELETE", where, {"preconditions": {"uid": obj["metadata"]["uid"]}})
    assert (status, body["kind"], body["status"]) == (200, "Status", "Success")
    assert body["details"] == {"name": "a", "kind": "configmaps", "uid": obj["metadata"]["uid"]}
    assert refusal(api.call("DELETE", where)) == (404, "NotFound")


def test_a_finalizer_holds(api: Api) -> None:
    obj = gadget("g")
    obj["metadata"]["finalizers"] = ["contract.muster.dev/hold"]
    made(api, GADGETS, obj)
    where = api.path(GADGETS, "g")
    status, gone = api.call("DELETE", where)
    assert status == 200
    assert gone["metadata"]["deletionTimestamp"]
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 0
    assert gone["metadata"]["generation"] == 2
    again = api.ok("DELETE", where)
    assert again["metadata"]["resourceVersion"] == gone["metadata"]["resourceVersion"]
    patch = {"metadata": {"finalizers": ["contract.muster.dev/hold", "contract.muster.dev/more"]}}
    answer = api.call("PATCH", where, patch, MERGE)
    assert (refusal(answer), fields_of(answer)) == ((422, "Invalid"), {"metadata.finalizers"})
    assert refusal(api.call("POST", api.path(GADGETS), gadget("g"))) == (409, "AlreadyExists")
    with api.watch(api.path(GADGETS), resourceVersion=gone["metadata"]["resourceVersion"], timeoutSeconds=10) as events:
        last = api.ok("PATCH", where, {"metadata": {"finalizers": None}}, MERGE)
        assert last["metadata"]["name"] == "g"
        assert next(events)["type"] == "DELETED"
    assert api.call("GET", where)[0] == 404


def owned(api: Api, name: str, owner: Object, **more: Any) -> Object:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        **more,
    }
    return made(api, "configmaps", config_map(name, ownerReferences=[reference]))


def heard(api: Api) -> None:
    """Until the collector has heard of all that was made so far: it hears in order, and what has a dead owner goes."""
    dead = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dead", "uid": str(uuid.uuid4())}}
    owned(api, "last", dead)
    api.until(lambda: api.call("GET", api.path("configmaps", "last"))[0] == 404)


def test_an_owner_takes_its_own_along(api: Api) -> None:
    owner = made(api, "configmaps", config_map("owner"))
    owned(api, "child", owner)
    api.ok("DELETE", api.path("configmaps", "owner"))
    api.until(lambda: api.call("GET", api.path("configmaps", "child"))[0] == 404)


def test_orphans_stay(api: Api) -> None:
    owner = made(api, "configmaps", config_map("owner"))
    owned(api, "child", owner)
    heard(api)
    answer = api.ok("DELETE", api.path("configmaps", "owner"), {"propagationPolicy": "Orphan"})
    assert answer["kind"] == "Status" or answer["metadata"]["finalizers"] == ["orphan"]
    api.until(lambda: api.call("GET", api.path("configmaps", "owner"))[0] == 404)
    assert "ownerReferences" not in api.ok("GET", api.path("configmaps", "child"))["metadata"]


def test_foreground_waits_for_the_children(api: Api) -> None:
    owner = made(api, "configmaps", config_map("owner"))
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    held = config_map("child", ownerReferences=[reference], finalizers=["contract.muster.dev/hold"])
    made(api, "configmaps", held)
    heard(api)
    answer = api.ok("DELETE", api.path("configmaps", "owner"), {"propagationPolicy": "Foreground"})
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    child = api.path("configmaps", "child")
    api.until(lambda: api.ok("GET", child)["metadata"].get("deletionTimestamp"))
    assert api.call("GET", api.path("configmaps", "owner"))[0] == 200
    api.ok("PATCH", child, {"metadata": {"finalizers": None}}, MERGE)
    api.until(lambda: api.call("GET", api.path("configmaps", "owner"))[0] == 404)


def test_what_names_a_dead_owner_goes(api: Api) -> None:
    owner = made(api, "configmaps", config_map("owner"))
    api.ok("DELETE", api.path("configmaps", "owner"))
    owned(api, "child", owner)
    api.until(lambda: api.call("GET", api.path("configmaps", "child"))[0] == 404)


def test_a_namespace_goes_with_all_in_it(api: Api) -> None:
    name = api.namespace
    obj = config_map("held", finalizers=["contract.muster.dev/hold"])
    made(api, "configmaps", obj)
    status, gone = api.call("DELETE", f"/api/v1/namespaces/{name}")
    assert (status, gone["status"]["phase"]) == (200, "Terminating")
    answer = api.call("POST", api.path("configmaps"), config_map("late"))
    assert refusal(answer) == (403, "Forbidden")
    assert answer[1]["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    api.until(lambda: api.ok("GET", api.path("configmaps", "held"))["metadata"].get("deletionTimestamp"))
    api.ok("PATCH", api.path("configmaps", "held"), {"metadata": {"finalizers": None}}, MERGE)
    api.until(lambda: api.call("GET", f"/api/v1/namespaces/{name}")[0] == 404)


def test_delete_collection(api: Api) -> None:
    for name in "ab":
        made(api, GADGETS, gadget(name))
    answer = api.ok("DELETE", api.path(GADGETS))
    assert answer["kind"] == "GadgetList"
    assert api.ok("GET", api.path(GADGETS))["items"] == []


# Jobs


def test_a_job_is_defaulted(api: Api) -> None:
    obj = made(api, JOBS, job("a"))
    spec, uid = obj["spec"], obj["metadata"]["uid"]
    template = spec.pop("template")
    assert spec == {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": True,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
    }
    marks = {
        "job-name": "a",
        "batch.kubernetes.io/job-name": "a",
        "controller-uid": uid,
        "batch.kubernetes.io/controller-uid": uid,
    }
    assert template["metadata"]["labels"] == {"mine": "yes", **marks}
    assert obj["metadata"]["labels"] == {"mine": "yes", **marks}
    assert template["spec"] == {
        "containers": [
            {
                "name": "main",
                "image": "busybox:1",
                "resources": {"limits": {"cpu": "1"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }
    assert obj["metadata"]["generation"] == 1
    assert obj["status"] == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallelism": -1}, "spec.parallelism"),
        ({"meta": {"name": "a" * 64}}, "spec.template.labels"),
        (
            {"template": {**job("a")["spec"]["template"], "metadata": {"annotations": {"a b": ""}}}},
            "spec.template.annotations",
        ),
        ({"completionMode": "Other"}, "spec.completionMode"),
        ({"completionMode": "Indexed", "completions": None}, "spec.completions"),
        ({"pod": {"restartPolicy": "Always"}}, "spec.template.spec.restartPolicy"),
        ({"pod": {"containers": []}}, "spec.template.spec.containers"),
        ({"pod": {"containers": [{"name": "a"}]}}, "spec.template.spec.containers[0].image"),
        (
            {"pod": {"containers": [{"name": "a", "image": "b", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}},
            "spec.template.spec.containers[0].resources.limits",
        ),
        (
            {"pod": {"containers": [{"name": "a", "image": "b", "resources": {"limits": {"cpu": "-1"}}}]}},
            "spec.template.spec.containers[0].resources.limits[cpu]",
        ),
    ],
)
def test_a_job_refused(api: Api, changes: Object, field: str) -> None:
    answer = api.call("POST", api.path(JOBS), job("a", **changes))
    assert refusal(answer) == (422, "Invalid"), answer
    assert field in fields_of(answer)


def test_the_template_of_a_held_job_is_open(api: Api) -> None:
    made(api, JOBS, job("a", pods=2))
    where = api.path(JOBS, "a")
    api.until(lambda: condition(api.ok("GET", where), "Suspended") == "True")
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            }
        }
    }
    pod = {
        "nodeSelector": {"a": "b"},
        "affinity": affinity,
        "tolerations": [{"key": "x", "operator": "Exists"}],
        "schedulingGates": [{"name": "x.y/z"}],
    }
    patch = {"spec": {"template": {"metadata": {"labels": {"l": "1"}, "annotations": {"n": "1"}}, "spec": pod}}}
    obj = api.ok("PATCH", where, patch, MERGE)
    assert obj["metadata"]["generation"] == 2
    assert obj["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}
    more = {"spec": {"template": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}}}
    api.ok("PATCH", where, more, STRATEGIC)
    api.ok("PATCH", where, {"spec": {"parallelism": 5}}, MERGE)
    for changes in (
        {"template": {"spec": {"priorityClassName": "system-node-critical"}}},
        {"template": {"spec": {"containers": [{"name": "main", "image": "other"}]}}},
        {
            "template": {
                "spec": {
                    "affinity": {
                        "podAffinity": {},
                        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]},
                    }
                }
            }
        },
        {"completions": 9},
        {"completionMode": "Indexed"},
    ):
        answer = api.call("PATCH", where, {"spec": changes}, STRATEGIC)
        assert refusal(answer) == (422, "Invalid"), changes
    undo = {
        "spec": {
            "template": {"spec": {"nodeSelector": None, "affinity": None, "tolerations": None, "schedulingGates": None}}
        }
    }
    obj = api.ok("PATCH", where, undo, MERGE)
    assert "nodeSelector" not in obj["spec"]["template"]["spec"]


def test_start_and_pin_in_one_write_and_take_it_back(api: Api) -> None:
    made(api, JOBS, job("a", pods=2, run="60s", completionMode="Indexed"))
    where = api.path(JOBS, "a")
    patch = {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"kubernetes.io/os": "none"}}}}}
    api.ok("PATCH", where, patch, MERGE)
    obj = api.until(lambda: (o := api.ok("GET", where)) and o["status"].get("active") == 2 and o)
    assert condition(obj, "Suspended") in ("False", None)
    assert obj["status"]["startTime"]
    undo = {"spec": {"template": {"spec": {"nodeSelector": None}}}}
    assert refusal(api.call("PATCH", where, undo, MERGE)) == (422, "Invalid")
    both = {"spec": {"suspend": True, "template": {"spec": {"nodeSelector": None}}}}
    assert refusal(api.call("PATCH", where, both, MERGE)) == (422, "Invalid")
    api.ok("PATCH", where, {"spec": {"suspend": True}}, MERGE)
    obj = api.until(
        lambda: (
            (o := api.ok("GET", where)) and condition(o, "Suspended") == "True" and not o["status"].get("active") and o
        )
    )
    assert "startTime" not in obj["status"]
    api.ok("PATCH", where, undo, MERGE)
    api.until(lambda: not pods_of(api, "a"))
    api.ok("PATCH", where, {"spec": {"suspend": False}}, MERGE)
    obj = api.until(
        lambda: (
            (o := api.ok("GET", where)) and condition(o, "Suspended") == "False" and o["status"].get("ready") == 2 and o
        )
    )
    assert obj["status"]["startTime"]
    assert obj["status"].get("failed", 0) == 0


def test_a_test_on_the_generation_guards_a_start(api: Api) -> None:
    made(api, JOBS, job("a"))
    where = api.path(JOBS, "a")
    api.ok("PATCH", where, {"spec": {"parallelism": 2}}, MERGE)
    ops = [
        {"op": "test", "path": "/metadata/generation", "value": 1},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]
    assert refusal(api.call("PATCH", where, ops, JSON_PATCH)) == (422, "Invalid")
    ops[0]["value"] = 2
    assert api.ok("PATCH", where, ops, JSON_PATCH)["spec"]["suspend"] is False


def test_an_indexed_job_runs_and_completes(api: Api) -> None:
    made(api, JOBS, job("a", suspend=False, pods=3, run="1s", completionMode="Indexed", backoffLimit=0))
    pods = api.until(lambda: len(found := pods_of(api, "a")) == 3 and found)
    for index, pod in enumerate(sorted(pods, key=lambda p: str(p["metadata"]["name"]))):
        meta = pod["metadata"]
        assert meta["name"].startswith(f"a-{index}-")
        assert meta["generateName"] == f"a-{index}-"
        assert meta["labels"]["batch.kubernetes.io/job-completion-index"] == str(index)
        assert meta["annotations"]["batch.kubernetes.io/job-completion-index"] == str(index)
        assert meta["labels"]["mine"] == "yes"
        (owner,) = meta["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == (
            "Job",
            "a",
            True,
            True,
        )
        assert pod["spec"]["hostname"] == f"a-{index}"
        assert pod["spec"]["priority"] == 0
        assert pod["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
        assert pod["spec"]["serviceAccountName"] == "default"
        assert {(t["key"], t["tolerationSeconds"]) for t in pod["spec"]["tolerations"]} == {
            ("node.kubernetes.io/not-ready", 300),
            ("node.kubernetes.io/unreachable", 300),
        }
        assert pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    where = api.path(JOBS, "a")
    obj = api.until(lambda: condition(o := api.ok("GET", where), "Complete") == "True" and o)
    status = obj["status"]
    assert (status["succeeded"], status["completedIndexes"], status.get("active", 0)) == (3, "0-2", 0)
    assert status["completionTime"]
    assert [c["type"] for c in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert {c["reason"] for c in status["conditions"]} == {"CompletionsReached"}
    assert all("finalizers" not in p["metadata"] for p in pods_of(api, "a"))
    assert all(p["spec"]["nodeName"] for p in pods_of(api, "a"))


def test_a_deleted_pod_fails_a_job_without_backoff(api: Api) -> None:
    made(api, JOBS, job("a", suspend=False, pods=2, run="60s", backoffLimit=0))
    where = api.path(JOBS, "a")
    api.until(lambda: api.ok("GET", where)["status"].get("ready") == 2)
    victim = pods_of(api, "a")[0]
    gone = api.ok("DELETE", api.path("pods", victim["metadata"]["name"]))
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 30
    obj = api.until(lambda: condition(o := api.ok("GET", where), "Failed") == "True" and o)
    failed = next(c for c in obj["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert obj["status"].get("active", 0) == 0
    assert "startTime" in obj["status"]
    api.until(lambda: not pods_of(api, "a") or all(p["status"]["phase"] == "Failed" for p in pods_of(api, "a")))


def test_a_deleted_pod_is_replaced(api: Api) -> None:
    made(api, JOBS, job("a", suspend=False, run="60s", completionMode="Indexed"))
    (pod,) = api.until(lambda: [p for p in pods_of(api, "a") if p["status"]["phase"] == "Running"])
    api.ok("DELETE", api.path("pods", pod["metadata"]["name"]))

    def replaced() -> Any:
        return [p for p in pods_of(api, "a") if p["metadata"]["uid"] != pod["metadata"]["uid"]]

    (other,) = api.until(replaced)
    assert other["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0"
    api.until(lambda: api.ok("GET", api.path(JOBS, "a"))["status"].get("failed") == 1)


def test_a_deleted_pod_that_was_never_bound_fails_though_its_job_waits_for_its_end(api: Api) -> None:
    pod_spec = {"schedulingGates": [{"name": "x.y/z"}]}
    made(api, JOBS, job("a", suspend=False, pod=pod_spec, podReplacementPolicy="Failed"))
    (pod,) = api.until(lambda: pods_of(api, "a"))
    api.ok("DELETE", api.path("pods", pod["metadata"]["name"]))
    api.until(lambda: pod["metadata"]["uid"] not in {p["metadata"]["uid"] for p in pods_of(api, "a")})
    # Counted after it is let go.
    api.until(lambda: api.ok("GET", api.path(JOBS, "a"))["status"].get("failed") == 1)


def test_a_job_that_is_deleted_keeps_no_pod_for_its_count(api: Api) -> None:
    pod_spec = {"schedulingGates": [{"name": "x.y/z"}]}
    body = job("a", suspend=False, pod=pod_spec, podReplacementPolicy="Failed", meta={"finalizers": ["x.y/z"]})
    made(api, JOBS, body)
    api.until(lambda: pods_of(api, "a"))
    api.ok("DELETE", api.path(JOBS, "a"), propagationPolicy="Foreground")
    api.until(lambda: not pods_of(api, "a"))
    api.ok("PATCH", api.path(JOBS, "a"), {"metadata": {"finalizers": None}}, MERGE)
    api.until(lambda: api.call("GET", api.path(JOBS, "a"))[0] == 404)


@pytest.mark.parametrize(
    ("spec", "failed", "reason"),
    [
        ({"backoffLimitPerIndex": 1}, 4, "FailedIndexes"),
        ({"backoffLimitPerIndex": 0, "maxFailedIndexes": 0}, None, "MaxFailedIndexesExceeded"),
    ],
)
def test_an_index_that_fails_too_often_is_given_up(api: Api, spec: Object, failed: int | None, reason: str) -> None:
    body = job("a", suspend=False, pods=2, run="500ms", completionMode="Indexed", **spec)
    body["spec"]["template"]["metadata"]["annotations"]["kwok.x-k8s.io/fail"] = "true"
    made(api, JOBS, body)
    where = api.path(JOBS, "a")
    obj = api.until(lambda: condition(o := api.ok("GET", where), "Failed") == "True" and o)
    assert next(c for c in obj["status"]["conditions"] if c["type"] == "Failed")["reason"] == reason
    assert obj["spec"]["backoffLimit"] == 2**31 - 1
    if failed is not None:
        assert (obj["status"]["failed"], obj["status"]["failedIndexes"]) == (failed, "0,1")
        noted = [p["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] for p in pods_of(api, "a")]
        assert sorted(noted) == ["0", "0", "1", "1"]


def test_deleting_a_job_leaves_its_pods_unless_told(api: Api) -> None:
    made(api, JOBS, job("a", suspend=False, run="60s"))
    (pod,) = api.until(lambda: pods_of(api, "a"))
    api.ok("DELETE", api.path(JOBS, "a"))
    api.until(lambda: api.call("GET", api.path(JOBS, "a"))[0] == 404)
    left = api.until(
        lambda: (
            (p := api.ok("GET", api.path("pods", pod["metadata"]["name"]))) and "finalizers" not in p["metadata"] and p
        )
    )
    assert "ownerReferences" not in left["metadata"]
    made(api, JOBS, job("b", suspend=False, run="60s"))
    (pod,) = api.until(lambda: pods_of(api, "b"))
    api.ok("DELETE", api.path(JOBS, "b"), {"propagationPolicy": "Background"})
    api.until(lambda: api.call("GET", api.path("pods", pod["metadata"]["name"]))[0] == 404)


def test_gated_pods(api: Api) -> None:
    made(api, JOBS, job("a", suspend=False, pod={"schedulingGates": [{"name": "x.y/z"}], "nodeSelector": {"a": "b"}}))
    (pod,) = api.until(lambda: pods_of(api, "a"))
    where = api.path("pods", pod["metadata"]["name"])
    assert pod["status"]["conditions"][0]["reason"] == "SchedulingGated"
    answer = api.call("PATCH", where, {"spec": {"nodeSelector": {"a": "c"}}}, MERGE)
    assert refusal(answer) == (422, "Invalid")
    answer = api.call("PATCH", where, {"spec": {"schedulingGates": [{"name": "x.y/z"}, {"name": "x.y/other"}]}}, MERGE)
    assert refusal(answer) == (422, "Invalid")
    pin = {"spec": {"nodeSelector": {"c": "d"}, "schedulingGates": None}}
    obj = api.ok("PATCH", where, pin, MERGE)
    assert obj["spec"]["nodeSelector"] == {"a": "b", "c": "d"}
    told = api.until(
        lambda: (
            condition(o := api.ok("GET", where), "PodScheduled") == "False"
            and o["status"]["conditions"][0]["reason"] == "Unschedulable"
            and o
        )
    )
    assert told["status"]["conditions"][0]["message"].startswith("0/")
    answer = api.call("PATCH", where, {"spec": {"nodeSelector": {"e": "f"}}}, MERGE)
    assert refusal(answer) == (422, "Invalid")


def test_a_pod_may_name_its_node_by_field(api: Api) -> None:
    names = sorted(o["metadata"]["name"] for o in api.ok("GET", "/api/v1/nodes")["items"])
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [names[-1]]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    made(api, JOBS, job("a", suspend=False, pods=3, run="60s", pod={"affinity": affinity}))
    api.until(lambda: [p["spec"].get("nodeName") for p in pods_of(api, "a")] == [names[-1]] * 3)


def test_a_priority_class_that_is_not_there(api: Api) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"priorityClassName": "none", "containers": [{"name": "a", "image": "b"}]},
    }
    assert refusal(api.call("POST", api.path("pods"), body)) == (403, "Forbidden")


# Volumes


def test_claims_volumes_and_classes_are_defaulted(api: Api) -> None:
    wants = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}}
    kept = made(api, "persistentvolumeclaims", {**claim, "spec": {**wants, "storageClassName": ""}})
    assert (kept["spec"]["volumeMode"], kept["status"]) == ("Filesystem", {"phase": "Pending"})
    for left, field in (("accessModes", "spec.accessModes"), ("resources", "spec.resources[storage]")):
        spec = {key: value for key, value in wants.items() if key != left}
        other = {**claim, "metadata": {"name": "d"}, "spec": spec}
        answer = api.call("POST", api.path("persistentvolumeclaims"), other)
        assert refusal(answer) == (422, "Invalid")
        assert fields_of(answer) == {field}
    name = f"contract-{api.namespace}"
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    has = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    stored = api.ok("POST", "/api/v1/persistentvolumes", {**volume, "spec": has}, dryRun="All")
    assert (stored["spec"]["volumeMode"], stored["spec"]["persistentVolumeReclaimPolicy"]) == ("Filesystem", "Retain")
    assert stored["status"]["phase"] == "Pending"
    body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": "p"}
    kind = api.ok("POST", "/apis/storage.k8s.io/v1/storageclasses", body, dryRun="All")
    assert (kind["volumeBindingMode"], kind["reclaimPolicy"]) == ("Immediate", "Delete")


# JobSets


def jobset(name: str, *, suspend: bool = True, **replicated: Any) -> Object:
    template = {"spec": job("x", pods=2, run="60s")["spec"]}
    template["spec"].pop("suspend")
    jobs = [
        {"name": "driver", "replicas": 1, "template": template},
        {"name": "worker", "replicas": 2, "template": template, **replicated},
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"suspend": suspend, "replicatedJobs": jobs},
    }


def children(api: Api, name: str) -> list[Object]:
    found: list[Object] = api.ok("GET", api.path(JOBS), labelSelector=f"jobset.sigs.k8s.io/jobset-name={name}")["items"]
    return found


def test_a_jobset_makes_jobs_and_suspends_them(api: Api) -> None:
    made(api, JOBSETS, jobset("s"))
    jobs = api.until(lambda: len(found := children(api, "s")) == 3 and found)
    assert [j["metadata"]["name"] for j in jobs] == ["s-driver-0", "s-worker-0", "s-worker-1"]
    assert all(j["spec"]["suspend"] for j in jobs)
    worker = jobs[2]
    prefix = "jobset.sigs.k8s.io/"
    marks = {
        "jobset-name": "s",
        "replicatedjob-name": "worker",
        "restart-attempt": "0",
        "replicatedjob-replicas": "2",
        "global-replicas": "3",
        "job-index": "1",
        "job-global-index": "2",
        "group-name": "default",
        "group-replicas": "3",
        "job-group-index": "2",
    }
    for where in (worker["metadata"], worker["spec"]["template"]["metadata"]):
        for part in ("labels", "annotations"):
            found = {k.removeprefix(prefix): v for k, v in where[part].items() if k.startswith(prefix)}
            assert {"job-key", "jobset-uid"} <= found.keys()
            assert {
                k: v for k, v in found.items() if k not in ("job-key", "jobset-uid", "job-restart-attempt")
            } == marks
    assert worker["spec"]["completionMode"] == "Indexed"
    assert worker["spec"]["template"]["spec"]["subdomain"] == "s"
    where_set = api.path(JOBSETS, "s")
    api.until(lambda: condition(api.ok("GET", where_set), "Suspended") == "True")

    def counted() -> bool:
        status = api.ok("GET", where_set)["status"]["replicatedJobsStatus"]
        return {one["name"]: one["suspended"] for one in status} == {"driver": 1, "worker": 2}

    api.until(counted)


def test_a_jobset_keeps_old_pins(api: Api) -> None:
    made(api, JOBSETS, jobset("s"))
    where = api.path(JOBSETS, "s")
    api.until(lambda: len(children(api, "s")) == 3)
    at = "/spec/replicatedJobs/1/template/spec/template"
    start = [
        {"op": "replace", "path": "/spec/suspend", "value": False},
        {"op": "add", "path": f"{at}/spec/nodeSelector", "value": {"kubernetes.io/os": "linux-not"}},
    ]
    api.ok("PATCH", where, start, JSON_PATCH)
    api.until(lambda: all(not j["spec"]["suspend"] for j in children(api, "s")))
    api.until(lambda: condition(api.ok("GET", where), "Suspended") in ("False", None))
    worker = api.path(JOBS, "s-worker-0")
    assert api.ok("GET", worker)["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux-not"}
    restore = [
        {"op": "replace", "path": "/spec/suspend", "value": True},
        {"op": "remove", "path": f"{at}/spec/nodeSelector"},
    ]
    api.ok("PATCH", where, restore, JSON_PATCH)
    api.until(lambda: all(j["spec"]["suspend"] for j in children(api, "s")))
    api.until(
        lambda: all(condition(j, "Suspended") == "True" and not j["status"].get("active") for j in children(api, "s"))
    )
    start[1]["value"] = {"other": "pin"}
    api.ok("PATCH", where, start, JSON_PATCH)
    api.until(lambda: all(not j["spec"]["suspend"] for j in children(api, "s")))
    kept = api.ok("GET", worker)["spec"]["template"]["spec"]["nodeSelector"]
    assert kept == {"kubernetes.io/os": "linux-not", "other": "pin"}
    answer = api.call("PATCH", where, start, JSON_PATCH)
    assert answer[0] == 200  # nothing new
    start[1]["value"] = {"third": "pin"}
    answer = api.call("PATCH", where, start[1:], JSON_PATCH)
    assert (refusal(answer), fields_of(answer)) == ((422, "Invalid"), {"spec.replicatedJobs"})
    api.ok("DELETE", where)
    api.until(lambda: not children(api, "s"))


def test_policies_of_a_jobset_can_be_given_once(api: Api) -> None:
    obj = made(api, JOBSETS, jobset("s"))
    assert obj["spec"]["replicatedJobs"][0]["template"]["metadata"] == {}
    container = obj["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container == {"name": "main", "image": "busybox:1", "resources": {"limits": {"cpu": "1"}}}
    where = api.path(JOBSETS, "s")
    obj = api.ok("PATCH", where, {"spec": {"failurePolicy": {"maxRestarts": 3}}}, MERGE)
    assert obj["spec"]["failurePolicy"] == {"maxRestarts": 3, "restartStrategy": "Recreate"}
    for name, value in (("failurePolicy", {"maxRestarts": 4}), ("successPolicy", {"operator": "Any"})):
        answer = api.call("PATCH", where, {"spec": {name: value}}, MERGE)
        assert (refusal(answer), fields_of(answer)) == ((422, "Invalid"), {f"spec.{name}"})


def test_a_jobset_restarts_and_then_fails(api: Api) -> None:
    body = jobset("s", suspend=False)
    body["spec"]["failurePolicy"] = {"maxRestarts": 1}
    template = job("x", run="500ms", backoffLimit=0)["spec"]
    del template["suspend"]
    template["template"]["metadata"]["annotations"]["kwok.x-k8s.io/fail"] = "true"
    body["spec"]["replicatedJobs"] = [{"name": "w", "replicas": 1, "template": {"spec": template}}]
    made(api, JOBSETS, body)
    where = api.path(JOBSETS, "s")
    obj = api.until(lambda: condition(o := api.ok("GET", where), "Failed") == "True" and o)
    failed = next(c for c in obj["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "ReachedMaxRestarts"
    assert failed["message"] == "jobset failed due to reaching max number of restarts (first failed job: s-w-0)"
    assert (obj["status"]["restarts"], obj["status"]["restartsCountTowardsMax"]) == (1, 1)
    assert obj["status"]["terminalState"] == "Failed"
    (child,) = children(api, "s")
    assert child["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1"


def test_a_jobset_completes(api: Api) -> None:
    body = jobset("s", suspend=False)
    for replicated in body["spec"]["replicatedJobs"]:
        replicated["template"] = {
            "spec": {k: v for k, v in job("x", pods=1, run="500ms")["spec"].items() if k != "suspend"}
        }
    made(api, JOBSETS, body)
    where = api.path(JOBSETS, "s")
    obj = api.until(lambda: condition(o := api.ok("GET", where), "Completed") == "True" and o)
    assert obj["status"]["terminalState"] == "Completed"
    done = next(c for c in obj["status"]["conditions"] if c["type"] == "Completed")
    assert (done["reason"], done["message"]) == ("AllJobsCompleted", "jobset completed successfully")


# Other kinds that controllers need


def test_leases_are_taken_by_version(api: Api) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }
    plural = "leases.coordination.k8s.io/v1"
    obj = made(api, plural, lease)
    where = api.path(plural, "l")
    obj["spec"]["holderIdentity"] = "b"
    wins = []

    def take() -> None:
        wins.append(api.call("PUT", where, obj)[0])

    racers = [threading.Thread(target=take) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    # The first wins; what is equal to what is stored is no conflict only with the current version.
    assert min(wins) == 200
    assert sorted(set(wins)) in ([200], [200, 409])
    other = api.ok("GET", where)
    other["spec"]["holderIdentity"] = "c"
    assert api.call("PUT", where, other)[0] == 200
    other["spec"]["holderIdentity"] = "d"
    assert refusal(api.call("PUT", where, other)) == (409, "Conflict")


def test_events_have_two_forms(api: Api) -> None:
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": api.namespace},
        "type": "Normal",
        "reason": "Tested",
        "action": "Test",
        "note": "hello",
        "reportingController": "contract",
        "reportingInstance": "1",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": api.namespace},
    }
    obj = made(api, "events.events.k8s.io/v1", body)
    assert (obj["apiVersion"], obj["note"]) == ("events.k8s.io/v1", "hello")
    core = api.ok("GET", api.path("events", "e"))
    assert (core["message"], core["involvedObject"]["name"], core["reportingComponent"]) == ("hello", "p", "contract")
    found = api.ok("GET", api.path("events"), fieldSelector="involvedObject.name=p")["items"]
    assert [e["metadata"]["name"] for e in found] == ["e"]


def test_access_reviews(api: Api) -> None:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"group": "muster.dev", "resource": "workloads", "verb": "admit"}},
    }
    assert api.ok("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)["status"]["allowed"] is True
    other = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**body["spec"], "user": "tenant", "groups": ["tenants"]},
    }
    assert api.ok("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", other)["status"]["allowed"] is False


def test_a_token_that_nobody_has(server: Api) -> None:
    stranger = Api.__new__(Api)
    stranger.__dict__.update(server.__dict__, token="nobody")
    assert refusal(stranger.call("GET", "/api/v1/nodes")) == (401, "Unauthorized")


def test_the_sandbox_knows_the_shapes_of_this_server(server: Api) -> None:
    """`schemas.json` is what a real server publishes; the sandbox publishes it in a form that kubectl can explain."""
    if server.name == "sandbox":
        pytest.skip("asked of the real server only")
    if (minor := server.ok("GET", "/version")["minor"]) != VERSION["minor"]:
        pytest.skip(f"the sandbox plays another version than 1.{minor}")
    found = of_openapi(lambda name: server.ok("GET", "/openapi/v3/" + name.replace("__", "/")))
    known = {name: schema for name, schema in builtin().items() if not name.startswith("jobset.")}
    assert found.keys() == known.keys()
    assert [name for name in found if found[name] != known[name]] == []
