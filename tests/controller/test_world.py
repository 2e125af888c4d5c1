"""What the shell knows of jobs and pods: who still holds room, and who could give some back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from fractions import Fraction
from random import Random  # noqa: TID251  # seeded
from typing import Any

import pytest
from msgspec.structs import replace

from admission.controller.actuate import AVOID_MS, REFUSED_MS, blamed
from admission.controller.defaults import PriorityClassSeen
from admission.controller.lifecycle import Beyond, Next, Reprioritize, Settings, SuspendJob, WorkloadView, next_step
from admission.controller.silence import Silence
from admission.controller.standstill import WINDOW_MS
from admission.controller.world import AWAY_MS, NODE_GONE_MS, ORPHAN, PodView, WorkloadSeen, World
from admission.engine.counts import refused_taint
from admission.engine.model import (
    KUEUE,
    MUSTER,
    Admission,
    Admit,
    AntiAffinity,
    Assumed,
    Check,
    CheckRule,
    CheckState,
    ClusterQueue,
    Domain,
    Event,
    Flavor,
    FlavorQuotas,
    Gone,
    Key,
    LabelSelector,
    LocalQueue,
    Node,
    PodSet,
    PodSetAssignment,
    PodShape,
    PodUsage,
    Put,
    Quota,
    Requirement,
    ResourceGroup,
    Rules,
    StopPolicy,
    Taint,
    Toleration,
    TopologyAssignment,
    Transformation,
    Workload,
)
from admission.engine.state import State
from admission.jobs import devices, values
from admission.jobs.kinds import JobKey, JobView
from admission.jobs.volumes import Claim, Kept, Volume
from admission.names import HOSTNAME_LABEL, OF_DEVICE_CLASS, Names

GIVEN = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 2),), 2),))
HOLDS = Workload(
    "ns", "w", uid="w1", queue="main", pod_sets=(PodSet("main", 2),), admission=GIVEN, reserved_at=1, admitted=True,
    admitted_at=1, job_uid="j1",
)  # fmt: skip
JOB = JobView(
    kind="Job",
    namespace="ns",
    name="train",
    uid="j1",
    resource_version="1",
    queue="main",
    suspended=False,
    started=True,
)
KEY = ("Job", "ns", "train")
GPU = "nvidia.com/gpu"


def pod(name: str, **said: Any) -> PodView:
    base = PodView(
        namespace="ns",
        name=name,
        uid=name,
        resource_version="1",
        workload_uid="w1",
        owner_uid="j1",
        held_by="j1",
        jobset_uid="",
        node="n1",
        done=False,
        ready=True,
        terminating=False,
        created_at=0,
        gated=False,
        unready_since=0,
        unschedulable_since=None,
        unschedulable_message="",
        labels=(),
        pod_set="main",
        pinned="",
        usage=None,
    )
    return replace(base, **said)


def seen(value: Workload) -> WorkloadSeen:
    view = WorkloadView(value=value, resource_version="1", spec_hash="", counts=())
    return WorkloadSeen(value.namespace, value.name, value.uid, "1", view)


class Setting:
    def __init__(self, rules: Rules = MUSTER) -> None:
        self.woken: list[JobKey] = []
        self.state = State(rules)
        self.world = World(self.state, changed_job=self.woken.append, dirty=lambda: None)
        quotas = FlavorQuotas("f", (("gpu", Quota(4)),))
        queue = ClusterQueue("q", groups=(ResourceGroup(("gpu",), (quotas,)),), namespace_selector=LabelSelector())
        for value in (Flavor("f", elastic=True), queue, LocalQueue("ns", "main", "q")):
            self.state.apply(Put(value))
        self.world.job_seen(JOB)
        self.world.workload_seen(seen(HOLDS))

    @property
    def used(self) -> int:
        return self.state.queue_numbers("q").reserved.get(("f", "gpu"), 0)


@pytest.mark.parametrize(
    ("queue", "woken"), [("q", True), (("ns", "main"), True), ("another", False), (("ns", "another"), False)]
)
def test_who_holds_room_of_a_queue_is_looked_at_when_it_changes(queue: str | Key, woken: bool) -> None:
    setting = Setting()
    setting.woken.clear()
    setting.world.queue_changed(queue)
    assert setting.woken == [KEY] * woken


def test_only_who_names_a_claim_is_looked_at_when_it_changes() -> None:
    setting = Setting()
    world = setting.world
    names = PodShape(requests=(("gpu", 1),), claims=("data",))
    waits = replace(HOLDS, name="v", uid="v", job_uid="", admission=None, pod_sets=(PodSet("main", 1, names),))
    world.workload_seen(seen(waits))
    shown = setting.state.workload(("ns", "v"))
    assert shown is not None
    assert shown.unbound.startswith("PersistentVolumeClaim data does not exist")
    put: list[Key] = []
    apply = setting.state.apply

    def noted(event: Event) -> None:
        if isinstance(event, Put) and isinstance(event.value, Workload):
            put.append(event.value.key)
        apply(event)

    setting.state.apply = noted  # type: ignore[method-assign]
    here = ((Requirement("zone", "In", ("a",)),),)
    world.storage_changed(None, Claim("ns", "other"))
    world.storage_changed(None, Volume("pv", terms=here))
    world.lay(seen=True)
    assert put == []
    world.storage_changed(None, Claim("ns", "data", volume="pv", bound=True))
    world.lay(seen=True)
    assert put == [("ns", "v")]
    bound = setting.state.workload(("ns", "v"))
    assert bound is not None
    assert (bound.unbound, bound.pod_sets[0].shape.affinity) == ("", here)
    # Where they may not be seen, nothing of them counts; and it does again when they may.
    world.lay(seen=False)
    blind = setting.state.workload(("ns", "v"))
    assert blind == waits
    world.storage_changed(world.storage.volumes["pv"], None)
    world.lay(seen=True)
    gone = setting.state.workload(("ns", "v"))
    assert gone is not None
    assert "PersistentVolume pv, which does not exist" in gone.unbound
    # Whoever is gone is looked at no more.
    world.workload_lost(seen(waits))
    world.storage_changed(world.storage.claims["ns", "data"], None)
    put.clear()
    world.lay(seen=True)
    assert put == []


def test_a_claim_of_one_pod_is_waited_for_while_another_uses_it() -> None:
    """kube-scheduler lets no second one in. A gang has it from its reservation on, its pods while they are there."""
    setting = Setting()
    world = setting.world

    def waits_for(modes: tuple[str, ...] = ("ReadWriteOncePod",), name: str = "v") -> str:
        held = world.storage.claims.get(("ns", "data"))
        world.storage_changed(held, Claim("ns", "data", wants=Kept(modes=frozenset(modes)), volume="pv", bound=True))
        world.lay(seen=True)
        shown = setting.state.workload(("ns", name))
        assert shown is not None
        return shown.unbound.removeprefix("PersistentVolumeClaim data is ReadWriteOncePod, and ")

    world.storage_changed(None, Volume("pv"))
    names = PodShape(requests=(("gpu", 1),), claims=("data",))
    waits = replace(HOLDS, name="v", uid="v", job_uid="", admission=None, pod_sets=(PodSet("main", 1, names),))
    held = replace(waits, name="w", uid="w1", job_uid="j1", admission=GIVEN)
    world.workload_seen(seen(waits))
    assert waits_for() == ""
    mine, other = pod("mine", claims=("data",)), pod("other", workload_uid="", owner_uid="", claims=("data", "more"))
    for one in (replace(other, node=""), replace(other, done=True), replace(other, namespace="elsewhere")):
        world.pod_seen(one)
        assert waits_for() == ""
    world.pod_seen(other)
    assert waits_for(("ReadWriteMany",)) == ""
    assert waits_for() == "Pod other uses it"
    world.pod_lost(other)
    assert waits_for() == ""
    world.workload_seen(seen(held))
    assert waits_for() == "Workload w uses it"
    world.pod_seen(mine)
    assert waits_for(name="w") == "", "its own pod is in nobody's way"
    world.workload_seen(seen(replace(held, admission=None)))
    assert waits_for() == waits_for(name="w") == "Pod mine uses it", "it lingers"
    world.pod_seen(replace(mine, done=True))
    assert waits_for() == waits_for(name="w") == ""


AT_ZONES = [Node(f"n{i}", labels=((HOSTNAME_LABEL, f"n{i}"), ("zone", f"z{i}"))) for i in range(4)]
APP = LabelSelector((Requirement("app", "In", ("x",)),))


def rules(**said: Any) -> PodShape:
    """Pods that carry the label which their own rule selects."""
    return PodShape(requests=(("gpu", 1),), namespace="ns", labels=(("app", "x"),), **said)


def other(name: str, node: str, app: str = "x", namespace: str = "ns") -> PodView:
    usage = PodUsage((namespace, name), name, node, ())
    return pod(name, namespace=namespace, workload_uid="", node=node, labels=(("app", app),), usage=usage)


def affinity_of(world: World) -> object:
    world.lay(seen=True)
    laid = world.state.workload(("ns", "v"))
    assert laid is not None
    return laid.pod_sets[0].shape.affinity


def of_others(shape: PodShape) -> Setting:
    setting = Setting()
    for node in AT_ZONES:
        setting.world.node_seen(node)
    asks = replace(HOLDS, name="v", uid="v", job_uid="", admission=None, pod_sets=(PodSet("main", 2, shape),))
    setting.world.workload_seen(seen(asks))
    return setting


def test_pods_of_others_that_its_anti_affinity_selects_keep_a_gang_off_their_domains() -> None:
    world = of_others(rules(apart=(AntiAffinity("zone", APP, ("ns",)),))).world
    assert affinity_of(world) is None
    world.pod_seen(other("a", "n1"))
    world.pod_seen(other("b", "n2", app="y"))
    world.pod_seen(other("c", "n3", namespace="elsewhere"))
    assert affinity_of(world) == ((Requirement("zone", "NotIn", ("z1",)),),)
    world.pod_seen(other("b", "n2"))
    assert affinity_of(world) == ((Requirement("zone", "NotIn", ("z1", "z2")),),)
    world.pod_seen(replace(other("b", "n2"), usage=None, done=True))
    world.node_seen(replace(AT_ZONES[1], labels=(("zone", "moved"),)))
    assert affinity_of(world) == ((Requirement("zone", "NotIn", ("moved",)),),)
    world.pod_lost(other("a", "n1"))
    assert affinity_of(world) is None


def test_who_comes_later_finds_who_stands_there() -> None:
    setting = of_others(PodShape())
    world = setting.world
    world.pod_seen(other("a", "n1"))
    late = rules(apart=(AntiAffinity("zone", APP, ("ns",)),))
    world.workload_seen(
        seen(replace(HOLDS, name="v", uid="v", job_uid="", admission=None, pod_sets=(PodSet("main", 2, late),)))
    )
    assert affinity_of(world) == ((Requirement("zone", "NotIn", ("z1",)),),)


def test_a_gang_goes_where_all_of_its_affinity_selects_pods_of_others() -> None:
    both_of = (AntiAffinity("zone", APP, ("ns",)), AntiAffinity(HOSTNAME_LABEL, APP, ("ns",)))
    world = of_others(rules(near=both_of)).world
    assert affinity_of(world) is None
    world.pod_seen(other("a", "n1"))
    here = (Requirement("zone", "In", ("z1",)), Requirement(HOSTNAME_LABEL, "In", ("n1",)))
    assert affinity_of(world) == (here,)
    world.node_gone("n1")
    assert affinity_of(world) is None


def test_gangs_count_by_their_reservations_but_for_those_that_keep_it_away_themselves() -> None:
    apart = AntiAffinity("zone", APP, ("ns",))
    setting = of_others(rules(apart=(apart,)))
    world = setting.world

    def holds(name: str, node: str, shape: PodShape) -> Workload:
        placed = TopologyAssignment((HOSTNAME_LABEL,), (Domain((node,), 2),))
        given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 2),), 2, placed),))
        return replace(HOLDS, name=name, uid=name, job_uid="", admission=given, pod_sets=(PodSet("main", 2, shape),))

    world.workload_seen(seen(holds("plain", "n1", rules())))
    world.workload_seen(seen(holds("alike", "n2", rules(apart=(apart,)))))
    assert affinity_of(world) == ((Requirement("zone", "NotIn", ("z1",)),),)
    world.workload_seen(seen(holds("v", "n1", rules(apart=(apart,)))))
    world.workload_lost(seen(holds("plain", "n1", rules())))
    assert affinity_of(world) is None, "its own pods are not others"


MINE = (("app", "x"),)


def of_gang(name: str, node: str, gang: str, **said: Any) -> PodView:
    usage = PodUsage(("ns", name), name, node, (), gang)
    return pod(name, workload_uid=gang, owner_uid="", held_by="", node=node, labels=MINE, usage=usage, **said)


@pytest.mark.parametrize("levels", [(), ("rack",), (HOSTNAME_LABEL,)])
@pytest.mark.parametrize("pods_first", [False, True])
def test_pods_of_gangs_stand_where_they_are_unless_their_reservation_says_so(
    levels: tuple[str, ...], pods_first: bool
) -> None:
    """On elastic flavors, and within domains wider than a node, kube-scheduler chooses; and whoever ends when its gang
    has given its nodes back is there."""
    world = of_others(rules(apart=(AntiAffinity("zone", APP, ("ns",)),))).world
    placed = TopologyAssignment(levels, (Domain(("n2" if levels == (HOSTNAME_LABEL,) else "r1",), 2),))
    given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (), 2, placed if levels else None),))
    holds = replace(HOLDS, name="other", uid="o", job_uid="o", admission=given, pod_sets=(PodSet("main", 2, rules()),))
    stands = of_gang("a", "n2", "o", pinned="n2" if levels == (HOSTNAME_LABEL,) else "")
    comes = [lambda: world.workload_seen(seen(holds)), lambda: world.pod_seen(stands)]
    for one in reversed(comes) if pods_first else comes:
        one()
    there = ((Requirement("zone", "NotIn", ("z2",)),),)
    assert affinity_of(world) == there
    world.workload_seen(seen(replace(holds, admission=None)))
    assert affinity_of(world) == there, "it still ends there"
    world.workload_lost(seen(replace(holds, admission=None)))
    assert affinity_of(world) == there
    world.pod_seen(replace(stands, usage=None, done=True))
    assert affinity_of(world) is None


def test_a_gang_that_waits_goes_where_pods_of_its_last_start_linger() -> None:
    """On a node that is lost. While it runs they are not others."""
    near = rules(near=(AntiAffinity("zone", APP, ("ns",)),))
    world = of_others(near).world
    world.pod_seen(of_gang("a", "n1", "v", terminating=True))
    assert affinity_of(world) == ((Requirement("zone", "In", ("z1",)),),)
    held = replace(HOLDS, name="v", uid="v", job_uid="", pod_sets=(PodSet("main", 2, near),))
    world.workload_seen(seen(held))
    assert affinity_of(world) is None
    world.workload_seen(seen(replace(held, admission=None)))
    world.pod_lost(of_gang("a", "n1", "v"))
    assert affinity_of(world) is None


def test_what_a_deleted_job_held_is_free_when_its_last_pod_is_gone() -> None:
    setting = Setting()
    world = setting.world
    world.pod_seen(pod("a"))
    world.pod_seen(pod("b"))
    world.job_lost(JOB)
    world.workload_lost(seen(HOLDS))
    assert setting.used == 2
    assert not setting.state.leaving, "nobody claims its room before it is free"
    world.pod_lost(pod("a"))
    assert setting.used == 2
    world.pod_seen(pod("b", done=True))
    assert setting.used == 0
    assert setting.state.drift() == []


def test_who_wants_the_room_of_a_deleted_job_waits_for_it() -> None:
    setting = Setting()
    world = setting.world
    assert not world.ghost_leaves(("ns", "w"), "u")
    world.pod_seen(pod("a"))
    world.workload_lost(seen(HOLDS))
    assert world.ghost_leaves(("ns", "w"), "u")
    assert setting.state.leaving == {("ns", "w")}
    world.pod_lost(pod("a"))
    assert setting.used == 0
    assert setting.state.drift() == []


def test_without_pods_it_is_free_at_once() -> None:
    setting = Setting()
    setting.world.workload_lost(seen(HOLDS))
    assert setting.used == 0


def test_pods_on_a_node_that_is_gone_for_good_hold_nothing() -> None:
    setting = Setting()
    world = setting.world
    world.node_seen(Node("n1"))
    world.pod_seen(pod("a", terminating=True))
    world.workload_lost(seen(HOLDS))
    world.node_seen(Node("n1", lost_since=1000))
    world.lay_ghosts(1000 + world.lost_after_ms - 1)
    assert setting.used == 2
    world.lay_ghosts(1000 + world.lost_after_ms)
    assert setting.used == 0


@pytest.mark.parametrize(
    ("waits_for_failed", "admission", "there", "wanted"),
    [
        (True, None, {}, "a on node n1 and 1 more"),
        (True, None, {"done": True}, ""),
        (True, None, {"terminating": False}, ""),
        (True, None, {"node": ""}, ""),
        (True, GIVEN, {}, ""),  # it is on its way out itself
        (False, None, {}, ""),
    ],
)
@pytest.mark.parametrize("order", list(itertools.permutations(("job", "workload", "pods"))))
def test_a_job_that_makes_no_pod_beside_one_that_ends_waits_for_that(
    waits_for_failed: bool, admission: Admission | None, there: dict[str, Any], wanted: str, order: tuple[str, ...]
) -> None:
    world = World(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)

    def lingering() -> str:
        world.lay(seen=True)
        value = world.state.workload(("ns", "w"))
        assert value is not None
        return value.lingering

    pods = [pod(name, **{"terminating": True, **there}) for name in "ab"]
    for part in order:
        if part == "job":
            world.job_seen(replace(JOB, waits_for_failed=waits_for_failed))
        elif part == "workload":
            world.workload_seen(seen(replace(HOLDS, admission=admission, admitted=admission is not None)))
        else:
            for one in pods:
                world.pod_seen(one)
    assert lingering() == wanted
    world.pod_lost(pods[0])
    assert lingering() == wanted.replace("a", "b", 1).replace(" and 1 more", "")
    world.pod_seen(replace(pods[1], done=True))
    assert lingering() == ""


@pytest.mark.parametrize(
    ("child", "wanted"),
    [
        ({}, ""),
        ({"ending": "Failed"}, "a on node n1"),  # it has failed for good, once that is gone
        ({"deleting": True}, "a on node n1"),  # its JobSet begins anew, and cannot make it before that
        ({"finished": "Failed"}, ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", list(itertools.permutations(("jobs", "child", "workload", "pods"))))
def test_a_jobset_waits_for_the_last_pods_of_a_job_that_it_could_not_run(
    child: dict[str, Any], wanted: str, order: tuple[str, ...]
) -> None:
    world = World(State(MUSTER), changed_job=lambda _: None, dirty=lambda: None)
    waits = replace(HOLDS, job_uid="s1", admission=None, admitted=False)
    made = replace(CHILD, suspended=True, **child)

    def lingering() -> str:
        world.lay(seen=True)
        value = world.state.workload(("ns", "w"))
        assert value is not None
        return value.lingering

    for part in order:
        if part == "jobs":
            world.job_seen(SET)
        elif part == "child":
            world.job_seen(made)
        elif part == "workload":
            world.workload_seen(seen(waits))
        else:
            world.pod_seen(pod("a", terminating=True, held_by="c1", owner_uid="c1", jobset_uid="s1"))
    assert lingering() == wanted
    world.job_seen(replace(made, deleting=False, ending=None, finished=None))
    assert lingering() == ""
    world.job_seen(made)
    assert lingering() == wanted
    world.job_lost(made)
    assert lingering() == ""


def test_a_pod_that_was_deleted_before_it_was_bound_is_not_waited_for() -> None:
    town = Setting()
    town.world.pod_seen(pod("kept", node="", terminating=True))
    town.world.pod_seen(pod("bound", terminating=True))
    tally = town.world.tally(JOB, town.world.workloads[("ns", "w")], 0)
    assert (tally.live, tally.lost) == (1, 1)


@pytest.mark.parametrize(
    ("more", "survives", "since"),
    [
        ({"terminating": True, "created_at": 5}, False, 20),  # the last that was made is one too many
        ({"created_at": 30}, False, 30),
        ({"terminating": True, "done": True}, False, None),
        ({"node": "", "created_at": 30}, False, None),  # it runs nowhere yet
        ({"terminating": True, "node": "gone"}, False, None),  # and so nobody waits for it
        ({"terminating": True, "node": "n2"}, False, 20),
        ({"terminating": True, "node": "n2"}, True, None),  # other nodes were found for those of n2
        ({"terminating": True, "node": "n1"}, True, 20),
    ],
    ids=str,
)
def test_since_when_more_pods_are_there_than_were_admitted(more: Any, survives: bool, since: int | None) -> None:
    world = Setting().world
    for name in ("n1", "n2"):
        world.node_seen(Node(name))
    world.node_gone("gone")
    there = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),))
    (given,) = GIVEN.pod_sets
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (replace(given, topology=there),)))))
    for one in (pod("a", created_at=10), pod("b", created_at=20)):
        world.pod_seen(one)
    job = replace(JOB, survives=survives)

    def beyond_since() -> int | None:
        found = world.tally(job, world.workloads[("ns", "w")], 100).beyond
        return None if found is None else found.since

    assert beyond_since() is None
    world.pod_seen(pod("c", **more))
    assert beyond_since() == since
    for name in ("d", "e"):
        world.pod_seen(pod(name, terminating=True, created_at=50))
    assert beyond_since() == (50 if since is None else 0)


def test_pods_that_end_on_a_node_that_is_back_are_not_of_the_gang_as_it_runs_now() -> None:
    """It was sent back when the node was lost, and has been running elsewhere since."""
    world = Setting().world
    world.lost_after_ms = 60_000
    world.workload_seen(seen(replace(HOLDS, reserved_at=900_000, admitted_at=900_000)))
    for name in ("a", "b"):
        world.pod_seen(pod(name, node="n2", created_at=901_000))
        world.pod_seen(pod(f"old-{name}", terminating=True, created_at=1000))
    for node in (Node("n1", ready=False, lost_since=600_000), Node("n1")):
        world.node_seen(node)
        assert world.tally(JOB, world.workloads[("ns", "w")], 1_000_000).beyond is None
    world.pod_seen(pod("c", terminating=True, created_at=901_000))
    assert world.tally(JOB, world.workloads[("ns", "w")], 1_000_000).beyond == Beyond(901_000, 3, 2)


@pytest.mark.parametrize(
    ("done", "told", "more", "found"),
    [
        (2, (), {}, None),
        # Beside pods of another pod set that are done the number of all says nothing.
        (2, (), {"pod_set": "gpus"}, Beyond(100, 2, 1, "gpus")),
        (2, (), {"pod_set": "gpus", "terminating": True}, Beyond(100, 2, 1, "gpus")),
        (2, (), {"pod_set": "gpus", "node": ""}, None),
        (2, (("main", 2),), {}, Beyond(100, 1, 0, "main", 2)),
        (1, (("main", 1),), {}, Beyond(100, 2, 1, "main", 1)),
        (1, (("main", 1),), {"done": True}, None),
    ],
    ids=str,
)
def test_pods_that_nobody_is_charged_for_are_those_of_their_own_pod_set(
    done: int, told: Any, more: Any, found: Beyond | None
) -> None:
    world = Setting().world
    given = Admission("q", (*GIVEN.pod_sets, PodSetAssignment("gpus", (("gpu", "f"),), (("gpu", 1),), 1)))
    world.workload_seen(seen(replace(HOLDS, admission=given, reclaimable=told)))
    for name in ("a", "b"):
        world.pod_seen(pod(name, done=name in "ab"[:done]))
    world.pod_seen(pod("g", pod_set="gpus"))

    def beyond(now: int) -> Beyond | None:
        return world.tally(JOB, world.workloads[("ns", "w")], now).beyond

    assert beyond(50) is None
    world.pod_seen(pod("c", **more))
    assert [beyond(now) for now in (100, 200)] == [found, found]
    world.pod_lost(pod("c"))
    assert beyond(300) is None


def test_a_job_whose_workload_was_deleted_is_looked_at_again_when_its_last_pod_is_gone() -> None:
    setting = Setting()
    world = setting.world
    world.pod_seen(pod("a", owner_uid="other", held_by="other"))
    world.workload_lost(seen(HOLDS))
    assert world.sight(KEY, 0).haunted
    setting.woken.clear()
    world.pod_lost(pod("a", owner_uid="other", held_by="other"))
    assert not world.sight(KEY, 0).haunted
    assert KEY in setting.woken


def test_a_workload_made_again_takes_the_place_of_the_deleted_one() -> None:
    setting = Setting()
    world = setting.world
    world.pod_seen(pod("a"))
    world.workload_lost(seen(HOLDS))
    world.workload_seen(seen(replace(HOLDS, uid="w2")))
    world.pod_lost(pod("a"))
    assert setting.used == 2


def test_done_pods_are_spare_once_somebody_waits() -> None:
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, left=(("main", 1),)))
    assert world.sight(KEY, 100).spare_since is None
    setting.woken.clear()
    waits = replace(HOLDS, name="x", uid="x", job_uid="j2", admission=None, admitted=False)
    world.workload_seen(seen(waits))
    assert KEY in setting.woken, "whoever can give is asked again when somebody comes"
    assert world.sight(KEY, 200).spare_since == 200
    assert world.sight(KEY, 300).spare_since == 200
    world.workload_seen(seen(replace(HOLDS, reclaimable=(("main", 1),))))
    assert world.sight(KEY, 400).spare_since is None
    assert setting.used == 1


ON_N1 = PodSetAssignment(
    "main", (), (("gpu.example/gpu", 4),), 2, TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),))
)


@pytest.mark.parametrize(
    ("since", "suspended", "patience", "stays", "due"),
    [
        (5000, False, 120_000, None, 5000 + NODE_GONE_MS),
        (5000, False, 120_000, 300_000, 5000 + NODE_GONE_MS),
        (5000, False, 120_000, 20_000, 15_000),  # Kubernetes deletes a pod of it after 20 s
        (5000, False, 120_000, 0, 5000),
        (5000, False, 4_000, 300_000, 7000),  # pods there are given up sooner
        (5000, True, 120_000, None, 5000),  # not started yet: elsewhere, then
        (0, False, 120_000, None, 5000),  # deleted, or shut down as somebody says
    ],
)
def test_a_node_that_comes_back_soon_takes_nobody_along(
    since: int, suspended: bool, patience: int, stays: int | None, due: int
) -> None:
    """What runs there is left alone for a while, as when an API server was away and all nodes are silent."""
    setting = Setting()
    world = setting.world
    world.lost_after_ms = patience
    world.job_seen(replace(JOB, suspended=suspended))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted=True)))
    for one in (pod("a", stays_ms=stays), pod("done", done=True, stays_ms=0), pod("elsewhere", node="n2", stays_ms=0)):
        world.pod_seen(one)
    whole = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    world.node_seen(replace(whole, lost_since=since))
    for now in range(5000, due, 1000):
        sight = world.sight(KEY, now)
        assert (sight.lost_nodes, sight.lost_at) == ((), due)
    assert world.sight(KEY, due).lost_nodes == ("n1",)
    world.node_seen(whole)
    sight = world.sight(KEY, due)
    assert (sight.lost_nodes, sight.lost_at) == ((), None)


def on_n1(**said: Any) -> Setting:
    """A gang that runs on n1, and of all nodes nothing is known yet."""
    setting = Setting()
    setting.world.job_seen(replace(JOB, suspended=False, pods_expected=1, pods_at_once=1, active=1))
    setting.world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted=True)))
    setting.world.pod_seen(pod("a", **said))
    return setting


def down(name: str, since: int, **said: Any) -> Node:
    return Node(name, ready=False, lost_since=since, allocatable=(("gpu.example/gpu", 4),), **said)


A_ZONE, B_ZONE = (("topology.kubernetes.io/zone", "a"),), (("topology.kubernetes.io/zone", "b"),)
LEFT_OUT = (("node.kubernetes.io/exclude-disruption", ""),)


@pytest.mark.parametrize(
    ("beside", "due"),
    [
        ([down("n2", 9000)], None),
        ([down("n2", 9000, unschedulable=True)], None),
        ([], None),  # a cluster of one node
        ([down("n2", 9000, labels=B_ZONE)], None),
        ([Node("n2", labels=LEFT_OUT)], None),  # of the control plane, say
        ([Node("n2", labels=B_ZONE)], 5000 + NODE_GONE_MS),  # one zone of two
        ([Node("n2", unschedulable=True)], 5000 + NODE_GONE_MS),
        ([down("n2", 9000), Node("n3", ready_since=2000)], 5000 + NODE_GONE_MS),
        ([down("n2", 9000), Node("n3", ready_since=50_000), Node("n4", ready_since=60_000)], 50_000 + NODE_GONE_MS),
    ],
)
def test_while_all_nodes_are_silent_none_is_lost(beside: list[Node], due: int | None) -> None:
    """As with kube-controller-manager. Who begins to look when the first is back counts from there, as who saw it."""
    world = on_n1().world
    for node in (down("n1", 5000, labels=A_ZONE), *beside):
        world.node_seen(node)
    assert (got := world.sight(KEY, 60_000 if due is None or due > 60_000 else 34_000)).lost_nodes == ()
    assert got.lost_at == due
    assert world.sight(KEY, due or 1 << 40).lost_nodes == (() if due is None else ("n1",))


def test_their_time_begins_anew_when_the_first_is_back() -> None:
    setting = on_n1(ready=False, unready_since=6000)
    world, settings = setting.world, Settings(pods_ready_ms=60_000, recovery_ms=60_000)
    for node in (down("n1", 5000), down("n2", 9000), down("n3", 9000)):
        world.node_seen(node)
    assert next_step(world.sight(KEY, 900_000), settings, 900_000) == Next(None, None)
    setting.woken.clear()
    world.node_seen(Node("n2", ready_since=900_000))
    assert KEY in setting.woken
    assert next_step(world.sight(KEY, 901_000), settings, 901_000) == Next(None, 900_000 + NODE_GONE_MS)
    # Others that are back change nothing of that; if the first goes again, the next one counts.
    world.node_seen(Node("n3", ready_since=905_000))
    world.node_gone("n2")
    assert world.sight(KEY, 906_000).lost_at == 905_000 + NODE_GONE_MS
    world.node_seen(Node("n1", ready_since=910_000, allocatable=(("gpu.example/gpu", 4),)))
    # Its pod is not ready yet: its time to recover, too, begins when nodes are heard of again.
    assert next_step(world.sight(KEY, 911_000), settings, 911_000) == Next(None, 905_000 + 60_000)


def test_it_begins_anew_when_the_api_server_is_back_though_no_node_says_that_it_was_silent() -> None:
    setting = on_n1(ready=False, unready_since=6000)
    world, settings = setting.world, Settings(pods_ready_ms=60_000, recovery_ms=60_000)
    for node in (down("n1", 5000), Node("n2", ready_since=1000)):
        world.node_seen(node)
    assert world.sight(KEY, 900_000).lost_nodes == ("n1",)
    world.heard_again(900_000)
    assert next_step(world.sight(KEY, 901_000), settings, 901_000) == Next(None, 900_000 + NODE_GONE_MS)
    world.node_seen(Node("n1", ready_since=902_000, allocatable=(("gpu.example/gpu", 4),)))
    assert next_step(world.sight(KEY, 903_000), settings, 903_000) == Next(None, 900_000 + 60_000)
    world.node_gone("n2")
    world.node_gone("n1")
    assert world.sight(KEY, 904_000).lost_nodes == ("n1",)


@pytest.mark.parametrize("behind_ms", [0, 3_600_000])
def test_a_kubelet_whose_clock_is_behind_does_not_end_the_silence_before_it_was_seen_to(behind_ms: int) -> None:
    world = on_n1().world
    for node in (down("n1", 5000), down("n2", 5000)):
        world.node_seen(node)
    world.node_seen(Node("n2", ready_since=4_000_000 - behind_ms), 4_000_000)
    assert world.sight(KEY, 4_000_001).lost_nodes == ()
    assert world.sight(KEY, 4_000_001).lost_at == 4_000_000 + NODE_GONE_MS
    # They are silent again, and it ends again.
    world.node_seen(down("n2", 4_100_000), 4_100_000)
    world.node_seen(Node("n2", ready_since=4_200_000 - behind_ms), 4_200_000)
    assert world.sight(KEY, 4_200_001).lost_at == 4_200_000 + NODE_GONE_MS


def test_a_kubelet_whose_clock_is_behind_has_its_half_minute_when_it_is_not_ready() -> None:
    world = on_n1().world
    for node in (Node("n1"), Node("n2")):
        world.node_seen(node)
    world.node_seen(down("n1", 1000), 4_000_000)
    world.node_seen(down("n1", 1000, unschedulable=True), 4_010_000)
    assert world.sight(KEY, 4_010_000).lost_at == 4_000_000 + NODE_GONE_MS
    world.node_seen(Node("n1"), 4_020_000)
    world.node_seen(down("n1", 1000), 4_025_000)
    assert world.sight(KEY, 4_025_000).lost_at == 4_025_000 + NODE_GONE_MS


@pytest.mark.parametrize("shut_down", [True, False])
def test_a_node_that_is_deleted_or_shut_down_is_lost_at_once_though_all_are_silent(shut_down: bool) -> None:
    """Nor does who runs there wait until its silence alone would have been a loss: a cloud deletes the node of a
    machine that it took away, and that was silent before."""
    setting = on_n1()
    world = setting.world
    world.node_seen(down("n2", 9000))
    world.node_seen(down("n1", 5000))
    assert world.sight(KEY, 10_000).lost_nodes == ()
    setting.woken.clear()
    if shut_down:
        world.node_seen(down("n1", 0))
    else:
        world.node_gone("n1")
    assert KEY in setting.woken
    assert world.sight(KEY, 10_000).lost_nodes == ("n1",)
    setting.woken.clear()
    world.node_gone("n1")
    assert setting.woken == []


def test_what_is_known_of_silence_is_what_the_nodes_say() -> None:
    """Whatever came and went: the same as of a controller that lists them now; and nothing piles up."""
    chance, kept, nodes = Random(7), Silence(), dict[str, Node]()
    for step in range(3000):
        name = f"n{chance.randrange(4)}"
        if chance.random() < 0.2:
            nodes.pop(name, None)
            kept.gone(name)
        else:
            left_out = LEFT_OUT if chance.random() < 0.2 else ()
            ready = chance.random() < 0.5
            nodes[name] = Node(name, ready=ready, ready_since=step * ready, labels=left_out)
            kept.seen(nodes[name])
        asked = [node for node in nodes.values() if not node.labels]
        well = min((node.ready_since for node in asked if node.ready), default=None if asked else 0)
        assert kept.over_since == well
    assert len(kept._order) < 40


def test_devices_that_are_gone_for_a_while_are_a_lost_node() -> None:
    setting = Setting()
    world = setting.world
    world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 4), ("pods", 110))))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted=True)))
    assert world.sight(KEY, 1000).lost_nodes == ()
    setting.woken.clear()
    world.node_seen(Node("n1", allocatable=(("pods", 110),)))
    assert KEY in setting.woken
    sight = world.sight(KEY, 2000)
    assert (sight.lost_nodes, sight.lost_at) == ((), 2000 + NODE_GONE_MS)
    world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 4), ("pods", 110))))
    assert world.sight(KEY, 3000).lost_at is None, "a kubelet that started again"
    world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 3), ("pods", 110))))
    assert world.sight(KEY, 4000).lost_at == 4000 + NODE_GONE_MS, "not since they were gone the last time"
    lost = world.sight(KEY, 4000 + NODE_GONE_MS)
    assert (lost.lost_nodes, lost.short) == (("n1",), (("n1", "3 of 4 gpu.example/gpu"),))
    world.node_seen(Node("n1", ready=False, lost_since=0, allocatable=(("gpu.example/gpu", 3), ("pods", 110))))
    gone = world.sight(KEY, 4000 + NODE_GONE_MS)
    assert (gone.lost_nodes, gone.short) == (("n1",), ()), "the node itself is not there"


@pytest.mark.parametrize(
    ("there", "away", "patience"),
    [
        ([pod("a"), pod("b"), pod("over", done=True, ready=False)], ("gpu.example/gpu",), AWAY_MS),
        ([pod("a"), pod("b", node="n2", ready=False)], ("gpu.example/gpu", "x.example/nic"), AWAY_MS),
        ([pod("a"), pod("b", ready=False)], ("gpu.example/gpu",), NODE_GONE_MS),  # not after a node has started anew
        ([pod("a"), pod("b", terminating=True)], ("gpu.example/gpu",), NODE_GONE_MS),
        ([pod("b", node="n2")], ("gpu.example/gpu",), NODE_GONE_MS),  # it was created anew, and waits
        ([pod("a"), pod("b")], (), NODE_GONE_MS),  # its kubelet has given them up
        ([pod("a"), pod("b")], ("x.example/nic",), NODE_GONE_MS),
    ],
)
def test_devices_whose_plugin_starts_anew_are_left_to_pods_that_run_on(
    there: list[PodView], away: tuple[str, ...], patience: int
) -> None:
    """Each upgrade of a device plugin would send all gangs back, one node after the other."""
    setting = Setting()
    world = setting.world
    whole = Node("n1", allocatable=(("gpu.example/gpu", 4), ("pods", 110)))
    none = Node("n1", allocatable=(("gpu.example/gpu", 0), ("pods", 110)), away=away)
    world.node_seen(whole)
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted=True)))
    for one in there:
        world.pod_seen(one)
    world.node_seen(none)
    sight = world.sight(KEY, 2000)
    assert (sight.lost_nodes, sight.lost_at) == ((), 2000 + patience)
    assert world.sight(KEY, 2000 + patience).short == (("n1", "0 of 4 gpu.example/gpu"),)
    world.node_seen(whole)
    world.sight(KEY, 400_000)
    world.node_seen(none)
    world.sight(KEY, 500_000)
    setting.woken.clear()
    world.node_seen(replace(none, away=()))
    assert (KEY in setting.woken) == bool(away)
    assert world.sight(KEY, 500_000 + NODE_GONE_MS).lost_nodes == ("n1",)


@pytest.mark.parametrize("retain", [True, False])
def test_what_quota_counts_as_something_else_is_looked_for_on_nodes_as_pods_ask_for_it(retain: bool) -> None:
    """No node has what a transformation makes: every gang was evicted for that, again and again."""
    counts = Transformation("gpu.example/gpu", (("example.com/credits", Fraction(3)),), retain=retain)
    setting = Setting(replace(MUSTER, transformations=(counts,)))
    world = setting.world
    whole, half = (Node("n1", allocatable=(("gpu.example/gpu", n), ("pods", 110))) for n in (4, 2))
    usage = (("example.com/credits", 12), *((("gpu.example/gpu", 4),) if retain else ()))
    given = Admission("q", (replace(ON_N1, usage=usage),))
    pod_sets = (PodSet("main", 2, PodShape(requests=(("gpu.example/gpu", 2),))),)
    world.node_seen(whole)
    world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=pod_sets)))
    assert (world.sight(KEY, 1000).lost_at, world.sight(KEY, 1000 + NODE_GONE_MS).lost_nodes) == (None, ())
    world.node_seen(half)
    world.sight(KEY, 50_000)
    assert world.sight(KEY, 50_000 + NODE_GONE_MS).short == (("n1", "2 of 4 gpu.example/gpu"),)


@pytest.mark.parametrize(
    "node",
    [
        Node("n1", ready=False, lost_since=5000, allocatable=(("gpu.example/gpu", 4),)),
        Node("n1", allocatable=(("gpu.example/gpu", 3),)),
        None,
    ],
    ids=["all nodes are silent", "devices are gone", "deleted, and no pod is left there"],
)
def test_what_a_gang_has_lost_is_lost_until_it_is_well_whoever_looks(node: Node | None) -> None:
    """A controller that began a moment ago would take it for back, and blame it for a second loss a while later."""
    world = on_n1(node="").world
    if node is not None:
        world.node_seen(node)
    given = replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted=True)
    assert world.sight(KEY, 5000).lost_nodes == ()
    world.workload_seen(seen(replace(given, lost_nodes=("n1", "n2"))))
    assert world.sight(KEY, 5000).lost_nodes == ("n1",)
    world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 4),)))
    assert world.sight(KEY, 6000).lost_nodes == ()


def test_since_when_a_start_is_refused() -> None:
    setting = Setting()
    world, waits = setting.world, replace(JOB, suspended=True, started=False)
    world.job_seen(waits)
    assert world.sight(KEY, 1000).start_refused is None
    world.start_refused(KEY, 1000, "no")
    world.start_refused(KEY, 5000, "still no")
    assert world.sight(KEY, 6000).start_refused == (1000, 5000, "still no")
    world.workload_seen(seen(replace(HOLDS, admitted_at=7000)))
    assert world.sight(KEY, 8000).start_refused is None, "what was said was of an earlier admission"
    world.start_refused(KEY, 9000, "no")
    world.started(KEY, 9500)
    assert world.sight(KEY, 9500).start_refused is None
    world.start_refused(KEY, 9600, "no")
    world.looks_anew()
    world.start_refused(KEY, 9900, "no")
    assert world.sight(KEY, 9900).start_refused == (9900, 9900, "no"), "another led meanwhile, or nobody could"
    world.start_refused(KEY, 10_000, "no")
    world.job_lost(waits)
    assert world._starts_refused == {}


def test_a_start_that_is_refused_again_was_refused_since_then_unless_it_is_of_another_admission() -> None:
    setting = Setting()
    setting.world.job_seen(replace(JOB, suspended=True, started=False))
    setting.world.start_refused(KEY, 1000, "no")
    setting.world.workload_seen(seen(replace(HOLDS, admitted_at=7000)))
    setting.world.start_refused(KEY, 8000, "no")
    assert setting.world.sight(KEY, 9000).start_refused == (8000, 8000, "no")


def test_news_of_one_that_is_gone_are_none_of_one_that_was_made_anew() -> None:
    setting = Setting()
    world = setting.world
    world.job_lost(replace(JOB, uid="before"))
    assert world.jobs[KEY].uid == "j1"
    world.workload_lost(seen(replace(HOLDS, uid="before")))
    assert world.workloads[HOLDS.key].uid == "w1"
    assert setting.used == 2


@pytest.mark.parametrize(("finished", "live", "held"), [(False, True, 2), (False, False, 0), (True, True, 0)])
def test_a_workload_that_is_gone_holds_room_for_as_long_as_pods_of_it_use_it(
    finished: bool, live: bool, held: int
) -> None:
    setting = Setting()
    value = replace(HOLDS, finished=finished)
    setting.world.workload_seen(seen(value))
    setting.world.pod_seen(pod("a", done=not live))
    setting.world.workload_lost(seen(value))
    assert setting.used == held


@pytest.mark.parametrize(
    ("said", "strangers"), [({}, 1), ({"done": True}, 0), ({"held_by": "j1"}, 0), ({"held_by": ""}, 0)]
)
def test_pods_of_a_gang_that_is_gone_are_of_no_job_that_they_name(said: dict[str, Any], strangers: int) -> None:
    """What a pod says of its Job stands in its template; whose it is alone makes a stranger of it."""
    setting = Setting()
    world = setting.world
    other = replace(JOB, name="other", uid="j2")
    world.job_seen(other)
    world.workload_seen(seen(replace(HOLDS, name="w2", uid="w2", job_uid="j2")))
    world.pod_seen(pod("a", **{"owner_uid": "j2", "held_by": "j2", **said}))
    for gone in (False, True):
        if gone:
            world.workload_lost(seen(HOLDS))
        tally = world.sight(other.key, 1000).pods
        assert (tally.live, tally.strangers) == (0, strangers)


def test_a_job_of_a_jobset_that_is_there_is_left_to_it() -> None:
    """Though no Workload of the gang that started it is."""
    setting = Setting()
    parent = replace(JOB, kind="JobSet", name="set", uid="s1", started=False)
    child = replace(
        JOB,
        name="child",
        uid="c1",
        started=False,
        marked_for="gone",
        owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "s1"),
    )
    setting.world.job_seen(child)
    assert setting.world.sight(child.key, 1000).abandoned
    setting.world.job_seen(parent)
    assert not setting.world.sight(child.key, 1000).abandoned


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_of_a_jobset_has_noticed_its_start_when_it_says_that_it_is_suspended_no_more(stopped: bool) -> None:
    setting = Setting()
    parent = replace(JOB, kind="JobSet", name="set", uid="s1")
    child = replace(
        JOB, name="child", uid="c1", owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "s1"), start_time_set=True,
        suspended_condition=stopped,
    )  # fmt: skip
    for one in (parent, child):
        setting.world.job_seen(one)
    assert setting.world.sight(parent.key, 1000).unheard == stopped


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_of_several_nodes_that_may_be_lost_the_first_to_be_so_counts(first: str) -> None:
    """Whatever its name is: silent ones, and ones that have lost their devices."""
    both = (("gpu.example/gpu", 4),)
    domains = tuple(Domain((name,), 1) for name in ("n1", "n2"))
    at = TopologyAssignment((HOSTNAME_LABEL,), domains)
    given = PodSetAssignment("main", (("gpu.example/gpu", "f"),), (("gpu.example/gpu", 8),), 2, at)
    for short in (False, True):
        setting = Setting()
        world = setting.world
        world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (given,)))))
        for name in ("n1", "n2", "n3"):
            world.pod_seen(pod(f"p-{name}", node=name))
            world.node_seen(Node(name, allocatable=both))
        since = {name: 5000 if name == first else 9000 for name in ("n1", "n2")}
        for name in sorted(since, key=lambda name: since[name]):
            if short:
                world.node_seen(Node(name))
                world.sight(KEY, since[name])
            else:
                world.node_seen(down(name, since[name]))
        assert world.sight(KEY, 10_000).lost_at == 5000 + NODE_GONE_MS


def test_what_keeps_a_pod_off_its_node_is_what_its_own_pod_set_does_not_bear() -> None:
    closed = Taint("team", "a", "NoSchedule")
    shapes = (PodShape(tolerations=(Toleration("team", "Exists"),)), PodShape())
    for bears in (True, False):
        setting = Setting()
        mine, others = shapes if bears else shapes[::-1]
        parts = (PodSet("main", 1, mine), PodSet("other", 1, others))
        given = Admission("q", (ON_N1, replace(ON_N1, name="other")))
        setting.world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=parts)))
        setting.world.pod_seen(pod("a", ready=False, node="", pinned="n1", unschedulable_since=5))
        setting.world.node_seen(Node("n1", taints=(closed,)))
        assert bool(setting.world.sight(KEY, 100).pods.shut_out) is not bears


@pytest.mark.parametrize("first", [None, 0, 1])
def test_while_the_starts_of_all_are_refused_it_is_for_no_jobs_sake(first: int | None) -> None:
    """first: which of those that were refused is started first; None: another."""
    setting = Setting()
    world = setting.world
    keys = []
    for number, namespace in enumerate(("ns", "other", "other")):
        one = replace(JOB, namespace=namespace, name=f"j{number}", uid=f"j-{number}", suspended=True, started=False)
        world.job_seen(one)
        world.workload_seen(seen(replace(HOLDS, namespace=namespace, name=f"w{number}", uid=one.uid, job_uid=one.uid)))
        keys.append((one.kind, namespace, one.name))
        world.start_refused(keys[-1], 1000, "no")
    assert [world.sight(key, 1000 + WINDOW_MS).start_refused for key in keys] == [None] * 3
    setting.woken.clear()
    world.started(begun := keys[first] if first is not None else KEY, 90_000)
    waiting = [key for key in keys if key != begun]
    assert set(waiting) <= set(setting.woken)
    assert [world.sight(key, 91_000).start_refused for key in waiting] == [(90_000, 1000, "no")] * len(waiting)


def test_a_look_at_a_gang_goes_through_its_nodes_a_few_times_however_many_they_are() -> None:
    """It is looked at for each change of each of its pods: once through all nodes for each of them would keep everybody
    else waiting while a large gang starts."""
    nodes, gone_through = 64, 0

    class Domains(tuple[Domain, ...]):
        def __iter__(self) -> Iterator[Domain]:
            nonlocal gone_through
            gone_through += 1
            return super().__iter__()

    setting = Setting()
    names = [f"n{i}" for i in range(nodes)]
    for name in names:
        setting.world.node_seen(Node(name, allocatable=(("gpu.example/gpu", 8), ("pods", 110))))
    at = TopologyAssignment((HOSTNAME_LABEL,), Domains(Domain((name,), 1) for name in names))
    usage = (("gpu.example/gpu", 8 * nodes),)
    given = Admission("q", (PodSetAssignment("main", (("gpu.example/gpu", "f"),), usage, nodes, at),))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=(PodSet("main", nodes),))))
    for name in names:
        setting.world.pod_seen(pod(name, node=name))
    setting.world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 7), ("pods", 110))))
    setting.world.sight(KEY, 1000)
    gone_through = 0
    assert setting.world.sight(KEY, 1000 + NODE_GONE_MS).short == (("n1", "7 of 8 gpu.example/gpu"),)
    assert gone_through < 4


def test_a_taint_that_takes_pods_off_a_node_loses_it_to_those_that_do_not_tolerate_it() -> None:
    setting = Setting()
    world = setting.world
    for name in ("n1", "n2"):
        world.node_seen(Node(name))
    at = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 1), Domain(("n2",), 1)))
    given = Admission("q", (replace(GIVEN.pod_sets[0], topology=at),))
    repair, pool = Taint("repair", "now", "NoExecute"), Taint("pool", "", "NoExecute")

    def sight(
        *taints: Taint,
        own: tuple[Toleration, ...] = (),
        by_flavor: tuple[Toleration, ...] = (),
        by_check: tuple[Toleration, ...] = (),
    ) -> Any:
        setting.state.apply(Put(Flavor("f", elastic=True, tolerations=by_flavor)))
        shape = PodShape(tolerations=own)
        check = Check("c", CheckState.READY, tolerations=(("main", by_check),))
        held = replace(HOLDS, admission=given, pod_sets=(PodSet("main", 2, shape),), checks=(check,))
        world.workload_seen(seen(held))
        world.node_seen(Node("n1", taints=taints))
        got = world.sight(KEY, 0)
        return got.lost_nodes, got.tainted

    nothing = ((), ())
    assert sight() == nothing
    assert sight(replace(repair, effect="NoSchedule")) == nothing
    setting.woken.clear()
    assert sight(repair) == (("n1",), (("n1", "repair=now:NoExecute"),))
    assert KEY in setting.woken
    assert sight(repair, own=(Toleration("repair", "Exists"),)) == nothing
    assert sight(pool, by_flavor=(Toleration("pool", "Exists", effect="NoExecute"),)) == nothing
    assert sight(pool, by_check=(Toleration("pool", "Exists", effect="NoExecute"),)) == nothing
    assert sight(pool, repair, own=(Toleration("pool", "Exists"),))[0] == ("n1",)
    assert world.pods_live(("ns", "w1"), 0) == 0
    world.pod_seen(pod("a", terminating=True))
    assert world.pods_live(("ns", "w1"), 1 << 50) == 1, "kubelet is there to end it"
    setting.woken.clear()
    assert sight() == nothing
    assert KEY in setting.woken
    world.node_seen(Node("n1", taints=(repair,)))
    world.node_gone("n1")
    assert world.sight(KEY, 0).tainted == ()


@pytest.mark.parametrize(
    ("own", "seen_at", "due"),
    [
        ((Toleration("repair", "Exists", seconds=60),), 5000, 35_000),  # half is left to stop the gang
        ((Toleration("repair", "Exists", "", "NoExecute", 3600), Toleration("", "Exists")), 5000, 1_805_000),
        ((Toleration("", "Exists"), Toleration("repair", "Exists", seconds=60)), 5000, None),  # the first counts
        ((Toleration("repair", "Exists", seconds=-1),), 5000, 5000),
        ((Toleration("repair", "Exists", seconds=60),), 0, 31_000),  # it was there before anybody looked
        ((Toleration("repair", "Exists", seconds=60),), 500, 31_000),  # it came before the gang did
        ((), 5000, 5000),
    ],
)
def test_a_gang_that_bears_a_taint_for_a_while_is_stopped_before_its_pods_are_deleted(
    own: tuple[Toleration, ...], seen_at: int, due: int | None
) -> None:
    setting = Setting()
    world = setting.world
    held = replace(HOLDS, admission=Admission("q", (ON_N1,)), admitted_at=1000)
    world.workload_seen(seen(replace(held, pod_sets=(PodSet("main", 2, PodShape(tolerations=own)),))))
    well = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    tainted = replace(well, taints=(Taint("repair", "now", "NoExecute"),))
    if seen_at:
        world.node_seen(well)
    world.node_seen(tainted, seen_at)
    world.node_seen(replace(tainted, labels=(("other", "x"),)), 20_000)
    for now in (5000, (due or 10**9) - 1) if due != 5000 else ():
        sight = world.sight(KEY, now)
        assert (sight.tainted, sight.lost_at) == ((), due)
    if due is not None:
        assert world.sight(KEY, due).tainted == (("n1", "repair=now:NoExecute"),)
        world.node_seen(well)
        world.node_seen(tainted, 2_000_000)
        assert bool(world.sight(KEY, 2_000_000).tainted) == (due == 5000)


def test_of_several_taints_that_are_borne_for_a_while_the_first_to_end_counts() -> None:
    setting = Setting()
    world = setting.world
    own = tuple(Toleration(key, "Exists", seconds=seconds) for key, seconds in (("repair", 60), ("drain", 600)))
    given = Admission("q", (ON_N1,))
    world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=(PodSet("main", 2, PodShape(tolerations=own)),))))
    well = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    world.node_seen(well)
    world.node_seen(replace(well, taints=tuple(Taint(key, "", "NoExecute") for key in ("repair", "drain"))), 5000)
    assert world.sight(KEY, 5000).lost_at == 35_000
    assert world.sight(KEY, 35_000).tainted == (("n1", "repair:NoExecute"),)


@pytest.mark.parametrize(
    ("admitted_at", "named", "seen_at", "lost"),
    [
        (5000, False, 5000, False),  # kube-scheduler would choose that node again, and the job never come to its end
        (4999, False, 5000, True),
        (4999, True, 5000, False),  # who is on such a flavor for a while means to be
        # A controller that has just begun: it may have come since, and who comes back stays.
        (4999, False, 0, True),
        (5000, False, 0, False),
    ],
)
def test_a_taint_that_was_there_or_that_the_flavor_names_is_borne_for_as_long_as_is_said(
    admitted_at: int, named: bool, seen_at: int, lost: bool
) -> None:
    setting = Setting()
    world, taint = setting.world, Taint("repair", "now", "NoExecute")
    setting.state.apply(Put(Flavor("f", node_taints=(taint,) if named else (), elastic=True)))
    given = Admission("q", (replace(ON_N1, flavors=(("gpu", "f"),), topology=None),))
    part = PodSet("main", 2, PodShape(tolerations=(Toleration("repair", "Exists", seconds=60),)))
    world.workload_seen(seen(replace(HOLDS, admission=given, admitted_at=admitted_at, pod_sets=(part,))))
    well = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    if seen_at:
        world.node_seen(well)
    world.node_seen(replace(well, taints=(taint,)), seen_at)
    world.sight(KEY, 5000)
    world.pod_seen(pod("a", node="n1"))
    assert bool(world.sight(KEY, 5000 + 30_000).tainted) == lost


@pytest.mark.parametrize(
    ("before", "comes", "seen_at", "due"),
    [
        (None, {}, 5000, 155_000),  # its network is not ready yet, or who made it has not registered it
        ({"ready": False}, {}, 5000, 155_000),
        (None, {"ready": False}, 5000, 156_000),  # from when it is ready
        ({}, {}, 5000, 5000),
        (None, {}, 0, 5000),  # a controller that has just begun: their minutes may be over
    ],
)
def test_pods_whose_nodes_are_not_chosen_are_given_time_on_a_node_that_comes_with_a_taint(
    before: dict[str, Any] | None, comes: dict[str, Any], seen_at: int, due: int
) -> None:
    """They bear it for five minutes, and so were put there while it was made ready; each such node stopped them all."""
    setting = Setting()
    world, taint = setting.world, Taint("node.cilium.io/agent-not-ready", "true", "NoExecute")
    given = Admission("q", (replace(ON_N1, topology=None),))
    world.workload_seen(seen(replace(HOLDS, admission=given, admitted_at=1000)))
    well = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    if before is not None:
        world.node_seen(replace(well, **before), 4000)
    world.node_seen(replace(well, taints=(taint,), **comes), seen_at)
    world.node_seen(replace(well, taints=(taint,)), 6000)
    world.pod_seen(pod("a", node="n1"))
    for now in (due - 1,) if due > 5000 else ():
        assert (world.sight(KEY, now).tainted, world.sight(KEY, now).lost_at) == ((), due)
    assert world.sight(KEY, due).tainted == (("n1", taint.text),)
    world.node_seen(well, 6500)
    assert world.sight(KEY, due).tainted == ()
    world.node_seen(replace(well, taints=(taint,)), 7000)
    assert world.sight(KEY, 7000).tainted == (("n1", taint.text),), "it came while they ran there"


def test_the_time_on_a_node_that_comes_with_a_taint_runs_from_when_it_is_ready() -> None:
    """No pod comes there before, however long its network takes."""
    setting = Setting()
    world, taint = setting.world, Taint("node.cilium.io/agent-not-ready", "true", "NoExecute")
    given = Admission("q", (replace(ON_N1, topology=None),))
    world.workload_seen(seen(replace(HOLDS, admission=given, admitted_at=1000)))
    comes = Node("n1", allocatable=(("gpu.example/gpu", 4),), taints=(taint,))
    world.node_seen(replace(comes, ready=False), 5000)
    world.pod_seen(pod("a", node="n1"))
    assert world.sight(KEY, 165_000).tainted == (), "it is ready, which is heard in a moment"
    world.node_seen(comes, 170_000)
    world.node_seen(replace(comes, ready=False), 180_000)
    world.node_seen(comes, 190_000)
    assert (world.sight(KEY, 170_000).tainted, world.sight(KEY, 170_000).lost_at) == ((), 320_000)
    assert world.sight(KEY, 320_000).tainted == (("n1", taint.text),)


def test_a_node_that_was_ready_before_does_not_come_with_the_taint_that_takes_pods_off_it() -> None:
    """It was not ready for seconds when who repairs it put the taint there, which stays."""
    setting = Setting()
    world, taint = setting.world, Taint("repair", "", "NoExecute")
    given = Admission("q", (replace(ON_N1, topology=None),))
    world.workload_seen(seen(replace(HOLDS, admission=given, admitted_at=500)))
    well = Node("n1", allocatable=(("gpu.example/gpu", 4),))
    for began in (1000, 0):
        world.node_seen(well, began)
        world.pod_seen(pod("a", node="n1"))
        world.node_seen(replace(well, ready=False), 3000)
        world.node_seen(replace(well, ready=False, taints=(taint,)), 5000)
        world.node_seen(replace(well, taints=(taint,)), 6000)
        assert world.sight(KEY, 6000).tainted == (("n1", taint.text),)
        world.node_gone("n1")
    world.node_seen(replace(well, taints=(taint,)), 7000)
    assert world.sight(KEY, 7000).tainted == (), "another node of its name"


def test_a_node_is_avoided_from_the_second_loss_on_and_for_a_day() -> None:
    first = blamed((), ("n1",), 1000)
    assert [(entry.node, entry.until > 1000) for entry in first] == [("n1", False)]
    second = blamed(first, ("n1", "n2"), 2000)
    assert [(entry.node, entry.until) for entry in second] == [("n1", 2000 + AVOID_MS), ("n2", 2000)]
    assert second[0].reason
    later = 3000 + 2 * AVOID_MS
    assert [(entry.node, entry.until) for entry in blamed(second, ("n2",), later)] == [("n2", later)]
    refused = blamed(second, ("n1", "n2"), 3000, lost=False)
    assert [(entry.node, entry.until) for entry in refused] == [("n1", 2000 + AVOID_MS), ("n2", 3000 + REFUSED_MS)]
    assert "let no pod of this job come there" in refused[1].reason
    for_good = values.workload({"status": {"avoidNodes": [{"node": "n3"}]}}, Names())[0].avoid
    written = values.avoid_object(blamed(for_good, ("n1",), 1000))
    assert values.workload({"status": {"avoidNodes": written[:1]}}, Names())[0].avoid == for_good


CHILD = JobView(
    kind="Job",
    namespace="ns",
    name="set-a-0",
    uid="c1",
    resource_version="1",
    owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "s1"),
    marked_for="w1",
)
SET = JobView(kind="JobSet", namespace="ns", name="set", uid="s1", resource_version="1", queue="main", started=True)


def test_a_pod_that_names_its_job_alone_is_of_the_jobset_too() -> None:
    """As those do that were made before their gang was ours; of a gang that was started here, they are none."""
    woken: list[Any] = []
    world = World(State(MUSTER), changed_job=woken.append, dirty=lambda: None)
    before = replace(SET, started=False)
    for one in (before, CHILD):
        world.job_seen(one)
    woken.clear()
    world.pod_seen(pod("a", workload_uid="", owner_uid="c1", held_by="c1"))
    assert world.tally(before, None, 10**9).live == 1
    assert ("JobSet", "ns", "set") in woken
    tally = world.tally(SET, None, 10**9)
    assert (tally.live, tally.strangers) == (0, 1)


def test_a_pod_that_its_start_did_not_make_is_none_of_a_gang_after_its_template_was_put_back_either() -> None:
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, started_for="w1"))
    world.pod_seen(pod("x", workload_uid="", owner_uid="j1", held_by="j1", terminating=True))
    for job in (replace(JOB, started_for="w1"), replace(JOB, suspended=True, started=False)):
        world.job_seen(job)
        tally = world.sight(KEY, 100).pods
        assert (tally.live, tally.strangers) == (0, 1)


@pytest.mark.parametrize(
    ("jobs", "pods", "stray", "unled"),
    [
        ((JOB,), (pod("a"),), (), ()),
        ((replace(JOB, deleting=True),), (pod("a"),), (("ns", "a"),), ()),
        ((JOB,), (pod("a", held_by=""),), (("ns", "a"),), ()),
        ((), (pod("a"),), (("ns", "a"),), ()),
        ((), (pod("a", terminating=True), pod("b", done=True)), (), ()),
        ((SET, CHILD), (pod("a", held_by="c1", jobset_uid="s1"),), (), ()),
        (
            (replace(SET, deleting=True), CHILD),
            (pod("a", held_by="c1", jobset_uid="s1"),),
            (),
            (("Job", "ns", "set-a-0"),),
        ),
        ((replace(SET, deleting=True), CHILD), (), (), (("Job", "ns", "set-a-0"),)),
        ((replace(SET, deleting=True), replace(CHILD, suspended=True)), (), (), ()),
        ((replace(SET, deleting=True), replace(CHILD, finished="Succeeded")), (), (), ()),
        ((replace(SET, deleting=True), replace(CHILD, deleting=True)), (), (), ()),
        ((CHILD,), (pod("a", held_by="c1", jobset_uid="s1"),), (), (("Job", "ns", "set-a-0"),)),
    ],
    ids=str,
)
def test_which_pods_nobody_would_stop(jobs: Any, pods: Any, stray: Any, unled: Any) -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    held = replace(HOLDS, job_uid=jobs[0].uid if jobs and jobs[0].kind == "JobSet" else "j1")
    world.workload_seen(seen(held))
    for one in jobs:
        world.job_seen(one)
    for one in pods:
        world.pod_seen(one)
    job = next((one for one in jobs if one.uid == held.job_uid), None)
    tally = world.tally(job, world.workloads[("ns", "w")], 0)
    assert (tally.stray, tally.unled) == (stray, unled)


@pytest.mark.parametrize(
    ("parent", "child", "within"),
    [
        (SET, CHILD, True),
        (replace(SET, queue=""), CHILD, False),
        (None, CHILD, False),
        (SET, replace(CHILD, owner=("example.com/v1", "JobSet", "s1")), False),
        (SET, replace(CHILD, owner=None), False),
    ],
    ids=str,
)
def test_which_jobs_are_of_a_jobset_that_is_queued(parent: JobView | None, child: JobView, within: bool) -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    for one in [*([parent] if parent is not None else []), child]:
        world.job_seen(one)
    sight = world.sight(child.key, 0)
    assert sight.within is within
    assert parent is None or not world.sight(parent.key, 0).within


STARTED = replace(CHILD, start_time_set=True)
HELD = replace(CHILD, suspended=True, suspended_condition=True)


@pytest.mark.parametrize(
    ("stopping", "child", "goes", "unheard"),
    [
        (False, CHILD, True, 1),  # made a moment ago: its pods may come at any time
        (False, STARTED, True, 0),
        (False, replace(CHILD, suspended_condition=True), True, 1),  # resumed, and not noticed
        (False, HELD, False, 0),  # its turn comes later
        (True, STARTED, True, 1),
        (True, replace(STARTED, suspended=True), False, 1),
        (True, HELD, False, 0),
        (True, replace(CHILD, finished="Failed"), False, 0),
        (True, replace(CHILD, deleting=True), False, 0),
        (True, replace(STARTED, suspended=True, ending="Failed"), False, 0),  # and never says that it is suspended
    ],
    ids=str,
)
def test_which_jobs_of_a_jobset_go_on_and_of_which_the_job_controller_has_not_heard(
    stopping: bool, child: JobView, goes: bool, unheard: int
) -> None:
    woken: list[JobKey] = []
    world = World(State(MUSTER), changed_job=woken.append, dirty=lambda: None)
    for one in (replace(SET, suspended=stopping), replace(HELD, name="set-a-1", uid="c2")):
        world.job_seen(one)
    woken.clear()
    world.job_seen(child)
    key = ("JobSet", "ns", "set")
    assert key in woken, "its JobSet is looked at again"
    sight = world.sight(key, 0)
    assert (sight.going, sight.unheard) == ((("Job", "ns", "set-a-0"),) if goes else (), unheard)
    woken.clear()
    world.job_seen(child)
    assert key not in woken
    world.job_lost(child)
    assert key in woken
    assert world.sight(key, 0).unheard == 0


@pytest.mark.parametrize(
    ("parent", "child", "marked"),
    [
        ({"suspended": True}, {"suspended": True}, True),
        ({"suspended": True}, {"suspended": True, "marked_for": ""}, False),
        ({"suspended": True}, {"suspended": False}, False),
        ({"suspended": False}, {"suspended": True}, False),
        # On Kubernetes 1.35 and older nobody clears it.
        ({"suspended": True}, {"suspended": True, "start_time_set": True}, True),
        ({"suspended": True}, {"suspended": True, "finished": "Succeeded"}, False),
        ({"suspended": True}, {"suspended": True, "deleting": True}, False),
        ({"suspended": True}, {"suspended": True, "start_time_set": True, "ending": "Failed"}, False),
    ],
)
def test_which_jobs_of_a_jobset_still_say_what_a_start_wrote(parent: Any, child: Any, marked: bool) -> None:
    setting = Setting()
    world, key = setting.world, ("JobSet", "ns", "set")
    world.job_seen(replace(SET, **parent))
    world.job_seen(replace(CHILD, **child))
    assert world.sight(key, 0).marked == ((("Job", "ns", "set-a-0"),) if marked else ())
    setting.woken.clear()
    world.job_seen(replace(CHILD, **{**child, "marked_for": ""}))
    assert key in setting.woken or not marked
    assert world.sight(key, 0).marked == ()


def test_a_jobset_is_looked_at_when_a_job_of_it_comes_to_its_end() -> None:
    setting = Setting()
    world, stopped = setting.world, replace(STARTED, suspended=True)
    for one in (replace(SET, suspended=True), stopped):
        world.job_seen(one)
    assert world.sight(("JobSet", "ns", "set"), 0).unheard == 1
    setting.woken.clear()
    world.job_seen(replace(stopped, ending="Failed"))
    assert ("JobSet", "ns", "set") in setting.woken
    assert world.sight(("JobSet", "ns", "set"), 0).unheard == 0
    assert world.made_early(SET) == ()


WAITS = replace(HOLDS, admission=None, reserved_at=0, admitted=False, admitted_at=0, job_uid="")
WRITTEN = replace(WAITS, admission=GIVEN, reserved_at=5, admitted=True, admitted_at=5)


@pytest.mark.parametrize(
    ("rules", "comes", "news"),
    [
        (KUEUE, WRITTEN, False),
        (KUEUE, replace(WRITTEN, admitted_at=7), False),
        (KUEUE, WAITS, False),  # an older version: it still counts as admitted
        (MUSTER, WRITTEN, True),  # promises count from when it runs
        (KUEUE, replace(WRITTEN, admitted=False, admitted_at=0), True),
        (KUEUE, replace(WRITTEN, evicted="Preempted", evicted_at=9), True),
        (KUEUE, replace(WRITTEN, priority=3), True),
        (KUEUE, replace(WRITTEN, finished=True), True),
        (KUEUE, replace(WRITTEN, uid="w2"), True),
        (KUEUE, replace(WRITTEN, admission=replace(GIVEN, cluster_queue="other")), True),
    ],
)
def test_what_was_decided_and_comes_back_is_no_reason_to_decide(rules: Rules, comes: Workload, news: bool) -> None:
    said: list[str] = []
    state = State(rules)
    world = World(
        state,
        changed_job=lambda key: None,
        dirty=lambda: said.append("decide"),
        told=lambda: said.append("told"),
    )
    world.workload_seen(seen(WAITS))
    assert said == ["decide"]
    state.apply(Assumed(Admit(WAITS.key, WAITS.uid, GIVEN, admitted=True)))
    said.clear()
    world.workload_seen(seen(comes))
    assert ("decide" in said) == news, said
    assert said, "the page is told"


@pytest.mark.parametrize(
    ("was", "comes", "news"),
    [
        (WAITS, WAITS, False),  # it was told why it waits
        (WRITTEN, WRITTEN, False),
        (replace(WRITTEN, finished=True), replace(WRITTEN, finished=True), False),
        (WAITS, replace(WAITS, priority=3), True),
        (WAITS, replace(WAITS, requeue_at=9), True),
        (WRITTEN, WAITS, True),
        (WRITTEN, replace(WRITTEN, finished=True), True),
    ],
)
@pytest.mark.parametrize("rules", [MUSTER, KUEUE])
def test_a_gang_that_asks_and_holds_what_it_did_is_no_reason_to_decide(
    rules: Rules, was: Workload, comes: Workload, news: bool
) -> None:
    said: list[str] = []
    world = World(
        State(rules),
        changed_job=lambda key: None,
        dirty=lambda: said.append("decide"),
        told=lambda: said.append("told"),
    )
    world.workload_seen(seen(was))
    said.clear()
    world.workload_seen(replace(seen(comes), resource_version="2", stored=b'{"conditions":[]}'))
    assert ("decide" in said) == news, said
    assert said, "the page is told"


STANDS = pod("p", usage=PodUsage(("ns", "p"), "p", "n1", (("gpu", 1),), workload_uid="w1"))


@pytest.mark.parametrize(
    ("was", "comes", "news"),
    [
        (STANDS, replace(STANDS, resource_version="2", ready=False, unready_since=5), False),
        (STANDS, replace(STANDS, resource_version="2", terminating=True, ends_at=9), False),
        (replace(STANDS, usage=None, node=""), replace(STANDS, usage=None, node="", ready=False), False),
        (None, STANDS, True),
        (replace(STANDS, usage=None, node=""), STANDS, True),
        (STANDS, replace(STANDS, usage=None, done=True), True),
        (STANDS, replace(STANDS, usage=replace(STANDS.usage, requests=(("gpu", 2),))), True),
        (STANDS, replace(STANDS, uid="q", usage=replace(STANDS.usage, uid="q")), True),
    ],
)
def test_a_pod_that_holds_what_it_held_is_no_reason_to_decide(was: PodView | None, comes: PodView, news: bool) -> None:
    said: list[str] = []
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: said.append("decide"))
    if was is not None:
        world.pod_seen(was)
    said.clear()
    world.pod_seen(comes)
    assert said == ["decide"] * news


@pytest.mark.parametrize(
    ("was", "comes", "told"),
    [
        (WAITS, WRITTEN, True),
        (None, WRITTEN, True),
        (WRITTEN, replace(WRITTEN, priority=3), False),
        (replace(WRITTEN, finished=True), replace(WRITTEN, finished=True, active=False), False),
        (None, replace(WRITTEN, finished=True), False),
    ],
)
def test_room_that_nobody_decided_here_to_give_is_what_another_gave(
    was: Workload | None, comes: Workload, told: bool
) -> None:
    """One that has finished still says what it had, and holds nothing."""
    said: list[Key] = []
    world = World(State(KUEUE), changed_job=lambda key: None, dirty=lambda: None, reserved=said.append)
    if was is not None:
        world.workload_seen(seen(was))
    said.clear()
    world.workload_seen(seen(comes))
    assert said == [WRITTEN.key] * told


def test_a_job_of_a_gang_that_is_gone_is_stopped() -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    world.job_seen(replace(CHILD, owner=None))
    settings = Settings()
    key = ("Job", "ns", "set-a-0")
    assert next_step(world.sight(key, 0), settings, 0).step == SuspendJob("the gang it was started with is gone")
    world.workload_seen(seen(replace(HOLDS, job_uid="s1")))
    assert next_step(world.sight(key, 0), settings, 0).step is None
    world.job_seen(replace(CHILD, owner=None, marked_for=""))
    world.workload_lost(world.workloads[("ns", "w")])
    assert next_step(world.sight(key, 0), settings, 0).step is None
    for one in (SET, CHILD):
        world.job_seen(one)
    assert next_step(world.sight(key, 0), settings, 0).step is None, "its JobSet is there, and stops it"


def test_a_pod_of_another_namespace_is_none_of_the_gang_whatever_it_says() -> None:
    setting = Setting()
    for name, namespace in (("a", "ns"), ("x", "evil")):
        setting.world.pod_seen(
            pod(name, namespace=namespace, unschedulable_since=5 if namespace == "evil" else None, gated=True)
        )
    tally = setting.world.sight(KEY, 100).pods
    assert (tally.live, tally.unschedulable_since, tally.gated) == (1, None, (("ns", "a"),))
    assert [one.name for one in setting.world.pods_of(("ns", "w1"))] == ["a"]


def test_a_pod_that_is_gone_is_missed_since_it_was() -> None:
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, pods_expected=2))
    world.pod_seen(pod("a"))
    world.pod_seen(pod("b"))
    assert world.sight(KEY, 100).pods.missing_since is None
    world.pod_lost(pod("b"))
    assert [world.sight(KEY, now).pods.missing_since for now in (200, 300)] == [200, 200]
    world.pod_lost(pod("a"))
    assert world.sight(KEY, 400).pods.missing_since == 200, "nor does it begin anew with the next"
    world.pod_seen(pod("c"))
    world.pod_seen(pod("d", ready=False))
    assert world.sight(KEY, 500).pods.missing_since is None
    world.pod_lost(pod("d"))
    world.job_seen(replace(JOB, pods_expected=2, suspended=True))
    assert world.sight(KEY, 600).pods.missing_since is None, "who is stopped misses nobody"


@pytest.mark.parametrize(
    ("job", "owed"),
    [
        ({"pods_expected": 2}, True),
        ({"pods_expected": 2, "active": 2}, False),
        ({"pods_expected": 2, "active": 1, "terminating": 1}, False),  # the one takes over from the other
        ({"pods_expected": 0}, False),
        ({"pods_expected": 2, "finished": "Failed"}, False),
        ({"pods_expected": 2, "ending": "Failed"}, False),
        ({"pods_expected": 2, "deleting": True}, False),
        ({"suspended": True}, True),
        ({"suspended": True, "suspended_condition": True, "active": 1}, True),
        ({"suspended": True, "suspended_condition": True}, False),
    ],
    ids=str,
)
def test_since_when_the_job_controller_owes_something_to_a_job(job: dict[str, Any], owed: bool) -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    other = {"suspended": not job.get("suspended", False)}
    for jobset, child in ((WHOLE, PART), (None, JOB)):
        at, key = (KEY if jobset is None else ("JobSet", "ns", "set")), ("Job", "ns", child.name)
        if jobset is not None:
            world.job_seen(replace(jobset, suspended=not other["suspended"]))
        world.job_seen(replace(child, **job))
        assert [world.sight(at, now).idle for now in (100, 200)] == [((key, 100),) if owed else ()] * 2
        world.job_seen(replace(child, **job, probed_ms=150))
        assert world.sight(at, 200).idle == (((key, 150),) if owed else ()), "it was reminded"
        if jobset is not None:
            world.job_seen(replace(child, **{**job, **other}))
            assert world.sight(at, 300).idle == (), "its JobSet is to suspend or resume it first"
        world.job_lost(child)
        assert not world._idle


WHOLE = replace(JOB, kind="JobSet", name="set", uid="s1")
PART = replace(JOB, name="set-w-0", uid="c1", owner=("jobset.x-k8s.io/v1alpha2", "JobSet", "s1"))
DONE, FAILED, TURNED = {"done": True, "ready": False}, {"done": True, "ready": False, "failed": True}, {"ready": False}


@pytest.mark.parametrize(
    ("due", "succeeded", "pods", "ready", "missing"),
    [
        pytest.param(2, 0, [{}, {}], 2, False, id="all run"),
        pytest.param(2, 0, [{}, FAILED], 1, True, id="one has failed"),
        pytest.param(2, 0, [{}, FAILED, TURNED], 1, False, id="the one in its place is not ready"),
        pytest.param(2, 0, [{}, FAILED, {}], 2, False, id="it is"),
        pytest.param(2, 0, [{}, DONE], 2, False, id="one is done, and its job does not say so yet"),
        pytest.param(1, 1, [TURNED, DONE], 0, False, id="one is done, and the other is not ready"),
        pytest.param(2, 9, [{}, TURNED, *[DONE] * 9], 1, False, id="many are done"),
        pytest.param(2, 9, [{}, {}, *[DONE] * 4], 2, False, id="and most of them gone"),
    ],
)
def test_of_the_pods_that_are_due_those_count_that_are_ready_or_are_done_before_their_job_says_so(
    due: int, succeeded: int, pods: list[dict[str, Any]], ready: int, missing: bool
) -> None:
    for owner, key in ((JOB, KEY), (WHOLE, ("JobSet", "ns", "set"))):
        setting = Setting()
        world = setting.world
        world.workload_seen(seen(replace(HOLDS, job_uid=owner.uid, admitted=True)))
        world.job_seen(replace(owner, suspended=False, pods_expected=due, succeeded=succeeded))
        made_by = "j1"
        if owner is WHOLE:
            world.job_seen(replace(PART, suspended=False, pods_expected=due, succeeded=succeeded))
            made_by = "c1"
        for number, said in enumerate(pods):
            world.pod_seen(pod(f"p{number}", held_by=made_by, owner_uid=made_by, **said))
        tally = world.tally(world.jobs[key], world.workloads["ns", "w"], 100)
        assert (tally.ready, tally.missing_since is not None) == (ready, missing)


def test_a_gang_falls_behind_when_a_pod_is_not_ready_that_was() -> None:
    setting = Setting()
    world = setting.world
    admitted = replace(HOLDS, admitted=True, admitted_at=10)
    world.workload_seen(seen(admitted))
    world.job_seen(replace(JOB, suspended=False, pods_expected=1, pods_at_once=1))

    def behind(now: int, **said: Any) -> int | None:
        world.pod_seen(pod("a", **said))
        return world.sight(KEY, now).pods.behind_since

    assert behind(100, ready=False) is None, "it never was"
    assert behind(200) is None
    assert [behind(now, ready=False) for now in (300, 400)] == [300, 300]
    world.pod_lost(pod("a"))
    assert world.sight(KEY, 500).pods.behind_since == 300, "nor does it begin anew when the pod goes"
    assert behind(600) is None
    assert behind(700, ready=False) == 700
    world.workload_seen(seen(replace(admitted, admitted_at=800)))
    assert behind(900, ready=False) is None, "in this admission it never was"


@pytest.mark.parametrize(
    ("owner", "succeeded", "behind"),
    [
        pytest.param(replace(WHOLE, pods_at_once=5), 0, None, id="its other sets have yet to start"),
        pytest.param(replace(WHOLE, pods_at_once=5), 4, 200, id="the others are done"),
        pytest.param(replace(JOB, pods_at_once=5), 0, 200, id="the others will not run again"),
        pytest.param(replace(JOB, pods_at_once=2), 9, None, id="it goes on with others"),
    ],
)
def test_only_who_was_ready_as_a_whole_falls_behind(owner: JobView, succeeded: int, behind: int | None) -> None:
    setting = Setting()
    world = setting.world
    world.workload_seen(seen(replace(HOLDS, job_uid=owner.uid)))
    world.job_seen(replace(owner, suspended=False, pods_expected=1, succeeded=succeeded))
    key = (owner.kind, owner.namespace, owner.name)
    made_by = "c1" if owner.kind == "JobSet" else owner.uid
    if made_by == "c1":
        world.job_seen(replace(PART, suspended=False, pods_expected=1, succeeded=succeeded))
    for now, ready in ((100, True), (200, False)):
        world.pod_seen(pod("a", held_by=made_by, owner_uid=made_by, ready=ready))
        tally = world.sight(key, now).pods
        assert (tally.ready, tally.behind_since) == (int(ready), None if ready else behind)


@pytest.mark.parametrize(("chosen", "since", "told"), [(True, 5, (0, "")), (False, None, (2, "no GPUs"))])
def test_only_a_pod_whose_node_was_chosen_is_to_be_scheduled_soon(
    chosen: bool, since: int | None, told: tuple[int, str]
) -> None:
    """For the others nodes may have to be made first."""
    setting = Setting()
    given = Admission("q", (ON_N1,)) if chosen else GIVEN
    setting.world.workload_seen(seen(replace(HOLDS, admission=given)))
    for name, said, at in (("a", "", 9), ("b", "no GPUs", 5)):
        setting.world.pod_seen(pod(name, ready=False, node="", unschedulable_since=at, unschedulable_message=said))
    tally = setting.world.sight(KEY, 100).pods
    assert tally.unschedulable_since == since
    assert (tally.unplaced, tally.unplaced_message) == told
    assert tally.unplaced_since == (None if chosen else 5)


def test_who_makes_all_pods_anew_for_one_that_failed_has_waited_for_nodes_all_along() -> None:
    """As a JobSet does, whose pods wait for each other in vain."""
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, pods_expected=2, pods_at_once=2))
    world.workload_seen(seen(replace(HOLDS, admission=GIVEN, admitted=True, admitted_at=1)))

    def since(now: int, *pods: PodView) -> int | None:
        for one in [*world.pods_of(("ns", "w1"))]:
            if one.name not in {pod.name for pod in pods}:
                world.pod_lost(one)
        for one in pods:
            world.pod_seen(one)
        return world.sight(KEY, now).pods.unplaced_since

    placed = pod("a", ready=False)
    assert since(10, placed, pod("b", ready=False, node="", unschedulable_since=5)) == 5
    assert since(20) is None
    assert since(30, replace(placed, name="c", uid="c")) is None
    assert since(40, placed, pod("d", ready=False, node="", unschedulable_since=35)) == 5
    assert since(50, placed, replace(placed, name="d", uid="d")) is None
    assert since(60, placed, pod("e", ready=False, node="", unschedulable_since=55)) == 55, "all had nodes"
    world.workload_seen(seen(replace(HOLDS, admission=GIVEN, admitted=True, admitted_at=60)))
    assert since(70, placed, pod("f", ready=False, node="", unschedulable_since=65)) == 65, "it began anew itself"

    world.job_seen(replace(JOB, pods_expected=3, pods_at_once=3))
    world.workload_seen(seen(replace(HOLDS, admission=GIVEN, admitted=True, admitted_at=80)))

    def lacks(name: str, at: int) -> PodView:
        return pod(name, uid=name, ready=False, node="", unschedulable_since=at, created_at=at - 1)

    first = [pod(name, uid=name, ready=False) for name in ("g1", "g2")]
    assert since(85, *first, lacks("g3", 84)) == 84
    assert since(100) is None, "all are made anew"
    assert since(105, lacks("h1", 102)) == 84
    assert since(106, lacks("h1", 102), lacks("h2", 103)) == 84, "not all at one look"
    placed_now = [replace(lacks(name, 102), node="n1", unschedulable_since=None) for name in ("h1", "h2")]
    assert since(107, *placed_now, lacks("h3", 104)) == 84


def test_the_time_without_a_node_is_the_pods_own_while_nodes_come_for_the_others() -> None:
    """Who loses single nodes one after another is not stopped while each pod gets another in its time."""
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, pods_expected=4, pods_at_once=4))
    world.workload_seen(seen(replace(HOLDS, admission=GIVEN, admitted=True, admitted_at=1)))

    def since(now: int, **pods: int | None) -> int | None:
        """pods: name -> since when there is no node for it; None: it has one."""
        for one in [*world.pods_of(("ns", "w1"))]:
            if one.name not in pods:
                world.pod_lost(one)
        for name, at in pods.items():
            world.pod_seen(pod(name, node="" if at else "n1", ready=not at, unschedulable_since=at))
        return world.sight(KEY, now).pods.unplaced_since

    assert since(10, a=None, b=5) == 5
    assert since(20, a=None, b=5, c=15) == 5
    assert since(40, a=None, b=None, c=15) == 15, "nodes came for the other"
    assert since(50, a=None, b=None, c=None, d=45) == 45, "both at one look"
    assert since(60, a=None, b=None, c=None, e=55) == 45, "made anew, as it had none"
    assert since(70, a=None, b=None, e=None, f=65) == 65
    assert since(80, a=None, b=None, e=None) is None
    assert since(90, a=None, b=None, e=None, g=None) is None
    assert since(95, a=None, b=None, e=None, h=92) == 92, "all had nodes"
    assert since(100, a=None, b=None, h=92) == 92
    assert since(110, a=None, b=None) is None
    assert since(120, a=None, b=None, i=115, j=116) == 92
    world.workload_seen(seen(replace(HOLDS, admission=GIVEN, admitted=True, admitted_at=200)))
    assert since(210, a=None, c=None, d=None, b=205) == 205
    assert since(220, a=None, c=None) is None, "b is deleted, and the node of d is lost"
    assert since(230, a=None, c=None, e=225) == 205
    assert since(240, a=None, c=None, e=None) is None
    assert since(250, a=None, c=None, e=None, f=245) == 245, "it comes in the place of d"


CLOUD = tuple(Flavor(name, elastic=name != "solid") for name in ("spot", "demand", "cores", "solid"))


@pytest.mark.parametrize(
    ("given", "waits", "out"),
    [
        ({"main": {GPU: "spot"}}, ["main"], ("spot",)),
        ({"main": {GPU: "spot"}}, [], ()),
        ({"main": {GPU: "solid"}}, ["main"], ()),
        ({"main": {GPU: "gone"}}, ["main"], ()),
        # The nodes that bring the devices are those that do not come.
        ({"main": {GPU: "spot", "cpu": "cores"}}, ["main"], ("spot",)),
        ({"main": {GPU: "solid", "cpu": "cores"}}, ["main"], ("cores",)),
        ({"main": {"cpu": "cores", "memory": "demand"}}, ["main"], ("cores", "demand")),
        # Of several pod sets, of those alone that wait.
        ({"lead": {"cpu": "cores"}, "main": {GPU: "spot"}}, ["main"], ("spot",)),
        ({"lead": {GPU: "spot"}, "main": {GPU: "demand"}}, ["lead", "main", "main"], ("demand", "spot")),
    ],
)
def test_a_flavor_is_out_of_stock_on_which_kube_scheduler_finds_no_node(
    given: dict[str, dict[str, str]], waits: list[str], out: tuple[str, ...]
) -> None:
    setting = Setting()
    for flavor in CLOUD:
        setting.state.apply(Put(flavor))
    sets = tuple(PodSetAssignment(name, tuple(sorted(flavors.items())), (), 2) for name, flavors in given.items())
    setting.world.workload_seen(seen(replace(HOLDS, admission=Admission("q", sets))))
    setting.world.pod_seen(pod("runs", pod_set=next(iter(given))))
    for number, name in enumerate(waits):
        waiting = {"ready": False, "node": "", "unschedulable_since": 5}
        setting.world.pod_seen(pod(f"p{number}", pod_set=name, **waiting))
    setting.world.pod_seen(pod("crashes", ready=False, pod_set="main", unready_since=5))
    assert setting.world.sight(KEY, 100).pods.out_of_stock == out


def test_whether_a_gang_ran_is_known_of_the_admission_that_it_holds() -> None:
    world = Setting().world
    world.job_seen(replace(JOB, suspended=False, pods_expected=1, pods_at_once=1))

    def ran(value: Workload, **said: Any) -> bool:
        world.workload_seen(seen(value))
        world.pod_seen(pod("a", **said))
        world.sight(KEY, 100)
        return world.ran_whole(world.workloads["ns", "w"])

    assert not ran(HOLDS, ready=False)
    assert ran(HOLDS)
    assert ran(HOLDS, ready=False), "and was ready then"
    assert ran(replace(HOLDS, evicted="NodeFailures"), ready=False), "on its way out"
    assert not ran(replace(HOLDS, admitted_at=9), ready=False)
    assert not ran(replace(HOLDS, job_uid=""))


def test_a_gang_ran_whole_from_when_all_of_its_pods_were_ready_until_one_was_not() -> None:
    world = Setting().world
    world.job_seen(replace(JOB, suspended=False, pods_expected=1, pods_at_once=1))

    def ran_ms(now: int, *, ready: bool, admitted_at: int) -> int:
        world.workload_seen(seen(replace(HOLDS, admitted_at=admitted_at)))
        world.pod_seen(pod("a", ready=ready))
        world.sight(KEY, now)
        return world.ran_whole_ms(world.workloads["ns", "w"], now + 5)

    assert ran_ms(100, ready=True, admitted_at=10) == 95, "a controller that has just begun"
    assert ran_ms(200, ready=True, admitted_at=10) == 195
    assert [ran_ms(now, ready=False, admitted_at=10) for now in (300, 400)] == [290, 290]
    assert ran_ms(420, ready=True, admitted_at=10) == 295, "but for 120 ms"
    assert ran_ms(430, ready=False, admitted_at=10) == 300
    assert ran_ms(500, ready=False, admitted_at=450) == 0
    assert ran_ms(600, ready=True, admitted_at=450) == 5, "it was starting for longer"
    assert ran_ms(700, ready=True, admitted_at=450) == 105
    assert ran_ms(800, ready=False, admitted_at=750) == 0
    world.looks_anew()
    assert ran_ms(900, ready=True, admitted_at=750) == 155, "another led meanwhile"


@pytest.mark.parametrize(
    ("local", "of_queue", "wanted"),
    [
        (StopPolicy.NONE, StopPolicy.NONE, (StopPolicy.NONE, "ClusterQueue")),
        (StopPolicy.HOLD, StopPolicy.NONE, (StopPolicy.HOLD, "LocalQueue")),
        (StopPolicy.HOLD, StopPolicy.HOLD, (StopPolicy.HOLD, "ClusterQueue")),
        (StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN, (StopPolicy.HOLD_AND_DRAIN, "ClusterQueue")),
        (StopPolicy.HOLD_AND_DRAIN, StopPolicy.HOLD, (StopPolicy.HOLD_AND_DRAIN, "LocalQueue")),
    ],
)
def test_of_the_policies_of_its_queues_the_stricter_stops_a_gang(
    local: StopPolicy, of_queue: StopPolicy, wanted: tuple[StopPolicy, str]
) -> None:
    setting = Setting()
    queue = setting.state.cluster_queue("q")
    assert queue is not None
    setting.state.apply(Put(replace(queue, stop_policy=of_queue)))
    setting.state.apply(Put(LocalQueue("ns", "main", "q", stop_policy=local)))
    sight = setting.world.sight(KEY, 100)
    assert (sight.stop_policy, sight.stopped_by, sight.queue_goes) == (*wanted, False)
    setting.state.apply(Put(replace(queue, terminating=True)))
    assert setting.world.sight(KEY, 100).queue_goes


def test_who_gives_room_back_that_was_given_twice_is_not_asked_for_it_again() -> None:
    world = Setting().world
    world.give_back_twice(("ns", "w"), "4 gpu")
    assert world.sight(KEY, 100).given_twice == "4 gpu"
    world.workload_seen(seen(replace(HOLDS, admission=None, admitted=False)))
    world.workload_seen(seen(HOLDS))
    assert world.sight(KEY, 200).given_twice == ""


def test_who_sits_out_waits_no_less_for_that() -> None:
    setting = Setting()

    def until(requeue_at: int) -> int:
        waits = replace(HOLDS, admission=None, admitted=False, requeue_at=requeue_at)
        setting.world.workload_seen(seen(waits))
        laid = setting.state.workload(waits.key)
        assert laid is not None
        return laid.requeue_at

    setting.world.sit_out(("ns", "w"), 0, 300)
    assert [until(at) for at in (0, 200, 500)] == [300, 300, 500]


def test_what_became_of_the_volumes_of_very_many_is_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision follows after each: between them others have theirs."""
    monkeypatch.setattr("admission.controller.world.LAID_AT_ONCE", 1)
    decides: list[str] = []
    world = World(State(MUSTER), changed_job=lambda _: None, dirty=lambda: decides.append("decide"))
    shape = PodShape(claims=("data",))
    for name in "abc":
        waits = replace(HOLDS, name=name, uid=name, job_uid="", admission=None, pod_sets=(PodSet("main", 1, shape),))
        world.workload_seen(seen(waits))
    world.storage_changed(None, Claim("ns", "data", volume="pv", bound=True))
    left = []
    for _ in "abc":
        decides.clear()
        world.lay(seen=True)
        there = (world.state.workload(("ns", name)) for name in "abc")
        left.append((sum("does not exist in" in one.unbound for one in there if one is not None), bool(decides)))
    assert left == [(2, True), (1, True), (0, False)]


