"""The controller: informers fill the World, the engine decides, one queue of jobs carries it out.

Every replica lists and watches, so that a new leader is warm; only the leader decides and writes. While it leads, these
loops run, and end together (see `lead` for those that look after something now and then):

    jobs      one job at a time per key: a decision that is due for it, else the next step of its lifecycle
    decide    after a short quiet (so that a burst is one decision), a Plan; its decisions go to the jobs queue
    explain   why the others wait: after some seconds of waiting, at a capped rate, only where the reason changed
    queues    numbers of queues and cohorts, coalesced
    keep      finalizers of queues, flavors, topologies and checks

Nothing is decided before every list is in. A decision counts in the State at once (`Assumed`), before it is written; if
the write fails it is `Forgotten` and decided again on what is seen then (`unmade`: after a while, in which it keeps its
room).

A key of the jobs queue is a JobKey, or (ORPHAN, namespace, name) for a Workload that no job stands behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from admission import quantity
from admission.controller import decode
from admission.controller.actuate import Actuator, Became, Options
from admission.controller.conditions import Condition
from admission.controller.decode import Item, Recent
from admission.controller.defaults import PriorityClassSeen
from admission.controller.finalizers import Keeper
from admission.controller.keyed import KeyedQueue
from admission.controller.lifecycle import (
    CreateWorkload,
    DeleteWorkload,
    FinishWorkload,
    LetWorkloadGo,
    ReleaseWorkload,
    Settings,
    Step,
    StopPods,
    beside_step,
    next_orphan_step,
    next_step,
)
from admission.controller.numbers import Numbers
from admission.controller.pace import Pace
from admission.controller.resources import (
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    of_jobs,
    ours,
)
from admission.controller.stale import QUEUES, StaleQueues
from admission.controller.statuses import Statuses
from admission.controller.unexplained import Unexplained
from admission.controller.unmade import Unmade
from admission.controller.world import ORPHAN, PodView, WorkloadSeen, World
from admission.engine.cycle import decide
from admission.engine.model import (
    AdmissionCheck,
    Admit,
    Assumed,
    Cancel,
    Claim,
    ClusterQueue,
    Cohort,
    Decision,
    Evict,
    Flavor,
    Forgotten,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Namespace,
    Plan,
    Put,
    Replace,
    Rules,
    Topology,
    Verdict,
    Workload,
)
from admission.engine.project import evicted_as, project
from admission.engine.state import State
from admission.jobs import values, volumes
from admission.jobs.kinds import JOBSET, KIND_OF, JobKey, JobKind, JobView
from admission.jobs.workload import called, in_jobs_words
from admission.kube.client import (
    ApiError,
    Client,
    Conflict,
    Fenced,
    Forbidden,
    Invalid,
    Kind,
    NotFound,
    Terminating,
    Unserved,
    unanswered,
)
from admission.kube.events import EventRecorder
from admission.kube.flow import Told, in_turns
from admission.kube.informer import Informer
from admission.names import ADMITTED, EVICTED, INVALID_JOB, REFUSED, STEP_FAILED, Names

log = structlog.get_logger("muster")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Rates and sizes of the shell; decisions do not depend on them."""

    workers: int = 48
    """Keys that are worked on at once; at most two thirds of them of one namespace (see `lanes.Shares`)."""
    quiet_s: float = 0.01
    window_s: float = 0.1
    rest: float = 4.0
    """How many times as long as a decision took the loop rests after it: see `Pace`."""
    longest_s: float = 0.5
    """A decision is given a budget with which it takes about so long at most: see `Pace`."""
    waiting_decisions: int = 256
    """While more decisions than these wait to be written, few are made: see `Pace`. A quick server writes so many in
    some tenths of a second."""
    slow_s: float = 1.0
    """A namespace counts as slow while a write in it takes longer than this."""
    explain_after_s: float = 5.0
    explain_per_s: float = 50.0
    explain_busy_per_s: float = 5.0
    """The same while jobs wait for writes of theirs."""
    busy_s: float = 2.0
    """After a write for a job, more of them are expected for so long."""
    queue_status_s: float = 1.0
    """The status of one queue is written at most once in so long ..."""
    queue_statuses_per_s: float = 5.0
    """... and of all together so many a second, while jobs wait for writes of theirs, ..."""
    queue_turns_per_s: float = 20.0
    """... beside so many of queues to which the first gang came, or which the last one left: others may wait for it."""
    queue_statuses_at_once: int = 8
    known_s: float = 5.0
    """A leader writes nothing in the last seconds of a lease that it does not renew: of news no older than these every
    reservation of the one before is known. Where they are older a new leader asks for all Workloads, ..."""
    ask_s: float = 30.0
    """... and decides nothing before it has them, or for so long."""
    catch_up_s: float = 10.0
    """A new leader decides nothing before each job that it found has been looked at, or for so long: who waited while
    nobody led would else be let in by the order of names. Nobody waits for those whose writes take long."""
    sweep_s: float = 30.0
    swept_per_s: float = 1000.0
    """Looks at jobs that nothing woke, of some 30 microseconds each."""
    check_s: float = 300.0
    """Between comparisons of the books with a fresh computation. In an eighth of it one of the copies is compared with
    the API server."""


@dataclass
class Watchers:
    """Who is told what happened; each callable must be quick and must not raise."""

    plan: list[Callable[[Plan, float], None]] = field(default_factory=list)
    undecided: list[Callable[[], None]] = field(default_factory=list)
    """A decision raised."""
    step: list[Callable[[JobKey, Step], None]] = field(default_factory=list)
    decision: list[Callable[[Decision], None]] = field(default_factory=list)
    admitted: list[Callable[[Key], None]] = field(default_factory=list)
    """The condition Admitted=True of a gang was written: with its reservation, or once all checks are ready."""
    evicted: list[Callable[[Key, str, str], None]] = field(default_factory=list)
    """(gang, reason, cause): the condition Evicted=True was written, for a reason of its own (not for another gang)."""
    failure: list[Callable[[JobKey, Exception], None]] = field(default_factory=list)
    drift: list[Callable[[int], None]] = field(default_factory=list)
    workload: list[Callable[[WorkloadSeen | None, WorkloadSeen | None], None]] = field(default_factory=list)
    """(as it was, as it is); on every replica."""
    readiness: list[Callable[[Key, str], None]] = field(default_factory=list)
    """(gang, what it lacks): as `World` tells it."""
    turn: list[Callable[[], None]] = field(default_factory=list)
    """This replica is about to lead, or leads no more."""


ORPHAN_SEEN_S = 1.0
"""So much later a Workload without a job is looked at: its job may come after it, by a watch that is late."""
RACES_LOST = 4
"""After so many conflicts in a row for one key each further one counts as a failure. A lost race is normal, and the
object is read again at once."""
LASTS, TOLD_EVERY = 5, 30
"""A refusal that mostly passes by itself (a webhook is away, a disruption budget) is told to the job's owner after so
many failures in a row (a quarter of a minute), and then each so many more (half an hour)."""
EXPLAIN_PAUSE_S = 0.25
"""Between two looks for gangs that are to be told why they wait; and for so long one such write may hold up the
next."""
MADE_AGAIN_S = 1.0
"""Between two Workloads for the same job."""
OTHERS_SEEN_S = 5.0
"""So long after a reservation by another leader was seen, all that it was decided on is known here, too."""
LOOKED_AT_ONCE = 500
"""How many jobs are looked through before all else has a turn: a few ms."""
SITS_OUT_MS = 600_000
"""So long nobody looks at a gang over which a decision failed."""
_STEP_FAILED = (
    "What is due for this job failed, by a defect of the controller, whose log says more (step failed): it waits, and "
    "is tried again within five minutes"
)


