"""A cluster in which every write succeeds: the engine's State, the objects it was made of, and a clock. For tests.

`settle` plays cycles until nothing is decided any more; gangs that were evicted leave between two cycles. What the
promises say about single decisions is checked at each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from admission.engine.cycle import decide
from admission.engine.ledger import Charge, Held, charge_of, claim_of
from admission.engine.model import (
    MUSTER,
    Admit,
    Assumed,
    Claim,
    ClusterQueue,
    Cohort,
    Detail,
    Evict,
    EvictReason,
    Flavor,
    FlavorQuotas,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Node,
    Plan,
    PodSet,
    PodShape,
    PodUsage,
    Put,
    Quota,
    Reason,
    ResourceGroup,
    Rules,
    Standing,
    Strategies,
    Verdict,
    Workload,
)
from admission.engine.quota import QuotaNode
from admission.engine.state import State
from admission.names import HOSTNAME_LABEL

SECOND = 1000
START = 1_000_000 * SECOND
BUDGET = 100_000
INITIAL_TOO = replace(MUSTER, strategies=(Strategies.FINAL, Strategies.INITIAL))
"""Muster's rules with the option by which a small gang may send a large one."""


def queue(
    name: str,
    cohort: str = "",
    flavors: Iterable[tuple[str, dict[str, int | Quota]]] = (),
    **more: object,
) -> ClusterQueue:
    """A ClusterQueue that takes every namespace; (flavor, {resource: nominal or Quota}) in order."""
    return ClusterQueue(name=name, cohort=cohort, groups=groups(flavors), namespace_selector=LabelSelector(), **more)  # type: ignore[arg-type]


def groups(flavors: Iterable[tuple[str, dict[str, int | Quota]]]) -> tuple[ResourceGroup, ...]:
    rows = [
        (name, tuple((res, q if isinstance(q, Quota) else Quota(q)) for res, q in quotas.items()))
        for name, quotas in flavors
    ]
    if not rows:
        return ()
    covered = tuple(res for res, _ in rows[0][1])
    return (ResourceGroup(covered, tuple(FlavorQuotas(name, quotas) for name, quotas in rows)),)


def gang(name: str, local: str, pods: int = 1, **more: object) -> Workload:
    """`each` (default one gpu): what one pod asks for. `created` counts from START."""
    each = more.pop("each", {"gpu": 1})
    assert isinstance(each, dict)
    shape = PodShape(requests=tuple(sorted(each.items())))
    created = more.pop("created", 0)
    assert isinstance(created, int)
    values: dict[str, object] = {"uid": f"uid-{name}", "created": created % START + START, **more}
    return Workload("ns", name, queue=local, pod_sets=(PodSet("main", pods, shape),), **values)  # type: ignore[arg-type]


def node(name: str, **allocatable: int) -> Node:
    amounts = {"pods": 100, **allocatable}
    return Node(name, (("kubernetes.io/hostname", name),), allocatable=tuple(sorted(amounts.items())))


def never_fits(verdict: Verdict) -> bool:
    """Would not even empty nodes hold it: none, or those that may be used now."""
    return any(not misfit.fits_when_empty for misfit in verdict.why.misfits)


def _without_counts(verdict: Verdict) -> Verdict:
    # What never fits is told of nodes as they are and as they would be empty, where that is not the same.
    misfits = tuple(
        dict.fromkeys(replace(one, placeable=0, excluded=(), sound=0, beyond=()) for one in verdict.why.misfits)
    )
    return replace(verdict, why=replace(verdict.why, misfits=misfits))


