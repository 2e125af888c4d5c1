"""Pods of others that a gang's own affinity or anti-affinity selects, and the nodes that this leaves its pods.

A rule that is meant for the gang's own pods may select others as well, by a label that they share. kube-scheduler
counts them all: where a pod stands that the anti-affinity selects, none of the gang's does; and once a pod stands
somewhere that all terms of the affinity select, the gang's pods go where one stands. Laid on the gang as required node
affinity, by the values of the label that the rule names. Of gangs, those that keep the gang away by the same rule of
their own are left to placement, which knows it both ways. Its own pods are others while it waits: they linger on nodes
that are lost, and kube-scheduler counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from admission.engine.model import AntiAffinity, Key, Pairs, PodShape, PodUsage, Requirement, Workload, discard, matches
from admission.jobs.requests import both
from admission.jobs.volumes import with_affinity
from admission.names import HOSTNAME_LABEL

Who = tuple[str, str, str]
"""("pod" or "gang", namespace, name)."""

Label = tuple[str, str]

Rule = tuple[bool, tuple[AntiAffinity, ...]]
"""(affinity, else anti-affinity; what a pod has to be selected by, all of it)."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Pods that are alike, and the nodes that they stand on."""

    namespace: str
    labels: Pairs
    nodes: tuple[str, ...]
    apart: tuple[AntiAffinity, ...] = ()
    gang: str = ""
    """uid of that whose pods they are, if they stand on their own."""


def stands_of(gang: Workload) -> tuple[Stand, ...]:
    """Of a gang that holds nodes; not where its domains are wider, for its pods tell more."""
    if gang.admission is None or gang.finished:
        return ()
    shapes = {pod_set.name: pod_set.shape for pod_set in gang.pod_sets}
    return tuple(
        Stand(
            gang.namespace,
            shapes[given.name].labels,
            tuple(domain.values[-1] for domain in given.topology.domains),
            shapes[given.name].apart,
        )
        for given in gang.admission.pod_sets
        if given.topology is not None and given.topology.levels[-1:] == (HOSTNAME_LABEL,) and given.name in shapes
    )


def stand_of(pod: PodUsage, labels: Pairs, *, reserved: bool) -> tuple[Stand, ...]:
    """Of a pod for which no reservation speaks: one of others, and one of a gang on a node that kube-scheduler chose,
    or that the gang gave back. reserved: it is pinned, and its gang holds room."""
    if reserved:
        return ()
    gang = pod.workload_uid
    return (Stand(pod.key[0], labels, (pod.node,), pod.apart if gang else (), gang),)


