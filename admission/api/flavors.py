"""What there is: ResourceFlavor and Topology, and the AdmissionCheck that others answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from admission.api.schema import (
    ATOMIC,
    Conditions,
    LabelKey,
    LabelValue,
    Model,
    ObjectName,
    Resource,
    Rule,
    Taint,
    Text317,
    Toleration,
    opt,
    part,
    req,
)
from admission.names import HOSTNAME_LABEL


def _same_nodes(new: ResourceFlavorSpec, old: ResourceFlavorSpec) -> bool:
    return old.topology_name is None or (new.topology_name, new.node_labels, new.node_taints, new.tolerations) == (
        old.topology_name,
        old.node_labels,
        old.node_taints,
        old.tolerations,
    )


def _kept(field: str) -> str:
    return f"(has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field}))"


class ResourceFlavorSpec(Model):
    rules = (
        Rule(
            "!has(self.topologyName) || has(self.nodeLabels) && size(self.nodeLabels) > 0",
            "topologyName needs nodeLabels that say which nodes the topology is made of",
            holds=lambda s: s.topology_name is None or bool(s.node_labels),
        ),
        Rule(
            "!has(oldSelf.topologyName) || "
            + " && ".join(_kept(field) for field in ("topologyName", "nodeLabels", "nodeTaints", "tolerations")),
            "a flavor with a topology keeps its nodes: create another ResourceFlavor instead of changing this one",
            keeps=_same_nodes,
        ),
        Rule(
            "!(has(self.elastic) && self.elastic && has(self.topologyName))",
            "an elastic flavor counts on nodes that do not exist yet, and a topology places on nodes that do: "
            "drop one of the two",
            holds=lambda s: not (s.elastic and s.topology_name is not None),
        ),
    )
    node_labels: (
        Annotated[dict[str, LabelValue], Field(max_length=8, json_schema_extra={"x-kubernetes-map-type": "atomic"})]
        | None
    ) = opt("Labels that nodes of this flavor have; pods that get the flavor select them.")
    node_taints: Annotated[list[Taint], Field(max_length=8, json_schema_extra=ATOMIC)] | None = opt(
        "Taints that nodes of this flavor have; only pods that tolerate them get the flavor."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=8, json_schema_extra=ATOMIC)] | None = opt(
        "Tolerations that pods get with the flavor."
    )
    topology_name: Annotated[ObjectName, Field(min_length=1)] | None = opt("The Topology of its nodes.")
    elastic: bool = Field(
        default=False,
        description="Nodes of this flavor may not exist yet: quota alone decides, and an autoscaler brings the nodes. "
        "(Of pods that have their devices from another flavor, nodes of that one are chosen.)",
    )
    placement: Literal["Pack", "Spread"] | None = opt(
        "Pack fills nodes so that whole ones stay free for large gangs; Spread uses the emptiest. Left out: Pack. "
        "With the preset muster alone."
    )


class ResourceFlavor(Resource):
    """A kind of node: by labels, taints and topology."""

    spec: ResourceFlavorSpec = part("What is wanted.", ResourceFlavorSpec)


class TopologyLevel(Model):
    node_label: LabelKey = req("Label whose value names the domain of a node.")


class TopologySpec(Model):
    rules = (
        Rule(
            "self.levels.all(a, self.levels.exists_one(b, b.nodeLabel == a.nodeLabel))",
            "a nodeLabel stands twice: each level needs its own label",
            holds=lambda s: len({level.node_label for level in s.levels}) == len(s.levels),
        ),
        Rule(
            f"!self.levels.exists(l, l.nodeLabel == '{HOSTNAME_LABEL}') || "
            f"self.levels[size(self.levels) - 1].nodeLabel == '{HOSTNAME_LABEL}'",
            f"{HOSTNAME_LABEL} names single nodes, so it can only be the last level",
            holds=lambda s: all(level.node_label != HOSTNAME_LABEL for level in s.levels[:-1]),
        ),
        Rule(
            "self.levels == oldSelf.levels || "
            f"self.levels[size(self.levels) - 1].nodeLabel == '{HOSTNAME_LABEL}' && "
            f"oldSelf.levels[size(oldSelf.levels) - 1].nodeLabel == '{HOSTNAME_LABEL}'",
            f"levels can change only while {HOSTNAME_LABEL} is the last one before and after: "
            "create another Topology instead",
            keeps=lambda new, old: (
                new.levels == old.levels or new.levels[-1].node_label == old.levels[-1].node_label == HOSTNAME_LABEL
            ),
        ),
    )
    levels: Annotated[list[TopologyLevel], Field(min_length=1, max_length=16, json_schema_extra=ATOMIC)] = req(
        "From the widest to the narrowest: block, rack, host."
    )


class Topology(Resource):
    """How nodes lie to each other."""

    spec: TopologySpec = req("What is wanted.")


class CheckParameters(Model):
    api_group: Annotated[ObjectName, Field(min_length=1)] = req("API group of the object.")
    kind: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")] = req(
        "Its kind."
    )
    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = req(
        "Its name."
    )


class AdmissionCheckSpec(Model):
    rules = (
        Rule(
            "self.controllerName == oldSelf.controllerName",
            "controllerName cannot change: create another AdmissionCheck",
            keeps=lambda new, old: new.controller_name == old.controller_name,
        ),
    )
    controller_name: Annotated[Text317, Field(min_length=1)] = req("Who answers this check.")
    parameters: CheckParameters | None = opt("An object with its settings.")


class AdmissionCheckStatus(Model):
    conditions: Conditions | None = opt("Active: whether somebody answers.")


class AdmissionCheck(Resource):
    """A question that another controller answers before a workload may start."""

    spec: AdmissionCheckSpec = req("What is wanted.")
    status: AdmissionCheckStatus | None = opt("What is.")
