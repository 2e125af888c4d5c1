"""python -m tests.bench.engine: how fast the engine decides, alone, without API server or network.

The town: 1,000 ClusterQueues in 100 cohorts, 10,000 nodes of 8 GPUs, quota for exactly these nodes, and 100,000 gangs
that wait, of 7 shapes (1 to 64 GPUs) and 2 priorities. Questions, each picked alone by ONLY= (a regular expression):

bulk      everybody waits, the cluster is empty: decisions per second until nobody is left worth a trial, where all
          have been passed over, and where all have just come. A decision is an admission, an eviction, or a fresh
          refusal of a shape; copies that share a refusal do not count.
steady    the cluster is full: one gang finishes, one arrives; from there to the first Plan that decides something, and
          until nothing is left to decide.
growth    the same with 1,000 to 100,000 gangs waiting: how much longer the first decision takes.
nodes     the same with 1,000 to 10,000 nodes.
depth     the same with cohorts one to five deep.
kueue     bulk and steady under Kueue's rules, a third of the gangs.
churn     four hours of a busy town of 150 nodes, in town time: who is evicted, what work is lost (`tests.bench.days`).
restart   from list pages as the API server encodes them (10,000 nodes, 100,000 pods, 100,000 Jobs and their Workloads)
          to the first Plan: decoding, the controller's World, the engine's State, one decision. Memory at its end.
decode    microseconds to decode one object of each kind.

--small is a tenth of everything, --tiny a fiftieth (for continuous integration). Figures go to build/bench/engine.json,
keys with their unit; memory is that of a process that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import platform
import random  # noqa: TID251  # seeded
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from admission.cli import COLLECTED_AFTER
from admission.controller import decode
from admission.controller.world import World
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    Assumed,
    ClusterQueue,
    Cohort,
    Evict,
    Flavor,
    FlavorQuotas,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    Plan,
    PodSet,
    PodShape,
    Put,
    Quota,
    ResourceGroup,
    Rules,
    Standing,
    Topology,
    Workload,
)
from admission.engine.state import State
from admission.jobs import values
from admission.jobs.kinds import JOB
from admission.names import Names
from admission.quantity import format_resources

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
NOW = 1_700_000_000_000
BUDGET = 500
"""Trials per cycle: what the controller gives, where they cost little."""
SHAPES = ((1, 1, 40), (1, 2, 15), (1, 4, 15), (1, 8, 15), (2, 8, 8), (4, 8, 5), (8, 8, 2))
"""(pods, GPUs of each, how often): most gangs are small, most GPUs are asked for by large ones."""
MEAN_GPUS = sum(pods * gpus * weight for pods, gpus, weight in SHAPES) / sum(weight for *_, weight in SHAPES)
"""Of a gang."""
FULL_QUEUES = 1_000
WAITED_MS = 10_000_000
"""Longer than anybody must wait to have been passed over."""


@dataclass(frozen=True)
class Size:
    queues: int = FULL_QUEUES
    cohorts: int = 100
    nodes: int = 10_000
    pending: int = 100_000
    waited_ms: int = WAITED_MS
    """By who came first; who comes when the bench begins is number WAITED_MS."""
    depth: int = 1
    """Cohorts above a queue."""

    def part(self, by: int) -> Size:
        return dataclasses.replace(
            self,
            queues=self.queues // by,
            cohorts=self.cohorts // by,
            nodes=self.nodes // by,
            pending=self.pending // by,
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the town


def shape(gpus: int) -> PodShape:
    return PodShape(requests=(("cpu", 8000 * gpus), ("memory", gpus * 64 * 2**30), (GPU, gpus)))


def queue_name(i: int) -> str:
    return f"queue-{i:04}"


def quotas(size: Size) -> Iterator[object]:
    """Everything that an administrator writes; quota for exactly the nodes that are there."""
    yield Namespace("ns")
    yield Topology("net", ("block", "rack", HOST))
    yield Flavor("gpu", node_labels=(("pool", "gpu"),), topology="net")
    share = size.nodes * 8 // size.queues
    quota = tuple((name, Quota(share * each)) for name, each in (("cpu", 12_000), ("memory", 2**37), (GPU, 1)))
    for i in range(size.cohorts):
        for level in range(size.depth):
            parent = f"cohort-{i:03}-{level - 1}" if level else ""
            yield Cohort(f"cohort-{i:03}-{level}", parent=parent)
    for i in range(size.queues):
        yield ClusterQueue(
            name=queue_name(i),
            cohort=f"cohort-{i % size.cohorts:03}-{size.depth - 1}",
            groups=(ResourceGroup(("cpu", "memory", GPU), (FlavorQuotas("gpu", quota),)),),
            namespace_selector=LabelSelector(),
        )
        yield LocalQueue("ns", queue_name(i), queue_name(i))


def nodes(size: Size) -> Iterator[Node]:
    """Blocks of 500 nodes, racks of 50."""
    for i in range(size.nodes):
        yield Node(
            name=f"n{i:05}",
            labels=(("block", f"b{i // 500:03}"), (HOST, f"n{i:05}"), ("pool", "gpu"), ("rack", f"r{i // 50:04}")),
            allocatable=(("cpu", 96_000), ("memory", 2**40), (GPU, 8), ("pods", 110)),
        )


def gang(dice: random.Random, number: int, size: Size) -> Workload:
    pods, gpus, _ = dice.choices(SHAPES, [weight for _, _, weight in SHAPES])[0]
    return Workload(
        "ns",
        f"gang-{number:06}",
        uid=f"uid-{number:06}",
        queue=queue_name(number % size.queues),
        pod_sets=(PodSet("main", pods, shape(gpus)),),
        priority=100 if dice.random() < 0.2 else 0,
        created=NOW - size.waited_ms + number * size.waited_ms // WAITED_MS,
    )


def town(size: Size, rules: Rules = MUSTER) -> State:
    state = State(rules)
    for value in (*quotas(size), *nodes(size)):
        state.apply(Put(value))  # type: ignore[arg-type]
    return state


def fill(state: State, size: Size, dice: random.Random, number: int, start: int = 0) -> None:
    for i in range(start, start + number):
        state.apply(Put(gang(dice, i, size)))


# ---------------------------------------------------------------- cycles


@dataclass
class Tally:
    cycles: int = 0
    admitted: int = 0
    evicted: int = 0
    refused: int = 0
    trials: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    @property
    def decisions(self) -> int:
        return self.admitted + self.evicted + self.refused

    def add(self, plan: Plan, seconds: float) -> None:
        self.cycles += 1
        self.admitted += sum(isinstance(decision, Admit) for decision in plan.decisions)
        self.evicted += sum(isinstance(decision, Evict) for decision in plan.decisions)
        # Copies of a refusal share its reason; a reason of its own was found by a trial of its own.
        parked = {id(v.why) for v in plan.verdicts if v.standing is not Standing.ADMITTED and v.requests}
        self.refused += len(parked)
        self.trials += plan.steps
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


def step(state: State, now: int, tally: Tally) -> Plan:
    start = time.process_time()
    plan = decide(state, now, BUDGET)
    for decision in plan.decisions:
        state.apply(Assumed(decision))
    tally.add(plan, time.process_time() - start)
    return plan


_evictions = count(1)


def leave(state: State, plan: Plan, now: int) -> None:
    """Evicted gangs leave at once (each eviction at a time of its own)."""
    for decision in plan.decisions:
        if isinstance(decision, Evict):
            old = state.workloads[decision.key]
            at = now + next(_evictions)
            state.apply(Put(replace(old, admission=None, admitted=False, evicted="Preempted", evicted_at=at)))


def settle(state: State, now: int, tally: Tally, told: str = "") -> None:
    """Cycles until nothing is decided any more."""
    last = time.monotonic()
    while True:
        plan = step(state, now, tally)
        leave(state, plan, now)
        if told and time.monotonic() - last > 5:
            last = time.monotonic()
            rate = tally.decisions / tally.seconds
            say(f"  {told}: {tally.admitted} admitted, {tally.refused} refused, {rate:,.0f} decisions/s")
        if not plan.more and not plan.decisions:
            return


def full(size: Size, tally: Tally | None = None, told: str = "", rules: Rules = MUSTER) -> tuple[State, random.Random]:
    """A town in which whoever fits is admitted, and the others wait."""
    dice = random.Random(7)
    state = town(size, rules)
    fill(state, size, dice, size.pending)
    gc.collect()
    settle(state, NOW, tally or Tally(), told)
    return state, dice


# ---------------------------------------------------------------- questions


def bulk(size: Size) -> dict[str, float]:
    just_come, tally = Tally(), Tally()
    full(dataclasses.replace(size, waited_ms=1_000), just_come, "bulk, all have just come")
    full(size, tally, "bulk")
    return {
        "decisions_per_s_of_arrivals": just_come.decisions / just_come.seconds,
        "bulk_of_arrivals_s": just_come.seconds,
        "decisions_per_s": tally.decisions / tally.seconds,
        "bulk_s": tally.seconds,
        "bulk_admitted_count": tally.admitted,
        "bulk_refused_count": tally.refused,
        "bulk_evicted_count": tally.evicted,
        "bulk_trials_count": tally.trials,
        "bulk_cycles_count": tally.cycles,
        "bulk_longest_cycle_ms": tally.longest * 1e3,
    }


@dataclass
class Steady:
    first_ms: list[float]
    rest_ms: list[float]
    trials: list[int]
    first_trials: list[int]
    decided: int = 0

    def figures(self) -> dict[str, float]:
        first = sorted(self.first_ms)
        return {
            "first_decision_after_finish_ms": statistics.median(first),
            "first_decision_after_finish_p99_ms": first[int(len(first) * 0.99)],
            "quiet_after_finish_ms": statistics.median(self.rest_ms),
            "trials_in_first_plan_count": statistics.median(self.first_trials),
            "trials_after_finish_count": statistics.median(self.trials),
            "finishes_that_let_somebody_in_pct": 100 * self.decided / len(first),
        }


def play(state: State, size: Size, dice: random.Random, rounds: int, told: str = "") -> Steady:
    """One gang ends, one arrives, again and again."""
    out = Steady([], [], [], [])
    last = time.monotonic()
    number = WAITED_MS
    now = NOW
    for _ in range(rounds):
        now += 1_000
        if told and time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"  {told}: {len(out.first_ms)} of {rounds} finishes, {statistics.median(out.first_ms):.2f} ms")
        number += 1
        holders = sorted(key for queue in state.queues for key in (gang.key for gang in state.holders(queue)))
        ended = holders[dice.randrange(len(holders))]
        new = gang(dice, number, size)
        tally = Tally()
        start = time.process_time()
        state.apply(Gone(Workload, ended))
        state.apply(Put(new))
        plan = decide(state, now, BUDGET)
        out.first_ms.append((time.process_time() - start) * 1e3)
        for decision in plan.decisions:
            state.apply(Assumed(decision))
        leave(state, plan, now)
        out.decided += bool(plan.decisions)
        tally.add(plan, 0)
        settle(state, now, tally)
        out.rest_ms.append((time.process_time() - start) * 1e3)
        out.trials.append(tally.trials)
        out.first_trials.append(plan.steps)
    return out


def steady(size: Size) -> dict[str, float]:
    state, dice = full(size, told="steady, filling")
    play(state, size, dice, 10)
    return play(state, size, dice, 100 if size.queues >= 100 else 20, "steady").figures()


def kueue(size: Size) -> dict[str, float]:
    size = dataclasses.replace(size, pending=size.pending // 3)
    tally = Tally()
    state, dice = full(size, tally, "kueue", KUEUE)
    play(state, size, dice, 10)
    figures = play(state, size, dice, 100 if size.queues >= 100 else 20, "kueue, steady").figures()
    return {
        "kueue_decisions_per_s": tally.decisions / tally.seconds,
        "kueue_first_decision_after_finish_ms": figures["first_decision_after_finish_ms"],
        "kueue_quiet_after_finish_ms": figures["quiet_after_finish_ms"],
        "kueue_trials_after_finish_count": figures["trials_after_finish_count"],
    }


def churn(size: Size) -> dict[str, float]:
    from tests.bench import days

    return days.churn(days.FULL if size.queues >= FULL_QUEUES else days.SMALL, hours=4).figures()


def _beyond(size: Size, waiting: int) -> Size:
    """So many gangs that about `waiting` are left when the nodes are full."""
    return dataclasses.replace(size, pending=int(size.nodes * 8 / MEAN_GPUS) + waiting)


def growth(size: Size) -> dict[str, float]:
    out: dict[str, float] = {}
    points = [n for n in (1_000, 3_000, 10_000, 30_000, 100_000) if n <= size.pending]
    for waiting in points:
        state, dice = full(_beyond(size, waiting), told=f"growth, {waiting:,} waiting")
        play(state, size, dice, 10)
        figures = play(state, size, dice, 150, f"growth, {waiting:,} waiting").figures()
        out[f"first_decision_at_{waiting}_pending_ms"] = figures["first_decision_after_finish_ms"]
        out[f"quiet_at_{waiting}_pending_ms"] = figures["quiet_after_finish_ms"]
        say(f"  growth: {waiting:,} waiting: {figures['first_decision_after_finish_ms']:.2f} ms")
    first, last = points[0], points[-1]
    ratio = out[f"first_decision_at_{last}_pending_ms"] / out[f"first_decision_at_{first}_pending_ms"]
    out[f"growth_{first // 1000}k_to_{last // 1000}k"] = ratio
    return out


def by_nodes(size: Size) -> dict[str, float]:
    out: dict[str, float] = {}
    for nodes in (size.nodes // 10, size.nodes // 3, size.nodes):
        here = dataclasses.replace(size, nodes=nodes, pending=size.pending // 5)
        state, dice = full(here, told=f"{nodes:,} nodes")
        play(state, here, dice, 10)
        out[f"first_decision_at_{nodes}_nodes_ms"] = play(state, here, dice, 30).figures()[
            "first_decision_after_finish_ms"
        ]
    return out


def by_depth(size: Size) -> dict[str, float]:
    out: dict[str, float] = {}
    for depth in (1, 2, 3, 5):
        here = dataclasses.replace(size, depth=depth, pending=size.pending // 5)
        tally = Tally()
        state, dice = full(here, tally, told=f"depth {depth}")
        play(state, here, dice, 10)
        out[f"first_decision_at_depth_{depth}_ms"] = play(state, here, dice, 30).figures()[
            "first_decision_after_finish_ms"
        ]
        out[f"decisions_per_s_at_depth_{depth}"] = tally.decisions / tally.seconds
    return out


def by_width(size: Size) -> dict[str, float]:
    """A tenth of the size, in fewer and fewer cohort trees: many teams have one for all."""
    here = size.part(10)
    out: dict[str, float] = {}
    for queues in (10, 30, 100):
        if queues > here.queues:
            break
        wide = dataclasses.replace(here, cohorts=max(1, here.queues // queues))
        tally = Tally()
        state, dice = full(wide, tally, told=f"{queues} queues in a tree")
        play(state, wide, dice, 10)
        figures = play(state, wide, dice, 30).figures()
        out[f"first_decision_at_{queues}_queues_in_a_tree_ms"] = figures["first_decision_after_finish_ms"]
        out[f"quiet_at_{queues}_queues_in_a_tree_ms"] = figures["quiet_after_finish_ms"]
        out[f"trials_at_{queues}_queues_in_a_tree_count"] = figures["trials_after_finish_count"]
        out[f"bulk_at_{queues}_queues_in_a_tree_s"] = tally.seconds
    return out


# ---------------------------------------------------------------- from bytes


def template(gpus: int, number: int) -> dict[str, Any]:
    amounts = {"cpu": str(8 * gpus), "memory": f"{64 * gpus}Gi", GPU: str(gpus)}
    return {
        "metadata": {"labels": {"app": "train", "team": f"team-{number % 50}"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/train:1.2.3",
                    "command": ["python", "-m", "train", "--run", f"run-{number}"],
                    "env": [{"name": f"SETTING_{i}", "value": f"value {i} of {number % 200}"} for i in range(6)],
                    "resources": {"limits": amounts, "requests": amounts},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
        },
    }


def _stamp(ms: int) -> str:
    return values.rfc3339(ms)


def workload_object(value: Workload, names: Names, number: int) -> dict[str, Any]:
    """As the API server lists it, server-side apply's managedFields included."""
    pod_set = value.pod_sets[0]
    made = template(dict(pod_set.shape.requests)[GPU], number)
    made["metadata"]["labels"] |= _labels_of(value)
    gpus = dict(pod_set.shape.requests)[GPU]
    conditions: list[dict[str, Any]] = []
    status: dict[str, Any] = {"conditions": conditions}
    if value.admission is not None:
        status["admission"] = values.admission_object(value.admission)
        conditions += [
            {
                "type": kind,
                "status": "True",
                "reason": kind,
                "message": text,
                "lastTransitionTime": _stamp(NOW - 1_000_000),
                "observedGeneration": 1,
            }
            for kind, text in (
                ("QuotaReserved", f"Quota reserved in ClusterQueue {value.admission.cluster_queue}"),
                ("Admitted", "The workload is admitted"),
            )
        ]
    else:
        conditions.append(
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "WaitingForQuota",
                "message": f"needs {pod_set.count * gpus} {GPU} of flavor gpu; {value.queue} has 0 left of 80",
                "lastTransitionTime": _stamp(NOW - 1_000_000),
                "observedGeneration": 1,
            }
        )
    fields = {
        "f:spec": {"f:podSets": {'k:{"name":"main"}': {".": {}, "f:count": {}, "f:name": {}, "f:template": {}}}},
        "f:metadata": {"f:labels": {f"f:{names.job_uid_label}": {}}, "f:ownerReferences": {}},
    }
    return {
        "apiVersion": f"{names.group}/{names.version}",
        "kind": "Workload",
        "metadata": {
            "name": value.name,
            "namespace": value.namespace,
            "uid": value.uid,
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": _stamp(value.created),
            "labels": {names.job_uid_label: f"job-{value.uid}"},
            "finalizers": [names.finalizer],
            "ownerReferences": [_job_of(value)],
            "managedFields": [
                {
                    "manager": names.admission_manager,
                    "operation": "Apply",
                    "apiVersion": f"{names.group}/{names.version}",
                    "time": _stamp(value.created),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
            ],
        },
        "spec": {
            "queueName": value.queue,
            "priority": value.priority,
            "active": True,
            "podSets": [{"name": "main", "count": pod_set.count, "template": made}],
        },
        "status": status,
    }


def _job_of(value: Workload) -> dict[str, Any]:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{value.name}", "uid": f"job-{value.uid}"}
    return job | {"controller": True, "blockOwnerDeletion": True}


def job_object(value: Workload, names: Names, number: int) -> dict[str, Any]:
    """With what the API server adds to it; one that runs with what its start wrote."""
    of, count = _job_of(value), value.pod_sets[0].count
    made = template(dict(value.pod_sets[0].shape.requests)[GPU], number)
    labels = _labels_of(value)
    runs, when = value.admission is not None, _stamp(NOW - 900_000)
    if runs:
        labels |= {names.managed_label: "true", names.workload_uid_label: value.uid, names.pod_set_label: "main"}
    made["metadata"]["labels"] |= labels
    condition = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": of["name"],
            "namespace": value.namespace,
            "uid": of["uid"],
            "resourceVersion": str(1000 + number),
            "generation": 2 if runs else 1,
            "creationTimestamp": _stamp(value.created),
            "labels": {names.queue_label: value.queue},
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "batch/v1",
                    "time": when,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"main"}': {}}}}}},
                }
                for manager in ("kubectl", "kube-controller-manager")
            ],
        },
        "spec": {
            "suspend": not runs,
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "backoffLimit": 6,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": of["uid"]}},
            "template": made,
        },
        "status": {"active": count, "ready": count, "startTime": when, "uncountedTerminatedPods": {}}
        if runs
        else {"conditions": [condition | {"lastProbeTime": when, "lastTransitionTime": when}]},
    }


