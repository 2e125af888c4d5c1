"""All that the engine knows, folded from events.

`State.apply` is total, idempotent and synchronous: any event may come at any time, in any order of objects, twice, or
about things never heard of. Gangs that hold a reservation are charged in the ledger; gangs that wait stand in the line
of their ClusterQueue, in order; the others are set aside with the reason. A decision whose write is on its way is laid
over the object (`Assumed`) until the object shows it, or the write failed (`Forgotten`).

What a cycle found out about a gang that cannot go is kept as a *memo* of its bucket: gangs of equal shape and priority
in one queue share a bucket, and what one is refused the others need not ask. A memo says what it depends on (the quota
tree of the queue, room on nodes, a time), and the bucket comes back into the line as soon as that changes. Lines and
memos are caches: at rest they hide nothing, and after a change made by a plan itself the memos of its tree are looked
at again in the next cycle. All that decisions must remember is on the objects.

Nothing of this knows the time; `advance` is told it, for what ends by itself (backoff, claims, memos).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, KeysView, Mapping, Sequence, Set
from itertools import islice
from typing import TypeVar

from msgspec import field
from msgspec.structs import replace

from admission.engine import order
from admission.engine.booking import Amounts, mark_of, marked
from admission.engine.flavors import Demand, demand
from admission.engine.ledger import Charge, Ledger, charge_of, claim_of, usage_of
from admission.engine.line import Line, Memo, Used
from admission.engine.model import (
    Admission,
    AdmissionCheck,
    Admit,
    Assumed,
    Cancel,
    CheckState,
    Claim,
    ClusterQueue,
    Cohort,
    Decision,
    Detail,
    Event,
    Evict,
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
    Replace,
    Rules,
    Standing,
    StopPolicy,
    Strategy,
    Topology,
    Usage,
    Value,
    Verdict,
    Why,
    Workload,
    discard,
    matches,
)
from admission.engine.order import QueueKey
from admission.engine.quota import QuotaNode
from admission.engine.shortage import NEW, Asked, Lack, Leaving, Shortages
from admission.names import HOSTNAME_LABEL


class QueueNumbers(Value, frozen=True):
    """What a status shows of a ClusterQueue, LocalQueue or Cohort."""

    pending: int = 0
    reserving: int = 0
    """Gangs with a reservation, the admitted ones among them."""
    admitted: int = 0
    reserved: Mapping[FlavorResource, int] = field(default_factory=dict)
    used: Mapping[FlavorResource, int] = field(default_factory=dict)
    """Of the admitted ones."""
    nominal: Mapping[FlavorResource, int] = field(default_factory=dict)
    lent: Mapping[FlavorResource, int] = field(default_factory=dict)
    """Of `nominal`, what siblings hold."""
    order: tuple[FlavorResource, ...] = ()
    """In the order in which the object names them; then what is held of flavors that it names no more."""
    weighted_share: int = 0
    alone: bool = False
    """Without a cohort: what it holds beyond its quota is borrowed from nobody."""
    cohort: str = ""


class State:
    """See the module. Not for several threads. `ledger` shows what is charged; change it by events only."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._ledger = Ledger(rules)
        self._shortages = Shortages(self._ledger, rules, self.holders)
        self.queues: dict[str, ClusterQueue] = {}
        self.cohorts: dict[str, Cohort] = {}
        self.local_queues: dict[Key, LocalQueue] = {}
        self.flavors: dict[str, Flavor] = {}
        self.topologies: dict[str, Topology] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.workloads: dict[Key, Workload] = {}
        """Every gang that is not finished, as it counts: with what is assumed laid over it."""
        self.lines: dict[str, Line] = {}
        self.second: set[Key] = set()
        """Gangs with a reservation whose nodes must be chosen, or chosen anew."""
        self.leaving: set[Key] = set()
        """Gangs that were evicted and hold their room still."""
        self.preempting: dict[str, Counter[int]] = {}
        """uid of a gang -> when others were evicted for it that have not been admitted since."""

        self._seen: dict[Key, Workload] = {}
        self._assumed: dict[Key, tuple[Decision, ...]] = {}
        """What was decided and is not seen yet: one decision, or an Admit and what was decided after it."""
        self._scans: dict[Key, tuple[str, tuple[tuple[str, str, int], ...], int, object]] = {}
        """Of those whose scan of flavors stopped half-way: (uid, cursor, its generation, the book at its beginning). On
        no object: who remembers nothing begins anew."""
        self._blocked: dict[Key, Why] = {}
        self._untold: dict[Key, None] = {}
        self._entry: dict[Key, tuple[str, int, QueueKey]] = {}
        self._by_uid: dict[str, Key] = {}
        self._waiting_in: dict[Key, set[Key]] = {}
        """LocalQueue -> its gangs without a reservation."""
        self._kept_out_of: Counter[Key] = Counter()
        """How many of those are switched off or gated."""
        self._locals_of: dict[str, set[Key]] = {}
        self._holding_in: dict[Key, set[Key]] = {}
        """LocalQueue -> its gangs with a reservation."""
        self._holding_of: dict[str, set[Key]] = {}
        self._holders: dict[str, tuple[Workload, ...]] = {}
        self._reserved: dict[str | Key, dict[FlavorResource, int]] = {}
        self._used: dict[str | Key, dict[FlavorResource, int]] = {}
        self._admitted: Counter[str | Key] = Counter()
        self._claims: dict[Key, tuple[int, Workload]] = {}
        self._buckets: dict[object, int] = {}
        self._bucket_names: dict[int, object] = {}
        self._demands: dict[int, tuple[ClusterQueue, Workload, Demand]] = {}
        self.standings = order.Standings()
        self.heads_before = ""
        """The label of the root that the last cycle came to when its budget was used up; empty where it was not."""
        self.asked: set[Key] = set()
        """Who had a turn in cycles whose budget was used up before anything was decided, since anything was."""
        self.turned: set[Key] = set()
        """Of those for whom room is kept: who is parked, and was refused on the book alone. (They are alone in their
        buckets; of others some are here, too.)"""
        self._kept: list[tuple[int, Key]] = []
        self._kept_at: dict[Key, int] = {}
        """Of `kept_on_nodes`."""
        self.unreached: dict[str, int] = {}
        """Queue -> since when cycles that came to the end of their budget had no turn for it."""
        self.hit_upto: dict[str, Key] = {}
        """Of those who lost nodes and hold their quota (second), or are on their way out (leaving): who was dealt with
        last."""
        self.no_luck: dict[Key, tuple[Workload, frozenset[str], int, int]] = {}
        """Of them: who found no other nodes, with what to avoid, at which version of the nodes and of its tree."""
        self.trying: Key | None = None
        """Who is, or was last, looked at in a decision: one that fails is about this gang."""
        self._next_bucket = 0
        self._sleeping: dict[Key, int] = {}
        self._alarms: list[tuple[int, str, Key]] = []
        self._memo_alarms: list[tuple[int, str, int]] = []
        self._parked_on_nodes: dict[tuple[str, int], tuple[Amounts, ...]] = {}
        """(queue, bucket) -> what one pod of each pod set asks for; nothing of one that any change on nodes may
        help."""
        self._parked_under: dict[str, set[str]] = {}
        """Root (its label) -> queues with parked buckets."""
        self._ready: set[str] = set()
        self._changed_roots: set[str] = set()
        self._everything_changed = False
        self._room_changed = False
        self._leaving_in: dict[QuotaNode, Leaving] = {}
        """Root -> what those hold in its tree who are on their way out, in this cycle."""
        self._room_on: set[str] = set()
        """Nodes on which room changed (all of them, when `_room_changed`)."""
        self._bare_on: dict[str, dict[str, int]] = {}
        """Node on which pods of nobody came or went -> what it held without gangs before."""
        self._config_changed = False
        self._unsettled: set[Key] = set()
        """Gangs that were lined up, or put aside, by a configuration that may not be the last."""
        self._activity: dict[str, tuple[bool, str, str]] = {}
        self._takes: dict[str, LabelSelector | None] = {}
        """ClusterQueue -> of which namespaces it takes gangs."""
        self._open_plan: dict[Key, Decision] = {}
        self._will_charge: Mapping[Key, tuple[Workload, Admission, Charge]] = {}
        self._plan_memos: list[tuple[str, int]] = []
        self._usage_fair: dict[Key, float] = {}
        self._now = 0
        self._given_back: Counter[str] = Counter()
        self._told: dict[int, tuple[Reason, Detail] | None] = {}
        self._stale: set[tuple[str, int]] = set()
        """(queue, bucket) of who was passed by since it was tried."""
        self._doubted: dict[tuple[str, int], tuple[Memo, int]] = {}
        """(queue, bucket) -> what was known of who came back in this cycle because it may be so no more, and at which
        version of its tree it was not."""
        self._passed: dict[str, dict[tuple[str, int], None]] = {}
        """Root (its label) -> (queue, bucket) of who is not tried in this cycle although the tree changed: they still
        lack the quota that they lacked ..."""
        self._passed_on_nodes: dict[str, dict[tuple[str, int], None]] = {}
        """... or nodes alone."""

    # ------------------------------------------------------------ asking

    @property
    def ledger(self) -> Ledger:
        self._settle()
        return self._ledger

    def flavor(self, name: str) -> Flavor | None:
        return self.flavors.get(name)

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
        """Was it evicted, and does it still hold what it had. (It may have left, and be back.)"""
        return self._by_uid.get(uid) in self.leaving

    def queue_of(self, gang: Workload) -> str:
        """The ClusterQueue of a gang: of its reservation, else of its LocalQueue; "" if there is none."""
        if gang.admission is not None:
            return gang.admission.cluster_queue
        local = self.local_queues.get((gang.namespace, gang.queue))
        return "" if local is None else local.cluster_queue

    def blocked(self, key: Key) -> Why | None:
        """Why a gang does not even stand in line."""
        self._settle()
        return self._blocked.get(key)

    def sleeping(self, key: Key) -> int | None:
        """Until when a gang in backoff is left alone."""
        return self._sleeping.get(key)

    @property
    def anybody_waits(self) -> bool:
        """Does any gang stand in line, set aside ones included?"""
        return bool(self._waiting_in)

    def is_used(self, queue: str | Key) -> bool:
        """Does any gang wait in this ClusterQueue, or LocalQueue, or hold quota of it?"""
        if isinstance(queue, tuple):
            return bool(self._waiting_in.get(queue) or self._holding_in.get(queue))
        waits = any(self._waiting_in.get(local) for local in self._locals_of.get(queue, ()))
        return waits or bool(self._holding_of.get(queue))

    def holders(self, queue: str) -> tuple[Workload, ...]:
        """Gangs that hold quota of a ClusterQueue, by key."""
        known = self._holders.get(queue)
        if known is None:
            known = tuple(self.workloads[key] for key in sorted(self._holding_of.get(queue, ())))
            self._holders[queue] = known
        return known

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

    def aside(self, queue: str) -> list[Key]:
        """Gangs of a ClusterQueue that wait and may not stand in its line (stopped, gated), in its order."""
        self._settle()
        kept = [
            self.workloads[key]
            for local in self._locals_of.get(queue, ())
            for key in self._waiting_in.get(local, ())
            if key in self._blocked
        ]
        return [gang.key for gang in sorted(kept, key=lambda gang: order.queue_key(gang, sticky=False))]

    def held_queues(self) -> list[str]:
        """Names of the ClusterQueues, deleted ones too, of which somebody holds quota; sorted."""
        return sorted(name for name, keys in self._holding_of.items() if keys)

    def astray(self) -> list[Key]:
        """Gangs that wait and whose LocalQueue, or its ClusterQueue, does not exist; by key."""
        out: list[Key] = []
        for at, keys in self._waiting_in.items():
            local = self.local_queues.get(at)
            if local is None or local.cluster_queue not in self.queues:
                out.extend(keys)
        return sorted(out)

    def position(self, key: Key) -> int | None:
        """How many stand before a gang in its ClusterQueue; None when it does not stand in line."""
        self._settle()
        entry = self._entry.get(key)
        return None if entry is None else self.lines[entry[0]].ahead(entry[2], self.used(entry[0]))

    def is_first(self, key: Key, but: Collection[QueueKey], by: Used) -> bool:
        """Does nobody stand before a gang in its line but these (their places); `by`, or else as its queue orders."""
        if key not in self._entry:
            return False
        name, _, place = self._entry[key]
        by = by or self.used(name)
        mine = 0.0 if by is None else by(place)
        before = sum(1 for other in but if (0.0 if by is None else by(other), other) < (mine, place))
        return self.lines[name].ahead(place, by) == before

    def used(self, queue: str) -> Used:
        """By what the line of a ClusterQueue is ordered before all else, if it is."""
        if self.rules.usage_fairness is None or not self.queues[queue].usage_based_fairness:
            return None

        def used(place: QueueKey) -> float:
            gang = self.workloads[order.key_of(place)]
            return self.local_usage((gang.namespace, gang.queue))

        return used

    def parked(self, queue: str) -> dict[Key, Memo]:
        """Gangs of the line that are not tried before something changes, with what was found out."""
        line = self.lines.get(queue)
        if line is None:
            return {}
        return {order.key_of(place): memo for bucket, memo in line.parked.items() for place in line.buckets[bucket]}

    def local_usage(self, key: Key, also: Sequence[Admission] = ()) -> float:
        """Usage of a LocalQueue for the order inside its ClusterQueue; 0 without usage-decayed fairness. `also`: what
        it is given beside what it holds."""
        fairness = self.rules.usage_fairness
        if fairness is None:
            return 0.0
        known = None if also else self._usage_fair.get(key)
        if known is None:
            local = self.local_queues.get(key)
            extra: dict[str, float] = {}
            since = 0 if local is None else local.consumed_at
            holders = (self.workloads[holder] for holder in sorted(self._holding_in.get(key, ())))
            held = [gang.admission for gang in holders if gang.reserved_at >= since and gang.admission is not None]
            for given in (*held, *also):
                for name, amount in order.penalty(fairness, requests_of(given)).items():
                    extra[name] = extra.get(name, 0.0) + amount
            known = order.usage_value(fairness, local, extra)
            if local is not None and not also:
                self._usage_fair[key] = known
        return known

    # -- numbers

    def waiting(self, queue: str) -> int:
        """How many wait in a ClusterQueue, as `pending` and `aside` list them."""
        return sum(len(self._waiting_in.get(local, ())) for local in self._locals_of.get(queue, ()))

    def _pending_in(self, key: Key) -> int:
        """Of those that wait in a LocalQueue, how many its status tells of."""
        waiting, local = len(self._waiting_in.get(key, ())), self.local_queues.get(key)
        if self.rules.count_kept_out:
            return waiting
        stopped = local is not None and local.stop_policy is not StopPolicy.NONE
        return 0 if stopped else waiting - self._kept_out_of[key]

    def queue_numbers(self, name: str) -> QueueNumbers:
        self._settle()
        node = self._ledger.tree.queue(name)
        waiting = sum(map(self._pending_in, self._locals_of.get(name, ())))
        return self._numbers(name, waiting, len(self._holding_of.get(name, ())), node, self.queues.get(name))

    def local_queue_numbers(self, key: Key) -> QueueNumbers:
        self._settle()
        local = self.local_queues.get(key)
        queue = None if local is None else self.queues.get(local.cluster_queue)
        waiting = self._pending_in(key)
        return self._numbers(key, waiting, len(self._holding_in.get(key, ())), None, queue)

    def cohort_numbers(self, name: str) -> QueueNumbers:
        self._settle()
        node = self._ledger.tree.cohort(name)
        if node is None:
            return QueueNumbers()
        total: dict[FlavorResource, int] = {}
        used: dict[FlavorResource, int] = {}
        waiting = reserving = admitted = 0
        frs: dict[FlavorResource, None] = {}
        for queue in node.queues():
            own = self.queue_numbers(queue.name)
            waiting, reserving, admitted = (
                waiting + own.pending,
                reserving + own.reserving,
                admitted + own.admitted,
            )
            for into, amounts in ((total, own.reserved), (used, own.used)):
                for fr, amount in amounts.items():
                    into[fr] = into.get(fr, 0) + amount
            frs.update(dict.fromkeys(own.order))
        spec = self.cohorts.get(name)
        own_order = _order(spec) if spec is not None else ()
        return QueueNumbers(
            pending=waiting,
            reserving=reserving,
            admitted=admitted,
            reserved=total,
            used=used,
            nominal=dict(node.subtree),
            lent={fr: node.lent(fr) for fr in node.subtree},
            order=tuple(dict.fromkeys((*own_order, *frs))),
            weighted_share=node.share().value_status(),
            alone=node.parent is None,
        )

    def _numbers(
        self, owner: str | Key, waiting: int, holding: int, node: QuotaNode | None, queue: ClusterQueue | None
    ) -> QueueNumbers:
        reserved = dict(self._reserved.get(owner, {}))
        return QueueNumbers(
            pending=waiting,
            reserving=holding,
            admitted=self._admitted[owner],
            reserved=reserved,
            used=dict(self._used.get(owner, {})),
            nominal={} if node is None else {fr: quota.nominal for fr, quota in node.quotas.items()},
            lent={} if node is None else {fr: node.lent(fr) for fr in node.quotas},
            order=tuple(dict.fromkeys((*(_order(queue) if queue is not None else ()), *sorted(reserved)))),
            weighted_share=0 if node is None else node.share().value_status(),
            alone=node is None or node.parent is None,
            cohort="" if queue is None else queue.cohort,
        )

    def flavor_totals(self) -> list[tuple[str, str, int, int]]:
        """(flavor, resource, nominal quota of all queues and cohorts, allocatable of its nodes that are ready and not
        cordoned) of each flavor that has nodes to count: not of elastic ones."""
        self._settle()
        tree, table = self._ledger.tree, self._ledger.nodes.table
        nominal: Counter[FlavorResource] = Counter()
        for node in (*map(tree.queue, self.queues), *map(tree.cohort, self.cohorts)):
            for fr, quota in {} if node is None else node.quotas.items():
                nominal[fr] += quota.nominal
        out: list[tuple[str, str, int, int]] = []
        for name, resource in sorted(nominal):
            flavor = self.flavors.get(name)
            if flavor is not None and not flavor.elastic:
                mask = table.pairs(flavor.node_labels) & table.well
                out.append((name, resource, nominal[name, resource], int(table.most(resource)[mask].sum())))
        return out

    # -- is it active

    def queue_active(self, name: str) -> tuple[bool, str, str]:
        """(active, reason, message) of a ClusterQueue's condition Active."""
        self._settle()
        return self._activity.get(name, (False, "Unknown", "The ClusterQueue does not exist"))

    def local_queue_active(self, key: Key) -> tuple[bool, str, str]:
        self._settle()
        local = self.local_queues.get(key)
        if local is None:
            return (False, "Unknown", "The LocalQueue does not exist")
        if local.stop_policy is not StopPolicy.NONE:
            return (False, "Stopped", "LocalQueue is stopped")
        if local.cluster_queue not in self.queues:
            return (False, "ClusterQueueDoesNotExist", f"ClusterQueue {local.cluster_queue} does not exist")
        active, _, why = self._activity[local.cluster_queue]
        if not active:
            return (False, "ClusterQueueIsInactive", f"ClusterQueue {local.cluster_queue} is not active: {why}")
        return (True, "Ready", "Can submit new workloads to ClusterQueue")

    def cohort_active(self, name: str) -> tuple[bool, str, str]:
        self._settle()
        node = self._ledger.tree.cohort(name)
        if node is not None and node.in_cycle:
            return (False, "CohortCycle", "Its chain of parents runs into a cycle; nothing below is admitted")
        return (True, "Ready", "Quota is shared among its members")

    def _judge(self, queue: ClusterQueue) -> tuple[bool, str, str]:
        if queue.terminating:
            return (False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")
        node = self._ledger.tree.queue(queue.name)
        if node is not None and node.in_cycle:
            return (False, "CohortCycle", f"Cohort {queue.cohort} is part of a cycle; remove the loop of parents")
        if queue.stop_policy is not StopPolicy.NONE:
            return (False, "Stopped", "Can't admit new workloads: is stopped")
        names = flavors_of(queue)
        missing = sorted({name for name in names if name not in self.flavors})
        if missing:
            return (False, "FlavorNotFound", f"references missing ResourceFlavor(s): {', '.join(missing)}")
        for name in names:
            topology = self.flavors[name].topology
            if topology and topology not in self.topologies:
                return (False, "TopologyNotFound", f"flavor {name} names topology {topology}, which does not exist")
        gone = sorted({check.name for check in queue.checks if check.name not in self.checks})
        if gone:
            return (False, "AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {', '.join(gone)}")
        idle = sorted({check.name for check in queue.checks if not self.checks[check.name].active})
        if idle:
            return (False, "AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {', '.join(idle)}")
        return (True, "Ready", "Can admit new workloads")

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
            case Forgotten(key, whole):
                if (assumed := self._assumed.pop(key, None)) is not None and key in self._seen:
                    if len(assumed) > 1 and not whole:
                        self._assumed[key] = assumed[:-1]  # its admission was written: only the last write failed
                    self._show(key, self._laid_over(self._seen[key]))

    def _put(self, value: object) -> None:
        match value:
            case Workload():
                self._put_workload(value)
            case PodUsage():
                # A pod that came takes room; one that moved or shrank may have given some back.
                self._pod_changes(value.key, value)
                self._ledger.nodes.put_pod(value)
            case Node():
                old = self._ledger.nodes.node(value.name)
                if old != value:
                    self._ledger.nodes.put_node(value)
                    self._room_changed = True
                    # Who waits for quota was told that empty nodes would hold it; fewer of them may not.
                    self._everything_changed = self._everything_changed or old is not None
            case ClusterQueue():
                before = self.queues.get(value.name)
                if before != value:
                    line = self.lines.get(value.name)
                    if line is not None and before is not None and before.strategy is not value.strategy:
                        self._untold.update((order.key_of(place), None) for place in line)  # where they stand now
                    self.queues[value.name] = value
                    self._config_changed = True
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
                labels = dict(value.labels)
                if self.namespaces.get(value.name) != labels:
                    self.namespaces[value.name] = labels
                    self._namespace_changed(value.name)

    def _gone(self, kind: type, key: str | Key) -> None:
        if kind is Workload and isinstance(key, tuple):
            self._assumed.pop(key, None)
            if key in self._seen:
                del self._seen[key]
                self._hide(key)
        elif kind is LocalQueue and isinstance(key, tuple):
            local = self.local_queues.pop(key, None)
            if local is not None:
                self._usage_fair.pop(key, None)
                discard(self._locals_of, local.cluster_queue, key)
                self._reclassify(key)
        elif kind is PodUsage and isinstance(key, tuple):
            self._pod_changes(key, None)
            self._ledger.nodes.remove_pod(key)
        elif isinstance(key, str):
            if kind is Node:
                self._ledger.nodes.remove_node(key)
                self._room_changed = self._everything_changed = True
            elif kind is Namespace:
                if self.namespaces.pop(key, None) is not None:
                    self._namespace_changed(key)
            elif kind is Topology and self.topologies.pop(key, None) is not None:
                self._ledger.nodes.remove_topology(key)
                self._config_changed = True
            else:
                held: dict[type, dict[str, object]] = {
                    ClusterQueue: self.queues,  # type: ignore[dict-item]
                    Cohort: self.cohorts,  # type: ignore[dict-item]
                    Flavor: self.flavors,  # type: ignore[dict-item]
                    AdmissionCheck: self.checks,  # type: ignore[dict-item]
                }
                if kind in held and held[kind].pop(key, None) is not None:
                    self._config_changed = True

    def _put_local(self, value: LocalQueue) -> None:
        key = (value.namespace, value.name)
        old = self.local_queues.get(key)
        if old == value:
            return
        self.local_queues[key] = value
        self._usage_fair.pop(key, None)
        if old is not None and old.cluster_queue != value.cluster_queue:
            discard(self._locals_of, old.cluster_queue, key)
        self._locals_of.setdefault(value.cluster_queue, set()).add(key)
        if old is None or (old.cluster_queue, old.stop_policy) != (value.cluster_queue, value.stop_policy):
            self._reclassify(key)

    def _namespace_changed(self, name: str) -> None:
        for key in [key for key in self._waiting_in if key[0] == name]:
            self._reclassify(key)

    def _put_workload(self, value: Workload) -> None:
        key = value.key
        if self._seen.get(key) == value:
            return
        old = self._seen.get(key)
        if old is not None and old.uid != value.uid:
            self._assumed.pop(key, None)
        if value.finished:
            self._assumed.pop(key, None)
            if self._seen.pop(key, None) is not None:
                self._hide(key)
            return
        self._seen[key] = value
        assumed = self._assumed.get(key, ())
        if old is not None and value.admission is None and value.evicted and value.evicted_at > old.evicted_at:
            assumed = ()  # admitted, evicted and released since: what was assumed is past
        while assumed and _shown(assumed[0], value):
            assumed = assumed[1:]
        if assumed:
            self._assumed[key] = assumed
        else:
            self._assumed.pop(key, None)
        self._show(key, self._laid_over(value))

    def _assume(self, decision: Decision) -> None:
        key = decision.key
        self._open_plan.pop(key, None)
        value = self._seen.get(key)
        if value is None or (decision.uid and value.uid and decision.uid != value.uid):
            return
        before = self._assumed.get(key, ())
        if isinstance(decision, Evict | Cancel | Replace) and before and isinstance(before[0], Admit):
            # The admission that it changes is not seen yet.
            self._assumed[key] = (before[0], decision)
        elif _shown(decision, value):
            return
        else:
            self._assumed[key] = (decision,)
        self._show(key, self._laid_over(value))

    def assumes(self, decision: Decision) -> bool:
        """Does this decision count, and nothing after it, though no object shows it."""
        return self._assumed.get(decision.key) == (decision,)

    def _laid_over(self, value: Workload) -> Workload:
        """The gang as it counts, with what is assumed of it, and how far its scan of flavors came."""
        if (scan := self._scans.get(value.key)) is not None and scan[0] == value.uid:
            value = replace(value, cursor=scan[1], cursor_generation=scan[2])
        for decision in self._assumed.get(value.key, ()):
            value = _overlay(value, decision)
        return value

    # ------------------------------------------------------------ one gang

    def _show(self, key: Key, value: Workload) -> None:
        """This is how the gang counts from now on."""
        old = self.workloads.get(key)
        if old == value:
            return
        if old is not None and self._same_for_queue(old, value):
            self.workloads[key] = value
            return
        stood = self._entry.get(key)
        if old is not None:
            self._take_out(old)
        self.workloads[key] = value
        self._put_in(value)
        if stood is not None and value.admission is None and key not in self._entry:
            self._moved_up(stood)

    @staticmethod
    def _same_for_queue(old: Workload, new: Workload) -> bool:
        """Only the scan position moved: the gang stays where it stands."""
        if old.admission is not None or new.admission is not None:
            return False
        return replace(new, cursor=old.cursor, cursor_generation=old.cursor_generation) == old

    def _hide(self, key: Key) -> None:
        old = self.workloads.pop(key, None)
        self._scans.pop(key, None)
        if old is not None:
            stood = self._entry.get(key)
            self._take_out(old)
            if stood is not None:
                self._moved_up(stood)

    def _moved_up(self, stood: tuple[str, int, QueueKey]) -> None:
        """A gang left the line without being admitted. Who is first now may have been passed over for long, and only
        the first of a queue gets a claim for that."""
        name, _, place = stood
        line = self.lines.get(name)
        if line is None or not self.rules.promises:
            return
        first, bucket = line.first()
        if place < first:
            self._unpark(name, bucket)

    def _put_in(self, gang: Workload) -> None:
        key = gang.key
        if gang.uid:
            self._by_uid[gang.uid] = key
        if gang.evicted and gang.evicted_for:
            self._stick(gang.evicted_for, gang.evicted_at, 1)
        local = (gang.namespace, gang.queue)
        if gang.admission is None:
            self._asks_apart(gang, 1)
            self._waiting_in.setdefault(local, set()).add(key)
            self._keep_out(gang, 1)
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
        queue = charge.queue
        self._holding_in.setdefault(local, set()).add(key)
        self._holding_of.setdefault(queue, set()).add(key)
        self._holders.pop(queue, None)
        if gang.evicted:
            self.leaving.add(key)
        self._count(gang, charge.usage, 1)
        if gang.lost_nodes or (not self.rules.capacity_unless_elastic and _delayed(gang)):
            self.second.add(key)
        self._usage_fair.pop(local, None)
        self._tree_changed(queue, freed=bool(gang.evicted))
        self._untold.pop(key, None)

    def _keep_out(self, gang: Workload, sign: int) -> None:
        if not gang.active or gang.gated:
            _add(self._kept_out_of, (gang.namespace, gang.queue), sign)

    def _asks_apart(self, gang: Workload, sign: int) -> None:
        for pod_set in gang.pod_sets:
            self._ledger.nodes.count_apart(map(mark_of, pod_set.shape.apart), sign)

    def _settle_apart(self) -> None:
        """Who is kept away by pods that were not there before is no longer like those who are not."""
        new = self._ledger.nodes.settle_apart()
        namespaces = {name for mark in new for name in marked(mark).namespaces or ("",)}
        for local in sorted(self._waiting_in) if new else ():
            if not namespaces.isdisjoint((local[0], "")):
                for gang in [self.workloads[key] for key in sorted(self._waiting_in[local])]:
                    kept_away = (self._ledger.nodes.repelled(pod_set.shape) for pod_set in gang.pod_sets)
                    if any(not new.isdisjoint(marks) for marks in kept_away):
                        self._line_up_again(gang)

    def _take_out(self, gang: Workload) -> None:
        key = gang.key
        if gang.uid and self._by_uid.get(gang.uid) == key:
            del self._by_uid[gang.uid]
        if gang.evicted and gang.evicted_for:
            self._stick(gang.evicted_for, gang.evicted_at, -1)
        local = (gang.namespace, gang.queue)
        if gang.admission is None:
            self._asks_apart(gang, -1)
            discard(self._waiting_in, local, key)
            self._keep_out(gang, -1)
            self._step_out(gang)
            if key in self._claims:
                self._unclaim(key)
            return
        if key in self._claims:
            self._unclaim(key)
        charge = self._ledger.release(key)
        node = self._ledger.tree.queue(charge.queue)
        if node is not None:
            self._given_back[order.label(node.root)] += 1
        discard(self._holding_in, local, key)
        discard(self._holding_of, charge.queue, key)
        self._holders.pop(charge.queue, None)
        self._count(gang, charge.usage, -1)
        self.second.discard(key)
        self.leaving.discard(key)
        self.no_luck.pop(key, None)
        self._usage_fair.pop(local, None)
        self._tree_changed(charge.queue)
        self._room_given(charge.admission)

    def _count(self, gang: Workload, usage: Sequence[tuple[FlavorResource, int]], sign: int) -> None:
        assert gang.admission is not None
        for owner in (gang.admission.cluster_queue, (gang.namespace, gang.queue)):
            tables = [self._reserved, self._used] if gang.admitted else [self._reserved]
            if gang.admitted:
                _add(self._admitted, owner, sign)
            for table in tables:
                held = table.setdefault(owner, {})
                for fr, amount in usage:
                    total = held.get(fr, 0) + sign * amount
                    if total:
                        held[fr] = total
                    else:
                        held.pop(fr, None)
                if not held:
                    del table[owner]

    # -- claims

    def _claim(self, gang: Workload) -> None:
        record = gang.claims
        assert record is not None
        if not self.rules.promises or not gang.active or gang.gated or gang.unbound:
            return
        self._claims[gang.key] = (record.until, gang)
        self._ring_at(record.until, "claim", gang.key)
        self._enter_claim(gang)
        self._tree_changed(record.admission.cluster_queue, freed=False)

    def _enter_claim(self, gang: Workload) -> None:
        """Into the book, or set aside, when nobody was evicted for it."""
        record = gang.claims
        assert record is not None
        charge = claim_of(gang, record.admission)
        passed_over = not record.victims and gang.evicted != "NodeFailures"
        (self._ledger.set_aside if passed_over else self._ledger.claim)(charge, record.until)

    def _unclaim(self, key: Key) -> None:
        _, gang = self._claims.pop(key)
        assert gang.claims is not None
        self._ledger.unclaim(key)
        self._ledger.give_up(key)
        self._tree_changed(gang.claims.admission.cluster_queue)
        self._room_given(gang.claims.admission)

    def _room_given(self, admission: Admission | None) -> None:
        """Somebody leaves these nodes."""
        for pod_set in () if admission is None else admission.pod_sets:
            if pod_set.topology is None:
                continue
            if pod_set.topology.levels[-1:] != (HOSTNAME_LABEL,):
                self._room_changed = True
                return
            resolve = self._ledger.nodes.resolve
            self._room_on.update(resolve(domain.values[-1]) for domain in pod_set.topology.domains)

    def _pod_changes(self, key: Key, value: PodUsage | None) -> None:
        """A pod comes, goes, or takes another amount."""
        nodes = self._ledger.nodes
        for pod in (nodes.pod(key), value):
            if pod is not None and pod.node:
                self._room_on.add(pod.node)
                if not pod.workload_uid and pod.node not in self._bare_on:
                    self._bare_on[pod.node] = nodes.bare(pod.node)

    def _stick(self, uid: str, at: int, sign: int) -> None:
        """Another was evicted for the gang with this uid, or has come back since."""
        key = self._by_uid.get(uid)
        gang = self.workloads.get(key) if key is not None and key in self._entry else None
        before = gang is not None and self._sticky(gang)
        times = self.preempting.setdefault(uid, Counter())
        _add(times, at, sign)
        if not times:
            del self.preempting[uid]
        if gang is not None and before != self._sticky(gang):
            self._step_out(gang)
            self._line_up(gang)

    def _sticky(self, gang: Workload) -> bool:
        """Is room being freed for it. Whoever was evicted for it before it was evicted itself made room for then."""
        if gang.claims is not None:
            return True
        since = gang.evicted_at if gang.evicted else 0
        return any(at >= since for at in self.preempting.get(gang.uid, ()))

    # -- standing in line

    def _line_up(self, gang: Workload) -> None:
        """Into the line of its queue, or aside with the reason."""
        key = gang.key
        if self._config_changed:
            self._unsettled.add(key)
        why = self._why_not(gang)
        if why is not None:
            if self._blocked.get(key) != why:
                self._blocked[key] = why
                self._untold[key] = None
            return
        if gang.requeue_at and gang.requeue_at > self._now:
            self._sleeping[key] = gang.requeue_at
            self._ring_at(gang.requeue_at, "backoff", key)
            self._untold[key] = None
            return
        name = self.queue_of(gang)
        bucket = self._bucket(gang, name)
        place = order.queue_key(gang, self._sticky(gang))
        line = self.lines.get(name)
        if line is None:
            line = self.lines[name] = Line(self.turned)
        strict = self.queues[name].strategy is Strategy.STRICT_FIFO
        # Who was first is told that it is not any more; whose turn goes by usage is told when its own is over.
        was = line.first()[0] if strict and line.buckets and self.used(name) is None else place
        if place < was:
            self._untold[order.key_of(was)] = None
        line.add(place, bucket)
        self._entry[key] = (name, bucket, place)
        if bucket not in line.parked:
            self._ready.add(name)
        if bucket in line.parked or strict:
            self._untold[key] = None

    def _step_out(self, gang: Workload) -> None:
        key = gang.key
        self._blocked.pop(key, None)
        self._untold.pop(key, None)
        self._sleeping.pop(key, None)
        entry = self._entry.pop(key, None)
        if entry is None:
            return
        name, bucket, place = entry
        line = self.lines[name]
        memo = line.parked.get(bucket)
        if line.remove(place, bucket):
            self._parked_on_nodes.pop((name, bucket), None)
            self._stale.discard((name, bucket))
            self._buckets.pop(self._bucket_names.pop(bucket), None)
            self._demands.pop(bucket, None)
            self._told.pop(bucket, None)
            if not line.buckets:
                del self.lines[name]
                self._ready.discard(name)
        elif memo is not None and memo.verdict.key == key:
            # What was found out was found out about this one; the others are alike, but not in age.
            self._unpark(name, bucket)

    def _why_not(self, gang: Workload) -> Why | None:
        if not gang.active:
            if gang.paused_by and not gang.kept_by:
                return Why(Reason.DEACTIVATED, Detail.PAUSED, subject=gang.paused_by)
            detail = Detail.WORKLOAD_DELETED if gang.kept_by else Detail.NONE
            return Why(Reason.DEACTIVATED, detail, subject=gang.kept_by)
        if gang.gated:
            return Why(Reason.GATED, subject=gang.gated)
        if gang.unbound:
            return Why(Reason.GATED, Detail.VOLUME_PENDING, subject=gang.unbound)
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
                gang.reclaimable,
                gang.avoid,
                gang.preemption_gated,
                tuple((check.name, check.state) for check in gang.checks),
                gang.parent_uid,
                gang.cursor,
                # Who was evicted of late evicts nobody for its share.
                gang.evicted_at if self.rules.promises and gang.evicted == "Preempted" else 0,
                # Who stands first for a lost node may evict by its age, and is no first of those behind it in that.
                order.since(gang) if self.rules.promises and order.stamp(gang) != order.since(gang) else None,
                tuple(self._ledger.nodes.repelled(pod_set.shape) for pod_set in gang.pod_sets),
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
        for key in sorted(self._waiting_in.get(local, ())):
            self._line_up_again(self.workloads[key])

    def _line_up_again(self, gang: Workload) -> None:
        self._step_out(gang)
        if gang.claims is not None and gang.key not in self._claims:
            self._claim(gang)
        self._line_up(gang)

    # ------------------------------------------------------------ changes that wake memos

    def _tree_changed(self, queue: str, freed: bool = True) -> None:
        """Something changed in the tree of this queue; `freed`: for the better of somebody who waits, plainly (what was
        taken may make an eviction lawful that was not: where the promises hold, that counts too)."""
        if not freed and not self.rules.promises:
            return
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._changed_roots.add(order.label(node.root))

    def _settle(self) -> None:
        """Bring what follows from the configuration up to it, and take out of the book what is only planned."""
        self._ledger.take_standing_out()
        if not self._config_changed:
            return
        self._config_changed = False
        self.standings.forget()
        self._shortages.forget()
        self._ledger.set_queues(
            [self.queues[name] for name in sorted(self.queues)], [self.cohorts[name] for name in sorted(self.cohorts)]
        )
        self._holders = {name: held for name, held in self._holders.items() if name in self.queues}
        roots = {order.label(root) for root in self._ledger.tree.roots()}
        self._given_back = Counter({label: times for label, times in self._given_back.items() if label in roots})
        before, took = self._activity, self._takes
        self._activity = {name: self._judge(queue) for name, queue in self.queues.items()}
        self._takes = {name: queue.namespace_selector for name, queue in self.queues.items()}
        self._everything_changed = True
        for name in sorted({*before, *self._activity}):
            if before.get(name) != self._activity.get(name) or took.get(name) != self._takes.get(name):
                for local in sorted(self._locals_of.get(name, ())):
                    self._reclassify(local)
        # What is no different from before may have been different meanwhile.
        waiting = (self.workloads.get(key) for key in self._unsettled)
        judged = [gang for gang in waiting if gang is not None and gang.admission is None]
        for gang in sorted((g for g in judged if self._why_not(g) != self._blocked.get(g.key)), key=lambda g: g.key):
            self._line_up_again(gang)
        self._unsettled.clear()
        for key in list(self._claims):
            self._ledger.unclaim(key)
            self._ledger.give_up(key)
            gang = self.workloads[key]
            if gang.claims is not None:
                self._enter_claim(gang)

    def _unpark(self, name: str, bucket: int) -> None:
        line = self.lines.get(name)
        if line is not None and line.unpark(bucket):
            self._ready.add(name)
            self._stale.discard((name, bucket))
        self._parked_on_nodes.pop((name, bucket), None)

    def _could_use_room(self) -> list[tuple[str, int, bool]]:
        """Who waits for nodes and could put a pod on one of those whose room changed, perhaps once others of its tree
        are gone from it. With each: do empty nodes hold another number of its pods than they did, so that it must be
        told another reason."""
        if not self._room_on and not self._room_changed:
            return []
        every = self._room_changed
        nodes, tree = self._ledger.nodes, self._ledger.tree
        bare = [(was, now) for name, was in self._bare_on.items() if was != (now := nodes.bare(name))]
        there = [] if every else [self._room_there(name) for name in sorted(self._room_on)]
        roots: dict[str, QuotaNode | None] = {}
        told: dict[Amounts, bool] = {}
        found: dict[tuple[QuotaNode | None, Amounts], bool] = {}

        def other_sum(amounts: Amounts) -> bool:
            if amounts not in told:
                told[amounts] = any(_pods_on(was, amounts) != _pods_on(now, amounts) for was, now in bare)
            return told[amounts]

        def there_is(root: QuotaNode | None, amounts: Amounts) -> bool:
            known = found.get((root, amounts))
            if known is None:
                known = found[root, amounts] = any(
                    all(free.get(name, 0) + held.get(root, {}).get(name, 0) >= amount for name, amount in amounts)
                    for free, held in there
                )
            return known

        out = []
        for (name, bucket), pods in self._parked_on_nodes.items():
            if name not in roots:
                node = tree.queue(name)
                roots[name] = None if node is None else node.root
            root = roots[name]
            another = bool(bare) and any(other_sum(amounts) for amounts in pods)
            if every or another or any(there_is(root, amounts) for amounts in pods):
                out.append((name, bucket, another))
        return out

    def _room_there(self, name: str) -> tuple[dict[str, int], dict[QuotaNode | None, dict[str, int]]]:
        """What is free on a node, with what those hold there who are on their way out; and what the gangs of each tree
        hold."""
        nodes, tree = self._ledger.nodes, self._ledger.tree
        free = nodes.free(name)
        held: dict[QuotaNode | None, dict[str, int]] = {}
        for uid, amounts in nodes.occupants(name).items():
            if not uid:
                continue
            gang = self.by_uid(uid)
            if gang is None or gang.admission is None or gang.evicted or gang.key in self._claims:
                into = free
            else:
                node = tree.queue(gang.admission.cluster_queue)
                into = held.setdefault(None if node is None else node.root, {})
            for resource, amount in amounts.items():
                into[resource] = into.get(resource, 0) + amount
        return free, held

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
                self._step_out(gang)
                self._line_up(gang)
            elif kind == "claim" and key in self._claims and self._claims[key][0] <= now:
                self._unclaim(key)
                entry = self._entry.get(key)
                if entry is not None:
                    self._unpark(entry[0], entry[1])
        while self._memo_alarms and self._memo_alarms[0][0] <= now:
            _, name, bucket = heapq.heappop(self._memo_alarms)
            line = self.lines.get(name)
            memo = None if line is None else line.parked.get(bucket)
            if memo is not None and memo.until is not None and memo.until <= now:
                self._unpark(name, bucket)
        if self._open_plan:
            # What was planned did not all come about: what was found out under it does not count.
            self._open_plan = {}
            for name, bucket in self._plan_memos:
                self._unpark(name, bucket)
        self._plan_memos = []
        self._passed.clear()
        self._passed_on_nodes.clear()
        self._doubted.clear()
        self._leaving_in = {}
        for key in sorted(self.leaving):
            self.leaves(key)
        self._doubt_nodes()
        if self._everything_changed:
            self.no_luck.clear()
            self._parked_under.clear()
            self._doubted.clear()
            for name, line in self.lines.items():
                for bucket in list(line.parked):
                    self._unpark(name, bucket)
        elif self._changed_roots:
            for label in sorted(self._changed_roots):
                self._doubt(label, sorted(self._parked_under.pop(label, ())))
        self._everything_changed = self._room_changed = False
        self._room_on.clear()
        self._bare_on.clear()
        self._changed_roots.clear()

    def _doubt_nodes(self) -> None:
        """Room changed on nodes: of those who wait for it, they come back whose pods might all find it now."""
        claimed = any(held.charge.admission is not None for held in self._ledger.claims.values())
        if self._bare_on:
            self._stale.update(self._parked_on_nodes)
        for name, bucket, told in self._could_use_room():
            memo = self.lines[name].parked.get(bucket)
            node = self._ledger.tree.queue(name)
            lack = None if memo is None else memo.lack
            if memo is not None and lack is not None and lack.placing and node is not None and not told:
                # Whose claim is in the way is told to the first of a queue, and who is first may be due for one.
                first = self.lines[name].first(self.used(name))[1]
                plain = not claimed and lack.blocked_by is None and (bucket != first or lack.first)
                still = self._still(node.root, [(name, bucket, memo)])[0] if plain else None
                if still is not None:
                    self.lines[name].park(bucket, still)
                    self._stale.add((name, bucket))
                    self._passed_by(order.label(node.root), name, bucket, still)
                    continue
            self._unpark(name, bucket)
            if memo is not None and lack is not None and (lack.shorts or lack.placing) and not told:
                self._doubted[name, bucket] = (memo, -1)

    def stands(self, key: Key) -> tuple[str, int, QueueKey]:
        """(ClusterQueue, bucket, place) of a gang in line. Raises KeyError when it does not stand in one."""
        return self._entry[key]

    def bucket(self, gang: Workload) -> int | Key:
        """The bucket of a gang in line; its key, when it stands in none."""
        entry = self._entry.get(gang.key)
        return gang.key if entry is None else entry[1]

    def demand(self, gang: Workload, queue: ClusterQueue) -> Demand:
        """What the gang asks of the queue; worked out once for all of a bucket."""
        entry = self._entry.get(gang.key)
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

    def place_in(self, queue: str, key: Key) -> QueueKey | None:
        """Where a gang stands in line in this queue, if it does."""
        entry = self._entry.get(key)
        return entry[2] if entry is not None and entry[0] == queue else None

    def first_but(self, name: str, gone: Set[QueueKey]) -> tuple[Key, Memo | None] | None:
        """The first of a queue when these are looked away from, and what is known of it if it is parked."""
        line = self.lines[name]
        first = line.first_but(gone, self.used(name))
        return None if first is None else (order.key_of(first[0]), line.parked.get(first[1]))

    def asked_before(self) -> list[tuple[Key, bool]]:
        """Of those who were `asked`, who would be refused again; and were they refused on the book alone."""
        return [(key, memo.turned) for key in self.asked if (memo := self._memo_of(key)) is not None]

    def passed_over_at(self, gang: Workload) -> int:
        """When it has been passed over for too long, if it is the first of its queue."""
        evicted = gang.evicted_at if gang.evicted_at < NEW else 0
        return max(order.stamp(gang), gang.requeue_at, evicted) + self.rules.passed_over_ms

    def kept_on_nodes(self) -> list[tuple[int, Key]]:
        """Since when, and for whom, room on nodes is kept for being passed over, in this order. Only to be read, until
        it is asked for again."""
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
        """Since when room is kept for a gang, as `kept_on_nodes` has it; for whom only quota is kept is not among
        those."""
        at = self._kept_at.get(key)
        return self.passed_over_at(self.workloads[key]) if at is None else at

    @property
    def kept_keys(self) -> KeysView[Key]:
        """For whom, as `kept_on_nodes` had it last."""
        return self._kept_at.keys()

    def _memo_of(self, key: Key) -> Memo | None:
        entry = self._entry.get(key)
        return None if entry is None else self.lines[entry[0]].parked.get(entry[1])

    def unpark(self, key: Key, *, doubt: bool = True) -> tuple[str, int]:
        """A parked gang has a turn after all, though it may lack what it lacked (`doubt`). Its queue and bucket."""
        name, bucket, _ = self._entry[key]
        memo = self.lines[name].parked.get(bucket)
        self._unpark(name, bucket)
        if doubt and memo is not None and memo.lack is not None:
            self._doubted[name, bucket] = (memo, -1)
        return name, bucket

    def _doubt(self, label: str, names: list[str]) -> None:
        """A tree changed: of its queues that have parked buckets, those come back who may have got what they lack."""
        root: QuotaNode | None = None
        asked: list[tuple[str, int, Memo]] = []
        for name in names:
            line = self.lines.get(name)
            node = self._ledger.tree.queue(name)
            if line is None or node is None:
                continue
            root = node.root
            first = line.first(self.used(name))[1]
            for bucket, memo in list(line.parked.items()):
                lack = memo.lack
                if lack is None or (bucket == first and lack.behind):
                    self._unpark(name, bucket)
                else:
                    asked.append((name, bucket, memo))
        if root is None or not asked:
            return
        by_quota: dict[tuple[str, int], None] = {}
        on_nodes: dict[tuple[str, int], None] = {}
        passed: set[str] = set()
        version = self._ledger.version_of(root)
        for (name, bucket, memo), still in zip(asked, self._still(root, asked), strict=True):
            if still is not None:
                if still is not memo:
                    self.lines[name].park(bucket, still)
                (by_quota if self._lacks_quota(still) else on_nodes)[name, bucket] = None
                passed.add(name)
            else:
                self._unpark(name, bucket)
                self._doubted[name, bucket] = (memo, version)
        self._passed[label], self._passed_on_nodes[label] = by_quota, on_nodes
        self._stale.update(by_quota, on_nodes)
        self._parked_under.setdefault(label, set()).update(passed)

    @staticmethod
    def _lacks_quota(memo: Memo) -> bool:
        """Not nodes alone."""
        return memo.lack is not None and bool(memo.lack.shorts or memo.lack.never)

    def _passed_by(self, label: str, name: str, bucket: int, memo: Memo) -> None:
        passed = self._passed if self._lacks_quota(memo) else self._passed_on_nodes
        passed.setdefault(label, {})[name, bucket] = None

    def _still(self, root: QuotaNode, asked: Sequence[tuple[str, int, Memo]]) -> list[Memo | None]:
        """Of each that was refused in one tree, what is known of it if it would be refused again; None if a trial has
        to tell."""
        memos = [memo for _, _, memo in asked]
        wanted = [Asked(self.queues[name], memo.lack, memo.until) for name, _, memo in asked if memo.lack is not None]
        answers = self._shortages.still(root, wanted, self._now, self._leaving_in)
        # Who got what it lacked may lack it again beside the room that is kept for others.
        again = [
            i
            for i, answer in enumerate(answers)
            if not answer and wanted[i].lack.kept_from_it and self._ledger.aside_under(root)
        ]
        if again:
            beside = [wanted[i]._replace(lack=replace(wanted[i].lack, beside=True)) for i in again]
            known = self._shortages.still(root, beside, self._now, self._leaving_in)
            for i, one, answer in zip(again, beside, known, strict=True):
                if answer:
                    answers[i], wanted[i] = True, one
                    memos[i] = replace(memos[i], lack=one.lack, turned=False)
        return [
            memo if answer and self._lasts(one.lack) else None
            for memo, one, answer in zip(memos, wanted, answers, strict=True)
        ]

    def _lasts(self, lack: Lack) -> bool:
        """Do they still leave who leave for it, and are the nodes short that were."""
        return all(self.is_leaving(uid) for uid in lack.victims) and (
            not lack.placing or self._ledger.no_room(lack.placing, lack.avoid, beside=lack.beside)
        )

    def pass_again(self, name: str, bucket: int, gone: Collection[QueueKey]) -> Memo | None:
        """Who came back in this cycle, for what it lacked was there, lacks it again, for others took it: parked as it
        was, and the memo. None if it has to be tried, as has to be who is the first of the queue now, but for those
        whom this cycle admitted (their places are `gone`), and was not when it was asked."""
        known = self._doubted.get((name, bucket))
        node = self._ledger.tree.queue(name)
        if known is None or node is None:
            return None
        memo, version = known
        if version == self._ledger.version_of(node.root):
            return None
        line = self.lines[name]
        behind = memo.lack is not None and memo.lack.behind
        if behind and line.first_but(gone, self.used(name)) == (line.buckets[bucket][0], bucket):
            return None
        still = self._still(node.root, [(name, bucket, memo)])[0]
        if still is None:
            return None
        del self._doubted[name, bucket]
        self.park(name, bucket, still)
        self._stale.add((name, bucket))
        self._passed_by(order.label(node.root), name, bucket, still)
        return still

    def no_longer_short(self, label: str) -> list[tuple[str, int]]:
        """Room is to come in this tree, and on nodes: who was passed by in it in this cycle and may go now, and who in
        other trees waits for nodes alone. Their queues and buckets; they are parked no more."""
        out: list[tuple[str, int]] = []
        for held in (self._passed.get(label, {}), *self._passed_on_nodes.values()):
            asked: list[tuple[str, int, Memo]] = []
            root: QuotaNode | None = None
            for name, bucket in held:
                memo = self.lines[name].parked.get(bucket)
                node = self._ledger.tree.queue(name)
                if memo is not None and memo.lack is not None and node is not None:
                    root = node.root
                    asked.append((name, bucket, memo))
            if root is None:
                continue
            for (name, bucket, memo), still in zip(asked, self._still(root, asked), strict=True):
                if still is not None:
                    self.lines[name].park(bucket, still)
                else:
                    del held[name, bucket]
                    self._unpark(name, bucket)
                    self._doubted[name, bucket] = (memo, -1)
                    out.append((name, bucket))
        return out

    def may_take(self, queue: str, usage: Usage, *, back: bool = False) -> bool:
        """Might a gang of this queue that would take `usage` lawfully evict somebody (or take `back` what is only
        claimed), on the book as it is now (in a cycle). Asked where `Lack` is known: one flavor for each resource, and
        the promises."""
        node = self._ledger.tree.queue(queue)
        wanted = tuple(sorted(usage.items()))
        return node is not None and self._shortages.may_take(node, wanted, self._leaving_in, back=back)

    def leaves(self, key: Key) -> None:
        """A gang that holds quota is on its way out."""
        charge, gang = self._ledger.charges[key], self.workloads[key]
        node = self._ledger.tree.queue(charge.queue)
        if node is not None:
            known = self._leaving_in.get(node.root, Leaving())
            certain = known.certain and gang.evicted != "NodeFailures"
            held = dict(known.held)
            total = dict(held.get(node, ()))
            for fr, amount in charge.usage:
                total[fr] = total.get(fr, 0) + amount
            held[node] = tuple(total.items())
            self._leaving_in[node.root] = Leaving(tuple(held.items()), certain)

    def stale(self) -> set[Key]:
        """Of whom the numbers in `explain` are those of an earlier trial."""
        return {
            order.key_of(place)
            for name, bucket in self._stale
            if (line := self.lines.get(name)) is not None
            for place in line.buckets.get(bucket, ())
        }

    def ready(self) -> list[str]:
        """ClusterQueues in which somebody is worth a trial, by name."""
        out = []
        for name in sorted(self._ready):
            line = self.lines.get(name)
            if line is None or not line.waiting():
                self._ready.discard(name)
            elif self.queues[name].strategy is not Strategy.STRICT_FIFO or not line.held_up(self.used(name)):
                out.append(name)
        return out

    def told(self, bucket: int, why: Why) -> bool:
        """Was this reason told of the bucket already; it is now."""
        said = (why.reason, why.detail)
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
            why = Why(Reason.SUSPENDED, Detail.BACKOFF, until=self._sleeping[key])
        if why is not None:
            queue = self.queues.get(self.queue_of(gang)) if why.detail is Detail.NAMESPACE_NOT_SELECTED else None
            asked = () if queue is None else self.demand(gang, queue).told
            return Verdict(key, Standing.PARKED, why, asked)
        name, bucket, place = self._entry[key]
        line = self.lines[name]
        if self.queues[name].strategy is Strategy.STRICT_FIFO:
            head, _ = line.first(self.used(name))
            if head != place:
                first = "/".join(order.key_of(head))
                return Verdict(key, Standing.ACTIVE, Why(Reason.WAITING_FOR_QUOTA, Detail.BEHIND_HEAD, subject=first))
        memo = line.parked.get(bucket)
        if memo is not None:
            return replace(memo.verdict, key=key)
        return Verdict(key, Standing.ACTIVE, Why(Reason.PENDING_EVALUATION, Detail.NEXT_CYCLE))

    def untold(self, most: int) -> list[Verdict]:
        """Verdicts of gangs that stand aside, joined a parked bucket or stand behind a strict head, and that no cycle
        has told of since."""
        out: list[Verdict] = []
        for key in list(islice(self._untold, most)):
            del self._untold[key]
            verdict = self.explain(key)
            if verdict is not None and verdict.why.reason is not Reason.PENDING_EVALUATION:
                out.append(verdict)
        return out

    def park(self, queue: str, bucket: int, memo: Memo) -> None:
        """A cycle found out that this bucket is not worth a trial."""
        line = self.lines.get(queue)
        if line is None or bucket not in line.buckets:
            return
        line.park(bucket, memo)
        self._stale.discard((queue, bucket))
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._parked_under.setdefault(order.label(node.root), set()).add(queue)
        if memo.on_nodes:
            first = self.workloads[order.key_of(line.buckets[bucket][0])]
            # Who leaves a node may open its whole rack to a JobSet: then the room on that one node says nothing.
            apart = bool(self._ledger.nodes.exclusive_keys)
            kept = self._ledger.nodes.kept_away_by
            shapes = [pod_set.shape for pod_set in first.pod_sets]
            plain = all(map(self._by_node, flavors_of(self.queues[queue])))
            self._parked_on_nodes[queue, bucket] = tuple(
                dict.fromkeys(
                    () if not plain or s.exclusive or (s.of_jobset and apart) or kept(s) else s.requests for s in shapes
                )
            )
        if memo.until is not None:
            alarms = self._memo_alarms
            heapq.heappush(alarms, (memo.until, queue, bucket))
            if len(alarms) > 2 * len(self._buckets):
                alarms[:] = sorted({one for one in alarms if self._wakes(*one)})
        self._plan_memos.append((queue, bucket))

    def _by_node(self, name: str) -> bool:
        """Do the amounts of a pod decide whether a node of this flavor can help it: not where nodes are made when they
        are asked for, nor where domains are wider than a node."""
        flavor = self.flavors.get(name)
        topology = None if flavor is None else self.topologies.get(flavor.topology)
        return flavor is not None and not flavor.elastic and (topology is None or topology.levels[-1] == HOSTNAME_LABEL)

    def set_aside(self, key: Key, verdict: Verdict) -> None:
        """Park the bucket of one gang with this verdict, if it stands in line."""
        entry = self._entry.get(key)
        if entry is not None:
            self.park(entry[0], entry[1], Memo(verdict, on_nodes=True))

    def wake(self, queue: str, key: Key | None = None) -> int:
        """Look again at who is parked in a queue (or at one of them); how many gangs come back into the line."""
        line = self.lines.get(queue)
        if line is None:
            return 0
        woken = 0
        entry = None if key is None else self._entry.get(key)
        for bucket in list(line.parked):
            if key is not None and (entry is None or entry[1] != bucket):
                continue
            woken += len(line.buckets[bucket])
            self._unpark(queue, bucket)
        return woken

    def scanned(
        self, key: Key, cursor: tuple[tuple[str, str, int], ...], generation: int, book: tuple[int, int]
    ) -> bool:
        """A cycle looked at a gang in line, on a book of these versions, and the next look at it goes on behind these
        flavors; empty: the scan is over. True where it was begun on another book: what was said of the flavors before
        may be so no more."""
        gang = self.workloads[key]
        *_, began = self._scans.pop(key, ("", (), 0, book))
        if cursor:
            self._scans[key] = (gang.uid, cursor, generation, began)
        if gang.cursor != cursor:
            self.workloads[key] = replace(gang, cursor=cursor, cursor_generation=generation)
        return began != book

    def forget(self) -> None:
        """Drop all memos: the next decision looks at everybody again."""
        self._everything_changed = True

    def generation(self, queue: str) -> int:
        """Grows when a scan of flavors that stopped half-way is worth starting anew: the queue was changed, or
        something in its tree was given back."""
        own = self.queues[queue].generation if queue in self.queues else 0
        node = self._ledger.tree.queue(queue)
        return own + (0 if node is None else self._given_back[order.label(node.root)])

    def planned(
        self, decisions: Sequence[Decision], charged: Mapping[Key, tuple[Workload, Admission, Charge]] | None = None
    ) -> None:
        """What the last cycle wants; until each of it is assumed, what it found out is provisional. `charged`: what its
        admissions would be charged with."""
        self._will_charge = charged or {}
        self._open_plan = {decision.key: decision for decision in decisions}

    def next_alarm(self) -> int | None:
        """When time alone may change something."""
        while self._alarms and not self._rings(*self._alarms[0]):
            heapq.heappop(self._alarms)
        while self._memo_alarms and not self._wakes(*self._memo_alarms[0]):
            heapq.heappop(self._memo_alarms)
        times = [alarms[0][0] for alarms in (self._alarms, self._memo_alarms) if alarms]
        return min(times, default=None)

    def _ring_at(self, at: int, kind: str, key: Key) -> None:
        alarms = self._alarms
        heapq.heappush(alarms, (at, kind, key))
        if len(alarms) > 2 * (len(self._sleeping) + len(self._claims)):
            alarms[:] = sorted({one for one in alarms if self._rings(*one)})

    def _rings(self, at: int, kind: str, key: Key) -> bool:
        """Does this alarm still stand for something."""
        return self._sleeping.get(key) == at if kind == "backoff" else self._claims.get(key, (None,))[0] == at

    def _wakes(self, at: int, queue: str, bucket: int) -> bool:
        line = self.lines.get(queue)
        memo = None if line is None else line.parked.get(bucket)
        return memo is not None and memo.until == at

    # ------------------------------------------------------------ checking

    def drift(self, part: int = 0, parts: int = 1) -> list[str]:
        """Differences between the book and the objects that it was made of; empty when all is well. `part` of `parts`:
        of the nodes only these, and
        the rest with the first of them."""
        if part % parts:
            return self.ledger.nodes.drift(part, parts)
        out = self.ledger.drift(part, parts)
        ledger = self._ledger
        for key, gang in sorted(self.workloads.items()):
            held = ledger.charges.get(key)
            if gang.admission is None:
                if held is not None:
                    out.append(f"{key} is charged without an admission")
            elif held is None or held != charge_of(gang):
                out.append(f"{key} is charged with {held}, should be {charge_of(gang)}")
        out.extend(f"{key} is charged and unknown" for key in sorted(ledger.charges) if key not in self.workloads)
        out.extend(
            f"{key} claims and is unknown" for key in sorted({*ledger.claims, *ledger.aside} - set(self._claims))
        )
        out.extend(
            f"{key} claims nothing in the book" for key in sorted(set(self._claims) - {*ledger.claims, *ledger.aside})
        )
        for key, (name, bucket, place) in sorted(self._entry.items()):
            line = self.lines.get(name)
            if line is None or place not in line.buckets.get(bucket, ()):
                out.append(f"{key} is lost from the line of {name}")
        return out


def requests_of(admission: Admission) -> dict[str, int]:
    out: dict[str, int] = {}
    for (_, resource), amount in usage_of(admission):
        out[resource] = out.get(resource, 0) + amount
    return out


def flavors_of(queue: ClusterQueue) -> list[str]:
    """In the order in which it names them."""
    return [flavor.name for group in queue.groups for flavor in group.flavors]


def _pods_on(room: Mapping[str, int], amounts: Amounts) -> int:
    """How many pods that ask for so much a node with this room holds; 1 of those that ask for nothing."""
    return min((max(0, room.get(name, 0)) // amount for name, amount in amounts if amount > 0), default=1)


def _alike(one: Workload, other: Workload) -> bool:
    """Is the same charged for the same admission of both."""
    return one.uid == other.uid and one.pod_sets is other.pod_sets and one.reclaimable == other.reclaimable


def _delayed(gang: Workload) -> bool:
    """Its nodes may have been left to a second step, and its checks are ready for that."""
    return (
        not gang.admitted
        and bool(gang.checks)
        and all(check.state is CheckState.READY for check in gang.checks)
        and gang.admission is not None
        and any(pod_set.topology is None for pod_set in gang.admission.pod_sets)
    )


def _order(spec: ClusterQueue | Cohort) -> tuple[FlavorResource, ...]:
    return tuple(
        (flavor.name, resource) for group in spec.groups for flavor in group.flavors for resource, _ in flavor.quotas
    )


Counted = TypeVar("Counted")


def _add(table: Counter[Counted], name: Counted, number: int) -> None:
    """Of a table that has no zeros."""
    table[name] += number
    if not table[name]:
        del table[name]


def _overlay(value: Workload, decision: Decision) -> Workload:
    """The gang as it will be once the write of the decision is seen."""
    match decision:
        case Admit():
            return replace(
                value,
                admission=decision.admission,
                admitted=decision.admitted,
                reserved_at=NEW,
                admitted_at=NEW if decision.admitted else 0,
                evicted="",
                evicted_for="",
                claims=None,
                cursor=(),
                requeue_at=0,
            )
        case Evict():
            return replace(value, evicted="Preempted", evicted_for=decision.preemptor_uid, evicted_at=NEW)
        case Claim():
            return replace(value, claims=decision.record)
        case Replace():
            return replace(value, admission=decision.admission, lost_nodes=())
        case _:
            return replace(value, admission=None, admitted=False)


def _shown(decision: Decision, value: Workload) -> bool:
    """Does the object say what was decided (or that it is past that)."""
    match decision:
        case Admit():
            return value.admission is not None
        case Evict():
            return value.admission is None or bool(value.evicted)
        case Claim():
            return (value.admission is not None and value.evicted != "NodeFailures") or (
                value.claims is not None and value.claims.until == decision.record.until
            )
        case Replace():
            return value.admission is None or value.admission == decision.admission or bool(value.evicted)
        case _:
            return value.admission is None
