"""Kubernetes without the policies that hold and pin: the chart by Helm, and jobs held by the webhook.

    make e2e-older      builds the API servers, controllers and schedulers first (some minutes each, once)

A version that is not built is skipped. 1.31 is the oldest that Muster is said to run on: the kinds have no rules there.
A Job takes no change of its template while a start time is set, which nobody else clears. The first test has the API
server alone and writes itself what the Job controller would, at its own time; the others have them all, with the JobSet
controller and kwok of the ordinary suite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import build
from e2e import test_main_job as main_job
from e2e.api_client import MERGE, ApiError
from e2e.control_plane import COMPONENTS, ControlPlane
from e2e.gangs import admitted, entry_of, reason, running_pods
from e2e.installed import NAMES, USER, cluster_queue, job
from e2e.test_chart import BINARY, QUOTA, Charted, Release, play, running, sdk

pytestmark = pytest.mark.skipif(sdk is None and BINARY is None, reason="neither helm nor helm-python-sdk is there")


@pytest.fixture(params=["1.31", "1.34"])
def older(request: pytest.FixtureRequest) -> str:
    """A minor version that is built."""
    minor = str(request.param)
    if not all(map(build.find, build.of_kubernetes(minor, ("kube-apiserver", *COMPONENTS)).values())):
        pytest.skip("not built: make e2e-older")
    return minor


@pytest.fixture
def cp(older: str) -> Iterator[ControlPlane]:
    with ControlPlane(kubernetes=older, apiserver_only=True) as control_plane:
        yield control_plane


def test_a_gang_is_held_admitted_stopped_restored_and_started_again(cp: ControlPlane, tmp_path: Path) -> None:
    mark, rules = cp.audit_mark(), cp.kubernetes != "1.31"
    objects = Release(cp).install()
    kinds = {one["kind"] for one in objects}
    assert "MutatingAdmissionPolicy" not in kinds
    assert "MutatingWebhookConfiguration" in kinds
    ours = [one for one in cp.list("customresourcedefinitions") if one["spec"]["group"] == NAMES.group]
    assert ("x-kubernetes-validations" in yaml.safe_dump(ours)) == rules
    Release(cp, "muster-quota").install(quota=QUOTA)
    cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
    with Charted(cp, tmp_path) as muster:
        muster.objects = objects
        assert muster.config()["hold"] == "webhook"
        replica = muster.start()
        cp.wait(lambda: cp.get("mutatingwebhookconfigurations", "muster").get("webhooks"), 120, "the webhook")

        assert cp.create(job("vision", "train", 4))["spec"]["suspend"] is True
        cp.wait(lambda: admitted(cp, "vision", "train"), 60, "it to be admitted")
        cp.wait(lambda: not _job(cp)["spec"]["suspend"], 60, "it to be started")
        assert _template(cp)["spec"]["nodeSelector"] == {"gpu": "h100"}
        assert len(_template(cp)["metadata"]["annotations"][NAMES.hosts_annotation].split(",")) == 4

        # Where the kinds have no rules, what is wrong is stored, and told.
        limited = cluster_queue("limited", {"nvidia.com/gpu": 8})
        limited["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = 1
        why = "borrowingLimit and lendingLimit mean something only inside a cohort"
        if rules:
            with pytest.raises(ApiError, match=why):
                cp.create(limited)
        else:
            cp.create(limited)
            told = f"but it is written wrong: spec: {why}"
            cp.wait(lambda: told in entry_of(cp.get("clusterqueues", "limited"), "Active").get("message", ""), 60, told)

        cp.create(job("vision", "huge", 100))
        cp.wait(lambda: "can never have more than 64" in reason(cp, "vision", "huge")[1], 60, "the reason to be told")
        tried = cp.patch("jobs", "huge", {"spec": {"suspend": False}}, "vision")
        assert tried["spec"]["suspend"] is True, "put back, so that a manifest applied again is quiet"

        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        _tell(cp, {"startTime": now, "active": 4, "ready": 4, "uncountedTerminatedPods": {}})
        cp.patch("jobs", "train", {"metadata": {"labels": {NAMES.pause_label: "true"}}}, "vision")
        cp.wait(lambda: _job(cp)["spec"]["suspend"], 60, "it to be stopped")
        stopped = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
        times = {"lastProbeTime": now, "lastTransitionTime": now}
        _tell(cp, {"active": 0, "ready": 0, "conditions": [stopped | times]})
        cp.wait(lambda: "nodeSelector" not in _template(cp)["spec"], 60, "its template to be its owner's again")
        assert NAMES.hosts_annotation not in _template(cp)["metadata"]["annotations"]
        cp.patch("jobs", "train", {"metadata": {"labels": {NAMES.pause_label: None}}}, "vision")
        cp.wait(lambda: not _job(cp)["spec"]["suspend"], 60, "it to be started again")
        assert _template(cp)["spec"]["nodeSelector"] == {"gpu": "h100"}

        assert not [line for line in replica.lines() if line.get("level") == "error"]
        refused = [e for e in cp.audit_events(mark) if e["user"]["username"] == USER]
        assert not [e for e in refused if e.get("responseStatus", {}).get("code") in (401, 403)]
        replica.kill()
        with pytest.raises(ApiError):
            cp.create(job("vision", "nobody-answers"))
        assert not cp.create(job("vision", "free", gpus=0, queue=None))["spec"].get("suspend")


def test_with_its_controllers_and_scheduler_gangs_run_give_back_and_run_again(older: str, tmp_path: Path) -> None:
    with ControlPlane(kubernetes=older) as cp:
        assert f"Server Version: v{older}." in cp.kubectl("version")
        release = Release(cp)
        with running(cp, tmp_path, release.install()) as muster:
            Release(cp, "muster-quota").install(quota=QUOTA)
            cp.add_nodes(8, gpus=8, labels={"gpu": "h100"})
            play(muster, "HeldByWebhook")
        cp.clean()
        with running(cp, tmp_path, release.install()) as muster:
            main_job.test_a_borrower_gives_back_requeues_resumes_and_its_template_is_as_its_owner_wrote_it(muster)


def test_a_job_that_ran_before_anybody_held_it_is_stopped_and_runs_on_nodes_it_is_given(
    older: str, tmp_path: Path
) -> None:
    with ControlPlane(kubernetes=older) as cp:
        cp.add_nodes(4, gpus=8, labels={"gpu": "h100"})
        objects = Release(cp).install()
        Release(cp, "muster-quota").install(quota=QUOTA)
        early = cp.create(job("vision", "train", 2, seconds=3600))
        cp.wait(lambda: len(running_pods(cp, "vision")) == 2, 60, "it to run while nobody holds it")
        assert _job(cp)["status"]["startTime"]
        with Charted(cp, tmp_path) as muster:
            muster.objects = objects
            muster.started()

            def sent() -> list[Any]:
                return [pod["spec"].get("nodeSelector") for pod in running_pods(cp, "vision")]

            cp.wait(lambda: sent() == [{"gpu": "h100"}] * 2, 90, "both pods to run where they were sent", describe=sent)
        assert admitted(cp, "vision", "train")
        assert _job(cp)["metadata"]["uid"] == early["metadata"]["uid"]


def _job(cp: ControlPlane) -> dict[str, Any]:
    return cp.get("jobs", "train", "vision")


def _template(cp: ControlPlane) -> dict[str, Any]:
    return dict(_job(cp)["spec"]["template"])


def _tell(cp: ControlPlane, status: dict[str, Any]) -> None:
    path = "/apis/batch/v1/namespaces/vision/jobs/train/status"
    cp.request("PATCH", path, {"status": status}, content_type=MERGE)
