from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from admission.kube.client import Client
from tests.kube.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client.plain(server.url, read_timeout=5, write_timeout=5, backoff=(0.001, 0.01)) as open_client:
        yield open_client


@pytest.fixture
def settle() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until a condition holds. The limit is there against hanging for ever; no verdict depends on it."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():
                await asyncio.sleep(0.002)

    return wait
