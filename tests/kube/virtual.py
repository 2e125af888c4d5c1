"""An event loop whose clock jumps to the next timer whenever nothing is ready: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Loop(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        due = [timer._when for timer in self._scheduled if not timer._cancelled]
        if not self._ready and due:
            self.now = max(self.now, min(due))
        super()._run_once()


def virtually(main: Callable[[], Awaitable[None]]) -> None:
    loop = Loop()
    try:
        loop.run_until_complete(main())
    finally:
        while left := asyncio.all_tasks(loop):  # what is frozen takes more than one cancellation to end
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=60))
        loop.close()
