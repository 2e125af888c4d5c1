"""Placement on the real control plane: what was decided is what kube-scheduler does, on good days and bad.

Random gangs of all shapes on mixed nodes; topology asked for by annotations; nodes that die, lose their GPUs or are
cordoned under running gangs; foreign pods that take the room between decision and binding. Judged by the API objects
and by the recorded event log. THOROUGH=1 runs 1,000 random gangs instead of 150.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import json
import os
import random  # noqa: TID251 - gangs of all shapes, by seed
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from admission.names import HOSTNAME_LABEL, MUSTER_GROUP
from e2e.api_client import Object, finished
from e2e.control_plane import ControlPlane
from e2e.event_log import DELETED, EventLog
from e2e.forked import SOURCES
from e2e.gangs import (
    GPU,
    WORKLOADS,
    admitted,
    chosen_nodes,
    done,
    ended,
    entry_of,
    reason,
    running_pods,
    teams,
    workload_of,
)
from e2e.installed import (
    NAMES,
    USER,
    Installed,
    cluster_queue,
    flavor,
    job,
    jobset,
    local_queue,
    ours,
    pod_template,
)
from e2e.invariants import figures
from tests.docs.blocks import block

GANGS = 1_000 if os.environ.get("THOROUGH") else 150
INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
SET, SET_INDEX = "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index"
TOPOLOGY = [{"nodeLabel": "net/block"}, {"nodeLabel": "net/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
NET = [flavor(labels={"gpu": "h100"}, topologyName="net"), ours("Topology", "net", {"levels": TOPOLOGY})]


# ---------------------------------------------------------------- what is asked of a run


def misplaced(log: EventLog) -> tuple[int, list[str]]:
    """(pods bound, those that are not where the reservation under which they were made had their rank)."""
    chosen: dict[str, dict[str, list[str]]] = {}
    bound: set[str] = set()
    strides: dict[tuple[str, str], int] = {}
    wrong = []
    log.catch_up()
    for entry in log.entries():
        obj = entry.object
        if entry.kind == "JobSet":
            for part in obj["spec"]["replicatedJobs"]:
                strides[entry.name, part["name"]] = int(part["template"]["spec"].get("parallelism", 1))
        if entry.kind == "Workload" and (obj.get("status") or {}).get("admission"):
            chosen[entry.uid] = chosen_nodes(obj)
        if entry.kind != "Pod" or entry.type == DELETED or entry.uid in bound or not obj["spec"].get("nodeName"):
            continue
        labels = obj["metadata"].get("labels", {})
        holder = labels.get(NAMES.workload_uid_label)
        if holder is None:
            continue
        bound.add(entry.uid)
        part = labels[NAMES.pod_set_label]
        rank = int(labels[INDEX])
        if SET in labels:
            name = f"{obj['metadata']['namespace']}/{labels['jobset.sigs.k8s.io/jobset-name']}"
            rank += int(labels[SET_INDEX]) * strides[name, labels[SET]]
        hosts = chosen.get(holder, {}).get(part, [])
        if rank >= len(hosts) or hosts[rank] != obj["spec"]["nodeName"]:
            wrong.append(f"{entry.name} (rank {rank}) is on {obj['spec']['nodeName']}, chosen were {hosts}")
    return len(bound), wrong


def double_booked(log: EventLog) -> list[str]:
    """Nodes whose reservations, at some revision, asked for more GPUs than they ever had."""
    size: dict[str, int] = {}
    held: dict[str, dict[str, int]] = {}
    out = []
    for entry in log.entries():
        if entry.kind == "Node":
            has = int(entry.object["status"]["allocatable"].get(GPU, 0))
            size[entry.name] = max(size.get(entry.name, 0), has)
        if entry.kind != "Workload":
            continue
        obj, taken = entry.object, collections.Counter[str]()
        status = obj.get("status") or {}
        ended = entry_of(obj, "Finished").get("status") == "True"
        if entry.type != DELETED and not ended and status.get("admission"):
            given = {one["name"]: one for one in status["admission"]["podSetAssignments"]}
            for part, hosts in chosen_nodes(obj).items():
                each = int(given[part].get("resourceUsage", {}).get(GPU, 0)) // max(1, len(hosts))
                taken.update({host: each * n for host, n in collections.Counter(hosts).items()})
        held[entry.uid] = dict(taken)
        total: collections.Counter[str] = collections.Counter()
        for amounts in held.values():
            total.update(amounts)
        out += [
            f"{entry.revision}: {n} has {size.get(n)}, {a} reserved" for n, a in total.items() if a > size.get(n, 0)
        ]
    return out


# ---------------------------------------------------------------- random gangs


def mixed_nodes(cp: ControlPlane, count: int) -> None:
    """Nodes of four sizes in two zones; some tainted, some with more room for pods than for GPUs, some cordoned, some
    lost."""
    rng = random.Random(5)
    nodes = []
    for i in range(count):
        gpus, cpu, memory = rng.choice([(8, 96, "1Ti"), (8, 128, "2Ti"), (4, 32, "128Gi"), (2, 16, "120Gi")])
        size = {"cpu": str(cpu), "memory": memory, "pods": rng.choice(["110", "110", "6"]), GPU: str(gpus)}
        size |= {"ephemeral-storage": "500Gi", "hugepages-2Mi": "4Gi" if i % 4 == 1 else "0"}
        labels = {"gpu": "h100", "zone": f"z{i % 2}", "size": str(gpus), "net/block": f"b{i // 75}"}
        spec: dict[str, Any] = {}
        if i % 6 == 0:
            spec["taints"] = [{"key": "reserved", "value": "yes", "effect": "NoSchedule"}]
        if i % 10 == 3:
            spec["taints"] = [*spec.get("taints", ()), {"key": "soft", "effect": "PreferNoSchedule"}]
        if i % 12 == 5:
            spec["taints"] = [*spec.get("taints", ()), {"key": "pool", "effect": "NoExecute"}]
        if i % 50 == 7:
            spec["unschedulable"] = True
        name = f"node-{i}"
        meta = {"name": name, "labels": {**labels, "net/rack": f"r{i // 15}", "kubernetes.io/hostname": name}}
        nodes.append({"metadata": meta, "spec": spec, "status": {"capacity": size, "allocatable": size}})
    names = cp.add_node_objects(nodes)
    for name in names[41::100]:
        cp.set_node_ready(name, False)


def background(cp: ControlPlane, count: int) -> None:
    """Pods that are not ours, wherever kube-scheduler likes them."""
    cp.namespace("others")
    rng = random.Random(6)
    pods = []
    for i in range(count):
        template = pod_template(rng.choice([0, 0, 1, 2]), None)
        asks = template["spec"]["containers"][0]["resources"]["requests"]
        asks["cpu"] = str(rng.choice([1, 3, 9]))
        template["spec"]["containers"][0]["resources"].pop("limits")
        if GPU in asks:
            template["spec"]["containers"][0]["resources"]["limits"] = {GPU: asks[GPU]}
        meta = {**template["metadata"], "name": f"other-{i}", "namespace": "others"}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})
    cp.create_all(pods)
    cp.wait(lambda: all(p["spec"].get("nodeName") for p in cp.list("pods", "others")), 60, "the others to be placed")


def dressed(rng: random.Random, pods: int, name: str) -> dict[str, Any]:
    """A pod template with some of what decides about nodes."""
    gpus = rng.choice([0, 1, 1, 2, 4, 8] if pods <= 16 else [0, 1, 1, 2])
    template = pod_template(gpus, rng.choice([1, 2, 4]))
    asks = template["spec"]["containers"][0]["resources"]
    asks["requests"] = {**asks["requests"], "cpu": str(rng.choice([1, 2, 5, 8])), "memory": rng.choice(["1Gi", "9Gi"])}
    asks["limits"] = {GPU: asks["requests"][GPU]} if GPU in asks["requests"] else {}
    spec = template["spec"]
    template["metadata"]["labels"] = {"gang": name}
    wants: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        spec["tolerations"] = [{"key": "reserved", "operator": "Exists"}]
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": rng.choice(["z0", "z1"])}
    if rng.random() < 0.2:
        wants.append({"key": "size", "operator": rng.choice(["In", "NotIn"]), "values": ["8"] if gpus > 4 else ["2"]})
    if rng.random() < 0.15:
        wants.append({"key": "size", "operator": "Gt", "values": ["3"]})
    if rng.random() < 0.1:
        wants.append({"key": "metadata.none", "operator": "DoesNotExist"})
    if wants:
        term = {"nodeSelectorTerms": [{"matchExpressions": wants}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    if rng.random() < 0.15 and pods <= 24:
        own = {"labelSelector": {"matchLabels": {"gang": name}}, "topologyKey": "kubernetes.io/hostname"}
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [own]}
        spec["affinity"] = {**spec.get("affinity", {}), "podAntiAffinity": apart}
    if rng.random() < 0.1:
        spec["tolerations"] = [*spec.get("tolerations", ()), {"key": "pool", "operator": "Exists"}]
    if rng.random() < 0.1 and pods <= 16:
        asks["requests"]["hugepages-2Mi"] = asks["limits"]["hugepages-2Mi"] = "1Gi"
    if rng.random() < 0.1:
        asks["requests"]["ephemeral-storage"] = "90Gi"
    if rng.random() < 0.1 and pods <= 24:
        spec["containers"][0]["ports"] = [{"containerPort": 7777, "hostPort": 7777}]
    return template


def random_gangs(count: int) -> Iterator[Object]:
    for n in range(count):
        rng = random.Random(1000 + n)
        pods = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
        if rng.random() < 0.6:
            yield job("team-a", f"gang-{n}", pods, template=dressed(rng, pods, f"gang-{n}"))
            continue
        sets = rng.randint(1, 3)
        each = max(1, pods // sets)
        value = jobset("team-a", f"gang-{n}", {f"s{i}": (rng.randint(1, 2), max(1, each // 2)) for i in range(sets)})
        for i, part in enumerate(value["spec"]["replicatedJobs"]):
            part["template"]["spec"]["template"] = dressed(rng, each, f"gang-{n}-{i}")
        yield value


@pytest.mark.alone
def test_random_gangs_land_where_they_were_sent(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    mixed_nodes(cp, 300)
    background(cp, 200)
    quota: dict[str, int | str] = {GPU: 100_000, "cpu": 10**6, "memory": "1000Ti"}
    quota |= {"ephemeral-storage": "1000Ti", "hugepages-2Mi": "1000Ti"}
    cp.namespace("team-a")
    cp.apply(NET)
    cp.apply([cluster_queue("team-a", quota), local_queue("team-a", "team-a")])
    # With the lease that a cluster has: an API server under this load is slow.
    muster.started(config={"leaderElection": {}}, tuning={})
    began = time.monotonic()
    cp.create_all(list(random_gangs(GANGS)))
    told_at = began

    def settled() -> bool:
        """All are done; or what waits waits although nothing runs, and says why."""
        nonlocal told_at
        jobs = [o for kind in ("jobs", "jobsets") for o in cp.list(kind, "team-a") if not _child(o)]
        assert len(jobs) == GANGS
        open_ones = [o["metadata"]["name"] for o in jobs if not finished(o)]
        if time.monotonic() - told_at > 15:
            told_at = time.monotonic()
            runs = sum(not finished(o) and not o["spec"].get("suspend") for o in jobs)
            print(f"{told_at - began:5.0f} s: {GANGS - len(open_ones)} of {GANGS} done, {runs} run", flush=True)
        if not open_ones:
            return True
        if any(not finished(o) and not o["spec"].get("suspend") for o in jobs):
            return False
        return all(reason(cp, "team-a", name)[0] == "TopologyPlacementFailed" for name in open_ones)

    cp.wait(settled, 120 + 8 * GANGS, f"{GANGS} gangs to be through", every=max(1.0, GANGS / 100))
    took = time.monotonic() - began

    def unfinished() -> list[Object]:
        return [o for o in cp.list(WORKLOADS, "team-a") if not entry_of(o, "Finished")]

    # The last job is done a moment before its Workload says so.
    cp.wait(
        lambda: all(entry_of(o, "QuotaReserved").get("status") != "True" for o in unfinished()),
        30,
        "the Workloads of the jobs that are done to be finished",
    )
    waiting = unfinished()
    bound, wrong = misplaced(log)
    said = figures(log)
    print(
        f"\n{GANGS} gangs, {bound} pods bound in {took:.0f} s, {said.starts} starts, {said.evictions} evictions; "
        f"{len(waiting)} gangs never fit; longest Unschedulable {said.max_unschedulable:.1f} s"
    )
    for one in waiting:
        print("  ", one["metadata"]["name"], entry_of(one, "QuotaReserved").get("message", ""))
    assert not wrong, wrong[:5]
    assert bound > 5 * GANGS
    # On a starved machine a node may be given up; then the time its pods were unschedulable says nothing.
    assert said.max_unschedulable <= 5 or said.evictions, said
    assert not said.partial_gangs
    others = [
        o
        for o in cp.list(WORKLOADS, "team-a")
        if (entry_of(o, "Evicted").get("reason") or "NodeFailures") != "NodeFailures"
    ]
    assert not others, others[:3]
    told = [entry_of(one, "QuotaReserved")["message"] for one in waiting]
    # Nothing runs, so all nodes are empty: it would not fit them, or only with those that are tainted or cordoned.
    never = ("would not fit if they were empty", "with none of them kept out, and empty, they could take")
    assert all(any(text in message for text in never) for message in told), told
    assert len(waiting) <= GANGS // 5, "too many random gangs can never fit"


def _child(obj: Object) -> bool:
    return bool(obj["metadata"].get("ownerReferences"))


# ---------------------------------------------------------------- topology


def network(cp: ControlPlane, racks: int = 8, per_rack: int = 4) -> dict[str, tuple[str, str]]:
    """Racks of nodes of 8 GPUs, two racks a block, for team-a, whose quota is no limit; node -> (block, rack).

    The names of the nodes say nothing."""
    where = {}
    size = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
    nodes = []
    for rack in range(racks):
        for i in range(per_rack):
            name, block = f"n-{(rack * per_rack + i) * 37 % 101}", f"b{rack // 2}"
            where[name] = (block, f"r{rack}")
            meta = {"name": name, "labels": {"gpu": "h100", "net/block": block, "net/rack": f"r{rack}"}}
            nodes.append({"metadata": meta, "status": {"capacity": size, "allocatable": size}})
    cp.add_node_objects(nodes)
    teams(cp, {"team-a": 1_000})
    cp.apply(NET)
    return where


def racks_of(cp: ControlPlane, where: dict[str, tuple[str, str]], name: str) -> list[str]:
    """Of the pods of a gang, as chosen for it; `where` as by `network`."""
    found = workload_of(cp, "team-a", name)
    assert found is not None
    return [where[host][1] for part in chosen_nodes(found).values() for host in part]


def with_topology(value: Object, **asked: str) -> Object:
    """With annotations `podset-<asked>` on all its pod templates."""
    notes = {f"{NAMES.group}/podset-{key.replace('_', '-')}": said for key, said in asked.items()}
    spec = value["spec"]
    parts = spec.get("replicatedJobs")
    for holder in [part["template"]["spec"] for part in parts] if parts else [spec]:
        holder["template"]["metadata"].setdefault("annotations", {}).update(notes)
    return value


def test_topology_by_annotations_on_jobs_and_jobsets(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp)
    muster.started()
    gangs = [
        with_topology(job("team-a", "rack", 4, seconds=None), required_topology="net/rack"),
        with_topology(job("team-a", "block", 8, gpus=4, seconds=None), required_topology="net/block"),
        with_topology(jobset("team-a", "sets", {"w": (2, 2)}, seconds=None), preferred_topology="net/rack"),
        with_topology(job("team-a", "wide", 6, seconds=None), preferred_topology="net/rack"),
        with_topology(
            job("team-a", "slices", 4, seconds=None),
            required_topology="net/block",
            slice_required_topology="net/rack",
            slice_size="2",
        ),
    ]
    for gang in gangs:
        cp.apply([gang])
        name = gang["metadata"]["name"]
        cp.wait(lambda n=name: admitted(cp, "team-a", n), 30, f"{name} to be admitted")  # type: ignore[misc]
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 26, 30, "all pods to be bound")
    at: dict[str, list[tuple[str, str]]] = {}
    for gang in gangs:
        found = workload_of(cp, "team-a", gang["metadata"]["name"])
        assert found is not None
        hosts = [host for part in chosen_nodes(found).values() for host in part]
        at[gang["metadata"]["name"]] = [where[host] for host in hosts]
    print("\n" + "\n".join(f"{name:7} {[rack for _, rack in places]}" for name, places in at.items()))
    assert len(set(at["rack"])) == 1
    assert len({block for block, _ in at["block"]}) == 1
    assert len(set(at["sets"])) == 1
    assert len(set(at["wide"])) == 2
    assert len({block for block, _ in at["slices"]}) == 1
    assert all(at["slices"][i] == at["slices"][i + 1] for i in (0, 2))
    for name, places in at.items():
        changes = sum(a != b for a, b in itertools.pairwise(places))
        assert changes == len(set(places)) - 1, (
            f"{name}: neighbours in rank are not neighbours in the network: {places}"
        )
    bound, wrong = misplaced(log)
    assert (bound, wrong) == (26, [])
    cp.apply([with_topology(job("team-a", "never", 5, seconds=None), required_topology="net/rack")])
    cp.wait(lambda: reason(cp, "team-a", "never")[0] == "TopologyPlacementFailed", 30, "the reason to be told")
    assert "net/rack" in reason(cp, "team-a", "never")[1]


def test_flavors_of_different_topologies_are_tried_in_order(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    kind = {}
    for gpu, racks in (("a40", [""] * 2), ("a100", ["x0", "x0", "x1", "x1"]), ("h100", ["y0", "y0", "y0", "y1"])):
        for i, rack in enumerate(racks):
            labels = {"gpu": gpu} | ({"net/rack": rack} if rack else {})
            labels |= {"net/block": "z0"} if gpu == "h100" else {}
            cp.add_nodes(1, labels=labels, prefix=gpu, start=i)
            kind[f"{gpu}-{i}"] = (gpu, rack)
    teams(cp, {"team-a": 1})
    order = ("a40", "a100", "h100")
    cp.apply([ours("Topology", "flat", {"levels": TOPOLOGY[1:]}), ours("Topology", "deep", {"levels": TOPOLOGY})])
    named = {"a40": {}, "a100": {"topologyName": "flat"}, "h100": {"topologyName": "deep"}}
    cp.apply([flavor(name, {"gpu": name}, **named[name]) for name in order])
    quotas = [{"name": name, "resources": [{"name": GPU, "nominalQuota": "100"}]} for name in order]
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    cp.apply([ours("ClusterQueue", "team-a", {"namespaceSelector": {}, "resourceGroups": groups})])
    muster.started()
    mixed = jobset("team-a", "mixed", {"lead": (1, 1), "work": (1, 2)}, seconds=None)
    for part, level in zip(mixed["spec"]["replicatedJobs"], ("net/block", "net/rack"), strict=True):
        notes = part["template"]["spec"]["template"]["metadata"].setdefault("annotations", {})
        notes[NAMES.required_topology_annotation] = level
    gangs = [
        mixed,
        with_topology(job("team-a", "rack", 3, seconds=None), required_topology="net/rack"),
        with_topology(job("team-a", "wide", 2, seconds=None), preferred_topology="net/rack"),
        with_topology(job("team-a", "loose", 1, seconds=None), unconstrained_topology="true"),
        job("team-a", "any", 1, seconds=None),
    ]
    got = {}
    for gang in gangs:
        cp.apply([gang])
        name = gang["metadata"]["name"]
        cp.wait(lambda n=name: admitted(cp, "team-a", n), 30, f"{name} to be admitted")  # type: ignore[misc]
        found = workload_of(cp, "team-a", name)
        assert found is not None
        got[name] = {part: [kind[host] for host in hosts] for part, hosts in chosen_nodes(found).items()}
    h, a = ("h100", "y0"), ("a100", "x0")
    assert got == {
        "mixed": {"lead": [("h100", "y1")], "work": [a, a]},
        "rack": {"main": [h, h, h]},
        "wide": {"main": [("a100", "x1")] * 2},
        "loose": {"main": [("a40", "")]},
        "any": {"main": [("a40", "")]},
    }
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 10, 30, "all pods to be bound")
    assert misplaced(log) == (10, [])
    cp.apply([with_topology(job("team-a", "never", 1, seconds=None), required_topology="net/zone")])
    cp.wait(lambda: "topology deep has no level net/zone" in reason(cp, "team-a", "never")[1], 30, "the reason")
    assert "a40: flavor has no topology" in reason(cp, "team-a", "never")[1]


def test_the_map_says_who_sits_where_and_what_fits(muster: Installed) -> None:
    cp = muster.cp
    for rack in ("r1", "r2"):
        cp.add_nodes(3, labels={"gpu": "h100", "net/block": "b1", "net/rack": rack}, prefix=rack)
    teams(cp, {"team-a": 48})
    cp.apply(NET)
    muster.started()

    def runs(name: str, pods: int) -> None:
        mine = "batch.kubernetes.io/job-name"
        cp.wait(
            lambda: sum(p["metadata"]["labels"][mine] == name for p in running_pods(cp, "team-a")) == pods, 40, name
        )

    for name, gpus in (("eval", 1), ("tune", 4), ("notebook", 2)):
        cp.apply([job("team-a", name, 1, gpus=gpus, seconds=None)])
        runs(name, 1)
    before = _map(cp)
    cp.apply([with_topology(job("team-a", "train", 3, seconds=None), required_topology="net/rack")])
    runs("train", 3)
    after = _map(cp)
    print(f"\n{before}\n{after}")
    small = {line.split()[0] for line in before.splitlines() if "#" in line}
    assert len(small) == 1, "small jobs share a node"
    taken = {line.split()[0] for line in after.splitlines() if "train" in line}
    assert len(taken) == 3
    assert not taken & small
    assert len({node[:2] for node in taken}) == 1


def _map(cp: ControlPlane) -> str:
    """What `muster nodes` prints."""
    command = [sys.executable, "-m", "admission.cli", "nodes", "--kubeconfig", str(cp.kubeconfig())]
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=SOURCES, env=environment)
    return done.stdout


# ---------------------------------------------------------------- slots


def slots(cp: ControlPlane) -> dict[tuple[str, ...], Object]:
    """Live pods in team-a by (job or set, replicated job, index of the child job, completion index)."""
    out: dict[tuple[str, ...], Object] = {}
    for pod in running_pods(cp, "team-a"):
        labels = pod["metadata"]["labels"]
        name = labels.get("jobset.sigs.k8s.io/jobset-name") or labels["batch.kubernetes.io/job-name"]
        if "deletionTimestamp" not in pod["metadata"]:
            out[name, labels.get(SET, ""), labels.get(SET_INDEX, ""), labels[INDEX]] = pod
    return out


def test_pods_that_are_made_again_get_their_slot_with_no_write_of_ours(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    network(cp, racks=4, per_rack=8)
    muster.started(tuning={})
    ignore = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
    restarted = jobset("team-a", "restarted", {"w": (2, 2)}, gpus=4, seconds=None, failurePolicy={"maxRestarts": 3})
    blocking = {"maxRestarts": 3, "restartStrategy": "BlockingRecreate"}
    blocked = jobset("team-a", "blocked", {"w": (2, 1)}, gpus=4, seconds=None, failurePolicy=blocking)
    coordinated = jobset("team-a", "coordinated", {"lead": (1, 1), "work": (2, 2)}, gpus=4, seconds=None)
    coordinated["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    coordinated["spec"]["coordinator"] = {"replicatedJob": "lead", "jobIndex": 0, "podIndex": 0}
    depending = jobset("team-a", "depending", {"data": (1, 1), "work": (1, 3)}, gpus=4, seconds=None)
    depending["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "data", "status": "Ready"}]
    gangs = [
        job("team-a", "limit", 3, gpus=4, seconds=None, backoffLimit=4),
        job("team-a", "by-index", 3, gpus=4, seconds=None, backoffLimit=None, backoffLimitPerIndex=2),
        job("team-a", "failed-first", 3, gpus=4, seconds=None, podReplacementPolicy="Failed", podFailurePolicy=ignore),
        restarted,
        blocked,
        with_topology(coordinated, required_topology="net/rack", group_name="all"),
        depending,
    ]
    for gang in gangs[1:2]:
        del gang["spec"]["backoffLimit"]
    for gang in gangs:
        cp.apply([gang])
    cp.wait(lambda: len(slots(cp)) == 9 + 4 + 2 + 5 + 4, 90, "all pods to run", describe=lambda: sorted(slots(cp)))
    before = slots(cp)
    racks = {network_of(cp, pod) for slot, pod in before.items() if slot[0] == "coordinated"}
    assert len(racks) == 1, "leader and workers share a rack"
    mark = cp.audit_mark()
    # One pod of each: deleted, evicted, and of the set that starts anew all are made again.
    for name in ("limit", "by-index"):
        cp.delete("pods", before[name, "", "", "1"]["metadata"]["name"], "team-a", gracePeriodSeconds=0)
    evicted = before["failed-first", "", "", "2"]["metadata"]["name"]
    meta = {"name": evicted, "namespace": "team-a"}
    path = f"/api/v1/namespaces/team-a/pods/{evicted}/eviction"
    cp.request("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    for name in ("restarted", "blocked"):
        cp.delete("pods", before[name, "w", "1", "0"]["metadata"]["name"], "team-a", gracePeriodSeconds=0)
    gone = {
        *((name, "", "", "1") for name in ("limit", "by-index")),
        ("failed-first", "", "", "2"),
        *(slot for slot in before if slot[0] in ("restarted", "blocked")),
    }

    def again() -> bool:
        now = slots(cp)
        return now.keys() == before.keys() and all(
            now[slot]["metadata"]["uid"] != before[slot]["metadata"]["uid"] for slot in gone
        )

    cp.wait(again, 150, "all of them to be made again", describe=lambda: sorted(before.keys() - slots(cp).keys()))
    now = slots(cp)
    moved = {s: (before[s]["spec"]["nodeName"], p["spec"]["nodeName"]) for s, p in now.items()}
    assert all(was == at for was, at in moved.values()), {s: at for s, at in moved.items() if at[0] != at[1]}
    written = {key[1:]: n for key, n in cp.audit_counts(USER, since=mark).items() if key[2] not in ("events", "leases")}
    assert not {key: n for key, n in written.items() if key[1] in ("jobs", "jobsets", "pods", "workloads")}, written
    assert misplaced(log)[1] == []


def network_of(cp: ControlPlane, pod: Object) -> str:
    return str(cp.get("node", pod["spec"]["nodeName"])["metadata"]["labels"]["net/rack"])


def test_both_exact_forms_place_alike(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    network(cp, racks=2, per_rack=4)
    muster.started()
    at: list[dict[tuple[str, ...], str]] = []
    for form in ("ranks", "gates"):
        gangs = [
            job("team-a", "one", 4, gpus=4, seconds=None, backoffLimit=6),
            jobset("team-a", "set", {"a": (2, 2), "b": (1, 2)}, gpus=2, seconds=None),
        ]
        for part in gangs[1]["spec"]["replicatedJobs"]:
            part["template"]["spec"]["backoffLimit"] = 6
        for gang in gangs:
            if form == "gates":
                gang["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "true"}
            cp.apply([gang])
            name = gang["metadata"]["name"]
            cp.wait(lambda n=name: admitted(cp, "team-a", n), 30, f"{name} to be admitted")  # type: ignore[misc]
        cp.wait(lambda: len(slots(cp)) == 10, 40, "all pods to be bound")
        pods = slots(cp)
        assert {p["metadata"]["annotations"][NAMES.pin_form_annotation] for p in pods.values()} == {form}
        at.append({slot: pod["spec"]["nodeName"] for slot, pod in pods.items()})
        cp.delete("jobs", "one", "team-a", propagationPolicy="Background")
        cp.delete("jobsets", "set", "team-a", propagationPolicy="Background")
        cp.wait(lambda: not cp.list("pods", "team-a") and not cp.list(WORKLOADS, "team-a"), 60, "them to be gone")
    assert at[0] == at[1]
    assert misplaced(log)[1] == []


def test_what_is_added_to_pods_when_they_are_made_is_charged_before(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(2, gpus=8, cpu="4", labels={"gpu": "h100", "zone": "a"}, prefix="a")
    cp.add_nodes(2, gpus=8, cpu="4", labels={"gpu": "h100", "zone": "b"}, prefix="b")
    teams(cp, {"team-a": 64})
    cp.apply([cluster_queue("team-a", {GPU: 64, "cpu": 64})])
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "boxed"},
        "handler": "boxed",
    }
    cp.apply({**runtime, "overhead": {"podFixed": {"cpu": "2"}}, "scheduling": {"nodeSelector": {"zone": "b"}}})
    limits = [{"type": "Container", "defaultRequest": {"cpu": "3"}}]
    limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "d", "namespace": "team-a"}}
    muster.started()
    boxed, plain = pod_template(1, None, runtimeClassName="boxed"), pod_template(1, None)
    for template, cpu in ((boxed, "1"), (plain, None)):
        requests = template["spec"]["containers"][0]["resources"]["requests"]
        requests.pop("cpu", None)
        requests.update({"cpu": cpu} if cpu else {})
    cp.apply({**limit_range, "spec": {"limits": limits}})
    cp.apply([job("team-a", "boxed", 2, template=boxed), job("team-a", "plain", 2, template=plain)])
    cp.wait(lambda: live_by_gang(cp) == {"boxed": 2, "plain": 2}, 90, "both to run")
    hosts = {name: chosen_nodes(workload_of(cp, "team-a", name) or {})["main"] for name in ("boxed", "plain")}
    assert sorted(hosts["boxed"]) == ["b-0", "b-1"], "one core and two of overhead: one to a node of four"
    assert sorted(hosts["plain"]) == ["a-0", "a-1"], "three cores by the LimitRange: one to a node, beside nobody"
    # Who waits follows a change of it, and who runs keeps what its pods have.
    cp.apply({**limit_range, "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500"}}]}})
    cp.apply(job("team-a", "later", 2, template=plain))
    cp.wait(lambda: reason(cp, "team-a", "later")[0] == "ExceedsMaxQuota", 30, "500 cores to be told of")
    cp.apply({**limit_range, "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}})
    cp.wait(lambda: live_by_gang(cp) == {"boxed": 2, "plain": 2, "later": 2}, 60, "one core to fit")


def volume(name: str, claim: str, key: str, *values: str, **spec: Any) -> Object:
    """A PersistentVolume that nodes with these values of a label reach, for a claim of team-a ("": for any)."""
    here = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    owner = {"claimRef": {"namespace": "team-a", "name": claim}} if claim else {}
    has = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}, **owner}
    spec = {**has, "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def claim(name: str, storage_class: str = "") -> Object:
    meta = {"name": name, "namespace": "team-a"}
    wants = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {**wants, "storageClassName": storage_class}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def mounting(name: str, pods: int, *claims: str) -> Object:
    mounts = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return job("team-a", name, pods, template=pod_template(8, None, volumes=mounts))


def test_gangs_go_where_their_volumes_are_and_wait_for_those_that_are_not_there(
    muster: Installed,
) -> None:
    """Bound beforehand, bound by kube-scheduler with the first pod, made by JobSet's controller; and one missing."""
    cp, log = muster.cp, muster.log
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100", "zone": "a"}, prefix="a")
    cp.add_nodes(5, gpus=8, labels={"gpu": "h100", "zone": "b"}, prefix="b")
    teams(cp, {"team-a": 72})
    local = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "muster-local"}}
    local |= {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    made = [
        volume("muster-data", "data", HOSTNAME_LABEL, "a-3", "b-1"),
        volume("muster-spare", "spare", HOSTNAME_LABEL, "a-0", "b-3"),
        volume("muster-late", "late", "zone", "b"),
        volume("muster-scratch", "scratch-set", HOSTNAME_LABEL, "b-0", "b-4"),
        volume("muster-disk", "", HOSTNAME_LABEL, "b-2", storageClassName="muster-local"),
        local,
    ]
    try:
        cp.apply([*made, claim("data"), claim("spare"), claim("disk", "muster-local")])
        muster.started()
        mounts = pod_template(8, None)
        mounts["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
        own = {"metadata": {"name": "scratch"}, "spec": claim("scratch")["spec"]}
        gang = jobset("team-a", "set", {"w": (1, 2)}, seconds=None, volumeClaimPolicies=[{"templates": [own]}])
        gang["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = mounts
        cp.apply(
            [mounting("late", 1, "spare", "late"), mounting("bound", 2, "data"), mounting("first", 1, "disk"), gang]
        )
        cp.wait(lambda: live_by_gang(cp) == {"bound": 2, "first": 1, "set-w-0": 2}, 90, "three of the gangs to run")

        def hosts(name: str) -> set[str]:
            given = chosen_nodes(workload_of(cp, "team-a", name) or {})
            return {host for nodes in given.values() for host in nodes}

        assert hosts("bound") == {"a-3", "b-1"}
        assert hosts("first") == {"b-2"}, "the one volume of its class is there"
        assert cp.get("pvc", "disk", "team-a")["spec"]["volumeName"] == "muster-disk", "by kube-scheduler"
        assert hosts("set") == {"b-0", "b-4"}
        told = ("AdmissionGated", "PersistentVolumeClaim late does not exist in namespace team-a; its pods name it")
        cp.wait(lambda: reason(cp, "team-a", "late") == told, 30, "the other to be told what it waits for")
        assert "admission" not in (workload_of(cp, "team-a", "late") or {})["status"]
        cp.apply(claim("late"))
        cp.wait(lambda: live_by_gang(cp)["late"] == 1, 60, "it to run once its claim is bound")
        assert hosts("late") == {"b-3"}, "where both of its volumes are"
    finally:
        for one in made:
            cp.delete("storageclasses" if one is local else "persistentvolumes", one["metadata"]["name"])
    assert log is not None
    assert figures(log).max_unschedulable == 0
    assert misplaced(log)[1] == []


def test_a_node_that_takes_no_more_volumes_is_left_for_another_and_a_claim_of_one_pod_has_one(
    muster: Installed,
) -> None:
    """How many volumes a node takes nobody knows but kube-scheduler."""
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"}, prefix="a")
    teams(cp, {"team-a": 72})
    driver = {"name": "full.example.com", "nodeID": "a-0", "allocatable": {"count": 0}}
    full = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "a-0"}}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOncePod"], "csi": {"driver": "full.example.com"}}
    spec["csi"]["volumeHandle"] = "alone"  # type: ignore[index]
    owner = {"claimRef": {"namespace": "team-a", "name": "alone"}}
    held = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "muster-full"}}
    asked = claim("alone")
    asked["spec"]["accessModes"] = ["ReadWriteOncePod"]
    try:
        cp.apply([{**full, "spec": {"drivers": [driver]}}, {**held, "spec": spec | owner}, asked])
        muster.started(
            config={
                "podsUnschedulableTimeout": "2s",
                "waitForPodsReady": {"requeuingStrategy": {"backoffBaseSeconds": 1}},
            }
        )
        cp.apply(mounting("train", 1, "alone"))
        cp.wait(lambda: live_by_gang(cp) == {"train": 1}, 90, "it to run")
        assert chosen_nodes(workload_of(cp, "team-a", "train") or {})["main"] == ["a-1"]
        (avoided,) = (workload_of(cp, "team-a", "train") or {})["status"]["avoidNodes"]
        assert (avoided["node"], "though it has room" in avoided["reason"]) == ("a-0", True)
        cp.apply(mounting("next", 1, "alone"))
        told = "PersistentVolumeClaim alone is ReadWriteOncePod, and Pod train-0-"
        cp.wait(lambda: reason(cp, "team-a", "next")[1].startswith(told), 30, "the next to be told that one has it")
        cp.delete("jobs", "train", "team-a", propagationPolicy="Background")
        cp.wait(lambda: admitted(cp, "team-a", "next"), 60, "the next to have it")
    finally:
        cp.delete("csinodes", "a-0")
        cp.delete("persistentvolumes", "muster-full")


