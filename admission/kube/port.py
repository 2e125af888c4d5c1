"""A port that others reach: so many connections and no more, and who has most makes room.

Each costs memory of the process that decides from the moment it is accepted, also one that never ends its handshake.
Where all places are taken, a new one gets one of the address that has most: first of those over which nothing is
asked, and of these the oldest. So whoever opens them without end keeps out himself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from dataclasses import dataclass

from aiohttp import web

MOST_CONNECTIONS = 512
HANDSHAKE_S = 5.0
"""So long a connection by TLS may take to begin, and to end."""
AGAIN_S = 0.1
"""Until the next try where none can be accepted: no more files may be open."""
_BACKLOG = 128


async def listen(
    app: web.Application, host: str | None, port: int, tls: ssl.SSLContext | None = None, *, idle_s: float = 3600.0
) -> web.AppRunner:
    """Serve; the caller cleans the runner up. host: None or empty for every interface. idle_s: seconds after which a
    connection is closed over which nothing was asked for. Raises OSError where it cannot listen."""
    # Whoever still waits for an answer then is not waited for: the process has some seconds to end.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2, keepalive_timeout=idle_s)
    await runner.setup()
    await _Site(runner, host or None, port, tls).start()
    return runner


@dataclass(eq=False, slots=True)
class _Connection:
    source: str
    """Address that it comes from."""
    handler: web.RequestHandler
    begins: asyncio.Task[None] | None = None
    """Its handshake, until that is over."""

    @property
    def asks(self) -> bool:
        return self.handler._current_request is not None

    def close(self) -> None:
        if self.begins is not None:
            self.begins.cancel()
        elif self.handler.transport is not None:
            self.handler.transport.abort()  # what nobody takes is not waited for


class _Listening:
    """What aiohttp asks of who listens."""

    def __init__(self, sockets: list[socket.socket], accepting: list[asyncio.Task[None]]) -> None:
        self.sockets = sockets
        self._accepting = accepting

    def close(self) -> None:
        for task in self._accepting:
            task.cancel()


class _Site(web.BaseSite):
    def __init__(self, runner: web.AppRunner, host: str | None, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, ssl_context=tls)
        self._at = host, port
        self._open: dict[_Connection, None] = {}
        """The oldest first; some may be gone."""

    @property
    def name(self) -> str:
        return f"{self._at[0] or '*'}:{self._at[1]}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        # Its sockets alone: it would tell of no connection before the handshake is over.
        bound = await loop.create_server(asyncio.Protocol, *self._at, start_serving=False)
        sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in bound.sockets]
        bound.close()
        for one in sockets:
            one.setblocking(False)
            one.listen(_BACKLOG)
        accepting = [loop.create_task(self._accept(one)) for one in sockets]
        self._server = _Listening(sockets, accepting)  # type: ignore[assignment] # no more is asked of it

    async def _accept(self, listening: socket.socket) -> None:
        loop, server = asyncio.get_running_loop(), self._runner.server
        assert server is not None
        with listening:
            while True:
                try:
                    accepted, (host, *_) = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(AGAIN_S)
                    continue
                made = _Connection(host, server())
                self._make_room(made)
                self._open[made] = None
                made.begins = loop.create_task(self._begin(made, accepted))
                await asyncio.sleep(0)  # asyncio's own loop accepts the next at once, and nobody else has a turn

    async def _begin(self, made: _Connection, accepted: socket.socket) -> None:
        limit = HANDSHAKE_S if self._ssl_context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: made.handler,
                accepted,
                ssl=self._ssl_context,
                ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=limit,
            )
        except OSError:
            self._open.pop(made, None)
        finally:
            made.begins = None

    def _make_room(self, new: _Connection) -> None:
        if len(self._open) < MOST_CONNECTIONS:
            return
        server = self._runner.server
        there = set(server.connections) if server is not None else set()
        for gone in [one for one in self._open if one.begins is None and one.handler not in there]:
            del self._open[gone]
        while len(self._open) >= MOST_CONNECTIONS:
            has = Counter(one.source for one in (*self._open, new))
            most = max(has.values())
            theirs = [one for one in self._open if has[one.source] == most]
            last = min(theirs, key=lambda one: one.asks)
            del self._open[last]
            last.close()
