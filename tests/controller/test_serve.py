"""A replica as the program starts it, by its configuration file: what it writes and refuses in a cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from structlog.testing import capture_logs

from admission.api import crd
from admission.api.config import load_config
from admission.cli import _controller
from admission.controller import certificates, rival
from admission.controller.certificates import CA_CERT, CERT, KEY
from admission.controller.policies import beside_webhook, priority_class
from admission.controller.proof import Held, Mode, policies_bound, policies_served, prove, says_nothing
from admission.controller.serve import Replica, serve, told_by_loop
from admission.controller.setup import settings_of
from admission.jobs.hold import Messages
from admission.kube.client import ApiError, Beginning, Client, Forbidden, NotFound
from admission.kube.lease import LEASES
from admission.names import KUEUE_GROUP, Names
from admission.sandbox.play import free_port
from admission.sandbox.store import MERGE, Request, User
from tests.jobs.test_pins import jobset
from tests.web.running import Cluster, install, job

NAMES = Names()
HOME = "muster-system"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
HEAD = "apiVersion: config.muster.dev/v1beta1\nkind: Configuration\nhold: webhook\n"


@contextlib.asynccontextmanager
async def served(
    text: str = "",
    *,
    port: int = 0,
    users: tuple[str, ...] = (),
    kinds: Sequence[dict[str, Any]] = (),
    lease: dict[str, Any] | None = None,
    classes: Sequence[dict[str, Any]] = (priority_class(NAMES),),
    given: Cluster | None = None,
) -> AsyncIterator[tuple[Client, Replica]]:
    """A replica of this file in a sandbox, with a webhook that the API server reaches; `port`: where the file says that
    it is. `users`: people with a token each, NAME-token, who may not admit. `kinds`: more CRDs. `lease`: one that is
    there before. `classes`: PriorityClasses. `given`: this sandbox, whose people are its own."""
    if not port:
        port = free_port()
        text += f"webhook: {{host: 127.0.0.1, port: {port}}}\n"
    config = load_config(HEAD + text)
    url = f"https://127.0.0.1:{port}"
    found: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()

    async def started(replica: Replica) -> None:
        found.set_result(replica)

    async with (
        given or Cluster(users={f"{name}-token": User(name, ()) for name in users}) as cluster,
        Client.plain(cluster.url, token="admin-token", backoff=(0.001, 0.01)) as client,
    ):
        await install(cluster, client)
        for made in classes:
            await client.create(CLASSES, made)
        for name in (HOME, "elsewhere"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.create("/api/v1/namespaces", namespace)
        for made in kinds:
            await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
        if lease is not None:
            held = {"holderIdentity": "kueue-0", "leaseDurationSeconds": 1}
            await client.create(LEASES.path(lease["metadata"]["namespace"]), {**lease, "spec": held})
        running = asyncio.ensure_future(serve(client, config, namespace=HOME, webhook_url=url, started=started))
        try:
            await asyncio.wait({running, found}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            yield client, found.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(300):
        while True:
            with contextlib.suppress(NotFound, KeyError):
                if answer := await look():
                    return answer
            await asyncio.sleep(0.02)


async def test_its_lease_is_where_the_file_says_and_has_its_times() -> None:
    times = "leaseDuration: 21s, renewDeadline: 14s, retryPeriod: 3s"
    text = f"leaderElection: {{resourceName: muster-controller, resourceNamespace: elsewhere, {times}}}\n"
    async with served(text) as (client, replica):

        async def held() -> bool:
            lease = await client.get(LEASES.path("elsewhere", NAMES.lease_name))
            assert lease["spec"]["leaseDurationSeconds"] == 21
            return replica.elector is not None and lease["spec"]["holderIdentity"] == replica.elector.identity

        await until(held)


@pytest.mark.parametrize(
    ("flag", "pod", "of_lease", "home"),
    [
        ("", HOME, "elsewhere", HOME),
        ("flag", HOME, "elsewhere", "flag"),
        ("", "", "elsewhere", "elsewhere"),
        ("", HOME, "", HOME),
        ("", "", "", "default"),
    ],
)
async def test_where_it_runs_is_not_where_its_lease_is(
    flag: str, pod: str, of_lease: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are its Secrets, and the Service by which the API server reaches its webhook."""
    ran: list[str] = []

    async def runs(*_: Any, namespace: str, **__: Any) -> None:
        ran.append(namespace)

    monkeypatch.setattr("admission.controller.serve.serve", runs)
    monkeypatch.setattr("gc.freeze", lambda: None)  # this process goes on
    monkeypatch.setenv("POD_NAMESPACE", pod)
    text = HEAD + "health: {bindAddress: '0'}\nmetrics: {bindAddress: '0'}\n"
    text += f"leaderElection: {{resourceNamespace: {of_lease}}}\n"
    async with Cluster() as cluster:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(cluster.kubeconfig()))
        await _controller(load_config(text), tmp_path / "kubeconfig", flag, None, None)
    assert ran == [home]


