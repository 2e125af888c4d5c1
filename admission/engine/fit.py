"""How many pods of each pod set every node can take, for one question to the book.

`Fit` reads the question: each pod set becomes a `Part`, with its filter, what one pod takes, the tree of its topology
and the shape in which it wants to stand. Per row of the table it then counts pods of it: what is free, less what pod
sets placed before `held` there, and nothing where exclusive placement of JobSets or pods of others that repel it forbid
it. Where pods of its own linger, as on nodes that are lost, their domains are bound to the child jobs they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from admission.engine import topology
from admission.engine.booking import EXCLUSIVE, JOBSET_PODS, MOST, Amounts, children_of, mark_of, marked
from admission.engine.counts import Filter
from admission.engine.model import Detail, Domain, Misfit, PodUsage, Value
from admission.engine.nodes import PlaceRequest, Question
from admission.engine.table import Table
from admission.engine.topology import Bools, Ints, Shape, Take, Tree

CHOICES = 64
"""Domains, or combinations of domains, that are tried for pod sets which must share one."""


class Slot(Value, frozen=True):
    """Pods of a pod set in rank order that stand on a row, or stood on a node that is lost (None)."""

    row: int | None
    pods: int


@dataclass(slots=True)
class Part:
    """One pod set being placed."""

    request: PlaceRequest
    filter: Filter
    per_pod: Amounts
    tree: Tree
    shape: Shape
    slots: list[Slot] = field(default_factory=list)
    """Where it stands now, when it is not placed anew."""

    @property
    def name(self) -> str:
        return self.request.pod_set.name

    @property
    def plain(self) -> bool:
        pod = self.request.pod_set.shape
        return not (self.shape.slices or pod.one_per_domain or pod.same_domain or pod.exclusive or self.slots)

    def ranks(self) -> list[int | None]:
        """The row of each pod, by its rank; None for one that has none yet."""
        rows = [slot.row for slot in self.slots for _ in range(slot.pods)][: self.shape.count]
        return [*rows, *[None] * (self.shape.count - len(rows))]

    def kept(self) -> list[tuple[int, int]]:
        return [(slot.row, slot.pods) for slot in self.slots if slot.row is not None]


Held = Mapping[int, Mapping[str, int]]
"""row -> what pod sets placed before take there."""


class RefusedError(Exception):
    """A request that no nodes could meet; carries the Misfit."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.message)
        self.misfit = misfit


