"""What the shell knows of the cluster: the engine's State, and beside it what only the shell needs of jobs and pods.

Informers call `..._seen`, `..._lost` and `..._changed` with slim values. Each call folds the object into the engine's
State, and marks the jobs that it concerns (`changed_job`), which are then looked at: `sight` is all that is known of
one job. Nothing here decides, and all of it can be rebuilt by listing, except for times: since when something has been
seen that no object says (a pod that is missing, devices that are gone). After a restart these begin anew.

A job is named by its JobKey (kind, namespace, name), its Workload by (namespace, name). The two find each other by the
job's uid alone, never by name.

    orphan    a Workload whose job is gone
    bare      a Workload that never had a job of a kind that is managed here
    beside    a Workload whose job has another one that counts
    ghost     a Workload that was deleted while pods of it still run: it holds its room until they are gone
    laid on   what volumes, devices and pods of others leave a gang of the nodes, added to its Workload
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from admission.controller.defaults import Defaults, PriorityClassSeen
from admission.controller.lifecycle import (
    DEACTIVATED,
    NOTHING,
    Beyond,
    Next,
    PodTally,
    Refusal,
    Settings,
    Sight,
    WorkloadView,
    bare_step,
    earliest,
    ran_out,
    spare,
)
from admission.controller.silence import Silence
from admission.controller.standstill import Standstill
from admission.engine.booking import is_device
from admission.engine.counts import BY_CONDITION, CORDONED, KEEPS_OFF, on_purpose, refused_taint, toleration_of
from admission.engine.model import (
    ClusterQueue,
    Event,
    Flavor,
    Gone,
    Key,
    LabelSelector,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    PodUsage,
    Put,
    StopPolicy,
    Taint,
    Toleration,
    Value,
    Workload,
    discard,
    drop,
    matches,
)
from admission.engine.state import State
from admission.engine.trial import required_checks
from admission.jobs.devices import Devices, HeldDevices, Listed, Touched, of_classes
from admission.jobs.hold import PATIENCE_S
from admission.jobs.kinds import JOB, JOBSET, KIND_OF, JobKey, JobView
from admission.jobs.neighbours import Neighbours, Stand, Who, stand_of, stands_of
from admission.jobs.values import LOST_TAINTS
from admission.jobs.volumes import Source, Storage, Stored, User, names_claims, use_of
from admission.kube.clock import NOT_SET, SetAhead
from admission.names import HOSTNAME_LABEL

Owner = tuple[str, str]
"""(namespace, uid) of a Job, a JobSet or a Workload."""

ORPHAN = "Workload"
"""The kind under which a Workload without a job stands in the queue of jobs."""

NEVER = 1 << 62
"""A time that does not come."""
NODE_GONE_MS = 30_000
"""A node that is not ready, or without its devices, for so long is lost to the gangs there; `lost_after_ms`, if that is
shorter."""
AWAY_MS = 300_000
"""So long a kubelet knows the devices of a plugin that has gone (one that is upgraded, say): pods that have them keep
them, and run on. So they do without their DRA driver, whose slices a kubelet deletes after half a minute."""
EARLIER_MS = 5_000
"""Two times by different clocks, in whole seconds, are in this order for sure if they differ by more."""
LAID_AT_ONCE = 1000
"""At most so many gangs are laid anew before one decision, and the others before the next ones: one pod may concern
thousands of gangs of a tenant."""

CORDON = Taint(CORDONED, "", "NoSchedule")

_STRICTNESS = {StopPolicy.NONE: 0, StopPolicy.HOLD: 1, StopPolicy.HOLD_AND_DRAIN: 2}


class PodView(Value, frozen=True):
    """A pod as the shell needs it; `usage` is the engine's value while it holds room on a node."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    workload_uid: str
    owner_uid: str
    """uid of the Job that made it."""
    held_by: str
    """uid of its controller as its ownerReferences have it; "" once it was let go."""
    jobset_uid: str
    node: str
    done: bool
    ready: bool
    terminating: bool
    created_at: int
    gated: bool
    unready_since: int
    """Since when it is not ready, as far as its status says; 0 where it is, or has no such condition."""
    unschedulable_since: int | None
    unschedulable_message: str
    labels: tuple[tuple[str, str], ...]
    """Labels by which selectors may match it, of those that differ from pod to pod of a gang only the keys. While a pod
    of a gang waits for its host: the labels that say its rank."""
    pod_set: str
    pinned: str
    """Node to which it is pinned; "" if to none."""
    usage: PodUsage | None
    stays_ms: int | None = None
    """For how long (ms) Kubernetes leaves it on a lost node; None: for ever. Set for pods of gangs only."""
    failed: bool = False
    """It is done and did not succeed, so that mostly another pod takes its place."""
    ends_at: int = 0
    """When its grace period is over, of one that was told to end; else 0."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that it names, sorted."""
    turned_at: int = 0
    """When its condition Ready last turned, of one that is not ready; else 0."""


_decode_status = msgspec.json.Decoder(dict[str, Any]).decode


