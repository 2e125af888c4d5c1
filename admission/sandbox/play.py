"""A day of three teams on 16 nodes with 8 GPUs each, played in under a minute: what `make demo` shows.

The controller is the real one, in a process of its own, and talks HTTP to the cluster: the sandbox, or a real control
plane. Only run times are scaled (a day takes `seconds`); every timestamp is real. What is asserted at the end is read
from the objects and from a watch of every pod, not from the controller:

    no partial gang      whenever a gang ran, all of its pods got their nodes
    no overcommit        at no moment did the pods of a node ask for more GPUs than it has
    everything finished  every job, among them those that were evicted and those on the node that died
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from admission.api.kinds import validate_object
from admission.kube.client import AlreadyExists, ApiError, Client, Kind, NotFound, Unavailable
from admission.kube.informer import Informer
from admission.names import ADMITTED, EVICTED, FINISHED, Names

NODES, GPUS = 16, 8
GPU = "nvidia.com/gpu"
NAMES = Names()
SOURCES = Path(__file__).resolve().parents[2]
CONFIG = SOURCES / "config"
"""What holds and pins where the API server has policies; the sandbox has none, and the controller's webhook serves."""
RUN_FOR = "pod-complete.stage.kwok.x-k8s.io/delay"
TEAMS = {"llm": 64, "vision": 32, "speech": 32}
"""Team -> nominal GPUs; 128 in all."""
COLOURS = {"llm": "cyan", "vision": "magenta", "speech": "yellow"}
NODE_DIES_AT = 15.0
MADE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Gang:
    """One job of the day. Hours are hours of the day played; `pods` of `gpus` GPUs each run `hours`."""

    at: float
    team: str
    name: str
    pods: int
    hours: float
    gpus: int = 8
    kind: str = "Job"


DAY: tuple[Gang, ...] = (
    Gang(0.0, "llm", "pretrain-1", 4, 7),
    Gang(0.0, "llm", "pretrain-2", 4, 8),
    Gang(0.2, "speech", "asr-large", 4, 6),
    Gang(0.5, "llm", "finetune-1", 2, 7),
    Gang(0.8, "llm", "finetune-2", 2, 7),
    Gang(1.0, "speech", "tts-sweep", 2, 4),
    Gang(1.5, "llm", "eval-suite", 3, 3, kind="JobSet"),
    Gang(3.0, "speech", "asr-small", 1, 5, gpus=4),
    Gang(4.0, "vision", "segment-1", 2, 5),
    Gang(4.2, "vision", "segment-2", 2, 5),
    Gang(7.0, "llm", "pretrain-3", 6, 5),
    Gang(7.5, "speech", "diarize", 2, 4, gpus=4),
    Gang(8.0, "vision", "detect", 3, 4, kind="JobSet"),
    Gang(9.0, "llm", "distill", 2, 4),
    Gang(10.0, "vision", "video-1", 2, 6),
    Gang(10.5, "vision", "video-2", 2, 6),
    Gang(11.0, "speech", "translate", 4, 4),
    Gang(12.0, "llm", "finetune-3", 4, 6),
    Gang(13.0, "vision", "depth", 1, 3, gpus=4),
    Gang(14.0, "llm", "rlhf", 3, 4, kind="JobSet"),
    Gang(15.5, "speech", "keyword", 1, 2, gpus=2),
)


# ---------------------------------------------------------------- objects


def setup_objects() -> list[dict[str, Any]]:
    """What a platform team writes: a flavor, three queues in one cohort, a namespace and a LocalQueue for each team."""

    def ours(kind: str, name: str, spec: dict[str, Any] | None, namespace: str = "") -> dict[str, Any]:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        return {"apiVersion": NAMES.api_version, "kind": kind, "metadata": meta, **({"spec": spec} if spec else {})}

    out = [
        ours("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}),
        ours("Cohort", "lab", {}),
    ]
    for team, gpus in TEAMS.items():
        group = {
            "coveredResources": [GPU, "cpu"],
            "flavors": [
                {
                    "name": "h100",
                    "resources": [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": gpus * 12}],
                }
            ],
        }
        spec = {
            "cohortName": "lab",
            "namespaceSelector": {},
            "resourceGroups": [group],
            "preemption": {"reclaimWithinCohort": "Any"},
        }
        out += [
            ours("ClusterQueue", team, spec),
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}},
            ours("LocalQueue", "main", {"clusterQueue": team}, team),
        ]
    return out


