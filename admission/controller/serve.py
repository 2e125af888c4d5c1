"""One replica, from its start to its end: prove the hold, keep the copies, campaign, lead.

The order matters: nothing is written before the lease is held, and the hold is proven before the first job could need
it. A replica that loses the lease goes on watching and campaigns again; one whose loops fail ends, to be started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from admission.api.config import Configuration
from admission.controller import policies
from admission.controller.actuate import Options
from admission.controller.app import Controller
from admission.controller.installation import PROVEN_IN, Settings
from admission.controller.proof import Held, policies_bound, policies_served, prove
from admission.controller.rival import Others, Rival, RivalLeads
from admission.controller.setup import (
    default_queue,
    limits_of,
    looked_at,
    policy_settings,
    rules_of,
    settings_of,
    tuning_of,
)
from admission.jobs.hold import Identities
from admission.kube.access import Access, Unfenced
from admission.kube.client import ApiError, Client, Fenced, Forbidden, TooManyRequests, Unavailable
from admission.kube.flow import Told
from admission.kube.lease import LeaderElector, LeadershipLost
from admission.names import JOBS_HELD

log = structlog.get_logger("muster")

AGAIN_S = 2.0
"""Between two looks whether the API server is there, or holds jobs now: right after an install it may not have read its
policies yet."""
_Found = TypeVar("_Found")

PROOF_S = 10.0
"""So long a proof may take: nobody is admitted before the first one."""


@dataclass
class Replica:
    """A running replica, for those who show it."""

    controller: Controller
    elector: LeaderElector | None
    held: Held | None = None
    rival: Rival | None = None
    """Kueue's leader, where its objects are managed."""
    others: Others | None = None
    """Leaders of Muster in other namespaces."""
    reviews: bool = False
    """Its webhook holds jobs: one that is not ready is not asked, and none could be created."""

    def ready(self) -> str:
        """Why this replica could not lead at once, or review at once what it must; "" when it could."""
        beside = () if self.reviews else (self.rival, self.others)
        waits = (one.why() for one in beside if one is not None)
        return self.controller.numbers.ready() or next(filter(None, waits), "")


