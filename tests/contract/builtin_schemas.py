"""Makes `admission/sandbox/schemas.json`: what the sandbox knows of the shape of built-in kinds and of JobSet.

The source is the OpenAPI v3 documents that a Kubernetes release publishes and the CRD of JobSet; descriptions are left
out, so what remains is field names, types and list keys.

    python -m tests.contract.builtin_schemas OPENAPI_V3_DIR JOBSET_CRD.yaml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).parents[2] / "admission" / "sandbox" / "schemas.json"
ROOTS = {
    "api__v1": (
        "core.v1.Namespace core.v1.Node core.v1.Pod core.v1.Event core.v1.ConfigMap core.v1.Secret core.v1.ServiceAccount "  # noqa: E501
        "core.v1.LimitRange core.v1.ResourceQuota core.v1.PersistentVolumeClaim core.v1.PersistentVolume"
    ),
    "apis__batch__v1": "batch.v1.Job batch.v1.JobTemplateSpec",
    "apis__scheduling.k8s.io__v1": "scheduling.v1.PriorityClass",
    "apis__node.k8s.io__v1": "node.v1.RuntimeClass",
    "apis__storage.k8s.io__v1": "storage.v1.StorageClass",
    "apis__coordination.k8s.io__v1": "coordination.v1.Lease",
    "apis__events.k8s.io__v1": "events.v1.Event",
    "apis__admissionregistration.k8s.io__v1": (
        "admissionregistration.v1.MutatingWebhookConfiguration admissionregistration.v1.ValidatingWebhookConfiguration"
    ),
    "apis__apiextensions.k8s.io__v1": "apiextensions.v1.CustomResourceDefinition",
    "apis__authorization.k8s.io__v1": "authorization.v1.SelfSubjectAccessReview authorization.v1.SubjectAccessReview",
    "apis__authentication.k8s.io__v1": "authentication.v1.TokenReview",
}
KEEP = {
    "type",
    "properties",
    "items",
    "additionalProperties",
    "required",
    "format",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "minimum",
    "maximum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
}


def short(ref: str) -> str:
    """`#/components/schemas/io.k8s.api.core.v1.Pod` -> `core.v1.Pod`."""
    name = ref.rsplit("/", 1)[-1]
    for prefix in ("io.k8s.apimachinery.pkg.", "io.k8s.apiextensions-apiserver.pkg.apis.", "io.k8s.api.", "io.k8s."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def slim(node: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    if "$ref" in node:
        wanted.append(node["$ref"])
        return {"$ref": short(node["$ref"])}
    if len(node.get("allOf", ())) == 1:
        return {**{k: v for k, v in node.items() if k in KEEP}, **slim(node["allOf"][0], wanted)}
    out = {k: v for k, v in node.items() if k in KEEP}
    if "properties" in out:
        out["properties"] = {k: slim(v, wanted) for k, v in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = slim(node[key], wanted)
    return out


def of_openapi(load: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The shapes of built-in kinds; `load` reads a document by its file name (`apis__batch__v1`)."""
    out: dict[str, Any] = {}
    for document, roots in ROOTS.items():
        schemas = load(document)["components"]["schemas"]
        by_short = {short(name): name for name in schemas}
        wanted = [by_short[root] for root in roots.split()]
        while wanted:
            name = wanted.pop().rsplit("/", 1)[-1]
            if short(name) not in out:
                out[short(name)] = slim(schemas[name], wanted)
    out["api.resource.Quantity"] = {"type": "string", "format": "quantity"}
    out["util.intstr.IntOrString"] = {"x-kubernetes-int-or-string": True}
    out["apiextensions.v1.JSONSchemaProps"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return out


def compact(openapi_dir: Path, jobset_crd: Path) -> dict[str, Any]:
    out = of_openapi(lambda name: json.loads((openapi_dir / f"{name}_openapi.json").read_text()))
    crd = yaml.safe_load(jobset_crd.read_text())
    (version,) = crd["spec"]["versions"]
    schema = slim_crd(version["schema"]["openAPIV3Schema"])
    job = schema["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
    job["template"] = {"$ref": "batch.v1.JobTemplateSpec"}
    schema["properties"]["metadata"] = {"$ref": "apis.meta.v1.ObjectMeta"}
    out["jobset.v1alpha2.JobSet"] = schema
    out["jobset.crd"] = {
        "columns": version.get("additionalPrinterColumns", []),
        "names": crd["spec"]["names"],
        "version": version["name"],
    }
    return dict(sorted(out.items()))


def slim_crd(node: Any) -> Any:
    """Descriptions out; properties whose name is `description` stay."""
    if isinstance(node, list):
        return [slim_crd(x) for x in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "description" and isinstance(value, str):
            continue
        out[key] = {k: slim_crd(v) for k, v in value.items()} if key == "properties" else slim_crd(value)
    return out


if __name__ == "__main__":
    OUT.write_text(
        json.dumps(compact(Path(sys.argv[1]), Path(sys.argv[2])), separators=(",", ":"), sort_keys=True) + "\n"
    )
