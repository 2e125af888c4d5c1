"""A tiny synchronous client of a Kubernetes API: JSON over HTTP, status and body as they came."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Api:
    """One server. `call` answers (HTTP status, decoded body) whatever the status is."""

    def __init__(self, url: str, token: str = "", ca: bytes | None = None, name: str = "") -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        self.host, self.port, self.token, self.name = parts.hostname, parts.port, token, name
        self.context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self.context = ssl.create_default_context(cadata=ca.decode() if ca else None)
        self.namespace = ""

    @classmethod
    def from_kubeconfig(cls, path: str | Path, name: str = "") -> Api:
        config = yaml.safe_load(Path(path).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca: bytes | None = None
        if "certificate-authority-data" in cluster:
            ca = base64.b64decode(cluster["certificate-authority-data"])
        elif "certificate-authority" in cluster:
            ca = Path(cluster["certificate-authority"]).read_bytes()
        return cls(cluster["server"], user["token"], ca, name)

    def connect(self, timeout: float = 300) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, form: str, **query: Any
    ) -> http.client.HTTPResponse:
        if query:
            path += "?" + urllib.parse.urlencode(query)
        headers = {"Accept": "application/json", "Content-Type": form, "User-Agent": "contract/1.0"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    def call(
        self, method: str, path: str, body: Any = None, form: str = "application/json", **query: Any
    ) -> tuple[int, Object]:
        connection = self.connect()
        try:
            response = self.send(connection, method, path, body, form, **query)
            raw = response.read()
            try:
                return response.status, json.loads(raw)
            except ValueError:
                return response.status, {"text": raw.decode(errors="replace")}
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, form: str = "application/json", **query: Any) -> Object:
        status, answer = self.call(method, path, body, form, **query)
        assert status < 300, (method, path, status, answer)
        return answer

    def path(self, plural: str, name: str = "", sub: str = "", namespace: str | None = None) -> str:
        """The path of a namespaced resource: `jobs.batch/v1`, `configmaps`."""
        resource, _, group = plural.partition(".")
        base = f"/apis/{group}" if group else "/api/v1"
        return "/".join(
            x
            for x in (base, "namespaces", self.namespace if namespace is None else namespace, resource, name, sub)
            if x
        )

    @contextmanager
    def watch(self, path: str, **query: Any) -> Iterator[Iterator[Object]]:
        connection = self.connect()
        try:
            response = self.send(connection, "GET", path, None, "application/json", watch="true", **query)
            assert response.status == 200, (response.status, response.read())
            yield (json.loads(line) for line in response)
        finally:
            connection.close()

    def until(self, look: Callable[[], Any], seconds: float = 300) -> Any:
        """The first true value of `look`."""
        end = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < end, "did not come"
            time.sleep(0.05)