def _labels_of(value: Workload) -> dict[str, str]:
    """What the API server adds to a Job's template."""
    of = _job_of(value)
    names = {"controller-uid": of["uid"], "job-name": of["name"]}
    return names | {f"batch.kubernetes.io/{name}": said for name, said in names.items()}


def pod_object(value: Workload, names: Names, at: int, node: str) -> dict[str, Any]:
    gpus = dict(value.pod_sets[0].shape.requests)[GPU]
    name = f"job-{value.name}-{at}"
    made = template(gpus, at)
    spec = dict(made["spec"])
    spec |= {
        "nodeName": node,
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ],
        "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": []}}],
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": True,
    }
    labels = {"app": "train", "batch.kubernetes.io/job-completion-index": str(at), **_labels_of(value)}
    if value.admission is not None:
        labels |= {
            names.managed_label: "true",
            names.workload_uid_label: value.uid,
            names.pod_set_label: "main",
        }
    when = _stamp(NOW - 900_000)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": f"job-{value.name}-",
            "namespace": value.namespace,
            "uid": f"pod-{value.uid}-{at}",
            "resourceVersion": "5000",
            "creationTimestamp": when,
            "labels": labels,
            "ownerReferences": [_job_of(value)],
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": when,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {".": {}, "f:status": {}}}}},
                }
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": spec,
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
                for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
            "podIPs": [{"ip": "10.1.0.1"}],
            "startTime": when,
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"running": {"startedAt": when}},
                    "lastState": {},
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example.com/train:1.2.3",
                    "imageID": "registry.example.com/train@sha256:" + "0" * 64,
                    "containerID": "containerd://" + f"{at:064x}",
                    "started": True,
                }
            ],
            "qosClass": "Guaranteed",
        },
    }


