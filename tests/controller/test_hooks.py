"""The webhook's certificate. One that somebody else makes: read from files, its rotation noticed, its CA told to the
API server. Our own: callers trust every replica, whatever becomes of the Secret."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web_response
from cryptography import x509
from structlog.testing import capture_logs

from admission.controller import certificates
from admission.controller.certificates import CA_CERT, CERT, KEY, Certificates, ends_at, from_files, issue
from admission.controller.hooks import SECRET, Hooks
from admission.kube.client import Conflict, Forbidden
from admission.kube.clock import ServerClock
from admission.sandbox.play import free_port
from tests.controller.lab import NAMES, World
from tests.controller.test_keep import until

NOW = datetime.now(UTC)  # noqa: TID251 - TLS looks at the calendar
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/muster"


@pytest.fixture
def port() -> int:
    return free_port()


def put(folder: Path, made: Certificates, *, ca: bool = True) -> None:
    """As the kubelet does it: all files change at once, by a link."""
    new = folder.parent / f"{folder.name}-{len(list(folder.parent.iterdir()))}"
    new.mkdir()
    for name, text in ((CERT, made.cert), (KEY, made.key), *([(CA_CERT, made.ca_cert)] if ca else [])):
        (new / name).write_bytes(text)
    link = folder.parent / "link"
    link.symlink_to(new)
    link.rename(folder)


def a_certificate(days: float = 30) -> Certificates:
    return issue(None, ["127.0.0.1"], NOW - timedelta(days=90 - days))


async def served(port: int, trust: bytes) -> bytes:
    context = ssl.create_default_context(cadata=trust.decode())
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return der


def der(made: Certificates) -> bytes:
    return ssl.PEM_cert_to_DER_cert(made.cert.decode())


@pytest.mark.parametrize("ca", [True, False], ids=["with its CA", "whose CA somebody injects"])
async def test_a_rotation_is_noticed(world: World, tmp_path: Path, port: int, ca: bool) -> None:
    folder, first, second = tmp_path / "certs", a_certificate(), a_certificate(60)
    put(folder, first, ca=ca)
    hooks = Hooks(
        world.client,
        NAMES,
        namespace="muster-system",
        host="127.0.0.1",
        port=port,
        url=f"https://127.0.0.1:{port}",
        folder=folder,
        look_every_s=0.01,
    )

    async def bundles() -> set[bytes]:
        found = await world.client.get(CONFIGURATIONS)
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in found["webhooks"]}

    await hooks.start()
    assert await bundles() == {first.ca_cert if ca else b""}
    if not ca:
        # Somebody else's work, as a rotation is; before `run`, which may write in between.
        found = await world.client.get(CONFIGURATIONS)
        for hook in found["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(second.ca_cert).decode()
        await world.client.put(CONFIGURATIONS, found)
    running = asyncio.ensure_future(hooks.run())
    try:
        assert await served(port, first.ca_cert) == der(first)
        assert hooks.ends_at == ends_at(first)
        (folder / CERT).write_bytes(second.cert)  # half of a new one: the old one is served on
        await asyncio.sleep(0.05)
        assert not running.done()
        assert await served(port, first.ca_cert) == der(first)
        put(folder, second, ca=ca)

        async def is_new() -> bool:
            try:
                return await served(port, second.ca_cert) == der(second)
            except ssl.SSLCertVerificationError:
                return False

        await until(is_new)
        assert hooks.ends_at == ends_at(second)
        assert await bundles() == {second.ca_cert}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


HOME = "muster-system"
SECRETS = f"/api/v1/namespaces/{HOME}/secrets"


@asynccontextmanager
async def replica(world: World, port: int, url: str = "") -> AsyncIterator[Hooks]:
    url = url or f"https://127.0.0.1:{port}"
    hooks = Hooks(world.client, NAMES, namespace=HOME, host="127.0.0.1", port=port, url=url, look_every_s=3600)
    await hooks.start()
    running = asyncio.ensure_future(hooks.run())
    try:
        yield hooks
    finally:
        await asyncio.sleep(0)  # begun, or it would not end in good order
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://[::1]:{port}/hooks", "::1"),
        ("https://[::1]", "::1"),
        ("https://[::1]/hooks", "::1"),
        ("https://muster.example", "muster.example"),
        ("https://10.0.0.1:8443", "10.0.0.1"),
    ],
)
async def test_the_certificate_is_for_the_host_of_the_url(world: World, port: int, url: str, host: str) -> None:
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    async with replica(world, port, url.format(port=port)):
        made = await world.client.get(f"{SECRETS}/{SECRET}")
    leaf = x509.load_pem_x509_certificate(base64.b64decode(made["data"][CERT]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == [host]


async def test_a_replica_that_leaves_answers_over_connections_that_are_kept(world: World, port: int) -> None:
    """And closes each with an answer: whoever asks meanwhile would fail, and with him a job's creation."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    url = f"https://127.0.0.1:{port}/mutate-jobs"
    review = {"request": {"uid": "u", "operation": "DELETE", "userInfo": {"username": "ann"}}}
    async with replica(world, port) as hooks:
        trust = ssl.create_default_context(cadata=(await told(world)).decode())
        running = asyncio.ensure_future(hooks.run())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=1)) as kept:

            async def asked() -> tuple[int, str]:
                async with kept.post(url, json=review) as answer:
                    await answer.read()
                    return answer.status, answer.headers.get("Connection", "")

            assert await asked() == (200, "")
            running.cancel()
            await asyncio.sleep(0)
            assert await asked() == (200, "close")
            await asyncio.gather(running, return_exceptions=True)
            with pytest.raises(aiohttp.ClientConnectionError):
                await asked()


