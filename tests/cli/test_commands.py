"""Each command, as a person runs it against a cluster: what it prints, what it writes, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp.web
import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from admission.cli import cli
from admission.commands import options, questions
from admission.commands.options import forbidden
from admission.controller import tell, whatif
from admission.controller.ask import Ask
from admission.controller.tell import short
from admission.engine.model import Detail, Reason, Why
from admission.jobs.values import rfc3339
from admission.kube.client import Client, NotFound, Unavailable
from admission.names import OF_DEVICE_CLASS
from admission.sandbox.store import Request
from tests.controller.lab import (
    ADMITTED_,
    GPU,
    NAMES,
    RESERVED,
    SHORT,
    STARTED,
    World,
    admission,
    cluster_queue,
    condition,
    fleet,
    job,
    lab,
    local_queue,
    own,
    run,
    template,
    waiting,
    with_workload,
    workload,
)

CLUSTER_QUEUES = f"/apis/{NAMES.api_version}/clusterqueues"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"
WORKLOADS = f"/apis/{NAMES.api_version}/namespaces/ml/workloads"


def test_the_reference_is_the_code_s() -> None:
    told = CliRunner().invoke(cli, ["reference"]).stdout
    assert Path("docs/commands.md").read_text(encoding="utf-8") == told
    for name, command in cli.commands.items():
        assert command.hidden or f"## muster {name}" in told
        assert command.help, name


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("export", "Default: all of them."),
        ("release-all", "Default: all of them."),
        ("release-all", "-y, --yes Do it."),
        ("top", "Default: all that may be seen."),
        ("why", "Default: that of the context."),
        ("why", "[env var: MUSTER_NAMESPACE; default: muster-system]"),
        ("jobs", "released (it runs without Muster)"),
        ("controller", "else ~/.kube/config"),
    ],
)
def test_help_says_what_happens_where_nothing_is_said(command: str, says: str) -> None:
    assert says in " ".join(CliRunner().invoke(cli, [command, "--help"]).stdout.split())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'clusterqueues "a" is forbidden: User "ann" cannot patch resource "clusterqueues" at the cluster scope',
            "ann may not patch clusterqueues at the cluster scope; ask your platform team for this right",
        ),
        (
            'jobs.batch is forbidden: User "ann" cannot list resource "jobs" in API group "batch" in the namespace "b"',
            "ann may not list jobs in the namespace b; ask your platform team for this right",
        ),
        ("no", "the API server refuses: no"),
    ],
)
def test_what_may_not_be_done_is_said_in_a_sentence(said: str, told: str) -> None:
    assert forbidden(said) == told


# ---------------------------------------------------------------- forms of an answer

FORMED = {
    "create queue": (["d", "--quota", "h100:cpu=1", "--dry-run"], 0),
    "explain-reasons": (["CohortShort"], 0),
    "foresee": (["quota.yaml"], 0),
    "export": ([], 0),
    "import": (["quota.yaml"], 0),
    "jobs": (["-n", "ml"], 0),
    "lint": (["--cluster"], 1),
    "nodes": ([], 0),
    "queues": (["-n", "ml"], 0),
    "release-all": ([], 0),
    "requeue": (["waits", "-n", "ml", "--dry-run"], 0),
    "resume": (["team-a", "--dry-run"], 0),
    "stop": (["team-a", "--dry-run"], 0),
    "submit": (["job.yaml"], 1),
    "version": ([], 0),
    "why": (["waits", "-n", "ml"], 1),
}
"""Each command that has an answer: how it is asked here, and how that ends."""


async def test_every_answer_comes_in_every_form_and_without_colours_where_nobody_watches(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await busy(world)
    await run(world, tmp_path, "create", "queue", "c", "--quota", "h100:cpu=1")  # which lint has something to say of
    asked = dict(_answering(cli, ()))
    assert asked.keys() == FORMED.keys()
    written(tmp_path, job("next"))
    (tmp_path / "quota.yaml").write_text(yaml.safe_dump(own("ResourceFlavor", "a100", {})))
    monkeypatch.chdir(tmp_path)
    for name, (more, code) in FORMED.items():
        given = [*name.split(), *more]
        with_cluster = any(option.name == "kubeconfig" for option in asked[name].params)
        said = {}
        for form in options.FORMS:
            if with_cluster:
                said[form] = (await run(world, tmp_path, *given, "-o", form, code=code)).stdout
            else:
                result = CliRunner().invoke(cli, [*given, "-o", form])
                assert result.exit_code == code, result.output
                said[form] = result.stdout
            assert "\x1b" not in said[form], (name, form)
        assert json.loads(said["json"]), name
        documents = list(yaml.safe_load_all(said["yaml"]))
        assert documents, name
        assert not said["name"].strip() or re.fullmatch(r"(\S+( -n \S+)?\n)+", said["name"]), (name, said["name"])
        assert len(max(said["wide"].splitlines(), key=len)) >= len(max(said["text"].splitlines(), key=len)), name


def _answering(group: click.Group, above: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _answering(command, (*above, name))
        elif any(option.name == "output" for option in command.params):
            yield " ".join((*above, name)), command


FOREIGN = "[require-cost-center] no [/b] :smile: \x1b[2J\x9b1m\x07label"
SEEN = "[require-cost-center] no [/b] :smile: [2J1mlabel"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["why", "waits", "-n", "ml"], 1),
        (["jobs", "-n", "ml", "-o", "wide"], 0),
        (["top"], 0),
        (["submit", "job.yaml"], 3),
        (["stop", "team-a"], 4),
    ],
)
async def test_text_of_others_is_neither_markup_nor_drives_the_terminal(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], code: int
) -> None:
    await lab(world)
    await with_workload(world, job("waits"), {"conditions": [condition("QuotaReserved", False, "Pending", FOREIGN)]})
    written(tmp_path, job("next"))
    monkeypatch.chdir(tmp_path)

    def refuse(request: Any) -> Any:
        if request.method in ("POST", "PATCH"):
            said = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": FOREIGN}
            return aiohttp.web.json_response(said, status=403)
        return None

    world.sandbox.faults.append(refuse)
    done = await run(world, tmp_path, *asked, code=code)
    assert SEEN in done.stdout + done.stderr


@pytest.mark.parametrize("watched", [True, False])
async def test_what_takes_longer_than_a_second_says_so_to_whoever_watches(
    monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """A terminal is told what is being done, and how much of it is; a file is not."""
    theirs, ours = os.openpty() if watched else os.pipe()
    os.set_blocking(theirs, False)
    seen = b""

    def shown(what: bytes) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(theirs, 1 << 16)
        return what in seen

    with os.fdopen(ours, "w", encoding="utf-8") as stream:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", stream)
        async with options.patience("reading [/nodes] and pods"):
            if not watched:
                await asyncio.sleep(1.2)
            while watched and not shown(b"reading [/nodes] and pods"):
                await asyncio.sleep(0.02)
        with options.steps("giving back", 2) as step:
            step()
            while watched and not shown(b"50%"):
                await asyncio.sleep(0.02)
        stream.flush()
        assert shown(b"giving back") is watched
    os.close(theirs)
    assert bool(seen) is watched


# ---------------------------------------------------------------- queues


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [(["stop", "team-a"], "Hold"), (["stop", "team-a", "--drain", "--yes"], "HoldAndDrain")],
)
async def test_stop_and_resume(world: World, tmp_path: Path, arguments: list[str], policy: str) -> None:
    await lab(world)

    async def stored() -> str:
        return str((await world.client.get(f"{CLUSTER_QUEUES}/team-a"))["spec"].get("stopPolicy", "None"))

    tried = await run(world, tmp_path, *arguments, "--dry-run")
    assert "Dry run" in tried.stdout
    assert await stored() == "None"
    done = await run(world, tmp_path, *arguments, "-o", "json")
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["subject"], row["did"]) == ("clusterqueue/team-a", "changed")
    assert await stored() == policy
    assert "unchanged" in (await run(world, tmp_path, *arguments)).stdout
    assert "Dry run" in (await run(world, tmp_path, "resume", "team-a", "--dry-run")).stdout
    assert await stored() == policy
    assert f"stopPolicy: {policy} -> None" in (await run(world, tmp_path, "resume", "team-a")).stdout
    assert await stored() == "None"


async def test_queues_are_stopped_and_resumed_together(world: World, tmp_path: Path) -> None:
    """Where one is not there none is written; where one is refused the others are, and it is told."""
    await lab(world)
    both = ["team-a", "team-b"]

    async def stored() -> list[str]:
        path = f"{CLUSTER_QUEUES}/{{}}"
        return [(await world.client.get(path.format(one)))["spec"].get("stopPolicy", "None") for one in both]

    await run(world, tmp_path, "stop", *both, "team-c", code=3)
    assert await stored() == ["None", "None"]
    asked = await run(world, tmp_path, "stop", *both, "--drain", code=2)
    assert "4 running job(s) of team-a, team-b" in asked.stderr
    done = await run(world, tmp_path, "stop", *both, "team-a", "-o", "name")
    assert done.stdout.split() == ["clusterqueue/team-a", "clusterqueue/team-b"]
    assert await stored() == ["Hold", "Hold"]

    def refuses(request: aiohttp.web.Request) -> aiohttp.web.Response | None:
        if request.method != "PATCH" or not request.path.endswith("/team-b"):
            return None
        body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "team-b is Git's"}
        return aiohttp.web.json_response(body, status=403)

    world.sandbox.faults.append(refuses)
    told = await run(world, tmp_path, "resume", *both, code=1)
    assert "team-b is Git's" in told.stdout
    assert await stored() == ["None", "Hold"]


async def test_stop_names_what_it_cannot_find_and_asks_before_it_drains(world: World, tmp_path: Path) -> None:
    await lab(world)
    for more in ([], ["--drain"], ["--drain", "--yes"]):
        none = await run(world, tmp_path, "stop", "team-c", *more, code=3)
        assert "there is no ClusterQueue 'team-c'" in none.stderr
    await run(world, tmp_path, "stop", "cohort/lab", code=3)
    others = await run(world, tmp_path, "stop", "clusterqueue.x.example/team-a", code=3)
    assert "'clusterqueue.x.example' is no kind of queue" in others.stderr
    asked = await run(world, tmp_path, "stop", "team-a", "--drain", code=2)
    assert "2 running job(s) of team-a" in asked.stderr
    await run(world, tmp_path, "stop", "localqueue/team-a", "-n", "ml")
    assert "is stopped" not in (await run(world, tmp_path, "resume", "lq/team-a", "-n", "ml")).stdout
    by_kubectl = await run(world, tmp_path, "stop", f"clusterqueue.{NAMES.group}/team-a")  # as -o name prints it
    assert "clusterqueue/team-a changed" in by_kubectl.stdout
    world.denied = {"clusterqueues"}
    assert "refuses" in (await run(world, tmp_path, "stop", "team-a", code=4)).stderr


# ---------------------------------------------------------------- requeue

PENDING = waiting(Why(Reason.WAITING_FOR_QUOTA, Detail.QUOTA_SHORT, (SHORT,)))
BACKOFF = {"requeueState": {"count": 2, "requeueAt": rfc3339(4_000_000_000_000)}}
AGAIN: dict[str, tuple[bool, bool, Mapping[str, Any], str, str]] = {
    "paused": (True, False, PENDING, "changed", "its owner paused it"),
    "switched off": (False, False, PENDING, "changed", "spec.active is set to true"),
    "in backoff": (False, True, BACKOFF, "changed", "the wait ends now"),
    "in the queue": (False, True, PENDING, "unchanged", "it is in the queue"),
    "finished": (
        False,
        True,
        {"conditions": [condition("Finished", True, "Succeeded", "x")]},
        "unchanged",
        "create it",
    ),
}


async def requeued_by_a_pause(world: World, tmp_path: Path, *said: str) -> None:
    """The command, which waits until the controller has written what it writes of a paused job whose pods are gone."""
    looked: list[str] = []

    def look(request: aiohttp.web.Request) -> None:
        if request.method == "PATCH" and request.path.endswith("/jobs/train") and "dryRun" not in request.query:
            looked.clear()
        elif request.method == "GET" and request.path.endswith("/workloads"):
            looked.append(request.path)

    world.sandbox.faults.append(look)
    asked = asyncio.ensure_future(run(world, tmp_path, "requeue", "train", "-n", "ml", *said))

    async def labelled() -> bool:
        return NAMES.pause_label in (await world.client.get(f"{JOBS}/train"))["metadata"]["labels"]

    while not asked.done() and (not await labelled() or len(looked) < 2):
        await asyncio.sleep(0.02)
    assert not asked.done(), "it waits for what is to come of the pause"
    held = await world.client.get(f"{WORKLOADS}/job-train")
    held["status"] = {"conditions": []}
    await world.client.put(f"{WORKLOADS}/job-train/status", held)
    assert "job/train -n ml changed" in (await asked).stdout
    assert not await labelled()


@pytest.mark.parametrize("name", AGAIN)
async def test_requeue(world: World, tmp_path: Path, name: str) -> None:
    paused, active, status, did, message = AGAIN[name]
    await lab(world)
    made = job("train")
    if paused:
        made["metadata"]["labels"][NAMES.pause_label] = "true"
    await with_workload(world, made, dict(status), active=active)
    await run(world, tmp_path, "requeue", "train", "-n", "ml", "--dry-run")
    (row,) = json.loads((await run(world, tmp_path, "requeue", "train", "-n", "ml", "-o", "json")).stdout)["rows"]
    assert (row["did"], message in row["message"]) == (did, True)
    after = await world.client.get(f"{WORKLOADS}/job-train")
    stored = await world.client.get(f"{JOBS}/train")
    assert NAMES.pause_label not in stored["metadata"]["labels"]
    if name == "switched off":
        assert after["spec"]["active"] is True
    assert "requeueAt" not in after["status"].get("requeueState", {})


ENDS: dict[str, tuple[Mapping[str, Any], int, str]] = {
    "at its end": (
        {"conditions": [condition("SuccessCriteriaMet", True, "Rule", "enough")]},
        0,
        "it has ended, and its pods are leaving: create it anew",
    ),
    "deleted": ({}, 1, "it was deleted, and its pods are leaving: create it anew"),
    "released": ({}, 0, "it runs without Muster: nothing is reserved for it"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_who_does_not_wait_for_the_queue_is_not_queued_again(world: World, tmp_path: Path, name: str) -> None:
    more, code, message = ENDS[name]
    await lab(world)
    made = job("train", status={**STARTED, **more})
    made["metadata"]["finalizers"] = ["example.com/kept"]
    held = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, made, {} if name == "released" else held)
    if name == "deleted":
        await world.client.delete(f"{JOBS}/train")
    await run(world, tmp_path, "why", "train", "-n", "ml", code=code)
    (row,) = json.loads((await run(world, tmp_path, "requeue", "train", "-n", "ml", "-o", "json")).stdout)["rows"]
    assert (row["did"], row["message"]) == ("unchanged", message)


class Meanwhile:
    """Somebody else writes just before a write of ours."""

    def __init__(self, world: World, method: str, path: str, write: Callable[[Meanwhile], None]) -> None:
        self._store, self._write, self._at = world.sandbox.store, write, (method, path)
        self.done = False
        world.sandbox.faults.append(self)

    def __call__(self, request: aiohttp.web.Request) -> None:
        if not self.done and (request.method, request.path) == self._at and "dryRun" not in request.query:
            self.done = True
            self._write(self)

    def do(self, verb: str, path: str, body: Any = None, content_type: str = "") -> None:
        group, plural = ("batch", "jobs") if "/jobs/" in path else (NAMES.group, path.split("/")[-2])
        kind = self._store.kind(group, plural)
        assert kind is not None
        namespace = "ml" if "/namespaces/ml/" in path else ""
        name = path.rpartition("/")[2]
        asked = Request(verb, kind, namespace, name, body, content_type=content_type, manager="somebody")
        self._store.do(asked, 1_800_000_000_000)

    def anew(self, path: str, body: Any) -> None:
        self.do("delete", path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
        self.do("create", path, body)

    def changed(self, path: str, change: Any) -> None:
        self.do("patch", path, change, "application/merge-patch+json")


@pytest.mark.parametrize("what", ["a job that is paused", "a job that is given back"])
async def test_another_job_of_the_name_is_left_as_it_is(world: World, tmp_path: Path, what: str) -> None:
    await lab(world)
    runs, path = what == "a job that is paused", f"{JOBS}/train"
    made = job("train", status=STARTED if runs else None)
    held = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, made, held if runs else dict(PENDING))
    another = {key: value for key, value in job("train").items() if key != "status"}
    meanwhile = Meanwhile(world, "PATCH", path, lambda other: other.anew(path, another))
    if runs:
        await run(world, tmp_path, "requeue", "train", "-n", "ml", "--yes", code=4)
    else:
        assert "job/train -n ml refused" in (await run(world, tmp_path, "release-all", "--yes", code=1)).stdout
    assert meanwhile.done
    stored = await world.client.get(path)
    assert stored["spec"]["suspend"] is True
    assert NAMES.pause_label not in stored["metadata"]["labels"]


async def test_another_workload_of_the_name_is_not_deleted(world: World, tmp_path: Path) -> None:
    await lab(world)
    await with_workload(world, job("train"), dict(PENDING), active=False)
    world.denied = {"PATCH workloads"}
    path = f"{WORKLOADS}/job-train"
    before = await world.client.get(path)
    another = {**before, "metadata": {name: before["metadata"][name] for name in ("name", "namespace", "labels")}}
    meanwhile = Meanwhile(world, "DELETE", path, lambda other: other.anew(path, another))
    await run(world, tmp_path, "requeue", "train", "-n", "ml", code=4)
    assert meanwhile.done
    assert (await world.client.get(path))["metadata"]["uid"] != before["metadata"]["uid"]


async def test_what_changed_meanwhile_is_not_written_over(world: World, tmp_path: Path) -> None:
    await lab(world)
    await with_workload(world, job("train"), dict(PENDING), active=False)
    path = f"{WORKLOADS}/job-train"
    meanwhile = Meanwhile(world, "PATCH", path, lambda other: other.changed(path, {"spec": {"priority": 7}}))
    await run(world, tmp_path, "requeue", "train", "-n", "ml", code=4)
    assert meanwhile.done
    assert (await world.client.get(path))["spec"]["active"] is False
    await world.client.delete(path)
    flavor = f"/apis/{NAMES.api_version}/resourceflavors/h100"
    await world.client.merge_patch(flavor, {"metadata": {"finalizers": [NAMES.finalizer]}})
    more = {"metadata": {"finalizers": [NAMES.finalizer, "example.com/new"]}}
    meanwhile = Meanwhile(world, "PATCH", flavor, lambda other: other.changed(flavor, more))
    assert "h100 refused" in (await run(world, tmp_path, "release-all", "--yes", code=1)).stdout
    assert meanwhile.done
    assert "example.com/new" in (await world.client.get(flavor))["metadata"]["finalizers"]


async def test_a_deleted_workload_that_is_kept_says_by_what_and_is_not_queued_again(
    world: World, tmp_path: Path
) -> None:
    await lab(world)
    await with_workload(world, job("train"), dict(PENDING))
    path = f"{WORKLOADS}/job-train"
    await world.client.merge_patch(path, {"metadata": {"finalizers": ["example.com/backup"]}})
    await world.client.delete(path)
    told = json.loads((await run(world, tmp_path, "why", "train", "-n", "ml", "-o", "json", code=1)).stdout)
    standing = told["standing"]
    assert (standing["reason"], standing["detail"]) == ("Deactivated", "WorkloadDeleted")
    assert "is kept by the finalizer example.com/backup;" in standing["message"]
    assert "kubectl edit" in told["platform"]
    (row,) = json.loads((await run(world, tmp_path, "requeue", "train", "-n", "ml", "-o", "json")).stdout)["rows"]
    assert (row["did"], row["message"]) == ("unchanged", standing["message"])


@pytest.mark.parametrize("name", ["switched off", "in backoff"])
async def test_who_may_only_delete_workloads_queues_a_job_again_by_that(
    world: World, tmp_path: Path, name: str
) -> None:
    _, active, status, _, _ = AGAIN[name]
    await lab(world)
    await with_workload(world, job("train"), dict(status), active=active)
    world.denied = {"PATCH workloads"}
    await run(world, tmp_path, "requeue", "train", "-n", "ml", "--dry-run")
    await world.client.get(f"{WORKLOADS}/job-train")
    await run(world, tmp_path, "requeue", "train", "-n", "ml")
    with pytest.raises(NotFound):
        await world.client.get(f"{WORKLOADS}/job-train")


async def test_who_may_write_no_workload_ends_a_backoff_by_a_pause(world: World, tmp_path: Path) -> None:
    """As the owner of a job, who has the role `edit` in its namespace."""
    await lab(world)
    await with_workload(world, job("train"), dict(BACKOFF))
    world.denied = {"PATCH workloads", "DELETE workloads"}
    await run(world, tmp_path, "requeue", "train", "-n", "ml", "--dry-run")
    await requeued_by_a_pause(world, tmp_path)


async def test_who_may_write_no_workload_does_not_pause_a_job_that_is_switched_off(
    world: World, tmp_path: Path
) -> None:
    """It would stay so: a pause ends no more than a backoff."""
    await lab(world)
    await with_workload(world, job("train"), dict(PENDING), active=False)
    world.denied = {"PATCH workloads", "DELETE workloads"}
    await run(world, tmp_path, "requeue", "train", "-n", "ml", code=4)
    stored = await world.client.get(f"{JOBS}/train")
    assert NAMES.pause_label not in stored["metadata"]["labels"]


async def test_requeue_of_one_that_waits_for_its_checks_asks_first(world: World, tmp_path: Path) -> None:
    await lab(world)
    await with_workload(world, job("train"), {"conditions": [RESERVED], "admission": admission("n1", "n2")})
    assert "holds its room" in (await run(world, tmp_path, "requeue", "train", "-n", "ml", code=2)).stderr


async def test_requeue_of_one_that_runs_pauses_it_until_its_room_is_free(world: World, tmp_path: Path) -> None:
    await lab(world)
    made = job("train", status=STARTED)
    await with_workload(world, made, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")})
    refused = await run(world, tmp_path, "requeue", "train", "-n", "ml", code=2)
    assert "Say --yes" in refused.stderr
    await requeued_by_a_pause(world, tmp_path, "--yes")


def as_at_a_terminal() -> None:
    """Whoever runs the tests in the background, or with nohup, ignores some of these, and its children would, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_requeue_that_is_told_to_end_takes_its_pause_back(
    world: World, tmp_path: Path, number: signal.Signals
) -> None:
    await runs(world)
    given = ["requeue", "train", "-n", "ml", "--yes", "--kubeconfig", str(tmp_path / "kubeconfig")]
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "admission.cli",
        *given,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=as_at_a_terminal,
    )
    assert asked.stderr is not None
    said = (await asked.stderr.readline()).decode()
    assert f"job/train is paused (label {NAMES.pause_label}) until its pods have left" in said
    assert await paused(world)
    asked.send_signal(number)
    assert await asked.wait() == options.INTERRUPTED
    assert not await paused(world)


