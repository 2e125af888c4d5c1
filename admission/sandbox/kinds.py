"""The kinds that the sandbox serves, and what their strategies do in the real API server.

For each built-in kind: what is filled in on create, what an update may not change, and what an object must look like.
Only what the objects of the examples and the controllers here meet is written down; what a kind does not check, the real
server may still refuse. `from_definition` makes kinds of a CustomResourceDefinition; JobSet is one that is always there.
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from admission.names import JOBSET_GROUP
from admission.quantity import QuantityError, parse
from admission.sandbox.shapes import ANY, Object, Shape, builtin, copy
from admission.sandbox.store import Cause, Event, Kind, Store, check_marks, forbidden, stamp

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _shape(name: str) -> Shape:
    return Shape({"$ref": name})


# Pods and their templates


def _default_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        if container.get("image"):
            tag = container["image"].rsplit("/", 1)[-1].partition(":")[2]
            container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")


def _default_pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    _default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
        resources = container["resources"]
        for name, amount in resources.get("limits", {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)


def _prepare_pod(store: Store, new: Object, old: Object | None, now: int) -> None:
    if old is not None:
        return
    spec = new["spec"]
    new["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    if spec.get("schedulingGates"):
        new["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": stamp(now),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    _prepare_priority(store, new, spec)
    tolerations = spec.setdefault("tolerations", [])
    for key in _DEFAULT_TOLERATIONS:
        if not any(t.get("key") in (key, None) and t.get("effect") in ("NoExecute", None) for t in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    if spec.get("runtimeClassName"):
        found = store.find("node.k8s.io", "runtimeclasses", "", spec["runtimeClassName"])
        if found is None:
            text = f'pod rejected: RuntimeClass "{spec["runtimeClassName"]}" not found'
            raise forbidden(POD, new["metadata"].get("name", ""), text)
        overhead = (found.get("overhead") or {}).get("podFixed")
        if overhead:
            spec["overhead"] = dict(overhead)
        scheduling = found.get("scheduling") or {}
        if scheduling.get("nodeSelector"):
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **scheduling["nodeSelector"]}
        spec["tolerations"] = tolerations + [t for t in scheduling.get("tolerations", []) if t not in tolerations]
    _apply_limit_ranges(store, new)


def _prepare_priority(store: Store, new: Object, spec: Object) -> None:
    name = spec.get("priorityClassName")
    found: Object | None = None
    if name:
        found = store.find("scheduling.k8s.io", "priorityclasses", "", name)
        if found is None:
            text = f"no PriorityClass with name {name} was found"
            raise forbidden(POD, new["metadata"].get("name", ""), text)
    else:
        usual = [x for x in store.objects("scheduling.k8s.io", "priorityclasses") if x.get("globalDefault")]
        found = min(usual, key=lambda x: int(x.get("value", 0)), default=None)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    value = int(found.get("value", 0)) if found else 0
    if spec.get("priority") not in (None, value):
        text = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"  # noqa: E501
        raise forbidden(POD, new["metadata"].get("name", ""), text)
    spec["priority"] = value
    policy = (found or {}).get("preemptionPolicy", "PreemptLowerPriority")
    if spec.get("preemptionPolicy") not in (None, policy):
        text = f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"  # noqa: E501
        raise forbidden(POD, new["metadata"].get("name", ""), text)
    spec["preemptionPolicy"] = policy


def _apply_limit_ranges(store: Store, pod: Object) -> None:
    """Default requests and limits of containers; the bounds of a LimitRange are not enforced."""
    for limit_range in store.objects("", "limitranges", pod["metadata"].get("namespace", "")):
        for limit in limit_range.get("spec", {}).get("limits", []):
            if limit.get("type") != "Container":
                continue
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"].get("containers", [])]:
                resources = container["resources"]
                for name, amount in limit.get("default", {}).items():
                    resources.setdefault("limits", {}).setdefault(name, amount)
                for name, amount in limit.get("defaultRequest", {}).items():
                    resources.setdefault("requests", {}).setdefault(name, amount)


def _qos(spec: Object) -> str:
    found = [c.get("resources", {}) for c in [*spec.get("initContainers", []), *spec.get("containers", [])]]
    if not any(r.get("requests") or r.get("limits") for r in found):
        return "BestEffort"
    whole = all(
        r.get("limits", {}).get(n) is not None and r["limits"][n] == r.get("requests", {}).get(n, r["limits"][n])
        for r in found
        for n in ("cpu", "memory")
    )
    return "Guaranteed" if whole else "Burstable"


def _check_pod_spec(spec: Object, at: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield f"{at}.containers", "FieldValueRequired", "Required value"
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group, [])):
            where = f"{at}.{group}[{index}]"
            if not container.get("name"):
                yield f"{where}.name", "FieldValueRequired", "Required value"
            elif container["name"] in names:
                yield f"{where}.name", "FieldValueDuplicate", f"Duplicate value: {json.dumps(container['name'])}"
            names.add(container.get("name", ""))
            if not container.get("image"):
                yield f"{where}.image", "FieldValueRequired", "Required value"
            yield from _check_resources(container.get("resources", {}), f"{where}.resources")
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        shown = json.dumps(spec.get("restartPolicy"))
        text = f'Unsupported value: {shown}: supported values: "Always", "OnFailure", "Never"'
        yield f"{at}.restartPolicy", "FieldValueNotSupported", text
    for index, toleration in enumerate(spec.get("tolerations", [])):
        if not toleration.get("key") and toleration.get("operator") != "Exists":
            text = f'Invalid value: {json.dumps(toleration.get("operator", ""))}: operator must be Exists when `key` is empty, which means "match all values and all keys"'  # noqa: E501
            yield f"{at}.tolerations[{index}].operator", "FieldValueInvalid", text


def _check_resources(resources: Object, at: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            amount = _amount(name, text)
            if amount < 0:
                yield (
                    f"{at}.{part}[{name}]",
                    "FieldValueInvalid",
                    f'Invalid value: "{text}": must be greater than or equal to 0',
                )
    for name, text in requests.items():
        limit = limits.get(name)
        extended = "/" in name
        if limit is None:
            if extended:
                yield (
                    f"{at}.limits",
                    "FieldValueRequired",
                    "Required value: Limit must be set for non overcommitable resources",
                )
            continue
        if extended and _amount(name, text) != _amount(name, limit):
            yield (
                f"{at}.requests",
                "FieldValueInvalid",
                f'Invalid value: "{text}": must be equal to {name} limit of {limit}',
            )
        elif _amount(name, text) > _amount(name, limit):
            yield (
                f"{at}.requests",
                "FieldValueInvalid",
                f'Invalid value: "{text}": must be less than or equal to {name} limit of {limit}',
            )


def _amount(name: str, text: Any) -> int:
    try:
        return parse(name, text)
    except QuantityError:
        return 0


_POD_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _check_pod(new: Object, old: Object | None, subresource: str) -> Iterator[Cause]:
    if subresource in ("status", "binding"):
        return
    yield from _check_pod_spec(new["spec"], "spec")
    if old is None:
        return
    spec, was = copy(new["spec"]), copy(old["spec"])
    before = [g["name"] for g in was.get("schedulingGates", [])]
    added = sorted({g["name"] for g in spec.get("schedulingGates", [])} - set(before))
    if added:
        yield (
            "spec.schedulingGates",
            "FieldValueForbidden",
            f"Forbidden: only deletion is allowed, but found new scheduling gate '{added[0]}'",
        )
    if before and not was.get("nodeName"):
        kept, now_selected = was.get("nodeSelector", {}), spec.get("nodeSelector", {})
        if any(now_selected.get(k) != v for k, v in kept.items()):
            text = "Invalid value: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            yield "spec.nodeSelector", "FieldValueInvalid", text
        was["nodeSelector"] = spec.get("nodeSelector")
        yield from _check_affinity_of_gated(spec, was)
        for doc in (spec, was):
            doc.pop("affinity", None)
    was_tolerated = was.get("tolerations", [])
    if all(t in spec.get("tolerations", []) for t in was_tolerated):
        was["tolerations"] = spec.get("tolerations")
    for doc in (spec, was):
        doc.pop("schedulingGates", None)
        doc.pop("activeDeadlineSeconds", None)
        for container in [*doc.get("initContainers", []), *doc.get("containers", [])]:
            container.pop("image", None)
    if _clean(spec) != _clean(was):
        yield "spec", "FieldValueForbidden", f"Forbidden: {_POD_FIXED}"


def _check_affinity_of_gated(spec: Object, was: Object) -> Iterator[Cause]:
    def terms(doc: Object) -> list[Object] | None:
        required = (
            (doc.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        )
        return None if required is None else required.get("nodeSelectorTerms", [])

    before, after = terms(was), terms(spec)
    if before is None:
        return
    ok = after is not None and len(after) == len(before)
    for a, b in zip(after or [], before, strict=False):
        for part in ("matchExpressions", "matchFields"):
            ok = ok and all(x in a.get(part, []) for x in b.get(part, []))
    if not ok:
        where = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        text = "Invalid value: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        yield where, "FieldValueInvalid", text


def _clean(doc: Any) -> Any:
    """Without what is empty, which Go cannot tell from what is absent."""
    if isinstance(doc, dict):
        return {k: c for k, v in doc.items() if (c := _clean(v)) not in (None, {}, [], "")}
    if isinstance(doc, list):
        return [_clean(x) for x in doc]
    return doc


# Jobs


def _default_job(job: Object) -> None:
    spec = job.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    labels = template["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        # One map for both, so that what the server adds to the template shows here as well.
        job["metadata"]["labels"] = labels
    _default_pod_spec(template.setdefault("spec", {}))


def _prepare_job(_store: Store, new: Object, old: Object | None, _now: int) -> None:
    if old is not None:
        return
    spec, meta = new["spec"], new["metadata"]
    new["status"] = {}
    if spec["manualSelector"]:
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for key, value in (
        ("job-name", meta.get("name", "")),
        (JOB_NAME, meta.get("name", "")),
        ("controller-uid", meta["uid"]),
        (CONTROLLER_UID, meta["uid"]),
    ):
        labels.setdefault(key, value)
    selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selector.setdefault(CONTROLLER_UID, meta["uid"])


def _immutable(at: str, value: Any) -> Cause:
    return at, "FieldValueInvalid", f"Invalid value: {json.dumps(value)}: field is immutable"


def _check_job(new: Object, old: Object | None, subresource: str) -> Iterator[Cause]:
    if subresource == "status":
        assert old is not None
        yield from _check_job_status(new, old)
        return
    yield from check_job_spec(new["spec"], "spec")
    spec, labels = new["spec"], new["spec"]["template"]["metadata"].get("labels", {})
    if old is None:
        if not spec["manualSelector"]:
            wanted = {CONTROLLER_UID: new["metadata"]["uid"], "controller-uid": new["metadata"]["uid"]}
            wanted |= {JOB_NAME: new["metadata"].get("name", ""), "job-name": new["metadata"].get("name", "")}
            for key, value in wanted.items():
                if labels.get(key) != value:
                    text = f"Invalid value: {json.dumps(labels)}: must be '{value}'"
                    yield "spec.template.metadata.labels", "FieldValueInvalid", text
        elif not spec.get("selector"):
            yield "spec.selector", "FieldValueRequired", "Required value"
        return
    was = old["spec"]
    if spec["completionMode"] != "Indexed" or was["completionMode"] != "Indexed":
        if spec.get("completions") != was.get("completions"):
            yield _immutable("spec.completions", spec.get("completions"))
    elif spec.get("completions") != was.get("completions") and spec.get("completions") != spec["parallelism"]:
        text = f"Invalid value: {spec.get('completions')}: can only be modified in tandem with spec.parallelism"
        yield "spec.completions", "FieldValueInvalid", text
    for name in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ):
        if _clean(spec.get(name)) != _clean(was.get(name)):
            yield _immutable(f"spec.{name}", spec.get(name))
    yield from _check_template_update(spec, was, old)


def template_is_open(job: Object) -> bool:
    """Whether scheduling directives and resources of a Job's template may change now: suspended, and the Job controller
    has seen that it is (1.36: MutableSchedulingDirectivesForSuspendedJobs)."""
    status = job.get("status", {})
    suspended = bool(job["spec"].get("suspend"))
    seen = any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions", []))
    return suspended and (not status.get("startTime") or seen) and not status.get("active")


def _check_template_update(spec: Object, was: Object, old: Object) -> Iterator[Cause]:
    new_template, old_template = copy(spec["template"]), copy(was["template"])
    if template_is_open(old):
        for doc in (new_template, old_template):
            for name in ("labels", "annotations"):
                doc.get("metadata", {}).pop(name, None)
            for name in ("nodeSelector", "tolerations", "schedulingGates"):
                doc["spec"].pop(name, None)
            affinity = doc["spec"].get("affinity")
            if affinity:
                affinity.pop("nodeAffinity", None)
            for container in [*doc["spec"].get("initContainers", []), *doc["spec"].get("containers", [])]:
                container.pop("resources", None)
    if _clean(new_template) != _clean(old_template):
        yield _immutable("spec.template", spec["template"])


def check_job_spec(spec: Object, at: str) -> Iterator[Cause]:
    for name in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        if spec.get(name) is not None and spec[name] < 0:
            yield (
                f"{at}.{name}",
                "FieldValueInvalid",
                f"Invalid value: {spec[name]}: must be greater than or equal to 0",
            )
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        text = f'Unsupported value: "{mode}": supported values: "Indexed", "NonIndexed"'
        yield f"{at}.completionMode", "FieldValueNotSupported", text
    if mode == "Indexed":
        if spec.get("completions") is None:
            yield f"{at}.completions", "FieldValueRequired", "Required value: when completion mode is Indexed"
        if spec["parallelism"] > 100_000:
            text = f"Invalid value: {spec['parallelism']}: must be less than or equal to 100000 when completion mode is Indexed"  # noqa: E501
            yield f"{at}.parallelism", "FieldValueInvalid", text
    elif spec.get("backoffLimitPerIndex") is not None:
        text = f"Invalid value: {spec['backoffLimitPerIndex']}: requires indexed completion mode"
        yield f"{at}.backoffLimitPerIndex", "FieldValueInvalid", text
    pod = spec["template"]["spec"]
    yield from check_marks(spec["template"].get("metadata", {}), f"{at}.template")
    yield from _check_pod_spec(pod, f"{at}.template.spec")
    if pod.get("restartPolicy") == "Always":
        text = 'Required value: valid values: "OnFailure", "Never"'
        yield f"{at}.template.spec.restartPolicy", "FieldValueRequired", text


def _check_job_status(new: Object, old: Object) -> Iterator[Cause]:
    status, was = new.get("status", {}), old.get("status", {})

    def true(doc: Object, kind: str) -> bool:
        return any(c["type"] == kind and c["status"] == "True" for c in doc.get("conditions", []))

    resuming = true(was, "Suspended") and any(
        c["type"] == "Suspended" and c["status"] == "False" for c in status.get("conditions", [])
    )
    if (
        status.get("startTime") != was.get("startTime")
        and was.get("startTime")
        and not (resuming or new["spec"].get("suspend"))
    ):
        text = "Required value: startTime cannot be removed for unsuspended job"
        if status.get("startTime"):
            text = f'Invalid value: "{status["startTime"]}": startTime cannot be modified for unsuspended job'
        yield "status.startTime", "FieldValueRequired", text
    for kind in ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"):
        if true(was, kind) and not true(status, kind):
            yield (
                "status.conditions",
                "FieldValueInvalid",
                f"Invalid value: cannot disable the terminal {kind}=True condition",
            )
    if (status.get("ready") or 0) > (status.get("active") or 0):
        text = f"Invalid value: {status['ready']}: cannot set more ready pods than active"
        yield "status.ready", "FieldValueInvalid", text


# JobSets


def _default_jobset(jobset: Object) -> None:
    """What JobSet's mutating webhook sets."""
    spec = jobset.setdefault("spec", {})
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    for replicated in spec.get("replicatedJobs", []):
        replicated.setdefault("groupName", "default")
        replicated.setdefault("replicas", 1)
        template = replicated.get("template")
        if isinstance(template, dict):
            template.setdefault("metadata", {})
            job = template.setdefault("spec", {})
            job.setdefault("completionMode", "Indexed")
            pod = job.setdefault("template", {})
            pod.setdefault("metadata", {})
            pod.setdefault("spec", {}).setdefault("restartPolicy", "OnFailure")
    if spec.get("failurePolicy"):
        spec["failurePolicy"].setdefault("restartStrategy", "Recreate")
        for index, rule in enumerate(spec["failurePolicy"].get("rules", [])):
            rule.setdefault("name", f"failurePolicyRule{index}")


