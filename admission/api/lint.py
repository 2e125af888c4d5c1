"""Quota that does not do what its author thinks: findings in manifests or in what a cluster holds, each with its fix.

Every object that is linted is valid or is told why not (`kinds.validate_object`); what this module adds is what shows
only between objects. It asks three questions of each (flavor, resource). Who could hold it at most? A queue's borrowing
limit bounds it from below, the cohort's supply from above; what a subtree must keep and cannot hold is *unreachable*.
Which limits could ever bind? One that bounds nothing is *without effect*, and its author believed otherwise. Are there
nodes under it? Quota on top of no nodes admits nothing, and quota on top of too few promises what is not there.

A manifest rarely stands alone. What is named and not among the input is reported only where the input could be expected
to have it: a file without any ResourceFlavor leaves flavors to somebody else, a cluster does not.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import yaml

from admission import quantity
from admission.api.kinds import BY_NAME, default_object, validate_object
from admission.engine import model
from admission.engine.quota import QuotaNode, Tree
from admission.names import HOSTNAME_LABEL, KUEUE_GROUP, MUSTER_GROUP, NODEPOOL_LABEL, Names

Json = dict[str, Any]
Path = tuple[str | int, ...]
CLUSTER = "cluster"
"""`file` of what was read from a cluster."""
_LEAST_BYTES = 2**20
"""Less memory than this is a number whose unit was forgotten."""
_LONGEST_LABEL = 63
_MOST_NODES = 500_000
"""YAML nodes of one document, aliases counted each time: more is an attack or a mistake."""


class Severity(Enum):
    ERROR = "error"
    """Cannot work as written."""
    WARNING = "warning"
    """Works, and not as its author will think."""
    INFO = "info"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    severity: Severity
    subject: str
    """"ClusterQueue team-a"; namespaced ones as "LocalQueue ml/team-a"; "" for a file as such."""
    path: str
    """The field, as spec.x[0].y; "" for the object as such."""
    file: str
    line: int
    """From 1; 0 for what was read from a cluster."""
    message: str
    fix: str

    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def as_json(self) -> Json:
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "object": self.subject,
            "path": self.path,
            "file": self.file,
            "line": self.line,
            "message": self.message,
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Document:
    """One object and where its fields stand. `lines` maps a path to its line; a path that is missing has the line of
    the nearest one above it."""

    obj: Json
    file: str = CLUSTER
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        return str(self.obj.get("kind") or "")

    @property
    def group(self) -> str:
        return str(self.obj.get("apiVersion") or "").rpartition("/")[0]

    @property
    def ours(self) -> bool:
        """Is it of a kind of Muster's or Kueue's that is read here."""
        return self.group in (MUSTER_GROUP, KUEUE_GROUP) and self.kind in BY_NAME

    @property
    def key(self) -> tuple[str, str]:
        meta = self.obj.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        # Of what belongs to the cluster an API server leaves it out; kustomize writes it to whatever it does not know.
        of_cluster = self.ours and not BY_NAME[self.kind].namespaced
        return ("" if of_cluster else str(meta.get("namespace") or ""), str(meta.get("name") or ""))

    @property
    def deleted(self) -> bool:
        """It is being deleted, and somebody's finalizer keeps it."""
        meta = self.obj.get("metadata")
        return isinstance(meta, dict) and bool(meta.get("deletionTimestamp"))

    @property
    def subject(self) -> str:
        return f"{self.kind} {'/'.join(part for part in self.key if part)}"

    def line(self, path: Path) -> int:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


# ---------------------------------------------------------------- reading


class _Loader(yaml.SafeLoader):
    """Reads what has no quotes as kubectl does: times are text, and `y` is a boolean, 08 and 1e3 are numbers."""

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """A tag may say what a value is, and that is not so: `!!bool maybe`."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError) as error:
            if not isinstance(node, yaml.ScalarNode):
                raise
            said = f"{node.value[:40]!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from error

    def construct_yaml_int(self, node: Any) -> int:
        plain = str(self.construct_scalar(node)).replace("_", "")
        return int(plain, 8 if re.match(r"[-+]?0[0-7]", plain) else 0)

    def construct_yaml_float(self, node: Any) -> Any:
        value = super().construct_yaml_float(node)
        if math.isinf(value) and node.value[-1].isdigit():
            return str(node.value)  # beyond all numbers
        return int(value) if value.is_integer() else value  # 1e3 is 1000 in JSON

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Keys are text, as in JSON."""
        made = super().construct_mapping(node, deep)
        return {str(key).lower() if isinstance(key, bool) else str(key): value for key, value in made.items()}


class _Dumper(yaml.SafeDumper):
    """Puts quotes around text that kubectl would read as something else."""


