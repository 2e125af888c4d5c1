"""The servers that the contract is held against: the sandbox always, a real one where MUSTER_CONTRACT_KUBECONFIG names it."""  # noqa: E501

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from admission.sandbox.http import Sandbox
from tests.contract.client import Api

GADGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gadgets.contract.muster.dev"},
    "spec": {
        "group": "contract.muster.dev",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                                    "tags": {
                                        "type": "array",
                                        "items": {"type": "string"},
                                        "x-kubernetes-list-type": "set",
                                    },
                                    "plain": {"type": "array", "items": {"type": "string"}},
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "weight": {"type": "integer"},
                                                "note": {"type": "string"},
                                            },
                                        },
                                    },
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {"phase": {"type": "string"}, "count": {"type": "integer"}},
                            },
                        },
                    }
                },
            }
        ],
    },
}


def _sandbox() -> Iterator[Api]:
    loop = asyncio.new_event_loop()
    sandbox = Sandbox(time_scale=4)
    thread = threading.Thread(target=loop.run_forever, name="sandbox")
    thread.start()
    try:
        url = asyncio.run_coroutine_threadsafe(sandbox.start(), loop).result(10)
        nodes = Api(url)
        for number in range(2):
            size = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"node-{number}"},
                "status": {"capacity": size, "allocatable": size},
            }
            nodes.ok("POST", "/api/v1/nodes", node)
        yield Api(url, "admin-token", name="sandbox")
    finally:
        asyncio.run_coroutine_threadsafe(sandbox.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session", params=["sandbox", "real"])
def server(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "sandbox":
        made = _sandbox()
        api = next(made)
    else:
        path = os.environ.get("MUSTER_CONTRACT_KUBECONFIG")
        if not path:
            pytest.skip("no real API server: set MUSTER_CONTRACT_KUBECONFIG")
        made, api = iter(()), Api.from_kubeconfig(path, name="real")
    status, _ = api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", GADGETS)
    assert status in (201, 409)
    api.until(lambda: api.call("GET", "/apis/contract.muster.dev/v1/gadgets")[0] == 200)
    yield api
    for _ in made:
        pass


_numbers = itertools.count()


@pytest.fixture
def api(server: Api) -> Iterator[Api]:
    """The server with a namespace of the test's own."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "contract-"}}
    server.namespace = server.ok("POST", "/api/v1/namespaces", body)["metadata"]["name"]
    account = server.path("serviceaccounts", "default")
    server.until(lambda: server.call("GET", account)[0] == 200)
    yield server
    server.call("DELETE", f"/api/v1/namespaces/{server.namespace}")