class WorkloadSeen(Value, frozen=True):
    """A Workload with all that its next status write needs."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    view: WorkloadView
    stored: bytes = b"{}"
    """Its status as JSON, emptied once it has finished. Decoded it would take four times the memory, and it is hardly
    ever read."""
    generation: int = 1

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)

    @property
    def deleting(self) -> bool:
        return self.view.deleting

    @property
    def status(self) -> dict[str, Any]:
        """Decoded anew each time: the caller may change it."""
        return _decode_status(self.stored)


class World:
    """See the module. `changed_job` is called for each job that may have a step due; `dirty` when the engine may
    decide, and `told` when all that is new is what it decided itself; `reserved` for a gang that was given room by what
    was not decided here; `readiness` for an admitted gang whenever its pods are looked at: `starting` before all of
    them were ready, `recovering` when they are no more, else ""."""

    def __init__(
        self,
        state: State,
        *,
        changed_job: Callable[[JobKey], None],
        dirty: Callable[[], None],
        told: Callable[[], None] = lambda: None,
        reserved: Callable[[Key], None] = lambda _: None,
        readiness: Callable[[Key, str], None] = lambda _key, _lacks: None,
        default_queue: str = "",
        looked_at: LabelSelector | None = None,
        lost_after_ms: int = 120_000,
        kinds: Collection[str] = KIND_OF,
        set_ahead: Callable[[], SetAhead] = lambda: NOT_SET,
    ) -> None:
        self.set_ahead = set_ahead
        self._kinds = kinds
        self.lost_after_ms = lost_after_ms
        self.state = state
        renamed = [one for one in state.rules.transformations if one.outputs]
        self._renamed_by_quota = frozenset(name for one in renamed for name in (one.input, *dict(one.outputs)))
        self.default_queue = default_queue
        self._looked_at = looked_at
        self._changed_job = changed_job
        self._dirty = dirty
        self._told = told
        self._reserved = reserved
        self._readiness = readiness
        self.jobs: dict[JobKey, JobView] = {}
        self.workloads: dict[Key, WorkloadSeen] = {}
        self.devices = Devices(rules=state.rules)
        self.defaults = Defaults(self.devices)
        self._same_defaults: dict[str, str] = {}
        """uid of a Workload -> mark of other defaults than it was written with, that make no difference to it."""
        self.storage = Storage()
        self._offered: dict[str, Node] = {}
        """Nodes as they are, without the devices of drivers."""
        self._held_by: dict[Key, tuple[PodUsage, ...]] = {}
        """What claims hold of devices."""
        self._gone_of: dict[tuple[str, str], dict[Key, HeldDevices]] = {}
        """(Workload, node) -> claims of its pods there that hold devices which nobody lists any more."""
        self._gone_at: dict[Key, tuple[str, str]] = {}
        """These claims, and where they stand in it."""
        self._claiming: dict[Key, set[JobKey]] = {}
        """ResourceClaimTemplate or DeviceClass (as in `Touched.asks`) -> jobs that ask for devices by it."""
        self._quotas_of_classes: dict[str, frozenset[str]] = {}
        """ClusterQueue -> DeviceClasses of which it has quota by their own names."""
        self.looks_at_volumes = True
        self._volumes_of: dict[Key, frozenset[Source]] = {}
        """Workload whose pods name PersistentVolumeClaims -> what its placement depends on ..."""
        self._mounted_by: dict[Source, set[Key]] = {}
        """... and the inverse of that."""
        self._unlaid: set[Key] = set()
        """Workloads that are to be laid anew, because volumes of theirs, or pods of others, have changed."""
        self._node_labels: dict[str, dict[str, str]] = {}
        self._node_by_host: dict[str, str] = {}
        """Hostname label -> node, of nodes whose label is not their name. Kueue's assignments have the label."""
        self._neighbours = Neighbours(self._everybody, lambda node: self._node_labels.get(node, {}))
        self.lost_nodes: dict[str, int] = {}
        """Node -> since when it is not ready, in ms since the epoch; 0: it was deleted."""
        self._deserted: set[str] = set()
        """Deleted nodes on which no pod was when that was looked at last."""
        self._silence = Silence()
        self._silent = False
        self._began = 0
        """When a gang was first looked at; ms since the epoch."""
        self._expelling: dict[str, dict[Taint, int]] = {}
        """Node that is ready -> NoExecute taints that somebody put on it -> when they were seen to come, in ms since
        the epoch; 0: they may have been there for long."""
        self._expelling_alike: dict[frozenset[Taint], set[str]] = {}
        """The same nodes by these taints: those of a pool mostly have the same."""
        self._came_with: dict[str, set[Taint]] = {}
        """Those of them that were seen to come before their node was ever ready: mostly for as long as that is made
        so."""
        self._ready_from: dict[str, int] = {}
        """Node -> when it was first seen ready, ms since the epoch; 0: it may have been for long."""
        self._shut: dict[str, tuple[Taint, ...]] = {}
        """Node -> taints of somebody's that keep new pods off it, a cordon among them."""
        self.nodes: set[str] = set()
        self._devices: dict[str, dict[str, int]] = {}
        """Node -> its extended resources."""
        self._away: dict[str, tuple[str, ...]] = {}
        """Node -> devices of it that are away (`Node.away`)."""
        self._short: dict[tuple[Key, str], int] = {}
        """(Workload, node) -> since when it is seen that devices are gone which the Workload holds there."""
        self._job_by_uid: dict[str, JobKey] = {}
        self._children: dict[Owner, set[JobKey]] = {}
        """JobSet -> the Jobs that it has made."""
        self._gang_of: dict[Key, str] = {}
        """Pods without our label that belong to a gang all the same -> uid of its Workload."""
        self._workload_of_job: dict[str, Key] = {}
        self._knows_jobs = False
        """Have all jobs been listed, so that one that is not known does not exist?"""
        self._several: dict[str, set[Key]] = {}
        """uid of a job with more than one Workload -> these. Kueue makes another when a running job grows."""
        self._job_of_workload: dict[str, str] = {}
        self._left: dict[Owner, str] = {}
        """Deleted Workloads of which pods are still there -> uid of the job that they stood for."""
        self._places: dict[str, WorkloadSeen] = {}
        """uid of a job -> the Workload by which it waited, if that was deleted through no doing of the job's owner."""
        self._by_owner: set[str] = set()
        """uids of Workloads that are about to be deleted for what the owner of their job changed."""
        self._started_for: set[str] = set()
        """uids of Workloads for which Muster started the job, so that all pods of the gang have our label."""
        self._pods: dict[Key, PodView] = {}
        self._pods_of_owner: dict[Owner, dict[Key, PodView]] = {}
        """(namespace, uid) of a Job, a JobSet or a Workload -> its pods; uids do not collide."""
        self._workloads_on: dict[str, set[Key]] = {}
        self._devices_held: dict[Key, dict[str, dict[str, int]]] = {}
        """Gang -> nodes that its reservation names -> extended resources that it holds there. Kept, because it is asked
        of all nodes of a gang whenever one of its pods changes."""
        self._free_on: dict[str, set[Key]] = {}
        """Node -> pods of gangs for which kube-scheduler chose it."""
        self.making, self.placing = Standstill(by_kind=True), Standstill(by_kind=False)
        self._starting = Standstill(by_kind=True)
        self._starts_refused: dict[JobKey, tuple[tuple[str, int], int, int, str]] = {}
        """Job -> ((uid of its Workload, time of its admission), since when its start has been refused, when it was
        refused last, what the API server said then)."""
        self._missing: dict[JobKey, int] = {}
        """Job that runs with fewer pods than are due -> since when that is seen."""
        self._refusals: dict[JobKey, Refusal] = {}
        """Such a job -> what was found when it was looked up what refuses its pods."""
        self._whole: dict[JobKey, tuple[tuple[str, int], int | None]] = {}
        """Job that runs -> ((uid of the Workload, time) of its admission, since when all of its pods were ready in it;
        None: they were not yet)."""
        self._behind: dict[JobKey, int] = {}
        """Job -> since when they are no more."""
        self._unplaced: dict[JobKey, tuple[tuple[str, int], dict[str, int]]] = {}
        """Job whose gang lacks nodes of kube-scheduler's choice -> (its admission, uids of the pods without -> since
        when; those among them that were deleted without one, until others take their place)."""
        self._beyond: dict[JobKey, int] = {}
        """Job with more pods of a pod set on nodes than are charged -> since when that is seen."""
        self._idle: dict[JobKey, int] = {}
        """Job for which the Job controller has something to do -> since when that is seen."""
        self._spare: dict[JobKey, int] = {}
        """Job whose done pods still hold quota -> since when others wait (0: nobody did yet)."""
        self._waited = False
        self._given_twice: dict[str, str] = {}
        """uid of a Workload whose room another leader had given away -> how much of it, in words."""
        self._sitting_out: dict[Key | tuple[PodSet, ...], int] = {}
        """What sits out -> until when (ms): a gang whose decisions cannot be written, or what gangs ask for over which
        a decision failed."""
        self._ghosts: dict[Key, str] = {}
        """Deleted Workloads of which pods still run -> their uids."""
        self._haunted: dict[str, Key] = {}
        """uid of a job -> the Workload that was deleted under it."""

    # ------------------------------------------------------------ folding

    def apply(self, event: Event) -> None:
        """Fold one fact into the engine's State."""
        self.state.apply(event)
        self._dirty()
        match event:
            case Put(ClusterQueue() as queue):
                self._quotas_name(queue.name, of_classes(queue))
            case Gone(kind, str() as name) if kind is ClusterQueue:
                self._quotas_name(name, frozenset())

    def _quotas_name(self, queue: str, resources: frozenset[str]) -> None:
        """Of these DeviceClasses a queue has quota now, by their own names."""
        before = self._quotas_of_classes.pop(queue, frozenset())
        if resources:
            self._quotas_of_classes[queue] = resources
        if before != resources:
            self._devices_touched(self.devices.quotas_name(frozenset().union(*self._quotas_of_classes.values())))

    def _as_counted(self, before: Workload | None, now: Workload | None) -> bool:
        """Is this no news to the engine? So where a gang counts as before, or only the times of an admission were set
        that was assumed before. (By Muster's rules these times matter: some promises count from them.)"""
        if before == now:
            return True
        if before is None or now is None or now.admission is None or self.state.rules.promises:
            return False
        return replace(now, reserved_at=before.reserved_at, admitted_at=before.admitted_at) == before

    def job_seen(self, job: JobView) -> None:
        key = job.key
        old = self.jobs.get(key)
        if old is not None and old.uid != job.uid:
            self.job_lost(old)
        elif old is not None and old.arrival and old.arrival != job.arrival:
            job = replace(job, arrival=old.arrival)  # as it was seen first
        self.jobs[key] = job
        self._job_by_uid[job.uid] = key
        if job.started_for:
            self._started_for.add(job.started_for)
        if not self.queue_of(job):
            self._places.pop(job.uid, None)  # so its owner wants it, whoever led
        self._changed_job(key)
        if old is not None:
            self._claims_no_more(old)
        else:
            self._less_held_up(job.uid)
        if old is None or (old.uid, old.deleting) != (job.uid, job.deleting):
            self._line_up(job.uid)
        for asked in _devices_asked(job):
            self._claiming.setdefault(asked, set()).add(key)
        if old is not None and old.owner != job.owner:
            self._leave_jobset(old)
        if job.owner is not None and job.of_jobset:
            self._children.setdefault((job.namespace, job.owner[2]), set()).add(key)
            if old is None or _standing(old) != _standing(job):
                self._wake_job(job.owner[2])
                self._less_held_up(job.owner[2])
        # For Jobs of a JobSet that depends on the JobSet: news of one Job is no reason to look at the pods of all.
        if old is None or (old.owner != job.owner if job.of_jobset else _runs_by(old) != _runs_by(job)):
            self._pods_follow(job.uid)

    def job_lost(self, job: JobView) -> None:
        key = job.key
        if (held := self.jobs.get(key)) is not None and held.uid == job.uid:
            del self.jobs[key]
            self._spare.pop(key, None)
            self._lacks_no_pods(key)
            self.placing.lacks_none(key)
            self._no_start_refused(key)
            self._whole.pop(key, None)
            self._behind.pop(key, None)
            self._beyond.pop(key, None)
            self._unplaced.pop(key, None)
            self._idle.pop(key, None)
            self._claims_no_more(held)
        self._job_by_uid.pop(job.uid, None)
        self._places.pop(job.uid, None)
        self._started_for.discard(job.started_for)
        self._changed_job(key)
        self._leave_jobset(job)
        self._line_up(job.uid)

    def knows_jobs(self) -> None:
        """All jobs have been listed: a Workload whose job is not among them stands for none."""
        self._knows_jobs = bool(self._kinds)
        for seen in self.workloads.values():
            if self._stands_for_none(seen):
                self.apply(Put(self.laid(seen.view.value)))

    def looks_anew(self) -> None:
        """This replica begins to lead again: times since when something is seen begin anew, for it may not have been so
        in between."""
        for since in (self._missing, self._refusals, self._behind, self._beyond, self._idle, self._spare, self._short):
            since.clear()
        self._unplaced.clear()
        self._whole = {key: held for key, held in self._whole.items() if held[1] is not None}
        for key in list(self._starts_refused):
            self._no_start_refused(key)

    def heard_again(self, now: int) -> None:
        """The API server was away, or restored from a backup: until now nothing could be heard of nodes and pods."""
        self._silence.ended(now)

    def _line_up(self, job_uid: str) -> None:
        """A job came or goes: its Workload stands in line for as long as it is there."""
        seen = self.workload_of_uid(job_uid)
        if self._knows_jobs and seen is not None and seen.view.value.admission is None:
            self.apply(Put(self.laid(seen.view.value)))

    def _stands_for_none(self, seen: WorkloadSeen) -> bool:
        """Is the job of a Workload gone, or being deleted? Others must not be evicted for a gang that never starts."""
        value = seen.view.value
        if not self._knows_jobs or not value.job_uid or value.finished or self.is_bare(seen):
            return False
        key = self._job_by_uid.get(value.job_uid)
        return key is None or self.jobs[key].deleting

    def _claims_no_more(self, job: JobView) -> None:
        """A job, as it was, asks for no devices any more."""
        for asked in _devices_asked(job):
            discard(self._claiming, asked, job.key)

    def _leave_jobset(self, job: JobView) -> None:
        """A Job is no longer one of its JobSet's."""
        of = (job.namespace, "" if job.owner is None else job.owner[2])
        if of in self._children:
            discard(self._children, of, job.key)
            self._wake_job(of[1])
            self._less_held_up(of[1])

    def workload_seen(self, seen: WorkloadSeen) -> None:
        seen = self._run_by_others(self._on_named_nodes(seen))
        old = self.workloads.get(seen.key)
        if old is not None and old.uid != seen.uid:
            self.workload_lost(old)
        self.workloads[seen.key] = seen
        self._no_ghost(seen.key)
        job_uid = seen.view.value.job_uid
        if job_uid:
            self._places.pop(job_uid, None)
            self._choose_workload(seen, job_uid)
            self._others_changed(job_uid, seen.key)
            self._job_of_workload[seen.uid] = job_uid
        self._index_nodes(seen)
        self._stands_on(("gang", *seen.key), stands_of(seen.view.value))
        self._uses_volumes(*use_of(seen.view.value))
        if old is None or _holds(old.view.value) != _holds(seen.view.value):
            self._pods_stand(seen)
        counted = self.state.workload(seen.key)
        self.state.apply(Put(self.laid(seen.view.value)))
        if self._as_counted(counted, self.state.workload(seen.key)):
            self._told()
        else:
            self._dirty()
        if seen.view.value.admission is None:
            self._given_twice.pop(seen.uid, None)
        elif not seen.view.value.finished and (counted is None or counted.admission is None):
            self._reserved(seen.key)
        if old is None or old.uid != seen.uid or _holds(old.view.value) != _holds(seen.view.value):
            self._pods_follow(job_uid)
        self._wake_workload(seen)
        waited, self._waited = self._waited, self.state.anybody_waits
        if self._waited and not waited:
            for key in sorted(self._spare):
                self._changed_job(key)

    def workload_lost(self, seen: WorkloadSeen) -> None:
        if (held := self.workloads.get(seen.key)) is None or held.uid != seen.uid:
            return
        del self.workloads[seen.key]
        self._started_for.discard(seen.uid)
        self._same_defaults.pop(seen.uid, None)
        self._given_twice.pop(seen.uid, None)
        self._depends(seen.key, frozenset())
        self._neighbours.forget(seen.key)
        self._stands_on(("gang", *seen.key), ())
        self._uses_volumes(("Workload", *seen.key), ())
        for node in self._devices_held.pop(seen.key, {}):
            self._leaves(seen.key, node)
        held_room = held.view.value.admission is not None and not held.view.value.finished
        if held_room and self._any_pod((held.namespace, held.uid)):
            # Its pods run on until they are gone, and until then hold what they were given.
            self._ghosts[seen.key] = held.uid
            if held.view.value.job_uid:
                self._haunted[held.view.value.job_uid] = seen.key
        else:
            self.apply(Gone(Workload, seen.key))
        self._wake_workload(seen)
        job_uid = seen.view.value.job_uid
        waited = held.view.value.admission is None and not held.view.value.finished
        job = self.jobs.get(self._job_by_uid.get(job_uid, ("", "", "")))
        if waited and held.uid not in self._by_owner and job is not None and self.queue_of(job):
            self._places[job_uid] = held
        self._by_owner.discard(held.uid)
        if job_uid and self._workload_of_job.get(job_uid) == seen.key:
            del self._workload_of_job[job_uid]
            others = self._several.get(job_uid, set())
            for other in sorted(others & self.workloads.keys()):
                self._choose_workload(self.workloads[other], job_uid)
        discard(self._several, job_uid, seen.key)
        self._others_changed(job_uid, seen.key)
        self._pods_follow(job_uid)
        self._job_of_workload.pop(seen.uid, None)
        self._pods_stand(seen)
        if job_uid and (owner := (seen.namespace, seen.uid)) in self._pods_of_owner:
            self._left[owner] = job_uid

    def _run_by_others(self, seen: WorkloadSeen) -> WorkloadSeen:
        """The Workload as it counts if it is of a kind that is not managed here. Where no kinds are managed at all it
        is run by whoever made it, and counts as any. Else its pods are counted where they stand, and the nodes that it
        names are left out: they would be charged twice."""
        value = seen.view.value
        if not value.unmanaged:
            return seen
        if not self._kinds:
            value = replace(value, unmanaged="")
        elif value.admission is not None:
            pod_sets = tuple(replace(one, topology=None) for one in value.admission.pod_sets)
            value = replace(value, admission=replace(value.admission, pod_sets=pod_sets))
        return replace(seen, view=replace(seen.view, value=value))

    def _on_named_nodes(self, seen: WorkloadSeen) -> WorkloadSeen:
        """The Workload with names of nodes in its reservation, where that has hostname labels: pods are pinned by
        name."""
        admission = seen.view.value.admission
        if not self._node_by_host or admission is None:
            return seen
        pod_sets = tuple(
            given
            if given.topology is None or given.topology.levels[-1:] != (HOSTNAME_LABEL,)
            else replace(
                given,
                topology=replace(
                    given.topology,
                    domains=tuple(
                        replace(one, values=(*one.values[:-1], self._name_of(one.values[-1])))
                        for one in given.topology.domains
                    ),
                ),
            )
            for given in admission.pod_sets
        )
        if pod_sets == admission.pod_sets:
            return seen
        value = replace(seen.view.value, admission=replace(admission, pod_sets=pod_sets))
        return replace(seen, view=replace(seen.view, value=value))

    def _name_of(self, host: str) -> str:
        return host if host in self.nodes else self._node_by_host.get(host, host)

    def _choose_workload(self, seen: WorkloadSeen, job_uid: str) -> None:
        """Choose which Workload counts for a job: the one that it runs by, or else one that waits; of several the
        newest."""
        held = self.workloads.get(self._workload_of_job.get(job_uid, ("", "")))
        if held is not None and held.key != seen.key:
            self._several.setdefault(job_uid, set()).update((held.key, seen.key))
        if several := self._several.get(job_uid):
            there = (self.workloads[key] for key in (several | {seen.key}) & self.workloads.keys())
            seen = max(there, key=lambda one: (*_precedence(one.view.value), one.key))
        self._workload_of_job[job_uid] = seen.key

    def _others_changed(self, job_uid: str, key: Key) -> None:
        """Have the other Workloads of a job looked at: another one than before may count for it."""
        for other in sorted(self._several.get(job_uid, set()) - {key}):
            self._unlaid.add(other)
            self._dirty()
            if other in self.workloads:
                self._wake_workload(self.workloads[other])

    def storage_changed(self, old: Stored | None, new: Stored | None) -> None:
        """A PersistentVolumeClaim, volume or StorageClass came, changed or went. Gangs that depend on it are laid anew
        once, before the next decision, for volumes are created by the hundred."""
        if old == new:
            return
        for source in self.storage.change(old, new):
            self._unlaid |= self._mounted_by.get(source, set())
        if self._unlaid:
            self._dirty()

    def _uses_volumes(self, who: User, names: Collection[str]) -> None:
        """A pod or Workload uses these PersistentVolumeClaims now, and no others."""
        touched = self.storage.uses(who, names)
        for source in touched:
            self._unlaid |= self._mounted_by.get(source, set())
        if touched:
            self._dirty()

    def devices_changed(self, old: Listed | None, new: Listed | None) -> None:
        """A DeviceClass, ResourceSlice, ResourceClaim or template of claims came, changed or went."""
        if old == new:
            return
        self._devices_touched(self.devices.change(old, new))

    def _devices_touched(self, touched: Touched) -> None:
        """Look again at nodes, claims and jobs for which devices have changed."""
        for name in sorted(touched.nodes & self._offered.keys()):
            self.node_seen(self._offered[name])
        for claim in sorted(touched.claims):
            self._claim_changed(claim)
        for asked in sorted(touched.asks & self._claiming.keys()):
            for key in sorted(self._claiming[asked]):
                self._changed_job(key)

    def _claim_changed(self, claim: Key) -> None:
        """A ResourceClaim changed: book what it holds, for the gang of the pod that it was made for, if that is
        there."""
        name, uid = self.devices.pod_of(claim)
        pod = self._pods.get((claim[0], name))
        usage = self._booked(pod.usage) if pod is not None and pod.uid == uid and pod.usage is not None else None
        before, now = self._held_by.pop(claim, ()), self.devices.held_by(claim, usage)
        if now:
            self._held_by[claim] = now
        for gone in {usage.key for usage in before} - {usage.key for usage in now}:
            self.apply(Gone(PodUsage, gone))
        for usage in now:
            if usage not in before:
                self.apply(Put(usage))
        if (at := self._gone_at.pop(claim, None)) is not None:
            drop(self._gone_of, at, claim)
        if pod is not None and pod.workload_uid:
            held = self.devices.listed(claim) if usage is not None else HeldDevices()
            if held.gone:
                self._gone_at[claim] = at = (pod.workload_uid, pod.node)
                self._gone_of.setdefault(at, {})[claim] = held
            self._wake_pod(pod)

    def lay(self, *, seen: bool) -> None:
        """Lay the gangs anew that volumes, or pods of others, concern. seen: may volumes be read; if not, nothing is
        known of them, and they restrict nobody."""
        if seen != self.looks_at_volumes:
            self.looks_at_volumes = seen
            self._unlaid |= {key for key, one in self.workloads.items() if names_claims([one.view.value])}
        self._unlaid &= self.workloads.keys()
        for key in sorted(self._unlaid)[:LAID_AT_ONCE]:
            self._unlaid.discard(key)
            self.state.apply(Put(self.laid(self.workloads[key].view.value)))
        if self._unlaid:
            self._dirty()

    def laid(self, value: Workload) -> Workload:
        """The Workload as the engine is told of it: with what volumes and pods of others leave it of the nodes, and
        with what keeps it out of line here (lingering pods, no job, sitting out)."""
        key, asked, sources = value.key, value.pod_sets, frozenset[Source]()
        if value.finished:
            self._neighbours.forget(key)
        else:
            if self.looks_at_volumes and names_claims([value]):
                value, sources = self.storage.laid_on(value)
            value = self._neighbours.laid_on(value)
        value = self._held_up(value)
        seen = self.workloads.get(key)
        if value.admission is None and seen is not None and (self.is_beside(seen) or self._stands_for_none(seen)):
            value = replace(value, active=False)
        self._depends(key, sources)
        sits_out = self._sitting_out if value.admission is None else {}
        if sits_out and (until := max(sits_out.get(key, 0), sits_out.get(asked, 0))):
            value = replace(value, requeue_at=max(value.requeue_at, until))
        return value

    def _held_up(self, value: Workload) -> Workload:
        """A waiting Workload, kept out of line (`Workload.lingering`) while old pods of its job end on nodes and keep
        it from making new ones: it would be given room, and not use it for as long as a node stays lost.

        So with a Job that replaces pods only once they are gone (podReplacementPolicy Failed), and with a JobSet of
        which a Job is over, or being deleted, and cannot be created anew before its last pod is gone."""
        job = self.jobs.get(self._job_by_uid.get(value.job_uid, ("", "", "")))
        if value.admission is not None or value.finished or job is None or not _may_be_held_up(job):
            return value
        pods = self._pods_of_owner.get((value.namespace, value.uid), {})
        ending = sorted(
            key
            for key, pod in pods.items()
            if pod.terminating and not pod.done and pod.node and (job.waits_for_failed or self._is_of_an_end(pod))
        )
        if not ending:
            return value
        first, more = ending[0], f" and {len(ending) - 1} more" if len(ending) > 1 else ""
        return replace(value, lingering=f"{first[1]} on node {pods[first].node}{more}")

    def _is_of_an_end(self, pod: PodView) -> bool:
        """Is the Job that made this pod over, or being deleted, and kept until the pod is gone?"""
        maker = self.jobs.get(self._job_by_uid.get(pod.held_by, ("", "", "")))
        return maker is not None and (maker.deleting or maker.ending is not None)

    def _less_held_up(self, job_uid: str) -> None:
        """What `_held_up` looks at may have changed."""
        key = self._job_by_uid.get(job_uid)
        waits = self.workload_of(key) if key is not None and _may_be_held_up(self.jobs[key]) else None
        if waits is not None and waits.view.value.admission is None:
            self._unlaid.add(waits.key)
            self._dirty()

    def sit_out(self, who: Key | tuple[PodSet, ...], now: int, until: int) -> None:
        """Have a gang, or all gangs with these pod sets, sit out until then (ms). Known in memory only: another leader
        may fare better."""
        self._sitting_out = {one: at for one, at in self._sitting_out.items() if at > now}
        self._sitting_out[who] = until
        for seen in [self.workloads[who]] if who in self.workloads else self.workloads.values():
            value = seen.view.value
            if value.admission is None and not value.finished and who in (value.key, value.pod_sets):
                self.apply(Put(self.laid(value)))

    def give_back_twice(self, key: Key, why: str) -> None:
        """The room of this gang had been given away by another leader, too: it is to give it back. why: in words."""
        seen = self.workloads[key]
        self._given_twice[seen.uid] = why
        self._wake_workload(seen)

    def _everybody(self) -> Iterable[tuple[Who, tuple[Stand, ...]]]:
        for key, pod in self._pods.items():
            yield ("pod", *key), self._stand(pod)
        for key, one in self.workloads.items():
            yield ("gang", *key), stands_of(one.view.value)

    def _stands_on(self, who: Who, there: tuple[Stand, ...]) -> None:
        if touched := self._neighbours.stands(who, there):
            self._unlaid |= touched
            self._dirty()

    def _stand(self, pod: PodView) -> tuple[Stand, ...]:
        if pod.usage is None:
            return ()
        reserved, gang = False, pod.workload_uid
        if gang and pod.pinned:
            seen = self.workload_of_uid(self._job_of_workload.get(gang, ""))
            reserved = seen is not None and seen.uid == gang and _holds(seen.view.value)[:2] == (True, False)
        return stand_of(pod.usage, pod.labels, reserved=reserved)

    def _pods_stand(self, seen: WorkloadSeen) -> None:
        """A gang got nodes, or gave them back."""
        for key, pod in self._pods_of_owner.get((seen.namespace, seen.uid), {}).items():
            self._stands_on(("pod", *key), self._stand(pod))

    def _depends(self, key: Key, sources: frozenset[Source]) -> None:
        self._unlaid.discard(key)
        before = self._volumes_of.pop(key, frozenset())
        for source in before - sources:
            discard(self._mounted_by, source, key)
        for source in sources - before:
            self._mounted_by.setdefault(source, set()).add(key)
        if sources:
            self._volumes_of[key] = sources

    def pod_seen(self, pod: PodView) -> None:
        key = (pod.namespace, pod.name)
        old = self._pods.get(key)
        if old is not None and _fails_again(old, pod):
            pod = replace(pod, unready_since=old.unready_since)
        if old is not None and _owners(old) != _owners(pod):
            self._disown(old)
        self._pods[key] = pod
        for owner in _owners(pod):
            self._pods_of_owner.setdefault(owner, {})[key] = pod
        self._stands_free(old, pod)
        self._book(key, old.usage if old is not None else None, pod)
        self._stands_on(("pod", *key), self._stand(pod))
        self._uses_volumes(("Pod", *key), pod.claims if pod.node and not pod.done else ())
        self._free_if_last(pod)
        if pod.terminating:
            self._less_held_up(self._job_of_workload.get(pod.workload_uid, ""))
        self._wake_pod(pod)
        if old is None or (old.uid, old.usage) != (pod.uid, pod.usage):
            self._claims_of(old)
            self._claims_of(pod)

    def pod_lost(self, pod: PodView) -> None:
        key = (pod.namespace, pod.name)
        old = self._pods.pop(key, None)
        self._disown(old or pod)
        self._stands_free(old, None)
        self._gang_of.pop(key, None)
        if old is not None and old.usage is not None:
            self.apply(Gone(PodUsage, key))
        self._stands_on(("pod", *key), ())
        self._uses_volumes(("Pod", *key), ())
        self._free_if_last(old or pod)
        self._less_held_up(self._job_of_workload.get(pod.workload_uid, ""))
        self._wake_pod(pod)
        self._claims_of(old)

    def _book(self, key: Key, before: PodUsage | None, pod: PodView) -> None:
        """before: what it held, booked as `_gang_of` says."""
        # Most news of a pod is of its conditions: no reason to decide, nor to doubt what its node has room for.
        gang, now = self._gang_of.pop(key, ""), self._gang_of_unmarked(pod)
        if now:
            self._gang_of[key] = now
        if pod.usage is None:
            if before is not None:
                self.apply(Gone(PodUsage, key))
        elif pod.usage != before or now != gang:
            self.apply(Put(self._booked(pod.usage)))

    def _booked(self, usage: PodUsage) -> PodUsage:
        """What a pod holds, and of which gang it is."""
        gang = self._gang_of.get(usage.key, "")
        return replace(usage, workload_uid=gang) if gang else usage

    def _gang_of_unmarked(self, pod: PodView) -> str:
        """uid of the Workload of whose job it is a pod, where somebody else has started that (Kueue), and so it lacks
        our mark: else its nodes would be charged twice, and nobody would get them by the eviction of its gang."""
        job = self.jobs.get(self._job_by_uid.get(pod.owner_uid, ("", "", ""))) if not pod.workload_uid else None
        if job is None or job.namespace != pod.namespace:  # of another tenant's
            return ""
        if job.owner is not None and job.of_jobset:
            job = self.jobs.get(self._job_by_uid.get(job.owner[2], ("", "", "")))
        seen = self.workload_of_uid(job.uid) if job is not None else None
        if job is None or seen is None or job.started or seen.uid in self._started_for:
            return ""
        value = seen.view.value
        holds = value.admission is not None and not value.finished and (bool(value.evicted) or not job.suspended)
        return seen.uid if holds and not _leaves_unstarted(job, seen) else ""

    def _pods_follow(self, job_uid: str) -> None:
        """Pods that lack our mark may be of a gang now, or of none any more."""
        job = self.jobs.get(self._job_by_uid.get(job_uid, ("", "", "")))
        for one in () if job is None else (job, *(self.jobs[key] for key in self._children_of(job))):
            for key, pod in list(self._pods_of_owner.get((one.namespace, one.uid), {}).items()):
                if not pod.workload_uid and self._gang_of_unmarked(pod) != self._gang_of.get(key, ""):
                    self._book(key, pod.usage, pod)
                    self._claims_of(pod)

    def _claims_of(self, pod: PodView | None) -> None:
        """A pod came or went, and what its claims hold with it."""
        for claim in self.devices.made_for(pod.namespace, (pod.name, pod.uid)) if pod is not None else ():
            self._claim_changed(claim)

    def _disown(self, pod: PodView) -> None:
        key = (pod.namespace, pod.name)
        for owner in _owners(pod):
            drop(self._pods_of_owner, owner, key)
            if owner not in self._pods_of_owner:
                self._left.pop(owner, None)

    def _is_of(self, pod: PodView, job: JobView) -> bool:
        """May a pod that names this job, or a Job of it, be its? Not if another job's gang has it: what it says of Jobs
        and JobSets stands in its template, where its owner may have written the uid of any."""
        gang = self._job_of_workload.get(pod.workload_uid) or self._left.get((pod.namespace, pod.workload_uid))
        return gang is None or gang == job.uid

    def _stands_free(self, old: PodView | None, new: PodView | None) -> None:
        """A pod of a gang whose node kube-scheduler chose comes to it, or is there no more."""
        if old is not None and (new is None or not _free(new) or new.node != old.node):
            discard(self._free_on, old.node, (old.namespace, old.name))
        if new is not None and _free(new):
            self._free_on.setdefault(new.node, set()).add((new.namespace, new.name))

    def node_seen(self, node: Node, at: int = 0) -> None:
        """at: when it was seen to change, ms since the epoch; 0 where it may have been so for long."""
        self.nodes.add(node.name)
        self._offered[node.name] = node
        node = self.devices.laid_on(node)
        labels = dict(node.labels)
        if self._node_labels.get(node.name) != labels:
            self._node_labels[node.name] = labels
            self._unlaid |= self._neighbours.asking
            host = labels.get(HOSTNAME_LABEL, node.name)
            if host != node.name and self._node_by_host.get(host) != node.name:
                self._node_by_host[host] = node.name
                for key in sorted(self._workloads_on.get(host, ())):
                    self.workload_seen(self.workloads[key])
        self._silence.seen(node, at)
        self._node_lost(node.name, node.lost_since, at)
        devices = {name: amount for name, amount in node.allocatable if "/" in name}
        before, self._devices[node.name] = self._devices.get(node.name, devices), devices
        were_away = self._away.pop(node.name, ())
        if node.away:
            self._away[node.name] = node.away
        came_with = self._came_with.pop(node.name, set())
        expelled = self._expels_no_more(node.name)
        expels = {
            taint: expelled.get(taint, at)
            for taint in node.taints
            if taint.effect == "NoExecute" and taint.key not in LOST_TAINTS
        }
        if expels:
            self._expelling[node.name] = expels
            self._expelling_alike.setdefault(frozenset(expels), set()).add(node.name)
            new = expels.keys() - expelled if at and node.name not in self._ready_from else set()
            if comes := new | (came_with & expels.keys()):
                self._came_with[node.name] = comes
        if node.ready:
            self._ready_from.setdefault(node.name, at)
        # What Kubernetes itself puts there, but for the cordon, comes and goes with the node's condition.
        shuts = [one for one in node.taints if one.effect in KEEPS_OFF and not one.key.startswith(BY_CONDITION)]
        self._shut.pop(node.name, None)
        if shuts or node.unschedulable:
            self._shut[node.name] = (*([CORDON] if node.unschedulable else ()), *shuts)
        self.apply(Put(node))
        if before != devices or were_away != node.away or expelled != expels:
            self._wake_those_on(node.name)

    def node_gone(self, name: str) -> None:
        self.nodes.discard(name)
        self._offered.pop(name, None)
        self._deserted.discard(name)
        host = self._node_labels.pop(name, {}).get(HOSTNAME_LABEL, name)
        if self._node_by_host.get(host) == name:
            del self._node_by_host[host]
        self._unlaid |= self._neighbours.asking
        self._devices.pop(name, None)
        self._away.pop(name, None)
        self._came_with.pop(name, None)
        self._ready_from.pop(name, None)
        self._expels_no_more(name)
        self._shut.pop(name, None)
        self._silence.gone(name)
        self._node_lost(name, 0)
        self.apply(Gone(Node, name))

    def _node_lost(self, node: str, since: int | None, at: int = 0) -> None:
        was, self._silent = self._silent, self._silence.over_since is None
        if was and not self._silent:
            self._wake_holders()  # nobody's time ran meanwhile
        if since is None:
            changed = self.lost_nodes.pop(node, None) is not None
        else:
            before = self.lost_nodes.get(node)
            changed = before is None or (not since and before > 0)
            # By the clock of the node, in part: what was seen to begin did not begin before.
            self.lost_nodes[node] = since and max(since, at if before is None else before)
        if changed:
            self._wake_those_on(node)

    def _wake_those_on(self, node: str) -> None:
        for key in sorted(self._workloads_on.get(node, ())):
            self._wake_workload(self.workloads[key])
        for key in sorted(self._free_on.get(node, ())):
            self._wake_pod(self._pods[key])

    def _expels_no_more(self, node: str) -> dict[Taint, int]:
        taints = self._expelling.pop(node, {})
        discard(self._expelling_alike, frozenset(taints), node)
        return taints

    def tainted_flavors(self, flavors: Iterable[Flavor]) -> set[str]:
        """Names of those of these flavors that are elastic and of which some ready node has a NoExecute taint that
        their pods do not tolerate."""
        return {one.name for one in flavors if one.elastic and self._some_node_expels(one)}

    def _some_node_expels(self, flavor: Flavor) -> bool:
        wanted = set(flavor.node_labels)
        alike = (nodes for taints, nodes in self._expelling_alike.items() if _expels(flavor, taints))
        return any(wanted <= self._node_labels.get(node, {}).items() for nodes in alike for node in nodes)

    def unknown_nodes(self) -> list[str]:
        """Nodes on which pods of gangs are, or that reservations name, and that are not known: they were deleted while
        nobody watched, or news of them is still to come."""
        there = {pod.node for pod in self._pods.values() if pod.workload_uid and pod.node and not pod.done}
        there.update(*(_hosts_given(seen.view.value) for seen in self.workloads.values()))
        return sorted(there - self.nodes - self.lost_nodes.keys())

    def forget_nodes(self) -> None:
        """Forget deleted nodes on which no pod was the last time either. (Not sooner, for the write of a reservation
        may have been under way when its node went.)"""
        gone = {node for node, since in self.lost_nodes.items() if not since} - self._workloads_on.keys()
        if gone:
            gone.difference_update(pod.node for pod in self._pods.values())
        for node in gone & self._deserted:
            del self.lost_nodes[node]
        self._deserted = gone & self.lost_nodes.keys()

    def queue_changed(self, queue: str | Key) -> None:
        """A ClusterQueue or LocalQueue changed: gangs that hold quota of it may have to leave."""
        for gang in self.state.holders(queue):
            seen = self.workloads.get(gang.key)
            if seen is not None:
                self._wake_workload(seen)

    def _wake_holders(self) -> None:
        for seen in self.workloads.values():
            if seen.view.value.admission is not None:
                self._wake_workload(seen)

    def namespace_changed(self, name: str) -> None:
        """A namespace changed: its labels say whether its jobs are governed, and it may be being deleted."""
        for key in self.jobs:
            if key[1] == name:
                self._changed_job(key)

    def wake_class(self, name: str) -> None:
        """A RuntimeClass changed: look at the jobs whose pods name it."""
        for key, job in self.jobs.items():
            if name in job.runtime_classes:
                self._changed_job(key)

    def account_changed(self, namespace: str, name: str) -> None:
        """A ServiceAccount came or went: look at the jobs whose pods name it."""
        for key, job in self.jobs.items():
            if key[1] == namespace and name in job.service_accounts:
                self._changed_job(key)

    def says_the_same(self, seen: WorkloadSeen, job: JobView) -> None:
        """The defaults that are added to the job's pods now make no difference to its Workload."""
        self._same_defaults[seen.uid] = self.defaults.mark_of(job)
        self._changed_job(job.key)

    def priority_seen(self, seen: PriorityClassSeen, *, ours: bool) -> None:
        self.defaults.priority_seen(seen, ours=ours)
        for key in self.jobs:
            self._changed_job(key)
        for one in self.workloads.values() if ours else ():
            if one.view.priority_class == seen.name and self.is_bare(one):
                self._changed_job((ORPHAN, *one.key))

    def priority_lost(self, seen: PriorityClassSeen, *, ours: bool) -> None:
        self.defaults.priority_lost(seen, ours=ours)
        for key in self.jobs:
            self._changed_job(key)

    # ------------------------------------------------------------ looking

    def sight(self, key: JobKey, now: int) -> Sight:
        """All that `lifecycle.next_step` needs to know of a job."""
        self._began = self._began or now
        job = self.jobs.get(key)
        seen = self.workload_of(key)
        workload = seen.view if seen is not None else None
        policy, by = self._stopped(workload.value) if workload is not None else (StopPolicy.NONE, "")
        hosts = self._hosts(job, seen) if self.lost_nodes or self._expelling else {}
        everywhere = frozenset[str]().union(*hosts.values())
        gone, gone_until = self._on_lost_nodes(seen, everywhere, now, runs=job is not None and not job.suspended)
        bare, bare_until = self._without_devices(job, seen, now)
        tainted, tainted_until = self._tainted(workload.value, hosts, now) if workload is not None else ({}, None)
        lost = tuple(sorted({*gone, *bare, *tainted, *self._not_back(seen)}))
        priority = workload.value.priority if workload is not None else 0
        if job is not None and (not job.priority_class or job.priority_class in self.defaults.workload_priorities):
            priority = self.defaults.priority(job)[0]
        pods = self.tally(job, seen, now)  # before who makes and places them is asked: it tells them who lacks some
        return Sight(
            job=job,
            workload=workload,
            pods=pods,
            queue=self.queue_of(job) if job is not None else "",
            governed=job is not None and self.governed(job),
            terminating=key[1] in self.state.terminating,
            within=job is not None and self._within(job),
            outside=job is not None and self.outside(job),
            stop_policy=policy,
            stopped_by=by,
            queue_goes=workload is not None and self._queue_goes(workload.value),
            lost_nodes=lost,
            tainted=tuple(sorted(tainted.items())),
            short=tuple(sorted((node, left) for node, left in bare.items() if node not in gone)),
            unnamed=tuple(sorted({*lost} - _hosts_given(workload.value))) if workload is not None and lost else (),
            lost_at=earliest(gone_until, bare_until, tainted_until),
            heard_since=self._silence.over_since,
            made_since=self.making.ended_at(key, now),
            placed_since=self.placing.ended_at(key, now),
            priority=priority,
            abandoned=job is not None and self._abandoned(job),
            spare_since=self._spare_since(key, job, workload, now),
            haunted=job is not None and job.uid in self._haunted,
            marked=self._marked(job),
            going=self._going(job),
            unheard=self._unheard(job),
            idle=self._idle_since(job, now),
            required=self._required(workload.value) if workload is not None else None,
            given_twice=self._given_twice.get(seen.uid, "") if seen is not None else "",
            same_defaults=job is None or seen is None or self.same_defaults(job, seen),
            start_refused=self._start_refused(key, job, seen, now),
            set_ahead=self.set_ahead(),
        )

    def workload_of(self, key: JobKey) -> WorkloadSeen | None:
        job = self.jobs.get(key)
        return None if job is None else self.workload_of_uid(job.uid)

    def place_of(self, job_uid: str) -> WorkloadSeen | None:
        """The Workload by which a job waited that has none now; None if it has no place in line to come back to."""
        return self._places.get(job_uid)

    def gives_up_place(self, workload_uid: str) -> None:
        """A Workload is about to be deleted for what the owner of its job changed: the job does not get its place
        back."""
        if workload_uid in self._job_of_workload:
            self._by_owner.add(workload_uid)

    def workload_of_uid(self, job_uid: str) -> WorkloadSeen | None:
        at = self._workload_of_job.get(job_uid)
        return self.workloads.get(at) if at is not None else None

    def pods_live(self, owner: Owner, now: int) -> int:
        """Pods of a Job, JobSet or Workload that still run or may run."""
        owned = self._pods_of_owner.get(owner, {}).values()
        return sum(not pod.done and self._waited_for(pod, now) is not None for pod in owned)

    def has_pod(self, key: Key, uid: str) -> bool:
        """Does the copy know of this pod."""
        pod = self._pods.get(key)
        return pod is not None and pod.uid == uid

    def _waited_for(self, pod: PodView, now: int) -> int | None:
        """Until when a pod counts as one that may run: NEVER while its end can be seen, None when it counts no more.

        A pod that was deleted on a node that is lost stays Terminating for as long as the node does; one that was never
        bound runs nowhere and will not, whatever finalizer keeps it."""
        if pod.terminating and not pod.node:
            return None
        since = self.lost_nodes.get(pod.node) if pod.node and pod.terminating else None
        if since is None:
            return NEVER
        until = since + self.lost_after_ms if since else 0
        return until if now < until else None

    def ghost_leaves(self, key: Key, preemptor_uid: str) -> bool:
        """The engine evicts a ghost for another gang: note for whom it leaves, as it does already. False if it is
        none."""
        value = self.state.workload(key) if key in self._ghosts else None
        if value is not None:
            self.apply(Put(replace(value, evicted="Deleted", evicted_for=preemptor_uid)))
        return value is not None

    def lay_ghosts(self, now: int) -> None:
        """Free what ghosts hold whose last pods are on nodes that are gone for good."""
        for (namespace, _), uid in sorted(self._ghosts.items()):
            if not self.pods_live((namespace, uid), now):
                self._lay_ghost(uid)

    def same_defaults(self, job: JobView, seen: WorkloadSeen) -> bool:
        """Do defaults add to the job's pods what they did when the Workload was written, or nothing that matters?"""
        now = self.defaults.mark_of(job)
        return now == seen.view.defaults or now == self._same_defaults.get(seen.uid)

    def job_of(self, workload: WorkloadSeen) -> JobKey | None:
        return self._job_by_uid.get(workload.view.value.job_uid)

    def is_orphan(self, seen: WorkloadSeen) -> bool:
        """Does a Workload stand for a job that is gone?"""
        uid = seen.view.value.job_uid
        return bool(uid) and uid not in self._job_by_uid and not self.is_bare(seen)

    def queue_of(self, job: JobView) -> str:
        return job.queue or self.default_queue

    def governed(self, job: JobView) -> bool:
        """Does Muster queue this job itself? A child of a JobSet belongs to its parent."""
        return not job.of_jobset and not self.outside(job) and bool(self.queue_of(job))

    def _within(self, job: JobView) -> bool:
        """Is it a Job of a JobSet that is governed?"""
        parent = self.jobs.get(self._job_by_uid.get(job.owner[2], ("", "", ""))) if job.owner is not None else None
        return parent is not None and job.of_jobset and self.governed(parent)

    def outside(self, job: JobView) -> bool:
        """Is a job in a namespace that is not governed? Never so for Jobs of JobSets, which follow their JobSet."""
        if self._looked_at is None or job.of_jobset:
            return False
        return not matches(self._looked_at, self.state.namespaces.get(job.namespace, {}))

    def makers_of(self, key: JobKey) -> set[str]:
        """uids of a job and of the Jobs that it has made: of those that make pods, and Jobs, for it."""
        job = self.jobs.get(key)
        return set() if job is None else {job.uid, *(self.jobs[child].uid for child in self._children_of(job))}

    def refusal_found(self, key: JobKey, found: Refusal) -> None:
        """It was looked up what refuses the pods that a gang lacks."""
        if key in self._missing:
            self._refusals[key] = found
            self._changed_job(key)

    def start_refused(self, key: JobKey, now: int, said: str) -> None:
        """The API server refuses to start a job for what it is."""
        seen = self.workload_of(key)
        if seen is None:
            return
        admission = seen.uid, seen.view.value.admitted_at
        before = self._starts_refused.get(key)
        since = before[1] if before is not None and before[0] == admission else now
        self._starts_refused[key] = admission, since, now, said
        self._starting.lacks(key, since)

    def started(self, key: JobKey, now: int) -> None:
        """The API server has let a job be started."""
        ends = self._starting.made(key[0], now, now)  # first, for it was one of those whose starts were refused
        self._no_start_refused(key)
        for other in self._starting.lacking() if ends else ():
            self._changed_job(other)

    def _no_start_refused(self, key: JobKey) -> None:
        self._starts_refused.pop(key, None)
        self._starting.lacks_none(key)

    def _start_refused(
        self, key: JobKey, job: JobView | None, seen: WorkloadSeen | None, now: int
    ) -> tuple[int, int, str] | None:
        """`Sight.start_refused`. While the starts of all jobs are refused no job is to blame: each has its full time
        once that is over."""
        if key not in self._starts_refused:
            return None
        admission, since, last, said = self._starts_refused[key]
        waits = job is not None and job.suspended and seen is not None
        if not waits or seen is None or (seen.uid, seen.view.value.admitted_at) != admission:
            self._no_start_refused(key)
            return None
        over = self._starting.ended_at(key, now)
        return None if over is None else (max(since, over), last, said)

    def pods_of(self, owner: Owner) -> list[PodView]:
        """Pods of a Job, JobSet or Workload, in order of name."""
        owned = self._pods_of_owner.get(owner, {})
        return [owned[key] for key in sorted(owned)]

    def _counted(self, job: JobView | None, workload: WorkloadSeen | None) -> tuple[dict[Key, PodView], int]:
        """Pods of a gang; and how many its Jobs own that its start did not make."""
        pods: dict[Key, PodView] = {}
        strangers = 0
        if job is not None:
            # A pod that was made before its gang was ours names its own Job alone.
            for one in (job, *(self.jobs[key] for key in self._children_of(job))):
                for key, pod in self._pods_of_owner.get((one.namespace, one.uid), {}).items():
                    if self._is_of(pod, job):
                        pods[key] = pod
                    else:
                        strangers += pod.held_by == one.uid and not pod.done
        if workload is not None:
            pods.update(self._pods_of_owner.get((workload.namespace, workload.uid), {}))
        started = (job is not None and job.started) or (workload is not None and workload.uid in self._started_for)
        if started or _leaves_unstarted(job, workload):
            # Whoever may make pods may say that a Job owns one, or have it adopted by its labels.
            unmarked = [key for key, pod in pods.items() if not pod.workload_uid]
            strangers += sum(not pods.pop(key).done for key in unmarked)
        return pods, strangers

    def tally(self, job: JobView | None, workload: WorkloadSeen | None, now: int) -> PodTally:
        """Count the pods of a gang. Notes since when some are missing, or not placed, or too many: these times are on
        no object."""
        counted, strangers = self._counted(job, workload)
        if not counted and not (job is not None and job.deleting):
            missing, behind = self._missing_since(job, workload, None, now), self._behind_since(job, workload, 0, now)
            refusal = self._refusal(job)
            if job is not None:
                self._waits_to_be_placed(job, 0)
                self._beyond.pop(job.key, None)
            return PodTally(missing_since=missing, refusal=refusal, behind_since=behind, strangers=strangers)
        pods = [counted[key] for key in sorted(counted)]
        survives = workload is not None and job is not None and job.survives
        standing = _hosts_of_each(workload.view.value) if workload is not None and survives else {}
        alive = self._alive(pods, job, workload, standing, now)
        placing = _placing_of(pods, _pinned(workload.view.value) if workload is not None else frozenset(), standing)
        succeeded: Counter[str] = Counter()
        ready = there = placed = last = 0
        unready: int | None = None
        for pod in pods:
            there += not pod.done
            placed += bool(pod.node) and not pod.done and not pod.terminating
            if pod.done:
                succeeded[pod.held_by] += not pod.failed
            elif pod.ready:
                ready += 1
            elif pod.unready_since and (unready is None or pod.unready_since < unready):
                unready = pod.unready_since
            if not pod.terminating:
                last = max(last, pod.created_at)
        done = self._done_of_due(job, succeeded)
        missing = self._missing_since(job, workload, there + done, now)
        if job is not None:
            self._waits_to_be_placed(job, placing.unscheduled if self._runs(job, workload) else 0)
        first, wanted = placing.unschedulable, placing.wanted
        return PodTally(
            live=alive.live,
            lost=alive.lost,
            lost_until=alive.lost_until,
            ready=ready + done,
            last_created_at=last,
            unready_since=unready,
            unschedulable_since=None if first is None else first.unschedulable_since,
            unschedulable_message="" if first is None else first.unschedulable_message,
            shut_out=self._shut_out(first, workload) if first is not None and workload is not None else "",
            refused_by=self._refused_by(wanted, workload) if wanted and workload is not None else (),
            unplaced=len(placing.unplaced),
            unplaced_since=self._unplaced_since(job, workload, placing.unplaced, pods, placed + done),
            unplaced_message=placing.unplaced_message,
            out_of_stock=self._elastic_of(workload, placing.unplaced_sets),
            gated=tuple(placing.gated),
            stranded=tuple(placing.stranded),
            beyond=self._beyond_of(job, workload, alive.made, now),
            claims_more=alive.claims_more,
            missing_since=missing,
            refusal=self._refusal(job),
            behind_since=self._behind_since(job, workload, ready + done, now),
            stray=tuple(alive.stray),
            unled=tuple(sorted(alive.unled)),
            strangers=strangers,
        )

    def _alive(
        self,
        pods: Sequence[PodView],
        job: JobView | None,
        workload: WorkloadSeen | None,
        standing: Mapping[str, Set[str]],
        now: int,
    ) -> _Alive:
        """Who of these pods is still there, and whom nobody would stop. standing: as of `_hosts_of_each`."""
        out = _Alive(unled=set(self._unled_children(job)))
        for pod in pods:
            if pod.done:
                continue
            until = self._waited_for(pod, now)
            if until is None:
                out.lost += 1
            else:
                out.live += 1
                moved = pod.node not in standing.get(pod.pod_set, (pod.node,))
                given_up = pod.terminating and (moved or _made_before(pod, workload))
                if pod.node and not given_up:
                    out.made.setdefault(pod.pod_set, []).append(pod.created_at)
                if until != NEVER and (out.lost_until is None or until < out.lost_until):
                    out.lost_until = until
            if workload is not None:
                out.claims_more = out.claims_more or self._claims_more(pod, workload.view.value)
            if not pod.terminating:
                maker = self._job_by_uid.get(pod.held_by)
                if maker is None or self.jobs[maker].deleting:
                    out.stray.append((pod.namespace, pod.name))
                elif self._is_unled(self.jobs[maker]):
                    out.unled.add(maker)
        return out

    def _unplaced_since(
        self,
        job: JobView | None,
        workload: WorkloadSeen | None,
        unplaced: Mapping[str, int],
        pods: Sequence[PodView],
        placed: int,
    ) -> int | None:
        """Since when one of a gang's pods has had no node, or those in whose place it was made: a JobSet makes all of
        them anew for one that fails. unplaced: uid of a pod -> since when; placed: how many have a node."""
        if job is None or workload is None or not self._runs(job, workload):
            return min(unplaced.values(), default=None)
        admission = workload.uid, workload.view.value.admitted_at
        held = self._unplaced.pop(job.key, (admission, {}))
        before = dict(held[1]) if held[0] == admission else {}
        for pod in pods if before else ():
            if pod.node:
                before.pop(pod.uid, None)
        gone = {uid: since for uid, since in before.items() if uid not in unplaced}
        inherited = min(gone.values(), default=NEVER)
        now = {uid: min(since, before.get(uid, inherited)) for uid, since in unplaced.items()}
        anew = all(pod.created_at > inherited for pod in pods if not (pod.done or pod.terminating))
        if (anew or unplaced.keys() <= before.keys()) and placed + len(unplaced) < job.pods_expected:
            now |= gone  # where all are made anew, it is the time of all that come
        if now:
            self._unplaced[job.key] = admission, now
        return min((now[uid] for uid in unplaced), default=None)

    def _beyond_of(
        self, job: JobView | None, workload: WorkloadSeen | None, made: Mapping[str, list[int]], now: int
    ) -> Beyond | None:
        """More pods than are charged. made: pod set -> when those were made that are on nodes. Of one pod set it counts
        from when it is seen: that pods are done is told in two places."""
        admission = workload.view.value.admission if workload is not None else None
        if job is None or workload is None or admission is None:
            return None
        key = job.key
        found = _beyond(sorted(at for times in made.values() for at in times), admission.pods)
        told = dict(workload.view.value.reclaimable)
        for given in admission.pod_sets:
            back, there = min(told.get(given.name, 0), given.count), len(made.get(given.name, ()))
            if there > given.count - back:
                since = self._beyond.setdefault(key, now)
                return found or Beyond(since, there, given.count - back, given.name, back)
        self._beyond.pop(key, None)
        return found

    def _claims_more(self, pod: PodView, value: Workload) -> str:
        """Does a pod ask for more by its claims than its pod set was admitted for, in words. Their template may have
        been another when they were made than when they were counted."""
        owner = pod.name, pod.uid
        if not self.devices.made_for(pod.namespace, owner):
            return ""
        if any(one.shape.uncounted for one in value.pod_sets):
            return ""  # somebody else admitted it (Kueue, before an import), and nothing says what was counted
        shape = next((one.shape for one in value.pod_sets if one.name == pod.pod_set), PodShape())
        more = self.devices.beyond(pod.namespace, owner, shape.claimed, dict(shape.requests))
        said = f"Pod {pod.name} asks for this by its claims: {more}; their ResourceClaimTemplate was another then"
        return said if more else ""

    def ran_whole(self, workload: WorkloadSeen) -> bool:
        """Were all pods of a gang seen ready in the admission that it holds."""
        key = self._job_by_uid.get(workload.view.value.job_uid)
        return key is not None and self._whole_since(key, workload) is not None

    def ran_whole_ms(self, workload: WorkloadSeen, now: int) -> int:
        """For how long all pods of a gang were seen ready, in the admission that it holds, until they were no more. Who
        was so at the first look has been since its admission: a controller may have begun later."""
        key = self._job_by_uid.get(workload.view.value.job_uid)
        since = None if key is None else self._whole_since(key, workload)
        return 0 if key is None or since is None else self._behind.get(key, now) - since

    def _whole_since(self, key: JobKey, workload: WorkloadSeen) -> int | None:
        held = self._whole.get(key)
        return held[1] if held is not None and held[0] == (workload.uid, workload.view.value.admitted_at) else None

    # ------------------------------------------------------------ inside

    def _elastic_of(self, workload: WorkloadSeen | None, pod_sets: Set[str]) -> tuple[str, ...]:
        """Elastic flavors whose nodes these pod sets of a reservation wait for, by name: those of their devices, if
        they have any."""
        admission = None if workload is None else workload.view.value.admission
        out: set[str] = set()
        for given in () if admission is None else admission.pod_sets:
            if given.name in pod_sets:
                found = ((resource, self.state.flavor(name)) for resource, name in given.flavors)
                elastic = {resource: flavor.name for resource, flavor in found if flavor is not None and flavor.elastic}
                out |= {name for resource, name in elastic.items() if is_device(resource)} or set(elastic.values())
        return tuple(sorted(out))

    def as_by_pods(self, job: JobView, workload: WorkloadSeen) -> JobView:
        """A job with as many pods ready as `tally` counts, where its status counts fewer."""
        if job.suspended or job.runs:
            return job
        pods = self._counted(job, workload)[0].values()
        succeeded = Counter(pod.held_by for pod in pods if pod.done and not pod.failed)
        ready = sum(pod.ready and not pod.done for pod in pods) + self._done_of_due(job, succeeded)
        return replace(job, ready=max(job.ready, ready))

    def _done_of_due(self, job: JobView | None, succeeded: Mapping[str, int]) -> int:
        """Pods that have succeeded and are among those that are due: their Job does not say so yet, or its JobSet, of
        which a Job is done with all of its pods. succeeded: uid of a Job -> its pods that are there and did."""
        if job is None:
            return sum(succeeded.values())
        if job.kind != JOBSET.kind:
            return max(0, sum(succeeded.values()) - job.succeeded)
        children = [child for key in self._children_of(job) if not (child := self.jobs[key]).deleting]
        return max(0, sum(max(succeeded.get(child.uid, 0), child.succeeded) for child in children) - job.succeeded)

    @staticmethod
    def _runs(job: JobView, workload: WorkloadSeen | None) -> bool:
        return workload is not None and workload.view.value.admitted and not job.suspended

    def _missing_since(
        self, job: JobView | None, workload: WorkloadSeen | None, there: int | None, now: int
    ) -> int | None:
        """Since when a running gang has fewer pods than are due: a pod that is gone says no more when it went. there:
        None where it has none, not even one that failed."""
        if job is None:
            return None
        key = job.key
        if workload is None or not self._runs(job, workload) or (there or 0) >= job.pods_expected:
            self._lacks_no_pods(key)
            return None
        admitted_at = workload.view.value.admitted_at
        had_some = there is not None or self._whole_since(key, workload) is not None
        self.making.lacks(key, admitted_at, counts=not had_some)
        return self._missing.setdefault(key, now)

    def _lacks_no_pods(self, key: JobKey) -> None:
        self._missing.pop(key, None)
        self._refusals.pop(key, None)
        self.making.lacks_none(key)

    def _waits_to_be_placed(self, job: JobView, since: int) -> None:
        """since: when the last of its pods was made that kube-scheduler has not looked at; 0: there is none."""
        key = job.key
        if since:
            self.placing.lacks(key, since)
        else:
            self.placing.lacks_none(key)

    def pod_came(self, old: PodView | None, pod: PodView, now: int) -> None:
        """A pod was made, or came to its node: the time of all who wait for that begins anew if they were made, or came
        there, for nobody."""
        if not pod.workload_uid:
            return
        kind, new = JOBSET.kind if pod.jobset_uid else JOB.kind, old is None or old.uid != pod.uid
        woken: list[JobKey] = []
        if new and self.making.made(kind, pod.created_at, now):
            woken += self.making.lacking()
        comes = pod.node and (old is None or new or not old.node)
        if comes and self.placing.made(kind, pod.created_at if new else now, now):
            woken += self.placing.lacking()
        for key in woken:
            self._changed_job(key)

    def _refusal(self, job: JobView | None) -> Refusal | None:
        return None if job is None else self._refusals.get(job.key)

    def _behind_since(self, job: JobView | None, workload: WorkloadSeen | None, ready: int, now: int) -> int | None:
        """Since when a gang of which all pods were ready in this admission has fewer that are."""
        if job is None or workload is None:
            return None
        key = job.key
        admission = (workload.uid, workload.view.value.admitted_at)
        whole = ready + job.succeeded >= job.pods_at_once or (job.kind != JOBSET.kind and ready >= job.pods_expected)
        since = self._whole_since(key, workload)
        if self._runs(job, workload) and whole:
            if since is None:
                known = key in self._whole and self._whole[key][0] == admission
                self._whole[key] = admission, now if known else workload.view.value.admitted_at
            elif key in self._behind:
                self._whole[key] = admission, since + now - self._behind[key]
            self._readiness(workload.key, "")
        elif self._runs(job, workload) and since is not None:
            self._readiness(workload.key, "recovering")
            return self._behind.setdefault(key, now)
        else:
            self._whole.pop(key, None)
            if self._runs(job, workload):
                self._whole[key] = admission, None
            self._readiness(workload.key, "starting")
        self._behind.pop(key, None)
        return None

    def _is_unled(self, job: JobView) -> bool:
        """Does this Job make pods of a gang with nobody there to stop it?"""
        if job.suspended or job.deleting or job.finished is not None or not job.marked_for or job.started:
            return False
        parent = self.jobs.get(self._job_by_uid.get(job.owner[2], ("", "", ""))) if job.owner is not None else None
        return parent is None or parent.deleting

    def _unled_children(self, job: JobView | None) -> list[JobKey]:
        """Of a JobSet that is being deleted: also those that have no pods yet."""
        if job is None or not job.deleting or job.kind != JOBSET.kind:
            return []
        return [key for key in self._children_of(job) if self._is_unled(self.jobs[key])]

    def _marked(self, job: JobView | None) -> tuple[JobKey, ...]:
        if job is None or not job.suspended:
            return ()
        children = ((key, self.jobs[key]) for key in self._children_of(job))
        return tuple(sorted(key for key, child in children if _carries(child)))

    def made_early(self, jobset: JobView) -> tuple[JobKey, ...]:
        """Jobs that a held JobSet has made."""
        children = ((key, self.jobs[key]) for key in self._children_of(jobset))
        return tuple(sorted(key for key, one in children if one.suspended and not _makes_no_more(one)))

    def _going(self, job: JobView | None) -> tuple[JobKey, ...]:
        children = ((key, self.jobs[key]) for key in self._children_of(job)) if job is not None else ()
        over = (key for key, one in children if not (one.suspended or one.deleting or one.finished))
        return tuple(sorted(over))

    def _unheard(self, job: JobView | None) -> int:
        if job is None:
            return 0
        children = [self.jobs[key] for key in self._children_of(job)]
        # One that is at its end makes no more pods, and never says that it is suspended.
        return sum(not (_makes_no_more(child) or _heard(child, stop=job.suspended)) for child in children)

    def _idle_since(self, job: JobView | None, now: int) -> tuple[tuple[JobKey, int], ...]:
        if job is None:
            return ()
        out = []
        for one in (job, *(self.jobs[key] for key in self._children_of(job))):
            key = one.key
            if one.kind == JOB.kind and one.suspended == job.suspended and _owed(one):
                out.append((key, max(self._idle.setdefault(key, now), one.probed_ms)))
            else:
                self._idle.pop(key, None)
        return tuple(sorted(out))

    def _abandoned(self, job: JobView) -> bool:
        if job.kind != JOB.kind or not job.marked_for or job.marked_for in self._job_of_workload:
            return False
        return job.owner is None or job.owner[2] not in self._job_by_uid

    def _spare_since(self, key: JobKey, job: JobView | None, workload: WorkloadView | None, now: int) -> int | None:
        if job is None or workload is None or not job.left or not spare(job, workload.value):
            self._spare.pop(key, None)
            return None
        if not self.state.anybody_waits:
            self._spare[key] = 0
            return None
        since = self._spare[key] = self._spare.get(key, 0) or now
        return since

    def _hosts(self, job: JobView | None, seen: WorkloadSeen | None) -> dict[str, set[str]]:
        """pod set -> the nodes that it has: those that its reservation names, but for those on which all of its pods
        are done; where that names none (kube-scheduler chooses, on elastic flavors), those on which its pods are. Of a
        job that survives its pods the latter are left to its controller, which makes them anew on whatever node there
        is."""
        out: dict[str, set[str]] = {}
        if seen is None or seen.view.value.admission is None:
            return out
        for given in seen.view.value.admission.pod_sets:
            out[given.name] = {domain.values[-1] for domain in given.topology.domains} if given.topology else set()
        there = self._pods_of_owner.get((seen.namespace, seen.uid), {}).values()
        for name, left in job.left if job is not None and not job.suspended else ():
            standing = [pod.node for pod in there if pod.pod_set == name and not pod.done]
            if name in out and len(standing) == left and all(standing):
                out[name] &= set(standing)
        if job is None or job.survives or not self.state.rules.capacity_unless_elastic or not self._free_on:
            return out
        for pod in there:
            if _free(pod) and pod.pod_set in out and not pod.terminating:
                out[pod.pod_set].add(pod.node)
        return out

    def _on_lost_nodes(
        self, seen: WorkloadSeen | None, hosts: Collection[str], now: int, *, runs: bool
    ) -> tuple[list[str], int | None]:
        """(nodes of a gang that are lost; when the next one counts as lost).

        A running gang is left alone for a while, because many nodes come back: after an outage of the API server, or of
        the network, they are not ready for some seconds. Kubernetes itself deletes pods of such a node after 300 s,
        unless pods or the API server say otherwise; half of that is left to stop the gang. While all nodes are silent
        the time does not run, and it begins anew when the first is back, as in Kubernetes."""
        if seen is None or seen.view.value.admission is None or not self.lost_nodes:
            return [], None
        lost = sorted(self.lost_nodes.keys() & hosts)
        wait = 0
        heard: int | None = 0
        if lost and runs:
            there = self._pods_of_owner.get((seen.namespace, seen.uid), {}).values()
            stays = [pod.stays_ms for pod in there if pod.stays_ms is not None and not pod.done and pod.node in lost]
            wait = min(NODE_GONE_MS, *(most // 2 for most in (self.lost_after_ms, *stays)))
            heard = self._silence.over_since
        out: list[str] = []
        until: int | None = None
        for node in lost:
            since = self.lost_nodes[node]
            if since and heard is None:
                continue
            due = max(since, heard or 0) + wait if since else 0
            if now >= due:
                out.append(node)
            elif until is None or due < until:
                until = due
        return out, until

    def _without_devices(
        self, job: JobView | None, seen: WorkloadSeen | None, now: int
    ) -> tuple[dict[str, str], int | None]:
        """(node -> what is left, in words; when the next one counts) of nodes that are ready and have lacked devices
        for a while that a running gang holds there. They are not lost at once: after a kubelet's restart its devices
        are gone for some seconds, and after a device plugin's for minutes, in which pods that have some run on."""
        if seen is None or seen.view.value.admission is None or not seen.view.value.admitted:
            return {}, None
        out: dict[str, str] = {}
        until: int | None = None
        wait = min(NODE_GONE_MS, self.lost_after_ms)
        hosts: frozenset[str] | None = None
        for node in sorted(self._devices_held.get(seen.key, ())):
            at = (seen.key, node)
            short = self._short_of(seen.key, node)
            if short and hosts is None:
                hosts = frozenset().union(*self._hosts(job, seen).values())
            if not short or node not in (hosts or ()):
                self._short.pop(at, None)
                continue
            away = short.keys() <= self._away_from(seen, node) and self._all_run(seen, node)
            due = self._short.setdefault(at, now) + (AWAY_MS if away else wait)
            if now >= due:
                out[node] = ", ".join(f"{there} of {held} {name}" for name, (there, held) in short.items())
            elif until is None or due < until:
                until = due
        return out, until

    def _not_back(self, seen: WorkloadSeen | None) -> list[str]:
        """Of the nodes that a gang has lost by its Workload's status, those that are not well again. They count as lost
        at once, also for a controller that has just started, and while all nodes are silent."""
        if seen is None or not (told := seen.view.value.lost_nodes):
            return []
        there = (node for node in told if node in self._devices_held.get(seen.key, ()))
        away = self.lost_nodes.keys()
        return [one for one in there if one in away or one not in self.nodes or self._short_of(seen.key, one)]

    def _away_from(self, seen: WorkloadSeen, node: str) -> set[str]:
        """Devices that a gang keeps on a node though that has none: the plugin or driver that offers them is away."""
        gone = self._gone_of.get((seen.uid, node), {}).values()
        unlisted = {name for held in gone if held.away for name in held.names}
        return {*self._away.get(node, ()), *unlisted}.difference(*(held.names for held in gone if not held.away))

    def _all_run(self, seen: WorkloadSeen, node: str) -> bool:
        """Has a gang pods on a node, of which each is ready?"""
        pods = self._pods_of_owner.get((seen.namespace, seen.uid), {}).values()
        here = [pod for pod in pods if pod.node == node and not pod.done]
        return bool(here) and all(pod.ready and not pod.terminating for pod in here)

    def _tainted(self, value: Workload, hosts: Mapping[str, set[str]], now: int) -> tuple[dict[str, str], int | None]:
        """(node -> its taint; when the next one counts) of nodes of a gang with a NoExecute taint that takes its pods
        off them. Lost to this gang only: kubelet ends the pods, which are waited for. Where the pods tolerate it for a
        time, the node counts as lost after half of that, so that the gang can still be stopped in order."""
        out: dict[str, str] = {}
        until: int | None = None
        if not self._expelling or value.admission is None:
            return out, until
        for given in value.admission.pod_sets:
            here = hosts.get(given.name, set())
            if not here & self._expelling.keys():
                continue
            tolerations = self._tolerations(value, given)
            for node in here & self._expelling.keys():
                for taint, since in self._expelling[node].items():
                    borne = toleration_of(tolerations, taint)
                    if borne is not None and borne.seconds is None:
                        continue
                    # Where kube-scheduler chooses, it would choose that node again.
                    came = since or self._began
                    if borne is not None and given.topology is None and came <= value.admitted_at:
                        continue
                    due = 0 if borne is None else max(since, value.admitted_at) + 500 * max(0, borne.seconds or 0)
                    if borne is None and given.topology is None and taint in self._came_with.get(node, ()):
                        # Our own toleration put its pods there, once it was ready.
                        due = max(since, self._ready_from.get(node, now)) + 500 * PATIENCE_S
                    if now >= due:
                        out.setdefault(node, taint.text)
                    else:
                        until = earliest(until, due)
        return out, until

    def _shut_out(self, pod: PodView, workload: WorkloadSeen) -> str:
        """Why a pod cannot come to the node that it is pinned to, if somebody has closed that to it, in words; else
        ""."""
        value = workload.view.value
        if not pod.pinned:
            return ""
        if pod.pinned not in self.nodes:
            return f"node {pod.pinned} is no more"
        taints = self._shut.get(pod.pinned, ())
        if CORDON in taints:
            return f"node {pod.pinned} is cordoned"
        for given in value.admission.pod_sets if value.admission is not None else ():
            if given.name != pod.pod_set:
                continue
            if taint := refused_taint(taints, self._tolerations(value, given)):
                return f"the taint {taint.text} keeps it off node {pod.pinned}"
            there = self._node_labels.get(pod.pinned, {})
            for label, said in self._selects(value, given):
                if there.get(label) != said:
                    return f"node {pod.pinned} has the label {label}={said} no more"
        return ""

    def _refused_by(self, wanted: Mapping[str, PodView], workload: WorkloadSeen) -> tuple[str, ...]:
        """Of the nodes to which waiting pods are pinned, those that have room and are open by all that is known here.
        kube-scheduler must know of something else: how many volumes a node takes, what its driver reports, what an
        admission plugin added."""
        there = sorted(wanted.keys() & self.nodes)
        well = (n for n in there if _is_well(self._offered[n]) and not self.state.overfull(n))
        return tuple(n for n in well if not self._shut_out(wanted[n], workload))

    def _selects(self, value: Workload, given: PodSetAssignment) -> list[tuple[str, str]]:
        """Labels that its template and its flavors say the nodes of a pod set have."""
        out = [pair for one in value.pod_sets if one.name == given.name for pair in one.shape.node_selector]
        for name in value.admission.flavors_of(given) if value.admission is not None else ():
            flavor = self.state.flavor(name)
            out.extend(flavor.node_labels if flavor is not None else ())
        return out

    def _tolerations(self, value: Workload, given: PodSetAssignment) -> tuple[Toleration, ...]:
        """Of the pods of a pod set, as they are made."""
        out = [one for pod_set in value.pod_sets if pod_set.name == given.name for one in pod_set.shape.tolerations]
        names = value.admission.flavors_of(given) if value.admission is not None else ()
        flavors = [flavor for flavor in map(self.state.flavor, names) if flavor is not None]
        out.extend(one for flavor in flavors for one in flavor.tolerations)
        for check in value.checks:
            out.extend(one for part, more in check.tolerations if part == given.name for one in more)
        return on_purpose(flavors, tuple(out))

    def _short_of(self, key: Key, node: str) -> dict[str, tuple[int, int]]:
        """Of which devices a node has fewer than its gangs hold there: (how many there are, how many are held), in the
        order of their names. Where it is not known whose are gone those are the last in the order of their admission,
        and it is told up to this gang."""
        has = self._devices.get(node)
        if has is None:
            return {}
        there = [
            self.workloads[other].view.value for other in self._workloads_on.get(node, ()) if other in self.workloads
        ]
        value = next((one for one in there if one.key == key), None)
        if value is None:
            return {}
        mine = self._devices_held[key].get(node, {})
        upto, every = dict.fromkeys(mine, 0), dict.fromkeys(mine, 0)
        for one in there:
            for name, amount in self._devices_held[one.key].get(node, {}).items():
                if name in mine:
                    every[name] += amount
                    upto[name] += amount * (_admission_order(one) <= _admission_order(value))
        short = {name: (has.get(name, 0), upto[name]) for name in sorted(mine) if upto[name] > has.get(name, 0)}
        known = self.devices.counting
        gone = self._gone_of.get((value.uid, node), {}).values()
        by_claims = set[str]()
        if gone or any(name in known for name in short):
            by_claims = self._listed(value, node) & mine.keys() & known.keys()
        if short.keys() - by_claims and self._renamed(value, node, mine):
            short = {}
        for name in by_claims:
            lost = min(sum(one.gone for one in gone if name in one.names), every[name] - has.get(name, 0))
            short.pop(name, None)
            if lost > 0:
                short[name] = max(0, mine[name] - lost), mine[name]
        return dict(sorted(short.items()))

    def _listed(self, value: Workload, node: str) -> set[str]:
        """As what the devices count that a gang has on a node by claims."""
        pods = self._pods_of_owner.get((value.namespace, value.uid), {}).values()
        here = ((pod.namespace, (pod.name, pod.uid)) for pod in pods if pod.node == node)
        claims = (claim for one in here for claim in self.devices.made_for(*one))
        return set[str]().union(*(self.devices.listed(claim).names for claim in claims))

    def _renamed(self, value: Workload, node: str, names: Collection[str]) -> bool:
        """Has a gang devices on a node whose class was counted by one of these names and is not any more?"""
        pods = self._pods_of_owner.get((value.namespace, value.uid), {}).values()
        here = ((pod.namespace, (pod.name, pod.uid)) for pod in pods if pod.node == node)
        return any(self.devices.has_of_others(namespace, pod, node, names) for namespace, pod in here)

    def _stopped(self, value: Workload) -> tuple[StopPolicy, str]:
        local = self.state.local_queue((value.namespace, value.queue))
        queue = self._cluster_queue(value)
        of_queue = queue.stop_policy if queue is not None else StopPolicy.NONE
        of_local = local.stop_policy if local is not None else StopPolicy.NONE
        if _STRICTNESS[of_local] > _STRICTNESS[of_queue]:
            return of_local, "LocalQueue"
        return of_queue, "ClusterQueue"

    def _queue_goes(self, value: Workload) -> bool:
        queue = self._cluster_queue(value)
        return queue is not None and queue.terminating

    def _cluster_queue(self, value: Workload) -> ClusterQueue | None:
        """The ClusterQueue of which a Workload holds quota, or would."""
        if value.admission is not None:
            return self.state.cluster_queue(value.admission.cluster_queue)
        local = self.state.local_queue((value.namespace, value.queue))
        return self.state.cluster_queue(local.cluster_queue) if local is not None else None

    def _required(self, value: Workload) -> tuple[str, ...] | None:
        queue = self._cluster_queue(value)
        if queue is None:
            return None
        if value.admission is None:
            return tuple(rule.name for rule in queue.checks)
        return required_checks(queue, value.admission)

    def due(self, value: Workload) -> int:
        """When the last pod of an evicted gang ought to have ended: by its grace period, or, while none was told to, at
        the eviction."""
        pods = self._pods_of_owner.get((value.namespace, value.uid), {}).values()
        return max([value.evicted_at, *(pod.ends_at for pod in pods if not pod.done)])

    def _any_pod(self, owner: Owner) -> bool:
        return any(not pod.done for pod in self._pods_of_owner.get(owner, {}).values())

    def _free_if_last(self, pod: PodView) -> None:
        """A pod has ended: if it was the last one of a ghost, free what that held."""
        uid = pod.workload_uid
        if self._ghosts and uid in self._ghosts.values() and not self._any_pod((pod.namespace, uid)):
            self._lay_ghost(uid)

    def _lay_ghost(self, uid: str) -> None:
        for key in [key for key, ghost in self._ghosts.items() if ghost == uid]:
            self._no_ghost(key)
            self.apply(Gone(Workload, key))

    def _no_ghost(self, key: Key) -> None:
        if self._ghosts.pop(key, None) is None:
            return
        for uid in [uid for uid, of in self._haunted.items() if of == key]:
            del self._haunted[uid]
            if (job := self._job_by_uid.get(uid)) is not None:
                self._changed_job(job)

    def _index_nodes(self, seen: WorkloadSeen) -> None:
        before = self._devices_held.pop(seen.key, {})
        value = seen.view.value
        after = _devices_held(value, self._renamed_by_quota) if not value.finished else {}
        if after:
            self._devices_held[seen.key] = after
        for node in before.keys() - after.keys():
            self._leaves(seen.key, node)
        for node in after.keys() - before.keys():
            self._workloads_on.setdefault(node, set()).add(seen.key)

    def _leaves(self, key: Key, node: str) -> None:
        """A Workload holds nothing on a node any more."""
        discard(self._workloads_on, node, key)
        self._short.pop((key, node), None)

    def _wake_workload(self, seen: WorkloadSeen) -> None:
        value = seen.view.value
        key = self._job_by_uid.get(value.job_uid)
        if key is not None:
            self._changed_job(key)
            if self.is_beside(seen):
                self._changed_job((ORPHAN, *seen.key))
            return
        due = value.admission is not None or not value.active or any(check.said_no for check in value.checks)
        again = seen.view.kept_out.startswith(DEACTIVATED) or ran_out(seen.view, value.admitted_at) is not None
        due = due or again
        stands = self.is_bare(seen) and not value.finished and due
        if stands or (seen.view.deleting and seen.view.kept):
            self._changed_job((ORPHAN, *seen.key))

    def is_bare(self, seen: WorkloadSeen) -> bool:
        """Does a Workload stand for nothing that is managed here: no job, or one of a kind that is not managed."""
        value, kind = seen.view.value, seen.view.owner[0]
        return not value.job_uid or (bool(kind) and kind not in self._kinds)

    def is_beside(self, seen: WorkloadSeen) -> bool:
        """Does another Workload count for the job of this one?"""
        value = seen.view.value
        if value.job_uid not in self._several or value.finished or self.is_bare(seen):
            return False
        return self._workload_of_job.get(value.job_uid) != seen.key

    def bare(self, key: Key, settings: Settings, now: int) -> Next:
        """What is due for a Workload that stands for no job of ours."""
        seen = self.workloads.get(key)
        if seen is None or not self.is_bare(seen):
            return NOTHING
        value = seen.view.value
        twice = self._given_twice.get(seen.uid, "")
        to = self.defaults.workload_priorities.get(seen.view.priority_class)
        return bare_step(
            seen.view,
            *self._stopped(value),
            settings,
            now,
            self._required(value),
            twice,
            to,
            self.set_ahead(),
            queue_goes=self._queue_goes(value),
        )

    def _children_of(self, job: JobView) -> Collection[JobKey]:
        """Jobs of a JobSet."""
        return self._children.get((job.namespace, job.uid), ())

    def _wake_job(self, uid: str) -> None:
        key = self._job_by_uid.get(uid)
        if key is not None:
            self._changed_job(key)

    def _wake_pod(self, pod: PodView) -> None:
        maker = self.jobs.get(self._job_by_uid.get(pod.owner_uid, ("", "", "")))
        jobset = maker.owner[2] if maker is not None and maker.owner is not None else pod.jobset_uid
        for uid in (pod.owner_uid, jobset, self._job_of_workload.get(pod.workload_uid, "")):
            self._wake_job(uid)


def _expels(flavor: Flavor, taints: Iterable[Taint]) -> bool:
    """Does a node of a flavor that has these taints take pods of the flavor off?"""
    unnamed = tuple(taint for taint in taints if taint not in flavor.node_taints)
    return refused_taint(unnamed, flavor.tolerations) is not None


def _admission_order(value: Workload) -> tuple[int, str, str]:
    """Gangs that share a node, in the order of their admission."""
    return value.admitted_at, value.namespace, value.name


def _is_well(node: Node) -> bool:
    """Is a node ready, and without a taint of Kubernetes' own that keeps pods off it?"""
    return node.ready and not any(
        taint.effect in KEEPS_OFF and taint.key.startswith(BY_CONDITION) for taint in node.taints
    )


@dataclass(slots=True)
class _Alive:
    """The pods of a gang that are not done; fields as of `PodTally`."""

    live: int = 0
    lost: int = 0
    lost_until: int | None = None
    made: dict[str, list[int]] = field(default_factory=dict)
    """Pod set -> when its pods on nodes were made; without those that are terminating and were given up."""
    claims_more: str = ""
    stray: list[Key] = field(default_factory=list)
    unled: set[JobKey] = field(default_factory=set)


@dataclass(slots=True)
class _Placing:
    """Which pods of a gang are still to come to their nodes, or stand on the wrong ones; fields as of `PodTally`."""

    gated: list[Key] = field(default_factory=list)
    stranded: list[Key] = field(default_factory=list)
    unscheduled: int = 0
    """When the last of those was made at which kube-scheduler has not looked; 0: there is none."""
    unschedulable: PodView | None = None
    """The pinned pod for which it has found no room for longest."""
    wanted: dict[str, PodView] = field(default_factory=dict)
    """Node -> a pod that is pinned to it, and for which it finds no room there."""
    unplaced: dict[str, int] = field(default_factory=dict)
    """uid of a pod for which kube-scheduler finds no node of its choice -> since when."""
    unplaced_message: str = ""
    unplaced_sets: set[str] = field(default_factory=set)


def _placing_of(pods: Iterable[PodView], pinned: Set[str], standing: Mapping[str, Set[str]]) -> _Placing:
    """pinned: pod sets whose pods are pinned to nodes. standing: as of `_hosts_of_each`."""
    out = _Placing()
    for pod in pods:
        if pod.terminating:
            continue
        if pod.gated and not pod.done:
            out.gated.append((pod.namespace, pod.name))
        elif not pod.node and not pod.done and pod.unschedulable_since is None:
            out.unscheduled = max(out.unscheduled, pod.created_at)
        if not pod.done and pod.node and pod.node not in standing.get(pod.pod_set, (pod.node,)):
            out.stranded.append((pod.namespace, pod.name))
        if pod.unschedulable_since is None:
            continue
        if pod.pod_set not in pinned:
            out.unplaced[pod.uid] = pod.unschedulable_since
            out.unplaced_message = out.unplaced_message or pod.unschedulable_message
            out.unplaced_sets.add(pod.pod_set)
            continue
        out.wanted.setdefault(pod.pinned, pod)
        first = out.unschedulable
        if first is None or first.unschedulable_since is None or pod.unschedulable_since < first.unschedulable_since:
            out.unschedulable = pod
    return out


def _made_before(pod: PodView, workload: WorkloadSeen | None) -> bool:
    """Was a pod made for an earlier reservation of its gang? Such a pod on a lost node ends when the node is back."""
    return workload is not None and pod.created_at + EARLIER_MS < workload.view.value.reserved_at


def _beyond(made: Sequence[int], admitted: int) -> Beyond | None:
    """More pods than `admitted`; None if there are not. made: when they were made, in order. With more than twice as
    many nothing is waited for (since 0): each pod was replaced, and one of the replacements again."""
    if len(made) <= admitted:
        return None
    return Beyond(made[admitted] if len(made) <= 2 * admitted else 0, len(made), admitted)


def _leaves_unstarted(job: JobView | None, workload: WorkloadSeen | None) -> bool:
    """Does a gang leave whose job was never started in the room it has? Then pods of the job are from before, or were
    given to it by somebody, and are not in that room."""
    if job is None or workload is None or not (workload.view.value.evicted or job.deleting):
        return False
    value = workload.view.value
    return value.admission is not None and job.suspended and 0 < job.suspended_ms <= value.reserved_at


def _runs_by(job: JobView) -> tuple[bool, bool, bool]:
    """What decides whether pods without our label belong to the gang of a job ..."""
    return job.started, job.suspended, job.deleting


def _holds(value: Workload) -> tuple[bool, bool, bool]:
    """... and the same of its Workload."""
    return value.admission is not None, value.finished, bool(value.evicted)


def _precedence(value: Workload) -> tuple[bool, bool, bool, int]:
    """Of several Workloads of a job the largest by this counts for it."""
    return not value.finished, value.admitted and not value.evicted, value.admission is not None, value.created


def _heard(job: JobView, *, stop: bool = False) -> bool:
    """Has the job controller acknowledged the last start or stop of a Job? `stop`: it is to be stopped."""
    if job.suspended:
        return job.suspended_condition
    return not stop and not job.suspended_condition and job.start_time_set


def _owed(job: JobView) -> bool:
    """Is the Job controller to stop a Job, or to make pods of it?"""
    if job.deleting or job.finished is not None or job.ending is not None:
        return False
    if job.suspended:
        return job.active > 0 or not job.suspended_condition
    return job.active + job.terminating < job.pods_expected


def _standing(job: JobView) -> tuple[bool, bool, bool, bool, bool, bool]:
    """What `sight` of a JobSet reads of each of its Jobs."""
    ends = job.finished is not None, job.ending is not None
    return job.suspended, _heard(job), job.deleting, *ends, _carries(job)


def _makes_no_more(child: JobView) -> bool:
    """Will this Job of a JobSet make no pods any more, and need no change for that?"""
    return child.deleting or child.finished is not None or child.ending is not None


def _may_be_held_up(job: JobView) -> bool:
    """May a job be kept from making pods by old ones that are still ending?"""
    return job.waits_for_failed or job.kind == JOBSET.kind


def _fails_again(old: PodView, pod: PodView) -> bool:
    """Is this a further failure of a pod that has not been ready since an earlier one? Its status has the last time
    only."""
    one = (old.uid, old.turned_at) == (pod.uid, pod.turned_at) and not (old.ready or pod.ready)
    return one and 0 < old.unready_since < pod.unready_since


def _owners(pod: PodView) -> list[Owner]:
    """The owners that a pod's labels name, in its own namespace: else a pod could name the gang of another tenant."""
    return [(pod.namespace, uid) for uid in (pod.owner_uid, pod.jobset_uid, pod.workload_uid) if uid]


def _carries(child: JobView) -> bool:
    """Does a stopped Job of a JobSet that may run again say what a start wrote into it?"""
    return bool(child.marked_for or child.started_by_another) and child.suspended and not _makes_no_more(child)


def _free(pod: PodView) -> bool:
    """Is it a pod of a gang, on a node that kube-scheduler chose?"""
    return bool(pod.workload_uid and pod.node) and not pod.pinned and not pod.done


def _pinned(value: Workload) -> frozenset[str]:
    """Pod sets of a reservation for which nodes were chosen. Pods of others may have to wait until nodes are made."""
    admission = value.admission
    return frozenset(given.name for given in admission.pod_sets if given.topology) if admission else frozenset()


def _devices_asked(job: JobView) -> list[Key]:
    """The ResourceClaimTemplates and DeviceClasses by which a job asks for devices, as keys of `World._claiming`."""
    return [*((job.namespace, name) for name in job.claim_templates), *(("", name) for name in job.device_classes)]


def _hosts_of_each(value: Workload) -> dict[str, frozenset[str]]:
    """Pod set -> names of the nodes that a reservation names for it; those alone for which it names some."""
    admission = value.admission if not value.finished else None
    return {
        given.name: frozenset(domain.values[-1] for domain in given.topology.domains)
        for given in (admission.pod_sets if admission is not None else ())
        if given.topology is not None and given.topology.levels[-1:] == (HOSTNAME_LABEL,) and given.topology.domains
    }


def _hosts_given(value: Workload) -> frozenset[str]:
    """Names of the nodes that a reservation names; none where its domains are wider."""
    return frozenset().union(*_hosts_of_each(value).values())


def _devices_held(value: Workload, renamed: Collection[str]) -> dict[str, dict[str, int]]:
    """Node that a reservation names -> extended resources that its gang holds there. `renamed`: what quota counts as
    something else, and what it counts so: of these nodes have what pods ask for."""
    out: dict[str, dict[str, int]] = {}
    asked = {pod_set.name: pod_set.shape.requests for pod_set in value.pod_sets}
    for pod_set in value.admission.pod_sets if value.admission is not None else ():
        domains = pod_set.topology.domains if pod_set.topology is not None else ()
        count = max(1, pod_set.count)
        each = [(name, amount // count) for name, amount in pod_set.usage if "/" in name and name not in renamed]
        each += [(name, amount) for name, amount in asked.get(pod_set.name, ()) if "/" in name and name in renamed]
        for domain in domains:
            held = out.setdefault(domain.values[-1], {})
            for name, amount in each if domain.count else ():
                held[name] = held.get(name, 0) + amount * domain.count
    return out