_NOT_IN_JSON = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "set", "omap", "pairs")}
_Loader.yaml_constructors = {
    tag: made for tag, made in yaml.SafeLoader.yaml_constructors.items() if tag not in _NOT_IN_JSON
}
_NUMBERS = "-+.0123456789"
_OTHERWISE = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "int", "float")}
"""What kubectl reads otherwise: 12:30 is text, and no number to the base 60."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _OTHERWISE]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
for _tag, _pattern, _first in (
    ("bool", r"^[yYnN]$", "yYnN"),
    (
        "int",
        r"^[-+]?(0[bB]_*[01][01_]*|0[oO]_*[0-7][0-7_]*|0[xX]_*[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)$",
        _NUMBERS,
    ),
    ("float", r"^([-+]?[0-9][0-9_]*(\.[0-9_]*)?|[-+]?\.[0-9]+)([eE][-+]?[0-9]+)?$", _NUMBERS),
    ("float", r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$", "-+."),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def write(objects: Iterable[Json]) -> str:
    """Objects as YAML that kubectl, and `read`, take as they are."""
    return str(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120))


def read(text: str, file: str) -> tuple[list[Document], list[Finding]]:
    """The objects of a YAML or JSON text, Lists taken apart, and what is wrong with the text itself. Never raises."""
    documents: list[Document] = []
    findings: list[Finding] = []
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            lines: dict[Path, int] = {}
            try:
                for path, line, key in _walk(node, (), (), lines):
                    findings.append(
                        Finding(
                            "yaml",
                            Severity.ERROR,
                            "",
                            show(path),
                            file,
                            line,
                            f"the key {key!r} stands twice: the last one counts, the others are lost",
                            "drop one of them",
                        )
                    )
                obj = loader.construct_document(node)
            except ValueError as error:
                line = node.start_mark.line + 1
                findings.append(Finding("yaml", Severity.ERROR, "", "", file, line, str(error), "write it out in full"))
                continue
            if isinstance(obj, dict) and "metadata" in obj and not obj.get("kind"):
                said, line = "it has metadata and no kind: kubectl takes it for no object", node.start_mark.line + 1
                findings.append(Finding("yaml", Severity.ERROR, "", "kind", file, line, said, "write its kind"))
            documents.extend(_objects(obj, file, lines))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        what = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
        template = "{{" in text
        findings.append(
            Finding(
                "yaml",
                Severity.ERROR,
                "",
                "",
                file,
                line,
                f"no YAML: {what}",
                "lint what `helm template` renders, not the template" if template else "correct the YAML at this line",
            )
        )
    finally:
        if loader is not None:
            loader.dispose()
    return documents, findings


def _walk(
    node: yaml.Node, path: Path, above: tuple[int, ...], lines: dict[Path, int]
) -> Iterator[tuple[Path, int, str]]:
    """Fill `lines`; yields keys that stand twice. Raises ValueError for what cannot be a manifest."""
    if id(node) in above:
        raise ValueError("an alias contains itself")
    if len(lines) > _MOST_NODES or len(above) > 100:
        raise ValueError("aliases make this too large")
    lines.setdefault(path, node.start_mark.line + 1)
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if key.tag == "tag:yaml.org,2002:bool":
                name = str(_Loader.bool_values.get(name.lower(), name)).lower()
            here = (*path, name)
            if name in seen and name != "<<":
                yield here, key.start_mark.line + 1, name
            seen.add(name)
            lines[here] = key.start_mark.line + 1
            yield from _walk(value, here, above, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _walk(value, (*path, i), above, lines)


def _objects(obj: Any, file: str, lines: Mapping[Path, int]) -> Iterator[Document]:
    if not isinstance(obj, dict) or not obj.get("kind"):
        return
    if not (str(obj["kind"]).endswith("List") and isinstance(obj.get("items"), list)):
        yield Document(obj, file, lines)
        return
    of_items: dict[str | int, dict[Path, int]] = defaultdict(dict)
    for path, line in lines.items():
        if len(path) > 1 and path[0] == "items":
            of_items[path[1]][path[2:]] = line
    for i, item in enumerate(obj["items"]):
        yield from _objects(item, file, of_items[i])


def show(path: Path) -> str:
    """A path as people write it: spec.podSets[0].count."""
    out = ""
    for step in path:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out


def parse_path(text: str) -> Path:
    return tuple(int(n) if n else name for name, n in re.findall(r"([^.\[\]]+)|\[(\d+)\]", text))


# ---------------------------------------------------------------- the door


def lint(
    documents: Iterable[Document],
    *,
    live: bool = False,
    made: Collection[str] = (),
    by_shares: bool | None = None,
) -> list[Finding]:
    """All findings, by place. `live`: the documents are all that a cluster holds, so what is missing is missing.
    `made`: resources as which requests for others count (resources.transformations); nodes need not have them.
    `by_shares`: who borrows evicts by shares; None: as the preset of the API group has it.

    Objects of Muster's and of Kueue's group are judged apart; nodes, namespaces and priority classes count for both.
    A document of the same kind and name as an earlier one from a cluster replaces it, as applying it would.
    """
    held: dict[tuple[str, str, tuple[str, str]], Document] = {}
    findings: list[Finding] = []
    for document in documents:
        where = (document.group, document.kind, document.key)
        old = held.get(where)
        if old is not None and old.file != CLUSTER and document.key[1]:
            findings.append(
                _at(
                    document,
                    ("metadata", "name"),
                    "duplicate",
                    Severity.ERROR,
                    f"{document.subject} stands twice, first at {old.file}:{old.line(('metadata', 'name'))}: "
                    "the one that is applied last wins",
                    "drop one of them, or give it another name",
                )
            )
        held[where] = document
    findings += [stray for document in held.values() if (stray := _stray(document)) is not None]
    for group in (MUSTER_GROUP, KUEUE_GROUP):
        ours = [d for d in held.values() if d.group == group]
        if ours or (group == MUSTER_GROUP and any(d.kind == "PriorityClass" for d in held.values())):
            others = [d for d in held.values() if d.kind in ("Node", "Namespace", "PriorityClass")]
            fair = group == MUSTER_GROUP if by_shares is None else by_shares
            findings.extend(_Fleet(Names(group), ours, others, live, made, by_shares=fair).findings())
    order = list(Severity)
    return sorted(findings, key=lambda f: (f.file, f.line, order.index(f.severity), f.subject, f.path, f.rule))


_NAMED_SO_ELSEWHERE = ("Workload", "Topology")


def _stray(document: Document) -> Finding | None:
    """What was meant for Muster, and is of none of its kinds: it would pass for somebody else's."""
    kind, ours = document.kind, document.group in (MUSTER_GROUP, KUEUE_GROUP)
    if kind in BY_NAME:
        if ours or kind in _NAMED_SO_ELSEWHERE:
            return None
        given, *groups = str(document.obj.get("apiVersion")), Names(KUEUE_GROUP).api_version, Names().api_version
        path, said = "apiVersion", f"apiVersion {given!r} has no {kind}"
        fix = f"write {(difflib.get_close_matches(given, groups, n=1, cutoff=0.7) or groups[-1:])[0]}"
    else:
        near = difflib.get_close_matches(kind, BY_NAME, n=1, cutoff=0.8)
        if not ours or not (near or document.group == MUSTER_GROUP):  # Kueue has more kinds than are read here
            return None
        path, said = "kind", f"there is no kind {kind}"
        fix = f"write {near[0]}" if near else f"write one of {', '.join(BY_NAME)}"
    return _at(document, (path,), "schema", Severity.ERROR, said, fix)


def _at(document: Document, path: Path, rule: str, severity: Severity, message: str, fix: str) -> Finding:
    return Finding(rule, severity, document.subject, show(path), document.file, document.line(path), message, fix)


@dataclass(frozen=True)
class _Given:
    """One quota as written: where it stands and what it says."""

    document: Document
    path: Path
    node: QuotaNode
    fr: model.FlavorResource
    quota: model.Quota

    def amount(self, amount: int) -> str:
        return quantity.format(self.fr[1], amount)


