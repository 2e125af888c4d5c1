"""Domain trees and how a gang is packed into one: arithmetic on arrays, which knows no node and no resource.

A tree has leaves in the order of their paths (rack a, its hosts; rack b, its hosts ...), so that every domain of every
level is one contiguous run of leaves, and the sum of a domain is one step of `numpy.add.reduceat`. What a leaf can
hold is a count of equal pods; `capacities` bubbles the counts up and rounds them down to whole slices on the way.

`pack` holds the rule against fragmentation. The gang that could run tomorrow needs large free blocks, so a gang of
today takes, in this order:
- the deepest single domain that holds it, and of these the one with the least room (then the least room around it);
- where no single domain does, as few domains as possible, and of all sets of that size the one whose largest member is
  smallest, then whose second largest is smallest, and so on (leximin): the large blocks stay whole, the partly used
  ones fill up. In a descending order of capacities, the last window of k neighbours that is large enough begins with
  the smallest possible largest member; the rule applied again to the rest gives the second, and so on. No sorting of
  subsets, no search: k binary searches on a prefix sum.
Each domain so chosen is packed in the same way from its children. All ties end in the position of the leaf.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from admission.engine.model import Value

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Take = list[tuple[int, int]]
"""(leaf position, pods) in rank order: positions ascending, but for domains around a short last slice, each the last at
its level."""
Prefer = Sequence[Callable[[Ints], Ints]]
"""What decides among leaves that hold equally many pods, the most important first: leaf positions -> a number for each,
smaller first. What is equal in all goes by position."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Domains over leaves. `levels[-1]` is the level of the leaves; every array is indexed by domain, in path order."""

    levels: tuple[str, ...]
    order: Ints
    """Leaf position -> row of the caller's table."""
    position: Ints
    """Row -> leaf position."""
    starts: tuple[Ints, ...]
    """Per level: first leaf position of each domain."""
    ends: tuple[Ints, ...]
    parents: tuple[Ints, ...]
    """Per level: index of the domain around, one level up (zeros at the top)."""
    first: tuple[Ints, ...]
    """Per level but the last: index of the first child of each domain, one level down."""
    last: tuple[Ints, ...]
    """Per level but the last: one past the last child."""
    around: tuple[Ints, ...]
    """Per level: leaf position -> index of its domain."""
    known: tuple[Bools, ...]
    """Per level: whether all nodes of the domain carry the labels of this level and those above."""

    def depth(self, level: str) -> int | None:
        """The index of a level by its label key."""
        return self.levels.index(level) if level in self.levels else None


def grow(levels: Sequence[str], codes: Sequence[Ints], rows: int) -> Tree:
    """The tree of `rows` leaves. `codes`: per level above them, the rank of each row's label value (-1: none).

    Rows must be in the order in which leaves of one domain are to stand (by name).
    """
    keys = [np.arange(rows, dtype=np.int64), *reversed(list(codes))]
    order = np.lexsort(keys).astype(np.int64) if codes else np.arange(rows, dtype=np.int64)
    position = np.empty(rows, dtype=np.int64)
    position[order] = np.arange(rows, dtype=np.int64)
    starts: list[Ints] = []
    known: list[Bools] = []
    fresh = np.zeros(rows, dtype=np.bool_)
    if rows:
        fresh[0] = True
    complete = np.ones(rows, dtype=np.bool_)
    for column in codes:
        sorted_column = column[order]
        fresh = fresh.copy()
        fresh[1:] |= sorted_column[1:] != sorted_column[:-1]
        complete = complete & (sorted_column >= 0)
        at = np.flatnonzero(fresh)
        starts.append(at)
        known.append(complete[at])
    starts.append(np.arange(rows, dtype=np.int64))
    known.append(np.ones(rows, dtype=np.bool_))
    ends = [np.append(s[1:], rows).astype(np.int64) for s in starts]
    parents = [np.zeros(len(starts[0]), dtype=np.int64)]
    first: list[Ints] = []
    last: list[Ints] = []
    for above, below in itertools.pairwise(starts):
        parents.append((np.searchsorted(above, below, side="right") - 1).astype(np.int64))
        lower = np.searchsorted(below, above).astype(np.int64)
        first.append(lower)
        last.append(np.append(lower[1:], len(below)).astype(np.int64))
    return Tree(
        levels=tuple(levels),
        order=order,
        position=position,
        starts=tuple(starts),
        ends=tuple(ends),
        parents=tuple(parents),
        first=tuple(first),
        last=tuple(last),
        around=tuple(np.repeat(np.arange(len(s), dtype=np.int64), e - s) for s, e in zip(starts, ends, strict=True)),
        known=tuple(known),
    )


