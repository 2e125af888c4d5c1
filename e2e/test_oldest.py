"""The oldest Kubernetes that Muster is said to run on: the chart installed by Helm, and jobs held by the webhook.

    make e2e-oldest      builds that control plane first (some minutes, once)

Where its binaries are not built these tests are skipped. What differs there from a new one: no policy can hold or pin
(the webhook does, and pods are pinned one by one), the kinds have no rules, and a Job that has once started takes no
change of its template while a start time is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e import build
from e2e import test_main_job as main_job
from e2e.api_client import ApiError
from e2e.control_plane import ControlPlane
from e2e.gangs import admitted, done, teams
from e2e.installed import job
from e2e.test_chart import BINARY, QUOTA, Charted, Release, play, running, sdk

pytestmark = [
    pytest.mark.skipif(not all(map(build.find, build.OLDEST)), reason="not built: make e2e-oldest"),
    pytest.mark.skipif(sdk is None and BINARY is None, reason="neither helm nor helm-python-sdk is there"),
]


@pytest.fixture(scope="module")
def oldest() -> Iterator[ControlPlane]:
    with ControlPlane(oldest=True) as cp:
        yield cp


@pytest.fixture
def muster(oldest: ControlPlane, tmp_path: Path) -> Iterator[Charted]:
    """The chart with its defaults, as Helm finds that cluster."""
    oldest.clean()
    objects = Release(oldest).install()
    with running(oldest, tmp_path, objects) as muster:
        yield muster
    Release(oldest).uninstall()


def test_the_chart_finds_what_that_cluster_has_and_gangs_run(muster: Charted) -> None:
    cp = muster.cp
    kinds = {one["kind"] for one in muster.objects}
    assert "MutatingAdmissionPolicy" not in kinds
    assert "MutatingWebhookConfiguration" in kinds
    assert muster.config()["hold"] == "webhook"
    assert "x-kubernetes-validations" not in yaml.safe_dump(cp.list("customresourcedefinitions"))
    Release(cp, "muster-quota").install(quota=QUOTA)
    cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
    play(muster, "HeldByWebhook")


def test_a_gang_that_ran_gives_back_and_runs_again(muster: Charted) -> None:
    main_job.test_a_borrower_gives_back_requeues_resumes_and_its_template_is_as_its_owner_wrote_it(muster)


def test_a_job_that_ran_is_evicted_and_its_template_is_as_its_owner_wrote_it(muster: Charted) -> None:
    """Of a Job, whose template such an API server freezes once it has started."""
    cp = muster.cp
    muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 0, "team-b": 16})
    cp.apply(job("team-a", "lent", 2, seconds=None))
    cp.wait(lambda: admitted(cp, "team-a", "lent"), 30, "the gang to borrow")
    cp.wait(lambda: cp.get("jobs", "lent", "team-a")["status"].get("ready") == 2, 60, "its pods to be ready")
    cp.apply(job("team-b", "owner", 2, seconds=3))
    cp.wait(done(cp, "jobs", "team-b", "owner"), 90, "the owner to run on what it got back")
    cp.wait(lambda: admitted(cp, "team-a", "lent"), 60, "the borrower to be admitted again")
    cp.wait(lambda: cp.get("jobs", "lent", "team-a")["status"].get("ready") == 2, 60, "its pods to be ready again")


def test_nothing_runs_past_the_webhook(muster: Charted) -> None:
    cp = muster.cp
    replica = muster.started()
    cp.add_nodes(2, gpus=8, labels={"gpu": "h100"})
    teams(cp, {"team-a": 8})
    cp.apply([job("team-a", "held", 2)])
    tenant = cp.as_user("someone", ["system:masters"])  # every right there is, and not the controller
    for attempt in (
        {"spec": {"suspend": False}},
        {"metadata": {"labels": {"muster.dev/queue-name": "other"}}, "spec": {"suspend": False}},
    ):
        tried = tenant.patch("jobs", "held", attempt, "team-a")
        assert tried["spec"]["suspend"] is True, "put back, so that a manifest applied again is quiet"
    assert cp.list("pods", "team-a") == []
    replica.kill()
    with pytest.raises(ApiError):
        cp.create(job("team-a", "nobody-answers"))
    free = cp.create(job("team-a", "unlabelled", gpus=0, queue=None))
    assert not free["spec"].get("suspend")
    cp.wait(done(cp, "jobs", "team-a", "unlabelled"), 60, "a job without the label to run as any other")
