"""Which nodes one pod set takes: alone, beside those of its pods that stand already, or a domain for each child job.

A gang is packed as `topology.pack` says, so that large blocks stay whole; a pod that comes alone goes where it harms
least those that may come. Child jobs of exclusive placement get one domain each, the fullest that hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from admission.engine import topology
from admission.engine.fit import Fit, Held, Part
from admission.engine.topology import Bools, Ints, Shape, Take


class Packing:
    """Nodes for one pod set after the other, in one question."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def one(self, part: Part, held: dict[int, dict[str, int]], within: Bools | None) -> Take | None:
        """The new pods of a pod set, in rank order; `held` is charged with them."""
        anew = not (part.slots or self.fit.bound(part.request))
        take = self.alone(part, held, within) if anew else self._beside(part, held, within)
        if take is not None:
            self.fit.hold(held, part, take)
        return take

    def alone(self, part: Part, held: Held, within: Bools | None, shape: Shape | None = None) -> Take | None:
        shape = shape or part.shape
        pod = part.request.pod_set.shape
        counts = self.fit.counts(part, held, within)
        if pod.exclusive is not None:
            return self._children(part, self.fit.thinned(part, counts), shape)
        if not pod.same_domain:
            return self._pack(part, self.fit.thinned(part, counts), shape)
        columns = [self.fit.table.column(key)[0] for key in pod.same_domain]
        complete = np.logical_and.reduce([column >= 0 for column in columns])
        values, codes = np.unique(np.stack(columns), axis=1, return_inverse=True)
        codes = codes.reshape(-1)
        totals = np.bincount(codes, np.where(complete, counts, 0), values.shape[1])
        order = np.lexsort([np.arange(len(totals)), totals])
        for value in order[totals[order] >= shape.count].tolist():
            within_value = np.where(complete & (codes == value), counts, 0)
            got = self._pack(part, self.fit.thinned(part, within_value), shape)
            if got is not None:
                return got
        return None

    def _pack(self, part: Part, counts: Ints, shape: Shape) -> Take | None:
        """(row, pods) in rank order. Nodes with devices that the pods do not ask for are taken only if need be."""
        tree = part.tree
        asked = {name for name, _ in part.per_pod}
        spare: Bools | None = None
        there = counts > 0
        for name, mask in self.fit.table.devices().items():
            if name not in asked and bool((there & ~mask).any()):  # what all of them have makes no difference
                spare = mask if spare is None else spare | mask
        trials = [counts]
        if spare is not None and bool((counts[spare] > 0).any()):
            trials.insert(0, np.where(spare, 0, counts))
        # A gang is packed to leave large blocks; a pod that comes alone, to leave nothing that nobody can use.
        of_one = len(self.fit.question.requests) == 1 and part.request.count == 1
        alone = of_one and shape.count == 1 and not shape.spread
        for trial in trials:
            if alone and not shape.slices and (row := self._least_harm(part, trial, shape)) is not None:
                return [(row, 1)]
            caps, sizes = self.fit.table.capacities(part.filter, part.per_pod, tree, trial, shape)
            short = topology.with_short(tree, caps, trial[tree.order], shape) if shape.slices else caps
            got = topology.pack(tree, caps, short, shape, self._preferred(part), sizes)
            if got is not None:
                return [(int(tree.order[leaf]), pods) for leaf, pods in got]
        return None

    def _least_harm(self, part: Part, counts: Ints, shape: Shape) -> int | None:
        """The row for a single pod: where it harms least those that may come, of these one whose devices are not all
        idle, and of these the first in the tree, so that one domain fills up after the other. None when nobody is known
        who may come, or it fits nowhere."""
        popular = self.fit.question.capacity.popular()
        rows = (counts > 0).nonzero()[0]  # of bools it is ten times as fast
        tree = part.tree
        if shape.required is not None and len(rows):
            rows = rows[tree.known[shape.required][self.fit.leaf_domain(part, shape.required)[rows]]]
        if not popular or not len(rows):
            return None
        harm = self.fit.table.harm(popular, part.per_pod, rows, self.fit.empty)
        rows = rows[harm == harm.min()]
        idle = self.fit.table.untouched(rows, self.fit.empty)
        rows = rows if idle.all() else rows[~idle]
        return int(rows[tree.position[rows].argmin()])

    def _preferred(self, part: Part) -> topology.Prefer:
        """Of nodes that hold equally many of these pods, those first on which least else is left."""
        order, table, empty = part.tree.order, self.fit.table, self.fit.empty
        return [
            lambda leaves, name=name: table.room_on(order[leaves], name, empty)  # type: ignore[misc]
            for name in table.scarcest(part.per_pod)
        ]

    def _beside(self, part: Part, held: Held, within: Bools | None) -> Take | None:
        """Places for those that are missing from a pod set of which others stand already."""
        shape, ranks = part.shape, part.ranks()
        lost = [rank for rank, row in enumerate(ranks) if row is None]
        if not lost:
            return []
        rows = np.array([row for row in ranks if row is not None], dtype=np.int64)
        bound = self.fit.bound(part.request)
        if not (len(rows) or bound):
            return self.alone(part, held, within, replace(shape, count=len(lost)))
        allowed = np.ones(len(self.fit.table.names), dtype=np.bool_) if within is None else within.copy()
        pod = part.request.pod_set.shape
        for key in pod.same_domain:
            codes = self.fit.table.column(key)[0]
            allowed &= codes == codes[rows[0]]
        allowed &= self._apart_from(part, rows)
        if shape.required is not None:
            domain = self.fit.leaf_domain(part, shape.required)
            if pod.exclusive is not None and bound:
                rows = np.flatnonzero(self.fit.table.column(pod.exclusive.key)[0] == min(bound.values()))
            allowed &= domain == domain[rows[0]]
        if pod.exclusive is not None:
            return self._children_beside(part, held, allowed)
        inner: list[tuple[int, int]] = []
        added: dict[int, dict[str, int]] = {row: dict(amounts) for row, amounts in held.items()}
        for depth, size in reversed(shape.slices):
            # A slice that lost some of its pods is made whole where the rest of it stands.
            domain = self.fit.leaf_domain(part, depth)
            for first in range(0, len(ranks), size):
                own = range(first, min(first + size, len(ranks)))
                there = Counter(int(domain[row]) for rank in own if (row := ranks[rank]) is not None)
                lacks = [rank for rank in own if ranks[rank] is None]
                if not there or not lacks:
                    continue
                where, _ = min(there.items(), key=lambda entry: (-entry[1], entry[0]))
                mend = Shape(count=len(lacks), slices=tuple(inner), spread=shape.spread)
                got = self.alone(part, added, allowed & (domain == where), mend)
                if got is None:
                    return None
                self.fit.hold(added, part, got)
                _stand_on(ranks, lacks, got)
                allowed &= self._apart_from(part, [row for row, _ in got])
            inner.insert(0, (depth, size))
        if rest := ranks.count(None):
            free = replace(shape, count=rest, required=None, preferred=None)
            levels = range(shape.preferred if shape.preferred is not None else len(part.tree.levels) - 2, -1, -1)
            masks: list[Bools] = []
            if shape.required is None and not shape.scattered:
                for depth in levels:
                    domain = self.fit.leaf_domain(part, depth)
                    masks.append(allowed & (domain == domain[rows[0]]))
            for mask in (*masks, allowed):
                got = self.alone(part, added, mask, free)
                if got is not None:
                    _stand_on(ranks, [rank for rank in lost if ranks[rank] is None], got)
                    break
            else:
                return None
        return [(row, 1) for rank in lost if (row := ranks[rank]) is not None]

    def _apart_from(self, part: Part, rows: Ints | list[int]) -> Bools:
        """Where its pods may stand beside those of it that stand on these rows."""
        out = np.ones(len(self.fit.table.names), dtype=np.bool_)
        for key in part.request.pod_set.shape.one_per_domain:
            codes = self.fit.table.column(key)[0]
            out &= (codes < 0) | ~np.isin(codes, codes[rows])
        return out

    # -- child jobs that have their domains to themselves

    def _children(self, part: Part, counts: Ints, shape: Shape, first: int = 0) -> Take | None:
        """Whole child jobs, each in a domain of its own. `first`: the index of the first of them."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes, values = self.fit.table.column(wanted.key)
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
            around = np.zeros(len(rows), np.int64) if level is None else self.fit.leaf_domain(part, level)[rows]
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

    def _children_beside(self, part: Part, held: Held, within: Bools) -> Take | None:
        """Places for the pods that child jobs lack, in the order of their ranks: where the rest of a child stands, or
        lingers; for one of which there is nothing, in a domain that is free."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes = self.fit.table.column(wanted.key)[0]
        lacks: dict[int, int] = {}
        stands: dict[int, int] = {}
        for rank, row in enumerate(part.ranks()):
            child = rank // wanted.pods
            if row is None:
                lacks[child] = lacks.get(child, 0) + 1
            else:
                stands[child] = int(codes[row])
        stands = {**self.fit.bound(part.request), **stands}
        room, free = self.fit.room(part, held, within), self.fit.counts(part, held, within)
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


def _stand_on(ranks: list[int | None], lost: Iterable[int], take: Take) -> None:
    """These ranks stand there now, in order."""
    for rank, row in zip(lost, (row for row, pods in take for _ in range(pods)), strict=True):
        ranks[rank] = row