async def test_who_hears_nothing_of_pods_leaves_the_lease_to_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts does not take it, and one that leads gives it up."""
    monkeypatch.setattr("admission.kube.lease.CUT_OFF_S", 0.3)
    monkeypatch.setattr("admission.kube.lease.ASIDE_S", 0.6)
    times = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 50ms}\n"
    config = load_config(HEAD.replace("webhook", "policy") + times)
    refused = {"one-token"}

    def fault(request: web.Request) -> web.Response | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path != "/api/v1/pods" or token not in refused:
            return None
        return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)

    replicas: list[Replica] = []

    async def started(replica: Replica) -> None:
        replicas.append(replica)

    names = ("one", "two")
    async with contextlib.AsyncExitStack() as stack:
        users = {f"{name}-token": User(name, ("system:masters",)) for name in names}
        cluster = await stack.enter_async_context(Cluster(users=users))
        one, two = [
            await stack.enter_async_context(Client.plain(cluster.url, token=f"{name}-token", backoff=(0.001, 0.01)))
            for name in names
        ]
        await install(cluster, one)
        await one.create(CLASSES, priority_class(NAMES))
        await one.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        cluster.faults.append(fault)

        def start(client: Client) -> None:
            running = asyncio.ensure_future(serve(client, config, namespace=HOME, started=started))
            stack.push_async_callback(asyncio.wait, {running})
            stack.callback(running.cancel)

        async def leads(n: int) -> bool:
            return [replica.controller.leading for replica in replicas] == [n == 0, n == 1]

        with capture_logs() as lines:
            start(one)

            async def told() -> bool:
                return any(line["event"] == "nobody leads, and this replica cannot" for line in lines)

            await until(told)
            start(two)
            await until(partial(leads, 1))
            refused.clear()
            await until(lambda: asyncio.sleep(0, not replicas[0].ready()))
            refused.add("two-token")
            replicas[1].controller.informers["Pod"].relist()
            await until(partial(leads, 0))
        left = [line["why"] for line in lines if line["event"] == "leadership lost"]
        assert len(left) == 1
        assert left[0].startswith("no news of Pod for ")


class Led(Cluster):
    """Kueue leads as long as `renews`: its Lease is renewed whenever somebody looks, however slow this machine is."""

    renews = True
    lease = Names(KUEUE_GROUP).rival_lease

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if self.renews and (request.method, request.path) == ("GET", LEASES.path("elsewhere", self.lease)):
            kind = self.store.kind("coordination.k8s.io", "leases")
            found = self.store.find("coordination.k8s.io", "leases", "elsewhere", self.lease)
            assert kind is not None
            assert found is not None
            patch = {"spec": {"leaseTransitions": found["spec"].get("leaseTransitions", 0) + 1}}
            self.store.do(Request("patch", kind, "elsewhere", self.lease, patch, content_type=MERGE), self.clock())
        return await super()._route(request)


@pytest.mark.parametrize("elects", [True, False])
async def test_in_kueue_mode_nothing_is_decided_while_kueue_leads(
    elects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rival, "LOOK_S", 0.02)
    cluster = Led()
    lease = {"apiVersion": LEASES.api_version, "kind": "Lease"}
    lease["metadata"] = {"name": cluster.lease, "namespace": "elsewhere"}
    text = (
        f"apiGroup: {KUEUE_GROUP}\nkueueNamespace: elsewhere\nleaderElection: {{leaderElect: {str(elects).lower()}}}\n"
    )
    crds = [yaml.safe_load(made) for made in crd.files(Names(KUEUE_GROUP)).values()]
    async with served(text, kinds=crds, lease=lease, given=cluster) as (_, replica):
        policies = replace(replica, reviews=False)  # where these hold, nobody asks a replica that waits

        async def waits() -> bool:
            return "kueue-0" in policies.ready() and not replica.ready() and not replica.controller.leading

        async def leads() -> bool:
            return not policies.ready() and replica.controller.leading

        for _ in range(2):
            cluster.renews = True
            await until(waits)
            # Longer than the Lease lasts: it is for its renewals that it goes on waiting.
            await asyncio.sleep(1.5)
            assert await waits()
            cluster.renews = False
            await until(leads)


class WithRights(Cluster):
    """One whose authorizer knows the controller of HOME."""

    def allows(self, user: str, groups: Iterable[str], attributes: Mapping[str, Any]) -> bool:
        return user == f"system:serviceaccount:{HOME}:muster-controller" or super().allows(user, groups, attributes)


async def test_one_that_is_started_in_another_namespace_by_mistake_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that lead, each by a file of its own, would evict what the other admits."""
    monkeypatch.setattr(rival, "LOOK_S", 0.02)
    async with served(given=WithRights()) as (client, first):

        async def leads() -> bool:
            return first.controller.leading

        await until(leads)
        found: list[Replica] = []

        async def started(replica: Replica) -> None:
            found.append(replica)

        config = load_config(HEAD.replace("webhook", "policy"))
        async with Client.plain(client.url, token="admin-token", backoff=(0.001, 0.01)) as other:
            second = asyncio.ensure_future(serve(other, config, namespace="elsewhere", started=started))

            async def waits() -> bool:
                return bool(found) and "Another Muster leads" in found[0].ready()

            await until(waits)
            assert "muster-system" in found[0].ready()
            assert not found[0].controller.leading
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        with pytest.raises(NotFound):
            await client.get(LEASES.path("elsewhere", NAMES.lease_name))


