"""Which of the two holds jobs back here: the API server's own policies, or our webhook; and the proof that it does.

The proof is a server-side dry run: a Job with a queue label and `suspend: false` is offered to the API server, which
answers with what it would have stored. Held means `suspend: true`. The dry run stores nothing and makes no pod. Pins
are not proven by a dry run, for that would take the right to create pods: it is looked up that the policy that pins is
bound, and a second policy refuses a marked pod without its pin.

What was proven may be taken away later, so a leader proves again now and then. What fails is said, and admission goes
on: gangs are still decided, started and pinned as before, and what slips past the hold is suspended again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from admission.controller.resources import PRIORITY_CLASSES, of_jobs
from admission.jobs.kinds import JOB
from admission.kube.client import ApiError, Client, Kind, NotFound, TooManyRequests, Unavailable, unanswered
from admission.names import Names

Mode = Literal["policy", "webhook"]
_POLICIES = Kind("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", False)
_BINDINGS = Kind(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", False
)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Held:
    """What the proof found."""

    mode: Mode
    holds: bool
    found: str
    error: str = ""
    """What the API server answered instead of a Job."""

    @property
    def message(self) -> str:
        """Of the condition JobsHeld."""
        return f"{self.found} ({self.error})" if self.error else self.found

    @property
    def reason(self) -> str:
        """Of the condition JobsHeld."""
        return ("HeldBy" if self.holds else "NotHeldBy") + self.mode.capitalize()

    def is_news_after(self, before: Held | None) -> bool:
        """Does it say something else than that: an error may name a port, which is another each time."""
        return before is None or self._said() != before._said()

    def _said(self) -> tuple[str, bool, str, str]:
        return self.mode, self.holds, self.found, _NUMBERS.sub("", self.error)


def says_nothing(error: Exception) -> bool:
    """Is it an API server that is busy or away? That says nothing of what it was asked. A webhook that fails does: the
    server says 500 then."""
    return unanswered(error) or (isinstance(error, ApiError) and error.status in (429, 503, 504))


async def policies_bound(client: Client, policies: tuple[str, ...]) -> bool:
    """Are these mutating policies there, each with a binding of the same name? False too where the API is absent.
    Raises ApiError where the server does not say."""
    try:
        for name in policies:
            await client.get(_POLICIES.path(name=name))
            await client.get(_BINDINGS.path(name=name))
    except ApiError as error:
        if says_nothing(error):
            raise
        return False
    return True


async def missing(client: Client, wanted: Sequence[Mapping[str, Any]], *, where_served: bool = False) -> list[str]:
    """Which of these policies, bindings and PriorityClasses are not there, as "Kind name".

    where_served: of a kind that the API server does not have none is missed. Raises ApiError."""
    there: dict[str, set[str]] = {}
    for kind in sorted({one["kind"] for one in wanted}):
        plural = kind.lower().removesuffix("policy") + "policies" if kind.endswith("Policy") else kind.lower() + "s"
        guard = Kind("admissionregistration.k8s.io", "v1", plural, kind, False)
        of = PRIORITY_CLASSES if kind == PRIORITY_CLASSES.kind else guard
        try:
            listed = await client.get(of.path())
        except NotFound:
            if where_served:
                continue
            listed = {}
        there[kind] = {one["metadata"]["name"] for one in listed.get("items") or ()}
    return [
        f"{one['kind']} {one['metadata']['name']}"
        for one in wanted
        if one["kind"] in there and one["metadata"]["name"] not in there[one["kind"]]
    ]


async def policies_served(client: Client) -> bool:
    """Does the API server have mutating policies at all (Kubernetes 1.36 and newer)? Raises Unavailable,
    TooManyRequests or TimeoutError when it does not say."""
    try:
        await client.get(_POLICIES.path())
    except NotFound:
        return False
    except (Unavailable, TooManyRequests):
        raise
    except ApiError:
        return True
    return True


async def prove(
    client: Client, names: Names, namespace: str, mode: Mode, *, wanted: Sequence[Mapping[str, Any]] = ()
) -> Held:
    """Offer a labelled, unsuspended Job as a dry run and look whether it comes back suspended.

    wanted: the policies and bindings that must be there, and the PriorityClass of gangs, without which the API server
    refuses each of their pods. Where one is not, nothing is held for sure. Raises ApiError where the server does not
    say.
    """
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
    again = ""
    try:
        # First, for where a part is gone the rest may refuse the dry run, in words meant for tenants.
        if gone := await missing(client, wanted, where_served=mode == "webhook"):
            some = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
            again = f", and not all that guards it is there: install {some} again"
            if mode == "policy" and not await policies_served(client):
                again = (
                    ", and this API server has no MutatingAdmissionPolicies: upgrade it to Kubernetes 1.36, or hold by "
                    "webhook (helm upgrade, with hold: auto or webhook)"
                )
        answer = await client.create(of_jobs(JOB).path(namespace), job, dry_run=True, fenced=False)
    except ApiError as error:
        if says_nothing(error):
            raise
        said = f"the dry run of a Job in namespace {namespace} was refused, so that nobody knows{again}"
        return Held(mode, False, said, str(error))
    holds = bool((answer.get("spec") or {}).get("suspend"))
    message = f"a labelled Job is held by {mode}" if holds else f"a labelled Job was not held ({mode})"
    if again:
        return Held(mode, False, message + again)
    if not holds and mode == "policy":
        message += "; are the policies installed? kubectl apply -f config/policies.yaml, or the chart's"
    return Held(mode, holds, message)