def test_a_pod_that_lost_its_labels_is_of_its_gang_no_more() -> None:
    world = Setting().world
    world.pod_seen(pod("a"))
    world.pod_seen(pod("a", workload_uid="", owner_uid="", held_by="", pod_set=""))
    assert world.pods_of(("ns", "w1")) == world.pods_of(("ns", "j1")) == []


def test_of_several_pods_the_first_counts() -> None:
    setting = Setting()
    world = setting.world
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)))))
    for name, at in (("n1", 9000), ("n2", 5000), ("n3", 7000)):
        world.node_seen(Node(name))
        world.node_seen(Node(name, lost_since=at))
        world.pod_seen(pod(f"ends-{name}", node=name, terminating=True, created_at=at))
        world.pod_seen(pod(f"turned-{name}", ready=False, unready_since=at, node="n4"))
        waits = {"ready": False, "node": "", "unschedulable_since": at, "unschedulable_message": name}
        world.pod_seen(pod(f"waits-{name}", created_at=10, **waits))
    tally = world.sight(KEY, 9500).pods
    assert tally.lost_until == 5000 + world.lost_after_ms
    assert tally.unready_since == 5000
    assert (tally.unschedulable_since, tally.unschedulable_message) == (5000, "n2")
    assert tally.last_created_at == 10, "one that ends is not waited for to be ready"


