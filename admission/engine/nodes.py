"""The book of nodes: what is free on them, and for whom.

`Capacity` has one page per node. A node's room is its allocatable less what stands on it: pods that are not ours, and
per gang the larger, resource by resource, of what its charge says and of what its pods there really hold (a charge
pays for its pods; a sidecar that somebody injected is booked as the difference). Every entry has its exact inverse.
Amounts are exact Python ints; `table` mirrors them in arrays, and `counts` says how many pods fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest

from msgspec.structs import replace

from admission.engine.booking import (
    Amounts,
    Booking,
    add_amounts,
    add_unasked,
    booking_of,
    children_of,
    mark_of,
    marked,
    takes,
)
from admission.engine.counts import Filter, Overlay, on_purpose
from admission.engine.model import (
    Admission,
    AntiAffinity,
    Flavor,
    Key,
    Node,
    Pairs,
    PodSet,
    PodShape,
    PodUsage,
    Rules,
    Topology,
    TopologyAssignment,
    Value,
    discard,
    matches,
)
from admission.engine.table import Host, Paid, Parsed, Table
from admission.names import HOSTNAME_LABEL

OVERLAYS = 256
"""At most so many overlays are kept, for questions of the kind "what if"."""
Lent = tuple[tuple[str, Amounts], ...]
"""(node, what counts as free on it though it is claimed), each: see `Ledger.yielding`."""
POPULAR = 16
"""So many kinds of pods, the commonest, stand for all that may come."""


@dataclass(slots=True)
class Effort:
    """Counts what is dear in a decision, in elementary steps of some 20 ns: searching nodes for gangs of several pod
    sets, and victims among very many. So effort is bounded without a clock."""

    spent: int = 0
    """Since the book was made."""
    left: int | None = None
    """Steps that the questions inside `within` may still take together; None: no bound."""
    given_up: int = 0
    """Searches that were cut short by `within`: a no of theirs may be wrong."""

    @contextmanager
    def within(self, most: int) -> Iterator[None]:
        before = self.left
        self.left = most if before is None else min(most, before)
        began = self.spent
        try:
            yield
        finally:
            self.left = None if before is None else before - (self.spent - began)

    def spend(self, steps: int) -> None:
        self.spent += steps
        if self.left is not None:
            self.left -= steps


class Capacity:
    """All nodes, what stands on them, and the topologies they form."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._parsed: dict[str, Parsed] = {}
        self._hosts: dict[str, Host] = {}
        self._pods: dict[Key, PodUsage] = {}
        self._charges: dict[Key, Booking] = {}
        self._aside: dict[Key, Booking] = {}
        self._aside_version = 0
        self._given: dict[tuple[Key, str], list[tuple[int, Mapping[str, int]]]] = {}
        """Cache: gang -> (row, what would be free there if it left)."""
        self._asked_of: dict[Key | str, set[tuple[Key, str]]] = {}
        """Key or uid -> the entries of that cache that depend on it."""
        self._summed: tuple[dict[Key, Booking], dict[int, dict[str, int]]] = ({}, {})
        """Cache of `taken_by`: the charges that were asked for last, and what they take per row."""
        self._topologies: dict[str, Topology] = {}
        self._named: dict[str, set[str]] = {}
        """Hostname label -> nodes that have it and another name."""
        self._by_host: dict[str, set[Key]] = {}
        """Host as charges spell it -> the charges."""
        self._domain_charges: dict[Pairs, dict[Key, Amounts]] = {}
        self._wide: dict[str, int] = {}
        """uid of a gang -> number of its charges that name domains wider than a node; they pay for its pods on any
        node."""
        self._pods_of: dict[str, set[Key]] = {}
        self._pods_of_children: dict[str, set[Key]] = {}
        """Name of child jobs that have domains to themselves (`PodUsage.child`) -> their pods, whoever's they are."""
        self._children_changed: set[str] = set()
        """Those of these names that got their first pod, or lost their last, since `settle_children`."""
        self.exclusive_keys: set[str] = set()
        """Labels of which child jobs have, or once had, domains to themselves."""
        self._apart: Counter[str] = Counter()
        """Anti-affinity to pods of any gang (`mark_of`) -> how many pods, charges and waiting gangs have it."""
        self._apart_there: Counter[str] = Counter()
        """The same without those who wait."""
        self._apart_by: dict[tuple[str, ...], set[str]] = {}
        """Index of these: (namespace or "" for all, label, value) where it selects by a value, else (namespace,)."""
        self._apart_new: set[str] = set()
        self._kinds: dict[Amounts, int] = {}
        """What a pod of a gang takes, if that includes a device -> how many such pods are charged."""
        self._popular: list[tuple[Amounts, int]] | None = None
        self._hidden: set[str] = set()
        """uids of gangs whose pods do not count: a question is asked as if they had left."""
        self._made: Table | None = None
        self.effort = Effort()
        self.version = 0
        """Changes with every change of nodes or of what is on them; the ledger restores it when it takes changes back.
        Equal versions mean equal nodes."""
        self._last_version = 0

    # -- nodes, pods, topologies

    def put_node(self, node: Node) -> None:
        old = self._nodes.get(node.name)
        if old == node:
            return
        self._new_version()
        self._parsed[node.name] = (dict(node.labels), dict(node.allocatable))
        label, old_label = _hostname(node), _hostname(old)
        if old is None or label != old_label:
            self._renamed()
            if self._made is not None:
                self._made.forget_aside()
            with self._recharged({node.name, label, old_label}):
                self._unname(old)
                self._nodes[node.name] = node
                if label not in ("", node.name):
                    self._named.setdefault(label, set()).add(node.name)
        else:
            self._nodes[node.name] = node
        if old is None:
            self._made = None
        elif self._made is not None:
            self._made.update(node, self._parsed[node.name])

    def remove_node(self, name: str) -> None:
        old = self._nodes.get(name)
        if old is None:
            return
        self._new_version()
        with self._recharged({name, _hostname(old)}):
            self._unname(old)
            del self._nodes[name], self._parsed[name]
        self._made = None
        self._renamed()

    def _unname(self, node: Node | None) -> None:
        label = _hostname(node)
        if node is not None:
            discard(self._named, label, node.name)

    def resolve(self, host: str) -> str:
        """The node that a charge means by a host: its name, else its hostname label."""
        if host not in self._nodes and host in self._named:
            return min(self._named[host])
        return host

    @contextmanager
    def _recharged(self, hosts: set[str]) -> Iterator[None]:
        """Inside, charges that name these hosts are off the book, so that nodes may get or lose these names."""
        keys = sorted({key for host in hosts for key in self._by_host.get(host, ())})
        for key in keys:
            self._book(self._charges[key], -1)
        yield
        for key in keys:
            self._book(self._charges[key], 1)

    def _new_version(self) -> None:
        self._last_version += 1
        self.version = self._last_version

    def nodes(self) -> list[Node]:
        """All nodes, by name."""
        return list(self.table.nodes)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def put_topology(self, value: Topology) -> None:
        self._new_version()
        self._topologies[value.name] = value
        if self._made is not None:
            self._made.bare_changed()

    def remove_topology(self, name: str) -> None:
        self._new_version()
        self._topologies.pop(name, None)
        if self._made is not None:
            self._made.bare_changed()

    def topology(self, name: str) -> Topology | None:
        return self._topologies.get(name)

    def put_pod(self, pod: PodUsage) -> None:
        old = self._pods.get(pod.key)
        if old == pod:
            return
        if old is not None:
            self.remove_pod(pod.key)
        self._pods[pod.key] = pod
        if pod.workload_uid:
            self._touch(pod.workload_uid)
            self._pods_of.setdefault(pod.workload_uid, set()).add(pod.key)
        if pod.child is not None:
            if pod.child[0] not in self._pods_of_children:
                self._children_changed.add(pod.child[0])
            self._pods_of_children.setdefault(pod.child[0], set()).add(pod.key)
        self._book_pod(pod, 1)

    def remove_pod(self, key: Key) -> None:
        old = self._pods.pop(key, None)
        if old is None:
            return
        if old.workload_uid:
            self._touch(old.workload_uid)
            discard(self._pods_of, old.workload_uid, key)
        if old.child is not None:
            discard(self._pods_of_children, old.child[0], key)
            if old.child[0] not in self._pods_of_children:
                self._children_changed.add(old.child[0])
        self._book_pod(old, -1)

    def keys(self) -> set[Key]:
        """Keys of all charges."""
        return set(self._charges)

    def pod(self, key: Key) -> PodUsage | None:
        """The pod that holds room under this key."""
        return self._pods.get(key)

    def pods(self, workload_uid: str) -> list[PodUsage]:
        """The pods of a gang that hold room, by key."""
        return [self._pods[key] for key in sorted(self._pods_of.get(workload_uid, ()))]

    def lingering(self, workload_uid: str, shapes: Iterable[PodShape]) -> list[PodUsage]:
        """Pods that are there before a gang starts, and that JobSet's affinities take for pods of its child jobs, by
        key: those of the gang, and those of an earlier JobSet of its name."""
        keys: set[Key] = set()
        for shape in shapes:
            if shape.exclusive is not None:
                keys |= self._pods_of_children.get(children_of(shape), frozenset())
                keys |= self._pods_of.get(workload_uid, frozenset())
        return [pod for key in sorted(keys) if (pod := self._pods[key]).exclusive_key]

    def hide(self, uid: str) -> None:
        """Have the pods of this gang count as gone, until `show`."""
        if uid not in self._hidden and uid in self._pods_of:
            self._touch(uid)
            for pod in self.pods(uid):
                self._book_pod(pod, -1)
            self._hidden.add(uid)

    def show(self, uid: str) -> bool:
        """Have its pods count again; False if they did already."""
        if uid not in self._hidden:
            return False
        self._touch(uid)
        self._hidden.discard(uid)
        for pod in self.pods(uid):
            self._book_pod(pod, 1)
        return True

    def _book_pod(self, pod: PodUsage, sign: int) -> None:
        if pod.workload_uid in self._wide or pod.workload_uid in self._hidden:
            return
        requests = dict(pod.requests)
        add_unasked(requests, pod.host_ports, pod.of_jobset, pod.exclusive_key, pod.apart)
        if pod.apart:
            self._stand_apart([mark_of(asked) for asked in pod.apart], sign)
        if pod.exclusive_key:
            self.exclusive_keys.add(pod.exclusive_key)
        host = self._host(pod.node)
        if pod.workload_uid:
            self._book_gang(host, pod.workload_uid, requests, sign, pods=True)
        else:
            add_amounts(host.foreign, requests.items(), sign)
        self._changed(pod.node, host, requests.items())

    # -- whom others keep away

    def count_apart(self, marks: Iterable[str], sign: int) -> None:
        """A waiting gang has these terms of anti-affinity (sign 1), or has them no more (-1)."""
        for mark in marks:
            if mark not in self._apart:
                self._apart_new.add(mark)
                for at in _looked_up_by(marked(mark)):
                    self._apart_by.setdefault(at, set()).add(mark)
            self._apart[mark] += sign

    def _stand_apart(self, marks: Collection[str], sign: int) -> None:
        self.count_apart(marks, sign)
        for mark in marks:
            self._apart_there[mark] += sign

    def settle_apart(self) -> set[str]:
        """The terms of anti-affinity that came since the last call, and were not there before. Forgets those that are
        gone."""
        for mark in [mark for mark, times in self._apart.items() if not times]:
            del self._apart[mark]
            self._apart_there.pop(mark, None)
            if self._made is not None:
                self._made.forget(mark)
            for at in _looked_up_by(marked(mark)):
                discard(self._apart_by, at, mark)
        new = self._apart_new.intersection(self._apart)
        self._apart_new.clear()
        return new

    def settle_children(self) -> set[str]:
        """Names of child jobs (`children_of`) that got their first pod, or lost their last, since the last call."""
        changed, self._children_changed = self._children_changed, set()
        return changed

    def has_children(self, name: str) -> bool:
        """Are there pods of child jobs of this name?"""
        return name in self._pods_of_children

    def tidy(self) -> None:
        """Bound the caches. Called between decisions."""
        if self._made is not None:
            self._made.tidy()

    def repelled(self, shape: PodShape) -> tuple[str, ...]:
        """The marks of the anti-affinity that would keep pods of this shape away."""
        if not self._apart:
            return ()
        found: set[str] = set()
        for namespace in (shape.namespace, ""):
            for at in ((namespace,), *((namespace, *pair) for pair in shape.labels)):
                found |= self._apart_by.get(at, frozenset())
        labels = dict(shape.labels)
        return tuple(sorted(mark for mark in found if matches(marked(mark).selector, labels)))

    def kept_away_by(self, shape: PodShape) -> tuple[str, ...]:
        """Those of `repelled` that are of pods or charges, or of gangs for whom room is set aside; not of waiting
        ones."""
        return tuple(mark for mark in self.repelled(shape) if self._apart_there[mark])

    # -- charges

    def charge(
        self,
        key: Key,
        uid: str,
        admission: Admission,
        per_pod: Mapping[str, Mapping[str, int] | Amounts],
    ) -> None:
        """Book the nodes of an admission; `per_pod` says, per pod set, what each pod takes (`takes`).

        Pod sets without a topology assignment take no node: their pods are booked where they stand. A second charge
        under the same key replaces the first.
        """
        self.book(key, booking_of(uid, admission, {name: tuple(dict(each).items()) for name, each in per_pod.items()}))

    def book(self, key: Key, booking: Booking) -> None:
        """As `charge`, with what it takes added up already."""
        self.release(key)
        if booking.exclusive:
            self.exclusive_keys.update(booking.exclusive)
        self._put(key, booking if booking.uid else replace(booking, uid="/".join(key)))

    def set_aside(self, key: Key, booking: Booking) -> None:
        """Note nodes that are not booked: they count as taken only inside `beside`."""
        self.give_up(key)
        self.exclusive_keys.update(booking.exclusive)
        self._stand_apart(booking.apart, 1)
        self._aside[key] = booking
        self._count_aside(key, 1)

    def give_up(self, key: Key) -> None:
        """Forget what is set aside under a key; nothing when there is nothing."""
        if key in self._aside:
            self._count_aside(key, -1)
            self._stand_apart(self._aside[key].apart, -1)
            del self._aside[key]

    def _count_aside(self, key: Key, sign: int) -> None:
        self._aside_version += 1
        if self._made is not None and self._made.knows_aside:
            self._lay_aside(self._made, self._aside[key], sign)

    def _lay_aside(self, table: Table, booking: Booking, sign: int) -> None:
        for name, amounts in booking.hosts:
            table.put_aside(self.resolve(name), amounts, sign)

    def as_if(
        self,
        spared: frozenset[Key] | None,
        gone: frozenset[tuple[Key, str]],
        bare: frozenset[Key] | None,
        lent: Lent = (),
    ) -> AbstractContextManager[None]:
        """Inside, the nodes are looked at as if: room that is set aside were taken, except for `spared` (None: none of
        it is); the `gone` gangs (key, uid) held nothing; and what is `lent` were free. `bare`: as `spared`, for
        questions about nodes without gangs. Only for questions."""
        table = self.table
        if not self._aside:
            spared = bare = None
        laid = spared is not None or gone or lent
        return _Looked(table, self._overlay(spared, gone, bare, lent) if laid else table.plain)

    def forget_questions(self) -> None:
        """Drop the overlays: what `as_if` was asked so far will not be asked again."""
        if self._made is not None:
            self._made.overlays.clear()

    def _overlay(
        self, spared: frozenset[Key] | None, gone: frozenset[tuple[Key, str]], bare: frozenset[Key] | None, lent: Lent
    ) -> Overlay:
        table = self.table
        key = (self._aside_version, spared, gone, bare, lent)
        known = table.overlays.get(key)
        if known is not None:
            return known
        if spared is not None and not table.knows_aside:
            for booking in self._aside.values():
                self._lay_aside(table, booking, 1)
            table.knows_aside = True
        if len(table.overlays) >= OVERLAYS:
            table.overlays.clear()
        made = table.overlays[key] = Overlay(
            table.grounds[spared is not None],
            lambda: self._more(spared or frozenset(), gone, lent),
            lambda: self._more(bare or frozenset(), frozenset(), ()),
        )
        return made

    def _more(
        self, spared: frozenset[Key], gone: frozenset[tuple[Key, str]], lent: Lent
    ) -> dict[int, Mapping[str, int]]:
        """Per row, how much more of each resource is free without `spared` and `gone`, and with `lent`: see `as_if`."""
        out: dict[int, Mapping[str, int]] = {}
        row_of = self.table.row
        for key in spared:
            booking = self._aside.get(key)
            for name, amounts in booking.hosts if booking is not None else ():
                row = row_of.get(self.resolve(name))
                if row is not None:
                    _give(out, row, _capped(amounts))
        for gang in gone:
            for row, held in self._given_back(gang):
                _give(out, row, held)
        for name, amounts in lent:
            row = row_of.get(name)
            if row is not None:
                _give(out, row, _capped(amounts))
        return out

    def _given_back(self, gang: tuple[Key, str]) -> list[tuple[int, Mapping[str, int]]]:
        """(row, what a gang holds there), by its charge and by its pods."""
        known = self._given.get(gang)
        if known is not None:
            return known
        key, uid = gang
        charge = self._charges.get(key)
        owner = uid or "/".join(key)
        names = {self.resolve(name) for name, _ in charge.hosts} if charge is not None else set()
        names.update(self._pods[pod].node for pod in self._pods_of.get(uid, ()))
        out: list[tuple[int, Mapping[str, int]]] = []
        for name in names:
            host, row = self._hosts.get(name), self.table.row.get(name)
            paid = host.gangs.get(owner) if host is not None else None
            if paid is not None and row is not None:
                out.append((row, _capped((name, paid.held(name)) for name in {*paid.charged, *paid.pods})))
        self._given[gang] = out
        for part in gang:
            self._asked_of.setdefault(part, set()).add(gang)
        return out

    def release(self, key: Key) -> None:
        """Take a charge off again; nothing when there is none."""
        if key in self._charges:
            self._take(key)

    def _touch(self, *of: Key | str) -> None:
        """What these keys or uids hold changes: drop what is cached of them."""
        for part in of:
            gangs = self._asked_of.pop(part, None)
            if gangs is not None:
                for gang in gangs:
                    self._given.pop(gang, None)
                self.forget_questions()

    def _renamed(self) -> None:
        """Rows, or the nodes of a name, have changed: drop what is cached by them."""
        self._summed = ({}, {})
        self._given.clear()
        self._asked_of.clear()

    def _put(self, key: Key, charge: Booking) -> None:
        self._touch(key, charge.uid)
        self._charges[key] = charge
        for host, _ in charge.hosts:
            self._by_host.setdefault(host, set()).add(key)
        for pairs, amounts in charge.domains:
            self._domain_charges.setdefault(pairs, {})[key] = amounts
        if charge.domains:
            if charge.uid not in self._wide:
                for pod in self.pods(charge.uid):
                    self._book_pod(pod, -1)
            self._wide[charge.uid] = self._wide.get(charge.uid, 0) + 1
        self._stand_apart(charge.apart, 1)
        self._count_kinds(charge, 1)
        self._book(charge, 1)

    def _take(self, key: Key) -> Booking:
        charge = self._charges.pop(key)
        self._touch(key, charge.uid)
        self._stand_apart(charge.apart, -1)
        self._count_kinds(charge, -1)
        self._book(charge, -1)
        for host, _ in charge.hosts:
            discard(self._by_host, host, key)
        for pairs, _ in charge.domains:
            there = self._domain_charges[pairs]
            del there[key]
            if not there:
                del self._domain_charges[pairs]
        if charge.domains:
            self._wide[charge.uid] -= 1
            if not self._wide[charge.uid]:
                del self._wide[charge.uid]
                for pod in self.pods(charge.uid):
                    self._book_pod(pod, 1)
        return charge

    def _count_kinds(self, charge: Booking, sign: int) -> None:
        self._new_version()
        for kind, pods in charge.kinds:
            total = self._kinds.get(kind, 0) + sign * pods
            if total:
                self._kinds[kind] = total
            else:
                self._kinds.pop(kind, None)
            self._popular = None

    def popular(self) -> list[tuple[Amounts, int]]:
        """(what one pod takes, how many are charged) of the commonest pods with devices, sorted by what they take.

        The pods of today are the best guess at those of tomorrow.
        """
        if self._popular is None:
            most = nsmallest(POPULAR, self._kinds.items(), key=lambda entry: (-entry[1], entry[0]))
            self._popular = sorted(most)
        return self._popular

    def domain_charges(self) -> dict[Pairs, dict[str, int]]:
        """What is charged to domains wider than a node: (level, value) pairs -> amounts."""
        out: dict[Pairs, dict[str, int]] = {}
        for pairs, charges in self._domain_charges.items():
            total = out.setdefault(pairs, {})
            for amounts in charges.values():
                add_amounts(total, amounts, 1)
        return out

    def taken_by(self, keys: Iterable[Key]) -> Mapping[int, Mapping[str, int]]:
        """Per row, what these charges take together. The answer is kept, and the next one made from it by the charges
        in which they differ: use it before the next call."""
        before, total = self._summed
        now = {key: charge for key in keys if (charge := self._charges.get(key)) is not None}
        for charges, others, sign in ((before, now, -1), (now, before, 1)):
            for key, charge in charges.items():
                if others.get(key) is not charge:
                    for host, amounts in charge.hosts:
                        row = self.table.row.get(self.resolve(host))
                        if row is not None:
                            add_amounts(total.setdefault(row, {}), amounts, sign)
                            if not total[row]:
                                del total[row]
        self._summed = now, total
        return total

    def charged_on(self, host: str) -> Collection[Key]:
        """Keys of the charges that name this host."""
        return self._by_host.get(host, ())

    def _book(self, charge: Booking, sign: int) -> None:
        uid = charge.uid
        for name, amounts in charge.hosts:
            node = name if name in self._nodes else self.resolve(name)
            host = self._host(node)
            paid = host.gangs.get(uid)
            if paid is None and sign > 0:
                host.gangs[uid] = Paid(dict(amounts), {})
                add_amounts(host.gang_total, amounts, 1)
            elif paid is not None and sign < 0 and not paid.pods and paid.charged == dict(amounts):
                del host.gangs[uid]
                add_amounts(host.gang_total, amounts, -1)
            else:
                self._book_gang(host, uid, dict(amounts), sign, pods=False)
                self._changed(node, host, amounts)
                continue
            if host.empty():
                del self._hosts[node]
            if self._made is not None:
                self._made.moved(node, amounts, -sign)
        if charge.hosts:
            self._new_version()

    @staticmethod
    def _book_gang(host: Host, uid: str, amounts: Mapping[str, int], sign: int, *, pods: bool) -> None:
        paid = host.gangs.get(uid)
        if paid is None:
            paid = host.gangs[uid] = Paid({}, {})
        for name, amount in amounts.items():
            before = paid.held(name)
            add_amounts(paid.pods if pods else paid.charged, ((name, amount),), sign)
            change = paid.held(name) - before
            if change:
                add_amounts(host.gang_total, ((name, change),), 1)
        if not paid.charged and not paid.pods:
            del host.gangs[uid]

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host({}, {}, {})
        return host

    def _changed(self, name: str, host: Host, amounts: Iterable[tuple[str, int]]) -> None:
        self._new_version()
        if host.empty():
            del self._hosts[name]
        if self._made is not None:
            self._made.refresh(name, [resource for resource, _ in amounts])

    @contextmanager
    def without(self, keys: Collection[Key]) -> Iterator[None]:
        """Inside, these charges are off the book."""
        charges = [(key, self._take(key)) for key in sorted(set(keys)) if key in self._charges]
        try:
            yield
        finally:
            for key, charge in charges:
                self._put(key, charge)

    # -- what is there

    @property
    def table(self) -> Table:
        if self._made is None:
            self._made = Table(self._nodes, self._parsed, self._hosts)
        return self._made

    def free(self, node: str) -> dict[str, int]:
        """What is free on a node, of each resource it has; may be negative where it is over-committed."""
        out = self.bare(node)
        host = self._hosts.get(node)
        if host is not None:
            for name, amount in host.gang_total.items():
                if name in out:
                    out[name] -= amount
        return out

    def bare(self, node: str) -> dict[str, int]:
        """What would be free on a node if no gang were on it."""
        value = self._nodes.get(node)
        if value is None:
            return {}
        host = self._hosts.get(node)
        out = dict(value.allocatable)
        if host is not None:
            for name, amount in host.foreign.items():
                if name in out:
                    out[name] -= amount
        return out

    def drift(self, part: int = 0, parts: int = 1) -> list[str]:
        """Differences between the book and a fresh one made of the same nodes, pods and charges; empty when all is
        well. `part` of `parts` of the nodes at a time."""
        names = sorted(self._nodes)[part % parts :: parts]
        looked = set(names) if parts > 1 else self._nodes.keys() | self._hosts.keys()
        fresh = Capacity()
        for value in self._topologies.values():
            fresh.put_topology(value)
        for name in names:
            fresh.put_node(self._nodes[name])
        for key, charge in self._charges.items():
            there = [entry for entry in charge.hosts if self.resolve(entry[0]) in looked]
            if there or charge.domains or parts == 1:
                fresh._put(key, replace(charge, hosts=tuple(there) if parts > 1 else charge.hosts))
        for pod in self._pods.values():
            if pod.node in looked:
                fresh.put_pod(pod)
        for uid in self._hidden:
            fresh.hide(uid)
        out: list[str] = []
        for name in names:
            mine, theirs = self.free(name), fresh.free(name)
            out.extend(
                f"node {name}: {resource} free is {mine[resource]}, should be {theirs[resource]}"
                for resource in mine
                if mine[resource] != theirs[resource]
            )
        if self.domain_charges() != fresh.domain_charges():
            out.append(f"domains: charged {self.domain_charges()}, should be {fresh.domain_charges()}")
        kinds: dict[Amounts, int] = {}
        for charge in self._charges.values():
            for kind, pods in charge.kinds:
                kinds[kind] = kinds.get(kind, 0) + pods
        if self._kinds != {kind: pods for kind, pods in kinds.items() if pods}:
            out.append(f"kinds of pods: {self._kinds}, should be {kinds}")
        return out

    def occupants(self, node: str) -> dict[str, dict[str, int]]:
        """What is held on a node: uid of a gang -> amounts; "": by pods of no gang."""
        host = self._hosts.get(node)
        if host is None:
            return {}
        out = {
            uid: {name: paid.held(name) for name in sorted({*paid.charged, *paid.pods})}
            for uid, paid in sorted(host.gangs.items())
        }
        if host.foreign:
            out[""] = dict(sorted(host.foreign.items()))
        return out


