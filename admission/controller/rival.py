"""Whether another controller leads over the same objects, Kueue's own or one of Muster's in another namespace: two that
decide about them harm jobs that run.

Its leader renews a Lease. As with our own (see `kube.lease`), clocks of two machines are not compared where it counts:
it leads while the Lease was seen to change within the duration that is written in it. A Lease that is found may be of a
Kueue that ended long ago, and nobody deletes it; one that was last renewed `STALE_MS` before by the API server's clock
is taken for that, so that a restart waits for nothing.

One without leader election, or with another name for its Lease, is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import msgspec
import structlog

from admission.kube.client import ApiError, Client, Forbidden, NotFound
from admission.kube.lease import LEASES, LeadershipLost, boot_time, renewed_ago_ms

log = structlog.get_logger("muster")

LOOK_S = 5.0
"""Between two looks."""
ANSWER_S = 5.0
"""So long a search for others may take ..."""
TRIES = 3
"""... and so often it is tried where none was ever seen: a Lease is not left alone because nobody answers that."""
NOES = 3
"""In so many looks in a row one that leads has to be without the rights: an API server that begins, or a role that is
written anew, says so once, and then two would lead."""
WATCH_S = 30.0
"""Between two looks while this one leads."""
STALE_MS = 120_000
DURATION_S = 15.0
"""Of a Lease that names none."""


class RivalLeads(LeadershipLost):
    """Another controller has come to lead: the work was ended."""


class Rival:
    """The leader of another controller. `holder` is its identity while it leads, else "".

    namespace: where it runs. name: of its Lease. who: what it is called. clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        *,
        who: str = "Kueue",
        clock: Callable[[], float] = boot_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.holder = ""
        self._who = who
        self._client = client
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._sleep = sleep
        self._seen: tuple[object, ...] | None = None
        self._until = float("-inf")
        """While it counts as leading."""
        self._looked = False
        self._told = False
        """That it may not be looked at."""

    def why(self) -> str:
        """Why nothing is decided here; "" when the other does not lead."""
        return (
            f"{self._who} leads ({self.holder}), or did a moment ago: stop its controller; this one begins by itself "
            f"when the Lease {self._name} in {self._namespace} is renewed no more"
            if self.holder
            else ""
        )

    async def gone(self) -> None:
        """Returns once it does not lead, or may not be looked at."""
        led = False
        while True:
            leads = await self.leads()
            # One that is handed over is nobody's for some seconds.
            if not (leads or led):
                return
            led = leads
            await self._sleep(LOOK_S)

    async def watch(self) -> None:
        """Raises RivalLeads once it leads; does not return."""
        while not await self.leads():
            await self._sleep(LOOK_S)
        raise RivalLeads(self.why())

    async def leads(self) -> bool:
        """A look. Without an answer, what the last one said; the first is waited for."""
        while True:
            try:
                lease = await self._client.get(LEASES.path(self._namespace, self._name), attempts=1)
            except NotFound:
                lease = {}
            except Forbidden as error:
                if not self._told:
                    log.warning("may not see whether Kueue leads, and goes on", error=str(error))
                self._told = True
                lease = {}
            except (ApiError, TimeoutError) as error:
                log.debug("not seen whether Kueue leads", error=str(error) or type(error).__name__)
                if self._looked:
                    self.unheard()
                    return bool(self.holder)
                await self._sleep(LOOK_S)
                continue
            self._looked = True
            return self.judge(lease.get("spec") or {})

    def judge(self, spec: dict[str, Any]) -> bool:
        """Does it lead, by what its Lease says now."""
        return self._say(self._judged(spec))

    def unheard(self) -> None:
        """Nobody answered: it could not be renewed either, and has all of its duration anew once it is seen again."""
        if self.holder:
            self._seen = ()

    def _judged(self, spec: dict[str, Any]) -> str:
        holder = str(spec.get("holderIdentity") or "")
        said = (holder, spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        if not holder:
            self._until = float("-inf")
        elif said != self._seen:
            found_stale = self._seen is None and renewed_ago_ms(spec, self._client.clock.now()) > STALE_MS
            lasts = float(spec.get("leaseDurationSeconds") or DURATION_S)
            self._until = float("-inf") if found_stale else self._clock() + lasts
        self._seen = said
        return holder

    def _say(self, holder: str) -> bool:
        before, self.holder = self.holder, holder if self._clock() < self._until else ""
        if self.holder and not before:
            log.warning(f"waits for {self._who} to end", why=self.why())
        elif before and not self.holder:
            log.info(f"{self._who} leads no more", was=before)
        return bool(self.holder)


class Others:
    """Controllers of Muster that lead from other namespaces than `home`, by Leases of this name. clock: see `Rival`.

    may_lead: has the controller of this namespace the rights to? Everybody who may edit a namespace may write Leases
    there, and would keep all replicas from leading; so a Lease alone counts for nothing. (One that was started by hand,
    with somebody's own rights, is not seen, and told in the log.)
    """

    def __init__(
        self,
        client: Client,
        home: str,
        name: str,
        may_lead: Callable[[str], Awaitable[bool]],
        *,
        clock: Callable[[], float] = boot_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._home = home
        self._name = name
        self._may_lead = may_lead
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[str, Rival] = {}
        self._refused: dict[str, str] = {}
        """Namespaces whose Leases count for nothing, and the holders of these."""
        self._led: set[str] = set()
        """Namespaces that had the rights once: they are asked about for as long as there is a Lease."""
        self._noes: dict[str, int] = {}
        """For how many looks in a row a namespace was said to have no rights."""
        self._told = False
        """That they may not be looked for."""

    def why(self) -> str:
        """Why this one does not campaign; "" when it may."""
        waits = next((found for rival in self._seen.values() if (found := rival.why())), "")
        return f"{waits[0].upper()}{waits[1:]}. A cluster holds one Muster: was --namespace left out?" if waits else ""

    async def gone(self) -> None:
        """Returns once none leads, or they may not be looked for."""
        without = unanswered = 0
        while True:
            lead = await self._lead()
            without, unanswered = (without + 1 if lead is False else 0), (unanswered + 1 if lead is None else 0)
            # One that is handed over is nobody's for some seconds.
            if without == 2 or (not self._seen and (without or unanswered == TRIES)):
                return
            await self._sleep(LOOK_S)

    async def watch(self) -> None:
        """Raises RivalLeads once one leads that goes before this one; does not return."""
        while True:
            await self._sleep(WATCH_S)
            if not await self._lead():
                continue
            # Of two that believe each other one stays; one with somebody's own rights is believed by none.
            first = min(namespace for namespace, rival in self._seen.items() if rival.holder)
            with suppress(ApiError, TimeoutError):
                if first < self._home or not await self._may_lead(self._home):
                    raise RivalLeads(self.why())

    async def _counts(self, namespace: str) -> bool | None:
        """May a controller of this namespace lead? None where nobody answers: of one that is known that changes
        nothing."""
        try:
            return await self._may_lead(namespace)
        except (ApiError, TimeoutError):
            if namespace not in self._seen:
                raise
            return None

    async def _lead(self) -> bool | None:
        """A look: does one lead? None where nobody answers."""
        found: dict[str, dict[str, Any]] = {}
        pages = self._client.list_pages(
            LEASES.path(), field_selector=f"metadata.name={self._name}", timeout=ANSWER_S, attempts=1
        )
        try:
            async with asyncio.timeout(ANSWER_S), aclosing(pages):
                async for page in pages:
                    for lease in map(msgspec.json.decode, page.items):
                        found[lease["metadata"]["namespace"]] = lease.get("spec") or {}
                holders = {where: str(spec.get("holderIdentity") or "") for where, spec in found.items()}
                # Whoever led once may have been removed, and have left a namespace that somebody else may edit.
                asked = sorted(
                    where
                    for where, holder in holders.items()
                    if where != self._home
                    and (holder or where not in self._seen)
                    and (where in self._led or self._refused.get(where) != holder)
                )
                counts = {where: await self._counts(where) for where in asked}
        except Forbidden as error:
            if not self._told:
                log.warning("may not see whether another Muster leads, and goes on", error=str(error))
            self._told = True
            return False
        except (ApiError, TimeoutError) as error:
            log.debug("not seen whether another Muster leads", error=str(error) or type(error).__name__)
            for rival in self._seen.values():
                rival.unheard()
            return None
        for namespace, may_lead in counts.items():
            if may_lead is None:
                continue
            self._noes[namespace] = 0 if may_lead else self._noes.get(namespace, 0) + 1
            if not may_lead and (namespace not in self._seen or self._noes[namespace] >= NOES):
                if namespace not in self._refused:
                    log.warning(
                        "a Lease of this name elsewhere counts for nothing: no controller there has the rights",
                        namespace=namespace,
                        holder=holders[namespace][:100],
                    )
                self._refused[namespace] = holders[namespace]
                self._seen.pop(namespace, None)
            elif namespace not in self._seen:
                self._led.add(namespace)
                self._seen[namespace] = Rival(
                    self._client, namespace, self._name, who="another Muster", clock=self._clock, sleep=self._sleep
                )
        lead = [rival.judge(found.get(namespace, {})) for namespace, rival in self._seen.items()]  # each is told of it
        return any(lead)
