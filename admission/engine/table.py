"""The nodes as columns: labels, taints and room as arrays, one element per node in the order of node names.

Every tie ends in the name, whatever the order in which nodes came. Amounts are exact ints in the book (`nodes`); arrays
of int64, saturated, mirror them here. Filters (labels, taints, conditions, selectors, affinity) make one mask per
distinct filter. All of it is kept until what it was made of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from admission.engine import topology
from admission.engine.booking import HOST_PORT, PODS, Amounts, everywhere, is_device, is_mark
from admission.engine.counts import (
    KINDS,
    Filter,
    Ground,
    Log,
    Overlay,
    Rooms,
    integer,
    names_in,
    pods_in,
    refused_taint,
)
from admission.engine.model import (
    Node,
    Pairs,
    Requirement,
    Taint,
    Toleration,
)
from admission.engine.topology import Bools, Ints, Shape, Tree, capacities
from admission.names import HOSTNAME_LABEL
from admission.quantity import INT64_MAX, INT64_MIN, saturate

NODE_NAME = "metadata.name"
ANSWERS = 1024
"""So many questions to one table are kept with their answers."""
ROOMS = 1024
"""So many different rooms, and twice as many as there are nodes, are kept with what a pod would cost others there."""

CELLS = 1 << 24
"""So many numbers are kept of columns, masks and counts: 128 MiB."""


class Excluded:
    """How many of some rows or domains are left out, each for the first reason that is given for it."""

    def __init__(self, left: Bools) -> None:
        self._left = left
        self.by: dict[str, int] = {}

    def add(self, why: str, hit: Bools) -> None:
        number = int((self._left & hit).sum())
        if number:
            self.by[why] = self.by.get(why, 0) + number
            self._left = self._left & ~hit


@dataclass(slots=True)
class Paid:
    """One gang on one node: what its charge pays there and what its pods there hold."""

    charged: dict[str, int]
    pods: dict[str, int]

    def held(self, resource: str) -> int:
        return max(self.charged.get(resource, 0), self.pods.get(resource, 0))


@dataclass(slots=True)
class Host:
    """All that stands on one node (which may be unknown yet, or gone)."""

    foreign: dict[str, int]
    gangs: dict[str, Paid]
    gang_total: dict[str, int]

    def empty(self) -> bool:
        return not self.foreign and not self.gangs


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


Parsed = tuple[dict[str, str], dict[str, int]]
"""Labels and allocatable of a node."""


class Table:
    """The nodes as columns. Rows are nodes in the order of their names; made anew when a node comes or goes."""

    def __init__(self, nodes: Mapping[str, Node], parsed: Mapping[str, Parsed], hosts: Mapping[str, Host]) -> None:
        self.names: list[str] = sorted(nodes)
        self.row: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        self.nodes: list[Node] = [nodes[name] for name in self.names]
        self._hosts = hosts
        self._labels: list[dict[str, str]] = [parsed[name][0] for name in self.names]
        self._has: list[dict[str, int]] = [parsed[name][1] for name in self.names]
        self._columns: dict[str, tuple[Ints, dict[str, int]]] = {}
        self._nowhere: tuple[Ints, dict[str, int]] = (np.full(len(self.names), -1, dtype=np.int64), {})
        """Of all labels that no node has: whoever waits may ask for any."""
        self._keys: set[str] | None = None
        """Labels that some node has."""
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
        self._rooms: dict[tuple[str, ...], Rooms] = {}

    @staticmethod
    def _usable(node: Node) -> bool:
        return node.ready and not node.unschedulable

    def _class_of(self, taints: tuple[Taint, ...]) -> int:
        return self._taint_class.setdefault(taints, len(self._taint_class))

    def taint_classes(self) -> dict[tuple[Taint, ...], int]:
        """The distinct sets of taints; `taints` gives per row which."""
        return self._taint_class

    # -- what changes in place

    def update(self, node: Node, parsed: Parsed) -> None:
        """A node that is already there, in a newer version."""
        i = self.row[node.name]
        old = self.nodes[i]
        self.nodes[i] = node
        self._labels[i], self._has[i] = parsed
        if node.labels != old.labels:
            self._keys = None
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

    def tidy(self) -> None:
        """Let go of all that would be made anew when it is asked for, where it became much: who waits may name any
        port and any combination of labels."""
        kept = len(self.free) + len(self.bare) + len(self._most) + len(self._masks) // 8  # a mask is of bytes
        kept += sum(ground.kept for pair in self.grounds for ground in pair)
        if kept * len(self.names) <= CELLS:
            return
        for made in (self.free, self.bare, self._every, self._most, self._masks, self._leaves, self._rooms):
            made.clear()
        for pair in self.grounds:
            for ground in pair:
                ground.forget()
        self.bare_changed()

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
            every = self._every[resource] = everywhere(resource)
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
            if self._keys is None:
                self._keys = {NODE_NAME}.union(*self._labels)
            if key not in self._keys:
                return self._nowhere
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
        bound = integer(req.values[0]) if len(req.values) == 1 else None
        meets = np.zeros(len(code) + 1, dtype=np.bool_)
        if bound is not None:
            for value, i in code.items():
                number = integer(value)
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
            rooms = self._rooms[names] = Rooms(names)
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
        return self._chosen_counts(wanted, per_pod, lambda rows, name: self.room_on(rows, name, True))

    def whole_counts(self, wanted: Filter, per_pod: Amounts) -> Ints:
        """As `sound_counts`, with no pod of others on the nodes, either."""

        def whole(rows: Ints, name: str) -> Ints:
            return np.full(len(rows), every, dtype=np.int64) if (every := everywhere(name)) else self.most(name)[rows]

        return self._chosen_counts(wanted, per_pod, whole)

    def _chosen_counts(self, wanted: Filter, per_pod: Amounts, room: Callable[[Ints, str], Ints]) -> Ints:
        rows = np.flatnonzero(self.chosen(wanted))
        counts = np.zeros(len(self.names), dtype=np.int64)
        counts[rows] = pods_in((room(rows, name), amount) for name, amount in per_pod)
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
