"""Gangs that are to be told why they wait: of a namespace who waits longest first, and namespaces take turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from admission.engine.model import Key


class Unexplained:
    """See the module. Times are monotonic seconds, and no later one is followed by an earlier."""

    def __init__(self) -> None:
        self._since: OrderedDict[str, dict[Key, float]] = OrderedDict()
        """Per namespace; the first is next, and none is empty."""

    def add(self, gang: Key, since: float) -> None:
        """It waits to be told, unless it does already."""
        self._since.setdefault(gang[0], {}).setdefault(gang, since)

    def add_last(self, gang: Key, since: float) -> None:
        """It waits anew."""
        self.drop(gang)
        self.add(gang, since)

    def drop(self, gang: Key) -> None:
        waiting = self._since.get(gang[0], {})
        if waiting.pop(gang, None) is not None and not waiting:
            del self._since[gang[0]]

    def take(self, latest: float, but: Container[str]) -> Key | None:
        """The next that waits since `latest` at least, of none of these namespaces; it waits no more."""
        for namespace, waiting in self._since.items():
            gang, since = next(iter(waiting.items()))
            if namespace not in but and since <= latest:
                self._since.move_to_end(namespace)
                self.drop(gang)
                return gang
        return None
