"""A small synchronous client for the API server: raw JSON in, raw JSON out, one kept-alive connection per thread.

Resources are named as people name them on the command line: "jobs", "job", "Job", or with their group where a name is
taken twice ("workloads.muster.dev"); the client asks the server which path that is.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import yaml

Object = dict[str, Any]
Objects = list[Object]
T = TypeVar("T")

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
APPLY = "application/apply-patch+yaml"
PATIENCE = 4
"""Timeouts of waits are those of a machine that does nothing else; one that is shared has so many times as long."""


class ApiError(Exception):
    """The API server answered with an error; `status` is the HTTP code."""

    def __init__(self, status: int, method: str, path: str, body: Any) -> None:
        self.status = status
        self.reason: str = body.get("reason", "") if isinstance(body, dict) else ""
        self.message: str = body.get("message", "") if isinstance(body, dict) else str(body)
        super().__init__(f"{method} {path}: {status} {self.message}")


class WaitError(AssertionError):
    """What was waited for did not come."""


@dataclasses.dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        parts = ["/apis/" + self.api_version if self.group else "/api/" + self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [self.plural, *filter(None, (name, subresource))]
        return "/".join(parts)


class ApiClient:
    """Talks to one API server as one user. Threads may share it."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None, token: str | None = None) -> None:
        self.url = url
        self._context = context
        self._token = token
        parsed = urllib.parse.urlsplit(url)
        self._host, self._port, self._tls = parsed.hostname or "", parsed.port, parsed.scheme == "https"
        self._local = threading.local()
        self._resources: list[Resource] = []
        self._short: dict[str, Resource] = {}

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For other clients of the same server."""
        return self._context

    def with_token(self, token: str) -> ApiClient:
        """The same server as somebody else."""
        return ApiClient(self.url, self._context, token)

    # -- requests ------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = 60.0) -> http.client.HTTPConnection:
        """A connection of its own, for who reads a stream."""
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 60.0,
    ) -> tuple[int, bytes]:
        """One request, whatever the answer. A dead kept-alive connection is replaced once."""
        if params:
            path += ("&" if "?" in path else "?") + urllib.parse.urlencode(params)
        payload = None
        if body is not None:
            payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        headers = self.headers() | {"Accept": accept, "Content-Type": content_type}
        while True:
            kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            connection = kept or self.connect()
            connection.timeout = timeout
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            try:
                connection.request(method, path, payload, headers)
                response = connection.getresponse()
                content = response.read()
            except (ConnectionError, http.client.HTTPException, ssl.SSLError):
                connection.close()
                self._local.connection = None
                if kept is None:
                    raise
                continue
            except BaseException:
                connection.close()
                self._local.connection = None
                raise
            self._local.connection = connection
            return response.status, content

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """One request; the decoded answer, or ApiError. "Too many requests" is waited out, and so is a kind that was
        defined a moment ago and cannot be applied yet."""
        for attempt in range(20):
            status, content = self.raw(method, path, body, **options)
            if status != 429 and not (status == 503 and b"There can be a delay between when" in content):
                break
            time.sleep(0.1 * (attempt + 1))
        decoded: Any
        try:
            decoded = json.loads(content) if content else None
        except ValueError:
            decoded = content.decode(errors="replace")
        if status >= 400:
            raise ApiError(status, method, path, decoded)
        return decoded

    # -- what the server knows -----------------------------------------------------------------------------------

    def resources(self, refresh: bool = False) -> list[Resource]:
        if refresh or not self._resources:
            found: list[Resource] = []
            short: dict[str, Resource] = {}
            accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            for path in "/api", "/apis":
                for group in self.request("GET", path, accept=accept)["items"]:
                    name = group["metadata"].get("name", "")
                    for version in group["versions"]:
                        for r in version.get("resources", ()):
                            kind = r.get("responseKind", {}).get("kind", "")
                            scoped = r["scope"] == "Namespaced"
                            verbs = tuple(r.get("verbs", ()))
                            resource = Resource(name, version["version"], r["resource"], kind, scoped, verbs)
                            found.append(resource)
                            for alias in r.get("shortNames", ()):
                                short.setdefault(alias, resource)
            self._resources, self._short = found, short
        return self._resources

    def resource(self, name: str, api_version: str | None = None) -> Resource:
        """By kind, plural, singular or short name, with or without ".group"; unknown ones are asked for again."""
        for refresh in False, True:
            wanted, _, group = name.lower().partition(".")
            for r in self.resources(refresh):
                if (api_version and r.api_version != api_version) or (group and r.group != group):
                    continue
                if wanted in (r.plural, r.kind.lower()):
                    return r
            if api_version is None and wanted in self._short:
                return self._short[wanted]
        raise LookupError(f"the API server has no resource {name!r}" + (f" in {api_version}" if api_version else ""))

    def has(self, name: str) -> bool:
        try:
            self.resource(name)
        except LookupError:
            return False
        return True

    def resource_of(self, obj: Object) -> Resource:
        """The resource of an object; one whose CRD was installed a moment ago is waited for."""
        give_up = time.monotonic() + 10 * PATIENCE
        while True:
            try:
                return self.resource(obj["kind"], obj["apiVersion"])
            except LookupError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)

    # -- objects -------------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str, namespace: str | None = None, subresource: str | None = None) -> Object:
        result: Object = self.request("GET", self.resource(kind).path(namespace, name, subresource))
        return result

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """`get`, or None where there is none."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, **selectors: str) -> Objects:
        """All objects of a kind; `labelSelector=` and `fieldSelector=` as the API has them."""
        resource = self.resource(kind)
        path = resource.path(namespace)
        items: Objects = []
        params: dict[str, Any] = dict(selectors)
        params.setdefault("limit", 5000)
        while True:
            answer = self.request("GET", path, params=params)
            items += answer["items"]
            if not answer["metadata"].get("continue"):
                break
            params["continue"] = answer["metadata"]["continue"]
        for item in items:  # lists of built-in kinds leave these out
            item.setdefault("kind", resource.kind)
            item.setdefault("apiVersion", resource.api_version)
        return items

    def create(self, obj: Object, **params: Any) -> Object:
        meta = obj["metadata"]
        path = self.resource_of(obj).path(meta.get("namespace", "default"))
        result: Object = self.request("POST", path, obj, params=params)
        return result

    def create_all(self, objects: Iterable[Object], workers: int = 8) -> Objects:
        """Many at once, in the order given as far as the answer goes."""
        todo = list(objects)
        if not todo:
            return []
        self.resource_of(todo[0])
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.create, todo))

    def replace(self, obj: Object, subresource: str | None = None, **params: Any) -> Object:
        meta = obj["metadata"]
        path = self.resource_of(obj).path(meta.get("namespace"), meta["name"], subresource)
        result: Object = self.request("PUT", path, obj, params=params)
        return result

    def patch(
        self,
        kind: str,
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        content_type: str | None = None,
        **params: Any,
    ) -> Object:
        """A merge patch for a dict, a JSON patch for a list, unless `content_type` says otherwise."""
        content_type = content_type or (JSON_PATCH if isinstance(body, list) else MERGE)
        path = self.resource(kind).path(namespace, name, subresource)
        result: Object = self.request("PATCH", path, body, params=params, content_type=content_type)
        return result

    def delete(self, kind: str, name: str, namespace: str | None = None, **params: Any) -> Object | None:
        """Gone, or going; that it was not there is no error. Dependents are deleted in the background."""
        params.setdefault("propagationPolicy", "Background")
        try:
            result: Object = self.request("DELETE", self.resource(kind).path(namespace, name), params=params)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return result

    def delete_all(self, kind: str, namespace: str | None = None, **params: Any) -> None:
        """All objects of a kind in a namespace (in all namespaces, if the kind is cluster-scoped)."""
        params.setdefault("propagationPolicy", "Background")
        self.request("DELETE", self.resource(kind).path(namespace), params=params)

    def apply(
        self, objects: Object | Iterable[Object] | str, manager: str = "e2e", force: bool = True, **params: Any
    ) -> Objects:
        """Server-side apply of objects or of a YAML text. After a CRD, waits until the server serves it."""
        applied = []
        if isinstance(objects, str):
            objects = [document for document in yaml.safe_load_all(objects) if document]
        for obj in [objects] if isinstance(objects, dict) else objects:
            meta = obj["metadata"]
            path = self.resource_of(obj).path(meta.get("namespace", "default"), meta["name"])
            options = params | {"fieldManager": manager, "force": str(force).lower()}
            applied.append(self.request("PATCH", path, obj, params=options, content_type=APPLY))
            if obj["kind"] == "CustomResourceDefinition":
                self.wait_established(meta["name"])
        return applied

    def wait_established(self, crd: str, timeout: float = 20.0) -> None:
        def established() -> bool:
            status = self.get("customresourcedefinitions", crd).get("status", {})
            return condition({"status": status}, "Established") == "True"

        self.wait(established, timeout, f"CRD {crd} established")
        self.resources(refresh=True)

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(
        self,
        predicate: Callable[[], T],
        timeout: float = 30.0,
        what: str = "",
        *,
        every: float | None = None,
        describe: Callable[[], Any] | None = None,
    ) -> T:
        """Until `predicate` answers something true, which is returned. It is asked `every` so many seconds; left out:
        at first 20 times a second, later less, for whoever asks takes from a small machine what others wait for.

        An AssertionError or ApiError of the predicate counts as not yet; the last one, the last answer and what
        `describe` says go into the message of the failure. It comes after PATIENCE times `timeout` seconds.
        """
        timeout *= PATIENCE
        began = time.monotonic()
        last = ""
        while True:
            try:
                answer = predicate()
                if answer:
                    return answer
                last = f"last answer: {_short(answer)}"
            except (ApiError, AssertionError, LookupError, OSError) as caught:
                last = f"last: {caught!r}"
            waited = time.monotonic() - began
            if waited > timeout:
                break
            time.sleep(min(max(0.05, waited / 20), 0.5) if every is None else every)
        lines = [f"waited {timeout:g} s for {what or getattr(predicate, '__name__', 'a condition')}"]
        lines.append(f"  {last}")
        if describe is not None:
            lines.append(f"  now: {_short(describe())}")
        raise WaitError("\n".join(lines))

    def close(self) -> None:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def condition(obj: Object, kind: str) -> str | None:
    """The status of a condition: "True", "False", "Unknown", or None where there is none."""
    for entry in obj.get("status", {}).get("conditions") or ():
        if entry["type"] == kind:
            return str(entry["status"])
    return None


def finished(job: Object) -> str | None:
    """How a Job or JobSet ended: "Complete", "Completed", "Failed", or None."""
    return next((kind for kind in ("Complete", "Completed", "Failed") if condition(job, kind) == "True"), None)


def merged(base: Object, extra: Mapping[str, Any]) -> Object:
    """`base` with the fields of `extra` set, objects merged at every depth; neither is changed."""
    result = copy.deepcopy(base)
    for key, value in extra.items():
        both = isinstance(result.get(key), dict) and isinstance(value, Mapping)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) < 3000 else text[:3000] + "..."
