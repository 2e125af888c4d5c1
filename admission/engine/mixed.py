"""Several pod sets that compete for nodes, decided at once, by dynamic programming over the nodes.

Its bound: pod sets without slices and affinities to themselves, at most `CHOICES` choices of domains, and the `Work`
that one question may take. Beyond the bound a no may be wrong; a yes never is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, product
from math import prod

import numpy as np

from admission.engine.booking import MOST, is_mark
from admission.engine.fit import CHOICES, Fit, Held, Part
from admission.engine.nodes import Effort
from admission.engine.topology import Bools, Ints, Take

_WORK = 10_000_000
"""Elementary steps that one question for a mixed gang may take, all choices of domains together: with nobody to count
them a tenant could write a gang that takes minutes."""
_MIXING = 100
"""Of these, what it costs to find one mixture of pods."""
_MOST_MIXTURES = 5000


class Work:
    """What is left of the elementary steps that one question may take."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._allowed = self.left = _WORK if effort.left is None else max(0, min(_WORK, effort.left))
        self.out_of_steps = False
        """A search was not made, or not to its end."""

    def spend(self, steps: int) -> None:
        self.left -= steps
        self._effort.spend(steps)

    def found_nothing(self) -> None:
        """Where that was for want of steps which another question would have had, its answer is not to be kept."""
        if self.out_of_steps and self._allowed < _WORK:
            self._effort.given_up += 1


class Mixed:
    """All pod sets of one question at once."""

    def __init__(self, fit: Fit, work: Work) -> None:
        self.fit = fit
        self.work = work
        self._mixed: dict[tuple[object, ...], list[tuple[int, ...]] | None] = {}
        """Mixtures by pod sets and what a node has: nodes are much alike, and choices of domains share most of them."""

    def search(self, units: list[list[Part]]) -> dict[str, Take] | None:
        """All pod sets at once, for every choice of domains within the bound."""
        choices: list[list[Bools | None]] = []
        for unit in units:
            if len(unit) == 1 and unit[0].shape.required is None:
                choices.append([None])
            else:
                choices.append(list(islice(self.fit.domains(unit, {}), CHOICES)))
        for masks in islice(product(*choices), CHOICES):
            wanted = [(part, mask) for unit, mask in zip(units, masks, strict=True) for part in unit]
            got = self.exact(wanted, {})
            if got is not None:
                return got
        return None

    def exact(self, wanted: list[tuple[Part, Bools | None]], held: Held) -> dict[str, Take] | None:
        """Node by node: the most pods of the last pod set beside at least so many of each other one.

        The table over "at least so many of the others" grows by one node at a time: of the node's maximal mixtures v,
        best[s] = max(best[max(s - v, 0)] + v of the last). Nodes with equal room are equal, and of equal nodes no more
        than there are pods can matter.
        """
        wanted = sorted(wanted, key=lambda pair: pair[0].request.count)
        parts = [part for part, _ in wanted]
        counts = [self.fit.counts(part, held, mask) for part, mask in wanted]
        need = [part.request.count for part in parts]
        if any(int(c.sum()) < n for c, n in zip(counts, need, strict=True)):
            return None
        shape = tuple(n + 1 for n in need[:-1])
        states = prod(shape)  # of Python's integers: many pod sets of many pods are beyond 64 bits
        rows = np.flatnonzero(np.logical_or.reduce([c > 0 for c in counts]))
        names = sorted({name for part in parts for name, _ in part.per_pod})
        room = np.stack([self.fit.table.room(name, self.fit.empty)[rows] for name in names], axis=1)
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
        if len(order) * states > self.work.left:
            self.work.out_of_steps = True
            return None  # each node has one mixture at least
        mixtures: dict[int, list[tuple[int, ...]]] = {}
        steps = 0
        for kind, times in Counter(kind_of[order].tolist()).items():
            row = kinds[kind].tolist()
            found = self._mixtures(parts, row[len(names) :], need, dict(zip(names, row, strict=False)))
            steps += times * len(found or ()) * states
            if found is None or steps > self.work.left:
                self.work.out_of_steps = True
                return None
            mixtures[kind] = found
        best = np.full(shape, -(2**40), dtype=np.int64)
        best[(0,) * len(shape)] = 0
        goal = tuple(need[:-1])
        chosen: list[tuple[int, Ints]] = []
        axes = [np.arange(n + 1) for n in need[:-1]]
        for i in order:
            options = mixtures[int(kind_of[i])]
            self.work.spend(len(options) * states)
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
        self, parts: Sequence[Part], may: Sequence[int], need: Sequence[int], free: Mapping[str, int]
    ) -> list[tuple[int, ...]] | None:
        """`_mixtures`, within what is left of the work of this question."""
        at = (*((part.name, n, m) for part, n, m in zip(parts, need, may, strict=True)), *free.items())
        if at not in self._mixed:
            if self.work.left <= 0:
                return None
            found = _mixtures(parts, may, need, free)
            self.work.spend(_MIXING * (_MOST_MIXTURES if found is None else len(found)))
            self._mixed[at] = found
        return self._mixed[at]


def _mixtures(
    parts: Sequence[Part], may: Sequence[int], need: Sequence[int], free: Mapping[str, int]
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
