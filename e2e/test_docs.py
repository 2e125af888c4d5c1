"""README and docs, followed: every block of commands is executed as it stands, page by page, on a real control plane.

Which blocks there are, and which of them other tests play or nobody can, says `tests.docs.blocks`. Manifests and values
are offered to the API server as a dry run.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.api.config import load_config
from e2e.control_plane import ControlPlane
from e2e.forked import SOURCES
from e2e.gangs import GPU, admitted, running_pods, teams
from e2e.installed import HOME, NAMES, Installed, cluster_queue, flavor, job, jobset, local_queue, ours
from e2e.prompt import HAS_HELM, Prompt
from tests.chart.helm import needs_helm, template
from tests.docs.blocks import PAGES, block, blocks, examples, played, spans

PLAYED = [page for page in PAGES if played(page)]
OWN_PORTS = "health: {bindAddress: '0'}\nmetrics: {bindAddress: '0'}\nweb: {bindAddress: '0'}\n"


@dataclass
class Reading:
    """A page that is being followed: the cluster before it, and what was printed so far."""

    muster: Installed
    said: str = ""

    @property
    def cp(self) -> ControlPlane:
        return self.muster.cp


@pytest.fixture
def prompt(muster: Installed, tmp_path: Path) -> Iterator[Prompt]:
    with Prompt(muster.cp, tmp_path) as made:
        yield made


# ---------------------------------------------------------------- what a reader has, and what he finds afterwards


def _readme(reading: Reading) -> Iterator[None]:
    cp = reading.cp
    cp.add_nodes(6, gpus=8, cpu="96", memory="1Ti", labels={"gpu": "h100"})
    # A reader has none yet; these are wider than those of the page, and of another field manager.
    for kind, namespace in (("clusterrole", None), ("role", HOME)):
        cp.delete(kind, "muster-controller", namespace)
    yield
    log = reading.muster.log
    assert log is not None
    log.catch_up()
    train = [one.object for one in log.entries() if (one.kind, one.object["metadata"]["name"]) == ("Job", "train")]
    assert train[0]["spec"]["suspend"] is True, "the job was held"
    assert "job/train" in reading.said or "Job team-a/train" in reading.said, reading.said
    cp.wait(lambda: cp.get("jobs", "train", "team-a")["spec"].get("suspend") is False, 60, "the sample to start")
    cp.apply((SOURCES / "config/samples/jobset.yaml").read_text())
    cp.wait(lambda: cp.get("jobsets", "sweep", "team-b")["spec"].get("suspend") is False, 60, "the other to start")


def _first_look(reading: Reading) -> Iterator[None]:
    """One runs, and one waits for it."""
    cp = reading.cp
    cp.add_nodes(1, gpus=0, labels={"kubernetes.io/os": "linux"})
    reading.muster.started()
    yield
    assert "job/second" in reading.said, reading.said
    assert "LocalQueue main -> ClusterQueue team-a" in reading.said, reading.said
    cp.wait(lambda: admitted(cp, "team-a", "first"), 30, "the first to start")
    cp.delete("jobs", "first", "team-a")
    cp.wait(lambda: admitted(cp, "team-a", "second"), 60, "the second, once there is room")


READERS: dict[str, Callable[[Reading], Iterator[None]]] = {"README.md": _readme, "docs/install.md": _first_look}


@pytest.mark.parametrize("page", PLAYED)
def test_what_a_page_says_runs(muster: Installed, prompt: Prompt, page: str, tmp_path: Path) -> None:
    reading = Reading(muster)
    config = tmp_path / "ports.yaml"
    config.write_text(OWN_PORTS)
    following = READERS[page](reading)
    next(following)
    going: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "controller.log"
    for one in played(page):
        if "muster controller" in one.text:
            # It goes on. The ports of the page may be taken here; everything else is as it says.
            going.append(prompt.start(f"{one.text.strip()} --config {config} --log-format console", log))
            continue
        # Whoever asks about a job gets 1 when it waits, which it may.
        text = re.sub(r"(?m)^(\S*muster why .*)$", r"\1 || test $? = 1", one.text)
        ran = prompt.run(f"set -eo pipefail\n{text}")
        reading.said += ran.stdout
        assert ran.returncode == 0, f"{one.where}\n{text}\n{ran.stdout}"
    next(following, None)
    assert all(process.poll() is None for process in going)
    assert not going or ("leading" in log.read_text() and '{"' not in log.read_text()), "lines for people"


# ---------------------------------------------------------------- the examples of the commands

BEFORE = {
    "muster import": "mkdir quota && sed 's/team-/other-/; s/: research/: others/' quota.yaml > quota/queues.yaml; "
    "for name in other-a other-b; do kubectl create namespace $name; done",
    "muster submit": "kubectl delete job train; muster resume team-a; muster resume localqueue/main; "
    'until [ -z "$(kubectl get pods --selector job-name=train --output name)" ]; do sleep 0.2; done',
}
"""What a reader does before the examples of a command."""

CODES = {
    "muster release-all --yes": 1,  # a controller leads
    "muster release-all --yes --unlabel": 1,
    "muster lint --cluster": 1,  # more quota than there are nodes
    "muster lint new.yaml --cluster": 1,
    "muster queues --watch": 130,
}
"""Of those that do not end with 0: the answer is no, as the page says of it."""

NOT_HERE = {
    "muster import --from kueue": "e2e/test_migrate.py, where Kueue's kinds are",
    'eval "$(muster completion zsh)"': "" if shutil.which("zsh") else "no zsh",
    "muster submit train.yaml -o json | jq '.[0].where'": "" if shutil.which("jq") else "no jq",
    "helm template charts/muster | muster lint -": "" if HAS_HELM else "no Helm",
}


@pytest.fixture
def scalable(muster: Installed) -> Iterator[None]:
    """The controller's Deployment, as far as it can be scaled."""
    deployment = {"selector": {"matchLabels": {"a": "b"}}, "replicas": 0}
    deployment["template"] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "c"}]}}
    meta = {"name": "muster-controller", "namespace": HOME}
    muster.cp.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": deployment})
    yield
    muster.cp.delete("deployments", meta["name"], HOME)


