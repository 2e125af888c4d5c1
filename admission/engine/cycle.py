"""One decision: who is admitted, who must go for whom, and why the others wait.

`decide` opens a mark on the ledger, tries on the real book, and rolls back: what it wants is the Plan, and only the
events that follow make it true. (Charges of admissions stay in the book meanwhile, unseen: they are as good as taken
back, and need not be entered twice.) What it finds out about gangs that cannot go it leaves with the State as memos.

There are two ways to go through the queues, by `Rules.heads_per_queue`: `filling` (None), one gang at a time by the
tournament of shares, and `heads` (a number), so many gangs of each queue at once. Both look at a gang as `trial` says.
"""

from __future__ import annotations

from admission.engine.filling import Filling
from admission.engine.heads import Heads
from admission.engine.ledger import Charge
from admission.engine.model import Plan
from admission.engine.state import State

UNTOLD_PER_CYCLE = 10_000


def decide(state: State, now: int, step_budget: int) -> Plan:
    """What to do at `now` (ms since the epoch), with at most `step_budget` trials (at least one is made).

    Leaves the state as it found it, but for memos. `more`: call again at once, when the decisions are assumed.
    """
    ledger = state.ledger
    state.trying, began = None, ledger.nodes.effort.spent
    state.advance(now)
    run = (Filling if state.rules.heads_per_queue is None else Heads)(state, now, step_budget, began)
    mark = ledger.mark()
    charged: list[Charge] = []
    try:
        run.go()
        verdicts = list(run.verdicts)
        told = {verdict.key for verdict in verdicts}
        verdicts.extend(verdict for verdict in state.untold(UNTOLD_PER_CYCLE) if verdict.key not in told)
        state.planned(run.decisions, run.charged)
        charged.extend(charge for _, _, charge in run.charged.values())
    finally:
        ledger.leave(mark, charged)
    return Plan(
        decisions=tuple(run.decisions),
        verdicts=tuple(verdicts),
        steps=run.cost,
        more=run.more,
        next_at=state.next_alarm(),
    )
