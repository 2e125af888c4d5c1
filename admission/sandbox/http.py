"""The sandbox over HTTP: discovery, reads, writes, watches and tables, as kubectl and controllers expect them.

The front has the clock and the sockets; what a request means is in `store`. Writes go through the webhook configurations
that are stored, so that a controller holds jobs here as it does on an API server without policies. There is no RBAC: every
known token may do everything, and access reviews are answered by `Sandbox.allows`. What is not served is refused with a
Status that says so.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from aiohttp import web

from admission.sandbox import protobuf
from admission.sandbox.kinds import EVENTS_V1, from_core_event, new_store, to_core_event
from admission.sandbox.patches import PatchError, json_patch
from admission.sandbox.shapes import Object, builtin, copy, resolve
from admission.sandbox.store import (
    APPLY,
    Cause,
    Change,
    Event,
    Kind,
    Raced,
    Refused,
    Request,
    Store,
    Stored,
    User,
    conflict,
    field_selector,
    invalid,
    label_selector,
    matches_selector,
)
from admission.sandbox.tables import table

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3-sandbox",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "python",
}
_log = logging.getLogger(__name__)
BODY_LIMIT = 3 * 1024 * 1024
_REVIEWS = {
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    ("authorization.k8s.io", "v1", "subjectaccessreviews"): "SubjectAccessReview",
    ("authentication.k8s.io", "v1", "tokenreviews"): "TokenReview",
}
_ORPHAN_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
Validators = Mapping[tuple[str, str], Callable[[Object, Object | None], Iterable[Cause]]]


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Sandbox:
    """One cluster in this process, served over HTTP on a port of its own.

    `validators` refuse what the CEL rules of custom resources refuse, by (group, plural). `users` maps bearer tokens to
    users; without a token one is `admin`. `actors` are started with the server (see `actors.Cluster`); `time_scale`
    divides the run times of pods, and nothing else. `bookmark_seconds` is the quiet time after which a watch that asked
    for bookmarks gets one.
    """

    def __init__(
        self,
        *,
        validators: Validators | None = None,
        users: Mapping[str, User] | None = None,
        history: int = 10_000,
        clock: Callable[[], int] = wall_clock,
        bookmark_seconds: float = 5.0,
        with_actors: bool = True,
        time_scale: float = 1.0,
        seed: str | None = None,
    ) -> None:
        self.clock = clock
        self.store: Store = new_store(history=history, seed=seed or str(clock()), validators=validators, now=clock())
        self.users = {"admin-token": User(), **(users or {})}
        self.bookmark_seconds = bookmark_seconds
        self.time_scale = time_scale
        self.with_actors = with_actors
        self.url = ""
        self.faults: list[Callable[[web.Request], web.StreamResponse | None]] = []
        """Asked before each request; a response ends it there. For tests of clients."""
        self.requests: deque[tuple[str, str]] = deque(maxlen=100_000)
        """(method, path) of the last writes served, in order, for counting them."""
        self._pulses: dict[tuple[str, str], asyncio.Event] = {}
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._driver: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.store.listeners.append(self._on_event)

    # Life

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, time_scale: float | None = None) -> str:
        """Serve; returns the URL. The port is free for the taking when 0."""
        if time_scale is not None:
            self.time_scale = time_scale
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        site = web.SockSite(self._runner, listener, backlog=1024)
        await site.start()
        bound = listener.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        self._session = aiohttp.ClientSession(trust_env=False)
        if self.with_actors:
            from admission.sandbox.actors import Cluster

            self._driver = asyncio.create_task(
                self._drive(Cluster(self.store, time_scale=self.time_scale)), name="actors"
            )
        return self.url

    async def stop(self) -> None:
        self._closing.set()
        for pulse in self._pulses.values():
            pulse.set()
        if self._driver is not None:
            self._driver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driver
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> Sandbox:
        if not self.url:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def kubeconfig(self, token: str = "admin-token") -> Object:  # noqa: S107 - the sandbox keeps no secrets
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": {"server": self.url}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": "admin"}}],
            "current-context": "sandbox",
        }

    def write_kubeconfig(self, path: str | Path) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(self.kubeconfig(), sort_keys=False))

    def allows(self, user: str, groups: Iterable[str], attributes: Mapping[str, Any]) -> bool:
        """The answer to access reviews: masters may do everything; others everything but `admit`, the verb that says who starts gangs. `attributes` are those of the review."""  # noqa: E501
        groups = set(groups)
        return "system:masters" in groups or attributes.get("verb") != "admit"

    # Requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        for fault in self.faults:
            answer = fault(request)
            if answer is not None:
                return answer
        try:
            return await self._route(request)
        except Refused as refused:
            return self._json(refused.body(), refused.code)
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {BODY_LIMIT}"
            return self._json(Refused(413, "RequestEntityTooLarge", text).body(), 413)

    def _json(self, body: Any, status: int = 200, warnings: Iterable[str] = ()) -> web.Response:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        response = web.Response(body=raw, status=status, content_type="application/json")
        for warning in warnings:
            text = warning.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{text}"')
        retry = body.get("details", {}).get("retryAfterSeconds") if isinstance(body, dict) and status >= 400 else None
        if retry is not None:
            response.headers["Retry-After"] = str(retry)
        return response

    def _user(self, request: web.Request) -> User:
        header = request.headers.get("Authorization", "")
        if not header:
            return User()
        token = header.removeprefix("Bearer ").strip()
        found = self.users.get(token)
        if found is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        impersonated = request.headers.get("Impersonate-User")
        if impersonated:
            return User(impersonated, (*request.headers.getall("Impersonate-Group", []), "system:authenticated"))
        return found

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [p for p in request.path.split("/") if p]
        user = self._user(request)
        if not parts or parts[0] not in ("api", "apis"):
            return self._plain(request, parts)
        if parts[0] == "api":
            group, version, rest = "", parts[1] if len(parts) > 1 else None, parts[2:]
        else:
            group, version, rest = (
                (parts[1] if len(parts) > 1 else ""),
                (parts[2] if len(parts) > 2 else None),
                parts[3:],
            )
        if version is None or not rest:
            return self._discover(request, parts, group, version)
        if rest[0] == "watch":
            raise Refused(404, "NotFound", "the sandbox has no /watch/ paths: use ?watch=true")
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = rest[0], rest[1] if len(rest) > 1 else "", "/".join(rest[2:])
        review = _REVIEWS.get((group, version, plural))
        if review and request.method == "POST":
            return self._review(review, await self._body(request), user)
        view: Kind | None = None
        if (group, version, plural) == ("events.k8s.io", "v1", "events"):
            view, group = EVENTS_V1, ""
            kind = self.store.kind("", "events")
        else:
            kind = self.store.kind(group, plural)
        if kind is None or (view is None and kind.version != version):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if kind.namespaced and not namespace and (name or request.method in ("POST", "PUT", "PATCH")):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if request.method in ("GET", "HEAD"):
            if subresource not in ("", "status"):
                text = f"the sandbox does not serve {kind.plural}/{subresource}"
                raise Refused(501, "NotImplemented", text)
            if name and request.query.get("watch") not in ("true", "1"):
                stored = self.store.stored(kind, namespace, name)
                return self._one(request, kind, view, stored.obj, stored)
            if name:
                request = request.clone(
                    rel_url=request.rel_url.extend_query({"fieldSelector": f"metadata.name={name}"})
                )
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, kind, view, namespace)
            return self._list(request, kind, view, namespace)
        self.requests.append((request.method, request.path))
        if request.method == "POST":
            return await self._post(request, kind, view, namespace, name, subresource, user)
        if request.method in ("PUT", "PATCH"):
            return await self._change(request, kind, view, namespace, name, subresource, user)
        if request.method == "DELETE":
            return await self._remove(request, kind, namespace, name, user)
        raise Refused(405, "MethodNotAllowed", f"the server does not allow {request.method} on the requested resource")

    def _plain(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        where = "/".join(parts)
        if where in ("healthz", "livez", "readyz"):
            return web.Response(text="ok")
        if where == "version":
            return self._json(VERSION)
        if where == "openapi/v2":
            # An empty document: clients then take the types they were built with.
            if "protobuf" in request.headers.get("Accept", ""):
                form = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
                return web.Response(body=b"", headers={"Content-Type": form})
            return self._json({"swagger": "2.0", "info": {"title": "Sandbox", "version": "v1.36.3"}, "paths": {}})
        if where.startswith("openapi/v3"):
            return self._openapi(parts[2:])
        if not parts:
            return self._json(
                {"paths": ["/api", "/apis", "/healthz", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}
            )
        raise Refused(404, "NotFound", f"the server could not find the requested resource: /{where}")

    async def _body(self, request: web.Request) -> Any:
        raw = await request.read()
        form = request.headers.get("Content-Type", "application/json").partition(";")[0].strip()
        if form == "application/vnd.kubernetes.protobuf":
            try:
                return protobuf.decode(raw)
            except (ValueError, UnicodeDecodeError) as error:
                text = f"the body of the request was in an unknown format: {error}"
                raise Refused(415, "UnsupportedMediaType", text) from None
        if not raw:
            return None
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if "yaml" not in form:
                raise Refused(400, "BadRequest", f"invalid JSON in the body of the request: {error}") from None
        try:
            return json.loads(json.dumps(yaml.safe_load(raw), default=str))
        except (yaml.YAMLError, ValueError) as error:
            raise Refused(400, "BadRequest", f"invalid YAML in the body of the request: {error}") from None

    # Discovery

    def _groups(self) -> dict[str, dict[str, list[Kind]]]:
        out: dict[str, dict[str, list[Kind]]] = {}
        for kind in [*self.store.kinds(), EVENTS_V1]:
            out.setdefault(kind.group, {}).setdefault(kind.version, []).append(kind)
        for group, version, _plural in _REVIEWS:
            out.setdefault(group, {}).setdefault(version, [])
        return out

    def _discover(self, request: web.Request, parts: list[str], group: str, version: str | None) -> web.StreamResponse:
        groups = self._groups()
        if len(parts) == 1 and "as=APIGroupDiscoveryList" in request.headers.get("Accept", ""):
            return self._discover_all({g: v for g, v in groups.items() if bool(g) == (parts == ["apis"])})
        if parts == ["api"]:
            host = request.host
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]
            return self._json({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses})
        if parts == ["apis"]:
            listed = [self._group(name, versions) for name, versions in groups.items() if name]
            return self._json({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        if version is None and group in groups:
            return self._json({"kind": "APIGroup", "apiVersion": "v1", **self._group(group, groups[group])})
        kinds = groups.get(group, {}).get(version or "")
        if kinds is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resources: list[Object] = []
        for kind in kinds:
            entry: Object = {
                "name": kind.plural,
                "singularName": kind.singular or kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": _VERBS,
            }
            if kind.short_names:
                entry["shortNames"] = list(kind.short_names)
            if kind.categories:
                entry["categories"] = list(kind.categories)
            resources.append(entry)
            subs = [("status", kind.kind, ["get", "patch", "update"])] if kind.status else []
            if "binding" in kind.subresources:
                subs += [("binding", "Binding", ["create"]), ("eviction", "Eviction", ["create"])]
            for sub, name, allowed in subs:
                more: Object = {} if sub != "eviction" else {"group": "policy", "version": "v1"}
                resources.append(
                    {
                        "name": f"{kind.plural}/{sub}",
                        "singularName": "",
                        "namespaced": kind.namespaced,
                        **more,
                        "kind": name,
                        "verbs": allowed,
                    }
                )
        for (g, v, plural), name in _REVIEWS.items():
            if (g, v) == (group, version):
                resources.append(
                    {
                        "name": plural,
                        "singularName": name.lower(),
                        "namespaced": False,
                        "kind": name,
                        "verbs": ["create"],
                    }
                )
        api_version = f"{group}/{version}" if group else str(version)
        return self._json(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}
        )

    def _discover_all(self, groups: Mapping[str, Mapping[str, list[Kind]]]) -> web.StreamResponse:
        """Everything served in one answer (apidiscovery.k8s.io/v2)."""
        items = []
        for group, versions in groups.items():
            listed = []
            for version, kinds in versions.items():
                resources = [_discovered(kind) for kind in kinds]
                for (g, v, plural), name in _REVIEWS.items():
                    if (g, v) == (group, version):
                        resources.append(_discovered(Kind(g, v, plural, name, namespaced=False), ["create"]))
                listed.append({"version": version, "resources": resources, "freshness": "Current"})
            items.append({"metadata": {"name": group, "creationTimestamp": None}, "versions": listed})
        body = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}
        form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return web.Response(body=msgspec.json.encode(body), headers={"Content-Type": form})

    def _group(self, name: str, versions: Mapping[str, Any]) -> Object:
        listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
        return {"name": name, "versions": listed, "preferredVersion": listed[0]}

    def _openapi(self, rest: list[str]) -> web.StreamResponse:
        groups = self._groups()
        places = {
            (f"apis/{g}/{v}" if g else f"api/{v}"): kinds
            for g, versions in groups.items()
            for v, kinds in versions.items()
        }
        if not rest:
            return self._json({"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in places}})
        kinds = places.get("/".join(rest))
        if kinds is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        paths: Object = {}
        schemas: Object = {}
        for kind in kinds:
            gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
            name = f"{'.'.join(reversed(kind.group.split('.'))) or 'core'}.{kind.version}.{kind.kind}"
            schema = copy(dict(resolve(kind.shape.schema)))
            schema["x-kubernetes-group-version-kind"] = [gvk]
            schema.setdefault("type", "object")
            schemas[name] = _published(schema, schemas)
            where = f"/{'/'.join(rest)}/{'namespaces/{namespace}/' if kind.namespaced else ''}{kind.plural}"
            names = ("dryRun", "fieldManager", "fieldValidation", "force")
            parameters = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in names]
            operation = {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": gvk}
            paths[where] = {"get": operation, "post": operation}
            paths[where + "/{name}"] = {"get": operation, "put": operation, "patch": operation, "delete": operation}
        info = {"title": "Sandbox", "version": "v1.36.3"}
        return self._json({"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}})

    # Reading

    def _form(self, request: web.Request) -> str:
        """`Table`, `PartialObjectMetadata` or `` as the Accept header asks; Refused 406 where JSON is not wanted."""
        accept = request.headers.get("Accept", "")
        for option in accept.split(","):
            fields = [x.strip() for x in option.split(";")]
            if fields[0] not in ("application/json", "*/*", "application/*", ""):
                continue
            wanted = next((x[3:] for x in fields if x.startswith("as=")), "")
            if wanted in ("", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"):
                return wanted.removesuffix("List")
        if not accept or "yaml" in accept:
            return ""
        text = "only the following media types are accepted: application/json"
        raise Refused(406, "NotAcceptable", text)

    def _keep(self, request: web.Request, kind: Kind, view: Kind | None) -> Callable[[Object], bool] | None:
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        tests: list[Callable[[Object], bool]] = []
        if labels:
            matches = label_selector(labels)
            tests.append(lambda obj: matches(obj["metadata"].get("labels") or {}))
        if fields:
            if view is not None:
                fields = fields.replace("regarding.", "involvedObject.").replace(
                    "reportingController", "reportingComponent"
                )
            tests.append(field_selector(kind, fields))
        if not tests:
            return None
        return lambda obj: all(test(obj) for test in tests)

    def _one(
        self,
        request: web.Request,
        kind: Kind,
        view: Kind | None,
        obj: Object,
        stored: Stored | None = None,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        form = self._form(request)
        if obj.get("kind") == "Status":
            return self._json(obj, status, warnings)
        if form == "Table":
            include = request.query.get("includeObject", "Metadata")
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return self._json(table(kind, [obj], self.clock(), include=include, meta=meta), status, warnings)
        if form == "PartialObjectMetadata":
            return self._json(_partial(obj), status, warnings)
        if view is not None:
            obj, stored = from_core_event(obj), None
        return self._json(stored.raw if stored is not None else obj, status, warnings)

    def _list(self, request: web.Request, kind: Kind, view: Kind | None, namespace: str) -> web.StreamResponse:
        query = request.query
        form = self._form(request)
        limit = _number(query.get("limit", "0"), "limit")
        exactly: int | None = None
        if query.get("resourceVersionMatch") == "Exact":
            exactly = _number(query.get("resourceVersion", ""), "resourceVersion")
        keep = self._keep(request, kind, view)
        items, revision, token, left = self.store.page(
            kind, namespace, keep=keep, limit=limit, token=query.get("continue", ""), exactly=exactly
        )
        meta: Object = {"resourceVersion": str(revision)}
        if token:
            meta["continue"] = token
            if keep is None:
                meta["remainingItemCount"] = left
        if form == "Table":
            include = query.get("includeObject", "Metadata")
            return self._json(table(kind, [i.obj for i in items], self.clock(), include=include, meta=meta))
        if form == "PartialObjectMetadata":
            parts = [_partial(i.obj) for i in items]
            return self._json(
                {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": parts}
            )
        shown = view or kind
        head = {"kind": kind.list_kind or kind.kind + "List", "apiVersion": shown.api_version, "metadata": meta}
        raws = [i.raw for i in items] if view is None else [msgspec.json.encode(from_core_event(i.obj)) for i in items]
        return self._json(msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(raws) + b"]}")

    async def _watch(self, request: web.Request, kind: Kind, view: Kind | None, namespace: str) -> web.StreamResponse:
        query = request.query
        form = self._form(request)
        keep = self._keep(request, kind, view) or (lambda _obj: True)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        seconds = _number(query.get("timeoutSeconds", "0"), "timeoutSeconds") or 1800
        given = query.get("resourceVersion", "")
        initial = query.get("sendInitialEvents") in ("true", "1")
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided, and then must be NotOlderThan"  # noqa: E501
            raise invalid(
                replace(kind, kind="ListOptions", group="meta.k8s.io"),
                "",
                [("resourceVersionMatch", "FieldValueForbidden", text)],
            )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        first = True

        def line(kind_of_event: str, stored: Stored) -> bytes:
            nonlocal first
            if form == "Table":
                include = query.get("includeObject", "Metadata")
                meta = {"resourceVersion": stored.obj["metadata"]["resourceVersion"]}
                made = table(kind, [stored.obj], self.clock(), include=include, meta=meta)
                if not first:
                    made["columnDefinitions"] = []
                first = False
                raw = msgspec.json.encode(made)
            elif form:
                raw = msgspec.json.encode(_partial(stored.obj))
            else:
                raw = stored.raw if view is None else msgspec.json.encode(from_core_event(stored.obj))
            return b'{"type":"' + kind_of_event.encode() + b'","object":' + raw + b"}\n"

        def bookmark(revision: int, end: bool = False) -> bytes:
            shown = view or kind
            meta: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
            if end:
                meta["annotations"] = {"k8s.io/initial-events-end": "true"}
            body: Object = {"kind": shown.kind, "apiVersion": shown.api_version, "metadata": meta}
            if form == "Table":
                row = {"cells": [], "object": {**body, "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}}
                body = {
                    "kind": "Table",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": str(revision)},
                    "columnDefinitions": [],
                    "rows": [row],
                }
            return msgspec.json.encode({"type": "BOOKMARK", "object": body}) + b"\n"

        position = self.store.revision
        chunks: list[bytes] = []
        if given in ("", "0") or initial:
            items, position, _, _ = self.store.page(kind, namespace, keep=keep)
            if query.get("sendInitialEvents") != "false":
                chunks = [line("ADDED", stored) for stored in items]
            if initial and bookmarks:
                chunks.append(bookmark(position, end=True))
        else:
            position = _number(given, "resourceVersion")
        await response.prepare(request)
        # One event loop, no await since the page: what follows `position` is not lost.
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            while not self._closing.is_set():
                pulse = self._pulses.setdefault(kind.id, asyncio.Event())
                try:
                    events = self.store.since(kind, position)
                except Refused as refused:
                    chunks.append(msgspec.json.encode({"type": "ERROR", "object": refused.body()}) + b"\n")
                    await response.write(b"".join(chunks))
                    break
                for event in events:
                    position = event.revision
                    if namespace and event.key[0] != namespace:
                        continue
                    chunks += [line(name, stored) for name, stored in _seen(event, keep)]
                if chunks:
                    await response.write(b"".join(chunks))
                    chunks = []
                    continue
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                wait = min(left, self.bookmark_seconds) if bookmarks else left
                try:
                    async with asyncio.timeout(wait):
                        await pulse.wait()
                except TimeoutError:
                    if bookmarks:
                        position = max(position, self.store.revision)
                        chunks.append(bookmark(position))
            await response.write_eof()
        except (ConnectionResetError, aiohttp.ClientConnectionResetError):
            pass
        return response

    def _on_event(self, kind: Kind, _event: Event) -> None:
        pulse = self._pulses.pop(kind.id, None)
        if pulse is not None:
            pulse.set()

    # Writing

    def _options(self, request: web.Request, content_type: str = "") -> dict[str, Any]:
        query = request.query
        manager = query.get("fieldManager") or request.headers.get("User-Agent", "unknown").partition("/")[0]
        dry = query.getall("dryRun", [])
        if dry and dry != ["All"]:
            text = f'Unsupported value: {json.dumps(dry)}: supported values: "All"'
            raise Refused(400, "BadRequest", f"invalid dryRun: {text}")
        validation = query.get("fieldValidation") or "Warn"
        return {
            "manager": manager or "unknown",
            "force": query.get("force") in ("true", "1"),
            "dry_run": bool(dry),
            "validation": validation,
            "content_type": content_type,
        }

    async def _post(
        self,
        request: web.Request,
        kind: Kind,
        view: Kind | None,
        namespace: str,
        name: str,
        subresource: str,
        user: User,
    ) -> web.StreamResponse:
        body = await self._body(request)
        if name:
            if kind.id == ("", "pods") and subresource in ("binding", "eviction") and isinstance(body, dict):
                return await self._pod_action(request, kind, namespace, name, subresource, body, user)
            text = f"the sandbox does not serve POST on {kind.plural}/{subresource or 'NAME'}"
            raise Refused(405, "MethodNotAllowed", text)
        if view is not None and isinstance(body, dict):
            body = to_core_event(body)
        if isinstance(body, dict) and kind.id == ("", "namespaces"):
            namespace = ""
        wanted = Request("create", kind, namespace, "", body, user=user, **self._options(request))
        obj, status, warnings = await self.write(wanted)
        return self._one(request, kind, view, obj, None, status, warnings)

    async def _pod_action(
        self, request: web.Request, kind: Kind, namespace: str, name: str, action: str, body: Object, user: User
    ) -> web.StreamResponse:
        options = self._options(request)
        if action == "eviction":
            wanted = Request("delete", kind, namespace, name, body.get("deleteOptions") or {}, user=user, **options)
        else:
            pod = self.store.stored(kind, namespace, name)
            if pod.obj["spec"].get("nodeName"):
                raise conflict(kind, name, f'pod {name} is already assigned to node "{pod.obj["spec"]["nodeName"]}"')
            wanted = bind(kind, namespace, name, body.get("target", {}).get("name", ""), self.clock(), user)
        await self.write(wanted)
        return self._json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    async def _change(
        self,
        request: web.Request,
        kind: Kind,
        view: Kind | None,
        namespace: str,
        name: str,
        subresource: str,
        user: User,
    ) -> web.StreamResponse:
        if not name:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if subresource not in ("", *(("status",) if kind.status else ()), *kind.subresources):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        body = await self._body(request)
        form = request.headers.get("Content-Type", "").partition(";")[0].strip()
        if request.method == "PUT":
            form = ""
        elif form == APPLY:
            if not request.query.get("fieldManager"):
                text = (
                    'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
                )
                details = {
                    "group": "meta.k8s.io",
                    "kind": "PatchOptions",
                    "causes": [
                        {
                            "reason": "FieldValueRequired",
                            "message": "Required value: is required for apply patch",
                            "field": "fieldManager",
                        }
                    ],
                }
                raise Refused(422, "Invalid", text, details)
        elif request.query.get("force"):
            text = 'PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch'
            details = {
                "group": "meta.k8s.io",
                "kind": "PatchOptions",
                "causes": [
                    {
                        "reason": "FieldValueForbidden",
                        "message": "Forbidden: may not be specified for non-apply patch",
                        "field": "force",
                    }
                ],
            }
            raise Refused(422, "Invalid", text, details)
        if view is not None and isinstance(body, dict):
            body = to_core_event(body)
        verb = "update" if request.method == "PUT" else "patch"
        sub = "" if subresource == "finalize" else subresource
        wanted = Request(verb, kind, namespace, name, body, sub, user=user, **self._options(request, form))
        obj, status, warnings = await self.write(wanted)
        return self._one(request, kind, view, obj, None, status, warnings)

    async def _remove(
        self, request: web.Request, kind: Kind, namespace: str, name: str, user: User
    ) -> web.StreamResponse:
        body = await self._body(request) or {}
        if not isinstance(body, dict):
            raise Refused(400, "BadRequest", "the body of a delete is DeleteOptions")
        for field in ("propagationPolicy", "gracePeriodSeconds", "orphanDependents"):
            value = request.query.get(field)
            if value is not None:
                body[field] = value if field == "propagationPolicy" else json.loads(value)
        options = self._options(request)
        if body.get("dryRun") == ["All"]:
            options["dry_run"] = True
        if name:
            obj, status, _ = await self.write(Request("delete", kind, namespace, name, body, user=user, **options))
            unsaid = kind.orphans and not body.get("propagationPolicy") and body.get("orphanDependents") is None
            return self._one(request, kind, None, obj, None, status, [_ORPHAN_WARNING] if unsaid else [])
        items, revision, _, _ = self.store.page(kind, namespace, keep=self._keep(request, kind, None))
        gone = []
        for stored in items:
            meta = stored.obj["metadata"]
            with contextlib.suppress(Refused):
                await self.write(
                    Request("delete", kind, meta.get("namespace", ""), meta["name"], body, user=user, **options)
                )
                gone.append(stored.obj)
        head = {"kind": kind.list_kind or kind.kind + "List", "apiVersion": kind.api_version}
        return self._json({**head, "metadata": {"resourceVersion": str(revision)}, "items": gone})

    async def write(self, request: Request) -> tuple[Object, int, list[str]]:
        """One write with admission by the stored webhooks. Returns (object or Status, HTTP status, warnings)."""
        for _ in range(20):
            now = self.clock()
            change = self.store.prepare(request, now)
            await self._admit(change, "Mutating")
            if self._hooks(change, "Validating"):
                if request.verb != "delete":
                    self.store.check(change)
                await self._admit(change, "Validating")
            try:
                obj, status = self.store.commit(change, self.clock())
            except Raced:
                continue
            return obj, status, change.warnings
        raise conflict(request.kind, request.name)

    # Webhooks

    def _hooks(self, change: Change, family: str) -> list[Object]:
        kind = change.request.kind
        if kind.group == "admissionregistration.k8s.io":
            return []
        plural = f"{family.lower()}webhookconfigurations"
        return [
            hook
            for configuration in self.store.objects("admissionregistration.k8s.io", plural)
            for hook in configuration.get("webhooks", [])
            if self._hook_matches(hook, change)
        ]

    def _hook_matches(self, hook: Object, change: Change) -> bool:
        request = change.request
        kind = request.kind
        operation = _operation(change)
        resource = f"{kind.plural}/{request.subresource}" if request.subresource else kind.plural
        for rule in hook.get("rules", []):
            if (
                _among(kind.group, rule.get("apiGroups", []))
                and _among(kind.version, rule.get("apiVersions", []))
                and _among(operation, rule.get("operations", []))
                and _covers(rule.get("resources", []), resource)
                and rule.get("scope", "*") in ("*", "Namespaced" if kind.namespaced else "Cluster")
            ):
                break
        else:
            return False
        if hook.get("namespaceSelector"):
            labels: Mapping[str, str] | None = None
            if kind.namespaced:
                namespace = self.store.find("", "namespaces", "", request.namespace) or {"metadata": {}}
                labels = namespace["metadata"].get("labels") or {}
            elif kind.id == ("", "namespaces"):
                labels = change.new["metadata"].get("labels") or {}
            if labels is not None and not matches_selector(hook["namespaceSelector"], labels):
                return False
        if hook.get("objectSelector"):
            objects = [] if request.verb == "delete" else [change.new]
            if change.old is not None:
                objects.append(change.old.obj)
            if not any(matches_selector(hook["objectSelector"], o["metadata"].get("labels") or {}) for o in objects):
                return False
        return True

    async def _admit(self, change: Change, family: str) -> None:
        hooks = self._hooks(change, family)
        for hook in hooks:
            if change.request.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
                raise Refused(400, "BadRequest", f'admission webhook "{hook["name"]}" does not support dry run')
            answer = await self._call(hook, change)
            if answer is None:
                continue
            change.warnings += answer.get("warnings") or []
            if not answer.get("allowed"):
                status = answer.get("status") or {}
                code = max(status.get("code") or 0, 400)
                text = f'admission webhook "{hook["name"]}" denied the request'
                message = status.get("message") or status.get("reason")
                text = f"{text}: {message}" if message else f"{text} without explanation"
                raise Refused(code, status.get("reason", ""), text, status.get("details"))
            if family == "Mutating" and answer.get("patch"):
                self._patch(hook, change, answer)

    def _patch(self, hook: Object, change: Change, answer: Mapping[str, Any]) -> None:
        try:
            operations = json.loads(base64.b64decode(answer["patch"]))
            made = json_patch(_as_admitted(change, change.new), operations)
        except (ValueError, binascii.Error, PatchError) as error:
            text = f'admission webhook "{hook["name"]}" sent a patch that does not apply: {error}'
            raise Refused(500, "InternalError", text) from None
        meta, was = made.setdefault("metadata", {}), change.new["metadata"]
        for name in ("name", "uid", "creationTimestamp", "generation", "resourceVersion", "namespace"):
            if name in was:
                meta[name] = was[name]
        change.new = made
        self.store.reshape(change)

    async def _call(self, hook: Object, change: Change) -> Mapping[str, Any] | None:
        """The answer of a webhook; None where it failed and may be ignored."""
        assert self._session is not None
        config = hook["clientConfig"]
        review = _review_of(change)
        failed = f'failed calling webhook "{hook["name"]}"'
        url = config["url"]
        try:
            async with self._session.post(
                url,
                data=msgspec.json.encode(review),
                headers={"Content-Type": "application/json"},
                params={"timeout": f"{hook.get('timeoutSeconds', 10)}s"},
                ssl=self._context(config.get("caBundle", "")) if url.startswith("https") else False,
                timeout=aiohttp.ClientTimeout(total=hook.get("timeoutSeconds", 10)),
            ) as response:
                raw = await response.read()
                if response.status != 200:
                    raise aiohttp.ClientError(
                        f"an error on the server ({raw[:200]!r}) has prevented the request: {response.status}"
                    )
                answer = msgspec.json.decode(raw)["response"]
                if answer.get("uid") != review["request"]["uid"]:
                    raise aiohttp.ClientError("the answer carries another uid than the request")
                found: Mapping[str, Any] = answer
                return found
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, KeyError, TypeError) as error:
            if hook.get("failurePolicy", "Fail") == "Ignore":
                return None
            raise Refused(500, "InternalError", f"Internal error occurred: {failed}: {error!r}") from None

    def _context(self, bundle: str) -> ssl.SSLContext:
        made = self._contexts.get(bundle)
        if made is None:
            made = ssl.create_default_context(cadata=base64.b64decode(bundle).decode() if bundle else None)
            self._contexts[bundle] = made
        return made

    def _review(self, name: str, body: Any, user: User) -> web.StreamResponse:
        if not isinstance(body, dict):
            raise Refused(400, "BadRequest", "the body of the request must be an object")
        spec = body.get("spec") or {}
        if name == "TokenReview":
            found = self.users.get(spec.get("token", ""))
            status: Object = {"authenticated": found is not None}
            if found is not None:
                status["user"] = {"username": found.name, "uid": found.uid, "groups": list(found.groups)}
        else:
            who = user if name.startswith("Self") else User(spec.get("user", ""), tuple(spec.get("groups") or ()))
            allowed = self.allows(
                who.name, who.groups, spec.get("resourceAttributes") or spec.get("nonResourceAttributes") or {}
            )
            status = {"allowed": allowed, "reason": "" if allowed else "the sandbox allows `admit` to its masters only"}
        return self._json({**body, "metadata": body.get("metadata", {}), "status": status}, 201)

    # Actors

    async def _drive(self, cluster: Any) -> None:
        """Let the actors act whenever something changed or is due; their writes pass the webhooks like anybody's."""
        wake = asyncio.Event()
        self.store.listeners.append(lambda _kind, _event: wake.set())
        while True:
            wake.clear()
            try:
                writes, due = cluster.step(self.clock())
            except Exception:
                # One object that an actor stumbles over must not stop the others; what is left is done next time.
                _log.exception("an actor of the sandbox failed")
                await asyncio.sleep(0.2)
                continue
            await asyncio.gather(*(self._carry_out(cluster, plan) for plan in writes))
            if writes:
                continue
            delay = 3600.0 if due is None else max(due - self.clock(), 0) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await wake.wait()

    async def _carry_out(self, cluster: Any, plan: list[list[Request]]) -> None:
        for phase in plan:
            if len(phase) == 1:
                await self._act(cluster, phase[0])
            elif phase:
                await asyncio.gather(*(self._act(cluster, request) for request in phase))

    async def _act(self, cluster: Any, request: Request) -> None:
        try:
            await self.write(request)
        except Refused as refused:
            cluster.failed(request, refused, self.clock())


