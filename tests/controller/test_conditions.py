"""What the next write says of conditions, from those that are stored."""

from __future__ import annotations

import pytest

from admission.controller.conditions import Condition, with_conditions

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
NOW_MS = 1_767_225_660_000


def entry(kind: str, status: str, reason: str, since: str, message: str = "", generation: int = 1) -> dict[str, object]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


@pytest.mark.parametrize(
    ("stored", "changes", "says"),
    [
        pytest.param(
            [],
            [("QuotaReserved", True, "QuotaReserved", "")],
            [entry("QuotaReserved", "True", "QuotaReserved", NOW, generation=2)],
            id="new",
        ),
        pytest.param(
            [entry("QuotaReserved", "False", "WaitingForQuota", THEN)],
            [("QuotaReserved", False, "OnHold", "stopped")],
            [entry("QuotaReserved", "False", "OnHold", THEN, "stopped", 2)],
            id="another reason is no transition",
        ),
        pytest.param(
            [entry("Evicted", "True", "Preempted", THEN), entry("Preempted", "True", "InClusterQueue", THEN)],
            [("Evicted", False, "QuotaReserved", ""), ("Preempted", False, "QuotaReserved", "")],
            [
                entry("Evicted", "False", "QuotaReserved", NOW, generation=2),
                entry("Preempted", "False", "QuotaReserved", NOW, generation=2),
            ],
            id="preempted, and over",
        ),
        pytest.param(
            [entry("Evicted", "True", "NodeFailures", THEN)],
            [("Evicted", False, "QuotaReserved", ""), ("Preempted", False, "QuotaReserved", "")],
            [entry("Evicted", "False", "QuotaReserved", NOW, generation=2)],
            id="never preempted: nothing is over",
        ),
        pytest.param(
            [entry("Theirs", "True", "Said", THEN)], [], [entry("Theirs", "True", "Said", THEN)], id="of others"
        ),
    ],
)
def test_conditions(stored: list[dict[str, object]], changes: list[Condition], says: list[dict[str, object]]) -> None:
    assert with_conditions({"conditions": stored, "unknown": 1}, changes, NOW_MS, 2) == {"conditions": says}
