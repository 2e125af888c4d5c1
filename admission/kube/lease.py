"""One leader at a time, and no write by one that is none any more.

A Lease says who leads and when that was last renewed. Clocks of two machines are never compared: a candidate notes
when, by its own monotonic clock, it saw the lease change, and takes it over once it has not changed for the duration
written in it. The leader counts from before it sent its last successful renewal, so its own reckoning is always the
earlier one.

    may_write()    now < last renewal sent + renew_deadline (< lease_duration): the fence of every write
    takeover       the new leader writes nothing until the old one's duration and the time limit of a write have passed
                   since the lease last changed; then nothing of the old leader can still be under way
    lead(work)     the work and the renewals live and die together; the lease is given up only after the work has ended,
                   its last writes have had a moment to be answered, and what was left without an answer has timed out

Who leads must see what it decides on. A candidate that has not seen it all yet leaves the lease to others, and a leader
that is cut off from the news gives it up, so that one who hears them may lead. Where nobody takes it within `ASIDE_S`,
none does hear them: then who has known it all once leads on with that, and steps aside again ever later.

The clock counts time in suspend where the system can (a frozen machine must wake up fenced). A holder's identity is
new with each start, so that a restarted process is a new leader like any other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from math import inf
from typing import Any
from uuid import uuid4

import structlog

from admission.kube.client import ApiError, Client, Conflict, Fenced, Kind, NotFound
from admission.kube.flow import Told, between

_log = structlog.get_logger(__name__)

SETTLE_S = 2.0
"""So long writes that are under way may take to end when the work is over: most are answered within milliseconds, and
one that is cut off keeps the next leader waiting for a write's whole time limit."""
CUT_OFF_S = 30.0
"""So long a leader may be without news: an API server that begins, or has much to do, is back within it."""
ASIDE_S = 10.0
"""So long, or for two retries, a lease is left to those who are not cut off: they look for it every retry."""
LATE_S = 1.0
"""A process that notices something so late did not run: no single piece of its work takes as long."""
LOOK_S = 0.2
"""Between two looks whether all is seen that was not."""
LONGEST_S = 3600.0
"""Between two times that a leader steps aside, where nobody else can do better."""
GIVEN_UP_S = 1
"""Duration of a Lease that its holder gave up, as client-go has it, too: the least that the API server takes."""
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")


