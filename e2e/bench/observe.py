"""Watches the Workloads of a run beside the one who plays it, and adds up what their runs delivered and lost.

A run starts when Admitted is seen, and ends with Finished, or when it is evicted: what it ran until then is lost. All
that counts are differences between two events of one watch, so that being late costs nothing.

python -m e2e.bench.observe FOLDER: the kubeconfig is that in FOLDER/arguments, of the controller, once it is there;
what was seen goes to FOLDER/observed.json when it is told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from pathlib import Path

import msgspec

from admission.kube.client import Client
from e2e.bench.load import RUN_LABEL
from e2e.bench.play import lines

ARGUMENTS, OBSERVED = "arguments", "observed.json"


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    labels: dict[str, str] = {}
    resource_version: str = "0"


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class Seen(msgspec.Struct):
    """A Workload, as far as it matters here."""

    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: Seen


_decode = msgspec.json.Decoder(_Event).decode


class Observed:
    """What came of the runs so far, in seconds of run time."""

    def __init__(self) -> None:
        self.delivered_s = 0.0
        """Of those that finished, as their labels say."""
        self.evicted_s = 0.0
        """Of those that were evicted, until that was seen."""
        self.evictions = 0
        """Of runs that had begun."""
        self.version = "0"
        """Of the last change that was seen."""
        self._began: dict[str, float] = {}
        self._finished: set[str] = set()

    def see(self, one: Seen, now: float) -> None:
        """A Workload as it is `now` (seconds of any clock)."""
        uid = one.metadata.uid
        true = {condition.type for condition in one.status.conditions if condition.status == "True"}
        if uid in self._finished:
            return
        if "Finished" in true:
            self._finished.add(uid)
            self._began.pop(uid, None)
            self.delivered_s += int(one.metadata.labels.get(RUN_LABEL, "0")) / 1000
        elif "Evicted" in true or "Admitted" not in true:
            began = self._began.pop(uid, None)
            if began is not None:
                self.evictions += 1
                self.evicted_s += now - began
        else:
            self._began.setdefault(uid, now)

    def figures(self) -> dict[str, float]:
        return {
            "evictions_of_runs": self.evictions,
            "evicted_run_s": round(self.evicted_s, 2),
            "delivered_run_s": round(self.delivered_s, 1),
            "evicted_over_delivered": round(self.evicted_s / self.delivered_s, 5) if self.delivered_s else 0.0,
        }


async def observe(folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    observed = Observed()

    async def watch() -> None:
        arguments = folder / ARGUMENTS
        while not arguments.exists() or not (found := re.search(r"--?kubeconfig[= ](\S+)", arguments.read_text())):
            await asyncio.sleep(0.1)
        async with await Client.from_kubeconfig(found[1]) as client:
            async for line in lines(client, lambda: observed.version):
                event = _decode(line)
                observed.version = event.object.metadata.resource_version
                if event.type in ("ADDED", "MODIFIED"):
                    observed.see(event.object, time.monotonic())

    watching = asyncio.create_task(watch())
    await asyncio.wait({watching, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    (folder / OBSERVED).write_text(json.dumps(observed.figures()))


if __name__ == "__main__":
    asyncio.run(observe(Path(sys.argv[1])))