class Neighbours:
    """Who stands where, of those that some gang's rules select. Nothing is kept while no gang has such rules.

    everybody: all that stand now, as `stands` was told of them; labels_of: a node's labels, {} of one that is gone."""

    def __init__(
        self,
        everybody: Callable[[], Iterable[tuple[Who, tuple[Stand, ...]]]],
        labels_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._everybody = everybody
        self._labels_of = labels_of
        self._asked_by: dict[Rule, set[Key]] = {}
        self._rules_of: dict[Key, tuple[Rule, ...]] = {}
        self._rules_at: dict[Label | None, set[Rule]] = {}
        """By the labels of which a pod has one that they select; None: of any pod."""
        self._standing: dict[Who, tuple[Stand, ...]] = {}
        self._with: dict[Label, set[Who]] = {}
        self._where: dict[Rule, dict[Who, frozenset[str]]] = {}

    @property
    def asking(self) -> set[Key]:
        """Gangs with such rules."""
        return set(self._rules_of)

    def stands(self, who: Who, there: tuple[Stand, ...]) -> set[Key]:
        """Somebody stands there now, or nowhere; the gangs that this concerns."""
        touched: set[Key] = set()
        if not self._where:
            return touched
        before = self._standing.get(who, ())
        if before == there:
            return touched
        self._note(who, there)
        looked_up: set[Label | None] = {None, *(pair for stand in (*before, *there) for pair in stand.labels)}
        for rule in {rule for at in looked_up for rule in self._rules_at.get(at, ())}:
            where, nodes = self._where[rule], _selected(rule, there)
            if nodes != where.get(who, frozenset()):
                where[who] = nodes
                if not nodes:
                    del where[who]
                touched |= self._asked_by[rule]
        return touched

    def _note(self, who: Who, there: tuple[Stand, ...]) -> None:
        for pair in {pair for stand in self._standing.pop(who, ()) for pair in stand.labels}:
            discard(self._with, pair, who)
        for stand in there:
            for pair in stand.labels:
                self._with.setdefault(pair, set()).add(who)
        if there:
            self._standing[who] = there

    def forget(self, gang: Key) -> None:
        """It asks nothing any more."""
        self._ask(gang, ())

    def _ask(self, gang: Key, rules: tuple[Rule, ...]) -> None:
        before = self._rules_of.pop(gang, ())
        if rules and not self._where:
            for who, there in self._everybody():
                self._note(who, there)
        for rule in rules:
            if rule not in self._where:
                found: set[Who] = set()
                for at in _looked_up_by(rule):
                    self._rules_at.setdefault(at, set()).add(rule)
                    found |= self._standing.keys() if at is None else self._with.get(at, set())
                selected = {who: _selected(rule, self._standing[who]) for who in found}
                self._where[rule] = {who: nodes for who, nodes in selected.items() if nodes}
            self._asked_by.setdefault(rule, set()).add(gang)
        for rule in before:
            if rule not in rules:
                discard(self._asked_by, rule, gang)
                if rule not in self._asked_by:
                    self._drop(rule)
        if rules:
            self._rules_of[gang] = rules
        elif not self._where:
            self._standing.clear()
            self._with.clear()

    def _drop(self, rule: Rule) -> None:
        del self._where[rule]
        for at in _looked_up_by(rule):
            discard(self._rules_at, at, rule)

    def laid_on(self, gang: Workload) -> Workload:
        """The gang with what others leave it."""
        rules = tuple(dict.fromkeys(rule for pod_set in gang.pod_sets for rule in _rules(pod_set.shape)))
        self._ask(gang.key, rules)
        if not rules:
            return gang
        pod_sets = []
        for pod_set in gang.pod_sets:
            terms = pod_set.shape.affinity
            for rule in _rules(pod_set.shape):
                for need in self._needs(rule, gang):
                    terms = both(terms, ((need,),))
            pod_sets.append(with_affinity(pod_set, terms))
        same = all(now is was for now, was in zip(pod_sets, gang.pod_sets, strict=True))
        return gang if same else replace(gang, pod_sets=tuple(pod_sets))

    def _needs(self, rule: Rule, gang: Workload) -> Iterable[Requirement]:
        together, asked = rule
        runs = gang.uid if gang.admission is not None else ""

        def is_own(who: Who) -> bool:
            return who == ("gang", *gang.key) or bool(runs and self._standing[who][0].gang == runs)

        nodes = {node for who, there in self._where[rule].items() if not is_own(who) for node in there}
        labels = [said for node in nodes if (said := self._labels_of(node))]  # what stood on a node that is gone is not
        if together and not any(one.key in said for one in asked for said in labels):
            return  # who stands where there is no such domain is not looked at: the first of a gang goes anywhere
        for one in asked if labels else ():
            values = {said[one.key] for said in labels if one.key in said}
            if values or together:
                yield Requirement(one.key, "In" if together else "NotIn", tuple(sorted(values)))


def _rules(shape: PodShape) -> tuple[Rule, ...]:
    return (*((False, (one,)) for one in shape.apart), *([(True, shape.near)] if shape.near else ()))


def _looked_up_by(rule: Rule) -> list[Label | None]:
    """Of these labels each pod that it selects has one. (A selector may name a value twice.)"""
    for need in rule[1][0].selector.requirements:
        if need.operator == "In":
            return [(need.key, value) for value in need.values]
    return [None]


def _selected(rule: Rule, there: Iterable[Stand]) -> frozenset[str]:
    """Nodes of those among them that a rule selects."""
    together, asked = rule
    return frozenset(
        node
        for stand in there
        if (together or asked[0] not in stand.apart) and all(_selects(one, stand) for one in asked)
        for node in stand.nodes
    )


def _selects(one: AntiAffinity, stand: Stand) -> bool:
    return (not one.namespaces or stand.namespace in one.namespaces) and matches(one.selector, dict(stand.labels))