class _Looked:
    """Inside, the nodes are looked at with this laid over them."""

    __slots__ = ("_before", "_over", "_table")

    def __init__(self, table: Table, over: Overlay) -> None:
        self._table, self._over = table, over

    def __enter__(self) -> None:
        self._before, self._table.overlay = self._table.overlay, self._over

    def __exit__(self, *_: object) -> None:
        self._table.overlay = self._before


def _capped(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    return {name: min(amount, 2**55) for name, amount in amounts}  # sums stay within int64


def _give(into: dict[int, Mapping[str, int]], row: int, amounts: Mapping[str, int]) -> None:
    before = into.get(row)
    if before is None:
        into[row] = amounts
        return
    total = into[row] = dict(before)
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _looked_up_by(asked: AntiAffinity) -> list[tuple[str, ...]]:
    """Keys of `Capacity._apart_by` under which a term is found. (It may name a value, or a namespace, twice.)"""
    named = next((need for need in asked.selector.requirements if need.operator == "In"), None)
    pairs: list[tuple[str, ...]] = [()] if named is None else [(named.key, value) for value in named.values]
    return [(namespace, *pair) for namespace in asked.namespaces or ("",) for pair in pairs]


def _hostname(node: Node | None) -> str:
    return dict(node.labels).get(HOSTNAME_LABEL, "") if node is not None else ""


# ---------------------------------------------------------------- what is asked


class Placement(dict[str, TopologyAssignment]):
    """pod set -> where its pods go, in rank order. Pod sets that need no nodes (elastic flavors) are absent."""


class PlaceRequest(Value, frozen=True, dict=True, gc=True):
    """What is asked of the nodes for one pod set. Requests are kept and used as keys, so that what follows from one is
    worked out once."""

    pod_set: PodSet
    count: int
    per_pod: Amounts
    """What each pod takes. The pod slot and host ports are added when absent."""
    flavors: tuple[Flavor, ...] = ()
    """The flavors this pod set got: node labels of all, the topology of the first that names one."""
    also: tuple[Flavor, ...] = ()
    """What else is written into its pods: elastic flavors, and what checks add. Their labels and tolerations count."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.pod_set, self.count, self.per_pod, self.flavors, self.also))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def takes(self) -> Amounts:
        """What each pod takes, with the pod slot and host ports. Not its anti-affinity, which takes no room and would
        make many kinds of pods of one."""
        return takes(replace(self.pod_set.shape, apart=()), self.per_pod)

    @cached_property
    def topology(self) -> str:
        return next((flavor.topology for flavor in self.flavors if flavor.topology), "")

    @property
    def flavor(self) -> str:
        """The flavor to name when its nodes do not suffice."""
        named = next((flavor.name for flavor in self.flavors if flavor.topology), "")
        return named or (self.flavors[0].name if self.flavors else "")

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted({pair for flavor in (*self.flavors, *self.also) for pair in flavor.node_labels}))

    @cached_property
    def anywhere(self) -> bool:
        """Is any node that has room as good as any other? Nothing is asked of domains or neighbours."""
        pod, asked = self.pod_set.shape, self.pod_set.topology
        bound = pod.refused or pod.of_jobset or pod.exclusive or pod.one_per_domain or pod.same_domain
        return not bound and (asked is None or not (asked.required or asked.slice_required or asked.slices))

    @cached_property
    def filter(self) -> Filter:
        """Which nodes are looked at."""
        shape, flavors = self.pod_set.shape, (*self.flavors, *self.also)
        tolerations = (*shape.tolerations, *(t for flavor in flavors for t in flavor.tolerations))
        return Filter(self.labels, shape.node_selector, shape.affinity, on_purpose(flavors, tolerations))


class Question(Value, frozen=True):
    """All that one call of `capacity.place` asks."""

    capacity: Capacity
    requests: list[PlaceRequest]
    rules: Rules
    avoid: frozenset[str]
    empty: bool
    previous: Admission | None
    lost: frozenset[str]
    explain: bool
    beside: tuple[Key, ...] = ()
    again: bool = False
    """The gang left `previous` and comes back: its pods go where they were, as far as they fit there."""
    own: str = ""
    """uid of the gang, if pods may be there that hold domains for its child jobs (see `Fit._lingering`)."""

    def before(self, pod_set: str) -> TopologyAssignment | None:
        if self.previous is None:
            return None
        return next((a.topology for a in self.previous.pod_sets if a.name == pod_set), None)
