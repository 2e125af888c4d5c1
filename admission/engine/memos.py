"""What cycles found out of gangs that cannot go, and what makes it worth a look again.

A bucket that was refused is parked in its line with a `Memo`: what it lacked of quota, of nodes, until when. It is
woken by what it may depend on. A change in its quota tree, or room on nodes that could hold one of its pods, raises a
*doubt*: a look at the book alone, by the numbers of its last trial (`shortage`), says whether it would be refused again
for sure. Who would is *passed by*, parked as it was, its numbers being *stale* from then on; who would not comes back
into the line. Any change of the configuration wakes everybody. Whoever comes back on a doubt is looked at once more
when its turn comes, for by then another may have taken what it lacked; and when somebody is evicted, or loses a claim,
those who were passed by in this cycle are looked at once more too. Under Kueue's rules those who were parked come
*late* where somebody waits for whom others were evicted: a cycle after the change that they may depend on.

So a memo hides nobody whom a trial would let go; and what was found out beside a plan that did not come about counts
for nothing.
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
"""Alarms that are not worth tidying."""


class Facts(Protocol):
    """What it reads of the state, as it counts now."""

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
        """Root (its label) -> queues with parked buckets."""
        self._on_nodes: dict[Bucket, tuple[Amounts, ...]] = {}
        """Who waits for nodes -> what one pod of each pod set asks for; nothing of one that any change on nodes may
        help."""
        self._told_of: dict[str, set[Bucket]] = {}
        """Whose claim is in the way -> those who were told so."""
        self._alarms: list[tuple[int, str, int]] = []
        self._most_alarms = _FEW
        """So many, and those are dropped that stand for nothing any more."""
        self._provisional: list[Bucket] = []
        """Who was parked in the last cycle."""
        self._stale: set[Bucket] = set()
        """Who was passed by since it was tried."""
        self._keeping: dict[str, dict[Bucket, Charge]] = {}
        """Root (its label) -> who keeps room from others in every cycle, and what."""
        self._late: set[str] = set()
        """Roots (their labels) that changed, and in which those who were parked come after those who were not."""
        self._late_on_nodes: set[Bucket] = set()
        """The same of those who wait for nodes."""

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
        """Node on which pods of nobody came or went -> what it held without gangs before."""

        self._doubted: dict[Bucket, tuple[Memo, int]] = {}
        """What was known of who came back because it may be so no more, and at which version of its tree it was not;
        of those who had no turn yet."""

        # Of this cycle alone.
        self._leaving_in: dict[QuotaNode, Leaving] = {}
        """Root -> what those hold in its tree who are on their way out."""
        self._passed: dict[str, dict[Bucket, None]] = {}
        """Root (its label) -> who is not tried although the tree changed: they still lack the quota that they lacked
        ..."""
        self._passed_on_nodes: dict[str, dict[Bucket, None]] = {}
        """... or nodes alone."""

    # -- what changed

    def forget(self) -> None:
        """Everything may have: the next decision looks at everybody again."""
        self._everything_changed = True

    def tree_changed(self, queue: str, freed: bool = True) -> None:
        """Something changed in the tree of this queue; `freed`: for the better of somebody who waits, plainly (what was
        taken may make an eviction lawful that was not: where the promises hold, that counts too)."""
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
        # Who waits for quota was told that empty nodes would hold it; fewer of them may not.
        self._everything_changed = self._everything_changed or not new

    def room_given(self, admission: Admission | None) -> None:
        """Somebody leaves these nodes."""
        for pod_set in () if admission is None else admission.pod_sets:
            if pod_set.topology is None:
                continue
            if pod_set.topology.levels[-1:] != (HOSTNAME_LABEL,):
                self._room_changed = True
                return
            resolve = self._ledger.nodes.resolve
            self._room_on.update(resolve(domain.values[-1]) for domain in pod_set.topology.domains)

    def claim_ended(self, key: Key) -> None:
        """Even where the claimer has the room now, and none is free by it: who was told that it is in the way is to be
        told what is."""
        self._ended_claims.add("/".join(key))

    def pod_changes(self, key: Key, value: PodUsage | None) -> None:
        """A pod comes, goes, or takes another amount; told before it is booked. (One that came takes room; one that
        moved or shrank may have given some back.)"""
        nodes = self._ledger.nodes
        for pod in (nodes.pod(key), value):
            if pod is not None and pod.node:
                self._room_on.add(pod.node)
                if not pod.workload_uid and pod.node not in self._bare_on:
                    self._bare_on[pod.node] = nodes.bare(pod.node)

    # -- parking and waking

    def lined_up(self, queue: str, bucket: int) -> bool:
        """A gang of this bucket stands in line now; is it parked with the others of it."""
        if bucket in self._facts.lines[queue].parked:
            return True
        self._ready.add(queue)
        return False

    def gone(self, queue: str, bucket: int) -> None:
        """Nobody is left of the bucket, which is out of its line."""
        self._on_nodes.pop((queue, bucket), None)
        self._doubted.pop((queue, bucket), None)
        self._stale.discard((queue, bucket))
        if queue not in self._facts.lines:
            self._ready.discard(queue)

    def ready(self) -> list[str]:
        """ClusterQueues in which somebody is worth a trial, by name."""
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
            # Who leaves a node may open its whole rack to a JobSet: then the room on that one node says nothing.
            apart = bool(self._ledger.nodes.exclusive_keys)
            # Nor where others keep its pods away, as may come before it is looked at by more than the book.
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
        """Do the amounts of a pod decide whether a node of this flavor can help it: not where nodes are made when they
        are asked for, nor where domains are wider than a node."""
        flavor = self._facts.flavors.get(name)
        topology = None if flavor is None else self._facts.topologies.get(flavor.topology)
        return flavor is not None and not flavor.elastic and (topology is None or topology.levels[-1] == HOSTNAME_LABEL)

    def wake(self, queue: str, bucket: int) -> None:
        """It is worth a trial, whatever is known of it."""
        line = self._facts.lines.get(queue)
        if line is not None and line.unpark(bucket):
            self._ready.add(queue)
            self._stale.discard((queue, bucket))
        self._on_nodes.pop((queue, bucket), None)
        self._doubted.pop((queue, bucket), None)

    def left(self, queue: str, bucket: int, key: Key) -> None:
        """A gang left this bucket, in which others are. What was found out about it says nothing of them: they are
        alike, but not in age."""
        memo = self._facts.lines[queue].parked.get(bucket) or self._doubted.get((queue, bucket), (None,))[0]
        if memo is not None and memo.verdict.key == key:
            self.wake(queue, bucket)

    def _keeps(self, label: str, queue: str, bucket: int, room: Charge | None) -> None:
        """It keeps this from others from now on; what it kept before, they may have."""
        kept = self._keeping.get(label, {}).pop((queue, bucket), None)
        if room is not None:
            self._keeping.setdefault(label, {})[queue, bucket] = room
        if kept is not None and kept != room:
            self.tree_changed(queue)
            self.room_given(kept.admission)

    def roots_of_keepers(self) -> list[str]:
        """Roots (their labels) under which somebody may keep room from others in every cycle."""
        return sorted(label for label, held in self._keeping.items() if held)

    def keeping(self, label: str) -> list[tuple[Bucket, Memo]]:
        """Who is parked under this root and keeps room from others in every cycle."""
        parked = ((at, self._facts.lines[at[0]].parked.get(at[1])) for at in sorted(self._keeping.get(label, ())))
        return [(at, memo) for at, memo in parked if memo is not None]

    def keepers_awake(self, label: str) -> list[Bucket]:
        """Who under this root keeps nodes, of all trees, from others in every cycle, and is worth a trial."""
        lines, on_nodes = self._facts.lines, [at for at, room in self._keeping.get(label, {}).items() if room.admission]
        return sorted((name, bucket) for name, bucket in on_nodes if bucket not in lines[name].parked)

    def keeper(self, queue: str) -> int | None:
        """The bucket of this queue that keeps room from others in every cycle, if one does."""
        node = self._ledger.tree.queue(queue)
        kept = () if node is None else self._keeping.get(node.root.label, ())
        return min((bucket for name, bucket in kept if name == queue), default=None)

    def first_changes(self, queue: str, bucket: int) -> None:
        """The first of a strict queue leaves, or another comes before it: where it kept room, others may have it."""
        node = self._ledger.tree.queue(queue)
        if node is not None:
            self._keeps(node.root.label, queue, bucket, None)

    def wake_in_doubt(self, queue: str, bucket: int) -> None:
        """It has a turn after all, though it may lack what it lacked."""
        memo = self._facts.lines[queue].parked.get(bucket)
        self.wake(queue, bucket)
        if memo is not None and memo.lack is not None:
            self._doubted[queue, bucket] = (memo, -1)

    def is_stale(self, queue: str, bucket: int) -> bool:
        """Are the numbers in its memo those of an earlier trial."""
        return (queue, bucket) in self._stale

    def stale(self) -> set[Key]:
        """Of whom the numbers in the memo are those of an earlier trial."""
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
        """When time alone wakes somebody."""
        while self._alarms and not self._rings(*self._alarms[0]):
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def advance(self, now: int, leaving: Iterable[tuple[Charge, Workload]], *, came_about: bool) -> bool:
        """Wake whom time and what changed since the last cycle may help. `leaving`: who is on its way out;
        `came_about`: all that the last cycle planned did. True when everybody was woken."""
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
        """Who came back in the last cycle, which ended before its turn, is looked at by the book in this one."""
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
        """Is somebody parked who is to be looked at in the next cycle."""
        return bool(self._late or self._late_on_nodes or self._changed_roots or self._room_on or self._room_changed)

    def _strict(self, name: str) -> bool:
        queue = self._facts.queues.get(name)
        return queue is not None and queue.strict

    def _first(self, name: str) -> int | None:
        """The bucket of the first of a queue to whom room may be due."""
        first = self._facts.lines[name].first_but((), self._facts.used(name))
        return None if first is None else first[1]

    def _contested(self) -> set[str]:
        """Roots (their labels) in which somebody waits for whom others were evicted. He is looked at first, and so is
        the head of a strict queue, which Kueue never parks: who is parked there comes back a second after a change."""
        out = set()
        for uid in self._facts.preempting:
            gang = self._facts.by_uid(uid)
            if gang is not None and gang.admission is None and not gang.finished:
                node = self._ledger.tree.queue(self._facts.queue_of(gang))
                if node is not None:
                    out.add(node.root.label)
        return out

    def leaves(self, charge: Charge, gang: Workload) -> None:
        """A gang that holds quota is on its way out."""
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
        """What is free on a node, with what those hold there who are on their way out; and what the gangs of each tree
        hold."""
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
        """Quota changed under these roots: of those parked there, they come back who may have it now."""
        for label in sorted(labels):
            names = sorted(self._under.pop(label, ()))
            if label in self._late:
                self._under[label] = {name for name in names if not self._strict(name)}
                names = [name for name in names if self._strict(name)]
            self._doubt(label, names)

    def _doubt_nodes(self) -> None:
        """Room changed on nodes: of those who wait for it, they come back whose pods might all find it now."""
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
                # Whose claim is in the way is told to the first of a queue, and who is first may be due for one.
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
        """A tree changed: of its queues that have parked buckets, those come back who may have got what they lack."""
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
        """Not nodes alone."""
        return memo.lack is not None and bool(memo.lack.shorts or memo.lack.never)

    def _passed_by(self, label: str, name: str, bucket: int, memo: Memo) -> None:
        passed = self._passed if self._lacks_quota(memo) else self._passed_on_nodes
        passed.setdefault(label, {})[name, bucket] = None

    def _still(self, root: QuotaNode, asked: Sequence[tuple[str, int, Memo]]) -> list[Memo | None]:
        """Of each that was refused in one tree, what is known of it if it would be refused again; None if a trial has
        to tell."""
        memos = [memo for _, _, memo in asked]
        wanted = [
            Asked(self._facts.queues[name], memo.lack, memo.until) for name, _, memo in asked if memo.lack is not None
        ]
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
        is_leaving = self._facts.is_leaving
        if lack.leave_for_it and not any(map(is_leaving, lack.leave_for_it)):
            return False
        return all(map(is_leaving, lack.victims)) and (
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
        """What is known of one that had a turn because its tree changed: see `Memo.kept_from`."""
        memo, _ = self._doubted.get((name, bucket), (None, 0))
        return memo if memo is not None and memo.kept_from is not None else None

    def kept_again(self, name: str, bucket: int, memo: Memo) -> None:
        """It is still so: parked as it was."""
        self.park(name, bucket, memo)
        self._stale.add((name, bucket))

    def no_longer_short(self, label: str) -> list[Bucket]:
        """Room is to come in this tree, and on nodes: who was passed by in it in this cycle and may go now, and who in
        other trees waits for nodes alone. Their queues and buckets; they are parked no more."""
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
        """Might a gang of this queue that would take `usage` lawfully evict somebody (or take `back` what is only
        claimed), on the book as it is now (in a cycle). Asked where `Lack` is known: one flavor for each resource, and
        the promises."""
        node = self._ledger.tree.queue(queue)
        wanted = tuple(sorted(usage.items()))
        return node is not None and self._shortages.may_take(node, wanted, self._leaving_in, back=back)


def _in_the_way(memo: Memo) -> str:
    """Whose claim is, by what was told; "" of nobody's but its own."""
    why = memo.verdict.why
    return why.subject if why.detail is Detail.CLAIMED and "/" in why.subject else ""


def _pods_on(room: Mapping[str, int], amounts: Amounts) -> int:
    """How many pods that ask for so much a node with this room holds; 1 of those that ask for nothing."""
    return min((max(0, room.get(name, 0)) // amount for name, amount in amounts if amount > 0), default=1)
