"""The visibility API: where pending gangs stand, as an API server of its own behind the Kubernetes one.

    GET /apis/visibility.GROUP/VERSION/clusterqueues/NAME/pendingworkloads
    GET /apis/visibility.GROUP/VERSION/namespaces/NS/localqueues/NAME/pendingworkloads      ?offset=0&limit=1000

The answer has the shape of Kueue's PendingWorkloadsSummary (positions from 0), and of ours: reason, detail, message,
what is asked for, and the numbers behind the reason. `metadata.remainingItemCount` says how many come after the page,
and `live` whether this replica decides: on the others a reason is the one last written, and has no numbers.

Callers are those whom the API server names in its request headers, and it proves itself by its front-proxy certificate
(the ConfigMap kube-system/extension-apiserver-authentication says which); nobody else is believed. What they may is
asked of the API server again (SubjectAccessReview), so that a way around it gains nothing.
"""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from admission import quantity
from admission.engine.model import Key
from admission.jobs.kinds import KIND_OF
from admission.jobs.values import rfc3339
from admission.kube.access import Access, Busy
from admission.kube.client import ApiError
from admission.names import Names
from admission.web.view import MOST, View, number, of_local_queue, pending

Json = dict[str, Any]
AGGREGATED = "as=APIGroupDiscoveryList"
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    406: "NotAcceptable",
    503: "ServiceUnavailable",
}


@dataclass(frozen=True)
class FrontProxy:
    """How the API server speaks for its callers."""

    ca: str = ""
    """PEM; who signs its client certificate."""
    names: tuple[str, ...] = ()
    """Common names of that certificate; empty: any that the CA signed."""
    user: tuple[str, ...] = ("X-Remote-User",)
    uid: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("X-Remote-Group",)
    extra: tuple[str, ...] = ("X-Remote-Extra-",)

    @classmethod
    def from_config(cls, data: Mapping[str, str]) -> FrontProxy:
        """From the ConfigMap extension-apiserver-authentication. Raises ValueError when it names no CA: then nobody
        could be believed."""

        def listed(key: str, default: tuple[str, ...]) -> tuple[str, ...]:
            found = json.loads(data.get(f"requestheader-{key}") or "null")
            if found is None:
                return default
            if not isinstance(found, list):
                raise ValueError(f"extension-apiserver-authentication: requestheader-{key} is no list")
            return tuple(str(one) for one in found)

        ca = data.get("requestheader-client-ca-file", "")
        if "BEGIN CERTIFICATE" not in ca:
            raise ValueError(
                "extension-apiserver-authentication has no requestheader-client-ca-file: the API server was started "
                "without an aggregation layer"
            )
        return cls(
            ca=ca,
            names=listed("allowed-names", ()),
            user=listed("username-headers", cls.user),
            uid=listed("uid-headers", ()),
            groups=listed("group-headers", cls.groups),
            extra=listed("extra-headers-prefix", cls.extra),
        )

    def user_of(self, request: web.BaseRequest) -> Json | None:
        """Whom the API server speaks for; None unless it is the API server, by a certificate that the TLS handshake
        has verified against `ca`."""
        peer = request.transport.get_extra_info("peercert") if request.transport is not None else None
        if not peer:
            return None
        common = {value for part in peer.get("subject", ()) for key, value in part if key == "commonName"}
        if self.names and not common & set(self.names):
            return None
        headers = request.headers
        name = next((headers[key] for key in self.user if headers.get(key)), "")
        if not name:
            return None
        extra: dict[str, list[str]] = {}
        for key, value in headers.items():
            for prefix in self.extra:
                if key.lower().startswith(prefix.lower()):
                    extra.setdefault(urllib.parse.unquote(key[len(prefix) :].lower()), []).append(value)
        return {
            "username": name,
            "uid": next((headers[key] for key in self.uid if headers.get(key)), ""),
            "groups": [value for key in self.groups for value in headers.getall(key, [])],
            "extra": extra,
        }