def node_object(number: int) -> dict[str, Any]:
    name = f"gpu-{number:02d}"
    capacity = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"gpu": "h100", "kubernetes.io/hostname": name, "rack": f"r{number // 4}", "type": "kwok"},
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    }


def job_object(gang: Gang, run_for: str) -> dict[str, Any]:
    """The manifest its owner writes: a plain Job or JobSet with one label."""
    template = {
        "metadata": {"annotations": {RUN_FOR: run_for}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "train",
                    "image": "train",
                    "resources": {"requests": {"cpu": "4", GPU: str(gang.gpus)}, "limits": {GPU: str(gang.gpus)}},
                }
            ],
        },
    }
    meta = {"name": gang.name, "namespace": gang.team, "labels": {NAMES.queue_label: "main"}}

    def batch(pods: int, of: dict[str, Any]) -> dict[str, Any]:
        return {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": of,
        }

    if gang.kind == "Job":
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": batch(gang.pods, template)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {
            "replicatedJobs": [
                {"name": "driver", "replicas": 1, "template": {"spec": batch(1, template)}},
                {"name": "workers", "replicas": 1, "template": {"spec": batch(gang.pods - 1, template)}},
            ]
        },
    }


# ---------------------------------------------------------------- what is seen


class _Pod(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    phase: str
    gpus: int
    job: str
    terminating: bool


class _Workload(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    resource_version: str
    job: str
    admitted: bool
    evicted: str
    finished: str
    waiting: str


_json = msgspec.json.Decoder(type=dict[str, Any]).decode


def _pod(raw: msgspec.Raw) -> _Pod:
    obj = _json(raw)
    meta, spec = obj["metadata"], obj["spec"]
    labels = meta.get("labels") or {}
    gpus = sum(int(c.get("resources", {}).get("requests", {}).get(GPU, 0)) for c in spec.get("containers", ()))
    job = labels.get("jobset.sigs.k8s.io/jobset-name") or labels.get("batch.kubernetes.io/job-name", "")
    return _Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        node=spec.get("nodeName", ""),
        phase=obj.get("status", {}).get("phase", "Pending"),
        gpus=gpus,
        job=job,
        terminating="deletionTimestamp" in meta,
    )


def _workload(raw: msgspec.Raw) -> _Workload:
    obj = _json(raw)
    meta, status = obj["metadata"], obj.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}

    def true(kind: str) -> str:
        found = conditions.get(kind, {})
        return str(found.get("reason", "")) if found.get("status") == "True" else ""

    waiting = conditions.get("QuotaReserved", {})
    return _Workload(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        job=meta["ownerReferences"][0]["name"],
        admitted=bool(true(ADMITTED)),
        evicted=true(EVICTED),
        finished=true(FINISHED),
        waiting=waiting.get("message", "") if waiting.get("status") == "False" else "",
    )


@dataclass
class Story:
    """What happened to one job, by the demo's own watch."""

    gang: Gang
    waits: list[float] = field(default_factory=list)
    waiting_since: float | None = None
    running_since: float | None = None
    why: str = ""
    evicted: list[str] = field(default_factory=list)
    finished: str = ""


