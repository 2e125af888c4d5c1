"""What in the chart follows from the code: kinds, rights, policies, and the schema of its values.

    python -m charts.generate            write it
    python -m charts.generate --check    exit 1 if a file is not what the code says

The files under `charts/muster/files` are read by the templates, one folder for each API group. They are JSON where a
template puts something in, for a marker (`@NAMESPACE@`, `'@JOB_CONTROLLERS@'`) can be replaced in JSON text without a
thought for quotes. A rule of a role that is needed in one mode of holding only says so by the key `when`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from admission.api import config, crd
from admission.api.kinds import KINDS
from admission.api.structural import schema_of
from admission.controller import policies
from admission.controller.installation import Settings
from admission.controller.roles import roles_by_mode
from admission.jobs.hold import Identities
from admission.jobs.requests import Limits
from admission.names import KUEUE_GROUP, MUSTER_GROUP, Names
from admission.web.metrics import FAMILIES
from charts import monitoring

Object = dict[str, Any]

CHART = Path(__file__).parent / "muster"
GROUPS = (MUSTER_GROUP, KUEUE_GROUP)

NAMESPACE = "@NAMESPACE@"
JOB_CONTROLLERS = "@JOB_CONTROLLERS@"
JOBSET_CONTROLLERS = "@JOBSET_CONTROLLERS@"
GRACE, CHILD_JOBS = 987_654_321, 987_654_322
"""Stand for numbers, which CEL takes no text for."""
GOVERNED = {"matchLabels": {"@GOVERNED@": ""}}

SETTINGS = Settings(
    identities=Identities((JOB_CONTROLLERS,), (JOBSET_CONTROLLERS,)),
    limits=Limits(grace_s=GRACE, child_jobs=CHILD_JOBS),
    governed_namespaces=GOVERNED,
    defaulted_namespaces=GOVERNED,
    namespace=NAMESPACE,
    labels={},
)

LONGEST_WAIT_S = max(int(f.buckets[-1]) for f in FAMILIES if f.name == "muster_admission_wait_seconds")
"""The end of the last bucket that has one."""

DERIVED = {
    "": {"apiVersion", "kind", "apiGroup", "hold", "jobControllerUsers", "jobsetControllerUsers", "requiredPolicies"},
    # A rollout runs two replicas for a moment, however few are asked for: they always elect.
    "leaderElection": {"leaderElect", "resourceName", "resourceNamespace"},
    "webhook": {"host", "certificate", "certDir"},
}
"""Keys of the configuration file that the chart writes itself."""


# ---------------------------------------------------------------- values.schema.json

_DURATION = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$"
_TEXT: Object = {"type": "string"}
_BOOL: Object = {"type": "boolean"}
_FREE: Object = {"type": "object"}
_NAME: Object = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_USERS: Object = {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[A-Za-z0-9:@._/-]+$"}}
_FOUND_BY = ("name", "component")
OF_PARENTS = ("global", "enabled")
"""What a chart that this one is a part of gives it beside its values."""
_LABELS: Object = {"type": "object", "additionalProperties": _TEXT}
_AMOUNT: Object = {
    "type": ["string", "number"],
    "minimum": 0,
    "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$",
}
_PROMETHEUS_DURATION: Object = {
    "type": "string",
    "minLength": 1,
    "pattern": "^(0|([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$",
}
_RESOURCES: Object = {
    "type": "object",
    "propertyNames": {"enum": ["requests", "limits", "claims"]},
    "additionalProperties": {"type": ["object", "array"], "additionalProperties": _AMOUNT},
}
_AFFINITY: Object = {
    "type": "object",
    "propertyNames": {"enum": ["nodeAffinity", "podAffinity", "podAntiAffinity"]},
    "additionalProperties": _FREE,
}
_SELECTOR: Object = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"matchLabels": _LABELS, "matchExpressions": {"type": "array", "items": _FREE}},
}


class _Schema(GenerateJsonSchema):
    """Durations and addresses are text in the file, whatever they are in the program."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        function: Any = schema["function"]["function"]
        if function is config._duration:
            return {"anyOf": [{"type": "string", "pattern": _DURATION}, {"const": 0}]}
        if function is config._address:
            return {"type": "string", "pattern": "^(0|.*:[0-9]{1,5})$"}
        return super().function_before_schema(schema)


