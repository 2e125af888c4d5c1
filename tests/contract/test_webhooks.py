"""How an API server calls admission webhooks: a small TLS server is the webhook, on both servers."""

from __future__ import annotations

import base64
import datetime
import http.server
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.contract.client import APPLY, MERGE, Api, Object
from tests.contract.test_contract import GADGETS, config_map, gadget, job, made, pods_of, refusal

Answer = Callable[[Object], Object]


class Hook:
    """A webhook server: `reviews` are the requests as they came, `answer` makes the response from one."""

    def __init__(self, folder: Path) -> None:
        self.reviews: list[Object] = []
        self.answer: Answer = lambda _request: {"allowed": True}
        self.bundle, certificate = _certificate(folder)
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                request = review["request"]
                hook.reviews.append(request)
                response = {"uid": request["uid"], **hook.answer(request)}
                raw = json.dumps(
                    {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def patching(self, *operations: Object) -> Answer:
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        return lambda _request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


def _certificate(folder: Path) -> tuple[str, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)  # noqa: TID251 - certificates have dates
    usage = {
        n: n in ("digital_signature", "key_cert_sign")
        for n in (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        )
    }
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "webhook.pem"
    path.write_bytes(public + private)
    return base64.b64encode(public).decode(), path


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    made_hook = Hook(tmp_path)
    yield made_hook
    made_hook.stop()


@pytest.fixture
def install(api: Api, hook: Hook) -> Iterator[Callable[..., None]]:
    """Install a webhook for configmaps of the test's namespace; taken out after the test."""
    names: list[tuple[str, str]] = []

    def make(family: str = "Mutating", **changes: Any) -> None:
        name = f"contract-{family.lower()}-{api.namespace}"
        plural = f"{family.lower()}webhookconfigurations"
        entry: Object = {
            "name": "hook.contract.muster.dev",
            "clientConfig": {"url": hook.url, "caBundle": hook.bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}},
            "objectSelector": {"matchLabels": {"watched": "yes"}},
            **changes,
        }
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{family}WebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [entry],
        }
        where = f"/apis/admissionregistration.k8s.io/v1/{plural}"
        obj = api.ok("POST", where, body)
        names.append((plural, name))
        assert obj["webhooks"][0]["matchPolicy"] == "Equivalent"
        assert obj["webhooks"][0]["failurePolicy"] == changes.get("failurePolicy", "Fail")
        if api.name == "real":
            time.sleep(1.5)  # its configuration is read through an informer

    yield make
    for plural, name in names:
        api.call("DELETE", f"/apis/admissionregistration.k8s.io/v1/{plural}/{name}")


def watched(name: str, **meta: Any) -> Object:
    return config_map(name, labels={"watched": "yes"}, **meta)