class _Fleet:
    """All objects of one API group, and the checks between them."""

    def __init__(
        self,
        names: Names,
        ours: Sequence[Document],
        others: Sequence[Document],
        live: bool,
        made: Collection[str] = (),
        *,
        by_shares: bool = True,
    ) -> None:
        self.names = names
        self.by_shares = by_shares
        self.live = live
        self.made = made
        self.found: list[Finding] = []
        self.named: dict[str, dict[tuple[str, str], Document]] = defaultdict(dict)
        """By kind, right or wrong: what is there by name."""
        self.specs: dict[str, dict[tuple[str, str], Json]] = defaultdict(dict)
        """By kind: specs with defaults filled in, of those that are right."""
        for document in ours:
            self.named[document.kind][document.key] = document
            if document.kind in BY_NAME and self._valid(document):
                whole = default_object(document.obj, names)
                self.specs[document.kind][document.key] = whole.get("spec") or {}
        self.nodes = [d for d in others if d.kind == "Node"]
        self.namespaces = {d.key[1]: _labels(d.obj) for d in others if d.kind == "Namespace"}
        self.priorities = [d for d in others if d.kind == "PriorityClass"]
        queues = [
            model.ClusterQueue(name=key[1], cohort=str(spec.get("cohortName") or ""), groups=_groups(spec))
            for key, spec in self.specs["ClusterQueue"].items()
        ]
        cohorts = [
            model.Cohort(name=key[1], parent=str(spec.get("parentName") or ""), groups=_groups(spec))
            for key, spec in self.specs["Cohort"].items()
        ]
        self.tree = Tree.build(queues, cohorts)
        self.given = list(self._given())

    def say(self, document: Document, path: Path, rule: str, severity: Severity, message: str, fix: str) -> None:
        self.found.append(_at(document, path, rule, severity, message, fix))

    def has(self, kind: str) -> bool:
        """May something of this kind be called missing."""
        return self.live or bool(self.named[kind])

    def findings(self) -> list[Finding]:
        self._whole()
        self._bytes()
        self._cycles()
        self._unreachable()
        self._limits()
        self._without_use()
        self._cohorts()
        self._weights()
        self._flavors()
        self._same_labels()
        self._beside_elastic()
        self._node_quota()
        self._queues()
        self._local_queues()
        self._names()
        self._checks()
        self._priorities()
        return self.found

    # ------------------------------------------------------------ the objects

    def _valid(self, document: Document) -> bool:
        problems = validate_object(document.obj, self.names, strict=document.file != CLUSTER)
        broken = False
        for problem in problems:
            path, _, message = problem.partition(": ")
            unknown = re.match(r'unknown field "([^"]+)"', problem)
            if unknown:
                path, message = unknown[1], problem
            limits = "mean something only" in message
            steps = parse_path(path.removesuffix(" (a key)")) if path != "<root>" else ()
            if limits:
                self._limits_alone(document)
            else:
                what, _, todo = message.partition(": ")
                self.say(
                    document,
                    steps,
                    "schema",
                    Severity.ERROR,
                    f"{what}: {todo}" if todo else message,
                    todo or "correct the field; `kubectl explain` shows what it may hold",
                )
            broken = broken or not unknown
        return not broken

    def _limits_alone(self, document: Document) -> None:
        above = "cohortName" if document.kind == "ClusterQueue" else "parentName"
        for g, group in enumerate(document.obj["spec"].get("resourceGroups") or ()):
            for f, flavor in enumerate(group.get("flavors") or ()):
                for r, resource in enumerate(flavor.get("resources") or ()):
                    for limit in ("borrowingLimit", "lendingLimit"):
                        if resource.get(limit) is not None:
                            self.say(
                                document,
                                ("spec", "resourceGroups", g, "flavors", f, "resources", r, limit),
                                "limit-without-cohort",
                                Severity.ERROR,
                                f"{limit} without {above}: there is nobody to borrow from or lend to",
                                f"write {above}, or drop {limit}",
                            )

    def _given(self) -> Iterator[_Given]:
        for kind in ("ClusterQueue", "Cohort"):
            for key, spec in self.specs[kind].items():
                node = self.tree.queue(key[1]) if kind == "ClusterQueue" else self.tree.cohort(key[1])
                assert node is not None
                for g, group in enumerate(spec.get("resourceGroups") or ()):
                    for f, flavor in enumerate(group["flavors"]):
                        for r, resource in enumerate(flavor["resources"]):
                            fr = (flavor["name"], resource["name"])
                            path = ("spec", "resourceGroups", g, "flavors", f, "resources", r)
                            yield _Given(self.named[kind][key], path, node, fr, node.quotas[fr])

    def document_of(self, node: QuotaNode) -> Document | None:
        return self.named["ClusterQueue" if node.is_queue else "Cohort"].get(("", node.name))

    def _whole(self) -> None:
        """Amounts finer than what Kubernetes counts: whole units, of CPU thousandths. Pods may not ask for a part of a
        device, and of other resources a part is a suffix mistaken for another (1500m for 1500M)."""
        for given in self.given:
            written = self._raw(given)
            resource = given.fr[1]
            for key, counted in (
                ("nominalQuota", given.quota.nominal),
                ("borrowingLimit", given.quota.borrowing_limit),
                ("lendingLimit", given.quota.lending_limit),
            ):
                if counted is None:
                    continue
                exact = quantity.parse_plain(written[key]) * (1000 if resource == "cpu" else 1)
                if exact != exact.to_integral_value():
                    unit = "thousandths of a CPU" if resource == "cpu" else f"whole {resource}"
                    self.say(
                        given.document,
                        (*given.path, key),
                        "not-whole",
                        Severity.WARNING,
                        f"{key} {written[key]} counts as {given.amount(counted)}: a part is rounded up to {unit}",
                        f"write {given.amount(counted)}, or what was meant: k, M and G are multiples, m is a "
                        "thousandth part",
                    )

    def _bytes(self) -> None:
        """Memory without its unit."""
        for given in self.given:
            nominal = given.quota.nominal
            if given.fr[1] in ("memory", "ephemeral-storage") and 0 < nominal < _LEAST_BYTES:
                self.say(
                    given.document,
                    (*given.path, "nominalQuota"),
                    "unit-missing",
                    Severity.WARNING,
                    f"nominalQuota {self._raw(given)['nominalQuota']} of {given.fr[1]} is {nominal} bytes, less than "
                    "any pod asks for",
                    "write the unit that was meant, such as Gi",
                )

    def _raw(self, given: _Given) -> Json:
        """A quota as it is written."""
        at: Any = given.document.obj
        for step in given.path:
            at = at[step]
        return dict(at)

    # ------------------------------------------------------------ the tree

    def _cycles(self) -> None:
        for node in self.tree.cohorts():
            document = self.document_of(node)
            if not node.in_cycle or document is None:
                continue
            chain = [node.name]
            while True:
                spec = self.specs["Cohort"].get(("", chain[-1]), {})
                above = str(spec.get("parentName") or "")
                if not above or above in chain:
                    break
                chain.append(above)
            if above != node.name:
                continue  # below a cycle, not in it
            self.say(
                document,
                ("spec", "parentName"),
                "cohort-cycle",
                Severity.ERROR,
                f"the cohorts {' -> '.join([*chain, node.name])} are a circle: no queue below them admits anything",
                "take parentName out of the Cohort that is meant to be the root",
            )

    def _cap(self, node: QuotaNode, fr: model.FlavorResource) -> int | None:
        """The most that queues of the subtree could hold at once, supply aside. None: no bound."""
        quota = node.quotas.get(fr)
        if node.is_queue:
            if quota is None:
                return 0
            if node.parent is None:
                return quota.nominal
            return None if quota.borrowing_limit is None else quota.nominal + quota.borrowing_limit
        total: int | None = 0
        for child in node.children:
            part = self._cap(child, fr)
            total = None if part is None or total is None else total + part
        if node.parent is not None and quota is not None and quota.borrowing_limit is not None:
            bound = node.subtree.get(fr, 0) + quota.borrowing_limit
            total = bound if total is None else min(total, bound)
        return total

    def _unreachable(self) -> None:
        for node in self.tree.cohorts():
            if node.in_cycle:
                continue
            for fr, whole in sorted(node.subtree.items()):
                kept = whole if node.parent is None else node.local_quota(fr)
                cap = self._cap(node, fr)
                if cap is None or cap >= kept:
                    continue
                given = self._owner(node, fr)
                if given is None:
                    continue
                users = [queue for queue in node.queues() if fr in queue.quotas]
                flavor, resource = fr
                if users:
                    why = f"the queues below {node.name} take at most {given.amount(cap)}"
                    fix = (
                        f"raise borrowingLimit of {resource} in {_some([q.name for q in users])}, or lower nominalQuota"
                    )
                else:
                    why = f"no ClusterQueue below {node.name} names flavor {flavor} for {resource}"
                    fix = (
                        f"name flavor {flavor} with {resource} in a ClusterQueue below (nominalQuota: 0 is enough to "
                        "borrow), or drop this quota"
                    )
                self.say(
                    given.document,
                    (*given.path, "nominalQuota"),
                    "unreachable",
                    Severity.WARNING,
                    f"{given.amount(kept - cap)} of {given.amount(kept)} {resource} of flavor {flavor} can be used by "
                    f"nobody: {why}",
                    fix,
                )

    def _owner(self, node: QuotaNode, fr: model.FlavorResource) -> _Given | None:
        """The quota below (or at) `node` of which some is out of reach: a cohort's own, lowest first."""
        below = [
            given
            for given in self.given
            if given.fr == fr and given.quota.nominal > 0 and not given.node.is_queue and node in given.node.path()
        ]

        def beyond(given: _Given) -> bool:
            cap = self._cap(given.node, fr)
            return cap is not None and cap < given.node.subtree.get(fr, 0)

        below.sort(key=lambda given: (not beyond(given), given.node.height, given.node.name))
        return below[0] if below else None

    @staticmethod
    def _borrowable(node: QuotaNode, fr: model.FlavorResource) -> int:
        """What could be borrowed at most with nobody else there, its own limit aside."""
        if node.parent is None or node.in_cycle:
            return 0
        return max(0, node.local_quota(fr) + node.parent.potential(fr) - node.subtree.get(fr, 0))

    def _limits(self) -> None:
        for given in self.given:
            node, fr, quota = given.node, given.fr, given.quota
            if node.in_cycle or node.parent is None:
                continue
            flavor, resource = fr
            limit = quota.borrowing_limit
            if limit is not None:
                most = self._borrowable(node, fr)
                path = (*given.path, "borrowingLimit")
                if most <= 0:
                    self.say(
                        given.document,
                        path,
                        "nothing-to-borrow",
                        Severity.WARNING if limit else Severity.INFO,
                        f"borrowingLimit of {resource} has no effect: nobody in cohort {node.parent.name} could lend "
                        f"any of flavor {flavor}",
                        "drop borrowingLimit, or let another member of the cohort have and lend quota of this flavor",
                    )
                elif limit > most:
                    self.say(
                        given.document,
                        path,
                        "borrowing-limit-slack",
                        Severity.INFO,
                        f"borrowingLimit {given.amount(limit)} never binds: {node.parent.name} could lend at most "
                        f"{given.amount(most)} {resource} of flavor {flavor}",
                        f"drop borrowingLimit, or write {given.amount(most)} or less",
                    )
            lend = quota.lending_limit
            if lend is not None and lend >= node.subtree.get(fr, 0):
                self.say(
                    given.document,
                    (*given.path, "lendingLimit"),
                    "lending-limit-whole",
                    Severity.WARNING,
                    f"lendingLimit {given.amount(lend)} has no effect: {node.name} has "
                    f"{given.amount(node.subtree.get(fr, 0))} {resource} of flavor {flavor}, and all of it may be lent",
                    f"drop lendingLimit, or write less than {given.amount(node.subtree.get(fr, 0))}",
                )

    def _without_use(self) -> None:
        """What a queue names and can never give, and what it says of preemption in vain."""
        for key, spec in self.specs["ClusterQueue"].items():
            node = self.tree.queue(key[1])
            assert node is not None
            if not node.in_cycle:
                self._never_given(node)
                self._preemption_in_vain(node, spec.get("preemption") or {}, self.named["ClusterQueue"][key])

    def _never_given(self, node: QuotaNode) -> None:
        """Resources of a queue, and flavors of a resource, of which it can never have anything."""
        by_resource: dict[str, list[_Given]] = defaultdict(list)
        for given in self.given:
            if given.node is node:
                by_resource[given.fr[1]].append(given)
        for resource, quotas in by_resource.items():
            dead = [given for given in quotas if node.potential(given.fr) == 0]
            if len(dead) < len(quotas):
                for given in dead:
                    self.say(
                        given.document,
                        (*given.path, "nominalQuota"),
                        "never-fits",
                        Severity.INFO,
                        f"flavor {given.fr[0]} never has any {resource} for {node.name}: the flavor is always "
                        "passed over",
                        f"drop flavor {given.fr[0]} here, or give it quota",
                    )
                continue
            cause = (
                "it has no quota of its own, no cohort"
                if node.parent is None
                else f"it has no quota of its own, and cohort {node.parent.name} can lend it none"
            )
            self.say(
                dead[0].document,
                (*dead[0].path, "nominalQuota"),
                "never-fits",
                Severity.ERROR,
                f"{node.name} can never admit a gang that asks for {resource}: {cause}",
                f"give {resource} a nominalQuota"
                + (", or a cohort that has some to lend" if node.parent is None else ", here or in the cohort"),
            )

    def _preemption_in_vain(self, node: QuotaNode, preemption: Json, document: Document) -> None:
        """Policies of a queue's `spec.preemption` that change nothing, or harm its own gangs."""
        policy = (preemption.get("borrowWithinCohort") or {}).get("policy")
        if policy not in (None, "Never") and not any(self._can_borrow(node, fr) for fr in node.quotas):
            self.say(
                document,
                ("spec", "preemption", "borrowWithinCohort"),
                "preemption-without-effect",
                Severity.WARNING,
                f"borrowWithinCohort has no effect: {node.name} can never borrow",
                "drop borrowWithinCohort, or let the queue borrow (cohortName, borrowingLimit)",
            )
        elif policy not in (None, "Never") and self.by_shares:
            self.say(
                document,
                ("spec", "preemption", "borrowWithinCohort"),
                "preemption-without-effect",
                Severity.WARNING,
                "borrowWithinCohort has no effect: who borrows evicts by shares, whatever the priorities",
                "drop borrowWithinCohort; it counts with `preset: kueue` and without `fairSharing` in the "
                "configuration alone",
            )
        if preemption.get("reclaimWithinCohort") not in (None, "Never") and node.parent is None:
            self.say(
                document,
                ("spec", "preemption", "reclaimWithinCohort"),
                "preemption-without-effect",
                Severity.INFO,
                f"reclaimWithinCohort has no effect: {node.name} is in no cohort",
                "drop reclaimWithinCohort, or write cohortName",
            )
        if preemption.get("reclaimWithinCohort") == "Never" and self._lends(node):
            self.say(
                document,
                ("spec", "preemption", "reclaimWithinCohort"),
                "lends-without-reclaim",
                Severity.WARNING,
                f"{node.name} lends quota and never takes it back: its gangs wait until the borrowers end",
                "write reclaimWithinCohort: Any or LowerPriority, or lendingLimit: 0",
            )

    def _can_borrow(self, node: QuotaNode, fr: model.FlavorResource) -> bool:
        quota = node.quotas.get(fr)
        if quota is not None and quota.borrowing_limit == 0:
            return False
        return self._borrowable(node, fr) > 0

    def _lends(self, node: QuotaNode) -> bool:
        """Could another queue of the tree hold quota of this one."""
        if node.parent is None:
            return False
        return any(
            node.subtree.get(fr, 0) > node.local_quota(fr)
            and any(other is not node and self._borrows_from(other, node, fr) for other in node.root.queues())
            for fr in node.quotas
        )

    @staticmethod
    def _borrows_from(queue: QuotaNode, lender: QuotaNode, fr: model.FlavorResource) -> bool:
        """May `queue` borrow at all up to where the ways of the two meet, and what `lender` lends come up there."""
        if fr not in queue.quotas:
            return False
        up, down = queue.path(), lender.path()
        for path in (up, down):
            for node in path:
                if node in up and node in down:
                    break
                quota = node.quotas.get(fr)
                if quota is None:
                    continue
                if path is up and quota.borrowing_limit == 0:
                    return False
                if path is down and quota.lending_limit == 0:
                    return False
        return True

    def _cohorts(self) -> None:
        for root in self.tree.roots():
            if root.is_queue or root.in_cycle:
                continue
            queues = list(root.queues())
            document = self.document_of(root)
            if not queues:
                if document is not None and self.has("ClusterQueue"):
                    self.say(
                        document,
                        ("metadata", "name"),
                        "cohort-empty",
                        Severity.WARNING,
                        f"no ClusterQueue is in cohort {root.name}, nor in one below it",
                        f"write cohortName: {root.name} into a ClusterQueue, or delete the Cohort",
                    )
                continue
            if any(self._can_borrow(queue, fr) and self._up(queue, fr) for queue in queues for fr in queue.quotas):
                continue
            if len(queues) == 1:
                why = f"{queues[0].name} is alone in it"
                near = difflib.get_close_matches(root.name, [n.name for n in self.tree.cohorts() if n is not root])
                fix = (
                    f"did you mean cohort {near[0]}? " if near else ""
                ) + "put another ClusterQueue into the cohort, or drop cohortName"
            else:
                shared: dict[model.FlavorResource, int] = defaultdict(int)
                for queue in queues:
                    for fr in queue.quotas:
                        shared[fr] += 1
                if max(shared.values(), default=0) < 2:
                    why = "no two of its queues name the same flavor and resource"
                    fix = "name the flavor that is to be shared in both queues (nominalQuota: 0 where there is none)"
                else:
                    why = "borrowing and lending limits, and quota of 0, leave nothing to borrow"
                    fix = "raise borrowingLimit and lendingLimit, or drop cohortName"
            first = document or self.document_of(queues[0])
            assert first is not None
            self.say(
                first,
                ("metadata", "name") if document is not None else ("spec", "cohortName"),
                "borrowing-never",
                Severity.WARNING,
                f"nobody in cohort {root.name} can ever borrow: {why}",
                fix,
            )

    @staticmethod
    def _up(queue: QuotaNode, fr: model.FlavorResource) -> bool:
        """Does anything come to the queue from beyond its own quota: `potential` with all limits on the way."""
        return queue.potential(fr) > queue.subtree.get(fr, 0)

    def _weights(self) -> None:
        for kind in ("ClusterQueue", "Cohort", "LocalQueue"):
            for key, spec in self.specs[kind].items():
                weight = (spec.get("fairSharing") or {}).get("weight")
                if weight is None or quantity.parse_plain(weight) != 0:
                    continue
                document = self.named[kind][key]
                self.say(
                    document,
                    ("spec", "fairSharing", "weight"),
                    "weight-zero",
                    Severity.WARNING,
                    f"weight 0: {key[1]} comes after all its siblings in whatever is borrowed, and is evicted before "
                    "them",
                    "write a weight above 0; to stop it altogether, stopPolicy: Hold says so",
                )

    # ------------------------------------------------------------ flavors and nodes

    def _users(self, flavor: str) -> list[_Given]:
        return [given for given in self.given if given.fr[0] == flavor]

    def _flavors(self) -> None:
        """Flavors that are named and missing, or there and of no use; and topologies without nodes."""
        if self.has("ResourceFlavor"):
            self._missing_flavors()
        topologies = {key[1] for key in self.named["Topology"]}
        for key, spec in self.specs["ResourceFlavor"].items():
            document = self.named["ResourceFlavor"][key]
            if not self._users(key[1]) and self.has("ClusterQueue") and not document.deleted:
                self.say(
                    document,
                    ("metadata", "name"),
                    "flavor-unused",
                    Severity.INFO,
                    f"no ClusterQueue or Cohort gives quota of flavor {key[1]}",
                    "give it quota, or delete it",
                )
            topology = spec.get("topologyName")
            if topology and topology not in topologies and self.has("Topology"):
                self.say(
                    document,
                    ("spec", "topologyName"),
                    "topology-missing",
                    Severity.ERROR,
                    f"there is no Topology {topology}: nothing can be placed with flavor {key[1]}",
                    f"create Topology {topology}, or drop topologyName",
                )
            if self.nodes or self.live:
                self._flavor_nodes(key[1], spec, document)
        if self.nodes:
            self._empty_levels()

    def _missing_flavors(self) -> None:
        known = {key[1] for key in self.named["ResourceFlavor"]}
        told: set[tuple[str, str]] = set()
        for given in self.given:
            flavor = given.fr[0]
            if flavor in known or (given.node.name, flavor) in told:
                continue
            told.add((given.node.name, flavor))
            near = difflib.get_close_matches(flavor, known, n=1)
            self.say(
                given.document,
                (*given.path[:-2], "name"),
                "flavor-missing",
                Severity.ERROR,
                f"there is no ResourceFlavor {flavor}: nothing can be admitted with it",
                (f"did you mean {near[0]}? Else create" if near else "create") + f" ResourceFlavor {flavor}",
            )

    def _empty_levels(self) -> None:
        """Levels of topologies whose label no node has."""
        for key, spec in self.specs["Topology"].items():
            for i, level in enumerate(spec["levels"]):
                label = level["nodeLabel"]
                if label == HOSTNAME_LABEL or any(label in _labels(node.obj) for node in self.nodes):
                    continue
                self.say(
                    self.named["Topology"][key],
                    ("spec", "levels", i, "nodeLabel"),
                    "topology-level-without-nodes",
                    Severity.ERROR,
                    f"no node has the label {label}: the topology has no domain there",
                    "label the nodes, or correct nodeLabel",
                )

    def _nodes_of(self, spec: Json) -> list[Document]:
        wanted = (spec.get("nodeLabels") or {}).items()
        return [node for node in self.nodes if wanted <= _labels(node.obj).items()]

    def _flavor_nodes(self, name: str, spec: Json, document: Document) -> None:
        nodes = self._nodes_of(spec)
        if (spec.get("elastic") and not nodes) or (document.deleted and not self._users(name)):
            return  # no nodes are counted on, or none any more
        labels = spec.get("nodeLabels") or {}
        if not nodes:
            hints = []
            for key, value in labels.items():
                seen = sorted({_labels(node.obj)[key] for node in self.nodes if key in _labels(node.obj)})
                if value not in seen:
                    hints.append(f"{key} has the values {_some(seen)}" if seen else f"no node has the label {key}")
            self.say(
                document,
                ("spec", "nodeLabels"),
                "flavor-without-nodes",
                Severity.ERROR,
                f"no node is of flavor {name}: nothing can be placed on it"
                + (f" ({'; '.join(hints)})" if hints else ""),
                "correct nodeLabels, label the nodes, or write elastic: true if an autoscaler brings them",
            )
            return
        if not spec.get("elastic") and any(NODEPOOL_LABEL in _labels(node.obj) for node in nodes):
            self.say(
                document,
                ("spec",),
                "flavor-autoscaled",
                Severity.INFO,
                f"Karpenter makes nodes of flavor {name} when pods wait for them, and removes those that are empty: a "
                "gang that waits for more of them has no pods, so that none come",
                "write elastic: true, unless the number of these nodes is fixed",
            )
        allowed = [*(spec.get("nodeTaints") or ()), *(spec.get("tolerations") or ())]
        for taint in _common_taints(nodes):
            if any(_covers(entry, taint) for entry in allowed):
                continue
            text = f"{taint.get('key')}={taint.get('value') or ''}:{taint.get('effect')}".replace("=:", ":")
            self.say(
                document,
                ("spec",),
                "flavor-taint",
                Severity.WARNING,
                f"every node of flavor {name} has the taint {text}: only pods that tolerate it themselves can go there",
                "add it to tolerations (pods then get the toleration with the flavor), or to nodeTaints (only pods "
                "that tolerate it get the flavor)",
            )

    def _same_labels(self) -> None:
        """Where nobody says which nodes there are: flavors of which one cannot but have nodes of the other."""
        counted = self._counted()
        flavors = {key[1]: spec for key, spec in self.specs["ResourceFlavor"].items() if not spec.get("elastic")}
        used = [] if self.nodes else sorted(set(flavors) & set(counted))
        for i, one in enumerate(used):
            for other in used[i + 1 :]:
                first, second = ((flavors[name].get("nodeLabels") or {}).items() for name in (one, other))
                if (first <= second or second <= first) and counted[one] & counted[other]:
                    narrow, wide = (one, other) if second <= first else (other, one)
                    self.say(
                        self.named["ResourceFlavor"]["", other],
                        ("spec", "nodeLabels"),
                        "flavors-overlap",
                        Severity.WARNING,
                        f"every node of flavor {narrow} is of flavor {wide}, too, by its labels: quota of the two "
                        "counts the same nodes twice",
                        "make nodeLabels of the two exclude each other",
                    )

    def _counted(self) -> dict[str, set[str]]:
        """Flavor -> resources of which it has quota."""
        out: dict[str, set[str]] = defaultdict(set)
        for given in self.given:
            out[given.fr[0]].add(given.fr[1])
        return out

    def _beside_elastic(self) -> None:
        """Elastic flavors whose pods kube-scheduler may put onto nodes on which room is reserved for others."""
        counted = self._counted()
        flavors = {key[1]: spec for key, spec in self.specs["ResourceFlavor"].items() if key[1] in counted}
        elastic = [name for name in sorted(flavors) if flavors[name].get("elastic")]
        for one in elastic:
            for other in sorted(flavors.keys() - set(elastic)):
                if counted[one] & counted[other] and (where := self._where_both(one, other)):
                    self.say(
                        self.named["ResourceFlavor"]["", one],
                        ("spec", "nodeLabels"),
                        "flavors-overlap",
                        Severity.WARNING,
                        f"{where}: pods that get flavor {one} may take room there "
                        f"that is reserved for gangs of flavor {other}, which are then evicted",
                        "make nodeLabels of the two exclude each other, or taint the nodes of one and let only pods "
                        "that get it tolerate the taint",
                    )

    def _where_both(self, elastic: str, other: str) -> str:
        """Where pods of both flavors go, in words; as far as anybody says which nodes there are."""
        specs = {name: self.specs["ResourceFlavor"]["", name] for name in (elastic, other)}
        borne = {
            name: [*(spec.get("nodeTaints") or ()), *(spec.get("tolerations") or ())] for name, spec in specs.items()
        }

        def known(taint: Json) -> bool:
            return all(any(_covers(entry, taint) for entry in entries) for entries in borne.values())

        if self.nodes:
            keys = {node.key[1] for node in self._nodes_of(specs[elastic])}
            both = [node for node in self._nodes_of(specs[other]) if node.key[1] in keys]
            names = sorted(node.key[1] for node in both if all(map(known, _taints(node))))
            return f"flavors {elastic} and {other} are both on {_some(names)}" if names else ""
        first, second = ((spec.get("nodeLabels") or {}).items() for spec in specs.values())
        if not (first <= second or second <= first):
            return ""
        narrow, wide = (other, elastic) if first <= second else (elastic, other)
        tolerated = specs[narrow].get("tolerations") or ()  # its nodes may have such taints
        if not all(map(known, specs[narrow].get("nodeTaints") or ())) or not all(
            any(_covers_all(entry, one) for entry in borne[wide]) for one in tolerated
        ):
            return ""
        return f"every node of flavor {narrow} is of flavor {wide}, too, by its labels"

    def _node_quota(self) -> None:
        """Quota against what the nodes of its flavor have: more of it, or less; and nodes that are counted twice, or by
        no flavor."""
        if not self.nodes:
            return
        flavors = {key[1]: spec for key, spec in self.specs["ResourceFlavor"].items()}
        pairs: dict[model.FlavorResource, list[_Given]] = defaultdict(list)
        for given in self.given:
            pairs[given.fr].append(given)
        stands: dict[str, set[str]] = {}
        for flavor, spec in flavors.items():
            if not spec.get("elastic"):
                stands[flavor] = {node.key[1] for node in self._nodes_of(spec)}
        amounts = {node.key[1]: _allocatable(node.obj) for node in self.nodes}
        virtual = {name for name in self.made if not any(has.get(name) for has in amounts.values())}
        for fr, quotas in pairs.items():
            flavor, resource = fr
            if not stands.get(flavor) or resource in virtual:
                continue
            there = sum(amounts[node].get(resource, 0) for node in stands[flavor])
            total = sum(given.quota.nominal for given in quotas)
            largest = max(quotas, key=lambda given: (given.quota.nominal, given.node.name))
            shared = any(
                stands[flavor] & stands.get(other, set()) for other, r in pairs if r == resource and other != flavor
            )
            if total < there and _is_device(resource) and not shared:  # CPU and memory are left idle on purpose
                given_, had, idle = quantity.words(resource, total, there, there - total, digits=3)
                self.say(
                    largest.document,
                    (*largest.path, "nominalQuota"),
                    "quota-below-nodes",
                    Severity.INFO,
                    f"the nodes of flavor {flavor} have {had} {resource}, and all quota of it is {given_}: {idle} of "
                    "them stand idle, whoever asks",
                    "give that to a queue, or to a Cohort, from which all below it may borrow",
                )
            if total > there:
                self._quota_above_nodes(fr, quotas, there, len(stands[flavor]))
        self._of_no_flavor(flavors)
        self._on_same_nodes(pairs, stands)

    def _quota_above_nodes(self, fr: model.FlavorResource, quotas: Sequence[_Given], there: int, count: int) -> None:
        """More quota than the `count` nodes of a flavor have (`there`): told of each queue that has more by itself, or
        else of all together."""
        flavor, resource = fr
        alone = [given for given in quotas if given.quota.nominal > there]
        largest = max(quotas, key=lambda given: (given.quota.nominal, given.node.name))
        nodes = f"its {count} nodes have" if count > 1 else "its one node has"
        for given in alone or [largest]:
            who = (
                f"{given.node.name} has"
                if alone
                else f"{_some([g.node.name for g in quotas if g.quota.nominal])} have together"
            )
            amount = given.quota.nominal if alone else sum(given.quota.nominal for given in quotas)
            wanted, had = quantity.words(resource, amount, there, digits=3)
            self.say(
                given.document,
                (*given.path, "nominalQuota"),
                "quota-above-nodes",
                Severity.WARNING,
                f"{who} {wanted} {resource} of flavor {flavor}, and {nodes} {had}",
                f"lower nominalQuota by {given.amount(amount - there)}, or add nodes (elastic: true if an "
                "autoscaler does)",
            )

    def _on_same_nodes(self, pairs: Collection[model.FlavorResource], stands: Mapping[str, set[str]]) -> None:
        """Pairs of flavors that have nodes in common, and quota of the same resource. stands: flavor -> its nodes."""
        used = sorted(flavor for flavor in stands if any(fr[0] == flavor for fr in pairs))
        for i, one in enumerate(used):
            for other in used[i + 1 :]:
                both = stands[one] & stands[other]
                resources = {r for f, r in pairs if f == one} & {r for f, r in pairs if f == other}
                if both and resources:
                    self.say(
                        self.named["ResourceFlavor"]["", other],
                        ("spec", "nodeLabels"),
                        "flavors-overlap",
                        Severity.WARNING,
                        f"flavors {one} and {other} are both on {_some(sorted(both))}: quota of the two counts the "
                        "same nodes twice",
                        "make nodeLabels of the two exclude each other",
                    )

    def _of_no_flavor(self, flavors: Mapping[str, Json]) -> None:
        """Nodes with devices of a kind that quota is given of, which no gang gets."""
        known = {node.key[1] for spec in flavors.values() for node in self._nodes_of(spec)}
        devices = {given.fr[1] for given in self.given if _is_device(given.fr[1])}
        for resource in sorted(devices) if flavors else ():
            left = [node for node in self.nodes if node.key[1] not in known]
            idle = {node.key[1]: amount for node in left if (amount := _allocatable(node.obj).get(resource, 0))}
            if idle:
                first = next(node for node in left if node.key[1] in idle)
                total = quantity.words(resource, sum(idle.values()), digits=3)[0]
                self.say(
                    first,
                    ("metadata", "labels"),
                    "node-without-flavor",
                    Severity.INFO,
                    f"{total} {resource} of {_some(sorted(idle))} belong to no ResourceFlavor: no gang gets them",
                    "label the nodes as nodeLabels of a flavor says, or create a flavor for them",
                )

    # ------------------------------------------------------------ queues

    def _queues(self) -> None:
        targets = {str(spec.get("clusterQueue")) for spec in self.specs["LocalQueue"].values()}
        for key, spec in self.specs["ClusterQueue"].items():
            document = self.named["ClusterQueue"][key]
            name = key[1]
            if name not in targets and not document.deleted:
                self.say(
                    document,
                    ("metadata", "name"),
                    "queue-unused",
                    Severity.WARNING if self.has("LocalQueue") else Severity.INFO,
                    f"no LocalQueue points at ClusterQueue {name}: no job can come here",
                    f"create a LocalQueue with clusterQueue: {name} in the namespace of its team",
                )
            if document.deleted:
                self.say(
                    document,
                    ("metadata", "deletionTimestamp"),
                    "queue-deleted",
                    Severity.WARNING,
                    f"{name} is being deleted: it admits nothing, and goes when no gang holds quota of it",
                    "wait for its gangs, or take its finalizer off, and create it anew if it is to stay",
                )
            if spec.get("namespaceSelector") is None:
                self.say(
                    document,
                    ("spec", "namespaceSelector"),
                    "selects-nothing",
                    Severity.ERROR if name in targets else Severity.WARNING,
                    f"namespaceSelector is missing, which selects no namespace: {name} admits nothing",
                    "write namespaceSelector: {} for all namespaces, or matchLabels for some",
                )
            if not spec.get("resourceGroups"):
                self.say(
                    document,
                    ("spec",),
                    "queue-without-quota",
                    Severity.WARNING,
                    f"{name} has no resourceGroups: only gangs that ask for nothing can be admitted",
                    "write resourceGroups with flavors and nominalQuota",
                )
            if spec.get("concurrentAdmissionPolicy") is not None:
                self.say(
                    document,
                    ("spec", "concurrentAdmissionPolicy"),
                    "migration-without-effect",
                    Severity.WARNING,
                    f"concurrentAdmissionPolicy has no effect: a gang of {name} gets the first flavor that has room, "
                    "and stays there",
                    "drop it; write the flavor that is to be tried first as the first of its resource group",
                )

    def _names(self) -> None:
        """Of what jobs name by a label."""
        for kind in ("LocalQueue", "WorkloadPriorityClass"):
            for key in self.specs[kind]:
                if len(key[1]) > _LONGEST_LABEL:
                    self.say(
                        self.named[kind][key],
                        ("metadata", "name"),
                        "name-too-long",
                        Severity.ERROR,
                        f"its name has {len(key[1])} characters, and the label by which a job names it holds "
                        f"{_LONGEST_LABEL}: no job can name it",
                        f"give it a name of at most {_LONGEST_LABEL} characters",
                    )

    def _local_queues(self) -> None:
        queues = {key[1] for key in self.named["ClusterQueue"]}
        for key, spec in self.specs["LocalQueue"].items():
            document = self.named["LocalQueue"][key]
            target = str(spec.get("clusterQueue"))
            if target not in queues:
                if self.has("ClusterQueue"):
                    near = difflib.get_close_matches(target, queues, n=1)
                    self.say(
                        document,
                        ("spec", "clusterQueue"),
                        "queue-missing",
                        Severity.ERROR,
                        f"there is no ClusterQueue {target}: jobs of this queue wait for ever",
                        (f"did you mean {near[0]}? Else create" if near else "create") + f" ClusterQueue {target}",
                    )
                continue
            of_queue = self.specs["ClusterQueue"].get(("", target))
            selector = of_queue.get("namespaceSelector") if of_queue is not None else None
            labels = self.namespaces.get(key[0])
            if selector is None or labels is None:
                continue
            labels = {"kubernetes.io/metadata.name": key[0], **labels}
            if not _selects(selector, labels):
                self.say(
                    document,
                    ("spec", "clusterQueue"),
                    "namespace-not-selected",
                    Severity.ERROR,
                    f"namespaceSelector of {target} does not select namespace {key[0]}: jobs of this queue wait for "
                    "ever",
                    f"label namespace {key[0]} as {target} asks, or widen namespaceSelector",
                )

    def _checks(self) -> None:
        known = {key[1] for key in self.named["AdmissionCheck"]}
        for key, spec in self.specs["ClusterQueue"].items():
            document = self.named["ClusterQueue"][key]
            flavors = {fr[0] for given in self.given if given.document is document for fr in (given.fr,)}
            for i, rule in enumerate((spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()):
                path: Path = ("spec", "admissionChecksStrategy", "admissionChecks", i)
                if rule["name"] not in known and self.has("AdmissionCheck"):
                    self.say(
                        document,
                        (*path, "name"),
                        "check-missing",
                        Severity.ERROR,
                        f"there is no AdmissionCheck {rule['name']}: {key[1]} admits nothing",
                        f"create AdmissionCheck {rule['name']}, or drop it here",
                    )
                check = self.named["AdmissionCheck"].get(("", rule["name"]))
                if check is not None and (check.file == CLUSTER or "status" in check.obj) and not _active(check.obj):
                    whose = self.specs["AdmissionCheck"].get(check.key, {}).get("controllerName") or "its controller"
                    self.say(
                        document,
                        (*path, "name"),
                        "check-inactive",
                        Severity.ERROR,
                        f"AdmissionCheck {rule['name']} is not active: {key[1]} admits nothing until {whose} sets its "
                        "condition Active",
                        f"see whether {whose} runs, or drop the check here",
                    )
                self._check_flavors(document, path, rule, flavors)

    def _check_flavors(self, document: Document, path: Path, rule: Json, flavors: set[str]) -> None:
        for f, flavor in enumerate(rule.get("onFlavors") or ()):
            if flavor not in flavors:
                self.say(
                    document,
                    (*path, "onFlavors", f),
                    "check-without-effect",
                    Severity.WARNING,
                    f"the queue has no flavor {flavor}: the check never applies to it",
                    f"drop {flavor} from onFlavors, or correct its name",
                )

    # ------------------------------------------------------------ priorities

    def _priorities(self) -> None:
        ours = next((d for d in self.priorities if d.key[1] == self.names.priority_class), None)
        if ours is None:
            return
        bound = ours.obj.get("value")
        if not isinstance(bound, int):
            return
        if ours.obj.get("preemptionPolicy") != "Never":
            self.say(
                ours,
                ("preemptionPolicy",),
                "gang-preempts",
                Severity.ERROR,
                f"pods of gangs have PriorityClass {ours.key[1]}, and with it they preempt others behind Muster's back",
                "write preemptionPolicy: Never",
            )
        for document in self.priorities:
            value = document.obj.get("value")
            name = document.key[1]
            if document is ours or name.startswith("system-") or not isinstance(value, int) or value <= bound:
                continue
            if document.obj.get("preemptionPolicy") == "Never":
                continue
            self.say(
                document,
                ("value",),
                "priority-above-gangs",
                Severity.WARNING,
                f"a pod of PriorityClass {name} ({value}) preempts single pods of gangs "
                f"({ours.key[1]}: {bound}), and a gang that lost one pod is lost",
                f"write preemptionPolicy: Never, or a value of at most {bound}, or keep the class from tenants by a "
                "ResourceQuota with scopeSelector PriorityClass",
            )


# ---------------------------------------------------------------- reading objects


def _groups(spec: Json) -> tuple[model.ResourceGroup, ...]:
    """resourceGroups of a valid object as the engine has them."""

    def quota(raw: Json) -> model.Quota:
        name = raw["name"]
        limits = [
            quantity.parse(name, raw[key]) if raw.get(key) is not None else None
            for key in ("borrowingLimit", "lendingLimit")
        ]
        return model.Quota(quantity.parse(name, raw["nominalQuota"]), limits[0], limits[1])

    return tuple(
        model.ResourceGroup(
            covered=tuple(group["coveredResources"]),
            flavors=tuple(
                model.FlavorQuotas(flavor["name"], tuple((r["name"], quota(r)) for r in flavor["resources"]))
                for flavor in group["flavors"]
            ),
        )
        for group in spec.get("resourceGroups") or ()
    )


def _labels(obj: Json) -> dict[str, str]:
    meta = obj.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    return {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}


def _active(obj: Json) -> bool:
    status = obj.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(
        isinstance(one, dict) and one.get("type") == "Active" and one.get("status") == "True"
        for one in (conditions if isinstance(conditions, list) else ())
    )


def _allocatable(obj: Json) -> dict[str, int]:
    status = obj.get("status")
    raw = status.get("allocatable") or status.get("capacity") if isinstance(status, dict) else None
    out: dict[str, int] = {}
    for name, amount in (raw or {}).items() if isinstance(raw, dict) else ():
        try:
            out[name] = quantity.parse(name, amount)
        except quantity.QuantityError:
            continue
    return out


_PASSING = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "node.cilium.io/",
)
"""How the keys of taints begin that come and go with the condition of a node, or while it is made or removed."""


