"""What makes a cluster live: controllers, scheduler, kubelets and the garbage collector, as plain functions of the store.

An actor looks at one object (and what belongs to it) as it is now and says which writes bring it nearer to what it should
be; `Cluster.step(now)` collects these for everything that changed or is due. Nothing is written here: whoever drives the
cluster applies the plans, so that the writes of the Job controller pass the webhooks as everybody's do. What an actor
remembers between steps is a cache or a timer.

They follow the controllers of Kubernetes 1.36 and JobSet 0.12 in what others can see: order of writes, conditions,
reasons, labels, finalizers. What they leave out: preemption, pod affinity, success policies, volumes, services.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from admission.names import (
    JOB_COMPLETION_INDEX,
    JOBSET_EXCLUSIVE_TOPOLOGY,
    JOBSET_GROUP,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_NAME_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    JOBSET_UID_LABEL,
)
from admission.quantity import QuantityError, parse
from admission.sandbox.shapes import Object, copy
from admission.sandbox.store import MERGE, Event, Key, Kind, Refused, Request, Store, User, moment, stamp

Phase = list[Request]
"""Writes that do not depend on each other."""
Plan = list[Phase]
"""Phases, one after the other."""
Where = tuple[str, str]
"""What an actor keeps busy with: (namespace, name), or ("", uid)."""

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
"""On a pod of a Job with a limit per index: how many pods of its index failed before it, and were counted ..."""
INDEX_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
"""... and were not."""
RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
RUN_TIME = "pod-complete.stage.kwok.x-k8s.io/delay"
"""On a pod: how long it runs, as kwok reads it (`30s`, `500ms`). Pods of Jobs without it run one second."""
FAIL = "kwok.x-k8s.io/fail"
"""On a pod, "true": it fails instead of ending well."""
FAIL_AFTER = "pod-container-running-failed.stage.kwok.x-k8s.io/delay"
"""On a pod that fails: after how long; else after its run time, or one second."""
NODE_DOWN = "node-down.stage.kwok.x-k8s.io"
"""On a node, "true": its kubelet is silent."""

START_MS = 200
STOP_MS = 200
GONE_NODE_MS = 3000
UNBOUND_MS = 20_000
"""How often pods are collected that are deleted and were never bound."""
BACKOFF_MS = 10_000

_SYSTEM = ("system:serviceaccounts", "system:authenticated")
JOB_USER = User("system:serviceaccount:kube-system:job-controller", (*_SYSTEM, "system:serviceaccounts:kube-system"))
GC_USER = User(
    "system:serviceaccount:kube-system:generic-garbage-collector", (*_SYSTEM, "system:serviceaccounts:kube-system")
)
NAMESPACE_USER = User(
    "system:serviceaccount:kube-system:namespace-controller", (*_SYSTEM, "system:serviceaccounts:kube-system")
)
NODE_USER = User("system:serviceaccount:kube-system:node-controller", (*_SYSTEM, "system:serviceaccounts:kube-system"))
JOBSET_USER = User(
    "system:serviceaccount:jobset-system:jobset-controller-manager", (*_SYSTEM, "system:serviceaccounts:jobset-system")
)
SCHEDULER = User("system:kube-scheduler", ("system:authenticated",))
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def span(text: str) -> int:
    """A duration as Go writes it (`1m30s`, `500ms`), in milliseconds; 0 for what is none."""
    unit = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    return int(sum(float(n) * unit[u] for n, u in _SPAN.findall(text)))


def _kubelet(node: str) -> User:
    return User(f"system:node:{node}", ("system:nodes", "system:authenticated"))


def condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The condition of that type, or {}."""
    for found in status.get("conditions") or ():
        if found["type"] == name:
            return dict(found)
    return {}


def _is(obj: Mapping[str, Any], name: str) -> bool:
    return condition(obj.get("status") or {}, name).get("status") == "True"


def _differs(new: Object, old: Object) -> Object:
    """A merge patch from old to new, one level deep."""
    out: Object = {k: v for k, v in new.items() if old.get(k) != v}
    out.update({k: None for k in old if k not in new})
    return out