class Witness:
    """Watches pods and Workloads, and keeps what the summary asserts."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], _Pod] = {}
        self.stories: dict[tuple[str, str], Story] = {}
        self.overcommitted: list[str] = []
        self.partial: list[str] = []
        self._incomplete: dict[tuple[str, str], float] = {}
        self.dead: set[str] = set()

    def on_pod(self, old: _Pod | None, new: _Pod | None) -> None:
        seen = new or old
        assert seen is not None
        key = (seen.namespace, seen.name)
        if new is None:
            self.pods.pop(key, None)
        else:
            self.pods[key] = new
        if seen.node:
            used = sum(p.gpus for p in self.pods.values() if p.node == seen.node and p.phase in ("Pending", "Running"))
            if used > GPUS:
                self.overcommitted.append(f"{seen.node}: {used} GPUs")
        self._gang(seen.namespace, seen.job)

    def _gang(self, namespace: str, job: str) -> None:
        """A gang is whole while none of its pods waits for a node that others of it already have."""
        key = (namespace, job)
        mine = [p for p in self.pods.values() if (p.namespace, p.job) == key and not p.terminating]
        live = [p for p in mine if p.phase in ("Pending", "Running")]
        bound = [p for p in live if p.node]
        if (story := self.stories.get(key)) is not None:
            runs = any(p.phase == "Running" for p in live)
            story.running_since = (story.running_since or time.monotonic()) if runs else None
        if bound and len(bound) < len(live):
            self._incomplete.setdefault(key, time.monotonic())
        else:
            self._incomplete.pop(key, None)

    def check_partial(self, bound_s: float) -> None:
        now = time.monotonic()
        for (namespace, job), since in list(self._incomplete.items()):
            if now - since > bound_s:
                self.partial.append(f"{namespace}/{job}")
                self._incomplete.pop((namespace, job))

    def on_workload(self, old: _Workload | None, new: _Workload | None) -> None:
        if new is None:
            return
        story = self.stories.get((new.namespace, new.job))
        if story is None:
            return
        now = time.monotonic()
        if new.waiting:
            story.why = new.waiting
        if new.admitted and (old is None or not old.admitted) and story.waiting_since is not None:
            story.waits.append(now - story.waiting_since)
            story.waiting_since = None
        if new.evicted and (old is None or not old.evicted):
            story.evicted.append(new.evicted)
            story.waiting_since = now
        story.finished = new.finished

    def gpus_of(self, team: str) -> int:
        return sum(p.gpus for p in self.pods.values() if p.namespace == team and p.node and p.phase == "Running")

    @property
    def done(self) -> bool:
        return all(story.finished for story in self.stories.values()) and len(self.stories) == len(DAY)


# ---------------------------------------------------------------- the play


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster to play on."""

    kubeconfig: Path
    hour_s: float
    run_for: Callable[[Gang], str]
    what: str


def play(*, serve: bool = False, real: bool = False, seconds: float = 35.0) -> int:
    """Play the day; 0 when everything that must hold did. `serve`: stay up afterwards, until Ctrl-C."""
    try:
        return asyncio.run(_play(serve=serve, real=real, seconds=seconds))
    except KeyboardInterrupt:
        return 130


async def _play(*, serve: bool, real: bool, seconds: float) -> int:
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        stage = _real(Path(folder), seconds) if real else _sandbox(Path(folder), seconds)
        async with stage as on:
            return await _on(on, console, Path(folder), serve=serve, real=real)


@contextlib.asynccontextmanager
async def _sandbox(folder: Path, seconds: float) -> AsyncIterator[Stage]:
    from admission.sandbox.http import Sandbox

    hour_s = seconds / 24
    sandbox = Sandbox(time_scale=3600 / hour_s, validators=_validators())
    await sandbox.start()
    kubeconfig = folder / "kubeconfig"
    sandbox.write_kubeconfig(kubeconfig)
    try:
        yield Stage(kubeconfig, hour_s, lambda gang: f"{round(gang.hours * 60)}m", "sandbox")
    finally:
        await sandbox.stop()


def _validators() -> dict[tuple[str, str], Any]:
    """What CEL refuses on a real API server, the models refuse here."""
    from admission.api.kinds import KINDS

    def refused(new: dict[str, Any], old: dict[str, Any] | None) -> list[tuple[str, str, str]]:
        said = []
        for message in validate_object(new, NAMES, old):
            path, colon, text = message.partition(": ")
            said.append((path, "FieldValueInvalid", text) if colon else ("", "FieldValueInvalid", message))
        return said

    return {(NAMES.group, kind.plural): refused for kind in KINDS}


@contextlib.asynccontextmanager
async def _real(folder: Path, seconds: float) -> AsyncIterator[Stage]:
    from e2e.control_plane import ControlPlane  # the real one is for those who have the sources

    hour_s = seconds * 1.5 / 24  # a real scheduler and real controllers need a little longer for each step
    plane = ControlPlane()
    plane.__enter__()  # in this thread: the processes end with the one that started them
    try:
        kubeconfig = Path(plane.kubeconfig())
        yield Stage(kubeconfig, hour_s, lambda gang: f"{gang.hours * hour_s:.1f}s", "real control plane")
    finally:
        plane.close()


async def _on(stage: Stage, console: Console, folder: Path, *, serve: bool, real: bool) -> int:
    client = await Client.from_kubeconfig(str(stage.kubeconfig))
    async with client:
        await _install(client, real=real)
        for number in range(NODES):
            await _make(client, node_object(number))
        logfile = folder / "controller.log"
        page = free_port()
        controller = await _start_controller(stage, logfile, folder, page)
        if serve:
            console.print(f"{_page(stage, page)}\n")
        try:
            for obj in setup_objects():
                await _make(client, obj)
            code = await _day(client, stage, console, controller)
            if code:
                console.print(f"[red]the controller's log ends with:[/red]\n{_tail(logfile)}")
            if serve:
                await _stay(stage, console, page)
            return code
        finally:
            with contextlib.suppress(ProcessLookupError):
                controller.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(controller.wait(), 5)
            if controller.returncode is None:
                controller.kill()