async def test_requeue_that_is_interrupted_twice_says_that_the_job_may_be_paused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no patience with an API server that takes its time."""
    await runs(world)
    route, lifting, release = world.sandbox._route, asyncio.Event(), asyncio.Event()

    async def slowly(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.method == "PATCH" and request.path == f"{JOBS}/train" and await paused(world):
            lifting.set()
            await release.wait()
            return aiohttp.web.Response(status=504)
        return await route(request)

    monkeypatch.setattr(world.sandbox, "_route", slowly)
    given = ["requeue", "train", "-n", "ml", "--yes", "--kubeconfig", str(tmp_path / "kubeconfig")]
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "admission.cli", *given), stderr=asyncio.subprocess.PIPE, preexec_fn=as_at_a_terminal
    )
    assert asked.stderr is not None
    await asked.stderr.readline()  # that it is paused
    asked.send_signal(signal.SIGINT)
    await lifting.wait()
    asked.send_signal(signal.SIGINT)
    said = (await asked.stderr.read()).decode()
    assert await asked.wait() == options.INTERRUPTED
    release.set()
    assert f"job/train may still be paused (label {NAMES.pause_label}): `muster requeue job/train -n ml` lifts" in said


async def interrupted(asked: asyncio.subprocess.Process) -> int | None:
    """Its exit code. A signal just before it waits for input is heard when it has some, or with the next."""
    while asked.returncode is None:
        asked.send_signal(signal.SIGINT)
        await asyncio.wait({asyncio.ensure_future(asked.wait())}, timeout=5)
    return asked.returncode


async def test_who_is_asked_may_interrupt_at_once(world: World, tmp_path: Path) -> None:
    await lab(world)
    keyboard, there = os.openpty()
    given = ["stop", "team-a", "--drain", "-o", "json", "--kubeconfig", str(tmp_path / "kubeconfig")]
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "admission.cli",
        *given,
        stdin=there,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=as_at_a_terminal,
    )
    try:
        assert asked.stderr is not None
        assert asked.stdout is not None
        assert b"2 running job(s) of team-a" in await asked.stderr.readuntil(b"[y/N]")
        assert await interrupted(asked) == options.INTERRUPTED
        assert await asked.stdout.read() == b"", "a question is no part of the answer"
    finally:
        os.close(keyboard)
        os.close(there)
        with contextlib.suppress(ProcessLookupError):
            asked.kill()
    assert (await world.client.get(f"{CLUSTER_QUEUES}/team-a"))["spec"].get("stopPolicy", "None") == "None"


async def test_who_interrupts_a_program_before_it_asks_the_cluster_sees_it_by_the_code() -> None:
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "admission.cli",
        "lint",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=as_at_a_terminal,
    )
    assert asked.stdin is not None
    asked.stdin.write(b"#" * (1 << 20))  # more than a pipe holds: it reads
    await asked.stdin.drain()
    assert await interrupted(asked) == options.INTERRUPTED


@pytest.mark.parametrize(
    ("lost", "still"), [((1,), False), ((1, 2), True), ((), False)], ids=["once", "twice", "refused"]
)
async def test_requeue_takes_a_pause_back_of_which_it_heard_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...], still: bool
) -> None:
    await runs(world)
    patch, written = Client.merge_patch, 0

    async def answered(self: Client, *given: Any, **more: Any) -> Any:
        nonlocal written
        written += 1
        answer = await patch(self, *given, **more)
        if written in lost:
            raise Unavailable(0, "Lost", "the connection broke", ambiguous=True)
        return answer

    monkeypatch.setattr(Client, "merge_patch", answered)
    world.denied = set() if lost else {"PATCH jobs"}
    told = await run(world, tmp_path, "requeue", "train", "-n", "ml", "--yes", code=4)
    assert written == (2 if lost else 1)
    assert ("may still be paused" in told.stderr) is still
    assert not await paused(world)


async def runs(world: World) -> None:
    await lab(world)
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, job("train", status=STARTED), started)


async def paused(world: World) -> bool:
    return NAMES.pause_label in (await world.client.get(f"{JOBS}/train"))["metadata"]["labels"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["why", ""], "'' names no job"),
        (["why", "job/"], "'job/' names no job"),
        (["requeue", "job/"], "'job/' names no job"),
        (["stop", ""], "'' names no queue"),
        (["resume", "lq/"], "'lq/' names no queue"),
    ],
)
async def test_an_empty_name_is_no_name(world: World, tmp_path: Path, asked: list[str], said: str) -> None:
    await lab(world)
    assert said in (await run(world, tmp_path, *asked, "-n", "ml", code=3)).stderr


async def test_an_empty_name_of_the_controller_s_namespace_is_none(world: World, tmp_path: Path) -> None:
    assert "it is empty" in (await run(world, tmp_path, "queues", "--controller-namespace", "", code=2)).stderr


@pytest.mark.parametrize("command", [["release-all", "--yes"], ["export"], ["top"]])
async def test_an_empty_namespace_is_not_all_of_them(world: World, tmp_path: Path, command: list[str]) -> None:
    """As in a script that says -n "$TEAM" where nobody set it."""
    await world.put(job("waits"))
    assert "it is empty" in (await run(world, tmp_path, *command, "-n", "", code=2)).stderr
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"]


# ---------------------------------------------------------------- quota as files


CREATED: dict[str, tuple[list[str], list[str]]] = {
    "the queue": (["team-a"], ["clusterqueue/team-a refused: exists already"]),
    "its users' queue, of another": (
        ["team-c", "--for", "ml:team-a"],
        ["localqueue/team-a -n ml refused: somebody else manages", "clusterqueue/team-c created"],
    ),
    "a flavor with other labels": (["team-c", "--node-label", "gpu=b200"], ["resourceflavor/h100 refused: somebody"]),
    "a flavor of its own with other labels": (
        ["team-c", "--quota", "old:cpu=1", "--node-label", "gpu=b200"],
        ["resourceflavor/old refused: exists already, and is not the same"],
    ),
    "a name that cannot be": (["Bad_Name", "--for", "ml"], ["clusterqueue/Bad_Name refused"]),
    "nowhere": (
        ["team-c", "--for", "nosuchns"],
        ["localqueue/main -n nosuchns refused", "clusterqueue/team-c created"],
    ),
}


@pytest.mark.parametrize("name", CREATED)
async def test_create_queue_writes_all_or_nothing_and_over_nobody(world: World, tmp_path: Path, name: str) -> None:
    more, said = CREATED[name]
    await lab(world)
    flavors = f"/apis/{NAMES.api_version}/resourceflavors"
    await world.client.apply(f"{flavors}/old", own("ResourceFlavor", "old", {}), manager="muster-cli")
    before = (await run(world, tmp_path, "export")).stdout
    quota = [] if "--quota" in more else ["--quota", f"h100:{GPU}=1"]
    refused = await run(world, tmp_path, "create", "queue", *more, *quota, code=1)
    for line in [*said, " refused (", "Nothing was changed: "]:
        assert line in refused.stdout
    assert (await run(world, tmp_path, "export")).stdout == before
    # A flavor that is there as it would be written is shared.
    await run(world, tmp_path, "create", "queue", "team-d", "--quota", f"h100:{GPU}=1", "--node-label", "gpu=h100")


async def test_create_queue_export_and_import(world: World, tmp_path: Path) -> None:
    said = [
        "create",
        "queue",
        "team-c",
        "--quota",
        f"h100:{GPU}=16,cpu=64",
        "--cohort",
        "lab",
        "--borrow",
        "8",
        "--lend",
        "4",
    ]
    said += ["--for", "ml", "--for", "web:batch", "--node-label", "gpu=h100", "--weight", "2", "--strict"]
    printed = await run(world, tmp_path, *said, "--dry-run", "-o", "yaml")
    objects = list(yaml.safe_load_all(printed.stdout))
    kinds = ["ResourceFlavor", "ClusterQueue", "LocalQueue", "LocalQueue"]
    assert [one["kind"] for one in objects] == kinds
    assert (await run(world, tmp_path, "export", "-o", "name")).stdout == ""
    await run(world, tmp_path, *said)
    exported = (await run(world, tmp_path, "export")).stdout
    kept = list(yaml.safe_load_all(exported))
    assert [one["kind"] for one in kept] == kinds
    assert all("uid" not in one["metadata"] and "status" not in one for one in kept)
    queue = next(one for one in kept if one["kind"] == "ClusterQueue")
    assert queue["spec"]["fairSharing"] == {"weight": "2"}
    whose = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["ml", "web"]}
    assert queue["spec"]["namespaceSelector"] == {"matchExpressions": [whose]}
    assert queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"] == [
        {"name": GPU, "nominalQuota": "16", "borrowingLimit": "8", "lendingLimit": "4"},
        {"name": "cpu", "nominalQuota": "64"},  # the limits are of devices
    ]
    # Into another cluster, and changed.
    file = tmp_path / "quota.yaml"
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "24"
    file.write_text(yaml.safe_dump_all(kept))
    tried = await run(world, tmp_path, "import", str(file))
    assert "nominalQuota: 16 -> 24" in tried.stdout
    assert "Dry run" in tried.stdout
    await run(world, tmp_path, "import", str(file), "--apply")
    stored = await world.client.get(f"{CLUSTER_QUEUES}/team-c")
    assert stored["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == "24"


async def test_import_refuses_what_another_manages_and_what_is_wrong(world: World, tmp_path: Path) -> None:
    flavor = own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}})
    path = f"/apis/{NAMES.api_version}/resourceflavors/h100"
    await world.client.apply(path, flavor, manager="gitops")
    changed = own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h200"}})
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all([changed, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}]))
    refused = await run(world, tmp_path, "import", str(file), "--apply", code=1)
    assert "gitops" in refused.stdout
    assert "configmap/x skipped" in refused.stdout
    assert (await world.client.get(path))["spec"]["nodeLabels"] == {"gpu": "h100"}
    file.write_text(yaml.safe_dump(own("ClusterQueue", "a", {"resourceGroups": "none"})))
    await run(world, tmp_path, "import", str(file), "--apply", code=1)
    unheard = own("ResourceFlavor", "new", {"nodeLabel": {"gpu": "h100"}})
    file.write_text(yaml.safe_dump_all([unheard, changed]))
    told = await run(world, tmp_path, "import", str(file), "--apply", code=1)
    assert "resourceflavor/new refused: there is no such field here: spec.nodeLabel" in told.stdout
    assert "gitops" in told.stdout, "the others are told of, too"
    await run(world, tmp_path, "import", str(file), "--from", "slurm", code=2)
    nameless = {"apiVersion": NAMES.api_version, "kind": "ResourceFlavor", "metadata": {}, "spec": {}}

    def later(request: aiohttp.web.Request) -> aiohttp.web.Response | None:
        """What is refused only when it is written."""
        if request.method != "PATCH" or not request.path.endswith("/late") or "dryRun" in request.query:
            return None
        no = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}
        return aiohttp.web.json_response(no, status=403)

    world.sandbox.faults.append(later)
    file.write_text(yaml.safe_dump_all([own("ResourceFlavor", name, {}) for name in ("early", "late")]))
    told = await run(world, tmp_path, "import", str(file), "--apply", code=1)
    assert "1 refused (resourceflavor/late); the rest was done" in told.stdout
    assert (await world.client.get(path.replace("h100", "early")))["spec"] == {"elastic": False}
    file.write_text(yaml.safe_dump_all([nameless, {**nameless, "kind": ["x"]}]))
    told = await run(world, tmp_path, "import", str(file), code=1)
    assert "resourceflavor/ refused: it has no metadata.name" in told.stdout
    assert "object/ refused: there is no such kind in muster.dev" in told.stdout
    for kind, did in (("Clusterqueue", "refused"), ("Workload", "skipped")):
        file.write_text(yaml.safe_dump({**nameless, "kind": kind, "metadata": {"name": "a"}}))
        told = await run(world, tmp_path, "import", str(file), "--apply", code=int(did == "refused"))
        assert f"{kind.lower()}/a {did}" in told.stdout


async def test_import_tells_which_object_names_something_twice(world: World, tmp_path: Path) -> None:
    queue = cluster_queue("team-c", 8)
    flavors = queue["spec"]["resourceGroups"][0]["flavors"]
    flavors.append(flavors[0])
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all([own("ResourceFlavor", "fine", {}), {**queue, "status": {}}]))
    for command, code in ((["import", str(file), "--apply"], 1), (["foresee", str(file)], 3)):
        told = " ".join((await run(world, tmp_path, *command, code=code)).stdout.split())
        assert "clusterqueue/team-c" in told
        assert 'duplicate entries for key [name="h100"]' in told
    with pytest.raises(NotFound):  # where anything would be refused nothing is written
        await world.client.get(f"/apis/{NAMES.api_version}/resourceflavors/fine")


async def test_import_writes_into_the_namespace_that_is_said_what_names_none(world: World, tmp_path: Path) -> None:
    await lab(world)
    path = f"/apis/{NAMES.api_version}/namespaces/{{}}/localqueues/{{}}"
    bare, own_place = (local_queue(name, "team-a", "web") for name in ("bare", "placed"))
    del bare["metadata"]["namespace"], bare["status"], own_place["status"]
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all([bare, own_place]))
    await run(world, tmp_path, "import", str(file), "-n", "ml", "--apply")
    await world.client.get(path.format("ml", "bare"))
    await world.client.get(path.format("web", "placed"))


def away_from(path: str) -> Any:
    """The API server answers nothing that is to be written to this object, or is asked of it later."""
    gone: list[str] = []

    def answers(request: aiohttp.web.Request) -> aiohttp.web.Response | None:
        if request.path.endswith(path) and request.method == "PATCH" and "dryRun" not in request.query:
            gone.append(path)
        return aiohttp.web.Response(status=503) if gone else None

    return answers


async def test_import_says_what_was_written_before_nobody_answered(world: World, tmp_path: Path) -> None:
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all([own("ResourceFlavor", name, {}) for name in ("a", "b", "c")]))
    world.sandbox.faults.append(away_from("/resourceflavors/b"))
    told = (await run(world, tmp_path, "import", str(file), "--apply", code=1)).stdout
    assert "resourceflavor/a created" in told
    assert "resourceflavor/b refused: nobody knows whether it was written" in told
    assert "resourceflavor/c refused: not tried" in told


async def test_create_queue_that_broke_off_can_be_repeated(world: World, tmp_path: Path) -> None:
    said = ["create", "queue", "team-c", "--quota", f"h100:{GPU}=8", "--for", "ml", "--node-label", "gpu=h100"]
    world.sandbox.faults.append(away_from("/localqueues/main"))
    told = (await run(world, tmp_path, *said, code=1)).stdout
    assert "resourceflavor/h100 created" in told
    assert "localqueue/main -n ml refused: nobody knows whether it was written" in told
    world.sandbox.faults.pop()
    again = (await run(world, tmp_path, *said)).stdout
    assert "clusterqueue/team-c created" in again
    assert "localqueue/main -n ml created" in again


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["quota.yaml"], 0, "resourceflavor/h100 created: no node has its labels now"),
        (["quota.yaml", "--apply"], 0, "resourceflavor/h100 created: no node has its labels now"),
        (["quota.yaml", "--api-group", "kueue.x-k8s.io"], 1, "leave out --api-group kueue.x-k8s.io"),
        (["--api-group", "kueue.x-k8s.io", "--apply"], 1, "leave out --api-group kueue.x-k8s.io"),
        ([], 1, "this cluster does not serve kueue.x-k8s.io: there is nothing to carry over"),
    ],
)
async def test_import_from_kueue(world: World, tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    flavor = own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}) | {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    (tmp_path / "quota.yaml").write_text(yaml.safe_dump(flavor))
    files = [str(tmp_path / one) if one.endswith(".yaml") else one for one in arguments]
    told = await run(world, tmp_path, "import", *files, "--from", "kueue", code=code)
    assert says in " ".join(told.stdout.split())


@pytest.mark.parametrize(
    ("config", "found"),
    [("{}", True), ("preset: kueue", False), ("{preset: kueue, fairSharing: {}}", True)],
    ids=["Muster's rules", "Kueue's", "Kueue's fair sharing"],
)
async def test_what_says_nothing_is_judged_by_the_rules_of_the_cluster(
    world: World, tmp_path: Path, config: str, found: bool
) -> None:
    await lab(world)
    await configured(world, config)
    made = cluster_queue("team-c", 8)
    made["spec"]["preemption"] = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}
    await world.put(made)
    told = json.loads((await run(world, tmp_path, "lint", "--cluster", "-o", "json", code=1)).stdout)
    assert ("preemption-without-effect" in {one["rule"] for one in told}) is found


@pytest.mark.parametrize("command", ["import", "submit", "lint"])
def test_input_that_is_no_text_is_told_in_a_line(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "-"], input=b"\xff\xfe")
    assert result.exit_code == options.BAD_USE
    assert "can't decode byte 0xff" in result.stderr


@pytest.mark.parametrize(
    "asked",
    [
        ["jobs", "--api-group", "muster.io"],
        ["controller", "--api-group", "kueue"],
        ["controller", "--log-level", "trace"],
        ["controller", "--log-format", "text"],
    ],
    ids=" ".join,
)
def test_a_word_that_an_option_does_not_know_is_refused_with_those_it_knows(asked: list[str]) -> None:
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == options.BAD_USE
    assert f"{asked[-1]!r} is not one of" in result.stderr


def test_values_of_the_chart_are_not_linted_for_a_file_of_objects() -> None:
    result = CliRunner().invoke(cli, ["lint", "-"], input=b"quota:\n  only: true\n")
    assert result.exit_code == options.BAD_USE
    assert "no object in these files; values of the chart are linted as `helm template` renders them" in result.stderr


async def test_what_is_exported_reads_as_it_was_written(world: World, tmp_path: Path) -> None:
    """By kubectl, too, which takes y for true and 08 for 8."""
    await world.put(own("ResourceFlavor", "r8", {"nodeLabels": {"rack": "08", "gpu": "y"}}))
    exported = (await run(world, tmp_path, "export")).stdout
    assert "rack: '08'" in exported
    assert "gpu: 'y'" in exported


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--quota", "all:cpu=8", "--borrow", "4"], "--borrow 4: it limits devices, and --quota names none (cpu)"),
        (["--quota", "all:cpu=8,memory=1Ti", "--lend", "0"], "--lend 0: it limits devices, and --quota names none"),
        (
            ["--quota", f"a100:{GPU}=8", "--quota", f"h100:{GPU}=8", "--node-label", "gpu=h100"],
            "--node-label: a100, h100 would be of the same nodes, which count once for each",
        ),
    ],
)
async def test_create_queue_refuses_what_it_would_leave_out_or_count_twice(
    world: World, tmp_path: Path, more: list[str], told: str
) -> None:
    await lab(world)
    before = (await run(world, tmp_path, "export", "-o", "name")).stdout
    refused = await run(world, tmp_path, "create", "queue", "team-c", "--cohort", "lab", *more, code=2)
    assert told in refused.stderr
    assert (await run(world, tmp_path, "export", "-o", "name")).stdout == before


@pytest.mark.parametrize("quota", ["h100", "h100:gpu", "h100:", "h100:gpu=1 h200:cpu=1"])
async def test_create_queue_says_how_quota_is_written(world: World, tmp_path: Path, quota: str) -> None:
    given = [part for one in quota.split(" ") for part in ("--quota", one)]
    await run(world, tmp_path, "create", "queue", "a", *given, code=2)


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        ("cpu", 2500, "2500m"),
        ("cpu", 10_000, "10"),
        ("cpu", 10_900, "10.9"),  # what asks for it does not fit 10
        ("cpu", -10_500, "-10.5"),
        ("memory", 3 * 2**40 // 2, "1536Gi"),
        ("memory", 500 * 10**9, "500G"),
        ("memory", 500 * 10**9 + 1, "465.6Gi"),
        (GPU, 16, "16"),
    ],
)
def test_amounts_for_people(resource: str, amount: int, shown: str) -> None:
    assert short(resource, amount) == shown


# ---------------------------------------------------------------- submit


def written(tmp_path: Path, made: dict[str, Any]) -> str:
    file = tmp_path / "job.yaml"
    made["spec"].pop("suspend", None)
    file.write_text(yaml.safe_dump(made))
    return str(file)


async def alone(world: World) -> None:
    """One queue of 32 devices on three nodes of 8 and one that is cordoned, with nobody in it."""
    await fleet(world)
    await world.put(own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}))
    resource = {"name": GPU, "nominalQuota": 32}
    groups = [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [resource]}]}]
    await world.put(own("ClusterQueue", "all", {"namespaceSelector": {}, "resourceGroups": groups}))
    await world.put(own("LocalQueue", "team-a", {"clusterQueue": "all"}, namespace="ml"))


def may_shrink(made: dict[str, Any], *, to: int) -> dict[str, Any]:
    made["metadata"]["annotations"] = {NAMES.min_parallelism_annotation: str(to)}
    return made


def labelled(name: str, priority_class: str) -> dict[str, Any]:
    made = job(name, pods=1)
    made["metadata"]["labels"][NAMES.priority_class_label] = priority_class
    return made


def of_class(name: str, priority_class: str) -> dict[str, Any]:
    made = job(name, pods=1)
    made["spec"]["template"]["spec"]["priorityClassName"] = priority_class
    return made


def with_account(name: str, account: str) -> dict[str, Any]:
    made = job(name, pods=3)
    made["spec"]["template"]["spec"]["serviceAccountName"] = account
    return made


SUBMITTED: dict[str, tuple[dict[str, Any], int, str, str, str]] = {
    "fits": (job("train", pods=3), 0, "starts", "", ""),
    "fits with less": (may_shrink(job("train", pods=4), to=2), 0, "starts", "", "less: 3 of 4 pods at a time"),
    "one is cordoned": (job("train", pods=4), 1, "waits", "NodesUnusable", "with none of them kept out"),
    "too large": (job("train", pods=5), 1, "waits", "NeverFitsQuota", "can never have more than 32"),
    "no such queue": (job("train", queue="none"), 1, "waits", "LocalQueueDoesNotExist", "LocalQueue none does not"),
    "no such priority": (labelled("train", "urgent"), 3, "refused", "", "'urgent' does not exist; there are: none"),
    "no such priority of pods": (of_class("train", "urgent"), 3, "refused", "", "none of them can be made"),
    "no such ServiceAccount": (with_account("train", "trainer"), 3, "refused", "", "'trainer' (serviceAccountName of"),
    "no queue": (job("train", queue=""), 0, "unmanaged", "", "no label"),
    "no name": ({**job("train"), "metadata": {"namespace": "ml", "labels": {}}}, 3, "refused", "", ""),
}


@pytest.mark.parametrize("name", SUBMITTED)
async def test_submit(world: World, tmp_path: Path, name: str) -> None:
    made, code, answer, detail, message = SUBMITTED[name]
    await alone(world)
    file = written(tmp_path, json.loads(json.dumps(made)))
    (seen,) = json.loads((await run(world, tmp_path, "submit", file, "-o", "json", code=code)).stdout)
    assert (seen["answer"], seen["detail"]) == (answer, detail)
    assert message in seen["message"]
    if answer == "starts":
        assert sorted(seen["where"][0]["nodes"]) == [["n1", 1], ["n2", 1], ["n4", 1]]
    shown = (await run(world, tmp_path, "submit", file, code=code)).stdout
    assert message in shown
    assert [item async for page in world.client.list_pages(JOBS) for item in page.items] == []


async def test_submit_counts_the_default_priority_as_the_controller_does(world: World, tmp_path: Path) -> None:
    await alone(world)
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}}
    await world.put({**low, "value": -10, "globalDefault": True})
    await world.put(workload(await world.put(job("front", pods=3)), {}, priority=-5))
    told = await run(world, tmp_path, "submit", written(tmp_path, job("train", pods=3)), code=1)
    assert "would wait" in told.stdout


async def test_submit_names_what_the_job_would_go_on_without(world: World, tmp_path: Path) -> None:
    await alone(world)
    made = job("train", pods=3)
    made["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "yes"}
    shown = (await run(world, tmp_path, "submit", written(tmp_path, made))).stdout
    assert "would start now" in shown
    assert "goes on without" in shown
    assert "whose value 'yes' is neither 'true' nor 'false'" in shown


async def test_submit_decides_by_the_rules_of_the_controller(world: World, tmp_path: Path) -> None:
    """Those that its ConfigMap says, and else it tells that it did not know them."""
    await alone(world)
    made = job("train", pods=3)
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
    file = written(tmp_path, made)
    told = await run(world, tmp_path, "submit", file, code=1)
    assert ("ResourceNotCovered" in told.stdout, told.stderr) == (True, "")
    await configured(world, "resources: {excludeResourcePrefixes: [cpu]}")
    assert "would start now" in (await run(world, tmp_path, "submit", file)).stdout
    world.denied = {"configmaps"}
    told = await run(world, tmp_path, "submit", file, code=1)
    assert "may not read ConfigMap muster-system/muster-controller: judged by the rules of the preset" in told.stderr


@pytest.mark.parametrize(("config", "code"), [("", 3), ("maxTerminationGracePeriodSeconds: 7200", 0)])
async def test_submit_lets_a_job_say_what_the_controller_does(
    world: World, tmp_path: Path, config: str, code: int
) -> None:
    await alone(world)
    await configured(world, config)
    made = job("train", pods=3)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7200
    told = (await run(world, tmp_path, "submit", written(tmp_path, made), code=code)).stdout
    assert ("would start now" in told, "is at most 3600" in told) == (code == 0, code == 3)


async def test_submit_refuses_what_the_controller_would_not_queue(world: World, tmp_path: Path) -> None:
    await alone(world)
    made = own("JobSet", "train", {"replicatedJobs": []}, namespace="ml")
    made["apiVersion"] = "jobset.x-k8s.io/v1alpha2"
    made["metadata"]["labels"] = {NAMES.queue_label: "team-a"}
    told = (await run(world, tmp_path, "submit", written(tmp_path, made), code=3)).stdout
    assert "the JobSet has no pod template" in told


async def configured(world: World, config: str) -> None:
    meta = {"name": "muster-controller", "namespace": "muster-system"}
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    await world.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": config}})


@pytest.mark.parametrize(
    ("config", "queue", "code", "told"),
    [
        ("manageJobsWithoutQueueName: true\ndefaultQueueName: team-a", "", 0, "would start now"),
        ("manageJobsWithoutQueueName: true\ndefaultQueueName: none", "", 1, "LocalQueue none does not exist"),
        ("defaultQueueName: team-a", "", 0, "Muster leaves it alone, and it starts at once"),
        ("namespaceSelector: {matchLabels: {a: b}}", "team-a", 3, "Jobs of namespace ml are not queued"),
        ("manageJobsWithoutQueueName: true\nnamespaceSelector: {matchLabels: {a: b}}", "", 0, "Muster leaves it alone"),
    ],
)
async def test_submit_knows_whose_jobs_are_queued(
    world: World, tmp_path: Path, config: str, queue: str, code: int, told: str
) -> None:
    await alone(world)
    await configured(world, config)
    made = job("train", queue)
    del made["spec"]["suspend"]
    said = (await run(world, tmp_path, "submit", written(tmp_path, made), code=code)).stdout
    assert told in " ".join(said.split())
    assert ("LocalQueue team-a -> " in said) is ("would start" in said)


async def test_submit_names_a_label_that_counts_nothing_where_it_stands(world: World, tmp_path: Path) -> None:
    """It is why the job would be left alone."""
    await alone(world)
    made = job("train", "")
    made["metadata"]["labels"] = {"app": "train"}
    made["spec"]["template"]["metadata"] = {"labels": {"muster.dev/queue-name": "team-a"}}
    said = " ".join((await run(world, tmp_path, "submit", written(tmp_path, made))).stdout.split())
    assert "Muster leaves it alone" in said
    assert "goes on without label muster.dev/queue-name of pods, which is read of the job only" in said


async def test_submit_of_a_job_that_is_held_without_a_label_does_not_guess_its_queue(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may not read the ConfigMap sees by the dry run that all jobs of the namespace are held."""
    await alone(world)
    create = Client.create

    async def held(self: Client, path: str, manifest: Any, **more: Any) -> Any:
        made = await create(self, path, manifest, **more)
        return {**made, "spec": {**made["spec"], "suspend": True}}

    monkeypatch.setattr(Client, "create", held)
    world.denied = {"configmaps"}
    made = job("train", "")
    del made["spec"]["suspend"]
    said = await run(world, tmp_path, "submit", written(tmp_path, made), code=4)
    assert "it has no label muster.dev/queue-name, and is held all the same" in " ".join(said.stdout.split())