def test_a_review_says_what_is_done(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    install()
    body = watched("")
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "some-"
    obj = made(api, "configmaps", body, dryRun="All")
    obj = made(api, "configmaps", body)
    name = obj["metadata"]["name"]
    api.ok("PATCH", api.path("configmaps", name), {"data": {"a": "2"}}, MERGE, fieldManager="m")
    api.ok("DELETE", api.path("configmaps", name))
    made(api, "configmaps", config_map("unseen"))
    dry, create, update, delete = hook.reviews
    assert (dry["dryRun"], create["dryRun"]) == (True, False)
    for review in hook.reviews:
        assert review["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
        assert review["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert review["namespace"] == api.namespace
        assert review["userInfo"]["username"] == "admin"
        assert "system:masters" in review["userInfo"]["groups"]
    assert [r["operation"] for r in hook.reviews] == ["CREATE", "CREATE", "UPDATE", "DELETE"]
    assert "name" not in create
    assert create["oldObject"] is None
    assert create["object"]["metadata"]["generateName"] == "some-"
    assert not {"name", "uid", "creationTimestamp"} & create["object"]["metadata"].keys()
    assert create["options"]["kind"] == "CreateOptions"
    assert update["name"] == name
    assert (update["oldObject"]["data"], update["object"]["data"]) == ({"a": "1"}, {"a": "2"})
    assert (delete["object"], delete["oldObject"]["data"]) == (None, {"a": "2"})


def test_a_patch_is_applied_and_kept_in_shape(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    install()
    hook.answer = hook.patching(
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "add", "path": "/metadata/annotations", "value": {"n": "1"}},
    )
    obj = made(api, "configmaps", watched("a"))
    assert (obj["data"], obj["metadata"]["annotations"]) == ({"a": "1", "b": "2"}, {"n": "1"})
    # What puts an update back to what was leaves the object untouched.
    hook.answer = lambda r: hook.patching({"op": "replace", "path": "/data/a", "value": r["oldObject"]["data"]["a"]})(r)
    quiet = api.ok("PATCH", api.path("configmaps", "a"), {"data": {"a": "9"}}, MERGE)
    assert quiet["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "7"}}
    status, quiet = api.call("PATCH", api.path("configmaps", "a"), applied, APPLY, fieldManager="x", force="true")
    assert (status, quiet["data"]["a"]) == (200, "1")


def test_a_denial(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    install("Validating")
    hook.answer = lambda _request: {"allowed": False, "status": {"message": "no such thing"}}
    answer = api.call("POST", api.path("configmaps"), watched("a"))
    assert (answer[0], answer[1]["code"], answer[1].get("reason")) == (400, 400, None)
    assert answer[1]["message"] == 'admission webhook "hook.contract.muster.dev" denied the request: no such thing'
    hook.answer = lambda _request: {"allowed": False, "status": {"message": "bad", "code": 403, "reason": "Forbidden"}}
    assert refusal(api.call("POST", api.path("configmaps"), watched("a"))) == (403, "Forbidden")
    hook.answer = lambda _request: {"allowed": False, "status": {"message": "bad", "reason": "Invalid", "code": 422}}
    answer = api.call("POST", api.path("configmaps"), watched("a"))
    assert refusal(answer) == (422, "Invalid")
    hook.answer = lambda _request: {"allowed": False}
    answer = api.call("POST", api.path("configmaps"), watched("a"))
    assert answer[1]["message"] == 'admission webhook "hook.contract.muster.dev" denied the request without explanation'
    assert api.call("GET", api.path("configmaps", "a"))[0] == 404


def test_a_webhook_that_does_not_answer(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    dead = {"url": "https://127.0.0.1:1/", "caBundle": hook.bundle}
    install(clientConfig=dead)
    answer = api.call("POST", api.path("configmaps"), watched("a"))
    assert refusal(answer) == (500, "InternalError")
    assert 'failed calling webhook "hook.contract.muster.dev"' in answer[1]["message"]
    made(api, "configmaps", config_map("unseen"))


def test_a_webhook_that_may_fail(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    install(clientConfig={"url": "https://127.0.0.1:1/", "caBundle": hook.bundle}, failurePolicy="Ignore")
    made(api, "configmaps", watched("a"))


def test_a_selector_sees_both_objects_of_an_update(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    made(api, "configmaps", config_map("a"))
    install()
    where = api.path("configmaps", "a")
    api.ok("PATCH", where, {"data": {"a": "2"}}, MERGE)
    assert hook.reviews == []
    api.ok("PATCH", where, {"metadata": {"labels": {"watched": "yes"}}}, MERGE)
    api.ok("PATCH", where, {"metadata": {"labels": None}}, MERGE)
    assert len(hook.reviews) == 2


def test_subresources_are_asked_for_by_name(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    rules = [
        {
            "apiGroups": ["contract.muster.dev"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["gadgets/status"],
        }
    ]
    install("Validating", rules=rules, objectSelector={})
    made(api, GADGETS, gadget("g"))
    api.ok("PATCH", api.path(GADGETS, "g"), {"spec": {"size": 2}}, MERGE)
    api.ok("PATCH", api.path(GADGETS, "g", "status"), {"status": {"phase": "Run"}}, MERGE)
    (review,) = hook.reviews
    assert review["subResource"] == "status"
    assert review["object"]["status"] == {"phase": "Run"}


def test_pods_of_the_job_controller_pass_webhooks(api: Api, hook: Hook, install: Callable[..., None]) -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    install(rules=rules, objectSelector={"matchLabels": {"mine": "yes"}})
    hook.answer = hook.patching({"op": "add", "path": "/spec/nodeSelector", "value": {"pinned": "here"}})
    made(api, "jobs.batch/v1", job("a", suspend=False, pods=2, completionMode="Indexed"))
    pods = api.until(lambda: len(found := pods_of(api, "a")) == 2 and found)
    assert all(p["spec"]["nodeSelector"] == {"pinned": "here"} for p in pods)
    review = hook.reviews[0]
    assert review["userInfo"]["username"] == "system:serviceaccount:kube-system:job-controller"
    assert review["object"]["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] in ("0", "1")
    assert review["object"]["spec"]["priority"] == 0