_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def _discovered(kind: Kind, verbs: list[str] | None = None) -> Object:
    def names(group: str, version: str, name: str) -> Object:
        return {"group": group, "version": version, "kind": name}

    out: Object = {
        "resource": kind.plural,
        "responseKind": names(kind.group, kind.version, kind.kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.kind.lower(),
        "verbs": verbs or _VERBS,
    }
    if kind.short_names:
        out["shortNames"] = list(kind.short_names)
    if kind.categories:
        out["categories"] = list(kind.categories)
    subs: list[Object] = []
    if kind.status:
        own = names(kind.group, kind.version, kind.kind)
        subs.append({"subresource": "status", "responseKind": own, "verbs": ["get", "patch", "update"]})
    if "binding" in kind.subresources:
        subs.append({"subresource": "binding", "responseKind": names("", "v1", "Binding"), "verbs": ["create"]})
        subs.append({"subresource": "eviction", "responseKind": names("policy", "v1", "Eviction"), "verbs": ["create"]})
    if subs:
        out["subresources"] = subs
    return out


def bind(kind: Kind, namespace: str, name: str, node: str, now: int, user: User | None = None) -> Request:
    """The write that puts a pod on a node."""
    from admission.sandbox.actors import binding

    return binding(kind, namespace, name, node, now, user or User())


def _operation(change: Change) -> str:
    if change.request.verb == "delete":
        return "DELETE"
    return "CREATE" if change.old is None else "UPDATE"


def _as_admitted(change: Change, obj: Object) -> Object:
    """The object as webhooks see it: on create the server has not named it yet."""
    if change.old is not None:
        return obj
    unnamed = {"uid", "creationTimestamp", "generation"}
    body = change.request.body
    if isinstance(body, dict) and not body.get("metadata", {}).get("name"):
        unnamed.add("name")
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k not in unnamed}}


