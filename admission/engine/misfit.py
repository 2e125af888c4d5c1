"""Why the pods of a gang have no nodes: how many could be placed, what keeps each node out, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from admission.engine import topology
from admission.engine.booking import HOST_PORT
from admission.engine.counts import refused_taint
from admission.engine.fit import Fit, Held, Part
from admission.engine.model import Detail, Misfit, of_class_label
from admission.engine.table import Excluded
from admission.engine.topology import Ints


class Shortfall:
    """What is told of one question that found no room."""

    def __init__(self, fit: Fit, fits_when_empty: Callable[[], bool]) -> None:
        """fits_when_empty: the same question to nodes without gangs; asked only where it matters."""
        self.fit = fit
        self._fits_when_empty = fits_when_empty

    def misfit(self, part: Part, parts: Sequence[Part], held: Held) -> Misfit:
        """Of `part`, for which no room was left where those placed before it `held` theirs."""
        counts = self.fit.thinned(part, self.fit.counts(part, {}, None))
        table, tree, shape = self.fit.table, part.tree, part.shape
        placeable = self._placeable(part, counts)
        message = ""
        beside: Held = {}
        room = counts
        if placeable >= part.request.count and len(parts) > 1:
            rest = self.fit.thinned(part, self.fit.counts(part, held, None))
            if (left := self._placeable(part, rest)) < part.request.count:
                placeable, beside, room = left, held, rest
            else:
                message = f"the pods of {part.name} would fit alone, but not beside the other pod sets"
        if (wanted := part.request.pod_set.shape.exclusive) is not None and not message:
            fit = len(self._own_domains(part, room))
            there = len(table.column(wanted.key)[1])
            message = (
                f"exclusive topology: each child job takes one {wanted.key} to itself, and {fit} of {there} hold the "
                f"{wanted.pods} pod(s) of one{' beside its other pod sets' if beside else ''} and have no pod of "
                "another JobSet"
            )
            if shape.required is not None:
                message += f"; the child jobs must be all within one {tree.levels[shape.required]}"
            if stuck := sorted({table.names[row] for row, _ in self.fit.lingering}):
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
            nodes=len(table.names),
            level=tree.levels[shape.required] if shape.required is not None else "",
            message=message,
            beside=bool(beside),
        )
        if not self.fit.question.explain:
            return misfit
        nodes, excluded = self._excluded(part, counts)
        fits = not self.fit.empty and self._fits_when_empty()
        detail, sound = Detail.NODES_SHORT, 0
        beyond: tuple[tuple[str, int, int], ...] = ()
        if not nodes:
            detail = Detail.NO_NODES
        elif not fits:
            # What only repair keeps from it is no reason to call it too large.
            bare = self._left(part, table.counts(part.filter, part.per_pod, True), beside)
            sound = self._left(part, table.sound_counts(part.filter, part.per_pod), beside)
            unusable = sound > bare and sound >= part.request.count
            detail = Detail.NODES_UNUSABLE if unusable else Detail.NEVER_FITS_NODES
            if sound < part.request.count:
                whole = self._left(part, table.whole_counts(part.filter, part.per_pod), beside)
                if whole >= part.request.count:
                    detail, sound = Detail.NODES_TAKEN, whole
            sound = min(sound, part.request.count)
            beyond = self._beyond(part) if detail is Detail.NEVER_FITS_NODES else ()
        return replace(
            misfit, nodes=nodes, excluded=excluded, fits_when_empty=fits, detail=detail, sound=sound, beyond=beyond
        )

    def _left(self, part: Part, counts: Ints, beside: Held) -> int:
        """How many of its pods rows with these counts hold at least, where other pod sets stand that hold so much."""
        if beside:
            counts = counts.copy()
            for row, held in beside.items():
                counts[row] -= max(-(-held.get(name, 0) // amount) for name, amount in part.per_pod)
            counts = np.maximum(counts, 0)
        return self._placeable(part, self.fit.thinned(part, counts))

    def _beyond(self, part: Part) -> tuple[tuple[str, int, int], ...]:
        table = self.fit.table
        of_flavor = table.pairs(part.filter.labels)
        most = ((name, each, int(table.room(name, True)[of_flavor].max(initial=0))) for name, each in part.per_pod)
        return tuple((name, each, there) for name, each, there in most if there < each and HOST_PORT not in name)

    def _placeable(self, part: Part, counts: Ints) -> int:
        """How many of its pods rows with these counts hold, in one domain where it asks for one."""
        tree, shape = part.tree, part.shape
        if not len(tree.order):
            return 0
        placeable = topology.most(tree, counts[tree.order], shape)
        for key in part.request.pod_set.shape.same_domain:
            codes = self.fit.table.column(key)[0]
            totals = np.bincount(codes[codes >= 0], counts[codes >= 0])
            placeable = min(placeable, int(totals.max(initial=0)))
        if (wanted := part.request.pod_set.shape.exclusive) is not None:
            placeable = min(placeable, wanted.pods * len(self._own_domains(part, counts)))
        return placeable

    def _own_domains(self, part: Part, counts: Ints) -> list[str]:
        """Values of the label of its exclusive placement that could hold a child job each."""
        wanted = part.request.pod_set.shape.exclusive
        assert wanted is not None
        codes, values = self.fit.table.column(wanted.key)
        totals = np.bincount(codes[codes >= 0], counts[codes >= 0], len(values))
        fit = [value for value, code in values.items() if totals[code] >= wanted.pods]
        if not wanted.values:
            return fit
        children = -(-part.request.count // wanted.pods)
        return sorted({f"{wanted.values}{i}" for i in range(children)}.intersection(fit))

    def _excluded(self, part: Part, counts: Ints) -> tuple[int, tuple[tuple[str, int], ...]]:
        """Nodes of the flavor, and why each of them takes no pod: the first reason in this order."""
        table, wanted = self.fit.table, part.filter
        of_flavor = table.pairs(wanted.labels)
        excluded = Excluded(of_flavor)
        exclude = excluded.add
        exclude("not ready", np.array([not node.ready for node in table.nodes], dtype=np.bool_))
        exclude("cordoned", np.array([node.unschedulable for node in table.nodes], dtype=np.bool_))
        for taints, code in table.taint_classes().items():
            taint = refused_taint(taints, wanted.tolerations)
            if taint is not None:
                exclude(f"taint {taint.key}", table.taints == code)
        exclude("node selector", ~table.pairs(wanted.selector))
        if wanted.affinity is not None:
            pod = part.request.pod_set.shape
            for name, _, _ in pod.claimed:
                exclude(f"no devices of class {name}", table.column(of_class_label(name))[0] < 0)
            also = [*(["volumes"] if pod.claims else []), *(["pods of others"] if pod.apart or pod.near else [])]
            exclude(" or ".join(["node affinity", *also]), ~table.affinity(wanted.affinity))
        avoided = np.zeros(len(table.names), dtype=np.bool_)
        avoided[self.fit.avoid] = True
        exclude("avoided", avoided)
        for name, amount in part.per_pod:
            why = f"host port {name[len(HOST_PORT) :]}" if name.startswith(HOST_PORT) else name
            exclude(why, table.room(name, self.fit.empty) < amount)
        if (barred := self.fit.barred(part, {})) is not None:
            exclude("exclusive topology", barred)
        if (repelled := self.fit.repelled(part)) is not None:
            exclude("anti-affinity of other pods", repelled)
        exclude("one per domain", counts == 0)
        return int(of_flavor.sum()), tuple(sorted(excluded.by.items()))