@pytest.mark.parametrize(
    ("between", "again", "since"),
    [
        ({}, {}, 30_000),
        ({}, {"uid": "another"}, 330_000),
        ({"ready": True, "unready_since": 0}, {}, 330_000),
        ({}, {"turned_at": 320_000}, 330_000),  # it was ready, though nobody here saw that
        ({"unready_since": 20_000}, {}, 20_000),
    ],
)
def test_a_pod_that_fails_again_before_it_was_ready_is_unready_since_it_failed_first(
    between: dict[str, Any], again: dict[str, Any], since: int
) -> None:
    setting = Setting()
    failed = pod("a", ready=False, unready_since=30_000)
    for seen_as in (failed, replace(failed, **between), replace(failed, **{"unready_since": 330_000} | again)):
        setting.world.pod_seen(seen_as)
    assert setting.world.sight(KEY, 400_000).pods.unready_since == since


def test_whose_pods_are_gone_waits_for_none_to_be_placed_and_has_none_too_many() -> None:
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, pods_expected=2))
    world.pod_seen(pod("a", node="", ready=False, created_at=50))
    world.sight(KEY, 100)
    assert world.placing.lacking() == [KEY]
    world.pod_lost(pod("a"))
    world.sight(KEY, 200)
    assert world.placing.lacking() == []

    def beyond(now: int) -> Beyond | None:
        return world.sight(KEY, now).pods.beyond

    world.workload_seen(seen(replace(HOLDS, reclaimable=(("main", 2),))))
    for at in (300, 500):
        world.pod_seen(pod("b"))
        assert beyond(at) == Beyond(at, 1, 0, "main", 2)
        world.pod_lost(pod("b"))
        assert beyond(at + 100) is None


