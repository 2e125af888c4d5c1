"""Are all nodes silent at once? Then it is the network between them and the API server, or the API server itself, and
says nothing of what runs on them.

kube-controller-manager judges zones, and evicts nobody while not one of them has a node that is ready: while no node is
ready. Of zones nothing else follows: one that is wholly down beside others is lost at the usual rate, there as here. As
there, nodes with its label to be left out (those of the control plane, beside the API server, are ready all the time)
say nothing of the others, cordoned ones count as any, and a cluster of one node that is not ready is silent.

Since when it is over is read off the nodes: the earliest of those that are ready became so then. So a controller that
began to look a moment ago knows it as well. But each kubelet writes that by its own clock, and one that is behind would
have it over long ago, and all nodes that are still away lost with it: whoever saw it end knows that it was not before.
So does who hears from an API server that was away: no node says that it was not heard of meanwhile.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from admission.engine.model import Node

LEFT_OUT = "node.kubernetes.io/exclude-disruption"


class Silence:
    """Told of every change of a node, at the cost of a few comparisons."""

    def __init__(self) -> None:
        self._ready: dict[str, int] = {}
        """Since when, ms since the epoch."""
        self._silent: set[str] = set()
        self._order: list[tuple[int, str]] = []
        """A heap of (since, node) that are ready, and of some that are so no more."""
        self._ended_at = 0
        """When it was last seen to end, ms since the epoch."""

    def seen(self, node: Node, at: int = 0) -> None:
        """at: when that was seen to change, ms since the epoch; 0 where it may have been so for long."""
        silent = self._silent and self.over_since is None
        self._note(node)
        if silent and self.over_since is not None:
            self._ended_at = at

    def ended(self, at: int) -> None:
        """Nothing could be heard of any node before, whatever they say now; ms since the epoch."""
        self._ended_at = at

    def _note(self, node: Node) -> None:
        if any(name == LEFT_OUT for name, _ in node.labels):
            self.gone(node.name)
        elif not node.ready:
            self.gone(node.name)
            self._silent.add(node.name)
        elif self._ready.get(node.name) != node.ready_since:
            self._silent.discard(node.name)
            self._ready[node.name] = node.ready_since
            heappush(self._order, (node.ready_since, node.name))
            if len(self._order) > 2 * len(self._ready) + 16:
                self._order = [(since, name) for name, since in self._ready.items()]
                heapify(self._order)

    def gone(self, name: str) -> None:
        self._ready.pop(name, None)
        self._silent.discard(name)

    @property
    def over_since(self) -> int | None:
        """Since when at least one node has been ready, ms since the epoch; None while all are silent."""
        while self._order and self._ready.get(self._order[0][1]) != self._order[0][0]:
            heappop(self._order)
        if self._order:
            return max(self._order[0][0], self._ended_at)
        return None if self._silent else 0