async def test_a_leader_that_is_stopped_in_the_middle_of_its_writes_leaves_none_in_doubt() -> None:
    """Or its lease would be kept until none can be applied any more."""
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async with served() as (client, replica):

        async def leads() -> bool:
            return replica.controller.leading

        await until(leads)
        for n in range(20):
            queue = {"apiVersion": NAMES.api_version, "kind": "ClusterQueue", "metadata": {"name": f"q{n}"}, "spec": {}}
            await client.create(f"/apis/{NAMES.api_version}/clusterqueues", queue)
        assert replica.elector is not None
        fence, sent = replica.elector.fence, asyncio.Event()

        def passed() -> None:
            fence()
            sent.set()

        client.fence = passed
        await sent.wait()
        replica.elector._sleep = wait
    assert not replica.controller.leading
    assert waits[-1] == 0


async def test_without_election_it_leads_at_once_and_its_webhook_keeps_to_the_limits_of_the_file() -> None:
    text = "leaderElection: {leaderElect: false}\nmaxTerminationGracePeriodSeconds: 60\nmaxJobsPerJobSet: 2\n"
    async with served(text) as (client, replica):

        async def leads() -> bool:
            return replica.controller.leading

        await until(leads)
        assert replica.elector is None
        with pytest.raises(NotFound):
            await client.get(f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/{NAMES.lease_name}")
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        patient = job("team-a", "patient", 1, 1)
        patient["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 61
        with pytest.raises(ApiError, match="60"):
            await client.create(path, patient)
        patient["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 60
        assert (await client.create(path, patient))["spec"]["suspend"] is True
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets"
        many = jobset()
        many["metadata"] = {"namespace": "team-a", "name": "many", "labels": {NAMES.queue_label: "main"}}
        many["spec"]["replicatedJobs"][0]["replicas"] = 1
        many["spec"]["replicatedJobs"][1]["replicas"] = 2
        with pytest.raises(ApiError, match="at most 2 Jobs"):
            await client.create(path, many)
        many["spec"]["replicatedJobs"][1]["replicas"] = 1
        assert (await client.create(path, many))["spec"]["suspend"] is True


@pytest.mark.parametrize(("said", "queue"), [("true", "default"), ("false", "")])
async def test_a_job_without_a_queue_gets_the_default_one_where_the_file_says_so(said: str, queue: str) -> None:
    text = f"leaderElection: {{leaderElect: false}}\nlocalQueueDefaulting: {said}\n"
    async with served(text) as (client, replica):
        made = {"apiVersion": NAMES.api_version, "kind": "LocalQueue", "metadata": {"name": "default"}}
        await client.create(
            f"/apis/{NAMES.api_version}/namespaces/team-a/localqueues", {**made, "spec": {"clusterQueue": "q"}}
        )

        async def seen() -> bool:
            return replica.controller.leading and replica.controller.has_queue("team-a", "default")

        await until(seen)
        found = {}
        for where in ("team-a", "elsewhere", HOME):
            plain = job(where, "plain", 1, 1)
            del plain["metadata"]["labels"]
            plain["spec"]["suspend"] = False
            answer = await client.create(f"/apis/batch/v1/namespaces/{where}/jobs", plain)
            found[where] = answer["metadata"].get("labels", {}).get(NAMES.queue_label, ""), answer["spec"]["suspend"]
        assert found == {"team-a": (queue, bool(queue)), "elsewhere": ("", False), HOME: ("", False)}


async def test_where_it_holds_by_webhook_a_queue_that_breaks_a_rule_is_told_so() -> None:
    """Such an API server may be too old to have refused it."""
    path = f"/apis/{NAMES.api_version}/clusterqueues"
    quota = {"name": "cpu", "nominalQuota": 8, "borrowingLimit": 1}
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "x", "resources": [quota]}]}]
    made = {"apiVersion": NAMES.api_version, "kind": "ClusterQueue", "metadata": {"name": "alone"}}
    async with served("leaderElection: {leaderElect: false}\n") as (client, _):
        await client.create(path, {**made, "spec": {"resourceGroups": groups}})

        async def told() -> bool:
            conditions = (await client.get(f"{path}/alone"))["status"]["conditions"]
            return any("it is written wrong: spec: borrowingLimit" in one["message"] for one in conditions)

        await until(told)