def test_of_several_gangs_on_a_node_the_last_has_lost_the_devices_that_are_gone() -> None:
    setting = Setting()
    world = setting.world
    names = ("old", "new", "over")
    for at, name in enumerate(names):
        world.job_seen(replace(JOB, name=name, uid=name))
        held = replace(HOLDS, name=name, uid=name, job_uid=name, admitted_at=at, admission=Admission("q", (ON_N1,)))
        world.workload_seen(seen(replace(held, finished=name == "over")))

    def lost(devices: int, now: int) -> list[str]:
        world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", devices),)))
        for at in (now, now + NODE_GONE_MS):
            sights = {name: world.sight(("Job", "ns", name), at) for name in names[:2]}
        return [name for name, sight in sights.items() if sight.lost_nodes]

    assert lost(8, 0) == [], "who has finished holds none"
    assert lost(7, 100_000) == ["new"]
    assert lost(3, 200_000) == ["old", "new"]


def test_which_flavors_have_nodes_that_take_pods_off() -> None:
    setting = Setting()
    for name, labels in (("a", (("pool", "a"),)), ("b", (("pool", "b"),)), ("c", (("pool", "a"), ("arch", "x")))):
        setting.state.apply(Put(Flavor(name, node_labels=labels, elastic=True)))
    setting.state.apply(Put(Flavor("placed", node_labels=(("pool", "a"),))))  # who gets its nodes named needs no answer

    def taint(pool: str, effect: str) -> None:
        taints = (Taint("repair", "", effect),) if effect else ()
        setting.world.node_seen(Node(f"n-{pool}", labels=(("pool", pool), ("zone", "z")), taints=taints))

    taint("a", "NoExecute")
    taint("b", "NoSchedule")
    assert setting.world.tainted_flavors(setting.state.flavors.values()) == {"a", "f"}
    assert setting.world.tainted_flavors([setting.state.flavors["f"]]) == {"f"}, "nobody else starts there"
    taint("b", "NoExecute")
    assert setting.world.tainted_flavors(setting.state.flavors.values()) == {"a", "b", "f"}
    taint("a", "")
    assert setting.world.tainted_flavors(setting.state.flavors.values()) == {"b", "f"}
    setting.world.node_gone("n-b")
    assert setting.world.tainted_flavors(setting.state.flavors.values()) == set()