class Shape(Value, frozen=True):
    """What a gang of equal pods asks of a tree."""

    count: int
    required: int | None = None
    """Depth of the level of which one domain must hold the gang."""
    preferred: int | None = None
    """Depth of the level of which one domain should; wider ones are tried after it."""
    scattered: bool = False
    """Fill the smallest gaps anywhere, in the fewest nodes of those that are small (unconstrained)."""
    slices: tuple[tuple[int, int], ...] = ()
    """(depth, size): pods come to a domain of this depth in whole multiples of size, but for the last ones: where
    `count` is no multiple, the last slice is short."""
    spread: bool = False


def capacities(tree: Tree, counts: Ints, shape: Shape) -> list[Ints]:
    """Per level: how many pods each domain can hold, in whole slices. `counts` per leaf position."""
    slices = dict(shape.slices)
    depth = len(tree.levels) - 1
    counts = _labelled(tree, counts, shape)
    caps: list[Ints] = [counts] * (depth + 1)
    for level in range(depth, -1, -1):
        if level < depth:
            below = caps[level + 1]
            here: Ints = np.add.reduceat(below, tree.first[level]) if len(below) else below
        else:
            here = counts
        if slices.get(level, 1) > 1:
            here = here // slices[level] * slices[level]
        caps[level] = here
    return caps


def _labelled(tree: Tree, counts: Ints, shape: Shape) -> Ints:
    for level, _ in shape.slices:
        # Of those that lack the label nobody knows which are near each other.
        counts = np.where(tree.known[level][tree.around[level]], counts, 0)
    return counts


