"""The book of nodes: what is free on them, and which of them a pod may stand on.

`Capacity` has one page per node. A node's room is its allocatable less what stands on it: pods that are not ours, and
per gang the larger, resource by resource, of what its charge says and of what its pods there really hold (a charge
pays for its pods; a sidecar that somebody injected is booked as the difference). Every entry has its exact inverse.
Amounts are exact Python ints; arrays of int64 (saturated) mirror them, one per resource, one element per node in the
order of node names, so that every tie ends in the name whatever the order in which nodes came.

Filters (labels, taints, conditions, selectors, affinity) make one mask per distinct filter, amounts a count of pods
per node. Both are kept until what they were made of changes; counts are mended only in the rows that were touched.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from admission.engine import topology
from admission.engine.model import (
    Admission,
    AntiAffinity,
    Flavor,
    Key,
    LabelSelector,
    Misfit,
    Node,
    Pairs,
    PodSet,
    PodShape,
    PodUsage,
    Requirement,
    Rules,
    Taint,
    Toleration,
    Topology,
    TopologyAssignment,
    Value,
    matches,
)
from admission.engine.topology import Bools, Ints, Shape, Tree, capacities
from admission.names import HOSTNAME_LABEL, JOBSET_NAME_LABEL, JOBSET_REPLICATED_JOB_LABEL
from admission.quantity import INT64_MAX, INT64_MIN, saturate

Amounts = tuple[tuple[str, int], ...]
"""(resource, amount), sorted."""

PODS = "pods"
HOST_PORT = "host-port/"
"""Prefix of the resource of which every node has one per port number: two pods cannot share a host port."""
JOBSET_PODS = "jobset-pods"
"""What every pod of a JobSet takes one of, and no node runs out of: that one stands there is known by it."""
EXCLUSIVE = "exclusive-topology:"
"""Prefix of the like, with a label: for pods of a child job that has its domain of that label to itself."""
APART = "anti-affinity:"
"""Prefix of the like, with what a pod asks of all others (`mark_of`)."""
NODE_NAME = "metadata.name"
OVERLAYS = 256
"""So many questions of the kind "what if" are kept with their answers."""
ANSWERS = 1024
"""So many questions to one table are kept with their answers."""
KINDS = 64
"""So many sorts of pods are kept with what they would cost others."""
ROOMS = 1024
"""So many different rooms, and twice as many as there are nodes, are kept with what a pod would cost others there."""
POPULAR = 16
"""So many kinds of pods stand for all that may come."""
UNMENDED = 64
"""After so many changes counts are mended, even where they say enough as they are."""
MOST = 2**31
"""Counts of pods are cut here, so that no sum of them overflows."""


def is_device(resource: str) -> bool:
    """Extended resources have a domain in their name; hugepages, CPU and the like have none."""
    return "/" in resource and not resource.startswith((HOST_PORT, EXCLUSIVE, APART))


def is_mark(resource: str) -> bool:
    """Says who stands on a node, and takes no room there."""
    return resource == JOBSET_PODS or resource.startswith((EXCLUSIVE, APART))


@lru_cache(maxsize=8192)
def mark_of(asked: AntiAffinity) -> str:
    """The resource of which a pod takes one that asks this of all others."""
    needs = [(need.key, need.operator, need.values) for need in asked.selector.requirements]
    return APART + json.dumps([asked.key, asked.namespaces, needs])


@lru_cache(maxsize=8192)
def marked(mark: str) -> AntiAffinity:
    """The inverse of `mark_of`."""
    key, namespaces, needs = json.loads(mark[len(APART) :])
    selector = LabelSelector(tuple(Requirement(label, operator, tuple(values)) for label, operator, values in needs))
    return AntiAffinity(key, selector, tuple(namespaces))


def _everywhere(resource: str) -> int:
    """What every node has of it, whatever its allocatable says."""
    return 1 if resource.startswith(HOST_PORT) else MOST if is_mark(resource) else 0


def _add_unasked(
    amounts: dict[str, int],
    host_ports: Iterable[str],
    of_jobset: bool,
    exclusive: str,
    apart: Iterable[AntiAffinity],
) -> None:
    """What a pod takes of its node that no request names. `exclusive`: the label of which its child job has the domain
    to itself, or "". `apart`: what it asks of all others."""
    amounts.setdefault(PODS, 1)
    for port in host_ports:
        amounts[f"{HOST_PORT}{port}"] = 1
    if of_jobset:
        amounts[JOBSET_PODS] = 1
    if exclusive:
        amounts[EXCLUSIVE + exclusive] = 1
    for asked in apart:
        amounts[mark_of(asked)] = 1


def takes(shape: PodShape, requests: Mapping[str, int] | Amounts | None = None) -> Amounts:
    """What one pod takes from a node: its requests (default: the shape's), one pod slot, its host ports."""
    amounts = dict(shape.requests if requests is None else requests)
    exclusive = "" if shape.exclusive is None or shape.exclusive.values else shape.exclusive.key
    _add_unasked(amounts, shape.host_ports, shape.of_jobset, exclusive, shape.apart)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount > 0))


def children_of(shape: PodShape) -> str:
    """The name of the child jobs of pods of this shape, as in `PodUsage.child`."""
    labels = dict(shape.labels)
    return f"{shape.namespace}/{labels.get(JOBSET_NAME_LABEL, '')}-{labels.get(JOBSET_REPLICATED_JOB_LABEL, '')}"


@dataclass(slots=True)
class _Paid:
    """One gang on one node: what its charge pays there and what its pods there hold."""

    charged: dict[str, int]
    pods: dict[str, int]

    def held(self, resource: str) -> int:
        return max(self.charged.get(resource, 0), self.pods.get(resource, 0))


@dataclass(slots=True)
class _Host:
    """All that stands on one node (which may be unknown yet, or gone)."""

    foreign: dict[str, int]
    gangs: dict[str, _Paid]
    gang_total: dict[str, int]

    def empty(self) -> bool:
        return not self.foreign and not self.gangs


class Booking(Value, frozen=True):
    """What an admission takes of nodes, added up."""

    uid: str
    hosts: tuple[tuple[str, Amounts], ...]
    """(node name or hostname label, what is taken there in all)."""
    domains: tuple[tuple[Pairs, Amounts], ...]
    """((level, value) pairs, what is taken there): assignments whose lowest level is above the node."""
    kinds: tuple[tuple[Amounts, int], ...] = ()
    """(what one pod takes, how many of them)."""
    exclusive: tuple[str, ...] = ()
    """Labels of which its child jobs have domains to themselves."""
    apart: tuple[str, ...] = ()
    """Marks of what its pods ask of all others."""


def add_amounts(into: dict[str, int], amounts: Iterable[tuple[str, int]], sign: int) -> None:
    """`into += sign * amounts`, exact, without zeros."""
    for name, amount in amounts:
        total = into.get(name, 0) + sign * amount
        if total:
            into[name] = total
        else:
            into.pop(name, None)


class Filter(Value, frozen=True, dict=True, gc=True):
    """All of a request that decides which nodes are looked at, apart from room."""

    labels: Pairs
    selector: Pairs
    affinity: tuple[tuple[Requirement, ...], ...] | None
    tolerations: tuple[Toleration, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.labels, self.selector, self.affinity, self.tolerations))

    def __hash__(self) -> int:
        return self._hash


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    for t in tolerations:
        if t.effect and t.effect != taint.effect:
            continue
        if t.key and t.key != taint.key:
            continue
        if t.operator == "Exists" or (t.key and t.value == taint.value):
            return True
    return False