async def _install(client: Client, *, real: bool) -> None:
    """The CRDs, and on a real API server the policies that hold and pin."""
    from admission.api import crd

    definitions = Kind(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )
    for text in crd.files(NAMES).values():
        with contextlib.suppress(AlreadyExists):
            await client.create(definitions.path(), yaml.safe_load(text))
    await _make(client, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "muster-system"}})
    if not real:
        above = {"value": 1_000_000_000, "preemptionPolicy": "Never"}
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        await _make(client, kind | {"metadata": {"name": NAMES.priority_class}, **above})
    else:
        for part in ("roles", "priority", "policies"):
            for obj in yaml.safe_load_all((CONFIG / f"{part}.yaml").read_text()):
                await _make(client, obj)


_PLURAL = {
    "Namespace": Kind("", "v1", "namespaces", "Namespace", namespaced=False),
    "Node": Kind("", "v1", "nodes", "Node", namespaced=False),
    "Job": Kind("batch", "v1", "jobs", "Job"),
    "JobSet": Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    "ResourceFlavor": Kind(NAMES.group, NAMES.version, "resourceflavors", "ResourceFlavor", namespaced=False),
    "Cohort": Kind(NAMES.group, NAMES.version, "cohorts", "Cohort", namespaced=False),
    "ClusterQueue": Kind(NAMES.group, NAMES.version, "clusterqueues", "ClusterQueue", namespaced=False),
    "LocalQueue": Kind(NAMES.group, NAMES.version, "localqueues", "LocalQueue"),
}


def _kind_of(obj: dict[str, Any]) -> Kind:
    kind = obj["kind"]
    if kind in _PLURAL:
        return _PLURAL[kind]
    group, _, version = obj["apiVersion"].rpartition("/")
    plural = kind.lower() + ("es" if kind.endswith("s") else "ies" if kind.endswith("y") else "s")
    return Kind(group, version, plural.replace("yies", "ies"), kind, namespaced="namespace" in obj["metadata"])


async def _make(client: Client, obj: dict[str, Any]) -> None:
    """Create, waiting for a kind that was only just installed, and for a webhook that only just answers."""
    kind = _kind_of(obj)
    until = time.monotonic() + MADE_WITHIN_S
    while True:
        try:
            await client.create(kind.path(obj["metadata"].get("namespace")), obj)
            return
        except AlreadyExists:
            return
        except (NotFound, Unavailable):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


def _page(stage: Stage, port: int) -> str:
    token = yaml.safe_load(stage.kubeconfig.read_text())["users"][0]["user"].get("token", "")
    return f"The page: http://127.0.0.1:{port}/  (token: {token})"


