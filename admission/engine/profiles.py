"""Kueue's placement profiles in one tree of domains: arithmetic on arrays, which knows no node and no resource.

Each domain is measured from the leaves up in pods and in slices, both also beside a leader; then the highest level
that may hold the ask is found, and the ask handed down level by level, largest domains first and the last one the
tightest that suffices (BestFit), or smallest first (LeastFreeCapacity), or evenly (balanced). Ties end in path order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from admission.engine.model import Value
from admission.engine.topology import Ints, Tree


class Ask(Value, frozen=True):
    """A pod set (with or without its leader) as Kueue's placement sees it. Levels are depths in the tree."""

    count: int
    level: int
    slice_level: int
    slice_size: int = 1
    leaders: int = 0
    required: bool = False
    unconstrained: bool = False
    inner: Mapping[int, int] | None = None
    """Depth -> size, for the layers of slices inside the outermost."""
    least_free_first: bool = False
    """The unconstrained are packed into the smallest gaps (gate TASProfileMixed)."""
    balanced: bool = False
    affinity: bool = False
    """Scores of preferred node affinity come before capacity."""


@dataclass(slots=True)
class Room:
    """Per level, per domain: what it holds. After `choose`, of the chosen: what it gets (pods, leaders)."""

    pods: list[Ints]
    pods_led: list[Ints]
    """Pods beside a leader."""
    slices: list[Ints]
    slices_led: list[Ints]
    leaders: list[Ints]
    score: list[Ints]

    def copy(self) -> Room:
        return Room(*([column.copy() for column in getattr(self, name)] for name in self.__slots__))


_FAR = np.int64(2**62)


def _bubble(tree: Tree, room: Room, ask: Ask, inner: Mapping[int, int]) -> None:
    """From the leaves up: pods, slices, and what is left of both where one child also holds the leader."""
    leaf = len(tree.levels) - 1
    size = ask.slice_size
    if leaf == ask.slice_level:
        room.slices[leaf] = room.pods[leaf] // size
        room.slices_led[leaf] = room.pods_led[leaf] // size
    for level in range(leaf - 1, -1, -1):
        at = tree.first[level]
        pods, led = room.pods[level + 1], room.pods_led[level + 1]
        unit = inner.get(level + 1)
        if unit:
            pods, led = pods // unit * unit, led // unit * unit
        slices, slices_led = room.slices[level + 1], room.slices_led[level + 1]
        may_lead = room.leaders[level + 1] > 0 if ask.leaders else np.ones(len(pods), dtype=np.bool_)
        some = np.logical_or.reduceat(may_lead, at)
        cost = np.minimum.reduceat(np.where(may_lead, pods - led, _FAR), at)
        slice_cost = np.minimum.reduceat(np.where(may_lead, slices - slices_led, _FAR), at)
        room.pods[level] = np.add.reduceat(pods, at)
        room.slices[level] = np.add.reduceat(slices, at)
        room.pods_led[level] = np.where(some, room.pods[level] - cost, 0)
        room.slices_led[level] = np.where(some, room.slices[level] - slice_cost, 0)
        room.leaders[level] = np.maximum.reduceat(room.leaders[level + 1], at)
        room.score[level] = np.add.reduceat(room.score[level + 1], at)
        if level == ask.slice_level:
            room.slices[level] = room.pods[level] // size
            room.slices_led[level] = room.pods_led[level] // size


def measure(tree: Tree, ask: Ask, leaves: tuple[Ints, Ints, Ints, Ints]) -> Room:
    """The room of all domains. `leaves`, per leaf: pods, pods beside a leader, leaders, score."""
    pods, pods_led, leaders, score = leaves
    zeros = [np.zeros(len(starts), dtype=np.int64) for starts in tree.starts]
    room = Room(*([column.copy() for column in zeros] for _ in range(6)))
    room.pods[-1], room.pods_led[-1] = pods.copy(), pods_led.copy()
    room.leaders[-1], room.score[-1] = leaders.copy(), score.copy()
    _bubble(tree, room, ask, ask.inner or {})
    return room


class TooFew(Value, frozen=True):
    """`slices` of the gang would have fitted; at the depth `level`."""

    slices: int
    level: int