def boot_time() -> float:
    """Monotonic seconds that also pass while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class LeadershipLost(Exception):  # noqa: N818
    """The lease was not renewed in time, or another took it. The work was cancelled."""


def renewed_ago_ms(spec: dict[str, Any], now: float) -> float:
    """For how long a Lease of this spec has not been renewed; 0 where it does not say. now: ms since the epoch."""
    try:
        renewed = datetime.fromisoformat(str(spec["renewTime"]))
    except (KeyError, ValueError):
        return 0.0
    return max(0.0, now - renewed.timestamp() * 1000) if renewed.tzinfo else 0.0


class LeaderElector:
    """Campaigns for one Lease. `holder` and `leading` are for metrics. Times are seconds.

    unled: for how long the Lease had been renewed by nobody as it was taken last, by the API server's clock: while
    nobody can write that, others cannot write what they have to say either.

    cut_off: for how long this replica has had no news of what it decides on, and of what: 0 while it has; infinite
    before it has seen all of it once, for then it cannot lead.
    on_change: called with the new holder's identity whenever it is seen to change ("" when nobody leads).
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        *,
        identity: str | None = None,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry: float = 2.0,
        cut_off: Callable[[], tuple[float, str]] = lambda: (0.0, ""),
        on_change: Callable[[str], None] | None = None,
        clock: Callable[[], float] = boot_time,
        wall: Callable[[], datetime] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not lease_duration > renew_deadline > retry > 0:
            raise ValueError("lease_duration > renew_deadline > retry > 0 must hold")
        self.identity = f"{identity or 'muster'}_{uuid4()}"
        self.holder = ""
        self.unled = 0.0
        self._client = client
        self._namespace = namespace
        self._name = name
        self._duration = lease_duration
        self._deadline = renew_deadline
        self._retry = retry
        self._cut_off = cut_off
        self._on_change = on_change
        self._clock = clock
        self._wall = wall or client.clock.wall
        self._sleep = sleep
        self._renewed_at: float | None = None  # when the last successful renewal was sent; None: not leading
        self._write_from = 0.0
        # What was last seen of the lease, and how long another holder may count on it.
        self._seen: dict[str, Any] | None = None
        self._seen_spec: tuple[object, ...] | None = None
        self._other_until = float("-inf")
        self._wrote = False
        self._free_since: float | None = None  # nobody holds it, and it could be had
        self._told = False  # that it is, and that this replica cannot take it
        self._taken_at = 0.0
        self._patience = CUT_OFF_S
        self._unreached = Told(clock=clock)

    @property
    def leading(self) -> bool:
        return self._renewed_at is not None and self._clock() < self._renewed_at + self._deadline

    def may_write(self) -> bool:
        return self.leading and self._clock() >= self._write_from

    def fence(self) -> None:
        """For `Client.fence`. Raises Fenced unless `may_write`."""
        if not self.may_write():
            raise Fenced(f"{self.identity} does not lead")

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for the lease, then runs `work` for as long as it is held.

        Returns when the work returns; raises what the work raised, or LeadershipLost. In each case, and when cancelled,
        the work has ended before the lease is released.
        """
        self._wrote = False
        try:
            while not await self._to_its_end(self._try()):
                await self._rest()
            _log.info("the lease is held", lease=self._name, identity=self.identity)
        except BaseException:
            await self._release()  # cancelled, perhaps with the lease just taken
            raise
        await self._hold(work)

    async def _rest(self) -> None:
        """Until the next try: sooner for one that has now seen what it lacked."""
        left = between(self._retry, self._retry * 1.2)
        while left > LOOK_S and self._cut_off()[0] == inf:
            await self._sleep(LOOK_S)
            if self._cut_off()[0] < inf:
                return
            left -= LOOK_S
        await self._sleep(left)

    async def _hold(self, work: Callable[[], Awaitable[None]]) -> None:
        async def begin() -> None:
            # Renewal goes on while the former leader's last writes run out.
            while (wait := self._write_from - self._clock()) > 0:
                await self._sleep(wait)
            await work()

        doing = asyncio.ensure_future(begin())
        renewing = asyncio.ensure_future(self._renew())
        try:
            await asyncio.wait({doing, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if renewing.done():
                self._renewed_at = None  # fenced before anything of the work can run again
            for task in (doing, renewing):
                task.cancel()
            results = await asyncio.gather(doing, renewing, return_exceptions=True)
            # Not reached when cancelled a second time while the work still runs: then the lease runs out by itself.
            await self._release()
        # A failure of the work is the better explanation, unless it is only the fence it ran into.
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | Fenced):
                raise result
        for result in results:
            if isinstance(result, Fenced):
                raise result

    async def _renew(self) -> None:
        """Returns never; raises LeadershipLost."""
        while True:
            assert self._renewed_at is not None
            expires = self._renewed_at + self._deadline
            await self._sleep(max(0.0, min(self._retry, expires - self._clock())))
            if (late := self._clock() - expires) >= 0:
                # Who runs comes here when it expires, however long the API server takes.
                still = f", noticed {late:.0f} s late: this process stood still (CPU?)" if late >= LATE_S else ""
                raise LeadershipLost(f"not renewed in time{still}")
            took = await self._to_its_end(self._try(expires))
            if not took and self.holder not in {"", self.identity}:
                raise LeadershipLost(f"taken by {self.holder}")
            self._step_aside()

    def _step_aside(self) -> None:
        """Raises LeadershipLost for one that has been cut off for too long since it leads."""
        seconds, of = self._cut_off()
        if not seconds:
            self._patience = CUT_OFF_S
        elif min(seconds, self._clock() - self._taken_at) >= self._patience:
            self._patience = min(self._patience * 2, LONGEST_S)
            raise LeadershipLost(f"{of} for {seconds:.0f} s: the lease is left to others")

    def _leaves_it(self, now: float) -> bool:
        """Is a lease that could be had left to others? It is free, as far as is known."""
        if self._free_since is None:
            self._free_since, self._told = now, False
        seconds, of = self._cut_off()
        if now < self._free_since + max(ASIDE_S, 2 * self._retry):
            return seconds >= CUT_OFF_S
        if seconds == inf and not self._told:
            self._told = True
            _log.warning("nobody leads, and this replica cannot", lease=self._name, why=of)
        return seconds == inf

    # --- one try -----------------------------------------------------------------------------------------------------

    async def _to_its_end(self, attempt: Coroutine[Any, Any, bool]) -> bool:
        """Also when cancelled: cut off, it could still be applied after the lease was read for its release, which would
        fail then, or find it another's."""
        trying = asyncio.ensure_future(attempt)
        try:
            return await asyncio.shield(trying)
        except asyncio.CancelledError:
            await trying
            raise

    async def _try(self, expires: float | None = None, *, again: bool = True) -> bool:
        """One attempt to take or renew the lease; no API failure escapes it."""
        limit = self._deadline / 2 if expires is None else max(0.01, min(self._deadline / 2, expires - self._clock()))
        try:
            async with asyncio.timeout(limit):
                took = await self._attempt(limit)
            if (lasted := self._unreached.over()) is not None:
                _log.info("lease reached again", lease=self._name, after_s=round(lasted, 1))
            return took
        except (ApiError, TimeoutError) as error:
            # Not believed any more: what was written, if anything, is read next time.
            self._seen = None
            if not isinstance(error, Conflict):
                level = _log.warning if self._unreached.due() else _log.debug
                level("lease not reached", lease=self._name, error=str(error) or type(error).__name__)
            if expires is not None and again and isinstance(error, Conflict | NotFound):
                # Another may lead, whatever our clock says: who wrote it, or took it away, is looked up at once.
                return await self._try(expires, again=False)
            return False

    async def _attempt(self, limit: float) -> bool:
        options: dict[str, Any] = {"timeout": limit, "urgent": "lease", "fenced": False, "attempts": 1}
        path = LEASES.path(self._namespace, self._name)
        lease = self._seen if self._renewed_at is not None else None  # the leader's own last write needs no reading
        if lease is None:
            try:
                lease = await self._client.get(path, timeout=limit, urgent="lease", attempts=1)
            except NotFound:
                lease = None
            self._observe(lease)
        sent_at = self._clock()
        spec = ({} if lease is None else lease.get("spec")) or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self.identity} and sent_at < self._other_until:
            self._free_since = None
            return False
        if self._renewed_at is None and self._leaves_it(sent_at):
            return False
        self._wrote = True
        if lease is None:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(transitions=0, acquired=None),
            }
            written = await self._client.create(LEASES.path(self._namespace), body, **options)
        else:
            mine = holder == self.identity
            transitions = int(spec.get("leaseTransitions") or 0) + (0 if mine else 1)
            body = dict(lease)
            body["spec"] = spec | self._spec(transitions, spec.get("acquireTime") if mine else None)
            written = await self._client.put(path, body, **options)  # its resourceVersion makes it conditional
        if self._renewed_at is None:
            self._write_from = max(sent_at, self._other_until + self._client.write_timeout)
            self._taken_at, self._free_since = sent_at, None
            self.unled = renewed_ago_ms(spec, self._wall().timestamp() * 1000) / 1000
        self._renewed_at = sent_at
        self._seen = written
        self._tell(self.identity)
        return True

    def _observe(self, lease: dict[str, Any] | None) -> None:
        """Notes what the lease says and when it came to say so."""
        now = self._clock()
        spec = (lease or {}).get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        signature = (holder, spec.get("renewTime"), spec.get("leaseTransitions"), spec.get("acquireTime"))
        if lease is None or not holder:
            # Given up in good order: its holder's work has ended. Taken from a holder that was seen, or deleted under
            # one, by somebody: it may go on until its time is over, which `_other_until` remembers.
            if spec.get("leaseDurationSeconds") == GIVEN_UP_S:
                self._other_until = float("-inf")
            elif self._seen_spec is None and spec.get("renewTime"):
                self._other_until = now + self._lasts(spec)
        elif holder != self.identity and signature != self._seen_spec:
            self._other_until = now + self._lasts(spec)
        self._seen_spec = signature
        self._tell(holder)

    def _lasts(self, spec: dict[str, Any]) -> float:
        return max(float(spec.get("leaseDurationSeconds") or 0), self._duration)

    def _tell(self, holder: str) -> None:
        if holder != self.holder:
            self.holder = holder
            if self._on_change is not None:
                self._on_change(holder)

    def _spec(self, transitions: int, acquired: str | None) -> dict[str, Any]:
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _release(self) -> None:
        """Gives the lease up, if it is still ours, so that the next need not wait. Failing to is harmless."""
        if not self._wrote:
            return
        # Fenced from here on; a write that is cut off may still be applied until its time is over.
        self._renewed_at = None
        self._seen = None
        await self._sleep(await self._client.settle(SETTLE_S))
        path = LEASES.path(self._namespace, self._name)
        try:
            async with asyncio.timeout(self._retry):
                lease = await self._client.get(path, timeout=self._retry, urgent="lease", attempts=1)
                spec = lease.get("spec") or {}
                if spec.get("holderIdentity") != self.identity:
                    return
                body = dict(lease)
                body["spec"] = spec | {"holderIdentity": "", "leaseDurationSeconds": GIVEN_UP_S}
                await self._client.put(path, body, timeout=self._retry, urgent="lease", fenced=False, attempts=1)
                self._tell("")
        except (ApiError, TimeoutError) as error:
            _log.warning("lease not released", lease=self._name, error=str(error) or type(error).__name__)
