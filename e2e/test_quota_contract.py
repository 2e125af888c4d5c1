"""The contract of quota on a real control plane: trees, limits, reclaim, checks, stop policies, time limits, turns.

Each test asserts on the API objects; afterwards every object version of the run is judged by the invariants.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from e2e.api_client import Object
from e2e.control_plane import READY_SECONDS, ControlPlane
from e2e.gangs import GPU, WORKLOADS, admitted, done, entry_of, reason, running_pods, workload_of
from e2e.installed import (
    NAMES,
    Installed,
    cluster_queue,
    cohort,
    flavor,
    group,
    job,
    jobset,
    local_queue,
    ours,
    pod_template,
)

LABELS = {"gpu": "h100"}


def node_pool(cp: ControlPlane, count: int, **said: Any) -> None:
    cp.add_nodes(count, gpus=8, labels={**LABELS, **said.pop("labels", {})}, **said)
    cp.apply(flavor(labels=LABELS))


def team(cp: ControlPlane, name: str, gpus: int, **spec: Any) -> None:
    """Namespace, LocalQueue `main` and ClusterQueue of one name; outside of any cohort unless told."""
    cp.namespace(name)
    cp.apply([cluster_queue(name, {GPU: gpus}, **spec), local_queue(name, name)])


def backlog(name: str, count: int, *, seconds: float | None = None) -> list[Object]:
    """Jobs of one pod with 8 GPUs, that run until they are stopped."""
    return [job(name, f"{name}-{n}", 1, seconds=seconds) for n in range(count)]


def held(cp: ControlPlane) -> dict[str, int]:
    """GPUs in use by ClusterQueue, from the admissions that stand."""
    out: Counter[str] = Counter()
    for workload in cp.list(WORKLOADS):
        if entry_of(workload, "Finished").get("status") == "True":
            continue
        admission = workload.get("status", {}).get("admission")
        for assignment in (admission or {}).get("podSetAssignments", ()):
            out[admission["clusterQueue"]] += int(assignment.get("resourceUsage", {}).get(GPU, 0))
    return dict(out)


def evictions(cp: ControlPlane) -> Counter[tuple[str, str, str]]:
    """(namespace, reason, cause) -> how often, over all Workloads."""
    out: Counter[tuple[str, str, str]] = Counter()
    for workload in cp.list(WORKLOADS):
        for one in workload.get("status", {}).get("schedulingStats", {}).get("evictions", ()):
            out[workload["metadata"]["namespace"], one["reason"], one["underlyingCause"]] += one["count"]
    return out


def becomes(cp: ControlPlane, look: Callable[[], Any], wanted: Any, seconds: float = 40) -> None:
    """Wait until what is looked at is as wanted; else fail with what it was."""
    seen: list[Any] = [None]

    def holds() -> bool:
        seen[0] = look()
        return bool(seen[0] == wanted)

    try:
        cp.wait(holds, seconds, f"{wanted}")
    except Exception as error:
        raise AssertionError(f"is {seen[0]}, should be {wanted}") from error


def stays(look: Callable[[], Any], wanted: Any, seconds: float = 3) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert look() == wanted
        time.sleep(0.2)


def stamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def status_of(cp: ControlPlane, kind: str, name: str, namespace: str | None = None) -> Object:
    return dict(cp.get(kind, name, namespace).get("status") or {})


# ---------------------------------------------------------------- trees


def test_backlogs_end_at_the_weighted_shares_of_every_level(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 12)
    cp.apply(
        [
            cohort("org"),
            cohort("research", parentName="org", fairSharing={"weight": "1"}),
            cohort("product", parentName="org", fairSharing={"weight": "2"}),
            cohort("apps", parentName="product", fairSharing={"weight": "3"}),
        ]
    )
    for name, parent, weight in (
        ("vision", "research", "1"),
        ("speech", "research", "1"),
        ("search", "product", "1"),
        ("mail", "apps", "1"),
        ("maps", "apps", "2"),
    ):
        team(cp, name, 0, cohortName=parent, fairSharing={"weight": weight})
        cp.create_all(backlog(name, 12))
    muster.started()
    cp.wait(lambda: len(cp.list(WORKLOADS)) == 60, 30, "all to wait")
    cp.apply(cohort("org", {GPU: 96}))
    # research : product = 1 : 2, so 32 and 64; vision : speech = 1 : 1; search : apps = 1 : 3, so 16 and 48; 1 : 2.
    shares = {"vision": 16, "speech": 16, "search": 16, "mail": 16, "maps": 32}
    becomes(cp, lambda: held(cp), shares)
    leaving = [f"maps-{n}" for n in range(12) if admitted(cp, "maps", f"maps-{n}")][:3]
    for name in leaving:
        cp.delete("jobs", name, "maps")
    cp.wait(lambda: not any(cp.find("jobs", name, "maps") for name in leaving), 20, "some gangs to be gone")
    becomes(cp, lambda: held(cp), shares)

    def told() -> dict[str, int]:
        return {
            name: status_of(cp, "cohorts", name)["fairSharing"]["weightedShare"] for name in ("research", "product")
        }

    # 32 of the 96 that the root could lend, over weight 1; 64 of them, over weight 2. Statuses come after the gangs.
    becomes(cp, told, {"research": 334, "product": 334})
    assert not evictions(cp)


def test_what_was_lent_comes_back_across_the_tree_and_nobody_within_quota_is_touched(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 8)
    cp.apply(
        [
            cohort("org"),
            cohort("research", {GPU: 16}, parentName="org"),
            cohort("product", {GPU: 16}, parentName="org"),
        ]
    )
    for name, parent, quota in (("vision", "research", 0), ("search", "product", 0), ("ops", "org", 32)):
        team(cp, name, quota, cohortName=parent)
    muster.started()
    cp.create_all(backlog("ops", 2))
    becomes(cp, lambda: held(cp), {"ops": 16})
    cp.create_all(backlog("vision", 6))
    becomes(cp, lambda: held(cp), {"ops": 16, "vision": 48})
    # Two gangs of 8 are what product owns: two borrowers leave for them, not three, and a third waits.
    cp.create_all(backlog("search", 3))
    becomes(cp, lambda: held(cp), {"ops": 16, "vision": 32, "search": 16})
    assert evictions(cp) == {("vision", "Preempted", "InCohortReclamation"): 2}
    # ops takes back the rest of what is its own; what then runs is within somebody's quota, and stays.
    cp.create_all([job("ops", "more", 2, seconds=None)])
    becomes(cp, lambda: held(cp), {"ops": 32, "vision": 16, "search": 16})
    stays(lambda: held(cp), {"ops": 32, "vision": 16, "search": 16})
    assert evictions(cp) == {("vision", "Preempted", "InCohortReclamation"): 4}


def limited(quota: int, **limits: int) -> dict[str, Any]:
    """Resource groups of GPUs with limits."""
    made = group({GPU: quota})
    made["flavors"][0]["resources"][0].update({name: str(value) for name, value in limits.items()})
    return {"resourceGroups": [made]}


def test_borrowing_and_lending_limits_hold_with_a_deep_backlog(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 8)
    cp.apply(cohort("all"))
    team(cp, "team-a", 0, cohortName="all", **limited(8, borrowingLimit=16))
    team(cp, "team-b", 0, cohortName="all", **limited(24, lendingLimit=8))
    team(cp, "team-c", 0, cohortName="all", **limited(32, lendingLimit=16))
    muster.started()
    cp.create_all(backlog("team-a", 6))
    becomes(cp, lambda: held(cp), {"team-a": 24})
    stays(lambda: held(cp), {"team-a": 24})
    waits = next(f"team-a-{n}" for n in range(6) if not admitted(cp, "team-a", f"team-a-{n}"))
    cp.wait(lambda: "limit" in reason(cp, "team-a", waits)[1].lower(), 20, "the limit to be told")
    # What b keeps to itself is b's at once; the 8 that it lends may be out, and come back.
    cp.create_all(backlog("team-b", 4))
    becomes(cp, lambda: held(cp), {"team-a": 24, "team-b": 24})
    assert not evictions(cp), "8 of b's and 16 of c's were to be had: one has 8 of them, the other 16"
    cp.create_all(backlog("team-c", 4))
    becomes(cp, lambda: held(cp), {"team-a": 8, "team-b": 24, "team-c": 32})
    assert all(cause == "InCohortReclamation" for _, _, cause in evictions(cp))


def test_quota_cut_below_usage_evicts_nobody_and_admits_nobody(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 4)
    team(cp, "team-a", 32)
    muster.started()
    cp.create_all(backlog("team-a", 4))
    becomes(cp, lambda: held(cp), {"team-a": 32})
    cp.apply(cluster_queue("team-a", {GPU: 16}))
    cp.apply([job("team-a", "late", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "team-a", "late")[0] == "WaitingForQuota", 20, "the late one to be told why")
    for left in (32, 24, 16):
        stays(lambda: held(cp)["team-a"], left, 2)
        assert not admitted(cp, "team-a", "late")
        if left > 16:
            gone = next(f"team-a-{n}" for n in range(4) if cp.find("jobs", f"team-a-{n}", "team-a"))
            cp.delete("jobs", gone, "team-a")
            becomes(cp, lambda: held(cp)["team-a"], left - 8)
    assert not evictions(cp)
    cp.apply(cluster_queue("team-a", {GPU: 24}))
    cp.wait(lambda: admitted(cp, "team-a", "late"), 20, "the late one to be admitted once it fits")


def test_a_cycle_of_cohorts_stops_what_hangs_below_it_and_nothing_else(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 8)
    cp.apply([cohort("top"), cohort("mid", parentName="top"), cohort("low", parentName="mid"), cohort("apart")])
    team(cp, "team-a", 32, cohortName="low")
    team(cp, "team-b", 16, cohortName="apart")
    muster.started()
    cp.create_all([one for name in ("team-a", "team-b") for one in backlog(name, 10, seconds=1)])
    cp.wait(lambda: held(cp).get("team-a"), 20, "work to flow")
    cp.apply(cohort("top", parentName="low"))
    cp.apply([job("team-a", "caught", 1, seconds=1)])
    cp.wait(
        lambda: entry_of(cp.get("clusterqueues", "team-a"), "Active").get("reason") == "CohortCycle", 20, "it be told"
    )
    cp.wait(lambda: entry_of(cp.get("cohorts", "mid"), "Active").get("status") == "False", 20, "the cohort to say so")
    cp.wait(done(cp, "jobs", "team-b", *(f"team-b-{n}" for n in range(10))), 60, "the others to go on")
    becomes(cp, lambda: held(cp), {})  # what ran ended by itself
    assert not evictions(cp)
    stays(lambda: admitted(cp, "team-a", "caught"), False, 2)
    cp.wait(lambda: reason(cp, "team-a", "caught")[0] == "Misconfigured", 20, "the reason to be told")
    cp.apply(cohort("top"))
    names = [*(f"team-a-{n}" for n in range(10)), "caught"]
    cp.wait(done(cp, "jobs", "team-a", *names), 60, "all to run once the cycle is gone")


# ---------------------------------------------------------------- parts of gangs


def test_a_gang_starts_with_less_and_is_its_owners_again_afterwards(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 8)
    team(cp, "team-a", 20)
    muster.started(config={"waitForPodsReady": {"timeout": "4s"}})
    less = {NAMES.min_parallelism_annotation: "1"}
    long = job("team-a", "long", 4, seconds=None)
    long["metadata"]["annotations"] = less
    cp.apply([long])
    cp.wait(lambda: admitted(cp, "team-a", "long"), 20, "part of the gang to be admitted")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 20, "two pods to run")
    given = status_of(cp, WORKLOADS, workload_of(cp, "team-a", "long")["metadata"]["name"], "team-a")["admission"]  # type: ignore[index]
    assert [one["count"] for one in given["podSetAssignments"]] == [2], "two of 20 GPUs' worth, though four were asked"
    spec = cp.get("jobs", "long", "team-a")["spec"]
    assert (spec["parallelism"], spec["completions"], spec["suspend"]) == (2, 4, False)
    # Two ready pods are all that were promised: no timeout of pods that nobody makes.
    stays(lambda: admitted(cp, "team-a", "long"), True, 6)
    cp.apply(cluster_queue("team-a", {GPU: 20}, stopPolicy="HoldAndDrain"))
    cp.wait(lambda: not held(cp), 30, "it to be evicted")
    spec = cp.get("jobs", "long", "team-a")["spec"]
    assert (spec["parallelism"], spec["completions"], spec["suspend"]) == (4, 4, True)
    cp.apply(cluster_queue("team-a", {GPU: 32}))
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 4, 30, "the whole gang to run, now that there is room")
    assert cp.get("jobs", "long", "team-a")["spec"]["parallelism"] == 4
    cp.delete("jobs", "long", "team-a")
    cp.apply(cluster_queue("team-a", {GPU: 16}))
    short = job("team-a", "short", 5, seconds=2)
    short["metadata"]["annotations"] = less
    cp.wait(lambda: not held(cp), 20, "the long one to be gone")
    cp.apply([short])
    cp.wait(done(cp, "jobs", "team-a", "short"), 60, "five pods to run, two at a time")
    status = status_of(cp, "jobs", "short", "team-a")
    assert status["completedIndexes"] == "0-4"
    assert len(cp.list("pods", "team-a", labelSelector="job-name=short")) == 5


def test_pods_that_are_done_give_their_quota_to_whoever_waits(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 4)
    team(cp, "team-a", 32)
    muster.started()
    first = jobset("team-a", "first", {"long": (1, 2), "short": (2, 1)}, seconds=None)
    first["spec"]["replicatedJobs"][1]["template"]["spec"]["template"] = pod_template(8, 1)
    cp.apply([first])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "the short part to be over")
    name = workload_of(cp, "team-a", "first")["metadata"]["name"]  # type: ignore[index]
    time.sleep(6)
    assert "reclaimablePods" not in status_of(cp, WORKLOADS, name, "team-a"), "nobody waits, nothing is written"
    cp.apply([job("team-a", "next", 2, seconds=2)])
    cp.wait(lambda: admitted(cp, "team-a", "next"), 20, "the next gang to get what the done pods held")
    status = status_of(cp, WORKLOADS, name, "team-a")
    assert status["reclaimablePods"] == [{"name": "short", "count": 2}]
    assert admitted(cp, "team-a", "first")
    usage = status_of(cp, "clusterqueues", "team-a")["flavorsUsage"][0]["resources"][0]["total"]
    assert int(usage) <= 32
    cp.wait(done(cp, "jobs", "team-a", "next"), 30, "it to run beside the first")
    # Stopped and started anew it asks for what will run: its controller makes no Job anew that is done.
    made = {one["metadata"]["name"]: one["metadata"]["uid"] for one in cp.list("jobs", "team-a")}
    cp.apply(cluster_queue("team-a", {GPU: 16}, stopPolicy="HoldAndDrain"))
    cp.wait(lambda: cp.list("pods", "team-a", fieldSelector="status.phase=Running") == [], 30, "it to be evicted")

    def asks() -> bool:
        spec = workload_of(cp, "team-a", "first")["spec"]  # type: ignore[index]
        return [(one["name"], one["count"]) for one in spec["podSets"]] == [("long", 2), ("short", 0)]

    cp.wait(asks, 30, "it to ask for less")
    cp.apply(cluster_queue("team-a", {GPU: 16}))
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 30, "the long part to run again, in half of what it had")
    assert {one["metadata"]["name"]: one["metadata"]["uid"] for one in cp.list("jobs", "team-a")} == made
    stays(lambda: admitted(cp, "team-a", "first") and len(running_pods(cp, "team-a")) == 2, True, 3)


# ---------------------------------------------------------------- admission checks


CHECKS = "admissionchecks"
CHECKER = "e2e.example.com/checker"


class Checker:
    """The controller of an AdmissionCheck, played by the test: it writes its entry of a Workload's status, and no
    more, with a field manager of its own."""

    def __init__(self, cp: ControlPlane, name: str = "budget") -> None:
        self.cp = cp
        self.name = name
        cp.apply(ours("AdmissionCheck", name, {"controllerName": CHECKER}))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        active = {"type": "Active", "status": "True", "reason": "Active", "message": "on", "lastTransitionTime": now}
        cp.patch(CHECKS, name, {"status": {"conditions": [active]}}, subresource="status")

    def entry(self, namespace: str, job: str) -> Object:
        checks = ((workload_of(self.cp, namespace, job) or {}).get("status") or {}).get("admissionChecks") or ()
        return next((dict(one) for one in checks if one["name"] == self.name), {})

    def asked(self, namespace: str, job: str) -> bool:
        """Is the quota reserved, and the answer open?"""
        reserved = entry_of(workload_of(self.cp, namespace, job), "QuotaReserved").get("status") == "True"
        return reserved and self.entry(namespace, job).get("state") == "Pending"

    def answer(self, namespace: str, job: str, state: str, **more: Any) -> None:
        self.cp.wait(lambda: self.asked(namespace, job), 20, f"the check to be asked about {job}")
        self.say(namespace, job, state, **more)

    def say(self, namespace: str, job: str, state: str, **more: Any) -> None:
        """Answer, asked or not."""
        workload = workload_of(self.cp, namespace, job)
        assert workload is not None
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        said = {"name": self.name, "state": state, "message": f"says {state}", "lastTransitionTime": now, **more}
        body = {
            "apiVersion": NAMES.api_version,
            "kind": "Workload",
            "metadata": {"name": workload["metadata"]["name"], "namespace": namespace},
            "status": {"admissionChecks": [said]},
        }
        path = self.cp.resource(WORKLOADS).path(namespace, workload["metadata"]["name"], "status")
        params = {"fieldManager": f"checker-{self.name}", "force": "true"}
        self.cp.request("PATCH", path, body, params=params, content_type="application/apply-patch+yaml")


def two_flavors(cp: ControlPlane) -> Object:
    """A node of 8 GPUs of each; a resource group of both."""
    node_pool(cp, 1)
    cp.add_nodes(1, gpus=8, labels={"gpu": "spot"}, prefix="spot")
    cp.apply(flavor("spot", labels={"gpu": "spot"}))
    both = group({GPU: 8})
    both["flavors"] += group({GPU: 8}, "spot")["flavors"]
    return both


def test_the_checks_of_a_reservation_are_those_that_its_queue_asks(muster: Installed) -> None:
    cp = muster.cp
    both = two_flavors(cp)
    budget, late = Checker(cp), Checker(cp, "late")
    on_one: Object = {"name": "budget", "onFlavors": ["gpu"]}

    def queue(*checks: Object, **more: Any) -> None:
        strategy = {"admissionChecks": [*checks]}
        cp.apply(
            [cluster_queue("team-a", {}, **{"resourceGroups": [both], "admissionChecksStrategy": strategy, **more})]
        )

    cp.namespace("team-a")
    queue(on_one)
    cp.apply([local_queue("team-a", "team-a")])
    muster.started()
    cp.apply([job("team-a", "own", 1, seconds=None)])
    budget.answer("team-a", "own", "Pending")
    queue(on_one, {"name": "late"})
    late.answer("team-a", "own", "Pending")
    queue(on_one)
    cp.wait(lambda: not late.entry("team-a", "own"), 20, "what is not asked any more to be dropped")
    queue(on_one, stopPolicy="Hold")
    cp.wait(lambda: not held(cp), 20, "the reservation to be released")
    elsewhere = group({GPU: 0})
    elsewhere["flavors"] += group({GPU: 8}, "spot")["flavors"]
    queue(on_one, resourceGroups=[elsewhere])
    cp.wait(lambda: admitted(cp, "team-a", "own"), 20, "it to start where nobody is asked")
    assert not budget.entry("team-a", "own")
    budget.say("team-a", "own", "Rejected")
    stays(lambda: admitted(cp, "team-a", "own"), True, 3)


def test_checks_are_asked_after_quota_and_before_the_start(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 4, labels={"pool": "booked"})
    checker = Checker(cp)
    team(cp, "team-a", 16, admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]})
    muster.started()
    cp.apply([job("team-a", "train", 2, seconds=60)])
    cp.wait(lambda: checker.asked("team-a", "train"), 20, "the check to be asked")
    cp.apply([job("team-a", "next", 1, seconds=1)])
    assert entry_of(workload_of(cp, "team-a", "train"), "Admitted").get("reason") == "UnsatisfiedAdmissionChecks"
    stays(lambda: (cp.get("jobs", "train", "team-a")["spec"]["suspend"], held(cp)), (True, {"team-a": 16}), 2)
    before = cp.get("jobs", "train", "team-a")["spec"]["template"]

    # Retry: evicted, asked again no sooner than the check said, from a clean entry.
    checker.answer("team-a", "train", "Retry", requeueAfterSeconds=4)
    at = stamp(checker.entry("team-a", "train")["lastTransitionTime"])
    cp.wait(lambda: entry_of(workload_of(cp, "team-a", "train"), "Evicted").get("status") == "True", 20, "the eviction")
    assert entry_of(workload_of(cp, "team-a", "train"), "Evicted")["reason"] == "AdmissionCheck"
    # While it waits the other one may go; it is asked too, and let through.
    checker.answer("team-a", "next", "Ready")
    cp.wait(done(cp, "jobs", "team-a", "next"), 30, "the other to run")
    cp.wait(lambda: checker.asked("team-a", "train"), 20, "the check to be asked again")
    reserved = entry_of(workload_of(cp, "team-a", "train"), "QuotaReserved")
    assert stamp(reserved["lastTransitionTime"]) >= at + 4
    entry = checker.entry("team-a", "train")
    assert (entry["retryCount"], entry.get("podSetUpdates") or []) == (1, [])

    # Ready, with a node selector: in the template while it runs, gone afterwards.
    update = {
        "name": "main",
        "nodeSelector": {"pool": "booked"},
        "labels": {"booking": "7"},
        "annotations": {"example.com/request": "r7"},
        "tolerations": [{"key": "booked", "operator": "Exists"}],
    }
    checker.answer("team-a", "train", "Ready", podSetUpdates=[update])
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 20, "the gang to run")
    template = cp.get("jobs", "train", "team-a")["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {**LABELS, "pool": "booked"}
    assert {"key": "booked", "operator": "Exists"} in template["spec"]["tolerations"]
    for pod in running_pods(cp, "team-a"):
        assert pod["metadata"]["labels"]["booking"] == "7"
        assert pod["metadata"]["annotations"]["example.com/request"] == "r7"
    cp.apply(
        cluster_queue(
            "team-a",
            {GPU: 16},
            stopPolicy="HoldAndDrain",
            admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]},
        )
    )
    cp.wait(lambda: not held(cp), 30, "it to be evicted")
    assert cp.get("jobs", "train", "team-a")["spec"]["template"] == before
    entry = checker.entry("team-a", "train")
    assert (entry["state"], entry.get("podSetUpdates") or []) == ("Pending", []), "a new admission needs a new answer"

    # An answer that contradicts the job starts nothing: it is as if the check had refused.
    asks = cluster_queue("team-a", {GPU: 16}, admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]})
    cp.apply(asks)
    cp.wait(lambda: checker.asked("team-a", "train"), 30, "the check to be asked after the drain")
    checker.answer("team-a", "train", "Ready", podSetUpdates=[{"name": "main", "nodeSelector": {"gpu": "other"}}])

    def given_up() -> bool:
        workload = workload_of(cp, "team-a", "train") or {}
        return workload.get("spec", {}).get("active") is False and not held(cp)

    cp.wait(given_up, 30, "it to be given up")
    assert not running_pods(cp, "team-a")
    assert cp.get("jobs", "train", "team-a")["spec"]["template"] == before
    said = "adds the node selector gpu=other to pod set main, and flavor gpu says h100"
    cp.wait(lambda: any(said in e["message"] for e in cp.list("events", "team-a")), 20, "an event that says why")


def test_who_a_check_rejects_is_deactivated_until_somebody_says_otherwise(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 2)
    checker = Checker(cp)
    team(cp, "team-a", 16, admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]})
    muster.started()
    cp.apply([job("team-a", "train", 2, seconds=1)])
    checker.answer("team-a", "train", "Rejected")
    cp.wait(lambda: not held(cp), 20, "its quota to be free")
    workload = workload_of(cp, "team-a", "train")
    assert workload is not None
    assert workload["spec"]["active"] is False
    entry = entry_of(workload, "Evicted")
    assert (entry["status"], entry["reason"]) == ("True", "DeactivatedDueToAdmissionCheck")
    assert "Check budget refused: says Rejected" in entry["message"]
    stays(lambda: (held(cp), cp.get("jobs", "train", "team-a")["spec"]["suspend"]), ({}, True), 3)
    cp.patch(WORKLOADS, workload["metadata"]["name"], {"spec": {"active": True}}, "team-a")
    checker.answer("team-a", "train", "Ready")
    cp.wait(done(cp, "jobs", "team-a", "train"), 30, "it to run once it is active and the check agrees")


def test_a_check_of_one_flavor_asks_only_those_who_get_it(muster: Installed) -> None:
    cp = muster.cp
    both = two_flavors(cp)
    checker = Checker(cp)
    cp.namespace("team-a")
    strategy = {"admissionChecks": [{"name": "budget", "onFlavors": ["spot"]}]}
    queue = cluster_queue("team-a", {}, resourceGroups=[both], admissionChecksStrategy=strategy)
    cp.apply([queue, local_queue("team-a", "team-a")])
    muster.started()
    cp.apply([job("team-a", "own", 1, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-a", "own"), 20, "the first to start unasked")
    assert not checker.entry("team-a", "own")
    cp.apply([job("team-a", "extra", 1, seconds=None)])
    checker.answer("team-a", "extra", "Ready")
    cp.wait(lambda: admitted(cp, "team-a", "extra"), 20, "the second to start on the other flavor")


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_hold_admits_nothing_more_and_drain_evicts(muster: Installed, kind: str) -> None:
    cp = muster.cp
    node_pool(cp, 4)
    team(cp, "team-a", 32)
    team(cp, "team-b", 32)

    def stop(policy: str) -> None:
        said = {} if policy == "None" else {"stopPolicy": policy}
        if kind == "ClusterQueue":
            cp.apply(cluster_queue("team-a", {GPU: 32}, **said))
        else:
            cp.apply(local_queue("team-a", "team-a", **said))

    muster.started()
    cp.apply([job("team-a", "one", 2, seconds=None)])
    cp.wait(lambda: admitted(cp, "team-a", "one"), 20, "the first to be admitted")
    stop("Hold")
    plural = kind.lower() + "s"
    where = None if kind == "ClusterQueue" else "team-a"
    name = "team-a" if kind == "ClusterQueue" else "main"
    becomes(cp, lambda: entry_of(cp.get(plural, name, where), "Active").get("reason"), "Stopped")
    cp.apply([job("team-a", "two", 1, seconds=None)])
    stays(lambda: held(cp), {"team-a": 16})
    assert not evictions(cp)
    stop("HoldAndDrain")
    cp.wait(lambda: not held(cp), 30, "the queue to be drained")
    assert evictions(cp) == {("team-a", f"{kind}Stopped", ""): 1}
    assert cp.get("jobs", "one", "team-a")["spec"]["suspend"] is True
    cp.apply([job("team-b", "other", 1, seconds=1)])
    cp.wait(done(cp, "jobs", "team-b", "other"), 30, "another queue to go on")
    becomes(cp, lambda: held(cp), {})  # the other's quota is back a moment after its job has ended
    stays(lambda: held(cp), {}, 2)
    stop("None")
    becomes(cp, lambda: held(cp), {"team-a": 24})
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 3, 30, "both to run again")
    assert entry_of(workload_of(cp, "team-a", "one"), "Evicted").get("status") == "False"


def test_hold_takes_back_what_is_reserved_but_not_admitted(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 2)
    checker = Checker(cp)
    checks: dict[str, Any] = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}
    team(cp, "team-a", 16, **checks)
    muster.started()
    cp.apply([job("team-a", "train", 2, seconds=1)])
    cp.wait(lambda: checker.asked("team-a", "train"), 20, "the reservation")
    cp.apply(cluster_queue("team-a", {GPU: 16}, stopPolicy="Hold", **checks))
    cp.wait(lambda: not held(cp), 20, "the reservation to be taken back")
    cp.apply(cluster_queue("team-a", {GPU: 16}, **checks))
    checker.answer("team-a", "train", "Ready")
    cp.wait(done(cp, "jobs", "team-a", "train"), 30, "it to run afterwards")


def test_a_queue_takes_gangs_of_the_namespaces_that_it_selects(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 2)
    team(cp, "team-a", 16)
    cp.apply(cluster_queue("team-a", {GPU: 16}, namespaceSelector={"matchLabels": {"tier": "gold"}}))
    muster.started()
    cp.apply([job("team-a", "train", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "team-a", "train")[0] == "Misconfigured", 20, "the reason to be told")
    assert "namespace" in reason(cp, "team-a", "train")[1].lower()
    cp.patch("namespaces", "team-a", {"metadata": {"labels": {"tier": "gold"}}})
    cp.wait(lambda: admitted(cp, "team-a", "train"), 20, "it to be admitted once the namespace is selected")
    cp.patch("namespaces", "team-a", {"metadata": {"labels": {"tier": None}}})
    cp.apply([job("team-a", "late", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "team-a", "late")[0] == "Misconfigured", 20, "the next one to be told")
    assert admitted(cp, "team-a", "train"), "what runs is not touched"


# ---------------------------------------------------------------- times


def test_pods_that_do_not_get_ready_send_their_gang_back_with_backoff_until_it_is_given_up(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 2)
    team(cp, "team-a", 16)
    again = {"backoffBaseSeconds": 2, "backoffMaxSeconds": 60, "backoffLimitCount": 2, "timestamp": "Eviction"}
    muster.started(config={"waitForPodsReady": {"timeout": "3s", "requeuingStrategy": again}})
    template = pod_template(8, None)
    template["metadata"]["annotations"][READY_SECONDS] = "1000s"
    cp.apply([job("team-a", "stuck", 2, template=template)])
    seen: dict[int, tuple[float, float]] = {}

    def given_up() -> bool:
        workload = workload_of(cp, "team-a", "stuck") or {}
        state = workload.get("status", {}).get("requeueState")
        evicted = entry_of(workload, "Evicted")
        if state and state["count"] not in seen and evicted.get("reason") == "PodsReadyTimeout":
            seen[state["count"]] = (stamp(evicted["lastTransitionTime"]), stamp(state["requeueAt"]))
        return workload.get("spec", {}).get("active") is False

    cp.wait(given_up, 60, "the gang to be given up after its tries", every=0.1)
    assert sorted(seen) == [1, 2]
    waited = {count: until - at for count, (at, until) in seen.items()}
    assert 2 <= waited[1] <= 3, waited
    assert 4 <= waited[2] <= 5, waited
    becomes(cp, lambda: held(cp), {})
    assert evictions(cp)["team-a", "PodsReadyTimeout", "WaitForStart"] == 2
    # Somebody else gets the room meanwhile.
    cp.apply([job("team-a", "other", 2, seconds=1)])
    cp.wait(done(cp, "jobs", "team-a", "other"), 30, "another gang to use the room")


def test_a_gang_runs_for_its_maximum_time_and_no_longer(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 2)
    team(cp, "team-a", 16)
    muster.started()
    limit = 12
    cp.apply([job("team-a", "train", 2, seconds=None, labels={NAMES.max_exec_time_label: str(limit)})])
    cp.wait(lambda: admitted(cp, "team-a", "train"), 20, "it to be admitted")
    began = stamp(entry_of(workload_of(cp, "team-a", "train"), "Admitted")["lastTransitionTime"])
    time.sleep(4)
    # Time counts over all admissions.
    cp.apply(cluster_queue("team-a", {GPU: 16}, stopPolicy="HoldAndDrain"))
    cp.wait(lambda: not held(cp), 20, "it to be evicted in between")
    workload = workload_of(cp, "team-a", "train")
    assert workload is not None
    ran = workload["status"]["accumulatedPastExecutionTimeSeconds"]
    assert ran == stamp(entry_of(workload, "Evicted")["lastTransitionTime"]) - began >= 4
    time.sleep(2)
    cp.apply(cluster_queue("team-a", {GPU: 16}))
    cp.wait(lambda: admitted(cp, "team-a", "train"), 20, "it to go on")
    began = stamp(entry_of(workload_of(cp, "team-a", "train"), "Admitted")["lastTransitionTime"])
    becomes(cp, lambda: held(cp), {})
    workload = workload_of(cp, "team-a", "train")
    assert workload is not None
    assert workload["spec"]["active"] is False
    entry = entry_of(workload, "Evicted")
    assert entry["reason"] == "DeactivatedDueToMaximumExecutionTimeExceeded"
    again = stamp(entry["lastTransitionTime"]) - began
    assert limit - ran - 1 <= again < limit, "what it ran before counts"
    assert cp.get("jobs", "train", "team-a")["spec"]["suspend"] is True
    # Reactivated, it has its whole time again.
    cp.patch(WORKLOADS, workload["metadata"]["name"], {"spec": {"active": True}}, "team-a")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 2, 20, "it to run again")
    stays(lambda: held(cp), {"team-a": 16}, 3)


# ---------------------------------------------------------------- turns


def test_local_queues_take_turns_by_what_they_used_of_late(muster: Installed) -> None:
    cp = muster.cp
    node_pool(cp, 1)
    turns: dict[str, Any] = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
    cp.apply(cluster_queue("shared", {GPU: 8}, **turns))
    for name in ("busy", "idle"):
        cp.namespace(name)
        cp.apply(local_queue(name, "shared"))
    config = {"admissionFairSharing": {"usageHalfLifeTime": "30s", "usageSamplingInterval": "1s"}}
    muster.started(config=config)
    cp.apply([job("busy", "first", 1, seconds=None)])

    def used(name: str) -> float:
        held = status_of(cp, "localqueues", "main", name).get("fairSharing", {}).get("admissionFairSharingStatus", {})
        text = str(held.get("consumedResources", {}).get(GPU, "0"))
        scale = {"m": 1e-3, "u": 1e-6, "n": 1e-9}.get(text[-1], 1)
        return float(text.rstrip("mun")) * scale

    cp.wait(lambda: used("busy") > 0.3, 30, "its usage to be noted")
    assert used("idle") == 0
    # The one who used more asks first, and even with more priority; the other one's turn it is.
    cp.apply(
        {
            "apiVersion": NAMES.api_version,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": "high"},
            "value": 1000,
        }
    )
    cp.apply([job("busy", "more", 1, seconds=None, labels={NAMES.priority_class_label: "high"})])
    time.sleep(1.2)
    cp.apply([job("idle", "late", 1, seconds=None)])
    cp.wait(lambda: reason(cp, "idle", "late")[0], 20, "both to wait")
    cp.delete("jobs", "first", "busy")
    becomes(cp, lambda: (admitted(cp, "idle", "late"), admitted(cp, "busy", "more")), (True, False))
    before = used("busy")
    becomes(cp, lambda: used("busy") < before, True)  # it is forgotten while the other runs
    cp.wait(lambda: used("idle") > 0, 20, "the other's usage to be noted")


# ---------------------------------------------------------------- what counts


def test_resources_are_counted_as_the_configuration_says(muster: Installed) -> None:
    cp = muster.cp
    licence = "networking.example.com/vf"
    size = {"capacity": {licence: "100"}, "allocatable": {licence: "100"}}
    node_pool(cp, 2, extra={"status": size})
    cp.namespace("team-a")
    cp.apply([cluster_queue("team-a", {"example.com/credits": 40, GPU: 100}), local_queue("team-a", "team-a")])
    resources = {
        "excludeResourcePrefixes": ["networking.example.com/"],
        "transformations": [
            {"input": GPU, "strategy": "Retain", "outputs": {"example.com/credits": 2}},
            {"input": "cpu", "strategy": "Replace"},
        ],
    }
    muster.started(config={"resources": resources})

    def gang(name: str) -> Object:
        template = pod_template(8, None)
        amounts = {GPU: "8", "cpu": "1", licence: "1"}
        template["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        return job("team-a", name, 1, template=template)

    cp.apply([gang("one"), gang("two"), gang("three")])
    becomes(cp, lambda: held(cp), {"team-a": 16})
    usages = [
        one["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
        for one in cp.list(WORKLOADS, "team-a")
        if "admission" in one.get("status", {})
    ]
    assert usages == [{GPU: "8", "example.com/credits": "16"}] * 2
    late = next(name for name in ("one", "two", "three") if not admitted(cp, "team-a", name))
    cp.wait(lambda: "example.com/credits" in reason(cp, "team-a", late)[1], 20, "the reason to name the credits")