def test_what_is_looked_at_of_the_nodes_of_one_taint_at_each_start_is_that_taint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their pool has it for good: on thousands of nodes."""
    setting = Setting()
    bears = (Toleration("spot", "Exists"),)
    for name in "ab":
        setting.state.apply(Put(Flavor(name, node_labels=(("pool", name),), elastic=True, tolerations=bears)))
    setting.state.apply(Put(Flavor("f", node_labels=(("pool", "f"),), elastic=True)))
    looked_at: list[tuple[Taint, ...]] = []

    def noted(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
        looked_at.append(taints)
        return refused_taint(taints, tolerations)

    monkeypatch.setattr("admission.controller.world.refused_taint", noted)
    for i in range(1000):
        labels = (("pool", "ab"[i % 2]), (HOSTNAME_LABEL, f"n{i}"))
        setting.world.node_seen(Node(f"n{i}", labels=labels, taints=(Taint("spot", "", "NoExecute"),)))
    assert setting.world.tainted_flavors(setting.state.flavors.values()) == set()
    assert len(looked_at) <= 3


@pytest.mark.parametrize(
    ("bears", "tainted"),
    [
        ({}, True),
        ({"tolerations": (Toleration("spot", "Exists"),)}, False),  # its pool is tainted so for good
        ({"node_taints": (Taint("spot", "", "NoExecute"),)}, False),  # as is each pod that gets it
        ({"tolerations": (Toleration("spot", "Exists", seconds=60),)}, True),
        ({"tolerations": (Toleration("other", "Exists"),)}, True),
    ],
)
def test_a_taint_that_all_pods_of_a_flavor_bear_for_good_takes_none_of_them_off(
    bears: dict[str, Any], tainted: bool
) -> None:
    """They would have no minutes on a node that gets another."""
    setting = Setting()
    setting.state.apply(Put(Flavor("spot", node_labels=(("pool", "spot"),), elastic=True, **bears)))
    setting.world.node_seen(Node("n1", labels=(("pool", "spot"),), taints=(Taint("spot", "", "NoExecute"),)))
    assert ("spot" in setting.world.tainted_flavors(setting.state.flavors.values())) == tainted


def test_a_place_is_come_back_to_by_who_waited_alone() -> None:
    world = Setting().world
    waits = seen(replace(HOLDS, admission=None, admitted=False))
    world.workload_seen(waits)
    world.workload_lost(waits)
    assert world.place_of("j1") == waits
    world.workload_seen(seen(HOLDS))
    assert world.place_of("j1") is None
    world.workload_lost(seen(HOLDS))
    assert world.place_of("j1") is None


@pytest.mark.parametrize("first", ["its label", "its Workload"])
def test_who_was_taken_out_by_its_owner_has_no_place_whoever_looked_on(first: str) -> None:
    """Another led when the label was taken off, and knew why the Workload was deleted."""
    world = Setting().world
    waits = seen(replace(HOLDS, admission=None, admitted=False))
    world.workload_seen(waits)
    without = replace(JOB, queue="")
    if first == "its label":
        world.job_seen(without)
        world.workload_lost(waits)
    else:
        world.workload_lost(waits)
        world.job_seen(without)
    world.job_seen(JOB)
    assert world.place_of("j1") is None


@pytest.mark.parametrize("ends", ["gone", "being deleted"])
def test_who_stands_for_no_job_is_not_in_line(ends: str) -> None:
    setting = Setting()
    world, state = setting.world, setting.state
    waits = replace(HOLDS, admission=None, admitted=False)
    world.workload_seen(seen(waits))
    if ends == "gone":
        world.job_lost(JOB)
    else:
        world.job_seen(replace(JOB, deleting=True))
    assert state.pending("q") == [waits.key], "its job may not have been listed yet"
    world.knows_jobs()
    assert state.pending("q") == []
    world.job_seen(JOB)
    assert state.pending("q") == [waits.key]
    world.job_lost(JOB)
    assert state.pending("q") == []
    world.workload_lost(seen(waits))
    world.workload_seen(seen(waits))
    assert state.pending("q") == []


DISRUPTED = Taint("karpenter.sh/disrupted", "", "NoSchedule")


@pytest.mark.parametrize(
    ("node", "tolerates", "why"),
    [
        (Node("n1", unschedulable=True, taints=(DISRUPTED,)), (), "node n1 is cordoned"),
        (Node("n1", unschedulable=True), (Toleration("", "Exists"),), "node n1 is cordoned"),  # no gang goes there
        (Node("n1", taints=(DISRUPTED,)), (), "the taint karpenter.sh/disrupted:NoSchedule keeps it off node n1"),
        (Node("n1", taints=(DISRUPTED,)), (Toleration("karpenter.sh/disrupted", "Exists"),), ""),
        (Node("n1", taints=(replace(DISRUPTED, effect="PreferNoSchedule"),)), (), ""),
        (Node("n1", taints=(replace(DISRUPTED, key="node.kubernetes.io/disk-pressure"),)), (), ""),
        (Node("n2", unschedulable=True), (), "node n1 is no more"),
    ],
)
@pytest.mark.parametrize("of_flavor", [False, True])
def test_a_pod_whose_node_was_closed_to_new_pods_is_told_from_one_that_found_it_full(
    node: Node, tolerates: tuple[Toleration, ...], why: str, of_flavor: bool
) -> None:
    setting = Setting()
    setting.state.apply(Put(Flavor("f", tolerations=tolerates if of_flavor else ())))
    shape = PodShape(tolerations=() if of_flavor else tolerates)
    given = Admission("q", (replace(ON_N1, flavors=(("gpu", "f"),)),))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=(PodSet("main", 2, shape),))))
    setting.world.pod_seen(pod("a", ready=False, node="", pinned="n1", unschedulable_since=5))
    setting.world.node_seen(node)
    tally = setting.world.sight(KEY, 100).pods
    assert (tally.unschedulable_since, tally.shut_out) == (5, why)
    setting.world.node_seen(Node("n1"))
    assert not setting.world.sight(KEY, 100).pods.shut_out
    setting.world.node_gone("n1")
    assert setting.world.sight(KEY, 100).pods.shut_out == "node n1 is no more"


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"gpu": "h100", "own": "x", "more": "y"}, ""),
        ({"own": "x"}, "node n1 has the label gpu=h100 no more"),  # its flavor's: what finds GPUs begins anew
        ({"gpu": "h100-mig", "own": "x"}, "node n1 has the label gpu=h100 no more"),
        ({"gpu": "h100"}, "node n1 has the label own=x no more"),  # that the template names
    ],
)
def test_a_pod_whose_node_was_relabelled_is_told_from_one_that_found_it_full(labels: dict[str, str], why: str) -> None:
    setting = Setting()
    setting.state.apply(Put(Flavor("f", node_labels=(("gpu", "h100"),))))
    given = Admission("q", (replace(ON_N1, flavors=(("gpu", "f"),)),))
    shape = PodShape(node_selector=(("own", "x"),))
    parts = (PodSet("main", 2, shape), PodSet("other", 1, PodShape(node_selector=(("elsewhere", "x"),))))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given, pod_sets=parts)))
    setting.world.pod_seen(pod("a", ready=False, node="", pinned="n1", unschedulable_since=5))
    setting.world.node_seen(Node("n1", labels=tuple(sorted(labels.items()))))
    tally = setting.world.sight(KEY, 100).pods
    assert (tally.shut_out, tally.refused_by) == (why, () if why else ("n1",))


def test_a_pod_that_was_sent_to_a_rack_waits_for_no_node_of_its_own() -> None:
    setting = Setting()
    setting.state.apply(Put(Flavor("f", node_labels=(("gpu", "h100"),))))
    rack = TopologyAssignment(("rack",), (Domain(("r1",), 2),))
    given = Admission("q", (replace(ON_N1, flavors=(("gpu", "f"),), topology=rack),))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given)))
    setting.world.pod_seen(pod("a", ready=False, node="", unschedulable_since=5))
    tally = setting.world.sight(KEY, 100).pods
    assert (tally.unschedulable_since, tally.shut_out, tally.refused_by) == (5, "", ())


@pytest.mark.parametrize(
    ("more", "blamed"),
    [
        ({}, ("n1",)),
        ({"ready": False}, ()),
        ({"taints": (Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),)}, ()),
        ({"taints": (Taint("node.kubernetes.io/disk-pressure", "", "PreferNoSchedule"),)}, ("n1",)),
    ],
)
def test_a_node_that_is_not_well_is_not_to_blame_for_letting_no_pod_come(
    more: dict[str, Any], blamed: tuple[str, ...]
) -> None:
    """Of one that is to blame it is said that nobody knows why."""
    world = on_n1(ready=False, node="", pinned="n1", unschedulable_since=5).world
    world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 4),), **more))
    assert world.sight(KEY, 100).pods.refused_by == blamed
    world.apply(Put(PodUsage(("x", "p"), "p", "n1", (("gpu.example/gpu", 5),))))
    assert world.sight(KEY, 100).pods.refused_by == (), "it has no room"


def gang_of(state: State, pod: tuple[str, str] = ("ns", "a")) -> str:
    """As whose it is booked."""
    booked = state.ledger.nodes.pod(pod)
    assert booked is not None
    return booked.workload_uid


@pytest.mark.parametrize("order", list(itertools.permutations(("job", "workload", "pod"))), ids="-".join)
def test_pods_of_a_job_that_somebody_else_has_started_are_of_its_gang(order: tuple[str, ...]) -> None:
    """Kueue writes no mark of ours on them: nodes would be charged twice, and the eviction of the gang free none."""
    state = State(KUEUE)
    world = World(state, changed_job=lambda _: None, dirty=lambda: None)
    theirs = pod("a", workload_uid="", usage=PodUsage(("ns", "a"), "a", "n1", (("gpu", 1),)))
    runs, stopped = replace(JOB, started=False), replace(JOB, started=False, suspended=True)
    all_three = {
        "job": lambda: world.job_seen(runs),
        "workload": lambda: world.workload_seen(seen(HOLDS)),
        "pod": lambda: world.pod_seen(theirs),
    }

    for one in order:
        all_three[one]()
    assert gang_of(state) == "w1"
    world.workload_seen(seen(replace(HOLDS, evicted="Preempted")))
    world.job_seen(stopped)
    assert gang_of(state) == "w1", "it is on its way out"
    world.workload_seen(seen(replace(HOLDS, admission=None, admitted=False)))
    assert not gang_of(state), "what is left of it is nobody's"
    world.workload_seen(seen(HOLDS))
    assert not gang_of(state), "it is not of what is to start"
    world.job_seen(runs)
    assert gang_of(state) == "w1"
    world.job_seen(JOB)
    assert not gang_of(state), "whom we start has our mark"
    world.job_seen(runs)
    world.workload_lost(seen(HOLDS))
    assert not gang_of(state)
    world.pod_lost(theirs)
    assert state.ledger.nodes.pod(("ns", "a")) is None


def test_a_pod_that_names_the_job_of_another_namespace_is_not_of_its_gang() -> None:
    state = State(KUEUE)
    world = World(state, changed_job=lambda _: None, dirty=lambda: None)
    world.job_seen(replace(JOB, started=False))
    world.workload_seen(seen(HOLDS))
    usage = PodUsage(("other", "a"), "a", "n1", (("gpu", 1),))
    world.pod_seen(replace(pod("a", workload_uid="", usage=usage), namespace="other"))
    assert not gang_of(state, ("other", "a"))


@pytest.mark.parametrize("order", list(itertools.permutations(("set", "child", "workload", "pod"))), ids="-".join)
def test_pods_of_a_jobset_that_somebody_else_has_started_are_of_its_gang(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(KUEUE)
    world = World(state, changed_job=lambda _: None, dirty=lambda: None)
    whole = replace(JOB, kind="JobSet", started=False)
    child = replace(JOB, name="train-w-0", uid="c1", queue="", started=False, owner=(*PART.owner[:2], "j1"))
    all_four = {
        "set": lambda: world.job_seen(whole),
        "child": lambda: world.job_seen(child),
        "workload": lambda: world.workload_seen(seen(HOLDS)),
        "pod": lambda: world.pod_seen(
            pod("a", workload_uid="", owner_uid="c1", usage=PodUsage(("ns", "a"), "a", "n1", (("gpu", 1),)))
        ),
    }

    for one in order:
        all_four[one]()
    assert gang_of(state) == "w1"
    looked_at: list[str] = []
    follow = world._pods_follow
    monkeypatch.setattr(world, "_pods_follow", lambda uid: (looked_at.append(uid), follow(uid)))
    for suspended in (True, False):
        world.job_seen(replace(child, suspended=suspended))
    assert not looked_at, "a JobSet of a thousand Jobs would be looked through a thousand times"
    world.job_seen(replace(whole, suspended=True))
    assert looked_at == ["j1"]
    assert not gang_of(state)


@pytest.mark.parametrize("reserved", [False, True])
def test_of_several_workloads_of_a_job_that_counts_by_which_it_runs(reserved: bool) -> None:
    """Kueue makes another one where a job that runs grows, and gives it quota before it takes the first one's."""
    setting = Setting()
    world = setting.world
    grows = replace(
        HOLDS, name="x", uid="x", admission=HOLDS.admission if reserved else None, admitted=False, created=9
    )
    done = replace(HOLDS, name="a", uid="a", finished=True)
    setting.woken.clear()
    for one in (grows, done):
        world.workload_seen(seen(one))
        assert (counts := world.workload_of(KEY)) is not None
        assert counts.key == ("ns", "w")
        assert world.is_beside(seen(one)) == (one is grows)
    assert (ORPHAN, "ns", "x") in setting.woken
    assert (ORPHAN, "ns", "a") not in setting.woken
    beside = setting.state.workload(grows.key)
    assert beside is not None
    assert reserved or not beside.active, "it would be given quota beside the one that counts"
    world.workload_lost(seen(HOLDS))
    assert (counts := world.workload_of(KEY)) is not None
    assert counts.key == ("ns", "x")
    world.lay(seen=True)
    alone = setting.state.workload(grows.key)
    assert alone is not None
    assert alone.active
    world.workload_lost(seen(grows))
    world.workload_lost(seen(done))
    assert world.workload_of(KEY) is None


