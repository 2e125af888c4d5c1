"""The visibility API behind the real API server: its discovery, its authentication, its RBAC, its proxy."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from admission.cli import cli
from admission.names import Names
from admission.sandbox.play import free_port
from e2e.api_client import ApiError, condition
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted, reason, teams
from e2e.installed import HOME, NAMES, Installed, job, ours
from tests.docs.blocks import block

GROUP = f"visibility.{NAMES.group}/{NAMES.version}"
ROOT = f"/apis/{GROUP}"
API_SERVICE = f"{NAMES.version}.visibility.{NAMES.group}"


@contextlib.contextmanager
def aggregated(cp: ControlPlane, port: int, names: Names = NAMES) -> Iterator[None]:
    """What the chart makes, with a Service that leads to a process on this machine."""
    made = api_service(port, names)
    cp.apply([service(port), made])
    try:
        yield
    finally:
        cp.delete("apiservices", made["metadata"]["name"])
        cp.delete("services", "muster-web", HOME)


def service(port: int) -> dict[str, Any]:
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    meta = {"name": "muster-web", "namespace": HOME}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def api_service(port: int, names: Names = NAMES) -> dict[str, Any]:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{names.version}.visibility.{names.group}"},
        "spec": {
            "group": f"visibility.{names.group}",
            "version": names.version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": "muster-web", "namespace": HOME, "port": port},
        },
    }


def available(cp: ControlPlane) -> bool:
    return condition(cp.get("apiservices", API_SERVICE), "Available") == "True"


def let_view(cp: ControlPlane, user: str, namespace: str) -> None:
    """What the ClusterRole `view`, into which the role of the chart aggregates, gives to tenants."""
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    meta = {"name": f"{user}-views", "namespace": namespace}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta}
    cp.apply(binding | {"roleRef": ref, "subjects": [subject]})


def _told(cp: ControlPlane, name: str) -> Callable[[], bool]:
    return lambda: bool(reason(cp, "red", name)[0])


def pending(cp: ControlPlane, path: str, user: str = "admin") -> list[tuple[str, int, str, str]]:
    """(job, position, reason, message) as kubectl prints them."""
    body = json.loads(cp.kubectl("get", "--raw", f"{ROOT}/{path}/pendingworkloads", user=user))
    assert (body["kind"], body["apiVersion"]) == ("PendingWorkloadsSummary", GROUP)
    return [
        (i["metadata"]["ownerReferences"][0]["name"], i["positionInClusterQueue"], i["reason"], i["message"])
        for i in body["items"]
    ]


def commanded(cp: ControlPlane, user: str, *arguments: str) -> Any:
    """What a command answers to one of them, as JSON."""
    result = CliRunner().invoke(cli, [*arguments, "-o", "json", "--kubeconfig", str(cp.kubeconfig(user))])
    assert result.exit_code in (0, 1), f"{arguments}: {result.exit_code}\n{result.output}"
    return json.loads(result.stdout)


def standing(cp: ControlPlane, user: str, *arguments: str) -> list[tuple[str, int, str, str]]:
    """(job, position from 0, reason, message) of those that wait, as `muster jobs` lists them."""
    rows = commanded(cp, user, "jobs", *arguments)["rows"]
    return [(r["name"], r["position"] - 1, r["reason"], r["message"]) for r in rows if r["state"] == "waiting"]


def test_the_api_server_shows_where_pending_gangs_stand(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(2, labels={"gpu": "h100"})
    teams(cp, {"red": 16, "blue": 0})
    urgent = {"apiVersion": NAMES.api_version, "kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}}
    cp.apply(urgent | {"value": 1000})
    let_view(cp, "tenant", "red")
    ports = [free_port(), free_port()]
    with aggregated(cp, ports[0]):
        muster.started(config={"web": {"bindAddress": f"127.0.0.1:{ports[0]}"}})
        cp.create(job("red", "runs", pods=2, seconds=None))
        cp.wait(lambda: admitted(cp, "red", "runs"), 30, "the first gang to run")
        for name, labels in (("first", {}), ("second", {}), ("vip", {NAMES.priority_class_label: "urgent"})):
            cp.create(job("red", name, pods=2, labels=labels))
            cp.wait(_told(cp, name), 30, f"{name} to be told why it waits")
        cp.wait(lambda: available(cp), 60, "the APIService to be available")

        # Discovery, as kubectl reads it: the group is served, and takes no name away from our kinds.
        assert GROUP in cp.kubectl("api-versions").split()
        served = json.loads(cp.kubectl("get", "--raw", ROOT))["resources"]
        assert {one["name"] for one in served} == {"clusterqueues/pendingworkloads", "localqueues/pendingworkloads"}
        assert "red" in cp.kubectl("get", "clusterqueues", "-o", "name")

        # Order and reasons are the controller's; the reason is the text of the condition.
        told = pending(cp, "clusterqueues/red")
        assert [(name, at) for name, at, *_ in told] == [("vip", 0), ("first", 1), ("second", 2)]
        for name, _, word, message in told:
            assert (word, message) == reason(cp, "red", name)
        assert pending(cp, "clusterqueues/red", "admin") == pending(cp, "namespaces/red/localqueues/main")
        page = json.loads(cp.kubectl("get", "--raw", f"{ROOT}/clusterqueues/red/pendingworkloads?offset=1&limit=1"))
        assert [i["positionInClusterQueue"] for i in page["items"]] == [1]
        assert page["metadata"]["remainingItemCount"] == 1
        (short,) = page["items"][0]["numbers"]
        assert (short["resource"], short["requested"], short["nominal"]) == (GPU, "16", "16")

        for line in block("docs/page.md", "kubectl get --raw").text.replace("team-a", "red").splitlines():
            answered = json.loads(cp.kubectl(*shlex.split(line)[1:]))
            assert [i["positionInClusterQueue"] for i in answered["items"]] == (
                [] if "offset=40" in line else [0, 1, 2]
            )

        # A tenant asks about their own queue, and about nothing else.
        assert pending(cp, "namespaces/red/localqueues/main", "tenant") == told
        for path in ("clusterqueues/red", "namespaces/blue/localqueues/main"):
            with pytest.raises(AssertionError, match=r"Forbidden.*tenant.*pendingworkloads"):
                pending(cp, path, "tenant")
        # The commands tell the same, to both of them.
        for user, *where in (("tenant", "-n", "red"), ("admin", "-A")):
            assert standing(cp, user, *where) == told
            assert commanded(cp, user, "jobs", *where)["live"]
            why = commanded(cp, user, "why", "first", "-n", "red")
            assert (why["live"], why["standing"]["position"], why["standing"]["message"]) == (True, 2, told[1][3])
            (lack,) = why["lacks"]
            assert (lack["resource"], lack["requested"], lack["nominal"]) == (GPU, "16", "16")
        status, body = cp.raw("GET", f"{ROOT}/clusterqueues/nil/pendingworkloads")
        assert (status, json.loads(body)["reason"]) == (404, "NotFound")

        # A replica that does not lead says the same, from its own copies and what the leader wrote.
        muster.start(config={"web": {"bindAddress": f"127.0.0.1:{ports[1]}"}})
        cp.apply([service(ports[1]), api_service(ports[1])])

        def follows() -> bool:
            try:
                answer = json.loads(cp.kubectl("get", "--raw", f"{ROOT}/clusterqueues/red/pendingworkloads"))
            except (AssertionError, ApiError):
                return False
            return answer["live"] is False and len(answer["items"]) == len(told)

        cp.wait(follows, 60, "the second replica to answer")
        assert pending(cp, "clusterqueues/red") == told
        assert standing(cp, "tenant", "-n", "red") == told

        # Nobody there: the API server says so, and everything else goes on.
        for replica in muster.replicas:
            replica.stop()
        cp.wait(lambda: cp.raw("GET", f"{ROOT}/clusterqueues/red/pendingworkloads")[0] == 503, 60, "it to be gone")
        cp.create(ours("Cohort", "still-written", {}))
        listed = commanded(cp, "tenant", "jobs", "-n", "red")
        assert f"{NAMES.visibility_group} does not answer" in listed["silent"]
        assert (listed["live"], standing(cp, "tenant", "-n", "red")) == (False, told), "counted from the objects"

        # Why the chart leaves it out unless it is asked for: no namespace is deleted to the end meanwhile, once the API
        # server has noticed that it knows of the group from before.
        names = (f"closing-{n}" for n in itertools.count())

        def stuck() -> str:
            name = next(names)
            cp.namespace(name)
            cp.kubectl("delete", "namespace", name, "--wait=false")

            def told_or_gone() -> bool:
                found = cp.find("namespaces", name)
                return found is None or condition(found, "NamespaceDeletionDiscoveryFailure") == "True"

            cp.wait(told_or_gone, 60, f"{name} to be stuck or gone")
            return name if cp.find("namespaces", name) is not None else ""

        closing = cp.wait(stuck, 120, "a namespace to be stuck")
    cp.wait(lambda: cp.find("namespaces", closing) is None, 120, "the namespace to go, once the APIService is gone")
    assert commanded(cp, "tenant", "jobs", "-n", "red")["silent"] == "", "where it is not served nothing is said of it"
    assert standing(cp, "tenant", "-n", "red") == told
