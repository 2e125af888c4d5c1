"""Which nodes a gang's volumes leave it, and what it has to wait for before there is any.

Told as kube-scheduler's VolumeBinding and VolumeZone tell it of one pod, in the form that placement knows: required
node affinity. A claim that is bound allows the nodes of its PersistentVolume: those of its nodeAffinity (by names, too,
at which kube-scheduler does not look), and of its own zone labels. A claim that is not bound, of a StorageClass
that waits for the first consumer, allows the node that was selected for it, else the nodes of each volume that would
do, and the topologies that its class allows where the class provisions. Any other claim that is not bound allows none,
and so does one of one pod that somebody uses: kube-scheduler would bind no pod that names it, so that the gang waits,
with the claim in its reason.

Left to kube-scheduler: which volume an unbound claim gets, the capacity that drivers report (CSIStorageCapacity), and
how many volumes a node takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from admission.engine.model import Key, LabelSelector, Pairs, PodSet, Requirement, Workload, discard, drop, matches
from admission.engine.order import stamp
from admission.jobs.kinds import Json, millis, name_of, obj, objects, text, texts
from admission.jobs.requests import NODE_NAME, READ, Terms, both, label_selector, requirement, selector_parts
from admission.names import Names
from admission.quantity import QuantityError, parse

Source = tuple[str, str, str]
"""(kind, namespace, name) of what an answer was read from."""
User = tuple[str, str, str]
"""(kind, namespace, name) of who uses a claim: a Workload that holds room, or a Pod."""

KINDS = CLAIM, VOLUME, CLASS = "PersistentVolumeClaim", "PersistentVolume", "StorageClass"
ONE_POD = "ReadWriteOncePod"
MOST_TERMS = 1024
"""Of a pod set's affinity and its volumes' together: each is a look at all nodes."""

NO_VOLUME = LabelSelector((Requirement("", "In", ()),))
"""Selects none."""

_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED = "volume.kubernetes.io/selected-node"
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
_NO_NAME = 254
"""Nothing has a name of so many characters: who names it finds it not, and more is not kept."""
_NOBODY_PROVISIONS = "kubernetes.io/no-provisioner"
_ZONES = (
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
)
"""(label of a volume, label of nodes that have no such label)."""
_TODAY = dict(_ZONES)
_SERVED_BY_DRIVERS = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume", "vsphereVolume"
)  # fmt: skip
"""Kinds of volumes from before there were drivers. kube-scheduler reads the drivers' labels for theirs, which say the
same as the nodes' own."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a volume is, or has to be for a claim."""

    storage_class: str = ""
    modes: frozenset[str] = frozenset()
    block: bool = False
    size: int = 0
    """Bytes."""
    attributes_class: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str = ""
    wants: Kept = Kept()
    selector: LabelSelector | None = None
    """Of volumes that nobody has; None: any."""
    volume: str = ""
    bound: bool = False
    """Whoever binds it says that it is done."""
    lost: bool = False
    deleting: bool = False
    selected_node: str = ""
    created: int = 0
    """ms since the epoch."""

    @property
    def source(self) -> Source:
        return CLAIM, self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str
    terms: Terms | None = None
    """None: every node reaches it."""
    kept: Kept = Kept()
    labels: Pairs = ()
    claim: tuple[str, str, str] | None = None
    """(namespace, name, uid or "") of whose it is or is to be."""
    available: bool = False
    deleting: bool = False

    @property
    def source(self) -> Source:
        return VOLUME, "", self.name


@dataclass(frozen=True, slots=True)
class StorageClass:
    name: str
    waits: bool = False
    """For the first consumer."""
    provisions: bool = False
    terms: Terms | None = None
    """Of the topologies that it allows; None: all."""

    @property
    def source(self) -> Source:
        return CLASS, "", self.name


Stored = Claim | Volume | StorageClass


# ---------------------------------------------------------------- as the API has them


def claim(raw: Json, names: Names) -> tuple[Claim, tuple[str, ...]]:
    meta, spec = obj(raw.get("metadata")), obj(raw.get("spec"))
    notes, problems = texts(meta.get("annotations")), list[str]()
    # Anybody may write one of thousands, and all volumes are held against it.
    selector: LabelSelector | None = NO_VOLUME
    if selector_parts(spec.get("selector")) <= READ.pod_parts:
        selector = label_selector(spec.get("selector"), "selector", problems)
    value = Claim(
        namespace=text(meta.get("namespace")),
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        wants=_kept(meta, spec, obj(obj(spec.get("resources")).get("requests"))),
        selector=selector,
        volume=text(spec.get("volumeName")),
        bound=bool(text(spec.get("volumeName"))) and _BOUND in notes,
        lost=text(obj(raw.get("status")).get("phase")) == "Lost",
        deleting="deletionTimestamp" in meta,
        selected_node=notes.get(_SELECTED, "")[:_NO_NAME],
        created=millis(meta.get("creationTimestamp")),
    )
    return value, tuple(problems)


