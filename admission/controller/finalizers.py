"""Queues, flavors, topologies and checks that are in use do not vanish when they are deleted.

Each carries a finalizer, as in Kueue. A ClusterQueue goes when no gang holds quota of it any more (no new one gets in,
once it is being deleted); a ResourceFlavor when no gang holds quota of it and no queue or cohort names it; a Topology
when no flavor names it; an AdmissionCheck when no queue names it. One write when such an object is first seen, and one
when it may go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from admission.controller.decode import Item
from admission.controller.resources import ours
from admission.engine.state import State
from admission.kube.client import ApiError, Client, Conflict, NotFound
from admission.kube.events import EventRecorder
from admission.kube.flow import Told
from admission.kube.informer import Informer, Key
from admission.names import Names

log = structlog.get_logger("muster")

KEPT = ("ClusterQueue", "ResourceFlavor", "Topology", "AdmissionCheck")
PAUSE_S = 0.25
AT_ONCE = 8
AFTER_FAILURE_S = 30.0


def used_by(state: State) -> dict[tuple[str, str], str]:
    """(kind, name) -> what still needs it, of everything that is needed."""
    out: dict[tuple[str, str], str] = {}
    tree = state.ledger.tree
    for name in state.queues:
        holding = state.queue_numbers(name).reserving
        if holding:
            out["ClusterQueue", name] = f"{holding} {'gang holds' if holding == 1 else 'gangs hold'} quota of it"
        node = tree.queue(name)
        for (held, _), amount in {} if node is None else node.usage.items():
            if amount:
                out["ResourceFlavor", held] = f"gangs of ClusterQueue {name} hold quota of it"
    for kind, nodes in (("ClusterQueue", state.queues), ("Cohort", state.cohorts)):
        for name, spec in nodes.items():
            for group in spec.groups:
                for quotas in group.flavors:
                    out.setdefault(("ResourceFlavor", quotas.name), f"{kind} {name} names it")
    for name, queue in state.queues.items():
        for check in queue.checks:
            out.setdefault(("AdmissionCheck", check.name), f"ClusterQueue {name} names it")
    for name, flavor in state.flavors.items():
        if flavor.topology:
            out.setdefault(("Topology", flavor.topology), f"ResourceFlavor {name} names it")
    return out


class Keeper:
    """See the module. `look` says that something may have changed; `run` writes, for as long as it is run."""

    def __init__(
        self,
        client: Client,
        names: Names,
        state: State,
        informers: Mapping[str, Informer[Any]],
        events: EventRecorder,
    ) -> None:
        self._client = client
        self._names = names
        self._state = state
        self._informers = informers
        self._events = events
        self._changed = asyncio.Event()
        self._failed = False
        self._refused = Told()
        self.lets_go = True
        """Is it known what is needed? Not before a new leader has heard of all that the last one gave away."""
        self._leaving = False
        """Something is being deleted that is still needed."""
        self._told: dict[str, str] = {}
        """uid -> what was told to stand in the way of its deletion."""

    def look(self) -> None:
        self._changed.set()

    def given_back(self) -> None:
        """Gangs changed: that matters to what waits to go, and to nothing else."""
        if self._leaving:
            self._changed.set()

    def first(self, seen: Item[Any]) -> bool:
        """Is the object still to get its finalizer? Its status waits for that: two writes at once are a conflict."""
        return not (self._failed or seen.deleting or self._names.finalizer in seen.finalizers)

    async def run(self) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.once()
            await asyncio.sleep(AFTER_FAILURE_S if self._failed else PAUSE_S)

    async def once(self) -> int:
        """Write what is due; how many objects were written."""
        used: dict[tuple[str, str], str] | None = None
        due: list[tuple[str, Key, bool]] = []
        kept = 0
        for kind in KEPT:
            for key, seen in self._informers[kind].store.items():
                ours = self._names.finalizer in seen.finalizers
                if ours != seen.deleting or (seen.deleting and not self.lets_go):
                    continue
                if seen.deleting:
                    used = used_by(self._state) if used is None else used
                    why = used.get((kind, seen.name))
                    if why is not None:
                        self._tell(kind, seen, why)
                        kept += 1
                        continue
                due.append((kind, key, ours))
        self._failed, self._leaving = False, kept > 0
        if self._told:
            there = {seen.uid for kind in KEPT for seen in self._informers[kind].store.values() if seen.deleting}
            self._told = {uid: why for uid, why in self._told.items() if uid in there}
        written = 0
        for first in range(0, len(due), AT_ONCE):
            async with asyncio.TaskGroup() as group:  # a write that meets the fence leaves no other under way behind
                writes = [group.create_task(self._write(*one)) for one in due[first : first + AT_ONCE]]
            written += sum(write.result() for write in writes)
        return written

    async def _write(self, kind: str, key: Key, there: bool) -> bool:
        seen = self._informers[kind].get(*key)  # as it is now: others before it took time, and its status may be newer
        if seen is None or (self._names.finalizer in seen.finalizers, seen.deleting) != (there, there):
            return False
        others = [one for one in seen.finalizers if one != self._names.finalizer]
        body = {
            "metadata": {
                "uid": seen.uid,
                "resourceVersion": seen.resource_version,
                "finalizers": others if there else [*others, self._names.finalizer],
            }
        }
        path = ours(self._names, kind).path(name=seen.name)
        try:
            answer = await self._client.merge_patch(path, body)
        except (Conflict, NotFound):
            return False  # a newer version is on its way, and wakes us
        except (ApiError, OSError, TimeoutError) as error:
            # Where a right is missing it is so of all of them.
            tell = log.warning if self._refused.due() else log.debug
            tell("finalizer not written", kind=kind, name=seen.name, error=str(error), times=self._refused.times)
            self._failed = True
            self._changed.set()
            return False
        self._refused.over()
        if not there:
            self._informers[kind].learn(answer)
        return True

    def _tell(self, kind: str, seen: Item[Any], why: str) -> None:
        if self._told.get(seen.uid) == why:
            return
        self._told[seen.uid] = why
        about = {"apiVersion": self._names.api_version, "kind": kind, "name": seen.name, "uid": seen.uid}
        self._events.record(about, "Normal", "InUse", f"Deleted as soon as it is not needed any more: {why}")