def test_the_default_of_pod_priorities_follows_its_class() -> None:
    setting = Setting()

    def put(name: str, value: int, default: bool) -> PriorityClassSeen:
        one = PriorityClassSeen("", name, name, "1", value, default)
        setting.world.priority_seen(one, ours=False)
        return one

    def default() -> int:
        return setting.world.defaults.priority(JOB)[0]

    put("a", 100, default=True)
    assert default() == 100
    old = put("a", 100, default=False)
    assert default() == 0
    old = put("a", 100, default=True)
    put("b", 200, default=True)
    assert default() == 100, "the smallest, where there are two for a moment"
    setting.woken.clear()
    setting.world.priority_lost(old, ours=False)
    assert default() == 200
    assert KEY in setting.woken


@pytest.mark.parametrize(
    ("rules", "given", "required"),
    [
        ((CheckRule("a"),), GIVEN, ("a",)),
        ((CheckRule("a"), CheckRule("b", frozenset({"f"})), CheckRule("c", frozenset({"g"}))), GIVEN, ("a", "b")),
        ((CheckRule("c", frozenset({"g"})),), None, ("c",)),  # it may come to be asked
        ((), GIVEN, ()),
        ((CheckRule("a"),), replace(GIVEN, cluster_queue="gone"), None),
    ],
)
def test_the_checks_of_a_reservation_are_those_of_its_queue(
    rules: tuple[CheckRule, ...], given: Admission | None, required: tuple[str, ...] | None
) -> None:
    setting = Setting()
    queue = setting.state.cluster_queue("q")
    assert queue is not None
    setting.state.apply(Put(replace(queue, checks=rules)))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given, admitted=False)))
    assert setting.world.sight(KEY, 100).required == required