async def test_a_webhook_that_somebody_emptied_is_written_again() -> None:
    """As Helm leaves it, where it was deleted and the chart is installed again; the replicas are those from before."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster"
    async with served("holdProofPeriod: 100ms\n") as (client, replica):

        async def proven() -> bool:
            return replica.held is not None and replica.held.holds

        await until(proven)
        whole = await client.get(path)
        await client.put(path, {**whole, "webhooks": []})

        async def again() -> bool:
            return bool((await client.get(path))["webhooks"] == whole["webhooks"])

        await until(again)
        await until(proven)


async def test_the_class_of_gangs_is_missed_without_which_their_pods_are_refused() -> None:
    async with served("holdProofPeriod: 100ms\n") as (client, replica):

        async def proven() -> bool:
            return replica.held is not None and replica.held.holds

        async def missed() -> bool:
            found = replica.held
            return found is not None and not found.holds and "install PriorityClass muster-gang again" in found.message

        await until(proven)
        await client.delete(f"{CLASSES}/muster-gang")
        await until(missed)
        await client.create(CLASSES, priority_class(NAMES))
        await until(proven)


def a_kind(plural: str, kind: str) -> dict[str, Any]:
    """A CRD by which the sandbox serves, and keeps, what the API server would judge by."""
    group = "admissionregistration.k8s.io"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind},
            "scope": "Cluster",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.mark.parametrize("gone", ["muster-job-templates", "muster-bare-pods"])
async def test_what_refuses_beside_the_webhook_is_missed(gone: str) -> None:
    plurals = {GUARD: "validatingadmissionpolicies", f"{GUARD}Binding": "validatingadmissionpolicybindings"}
    root = "/apis/admissionregistration.k8s.io/v1"
    made = [*beside_webhook(NAMES), *({"kind": kind, "metadata": {"name": "muster-bare-pods"}} for kind in plurals)]
    text = "holdProofPeriod: 100ms\nrequiredPolicies: [muster-bare-pods]\n"
    async with served(text, kinds=[a_kind(plural, kind) for kind, plural in plurals.items()]) as (client, replica):

        async def proven() -> bool:
            return replica.held is not None and replica.held.holds

        async def missed() -> bool:
            found = replica.held
            return found is not None and not found.holds and f"install {GUARD} {gone} again" in found.message

        for one in made:
            path = f"{root}/{plurals[one['kind']]}"
            await client.create(path, {"spec": {}, **one, "apiVersion": root.removeprefix("/apis/")}, fenced=False)
        await until(proven)
        await client.delete(f"{root}/{plurals[GUARD]}/{gone}")
        await until(missed)


async def test_what_was_not_held_at_first_is_proven_soon_again_and_not_after_a_whole_period() -> None:
    async with served("holdProofPeriod: 1h\n", classes=()) as (client, replica):

        async def found(holds: bool) -> bool:
            return replica.held is not None and replica.held.holds is holds

        await until(partial(found, False))
        await client.create(CLASSES, priority_class(NAMES))
        await until(partial(found, True))


async def test_a_proof_that_fails_by_a_defect_ends_the_replica_as_any_other_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would prove the hold any more, and the condition would say for ever what was found last."""
    async with served("holdProofPeriod: 100ms\n") as (_, replica):

        async def proven() -> bool:
            return replica.held is not None and replica.held.holds

        async def broken(*_: Any, **__: Any) -> Held:
            raise KeyError("metadata")

        await until(proven)
        (running,) = [task for task in asyncio.all_tasks() if task.get_name() == "campaign"]
        monkeypatch.setattr("admission.controller.serve.prove", broken)
        done, _ = await asyncio.wait({running}, timeout=30)
        assert done
        with pytest.raises(KeyError):
            running.result()


class Judge(Cluster):
    """An API server that holds jobs or not, with some of its policies there; `says`: the status of what it answers."""

    holds = True
    there: tuple[str, ...] = ()
    says = 200
    older = False

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if self.older and "/mutatingadmissionpolicies" in request.path:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if self.says != 200 and (request.method == "POST" or "/mutatingadmissionpolicies" in request.path):
            return web.json_response({"kind": "Status", "code": self.says, "message": "no!"}, status=self.says)
        if "admissionpolicies" in request.path:
            return web.json_response({"items": [{"metadata": {"name": name}} for name in self.there]})
        if request.method == "POST" and request.query.get("dryRun") == "All":
            made = await request.json()
            return web.json_response({**made, "spec": {**made["spec"], "suspend": self.holds}}, status=201)
        return await super()._route(request)


FOUR = ("a", "b", "c", "d")
GUARD = "ValidatingAdmissionPolicy"
GONE = ", and not all that guards it is there: install"
REFUSED = "the dry run of a Job in namespace default was refused, so that nobody knows"
INSTALL = "; are the policies installed? kubectl apply -f config/policies.yaml, or the chart's"


