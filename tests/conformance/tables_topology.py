"""Tables of topology: one flavor with a topology, some nodes, pod sets; asked of `capacity.place`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from admission.engine.capacity import Capacity, Placement, PlaceRequest, place
from admission.engine.model import (
    Admission,
    Domain,
    Flavor,
    Key,
    PodSet,
    PodSetAssignment,
    Requirement,
    Rules,
    Topology,
    TopologyAssignment,
)
from admission.jobs import values
from tests.conformance import objects
from tests.conformance.registry import Json, differences, table

TOPOLOGY = "default"


def _book(inputs: Json, levels: list[str]) -> Capacity:
    book = Capacity()
    book.put_topology(Topology(TOPOLOGY, tuple(levels)))
    for node in objects.nodes(inputs["nodes"]):
        book.put_node(node)
    for pod in objects.pods(inputs.get("pods")):
        book.put_pod(pod)
    return book


def _prior(book: Capacity, levels: list[str], kind: str, rows: list[Json] | None) -> list[Key]:
    """Charges of other gangs: what stands on a domain already."""
    keys = []
    for i, row in enumerate(rows or ()):
        domain_levels = levels[-len(row["Values"]) :]
        requests = {entry["name"]: int(entry["value"]) for entry in row["SinglePodRequests"]}
        assignment = TopologyAssignment(tuple(domain_levels), (Domain(tuple(row["Values"]), int(row["Count"])),))
        admission = Admission("q", (PodSetAssignment("main", (), (), int(row["Count"]), assignment),))
        key = (kind, str(i))
        book.charge(key, f"{kind}-{i}", admission, {"main": requests})
        keys.append(key)
    return keys


def _pod_set(row: Json) -> PodSet:
    affinity = row.get("nodeAffinity") or {}
    request = dict(row.get("topologyRequest") or {})
    if row.get("podSetGroupName"):
        request["podSetGroupName"] = row["podSetGroupName"]
    pod: Json = {"containers": [], "nodeSelector": row.get("nodeSelector") or {}}
    pod["tolerations"] = row.get("tolerations") or []
    if affinity:
        pod["affinity"] = {"nodeAffinity": affinity}
    raw: Json = {"name": row.get("podSetName", ""), "count": row["count"], "template": {"spec": pod}}
    if request:
        raw["topologyRequest"] = request
    pod_set = objects.gang([raw]).pod_sets[0]
    preferences = tuple(
        (
            int(term["weight"]),
            tuple(
                Requirement(need["key"], need["operator"], tuple(need.get("values") or ()))
                for need in term["preference"].get("matchExpressions") or ()
            ),
        )
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    )
    return replace(pod_set, name=row.get("podSetName", ""), shape=replace(pod_set.shape, preferences=preferences))


def _requests(rows: list[Json], flavor: Flavor) -> list[PlaceRequest]:
    return [
        PlaceRequest(
            pod_set=_pod_set(row),
            count=int(row["count"]),
            per_pod=tuple(sorted((name, int(amount)) for name, amount in (row.get("requests") or {}).items())),
            flavors=(flavor,),
        )
        for row in rows
    ]


def _json(assignment: TopologyAssignment) -> Json:
    return {
        "Levels": list(assignment.levels),
        "Domains": [{"Count": domain.count, "Values": list(domain.values)} for domain in assignment.domains],
    }


def _previous(named: Mapping[str, Any]) -> Admission | None:
    """The admission that a gang has, of the assignments of its pod sets (in Kueue's compressed form)."""
    sets = []
    for name, raw in named.items():
        assignment = values.topology_assignment(raw)
        count = sum(domain.count for domain in assignment.domains) if assignment is not None else 0
        sets.append(PodSetAssignment(name, (), (), count, assignment))
    return Admission("q", tuple(sets)) if sets else None


def _of_one_pod(workload: Json) -> bool:
    """The gang is one bare pod: it cannot move, and nothing asks for another place."""
    owners = workload["metadata"].get("ownerReferences") or ()
    grouped = (workload["metadata"].get("annotations") or {}).get("kueue.x-k8s.io/is-group-workload") == "true"
    return len(owners) == 1 and owners[0]["kind"] == "Pod" and not grouped


@table("TestFindTopologyAssignments")
def find_topology_assignments(case: Json) -> list[str]:
    inputs, rules = case["inputs"], objects.rules_of(case["config"])
    levels = inputs["levels"]
    book = _book(inputs, levels)
    _prior(book, levels, "own", inputs.get("priorOwnUsage"))
    _prior(book, levels, "other", inputs.get("priorFlavorUsage"))
    flavor = Flavor(
        "tas",
        node_labels=tuple(sorted((inputs.get("nodeLabels") or {}).items())),
        tolerations=values._tolerations(inputs.get("tolerations") or []),
        topology=TOPOLOGY,
    )
    workload = inputs.get("workload")
    lost: list[str] = []
    named = {
        row.get("podSetName", ""): row["previousAssignment"]
        for row in inputs["podSets"]
        if row.get("previousAssignment")
    }
    if workload is not None:
        status = workload.get("status") or {}
        lost = [node["name"] for node in status.get("unhealthyNodes") or ()]
        for row in (status.get("admission") or {}).get("podSetAssignments") or ():
            named[row["name"]] = row.get("topologyAssignment")
        if lost and _of_one_pod(workload) and "SkipReassignmentForPodOwnedWorkloads" in rules.gates:
            kept = _previous(named)
            assert kept is not None
            stays = {a.name: _json(a.topology) for a in kept.pod_sets if a.topology is not None}
            return _compare(case["expected"]["podSets"], stays)
    requests = _requests(inputs["podSets"], flavor)
    return _compare(case["expected"]["podSets"], _place(book, requests, rules, _previous(named), lost))


def _place(
    book: Capacity, requests: list[PlaceRequest], rules: Rules, previous: Admission | None, lost: list[str]
) -> dict[str, Any]:
    got = place(book, requests, rules=rules, previous=previous, lost=lost)
    if isinstance(got, Placement):
        return {name: _json(assignment) for name, assignment in got.items()}
    return {request.pod_set.name: got.message for request in requests}


def _compare(expected: list[Json], got: Mapping[str, Any]) -> list[str]:
    out = []
    for row in expected:
        name = row.get("podSetName", "")
        want: Any = row["wantAssignment"] if row.get("wantAssignment") else row.get("wantReason", "")
        if isinstance(want, dict):
            want = {"Levels": want["Levels"], "Domains": want.get("Domains") or []}
        out.extend(differences(want, got.get(name), name))
    return out


@table("TestFindTopologyAssignmentsMultiLayerReplacement")
def multi_layer_replacement(case: Json) -> list[str]:
    inputs, expected = case["inputs"], case["expected"]
    rules = objects.rules_of(case["config"])
    rules = replace(rules, gates=rules.gates | {"TASMultiLayerTopology"})
    levels = inputs.get("levels") or inputs["defaultLevels"]
    book = _book(inputs, levels)
    _prior(book, levels, "own", inputs.get("priorFlavorUsage"))
    row = {
        "podSetName": "main",
        "count": inputs["count"],
        "requests": inputs.get("requests") or {"cpu": 1000},
        "topologyRequest": inputs["topologyRequest"],
    }
    requests = _requests([row], Flavor("tas", topology=TOPOLOGY))
    previous = _previous({"main": inputs["existingTA"]})
    got = _place(book, requests, rules, previous, [inputs["unhealthyNode"]])
    want = {"podSetName": "main", "wantAssignment": expected["wantAssignment"], "wantReason": expected["wantReason"]}
    return _compare([want], got)
