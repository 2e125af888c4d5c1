"""The rules of placement once more, in plain Python and without cleverness.

`fits` decides by trying every distribution of pods over nodes: the truth, for tiny clusters. `faults` says what is
wrong with a placement. `pack` is Muster's packing rule for one pod set, node by node and with dictionaries: it must
give the very domains that the arrays give, and it is what speed is measured against.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from admission.engine.capacity import PlaceRequest
from admission.engine.model import Node, PodUsage, Requirement, Taint, Toleration, Topology, TopologyAssignment

HOSTNAME = "kubernetes.io/hostname"


@dataclass
class Cluster:
    nodes: list[Node]
    pods: list[PodUsage] = field(default_factory=list)
    topologies: list[Topology] = field(default_factory=list)

    def free(self) -> dict[str, dict[str, int]]:
        out = {node.name: dict(node.allocatable) for node in self.nodes}
        for pod in self.pods:
            if pod.node in out:
                for name, amount in {"pods": 1, **dict(pod.requests)}.items():
                    out[pod.node][name] = out[pod.node].get(name, 0) - amount
        return out

    def levels(self, request: PlaceRequest) -> tuple[str, ...]:
        for flavor in request.flavors:
            for topology in self.topologies:
                if flavor.topology == topology.name:
                    return topology.levels
        return ()


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def meets(node: Node, need: Requirement) -> bool:
    labels = dict(node.labels)
    value = node.name if need.key == "metadata.name" else labels.get(need.key)
    match need.operator:
        case "In":
            return value is not None and value in need.values
        case "NotIn":
            return value is None or value not in need.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    number, bound = _number(value or ""), _number(need.values[0]) if len(need.values) == 1 else None
    if number is None or bound is None:
        return False
    return number > bound if need.operator == "Gt" else number < bound


def tolerated(taint: Taint, toleration: Toleration) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def kept_away(cluster: Cluster, node: Node, request: PlaceRequest) -> bool:
    """By required anti-affinity of a pod that is there."""
    apart = [pod for pod in cluster.pods if pod.apart]
    if not apart:
        return False
    shape, labels = request.pod_set.shape, dict(node.labels)
    own = dict(shape.labels)
    at = {other.name: dict(other.labels) for other in cluster.nodes}
    for pod in apart:
        for asked in pod.apart if pod.node in at else ():
            selected = all(own.get(need.key) in need.values for need in asked.selector.requirements)
            there = at[pod.node].get(asked.key)
            if (
                selected
                and shape.namespace in asked.namespaces
                and there is not None
                and labels.get(asked.key) == there
            ):
                return True
    return False


def allowed(cluster: Cluster, node: Node, request: PlaceRequest) -> bool:
    shape = request.pod_set.shape
    labels = dict(node.labels)
    if not node.ready or node.unschedulable or kept_away(cluster, node, request):
        return False
    if any(labels.get(key) != value for flavor in request.flavors for key, value in flavor.node_labels):
        return False
    if any(labels.get(key) != value for key, value in shape.node_selector):
        return False
    tolerations = [*shape.tolerations, *(t for flavor in request.flavors for t in flavor.tolerations)]
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not any(tolerated(taint, t) for t in tolerations):
            return False
    if shape.affinity is None:
        return True
    return any(term and all(meets(node, need) for need in term) for term in shape.affinity)


def per_pod(request: PlaceRequest) -> dict[str, int]:
    return {"pods": 1, **{name: amount for name, amount in request.per_pod if amount > 0}}


def count(free: Mapping[str, int], needs: Mapping[str, int]) -> int:
    return max(0, min(free.get(name, 0) // amount for name, amount in needs.items()))


def path(cluster: Cluster, request: PlaceRequest, node: Node) -> tuple[str | None, ...]:
    """The node's label value per level above the nodes, None where it has none; then its name."""
    labels = dict(node.labels)
    return (*(labels.get(level) for level in cluster.levels(request) if level != HOSTNAME), node.name)