@pytest.mark.parametrize(
    ("mode", "holds", "there", "says", "told"),
    [
        ("policy", True, FOUR, 200, "a labelled Job is held by policy"),
        ("webhook", True, FOUR, 200, "a labelled Job is held by webhook"),
        ("webhook", False, FOUR, 200, "a labelled Job was not held (webhook)"),
        ("policy", False, FOUR, 200, f"a labelled Job was not held (policy){INSTALL}"),
        ("policy", True, FOUR[:3], 200, f"a labelled Job is held by policy{GONE} {GUARD} d again"),
        (
            "webhook",
            False,
            (),
            200,
            f"a labelled Job was not held (webhook){GONE} {GUARD} a, {GUARD} b, {GUARD} c and 1 more again",
        ),
        ("policy", True, FOUR, 403, f"{REFUSED} (403 Forbidden: no!)"),
        ("policy", True, FOUR[1:], 403, f"{REFUSED}{GONE} {GUARD} a again (403 Forbidden: no!)"),
    ],
)
async def test_what_the_proof_of_the_hold_says(
    mode: Mode, holds: bool, there: tuple[str, ...], says: int, told: str
) -> None:
    wanted = [{"kind": GUARD, "metadata": {"name": name}} for name in FOUR]
    async with Judge() as cluster, Client.plain(cluster.url, token="admin-token") as client:
        cluster.holds, cluster.there, cluster.says = holds, there, says
        found = await prove(client, NAMES, "default", mode, wanted=wanted)
    surely = holds and there == FOUR and says == 200
    assert (found.mode, found.holds, found.message) == (mode, surely, told)
    assert found.reason == f"{'HeldBy' if surely else 'NotHeldBy'}{mode.capitalize()}"


TWELVE = tuple(f"guard-{n}" for n in range(12))


@pytest.mark.parametrize("says", [200, 403])
@pytest.mark.parametrize(
    ("gone", "later", "news"),
    [
        pytest.param(TWELVE, TWELVE[:6], True, id="other numbers are gone"),
        pytest.param(TWELVE[1:2], TWELVE[2:3], True, id="another is gone"),
        pytest.param(TWELVE[1:2], TWELVE[1:2], False, id="the same is gone"),
    ],
)
async def test_what_else_guards_is_gone_is_news(
    gone: tuple[str, ...], later: tuple[str, ...], news: bool, says: int
) -> None:
    """Else the condition asks for ever for what is there."""
    wanted = [{"kind": GUARD, "metadata": {"name": name}} for name in TWELVE]
    found: list[Held] = []
    async with Judge() as cluster, Client.plain(cluster.url, token="admin-token") as client:
        cluster.says = says
        for missing in (gone, later):
            cluster.there = tuple(name for name in TWELVE if name not in missing)
            found.append(await prove(client, NAMES, "default", "webhook", wanted=wanted))
    before, after = found
    assert after.is_news_after(before) is news


async def test_of_policies_that_an_api_server_cannot_have_nobody_is_told_to_install_them_again() -> None:
    """One of several that are being upgraded, or that were taken back to an older version."""
    wanted = [{"kind": "MutatingAdmissionPolicy", "metadata": {"name": name}} for name in FOUR]
    async with Judge() as cluster, Client.plain(cluster.url, token="admin-token") as client:
        cluster.there, cluster.older, cluster.holds = FOUR, True, False
        found = await prove(client, NAMES, "default", "policy", wanted=wanted)
    assert not found.holds
    assert "install" not in found.message
    assert "this API server has no MutatingAdmissionPolicies" in found.message


@pytest.mark.parametrize(("says", "served"), [(200, True), (403, True), (404, False)])
async def test_whether_an_api_server_has_policies_that_hold(says: int, served: bool) -> None:
    """One that forbids to look at them has them."""
    async with Judge() as cluster, Client.plain(cluster.url, token="admin-token") as client:
        cluster.says = says
        assert await policies_served(client) is served


class Away(Cluster):
    """An older API server, and one that is away at first."""

    here = True
    asked = 0

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if not self.here:
            self.asked += 1
            return web.json_response({"kind": "Status", "code": 503, "reason": "ServiceUnavailable"}, status=503)
        if "mutatingadmissionpolic" in request.path:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return await super()._route(request)


class Busy(Cluster):
    """It has no time for dry runs, as long as `says` is not 0."""

    says = 503
    asked = 0

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if self.says and request.query.get("dryRun") == "All":
            self.asked += 1
            return web.json_response({"kind": "Status", "code": self.says, "reason": "Busy"}, status=self.says)
        return await super()._route(request)