def _configuration() -> Object:
    """JSON schema of the configuration file, without what the chart writes itself."""
    whole = config.Configuration.model_json_schema(by_alias=True, schema_generator=_Schema)
    defs = whole.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline({**defs[node["$ref"].rpartition("/")[2]], **{k: v for k, v in node.items() if k != "$ref"}})
        kept: Object = {}
        for key, value in node.items():
            if key in ("title", "default") or key.startswith("x-kubernetes-"):
                continue
            if key == "properties":
                kept[key] = {name: inline(inner) for name, inner in value.items()}
            elif key in ("gt", "ge", "lt", "le"):
                continue  # of a duration, which is text here
            else:
                kept[key] = inline(value)
        if "gt" in node and "anyOf" in kept:  # a duration above 0
            kept |= {**kept.pop("anyOf")[0], "allOf": [{"pattern": "[1-9]"}]}
        if kept.get("type") == "object" and "properties" in kept:
            kept["additionalProperties"] = False
        return kept

    made: Object = inline(whole)
    for section, keys in DERIVED.items():
        properties = made["properties"] if not section else made["properties"][section]["properties"]
        for key in keys:
            del properties[key]
    metrics = made["properties"]["metrics"]["properties"]["localQueueMetrics"]["properties"]
    for selector in made["properties"]["namespaceSelector"], metrics["localQueueSelector"]:
        selected = selector["properties"]["matchLabels"]["anyOf"][0]
        selected["propertyNames"] = {"pattern": _LABEL_KEY, "maxLength": 317}
    # The kubelet asks at the pod's address.
    made["properties"]["health"]["properties"]["bindAddress"]["not"] = {"pattern": r"^(127\.|localhost:|\[::1\]:)"}
    made["description"] = "Keys of the configuration file, beside those that the chart writes itself."
    return made


def _object(required: tuple[str, ...] = (), /, **properties: Any) -> Object:
    made: Object = {"type": "object", "additionalProperties": False, "properties": properties}
    return made | {"required": list(required)} if required else made


def _map(of: Object) -> Object:
    return {"type": "object", "propertyNames": {"pattern": _NAME["pattern"]}, "additionalProperties": of}


def _choice(*values: Any) -> Object:
    return {"enum": list(values)}


def _spec(plural: str) -> Object:
    """The spec of one of our kinds: the fields that there are. Helm only warns of others, and the API server drops
    them. What they may hold is judged there."""
    (kind,) = [kind for kind in KINDS if kind.plural == plural]
    fields = schema_of(kind.model, Names())["properties"]["spec"]["properties"]
    return {"type": "object", "additionalProperties": False, "properties": {name: {} for name in fields}}


