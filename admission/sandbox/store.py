"""A pure object store with the semantics of the Kubernetes API: no I/O, no clock, no chance; time is an argument.

One door for writes, in two steps: `prepare` turns a `Request` into a `Change` (decoded, merged, in shape, but not yet
stored), and `commit` stores it, or raises `Refused` with a Status. Between the two, whoever holds the store may let
admission webhooks change `Change.new`; if the object was changed by somebody else meanwhile, `commit` raises `Raced` and
the request is prepared again, unless it carried a resourceVersion. `Store.do` is both steps at once.

Objects that were stored are never changed in place: a reader may keep them, and must not write to them. Every kind keeps a
bounded ring of its events; who asks for older ones is told 410 Expired. A watcher is a position in that ring, so a slow
one costs nothing and is told 410 as well.

Times are ints in milliseconds since the epoch.
"""  # noqa: E501

from __future__ import annotations

import base64
import hashlib
import json
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from admission.sandbox.patches import (
    PatchError,
    Path,
    apply_merge,
    compare,
    from_fields,
    json_patch,
    merge_patch,
    owned_paths,
    prune,
    strategic_merge,
    to_fields,
)
from admission.sandbox.shapes import ANY, META, Object, Report, Schema, Shape, copy, walk_paths

Key = tuple[str, str]
"""(namespace, name); the namespace of what has none is empty."""

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):  # noqa: N818 - an answer, as 404 is
    """A request that is answered with a Status object."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = dict(details or {})

    def body(self) -> Object:
        out: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            out["reason"] = self.reason
        if self.details:
            out["details"] = self.details
        out["code"] = self.code
        return out


class Raced(Exception):  # noqa: N818 - a turn of events
    """The object changed between prepare and commit: prepare again."""


@dataclass(frozen=True)
class User:
    name: str = "admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")
    uid: str = ""


Cause = tuple[str, str, str]
"""(field, reason such as FieldValueInvalid, message)."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind that is served. `prepare(new, old, now)` fills in what the server sets; `check(new, old, subresource)` returns
    what is wrong. `old` is None on create."""  # noqa: E501

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    shape: Shape = field(default_factory=lambda: Shape(ANY))
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    columns: tuple[Mapping[str, Any], ...] = ()
    keeps_status: bool = False
    """Whether a create may bring a status (nodes)."""
    generation: bool = False
    orphans: bool = False
    """Whether a delete that names no policy keeps the dependents (Jobs)."""
    needs_version: bool = False
    """Whether PUT must carry a resourceVersion."""
    creates_on_update: bool = False
    returns_deleted: bool = False
    fields: tuple[str, ...] = ()
    """Field selectors besides metadata.name and metadata.namespace."""
    subresources: tuple[str, ...] = ()
    defaults: Callable[[Object], None] | None = None
    prepare: Callable[[Store, Object, Object | None, int], None] | None = None
    check: Callable[[Object, Object | None, str], Iterable[Cause]] | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def id(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def resource(self) -> str:
        """`jobs.batch`, as error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """`Job.batch`, as messages about invalid objects name it."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def __repr__(self) -> str:
        return f"Kind({self.resource})"


class Stored:
    """An object as it was stored at one revision."""

    __slots__ = ("_raw", "obj", "revision")

    def __init__(self, obj: Object, revision: int) -> None:
        self.obj, self.revision = obj, revision
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The JSON text; made once, however many watch it."""
        if self._raw is None:
            self._raw = msgspec.json.encode(self.obj)
        return self._raw


@dataclass(frozen=True)
class Event:
    """One change: `old` is None for what is new, `new` is the last state for what is gone."""

    revision: int
    type: str
    key: Key
    new: Stored
    old: Stored | None


@dataclass(frozen=True)
class Request:
    """A write. `verb` is create, update, patch or delete; `body` is the decoded JSON (for patches, the patch)."""

    verb: str
    kind: Kind
    namespace: str = ""
    name: str = ""
    body: Any = None
    subresource: str = ""
    content_type: str = ""
    manager: str = "unknown"
    force: bool = False
    dry_run: bool = False
    validation: str = "Warn"
    user: User = User()


@dataclass
class Change:
    """A write on its way: what was there, and what will be."""

    request: Request
    old: Stored | None
    new: Object
    applied: Object | None = None
    warnings: list[str] = field(default_factory=list)
    pinned: bool = False
    """Whether the caller named the resourceVersion or uid: then a race is a conflict and no reason to try again."""
    planned: Object | None = None
    """What the caller asked for, before admission changed it."""


class _Bucket:
    def __init__(self, kind: Kind, floor: int) -> None:
        self.kind = kind
        self.objects: dict[Key, Stored] = {}
        self.order: list[Key] = []
        self.events: list[Event] = []
        self.floor = floor
        """No event at or below this revision is remembered."""