@pytest.mark.parametrize("says", [503, 504])
async def test_an_api_server_that_has_no_time_for_the_proof_says_nothing_of_the_hold(
    says: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admission.controller.serve.AGAIN_S", 0.02)
    cluster = Busy()
    cluster.says = says

    async def asked_in_vain() -> bool:
        return cluster.asked > 3

    async with served("holdProofPeriod: 20ms\n", given=cluster) as (_, replica):

        async def proven() -> bool:
            return replica.held is not None and replica.held.holds

        async def leads() -> bool:
            return replica.controller.leading

        await until(leads)
        await until(asked_in_vain)
        assert (replica.held, replica.controller.stale.held) == (None, None)
        cluster.says = 0
        await until(proven)
        cluster.says, cluster.asked = says, 0
        await until(asked_in_vain)
        assert await proven()


class Breaks(Cluster):
    """Its calls of a webhook break, over another port each time."""

    asked = 0

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("dryRun") != "All":
            return await super()._route(request)
        self.asked += 1
        text = f'failed calling webhook "x": read tcp 10.0.0.2:{40_000 + self.asked}->10.0.0.9:443: connection reset'
        status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": text}
        return web.json_response(status, status=500)


async def test_a_hold_that_fails_in_other_numbers_each_time_is_no_news() -> None:
    """It is proven every two seconds then: each queue would be written as often."""
    cluster = Breaks()
    with capture_logs() as lines:
        async with served("holdProofPeriod: 20ms\n", given=cluster) as (_, replica):

            async def asked() -> bool:
                return cluster.asked > 20

            await until(asked)
            assert replica.held is not None
            assert not replica.held.holds
            assert "10.0.0.2:40001" in replica.held.message
            stale = replica.controller.stale
            await stale.write()
            was = stale.held
            await until(partial(_more, cluster, cluster.asked + 5))
            assert stale.held is was
    assert len([line for line in lines if line["event"] == "hold"]) == 1


async def _more(cluster: Breaks, asked: int) -> bool:
    return cluster.asked > asked


def test_who_refuses_as_it_begins_says_nothing_of_the_hold() -> None:
    assert says_nothing(Beginning(403, "Forbidden", "no roles yet", ambiguous=False))
    assert not says_nothing(Forbidden(403, "Forbidden", "no"))


@pytest.mark.parametrize("answers", [503, 504, 403])
async def test_whether_pins_are_bound_is_not_guessed_where_nobody_says(answers: int) -> None:
    async with Judge() as cluster, Client.plain(cluster.url, token="admin-token", backoff=(0.001, 0.01)) as client:
        cluster.says = answers
        if answers == 403:
            assert not await policies_bound(client, ("pins",))
        else:
            with pytest.raises(ApiError):
                await policies_bound(client, ("pins",))


@pytest.mark.parametrize("hold", ["webhook", "auto"])
async def test_who_starts_while_the_api_server_is_away_waits_for_it(hold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How jobs are held is asked and not guessed: its webhook serves where there are no policies."""
    monkeypatch.setattr("admission.controller.serve.AGAIN_S", 0.02)
    port = free_port()
    text = HEAD.replace("hold: webhook", f"hold: {hold}") + f"webhook: {{host: 127.0.0.1, port: {port}}}\n"
    found: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()

    async def started(replica: Replica) -> None:
        found.set_result(replica)

    async with (
        Away() as cluster,
        Client.plain(cluster.url, token="admin-token", backoff=(0.001, 0.01), read_timeout=0.1) as client,
    ):
        await install(cluster, client)
        await client.create(CLASSES, priority_class(NAMES))
        await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        cluster.here = False
        url = f"https://127.0.0.1:{port}"
        running = asyncio.ensure_future(
            serve(client, load_config(text), namespace=HOME, webhook_url=url, started=started)
        )

        async def several() -> bool:
            return running.done() or cluster.asked > 40

        try:
            await until(several)
            assert not running.done()
            assert not found.done(), "nothing is served that cannot be told of"
            cluster.here, client.read_timeout = True, 60.0
            replica = await asyncio.wait_for(found, 300)

            async def proven() -> bool:
                return replica.held is not None and replica.held.holds

            await until(proven)
            assert replica.held is not None
            assert replica.held.mode == "webhook"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class Keeps(Cluster):
    """It lets nobody make Secrets, as the chart lets the controller."""

    denies = True
    asked = 0

    async def _route(self, request: web.Request) -> web.StreamResponse:
        if self.denies and request.method == "POST" and request.path.endswith("/secrets"):
            self.asked += 1
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        return await super()._route(request)


async def test_a_replica_that_finds_no_secret_for_its_certificate_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deleted it. One that ended would be started ever later, and no job be created long after it is back."""
    monkeypatch.setattr("admission.controller.serve.AGAIN_S", 0.02)
    cluster = Keeps()

    async def comes_back() -> None:
        while cluster.asked < 20:
            await asyncio.sleep(0.02)
        cluster.denies = False

    coming = asyncio.ensure_future(comes_back())
    with capture_logs() as lines:
        async with served(given=cluster) as (_, replica):
            await coming

            async def proven() -> bool:
                return replica.held is not None and replica.held.holds

            await until(proven)
    said = [line for line in lines if line["event"] == "waits for what it may not have"]
    assert [line["log_level"] for line in said].count("warning") == 1
    assert "helm upgrade" in said[0]["error"]


async def test_who_makes_pods_and_children_is_said_by_the_file() -> None:
    """Names of the file may do what controllers do; the usual names, which it leaves out, may not."""
    text = "jobControllerUsers: [our-jobs]\njobsetControllerUsers: [our-jobsets]\n"
    usual = "system:serviceaccount:jobset-system:jobset-controller-manager"
    async with served(text, users=("our-jobs", "our-jobsets", usual)) as (client, replica):

        async def tried(user: str, path: str, made: dict[str, Any]) -> str:
            async with Client.plain(client.url, token=f"{user}-token") as asking:
                try:
                    await asking.create(path, made)
                except ApiError as error:
                    return error.message
            return ""

        async def leads() -> bool:
            return replica.controller.leading

        await until(leads)
        child = job("team-a", "child", 1, 1)
        child["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "set"}
        child["metadata"]["ownerReferences"] = [_owner("jobset.x-k8s.io/v1alpha2", "JobSet", "set")]
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        assert "made and changed by the JobSet controller" in await tried(usual, path, child)
        assert await tried("our-jobsets", path, child) == ""
        pod = job("team-a", "pod", 1, 1)["spec"]["template"]
        pod |= {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] |= {"name": "pod", "namespace": "team-a", "labels": {NAMES.managed_label: "true"}}
        pod["metadata"]["ownerReferences"] = [_owner("batch/v1", "Job", "child")]
        path = "/api/v1/namespaces/team-a/pods"
        marker, unpinned = [await tried(user, path, pod) for user in ("our-jobsets", "our-jobs")]
        assert marker.endswith(Messages(NAMES).pod_marker)
        assert NAMES.pin_form_annotation in unpinned, "whose pod it is was no question"


def _owner(api: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": name, "controller": True, "blockOwnerDeletion": True}


async def test_its_webhook_has_the_certificate_of_the_files_that_the_file_names(tmp_path: Path) -> None:
    made = certificates.issue(None, ["127.0.0.1"], datetime.now(UTC))  # noqa: TID251 - TLS looks at the calendar
    for name, data in ((CERT, made.cert), (KEY, made.key), (CA_CERT, made.ca_cert)):
        (tmp_path / name).write_bytes(data)
    port = free_port()
    text = f"webhook: {{host: 127.0.0.1, port: {port}, certificate: files, certDir: {tmp_path}}}\n"
    async with served(text, port=port) as (client, replica):

        async def told() -> bool:
            path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster"
            hooks = (await client.get(path))["webhooks"]
            told = {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks}
            return told == {made.ca_cert} and replica.controller.leading

        await until(told)
        held = await client.create("/apis/batch/v1/namespaces/team-a/jobs", job("team-a", "held", 1, 1))
        assert held["spec"]["suspend"] is True, "the API server believes it"


@pytest.mark.parametrize(("form", "level"), [("console", "info"), ("json", "error")])
async def test_the_program_listens_and_logs_as_the_file_says(tmp_path: Path, form: str, level: str) -> None:
    ports = {name: free_port() for name in ("metrics", "health", "web", "webhook")}
    async with Cluster() as cluster:
        async with Client.plain(cluster.url, token="admin-token") as client:
            await install(cluster, client)
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(cluster.kubeconfig()))
        (tmp_path / "muster.yaml").write_text(
            HEAD
            + f"""logging: {{format: {form}, level: {level}}}
health: {{bindAddress: "127.0.0.1:{ports["health"]}"}}
web: {{bindAddress: "127.0.0.1:{ports["web"]}", tls: none}}
metrics: {{bindAddress: "127.0.0.1:{ports["metrics"]}", enableClusterQueueResources: false}}
webhook: {{host: 127.0.0.1, port: {ports["webhook"]}}}
"""
        )
        arguments = ["controller", "--config", str(tmp_path / "muster.yaml"), "--namespace", "default"]
        arguments += ["--webhook-url", f"https://127.0.0.1:{ports['webhook']}"]
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "admission.cli",
            *arguments,
            "--kubeconfig",
            str(tmp_path / "kubeconfig"),
            stderr=asyncio.subprocess.PIPE,
        )
        async with aiohttp.ClientSession() as session:

            async def asked(name: str, path: str) -> tuple[int, str]:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"http://127.0.0.1:{ports[name]}{path}") as answer:
                        return answer.status, await answer.text()
                return 0, ""

            async def ready() -> bool:
                assert program.returncode is None, (await program.communicate())[1].decode()
                return await asked("health", "/readyz") == (200, "ok\n")

            await until(ready)
            _, shown = await asked("metrics", "/metrics")
            assert "muster_cluster_queue_weighted_share{" in shown
            assert "muster_cluster_queue_nominal_quota{" not in shown

            async def served() -> bool:
                return (await asked("web", "/"))[0] == 200

            await until(served)
        program.send_signal(signal.SIGINT)
        _, said = await program.communicate()
        assert program.returncode == 0
        lines = said.decode().splitlines()
        if level == "error":
            assert lines == [], said.decode()
        else:
            assert [line for line in lines if "[info" in line]
            assert not [line for line in lines if line.startswith("{")], "for people"


async def test_it_is_alive_while_the_api_server_does_not_answer(tmp_path: Path) -> None:
    """It accepts, and says nothing: a process that were ended for that would wait anew from the beginning."""
    port, open_ = free_port(), asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await open_.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    named = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [named]}
    kubeconfig |= {"clusters": [{"name": "c", "cluster": {"server": at}}]}
    kubeconfig |= {"users": [{"name": "u", "user": {"token": "t"}}]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    listens = f'health: {{bindAddress: "127.0.0.1:{port}"}}\nmetrics: {{bindAddress: "127.0.0.1:{port}"}}\n'
    (tmp_path / "muster.yaml").write_text(HEAD.replace("hold: webhook", "hold: auto") + listens)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "admission.cli", "controller", "--config", str(tmp_path / "muster.yaml")),
        *("--kubeconfig", str(tmp_path / "kubeconfig"), "--namespace", "default"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def asked(path: str) -> tuple[int, str]:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(path) as answer:
                    return answer.status, await answer.text()
            return 0, ""

        async def alive() -> bool:
            assert program.returncode is None
            return await asked("/healthz") == (200, "ok\n")

        await until(alive)
        assert await asked("/readyz") == (503, "starting\n")
        assert await asked("/metrics") == (200, "")
    program.send_signal(signal.SIGINT)
    await program.wait()
    open_.set()
    server.close()
    assert program.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_who_is_ended_before_it_has_begun_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """As the first process of a container it would never hear a signal for which it has no handler."""
    there = tmp_path / "there"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}
    plugin |= {"args": ["-c", f"echo $$ > {there}.pid; mv {there}.pid {there}; exec sleep 600"]}
    named = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [named]}
    kubeconfig |= {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]}
    kubeconfig |= {"users": [{"name": "u", "user": {"exec": plugin}}]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "admission.cli", "controller", "--kubeconfig", str(tmp_path / "kubeconfig")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(300):
        while not there.exists():
            await asyncio.sleep(0.01)
        program.send_signal(number)
        await program.wait()
    os.kill(int(there.read_text()), signal.SIGKILL)
    assert program.returncode == 0


async def test_what_keeps_it_from_starting_is_said_in_a_sentence(tmp_path: Path) -> None:
    """A port that is taken, and a kubeconfig that is none."""

    async def started(*arguments: str) -> tuple[int | None, str]:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "admission.cli", "controller", *arguments),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await program.communicate()
        return program.returncode, said.decode()

    async with Cluster() as cluster:
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(cluster.kubeconfig()))
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = other.getsockname()[1]
            listens = f'health: {{bindAddress: "127.0.0.1:{taken}"}}\n'
            (tmp_path / "muster.yaml").write_text(HEAD.replace("webhook", "policy") + listens)
            code, said = await started(
                *("--config", str(tmp_path / "muster.yaml"), "--kubeconfig", str(tmp_path / "kubeconfig"))
            )
    assert (code, "Traceback" in said) == (2, False), said
    assert str(taken) in said
    assert "address already in use; health.bindAddress" in said
    code, said = await started("--kubeconfig", str(tmp_path / "nowhere"))
    assert (code, "Traceback" in said) == (4, False), said
    assert "no usable kubeconfig" in said