def node_object(value: Node) -> dict[str, Any]:
    amounts = format_resources(dict(value.allocatable))
    when = _stamp(NOW - 5_000_000)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": value.name,
            "uid": f"node-{value.name}",
            "resourceVersion": "77",
            "creationTimestamp": when,
            "labels": dict(value.labels) | {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" else "False",
                    "reason": f"Kubelet{kind}",
                    "message": "kubelet says so",
                    "lastHeartbeatTime": when,
                    "lastTransitionTime": when,
                }
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "images": [
                {"names": [f"registry.example.com/image-{i}:1"], "sizeBytes": 10_000_000 + i} for i in range(20)
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Linux", "architecture": "amd64"},
        },
    }


def pages(objects: Iterator[dict[str, Any]], kind: str, into: Path) -> None:
    """List pages of 500, encoded, in a file: each behind its length."""
    with (into / kind).open("wb") as file:
        page: list[msgspec.Raw] = []

        def flush() -> None:
            data = msgspec.json.encode({"kind": f"{kind}List", "metadata": {}, "items": page})
            file.write(len(data).to_bytes(8, "big") + data)
            page.clear()

        for obj in objects:
            page.append(msgspec.Raw(msgspec.json.encode(obj)))
            if len(page) == 500:
                flush()
        if page:
            flush()


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]