def _controller(obj: Object) -> Object | None:
    for owner in obj["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            return dict(owner)
    return None


def binding(kind: Kind, namespace: str, name: str, node: str, now: int, user: User) -> Request:
    """The write that puts a pod on a node."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp(now)}
    body = {"spec": {"nodeName": node}, "status": {"conditions": [scheduled]}}
    return Request("patch", kind, namespace, name, body, "binding", MERGE, manager="kube-scheduler", user=user)


@dataclass
class Actor:
    """A queue of what to look at, and timers."""

    store: Store
    time_scale: float = 1.0
    dirty: dict[Where, None] = field(default_factory=dict)
    timers: list[tuple[int, Where]] = field(default_factory=list)

    def see(self, kind: Kind, event: Event) -> None:
        """Note what an event makes worth looking at."""
        raise NotImplementedError

    def sync(self, where: Where, now: int) -> Plan:
        """The writes that are due for one object."""
        raise NotImplementedError

    def later(self, where: Where, due: int) -> None:
        heapq.heappush(self.timers, (due, where))

    def mark(self, namespace: str, name: str) -> None:
        self.dirty[namespace, name] = None

    def step(self, now: int) -> list[Plan]:
        while self.timers and self.timers[0][0] <= now:
            self.dirty[heapq.heappop(self.timers)[1]] = None
        out: list[Plan] = []
        # An object that makes `sync` raise is left out; what comes after it stays to be looked at.
        work, self.dirty = self.dirty, {}
        while work:
            where = next(iter(work))
            del work[where]
            try:
                plan = self.sync(where, now)
            except BaseException:
                self.dirty = {**work, **self.dirty}
                raise
            if any(plan):
                out.append(plan)
        return out

    # Shorthands for writes

    def _kind(self, group: str, plural: str) -> Kind:
        found = self.store.kind(group, plural)
        assert found is not None
        return found

    def _status(self, kind: Kind, obj: Object, status: Object, user: User, manager: str) -> Phase:
        patch = _differs(status, obj.get("status", {}))
        if not patch:
            return []
        meta = obj["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": patch}
        return [
            Request(
                "patch",
                kind,
                meta.get("namespace", ""),
                meta["name"],
                body,
                "status",
                MERGE,
                manager=manager,
                user=user,
            )
        ]

    def _patch(self, kind: Kind, obj: Object, body: Object, user: User, manager: str) -> Request:
        meta = obj["metadata"]
        body = {**body, "metadata": {"uid": meta["uid"], **body.get("metadata", {})}}
        return Request(
            "patch", kind, meta.get("namespace", ""), meta["name"], body, "", MERGE, manager=manager, user=user
        )

    def _delete(self, kind: Kind, obj: Object, user: User, **options: Any) -> Request:
        meta = obj["metadata"]
        body = {"preconditions": {"uid": meta["uid"]}, **options}
        return Request("delete", kind, meta.get("namespace", ""), meta["name"], body, user=user)

    def _event(self, about: Object, reason: str, message: str, now: int, source: str, kind: str = "Normal") -> Request:
        meta = about["metadata"]
        digest = hashlib.sha256("/".join((meta["uid"], reason, message, str(now))).encode()).hexdigest()
        name = f"{meta['name']}.{digest[:16]}"
        regarding = {
            "kind": about["kind"],
            "namespace": meta.get("namespace", ""),
            "name": meta["name"],
            "uid": meta["uid"],
            "apiVersion": about["apiVersion"],
            "resourceVersion": meta["resourceVersion"],
        }
        namespace = meta.get("namespace") or "default"
        body = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace}, "involvedObject": regarding,  # noqa: E501
            "reason": reason, "message": message, "type": kind, "count": 1, "firstTimestamp": stamp(now),
            "lastTimestamp": stamp(now), "source": {"component": source}, "reportingComponent": source,
        }  # fmt: skip
        return Request("create", self._kind("", "events"), namespace, "", body, manager=source, user=JOB_USER)

    def _children(self, owner_uid: str, group: str, plural: str) -> list[Object]:
        """What an object controls, by name."""
        found = []
        for kind_id, key in list(self.store.dependents.get(owner_uid, ())):
            if kind_id == (group, plural):
                obj = self.store.find(group, plural, *key)
                owner = _controller(obj) if obj else None
                if obj is not None and owner is not None and owner["uid"] == owner_uid:
                    found.append(obj)
        return sorted(found, key=lambda o: str(o["metadata"]["name"]))


# Jobs


@dataclass
class Jobs(Actor):
    """The Job controller."""

    counted: dict[str, set[str]] = field(default_factory=dict)
    """Job uid -> pods whose end is in its status already (their finalizer goes right after)."""
    setbacks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Job uid -> (failures in a row, time of the last)."""

    def see(self, kind: Kind, event: Event) -> None:
        meta = event.new.obj["metadata"]
        if kind.id == ("batch", "jobs"):
            self.mark(*event.key)
            if event.type == "DELETED":
                self.mark("", meta["uid"])
        elif kind.id == ("", "pods"):
            owner = _controller(event.new.obj)
            if owner is not None and owner["kind"] == "Job":
                alive = owner["uid"] in self.store.uids
                self.mark(*((event.key[0], owner["name"]) if alive else ("", owner["uid"])))
            elif TRACKING in meta.get("finalizers", ()) and event.type != "DELETED":
                self.mark("", f"pod:{event.key[0]}/{event.key[1]}")

    def sync(self, where: Where, now: int) -> Plan:
        if not where[0]:
            return self._let_go(where[1])
        job = self.store.find("batch", "jobs", *where)
        if (
            job is None
            or job["spec"].get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller"
        ):
            return []
        return self._sync_job(job, now)

    def _let_go(self, uid: str) -> Plan:
        """Pods whose Job is gone are tracked no longer."""
        self.counted.pop(uid, None)
        self.setbacks.pop(uid, None)
        if uid.startswith("pod:"):
            pod = self.store.find("", "pods", *uid[4:].split("/", 1))
            return [[self._untrack(pod)]] if pod is not None and _controller(pod) is None and _tracked(pod) else []
        pods = [
            self.store.find(*kind_id, *key)
            for kind_id, key in self.store.dependents.get(uid, ())
            if kind_id[1] == "pods"
        ]
        return [[self._untrack(pod) for pod in pods if pod is not None and _tracked(pod)]]

    def _untrack(self, pod: Object) -> Request:
        left = [x for x in pod["metadata"].get("finalizers", ()) if x != TRACKING]
        return self._patch(
            self._kind("", "pods"), pod, {"metadata": {"finalizers": left or None}}, JOB_USER, "kube-controller-manager"
        )

    def _sync_job(self, job: Object, now: int) -> Plan:
        kind, meta, spec = self._kind("batch", "jobs"), job["metadata"], job["spec"]
        pods = self._children(meta["uid"], "", "pods")
        if _is(job, "Complete") or _is(job, "Failed"):
            self._expire(kind, job, now)
            gone = self._expired(kind, job, now)
            live = [self._delete(self._kind("", "pods"), p, JOB_USER) for p in pods if _active(p)]
            return [[self._untrack(p) for p in pods if _tracked(p)], live, gone]
        status = copy(job.get("status", {}))
        status.setdefault("uncountedTerminatedPods", {})
        ended = self._count(job, status, pods, now)
        active = [p for p in pods if _active(p)]
        stopping = [p for p in pods if _stopping(p)]
        if meta.get("deletionTimestamp"):
            # Nothing is made and nothing stopped any more, and no pod is kept for being counted.
            return [
                self._status(kind, job, status, JOB_USER, "kube-controller-manager"),
                [self._untrack(p) for p in pods if _tracked(p)],
            ]
        notes: list[Request] = []
        failure = self._failure(job, status, pods, active, now)
        done = False
        if failure is None:
            done = self._complete(spec, status, active)
        create: list[Request] = []
        remove: list[Object] = []
        if failure is not None:
            remove = active
            _set(status, "FailureTarget", "True", *failure, now)
        elif done:
            _set(
                status,
                "SuccessCriteriaMet",
                "True",
                "CompletionsReached",
                "Reached expected number of succeeded pods",
                now,
            )
        elif spec.get("suspend"):
            remove = active
            if _set(status, "Suspended", "True", "JobSuspended", "Job suspended", now):
                notes.append(self._event(job, "Suspended", "Job suspended", now, "job-controller"))
            status.pop("startTime", None)
        else:
            if condition(status, "Suspended").get("status") == "True":
                _set(status, "Suspended", "False", "JobResumed", "Job resumed", now)
                notes.append(self._event(job, "Resumed", "Job resumed", now, "job-controller"))
                status["startTime"] = stamp(now)
            status.setdefault("startTime", stamp(now))
            if spec.get("activeDeadlineSeconds") is not None:
                due = moment(status["startTime"]) + spec["activeDeadlineSeconds"] * 1000
                self.later((meta["namespace"], meta["name"]), due)
            create, remove = self._manage(job, status, pods, active, stopping, now)
        left = [p for p in active if p not in remove]
        status["active"] = len(left) + len(create)
        status["ready"] = sum(1 for p in left if _is(p, "Ready"))
        status["terminating"] = len(stopping) + sum(1 for p in remove if p["spec"].get("nodeName"))
        if not status["active"]:
            status.pop("active")
        # The API server takes no end of a Job without one.
        started = "startTime" in status or (spec.get("suspend") and spec.get("completions") == 0)
        settled = started and not left and not create and not status["terminating"]
        if failure is not None and settled:
            _set(status, "Failed", "True", *failure, now)
            notes.append(self._event(job, failure[0], failure[1], now, "job-controller", "Warning"))
        elif done and settled:
            _set(status, "Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods", now)
            status["completionTime"] = stamp(now)
            notes.append(self._event(job, "Completed", "Job completed", now, "job-controller"))
        pod_kind = self._kind("", "pods")
        untrack = [self._untrack(p) for p in remove if _tracked(p)]
        deletes = [self._delete(pod_kind, p, JOB_USER) for p in remove]
        finals = [self._untrack(p) for p in ended]
        return [
            untrack,
            [*deletes, *create],
            self._status(kind, job, status, JOB_USER, "kube-controller-manager"),
            finals,
            notes,
        ]

    def _count(self, job: Object, status: Object, pods: list[Object], now: int) -> list[Object]:
        """Book pods that ended into the status; returns those whose finalizer may go."""
        uid, spec = job["metadata"]["uid"], job["spec"]
        counted = self.counted.setdefault(uid, set())
        replace_early = spec.get("podReplacementPolicy") != "Failed"
        indexed = spec.get("completionMode") == "Indexed"
        completed = _indexes(status.get("completedIndexes", ""))
        failing = _failed_indexes(spec, status, pods)
        waits = {pod["metadata"]["uid"] for pod in _last_failed(spec, pods, completed | failing).values()}
        ended = []
        for pod in pods:
            if not _tracked(pod):
                continue
            phase = pod.get("status", {}).get("phase")
            deleted = bool(pod["metadata"].get("deletionTimestamp"))
            if phase == "Succeeded":
                if pod["metadata"]["uid"] not in counted:
                    counted.add(pod["metadata"]["uid"])
                    self.setbacks.pop(uid, None)
                    if indexed:
                        completed.add(_index(pod))
                    else:
                        status["succeeded"] = status.get("succeeded", 0) + 1
            elif phase == "Failed" or (deleted and replace_early):
                if pod["metadata"]["uid"] in waits:
                    continue  # the pod that takes its place says how often its index failed
                if pod["metadata"]["uid"] not in counted:
                    counted.add(pod["metadata"]["uid"])
                    if _policy_action(spec.get("podFailurePolicy"), pod) != "Ignore":
                        status["failed"] = status.get("failed", 0) + 1
                        self.setbacks[uid] = (self.setbacks.get(uid, (0, 0))[0] + 1, now)
            else:
                continue
            ended.append(pod)
        if indexed:
            completed = {i for i in completed if i < spec["completions"]}
            if completed:
                status["completedIndexes"] = _ranges(completed)
                status["succeeded"] = len(completed)
        if "backoffLimitPerIndex" in spec:
            status["failedIndexes"] = _ranges(failing)
        return ended

    def _failure(
        self, job: Object, status: Object, pods: list[Object], active: list[Object], now: int
    ) -> tuple[str, str] | None:
        """(reason, message) of a Job that has to fail."""
        target = condition(status, "FailureTarget")
        if target.get("status") == "True":
            return target["reason"], target["message"]
        if condition(status, "SuccessCriteriaMet").get("status") == "True":
            return None
        spec = job["spec"]
        for pod in pods:
            if (
                pod["status"].get("phase") == "Failed"
                and _policy_action(spec.get("podFailurePolicy"), pod) == "FailJob"
            ):
                name = pod["metadata"]["name"]
                return (
                    "PodFailurePolicy",
                    f"Pod {pod['metadata']['namespace']}/{name} failed and matches a rule FailJob",
                )
        restarts = 0
        if spec["template"]["spec"].get("restartPolicy") == "OnFailure":
            restarts = sum(
                c.get("restartCount", 0) for p in active for c in p.get("status", {}).get("containerStatuses", ())
            )
        if status.get("failed", 0) > spec["backoffLimit"] or (restarts and restarts >= max(spec["backoffLimit"], 1)):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline = spec.get("activeDeadlineSeconds")
        started = status.get("startTime") if deadline is not None and not spec.get("suspend") else None
        if started and now >= moment(started) + deadline * 1000:
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        failing = len(_indexes(status.get("failedIndexes", "")))
        if failing > spec.get("maxFailedIndexes", failing):
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if failing and failing + status.get("succeeded", 0) >= spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _complete(self, spec: Object, status: Object, active: list[Object]) -> bool:
        if condition(status, "SuccessCriteriaMet").get("status") == "True":
            return True
        if spec.get("completions") is None:
            return bool(status.get("succeeded")) and not active
        return bool(status.get("succeeded", 0) >= spec["completions"]) and not active

    def _manage(
        self, job: Object, status: Object, pods: list[Object], active: list[Object], stopping: list[Object], now: int
    ) -> tuple[list[Request], list[Object]]:
        """(pods to create, pods to delete) of a running Job."""
        spec, meta = job["spec"], job["metadata"]
        parallelism, completions = spec["parallelism"], spec.get("completions")
        late = spec.get("podReplacementPolicy") == "Failed"
        indexed = spec.get("completionMode") == "Indexed"
        surplus: list[Object] = []
        if indexed:
            done = _indexes(status.get("completedIndexes", ""))
            seen: set[int] = set()
            for pod in active:
                if _index(pod) in seen or _index(pod) in done or _index(pod) >= completions:
                    surplus.append(pod)
                seen.add(_index(pod))
        kept = [p for p in active if p not in surplus]
        if completions is None:
            want = len(kept) if status.get("succeeded") else parallelism
        else:
            want = min(parallelism, completions - status.get("succeeded", 0))
        if len(kept) > want:
            # What is furthest from running goes first.
            ranked = sorted(
                kept, key=lambda p: (bool(p["spec"].get("nodeName")), _is(p, "Ready"), str(p["metadata"]["name"]))
            )
            surplus += ranked[: len(kept) - want]
            kept = [p for p in kept if p not in surplus]
        missing = want - len(kept) - (len(stopping) if late else 0)
        if missing <= 0:
            return [], surplus
        streak, last = self.setbacks.get(meta["uid"], (0, 0))
        if streak and "backoffLimitPerIndex" not in spec and not self._due(meta, streak, last, now):
            return [], surplus
        if not indexed:
            return [self._pod(job, None) for _ in range(missing)], surplus
        done |= _indexes(status.get("failedIndexes", ""))
        busy = {_index(p) for p in kept} | done | ({_index(p) for p in stopping} if late else set())
        free = [i for i in range(completions) if i not in busy][:missing]
        before = _last_failed(spec, pods, done)
        ready = [i for i in free if i not in before or self._due(meta, _failures(before[i]), _ended_at(before[i]), now)]
        return [self._pod(job, i, before.get(i)) for i in ready], surplus

    def _due(self, meta: Object, failures: int, last: int, now: int) -> bool:
        """May a pod be made after so many failures in a row, the last at `last`? If not, it is looked at again."""
        due = last + int(min(BACKOFF_MS * 2 ** (failures - 1), 600_000) / self.time_scale)
        if now < due:
            self.later((meta["namespace"], meta["name"]), due)
        return now >= due

    def _pod(self, job: Object, index: int | None, before: Object | None = None) -> Request:
        meta = job["metadata"]
        template = copy(job["spec"]["template"])
        own = template.get("metadata", {})
        labels, annotations = own.get("labels", {}), own.get("annotations", {})
        spec = template["spec"]
        prefix = f"{meta['name']}-"
        if index is not None:
            prefix = f"{meta['name']}-{index}-"
            labels[JOB_COMPLETION_INDEX] = annotations[JOB_COMPLETION_INDEX] = str(index)
            spec.setdefault("hostname", f"{meta['name']}-{index}"[:63].rstrip("-"))
            for container in [*spec.get("initContainers", ()), *spec["containers"]]:
                env = container.setdefault("env", [])
                if not any(e["name"] == "JOB_COMPLETION_INDEX" for e in env):
                    path = f"metadata.labels['{JOB_COMPLETION_INDEX}']"
                    env.append(
                        {
                            "name": "JOB_COMPLETION_INDEX",
                            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
                        }
                    )
            if "backoffLimitPerIndex" in job["spec"]:
                counts = {INDEX_FAILURES: 0, INDEX_IGNORED: 0}
                if before is not None:
                    ignored = _policy_action(job["spec"].get("podFailurePolicy"), before) == "Ignore"
                    counts = {name: _noted(before, name) for name in counts}
                    counts[INDEX_IGNORED if ignored else INDEX_FAILURES] += 1
                annotations.update({k: str(n) for k, n in counts.items() if n or k == INDEX_FAILURES})
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": prefix,
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": annotations,
                "finalizers": [*own.get("finalizers", ()), TRACKING],
                "ownerReferences": [owner],
            },
            "spec": spec,
        }
        return Request(
            "create",
            self._kind("", "pods"),
            meta["namespace"],
            "",
            body,
            manager="kube-controller-manager",
            user=JOB_USER,
        )

    def _expire(self, _kind: Kind, job: Object, _now: int) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is not None:
            self.later((job["metadata"]["namespace"], job["metadata"]["name"]), _finished_at(job) + ttl * 1000)

    def _expired(self, kind: Kind, job: Object, now: int) -> Phase:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None or now < _finished_at(job) + ttl * 1000 or job["metadata"].get("deletionTimestamp"):
            return []
        return [self._delete(kind, job, JOB_USER, propagationPolicy="Foreground")]