async def test_a_replica_that_leaves_waits_for_no_review_that_hangs(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be killed in the midst of it, for it has twenty seconds."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    monkeypatch.setattr("admission.controller.hooks.PARTING_S", 0.01)
    asked = asyncio.Event()

    async def hangs(*_: Any, **__: Any) -> bool:
        asked.set()
        await asyncio.sleep(3600)
        raise AssertionError

    review = {"request": {"uid": "u", "operation": "UPDATE", "oldObject": {}, "userInfo": {"username": "ann"}}}
    async with replica(world, port) as hooks, asyncio.timeout(40):
        monkeypatch.setattr(hooks.webhook._access, "allowed", hangs)
        trust = ssl.create_default_context(cadata=(await told(world)).decode())
        running = asyncio.ensure_future(hooks.run())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            url = f"https://127.0.0.1:{port}/validate-jobs"
            asking = asyncio.ensure_future(session.post(url, json=review))
            await asked.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert running.cancelled()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def told(world: World) -> bytes:
    """The CAs that the API server trusts."""
    found = await world.client.get(CONFIGURATIONS)
    (bundle,) = {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in found["webhooks"]}
    return bundle


async def _deleted(world: World) -> None:
    await world.client.delete(f"{SECRETS}/{SECRET}")


async def _emptied(world: World) -> None:
    raw = await world.client.get(f"{SECRETS}/{SECRET}")
    await world.client.put(f"{SECRETS}/{SECRET}", {**raw, "data": {}})


async def _spoilt(world: World) -> None:
    rubbish = {"data": {CA_CERT: base64.b64encode(b"rubbish").decode()}}
    await world.client.merge_patch(f"{SECRETS}/{SECRET}", rubbish)


@pytest.mark.parametrize("harm", [_deleted, _emptied, _spoilt])
@pytest.mark.parametrize("look", [Hooks._renew, Hooks.restore], ids=["look", "restore"])
async def test_a_secret_that_is_lost_is_filled_again(world: World, harm, look) -> None:
    """With what is served: a new CA would leave those untrusted who have not looked since."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    ports = [free_port() for _ in range(2)]
    async with replica(world, ports[0]) as first, replica(world, ports[1]):
        before = await served(ports[0], await told(world))
        await harm(world)
        await look(first)
        trusted = await told(world)
        assert [await served(port, trusted) for port in ports] == [before, before]
        stored = (await world.client.get(f"{SECRETS}/{SECRET}"))["data"]
        assert ssl.PEM_cert_to_DER_cert(base64.b64decode(stored[CERT]).decode()) == before


@pytest.mark.parametrize(("days", "starts"), [(6, True), (-1, False)], ids=["due", "ended"])
async def test_a_certificate_that_may_not_be_renewed_is_served_until_it_ends(
    world: World, port: int, days: int, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a replica that starts, too: else a restart in its last month would end the controller."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    had = a_certificate(days)
    data = {name: base64.b64encode(value).decode() for name, value in had.data().items()}
    await world.put(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": HOME}, "data": data}
    )
    put = world.client.put

    async def refused(path: str, *arguments: Any, **more: Any) -> Any:
        if path == f"{SECRETS}/{SECRET}":
            raise Forbidden(403, "Forbidden", "may not update secrets")
        return await put(path, *arguments, **more)

    monkeypatch.setattr(world.client, "put", refused)
    with contextlib.ExitStack() as stack:
        if not starts:
            stack.enter_context(pytest.raises(Forbidden))
        async with replica(world, port) as hooks:
            assert await served(port, await told(world)) == der(had)
            with capture_logs() as lines:  # once it was told of already, and it may be so for a month
                for _ in range(5):
                    await hooks._renew()
            assert {line["log_level"] for line in lines} == {"debug"}


async def test_a_certificate_is_valid_by_the_clock_of_the_api_server(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that begins in its future, for this machine's clock is ahead, it takes for none: no job could be created."""

    def its_clock() -> datetime:
        return datetime.now(UTC) - timedelta(hours=1)  # noqa: TID251

    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    monkeypatch.setattr(web_response, "rfc822_formatted_time", lambda: format_datetime(its_clock(), usegmt=True))
    world.client.clock = ServerClock()
    async with replica(world, port):
        leaf = x509.load_der_x509_certificate(await served(port, await told(world)))
    assert leaf.not_valid_before_utc <= its_clock() < leaf.not_valid_after_utc


async def test_a_secret_made_without_the_chart_can_be_taken_over_by_it(world: World, port: int) -> None:
    """The type of a Secret cannot be changed, and Helm applies that of the chart."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    async with replica(world, port):
        made = await world.client.get(f"{SECRETS}/{SECRET}")
    installed = yaml.safe_load_all((Path(__file__).parents[2] / "config" / "controller.yaml").read_text())
    assert {made["type"]} == {one["type"] for one in installed if one["kind"] == "Secret"}


async def test_an_old_ca_is_not_written_over_a_new_one(world: World) -> None:
    """A replica that starts without a Secret makes a CA; the leader, told that jobs are not held, writes again."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    ports = [free_port() for _ in range(2)]
    async with replica(world, ports[0]) as leader:
        await _deleted(world)
        async with replica(world, ports[1]):
            new = await served(ports[1], await told(world))
            await leader.restore()
            trusted = await told(world)
            assert [await served(port, trusted) for port in ports] == [new, new]


@pytest.mark.parametrize(("kind", "left"), [("validating", None), ("validating", 0), ("mutating", 0), ("mutating", 1)])
async def test_what_is_taken_out_of_a_configuration_is_put_in_at_the_next_look(
    world: World, port: int, kind: str, left: int | None
) -> None:
    """A configuration that is gone, empty, or has but its first webhooks guards nothing, and says so to nobody."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    path = CONFIGURATIONS.replace("mutating", kind)
    async with replica(world, port) as hooks:
        whole = await world.client.get(path)
        if left is None:
            await world.client.delete(path)
        else:
            await world.client.put(path, {**whole, "webhooks": whole["webhooks"][:left]})
        await hooks._renew()
        assert (await world.client.get(path))["webhooks"] == whole["webhooks"]


async def test_a_leaf_of_a_new_ca_is_served_when_the_api_server_was_told_of_it(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes the configurations again and again (GitOps, Helm): what did not come to it was not told."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    put = world.client.put

    async def overtaken(path: str, *arguments: Any, **more: Any) -> Any:
        if path == CONFIGURATIONS:
            raise Conflict(409, "Conflict", "the object has been modified")
        return await put(path, *arguments, **more)

    async with replica(world, port) as hooks:
        before = await served(port, await told(world))
        new = {name: base64.b64encode(value).decode() for name, value in a_certificate(90).data().items()}
        await world.client.merge_patch(f"{SECRETS}/{SECRET}", {"data": new})
        monkeypatch.setattr(world.client, "put", overtaken)
        with pytest.raises(TimeoutError):
            await hooks._renew()
        assert await served(port, await told(world)) == before
        monkeypatch.undo()
        await hooks._renew()
        assert await served(port, await told(world)) == ssl.PEM_cert_to_DER_cert(base64.b64decode(new[CERT]).decode())


async def test_what_keeps_it_from_being_written_again_is_told_now_and_then(world: World, port: int) -> None:
    """It is tried every two seconds for as long as jobs are not held."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    async with replica(world, port) as hooks:
        await world.client.merge_patch(CONFIGURATIONS, {"webhooks": []})
        world.denied.add("PUT mutatingwebhookconfigurations")
        with capture_logs() as lines:
            for _ in range(5):
                await hooks.restore()
        assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["webhook not restored"]
        world.denied.clear()
        await hooks.restore()
        assert (await world.client.get(CONFIGURATIONS))["webhooks"]


async def test_whoever_deletes_the_secret_is_told_how_it_comes_back(world: World, port: int) -> None:
    """The chart makes it, and with it the right to create one is not needed. Now and then, and not at each look."""
    await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    async with replica(world, port) as hooks:
        await _deleted(world)
        world.denied.add("POST secrets")
        hooks._look_every_s = 0.001
        looks = 0

        async def looked() -> bool:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.01)
            return looks > 20

        with capture_logs() as lines:
            running = asyncio.ensure_future(hooks.run())
            await until(looked)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        told = [line for line in lines if line["log_level"] != "debug"]
        assert [line["event"] for line in told] == ["certificate not looked after"]
        assert len(lines) > 3
        assert f"the chart makes the Secret {SECRET}: helm upgrade" in told[0]["error"]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    with pytest.raises(OSError, match=r"tls\.crt"):
        from_files(folder)
    put(folder, a_certificate())
    assert from_files(folder).bundle == (folder / CA_CERT).read_bytes()
    (folder / KEY).write_bytes(a_certificate().key)
    with pytest.raises(ValueError, match="does not belong"):
        from_files(folder)
    (folder / CERT).write_bytes(b"rubbish")
    with pytest.raises(ValueError):
        from_files(folder)
    certificates.context(a_certificate())
