"""Whatever the queues hold: pages make the whole, nobody is left out or told twice, and nobody sees too much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from admission.engine.cycle import decide
from admission.engine.model import (
    MUSTER,
    Admission,
    Assumed,
    ClusterQueue,
    Flavor,
    FlavorQuotas,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Namespace,
    Node,
    PodSet,
    PodShape,
    Put,
    Quota,
    ResourceGroup,
    StopPolicy,
    Strategy,
    Taint,
    Verdict,
    Workload,
)
from admission.engine.state import State
from admission.jobs.kinds import JobView
from admission.web.view import Place, Sight, View

GPU = "nvidia.com/gpu"
NOW = 1_000_000


class Source:
    """A State after a cycle, as a leader would hold it."""

    def __init__(self, state: State, leading: bool) -> None:
        self.state = state
        self.revision = 1
        self._leading = leading
        self._verdicts: dict[Key, Verdict] = {}
        plan = decide(state, NOW, 200)
        for decision in plan.decisions:
            state.apply(Assumed(decision))
        self._verdicts = {verdict.key: verdict for verdict in plan.verdicts}

    def leading(self) -> bool:
        return self._leading

    def ready(self) -> str:
        return ""

    def now(self) -> int:
        return NOW

    def verdict(self, key: Key) -> Verdict | None:
        return self._verdicts.get(key)

    def owner(self, key: Key) -> tuple[str, str]:
        return "Job", key[1]

    def job(self, key: Key) -> JobView | None:
        return None

    def workload(self, key: Key) -> None:
        return None


gangs = st.lists(
    st.tuples(
        st.integers(0, 2),  # namespace
        st.sampled_from(["main", "side", "nowhere"]),  # LocalQueue
        st.integers(1, 12),  # GPUs
        st.integers(0, 1),  # priority
        st.sampled_from(["", "gate"]),
        st.sampled_from([0, NOW + 5_000]),  # backoff
    ),
    max_size=14,
)


def built(made: list[Any], stopped: int | None, gone: int | None) -> State:
    state = State(MUSTER)
    group = ResourceGroup(covered=(GPU,), flavors=(FlavorQuotas(name="h100", quotas=((GPU, Quota(8)),)),))
    state.apply(Put(Flavor(name="h100")))
    for number in range(2):
        state.apply(Put(Node(name=f"node-{number}", allocatable=((GPU, 8),), ready=True)))
    for number in range(3):
        queue = ClusterQueue(name=f"q{number}", cohort="all", groups=(group,), namespace_selector=LabelSelector())
        state.apply(Put(queue))
        state.apply(Put(Namespace(name=f"n{number}")))
        stop = StopPolicy.HOLD if number == stopped else StopPolicy.NONE
        state.apply(Put(LocalQueue(f"n{number}", "main", cluster_queue=f"q{number}", stop_policy=stop)))
        state.apply(Put(LocalQueue(f"n{number}", "side", cluster_queue=f"q{(number + 1) % 3}")))
    for i, (namespace, queue, gpus, priority, gated, requeue_at) in enumerate(made):
        pods = PodSet(name="main", count=1, shape=PodShape(requests=((GPU, gpus),)))
        gang = Workload(
            f"n{namespace}", f"w{i:02}", uid=f"u{i:02}", queue=queue, pod_sets=(pods,), priority=priority,
            created=i, gated=gated, requeue_at=requeue_at,
        )  # fmt: skip
        state.apply(Put(gang))
    if gone is not None:
        state.apply(Gone(LocalQueue, (f"n{gone}", "side")))
    return state


@settings(max_examples=60, deadline=None)
@given(
    gangs,
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 2),
    st.none() | st.frozensets(st.sampled_from(["n0", "n1", "n2"])),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from(["", "q1"]),
    st.sampled_from(["", "n1"]),
)
def test_pages_make_the_whole_and_nobody_sees_too_much(
    made: list[Any],
    stopped: int | None,
    gone: int | None,
    namespaces: frozenset[str] | None,
    leading: bool,
    limit: int,
    queue: str,
    namespace: str,
) -> None:
    state = built(made, stopped, gone)
    view = View(Source(state, leading))
    sight = Sight("somebody", namespaces)
    whole = view.jobs(sight, queue=queue, namespace=namespace, limit=1000)
    told = [(row["namespace"], row["workload"]) for row in whole["items"]]
    expected = {
        key
        for key, gang in state.workloads.items()
        if sight.sees(key[0])
        and (not namespace or key[0] == namespace)
        and (not queue or state.queue_of(gang) == queue)
    }
    assert len(told) == len(set(told)) == whole["total"]
    assert set(told) == expected
    assert whole["waiting"] == sum(row["state"] == "waiting" for row in whole["items"])
    assert all(row["state"] == "waiting" for row in whole["items"][: whole["waiting"]])
    assert all(row["reason"] and row["message"] for row in whole["items"][: whole["waiting"]] if leading)
    pages = []
    for offset in range(0, whole["total"] + limit, limit):
        page = view.jobs(sight, queue=queue, namespace=namespace, offset=offset, limit=limit)
        assert (page["total"], page["waiting"]) == (whole["total"], whole["waiting"])
        pages += page["items"]
    assert pages == whole["items"]
    for name in state.queues:
        line = view.line(name)
        assert line[: len(state.pending(name))] == state.pending(name)
        assert len(line) == state.queue_numbers(name).pending
        locals_: dict[Key, int] = {}
        for at, key in enumerate(line):
            local = (key[0], state.workloads[key].queue)
            place = view.places(name)[key]
            assert (place.in_cluster_queue, place.in_local_queue) == (at, locals_.get(local, 0))
            assert place.waiting == state.local_queue_numbers(local).pending
            locals_[local] = locals_.get(local, 0) + 1
    nodes = view.nodes(sight)["items"]
    seen = {gang["namespace"] for node in nodes for gang in node["gangs"]} - {""}
    assert namespaces is None or seen <= namespaces
    assert state.drift() == []


def test_places_are_looked_up_in_the_queues_that_a_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands in many queues that took half a second, for a page of a hundred, with each change anew."""
    state = built([(number, "main", 9, 0, "", 0) for number in (0, 1, 2) for _ in range(5)], None, None)
    looked_up: list[int] = []

    def counted(*place: int) -> Place:
        looked_up.append(place[0])
        return Place(*place)

    monkeypatch.setattr("admission.web.view.Place", counted)
    page = View(Source(state, leading=True)).jobs(Sight("somebody", frozenset({"n0", "n1", "n2"})), limit=3)
    assert (page["total"], [row["position"] for row in page["items"]]) == (15, [1, 2, 3])
    assert looked_up == list(range(5))