class Choice:
    """Kueue's placement of one ask in a tree. `choose` gives (leaf, pods, leaders) in path order."""

    def __init__(self, tree: Tree, ask: Ask, room: Room) -> None:
        self.tree = tree
        self.ask = ask
        self.room = room
        self.want = ask.count // ask.slice_size
        self.least = ask.unconstrained and ask.least_free_first

    # -- orders

    def _sorted(self, level: int, domains: Ints) -> Ints:
        room = self.room
        slices = room.slices[level][domains]
        keys = [domains, room.pods[level][domains], slices if self.least else -slices]
        if self.ask.affinity:
            keys.append(-room.score[level][domains])
        return domains[np.lexsort(keys)]

    def _sorted_led(self, level: int, domains: Ints) -> Ints:
        room = self.room
        slices = room.slices_led[level][domains]
        keys = [domains, room.pods_led[level][domains], slices if self.least else -slices]
        if self.ask.affinity:
            keys.append(-room.score[level][domains])
        keys.append(-room.leaders[level][domains])
        return domains[np.lexsort(keys)]

    def _tightest(self, level: int, domains: Ints, column: Ints, need: int) -> int:
        """The first of the smallest that hold `need`, among those with the best score; else the first."""
        if self.ask.affinity:
            score = self.room.score[level][domains]
            lower = np.flatnonzero(score != score[0])
            if len(lower):
                domains = domains[: lower[0]]
        held = column[domains]
        enough = held >= need
        if not enough.any():
            return int(domains[0])
        return int(domains[int(np.argmin(np.where(enough, held, _FAR)))])

    # -- the level, and the domains of it

    def _find(self, level: int) -> tuple[int, list[int]] | TooFew:
        ask, room, want = self.ask, self.room, self.want
        order = self._sorted_led(level, np.arange(len(self.tree.starts[level]), dtype=np.int64))
        slices, led, leaders = room.slices[level], room.slices_led[level], room.leaders[level]
        top = int(order[0])
        if not self.least and led[top] >= want and leaders[top] >= ask.leaders:
            top = self._tightest(level, order, led if ask.leaders else slices, want)
        if self.least:
            enough = order[slices[order] >= want]
            if len(enough):
                return level, [int(enough[0])]
            if ask.required:
                return TooFew(int(room.pods[level][order[-1]]), level)
        if led[top] >= want and leaders[top] >= ask.leaders:
            return level, [top]
        if ask.required:
            if ask.affinity:
                for i in range(1, len(order)):
                    if led[order[i]] >= want and leaders[order[i]] >= ask.leaders:
                        return level, [self._tightest(level, order[i:], led if ask.leaders else slices, want)]
            return TooFew(int(slices[top]), level)
        if level > 0 and not ask.unconstrained:
            return self._find(level - 1)
        chosen: list[int] = []
        rest, lead, i = want, ask.leaders, 0
        while lead > 0 and i < len(order) and leaders[order[i]] > 0:
            domain = int(order[i])
            if not self.least and led[domain] >= rest:
                domain = self._tightest(level, order[i:], led, rest)
            chosen.append(domain)
            lead -= int(leaders[domain])
            rest -= int(led[domain])
            i += 1
        if lead > 0:
            return TooFew(ask.leaders - lead, level)
        # Where the least free come first, most of a full cluster would: with nothing to give.
        order = self._sorted(level, (left := order[i:])[slices[left] > 0])
        i = 0
        while rest > 0 and i < len(order):
            domain = int(order[i])
            if not self.least and slices[domain] >= rest:
                domain = self._tightest(level, order[i:], slices, rest)
            chosen.append(domain)
            rest -= int(slices[domain])
            i += 1
        if rest > 0:
            return TooFew(want - rest, level)
        return level, chosen

    # -- how much each gets

    def _share(self, level: int, domains: Ints, count: int, leaders: int, size: int, by_slice: bool) -> list[int]:
        """Give `count` pods and the leader to these domains in their order, the last the tightest that suffices."""
        room = self.room
        held, led = (
            (room.slices[level], room.slices_led[level]) if by_slice else (room.pods[level], room.pods_led[level])
        )
        unit = size if by_slice else 1
        rest, lead = count // unit, leaders
        if not lead:
            domains = domains[held[domains] > 0]
        chosen: list[int] = []
        for i in range(len(domains)):
            domain = int(domains[i])
            if lead > 0:
                if not self.least and led[domain] >= rest and room.leaders[level][domain] >= lead:
                    domain = self._tightest(level, domains[i:], led, rest)
                chosen.append(domain)
                if led[domain] >= rest and room.leaders[level][domain] >= lead:
                    room.leaders[level][domain] = lead
                    room.pods[level][domain] = rest * unit
                    room.slices[level][domain] = rest if by_slice else 0
                    return chosen
                given = min(int(led[domain]), rest)
                room.leaders[level][domain] = min(int(room.leaders[level][domain]), lead)
                room.pods[level][domain] = given * unit
                lead -= int(room.leaders[level][domain])
                rest -= given
                continue
            if not self.least and held[domain] >= rest:
                domain = self._tightest(level, domains[i:], held, rest)
            chosen.append(domain)
            room.leaders[level][domain] = 0
            given = min(int(held[domain]), rest)
            room.pods[level][domain] = given * unit
            if given == rest:
                return chosen
            rest -= given
        return []

    def _children(self, level: int, domains: Sequence[int]) -> Ints:
        runs = [np.arange(self.tree.first[level][d], self.tree.last[level][d], dtype=np.int64) for d in domains]
        return np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)

    def choose(self) -> list[tuple[int, int, int]] | TooFew:
        ask, room = self.ask, self.room
        if not len(self.tree.order):
            return TooFew(0, ask.level)
        leaf = len(self.tree.levels) - 1
        balanced = None
        if ask.balanced and not ask.required and not ask.unconstrained:
            balanced = self._balanced()
        if balanced is not None:
            level, chosen = balanced
            room = self.room
        else:
            found = self._find(ask.level)
            if isinstance(found, TooFew):
                return found
            level, chosen = found
        chosen = self._share(level, np.array(chosen, dtype=np.int64), ask.count, ask.leaders, ask.slice_size, True)
        while balanced is None and level < min(leaf, ask.slice_level):
            below = self._sorted(level + 1, self._children(level, chosen))
            chosen = self._share(level + 1, below, ask.count, ask.leaders, ask.slice_size, True)
            level += 1
        while level < leaf:
            size = ask.slice_size if level < ask.slice_level else (ask.inner or {}).get(level + 1, 1)
            lower: list[int] = []
            for domain in chosen:
                below = self._sorted(level + 1, self._children(level, [domain]))
                if size > 1:
                    room.slices[level + 1][below] = room.pods[level + 1][below] // size
                    room.slices_led[level + 1][below] = room.pods_led[level + 1][below] // size
                pods, leaders = int(room.pods[level][domain]), int(room.leaders[level][domain])
                lower.extend(self._share(level + 1, below, pods, leaders, size, size > 1))
            chosen = lower
            level += 1
        return [(d, int(room.pods[leaf][d]), int(room.leaders[leaf][d]) if ask.leaders else 0) for d in sorted(chosen)]

    # -- balanced: the largest least share

    def _greedy(self, level: int, domains: Ints) -> tuple[int, int | None, int | None] | None:
        """(domains used, the last with a leader, the last without) when the largest are taken first; None: too few."""
        room = self.room
        rest, lead, used = self.want, self.ask.leaders, 0
        last_led: int | None = None
        last: int | None = None
        order = self._sorted_led(level, domains) if lead else self._sorted(level, domains)
        i = 0
        if lead:
            while lead > 0 and i < len(order) and room.leaders[level][order[i]] > 0:
                last_led = int(order[i])
                used += 1
                lead -= int(room.leaders[level][last_led])
                rest -= int(room.slices_led[level][last_led])
                i += 1
            if lead > 0:
                return None
            order = self._sorted(level, order[i:])
        for domain in order.tolist():
            if rest <= 0 or room.slices[level][domain] <= 0:
                break
            last = domain
            used += 1
            rest -= int(room.slices[level][domain])
        return None if rest > 0 else (used, last_led, last)

    def _clear(self, level: int, domain: int, leaders_only: bool) -> None:
        """Take a subtree, or its room for a leader, out of the account."""
        room, tree = self.room, self.tree
        low, high = domain, domain + 1
        for at in range(level, len(tree.levels)):
            columns = [room.pods_led, room.slices_led, room.leaders]
            if not leaders_only:
                columns += [room.pods, room.slices]
            for column in columns:
                column[at][low:high] = 0
            if at < len(tree.levels) - 1:
                low, high = int(tree.first[at][low]), int(tree.last[at][high - 1])

    def _prune(self, level: int, domains: Ints, threshold: int) -> None:
        leaf = len(self.tree.levels) - 1

        def prune(at: int, domain: int) -> None:
            if self.room.slices[at][domain] < threshold:
                self._clear(at, domain, leaders_only=False)
            elif (
                self.ask.leaders and self.room.leaders[at][domain] > 0 and self.room.slices_led[at][domain] < threshold
            ):
                self._clear(at, domain, leaders_only=True)

        if level < leaf:
            for child in self._children(level, domains.tolist()).tolist():
                prune(level + 1, child)
        _bubble(self.tree, self.room, self.ask, {})
        for domain in domains.tolist():
            prune(level, domain)

    def _balanced(self) -> tuple[int, list[int]] | None:
        ask, tree = self.ask, self.tree
        whole = self.room
        level = ask.level
        if level == 0:
            families = [np.arange(len(tree.starts[0]), dtype=np.int64)]
        else:
            families = [self._children(level - 1, [d]) for d in range(len(tree.starts[level - 1]))]
        best, best_used = 0, 0
        best_room: Room | None = None
        best_family: Ints | None = None
        for family in families:
            self.room = whole.copy()
            lower_level = level + 1 if level < ask.slice_level else level
            lower = self._children(level, family.tolist()) if lower_level > level else family
            greedy = self._greedy(lower_level, lower)
            if greedy is None:
                continue
            used, last_led, last = greedy
            threshold = self.want // used if used else 0
            if last_led is not None:
                threshold = min(threshold, int(self.room.slices_led[lower_level][last_led]))
            if last is not None:
                threshold = min(threshold, int(self.room.slices[lower_level][last]))
            reserve = threshold
            if ask.leaders and last is not None:
                reserve = min(threshold, int(self.room.slices_led[lower_level][last]))
            if threshold < best:
                continue
            self._prune(level, family, threshold)
            after = self._greedy(level, family)
            if after is None and reserve < threshold:
                if reserve <= 0 or reserve < best:
                    continue
                threshold = reserve
                self.room = whole.copy()
                self._prune(level, family, threshold)
                after = self._greedy(level, family)
            if after is None:
                continue
            if threshold > best or (threshold == best and after[0] < best_used):
                best, best_used, best_room, best_family = threshold, after[0], self.room, family
        self.room = whole
        if best <= 0 or best_room is None or best_family is None:
            return None
        self.room = best_room
        chosen = best_family
        if level < ask.slice_level:
            picked = self._smallest_set(level, chosen, by_entropy=True)
            if picked is None:
                self.room = whole
                return None
            chosen = self._children(level, picked)
            level += 1
        got = self._level_out(level, chosen, best)
        if got is None:
            self.room = whole
            return None
        return level, got

    def _level_out(self, level: int, domains: Ints, threshold: int) -> list[int] | None:
        """Everyone the threshold, and what remains from the first on."""
        picked = self._smallest_set(level, domains, by_entropy=False)
        if picked is None or self.want < len(picked) * threshold:
            return None
        room, size = self.room, self.ask.slice_size
        order = self._sorted_led(level, np.array(picked, dtype=np.int64)).tolist()
        extra, lead = self.want - len(order) * threshold, self.ask.leaders
        for domain in order:
            more = 0
            leads = 0
            if lead > 0:
                more = min(int(room.slices_led[level][domain]) - threshold, extra)
                leads = 1
                lead -= 1
            elif extra > 0:
                more = min(int(room.slices[level][domain]) - threshold, extra)
            room.leaders[level][domain] = leads
            room.slices[level][domain] = room.slices_led[level][domain] = threshold + more
            room.pods[level][domain] = (threshold + more) * size
            room.pods_led[level][domain] = (threshold + more) * size - leads
            extra -= more
        return None if extra > 0 or lead > 0 else order

    def _entropy(self, level: int, domain: int) -> float:
        if level == len(self.tree.levels) - 1:
            return 0.0
        pods = self.room.pods[level + 1][self.tree.first[level][domain] : self.tree.last[level][domain]]
        pods = pods[pods > 0]
        if not len(pods):
            return 0.0
        total = 0.0
        whole = float(pods.sum())
        for part in pods.tolist():
            total -= part / whole * float(np.log2(part / whole))
        return total

    def _smallest_set(self, level: int, domains: Ints, by_entropy: bool) -> list[int] | None:
        """As few domains as the greedy choice needs, with the least capacity: a knapsack over (leaders, pods) left."""
        greedy = self._greedy(level, domains)
        if greedy is None:
            return None
        most = greedy[0]
        room, ask = self.room, self.ask
        order = domains.tolist()
        if by_entropy:
            order.sort(
                key=lambda d: (
                    -int(room.leaders[level][d]),
                    -int(room.slices_led[level][d]),
                    -self._entropy(level, d),
                    d,
                )
            )
        else:
            order.sort()
        # chains[i][leaders left][pods left]: how a choice of i domains that leaves so much came about.
        chains: list[dict[int, dict[int, object]]] = [{} for _ in range(most + 1)]
        chains[0] = {ask.leaders: {self.want * ask.slice_size: None}}
        for domain in order:
            leads = int(room.leaders[level][domain])
            pods, led = int(room.pods[level][domain]), int(room.pods_led[level][domain])
            usable = room.slices[level][domain] > 0
            for i in range(most, 0, -1):
                for lead in sorted(chains[i - 1]):
                    for left in sorted(chains[i - 1][lead]):
                        if lead <= 0 and left <= 0:
                            continue
                        link = (domain, chains[i - 1][lead][left])
                        if lead > 0 and leads > 0:
                            chains[i].setdefault(lead - leads, {}).setdefault(left - led, link)
                        if usable:
                            chains[i].setdefault(lead, {}).setdefault(left - pods, link)
        done = [left for left in chains[most].get(0, {}) if left <= 0]
        if not done:
            return None
        out: list[int] = []
        link_at: object = chains[most][0][max(done)]
        while isinstance(link_at, tuple):
            out.append(link_at[0])
            link_at = link_at[1]
        return out[::-1]