async def _start_controller(stage: Stage, logfile: Path, folder: Path, page: int) -> asyncio.subprocess.Process:
    config, port = folder / "muster.yaml", free_port()
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.muster.dev/v1beta1",
                "kind": "Configuration",
                "health": {"bindAddress": "0"},
                "metrics": {"bindAddress": "0"},
                "web": {"bindAddress": f"127.0.0.1:{page}", "tls": "none"},
                "webhook": {"host": "127.0.0.1", "port": port},
                "leaderElection": {"retryPeriod": "1s"},
                "nodeLossGracePeriod": "2s",
            }
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    with logfile.open("wb") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "admission.cli",
            "controller",
            "--kubeconfig",
            str(stage.kubeconfig),
            "--namespace",
            "muster-system",
            "--config",
            str(config),
            "--webhook-url",
            f"https://127.0.0.1:{port}",
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now, below those that the kernel gives to outgoing connections: one
    of these may be gone before it is listened on."""
    import secrets
    import socket

    while True:
        port = 12_000 + secrets.randbelow(18_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def _ready(client: Client) -> None:
    """Until the queues say that they are active: then the controller leads."""
    for _ in range(300):
        listed = await client.get(_PLURAL["ClusterQueue"].path())
        conditions = [
            {c["type"]: c["status"] for c in (item.get("status") or {}).get("conditions") or ()}
            for item in listed.get("items", ())
        ]
        if len(conditions) == len(TEAMS) and all(one.get("Active") == "True" for one in conditions):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the controller did not take its queues up in 30 s")


async def _day(client: Client, stage: Stage, console: Console, controller: asyncio.subprocess.Process) -> int:
    witness = Witness()
    pods = Informer(client, Kind("", "v1", "pods", "Pod"), _pod, witness.on_pod)
    workloads = Informer(
        client, Kind(NAMES.group, NAMES.version, "workloads", "Workload"), _workload, witness.on_workload
    )
    watching = [asyncio.create_task(pods.run()), asyncio.create_task(workloads.run())]
    console.print(
        f"A day of three teams on {NODES} nodes x {GPUS} GPUs ({stage.what}); an hour takes {stage.hour_s:.1f} s.\n"
    )
    try:
        await _ready(client)
        screen = Screen(console, witness)
        began = time.monotonic()
        with screen:
            await _hours(client, stage, witness, screen, controller, began)
        return _summary(console, witness, time.monotonic() - began, stage, controller)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def _hours(
    client: Client,
    stage: Stage,
    witness: Witness,
    screen: Screen,
    controller: asyncio.subprocess.Process,
    began: float,
) -> None:
    todo = list(DAY)
    died = False
    limit = began + 60 * stage.hour_s
    while time.monotonic() < limit and controller.returncode is None:
        hour = (time.monotonic() - began) / stage.hour_s
        while todo and todo[0].at <= hour:
            gang = todo.pop(0)
            story = Story(gang, waiting_since=time.monotonic())
            witness.stories[(gang.team, gang.name)] = story
            await _make(client, job_object(gang, stage.run_for(gang)))
            screen.say(hour, gang.team, f"submits {gang.name}: {gang.pods} x {gang.gpus} GPUs for {gang.hours:g} h")
        if not died and hour >= NODE_DIES_AT:
            died = True
            name = _busiest(witness, stage.hour_s)
            witness.dead.add(name)
            under = _who(witness, name)
            with contextlib.suppress(ApiError):
                await client.delete(_PLURAL["Node"].path(name=name))
            screen.say(hour, "", f"node {name} dies under {under}")
        witness.check_partial(5.0)
        screen.show(hour)
        if not todo and witness.done:
            return
        await asyncio.sleep(0.1)


def _busiest(witness: Witness, hour_s: float) -> str:
    """The node that dies: one under the gang with most pods, the first by name. Not under one that leaves already; nor
    under one that is about to end, if there are others: it might be over before its node is missed, a second later."""
    now, of = time.monotonic(), dict[str, tuple[bool, int]]()
    for pod in witness.pods.values():
        story = witness.stories.get((pod.namespace, pod.job))
        if story is None or story.running_since is None or story.waiting_since is not None:
            continue
        if pod.node and pod.phase == "Running":
            left = story.gang.hours - (now - story.running_since) / hour_s
            of[pod.node] = max(of.get(pod.node, (False, 0)), (left > 2, story.gang.pods))
    return max(sorted(of), key=of.__getitem__) if of else "gpu-00"


def _who(witness: Witness, node: str) -> str:
    jobs = sorted({f"{p.namespace}/{p.job}" for p in witness.pods.values() if p.node == node and p.phase == "Running"})
    return ", ".join(jobs) or "nobody"


# ---------------------------------------------------------------- what is shown

_BARS = " ▁▂▃▄▅▆▇█"


class Screen:
    """A live table and a GPU timeline in a terminal; plain lines elsewhere."""

    def __init__(self, console: Console, witness: Witness) -> None:
        self._console = console
        self._witness = witness
        self._live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None
        self._history: dict[str, list[int]] = {team: [] for team in TEAMS}
        self._sampled = -1.0
        self._lines: list[Text] = []
        self._said: set[tuple[str, str, int, str]] = set()
        self._plain_hour = -1

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def say(self, hour: float, team: str, what: str) -> None:
        line = Text(f"{_clock(hour)}  ")
        if team:
            line.append(f"{team:<7}", style=COLOURS[team])
        line.append(what)
        if self._live is None:
            self._console.print(line)
        else:
            self._lines = [*self._lines, line][-8:]

    def show(self, hour: float) -> None:
        for (team, name), story in self._witness.stories.items():
            for number, reason in enumerate(story.evicted):
                if (team, name, number, reason) not in self._said:
                    self._said.add((team, name, number, reason))
                    self.say(hour, team, f"{name} gives its nodes back ({reason}) and waits again")
        if hour - self._sampled >= 0.5:
            self._sampled = hour
            for team, history in self._history.items():
                history.append(self._witness.gpus_of(team))
        if self._live is not None:
            self._live.update(Group(self._table(hour), self._timeline(), *self._lines))
        elif int(hour) > self._plain_hour:
            self._plain_hour = int(hour)
            used = "  ".join(f"{team} {self._witness.gpus_of(team):>3}/{TEAMS[team]}" for team in TEAMS)
            waiting = sum(1 for s in self._witness.stories.values() if s.waiting_since is not None and not s.finished)
            self._console.print(f"{_clock(hour)}  GPUs running: {used}   waiting: {waiting}")

    def _table(self, hour: float) -> Table:
        table = Table(title=f"{_clock(hour)}", title_justify="left", box=None, pad_edge=False)
        for column in ("queue", "quota", "running", "borrowed", "waiting", "done"):
            table.add_column(column, justify="left" if column == "queue" else "right")
        for team, quota in TEAMS.items():
            stories = [s for (t, _), s in self._witness.stories.items() if t == team]
            used = self._witness.gpus_of(team)
            waiting = sum(1 for s in stories if s.waiting_since is not None and not s.finished)
            done = sum(1 for s in stories if s.finished)
            table.add_row(
                Text(team, style=COLOURS[team]),
                str(quota),
                str(used),
                str(max(0, used - quota)),
                str(waiting),
                str(done),
            )
        return table

    def _timeline(self) -> Group:
        rows = []
        for team, history in self._history.items():
            bars = "".join(_BARS[min(8, -(-8 * used // (NODES * GPUS)))] for used in history[-72:])
            rows.append(Text(f"{team:<7}") + Text(bars, style=COLOURS[team]))
        return Group(*rows)


def _clock(hour: float) -> str:
    day, rest = divmod(hour, 24)
    return f"{'+' if day >= 1 else ' '}{int(rest):02d}:{int(rest % 1 * 60):02d}"


def _summary(
    console: Console, witness: Witness, took: float, stage: Stage, controller: asyncio.subprocess.Process
) -> int:
    table = Table(box=None, pad_edge=False, title="\nWho waited how long, and why", title_justify="left")
    for column in ("job", "pods x GPUs", "waited", "evicted", "last reason for waiting"):
        table.add_column(column, no_wrap=column != "last reason for waiting")
    for (team, name), story in witness.stories.items():
        waited = sum(story.waits) / stage.hour_s
        table.add_row(
            Text(f"{team}/{name}", style=COLOURS[team]),
            f"{story.gang.pods} x {story.gang.gpus}",
            f"{waited:.1f} h",
            ", ".join(story.evicted) or "-",
            story.why if waited > 0.5 else "-",
        )
    console.print(table)
    unfinished = [f"{t}/{n}" for (t, n), s in witness.stories.items() if not s.finished]
    failed = [f"{t}/{n}" for (t, n), s in witness.stories.items() if s.finished == "Failed"]
    checks = {
        f"every job finished ({len(witness.stories)} of {len(DAY)})": not unfinished
        and len(witness.stories) == len(DAY),
        "no job failed": not failed,
        "no partial gang": not witness.partial,
        "no node overcommitted": not witness.overcommitted,
        "a borrower gave back what it had borrowed": any("Preempted" in s.evicted for s in witness.stories.values()),
        "the gang on the dead node started again": any("NodeFailures" in s.evicted for s in witness.stories.values()),
        "the controller never stopped": controller.returncode is None,
    }
    console.print()
    for what, held in checks.items():
        console.print(f"  {'[green]yes[/green]' if held else '[red]NO [/red]'}  {what}")
    for trouble in (*unfinished, *failed, *witness.partial, *witness.overcommitted[:5]):
        console.print(f"       [red]{trouble}[/red]")
    console.print(f"\nThe day took {took:.0f} s.")
    return 0 if all(checks.values()) else 1


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-25:])


async def _stay(stage: Stage, console: Console, page: int) -> None:
    kept = Path.cwd() / "build" / "demo.kubeconfig"
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(stage.kubeconfig.read_bytes())
    muster = Path(sys.executable).parent / "muster"  # of those who have no kubectl
    console.print(
        f"\nStaying up until Ctrl-C. Try:\n  export KUBECONFIG={kept}\n  {muster} queues\n"
        f"  kubectl get clusterqueues,workloads -A\n{_page(stage, page)}",
        soft_wrap=True,
    )
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
