"""All that the engine knows, folded from events.

`State.apply` is total, idempotent and synchronous: any event may come at any time, in any order of objects, twice, or
about things never heard of. Each gang is in one of three places:

    charged    it holds a reservation, and is entered in the ledger
    in line    it waits in its ClusterQueue's line, in order
    blocked    it waits and may not stand in line (stopped queue, gate, missing queue): the reason is kept

A gang *counts* as its object says, with the decision laid over it whose write is on its way (`in_flight`).

Gangs of equal shape and priority in one queue share a *bucket* of its line: the answer that one was given is kept for
all of them (`memos`) until something changes on which it depends. Lines and memos are caches, and could be made anew at
any time. All that decisions must remember is on the objects.

The State reads no clock: `advance` is told the time, for what ends by itself (backoff, claims, memos).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping, MutableMapping, Sequence, Set
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import replace

from admission.engine import activity, order
from admission.engine.activity import Activity
from admission.engine.booking import children_of, mark_of, marked
from admission.engine.flavors import Cursor, Demand, demand, turns
from admission.engine.in_flight import InFlight
from admission.engine.ledger import Charge, Ledger, charge_of, claim_of
from admission.engine.line import Line, Memo, Used
from admission.engine.memos import Bucket, Memos
from admission.engine.model import (
    Admission,
    AdmissionCheck,
    Assumed,
    CheckState,
    ClusterQueue,
    Cohort,
    Decision,
    Detail,
    Event,
    Flavor,
    FlavorResource,
    Forgotten,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    PodUsage,
    Put,
    Reason,
    Rules,
    Standing,
    StopPolicy,
    Topology,
    Verdict,
    Why,
    Workload,
    matches,
)
from admission.engine.order import QueueKey
from admission.engine.roster import QueueNumbers, Roster, add
from admission.engine.shortage import NEW, Shortages


class InLine(NamedTuple):
    """Where a gang stands in line."""

    queue: str
    """The ClusterQueue."""
    bucket: int
    place: QueueKey


class _StoppedScan(NamedTuple):
    """A scan of flavors that stopped half-way, and goes on behind its cursor."""

    order: tuple[str, object]
    """(uid of the gang, the flavors that come last for it): with another order the cursor means other flavors."""
    cursor: Cursor
    generation: int
    """Of the queue, as it stopped: see `State.generation`."""
    began: tuple[int, int]
    """Versions of the book at its beginning."""
    seen: frozenset[Cursor]
    """All cursors since then."""


class State:
    """See the module. Not for several threads. `ledger` shows what is charged; change it by events only."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._ledger = Ledger(rules)
        self._shortages = Shortages(self._ledger, rules, self.holders)
        self.memos = Memos(self, self._ledger, self._shortages)
        self.queues: dict[str, ClusterQueue] = {}
        self.cohorts: dict[str, Cohort] = {}
        self.local_queues: dict[Key, LocalQueue] = {}
        self.flavors: dict[str, Flavor] = {}
        self.topologies: dict[str, Topology] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.terminating: set[str] = set()
        """Namespaces that are being deleted."""
        self.workloads: dict[Key, Workload] = {}
        """Every gang that is not finished, as it counts: with what is assumed laid over it."""
        self.lines: dict[str, Line] = {}
        self.second: set[Key] = set()
        """Gangs with a reservation that need a second look: nodes must be chosen for them, or chosen anew."""
        self.leaving: set[Key] = set()
        """Gangs that were evicted and hold their room still."""
        self.preempting: dict[str, Counter[int]] = {}
        """uid of a gang -> when others were evicted for it that have not been admitted since."""

        self._in_flight = InFlight()
        self._scans: dict[Key, _StoppedScan] = {}
        """Scans that stopped half-way. They are on no object: after a restart they begin anew."""
        self._blocked: dict[Key, Why] = {}
        self._untold: dict[Key, None] = {}
        """Gangs whose verdict no cycle has told, in the order in which it changed: see `untold`."""
        self._in_line: dict[Key, InLine] = {}
        self._by_uid: dict[str, Key] = {}
        self._roster = Roster(rules)
        self._claims: dict[Key, tuple[int, Workload]] = {}
        """Gangs with a claim in the book -> (when it ends, the gang as it was entered)."""
        self._buckets: dict[object, int] = {}
        """What makes gangs alike (see `_bucket`) -> their bucket."""
        self._bucket_names: dict[int, object] = {}
        """The inverse of that."""
        self._demands: dict[int, tuple[ClusterQueue, Workload, Demand]] = {}
        """Bucket -> (queue, a gang of it, what that asks of the queue)."""
        self.standings = order.Standings()
        self.heads_before = ""
        """The label of the root that the last cycle came to when its budget was used up; empty where it was not."""
        self.asked: set[Key] = set()
        """Who had a turn in cycles whose budget was used up before anything was decided, since anything was."""
        self.turned: set[Key] = set()
        """Parked gangs that would be refused even without what is set aside for others (`Memo.turned`). Complete for
        gangs for whom room is kept, who are alone in their buckets; of others some are here, too."""
        self._kept: list[tuple[int, Key]] = []
        """What `kept_on_nodes` answers ..."""
        self._kept_at: dict[Key, int] = {}
        """... and the same by gang."""
        self.unreached: dict[str, int] = {}
        """Queue -> since when cycles that came to the end of their budget had no turn for it."""
        self.dear = False
        """Did a few dear trials use up most of the last such budget?"""
        self.hit_upto: dict[str, Key] = {}
        """"second" (gangs that lost nodes and keep their quota) or "leaving" (those that lost nodes and leave) -> the
        gang that was dealt with last: the next cycle goes on behind it."""
        self.no_luck: dict[Key, tuple[Workload, frozenset[str], int, int]] = {}
        """Such gangs that found no other nodes -> (the gang, nodes that it avoided, versions of the nodes and of its
        tree): it is not asked again while these are the same."""
        self.trying: Key | None = None
        """The gang that a decision looked at last: if the decision raises, it is over this one."""
        self._next_bucket = 0
        self._sleeping: dict[Key, int] = {}
        """Gangs in backoff, and until when."""
        self._alarms: list[tuple[int, str, Key]] = []
        """A heap of (ms since the epoch, "backoff" or "claim", gang); some stand for nothing any more (`_is_set`)."""
        self._config_changed = False
        self._unsettled: set[Key] = set()
        """Gangs that were lined up, or blocked, since the configuration changed: to be judged again once it is
        settled."""
        self._activity: dict[str, Activity] = {}
        self._takes: dict[str, tuple[LabelSelector | None, StopPolicy]] = {}
        """ClusterQueue -> (namespaces whose gangs it takes, is it stopped) as of the last `_settle`."""
        self._open_plan: dict[Key, Decision] = {}
        """Decisions of the last plan that were not assumed yet."""
        self._will_charge: Mapping[Key, tuple[Workload, Admission, Charge]] = {}
        self._now = 0
        self._given_back: Counter[str] = Counter()
        """Label of a root -> how often quota was given back in its tree."""
        self._told: dict[int, tuple[Reason, Detail, ClusterQueue, tuple[str, ...]]] = {}
        """Bucket -> (reason, detail, its queue, labels of the cohorts above) as it was told last."""

    # ------------------------------------------------------------ asking

    @property
    def ledger(self) -> Ledger:
        self._settle()
        return self._ledger

    def flavor(self, name: str) -> Flavor | None:
        return self.flavors.get(name)

    def overfull(self, node: str) -> bool:
        """Is more of a node taken than it has."""
        return any(left < 0 for left in self._ledger.nodes.free(node).values())

    def local_queue(self, key: Key) -> LocalQueue | None:
        return self.local_queues.get(key)

    def cluster_queue(self, name: str) -> ClusterQueue | None:
        return self.queues.get(name)

    def workload(self, key: Key) -> Workload | None:
        return self.workloads.get(key)

    def by_uid(self, uid: str) -> Workload | None:
        key = self._by_uid.get(uid)
        return None if key is None else self.workloads.get(key)

    def is_leaving(self, uid: str) -> bool:
        """Was the gang with this uid evicted, and does it still hold what it had? (It may have left, and be back.)"""
        return self._by_uid.get(uid) in self.leaving

    def queue_of(self, gang: Workload) -> str:
        """The ClusterQueue of a gang: of its reservation, else of its LocalQueue; "" if there is none."""
        if gang.admission is not None:
            return gang.admission.cluster_queue
        local = self.local_queues.get((gang.namespace, gang.queue))
        return "" if local is None else local.cluster_queue

    def blocked(self, key: Key) -> Why | None:
        """Why a gang may not stand in line; None where it does, or holds quota, or is in backoff."""
        self._settle()
        return self._blocked.get(key)

    @property
    def anybody_waits(self) -> bool:
        """Does any gang stand in line, set aside ones included?"""
        return self._roster.anybody_waits

    def is_used(self, queue: str | Key) -> bool:
        """Does any gang wait in this ClusterQueue, or LocalQueue, or hold quota of it?"""
        return self._roster.is_used(queue)

    def holders(self, queue: str | Key) -> tuple[Workload, ...]:
        """Gangs that hold quota of a ClusterQueue, or by way of a LocalQueue, by key."""
        return self._roster.holders(queue)

    def pending(self, queue: str) -> list[Key]:
        """The line of a ClusterQueue, first to last. Gangs in backoff stand behind it."""
        self._settle()
        line = self.lines.get(queue)
        out = [] if line is None else [order.key_of(place) for place in line]
        out.extend(
            key
            for _, key in sorted((at, key) for key, at in self._sleeping.items())
            if self.queue_of(self.workloads[key]) == queue
        )
        return out

    def blocked_in(self, queue: str) -> list[Key]:
        """Gangs of a ClusterQueue that wait and may not stand in its line (stopped, gated), in its order."""
        self._settle()
        kept = [
            self.workloads[key]
            for local in self._roster.locals_of(queue)
            for key in self._roster.waiting_in.get(local, ())
            if key in self._blocked
        ]
        return [gang.key for gang in sorted(kept, key=lambda gang: order.queue_key(gang, sticky=False))]

    def latest(self) -> Sequence[tuple[int, Key]]:
        """(minus when it came, gang) of all that hold quota, as `Roster.latest`."""
        self._settle()
        return self._roster.latest()

    def held_queues(self) -> list[str]:
        """Names of the ClusterQueues, deleted ones too, of which somebody holds quota; sorted."""
        return self._roster.held_queues()

    def astray(self) -> list[Key]:
        """Gangs that wait and whose LocalQueue, or its ClusterQueue, does not exist; by key."""
        out: list[Key] = []
        for at, keys in self._roster.waiting_in.items():
            local = self.local_queues.get(at)
            if local is None or local.cluster_queue not in self.queues:
                out.extend(keys)
        return sorted(out)

    def position(self, key: Key) -> int | None:
        """How many stand before a gang in its ClusterQueue; None when it does not stand in line."""
        self._settle()
        entry = self._in_line.get(key)
        return None if entry is None else self.lines[entry[0]].ahead(entry[2], self.used(entry[0]))

    def is_first(self, key: Key, but: Collection[QueueKey], by: Used) -> bool:
        """Does nobody stand before a gang in its line, apart from these (their places) and gangs that could never go?
        `by`: usage to order by; None: as its queue does."""
        if key not in self._in_line:
            return False
        name, _, place = self._in_line[key]
        return self.lines[name].is_first(place, set(but), by or self.used(name))

    def used(self, queue: str) -> Used:
        """What the line of a ClusterQueue is ordered by before all else: usage of the LocalQueue; None where it is
        not."""
        if self.rules.usage_fairness is None or not self.queues[queue].usage_based_fairness:
            return None

        def used(place: QueueKey) -> float:
            gang = self.workloads[order.key_of(place)]
            return self.local_usage((gang.namespace, gang.queue))

        return used

    def local_usage(self, key: Key, also: Sequence[Admission] = ()) -> float:
        """Usage of a LocalQueue for the order inside its ClusterQueue; 0 without usage-decayed fairness. `also`: what
        it is given beside what it holds."""
        return self._roster.usage(key, self.local_queues.get(key), also)

    def overdrawn(self, among: Iterable[Key]) -> list[tuple[Key, FlavorResource, int]]:
        """Of these gangs, those whose reservation must be taken back because more is held than quota and borrowing
        allow: (gang, a pair of which too much is held, how much) each, the latest reservation first. Gangs that leave
        already count as gone."""
        ledger = self.ledger
        held = [gang for key in among if (gang := self.workloads.get(key)) is not None and gang.admission is not None]
        latest = sorted(held, key=lambda gang: (gang.reserved_at, gang.uid, gang.key), reverse=True)
        out: list[tuple[Key, FlavorResource, int]] = []
        with ExitStack() as gone:
            gone.enter_context(ledger.as_if_gone([ledger.charges[key] for key in sorted(self.leaving)]))
            for gang in latest:
                charge = ledger.charges[gang.key]
                node = ledger.tree.queue(charge.queue)
                if node is None or gang.key in self.leaving:
                    continue
                short = next(((fr, left) for fr, n in charge.usage if n > 0 and (left := node.balance(fr)) < 0), None)
                if short is not None:
                    out.append((gang.key, short[0], -short[1]))
                    gone.enter_context(ledger.as_if_gone([charge]))
        return out

    # -- numbers

    def waiting(self, queue: str) -> int:
        """How many wait in a ClusterQueue, as `pending` and `blocked_in` list them."""
        return self._roster.waiting(queue)

    def queue_numbers(self, name: str) -> QueueNumbers:
        self._settle()
        return self._roster.of_queue(name, self.queues.get(name), self._ledger.tree.queue(name), self.local_queues)

    def local_queue_numbers(self, key: Key) -> QueueNumbers:
        self._settle()
        local = self.local_queues.get(key)
        return self._roster.of_local(key, local, None if local is None else self.queues.get(local.cluster_queue))

    def cohort_numbers(self, name: str) -> QueueNumbers:
        self._settle()
        node = self._ledger.tree.cohort(name)
        if node is None:
            return QueueNumbers()
        held = {
            queue.name: self._roster.of_queue(queue.name, self.queues.get(queue.name), None, self.local_queues)
            for queue in node.queues()
        }
        return self._roster.of_cohort(self.cohorts.get(name), node, held)

    def flavor_totals(self) -> list[tuple[str, str, int, int]]:
        """(flavor, resource, nominal quota of all queues and cohorts, allocatable of its nodes that are ready and not
        cordoned) of each flavor that has nodes to count: not of elastic ones, and not of what no node has, for requests
        for something else count as it."""
        self._settle()
        tree, table = self._ledger.tree, self._ledger.nodes.table
        nominal: Counter[FlavorResource] = Counter()
        for node in (*map(tree.queue, self.queues), *map(tree.cohort, self.cohorts)):
            for fr, quota in {} if node is None else node.quotas.items():
                nominal[fr] += quota.nominal
        out: list[tuple[str, str, int, int]] = []
        made = {output for one in self.rules.transformations for output, _ in one.outputs}
        virtual = {resource for resource in made if not table.most(resource).any()}
        for name, resource in sorted(nominal):
            flavor = self.flavors.get(name)
            if flavor is not None and not flavor.elastic and resource not in virtual:
                mask = table.pairs(flavor.node_labels) & table.well
                out.append((name, resource, nominal[name, resource], int(table.most(resource)[mask].sum())))
        return out

    # -- is it active

    def queue_active(self, name: str) -> Activity:
        """Of a ClusterQueue's condition Active."""
        self._settle()
        return self._activity.get(name, (False, "Unknown", "The ClusterQueue does not exist"))

    def takes_part(self, name: str) -> bool:
        """Was this ClusterQueue active as the last decision began."""
        return self._activity.get(name, activity.READY)[0]

    def local_queue_active(self, key: Key) -> Activity:
        self._settle()
        local = self.local_queues.get(key)
        return activity.of_local(local, None if local is None else self._activity.get(local.cluster_queue))

    def cohort_active(self, name: str) -> Activity:
        self._settle()
        return activity.of_cohort(self._ledger.tree.cohort(name))

    # ------------------------------------------------------------ events

    def apply(self, event: Event) -> None:
        """Fold one event in. Never fails."""
        if not isinstance(event, Assumed):
            self._ledger.take_standing_out()
        match event:
            case Put(value):
                self._put(value)
            case Gone(kind, key):
                self._gone(kind, key)
            case Assumed(decision):
                self._assume(decision)
            case Forgotten(decision):
                self._overlaid(self._in_flight.failed(decision))

    def _put(self, value: object) -> None:
        match value:
            case Workload():
                self._put_workload(value)
            case PodUsage():
                self.memos.pod_changes(value.key, value)
                self._ledger.nodes.put_pod(value)
            case Node():
                old = self._ledger.nodes.node(value.name)
                if old != value:
                    self._ledger.nodes.put_node(value)
                    self.memos.node_changed(new=old is None)
            case ClusterQueue():
                before = self.queues.get(value.name)
                if before != value:
                    line = self.lines.get(value.name)
                    if line is not None and before is not None and before.strategy is not value.strategy:
                        self._untold.update((order.key_of(place), None) for place in line)  # where they stand now
                    self.queues[value.name] = value
                    self._config_changed = True
                    if value.name in self.lines and before is not None and before.strategy is not value.strategy:
                        for gang in [self.workloads[order.key_of(place)] for place in self.lines[value.name]]:
                            if gang.uid in self.preempting:
                                self._line_up_again(gang)  # it may stand first for that no more, or does now
            case LocalQueue():
                self._put_local(value)
            case Cohort():
                if self.cohorts.get(value.name) != value:
                    self.cohorts[value.name] = value
                    self._config_changed = True
            case Flavor():
                if self.flavors.get(value.name) != value:
                    self.flavors[value.name] = value
                    self._config_changed = True
            case Topology():
                if self.topologies.get(value.name) != value:
                    self.topologies[value.name] = value
                    self._ledger.nodes.put_topology(value)
                    self._config_changed = True
            case AdmissionCheck():
                if self.checks.get(value.name) != value:
                    self.checks[value.name] = value
                    self._config_changed = True
            case Namespace():
                labels, leaves = dict(value.labels), value.name in self.terminating
                if self.namespaces.get(value.name) != labels or leaves != value.terminating:
                    self.namespaces[value.name] = labels
                    (self.terminating.add if value.terminating else self.terminating.discard)(value.name)
                    self._namespace_changed(value.name)

    def _gone(self, kind: type, key: str | Key) -> None:
        if kind is Workload and isinstance(key, tuple):
            self._in_flight.gone(key)
            self._remove(key)
        elif kind is LocalQueue and isinstance(key, tuple):
            local = self.local_queues.pop(key, None)
            if local is not None:
                self._roster.unroute(key, local.cluster_queue)
                self._reclassify(key)
        elif kind is PodUsage and isinstance(key, tuple):
            self.memos.pod_changes(key, None)
            self._ledger.nodes.remove_pod(key)
        elif isinstance(key, str):
            self._cluster_wide_gone(kind, key)

    def _cluster_wide_gone(self, kind: type, name: str) -> None:
        if kind is Node:
            self._ledger.nodes.remove_node(name)
            self.memos.node_changed(new=False)
        elif kind is Namespace:
            self.terminating.discard(name)
            if self.namespaces.pop(name, None) is not None:
                self._namespace_changed(name)
        elif kind is Topology:
            if self.topologies.pop(name, None) is not None:
                self._ledger.nodes.remove_topology(name)
                self._config_changed = True
        else:
            configured: Mapping[type, MutableMapping[str, Any]] = {
                ClusterQueue: self.queues,
                Cohort: self.cohorts,
                Flavor: self.flavors,
                AdmissionCheck: self.checks,
            }
            if kind in configured and configured[kind].pop(name, None) is not None:
                self._config_changed = True

    def _put_local(self, value: LocalQueue) -> None:
        key = (value.namespace, value.name)
        old = self.local_queues.get(key)
        if old == value:
            return
        self.local_queues[key] = value
        if old is not None:
            self._roster.unroute(key, old.cluster_queue)
        self._roster.route(key, value.cluster_queue)
        self.memos.order_changes(value.cluster_queue)
        if old is None or (old.cluster_queue, old.stop_policy) != (value.cluster_queue, value.stop_policy):
            self._reclassify(key)

    def _namespace_changed(self, name: str) -> None:
        for key in [key for key in self._roster.waiting_in if key[0] == name]:
            self._reclassify(key)

    def _put_workload(self, value: Workload) -> None:
        if value.finished:
            self._in_flight.gone(value.key)
            self._remove(value.key)
        else:
            self._overlaid(self._in_flight.seen(value))

    def _assume(self, decision: Decision) -> None:
        self._open_plan.pop(decision.key, None)
        self._overlaid(self._in_flight.assume(decision))

    def assumes(self, decision: Decision) -> bool:
        """Does this decision count, and nothing after it, though no object shows it."""
        return self._in_flight.assumes(decision)

    def _overlaid(self, value: Workload | None) -> None:
        """A gang counts as `value` now, by its object and what is assumed over that; None: nothing has changed."""
        if value is None:
            return
        scan = self._scans.get(value.key)
        if scan is not None and scan.order == _order_of(value) and value.admission is None:
            value = replace(value, cursor=scan.cursor, cursor_generation=scan.generation)
        self._update(value.key, value)

    # ------------------------------------------------------------ one gang

    def _update(self, key: Key, value: Workload) -> None:
        """This is how the gang counts from now on."""
        # To go before all others for a lost node is a promise that Kueue does not make.
        unstamped = {"PodsReadyTimeout": not self.rules.evict_stamp, "NodeFailures": not self.rules.promises}
        if unstamped.get(value.evicted):
            value = replace(value, queue_stamp=None)
        old = self.workloads.get(key)
        if old == value:
            return
        if old is not None and self._same_for_queue(old, value):
            self.workloads[key] = value
            return
        stood = self._in_line.get(key)
        if old is not None:
            self._withdraw(old)
        self.workloads[key] = value
        self._enter(value)
        if stood is not None and value.admission is None and key not in self._in_line:
            self._wake_new_first(stood)

    @staticmethod
    def _same_for_queue(old: Workload, new: Workload) -> bool:
        """Only the scan position moved: the gang stays where it stands."""
        if old.admission is not None or new.admission is not None:
            return False
        return replace(new, cursor=old.cursor, cursor_generation=old.cursor_generation) == old

    def _remove(self, key: Key) -> None:
        old = self.workloads.pop(key, None)
        self._scans.pop(key, None)
        if old is not None:
            stood = self._in_line.get(key)
            self._withdraw(old)
            if stood is not None:
                self._wake_new_first(stood)

    def _wake_new_first(self, stood: InLine) -> None:
        """A gang that stood there left the line without being admitted. The gang that is first now may have been passed
        over for long, and gets room set aside for that only as the first."""
        name, _, place = stood
        line = self.lines.get(name)
        if line is None or not self.rules.promises:
            return
        first = line.first_but(())
        if first is not None and place < first[0]:
            self.memos.wake(name, first[1])

    def _enter(self, gang: Workload) -> None:
        key = gang.key
        if gang.uid:
            self._by_uid[gang.uid] = key
        if gang.evicted and gang.evicted_for:
            self._note_evicted_for(gang.evicted_for, gang.evicted_at, 1)
        if gang.admission is None:
            self._count_apart(gang, 1)
            self._roster.wait(gang)
            if gang.claims is not None:
                self._claim(gang)
            self._line_up(gang)
            return
        self._scans.pop(key, None)
        planned = self._will_charge.get(key)
        if planned is not None and planned[1] is gang.admission and _alike(planned[0], gang):
            charge = planned[2]
        else:
            charge = charge_of(gang)
        self._ledger.charge(charge)
        if gang.claims is not None and gang.evicted == "NodeFailures":
            self._claim(gang)
        self._roster.hold(gang, charge.queue, charge.usage)
        if gang.evicted:
            self.leaving.add(key)
        if gang.lost_nodes or (not self.rules.capacity_unless_elastic and _delayed(gang)):
            self.second.add(key)
        self.memos.tree_changed(charge.queue, freed=bool(gang.evicted))
        self._untold.pop(key, None)

    def _count_apart(self, gang: Workload, sign: int) -> None:
        for pod_set in gang.pod_sets:
            self._ledger.nodes.count_apart(map(mark_of, pod_set.shape.apart), sign)

    def _settle_apart(self) -> None:
        """Put waiting gangs into other buckets where pods came or went that make them different from gangs that were
        like them: pods that repel theirs, or pods of an earlier JobSet of the same name that hold an exclusive
        domain."""
        nodes = self._ledger.nodes
        new, names = nodes.settle_apart(), nodes.settle_children()
        namespaces = {name for mark in new for name in marked(mark).namespaces or ("",)}
        namespaces.update(name.partition("/")[0] for name in names)
        waiting_in = self._roster.waiting_in
        for local in sorted(waiting_in) if namespaces else ():
            if not namespaces.isdisjoint((local[0], "")):
                for gang in [self.workloads[key] for key in sorted(waiting_in[local])]:
                    marks = (mark for pod_set in gang.pod_sets if new for mark in nodes.repelled(pod_set.shape))
                    if not new.isdisjoint(marks) or not names.isdisjoint(_children(gang)):
                        self._line_up_again(gang)

    def _withdraw(self, gang: Workload) -> None:
        key = gang.key
        if gang.uid and self._by_uid.get(gang.uid) == key:
            del self._by_uid[gang.uid]
        if gang.evicted and gang.evicted_for:
            self._note_evicted_for(gang.evicted_for, gang.evicted_at, -1)
        if gang.admission is None:
            self._count_apart(gang, -1)
            self._roster.wait_no_more(gang)
            self._leave_line(gang)
            if key in self._claims:
                self._unclaim(key)
            return
        if key in self._claims:
            self._unclaim(key)
        charge = self._ledger.release(key)
        node = self._ledger.tree.queue(charge.queue)
        if node is not None:
            self._given_back[node.root.label] += 1
        self._roster.hold_no_more(gang, charge.queue, charge.usage)
        self.second.discard(key)
        self.leaving.discard(key)
        self.no_luck.pop(key, None)
        self.memos.tree_changed(charge.queue)
        self.memos.room_given(charge.admission)

    # -- claims

    def _claim(self, gang: Workload) -> None:
        record = gang.claims
        assert record is not None
        if gang.admission is None:
            away = self._why_blocked(gang) is not None
        else:
            held = gang.gated or gang.unbound or gang.unclear or gang.lingering
            away = not gang.active or bool(held) or gang.namespace in self.terminating
        if away or not self.rules.promises:
            return
        self._claims[gang.key] = (record.until, gang)
        self._set_alarm(record.until, "claim", gang.key)
        self._enter_claim(gang)
        self.memos.tree_changed(record.admission.cluster_queue, freed=False)

    def _enter_claim(self, gang: Workload) -> None:
        """Enter the claim of a gang into the book; as room set aside, where nobody was evicted for it."""
        record = gang.claims
        assert record is not None
        charge = claim_of(gang, record.admission)
        hit = gang.evicted == "NodeFailures"
        if hit and gang.admission is None:  # what it claimed on its way out, or later because it was passed over
            hit = record.until - self.rules.claim_ms < self.passed_over_at(gang)
        if not record.victims and not hit:  # passed over
            self._ledger.set_aside(charge, record.until)
        else:
            self._ledger.claim(charge, record.until, record.victims)

    def _unclaim(self, key: Key) -> None:
        _, gang = self._claims.pop(key)
        assert gang.claims is not None
        self._ledger.unclaim(key)
        self._ledger.give_up(key)
        self.memos.claim_ended(key)
        self.memos.tree_changed(gang.claims.admission.cluster_queue)
        self.memos.room_given(gang.claims.admission)

    def _note_evicted_for(self, uid: str, at: int, sign: int) -> None:
        """Another gang was evicted for the one with this uid (sign 1), or has come back since (-1)."""
        key = self._by_uid.get(uid)
        gang = self.workloads.get(key) if key is not None and key in self._in_line else None
        before = gang is not None and self._is_sticky(gang)
        times = self.preempting.setdefault(uid, Counter())
        add(times, at, sign)
        if not times:
            del self.preempting[uid]
        if gang is not None and before != self._is_sticky(gang):
            self._leave_line(gang)
            self._line_up(gang)

    def _is_sticky(self, gang: Workload) -> bool:
        """Does it stand first because room is being freed for it? Gangs that were evicted for it before it was evicted
        itself do not count."""
        if gang.claims is not None:
            return True
        queue = self.queues.get(self.queue_of(gang))
        if queue is not None and queue.strict and not self.rules.promises:
            return False  # in Kueue's strict queues only the order counts
        since = gang.evicted_at if gang.evicted else 0
        return any(at >= since for at in self.preempting.get(gang.uid, ()))

    # -- standing in line

    def _line_up(self, gang: Workload) -> None:
        """Put a waiting gang into the line of its queue, or into backoff, or block it with the reason."""
        key = gang.key
        if self._config_changed:
            self._unsettled.add(key)
        why = self._why_blocked(gang)
        if why is not None:
            if self._blocked.get(key) != why:
                self._blocked[key] = why
                self._untold[key] = None
            return
        if gang.requeue_at and gang.requeue_at > self._now:
            self._sleeping[key] = gang.requeue_at
            self._set_alarm(gang.requeue_at, "backoff", key)
            self._untold[key] = None
            return
        name = self.queue_of(gang)
        bucket = self._bucket(gang, name)
        place = order.queue_key(gang, self._is_sticky(gang))
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line(self.turned)
        strict = self.queues[name].strict
        # The gang that was first is told that it no longer is. (In order of usage it is told when its own turn is
        # over.)
        used = self.used(name)
        was = line.first()[0] if strict and line.buckets and used is None else place
        if place < was:
            self._untold[order.key_of(was)] = None
            self.memos.first_changes(name, line.first()[1])
        keeper = self.memos.keeper(name) if strict and used is not None else None
        line.add(place, bucket)
        if keeper is not None and line.first(used)[1] != keeper:
            self.memos.first_changes(name, keeper)
        self._in_line[key] = InLine(name, bucket, place)
        if self.memos.lined_up(name, bucket) or strict:
            self._untold[key] = None

    def _leave_line(self, gang: Workload) -> None:
        key = gang.key
        self._blocked.pop(key, None)
        self._untold.pop(key, None)
        self._sleeping.pop(key, None)
        entry = self._in_line.pop(key, None)
        if entry is None:
            return
        name, bucket, place = entry
        line = self.lines[name]
        queue = self.queues.get(name)
        in_order = queue is not None and queue.strict and self.used(name) is None
        was_first = in_order and line.first()[0] == place
        self.memos.first_changes(name, bucket)
        if line.remove(place, bucket):
            self._buckets.pop(self._bucket_names.pop(bucket), None)
            self._demands.pop(bucket, None)
            self._told.pop(bucket, None)
            if not line.buckets:
                del self.lines[name]
            self.memos.gone(name, bucket)
        else:
            self.memos.left(name, bucket, key)
        if was_first and line.buckets:
            # The gang that is first now was told behind which one it stood.
            self._untold[order.key_of(line.first()[0])] = None

    def _why_blocked(self, gang: Workload) -> Why | None:
        if not gang.active:
            return gang.off
        if gang.unmanaged:
            return Why(Reason.MISCONFIGURED, Detail.NOT_MANAGED, subject=gang.unmanaged)
        if gang.gated:
            return Why(Reason.GATED, subject=gang.gated)
        if gang.unbound:
            return Why(Reason.GATED, Detail.VOLUME_PENDING, subject=gang.unbound)
        if gang.unclear:
            return Why(Reason.GATED, Detail.CLAIMS_UNCLEAR, subject=gang.unclear)
        if gang.lingering:
            return Why(Reason.GATED, Detail.PODS_LINGER, subject=gang.lingering)
        if gang.namespace in self.terminating:
            return Why(Reason.MISCONFIGURED, Detail.NAMESPACE_TERMINATING, subject=gang.namespace)
        local = self.local_queues.get((gang.namespace, gang.queue))
        if local is None:
            return Why(Reason.MISCONFIGURED, Detail.QUEUE_MISSING, subject=gang.queue)
        if local.stop_policy is not StopPolicy.NONE:
            return Why(Reason.ON_HOLD, subject=f"LocalQueue {local.name}")
        queue = self.queues.get(local.cluster_queue)
        if queue is None:
            return Why(Reason.MISCONFIGURED, Detail.CLUSTER_QUEUE_MISSING, subject=local.cluster_queue)
        if queue.stop_policy is not StopPolicy.NONE:
            return Why(Reason.ON_HOLD, subject=f"ClusterQueue {queue.name}")
        active, reason, text = self._activity.get(queue.name, (True, "", ""))
        if not active:
            detail = Detail.COHORT_CYCLE if reason == "CohortCycle" else Detail.CLUSTER_QUEUE_INACTIVE
            return Why(Reason.MISCONFIGURED, detail, subject=f"{queue.name}: {text}")
        if not matches(queue.namespace_selector, self.namespaces.get(gang.namespace, {})):
            return Why(Reason.MISCONFIGURED, Detail.NAMESPACE_NOT_SELECTED, subject=queue.name)
        return None

    def _bucket(self, gang: Workload, queue: str) -> int:
        fair = self.rules.usage_fairness is not None
        identity: object
        if "SchedulingEquivalenceHashing" in self.rules.gates and gang.claims is None and not gang.lost_nodes:
            identity = (
                queue,
                (gang.namespace, gang.queue) if fair else gang.namespace,
                gang.pod_sets,
                gang.effective_priority,
                gang.allowed_flavors,
                gang.out_of_stock,
                gang.reclaimable,
                gang.avoid,
                gang.preemption_gated,
                tuple((check.name, check.state) for check in gang.checks),
                gang.parent_uid,
                gang.cursor,
                # A gang that was evicted a short time ago may not evict for its share.
                gang.evicted_at if self.rules.promises and gang.evicted == "Preempted" else 0,
                # A gang that comes first for a lost node may evict by its age, which is another than its place says.
                order.since(gang) if self.rules.promises and order.stamp(gang) != order.since(gang) else None,
                tuple(self._ledger.nodes.repelled(pod_set.shape) for pod_set in gang.pod_sets),
                # Pods of an earlier JobSet of its name keep their exclusive domains for it alone while they are there.
                tuple(name for name in _children(gang) if self._ledger.nodes.has_children(name)),
            )
        else:
            identity = (queue, gang.key, gang.uid)
        bucket = self._buckets.get(identity)
        if bucket is None:
            bucket = self._buckets[identity] = self._next_bucket
            self._bucket_names[bucket] = identity
            self._next_bucket += 1
        return bucket

    def _reclassify(self, local: Key) -> None:
        for key in sorted(self._roster.waiting_in.get(local, ())):
            self._line_up_again(self.workloads[key])

    def _line_up_again(self, gang: Workload) -> None:
        self._leave_line(gang)
        if gang.key in self._claims:
            if self._why_blocked(gang) is not None:
                self._unclaim(gang.key)
        elif gang.claims is not None:
            self._claim(gang)
        self._line_up(gang)

    # ------------------------------------------------------------ changes that wake memos

    def _settle(self) -> None:
        """Take out of the book what is only planned, and, where the configuration changed, work out what follows from
        it: the quota tree, which queues are active, who is blocked."""
        self._ledger.take_standing_out()
        if not self._config_changed:
            return
        self._config_changed = False
        self.standings.forget()
        self._shortages.forget()
        self._ledger.set_queues(
            [self.queues[name] for name in sorted(self.queues)], [self.cohorts[name] for name in sorted(self.cohorts)]
        )
        roots = {root.label for root in self._ledger.tree.roots()}
        self._given_back = Counter({label: times for label, times in self._given_back.items() if label in roots})
        before, took = self._activity, self._takes
        self._activity = {
            name: activity.of_queue(queue, self._ledger.tree.queue(name), self.flavors, self.topologies, self.checks)
            for name, queue in self.queues.items()
        }
        self._takes = {name: (queue.namespace_selector, queue.stop_policy) for name, queue in self.queues.items()}
        self.memos.forget()
        for name in sorted({*before, *self._activity}):
            if before.get(name) != self._activity.get(name) or took.get(name) != self._takes.get(name):
                for local in self._roster.locals_of(name):
                    self._unsettled.update(self._roster.waiting_in.get(local, ()))
        # A queue that is as before may have been different in between, so those judged meanwhile are judged again. Most
        # of them come out the same, and keep their place.
        waiting = (self.workloads.get(key) for key in self._unsettled)
        judged = [gang for gang in waiting if gang is not None and gang.admission is None]
        for gang in sorted(
            (g for g in judged if self._why_blocked(g) != self._blocked.get(g.key)), key=lambda g: g.key
        ):
            self._line_up_again(gang)
        self._unsettled.clear()
        for key in list(self._claims):
            self._ledger.unclaim(key)
            self._ledger.give_up(key)
            gang = self.workloads[key]
            if gang.claims is not None:
                self._enter_claim(gang)

    def advance(self, now: int) -> None:
        """Make everything ready for a decision at `now`: configuration, time, and what changed since the last one."""
        self._settle()
        self._settle_apart()
        self._ledger.nodes.tidy()
        self._now = now
        while self._alarms and self._alarms[0][0] <= now:
            _, kind, key = heapq.heappop(self._alarms)
            if kind == "backoff" and self._sleeping.get(key, now + 1) <= now:
                gang = self.workloads[key]
                self._leave_line(gang)
                self._line_up(gang)
            elif kind == "claim" and key in self._claims and self._claims[key][0] <= now:
                self._unclaim(key)
                entry = self._in_line.get(key)
                if entry is not None:
                    self.memos.wake(entry[0], entry[1])
        # Memos of the last cycle were made beside its plan, and hold only if all of that was carried out.
        came_about, self._open_plan = not self._open_plan, {}
        leaving = ((self._ledger.charges[key], self.workloads[key]) for key in sorted(self.leaving))
        if self.memos.advance(now, leaving, came_about=came_about):
            self.no_luck.clear()

    def stands(self, key: Key) -> InLine:
        """Where a gang stands in line. Raises KeyError when it does not."""
        return self._in_line[key]

    def bucket(self, gang: Workload) -> int | Key:
        """The bucket of a gang in line; its key, when it stands in none."""
        entry = self._in_line.get(gang.key)
        return gang.key if entry is None else entry[1]

    def demand(self, gang: Workload, queue: ClusterQueue) -> Demand:
        """What the gang asks of the queue; worked out once for all of a bucket."""
        entry = self._in_line.get(gang.key)
        if entry is None:
            return demand(gang, queue, self.rules)
        known = self._demands.get(entry[1])
        if known is not None and known[0] is queue:
            of = known[1]
            if of is gang or (of.pod_sets == gang.pod_sets and of.reclaimable == gang.reclaimable):
                return known[2]
        found = demand(gang, queue, self.rules)
        self._demands[entry[1]] = (queue, gang, found)
        return found

    def turns(self, gang: Workload, queue: str, among: Collection[str]) -> list[tuple[str, ...]]:
        """Of each group of a ClusterQueue: the flavors that these pod sets of a gang could all use, in the order in
        which they are tried."""
        spec = self.queues.get(queue)
        if spec is None:
            return []
        return turns(self.ledger, spec, gang, among, self.flavors, self.rules, self.topologies)

    def place_in(self, queue: str, key: Key) -> QueueKey | None:
        """Where a gang stands in line in this queue, if it does."""
        entry = self._in_line.get(key)
        return entry[2] if entry is not None and entry[0] == queue else None

    def behind(self, key: Key) -> Sequence[QueueKey]:
        """Those who wait behind a gang in its own bucket, in order."""
        name, bucket, place = self._in_line[key]
        held = self.lines[name].buckets[bucket]
        return held[bisect_right(held, place) :]

    def first_but(self, name: str, gone: Set[QueueKey]) -> tuple[Key, Memo | None] | None:
        """The first of a queue apart from these (their places), and its memo if it is parked; None if there is none."""
        line = self.lines[name]
        first = line.first_but(gone, self.used(name))
        return None if first is None else (order.key_of(first[0]), line.parked.get(first[1]))

    def asked_before(self) -> list[tuple[Key, bool]]:
        """Of the gangs in `asked`, those that would be refused again, and whether that is so even without what is set
        aside for others."""
        return [(key, memo.turned) for key in self.asked if (memo := self._memo_of(key)) is not None]

    def passed_over_at(self, gang: Workload) -> int:
        """From when on (ms) a gang counts as passed over, if it is the first of its queue."""
        evicted = gang.evicted_at if gang.evicted_at < NEW else 0
        return max(order.stamp(gang), gang.requeue_at, evicted) + self.rules.passed_over_ms

    def kept_on_nodes(self) -> list[tuple[int, Key]]:
        """(since when, gang) for whom room on nodes is set aside, sorted. The State's own list: read it before the next
        call, and do not change it."""
        changed, aside = self._ledger.aside_changed, self._ledger.aside
        for key in changed:
            if (before := self._kept_at.pop(key, None)) is not None:
                del self._kept[bisect_left(self._kept, (before, key))]
            if (held := aside.get(key)) is not None and held.charge.admission is not None:
                at = self._kept_at[key] = self.passed_over_at(self.workloads[key])
                insort(self._kept, (at, key))
        changed.clear()
        return self._kept

    def kept_since(self, key: Key) -> int:
        """Since when a gang for whom room is set aside has been passed over; also one for whom it is quota alone."""
        at = self._kept_at.get(key)
        return self.passed_over_at(self.workloads[key]) if at is None else at

    @property
    def kept_keys(self) -> KeysView[Key]:
        """The gangs of `kept_on_nodes`, as of its last call."""
        return self._kept_at.keys()

    def _memo_of(self, key: Key) -> Memo | None:
        entry = self._in_line.get(key)
        return None if entry is None else self.lines[entry[0]].parked.get(entry[1])

    def unpark(self, key: Key, *, doubt: bool = True) -> Bucket:
        """Have a parked gang take its turn after all; its (queue, bucket). `doubt`: it may still lack what it lacked,
        and a look at the book comes first."""
        name, bucket, _ = self._in_line[key]
        (self.memos.wake_in_doubt if doubt else self.memos.wake)(name, bucket)
        return name, bucket

    def told(self, queue: str, bucket: int, why: Why) -> bool:
        """Was this reason told of the bucket already? Notes that it is now. Other numbers are no news; another queue or
        cohort above it is, for the reason names them."""
        node = self._ledger.tree.queue(queue)
        above = tuple(one.label for one in node.path()) if node is not None else ()
        said = (why.reason, why.detail, self.queues[queue], above)
        if self._told.get(bucket) == said:
            return True
        self._told[bucket] = said
        return False

    def explain(self, key: Key) -> Verdict | None:
        """Where a waiting gang stands and why, from what is known without a trial; None if it does not wait."""
        self._settle()
        gang = self.workloads.get(key)
        if gang is None or gang.admission is not None:
            return None
        why = self._blocked.get(key)
        if why is None and key in self._sleeping:
            why = Why(Reason.SUSPENDED, Detail.BACKOFF, subject=self._next_turn(gang), until=self._sleeping[key])
        if why is not None:
            queue = self.queues.get(self.queue_of(gang)) if why.detail is Detail.NAMESPACE_NOT_SELECTED else None
            asked = () if queue is None else self.demand(gang, queue).told
            return Verdict(key, Standing.PARKED, why, asked)
        name, bucket, place = self._in_line[key]
        line = self.lines[name]
        if self.queues[name].strict:
            head, _ = line.first(self.used(name))
            if head != place:
                first = "/".join(order.key_of(head))
                return Verdict(key, Standing.ACTIVE, Why(Reason.WAITING_FOR_QUOTA, Detail.BEHIND_HEAD, subject=first))
        memo = line.parked.get(bucket)
        if memo is not None:
            return replace(memo.verdict, key=key, why=self._why_now(name, bucket, memo))
        return Verdict(key, Standing.ACTIVE, Why(Reason.PENDING_EVALUATION, Detail.NEXT_CYCLE))

    def refused_since(self, key: Key) -> Verdict | None:
        """The verdict on a gang that follows from one of its bucket that was refused, or from its own memo that was
        confirmed, since it was told something itself; None if there is none."""
        memo = self._memo_of(key)
        if memo is None:
            return None
        name, bucket, _ = self._in_line[key]
        other = memo.verdict.key != key
        if (other and self.queues[name].strict) or not (other or self.memos.is_stale(name, bucket)):
            return None
        return replace(memo.verdict, key=key, why=self._why_now(name, bucket, memo))

    def _why_now(self, name: str, bucket: int, memo: Memo) -> Why:
        """The reason in a memo with the numbers of now, for a bucket that was passed by since its trial. (A gang that
        was refused beside room that is kept for others keeps the numbers of its trial.)"""
        why, lack, node = memo.verdict.why, memo.lack, self.ledger.tree.queue(name)
        if lack is None or lack.beside or lack.claim or node is None or not self.memos.is_stale(name, bucket):
            return why
        shorts = []
        for short in why.shortfalls:
            fr = (short.flavor, short.resource)
            if not (short.flavor and short.requested):
                shorts.append(short)
                continue
            end = node.end_of(fr, short.requested)
            allowed = None if short.allowed is None or end is None else node.allowed_by(end, fr)
            now = {"used": node.usage.get(fr, 0), "available": node.available(fr), "allowed": allowed}
            shorts.append(replace(short, **now))
        return replace(why, shortfalls=tuple(shorts))

    def _next_turn(self, gang: Workload) -> str:
        """The flavors that a gang tries first after it got no nodes on others, in words; "" where it has no choice."""
        out = set(gang.out_of_stock)
        if not out:
            return ""
        turns = self.turns(gang, self.queue_of(gang), [pod_set.name for pod_set in gang.pod_sets])
        return ", ".join(turn[0] for turn in turns if len(turn) > 1 and not out.isdisjoint(turn))

    def untold(self, most: int) -> list[Verdict]:
        """At most so many verdicts that no cycle has told: of gangs that were blocked, joined a parked bucket, or stand
        behind the first of a strict queue. Each is told once."""
        out: list[Verdict] = []
        for key in list(islice(self._untold, most)):
            del self._untold[key]
            verdict = self.explain(key)
            if verdict is not None and verdict.why.reason is not Reason.PENDING_EVALUATION:
                out.append(verdict)
        return out

    def scanned(self, key: Key, cursor: Cursor, generation: int, book: tuple[int, int]) -> bool:
        """A cycle looked at a gang in line, on a book of these versions; the next look goes on behind this cursor.

        An empty cursor ends the scan. So does one that the scan came to before: each pod set goes on where it stopped,
        and one may stop anew as another comes to its end, so that it would go round for ever. True if there is more to
        look at: the scan goes on, or began on another book, by which the flavors before may be judged otherwise now."""
        gang = self.workloads[key]
        before = self._scans.pop(key, None)
        began, seen = (book, frozenset[Cursor]()) if before is None else (before.began, before.seen)
        if cursor in seen:
            cursor = ()
        if cursor:
            self._scans[key] = _StoppedScan(_order_of(gang), cursor, generation, began, seen | {cursor})
        if gang.cursor != cursor:
            self.workloads[key] = replace(gang, cursor=cursor, cursor_generation=generation)
        return bool(cursor) or began != book

    def generation(self, queue: str) -> int:
        """Grows when a scan of flavors that stopped half-way is worth starting anew: the queue was changed, or
        something in its tree was given back."""
        own = self.queues[queue].generation if queue in self.queues else 0
        node = self._ledger.tree.queue(queue)
        return own + (0 if node is None else self._given_back[node.root.label])

    def planned(
        self, decisions: Sequence[Decision], charged: Mapping[Key, tuple[Workload, Admission, Charge]] | None = None
    ) -> None:
        """The last cycle decided this. Until all of it is assumed the memos of that cycle are provisional. `charged`:
        what its admissions would be charged with, for reuse."""
        self._will_charge = charged or {}
        self._open_plan = {decision.key: decision for decision in decisions}

    def next_alarm(self) -> int | None:
        """When time alone may change something."""
        while self._alarms and not self._is_set(*self._alarms[0]):
            heapq.heappop(self._alarms)
        times = (self._alarms[0][0] if self._alarms else None, self.memos.next_alarm())
        return min((at for at in times if at is not None), default=None)

    def _set_alarm(self, at: int, kind: str, key: Key) -> None:
        alarms = self._alarms
        heapq.heappush(alarms, (at, kind, key))
        if len(alarms) > 2 * (len(self._sleeping) + len(self._claims)):
            alarms[:] = sorted({one for one in alarms if self._is_set(*one)})

    def _is_set(self, at: int, kind: str, key: Key) -> bool:
        """Does this alarm still stand for something."""
        return self._sleeping.get(key) == at if kind == "backoff" else self._claims.get(key, (None,))[0] == at

    # ------------------------------------------------------------ checking

    def drift(self, part: int = 0, parts: int = 1) -> list[str]:
        """Differences between the book and the objects that it was made of; empty when all is well. `part` of `parts`:
        of the nodes, of the gangs and of their places in line only these, and the rest with the first of them."""
        first = part % parts
        out = self.ledger.nodes.drift(part, parts) if first else self.ledger.drift(part, parts)
        ledger = self._ledger
        for key, gang in sorted(islice(self.workloads.items(), first, None, parts)):
            held = ledger.charges.get(key)
            if gang.admission is None:
                if held is not None:
                    out.append(f"{key} is charged without an admission")
            elif held is None or held != charge_of(gang):
                out.append(f"{key} is charged with {held}, should be {charge_of(gang)}")
        for key, (name, bucket, place) in sorted(islice(self._in_line.items(), first, None, parts)):
            line = self.lines.get(name)
            held_by = line.buckets.get(bucket, []) if line is not None else []
            at = bisect_left(held_by, place)
            if held_by[at : at + 1] != [place]:
                out.append(f"{key} is lost from the line of {name}")
        if first:
            return out
        out.extend(f"{key} is charged and unknown" for key in sorted(ledger.charges) if key not in self.workloads)
        out.extend(
            f"{key} claims and is unknown" for key in sorted({*ledger.claims, *ledger.aside} - set(self._claims))
        )
        out.extend(
            f"{key} claims nothing in the book" for key in sorted(set(self._claims) - {*ledger.claims, *ledger.aside})
        )
        return out


def _alike(one: Workload, other: Workload) -> bool:
    """Does the same admission charge the same for both."""
    return (
        one.uid == other.uid
        and one.pod_sets is other.pod_sets
        and one.reclaimable == other.reclaimable
        and not other.evicted
    )


def _order_of(gang: Workload) -> tuple[str, object]:
    """See `_StoppedScan.order`."""
    return gang.uid, gang.out_of_stock


def _children(gang: Workload) -> list[str]:
    """Names of its child jobs that have domains to themselves."""
    shapes = (pod_set.shape for pod_set in gang.pod_sets)
    return [children_of(shape) for shape in shapes if shape.exclusive is not None]


def _delayed(gang: Workload) -> bool:
    """By Kueue's rules: were its nodes left to be chosen once its checks are ready, and are they ready?"""
    return (
        not gang.admitted
        and bool(gang.checks)
        and all(check.state is CheckState.READY for check in gang.checks)
        and gang.admission is not None
        and any(pod_set.topology is None for pod_set in gang.admission.pod_sets)
    )
