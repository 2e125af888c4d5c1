"""What cycles found out about gangs that cannot go, and what makes them worth another trial.

A bucket that was refused is *parked* in its line with a `Memo`: what quota or nodes it lacked, and when time alone may
change that. It is woken by whatever the refusal depends on:

    a change of the configuration                          all buckets are woken
    the time in the memo, the end of a claim in its way    the bucket is woken
    a change in its quota tree, or room on nodes that      raises a *doubt*: a look at the book, by the numbers of the
    could hold one of its pods                             last trial (`shortage`), says if it is refused again for sure

A bucket that is refused again for sure is *passed by*: it stays parked, and the numbers in its memo are *stale*. Others
come back into the line. One that came back on a doubt is looked at in that way once more when its turn comes, because
by then another gang may have taken what it lacked. And those that were passed by in a cycle are looked at again when
that cycle evicts a gang or ends a claim (`no_longer_short`).

By Kueue's rules parked buckets come *late* where a gang waits for others that were evicted for it: one cycle after the
change that they may depend on.

So no memo hides a gang that a trial would let go. Memos that were made beside a plan that was not carried out in full
are dropped.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from admission.engine import order
from admission.engine.booking import Amounts
from admission.engine.ledger import Charge, Ledger
from admission.engine.line import Line, Memo, Used
from admission.engine.model import (
    Admission,
    ClusterQueue,
    Detail,
    Flavor,
    Key,
    PodUsage,
    Rules,
    Topology,
    Usage,
    Workload,
)
from admission.engine.order import QueueKey
from admission.engine.quota import QuotaNode
from admission.engine.shortage import Asked, Lack, Leaving, Shortages
from admission.names import HOSTNAME_LABEL

Bucket = tuple[str, int]
"""(ClusterQueue, bucket in its line)."""

_FEW = 64
"""So few alarms are not worth tidying."""


class Facts(Protocol):
    """What `Memos` reads of the State."""

    rules: Rules
    lines: dict[str, Line]
    queues: dict[str, ClusterQueue]
    flavors: dict[str, Flavor]
    topologies: dict[str, Topology]
    workloads: dict[Key, Workload]
    preempting: dict[str, Counter[int]]

    def used(self, queue: str) -> Used: ...
    def by_uid(self, uid: str) -> Workload | None: ...
    def queue_of(self, gang: Workload) -> str: ...
    def is_leaving(self, uid: str) -> bool: ...


class Memos:
    """See the module. Changes are told as they come, and count from the next `advance` on."""

    def __init__(self, facts: Facts, ledger: Ledger, shortages: Shortages) -> None:
        self._facts = facts
        self._ledger = ledger
        self._shortages = shortages
        self._now = 0
        self._ready: set[str] = set()
        """Queues with buckets that are not parked, and some that have none any more."""
        self._under: dict[str, set[str]] = {}
        """Label of a root -> queues below with parked buckets."""
        self._on_nodes: dict[Bucket, tuple[Amounts, ...]] = {}
        """Parked buckets that wait for nodes -> for each pod set, what one pod asks for; empty where any change on
        nodes may help."""
        self._told_of: dict[str, set[Bucket]] = {}
        """Owner of a claim ("namespace/name") -> buckets that were told that it is in their way."""
        self._alarms: list[tuple[int, str, int]] = []
        self._most_alarms = _FEW
        """With more alarms than these, those are dropped that stand for nothing any more."""
        self._provisional: list[Bucket] = []
        """Buckets that were parked in the last cycle."""
        self._stale: set[Bucket] = set()
        """Buckets that were passed by since they were tried."""
        self._keeping: dict[str, dict[Bucket, Charge]] = {}
        """By Kueue's rules: label of a root -> parked first gangs of strict queues that keep room from others in every
        cycle, and what room."""
        self._late: set[str] = set()
        """Labels of roots that changed, and whose parked buckets come late."""
        self._late_on_nodes: set[Bucket] = set()
        """Buckets that wait for nodes, and come late."""

        # What changed since the last cycle.
        self._ended_claims: set[str] = set()
        self._changed_roots: set[str] = set()
        self._reordered: set[str] = set()
        """Queues in which another may be first by what LocalQueues have used."""
        self._everything_changed = False
        self._room_changed = False
        self._room_on: set[str] = set()
        """Nodes on which room changed (all of them, when `_room_changed`)."""
        self._bare_on: dict[str, dict[str, int]] = {}
        """Node on which pods of no gang came or went -> what it had free for gangs before."""

        self._doubted: dict[Bucket, tuple[Memo, int]] = {}
        """Buckets that came back on a doubt and had no turn yet -> (the memo they had; the version of their tree at
        which a look at the book did not confirm it, -1: unknown)."""

        # Of this cycle alone.
        self._leaving_in: dict[QuotaNode, Leaving] = {}
        """Root -> what gangs that are leaving hold in its tree."""
        self._passed: dict[str, dict[Bucket, None]] = {}
        """Label of a root -> buckets that were passed by in this cycle for lack of quota ..."""
        self._passed_on_nodes: dict[str, dict[Bucket, None]] = {}
        """... or of nodes alone."""

    # -- what changed

    def forget(self) -> None:
        """Everything may have changed: the next decision looks at every gang again."""
        self._everything_changed = True

    def tree_changed(self, queue: str, freed: bool = True) -> None:
        """Something changed in the tree of this queue. `freed`: something became free. (What was taken may make an
        eviction lawful that was not before, so that by the promises it counts, too.)"""
        if not freed and not self._facts.rules.promises:
            return
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._changed_roots.add(node.root.label)

    def order_changes(self, queue: str) -> None:
        """Another weight or usage of one of its LocalQueues was noted."""
        self._reordered.add(queue)

    def node_changed(self, *, new: bool) -> None:
        """A node came (`new`), went, or is another."""
        self._room_changed = True
        # Gangs that wait for quota were told so because empty nodes would hold them, which fewer nodes may not.
        self._everything_changed = self._everything_changed or not new

    def room_given(self, admission: Admission | None) -> None:
        """The nodes of this admission became free."""
        for pod_set in () if admission is None else admission.pod_sets:
            if pod_set.topology is None:
                continue
            if pod_set.topology.levels[-1:] != (HOSTNAME_LABEL,):
                self._room_changed = True
                return
            resolve = self._ledger.nodes.resolve
            self._room_on.update(resolve(domain.values[-1]) for domain in pod_set.topology.domains)

    def claim_ended(self, key: Key) -> None:
        """The claim of this gang is over: buckets that were told that it is in their way are looked at again, even
        where the gang has its room now, so that they are told what is in their way instead."""
        self._ended_claims.add("/".join(key))

    def pod_changes(self, key: Key, value: PodUsage | None) -> None:
        """A pod comes, goes or takes another amount. Call it before the pod is booked. (A pod that moved or shrank may
        have given room back.)"""
        nodes = self._ledger.nodes
        for pod in (nodes.pod(key), value):
            if pod is not None and pod.node:
                self._room_on.add(pod.node)
                if not pod.workload_uid and pod.node not in self._bare_on:
                    self._bare_on[pod.node] = nodes.bare(pod.node)

    # -- parking and waking

    def lined_up(self, queue: str, bucket: int) -> bool:
        """A gang came into line in this bucket. True if the bucket is parked, and the gang with it."""
        if bucket in self._facts.lines[queue].parked:
            return True
        self._ready.add(queue)
        return False

    def gone(self, queue: str, bucket: int) -> None:
        """The last gang left this bucket."""
        self._on_nodes.pop((queue, bucket), None)
        self._doubted.pop((queue, bucket), None)
        self._stale.discard((queue, bucket))
        if queue not in self._facts.lines:
            self._ready.discard(queue)

    def ready(self) -> list[str]:
        """Names of the ClusterQueues with a gang that is worth a trial, sorted."""
        out = []
        for name in sorted(self._ready):
            line = self._facts.lines.get(name)
            if line is None or not line.waiting():
                self._ready.discard(name)
                continue
            strict = self._strict(name)
            if not strict or not line.held_up(self._facts.used(name)):
                out.append(name)
        return out

    def park(self, queue: str, bucket: int, memo: Memo) -> None:
        """A cycle found out that this bucket is not worth a trial."""
        line = self._facts.lines.get(queue)
        if line is None or bucket not in line.buckets:
            return
        line.park(bucket, memo)
        self._doubted.pop((queue, bucket), None)
        self._stale.discard((queue, bucket))
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._under.setdefault(node.root.label, set()).add(queue)
            kept = self._keeping.get(node.root.label, ())
            for other in [one for name, one in kept if name == queue and one != bucket]:
                self._keeps(node.root.label, queue, other, None)  # another is the head now
            self._keeps(node.root.label, queue, bucket, memo.keeps)
        if memo.on_nodes:
            first = self._facts.workloads[order.key_of(line.buckets[bucket][0])]
            # Exclusive placement: a pod that leaves a node may open the whole rack to a JobSet, so that room on this
            # node alone says nothing.
            apart = bool(self._ledger.nodes.exclusive_keys)
            # Nor does it where pods repel those of this gang: they may be the ones that leave.
            repelled = self._ledger.nodes.repelled
            shapes = [pod_set.shape for pod_set in first.pod_sets]
            plain = all(map(self._by_node, self._facts.queues[queue].flavor_names))
            self._on_nodes[queue, bucket] = tuple(
                dict.fromkeys(
                    () if not plain or s.exclusive or (s.of_jobset and apart) or repelled(s) else s.requests
                    for s in shapes
                )
            )
        if whose := _in_the_way(memo):
            self._told_of.setdefault(whose, set()).add((queue, bucket))
        if memo.until is not None:
            alarms = self._alarms
            heapq.heappush(alarms, (memo.until, queue, bucket))
            if len(alarms) > self._most_alarms:
                alarms[:] = sorted({one for one in alarms if self._rings(*one)})
                self._most_alarms = max(_FEW, 2 * len(alarms))
        self._provisional.append((queue, bucket))

    def _by_node(self, name: str) -> bool:
        """Does the room on single nodes of this flavor decide? Not of an elastic one, nor where domains are wider than
        a node."""
        flavor = self._facts.flavors.get(name)
        topology = None if flavor is None else self._facts.topologies.get(flavor.topology)
        return flavor is not None and not flavor.elastic and (topology is None or topology.levels[-1] == HOSTNAME_LABEL)

    def wake(self, queue: str, bucket: int) -> None:
        """Unpark a bucket: it is tried again, without a look at the book before."""
        line = self._facts.lines.get(queue)
        if line is not None and line.unpark(bucket):
            self._ready.add(queue)
            self._stale.discard((queue, bucket))
        self._on_nodes.pop((queue, bucket), None)
        self._doubted.pop((queue, bucket), None)

    def left(self, queue: str, bucket: int, key: Key) -> None:
        """A gang left this bucket, and others are still in it. If the memo is of its trial the bucket is woken: the
        others are like it in all but age."""
        memo = self._facts.lines[queue].parked.get(bucket) or self._doubted.get((queue, bucket), (None,))[0]
        if memo is not None and memo.verdict.key == key:
            self.wake(queue, bucket)

    def _keeps(self, label: str, queue: str, bucket: int, room: Charge | None) -> None:
        """A bucket keeps this room from others from now on (None: none), and not what it kept before."""
        kept = self._keeping.get(label, {}).pop((queue, bucket), None)
        if room is not None:
            self._keeping.setdefault(label, {})[queue, bucket] = room
        if kept is not None and kept != room:
            self.tree_changed(queue)
            self.room_given(kept.admission)

    def roots_of_keepers(self) -> list[str]:
        """Labels of roots under which buckets keep room from others in every cycle."""
        return sorted(label for label, held in self._keeping.items() if held)

    def keeping(self, label: str) -> list[tuple[Bucket, Memo]]:
        """Parked buckets under this root that keep room from others in every cycle, with their memos."""
        parked = ((at, self._facts.lines[at[0]].parked.get(at[1])) for at in sorted(self._keeping.get(label, ())))
        return [(at, memo) for at, memo in parked if memo is not None]

    def keepers_awake(self, label: str) -> list[Bucket]:
        """Buckets under this root that keep nodes from gangs of all trees in every cycle, and are not parked now."""
        lines, on_nodes = self._facts.lines, [at for at, room in self._keeping.get(label, {}).items() if room.admission]
        return sorted((name, bucket) for name, bucket in on_nodes if bucket not in lines[name].parked)

    def keeper(self, queue: str) -> int | None:
        """The bucket of this queue that keeps room from others in every cycle, if one does."""
        node = self._ledger.tree.queue(queue)
        kept = () if node is None else self._keeping.get(node.root.label, ())
        return min((bucket for name, bucket in kept if name == queue), default=None)

    def first_changes(self, queue: str, bucket: int) -> None:
        """The first gang of a strict queue leaves, or another comes before it: room that it kept is free for others."""
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._keeps(node.root.label, queue, bucket, None)

    def wake_in_doubt(self, queue: str, bucket: int) -> None:
        """Have a parked bucket take its turn after all; when that comes, a look at the book may say that it still lacks
        what it lacked (`pass_again`)."""
        memo = self._facts.lines[queue].parked.get(bucket)
        self.wake(queue, bucket)
        if memo is not None and memo.lack is not None:
            self._doubted[queue, bucket] = (memo, -1)

    def is_stale(self, queue: str, bucket: int) -> bool:
        """Are the numbers in its memo those of an earlier trial."""
        return (queue, bucket) in self._stale

    def stale(self) -> set[Key]:
        """All gangs of which that is so."""
        return {
            order.key_of(place)
            for name, bucket in self._stale
            if (line := self._facts.lines.get(name)) is not None
            for place in line.buckets.get(bucket, ())
        }

    # -- time

    def _rings(self, at: int, queue: str, bucket: int) -> bool:
        """Does this alarm still stand for something."""
        line = self._facts.lines.get(queue)
        memo = None if line is None else line.parked.get(bucket)
        return memo is not None and memo.until == at

    def next_alarm(self) -> int | None:
        """When time alone wakes a bucket (ms); None: never."""
        while self._alarms and not self._rings(*self._alarms[0]):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def advance(self, now: int, leaving: Iterable[tuple[Charge, Workload]], *, came_about: bool) -> bool:
        """Wake the buckets that time, or what changed since the last cycle, may help. `leaving`: gangs that were
        evicted and hold their room still. `came_about`: the last plan was carried out in full. True if all buckets were
        woken."""
        self._now = now
        self._wake_by_time()
        if not came_about:
            for name, bucket in self._provisional:
                self.wake(name, bucket)
            self._doubted.clear()
        self._provisional = []
        self._passed.clear()
        self._passed_on_nodes.clear()
        self._go_on_doubting()
        self._leaving_in = {}
        for charge, gang in leaving:
            self.leaves(charge, gang)
        late, self._late = self._late, set()
        if not self._facts.rules.promises and (self._changed_roots or self._room_on or self._room_changed):
            self._late = self._contested() - late
        for name, bucket in sorted(self._late_on_nodes):
            self.wake(name, bucket)
        self._late_on_nodes.clear()
        self._wake_by_claims()
        self._wake_by_order()
        self._doubt_nodes()
        everything = self._everything_changed
        if everything:
            self._wake_everybody()
        else:
            self._late &= self._changed_roots
            self._doubt_trees(self._changed_roots | late)
        self._everything_changed = self._room_changed = False
        self._room_on.clear()
        self._bare_on.clear()
        self._changed_roots.clear()
        return everything

    def _go_on_doubting(self) -> None:
        """A bucket that came back on a doubt, and had no turn before the last cycle ended, is still in doubt in this
        one."""
        self._doubted = {
            at: (memo, -1)
            for at, (memo, _) in self._doubted.items()
            if (memo.kept_from is not None or (memo.lack is not None and memo.lack.shorts and not memo.on_nodes))
            and (memo.until is None or memo.until > self._now)
        }

    def _wake_by_time(self) -> None:
        while self._alarms and self._alarms[0][0] <= self._now:
            _, name, bucket = heapq.heappop(self._alarms)
            line = self._facts.lines.get(name)
            memo = None if line is None else line.parked.get(bucket)
            if memo is not None and memo.until is not None and memo.until <= self._now:
                self.wake(name, bucket)

    def _wake_by_claims(self) -> None:
        for subject in sorted(self._ended_claims):
            for name, bucket in sorted(self._told_of.pop(subject, ())):
                line = self._facts.lines.get(name)
                memo = None if line is None else line.parked.get(bucket)
                if memo is not None and _in_the_way(memo) == subject:
                    self.wake(name, bucket)
        self._ended_claims.clear()

    def _wake_by_order(self) -> None:
        """More may be due to who is the first of its queue now."""
        names, self._reordered = self._reordered & self._facts.lines.keys() & self._facts.queues.keys(), set()
        for name in sorted(names) if self._facts.rules.promises else ():
            first = None if self._facts.used(name) is None else self._first(name)
            memo = None if first is None else self._facts.lines[name].parked.get(first)
            if first is not None and memo is not None and (memo.lack is None or memo.lack.behind):
                self.wake(name, first)

    def _wake_everybody(self) -> None:
        self._keeping.clear()
        self._late.clear()
        self._late_on_nodes.clear()
        self._told_of.clear()
        self._under.clear()
        self._doubted.clear()
        for name, line in self._facts.lines.items():
            for bucket in list(line.parked):
                self.wake(name, bucket)

    @property
    def late(self) -> bool:
        """Is there a parked bucket that is to be looked at in the next cycle."""
        return bool(self._late or self._late_on_nodes or self._changed_roots or self._room_on or self._room_changed)

    def _strict(self, name: str) -> bool:
        queue = self._facts.queues.get(name)
        return queue is not None and queue.strict

    def _first(self, name: str) -> int | None:
        """The bucket of the first gang of a queue that may go one day; None if there is none."""
        first = self._facts.lines[name].first_but((), self._facts.used(name))
        return None if first is None else first[1]

    def _contested(self) -> set[str]:
        """Labels of roots under which a gang waits for others that were evicted for it. By Kueue's rules that gang
        comes first, as does the first of a strict queue, which Kueue never parks; parked ones come back a second after
        a change."""
        out = set()
        for uid in self._facts.preempting:
            gang = self._facts.by_uid(uid)
            if gang is not None and gang.admission is None and not gang.finished:
                node = self._ledger.tree.queue(self._facts.queue_of(gang))
                if node is not None:
                    out.add(node.root.label)
        return out

    def leaves(self, charge: Charge, gang: Workload) -> None:
        """A gang that holds quota is leaving: what it holds is about to be free."""
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

    # -- doubt

    def _could_use_room(self) -> list[tuple[str, int, bool]]:
        """(queue, bucket, is another reason due) of buckets that wait for nodes, and of which a pod would fit a node
        whose room changed, perhaps once gangs of the same tree are evicted from it. Another reason is due where empty
        nodes hold another number of its pods than before."""
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
        for (name, bucket), pods in self._on_nodes.items():
            if name not in roots:
                node = tree.queue(name)
                roots[name] = None if node is None else node.root
            root = roots[name]
            another = bool(bare) and any(other_sum(amounts) for amounts in pods)
            if every or another or any(there_is(root, amounts) for amounts in pods):
                out.append((name, bucket, another))
        return out

    def _room_there(self, name: str) -> tuple[dict[str, int], dict[QuotaNode | None, dict[str, int]]]:
        """(what is free on a node, or held there by gangs that leave or have claims; what the other gangs hold there,
        by the root of their tree)."""
        nodes, tree = self._ledger.nodes, self._ledger.tree
        free = nodes.free(name)
        held: dict[QuotaNode | None, dict[str, int]] = {}
        for uid, amounts in nodes.occupants(name).items():
            if not uid:
                continue
            gang = self._facts.by_uid(uid)
            claims = gang is not None and (gang.key in self._ledger.claims or gang.key in self._ledger.aside)
            if gang is None or gang.admission is None or gang.evicted or claims:
                into = free
            else:
                node = tree.queue(gang.admission.cluster_queue)
                into = held.setdefault(None if node is None else node.root, {})
            for resource, amount in amounts.items():
                into[resource] = into.get(resource, 0) + amount
        return free, held

    def _doubt_trees(self, labels: Collection[str]) -> None:
        """Quota changed under these roots: wake the buckets parked there for which it may be enough now."""
        for label in sorted(labels):
            names = sorted(self._under.pop(label, ()))
            if label in self._late:
                self._under[label] = {name for name in names if not self._strict(name)}
                names = [name for name in names if self._strict(name)]
            self._doubt(label, names)

    def _doubt_nodes(self) -> None:
        """Room changed on nodes: wake the buckets that wait for nodes and for which it may be enough now."""
        claimed = any(held.charge.admission is not None for held in self._ledger.claims.values())
        if self._bare_on:
            self._stale.update(self._on_nodes)
        firsts: dict[str, int | None] = {}
        for name, bucket, told in self._could_use_room():
            memo = self._facts.lines[name].parked.get(bucket)
            node = self._ledger.tree.queue(name)
            if self._late and node is not None and node.root.label in self._late and not self._strict(name):
                self._late_on_nodes.add((name, bucket))
                continue
            lack = None if memo is None else memo.lack
            if memo is not None and lack is not None and lack.placing and node is not None and not told:
                # Not the first of a queue: it may be due for room of its own, and is told whose claim is in its way.
                first = firsts[name] if name in firsts else firsts.setdefault(name, self._first(name))
                plain = not claimed and lack.blocked_by is None and (bucket != first or lack.first)
                still = self._still(node.root, [(name, bucket, memo)])[0] if plain else None
                if still is not None:
                    self._facts.lines[name].park(bucket, still)
                    self._stale.add((name, bucket))
                    self._passed_by(node.root.label, name, bucket, still)
                    continue
            self.wake(name, bucket)
            if memo is not None and lack is not None and (lack.shorts or lack.placing) and not told:
                self._doubted[name, bucket] = (memo, -1)

    def _doubt(self, label: str, names: list[str]) -> None:
        """A tree changed: of these queues in it, wake the parked buckets that may find what they lacked, and pass the
        others by."""
        root: QuotaNode | None = None
        asked: list[tuple[str, int, Memo]] = []
        for name in names:
            line = self._facts.lines.get(name)
            node = self._ledger.tree.queue(name)
            if line is None or node is None:
                continue
            root = node.root
            first = self._first(name)
            for bucket, memo in list(line.parked.items()):
                lack = memo.lack
                if lack is None or (bucket == first and lack.behind):
                    self.wake(name, bucket)
                    if memo.kept_from is not None:
                        self._doubted[name, bucket] = (memo, -1)
                else:
                    asked.append((name, bucket, memo))
        if root is None or not asked:
            return
        by_quota: dict[Bucket, None] = {}
        on_nodes: dict[Bucket, None] = {}
        passed: set[str] = set()
        version = self._ledger.version_of(root)
        for (name, bucket, memo), still in zip(asked, self._still(root, asked), strict=True):
            if still is not None:
                if still is not memo:
                    self._facts.lines[name].park(bucket, still)
                (by_quota if self._lacks_quota(still) else on_nodes)[name, bucket] = None
                passed.add(name)
            else:
                self.wake(name, bucket)
                self._doubted[name, bucket] = (memo, version)
        self._passed[label], self._passed_on_nodes[label] = by_quota, on_nodes
        self._stale.update(by_quota, on_nodes)
        self._under.setdefault(label, set()).update(passed)

    @staticmethod
    def _lacks_quota(memo: Memo) -> bool:
        """Does it lack quota, and not nodes alone."""
        return memo.lack is not None and bool(memo.lack.shorts or memo.lack.never)

    def _passed_by(self, label: str, name: str, bucket: int, memo: Memo) -> None:
        passed = self._passed if self._lacks_quota(memo) else self._passed_on_nodes
        passed.setdefault(label, {})[name, bucket] = None

    def _still(self, root: QuotaNode, asked: Sequence[tuple[str, int, Memo]]) -> list[Memo | None]:
        """For each (queue, bucket, memo) of one tree: the memo, as it holds now, if the bucket would be refused again
        for sure; None if only a trial can tell."""
        memos = [memo for _, _, memo in asked]
        wanted = [
            Asked(self._facts.queues[name], memo.lack, memo.until) for name, _, memo in asked if memo.lack is not None
        ]
        answers = self._shortages.still(root, wanted, self._now, self._leaving_in)
        # What it lacked is there now: it may still lack that beside room that is kept for others.
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
        """Are gangs still leaving that were evicted for it, and are the nodes still short that were?"""
        is_leaving = self._facts.is_leaving
        if lack.leave_for_it and not any(map(is_leaving, lack.leave_for_it)):
            return False
        return all(map(is_leaving, lack.victims)) and (
            not lack.placing or self._ledger.no_room(lack.placing, lack.avoid, beside=lack.beside)
        )

    def pass_again(self, name: str, bucket: int, gone: Collection[QueueKey]) -> Memo | None:
        """A bucket that came back in this cycle because what it lacked was there has its turn: if others have taken
        that meanwhile, it is parked as it was. Returns the memo; None if it has to be tried.

        It has to be tried, too, if it is the first of its queue now, apart from gangs that this cycle admitted (their
        places: `gone`), and was not at its last trial."""
        known = self._doubted.get((name, bucket))
        node = self._ledger.tree.queue(name)
        if known is None or node is None:
            return None
        memo, version = known
        if version == self._ledger.version_of(node.root) or memo.lack is None:
            return None
        line = self._facts.lines[name]
        if memo.lack.behind and line.is_first(line.buckets[bucket][0], gone, self._facts.used(name)):
            return None
        still = self._still(node.root, [(name, bucket, memo)])[0]
        if still is None:
            return None
        self.kept_again(name, bucket, still)
        self._passed_by(node.root.label, name, bucket, still)
        return still

    def kept_from(self, name: str, bucket: int) -> Memo | None:
        """The memo of a bucket that came back because its tree changed, if it has a `Memo.kept_from`."""
        memo, _ = self._doubted.get((name, bucket), (None, 0))
        return memo if memo is not None and memo.kept_from is not None else None

    def kept_again(self, name: str, bucket: int, memo: Memo) -> None:
        """A look at the book has confirmed this memo: the bucket is parked with it."""
        self.park(name, bucket, memo)
        self._stale.add((name, bucket))

    def no_longer_short(self, label: str) -> list[Bucket]:
        """A gang of this tree was evicted, or lost its claim: unpark the buckets that were passed by in this cycle and
        may go now; of this tree, and in other trees of those that lack nodes alone."""
        out: list[Bucket] = []
        for held in (self._passed.get(label, {}), *self._passed_on_nodes.values()):
            asked: list[tuple[str, int, Memo]] = []
            root: QuotaNode | None = None
            for name, bucket in held:
                memo = self._facts.lines[name].parked.get(bucket)
                node = self._ledger.tree.queue(name)
                if memo is not None and memo.lack is not None and node is not None:
                    root = node.root
                    asked.append((name, bucket, memo))
            if root is None:
                continue
            for (name, bucket, memo), still in zip(asked, self._still(root, asked), strict=True):
                if still is not None:
                    self._facts.lines[name].park(bucket, still)
                else:
                    del held[name, bucket]
                    self.wake(name, bucket)
                    self._doubted[name, bucket] = (memo, -1)
                    out.append((name, bucket))
        return out

    def may_take(self, queue: str, usage: Usage, *, back: bool = False) -> bool:
        """Might a gang of this queue that asks for `usage` lawfully evict another (or take `back` what others only
        claim), on the book as it is now? Only under the promises, and for gangs with one flavor for each resource."""
        node = self._ledger.tree.queue(queue)
        wanted = tuple(sorted(usage.items()))
        return node is not None and self._shortages.may_take(node, wanted, self._leaving_in, back=back)


def _in_the_way(memo: Memo) -> str:
    """The owner ("namespace/name") whose claim the memo says is in the way; "" if there is none but its own."""
    why = memo.verdict.why
    return why.subject if why.detail is Detail.CLAIMED and "/" in why.subject else ""


def _pods_on(room: Mapping[str, int], amounts: Amounts) -> int:
    """How many pods that ask for so much a node with this room holds; 1 of those that ask for nothing."""
    return min((max(0, room.get(name, 0)) // amount for name, amount in amounts if amount > 0), default=1)