def with_short(tree: Tree, caps: list[Ints], counts: Ints, shape: Shape) -> list[Ints]:
    """The same of `caps`, if the short last slice is among the pods: never more than one short slice more than those,
    and -1 where it has no room. `caps` where all slices are whole."""
    if not shape.slices or not shape.count % shape.slices[0][1]:
        return caps
    slices = dict(shape.slices)
    depth = len(tree.levels) - 1
    out = [_labelled(tree, counts, shape)] * (depth + 1)
    for level in range(depth, -1, -1):
        here = out[level]
        if level < depth and len(here := caps[level + 1]):
            first = tree.first[level]
            gain = np.maximum.reduceat(_gain(here, out[level + 1]), first)
            here = np.where(gain > _NO_ROOM, np.add.reduceat(here, first) + gain, -1)
        if (size := slices.get(level, 1)) > 1:
            rest = shape.count % size
            here = np.where(here >= rest, (here - rest) // size * size + rest, -1)
        out[level] = here
    return out


def most(tree: Tree, counts: Ints, shape: Shape) -> int:
    """How many of its pods there is room for, in one domain of the level that it requires."""
    caps = capacities(tree, counts, shape)
    level = shape.required or 0
    held, short = caps[level], with_short(tree, caps, counts, shape)[level]
    if shape.required is not None:
        return int(np.maximum(held, short).max(initial=0))
    return int(held.sum()) + int(_gain(held, short).max(initial=0))


_NO_ROOM = -(2**62)


def _gain(caps: Ints, short: Ints) -> Ints:
    """By how much more domains hold if the short slice is in them."""
    return np.where(short < 0, _NO_ROOM, short - caps)


def _home(caps: Ints, short: Ints) -> int | None:
    """Which of these domains gets the short slice: where it takes least of the room for whole ones, then the one with
    the least room, the last of these."""
    gain = _gain(caps, short)
    best = (gain == gain.max()).nonzero()[0] if len(gain) and gain.max() > _NO_ROOM else ()
    return int(best[short[best] == short[best].min()][-1]) if len(best) else None


def _home_beside(caps: Ints, short: Ints, want: int) -> int | None:
    """The same where others are filled besides, for `want` pods that none of them holds alone: as few as can be. None:
    too few."""
    held = _gain(caps, short).tolist()
    kinds = {(-held[at], room): at for at, room in enumerate(short.tolist()) if held[at] > _NO_ROOM}
    ascending = np.sort(caps)
    row: list[int] = ascending.tolist()
    prefix: list[int] = [0, *ascending[::-1].cumsum().tolist()]
    best, least = None, len(caps)
    for (lost, room), at in sorted(kinds.items()):
        own, need = room + lost, want - room
        if prefix[-1] - own < need:
            break  # the others lose more room
        others = bisect_left(prefix, need)
        if others >= len(row) - bisect_left(row, own):
            # Its own room is among those: one more instead.
            others = bisect_left(prefix, need + own) - 1
        if others < least:
            best, least = at, others
    return best


def _but(caps: Ints, at: int) -> Ints:
    """Without the room of one domain."""
    out = caps.copy()
    out[at] = 0
    return out


def _unit(shape: Shape, level: int) -> int:
    """Pods come to domains of this level in multiples of it."""
    return next((size for depth, size in shape.slices if depth >= level), 1)


def fewest(caps: Ints, want: int) -> list[int] | None:
    """The multiset of capacities, descending, that the rule against fragmentation takes for `want`; None: too few.

    All but the last are used to the full.
    """
    enough = caps[caps >= want]
    if len(enough):
        return [int(enough.min())]
    row = caps[caps > 0]
    row.sort()
    row = row[::-1]
    prefix: list[int] = [0, *row.cumsum().tolist()]
    if prefix[-1] < want:
        return None
    k = bisect_left(prefix, want)
    total = len(row)
    chosen: list[int] = []
    start, need = 0, want
    values: list[int] = row.tolist()
    while k:
        # The last start whose window of k still gives `need`; windows only shrink.
        low, high = start, total - k
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle + k] - prefix[middle] >= need:
                low = middle
            else:
                high = middle - 1
        if prefix[low + k] - prefix[low] == need or values[low] == values[low + k - 1]:
            chosen.extend(values[low : low + k])
            return chosen
        chosen.append(values[low])
        need -= values[low]
        start, k = low + 1, k - 1
    return chosen


