"""The lawful set of victims: who may be evicted for a gang, and which of them must be.

Everything is tried on the ledger and taken back. Candidates hold something that the gang could get only by eviction.
Those of its own queue may go by the queue's own policy; those of other queues only while their queue, and every cohort
between it and the common one, holds more than its quota of something of that.

There are three rules for the set: `classical`, where shares do not count, `fair`, where they do, and `lawful`, which
keeps the promises.
"""

from __future__ import annotations

from admission.engine.classical import Classical
from admission.engine.fair import Fair
from admission.engine.flavors import Assignment, Mode, Oracle
from admission.engine.lawful import Lawful
from admission.engine.model import ClusterQueue, FlavorResource, Usage
from admission.engine.quota import QuotaNode
from admission.engine.victims import Fits, Found, Preemptor


def targets(by: Preemptor, assignment: Assignment, fits: Fits | None = None) -> Found:
    """Whom to evict so that the gang gets what `assignment` wants in its queue.

    fits: is there room now, on nodes too; asked with victims removed. None: quota alone decides, and the search moves
    nothing but quota.
    """
    usage = {fr: amount for fr, amount in assignment.usage.items() if amount}
    return _search(by, usage, assignment.need_preemption(), fits)


def oracle(by: Preemptor, asked: dict[tuple[FlavorResource, int], Found]) -> Oracle:
    """What eviction could do for one (flavor, resource), by the same search; quota alone decides. asked: where to note
    what was found, by (flavor, resource) and amount."""

    def ask(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
        found = asked[fr, amount] = _search(by, {fr: amount}, frozenset((fr,)), None)
        if not found.enough:
            return Mode.NO_CANDIDATES, node.borrowing_height(fr, amount)[0]
        charges = by.ledger.charges
        keys = dict.fromkeys([*(key for key, _ in found.victims), *(sorted(by.leaving) if by.rules.promises else ())])
        own = any(charges[key].queue == by.queue for key, _ in found.victims)
        with by.ledger.as_if_gone(charges[key] for key in keys if key in charges):
            return Mode.PREEMPT if own else Mode.RECLAIM, node.borrowing_height(fr, amount)[0]

    return ask


def _search(by: Preemptor, usage: Usage, contested: frozenset[FlavorResource], fits: Fits | None) -> Found:
    node = by.ledger.tree.queue(by.queue)
    if node is None or not isinstance(node.spec, ClusterQueue):
        return Found()
    kind = Lawful if by.rules.promises else Fair if by.rules.fair_sharing else Classical
    search = kind(by, node, node.spec, dict(usage), contested, fits)
    mark = by.ledger.mark()
    try:
        return search.run()
    finally:
        by.ledger.rollback(mark)