_page = msgspec.json.Decoder(_Page).decode


def read(path: Path) -> Iterator[msgspec.Raw]:
    with path.open("rb") as file:
        while head := file.read(8):
            yield from _page(file.read(int.from_bytes(head, "big"))).items


def lists(size: Size, pods: int, into: Path) -> None:
    """The cluster as lists: what fits is admitted and runs, the rest waits; agents that are not ours make up the
    number of pods."""
    names = Names()
    state = town(size)
    fill(state, size, random.Random(7), size.pending)
    tally, admitted = Tally(), 1
    while admitted:  # to the last admission; what else is decided does not show in the lists
        admitted = sum(isinstance(decision, Admit) for decision in step(state, NOW, tally).decisions)
    held = [state.workloads[key] for key in sorted(state.workloads)]

    def every_pod() -> Iterator[dict[str, Any]]:
        count = 0
        for value in held:
            if value.admission is None or value.admission.pod_sets[0].topology is None:
                continue
            hosts = [d.values[-1] for d in value.admission.pod_sets[0].topology.domains for _ in range(d.count)]
            for at, host in enumerate(hosts):
                count += 1
                if count <= pods:
                    yield pod_object(value, names, at, host)
        agent = replace(gang(random.Random(1), 0, size), pod_sets=(PodSet("main", 1, shape(1)),))
        for i in range(count, pods):
            obj = pod_object(agent, names, i, f"n{i % size.nodes:05}")
            meta, spec = obj["metadata"], obj["spec"]
            meta |= {"name": f"agent-{i}", "labels": {"app": "agent"}, "ownerReferences": [], "uid": f"agent-{i}"}
            spec["containers"] = [spec["containers"][0] | {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]
            yield obj

    pages((node_object(value) for value in nodes(size)), "Node", into)
    pages(every_pod(), "Pod", into)
    pages((job_object(value, names, i) for i, value in enumerate(held)), "Job", into)
    pages((workload_object(value, names, i) for i, value in enumerate(held)), "Workload", into)


def start_from(size: Size, where: Path) -> dict[str, float]:
    """The part of `restart` that has a process of its own: lists to first Plan, as the controller does it."""
    names = Names()
    before = _memory_mb()
    took: dict[str, float] = {}
    began = time.process_time()
    state = State(MUSTER)
    world = World(state, changed_job=lambda key: None, dirty=lambda: None)
    store: dict[tuple[str, Key], object] = {}
    """What the informers keep."""
    recent = decode.Recent()
    for value in quotas(size):
        state.apply(Put(value))  # type: ignore[arg-type]

    def node(raw: msgspec.Raw) -> None:
        item = decode.item(values.node, names, raw)
        store["Node", (item.namespace, item.name)] = item
        world.node_seen(item.value)

    def pod(raw: msgspec.Raw) -> None:
        view = decode.pod(names, raw)
        store["Pod", (view.namespace, view.name)] = view
        world.pod_seen(view)

    def job(raw: msgspec.Raw) -> None:
        seen = decode.job(JOB, names, raw, recent)
        store["Job", (seen.namespace, seen.name)] = seen
        world.job_seen(seen)

    def workload(raw: msgspec.Raw) -> None:
        seen = decode.workload(names, raw)
        store["Workload", seen.key] = seen
        world.workload_seen(seen)

    for kind, take in (("Node", node), ("Pod", pod), ("Job", job), ("Workload", workload)):
        start = time.process_time()
        for raw in read(where / kind):
            take(raw)
        took[kind] = time.process_time() - start
        say(f"  restart: {kind}: {took[kind]:.1f} s")
    start = time.process_time()
    plan = decide(state, NOW, BUDGET)
    end = time.process_time()
    say(f"  restart: first Plan: {end - start:.1f} s, {len(plan.decisions)} decisions, {plan.steps} trials")
    return {
        "restart_s": end - began,
        "restart_nodes_s": took["Node"],
        "restart_pods_s": took["Pod"],
        "restart_jobs_s": took["Job"],
        "restart_workloads_s": took["Workload"],
        "restart_first_plan_s": end - start,
        "memory_mb": _memory_mb(),
        "memory_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "memory_before_mb": before,
    }


def _memory_mb() -> float:
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:  # not Linux: the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def restart(size: Size) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        lists(size, size.nodes * 10, where)
        written = sum(path.stat().st_size for path in where.iterdir()) / 2**20
        gc.collect()
        args = [sys.executable, "-m", "tests.bench.engine", "--start-from", name, "--size", json.dumps(asdict(size))]
        out = subprocess.run(args, check=True, stdout=subprocess.PIPE)
        figures: dict[str, float] = json.loads(out.stdout)
    return figures | {"restart_lists_mb": written}


def decoding(size: Size) -> dict[str, float]:
    """Different objects of each kind, as in a list."""
    del size
    names = Names()
    small = Size(queues=10, cohorts=1, nodes=100, pending=2_000)
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        lists(small, 1_000, where)
        out: dict[str, float] = {}
        decoders: dict[str, Callable[[msgspec.Raw], object]] = {
            "Node": lambda raw: decode.item(values.node, names, raw),
            "Pod": lambda raw: decode.pod(names, raw),
            "Workload": lambda raw: decode.workload(names, raw),
        }
        for kind, one in decoders.items():
            raws = list(read(where / kind))
            best = float("inf")
            for _ in range(5):
                start = time.process_time()
                for raw in raws:
                    one(raw)
                best = min(best, (time.process_time() - start) / len(raws))
            out[f"decode_{kind.lower()}_us"] = best * 1e6
            out[f"decode_{kind.lower()}_bytes"] = sum(len(bytes(raw)) for raw in raws) / len(raws)
    return out


# ---------------------------------------------------------------- all of it

QUESTIONS: dict[str, Callable[[Size], dict[str, float]]] = {
    "decode": decoding,
    "bulk": bulk,
    "steady": steady,
    "kueue": kueue,
    "churn": churn,
    "growth": growth,
    "nodes": by_nodes,
    "depth": by_depth,
    "width": by_width,
    "restart": restart,
}


def as_the_controller() -> None:
    """Garbage is collected as seldom as in the controller."""
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


def main() -> int:
    as_the_controller()
    parser = argparse.ArgumentParser(description="How fast the engine decides.")
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--tiny", action="store_true", help="a fiftieth: what continuous integration prints")
    parser.add_argument("--start-from", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start_from is not None:
        print(json.dumps(start_from(Size(**json.loads(given.size)), given.start_from)))
        return 0
    size = Size().part(50 if given.tiny else 10 if given.small else 1)
    only = re.compile(os.environ.get("ONLY", ""))
    path = Path("build/bench/engine.json")
    known: dict[str, object] = {}
    if only.pattern and path.exists():
        known = json.loads(path.read_text())  # one question asked anew: the others stay
    known |= {**asdict(size), "python": platform.python_version(), "cpus": os.cpu_count() or 1}
    for name, ask in QUESTIONS.items():
        if not only.search(name):
            continue
        say(f"{name} ...")
        figures = ask(size)
        gc.collect()
        for key, value in figures.items():
            print(f"{key:45} {value:14,.2f}", flush=True)
            known[key] = round(value, 4)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
