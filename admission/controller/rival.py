"""Whether Kueue's own controller leads over the same objects: two that decide about them harm jobs that run.

Its leader renews a Lease. As with our own (see `kube.lease`), clocks of two machines are not compared where it counts:
it leads while the Lease was seen to change within the duration that is written in it. A Lease that is found may be of a
Kueue that ended long ago, and nobody deletes it; one that was last renewed `STALE_MS` before by the API server's clock
is taken for that, so that a restart waits for nothing.

A Kueue without leader election, or with another name for its Lease, is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import structlog

from admission.kube.client import ApiError, Client, Forbidden, NotFound
from admission.kube.lease import LEASES, LeadershipLost, boot_time

log = structlog.get_logger("muster")

LOOK_S = 5.0
"""Between two looks."""
STALE_MS = 120_000
DURATION_S = 15.0
"""Of a Lease that names none."""


class RivalLeads(LeadershipLost):
    """Kueue's controller has come to lead: the work was ended."""


class Rival:
    """The leader of Kueue's controller. `holder` is its identity while it leads, else "".

    namespace: where Kueue runs. name: of its Lease. clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        *,
        clock: Callable[[], float] = boot_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.holder = ""
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
        """Why nothing is decided here; "" when Kueue does not lead."""
        return (
            f"Kueue leads ({self.holder}), or did a moment ago: stop its controller; this one begins by itself "
            f"when the Lease {self._name} in {self._namespace} is renewed no more"
            if self.holder
            else ""
        )

    async def gone(self) -> None:
        """Returns once it does not lead, or may not be looked at."""
        while await self.leads():
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
                    return bool(self.holder)
                await self._sleep(LOOK_S)
                continue
            self._looked = True
            return self._say(self._judged(lease.get("spec") or {}))

    def _judged(self, spec: dict[str, Any]) -> str:
        holder = str(spec.get("holderIdentity") or "")
        said = (holder, spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
        if not holder:
            self._until = float("-inf")
        elif said != self._seen:
            found_stale = self._seen is None and self._age_ms(spec) > STALE_MS
            lasts = float(spec.get("leaseDurationSeconds") or DURATION_S)
            self._until = float("-inf") if found_stale else self._clock() + lasts
        self._seen = said
        return holder

    def _age_ms(self, spec: dict[str, Any]) -> float:
        try:
            renewed = datetime.fromisoformat(str(spec["renewTime"]))
        except (KeyError, ValueError):
            return 0.0
        return self._client.clock.now() - renewed.timestamp() * 1000

    def _say(self, holder: str) -> bool:
        before, self.holder = self.holder, holder if self._clock() < self._until else ""
        if self.holder and not before:
            log.warning("waits for Kueue to end", why=self.why())
        elif before and not self.holder:
            log.info("Kueue leads no more", was=before)
        return bool(self.holder)
