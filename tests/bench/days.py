"""Hours of a busy town: who is evicted, for whom, and what of their work is lost.

Gangs of the bench's shapes come at random, a tenth more than the quota can run, and run for lognormal times. Half of
the queues are busy, and send nearly all; which ones changes every few hours. So quota is lent, borrowed and taken back
all the time. Evicted gangs leave after half a minute, lose what they had run, and come back. Same seed, same figures.
"""

from __future__ import annotations

import heapq
import random  # noqa: TID251  # seeded
from collections import Counter
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.model import Admit, Assumed, Evict, Gone, Key, Put, Workload
from tests.bench.engine import BUDGET, GPU, MEAN_GPUS, NOW, Size, gang, queue_name, town

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
RUNS_MS = 40 * MINUTE_MS
"""In the mean, nearly."""
BUSY_MS, LEAVES_MS = 3 * HOUR_MS, 30_000
LOAD, OF_THE_BUSY = 1.1, 0.85
FULL, SMALL = Size(queues=20, cohorts=2, nodes=150), Size(queues=10, cohorts=1, nodes=60)


@dataclass
class Churn:
    """GPUs are counted for each eviction, and for each gang at each decision that evicts for it; work is GPUs times
    time."""

    arrived: int = 0
    finished: int = 0
    evicted: int = 0
    evicted_gpus: int = 0
    asked_gpus: int = 0
    finished_work: int = 0
    lost_work: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "churn_finished_count": self.finished,
            "churn_evicted_of_arrived_pct": 100 * self.evicted / self.arrived,
            "churn_evicted_gpus_over_asked": self.evicted_gpus / max(1, self.asked_gpus),
            "churn_lost_work_pct": 100 * self.lost_work / self.finished_work,
        }


def gpus(value: Workload) -> int:
    return sum(pod_set.count * dict(pod_set.shape.requests)[GPU] for pod_set in value.pod_sets)


def churn(size: Size, hours: float, seed: int = 1) -> Churn:
    """So long in a town of this size, which is empty at first."""
    dice, numbers, out = random.Random(seed), count(), Churn()
    state, now = town(size), NOW
    rate = LOAD * size.nodes * 8 / (MEAN_GPUS * RUNS_MS)
    busy = set(range(0, size.queues, 2))
    runs: dict[Key, int] = {}
    began: dict[Key, int] = {}
    tries = Counter[Key]()
    due: list[tuple[int, int, str, object]] = []

    def at(when: float, what: str, whom: object = None) -> None:
        heapq.heappush(due, (int(when) + 1, next(numbers), what, whom))

    at(now, "arrives")
    for number in range(size.queues):
        at(now + dice.random() * BUSY_MS, "turns", number)
    while due[0][0] < NOW + hours * HOUR_MS:
        now, number, what, whom = heapq.heappop(due)
        match what, whom:
            case "turns", int(turned):
                busy ^= {turned}
                at(now + dice.expovariate(1 / BUSY_MS), "turns", turned)
                continue
            case "arrives", _:
                at(now + dice.expovariate(rate), "arrives")
                some = sorted(busy) if busy and dice.random() < OF_THE_BUSY else range(size.queues)
                new = replace(gang(dice, number, size), queue=queue_name(dice.choice(some)), created=now)
                runs[new.key] = int(dice.lognormvariate(0, 1) * 0.6 * RUNS_MS) + MINUTE_MS
                state.apply(Put(new))
                out.arrived += 1
            case "ends", (key, nth):
                if tries[key] != nth:
                    continue
                out.finished += 1
                out.finished_work += gpus(state.workloads[key]) * runs[key]
                state.apply(Gone(Workload, key))
            case "has left", key:
                gone = replace(state.workloads[key], admission=None, admitted=False, reserved_at=0, admitted_at=0)
                state.apply(Put(replace(gone, evicted="Preempted", evicted_at=now - LEAVES_MS)))
        more = True
        while more:
            plan = decide(state, now, BUDGET)
            more = plan.more or bool(plan.decisions)
            for decision in plan.decisions:
                value = state.workloads[decision.key]
                state.apply(Assumed(decision))
                if isinstance(decision, Admit):
                    state.apply(Put(replace(state.workloads[value.key], reserved_at=now, admitted_at=now)))
                    tries[value.key] += 1
                    began[value.key] = now
                    at(now + runs[value.key], "ends", (value.key, tries[value.key]))
                elif isinstance(decision, Evict):
                    tries[value.key] += 1
                    out.evicted += 1
                    out.evicted_gpus += gpus(value)
                    out.lost_work += gpus(value) * (now - began[value.key])
                    at(now + LEAVES_MS, "has left", value.key)
            for_whom = {decision.preemptor for decision in plan.decisions if isinstance(decision, Evict)}
            out.asked_gpus += sum(gpus(state.workloads[key]) for key in for_whom)
        if plan.next_at is not None and due[0][0] > plan.next_at:
            at(max(plan.next_at, now + 15_000), "looks again")
    return out
