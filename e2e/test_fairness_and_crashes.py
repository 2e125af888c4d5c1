"""Shares that come out as the weights say, and a controller that is killed, paused and replaced in mid-work.

What a run did is judged from outside: by the log of all object versions (`invariants`), and by the API server's audit
log, which knows every write and with whose token it was made.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from e2e.api_client import Object, condition, finished
from e2e.control_plane import WRITES, ControlPlane
from e2e.event_log import EventLog
from e2e.gangs import GPU, WORKLOADS, done, running_pods, teams
from e2e.installed import (
    NAMES,
    USER,
    Installed,
    Replica,
    cluster_queue,
    cohort,
    credential_of,
    flavor,
    job,
    jobset,
    local_queue,
)
from e2e.invariants import check, check_fencing, figures, report, terms, unled

JOBS = ("workloads", "jobs", "jobsets")


# ---------------------------------------------------------------- shares


def _held(cp: ControlPlane, team: str) -> int:
    """GPUs that a team's gangs hold which have not finished."""
    return sum(
        int(assignment["resourceUsage"].get(GPU, 0))
        for workload in cp.list(WORKLOADS, team)
        if condition(workload, "Finished") != "True"
        for assignment in workload.get("status", {}).get("admission", {}).get("podSetAssignments", ())
    )