def volume(raw: Json, names: Names) -> tuple[Volume, tuple[str, ...]]:
    meta, spec = obj(raw.get("metadata")), obj(raw.get("spec"))
    owner, problems = obj(spec.get("claimRef")), list[str]()
    value = Volume(
        name=text(meta.get("name")),
        terms=both(_affinity(spec, problems), _of_zones(texts(meta.get("labels")))),
        kept=_kept(meta, spec, obj(spec.get("capacity"))),
        labels=tuple(sorted(texts(meta.get("labels")).items())),
        claim=(text(owner.get("namespace")), text(owner.get("name")), text(owner.get("uid"))) if owner else None,
        available=text(obj(raw.get("status")).get("phase")) == "Available",
        deleting="deletionTimestamp" in meta,
    )
    return value, tuple(problems)


def storage_class(raw: Json, names: Names) -> tuple[StorageClass, tuple[str, ...]]:
    topologies = objects(raw.get("allowedTopologies"))
    terms = tuple(
        tuple(
            Requirement(text(one.get("key")), "In", tuple(v for v in one.get("values") or () if isinstance(v, str)))
            for one in objects(topology.get("matchLabelExpressions"))
        )
        for topology in topologies
    )
    value = StorageClass(
        name=name_of(raw),
        waits=text(raw.get("volumeBindingMode")) == "WaitForFirstConsumer",
        provisions=text(raw.get("provisioner")) not in ("", _NOBODY_PROVISIONS),
        terms=_merged(term for term in terms if term) if topologies else None,
    )
    return value, ()


def _kept(meta: Json, spec: Json, amounts: Json) -> Kept:
    try:
        size = parse("storage", amounts.get("storage") or 0)
    except QuantityError:
        size = 0
    said = texts(meta.get("annotations")).get(_OLD_CLASS)
    return Kept(
        storage_class=text(spec.get("storageClassName")) if said is None else said[:_NO_NAME],
        modes=frozenset(mode for mode in spec.get("accessModes") or () if isinstance(mode, str)),
        block=text(spec.get("volumeMode")) == "Block",
        size=size,
        attributes_class=text(spec.get("volumeAttributesClassName")),
    )


def _affinity(spec: Json, problems: list[str]) -> Terms | None:
    required = obj(spec.get("nodeAffinity")).get("required")
    if not isinstance(required, dict):
        return None
    terms = []
    for term in objects(required.get("nodeSelectorTerms")):
        parts = [*objects(term.get("matchExpressions")), *objects(term.get("matchFields"))]
        try:
            needs = tuple(requirement(part) for part in parts)
        except ValueError as error:
            problems.append(str(error))
            continue
        if any(kind in spec for kind in _SERVED_BY_DRIVERS):
            needs = tuple(replace(need, key=_TODAY.get(need.key, need.key)) for need in needs)
        if needs:
            terms.append(needs)
    return _merged(terms)


def _of_zones(labels: dict[str, str]) -> Terms | None:
    """Where VolumeZone lets a volume with these labels be mounted: nodes that say no zone or region at all, and those
    that say one of its own. Several are written with two underscores between."""
    told = []
    for key, current in _ZONES:
        values = tuple(sorted({one.strip() for one in labels[key].split("__")})) if key in labels else ()
        if values and "" not in values:
            here: Terms = ((Requirement(key, "In", values),),)
            if current != key:
                here = (*here, (Requirement(key, "DoesNotExist"), Requirement(current, "In", values)))
            told.append(here)
    if not told:
        return None
    all_of: Terms | None = None
    for here in told:
        all_of = both(all_of, here)
    return ((*(Requirement(key, "DoesNotExist") for key, _ in _ZONES),), *(all_of or ()))


# ---------------------------------------------------------------- terms


def _merged(terms: Iterable[tuple[Requirement, ...]]) -> Terms:
    """Equal nodes, in fewer terms: those that name one label's values become one. (Local volumes: one host each.)"""
    values: dict[str, set[str]] = {}
    others: dict[tuple[Requirement, ...], None] = {}
    for term in terms:
        if len(term) == 1 and term[0].operator == "In":
            values.setdefault(term[0].key, set()).update(term[0].values)
        else:
            others[term] = None
    return (*((Requirement(key, "In", tuple(sorted(values[key]))),) for key in sorted(values)), *others)


def with_affinity(pod_set: PodSet, terms: Terms | None) -> PodSet:
    """The same pods with this required node affinity; the very same where it is what they had."""
    shape = pod_set.shape
    return pod_set if terms == shape.affinity else replace(pod_set, shape=replace(shape, affinity=terms))


# ---------------------------------------------------------------- what is there