class Fit:
    """One question, and what nodes hold of what it asks for."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.table: Table = question.capacity.table
        self.empty = question.empty
        self.avoid = [self.table.row[name] for name in sorted(question.avoid) if name in self.table.row]
        self.lingering = self._lingering()

    # -- reading the request

    def part(self, request: PlaceRequest) -> Part:
        value = self.question.capacity.topology(request.topology)
        tree = self.table.tree(value.levels if value is not None else ())
        part = Part(
            request=request,
            filter=request.filter,
            per_pod=request.takes,
            tree=tree,
            shape=Shape(count=request.count, spread=any(flavor.spread for flavor in request.flavors)),
        )
        asked = request.pod_set.topology
        if asked is not None:
            slices = [*([(asked.slice_required, asked.slice_size)] if asked.slice_required else []), *asked.slices]
            sizes = [(self._depth(part, level), size) for level, size in slices]
            for _, size in sizes:
                if size < 1:
                    raise self._refuse(part, "slice topology requested, but slice size not provided")
            for (above, outer), (below, inner) in pairwise(sizes):
                if below <= above or outer % inner:
                    raise self._refuse(part, f"slices of {inner} do not nest in slices of {outer}")
            part.shape = replace(
                part.shape,
                required=self._depth(part, asked.required) if asked.required else None,
                preferred=self._depth(part, asked.preferred) if asked.preferred else None,
                scattered=asked.unconstrained and not slices,
                slices=tuple(sizes),
            )
            if sizes and part.shape.required is not None and sizes[0][0] < part.shape.required:
                raise self._refuse(part, f"slices of level {slices[0][0]} are wider than level {asked.required}")
            if sizes and request.pod_set.shape.exclusive is not None:
                raise self._refuse(part, "slices and exclusive topology: drop the slices, a child job is one already")
        before = self.question.before(part.name)
        if before is not None:
            part.slots = [self._slot(domain) for domain in before.domains]
        return part

    def _slot(self, domain: Domain) -> Slot:
        host = domain.values[-1]
        name = self.question.capacity.resolve(host)
        row = self.table.row.get(name)
        if row is None or not {host, name}.isdisjoint(self.question.lost or self.question.avoid):
            return Slot(None, domain.count)
        if not self.question.lost and not self.table.nodes[row].ready:
            return Slot(None, domain.count)
        return Slot(row, domain.count)

    def _depth(self, part: Part, level: str) -> int:
        depth = part.tree.depth(level)
        if depth is None:
            raise self._refuse(part, f"topology {part.request.topology!r} has no level {level}")
        return depth

    def _refuse(self, part: Part, message: str) -> RefusedError:
        return RefusedError(
            Misfit(
                pod_set=part.name,
                flavor=part.request.flavor,
                pods=part.request.count,
                placeable=0,
                detail=Detail.INVALID,
                nodes=len(self.table.names),
                message=message,
            )
        )

    # -- counts

    def counts(self, part: Part, held: Held, within: Bools | None) -> Ints:
        """Per row: how many pods of this kind it can take."""
        counts = self.room(part, held, within)
        for barred in (self.barred(part, held), self.repelled(part)):
            if barred is not None:
                counts = np.where(barred, 0, counts)
        return counts

    def room(self, part: Part, held: Held, within: Bools | None) -> Ints:
        """The same without what exclusive placement forbids. The array may belong to the cache."""
        counts = self.table.counts(part.filter, part.per_pod, self.empty)
        if not (self.avoid or held or within is not None):
            return counts
        counts = counts.copy()
        if held:
            rows = np.fromiter(held, np.int64, len(held))
            left = np.where(counts[rows] > 0, MOST, 0)
            for name, amount in part.per_pod:
                less = np.fromiter((min(amounts.get(name, 0), 2**62) for amounts in held.values()), np.int64, len(held))
                free = np.maximum(self.table.room_on(rows, name, self.empty), 0) - less
                np.minimum(left, np.maximum(free, 0) // amount, out=left)
            counts[rows] = left
        counts[self.avoid] = 0
        if within is not None:
            counts[~within] = 0
        return counts

    def barred(self, part: Part, held: Held) -> Bools | None:
        """Rows of domains in which exclusive placement of JobSets, its own or that of others, suffers none of its pods;
        None: no such rows."""
        pod = part.request.pod_set.shape
        if not pod.of_jobset:
            return None
        asked = [p.shape.exclusive for p in (request.pod_set for request in self.question.requests)]
        own = pod.exclusive.key if pod.exclusive is not None and not pod.exclusive.values else None
        out: Bools | None = None
        for key in sorted({*self.question.capacity.exclusive_keys, *(one.key for one in asked if one is not None)}):
            # Where one has its domain to itself, none of the others may be; where it may not be, one of them is.
            mark = JOBSET_PODS if key == own else EXCLUSIVE + key
            room = self.table.room(mark, self.empty)
            for row, pods in self.lingering:
                # Its own pods bar nobody but others.
                room = room.copy()
                room[row] += sum(key in (own, pod.exclusive_key) for pod in pods)
            taken = room < MOST
            there = [row for row, amounts in held.items() if mark in amounts]
            if there:
                taken[there] = True
            if (hit := self._around(key, taken)) is not None:
                out = hit if out is None else out | hit
        return out

    def _around(self, key: str, taken: Bools) -> Bools | None:
        """Rows in whose domain of this label any of these rows is; None: no such rows."""
        if not taken.any():
            return None
        codes, values = self.table.column(key)
        hit = np.zeros(len(values) + 1, dtype=np.bool_)
        hit[codes[taken]] = True
        hit[-1] = False  # rows without the label read it
        around: Bools = hit[codes]
        return around

    def repelled(self, part: Part) -> Bools | None:
        """Rows of domains in which pods of others stand that keep its pods away (required anti-affinity, which
        kube-scheduler reads both ways); None: no such rows."""
        pod = part.request.pod_set.shape
        before = self.question.before(part.name)
        own = set[str]()
        if before is not None and not self.question.again and any(slot.row is None for slot in part.slots):
            own.update(map(mark_of, pod.apart))  # it lost nodes: its charge is on the book
        out: Bools | None = None
        for mark in self.question.capacity.kept_away_by(pod):
            room = self.table.room(mark, self.empty)
            if mark in own and before is not None:
                # Of its own pods `one_per_domain` takes care.
                room = room.copy()
                for domain in before.domains:
                    row = self.table.row.get(self.question.capacity.resolve(domain.values[-1]))
                    if row is not None:
                        room[row] += domain.count
            if (hit := self._around(marked(mark).key, room < MOST)) is not None:
                out = hit if out is None else out | hit
        return out

    @staticmethod
    def hold(held: dict[int, dict[str, int]], part: Part, take: Take) -> None:
        for row, pods in take:
            there = held.get(row)
            if there is None:
                held[row] = {name: amount * pods for name, amount in part.per_pod}
            else:
                for name, amount in part.per_pod:
                    there[name] = there.get(name, 0) + amount * pods

    def leaf_domain(self, part: Part, depth: int) -> Ints:
        """Per row: its domain at a depth of the part's tree."""
        domains: Ints = part.tree.around[depth][part.tree.position]
        return domains

    def thinned(self, part: Part, counts: Ints) -> Ints:
        """At most one pod per value of each label of `one_per_domain` (nodes without the label are free of it)."""
        depth = part.shape.required
        for key in part.request.pod_set.shape.one_per_domain:
            codes = self.table.column(key)[0]
            rows = np.flatnonzero((counts > 0) & (codes >= 0))
            if not len(rows):
                continue
            around = self.leaf_domain(part, depth)[rows] if depth is not None else np.zeros(len(rows), np.int64)
            order = np.lexsort([rows, counts[rows], around, codes[rows]])
            rows, around = rows[order], around[order]
            first = np.ones(len(rows), dtype=np.bool_)
            first[1:] = (codes[rows][1:] != codes[rows][:-1]) | (around[1:] != around[:-1])
            counts = counts.copy()
            counts[rows[~first]] = 0
            counts[rows[first]] = 1
        return counts

    def domains(self, unit: list[Part], held: Held) -> Iterator[Bools | None]:
        """Domains that could hold each pod set of a group alone, the tightest first."""
        tree = unit[0].tree
        required = [part.shape.required for part in unit if part.shape.required is not None]
        preferred = [part.shape.preferred for part in unit if part.shape.preferred is not None]
        if any(part.tree is not tree for part in unit) or not (required or preferred):
            yield None
            return
        deepest = max(required) if required else max(preferred)
        standing = next((part.kept()[0][0] for part in unit if part.kept()), None)
        for depth in [deepest] if required else range(deepest, -1, -1):
            domain = self.leaf_domain(unit[0], depth)
            if standing is not None:
                yield domain == domain[standing]
                continue
            fits = tree.known[depth].copy()
            room = np.zeros(len(fits), dtype=np.int64)
            for part in unit:
                counts = self.counts(part, held, None)[tree.order]
                caps = topology.capacities(tree, counts, part.shape)
                fits &= topology.with_short(tree, caps, counts, part.shape)[depth] >= part.shape.count
                room += np.minimum(caps[depth], MOST)
            found = np.flatnonzero(fits)
            for index in found[np.lexsort([found, room[found]])][:CHOICES].tolist():
                yield domain == index
        if not required:
            yield None

    # -- pods of its own that are not gone yet

    def _lingering(self) -> list[tuple[int, list[PodUsage]]]:
        """(row, pods) of the gang's own that are not gone yet, as on nodes that are lost, or of an earlier JobSet of
        its name. JobSet has the first pod of a child job follow all others of its child by affinity, and keep off those
        of others; kube-scheduler counts pods that linger, too: their domain is that child's, and no other one is."""
        out: dict[int, list[PodUsage]] = {}
        asked = self.question
        for pod in asked.capacity.lingering(asked.own, (r.pod_set.shape for r in asked.requests)) if asked.own else ():
            row = self.table.row.get(pod.node)
            if row is not None:
                out.setdefault(row, []).append(pod)
        return sorted(out.items())

    def _kept(self, key: str) -> set[int]:
        """Domains (their codes) that these pods keep."""
        codes = self.table.column(key)[0]
        there = {int(codes[row]) for row, pods in self.lingering if any(pod.exclusive_key == key for pod in pods)}
        return there - {-1}

    def bound(self, request: PlaceRequest) -> dict[int, int]:
        """Child job -> the domain that is kept for it, for pods of it are there."""
        wanted = request.pod_set.shape.exclusive
        if wanted is None or not self.lingering:
            return {}
        codes, name = self.table.column(wanted.key)[0], children_of(request.pod_set.shape)
        return {
            pod.child[1]: int(codes[row])
            for row, pods in self.lingering
            for pod in pods
            if pod.exclusive_key == wanted.key and pod.child is not None and pod.child[0] == name and codes[row] >= 0
        }

    def stuck(self, part: Part) -> bool:
        """Is a domain kept, and nobody can tell for which child job?"""
        wanted = part.request.pod_set.shape.exclusive
        if wanted is None or not self.lingering:
            return False
        bound = {code for one in self.question.requests for code in self.bound(one).values()}
        return not self._kept(wanted.key) <= bound