def test_deep_backlogs_share_a_cohort_as_their_weights_say(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(12, gpus=8, labels={"gpu": "h100"})
    cp.apply([flavor(labels={"gpu": "h100"}), cohort("all", {GPU: 0})])
    for team, weight in (("team-a", "1"), ("team-b", "2")):
        cp.namespace(team)
        queue = cluster_queue(team, {GPU: 0}, cohortName="all", fairSharing={"weight": weight})
        cp.apply([queue, local_queue(team, team)])
    backlog = [job("team-a", f"a-{n}", 1, seconds=None) for n in range(14)]
    backlog += [job("team-b", f"b-{n}", 2, gpus=4, seconds=None) for n in range(14)]
    cp.create_all(backlog)
    muster.started()
    cp.wait(lambda: len(cp.list(WORKLOADS)) == 28, 30, "all gangs to be queued")
    cp.apply(cohort("all", {GPU: 96}))

    def shared() -> bool:
        held = {team: _held(cp, team) for team in ("team-a", "team-b")}
        assert sum(held.values()) == 96, held
        assert abs(held["team-a"] - 32) <= 8, held
        return True

    cp.wait(shared, 40, "shares of 1:2 within one gang")
    cp.wait(lambda: len(running_pods(cp, "team-b")) == 16, 30, "its gangs to run")
    leaving = {pod["metadata"]["labels"]["job-name"] for pod in running_pods(cp, "team-b")[:8]}
    for name in leaving:
        cp.delete("jobs", name, "team-b")
    cp.wait(lambda: not any(cp.find("jobs", name, "team-b") for name in leaving), 20, "some gangs to be deleted")
    cp.wait(shared, 40, "the shares to be 1:2 again")

    def told() -> dict[str, Any]:
        return {team: cp.get("clusterqueues", team)["status"]["fairSharing"] for team in ("team-a", "team-b")}

    shares = cp.wait(told, 20, "the shares to be told: statuses of queues give way to jobs")
    print(f"\nheld: team-a {_held(cp, 'team-a')}, team-b {_held(cp, 'team-b')} of 96 GPUs; shares told: {shares}")


# ---------------------------------------------------------------- writes


def _writes(cp: ControlPlane, since: int) -> collections.Counter[str]:
    """Writes of the controller that were accepted, by resource (status and object together)."""
    counts: collections.Counter[str] = collections.Counter()
    for (_, _, resource, _), count in cp.audit_counts(USER, since=since).items():
        counts[resource] += count
    return counts


def test_a_plain_run_costs_four_writes_a_job(muster: Installed) -> None:
    cp = muster.cp
    muster.started(tuning={})
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    mark = cp.audit_mark()
    jobs = [job("team-a", f"job-{n}", 2, gpus=1, seconds=2) for n in range(30)]
    cp.create_all(jobs)
    names = [one["metadata"]["name"] for one in jobs]
    cp.wait(done(cp, "jobs", "team-a", *names), 60, "all Jobs to finish")
    cp.wait(lambda: cp.get("clusterqueues", "team-a")["status"]["reservingWorkloads"] == 0, 60, "quota to be back")
    counts = _writes(cp, mark)
    each = sum(counts[resource] for resource in ("workloads", "jobs", "pods")) / len(jobs)
    print(f"\nwrites of the controller for {len(jobs)} Jobs: {dict(counts)}: {each:.2f} a Job")
    assert each <= 4, counts

    def silent() -> bool:
        before = cp.audit_mark()
        time.sleep(2)
        return not {r: n for r, n in _writes(cp, before).items() if r not in ("leases", "events")}

    cp.wait(silent, 20, "silence when there is nothing to do")
    assert _dispatched(cp, "muster-leader-election", "leader-election") > 0, (
        "its lease stands behind its other requests"
    )


def _dispatched(cp: ControlPlane, schema: str, level: str) -> float:
    """Requests that the API server has served by this FlowSchema, on this priority level."""
    name, labels = "apiserver_flowcontrol_dispatched_requests_total", (f'="{schema}"', f'="{level}"')
    lines = [line for line in cp.metrics().splitlines() if line.startswith(name) and all(one in line for one in labels)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


# ---------------------------------------------------------------- crashes


def _gangs() -> Iterator[Object]:
    """40 gangs of 8 to 32 GPUs, every third a JobSet, every sixth with pods that wait behind gates; the first half of a
    team that borrows, then the owner's.

    The borrower's last four want 88 GPUs of 64 and run for long, so that the owner finds them there however long a
    controller takes to start.
    """
    for n in range(40):
        team = "team-a" if n < 20 else "team-b"
        seconds = 20 if 16 <= n < 20 else 4 if n < 16 else 2
        name = f"gang-{n}"
        if n % 3 == 2:
            yield jobset(team, name, {"driver": (1, 1), "workers": (1 + n % 2, 1)}, seconds=seconds)
        else:
            value = job(team, name, 1 + n % 4, seconds=seconds)
            if n % 6 == 3:
                value["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "true"}
                value["spec"]["backoffLimit"] = 6
            yield value


def _written(cp: ControlPlane, since: int) -> int:
    """Writes to jobs, Workloads and gated pods since a mark."""
    return sum(count for resource, count in _writes(cp, since).items() if resource in {*JOBS, "pods"})


def _succeeded(log: EventLog) -> collections.Counter[tuple[str, str]]:
    """How often each pod of each job (by uid of its Job, and index) came to its end."""
    pods = {
        entry.uid: (entry.object["metadata"]["ownerReferences"][0]["uid"], index)
        for entry in log.entries()
        if entry.kind == "Pod" and entry.object["status"].get("phase") == "Succeeded"
        for index in (entry.object["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index", ""),)
    }
    return collections.Counter(pods.values())


def _stopped(log: EventLog) -> set[str]:
    """Jobs (by uid) that were suspended while they ran. A pod of theirs that ends in the moment in which it is stopped
    is not counted by Kubernetes' job controller, which has it run again."""
    ran: set[str] = set()
    stopped: set[str] = set()
    for entry in log.entries():
        if entry.kind == "Job" and not entry.object["spec"].get("suspend"):
            ran.add(entry.uid)
        elif entry.kind == "Job" and entry.uid in ran:
            stopped.add(entry.uid)
    return stopped


def test_killed_at_twenty_moments_it_loses_nothing_and_doubles_nothing(muster: Installed) -> None:
    cp, log = muster.cp, muster.log
    assert log is not None
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 32, "team-b": 32})
    gangs = list(_gangs())
    mark = cp.audit_mark()
    moments = [n for n in range(1, 11) for _ in (0, 1)]
    for life, moment in enumerate(moments):
        if life == 10:  # the owner's first gangs come: on a slow machine nobody had borrowed yet
            replica = muster.start(tuning={})
            cp.wait(lambda: _held(cp, "team-a") > 32, 90, "the borrower to hold more than its own")
            replica.kill()
            muster.forget_leader()
        cp.create_all(gangs[2 * life : 2 * life + 2])
        began = cp.audit_mark()
        replica = muster.start(tuning={})
        # Each life ends right after another write: the first, the second, and so on.
        seen = lambda since=began, n=moment: _written(cp, since) >= n  # noqa: E731
        cp.wait(seen, 90, f"write {moment} of life {life}", every=0.005)
        replica.kill()
        muster.forget_leader()
    muster.started(tuning={})
    for team in ("team-a", "team-b"):
        for kind in ("jobs", "jobsets"):
            mine = [g["metadata"]["name"] for g in gangs if g["metadata"]["namespace"] == team]
            names = [o["metadata"]["name"] for o in cp.list(kind, team) if o["metadata"]["name"] in mine]
            cp.wait(done(cp, kind, team, *names), 120, f"all {kind} of {team} to finish")
    ended = [finished(o) for team in ("team-a", "team-b") for k in ("jobs", "jobsets") for o in cp.list(k, team)]
    assert set(ended) <= {"Complete", "Completed"}, ended

    def at_rest() -> bool:
        queues = [cp.get("clusterqueues", team)["status"] for team in ("team-a", "team-b")]
        return all(q["reservingWorkloads"] == 0 and q["pendingWorkloads"] == 0 for q in queues)

    cp.wait(at_rest, 60, "all quota to be back")
    log.catch_up()
    violations = check(log, at_end=True)
    assert not violations, report(violations)
    owners = [w["metadata"]["ownerReferences"][0]["uid"] for t in ("team-a", "team-b") for w in cp.list(WORKLOADS, t)]
    assert len(owners) == len(set(owners)) == 40
    stopped = _stopped(log)
    twice = {key: n for key, n in _succeeded(log).items() if n != 1 and key[0] not in stopped}
    assert not twice, twice
    said = figures(log)
    print(
        f"\n20 kills, {said.jobs} gangs, {said.starts} starts, {said.evictions} evictions, {_written(cp, mark)} writes"
    )
    assert said.evictions > 0, "there was nothing to give back: the run is too easy"


# ---------------------------------------------------------------- two replicas


def test_a_leader_that_was_paused_past_its_lease_writes_nothing_more(muster: Installed) -> None:
    cp = muster.cp
    began = cp.audit_mark()
    first = muster.started("first", tuning={})
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 32, "team-b": 32})
    mark = cp.audit_mark()
    second = muster.start("second", tuning={})
    cp.create_all([job("team-a", f"early-{n}", 1 + n % 3, seconds=3) for n in range(8)])
    cp.wait(lambda: _written(cp, mark) > 6, 20, "the leader to be in the middle of things", every=0.005)
    first.pause()
    cp.create_all([job("team-b", f"meanwhile-{n}", 1 + n % 3, seconds=3) for n in range(8)])
    cp.wait(lambda: second.leads, 60, "the other to lead")
    cp.wait(done(cp, "jobs", "team-b", "meanwhile-0"), 60, "work to go on")
    cp.create_all([job("team-a", f"late-{n}", 1 + n % 3, seconds=2) for n in range(8)])
    first.resume()
    for team, stem in (("team-a", "early"), ("team-b", "meanwhile"), ("team-a", "late")):
        cp.wait(done(cp, "jobs", team, *(f"{stem}-{n}" for n in range(8))), 60, f"all {stem} Jobs to finish")
    events = cp.audit_events(began)  # the first may not have renewed the Lease since `mark`
    wrote = collections.Counter(
        {first.credential: "first", second.credential: "second"}.get(credential_of(event), "")
        for event in events
        if event["user"].get("username") == USER and (event.get("objectRef") or {}).get("resource") in JOBS
    )
    assert min(wrote["first"], wrote["second"]) > 6, wrote
    # Who was resumed may lead again by right: where the machine is slow the other loses the Lease in its turn.
    leaders = terms(events, [first.credential, second.credential], credential_of)
    assert leaders[:2] == [first.credential, second.credential], leaders
    violations = check_fencing(events, leaders, credential_of)
    assert not violations, report(violations)
    late: list[Any] = [
        (event["verb"], event["objectRef"].get("resource"), event["objectRef"].get("name"))
        for event in unled(events, leaders, credential_of)
    ]
    assert not late, late
    led = [line for line in first.lines() if line.get("event") == "leading" and "jobs" in line]
    assert 1 <= len(led) <= leaders.count(first.credential), "it leads no more"
    holder = cp.get("leases", "muster-controller", "muster-system")["spec"]["holderIdentity"]
    assert holder.startswith("second" if leaders[-1] == second.credential else "first"), holder