@pytest.mark.parametrize("leading", [True, False])
def test_who_waits_behind_another_is_told_of_its_job(leading: bool) -> None:
    """A Workload's name is nothing that `muster why` could be asked about."""
    state = built([(0, "main", 12, 0, "", 0), (0, "main", 1, 0, "", 0)], None, None)
    state.apply(Put(structs.replace(state.queues["q0"], strategy=Strategy.STRICT_FIFO)))

    class Named(Source):
        def owner(self, key: Key) -> tuple[str, str]:
            return "Job", f"train-{key[1]}"

    source = Named(state, leading)
    source.verdict = lambda key: None  # type: ignore[method-assign]  # nothing was found of late
    job = View(source).job(("n0", "w01"))
    assert job["message"] == "Waits behind Job n0/train-w00, the first of a StrictFIFO queue"


@pytest.mark.parametrize(("more", "place"), [({}, 2), ({"gated": "somebody"}, None), ({"active": False}, None)])
def test_who_does_not_stand_in_line_has_no_place_in_it(more: dict[str, Any], place: int | None) -> None:
    state = built([(0, "main", 12, 0, "", 0), (0, "main", 12, 0, "", 0)], None, None)
    state.apply(Put(structs.replace(state.workloads["n0", "w01"], **more)))
    view = View(Source(state, True))
    assert view.job(("n0", "w01")).get("position") == place


@pytest.mark.parametrize("leading", [True, False])
@pytest.mark.parametrize(
    ("evicted", "told"),
    [
        ("DeactivatedDueToAdmissionCheck", "Its Workload is switched off (spec.active is false): no budget"),
        ("Preempted", "Its Workload is switched off (spec.active is false)"),
    ],
)
def test_why_a_gang_was_switched_off_is_told(evicted: str, told: str, leading: bool) -> None:
    """As `muster why` tells it; what its condition QuotaReserved says is the same for all of them."""

    class Written(Source):
        def workload(self, key: Key) -> Any:
            said = {"type": "Evicted", "status": "True", "reason": evicted, "message": "no budget"}
            return SimpleNamespace(status={"conditions": [said]})

    state = built([(0, "main", 1, 0, "", 0)], None, None)
    state.apply(Put(structs.replace(state.workloads["n0", "w00"], active=False)))
    assert View(Written(state, leading)).job(("n0", "w00"))["message"] == told


def test_queues_beyond_what_is_shown_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(Source(built([], None, None), True))
    whole = view.queues(Sight("somebody"))
    assert whole["total"] == len(whole["items"]) > 5
    monkeypatch.setattr("admission.web.view.MOST", 1)
    assert view.queues(Sight("somebody")) == {"total": whole["total"], "items": whole["items"][:5]}


def test_nodes_are_shown_with_the_taints_that_keep_gangs_off() -> None:
    state = built([], None, None)
    taints = (Taint("maintenance", "", "NoSchedule"), Taint("soft", "", "PreferNoSchedule"))
    state.apply(Put(Node(name="node-1", allocatable=((GPU, 8),), taints=taints)))
    nodes = View(Source(state, True)).nodes(Sight("somebody"))["items"]
    assert {node["name"]: node["taints"] for node in nodes} == {"node-0": [], "node-1": ["maintenance"]}


def test_amounts_of_nodes_are_told_in_words() -> None:
    """Without devices cpu and memory are shown, of which the engine counts thousandths and bytes."""
    state = State(MUSTER)
    room = (("cpu", 96_000), ("memory", 8 * 2**30))
    state.apply(Put(Node(name="node-0", labels=(), allocatable=room)))
    (node,) = View(Source(state, True)).nodes(Sight("somebody"))["items"]
    assert {one["resource"]: one["texts"] for one in node["capacity"]} == {
        "cpu": {"all": "96", "free": "96", "used": "0"},
        "memory": {"all": "8Gi", "free": "8Gi", "used": "0"},
    }


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"ending": "Failed"}, ("Failed", "too late")),
        ({"finished": "Failed"}, ("Failed", "too late")),
        ({"deleting": True}, ("Deleted", "It was deleted")),
    ],
)
def test_a_gang_at_its_end_whose_pods_still_end_does_not_run(over: dict[str, Any], told: tuple[str, str]) -> None:
    class Ended(Source):
        def job(self, key: Key) -> JobView:
            return JobView("Job", *key, uid="j", resource_version="1", message="too late", **over)

    state = built([], None, None)
    gang = Workload("n0", "w", uid="u", queue="main", admission=Admission("q0", ()), admitted=True, admitted_at=NOW)
    state.apply(Put(gang))
    shown = View(Ended(state, leading=True)).job(gang.key)
    assert (shown["state"], shown["reason"], shown["message"]) == ("leaving", *told)
