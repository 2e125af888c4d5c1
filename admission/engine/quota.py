"""The cohort tree: who may use how much, who borrows from whom, and who holds the larger share.

Quota is given per (flavor, resource) to ClusterQueues (the leaves) and to Cohorts. A node's *subtree quota* is its own
nominal quota plus what its children let it see; a lending limit keeps the rest of a child's quota *local*, out of its
parent's sight. Usage is charged at a leaf and rises only as far as it exceeds local quota, so the usage of a node above
is what its children take out of the part that they share. From these two numbers per node all else follows: what is
available (bounded by borrowing limits on the way to the root), what could be available with nobody there, what is
borrowed, and the share.

The *share* of a node is what its subtree holds beyond its own quota, per resource over all flavors, over what the
parent could lend of that resource; the largest over the resources, divided by the node's weight. It is an exact
rational, compared by cross-multiplication; it is zero for who borrows nothing, and beyond all numbers for who borrows
with weight zero.

The structure of a Tree never changes; usage does. Adding and subtracting the same usage are exact inverses whatever
came between, for the rise is a function of the usage alone. Amounts are unbounded ints here; only what is shown to
people saturates. Nodes of a cohort cycle, and all that hangs below one, are flagged and offer nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import total_ordering

from admission.engine.model import ClusterQueue, Cohort, FlavorResource, Quota, ResourceGroup, Usage
from admission.quantity import INT64_MAX

SHARE_SCALE = 1000
"""A share of 1 (all that the parent could lend, at weight 1) is shown as this number."""


@total_ordering
class Share:
    """The weighted dominant share of a node. Totally ordered and exact; equal shares compare equal.

    `borrowing`: something is held beyond quota, even if its share is zero because nothing of it can be lent.
    `dominant`: the resource that gives the share; among equals the alphabetically first; "" when the share is zero.
    `borrowed`: the (flavor, resource) pairs that are held beyond quota, sorted.
    """

    __slots__ = (
        "_den",
        "_lendable",
        "_num",
        "_over",
        "_vector",
        "_weight",
        "borrowed",
        "borrowing",
        "dominant",
        "infinite",
    )

    def __init__(
        self,
        *,
        over: Mapping[str, int],
        lendable: Mapping[str, int],
        weight: Fraction,
        borrowed: tuple[FlavorResource, ...],
    ) -> None:
        self._over = over
        self._lendable = lendable
        self._weight = weight
        self._vector: tuple[Fraction, ...] | None = None
        self.borrowed = borrowed
        self.borrowing = bool(borrowed)
        num, den, dominant = 0, 1, ""
        for resource, amount in over.items():
            lend = lendable.get(resource, 0)
            if lend <= 0:
                continue
            here, best = amount * den, num * lend
            if here > best or (here == best and dominant and resource < dominant):
                num, den, dominant = amount, lend, resource
        self.dominant = dominant
        self.infinite = bool(borrowed) and weight == 0
        if num and weight != 0:
            num, den = num * weight.denominator, den * weight.numerator
        self._num, self._den = num, den

    @property
    def weighted(self) -> Fraction:
        """The share as a fraction of what the parent could lend; unweighted when `infinite`."""
        return Fraction(self._num, self._den)

    def value_status(self) -> int:
        """The number that status fields show: thousandths, rounded up; the largest int64 when infinite."""
        if self.infinite:
            return INT64_MAX
        return min(-(-self._num * SHARE_SCALE // self._den), INT64_MAX)

    def vector(self) -> tuple[Fraction, ...]:
        """The weighted share of every resource that is borrowed, largest first: ends ties between equal shares, so
        that a queue advances whose gangs do not use its dominant resource."""
        if self._vector is None:
            weight = self._weight or Fraction(1)
            shares = [
                Fraction(amount, lend) / weight
                for resource, amount in self._over.items()
                if (lend := self._lendable.get(resource, 0)) > 0
            ]
            self._vector = tuple(sorted(shares, reverse=True))
        return self._vector

    def borrows_any(self, frs: Iterable[FlavorResource]) -> bool:
        """Is one of these pairs held beyond quota."""
        return bool(self.borrowed) and not set(self.borrowed).isdisjoint(frs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        return self.infinite == other.infinite and self._num * other._den == other._num * self._den

    def __lt__(self, other: Share) -> bool:
        if self.infinite != other.infinite:
            return other.infinite
        return self._num * other._den < other._num * self._den

    def __hash__(self) -> int:
        return hash((self.infinite, self.weighted))

    def __repr__(self) -> str:
        value = "infinite" if self.infinite else str(self.weighted)
        return f"Share({value}, dominant={self.dominant!r})"


Moves = Iterable[tuple["QuotaNode", Iterable[tuple[FlavorResource, int]]]]
"""Usage of several queues."""

NOTHING_BORROWED = Share(over={}, lendable={}, weight=Fraction(1), borrowed=())
"""The share of whoever holds nothing beyond quota."""


class QuotaNode:
    """A ClusterQueue or Cohort in the tree. Structure and quota are fixed; `usage` moves by `move_all` only.

    `spec` is None for a cohort that is only named by its members. `subtree`, `local` and `usage` hold amounts per
    (flavor, resource); a pair that is missing is zero. `height` is 0 for a queue, else the longest way down to one.
    `in_cycle`: the way to the root runs into a cycle of cohorts; such a node offers nothing and has no parent.
    """

    __slots__ = (
        "_in_sight",
        "_leaves",
        "_lendable",
        "_over",
        "_path",
        "_plain",
        "_potential",
        "_shares",
        "children",
        "height",
        "in_cycle",
        "is_queue",
        "label",
        "limited",
        "local",
        "name",
        "parent",
        "quotas",
        "root",
        "spec",
        "subtree",
        "usage",
        "weight",
    )

    def __init__(self, name: str, spec: ClusterQueue | Cohort | None, *, is_queue: bool) -> None:
        self.name = name
        self.label = f"{'queue' if is_queue else 'cohort'}:{name}"
        self.is_queue = is_queue
        self.spec = spec
        self.weight = Fraction(1) if spec is None else spec.weight
        self.quotas: dict[FlavorResource, Quota] = {} if spec is None else quotas_of(spec.groups)
        self.limited = any(quota.borrowing_limit is not None for quota in self.quotas.values())
        """Does it set any borrowing limit."""
        self.parent: QuotaNode | None = None
        self.children: tuple[QuotaNode, ...] = ()
        self.height = 0
        self.in_cycle = False
        self.subtree: dict[FlavorResource, int] = {}
        self.local: dict[FlavorResource, int] = {}
        self.usage: dict[FlavorResource, int] = {}
        self.root = self
        self._path: tuple[QuotaNode, ...] = (self,)
        self._plain = False
        """On the way to the root nothing is local, and nothing limits borrowing: only the root's quota counts."""
        self._in_sight = False
        """So it is, and nothing in the whole tree is local: whatever anybody gives back, everybody could take."""
        self._potential: dict[FlavorResource, int] = {}
        self._lendable: dict[str, int] | None = None
        self._shares: dict[_Asked, Share] = {}
        self._over: frozenset[FlavorResource] | None = None
        """What was asked about the usage, until it moves."""
        self._leaves: tuple[QuotaNode, ...] | None = None

    def __repr__(self) -> str:
        return f"<{'queue' if self.is_queue else 'cohort'} {self.name}>"

    def path(self) -> tuple[QuotaNode, ...]:
        """From this node up to its root, both included."""
        return self._path

    def queues(self) -> tuple[QuotaNode, ...]:
        """The ClusterQueues of the subtree, in order of the tree."""
        if self._leaves is None:
            below = tuple(leaf for child in self.children for leaf in child.queues())
            self._leaves = (self,) if self.is_queue else below
        return self._leaves

    def subtree_nodes(self) -> Iterator[QuotaNode]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.subtree_nodes()

    # ------------------------------------------------------------ amounts

    def nominal_of_all(self) -> dict[FlavorResource, int]:
        """Quota of this node and of all below it, with what lending limits keep to its owners."""
        out: dict[FlavorResource, int] = {}
        for node in self.subtree_nodes():
            for fr, quota in node.quotas.items():
                out[fr] = out.get(fr, 0) + quota.nominal
        return out

    def held_by_all(self) -> dict[FlavorResource, int]:
        """What the ClusterQueues of the subtree hold, on whatever quota."""
        out: dict[FlavorResource, int] = {}
        for leaf in self.queues():
            for fr, amount in leaf.usage.items():
                out[fr] = out.get(fr, 0) + amount
        return out

    def local_quota(self, fr: FlavorResource) -> int:
        """Quota that the lending limit keeps out of the parent's sight."""
        return self.local.get(fr, 0)

    def local_available(self, fr: FlavorResource) -> int:
        """Local quota that is not used."""
        return max(0, self.local.get(fr, 0) - self.usage.get(fr, 0))

    def balance(self, fr: FlavorResource) -> int:
        """What this node can still take, borrowing included; negative after quota was cut below usage."""
        if self.in_cycle:
            return 0
        if self._plain:
            root = self.root
            left = root.subtree.get(fr, 0) - root.usage.get(fr, 0)
            for node in self._path:
                if node is not root and (used := node.usage.get(fr, 0)) < 0:
                    left -= used
            return left
        parent, used = self.parent, self.usage.get(fr, 0)
        assert parent is not None  # the path of a root is plain
        above = parent.balance(fr)
        if not self.local and not self.limited:
            return above + max(0, -used)
        local = self.local.get(fr, 0)
        quota = self.quotas.get(fr)
        if quota is not None and quota.borrowing_limit is not None:
            shared = self.subtree.get(fr, 0) - local
            above = min(above, shared - max(0, used - local) + quota.borrowing_limit)
        return max(0, local - used) + above

    def available(self, fr: FlavorResource) -> int:
        """`balance`, never below zero."""
        return max(0, self.balance(fr))

    def potential(self, fr: FlavorResource) -> int:
        """What this node could hold at most with nobody else there. Depends on quota only."""
        known = self._potential.get(fr)
        if known is not None:
            return known
        if self.in_cycle:
            amount = 0
        elif self.parent is None:
            amount = self.subtree.get(fr, 0)
        else:
            amount = self.local.get(fr, 0) + self.parent.potential(fr)
            quota = self.quotas.get(fr)
            if quota is not None and quota.borrowing_limit is not None:
                amount = min(amount, self.subtree.get(fr, 0) + quota.borrowing_limit)
        if fr in self.root.subtree:  # keeps the cache as small as the tree's quota
            self._potential[fr] = amount
        return amount

    def borrowed(self, fr: FlavorResource) -> int:
        """What the subtree holds beyond its own quota; 0 for a root, which has nobody to borrow from."""
        return 0 if self.parent is None else max(0, self.usage.get(fr, 0) - self.subtree.get(fr, 0))

    def lent_by_children(self) -> Iterator[tuple[QuotaNode, dict[FlavorResource, int]]]:
        """Of the quota of each child, what its siblings hold. Nobody knows whose quota a borrower holds: the cohort's
        own counts first, then the unused quota of each member in equal parts."""
        over: dict[FlavorResource, int] = {}
        idle: list[tuple[QuotaNode, dict[FlavorResource, int]]] = []
        unused: dict[FlavorResource, int] = {}
        for child in self.children:
            mine: dict[FlavorResource, int] = {}
            for fr in {**child.subtree, **child.usage}:
                local = child.local.get(fr, 0)
                left = child.subtree.get(fr, 0) - local - max(0, child.usage.get(fr, 0) - local)
                if left < 0:
                    over[fr] = over.get(fr, 0) - left
                else:
                    mine[fr] = left
                    unused[fr] = unused.get(fr, 0) + left
            idle.append((child, mine))
        given = {
            fr: min(max(0, amount - (self.quotas[fr].nominal if fr in self.quotas else 0)), unused.get(fr, 0))
            for fr, amount in over.items()
        }
        for child, mine in idle:
            yield child, {fr: given[fr] * left // unused[fr] for fr, left in mine.items() if left and given.get(fr)}

    def over(self) -> frozenset[FlavorResource]:
        """The pairs that are held beyond quota."""
        over = self._over
        if over is None:
            subtree = self.subtree
            over = self._over = frozenset([fr for fr, used in self.usage.items() if used > subtree.get(fr, 0)])
        return over

    def borrowing(self, frs: Iterable[FlavorResource]) -> bool:
        """Is any of the pairs held beyond quota."""
        over = self._over if self._over is not None else self.over()
        return bool(over) and not over.isdisjoint(frs)

    def exceeds(self, fr: FlavorResource, amount: int) -> bool:
        """Would `amount` more be beyond this subtree's quota."""
        return self.usage.get(fr, 0) + amount > self.subtree.get(fr, 0)

    def holds(self, usage: Usage) -> bool:
        """Would all of it be within this subtree's quota."""
        held, subtree = self.usage, self.subtree
        for fr, amount in usage.items():  # noqa: SIM110  (asked for every trial)
            if held.get(fr, 0) + amount > subtree.get(fr, 0):
                return False
        return True

    def risen(self, usage: Usage) -> dict[FlavorResource, int]:
        """What the parent would be charged with if `usage` were charged here."""
        out: dict[FlavorResource, int] = {}
        for fr, amount in usage.items():
            held, local = self.usage.get(fr, 0), self.local.get(fr, 0)
            delta = max(0, held + amount - local) - max(0, held - local)
            if delta:
                out[fr] = delta
        return out

    def borrowing_height(self, fr: FlavorResource, amount: int) -> tuple[int, bool]:
        """How far up `amount` more of `fr` must borrow: the height of the lowest subtree around this node whose own
        free quota holds it (0: no borrowing), and whether that subtree is smaller than the whole tree. When no
        subtree holds it, the height of the whole tree and False.
        """
        rest = amount
        for node in self._path:
            if not node.exceeds(fr, rest):
                return node.height, node.parent is not None
            rest -= node.local_available(fr)
        return self.root.height, False

    def limit_of(self, fr: FlavorResource, amount: int, *, first: bool = False) -> tuple[QuotaNode, ...]:
        """The nodes of the path at which a request of `amount` more ends: by their borrowing limit, or, the root, by
        its quota. Lowest first (and no other, with `first`); empty when the request fits."""
        ends: list[QuotaNode] = []
        rest = amount
        for node in self._path:
            used, local = node.usage.get(fr, 0), node.local.get(fr, 0)
            if node.parent is None:
                if node.in_cycle or rest > node.subtree.get(fr, 0) - used:
                    ends.append(node)
                break
            if used < local:
                rest -= local - used
            if rest <= 0:
                break
            quota = node.quotas.get(fr) if node.limited else None
            if quota is not None and quota.borrowing_limit is not None:
                bound = node.subtree.get(fr, 0) - local - max(0, used - local) + quota.borrowing_limit
                if rest > bound:
                    ends.append(node)
                    if first:
                        break
        return tuple(ends)

    def end_of(self, fr: FlavorResource, amount: int) -> QuotaNode | None:
        """The first of them."""
        return next(iter(self.limit_of(fr, amount, first=True)), None)

    def allowed_by(self, end: QuotaNode, fr: FlavorResource) -> int | None:
        """What the borrowing limit of a node on the path would let this one take now, whatever there is above that;
        None where it has none."""
        below = 0
        for node in self._path:
            used, local = node.usage.get(fr, 0), node.local.get(fr, 0)
            below += max(0, local - used)
            if node is end:
                quota = node.quotas.get(fr)
                if quota is None or quota.borrowing_limit is None:
                    break
                return below + node.subtree.get(fr, 0) - local - max(0, used - local) + quota.borrowing_limit
        return None

    def potential_end(self, fr: FlavorResource) -> QuotaNode:
        """The node that keeps `potential` from being more: by its borrowing limit, or the root, by its quota."""
        for node in self._path:
            above, quota = node.parent, node.quotas.get(fr)
            if above is not None and quota is not None and quota.borrowing_limit is not None:
                most = node.subtree.get(fr, 0) + quota.borrowing_limit
                if most <= node.local.get(fr, 0) + above.potential(fr):
                    return node
        return self.root

    def fits(self, usage: Usage) -> bool:
        """Could all of `usage` be added within quota."""
        return not any(amount > 0 and self.balance(fr) < amount for fr, amount in usage.items())

    def available_without(
        self, frs: Iterable[FlavorResource], held: Moves, total: Usage | None = None
    ) -> dict[FlavorResource, int]:
        """`available`, if this was gone that queues of the tree hold; `total`: what it adds up to, if that is known."""
        if not self._in_sight:
            with AsIf(held, -1):
                return {fr: self.available(fr) for fr in frs}
        freed = added_up(held) if total is None else total
        return {fr: max(0, self.balance(fr) + freed.get(fr, 0)) for fr in frs}

    def sees_all(self) -> bool:
        """Could this node take all that its root has left, whoever gives it back."""
        return self._in_sight and not any(min(node.usage.values(), default=0) < 0 for node in self._path[:-1])

    # ------------------------------------------------------------ shares

    def lendable(self) -> Mapping[str, int]:
        """Per resource, over all flavors of the tree: what this node could give its children in all."""
        known = self._lendable
        if known is None:
            known = {}
            for fr in self.root.subtree:
                known[fr[1]] = known.get(fr[1], 0) + self.potential(fr)
            self._lendable = known
        return known

    def standing(self) -> object:
        """The same object as long as the usage here has not moved, for whoever asked for a share since."""
        return self._shares

    def share(self, extra: Usage | None = None, resources: frozenset[str] | None = None) -> Share:
        """The weighted dominant share, as if `extra` were held by this node on top of its usage.

        `resources` restricts it to these (the ones that a contested gang asks for). A root's share is zero: it has
        nobody to borrow from. For a gang added at a queue below, `Tree.shares_with` follows it up the tree.
        """
        at = (resources, tuple(extra.items())) if extra else resources
        known = self._shares.get(at)
        if known is not None:
            return known
        over: dict[str, int] = {}
        borrowed: list[FlavorResource] = []
        share = NOTHING_BORROWED
        if self.parent is not None and (extra or self.over()):
            usage = self.usage
            for fr, quota in self.subtree.items():
                held = usage.get(fr, 0)
                if extra:
                    held += extra.get(fr, 0)
                if held > quota and (resources is None or fr[1] in resources):
                    over[fr[1]] = over.get(fr[1], 0) + held - quota
                    borrowed.append(fr)
            if borrowed:
                borrowed.sort()
                lendable = self.parent.lendable()
                share = Share(over=over, lendable=lendable, weight=self.weight, borrowed=tuple(borrowed))
        if len(self._shares) >= _KEPT:
            self._shares = {}
        self._shares[at] = share
        return share

    # ------------------------------------------------------------ building and moving

    def move_all(self, amounts: Iterable[tuple[FlavorResource, int]], sign: int) -> None:
        """Change the usage at this node by each amount `sign` times, and above it by as much as crosses the local
        quota."""
        path, plain = self._path, self._plain
        for node in path:
            node._over = None
            if node._shares:
                node._shares = {}
        for fr, amount in amounts:
            rest = amount * sign
            for node in path:
                usage = node.usage
                before = usage.get(fr, 0)
                after = before + rest
                if plain and after > 0 <= before:
                    usage[fr] = after
                    continue
                if after:
                    usage[fr] = after
                else:
                    usage.pop(fr, None)
                local = node.local.get(fr, 0)
                rest = max(0, after - local) - max(0, before - local)
                if not rest:
                    break

    def put_usage(self, usage: dict[FlavorResource, int]) -> None:
        """Another usage at this node alone, for a question; whoever puts it puts the old one back."""
        self.usage = usage
        self._over = None
        self._shares = {}

    def _settle(self) -> None:
        """Subtree quota, local quota and height of this node; children first."""
        self.subtree = {fr: quota.nominal for fr, quota in self.quotas.items()}
        for child in self.children:
            child._settle()
            for fr, amount in child.subtree.items():
                self.subtree[fr] = self.subtree.get(fr, 0) + amount - child.local.get(fr, 0)
            self.height = max(self.height, child.height + 1)
        for fr, quota in self.quotas.items():
            if quota.lending_limit is not None and self.subtree[fr] > quota.lending_limit:
                self.local[fr] = self.subtree[fr] - quota.lending_limit


class AsIf:
    """The tree with other usage, to be asked inside: `moves` are in it (sign 1), or out of it (-1).

    What the nodes held is put back as it was, with what was found out about it, and not computed back. So it may be
    entered again as long as the tree outside is the same, and knows then what was asked in it before. Whatever is moved
    inside must be moved back there, or is one of the moves from then on (of nodes that it was made with).
    """

    __slots__ = ("_books",)

    def __init__(self, moves: Moves, sign: int) -> None:
        books: dict[QuotaNode, _Book] = {}
        for node, amounts in moves:
            for at in node._path:
                if at not in books:
                    books[at] = (at, at.usage, at._shares, at._over)
                    at.usage, at._shares = at.usage.copy(), {}
            node.move_all(amounts, sign)
        self._books = list(books.values())
        self._exchange()

    def _exchange(self) -> None:
        books = self._books
        for i, (node, usage, shares, over) in enumerate(books):
            books[i] = (node, node.usage, node._shares, node._over)
            node.usage, node._shares, node._over = usage, shares, over

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()


_KEPT = 64
"""So many answers about one usage are kept: it may stand for days, while gangs of any size are refused."""
_Asked = frozenset[str] | None | tuple[frozenset[str] | None, tuple[tuple[FlavorResource, int], ...]]
"""Of which resources the share was asked, and with what more."""
_Book = tuple[QuotaNode, dict[FlavorResource, int], dict[_Asked, Share], frozenset[FlavorResource] | None]
"""The usage at a node, and what was asked about it."""


def added_up(held: Moves) -> dict[FlavorResource, int]:
    """All of it together."""
    out: dict[FlavorResource, int] = {}
    for _, amounts in held:
        for fr, amount in amounts:
            out[fr] = out.get(fr, 0) + amount
    return out


def quotas_of(groups: Iterable[ResourceGroup]) -> dict[FlavorResource, Quota]:
    """Quota per (flavor, resource) of a ClusterQueue or Cohort; of a pair named twice the first counts."""
    out: dict[FlavorResource, Quota] = {}
    for group in groups:
        for flavor in group.flavors:
            for resource, quota in flavor.quotas:
                out.setdefault((flavor.name, resource), quota)
    return out


class Tree:
    """All cohort trees of the cluster, and the ClusterQueues without a cohort, each its own root."""

    def __init__(self, queues: dict[str, QuotaNode], cohorts: dict[str, QuotaNode], roots: tuple[QuotaNode, ...]):
        self._queues = queues
        self._cohorts = cohorts
        self._roots = roots

    @classmethod
    def build(cls, queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort]) -> Tree:
        """A tree without usage. Never fails: a cohort that is only named is implicit, without quota or limits; a
        cycle flags every node whose way up runs into it; of two objects of one name the later counts."""
        cohort_nodes = {cohort.name: QuotaNode(cohort.name, cohort, is_queue=False) for cohort in cohorts}
        queue_nodes = {queue.name: QuotaNode(queue.name, queue, is_queue=True) for queue in queues}
        parents: dict[QuotaNode, str] = {}
        for node in (*queue_nodes.values(), *cohort_nodes.values()):
            spec = node.spec
            above = spec.cohort if isinstance(spec, ClusterQueue) else spec.parent if spec is not None else ""
            if above:
                parents[node] = above
        for above in parents.values():
            if above not in cohort_nodes:
                cohort_nodes[above] = QuotaNode(above, None, is_queue=False)

        sound: dict[QuotaNode, bool] = {}
        for start in (*cohort_nodes.values(), *queue_nodes.values()):
            walk: list[QuotaNode] = []
            on_walk: set[QuotaNode] = set()
            node = start
            while node not in sound and node not in on_walk:
                walk.append(node)
                on_walk.add(node)
                if node not in parents:
                    sound[node] = True
                    break
                node = cohort_nodes[parents[node]]
            verdict = sound.get(node, False)
            for seen in walk:
                sound[seen] = verdict

        members: dict[QuotaNode, list[QuotaNode]] = {}
        for node, above in parents.items():
            if sound[node]:
                node.parent = cohort_nodes[above]
                members.setdefault(node.parent, []).append(node)
            else:
                node.in_cycle = True
        every = sorted((*cohort_nodes.values(), *queue_nodes.values()), key=lambda node: (node.is_queue, node.name))
        for node, below in members.items():
            node.children = tuple(sorted(below, key=lambda child: (child.is_queue, child.name)))
        roots = tuple(node for node in every if node.parent is None)
        for root in roots:
            root._settle()
        lends_all = {root: not any(at.local for at in root.subtree_nodes()) for root in roots}
        for node in every:
            path = [node]
            while path[-1].parent is not None:
                path.append(path[-1].parent)
            node._path = tuple(path)
            node.root = path[-1]
            node._plain = not any(at.local or at.limited for at in path[:-1])
            node._in_sight = node._plain and not node.in_cycle and lends_all[node.root]
        return cls(
            {node.name: node for node in every if node.is_queue},
            {node.name: node for node in every if not node.is_queue},
            roots,
        )

    def queue(self, name: str) -> QuotaNode | None:
        return self._queues.get(name)

    def cohort(self, name: str) -> QuotaNode | None:
        return self._cohorts.get(name)

    def queues(self) -> Iterable[QuotaNode]:
        """All ClusterQueues, by name."""
        return self._queues.values()

    def cohorts(self) -> Iterable[QuotaNode]:
        """All Cohorts, implicit ones too, by name."""
        return self._cohorts.values()

    def roots(self) -> tuple[QuotaNode, ...]:
        """Nodes without a parent: cohorts first, then queues; each by name. Nodes in a cycle are among them."""
        return self._roots

    def lent(self) -> dict[QuotaNode, dict[FlavorResource, int]]:
        """Of the quota of each node, what its siblings hold; pairs and nodes that are missing lend nothing. Of all at
        once, for what one lends is found by a look at all its siblings."""
        above = (node for node in self._cohorts.values() if node.children)
        return {child: amounts for node in above for child, amounts in node.lent_by_children() if amounts}

    def add(self, node: QuotaNode, usage: Usage) -> None:
        """Charge `usage` at a queue, and above it as far as it exceeds what is local."""
        node.move_all(usage.items(), 1)

    def subtract(self, node: QuotaNode, usage: Usage) -> None:
        """The exact inverse of `add`."""
        node.move_all(usage.items(), -1)

    @staticmethod
    def shares_with(
        node: QuotaNode, usage: Usage, resources: frozenset[str] | None = None
    ) -> list[tuple[QuotaNode, Share]]:
        """The share of every node from `node` up to below the root, as if `usage` were charged at `node`."""
        return [(at, at.share(rest, resources)) for at, rest in Tree.rising(node, usage)]

    @staticmethod
    def rising(node: QuotaNode, usage: Usage) -> Iterator[tuple[QuotaNode, Usage]]:
        """The same nodes, and what of `usage` each of them would be charged with."""
        rest = usage
        while (above := node.parent) is not None:
            yield node, rest
            if above.parent is None:
                return
            node, rest = above, node.risen(rest)

    @staticmethod
    def share_without(
        node: QuotaNode,
        above: QuotaNode,
        usage: Iterable[tuple[FlavorResource, int]],
        resources: frozenset[str] | None = None,
    ) -> Share:
        """The share of `above`, on the path of `node`, as if this usage at `node` were gone."""
        rest: Usage = {fr: -amount for fr, amount in usage}
        while node is not above:
            assert node.parent is not None
            rest, node = node.risen(rest), node.parent
        return node.share(rest, resources)