@pytest.mark.parametrize(("name", "ours"), [("high", True), ("low", True), ("high", False)])
def test_a_waiting_workload_without_a_job_is_looked_at_when_its_class_changes(name: str, ours: bool) -> None:
    setting = Setting()
    waits = seen(replace(HOLDS, name="x", uid="x", job_uid="", admission=None, admitted=False))
    setting.world.workload_seen(replace(waits, view=replace(waits.view, priority_class="high")))
    setting.woken.clear()
    setting.world.priority_seen(PriorityClassSeen("", name, "u", "1", 7), ours=ours)
    follows = name == "high" and ours
    assert ((ORPHAN, "ns", "x") in setting.woken) == follows
    assert setting.world.bare(("ns", "x"), Settings(), 100).step == (Reprioritize() if follows else None)


@pytest.mark.parametrize(("kinds", "unmanaged"), [(("Job", "JobSet"), "RayJob ray"), ((), "")], ids=["jobs", "none"])
def test_where_no_kinds_are_managed_whoever_made_a_workload_runs_it(kinds: tuple[str, ...], unmanaged: str) -> None:
    state = State(KUEUE)
    world = World(state, changed_job=lambda _: None, dirty=lambda: None, kinds=kinds)
    nodes = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),))
    given = replace(GIVEN, pod_sets=(replace(GIVEN.pod_sets[0], topology=nodes),))
    world.workload_seen(seen(replace(HOLDS, job_uid="", admission=given, unmanaged="RayJob ray")))
    known = state.workload(HOLDS.key)
    assert known is not None
    assert known.unmanaged == unmanaged
    assert known.admission is not None
    assert known.admission.pod_sets[0].topology == (None if unmanaged else nodes), "its pods are where they are"


@pytest.mark.parametrize(
    ("said", "looked_at"),
    [
        ({}, False),
        ({"kept_out": "Deactivated"}, True),  # it comes back once it is active
        ({"kept_out": "Preempted"}, False),
        ({"deleting": True, "kept": True}, True),  # by our finalizer, which nobody else takes off
        ({"deleting": True}, False),
    ],
)
def test_when_a_waiting_workload_without_a_job_is_looked_at(said: dict[str, Any], looked_at: bool) -> None:
    setting = Setting()
    waits = seen(replace(HOLDS, name="x", uid="x", job_uid="", admission=None, admitted=False))
    setting.woken.clear()
    setting.world.workload_seen(replace(waits, view=replace(waits.view, **said)))
    assert ((ORPHAN, "ns", "x") in setting.woken) == looked_at


@pytest.mark.parametrize("done", [False, True])
def test_what_is_done_is_no_stranger_and_holds_nobody_up(done: bool) -> None:
    setting = Setting()
    world = setting.world
    world.pod_seen(pod("a", terminating=True, ends_at=500))
    world.pod_seen(pod("b", terminating=True, ends_at=900, done=done))
    assert world.due(replace(HOLDS, evicted="Preempted", evicted_at=100)) == (500 if done else 900)
    world.pod_seen(pod("c", workload_uid="", done=done))
    assert world.sight(KEY, 1000).pods.strangers == (not done)


@pytest.mark.parametrize("state", CheckState)
def test_a_waiting_workload_without_a_job_is_looked_at_when_a_check_says_no(state: CheckState) -> None:
    setting = Setting()
    waits = replace(HOLDS, name="x", uid="x", job_uid="", admission=None, admitted=False, checks=(Check("a", state),))
    setting.woken.clear()
    setting.world.workload_seen(seen(waits))
    assert ((ORPHAN, "ns", "x") in setting.woken) == (state in (CheckState.RETRY, CheckState.REJECTED))
    assert (setting.world.bare(("ns", "x"), Settings(), 100).step is not None) == bool(setting.woken)


def test_a_reservation_by_the_label_of_hosts_is_on_the_nodes_that_have_it() -> None:
    """Kueue's assignments say kubernetes.io/hostname, which need not be the name of the node; pins say the name."""
    setting = Setting()
    world = setting.world
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)))))
    world.node_seen(Node("n1.example.com", labels=((HOSTNAME_LABEL, "n1"),)))
    (given,) = world.workloads["ns", "w"].view.value.admission.pod_sets
    assert given.topology is not None
    assert [domain.values for domain in given.topology.domains] == [("n1.example.com",)]
    world.node_seen(Node("n1.example.com", labels=((HOSTNAME_LABEL, "n1"),), lost_since=0))
    assert world.sight(KEY, 1 << 50).lost_nodes == ("n1.example.com",)


@pytest.mark.parametrize(
    ("rules", "job", "found", "lost"),
    [
        (MUSTER, JOB, pod("a"), ("n1",)),
        (MUSTER, JOB, pod("a", node="n2"), ()),
        (MUSTER, JOB, pod("a", done=True), ()),
        (MUSTER, JOB, pod("a", terminating=True), ()),  # its Job makes another in its place, or fails
        (MUSTER, replace(JOB, survives=True), pod("a"), ()),  # the same, and that is what its owner wants
        (KUEUE, JOB, pod("a"), ()),
    ],
)
@pytest.mark.parametrize("taint", [None, Taint("repair", "now", "NoExecute")])
def test_where_kube_scheduler_chooses_the_nodes_that_the_pods_are_on_are_the_gangs(
    rules: Rules, job: JobView, found: PodView, lost: tuple[str, ...], taint: Taint | None
) -> None:
    setting = Setting(rules)
    world = setting.world
    world.job_seen(replace(job, suspended=False))
    world.pod_seen(found)
    world.node_seen(Node("n1"))
    world.node_seen(Node("n2"))
    setting.woken.clear()
    if taint is not None:
        world.node_seen(Node("n1", taints=(taint,)))
    else:
        world.node_gone("n1")
    sight = world.sight(KEY, 0)
    assert (sight.lost_nodes, sight.unnamed) == (lost, lost)
    assert (KEY in setting.woken) == (found.node == "n1" and not found.done)
    world.pod_lost(found)
    setting.woken.clear()
    world.node_seen(Node("n1"))
    assert not setting.woken


@pytest.mark.parametrize("trouble", ["gone", "silent", "tainted", "short"])
@pytest.mark.parametrize(
    ("left", "there", "lost"),
    [
        (1, [pod("a", done=True), pod("b", node="n2")], ()),
        (1, [pod("b", node="n2")], ()),  # Kubernetes has deleted what was done there
        (0, [pod("a", done=True)], ()),
        (None, [pod("a", done=True), pod("b", node="n2")], ("n1",)),  # its job has not said so
        (2, [pod("b", node="n2")], ("n1",)),  # a pod went with the node, and comes again
        (1, [pod("a", terminating=True), pod("b", node="n2")], ("n1",)),
        (2, [pod("a", terminating=True), pod("b", node="n2")], ("n1",)),
        (1, [pod("b", node="", pinned="n1")], ("n1",)),
        (1, [pod("a"), pod("b", node="n2", done=True)], ("n1",)),
    ],
)
def test_a_node_on_which_all_pods_are_done_is_lost_to_nobody(
    trouble: str, left: int | None, there: list[PodView], lost: tuple[str, ...]
) -> None:
    """An autoscaler removes it, or somebody repairs it, while the others run for days."""
    setting = Setting()
    world = setting.world
    at = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 1), Domain(("n2",), 1)))
    world.job_seen(replace(JOB, left=() if left is None else (("main", left),)))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (replace(ON_N1, topology=at),)))))
    for one in there:
        world.pod_seen(one)
    whole = (("gpu.example/gpu", 8),)
    for name in ("n1", "n2"):
        world.node_seen(Node(name, allocatable=whole))
    match trouble:
        case "gone":
            world.node_gone("n1")
        case "silent":
            world.node_seen(down("n1", 5000))
        case "tainted":
            world.node_seen(Node("n1", allocatable=whole, taints=(Taint("repair", "", "NoExecute"),)))
        case "short":
            world.node_seen(Node("n1", allocatable=(("gpu.example/gpu", 0),)))
    world.sight(KEY, 5000)
    assert world.sight(KEY, 5000 + NODE_GONE_MS).lost_nodes == lost


def test_a_job_that_is_stopped_needs_the_node_of_a_pod_that_is_gone_again() -> None:
    """What it says of pods that are left is of the time before: it starts anew with all of them."""
    world = Setting().world
    at = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 1), Domain(("n2",), 1)))
    world.job_seen(replace(JOB, left=(("main", 1),), suspended=True))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (replace(ON_N1, topology=at),)))))
    world.pod_seen(pod("b", node="n2"))
    for name in ("n1", "n2"):
        world.node_seen(Node(name))
    world.node_gone("n1")
    assert world.sight(KEY, 0).lost_nodes == ("n1",)


@pytest.mark.parametrize(
    ("levels", "found", "stranded"),
    [
        ((HOSTNAME_LABEL,), "n1", False),
        ((HOSTNAME_LABEL,), "n2", True),
        (("rack",), "n1", False),  # it is named no node that its pods could have left
    ],
)
def test_pods_on_nodes_that_the_reservation_does_not_name_are_stranded(
    levels: tuple[str, ...], found: str, stranded: bool
) -> None:
    world = Setting().world
    (given,) = GIVEN.pod_sets
    there = TopologyAssignment(levels, (Domain(("n1" if levels == (HOSTNAME_LABEL,) else "r1",), 2),))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (replace(given, topology=there),)))))
    world.pod_seen(pod("a", node=found))
    tally = world.tally(replace(JOB, survives=True), world.workloads[("ns", "w")], 0)
    assert tally.stranded == ((("ns", "a"),) if stranded else ())


@pytest.mark.parametrize(
    ("theirs", "node", "left"),
    [
        (None, "n9", False),  # kube-scheduler chooses, where nodes are made for pods
        (TopologyAssignment(("rack",), (Domain(("r1",), 1),)), "n9", False),
        (TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n9",), 1),)), "n9", False),
        (TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n2",), 1),)), "n9", True),
        (TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n2",), 1),)), "n1", True),
    ],
    ids=str,
)
def test_the_nodes_of_another_pod_set_say_nothing_of_where_pods_may_be(
    theirs: TopologyAssignment | None, node: str, left: bool
) -> None:
    world = Setting().world
    (given,) = GIVEN.pod_sets
    workers = replace(given, topology=TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),)))
    driver = PodSetAssignment("driver", (("gpu", "f"),), (("gpu", 1),), 1, theirs)
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (workers, driver)))))
    world.pod_seen(pod("a"))
    world.pod_seen(pod("b", pod_set="driver", node=node))
    world.pod_seen(pod("ends", pod_set="driver", node=node, terminating=True))
    tally = world.tally(replace(JOB, survives=True), world.workloads[("ns", "w")], 100)
    assert tally.stranded == ((("ns", "b"),) if left else ())
    assert tally.beyond == (None if left else Beyond(100, 2, 1, "driver"))


@pytest.mark.parametrize("chosen", [True, False])
def test_a_node_that_went_while_nobody_looked_is_lost(chosen: bool) -> None:
    setting = Setting()
    world = setting.world
    world.job_seen(replace(JOB, suspended=False))
    world.workload_seen(seen(replace(HOLDS, admission=Admission("q", (ON_N1,)) if chosen else GIVEN)))
    world.pod_seen(pod("a", pinned="n1" if chosen else ""))
    world.pod_seen(pod("over", node="n3", done=True))
    world.pod_seen(pod("other", node="n4", workload_uid="", owner_uid="x", held_by="x"))
    world.node_seen(Node("n2"))
    assert world.sight(KEY, 1).lost_nodes == ()
    setting.woken.clear()
    assert world.unknown_nodes() == ["n1"]
    world.node_gone("n1")
    assert world.unknown_nodes() == []
    assert world.lost_nodes == {"n1": 0}
    assert world.sight(KEY, 1).lost_nodes == ("n1",)
    assert KEY in setting.woken


@pytest.mark.parametrize(
    ("level", "finished", "unknown"),
    [(HOSTNAME_LABEL, False, ["n1"]), (HOSTNAME_LABEL, True, []), ("rack", False, [])],
)
def test_a_node_that_went_while_nobody_looked_is_lost_to_whom_it_was_given(
    level: str, finished: bool, unknown: list[str]
) -> None:
    """Its pods there may be gone with it, or not be made yet; and what is wider than a node is none."""
    setting = Setting()
    placed = TopologyAssignment((level,), (Domain(("n1",), 2),))
    given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 2),), 2, placed),))
    setting.world.workload_seen(seen(replace(HOLDS, admission=given, finished=finished)))
    setting.world.node_seen(Node("n2"))
    assert setting.world.unknown_nodes() == unknown
    setting.world.node_seen(Node("n1"))
    assert setting.world.unknown_nodes() == []


def test_a_node_that_is_no_more_is_remembered_for_who_may_still_come_to_it() -> None:
    setting = Setting()
    world = setting.world
    placed = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 2),))
    given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (("gpu", 2),), 2, placed),))
    world.node_seen(Node("n1"))
    world.node_gone("n1")
    world.forget_nodes()
    world.workload_seen(seen(replace(HOLDS, admission=given)))  # its write was on its way
    world.pod_seen(pod("a", terminating=True))
    for _ in range(2):
        world.forget_nodes()
    assert world.sight(KEY, 1).lost_nodes == ("n1",)
    world.workload_lost(seen(HOLDS))
    for _ in range(2):
        world.forget_nodes()
    assert world.pods_live(("ns", "w1"), 1) == 0
    world.pod_lost(pod("a"))
    for _ in range(2):
        world.forget_nodes()
    assert world.lost_nodes == {}


def test_what_a_driver_lists_is_room_on_its_node_and_what_a_claim_holds_is_taken() -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    gpus = devices.DeviceClass("gpu", gpu := "example.com/gpu")
    claim = devices.Claim("others", "mine", ((("d", "n0"), "gpu-1"),))

    def listed(many: int) -> devices.Slice:
        return devices.Slice("n0", ("d", "n0"), devices=tuple(devices.Device(f"gpu-{i}", "n0") for i in range(many)))

    def free() -> int | None:
        return world.state.ledger.nodes.free("n0").get(gpu)

    node = Node("n0", allocatable=(("cpu", 8000), ("pods", 100)), ready=True)
    world.node_seen(node)
    assert free() is None
    world.devices_changed(None, listed(2))
    world.devices_changed(None, gpus)
    assert free() == 2
    world.devices_changed(None, claim)
    assert free() == 1
    world.node_seen(replace(node, labels=(("zone", "a"),)))
    assert free() == 1
    world.devices_changed(listed(2), listed(4))
    assert free() == 3
    world.devices_changed(claim, devices.Claim("others", "mine"))
    assert free() == 4
    world.devices_changed(devices.Claim("others", "mine"), claim)
    world.devices_changed(gpus, None)
    assert free() is None
    world.devices_changed(None, gpus)
    world.node_gone("n0")
    world.devices_changed(listed(4), listed(1))
    assert world.state.ledger.nodes.node("n0") is None
    world.node_seen(node)
    assert free() == 1
    assert world.state.drift() == []


