"""Queues whose status may differ from what is stored, and when it is written.

What is shown of a queue gives way to jobs: while writes are due that a job waits for, few statuses are written, and of
one queue not more than one a second. Queues to which the first gang came, or which the last one left, come first; then
those not written for longest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog

from admission.controller import queue_status
from admission.controller.conditions import Condition
from admission.controller.decode import Item
from admission.controller.resources import ours
from admission.controller.statuses import Statuses
from admission.engine.model import ClusterQueue, Cohort, LocalQueue, Rules, Workload
from admission.engine.state import State
from admission.kube.client import ApiError, Conflict, Kind, NotFound, unanswered
from admission.kube.informer import Informer
from admission.names import Names

if TYPE_CHECKING:
    from admission.controller.app import Tuning

log = structlog.get_logger("muster")

QueueName = tuple[str, str, str]
"""(ClusterQueue, LocalQueue or Cohort, namespace or "", name)."""
QUEUES = (ClusterQueue, LocalQueue, Cohort)
_STATUS_OF: dict[str, Callable[[State, Item[Any], int], dict[str, Any]]] = {
    "ClusterQueue": queue_status.queue_status,
    "LocalQueue": queue_status.local_queue_status,
    "Cohort": queue_status.cohort_status,
}


class StaleQueues:
    """See the module. At first all of them are."""

    def __init__(
        self,
        names: Names,
        rules: Rules,
        tuning: Tuning,
        state: State,
        informers: Mapping[str, Informer[Any]],
        statuses: Statuses,
        *,
        now: Callable[[], int],
        busy: Callable[[], bool],
        first: Callable[[Item[Any]], bool],
        failed: Callable[[QueueName, Exception], None],
        learn: Callable[[str, bytes], None],
    ) -> None:
        """now: ms since the epoch; busy: are writes due that a job waits for; first: is the object to be written by
        somebody else before; learn: takes what the API server answered."""
        self.tuning = tuning
        self.held: Condition | None = None
        """Shown on every ClusterQueue."""
        self._names = names
        self._rules = rules
        self._state = state
        self._informers = informers
        self._statuses = statuses
        self._now = now
        self._busy = busy
        self._first = first
        self._failed = failed
        self._learn = learn
        self._changed = asyncio.Event()
        self._stale: dict[QueueName, None] = {}
        self._all = True
        self._written_at: dict[QueueName, float] = {}
        """Monotonic seconds."""
        self._unwritten: dict[QueueName, str] = {}
        """Those whose status could not be written when that was last tried, and what was said."""
        self._slow: set[QueueName] = set()
        """Those whose status is being written, and has been for long: nobody waits for them."""

    def add(self, kind: str, namespace: str, name: str) -> None:
        self._stale[kind, namespace, name] = None
        self._changed.set()

    def add_all(self) -> None:
        self._all = True
        self._changed.set()

    def add_of(self, gang: Workload) -> None:
        """Something of a gang changed: the numbers of its queues, and of the cohorts above, may have."""
        self.add("LocalQueue", gang.namespace, gang.queue)
        local = self._state.local_queue((gang.namespace, gang.queue))
        names = {local.cluster_queue} if local is not None else set[str]()
        if gang.admission is not None:
            names.add(gang.admission.cluster_queue)
        for name in names:
            self.add("ClusterQueue", "", name)
            queue = self._state.cluster_queue(name)
            above, seen = queue.cohort if queue is not None else "", set[str]()
            while above and above not in seen:
                seen.add(above)
                self.add("Cohort", "", above)
                cohort = self._state.cohorts.get(above)
                above = cohort.parent if cohort is not None else ""

    def gone(self, kind: str, namespace: str, name: str) -> None:
        """There is no such queue any more."""
        self._written_at.pop((kind, namespace, name), None)
        self._unwritten.pop((kind, namespace, name), None)

    async def run(self) -> None:
        """Write what is due; until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:  # a write that meets the fence leaves no other under way behind
            while True:
                try:
                    async with asyncio.timeout(self._until_sample()):
                        await self._changed.wait()
                except TimeoutError:
                    self.add_all()
                began = loop.time()
                self._changed.clear()
                await self.write(self.at_once(), group)
                await asyncio.sleep(max(0.05, began + self.tuning.queue_status_s - loop.time()))

    def at_once(self) -> tuple[int, int] | None:
        """How many statuses may be written now: of queues that turned (see `_turned`), and of others; None where nobody
        waits for another write."""
        if not self._busy():
            return None
        seconds = self.tuning.queue_status_s
        return (
            max(1, round(self.tuning.queue_turns_per_s * seconds)),
            max(1, round(self.tuning.queue_statuses_per_s * seconds)),
        )

    def _until_sample(self) -> float | None:
        """Seconds until the usage of some LocalQueue is to be noted again; None where turns are not taken by usage."""
        if self._rules.usage_fairness is None:
            return None
        now = self._now()
        stored = [one for one in self._informers["LocalQueue"].store.values() if one.value is not None]
        due = [at for one in stored if (at := queue_status.next_sample(self._state, one, now)) is not None]
        return max(0.0, (min(due) - now) / 1000) + 0.01 if due else None

    async def write(self, most: tuple[int, int] | None = None, group: asyncio.TaskGroup | None = None) -> int:
        """Write queue statuses that differ from what is stored, first of queues that turned, then those not written for
        longest, for about as long as the status of one queue may stand; how many were written. most: as
        `at_once`. group: where writes that take long go on; without, they are waited for."""
        if group is None:
            async with asyncio.TaskGroup() as alone:
                return await self.write(most, alone)
        if self._all:
            self._all = False
            for engine_class in QUEUES:
                kind = engine_class.__name__
                self._stale.update(dict.fromkeys((kind, *key) for key in self._informers[kind].store))
        by_age = sorted(self._stale, key=lambda queue: (self._written_at.get(queue, 0.0), queue))
        # Where a right is missing all are refused, and offering them again is not to be all that is done.
        again = max(1, round(self.tuning.queue_statuses_per_s * self.tuning.queue_status_s))
        later = set([queue for queue in by_age if queue in self._unwritten][again:])
        by_age = [queue for queue in by_age if queue not in later]
        turned = dict.fromkeys(islice((one for one in by_age if self._turned(*one)), None if most is None else most[0]))
        due = [*turned, *(queue for queue in by_age if queue not in turned)]
        bound = len(due) if most is None else len(turned) + most[1]
        written, until = 0, time.monotonic() + self.tuning.queue_status_s
        while due and written < bound and time.monotonic() < until:
            now = self._now()
            wanted: list[tuple[QueueName, Item[Any], dict[str, Any]]] = []
            while due and len(wanted) < min(self.tuning.queue_statuses_at_once, bound - written):
                queue = due.pop(0)
                if queue in self._slow or (queue[1] and any(queue[1] == one[1] for one in self._slow)):
                    continue  # it stays stale, and is looked at when that write has ended
                self._stale.pop(queue, None)
                seen = self._informers[queue[0]].store.get(queue[1:])
                status = self._status_or_none(queue, seen, now) if seen is not None else None
                if seen is not None and status is not None:
                    wanted.append((queue, seen, status))
            writes = [group.create_task(self._write_one(*one)) for one in wanted]
            if writes:
                await asyncio.wait(writes, timeout=self.tuning.slow_s)
            self._slow.update(one[0] for one, write in zip(wanted, writes, strict=True) if not write.done())
            written += len(writes)
        if due or later:
            self._changed.set()
        return written

    def _turned(self, kind: str, namespace: str, name: str) -> bool:
        """Did the first gang come to a queue, or the last one leave it, since its status was written."""
        seen = self._informers[kind].store.get((namespace, name))
        if seen is None or kind == "Cohort":
            return False
        stored = seen.status or {}
        was = bool(stored.get("pendingWorkloads") or stored.get("reservingWorkloads"))
        return was != self._state.is_used((namespace, name) if namespace else name)

    def _status_or_none(self, queue: QueueName, seen: Item[Any], now: int) -> dict[str, Any] | None:
        """As `_status_due`; None, too, where a defect keeps it from being known: that keeps nobody from deciding."""
        try:
            return self._status_due(queue[0], seen, now)
        except MemoryError:
            raise
        except Exception as error:
            self._failed(queue, error)
            if self._unwritten.get(queue) != str(error):
                log.exception("queue status not known", kind=queue[0], namespace=queue[1], name=queue[2])
            self._unwritten[queue] = str(error)
            return None

    def _status_due(self, kind: str, seen: Item[Any], now: int) -> dict[str, Any] | None:
        """The status that is to be written; None where what is stored says the same."""
        if seen.value is None or (kind == "ClusterQueue" and self._first(seen)):
            return None
        status: dict[str, Any] = _STATUS_OF[kind](self._state, seen, now)
        if kind == "ClusterQueue" and self.held is not None:
            status = queue_status.with_hold(status, seen, self.held, now)
        status = self._statuses.stored(kind, status)
        return status if queue_status.differs(seen.status, status) else None

    async def _write_one(self, queue: QueueName, seen: Item[Any], status: dict[str, Any]) -> None:
        kind, namespace, name = queue
        resource = ours(self._names, kind)
        self._written_at[queue] = time.monotonic()
        try:
            await self._write_status(resource, seen, status)
        except Conflict:
            pass  # somebody wrote it since it was looked at: news of that is on its way, and makes it stale again
        except NotFound as error:
            self._unwritten[queue] = str(error)
            self.add(*queue)
        except (ApiError, OSError, TimeoutError) as error:
            self._failed(queue, error)
            # What it says may be in other words each time, as where a connection broke of a webhook that is away.
            why = f"{error.status} {error.reason}" if isinstance(error, ApiError) else type(error).__name__
            tell = log.debug if unanswered(error) or self._unwritten.get(queue) == why else log.warning
            tell("queue status not written", kind=kind, namespace=namespace, name=name, error=str(error))
            self._unwritten[queue] = why
            self.add(*queue)
        else:
            if queue in self._unwritten:
                self._unwritten.clear()  # what refused it may have refused the others
        finally:
            if queue in self._slow:
                self._slow.discard(queue)
                self._changed.set()

    async def _write_status(self, resource: Kind, seen: Item[Any], status: dict[str, Any]) -> None:
        metadata = {"name": seen.name, "uid": seen.uid, "resourceVersion": seen.resource_version}
        if seen.namespace:
            metadata["namespace"] = seen.namespace
        answer = await self._statuses.write(resource, metadata, status)
        queue = (resource.kind, seen.namespace, seen.name)
        changed = queue in self._stale
        self._learn(resource.kind, answer)
        if not changed:
            self._stale.pop(queue, None)  # what comes back is what was written