@pytest.mark.parametrize(("enable", "after"), [("true", 300_000), ("false", None)])
def test_pods_are_waited_for_where_the_file_says_so(enable: str, after: int | None) -> None:
    settings = settings_of(load_config(HEAD + f"waitForPodsReady: {{enable: {enable}, timeout: 5m}}\n"))
    assert (settings.pods_ready_ms, settings.recovery_ms) == (after, after)


@pytest.mark.parametrize(
    ("error", "where", "level"),
    [
        (
            RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"),
            True,
            "debug",
        ),
        (ConnectionResetError("Connection reset by peer"), True, "debug"),
        (RuntimeError("another one"), True, "error"),
        (OSError("of a task"), False, "error"),
        (None, False, "error"),
    ],
    ids=["closed under TLS", "reset", "of a protocol", "of a task", "no exception"],
)
async def test_what_nobody_waited_for_is_a_line_and_an_error_unless_a_connection_broke(
    error: Exception | None, where: bool, level: str
) -> None:
    loop = asyncio.get_running_loop()
    context: dict[str, Any] = {"message": "said"} | ({"transport": object()} if where else {})
    before = loop.get_exception_handler()
    loop.set_exception_handler(told_by_loop)
    try:
        with capture_logs() as lines:
            loop.call_exception_handler(context | ({"exception": error} if error is not None else {}))
    finally:
        loop.set_exception_handler(before)
    assert [(line["log_level"], line["said"]) for line in lines] == [(level, "said")]