def depth(cluster: Cluster, request: PlaceRequest, level: str) -> int:
    above = [key for key in cluster.levels(request) if key != HOSTNAME]
    return [*above, HOSTNAME].index(level)


def faults(cluster: Cluster, request: PlaceRequest, pods: Mapping[str, int]) -> list[str]:
    """What is wrong with `pods` (node -> number) for one pod set, room aside."""
    by_name = {node.name: node for node in cluster.nodes}
    used = [by_name[name] for name, number in pods.items() if number]
    shape, asked = request.pod_set.shape, request.pod_set.topology
    out = [f"{node.name} is not allowed" for node in used if not allowed(cluster, node, request)]
    if sum(pods.values()) != request.count:
        out.append(f"{sum(pods.values())} of {request.count} pods")
    if asked is not None:
        if asked.required:
            at = depth(cluster, request, asked.required)
            paths = {path(cluster, request, node)[: at + 1] for node in used}
            if len(paths) > 1 or (asked.required != HOSTNAME and any(None in one for one in paths)):
                out.append(f"not within one {asked.required}")
        layers = [*([(asked.slice_required, asked.slice_size)] if asked.slice_required else []), *asked.slices]
        for level, size in layers:
            at = depth(cluster, request, level)
            totals: dict[tuple[str | None, ...], int] = {}
            for node in used:
                domain = path(cluster, request, node)[: at + 1]
                totals[domain] = totals.get(domain, 0) + pods[node.name]
            # The last slice is short where the pods are no whole ones.
            rests = sorted(total % size for total in totals.values() if total % size)
            if rests != [rest for rest in (request.count % size,) if rest]:
                out.append(f"{totals}: no slices of {size}")
            out.extend(f"{level} of {domain} unknown" for domain in totals if level != HOSTNAME and None in domain)
    for key in shape.one_per_domain:
        seen: dict[str, int] = {}
        for node in used:
            value = dict(node.labels).get(key)
            if value is not None:
                seen[value] = seen.get(value, 0) + pods[node.name]
        out.extend(f"{number} pods with {key}={value}" for value, number in seen.items() if number > 1)
    for key in shape.same_domain:
        values = {dict(node.labels).get(key) for node in used}
        if len(values) > 1 or None in values:
            out.append(f"{key} differs")
    if shape.host_ports and any(number > 1 for number in pods.values()):
        out.append("a host port twice")
    return out


def torn(cluster: Cluster, request: PlaceRequest, assignment: TopologyAssignment) -> list[str]:
    """Slices, by the ranks of their pods, that are not in one domain."""
    by_name, asked = {node.name: node for node in cluster.nodes}, request.pod_set.topology
    hosts = [by_name[domain.values[-1]] for domain in assignment.domains for _ in range(domain.count)]
    out = []
    for level, size in () if asked is None else ((asked.slice_required, asked.slice_size), *asked.slices):
        at = depth(cluster, request, level) + 1 if level else 0
        for first in range(0, len(hosts), size) if level else ():
            domains = {path(cluster, request, host)[:at] for host in hosts[first : first + size]}
            out += [f"ranks from {first} on are in {domains}"] if len(domains) > 1 else []
    return out


def barred(cluster: Cluster, node: Node, key: str) -> bool:
    """May a pod of a JobSet whose child jobs have their domains of `key` to themselves not be there?"""
    labels = {n.name: dict(n.labels) for n in cluster.nodes}

    def near(pod: PodUsage, key: str) -> bool:
        there = labels.get(pod.node, {}).get(key)
        return there is not None and there == labels[node.name].get(key)

    others = [pod for pod in cluster.pods if pod.of_jobset]
    return any(near(pod, key) or near(pod, pod.exclusive_key) for pod in others)


