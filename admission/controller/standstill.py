"""Are pods made for nobody? Then whoever makes them stands still, or a webhook of somebody refuses them all, and that
says nothing of any gang: none is sent back for it, for nobody else could use its quota either.

It is so where gangs of more than one namespace have had no pod for a while in which not one pod of any gang was made:
of all gangs, or of all whose jobs are of one kind, as where JobSet's controller is away. A rule that holds in one
namespace (its ResourceQuota, its PodSecurity level) does not look like that, nor does one gang that asks for too
much. It ends with the first pod that is made: who lacks pods from then on does so for a reason of its own, and is part
of no other standstill. Whether pods come to their nodes, or kube-scheduler stands still, is seen in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator

from admission.jobs.kinds import JobKey

WINDOW_MS = 30_000
GANGS, NAMESPACES = 3, 2
"""So many gangs, of so many namespaces, are the fewest that are everybody."""
_ALL = ""


class Standstill:
    """Told of every gang that lacks pods, and of every pod of a gang that is made (or comes to its node). `by_kind`: it
    may be one of those alone whose jobs are of one kind."""

    def __init__(self, *, by_kind: bool) -> None:
        self._by_kind = by_kind
        self._lacking: dict[str, dict[JobKey, tuple[int, bool]]] = {}
        """Namespace -> job -> (since when its gang has waited, ms since the epoch; may it be part of a standstill)."""
        self._made_at: dict[str, int] = {}
        """Kind of job (or all) -> when the last pod was made."""
        self._ended_at: dict[str, int] = {}

    def lacks(self, job: JobKey, since: int, *, counts: bool = True) -> None:
        """`counts`: it has had no pod since then. One that has may wait for its own Job, which makes the next pod ever
        later after each that failed."""
        there = self._lacking.setdefault(job[1], {})
        held = there.get(job)
        if held is None or held[0] != since or not counts:
            there[job] = since, counts

    def lacks_none(self, job: JobKey) -> None:
        there = self._lacking.get(job[1])
        if there is not None and there.pop(job, None) is not None and not there:
            del self._lacking[job[1]]

    def made(self, kind: str, at: int, now: int) -> bool:
        """A pod was made for a gang whose job is of this kind, at that time. Does a standstill end with it."""
        ends = False
        for scope in self._scopes(kind):
            if at > self._made_at.get(scope, 0):
                if self._stands(scope, now):
                    self._ended_at[scope], ends = now, True
                self._made_at[scope] = at
        for jobs in self._lacking.values() if ends else ():
            some = [key for key in jobs if not self._by_kind or key[0] == kind]
            jobs.update((key, (jobs[key][0], False)) for key in some)
        return ends

    def over_since(self, kind: str, now: int) -> int | None:
        """Since when pods are made for gangs whose jobs are of this kind, ms since the epoch, 0 where nothing is known
        of a standstill; None while it lasts."""
        if any(self._stands(scope, now) for scope in self._scopes(kind)):
            return None
        return max(self._ended_at.get(scope, 0) for scope in self._scopes(kind))

    def ended_at(self, job: JobKey, now: int) -> int | None:
        """The same for one job: where it lacks nothing, when the last one ended."""
        if job in self._lacking.get(job[1], ()):
            return self.over_since(job[0], now)
        return max(self._ended_at.get(scope, 0) for scope in self._scopes(job[0]))

    def lacking(self) -> list[JobKey]:
        return sorted(key for jobs in self._lacking.values() for key in jobs)

    def gangs(self, now: int) -> int:
        """How many gangs lack pods because of it."""
        stands = {kind for kind in (*self._kinds(), _ALL) if self._stands(kind, now)}
        return sum(not stands.isdisjoint(self._scopes(key[0])) for jobs in self._lacking.values() for key in jobs)

    def _scopes(self, kind: str) -> tuple[str, ...]:
        return (kind, _ALL) if self._by_kind else (_ALL,)

    def _kinds(self) -> set[str]:
        return {key[0] for jobs in self._lacking.values() for key in jobs}

    def _stands(self, scope: str, now: int) -> bool:
        before = now - WINDOW_MS
        if self._made_at.get(scope, 0) > before or len(self._lacking) < NAMESPACES:
            return False
        namespaces: set[str] = set()
        for gangs, namespace in enumerate(self._waiting(scope, before), 1):
            namespaces.add(namespace)
            if gangs >= GANGS and len(namespaces) >= NAMESPACES:
                return True
        return False

    def _waiting(self, scope: str, before: int) -> Iterator[str]:
        """Namespaces of those who have waited since then, at most `GANGS` of each: looked at for each job that is."""
        for namespace, jobs in self._lacking.items():
            found = 0
            for key, (since, counts) in jobs.items():
                if counts and since <= before and scope in (_ALL, key[0]):
                    yield namespace
                    found += 1
                    if found == GANGS:
                        break
