"""What a pod takes of a node, and what an admission takes of all nodes.

Beside what it requests, a pod takes a pod slot, its host ports, and *marks*: resources that no node runs out of, by
which is known who stands there (pods of a JobSet, of a child job with a domain to itself, pods that keep others away).
So one arithmetic of amounts answers all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from admission.engine.model import (
    Admission,
    AntiAffinity,
    LabelSelector,
    Pairs,
    PodShape,
    Requirement,
    Value,
)
from admission.names import HOSTNAME_LABEL, JOBSET_NAME_LABEL, JOBSET_REPLICATED_JOB_LABEL

K = TypeVar("K")

Amounts = tuple[tuple[str, int], ...]
"""(resource, amount), sorted."""


PODS = "pods"
HOST_PORT = "host-port/"
"""Prefix of the resource of which every node has one per port number: two pods cannot share a host port."""
JOBSET_PODS = "jobset-pods"
"""What every pod of a JobSet takes one of, and no node runs out of: that one stands there is known by it."""
EXCLUSIVE = "exclusive-topology:"
"""Prefix of the like, with a label: for pods of a child job that has its domain of that label to itself."""
APART = "anti-affinity:"
"""Prefix of the like, with what a pod asks of all others (`mark_of`)."""
MOST = 2**31
"""Counts of pods are cut here, so that no sum of them overflows."""


def is_device(resource: str) -> bool:
    """Extended resources have a domain in their name; hugepages, CPU and the like have none."""
    return "/" in resource and not resource.startswith((HOST_PORT, EXCLUSIVE, APART))


def is_mark(resource: str) -> bool:
    """Says who stands on a node, and takes no room there."""
    return resource == JOBSET_PODS or resource.startswith((EXCLUSIVE, APART))


@lru_cache(maxsize=8192)
def mark_of(asked: AntiAffinity) -> str:
    """The resource of which a pod takes one that asks this of all others."""
    needs = [(need.key, need.operator, need.values) for need in asked.selector.requirements]
    return APART + json.dumps([asked.key, asked.namespaces, needs])


@lru_cache(maxsize=8192)
def marked(mark: str) -> AntiAffinity:
    """The inverse of `mark_of`."""
    key, namespaces, needs = json.loads(mark[len(APART) :])
    selector = LabelSelector(tuple(Requirement(label, operator, tuple(values)) for label, operator, values in needs))
    return AntiAffinity(key, selector, tuple(namespaces))


def everywhere(resource: str) -> int:
    """What every node has of it, whatever its allocatable says."""
    return 1 if resource.startswith(HOST_PORT) else MOST if is_mark(resource) else 0


def add_unasked(
    amounts: dict[str, int],
    host_ports: Iterable[str],
    of_jobset: bool,
    exclusive: str,
    apart: Iterable[AntiAffinity],
) -> None:
    """What a pod takes of its node that no request names. `exclusive`: the label of which its child job has the domain
    to itself, or "". `apart`: what it asks of all others."""
    amounts.setdefault(PODS, 1)
    for port in host_ports:
        amounts[f"{HOST_PORT}{port}"] = 1
    if of_jobset:
        amounts[JOBSET_PODS] = 1
    if exclusive:
        amounts[EXCLUSIVE + exclusive] = 1
    for asked in apart:
        amounts[mark_of(asked)] = 1


def takes(shape: PodShape, requests: Mapping[str, int] | Amounts | None = None) -> Amounts:
    """What one pod takes from a node: its requests (default: the shape's), one pod slot, its host ports."""
    amounts = dict(shape.requests if requests is None else requests)
    exclusive = "" if shape.exclusive is None or shape.exclusive.values else shape.exclusive.key
    add_unasked(amounts, shape.host_ports, shape.of_jobset, exclusive, shape.apart)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount > 0))