def exclusive_fits(cluster: Cluster, request: PlaceRequest) -> bool:
    """Is there a choice of one domain for each child job, all within the domain that the pod set requires."""
    wanted, asked = request.pod_set.shape.exclusive, request.pod_set.topology
    assert wanted is not None
    free = cluster.free()
    at = depth(cluster, request, asked.required) + 1 if asked is not None and asked.required else 0
    room: dict[tuple[str | None, ...], dict[str, int]] = {}
    for node in cluster.nodes:
        value, around = dict(node.labels).get(wanted.key), path(cluster, request, node)[:at]
        whole = None not in around or (asked is not None and asked.required == HOSTNAME)
        if value is not None and whole and allowed(cluster, node, request) and not barred(cluster, node, wanted.key):
            domains = room.setdefault(around, {})
            pods = count(free[node.name], per_pod(request))
            domains[value] = domains.get(value, 0) + (min(pods, 1) if request.pod_set.shape.host_ports else pods)
    need = request.count // wanted.pods
    return any(sum(pods >= wanted.pods for pods in domains.values()) >= need for domains in room.values())


def exclusive_faults(cluster: Cluster, request: PlaceRequest, assignment: TopologyAssignment) -> list[str]:
    wanted = request.pod_set.shape.exclusive
    assert wanted is not None
    by_name = {node.name: node for node in cluster.nodes}
    hosts = [by_name[domain.values[-1]] for domain in assignment.domains for _ in range(domain.count)]
    own = [
        {dict(host.labels).get(wanted.key) for host in hosts[first : first + wanted.pods]}
        for first in range(0, len(hosts), wanted.pods)
    ]
    out = [f"child job {i} is in {values}" for i, values in enumerate(own) if len(values) != 1 or None in values]
    if len(set().union(*own)) != len(own):
        out.append("two child jobs share a domain")
    return out + [f"{host.name} is barred" for host in hosts if barred(cluster, host, wanted.key)]


def _spread(caps: Sequence[int], total: int) -> Iterator[tuple[int, ...]]:
    if len(caps) == 1:
        if total <= caps[0]:
            yield (total,)
        return
    for here in range(min(caps[0], total), -1, -1):
        for rest in _spread(caps[1:], total - here):
            yield (here, *rest)


def fits(cluster: Cluster, requests: Sequence[PlaceRequest]) -> bool:
    """Is there any way at all. Groups of pod sets must share the domain that one of them requires."""
    free = cluster.free()
    names = [node.name for node in cluster.nodes]
    ways: list[list[dict[str, int]]] = []
    for request in requests:
        caps = [
            count(free[node.name], per_pod(request)) if allowed(cluster, node, request) else 0 for node in cluster.nodes
        ]
        found = [dict(zip(names, way, strict=True)) for way in _spread(caps, request.count)] if names else []
        ways.append([way for way in found if not faults(cluster, request, way)])
    for choice in product(*ways):
        room = {name: dict(amounts) for name, amounts in free.items()}
        for request, way in zip(requests, choice, strict=True):
            for name, number in way.items():
                for resource, amount in per_pod(request).items():
                    room[name][resource] = room[name].get(resource, 0) - amount * number
        short = any(
            room[name].get(resource, 0) < 0
            for request, way in zip(requests, choice, strict=True)
            for name, number in way.items()
            if number
            for resource in per_pod(request)
        )
        if not short and _together(cluster, requests, choice):
            return True
    return False


def _together(cluster: Cluster, requests: Sequence[PlaceRequest], choice: Sequence[Mapping[str, int]]) -> bool:
    by_name = {node.name: node for node in cluster.nodes}
    groups: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        if request.pod_set.topology is not None and request.pod_set.topology.group:
            groups.setdefault(request.pod_set.topology.group, []).append(i)
    for members in groups.values():
        levels = [t.required for i in members if (t := requests[i].pod_set.topology) is not None and t.required]
        if not levels:
            continue
        at = max(depth(cluster, requests[members[0]], level) for level in levels)
        domains = {
            path(cluster, requests[i], by_name[name])[: at + 1]
            for i in members
            for name, number in choice[i].items()
            if number
        }
        if len(domains) > 1:
            return False
    return True


def of(assignment: TopologyAssignment) -> dict[str, int]:
    out: dict[str, int] = {}
    for domain in assignment.domains:
        out[domain.values[-1]] = out.get(domain.values[-1], 0) + domain.count
    return out


# ---------------------------------------------------------------- the packing rule


