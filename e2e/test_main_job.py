"""The main job on a real control plane: held, queued, admitted whole, pinned, started, finished; and given back.

Each test asserts on the API objects; afterwards every object version of the run is judged by the invariants.
"""

from __future__ import annotations

import json
import time

from e2e.gangs import GPU, admitted, chosen_nodes, done, ended, entry_of, reason, running_pods, teams, workload_of
from e2e.installed import NAMES, Installed, cluster_queue, job, jobset


def test_a_gang_is_held_admitted_pinned_bound_and_finished(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64})
    cp.apply(
        [
            job("team-a", "train", 4, seconds=None),
            jobset("team-a", "sim", {"driver": (1, 1), "workers": (1, 3)}, seconds=None),
        ]
    )
    cp.wait(lambda: admitted(cp, "team-a", "train") and admitted(cp, "team-a", "sim"), 30, "both gangs to be admitted")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 8, 30, "all eight pods to be bound")
    for name, label in (("train", "batch.kubernetes.io/job-name"), ("sim", "jobset.sigs.k8s.io/jobset-name")):
        found = workload_of(cp, "team-a", name)
        assert found is not None
        chosen = chosen_nodes(found)
        bound: dict[str, dict[int, str]] = {}
        for pod in running_pods(cp, "team-a"):
            labels = pod["metadata"]["labels"]
            if labels.get(label) != name:
                continue
            part = labels.get("jobset.sigs.k8s.io/replicatedjob-name", "main")
            rank = int(labels["batch.kubernetes.io/job-completion-index"])
            bound.setdefault(part, {})[rank] = pod["spec"]["nodeName"]
        assert {part: [ranks[i] for i in sorted(ranks)] for part, ranks in bound.items()} == chosen
    cp.wait(ended(cp, "jobs", "team-a", "train"), 60, "the Job to finish")
    cp.wait(ended(cp, "jobsets", "team-a", "sim"), 60, "the JobSet to finish")

    def given_back() -> bool:
        status = cp.get("clusterqueues", "team-a")["status"]
        return bool(status["reservingWorkloads"] == 0 and status["flavorsUsage"][0]["resources"][0]["total"] == "0")

    cp.wait(given_back, 60, "the quota to be back")
    held = entry_of(cp.get("clusterqueues", "team-a"), "JobsHeld")
    assert (held["status"], held["reason"]) == ("True", "HeldByPolicy")


def test_a_job_of_a_cronjob_is_queued_like_any_other(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(1, labels={"gpu": "h100"})
    teams(cp, {"red": 8})
    made = job("red", "any", seconds=1)
    inside = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    meta = {"name": "nightly", "namespace": "red"}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta}
    cp.create(cron | {"spec": {"schedule": "0 0 1 1 *", "jobTemplate": inside}})
    # As the API server answered: it may have been admitted by the time of another request.
    made = json.loads(cp.kubectl("create", "job", "tonight", "--from=cronjob/nightly", "--namespace=red", "-ojson"))
    assert made["spec"]["suspend"] is True
    cp.wait(lambda: admitted(cp, "red", "tonight"), 30, "it to be admitted")
    cp.wait(done(cp, "jobs", "red", "tonight"), 60, "it to run")


def test_what_fits_quota_but_not_nodes_waits_with_its_reason_until_there_is_room(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 64, "team-b": 8})
    cp.apply([job("team-a", "wide", 4)])
    cp.wait(lambda: reason(cp, "team-a", "wide")[0] == "TopologyPlacementFailed", 30, "the reason to be told")
    assert "2 of 4" in reason(cp, "team-a", "wide")[1]
    assert cp.list("pods", "team-a") == []
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"}, prefix="more")
    cp.wait(done(cp, "jobs", "team-a", "wide"), 60, "the gang to start by itself, and finish")


def test_what_fits_nodes_but_not_quota_waits_with_its_reason_until_there_is_room(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    cp.apply([job("team-a", "big", 4)])
    cp.wait(lambda: reason(cp, "team-a", "big")[0] == "ExceedsMaxQuota", 30, "the reason to be told")
    assert "32 nvidia.com/gpu" in reason(cp, "team-a", "big")[1]
    assert cp.list("pods", "team-a") == []
    cp.apply([cluster_queue("team-a", {GPU: 32}, cohortName="all")])
    cp.wait(done(cp, "jobs", "team-a", "big"), 60, "the gang to start by itself, and finish")


def test_a_borrower_gives_back_requeues_resumes_and_its_template_is_as_its_owner_wrote_it(muster: Installed) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16, "team-b": 16})
    first, second = job("team-a", "first", 2, seconds=None), jobset("team-a", "second", {"w": (1, 2)}, seconds=None)
    cp.apply([first])
    cp.wait(lambda: admitted(cp, "team-a", "first"), 30, "the first gang to be admitted")
    time.sleep(1.1)  # times of admission are stored in whole seconds, and the newest leaves first
    cp.apply([second])
    cp.wait(lambda: admitted(cp, "team-a", "second"), 30, "the second to borrow")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 4, 30, "all pods to run")
    written = cp.get("jobsets", "second", "team-a")
    cp.apply([job("team-b", "owner", 2, seconds=3)])
    cp.wait(lambda: admitted(cp, "team-b", "owner"), 60, "the owner to get its quota back")
    assert not admitted(cp, "team-a", "second")
    assert admitted(cp, "team-a", "first"), "nobody within nominal quota is touched"
    entry = entry_of(workload_of(cp, "team-a", "second"), "Preempted")
    assert (entry["status"], entry["reason"]) == ("True", "InCohortReclamation")
    back = cp.get("jobsets", "second", "team-a")
    template = second["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    now = back["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert now["metadata"] == template["metadata"]
    assert now["spec"] == written["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert not [key for key in back["metadata"].get("annotations", {}) if key.startswith(NAMES.group)]
    cp.wait(done(cp, "jobs", "team-b", "owner"), 60, "the owner to finish")
    cp.wait(lambda: admitted(cp, "team-a", "second"), 60, "the borrower to resume")
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 4, 30, "all its pods to run again")


def test_without_a_controller_unlabelled_jobs_run_and_labelled_ones_wait(muster: Installed) -> None:
    cp = muster.cp
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 16})
    cp.apply([job("team-a", "free", 1, queue=None, gpus=0), job("team-a", "held", 2)])
    cp.wait(done(cp, "jobs", "team-a", "free"), 60, "the unlabelled Job to run")
    held = cp.get("jobs", "held", "team-a")
    assert held["spec"]["suspend"] is True
    assert not [
        p for p in cp.list("pods", "team-a") if p["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "held"
    ]
    muster.started()
    cp.wait(done(cp, "jobs", "team-a", "held"), 60, "the labelled Job to run once the controller is there")