class Controller:
    """One replica. `await start()`, then `await lead()` for as long as it holds the lease."""

    def __init__(
        self,
        client: Client,
        *,
        names: Names,
        rules: Rules,
        settings: Settings,
        options: Options,
        tuning: Tuning | None = None,
        default_queue: str = "",
        looked_at: LabelSelector | None = None,
        now: Callable[[], int] | None = None,
        lost_after_ms: int = 120_000,
        workloads_only: bool = False,
        judges: bool = False,
    ) -> None:
        """workloads_only: kinds of jobs are not watched; who makes a Workload runs it too. judges: the API server may
        have no rules for quota objects, and store what breaks them."""
        self.client = client
        self.names = names
        self.rules = rules
        self.settings = settings
        self.tuning = tuning or Tuning()
        self.watchers = Watchers()
        self.now = now = now or client.clock.now
        self.leading = False
        self.revision = 0
        """Counts changes of what is shown."""
        self.certificates: dict[str, Callable[[], datetime | None]] = {}
        """When those that are served end, once there are any: of `webhook` and `web`."""
        self.verdicts: dict[Key, Verdict] = {}
        """The latest verdict of each gang that waits; for the page, metrics and `why`."""
        self._pace = Pace(
            self.tuning.quiet_s,
            self.tuning.window_s,
            self.tuning.rest,
            longest=self.tuning.longest_s,
            behind=self._behind,
        )
        self._decisions: dict[JobKey, Decision] = {}
        self._based_on: dict[JobKey, Workload | None] = {}
        """The gang when it was decided: a write for what it asks for, or was given, since then would be wrong."""
        self._unmade = Unmade(self._decide_again)
        self._not_looked_at: set[JobKey] = set()
        self._caught_up = asyncio.Event()
        self._failures: dict[JobKey, int] = {}
        self._made: dict[JobKey, float] = {}
        """Jobs for which a Workload was made in the last second -> when, in monotonic seconds; in this order."""
        self._by_others: set[Key] = set()
        """Gangs to which another leader gave room while this one leads: see `_take_back_twice`."""
        self._unserved = Told()
        """When it is told that Workloads cannot be created in a namespace, or at all."""
        self._unexplained = Unexplained()
        self._explaining: set[str] = set()
        """Namespaces in which a reason is being written."""
        self._found: set[Key] = set()
        """Gangs that waited as it began to lead and have been told nothing since."""
        self._wrote_at = 0.0
        """The last write for a job; monotonic seconds."""
        self._last_verdicts: tuple[Verdict, ...] = ()
        """Verdicts of the last plan."""
        self._unheard = False
        """Did the last write of a reason fail?"""
        self._decide_at: asyncio.TimerHandle | None = None
        self.state = State(rules)
        self.jobs: KeyedQueue[JobKey] = KeyedQueue(
            self._work, self.tuning.workers, lane=lambda key: key[1], presses=self._presses
        )
        self.recent = Recent()
        self.world = World(
            self.state,
            changed_job=self._job_changed,
            dirty=self._state_changed,
            told=self._state_told,
            reserved=self._reserved_by_another,
            readiness=self._pods_looked_at,
            default_queue=default_queue,
            looked_at=looked_at,
            lost_after_ms=lost_after_ms,
            kinds=() if workloads_only else KIND_OF,
            set_ahead=lambda: client.clock.set_ahead,
        )
        self.events = EventRecorder(client, source=names.event_source, failed=partial(self._failed, ("Event", "", "")))
        self.statuses = Statuses(client, names)
        self.actuator = Actuator(
            client,
            self.world,
            names,
            settings,
            self.events,
            self.recent,
            self.statuses,
            learn=self._learn,
            became=self._became,
            now=now,
            options=options,
        )
        self._classes_told: dict[str, str] = {}
        """Device classes that are not understood, and why, as the log said last."""
        self.informers: dict[str, Informer[Any]] = {}
        self._build_informers(() if workloads_only else KIND_OF.values(), judges=judges)
        self.keeper = Keeper(client, names, self.state, self.informers, self.events)
        self.stale = StaleQueues(
            names,
            rules,
            self.tuning,
            self.state,
            self.informers,
            self.statuses,
            now=now,
            busy=self._busy,
            first=self.keeper.first,
            failed=self._failed,
            learn=self._learn,
        )

    # ------------------------------------------------------------ informers

    def _build_informers(self, job_kinds: Iterable[JobKind], *, judges: bool) -> None:
        names = self.names
        judged: Callable[[str, decode.Reader], decode.Reader] = decode.judged if judges else lambda _, read: read

        def watch(
            kind: Kind,
            decoder: Callable[[msgspec.Raw], Any],
            handler: Callable[[Any, Any], None],
            *,
            optional: bool = False,
            withheld: bool = False,
            forgets: bool = False,
        ) -> None:
            self.informers[kind.kind] = Informer(
                self.client,
                kind,
                decoder,
                handler,
                optional=optional,
                withheld=withheld,
                forgets=forgets,
                on_bad=partial(self._not_decoded, kind.kind),
            )

        for job_kind in job_kinds:
            watch(
                of_jobs(job_kind),
                partial(self._decode_job, job_kind),
                self._on_job,
                optional=job_kind.group != "batch",
            )
        watch(ours(names, "Workload"), partial(decode.workload, names), self._on_workload)
        for kind, convert, engine_class, keep in (
            ("ClusterQueue", values.cluster_queue, ClusterQueue, True),
            ("Cohort", values.cohort, Cohort, True),
            ("ResourceFlavor", values.flavor, Flavor, False),
            ("Topology", values.topology, Topology, False),
            ("AdmissionCheck", values.admission_check, AdmissionCheck, False),
        ):
            watch(
                ours(names, kind),
                partial(decode.item, judged(kind, convert), names, keep_status=keep),
                partial(self._on_item, engine_class),
                optional=True,
            )
        watch(
            ours(names, "LocalQueue"),
            partial(decode.item, judged("LocalQueue", values.local_queue), names, keep_status=True, keep_labels=True),
            partial(self._on_item, LocalQueue),
        )
        for classes, are_ours in ((ours(names, "WorkloadPriorityClass"), True), (PRIORITY_CLASSES, False)):
            watch(classes, decode.priority_class, partial(self._on_priority, are_ours), optional=True)
        watch(NAMESPACES, partial(decode.item, values.namespace, names), partial(self._on_item, Namespace))
        watch(NODES, partial(decode.item, values.node, names), self._on_node)
        watch(PODS, partial(decode.pod, names), self._on_pod)
        limits = partial(self._on_rule_for_pods, self.world.defaults.limit_range_changed)
        watch(LIMIT_RANGES, decode.plain, limits, optional=True)
        quotas = partial(self._on_rule_for_pods, self.world.defaults.quota_changed)
        watch(RESOURCE_QUOTAS, decode.quota, quotas, optional=True, withheld=True, forgets=True)
        watch(RUNTIME_CLASSES, decode.plain, self._on_runtime_class, optional=True)
        watch(SERVICE_ACCOUNTS, decode.named, self._on_account, optional=True, withheld=True)
        self.world.defaults.has_account = self._has_account
        for stored, convert_stored in decode.STORED:
            watch(stored, partial(decode.item, convert_stored, names), self._on_storage, optional=True, withheld=True)
        for listed, convert_listed in (*decode.LISTED, decode.CLAIM_TEMPLATES):
            watch(listed, partial(decode.item, convert_listed, names), self._on_devices, optional=True, withheld=True)

    def _decode_job(self, kind: Any, raw: msgspec.Raw) -> JobView:
        return decode.job(kind, self.names, raw, self.recent, every=bool(self.world.default_queue))

    def _on_job(self, old: JobView | None, new: JobView | None) -> None:
        if old is None or new is None or _shown(old) != _shown(new):
            self.revision += 1
        if new is not None:
            self.world.job_seen(new)
            if old is not None and self.leading and self.world.governed(new):
                self._tell_news(old, new)
        elif old is not None:
            self.world.job_lost(old)
            if (seen := self.world.workload_of_uid(old.uid)) is not None:
                self._sweep_soon(seen)

    def _tell_news(self, old: JobView, new: JobView) -> None:
        """Tell the owner of a job what is wrong with what they changed, where nothing else looks at that."""
        key = new.key
        if new.problems not in ((), old.problems) and not new.suspended:
            # It runs on as it was admitted; its owner may have meant to pause it.
            self.actuator.record(key, new, "Warning", INVALID_JOB, "; ".join(new.problems))
        if new.unknown_keys != old.unknown_keys and self.world.workload_of(key) is not None:
            self.actuator.tell_unknown_keys(key, new)

    def _on_workload(self, old: WorkloadSeen | None, new: WorkloadSeen | None) -> None:
        if new is not None:
            self.world.workload_seen(new)
            if old is None and self.leading and self.world.is_orphan(new):
                # As a backup has it: its job, which may come a moment later, is another by its uid.
                self.jobs.add_after((ORPHAN, *new.key), ORPHAN_SEEN_S)
            self._unmade.news(new.key)
            if self.leading and new.view.no_boost and (old is None or old.view.no_boost != new.view.no_boost):
                self.actuator.tell_no_boost(new)
            if new.view.value.admission is not None or new.view.value.finished:
                self.verdicts.pop(new.key, None)
                self._unexplained.drop(new.key)
                self._found.discard(new.key)
        elif old is not None:
            if self.leading and old.view.value.admission is not None and not old.view.value.finished:
                log.info("deleted", **self._log_fields_of(old.key, str(old.status.get("decision", ""))))
            self.world.workload_lost(old)
            self.jobs.not_later((ORPHAN, *old.key))
            self._failures.pop((ORPHAN, *old.key), None)
            self._unmade.made(old.key)
            self.actuator.gone(old.uid)
            self.verdicts.pop(old.key, None)
            self._unexplained.drop(old.key)
            self._found.discard(old.key)
        if new is not None:
            self._queues_of(new.view.value)
        if old is not None and (new is None or _other_queues(old.view.value, new.view.value)):
            self._queues_of(old.view.value)
        for told in self.watchers.workload:
            told(old, new)

    def _on_item(self, engine_class: type, old: Item[Any] | None, new: Item[Any] | None) -> None:
        self.keeper.look()
        # A status write of our own comes back as a change of nothing the engine reads.
        if new is not None:
            if new.problems and (old is None or old.problems != new.problems):
                kind = "ResourceFlavor" if engine_class is Flavor else engine_class.__name__
                log.warning("written wrong", kind=kind, namespace=new.namespace, name=new.name, problems=new.problems)
            if new.value is not None and (old is None or old.value != new.value):
                self.world.apply(Put(new.value))
                if not _only_usage_differs(old, new):
                    self.stale.add_all()
                    if engine_class in (ClusterQueue, LocalQueue):
                        self.world.queue_changed(_key_of(engine_class, new))
                    elif engine_class is Namespace:
                        self.world.namespace_changed(new.name)
            if engine_class in QUEUES and self.leading:
                self.stale.add(engine_class.__name__, new.namespace, new.name)
        elif old is not None:
            self.world.apply(Gone(engine_class, _key_of(engine_class, old)))
            self.stale.gone(engine_class.__name__, old.namespace, old.name)
            self.stale.add_all()

    def has_queue(self, namespace: str, name: str) -> bool:
        """Is there a LocalQueue of this name? Not so before the first list of them has come."""
        return (namespace, name) in self.informers["LocalQueue"].store

    def _on_node(self, old: Item[Any] | None, new: Item[Any] | None) -> None:
        if new is not None:
            if new.value is not None and (old is None or old.value != new.value):
                known = self.informers[NODES.kind].synced.is_set()
                self.world.node_seen(new.value, self.now() if known else 0)
                self._tell_of_classes()
        elif old is not None:
            self.world.node_gone(old.name)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        if new is not None:
            self.world.pod_seen(new)
            self.world.pod_came(old, new, self.now())
        elif old is not None:
            self.world.pod_lost(old)

    def _on_priority(self, ours: bool, old: PriorityClassSeen | None, new: PriorityClassSeen | None) -> None:
        if new is not None:
            self.world.priority_seen(new, ours=ours)
        elif old is not None:
            self.world.priority_lost(old, ours=ours)

    def _on_rule_for_pods(
        self,
        changed: Callable[[str, str, dict[str, Any] | None], bool],
        old: Item[dict[str, Any]] | None,
        new: Item[dict[str, Any]] | None,
    ) -> None:
        """Of a namespace: a LimitRange or a ResourceQuota, as `changed` takes it."""
        at = new or old
        assert at is not None
        if old is not None and new is not None and old.value == new.value:
            return  # a ResourceQuota's status changes with each pod
        if changed(at.namespace, at.name, new.value if new is not None else None) and self.leading:
            self.world.namespace_changed(at.namespace)

    def _on_runtime_class(self, old: Item[dict[str, Any]] | None, new: Item[dict[str, Any]] | None) -> None:
        at = new or old
        assert at is not None
        changed = self.world.defaults.runtime_class_changed(at.name, new.value if new is not None else None)
        if changed and self.leading:
            self.world.wake_class(at.name)

    def _on_account(self, old: Item[None] | None, new: Item[None] | None) -> None:
        at = new or old
        assert at is not None
        if (old is None or new is None) and self.leading:
            self.world.account_changed(at.namespace, at.name)

    def _has_account(self, namespace: str, name: str) -> bool:
        informer = self.informers["ServiceAccount"]
        return informer.absent or (namespace, name) in informer.store

    def _on_storage(self, old: Item[Any] | None, new: Item[Any] | None) -> None:
        self.world.storage_changed(old.value if old is not None else None, new.value if new is not None else None)

    def _on_devices(self, old: Item[Any] | None, new: Item[Any] | None) -> None:
        self.world.devices_changed(old.value if old is not None else None, new.value if new is not None else None)
        self._tell_of_classes()

    def _tell_of_classes(self) -> None:
        """What is wrong with a class of devices shows when there are some, and a node that has them."""
        told, self._classes_told = self._classes_told, dict(self.world.devices.not_understood)
        for name, why in self._classes_told.items():
            if told.get(name) != why:
                log.warning("no devices of this class count", device_class=name, error=why)

    def _not_decoded(self, kind: str, key: Key, error: Exception) -> None:
        log.warning("object left out", kind=kind, namespace=key[0], name=key[1], error=str(error))

    def _learn(self, kind: str, obj: dict[str, Any] | bytes) -> None:
        informer = self.informers.get(kind)
        if informer is not None and (isinstance(obj, bytes) or obj.get("metadata", {}).get("resourceVersion")):
            informer.learn(obj)

    # ------------------------------------------------------------ waking

    def _job_changed(self, key: JobKey) -> None:
        if self.leading:
            self.jobs.add(key)

    def proven(self, held: Condition, options: Options) -> None:
        """What a proof of the hold found counts from now on, for what is shown and for how pods are pinned."""
        if self.stale.held != held:
            self.stale.held = held
            self.stale.add_all()
        self.actuator.options = options

    def _presses(self, key: JobKey) -> bool:
        """Does a key come before others: a decision is due for it, or it holds room, so that its write starts a gang or
        gives room back? Nobody waits for the Workload of a job that has just come. After a failed write a key does not
        come first again: while the server does not answer, such keys would keep all workers."""
        if key in self._failures:
            return False
        if key in self._decisions:
            return True
        seen = self.world.workloads.get(key[1:]) if key[0] == ORPHAN else self.world.workload_of(key)
        return seen is not None and seen.view.value.admission is not None

    def _state_changed(self) -> None:
        self._state_told()
        self._pace.changed()

    def _state_told(self) -> None:
        self.revision += 1
        self.keeper.given_back()

    def _behind(self) -> bool:
        """Do too many decisions wait to be written? Those of slow namespaces do not count: they may wait for any time,
        and are no reason to keep others waiting."""
        if len(self._decisions) <= self.tuning.waiting_decisions:
            return False
        slow = self.jobs.held_up(self.tuning.slow_s)
        return sum(key[1] not in slow for key in self._decisions) > self.tuning.waiting_decisions

    def _busy(self) -> bool:
        """Are there writes that jobs wait for? Then statuses and reasons are written at a lower rate."""
        return not self.jobs.idle or time.monotonic() < self._wrote_at + self.tuning.busy_s

    def _failed(self, about: JobKey, error: Exception) -> None:
        for told in self.watchers.failure:
            told(about, error)

    def _reserved_by_another(self, key: Key) -> None:
        if not self.leading or not self._decided_by_us(self.world.workloads[key]):
            return
        if not self._by_others:
            asyncio.get_running_loop().call_later(OTHERS_SEEN_S, self._take_back_twice)
        self._by_others.add(key)

    def _decided_by_us(self, seen: WorkloadSeen) -> bool:
        """Was its reservation decided by Muster, and not carried over from Kueue? Kueue's own kind does not say: then
        yes."""
        return self.names.as_kueue or bool(seen.status.get("decision"))

    def _take_back_twice(self) -> None:
        """Take back room that two leaders gave away. One that does not know yet that it leads no more decides on what
        it knows, and may reserve the room that this one reserved. The latest reservations are taken back, until no more
        is held than one leader would have given."""
        due, self._by_others = sorted(self._by_others), set()
        held = [one for key in due if (one := self.world.workloads.get(key)) is not None and one.view.value.admission]
        if not held:
            return
        log.warning("another leader gave room away", gangs=["/".join(one.key) for one in held[:10]], count=len(held))
        since = min(one.view.value.reserved_at for one in held)
        young = (one for one in self.world.workloads.values() if one.view.value.reserved_at >= since)
        among = [one.key for one in young if self._decided_by_us(one)]
        for key, (flavor, resource), much in self.state.overdrawn(among):
            amount = f"{quantity.words(resource, much, digits=3)[0]} {resource} of flavor {flavor}"
            why = f"{amount} too much for ClusterQueue {self.numbers.queue_of_gang(key)}; it is reserved anew"
            self.world.give_back_twice(key, f"Two leaders gave the same room away: {why}")

    def _tell_turn(self) -> None:
        for told in self.watchers.turn:
            told()

    def _pods_looked_at(self, gang: Key, lacks: str) -> None:
        for told in self.watchers.readiness:
            told(gang, lacks)

    def _became(self, what: Became) -> None:
        if what.condition == ADMITTED:
            for told in self.watchers.admitted:
                told(what.gang)
        elif what.condition == EVICTED:
            for told_why in self.watchers.evicted:
                told_why(what.gang, what.reason, what.cause)
        if not log.is_enabled_for(logging.INFO):
            return
        who = self._log_fields_of(what.gang, what.decision)
        if what.condition == ADMITTED:
            log.info("admitted", **who)
        elif what.condition == EVICTED:
            log.info("evicted", **who, reason=what.reason, cause=what.cause, message=what.message)
        else:
            log.info("finished", **who, reason=what.reason, message=what.message)

    def _queues_of(self, gang: Workload) -> None:
        if self.leading:  # who begins to lead looks at all of them
            self.stale.add_of(gang)

    def _sweep_soon(self, seen: WorkloadSeen) -> None:
        if self.leading:
            key = (ORPHAN, seen.namespace, seen.name)
            self.jobs.add(key)

    # ------------------------------------------------------------ running

    @property
    def _volumes_seen(self) -> bool:
        return not any(self.informers[kind].absent for kind in volumes.KINDS)

    @property
    def synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers.values())

    def cut_off(self) -> tuple[float, str]:
        """For how many seconds there has been no news of some kinds, and of which; infinite before every list is in."""
        if waits := self.numbers.ready():
            return inf, waits
        late = {kind: seconds for kind, informer in self.informers.items() if (seconds := informer.cut_off)}
        return max(late.values(), default=0.0), f"no news of {', '.join(late)}"

    async def watch(self) -> None:
        """Keep the World up to date; until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers.values():
                group.create_task(informer.run(), name=f"informer {informer.kind.kind}")
            group.create_task(self.events.run(), name="events")
            group.create_task(self._tidy(), name="tidy")

    async def _tidy(self) -> None:
        """Drop, now and then, what would only grow: nodes that are gone and, on a replica that does not lead, the
        changes that the State collects for the next decision."""
        while True:
            await asyncio.sleep(self.tuning.sweep_s)
            self.world.forget_nodes()
            if not self.leading:
                try:
                    self.state.advance(self.now())
                except MemoryError:
                    raise
                except Exception:  # a defect in the engine is no reason to stop watching: see `_decide`
                    log.exception("not settled")

    async def lead(self, *, unheard: bool = False) -> None:
        """Decide and write; until cancelled. unheard: until a moment ago the API server could not be reached, by
        anybody. Raises Fenced when a write met the fence, for another replica may lead; and MemoryError, after which
        the books may be wrong."""
        for informer in self.informers.values():
            await informer.synced.wait()
        self._tell_turn()
        self.leading = True
        self.actuator.leads()
        self.world.knows_jobs()
        self.world.looks_anew()
        if unheard:
            self.world.heard_again(self.now())
        self.keeper.lets_go = False
        self.revision += 1
        log.info("leading", jobs=len(self.world.jobs), workloads=len(self.world.workloads))
        try:
            waiting = ((key, seen.view.value) for key, seen in self.world.workloads.items())
            self._found = {key for key, value in waiting if value.admission is None and not value.finished}
            self._not_looked_at = set(self.world.jobs)
            self._caught_up.clear()
            if not self._not_looked_at:
                self._caught_up.set()
            async for key in in_turns(await self._all_keys(), LOOKED_AT_ONCE):  # what became due while nobody led
                self.jobs.add(key)
            self._pace.changed()
            self.stale.add_all()
            # What was being written when it led before may not be there.
            for told in self.verdicts:
                self._unexplained.add(told, time.monotonic())
            async with asyncio.TaskGroup() as group:
                group.create_task(self.jobs.run(), name="jobs")
                group.create_task(self._decide(), name="decide")
                group.create_task(self._explain(), name="explain")
                group.create_task(self.stale.run(), name="queues")
                group.create_task(self.keeper.run(), name="keep")
                group.create_task(self._sweep(), name="sweep")
                group.create_task(self._lay_ghosts(), name="ghosts")
                group.create_task(self._look_for_gone_nodes(), name="nodes")
                group.create_task(self._tell_standstill(), name="standstill")
                group.create_task(self._check_books(), name="check")
        except BaseExceptionGroup as errors:
            if errors.split(Fenced)[1] is None:
                raise Fenced("a write met the fence") from None
            raise
        finally:
            self.leading = False
            self._tell_turn()
            self.revision += 1
            for decision in self._decisions.values():
                self.state.apply(Forgotten(decision))
            self._decisions.clear()
            self._based_on.clear()
            self._by_others.clear()
            self._unmade.clear()

    async def _look_for_gone_nodes(self) -> None:
        """Have nodes count as lost that were deleted while nobody watched: pods are on them, and no such node is known.
        Each is looked up, because news of a node may come later than that of a pod on it."""
        for node in self.world.unknown_nodes():
            pages = self.client.list_pages(NODES.path(), field_selector=f"metadata.name={node}", bare=True)
            with suppress(ApiError, OSError, TimeoutError):  # told by the client; Kubernetes itself takes the pods off
                async with aclosing(pages):
                    there = [raw async for page in pages for raw in page.items]
                if not there and node not in self.world.nodes:
                    self.world.node_gone(node)

    async def _catch_up(self) -> None:
        """Wait until every reservation is known that was written before it led (by another leader, or by itself before
        the API server was away), and each job that it found has been looked at, except in slow namespaces."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.tuning.ask_s):
                await self.informers["Workload"].catch_up(self.tuning.known_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.tuning.catch_up_s):
                while not self._caught_up.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.tuning.slow_s):
                            await self._caught_up.wait()
                    slow = self.jobs.held_up(self.tuning.slow_s)
                    if all(key[1] in slow for key in self._not_looked_at):
                        return

    def _end_half_made_claims(self) -> None:
        """End claims whose victims were not all evicted: the leader before may have ended after it wrote the claim, and
        before it wrote the evictions, which nobody writes any more. What is due is decided anew. Victims that were
        evicted leave all the same."""
        now, gangs = self.now(), tuple(self.state.workloads.values())
        stays_since = {gang.uid: gang.reserved_at for gang in gangs if gang.admission is not None and not gang.evicted}
        for gang in gangs:
            record = gang.claims if gang.admission is None else None
            if record is None or record.until <= now:
                continue
            made_at = record.until - self.rules.claim_ms
            if any(stays_since.get(uid, inf) <= made_at for uid in record.victims):
                log.info("a claim was half made", **self._log_fields_of(gang.key, ""))
                # Its victims are left out: with them it would count as a claim in vain, after which a gang may not
                # evict.
                self._will_write(Claim(gang.key, gang.uid, replace(record, victims=(), until=now // 1000 * 1000)))

    async def _decide(self) -> None:
        await self._catch_up()
        self.keeper.lets_go = True
        self.keeper.look()
        self._end_half_made_claims()
        failed = 0
        blamed: set[Key | None] = {None}
        while True:
            await self._pace.due()
            began = time.monotonic()
            try:
                plan = self.decide_once()
            except MemoryError:  # no defect of the gang's, and what was half done in the books would stay so
                raise
            except Exception:
                # A defect. Nothing is decided until the next try, but all else goes on: pods get their hosts, and gangs
                # that ended give their quota back. Ending here would not help: a new process would meet the same
                # objects. The gang that was looked at last sits out, so that others are decided on.
                about = self.state.trying
                failed += about in blamed
                blamed.add(about)
                wait = min(60.0, 0.5 * 2 ** min(failed, 7)) if failed else 0.0
                log.exception("decision failed", again_in_s=wait, about="/".join(about or ()))
                for told in self.watchers.undecided:
                    told()
                self.state.memos.forget()
                if about is not None:
                    self._have_sit_out(about)
                await asyncio.sleep(wait)
                self._pace.changed()
                continue
            failed, blamed = 0, {None}
            took = time.monotonic() - began
            await asyncio.sleep(0)
            self._pace.took(took, plan.steps, go_on=plan.more and len(plan.decisions) >= self.tuning.workers)

    def decide_once(self) -> Plan:
        """One cycle: a Plan, its decisions assumed and on their way."""
        began = time.perf_counter()
        now = self.now()
        self.world.lay(seen=self._volumes_seen)
        plan = decide(self.state, now, self._pace.steps)
        for decision in plan.decisions:
            self._will_write(decision)
        tick = time.monotonic()
        for verdict in plan.verdicts:
            old = self.verdicts.get(verdict.key)
            told_of = self.verdicts[verdict.key] = self._in_jobs_words(verdict)
            if old is None or old.why != told_of.why:
                self._unexplained.add(verdict.key, tick)
        self.revision += 1
        took = time.perf_counter() - began
        for told in self.watchers.plan:
            told(plan, took)
        # A plan that decides nothing and refuses the same gangs for the same reasons as the last would do so again.
        stuck = not plan.decisions and plan.verdicts == self._last_verdicts
        self._last_verdicts = plan.verdicts
        if plan.more and not stuck:
            self._pace.changed()
        elif plan.next_at is not None:
            self._decide_later(max(0.0, (plan.next_at - now) / 1000))
        return plan

    def _will_write(self, decision: Decision) -> None:
        """Assume a decision, and queue its write; unless it only takes back one that is not written yet."""
        seen = self.world.workloads.get(decision.key)
        job = self.world.job_of(seen) if seen is not None else None
        key = job or (ORPHAN, *decision.key)
        if self._takes_back(decision, key):
            return
        self.state.apply(Assumed(decision))
        self._decisions[key] = decision
        based_on = seen.view.value if seen is not None else None
        if isinstance(decision, Evict) and based_on is not None and based_on.admission is None:
            based_on = None  # its admission is being written: it is evicted from whatever that is
        self._based_on[key] = based_on
        self.jobs.add(key)

    def _takes_back(self, decision: Decision, key: JobKey) -> bool:
        """Does a decision take back one that is not written yet, or could not be written? Then neither is written."""
        unwritten: Decision | None
        if isinstance(decision, Evict | Cancel) and isinstance(self._decisions.get(key), Admit):
            unwritten = self._decisions.pop(key)
        else:
            unwritten = self._unmade.let_go(decision.key)
            if not (isinstance(unwritten, Admit) and isinstance(decision, Evict | Cancel | Replace)):
                return False
        self._forget(key, unwritten)
        return True

    def verdict(self, key: Key) -> Verdict | None:
        """Why a gang waits, as it is known now. Newer than what it was told, where a gang like it was refused since for
        another reason, or where the numbers have changed."""
        told = self.verdicts.get(key)
        found = self.state.refused_since(key) if told is not None else None
        return told if found is None else self._in_jobs_words(found)

    def _in_jobs_words(self, verdict: Verdict) -> Verdict:
        """The verdict with jobs named in its reason where it names Workloads: a reason may be read when those are
        gone."""

        def job_of(key: Key) -> str:
            seen = self.world.workloads.get(key)
            return called(key, seen.view.owner) if seen is not None else ""

        return replace(verdict, why=in_jobs_words(verdict.why, job_of))

    def _decide_later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._decide_at is not None:
            self._decide_at.cancel()
        self._decide_at = loop.call_later(min(seconds, 3600.0) + 0.001, self._pace.changed)

    async def _work(self, key: JobKey) -> None:
        """One look at one job, and the write that is due. Raises MemoryError alone."""
        try:
            await self._look(key)
        finally:
            self._not_looked_at.discard(key)
            if not self._not_looked_at:
                self._caught_up.set()

    async def _look(self, key: JobKey) -> None:
        """Write the decision that is due for a key, or else take its next step; when that fails, look again later."""
        decision = self._decisions.pop(key, None)
        based_on = self._based_on.pop(key, None)
        if decision is None:
            self.jobs.not_later(key)  # this look finds anew when the next is due, if one is
        try:
            if decision is not None:
                await self._carry_out(key, decision, based_on)
            elif key[0] == ORPHAN:
                await self._look_at_workload((key[1], key[2]))
            else:
                await self._take_step(key)
            seen = self.world.workload_of(key)
            if decision is not None or seen is None or not self._unmade.keeps(seen.key):
                self._failures.pop(key, None)
        except (Conflict, NotFound) as error:
            # It was decided on an old version, or the answer of a write is ahead of the watch: news is on its way.
            lost = self._failures.get(key, 0)
            level = log.warning if lost == RACES_LOST else log.debug
            level("looked at too old a version", kind=key[0], namespace=key[1], name=key[2], error=str(error))
            if lost >= RACES_LOST:
                self._failed(key, error)
            self._look_again_later(key, 0.05, 2.0)
        except Fenced:
            return
        except Terminating as error:
            log.debug("its namespace is being deleted", kind=key[0], namespace=key[1], name=key[2], error=str(error))
            self._look_again_later(key, 5.0, 60.0)
        except (ApiError, OSError, TimeoutError) as error:
            self._tell_write_failed(key, error)
            self._look_again_later(key, 0.5, 60.0)
        except MemoryError:
            raise
        except Exception as error:
            self._failed(key, error)
            log.exception("step failed", **self._log_fields(key))
            if (job := self.world.jobs.get(key)) is not None:
                # Always in the same words, so that they are one Event with a count for as long as this goes on.
                self.actuator.record(key, job, "Warning", STEP_FAILED, _STEP_FAILED)
            self._look_again_later(key, 5.0, 300.0)

    def _tell_write_failed(self, key: JobKey, error: Exception) -> None:
        """Count a failed write, log it, and tell the job's owner of a refusal that does not pass by itself."""
        self._failed(key, error)
        tries = self._failures.get(key, 0)
        unserved = isinstance(error, Unserved)  # it fails for all jobs alike
        told_now = self._unserved.due() if unserved else tries in (0, LASTS)
        level = log.warning if told_now and not unanswered(error) else log.debug
        level("write failed", **self._log_fields(key), error=str(error))
        answered = isinstance(error, ApiError) and not unserved and not unanswered(error)
        if isinstance(error, Invalid | Forbidden) or (answered and tries % TOLD_EVERY == LASTS):
            self._tell_refused(key, error)

    async def _carry_out(self, key: JobKey, decision: Decision, based_on: Workload | None) -> None:
        """The write of a decision. Raises what `Actuator.carry_out` does."""
        try:
            made = await self.actuator.carry_out(decision, based_on)
        except BaseException as error:
            self._write_failed(key, decision, error)
            raise
        self._unmade.made(decision.key)
        self._wrote_at = time.monotonic()
        kept = isinstance(decision, Claim) and not self.statuses.has("Workload", "claim")
        if not kept and self.state.assumes(decision):
            # The answer of the write, or a newer version, has been seen by now, and the decision is not in it.
            log.warning("a decision that was written is not there", **self._log_fields_of(decision.key, made))
            self._forget(key, decision)
        if made:
            self._tell_decision(decision, made)
        if key[0] != ORPHAN:
            self.jobs.add(key)

    async def _take_step(self, key: JobKey) -> None:
        """The step of its lifecycle that is due, if one is. Raises what `Actuator.take` does."""
        now = self.now()
        due = next_step(self.world.sight(key, now), self.settings, now)
        if isinstance(due.step, CreateWorkload) and (pause := self._made_lately(key)):
            self.jobs.add_after(key, pause)
        elif isinstance(due.step, FinishWorkload) and await self._leaves_pods(key):
            self.jobs.add_after(key, 1.0)
        elif due.step is not None:
            if not isinstance(due.step, CreateWorkload):
                self._wrote_at = time.monotonic()
            await self.actuator.take(key, due.step)
            if isinstance(due.step, CreateWorkload):
                if self.world.workload_of(key) is not None:  # else its owner was told why it cannot be queued
                    self._wrote_at = time.monotonic()
                self._unserved.over()
                self._made[key] = time.monotonic()
            for told in self.watchers.step:
                told(key, due.step)
            if log.is_enabled_for(logging.DEBUG):
                why = getattr(due.step, "message", "")
                log.debug("step", **self._log_fields(key), step=type(due.step).__name__, why=why)
        elif due.at is not None:
            self.jobs.add_after(key, (due.at - now) / 1000 + 0.005)

    def _made_lately(self, key: JobKey) -> float:
        """Seconds to wait before another Workload is made for this job. If one was made a moment ago and is gone, the
        job was mostly deleted with it, and news of that is on its way."""
        now = time.monotonic()
        while self._made and (first := next(iter(self._made))) and self._made[first] <= now - MADE_AGAIN_S:
            del self._made[first]
        return self._made[key] + MADE_AGAIN_S - now if key in self._made else 0.0

    def _forget(self, job: JobKey, decision: Decision) -> None:
        """A decision will not be written (for now): it no longer counts, nor does what was decided on top of it."""
        self.state.apply(Forgotten(decision))
        if isinstance(decision, Admit) and isinstance(self._decisions.get(job), Evict | Cancel | Replace):
            del self._decisions[job]
        value = self.state.workload(decision.key)
        if value is not None:
            self._queues_of(value)
        self._pace.changed()

    def _decide_again(self, job: JobKey, decision: Decision) -> None:
        """The write of a decision failed, and it no longer counts until it is decided anew. An eviction is written
        again as it was where its victim still holds what it held then: the gang it is for waits for just this victim,
        and evicts no other meanwhile."""
        self._forget(job, decision)
        if not isinstance(decision, Evict) or not self.leading or job in self._decisions:
            return
        gang, by = self.state.workload(decision.key), self.state.workload(decision.preemptor)
        claim = by.claims if by is not None and by.uid == decision.preemptor_uid and by.admission is None else None
        if gang is None or gang.uid != decision.uid or gang.admission is None or gang.evicted:
            return
        if claim is None or decision.uid not in claim.victims or claim.until <= self.now():
            return
        if gang.reserved_at <= claim.until - self.rules.claim_ms:
            self._will_write(decision)

    def _have_sit_out(self, key: Key) -> None:
        """A decision raised over this gang: have it, and all that ask for the same, sit out for a while."""
        seen = self.world.workloads.get(key)
        if seen is None or seen.view.value.admission is not None:
            return
        now = self.now()
        self.world.sit_out(seen.view.value.pod_sets, now, now + SITS_OUT_MS)
        job = self.world.job_of(seen)
        if job is not None:
            text = f"No decision can be made on it, by a defect of the controller: again in {SITS_OUT_MS // 60_000} min"
            self.actuator.record(job, self.world.jobs[job], "Warning", "DecisionFailed", text)

    def _write_failed(self, job: JobKey, decision: Decision, error: BaseException) -> None:
        """The write of a decision failed. It keeps its room until it is made again (`unmade`), or no longer counts;
        then the gang may have to sit out. Both are known in memory only."""
        seen = self.world.workloads.get(decision.key)
        if seen is None or not isinstance(error, Exception) or isinstance(error, Fenced | NotFound):
            self._forget(job, decision)
            return
        waits = seen.view.value.admission is None
        if wait_s := self._unmade.failed(job, decision, waits=waits):
            now = self.now()
            self.world.sit_out(decision.key, now, now + int(wait_s * 1000))
            self._forget(job, decision)

    def _look_again_later(self, key: JobKey, base_s: float, most_s: float) -> None:
        """Look again, later with each failure in a row; not at a Workload that went meanwhile."""
        if key[0] == ORPHAN and key[1:] not in self.world.workloads:
            self._failures.pop(key, None)
            return
        self.jobs.add_after(key, self._wait_after(key, base_s, most_s))

    def _wait_after(self, key: JobKey, base_s: float, most_s: float) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(most_s, base_s * 2 ** min(count - 1, 16)))

    def _tell_refused(self, key: JobKey, error: Exception) -> None:
        job = self.world.jobs.get(key)
        if job is not None:
            self.actuator.record(key, job, "Warning", REFUSED, f"The API server refused a change: {error}"[:900])

    def _tell_decision(self, decision: Decision, made: str) -> None:
        for told in self.watchers.decision:
            told(decision)
        if not log.is_enabled_for(logging.INFO):
            return
        if isinstance(decision, Admit) and not decision.admitted:
            log.info("reserved", **self._log_fields_of(decision.key, made), checks=list(decision.checks))
        elif isinstance(decision, Evict):
            reason, cause = evicted_as(decision.reason)
            by = "/".join(decision.preemptor)
            log.info("evicted", **self._log_fields_of(decision.key, made), reason=reason, cause=cause, by=by)
        elif isinstance(decision, Replace):
            log.info("nodes replaced", **self._log_fields_of(decision.key, made))

    def _log_fields_of(self, key: Key, decision: str) -> dict[str, str]:
        """Fields by which a log line names the gang it is about, with the id of the decision."""
        seen = self.world.workloads.get(key)
        kind, name = seen.view.owner if seen is not None else ("", "")
        return {
            "kind": kind or "Workload",
            "namespace": key[0],
            "name": name or key[1],
            "workload": key[1],
            "queue": self.state.queue_of(seen.view.value) if seen is not None else "",
            "decision": decision,
        }

    def _log_fields(self, key: JobKey) -> dict[str, str]:
        """The same for a key of the jobs queue; a job may have no Workload, and a Workload no job."""
        if key[0] == ORPHAN:
            return self._log_fields_of(key[1:], "")
        seen = self.world.workload_of(key)
        if seen is not None:
            return self._log_fields_of(seen.key, self.actuator.decision_of(key))
        return {"kind": key[0], "namespace": key[1], "name": key[2]}

    async def _leaves_pods(self, key: JobKey) -> bool:
        """Has a JobSet that is over pods that are not known here? Its status says nothing of them, so it is looked
        up."""
        seen = self.world.workload_of(key)
        if key[0] != JOBSET.kind or seen is None or seen.view.value.admission is None:
            return False
        return await self.actuator.unseen_pods(seen)

    async def _look_at_workload(self, key: Key) -> None:
        seen = self.world.workloads.get(key)
        if seen is not None and self.world.is_beside(seen):
            await self._drop_beside(seen)
            return
        if seen is None or self.world.job_of(seen) is not None:
            return
        if self.world.is_bare(seen):
            now = self.now()
            due = self.world.bare(key, self.settings, now)
            if due.step is not None:
                await self.actuator.take_bare(seen, due.step)
            elif due.at is not None:
                self.jobs.add_after((ORPHAN, *key), (due.at - now) / 1000 + 0.005)
            return
        due = next_orphan_step(seen.view, self.world.tally(None, seen, self.now()))
        if isinstance(due.step, LetWorkloadGo):
            await self.actuator.let_go(seen)
            return
        if isinstance(due.step, StopPods):
            await self.actuator.stop_pods(due.step)
        elif due.step is not None and await self.actuator.job_is_gone(seen):
            if isinstance(due.step, ReleaseWorkload):
                await self.actuator.take_bare(seen, due.step)
            else:
                await self.actuator.delete_workload(seen)
            return
        self.jobs.add_after((ORPHAN, *key), 1.0)

    async def _drop_beside(self, seen: WorkloadSeen) -> None:
        step = beside_step(seen.view).step
        if isinstance(step, DeleteWorkload):
            self.world.gives_up_place(seen.uid)
            await self.actuator.delete_workload(seen)
        elif step is not None:
            await self.actuator.take_bare(seen, step)

    async def _explain(self) -> None:
        """Tell gangs why they wait, one after the other; a slow write in one namespace does not hold up others for
        long."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(EXPLAIN_PAUSE_S)
                for _ in range(max(1, int(self.tuning.explain_per_s))):  # who is put off has a rest
                    latest = time.monotonic() - self.tuning.explain_after_s
                    key = self._unexplained.take(latest, self._explaining)
                    if key is None:
                        break
                    telling = group.create_task(self._explain_one(key))
                    await asyncio.wait({telling}, timeout=EXPLAIN_PAUSE_S)
                    if telling.done():
                        await asyncio.sleep(telling.result())

    async def _explain_one(self, key: Key) -> float:
        """Tell a gang why it waits; seconds to rest before the next is told. Raises Fenced and MemoryError only: a
        defect in the wording of one reason must not stop the decisions."""
        self._explaining.add(key[0])
        try:
            return await self._tell_why(key)
        except (Fenced, MemoryError):
            raise
        except Exception as error:
            self._failed((ORPHAN, *key), error)
            log.exception("reason not told", **self._log_fields_of(key, ""))
            return 0.0
        finally:
            self._explaining.discard(key[0])

    async def _tell_why(self, key: Key) -> float:
        seen, verdict = self.world.workloads.get(key), self.verdicts.get(key)
        if seen is None or verdict is None or seen.view.value.admission is not None:
            return 0.0
        job = self.world.job_of(seen)
        if (job is not None and job in self._decisions) or self._unmade.keeps(key):
            self._explain_later(key)  # the decision may come to nothing
            return 0.0
        try:
            wrote = await self.actuator.explain(seen, project(seen.view.value, verdict), found=key in self._found)
        except NotFound:
            return 0.0
        except Conflict:
            self._explain_later(key)
            return 0.0
        except (ApiError, OSError, TimeoutError) as error:
            self._failed(job or (ORPHAN, *key), error)
            tell = log.debug if self._unheard or unanswered(error) else log.warning
            tell("reason not written", **self._log_fields_of(key, ""), error=str(error))
            self._explain_later(key)
            self._unheard = True
            return 1 / self.tuning.explain_busy_per_s
        self._unheard = False
        self._found.discard(key)
        if not wrote:
            return 0.0
        why = verdict.why
        log.info("waits", **self._log_fields_of(key, wrote), reason=why.reason.value, detail=why.detail.value)
        return 1 / (self.tuning.explain_busy_per_s if self._busy() else self.tuning.explain_per_s)

    def _explain_later(self, key: Key) -> None:
        self._unexplained.add_last(key, time.monotonic())

    async def _all_keys(self) -> list[JobKey]:
        """Keys of all jobs, the oldest first (in the order of their Workloads they stand in line), and of Workloads
        without a job of ours."""
        every = in_turns(tuple(self.world.jobs.items()), LOOKED_AT_ONCE)
        jobs = sorted([(job.created_ms, job.arrival, key) async for key, job in every])
        workloads = in_turns(tuple(self.world.workloads.values()), LOOKED_AT_ONCE)
        bare = [(ORPHAN, *seen.key) async for seen in workloads if self.world.is_bare(seen)]
        return [*(key for _, _, key in jobs), *bare]

    async def _sweep(self) -> None:
        """Look at Workloads without a job, and at all keys in case some event was missed; so many keys each second."""
        while True:
            async for at in in_turns(tuple(self.world.workloads), LOOKED_AT_ONCE):
                seen = self.world.workloads.get(at)
                if seen is not None and (self.world.is_orphan(seen) or self.world.is_beside(seen)):
                    self._sweep_soon(seen)
            everybody = await self._all_keys()
            lasts = max(self.tuning.sweep_s, len(everybody) / self.tuning.swept_per_s)
            parts = max(1, min(len(everybody), int(lasts)))
            for part in range(parts):
                await asyncio.sleep(lasts / parts)
                async for key in in_turns(everybody[part::parts], LOOKED_AT_ONCE):
                    if key[0] == ORPHAN or key in self.world.jobs:
                        self.jobs.add(key)
            self.stale.add_all()
            if self._volumes_seen != self.world.looks_at_volumes:
                self._pace.changed()

    async def _lay_ghosts(self) -> None:
        """Free what deleted Workloads hold on lost nodes as soon as these count as gone; no event tells of that."""
        while True:
            await asyncio.sleep(1.0)
            self.world.lay_ghosts(self.now())

    async def _tell_standstill(self) -> None:
        """Log when no pods are made, or placed, for any gang, and when that is over. No job is to blame for it."""
        told: set[str] = set()
        while True:
            for what, gangs in self.numbers.standstills():
                if gangs and what not in told:
                    log.warning(f"pods are {what} for nobody", gangs=gangs)
                    told.add(what)
                elif not gangs and what in told:
                    log.info(f"pods are {what} again")
                    told.discard(what)
            await asyncio.sleep(5.0)

    async def _check_books(self) -> None:
        """Compare the books with a fresh computation from the same facts and, one kind each time, the copies with what
        the API server has. A difference is a bug, here or in a watch, and is reported."""
        part, parts = 0, 8  # of the nodes, so that a large cluster stops nobody for long
        found = [0] * parts
        copies, differing = deque(self.informers), Counter[str]()
        while True:
            await asyncio.sleep(self.tuning.check_s / parts)
            drift = self.state.drift(part, parts)
            found[part] = len(drift)
            part = (part + 1) % parts
            if drift:
                log.error("the ledger differs from its recomputation", differences=drift[:10], count=len(drift))
            kind = copies[0]
            differed = differing[kind]
            with suppress(ApiError, OSError, TimeoutError):  # told by the client; it is looked at when it comes round
                differing[kind] = len(await self.informers[kind].differences())
            if differed or not differing[kind]:
                copies.rotate(-1)  # what differs for the first time is looked at again at once: is it mended?
            for told in self.watchers.drift:
                told(sum(found) + differing.total())

    # ------------------------------------------------------------ asking

    @property
    def numbers(self) -> Numbers:
        """What metrics and the page read."""
        return Numbers(self)


def _shown(job: JobView) -> tuple[Any, ...]:
    """The fields of a job that the page shows."""
    return (job.ready, job.succeeded, job.suspended, job.pods_expected, job.finished, job.ending, job.message)


def _other_queues(old: Workload, new: Workload) -> bool:
    """Did the gang leave a queue (LocalQueue, or the ClusterQueue of its reservation) by this change?"""
    if old.queue != new.queue:
        return True
    before = old.admission.cluster_queue if old.admission is not None else ""
    return bool(before) and (new.admission is None or new.admission.cluster_queue != before)


def _key_of(engine_class: type, item: Item[Any]) -> str | Key:
    """The key by which the engine knows the object."""
    return (item.namespace, item.name) if engine_class is LocalQueue else item.name


def _only_usage_differs(old: Item[Any] | None, new: Item[Any]) -> bool:
    """Is what changed of a queue only the usage that we noted ourselves?"""
    if old is None or not isinstance(old.value, LocalQueue) or not isinstance(new.value, LocalQueue):
        return False
    return replace(old.value, consumed=(), consumed_at=0) == replace(new.value, consumed=(), consumed_at=0)
