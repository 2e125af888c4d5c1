"""Quota and nodes as one book: what is charged, for whom, and how to take any of it back.

A *charge* is what a gang holds by its reservation: usage of quota at its ClusterQueue, and room on the nodes that its
topology assignment names. A *claim* is room kept for a gang that does not hold it yet; it is charged in the same way,
so that everybody else finds the room taken, and set aside while its owner is looked at (`suspended`).

Every change is journalled while a mark is open. `rollback` takes back what came after the mark, in reverse, at a cost
proportional to it; marks nest. So a decision is tried on the real book, and the book is left as it was found: there
are no snapshots and no second arithmetic. Configuration (`set_queues`, nodes, pods) may change only while no mark is
open. Where only quota is asked about, the usage of the nodes in question is laid aside meanwhile (`quota.AsIf`), and
what was found out about a tree is `remembered` until something in it changes.

A charge whose ClusterQueue is gone is kept, counts nowhere in the tree, and counts again when the queue returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from admission.engine.booking import Booking, booking_of
from admission.engine.capacity import Capacity, Placement, PlaceRequest, holds, place, room, takes
from admission.engine.model import (
    Admission,
    ClusterQueue,
    Cohort,
    FlavorResource,
    Key,
    Misfit,
    Rules,
    TopologyAssignment,
    Usage,
    Value,
    Workload,
)
from admission.engine.nodes import Lent
from admission.engine.quota import AsIf, QuotaNode, Tree

Known = TypeVar("Known")
_KEPT = 1024
"""So much is remembered of trees."""
_KEPT_CLAIMS = 20_000
"""Rooms that are entered at once are remembered up to so many together: each takes half a kilobyte."""
Kind = Literal["gang", "claim"]
PerPod = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""(pod set, what one of its pods takes from a node)."""


class Charge(Value, frozen=True, dict=True, gc=True):
    """What one gang holds, or claims. `usage` sorted; `admission` only when it names nodes; `leaves`: was evicted."""

    key: Key
    uid: str
    queue: str
    usage: tuple[tuple[FlavorResource, int], ...]
    admission: Admission | None = None
    per_pod: PerPod = ()
    kind: Kind = "gang"
    leaves: bool = False

    @cached_property
    def booking(self) -> Booking:
        """What it takes of nodes; for one with an `admission`."""
        assert self.admission is not None
        return booking_of(self.uid, self.admission, dict(self.per_pod))

    @cached_property
    def pairs(self) -> frozenset[FlavorResource]:
        """The (flavor, resource) pairs that it holds."""
        return frozenset(fr for fr, _ in self.usage)


class Held(Value, frozen=True):
    """A claim in the book."""

    charge: Charge
    until: int
    victims: tuple[str, ...] = ()
    """uids of the gangs that were evicted for it."""


def first_to_end(claims: Mapping[Key, Held]) -> dict[Key, Held]:
    """In the order in which claims are served: who ends first comes first, then by owner."""
    return dict(sorted(claims.items(), key=lambda item: (item[1].until, item[0])))


class Doubly(NamedTuple):
    """What counts twice in the book, in quota and on nodes: see `Ledger.doubly`."""

    usage: dict[FlavorResource, int]
    hosts: dict[str, dict[str, int]]

    @classmethod
    def of(cls, charge: Charge) -> Doubly:
        hosts = () if charge.admission is None else charge.booking.hosts
        return cls(dict(charge.usage), {host: dict(amounts) for host, amounts in hosts})

    def take(self, wanted: Doubly, held: Doubly) -> None:
        """As much of what is `wanted` as is `held`, out of both."""
        _take(self.usage, wanted.usage, held.usage)
        for host, amounts in wanted.hosts.items():
            if host in held.hosts:
                _take(self.hosts.setdefault(host, {}), amounts, held.hosts[host])


_Of = TypeVar("_Of", str, FlavorResource)


def _take(into: dict[_Of, int], wanted: dict[_Of, int], held: dict[_Of, int]) -> None:
    for what, amount in wanted.items():
        part = min(amount, held.get(what, 0))
        if part > 0:
            into[what] = into.get(what, 0) + part
            wanted[what] -= part
            held[what] -= part


class Aside(Value, frozen=True):
    """Room that is set aside for a gang: noted in the book, and not taken."""

    held: Held


class Kept:
    """What is set aside in one tree, to be entered at once as claims; what of it is taken in the tree is known."""

    __slots__ = ("as_if", "entered", "held", "root", "spoiled")

    def __init__(self, root: QuotaNode, entered: Sequence[Held], claims: Iterable[Held], as_if: AsIf) -> None:
        self.root = root
        self.entered = entered
        self.held = {held.charge.key: held for held in claims}
        self.as_if = as_if
        self.spoiled = False
        """Something that was changed while it was entered has stayed, so that `as_if` cannot be used again."""


class _Versions(NamedTuple):
    """Of the book, of the nodes, and of the tree of one root."""

    book: int
    nodes: int
    tree: int
    root: QuotaNode | None


class _Step(NamedTuple):
    """A journal entry: what was entered or taken out under a mark, and the versions before."""

    entered: bool
    entry: Charge | Held | Aside | Kept
    before: _Versions
    hidden: bool = False
    """Its pods were hidden before it was entered."""