@pytest.mark.usefixtures("scalable")
def test_every_example_of_a_command_runs(muster: Installed, tmp_path: Path) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(6, gpus=8, labels={"gpu": "h100"})
    cp.apply(flavor("h100", {"gpu": "h100"}))
    for namespace in ("team-a", "team-b"):
        cp.namespace(namespace)
    here = tmp_path / "here"
    for folder in (here, tmp_path / ".config" / "fish" / "completions"):
        folder.mkdir(parents=True)
    (here / "charts").symlink_to(SOURCES / "charts")
    (here / "train.yaml").write_text(yaml.safe_dump(job("team-a", "train", 4, seconds=None)))
    (here / "new.yaml").write_text(yaml.safe_dump(local_queue("team-b", "team-b", "night")))
    cp.apply(job("team-a", "train", 4, seconds=None, labels={NAMES.pause_label: "true"}))
    cp.apply(jobset("team-a", "llm", {"w": (1, 2)}, seconds=None))
    contexts = yaml.safe_load(cp.kubeconfig().read_text())
    context = {**contexts["contexts"][0]["context"], "namespace": "team-a"}
    contexts["contexts"] = [{"name": name, "context": context} for name in ("now", "old", "new")]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**contexts, "current-context": "now"}))
    about, skipped = "", []
    with Prompt(cp, tmp_path, cwd=here) as prompt:
        prompt.environment["KUBECONFIG"] = str(tmp_path / "kubeconfig")
        for command, example in examples():
            if command != about and command in BEFORE:
                ran = prompt.run(f"set -e\n{BEFORE[command]}")
                assert ran.returncode == 0, (BEFORE[command], ran.stdout)
            about = command
            line = re.sub(r" +# .*", "", example)
            if why := NOT_HERE.get(line, ""):
                skipped.append(f"{line}: {why}")
                continue
            if line.endswith("--watch"):
                assert prompt.until_interrupted(line, "team-a") == CODES[line], line
                continue
            shell = "zsh" if "zsh" in line else "bash"
            typed = "y\n" if line.endswith("--drain") else ""  # it asks
            ran = prompt.run(line if shell == "zsh" else f"set -o pipefail\n{line}", shell=shell, typed=typed)
            expected = (0, 1) if line.startswith("muster why") else (CODES.get(line, 0),)  # 1: it waits, which it may
            assert ran.returncode in expected, f"{line}: {ran.returncode}\n{ran.stdout}"
            assert "Traceback" not in ran.stdout, f"{line}\n{ran.stdout}"
            assert ran.stdout or re.search(r">|eval|--svg", line), f"{line} says nothing"
            if line.endswith("-o json"):
                json.loads(ran.stdout)
    for file in (here / "quota.yaml", here / "ml.yaml", here / "now.svg"):
        assert file.stat().st_size, file
    assert (tmp_path / ".config/fish/completions/muster.fish").stat().st_size
    cp.wait(lambda: len(running_pods(cp, "team-a")) == 6, 60, "what was submitted, and set back into the queue, to run")
    print("\nnot here:", "; ".join(skipped))


# ---------------------------------------------------------------- pages whose output is shown