class Town:
    def __init__(self, *values: object, rules: Rules = MUSTER, now: int = START + 773) -> None:
        """now: no clock stands at a whole second."""
        self.rules = rules
        self.now = now
        self.state = State(rules)
        self.objects: dict[tuple[str, object], object] = {}
        self.evictions: Counter[Key] = Counter()
        self.log: list[object] = []
        self.budget = BUDGET
        """Trials of one decision."""
        self.twin = False
        """Compare each Plan with that of a State made anew from the same objects."""
        self.put(*values)

    # -- objects

    def put(self, *values: object) -> None:
        for value in values:
            key = value.key if isinstance(value, Workload | PodUsage) else getattr(value, "name")  # noqa: B009
            if isinstance(value, LocalQueue):
                key = (value.namespace, value.name)
            self.objects[type(value).__name__, key] = value
            self.state.apply(Put(value))  # type: ignore[arg-type]
            if isinstance(value, ClusterQueue) and ("LocalQueue", ("ns", value.name)) not in self.objects:
                self.put(LocalQueue("ns", value.name, value.name))

    def remove(self, kind: type, key: object) -> None:
        if self.objects.pop((kind.__name__, key), None) is not None:
            self.state.apply(Gone(kind, key))  # type: ignore[arg-type]

    def gangs(self) -> list[Workload]:
        return [value for value in self.objects.values() if isinstance(value, Workload)]

    def gang(self, name: str) -> Workload:
        value = self.objects["Workload", ("ns", name)]
        assert isinstance(value, Workload)
        return value

    def admitted(self) -> list[str]:
        return sorted(gang.name for gang in self.gangs() if gang.admission is not None and not gang.evicted)

    def pending(self) -> list[str]:
        return sorted(gang.name for gang in self.gangs() if gang.admission is None)

    def fresh(self, order: Iterable[tuple[str, object]] | None = None) -> State:
        """A State of the same objects, told in another order."""
        state = State(self.rules)
        for name in order or reversed(list(self.objects)):
            state.apply(Put(self.objects[name]))  # type: ignore[arg-type]
        return state

    # -- time

    def cycle(self) -> Plan:
        """One decision, checked, and written."""
        plan = self.decide()
        self.check(plan)
        if self.twin:
            self.compare(plan)
        for decision in plan.decisions:
            self.log.append(decision)
            self.state.apply(Assumed(decision))  # type: ignore[arg-type]
        for decision in plan.decisions:
            value = self.objects["Workload", decision.key]
            assert isinstance(value, Workload)
            self.put(self.written(value, decision))
        return plan

    def decide(self) -> Plan:
        """Where its budget ends before anything is decided another one goes on, until one comes to its end."""
        for _ in range(len(self.gangs()) + len(self.objects) + 10):
            plan = decide(self.state, self.now, self.budget)
            if plan.decisions or not plan.more:
                return plan
        raise AssertionError(f"no end of decisions that decide nothing: {plan}")

    def compare(self, plan: Plan) -> None:
        """R12: a State that was told everything at once decides something exactly when this one does: nobody is hidden.
        (Which queue goes first may differ: here, who is known not to fit no longer stands for its queue, and what this
        very plan changed is looked at in the next cycle.) Where nothing is decided, both say the same of everybody."""
        other = self.fresh()
        again = decide(other, self.now, BUDGET)
        if bool(again.decisions) != bool(plan.decisions) and self.by_turns(again if again.decisions else plan):
            return
        assert bool(again.decisions) == bool(plan.decisions), (again.decisions, plan.decisions)
        if not again.decisions:
            stray = any(kind == "PodUsage" for kind, _ in self.objects)
            for key in self.state.workloads:
                mine, theirs = self.state.explain(key), other.explain(key)
                never = theirs is not None and never_fits(theirs)
                if key in self.state.memos.stale() or (stray and never):
                    self.same_reason(key, other)
                else:
                    told = self.told_as_first(key, mine, theirs) or self.other_trees_came(key, mine, theirs)
                    assert mine == theirs or told, (mine, theirs)

    def told_as_first(self, key: Key, mine: Verdict | None, theirs: Verdict | None) -> bool:
        """The first of a queue is told for whom room is claimed. That stays true, and said, when others come before."""
        return theirs is not None and bool(self.state.position(key)) and self.but_for_a_claim(mine, theirs) == theirs

    def but_for_a_claim(self, mine: Verdict | None, theirs: Verdict | None) -> Verdict | None:
        """What one would be told for whom room is claimed still, if that were not said, but what another is."""
        if mine is None or theirs is None or mine.why.detail is not Detail.CLAIMED:
            return mine
        claims = {*self.state.ledger.claims, *self.state.ledger.aside}
        if tuple(mine.why.subject.split("/")) not in claims:
            return mine
        return replace(
            mine,
            why=replace(mine.why, detail=theirs.why.detail, subject=theirs.why.subject, until=theirs.why.until),
        )

    def other_trees_came(self, key: Key, mine: Verdict | None, theirs: Verdict | None) -> bool:
        """Nodes are short still, or would be if they were empty, by other numbers: what gangs of other trees took since
        helps nobody who waits, for room that is claimed or for any. Or who waits for quota beside the room that is kept
        for others would find no nodes by now without it, either (see `same_reason`)."""
        mine = self.but_for_a_claim(mine, theirs)
        queue = self.state.ledger.tree.queue
        nodes = [queue(value.admission.cluster_queue) for value in self.gangs() if value.admission is not None]
        at = queue(self.state.queue_of(self.state.workloads[key]))
        others = at is not None and any(node is not None and node.root is not at.root for node in nodes)
        if mine is None or theirs is None or not others:
            return False
        reasons = (mine.why.reason, theirs.why.reason)
        if mine.standing is Standing.PARKED and reasons == (Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED):
            name, bucket, _ = self.state.stands(key)
            memo = self.state.lines[name].parked[bucket]
            return memo.lack is not None and memo.lack.beside and theirs.standing is mine.standing
        if any(misfit.detail not in (Detail.NODES_SHORT, Detail.NEVER_FITS_NODES) for misfit in theirs.why.misfits):
            return False
        return _without_counts(mine) == _without_counts(theirs)

    def by_turns(self, plan: Plan) -> bool:
        """Was something decided for gangs that have been passed over for long, beside room that is kept for others?

        Whose kept room binds whom is a matter of whose turn comes first among those, and so it may take a gang that is
        known not to fit, and stands for a part of the tree only where everybody is tried anew.
        """
        ago = self.now - self.rules.passed_over_ms
        for decision in plan.decisions:
            gang = self.state.workloads[decision.preemptor if isinstance(decision, Evict) else decision.key]
            kept = self.state.ledger.aside.keys() - {gang.key}
            if not kept or max(gang.created, gang.requeue_at, gang.evicted_at) > ago:
                return False
        return True

    def same_reason(self, key: Key, other: State) -> None:
        """Another State of the same objects gives the same reason why a gang waits, or one that is true as well.

        Who was passed by since it was tried still waits for what it waited for. If that was quota beside the room that
        is kept for others, nodes may be short by now even without it; whoever looks anew finds that first.
        """
        mine, theirs = self.state.explain(key), other.explain(key)
        if mine is None or theirs is None or mine.why.reason is theirs.why.reason:
            assert (mine and mine.standing) == (theirs and theirs.standing), (mine, theirs)
            if mine is not None and theirs is not None and mine.why.detail is theirs.why.detail:
                self.same_quota(mine, theirs)
            return
        if never_fits(theirs) and any(kind == "PodUsage" for kind, _ in self.objects):
            # Pods of nobody's came since, and quota is short still: it is told when there is some.
            assert mine.why.reason is Reason.WAITING_FOR_QUOTA, (mine, theirs)
            return
        name, bucket, _ = self.state.stands(key)
        memo = self.state.lines[name].parked[bucket]
        assert key in self.state.memos.stale() or self.other_trees_came(key, mine, theirs), (mine, theirs)
        assert memo.lack is not None, (mine, theirs)
        assert memo.lack.beside, (mine, theirs)
        assert (mine.why.reason, theirs.why.reason) == (Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED), (
            mine,
            theirs,
        )
        assert mine.standing is theirs.standing, (mine, theirs)

    def same_quota(self, mine: Verdict, theirs: Verdict) -> None:
        """The numbers of quota are those of now, also of who was tried long ago; beside room that is kept for others,
        and for who claims some, they are those of its last trial. (What else came to be short is not.)"""
        if not (self.state.ledger.claims or self.state.ledger.aside):
            told = [
                {(one.flavor, one.resource, one.requested): (one.used, one.available, one.allowed) for one in shorts}
                for shorts in (mine.why.shortfalls, theirs.why.shortfalls)
            ]
            assert all(told[1].get(what, numbers) == numbers for what, numbers in told[0].items()), (mine, theirs)

    def written(self, value: Workload, decision: object) -> Workload:
        match decision:
            case Admit():
                return replace(
                    value,
                    admission=decision.admission,
                    reserved_at=self.now,
                    admitted=decision.admitted,
                    admitted_at=self.now,
                    evicted="",
                    evicted_for="",
                    claims=None,
                )
            case Evict():
                self.evictions[value.key] += 1
                fair = value.fair_evictions
                if decision.reason is EvictReason.IN_COHORT_FAIR_SHARING:
                    fair = (*fair, self.now)
                return replace(
                    value,
                    evicted="Preempted",
                    evicted_for=decision.preemptor_uid,
                    evicted_at=self.now,
                    fair_evictions=fair,
                )
            case Claim():
                return replace(value, claims=decision.record)
        raise AssertionError(decision)

    def kept(self) -> set[Key]:
        """Whose room is kept, in the book or beside it."""
        return {*self.state.ledger.claims, *self.state.ledger.aside}

    def leave(self) -> None:
        """Whoever was evicted is gone from its nodes."""
        for value in self.gangs():
            if value.evicted and value.admission is not None:
                self.put(replace(value, admission=None, admitted=False, reserved_at=0, admitted_at=0))

    def rests(self, most: int) -> bool:
        """Cycles until nothing more is decided, `most` of them; whoever is evicted leaves between two. Whether it came
        to rest."""
        for _ in range(most):
            plan = self.cycle()
            leaving = any(value.evicted and value.admission is not None for value in self.gangs())
            self.leave()
            self.now += SECOND
            if not plan.decisions and not plan.more and not leaving:
                return True
        return False

    def settle(self, most: int = 60) -> int:
        """Cycles until nothing more is decided; how many evictions it took. Fails when it does not come to rest."""
        before = self.evictions.copy()
        assert self.rests(most), f"no rest after {most} cycles: {self.log[-10:]}"
        new = self.evictions - before
        assert all(count <= 1 for count in new.values()), f"evicted more than once: {new}"
        return sum(new.values())

    # -- what every single decision must keep

    def check(self, plan: Plan) -> None:
        state = self.state
        assert state.drift() == []
        admits = [decision for decision in plan.decisions if isinstance(decision, Admit)]
        assert len({d.key for d in admits}) == len(admits)
        kept = {
            key
            for key in (*state.ledger.claims, *state.ledger.aside)
            if (record := state.workloads[key].claims) is not None and not record.victims
        }
        with state.ledger.trial():
            for decision in plan.decisions:
                if isinstance(decision, Admit):
                    self.check_admission(decision, kept, state.ledger.unclaim(decision.key))
                elif isinstance(decision, Claim):
                    assert decision.record.until % SECOND == 0, f"it is stored in whole seconds: {decision}"
                    state.ledger.unclaim(decision.key)
                    (kept.discard if decision.record.victims else kept.add)(decision.key)
                    if decision.record.until > self.now:
                        claim = claim_of(state.workloads[decision.key], decision.record.admission)
                        state.ledger.claim(claim, decision.record.until, decision.record.victims)
                elif isinstance(decision, Evict):
                    self.check_eviction(decision)

    def check_admission(self, admit: Admit, kept: Iterable[Key], own: Held | None) -> None:
        """It fits quota and nodes, whole or in a size that it may have, beside all that is charged and claimed, and of
        what is `kept` for those who were passed over, beside as much as binds it. Or, where it takes no more than its
        `own` claim, beside what is charged, and what was claimed before and is not held still by one who leaves for
        that."""
        ledger = self.state.ledger
        gang = self.state.workloads[admit.key]
        charge = charge_of(gang, admit.admission)
        with ledger.trial():
            freed_for_it = gang.claims is not None and bool(gang.claims.victims)
            if freed_for_it or self.now - max(gang.created, gang.requeue_at) >= self.rules.passed_over_ms:
                for key in kept:
                    ledger.unclaim(key)
            claimed = own is not None and all(
                amount <= dict(own.charge.usage).get(fr, 0) for fr, amount in charge.usage
            )
            yields = self.yields(admit.key, own) if claimed and own is not None else Counter()
            for key, held in list(ledger.claims.items()) if claimed else ():
                rest = tuple((fr, amount - yields[key, fr]) for fr, amount in held.charge.usage)
                ledger.claim(replace(held.charge, usage=rest), held.until, held.victims)
            node = ledger.tree.queue(charge.queue)
            assert node is not None, admit
            assert not node.in_cycle, admit
            assert node.fits(dict(charge.usage)), admit
            ledger.charge(charge)
            for pod_set, got in zip(gang.pod_sets, admit.admission.pod_sets, strict=True):
                left = pod_set.count - dict(gang.reclaimable).get(pod_set.name, 0)
                assert min(pod_set.min_count or left, left) <= got.count <= pod_set.count
                if got.topology is not None:
                    assert sum(domain.count for domain in got.topology.domains) == got.count
                    for domain in got.topology.domains if got.topology.levels[-1] == HOSTNAME_LABEL else ():
                        host = domain.values[-1]
                        free = ledger.nodes.free(ledger.nodes.resolve(host))
                        for res in [res for res, amount in pod_set.shape.requests if amount]:
                            if free[res] < 0 and own is not None:
                                assert on_host(charge, host, res) <= on_host(own.charge, host, res), (admit, domain)
                                free[res] += sum(yields[key, (host, res)] for key in ledger.claims)
                            assert free[res] >= 0, (admit, domain)
        ledger.charge(charge)

    def yields(self, owner: Key, own: Held) -> Counter[tuple[Key, tuple[str, str]]]:
        """(claim, flavor and resource, or host and resource) -> what of it does not keep this one back: all of it, if
        it was made later, or else what those hold still who leave for it."""
        claims, out = self.state.ledger.claims, Counter[tuple[Key, tuple[str, str]]]()
        going = {one.uid: taken(charge_of(one, one.admission)) for one in self.gangs() if one.evicted and one.admission}
        for key in sorted(claims, key=lambda key: (claims[key].until, key)):
            held = claims[key]
            if key == owner:
                continue
            if (held.until, key) > (own.until, owner):
                out.update({(key, what): amount for what, amount in taken(held.charge).items()})
                continue
            wanted = taken(held.charge)
            for uid in held.victims:
                part = wanted & going.get(uid, Counter())
                wanted -= part
                going[uid] = going.get(uid, Counter()) - part
                out.update({(key, what): amount for what, amount in part.items()})
        return out

    def check_eviction(self, evict: Evict) -> None:
        state = self.state
        ledger = state.ledger
        victim = state.workloads[evict.key]
        assert victim.admission is not None
        assert not victim.evicted
        mine = ledger.tree.queue(evict.preemptor_queue)
        theirs = ledger.tree.queue(victim.admission.cluster_queue)
        assert mine is not None
        assert theirs is not None
        if mine is theirs:
            assert evict.reason in (EvictReason.IN_CLUSTER_QUEUE, EvictReason.FLAVOR_MIGRATION)
            return
        # R2: of something that the victim holds (in Kueue: of anything) its queue and each cohort below the common one
        # hold (not: claim) more than their quota.
        held = [fr for fr, _ in ledger.charges[evict.key].usage]
        with ledger.trial():
            for key in list(ledger.claims):
                ledger.unclaim(key)
            for at in below_common(theirs, mine):
                assert at.borrowing(held if self.rules.promises else at.usage), (evict, at)


def taken(charge: Charge) -> Counter[tuple[str, str]]:
    """(flavor, or host, and resource) -> how much."""
    hosts = () if charge.admission is None else charge.booking.hosts
    there = {(host, resource): amount for host, amounts in hosts for resource, amount in amounts}
    return Counter({**dict(charge.usage), **there})


def on_host(charge: Charge, host: str, resource: str) -> int:
    return taken(charge)[host, resource]


def below_common(queue: QuotaNode, other: QuotaNode) -> list[QuotaNode]:
    path = set(other.path())
    return [at for at in queue.path() if at not in path]


def elastic(*names: str) -> list[Flavor]:
    return [Flavor(name, elastic=True) for name in names]


def cohort(name: str, parent: str = "", flavors: Iterable[tuple[str, dict[str, int | Quota]]] = ()) -> Cohort:
    return Cohort(name, parent, groups(flavors))