class _WaitsError(Exception):
    """What a gang has to wait for; the message says it of "PersistentVolumeClaim NAME"."""


class Storage:
    """Claims, volumes and storage classes as they are now."""

    def __init__(self) -> None:
        self.claims: dict[Key, Claim] = {}
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self._of_class: dict[str, dict[str, Volume]] = {}
        self._kept_for: dict[Key, dict[str, Volume]] = {}
        """Volumes by the claim that they are for."""
        self._free_for: dict[tuple[Kept, LabelSelector | None], tuple[bool, Terms | None]] = {}
        """What was found for claims that want the same (`_fitting`), until a volume changes."""
        self._used_by: dict[Key, set[User]] = {}
        self._uses: dict[User, frozenset[Key]] = {}

    def change(self, old: Stored | None, new: Stored | None) -> set[Source]:
        """Take in that one came, changed or went; of what answers, by their sources, may differ now."""
        touched = set[Source]()
        for value in (old, new):
            if value is None:
                continue
            touched.add(value.source)
            if isinstance(value, Volume):
                self._free_for.clear()
                touched.add((CLASS, "", value.kept.storage_class))
                if value.claim is not None:
                    touched.add((CLAIM, *value.claim[:2]))
        if old is not None:
            self._take_out(old)
        match new:
            case Claim():
                self.claims[new.namespace, new.name] = new
            case Volume():
                self.volumes[new.name] = new
                self._of_class.setdefault(new.kept.storage_class, {})[new.name] = new
                if new.claim is not None:
                    self._kept_for.setdefault(new.claim[:2], {})[new.name] = new
            case StorageClass():
                self.classes[new.name] = new
        return touched

    def uses(self, who: User, names: Iterable[str]) -> set[Source]:
        """Take in that somebody uses these claims of his namespace now; of what answers may differ."""
        before, now = self._uses.pop(who, frozenset()), frozenset((who[1], name) for name in names)
        if now:
            self._uses[who] = now
        for key in before - now:
            discard(self._used_by, key, who)
        for key in now - before:
            self._used_by.setdefault(key, set()).add(who)
        changed = (self.claims.get(key) for key in before ^ now)
        return {claim.source for claim in changed if claim is not None and ONE_POD in claim.wants.modes}

    def _take_out(self, old: Stored) -> None:
        match old:
            case Claim():
                self.claims.pop((old.namespace, old.name), None)
            case Volume():
                self.volumes.pop(old.name, None)
                drop(self._of_class, old.kept.storage_class, old.name)
                if old.claim is not None:
                    drop(self._kept_for, old.claim[:2], old.name)
            case StorageClass():
                self.classes.pop(old.name, None)

    def lacks(self, gang: Workload) -> str:
        """What a gang waits for, as far as its claims alone tell it; "" for nothing."""
        try:
            for name in _named(gang):
                self._claim(gang, name)
        except _WaitsError as wait:
            return str(wait)
        return ""

    def laid_on(self, gang: Workload) -> tuple[Workload, frozenset[Source]]:
        """The gang with what its volumes add: to the affinity of its pods, or that it waits. And what it depends on."""
        sources = set[Source]()
        pod_sets, unbound = [], ""
        for pod_set in gang.pod_sets:
            terms = pod_set.shape.affinity
            try:
                for name in pod_set.shape.claims:
                    sources.add((CLAIM, gang.namespace, name))
                    here = self._reach(self._claim(gang, name), sources)
                    if terms is not None and here is not None and len(terms) * len(here) > MOST_TERMS:
                        raise _WaitsError(
                            f"{CLAIM} {name} cannot be honoured beside what else its pods ask of nodes: together that "
                            f"is more than {MOST_TERMS} terms of node affinity; select a label that stands for them"
                        )
                    terms = both(terms, here)
            except _WaitsError as wait:
                unbound = unbound or str(wait)
            pod_sets.append(with_affinity(pod_set, terms))
        laid = replace(gang, pod_sets=tuple(pod_sets), unbound=unbound)
        waits = gang.admission is None and not gang.evicted  # who has run waits since then, whatever was made meanwhile
        if waits and stamp(gang) < (since := self._complete_since(gang)):
            # Its owner could else let it grow old outside, and come before all others with a claim made late.
            laid = replace(laid, queue_stamp=since)
        return laid, frozenset(sources)

    def _complete_since(self, gang: Workload) -> int:
        """When the last of its claims was made."""
        found = (self.claims.get((gang.namespace, name)) for name in _named(gang))
        return max((claim.created for claim in found if claim is not None), default=0)

    def _claim(self, gang: Workload, name: str) -> Claim:
        said = f"{CLAIM} {name}"
        found = self.claims.get((gang.namespace, name))
        if found is None:
            raise _WaitsError(f"{said} does not exist in namespace {gang.namespace}; its pods name it")
        if found.lost:
            raise _WaitsError(f"{said} is Lost: its PersistentVolume {found.volume} is no more")
        if found.deleting:
            raise _WaitsError(f"{said} is being deleted")
        if ONE_POD in found.wants.modes:
            pods = sum(s.count if s.min_count is None else s.min_count for s in gang.pod_sets if name in s.shape.claims)
            if pods > 1:
                raise _WaitsError(f"{said} is {ONE_POD}, and {pods} pods name it: give it another access mode")
            users = self._used_by.get((gang.namespace, name))
            if users and gang.admission is None:
                kind, _, user = min(users)
                raise _WaitsError(f"{said} is {ONE_POD}, and {kind} {user} uses it")
        return found

    def _reach(self, asked: Claim, sources: set[Source]) -> Terms | None:
        """Nodes that a claim allows, None for all; what they were read from goes into `sources`."""
        said = f"{CLAIM} {asked.name}"
        if asked.bound:
            sources.add((VOLUME, "", asked.volume))
            held = self.volumes.get(asked.volume)
            if held is None:
                raise _WaitsError(f"{said} is bound to PersistentVolume {asked.volume}, which does not exist")
            return held.terms
        wanted = asked.wants.storage_class
        found = self.classes.get(wanted)
        sources.add((CLASS, "", wanted))
        if asked.volume:
            raise _WaitsError(f"{said} is not bound yet to PersistentVolume {asked.volume}, which it names")
        if not wanted:
            raise _WaitsError(f"{said} is not bound yet, and has no storage class: it needs a volume made for it")
        if found is None:
            raise _WaitsError(f"{said} is not bound yet, and its StorageClass {wanted} does not exist")
        if not found.waits:
            raise _WaitsError(f"{said} is not bound yet (StorageClass {wanted} binds at once)")
        if asked.selected_node and found.provisions:
            return both(((Requirement(NODE_NAME, "In", (asked.selected_node,)),),), found.terms)
        if found.provisions and found.terms is None:
            return None
        there, terms = (False, ()) if asked.selected_node else self._fitting(asked)
        if terms is None:
            return None
        if not there and not found.provisions:
            raise _WaitsError(
                f"{said} is not bound yet: no PersistentVolume of StorageClass {wanted}, which provisions none, is "
                "there for it"
            )
        return _merged([*terms, *(found.terms or ())]) if found.provisions else terms

    def _fitting(self, asked: Claim) -> tuple[bool, Terms | None]:
        """(are there volumes that it could be bound to, the nodes of these or None for all); those that were made for
        it come before all others."""
        kept = self._kept_for.get((asked.namespace, asked.name), {})
        own = [kept[name] for name in sorted(kept) if _is_for(kept[name], asked)]
        if own:
            return True, _reached(own)
        free = self._free_for.get((asked.wants, asked.selector))
        if free is None:
            of_class = self._of_class.get(asked.wants.storage_class, {})
            found = [of_class[name] for name in sorted(of_class) if _is_free_for(of_class[name], asked)]
            if len(self._free_for) >= MOST_TERMS:
                self._free_for.clear()
            free = self._free_for[asked.wants, asked.selector] = bool(found), _reached(found)
        return free


