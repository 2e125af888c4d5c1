"""Where a whole gang would stand: all pods of all its pod sets at once, or nowhere, and then why.

`place` is the one door. With Muster's rule (`Rules.pack_against_fragmentation`) the leaves are always nodes, so a yes
is exact per node, and pod sets are packed as `packing` says. Equal pods are placed without search, and a no for a gang
of one pod set is exact too, whatever level, slices, affinity or anti-affinity to itself it asks for (but not where it
asks for one pod per value of several labels, or of a label whose values cross the domains of its slices).

Several pod sets compete for nodes. They are tried one after the other in all orders (three at most; of more, the
hardest first), and when none succeeds `mixed` decides, within its bound; `misfit` says why not.

Kueue's rule is in `tas` and `profiles`, the book of nodes in `nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, permutations

import numpy as np
from msgspec.structs import replace

from admission.engine.booking import HOST_PORT, PODS, add_amounts, takes
from admission.engine.counts import tolerates
from admission.engine.fit import Fit, Held, Part, RefusedError, Slot
from admission.engine.misfit import Shortfall
from admission.engine.mixed import Mixed, Work
from admission.engine.model import Admission, Detail, Domain, Key, Misfit, Rules, TopologyAssignment
from admission.engine.nodes import Capacity, Placement, PlaceRequest, Question
from admission.engine.packing import Packing
from admission.engine.table import ANSWERS
from admission.engine.tas import Tas
from admission.engine.topology import Take
from admission.names import HOSTNAME_LABEL

__all__ = ["HOST_PORT", "PODS", "Capacity", "PlaceRequest", "Placement", "needs_nodes", "place", "takes", "tolerates"]


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


class _Muster:
    """One question to the book, answered with Muster's rule."""

    def __init__(self, question: Question) -> None:
        self.fit = Fit(question)
        self.packing = Packing(self.fit)
        self.work = Work(question.capacity.effort)
        self.mixed = Mixed(self.fit, self.work)

    def placed(self) -> Placement | Misfit:
        asked = self.fit.question
        try:
            parts = [self.fit.part(request) for request in asked.requests]
        except RefusedError as refused:
            return refused.misfit
        beside = asked.capacity.taken_by(asked.beside) if asked.beside else {}
        if len(parts) == 1 and parts[0].request.anywhere and not (asked.again or asked.previous):
            # All there is to it, most of the time.
            take = self.packing.alone(parts[0], beside, None)
            return self._misfit(parts[0], parts) if take is None else self._answer(parts, {parts[0].name: take})
        standing: dict[int, dict[str, int]] = {}
        stuck = next((part for part in parts if self.fit.stuck(part)), None)
        if stuck is not None:
            return self._misfit(stuck, parts)
        if asked.again:
            for part in parts:
                self._stand_again(part, standing)
        elif asked.previous is not None and not any(s.row is None for part in parts for s in part.slots):
            for part in parts:  # grows: what it holds is not on the book
                self.fit.hold(standing, part, part.kept())
        for row, amounts in beside.items():
            add_amounts(standing.setdefault(row, {}), amounts.items(), 1)
        units = self._units(parts)
        failed: Part | None = None
        beside_it: dict[int, dict[str, int]] = {}
        """What the pod sets placed before it had taken."""
        for order in _orders(units, self._hardness):
            held = {row: dict(amounts) for row, amounts in standing.items()}
            takes_of: dict[str, Take] = {}
            for unit in order:
                got = self._unit(unit, held)
                if isinstance(got, Part):
                    if failed is None:
                        failed, beside_it = got, held
                    break
                takes_of.update(got)
            else:
                if asked.again and not all(self._lawful(part, takes_of[part.name]) for part in parts):
                    failed = parts[0]
                    break
                return self._answer(parts, takes_of)
        if len(parts) > 1 and not asked.again and all(part.plain for part in parts):
            joint = self.mixed.search(units)
            if joint is not None:
                return self._answer(parts, joint)
        self.work.found_nothing()
        assert failed is not None
        return self._misfit(failed, parts, beside_it)

    def _stand_again(self, part: Part, standing: dict[int, dict[str, int]]) -> None:
        """Leave of its slots those that have room; what stands there is noted in `standing`."""
        slots: list[Slot] = []
        left = part.request.count
        barred = [mask for mask in (self.fit.barred(part, {}), self.fit.repelled(part)) if mask is not None]
        for slot in part.slots:
            pods = min(slot.pods, left)
            left -= pods
            room = 0
            if slot.row is not None and not any(mask[slot.row] for mask in barred):
                room = min(pods, int(self.fit.room(part, standing, None)[slot.row]))
            if room:
                slots.append(Slot(slot.row, room))
                self.fit.hold(standing, part, [(slot.row or 0, room)])
            if room < pods:
                slots.append(Slot(None, pods - room))
        part.slots = slots

    def _lawful(self, part: Part, take: Take) -> bool:
        """Does a pod set that partly stands again keep all that it asks for: its nodes or its owner's wishes may have
        changed since it stood there."""
        new = iter([row for row, pods in take for _ in range(pods)])
        ranked = [next(new) if slot.row is None else slot.row for slot in part.slots for _ in range(slot.pods)]
        rows = np.array([*ranked, *new], dtype=np.int64)
        pod, shape = part.request.pod_set.shape, part.shape
        for key in pod.same_domain:
            codes = self.fit.table.column(key)[0][rows]
            if (codes != codes[0]).any() or codes[0] < 0:
                return False
        for key in pod.one_per_domain:
            codes = self.fit.table.column(key)[0][rows]
            codes = codes[codes >= 0]
            if len(np.unique(codes)) < len(codes):
                return False
        if pod.exclusive is not None:
            codes = self.fit.table.column(pod.exclusive.key)[0][rows]
            own = [np.unique(codes[i : i + pod.exclusive.pods]) for i in range(0, len(codes), pod.exclusive.pods)]
            if any(len(values) > 1 or values[0] < 0 for values in own) or len(np.unique(codes)) < len(own):
                return False
        if shape.required is not None:
            around = self.fit.leaf_domain(part, shape.required)[rows]
            if (around != around[0]).any() or not part.tree.known[shape.required][around[0]]:
                return False
        for depth, size in shape.slices:
            around = self.fit.leaf_domain(part, depth)[rows]
            whole = all((around[i : i + size] == around[i]).all() for i in range(0, len(around), size))
            if not whole or not part.tree.known[depth][around].all():
                return False
        return True

    @staticmethod
    def _units(parts: Iterable[Part]) -> list[list[Part]]:
        """Pod sets of one group together, the others alone, in the order given."""
        units: dict[str, list[Part]] = {}
        for i, part in enumerate(parts):
            asked = part.request.pod_set.topology
            units.setdefault(f"g {asked.group}" if asked is not None and asked.group else f"s {i}", []).append(part)
        return list(units.values())

    def _hardness(self, unit: list[Part]) -> int:
        """How many times over the empty table could hold it: the fewer, the sooner it should choose."""
        return min(int(self.fit.counts(part, {}, None).sum()) // max(1, part.request.count) for part in unit)

    def _unit(self, unit: list[Part], held: dict[int, dict[str, int]]) -> dict[str, Take] | Part:
        """A pod set alone, or a group within one domain; `held` is charged. Else the part that found no room."""
        if len(unit) == 1:
            self.work.spend(len(self.fit.table.names))
            take = self.packing.one(unit[0], held, None)
            return unit[0] if take is None else {unit[0].name: take}
        failed = unit[0]
        for mask in self.fit.domains(unit, held):
            for order in islice(permutations(unit), 6):
                if self.work.left <= 0:
                    self.work.out_of_steps = True
                    return failed
                self.work.spend(len(unit) * len(self.fit.table.names))
                trial = {row: dict(amounts) for row, amounts in held.items()}
                out: dict[str, Take] = {}
                for part in order:
                    take = self.packing.one(part, trial, mask)
                    if take is None:
                        failed = part
                        break
                    out[part.name] = take
                else:
                    held.update(trial)
                    return out
            if all(part.plain for part in unit):
                joint = self.mixed.exact([(part, mask) for part in unit], held)
                if joint is not None:
                    for part in unit:
                        self.fit.hold(held, part, joint[part.name])
                    return joint
        return failed

    def _answer(self, parts: Iterable[Part], found: Mapping[str, Take]) -> Placement:
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
                domains=tuple(Domain((self.fit.table.names[row],), pods) for row, pods in domains if pods),
            )
        return out

    def _misfit(self, part: Part, parts: Sequence[Part], held: Held | None = None) -> Misfit:
        return Shortfall(self.fit, self._fits_when_empty).misfit(part, parts, held or {})

    def _fits_when_empty(self) -> bool:
        empty = replace(self.fit.question, empty=True, explain=False, own="")
        return isinstance(_Muster(empty).placed(), Placement)


def _append(domains: list[tuple[int, int]], row: int, pods: int) -> None:
    if domains and domains[-1][0] == row:
        domains[-1] = (row, domains[-1][1] + pods)
    elif pods:
        domains.append((row, pods))


def _orders(units: list[list[Part]], hardness: Callable[[list[Part]], int]) -> Iterable[Sequence[list[Part]]]:
    if len(units) < 2:
        return [units]
    hard = sorted(range(len(units)), key=lambda i: (hardness(units[i]), i))
    ordered = [units[i] for i in hard]
    return permutations(ordered) if len(ordered) <= 3 else [ordered, units]