def told_by_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody waits for, in a line as any other. A connection that the other side closed while this process stood
    still is no error: whoever asked over it is told so itself."""
    error = context.get("exception")
    closed = isinstance(error, OSError) or (isinstance(error, RuntimeError) and "handler is closed" in str(error))
    if closed and ("transport" in context or "protocol" in context):
        log.debug("a connection broke", said=context.get("message", ""), error=str(error))
    else:
        log.error("error that nobody waited for", said=context.get("message", ""), exc_info=error)


async def serve(
    client: Client,
    config: Configuration,
    *,
    namespace: str,
    identity: str | None = None,
    webhook_url: str | None = None,
    started: Callable[[Replica], Awaitable[None]] | None = None,
) -> None:
    """Run until cancelled.

    namespace: where it runs, and its lease lives. webhook_url: how the API server reaches this replica when it
    does not run behind a Service. started: called once, when the copies begin to fill.
    """
    names = config.names
    mode = await _mode(client, config)
    limits = limits_of(config)
    pins = _mutating(policies.pins(names, Settings()))
    can_rank = mode == "webhook" or await _once_it_answers(lambda: policies_bound(client, pins), "how pods are pinned")
    controller = Controller(
        client,
        names=names,
        rules=rules_of(config),
        settings=settings_of(config),
        options=Options(can_rank, limits),
        tuning=tuning_of(config),
        default_queue=default_queue(config),
        looked_at=looked_at(config, namespace),
        lost_after_ms=round(config.node_loss_grace_period * 1000),
        # Where policies hold, the API server is new enough to have them; Kueue's kinds have others.
        judges=mode == "webhook" or names.as_kueue,
    )
    elector: LeaderElector | None = None
    others: Others | None = None
    if config.leader_election.leader_elect:
        home, lease = config.leader_election.resource_namespace or namespace, config.leader_election.resource_name
        reviews, account = Access(Unfenced(client)), policy_settings(config, namespace).service_account

        def may_lead(where: str) -> Awaitable[bool]:
            user = {"username": f"system:serviceaccount:{where}:{account}"}
            return reviews.allowed(user, names.group, "workloads", "patch", "status")

        others = Others(client, home, lease, may_lead)
        elector = LeaderElector(
            client,
            home,
            lease,
            identity=identity,
            lease_duration=config.leader_election.lease_duration,
            renew_deadline=config.leader_election.renew_deadline,
            retry=config.leader_election.retry_period,
            cut_off=controller.cut_off,
        )
        client.fence = elector.fence
    rival = Rival(client, config.kueue_namespace, names.rival_lease) if names.rival_lease else None
    replica = Replica(controller, elector, rival=rival, others=others, reviews=mode == "webhook")
    whose = policy_settings(config, namespace)
    restore: Callable[[], Awaitable[None]] | None = None
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.watch(), name="watch")
        if mode == "webhook":
            from admission.controller.hooks import SERVICE, Hooks

            service = None if webhook_url else (namespace, SERVICE)
            hooks = Hooks(
                client,
                names,
                namespace=namespace,
                host=config.webhook.host,
                port=config.webhook.port,
                service=service,
                url=webhook_url or "",
                identities=Identities(tuple(config.job_controller_users), tuple(config.jobset_controller_users)),
                limits=limits,
                governed_namespaces=whose.governed_namespaces,
                defaulted_namespaces=whose.defaulted_namespaces,
                has_queue=controller.has_queue,
                folder=Path(config.webhook.cert_dir)
                if config.webhook.certificate == "files" and config.webhook.cert_dir
                else None,
            )
            controller.certificates["webhook"] = lambda: hooks.ends_at
            await _once_it_answers(hooks.start, "the webhook's certificate")
            restore = hooks.restore
            group.create_task(hooks.run(), name="webhook")
        if started is not None:
            await started(replica)

        guards = [policies.priority_class(names)]
        guards += policies.policies(names, whose) if mode == "policy" else policies.beside_webhook(names, whose)
        guards += [
            {"kind": kind, "metadata": {"name": name}}
            for name in config.required_policies
            for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        ]

        async def prove_it() -> None:
            can = mode == "webhook" or await policies_bound(client, pins)
            held = await prove(client, names, PROVEN_IN, mode, wanted=guards)
            if held.is_news_after(replica.held):
                (log.info if held.holds else log.warning)("hold", mode=mode, message=held.message)
                replica.held = held
            held = replica.held or held
            controller.proven((JOBS_HELD, held.holds, held.reason, held.message), Options(can, limits))
            if restore is not None and not held.holds:
                await restore()

        async def try_to_prove() -> None:
            # What was found last counts on where the API server does not say.
            with suppress(ApiError, OSError, TimeoutError):
                async with asyncio.timeout(PROOF_S):
                    await prove_it()

        async def prove_on() -> None:
            while True:
                proven = replica.held is not None and replica.held.holds
                await asyncio.sleep(config.hold_proof_period if proven else min(AGAIN_S, config.hold_proof_period))
                await try_to_prove()

        async def work() -> None:
            await try_to_prove()
            # Longer than it takes another to lead, where the last one was killed.
            unheard = elector is not None and elector.unled > 2 * config.leader_election.lease_duration
            await _together(controller.lead(unheard=unheard), prove_on())

        group.create_task(_campaign(elector, rival, others, work), name="campaign")


async def serve_workloads(
    client: Client, config: Configuration, *, started: Callable[[Replica], Awaitable[None]] | None = None
) -> None:
    """Queueing and admission of Workloads alone, until cancelled: no kinds of jobs, no hold, no lease.

    For whoever makes Workloads and runs what is behind them; one at a time, for nothing keeps a second one out.
    """
    controller = Controller(
        client,
        names=config.names,
        rules=rules_of(config),
        settings=settings_of(config),
        options=Options(can_rank=False),
        tuning=tuning_of(config),
        looked_at=looked_at(config),
        lost_after_ms=round(config.node_loss_grace_period * 1000),
        workloads_only=True,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.watch(), name="watch")
        if started is not None:
            await started(Replica(controller, None))
        group.create_task(controller.lead(), name="lead")


async def _mode(client: Client, config: Configuration) -> Any:
    if config.hold != "auto":
        return config.hold
    # Where the API server could hold by itself, no webhook is put in the way: missing policies are said to be missing.
    served = await _once_it_answers(lambda: policies_served(client), "how jobs are held")
    return "policy" if served else "webhook"


async def _once_it_answers(ask: Callable[[], Awaitable[_Found]], what: str) -> _Found:
    """The answer, when the API server is there to give one: who starts while it is away waits for it. So does who may
    not have what it needs: one that ended would be started ever later, when that is back."""
    told = Told()
    while True:
        try:
            return await ask()
        except (Unavailable, TooManyRequests, TimeoutError, Forbidden) as error:
            tell = log.warning if told.due() else log.debug
            whom = "what it may not have" if isinstance(error, Forbidden) else "the API server"
            tell(f"waits for {whom}", what=what, error=str(error))
            await asyncio.sleep(AGAIN_S)


def _mutating(objects: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(one["metadata"]["name"] for one in objects if one["kind"] == "MutatingAdmissionPolicy")


async def _campaign(
    elector: LeaderElector | None, rival: Rival | None, others: Others | None, work: Callable[[], Awaitable[None]]
) -> None:
    alone = work if rival is None else partial(_beside, rival, work)
    if others is not None:
        alone = partial(_watched, others, alone)
    while True:
        if others is not None:
            await others.gone()
        if rival is not None:
            await rival.gone()
        try:
            if elector is None:
                return await alone()
            await elector.lead(alone)
        except (LeadershipLost, Fenced) as lost:
            log.warning("leadership lost", why=str(lost))


async def _beside(rival: Rival, work: Callable[[], Awaitable[None]]) -> None:
    """The work, until Kueue comes to lead. Raises RivalLeads then, once the work has ended."""
    if await rival.leads():
        raise RivalLeads(rival.why())
    await _together(work(), rival.watch())


async def _watched(others: Others, work: Callable[[], Awaitable[None]]) -> None:
    await _together(work(), others.watch())


async def _together(*parts: Awaitable[None]) -> None:
    """Until one of them ends, and with it the others. Raises what one of them did, the earlier first."""
    running = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in running:
            task.cancel()
        done = await asyncio.gather(*running, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
