"""Judges a recorded run by the invariants that every run must keep, at every revision.

    violations = check(log)
    assert not violations, report(violations)

What is judged (I7 by comparing `end_state` of two runs):

I1  quota: a new reservation fits the quota, borrowing and lending of its queue and of every cohort above it
I2  nodes: what is bound to a node fits what it has
I3  gang: an unsuspended job has a reservation of exactly its pod sets
I4  identity: one live reservation per job uid; label and owner of a Workload name the same uid
I5  release: quota is given back only when no live pod of the job is left
I6  restore: what an eviction leaves of a job is what its user wrote
I8  quiet: `check_quiet`, over audit events: nothing is written when nothing happens
I9  no lost job: at the end each job is queued, reserved, running, finished, or rejected with a reason
I10 fencing: `check_fencing`, over audit events: a former leader writes nothing after its successor
I11 accounting: at the end the queues' reported reservations are the sum of the Workloads', deleted ones whose pods live
    on among them
I12 told: a reservation is taken back by an eviction, which says why
I13 kept: no reservation is written over by another: one loses pods that are done, and changes nodes that were lost

While two lead, I4, I6, I12 and I13 hold as ever, for each write stands on the version that it was decided on. What
takes two objects may be decided twice: what is then given beyond quota (I1), runs without a reservation (I3) or is
released while it runs (I5) must be put right within `notice` after the second is gone.

The judge replays the log: it knows at each revision what existed then, and compares. It reads the API's own shapes
(Kueue's v1beta2, in `group`) and shares no code with the controller.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from e2e.api_client import Object, condition, finished
from e2e.event_log import DELETED, Entry, EventLog
from e2e.quantities import Resources, milli, pod_requests, resources
from e2e.quota_tree import QuotaTree, Usage

LISTED_DEVICES = "e2e/listed-devices"
"""Annotation of a node whose devices a driver lists: how many of each resource that makes, as a JSON resource list."""


@dataclasses.dataclass(frozen=True)
class Violation:
    invariant: str
    revision: int
    object: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} at revision {self.revision}, {self.object}: {self.message}"


@dataclasses.dataclass
class Figures:
    """What a run was like, in counts and seconds."""

    jobs: int = 0
    starts: int = 0
    evictions: int = 0
    partial_gangs: int = 0  # gangs of which one pod was bound while another was found unschedulable
    overcommitted_nodes: int = 0
    max_unschedulable: float = 0.0  # the longest that a pod of a managed job was unschedulable
    waits: dict[str, float] = dataclasses.field(default_factory=dict)  # job -> seconds from creation to reservation
    ready: dict[str, float] = dataclasses.field(default_factory=dict)  # job -> from reservation to all pods running


@dataclasses.dataclass(frozen=True)
class Reservation:
    """What a Workload holds: a queue, an amount, and how many pods of each pod set."""

    queue: str
    usage: Usage
    counts: dict[str, int]
    per_pod: dict[str, Usage]


@dataclasses.dataclass(frozen=True)
class Settings:
    """`started` and before is taken as found. The rest, in seconds: quota that was changed less than `settle` ago is
    still a fair ground for a reservation, and a job younger than that may still be unqueued; a pod on a node that has
    been lost for `lost_after` holds nothing; a job that waits longer than `explain_after` must have been told why; one
    whose Workload is deleted under it is stopped within `notice`: nothing in the API could keep that from happening; of
    Workloads that were deleted before `watching` the controller that reports knows nothing. `rivalries`: from when
    until when two led."""

    group: str = "muster.dev"
    started: int = 0
    settle: float = 2.0
    lost_after: float = 0.0
    explain_after: float = 10.0
    notice: float = 10.0
    watching: float = 0.0
    rivalries: Sequence[tuple[float, float]] = ()


def check(log: EventLog | Sequence[Entry], *, at_end: bool = True, **settings: Any) -> list[Violation]:
    """All violations in a log. `at_end` False leaves out what must hold only once a run has come to rest."""
    return replay(log, at_end=at_end, **settings).violations


def figures(log: EventLog | Sequence[Entry], **settings: Any) -> Figures:
    return replay(log, at_end=False, **settings).figures


def report(violations: Sequence[Violation], limit: int = 20) -> str:
    lines = [f"{len(violations)} violations: {dict(Counter(v.invariant for v in violations))}"]
    lines += map(str, violations[:limit])
    return "\n".join(lines)


def replay(log: EventLog | Sequence[Entry], *, at_end: bool = True, **settings: Any) -> Judge:
    """The judge after the whole log, with violations and figures."""
    if isinstance(log, EventLog):
        settings.setdefault("started", log.started)
        log = log.entries()
    judge = Judge(Settings(**settings))
    started = judge.settings.started
    for entry in sorted(log, key=lambda e: (max(e.revision, started), _ORDER.get(e.kind, 0) * (e.revision <= started))):
        judge.see(entry)
    if at_end:
        judge.conclude()
    return judge


# What was there at the start comes in the order in which things refer to each other, whatever was listed first.
_ORDER = {"JobSet": 1, "Job": 2, "Node": 3, "Workload": 4, "Pod": 5}


class Judge:
    """Sees the log entry by entry and keeps what it needs of the cluster as it was."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.violations: list[Violation] = []
        self.figures = Figures()
        self.jobs: dict[str, Object] = {}  # Jobs and JobSets, by uid
        self.workloads: dict[str, Object] = {}
        self.reservations: dict[str, Reservation] = {}  # by uid of the Workload
        self._placed: dict[str, Places] = {}
        self._queue_label = f"{settings.group}/queue-name"
        self._uid_label = f"{settings.group}/job-uid"
        self._revision = 0
        self._now = 0.0
        self._told: set[tuple[str, str]] = set()
        # jobs
        self._root: dict[str, str] = {}  # uid of a Job -> that of the JobSet that controls it, else its own
        self._first: dict[str, Entry] = {}
        self._original: dict[str, Object] = {}  # what a reserved job looked like, as its user wrote it
        self._noted: set[str] = set()  # uids of jobs that bore what a start wrote into them
        self._ran: set[str] = set()  # jobs unsuspended under their present reservation
        self._reserved_at: dict[str, float] = {}
        self._ended: dict[str, int] = {}  # completions that a Job had behind it when it was last reserved
        self._reserved_for: dict[str, str] = {}  # uid of a job -> uid of the Workload that holds for it
        self._bereft: dict[str, float] = {}  # jobs that ran when their Workload was deleted, and when that was
        # pods and nodes
        self._pods: dict[str, Object] = {}
        self._live: dict[str, set[str]] = defaultdict(set)  # uid of a job -> its pods that have not ended
        self._job_of_pod: dict[str, str] = {}
        self._running: dict[str, set[str]] = defaultdict(set)
        self._unschedulable: dict[str, float] = {}
        self._partial: set[str] = set()
        self._nodes: dict[str, Object] = {}
        self._lost: dict[str, float] = {}
        self._bound: dict[str, dict[str, Resources]] = defaultdict(dict)  # node -> pod uid -> requests
        self._load: dict[str, Resources] = defaultdict(Counter)
        self._overcommitted: set[str] = set()
        # quota
        self._queues: dict[str, Object] = {}
        self._cohorts: dict[str, Object] = {}
        self._built: QuotaTree | None = None
        self._changed: float | None = None  # since when it is not the tree of now
        self._last_change = 0.0
        self._former: list[tuple[float, QuotaTree]] = []  # until when a tree was in force
        self._charged: dict[str, Usage] = defaultdict(Counter)  # queue -> usage
        self._ghosts: dict[str, Reservation] = {}  # of deleted Workloads whose pods are not gone, by uid of the job
        self._ghost_since: dict[str, float] = {}
        self._ghost_pods: dict[str, tuple[str, Usage]] = {}
        self._overdrawn: dict[str, tuple[float, Usage]] = {}  # what two leaders let in; until when, and what of it

    # -- the replay ----------------------------------------------------------------------------------------------

    def see(self, entry: Entry) -> None:
        for uid in [uid for uid, since in self._bereft.items() if entry.at - since > self.settings.notice]:
            self._unstopped(uid)
        for uid in [uid for uid, (until, _) in self._overdrawn.items() if entry.at > until]:
            self._not_put_right(uid)
        self._revision, self._now = entry.revision, entry.at
        {
            "Job": self._job,
            "JobSet": self._job,
            "Pod": self._pod,
            "Node": self._node,
            "Workload": self._workload,
            "ClusterQueue": self._quota,
            "Cohort": self._quota,
        }.get(entry.kind, lambda _: None)(entry)

    def _violation(self, invariant: str, name: str, message: str, once: str = "") -> None:
        """Noted, unless the log had not begun; with `once`, only the first with this key."""
        if self._revision <= self.settings.started:
            return
        if once:
            if (invariant, once) in self._told:
                return
            self._told.add((invariant, once))
        self.violations.append(Violation(invariant, self._revision, name, message))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _job(self, entry: Entry) -> None:
        uid, job = entry.uid, entry.object
        owner = _controller(job)
        root = owner["uid"] if owner is not None and owner["kind"] == "JobSet" else uid
        self._root[uid] = root
        if entry.type == DELETED:
            self.jobs.pop(uid, None)
            return
        before = self.jobs.get(uid)
        self.jobs[uid] = job
        if root != uid:
            self._child(entry, root)
            return
        if not self._managed(job):
            return
        if uid not in self._first:
            self._first[uid] = entry
            self.figures.jobs += 1
        if not _suspended(job):
            if before is None or _suspended(before):
                self.figures.starts += 1
            if uid in self._reserved_for:
                self._ran.add(uid)
            self._gang(uid, entry.name)
        elif uid in self._reserved_for and uid not in self._ran:
            self._original[uid] = job  # changed by its user before it was started
        elif uid in self._reserved_for and before is not None and self._changed_since_restored(before, job):
            self._restored(uid, before)
            self._original[uid] = job
        if _suspended(job):
            self._told.discard(("I3", uid))
            if job["kind"] == "Job":  # a JobSet's controller stops its Jobs some time after it
                self._bereft.pop(uid, None)

    def _changed_since_restored(self, before: Object, job: Object) -> bool:
        """By its user, after what its start wrote was taken back and before its reservation was."""
        uid, note = job["metadata"]["uid"], f"{self.settings.group}/restore"
        if any(note in (one["metadata"].get("annotations") or {}) for one in (before, job)):
            self._noted.add(uid)
            return False
        return uid in self._noted and _suspended(before) and before["spec"] != job["spec"]

    def _child(self, entry: Entry, root: str) -> None:
        """The Jobs of a managed JobSet run under its reservation."""
        jobset, job = self.jobs.get(root), entry.object
        if jobset is None or not self._managed(jobset) or finished(jobset) or _going(jobset):
            return
        if _suspended(job) or finished(job) or _going(job) or root in self._reserved_for or root in self._bereft:
            return
        self._violation("I3", entry.name, "runs although its JobSet has no reservation", once=entry.uid)

    def _managed(self, job: Object) -> bool:
        return self._queue_label in (job["metadata"].get("labels") or {})

    def _gang(self, uid: str, name: str) -> None:
        """I3 for one job that may be running."""
        job = self.jobs.get(uid)
        if job is None or not self._managed(job) or _suspended(job) or finished(job) or _going(job):
            return
        holder = self._reserved_for.get(uid)
        if holder is None:
            if self._rivalry() is not None:
                self._bereft.setdefault(uid, self._now)
            if uid not in self._bereft:
                self._violation("I3", name, "is not suspended and has no reservation", once=uid)
            return
        held, needed = self.reservations[holder].counts, pod_sets(job)
        if job["kind"] == "Job":  # its only pod set may have any name
            left = _completions(job) - self._ended.get(uid, 0)
            held, needed = {"": sum(held.values())}, {"": min(sum(needed.values()), left)}
        else:  # of what is done nothing runs again, unless the set restarts
            needed = {k: v for k, v in needed.items() if held.get(k) or k not in _over(job)}
        if {k: v for k, v in held.items() if v} != {k: v for k, v in needed.items() if v}:
            self._violation("I3", name, f"needs pods {needed} and has reserved {held}", once=uid)
        self._requests(uid, name, job, self.reservations[holder])

    def _unstopped(self, uid: str) -> None:
        """Nothing in the API could keep its Workload from being deleted under it; but that it was has been seen now."""
        del self._bereft[uid]
        job = self.jobs.get(uid)
        if job is not None:
            self._gang(uid, _name(job))

    def _requests(self, uid: str, name: str, job: Object, held: Reservation) -> None:
        """I3: what is charged for a pod is not less than what its template asks for."""
        charged = held.per_pod
        for pod_set, template in templates(job).items():
            usage = charged.get(pod_set) or (next(iter(charged.values())) if len(charged) == 1 else Counter())
            by_resource: Resources = Counter()
            for (_, resource), amount in usage.items():
                by_resource[resource] += amount
            for resource, asked in pod_requests(template.get("spec") or {}).items():
                if resource in by_resource and by_resource[resource] < asked:
                    text = f"a pod of {pod_set or 'it'} asks for {asked / 1000:g} {resource}"
                    text += f", charged {by_resource[resource] / 1000:g}"
                    self._violation("I3", name, text, once=f"{uid} requests")

    # -- workloads -----------------------------------------------------------------------------------------------

    def _workload(self, entry: Entry) -> None:
        uid, workload = entry.uid, entry.object
        gone = entry.type == DELETED
        job_uid = self._identity(entry)
        before = self.reservations.get(uid)
        after = None if gone or condition(workload, "Finished") == "True" else reservation(workload)
        if gone:
            self.workloads.pop(uid, None)
        else:
            self.workloads[uid] = workload
        if before is not None and after is None and not gone and not self._says_why(workload):
            self._violation("I12", entry.name, "is released, and no eviction says why")
        if before is not None and after is not None:
            self._kept(entry, before, after)
        self._placed[uid] = _places(workload)
        if gone:
            del self._placed[uid]
        if before == after:
            return
        if before is not None:
            self._charge(before, -1)
        if after is not None:
            self._exorcise(job_uid)
            self.reservations[uid] = after
            self._charge(after, 1)
            risen = after.usage - before.usage if before and before.queue == after.queue else after.usage
            self._fits(entry.name, after.queue, risen, uid)
            if before is None:
                self._reserve(entry, uid, job_uid)
        elif before is not None:
            del self.reservations[uid]
            self._overdrawn.pop(uid, None)
            self._release(entry, before, uid, job_uid)

    def _says_why(self, workload: Object) -> bool:
        done = any(condition(workload, kind) == "True" for kind in ("Evicted", "Finished"))
        return done or _going(workload)

    def _kept(self, entry: Entry, before: Reservation, after: Reservation) -> None:
        """I13."""
        was, now = self._placed.get(entry.uid), _places(entry.object)
        if was is None:
            return
        same = before.queue == after.queue and was.flavors == now.flavors
        fewer = all(n <= before.counts.get(name, 0) for name, n in after.counts.items())
        moved = was.nodes != now.nodes and not was.lost and was.done == now.done
        if not same or not fewer or moved:
            self._violation("I13", entry.name, f"its reservation was {was}, and is written over by {now}")

    def _identity(self, entry: Entry) -> str:
        """The job that a Workload stands for, and I4 for its names."""
        meta = entry.object["metadata"]
        owner = _controller(entry.object)
        label = (meta.get("labels") or {}).get(self._uid_label)
        owned = str(owner["uid"]) if owner is not None else None
        # Whoever deletes a job and lets its dependents be takes the owner from them: the label says whose it was.
        if entry.type != DELETED and owned and label != owned:
            self._violation("I4", entry.name, f"label names job {label}, owner is {owned}", once=entry.uid)
        job = self.jobs.get(owned or "")
        if owner is not None and job is not None and job["metadata"]["name"] != owner["name"]:
            self._violation("I4", entry.name, f"owner {owner['name']} has another name", once=f"{entry.uid} name")
        return str(owned or label or "")

    def _reserve(self, entry: Entry, uid: str, job_uid: str) -> None:
        if not job_uid:
            return
        other = self._reserved_for.get(job_uid)
        if other is not None and other != uid:
            name = self.workloads[other]["metadata"]["name"]
            self._violation("I4", entry.name, f"job {job_uid} has a live reservation already, {name}")
        self._reserved_for[job_uid] = uid
        self._bereft.pop(job_uid, None)
        self._reserved_at[job_uid] = self._now
        self._ran.discard(job_uid)
        job, first = self.jobs.get(job_uid), self._first.get(job_uid)
        if job is not None and _suspended(job):
            self._original[job_uid] = job
        if job is not None and job["kind"] == "Job":
            self._ended[job_uid] = _completions(job) - _left(job)
        if first is not None:
            self.figures.waits.setdefault(first.name, self._now - first.at)

    def _release(self, entry: Entry, held: Reservation, uid: str, job_uid: str) -> None:
        if not job_uid or self._reserved_for.get(job_uid) != uid:
            return
        del self._reserved_for[job_uid]
        if entry.type == DELETED:
            self._bereft[job_uid] = self._now
        left = self._holding(job_uid)
        job = self.jobs.get(job_uid)
        if entry.type == DELETED:
            self._ghosts[job_uid] = held
            self._ghost_since[job_uid] = self._now
            for pod in left:
                self._haunt(job_uid, pod)
        elif left and self._rivalry() is None:
            names = sorted(pod["metadata"]["name"] for pod in left)
            how = "finished" if condition(entry.object, "Finished") == "True" else "released"
            self._violation("I5", entry.name, f"{how} while {len(left)} pods live: {', '.join(names[:3])}")
        if job is None:
            return
        self._gang(job_uid, _name(job))
        evicted = entry.type != DELETED and condition(entry.object, "Finished") != "True" and not finished(job)
        if evicted and not _going(job):
            self.figures.evictions += job_uid in self._ran
            if _suspended(job):
                self._restored(job_uid, job)

    def _holding(self, job_uid: str) -> list[Object]:
        """Its pods that have not ended, but for those on lost nodes."""
        return [self._pods[pod] for pod in self._live[job_uid] if not self._on_lost_node(self._pods[pod])]

    def _restored(self, uid: str, job: Object) -> None:
        """I6 for a job whose reservation was just given back."""
        original, name = self._original.get(uid), _name(job)
        if original is not None:
            for path, want, have in _differences(_user_written(original), _user_written(job)):
                self._violation("I6", name, f"{path} is {have} and was {want}")
        if uid in self._first:
            added = self._own_keys(job) - self._own_keys(self._first[uid].object)
            if added:
                self._violation("I6", name, f"left in its pod template: {', '.join(sorted(added))}")

    def _own_keys(self, job: Object) -> set[str]:
        keys: set[str] = set()
        for template in templates(job).values():
            meta, spec = template.get("metadata") or {}, template.get("spec") or {}
            gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
            for mapping in (meta.get("labels"), meta.get("annotations"), spec.get("nodeSelector"), gates):
                keys.update(key for key in mapping or () if key.startswith(f"{self.settings.group}/"))
        return keys

    # -- quota ---------------------------------------------------------------------------------------------------

    def _quota(self, entry: Entry) -> None:
        kept = self._queues if entry.kind == "ClusterQueue" else self._cohorts
        name = entry.object["metadata"]["name"]
        before = kept.get(name)
        if entry.type != DELETED and before is not None and before["spec"] == entry.object["spec"]:
            kept[name] = entry.object
            return
        if before is not None or self._now - self._last_change >= self.settings.settle:
            self._present()  # kept; but of many that are made at once only the last
        if entry.type == DELETED:
            kept.pop(name, None)
        else:
            kept[name] = entry.object
        self._changed = self._now if self._changed is None else self._changed
        self._last_change = self._now

    def _present(self) -> QuotaTree:
        """The tree of now, built when it is asked for; the one before is kept while it is still a fair ground."""
        if self._changed is not None or self._built is None:
            if self._built is not None:
                self._former.append((self._changed or self._now, self._built))
            self._built, self._changed = self._build(), None
        return self._built

    def _build(self) -> QuotaTree:
        queues = {name: queue["spec"] for name, queue in self._queues.items()}
        tree = QuotaTree(queues, {name: cohort.get("spec") or {} for name, cohort in self._cohorts.items()})
        for queue, usage in self._charged.items():
            tree.charge(queue, usage)
        return tree

    def _charge(self, held: Reservation, sign: int) -> None:
        present = self._present()
        since = self._now - self.settings.settle
        self._former = [(until, tree) for until, tree in self._former if until > since]
        for tree in (present, *(tree for _, tree in self._former)):
            tree.charge(held.queue, held.usage, sign)
        charged = self._charged[held.queue]
        for key, amount in held.usage.items():
            charged[key] += sign * amount

    def _fits(self, name: str, queue: str, risen: Usage, uid: str) -> None:
        """I1 for what was just charged, by the quota of now or of a moment ago."""
        over = self._present().over(queue, risen)
        if over and all(tree.over(queue, risen) for _, tree in self._former):
            if (until := self._rivalry()) is not None:
                self._overdrawn[uid] = until, risen
            else:
                self._violation("I1", name, "; ".join(over))

    def _rivalry(self) -> float | None:
        """Until when what is done now must be put right, for two lead; None where one does."""
        notice = self.settings.notice
        untils = [until for since, until in self.settings.rivalries if since <= self._now <= until]
        return max(untils) + notice if untils else None

    def _not_put_right(self, uid: str) -> None:
        _, risen = self._overdrawn.pop(uid)
        queue = self.reservations[uid].queue
        if over := self._present().over(queue, risen):
            text = f"let in by two leaders, and still there: {'; '.join(over)}"
            self._violation("I1", _name(self.workloads[uid]), text)

    def _haunt(self, job_uid: str, pod: Object) -> None:
        """The Workload of a live pod was deleted with its job: the pod's share stays charged until it is gone."""
        held, uid = self._ghosts[job_uid], pod["metadata"]["uid"]
        label = (pod["metadata"].get("labels") or {}).get("jobset.sigs.k8s.io/replicatedjob-name", "")
        usage = held.per_pod.get(label) or next(iter(held.per_pod.values()), Counter())
        self._ghost_pods[uid] = held.queue, usage
        self._charge(Reservation(held.queue, usage, {}, {}), 1)

    def _exorcise(self, job_uid: str) -> None:
        """The job holds its own reservation again, which covers its pods."""
        self._ghosts.pop(job_uid, None)
        for pod in [pod for pod in self._live[job_uid] if pod in self._ghost_pods]:
            queue, usage = self._ghost_pods.pop(pod)
            self._charge(Reservation(queue, usage, {}, {}), -1)

    # -- pods and nodes ------------------------------------------------------------------------------------------

    def _pod(self, entry: Entry) -> None:
        uid, pod = entry.uid, entry.object
        spec, status = pod["spec"], pod.get("status") or {}
        owner = _controller(pod)
        job_uid = str(self._root.get(owner["uid"], owner["uid"])) if owner is not None else ""
        # A pod that is taken from its Job goes on counting for it.
        job_uid = self._job_of_pod.setdefault(uid, job_uid)
        ended = entry.type == DELETED or status.get("phase") in ("Succeeded", "Failed")
        if entry.type == DELETED:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        node = spec.get("nodeName")
        if ended:
            self._live[job_uid].discard(uid)
            self._running[job_uid].discard(uid)
            if node and (was := self._bound[node].pop(uid, None)):
                self._load[node].subtract(was)
            if uid in self._ghost_pods:
                queue, usage = self._ghost_pods.pop(uid)
                self._charge(Reservation(queue, usage, {}, {}), -1)
        else:
            self._live[job_uid].add(uid)
            if node and uid not in self._bound[node]:
                self._bind(entry, node)
        self._schedule(uid, job_uid, pod, ended)
        if job_uid in self._reserved_for and status.get("phase") == "Running" and not ended:
            self._running[job_uid].add(uid)
            first, held = self._first.get(job_uid), self.reservations[self._reserved_for[job_uid]]
            if first is not None and len(self._running[job_uid]) >= sum(held.counts.values()):
                self.figures.ready.setdefault(first.name, self._now - self._reserved_at[job_uid])

    def _bind(self, entry: Entry, node: str) -> None:
        """I2 for a pod that has just come to a node."""
        requests = pod_requests(entry.object["spec"])
        requests["pods"] = 1000
        self._bound[node][entry.uid] = requests
        self._load[node].update(requests)
        if node not in self._nodes:
            return
        has = resources((self._nodes[node].get("status") or {}).get("allocatable"))
        has |= resources(json.loads(self._nodes[node]["metadata"].get("annotations", {}).get(LISTED_DEVICES, "{}")))
        for resource, amount in requests.items():
            listed = resource in has or resource != "pods"
            if listed and amount > 0 and self._load[node][resource] > has[resource]:
                text = f"{self._load[node][resource] / 1000:g} of {has[resource] / 1000:g} {resource} bound to {node}"
                self._violation("I2", entry.name, text)
                self._overcommitted.add(node)
                self.figures.overcommitted_nodes = len(self._overcommitted)

    def _schedule(self, uid: str, job_uid: str, pod: Object, ended: bool) -> None:
        """How long pods of managed jobs find no place, and gangs that have one only in part."""
        job = self.jobs.get(job_uid)
        if job is None or not self._managed(job):
            return
        conditions = (pod.get("status") or {}).get("conditions") or ()
        reason = next(
            (c.get("reason") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
        )
        if reason == "Unschedulable" and not ended and not pod["spec"].get("nodeName") and not _going(pod):
            self._unschedulable.setdefault(uid, self._now)
        elif uid in self._unschedulable:
            waited = self._now - self._unschedulable.pop(uid)
            self.figures.max_unschedulable = max(self.figures.max_unschedulable, waited)
        live = self._live[job_uid]
        if any(u in self._unschedulable for u in live) and any(self._pods[u]["spec"].get("nodeName") for u in live):
            self._partial.add(job_uid)
            self.figures.partial_gangs = len(self._partial)

    def _node(self, entry: Entry) -> None:
        name = entry.object["metadata"]["name"]
        if entry.type == DELETED:
            self._nodes.pop(name, None)
            self._lost.setdefault(name, self._now)
            return
        self._nodes[name] = entry.object
        if condition(entry.object, "Ready") == "True":
            self._lost.pop(name, None)
        else:
            self._lost.setdefault(name, self._now)

    def _on_lost_node(self, pod: Object) -> bool:
        since = self._lost.get(pod["spec"].get("nodeName") or "")
        return since is not None and self._now - since >= self.settings.lost_after

    # -- the end -------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """What must hold when a run has come to rest: I9 and I11."""
        for uid in list(self._bereft):
            self._unstopped(uid)
        for uid in list(self._overdrawn):
            self._not_put_right(uid)
        for since in self._unschedulable.values():
            self.figures.max_unschedulable = max(self.figures.max_unschedulable, self._now - since)
        for uid, first in self._first.items():
            job = self.jobs.get(uid)
            if job is not None and self._managed(job) and not _going(job):
                complaint = self._lost_job(uid, job, self._now - first.at)
                if complaint:
                    self._violation("I9", _name(job), complaint)
        for name, queue in self._queues.items():
            self._accounted(name, queue.get("status") or {})

    def _lost_job(self, uid: str, job: Object, age: float) -> str | None:
        if age < self.settings.settle:
            return None
        if finished(job):
            return "is finished and still holds a reservation" if uid in self._reserved_for else None
        if not _suspended(job):
            return None  # with a reservation it runs, without one I3 has said so
        mine = [w for w in self.workloads.values() if _job_uid(w, self._uid_label) == uid]
        if not mine:
            return "is suspended and has no Workload"
        if uid in self._reserved_for:
            workload = self.workloads[self._reserved_for[uid]]
            since = self._now - self._reserved_at[uid]
            admitted = condition(workload, "Admitted") == "True" and since > self.settings.settle
            return f"was admitted {since:.0f} s ago and is still suspended" if admitted else None
        waiting = [w for w in mine if condition(w, "Finished") != "True"]
        if not waiting:
            rejected = any(_reason(w, "Finished") == "FailedToStart" for w in mine)
            return None if rejected else "is neither finished nor queued: all its Workloads are finished"
        told = any(_reason(w, "QuotaReserved") or _reason(w, "Evicted") for w in waiting)
        return None if told or age < self.settings.explain_after else f"waits for {age:.0f} s and was not told why"

    def _accounted(self, name: str, status: Object) -> None:
        if "flavorsReservation" not in status and "reservingWorkloads" not in status:
            return
        reported: Usage = Counter()
        for flavor in status.get("flavorsReservation") or ():
            for resource in flavor.get("resources") or ():
                reported[flavor["name"], resource["name"]] = milli(resource.get("total", 0))
        held = [r for r in self.reservations.values() if r.queue == name]
        known = [job for job, since in self._ghost_since.items() if since >= self.settings.watching]
        ghosts = [self._ghosts[job] for job in known if job in self._ghosts and self._holding(job)]
        held += [ghost for ghost in ghosts if ghost.queue == name]
        actual: Usage = Counter()
        for each in held:
            actual.update(each.usage)
        for key in sorted(set(reported) | set(actual)):
            if reported[key] != actual[key]:
                text = f"reports {reported[key] / 1000:g} {key[1]} of {key[0]} reserved, Workloads hold"
                self._violation("I11", name, f"{text} {actual[key] / 1000:g}")
        if "reservingWorkloads" in status and status["reservingWorkloads"] != len(held):
            self._violation("I11", name, f"reports {status['reservingWorkloads']} reserving, there are {len(held)}")


# -- over audit events -------------------------------------------------------------------------------------------


def check_quiet(events: Iterable[Object], user: str) -> list[Violation]:
    """I8: all that `user` wrote in a window in which nothing happened. Leases are how it says that it lives."""
    written = [
        event
        for event in events
        if event["user"].get("username") == user and _is_write(event) and event["objectRef"]["resource"] != "leases"
    ]
    return [Violation("I8", 0, _target(event), f"{event['verb']} by {user} in a quiet window") for event in written]


def check_fencing(
    events: Iterable[Object], leaders: Sequence[str], identify: Callable[[Object], str]
) -> list[Violation]:
    """I10: `leaders` in the order in which they led, one who led again stands there again; `identify` tells from an
    audit event whose request it was."""
    highest: dict[str, int] = {}
    violations = []
    for event, who, term in _by_terms(events, leaders, identify):
        if event["objectRef"]["resource"] == "leases":
            continue
        target = _target(event)
        if term < highest.get(target, 0):
            successor = leaders[highest[target]]
            violations.append(Violation("I10", 0, target, f"{event['verb']} by {who} after {successor} wrote it"))
        highest[target] = max(term, highest.get(target, 0))
    return violations


def terms(events: Iterable[Object], candidates: Iterable[str], identify: Callable[[Object], str]) -> list[str]:
    """Who of the candidates held the Lease, in order, by who wrote it."""
    known = set(candidates)
    holders = [
        who
        for event in _in_time(events)
        if _is_write(event) and event["objectRef"]["resource"] == "leases" and (who := identify(event)) in known
    ]
    return [who for who, _ in itertools.groupby(holders)]


def unled(events: Iterable[Object], leaders: Sequence[str], identify: Callable[[Object], str]) -> list[Object]:
    """What was written by those of the `leaders` (as of `check_fencing`) who did not lead any more."""
    now, late = 0, []
    for event, _, term in _by_terms(events, leaders, identify):
        if event["objectRef"]["resource"] == "leases":
            now = term
        elif term < now:
            late.append(event)
    return late


def _by_terms(
    events: Iterable[Object], leaders: Sequence[str], identify: Callable[[Object], str]
) -> Iterator[tuple[Object, str, int]]:
    """(write, whose, in the how manieth term): the last one in which its writer led by then, as the Lease has it; where
    no write of it is among the events, the first."""
    now = 0
    for event in _in_time(events):
        who = identify(event)
        if who not in leaders or not _is_write(event):
            continue
        if event["objectRef"]["resource"] == "leases" and who != leaders[now] and who in leaders[now + 1 :]:
            now = leaders.index(who, now + 1)
        led = [term for term, leader in enumerate(leaders[: now + 1]) if leader == who]
        yield event, who, led[-1] if led else leaders.index(who)


def _in_time(events: Iterable[Object]) -> list[Object]:
    return sorted(events, key=lambda event: str(event["stageTimestamp"]))


def end_state(log: EventLog | Sequence[Entry], group: str = "muster.dev") -> dict[str, str]:
    """I7: what a run came to, by job name, in words that do not differ between two runs with the same outcome."""
    judge = replay(log, at_end=False, group=group)
    result = {}
    for uid, job in judge.jobs.items():
        if f"{group}/queue-name" not in (job["metadata"].get("labels") or {}):
            continue
        state = finished(job) or ("suspended" if _suspended(job) else "running")
        mine = [w for w in judge.workloads.values() if _job_uid(w, f"{group}/job-uid") == uid]
        for workload in mine:
            true = sorted(c["type"] for c in workload["status"].get("conditions") or () if c["status"] == "True")
            held = judge.reservations.get(workload["metadata"]["uid"])
            usage = sorted(f"{flavor}/{name}={n}" for (flavor, name), n in held.usage.items()) if held else []
            state += f"; {','.join(true)}; {','.join(usage)}"
        result[_name(job)] = state
    return result


# -- reading the API's shapes ------------------------------------------------------------------------------------


def reservation(workload: Object) -> Reservation | None:
    """What a Workload's status holds. Pods that will not come back (reclaimablePods) are not charged."""
    status = workload.get("status") or {}
    admission = status.get("admission")
    if not admission:
        return None
    reclaimable = {pods["name"]: int(pods["count"]) for pods in status.get("reclaimablePods") or ()}
    usage: Usage = Counter()
    counts: dict[str, int] = {}
    per_pod: dict[str, Usage] = {}
    for pod_set in admission.get("podSetAssignments") or ():
        name, count = pod_set.get("name", ""), int(pod_set.get("count") or 0)
        flavors = pod_set.get("flavors") or {}
        amounts = resources(pod_set.get("resourceUsage"))
        whole = {(flavors[resource], resource): n for resource, n in amounts.items() if resource in flavors}
        left = count - min(count, reclaimable.get(name, 0))
        usage.update({key: amount * left // count if count else amount for key, amount in whole.items()})
        per_pod[name] = Counter({key: amount // count for key, amount in whole.items()} if count else {})
        counts[name] = count
    return Reservation(str(admission.get("clusterQueue", "")), usage, counts, per_pod)


@dataclasses.dataclass(frozen=True)
class Places:
    """Flavors and nodes of a reservation, how many pods are done, and whether nodes of it are lost."""

    flavors: str
    nodes: str
    done: str
    lost: bool


def _places(workload: Object) -> Places:
    status = workload.get("status") or {}
    given = (status.get("admission") or {}).get("podSetAssignments") or ()
    nodes = [(one.get("name"), one.get("count"), one.get("topologyAssignment")) for one in given]
    flavors, done = [one.get("flavors") for one in given], status.get("reclaimablePods")
    return Places(json.dumps(flavors), json.dumps(nodes), json.dumps(done), bool(status.get("unhealthyNodes")))


def pod_sets(job: Object) -> dict[str, int]:
    """How many pods each part of a Job or JobSet has at once."""
    if job["kind"] == "Job":
        return {"": _pods_of(job["spec"])}
    sets = job["spec"].get("replicatedJobs") or ()
    return {r["name"]: int(r.get("replicas", 1)) * _pods_of(r["template"].get("spec") or {}) for r in sets}


def _over(jobset: Object) -> set[str]:
    """Parts of a JobSet of which all Jobs have succeeded."""
    parts, status = jobset["spec"].get("replicatedJobs") or (), jobset.get("status") or {}
    done = {one["name"]: one.get("succeeded", 0) for one in status.get("replicatedJobsStatus") or ()}
    return {part["name"] for part in parts if done.get(part["name"], 0) >= int(part.get("replicas", 1))}


def templates(job: Object) -> dict[str, Object]:
    """The pod template of each part."""
    if job["kind"] == "Job":
        return {"": job["spec"]["template"]}
    return {r["name"]: r["template"]["spec"]["template"] for r in job["spec"].get("replicatedJobs") or ()}


def _pods_of(spec: Mapping[str, Any]) -> int:
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    parallel = 1 if parallelism is None else int(parallelism)
    return parallel if completions is None else min(parallel, int(completions))


def _completions(job: Object) -> int:
    completions = job["spec"].get("completions")
    return _pods_of(job["spec"]) if completions is None else int(completions)


def _left(job: Object) -> int:
    """Completions of a Job that are still missing: one that was stopped half done asks only for these."""
    spec, status = job["spec"], job.get("status") or {}
    if spec.get("completions") is None:
        return _pods_of(spec)
    if spec.get("completionMode") != "Indexed":
        return int(spec["completions"]) - int(status.get("succeeded") or 0)
    ended = 0
    for part in filter(None, f"{status.get('completedIndexes', '')},{status.get('failedIndexes', '')}".split(",")):
        first, _, last = part.partition("-")
        ended += int(last or first) - int(first) + 1
    return int(spec["completions"]) - ended


def _user_written(job: Object) -> Object:
    """The parts of a job that an admission may change and an eviction must restore."""
    spec = job["spec"]
    kept = ("template", "parallelism", "completions") if job["kind"] == "Job" else ("replicatedJobs",)
    return {key: spec[key] for key in kept if key in spec}


def _differences(want: Any, have: Any, path: str = "spec") -> list[tuple[str, str, str]]:
    """Where two JSON values differ; an empty object and none at all differ too."""
    if isinstance(want, dict) and isinstance(have, dict):
        found = []
        for key in sorted(want.keys() | have.keys()):
            absent = object()
            a, b = want.get(key, absent), have.get(key, absent)
            if a is absent or b is absent:
                text = ("absent" if value is absent else json.dumps(value) for value in (a, b))
                found.append((f"{path}.{key}", *text))
            else:
                found += _differences(a, b, f"{path}.{key}")
        return [(where, was, now) for where, was, now in found]
    if isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        pairs = enumerate(zip(want, have, strict=True))
        return [one for index, (a, b) in pairs for one in _differences(a, b, f"{path}[{index}]")]
    return [] if want == have else [(path, json.dumps(want), json.dumps(have))]


def _suspended(job: Object) -> bool:
    return bool(job["spec"].get("suspend"))


def _going(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _name(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}".lstrip("/")


def _controller(obj: Object) -> Object | None:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _job_uid(workload: Object, label: str) -> str:
    owner = _controller(workload)
    return str(owner["uid"] if owner else (workload["metadata"].get("labels") or {}).get(label, ""))


def _reason(obj: Object, kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((str(c.get("reason", "")) for c in conditions if c["type"] == kind), "")


def _is_write(event: Object) -> bool:
    """A write that was committed: not refused, not a dry run, not an event about something else."""
    done = event["stage"] == "ResponseComplete" and event["responseStatus"].get("code", 0) < 400
    kind = event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
    target = event.get("objectRef") or {}
    return done and kind and "dryRun=" not in event["requestURI"] and target.get("resource", "events") != "events"


def _target(event: Object) -> str:
    ref = event["objectRef"]
    return "/".join(str(ref[key]) for key in ("resource", "namespace", "name") if ref.get(key))