def stamp(now: int) -> str:
    """A time as objects carry it, in whole seconds."""
    return (_EPOCH + timedelta(seconds=now // 1000)).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> int:
    """The reverse of `stamp`; fractions of a second are kept."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
# What nobody owns: the server writes it, or it names the object.
_UNOWNED = {
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
}


class Store:
    """All objects of one cluster. `history` bounds the events remembered per kind; `seed` makes uids and generated
    names differ between two stores. `validators` refuse what a custom resource's rules refuse: (new, old) -> causes, by
    (group, plural)."""

    def __init__(
        self,
        kinds: Iterable[Kind] = (),
        *,
        history: int = 10_000,
        seed: str = "sandbox",
        validators: Mapping[tuple[str, str], Callable[[Object, Object | None], Iterable[Cause]]] | None = None,
    ) -> None:
        self.revision = 1000
        self.history, self.seed = history, seed
        self.validators = dict(validators or {})
        self.admission: list[Callable[[Change], None]] = []
        """Called with every Change between its two steps in `do`; may change or refuse it."""
        self.listeners: list[Callable[[Kind, Event], None]] = []
        """Called after each commit, in order of revision."""
        self.dependents: dict[str, dict[tuple[tuple[str, str], Key], None]] = {}
        """Owner uid -> what names it as owner."""
        self.uids: dict[str, tuple[tuple[str, str], Key]] = {}
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._minted = 0
        for kind in kinds:
            self.install(kind)

    # Kinds

    def install(self, kind: Kind) -> None:
        """Serve a kind; one that is served already keeps its objects and takes the new definition."""
        bucket = self._buckets.get(kind.id)
        if bucket is None:
            self._buckets[kind.id] = _Bucket(kind, self.revision)
        else:
            bucket.kind = kind

    def uninstall(self, group: str, plural: str) -> None:
        self._buckets.pop((group, plural), None)

    def kinds(self) -> list[Kind]:
        return [bucket.kind for bucket in self._buckets.values()]

    def kind(self, group: str, plural: str) -> Kind | None:
        bucket = self._buckets.get((group, plural))
        return bucket.kind if bucket else None

    def kind_of(self, api_version: str, kind: str) -> Kind | None:
        """The kind of an object or an owner reference, whatever version it names."""
        group = api_version.rpartition("/")[0]
        return next((b.kind for b in self._buckets.values() if b.kind.group == group and b.kind.kind == kind), None)

    # Reading

    def find(self, group: str, plural: str, namespace: str, name: str) -> Object | None:
        """An object or None: for actors and tests; callers must not change it."""
        bucket = self._buckets.get((group, plural))
        stored = bucket.objects.get((namespace, name)) if bucket else None
        return stored.obj if stored else None

    def stored(self, kind: Kind, namespace: str, name: str) -> Stored:
        found = self._buckets[kind.id].objects.get((namespace, name))
        if found is None:
            raise not_found(kind, name)
        return found

    def objects(self, group: str, plural: str, namespace: str = "") -> Iterator[Object]:
        """All objects of a kind in order of (namespace, name): for actors and tests."""
        bucket = self._buckets.get((group, plural))
        if bucket is None:
            return
        for key in list(bucket.order):
            if (not namespace or key[0] == namespace) and key in bucket.objects:
                yield bucket.objects[key].obj

    def page(
        self,
        kind: Kind,
        namespace: str = "",
        *,
        keep: Callable[[Object], bool] | None = None,
        limit: int = 0,
        token: str = "",
        exactly: int | None = None,
    ) -> tuple[list[Stored], int, str, int]:
        """(items, revision, continue token, how many remain) of a list. All pages show the state at the revision of the
        first, from the ring; 410 when that is too old."""
        bucket = self._buckets[kind.id]
        revision, after = self.revision, ("", "")
        if token:
            try:
                decoded = json.loads(base64.urlsafe_b64decode(token))
                revision, after = int(decoded["rv"]), (str(decoded["ns"]), str(decoded["name"]))
            except (ValueError, KeyError, TypeError):
                raise Refused(400, "BadRequest", "continue key is not valid") from None
        if exactly is not None:
            revision = exactly
        overlay: dict[Key, Stored | None] = {}
        if revision < self.revision:
            if revision < bucket.floor:
                text = (
                    "The provided continue parameter is too old to display a consistent list result. You can start a new "  # noqa: E501
                    "list without the continue parameter."
                )
                raise Refused(410, "Expired", text)
            for event in self.since(kind, revision):
                overlay.setdefault(event.key, event.old)
        keys: Iterable[Key] = bucket.order
        if overlay:
            keys = sorted({*bucket.order, *overlay})
        items: list[Stored] = []
        left = 0
        last: Key = after
        for key in keys:
            if key <= after and token:
                continue
            if namespace and key[0] != namespace:
                continue
            stored = overlay[key] if key in overlay else bucket.objects.get(key)
            if stored is None or (keep is not None and not keep(stored.obj)):
                continue
            if limit and len(items) >= limit:
                left += 1
                continue
            items.append(stored)
            last = key
        more = ""
        if left:
            more = base64.urlsafe_b64encode(
                json.dumps({"rv": revision, "ns": last[0], "name": last[1]}).encode()
            ).decode()
        return items, revision, more, left

    def since(self, kind: Kind, revision: int) -> list[Event]:
        """The events after a revision. Raises Refused 410 when some of them are forgotten."""
        bucket = self._buckets.get(kind.id)
        if bucket is None:
            raise Refused(410, "Expired", f"{kind.resource} is no longer served")
        if revision < bucket.floor:
            raise Refused(410, "Expired", f"too old resource version: {revision} ({bucket.floor})")
        events = bucket.events
        return events[bisect_left(events, revision + 1, key=lambda e: e.revision) :]

    def forget(self, kind: Kind) -> None:
        """Drop the event history of a kind, as compaction does: for tests of 410."""
        bucket = self._buckets[kind.id]
        bucket.events.clear()
        bucket.floor = self.revision

    # Writing

    def do(self, request: Request, now: int) -> Object:
        """Prepare, admit in process, commit. Returns the object as stored, or the Status of a delete."""
        for _ in range(10):
            change = self.prepare(request, now)
            for hook in self.admission:
                hook(change)
            try:
                return self.commit(change, now)[0]
            except Raced:
                continue
        raise conflict(request.kind, request.name, "the object kept changing")

    def create(
        self, kind: Kind, obj: Object, now: int, *, user: User | None = None, manager: str = "sandbox"
    ) -> Object:
        namespace = obj.get("metadata", {}).get("namespace", "")
        return self.do(Request("create", kind, namespace, body=obj, manager=manager, user=user or User()), now)

    def prepare(self, request: Request, now: int) -> Change:
        """The change a request asks for, in shape, with defaults; Refused for what the server refuses before admission."""  # noqa: E501
        kind = request.kind
        if request.verb == "create":
            return self._prepare_create(request, now)
        old = self._buckets[kind.id].objects.get((request.namespace, request.name))
        if request.verb == "delete":
            if old is None:
                raise not_found(kind, request.name)
            return Change(request, old, old.obj)
        if request.verb == "update":
            return self._prepare_update(request, old, now)
        return self._prepare_patch(request, old, now)

    def reshape(self, change: Change) -> None:
        """Bring `change.new` into shape again after admission changed it. Refused 422 or 400 if it no longer has one."""  # noqa: E501
        change.new = self._conform(change.request.kind, change.new, "Ignore", change.warnings)

    def commit(self, change: Change, now: int) -> tuple[Object, int]:
        """Store a change. Returns (answer, HTTP status)."""
        request = change.request
        kind = request.kind
        current = self._buckets[kind.id].objects.get(self._key(change))
        if request.verb == "create":
            if change.old is None and current is not None:
                if request.body is not None and not request.body.get("metadata", {}).get("name"):
                    raise Raced
                raise exists(kind, change.new["metadata"]["name"])
        elif current is not change.old:
            if current is None:
                raise not_found(kind, request.name)
            if change.pinned:
                raise conflict(kind, request.name)
            raise Raced
        if request.verb == "delete":
            return self._delete(change, now)
        return self._write(change, now)

    def _key(self, change: Change) -> Key:
        meta = change.new["metadata"]
        return (meta.get("namespace", "") if change.request.kind.namespaced else "", meta.get("name", ""))

    def _conform(self, kind: Kind, obj: Any, validation: str, warnings: list[str], partial: bool = False) -> Object:
        if not isinstance(obj, dict):
            raise Refused(400, "BadRequest", "the body of the request must be an object")
        report = Report(partial=partial)
        out = kind.shape.conform(obj, report)
        if report.types:
            text = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {report.types[0]}'
            raise Refused(400, "BadRequest", text)
        if partial and (report.unknown or report.untyped):
            where = "/".join((out.get("metadata", {}).get("namespace", ""), out.get("metadata", {}).get("name", "")))
            lacks = [*(f".{x}: field not declared in schema" for x in report.unknown), *report.untyped]
            what = lacks[0] if len(lacks) == 1 else "\n  ".join(("errors:", *lacks))
            text = f"failed to create typed patch object ({where}; {kind.api_version}, Kind={kind.kind}): {what}"
            raise Refused(500, "", text)
        if report.unknown and validation == "Strict":
            problems = ", ".join(f'unknown field "{x}"' for x in report.unknown)
            if kind.shape.custom:
                text = f"strict decoding error: {problems}"
            else:
                text = (
                    f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                    f"strict decoding error: {problems}"
                )
            raise Refused(400, "BadRequest", text)
        if validation == "Warn":
            warnings += [f'unknown field "{x}"' for x in report.unknown]
        if report.invalid:
            raise invalid(kind, out.get("metadata", {}).get("name", ""), report.invalid)
        out["apiVersion"], out["kind"] = kind.api_version, kind.kind
        out.setdefault("metadata", {})
        if kind.defaults is not None and not partial:
            kind.defaults(out)
        return out

    def _decode(self, request: Request, obj: Any, warnings: list[str], partial: bool = False) -> Object:
        kind = request.kind
        if not isinstance(obj, dict):
            raise Refused(400, "BadRequest", "the body of the request must be an object")
        if not kind.shape.custom:
            # Built-in kinds are told by the path; custom ones must say what they are.
            obj = {**obj, "apiVersion": obj.get("apiVersion") or kind.api_version, "kind": obj.get("kind") or kind.kind}
        given = (obj.get("apiVersion"), obj.get("kind"))
        if given != (kind.api_version, kind.kind):
            if not given[0] or not given[1]:
                missing = "apiVersion must not be empty" if given[1] else "Object 'Kind' is missing"
                raise Refused(400, "BadRequest", f"{missing} in the body of the request")
            text = (
                f"the API version in the data ({given[0]}) does not match the expected API version ({kind.api_version})"
                if given[0] != kind.api_version
                else f'{given[1]} in version "{kind.version}" cannot be handled as a {kind.kind}'
            )
            raise Refused(400, "BadRequest", text)
        out = self._conform(kind, obj, request.validation, warnings, partial)
        meta = out["metadata"]
        if kind.namespaced:
            if not meta.get("namespace"):
                meta["namespace"] = request.namespace
            elif meta["namespace"] != request.namespace:
                text = "the namespace of the provided object does not match the namespace sent on the request"
                raise Refused(400, "BadRequest", text)
        else:
            meta.pop("namespace", None)
        return out

    def _prepare_create(self, request: Request, now: int) -> Change:
        kind = request.kind
        warnings: list[str] = []
        new = self._decode(request, request.body, warnings)
        meta = new["metadata"]
        if request.name and meta.get("name") not in (None, "", request.name):
            raise Refused(400, "BadRequest", "the name of the object does not match the name on the URL")
        if request.name:
            meta["name"] = request.name
        if meta.get("resourceVersion") not in (None, "", "0"):
            raise Refused(500, "InternalError", "resourceVersion should not be set on objects to be created")
        if kind.namespaced:
            self._namespace_takes(kind, request.namespace, meta.get("name", ""))
        self._born(new, now)
        change = Change(request, None, new, warnings=warnings)
        if request.content_type == APPLY:
            change.applied = copy(request.body)
        if kind.status and not kind.keeps_status:
            new.pop("status", None)
        if kind.prepare is not None:
            kind.prepare(self, new, None, now)
        change.planned = copy(new)
        return change

    def _born(self, new: Object, now: int) -> None:
        meta = new["metadata"]
        for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            meta.pop(name, None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + self._suffix()
        meta["uid"] = self._uid()
        meta["creationTimestamp"] = stamp(now)
        meta["generation"] = 1

    def _namespace_takes(self, kind: Kind, namespace: str, name: str) -> None:
        """Refused 404 where the namespace is missing, 403 where it is being deleted."""
        bucket = self._buckets.get(("", "namespaces"))
        if bucket is None:
            return
        found = bucket.objects.get(("", namespace))
        if found is None:
            raise not_found(bucket.kind, namespace)
        if found.obj["metadata"].get("deletionTimestamp"):
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(kind, name, text, [cause])

    def _mint(self) -> bytes:
        self._minted += 1
        return hashlib.sha256(f"{self.seed}/{self._minted}".encode()).digest()

    def _uid(self) -> str:
        h = self._mint().hex()
        return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) % 4]}{h[17:20]}-{h[20:32]}"

    def _suffix(self) -> str:
        return "".join(_LETTERS[b % len(_LETTERS)] for b in self._mint()[:5])

    def _prepare_update(self, request: Request, old: Stored | None, now: int) -> Change:
        kind = request.kind
        warnings: list[str] = []
        new = self._decode(request, request.body, warnings)
        meta = new["metadata"]
        if not meta.get("name"):
            meta["name"] = request.name
        if meta["name"] != request.name:
            text = f"the name of the object ({meta['name']}) does not match the name on the URL ({request.name})"
            raise Refused(400, "BadRequest", text)
        if old is None:
            if kind.creates_on_update and not request.subresource:
                return self._prepare_create(replace(request, verb="create"), now)
            raise not_found(kind, request.name)
        version = str(meta.get("resourceVersion") or "")
        if version in ("", "0") and kind.needs_version:
            text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            named = replace(kind, kind=kind.plural)  # the server names the resource here, not the kind
            raise invalid(named, request.name, [("metadata.resourceVersion", "FieldValueInvalid", text)])
        return self._merged(request, old, new, warnings, now)

    def _prepare_patch(self, request: Request, old: Stored | None, now: int) -> Change:
        kind = request.kind
        if request.content_type == APPLY:
            return self._prepare_apply(request, old, now)
        if old is None:
            raise not_found(kind, request.name)
        warnings: list[str] = []
        try:
            if request.content_type == JSON:
                new = json_patch(old.obj, request.body)
            elif request.content_type == MERGE:
                new = merge_patch(old.obj, request.body)
            elif request.content_type == STRATEGIC:
                if kind.shape.custom:
                    text = (
                        "the body of the request was in an unknown format - accepted media types include: "
                        f"{JSON}, {MERGE}, {APPLY}"
                    )
                    raise Refused(415, "UnsupportedMediaType", text)
                new = strategic_merge(old.obj, request.body, _typed(kind))
            else:
                text = (
                    "the body of the request was in an unknown format - accepted media types include: "
                    f"{JSON}, {MERGE}, {STRATEGIC}, {APPLY}"
                )
                raise Refused(415, "UnsupportedMediaType", text)
        except PatchError as error:
            if error.code == 422:
                raise Refused(422, "Invalid", str(error)) from None
            raise Refused(400, "BadRequest", str(error)) from None
        new = self._decode(request, new, warnings)
        if new["metadata"].get("name") != request.name:
            text = f"the name of the object ({new['metadata'].get('name')}) does not match the name on the URL"
            raise Refused(400, "BadRequest", text)
        return self._merged(request, old, new, warnings, now)

    def _prepare_apply(self, request: Request, old: Stored | None, now: int) -> Change:
        kind, body = request.kind, request.body
        if not isinstance(body, dict):
            raise Refused(400, "BadRequest", "an applied document must be an object")
        if body.get("metadata", {}).get("managedFields"):
            raise Refused(400, "BadRequest", "metadata.managedFields must be nil")
        if old is None:
            if request.subresource:
                raise not_found(kind, request.name)
            if body.get("metadata", {}).get("uid"):
                raise conflict(
                    kind,
                    request.name,
                    "uid mismatch: the provided object specified uid, and no existing object was found",
                )
            self._decode(request, body, [], partial=True)
            return self._prepare_create(replace(request, verb="create"), now)
        warnings: list[str] = []
        applied = self._decode(request, body, warnings, partial=True)
        schema = _typed(kind)
        mine = self._reset(owned_paths(_ownable(applied), schema), kind, request.subresource)
        managers = _managers(old.obj)
        own = (request.manager, "Apply", request.subresource)
        before = managers.get(own, set())
        others: set[Path] = set().union(*(paths for who, paths in managers.items() if who != own))
        live = {k: v for k, v in old.obj.items() if k != "metadata"}
        live["metadata"] = {k: v for k, v in old.obj["metadata"].items() if k != "managedFields"}
        sent = {k: v for k, v in applied.items() if k != "metadata"}
        if kind.status or request.subresource:
            wanted = "status" if request.subresource == "status" else None
            sent = {
                k: v for k, v in sent.items() if k in ("apiVersion", "kind") or (k == "status") == (wanted == "status")
            }
        sent["metadata"] = (
            {k: v for k, v in applied["metadata"].items() if k not in _UNOWNED} if not request.subresource else {}
        )
        merged = apply_merge(live, sent, schema)
        gone = before - mine - others
        if gone:
            merged = prune(merged, gone, mine | others, schema)
        changed, _ = compare(_ownable(live), _ownable(merged), schema)
        fights = {who: changed & paths for who, paths in managers.items() if who != own and changed & paths}
        if fights and not request.force:
            raise _apply_conflict(fights, old.obj)
        for name in ("resourceVersion", "uid"):
            given = applied["metadata"].get(name)
            if given not in (None, ""):
                merged["metadata"][name] = given
        merged = self._decode(request, merged, [])
        change = self._merged(request, old, merged, warnings, now)
        if not applied["metadata"].get("resourceVersion"):
            change.pinned = False
        change.applied = applied
        return change

    def _merged(self, request: Request, old: Stored, new: Object, warnings: list[str], now: int) -> Change:
        """Common to every update: preconditions, what callers cannot change, and which half belongs to whom."""
        kind, meta, was = request.kind, new["metadata"], old.obj["metadata"]
        version = str(meta.get("resourceVersion") or "")
        pinned = request.verb == "update" and version not in ("", "0")
        if request.verb == "patch" and isinstance(request.body, dict):
            pinned = bool(request.body.get("metadata", {}).get("resourceVersion"))
        if version not in ("", "0"):
            if not version.isdigit():
                text = f'metadata.resourceVersion: Invalid value: "{version}": must be an integer'
                raise invalid(kind, request.name, [("metadata.resourceVersion", "FieldValueInvalid", text)])
            if version != was["resourceVersion"]:
                raise conflict(kind, request.name)
        uid = meta.get("uid")
        if uid and uid != was["uid"] and request.verb == "patch":
            text = f'Invalid value: "{uid}": field is immutable'
            raise invalid(kind, request.name, [("metadata.uid", "FieldValueInvalid", text)])
        if uid and uid != was["uid"]:
            text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {was['uid']}"
            raise conflict(kind, request.name, text)
        for name in (
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generateName",
            "selfLink",
        ):
            if name in was:
                meta[name] = was[name]
            else:
                meta.pop(name, None)
        if request.subresource == "status":
            kept = {k: v for k, v in old.obj.items() if k != "status"}
            if kind.shape.custom or kind.group:
                kept["metadata"] = dict(was)
            else:
                kept["metadata"] = {**was, **{k: meta[k] for k in ("labels", "annotations") if k in meta}}
            kept["metadata"]["managedFields"] = meta.get("managedFields", was.get("managedFields", []))
            if "status" in new:
                kept["status"] = new["status"]
            new = kept
        elif kind.status and request.subresource != "binding":
            new.pop("status", None)
            if "status" in old.obj:
                new["status"] = old.obj["status"]
        if kind.prepare is not None:
            kind.prepare(self, new, old.obj, now)
        return Change(request, old, new, warnings=warnings, pinned=pinned, planned=copy(new))

    def _reset(self, paths: set[Path], kind: Kind, subresource: str) -> set[Path]:
        """Without what a request of this kind cannot set."""
        if subresource == "status":
            return {p for p in paths if p[:1] == ("f:status",)}
        if kind.status:
            return {p for p in paths if p[:1] != ("f:status",)}
        return paths

    def check(self, change: Change) -> None:
        """Refused 422 for an object that is not valid."""
        request = change.request
        kind, new, old = request.kind, change.new, change.old.obj if change.old else None
        causes = list(_check_meta(new["metadata"], old["metadata"] if old else None))
        if kind.check is not None:
            causes += kind.check(new, old, request.subresource)
        validator = self.validators.get(kind.id)
        if validator is not None:
            causes += validator(new, old)
        if causes:
            raise invalid(kind, new["metadata"].get("name", ""), causes)

    def _write(self, change: Change, now: int) -> tuple[Object, int]:
        request, new = change.request, change.new
        kind = request.kind
        self.check(change)
        if request.verb == "create":
            if kind.namespaced:
                self._namespace_takes(kind, new["metadata"].get("namespace", ""), new["metadata"]["name"])
            new["metadata"]["managedFields"] = self._ownership(change, None, now)
            if not kind.generation:
                new["metadata"].pop("generation", None)
            if request.dry_run:
                return new, 201
            return self._put(kind, new, None).obj, 201
        assert change.old is not None
        old = change.old.obj
        meta, was = new["metadata"], old["metadata"]
        meta["managedFields"] = self._ownership(change, old, now)
        if kind.generation and any(
            new.get(k) != old.get(k)
            for k in new.keys() | old.keys()
            if k not in ("metadata", "status", "apiVersion", "kind")
        ):
            meta["generation"] = was.get("generation", 0) + 1
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        if kind.id == ("", "namespaces"):
            held = held or new.get("spec", {}).get("finalizers")
        if meta.get("deletionTimestamp") and not held:
            if not request.dry_run:
                self._remove(kind, new, change.old)
            return new, 200
        if new == old:
            return old, 200
        if request.dry_run:
            return new, 200
        return self._put(kind, new, change.old).obj, 200

    def _ownership(self, change: Change, old: Object | None, now: int) -> list[Object]:
        """managedFields after a change. Times of entries whose fields did not change are kept."""
        request, kind, new = change.request, change.request.kind, change.new
        schema = _typed(kind)
        sub = request.subresource
        managers = _managers(old) if old else {}
        entries = {_who(e): e for e in (old or {}).get("metadata", {}).get("managedFields", [])}
        given = new["metadata"].get("managedFields")
        if given in ([], [{}]) and old is not None and old["metadata"].get("managedFields") and change.applied is None:
            # An explicit empty list means: forget who owned what.
            managers, entries = {}, {}
            if request.verb == "patch":
                return []
        fresh = _ownable(new)
        changed, removed = compare(_ownable(old) if old else {}, fresh, schema)
        changed, removed = self._reset(changed, kind, sub), self._reset(removed, kind, sub)
        if change.applied is not None:
            own = (request.manager, "Apply", sub)
            mine = self._reset(owned_paths(_ownable(change.applied), schema), kind, sub)
            for who in managers:
                if who != own:
                    managers[who] = managers[who] - changed - removed
            managers[own] = mine
            if change.planned is not None:
                # What admission added belongs to the same manager, as an update.
                by_admission, _ = compare(_ownable(change.planned), fresh, schema)
                if by_admission:
                    side = (request.manager, "Update", sub)
                    managers[side] = managers.get(side, set()) | by_admission
        else:
            own = (request.manager, "Update", sub)
            for who in managers:
                if who != own:
                    managers[who] = managers[who] - changed - removed
            if changed or removed:
                managers[own] = (managers.get(own, set()) | changed) - removed
        out = []
        for who, paths in managers.items():
            if not paths:
                continue
            before = entries.get(who)
            if before is not None and from_fields(before.get("fieldsV1", {})) == paths:
                out.append(before)
                continue
            entry: Object = {
                "manager": who[0],
                "operation": who[1],
                "apiVersion": kind.api_version,
                "time": stamp(now),
                "fieldsType": "FieldsV1",
                "fieldsV1": to_fields(paths),
            }
            if who[2]:
                entry["subresource"] = who[2]
            out.append(entry)
        return sorted(out, key=lambda e: (e["operation"] != "Apply", e["time"], e["manager"], e.get("subresource", "")))

    # Deleting

    def _delete(self, change: Change, now: int) -> tuple[Object, int]:
        request, kind = change.request, change.request.kind
        assert change.old is not None
        stored, options = change.old, request.body or {}
        old, meta = stored.obj, stored.obj["metadata"]
        wanted = options.get("preconditions") or {}
        if wanted.get("uid") not in (None, meta["uid"]):
            text = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {meta['uid']}"
            raise conflict(kind, request.name, text)
        if wanted.get("resourceVersion") not in (None, meta["resourceVersion"]):
            text = (
                f"Precondition failed: ResourceVersion in precondition: {wanted['resourceVersion']}, "
                f"ResourceVersion in object meta: {meta['resourceVersion']}"
            )
            raise conflict(kind, request.name, text)
        policy = options.get("propagationPolicy")
        if options.get("orphanDependents") is not None:
            policy = "Orphan" if options["orphanDependents"] else "Background"
        if policy not in (None, "", "Orphan", "Background", "Foreground"):
            text = f'Unsupported value: "{policy}": supported values: "Background", "Foreground", "Orphan"'
            raise invalid(kind, request.name, [("propagationPolicy", "FieldValueNotSupported", text)])
        finalizers = list(meta.get("finalizers", []))
        if policy is None and not any(x in finalizers for x in ("orphan", "foregroundDeletion")) and kind.orphans:
            policy = "Orphan"
        if policy:
            finalizers = [x for x in finalizers if x not in ("orphan", "foregroundDeletion")]
            if policy == "Orphan":
                finalizers.append("orphan")
            elif policy == "Foreground":
                finalizers.append("foregroundDeletion")
        grace = self._grace(kind, old, options)
        already = bool(meta.get("deletionTimestamp"))
        held = bool(finalizers) or (kind.id == ("", "namespaces") and bool(old.get("spec", {}).get("finalizers")))
        if already and grace > 0 and grace >= (meta.get("deletionGracePeriodSeconds") or 0):
            grace = meta.get("deletionGracePeriodSeconds") or 0
        if grace == 0 and not held:
            if not request.dry_run:
                self._remove(kind, {**old, "metadata": {**meta}}, stored)
            if kind.returns_deleted:
                return old, 200
            details: Object = {"name": request.name, "kind": kind.plural, "uid": meta["uid"]}
            if kind.group:
                details["group"] = kind.group
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}, 200
        new_meta = {**meta}
        if finalizers:
            new_meta["finalizers"] = finalizers
        else:
            new_meta.pop("finalizers", None)
        if not already or grace < (meta.get("deletionGracePeriodSeconds") or 0):
            new_meta["deletionTimestamp"] = (
                meta["deletionTimestamp"] if already and grace == 0 else stamp(now + grace * 1000)
            )
            new_meta["deletionGracePeriodSeconds"] = grace
            if kind.generation and not already:
                new_meta["generation"] = meta.get("generation", 0) + 1
        new = {**old, "metadata": new_meta}
        if kind.id == ("", "namespaces"):
            new["status"] = {**old.get("status", {}), "phase": "Terminating"}
        if new == old:
            return old, 200
        if request.dry_run:
            return new, 200
        return self._put(kind, new, stored).obj, 200

    def _grace(self, kind: Kind, old: Object, options: Mapping[str, Any]) -> int:
        if kind.id != ("", "pods"):
            return 0
        given = options.get("gracePeriodSeconds")
        if not old.get("spec", {}).get("nodeName") or old.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        if given is None:
            return int(old["spec"].get("terminationGracePeriodSeconds", 30))
        return max(int(given), 0)

    # The ring

    def _put(self, kind: Kind, new: Object, old: Stored | None) -> Stored:
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        stored = Stored(new, self.revision)
        bucket = self._buckets[kind.id]
        key = (new["metadata"].get("namespace", "") if kind.namespaced else "", new["metadata"]["name"])
        bucket.objects[key] = stored
        if old is None:
            insort(bucket.order, key)
            self.uids[new["metadata"]["uid"]] = (kind.id, key)
        self._link(kind, key, old.obj if old else None, new)
        self._emit(bucket, Event(self.revision, "ADDED" if old is None else "MODIFIED", key, stored, old))
        return stored

    def _remove(self, kind: Kind, last: Object, old: Stored) -> None:
        self.revision += 1
        last["metadata"]["resourceVersion"] = str(self.revision)
        bucket = self._buckets[kind.id]
        meta = old.obj["metadata"]
        key = (meta.get("namespace", "") if kind.namespaced else "", meta["name"])
        del bucket.objects[key]
        del bucket.order[bisect_left(bucket.order, key)]
        self.uids.pop(meta["uid"], None)
        self._link(kind, key, old.obj, None)
        self._emit(bucket, Event(self.revision, "DELETED", key, Stored(last, self.revision), old))

    def _link(self, kind: Kind, key: Key, old: Object | None, new: Object | None) -> None:
        before = {o["uid"] for o in (old or {}).get("metadata", {}).get("ownerReferences", [])}
        after = {o["uid"] for o in (new or {}).get("metadata", {}).get("ownerReferences", [])}
        for uid in before - after:
            found = self.dependents.get(uid, {})
            found.pop((kind.id, key), None)
            if not found:
                self.dependents.pop(uid, None)
        for uid in sorted(after - before):
            self.dependents.setdefault(uid, {})[kind.id, key] = None

    def _emit(self, bucket: _Bucket, event: Event) -> None:
        bucket.events.append(event)
        if len(bucket.events) > self.history + self.history // 4:
            cut = len(bucket.events) - self.history
            bucket.floor = bucket.events[cut - 1].revision
            del bucket.events[:cut]
        for listener in self.listeners:
            listener(bucket.kind, event)


# Statuses


def _details(kind: Kind, name: str, causes: Iterable[Object] = ()) -> Object:
    out: Object = {}
    if name:
        out["name"] = name
    if kind.group:
        out["group"] = kind.group
    out["kind"] = kind.plural
    listed = list(causes)
    if listed:
        out["causes"] = listed
    return out


def not_found(kind: Kind, name: str) -> Refused:
    return Refused(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def exists(kind: Kind, name: str) -> Refused:
    return Refused(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: Kind, name: str, why: str = "") -> Refused:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    text = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Refused(409, "Conflict", text, _details(kind, name))


def forbidden(kind: Kind, name: str, why: str, causes: Iterable[Object] = ()) -> Refused:
    return Refused(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}', _details(kind, name, causes))


def invalid(kind: Kind, name: str, causes: Iterable[Cause]) -> Refused:
    """422. A cause's message may be given with its field in front, as people read it, or without."""
    listed = [(f, r, m if m.startswith(f"{f}: ") else f"{f}: {m}") for f, r, m in causes]
    text = listed[0][2] if len(listed) == 1 else "[" + ", ".join(m for _, _, m in listed) + "]"
    shown = [{"reason": r, "message": m.removeprefix(f"{f}: "), "field": f} for f, r, m in listed]
    details = {**_details(kind, name), "kind": kind.kind, "causes": shown}
    return Refused(422, "Invalid", f'{kind.qualified} "{name}" is invalid: {text}', details)


def _apply_conflict(fights: Mapping[tuple[str, str, str], set[Path]], old: Object) -> Refused:
    causes = []
    stamps = {_who(e): e for e in old["metadata"].get("managedFields", [])}
    lines = []
    for who, paths in sorted(fights.items()):
        entry = stamps[who]
        by = f'conflict with "{who[0]}"'
        if who[2]:
            by += f' with subresource "{who[2]}"'
        if who[1] == "Update":
            by += f" using {entry['apiVersion']}"
        names = [_dotted(p) for p in sorted(paths)]
        causes += [{"reason": "FieldManagerConflict", "message": by, "field": name} for name in names]
        lines.append(f"{by}: {', '.join(names)}")
    count = len(causes)
    text = f"Apply failed with {count} conflict{'s' if count != 1 else ''}: " + "; ".join(lines)
    return Refused(409, "Conflict", text, {"causes": causes})


def _dotted(path: Path) -> str:
    out = ""
    for element in path:
        form, _, text = element.partition(":")
        if form == "f":
            out += f".{text}"
        elif form == "k":
            out += "[" + ",".join(f"{k}={json.dumps(v)}" for k, v in json.loads(text).items()) + "]"
        else:
            out += f"[={text}]"
    return out


def _who(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry.get("manager", ""), entry.get("operation", "Update"), entry.get("subresource", "")


def _managers(obj: Object) -> dict[tuple[str, str, str], set[Path]]:
    return {_who(e): from_fields(e.get("fieldsV1", {})) for e in obj["metadata"].get("managedFields", [])}


def _ownable(obj: Object) -> Object:
    out = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
    meta = {k: v for k, v in obj.get("metadata", {}).items() if k not in _UNOWNED}
    if meta:
        out["metadata"] = meta
    return out


_TYPED: dict[int, tuple[Any, Schema]] = {}


def _typed(kind: Kind) -> Schema:
    """The schema of whole objects of a kind, its metadata included."""
    from admission.sandbox.shapes import resolve

    cached = _TYPED.get(id(kind.shape))
    if cached is not None and cached[0] is kind.shape:
        return cached[1]
    schema = resolve(kind.shape.schema)
    made = {**schema, "properties": {**schema.get("properties", {}), "metadata": META}}
    _TYPED[id(kind.shape)] = (kind.shape, made)
    return made


def _check_meta(meta: Object, was: Object | None) -> Iterator[Cause]:
    name = meta.get("name") or ""
    if not name:
        yield "metadata.name", "FieldValueRequired", "Required value: name or generateName is required"
    elif was is None and not _SUBDOMAIN.match(name):
        text = (
            f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '  # noqa: E501
            "'-' or '.', and must start and end with an alphanumeric character"
        )
        yield "metadata.name", "FieldValueInvalid", text
    elif len(name) > 253:
        yield "metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": must be no more than 253 characters'
    yield from check_marks(meta, "metadata")
    if was is not None and was.get("deletionTimestamp"):
        for added in sorted(set(meta.get("finalizers", [])) - set(was.get("finalizers", []))):
            text = f'Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{"{added}"}}'  # noqa: E501
            yield "metadata.finalizers", "FieldValueForbidden", text
    for owner in meta.get("ownerReferences", []):
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                yield f"metadata.ownerReferences.{part}", "FieldValueInvalid", 'Invalid value: "": must not be empty'
    controllers = [o for o in meta.get("ownerReferences", []) if o.get("controller")]
    if len(controllers) > 1:
        text = f'Invalid value: "{controllers[1]["name"]}": Only one reference can have Controller set to true'
        yield "metadata.ownerReferences", "FieldValueInvalid", text


def check_marks(meta: Object, at: str) -> Iterator[Cause]:
    """What is wrong with labels and annotations, of an object or of a template."""
    for part in ("labels", "annotations"):
        for key in meta.get(part) or {}:
            if not _LABEL_KEY.match(key if part == "labels" else key.lower()):
                text = f'Invalid value: "{key}": name part must consist of alphanumeric characters, "-", "_" or "."'
                yield f"{at}.{part}", "FieldValueInvalid", text
    for value in (meta.get("labels") or {}).values():
        if not _LABEL_VALUE.match(value):
            text = (
                f'Invalid value: "{value}": a valid label must be an empty string or consist of alphanumeric characters, '  # noqa: E501
                "'-', '_' or '.', and must start and end with an alphanumeric character"
            )
            yield f"{at}.labels", "FieldValueInvalid", text
    size = sum(len(k) + len(v) for k, v in (meta.get("annotations") or {}).items())
    if size > 262144:
        yield f"{at}.annotations", "FieldValueTooLong", "Too long: may not be more than 262144 bytes"


# Selectors

_REQUIREMENT = re.compile(
    r"^\s*(?:(?P<bang>!)\s*(?P<absent>[\w./-]+)|(?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[\w.\-]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?)\s*$"
)


def label_selector(text: str) -> Callable[[Mapping[str, str]], bool]:
    """`a=b,c!=d,e in (f,g),!h` as a test of labels. Refused 400 for what is none."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    for part in re.split(r",(?![^(]*\))", text):
        match = _REQUIREMENT.match(part)
        if match is None:
            raise Refused(400, "BadRequest", f"unable to parse requirement: {part!r}")
        tests.append(_requirement(match))
    return lambda labels: all(test(labels) for test in tests)


def _requirement(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if match["bang"]:
        absent = match["absent"]
        return lambda labels: absent not in labels
    key, op, value = match["key"], match["op"], match["value"]
    if op in ("=", "=="):
        return lambda labels: labels.get(key) == value
    if op == "!=":
        return lambda labels: labels.get(key) != value
    if match["set"]:
        values = {x.strip() for x in match["values"].split(",")}
        if match["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    return lambda labels: key in labels


def matches_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector object; None and {} match all."""
    if not selector:
        return True
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for term in selector.get("matchExpressions") or []:
        key, values = term["key"], term.get("values") or []
        held = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not held[term["operator"]]:
            return False
    return True


def field_selector(kind: Kind, text: str) -> Callable[[Object], bool]:
    """`metadata.name=a,status.phase!=Running` as a test of objects. Refused 400 for fields that cannot be selected by."""  # noqa: E501
    known = {"metadata.name", *kind.fields}
    if kind.namespaced:
        known.add("metadata.namespace")
    tests: list[tuple[str, bool, str]] = []
    for part in filter(None, text.split(",")):
        match = re.match(r"^\s*([\w.\-]+)\s*(==|=|!=)\s*(.*?)\s*$", part)
        if match is None:
            raise Refused(400, "BadRequest", f"invalid selector: '{part}'; can't understand '{part}'")
        name, op, value = match.groups()
        if name not in known:
            raise Refused(400, "BadRequest", f"field label not supported: {name}")
        tests.append((name, op == "!=", value))

    def keep(obj: Object) -> bool:
        for name, negated, value in tests:
            found = next(walk_paths(obj, name), "")
            shown = str(found).lower() if isinstance(found, bool) else str(found)
            if (shown == value) == negated:
                return False
        return True

    return keep