class Visibility:
    """See the module. `routes` are what is served; `proxy` may be replaced while it serves."""

    def __init__(self, view: View, access: Access, names: Names, proxy: FrontProxy) -> None:
        self._view = view
        self._access = access
        self._group, self._version = names.visibility_group, names.version
        self.proxy = proxy
        root = f"/apis/{self._group}/{self._version}"
        self.routes = [
            web.get("/apis", self._groups),
            web.get(f"/apis/{self._group}", self._one_group),
            web.get(root, self._resources),
            web.get("/openapi/v2", self._openapi_v2),
            web.get("/openapi/v3", self._openapi_v3),
            web.get(root + "/clusterqueues/{name}/pendingworkloads", self._answering(self._cluster_queue)),
            web.get(
                root + "/namespaces/{namespace}/localqueues/{name}/pendingworkloads", self._answering(self._local_queue)
            ),
        ]

    # ------------------------------------------------------------ discovery: tells nothing of the cluster

    async def _groups(self, request: web.Request) -> web.Response:
        accept = request.headers.get("Accept", "")
        if AGGREGATED in accept and not any(part.strip() == "application/json" for part in accept.split(",")):
            return _refuse(406, "discovery is served group by group here")
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._described()]})

    async def _one_group(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **self._described()})

    def _described(self) -> Json:
        version = {"groupVersion": f"{self._group}/{self._version}", "version": self._version}
        return {"name": self._group, "versions": [version], "preferredVersion": version}

    async def _resources(self, _: web.Request) -> web.Response:
        made = {"kind": "PendingWorkloadsSummary", "verbs": ["get"], "singularName": ""}
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{self._group}/{self._version}",
                # Subresources alone: nothing here is to be mistaken for the kinds that the CRDs define.
                "resources": [
                    {"name": "clusterqueues/pendingworkloads", "namespaced": False, **made},
                    {"name": "localqueues/pendingworkloads", "namespaced": True, **made},
                ],
            }
        )

    async def _openapi_v2(self, _: web.Request) -> web.Response:
        info = {"title": self._group, "version": self._version}
        return web.json_response({"swagger": "2.0", "info": info, "paths": {}})

    async def _openapi_v3(self, _: web.Request) -> web.Response:
        return web.json_response({"paths": {}})

    # ------------------------------------------------------------ answers

    def _answering(
        self, answer: Callable[[web.Request], list[Key]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answered(request: web.Request) -> web.Response:
            user = self.proxy.user_of(request)
            if user is None:
                return _refuse(401, "only the API server may ask here: use kubectl get --raw, or its URL")
            name, namespace = request.match_info["name"], request.match_info.get("namespace", "")
            resource = "localqueues" if namespace else "clusterqueues"
            try:
                may = await self._access.allowed(
                    user, self._group, resource, "get", "pendingworkloads", namespace=namespace, name=name
                )
            except (ApiError, OSError, TimeoutError) as error:
                told = error.message if isinstance(error, Busy) else "the API server did not answer an access review"
                return _refuse(503, told, retry=1)
            if not may:
                where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
                return _refuse(
                    403,
                    f'User "{user["username"]}" cannot get resource "{resource}/pendingworkloads" in API group '
                    f'"{self._group}"{where}',
                )
            if not_ready := self._view.source.ready():
                return _refuse(503, not_ready, retry=2)
            try:
                offset, limit = number(request.query, "offset", 0), number(request.query, "limit", MOST)
                keys = answer(request)
            except ValueError as error:
                return _refuse(400, str(error))
            except KeyError as missing:
                return _refuse(404, f'{resource} "{missing.args[0]}" not found')
            return web.json_response(self._summary(keys, offset, limit))

        return answered

    def _cluster_queue(self, request: web.Request) -> list[Key]:
        name = request.match_info["name"]
        if name not in self._view.source.state.queues:
            raise KeyError(name)
        return self._view.line(name)

    def _local_queue(self, request: web.Request) -> list[Key]:
        key = (request.match_info["namespace"], request.match_info["name"])
        if key not in self._view.source.state.local_queues:
            raise KeyError(key[1])
        return of_local_queue(self._view, key)

    def _summary(self, keys: list[Key], offset: int, limit: int) -> Json:
        page = pending(self._view, keys, offset, limit)
        items = [self._item(key, place.in_cluster_queue, place.in_local_queue) for key, place in page]
        left = len(keys) - min(offset, len(keys)) - len(items)
        return {
            "kind": "PendingWorkloadsSummary",
            "apiVersion": f"{self._group}/{self._version}",
            "metadata": {"remainingItemCount": left} if left else {},
            "live": self._view.source.leading(),
            "items": items,
        }

    def _item(self, key: Key, in_cluster_queue: int, in_local_queue: int) -> Json:
        shown = self._view.job(key)
        gang = self._view.source.state.workloads[key]
        kind = KIND_OF.get(shown["kind"])
        owners = []
        if kind is not None:
            made = {"apiVersion": kind.api_version, "kind": kind.kind}
            owners = [{**made, "name": shown["name"], "uid": gang.job_uid}]
        return {
            "metadata": {
                "name": key[1],
                "namespace": key[0],
                "uid": gang.uid,
                "creationTimestamp": rfc3339(gang.created),
                "ownerReferences": owners,
            },
            "priority": gang.effective_priority,
            "localQueueName": gang.queue,
            "positionInClusterQueue": in_cluster_queue,
            "positionInLocalQueue": in_local_queue,
            "reason": shown["reason"],
            "detail": shown["detail"],
            "message": shown["message"],
            "pods": shown["pods"],
            "requests": {one["resource"]: quantity.format(one["resource"], one["amount"]) for one in shown["requests"]},
            "numbers": [{k: v for k, v in one.items() if k != "texts"} for one in shown["numbers"]],
        }


def _refuse(code: int, message: str, *, retry: float = 0) -> web.Response:
    """A Status, as the API server itself refuses."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }
    headers = {"Retry-After": str(math.ceil(retry))} if retry else {}
    return web.json_response(body, status=code, headers=headers)