@dataclass
class _Domain:
    path: tuple[str | None, ...]
    room: int
    children: list[_Domain]
    around: tuple[int, ...] = ()


def _tree(leaves: list[tuple[tuple[str | None, ...], int]], at: int, prefix: tuple[str | None, ...]) -> list[_Domain]:
    groups: dict[str | None, list[tuple[tuple[str | None, ...], int]]] = {}
    for leaf in leaves:
        groups.setdefault(leaf[0][at], []).append(leaf)
    out = []
    for value in sorted(groups, key=lambda v: (v is not None, v or "")):
        members = groups[value]
        if at == len(members[0][0]) - 1:
            out.append(_Domain((*prefix, value), members[0][1], []))
        else:
            children = _tree(members, at + 1, (*prefix, value))
            out.append(_Domain((*prefix, value), sum(child.room for child in children), children))
    return out


def _mark(domains: list[_Domain], around: tuple[int, ...]) -> None:
    for domain in domains:
        domain.around = around
        _mark(domain.children, (domain.room, *around))


def _choose(domains: list[_Domain], want: int) -> list[tuple[_Domain, int]] | None:
    """Fewest domains; of these sets the one with the smallest largest member, then the smallest second ..."""
    order = sorted((d for d in domains if d.room > 0), key=lambda d: -d.room)
    held, k = 0, 0
    while held < want and k < len(order):
        held += order[k].room
        k += 1
    if held < want:
        return None
    values: list[int] = []
    rooms = [d.room for d in order]
    start, need = 0, want
    for left in range(k, 0, -1):
        at = start
        window = sum(rooms[at : at + left])
        while at + left < len(rooms) and window - rooms[at] + rooms[at + left] >= need:
            window += rooms[at + left] - rooms[at]
            at += 1
        values.append(rooms[at])
        need -= rooms[at]
        start = at + 1
    chosen: list[tuple[_Domain, int]] = []
    rest = want
    for value in sorted(set(values), reverse=True):
        # Sorting is stable, so that the first in path order comes first among equals.
        for domain in sorted((d for d in domains if d.room == value), key=lambda d: d.around)[: values.count(value)]:
            chosen.append((domain, min(value, rest)))
            rest -= min(value, rest)
    return chosen


def pack(cluster: Cluster, request: PlaceRequest) -> dict[str, int] | None:
    """Muster's rule for one pod set without slices or affinity to itself, on nodes whose rest is all alike."""
    free = cluster.free()
    needs = per_pod(request)
    nodes = sorted(cluster.nodes, key=lambda node: node.name)
    leaves = [
        (path(cluster, request, node), count(free[node.name], needs) if allowed(cluster, node, request) else 0)
        for node in nodes
    ]
    if not leaves:
        return None
    roots = _tree(leaves, 0, ())
    _mark(roots, ())
    by_level: list[list[_Domain]] = [roots]
    while by_level[-1][0].children:
        by_level.append([child for domain in by_level[-1] for child in domain.children])
    asked = request.pod_set.topology
    levels = list(range(len(by_level) - 1, -1, -1))
    if asked is not None and asked.required:
        levels = [depth(cluster, request, asked.required)]
    elif asked is not None and asked.preferred:
        levels = list(range(depth(cluster, request, asked.preferred), -1, -1))
    start: list[tuple[_Domain, int]] | None = None
    for level in levels:
        enough = [d for d in by_level[level] if d.room >= request.count and (not d.children or None not in d.path)]
        if enough:
            best = min(range(len(enough)), key=lambda i: (enough[i].room, enough[i].around, i))
            start = [(enough[best], request.count)]
            break
    if start is None:
        if asked is not None and asked.required:
            return None
        start = _choose(roots, request.count)
        if start is None:
            return None
    out: dict[str, int] = {}
    while start:
        domain, amount = start.pop()
        if not domain.children:
            name = domain.path[-1]
            assert name is not None
            out[name] = out.get(name, 0) + amount
            continue
        below = _choose(domain.children, amount)
        assert below is not None
        start.extend(below)
    return out