def test_what_somebody_adds_to_pods_as_they_are_made_is_counted_once_it_is_seen(muster: Installed) -> None:
    """As those do who inject sidecars: nobody can charge that before."""
    cp = muster.cp
    cp.add_nodes(1, gpus=8, cpu="8", labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    cp.apply([cluster_queue("team-a", {GPU: 64, "cpu": 64})])
    extra = """[JSONPatch{op: "add", path: "/spec/containers/0/resources/requests/cpu", value: "6"}]"""
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
            "objectSelector": {"matchLabels": {"inject": "yes"}},
        },
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": extra}}],
    }
    policy = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "e2e-inject"}}
    template = pod_template(1, None)
    template["metadata"]["labels"] = {"inject": "yes"}
    template["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1", "cpu": "1"}, "limits": {GPU: "1"}}
    try:
        cp.create({**policy, "kind": "MutatingAdmissionPolicy", "spec": spec})
        cp.create({**policy, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": "e2e-inject"}})
        muster.started()

        def injects() -> bool:
            probe = {"apiVersion": "v1", "kind": "Pod", **template}
            probe["metadata"] = {**template["metadata"], "name": "probe", "namespace": "team-a"}
            made = cp.create(probe, dryRun="All")
            return bool(made["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "6")

        cp.wait(injects, 30, "the policy to hold")
        cp.apply([job("team-a", "first", 1, template=template)])
        cp.wait(lambda: live_by_gang(cp)["first"] == 1, 60, "it to run")
        # By what was charged there would be room for seven cores more.
        plain = pod_template(1, None)
        plain["spec"]["containers"][0]["resources"] = {"requests": {GPU: "1", "cpu": "3"}, "limits": {GPU: "1"}}
        cp.apply([job("team-a", "second", 1, template=plain)])
        cp.wait(lambda: reason(cp, "team-a", "second")[0] == "TopologyPlacementFailed", 30, "the other to wait")
        given = (workload_of(cp, "team-a", "first") or {})["status"]["admission"]["podSetAssignments"]
        assert given[0]["resourceUsage"]["cpu"] == "1", "what it has of quota stays"
    finally:
        for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            cp.delete(kind, "e2e-inject")


EXCLUSIVE, BY_SELECTOR = "alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector"


def exclusive(name: str, sets: dict[str, tuple[int, int]], key: str = "net/rack", **notes: str) -> Object:
    value = jobset("team-a", name, sets, gpus=4, seconds=None)
    value["metadata"]["annotations"] = {EXCLUSIVE: key, **notes}
    return value


def test_child_jobs_of_exclusive_placement_have_their_domains_to_themselves(muster: Installed) -> None:
    """JobSet's own webhooks add to these pods, and JobSet's controller watches them: all agree with what was chosen."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=6, per_rack=2)
    muster.started()

    def racks(name: str) -> list[str]:
        return racks_of(cp, where, name)

    def runs(*names: str) -> bool:
        """With as many pods bound as were asked for."""
        if not all(admitted(cp, "team-a", name) for name in names):
            return False
        there = collections.Counter(p["metadata"]["labels"][JOBSET_NAME] for p in running_pods(cp, "team-a"))
        return all(there[name] == len(racks(name)) for name in names)

    # Leaders and workers, three child jobs, in racks of their own; a Job may stand beside them, a JobSet may not.
    first = exclusive("first", {"lead": (1, 1), "work": (2, 3)})
    first["spec"]["failurePolicy"] = {"maxRestarts": 2}
    replaced = exclusive("gated", {"work": (1, 3)})
    replaced["metadata"]["annotations"][NAMES.replace_lost_pods_annotation] = "true"
    replaced["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 3
    for gang in (first, replaced):
        cp.apply([gang])
        cp.wait(lambda n=gang["metadata"]["name"]: runs(n), 60, "its leaders, then all its pods, to be bound")  # type: ignore[misc]
    lead, *work = racks("first")
    assert work[:3] == [work[0]] * 3
    assert work[3:] == [work[3]] * 3
    own = {lead, work[0], work[3], *racks("gated")}
    assert len(own) == 4
    forms = {p["metadata"]["annotations"][NAMES.pin_form_annotation] for p in running_pods(cp, "team-a")}
    assert forms == {"ranks", "gates"}
    follower = next(p for p in running_pods(cp, "team-a") if p["metadata"]["labels"][INDEX] == "1")
    assert follower["spec"]["nodeSelector"]["net/rack"] == where[follower["spec"]["nodeName"]][1], "by JobSet's webhook"
    cp.apply([jobset("team-a", "plain", {"w": (1, 2)}, gpus=4, seconds=None)])
    cp.wait(lambda: runs("plain"), 60, "a JobSet that is not exclusive to run")
    assert not own & set(racks("plain"))
    cp.apply([exclusive("third", {"w": (2, 1)})])
    cp.wait(lambda: reason(cp, "team-a", "third")[0] == "TopologyPlacementFailed", 30, "one rack too few to be told")
    assert "1 of 6 hold" in reason(cp, "team-a", "third")[1], reason(cp, "team-a", "third")
    cp.delete("jobsets", "plain", "team-a")
    cp.wait(lambda: runs("third"), 60, "the third to get the rack that was left")
    assert not own & set(racks("third"))
    # Started anew by JobSet, each pod gets its slot again; paused and resumed, a gang finds another in its rack.
    before = slots(cp)
    hit = before["first", "work", "1", "2"]
    cp.delete("pods", hit["metadata"]["name"], "team-a", gracePeriodSeconds=0)

    def anew() -> bool:
        now = {slot: pod for slot, pod in slots(cp).items() if slot[0] == "first"}
        return len(now) == 7 and all(p["metadata"]["uid"] != before[s]["metadata"]["uid"] for s, p in now.items())

    cp.wait(anew, 60, "all of the set to be made again")
    now = slots(cp)
    assert all(pod["spec"]["nodeName"] == before[slot]["spec"]["nodeName"] for slot, pod in now.items())
    (rack,) = set(racks("gated"))
    cp.patch("jobsets", "gated", {"metadata": {"labels": {NAMES.pause_label: "true"}}}, namespace="team-a")
    cp.apply([exclusive("mover", {"w": (1, 2)})])
    cp.wait(lambda: runs("mover"), 60, "another to take the rack of one that was paused")
    assert set(racks("mover")) == {rack}
    cp.patch("jobsets", "gated", {"metadata": {"labels": {NAMES.pause_label: None}}}, namespace="team-a")
    cp.wait(lambda: "0 of 6 hold" in reason(cp, "team-a", "gated")[1], 30, "it to wait for a rack of its own")
    cp.delete("jobsets", "third", "team-a")
    cp.wait(lambda: runs("gated"), 60, "it to start in another rack")
    assert rack not in racks("gated")
    # Nodes labelled for each child job beforehand; then JobSet's webhooks leave the pods alone.
    cp.delete("jobsets", "first", "team-a")
    mine = {node: rack for node, (_, rack) in where.items() if rack in (lead, work[0])}
    for node, rack in mine.items():
        child = 0 if rack == work[0] else 1
        labels = {"alpha.jobset.sigs.k8s.io/namespaced-job": f"team-a_named-w-{child}"}
        cp.patch("node", node, {"metadata": {"labels": labels}})
    cp.apply([exclusive("named", {"w": (2, 3)}, **{BY_SELECTOR: "true"})])
    cp.wait(lambda: runs("named"), 60, "each child job to run on its own nodes")
    assert racks("named") == [work[0]] * 3 + [lead] * 3
    log.catch_up()
    bound, wrong = misplaced(log)
    print(f"\n{bound} pods of exclusive child jobs and their neighbours bound, all where they were sent")
    assert not wrong
    assert figures(log).evictions == 1, "the one that was paused"


# ---------------------------------------------------------------- whom pods of others keep away


def keeps_away(app: str, key: str, *namespaces: str) -> Object:
    """Required anti-affinity to pods of this app."""
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    more = {"namespaces": list(namespaces)} if namespaces else {}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{**term, **more}]}}


def test_pods_that_keep_others_away_are_heeded(muster: Installed) -> None:
    """kube-scheduler reads required anti-affinity both ways: what stands there keeps away whom it selects."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=3, per_rack=2)
    muster.started()

    def racks(name: str) -> set[str]:
        return set(racks_of(cp, where, name))

    def llm(name: str, pods: int, *, twin: bool = False) -> Object:
        template = pod_template(8, None)
        template["metadata"]["labels"] = {"app": "twin" if twin else "llm"}
        if twin:
            template["spec"]["affinity"] = keeps_away("twin", "net/rack")
        return job("team-a", name, pods, template=template)

    def runs(**pods: int) -> bool:
        return live_by_gang(cp) == pods

    # Somebody's service wants no training of this kind in its rack. It takes no GPU, and others may come.
    cp.namespace("others")
    service = pod_template(0, None)["spec"]
    service |= {"affinity": keeps_away("llm", "net/rack", "team-a"), "nodeSelector": {"net/rack": "r0"}}
    meta = {"name": "service", "namespace": "others", "labels": {"app": "service"}}
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": service})
    cp.wait(lambda: cp.get("pods", "service", "others")["spec"].get("nodeName"), 30, "the service to be bound")
    cp.apply([llm("first", 4)])
    cp.wait(lambda: runs(first=4), 60, "a gang to run in the other racks")
    assert racks("first") == {"r1", "r2"}
    cp.apply([llm("second", 2)])
    cp.wait(
        lambda: "anti-affinity of other pods" in reason(cp, "team-a", "second")[1], 30, "the next to be told why not"
    )
    print("\n" + reason(cp, "team-a", "second")[1])
    cp.delete("pods", "service", "others", gracePeriodSeconds=0)
    cp.wait(lambda: runs(first=4, second=2), 60, "it to run when the service is gone")
    assert racks("second") == {"r0"}
    # Two gangs of one template that spreads its pods over racks keep off each other, too.
    for name in ("first", "second"):
        cp.delete("jobs", name, "team-a")
    cp.apply([llm("one", 2, twin=True)])
    cp.wait(lambda: runs(one=2), 60, "the first of two twins to run")
    cp.apply([llm("other", 1, twin=True)])
    cp.wait(lambda: runs(one=2, other=1), 60, "the other one to run in the rack that is left")
    assert not racks("one") & racks("other")
    assert not misplaced(log)[1]
    said = figures(log)
    assert not said.evictions
    assert said.max_unschedulable <= 5


def test_a_job_that_names_its_node_starts_there_or_waits(muster: Installed) -> None:
    """With or without an index: the API server takes no pod with a node and a gate."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=2, per_rack=1)
    node = max(where)
    muster.started()
    for name, mode in (("indexed", "Indexed"), ("plain", "NonIndexed")):
        template = pod_template(2, None, nodeName=node)
        cp.apply([job("team-a", name, 2, template=template, completionMode=mode)])
        cp.wait(lambda n=name: live_by_gang(cp).get(n) == 2, 60, f"{name} to run")  # type: ignore[misc]
    assert {pod["spec"]["nodeName"] for pod in running_pods(cp, "team-a")} == {node}
    cp.apply([job("team-a", "last", 1, template=pod_template(2, None, nodeName=node), completionMode="NonIndexed")])
    cp.wait(lambda: reason(cp, "team-a", "last")[0] == "TopologyPlacementFailed", 30, "the next to be told of no room")


def test_a_held_jobset_goes_where_its_owner_has_it_go_at_last(muster: Installed) -> None:
    """JobSet's controller makes its Jobs while it is held, and takes out of them nothing that was taken out of it."""
    cp = muster.cp
    network(cp, racks=2, per_rack=1)
    muster.started()
    value = jobset("team-a", "set", {"w": (1, 2)}, gpus=4, seconds=None)
    spec = value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"net/rack": "none"}
    cp.apply(value)
    cp.wait(lambda: cp.find("jobs", "set-w-0", "team-a"), 30, "its Job to be made")
    cp.wait(lambda: reason(cp, "team-a", "set")[0], 30, "it to be told why it waits")
    del spec["nodeSelector"]
    cp.apply(value)
    cp.wait(lambda: live_by_gang(cp) == {"set-w-0": 2}, 60, "it to run")


def test_a_pod_that_keeps_away_the_pods_of_a_job_by_its_name_is_heeded(muster: Installed) -> None:
    """Of another tenant, too: one that asks for nothing would have each job of that name started, never placed, and
    evicted, again and again."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=2, per_rack=1)
    cp.namespace("others")
    muster.started()

    def keeps_train_away(name: str, **more: Any) -> None:
        selector = {"matchLabels": {"batch.kubernetes.io/job-name": "train"}}
        term = {"topologyKey": "net/rack", "labelSelector": selector, **more}
        spec = pod_template(0, None)["spec"] | {"nodeSelector": {"net/rack": "r0"}}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "others"}, "spec": spec})
        cp.wait(lambda: cp.get("pods", name, "others")["spec"].get("nodeName"), 30, "the pod to be bound")

    keeps_train_away("of-its-own-namespace")
    cp.apply([job("team-a", "train", 2, seconds=None)])
    cp.wait(lambda: live_by_gang(cp) == {"train": 2}, 60, "the job to run beside it")
    cp.delete("jobs", "train", "team-a", propagationPolicy="Foreground")
    cp.wait(lambda: cp.find("jobs", "train", "team-a") is None, 60, "the job to be gone")
    keeps_train_away("of-all-namespaces", namespaceSelector={})
    cp.apply([job("team-a", "train", 2, seconds=None)])
    cp.wait(lambda: "anti-affinity of other pods" in reason(cp, "team-a", "train")[1], 30, "it to be told why it waits")
    cp.apply([job("team-a", "other", 2, seconds=None)])
    cp.wait(lambda: live_by_gang(cp) == {"other": 2}, 60, "one of another name to run")
    assert set(racks_of(cp, where, "other")) == {"r0", "r1"}
    said = figures(log)
    assert not said.evictions
    assert said.max_unschedulable <= 5


def test_pods_of_others_that_a_gangs_own_rules_select_are_heeded(muster: Installed) -> None:
    """They ask for nothing themselves; kube-scheduler counts them all the same."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=3, per_rack=2)
    for name, rack in (("web", "r0"), ("hub", "r2")):
        meta = {"name": name, "namespace": "team-a", "labels": {"app": name}}
        spec = {**pod_template(0, None)["spec"], "nodeSelector": {"net/rack": rack}}
        cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    cp.wait(lambda: all(one["spec"].get("nodeName") for one in cp.list("pods", "team-a")), 30, "others to be bound")
    muster.started()

    def gang(name: str, pods: int, app: str, rule: str) -> Object:
        template = pod_template(8, None)
        template["metadata"]["labels"] = {"app": app}
        asked = keeps_away(app, "net/rack")["podAntiAffinity"]
        template["spec"]["affinity"] = {rule: asked}
        return job("team-a", name, pods, template=template)

    def runs(**pods: int) -> bool:
        live = [one for one in running_pods(cp, "team-a") if "deletionTimestamp" not in one["metadata"]]
        jobs = [one["metadata"]["labels"].get("batch.kubernetes.io/job-name") for one in live]
        return collections.Counter(one for one in jobs if one) == pods

    cp.apply([gang("apart", 3, "web", "podAntiAffinity"), gang("near", 2, "hub", "podAffinity")])
    cp.wait(lambda: runs(near=2), 60, "the one that goes where its like is")
    assert set(racks_of(cp, where, "near")) == {"r2"}
    cp.wait(lambda: "or pods of others" in reason(cp, "team-a", "apart")[1], 30, "the other to be told why not")
    print("\n" + reason(cp, "team-a", "apart")[1])
    cp.delete("jobs", "near", "team-a")
    cp.delete("pods", "web", "team-a", gracePeriodSeconds=0)
    cp.wait(lambda: runs(apart=3), 60, "it to run when what kept it away is gone")
    assert len(set(racks_of(cp, where, "apart"))) == 3
    assert not misplaced(log)[1]
    said = figures(log)
    assert not said.evictions
    assert said.max_unschedulable <= 5


def test_pods_of_gangs_whose_nodes_kube_scheduler_chose_are_heeded(muster: Installed) -> None:
    """By those whose own rules select them; and a JobSet's by others that select whatever a Job has made."""
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=2, per_rack=2)
    labels = {"pool": "spot", "net/rack": "r0"}
    cp.add_nodes(1, gpus=8, labels=labels, prefix="spot")
    cp.apply([flavor("spot", {"pool": "spot"}, elastic=True), cluster_queue("spot", {GPU: 8}, "spot")])
    cp.apply(local_queue("team-a", "spot", "spot"))
    muster.started()

    def gang(name: str, pods: int, queue: str, **spec: Any) -> Object:
        template = pod_template(8, None, **spec)
        template["metadata"]["labels"] = {"app": "web"}
        made = job("team-a", name, pods, template=template)
        made["metadata"]["labels"][NAMES.queue_label] = queue
        return made

    cp.apply(gang("cheap", 1, "spot"))
    cp.wait(lambda: live_by_gang(cp) == {"cheap": 1}, 60, "one on an elastic flavor to run")
    cp.apply(gang("apart", 1, "main", affinity=keeps_away("web", "net/rack")))
    cp.wait(lambda: live_by_gang(cp) == {"cheap": 1, "apart": 1}, 60, "the one that keeps off its like")
    assert racks_of(cp, where, "apart") == ["r1"]
    cp.delete("jobs", "apart", "team-a", propagationPolicy="Background")
    cp.wait(lambda: live_by_gang(cp) == {"cheap": 1}, 60, "it to be gone")
    spec = pod_template(0, None)["spec"] | {"nodeSelector": {"gpu": "h100", "net/rack": "r0"}}
    selector = {"matchExpressions": [{"key": "batch.kubernetes.io/job-name", "operator": "Exists"}]}
    term = {"labelSelector": selector, "topologyKey": HOSTNAME_LABEL, "namespaces": ["team-a"]}
    spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cp.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": "default"}, "spec": spec})
    cp.wait(lambda: cp.get("pods", "alone", "default")["spec"].get("nodeName"), 30, "the pod to be bound")
    cp.apply(jobset("team-a", "set", {"w": (1, 3)}, seconds=None))
    cp.wait(lambda: live_by_gang(cp) == {"cheap": 1, "set-w-0": 3}, 60, "the JobSet to run")
    hosts = set(chosen_nodes(workload_of(cp, "team-a", "set") or {})["w"])
    assert cp.get("pods", "alone", "default")["spec"]["nodeName"] not in hosts
    said = figures(log)
    assert not said.evictions
    assert said.max_unschedulable <= 5


def test_a_pod_that_is_alone_is_spread_and_takes_ports_as_kube_scheduler_has_it(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    cp.add_nodes(1, labels={"gpu": "h100"}, prefix="bare")
    cp.add_nodes(1, labels={"gpu": "h100", "zone": "a"}, prefix="zoned")
    teams(cp, {"team-a": 64})
    muster.started()
    cp.namespace("others")
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dns", "namespace": "others"}}
    spec = {**pod_template(0, None)["spec"], "nodeSelector": {"zone": "a"}}
    spec["containers"][0]["ports"] = [{"containerPort": 53, "hostPort": 53, "protocol": "TCP"}]
    cp.create({**other, "spec": spec})
    cp.wait(lambda: cp.get("pods", "dns", "others")["spec"].get("nodeName"), 30, "the other to be bound")

    def spread(name: str, **selected: str) -> Object:
        constraint = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        rules = [{**constraint, "labelSelector": {"matchLabels": selected}}]
        template = pod_template(1, None, topologySpreadConstraints=rules)
        template["metadata"]["labels"] = {"app": "web"}
        template["spec"]["containers"][0]["ports"] = [{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]
        return job("team-a", name, 1, template=template)

    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    cp.apply([job("team-a", "claims", 1, template=pod_template(1, None, resourceClaims=claims))])
    told = "a claim that pods share is not counted"
    cp.wait(lambda: told in reason(cp, "team-a", "claims")[1], 30, "it to be told why not")
    cp.apply([spread("alone", **{"batch.kubernetes.io/job-name": "alone"}), spread("counted", app="web")])
    cp.wait(lambda: live_by_gang(cp) == {"alone": 1}, 60, "the one that nobody else is counted with to run")
    assert chosen_nodes(workload_of(cp, "team-a", "alone") or {})["main"] == ["zoned-0"]
    cp.wait(lambda: "topologyKey zone" in reason(cp, "team-a", "counted")[1], 30, "the other to be told why not")
    assert figures(log).max_unschedulable == 0


# ---------------------------------------------------------------- nodes that die


def live_by_gang(cp: ControlPlane) -> collections.Counter[str]:
    pods = [p for p in running_pods(cp, "team-a") if "deletionTimestamp" not in p["metadata"]]
    return collections.Counter(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] for pod in pods)


def partial_after(log: EventLog, lost: set[str], detected: float, bound_s: float) -> list[str]:
    """Gangs of which, `bound_s` after the loss was seen, some pods still ran beside others on dead nodes."""
    pods: dict[str, Object] = {}
    for entry in log.entries():
        if entry.kind != "Pod" or NAMES.workload_uid_label not in entry.object["metadata"].get("labels", {}):
            continue
        if entry.at > detected + bound_s:
            break
        if entry.type == DELETED:
            pods.pop(entry.uid, None)
        else:
            pods[entry.uid] = entry.object
    by_gang: dict[str, list[Object]] = {}
    for pod in pods.values():
        by_gang.setdefault(pod["metadata"]["labels"][NAMES.workload_uid_label], []).append(pod)
    out = []
    for uid, mine in by_gang.items():
        active = [p for p in mine if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]
        dead = [p for p in mine if p["spec"].get("nodeName") in lost]
        alive = [p for p in active if p["spec"].get("nodeName") not in lost]
        if dead and alive and not all("deletionTimestamp" in p["metadata"] for p in dead):
            out.append(uid)
    return out


def test_lost_nodes_take_whole_gangs_and_these_start_again_elsewhere(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    cp.add_nodes(32, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 320})
    muster.started(config={"nodeLossGracePeriod": "6s"})
    sizes = {f"gang-{n}": 1 + n % 2 for n in range(20)}
    cp.create_all([job("team-a", name, pods, seconds=None) for name, pods in sizes.items()])
    cp.wait(lambda: live_by_gang(cp) == collections.Counter(sizes), 60, "20 gangs to run")
    held = {name: chosen_nodes(workload_of(cp, "team-a", name) or {})["main"] for name in sizes}
    # Two newcomers wait for nodes: whoever lost one goes before them.
    cp.create_all([job("team-a", f"later-{n}", 3, seconds=None) for n in range(2)])
    cp.wait(lambda: reason(cp, "team-a", "later-0")[0] == "TopologyPlacementFailed", 30, "newcomers to wait")
    lost = {held["gang-1"][0], held["gang-5"][1], held["gang-9"][0]}
    hit = {name for name, hosts in held.items() if lost & set(hosts)}
    began = time.monotonic()
    for node in sorted(lost):
        cp.set_node_ready(node, False, wait=False)
    cp.wait(lambda: all(entry_of(workload_of(cp, "team-a", n), "Evicted") for n in hit), 30, "the gangs to be evicted")
    detected = time.monotonic()
    for name in sorted(hit):
        entry = entry_of(workload_of(cp, "team-a", name), "Evicted")
        assert entry["reason"] == "NodeFailures", entry
    for name in set(sizes) - hit:
        assert admitted(cp, "team-a", name), f"{name} lost no node"
    # 29 nodes are left for 30 pods, and what the dead pods held counts as free after the grace period.
    room = 32 - len(lost) - sum(sizes[name] for name in set(sizes) - hit)
    back = {name for name in hit if sizes[name] <= room}
    assert back

    def moved() -> dict[str, list[str]]:
        """Who of those that were hit is admitted, and where, off the dead nodes."""
        found = {n: workload_of(cp, "team-a", n) or {} for n in hit if admitted(cp, "team-a", n)}
        hosts = {n: chosen_nodes(w).get("main", []) for n, w in found.items() if w["status"].get("admission")}
        return {n: at for n, at in hosts.items() if not lost & set(at)}

    many = min(len(hit), room // 2)
    cp.wait(
        lambda: len(moved()) == many,
        60,
        f"{many} of {sorted(hit)} to be admitted again",
        describe=lambda: {n: (workload_of(cp, "team-a", n) or {}).get("status", {}).get("conditions") for n in hit},
    )
    again = time.monotonic()
    assert not admitted(cp, "team-a", "later-0")
    new = moved()
    for name, at in new.items():
        kept = [(was, now) for was, now in zip(held[name], at, strict=True) if was not in lost]
        assert all(was == now for was, now in kept), f"{name} was on {held[name]} and is on {at}"
    cp.wait(lambda: all(live_by_gang(cp)[n] == sizes[n] for n in new), 30, "they run again")
    log.catch_up()
    assert not partial_after(log, lost, detected, 3.0)
    assert not double_booked(log)
    stuck = [p for p in cp.list("pods", "team-a") if p["spec"].get("nodeName") in lost]
    print(
        f"\n3 of 32 nodes lost under 20 gangs: {len(hit)} hit, all evicted after {detected - began:.1f} s, "
        f"{len(new)} back after {again - began:.1f} s with {len(stuck)} pods stuck on dead nodes"
    )
    for node in sorted(lost):
        cp.set_node_ready(node, True)
    cp.wait(lambda: all(admitted(cp, "team-a", n) for n in hit), 60, "all of them to be admitted again")
    log.catch_up()
    assert not double_booked(log)


def test_nodes_that_are_silent_for_a_moment_take_nobody_along(muster: Installed) -> None:
    """As all of them are when an API server comes back, or the network: for longer than one alone may be, too."""
    cp, log = muster.cp, muster.log
    assert log is not None
    names = cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    muster.started(config={"nodeLossGracePeriod": "12s"})
    cp.apply([job("team-a", "runs", 2, seconds=None)])
    cp.wait(lambda: live_by_gang(cp)["runs"] == 2, 60, "it to run")
    before = {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")}

    def together(ready: bool) -> None:
        """Each takes its own time, and they come and go at one moment."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: cp.set_node_ready(name, ready, wait=False), names))

    together(False)
    cp.apply([job("team-a", "waits", 1)])
    cp.wait(lambda: "2 not ready" in reason(cp, "team-a", "waits")[1], 20, "the controller to have seen it")
    time.sleep(8)
    assert not entry_of(workload_of(cp, "team-a", "runs"), "Evicted")
    together(True)
    cp.wait(lambda: "not ready" not in reason(cp, "team-a", "waits")[1], 20, "the controller to have seen them back")
    log.catch_up()
    assert figures(log).evictions == 0
    assert {pod["metadata"]["uid"] for pod in running_pods(cp, "team-a")} == before


def test_a_taint_or_a_node_that_is_deleted_moves_whole_gangs_and_fails_nobody(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    cp.add_nodes(5, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    muster.started(config={"nodeLossGracePeriod": "3s"})
    _, _, _, _, taint = shlex.split(block("docs/tasks/nodes.md", "kubectl taint nodes NODE...").text)
    tolerant = pod_template(4, None, tolerations=[{"key": taint.partition("=")[0], "operator": "Exists"}])
    cp.apply([job("team-a", "stays", 1, template=tolerant)])
    cp.wait(lambda: live_by_gang(cp)["stays"] == 1, 60, "the tolerant one to run")
    cp.apply([job("team-a", "moves", 3, gpus=4, seconds=None)])
    cp.wait(lambda: live_by_gang(cp) == {"stays": 1, "moves": 3}, 60, "both to run")
    (stays,) = [p for p in running_pods(cp, "team-a") if "stays" in p["metadata"]["name"]]

    def hosts() -> list[str]:
        return chosen_nodes(workload_of(cp, "team-a", "moves") or {})["main"]

    first = hosts()
    tainted = stays["spec"]["nodeName"]
    assert tainted in first, "they share a node"
    cp.kubectl("taint", "nodes", tainted, taint)

    def moved(off: str, before: list[str]) -> bool:
        if not admitted(cp, "team-a", "moves") or off in hosts() or live_by_gang(cp)["moves"] != 3:
            return False
        return all(now == was for was, now in zip(before, hosts(), strict=True) if was != off)

    cp.wait(lambda: moved(tainted, first), 60, "it to run on others, each survivor where it was")
    status = (workload_of(cp, "team-a", "moves") or {})["status"]
    assert not status.get("avoidNodes"), "somebody wanted the node, which did nothing"
    told = [e["message"] for e in cp.list("events", "team-a") if e["reason"].startswith("EvictedDueTo")]
    assert any(taint in message and tainted in message for message in told), told
    second = hosts()
    gone = second[0]
    cp.delete("nodes", gone)
    cp.wait(lambda: moved(gone, second), 60, "it to run without the node that is no more")
    (still,) = [p for p in running_pods(cp, "team-a") if "stays" in p["metadata"]["name"]]
    assert still["metadata"]["uid"] == stays["metadata"]["uid"], "it tolerates the taint"
    for name in ("moves", "stays"):
        of = cp.get("jobs", name, "team-a")
        assert (finished(of), of["status"].get("failed", 0)) == (None, 0)
    log.catch_up()
    said = [entry_of(e.object, "Evicted") for e in log.entries() if e.kind == "Workload"]
    assert {entry["reason"] for entry in said if entry.get("status") == "True"} == {"NodeFailures"}
    assert misplaced(log)[1] == []


def test_child_jobs_of_exclusive_placement_that_lose_nodes_stay_in_their_domains_or_wait_for_others(
    muster: Installed,
) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    where = network(cp, racks=3, per_rack=3)
    muster.started(config={"nodeLossGracePeriod": "2s"})
    value = exclusive("set", {"w": (2, 2)})
    value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = pod_template(8, None)
    cp.apply([value])

    def hosts() -> list[str]:
        return [host for part in chosen_nodes(workload_of(cp, "team-a", "set") or {}).values() for host in part]

    def runs(*off: str) -> bool:
        if not admitted(cp, "team-a", "set") or set(off) & set(hosts()):
            return False
        return sorted(p["spec"]["nodeName"] for p in slots(cp).values()) == sorted(hosts())

    cp.wait(runs, 60, "it to run")
    first = hosts()
    racks = [where[host][1] for host in first]
    assert racks == [racks[0]] * 2 + [racks[2]] * 2
    assert racks[0] != racks[2]
    # The leader of the first child job; then the follower beside its replacement.
    cp.set_node_ready(first[0], False, wait=False)
    cp.wait(lambda: runs(first[0]), 90, "it to run again", describe=lambda: workload_of(cp, "team-a", "set"))
    second = hosts()
    assert second[1:] == first[1:]
    assert where[second[0]][1] == racks[0], "a node of its rack was free"
    # There is no room for it in its rack now, and kube-scheduler lets it into no other while its pods linger there.
    cp.set_node_ready(second[1], False, wait=False)
    cp.wait(lambda: "are not gone from" in reason(cp, "team-a", "set")[1], 60, "it to wait for its pods to be gone")
    for node in (first[0], second[1]):
        cp.delete("nodes", node)
    cp.wait(lambda: runs(first[0], second[1]), 90, "it to run in racks that are whole")
    third = [where[host][1] for host in hosts()]
    assert third == [third[0]] * 2 + [third[2]] * 2
    assert racks[0] not in third
    assert not finished(cp.get("jobsets", "set", "team-a"))
    # Deleted and made again under its name while a pod of it lingers: JobSet takes that for a pod of the new one's.
    lost, evictions = hosts()[3], figures(log).evictions
    cp.set_node_ready(lost, False, wait=False)
    cp.delete("jobsets", "set", "team-a")

    def lingers() -> bool:
        left = [pod["spec"]["nodeName"] for pod in cp.list("pods", "team-a")]
        return left == [lost] and not cp.list("jobs", "team-a") and workload_of(cp, "team-a", "set") is None

    def left_over() -> object:
        pods = [(pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in cp.list("pods", "team-a")]
        return lost, pods, workload_of(cp, "team-a", "set")

    # Those of the nodes that are gone for good, which the collector of garbage would delete so after a minute or two.
    for pod in cp.list("pods", "team-a"):
        if pod["spec"].get("nodeName") in (first[0], second[1]):
            cp.delete("pods", pod["metadata"]["name"], "team-a", gracePeriodSeconds=0)
    cp.wait(lingers, 60, "one pod to be left, on the node that is lost", describe=left_over)
    cp.apply([value])
    cp.wait(lambda: admitted(cp, "team-a", "set"), 60, "the new one to be admitted", describe=left_over)
    fourth = hosts()
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 5, 30, "its four pods to be bound")
    assert lost not in fourth
    assert [where[host][1] for host in fourth] == third, "beside the pod that lingers"
    log.catch_up()
    assert misplaced(log)[1] == []
    assert figures(log).evictions <= evictions + 1, "only the old one may have been evicted"


def test_gpus_that_vanish_cordons_and_drains(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    muster.started(config={"nodeLossGracePeriod": "5s"})
    cp.apply([job("team-a", "one", 2, seconds=None), job("team-a", "two", 1, seconds=None)])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "both gangs to run")
    first = chosen_nodes(workload_of(cp, "team-a", "one") or {})["main"]
    second = chosen_nodes(workload_of(cp, "team-a", "two") or {})["main"]
    # Cordoned: finishes there, and nobody new comes.
    cp.patch("node", second[0], {"spec": {"unschedulable": True}})
    # A device plugin that died: the node is Ready, its GPUs are gone.
    gone = {"status": {"capacity": {GPU: "0"}, "allocatable": {GPU: "0"}}}
    cp.patch("node", first[0], gone, subresource="status")
    cp.wait(lambda: entry_of(workload_of(cp, "team-a", "one"), "Evicted"), 60, "the gang without GPUs to be evicted")
    assert entry_of(workload_of(cp, "team-a", "one"), "Evicted")["reason"] == "NodeFailures"
    cp.wait(ended(cp, "jobs", "team-a", "two"), 60, "the gang on the cordoned node to finish")

    def elsewhere() -> bool:
        now = workload_of(cp, "team-a", "one")
        assert now is not None
        if not admitted(cp, "team-a", "one"):
            return False
        hosts = chosen_nodes(now)["main"]
        return not {first[0], second[0]} & set(hosts)

    cp.wait(elsewhere, 60, "the gang to be on other nodes")


def test_a_job_that_survives_its_pods_gets_just_those_of_lost_nodes_replaced(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    cp.add_nodes(6, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    patient = {"leaseDuration": "60s", "renewDeadline": "40s", "retryPeriod": "1s"}
    replica = muster.started(config={"nodeLossGracePeriod": "3s", "leaderElection": patient})
    tough = job("team-a", "tough", 4, seconds=None, backoffLimit=6)
    tough["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "true"}
    cp.apply([tough])
    cp.wait(lambda: live_by_gang(cp)["tough"] == 4, 90, "its pods to run")
    before = {p["metadata"]["labels"][INDEX]: p for p in running_pods(cp, "team-a")}
    held = chosen_nodes(workload_of(cp, "team-a", "tough") or {})["main"]
    lost = {held[1], held[2]}
    replica.pause()  # so that it sees both at once
    for node in lost:
        cp.set_node_ready(node, False, wait=False)
    replica.resume()

    def live() -> dict[str, Object]:
        pods = [p for p in running_pods(cp, "team-a") if "deletionTimestamp" not in p["metadata"]]
        return {p["metadata"]["labels"][INDEX]: p for p in pods}

    def replaced() -> bool:
        at_once = live()
        return len(at_once) == 4 and not lost & {p["spec"]["nodeName"] for p in at_once.values()}

    cp.wait(replaced, 120, "its pods to be replaced", describe=lambda: workload_of(cp, "team-a", "tough"))
    now = live()
    assert {i: p["metadata"]["uid"] for i, p in now.items() if i in "03"} == {
        i: p["metadata"]["uid"] for i, p in before.items() if i in "03"
    }
    at = chosen_nodes(workload_of(cp, "team-a", "tough") or {})["main"]
    assert [now[str(i)]["spec"]["nodeName"] for i in range(4)] == at
    log.catch_up()
    workloads = [e for e in log.entries() if e.kind == "Workload"]
    assert not any(entry_of(e.object, "Evicted") for e in workloads), "the gang was never evicted"
    hosts = [chosen_nodes(e.object)["main"] for e in workloads if (e.object.get("status") or {}).get("admission")]
    assert [hosts[0], hosts[-1]] == [held, at]
    assert len({tuple(h) for h in hosts}) == 2, "in one decision"
    assert [line["name"] for line in replica.lines() if line["event"] == "nodes replaced"] == ["tough"]
    assert not double_booked(log)
    for node in lost:
        cp.set_node_ready(node, True)


def test_drains_and_disruption_budgets_are_honoured(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    again = {"requeuingStrategy": {"backoffBaseSeconds": 1}}
    muster.started(config={"podsUnschedulableTimeout": "2s", "waitForPodsReady": again})
    guarded = job("team-a", "guarded", 2, seconds=None)
    moved = job("team-a", "moved", 1, seconds=None, backoffLimit=6)
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    labels = {"batch.kubernetes.io/job-name": "guarded"}
    spec = {"minAvailable": 2, "selector": {"matchLabels": labels}}
    cp.create({**budget, "metadata": {"name": "guarded", "namespace": "team-a"}, "spec": spec})
    cp.apply([guarded, moved])
    cp.wait(lambda: live_by_gang(cp) == {"guarded": 2, "moved": 1}, 90, "both to run")

    def budget_known() -> bool:
        status = cp.get("poddisruptionbudgets", "guarded", "team-a").get("status") or {}
        return status.get("currentHealthy") == 2

    cp.wait(budget_known, 20, "the budget to count its pods")
    mine = {p["metadata"]["labels"]["batch.kubernetes.io/job-name"]: p for p in running_pods(cp, "team-a")}
    drained = {name: pod["spec"]["nodeName"] for name, pod in mine.items()}
    # The gang without a budget: drained, and it goes on elsewhere as a whole.
    cp.kubectl("drain", drained["moved"], "--force", "--ignore-daemonsets", "--timeout=120s")
    # The one with a budget: nobody gets its pods off the node, and it finishes there.
    refused = cp.kubectl("drain", drained["guarded"], "--force", "--ignore-daemonsets", "--timeout=1s", check=False)
    assert live_by_gang(cp)["guarded"] == 2, refused

    def elsewhere(name: str) -> bool:
        found = workload_of(cp, "team-a", name) or {}
        return live_by_gang(cp)[name] == 1 and not set(drained.values()) & set(chosen_nodes(found)["main"])

    cp.wait(lambda: elsewhere("moved"), 120, "the drained gang to run on another node")
    cp.apply([job("team-a", "late", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "team-a", "late")[0] == "TopologyPlacementFailed", 30, "the next to wait for a node")
    told = [e["message"] for e in cp.list("events", "team-a") if e["reason"].startswith("EvictedDueTo")]
    assert [f"node {drained['moved']} is cordoned" in message for message in told] == [True], told
    assert "requeueState" not in (workload_of(cp, "team-a", "moved") or {})["status"], "it was no try of its own"
    cp.wait(ended(cp, "jobs", "team-a", "guarded"), 90, "the guarded gang to finish where it was")
    assert finished(cp.get("jobs", "guarded", "team-a")) == "Complete"
    cp.wait(lambda: admitted(cp, "team-a", "late"), 30, "the next gang to start")
    assert not set(drained.values()) & set(chosen_nodes(workload_of(cp, "team-a", "late") or {})["main"])


def test_a_node_that_killed_a_job_twice_is_avoided_for_that_job(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    cp.add_nodes(1, gpus=0, prefix="other")  # or all nodes would be silent
    teams(cp, {"team-a": 64})
    muster.started(config={"nodeLossGracePeriod": "2s"})
    cp.apply([job("team-a", "one", 1, seconds=None)])
    for time_of in (1, 2):
        cp.wait(lambda: len(running_pods(cp, "team-a")) == 1 and admitted(cp, "team-a", "one"), 60, "it to run")
        cp.set_node_ready("node-0", False, wait=False)
        cp.wait(lambda: not admitted(cp, "team-a", "one"), 60, "it to be released")
        status = (workload_of(cp, "team-a", "one") or {})["status"]
        avoided = [entry["node"] for entry in status.get("avoidNodes", ()) if entry.get("reason")]
        assert avoided == (["node-0"] if time_of == 2 else []), status
        cp.set_node_ready("node-0", True)
    # For as long as the node has its taint, that is what is told.
    cp.wait(lambda: "avoided" in reason(cp, "team-a", "one")[1], 30, "it to wait beside the node, and be told why")
    assert reason(cp, "team-a", "one")[0] == "TopologyPlacementFailed"
    cp.apply([job("team-a", "other", 1, seconds=1)])
    cp.wait(done(cp, "jobs", "team-a", "other"), 60, "another job to run there")
    # It ends by itself; here after seconds.
    held = workload_of(cp, "team-a", "one") or {}
    (entry,) = held["status"]["avoidNodes"]
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))  # noqa: TID251 - the controller's clock
    shorter = json.dumps({"status": {"avoidNodes": [{**entry, "until": soon}]}})
    name = f"workloads.{MUSTER_GROUP}/{held['metadata']['name']}"
    cp.kubectl("-n", "team-a", "patch", name, "--subresource=status", "--type=merge", "-p", shorter)
    cp.wait(lambda: admitted(cp, "team-a", "one"), 60, "the node not to be avoided any more")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 1, 60, "it to run there again")
    cp.set_node_ready("node-0", False, wait=False)
    cp.wait(lambda: not admitted(cp, "team-a", "one"), 60, "it to be released")
    cp.set_node_ready("node-0", True)
    cp.wait(lambda: "avoided" in reason(cp, "team-a", "one")[1], 60, "the node to be avoided again")
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"}, prefix="fresh")
    cp.wait(lambda: admitted(cp, "team-a", "one"), 30, "it to run on another node")


def test_foreign_pods_that_take_planned_room_send_the_whole_gang_back(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(3, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    muster.started(
        config={"podsUnschedulableTimeout": "3s", "waitForPodsReady": {"requeuingStrategy": {"backoffBaseSeconds": 1}}}
    )
    cp.pause("kube-scheduler")
    cp.apply([job("team-a", "gang", 2, seconds=None)])
    cp.wait(lambda: len(cp.list("pods", "team-a")) == 2, 30, "its pods to be made")
    hosts = chosen_nodes(workload_of(cp, "team-a", "gang") or {})["main"]
    # Somebody who names the node himself, as a DaemonSet's or static pod does, is there first.
    template = pod_template(8, None)
    thief = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "thief", "namespace": "default"}}
    cp.create({**thief, "spec": {**template["spec"], "nodeName": hosts[0]}})
    # A scheduler that goes on where it was stopped may bind the gang before it hears of the other pod; a new one lists
    # all pods first.
    cp.restart("kube-scheduler")

    def moved() -> bool:
        now = workload_of(cp, "team-a", "gang") or {}
        return admitted(cp, "team-a", "gang") and hosts[0] not in chosen_nodes(now)["main"]

    cp.wait(moved, 60, "the whole gang to start on other nodes")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "all its pods to run")
    events = [e["reason"] for e in cp.list("events", "team-a")]
    assert any(reason.startswith("EvictedDueTo") for reason in events)


def test_a_daemonset_that_comes_later_and_preempts_ends_in_a_whole_gang_or_none(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(4, gpus=8, cpu="8", labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    again = {"requeuingStrategy": {"backoffBaseSeconds": 1}}
    muster.started(config={"podsUnschedulableTimeout": "2s", "waitForPodsReady": again})
    cp.apply([cluster_queue("team-a", {GPU: 64, "cpu": 64})])
    template = pod_template(8, None)
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    tough = job("team-a", "tough", 2, template=template, backoffLimit=6)
    cp.apply([tough, job("team-a", "frail", 1, template=template)])
    cp.wait(lambda: live_by_gang(cp) == {"tough": 2, "frail": 1}, 60, "both to run")
    hit = [chosen_nodes(workload_of(cp, "team-a", name) or {})["main"][0] for name in ("tough", "frail")]
    for node in hit:
        cp.patch("node", node, {"metadata": {"labels": {"agent": "yes"}}})
    # A class of the system's is above that of gangs: kube-scheduler takes a pod of each for it.
    agent = {"name": "c", "image": "c", "resources": {"requests": {"cpu": "1"}}}
    spec = {
        "containers": [agent],
        "nodeSelector": {"agent": "yes"},
        "priorityClassName": "system-node-critical",
    }
    labels = {"app": "agent"}
    daemons = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}
    meta = {"name": "agent", "namespace": cp.namespace("others")}
    cp.create({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": daemons})
    cp.wait(lambda: finished(cp.get("jobs", "frail", "team-a")) == "Failed", 60, "the one that survives no pod to fail")

    def elsewhere() -> bool:
        found = workload_of(cp, "team-a", "tough") or {}
        return (
            admitted(cp, "team-a", "tough")
            and not set(hit) & set(chosen_nodes(found)["main"])
            and live_by_gang(cp) == {"tough": 2}
        )

    cp.wait(elsewhere, 90, "the other to run elsewhere, whole", describe=lambda: workload_of(cp, "team-a", "tough"))
    told = [e["message"] for e in cp.list("events", "team-a") if e["reason"].startswith("EvictedDueTo")]
    assert any("could not be scheduled" in message and "Insufficient cpu" in message for message in told), told
    cp.wait(lambda: cp.get("clusterqueues", "team-a")["status"]["reservingWorkloads"] == 1, 30, "quota to be back")