def _review_of(change: Change) -> Object:
    request = change.request
    kind = request.kind
    names = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    operation = _operation(change)
    shown = None if operation == "DELETE" else _as_admitted(change, change.new)
    name = request.name or (shown or {}).get("metadata", {}).get("name", "")
    uid = (change.new["metadata"].get("uid") or "0") + f"-{operation.lower()}"
    body: Object = {
        "uid": uid,
        "kind": names,
        "resource": resource,
        "requestKind": names,
        "requestResource": resource,
        "operation": operation,
        "userInfo": {"username": request.user.name, "groups": list(request.user.groups), "uid": request.user.uid},
        "object": shown,
        "oldObject": change.old.obj if change.old is not None else None,
        "dryRun": request.dry_run,
        "options": {
            "kind": "PatchOptions" if request.verb in ("patch", "apply") else f"{operation.title()}Options",
            "apiVersion": "meta.k8s.io/v1",
            "fieldManager": request.manager,
        },
    }
    if name:
        body["name"] = name
    if request.namespace:
        body["namespace"] = request.namespace
    if request.subresource:
        body["subResource"] = body["requestSubResource"] = request.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}


def _seen(event: Event, keep: Callable[[Object], bool]) -> list[tuple[str, Stored]]:
    """An event as a watcher with a selector sees it."""
    after = event.type != "DELETED" and keep(event.new.obj)
    before = event.old is not None and keep(event.old.obj)
    if event.type == "DELETED":
        return [("DELETED", event.new)] if before else []
    if after:
        return [("MODIFIED" if before else "ADDED", event.new)]
    if before:
        assert event.old is not None
        meta = {**event.old.obj["metadata"], "resourceVersion": str(event.revision)}
        return [("DELETED", Stored({**event.old.obj, "metadata": meta}, event.revision))]
    return []


def _partial(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(400, "BadRequest", f'Invalid value: "{text}": {name} must be an integer') from None


def _among(value: str, options: Iterable[str]) -> bool:
    return any(option in ("*", value) for option in options)


def _covers(options: Iterable[str], resource: str) -> bool:
    """Rules of webhooks: `pods`, `pods/status`, `*` (no subresources), `*/*`, `pods/*`, `*/status`."""
    plural, _, sub = resource.partition("/")
    for option in options:
        wanted, slash, wanted_sub = option.partition("/")
        if wanted in ("*", plural) and (wanted_sub in ("*", sub) if slash else not sub):
            return True
    return False


def _published(schema: Any, schemas: Object) -> Any:
    """A schema with its references turned into those of an OpenAPI document, which `schemas` collects."""
    if isinstance(schema, list):
        return [_published(x, schemas) for x in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str):
        name = schema["$ref"]
        if name not in schemas:
            schemas[name] = {}
            schemas[name] = _published(builtin()[name], schemas)
        return {**{k: v for k, v in schema.items() if k != "$ref"}, "allOf": [{"$ref": f"#/components/schemas/{name}"}]}
    return {k: _published(v, schemas) for k, v in schema.items()}
