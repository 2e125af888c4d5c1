"""Where a whole gang would stand: all pods of all its pod sets at once, or nowhere, and then why.

`place` is the one door. With Muster's rule (`Rules.pack_against_fragmentation`) the leaves are always nodes, so a yes
is exact per node, and pod sets are packed as `topology.pack` says. Equal pods are placed without search, and a no for
a gang of one pod set is exact too, whatever level, slices, affinity or anti-affinity to itself it asks for (but not
where it asks for one pod per value of several labels, or of a label whose values cross the domains of its slices).
Child jobs of exclusive placement get one domain each, the fullest that hold them.

Several pod sets compete for nodes. They are tried one after the other in all orders (three at most; of more, the
hardest first), and when none succeeds `_exact` decides by dynamic programming over the nodes. Its bound: pod sets
without slices and affinities to themselves, at most 64 choices of domains, at most `_WORK` elementary steps. Beyond
the bound a no may be wrong; a yes never is.

Kueue's rule is in `tas` and `profiles`, the book of nodes in `nodes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, permutations, product
from math import prod

import numpy as np
from msgspec.structs import replace

from admission.engine import topology
from admission.engine.booking import (
    EXCLUSIVE,
    HOST_PORT,
    JOBSET_PODS,
    MOST,
    PODS,
    Amounts,
    add_amounts,
    children_of,
    is_mark,
    mark_of,
    marked,
    takes,
)
from admission.engine.counts import Filter, refused_taint, tolerates
from admission.engine.model import (
    Admission,
    Detail,
    Domain,
    Key,
    Misfit,
    PodUsage,
    Rules,
    TopologyAssignment,
    Value,
)
from admission.engine.nodes import Capacity, Placement, PlaceRequest, Question
from admission.engine.table import ANSWERS, Table
from admission.engine.tas import Tas
from admission.engine.topology import Bools, Ints, Shape, Take, Tree
from admission.names import HOSTNAME_LABEL

__all__ = ["HOST_PORT", "PODS", "Capacity", "PlaceRequest", "Placement", "needs_nodes", "place", "takes", "tolerates"]

_WORK = 10_000_000
"""Elementary steps that one question for a mixed gang may take, all choices of domains together: with nobody to count
them a tenant could write a gang that takes minutes."""
_MIXING = 100
"""Of these, what it costs to find one mixture of pods."""
_CHOICES = 64
"""Domains, or combinations of domains, that are tried for pod sets which must share one."""


def needs_nodes(request: PlaceRequest, rules: Rules) -> bool:
    """Whether node capacity decides about a pod set: every flavor not elastic, or only those with a topology."""
    if rules.capacity_unless_elastic:
        return not any(flavor.elastic for flavor in request.flavors)
    return any(flavor.topology for flavor in request.flavors)


def place(
    capacity: Capacity,
    requests: Sequence[PlaceRequest],
    *,
    rules: Rules,
    avoid: Collection[str] = (),
    empty: bool = False,
    beside: Collection[Key] = (),
    previous: Admission | None = None,
    without: Collection[Key] = (),
    lost: Collection[str] = (),
    explain: bool = True,
    again: bool = False,
    own: str = "",
) -> Placement | Misfit:
    """Where all pods of all pod sets would stand, or why they cannot.

    avoid: nodes that are left out. empty: as if no gang held anything, but for the charges `beside`
    (which Kueue's rule does not know). without: charges that are looked away from.
    previous: where the gang stands now; its pods keep their places. If some of these nodes are `lost` (default: those
    that are to be avoided, are gone, or are not fit for new pods) only their pods get new places, and the gang's
    charge must be on the book. If none is, the gang grows or shrinks, and its charge must be looked away from.
    again: the gang left `previous` and is on the book no more. Its pods go back where there is still room for them, the
    others beside them by the rules of its topology (Muster's rule only); a Misfit where that cannot be.
    own: uid of the gang, whose charge is not on the book: what its pods that linger keep to themselves is for it alone.
    explain: a Misfit says what excluded the nodes and whether it would fit an empty cluster (which costs a second
    trial); without, only how many pods could be placed.
    """
    if without:
        with capacity.without(without):
            return place(
                capacity,
                requests,
                rules=rules,
                avoid=avoid,
                empty=empty,
                beside=beside,
                previous=previous,
                lost=lost,
                explain=explain,
                again=again,
                own=own,
            )
    own = own if own and capacity.lingering(own, (one.pod_set.shape for one in requests)) else ""
    memo: object = None
    overlay = capacity.table.overlay
    if not (beside or again or lost or previous or own):
        kept_away = tuple(capacity.kept_away_by(one.pod_set.shape) for one in requests)
        memo = (rules.pack_against_fragmentation, rules.gates, tuple(requests), frozenset(avoid), kept_away)
        # On a table without gangs an answer stays as long as nodes, and pods that are not theirs, do.
        at, explained, known = overlay.placed[empty].get(memo, (-1, False, None))
        holds = empty or at == capacity.version
        if known is not None and holds and (explained or not explain or isinstance(known, Placement)):
            return known
    wanted = [request for request in requests if request.count > 0 and needs_nodes(request, rules)]
    for request in wanted:
        refused = request.pod_set.shape.refused if rules.pack_against_fragmentation else ""
        if request.pod_set.shape.exclusive is not None and not rules.pack_against_fragmentation:
            refused = (
                "exclusive topology of a JobSet cannot be honoured where Kueue's rule places pods: drop one of them"
            )
        if refused:
            return Misfit(
                pod_set=request.pod_set.name,
                flavor=request.flavor,
                pods=request.count,
                placeable=0,
                detail=Detail.CONSTRAINT_REFUSED,
                message=refused,
            )
    given_up = capacity.effort.given_up
    question = Question(
        capacity, wanted, rules, frozenset(avoid), empty, previous, frozenset(lost), explain, tuple(beside), again, own
    )
    answer = _Muster(question).placed() if rules.pack_against_fragmentation else Tas(question).placed()
    if memo is not None and capacity.effort.given_up == given_up:
        answers = overlay.placed[empty]
        if len(answers) >= ANSWERS:
            answers.clear()
        answers[memo] = (capacity.version, explain, answer)
    return answer


def room(
    capacity: Capacity,
    requests: Sequence[PlaceRequest],
    *,
    rules: Rules,
    avoid: Collection[str] = (),
    empty: bool = False,
) -> bool | None:
    """Would `place` find room, where one pod set asks for nothing but that: a sum of counts, for nothing has to be
    chosen. None where it asks for more."""
    wanted = [request for request in requests if request.count > 0 and needs_nodes(request, rules)]
    if not rules.pack_against_fragmentation or len(wanted) != 1 or not wanted[0].anywhere:
        return None
    if capacity.kept_away_by(wanted[0].pod_set.shape):
        return None
    table, pods = capacity.table, wanted[0].count
    if avoid:
        counts = table.counts(wanted[0].filter, wanted[0].takes, empty)
        pods += sum(counts.item(table.row[name]) for name in avoid if name in table.row)
    return table.overlay.holds(wanted[0].filter, wanted[0].takes, pods, empty)


def holds(capacity: Capacity, requests: Sequence[PlaceRequest], *, rules: Rules, avoid: Collection[str] = ()) -> bool:
    """Would `place` find room."""
    known = room(capacity, requests, rules=rules, avoid=avoid)
    if known is not None:
        return known
    return not isinstance(place(capacity, requests, rules=rules, avoid=avoid, explain=False), Misfit)


# ---------------------------------------------------------------- Muster's rule


class _Slot(Value, frozen=True):
    """Pods of a pod set in rank order that stand on a row, or stood on a node that is lost (None)."""

    row: int | None
    pods: int


@dataclass(slots=True)
class _Part:
    """One pod set being placed."""

    request: PlaceRequest
    filter: Filter
    per_pod: Amounts
    tree: Tree
    shape: Shape
    slots: list[_Slot] = field(default_factory=list)
    """Where it stands now, when it is not placed anew."""

    @property
    def name(self) -> str:
        return self.request.pod_set.name

    @property
    def plain(self) -> bool:
        pod = self.request.pod_set.shape
        return not (self.shape.slices or pod.one_per_domain or pod.same_domain or pod.exclusive or self.slots)

    def kept(self) -> list[tuple[int, int]]:
        return [(slot.row, slot.pods) for slot in self.slots if slot.row is not None]


Held = Mapping[int, Mapping[str, int]]
"""row -> what pod sets placed before take there."""


class _RefusedError(Exception):
    """A request that no nodes could meet; carries the Misfit."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.message)
        self.misfit = misfit


class _Muster:
    """One question to the book, answered with Muster's rule."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.table: Table = question.capacity.table
        self.empty = question.empty
        self.avoid = [self.table.row[name] for name in sorted(question.avoid) if name in self.table.row]
        self.lingering = self._lingering()
        self.effort = question.capacity.effort
        self._allowed = self._left = _WORK if self.effort.left is None else max(0, min(_WORK, self.effort.left))
        self._mixed: dict[tuple[object, ...], list[tuple[int, ...]] | None] = {}
        """Mixtures by pod sets and what a node has: nodes are much alike, and choices of domains share most of them."""
        self._out_of_steps = False
        """A search was not made, or not to its end."""

    def _spend(self, steps: int) -> None:
        self._left -= steps
        self.effort.spend(steps)

    def placed(self) -> Placement | Misfit:
        try:
            parts = [self._part(request) for request in self.question.requests]
        except _RefusedError as refused:
            return refused.misfit
        asked = self.question
        beside = asked.capacity.taken_by(asked.beside) if asked.beside else {}
        if len(parts) == 1 and parts[0].request.anywhere and not (asked.again or asked.previous):
            # All there is to it, most of the time.
            take = self._alone(parts[0], beside, None)
            return self._misfit(parts[0], parts) if take is None else self._answer(parts, {parts[0].name: take})
        standing: dict[int, dict[str, int]] = {}
        stuck = next((part for part in parts if self._stuck(part)), None)
        if stuck is not None:
            return self._misfit(stuck, parts)
        if self.question.again:
            for part in parts:
                self._stand_again(part, standing)
        elif self.question.previous is not None and not any(s.row is None for part in parts for s in part.slots):
            for part in parts:  # grows: what it holds is not on the book
                self._hold(standing, part, part.kept())
        for row, amounts in beside.items():
            add_amounts(standing.setdefault(row, {}), amounts.items(), 1)
        units = self._units(parts)
        failed: _Part | None = None
        for order in _orders(units, self._hardness):
            held = {row: dict(amounts) for row, amounts in standing.items()}
            takes_of: dict[str, Take] = {}
            for unit in order:
                got = self._unit(unit, held)
                if isinstance(got, _Part):
                    failed = failed or got
                    break
                takes_of.update(got)
            else:
                if self.question.again and not all(self._lawful(part, takes_of[part.name]) for part in parts):
                    failed = parts[0]
                    break
                return self._answer(parts, takes_of)
        if len(parts) > 1 and not self.question.again and all(part.plain for part in parts):
            joint = self._search(units)
            if joint is not None:
                return self._answer(parts, joint)
        if self._out_of_steps and self._allowed < _WORK:
            self.effort.given_up += 1
        assert failed is not None
        return self._misfit(failed, parts)

    # -- reading the request

    def _part(self, request: PlaceRequest) -> _Part:
        value = self.question.capacity.topology(request.topology)
        tree = self.table.tree(value.levels if value is not None else ())
        part = _Part(
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
            if sizes and request.count % sizes[0][1]:
                raise self._refuse(part, f"{request.count} pods are no whole slices of {sizes[0][1]}")
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

    def _slot(self, domain: Domain) -> _Slot:
        host = domain.values[-1]
        row = self.table.row.get(self.question.capacity.resolve(host))
        if host in (self.question.lost or self.question.avoid) or row is None:
            return _Slot(None, domain.count)
        if not self.question.lost and not self.table.nodes[row].ready:
            return _Slot(None, domain.count)
        return _Slot(row, domain.count)

    def _stand_again(self, part: _Part, standing: dict[int, dict[str, int]]) -> None:
        """Leave of its slots those that have room; what stands there is noted in `standing`."""
        slots: list[_Slot] = []
        left = part.request.count
        barred = [mask for mask in (self._barred(part, {}), self._repelled(part)) if mask is not None]
        for slot in part.slots:
            pods = min(slot.pods, left)
            left -= pods
            room = 0
            if slot.row is not None and not any(mask[slot.row] for mask in barred):
                room = min(pods, int(self._room(part, standing, None)[slot.row]))
            if room:
                slots.append(_Slot(slot.row, room))
                self._hold(standing, part, [(slot.row or 0, room)])
            if room < pods:
                slots.append(_Slot(None, pods - room))
        part.slots = slots

    def _lawful(self, part: _Part, take: Take) -> bool:
        """Does a pod set that partly stands again keep all that it asks for: its nodes or its owner's wishes may have
        changed since it stood there."""
        new = iter([row for row, pods in take for _ in range(pods)])
        ranked = [next(new) if slot.row is None else slot.row for slot in part.slots for _ in range(slot.pods)]
        rows = np.array([*ranked, *new], dtype=np.int64)
        pod, shape = part.request.pod_set.shape, part.shape
        for key in pod.same_domain:
            codes = self.table.column(key)[0][rows]
            if (codes != codes[0]).any() or codes[0] < 0:
                return False
        for key in pod.one_per_domain:
            codes = self.table.column(key)[0][rows]
            codes = codes[codes >= 0]
            if len(np.unique(codes)) < len(codes):
                return False
        if pod.exclusive is not None:
            codes = self.table.column(pod.exclusive.key)[0][rows]
            own = [np.unique(codes[i : i + pod.exclusive.pods]) for i in range(0, len(codes), pod.exclusive.pods)]
            if any(len(values) > 1 or values[0] < 0 for values in own) or len(np.unique(codes)) < len(own):
                return False
        if shape.required is not None:
            around = self._leaf_domain(part, shape.required)[rows]
            if (around != around[0]).any() or not part.tree.known[shape.required][around[0]]:
                return False
        return all(not (np.bincount(self._leaf_domain(part, depth)[rows]) % size).any() for depth, size in shape.slices)

    def _depth(self, part: _Part, level: str) -> int:
        depth = part.tree.depth(level)
        if depth is None:
            raise self._refuse(part, f"topology {part.request.topology!r} has no level {level}")
        return depth

    def _refuse(self, part: _Part, message: str) -> _RefusedError:
        return _RefusedError(
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

    @staticmethod
    def _units(parts: Iterable[_Part]) -> list[list[_Part]]:
        """Pod sets of one group together, the others alone, in the order given."""
        units: dict[str, list[_Part]] = {}
        for i, part in enumerate(parts):
            asked = part.request.pod_set.topology
            units.setdefault(f"g {asked.group}" if asked is not None and asked.group else f"s {i}", []).append(part)
        return list(units.values())

    def _hardness(self, unit: list[_Part]) -> int:
        """How many times over the empty table could hold it: the fewer, the sooner it should choose."""
        return min(int(self._counts(part, {}, None).sum()) // max(1, part.request.count) for part in unit)

    # -- counts

    def _counts(self, part: _Part, held: Held, within: Bools | None) -> Ints:
        """Per row: how many pods of this kind it can take."""
        counts = self._room(part, held, within)
        for barred in (self._barred(part, held), self._repelled(part)):
            if barred is not None:
                counts = np.where(barred, 0, counts)
        return counts

    def _room(self, part: _Part, held: Held, within: Bools | None) -> Ints:
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

    def _barred(self, part: _Part, held: Held) -> Bools | None:
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

    def _repelled(self, part: _Part) -> Bools | None:
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
    def _hold(held: dict[int, dict[str, int]], part: _Part, take: Take) -> None:
        for row, pods in take:
            there = held.get(row)
            if there is None:
                held[row] = {name: amount * pods for name, amount in part.per_pod}
            else:
                for name, amount in part.per_pod:
                    there[name] = there.get(name, 0) + amount * pods

    def _leaf_domain(self, part: _Part, depth: int) -> Ints:
        """Per row: its domain at a depth of the part's tree."""
        domains: Ints = part.tree.around[depth][part.tree.position]
        return domains

    def _thinned(self, part: _Part, counts: Ints) -> Ints:
        """At most one pod per value of each label of `one_per_domain` (nodes without the label are free of it)."""
        depth = part.shape.required
        for key in part.request.pod_set.shape.one_per_domain:
            codes = self.table.column(key)[0]
            rows = np.flatnonzero((counts > 0) & (codes >= 0))
            if not len(rows):
                continue
            around = self._leaf_domain(part, depth)[rows] if depth is not None else np.zeros(len(rows), np.int64)
            order = np.lexsort([rows, counts[rows], around, codes[rows]])
            rows, around = rows[order], around[order]
            first = np.ones(len(rows), dtype=np.bool_)
            first[1:] = (codes[rows][1:] != codes[rows][:-1]) | (around[1:] != around[:-1])
            counts = counts.copy()
            counts[rows[~first]] = 0
            counts[rows[first]] = 1
        return counts

    # -- child jobs that have their domains to themselves

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

    def _bound(self, request: PlaceRequest) -> dict[int, int]:
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

    def _stuck(self, part: _Part) -> bool:
        """Is a domain kept, and nobody can tell for which child job?"""
        wanted = part.request.pod_set.shape.exclusive
        if wanted is None or not self.lingering:
            return False
        bound = {code for one in self.question.requests for code in self._bound(one).values()}
        return not self._kept(wanted.key) <= bound

    def _children(self, part: _Part, counts: Ints, shape: Shape, first: int = 0) -> Take | None:
        """Whole child jobs, each in a domain of its own. `first`: the index of the first of them."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes, values = self.table.column(wanted.key)
        children = -(-shape.count // wanted.pods)
        counts = np.where(codes >= 0, counts, 0)
        if shape.required is not None:
            levels: list[int | None] = [shape.required]
        elif shape.preferred is not None:
            levels = [*range(shape.preferred, -1, -1), None]
        else:
            levels = [None] if shape.scattered or shape.spread else [*range(len(part.tree.levels) - 2, -1, -1), None]
        rows = np.flatnonzero(counts)
        fixed = None
        if wanted.values:
            fixed = [values.get(f"{wanted.values}{i}", -1) for i in range(first, first + children)]
            rows = rows[np.isin(codes[rows], fixed)]
        for level in levels:
            around = np.zeros(len(rows), np.int64) if level is None else self._leaf_domain(part, level)[rows]
            pairs, which = np.unique(around * len(values) + codes[rows], return_inverse=True)
            room = np.bincount(which.reshape(-1), counts[rows], len(pairs)).astype(np.int64)
            pairs, room = pairs[room >= wanted.pods], room[room >= wanted.pods]
            domains, codes_there = np.divmod(pairs, max(1, len(values)))
            free = np.bincount(domains, minlength=1)
            if level is not None:
                free = np.where(part.tree.known[level][: len(free)], free, 0)
            enough = np.flatnonzero(free >= children)
            if not len(enough):
                continue
            # Of the domains around, the one with the fewest that are free; in it those with the least room.
            total = np.bincount(domains, room, len(free))
            best = int(enough[np.lexsort([enough, total[enough], free[enough]])[0]])
            here = domains == best
            chosen = fixed or codes_there[here][np.lexsort([codes_there[here], room[here]])][:children].tolist()
            inside = np.zeros(len(codes), dtype=np.bool_)
            inside[rows[around == best]] = True
            at = {code: int(part.tree.position[inside & (codes == code)].min()) for code in chosen}
            out: Take = []
            for i, code in enumerate(chosen if fixed else sorted(chosen, key=at.__getitem__)):
                pods = min(wanted.pods, shape.count - i * wanted.pods)
                got = self._pack(
                    part, np.where(inside & (codes == code), counts, 0), Shape(count=pods, spread=shape.spread)
                )
                if got is None:
                    return None
                out.extend(got)
            return out
        return None

    def _children_beside(self, part: _Part, held: Held, within: Bools) -> Take | None:
        """Places for the pods that child jobs lack, in the order of their ranks: where the rest of a child stands, or
        lingers; for one of which there is nothing, in a domain that is free."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes = self.table.column(wanted.key)[0]
        lacks: dict[int, int] = {}
        stands: dict[int, int] = {}
        rows = [slot.row for slot in part.slots for _ in range(slot.pods)][: part.shape.count]
        for rank, row in enumerate([*rows, *[None] * (part.shape.count - len(rows))]):
            child = rank // wanted.pods
            if row is None:
                lacks[child] = lacks.get(child, 0) + 1
            else:
                stands[child] = int(codes[row])
        stands = {**self._bound(part.request), **stands}
        room, free = self._room(part, held, within), self._counts(part, held, within)
        taken = set(stands.values())
        out: Take = []
        for child, pods in sorted(lacks.items()):
            got: Take | None
            if child in stands:
                got = self._pack(part, np.where(codes == stands[child], room, 0), Shape(count=pods))
            else:
                counts = np.where(np.isin(codes, sorted(taken)), 0, free)
                got = self._children(part, counts, replace(part.shape, count=pods), first=child)
            if got is None:
                return None
            taken.update(int(codes[row]) for row, _ in got)
            out.extend(got)
        return out

    # -- one pod set

    def _pack(self, part: _Part, counts: Ints, shape: Shape) -> Take | None:
        """(row, pods) in rank order. Nodes with devices that the pods do not ask for are taken only if need be."""
        tree = part.tree
        asked = {name for name, _ in part.per_pod}
        spare: Bools | None = None
        for name, mask in self.table.devices().items():
            if name not in asked:
                spare = mask if spare is None else spare | mask
        trials = [counts]
        if spare is not None and bool((counts[spare] > 0).any()):
            trials.insert(0, np.where(spare, 0, counts))
        # A gang is packed to leave large blocks; a pod that comes alone, to leave nothing that nobody can use.
        alone = len(self.question.requests) == 1 and part.request.count == 1 and shape.count == 1 and not shape.spread
        for trial in trials:
            if alone and not shape.slices and (row := self._least_harm(part, trial, shape)) is not None:
                return [(row, 1)]
            caps, sizes = self.table.capacities(part.filter, part.per_pod, tree, trial, shape)
            got = topology.pack(tree, caps, shape, self._preferred(part), sizes)
            if got is not None:
                return [(int(tree.order[leaf]), pods) for leaf, pods in got]
        return None

    def _least_harm(self, part: _Part, counts: Ints, shape: Shape) -> int | None:
        """The row for a single pod: where it harms least those that may come, of these one whose devices are not all
        idle, and of these the first in the tree, so that one domain fills up after the other. None when nobody is known
        who may come, or it fits nowhere."""
        popular = self.question.capacity.popular()
        rows = (counts > 0).nonzero()[0]  # of bools it is ten times as fast
        tree = part.tree
        if shape.required is not None and len(rows):
            rows = rows[tree.known[shape.required][self._leaf_domain(part, shape.required)[rows]]]
        if not popular or not len(rows):
            return None
        harm = self.table.harm(popular, part.per_pod, rows, self.empty)
        rows = rows[harm == harm.min()]
        idle = self.table.untouched(rows, self.empty)
        rows = rows if idle.all() else rows[~idle]
        return int(rows[tree.position[rows].argmin()])

    def _preferred(self, part: _Part) -> topology.Prefer:
        """Of nodes that hold equally many of these pods, those first on which least else is left."""
        order, table, empty = part.tree.order, self.table, self.empty
        return [
            lambda leaves, name=name: table.room_on(order[leaves], name, empty)  # type: ignore[misc]
            for name in table.scarcest(part.per_pod)
        ]

    def _alone(self, part: _Part, held: Held, within: Bools | None, shape: Shape | None = None) -> Take | None:
        shape = shape or part.shape
        pod = part.request.pod_set.shape
        counts = self._counts(part, held, within)
        if pod.exclusive is not None:
            return self._children(part, self._thinned(part, counts), shape)
        if not pod.same_domain:
            return self._pack(part, self._thinned(part, counts), shape)
        columns = [self.table.column(key)[0] for key in pod.same_domain]
        complete = np.logical_and.reduce([column >= 0 for column in columns])
        values, codes = np.unique(np.stack(columns), axis=1, return_inverse=True)
        codes = codes.reshape(-1)
        totals = np.bincount(codes, np.where(complete, counts, 0), values.shape[1])
        order = np.lexsort([np.arange(len(totals)), totals])
        for value in order[totals[order] >= shape.count].tolist():
            within_value = np.where(complete & (codes == value), counts, 0)
            got = self._pack(part, self._thinned(part, within_value), shape)
            if got is not None:
                return got
        return None

    def _one(self, part: _Part, held: dict[int, dict[str, int]], within: Bools | None) -> Take | None:
        """The new pods of a pod set, in rank order; `held` is charged with them."""
        anew = not (part.slots or self._bound(part.request))
        take = self._alone(part, held, within) if anew else self._beside(part, held, within)
        if take is not None:
            self._hold(held, part, take)
        return take

    def _beside(self, part: _Part, held: Held, within: Bools | None) -> Take | None:
        """Places for those that are missing from a pod set of which others stand already."""
        kept = part.kept()
        shape = part.shape
        missing = shape.count - sum(pods for _, pods in kept)
        if missing <= 0:
            return []
        bound = self._bound(part.request)
        if not (kept or bound):
            return self._alone(part, held, within, replace(shape, count=missing))
        allowed = np.ones(len(self.table.names), dtype=np.bool_) if within is None else within.copy()
        rows = np.array([row for row, _ in kept], dtype=np.int64)
        pod = part.request.pod_set.shape
        for key in pod.same_domain:
            codes = self.table.column(key)[0]
            allowed &= codes == codes[rows[0]]
        for key in pod.one_per_domain:
            codes = self.table.column(key)[0]
            allowed &= (codes < 0) | ~np.isin(codes, codes[rows])
        if shape.required is not None:
            domain = self._leaf_domain(part, shape.required)
            if pod.exclusive is not None and bound:
                rows = np.flatnonzero(self.table.column(pod.exclusive.key)[0] == min(bound.values()))
            allowed &= domain == domain[rows[0]]
        if pod.exclusive is not None:
            return self._children_beside(part, held, allowed)
        inner: list[tuple[int, int]] = []
        added: dict[int, dict[str, int]] = {row: dict(amounts) for row, amounts in held.items()}
        total: Take = []
        for depth, size in reversed(shape.slices):
            # Slices that lost some of their pods are made whole where the rest of them stands.
            domain = self._leaf_domain(part, depth)
            there: dict[int, int] = {}
            for row, pods in [*kept, *total]:
                there[int(domain[row])] = there.get(int(domain[row]), 0) + pods
            for where in sorted(there):
                lack = -there[where] % size
                if lack > missing - sum(pods for _, pods in total):
                    return None
                if lack:
                    mend = Shape(count=lack, slices=tuple(inner), spread=shape.spread)
                    got = self._alone(part, added, allowed & (domain == where), mend)
                    if got is None:
                        return None
                    self._hold(added, part, got)
                    total.extend(got)
            inner.insert(0, (depth, size))
        rest = missing - sum(pods for _, pods in total)
        if rest:
            free = replace(shape, count=rest, required=None, preferred=None)
            levels = range(shape.preferred if shape.preferred is not None else len(part.tree.levels) - 2, -1, -1)
            masks: list[Bools] = []
            if shape.required is None and not shape.scattered:
                for depth in levels:
                    domain = self._leaf_domain(part, depth)
                    masks.append(allowed & (domain == domain[rows[0]]))
            for mask in (*masks, allowed):
                got = self._alone(part, added, mask, free)
                if got is not None:
                    total.extend(got)
                    break
            else:
                return None
        return total

    # -- pod sets that share a domain

    def _unit(self, unit: list[_Part], held: dict[int, dict[str, int]]) -> dict[str, Take] | _Part:
        """A pod set alone, or a group within one domain; `held` is charged. Else the part that found no room."""
        if len(unit) == 1:
            self._spend(len(self.table.names))
            take = self._one(unit[0], held, None)
            return unit[0] if take is None else {unit[0].name: take}
        failed = unit[0]
        for mask in self._domains(unit, held):
            for order in islice(permutations(unit), 6):
                if self._left <= 0:
                    self._out_of_steps = True
                    return failed
                self._spend(len(unit) * len(self.table.names))
                trial = {row: dict(amounts) for row, amounts in held.items()}
                out: dict[str, Take] = {}
                for part in order:
                    take = self._one(part, trial, mask)
                    if take is None:
                        failed = part
                        break
                    out[part.name] = take
                else:
                    held.update(trial)
                    return out
            if all(part.plain for part in unit):
                joint = self._exact([(part, mask) for part in unit], held)
                if joint is not None:
                    for part in unit:
                        self._hold(held, part, joint[part.name])
                    return joint
        return failed

    def _domains(self, unit: list[_Part], held: Held) -> Iterator[Bools | None]:
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
            domain = self._leaf_domain(unit[0], depth)
            if standing is not None:
                yield domain == domain[standing]
                continue
            fits = tree.known[depth].copy()
            room = np.zeros(len(fits), dtype=np.int64)
            for part in unit:
                caps = topology.capacities(tree, self._counts(part, held, None)[tree.order], part.shape)[depth]
                fits &= caps >= part.shape.count
                room += np.minimum(caps, MOST)
            found = np.flatnonzero(fits)
            for index in found[np.lexsort([found, room[found]])][:_CHOICES].tolist():
                yield domain == index
        if not required:
            yield None

    # -- exact search for mixed gangs

    def _search(self, units: list[list[_Part]]) -> dict[str, Take] | None:
        """All pod sets at once, for every choice of domains within the bound."""
        choices: list[list[Bools | None]] = []
        for unit in units:
            if len(unit) == 1 and unit[0].shape.required is None:
                choices.append([None])
            else:
                choices.append(list(islice(self._domains(unit, {}), _CHOICES)))
        for masks in islice(product(*choices), _CHOICES):
            wanted = [(part, mask) for unit, mask in zip(units, masks, strict=True) for part in unit]
            got = self._exact(wanted, {})
            if got is not None:
                return got
        return None

    def _exact(self, wanted: list[tuple[_Part, Bools | None]], held: Held) -> dict[str, Take] | None:
        """Node by node: the most pods of the last pod set beside at least so many of each other one.

        The table over "at least so many of the others" grows by one node at a time: of the node's maximal mixtures v,
        best[s] = max(best[max(s - v, 0)] + v of the last). Nodes with equal room are equal, and of equal nodes no more
        than there are pods can matter.
        """
        wanted = sorted(wanted, key=lambda pair: pair[0].request.count)
        parts = [part for part, _ in wanted]
        counts = [self._counts(part, held, mask) for part, mask in wanted]
        need = [part.request.count for part in parts]
        if any(int(c.sum()) < n for c, n in zip(counts, need, strict=True)):
            return None
        shape = tuple(n + 1 for n in need[:-1])
        states = prod(shape)  # of Python's integers: many pod sets of many pods are beyond 64 bits
        rows = np.flatnonzero(np.logical_or.reduce([c > 0 for c in counts]))
        names = sorted({name for part in parts for name, _ in part.per_pod})
        room = np.stack([self.table.room(name, self.empty)[rows] for name in names], axis=1)
        for i, row in enumerate(rows.tolist()):
            for j, name in enumerate(names):
                room[i, j] -= held.get(row, {}).get(name, 0)
        room[:, [is_mark(name) for name in names]] = MOST
        may = np.stack([c[rows] > 0 for c in counts], axis=1)
        signature = np.concatenate([room, may.astype(np.int64)], axis=1)
        kinds, kind_of = np.unique(signature, axis=0, return_inverse=True)
        kind_of = kind_of.reshape(-1)
        order: list[int] = []
        seen: dict[int, int] = {}
        room_for = np.sum([np.minimum(c[rows], n) for c, n in zip(counts, need, strict=True)], axis=0)
        for i in np.lexsort([rows, -room_for]).tolist():
            kind = int(kind_of[i])
            if seen.get(kind, 0) < sum(need):
                seen[kind] = seen.get(kind, 0) + 1
                order.append(i)
        if len(order) * states > self._left:
            self._out_of_steps = True
            return None  # each node has one mixture at least
        mixtures: dict[int, list[tuple[int, ...]]] = {}
        steps = 0
        for kind, times in Counter(kind_of[order].tolist()).items():
            row = kinds[kind].tolist()
            found = self._mixtures(parts, row[len(names) :], need, dict(zip(names, row, strict=False)))
            steps += times * len(found or ()) * states
            if found is None or steps > self._left:
                self._out_of_steps = True
                return None
            mixtures[kind] = found
        best = np.full(shape, -(2**40), dtype=np.int64)
        best[(0,) * len(shape)] = 0
        goal = tuple(need[:-1])
        chosen: list[tuple[int, Ints]] = []
        axes = [np.arange(n + 1) for n in need[:-1]]
        for i in order:
            options = mixtures[int(kind_of[i])]
            self._spend(len(options) * states)
            new, which = best, np.full(shape, -1, dtype=np.int64)
            for index, mixture in enumerate(options):
                at = np.ix_(*(np.maximum(axis - v, 0) for axis, v in zip(axes, mixture, strict=False)))
                with_it = best[at] + mixture[-1]
                better = with_it > new
                if better.any():
                    new = np.where(better, with_it, new)
                    which = np.where(better, index, which)
            best = new
            chosen.append((i, which))
            if best[goal] >= need[-1]:
                break
        if best[goal] < need[-1]:
            return None
        out: dict[str, Take] = {part.name: [] for part in parts}
        state, rest = list(goal), need[-1]
        for i, which in reversed(chosen):
            index = int(which[tuple(state)])
            if index < 0:
                continue
            mixture = mixtures[int(kind_of[i])][index]
            given = [min(v, s) for v, s in zip(mixture, [*state, rest], strict=True)]
            for part, pods in zip(parts, given, strict=True):
                if pods:
                    out[part.name].append((int(rows[i]), pods))
            state = [s - g for s, g in zip(state, given, strict=False)]
            rest -= given[-1]
        for part in parts:
            position = part.tree.position
            out[part.name].sort(key=lambda entry, position=position: int(position[entry[0]]))  # type: ignore[misc]
        return out

    def _mixtures(
        self, parts: Sequence[_Part], may: Sequence[int], need: Sequence[int], free: Mapping[str, int]
    ) -> list[tuple[int, ...]] | None:
        """`_mixtures`, within what is left of the work of this question."""
        at = (*((part.name, n, m) for part, n, m in zip(parts, need, may, strict=True)), *free.items())
        if at not in self._mixed:
            if self._left <= 0:
                return None
            found = _mixtures(parts, may, need, free)
            self._spend(_MIXING * (_MOST_MIXTURES if found is None else len(found)))
            self._mixed[at] = found
        return self._mixed[at]

    # -- the answer

    def _answer(self, parts: Iterable[_Part], found: Mapping[str, Take]) -> Placement:
        out = Placement()
        for part in parts:
            take = found[part.name]
            domains: list[tuple[int, int]] = []
            new = list(take)
            left = part.request.count
            for slot in part.slots:
                # The pods of a lost node give their ranks to those that come for them.
                pods = min(slot.pods, left)
                left -= pods
                if slot.row is not None:
                    _append(domains, slot.row, pods)
                    continue
                while pods and new:
                    row, more = new.pop(0)
                    part_of = min(pods, more)
                    _append(domains, row, part_of)
                    pods -= part_of
                    if more > part_of:
                        new.insert(0, (row, more - part_of))
            for row, pods in new:
                _append(domains, row, pods)
            out[part.name] = TopologyAssignment(
                levels=(HOSTNAME_LABEL,),
                domains=tuple(Domain((self.table.names[row],), pods) for row, pods in domains if pods),
            )
        return out

    def _misfit(self, part: _Part, parts: Sequence[_Part]) -> Misfit:
        counts = self._thinned(part, self._counts(part, {}, None))
        tree, shape = part.tree, part.shape
        placeable = self._placeable(part, counts)
        message = ""
        if placeable >= part.request.count and len(parts) > 1:
            message = f"its {part.request.count} pods would fit alone, but not beside the other pod sets"
        if (wanted := part.request.pod_set.shape.exclusive) is not None and not message:
            fit = len(self._own_domains(part, counts))
            there = len(self.table.column(wanted.key)[1])
            message = (
                f"exclusive topology: each child job takes one {wanted.key} to itself, and {fit} of {there} hold the "
                f"{wanted.pods} pod(s) of one and have no pod of another JobSet"
            )
            if shape.required is not None:
                message += f"; the child jobs must be all within one {tree.levels[shape.required]}"
            if stuck := sorted({self.table.names[row] for row, _ in self.lingering}):
                shown = ", ".join(stuck[:3]) + (f" and {len(stuck) - 3} more" if len(stuck) > 3 else "")
                message = (
                    f"exclusive topology: pods of it, or of a JobSet of its name before it, are not gone from "
                    f"{shown}, JobSet lets their child jobs stand nowhere but in the same {wanted.key}, and there is "
                    "no room: it starts elsewhere once they are gone, on lost nodes when these are back, deleted, or "
                    "tainted node.kubernetes.io/out-of-service"
                )
            if wanted.values:
                message = (
                    f"exclusive topology by node selector: child job i takes the nodes labelled "
                    f"{wanted.key}={wanted.values}i, and {fit} child jobs have theirs with room for {wanted.pods} pods"
                )
        misfit = Misfit(
            pod_set=part.name,
            flavor=part.request.flavor,
            pods=part.request.count,
            placeable=min(placeable, part.request.count),
            nodes=len(self.table.names),
            level=tree.levels[shape.required] if shape.required is not None else "",
            message=message,
        )
        if not self.question.explain:
            return misfit
        nodes, excluded = self._excluded(part, counts)
        fits = False
        if not self.empty:
            empty = replace(self.question, empty=True, explain=False, own="")
            fits = isinstance(_Muster(empty).placed(), Placement)
        detail, sound = Detail.NODES_SHORT, 0
        if not nodes:
            detail = Detail.NO_NODES
        elif not fits:
            # What only repair keeps from it is no reason to call it too large.
            bare = self._placeable(part, self._thinned(part, self.table.counts(part.filter, part.per_pod, True)))
            sound = self._placeable(part, self._thinned(part, self.table.sound_counts(part.filter, part.per_pod)))
            unusable = sound > bare and sound >= part.request.count
            detail = Detail.NODES_UNUSABLE if unusable else Detail.NEVER_FITS_NODES
            sound = min(sound, part.request.count)
        return replace(misfit, nodes=nodes, excluded=excluded, fits_when_empty=fits, detail=detail, sound=sound)

    def _placeable(self, part: _Part, counts: Ints) -> int:
        """How many of its pods rows with these counts hold, in one domain where it asks for one."""
        tree, shape = part.tree, part.shape
        if not len(tree.order):
            return 0
        caps = topology.capacities(tree, counts[tree.order], shape)[shape.required or 0]
        placeable = int(caps.max(initial=0)) if shape.required is not None else int(caps.sum())
        for key in part.request.pod_set.shape.same_domain:
            codes = self.table.column(key)[0]
            totals = np.bincount(codes[codes >= 0], counts[codes >= 0])
            placeable = min(placeable, int(totals.max(initial=0)))
        if (wanted := part.request.pod_set.shape.exclusive) is not None:
            placeable = min(placeable, wanted.pods * len(self._own_domains(part, counts)))
        return placeable

    def _own_domains(self, part: _Part, counts: Ints) -> list[str]:
        """Values of the label of its exclusive placement that could hold a child job each."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes, values = self.table.column(wanted.key)
        totals = np.bincount(codes[codes >= 0], counts[codes >= 0], len(values))
        fit = [value for value, code in values.items() if totals[code] >= wanted.pods]
        if not wanted.values:
            return fit
        children = -(-part.request.count // wanted.pods)
        return sorted({f"{wanted.values}{i}" for i in range(children)}.intersection(fit))

    def _excluded(self, part: _Part, counts: Ints) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Nodes of the flavor, and why each of them takes no pod: the first reason in this order."""
        table, wanted = self.table, part.filter
        left = table.pairs(wanted.labels)
        nodes = int(left.sum())
        out: dict[str, int] = {}

        def exclude(why: str, mask: Bools) -> None:
            nonlocal left
            hit = int((left & mask).sum())
            if hit:
                out[why] = out.get(why, 0) + hit
                left = left & ~mask

        exclude("not ready", np.array([not node.ready for node in table.nodes], dtype=np.bool_))
        exclude("cordoned", np.array([node.unschedulable for node in table.nodes], dtype=np.bool_))
        for taints, code in table.taint_classes().items():
            taint = refused_taint(taints, wanted.tolerations)
            if taint is not None:
                exclude(f"taint {taint.key}", table.taints == code)
        exclude("node selector", ~table.pairs(wanted.selector))
        if wanted.affinity is not None:
            pod = part.request.pod_set.shape
            also = [*(["volumes"] if pod.claims else []), *(["pods of others"] if pod.apart or pod.near else [])]
            exclude(" or ".join(["node affinity", *also]), ~table.affinity(wanted.affinity))
        avoided = np.zeros(len(table.names), dtype=np.bool_)
        avoided[self.avoid] = True
        exclude("avoided", avoided)
        for name, amount in part.per_pod:
            why = f"host port {name[len(HOST_PORT) :]}" if name.startswith(HOST_PORT) else name
            exclude(why, table.room(name, self.empty) < amount)
        if (barred := self._barred(part, {})) is not None:
            exclude("exclusive topology", barred)
        if (repelled := self._repelled(part)) is not None:
            exclude("anti-affinity of other pods", repelled)
        exclude("one per domain", counts == 0)
        return nodes, tuple(sorted(out.items()))


def _append(domains: list[tuple[int, int]], row: int, pods: int) -> None:
    if domains and domains[-1][0] == row:
        domains[-1] = (row, domains[-1][1] + pods)
    elif pods:
        domains.append((row, pods))


def _orders(units: list[list[_Part]], hardness: Callable[[list[_Part]], int]) -> Iterable[Sequence[list[_Part]]]:
    if len(units) < 2:
        return [units]
    hard = sorted(range(len(units)), key=lambda i: (hardness(units[i]), i))
    ordered = [units[i] for i in hard]
    return permutations(ordered) if len(ordered) <= 3 else [ordered, units]


_MOST_MIXTURES = 5000


def _mixtures(
    parts: Sequence[_Part], may: Sequence[int], need: Sequence[int], free: Mapping[str, int]
) -> list[tuple[int, ...]] | None:
    """All maximal numbers of pods of each kind that fit into `free` together, the largest first; None when there are
    too many to look through."""
    found: dict[tuple[int, ...], int] = {}
    """Numbers of all but the last kind, and the most of the last beside them."""

    def extend(prefix: tuple[int, ...], left: Mapping[str, int]) -> bool:
        i = len(prefix)
        most = 0
        if may[i]:
            most = max(0, min(need[i], *(left[name] // amount for name, amount in parts[i].per_pod)))
        if i == len(parts) - 1:
            found[prefix] = most
            return len(found) < _MOST_MIXTURES
        for pods in range(most, -1, -1):
            rest = dict(left)
            for name, amount in parts[i].per_pod:
                rest[name] -= amount * pods
            if not extend((*prefix, pods), rest):
                return False
        return True

    def maximal(prefix: tuple[int, ...], most: int) -> bool:
        """Whatever exceeds it leaves room for one pod more of some kind, and no fewer of the last."""
        return not any(
            found.get((*prefix[:i], pods + 1, *prefix[i + 1 :]), -1) >= most for i, pods in enumerate(prefix)
        )

    if not extend((), free):
        return None
    return [(*prefix, most) for prefix, most in found.items() if (any(prefix) or most) and maximal(prefix, most)]