def test_a_class_that_names_no_resource_is_room_while_a_queue_has_quota_of_it() -> None:
    world = World(State(MUSTER), changed_job=lambda key: None, dirty=lambda: None)
    name = f"{OF_DEVICE_CLASS}gpu"
    listed = devices.Slice("n0", ("d", "n0"), devices=tuple(devices.Device(f"gpu-{i}", "n0") for i in range(2)))
    world.node_seen(Node("n0", allocatable=(("cpu", 8000), ("pods", 100))))
    for one in (listed, devices.DeviceClass("gpu"), devices.Claim("others", "mine", ((("d", "n0"), "gpu-1"),))):
        world.devices_changed(None, one)

    def free() -> int | None:
        return world.state.ledger.nodes.free("n0").get(name)

    def put(queue: str, *resources: str) -> None:
        quotas = FlavorQuotas("f", tuple((resource, Quota(4)) for resource in resources))
        world.apply(Put(ClusterQueue(queue, groups=(ResourceGroup(resources, (quotas,)),))))

    put("a", "cpu", GPU)
    assert free() is None
    put("b", "cpu", name)
    put("c", name)
    assert free() == 1
    put("b", "cpu")
    assert free() == 1
    world.apply(Gone(ClusterQueue, "c"))
    assert free() is None
    assert world.state.drift() == []


BY_CLASS, NIC = f"{OF_DEVICE_CLASS}gpu", "example.com/nic"


@pytest.mark.parametrize(
    ("held", "before", "after", "gone", "kept"),
    [
        pytest.param([GPU], GPU, "", "", True, id="the class loses its name"),
        pytest.param([BY_CLASS], "", GPU, "", True, id="it gets one"),
        pytest.param([GPU], GPU, "example.com/other", "", True, id="it gets another"),
        pytest.param([GPU], GPU, None, "", True, id="it is gone"),
        pytest.param([GPU], GPU, "", GPU, True, id="others have its name"),
        pytest.param([GPU], GPU, GPU, "listed", False, id="they are gone"),
        pytest.param([GPU], GPU, "", "listed", False, id="under whatever name"),
        pytest.param([NIC, GPU], GPU, GPU, NIC, False, id="others are, of a device plugin"),
        pytest.param([NIC], "", "", NIC, False, id="and its claims are of no quota"),
    ],
)
def test_whose_class_is_called_otherwise_has_not_lost_its_devices(
    held: list[str], before: str, after: str | None, gone: str, kept: bool
) -> None:
    """Neither are they free."""
    excluded = frozenset({"gpu"} if held == [NIC] else ())
    setting = Setting(replace(MUSTER, excluded_classes=excluded))
    world = setting.world
    old, new = devices.DeviceClass("gpu", before), None if after is None else devices.DeviceClass("gpu", after)
    four = devices.Slice("n1", ("d", "n1"), devices=tuple(devices.Device(f"gpu-{i}", "n1") for i in range(4)))
    quotas = FlavorQuotas("f", ((BY_CLASS, Quota(4)), (GPU, Quota(4)), (NIC, Quota(4))))
    world.apply(Put(ClusterQueue("q", groups=(ResourceGroup((BY_CLASS, GPU, NIC), (quotas,)),))))
    # Where there was a device plugin before, the kubelet goes on to say that it has none.
    world.node_seen(Node("n1", allocatable=((NIC, 3), (GPU, 0), ("pods", 110))))
    world.devices_changed(None, four)
    world.devices_changed(None, old)
    asked = tuple((name, 3) for name in sorted(held))
    admission, shape = Admission("q", (replace(ON_N1, count=1, usage=asked),)), PodShape(requests=asked)
    world.workload_seen(seen(replace(HOLDS, admission=admission, admitted=True, pod_sets=(PodSet("main", 1, shape),))))
    world.pod_seen(pod("a", usage=PodUsage(("ns", "a"), "a", "n1", asked, workload_uid="w1")))
    holds = tuple((four.pool, one.name) for one in four.devices[:3])
    asks = devices.Asks((("gpu", 3),))
    world.devices_changed(None, devices.Claim("ns", "c", holds, ("a", "a"), held != [NIC], asks))
    assert world.sight(KEY, 1000).lost_nodes == ()

    if new != old:
        world.devices_changed(old, new)
    if gone == NIC:
        world.node_seen(Node("n1", allocatable=((NIC, 0), (GPU, 0), ("pods", 110))))
    elif gone == GPU:
        world.devices_changed(None, devices.DeviceClass("other", GPU, selectors=('device.driver == "other"',)))
    elif gone:
        world.devices_changed(four, dataclasses.replace(four, devices=()))
    elif new is not None:
        assert world.state.ledger.nodes.free("n1")[new.counted_as] == 1
    world.sight(KEY, 2000)
    assert world.sight(KEY, 2000 + NODE_GONE_MS).lost_nodes == (() if kept else ("n1",))
    assert world.state.drift() == []


def one_pod_runs(world: World, name: str, admitted_at: int, asked: tuple[tuple[str, int], ...]) -> None:
    """A gang of one pod, on n1, which asks for this."""
    world.job_seen(replace(JOB, name=name, uid=name))
    at_n1 = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("n1",), 1),))
    given = Admission("q", (replace(ON_N1, count=1, usage=asked, topology=at_n1),))
    held = replace(HOLDS, name=name, uid=name, job_uid=name, admitted_at=admitted_at, admission=given)
    world.workload_seen(seen(replace(held, pod_sets=(PodSet("main", 1, PodShape(requests=asked)),))))
    usage = PodUsage(("ns", name), name, "n1", asked, workload_uid=name)
    world.pod_seen(pod(name, workload_uid=name, owner_uid=name, held_by=name, usage=usage))


@pytest.mark.parametrize(
    ("there", "gone", "lost"),
    [
        (4, (0,), {"old": "1 of 2 nvidia.com/gpu"}),
        (4, (3,), {"new": "1 of 2 nvidia.com/gpu"}),
        (4, (0, 2), {"old": "1 of 2 nvidia.com/gpu", "new": "1 of 2 nvidia.com/gpu"}),
        (5, (4,), {}),
        (5, (0,), {}),  # there is another for the pod that Kubernetes deletes
        (5, (0, 4), {"old": "1 of 2 nvidia.com/gpu"}),
        (4, (0, 1, 2, 3), {"old": "0 of 2 nvidia.com/gpu", "new": "0 of 2 nvidia.com/gpu"}),
    ],
)
def test_of_listed_devices_it_is_known_whose_is_gone(there: int, gone: tuple[int, ...], lost: dict[str, str]) -> None:
    """One that is broken is taken off the list, or tainted so that Kubernetes deletes the pod that has it."""
    setting = Setting()
    world = setting.world
    world.node_seen(Node("n1", allocatable=(("pods", 110),)))
    every = tuple(devices.Device(f"gpu-{i}", "n1") for i in range(there))
    whole = devices.Slice("n1", ("d", "n1"), devices=every)
    world.devices_changed(None, devices.DeviceClass("gpu", GPU))
    world.devices_changed(None, whole)
    asked = ((GPU, 2),)
    for at, name in enumerate(("old", "new")):
        one_pod_runs(world, name, at, asked)
        holds = tuple((whole.pool, one.name) for one in every[2 * at : 2 * at + 2])
        claim = devices.Claim("ns", name, holds, (name, name), True, devices.Asks((("gpu", 2),)))
        world.devices_changed(None, claim)

    def short() -> dict[str, str]:
        for now in (0, NODE_GONE_MS):
            sights = {name: world.sight(("Job", "ns", name), now) for name in ("old", "new")}
        return {name: left for name, sight in sights.items() for _, left in sight.short}

    assert short() == {}
    left = dataclasses.replace(whole, devices=tuple(one for i, one in enumerate(every) if i not in gone))
    world.devices_changed(whole, left)
    assert short() == lost
    world.devices_changed(left, whole)
    assert short() == {}
    if there == 4:
        world.devices_changed(whole, dataclasses.replace(whole, devices=every[:3]))
        assert short() == {"new": "1 of 2 nvidia.com/gpu"}, "what was gone before is there"


OF_EACH = {
    ("gpu-0", "gpu-1", "nic-0", "nic-1"): {"old": f"0 of 1 {NIC}, 0 of 2 {GPU}", "new": f"0 of 1 {NIC}"},
    ("gpu-3", "nic-0"): {"old": f"0 of 1 {NIC}", "new": f"1 of 2 {GPU}"},
}


@pytest.mark.parametrize(
    ("left", "said", "patience"),
    [
        ((), {}, AWAY_MS),
        ((0,), {}, AWAY_MS),  # it begins again: of two slices the first is there
        ((), {"ready": False}, NODE_GONE_MS),
        ((0, 1), {}, NODE_GONE_MS),  # it is there, and lists none
    ],
)
def test_devices_whose_driver_starts_anew_are_left_to_pods_that_run_on(
    left: tuple[int, ...], said: dict[str, Any], patience: int
) -> None:
    """A kubelet deletes the slices of a driver that is away for half a minute, and all of them as it starts."""
    setting = Setting()
    world, asked = setting.world, ((GPU, 4),)
    world.node_seen(Node("n1", allocatable=(("pods", 110),)))
    gpus = tuple(devices.Device(f"gpu-{i}", "n1") for i in range(4))
    halves = [devices.Slice(f"s{i}", ("d", "n1"), of=2, devices=gpus[2 * i : 2 * i + 2]) for i in range(2)]
    world.devices_changed(None, devices.DeviceClass("gpu", GPU))
    one_pod_runs(world, "a", 0, asked)
    usage = PodUsage(("ns", "a"), "a", "n1", asked, workload_uid="a")
    world.pod_seen(pod("a", workload_uid="a", owner_uid="a", held_by="a", usage=usage, **said))
    holds = tuple((halves[0].pool, one.name) for one in gpus)
    world.devices_changed(None, devices.Claim("ns", "a", holds, ("a", "a"), True, devices.Asks((("gpu", 4),))))
    for half in halves:
        world.devices_changed(None, half)
    at = ("Job", "ns", "a")
    assert world.sight(at, 1000).lost_at is None
    for half in halves:
        world.devices_changed(half, None)
    for i in left:
        world.devices_changed(None, dataclasses.replace(halves[i], generation=1, devices=()))
    sight = world.sight(at, 2000)
    assert (sight.lost_nodes, sight.lost_at) == ((), 2000 + patience)
    assert world.sight(at, 2000 + patience).short == (("n1", f"0 of 4 {GPU}"),)
    for half in halves:
        world.devices_changed(None, dataclasses.replace(half, generation=2))
    assert (world.sight(at, 900_000).lost_nodes, world.sight(at, 900_000).lost_at) == ((), None)


@pytest.mark.parametrize(
    ("by_claims", "gone", "lost"),
    [
        ((GPU, NIC), ("nic-0",), {"old": f"0 of 1 {NIC}"}),
        ((GPU, NIC), ("nic-0", "nic-1"), {"old": f"0 of 1 {NIC}", "new": f"0 of 1 {NIC}"}),
        ((GPU, NIC), ("gpu-3",), {"new": f"1 of 2 {GPU}"}),
        ((GPU, NIC), ("gpu-0", "nic-0"), {"old": f"0 of 1 {NIC}, 1 of 2 {GPU}"}),
        (
            (GPU, NIC),
            ("gpu-0", "gpu-1", "nic-0", "nic-1"),
            {"old": f"0 of 1 {NIC}, 0 of 2 {GPU}", "new": f"0 of 1 {NIC}, 1 of 2 {GPU}"},
        ),
        ((GPU, NIC), ("gpu-3", "nic-0"), dict.fromkeys(("old", "new"), f"0 of 1 {NIC}, 1 of 2 {GPU}")),
        ((NIC,), ("nic-0",), {"old": f"0 of 1 {NIC}"}),
        ((NIC,), ("gpu-0",), {"new": f"3 of 4 {GPU}"}),  # a device plugin does not tell whose
        ((NIC,), ("gpu-0", "gpu-1", "gpu-2", "gpu-3"), {"old": f"0 of 2 {GPU}", "new": f"0 of 4 {GPU}"}),
        ((NIC,), ("gpu-0", "nic-0"), {"old": f"0 of 1 {NIC}", "new": f"3 of 4 {GPU}"}),
    ],
)
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_of_devices_of_several_kinds_it_is_known_which_are_gone(
    apart: bool, extended: bool, by_claims: tuple[str, ...], gone: tuple[str, ...], lost: dict[str, str]
) -> None:
    """A claim may be on several classes, and a class may name a resource that a node's device plugin offers. Where
    there is a claim for each class, `apart`, it is known which class has lost its own."""
    setting = Setting()
    world = setting.world
    kinds, asked = {NIC: "nic", GPU: "gpu"}, ((NIC, 1), (GPU, 2))

    def offers(gone: tuple[str, ...]) -> list[devices.Slice]:
        there = {name: [f"{kinds[name]}-{i}" for i in range(2 * many)] for name, many in asked}
        left = {name: [one for one in some if one not in gone] for name, some in there.items()}
        plugin = tuple((name, len(left[name])) for name in kinds if name not in by_claims)
        world.node_seen(Node("n1", allocatable=(*plugin, ("pods", 110))))
        made = {name: tuple(devices.Device(one, "n1") for one in left[name]) for name in by_claims}
        return [devices.Slice(kinds[name], (kinds[name], "n1"), devices=some) for name, some in made.items()]

    for name, kind in kinds.items():
        # A driver picks its own devices alone.
        world.devices_changed(None, devices.DeviceClass(kind, name, selectors=(f'device.driver == "{kind}"',)))
    whole = offers(())
    for one in whole:
        world.devices_changed(None, one)
    amounts = dict(asked)
    for at, name in enumerate(("old", "new")):
        one_pod_runs(world, name, at, asked)
        asks = devices.Asks(tuple((kinds[of], amounts[of]) for of in by_claims))
        shares = list(zip(whole, asks.devices, strict=True))
        for number, part in enumerate([[share] for share in shares] if apart else [shares]):
            holds = tuple((of.pool, one.name) for of, (_, n) in part for one in of.devices[at * n : (at + 1) * n])
            of_these = devices.Asks(tuple(wanted for _, wanted in part))
            claim = devices.Claim("ns", f"{name}-{number}", holds, (name, name), extended, of_these)
            world.devices_changed(None, claim)

    def short() -> dict[str, str]:
        for now in (0, NODE_GONE_MS):
            sights = {name: world.sight(("Job", "ns", name), now) for name in ("old", "new")}
        return {name: left for name, sight in sights.items() for _, left in sight.short}

    assert short() == {}
    for before, after in zip(whole, offers(gone), strict=True):
        world.devices_changed(before, after)
    assert short() == (OF_EACH.get(gone, lost) if apart else lost)
    assert world.state.drift() == []


def test_who_asks_by_the_name_of_a_class_is_looked_at_when_that_counts_otherwise() -> None:
    setting = Setting()
    world, woken = setting.world, setting.woken
    asking = replace(JOB, device_classes=("gpu",))
    world.job_seen(asking)
    plain, named = devices.DeviceClass("gpu"), devices.DeviceClass("gpu", GPU)
    newer = devices.DeviceClass("newer", GPU, created=1)
    marks = [world.defaults.mark_of(asking)]
    for old, new in ((None, plain), (plain, named), (None, newer), (newer, None), (named, None)):
        woken.clear()
        world.devices_changed(old, new)
        assert woken == [KEY]
        marks.append(world.defaults.mark_of(asking))
    assert all(one != other for one, other in itertools.pairwise(marks))
    assert world.defaults.mark_of(JOB) == ""
    world.job_seen(JOB)
    woken.clear()
    world.devices_changed(None, plain)
    assert woken == []


def test_who_names_a_template_is_looked_at_when_what_it_asks_for_changes() -> None:
    setting = Setting()
    world, woken = setting.world, setting.woken
    claiming = replace(JOB, claim_templates=("two",))
    two = devices.Template("ns", "two", devices.Asks((("gpu", 2),)))
    gpu = devices.DeviceClass("gpu", GPU)
    world.job_seen(claiming)
    changes: list[tuple[devices.Listed | None, devices.Listed | None]] = [
        (None, two),
        (None, gpu),
        (gpu, dataclasses.replace(gpu, created=1)),  # nothing that it asks for
        (two, dataclasses.replace(two, asks=devices.Asks((("gpu", 3),)))),
        (dataclasses.replace(gpu, created=1), None),
    ]
    marks = [world.defaults.mark_of(claiming)]
    for old, new in changes:
        woken.clear()
        world.devices_changed(old, new)
        assert woken == [KEY]
        marks.append(world.defaults.mark_of(claiming))
    assert [one != other for one, other in itertools.pairwise(marks)] == [True, True, False, True, True]
    woken.clear()
    world.devices_changed(None, devices.Template("ns", "another"))
    world.devices_changed(None, devices.Template("other", "two"))
    world.job_seen(JOB)
    woken.clear()
    world.devices_changed(None, two)
    assert woken == []


def test_a_gang_whose_claims_ask_for_more_than_was_counted_goes_back() -> None:
    setting = Setting()
    world = setting.world
    counted = PodShape(requests=((GPU, 2),), claimed=(("gpu", GPU, 2),))
    world.workload_seen(seen(replace(HOLDS, pod_sets=(PodSet("main", 2, counted),))))
    world.devices_changed(None, devices.DeviceClass("gpu", GPU))
    slices = devices.Slice("n1", ("d", "n1"), devices=tuple(devices.Device(f"gpu-{i}", "n1") for i in range(4)))
    world.devices_changed(None, slices)
    world.node_seen(Node("n1"))
    mine = PodUsage(("ns", "a"), "a", "n1", (), workload_uid="w1")
    held = (("d", "n1"), "gpu-0"), (("d", "n1"), "gpu-1")

    def claims(of: str) -> str:
        said = setting.state.ledger.nodes.pod(("ns/resourceclaims", f"{of}/n1"))
        return "" if said is None else said.workload_uid or "of nobody"

    def tally() -> str:
        return world.tally(JOB, world.workloads["ns", "w"], 0).claims_more

    # Before its pod is known a claim is somebody's.
    fair = devices.Claim("ns", "c", held, ("a", "a"), asks=devices.Asks((("gpu", 2),)))
    world.devices_changed(None, fair)
    assert claims("c") == "of nobody"
    world.pod_seen(pod("a", usage=mine))
    assert (claims("c"), tally()) == ("w1", "")
    more = devices.Claim("ns", "d", (), ("a", "a"), asks=devices.Asks((("gpu", 1),)))
    setting.woken.clear()
    world.devices_changed(None, more)
    assert "Pod a asks for this by its claims: 3 of gpu, and 2 were counted" in tally()
    assert set(setting.woken) == {KEY}
    step = next_step(world.sight(KEY, 0), Settings(), 0).step
    assert (type(step).__name__, getattr(step, "reason", "")) == ("EvictWorkload", "OutOfSync")
    # Who was imported as it ran, so that nothing says what was counted, runs on.
    world.workload_seen(seen(replace(HOLDS, pod_sets=(PodSet("main", 2, replace(counted, uncounted="claims")),))))
    assert tally() == ""
    world.workload_seen(seen(replace(HOLDS, pod_sets=(PodSet("main", 2, counted),))))
    world.devices_changed(more, None)
    assert tally() == ""
    world.pod_lost(pod("a"))
    assert claims("c") == "of nobody"