def values_schema() -> Object:
    """values.schema.json: every value has a type, and one that does not exist is refused."""
    amount = {"anyOf": [_AMOUNT, _object(("nominal",), nominal=_AMOUNT, borrow=_AMOUNT, lend=_AMOUNT)]}
    resources = {"type": "object", "minProperties": 1, "additionalProperties": amount}
    quota = {"type": "array", "items": _object(("flavor", "resources"), flavor=_NAME, resources=resources)}
    share: Object = {"weight": _AMOUNT, "quota": quota}
    metadata: Object = {"labels": _LABELS, "annotations": _LABELS}
    monitor: Object = {"labels": _LABELS}
    whole = _object(
        (),
        **{"global": _FREE},  # a keyword of Python; Helm gives it to every chart
        # The condition of a chart that has this one as a part: where it is false, nothing is asked here.
        enabled={"const": True},
        apiGroup=_choice(*GROUPS),
        hold=_choice("auto", "policy", "webhook"),
        image=_object(
            (),
            repository={**_TEXT, "minLength": 1},
            tag=_TEXT,
            digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            pullPolicy=_choice("Always", "IfNotPresent", "Never"),
        ),
        imagePullSecrets={"type": "array", "items": _object(("name",), name=_NAME)},
        crds=_object((), install=_BOOL),
        config=_configuration(),
        webhook=_object(
            (),
            certificate=_choice("controller", "cert-manager"),
            issuerRef={
                **_object((), name=_NAME, kind=_TEXT, group=_TEXT),
                "dependencies": {"kind": ["name"], "group": ["name"]},
            },
        ),
        identities=_object((), jobControllers=_USERS, jobsetControllers=_USERS),
        restrictPriorities={"type": "array", "items": _NAME},
        refuseBarePods={"type": "array", "items": {"type": "string", "pattern": _LABEL_KEY}},
        replicas={"type": "integer", "minimum": 1, "maximum": 10},
        resources=_RESOURCES,
        priorityClassName=_TEXT,
        gangPriorityClass=_object((), create=_BOOL),
        # By these two the Deployment and the Services find the pods.
        podLabels={**_LABELS, "propertyNames": {"not": _choice(*(f"app.kubernetes.io/{key}" for key in _FOUND_BY))}},
        # By that one pods are made anew.
        podAnnotations={**_LABELS, "propertyNames": {"not": {"const": "checksum/config"}}},
        nodeSelector=_LABELS,
        tolerations={
            "type": "array",
            "items": _object(
                (),
                key=_TEXT,
                operator=_choice("Exists", "Equal", "Lt", "Gt"),
                value=_TEXT,
                effect=_choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
                tolerationSeconds={"type": "integer"},
            ),
        },
        affinity=_AFFINITY,
        topologySpreadConstraints={
            "type": "array",
            "items": _object(
                ("maxSkew", "topologyKey", "whenUnsatisfiable"),
                maxSkew={"type": "integer", "minimum": 1},
                topologyKey=_TEXT,
                whenUnsatisfiable=_choice("DoNotSchedule", "ScheduleAnyway"),
                labelSelector=_SELECTOR,
                matchLabelKeys={"type": "array", "items": _TEXT},
                minDomains={"type": "integer", "minimum": 1},
                nodeAffinityPolicy=_choice("Honor", "Ignore"),
                nodeTaintsPolicy=_choice("Honor", "Ignore"),
            ),
        },
        extraArgs={"type": "array", "items": _TEXT},
        extraEnv={
            "type": "array",
            "items": _object(
                ("name",),
                name={"type": "string", "minLength": 1, "not": {"const": "POD_NAMESPACE"}},
                value=_TEXT,
                valueFrom=_FREE,
            ),
        },
        serviceAccount=_object((), annotations=_LABELS),
        rbac=_object((), aggregate=_BOOL, showLeader=_BOOL, queueAdmins={"type": "array", "items": _TEXT}),
        networkPolicy=_object(
            (),
            enabled=_BOOL,
            apiServerPorts={
                "type": "array",
                "minItems": 1,
                "items": {"type": "integer", "minimum": 1, "maximum": 65535},
            },
            metricsFrom={"type": "array", "items": _FREE},
            webhookFrom={"type": "array", "items": _FREE},
            webFrom={"type": "array", "items": _FREE},
        ),
        visibility=_object((), enabled=_BOOL),
        metrics=_object(
            (),
            serviceMonitor=_object((), enabled=_choice("auto", True, False), interval=_PROMETHEUS_DURATION, **monitor),
            dashboards=_object((), enabled=_BOOL, annotations=_LABELS, **monitor),
            rules=_object(
                (),
                enabled=_choice("auto", True, False),
                # No quantile is above the last bucket with an end: an alert on more would never come.
                longWaitSeconds={"type": "integer", "minimum": 1, "maximum": LONGEST_WAIT_S - 1},
                **monitor,
            ),
        ),
        quota=_object(
            (),
            enabled=_BOOL,
            only=_BOOL,
            flavors=_map(_spec("resourceflavors")),
            topologies=_map({"type": "array", "minItems": 1, "maxItems": 16, "items": _TEXT}),
            priorities=_map({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
            cohorts=_map(_object((), parent=_NAME, spec=_spec("cohorts"), **share)),
            queues=_map(_object((), cohort=_NAME, namespaceSelector=_SELECTOR, spec=_spec("clusterqueues"), **share)),
            teams=_map(
                _object(
                    (),
                    namespaces={"type": "array", "minItems": 1, "items": _NAME},
                    createNamespaces=_BOOL,
                    namespace=_object((), **metadata),
                    queue=_NAME,
                    priorities={"type": "array", "minItems": 1, "items": _NAME},
                    localQueues={"type": "array", "minItems": 1, "items": _NAME},
                    cohort=_NAME,
                    spec=_spec("clusterqueues"),
                    **share,
                )
            ),
        ),
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart muster", **whole}


def switches(schema: Object, path: str = "") -> Iterator[str]:
    """Values that templates look at as they are: switches, choices, numbers, lists that must not be empty. Where `helm
    upgrade --reuse-values` puts an older chart's defaults in place of these, a new one is not there, nor is one that
    null takes away: it would count as off, or as nobody, or fail to render."""
    for key, inner in schema["properties"].items():
        at = f"{path}{key}"
        if at in (*OF_PARENTS, "config"):
            continue
        if "properties" in inner:
            yield from switches(inner, f"{at}.")
        elif "enum" in inner or inner["type"] in ("boolean", "integer") or "minItems" in inner:
            yield at


# ---------------------------------------------------------------- files


def files() -> Iterator[tuple[str, str]]:
    """(path in the chart, text) of everything that is generated."""
    for group in GROUPS:
        names, folder = Names(group), f"files/{group}"
        for name, text in crd.files(names).items():
            yield f"{folder}/crds/{name}", text
        for part, made in (
            ("policies", policies.policies(names, SETTINGS)),
            ("roles", roles_by_mode(names, SETTINGS)),
            ("priority", [policies.priority_class(names, SETTINGS)]),
        ):
            yield f"{folder}/{part}.json", json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    yield "files/namespaces.json", json.dumps(list(config.NEVER_GOVERNED), indent=1) + "\n"
    yield "files/beside_webhook.json", json.dumps(list(policies.BESIDE_WEBHOOK), indent=1) + "\n"
    yield "files/switches.json", json.dumps(list(switches(values_schema())), indent=1) + "\n"
    yield "files/rules.json", json.dumps(monitoring.rules(), indent=1, ensure_ascii=False) + "\n"
    for board in monitoring.DASHBOARDS:
        text = json.dumps(monitoring.grafana(board), indent=1, ensure_ascii=False)
        yield f"files/dashboards/{board.name}.json", text + "\n"
    yield "values.schema.json", json.dumps(values_schema(), indent=1, ensure_ascii=False) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the files, or compare them. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m charts.generate", description="Generate parts of the chart.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args(argv).check
    wanted = {CHART / path: text for path, text in files()}
    there = {path for path in (CHART / "files").rglob("*") if path.is_file()}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in [*stale, *sorted(there - set(wanted))]:
        if check:
            sys.stderr.write(f"{path} is not what the code says: run python -m charts.generate\n")
        elif path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], "utf-8")
        else:
            path.unlink()
    return 1 if check and (stale or there - set(wanted)) else 0


if __name__ == "__main__":
    sys.exit(main())
