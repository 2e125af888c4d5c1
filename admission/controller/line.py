"""The line of a queue as the visibility API tells it: order, reasons and numbers as the controller has them now.

Where the API is not served, or the asker may not ask it, there is nothing to tell, and nothing is said of that: what
the objects say is good enough. Where it is served and does not answer, `silent` is a sentence.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from admission.engine.model import Key
from admission.jobs.kinds import obj, objects, text, whole
from admission.kube.client import ApiError, Client, Forbidden, NotFound
from admission.names import Names

Json = dict[str, Any]
_PAGE = 1000
_AT_A_TIME = 8
_PATIENCE_S = 5.0
"""An answer that takes longer is done without."""


@dataclass(frozen=True)
class Lack:
    """What a gang that waits asked of a flavor and what there was: of quota, for one resource; or of nodes, for the
    pods of one pod set. Amounts as Kubernetes writes them."""

    flavor: str
    resource: str = ""
    requested: str = ""
    available: str = ""
    nominal: str = ""
    used: str = ""
    limited_by: str = ""
    """The queue or cohort at which it ends."""
    pod_set: str = ""
    pods: int = 0
    placeable: int = 0


@dataclass(frozen=True)
class Told:
    """One gang in its line."""

    position: int
    """From 1, in its LocalQueue."""
    waiting: int
    """How many wait there."""
    live: bool = False
    """The replica that decides has answered: the rest is its own, of now. Else it is what was last written, if any."""
    reason: str = ""
    detail: str = ""
    message: str = ""
    numbers: tuple[Lack, ...] = ()


class Lines:
    """See the module. One look; nothing is kept for the next."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._root = f"/apis/{names.visibility_group}/{names.version}"
        self._group = names.visibility_group
        self._gate = asyncio.Semaphore(_AT_A_TIME)
        self.silent = ""

    async def served(self) -> bool:
        """Whether it is worth while to ask for lines."""
        return await self._get(self._root) is not None

    async def of_local_queue(self, namespace: str, name: str, until: Key | None = None) -> dict[Key, Told] | None:
        """(namespace, Workload) -> what is told of it; None when nothing is. `until`: this one is enough."""
        return await self._line(f"namespaces/{namespace}/localqueues/{name}", until)

    async def of_cluster_queue(self, name: str) -> dict[Key, Told] | None:
        """The same of all LocalQueues that point to a ClusterQueue."""
        return await self._line(f"clusterqueues/{name}", None)

    async def _line(self, path: str, until: Key | None) -> dict[Key, Told] | None:
        found: dict[Key, tuple[Json, bool]] = {}
        offset = left = 0
        while True:
            page = await self._get(
                f"{self._root}/{path}/pendingworkloads", {"offset": str(offset), "limit": str(_PAGE)}
            )
            if page is None:
                return None
            items = objects(page.get("items"))
            for item in items:
                meta = obj(item.get("metadata"))
                found[text(meta.get("namespace")), text(meta.get("name"))] = (item, page.get("live") is True)
            offset += len(items)
            left = whole(obj(page.get("metadata")).get("remainingItemCount"), 0)
            if not items or not left or until in found:
                break
        counts: dict[Key, int] = {}
        for key, (item, _) in found.items():
            queue = (key[0], text(item.get("localQueueName")))
            counts[queue] = counts.get(queue, 0) + 1
        # Of one LocalQueue all that is left is its own; of a ClusterQueue nothing is left.
        return {key: _told(key, item, counts, left, live=live) for key, (item, live) in found.items()}

    async def _get(self, path: str, query: dict[str, str] | None = None) -> Json | None:
        if self.silent:
            return None
        try:
            async with self._gate:
                return await self._client.get(path, query=query, timeout=_PATIENCE_S, attempts=1)
        except (NotFound, Forbidden):
            return None
        except ApiError as error:
            said = (error.message or error.reason).strip().rstrip(".")
            self.silent = (
                f"{self._group} does not answer ({said}): places are counted by priority and age, and reasons are "
                "those last written."
            )
            return None


def _told(key: Key, item: Json, counts: dict[Key, int], left: int, *, live: bool) -> Told:
    return Told(
        position=whole(item.get("positionInLocalQueue"), 0) + 1,
        waiting=counts[key[0], text(item.get("localQueueName"))] + left,
        live=live,
        reason=text(item.get("reason")),
        detail=text(item.get("detail")),
        message=text(item.get("message")),
        numbers=tuple(
            Lack(
                flavor=text(one.get("flavor")),
                resource=text(one.get("resource")),
                requested=text(one.get("requested")),
                available=text(one.get("available")),
                nominal=text(one.get("nominal")),
                used=text(one.get("used")),
                limited_by=text(one.get("limitedBy")),
                pod_set=text(one.get("podSet")),
                pods=whole(one.get("pods"), 0),
                placeable=whole(one.get("placeable"), 0),
            )
            for one in objects(item.get("numbers"))
        ),
    )