def _check_jobset(new: Object, old: Object | None, subresource: str) -> Iterator[Cause]:
    if subresource == "status":
        return
    spec = new["spec"]
    names: set[str] = set()
    for index, replicated in enumerate(spec.get("replicatedJobs", [])):
        where = f"spec.replicatedJobs[{index}]"
        if replicated["name"] in names:
            yield where, "FieldValueDuplicate", f"Duplicate value: {json.dumps({'name': replicated['name']})}"
        names.add(replicated["name"])
        job = copy(replicated["template"].get("spec", {}))
        _default_job({"metadata": {}, "spec": job})
        if not job["template"]["spec"].get("containers"):
            yield f"{where}.template.spec.template.spec.containers", "FieldValueRequired", "Required value"
        longest = f"{new['metadata'].get('name', '')}-{replicated['name']}-{max(replicated['replicas'] - 1, 0)}"
        if len(longest) > 63:
            yield where, "FieldValueInvalid", f'Invalid value: "{longest}": must be no more than 63 characters'
    if old is None:
        return
    was = old["spec"]
    if spec.get("suspend") or was.get("suspend"):
        spec, was = copy(spec), copy(was)
        for doc in (spec, was):
            for replicated in doc.get("replicatedJobs", []):
                pod = replicated["template"]["spec"].get("template", {})
                for name in ("labels", "annotations"):
                    pod.get("metadata", {}).pop(name, None)
                for name in ("nodeSelector", "tolerations", "schedulingGates"):
                    pod.get("spec", {}).pop(name, None)
    if _clean(spec.get("replicatedJobs")) != _clean(was.get("replicatedJobs")):
        yield _immutable("spec.replicatedJobs", new["spec"].get("replicatedJobs"))
    if spec.get("managedBy") != was.get("managedBy"):
        yield _immutable("spec.managedBy", spec.get("managedBy"))
    for name in ("network", "startupPolicy", "successPolicy", "failurePolicy"):
        # Transition rules: they say nothing of what comes or goes.
        if spec.get(name) and was.get(name) and _clean(spec[name]) != _clean(was[name]):
            yield f"spec.{name}", "FieldValueInvalid", "Invalid value: Value is immutable"