def _finished_at(job: Object) -> int:
    ends = [
        c["lastTransitionTime"]
        for c in job["status"].get("conditions", ())
        if c["type"] in ("Complete", "Completed", "Failed") and c["status"] == "True"
    ]
    return moment(ends[0]) if ends else 0


def _tracked(pod: Object) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", ())


def _ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _active(pod: Object) -> bool:
    return not _ended(pod) and not pod["metadata"].get("deletionTimestamp")


def _stopping(pod: Object) -> bool:
    return not _ended(pod) and bool(pod["metadata"].get("deletionTimestamp"))


def _index(pod: Object) -> int:
    text = pod["metadata"].get("annotations", {}).get(JOB_COMPLETION_INDEX, "-1")
    return int(text) if text.lstrip("-").isdigit() else -1


def _noted(pod: Object, name: str) -> int:
    return int(pod["metadata"].get("annotations", {}).get(name, "0"))


def _failures(pod: Object) -> int:
    """Failed pods of its index in a row, with itself."""
    return _noted(pod, INDEX_FAILURES) + _noted(pod, INDEX_IGNORED) + 1


def _ended_at(pod: Object) -> int:
    ready = condition(pod.get("status", {}), "Ready")
    if ready.get("status") == "False":
        return moment(ready["lastTransitionTime"])
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        return moment(meta["deletionTimestamp"]) - (meta.get("deletionGracePeriodSeconds") or 0) * 1000
    return moment(meta["creationTimestamp"])


def _has_failed(spec: Object, pod: Object) -> bool:
    """As the Job controller sees it: a pod that is deleted has, unless the Job waits for how it ends."""
    phase = pod.get("status", {}).get("phase")
    late = spec.get("podReplacementPolicy") == "Failed"
    return phase == "Failed" or (phase != "Succeeded" and not late and bool(pod["metadata"].get("deletionTimestamp")))


def _failed_indexes(spec: Object, status: Object, pods: list[Object]) -> set[int]:
    """Indexes that are given up, of a Job with a limit per index."""
    out = _indexes(status.get("failedIndexes", ""))
    if "backoffLimitPerIndex" not in spec:
        return out
    limit = int(spec["backoffLimitPerIndex"])
    for pod in pods:
        if _tracked(pod) and _has_failed(spec, pod) and 0 <= _index(pod) < spec["completions"]:
            action = _policy_action(spec.get("podFailurePolicy"), pod)
            if action == "FailIndex" or (action != "Ignore" and _noted(pod, INDEX_FAILURES) >= limit):
                out.add(_index(pod))
    return out


def _last_failed(spec: Object, pods: list[Object], settled: set[int]) -> dict[int, Object]:
    """Index -> the failed pod that the next of this index takes over from, of a Job with a limit per index. It keeps
    its finalizer until then."""
    out: dict[int, Object] = {}
    if "backoffLimitPerIndex" not in spec:
        return out
    taken = settled | {_index(pod) for pod in pods if _active(pod)}
    for pod in pods:
        index = _index(pod)
        if _tracked(pod) and _has_failed(spec, pod) and 0 <= index < spec["completions"] and index not in taken:
            out[index] = max(out.get(index, pod), pod, key=lambda p: (_failures(p), _ended_at(p)))
    return out


def _indexes(text: str) -> set[int]:
    out: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out