async def test_submit_creates_after_it_said_what_will_happen(world: World, tmp_path: Path) -> None:
    """The first takes all nodes that are free, and the second, by what is stored then, waits behind it."""
    await alone(world)
    file = written(tmp_path, job("train", pods=3))
    told = await run(world, tmp_path, "submit", file, "--create")
    assert re.search("would start now(.|\n)*created", told.stdout)
    stored = await world.client.get(f"{JOBS}/train")
    await world.put(
        workload(stored, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2", "n4", pods=3)})
    )
    await run(world, tmp_path, "submit", file, "--create", code=3)
    second = await run(world, tmp_path, "submit", written(tmp_path, job("next", pods=1)), code=1)
    assert "NodesShort" in second.stdout


def apart(name: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    """A job whose pods keep away from those of the others like it."""
    made = job(name, pods=2, gpus=1)
    made["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": key}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made["spec"]["template"]["spec"]["affinity"] = rule
    return made


TOGETHER: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "both": ([job("a", pods=1), job("b", pods=2)], [("starts", ""), ("starts", "")]),
    "the first takes the room": ([job("a", pods=2), job("b", pods=2)], [("starts", ""), ("waits", "NodesShort")]),
    "the first waits": ([job("a", pods=5), job("b", pods=3)], [("waits", "NeverFitsQuota"), ("starts", "")]),
    "the first is kept away from": ([apart("a"), apart("b")], [("starts", ""), ("waits", "NodesShort")]),
}


@pytest.mark.parametrize("create", [[], ["--create"]])
@pytest.mark.parametrize("name", TOGETHER)
async def test_submit_of_several_counts_those_before(
    world: World, tmp_path: Path, name: str, create: list[str]
) -> None:
    made, wanted = TOGETHER[name]
    await alone(world)
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all(made))
    code = 0 if create or all(answer == "starts" for answer, _ in wanted) else 1
    seen = json.loads((await run(world, tmp_path, "submit", str(file), "-o", "json", *create, code=code)).stdout)
    assert [(one["answer"], one["detail"]) for one in seen] == wanted