# The rest


def _prepare_namespace(_store: Store, new: Object, old: Object | None, _now: int) -> None:
    new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"].get("name", "")
    if old is None:
        new["spec"] = {"finalizers": ["kubernetes"]}
        new["status"] = {"phase": "Active"}


def _prepare_node(_store: Store, new: Object, old: Object | None, _now: int) -> None:
    if old is None:
        new["status"] = new.get("status", {})


_DATA_KEY = re.compile(r"^[-._a-zA-Z0-9]{1,253}$")


def _check_data(new: Object, _old: Object | None, _sub: str) -> Iterator[Cause]:
    for part in ("data", "binaryData"):
        for key in new.get(part) or {}:
            if not _DATA_KEY.match(key):
                text = f"Invalid value: \"{key}\": a valid config key must consist of alphanumeric characters, '-', '_' or '.'"  # noqa: E501
                yield f"{part}[{key}]", "FieldValueInvalid", text


def _check_priority_class(new: Object, old: Object | None, _sub: str) -> Iterator[Cause]:
    if new.get("value", 0) > 1_000_000_000 and not new["metadata"].get("name", "").startswith("system-"):
        text = f"Forbidden: maximum allowed value of a user defined priority is 1000000000"  # noqa: F541
        yield "value", "FieldValueForbidden", text
    if old is not None and new.get("value") != old.get("value"):
        yield "value", "FieldValueForbidden", "Forbidden: may not be changed in an update."


