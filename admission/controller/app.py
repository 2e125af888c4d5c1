"""The controller: informers fill the World, the engine decides, one queue of jobs carries it out.

Every replica lists and watches, so that a new leader is warm; only the leader decides and writes. While it leads, these
loops run, and end together (see `lead` for those that look after something now and then):

    jobs      one job at a time per key: a decision that is due for it, else the next step of its lifecycle
    decide    after a short quiet (so that a burst is one decision), a Plan; its decisions go to the jobs queue
    explain   why the others wait: after some seconds of waiting, at a capped rate, only where the reason changed
    queues    numbers of queues and cohorts, coalesced
    keep      finalizers of queues, flavors, topologies and checks

Nothing is decided before every list is in. What a decision would do counts at once (`Assumed`); if its write fails it
is `Forgotten` and decided again on what is then seen.
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
from admission.kube.flow import Told
from admission.kube.informer import Informer
from admission.names import ADMITTED, EVICTED, INVALID_JOB, REFUSED, STEP_FAILED, Names

log = structlog.get_logger("muster")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Rates and sizes of the shell; decisions do not depend on them."""

    workers: int = 48
    """At once; two thirds of them for one namespace (see `Shares`)."""
    quiet_s: float = 0.01
    window_s: float = 0.1
    rest: float = 4.0
    """Of decisions: see `Pace`."""
    longest_s: float = 0.5
    """A decision takes about so long at most; the rest comes with the next: see `Pace`."""
    waiting_decisions: int = 256
    """While more wait to be written, few are made: see `Pace`. Some tenths of a second's work for a quick server."""
    slow_s: float = 1.0
    """A write that takes longer has its namespace counted as slow there."""
    explain_after_s: float = 5.0
    explain_per_s: float = 50.0
    explain_busy_per_s: float = 5.0
    """While jobs wait for writes of theirs."""
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
    """A decision failed."""
    step: list[Callable[[JobKey, Step], None]] = field(default_factory=list)
    decision: list[Callable[[Decision], None]] = field(default_factory=list)
    admitted: list[Callable[[Key], None]] = field(default_factory=list)
    """Its condition Admitted was written: with its reservation, or once all checks are ready."""
    evicted: list[Callable[[Key, str, str], None]] = field(default_factory=list)
    """(gang, reason, cause): its condition Evicted was written, for a reason of its own and not for another."""
    failure: list[Callable[[JobKey, Exception], None]] = field(default_factory=list)
    drift: list[Callable[[int], None]] = field(default_factory=list)
    workload: list[Callable[[WorkloadSeen | None, WorkloadSeen | None], None]] = field(default_factory=list)
    """(as it was, as it is); on every replica."""
    readiness: list[Callable[[Key, str], None]] = field(default_factory=list)
    """(gang, what it lacks): as `World` tells it."""
    turn: list[Callable[[], None]] = field(default_factory=list)
    """It is about to lead, or leads no more."""