def _taints(node: Document) -> list[Json]:
    """Against scheduling, and that no passing trouble brings."""
    spec = node.obj.get("spec")
    raw = spec.get("taints") if isinstance(spec, dict) else None
    return [
        taint
        for taint in raw or ()
        if isinstance(taint, dict)
        and taint.get("effect") in ("NoSchedule", "NoExecute")
        and not str(taint.get("key")).startswith(_PASSING)
    ]


def _common_taints(nodes: Sequence[Document]) -> list[Json]:
    """Taints that every one of the nodes has."""

    def same(one: Json, other: Json) -> bool:
        return all((one.get(key) or "") == (other.get(key) or "") for key in ("key", "value", "effect"))

    first, *rest = [_taints(node) for node in nodes]
    return [taint for taint in first if all(any(same(taint, other) for other in taints) for taints in rest)]


def _covers(entry: Json, taint: Json) -> bool:
    """Does a toleration, or a nodeTaint of the flavor, speak of this taint."""
    if entry.get("effect") and entry.get("effect") != taint.get("effect"):
        return False
    if entry.get("key") and entry.get("key") != taint.get("key"):
        return False
    return entry.get("operator") == "Exists" or (entry.get("value") or "") == (taint.get("value") or "")


def _covers_all(entry: Json, toleration: Json) -> bool:
    """Does a toleration, or a nodeTaint of the flavor, speak of all taints of which this toleration does."""
    any_value = toleration.get("operator") == "Exists" and entry.get("operator") != "Exists"
    return _covers(entry, toleration) and not any_value


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    needs = [model.Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    needs += [
        model.Requirement(part["key"], part["operator"], tuple(part.get("values") or ()))
        for part in selector.get("matchExpressions") or ()
    ]
    return model.matches(model.LabelSelector(tuple(needs)), labels)


def _is_device(resource: str) -> bool:
    return resource not in ("cpu", "memory", "ephemeral-storage", "pods") and not resource.startswith("hugepages-")


def _some(names: Sequence[str]) -> str:
    """At most four names, and how many more."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
