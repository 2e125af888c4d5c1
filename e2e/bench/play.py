"""Makes the objects of a size, plays the run times of what is admitted, and counts what happens.

The actor keeps to what Kueue's runner does: the run starts when Admitted is seen; a Workload that is evicted while it
is Admitted is stopped and its reservation taken away, as manager kueue-admission and conditional on its version; one
that has run its time gets Finished. All that is counted comes from the watch, whose order is the API server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from admission.kube.client import AlreadyExists, ApiError, Client, Conflict, Kind, NotFound, Unavailable
from e2e.bench import load
from e2e.bench.load import CLASS_LABEL, GROUP, RUN_LABEL, VERSION, Set, Size

WORKLOADS = Kind(GROUP, "v1beta2", "workloads", "Workload")


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int | None = None


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []
    admission: Any = None


class _Workload(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Workload


_decode = msgspec.json.Decoder(_Event).decode


async def lines(client: Client, since: Callable[[], str] = lambda: "0") -> AsyncIterator[bytes]:
    """All Workloads and their changes, for ever. A watch that breaks goes on behind version `since`; from "0" on those
    that are there come again, in no order."""
    while True:
        try:
            async for line in client.watch_lines(WORKLOADS.path(), resource_version=since(), timeout_seconds=7200):
                yield line
        except ApiError:  # a CRD is not served at once when it is there
            await asyncio.sleep(0.3)


@dataclasses.dataclass
class _Run:
    """One Workload."""

    kind: Set
    cohort: str
    created: float
    holds: bool = False
    reason: str = ""
    admitted: float = 0.0
    timer: asyncio.TimerHandle | None = None
    finished: bool = False
    evicted: bool = False


@dataclasses.dataclass
class Tally:
    """What was seen. Times in seconds, cores as counted from the Workloads alone."""

    created: int = 0
    admitted: int = 0
    finished: int = 0
    evictions: int = 0
    """Of runs that had begun."""
    told_to_leave: int = 0
    """Evictions that were written, also of Workloads that had not begun or finished meanwhile."""
    explained: int = 0
    """Writes that only said why a Workload waits."""
    evicted_s: float = 0.0
    delivered_s: float = 0.0
    own_writes: Counter[str] = dataclasses.field(default_factory=Counter)
    waits: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    held: Counter[str] = dataclasses.field(default_factory=Counter)
    most_held: int = 0
    """Cores of one cohort, at any time."""


class Play:
    """One play of a size on one API server. `await run()` returns when all has finished."""

    def __init__(self, client: Client, size: Size, say: Callable[[str], None]) -> None:
        self.tally = Tally()
        self._client = client
        self._size = size
        self._say = say
        self._runs: dict[tuple[str, str], _Run] = {}
        self._cohort_of = dict(load.queue_names(size))
        self._writes: set[asyncio.Task[None]] = set()
        self._done = asyncio.Event()
        self._began = time.monotonic()
        self._version = "0"
        """Of the last change that was seen."""

    async def prepare(self) -> None:
        """Nodes, topology, flavor: what is there before anybody comes."""
        gate = asyncio.Semaphore(8)

        async def node(obj: dict[str, Any]) -> None:
            async with gate:
                path = Kind("", "v1", "nodes", "Node", False).path()
                await self._client.create(path, obj)
                taints = {"spec": {"taints": None}}
                await self._client.merge_patch(f"{path}/{obj['metadata']['name']}", taints)

        await asyncio.gather(*map(node, load.nodes(self._size)))
        for obj in load.shared(self._size):
            await self._make(obj)

    async def run(self) -> Tally:
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            aside = [group.create_task(self._watch()), group.create_task(self._tell())]
            for name, cohort in self._cohort_of.items():
                group.create_task(self._queue(name, cohort))
            await self._done.wait()
            for task in aside:
                task.cancel()
        await asyncio.gather(*self._writes)
        return self.tally

    # -- making

    async def _make(self, obj: dict[str, Any]) -> None:
        plurals = {"ClusterQueue": "clusterqueues", "LocalQueue": "localqueues", "Namespace": "namespaces",
                   "ResourceFlavor": "resourceflavors", "Topology": "topologies"}  # fmt: skip
        kind, namespace = obj["kind"], obj["metadata"].get("namespace")
        group, _, version = obj["apiVersion"].rpartition("/")
        path = Kind(group, version, plurals[kind], kind, bool(namespace)).path(namespace)
        with contextlib.suppress(AlreadyExists):  # it was made, and the answer lost
            await _answered(partial(self._client.create, path, obj))

    async def _queue(self, name: str, cohort: str) -> None:
        for obj in load.queue(name, cohort):
            await self._make(obj)
        await asyncio.gather(*(self._set(name, kind) for kind in self._size.sets))

    def expect(self, queue: str, name: str, kind: Set) -> None:
        """It will be created."""
        self._runs[queue, name] = _Run(kind, self._cohort_of.get(queue, queue), time.monotonic())

    def forget(self, key: tuple[str, str]) -> None:
        run = self._runs.pop(key, None)
        if run is not None and run.timer is not None:
            run.timer.cancel()

    def finished(self) -> list[tuple[str, str]]:
        return [key for key, run in self._runs.items() if run.finished]

    def waiting(self) -> list[tuple[str, str]]:
        """Oldest first."""
        return [key for key, run in self._runs.items() if not run.admitted and not run.holds]

    def was_admitted(self, key: tuple[str, str]) -> bool:
        run = self._runs.get(key)
        return run is not None and run.admitted > 0

    async def _set(self, queue: str, kind: Set) -> None:
        for number in range(kind.count):
            await asyncio.sleep(kind.every_ms / 1000)
            name = f"{kind.name}-{number}"
            self.expect(queue, name, kind)
            with contextlib.suppress(AlreadyExists):  # it was made, and the answer lost
                await _answered(partial(self._client.create, WORKLOADS.path(queue), load.workload(kind, queue, name)))
            self.tally.own_writes["create"] += 1
            self.tally.created += 1

    # -- watching

    async def _watch(self) -> None:
        async for line in lines(self._client, lambda: self._version):
            event = _decode(line)
            self._version = event.object.metadata.resource_version
            if event.type in ("ADDED", "MODIFIED"):
                self._seen(event.object)

    def _seen(self, one: _Workload) -> None:
        key = (one.metadata.namespace, one.metadata.name)
        run = self._runs.get(key)
        if run is None:
            return
        said = {condition.type: condition for condition in one.status.conditions}

        def true(kind: str) -> bool:
            return kind in said and said[kind].status == "True"

        self.tally.told_to_leave += true("Evicted") and not run.evicted
        run.evicted = true("Evicted")
        if run.finished:
            return
        holds = one.status.admission is not None and not true("Finished")
        if holds != run.holds:
            run.holds = holds
            self.tally.held[run.cohort] += run.kind.cores if holds else -run.kind.cores
            self.tally.most_held = max(self.tally.most_held, self.tally.held[run.cohort])
        if true("Finished"):
            run.finished = True
            self.tally.finished += 1
            self.tally.delivered_s += run.kind.run_ms / 1000
            if self.tally.finished == self._size.workloads:
                self._done.set()
        elif true("Evicted") and true("Admitted"):
            if run.timer is not None:
                run.timer.cancel()
                run.timer = None
                self.tally.evictions += 1
                self.tally.evicted_s += time.monotonic() - run.admitted
            self._start(self._stop_run(key, one))
        elif true("Admitted") and run.timer is None:
            now = time.monotonic()
            run.admitted = now
            self.tally.admitted += 1
            self.tally.waits.setdefault(run.kind.name, []).append(now - run.created)
            seconds = int(one.metadata.labels[RUN_LABEL]) / 1000
            assert one.metadata.labels[CLASS_LABEL] == run.kind.name
            run.timer = asyncio.get_running_loop().call_later(seconds, self._ran, key, run)
        elif not holds and "QuotaReserved" in said:
            reason = said["QuotaReserved"].reason + said["QuotaReserved"].message
            self.tally.explained += reason != run.reason and said["QuotaReserved"].reason != "Pending"
            run.reason = reason

    # -- acting

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    def _ran(self, key: tuple[str, str], run: _Run) -> None:
        if run.timer is not None:
            self._start(self._finish(key))

    async def _finish(self, key: tuple[str, str]) -> None:
        condition = {"type": "Finished", "status": "True", "reason": "ByTest", "message": "Finished by the test"}
        condition["lastTransitionTime"] = _now()
        await self._apply(key, {"conditions": [condition]}, "kueue-job-controller-Finished")

    async def _stop_run(self, key: tuple[str, str], one: _Workload) -> None:
        conditions = []
        for condition in one.status.conditions:
            if condition.type in ("QuotaReserved", "Admitted") and condition.status == "True":
                condition.status, condition.last_transition_time = "False", _now()
                reason = {"QuotaReserved": "Pending", "Admitted": "NoReservation"}[condition.type]
                condition.reason, condition.message = reason, "Stopped by the test"
            conditions.append({k: v for k, v in msgspec.to_builtins(condition).items() if v is not None})
        try:
            await self._apply(key, {"conditions": conditions}, "kueue-admission", one.metadata.resource_version)
        except Conflict:
            return  # changed meanwhile: its next version comes

    async def _apply(self, key: tuple[str, str], status: dict[str, Any], manager: str, version: str = "") -> None:
        meta = {"namespace": key[0], "name": key[1], **({"resourceVersion": version} if version else {})}
        body = {"apiVersion": VERSION, "kind": "Workload", "metadata": meta, "status": status}
        try:
            await _answered(partial(self._client.apply_raw, WORKLOADS.path(*key, "status"), body, manager=manager))
        except NotFound:
            return
        self.tally.own_writes["status"] += 1

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(5)
            tally = self.tally
            self._say(
                f"{time.monotonic() - self._began:5.0f} s  created {tally.created}, admitted {tally.admitted}, "
                f"finished {tally.finished} of {self._size.workloads}, evictions {tally.evictions}"
            )


async def _answered(ask: Callable[[], Awaitable[object]]) -> None:
    """Asked until there is an answer: a machine that stands still for a while is no end of a bench."""
    while True:
        try:
            await ask()
            return
        except Unavailable:
            await asyncio.sleep(0.5)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