class _Packing:
    def __init__(self, tree: Tree, caps: list[Ints], short: list[Ints], shape: Shape, prefer: Prefer) -> None:
        self.tree = tree
        self.caps = caps
        self.short = short
        self.shape = shape
        self.prefer = prefer
        self.out: Take = []

    def among(self, level: int, low: int, high: int, want: int) -> bool:
        """Put `want` pods into domains low..high of a level, as few as possible."""
        caps = self.caps[level][low:high]
        home, there = -1, 0
        if want % _unit(self.shape, level):
            short = self.short[level][low:high]
            enough = (short >= want).nonzero()[0]
            if len(enough):
                best = enough[short[enough] == short[enough].min()] + low
                self.into(level, int(self.first(level, best)[0]), want)
                return True
            if (found := _home_beside(caps, short, want)) is None:
                return False
            caps = _but(caps, found)
            home, there = found + low, int(short[found])
        left = want - there
        multiset = fewest(caps, left)
        if multiset is None:
            return False
        taken: list[tuple[int, int]] = []
        i = 0
        while i < len(multiset):
            value = multiset[i]
            times = 1
            while i + times < len(multiset) and multiset[i + times] == value:
                times += 1
            which = (caps == value).nonzero()[0] + low
            if times < len(which):
                which = self.first(level, which) if times == 1 else self.ranked(level, which)[:times]
            for domain in which.tolist():
                amount = min(value, left)
                taken.append((domain, amount))
                left -= amount
            i += times
        taken.sort()
        for domain, amount in taken:
            self.into(level, domain, amount)
        if there:
            self.into(level, home, there)
        return True

    def ranked(self, level: int, domains: Ints) -> Ints:
        """Domains with equal capacity, best first: least room around it, then the caller's preference."""
        keys: list[Ints] = []
        at, where = level, domains
        while at > 0:
            where = self.tree.parents[at][where]
            at -= 1
            keys.append(self.caps[at][where])
        if keys and any(bool((key != key[0]).any()) for key in keys):
            best = np.lexsort([domains, *reversed(keys)])
            ordered = domains[best]
            sorted_keys = [key[best] for key in keys]
            if level == len(self.tree.levels) - 1 and self.prefer:
                change = np.zeros(len(ordered), dtype=np.bool_)
                for key in sorted_keys:
                    change[1:] |= key[1:] != key[:-1]
                runs = np.split(ordered, np.flatnonzero(change))
                return np.concatenate([self.preferred(run) if len(run) > 1 else run for run in runs])
            return ordered
        if level == len(self.tree.levels) - 1 and self.prefer:
            return self.preferred(domains)
        return domains

    def preferred(self, leaves: Ints) -> Ints:
        keys = [column(leaves) for column in reversed(self.prefer)]
        return leaves[np.lexsort([leaves, *keys])]

    def first(self, level: int, domains: Ints) -> Ints:
        """The first of `ranked`, alone: nothing is sorted for it."""
        at, where = level, domains
        while at > 0 and len(domains) > 1:
            where = self.tree.parents[at][where]
            at -= 1
            room = self.caps[at][where]
            least = room == room.min()
            domains, where = domains[least], where[least]
        if level == len(self.tree.levels) - 1:
            for column in self.prefer:
                if len(domains) == 1:
                    break
                left = column(domains)
                domains = domains[left == left.min()]
        return domains[:1]

    def into(self, level: int, domain: int, amount: int) -> None:
        tree = self.tree
        while level < len(tree.levels) - 1:
            low, high = int(tree.first[level][domain]), int(tree.last[level][domain])
            if high - low > 1:
                done = self.among(level + 1, low, high, amount)
                assert done, "a domain holds what its capacity says"
                return
            level, domain = level + 1, low
        self.out.append((domain, amount))


def pack(
    tree: Tree,
    caps: list[Ints],
    short: list[Ints],
    shape: Shape,
    prefer: Prefer = (),
    sizes: Collection[int] | None = None,
) -> Take | None:
    """Where the pods go, by the rule against fragmentation; None when they do not all fit. `short`: as of `with_short`.
    `sizes`: the capacities that leaves have, where they are known."""
    if not shape.count:
        return []
    if not len(tree.order):
        return None
    packing = _Packing(tree, caps, short, shape, prefer)
    leaf = len(tree.levels) - 1
    if shape.required is not None:
        levels = [shape.required]
    elif shape.preferred is not None:
        levels = list(range(shape.preferred, -1, -1))
    elif shape.spread:
        levels = []
    else:
        levels = [leaf] if shape.scattered else list(range(leaf, -1, -1))
    for level in levels:
        held = short[level]
        if level == leaf and sizes is not None and not shape.spread:
            least = min((size for size in sizes if size >= shape.count), default=0)
            best = (held == least).nonzero()[0] if least else None
        else:
            enough = ((held >= shape.count) & tree.known[level]).nonzero()[0]
            room = held[enough]
            best = enough[room == (room.max() if shape.spread else room.min())] if len(enough) else None
        if best is not None:
            domain = int(packing.first(level, best)[0])
            if shape.spread:
                return spread(tree, caps, short, level, domain, shape)
            packing.into(level, domain, shape.count)
            return packing.out
    if shape.required is not None:
        return None
    if shape.spread:
        return spread(tree, caps, short, -1, 0, shape)
    if shape.scattered:
        return _scatter(caps[leaf], shape.count)
    return packing.out if packing.among(0, 0, len(caps[0]), shape.count) else None


_STEP = 12
"""Steps of harm per device: differences below one step count for nothing, and ties are for packing."""
UNASKED = -(2**62)
"""As a need: of this resource the kind takes nothing."""


