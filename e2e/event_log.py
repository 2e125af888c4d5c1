"""A record of every version of every relevant object, in the order in which the store committed them.

    with EventLog(cp) as log:
        ...
    violations = invariants.check(log.entries())

One thread per resource lists it and then watches it. All objects share the store's revision counter
(metadata.resourceVersion, of a deletion that of the deletion itself), so that the streams merge into one order and a
checker can look at the cluster as it was at each revision. What was there before the log began enters at the revision
of its list; judgement begins after the last of these (`started`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from e2e.api_client import PATIENCE, ApiClient, ApiError, Object, Resource, WaitError

RESOURCES = ("jobs.batch", "jobsets.jobset.x-k8s.io", "pods", "nodes")
OWN_RESOURCES = ("workloads", "clusterqueues", "localqueues", "cohorts", "resourceflavors")
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One version of one object. `at` is when it was received, in seconds on a monotonic clock."""

    revision: int
    kind: str
    type: str
    object: Object
    at: float = 0.0

    @property
    def version(self) -> int:
        """The object's own resourceVersion: `revision`, unless it was there before the log began."""
        return int(self.object["metadata"].get("resourceVersion", self.revision))

    @property
    def uid(self) -> str:
        return str(self.object["metadata"].get("uid", ""))

    @property
    def name(self) -> str:
        meta = self.object["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])


class EventLog:
    """Records from `start` (or entering the context) to `stop`."""

    def __init__(
        self,
        client: ApiClient,
        group: str = "muster.dev",
    ) -> None:
        self._client = client
        self._watches = [_Watch(self, name) for name in (*RESOURCES, *(f"{name}.{group}" for name in OWN_RESOURCES))]
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._sorted = True
        self._end: int | None = None
        self.stopping = threading.Event()
        self.gaps: list[str] = []  # where the server could not resume a watch, so that versions are missing

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Returns once everything that exists is in the log."""
        for watch in self._watches:
            watch.thread.start()
        for watch in self._watches:
            if not watch.listed.wait(30 * PATIENCE):
                raise WaitError(f"the event log could not list {watch.name}: {watch.error}")
        return self

    def stop(self) -> None:
        """Waits until all that was written before this call is in the log, then ends the watches. The log ends there:
        of what is written meanwhile one watch may have shown a consequence, and another not its cause."""
        if not self.stopping.is_set():
            try:
                self._end = self.catch_up()
            finally:
                self.stopping.set()
                for watch in self._watches:
                    watch.interrupt()
                for watch in self._watches:
                    watch.thread.join(10)

    def catch_up(self, timeout: float = 20.0) -> int | None:
        """Until the log has what the server has at this moment; the revision of that."""
        end = None
        for watch in self._watches:
            if watch.resource is not None:
                end = end or self.list(watch.resource)[0]
                self._client.wait(watch.caught_up(), timeout, f"the event log to see all {watch.name}")
        return end

    @property
    def started(self) -> int:
        """The revision from which on the log is complete."""
        return max((watch.first for watch in self._watches), default=0)

    def entries(self) -> Sequence[Entry]:
        """All entries by revision."""
        with self._lock:
            if not self._sorted:
                self._entries.sort(key=lambda entry: entry.revision)  # stable: one stream stays in its own order
                self._sorted = True
            return [entry for entry in self._entries if self._end is None or entry.revision <= self._end]

    def record(self, entry: Entry) -> None:
        with self._lock:
            self._sorted = self._sorted and (not self._entries or self._entries[-1].revision <= entry.revision)
            self._entries.append(entry)

    def resource(self, name: str) -> Resource:
        return self._client.resource(name)

    def connect(self) -> http.client.HTTPConnection:
        return self._client.connect(timeout=None)

    def headers(self) -> dict[str, str]:
        return self._client.headers()

    def list(self, resource: Resource) -> tuple[int, list[Object]]:
        """All objects and the revision of that."""
        answer = self._client.request("GET", resource.path(), timeout=120.0)
        return int(answer["metadata"]["resourceVersion"]), answer["items"]


class _Watch:
    """One resource: list, then watch and resume, until told to stop. A resource that is not there yet is waited for."""

    def __init__(self, log: EventLog, name: str) -> None:
        self.name = name
        self.resource: Resource | None = None
        self.first = 0  # the revision of the first list
        self.error: Exception | None = None
        self.listed = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"event-log-{name}", daemon=True)
        self._log = log
        self._live: dict[str, Entry] = {}  # uid -> its last entry
        self._deleted: dict[str, int] = {}  # uid -> revision
        self._revision = 0
        self._socket: socket.socket | None = None

    def interrupt(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def caught_up(self) -> Any:
        """A predicate: whether everything that is listed now has been recorded."""
        resource = self.resource
        assert resource is not None
        revision, items = self._log.list(resource)
        present = {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in items}

        def seen() -> bool:
            live, deleted = dict(self._live), dict(self._deleted)
            known = {uid: entry.version for uid, entry in live.items()} | deleted
            unseen = any(known.get(uid, 0) < version for uid, version in present.items())
            stale = any(uid not in present and entry.version <= revision for uid, entry in live.items())
            return not unseen and not stale

        return seen

    def _run(self) -> None:
        while not self._log.stopping.is_set():
            try:
                if self.resource is None:
                    self.resource = self._log.resource(self.name)
                if self._revision == 0:
                    self._list()
                self._stream()
            except LookupError:  # no such resource yet
                self.listed.set()
                self._log.stopping.wait(0.5)
            except (OSError, http.client.HTTPException, ApiError, ValueError) as error:
                self.error = error
                self._log.stopping.wait(0.1)

    def _list(self) -> None:
        assert self.resource is not None
        revision, items = self._log.list(self.resource)
        now = time.monotonic()
        again = self.first != 0
        present = {item["metadata"]["uid"] for item in items}
        for item in items:
            known = self._live.get(item["metadata"]["uid"])
            if known is None or known.version != int(item["metadata"]["resourceVersion"]):
                self._record(Entry(revision, self.resource.kind, MODIFIED if known else ADDED, _slim(item), now))
        for known in [entry for uid, entry in self._live.items() if uid not in present]:
            self._record(dataclasses.replace(known, revision=revision, type=DELETED, at=now))
        if again:
            self._log.gaps.append(f"{self.name} before {revision}")
        else:
            self.first = revision
        self._revision = revision
        self.listed.set()

    def _stream(self) -> None:
        assert self.resource is not None
        params = {"watch": 1, "resourceVersion": self._revision, "allowWatchBookmarks": "true", "timeoutSeconds": 3600}
        connection = self._log.connect()
        try:
            connection.request("GET", f"{self.resource.path()}?{urllib.parse.urlencode(params)}", None, {
                **self._log.headers(), "Accept": "application/json",
            })  # fmt: skip
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status == 410:
                self._revision = 0
                return
            if response.status != 200:
                raise ApiError(response.status, "GET", self.resource.path(), response.read().decode(errors="replace"))
            while not self._log.stopping.is_set():
                line = response.readline()
                if not line.endswith(b"\n"):
                    return
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    if event["object"].get("code") == 410:
                        self._revision = 0
                    return
                self._revision = int(event["object"]["metadata"]["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    slim = _slim(event["object"])
                    entry = Entry(self._revision, self.resource.kind, event["type"], slim, time.monotonic())
                    self._record(entry)
        finally:
            self._socket = None
            connection.close()

    def _record(self, entry: Entry) -> None:
        self._log.record(entry)
        if entry.type == DELETED:
            self._live.pop(entry.uid, None)
            self._deleted[entry.uid] = entry.revision
        else:
            self._live[entry.uid] = entry


def _slim(obj: Object) -> Object:
    obj["metadata"].pop("managedFields", None)
    return obj
