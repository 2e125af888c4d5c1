"""A controller that is newer than its kinds: what they lack is left out and said, and gangs run all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

from e2e.api_client import ApiError, Object
from e2e.control_plane import ControlPlane
from e2e.gangs import admitted, done, reason, teams
from e2e.installed import NAMES, Installed, job, jobset, ours, pod_template

WORKLOADS, QUEUES = "workloads.muster.dev", "clusterqueues.muster.dev"


def _without(definition: Object, field: str) -> None:
    """Take a field, as `status.claim` or `spec.podSets[].minCount`, and the rules that name it, out of a kind."""
    at = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    *above, last = field.split(".")
    _unruled(at, last)
    for name in above:
        at = at["properties"][name.removesuffix("[]")]
        at = at["items"] if name.endswith("[]") else at
    del at["properties"][last]


def _unruled(schema: Object, field: str) -> None:
    if rules := schema.get("x-kubernetes-validations"):
        schema["x-kubernetes-validations"] = [rule for rule in rules if field not in rule["rule"]]
    for below in (*schema.get("properties", {}).values(), schema.get("items")):
        if below:
            _unruled(below, field)


@contextmanager
def _older(cp: ControlPlane, lacks: Mapping[str, tuple[str, ...]]) -> Iterator[None]:
    """Kinds that lack these fields, and the newer ones again."""
    newer = {name: cp.get("customresourcedefinitions", name) for name in lacks}
    try:
        for name, fields in lacks.items():
            older = deepcopy(newer[name])
            for field in fields:
                _without(older, field)
            cp.replace(older)
        yield
    finally:
        for name, one in newer.items():
            one["metadata"]["resourceVersion"] = cp.get("customresourcedefinitions", name)["metadata"][
                "resourceVersion"
            ]
            cp.replace(one)


def _refused(cp: ControlPlane) -> bool:
    """Are the older kinds served? That takes the API server a moment."""
    gang = {"name": "w", "count": 2, "minCount": 1, "template": pod_template(1)}
    asked = ours("Workload", "asked", {"queueName": "main", "podSets": [gang]}, "team-a")
    try:
        cp.create(asked, dryRun="All", fieldValidation="Strict")
    except ApiError as error:
        return "unknown field" in str(error)
    return False


def test_kinds_that_are_older_than_the_controller_stop_no_gang(muster: Installed) -> None:
    cp = muster.cp
    teams(cp, {"team-a": 16})
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    lacks = {
        WORKLOADS: ("status.decision", "status.claim", "status.resourceRequests", "spec.podSets[].minCount"),
        QUEUES: ("status.flavorsUsage[].resources[].borrowed", "status.fairSharing"),
    }
    with _older(cp, lacks):
        cp.wait(partial(_refused, cp), 30, "the older kinds to be served")
        replica = muster.started()
        cp.apply([job("team-a", "runs", 1, seconds=None), jobset("team-a", "set", {"w": (1, 1)})])
        cp.wait(done(cp, "jobsets", "team-a", "set"), 60, "a JobSet to finish")
        fewer = job("team-a", "fewer", 2)
        fewer["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: "1"}
        cp.apply([job("team-a", "waits", 2), fewer])
        cp.wait(lambda: reason(cp, "team-a", "waits")[0], 30, "one that waits to be told why")
        cp.wait(
            lambda: cp.get("clusterqueues", "team-a")["status"]["pendingWorkloads"] == 1, 30, "the queue to be told"
        )
        # What it asks for is not forgotten: it would be admitted whole or not at all.
        told = cp.wait(
            lambda: [e["message"] for e in cp.list("events", "team-a") if e["reason"] == "Refused"], 30, "it to be told"
        )
        assert 'unknown field "spec.podSets[0].minCount"' in told[0]
        assert admitted(cp, "team-a", "runs")
        said = {(line["kind"], *line["lacks"]) for line in replica.lines() if "lacks" in line}
        assert {kind for kind, *_ in said} == {"Workload", "ClusterQueue"}
        lost = {field for _, *fields in said for field in fields}
        assert lost >= {"status.decision", "status.resourceRequests", "status.flavorsUsage.resources.borrowed"}