async def test_submit_counts_one_that_it_created_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is quick: the first runs when the second is asked about. Its name is the one that it got."""
    await alone(world)
    first = job("a", pods=2)
    first["metadata"]["generateName"] = f"{first['metadata'].pop('name')}-"
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([first, job("b", pods=1)]))
    create, loop, names = whatif.create, asyncio.get_running_loop(), []
    status = {"conditions": [RESERVED, ADMITTED_], "admission": {**admission("n1", "n2"), "clusterQueue": "all"}}

    async def followed(ask: Any, *given: Any) -> Any:
        seen = await create(ask, *given)
        stored = await ask.client.get(f"{JOBS}/{seen.name}")
        names.append(seen.name)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(world.put(workload(stored, status)), loop))
        return seen

    monkeypatch.setattr(whatif, "create", followed)
    seen = json.loads((await run(world, tmp_path, "submit", str(file), "-o", "json", "--create")).stdout)
    assert [one["answer"] for one in seen] == ["starts", "starts"]
    assert [one["name"] for one in seen] == names


async def test_submit_looks_at_all_kinds_first_and_tells_what_it_created_before_an_error(
    world: World, tmp_path: Path
) -> None:
    await alone(world)
    file = tmp_path / "jobs.yaml"
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ml"}}
    file.write_text(yaml.safe_dump_all([job("a", pods=1), other]))
    told = await run(world, tmp_path, "submit", str(file), "--create", code=2)
    assert "ConfigMap is no kind of job" in told.stderr
    assert [item async for page in world.client.list_pages(JOBS) for item in page.items] == []

    posts = 0

    def breaks(request: Any) -> Any:
        nonlocal posts
        posts += request.method == "POST"
        return aiohttp.web.Response(status=500) if posts >= 3 else None

    world.sandbox.faults.append(breaks)
    file.write_text(yaml.safe_dump_all([job("a", pods=1), job("b", pods=1)]))
    told = await run(world, tmp_path, "submit", str(file), "--create", code=4)
    assert re.search("Job ml/a would start now(.|\n)*created", told.stdout)
    assert "ml/b" not in told.stdout


async def test_submit_with_the_rights_of_a_tenant(world: World, tmp_path: Path) -> None:
    await alone(world)
    world.denied = {"nodes", "pods*", "clusterqueues", "workloads*"}
    told = await run(world, tmp_path, "submit", written(tmp_path, job("train")), code=4)
    assert "you may not see clusterqueues, nodes, workloads, pods of the whole cluster" in told.stdout
    assert "; the queue is there" in told.stdout
    none = await run(world, tmp_path, "submit", written(tmp_path, job("train", queue="none")), code=1)
    assert "LocalQueue none does not exist" in none.stdout
    world.denied |= {"localqueues"}
    blind = await run(world, tmp_path, "submit", written(tmp_path, job("train", queue="none")), code=4)
    assert "the queue is there" not in blind.stdout


# ---------------------------------------------------------------- foresee


def _of(a: int = 16, b: int = 8, **more: Any) -> list[dict[str, Any]]:
    """Two teams that lend to each other, of which team-a may not borrow."""
    queues = [cluster_queue("team-a", a, borrowingLimit=0), cluster_queue("team-b", b)]
    queues[0]["spec"] |= more
    for one in queues:
        del one["status"]
    return queues


async def contested(world: World, a: int = 16, *, admitted: bool = True) -> None:
    """Three nodes of 8: team-a holds two, and one more of its gangs waits for one, and one of team-b for two."""
    await fleet(world)
    await world.put(own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}))
    for queue in _of(a):
        await world.put(queue)
        name = queue["metadata"]["name"]
        await world.put(local_queue(name, name))
    started = {"conditions": [RESERVED, *([ADMITTED_] if admitted else ())], "admission": admission("n1", "n2")}
    await with_workload(world, job("runs", status=STARTED), started)
    await with_workload(world, job("more", pods=1), dict(PENDING))
    await with_workload(world, job("theirs", queue="team-b"), dict(PENDING), queue="team-b")


MORE, RUNS, THEIRS = (
    {"name": f"Job ml/{name}", "clusterQueue": f"team-{x}"}
    for name, x in zip(("more", "runs", "theirs"), "aab", strict=True)
)
FORESEEN: dict[str, tuple[int, list[dict[str, Any]], dict[str, Any]]] = {
    "as it is": (16, _of(), {}),
    "more for one": (16, _of(24), {"starts": [MORE]}),
    "more than there are nodes for": (16, _of(64), {"starts": [MORE]}),
    "from one to the other": (16, _of(8, 16), {"starts": [MORE, THEIRS], "evicts": [RUNS]}),
    "less than is in use evicts nobody": (16, _of(8), {}),
    "less": (24, _of(16), {"waits": [MORE]}),
    "stopped and drained": (16, _of(stopPolicy="HoldAndDrain"), {"starts": [THEIRS], "evicts": [RUNS]}),
    "stopped": (24, _of(24, stopPolicy="Hold"), {"waits": [MORE]}),
    "quota to borrow behind which there are no nodes": (16, [cluster_queue("team-c", 8)], {}),
    "with a team whose namespace is new": (
        16,
        [
            *_of(24),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}},
            local_queue("main", "team-a", "new"),
        ],
        {"starts": [MORE]},
    ),
}


@pytest.mark.parametrize("name", FORESEEN)
async def test_foresee(world: World, tmp_path: Path, name: str) -> None:
    a, given, wanted = FORESEEN[name]
    await contested(world, a)
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all([{**one, "status": {}} for one in given]))
    seen = json.loads((await run(world, tmp_path, "foresee", str(file), "-o", "json")).stdout)
    assert {
        what: [{key: row[key] for key in MORE} for row in rows]
        for what, rows in seen.items()
        if rows is not True and rows
    } == wanted
    shown = (await run(world, tmp_path, "foresee", str(file))).stdout
    for rows in wanted.values():
        for row in rows:
            assert re.search(rf"{row['name']} +{row['clusterQueue']} +\d+ nvidia.com/gpu", shown), shown
    assert ("No job would start or be evicted" in shown) is (not wanted)
    kept = await world.client.get(f"{CLUSTER_QUEUES}/team-a")
    assert kept["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] == a


async def test_foresee_of_a_stop_has_leave_what_waits_for_its_checks(world: World, tmp_path: Path) -> None:
    await contested(world, admitted=False)
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all(_of(stopPolicy="Hold")))
    seen = json.loads((await run(world, tmp_path, "foresee", str(file), "-o", "json")).stdout)
    named = {what: [row["name"] for row in seen[what]] for what in ("starts", "evicts")}
    assert named == {"starts": [THEIRS["name"]], "evicts": [RUNS["name"]]}


async def test_foresee_says_what_is_refused_and_what_may_not_be_seen(world: World, tmp_path: Path) -> None:
    await contested(world)
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump(own("ClusterQueue", "team-a", {"resourceGroups": "none"})))
    assert "clusterqueue/team-a: " in (await run(world, tmp_path, "foresee", str(file), code=3)).stdout
    file.write_text(yaml.safe_dump(job("train")))
    assert "job/train: not a quota object" in (await run(world, tmp_path, "foresee", str(file), code=3)).stdout
    file.write_text(yaml.safe_dump_all(_of(24)))
    world.denied = {"pods*"}
    told = await run(world, tmp_path, "foresee", str(file), code=4)
    assert "you may not see pods of all namespaces, which decide about it" in told.stderr


def mounting(name: str, *claims: str, pods: int = 1) -> dict[str, Any]:
    made = job(name, pods=pods)
    mounts = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": one}} for i, one in enumerate(claims)]
    made["spec"]["template"]["spec"]["volumes"] = mounts
    return made


async def storage(world: World) -> None:
    """A claim on a volume that only n2 reaches; one that is not bound, and one for a class that waits."""
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}
    has = {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow"}
    volume = {**has, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    volume["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}
    await world.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": volume})
    for name, waits in (("slow", "Immediate"), ("later", "WaitForFirstConsumer")):
        meta = {"name": name}
        made = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": meta, "provisioner": "csi"}
        await world.put({**made, "volumeBindingMode": waits})
    wants = {**has, "resources": {"requests": {"storage": "1Gi"}}}
    notes = {"pv.kubernetes.io/bind-completed": "yes"}
    for name, spec in (
        ("bound", {**wants, "volumeName": "pv"}),
        ("unbound", wants),
        ("first", {**wants, "storageClassName": "later"}),
    ):
        meta = {"name": name, "namespace": "ml", "annotations": notes if name == "bound" else {}}
        await world.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})


MOUNTED: dict[str, tuple[tuple[str, ...], int, int, str, str]] = {
    "bound": (("bound",), 1, 0, "", ""),
    "bound, for two": (("bound",), 2, 1, "NeverFitsNodes", "2 kept out by node affinity or volumes"),
    "missing": (("bound", "none"), 1, 1, "WaitingForVolume", "PersistentVolumeClaim none does not exist"),
    "not bound": (("unbound",), 1, 1, "WaitingForVolume", "PersistentVolumeClaim unbound is not bound yet"),
    "bound by the first pod": (("first",), 1, 0, "", ""),
}


@pytest.mark.parametrize("name", MOUNTED)
async def test_submit_looks_at_volumes(world: World, tmp_path: Path, name: str) -> None:
    claims, pods, code, detail, message = MOUNTED[name]
    await alone(world)
    await storage(world)
    file = written(tmp_path, mounting("train", *claims, pods=pods))
    (seen,) = json.loads((await run(world, tmp_path, "submit", file, "-o", "json", code=code)).stdout)
    assert seen["detail"] == detail
    assert message in seen["message"]
    if name == "bound":
        assert seen["where"][0]["nodes"] == [["n2", 1]]


async def claim_of_one_pod(world: World) -> None:
    """A claim that is bound, and not usable by two pods."""
    meta = {"name": "alone", "namespace": "ml", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    wants = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "one"}
    await world.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": wants})
    has = {"accessModes": ["ReadWriteOncePod"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}
    await world.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "one"}, "spec": has})


async def using(world: World, *, node: str = "n2", phase: str = "Running", namespace: str = "ml") -> None:
    """Somebody's pod that names this claim."""
    mounts = [{"name": "v", "persistentVolumeClaim": {"claimName": "alone"}}]
    spec = {"containers": [{"name": "c", "image": "x"}], "volumes": mounts, **({"nodeName": node} if node else {})}
    meta = {"name": "web", "namespace": namespace}
    await world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}})