def _ranges(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    # A run of two is written as two.
    return ",".join(f"{a}" if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def _set(status: Object, name: str, value: str, reason: str, message: str, now: int) -> bool:
    """Set a condition; the time moves only when the status does. Whether anything changed."""
    found = condition(status, name)
    if (found.get("status"), found.get("reason"), found.get("message")) == (value, reason, message):
        return False
    made = {
        "type": name,
        "status": value,
        "lastProbeTime": stamp(now),
        "lastTransitionTime": stamp(now),
        "reason": reason,
        "message": message,
    }
    status["conditions"] = [c for c in status.get("conditions", ()) if c["type"] != name] + [made]
    return True


def _policy_action(policy: Mapping[str, Any] | None, pod: Object) -> str:
    """What the first rule of a podFailurePolicy that matches says; Count where none does."""
    for rule in (policy or {}).get("rules", ()):
        for pattern in rule.get("onPodConditions") or ():
            found = condition(pod.get("status", {}), pattern["type"])
            if found.get("status") == pattern.get("status", "True"):
                return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes:
            for container in pod.get("status", {}).get("containerStatuses", ()):
                code = container.get("state", {}).get("terminated", {}).get("exitCode", 0)
                inside = code in codes["values"]
                if (
                    code
                    and codes.get("containerName") in (None, container["name"])
                    and inside == (codes["operator"] == "In")
                ):
                    return str(rule["action"])
    return "Count"


# JobSets


@dataclass
class JobSets(Actor):
    """The JobSet controller. It merges a JobSet's template into its suspended children and never takes a key out of them."""  # noqa: E501

    def see(self, kind: Kind, event: Event) -> None:
        if kind.id == (JOBSET_GROUP, "jobsets"):
            self.mark(*event.key)
        elif kind.id == ("batch", "jobs"):
            owner = _controller(event.new.obj)
            if owner is not None and owner["kind"] == "JobSet":
                self.mark(event.key[0], owner["name"])

    def sync(self, where: Where, now: int) -> Plan:
        jobset = self.store.find(JOBSET_GROUP, "jobsets", *where)
        if jobset is None or jobset["metadata"].get("deletionTimestamp"):
            return []
        if (
            jobset["spec"].get("managedBy", "jobset.sigs.k8s.io/jobset-controller")
            != "jobset.sigs.k8s.io/jobset-controller"
        ):
            return []
        status = copy(jobset.get("status", {}))
        plan = self._reconcile(jobset, status, now)
        status_kind = self._kind(JOBSET_GROUP, "jobsets")
        notes = [
            self._event(
                jobset, c["reason"], c["message"], now, "jobset", "Warning" if c["type"] == "Failed" else "Normal"
            )
            for c in status.get("conditions", ())
            if c["status"] == "True" and condition(jobset.get("status", {}), c["type"]).get("status") != "True"
        ]
        return [*plan, self._status(status_kind, jobset, status, JOBSET_USER, "jobset"), notes]

    def _reconcile(self, jobset: Object, status: Object, now: int) -> Plan:
        spec, jobs_kind = jobset["spec"], self._kind("batch", "jobs")
        children = self._children(jobset["metadata"]["uid"], "batch", "jobs")
        attempt = str(status.get("restarts", 0))
        previous = [j for j in children if j["metadata"].get("labels", {}).get(RESTARTS) != attempt]
        current = [j for j in children if j not in previous]
        failed = [j for j in current if _is(j, "Failed")]
        successful = [j for j in current if _is(j, "Complete")]
        active = [j for j in current if j not in failed and j not in successful]
        counts = self._counts(jobset, active, successful, failed)
        status["replicatedJobsStatus"] = counts
        status.setdefault("restarts", 0)
        if _is({"status": status}, "Completed") or _is({"status": status}, "Failed"):
            return [
                [self._remove(jobs_kind, j) for j in active if not j["metadata"].get("deletionTimestamp")],
                self._expire(jobset, now),
            ]
        removals = [self._remove(jobs_kind, j) for j in previous if not j["metadata"].get("deletionTimestamp")]
        if failed:
            self._fail(jobset, status, failed, now)
            return [removals]
        if successful and self._succeeded(spec, successful):
            _jobset_condition(status, "Completed", "True", "AllJobsCompleted", "jobset completed successfully", now)
            status["terminalState"] = "Completed"
            return [removals]
        plan: Plan = [removals]
        plan.append(self._create(jobset, status, children, counts, now))
        if spec.get("suspend"):
            plan.append(
                [
                    self._patch(jobs_kind, j, {"spec": {"suspend": True}}, JOBSET_USER, "jobset")
                    for j in active
                    if not j["spec"].get("suspend")
                ]
            )
            _jobset_condition(status, "Suspended", "True", "SuspendedJobs", "jobset is suspended", now)
        else:
            plan += self._resume(jobset, status, active, counts, now)
        return plan

    def _counts(
        self, jobset: Object, active: list[Object], successful: list[Object], failed: list[Object]
    ) -> list[Object]:
        out = []
        for replicated in jobset["spec"].get("replicatedJobs", ()):
            mine = [j for j in active if _replicated(j) == replicated["name"]]

            def ready(job: Object) -> bool:
                wanted = job["spec"]["parallelism"]
                if job["spec"].get("completions") is not None:
                    wanted = min(wanted, job["spec"]["completions"])
                status = job.get("status", {})
                return bool(status.get("succeeded", 0) + status.get("ready", 0) >= wanted)

            out.append(
                {
                    "name": replicated["name"],
                    "ready": sum(1 for j in mine if ready(j)),
                    "succeeded": sum(1 for j in successful if _replicated(j) == replicated["name"]),
                    "failed": sum(1 for j in failed if _replicated(j) == replicated["name"]),
                    "active": sum(1 for j in mine if j.get("status", {}).get("active", 0) > 0),
                    "suspended": sum(1 for j in mine if j["spec"].get("suspend")),
                }
            )
        return out

    def _fail(self, jobset: Object, status: Object, failed: list[Object], now: int) -> None:
        policy = jobset["spec"].get("failurePolicy")
        first = min(failed, key=lambda j: (_finished_at(j), str(j["metadata"]["name"])))
        action = "RestartJobSet"
        for rule in (policy or {}).get("rules", ()):
            targets, reasons = rule.get("targetReplicatedJobs"), rule.get("onJobFailureReasons")
            matching = [
                j
                for j in failed
                if (not targets or _replicated(j) in targets)
                and (not reasons or condition(j["status"], "Failed").get("reason") in reasons)
            ]
            if matching:
                action, first = rule["action"], matching[0]
                break
        name = first["metadata"]["name"]
        counts = action != "RestartJobSetAndIgnoreMaxRestarts"
        if policy is None:
            reason, message = "FailedJobs", f"jobset failed due to one or more job failures (first failed job: {name})"
        elif action == "FailJobSet":
            reason = "FailJobSetFailurePolicyAction"
            message = f"applying FailJobSet failure policy action (first failed job: {name})"
        elif counts and status.get("restartsCountTowardsMax", 0) >= policy.get("maxRestarts", 0):
            reason, message = (
                "ReachedMaxRestarts",
                f"jobset failed due to reaching max number of restarts (first failed job: {name})",
            )
        else:
            status["restarts"] = status.get("restarts", 0) + 1
            if counts:
                status["restartsCountTowardsMax"] = status.get("restartsCountTowardsMax", 0) + 1
            return
        _jobset_condition(status, "Failed", "True", reason, message, now)
        status["terminalState"] = "Failed"

    def _succeeded(self, spec: Object, successful: list[Object]) -> bool:
        policy = spec.get("successPolicy", {})
        targets = policy.get("targetReplicatedJobs") or [r["name"] for r in spec["replicatedJobs"]]
        hits = sum(1 for j in successful if _replicated(j) in targets)
        if policy.get("operator") == "Any":
            return hits >= 1
        return bool(hits >= sum(r["replicas"] for r in spec["replicatedJobs"] if r["name"] in targets))

    def _waits(self, replicated: Object, jobset: Object, counts: list[Object]) -> bool:
        """Whether a replicated job depends on another that is not that far."""
        by_name = {c["name"]: c for c in counts}
        replicas = {r["name"]: r["replicas"] for r in jobset["spec"]["replicatedJobs"]}
        for dependency in replicated.get("dependsOn", ()):
            state = by_name.get(dependency["name"], {})
            reached = state.get("succeeded", 0)
            if dependency["status"] == "Ready":
                reached += state.get("ready", 0) + state.get("failed", 0)
            if reached < replicas.get(dependency["name"], 0):
                return True
        return False

    def _create(self, jobset: Object, status: Object, children: list[Object], counts: list[Object], now: int) -> Phase:
        spec = jobset["spec"]
        in_order = spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder"
        names = {j["metadata"]["name"] for j in children}
        started = {c["name"]: c["ready"] + c["succeeded"] + c["failed"] for c in counts}
        out: Phase = []
        for replicated in spec.get("replicatedJobs", ()):
            if self._waits(replicated, jobset, counts):
                continue
            if in_order and not spec.get("suspend") and started.get(replicated["name"], 0) >= replicated["replicas"]:
                continue
            for index in range(replicated["replicas"]):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                if name not in names:
                    out.append(self._child(jobset, replicated, index, status.get("restarts", 0)))
            if in_order and not spec.get("suspend"):
                text = "in order startup policy is in progress"
                _jobset_condition(
                    status, "StartupPolicyInProgress", "True", "InOrderStartupPolicyInProgress", text, now
                )
                return out
        if in_order and not spec.get("suspend"):
            text = "in order startup policy has completed"
            _jobset_condition(status, "StartupPolicyCompleted", "True", "InOrderStartupPolicyCompleted", text, now)
        return out

    def _resume(self, jobset: Object, status: Object, active: list[Object], counts: list[Object], now: int) -> Plan:
        spec = jobset["spec"]
        in_order = spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder"
        started = {c["name"]: c["ready"] + c["succeeded"] + c["failed"] for c in counts}
        clear: Phase = []
        resume: Phase = []
        for replicated in spec.get("replicatedJobs", ()):
            if self._waits(replicated, jobset, counts):
                continue
            if in_order and started.get(replicated["name"], 0) >= replicated["replicas"]:
                continue
            for job in active:
                if _replicated(job) == replicated["name"] and job["spec"].get("suspend"):
                    first, second = self._wake(job, replicated)
                    clear += first
                    resume.append(second)
            if in_order:
                return [clear, resume]
        _jobset_condition(status, "Suspended", "False", "ResumeJobs", "jobset is resumed", now)
        return [clear, resume]

    def _wake(self, job: Object, replicated: Object) -> tuple[Phase, Request]:
        kind = self._kind("batch", "jobs")
        clear: Phase = []
        if job.get("status", {}).get("startTime"):
            status = {k: v for k, v in job["status"].items() if k != "startTime"}
            clear = self._status(kind, job, status, JOBSET_USER, "jobset")
        template = replicated["template"]["spec"].get("template", {})
        mine, theirs = template.get("metadata", {}), template.get("spec", {})
        current = job["spec"]["template"]["spec"]

        def joined(name: str) -> list[Any] | None:
            both = [*current.get(name, ()), *(x for x in theirs.get(name, ()) if x not in current.get(name, ()))]
            return both or None

        spec: Object = {
            "nodeSelector": theirs.get("nodeSelector", {}),
            "tolerations": joined("tolerations"),
            "schedulingGates": joined("schedulingGates"),
        }
        meta = {"labels": mine.get("labels", {}), "annotations": mine.get("annotations", {})}
        body = {"spec": {"suspend": False, "template": {"metadata": meta, "spec": spec}}}
        return clear, self._patch(kind, job, body, JOBSET_USER, "jobset")

    def _child(self, jobset: Object, replicated: Object, index: int, restarts: int) -> Request:
        meta, spec = jobset["metadata"], jobset["spec"]
        name = f"{meta['name']}-{replicated['name']}-{index}"
        before = 0
        group_before = 0
        for other in spec["replicatedJobs"]:
            if other["name"] == replicated["name"]:
                break
            before += other["replicas"]
            group_before += other["replicas"] if other["groupName"] == replicated["groupName"] else 0
        prefix = "jobset.sigs.k8s.io/"
        group = [r for r in spec["replicatedJobs"] if r["groupName"] == replicated["groupName"]]
        marks = {
            JOBSET_NAME_LABEL: meta["name"],
            JOBSET_UID_LABEL: meta["uid"],
            JOBSET_REPLICATED_JOB_LABEL: replicated["name"],
            RESTARTS: str(restarts),
            prefix + "replicatedjob-replicas": str(replicated["replicas"]),
            prefix + "global-replicas": str(sum(r["replicas"] for r in spec["replicatedJobs"])),
            JOBSET_JOB_INDEX_LABEL: str(index),
            prefix + "job-key": hashlib.sha1(f"{meta['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest(),
            prefix + "job-global-index": str(before + index),
            prefix + "group-name": replicated["groupName"],
            prefix + "group-replicas": str(sum(r["replicas"] for r in group)),
            prefix + "job-group-index": str(group_before + index),
        }
        if spec.get("coordinator"):
            c = spec["coordinator"]
            subdomain = spec.get("network", {}).get("subdomain") or meta["name"]
            marks[prefix + "coordinator"] = (
                f"{meta['name']}-{c['replicatedJob']}-{c.get('jobIndex', 0)}-{c.get('podIndex', 0)}.{subdomain}"
            )
        exclusive: Object = {}
        for source in (meta.get("annotations", {}), replicated["template"].get("metadata", {}).get("annotations", {})):
            if JOBSET_EXCLUSIVE_TOPOLOGY in source:
                exclusive = {JOBSET_EXCLUSIVE_TOPOLOGY: source[JOBSET_EXCLUSIVE_TOPOLOGY]}
        template = copy(replicated["template"])
        job_spec = template["spec"]
        pod = job_spec.setdefault("template", {})
        for target in (template.setdefault("metadata", {}), pod.setdefault("metadata", {})):
            target["labels"] = {**target.get("labels", {}), **marks}
            target["annotations"] = {**target.get("annotations", {}), **marks, **exclusive}
        if spec.get("network", {}).get("enableDNSHostnames"):
            pod["spec"]["subdomain"] = spec["network"].get("subdomain") or meta["name"]
        job_spec["suspend"] = bool(spec.get("suspend"))
        owner = {
            "apiVersion": jobset["apiVersion"],
            "kind": "JobSet",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        job_meta = {**template["metadata"], "name": name, "namespace": meta["namespace"], "ownerReferences": [owner]}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": job_meta, "spec": job_spec}
        return Request(
            "create", self._kind("batch", "jobs"), meta["namespace"], "", body, manager="jobset", user=JOBSET_USER
        )

    def _remove(self, kind: Kind, job: Object) -> Request:
        return self._delete(kind, job, JOBSET_USER, propagationPolicy="Foreground")

    def _expire(self, jobset: Object, now: int) -> Phase:
        ttl = jobset["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return []
        due = _finished_at(jobset) + ttl * 1000
        if now < due:
            self.later((jobset["metadata"]["namespace"], jobset["metadata"]["name"]), due)
            return []
        return [self._delete(self._kind(JOBSET_GROUP, "jobsets"), jobset, JOBSET_USER, propagationPolicy="Foreground")]


def _replicated(job: Object) -> str:
    return str(job["metadata"].get("labels", {}).get(JOBSET_REPLICATED_JOB_LABEL, ""))


def _jobset_condition(status: Object, name: str, value: str, reason: str, message: str, now: int) -> None:
    """As JobSet sets conditions: nothing is added only to say False."""
    found = condition(status, name)
    if not found and value == "False":
        return
    if (found.get("status"), found.get("reason"), found.get("message")) == (value, reason, message):
        return
    since = found["lastTransitionTime"] if found.get("status") == value else stamp(now)
    made = {"type": name, "status": value, "lastTransitionTime": since, "reason": reason, "message": message}
    listed = list(status.get("conditions", ()))
    for index, other in enumerate(listed):
        if other["type"] == name:
            listed[index] = made
            break
    else:
        listed.append(made)
    pair = {
        "StartupPolicyCompleted": "StartupPolicyInProgress",
        "StartupPolicyInProgress": "StartupPolicyCompleted",
    }.get(name)
    status["conditions"] = [{**c, "status": "False"} if c["type"] == pair and value == "True" else c for c in listed]


# Scheduling


def pod_requests(pod: Object) -> dict[str, int]:
    """What a pod asks of its node: the sum of its containers or the largest init container, overhead added."""
    spec = pod["spec"]
    total: dict[str, int] = {}
    for container in spec.get("containers", ()):
        for name, amount in _amounts(container).items():
            total[name] = total.get(name, 0) + amount
    sidecars: dict[str, int] = {}
    largest: dict[str, int] = {}
    for container in spec.get("initContainers", ()):
        for name, amount in _amounts(container).items():
            if container.get("restartPolicy") == "Always":
                sidecars[name] = sidecars.get(name, 0) + amount
                total[name] = total.get(name, 0) + amount
            else:
                largest[name] = max(largest.get(name, 0), amount + sidecars.get(name, 0))
    out = {name: max(total.get(name, 0), largest.get(name, 0)) for name in {**total, **largest}}
    for name, text in (spec.get("overhead") or {}).items():
        out[name] = out.get(name, 0) + _parsed(name, text)
    out["pods"] = 1
    return out


def _amounts(container: Object) -> dict[str, int]:
    resources = container.get("resources", {})
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: _parsed(name, text) for name, text in asked.items()}


def _parsed(name: str, text: Any) -> int:
    try:
        return parse(name, text)
    except QuantityError:
        return 0


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The toleration that bears a taint, or None."""
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("key") not in (None, "", taint["key"]):
            continue
        if toleration.get("operator", "Equal") == "Exists" or toleration.get("value", "") == taint.get("value", ""):
            return toleration
    return None


def _expression(term: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    key, operator, wanted = term["key"], term["operator"], term.get("values") or []
    value = values.get(key)
    if operator in ("Gt", "Lt"):
        try:
            return (
                value is not None
                and (int(value) > int(wanted[0])) == (operator == "Gt")
                and int(value) != int(wanted[0])
            )
        except (ValueError, IndexError):
            return False
    return {
        "In": value is not None and value in wanted,
        "NotIn": value not in wanted,
        "Exists": key in values,
        "DoesNotExist": key not in values,
    }.get(operator, False)


def node_allows(pod: Object, node: Object) -> str:
    """Why a node may not take a pod whatever room it has, in the scheduler's words; empty where it may."""
    labels, spec = node["metadata"].get("labels", {}), pod["spec"]
    if any(labels.get(k) != v for k, v in spec.get("nodeSelector", {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        fields = {"metadata.name": node["metadata"]["name"]}
        for term in required.get("nodeSelectorTerms", ()):
            exprs, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
            if (
                (exprs or by_field)
                and all(_expression(e, labels) for e in exprs)
                and all(_expression(e, fields) for e in by_field)
            ):
                break
        else:
            return "node(s) didn't match Pod's node affinity/selector"
    if not _is(node, "Ready"):
        return "node(s) were not ready"
    tolerations = spec.get("tolerations", ())
    taints = list(node.get("spec", {}).get("taints", ()))
    if node.get("spec", {}).get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    for taint in taints:
        if taint["effect"] in ("NoSchedule", "NoExecute") and tolerates(tolerations, taint) is None:
            if taint["key"] == "node.kubernetes.io/unschedulable":
                return "node(s) were unschedulable"
            return f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


@dataclass
class Scheduler(Actor):
    """Binds pods to nodes, the emptiest first. A pod that fits nowhere is told so and tried again when something changed."""  # noqa: E501

    used: dict[str, dict[str, int]] = field(default_factory=dict)
    placed: dict[Key, tuple[str, dict[str, int]]] = field(default_factory=dict)
    waiting: dict[Key, None] = field(default_factory=dict)

    def see(self, kind: Kind, event: Event) -> None:
        if kind.id == ("", "nodes"):
            old = event.old.obj if event.old else None
            if (
                old is None
                or any(old.get(k) != event.new.obj.get(k) for k in ("spec", "status"))
                or old["metadata"].get("labels") != event.new.obj["metadata"].get("labels")
            ):
                self._again()
            return
        if kind.id != ("", "pods"):
            return
        pod, key = event.new.obj, event.key
        node = pod["spec"].get("nodeName", "")
        holds = event.type != "DELETED" and node and not _ended(pod)
        if key in self.placed and not holds:
            where, amounts = self.placed.pop(key)
            for name, amount in amounts.items():
                self.used[where][name] -= amount
            self._again()
        elif holds and key not in self.placed:
            amounts = pod_requests(pod)
            self.placed[key] = (node, amounts)
            book = self.used.setdefault(node, {})
            for name, amount in amounts.items():
                book[name] = book.get(name, 0) + amount
        if event.type == "DELETED" or node:
            self.waiting.pop(key, None)
        elif not node:
            old = event.old.obj if event.old else None
            if (
                old is None
                or old["spec"] != pod["spec"]
                or old["metadata"].get("deletionTimestamp") != pod["metadata"].get("deletionTimestamp")
            ):
                self.waiting[key] = None
                self.mark("", "")

    def _again(self) -> None:
        if self.waiting:
            self.mark("", "")

    def sync(self, where: Where, now: int) -> Plan:
        pods = []
        for key in self.waiting:
            pod = self.store.find("", "pods", *key)
            if pod is None or pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulingGates"):
                continue
            if pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler":
                pods.append(pod)
        pods.sort(
            key=lambda p: (
                -p["spec"].get("priority", 0),
                p["metadata"]["creationTimestamp"],
                int(p["metadata"]["resourceVersion"]),
            )
        )
        nodes = list(self.store.objects("", "nodes")) if pods else []
        assumed: dict[str, dict[str, int]] = {}
        binds: Phase = []
        told: Phase = []
        for pod in pods:
            node, why = self._choose(pod, nodes, assumed)
            if node is not None:
                name = node["metadata"]["name"]
                book = assumed.setdefault(name, {})
                for resource, amount in pod_requests(pod).items():
                    book[resource] = book.get(resource, 0) + amount
                meta = pod["metadata"]
                binds.append(binding(self._kind("", "pods"), meta["namespace"], meta["name"], name, now, SCHEDULER))
            else:
                told += self._tell(pod, why, now)
        return [binds, told]

    def _choose(
        self, pod: Object, nodes: list[Object], assumed: Mapping[str, Mapping[str, int]]
    ) -> tuple[Object | None, str]:
        if pod["spec"].get("affinity", {}).get("podAffinity") or pod["spec"].get("affinity", {}).get("podAntiAffinity"):
            return None, "the sandbox's scheduler knows no pod affinity"
        wanted = pod_requests(pod)
        best: tuple[float, str, Object] | None = None
        reasons: dict[str, int] = {}
        for node in nodes:
            why = node_allows(pod, node)
            name = node["metadata"]["name"]
            if not why:
                have = {"pods": "110", **node.get("status", {}).get("allocatable", {})}
                share = 0.0
                for resource, amount in wanted.items():
                    room = _parsed(resource, have.get(resource, "0"))
                    taken = self.used.get(name, {}).get(resource, 0) + assumed.get(name, {}).get(resource, 0)
                    if amount and taken + amount > room:
                        why = "Too many pods" if resource == "pods" else f"Insufficient {resource}"
                        break
                    share += taken / room if room else 0.0
                else:
                    candidate = (share, name, node)
                    if best is None or candidate[:2] < best[:2]:
                        best = candidate
            if why:
                reasons[why] = reasons.get(why, 0) + 1
        if best is not None:
            return best[2], ""
        if not nodes:
            return None, "no nodes available to schedule pods"
        listed = ", ".join(f"{n} {text}" for text, n in sorted(reasons.items()))
        return None, f"0/{len(nodes)} nodes are available: {listed}."

    def _tell(self, pod: Object, why: str, now: int) -> Phase:
        status = copy(pod.get("status", {}))
        if not _set(status, "PodScheduled", "False", "Unschedulable", why, now):
            return []
        note = self._event(pod, "FailedScheduling", why, now, "default-scheduler", "Warning")
        return [*self._status(self._kind("", "pods"), pod, status, SCHEDULER, "kube-scheduler"), note]


# Nodes


@dataclass
class Kubelets(Actor):
    """Every node's kubelet: pods start, run as long as their annotation says, end, and go when they are deleted."""

    silent: set[str] = field(default_factory=set)

    def see(self, kind: Kind, event: Event) -> None:
        if kind.id == ("", "pods") and event.new.obj["spec"].get("nodeName") and event.type != "DELETED":
            self.mark(*event.key)
        elif kind.id == ("", "nodes"):
            self.mark("", event.key[1])
            if (
                event.old is None
                or event.type == "DELETED"
                or _is(event.old.obj, "Ready") != _is(event.new.obj, "Ready")
            ):
                for pod in self.store.objects("", "pods"):
                    if pod["spec"].get("nodeName") == event.key[1]:
                        self.mark(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def sync(self, where: Where, now: int) -> Plan:
        if not where[0]:
            return self._node(where[1], now)
        pod = self.store.find("", "pods", *where)
        if pod is None or not pod["spec"].get("nodeName"):
            return []
        node = self.store.find("", "nodes", "", pod["spec"]["nodeName"])
        if node is None or _down(node) or not _is(node, "Ready"):
            return []
        return self._pod(pod, node, where, now)

    def _node(self, name: str, now: int) -> Plan:
        node = self.store.find("", "nodes", "", name)
        if node is None:
            return []
        if node["metadata"].get("annotations", {}).get(NODE_DOWN) == "true":
            self.silent.add(name)
            return []
        if condition(node.get("status", {}), "Ready") and name not in self.silent:
            return []  # It is, or somebody said that it is not; that stands.
        self.silent.discard(name)
        status = copy(node.get("status", {}))
        status.setdefault("capacity", dict(status.get("allocatable", {})))
        status["capacity"].setdefault("pods", "110")
        status.setdefault("allocatable", dict(status["capacity"]))
        status["allocatable"].setdefault("pods", "110")
        status.setdefault("nodeInfo", {
            "kubeletVersion": "v1.36.3-sandbox", "operatingSystem": "linux", "architecture": "amd64", "osImage": "sandbox",  # noqa: E501
            "kernelVersion": "", "containerRuntimeVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
            "kubeProxyVersion": "",
        })  # fmt: skip
        made = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": stamp(now),
            "lastTransitionTime": stamp(now),
        }
        status["conditions"] = [*(c for c in status.get("conditions", ()) if c["type"] != "Ready"), made]
        status.setdefault("phase", "Running")
        return [self._status(self._kind("", "nodes"), node, status, _kubelet(name), "kubelet")]

    def _pod(self, pod: Object, node: Object, where: Where, now: int) -> Plan:
        meta, status = pod["metadata"], pod.get("status", {})
        kind, user = self._kind("", "pods"), _kubelet(node["metadata"]["name"])
        if meta.get("deletionTimestamp"):
            if meta.get("deletionGracePeriodSeconds") == 0:
                return []
            begun = moment(meta["deletionTimestamp"]) - (meta.get("deletionGracePeriodSeconds") or 0) * 1000
            if now < begun + STOP_MS:
                self.later(where, begun + STOP_MS)
                return []
            failed: Phase = []
            if meta.get("finalizers") and not _ended(pod):
                # Who tracks the pod sees how it ended before it goes.
                failed = self._status(kind, pod, {**status, "phase": "Failed", "reason": "Terminated"}, user, "kubelet")
            return [failed, [self._delete(kind, pod, user, gracePeriodSeconds=0)]]
        phase = status.get("phase", "Pending")
        if phase == "Pending":
            bound = moment(condition(status, "PodScheduled").get("lastTransitionTime") or meta["creationTimestamp"])
            if now < bound + START_MS:
                self.later(where, bound + START_MS)
                return []
            return [self._status(kind, pod, self._running(pod, now), user, "kubelet")]
        if phase == "Running":
            return self._run(pod, where, now, kind, user)
        return []

    def _running(self, pod: Object, now: int) -> Object:
        status: Object = copy(pod.get("status", {}))
        status["phase"] = "Running"
        status["startTime"] = stamp(now)
        digest = hashlib.sha256(pod["metadata"]["uid"].encode()).digest()
        status["podIP"] = f"10.{digest[0]}.{digest[1]}.{digest[2]}"
        status["podIPs"] = [{"ip": status["podIP"]}]
        status["hostIP"] = "127.0.0.1"
        for name in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"):
            made = {"type": name, "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp(now)}
            status["conditions"] = [*(c for c in status.get("conditions", ()) if c["type"] != name), made]
        status["containerStatuses"] = [
            {"name": c["name"], "image": c.get("image", ""), "imageID": "", "ready": True, "started": True, "restartCount": 0,  # noqa: E501
             "state": {"running": {"startedAt": stamp(now)}}}
            for c in pod["spec"]["containers"]
        ]  # fmt: skip
        return status

    def _run(self, pod: Object, where: Where, now: int, kind: Kind, user: User) -> Plan:
        annotations = pod["metadata"].get("annotations", {})
        begun = moment(pod["status"].get("startTime") or pod["metadata"]["creationTimestamp"])
        owner = _controller(pod)
        fails = annotations.get(FAIL) == "true"
        if fails or RUN_TIME in annotations or (owner is not None and owner["kind"] == "Job"):
            text = annotations.get(FAIL_AFTER) if fails else None
            text = text or annotations.get(RUN_TIME)
            due = begun + (int(span(text) / self.time_scale) if text else 1000)
        else:
            return []
        phase = "Failed" if fails else "Succeeded"
        if now < due:
            self.later(where, due)
            return []
        status = copy(pod["status"])
        restarts = sum(c.get("restartCount", 0) for c in status["containerStatuses"])
        if phase == "Failed" and pod["spec"].get("restartPolicy") != "Never":
            status["startTime"] = stamp(now)
            for container in status["containerStatuses"]:
                container["restartCount"] = restarts + 1
                container["state"] = {"running": {"startedAt": stamp(now)}}
            self.later(where, now + 1)
            return [self._status(kind, pod, status, user, "kubelet")]
        status["phase"] = phase
        code, reason = (0, "Completed") if phase == "Succeeded" else (1, "Error")
        for container in status["containerStatuses"]:
            container.update(ready=False, started=False)
            container["state"] = {
                "terminated": {
                    "exitCode": code,
                    "reason": reason,
                    "startedAt": status.get("startTime"),
                    "finishedAt": stamp(now),
                }
            }
        for found in status["conditions"]:
            if found["type"] in ("Ready", "ContainersReady"):
                found.update(status="False", lastTransitionTime=stamp(now), reason="PodCompleted")
        return [self._status(kind, pod, status, user, "kubelet")]


def _down(node: Object) -> bool:
    return bool(node["metadata"].get("annotations", {}).get(NODE_DOWN) == "true")


@dataclass
class NodeLifecycle(Actor):
    """What happens to nodes that fall silent, and to the pods on them."""

    since: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, taint key) -> when the taint came."""

    def see(self, kind: Kind, event: Event) -> None:
        if kind.id == ("", "nodes"):
            self.mark("", event.key[1])
        elif kind.id == ("", "pods") and event.type != "DELETED":
            node = event.new.obj["spec"].get("nodeName")
            if node and (event.old is None or not event.old.obj["spec"].get("nodeName")):
                self.mark("", node)
            if not node and event.new.obj["metadata"].get("deletionTimestamp"):
                self.mark(*event.key)

    def sync(self, where: Where, now: int) -> Plan:
        if where[0]:
            return self._unbound(where, now)
        node = self.store.find("", "nodes", *where)
        if node is None:
            return self._collect(where, now)
        return [*self._health(node, now), *self._evict(node, where, now)]

    def _health(self, node: Object, now: int) -> Plan:
        kind, name = self._kind("", "nodes"), node["metadata"]["name"]
        status = copy(node.get("status", {}))
        if _down(node) and condition(status, "Ready").get("status") != "Unknown":
            made = {
                "type": "Ready",
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": stamp(now),
                "lastTransitionTime": stamp(now),
            }
            status["conditions"] = [*(c for c in status.get("conditions", ()) if c["type"] != "Ready"), made]
            unready = [self._patch_status(pod, now) for pod in self._on(name) if _is(pod, "Ready")]
            return [
                self._status(kind, node, status, NODE_USER, "kube-controller-manager"),
                [r for p in unready for r in p],
            ]
        state = condition(status, "Ready").get("status", "True")
        wanted = {"Unknown": "node.kubernetes.io/unreachable", "False": "node.kubernetes.io/not-ready"}.get(state, "")
        taints = [
            t for t in node.get("spec", {}).get("taints", ()) if not t["key"].endswith(("/unreachable", "/not-ready"))
        ]
        have = [t for t in node.get("spec", {}).get("taints", ()) if t not in taints]
        if {t["key"] for t in have} == ({wanted} if wanted else set()):
            return []
        if wanted:
            taints += [
                {"key": wanted, "effect": "NoSchedule", "timeAdded": stamp(now)},
                {"key": wanted, "effect": "NoExecute", "timeAdded": stamp(now)},
            ]
        return [[self._patch(kind, node, {"spec": {"taints": taints or None}}, NODE_USER, "kube-controller-manager")]]

    def _patch_status(self, pod: Object, now: int) -> Phase:
        status = copy(pod["status"])
        for found in status.get("conditions", ()):
            if found["type"] == "Ready":
                found.update(status="False", lastTransitionTime=stamp(now))
        return self._status(self._kind("", "pods"), pod, status, NODE_USER, "kube-controller-manager")

    def _on(self, node: str) -> Iterator[Object]:
        return (p for p in self.store.objects("", "pods") if p["spec"].get("nodeName") == node)

    def _evict(self, node: Object, where: Where, now: int) -> Plan:
        taints = [t for t in node.get("spec", {}).get("taints", ()) if t["effect"] == "NoExecute"]
        if not taints:
            return []
        marked: Phase = []
        gone: Phase = []
        for pod in self._on(node["metadata"]["name"]):
            if pod["metadata"].get("deletionTimestamp") or _ended(pod):
                continue
            due = self._evicted_at(pod, taints, now)
            if due is None:
                continue
            if now < due:
                self.later(where, due)
                continue
            status = copy(pod.get("status", {}))
            _set(
                status,
                "DisruptionTarget",
                "True",
                "DeletionByTaintManager",
                "Taint manager: deleting due to NoExecute taint",
                now,
            )
            marked += self._status(self._kind("", "pods"), pod, status, NODE_USER, "kube-controller-manager")
            gone.append(self._delete(self._kind("", "pods"), pod, NODE_USER))
        return [marked, gone]

    def _evicted_at(self, pod: Object, taints: list[Object], now: int) -> int | None:
        """When the taints drive a pod away; None for never."""
        ends = []
        for taint in taints:
            toleration = tolerates(pod["spec"].get("tolerations", ()), taint)
            added = moment(taint["timeAdded"]) if taint.get("timeAdded") else now
            if toleration is None:
                ends.append(added)
            elif toleration.get("tolerationSeconds") is not None:
                ends.append(added + max(toleration["tolerationSeconds"], 0) * 1000)
        return min(ends, default=None)

    def _unbound(self, where: Where, now: int) -> Plan:
        """A pod that is deleted and was never bound has no kubelet that would say that it ended."""
        pod = self.store.find("", "pods", *where)
        if pod is None or pod["spec"].get("nodeName") or not pod["metadata"].get("deletionTimestamp"):
            return []
        period = max(int(UNBOUND_MS / self.time_scale), 1)
        due = (moment(pod["metadata"]["deletionTimestamp"]) // period + 1) * period
        if now < due:
            self.later(where, due)
            return []
        status = {**pod.get("status", {}), "phase": pod["status"]["phase"] if _ended(pod) else "Failed"}
        return [
            self._status(self._kind("", "pods"), pod, status, NODE_USER, "kube-controller-manager"),
            [self._delete(self._kind("", "pods"), pod, NODE_USER, gracePeriodSeconds=0)],
        ]

    def _collect(self, where: Where, now: int) -> Plan:
        """Pods of a node that is no more fail and go, after a moment in which it could come back."""
        pods = list(self._on(where[1]))
        if not pods:
            self.since.pop((where[1], "gone"), None)
            return []
        due = self.since.setdefault((where[1], "gone"), now) + GONE_NODE_MS
        if now < due:
            self.later(where, due)
            return []
        self.since.pop((where[1], "gone"))
        marked: Phase = []
        for pod in pods:
            if not _ended(pod):
                status = copy(pod.get("status", {}))
                status["phase"] = "Failed"
                _set(status, "DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists", now)
                marked += self._status(self._kind("", "pods"), pod, status, NODE_USER, "kube-controller-manager")
        return [marked, [self._delete(self._kind("", "pods"), p, NODE_USER, gracePeriodSeconds=0) for p in pods]]


# Garbage


@dataclass
class Collector(Actor):
    """Deletes what nobody owns any more, and carries out foreground deletion and orphaning."""

    objects: dict[Where, tuple[tuple[str, str], Key]] = field(default_factory=dict)

    def see(self, kind: Kind, event: Event) -> None:
        meta = event.new.obj["metadata"]
        uid = meta["uid"]
        if event.type == "DELETED":
            if uid in self.store.dependents:
                self.mark("owner", uid)
            for owner in meta.get("ownerReferences", ()):
                self.mark("", owner["uid"])
            return
        if meta.get("deletionTimestamp") and set(meta.get("finalizers", ())) & {"orphan", "foregroundDeletion"}:
            self.mark("", uid)
        if meta.get("ownerReferences") and (
            event.old is None or event.old.obj["metadata"].get("ownerReferences") != meta["ownerReferences"]
        ):
            for owner in meta["ownerReferences"]:
                if owner["uid"] not in self.store.uids:
                    self.mark("owner", owner["uid"])

    def sync(self, where: Where, now: int) -> Plan:
        form, uid = where
        dependents = self._dependents(uid)
        if form == "owner":
            return [[r for kind, obj in dependents for r in self._dangling(kind, obj)]]
        found = self.store.uids.get(uid)
        if found is None:
            return []
        kind = self.store.kind(*found[0])
        owner = self.store.find(*found[0], *found[1])
        if kind is None or owner is None:
            return []
        finalizers = owner["metadata"].get("finalizers", [])
        if "orphan" in finalizers:
            release = [self._disown(k, o, {uid}) for k, o in dependents]
            return [release, [self._unfinalize(kind, owner, "orphan")]]
        if "foregroundDeletion" in finalizers:
            blocking = [
                (k, o)
                for k, o in dependents
                if any(r["uid"] == uid and r.get("blockOwnerDeletion") for r in o["metadata"]["ownerReferences"])
            ]
            kill = [self._kill(k, o, "Foreground") for k, o in dependents if not o["metadata"].get("deletionTimestamp")]
            return [kill, [] if blocking else [self._unfinalize(kind, owner, "foregroundDeletion")]]
        return []

    def _dependents(self, uid: str) -> list[tuple[Kind, Object]]:
        out = []
        for kind_id, key in list(self.store.dependents.get(uid, ())):
            kind, obj = self.store.kind(*kind_id), self.store.find(*kind_id, *key)
            if kind is not None and obj is not None:
                out.append((kind, obj))
        return out

    def _dangling(self, kind: Kind, obj: Object) -> Phase:
        if obj["metadata"].get("deletionTimestamp"):
            return []
        owners = obj["metadata"].get("ownerReferences", ())
        dead = {o["uid"] for o in owners if not self._alive(o, obj)}
        if not dead:
            return []
        if len(dead) == len(owners):
            return [self._kill(kind, obj, "Background")]
        return [self._disown(kind, obj, dead)]

    def _alive(self, owner: Object, obj: Object) -> bool:
        found = self.store.uids.get(owner["uid"])
        if found is not None:
            # An owner in another namespace is none.
            return found[1][0] in ("", obj["metadata"].get("namespace", ""))
        # Of a kind that is not served nothing is known.
        return self.store.kind_of(owner["apiVersion"], owner["kind"]) is None

    def _kill(self, kind: Kind, obj: Object, policy: str) -> Request:
        return self._delete(kind, obj, GC_USER, propagationPolicy=policy)

    def _disown(self, kind: Kind, obj: Object, uids: set[str]) -> Request:
        left = [o for o in obj["metadata"]["ownerReferences"] if o["uid"] not in uids]
        return self._patch(
            kind, obj, {"metadata": {"ownerReferences": left or None}}, GC_USER, "kube-controller-manager"
        )

    def _unfinalize(self, kind: Kind, obj: Object, name: str) -> Request:
        left = [x for x in obj["metadata"]["finalizers"] if x != name]
        return self._patch(kind, obj, {"metadata": {"finalizers": left or None}}, GC_USER, "kube-controller-manager")


@dataclass
class Namespaces(Actor):
    """Gives each namespace its service account, and empties those that are being deleted."""

    def see(self, kind: Kind, event: Event) -> None:
        if kind.id == ("", "namespaces"):
            self.mark("", event.key[1])
        elif event.type == "DELETED" and kind.namespaced:
            self.mark("", event.key[0])

    def sync(self, where: Where, now: int) -> Plan:
        namespace = self.store.find("", "namespaces", *where)
        if namespace is None:
            return []
        if not namespace["metadata"].get("deletionTimestamp"):
            if self.store.find("", "serviceaccounts", where[1], "default") is not None:
                return []
            body = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": where[1]},
            }
            return [
                [
                    Request(
                        "create",
                        self._kind("", "serviceaccounts"),
                        where[1],
                        "",
                        body,
                        manager="kube-controller-manager",
                        user=NAMESPACE_USER,
                    )
                ]
            ]
        out: Phase = []
        left = 0
        for kind in self.store.kinds():
            if not kind.namespaced:
                continue
            for obj in self.store.objects(*kind.id, where[1]):
                left += 1
                if not obj["metadata"].get("deletionTimestamp"):
                    out.append(self._delete(kind, obj, NAMESPACE_USER, propagationPolicy="Background"))
        if left:
            return [out]
        return [
            [
                self._patch(
                    self._kind("", "namespaces"),
                    namespace,
                    {"spec": {"finalizers": None}},
                    NAMESPACE_USER,
                    "kube-controller-manager",
                )
            ]
        ]


class Cluster:
    """All actors over one store, in a fixed order."""

    def __init__(self, store: Store, *, time_scale: float = 1.0) -> None:
        makers: list[Callable[..., Actor]] = [Collector, Namespaces, JobSets, Jobs, Scheduler, Kubelets, NodeLifecycle]
        self.actors = [make(store, time_scale) for make in makers]
        for kind in store.kinds():
            for stored in store.page(kind)[0]:
                meta = stored.obj["metadata"]
                key = (meta.get("namespace", "") if kind.namespaced else "", meta["name"])
                self._on_event(kind, Event(stored.revision, "ADDED", key, stored, None))
        store.listeners.append(self._on_event)

    def _on_event(self, kind: Kind, event: Event) -> None:
        for actor in self.actors:
            actor.see(kind, event)

    def step(self, now: int) -> tuple[list[Plan], int | None]:
        """(plans of writes, when to step again if nothing happens). Plans do not depend on each other."""
        plans: list[Plan] = []
        for actor in self.actors:
            plans += actor.step(now)
        timers = [actor.timers[0][0] for actor in self.actors if actor.timers]
        return plans, min(timers, default=None)

    def failed(self, request: Request, refused: Refused, now: int) -> None:
        """A write was refused: look at its object again after a while. What is gone or there already needs nothing."""
        if refused.code == 404 or refused.reason == "AlreadyExists":
            return
        again = now + 1000
        namespace, name = request.namespace, request.name
        if request.verb == "create":
            controller = _controller(request.body) if isinstance(request.body, dict) else None
            if controller is None:
                return
            name = str(controller["name"])
        where = (namespace, str(name))
        for actor in self.actors:
            if isinstance(actor, Scheduler):
                actor.later(("", ""), again)
            elif isinstance(actor, Collector):
                stale = self_uid(actor.store, request)
                if stale:
                    actor.later(("", stale), again)
            else:
                actor.later(where, again)
        for owner in _owners_of(self.actors[0].store, request):
            for actor in self.actors:
                if isinstance(actor, Jobs | JobSets):
                    actor.later((namespace, owner), again)


def self_uid(store: Store, request: Request) -> str:
    """The uid of the object that a write was about, or nothing."""
    found = store.find(*request.kind.id, request.namespace, request.name)
    return str(found["metadata"]["uid"]) if found else ""


def _owners_of(store: Store, request: Request) -> list[str]:
    found = store.find(*request.kind.id, request.namespace, request.name)
    return [o["name"] for o in found["metadata"].get("ownerReferences", ())] if found else []


def settle(store: Store, cluster: Cluster, now: int, until: int, every: Callable[[int], None] | None = None) -> int:
    """Run a cluster in process, without a front, up to a time; returns the time of the last step. Admission hooks of the
    store apply; a refused write is tried again by its actor."""  # noqa: E501
    while now <= until:
        plans, due = cluster.step(now)
        for plan in plans:
            for phase in plan:
                for request in phase:
                    try:
                        store.do(request, now)
                    except Refused as refused:
                        cluster.failed(request, refused, now)
        if every is not None:
            every(now)
        if plans:
            continue
        if due is None:
            return now
        now = max(due, now + 1)
    return until
