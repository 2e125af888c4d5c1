"""A port with so many connections: whoever opens more keeps out nobody but himself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web

from admission.controller import certificates
from admission.kube import port

MOST = 8
STRANGER = "127.0.0.2"


class Served:
    """One port. `/held` is answered when `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.asked = asyncio.Event()
        self.app = web.Application()
        self.app.add_routes([web.get("/", self._ok), web.get("/held", self._held)])
        self.at: tuple[str, int] = ("", 0)
        self.runner: web.AppRunner | None = None

    async def _ok(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _held(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.release.wait()
        return web.Response(text="at last")

    async def opened(self, source: str = STRANGER, ask: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from this address, over which this is asked, or nothing."""
        reader, writer = await asyncio.open_connection(*self.at, local_addr=(source, 0))
        if ask:
            writer.write(f"GET {ask} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return reader, writer


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    made = Served()
    made.runner = await port.listen(made.app, "127.0.0.1", 0, tls)
    made.at = made.runner.addresses[0][:2]
    try:
        yield made
    finally:
        await made.runner.cleanup()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "MOST_CONNECTIONS", MOST)
    monkeypatch.setattr(port, "HANDSHAKE_S", 3600.0)


@pytest.mark.parametrize("by_tls", [False, True])
async def test_who_opens_connections_without_end_keeps_nobody_out_and_fills_no_memory(by_tls: bool) -> None:
    """By TLS none of them ever begins its handshake: it costs memory all the same."""
    have = certificates.issue(None, ["localhost"], datetime.now(UTC))  # noqa: TID251 - certificates live by it
    trust = ssl.create_default_context(cadata=have.bundle.decode()) if by_tls else False
    async with served(certificates.context(have) if by_tls else None) as one:
        streams = [await one.opened() for _ in range(50)]
        url = f"{'https' if by_tls else 'http'}://localhost:{one.at[1]}/"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as answer:
            assert await answer.text() == "ok"
        async with asyncio.timeout(60):
            ended = await asyncio.gather(*(reader.read() for reader, _ in streams[: 50 - MOST + 1]))
        assert set(ended) == {b""}, "the oldest make room"
        for _, writer in streams:
            writer.close()


async def test_the_room_is_made_by_the_address_that_has_most() -> None:
    async with served() as one:
        reader, writer = await one.opened("127.0.0.1")
        streams = [await one.opened() for _ in range(50)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(stream.read() for stream, _ in streams[: 50 - MOST + 1]))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, each in streams:
            each.close()
        writer.close()


async def test_who_is_being_answered_goes_last() -> None:
    """As a page that hears of changes, behind the same proxy as all others."""
    async with served() as one:
        reader, writer = await one.opened(ask="/held")
        async with asyncio.timeout(60):
            await one.asked.wait()
            streams = [await one.opened() for _ in range(50)]
            await asyncio.gather(*(stream.read() for stream, _ in streams[: 50 - MOST + 1]))
            one.release.set()
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, each in streams:
            each.close()
        writer.close()


async def test_a_port_that_is_taken_is_said() -> None:
    async with served() as one:
        with pytest.raises(OSError, match="address already in use"):
            await port.listen(web.Application(), *one.at)
