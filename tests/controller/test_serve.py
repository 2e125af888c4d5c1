"""A replica as the program starts it, by its configuration file: what it writes and refuses in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from admission.api.config import load_config
from admission.controller.serve import Replica, serve
from admission.controller.setup import settings_of
from admission.kube.client import ApiError, Client, NotFound
from admission.names import Names
from admission.sandbox.play import free_port
from tests.web.running import Cluster, install, job

NAMES = Names()
HOME = "muster-system"
HEAD = "apiVersion: config.muster.dev/v1beta1\nkind: Configuration\nhold: webhook\n"


@contextlib.asynccontextmanager
async def served(text: str) -> AsyncIterator[tuple[Client, Replica]]:
    """A replica of this file in a sandbox, with a webhook that the API server reaches."""
    port = free_port()
    config = load_config(HEAD + text + f"webhook: {{host: 127.0.0.1, port: {port}}}\n")
    url = f"https://127.0.0.1:{port}"
    found: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()

    async def started(replica: Replica) -> None:
        found.set_result(replica)

    async with (
        Cluster() as cluster,
        Client.plain(cluster.url, token="admin-token", backoff=(0.001, 0.01)) as client,
    ):
        await install(cluster, client)
        for name in (HOME, "elsewhere"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.create("/api/v1/namespaces", namespace)
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
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(NotFound, KeyError):
                if answer := await look():
                    return answer
            await asyncio.sleep(0.02)


async def test_its_lease_has_the_name_of_the_file() -> None:
    text = "leaderElection: {resourceName: other, resourceNamespace: elsewhere}\n"
    async with served(text) as (client, replica):

        async def held() -> bool:
            lease = await client.get("/apis/coordination.k8s.io/v1/namespaces/elsewhere/leases/other")
            return replica.elector is not None and lease["spec"]["holderIdentity"] == replica.elector.identity

        await until(held)


async def test_without_election_it_leads_at_once_and_its_webhook_keeps_to_the_limits_of_the_file() -> None:
    text = "leaderElection: {leaderElect: false}\nmaxTerminationGracePeriodSeconds: 60\n"
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


@pytest.mark.parametrize(("enable", "after"), [("true", 300_000), ("false", None)])
def test_pods_are_waited_for_where_the_file_says_so(enable: str, after: int | None) -> None:
    settings = settings_of(load_config(HEAD + f"waitForPodsReady: {{enable: {enable}, timeout: 5m}}\n"))
    assert (settings.pods_ready_ms, settings.recovery_ms) == (after, after)
