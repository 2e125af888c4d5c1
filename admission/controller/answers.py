"""What people are told who ask: frozen values, with `as_json`. How they look on a terminal is `tell`'s concern."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from admission.controller.line import Lack

Json = dict[str, Any]


class State(Enum):
    """How a job stands, in one word."""

    UNMANAGED = "unmanaged"
    """Names no queue: Muster does not govern it."""
    HELD = "held"
    """Held, and not in the queue yet: it has no Workload."""
    WAITING = "waiting"
    PAUSED = "paused"
    """Its owner keeps it out of the queue, by the label."""
    RESERVED = "reserved"
    """Has its quota, and waits for admission checks."""
    STARTING = "starting"
    """Admitted, and not all pods are ready."""
    RUNNING = "running"
    LEAVING = "leaving"
    """Evicted, deleted, or at its end: its pods are terminating."""
    RELEASED = "released"
    """Not suspended, and nothing is reserved for it: it runs without Muster."""
    FINISHED = "finished"


def plain(value: Any) -> Any:
    """A frozen answer as JSON: camelCase, enums by value, nothing that is empty taken out."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(f.name): plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


@dataclass(frozen=True)
class Room:
    """Quota of one (flavor, resource) of a queue, as it is now. Amounts in the units of `quantity`."""

    flavor: str
    resource: str
    nominal: int = 0
    used: int = 0
    borrowed: int = 0
    lent: int = 0
    """Of its own quota, what others hold."""
    free: int = 0
    """What it could still take now, borrowing included."""
    most: int = 0
    """What it could hold with nobody else there."""
    asked: int = 0
    """By the job that is asked about."""
    least: int = 0
    """Of it, with the fewest pods that the job may start with."""
    limited_by: str = ""
    """The queue or cohort at which `asked` ends; "" when it fits."""


@dataclass(frozen=True)
class Happening:
    at: int
    """ms since the epoch."""
    reason: str
    message: str
    warning: bool = False
    count: int = 1


@dataclass(frozen=True)
class Place:
    """Where a pod set is, or will be."""

    pod_set: str
    count: int
    flavors: tuple[str, ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    """(node, pods)."""


@dataclass(frozen=True)
class Unready:
    """Pods of a started gang that are not ready for the same reason; of one that leaves, that are still there."""

    reason: str
    count: int
    message: str = ""
    pods: tuple[str, ...] = ()
    """Their names."""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """One job: how it stands and why."""

    namespace: str
    name: str
    kind: str
    state: State
    queue: str = ""
    cluster_queue: str = ""
    workload: str = ""
    reason: str = ""
    detail: str = ""
    message: str = ""
    since: int = 0
    """When it came into this state; ms since the epoch."""
    created: int = 0
    priority: int = 0
    pods: int = 0
    """How many it asks for at a time."""
    given: int | None = None
    """How many at a time its reservation has; fewer than `pods` where it may start with less. None: it has none."""
    ready: int | None = None
    position: int | None = None
    """From 1, among the waiting jobs of its LocalQueue: as the controller goes through them, else (`live` of the answer
    is false) by priority and age."""
    waiting: int | None = None
    """How many wait in its LocalQueue."""
    requests: tuple[tuple[str, int], ...] = ()
    """(resource, amount) of all pods."""
    where: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Why:
    """The full answer about one job."""

    standing: Standing
    means: str = ""
    owner: str = ""
    """What its owner can do."""
    platform: str = ""
    """What the platform team can do."""
    room: tuple[Room, ...] = ()
    """Quota of its queue, for what it asks."""
    lacks: tuple[Lack, ...] = ()
    """The numbers behind the reason, as the controller has them now."""
    checks: tuple[tuple[str, str, str], ...] = ()
    """(admission check, state, message)."""
    so_far: str = ""
    """How often it was evicted, its pods failed or its JobSet began anew; "" where nothing of it happened."""
    unready: tuple[Unready, ...] = ()
    """Of a gang that was started: pods that are not ready, the most frequent reason first."""
    history: tuple[Happening, ...] = ()
    hidden: tuple[str, ...] = ()
    """What the asker may not see."""
    leaderless: str = ""
    """What is wrong with who leads; "" when a controller does, or when that may not be seen."""
    live: bool = False
    """Place, reason and numbers are those of the controller that decides, of now."""
    silent: str = ""
    """The visibility API is served and does not answer, in a sentence."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class QueueRow:
    """A Cohort, ClusterQueue or LocalQueue, at its depth in the tree."""

    kind: str
    name: str
    namespace: str = ""
    depth: int = 0
    parent: str = ""
    room: tuple[Room, ...] = ()
    pending: int = 0
    admitted: int = 0
    share: int | None = None
    """Weighted share in thousandths; None where there is none."""
    active: bool = True
    why_not: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Queues:
    rows: tuple[QueueRow, ...]
    hidden: tuple[str, ...] = ()
    leaderless: str = ""
    unheld: str = ""
    """What of the hold is gone, as the ClusterQueues say it; "" when jobs are held, or when that may not be seen."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class Jobs:
    rows: tuple[Standing, ...]
    hidden: tuple[str, ...] = ()
    leaderless: str = ""
    namespace: str = ""
    """Whose jobs these are; "" for those of all."""
    live: bool = False
    """Places and reasons are those of the controller that decides, of now."""
    silent: str = ""
    """The visibility API is served and does not answer, in a sentence."""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class Amounts:
    """What jobs have of one resource together. Amounts in the units of `quantity`."""

    resource: str
    held: int = 0
    idle: int = 0
    """Of it, held by jobs that wait for admission checks, start or leave."""
    asked: int = 0
    """By jobs that wait."""


@dataclass(frozen=True)
class Sum:
    """Jobs that have something in common, together."""

    who: str
    holding: int = 0
    """Jobs that hold quota."""
    waiting: int = 0
    amounts: tuple[Amounts, ...] = ()


@dataclass(frozen=True)
class Sums:
    by: str
    rows: tuple[Sum, ...]
    hidden: tuple[str, ...] = ()
    leaderless: str = ""

    def as_json(self) -> Json:
        return dict(plain(self))


@dataclass(frozen=True)
class NodeRow:
    name: str
    ready: bool
    cordoned: bool
    flavors: tuple[str, ...]
    capacity: tuple[tuple[str, int], ...]
    free: tuple[tuple[str, int], ...]
    """The same resources as `capacity`; below 0 where a node is over-committed."""
    gangs: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """(job or Workload, what it holds here); "others" for pods that are not Muster's."""
    taints: tuple[str, ...] = ()
    """Keys of the taints that keep gangs off, for none of its flavors speaks of them."""
    lost: tuple[tuple[str, int], ...] = ()
    """Devices that its kubelet counts and does not hand out, as it does with broken ones."""
    renamed: tuple[tuple[str, int, str], ...] = ()
    """(resource, amount, by what its devices count now) of what gangs hold by a name that their DeviceClass had; they
    hold it by the other name."""


@dataclass(frozen=True)
class Largest:
    """The largest gang of equal pods that fits on a flavor's nodes now, quota aside."""

    flavor: str
    per_pod: tuple[tuple[str, int], ...]
    pods: int


@dataclass(frozen=True)
class Nodes:
    rows: tuple[NodeRow, ...]
    largest: tuple[Largest, ...] = ()
    resources: tuple[str, ...] = ()
    """What is counted: devices where there are any, else cpu and memory."""
    hidden: tuple[str, ...] = ()

    def as_json(self) -> Json:
        return dict(plain(self))