def _writes_of(events: Iterable[Object], replica: Replica) -> list[Object]:
    """What a replica wrote as a leader, or tried to."""
    return [
        event
        for event in events
        if credential_of(event) == replica.credential
        and event["verb"] in WRITES
        and event["objectRef"]["resource"] != "events"
        and "dryRun=" not in event["requestURI"]  # the proof that jobs are held
    ]


def _reserved(log: EventLog) -> collections.Counter[str]:
    """How often each Workload (by uid) was given room."""
    holds: set[str] = set()
    times: collections.Counter[str] = collections.Counter()
    for entry in log.entries():
        if entry.kind != "Workload":
            continue
        if not (entry.object.get("status") or {}).get("admission"):
            holds.discard(entry.uid)
        elif entry.uid not in holds:
            holds.add(entry.uid)
            times[entry.uid] += 1
    return times


def test_a_busy_leader_that_is_told_to_stop_hands_over_with_its_writes_answered(muster: Installed) -> None:
    """Three times over, with hundreds of jobs in the queue: as when a Deployment is rolled, or nodes are drained."""
    cp, log = muster.cp, muster.log
    assert log is not None
    patient: dict[str, Any] = {"leaderElection": {}}  # on a slow machine nobody else is to lose the Lease
    leaders = [muster.started("leader-0", config=patient, tuning={})]
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    names = [f"job-{n}" for n in range(240)]
    began = cp.audit_mark()
    cp.create_all([job("team-a", name, 1, gpus=4, seconds=1) for name in names])
    for moment in (20, 31, 42):
        leader, mark = leaders[-1], cp.audit_mark()
        leaders.append(muster.start(f"leader-{len(leaders)}", config=patient, tuning={}))
        wrote = lambda by=leader, since=mark, n=moment: len(_writes_of(cp.audit_events(since), by)) >= n  # noqa: E731
        cp.wait(wrote, 60, f"{moment} writes of {leader.log.stem}")
        assert leader.terminate() == 0
        (ended,) = [line for line in leader.lines() if line.get("event") == "ended"]
        assert (ended["level"], ended["why"], ended["led"]) == ("info", "SIGTERM", True)
        assert "unanswered_writes" not in ended
        holder = cp.get("leases", "muster-controller", "muster-system")["spec"]["holderIdentity"]
        assert holder == "" or holder.startswith(f"leader-{len(leaders) - 1}_"), holder
        assert not done(cp, "jobs", "team-a", *names)(), "it had nothing to do: the run is too easy"
        cp.wait(lambda: leaders[-1].leads, 120, "the next one to lead")
    cp.wait(done(cp, "jobs", "team-a", *names), 180, "all Jobs to finish", every=0.5)
    events = cp.audit_events(began)
    for leader, successor in itertools.pairwise(leaders):
        *before, release = _writes_of(events, leader)
        assert release["objectRef"]["resource"] == "leases"
        unanswered = [one for one in before if not 200 <= one["responseStatus"].get("code", 0) < 500]
        assert not unanswered, unanswered
        assert max(one["stageTimestamp"] for one in before) <= release["requestReceivedTimestamp"]
        taken, *after = _writes_of(events, successor)
        assert taken["objectRef"]["resource"] == "leases"
        assert min(one["requestReceivedTimestamp"] for one in after) >= release["requestReceivedTimestamp"]
    violations = check_fencing(events, [leader.credential for leader in leaders], credential_of)
    assert not violations, report(violations)
    log.catch_up()
    said = figures(log)
    assert (said.jobs, said.starts, said.evictions) == (240, 240, 0)
    for times in (_reserved(log), _succeeded(log)):
        assert (len(times), set(times.values())) == (240, {1})