@pytest.mark.parametrize(
    ("more", "waits"),
    [({}, True), ({"node": ""}, False), ({"phase": "Succeeded"}, False), ({"namespace": "web"}, False)],
    ids=["used", "not bound", "done", "in another namespace"],
)
async def test_submit_waits_for_a_claim_of_one_pod_that_a_pod_uses(
    world: World, tmp_path: Path, more: dict[str, Any], waits: bool
) -> None:
    await alone(world)
    await claim_of_one_pod(world)
    await using(world, **more)
    file = written(tmp_path, mounting("train", "alone"))
    (seen,) = json.loads((await run(world, tmp_path, "submit", file, "-o", "json", code=int(waits))).stdout)
    assert (seen["answer"], seen["detail"]) == (("waits", "WaitingForVolume") if waits else ("starts", ""))
    assert ("PersistentVolumeClaim alone is ReadWriteOncePod, and Pod web uses it" in seen["message"]) is waits


@pytest.mark.parametrize("create", [[], ["--create"]])
async def test_submit_of_two_that_name_a_claim_of_one_pod(world: World, tmp_path: Path, create: list[str]) -> None:
    """The first has it."""
    await alone(world)
    await claim_of_one_pod(world)
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([mounting("a", "alone"), mounting("b", "alone")]))
    code = 0 if create else 1
    seen = json.loads((await run(world, tmp_path, "submit", str(file), "-o", "json", *create, code=code)).stdout)
    assert [(one["answer"], one["detail"]) for one in seen] == [("starts", ""), ("waits", "WaitingForVolume")]
    assert "PersistentVolumeClaim alone is ReadWriteOncePod, and Workload job-a-" in seen[1]["message"]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("by", ["claim", "anti-affinity", "nothing"])