def children_of(shape: PodShape) -> str:
    """The name of the child jobs of pods of this shape, as in `PodUsage.child`."""
    labels = dict(shape.labels)
    return f"{shape.namespace}/{labels.get(JOBSET_NAME_LABEL, '')}-{labels.get(JOBSET_REPLICATED_JOB_LABEL, '')}"


class Booking(Value, frozen=True):
    """What an admission takes of nodes, added up."""

    uid: str
    hosts: tuple[tuple[str, Amounts], ...]
    """(node name or hostname label, what is taken there in all)."""
    domains: tuple[tuple[Pairs, Amounts], ...]
    """((level, value) pairs, what is taken there): assignments whose lowest level is above the node."""
    kinds: tuple[tuple[Amounts, int], ...] = ()
    """(what one pod takes, how many of them)."""
    exclusive: tuple[str, ...] = ()
    """Labels of which its child jobs have domains to themselves."""
    apart: tuple[str, ...] = ()
    """Marks of what its pods ask of all others."""


def add_amounts(into: dict[K, int], amounts: Iterable[tuple[K, int]], sign: int) -> None:
    """`into += sign * amounts`, exact, without zeros."""
    for name, amount in amounts:
        total = into.get(name, 0) + sign * amount
        if total:
            into[name] = total
        else:
            into.pop(name, None)


class _PodTakes(NamedTuple):
    """What follows from what one pod takes."""

    each: Amounts
    """With a pod slot."""
    kind: Amounts | None
    """The same without marks, of a pod with devices."""
    exclusive: tuple[str, ...]
    apart: tuple[str, ...]


@lru_cache(maxsize=8192)
def _pod_takes(amounts: Amounts) -> _PodTakes:
    taken = {PODS: 1, **dict(amounts)}
    each = tuple(sorted(taken.items()))
    return _PodTakes(
        each,
        tuple((name, n) for name, n in each if n > 0 and not is_mark(name)) if any(map(is_device, taken)) else None,
        tuple(name[len(EXCLUSIVE) :] for name in taken if name.startswith(EXCLUSIVE)),
        tuple(name for name in taken if name.startswith(APART)),
    )


def booking_of(uid: str, admission: Admission, per_pod: Mapping[str, Amounts]) -> Booking:
    """What an admission takes of nodes; `per_pod` says, per pod set, what each pod takes (`takes`)."""
    hosts: dict[str, Amounts] = {}
    domains: dict[Pairs, Amounts] = {}
    kinds: dict[Amounts, int] = {}
    takes_of = {name: _pod_takes(amounts) for name, amounts in per_pod.items()}
    for assignment in admission.pod_sets:
        if assignment.topology is None:
            continue
        each, kind, _, _ = takes_of.get(assignment.name) or _pod_takes(())
        if kind is not None:
            kinds[kind] = kinds.get(kind, 0) + sum(domain.count for domain in assignment.topology.domains)
        levels = assignment.topology.levels
        on_hosts = bool(levels) and levels[-1] == HOSTNAME_LABEL
        by_count: dict[int, Amounts] = {}
        for domain in assignment.topology.domains:
            taken = by_count.get(domain.count)
            if taken is None:
                taken = tuple((name, n * domain.count) for name, n in each if n * domain.count)
                by_count[domain.count] = taken
            if on_hosts:
                host = domain.values[-1]
                hosts[host] = _sum(hosts[host], taken) if host in hosts else taken
            else:
                pairs = tuple(zip(levels, domain.values, strict=True))
                domains[pairs] = _sum(domains[pairs], taken) if pairs in domains else taken
    return Booking(
        uid=uid,
        hosts=tuple(sorted(hosts.items())),
        domains=tuple(sorted(domains.items())),
        kinds=tuple(sorted(kinds.items())),
        exclusive=tuple(sorted({name for of in takes_of.values() for name in of.exclusive})),
        apart=tuple(sorted({name for of in takes_of.values() for name in of.apart})),
    )


def _sum(one: Amounts, other: Amounts) -> Amounts:
    total = dict(one)
    add_amounts(total, other, 1)
    return tuple(sorted(total.items()))