ORPHAN_SEEN_S = 1.0
"""A Workload comes before its job where the watch of that is late."""
RACES_LOST = 4
"""So many times in a row a write may come too late before each more counts as a failure: one lost race is read again at
once, and is part of the trade."""
LASTS, TOLD_EVERY = 5, 30
"""What passes by itself, mostly (a webhook is away, a disruption budget), is told to who was kept back by it so many
times, a quarter of a minute after the first, and then each half hour."""
EXPLAIN_PAUSE_S = 0.25
"""Between two looks who is to be told why it waits; and so long one write of that may keep the others."""
MADE_AGAIN_S = 1.0
"""Between two Workloads for the same job."""
OTHERS_SEEN_S = 5.0
"""After a reservation by another leader was seen, all on which it was decided is known, too."""
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
        """Jobs for which a Workload was made in the last second, in the order of these times; monotonic seconds."""
        self._by_others: set[Key] = set()
        """Gangs that another leader gave room while this one leads, and that are to be looked at for that."""
        self._unserved = Told()
        """That Workloads cannot be created where they would be."""
        self._unexplained = Unexplained()
        self._explaining: set[str] = set()
        """Namespaces in which a reason is being written."""
        self._found: set[Key] = set()
        """Gangs that waited when it began to lead, and have not been looked at since for what they are told."""
        self._wrote_at = 0.0
        """The last write for a job; monotonic seconds."""
        self._last_verdicts: tuple[Verdict, ...] = ()
        """Verdicts of the last plan."""
        self._unheard = False
        """The reason of the gang that was last told why it waits could not be written."""
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
        """Device classes that are not understood, and why, as the log has it."""
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
                on_bad=partial(self._bad, kind.kind),
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
        """Of what its owner wrote since, and nothing else looks at."""
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
                log.info("deleted", **self._who_of(old.key, str(old.status.get("decision", ""))))
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

    def _bad(self, kind: str, key: Key, error: Exception) -> None:
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
        """A decision is due for it, or it holds room: what is written for it starts a gang, or gives room back. Nobody
        waits for who has just come, or waits himself. Whose write failed is not ahead of others again: a server that
        does not answer would keep all workers with it."""
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
        """Do more decisions wait to be written than are worth it? Those of a namespace whose writes take long may wait
        for any time, and are no reason to keep others waiting."""
        if len(self._decisions) <= self.tuning.waiting_decisions:
            return False
        slow = self.jobs.held_up(self.tuning.slow_s)
        return sum(key[1] not in slow for key in self._decisions) > self.tuning.waiting_decisions

    def _busy(self) -> bool:
        """Are there writes to be made that somebody waits for? Statuses and reasons then take little of the server."""
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
        """Who was carried over from Kueue with what he had there holds it by no decision. Kueue's kind says of none."""
        return self.names.as_kueue or bool(seen.status.get("decision"))

    def _take_back_twice(self) -> None:
        """A leader that does not know yet that it leads no more may give away what this one has given away: each of
        its reservations fits what it knows. The latest go again, so that what is held is what one would have given."""
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

    def _turns(self) -> None:
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
        who = self._who_of(what.gang, what.decision)
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
        """Now and then: what would only grow, of it also that which is kept for the next decision, where nobody
        decides."""
        while True:
            await asyncio.sleep(self.tuning.sweep_s)
            self.world.forget_nodes()
            if not self.leading:
                try:
                    self.state.advance(self.now())
                except MemoryError:
                    raise
                except Exception:  # as where one decides, it is no reason to be blind
                    log.exception("not settled")

    async def lead(self, *, unheard: bool = False) -> None:
        """Decide and write; until cancelled. unheard: a moment ago nobody could say anything to the API server. Raises
        Fenced when a write met the fence, for somebody else may lead; and MemoryError, after which the books may be
        wrong."""
        for informer in self.informers.values():
            await informer.synced.wait()
        self._turns()
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
            for key in self._everybody():  # what became due while nobody led
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
                group.create_task(self._miss_nodes(), name="nodes")
                group.create_task(self._tell_standstill(), name="standstill")
                group.create_task(self._check_books(), name="check")
        except BaseExceptionGroup as errors:
            if errors.split(Fenced)[1] is None:
                raise Fenced("a write met the fence") from None
            raise
        finally:
            self.leading = False
            self._turns()
            self.revision += 1
            for decision in self._decisions.values():
                self.state.apply(Forgotten(decision))
            self._decisions.clear()
            self._based_on.clear()
            self._by_others.clear()
            self._unmade.clear()

    async def _miss_nodes(self) -> None:
        """Nodes that went while nobody looked are lost. Pods and nodes are watched apart, and news of a node may come
        after that of a pod on it: each is looked at live."""
        for node in self.world.unknown_nodes():
            pages = self.client.list_pages(NODES.path(), field_selector=f"metadata.name={node}", bare=True)
            with suppress(ApiError, OSError, TimeoutError):  # told by the client; Kubernetes itself takes the pods off
                async with aclosing(pages):
                    there = [raw async for page in pages for raw in page.items]
                if not there and node not in self.world.nodes:
                    self.world.node_gone(node)

    async def _catch_up(self) -> None:
        """Until what was reserved before is known, be it by this controller before the API server was away, and each
        job that was found has been looked at, but for those of namespaces whose writes take long."""
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
        """Whoever led before may have ended when it had written for whom others leave, and not to all of those that
        they do. Nobody evicts them any more: such a claim ends, and what is due is decided anew; who has been evicted
        leaves."""
        now, gangs = self.now(), tuple(self.state.workloads.values())
        stays_since = {gang.uid: gang.reserved_at for gang in gangs if gang.admission is not None and not gang.evicted}
        for gang in gangs:
            record = gang.claims if gang.admission is None else None
            if record is None or record.until <= now:
                continue
            made_at = record.until - self.rules.claim_ms
            if any(stays_since.get(uid, inf) <= made_at for uid in record.victims):
                log.info("a claim was half made", **self._who_of(gang.key, ""))
                # Without victims: who ended up with them evicts nobody for a while.
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
                # Nobody is admitted or evicted meanwhile; all else goes on: pods get their hosts, and what ended gives
                # its quota back. A controller that ended here would meet the same objects when it is back. Others do
                # not wait for a gang that cannot be decided on.
                about = self.state.trying
                failed += about in blamed
                blamed.add(about)
                wait = min(60.0, 0.5 * 2 ** min(failed, 7)) if failed else 0.0
                log.exception("decision failed", again_in_s=wait, about="/".join(about or ()))
                for told in self.watchers.undecided:
                    told()
                self.state.memos.forget()
                if about is not None:
                    self._without(about)
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
        # Equal answers to equal questions: who is refused twice for the same reasons waits for something to change.
        stuck = not plan.decisions and plan.verdicts == self._last_verdicts
        self._last_verdicts = plan.verdicts
        if plan.more and not stuck:
            self._pace.changed()
        elif plan.next_at is not None:
            self._decide_later(max(0.0, (plan.next_at - now) / 1000))
        return plan

    def _will_write(self, decision: Decision) -> None:
        """It counts from now on, and is on its way."""
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
        """Does it take back what was decided, and is not written yet or could not be: then neither is."""
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
        """Why a gang waits, as known now: who stands behind one of equal shape is refused as that one is, and was told
        when the reason was another; and who is passed by was told other numbers."""
        told = self.verdicts.get(key)
        found = self.state.refused_since(key) if told is not None else None
        return told if found is None else self._in_jobs_words(found)

    def _in_jobs_words(self, verdict: Verdict) -> Verdict:
        """A reason is told once, and may be read when the gang of which it speaks is gone."""

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
        decision = self._decisions.pop(key, None)
        based_on = self._based_on.pop(key, None)
        if decision is None:
            self.jobs.not_later(key)  # what is due is found anew, and nothing is of who is gone
        try:
            if decision is not None:
                await self._carry_out(key, decision, based_on)
            elif key[0] == ORPHAN:
                await self._orphan((key[1], key[2]))
            else:
                await self._take_step(key)
            seen = self.world.workload_of(key)
            if decision is not None or seen is None or not self._unmade.keeps(seen.key):
                self._failures.pop(key, None)
        except (Conflict, NotFound) as error:
            # Seen too early or too late: the informers bring what is true, soon.
            lost = self._failures.get(key, 0)
            level = log.warning if lost == RACES_LOST else log.debug
            level("looked at too old a version", kind=key[0], namespace=key[1], name=key[2], error=str(error))
            if lost >= RACES_LOST:
                self._failed(key, error)
            self._later(key, 0.05, 2.0)
        except Fenced:
            return
        except Terminating as error:
            log.debug("its namespace is being deleted", kind=key[0], namespace=key[1], name=key[2], error=str(error))
            self._later(key, 5.0, 60.0)
        except (ApiError, OSError, TimeoutError) as error:
            self._failed(key, error)
            tries = self._failures.get(key, 0)
            unserved = isinstance(error, Unserved)  # for all jobs alike
            told_now = self._unserved.due() if unserved else tries in (0, LASTS)
            level = log.warning if told_now and not unanswered(error) else log.debug
            level("write failed", **self._who(key), error=str(error))
            answered = isinstance(error, ApiError) and not unserved and not unanswered(error)
            if isinstance(error, Invalid | Forbidden) or (answered and tries % TOLD_EVERY == LASTS):
                self._refused(key, error)
            self._later(key, 0.5, 60.0)
        except MemoryError:
            raise
        except Exception as error:
            self._failed(key, error)
            log.exception("step failed", **self._who(key))
            if (job := self.world.jobs.get(key)) is not None:
                # In equal words each time: they stand as one Event, for as long as it goes on.
                self.actuator.record(key, job, "Warning", STEP_FAILED, _STEP_FAILED)
            self._later(key, 5.0, 300.0)

    async def _carry_out(self, key: JobKey, decision: Decision, based_on: Workload | None) -> None:
        """The write of a decision. Raises what `Actuator.carry_out` does."""
        try:
            made = await self.actuator.carry_out(decision, based_on)
        except BaseException as error:
            self._not_made(key, decision, error)
            raise
        self._unmade.made(decision.key)
        self._wrote_at = time.monotonic()
        kept = isinstance(decision, Claim) and not self.statuses.has("Workload", "claim")
        if not kept and self.state.assumes(decision):
            # Its answer, or a newer version, is known by now, and does not show it.
            log.warning("a decision that was written is not there", **self._who_of(decision.key, made))
            self._forget(key, decision)
        if made:
            self._told_decision(decision, made)
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
                log.debug("step", **self._who(key), step=type(due.step).__name__, why=why)
        elif due.at is not None:
            self.jobs.add_after(key, (due.at - now) / 1000 + 0.005)

    def _made_lately(self, key: JobKey) -> float:
        """Seconds until a Workload is made for this job. One that was made a moment ago and is gone was deleted with
        the job, as a rule, and the news of that is on its way."""
        now = time.monotonic()
        while self._made and (first := next(iter(self._made))) and self._made[first] <= now - MADE_AGAIN_S:
            del self._made[first]
        return self._made[key] + MADE_AGAIN_S - now if key in self._made else 0.0

    def _forget(self, job: JobKey, decision: Decision) -> None:
        """This will not be written (now): it counts no more, nor what was decided meanwhile because of it."""
        self.state.apply(Forgotten(decision))
        if isinstance(decision, Admit) and isinstance(self._decisions.get(job), Evict | Cancel | Replace):
            del self._decisions[job]
        value = self.state.workload(decision.key)
        if value is not None:
            self._queues_of(value)
        self._pace.changed()

    def _decide_again(self, job: JobKey, decision: Decision) -> None:
        """Its write failed, and it need not count any longer before it is decided anew. Who evicts waits for those that
        he evicts, and evicts nobody else meanwhile: where one holds what he held then, he is evicted as before."""
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

    def _without(self, key: Key) -> None:
        """A decision failed over this gang: it, and those that ask for the same, sit out for a while."""
        seen = self.world.workloads.get(key)
        if seen is None or seen.view.value.admission is not None:
            return
        now = self.now()
        self.world.sit_out(seen.view.value.pod_sets, now, now + SITS_OUT_MS)
        job = self.world.job_of(seen)
        if job is not None:
            text = f"No decision can be made on it, by a defect of the controller: again in {SITS_OUT_MS // 60_000} min"
            self.actuator.record(job, self.world.jobs[job], "Warning", "DecisionFailed", text)

    def _not_made(self, job: JobKey, decision: Decision, error: BaseException) -> None:
        """The write of a decision failed: it keeps its room for a moment, or its gang sits out, in memory alone."""
        seen = self.world.workloads.get(decision.key)
        if seen is None or not isinstance(error, Exception) or isinstance(error, Fenced | NotFound):
            self._forget(job, decision)
            return
        waits = seen.view.value.admission is None
        if wait_s := self._unmade.failed(job, decision, waits=waits):
            now = self.now()
            self.world.sit_out(decision.key, now, now + int(wait_s * 1000))
            self._forget(job, decision)

    def _later(self, key: JobKey, base_s: float, most_s: float) -> None:
        """Look again, later with each failure in a row; not at a Workload that went meanwhile."""
        if key[0] == ORPHAN and key[1:] not in self.world.workloads:
            self._failures.pop(key, None)
            return
        self.jobs.add_after(key, self._wait_after(key, base_s, most_s))

    def _wait_after(self, key: JobKey, base_s: float, most_s: float) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(most_s, base_s * 2 ** min(count - 1, 16)))

    def _refused(self, key: JobKey, error: Exception) -> None:
        job = self.world.jobs.get(key)
        if job is not None:
            self.actuator.record(key, job, "Warning", REFUSED, f"The API server refused a change: {error}"[:900])

    def _told_decision(self, decision: Decision, made: str) -> None:
        for told in self.watchers.decision:
            told(decision)
        if not log.is_enabled_for(logging.INFO):
            return
        if isinstance(decision, Admit) and not decision.admitted:
            log.info("reserved", **self._who_of(decision.key, made), checks=list(decision.checks))
        elif isinstance(decision, Evict):
            reason, cause = evicted_as(decision.reason)
            by = "/".join(decision.preemptor)
            log.info("evicted", **self._who_of(decision.key, made), reason=reason, cause=cause, by=by)
        elif isinstance(decision, Replace):
            log.info("nodes replaced", **self._who_of(decision.key, made))

    def _who_of(self, key: Key, decision: str) -> dict[str, str]:
        """What a line of the log says of the gang that it is about."""
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

    def _who(self, key: JobKey) -> dict[str, str]:
        """The same of a job, whose Workload may not be there, or of a Workload whose job is not."""
        if key[0] == ORPHAN:
            return self._who_of(key[1:], "")
        seen = self.world.workload_of(key)
        if seen is not None:
            return self._who_of(seen.key, self.actuator.decision_of(key))
        return {"kind": key[0], "namespace": key[1], "name": key[2]}

    async def _leaves_pods(self, key: JobKey) -> bool:
        """Does a JobSet that is over, which says nothing of its pods, have some of which nothing was heard yet."""
        seen = self.world.workload_of(key)
        if key[0] != JOBSET.kind or seen is None or seen.view.value.admission is None:
            return False
        return await self.actuator.unseen_pods(seen)

    async def _orphan(self, key: Key) -> None:
        seen = self.world.workloads.get(key)
        if seen is not None and self.world.is_beside(seen):
            await self._beside(seen)
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

    async def _beside(self, seen: WorkloadSeen) -> None:
        step = beside_step(seen.view).step
        if isinstance(step, DeleteWorkload):
            self.world.gives_up_place(seen.uid)
            await self.actuator.delete_workload(seen)
        elif step is not None:
            await self.actuator.take_bare(seen, step)

    async def _explain(self) -> None:
        """One after the other, but of one namespace nobody waits long for what is written in another."""
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
        """Tell a gang why it waits; seconds for which nothing else is to be told. Raises Fenced and MemoryError alone:
        a defect over one reason keeps nobody from deciding."""
        self._explaining.add(key[0])
        try:
            return await self._tell_why(key)
        except (Fenced, MemoryError):
            raise
        except Exception as error:
            self._failed((ORPHAN, *key), error)
            log.exception("reason not told", **self._who_of(key, ""))
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
            tell("reason not written", **self._who_of(key, ""), error=str(error))
            self._explain_later(key)
            self._unheard = True
            return 1 / self.tuning.explain_busy_per_s
        self._unheard = False
        self._found.discard(key)
        if not wrote:
            return 0.0
        why = verdict.why
        log.info("waits", **self._who_of(key, wrote), reason=why.reason.value, detail=why.detail.value)
        return 1 / (self.tuning.explain_busy_per_s if self._busy() else self.tuning.explain_per_s)

    def _explain_later(self, key: Key) -> None:
        self._unexplained.add_last(key, time.monotonic())

    def _everybody(self) -> list[JobKey]:
        """Jobs, the oldest first, for who has a Workload first is in line first; and Workloads that stand for none of
        ours."""
        jobs = sorted(self.world.jobs, key=lambda key: (self.world.jobs[key].created_ms, self.world.jobs[key].arrival))
        bare = [(ORPHAN, *seen.key) for seen in self.world.workloads.values() if self.world.is_bare(seen)]
        return [*jobs, *bare]

    async def _sweep(self) -> None:
        """Now and then: Workloads without a job, and everybody whom nothing woke, some each second."""
        while True:
            for seen in self.world.orphans():
                self._sweep_soon(seen)
            everybody = self._everybody()
            lasts = max(self.tuning.sweep_s, len(everybody) / self.tuning.swept_per_s)
            parts = max(1, min(len(everybody), int(lasts)))
            for part in range(parts):
                await asyncio.sleep(lasts / parts)
                for key in everybody[part::parts]:
                    if key[0] == ORPHAN or key in self.world.jobs:
                        self.jobs.add(key)
            self.stale.add_all()
            if self._volumes_seen != self.world.looks_at_volumes:
                self._pace.changed()

    async def _lay_ghosts(self) -> None:
        """What deleted Workloads hold on lost nodes is free as soon as these count as gone: no event says so."""
        while True:
            await asyncio.sleep(1.0)
            self.world.lay_ghosts(self.now())

    async def _tell_standstill(self) -> None:
        """That pods are made, or placed, for nobody is the fault of no job: the log tells it, and a metric."""
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
        """The books against a fresh computation from the same facts, and the copies, one in each turn, against what
        the API server has; a difference is a bug, of ours or of a watch, and is reported."""
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
    """What the page shows of a job itself."""
    return (job.ready, job.succeeded, job.suspended, job.pods_expected, job.finished, job.ending, job.message)


def _other_queues(old: Workload, new: Workload) -> bool:
    """Does a change of a gang concern queues that the gang is not of any more?"""
    if old.queue != new.queue:
        return True
    before = old.admission.cluster_queue if old.admission is not None else ""
    return bool(before) and (new.admission is None or new.admission.cluster_queue != before)


def _key_of(engine_class: type, item: Item[Any]) -> str | Key:
    """By which the engine knows it."""
    return (item.namespace, item.name) if engine_class is LocalQueue else item.name


def _only_usage_differs(old: Item[Any] | None, new: Item[Any]) -> bool:
    """Is what changed of a queue only the usage that we noted ourselves?"""
    if old is None or not isinstance(old.value, LocalQueue) or not isinstance(new.value, LocalQueue):
        return False
    return replace(old.value, consumed=(), consumed_at=0) == replace(new.value, consumed=(), consumed_at=0)