async def test_foresee_of_what_one_that_is_evicted_kept_from_another(
    world: World, tmp_path: Path, by: str, stops: bool
) -> None:
    """A claim of one pod, and the whole cluster, which is one domain here: it goes on with the pod."""
    await fleet(world)
    await claim_of_one_pod(world)
    await world.put(own("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}))
    for queue in _of(8):
        await world.put(queue)
        name = queue["metadata"]["name"]
        await world.put(local_queue(name, name))
    runs, theirs = mounting("runs", *(["alone"] if by == "claim" else [])), mounting("theirs", "alone")
    if by == "anti-affinity":
        theirs["spec"]["template"] |= apart("theirs", key="gpu")["spec"]["template"]
        runs["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    status = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", pods=1)}
    held = await world.put(workload(await world.put({**runs, "status": STARTED}), status))
    await with_workload(world, theirs, dict(PENDING), queue="team-b")
    marks = {NAMES.managed_label: "true", NAMES.workload_uid_label: held["metadata"]["uid"]}
    meta = {"name": "runs-0", "namespace": "ml", "labels": {"app": "x", **marks}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Running"}}
    await world.put({**pod, "spec": {**runs["spec"]["template"]["spec"], "nodeName": "n1"}})
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump_all(_of(8, **({"stopPolicy": "HoldAndDrain"} if stops else {}))))
    seen = json.loads((await run(world, tmp_path, "foresee", str(file), "-o", "json")).stdout)
    named = {what: [row["name"] for row in seen[what]] for what in ("starts", "evicts", "waits")}
    waited = stops and by != "nothing"  # else it starts as it is
    assert named == {"starts": ["Job ml/theirs"] * waited, "evicts": ["Job ml/runs"] * stops, "waits": []}


async def test_submit_looks_at_the_volumes_of_those_in_front(world: World, tmp_path: Path) -> None:
    """Who waits for a claim takes no room; where claims elsewhere may not be seen, nothing is known of it."""
    await alone(world)
    await storage(world)
    made = await world.put(mounting("front", "none", pods=3))
    await world.put(workload(made, {}, priority=10))
    file = written(tmp_path, job("train", pods=3))
    assert "would start now" in (await run(world, tmp_path, "submit", file)).stdout
    world.denied = {"persistentvolumes"}
    await run(world, tmp_path, "submit", file, code=1)


async def test_submit_with_claims_and_the_rights_of_a_tenant(world: World, tmp_path: Path) -> None:
    """Claims of one's own namespace may be seen, volumes not; or not even these."""
    await alone(world)
    await storage(world)
    world.denied = {"persistentvolumes", "storageclasses", "persistentvolumeclaims*"}
    told = await run(world, tmp_path, "submit", written(tmp_path, mounting("train", "bound")), code=4)
    assert "you may not see persistentvolumes, storageclasses of the whole cluster" in told.stdout
    none = await run(world, tmp_path, "submit", written(tmp_path, mounting("train", "none")), code=1)
    assert "PersistentVolumeClaim none does not exist in namespace ml" in none.stdout
    world.denied = {"persistentvolumeclaims"}
    blind = await run(world, tmp_path, "submit", written(tmp_path, mounting("train", "none")), code=4)
    assert "you may not see persistentvolumeclaims" in blind.stdout


async def test_submit_where_nothing_says_how_a_class_of_devices_is_counted(world: World, tmp_path: Path) -> None:
    await alone(world)
    made = job("train", gpus=0)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {f"{OF_DEVICE_CLASS}gpu": "1"}}
    told = await run(world, tmp_path, "submit", written(tmp_path, made), code=4)
    assert "you may not see deviceclasses, which say what devices its pods ask for" in told.stdout


WHOSE: dict[str, tuple[str, ...] | None] = {
    "nobody's": None,
    "of a gang that is gone": None,
    "of one that gave its nodes back": None,
    "of one on an elastic flavor": (),
    "of one within racks": ("rack",),
    "of one that is where its reservation says": ("kubernetes.io/hostname",),
}
"""A pod, and the levels of the domains that its gang holds."""


async def standing(world: World, whose: str) -> None:
    """A pod with a label on n2."""
    levels, meta = WHOSE[whose], {"name": "web", "namespace": "ml", "labels": {"app": "x"}}
    spec: dict[str, Any] = {"nodeName": "n2", "containers": [{"name": "c", "image": "x"}]}
    if whose != "nobody's":
        meta["labels"] |= {NAMES.managed_label: "true", NAMES.workload_uid_label: "gone"}
    if whose not in ("nobody's", "of a gang that is gone"):
        made = job("runs", pods=1, gpus=0, status=STARTED)
        made["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
        given = admission("n2" if levels == ("kubernetes.io/hostname",) else "r1", pods=1, gpus=0)
        placed = given["podSetAssignments"][0].pop("topologyAssignment")
        if levels:
            given["podSetAssignments"][0]["topologyAssignment"] = {**placed, "levels": levels}
        held = {"conditions": [RESERVED, ADMITTED_], "admission": {**given, "clusterQueue": "all"}}
        stored = await world.put(workload(await world.put(made), {} if levels is None else held))
        meta["labels"][NAMES.workload_uid_label] = stored["metadata"]["uid"]
    if levels == ("kubernetes.io/hostname",):
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pin]}}
        spec["affinity"] = {"nodeAffinity": required}
    await world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


@pytest.mark.parametrize("whose", WHOSE)
async def test_submit_looks_at_pods_of_others_that_its_own_rules_select(
    world: World, tmp_path: Path, whose: str
) -> None:
    await alone(world)
    await standing(world, whose)
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    for rule, pods, code in (("podAntiAffinity", 2, 0), ("podAntiAffinity", 3, 1), ("podAffinity", 1, 0)):
        made = job("train", pods=pods)
        made["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
        required = {rule: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        made["spec"]["template"]["spec"]["affinity"] = required
        file = written(tmp_path, made)
        (seen,) = json.loads((await run(world, tmp_path, "submit", file, "-o", "json", code=code)).stdout)
        nodes = {node for place in seen["where"] for node, _ in place["nodes"]}
        assert nodes == ({"n2"} if rule == "podAffinity" else set() if code else {"n1", "n4"})
        assert ("1 kept out by node affinity or pods of others" in seen["message"]) == bool(code)


async def test_submit_of_a_jobset_whose_claims_are_not_made_yet(world: World, tmp_path: Path) -> None:
    await alone(world)
    await storage(world)
    one = template(8)
    one["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/s"}]
    part = {"name": "w", "template": {"spec": {"parallelism": 1, "completions": 1, "template": one}}}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "later",
    }
    meta = {"name": "set", "namespace": "ml", "labels": {NAMES.queue_label: "team-a"}}
    made: dict[str, Any] = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
    for name, code in (("later", 0), ("slow", 1)):
        made_claim = {"metadata": {"name": "scratch"}, "spec": {**spec, "storageClassName": name}}
        made["spec"] = {"replicatedJobs": [part], "volumeClaimPolicies": [{"templates": [made_claim]}]}
        told = await run(world, tmp_path, "submit", written(tmp_path, made), code=code)
        assert ("scratch-set is not bound yet (StorageClass slow" in told.stdout) == (name == "slow")


JOBS_REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a request without a limit": ({}, {"requests": {GPU: "8"}}, "Limit must be set for non overcommitable resources"),
    "no such limit": ({"backoffLimit": -1}, {"limits": {GPU: "8"}}, "spec.backoffLimit"),
    "no completions": ({"completions": None}, {"limits": {GPU: "8"}}, "spec.completions: Required value"),
    "nothing": ({}, {"limits": {GPU: "8"}}, ""),
    "may not be asked": ({"backoffLimit": -1}, {"limits": {GPU: "8"}}, ""),
    "a Job of that name": ({}, {"limits": {GPU: "8"}}, '"set-w-0" already exists'),
}


@pytest.mark.parametrize("name", JOBS_REFUSED)
async def test_submit_of_a_jobset_whose_jobs_would_be_refused(world: World, tmp_path: Path, name: str) -> None:
    """Its controller would make none, and it would hold its room for nothing."""
    more, resources, message = JOBS_REFUSED[name]
    await alone(world)
    if "exists" in message:
        await world.put(job("set-w-0", queue=""))
    world.denied = {"POST jobs"} if name == "may not be asked" else set()
    one = template(8)
    one["spec"]["containers"][0]["resources"] = resources
    of_job = {"parallelism": 1, "completions": 1, "completionMode": "Indexed", "template": one, **more}
    part = {"name": "w", "template": {"spec": {key: said for key, said in of_job.items() if said is not None}}}
    meta = {"name": "set", "namespace": "ml", "labels": {NAMES.queue_label: "team-a"}}
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
    file = written(tmp_path, {**made, "spec": {"replicatedJobs": [part]}})
    told = await run(world, tmp_path, "submit", file, code=3 if message else 0)
    shown = " ".join(told.stdout.split())
    assert ("JobSet's controller could not make Job set-w-0: " in shown) == bool(message)
    assert message in shown


async def test_submit_by_the_rules_of_a_configuration_file(world: World, tmp_path: Path) -> None:
    """What the file leaves out of quota is no reason to wait."""
    await alone(world)
    made = job("train")
    for amounts in made["spec"]["template"]["spec"]["containers"][0]["resources"].values():
        amounts["example.com/licence"] = "1"
    for node in ("n1", "n2"):
        held = await world.client.get(f"/api/v1/nodes/{node}")
        held["status"]["allocatable"]["example.com/licence"] = "8"
        await world.client.put(f"/api/v1/nodes/{node}/status", held)
    file, config = written(tmp_path, made), tmp_path / "muster.yaml"
    head = {"apiVersion": "config.muster.dev/v1beta1", "kind": "Configuration"}
    config.write_text(yaml.safe_dump({**head, "resources": {"excludeResourcePrefixes": ["example.com/"]}}))
    assert "example.com/licence" in (await run(world, tmp_path, "submit", file, code=1)).stdout
    assert "would start now" in (await run(world, tmp_path, "submit", file, "--config", str(config))).stdout


# ---------------------------------------------------------------- release-all


