"""How many pods of a kind each node can take: counted once, and mended only in the rows that were touched.

A `Ground` is the room on nodes, with gangs or without, with what is set aside or without; a `Side` is a ground with
more room on a few rows, and an `Overlay` both, for the length of a question. Counts are kept per filter (which nodes)
and amounts (what one pod takes); a `Log` names the rows that changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from admission.engine import topology
from admission.engine.booking import MOST, Amounts, is_device
from admission.engine.model import (
    Flavor,
    Misfit,
    Node,
    Pairs,
    Requirement,
    Taint,
    Toleration,
    Value,
)
from admission.engine.topology import Ints, Shape, Tree, capacities
from admission.quantity import saturate

if TYPE_CHECKING:
    from admission.engine.nodes import Placement
    from admission.engine.table import Table


KINDS = 64
"""So many sorts of pods are kept with what they would cost others."""
KEEPS_OFF = ("NoSchedule", "NoExecute")
"""Effects of taints that keep new pods off a node."""
BY_CONDITION = "node.kubernetes.io/"
"""Of taints that tell of a node's condition ..."""
CORDONED = "node.kubernetes.io/unschedulable"
"""... and that it is cordoned."""
UNMENDED = 64
"""After so many changes counts are mended, even where they say enough as they are."""


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


def integer(text: str) -> int | None:
    """An int64 as Kubernetes reads it to compare; None for anything else."""
    body = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if body.isascii() and body.isdigit() and len(body) < 20 else None


def toleration_of(tolerations: Iterable[Toleration], taint: Taint) -> Toleration | None:
    """The first that bears a taint: it says for how long."""
    for t in tolerations:
        if t.effect and t.effect != taint.effect:
            continue
        if t.key and t.key != taint.key:
            continue
        if t.operator == "Exists" or (t.key and _bears(t, taint.value)):
            return t
    return None


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return toleration_of(tolerations, taint) is not None


def _bears(toleration: Toleration, value: str) -> bool:
    if toleration.operator not in ("Gt", "Lt"):
        return toleration.value == value
    bound, found = integer(toleration.value), integer(value)
    if bound is None or found is None:
        return False
    return found > bound if toleration.operator == "Gt" else found < bound


def refused_taint(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps a pod off (PreferNoSchedule never does). One that takes pods off does so, too, where
    it is borne for a while: kube-scheduler would let the pod come, and it would be deleted then."""
    for taint in taints:
        if taint.effect not in KEEPS_OFF:
            continue
        borne = toleration_of(tolerations, taint)
        if borne is None or (borne.seconds is not None and taint.effect == "NoExecute"):
            return taint
    return None


def on_purpose(flavors: Iterable[Flavor], tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Tolerations of pods on these flavors. A taint that a flavor names is on all of its nodes, and whoever bears it
    for a while means to run there for as long: for such a taint that comes to the same as for good."""
    own = []
    for taint in (taint for flavor in flavors for taint in flavor.node_taints):
        borne = toleration_of(tolerations, taint)
        if borne is not None and borne.seconds is not None:
            own.append(Toleration(taint.key, "Equal", taint.value, taint.effect))
    return (*own, *tolerations)


def keeps_off(node: Node, flavors: Iterable[Flavor]) -> tuple[str, ...]:
    """Keys of the taints that keep gangs off a node, as no flavor of it tolerates or names them; without those that say
    no more than that it is cordoned or not ready."""
    own = [flavor for flavor in flavors if set(flavor.node_labels) <= set(node.labels)]
    return tuple(
        dict.fromkeys(
            taint.key
            for taint in node.taints
            if taint.effect in KEEPS_OFF
            and (node.ready or not taint.key.startswith(BY_CONDITION))
            and not (node.unschedulable and taint.key == CORDONED)
            and not any(
                taint in flavor.node_taints or refused_taint((taint,), flavor.tolerations) is None for flavor in own
            )
        )
    )


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
class Counts:
    """Pods per row, kept until a row's room changes; `seen` is the place in the log up to which it was mended."""

    counts: Ints
    seen: int
    total: int
    summed: dict[Tree, list[Ints]] = field(default_factory=dict)
    """Per tree: what its domains can hold (`topology.capacities` without slices)."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Count -> how many rows have it; of use with `summed`, and empty without."""

    below: Counts | None = None
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
    whole: Counts | None = None
    """The ground's with these; made when first asked for."""


@lru_cache(maxsize=KINDS)
def names_in(kinds: tuple[Amounts, ...]) -> tuple[str, ...]:
    """All resources that some of these take, sorted."""
    return tuple(sorted({name for kind in kinds for name, _ in kind}))


class Rooms:
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

    rooms: Rooms
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
        self._counts: dict[tuple[Filter, Amounts], Counts] = {}
        self._numbered: dict[tuple[str, ...], _Numbered] = {}

    @property
    def kept(self) -> int:
        """Arrays with a number per row."""
        return len(self._counts) + len(self._numbered)

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

    def _changed(self, known: Counts | _Numbered) -> set[int] | None:
        """Rows to be mended; None where all are better made anew."""
        changed = self.log.since(known.seen)
        return changed if changed is not None and len(changed) * 32 < len(self.table.names) else None

    def counted(self, wanted: Filter, per_pod: Amounts) -> Counts:
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
        known = self._counts[wanted, per_pod] = Counts(counts, end, int(counts.sum()))
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

    def _mend(self, known: Counts, rows: Iterable[int], wanted: Filter, per_pod: Amounts) -> None:
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

    def numbered(self, rooms: Rooms) -> _Numbered:
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

    def number(self, row: int, rooms: Rooms, more: Mapping[str, int]) -> int:
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

    def _on(self, wanted: Filter, per_pod: Amounts) -> tuple[Counts, _Laid | None]:
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

    def counted(self, wanted: Filter, per_pod: Amounts) -> Counts:
        below, laid = self._on(wanted, per_pod)
        if laid is None:
            return below
        if laid.whole is None:
            counts = below.counts.copy()
            counts[laid.rows] = laid.counts
            laid.whole = Counts(counts, below.seen, laid.total, below=below)
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

    def numbers(self, rooms: Rooms) -> Ints:
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
