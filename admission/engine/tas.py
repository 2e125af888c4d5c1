"""Kueue's topology aware placement, for those who want its answers: profiles, leader and workers, balance, words.

Leaves are the lowest level of the topology: nodes where that is the hostname label, else domains of nodes of which
only the sum is known. Pod sets are placed in the order given, the leader of a group together with its workers, each as
`profiles` chooses. Pods of one lost node are replaced within the domain that binds them; an elastic gang keeps its pods
where they are. Ties end in the path of label values; answers are sorted by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from admission.engine.booking import MOST, Amounts, add_amounts
from admission.engine.counts import Filter, refused_taint
from admission.engine.model import Detail, Domain, Misfit, TopologyAssignment, TopologyRequest
from admission.engine.nodes import Placement, PlaceRequest, Question
from admission.engine.profiles import Ask, Choice, Room, TooFew, measure
from admission.engine.table import Excluded, Leaves, Table
from admission.engine.topology import Bools, Ints, Take
from admission.names import HOSTNAME_LABEL


@dataclass(slots=True)
class _Stand:
    """A pod set, and its leader, against the leaves of a topology."""

    leaves: Leaves
    ask: Ask
    filter: Filter
    per_pod: Amounts
    leader: Amounts | None
    within: Bools | None


Values = tuple[str, ...]


class Tas:
    """One question to the book, answered with Kueue's rule."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.table: Table = question.capacity.table
        self.gates = question.rules.gates
        self.assumed: dict[Values, dict[str, int]] = {}
        """Leaf -> what pod sets placed before take there. A node is one leaf for all topologies."""
        self.wide = question.capacity.domain_charges() if not question.empty else {}

    def placed(self) -> Placement | Misfit:
        groups: dict[str, list[PlaceRequest]] = {}
        for i, request in enumerate(self.question.requests):
            asked = request.pod_set.topology
            groups.setdefault(f"g {asked.group}" if asked is not None and asked.group else f"s {i}", []).append(request)
        out = Placement()
        lost = self._lost()
        for group in groups.values():
            if lost:
                for request in group:
                    got = self._replaced(request, lost)
                    if isinstance(got, Misfit):
                        return got
                    if got is not None:
                        out[request.pod_set.name] = got
                continue
            leader, workers = _leader_and_workers(group)
            found = self._grown(workers, leader)
            if found is None:
                found = self._fresh(workers, leader, workers.count, None)
                if not isinstance(found, Misfit):
                    self._assume(found[workers.pod_set.name], workers)
                    if leader is not None:
                        self._assume(found[leader.pod_set.name], leader)
            if isinstance(found, Misfit):
                return found
            out.update(found)
        return out

    # -- the request

    def _misfit(self, request: PlaceRequest, message: str, placeable: int = 0, level: str = "") -> Misfit:
        fits = False
        if self.question.explain and not self.question.empty and self.question.previous is None:
            trial = Tas(replace(self.question, empty=True, explain=False))
            fits = isinstance(trial.placed(), Placement)
        leaves = self._leaves(request)
        return Misfit(
            pod_set=request.pod_set.name,
            flavor=request.flavor,
            pods=request.count,
            placeable=placeable,
            detail=Detail.NODES_SHORT if fits or not self.question.explain else Detail.NEVER_FITS_NODES,
            nodes=len(leaves.values) if leaves is not None else 0,
            level=level,
            fits_when_empty=fits,
            message=message,
        )

    def _levels(self, request: PlaceRequest) -> tuple[str, ...]:
        value = self.question.capacity.topology(request.topology)
        return value.levels if value is not None else ()

    def _leaves(self, request: PlaceRequest) -> Leaves | None:
        levels = self._levels(request)
        return self.table.leaves(levels, request.labels) if levels else None

    def _ask(self, request: PlaceRequest, count: int, leader: PlaceRequest | None) -> Ask | str:
        asked = request.pod_set.topology
        levels = self._levels(request)
        asked = asked or TopologyRequest()
        implied = not asked.explicit
        sliced = bool(asked.slice_required or asked.slices)
        slice_only = sliced and not asked.required and not asked.preferred
        size, slice_key = 1, levels[-1]
        if asked.slices:
            slice_key, size = asked.slices[0]
        if asked.slice_required:
            slice_key = asked.slice_required
            if not asked.slices:
                size = asked.slice_size
        if size < 1:
            return "slice topology requested, but slice size not provided"
        # Pods that are no whole slices, as when some of a gang are done: the last one gets the room of one.
        count += -count % size
        if asked.required or asked.preferred:
            key = asked.required or asked.preferred
        else:
            key = levels[0] if slice_only else levels[-1]
        if key not in levels:
            return f"no requested topology level: {key}"
        if slice_key not in levels:
            return f"no requested topology level for slices: {slice_key}"
        level, slice_level = levels.index(key), levels.index(slice_key)
        if level > slice_level:
            return f"podset slice topology {slice_key} is above the podset topology {key}"
        inner: dict[int, int] = {}
        if "TASMultiLayerTopology" in self.gates:
            above, outer = slice_level, size
            for layer, layer_size in asked.slices[1:]:
                if layer not in levels:
                    return f"no requested topology level for additional slice layer: {layer}"
                at = levels.index(layer)
                if at <= above:
                    return f"additional slice layer topology {layer} must be at a lower level than {levels[above]}"
                if layer_size < 1 or outer % layer_size:
                    return f"additional slice layer size {layer_size} must evenly divide parent layer size {outer}"
                for depth in range(above + 1, at + 1):
                    inner[depth] = layer_size
                above, outer = at, layer_size
        return Ask(
            count=count,
            level=level,
            slice_level=slice_level,
            slice_size=size,
            leaders=0 if leader is None else 1,
            required=bool(asked.required),
            unconstrained=asked.unconstrained or implied or slice_only,
            inner=inner,
            least_free_first="TASProfileMixed" in self.gates,
            balanced="TASBalancedPlacement" in self.gates,
            affinity="TASRespectNodeAffinityPreferred" in self.gates,
        )

    # -- room of the leaves

    def _free(self, leaves: Leaves, levels: tuple[str, ...], resource: str) -> Ints:
        room = self.table.room(resource, self.question.empty)[leaves.rows]
        if len(leaves.starts) != len(leaves.rows):
            room = np.add.reduceat(np.clip(room, -(2**52), 2**52), leaves.starts)
        else:
            room = room.copy()
        for pairs, amounts in self.wide.items():
            at = leaves.index.get(tuple(value for _, value in pairs))
            if at is not None and tuple(level for level, _ in pairs) == levels:
                room[at] -= amounts.get(resource, 0)
        for values, amounts in self.assumed.items():
            at = self._leaf_at(leaves, levels, values)
            if at is not None:
                room[at] -= amounts.get(resource, 0)
        return room

    @staticmethod
    def _leaf_at(leaves: Leaves, levels: tuple[str, ...], values: Values) -> int | None:
        if levels[-1] == HOSTNAME_LABEL:
            hosts = {value[-1]: i for i, value in enumerate(leaves.values)} if len(values) == 1 else {}
            return hosts.get(values[0])
        return leaves.index.get(values)

    def _room(self, stand: _Stand, levels: tuple[str, ...], mask: Bools) -> tuple[Ints, Ints, Ints]:
        """Per leaf: pods, pods beside the leader, leaders."""
        leaves = stand.leaves
        names = sorted({name for name, _ in (*stand.per_pod, *(stand.leader or ()))})
        free = {name: self._free(leaves, levels, name) for name in names}

        def count(per_pod: Amounts, less: Amounts) -> Ints:
            out = np.full(len(leaves.starts), MOST, dtype=np.int64)
            taken = dict(less)
            for name, amount in per_pod:
                np.minimum(out, (free[name] - taken.get(name, 0)) // amount, out=out)
            out = np.maximum(out, 0)
            out[~mask] = 0
            return out

        pods = count(stand.per_pod, ())
        if stand.leader is None:
            return pods, pods, np.zeros(len(pods), dtype=np.int64)
        leads = np.minimum(count(stand.leader, ()), 1)
        led = np.where(leads > 0, count(stand.per_pod, stand.leader), pods)
        return pods, led, leads

    def _mask(self, stand: _Stand, levels: tuple[str, ...]) -> Bools:
        """Leaves that may be looked at: where leaves are nodes, nodes are filtered too."""
        leaves = stand.leaves
        mask = np.ones(len(leaves.starts), dtype=np.bool_) if stand.within is None else stand.within.copy()
        if levels[-1] == HOSTNAME_LABEL:
            mask &= self.table.mask(stand.filter)[leaves.first]
        if self.question.avoid:
            hosts = {self.table.names[row]: i for i, row in enumerate(leaves.first.tolist())}
            for name in self.question.avoid:
                if name in hosts and levels[-1] == HOSTNAME_LABEL:
                    mask[hosts[name]] = False
        return mask

    # -- placing anew

    def _fresh(
        self, request: PlaceRequest, leader: PlaceRequest | None, count: int, within: Bools | None
    ) -> dict[str, TopologyAssignment] | Misfit:
        levels = self._levels(request)
        if not levels:
            return self._misfit(request, f"topology {request.topology!r} not found")
        ask = self._ask(request, count, leader)
        if isinstance(ask, str):
            return self._misfit(request, ask)
        leaves = self.table.leaves(levels, request.labels)
        if not len(leaves.starts):
            return self._misfit(request, f"no topology domains at level: {levels[ask.level]}")
        stand = _Stand(
            leaves=leaves,
            ask=ask,
            filter=request.filter,
            per_pod=request.takes,
            leader=leader.takes if leader is not None else None,
            within=within,
        )
        mask = self._mask(stand, levels)
        pods, led, leads = self._room(stand, levels, mask)
        score = np.zeros(len(pods), dtype=np.int64)
        if ask.affinity and levels[-1] == HOSTNAME_LABEL:
            for weight, terms in request.pod_set.shape.preferences:
                if terms:
                    score += weight * (self.table.affinity((terms,))[leaves.first] & mask)
        room = measure(leaves.tree, ask, (pods, led, leads, score))
        whole = room.copy()
        got = Choice(leaves.tree, ask, room).choose()
        if isinstance(got, TooFew):
            message = self._message(request, stand, got, whole)
            placeable = min(got.slices * ask.slice_size, request.count)
            return self._misfit(request, message, placeable, levels[ask.level])
        take: Take = []
        for leaf, here, _ in got:
            take.append((leaf, min(here, count)))
            count -= take[-1][1]
        out = {request.pod_set.name: self._assignment(leaves, levels, take)}
        if leader is not None:
            out[leader.pod_set.name] = self._assignment(leaves, levels, [(leaf, leads) for leaf, _, leads in got])
        return out

    @staticmethod
    def _assignment(leaves: Leaves, levels: tuple[str, ...], take: Take) -> TopologyAssignment:
        cut = len(levels) - 1 if levels[-1] == HOSTNAME_LABEL else 0
        return TopologyAssignment(
            levels=levels[cut:], domains=tuple(Domain(leaves.values[leaf][cut:], pods) for leaf, pods in take if pods)
        )

    def _assume(self, assignment: TopologyAssignment, request: PlaceRequest) -> None:
        per_pod = request.takes
        for domain in assignment.domains:
            add_amounts(
                self.assumed.setdefault(domain.values, {}), ((name, n * domain.count) for name, n in per_pod), 1
            )

    # -- keeping what stands

    def _lost(self) -> frozenset[str]:
        """Hosts of the previous admission whose pods need another."""
        previous = self.question.previous
        if previous is None:
            return frozenset()
        hosts = {d.values[-1] for a in previous.pod_sets if a.topology is not None for d in a.topology.domains}
        return frozenset(hosts & (self.question.lost or self.question.avoid))

    def _stale(self, leaves: Leaves, levels: tuple[str, ...], domains: Iterable[Domain]) -> str:
        """A domain of an assignment that is no more, or "" """
        for domain in domains:
            if self._leaf_at(leaves, levels, domain.values) is None:
                return domain.values[0]
        return ""

    def _replaced(self, request: PlaceRequest, lost: frozenset[str]) -> TopologyAssignment | Misfit | None:
        before = self.question.before(request.pod_set.name)
        leaves, levels = self._leaves(request), self._levels(request)
        if before is None or leaves is None:
            return None
        gone = [domain for domain in before.domains if domain.values[-1] in lost]
        kept = [domain for domain in before.domains if domain.values[-1] not in lost]
        count = sum(domain.count for domain in gone)
        stale = self._stale(leaves, levels, kept)
        if stale:
            return self._misfit(
                request,
                "Cannot replace the node, because the existing topologyAssignment is invalid, "
                f"as it contains the stale domain {stale}",
            )
        node = gone[0].values[-1] if gone else ""
        homeless = f"cannot find replacement assignment for unhealthy node: {node}"
        repair = self._repair(request, leaves, levels, kept, count)
        if repair is None:
            return self._misfit(request, homeless)
        within, request = repair
        got = self._fresh(request, None, count, within)
        if isinstance(got, Misfit):
            return got
        new = got[request.pod_set.name]
        if not new.domains:
            return self._misfit(request, homeless)
        self._assume(new, request)
        return self._merged(leaves, levels, new, kept)

    def _repair(
        self, request: PlaceRequest, leaves: Leaves, levels: tuple[str, ...], kept: Sequence[Domain], count: int
    ) -> tuple[Bools | None, PlaceRequest] | None:
        """The leaves within which pods may be replaced, and the request with only the slices that still bind. None:
        wherever they were, a slice would stay torn."""
        asked = request.pod_set.topology
        if not kept or asked is None:
            return None, request
        size = asked.widest_slice
        tree = leaves.tree
        leaf = len(levels) - 1

        def around(at: int, depth: int) -> int:
            for level in range(leaf, depth, -1):
                at = int(tree.parents[level][at])
            return at

        def inside(depth: int, domain: int) -> Bools:
            mask = np.zeros(len(leaves.starts), dtype=np.bool_)
            mask[tree.starts[depth][domain] : tree.ends[depth][domain]] = True
            return mask

        def sums(depth: int, stand: Iterable[tuple[int, int]]) -> dict[int, int]:
            there: dict[int, int] = {}
            for at, pods in stand:
                domain = around(at, depth)
                there[domain] = there.get(domain, 0) + pods
            return there

        def tears(depth: int, home: int, wider: Iterable[tuple[str, int]]) -> bool:
            """Whether lost pods that come back there leave more of a wider layer torn than its last, short slice."""
            stand = [*standing, (int(tree.starts[depth][home]), count)]
            return any(sum(pods % n > 0 for pods in sums(levels.index(key), stand).values()) > 1 for key, n in wider)

        standing = [
            (at, domain.count) for domain in kept if (at := self._leaf_at(leaves, levels, domain.values)) is not None
        ]
        if size > 1:
            layers = list(asked.slices) or [(asked.slice_required, asked.slice_size)]
            if "TASMultiLayerTopology" not in self.gates:
                layers = layers[:1]
            layers = [(key, n) for key, n in layers if key in levels and n > 0]
            for i, (level, broken) in reversed(list(enumerate(layers))):
                depth = levels.index(level)
                there = sums(depth, standing)
                torn = [domain for domain, pods in sorted(there.items()) if pods % broken]
                if count % broken == 0 and len(torn) <= 1:
                    continue  # whole slices are lost; what is torn is the last, short one
                # With the lost pods no slice is torn; but the last one, where that is short.
                homes = [domain for domain in torn if (there[domain] + count) % broken == 0]
                if len(torn) == 1:
                    homes = torn
                homes = [domain for domain in homes if not tears(depth, domain, layers[:i])]
                if homes and len(torn) <= 2:
                    asked = replace(asked, slices=tuple(layers[i + 1 :]), slice_required="", slice_size=0)
                    pod_set = replace(request.pod_set, topology=asked)
                    return inside(depth, homes[0]), replace(request, pod_set=pod_set)
                if torn:
                    return None
                # All of a short slice is lost: it stays one, and a wider slice may bind it.
        if not asked.required or asked.required not in levels or not standing:
            return None, request
        depth = levels.index(asked.required)
        return inside(depth, around(standing[0][0], depth)), request

    def _merged(
        self, leaves: Leaves, levels: tuple[str, ...], new: TopologyAssignment, kept: Iterable[Domain]
    ) -> TopologyAssignment:
        pods: dict[int, int] = {}
        for domain in (*new.domains, *kept):
            at = self._leaf_at(leaves, levels, domain.values)
            assert at is not None
            pods[at] = pods.get(at, 0) + domain.count
        return self._assignment(leaves, levels, sorted(pods.items()))

    def _grown(
        self, workers: PlaceRequest, leader: PlaceRequest | None
    ) -> dict[str, TopologyAssignment] | Misfit | None:
        """An elastic gang whose pods stay: only the difference is placed. None: place it anew."""
        before = self.question.before(workers.pod_set.name)
        leaves, levels = self._leaves(workers), self._levels(workers)
        if before is None or leaves is None or "ElasticJobsViaWorkloadSlicesWithTAS" not in self.gates:
            return None
        led = self.question.before(leader.pod_set.name) if leader is not None else None
        if self._stale(leaves, levels, (*before.domains, *(led.domains if led is not None else ()))):
            return None
        stood = sum(domain.count for domain in before.domains)
        asked = workers.pod_set.topology or TopologyRequest()
        size = asked.widest_slice
        if size > 1 and (stood % size or workers.count % size):
            return None
        out: dict[str, TopologyAssignment] = {}
        if leader is not None and led is not None:
            out[leader.pod_set.name] = led
            self._assume(led, leader)
        if workers.count <= stood:
            kept: list[Domain] = []
            left = workers.count
            for domain in before.domains:
                pods = min(left, domain.count)
                if pods:
                    kept.append(Domain(domain.values, pods))
                left -= pods
            out[workers.pod_set.name] = TopologyAssignment(before.levels, tuple(kept))
            self._assume(out[workers.pod_set.name], workers)
            return out
        self._assume(before, workers)
        got = self._fresh(workers, leader if led is None else None, workers.count - stood, None)
        if isinstance(got, Misfit):
            return got
        self._assume(got[workers.pod_set.name], workers)
        if leader is not None and led is None:
            out[leader.pod_set.name] = got[leader.pod_set.name]
            self._assume(got[leader.pod_set.name], leader)
        out[workers.pod_set.name] = self._merged(leaves, levels, got[workers.pod_set.name], before.domains)
        return out

    # -- words

    def _message(self, request: PlaceRequest, stand: _Stand, got: TooFew, room: Room) -> str:
        ask, name, levels = stand.ask, request.topology, self._levels(request)
        asked = request.pod_set.topology
        if ask.inner and asked is not None:
            parts = [f'topology "{name}" doesn\'t allow to fit']
            slices = room.slices[got.level]
            best = int(np.argmax(slices))
            for level, size in asked.slices:
                if level in levels:
                    at = levels.index(level)
                    low, high = best, best + 1
                    for depth in range(got.level, at):
                        low, high = (
                            int(stand.leaves.tree.first[depth][low]),
                            int(stand.leaves.tree.last[depth][high - 1]),
                        )
                    fit = int((room.pods[max(at, got.level)][low:high] // size).sum())
                    parts.append(f"{fit}/{ask.count // size} slice(s) fit on level {level}")
            text = "; ".join(parts)
        else:
            total = ask.count // ask.slice_size
            unit = "pod" if ask.slice_size == 1 else "slice"
            if got.slices:
                text = f'topology "{name}" allows to fit only {got.slices} out of {total} {unit}(s)'
            else:
                text = f'topology "{name}" doesn\'t allow to fit any of {total} {unit}(s)'
        excluded = self._excluded(stand, levels)
        if excluded:
            text += f". Total nodes: {len(stand.leaves.starts)}; excluded: " + ", ".join(sorted(excluded))
        return text

    def _excluded(self, stand: _Stand, levels: tuple[str, ...]) -> list[str]:
        leaves, table = stand.leaves, self.table
        excluded = Excluded(np.ones(len(leaves.starts), dtype=np.bool_))
        exclude = excluded.add
        if levels[-1] == HOSTNAME_LABEL:
            first = leaves.first
            for taints, code in table.taint_classes().items():
                taint = refused_taint(taints, stand.filter.tolerations)
                if taint is not None:
                    exclude(f'taint "{taint.text}"', table.taints[first] == code)
            exclude("nodeSelector", ~table.pairs(stand.filter.selector)[first])
            if stand.filter.affinity is not None:
                exclude("affinity", ~table.affinity(stand.filter.affinity)[first])
        if stand.within is not None:
            exclude("topologyDomain", ~stand.within)
        for name, amount in sorted(stand.per_pod):
            exclude(f'resource "{name}"', self._free(leaves, levels, name) < amount)
        return [f"{why}: {number}" for why, number in excluded.by.items()]


def _leader_and_workers(group: Sequence[PlaceRequest]) -> tuple[PlaceRequest | None, PlaceRequest]:
    """Of a group of two the smaller leads; the first, when they are equal, works."""
    if len(group) < 2:
        return None, group[0]
    if group[1].count > group[0].count:
        return group[0], group[1]
    return group[1], group[0]