async def test_release_all(world: World, tmp_path: Path) -> None:
    await lab(world)
    await with_workload(world, job("waits"), dict(PENDING))
    paused = job("paused")
    paused["metadata"]["labels"][NAMES.pause_label] = "true"
    await world.put(paused)
    await world.put(job("runs", status=STARTED))
    await world.put(job("foreign", queue=""))
    # Held without a queue's name: where all jobs are queued, where they were, and by a label that says nothing.
    await with_workload(world, job("unlabelled", queue=""), dict(PENDING))
    for name, label, value in (("left", NAMES.ungoverned_label, "true"), ("empty", NAMES.queue_label, "")):
        without = job(name, queue="")
        without["metadata"]["labels"] = {label: value}
        await world.put(without)
    kept = own("ResourceFlavor", "old", {})
    kept["metadata"]["finalizers"] = [NAMES.finalizer, "example.com/other"]
    await world.put(kept)
    undo = {"for": "w", "forms": ["ranks"], "undo": [[["spec", "template", "spec", "nodeSelector"]]]}
    evicted = job("evicted")
    evicted["metadata"]["annotations"] = {NAMES.inverse_annotation: json.dumps(undo)}
    evicted["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "h100"}
    await world.put(evicted)

    async def suspended() -> dict[str, bool]:
        names = ("waits", "paused", "runs", "foreign", "evicted", "unlabelled", "left", "empty")
        return {name: (await world.client.get(f"{JOBS}/{name}"))["spec"].get("suspend", False) for name in names}

    before = await suspended()
    tried = await run(world, tmp_path, "release-all")
    assert "Dry run" in tried.stdout
    assert await suspended() == before
    done = await run(world, tmp_path, "release-all", "--yes", "--unlabel", "-o", "json")
    rows = {row["subject"]: (row["did"], row["message"]) for row in json.loads(done.stdout)["rows"]}
    assert rows == {
        "job/waits": ("changed", "unsuspended"),
        "job/paused": ("skipped", f"its owner paused it (label {NAMES.pause_label})"),
        "job/runs": ("changed", "runs on"),
        "job/evicted": ("changed", "restored and unsuspended"),
        "job/unlabelled": ("changed", "unsuspended"),
        "job/left": ("changed", "unsuspended"),
        "job/empty": ("changed", "unsuspended"),
        "resourceflavor/old": ("changed", "may be deleted (finalizer taken off)"),
    }
    flavor = await world.client.get(f"/apis/{NAMES.api_version}/resourceflavors/old")
    assert flavor["metadata"]["finalizers"] == ["example.com/other"]
    started = dict.fromkeys(("waits", "evicted", "unlabelled", "left", "empty"), False)
    assert await suspended() == {**before, **started}
    for name in ("left", "empty", "runs", "unlabelled"):
        left = (await world.client.get(f"{JOBS}/{name}"))["metadata"].get("labels", {})
        assert not {NAMES.ungoverned_label, NAMES.queue_label} & left.keys()
    after = await world.client.get(f"{JOBS}/evicted")
    assert "nodeSelector" not in after["spec"]["template"]["spec"]
    assert NAMES.inverse_annotation not in after["metadata"].get("annotations", {})
    assert NAMES.queue_label not in after["metadata"].get("labels", {})


async def test_what_is_only_tried_is_a_dry_run_in_all_that_it_would_write(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab(world)
    await world.client.merge_patch(f"{CLUSTER_QUEUES}/team-b", {"spec": {"stopPolicy": "Hold"}})
    await with_workload(world, job("off"), dict(PENDING), active=False)
    await with_workload(world, job("later"), dict(BACKOFF))
    paused = job("paused")
    paused["metadata"]["labels"][NAMES.pause_label] = "true"
    await world.put(paused)
    started = {NAMES.inverse_annotation: json.dumps({"for": "w", "forms": [], "undo": []})}
    runs, evicted = job("runs", status=STARTED), job("evicted", status={"startTime": rfc3339(4_000_000_000)})
    evicted["spec"]["suspend"] = True
    for one in (runs, evicted):
        one["metadata"]["annotations"] = started
    await with_workload(world, runs, {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")})
    await world.put(evicted)
    pod = {**template(8), "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {"name": "runs-0", "namespace": "ml", "labels": {NAMES.workload_uid_label: "w"}}
    pod["spec"]["schedulingGates"] = [{"name": NAMES.topology_gate}]
    await world.put(pod)
    kept = own("ResourceFlavor", "old", {})
    kept["metadata"]["finalizers"] = [NAMES.finalizer]
    await world.put(kept)
    (tmp_path / "quota.yaml").write_text(yaml.safe_dump(own("ResourceFlavor", "a100", {})))
    monkeypatch.chdir(tmp_path)
    tried: set[str] = set()
    written: list[str] = []

    def told(request: aiohttp.web.Request) -> aiohttp.web.Response | None:
        if request.method != "GET" and not request.path.endswith("reviews"):
            at = request.path.partition("/v1")[2].partition("/")[2].removeprefix("namespaces/")
            what = f"{request.method} {at}"
            tried.add(what) if request.query.get("dryRun") == "All" else written.append(what)
            if what == "PATCH ml/jobs/evicted" and "json-patch" in request.content_type:
                # As 1.35 and older say while the start time is set, and to have tried to clear it clears nothing.
                no = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "template: field is immutable"}
                return aiohttp.web.json_response(no, status=422)
        return None

    world.sandbox.faults.append(told)
    asked: dict[str, set[str]] = {
        "stop team-a --drain --dry-run": {"PATCH clusterqueues/team-a"},
        "resume team-b --dry-run": {"PATCH clusterqueues/team-b"},
        "requeue off -n ml --dry-run": {"PATCH ml/workloads/job-off"},
        "requeue later -n ml --dry-run": {"PATCH ml/workloads/job-later/status"},
        "requeue paused -n ml --dry-run": {"PATCH ml/jobs/paused"},
        "requeue runs -n ml --dry-run": {"PATCH ml/jobs/runs"},
        "create queue d --quota h100:cpu=1 --for ml --dry-run": {"PATCH clusterqueues/d", "PATCH ml/localqueues/main"},
        "import quota.yaml": {"PATCH resourceflavors/a100"},
        "release-all --unlabel": {
            *(f"PATCH ml/jobs/{name}" for name in ("off", "later", "runs", "evicted")),
            "PATCH ml/jobs/evicted/status",
            "PATCH ml/pods/runs-0",
            "PATCH resourceflavors/old",
        },
    }
    for given, would in asked.items():
        tried.clear()
        await run(world, tmp_path, *given.split())
        assert (tried, written) == (would, []), given
    world.denied = {"PATCH workloads"}
    tried.clear()
    await run(world, tmp_path, "requeue", "off", "-n", "ml", "--dry-run")
    assert (tried, written) == ({"DELETE ml/workloads/job-off"}, [])


async def test_release_all_says_what_it_has_done_before_nobody_answered(world: World, tmp_path: Path) -> None:
    await lab(world)
    await with_workload(world, job("waits"), dict(PENDING))
    gone: list[str] = []

    def away(request: aiohttp.web.Request) -> aiohttp.web.Response | None:
        if request.path.endswith("/jobs/waits") and request.method == "PATCH":
            gone.append(request.path)
            return None
        return aiohttp.web.Response(status=503) if gone else None

    world.sandbox.faults.append(away)
    told = (await run(world, tmp_path, "release-all", "--yes", code=1)).stdout
    assert "job/waits -n ml changed: unsuspended" in told
    assert "quota/* refused: not tried, for nobody answers" in told


async def test_release_all_refuses_a_running_job_whose_later_pods_would_wait_for_ever(
    world: World, tmp_path: Path
) -> None:
    """Its template has the gate, and cannot be changed while it runs; suspended, it is given back as any other."""
    at = ["spec", "template", "spec", "schedulingGates"]
    runs = job("sweep", status=STARTED)
    runs["spec"]["completionMode"] = "NonIndexed"
    runs["spec"]["template"]["spec"]["schedulingGates"] = [{"name": NAMES.topology_gate}]
    undo = {"for": "w", "forms": ["gates"], "undo": [[at]]}
    runs["metadata"]["annotations"] = {NAMES.inverse_annotation: json.dumps(undo)}
    await world.put(runs)

    async def tried(code: int) -> tuple[str, str]:
        done = await run(world, tmp_path, "release-all", "--yes", "-o", "json", code=code)
        (row,) = json.loads(done.stdout)["rows"]
        return row["did"], row["message"]

    did, said = await tried(1)
    assert did == "refused"
    assert said.startswith("runs on; but pods that it makes later wait behind")
    assert "suspend it and run this again" in said
    await world.client.merge_patch(f"{JOBS}/sweep", {"spec": {"suspend": True}})
    stopped = {"active": 0, "ready": 0, "conditions": [condition("Suspended", True, "JobSuspended", "Job suspended")]}
    await world.client.merge_patch(f"{JOBS}/sweep/status", {"status": stopped})
    assert await tried(0) == ("changed", "restored and unsuspended")
    after = await world.client.get(f"{JOBS}/sweep")
    assert "schedulingGates" not in after["spec"]["template"]["spec"]
    assert after["spec"]["suspend"] is False


async def test_release_all_waits_for_the_controller_to_go(world: World, tmp_path: Path) -> None:
    await lab(world)
    await world.put(job("waits"))
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    lease = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": rfc3339(4_000_000_000_000)}
    meta = {"name": "muster-controller", "namespace": "muster-system"}
    await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease})
    refused = await run(world, tmp_path, "release-all", "--yes", code=1)
    assert "scale deployment muster-controller --replicas=0" in refused.stderr
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"] is True


async def test_release_all_says_how_long_a_controller_that_was_removed_still_counts(
    world: World, tmp_path: Path
) -> None:
    """With the release go the rights by which it would have given its Lease up."""
    await lab(world)
    await world.put(job("waits"))
    renewed = rfc3339(world.client.clock.now() - 10_000)
    spec = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": renewed}
    meta = {"name": NAMES.lease_name, "namespace": "web"}
    await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})
    refused = await run(world, tmp_path, "release-all", "--yes", code=1)
    (seconds,) = re.findall(r"a controller leads \(replica\).* ask again in (\d+) s", refused.stderr)
    assert 0 < int(seconds) <= 36


@pytest.mark.parametrize("ahead_s", [600, -600])
@pytest.mark.parametrize("group", [[], ["--api-group", NAMES.group]], ids=["looked for", "named"])
@pytest.mark.parametrize(("renewed_s", "leads"), [(5, True), (120, False)])
async def test_whether_somebody_leads_does_not_hang_on_the_clock_of_who_asks(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: int,
    group: list[str],
    renewed_s: int,
    leads: bool,
) -> None:
    await lab(world)
    await world.put(job("waits"))
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    renewed = rfc3339(world.client.clock.now() - renewed_s * 1000)
    spec = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": renewed}
    meta = {"name": NAMES.lease_name, "namespace": "muster-system"}
    await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + ahead_s * 10**9)
    seen = await run(world, tmp_path, "queues", *group)
    assert ("No controller leads" in seen.stdout + seen.stderr) is not leads
    await run(world, tmp_path, "release-all", "--yes", *group, code=int(leads))
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"] is leads


LEASES = {"leads": 4_000_000_000_000, "gone": 1_000_000_000_000}
ELSEWHERE: dict[str, tuple[str, set[str], list[str], int, str]] = {
    "leads elsewhere": ("leads", set(), [], 1, "kubectl -n web scale deployment"),
    "leads elsewhere, whatever was named": ("leads", set(), ["ml"], 1, "kubectl -n web scale deployment"),
    "somebody says so elsewhere": ("leads", set(), [], 1, "it: kubectl -n web delete lease muster-controller"),
    "gone elsewhere": ("gone", set(), [], 0, "No controller leads: Lease web/muster-controller was last renewed"),
    "none": ("", set(), [], 0, "No controller leads: there is no Lease muster-system/muster-controller"),
    "none where it is guessed to be": ("leads", {"leases*"}, [], 1, "installed in with --controller-namespace"),
    "none where it is said to be": ("", {"leases*"}, ["ml"], 0, "No controller leads: there is no Lease ml/"),
    "gone where it is said to be": ("gone", {"leases*"}, ["web"], 0, "No controller leads: Lease web/"),
    "leads where it is said to be": ("leads", {"leases*"}, ["web"], 1, "kubectl -n web scale deployment"),
    "may not be seen": ("gone", {"leases"}, [], 1, "or you may not see whether"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
async def test_release_all_looks_for_who_leads_in_all_namespaces(world: World, tmp_path: Path, name: str) -> None:
    lease, denied, named, code, said = ELSEWHERE[name]
    await lab(world)
    await world.put(job("waits"))
    if lease:
        spec = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": rfc3339(LEASES[lease])}
        meta = {"name": NAMES.lease_name, "namespace": "web"}
        await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})
    world.denied = denied
    given = [part for one in named for part in ("--controller-namespace", one)]
    tried = await run(world, tmp_path, "release-all", *given)
    done = await run(world, tmp_path, "release-all", "--yes", *given, code=code)
    assert said in done.stdout + done.stderr
    assert said in " ".join(tried.stdout.split())
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"] is bool(code)


