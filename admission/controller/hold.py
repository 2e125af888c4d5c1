"""Which of the two holds jobs back here: the API server's own policies, or our webhook; and the proof that it does.

The proof is a server-side dry run: a Job with a queue label and `suspend: false` is offered to the API server, which
answers with what it would have stored. Held means `suspend: true`. The dry run stores nothing and makes no pod. Pins
are not proven by a dry run, for that would take the right to create pods: it is looked up that the policy that pins is
bound, and a second policy refuses a marked pod without its pin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import structlog

from admission.kube.client import ApiError, Client, Kind, NotFound
from admission.names import Names

log = structlog.get_logger("muster.hold")

Mode = Literal["policy", "webhook"]
_POLICIES = Kind("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", False)
_BINDINGS = Kind(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", False
)
_JOBS = Kind("batch", "v1", "jobs", "Job")


@dataclass(frozen=True, slots=True)
class Held:
    """What the proof found. `pins`: something gives pods their nodes as they are created."""

    mode: Mode
    holds: bool
    pins: bool
    message: str

    @property
    def reason(self) -> str:
        """Of the condition JobsHeld."""
        return ("HeldBy" if self.holds else "NotHeldBy") + self.mode.capitalize()


async def policies_bound(client: Client, policies: tuple[str, ...]) -> bool:
    """Are these mutating policies there, each with a binding of the same name? False too where the API is absent."""
    try:
        for name in policies:
            await client.get(_POLICIES.path(name=name))
            await client.get(_BINDINGS.path(name=name))
    except (NotFound, ApiError):
        return False
    return True


async def policies_served(client: Client) -> bool:
    """Does the API server have mutating policies at all (Kubernetes 1.36 and newer)?"""
    try:
        await client.get(_POLICIES.path())
    except NotFound:
        return False
    except ApiError:
        return True
    return True


async def prove(client: Client, names: Names, namespace: str, mode: Mode, *, pins: bool) -> Held:
    """Offer a labelled, unsuspended Job as a dry run and look whether it comes back suspended."""
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "muster-hold-proof-",
            "namespace": namespace,
            "labels": {names.queue_label: "proof"},
        },
        "spec": {
            "suspend": False,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [
                        {
                            "name": "proof",
                            "image": "proof",
                            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        }
                    ],
                }
            },
        },
    }
    try:
        answer = await client.create(_JOBS.path(namespace), job, dry_run=True, fenced=False)
    except ApiError as error:
        return Held(mode, False, pins, f"the dry run was refused: {error}")
    holds = bool((answer.get("spec") or {}).get("suspend"))
    message = f"a labelled Job is held by {mode}" if holds else f"a labelled Job was not held ({mode})"
    if not holds and mode == "policy":
        message += "; are the policies installed? kubectl apply -f config/policies.yaml, or the chart's"
    return Held(mode, holds, pins, message)