def refused_taint(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps a pod off (PreferNoSchedule never does)."""
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return taint
    return None


@dataclass(frozen=True, slots=True)
class Leaves:
    """The lowest domains of a topology over the nodes of a flavor that are well and carry all its labels."""

    tree: Tree
    rows: Ints
    """Rows of the table, leaf after leaf."""
    starts: Ints
    """Per leaf: where its rows begin in `rows`."""
    values: list[tuple[str, ...]]
    """Per leaf: a label value per level."""
    index: dict[tuple[str, ...], int]

    @property
    def first(self) -> Ints:
        """Per leaf: its first row."""
        first: Ints = self.rows[self.starts]
        return first


class Log:
    """Rows in which something changed, one after the other; the oldest are forgotten."""

    def __init__(self, rows: int) -> None:
        self._most = 4 * rows + 64
        self._base = 0
        self._rows: list[int] = []

    @property
    def end(self) -> int:
        return self._base + len(self._rows)

    def note(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > self._most:
            self._base += len(self._rows)
            self._rows.clear()

    def since(self, seen: int) -> set[int] | None:
        """What changed since the end was there; None: that is forgotten."""
        return set(self._rows[seen - self._base :]) if seen >= self._base else None


@dataclass(slots=True, eq=False)
class _Counts:
    """Pods per row, kept until a row's room changes; `seen` is the place in the log up to which it was mended."""

    counts: Ints
    seen: int
    total: int
    summed: dict[Tree, list[Ints]] = field(default_factory=dict)
    """Per tree: what its domains can hold (`topology.capacities` without slices)."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Count -> how many rows have it; of use with `summed`, and empty without."""

    below: _Counts | None = None
    """From which it was made, with other counts on a few rows."""

    def put(self, row: int, count: int) -> None:
        before: int = self.counts.item(row)
        if count != before:
            self.counts[row] = count
            self.total += count - before
            if self.summed:
                self._resize(before, count)
            for tree, caps in self.summed.items():
                _add_up(tree, caps, row, count - before)

    def _resize(self, before: int, count: int) -> None:
        self.sizes[count] = self.sizes.get(count, 0) + 1
        self.sizes[before] -= 1
        if not self.sizes[before]:
            del self.sizes[before]

    def sum_up(self, tree: Tree) -> list[Ints]:
        caps = self.summed.get(tree)
        if caps is not None:
            return caps
        below = self.below
        if below is not None and below.seen == self.seen:
            caps = [held.copy() for held in below.sum_up(tree)]
            first = not self.summed
            if first:
                self.sizes = dict(below.sizes)
            for row in (self.counts != below.counts).nonzero()[0].tolist():
                before, count = below.counts.item(row), self.counts.item(row)
                _add_up(tree, caps, row, count - before)
                if first:
                    self._resize(before, count)
        else:
            if not self.summed:
                there, times = np.unique(self.counts, return_counts=True)
                self.sizes = dict(zip(there.tolist(), times.tolist(), strict=True))
            caps = capacities(tree, self.counts[tree.order], Shape(0))
        self.summed[tree] = caps
        return caps


def _add_up(tree: Tree, caps: list[Ints], row: int, change: int) -> None:
    leaf = tree.position.item(row)
    for held, around in zip(caps, tree.around, strict=True):
        held[around.item(leaf)] += change


@dataclass(slots=True, eq=False)
class _Laid:
    """Rows that may count otherwise than on the ground below, what they count, and the total with them."""

    seen: int
    rows: Ints
    counts: Ints
    total: int
    whole: _Counts | None = None
    """The ground's with these; made when first asked for."""


@lru_cache(maxsize=KINDS)
def names_in(kinds: tuple[Amounts, ...]) -> tuple[str, ...]:
    """All resources that some of these take, sorted."""
    return tuple(sorted({name for kind in kinds for name, _ in kind}))


class _Rooms:
    """What is free on nodes, of some resources: every combination has a number, for there are few, and rows that have
    equal room are alike in what one pod more costs others there."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._numbers: dict[tuple[int, ...], int] = {}
        self._harm: dict[tuple[tuple[Amounts, ...], Amounts], _Harm] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, room: tuple[int, ...]) -> int:
        return self._numbers.setdefault(room, len(self._numbers))

    def harm(self, kinds: tuple[Amounts, ...], weights: tuple[int, ...], per_pod: Amounts) -> Ints:
        """Per number (`topology.harm`)."""
        known = self._harm.get((kinds, per_pod))
        if known is None:
            if len(self._harm) >= KINDS:
                self._harm.clear()
            known = self._harm[kinds, per_pod] = _Harm(self.names, kinds, per_pod)
        there = known.lost.shape[1]
        if there < len(self._numbers):
            new = [[saturate(amount) for amount in room] for room in islice(self._numbers, there, None)]
            known.add(np.array(new, dtype=np.int64).T)
        elif known.weights == weights:
            return known.harm
        known.weights = weights
        known.harm = topology.harm(known.lost, np.array(weights, dtype=np.int64))
        return known.harm


class _Harm:
    """What a pod of one sort would cost the kinds of pods that may come, by numbers of rooms."""

    def __init__(self, names: tuple[str, ...], kinds: tuple[Amounts, ...], per_pod: Amounts) -> None:
        taken = dict(per_pod)
        devices = [max((amount, name) for name, amount in kind if is_device(name))[1] for kind in kinds]
        self._needs: Ints = np.full((len(kinds), len(names)), topology.UNASKED, dtype=np.int64)
        for i, kind in enumerate(kinds):
            for name, amount in kind:
                self._needs[i, names.index(name)] = min(amount, 2**61)
        self._device: Ints = np.array([names.index(name) for name in devices], dtype=np.int64)
        self._taken: Ints = np.array([min(taken.get(name, 0), 2**61) for name in names], dtype=np.int64)
        self.lost: Ints = np.zeros((len(kinds), 0), dtype=np.int64)
        self.weights: tuple[int, ...] = ()
        self.harm: Ints = np.zeros(0, dtype=np.int64)

    def add(self, room: Ints) -> None:
        lost = topology.losses(room, self._needs, self._device, self._taken)
        self.lost = np.concatenate([self.lost, lost], axis=1)


@dataclass(slots=True, eq=False)
class _Numbered:
    """Per row the number of its room."""

    rooms: _Rooms
    numbers: Ints
    seen: int


class Ground:
    """The room on nodes, with gangs or without, with what is set aside or without. What is counted on it is kept, and
    mended in the rows that its log names."""

    def __init__(self, table: Table, columns: dict[str, Ints], aside: dict[str, Ints], log: Log) -> None:
        self.table = table
        self.log = log
        self._columns = columns
        self._aside = aside
        """Per resource and row, what is to be added: below zero."""
        self._counts: dict[tuple[Filter, Amounts], _Counts] = {}
        self._numbered: dict[tuple[str, ...], _Numbered] = {}

    def forget(self) -> None:
        self._counts.clear()
        self._numbered.clear()

    def column(self, resource: str) -> Ints:
        self.table.need(resource)
        column, aside = self._columns[resource], self._aside.get(resource)
        return column if aside is None else column + aside

    def column_on(self, rows: Ints, resource: str) -> Ints:
        self.table.need(resource)
        room: Ints = self._columns[resource][rows]
        aside = self._aside.get(resource)
        return room if aside is None else room + aside[rows]

    def _changed(self, known: _Counts | _Numbered) -> set[int] | None:
        """Rows to be mended; None where all are better made anew."""
        changed = self.log.since(known.seen)
        return changed if changed is not None and len(changed) * 32 < len(self.table.names) else None

    def counted(self, wanted: Filter, per_pod: Amounts) -> _Counts:
        """Pods of this kind that each row can take."""
        known = self._counts.get((wanted, per_pod))
        end = self.log.end
        if known is not None:
            if known.seen == end:
                return known
            if (changed := self._changed(known)) is not None:
                self._mend(known, changed, wanted, per_pod)
                known.seen = end
                return known
        rows = self.table.mask(wanted).nonzero()[0]
        counts = np.zeros(len(self.table.names), dtype=np.int64)
        counts[rows] = pods_in((self.column_on(rows, name), amount) for name, amount in per_pod)
        known = self._counts[wanted, per_pod] = _Counts(counts, end, int(counts.sum()))
        return known

    def holds(self, wanted: Filter, per_pod: Amounts, pods: int) -> bool:
        """Can all rows together take so many pods of this kind: often they can whatever changed rows hold now, and need
        not be mended for that."""
        known = self._counts.get((wanted, per_pod))
        if known is not None and self.log.end - known.seen <= UNMENDED:
            changed = self.log.since(known.seen)
            if changed is not None and known.total - sum(map(known.counts.item, changed)) >= pods:
                return True
        return self.counted(wanted, per_pod).total >= pods

    def _mend(self, known: _Counts, rows: Iterable[int], wanted: Filter, per_pod: Amounts) -> None:
        """One by one, for an array of two is dearer than both."""
        mask = self.table.mask(wanted)
        columns = [(self._columns[name], self._aside.get(name), amount) for name, amount in per_pod]
        for i in rows:
            if not mask.item(i):
                continue
            count = MOST
            for column, aside, amount in columns:
                room = column.item(i) if aside is None else column.item(i) + aside.item(i)
                count = min(count, room // amount)
            known.put(i, max(count, 0))

    def numbered(self, rooms: _Rooms) -> _Numbered:
        known = self._numbered.get(rooms.names)
        end = self.log.end
        if known is not None and known.rooms is rooms:
            if known.seen == end:
                return known
            if (changed := self._changed(known)) is not None:
                for row in changed:
                    known.numbers[row] = self.number(row, rooms, {})
                known.seen = end
                return known
        columns = [self.column(name).tolist() for name in rooms.names]
        numbers = np.fromiter(map(rooms.number, zip(*columns, strict=True)), np.int64, len(self.table.names))
        known = self._numbered[rooms.names] = _Numbered(rooms, numbers, end)
        return known

    def number(self, row: int, rooms: _Rooms, more: Mapping[str, int]) -> int:
        room = []
        for name in rooms.names:
            amount = self._columns[name].item(row) + more.get(name, 0)
            aside = self._aside.get(name)
            room.append(amount if aside is None else amount + aside.item(row))
        return rooms.number(tuple(room))


def pods_in(rooms: Iterable[tuple[Ints, int]]) -> Ints | int:
    """Per row, how many pods that take so much of each of these rooms."""
    counts: Ints | int = MOST
    for room, amount in rooms:
        counts = np.minimum(counts, room if amount == 1 else room // amount)
    return np.maximum(counts, 0)


class Side:
    """A ground with more room on a few rows."""

    def __init__(self, ground: Ground, more: More) -> None:
        self._ground = ground
        self._more = more
        self._rows: Ints = np.fromiter(more, np.int64, len(more))
        self._columns: dict[str, Ints] = {}
        """Resource -> on these rows, how much more."""
        self._dense: dict[str, Ints] = {}
        """The same, on all rows."""
        self._laid: dict[tuple[Filter, Amounts], _Laid] = {}
        self._numbered: _Numbered | None = None

    def _on(self, wanted: Filter, per_pod: Amounts) -> tuple[_Counts, _Laid | None]:
        below = self._ground.counted(wanted, per_pod)
        if not self._more:
            return below, None
        laid = self._laid.get((wanted, per_pod))
        if laid is None or laid.seen != below.seen:
            rows, ground = self._rows, self._ground
            counts = pods_in((ground.column_on(rows, name) + self._also(name), amount) for name, amount in per_pod)
            counts = np.where(ground.table.mask(wanted)[rows], counts, 0)
            total = below.total + int(np.add.reduce(counts - below.counts[rows]))
            laid = self._laid[wanted, per_pod] = _Laid(below.seen, rows, counts, total)
        return below, laid

    def counted_in_all(self, wanted: Filter, per_pod: Amounts) -> int:
        below, laid = self._on(wanted, per_pod)
        return below.total if laid is None else laid.total

    def counted(self, wanted: Filter, per_pod: Amounts) -> _Counts:
        below, laid = self._on(wanted, per_pod)
        if laid is None:
            return below
        if laid.whole is None:
            counts = below.counts.copy()
            counts[laid.rows] = laid.counts
            laid.whole = _Counts(counts, below.seen, laid.total, below=below)
        return laid.whole

    def _also(self, resource: str) -> Ints:
        also = self._columns.get(resource)
        if also is None:
            amounts = (more.get(resource, 0) for more in self._more.values())
            also = self._columns[resource] = np.fromiter(amounts, np.int64, len(self._more))
        return also

    def room(self, resource: str) -> Ints:
        column = self._ground.column(resource)
        if self._more:
            column = column.copy()
            column[self._rows] += self._also(resource)
        return column

    def room_on(self, rows: Ints, resource: str) -> Ints:
        room = self._ground.column_on(rows, resource)
        if not self._more:
            return room
        dense = self._dense.get(resource)
        if dense is None:
            dense = self._dense[resource] = np.zeros(len(self._ground.table.names), dtype=np.int64)
            dense[self._rows] = self._also(resource)
        return room + dense[rows]

    def numbers(self, rooms: _Rooms) -> Ints:
        """Per row the number of its room."""
        below = self._ground.numbered(rooms)
        if not self._more:
            return below.numbers
        known = self._numbered
        if known is None or known.rooms is not rooms or known.seen != below.seen:
            numbers = below.numbers.copy()
            for row, more in self._more.items():
                numbers[row] = self._ground.number(row, rooms, more)
            known = self._numbered = _Numbered(rooms, numbers, below.seen)
        return known.numbers


Answers = dict[object, tuple[int, bool, "Placement | Misfit"]]
"""Question -> (version of the nodes, does a no explain itself, answer)."""


More = Mapping[int, Mapping[str, int]]
"""row -> resource -> how much more there is."""


class Overlay:
    """Room that counts as taken, or as given back, for the length of a question; with the counts that it makes."""

    def __init__(self, grounds: tuple[Ground, Ground], taken: Callable[[], More], bare: Callable[[], More]) -> None:
        self._grounds = grounds
        self._more = taken, bare
        self._sides: list[Side | None] = [None, None]
        self.placed: tuple[Answers, Answers] = ({}, {})
        """Answers about the table as it is, and about one without gangs."""

    def side(self, empty: bool) -> Side:
        """With gangs, or without; made when it is first asked for."""
        side = self._sides[empty]
        if side is None:
            side = self._sides[empty] = Side(self._grounds[empty], self._more[empty]())
        return side

    def holds(self, wanted: Filter, per_pod: Amounts, pods: int, empty: bool) -> bool:
        """Can all rows together take so many pods of this kind. Nothing laid over makes them fewer."""
        return (
            self._grounds[empty].holds(wanted, per_pod, pods)
            or self.side(empty).counted_in_all(wanted, per_pod) >= pods
        )


_Parsed = tuple[dict[str, str], dict[str, int]]
"""Labels and allocatable of a node."""


class Table:
    """The nodes as columns. Rows are nodes in the order of their names; made anew when a node comes or goes."""

    def __init__(self, nodes: Mapping[str, Node], parsed: Mapping[str, _Parsed], hosts: Mapping[str, _Host]) -> None:
        self.names: list[str] = sorted(nodes)
        self.row: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        self.nodes: list[Node] = [nodes[name] for name in self.names]
        self._hosts = hosts
        self._labels: list[dict[str, str]] = [parsed[name][0] for name in self.names]
        self._has: list[dict[str, int]] = [parsed[name][1] for name in self.names]
        self._columns: dict[str, tuple[Ints, dict[str, int]]] = {}
        self._every: dict[str, int] = {}
        """Of each resource of which there is a column: what every node has of it."""
        self.free: dict[str, Ints] = {}
        self.bare: dict[str, Ints] = {}
        self.well: Bools = np.array([self._usable(node) for node in self.nodes], dtype=np.bool_)
        self._taint_class: dict[tuple[Taint, ...], int] = {}
        self.taints: Ints = np.array([self._class_of(node.taints) for node in self.nodes], dtype=np.int64)
        self._log, self._bare_log = Log(len(self.names)), Log(len(self.names))
        self._aside: dict[str, Ints] = {}
        """Per resource and row, what is set aside, below zero."""
        self.knows_aside = False
        self.grounds = tuple(
            (Ground(self, self.free, aside, self._log), Ground(self, self.bare, aside, self._bare_log))
            for aside in ({}, self._aside)
        )
        """(With gangs, without them), and the same with what is set aside."""
        self._masks: dict[Filter, Bools] = {}
        self.plain = Overlay(self.grounds[0], dict, dict)
        self.overlay = self.plain
        """What counts as taken or given back now; usually nothing."""
        self.overlays: dict[object, Overlay] = {}
        self._trees: dict[tuple[str, ...], Tree] = {}
        self._leaves: dict[tuple[tuple[str, ...], Pairs], Leaves] = {}
        self._devices: dict[str, Bools] | None = None
        self._scarcest: dict[Amounts, list[str]] = {}
        self._most: dict[str, Ints] = {}
        self._rooms: dict[tuple[str, ...], _Rooms] = {}

    @staticmethod
    def _usable(node: Node) -> bool:
        return node.ready and not node.unschedulable

    def _class_of(self, taints: tuple[Taint, ...]) -> int:
        return self._taint_class.setdefault(taints, len(self._taint_class))

    def taint_classes(self) -> dict[tuple[Taint, ...], int]:
        """The distinct sets of taints; `taints` gives per row which."""
        return self._taint_class

    # -- what changes in place

    def update(self, node: Node, parsed: _Parsed) -> None:
        """A node that is already there, in a newer version."""
        i = self.row[node.name]
        old = self.nodes[i]
        self.nodes[i] = node
        self._labels[i], self._has[i] = parsed
        if node.labels != old.labels:
            self._columns.clear()
            self._trees.clear()
        if (
            node.labels != old.labels
            or node.taints != old.taints
            or node.ready != old.ready
            or node.unschedulable != old.unschedulable
        ):
            self.well[i] = self._usable(node)
            self.taints[i] = self._class_of(node.taints)
            self._masks.clear()
            for ground in (*self.grounds[0], *self.grounds[1]):
                ground.forget()
            self.bare_changed()
            self._leaves.clear()
        if node.allocatable != old.allocatable:
            self._devices = None
            self._scarcest.clear()
            self._most.clear()
            self.refresh(node.name)

    def refresh(self, name: str, resources: Iterable[str] | None = None) -> None:
        """The room on a node changed; of all resources, unless they are named."""
        i = self.row.get(name)
        if i is None:
            return
        for resource in self.free if resources is None else resources:
            free = self.free.get(resource)
            if free is not None:
                bare, free[i] = self._room(i, resource)
                column = self.bare[resource]
                if column.item(i) != bare:
                    column[i] = bare
                    self._bare_log.note(i)
                    self.bare_changed()
        self._log.note(i)

    def put_aside(self, name: str, amounts: Amounts, sign: int) -> None:
        """So much more (1) or less (-1) is set aside on a node."""
        i = self.row.get(name)
        if i is None:
            return
        for resource, amount in amounts:
            column = self._aside.get(resource)
            if column is None:
                column = self._aside[resource] = np.zeros(len(self.names), dtype=np.int64)
            column[i] -= sign * min(amount, 2**55)  # sums stay within int64
        self._log.note(i)
        self._bare_log.note(i)

    def forget_aside(self) -> None:
        """What is set aside has to be told anew."""
        self.knows_aside = False
        self._aside.clear()
        for ground in self.grounds[1]:
            ground.forget()

    def moved(self, name: str, amounts: Amounts, sign: int) -> None:
        """Gangs gave back (1) or took (-1) so much on a node."""
        i = self.row.get(name)
        if i is None:
            return
        for resource, amount in amounts:
            free = self.free.get(resource)
            if free is not None:
                before: int = free.item(i)
                after = before + sign * amount
                if INT64_MIN < before < INT64_MAX and INT64_MIN < after < INT64_MAX:
                    free[i] = after
                else:  # it is, or was, cut
                    free[i] = self._room(i, resource)[1]
        self._log.note(i)

    def forget(self, resource: str) -> None:
        """Nobody will ask for this column soon."""
        for columns in (self.free, self.bare, self._every):
            columns.pop(resource, None)

    def bare_changed(self) -> None:
        """Something changed that no gang did."""
        self.plain.placed[True].clear()
        self.overlays.clear()

    def _room(self, i: int, resource: str) -> tuple[int, int]:
        """(without gangs, with them): exact, then cut to int64."""
        allocatable = self._every[resource] or self._has[i].get(resource, 0)
        host = self._hosts.get(self.names[i])
        if host is None:
            amount = saturate(allocatable)
            return amount, amount
        bare = allocatable - host.foreign.get(resource, 0)
        return saturate(bare), saturate(bare - host.gang_total.get(resource, 0))

    def need(self, resource: str) -> None:
        """There are columns of a resource from now on."""
        if resource not in self.free:
            every = self._every[resource] = _everywhere(resource)
            column = np.array([every or saturate(has.get(resource, 0)) for has in self._has], dtype=np.int64)
            self.bare[resource], self.free[resource] = column, column.copy()
            for name in self._hosts:
                i = self.row.get(name)
                if i is not None:
                    self.bare[resource][i], self.free[resource][i] = self._room(i, resource)

    def room(self, resource: str, empty: bool) -> Ints:
        """The column of a resource. It belongs to the cache: copy before writing."""
        return self.overlay.side(empty).room(resource)

    def room_on(self, rows: Ints, resource: str, empty: bool) -> Ints:
        """Of `room`, these rows."""
        return self.overlay.side(empty).room_on(rows, resource)

    def most(self, resource: str) -> Ints:
        """Allocatable per row."""
        if resource not in self._most:
            self._most[resource] = np.array([saturate(has.get(resource, 0)) for has in self._has], dtype=np.int64)
        return self._most[resource]

    # -- labels and filters

    def column(self, key: str) -> tuple[Ints, dict[str, int]]:
        """Per row the code of a label's value (-1: no such label), and the codes, in the order of the values."""
        got = self._columns.get(key)
        if got is None:
            if key == NODE_NAME:
                values = self.names
            else:
                values = sorted({labels[key] for labels in self._labels if key in labels})
            code = {value: i for i, value in enumerate(values)}
            if key == NODE_NAME:
                column = np.arange(len(values), dtype=np.int64)
            else:
                column = np.array([code[labels[key]] if key in labels else -1 for labels in self._labels], np.int64)
            got = self._columns[key] = (column, code)
        return got

    def requirement(self, req: Requirement) -> Bools:
        """Which rows meet one requirement of a node selector term, as Kubernetes reads it."""
        column, code = self.column(req.key)
        if req.operator == "Exists":
            return column >= 0
        if req.operator == "DoesNotExist":
            return column < 0
        if req.operator in ("In", "NotIn"):
            wanted = np.zeros(len(code) + 1, dtype=np.bool_)
            for value in req.values:
                if value in code:
                    wanted[code[value]] = True
            hit: Bools = wanted[column]  # -1 reads the last element, which no value has
            return hit if req.operator == "In" else ~hit
        bound = _integer(req.values[0]) if len(req.values) == 1 else None
        meets = np.zeros(len(code) + 1, dtype=np.bool_)
        if bound is not None:
            for value, i in code.items():
                number = _integer(value)
                if number is not None:
                    meets[i] = number > bound if req.operator == "Gt" else number < bound
        met: Bools = meets[column]
        return met

    def pairs(self, pairs: Pairs) -> Bools:
        mask = np.ones(len(self.names), dtype=np.bool_)
        for key, value in pairs:
            mask &= self.requirement(Requirement(key, "In", (value,)))
        return mask

    def affinity(self, terms: tuple[tuple[Requirement, ...], ...]) -> Bools:
        mask = np.zeros(len(self.names), dtype=np.bool_)
        for term in terms:
            if not term:
                continue  # an empty term matches no node
            all_of = np.ones(len(self.names), dtype=np.bool_)
            for requirement in term:
                all_of &= self.requirement(requirement)
            mask |= all_of
        return mask

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> Bools:
        fine = np.array([refused_taint(taints, tolerations) is None for taints in self._taint_class], dtype=np.bool_)
        return fine[self.taints] if len(fine) else np.ones(0, dtype=np.bool_)

    def mask(self, wanted: Filter) -> Bools:
        got = self._masks.get(wanted)
        if got is None:
            got = self._masks[wanted] = self.well & self.tolerated(wanted.tolerations) & self.chosen(wanted)
        return got

    def chosen(self, wanted: Filter) -> Bools:
        """Rows that labels, selector and affinity leave, well or not, tainted or not."""
        got = self.pairs(wanted.labels) & self.pairs(wanted.selector)
        if wanted.affinity is not None:
            got &= self.affinity(wanted.affinity)
        return got

    def counts(self, wanted: Filter, per_pod: Amounts, empty: bool) -> Ints:
        """Pods of this kind that each row can take. The array belongs to the cache: copy before writing."""
        return self.overlay.side(empty).counted(wanted, per_pod).counts

    def capacities(
        self, wanted: Filter, per_pod: Amounts, tree: Tree, counts: Ints, shape: Shape
    ) -> tuple[list[Ints], Collection[int] | None]:
        """Per level of a tree: how many pods each domain can hold, if rows can take so many as `counts` says; and the
        capacities that there are among rows, where they are known. Kept for counts that are; the arrays belong to the
        cache."""
        known = self.overlay.side(False).counted(wanted, per_pod)
        if shape.slices or known.counts is not counts:
            return capacities(tree, counts[tree.order], shape), None
        return known.sum_up(tree), known.sizes

    def harm(self, popular: Sequence[tuple[Amounts, int]], per_pod: Amounts, rows: Ints, empty: bool) -> Ints:
        """How much one more of these pods on each of these rows would harm pods of kinds that are so popular
        (`topology.harm`)."""
        kinds = tuple([kind for kind, _ in popular])
        names = names_in(kinds)
        rooms = self._rooms.get(names)
        if rooms is None or len(rooms) > 2 * len(self.names) + ROOMS:
            rooms = self._rooms[names] = _Rooms(names)
            for name in names:
                self.need(name)
        numbers = self.overlay.side(empty).numbers(rooms)[rows]
        harm: Ints = rooms.harm(kinds, tuple([weight for _, weight in popular]), per_pod)[numbers]
        return harm

    def untouched(self, rows: Ints, empty: bool) -> Bools:
        """Of these rows: are all its devices idle."""
        idle: Bools | None = None
        for name in self.devices():
            whole: Bools = self.room_on(rows, name, empty) == self.most(name)[rows]
            idle = whole if idle is None else idle & whole
        return np.ones(len(rows), dtype=np.bool_) if idle is None else idle

    def sound_counts(self, wanted: Filter, per_pod: Amounts) -> Ints:
        """As `counts` of an empty table on which no node were cordoned, not ready or tainted."""
        rows = np.flatnonzero(self.chosen(wanted))
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[rows] = pods_in((self.room_on(rows, name, True), amount) for name, amount in per_pod)
        return counts

    def tree(self, levels: tuple[str, ...]) -> Tree:
        """The tree of these label keys, with the nodes as leaves."""
        got = self._trees.get(levels)
        if got is None:
            above = levels[:-1] if levels and levels[-1] == HOSTNAME_LABEL else levels
            codes = [self.column(key)[0] for key in above]
            got = self._trees[levels] = topology.grow((*above, HOSTNAME_LABEL), codes, len(self.names))
        return got

    def leaves(self, levels: tuple[str, ...], labels: Pairs) -> Leaves:
        """The lowest domains of `levels` as label values make them; several nodes may share one."""
        got = self._leaves.get((levels, labels))
        if got is None:
            columns = [self.column(level) for level in levels]
            fit = self.well & self.pairs(labels)
            for column, _ in columns:
                fit &= column >= 0
            rows = np.flatnonzero(fit)
            codes = [column[rows] for column, _ in columns]
            order = np.lexsort([rows, *reversed(codes)])
            rows, codes = rows[order], [code[order] for code in codes]
            fresh = np.zeros(len(rows), dtype=np.bool_)
            fresh[:1] = True
            for code in codes:
                fresh[1:] |= code[1:] != code[:-1]
            starts = np.flatnonzero(fresh)
            names = [list(code_of) for _, code_of in columns]
            values = list(
                zip(*([name[c] for c in code[starts]] for name, code in zip(names, codes, strict=True)), strict=True)
            )
            tree = topology.grow(levels, [code[starts] for code in codes[:-1]], len(starts))
            got = Leaves(tree, rows, starts, values, {value: i for i, value in enumerate(values)})
            self._leaves[levels, labels] = got
        return got

    def devices(self) -> dict[str, Bools]:
        """Extended resources (names with a domain) -> which rows have any of it."""
        if self._devices is None:
            found: dict[str, list[int]] = {}
            for i, node in enumerate(self.nodes):
                for name, amount in node.allocatable:
                    if is_device(name) and amount > 0:
                        found.setdefault(name, []).append(i)
            self._devices = {}
            for name in sorted(found):
                mask = np.zeros(len(self.names), dtype=np.bool_)
                mask[found[name]] = True
                self._devices[name] = mask
        return self._devices

    def scarcest(self, per_pod: Amounts) -> list[str]:
        """The resources of nodes of which it is best to leave little where such a pod goes, the most important first:
        devices, then what it asks for, then cpu and memory."""
        known = self._scarcest.get(per_pod)
        if known is None:
            devices = self.devices()
            asked = [n for n, _ in per_pod if n != PODS and not n.startswith(HOST_PORT) and not is_mark(n)]
            asked.sort(key=lambda name: (name in devices, name))
            names = [*(name for name in ("memory", "cpu") if name not in asked), *asked]
            names.extend(name for name in devices if name not in names)
            if len(self._scarcest) >= KINDS:
                self._scarcest.clear()
            known = self._scarcest[per_pod] = names[::-1]
        return known


def _integer(text: str) -> int | None:
    body = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if body.isascii() and body.isdigit() and len(body) < 20 else None


class _PodTakes(NamedTuple):
    """What follows from what one pod takes."""

    each: Amounts
    """With a pod slot."""
    kind: Amounts | None
    """The same without marks, of a pod with devices."""
    exclusive: tuple[str, ...]
    apart: tuple[str, ...]


@lru_cache(maxsize=8192)
def _pod_takes(amounts: Amounts) -> _PodTakes:
    taken = {PODS: 1, **dict(amounts)}
    each = tuple(sorted(taken.items()))
    return _PodTakes(
        each,
        tuple((name, n) for name, n in each if n > 0 and not is_mark(name)) if any(map(is_device, taken)) else None,
        tuple(name[len(EXCLUSIVE) :] for name in taken if name.startswith(EXCLUSIVE)),
        tuple(name for name in taken if name.startswith(APART)),
    )


def booking_of(uid: str, admission: Admission, per_pod: Mapping[str, Amounts]) -> Booking:
    """What an admission takes of nodes; `per_pod` says, per pod set, what each pod takes (`takes`)."""
    hosts: dict[str, Amounts] = {}
    domains: dict[Pairs, Amounts] = {}
    kinds: dict[Amounts, int] = {}
    takes_of = {name: _pod_takes(amounts) for name, amounts in per_pod.items()}
    for assignment in admission.pod_sets:
        if assignment.topology is None:
            continue
        each, kind, _, _ = takes_of.get(assignment.name) or _pod_takes(())
        if kind is not None:
            kinds[kind] = kinds.get(kind, 0) + sum(domain.count for domain in assignment.topology.domains)
        levels = assignment.topology.levels
        on_hosts = bool(levels) and levels[-1] == HOSTNAME_LABEL
        by_count: dict[int, Amounts] = {}
        for domain in assignment.topology.domains:
            taken = by_count.get(domain.count)
            if taken is None:
                taken = tuple((name, n * domain.count) for name, n in each if n * domain.count)
                by_count[domain.count] = taken
            if on_hosts:
                host = domain.values[-1]
                hosts[host] = _sum(hosts[host], taken) if host in hosts else taken
            else:
                pairs = tuple(zip(levels, domain.values, strict=True))
                domains[pairs] = _sum(domains[pairs], taken) if pairs in domains else taken
    return Booking(
        uid=uid,
        hosts=tuple(sorted(hosts.items())),
        domains=tuple(sorted(domains.items())),
        kinds=tuple(sorted(kinds.items())),
        exclusive=tuple(sorted({name for of in takes_of.values() for name in of.exclusive})),
        apart=tuple(sorted({name for of in takes_of.values() for name in of.apart})),
    )


def _sum(one: Amounts, other: Amounts) -> Amounts:
    total = dict(one)
    add_amounts(total, other, 1)
    return tuple(sorted(total.items()))


class Capacity:
    """All nodes, what stands on them, and the topologies they form."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._parsed: dict[str, _Parsed] = {}
        self._hosts: dict[str, _Host] = {}
        self._pods: dict[Key, PodUsage] = {}
        self._charges: dict[Key, Booking] = {}
        self._aside: dict[Key, Booking] = {}
        self._aside_version = 0
        self._given: dict[tuple[Key, str], list[tuple[int, Mapping[str, int]]]] = {}
        """Gang -> (row, what would be given back there if it left): of those that were asked for."""
        self._asked_of: dict[Key | str, set[tuple[Key, str]]] = {}
        """Key or uid -> these."""
        self._summed: tuple[dict[Key, Booking], dict[int, dict[str, int]]] = ({}, {})
        """Charges, and per row what they take together: of those that were asked for last."""
        self._topologies: dict[str, Topology] = {}
        self._named: dict[str, set[str]] = {}
        """Hostname label -> nodes that carry it and are called otherwise."""
        self._by_host: dict[str, set[Key]] = {}
        """Host as charges spell it -> the charges."""
        self._domain_charges: dict[Pairs, dict[Key, Amounts]] = {}
        self._wide: dict[str, int] = {}
        """uid -> its charges that name no nodes but wider domains; these pay for its pods wherever they stand."""
        self._pods_of: dict[str, set[Key]] = {}
        self._pods_of_children: dict[str, set[Key]] = {}
        """Name of child jobs that have domains to themselves (`PodUsage.child`) -> their pods, whoever's they are."""
        self.exclusive_keys: set[str] = set()
        """Labels of which child jobs have, or once had, domains to themselves."""
        self._apart: Counter[str] = Counter()
        """What pods ask of all others (`mark_of`) -> how often it is asked by pods, charges and those who wait."""
        self._apart_there: Counter[str] = Counter()
        """The same without those who wait."""
        self._apart_by: dict[tuple[str, ...], set[str]] = {}
        """(namespace or "" for all, label, value), where a value is asked for, else (namespace,) -> marks."""
        self._apart_new: set[str] = set()
        self._kinds: dict[Amounts, int] = {}
        """What pods of gangs take, of those that take a device -> how many stand on the book."""
        self._popular: list[tuple[Amounts, int]] | None = None
        self._hidden: set[str] = set()
        """uids whose pods are not counted: a trial asks what were if they had left."""
        self._made: Table | None = None
        self.version = 0
        """Another with every change of nodes or of what stands on them; the ledger puts back the old one when it has
        taken changes back. Equal versions mean equal nodes."""
        self._last_version = 0

    # -- nodes, pods, topologies

    def put_node(self, node: Node) -> None:
        old = self._nodes.get(node.name)
        if old == node:
            return
        self._new_version()
        self._parsed[node.name] = (dict(node.labels), dict(node.allocatable))
        label, old_label = _hostname(node), _hostname(old)
        if old is None or label != old_label:
            self._renamed()
            if self._made is not None:
                self._made.forget_aside()
            with self._recharged({node.name, label, old_label}):
                self._unname(old)
                self._nodes[node.name] = node
                if label not in ("", node.name):
                    self._named.setdefault(label, set()).add(node.name)
        else:
            self._nodes[node.name] = node
        if old is None:
            self._made = None
        elif self._made is not None:
            self._made.update(node, self._parsed[node.name])

    def remove_node(self, name: str) -> None:
        old = self._nodes.get(name)
        if old is None:
            return
        self._new_version()
        with self._recharged({name, _hostname(old)}):
            self._unname(old)
            del self._nodes[name], self._parsed[name]
        self._made = None
        self._renamed()

    def _unname(self, node: Node | None) -> None:
        label = _hostname(node)
        if node is not None and node.name in self._named.get(label, ()):
            self._named[label].discard(node.name)
            if not self._named[label]:
                del self._named[label]

    def resolve(self, host: str) -> str:
        """The node that a charge means by a host: its name, else its hostname label."""
        if host not in self._nodes and host in self._named:
            return min(self._named[host])
        return host

    @contextmanager
    def _recharged(self, hosts: set[str]) -> Iterator[None]:
        """Charges that name these hosts are taken off and put on again around a change of who is called so."""
        keys = sorted({key for host in hosts for key in self._by_host.get(host, ())})
        for key in keys:
            self._book(self._charges[key], -1)
        yield
        for key in keys:
            self._book(self._charges[key], 1)

    def _new_version(self) -> None:
        self._last_version += 1
        self.version = self._last_version

    def nodes(self) -> list[Node]:
        """All nodes, by name."""
        return list(self.table.nodes)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def put_topology(self, value: Topology) -> None:
        self._new_version()
        self._topologies[value.name] = value
        if self._made is not None:
            self._made.bare_changed()

    def remove_topology(self, name: str) -> None:
        self._new_version()
        self._topologies.pop(name, None)
        if self._made is not None:
            self._made.bare_changed()

    def topology(self, name: str) -> Topology | None:
        return self._topologies.get(name)

    def put_pod(self, pod: PodUsage) -> None:
        old = self._pods.get(pod.key)
        if old == pod:
            return
        if old is not None:
            self.remove_pod(pod.key)
        self._pods[pod.key] = pod
        if pod.workload_uid:
            self._touch(pod.workload_uid)
            self._pods_of.setdefault(pod.workload_uid, set()).add(pod.key)
        if pod.child is not None:
            self._pods_of_children.setdefault(pod.child[0], set()).add(pod.key)
        self._book_pod(pod, 1)

    def remove_pod(self, key: Key) -> None:
        old = self._pods.pop(key, None)
        if old is None:
            return
        if old.workload_uid:
            self._touch(old.workload_uid)
            keys = self._pods_of[old.workload_uid]
            keys.discard(key)
            if not keys:
                del self._pods_of[old.workload_uid]
        if old.child is not None:
            keys = self._pods_of_children[old.child[0]]
            keys.discard(key)
            if not keys:
                del self._pods_of_children[old.child[0]]
        self._book_pod(old, -1)

    def keys(self) -> set[Key]:
        """Of all that is charged."""
        return set(self._charges)

    def pod(self, key: Key) -> PodUsage | None:
        """The pod that holds room under this key."""
        return self._pods.get(key)

    def pods(self, workload_uid: str) -> list[PodUsage]:
        """The pods of a gang that hold room, by key."""
        return [self._pods[key] for key in sorted(self._pods_of.get(workload_uid, ()))]

    def lingering(self, workload_uid: str, shapes: Iterable[PodShape]) -> list[PodUsage]:
        """Pods that are there before a gang starts, and that JobSet's affinities take for pods of its child jobs, by
        key: those of the gang, and those of an earlier JobSet of its name."""
        keys: set[Key] = set()
        for shape in shapes:
            if shape.exclusive is not None:
                keys |= self._pods_of_children.get(children_of(shape), frozenset())
                keys |= self._pods_of.get(workload_uid, frozenset())
        return [pod for key in sorted(keys) if (pod := self._pods[key]).exclusive_key]

    def hide(self, uid: str) -> None:
        """As if the pods of this gang were gone, until `show`."""
        if uid not in self._hidden and uid in self._pods_of:
            self._touch(uid)
            for pod in self.pods(uid):
                self._book_pod(pod, -1)
            self._hidden.add(uid)

    def show(self, uid: str) -> bool:
        """Its pods count again; False if they did."""
        if uid not in self._hidden:
            return False
        self._touch(uid)
        self._hidden.discard(uid)
        for pod in self.pods(uid):
            self._book_pod(pod, 1)
        return True

    def _book_pod(self, pod: PodUsage, sign: int) -> None:
        if pod.workload_uid in self._wide or pod.workload_uid in self._hidden:
            return
        requests = dict(pod.requests)
        _add_unasked(requests, pod.host_ports, pod.of_jobset, pod.exclusive_key, pod.apart)
        if pod.apart:
            self._stand_apart([mark_of(asked) for asked in pod.apart], sign)
        if pod.exclusive_key:
            self.exclusive_keys.add(pod.exclusive_key)
        host = self._host(pod.node)
        if pod.workload_uid:
            self._book_gang(host, pod.workload_uid, requests, sign, pods=True)
        else:
            add_amounts(host.foreign, requests.items(), sign)
        self._changed(pod.node, host, requests.items())

    # -- whom others keep away

    def count_apart(self, marks: Iterable[str], sign: int) -> None:
        """Somebody asks this of all others (1), or no more (-1)."""
        for mark in marks:
            if mark not in self._apart:
                self._apart_new.add(mark)
                for at in _looked_up_by(marked(mark)):
                    self._apart_by.setdefault(at, set()).add(mark)
            self._apart[mark] += sign

    def _stand_apart(self, marks: Collection[str], sign: int) -> None:
        self.count_apart(marks, sign)
        for mark in marks:
            self._apart_there[mark] += sign

    def settle_apart(self) -> set[str]:
        """Forget what nobody asks any more; what is asked since this was called last, and was not before."""
        for mark in [mark for mark, times in self._apart.items() if not times]:
            del self._apart[mark]
            self._apart_there.pop(mark, None)
            if self._made is not None:
                self._made.forget(mark)
            for at in _looked_up_by(marked(mark)):
                there = self._apart_by[at]
                there.discard(mark)
                if not there:
                    del self._apart_by[at]
        new = self._apart_new.intersection(self._apart)
        self._apart_new.clear()
        return new

    def repelled(self, shape: PodShape) -> tuple[str, ...]:
        """The marks of those who keep pods of this shape away, were they there."""
        if not self._apart:
            return ()
        found: set[str] = set()
        for namespace in (shape.namespace, ""):
            for at in ((namespace,), *((namespace, *pair) for pair in shape.labels)):
                found |= self._apart_by.get(at, frozenset())
        labels = dict(shape.labels)
        return tuple(sorted(mark for mark in found if matches(marked(mark).selector, labels)))

    def kept_away_by(self, shape: PodShape) -> tuple[str, ...]:
        """Of these, who is on the book, or has something set aside."""
        return tuple(mark for mark in self.repelled(shape) if self._apart_there[mark])

    # -- charges

    def charge(
        self,
        key: Key,
        uid: str,
        admission: Admission,
        per_pod: Mapping[str, Mapping[str, int] | Amounts],
    ) -> None:
        """Book the nodes of an admission; `per_pod` says, per pod set, what each pod takes (`takes`).

        Pod sets without a topology assignment take no node: their pods are booked where they stand. A second charge
        under the same key replaces the first.
        """
        self.book(key, booking_of(uid, admission, {name: tuple(dict(each).items()) for name, each in per_pod.items()}))

    def book(self, key: Key, booking: Booking) -> None:
        """The same, added up already."""
        self.release(key)
        if booking.exclusive:
            self.exclusive_keys.update(booking.exclusive)
        self._put(key, booking if booking.uid else replace(booking, uid="/".join(key)))

    def set_aside(self, key: Key, booking: Booking) -> None:
        """Note nodes that are not booked: they count as taken only inside `beside`."""
        self.give_up(key)
        self.exclusive_keys.update(booking.exclusive)
        self._stand_apart(booking.apart, 1)
        self._aside[key] = booking
        self._count_aside(key, 1)

    def give_up(self, key: Key) -> None:
        """Forget what is set aside under a key; nothing when there is nothing."""
        if key in self._aside:
            self._count_aside(key, -1)
            self._stand_apart(self._aside[key].apart, -1)
            del self._aside[key]

    def _count_aside(self, key: Key, sign: int) -> None:
        self._aside_version += 1
        if self._made is not None and self._made.knows_aside:
            self._lay_aside(self._made, self._aside[key], sign)

    def _lay_aside(self, table: Table, booking: Booking, sign: int) -> None:
        for name, amounts in booking.hosts:
            table.put_aside(self.resolve(name), amounts, sign)

    def as_if(
        self, spared: frozenset[Key] | None, gone: frozenset[tuple[Key, str]], bare: frozenset[Key] | None
    ) -> AbstractContextManager[None]:
        """While all that is set aside counts as taken, but for what is `spared` (None: nothing does), and what these
        gangs (key, uid) hold as given back. `bare`: what is spared on nodes that are looked at without gangs. Ask
        inside, change nothing."""
        table = self.table
        if not self._aside:
            spared = bare = None
        return _Looked(table, self._overlay(spared, gone, bare) if spared is not None or gone else table.plain)

    def forget_questions(self) -> None:
        """Nobody will ask `as_if` again what it was asked so far."""
        if self._made is not None:
            self._made.overlays.clear()

    def _overlay(
        self, spared: frozenset[Key] | None, gone: frozenset[tuple[Key, str]], bare: frozenset[Key] | None
    ) -> Overlay:
        table = self.table
        key = (self._aside_version, spared, gone, bare)
        known = table.overlays.get(key)
        if known is not None:
            return known
        if spared is not None and not table.knows_aside:
            for booking in self._aside.values():
                self._lay_aside(table, booking, 1)
            table.knows_aside = True
        if len(table.overlays) >= OVERLAYS:
            table.overlays.clear()
        made = table.overlays[key] = Overlay(
            table.grounds[spared is not None],
            lambda: self._more(spared or frozenset(), gone),
            lambda: self._more(bare or frozenset(), frozenset()),
        )
        return made

    def _more(self, spared: frozenset[Key], gone: frozenset[tuple[Key, str]]) -> dict[int, Mapping[str, int]]:
        """Per row, what there is more of each resource if this were not set aside, and these gangs were gone."""
        out: dict[int, Mapping[str, int]] = {}
        row_of = self.table.row
        for key in spared:
            booking = self._aside.get(key)
            for name, amounts in booking.hosts if booking is not None else ():
                row = row_of.get(self.resolve(name))
                if row is not None:
                    _give(out, row, _capped(amounts))
        for gang in gone:
            for row, held in self._given_back(gang):
                _give(out, row, held)
        return out

    def _given_back(self, gang: tuple[Key, str]) -> list[tuple[int, Mapping[str, int]]]:
        """(row, what a gang holds there), by its charge and by its pods."""
        known = self._given.get(gang)
        if known is not None:
            return known
        key, uid = gang
        charge = self._charges.get(key)
        owner = uid or "/".join(key)
        names = {self.resolve(name) for name, _ in charge.hosts} if charge is not None else set()
        names.update(self._pods[pod].node for pod in self._pods_of.get(uid, ()))
        out: list[tuple[int, Mapping[str, int]]] = []
        for name in names:
            host, row = self._hosts.get(name), self.table.row.get(name)
            paid = host.gangs.get(owner) if host is not None else None
            if paid is not None and row is not None:
                out.append((row, _capped((name, paid.held(name)) for name in {*paid.charged, *paid.pods})))
        self._given[gang] = out
        for part in gang:
            self._asked_of.setdefault(part, set()).add(gang)
        return out

    def release(self, key: Key) -> None:
        """Take a charge off again; nothing when there is none."""
        if key in self._charges:
            self._take(key)

    def _touch(self, *of: Key | str) -> None:
        """What this key, or this uid, holds changes."""
        for part in of:
            gangs = self._asked_of.pop(part, None)
            if gangs is not None:
                for gang in gangs:
                    self._given.pop(gang, None)
                self.forget_questions()

    def _renamed(self) -> None:
        """Other rows, or other nodes of a name."""
        self._summed = ({}, {})
        self._given.clear()
        self._asked_of.clear()

    def _put(self, key: Key, charge: Booking) -> None:
        self._touch(key, charge.uid)
        self._charges[key] = charge
        for host, _ in charge.hosts:
            self._by_host.setdefault(host, set()).add(key)
        for pairs, amounts in charge.domains:
            self._domain_charges.setdefault(pairs, {})[key] = amounts
        if charge.domains:
            if charge.uid not in self._wide:
                for pod in self.pods(charge.uid):
                    self._book_pod(pod, -1)
            self._wide[charge.uid] = self._wide.get(charge.uid, 0) + 1
        self._stand_apart(charge.apart, 1)
        self._count_kinds(charge, 1)
        self._book(charge, 1)

    def _take(self, key: Key) -> Booking:
        charge = self._charges.pop(key)
        self._touch(key, charge.uid)
        self._stand_apart(charge.apart, -1)
        self._count_kinds(charge, -1)
        self._book(charge, -1)
        for host, _ in charge.hosts:
            keys = self._by_host[host]
            keys.discard(key)
            if not keys:
                del self._by_host[host]
        for pairs, _ in charge.domains:
            there = self._domain_charges[pairs]
            del there[key]
            if not there:
                del self._domain_charges[pairs]
        if charge.domains:
            self._wide[charge.uid] -= 1
            if not self._wide[charge.uid]:
                del self._wide[charge.uid]
                for pod in self.pods(charge.uid):
                    self._book_pod(pod, 1)
        return charge

    def _count_kinds(self, charge: Booking, sign: int) -> None:
        self._new_version()
        for kind, pods in charge.kinds:
            total = self._kinds.get(kind, 0) + sign * pods
            if total:
                self._kinds[kind] = total
            else:
                self._kinds.pop(kind, None)
            self._popular = None

    def popular(self) -> list[tuple[Amounts, int]]:
        """(what one pod takes, how many stand on the book) of the commonest pods with devices, by what they take.

        Who uses the nodes today is the best guess at who will want them tomorrow.
        """
        if self._popular is None:
            most = nsmallest(POPULAR, self._kinds.items(), key=lambda entry: (-entry[1], entry[0]))
            self._popular = sorted(most)
        return self._popular

    def domain_charges(self) -> dict[Pairs, dict[str, int]]:
        """What is charged to domains wider than a node: (level, value) pairs -> amounts."""
        out: dict[Pairs, dict[str, int]] = {}
        for pairs, charges in self._domain_charges.items():
            total = out.setdefault(pairs, {})
            for amounts in charges.values():
                add_amounts(total, amounts, 1)
        return out

    def taken_by(self, keys: Iterable[Key]) -> Mapping[int, Mapping[str, int]]:
        """Per row, what these charges take together. It is made from what was asked for last, by the few charges in
        which they differ, and holds until it is asked for again."""
        before, total = self._summed
        now = {key: charge for key in keys if (charge := self._charges.get(key)) is not None}
        for charges, others, sign in ((before, now, -1), (now, before, 1)):
            for key, charge in charges.items():
                if others.get(key) is not charge:
                    for host, amounts in charge.hosts:
                        row = self.table.row.get(self.resolve(host))
                        if row is not None:
                            add_amounts(total.setdefault(row, {}), amounts, sign)
                            if not total[row]:
                                del total[row]
        self._summed = now, total
        return total

    def charged(self, key: Key) -> bool:
        return key in self._charges

    def _book(self, charge: Booking, sign: int) -> None:
        uid = charge.uid
        for name, amounts in charge.hosts:
            node = name if name in self._nodes else self.resolve(name)
            host = self._host(node)
            paid = host.gangs.get(uid)
            if paid is None and sign > 0:
                host.gangs[uid] = _Paid(dict(amounts), {})
                add_amounts(host.gang_total, amounts, 1)
            elif paid is not None and sign < 0 and not paid.pods and paid.charged == dict(amounts):
                del host.gangs[uid]
                add_amounts(host.gang_total, amounts, -1)
            else:
                self._book_gang(host, uid, dict(amounts), sign, pods=False)
                self._changed(node, host, amounts)
                continue
            if host.empty():
                del self._hosts[node]
            if self._made is not None:
                self._made.moved(node, amounts, -sign)
        if charge.hosts:
            self._new_version()

    @staticmethod
    def _book_gang(host: _Host, uid: str, amounts: Mapping[str, int], sign: int, *, pods: bool) -> None:
        paid = host.gangs.get(uid)
        if paid is None:
            paid = host.gangs[uid] = _Paid({}, {})
        for name, amount in amounts.items():
            before = paid.held(name)
            add_amounts(paid.pods if pods else paid.charged, ((name, amount),), sign)
            change = paid.held(name) - before
            if change:
                add_amounts(host.gang_total, ((name, change),), 1)
        if not paid.charged and not paid.pods:
            del host.gangs[uid]

    def _host(self, name: str) -> _Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host({}, {}, {})
        return host

    def _changed(self, name: str, host: _Host, amounts: Iterable[tuple[str, int]]) -> None:
        self._new_version()
        if host.empty():
            del self._hosts[name]
        if self._made is not None:
            self._made.refresh(name, [resource for resource, _ in amounts])

    @contextmanager
    def without(self, keys: Collection[Key]) -> Iterator[None]:
        """As if these charges were not there."""
        charges = [(key, self._take(key)) for key in sorted(set(keys)) if key in self._charges]
        try:
            yield
        finally:
            for key, charge in charges:
                self._put(key, charge)

    # -- what is there

    @property
    def table(self) -> Table:
        if self._made is None:
            self._made = Table(self._nodes, self._parsed, self._hosts)
        return self._made

    def free(self, node: str) -> dict[str, int]:
        """What is free on a node, of each resource it has; may be negative where it is over-committed."""
        out = self.bare(node)
        host = self._hosts.get(node)
        if host is not None:
            for name, amount in host.gang_total.items():
                if name in out:
                    out[name] -= amount
        return out

    def bare(self, node: str) -> dict[str, int]:
        """The same if no gang stood there."""
        value = self._nodes.get(node)
        if value is None:
            return {}
        host = self._hosts.get(node)
        out = dict(value.allocatable)
        if host is not None:
            for name, amount in host.foreign.items():
                if name in out:
                    out[name] -= amount
        return out

    def drift(self, part: int = 0, parts: int = 1) -> list[str]:
        """Differences between what is booked and what nodes, pods and charges add up to, told anew; empty when all is
        well. Of large clusters one part of the nodes at a time."""
        names = sorted(self._nodes)[part % parts :: parts]
        looked = set(names) if parts > 1 else self._nodes.keys() | self._hosts.keys()
        fresh = Capacity()
        for value in self._topologies.values():
            fresh.put_topology(value)
        for name in names:
            fresh.put_node(self._nodes[name])
        for key, charge in self._charges.items():
            there = [entry for entry in charge.hosts if self.resolve(entry[0]) in looked]
            if there or charge.domains or parts == 1:
                fresh._put(key, replace(charge, hosts=tuple(there) if parts > 1 else charge.hosts))
        for pod in self._pods.values():
            if pod.node in looked:
                fresh.put_pod(pod)
        for uid in self._hidden:
            fresh.hide(uid)
        out: list[str] = []
        for name in names:
            mine, theirs = self.free(name), fresh.free(name)
            out.extend(
                f"node {name}: {resource} free is {mine[resource]}, should be {theirs[resource]}"
                for resource in mine
                if mine[resource] != theirs[resource]
            )
        if self.domain_charges() != fresh.domain_charges():
            out.append(f"domains: charged {self.domain_charges()}, should be {fresh.domain_charges()}")
        kinds: dict[Amounts, int] = {}
        for charge in self._charges.values():
            for kind, pods in charge.kinds:
                kinds[kind] = kinds.get(kind, 0) + pods
        if self._kinds != {kind: pods for kind, pods in kinds.items() if pods}:
            out.append(f"kinds of pods: {self._kinds}, should be {kinds}")
        return out

    def largest_gang(
        self, per_pod: Amounts, *, topology: str = "", labels: Pairs = (), tolerations: tuple[Toleration, ...] = ()
    ) -> tuple[tuple[str, int], ...]:
        """The most pods of one kind that would fit now: (level, in the best single domain of it), widest level first;
        in front ("", in all nodes together)."""
        table = self.table
        value = self._topologies.get(topology)
        tree = table.tree(value.levels if value is not None else ())
        counts = table.counts(Filter(labels, (), None, tolerations), per_pod, False)
        if not len(tree.order):
            return (("", 0), *((level, 0) for level in tree.levels))
        caps = capacities(tree, counts[tree.order], Shape(0))
        best = ((level, int(held.max())) for level, held in zip(tree.levels, caps, strict=True))
        return (("", int(counts.sum())), *best)

    def occupants(self, node: str) -> dict[str, dict[str, int]]:
        """Who holds what on a node: uid of the gang -> amounts; "" stands for pods that are not ours."""
        host = self._hosts.get(node)
        if host is None:
            return {}
        out = {
            uid: {name: paid.held(name) for name in sorted({*paid.charged, *paid.pods})}
            for uid, paid in sorted(host.gangs.items())
        }
        if host.foreign:
            out[""] = dict(sorted(host.foreign.items()))
        return out


class _Looked:
    """While the nodes are looked at with this laid over them."""

    __slots__ = ("_before", "_over", "_table")

    def __init__(self, table: Table, over: Overlay) -> None:
        self._table, self._over = table, over

    def __enter__(self) -> None:
        self._before, self._table.overlay = self._table.overlay, self._over

    def __exit__(self, *_: object) -> None:
        self._table.overlay = self._before


def _capped(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    return {name: min(amount, 2**55) for name, amount in amounts}  # sums stay within int64


def _give(into: dict[int, Mapping[str, int]], row: int, amounts: Mapping[str, int]) -> None:
    before = into.get(row)
    if before is None:
        into[row] = amounts
        return
    total = into[row] = dict(before)
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _looked_up_by(asked: AntiAffinity) -> list[tuple[str, ...]]:
    """Where those find it whom it may keep away."""
    named = next((need for need in asked.selector.requirements if need.operator == "In"), None)
    pairs: list[tuple[str, ...]] = [()] if named is None else [(named.key, value) for value in named.values]
    return [(namespace, *pair) for namespace in asked.namespaces or ("",) for pair in pairs]


def _hostname(node: Node | None) -> str:
    return dict(node.labels).get(HOSTNAME_LABEL, "") if node is not None else ""


# ---------------------------------------------------------------- what is asked


class Placement(dict[str, TopologyAssignment]):
    """pod set -> where its pods go, in rank order. Pod sets that need no nodes (elastic flavors) are absent."""


class PlaceRequest(Value, frozen=True, dict=True, gc=True):
    """What is asked of the nodes for one pod set. What follows from it is worked out once: requests are kept, and
    looked up by."""

    pod_set: PodSet
    count: int
    per_pod: Amounts
    """What each pod takes. The pod slot and host ports are added when absent."""
    flavors: tuple[Flavor, ...] = ()
    """The flavors this pod set got: node labels of all, the topology of the first that names one."""
    also: tuple[Flavor, ...] = ()
    """What else is written into its pods: elastic flavors, and what checks add. Their labels and tolerations count."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.pod_set, self.count, self.per_pod, self.flavors, self.also))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def takes(self) -> Amounts:
        """What each pod takes, the pod slot and host ports added. What it asks of all others takes no room, and would
        make many kinds of pods of one."""
        return takes(replace(self.pod_set.shape, apart=()), self.per_pod)

    @cached_property
    def topology(self) -> str:
        return next((flavor.topology for flavor in self.flavors if flavor.topology), "")

    @property
    def flavor(self) -> str:
        """The flavor to name when its nodes do not suffice."""
        named = next((flavor.name for flavor in self.flavors if flavor.topology), "")
        return named or (self.flavors[0].name if self.flavors else "")

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted({pair for flavor in (*self.flavors, *self.also) for pair in flavor.node_labels}))

    @cached_property
    def anywhere(self) -> bool:
        """Is any node that has room as good as any other."""
        pod, asked = self.pod_set.shape, self.pod_set.topology
        bound = pod.refused or pod.of_jobset or pod.exclusive or pod.one_per_domain or pod.same_domain
        return not bound and (asked is None or not (asked.required or asked.slice_required or asked.slices))

    @cached_property
    def filter(self) -> Filter:
        """Which nodes are looked at."""
        shape = self.pod_set.shape
        tolerations = (*shape.tolerations, *(t for flavor in (*self.flavors, *self.also) for t in flavor.tolerations))
        return Filter(self.labels, shape.node_selector, shape.affinity, tolerations)


class Question(Value, frozen=True):
    """All that one call of `capacity.place` asks."""

    capacity: Capacity
    requests: list[PlaceRequest]
    rules: Rules
    avoid: frozenset[str]
    empty: bool
    previous: Admission | None
    lost: frozenset[str]
    explain: bool
    beside: tuple[Key, ...] = ()
    again: bool = False
    """The gang left `previous`, and comes back: whoever of it fits where it stood stands there again."""
    own: str = ""
    """uid of the gang, if there are pods that keep domains to its child jobs (see `_Muster._lingering`)."""

    def before(self, pod_set: str) -> TopologyAssignment | None:
        if self.previous is None:
            return None
        return next((a.topology for a in self.previous.pod_sets if a.name == pod_set), None)
