"""One tenant's writes hang, by a webhook that does not answer: no other tenant waits for them."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from admission.controller import certificates
from e2e.api_client import Object, condition
from e2e.control_plane import ControlPlane
from e2e.gangs import WORKLOADS, teams
from e2e.installed import NAMES, USER, Installed, job

QUEUES = f"clusterqueues.{NAMES.group}"
MANY = 20
"""Writes under way that hang: there are as many as a tenant may have, whatever that is."""


class Silent:
    """A webhook that accepts what it is asked, and answers nothing. `asked`: how often it was."""

    def __init__(self) -> None:
        self.asked = 0
        silent, self._over = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                silent.asked += 1
                silent._over.wait(60)

            def log_message(self, *_: object) -> None: ...

        self.held = certificates.issue(None, ("127.0.0.1",), datetime.now(UTC))  # noqa: TID251 - TLS looks at the clock

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

        self._server = Server(("127.0.0.1", 0), Handler)
        # Hands are shaken by who answers a connection, not by who accepts them all.
        tls = certificates.context(self.held)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def configuration(self, group: str, resource: str) -> Object:
        """It is asked about changes of these objects in namespaces with the label `noisy`."""
        rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource]}
        hook = {
            "name": "silent.example.com",
            "clientConfig": {
                "url": f"https://127.0.0.1:{self._server.server_address[1]}/",
                "caBundle": base64.b64encode(self.held.bundle).decode(),
            },
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"noisy": "true"}},
            "timeoutSeconds": 30,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "silent"},
            "webhooks": [hook],
        }

    def end(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def silence(cp: ControlPlane, group: str, resource: str) -> Iterator[Silent]:
    silent = Silent()
    try:
        cp.apply(silent.configuration(group, resource))
        yield silent
    finally:
        cp.delete("validatingwebhookconfigurations", "silent")
        silent.end()


def _given_up(cp: ControlPlane, since: str) -> int:
    """Writes of the controller, sent since then, of which it knows that they came to nothing."""
    writes = [e for e in cp.audit_events() if e["user"]["username"] == USER and e["verb"] == "patch"]
    sent = [e for e in writes if e["requestReceivedTimestamp"] >= since]
    return sum(e.get("responseStatus", {}).get("code", 0) >= 500 for e in sent)


@pytest.mark.parametrize("noisy", [1, 3])
@pytest.mark.parametrize(
    ("group", "resource"), [("batch", "jobs"), ("muster.dev", "workloads/status")], ids=["starts", "admissions"]
)
def test_who_hangs_delays_nobody_else(muster: Installed, noisy: int, group: str, resource: str) -> None:
    cp = muster.cp
    muster.started(tuning={})
    cp.add_nodes(26, gpus=8, labels={"gpu": "h100"})
    names = [f"noisy-{i}" for i in range(noisy)]
    teams(cp, {**dict.fromkeys(names, 64), "quiet": 8}, **{name: {"stopPolicy": "Hold"} for name in names})
    for name in names:
        cp.patch("namespaces", name, {"metadata": {"labels": {"noisy": "true"}}})
    with silence(cp, group, resource) as silent:
        cp.create_all([job(name, f"j-{i}", 1, gpus=1, seconds=None) for i in range(64) for name in names])
        cp.wait(lambda: len(cp.list(WORKLOADS)) == 64 * noisy, 60, "all to be queued")
        before, since = silent.asked, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        for name in names:  # all at once: what hangs is given up ten seconds later
            cp.patch(QUEUES, name, {"spec": {"stopPolicy": "None"}})
        cp.wait(lambda: silent.asked >= before + MANY, 30, "writes to hang")
        cp.create(job("quiet", "first", 1, gpus=8, seconds=None))
        cp.wait(lambda: not cp.get("jobs", "first", "quiet")["spec"]["suspend"], 30, "the quiet one's job to start")
        assert _given_up(cp, since) == 0, "it waited until others' writes had come to nothing"
        cp.create(job("quiet", "second", 64, gpus=8, seconds=None))  # more than there is, to borrow too
        cp.wait(
            lambda: any(condition(one, "QuotaReserved") == "False" for one in cp.list(WORKLOADS, "quiet")),
            30,
            "the next one to be told why it waits",
        )

    def all_run() -> bool:
        return not any(one["spec"]["suspend"] for name in names for one in cp.list("jobs", name))

    cp.wait(all_run, 120, "the others' jobs to start, once they may")
