"""What the API says: rows of verdicts and decisions, with the sentences that people read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission import quantity
from admission.engine.model import (
    Admission,
    Admit,
    Claim,
    ClaimRecord,
    Detail,
    Evict,
    EvictReason,
    Misfit,
    PodSetAssignment,
    Reason,
    Shortfall,
    Standing,
    Value,
    Verdict,
    Why,
    Workload,
)
from admission.engine.project import bound, project, sentence
from admission.quantity import words
from tests.engine.town import gang

GPU = "nvidia.com/gpu"


def short(**more: object) -> Shortfall:
    values: dict[str, object] = {
        "pod_set": "main",
        "flavor": "h100",
        "resource": GPU,
        "detail": Detail.COHORT_SHORT,
        "requested": 32,
        "nominal": 64,
        "used": 56,
        "available": 8,
        "borrowable": 16,
        "limited_by": "research",
    }
    return Shortfall(**(values | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (
            Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (short(),)),
            (
                "Needs 32 nvidia.com/gpu of flavor h100; its ClusterQueue has 8 left of 64, 16 more could be borrowed, "
                "cohort research has none free"
            ),
        ),
        (
            Why(Reason.WAITING_FOR_QUOTA, Detail.BORROWING_LIMIT, (short(detail=Detail.BORROWING_LIMIT),)),
            (
                "Needs 32 nvidia.com/gpu of flavor h100; its ClusterQueue has 8 left of 64, 16 more could be borrowed, "
                "the borrowing limit of research allows only 8"
            ),
        ),
        (
            Why(
                Reason.EXCEEDS_MAX_QUOTA,
                Detail.NEVER_FITS_QUOTA,
                (short(detail=Detail.NEVER_FITS_QUOTA, requested=99),),
            ),
            (
                "Needs 99 nvidia.com/gpu of flavor h100; the ClusterQueue can never have more than 80 (64 its own, "
                "16 to borrow), limited by research"
            ),
        ),
        (
            Why(
                Reason.NO_MATCHING_FLAVOR,
                Detail.FLAVOR_TAINT,
                (short(detail=Detail.FLAVOR_TAINT, limited_by="a:NoSchedule"),),
            ),
            "Flavor h100 has the taint a:NoSchedule, which the pods do not tolerate",
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NODES_SHORT,
                misfits=(Misfit("main", "h100", 16, 12, nodes=4, excluded=(("not ready", 1),)),),
            ),
            "Quota allows it, but the nodes of flavor h100 hold 12 of 16 pod(s) of main; of 4 node(s): 1 not ready",
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NODES_SHORT,
                misfits=(
                    Misfit(
                        "main",
                        "h100",
                        2,
                        0,
                        nodes=9,
                        excluded=(
                            ("avoided", 1),
                            ("host port 80", 2),
                            ("node selector", 1),
                            ("nvidia.com/gpu", 4),
                            ("taint spot", 1),
                        ),
                        fits_when_empty=True,
                    ),
                ),
            ),
            (
                "Quota allows it, but the nodes of flavor h100 hold 0 of 2 pod(s) of main; of 9 node(s): 1 avoided, "
                "2 where host port 80 is taken, 1 kept out by node selector, 4 with too little nvidia.com/gpu left, "
                "1 with the taint spot; it fits once running workloads end"
            ),
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NODES_UNUSABLE,
                misfits=(
                    Misfit("main", "h100", 16, 8, Detail.NODES_UNUSABLE, 2, excluded=(("cordoned", 1),), sound=16),
                ),
            ),
            (
                "Quota allows it, but the nodes of flavor h100 hold 8 of 16 pod(s) of main; of 2 node(s): 1 cordoned; "
                "with none of them kept out, and empty, they could take 16 of 16"
            ),
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NODES_TAKEN,
                misfits=(Misfit("main", "h100", 16, 8, Detail.NODES_TAKEN, 2, excluded=((GPU, 1),), sound=16),),
            ),
            (
                "Quota allows it, but the nodes of flavor h100 hold 8 of 16 pod(s) of main; of 2 node(s): 1 with too "
                f"little {GPU} left; pods that are no gang's hold room there: without these, and with none of them "
                "kept out, they could take 16 of 16"
            ),
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NEVER_FITS_NODES,
                misfits=(
                    Misfit("main", "h100", 17, 8, Detail.NEVER_FITS_NODES, 2, excluded=(("cordoned", 1),), sound=16),
                ),
            ),
            (
                "Quota allows it, but the nodes of flavor h100 hold 8 of 17 pod(s) of main; of 2 node(s): 1 cordoned; "
                "it would not fit if they were empty (those kept out included, they could take 16 of 17)"
            ),
        ),
        (
            Why(
                Reason.WAITING_FOR_QUOTA,
                Detail.COHORT_SHORT,
                (short(requested=8, nominal=32, used=24, available=0, borrowable=16),),
            ),
            (
                "Needs 8 nvidia.com/gpu of flavor h100; its ClusterQueue has 8 left of 32 (none of it now: it is lent, "
                "or kept for a gang that waits), 16 more could be borrowed, cohort research has none free"
            ),
        ),
        (
            Why(Reason.MISCONFIGURED, Detail.QUEUE_MISSING, subject="ml"),
            "LocalQueue ml does not exist in this namespace; create it, or correct the label",
        ),
        (
            Why(Reason.SUSPENDED, Detail.BACKOFF, until=0),
            "Waits until 1970-01-01T00:00:00Z before it is tried again",
        ),
        (
            Why(Reason.WAITING_FOR_QUOTA, Detail.COHORT_SHORT, (short(candidates=3, unlawful=(("spared", 2),)),)),
            (
                "Needs 32 nvidia.com/gpu of flavor h100; its ClusterQueue has 8 left of 64, 16 more could be borrowed, "
                "cohort research has none free; of 3 running workload(s) none may be evicted for it (2 spared)"
            ),
        ),
        (
            Why(
                Reason.EXCEEDS_MAX_QUOTA,
                Detail.NEVER_FITS_QUOTA,
                (
                    short(resource="license", limited_by="a", detail=Detail.QUOTA_SHORT, requested=9, borrowable=0),
                    short(detail=Detail.NEVER_FITS_QUOTA, requested=98),
                    short(detail=Detail.NEVER_FITS_QUOTA, requested=99, pod_set="more"),
                    short(detail=Detail.NEVER_FITS_QUOTA, requested=99, flavor="a100", nominal=0),
                ),
            ),
            (
                "Needs 99 nvidia.com/gpu of flavor h100; the ClusterQueue can never have more than 80 (64 its own, "
                "16 to borrow), limited by research. Also needs 9 license of flavor h100; its ClusterQueue has 8 left "
                "of 64; 1 other flavor(s) do not fit either"
            ),
        ),
        (
            Why(
                Reason.PLACEMENT_FAILED,
                Detail.NEVER_FITS_NODES,
                (short(),),
                (Misfit("main", "h100", 17, 8, Detail.NEVER_FITS_NODES),),
            ),
            (
                "The nodes of flavor h100 hold 8 of 17 pod(s) of main; it would not fit if they were empty. "
                "Also needs 32 nvidia.com/gpu of flavor h100; its ClusterQueue has 8 left of 64, 16 more could be "
                "borrowed, cohort research has none free"
            ),
        ),
    ],
)
def test_sentences(why: Why, text: str) -> None:
    assert sentence(why) == text


GI = 2**30


@pytest.mark.parametrize(
    ("resource", "amounts", "said"),
    [
        ("memory", (8 * GI, 7 * GI + GI // 2, 1536 * GI, 2048 * GI, 500 * 2**20, 0), "8Gi 7680Mi 1536Gi 2Ti 500Mi 0"),
        ("memory", (263847464 * 2**10, 8_000_000_000, 1_500_000_000), "251.6Gi 7.45Gi 1.39Gi"),
        # Different amounts read differently, with more digits if need be.
        ("memory", (8 * GI, 8 * GI - 2**10), "8Gi 7.99Gi"),
        ("memory", (8 * GI + 2**10, 8 * GI), "8388609Ki 8Gi"),
        ("memory", (16 * GI + 300 * 2**10, 16 * GI + 40 * 2**20), "16Gi 16.03Gi"),
        ("memory", (100 * GI + 3 * 2**20 + 1, 100 * GI + 3 * 2**20), "107377328129 102403Mi"),
        ("ephemeral-storage", (80 * GI,), "80Gi"),
        ("hugepages-2Mi", (GI,), "1Gi"),
        ("example.com/gpu-memory", (8 * GI, 20 * GI), "8Gi 20Gi"),
        ("example.com/gpu-memory", (8 * GI - 1,), "8589934591"),
        ("cpu", (500, 2500, 10_000, 10_900, 95_210, 95_240), "500m 2500m 10 10.9 95.21 95.24"),
        (GPU, (16, 1024, 800_000), "16 1024 800k"),
        ("pods", (2**20,), "1048576"),
        ("memory", (-3 * GI,), "-3Gi"),
        # As they were written, where all of them were written so.
        ("memory", (112 * 10**9, 100 * 10**9, 5 * 10**8), "112G 100G 500M"),
        ("memory", (112 * 10**9, 64 * GI), "104.3Gi 64Gi"),
    ],
)
def test_amounts_in_words(resource: str, amounts: tuple[int, ...], said: str) -> None:
    assert words(resource, *amounts) == tuple(said.split())


RESOURCES = st.sampled_from(["memory", "cpu", GPU, "example.com/gpu-memory", "pods"])
AMOUNTS = st.integers(0, 2**63 - 1) | st.integers(0, 2**22) | st.integers(0, 2**20).map(lambda n: n * 2**20)


@given(RESOURCES, st.lists(AMOUNTS | st.builds(lambda n, m: n * GI + m, st.integers(0, 99), st.integers(0, 2**12))))
def test_amounts_in_words_are_quantities_that_tell_them_apart(resource: str, amounts: list[int]) -> None:
    for digits in (1, 3):
        said = words(resource, *amounts, digits=digits)
        assert len(set(said)) == len(set(amounts))
        read = [quantity.parse(resource, text) for text in said]
        for amount, text in zip(amounts, read, strict=True):
            # Who asks for what is said to be there gets it. A part of a byte counts as one.
            assert amount * 0.99 - 1 <= text <= amount
        # None reads as more than one that is larger.
        assert sorted(read) == [one for _, one in sorted(zip(amounts, read, strict=True))]


@pytest.mark.parametrize(
    ("resource", "asked", "there", "said"),
    [
        ("memory", 253 * 10**9 + 1, 100 * GI, "235.7Gi 100Gi"),
        ("memory", 235 * GI + GI // 2 + 2**30 // 2**14, 100 * GI, "235.6Gi 100Gi"),
        ("memory", 10_005 * 2**20 + 1, 2 * GI, "9.78Gi 2Gi"),
        ("cpu", 10_050, 10_000, "10.1 10"),
        ("cpu", 12_500, 10_000, "12.5 10"),
        # Rounded to one digit they would be told in the other order.
        ("cpu", 10_010, 10_090, "10.01 10.09"),
    ],
)
def test_what_is_asked_for_is_rounded_up(resource: str, asked: int, there: int, said: str) -> None:
    assert words(resource, asked, there, up=(asked,)) == tuple(said.split())


def test_what_a_pod_asks_for_is_rounded_up() -> None:
    """Who makes a node that gives as much as is said has room for it."""
    beyond = (("memory", 253 * 10**9 + 1, 100 * GI),)
    misfit = Misfit("main", "h100", 2, 0, nodes=1, detail=Detail.NEVER_FITS_NODES, beyond=beyond)
    said = sentence(Why(Reason.PLACEMENT_FAILED, Detail.NEVER_FITS_NODES, misfits=(misfit,)))
    assert "a pod asks for 235.7Gi memory, of which no node could give more than 100Gi" in said


def test_amounts_are_told_in_the_units_of_those_that_stay() -> None:
    """Else each change of what is used would be news."""
    left = words("memory", 12 * 10**9, 10**10 - GI, digits=3, like=(12 * 10**9, 10**11))
    assert left == ("12G", "8.9262G")


@given(RESOURCES, AMOUNTS, st.lists(AMOUNTS, max_size=3))
def test_what_is_asked_for_is_never_told_as_less(resource: str, asked: int, others: list[int]) -> None:
    """Who raises quota to what is said has raised it enough; and none reads as more than one that is larger."""
    said = [quantity.parse(resource, text) for text in words(resource, asked, *others, digits=3, up=(asked,))]
    assert asked <= said[0] <= asked * 1.01 + 1
    assert len(set(said)) == len({asked, *others})
    assert sorted(said) == [one for _, one in sorted(zip((asked, *others), said, strict=True))]


def test_what_is_short_never_reads_as_enough() -> None:
    why = Why(
        Reason.WAITING_FOR_QUOTA,
        Detail.QUOTA_SHORT,
        (
            short(
                resource="memory", detail=Detail.QUOTA_SHORT, requested=8 * GI + 1, nominal=64 * GI,
                used=56 * GI, available=8 * GI, borrowable=0,
            ),
        ),
    )  # fmt: skip
    assert sentence(why) == ("Needs 8.0001Gi memory of flavor h100; its ClusterQueue has 8Gi left of 64Gi")


FULL = (short(available=0, candidates=3, unlawful=(("spared", 2), ("of the same queue", 1))),)
NODES = Misfit("main", "h100", 17, 8, Detail.NEVER_FITS_NODES, 2, excluded=(("cordoned", 1), (GPU, 1)), sound=16)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((short(),), FULL, True),
        ((short(used=64, borrowable=0),), FULL, True),
        ((short(detail=Detail.BORROWING_LIMIT),), (short(detail=Detail.BORROWING_LIMIT, available=2),), True),
        ((short(), short(resource="cpu")), (*FULL, short(resource="cpu", available=1000)), True),
        ((short(),), (short(detail=Detail.BORROWING_LIMIT),), False),
        ((short(),), (short(limited_by="all"),), False),
        ((short(),), (short(requested=40),), False),
        ((short(),), (short(nominal=72),), False),
        ((short(),), (short(flavor="a100"),), False),
        ((short(),), (short(), short(resource="cpu")), False),
        ((NODES,), (replace(NODES, placeable=0, nodes=3, excluded=(("not ready", 2),), sound=0),), True),
        ((NODES,), (replace(NODES, pods=18),), False),
        ((NODES,), (replace(NODES, level="rack"),), False),
        ((NODES,), (replace(NODES, detail=Detail.NODES_SHORT, fits_when_empty=True),), False),
    ],
)
def test_numbers_of_the_moment_are_no_news(one: tuple[Value, ...], other: tuple[Value, ...], same: bool) -> None:
    def told(of: tuple[Value, ...]) -> str:
        shorts = tuple(each for each in of if isinstance(each, Shortfall))
        misfits = tuple(each for each in of if isinstance(each, Misfit))
        reason = Reason.PLACEMENT_FAILED if misfits else Reason.WAITING_FOR_QUOTA
        return sentence(Why(reason, of[0].detail, shorts, misfits))  # type: ignore[attr-defined]

    assert told(one) != told(other)
    assert (bound(told(one)) == bound(told(other))) is same


def test_every_reason_and_detail_has_words() -> None:
    for reason in Reason:
        for detail in Detail:
            text = sentence(Why(reason, detail, (short(detail=detail),), subject="x"))
            assert text
            assert text[0].isupper() or text[0] == "x"


def conditions(workload: Workload, what: object) -> list[tuple[str, bool, str]]:
    return [c[:3] for c in project(workload, what).conditions]  # type: ignore[arg-type]


def test_conditions_of_decisions() -> None:
    workload = gang("g", "a")
    admission = Admission("a", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 1),), 1),))
    assert conditions(workload, Admit(workload.key, workload.uid, admission)) == [
        ("QuotaReserved", True, "QuotaReserved"),
        ("Admitted", True, "Admitted"),
    ]
    told = project(gang("g", "a", 3), Admit(workload.key, workload.uid, admission, waited_ms=2000))
    said = "Quota reserved in ClusterQueue a for 1 of 3 pods at a time"
    assert (told.conditions[0][3], told.events[0][2]) == (said, f"{said}, waited 2s")
    pending = Admit(workload.key, workload.uid, admission, checks=("prov",), admitted=False)
    assert conditions(workload, pending)[1] == ("Admitted", False, "UnsatisfiedAdmissionChecks")
    evict = Evict(workload.key, workload.uid, EvictReason.IN_COHORT_RECLAMATION, ("ns", "p"), "uid-p", "b")
    assert conditions(workload, evict) == [
        ("Evicted", True, "Preempted"),
        ("Preempted", True, "InCohortReclamation"),
    ]
    assert [e[1] for e in project(gang("p", "b"), evict).events] == ["PreemptedWorkload"]
    waits = Verdict(workload.key, Standing.PARKED, Why(Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT, (short(),)))
    assert conditions(workload, waits) == [
        ("QuotaReserved", False, "WaitingForQuota"),
        ("Admitted", False, "NoReservation"),
    ]


def test_a_claim_speaks_of_evicted_workloads_where_there_are_some() -> None:
    """One without is renewed for as long as it lasts: the reason that was told stays meanwhile."""
    waits = gang("a", "main")
    told = {victims: project(waits, Claim(waits.key, waits.uid, ClaimRecord(Admission("q", ()), victims, 1)))
            for victims in ((), ("uid-b",))}  # fmt: skip
    assert told[()].conditions == ()
    ((_, holds, reason, text),) = told["uid-b",].conditions
    assert (holds, reason) == (False, Reason.WAITING_FOR_PREEMPTED.value)
    # As the verdict that comes with it: else the condition is written twice, and the owner is told twice.
    why = Why(Reason.WAITING_FOR_PREEMPTED, Detail.VICTIMS_LEAVING, subject="1 evicted workload(s)")
    assert text == sentence(why)