def _check_lease(new: Object, _old: Object | None, _sub: str) -> Iterator[Cause]:
    spec = new.get("spec", {})
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        text = f"Invalid value: {spec['leaseDurationSeconds']}: must be greater than 0"
        yield "spec.leaseDurationSeconds", "FieldValueInvalid", text


def _default_priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _default_volume(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    if obj["kind"] == "PersistentVolume":
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")


def _prepare_volume(_store: Store, new: Object, old: Object | None, _now: int) -> None:
    if old is None:
        new["status"] = {"phase": "Pending"}


def _check_claim(new: Object, old: Object | None, _sub: str) -> Iterator[Cause]:
    spec = new["spec"]
    if old is None and not spec.get("accessModes"):
        yield "spec.accessModes", "FieldValueRequired", "Required value: at least 1 access mode is required"
    if old is None and "storage" not in spec.get("resources", {}).get("requests", {}):
        yield "spec.resources[storage]", "FieldValueRequired", "Required value"


def _default_storage_class(obj: Object) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _default_webhooks(obj: Object) -> None:
    for hook in obj.get("webhooks", []):
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if obj["kind"].startswith("Mutating"):
            hook.setdefault("reinvocationPolicy", "Never")
        for rule in hook.get("rules", []):
            rule.setdefault("scope", "*")
        service = hook.get("clientConfig", {}).get("service")
        if service:
            service.setdefault("port", 443)


def _check_webhooks(new: Object, _old: Object | None, _sub: str) -> Iterator[Cause]:
    for index, hook in enumerate(new.get("webhooks", [])):
        at = f"webhooks[{index}]"
        config = hook.get("clientConfig", {})
        if bool(config.get("url")) == bool(config.get("service")):
            yield (
                f"{at}.clientConfig",
                "FieldValueRequired",
                "Required value: exactly one of url or service is required",
            )
        elif config.get("service"):
            text = "Forbidden: the sandbox has no Services: give clientConfig.url"
            yield f"{at}.clientConfig.service", "FieldValueForbidden", text
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            text = f'Unsupported value: {json.dumps(hook.get("sideEffects"))}: supported values: "None", "NoneOnDryRun"'
            yield f"{at}.sideEffects", "FieldValueNotSupported", text
        if hook.get("matchConditions"):
            yield f"{at}.matchConditions", "FieldValueForbidden", "Forbidden: the sandbox has no CEL"


def _default_definition(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def _prepare_definition(_store: Store, new: Object, old: Object | None, now: int) -> None:
    names = new["spec"].get("names", {})
    if old is None:
        stored = [v["name"] for v in new["spec"].get("versions", []) if v.get("storage")]
        condition = {"status": "True", "lastTransitionTime": stamp(now)}
        new["status"] = {
            "conditions": [
                {"type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found", **condition},
                {
                    "type": "Established",
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                    **condition,
                },
            ],
            "acceptedNames": copy(names),
            "storedVersions": stored,
        }


def _check_definition(new: Object, _old: Object | None, _sub: str) -> Iterator[Cause]:
    spec, name = new["spec"], new["metadata"].get("name", "")
    wanted = f"{spec.get('names', {}).get('plural')}.{spec.get('group')}"
    if name != wanted:
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        yield "metadata.name", "FieldValueInvalid", text
    versions = [v for v in spec.get("versions", []) if v.get("served")]
    if len(versions) != 1:
        text = f"Forbidden: the sandbox serves exactly one version of a kind, not {len(versions)}"
        yield "spec.versions", "FieldValueForbidden", text


def from_definition(definition: Object) -> Kind:
    """The kind that a CustomResourceDefinition defines (its served version)."""
    spec = definition["spec"]
    names = spec["names"]
    version = next(v for v in spec["versions"] if v.get("served"))
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or ANY
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec.get("scope") != "Cluster",
        shape=Shape(schema, custom=True),
        singular=names.get("singular", names["kind"].lower()),
        list_kind=names.get("listKind", names["kind"] + "List"),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        status="status" in (version.get("subresources") or {}),
        columns=tuple(version.get("additionalPrinterColumns", ())),
        generation=True,
        needs_version=True,
        fields=tuple(f["jsonPath"].lstrip(".") for f in version.get("selectableFields", ())),
    )


def follow_definitions(store: Store) -> Callable[[Kind, Event], None]:
    """A listener that serves what is defined and stops serving what is no longer."""

    def on_event(kind: Kind, event: Event) -> None:
        if kind.id != ("apiextensions.k8s.io", "customresourcedefinitions"):
            return
        made = from_definition(event.new.obj)
        if event.type == "DELETED":
            store.uninstall(made.group, made.plural)
        else:
            known = store.kind(made.group, made.plural)
            if known is not None and made.group == JOBSET_GROUP:
                made = replace(made, defaults=known.defaults, check=known.check, categories=known.categories)
            store.install(made)

    return on_event


# The table

POD = Kind(
    "", "v1", "pods", "Pod", shape=_shape("core.v1.Pod"), short_names=("po",), categories=("all",), status=True,
    generation=True, returns_deleted=True, subresources=("binding", "eviction"), defaults=_default_pod,
    prepare=_prepare_pod, check=_check_pod,
    fields=("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.podIP"),  # noqa: E501
)  # fmt: skip
JOB = Kind(
    "batch", "v1", "jobs", "Job", shape=_shape("batch.v1.Job"), categories=("all",), status=True, generation=True,
    orphans=True, defaults=_default_job, prepare=_prepare_job, check=_check_job, fields=("status.successful",),
)  # fmt: skip
NODE = Kind(
    "", "v1", "nodes", "Node", namespaced=False, shape=_shape("core.v1.Node"), short_names=("no",), status=True, keeps_status=True,  # noqa: E501
    prepare=_prepare_node, fields=("spec.unschedulable",),
)  # fmt: skip
NAMESPACE = Kind(
    "", "v1", "namespaces", "Namespace", namespaced=False, shape=_shape("core.v1.Namespace"), short_names=("ns",),
    status=True, returns_deleted=True, prepare=_prepare_namespace, fields=("status.phase",), subresources=("finalize",),
)  # fmt: skip
EVENT = Kind(
    "", "v1", "events", "Event", shape=_shape("core.v1.Event"), short_names=("ev",), creates_on_update=True,
    fields=("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
            "reportingComponent", "source", "type"),
)  # fmt: skip


def _jobset() -> Kind:
    info = builtin()["jobset.crd"]
    names = info["names"]
    return Kind(
        JOBSET_GROUP, info["version"], names["plural"], names["kind"], shape=Shape({"$ref": "jobset.v1alpha2.JobSet"}, True),  # noqa: E501
        singular=names["singular"], list_kind=names["listKind"], status=True, generation=True, needs_version=True,
        columns=tuple(info["columns"]), defaults=_default_jobset, check=_check_jobset,
    )  # fmt: skip


def builtin_kinds() -> list[Kind]:
    """Everything served before any CRD is installed."""
    admission = ("admissionregistration.k8s.io", "v1")
    return [
        NAMESPACE,
        NODE,
        POD,
        EVENT,
        Kind(
            "",
            "v1",
            "configmaps",
            "ConfigMap",
            shape=_shape("core.v1.ConfigMap"),
            short_names=("cm",),
            check=_check_data,
        ),
        Kind(
            "",
            "v1",
            "secrets",
            "Secret",
            shape=_shape("core.v1.Secret"),
            check=_check_data,
            fields=("type",),
            defaults=lambda o: o.setdefault("type", "Opaque"),
        ),
        Kind(
            "",
            "v1",
            "serviceaccounts",
            "ServiceAccount",
            shape=_shape("core.v1.ServiceAccount"),
            short_names=("sa",),
            returns_deleted=True,
        ),
        Kind("", "v1", "limitranges", "LimitRange", shape=_shape("core.v1.LimitRange"), short_names=("limits",)),
        # Kept, and enforced on nobody.
        Kind(
            "", "v1", "resourcequotas", "ResourceQuota", shape=_shape("core.v1.ResourceQuota"), short_names=("quota",)
        ),
        # Nobody provisions or binds here: what a claim or a volume says of itself is written by whoever made it.
        Kind(
            "",
            "v1",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            shape=_shape("core.v1.PersistentVolumeClaim"),
            short_names=("pvc",),
            status=True,
            defaults=_default_volume,
            prepare=_prepare_volume,
            check=_check_claim,
        ),
        Kind(
            "",
            "v1",
            "persistentvolumes",
            "PersistentVolume",
            namespaced=False,
            shape=_shape("core.v1.PersistentVolume"),
            short_names=("pv",),
            status=True,
            defaults=_default_volume,
            prepare=_prepare_volume,
        ),
        Kind(
            "storage.k8s.io",
            "v1",
            "storageclasses",
            "StorageClass",
            namespaced=False,
            shape=_shape("storage.v1.StorageClass"),
            short_names=("sc",),
            defaults=_default_storage_class,
        ),
        JOB,
        Kind(
            "scheduling.k8s.io",
            "v1",
            "priorityclasses",
            "PriorityClass",
            namespaced=False,
            shape=_shape("scheduling.v1.PriorityClass"),
            short_names=("pc",),
            generation=True,
            defaults=_default_priority_class,
            check=_check_priority_class,
        ),
        Kind(
            "node.k8s.io",
            "v1",
            "runtimeclasses",
            "RuntimeClass",
            namespaced=False,
            shape=_shape("node.v1.RuntimeClass"),
        ),
        Kind(
            "coordination.k8s.io",
            "v1",
            "leases",
            "Lease",
            shape=_shape("coordination.v1.Lease"),
            needs_version=True,
            creates_on_update=True,
            check=_check_lease,
        ),
        Kind(
            *admission,
            "mutatingwebhookconfigurations",
            "MutatingWebhookConfiguration",
            namespaced=False,
            shape=_shape("admissionregistration.v1.MutatingWebhookConfiguration"),
            generation=True,
            defaults=_default_webhooks,
            check=_check_webhooks,
        ),
        Kind(
            *admission,
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
            namespaced=False,
            shape=_shape("admissionregistration.v1.ValidatingWebhookConfiguration"),
            generation=True,
            defaults=_default_webhooks,
            check=_check_webhooks,
        ),
        Kind(
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            namespaced=False,
            shape=_shape("apiextensions.v1.CustomResourceDefinition"),
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            status=True,
            generation=True,
            defaults=_default_definition,
            prepare=_prepare_definition,
            check=_check_definition,
        ),
        _jobset(),
    ]


# Events have two forms of one object: core/v1, which is stored, and events.k8s.io/v1.

_EVENT_FIELDS = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("count", "deprecatedCount"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("source", "deprecatedSource"),
)


def to_core_event(obj: Object) -> Object:
    """An events.k8s.io/v1 Event as core/v1."""
    back = {b: a for a, b in _EVENT_FIELDS}
    return {**{back.get(k, k): v for k, v in obj.items()}, "apiVersion": "v1"}


def from_core_event(obj: Mapping[str, Any]) -> Object:
    there = dict(_EVENT_FIELDS)
    return {**{there.get(k, k): v for k, v in obj.items()}, "apiVersion": "events.k8s.io/v1"}


EVENTS_V1 = Kind(
    "events.k8s.io", "v1", "events", "Event", shape=_shape("events.v1.Event"), short_names=("ev",),
    fields=("reason", "reportingController", "type", "regarding.kind", "regarding.name", "regarding.namespace", "regarding.uid"),  # noqa: E501
)  # fmt: skip


def new_store(
    *,
    history: int = 10_000,
    seed: str = "sandbox",
    validators: Mapping[tuple[str, str], Callable[[Object, Object | None], Iterable[Cause]]] | None = None,
    now: int,
) -> Store:
    """A store with every built-in kind, following CRDs, with the namespaces and classes that every cluster has."""
    store = Store(builtin_kinds(), history=history, seed=seed, validators=validators)
    store.listeners.append(follow_definitions(store))
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        store.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, now)
    accounts = store.kind("", "serviceaccounts")
    classes = store.kind("scheduling.k8s.io", "priorityclasses")
    assert accounts is not None
    assert classes is not None
    store.create(
        accounts,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}},
        now,
    )
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        store.create(
            classes,
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value},
            now,
        )
    return store