@pytest.mark.parametrize("denied", ["GET jobs", "GET jobsets", "GET localqueues"])
async def test_release_all_changes_nothing_where_something_is_hidden(world: World, tmp_path: Path, denied: str) -> None:
    await lab(world)
    await world.put(job("waits"))
    flavor = f"/apis/{NAMES.api_version}/resourceflavors/h100"
    await world.client.merge_patch(flavor, {"metadata": {"finalizers": [NAMES.finalizer]}})
    world.denied = {denied}
    for more in ([], ["--yes"]):
        told = await run(world, tmp_path, "release-all", *more, code=4)
        assert f"you may not see {denied.removeprefix('GET ')} of all namespaces" in told.stderr
    world.denied = set()
    assert (await world.client.get(flavor))["metadata"]["finalizers"] == [NAMES.finalizer]
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"] is True


async def test_release_all_does_not_miss_a_kind_that_is_not_served(world: World, tmp_path: Path) -> None:
    """A tenant is refused a kind of which the cluster has never heard, too."""
    await lab(world)
    await world.put(job("waits"))
    world.denied = {"jobsets"}

    def unheard(request: Any) -> Any:
        return aiohttp.web.json_response({"code": 404}, status=404) if request.path.endswith("/v1alpha2") else None

    world.sandbox.faults.append(unheard)
    await run(world, tmp_path, "release-all", "--yes", "-n", "ml")
    assert (await world.client.get(f"{JOBS}/waits"))["spec"]["suspend"] is False


async def test_release_all_refuses_a_gang_whose_pods_may_not_be_seen(world: World, tmp_path: Path) -> None:
    made = job("runs", status=STARTED)
    made["metadata"]["annotations"] = {NAMES.inverse_annotation: json.dumps({"for": "w", "forms": [], "undo": []})}
    await world.put(made)
    world.denied = {"pods"}
    await world.put(job("by-others", status=STARTED))
    told = await run(world, tmp_path, "release-all", "--yes", code=1)
    assert "refused: runs on; you may not see whether its pods wait behind the gate" in told.stdout
    assert "You may not see: pods in namespace ml." in told.stdout
    assert "job/by-others -n ml unchanged: runs on" in told.stdout, "it was not started here: no pod of it has the gate"


# ---------------------------------------------------------------- top, watch, completion


async def busy(world: World) -> None:
    await lab(world)
    await fleet(world)
    await with_workload(world, job("waits"), dict(PENDING))
    started = {"conditions": [RESERVED, ADMITTED_], "admission": admission("n1", "n2")}
    await with_workload(world, job("runs", status=STARTED), started)


async def test_top_on_a_screen_of_a_fixed_size(world: World, tmp_path: Path) -> None:
    await busy(world)
    text = (await run(world, tmp_path, "top")).stdout
    assert len(text.splitlines()) <= 41
    assert re.search(r"ml +job/runs +team-a +running .*n1, n2", text)
    assert re.search(r"team-a +h100 gpu +8 +16 +#{6}-{6}\|", text)
    picture = tmp_path / "top.svg"
    await run(world, tmp_path, "top", "--svg", str(picture))
    told = re.sub(r"&#160;", " ", re.sub(r"<[^>]+>", "", picture.read_text(encoding="utf-8")))
    for part in ("muster top", "queues", "nodes", "jobs", "No controller leads", "team-b", "job/waits", "n3"):
        assert part in told, part
    for wrong in (tmp_path / "none" / "x.svg", picture / "x.svg"):
        assert "there is no folder" in (await run(world, tmp_path, "top", "--svg", str(wrong), code=2)).stderr
    world.denied = {"nodes"}
    assert "You may not see nodes." in (await run(world, tmp_path, "top", "-n", "ml")).stdout


@pytest.mark.parametrize("amount", ["-1", "0", "x"])
def test_nodes_says_how_what_a_pod_takes_is_written(amount: str) -> None:
    told = CliRunner().invoke(cli, ["nodes", "--per-pod", f"cpu=1,{GPU}={amount}"])
    assert told.exit_code == options.BAD_USE
    assert GPU in told.stderr


@pytest.mark.parametrize("asked", [["queues"], ["jobs", "-n", "ml"], ["nodes"], ["why", "waits", "-n", "ml"]])
async def test_watch_asks_again_until_it_is_interrupted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    await busy(world)
    monkeypatch.setattr(options, "EVERY_S", 0.01)
    show, shown = tell.show, 0

    def thrice(console: Any, what: Any) -> None:
        nonlocal shown
        shown += 1
        show(console, what)
        if shown == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(tell, "show", thrice)
    seen = (await run(world, tmp_path, *asked, "--watch", code=options.INTERRUPTED)).stdout
    once = (await run(world, tmp_path, *asked, code=1 if "why" in asked else 0)).stdout
    for line in once.splitlines():
        assert seen.count(line) >= 3, (line, seen)


@pytest.mark.parametrize("asked", [["queues", "--watch"], ["top"]])
async def test_who_watches_goes_on_when_the_api_server_is_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """A control plane that is upgraded is away for longer than one request is repeated."""
    await busy(world)
    monkeypatch.setattr(options, "EVERY_S", 0.01)
    monkeypatch.setattr(questions, "EVERY_S", 0.01)
    looks, read, screen = 0, Ask.queues, io.StringIO()

    async def broken(self: Ask, *given: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise Unavailable(503, "ServiceUnavailable", "it is upgraded")
        if looks == 4:
            raise KeyboardInterrupt
        return await read(self, *given)

    monkeypatch.setattr(Ask, "queues", broken)
    watched = tell._Console(file=screen, force_terminal=True, width=160, height=40, legacy_windows=False)
    monkeypatch.setattr(tell, "console", lambda **_: watched)
    told = await run(world, tmp_path, *asked, code=options.INTERRUPTED)
    assert looks == 4
    assert "it is upgraded" in told.stderr + screen.getvalue()


async def test_who_leads_is_read_where_the_controller_lives(world: World, tmp_path: Path) -> None:
    await lab(world)
    lease = {"holderIdentity": "replica", "leaseDurationSeconds": 15, "renewTime": rfc3339(4_000_000_000_000)}
    meta = {"name": NAMES.lease_name, "namespace": "web"}
    await world.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease})
    assert "No controller leads" in (await run(world, tmp_path, "jobs", "-n", "ml")).stdout
    elsewhere = await run(world, tmp_path, "jobs", "-n", "ml", "--controller-namespace", "web")
    assert "No controller leads" not in elsewhere.stdout


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["why", "-n", "ml", ""], {"waits", "runs"}),
        (["why", "-n", "ml", "w"], {"waits"}),
        (["stop", "-n", "ml", "team"], {"team-a", "team-b"}),
        (["resume", "-n", "ml", "local"], {"localqueue/team-a"}),
        (["jobs", "-n", ""], {"ml", "web", "default", "kube-system"}),
        (["queues", "-o", "j"], {"json"}),
        (["st"], {"stop"}),
    ],
)
async def test_completion_from_the_cluster(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], found: set[str]
) -> None:
    monkeypatch.setattr(options, "TAB_S", 60.0)  # a person waits for three seconds, a busy machine for longer
    await busy(world)
    kubeconfig = ["--kubeconfig", str(tmp_path / "kubeconfig")] if len(typed) > 1 else []
    *before, last = typed
    given = [before[0], *kubeconfig, *before[1:]] if before else []
    shell = ShellComplete(cli, {}, "muster", "_MUSTER_COMPLETE")
    items = await asyncio.to_thread(shell.get_completions, given, last)
    assert {item.value for item in items} & found == found
    assert all(item.value.startswith(last) for item in items)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "kubeconfig does not hold clusters, users and contexts"),
        ("- apiVersion: v1\n", "kubeconfig does not hold clusters, users and contexts"),
        ("apiVersion: v1\nkind: Config\n", "Expected key current-context"),
        (None, "kubeconfig"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_told_in_a_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "kubeconfig").write_text(text)
    result = CliRunner().invoke(cli, ["queues", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert result.exit_code == 4
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("muster: no usable kubeconfig: ")
    assert said in result.stderr


async def test_completion_knows_the_contexts_of_all_kubeconfigs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl reads them: together, without those that are not there."""
    for name in ("lab", "plant"):
        (tmp_path / name).write_text(yaml.safe_dump({"contexts": [{"name": f"at-{name}"}, {"name": "shared"}]}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(str(tmp_path / name) for name in ("lab", "none", "plant")))
    items = ShellComplete(cli, {}, "muster", "_MUSTER_COMPLETE").get_completions(["why", "--context"], "")
    assert [item.value for item in items] == ["at-lab", "shared", "at-plant"]


async def test_completion_is_silent_where_there_is_no_cluster(tmp_path: Path) -> None:
    shell = ShellComplete(cli, {}, "muster", "_MUSTER_COMPLETE")
    given = ["why", "--kubeconfig", str(tmp_path / "none")]
    assert await asyncio.to_thread(shell.get_completions, given, "") == []


async def test_quota_of_pods_is_summed_up_as_it_is_held_and_as_it_is_asked_for(world: World, tmp_path: Path) -> None:
    """Of who waits in the same LocalQueue; in another there may be none of it."""
    await lab(world)
    held = admission("n1", "n2")
    held["podSetAssignments"][0]["flavors"]["pods"] = "h100"
    held["podSetAssignments"][0]["resourceUsage"]["pods"] = "2"
    await with_workload(world, job("runs", status=STARTED), {"conditions": [RESERVED, ADMITTED_], "admission": held})
    await with_workload(world, job("waits", pods=3), dict(PENDING))
    await with_workload(world, job("elsewhere", queue="other", pods=4), dict(PENDING), queue="other")
    (row,) = json.loads((await run(world, tmp_path, "jobs", "-n", "ml", "--by", "namespace", "-o", "json")).stdout)[
        "rows"
    ]
    assert [(one["held"], one["asked"]) for one in row["amounts"] if one["resource"] == "pods"] == [(2, 3)]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("namespace", {"ml": (4, 1, 40, 16, 16), "web": (1, 0, 8, 8, 0)}),
        ("queue", {"ml/team-a": (4, 1, 40, 16, 16), "web/team-b": (1, 0, 8, 8, 0)}),
        ("team", {"": (2, 0, 16, 16, 0), "red": (2, 1, 24, 8, 16), "blue": (1, 0, 8, 0, 0)}),
    ],
)
async def test_jobs_by_what_they_have_in_common(
    world: World, tmp_path: Path, by: str, expected: dict[str, tuple[int, ...]]
) -> None:
    """One waits, one runs, one that has no queue label does, one starts, one waits for checks and one has finished."""
    await lab(world)

    def made(name: str, team: str = "", namespace: str = "ml", queue: str = "team-a", **more: Any) -> dict[str, Any]:
        out = job(name, queue, **more)
        out["metadata"]["namespace"] = namespace
        out["metadata"]["labels"] |= {"team": team} if team else {}
        return out

    two, one = admission("n1", "n2"), admission("n3", pods=1)
    held = {"conditions": [RESERVED, ADMITTED_]}
    await with_workload(world, made("waits", "red"), dict(PENDING))
    await with_workload(world, made("runs", "red", status=STARTED), {**held, "admission": two})
    await with_workload(world, made("governed", "blue", queue="", pods=1, status=STARTED), {**held, "admission": one})
    await with_workload(world, made("starts", "red"), {**held, "admission": one})
    await with_workload(world, made("checked"), {"conditions": [RESERVED], "admission": one})
    abroad = made("abroad", namespace="web", queue="team-b")
    await with_workload(world, abroad, {"conditions": [RESERVED], "admission": one}, queue="team-b")
    ended = condition("Finished", True, "Succeeded", "It is done")
    await with_workload(world, made("ended"), {"conditions": [RESERVED, ADMITTED_, ended], "admission": two})
    answer = json.loads((await run(world, tmp_path, "jobs", "-A", "--by", by, "-o", "json")).stdout)
    found = {}
    for row in answer["rows"]:
        (gpus,) = [one for one in row["amounts"] if one["resource"] == GPU]
        found[row["who"]] = (row["holding"], row["waiting"], gpus["held"], gpus["idle"], gpus["asked"])
    assert found == expected
    text = (await run(world, tmp_path, "jobs", "-A", "--by", by)).stdout
    for who, numbers in expected.items():
        holding, waiting_, *amounts = map(str, numbers)
        assert re.search(rf"{re.escape(who) or '.without.'} +{holding} +{waiting_} +{GPU} +{' +'.join(amounts)}", text)
