"""Who grants what a reason says is lacking, and no less, has that resource there: the numbers are those to act on."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission import quantity
from admission.engine.cycle import decide
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admit,
    ClusterQueue,
    Cohort,
    Detail,
    FlavorQuotas,
    Preemption,
    PreemptionPolicy,
    Quota,
    ResourceGroup,
    Rules,
    Why,
    Workload,
)
from admission.engine.project import sentence
from tests.engine.town import BUDGET, Town, cohort, elastic, gang, queue

F = "f"
KEEPS = Preemption(reclaim_within_cohort=PreemptionPolicy.NEVER)
"""Nobody goes for anybody: what is granted is all that helps."""


def number(resource: str, text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    if found is None:
        return None
    return 0 if found[1] == "none" else quantity.parse(resource, found[1])


def lacking(resource: str, text: str) -> int:
    """What a reader works out of a sentence of one resource."""
    needs = number(resource, text, r"Needs (\S+) ")
    assert needs is not None, text
    for pattern in (r"can never have more than (\S+) ", r" allows only (\S+?)(?=[;,]|\. |$)", r" \((\S+) of it now: "):
        if (had := number(resource, text, pattern)) is not None:
            return needs - had
    own = number(resource, text, r"its ClusterQueue has (\S+) left of ")
    assert own is not None, text
    return needs - own - (number(resource, text, r"cohort \S+ has (\S+) free") or 0)


def more(value: ClusterQueue | Cohort, resource: str, by: int, *, limit: bool) -> ClusterQueue | Cohort:
    """With more nominal quota, or with a higher borrowing limit."""
    (group,) = value.groups
    (flavor,) = group.flavors
    quotas = tuple(
        (name, _more(quota, by, limit=limit) if name == resource else quota) for name, quota in flavor.quotas
    )
    return replace(value, groups=(ResourceGroup(group.covered, (FlavorQuotas(flavor.name, quotas),)),))


def _more(quota: Quota, by: int, *, limit: bool) -> Quota:
    if not limit:
        return replace(quota, nominal=quota.nominal + by)
    assert quota.borrowing_limit is not None
    return replace(quota, borrowing_limit=quota.borrowing_limit + by)


def outcome(town: Town) -> Why | None:
    """None: the gang `new` is admitted."""
    plan = decide(town.state, town.now, BUDGET)
    if any(isinstance(one, Admit) and one.key == ("ns", "new") for one in plan.decisions):
        return None
    told = town.state.explain(("ns", "new"))
    assert told is not None
    return next((one.why for one in plan.verdicts if one.key == ("ns", "new")), told.why)


UNITS = {"gpu": 1, "memory": 2**30 + 7 * 2**20 + 1}
SMALL = st.integers(0, 6)
LIMITS = st.none() | SMALL
QUOTAS = st.builds(Quota, SMALL, LIMITS, LIMITS)
TREES = st.sampled_from(["alone", "flat", "deep"])


@example(KUEUE, "gpu", "flat", [Quota(0), Quota(1), Quota(0), Quota(1)], (0, 2), [1, 1], False)
@example(MUSTER, "gpu", "alone", [Quota(0)] * 4, (0, 0), [1, 1], False)
@given(
    st.sampled_from([MUSTER, KUEUE]),
    st.sampled_from(sorted(UNITS)),
    TREES,
    st.lists(QUOTAS, min_size=4, max_size=4),
    st.tuples(SMALL, SMALL),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.booleans(),
)
def test_who_grants_what_is_lacking_lets_the_gang_go_or_meets_another_limit(
    rules: Rules,
    resource: str,
    tree: str,
    quotas: list[Quota],
    held: tuple[int, int],
    pods: list[int],
    to_queue: bool,
) -> None:
    unit = UNITS[resource]

    def given_(quota: Quota) -> list[tuple[str, dict[str, int | Quota]]]:
        amounts = (
            quota.nominal * unit,
            *(None if one is None else one * unit for one in (quota.borrowing_limit, quota.lending_limit)),
        )
        return [(F, {resource: Quota(*amounts)})]

    a, b, mid = map(given_, quotas[:3])
    bare: list[tuple[str, dict[str, int | Quota]]] = [(F, {resource: quotas[0].nominal * unit})]
    town = Town(*elastic(F), rules=rules)
    if tree == "alone":
        town.put(queue("a", "", bare, preemption=KEEPS))
    else:
        if tree == "deep":
            town.put(cohort("mid", "root", mid))
        town.put(cohort("root", "", [(F, {resource: quotas[3].nominal * unit})]))
        town.put(queue("a", "mid" if tree == "deep" else "root", a, preemption=KEEPS), queue("b", "root", b))
    for name, local, count in (("old", "a", held[0]), ("others", "b", held[1])):
        if count and (local == "a" or tree != "alone"):
            town.put(gang(name, local, count, each={resource: unit}))
    town.settle()
    for name in town.pending():  # it would take what is granted
        town.remove(Workload, ("ns", name))
    town.put(_of_sets(gang("new", "a", pods[0], each={resource: unit}, created=1), pods))
    why = outcome(town)
    if why is None or not why.shortfalls:
        return
    text = sentence(why)
    lacks = lacking(resource, text)
    assert lacks > 0, text
    (short, *_) = [one for one in why.shortfalls if one.detail is why.detail]
    limits = " borrowing limit of " in text or _is_limit(town, short.limited_by, text)
    name = "a" if to_queue and not limits and why.detail is not Detail.NEVER_FITS_QUOTA else short.limited_by
    kind = "ClusterQueue" if name == "a" else "Cohort"
    before = town.objects[kind, name]
    assert isinstance(before, ClusterQueue | Cohort)
    town.put(more(before, resource, lacks - (1 if unit == 1 else unit // 2), limit=limits))
    less = outcome(town)
    assert less is not None, text
    town.put(more(before, resource, lacks, limit=limits))
    after = outcome(town)
    assert after is None or (after.detail, _ends(after)) != (why.detail, _ends(why)), (text, sentence(after))


def _is_limit(town: Town, name: str, text: str) -> bool:
    """Is it by its borrowing limit that a node gives no more than it can ever: the root gives no more than it has."""
    value = town.objects.get(("Cohort", name), town.objects.get(("ClusterQueue", name)))
    above = value.cohort if isinstance(value, ClusterQueue) else value.parent if isinstance(value, Cohort) else ""
    return "can never have more" in text and bool(above)


def _of_sets(value: Workload, pods: list[int]) -> Workload:
    (first,) = value.pod_sets
    return replace(value, pod_sets=tuple(replace(first, name=f"p{i}", count=count) for i, count in enumerate(pods)))


def _ends(why: Why) -> set[str]:
    return {short.limited_by for short in why.shortfalls if short.detail is why.detail}