def _reached(volumes: Sequence[Volume]) -> Terms | None:
    if any(one.terms is None for one in volumes):
        return None
    return _merged(term for one in volumes for term in one.terms or ())


def _fits(one: Volume, asked: Claim) -> bool:
    has, wants = one.kept, asked.wants
    fits = has.size >= wants.size and has.block == wants.block and has.attributes_class == wants.attributes_class
    return fits and has.storage_class == wants.storage_class and not one.deleting


def _is_for(one: Volume, asked: Claim) -> bool:
    return _fits(one, asked) and one.claim is not None and one.claim[2] in ("", asked.uid)


def _is_free_for(one: Volume, asked: Claim) -> bool:
    if one.claim is not None or not one.available or not _fits(one, asked) or not asked.wants.modes <= one.kept.modes:
        return False
    return asked.selector is None or matches(asked.selector, dict(one.labels))


def use_of(gang: Workload) -> tuple[User, frozenset[str]]:
    """Who it is that uses claims, and which: all that it names, from its reservation on."""
    holds = gang.admission is not None and not gang.finished
    return ("Workload", *gang.key), frozenset(_named(gang) if holds else ())


def _named(gang: Workload) -> Iterator[str]:
    for pod_set in gang.pod_sets:
        yield from pod_set.shape.claims


def names_any(gang: Workload, sources: Collection[Source]) -> bool:
    """Does it name one of these claims."""
    return any((CLAIM, gang.namespace, name) in sources for name in _named(gang))


def names_claims(gangs: Collection[Workload]) -> bool:
    """Does any of them look at volumes at all."""
    return any(pod_set.shape.claims for gang in gangs for pod_set in gang.pod_sets)
