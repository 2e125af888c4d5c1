"""The certificate of the page and the visibility API: made once for all replicas, told to the API server, renewed while
it is served."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from admission.controller.aggregate import SECRET, Aggregate
from admission.kube.client import Client, Conflict
from admission.names import Names
from admission.sandbox.http import Sandbox
from admission.web import health

HOME = "muster-system"
APIS = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME = "v1beta1.visibility.muster.dev"
T0 = datetime.now(UTC) - timedelta(days=61)  # noqa: TID251 - the handshakes here are real, and so is their calendar


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """An API server with an aggregation layer, as far as this asks of it."""
    async with Sandbox(with_actors=False) as sandbox, Client.plain(sandbox.url, token="admin-token") as made:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "apiservices.apiregistration.k8s.io"},
            "spec": {
                "group": "apiregistration.k8s.io",
                "scope": "Cluster",
                "names": {"plural": "apiservices", "singular": "apiservice", "kind": "APIService", "listKind": "L"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        await made.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await made.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        yield made


class Replica:
    """One that serves; `now` is its calendar."""

    def __init__(self, client: Client) -> None:
        self.now = T0
        self.believed: list[Mapping[str, str]] = []
        self.made = Aggregate(client, Names(), namespace=HOME, believe=self._believe, now=lambda: self.now)
        self.port = 0

    def _believe(self, data: Mapping[str, str]) -> str:
        self.believed.append(data)
        if "ca" not in data:
            raise ValueError("no CA")
        return data["ca"]

    async def look(self) -> None:
        await self.made._look()

    async def leaf(self, bundle: str) -> bytes:
        """The certificate that it shows to a caller who trusts `bundle` and knows the Service by its name."""
        assert self.made.context is not None
        runner = await health.serve(web.Application(), "127.0.0.1:0", self.made.context)
        try:
            trusts = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            trusts.verify_flags |= ssl.VERIFY_X509_STRICT
            port = runner.addresses[0][1]
            name = f"muster-web.{HOME}.svc"
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusts, server_hostname=name)
            found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return found
        finally:
            await runner.cleanup()


async def _bundle(client: Client) -> str:
    return str((await client.get(f"{APIS}/{NAME}"))["spec"]["caBundle"])


async def test_replicas_share_a_certificate_that_the_api_server_trusts(client: Client) -> None:
    wanted: dict[str, Any] = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": NAME},
    }
    await client.create(APIS, wanted | {"spec": {"group": "visibility.muster.dev", "service": {"name": "muster-web"}}})
    one, two = Replica(client), Replica(client)
    await asyncio.gather(one.look(), two.look())
    bundle = await _bundle(client)
    assert await one.leaf(bundle) == await two.leaf(bundle)
    assert one.made.ends_at == two.made.ends_at
    assert one.made.ends_at - T0 > timedelta(days=80)
    assert (await client.get(f"{APIS}/{NAME}"))["spec"]["group"] == "visibility.muster.dev"

    # After two thirds of its life there is a new one; the running server shows it, and callers need not be told anew.
    old = await one.leaf(bundle)
    one.now = two.now = T0 + timedelta(days=61)
    ended = one.made.ends_at
    await one.look()
    assert await one.leaf(bundle) != old
    assert one.made.ends_at - ended == timedelta(days=61)
    assert await two.leaf(bundle) == old
    await two.look()
    assert await two.leaf(bundle) == await one.leaf(bundle)
    assert await _bundle(client) == bundle

    # A Secret that is lost is filled again with what both serve.
    leaf = await one.leaf(bundle)
    await client.delete(f"/api/v1/namespaces/{HOME}/secrets/{SECRET}")
    await one.look()
    assert await _bundle(client) == bundle
    await two.look()
    assert await one.leaf(bundle) == await two.leaf(bundle) == leaf

    # Whoever overwrites the bundle has it put right at the next look.
    raw = await client.get(f"{APIS}/{NAME}")
    await client.put(f"{APIS}/{NAME}", {**raw, "spec": {**raw["spec"], "caBundle": ""}})
    await one.look()
    assert await _bundle(client) == bundle


async def test_no_leaf_is_served_whose_ca_callers_do_not_know(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": NAME}}
    await client.create(APIS, wanted | {"spec": {"group": "visibility.muster.dev"}})
    one = Replica(client)
    await one.look()
    ended, put = one.made.ends_at, client.put

    async def somebody_is_quicker(path: str, obj: Any, **options: Any) -> dict[str, Any]:
        if path.startswith(APIS):
            raise Conflict(409, "Conflict", "the object has been modified")
        return await put(path, obj, **options)

    one.now = T0 + timedelta(days=4 * 365)  # the CA is renewed as well
    with monkeypatch.context() as patched:
        patched.setattr(client, "put", somebody_is_quicker)
        with pytest.raises(TimeoutError):
            await one.look()
    assert one.made.ends_at == ended
    await one.look()
    assert one.made.ends_at > ended


async def test_that_the_front_proxy_is_not_known_is_told_now_and_then(client: Client) -> None:
    """It is looked for each minute, for months."""
    one = Replica(client)
    with capture_logs() as lines:
        for _ in range(5):
            await one.look()
    told = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert told == ["the front proxy of the API server is not known"]


async def test_the_page_is_served_without_an_api_service_and_without_a_front_proxy(client: Client) -> None:
    one = Replica(client)
    await one.look()
    assert one.made.context is not None
    assert one.made.context.verify_mode is ssl.CERT_NONE
    secret = await client.get(f"/api/v1/namespaces/{HOME}/secrets/{SECRET}")
    ca = base64.b64decode(secret["data"]["ca.crt"]).decode()

    # The ConfigMap comes: from then on client certificates are asked for, and of nobody demanded.
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {},
    }
    path = "/api/v1/namespaces/kube-system/configmaps"
    await client.create(path, config)
    await one.look()
    assert one.believed == [{}]
    assert one.made.context.verify_mode is ssl.CERT_NONE
    await client.merge_patch(f"{path}/extension-apiserver-authentication", {"data": {"ca": ca}})
    await one.look()
    assert one.made.context.verify_mode is ssl.CERT_OPTIONAL
    assert one.made.context.cert_store_stats()["x509_ca"] == 1
    assert await one.leaf(secret["data"]["ca.crt"])