def usage_of(admission: Admission) -> tuple[tuple[FlavorResource, int], ...]:
    """The quota that an admission uses, sorted. A resource without a flavor uses none."""
    total: dict[FlavorResource, int] = {}
    for pod_set in admission.pod_sets:
        flavors = dict(pod_set.flavors)
        for resource, amount in pod_set.usage:
            if resource in flavors and amount:
                fr = (flavors[resource], resource)
                total[fr] = total.get(fr, 0) + amount
    return tuple(sorted(total.items()))


def charge_of(
    workload: Workload, admission: Admission | None = None, kind: Literal["gang", "claim"] = "gang"
) -> Charge:
    """The charge of a workload's admission (its own, or the one given). Raises ValueError without one.

    Pods that are reclaimable hold nothing: usage is scaled to the pods that are left, rounding as whole pods.
    """
    admission = admission or workload.admission
    if admission is None:
        raise ValueError(f"{workload.namespace}/{workload.name} has no admission to charge")
    reclaimable = dict(workload.reclaimable)
    if reclaimable:
        sets = tuple(
            pod_set
            if not reclaimable.get(pod_set.name) or not pod_set.count
            else type(pod_set)(
                name=pod_set.name,
                flavors=pod_set.flavors,
                usage=tuple(
                    (name, amount // pod_set.count * max(0, pod_set.count - reclaimable[pod_set.name]))
                    for name, amount in pod_set.usage
                ),
                count=pod_set.count,
                topology=pod_set.topology,
            )
            for pod_set in admission.pod_sets
        )
        admission = Admission(cluster_queue=admission.cluster_queue, pod_sets=sets)
    return Charge(
        key=workload.key,
        uid=workload.uid,
        queue=admission.cluster_queue,
        usage=usage_of(admission),
        admission=admission if any(pod_set.topology is not None for pod_set in admission.pod_sets) else None,
        per_pod=tuple((pod_set.name, takes(pod_set.shape)) for pod_set in workload.pod_sets),
        kind=kind,
        leaves=bool(workload.evicted) and workload.admission is not None and kind == "gang",
    )


def claim_of(workload: Workload, admission: Admission) -> Charge:
    """What a workload's claim on an admission takes. While it still holds another one (it was evicted, and its pods
    are not gone yet), only the nodes that it does not hold: its quota is charged already."""
    held = workload.admission
    if held is None:
        return charge_of(workload, admission, "claim")
    standing = {part.name: part.topology for part in held.pod_sets}
    parts = tuple(
        replace(part, topology=_beyond(part.topology, standing.get(part.name))) for part in admission.pod_sets
    )
    return replace(charge_of(workload, replace(admission, pod_sets=parts), "claim"), usage=())


def _beyond(wanted: TopologyAssignment | None, held: TopologyAssignment | None) -> TopologyAssignment | None:
    """The pods of an assignment that do not stand where another one has them."""
    if wanted is None or held is None:
        return wanted
    left = Counter(domain.values[-1] for domain in held.domains for _ in range(domain.count))
    domains = []
    for domain in wanted.domains:
        kept = min(domain.count, left[domain.values[-1]])
        left[domain.values[-1]] -= kept
        if domain.count > kept:
            domains.append(replace(domain, count=domain.count - kept))
    return replace(wanted, domains=tuple(domains)) if domains else None


def _charge_in(entry: Charge | Held | Aside) -> Charge:
    return entry if isinstance(entry, Charge) else entry.held.charge if isinstance(entry, Aside) else entry.charge


def _apart(charge: Charge) -> bool:
    """Do its pods keep others away."""
    return charge.admission is not None and bool(charge.booking.apart)


def _claim_key(key: Key) -> Key:
    """A claim has a key of its own in the book of nodes: its owner may hold a charge at the same time. No namespace has
    a "/"."""
    return (_CLAIM + key[0], key[1])


def _claimed_by(key: Key) -> Key | None:
    """The owner, if this is the key of a claim in the book of nodes."""
    return (key[0].removeprefix(_CLAIM), key[1]) if key[0].startswith(_CLAIM) else None


def _differences(mine: Tree, theirs: Tree) -> list[str]:
    """Where the usage in one tree is not that in another of the same quota."""
    pairs = (
        *((node, theirs.queue(node.name)) for node in mine.queues()),
        *((node, theirs.cohort(node.name)) for node in mine.cohorts()),
    )
    out: list[str] = []
    for node, other in pairs:
        should: Usage = {} if other is None else other.usage
        out.extend(
            f"{node!r}: {fr[0]}/{fr[1]} is {node.usage.get(fr, 0)}, should be {should.get(fr, 0)}"
            for fr in sorted({*node.usage, *should})
            if node.usage.get(fr, 0) != should.get(fr, 0)
        )
    return out


_CLAIM = "claim/"
_AS_IT_IS = nullcontext()
_AT_A_GLANCE = 100_000
"""Steps of `Effort`: more than that is for a trial, which is counted."""


class Emptied:
    """Gangs whose charges and pods are off the book of nodes for a while. Each of them changes a few rows; a question
    that lays all of them over the book adds them all up."""

    def __init__(self, nodes: Capacity) -> None:
        self._nodes = nodes
        self._gone: dict[Key, Charge] = {}

    def leaves(self, charge: Charge) -> None:
        self._gone[charge.key] = charge
        if charge.admission is not None:
            self._nodes.release(charge.key)
        if charge.kind == "gang":
            self._nodes.hide(charge.uid)

    def comes_back(self, charge: Charge) -> None:
        del self._gone[charge.key]
        if charge.kind == "gang":
            self._nodes.show(charge.uid)
        if charge.admission is not None:
            self._nodes.book(charge.key, charge.booking)

    def refill(self) -> None:
        for charge in tuple(self._gone.values()):
            self.comes_back(charge)


class Ledger:
    """The book. `tree` and `nodes` show it, charges and claims included; change them through the ledger only
    (nodes, pods and topologies are put into `nodes` directly, while no mark is open)."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.tree = Tree.build((), ())
        self.nodes = Capacity()
        self.charges: dict[Key, Charge] = {}
        self.claims: dict[Key, Held] = {}
        self.aside: dict[Key, Held] = {}
        """What is kept for gangs that were passed over. It is not in the book, so that shares are of what is held; who
        is bound by it is looked at `beside` it."""
        self.aside_changed: set[Key] = set()
        """For whom something was set aside, or is no more, since who follows that looked (and emptied this)."""
        self._leaving: dict[str, Charge] = {}
        """uid -> charge of a gang that was evicted and still holds it."""
        self._claims_under: dict[QuotaNode, dict[Key, Held]] = {}
        """Root -> the claims in its tree."""
        self._aside_under: dict[QuotaNode, dict[Key, Held]] = {}
        self._aside_in_order: dict[QuotaNode, dict[Key, Held]] = {}
        """The same, made anew after a change."""
        self.version = 0
        """Changes with every change, and is as before when the change is taken back: equal versions, equal books."""
        self._versions: dict[QuotaNode, int] = {}
        self._last_version = 0
        self._followed: dict[tuple[int, int, int], tuple[object, int]] = {}
        """(version of a tree, 1 or -1, id of an entry) -> (the entry, version of the tree after it was entered or taken
        out). So the same change to the same tree leads to the same version."""
        self._queues: tuple[ClusterQueue, ...] = ()
        self._cohorts: tuple[Cohort, ...] = ()
        self._journal: list[_Step] = []
        self._marks: list[int] = []
        self._bare = False
        self._off_nodes: Tree | None = None
        """The quota tree with the usage of claims, and of gangs that hold no nodes; made when it is first asked for."""
        self._spared: frozenset[Key] | None = None
        """While this is not None, room that is set aside on nodes counts as taken, except for these owners."""
        self._lazy: dict[Key, Held] = {}
        """Owners whose room is set aside and was entered as a claim of quota alone (`beside`): on nodes it counts
        already."""
        self._gone: frozenset[tuple[Key, str]] = frozenset()
        """(key in the book of nodes, uid) of those who count as gone from there."""
        self._lent: Lent = ()
        """What counts as free on nodes though it is claimed: see `yielding`."""
        self._on_paper: dict[Key, Held] = {}
        """Claims whose quota alone is given up for a question; their nodes count as gone."""
        self._known: dict[tuple[QuotaNode, int, Hashable], Any] = {}
        """Cache of `remembered`: (root, its version, what) -> the answer."""
        self._kept_known: dict[tuple[Hashable, ...], Kept] = {}
        """Cache of `_kept`: (root, its version, only what is free, ids of what is set aside)."""
        self._kept_claims = 0
        self._by_hand = 0
        """How many questions are open that change the tree without a new version: nothing may be cached by version."""
        self._standing: dict[Key, Charge] = {}
        """Charges that the last decision left in the book, until they are charged or taken out."""

    # ------------------------------------------------------------ configuration

    def set_queues(self, queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort]) -> None:
        """Another quota configuration; what is charged and claimed stays so. Raises RuntimeError under a mark."""
        if self._marks:
            raise RuntimeError("quota cannot change while a decision is being tried")
        self._queues, self._cohorts = tuple(queues), tuple(cohorts)
        self.tree = Tree.build(self._queues, self._cohorts)
        self._off_nodes = None
        self.version = self._new_version()
        for charge in self.charges.values():
            self._move(self.tree, charge, 1)
        self._versions.clear()
        self._claims_under.clear()
        self._aside_under.clear()
        self._aside_in_order.clear()
        for key, held in self.aside.items():
            if (node := self.tree.queue(held.charge.queue)) is not None:
                self._aside_under.setdefault(node.root, {})[key] = held
        for key, held in self.claims.items():
            self._move(self.tree, held.charge, 1)
            if (node := self.tree.queue(held.charge.queue)) is not None:
                self._claims_under.setdefault(node.root, {})[key] = held

    def version_of(self, root: QuotaNode) -> int:
        """Of one tree, what is set aside in it included, as `version` is of the whole book."""
        return self._versions.get(root, 0)

    def claims_under(self, root: QuotaNode) -> Mapping[Key, Held]:
        """The claims in one tree."""
        return self._claims_under.get(root, {})

    def remembered(self, root: QuotaNode, what: Hashable, find_out: Callable[[], Known]) -> Known:
        """The answer of `find_out` about one tree, cached under `what` as long as the tree is the same."""
        if self._by_hand:
            return find_out()
        at = (root, self._versions.get(root, 0), what)
        known: Known | None = self._known.get(at)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[at] = find_out()
        return known

    def aside_under(self, root: QuotaNode) -> Mapping[Key, Held]:
        """What is set aside in one tree; who ends first comes first, for what is free goes to them in this order."""
        known = self._aside_in_order.get(root)
        if known is None:
            known = self._aside_in_order[root] = first_to_end(self._aside_under.get(root, {}))
        return known

    # ------------------------------------------------------------ charges and claims

    def charge(self, charge: Charge) -> None:
        """Enter what a gang holds. Raises ValueError if it is charged already."""
        standing = self._standing.pop(charge.key, None)
        if standing is charge:
            return
        if standing is not None:
            self._apply(standing, -1)
        if charge.key in self.charges:
            raise ValueError(f"{charge.key} is charged already")
        self._enter(charge)

    def release(self, key: Key) -> Charge:
        """Take out what a gang holds. Raises KeyError if it holds nothing."""
        charge = self.charges[key]
        self._standing.pop(key, None)
        self._remove(charge)
        return charge

    def claim(self, charge: Charge, until: int, victims: tuple[str, ...] = ()) -> None:
        """Claim room for a gang until then (ms), in place of what it claimed before. victims: uids of the gangs that
        leave for it."""
        if charge.key in self.claims:
            self.unclaim(charge.key)
        self._enter(Held(charge, until, victims))

    def unclaim(self, key: Key) -> Held | None:
        """Give up the claim of a gang, if it has one."""
        held = self.claims.get(key)
        if held is not None:
            self._remove(held)
        return held

    def set_aside(self, charge: Charge, until: int) -> None:
        """Set room aside for a gang until then (ms), in place of what was set aside for it before."""
        self.give_up(charge.key)
        self._enter(Aside(Held(charge, until)))

    def give_up(self, key: Key) -> Held | None:
        """Forget what is set aside for a gang, if anything is."""
        held = self.aside.get(key)
        if held is not None:
            self._remove(Aside(held))
        return held

    def end_of(self, held: Held) -> int:
        """When a claim ends; 0 for what is set aside, which is renewed until the gang starts."""
        return 0 if held.charge.key in self.aside else held.until

    @contextmanager
    def beside(self, but: Set[Key], root: QuotaNode, *, free: bool = False, nodes: bool = True) -> Iterator[None]:
        """Look at a gang beside the room that is set aside: inside, it counts as taken, except for the gangs in `but`.

        In the tree of `root` it is entered as claims; of other trees only nodes count. `free`: of quota take no more
        than is free now. Without `nodes` no nodes are taken. A gang that is unclaimed inside has nothing set aside
        afterwards, either."""
        entered = {key: held for key, held in self.aside_under(root).items() if key not in but}
        start = len(self._journal)
        before = self._spared, self._lazy
        self._spared = frozenset(self.aside.keys() & but) if nodes else None
        self._lazy = {}
        kept = None
        if entered and self._marks and self.claims.keys().isdisjoint(entered):
            kept = self._kept(root, tuple(entered.values()), free)
            if nodes:
                self._lazy = kept.held
            self._journal.append(_Step(True, kept, self._versions_of(root)))
            self._enter_kept(kept, 1)
            kept.as_if.__enter__()
        else:
            for key, held in entered.items():
                taken = Held(self.as_far_as_free(held.charge), held.until) if free else held
                self.unclaim(key)
                if nodes:
                    self._lazy[key] = taken
                self._enter(taken)
        try:
            yield
        finally:
            self._spared, self._lazy = before
        if kept is not None and len(self._journal) == start + 1:
            # As if nothing had been entered.
            kept.as_if.__exit__()
            self._enter_kept(kept, -1)
            self._restore(self._journal.pop())
            return
        if kept is not None:
            kept.spoiled = True  # what was done in it stays
        untouched = len(self._journal) == start + len(entered)
        for key in entered:
            if self.unclaim(key) is None:
                self.give_up(key)
        if kept is None and untouched and entered:
            first = self._journal[start]
            del self._journal[start:]
            self._restore(first)

    def together(self, root: QuotaNode, entered: Sequence[Held], *, free: bool) -> Kept:
        """What is set aside in one tree as one entry. `free`: of the quota of each only what is free once those before
        it have theirs."""
        claims = [(node, held) for held in entered if (node := self.tree.queue(held.charge.queue)) is not None]
        if not free:
            return Kept(root, entered, entered, AsIf(((node, held.charge.usage) for node, held in claims), 1))
        as_if = AsIf(((node, ()) for node, _ in claims), 1)
        parts = []
        with as_if:
            for node, held in claims:
                part = Held(self.as_far_as_free(held.charge), held.until)
                node.move_all(part.charge.usage, 1)
                parts.append(part)
        return Kept(root, entered, parts, as_if)

    def _kept(self, root: QuotaNode, entered: tuple[Held, ...], free: bool) -> Kept:
        """As `together`, cached as long as the tree is the same."""
        if self._by_hand:
            return self.together(root, entered, free=free)
        at = (root, self._versions.get(root, 0), free, *map(id, entered))  # as long as it is there, so are they
        known = self._kept_known.get(at)
        if known is None or known.spoiled:
            if self._kept_claims >= _KEPT_CLAIMS:
                self._kept_known.clear()
                self._kept_claims = 0
            self._kept_claims += len(entered)
            known = self._kept_known[at] = self.together(root, entered, free=free)
        return known

    def _enter_kept(self, kept: Kept, sign: int) -> None:
        """Enter it (1) or take it out (-1), except for its quota, which `Kept.as_if` moves."""
        root = kept.root
        self.version = self._new_version()
        self._versions[root] = self._version_after(root, kept, sign)
        under = self._claims_under.setdefault(root, {})
        for key, held in kept.held.items():
            if sign > 0:
                self.claims[key] = under[key] = held
            else:
                del self.claims[key], under[key]
            if self._off_nodes is not None:
                self._move(self._off_nodes, held.charge, sign)

    def usage_by_queue(self, charges: Iterable[Charge]) -> dict[QuotaNode, dict[FlavorResource, int]]:
        """What these gangs hold of quota, added up for each ClusterQueue that is there."""
        out: dict[QuotaNode, dict[FlavorResource, int]] = {}
        for charge in charges:
            node = self.tree.queue(charge.queue)
            if node is not None:
                total = out.setdefault(node, {})
                for fr, amount in charge.usage:
                    total[fr] = total.get(fr, 0) + amount
        return out

    @contextmanager
    def as_if_gone(self, charges: Iterable[Charge]) -> Iterator[None]:
        """Inside, these gangs hold nothing: no quota, no nodes, and no pods on them. Only for questions."""
        charges = tuple(charges)
        with self._without(self.usage_by_queue(charges)), self.gone_from_nodes(charges):
            yield

    @contextmanager
    def _without(self, moved: Mapping[QuotaNode, Usage]) -> Iterator[None]:
        """Inside, this quota of these queues is not taken."""
        self._by_hand += 1
        try:
            with AsIf(((node, usage.items()) for node, usage in moved.items()), -1):
                yield
        finally:
            self._by_hand -= 1

    @contextmanager
    def gone_from_nodes(self, charges: Iterable[Charge]) -> Iterator[None]:
        """Inside, these gangs are not on nodes, neither by their charges nor by their pods. Only for questions."""
        before = self._gone
        self._gone = before | {(charge.key, charge.uid) for charge in charges}
        try:
            yield
        finally:
            self._gone = before

    @contextmanager
    def emptied(self) -> Iterator[Emptied]:
        """As `gone_from_nodes`, for many gangs that leave and come back one by one while questions are asked."""
        emptied, version = Emptied(self.nodes), self.nodes.version
        try:
            yield emptied
        finally:
            emptied.refill()
            self.nodes.version = version

    @contextmanager
    def without_claims(self, keys: Iterable[Key]) -> Iterator[None]:
        """Inside, these gangs claim nothing. Only for questions."""
        gone, on_paper = self._gone, self._on_paper
        self._on_paper = dict(on_paper)
        try:
            with self.trial():
                for key in keys:
                    held = self.claims[key]
                    if key not in self.charges and key not in self._lazy:
                        self._on_paper[key] = held
                        self._gone |= {(_claim_key(key), held.charge.uid)}
                    self.unclaim(key)
                yield
        finally:
            self._gone, self._on_paper = gone, on_paper

    @contextmanager
    def unclaimed_on_nodes(self, keys: Collection[Key]) -> Iterator[None]:
        """Inside, these gangs claim nothing on nodes. Only for questions about nodes; cheaper than `without_claims`."""
        gone, spared = self._gone, self._spared
        hold = [key for key in keys if key in self.charges]
        rest = [key for key in keys if key not in self.charges]
        with self.without_claims(hold) if hold else _AS_IT_IS:
            self._gone |= {(_claim_key(key), self.claims[key].charge.uid) for key in rest if key not in self._lazy}
            if spared is not None:
                self._spared = spared.union(key for key in rest if key in self._lazy)
            try:
                yield
            finally:
                self._gone, self._spared = gone, spared

    def no_room(self, requests: Sequence[PlaceRequest], avoid: Collection[str], *, beside: bool) -> bool:
        """Do the nodes refuse this for sure; `beside`: beside all that is set aside on them. False where finding out
        would take long, and where pods of its own linger that keep domains for child jobs of it, which only `places`
        knows."""
        if self.nodes.lingering("", (one.pod_set.shape for one in requests)):
            return False
        spared, effort = self._spared, self.nodes.effort
        if beside:
            self._spared = frozenset()
        given_up = effort.given_up
        try:
            with effort.within(_AT_A_GLANCE):
                return not self.holds(requests, avoid=avoid) and effort.given_up == given_up
        finally:
            self._spared = spared

    def as_far_as_free(self, charge: Charge) -> Charge:
        """A claim reduced to the quota of it that is free now, and to no nodes."""
        node = self.tree.queue(charge.queue)
        usage = tuple((fr, min(amount, 0 if node is None else node.available(fr))) for fr, amount in charge.usage)
        return replace(charge, usage=usage, admission=None, per_pod=())

    def suspended(self, owner: Key | None) -> AbstractContextManager[None]:
        """Inside, the room that `owner` claims itself is free: for a look at it."""
        held = self.claims.get(owner) if owner is not None else None
        return _AS_IT_IS if held is None else self._suspended(held)

    @contextmanager
    def _suspended(self, held: Held) -> Iterator[None]:
        self._remove(held)
        try:
            yield
        finally:
            if self._marks and self._journal[-1].entry is held and not self._journal[-1].entered:
                # Nothing came between: as if it had never been taken out.
                step = self._journal.pop()
                self._apply(held, 1)
                self._restore(step)
            else:
                self._enter(held)

    def doubly(self, root: QuotaNode) -> Mapping[Key, Doubly]:
        """Gang with a claim in this tree -> what of the claim counts twice in the book, because gangs that leave for it
        still hold it. What such a gang holds counts for the first claims that it leaves for."""
        return self.remembered(root, Ledger.doubly, lambda: self._doubly(root))

    def _doubly(self, root: QuotaNode) -> dict[Key, Doubly]:
        out: dict[Key, Doubly] = {}
        left: dict[str, Doubly] = {}
        for key, held in first_to_end(self.claims_under(root)).items():
            victims = [victim for uid in held.victims if (victim := self._leaving.get(uid)) is not None]
            if not victims:
                continue
            claim, twice = Doubly.of(held.charge), Doubly({}, {})
            for victim in victims:
                if victim.uid not in left:
                    left[victim.uid] = Doubly.of(victim)
                twice.take(claim, left[victim.uid])
            out[key] = twice
        return out

    def _yielded(self, owner: Key) -> list[Charge]:
        """The quota that other claims of its tree yield to the claim of `owner`, of what that claims: see
        `yielding`."""
        own = self.claims.get(owner)
        node = None if own is None else self.tree.queue(own.charge.queue)
        if own is None or node is None:
            return []
        mine, same, doubly = (own.until, owner), own.charge.pairs, self.doubly(node.root)
        out = []
        for key, held in self.claims_under(node.root).items():
            usage: Iterable[tuple[FlavorResource, int]] = ()
            if (held.until, key) > mine:
                usage = held.charge.usage
            elif key != owner and key in doubly:
                usage = doubly[key].usage.items()
            if parts := tuple(part for part in usage if part[0] in same):
                out.append(replace(held.charge, usage=parts))
        return out

    def _lent_to(self, owner: Key) -> Lent:
        """The room on nodes that other claims, of any tree, yield to the claim of `owner`: of what that has there, as
        much as would not be free."""
        own = self.claims.get(owner)
        if own is None or own.charge.admission is None:
            return ()
        mine, out = (own.until, owner), []
        there: dict[Key, Mapping[str, Mapping[str, int]]] = {}
        """Of each claim that is met, host -> what of it yields."""
        for host, amounts in own.charge.booking.hosts:
            name = self.nodes.resolve(host)
            free = self.nodes.free(name)
            others: Counter[str] = Counter()
            for key in self.nodes.charged_on(host) if any(free.get(res, 0) < 0 for res, _ in amounts) else ():
                by = _claimed_by(key)
                if by is None or by == owner:
                    continue
                if by not in there:
                    there[by] = self._yields_on_nodes(by, mine)
                others.update(there[by].get(host, {}))
            part = tuple((res, min(-free.get(res, 0), others[res])) for res, _ in amounts)
            if part := tuple(one for one in part if one[1] > 0):
                out.append((name, part))
        return tuple(out)

    def _yields_on_nodes(self, key: Key, to: tuple[int, Key]) -> Mapping[str, Mapping[str, int]]:
        """Host -> what this claim yields to the claim of that (end, owner)."""
        held = self.claims[key]
        if (held.until, key) > to:
            return Doubly.of(held.charge).hosts
        root = self._root_of(held)
        twice = None if root is None else self.doubly(root).get(key)
        return {} if twice is None else twice.hosts

    def yielding(self, owner: Key) -> AbstractContextManager[None]:
        """Inside, other claims yield to the claim of `owner`: for a look at it.

        A claim is for room of gangs that are leaving. Until they are gone that room counts twice, as held and as
        claimed, so that each claim would keep the owners of all others from room that is free already. Therefore claims
        that were made after its own yield all that they claim, and those before it as much as counts twice. The owner
        takes no more than it claimed, in the same flavors and on the same nodes; the others find what becomes free."""
        quota, lent = self._yielded(owner), self._lent_to(owner)
        return self._yielding(quota, lent) if quota or lent else _AS_IT_IS

    @contextmanager
    def _yielding(self, quota: list[Charge], lent: Lent) -> Iterator[None]:
        before, self._lent = self._lent, lent
        try:
            with self._without(self.usage_by_queue(quota)):
                yield
        finally:
            self._lent = before

    @contextmanager
    def without_gangs(self, queue: str, on_nodes: Iterable[Charge] | None = None) -> Iterator[None]:
        """As if no gang held quota in the tree of this queue, nor any node, or if these are given, as if they alone
        held none; what is claimed stays taken. Inside, only ask: `places`, and what the tree says of this queue."""
        node = self.tree.queue(queue)
        below = [] if node is None else [node.root]
        for one in below:
            below.extend(one.children)
        quota = [(one, dict[FlavorResource, int]()) for one in below]
        with self._laid_bare(quota, nodes=on_nodes is None), self.gone_from_nodes(on_nodes or ()):
            for held in self.claims_under(node.root).values() if node is not None else ():
                self._move(self.tree, held.charge, 1)
            yield

    @contextmanager
    def on_empty_nodes(self, queue: str) -> Iterator[None]:
        """Inside, gangs that hold nodes hold nothing, neither nodes nor quota. Only for questions: `places`, and what
        the tree says of this queue and of the cohorts above it."""
        if self._off_nodes is None:
            self._off_nodes = self._made_off_nodes()
        node, alone = self.tree.queue(queue), self._off_nodes.queue(queue)
        path = () if node is None or alone is None else zip(node.path(), alone.path(), strict=True)
        with self._laid_bare([(at, without.usage) for at, without in path]):
            yield

    @contextmanager
    def _laid_bare(
        self, usage: Sequence[tuple[QuotaNode, dict[FlavorResource, int]]], *, nodes: bool = True
    ) -> Iterator[None]:
        """With this usage in these places of the tree, and no gang on any of the `nodes`."""
        kept = [(at, at.usage) for at, _ in usage]
        for at, amounts in usage:
            at.put_usage(amounts)
        self._bare = nodes
        self._by_hand += 1
        try:
            yield
        finally:
            self._by_hand -= 1
            self._bare = False
            for at, before in kept:
                at.put_usage(before)

    # ------------------------------------------------------------ trying

    def mark(self) -> int:
        """Open a mark: what follows can be taken back."""
        if not self._marks:
            self.nodes.forget_questions()
            self._followed.clear()
            self._known.clear()
            self._kept_known.clear()
            self._kept_claims = 0
        self._marks.append(len(self._journal))
        return len(self._marks) - 1

    def rollback(self, mark: int) -> None:
        """Take back what came after the mark, and close it and every mark inside it."""
        position = self._position(mark)
        journal = self._journal
        while len(journal) > position:
            step = journal.pop()
            self._apply(step.entry, -1 if step.entered else 1, hide=step.hidden)
            self._restore(step)
        del self._marks[mark:]

    def leave(self, mark: int, wanted: Iterable[Charge]) -> None:
        """As `rollback`, for an outermost mark; but what is `wanted`, and was only entered since, stays in the book, to
        be found there when it is charged. If anything else comes first, `take_standing_out`."""
        if mark or self._position(mark):
            raise ValueError("only what the outermost mark covers may stay")
        journal = self._journal
        times = Counter(_charge_in(step.entry).key for step in journal if not isinstance(step.entry, Kept))
        entered = {id(step.entry) for step in journal if step.entered}
        once = (charge for charge in wanted if times[charge.key] == 1 and id(charge) in entered)
        standing = {id(charge): charge for charge in once if not _apart(charge)}
        if not standing:
            self.rollback(mark)
            return
        while journal:
            step = journal.pop()
            if id(step.entry) not in standing:
                self._apply(step.entry, -1 if step.entered else 1, hide=step.hidden)
        self._marks.clear()
        self._standing = {charge.key: charge for charge in standing.values()}

    def take_standing_out(self) -> None:
        """What a decision left in the book, and nobody charged."""
        for charge in self._standing.values():
            self._apply(charge, -1)
        self._standing = {}

    def keep(self, mark: int) -> None:
        """Close the mark and every one inside it, and let what came after stand (an outer mark still takes it back)."""
        self._position(mark)
        del self._marks[mark:]
        if not self._marks:
            self._journal.clear()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever is done inside is taken back at the end."""
        mark = self.mark()
        try:
            yield
        finally:
            self.rollback(mark)

    def places(
        self,
        requests: Sequence[PlaceRequest],
        *,
        owner: Key | None = None,
        avoid: Collection[str] = (),
        empty: bool = False,
        previous: Admission | None = None,
        lost: Collection[str] = (),
        without: Collection[Key] = (),
        again: bool = False,
        own: str = "",
    ) -> Placement | Misfit:
        """Nodes for all pods of all pod sets at once, or why not (see `capacity.place`)."""
        with self.suspended(owner), self._looked_at():
            return place(
                self.nodes,
                requests,
                rules=self.rules,
                avoid=avoid,
                empty=empty or self._bare,
                beside=[_claim_key(key) for key in self.claims] if self._bare else (),
                previous=previous,
                lost=lost,
                without=without,
                explain=not again,
                again=again,
                own=own,
            )

    def room(
        self,
        requests: Sequence[PlaceRequest],
        *,
        owner: Key | None = None,
        avoid: Collection[str] = (),
        empty: bool = False,
    ) -> bool | None:
        """Would `places` find room? Without choosing nodes; None where only `places` can tell."""
        if self._bare:
            return None
        with self.suspended(owner), self._looked_at():
            return room(self.nodes, requests, rules=self.rules, avoid=avoid, empty=empty)

    def holds(self, requests: Sequence[PlaceRequest], *, owner: Key | None = None, avoid: Collection[str] = ()) -> bool:
        """Would `places` find room for this? Without choosing nodes where that can be told."""
        if self._bare:
            return not isinstance(self.places(requests, owner=owner, avoid=avoid), Misfit)
        with self.suspended(owner), self._looked_at():
            return holds(self.nodes, requests, rules=self.rules, avoid=avoid)

    def _looked_at(self) -> AbstractContextManager[None]:
        """The nodes with all that counts as taken, gone or lent for the question at hand."""
        spared = bare = self._spared
        if spared is None and not self._gone and not self._lent:
            return _AS_IT_IS
        if self._lazy and spared is not None:
            # Who was unclaimed in the meantime keeps nothing; as claims they count nothing on empty nodes.
            spared = spared.union(key for key, held in self._lazy.items() if self.claims.get(key) is not held)
            bare = spared if self._bare else spared.union(self._lazy)
        return self.nodes.as_if(spared, self._gone, bare, self._lent)

    # ------------------------------------------------------------ checking

    def recompute(self) -> Ledger:
        """The quota side of the same book, made anew from its own entries. For the drift check."""
        other = Ledger(self.rules)
        other.set_queues(self._queues, self._cohorts)
        for charge in self.charges.values():
            other._enter(Charge(charge.key, charge.uid, charge.queue, charge.usage, kind=charge.kind))
        for held in self.claims.values():
            entry = held.charge
            bare = Charge(entry.key, entry.uid, entry.queue, entry.usage, kind=entry.kind)
            other._enter(Held(bare, held.until))
        return other

    def drift(self, part: int = 0, parts: int = 1) -> list[str]:
        """Differences between the tree's usage and what its entries add up to, and the same of the nodes (of one
        `part` of them); empty when all is well."""
        out = _differences(self.tree, self.recompute().tree)
        if self._off_nodes is not None:
            out.extend(_differences(self._off_nodes, self._made_off_nodes()))
        booked = {key for key, charge in self.charges.items() if charge.admission is not None}
        booked |= {_claim_key(key) for key, held in self.claims.items() if held.charge.admission is not None}
        out.extend(
            f"{key} is booked on nodes and not here, or here alone" for key in sorted(booked ^ self.nodes.keys())
        )
        return out + self.nodes.drift(part, parts)

    # ------------------------------------------------------------ inside

    def _position(self, mark: int) -> int:
        if not 0 <= mark < len(self._marks):
            raise ValueError(f"mark {mark} is not open")
        return self._marks[mark]

    def _enter(self, entry: Charge | Held | Aside) -> None:
        before = self._versions_at(entry) if self._marks else None
        hidden = self._apply(entry, 1)
        if before is not None:
            self._journal.append(_Step(True, entry, before, hidden))

    def _remove(self, entry: Charge | Held | Aside) -> None:
        before = self._versions_at(entry) if self._marks else None
        # What if it were evicted: then its pods are gone too. (Pods of what has really ended hold room.)
        self._apply(entry, -1, hide=bool(self._marks))
        if before is not None:
            self._journal.append(_Step(False, entry, before))

    def _new_version(self) -> int:
        self._last_version += 1
        return self._last_version

    def _root_of(self, entry: Charge | Held | Aside) -> QuotaNode | None:
        node = self.tree.queue(_charge_in(entry).queue)
        return None if node is None else node.root

    def _versions_at(self, entry: Charge | Held | Aside) -> _Versions:
        return self._versions_of(self._root_of(entry))

    def _versions_of(self, root: QuotaNode | None) -> _Versions:
        return _Versions(self.version, self.nodes.version, 0 if root is None else self._versions.get(root, 0), root)

    def _restore(self, step: _Step) -> None:
        """The book is as it was before this step."""
        self.version, self.nodes.version, tree, root = step.before
        if root is not None:
            self._versions[root] = tree

    def _version_after(self, root: QuotaNode, entry: Charge | Held | Aside | Kept, sign: int) -> int:
        if not self._marks:
            return self.version
        at = (self._versions.get(root, 0), sign, id(entry))
        known = self._followed.get(at)
        if known is None or known[0] is not entry:
            known = self._followed[at] = (entry, self.version)
        return known[1]

    def _put_aside(self, held: Held, sign: int) -> None:
        charge = held.charge
        self.aside_changed.add(charge.key)
        node = self.tree.queue(charge.queue)
        under = {} if node is None else self._aside_under.setdefault(node.root, {})
        if node is not None:
            self._aside_in_order.pop(node.root, None)
        if sign > 0:
            self.aside[charge.key] = under[charge.key] = held
            if charge.admission is not None:
                self.nodes.set_aside(charge.key, charge.booking)
        else:
            del self.aside[charge.key]
            under.pop(charge.key, None)
            self.nodes.give_up(charge.key)

    def _apply(self, entry: Charge | Held | Aside | Kept, sign: int, *, hide: bool = False) -> bool:
        """Enter (1) or take out (-1) an entry; `hide`: with a gang that is taken out, its pods. True if pods that were
        hidden count again."""
        shown = False
        if isinstance(entry, Kept):
            for claim in entry.held.values():
                self._apply(claim, sign)
            return shown
        charge = _charge_in(entry)
        node = self.tree.queue(charge.queue)
        self.version = self._new_version()
        if node is not None:
            self._versions[node.root] = self._version_after(node.root, entry, sign)
        if isinstance(entry, Aside):
            self._put_aside(entry.held, sign)
            return shown
        held = entry if isinstance(entry, Held) else None
        if held is not None:
            under = {} if node is None else self._claims_under.setdefault(node.root, {})
            if sign > 0:
                self.claims[charge.key] = under[charge.key] = held
            else:
                del self.claims[charge.key]
                under.pop(charge.key, None)
        elif sign > 0:
            shown = self.nodes.show(charge.uid)
            self.charges[charge.key] = charge
            if charge.leaves:
                self._leaving[charge.uid] = charge
        else:
            del self.charges[charge.key]
            if charge.leaves:
                self._leaving.pop(charge.uid, None)
        if node is not None:
            node.move_all(charge.usage, sign)
            if self._off_nodes is not None and (held is not None or charge.admission is None):
                self._move(self._off_nodes, charge, sign)
        elsewhere = held is not None and (self._lazy.get(charge.key) is held or self._on_paper.get(charge.key) is held)
        if charge.admission is not None and not elsewhere:
            key = charge.key if held is None else _claim_key(charge.key)
            if sign > 0:
                self.nodes.book(key, charge.booking)
            else:
                self.nodes.release(key)
        if hide and held is None and charge.kind == "gang":
            self.nodes.hide(charge.uid)
        return shown

    def _made_off_nodes(self) -> Tree:
        tree = Tree.build(self._queues, self._cohorts)
        for charge in self.charges.values():
            if charge.admission is None:
                self._move(tree, charge, 1)
        for held in self.claims.values():
            self._move(tree, held.charge, 1)
        return tree

    @staticmethod
    def _move(tree: Tree, charge: Charge, sign: int) -> None:
        node = tree.queue(charge.queue)
        if node is not None:
            node.move_all(charge.usage, sign)
