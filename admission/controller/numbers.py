"""A running controller, for those who show it: metrics, the page and the visibility API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from admission.controller.world import WorkloadSeen
from admission.engine.model import Key, Reason, Standing, Usage, Verdict, Workload
from admission.engine.roster import QueueNumbers
from admission.engine.state import State
from admission.jobs.kinds import JobView

if TYPE_CHECKING:
    from admission.controller.app import Controller


class Numbers:
    """See the module. It reads, and never writes."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def queues(self) -> Iterator[tuple[str, str, QueueNumbers, Usage]]:
        informers, state = self._controller.informers, self._controller.state
        tree = state.ledger.tree
        lent = tree.lent()
        for seen in informers["ClusterQueue"].store.values():
            node = tree.queue(seen.name)
            yield "ClusterQueue", seen.name, state.queue_numbers(seen.name), lent.get(node, {}) if node else {}
        for seen in informers["Cohort"].store.values():
            node = tree.cohort(seen.name)
            yield "Cohort", seen.name, state.cohort_numbers(seen.name), lent.get(node, {}) if node else {}

    def waiting(self) -> Iterator[tuple[str, Verdict, float]]:
        controller, now = self._controller, self._controller.now()
        if not controller.leading:
            return  # what was found while it led says nothing now
        for verdict in list(controller.verdicts.values()):
            seen = controller.world.workloads.get(verdict.key)
            if seen is not None and verdict.standing is not Standing.ADMITTED:  # its admission is being written
                value = seen.view.value
                seconds = max(0, now - max(value.created, value.evicted_at)) / 1000
                name = self.queue_of_gang(verdict.key)
                queue = controller.state.cluster_queue(name)
                untried = verdict.why.reason is Reason.WAITING_FOR_QUOTA and not verdict.requests
                if untried and queue is not None:  # it stands behind the head of a strict queue
                    yield name, replace(verdict, requests=controller.state.demand(value, queue).told), seconds
                else:
                    yield name, verdict, seconds

    def held_by(self, key: Key) -> tuple[Workload, float] | None:
        value = self._controller.state.workload(key)
        if value is None or value.admission is None or not value.admitted:
            return None
        return value, max(0, self._controller.now() - value.admitted_at) / 1000

    def held_up(self) -> Iterator[tuple[Literal["reserved", "leaving", "overdue"], str, float]]:
        controller, now = self._controller, self._controller.now()
        for name in self.cluster_queues() if controller.leading else ():
            for gang in controller.state.holders(name):
                if gang.evicted and gang.evicted_at:
                    yield "leaving", name, max(0, now - gang.evicted_at) / 1000
                    yield "overdue", name, max(0, now - controller.world.due(gang)) / 1000
                elif not gang.evicted and not gang.admitted:
                    yield "reserved", name, max(0, now - gang.reserved_at) / 1000

    def cluster_queues(self) -> list[str]:
        return [seen.name for seen in self._controller.informers["ClusterQueue"].store.values()]

    def inactive(self) -> Iterator[tuple[str, str]]:
        for name in self.cluster_queues() if self._controller.leading else ():  # others may not have all lists
            active, reason, _ = self._controller.state.queue_active(name)
            if not active:
                yield name, reason

    def local_queues(self) -> Iterator[tuple[str, str, str, Mapping[str, str]]]:
        for seen in self._controller.informers["LocalQueue"].store.values():
            if seen.value is not None:
                yield seen.namespace, seen.name, seen.value.cluster_queue, dict(seen.labels)

    def flavors(self) -> list[tuple[str, str, int, int]]:
        return self._controller.state.flavor_totals()

    def queue_of_gang(self, key: Key) -> str:
        value = self._controller.state.workload(key)
        return self._controller.state.queue_of(value) if value is not None else ""

    def standstills(self) -> list[tuple[str, int]]:
        """Admitted gangs whose pods wait to be made while pods are made for nobody; and the same of being placed."""
        world, now = self._controller.world, self._controller.now()
        return [("made", world.making.gangs(now)), ("placed", world.placing.gangs(now))]

    def held(self) -> tuple[str, bool] | None:
        proof = self._controller.stale.held
        return (proof[2].rpartition("HeldBy")[2].lower(), proof[1]) if proof is not None else None

    def events_dropped(self) -> dict[str, int]:
        return dict(self._controller.events.dropped)

    def certificates_end(self) -> dict[str, float]:
        found = {name: ends() for name, ends in self._controller.certificates.items()}
        return {name: ends.timestamp() for name, ends in found.items() if ends is not None}

    def api_calls(self) -> list[tuple[tuple[str, str, str, int], int]]:
        return list(self._controller.client.counts.items())

    def watch_age(self) -> list[tuple[str, float]]:
        return [(kind, informer.age) for kind, informer in self._controller.informers.items()]

    def leading(self) -> bool:
        return self._controller.leading

    @property
    def state(self) -> State:
        return self._controller.state

    @property
    def revision(self) -> int:
        return self._controller.revision

    def ready(self) -> str:
        """Why not every list is in yet; "" when they are."""
        missing = [name for name, informer in self._controller.informers.items() if not informer.synced.is_set()]
        return f"waiting for the first list of {', '.join(missing)}" if missing else ""

    def now(self) -> int:
        return self._controller.now()

    def verdict(self, key: Key) -> Verdict | None:
        return self._controller.verdict(key)

    def owner(self, key: Key) -> tuple[str, str]:
        """(kind, name) of the job that a Workload stands for; ("", "") when none is known."""
        seen = self._controller.world.workloads.get(key)
        return seen.view.owner if seen is not None else ("", "")

    def job(self, key: Key) -> JobView | None:
        world = self._controller.world
        seen = world.workloads.get(key)
        job = world.jobs.get(at) if seen is not None and (at := world.job_of(seen)) is not None else None
        return world.as_by_pods(job, seen) if job is not None and seen is not None else None

    def workload(self, key: Key) -> WorkloadSeen | None:
        return self._controller.world.workloads.get(key)
