"""The lawful set of victims: who may be evicted for a gang, and which of them must be.

Everything is tried on the ledger and taken back. Candidates hold something that the gang could get only by eviction.
Those of its own queue may go by the queue's own policy; those of other queues only while their queue, and every cohort
between it and the common one, holds more than its quota of something of that.

There are three rules for the set: `classical`, where shares do not count, `fair`, where they do, and `lawful`, which
keeps the promises.
"""

from __future__ import annotations

from collections.abc import Collection

from admission.engine.classical import Classical
from admission.engine.fair import Fair
from admission.engine.flavors import Assignment, Mode, Oracle
from admission.engine.lawful import Lawful
from admission.engine.ledger import Ledger
from admission.engine.model import ClusterQueue, FlavorResource, Key, Rules, Usage, Workload
from admission.engine.quota import QuotaNode
from admission.engine.victims import Fits, Found, Holders, LocalUsage


def targets(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    assignment: Assignment,
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    fits: Fits | None = None,
    local_usage: LocalUsage | None = None,
) -> Found:
    """Whom to evict so that `gang` gets what `assignment` wants in `queue`.

    holders: the gangs that hold quota of a ClusterQueue. leaving: those of all queues that were evicted already. fits:
    is there room now, on nodes too; asked with victims removed. None: quota alone decides, and the search moves nothing
    but quota.
    """
    return _search(
        ledger,
        gang,
        queue,
        assignment.usage,
        assignment.need_preemption(),
        rules,
        now=now,
        holders=holders,
        leaving=leaving,
        fits=fits,
        local_usage=local_usage,
    )


def oracle(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    local_usage: LocalUsage | None = None,
    asked: dict[tuple[FlavorResource, int], Found] | None = None,
) -> Oracle:
    """What eviction could do for one (flavor, resource), by the same search; quota alone decides. asked: where to note
    what was found, by (flavor, resource) and amount."""

    def ask(node: QuotaNode, fr: FlavorResource, amount: int) -> tuple[Mode, int]:
        found = _search(
            ledger,
            gang,
            queue,
            {fr: amount},
            frozenset((fr,)),
            rules,
            now=now,
            holders=holders,
            leaving=leaving,
            local_usage=local_usage,
        )
        if asked is not None:
            asked[fr, amount] = found
        if not found.enough:
            return Mode.NO_CANDIDATES, node.borrowing_height(fr, amount)[0]
        keys = dict.fromkeys([*(key for key, _ in found.victims), *(sorted(leaving) if rules.promises else ())])
        own = any(ledger.charges[key].queue == queue for key, _ in found.victims)
        with ledger.as_if_gone(ledger.charges[key] for key in keys if key in ledger.charges):
            return Mode.PREEMPT if own else Mode.RECLAIM, node.borrowing_height(fr, amount)[0]

    return ask


def _search(
    ledger: Ledger,
    gang: Workload,
    queue: str,
    usage: Usage,
    contested: frozenset[FlavorResource],
    rules: Rules,
    *,
    now: int,
    holders: Holders,
    leaving: Collection[Key] = (),
    fits: Fits | None = None,
    local_usage: LocalUsage | None = None,
) -> Found:
    node = ledger.tree.queue(queue)
    if node is None or not isinstance(node.spec, ClusterQueue):
        return Found()
    kind = Lawful if rules.promises else Fair if rules.fair_sharing else Classical
    search = kind(
        ledger, gang, node, node.spec, dict(usage), contested, rules, now, holders, leaving, fits, local_usage
    )
    mark = ledger.mark()
    try:
        return search.run()
    finally:
        ledger.rollback(mark)
