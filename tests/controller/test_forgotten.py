"""What was decided and could not be written counts no more."""

from __future__ import annotations

import pytest

from admission.controller.actuate import Options
from admission.controller.app import Controller
from admission.controller.lifecycle import Settings
from admission.controller.world import ORPHAN, JobKey
from admission.engine.model import KUEUE, Admission, Admit, Assumed, Decision, Evict, EvictReason, Put, Workload
from admission.kube.client import Client
from admission.names import KUEUE_GROUP, Names

GANG = Workload(namespace="team", name="w", uid="u", queue="main")
JOB: JobKey = (ORPHAN, "team", "w")
ADMIT = Admit(key=GANG.key, uid="u", admission=Admission(cluster_queue="q", pod_sets=()))
EVICT = Evict(key=GANG.key, uid="u", reason=EvictReason.IN_CLUSTER_QUEUE, preemptor=("team", "x"), preemptor_uid="x")


@pytest.mark.parametrize(
    ("decided", "failed", "holds"),
    [([ADMIT], ADMIT, False), ([ADMIT, EVICT], ADMIT, False), ([ADMIT, EVICT], EVICT, True)],
    ids=["admission", "admission, and its eviction is under way", "eviction of what was just admitted"],
)
async def test_what_could_not_be_written_holds_nothing(decided: list[Decision], failed: Decision, holds: bool) -> None:
    """An eviction is decided while the admission before it is being written; if that fails, there is nothing to evict,
    and the gang stands in line again rather than to hold room for ever."""
    controller = Controller(
        Client.plain("http://127.0.0.1:1"),
        names=Names(KUEUE_GROUP),
        rules=KUEUE,
        settings=Settings(),
        options=Options(can_rank=False),
        workloads_only=True,
    )
    state = controller.state
    state.apply(Put(GANG))
    for decision in decided:
        state.apply(Assumed(decision))
    if failed is ADMIT and EVICT in decided:
        controller._decisions[JOB] = EVICT
    controller._forget(JOB, failed)
    gang = state.workload(GANG.key)
    assert gang is not None
    assert (gang.admission is not None) == holds
    assert not gang.evicted
    assert not controller._decisions