def losses(room: Ints, needs: Ints, device: Ints, taken: Ints) -> Ints:
    """Per kind of pods and row: how many more idle devices pods of the kind could not use if one more pod came there.

    An idle device is a fragment for a kind where the node lacks something that its pods need, or has too few devices
    left. room: per resource and row. needs: per kind and resource, what a pod takes of it. device: per kind, which of
    the resources is the device that it asks for. taken: per resource, what the pod that comes takes.
    """
    before = (room >= needs[:, :, None]).all(axis=1)
    after = (room >= (needs + taken)[:, :, None]).all(axis=1)
    idle = room[device]
    lost: Ints = np.where(after, 0, idle - taken[device][:, None]) - np.where(before, 0, idle)
    return lost


def harm(lost: Ints, weights: Ints) -> Ints:
    """How much one more pod on each row adds to the fragments of that node, in steps: the mean of the losses over the
    kinds by weight. (The measure of fragmentation gradient descent, for whole devices.) Rows to which the pod does not
    fit have no meaningful harm."""
    total = int(weights.sum())
    growth: Ints = (lost * weights[:, None]).sum(axis=0)
    return -(-growth * _STEP // total) if total else growth


def _scatter(caps: Ints, want: int) -> Take | None:
    """The smallest gaps first, wherever they are."""
    order = np.argsort(caps, kind="stable")
    order = order[caps[order] > 0]
    held = np.cumsum(caps[order])
    if not len(held) or held[-1] < want:
        return None
    last = int(np.searchsorted(held, want))
    taken = {int(leaf): int(caps[leaf]) for leaf in order[: last + 1]}
    taken[int(order[last])] -= int(held[last]) - want
    return sorted(taken.items())


def spread(tree: Tree, caps: list[Ints], short: list[Ints], level: int, domain: int, shape: Shape) -> Take | None:
    """Pods on the emptiest leaves: one after the other to where most room is left. Level -1: the whole tree.

    Slices go to the emptiest domains, level by level.
    """
    out: Take = []
    leaf = len(tree.levels) - 1
    if not shape.slices:
        low, high = (
            (0, len(caps[leaf])) if level < 0 else (int(tree.starts[level][domain]), int(tree.ends[level][domain]))
        )
        room = caps[leaf][low:high]
        if int(room.sum()) < shape.count:
            return None
        return [(i, pods) for i, pods in enumerate(level_out(room, shape.count).tolist(), low) if pods]

    def into(level: int, domain: int, amount: int) -> None:
        if level == len(tree.levels) - 1:
            out.append((domain, amount))
            return
        low, high = (0, len(caps[0])) if level < 0 else (int(tree.first[level][domain]), int(tree.last[level][domain]))
        unit = _unit(shape, level + 1)
        below, rest, home = caps[level + 1][low:high], amount % unit, -1
        if rest:
            found = _home(below, short[level + 1][low:high])
            assert found is not None, "a domain holds what its capacity says"
            below = below.copy()
            below[found] = short[level + 1][low + found] - rest
            home = low + found
        for child, share in enumerate(level_out(below // unit, amount // unit).tolist(), low):
            if child == home:
                rest += share * unit
            elif share:
                into(level + 1, child, share * unit)
        if rest:
            into(level + 1, home, rest)

    gain = int(_gain(caps[0], short[0]).max(initial=_NO_ROOM)) if short is not caps else 0
    held = int(caps[0].sum()) + gain if level < 0 else int(short[level][domain])
    if held < shape.count:
        return None
    into(level, domain, shape.count)
    return out


def level_out(caps: Ints, want: int) -> Ints:
    """`want` units one by one to the largest rest, ties to the first: what each gets. The caps must hold them."""
    low, high = 0, int(caps.max(initial=0))
    # The smallest water line above which there are at most `want` units.
    while low < high:
        line = (low + high) // 2
        if int(np.maximum(caps - line, 0).sum()) <= want:
            high = line
        else:
            low = line + 1
    given: Ints = np.maximum(caps - low, 0)
    rest = want - int(given.sum())
    if rest:
        at_line = np.flatnonzero((caps >= low) & (caps > given))[:rest]
        given[at_line] += 1
    return given
