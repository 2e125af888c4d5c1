"""What policies and roles depend on of an installation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from admission.jobs.hold import IDENTITIES, Identities
from admission.jobs.requests import LIMITS, Limits

PROVEN_IN = "default"
"""Where the controller proves by a dry run that jobs are held: a namespace that every cluster has and governs."""


@dataclass(frozen=True)
class Settings:
    """See the module."""

    identities: Identities = IDENTITIES
    limits: Limits = LIMITS
    governed_namespaces: Mapping[str, Any] | None = None
    """Label selector of namespaces in which every job is held, labelled or not; None: only labelled jobs are."""
    defaulted_namespaces: Mapping[str, Any] | None = None
    """Label selector of namespaces whose LocalQueue `default`, where there is one, jobs without a label get; None:
    nowhere."""
    namespace: str = "muster-system"
    service_account: str = "muster-controller"

    labels: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "muster"})
