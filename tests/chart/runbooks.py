"""What runbooks of alerts have somebody look for."""

from __future__ import annotations

import re

from charts.monitoring import ALERTS


def finds(alert: str, event: str) -> bool:
    """Does a line of the log with this event match what the runbook greps for?"""
    (runbook,) = [one.runbook for one in ALERTS if one.name == alert]
    (pattern,) = re.findall(r"grep (?:-E )?'([^']+)'", runbook)
    return re.search(pattern, event) is not None
