"""The rules of `jobs.hold` as an admission webhook, for API servers that cannot evaluate them themselves.

    POST /mutate-jobs  /validate-jobs  /mutate-pods  /validate-pods     AdmissionReview v1 in and out
    POST /mutate-governed-jobs  /validate-governed-jobs  /validate-governed-pods    the same for governed namespaces
    POST /validate-evictions                                    of pods, gangs' or not: an Eviction does not say
    POST /default-queues                                        jobs without a label get the LocalQueue `default`

Whether a caller may admit is asked of the API server (SubjectAccessReview), only where the answer matters, and kept for
a few seconds. What the webhook cannot read it refuses; what it cannot judge, for nobody says who asks, it leaves to its
`failurePolicy`. What concerns it is picked by labels in `configurations`, so that when it is down jobs without a label
still come and go.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import structlog
from aiohttp import web

from admission.jobs import hold
from admission.jobs.hold import IDENTITIES, Caller, Identities
from admission.jobs.kinds import Json, Operation, obj, text
from admission.jobs.requests import LIMITS, Limits
from admission.kube.access import Access
from admission.kube.client import ApiError
from admission.kube.flow import Told
from admission.kube.lanes import Shares
from admission.kube.port import listen
from admission.names import DEFAULT_QUEUE, JOBSET_GROUP, JOBSET_NAME_LABEL, Names

log = structlog.get_logger("muster.webhook")

BODY_LIMIT = 3 << 20
"""Bytes; the API server itself takes objects of 3 MiB at most, so old and new together are refused above twice that."""

PLACE, PLACES = 16 << 10, 2048
"""Bytes, and how many times so many are read and reviewed at a time: whoever reaches the port may send some."""
READ_S = 5.0
"""So long a request may take to come: the API server waits no longer for its answer."""

ADMISSION_API = "admission.k8s.io/v1"
_decode = msgspec.json.Decoder(type=dict[str, Any]).decode


class Webhook:
    """See the module. `app` is what is served. `has_queue`: is there a LocalQueue, by (namespace, name)?"""

    def __init__(
        self,
        access: Access,
        names: Names,
        *,
        identities: Identities = IDENTITIES,
        limits: Limits = LIMITS,
        has_queue: Callable[[str, str], bool] = lambda _namespace, _name: False,
    ) -> None:
        self._access = access
        self._has_queue = has_queue
        self._names = names
        self._identities = identities
        self._limits = limits
        self.app = web.Application(client_max_size=2 * BODY_LIMIT)
        self.parting = False
        """Who asks is to close the connection when it has its answer."""
        self.leaving = False
        """No more is reviewed: what this needs to answer is closed."""
        self._shares = Shares(PLACES)
        self._unjudged = Told()
        self.reviewed: dict[tuple[str, bool], int] = {}
        """(path, allowed) -> how many; for metrics."""
        for path, review in (
            ("/default-queues", self._default_queue),
            ("/mutate-jobs", self._mutate_job),
            ("/validate-jobs", self._validate_job),
            ("/mutate-governed-jobs", partial(self._mutate_job, governed=True)),
            ("/validate-governed-jobs", partial(self._validate_job, governed=True)),
            ("/mutate-pods", self._mutate_pod),
            ("/validate-pods", self._validate_pod),
            ("/validate-governed-pods", partial(self._validate_pod, governed=True)),
            ("/validate-evictions", self._validate_eviction),
        ):
            self.app.router.add_post(path, self._handler(review))

    @property
    def reading(self) -> int:
        """Bytes of the requests that are read and reviewed now, in whole places."""
        return self._shares.total * PLACE

    async def serve(self, port: int, tls: ssl.SSLContext | None, *, host: str | None = None) -> web.AppRunner:
        """Listen; the caller cleans the runner up."""
        return await listen(self.app, host, port, tls)

    def _handler(
        self, review: Callable[[Json, str], Awaitable[list[Operation] | str]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if self.leaving:  # its connection was still being made when the server was closed
                return web.Response(status=503, text="this replica is leaving")
            size, source = request.content_length, request.remote or ""
            if size is None:
                return web.Response(status=411, text="say how long the body is")
            if request.headers.get("Content-Encoding"):  # it would take a thousand times the places that it says
                return web.Response(status=415, text="send the body as it is")
            if size > 2 * BODY_LIMIT:  # nor may it hold places as if it came
                raise web.HTTPRequestEntityTooLarge(2 * BODY_LIMIT, size)
            if not self._shares.may_take(source):
                return web.Response(status=503, text="too much is being reviewed; try again in a moment")
            places = 1 + size // PLACE
            self._shares.take(source, places)
            try:
                return await reviewed(request, source)
            finally:
                self._shares.give_back(source, places)

        async def reviewed(request: web.Request, source: str) -> web.Response:
            try:
                async with asyncio.timeout(READ_S):
                    read = await request.read()
            except TimeoutError:
                return web.Response(status=408, text="the body did not come")
            try:
                body = _decode(read)
            except (ValueError, RecursionError) as error:
                return web.Response(status=400, text=f"the body is no JSON object: {error}")
            asked = obj(body.get("request"))
            if not asked.get("uid"):
                return web.Response(status=400, text="the body is no AdmissionReview")
            try:
                answer = await review(asked, source)
            except (ApiError, OSError, TimeoutError) as error:
                if self._unjudged.due():
                    log.warning("not reviewed", path=request.path, error=str(error), times=self._unjudged.times)
                return web.Response(status=500, text=f"what the caller may do cannot be looked up now: {error}")
            self._unjudged.over()
            response: Json = {"uid": asked["uid"], "allowed": not isinstance(answer, str)}
            if isinstance(answer, str):
                response["status"] = {"code": 403, "reason": "Forbidden", "message": answer}
            elif answer:
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(answer)).decode()}
            key = (request.path, bool(response["allowed"]))
            self.reviewed[key] = self.reviewed.get(key, 0) + 1
            out = {"apiVersion": ADMISSION_API, "kind": "AdmissionReview", "response": response}
            answered = web.Response(body=msgspec.json.encode(out), content_type="application/json")
            if self.parting:
                answered.force_close()
            return answered

        return handle

    async def _caller(self, asked: Json, source: str, *, of_pod: bool = False) -> Caller:
        """Who asks, and what the authorizer says of them."""
        user = obj(asked.get("userInfo"))
        manager = text(obj(asked.get("options")).get("fieldManager"))
        may_admit = await self._access.allowed(user, self._names.group, "workloads", "admit", source=source)
        runs = await self._access.allowed(user, JOBSET_GROUP, "jobsets", "update", "status", source=source)
        pods = of_pod and await self._access.allowed(user, "", "pods", "delete", source=source)
        return Caller(text(user.get("username")), may_admit, runs, pods, field_manager=manager)

    async def _default_queue(self, asked: Json, _source: str) -> list[Operation] | str:
        new, _ = _objects(asked)
        there = self._has_queue(text(asked.get("namespace")), DEFAULT_QUEUE)
        return hold.default_queue(new, self._names) if there else []

    async def _mutate_job(self, asked: Json, source: str, *, governed: bool = False) -> list[Operation] | str:
        new, old = _objects(asked)
        caller = await self._caller(asked, source) if old is not None or governed else Caller()
        return hold.mutate_job(old, new, caller, self._names, identities=self._identities, governed=governed)

    async def _validate_job(self, asked: Json, source: str, *, governed: bool = False) -> list[Operation] | str:
        new, old = _objects(asked)
        caller = await self._caller(asked, source)
        refused = hold.validate_job(
            old, new, caller, self._names, identities=self._identities, limits=self._limits, governed=governed
        )
        return refused or []

    async def _mutate_pod(self, asked: Json, _source: str) -> list[Operation] | str:
        pod, _ = _objects(asked)
        try:
            return hold.mutate_pod(pod, self._names)
        except hold.UnpinnableError as error:
            if not hold.is_of_job(pod, text(obj(asked.get("userInfo")).get("username")), self._identities):
                return hold.Messages(self._names).pod_marker
            return f"this pod belongs to an admitted gang and cannot be placed: {error}"

    async def _validate_pod(self, asked: Json, source: str, *, governed: bool = False) -> list[Operation] | str:
        pod, old = _objects(asked)
        if text(asked.get("operation")) == "DELETE":
            caller, options = await self._caller(asked, source), obj(asked.get("options"))
            return hold.validate_delete(obj(old), options, caller, self._names, limits=self._limits) or []

        def refused(caller: Caller) -> str | None:
            return hold.validate_pod(old, pod, caller, self._names, identities=self._identities, governed=governed)

        if refused(Caller(text(obj(asked.get("userInfo")).get("username")))) is None:
            return []
        # Most pods are made by the Job controller; only for others does the right to admit matter.
        return refused(await self._caller(asked, source, of_pod=True)) or []

    async def _validate_eviction(self, asked: Json, source: str) -> list[Operation] | str:
        options = obj(_objects(asked)[0].get("deleteOptions"))
        if not hold.is_patient(options, limits=self._limits):
            return []  # as good as all
        caller = await self._caller(asked, source)
        user = obj(asked.get("userInfo"))
        drains = await self._access.allowed(user, "", "pods", "create", "eviction", source=source)
        caller = replace(caller, evicts_all=drains)
        return hold.validate_delete(None, options, caller, self._names, limits=self._limits) or []


def _objects(asked: Json) -> tuple[Json, Json | None]:
    """(new, old or None) of a request."""
    old = asked.get("oldObject")
    return obj(asked.get("object")), old if isinstance(old, dict) else None


# ---------------------------------------------------------------- configuration


def configurations(
    names: Names,
    *,
    ca_bundle: bytes,
    service: tuple[str, str] | None = None,
    url: str = "",
    home: str = "muster-system",
    governed_namespaces: Mapping[str, Any] | None = None,
    defaulted_namespaces: Mapping[str, Any] | None = None,
) -> list[Json]:
    """The webhook configurations, both named `muster`. `service` is (namespace, name); without one `url` counts. home:
    the namespace of the replicas, of which no webhook is asked."""
    bundle = base64.b64encode(ca_bundle).decode()

    def client(path: str) -> Json:
        if service is None:
            return {"url": url.rstrip("/") + path, "caBundle": bundle}
        return {"service": {"namespace": service[0], "name": service[1], "path": path, "port": 443}, "caBundle": bundle}

    def exists(*keys: str) -> Json:
        return {"matchExpressions": [{"key": key, "operator": "Exists"} for key in keys]}

    def rule(group: str, resource: str, *operations: str) -> Json:
        return {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "resources": [resource],
            "operations": list(operations),
            "scope": "Namespaced",
        }

    everywhere = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", home]}
        ]
    }

    def hook(name: str, path: str, rules: list[Json], **more: Any) -> Json:
        return {
            "name": f"{name}.{names.group}",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(path),
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": everywhere,
            "objectSelector": {},
            "rules": rules,
            "sideEffects": "None",
            "timeoutSeconds": 5,
            **more,
        }

    jobs = [rule("batch", "jobs", "CREATE", "UPDATE"), rule(JOBSET_GROUP, "jobsets", "CREATE", "UPDATE")]
    queued, marked = exists(names.queue_label), exists(*names.gang_marks)
    again = {"reinvocationPolicy": "IfNeeded"}
    mutating = [
        hook("jobs", "/mutate-jobs", jobs, objectSelector=queued, **again),
        # Children of JobSets carry no label of ours: when nobody answers, they go on as ever.
        hook(
            "children",
            "/mutate-jobs",
            [rule("batch", "jobs", "UPDATE")],
            objectSelector=exists(JOBSET_NAME_LABEL),
            **again,
            failurePolicy="Ignore",
        ),
        hook("pods", "/mutate-pods", [rule("", "pods", "CREATE")], objectSelector=marked, **again),
    ]
    validating = [
        hook("jobs", "/validate-jobs", jobs, objectSelector=queued),
        # Our keys in the templates of jobs without the label.
        hook("templates", "/validate-jobs", jobs, failurePolicy="Ignore", timeoutSeconds=2),
        hook(
            "pods",
            "/validate-pods",
            [rule("", "pods", "CREATE", "UPDATE"), rule("", "pods/resize", "UPDATE")],
            objectSelector=marked,
        ),
        hook("deletes", "/validate-pods", [rule("", "pods", "DELETE")], objectSelector=marked, failurePolicy="Ignore"),
        # When nobody answers, pods are evicted as ever.
        hook(
            "evictions",
            "/validate-evictions",
            [rule("", "pods/eviction", "CREATE")],
            failurePolicy="Ignore",
            timeoutSeconds=2,
        ),
    ]
    if defaulted_namespaces is not None:
        # When nobody answers, jobs without the label go on as ever.
        # None, or an empty one: a selector can say but one of them.
        queue = {"key": names.queue_label}
        mutating[:0] = [
            hook(
                name,
                "/default-queues",
                [rule("batch", "jobs", "CREATE"), rule(JOBSET_GROUP, "jobsets", "CREATE")],
                objectSelector={"matchExpressions": [{**queue, **said}]},
                namespaceSelector=dict(defaulted_namespaces),
                failurePolicy="Ignore",
                timeoutSeconds=2,
            )
            for name, said in (
                ("queues", {"operator": "DoesNotExist"}),
                ("empty-queues", {"operator": "In", "values": [""]}),
            )
        ]
    if governed_namespaces is not None:
        where = {"namespaceSelector": dict(governed_namespaces)}
        mutating.append(hook("namespaces", "/mutate-governed-jobs", jobs, **where, **again))
        validating.append(hook("namespaces", "/validate-governed-jobs", jobs, **where))
        # When nobody answers, pods of others go on as ever.
        created = [rule("", "pods", "CREATE")]
        validating.append(
            hook("priorities", "/validate-governed-pods", created, **where, failurePolicy="Ignore", timeoutSeconds=2)
        )
    meta = {"name": "muster", "labels": {"app.kubernetes.io/name": "muster"}}
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": dict(meta),
            "webhooks": hooks,
        }
        for kind, hooks in (("Mutating", mutating), ("Validating", validating))
    ]