def test_two_racks_before_and_after(muster: Installed, prompt: Prompt) -> None:
    cp = muster.cp
    before, after = (one.text for one in blocks("docs/placement.md") if one.text.startswith("NODE"))
    for rack in ("r1", "r2"):
        cp.add_nodes(3, gpus=8, labels={"net/rack": rack, "gpu": "yes"}, prefix=rack)
    levels = [{"nodeLabel": label} for label in ("net/rack", "kubernetes.io/hostname")]
    cp.apply([ours("Topology", "racks", {"levels": levels}), flavor(labels={"gpu": "yes"}, topologyName="racks")])
    cp.namespace("team-a")
    cp.apply([cluster_queue("team-a", {GPU: 48}), local_queue("team-a", "team-a")])
    muster.started()

    def printed() -> str:
        ran = prompt.run("muster nodes")
        assert ran.returncode == 0, ran.stdout
        return "\n".join(line.rstrip() for line in ran.stdout.strip().splitlines()) + "\n"

    for name, gpus in (("eval", 1), ("notebook", 2), ("tune", 4)):
        cp.apply(job("team-a", name, gpus=gpus, seconds=None))
        cp.wait(functools.partial(admitted, cp, "team-a", name), 30, f"{name} to be admitted")
    cp.wait(lambda: printed() == before, 30, "the nodes as the page shows them", describe=printed)
    train = job("team-a", "train", 3, seconds=None)
    train["spec"]["template"]["metadata"]["annotations"][f"{NAMES.group}/podset-required-topology"] = "net/rack"
    cp.apply(train)
    cp.wait(lambda: printed() == after, 30, "the nodes as the page shows them then", describe=printed)


def test_a_decision_is_found_again_from_a_line_of_the_log(muster: Installed, prompt: Prompt) -> None:
    cp = muster.cp
    teams(cp, {"vision": 8})
    cp.add_nodes(1, labels={"gpu": "h100"})
    replica = muster.started()
    cp.apply(job("vision", "train", seconds=None))

    def found() -> dict[str, Any]:
        lines = [line for line in replica.lines() if line.get("event") == "admitted" and line.get("name") == "train"]
        return lines[0] if lines else {}

    line = cp.wait(found, 30, "a line about the decision")
    shown = json.loads(block("docs/tasks/watch.md", '{"kind": "Job"').text)
    assert set(line) == set(shown), line
    same = ("kind", "namespace", "name", "queue", "event", "level")
    assert {key: line[key] for key in same} == {key: shown[key] for key in same}
    for key, form in {"workload": r"job-train-[0-9a-f]{8}", "decision": r"[0-9a-f]{8}"}.items():
        assert re.fullmatch(form, shown[key]), shown
        assert re.fullmatch(form, line[key]), line
    if shutil.which("jq") is None:
        pytest.skip("no jq")
    asked = block("docs/tasks/watch.md", "kubectl get events").text
    assert shown["decision"] in asked
    asked = asked.replace(shown["decision"], line["decision"])
    told = cp.wait(lambda: prompt.run(asked).stdout, 30, "the Event of the decision")
    assert "vision" in told, told


# ---------------------------------------------------------------- manifests


@needs_helm
def test_the_api_server_takes_every_manifest_and_all_values_make_what_it_takes(
    muster: Installed, prompt: Prompt
) -> None:
    """As a dry run, and strictly: a field that it does not know is refused."""
    cp = muster.cp
    plain = template({"hold": "policy"})  # offered by e2e/test_chart.py
    seen = 0
    for page in PAGES:
        for one in (each for each in blocks(page) if each.language == "yaml"):
            for document in yaml.safe_load_all(one.text):
                for made in (each for each in _objects(document, one.text) if each not in plain):
                    _offer(cp, made, one.where)
                    seen += 1
    print(f"\n{seen} objects offered")
    assert seen > 30
    for page in PAGES:
        for line, text in spans(page):
            if re.match(r"kubectl (get|explain|describe|api-resources)\b", text) and not re.search(r"[A-Z.]{3,}", text):
                ran = prompt.run(text)
                assert ran.returncode == 0, f"{page}:{line}: {text}\n{ran.stdout}"


def _objects(document: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """What a document of a page puts into a cluster."""
    if document.get("kind") == "Configuration":
        load_config(text)
        return []
    if "kind" in document:
        if document.get("spec", {}).get("template") == "...":  # which a reader fills in
            document["spec"]["template"] = job("any", "any")["spec"]["template"]
        return [document]
    if set(document) == {"metadata"}:  # what one adds to a job
        labelled = job("team-a", "labelled", queue=None)
        labelled["metadata"] |= document["metadata"]
        return [labelled]
    return template({"hold": "policy", **document})


def _offer(cp: ControlPlane, made: dict[str, Any], where: str) -> None:
    if made["apiVersion"].startswith(("monitoring.coreos.com/", "cert-manager.io/")):
        return
    namespace = made["metadata"].get("namespace")
    if namespace and cp.find("namespace", namespace) is None:
        cp.namespace(namespace)
    try:
        cp.apply(made, dryRun="All", fieldValidation="Strict")
    except Exception as error:
        raise AssertionError(f"{where}: {made['kind']} {made['metadata']['name']}: {error}") from None
