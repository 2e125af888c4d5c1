"""The commands on a real API server, with a tenant's rights and with a platform engineer's.

The tenant may `edit` one namespace; the platform engineer has the chart's role for queues, may read the cluster, and
writes no job. Both are people with certificates, as any cluster has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from admission.cli import cli
from admission.commands import options
from e2e.api_client import ApiError
from e2e.control_plane import ControlPlane
from e2e.gangs import GPU, admitted
from e2e.installed import HOME, NAMES, Installed, job, jobset

Muster = Callable[..., Result]
TENANT, PLATFORM = "ann", "pat"


def _binding(name: str, user: str, role: str, namespace: str = "") -> dict[str, Any]:
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
    }


@pytest.fixture
def bare(installed: ControlPlane) -> ControlPlane:
    """Installed, with no controller, and none that has left its Lease."""
    installed.clean()
    Installed.install(installed)
    installed.delete("leases", NAMES.lease_name, HOME)
    return installed


@pytest.fixture
def people(installed: ControlPlane) -> Iterator[Muster]:
    """`muster` as one of them: people("why", "train", user=TENANT, code=1)."""
    cp = installed
    cp.namespace("team-a")
    reads = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "cli-nodes"}}
    bound = [
        {**role, "rules": [reads]},
        _binding("cli-tenant", TENANT, "edit", "team-a"),
        *(_binding(f"cli-{one}", PLATFORM, one) for one in ("view", "muster-queue-admin", "cli-nodes")),
    ]
    cp.apply(bound)

    def muster(*arguments: str, user: str, code: int | None = 0, stdin: str | None = None) -> Result:
        given = [*arguments, "--kubeconfig", str(cp.kubeconfig(user))]
        result = CliRunner().invoke(cli, given, input=stdin)
        assert code is None or result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
        return result

    yield muster
    for one in bound:
        cp.delete(one["kind"].lower() + "s", one["metadata"]["name"], one["metadata"].get("namespace"))


def test_the_commands_of_a_platform_engineer_and_of_a_tenant(
    muster: Installed, people: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cp = muster.cp
    muster.started()
    cp.add_nodes(3, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")

    def seen(user: str, *arguments: str, code: int | None = 0) -> Any:
        return json.loads(people(*arguments, "-o", "json", user=user, code=code).stdout)

    # Quota, by command; a tenant may not, and is told so in a sentence.
    said = ["create", "queue", "team-a", "--quota", f"gpu:{GPU}=16", "--cohort", "all", "--for", "team-a", "--strict"]
    refused = people(*said, user=TENANT, code=4)
    assert f"{TENANT} may not get clusterqueues at the cluster scope" in refused.stderr, refused.output
    rows = seen(PLATFORM, *said, "--node-label", "gpu=h100")["rows"]
    assert {row["did"] for row in rows} == {"created"}
    cp.wait(lambda: seen(PLATFORM, "queues", "-A")["rows"][-1]["kind"] == "LocalQueue", 30, "the queues")

    # What would become of a job, then the job itself.
    files = {}
    for name, pods in (("train", 2), ("next", 2), ("small", 1), ("wide", 3)):
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(job("team-a", name, pods, seconds=None)))
    (wide,) = seen(PLATFORM, "submit", str(files["wide"]), code=3)
    assert "may not" in wide["message"] or "cannot create" in wide["message"], "who may not create is told so"
    people("submit", str(files["wide"]), user="admin", code=1)
    # The API server takes such a JobSet, and would refuse its Jobs.
    for name, amounts in (("half", {"requests": {GPU: "8"}}), ("whole", {"limits": {GPU: "8"}})):
        made = jobset("team-a", name, {"w": (1, 1)})
        (container,) = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        container["resources"] = amounts
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(made))
        (told,) = seen("admin", "submit", str(tmp_path / f"{name}.yaml"), code=3 if name == "half" else 0)
        no_limit = "Limit must be set for non overcommitable resources"
        assert ("JobSet's controller could not make Job half-w-0: " in told["message"]) == (name == "half")
        assert (no_limit in told["message"]) == (name == "half"), told
    (train,) = seen("admin", "submit", str(files["train"]))
    assert (train["answer"], sum(pods for _, pods in train["where"][0]["nodes"])) == ("starts", 2)
    (known,) = seen(TENANT, "submit", str(files["train"]), code=4)
    assert known["answer"] == "unknown"
    assert "nodes" in known["message"]
    people("submit", str(files["train"]), "--create", user=TENANT)
    where = "team-a"

    def state(name: str) -> str:
        return str(seen(TENANT, "why", name, "-n", where, code=None)["standing"]["state"])

    cp.wait(lambda: state("train") == "running", 60, "the gang to run")
    placed = seen(TENANT, "why", "train", "-n", where)
    assert [node for node, _ in placed["standing"]["where"][0]["nodes"]] == [n for n, _ in train["where"][0]["nodes"]]
    assert (placed["standing"]["ready"], placed["unready"]) == (2, [])

    # Those that wait: for quota, and behind the one that does, which is called by the name of its job.
    time.sleep(1.1)  # the order in a queue is by times of creation, which are whole seconds
    people("submit", str(files["next"]), "--create", user=TENANT)
    cp.wait(lambda: state("next") == "waiting", 30, "the second to wait")
    time.sleep(1.1)
    people("submit", str(files["small"]), "--create", user=TENANT)

    def why(name: str) -> str:
        return people("why", name, "-n", where, user=TENANT, code=1).stdout

    cp.wait(lambda: "Waits behind Job team-a/next" in why("small"), 60, "the reason to be told")
    listed = {row["name"]: row for row in seen(TENANT, "jobs", "-n", where)["rows"]}
    assert (listed["next"]["position"], listed["small"]["position"]) == (1, 2)
    queues = people("queues", "-n", where, user=TENANT).stdout
    assert "You may not see: clusterqueues, cohorts" in queues
    everywhere = people("jobs", "-A", user=TENANT).stdout
    assert "Name a namespace with -n" in everywhere
    assert "may not see the nodes" in people("nodes", user=TENANT, code=4).stderr

    # Every other command, with a tenant's rights: it works, or one line says what is missing.
    refusals = {
        ("lint", str(files["train"])): (0, ""),
        ("lint", "--cluster"): (4, "you may not see"),
        ("top",): (0, "You may not see"),
        ("export",): (4, "left out"),
        ("import", str(files["train"])): (0, "not a quota object"),
        ("resume", "team-a"): (4, "may not"),
        ("stop", "localqueue/main", "-n", where): (4, "may not"),
        ("why", "train", "-n", "default"): (4, "you may not see"),
    }
    for arguments, (code, line) in refusals.items():
        result = people(*arguments, user=TENANT, code=None)
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
        assert line in result.output, (arguments, result.output)

    # Stop and resume; a job that is set back into the queue by its owner, who has no rights but to the job.
    assert "may not" in people("stop", "team-a", user=TENANT, code=4).stderr
    people("stop", "team-a", user=PLATFORM)
    held = seen(PLATFORM, "why", "next", "-n", where, code=1)
    assert held["standing"]["reason"] == "OnHold"
    assert "muster resume clusterqueue/team-a" in held["platform"]
    people("requeue", "train", "-n", where, "--yes", user=TENANT)
    assert state("train") == "waiting"
    assert not admitted(cp, where, "train")
    people("resume", "team-a", user=PLATFORM)
    cp.wait(lambda: state("train") == "running", 60, "the gang to run again, before the younger ones")

    # Quota as files, a picture, names for the shell, and the same as a plugin of kubectl.
    exported = people("export", user=PLATFORM).stdout
    assert {one["kind"] for one in yaml.safe_load_all(exported)} == {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    same = people("import", "-", "-o", "json", user=PLATFORM, stdin=exported)
    assert {row["did"] for row in json.loads(same.stdout)["rows"]} == {"unchanged"}
    people("top", "--svg", str(tmp_path / "top.svg"), user=PLATFORM)
    assert "job/train" in (tmp_path / "top.svg").read_text(encoding="utf-8")
    monkeypatch.setattr(options, "TAB_S", 60.0)  # a person waits for three seconds, a busy machine for longer
    typed = ["why", "--kubeconfig", str(cp.kubeconfig(TENANT)), "-n", where]
    offered = ShellComplete(cli, {}, "muster", "_MUSTER_COMPLETE").get_completions(typed, "")
    assert {item.value for item in offered} == {"train", "next", "small"}
    environment = {**os.environ, "KUBECONFIG": str(cp.kubeconfig(TENANT))}
    programs = Path(sys.executable).parent
    kubectl = cp.kubectl_path
    path = f"{programs}:{kubectl.parent}:{os.environ['PATH']}"
    plugin = subprocess.run(
        [str(kubectl), "muster", "why", "train", "-n", where],
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert plugin.returncode == 0, plugin
    assert "Job team-a/train runs" in plugin.stdout

    # Nobody leads any more: everybody is told first of all. Nobody else may see more of the controller's namespace.
    assert "a controller leads" in people("release-all", "--yes", "-n", where, user=TENANT, code=1).stderr
    muster.replicas[-1].stop()
    for one in (PLATFORM, TENANT):
        assert "No controller leads: Lease" in people("jobs", "-n", where, user=one).stdout.splitlines()[0]
    with pytest.raises(ApiError, match=r"403.*leases"):
        cp.as_user(TENANT).list("leases", HOME)


def test_release_all_gives_back_what_was_held(bare: ControlPlane, people: Muster) -> None:
    """No controller runs: the policies hold, and nobody but an administrator may let go."""
    cp = bare
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "cli-jobsets"}}
    reads = {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list"]}
    cp.add_nodes(1, gpus=8, labels={"gpu": "h100"})
    cp.namespace("team-a")
    cp.apply([job("team-a", "one", 1, seconds=1), job("team-a", "paused", 1, labels={NAMES.pause_label: "true"})])

    def suspended(name: str) -> bool:
        return bool(cp.get("jobs", name, "team-a")["spec"].get("suspend", False))

    assert suspended("one")
    # There is no Lease, and a tenant may not look for one elsewhere.
    assert "--controller-namespace" in people("release-all", "--yes", "-n", "team-a", user=TENANT, code=1).stderr
    given = ["release-all", "--yes", "-n", "team-a", "--controller-namespace", HOME]
    assert "you may not see jobsets" in people(*given, user=TENANT, code=4).stderr
    cp.apply([{**role, "rules": [reads]}, _binding("cli-jobsets", TENANT, "cli-jobsets", "team-a")])
    held = people(*given, user=TENANT, code=1)
    assert "job/one -n team-a refused" in held.stdout
    assert suspended("one")
    people("release-all", user="admin")
    assert suspended("one")
    done = people("release-all", "--yes", "--unlabel", "-o", "json", user="admin")
    rows = {row["subject"]: row["did"] for row in json.loads(done.stdout)["rows"]}
    assert rows == {"job/one": "changed", "job/paused": "skipped"}
    assert not suspended("one")
    cp.wait(lambda: cp.get("jobs", "one", "team-a")["status"].get("succeeded") == 1, 60, "the Job to run, and end")
    assert suspended("paused")
    cp.delete("clusterroles", "cli-jobsets")
    cp.delete("rolebindings", "cli-jobsets", "team-a")
