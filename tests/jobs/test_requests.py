from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.engine.model import AntiAffinity, Exclusive, LabelSelector, Requirement, Toleration, matches
from admission.jobs.kinds import JOB, JOBSET
from admission.jobs.requests import (
    READ,
    anti_affinity,
    complete,
    limits_mark,
    out_of_bounds,
    over_limits,
    over_quota,
    pod_requests,
    shape_of,
    topology_request,
    topology_value,
)
from admission.jobs.values import pod_sets, pod_usage
from admission.jobs.workload import build_workload
from admission.names import HOSTNAME_LABEL, JOBSET_JOB_KEY_LABEL, JOBSET_NAME_LABEL, Names
from admission.quantity import INT64_MAX, QuantityError

HUGE = "hugepages-2Mi"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

NAMES = Names()
Json = dict[str, Any]


def c(requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def sidecar(**requests: str) -> Json:
    return c(requests, restartPolicy="Always")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"containers": [c({"cpu": "1"}), c({"cpu": "500m", "memory": "1Gi"})]}, {"cpu": 1500, "memory": 2**30}),
        ({"containers": [c({"cpu": "1"}, {"cpu": "2", "nvidia.com/gpu": "8"})]}, {"cpu": 1000, "nvidia.com/gpu": 8}),
        ({"containers": [c({"cpu": "1"})], "initContainers": [c({"cpu": "3"}), c({"cpu": "2"})]}, {"cpu": 3000}),
        ({"containers": [c({"cpu": "1"})], "initContainers": [sidecar(cpu="2")]}, {"cpu": 3000}),
        # A sidecar counts beside the init containers that come after it, not beside those before.
        ({"containers": [c({"cpu": "1"})], "initContainers": [sidecar(cpu="2"), c({"cpu": "4"})]}, {"cpu": 6000}),
        ({"containers": [c({"cpu": "1"})], "initContainers": [c({"cpu": "4"}), sidecar(cpu="2")]}, {"cpu": 4000}),
        (
            {"containers": [c({"cpu": "1"})], "overhead": {"cpu": "250m", "memory": "1Ki"}},
            {"cpu": 1250, "memory": 1024},
        ),
        ({"containers": [c({"cpu": "1"})], "resources": {"requests": {"cpu": "4"}}}, {"cpu": 4000}),
        (
            {"containers": [c({"cpu": "1"})], "resources": {"limits": {"cpu": "4", "memory": "8"}}},
            {"cpu": 1000, "memory": 8},
        ),
        ({"containers": [c({"a.b/c": "1"})], "resources": {"requests": {"a.b/c": "4"}}}, {"a.b/c": 1}),
        # Of hugepages the limit of the pod counts: they are not overcommitted.
        ({"containers": [c({HUGE: "50Mi"})], "resources": {"limits": {HUGE: "100Mi"}}}, {HUGE: 100 << 20}),
        (
            {"containers": [c({HUGE: "50Mi"})], "resources": {"limits": {HUGE: "100Mi"}, "requests": {HUGE: "2Mi"}}},
            {HUGE: 2 << 20},
        ),
        ({"containers": [c({"cpu": 1})]}, {"cpu": 1000}),
        ({}, {}),
    ],
)
def test_requests_count_as_the_scheduler_counts(spec: Json, wanted: Json) -> None:
    assert pod_requests(spec) == wanted


def runs(requests: Json | None = None, allocated: Json | None = None, name: str = "c") -> Json:
    """Status of a container."""
    out: Json = {"name": name}
    if requests is not None:
        out["resources"] = {"requests": requests}
    if allocated is not None:
        out["allocatedResources"] = allocated
    return out


def pending(reason: str) -> Json:
    return {"conditions": [{"type": "Ready", "reason": "x"}, {"type": "PodResizePending", "reason": reason}]}


NEVER, LATER = pending("Infeasible"), pending("Deferred")
TWO = {"containers": [c({"cpu": "2", "memory": "4Mi"})]}
WHOLE = {"containers": [c({"cpu": "1"})], "resources": {"requests": {"cpu": "4", "memory": "8"}}}


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [
        (TWO, {}, {"cpu": 2000, "memory": 4 << 20}),
        (TWO, NEVER, {"cpu": 2000, "memory": 4 << 20}),  # its kubelet has said nothing of the container
        (TWO, {"containerStatuses": [{"name": "c", "ready": True}]}, {"cpu": 2000, "memory": 4 << 20}),
        # Of each resource the most of: asked for, set aside, run with.
        (TWO, {"containerStatuses": [runs({"cpu": "3"}, {"cpu": "1"})]}, {"cpu": 3000, "memory": 4 << 20}),
        (TWO, {"containerStatuses": [runs({"memory": "1Mi"}, {"memory": "9Mi"})]}, {"cpu": 2000, "memory": 9 << 20}),
        (TWO, {"containerStatuses": [runs({"cpu": "3"}, name="d")]}, {"cpu": 2000, "memory": 4 << 20}),
        (TWO, LATER | {"containerStatuses": [runs({"cpu": "1"}, {"cpu": "1"})]}, {"cpu": 2000, "memory": 4 << 20}),
        (TWO, NEVER | {"containerStatuses": [runs(*[{"cpu": "2", "memory": "4Mi"}] * 2)]},
         {"cpu": 2000, "memory": 4 << 20}),
        # Not what it asks for, where its node can never give it.
        (TWO, NEVER | {"containerStatuses": [runs({"cpu": "1"}, {"cpu": "1", "memory": "2Mi"})]},
         {"cpu": 1000, "memory": 2 << 20}),
        (TWO, NEVER | {"containerStatuses": [runs(None, {"cpu": "1"})]}, {"cpu": 1000}),
        (TWO, {"resize": "Infeasible", "containerStatuses": [runs({"cpu": "1"})]}, {"cpu": 1000}),
        (TWO, LATER | {"resize": "Infeasible", "containerStatuses": [runs({"cpu": "1"})]},
         {"cpu": 2000, "memory": 4 << 20}),
        # Sidecars are resized as they run, other init containers are not.
        ({"initContainers": [sidecar(cpu="2")]}, {"initContainerStatuses": [runs({"cpu": "5"})]}, {"cpu": 5000}),
        ({"initContainers": [c({"cpu": "2"})]}, {"initContainerStatuses": [runs({"cpu": "5"})]}, {"cpu": 2000}),
        ({**TWO, "overhead": {"cpu": "1"}}, {"containerStatuses": [runs({"cpu": "3"})]},
         {"cpu": 4000, "memory": 4 << 20}),
        # As a whole.
        (WHOLE, runs({"cpu": "6"}, {"memory": "9", "a.b/c": "1"}), {"cpu": 6000, "memory": 9}),
        (WHOLE, NEVER | runs({"cpu": "2"}, {"cpu": "3", "memory": "1"}), {"cpu": 3000, "memory": 1}),
        (WHOLE, {"containerStatuses": [runs({"cpu": "6"})]}, {"cpu": 4000, "memory": 8}),
    ],
)  # fmt: skip
def test_a_pod_that_is_resized_counts_as_the_scheduler_counts(spec: Json, status: Json, wanted: Json) -> None:
    assert pod_requests(spec, status=status) == wanted
    seen = pod_usage({"metadata": {"name": "p"}, "spec": {**spec, "nodeName": "n"}, "status": status}, NAMES)
    assert seen is not None
    assert dict(seen.requests) == wanted


@pytest.mark.parametrize("quantity", ["much", "-1", "1E999999999", "9e9999999", None, [], True, {}])
def test_a_quantity_that_is_none_is_named(quantity: Any) -> None:
    with pytest.raises(QuantityError, match="cpu"):
        pod_requests({"containers": [c({"cpu": quantity})]})
    shape = shape_of({"spec": {"containers": [c({"cpu": quantity})]}}, NAMES)
    assert "cpu" in shape.refused


@pytest.mark.parametrize("more", [0, 1])
def test_a_template_with_more_labels_than_are_read_is_admitted_nowhere(more: int) -> None:
    """A Workload may be made by anybody, and no policy sees its templates: its labels would be kept."""
    labels = {f"l{i}": "" for i in range(READ.labels + more)}
    shape = shape_of({"metadata": {"labels": labels}, "spec": {"containers": [c()]}}, NAMES)
    assert (("labels" in shape.refused), (("l0", "") in shape.labels)) == (bool(more), not more)


@pytest.mark.parametrize("quantity", ["1e30", "9e999998", "9e999999"])
def test_a_quantity_beyond_all_bounds_is_the_largest(quantity: str) -> None:
    assert pod_requests({"containers": [c({"cpu": quantity, "memory": quantity})]}) == {
        "cpu": INT64_MAX,
        "memory": INT64_MAX,
    }


@pytest.mark.parametrize(
    ("own", "resources", "wanted"),
    [
        # Filled in before the LimitRange adds to the containers.
        (c(), {"limits": {"cpu": "4", "memory": "8Gi"}}, {"cpu": 4000, "memory": 8 << 30}),
        (c({"cpu": "1"}), {"limits": {"cpu": "4", "memory": "8Gi"}}, {"cpu": 1000, "memory": 8 << 30}),
        (c(), {"limits": {"cpu": "4"}}, {"cpu": 4000, "memory": 512 << 20}),
        (c(), {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}}, {"cpu": 2000, "memory": 512 << 20}),
        (c({"cpu": "much"}), {"limits": {"cpu": "4"}}, None),
    ],
)
def test_a_limit_range_changes_nothing_of_what_a_pod_asks_as_a_whole(
    own: Json, resources: Json, wanted: Json | None
) -> None:
    spec = {"containers": [own], "resources": resources}
    limit_ranges = [ranges(default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "500m", "memory": "512Mi"})]
    written = complete({"spec": spec}, limit_ranges=limit_ranges)["spec"]
    if wanted is None:
        with pytest.raises(QuantityError, match="cpu"):
            pod_requests(written)
        return
    assert pod_requests(written) == wanted


def ranges(**item: Any) -> Json:
    return {"spec": {"limits": [{"type": "Container", **item}]}}


@pytest.mark.parametrize(
    ("containers", "limit_ranges", "wanted"),
    [
        ([c()], [ranges(defaultRequest={"cpu": "1"})], {"cpu": 1000}),
        ([c({"cpu": "2"})], [ranges(defaultRequest={"cpu": "1"})], {"cpu": 2000}),
        ([c({}, {"cpu": "3"})], [ranges(defaultRequest={"cpu": "1"})], {"cpu": 3000}),
        ([c()], [ranges(default={"cpu": "4"})], {"cpu": 4000}),
        ([c()], [ranges(max={"cpu": "4"})], {"cpu": 4000}),
        ([c()], [ranges(defaultRequest={"cpu": "1"}), ranges(defaultRequest={"cpu": "2"})], {"cpu": 1000}),
        ([c()], [{"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}], {}),
    ],
)
def test_limit_ranges(containers: list[Json], limit_ranges: list[Json], wanted: Json) -> None:
    assert pod_requests(complete({"spec": {"containers": containers}}, limit_ranges=limit_ranges)["spec"]) == wanted


def bounds(kind: str = "Container", **said: Json) -> Json:
    return {"metadata": {"name": "l"}, "spec": {"limits": [{"type": kind, **said}]}}


@pytest.mark.parametrize(
    ("spec", "limit_range", "wrong"),
    [
        ({"containers": [c({"cpu": "16"}, {"cpu": "16"})]}, bounds(max={"cpu": "16"}), ""),
        ({"containers": [c({}, {"cpu": "16001m"})]}, bounds(max={"cpu": "16"}),
         "container 'c' may have 16 cpu at most (it has: limit 16001m, request 16001m)"),
        # Without a limit it is given the most as one.
        ({"containers": [c({"cpu": "17"})]}, bounds(max={"cpu": "16"}),
         "container 'c' may have 16 cpu at most (it has: limit 16, request 17)"),
        ({"containers": [c({"cpu": "1"})]}, bounds(max={"cpu": "16"}), ""),
        ({"containers": [c({"memory": "63Mi"})]}, bounds(min={"memory": "64Mi"}),
         "container 'c' is to have 64Mi memory at least (it has: request 63Mi, limit none)"),
        ({"containers": [c()]}, bounds(min={"memory": "64Mi"}), ""),
        ({"containers": [c({"cpu": "1"}, {"cpu": "4"})]}, bounds(maxLimitRequestRatio={"cpu": "4"}), ""),
        ({"containers": [c({"cpu": "1"}, {"cpu": "5"})]}, bounds(maxLimitRequestRatio={"cpu": "4.5"}),
         "container 'c' may have a limit of 4.5 times its request of cpu at most (it has: request 1, limit 5)"),
        ({"containers": [c({"cpu": "1"})]}, bounds(maxLimitRequestRatio={"cpu": "4"}),
         "container 'c' may have a limit of 4 times its request of cpu at most (it has: request 1, limit none)"),
        ({"containers": [c()], "initContainers": [c({}, {"a.b/gpu": "3"})]}, bounds(max={"a.b/gpu": "2"}),
         "container 'c' may have 2 a.b/gpu at most (it has: limit 3, request 3)"),
        # As a whole: with what sidecars have, and what is said of the pod.
        ({"containers": [c({}, {"cpu": "2"}), c({}, {"cpu": "2"})]}, bounds("Pod", max={"cpu": "4"}), ""),
        ({"containers": [c({}, {"cpu": "2"})], "initContainers": [c({}, {"cpu": "3"}, restartPolicy="Always")]},
         bounds("Pod", max={"cpu": "4"}), "the pod may have 4 cpu at most (it has: limit 5, request 5)"),
        ({"containers": [c({}, {"cpu": "2"})], "initContainers": [c({}, {"cpu": "5"})]},
         bounds("Pod", max={"cpu": "4"}), "the pod may have 4 cpu at most (it has: limit 5, request 5)"),
        ({"containers": [c({"cpu": "1"})]}, bounds("Pod", max={"cpu": "4"}),
         "the pod may have 4 cpu at most (it has: limit none, request 1)"),
        ({"containers": [c({}, {"cpu": "1"})], "resources": {"limits": {"cpu": "5"}}}, bounds("Pod", max={"cpu": "4"}),
         "the pod may have 4 cpu at most (it has: limit 5, request 1)"),
        ({"containers": [c({"cpu": "1"})]}, bounds("PersistentVolumeClaim", max={"storage": "1Gi"}), ""),
        ({"containers": [c({"cpu": "much"})]}, bounds(max={"cpu": "4"}), ""),
    ],
)  # fmt: skip
def test_what_a_limit_range_refuses_is_told_with_numbers(spec: Json, limit_range: Json, wrong: str) -> None:
    made = complete({"spec": spec}, limit_ranges=[limit_range])["spec"]
    assert out_of_bounds(made, [limit_range]) == ([f"LimitRange 'l': {wrong}"] if wrong else [])


@pytest.mark.parametrize(
    ("container", "wrong"),
    [
        (c({"a.b/gpu": "2"}, {"a.b/gpu": "2"}), ""),
        (c({}, {"a.b/gpu": "2"}), ""),
        (c({"a.b/gpu": "1"}, {"a.b/gpu": "2"}),
         "a request of a.b/gpu is to be its limit (it has: request 1, limit 2)"),
        (c({"a.b/gpu": "1"}), "a request of a.b/gpu is to be its limit (it has: request 1, limit none)"),
        (c({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "4Mi"}),
         "a request of hugepages-2Mi is to be its limit (it has: request 2Mi, limit 4Mi)"),
        (c({"cpu": "1"}), ""),
        (c({"cpu": "1"}, {"cpu": "2"}), ""),
        (c({"cpu": "2"}, {"cpu": "1500m"}),
         "a request of cpu may be its limit at most (it has: request 2, limit 1500m)"),
        (c({"x.kubernetes.io/a": "1"}, {"x.kubernetes.io/a": "2"}), ""),
        (c({"a.b/gpu": "many"}), ""),
        (c({}, {"a.b/gpu": "0.5"}), "a.b/gpu is given in whole numbers only (it has: 0.5)"),
        (c({"a.b/gpu": "1500m"}, {"a.b/gpu": "1500m"}), "a.b/gpu is given in whole numbers only (it has: 1500m)"),
        (c({}, {"a.b/gpu": "2000m", "cpu": "0.5"}), ""),
        (c({}, {"a.b/gpu": "1e30"}), ""),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses_of_the_children_of_a_jobset_is_told_with_numbers(
    container: Json, wrong: str
) -> None:
    for group in ("containers", "initContainers"):
        assert over_limits({group: [container]}) == ([f"container 'c': {wrong}"] if wrong else [])


def test_a_jobset_whose_child_jobs_would_be_refused_is_told() -> None:
    def template(**limits: str) -> Json:
        return {"spec": {"template": {"spec": {"containers": [c({"a.b/gpu": "1"}, limits)]}}}}

    sets = [{"name": name, "replicas": n, "template": template()} for name, n in (("w", 2), ("none", 0))]
    made = {"metadata": {"name": "s", "namespace": "a", "uid": "u", "labels": {NAMES.queue_label: "q"}},
            "spec": {"suspend": True, "replicatedJobs": sets}}  # fmt: skip
    said = "container 'c': a request of a.b/gpu is to be its limit (it has: request 1, limit none)"
    assert build_workload(JOBSET, made, NAMES)[1] == (f"pod set w: none of its pods can be made: {said}",)
    sets[0]["template"] = template(**{"a.b/gpu": "1"})
    assert build_workload(JOBSET, made, NAMES)[1] == ()


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"parallelism": 4, "completions": 4}, ""),
        ({}, ""),
        ({"completions": 4}, ""),
        ({"parallelism": 4, "completionMode": "NonIndexed"}, ""),
        ({"parallelism": 4}, "its Jobs are Indexed and need completions: write as many as parallelism, or NonIndexed"),
        ({"parallelism": 4, "completionMode": "Indexed"},
         "its Jobs are Indexed and need completions: write as many as parallelism, or NonIndexed"),
        ({"parallelism": 0}, ""),  # there are no pods of which that could be asked
        ({"restartPolicy": "Always"}, "restartPolicy of a Job's pods is OnFailure or Never, and not Always"),
        ({"restartPolicy": "OnFailure"}, ""),
        ({"restartPolicy": "Never", "podFailurePolicy": {"rules": []}}, ""),
        ({"restartPolicy": "OnFailure", "podFailurePolicy": {"rules": []}},
         "beside a podFailurePolicy restartPolicy is to be Never (where a JobSet says none, it is OnFailure)"),
    ],
)  # fmt: skip
def test_a_jobset_of_which_no_job_is_one_is_told(said: Json, wrong: str) -> None:
    policy = {"restartPolicy": said["restartPolicy"]} if "restartPolicy" in said else {}
    spec = {key: value for key, value in said.items() if key != "restartPolicy"}
    spec["template"] = {"spec": {"containers": [c()], **policy}}
    made = {"metadata": {"name": "s", "namespace": "a", "uid": "u", "labels": {NAMES.queue_label: "q"}},
            "spec": {"suspend": True, "replicatedJobs": [{"name": "w", "template": {"spec": spec}}]}}  # fmt: skip
    told = (f"pod set w: none of its pods can be made: {wrong}",) if wrong else ()
    assert build_workload(JOBSET, made, NAMES)[1] == told


def told_of(spec: Json, **said: Any) -> list[str]:
    """Why none of a Job's pods can be made."""
    made = {"metadata": {"name": "j", "namespace": "a", "uid": "u", "labels": {NAMES.queue_label: "q"}},
            "spec": {"suspend": True, "template": {"spec": spec}}}  # fmt: skip
    before = "pod set main: none of its pods can be made: "
    problems = build_workload(JOB, made, NAMES, **said)[1]
    assert all(one.startswith(before) for one in problems)
    return [one.removeprefix(before) for one in problems]


@pytest.mark.parametrize(
    ("spec", "limit_range", "wrong"),
    [
        ({"containers": [c({"cpu": "1"})]}, bounds(default={"cpu": "1"}), ""),
        ({"containers": [c({"cpu": "4"}, {"cpu": "4"})]}, bounds(default={"cpu": "1"}), ""),
        ({"containers": [c({"cpu": "4"})]}, bounds(defaultRequest={"cpu": "1"}), ""),
        ({"containers": [c({"cpu": "4"})]}, bounds(default={"cpu": "1"}),
         ("with what LimitRanges add, container 'c': a request of cpu may be its limit at most "
          "(it has: request 4, limit 1)")),
        ({"containers": [c()], "initContainers": [c({"memory": "2Gi"})]}, bounds(default={"memory": "1Gi"}),
         ("with what LimitRanges add, container 'c': a request of memory may be its limit at most "
          "(it has: request 2Gi, limit 1Gi)")),
        # Told once.
        ({"containers": [c({"cpu": "17"})]}, bounds(max={"cpu": "16"}),
         "LimitRange 'l': container 'c' may have 16 cpu at most (it has: limit 16, request 17)"),
        # Beside what is said of the pod as a whole.
        ({"containers": [c()], "resources": {"limits": {"cpu": "4"}}}, bounds(default={"cpu": "4"}), ""),
        ({"containers": [c()], "resources": {"limits": {"cpu": "4"}}}, bounds(default={"memory": "9Gi"}), ""),
        ({"containers": [c()], "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}},
         bounds(default={"cpu": "5"}, defaultRequest={"cpu": "1"}),
         "with what LimitRanges add, container 'c': a limit of cpu may be the pod's at most (it has 5, the pod 4)"),
        ({"containers": [c(), c()], "resources": {"requests": {"memory": "1Gi"}}},
         bounds(defaultRequest={"memory": "768Mi"}),
         ("with what LimitRanges add, requests of memory of its containers may be the pod's at most together "
          "(they have 1536Mi, the pod 1Gi)")),
    ],
)  # fmt: skip
def test_a_job_whose_pods_what_a_limit_range_adds_makes_impossible_is_told(
    spec: Json, limit_range: Json, wrong: str
) -> None:
    assert told_of(spec, limit_ranges=[limit_range]) == ([wrong] if wrong else [])


SANDBOX: Json = {
    "overhead": {"podFixed": {"cpu": "250m"}},
    "scheduling": {"nodeSelector": {"sandbox": "yes"}},
}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"runtimeClassName": "s"}, ""),
        ({"runtimeClassName": "s", "nodeSelector": {"sandbox": "yes", "a": "b"}}, ""),
        ({"runtimeClassName": "s", "nodeSelector": {"sandbox": "no"}},
         "RuntimeClass 's' selects nodes by sandbox=yes, and the template by sandbox=no"),
        ({"nodeSelector": {"sandbox": "no"}}, ""),
        ({"runtimeClassName": "s", "overhead": {"cpu": "0.25"}}, ""),
        ({"runtimeClassName": "s", "overhead": {"cpu": "1"}},
         "overhead is added by a RuntimeClass: leave it out of the template"),
        ({"overhead": {"cpu": "1"}}, "overhead is added by a RuntimeClass: leave it out of the template"),
        ({"overhead": {"cpu": "much"}}, ""),
    ],
)  # fmt: skip
def test_a_job_that_contradicts_its_runtime_class_is_told(said: Json, wrong: str) -> None:
    assert told_of({"containers": [c()], **said}, runtime_classes={"s": SANDBOX}) == ([wrong] if wrong else [])
    assert told_of({"containers": [c()], **said}) == []  # nobody can see which there are


def test_of_a_pod_set_without_pods_no_runtime_class_is_missed() -> None:
    entry = {"name": "w", "replicas": 0, "template": {"spec": {"template": {"spec": {"runtimeClassName": "gone"}}}}}
    made = {"metadata": {"name": "s", "namespace": "a", "uid": "u"}, "spec": {"replicatedJobs": [entry]}}
    assert build_workload(JOBSET, made, NAMES, runtime_classes={})[1] == ()
    entry["replicas"] = 1
    assert build_workload(JOBSET, made, NAMES, runtime_classes={})[1] == (
        "pod set w: RuntimeClass 'gone' does not exist",
    )


def test_bounds_of_limit_ranges_are_noticed_when_they_change() -> None:
    other = [bounds(max={"cpu": "4"}), bounds("Pod", max={"cpu": "4"}), bounds("Pod", max={"cpu": "5"})]
    marks = [limits_mark([one]) for one in other]
    assert len({*marks, ""}) == 4
    assert limits_mark([bounds("PersistentVolumeClaim", max={"storage": "1Gi"})]) == ""


def quota(hard: Json, **said: Any) -> Json:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **said}}


TWO_CPUS = {"containers": [c({"cpu": "1"}, {"cpu": "2"})]}


@pytest.mark.parametrize(
    ("pods", "limit", "wrong"),
    [
        ([(4, TWO_CPUS)], quota({"pods": "4"}), ""),
        ([(4, TWO_CPUS), (1, {})], quota({"pods": "4"}),
         "allows 4 pods in the namespace, and its pods ask for 5 at once"),
        ([(4, TWO_CPUS)], quota({"requests.cpu": "4", "limits.cpu": "8"}), ""),
        ([(4, TWO_CPUS)], quota({"requests.cpu": "3999m"}),
         "allows 3999m requests.cpu in the namespace, and its pods ask for 4 at once"),
        ([(4, TWO_CPUS)], quota({"cpu": "3"}), "allows 3 cpu in the namespace, and its pods ask for 4 at once"),
        ([(4, TWO_CPUS)], quota({"limits.cpu": "7"}),
         "allows 7 limits.cpu in the namespace, and its pods ask for 8 at once"),
        ([(1, {**TWO_CPUS, "overhead": {"cpu": "1"}})], quota({"requests.cpu": "1"}),
         "allows 1 requests.cpu in the namespace, and its pods ask for 2 at once"),
        ([(2, {"containers": [c({}, {"a.b/gpu": "8"})]})], quota({"requests.a.b/gpu": "12"}),
         "allows 12 requests.a.b/gpu in the namespace, and its pods ask for 16 at once"),
        # Counted by nobody, or of other kinds.
        ([(2, {"containers": [c({}, {"a.b/gpu": "8"})]})], quota({"a.b/gpu": "12", "secrets": "0"}), ""),
        ([(9, TWO_CPUS)], quota({"requests.storage": "0", "count/jobs.batch": "0"}), ""),
        # Kubernetes takes it, and counts requests of such resources only.
        ([(2, {"containers": [c({}, {"a.b/gpu": "8"})]})], quota({"limits.a.b/gpu": "8"}), ""),
        ([(1, {"containers": [c({}, {"ephemeral-storage": "2Gi"})]})], quota({"limits.ephemeral-storage": "1Gi"}),
         "allows 1Gi limits.ephemeral-storage in the namespace, and its pods ask for 2Gi at once"),
        # Whether it counts these pods depends on more than their template.
        ([(4, TWO_CPUS)], quota({"pods": "1"}, scopes=["NotTerminating"]), ""),
        ([(4, TWO_CPUS)], quota({"pods": "1"}, scopeSelector={"matchExpressions": []}), ""),
        ([(1, {"containers": [c({}, {HUGE: "4Mi"})]})], quota({HUGE: "2Mi"}),
         "allows 2Mi hugepages-2Mi in the namespace, and its pods ask for 4Mi at once"),
        ([(2, TWO_CPUS)], quota({"count/pods": "1"}),
         "allows 1 count/pods in the namespace, and its pods ask for 2 at once"),
        # Of CPU and memory each container must say what is counted.
        ([(1, {"containers": [c()]})], quota({"requests.cpu": "9"}),
         "has requests.cpu, so that each container must say it, and these do not: 'c'"),
        ([(1, {"containers": [c({"cpu": "1"})]})], quota({"requests.cpu": "9"}), ""),
        ([(1, {"containers": [c({"cpu": "1"})]})], quota({"limits.cpu": "9"}),
         "has limits.cpu, so that each container must say it, and these do not: 'c'"),
        ([(1, {"containers": [c({}, {"cpu": "1"})]})], quota({"requests.cpu": "9"}), ""),
        ([(0, {"containers": [c()]}), (1, TWO_CPUS)], quota({"requests.cpu": "9"}), ""),
        ([(1, {"containers": [c()], "resources": {"limits": {"cpu": "1"}}})], quota({"limits.cpu": "9"}), ""),
        ([(1, {"containers": [c()]})], quota({"requests.a.b/gpu": "9", "limits.ephemeral-storage": "1Gi"}), ""),
        ([(1, {"containers": [c({"cpu": "much"})]})], quota({"requests.cpu": "1"}), ""),
    ],
)  # fmt: skip
def test_what_a_resource_quota_can_never_have_is_told_with_numbers(
    pods: list[tuple[int, Json]], limit: Json, wrong: str
) -> None:
    assert over_quota(pods, [limit], together=True) == ([f"ResourceQuota 'q' {wrong}"] if wrong else [])


def test_pods_that_come_one_set_after_the_other_need_not_fit_a_resource_quota_together() -> None:
    sets = [(3, TWO_CPUS), (4, TWO_CPUS)]
    assert over_quota(sets, [quota({"pods": "4"})], together=False) == []
    assert over_quota(sets, [quota({"pods": "3"})], together=False) != []


def test_a_runtime_class_brings_overhead_and_place() -> None:
    runtime = {
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [{"key": "s", "operator": "Exists"}]},
    }
    template = {"spec": {"containers": [c({"cpu": "1"})], "nodeSelector": {"a": "b"}}}
    made = complete(template, runtime_class=runtime)
    shape = shape_of(made, NAMES)
    assert shape.requests == (("cpu", 1250),)
    assert shape.node_selector == (("a", "b"), ("sandbox", "yes"))
    assert shape.tolerations == (Toleration(key="s", operator="Exists"),)
    assert complete(made, runtime_class=runtime) == made
    assert template["spec"].keys() == {"containers", "nodeSelector"}


def pods(word: str, labels: Json, key: str = "kubernetes.io/hostname", **more: Any) -> Json:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **more}
    return {"affinity": {word: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.mark.parametrize(
    ("spec", "attribute", "wanted"),
    [
        (pods("podAntiAffinity", {"app": "x"}), "one_per_domain", ("kubernetes.io/hostname",)),
        (pods("podAffinity", {"app": "x"}, "rack"), "same_domain", ("rack",)),
        (pods("podAffinity", {"app": "x"}, "rack", namespaces=["team"]), "same_domain", ("rack",)),
        (pods("podAffinity", {"app": "y"}), "refused", "podAffinity to other pods"),
        (pods("podAntiAffinity", {"app": "x"}, namespaces=["b"]), "refused", "podAntiAffinity to other pods"),
        (
            {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
            "refused",
            "Key z",
        ),
        ({"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]}, "refused", ""),
        ({"resourceClaims": [{"name": "gpu"}]}, "refused", "resourceClaims"),
        ({"nodeName": "n1"}, "affinity", ((Requirement("metadata.name", "In", ("n1",)),),)),
        ({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]}, "host_ports", ("80",)),
        ({"containers": [{"ports": [{"hostPort": 81, "containerPort": 80}]}]}, "host_ports", ("81",)),
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, "host_ports", ()),
        ({"tolerations": [{"key": "a", "value": "b"}]}, "tolerations", (Toleration("a", "Equal", "b"),)),
        *(
            (
                {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": said}]},
                "tolerations",
                (Toleration(operator="Exists", effect="NoExecute", seconds=read),),
            )
            for said, read in ((30, 30), (0, 0), (True, None), ("30", None), (None, None))
        ),
        (
            {"containers": [{"ports": [{"hostPort": 53, "protocol": "UDP"}, {"hostPort": 53}]}]},
            "host_ports",
            ("53", "53/UDP"),
        ),
    ],
)
def test_shape(spec: Json, attribute: str, wanted: Any) -> None:
    shape = shape_of({"metadata": {"labels": {"app": "x"}}, "spec": spec}, NAMES, namespace="team")
    found = getattr(shape, attribute)
    assert wanted in found if attribute == "refused" else found == wanted
    assert shape.uncounted == (shape.refused if wanted == "resourceClaims" else "")
    if not wanted or attribute != "refused":
        assert shape.refused == ""


HOST = "kubernetes.io/hostname"
JOB_NAME, PART = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/replicatedjob-name"
KEY, INDEX = "jobset.sigs.k8s.io/job-key", "jobset.sigs.k8s.io/job-index"
OTHER_CHILDREN = {
    "matchExpressions": [{"key": KEY, "operator": "Exists"}, {"key": KEY, "operator": "NotIn", "values": ["k"]}]
}
NOT_ITS_OWN = Requirement(KEY, "NotIn", ("k",))
X = Requirement("app", "In", ("x",))


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (pods("podAntiAffinity", {"app": "x"}, "rack"), (AntiAffinity("rack", LabelSelector((X,)), ("team",)),)),
        (
            pods("podAntiAffinity", {"app": "x"}, namespaces=["b", "a"]),
            (AntiAffinity(HOST, LabelSelector((X,)), ("a", "b")),),
        ),
        # A selector of namespaces, empty or not, is read as all.
        (pods("podAntiAffinity", {"app": "x"}, namespaceSelector={}), (AntiAffinity(HOST, LabelSelector((X,))),)),
        (
            pods("podAntiAffinity", {"app": "x"}, namespaceSelector={"matchLabels": {"a": "b"}}),
            (AntiAffinity(HOST, LabelSelector((X,))),),
        ),
        (pods("podAntiAffinity", {}), (AntiAffinity(HOST, LabelSelector(), ("team",)),)),
        # By JobSet's webhooks for exclusive placement; of its own job, and of another, or of one elsewhere; without a
        # selector (nobody); preferred; affinity.
        (pods("podAntiAffinity", {}, "rack", labelSelector=OTHER_CHILDREN, namespaceSelector={}), ()),
        (
            pods("podAntiAffinity", {}, labelSelector=OTHER_CHILDREN),
            (AntiAffinity(HOST, LabelSelector((Requirement(KEY, "Exists"), NOT_ITS_OWN)), ("team",)),),
        ),
        (pods("podAntiAffinity", {"app": "x", JOB_NAME: "j"}), ()),
        (
            pods("podAntiAffinity", {JOB_NAME: "other"}),
            (AntiAffinity(HOST, LabelSelector((Requirement(JOB_NAME, "In", ("other",)),)), ("team",)),),
        ),
        *(
            (
                pods("podAntiAffinity", {JOB_NAME: "j"}, **more),
                (AntiAffinity(HOST, LabelSelector((Requirement(JOB_NAME, "In", ("j",)),)), where),),
            )
            for more, where in (
                ({"namespaces": ["other"]}, ("other",)),
                ({"namespaces": ["other", "team"]}, ("other", "team")),
                ({"namespaceSelector": {}}, ()),
            )
        ),
        (pods("podAntiAffinity", {"app": "x"}, labelSelector=None), ()),
        (pods("podAffinity", {"app": "x"}), ()),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, ()),
        ({}, ()),
    ],
)
def test_what_a_pod_asks_of_all_others(spec: Json, wanted: tuple[AntiAffinity, ...]) -> None:
    labels = {JOB_NAME: "j", KEY: "k"}
    assert anti_affinity(spec, "team", labels, "rack") == wanted
    notes = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    meta = {"name": "p", "namespace": "team", "uid": "u", "labels": labels, "annotations": notes}
    pod = {"metadata": meta, "spec": {"nodeName": "n", **spec}}
    seen = [pod_usage(copy.deepcopy(pod), NAMES) for _ in range(2)]
    assert seen[0] is not None
    assert seen[1] is not None
    assert seen[0].apart == wanted
    assert all(one is other for one, other in zip(seen[0].apart, seen[1].apart, strict=True)), "kept once"


@pytest.mark.parametrize("of_jobset", [False, True])
@pytest.mark.parametrize(
    ("need", "of_jobs", "of_jobsets"),
    [
        ({"key": JOB_NAME, "operator": "Exists"}, True, True),
        ({"key": "job-name", "operator": "DoesNotExist"}, False, False),
        ({"key": JOB_NAME, "operator": "NotIn", "values": ["other"]}, True, True),
        ({"key": JOB_NAME, "operator": "In", "values": ["other"]}, False, False),
        ({"key": JOBSET_JOB_KEY_LABEL, "operator": "Exists"}, False, True),
        ({"key": NAMES.managed_label, "operator": "In", "values": ["true"]}, True, True),
        ({"key": NAMES.workload_uid_label, "operator": "DoesNotExist"}, False, False),
    ],
)
def test_others_select_pods_by_labels_that_these_get_as_they_are_made(
    need: Json, of_jobs: bool, of_jobsets: bool, of_jobset: bool
) -> None:
    """Whoever wants no batch beside him names no more than a label that all pods of Jobs have."""
    labels = {JOBSET_NAME_LABEL: "set"} if of_jobset else {JOB_NAME: "j", "job-name": "j"}
    entry = {"name": "main", "count": 1, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}}
    ((mine,), _) = pod_sets([entry], NAMES, "team")
    (asked,) = anti_affinity(pods("podAntiAffinity", {}, labelSelector={"matchExpressions": [need]}), "team", {})
    assert matches(asked.selector, dict(mine.shape.labels)) is (of_jobsets if of_jobset else of_jobs)


OF_X = AntiAffinity("rack", LabelSelector((X,)), ("team",))
OF_RUN = AntiAffinity("rack", LabelSelector((X, Requirement("run", "In", ("7",)))), ("team",))


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, (OF_X,)),
        # The API server puts these into the selector of each pod, with the pod's own value; labels it lacks it leaves.
        ({"matchLabelKeys": ["run", "none"]}, (OF_RUN,)),
        ({"matchLabelKeys": ["batch.kubernetes.io/job-name"]}, ()),
        ({"labelSelector": {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "a", "operator": "Like"}]}}, ()),
    ],
)
@pytest.mark.parametrize("word", ["podAffinity", "podAntiAffinity"])
def test_whom_the_rules_of_a_template_select(word: str, more: Json, wanted: tuple[AntiAffinity, ...]) -> None:
    template = {"metadata": {"labels": {"app": "x", "run": "7"}}, "spec": pods(word, {"app": "x"}, "rack", **more)}
    shape = shape_of(template, NAMES, namespace="team")
    assert (shape.near if word == "podAffinity" else shape.apart) == wanted


def test_affinity_of_which_one_term_selects_one_job_alone_selects_nobody_else() -> None:
    spec = pods("podAffinity", {"app": "x"}, "rack")
    terms = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms += pods("podAffinity", {"batch.kubernetes.io/job-name": "j"})["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = {"app": "x", "batch.kubernetes.io/job-name": "j"}
    shape = shape_of({"metadata": {"labels": labels}, "spec": spec}, NAMES, namespace="team")
    assert shape.near == ()
    assert len(shape.same_domain) == 2


def test_affinity_across_pod_sets_is_refused() -> None:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pods("podAffinity", {"app": "x"}, "rack")}
    assert "across pod sets" in shape_of(template, NAMES, siblings=[{"app": "x"}]).refused


ACROSS = "across pod sets (topologyKey rack)"


@pytest.mark.parametrize(
    ("keys", "pods_each", "refused", "together", "apart"),
    [
        # The pods of the other pod set have the same label.
        ([], 2, ACROSS, (), ()),
        (["none"], 2, ACROSS, (), ()),
        (["app"], 2, ACROSS, (), ()),
        ([INDEX], 2, ACROSS, (), ()),  # both have a child job of each index
        ([PART], 2, "", ("rack",), ("rack",)),
        (["role"], 2, "", ("rack",), ("rack",)),
        (["none", "role"], 2, "", ("rack",), ("rack",)),
        # Of each child job by itself: one domain for all of them, and one for each pod, is more than it asks for.
        ([JOB_NAME], 2, "", ("rack",), ("rack",)),
        ([KEY], 2, "", ("rack",), ("rack",)),
        # Of each pod by itself.
        ([JOB_NAME], 1, "", (), ()),
        ([KEY, "none"], 1, "", (), ()),
        ([PART], 1, "", ("rack",), ("rack",)),
    ],
)
@pytest.mark.parametrize("word", ["podAffinity", "podAntiAffinity"])
def test_affinity_to_pods_that_have_a_label_in_common(
    word: str, keys: list[str], pods_each: int, refused: str, together: tuple[str, ...], apart: tuple[str, ...]
) -> None:
    raw = copy.deepcopy(EXCLUSIVE_JOBSET)
    (workers,) = raw["spec"]["replicatedJobs"]
    spec = workers["template"]["spec"] | {"parallelism": pods_each, "completions": pods_each}
    labels = {"app": "x", "role": "worker"}
    workers["template"]["spec"] = spec
    spec["template"] = {
        "metadata": {"labels": labels},
        "spec": {**pods(word, {"app": "x"}, "rack", matchLabelKeys=keys), "containers": [{"name": "c"}]},
    }
    leader = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c"}]}}
    of_leader = {"spec": {"parallelism": 1, "completions": 1, "template": leader}}
    raw["spec"]["replicatedJobs"].append({"name": "l", "replicas": 1, "template": of_leader})
    made, problems = build_workload(JOBSET, raw, NAMES)
    assert problems == ()
    shape = pod_sets(made["spec"]["podSets"], NAMES, "ns")[0][0].shape
    assert refused in shape.refused
    assert bool(refused) == bool(shape.refused)
    near = word == "podAffinity"
    assert (shape.same_domain, shape.one_per_domain) == ((together, ()) if near else ((), apart))
    alone = near and not refused and not together
    assert shape.affinity == (((Requirement("rack", "Exists"),),) if alone else None)


def spread(selector: Json | None, **more: Any) -> Json:
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": selector}
    return {"topologySpreadConstraints": [{**constraint, **more}]}


THERE = Requirement("zone", "Exists")
OWN = {"matchLabels": {"batch.kubernetes.io/job-name": "j"}}
NEEDS: Json = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}
NODES = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NEEDS}}}


@pytest.mark.parametrize(
    ("spec", "affinity", "refused"),
    [
        (spread(OWN), ((THERE,),), ""),
        (spread(None), ((THERE,),), ""),
        (spread({"matchLabels": {"app": "x"}}, matchLabelKeys=["batch.kubernetes.io/job-name"]), ((THERE,),), ""),
        (spread(OWN) | NODES, ((Requirement("gpu", "Exists"), THERE),), ""),
        # Others may be counted, too, and its siblings are.
        (spread({"matchLabels": {"app": "x"}}), None, "topologyKey zone"),
        (spread({"matchLabels": {"role": "worker"}}), None, "topologyKey zone"),
        (spread({}), None, "topologyKey zone"),
        (spread({"matchLabels": {JOBSET_NAME_LABEL: "s"}}), None, "topologyKey zone"),  # of one job, and a sibling's
        (spread({"matchLabels": {JOBSET_NAME_LABEL: "other"}}), ((THERE,),), ""),
        (spread({"matchLabels": {"app": "x"}}, whenUnsatisfiable="ScheduleAnyway"), None, ""),
        (pods("podAffinity", {"app": "x"}, "zone"), ((THERE,),), ""),
        (pods("podAntiAffinity", {"app": "x"}, "zone"), None, ""),
    ],
)
def test_a_pod_that_is_alone_asks_for_the_labels_that_its_rules_name(spec: Json, affinity: Any, refused: str) -> None:
    labels = {"app": "x", "batch.kubernetes.io/job-name": "j", JOBSET_NAME_LABEL: "s"}
    shape = shape_of(
        {"metadata": {"labels": labels}, "spec": spec},
        NAMES,
        namespace="team",
        many=False,
        siblings=[{"role": "worker", JOBSET_NAME_LABEL: "s"}, {"role": "none"}],
    )
    assert shape.affinity == affinity
    assert refused in shape.refused
    assert bool(refused) == bool(shape.refused)


def test_node_affinity_terms() -> None:
    terms: list[Any] = [
        {
            "matchExpressions": [
                {"key": "a", "operator": "Gt", "values": ["3"]},
                {"key": "b", "operator": "DoesNotExist"},
            ]
        },
        {},
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    shape = shape_of({"spec": {"affinity": {"nodeAffinity": required}}}, NAMES)
    assert shape.affinity == (
        (Requirement("a", "Gt", ("3",)), Requirement("b", "DoesNotExist")),
        (Requirement("metadata.name", "NotIn", ("n1",)),),
    )
    terms[0]["matchExpressions"][0]["operator"] = "Like"
    assert "Like" in shape_of({"spec": {"affinity": {"nodeAffinity": required}}}, NAMES).refused
    terms[0]["matchExpressions"][0]["operator"] = "Gt"
    terms[2]["matchFields"][0]["key"] = "metadata.uid"
    assert "metadata.uid" in shape_of({"spec": {"affinity": {"nodeAffinity": required}}}, NAMES).refused


def test_topology_annotations() -> None:
    notes = {NAMES.required_topology_annotation: "rack", NAMES.group_name_annotation: "g"}
    raw, problems = topology_request(notes, NAMES, indexed=True, replicas=2)
    assert problems == []
    value = topology_value(raw)
    assert value is not None
    assert (value.required, value.group, (raw or {}).get("subGroupCount")) == ("rack", "g", 2)
    assert topology_request({}, NAMES) == (None, [])
    for key, most in ((NAMES.preferred_topology_annotation, 63), (NAMES.group_name_annotation, 256)):
        assert topology_request({key: "x" * most}, NAMES)[1] == []
        assert topology_request({key: "x" * (most + 1)}, NAMES)[1] == [
            f"annotation {key} is longer than {most} characters"
        ]
    assert topology_request({NAMES.slice_size_annotation: "x"}, NAMES)[1]
    for said in ("true", "True", "1"):  # Kueue reads it so
        assert topology_request({NAMES.unconstrained_topology_annotation: said}, NAMES) == ({"unconstrained": True}, [])
    for said in ("false", "0", "yes", ""):
        assert topology_request({NAMES.unconstrained_topology_annotation: said}, NAMES) == (None, [])


LEVEL, SIZE = NAMES.slice_required_topology_annotation, NAMES.slice_size_annotation
LAYERS = {NAMES.slice_layers_annotation: '[{"topology": "rack", "size": 4}]'}
IN_LAYERS = {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 4}]}


@pytest.mark.parametrize(
    ("notes", "wanted", "wrong"),
    [
        ({NAMES.preferred_topology_annotation: "rack"}, {"preferred": "rack"}, ""),
        ({LEVEL: "rack", SIZE: "4"}, {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 4}, ""),
        ({LEVEL: "rack"}, None, "needs both"),
        ({SIZE: "4"}, None, "needs both"),
        (LAYERS, IN_LAYERS, ""),
        (LAYERS | {LEVEL: "rack"}, None, "asked for in two ways"),
        (LAYERS | {SIZE: "4"}, None, "asked for in two ways"),
    ],
)
def test_what_a_template_asks_of_the_topology(notes: Json, wanted: Json | None, wrong: str) -> None:
    asked, problems = topology_request(notes, NAMES)
    assert asked == wanted
    assert bool(problems) == bool(wrong)
    assert wrong in "; ".join(problems)


NO_NUMBERS = ["", "²", "٣", "+1", " 1", "0", "2147483648", "0000000001" + "0" * 5000]


@pytest.mark.parametrize("size", NO_NUMBERS)
def test_what_is_no_number_is_told(size: str) -> None:
    asked = {NAMES.slice_required_topology_annotation: "rack", NAMES.slice_size_annotation: size}
    assert topology_request(asked, NAMES)[1] == ["a slice needs both its topology and its size, a number above 0"]
    job = {
        "metadata": {"annotations": {NAMES.min_parallelism_annotation: size}},
        "spec": {"parallelism": 4, "template": {"spec": {"containers": [c()]}}},
    }
    workload, problems = build_workload(JOB, job, NAMES)
    assert "minCount" not in workload["spec"]["podSets"][0]
    assert ["is not from 1 to the parallelism" in one for one in problems] == ([True] if size else [])


@pytest.mark.parametrize(
    ("said", "slices"),
    [
        (
            '[{"topology": "net/block", "size": 8}, {"topology": "net/rack", "size": 2}]',
            (("net/block", 8), ("net/rack", 2)),
        ),
        (
            '[{"topology": "a", "size": 8}, {"topology": "b", "size": 4}, {"topology": "c", "size": 2}]',
            (("a", 8), ("b", 4), ("c", 2)),
        ),
        (str([{"topology": level, "size": 8} for level in "abcd"]).replace("'", '"'), ()),
        ("[]", ()),
        ("no JSON", ()),
        ("[" * 50_000, ()),
        ('[{"topology": "net/rack", "size": ' + "9" * 5000 + "}]", ()),
        ('[{"topology": "net/rack", "size": 0}]', ()),
        ('[{"topology": "' + "x" * 64 + '", "size": 2}]', ()),
        ('[{"topology": "net/rack", "size": "2"}]', ()),
        ('[{"topology": "a", "size": 8}, {"topology": "b", "size": 4}, {"topology": "c", "size": 2}, 1]', ()),
    ],
)
def test_slices_of_several_layers(said: str, slices: tuple[tuple[str, int], ...]) -> None:
    raw, problems = topology_request({NAMES.slice_layers_annotation: said}, NAMES)
    assert bool(problems) is not bool(slices), problems
    value = topology_value(raw)
    assert (value.slices if value is not None else ()) == slices


MUCH: dict[str, Json] = {
    "terms": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": {}}] * 129}}},
    "values": {
        "affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "rack", "namespaces": [str(i) for i in range(1024)]}]}}
    },
    "node affinity": {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"values": ["n"] * 16385}]}]}}}
    },
    "spread": {"topologySpreadConstraints": [{"topologyKey": "rack"}] * 129},
    "tolerations": {"tolerations": [{"key": "k"}] * 1025},
    "selector": {"nodeSelector": {str(i): "v" for i in range(1025)}},
    "ports": {"containers": [{"name": "c", "ports": [{"hostPort": i + 1} for i in range(513)]}]},
    "claims": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": str(i)}} for i in range(257)]},
}


@pytest.mark.parametrize("row", MUCH)
def test_what_is_too_much_to_be_read_is_admitted_nowhere(row: str) -> None:
    """Also in a Workload that somebody else made, which no policy of jobs has seen."""
    spec = {"containers": [c({"cpu": "1"})], **MUCH[row]}
    entry = {"name": "main", "count": 1, "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}
    ((read,), (said,)) = pod_sets([entry], NAMES, "ns")
    shape = read.shape
    assert said == f"pod set main: {shape.refused}"
    assert "at most" in shape.refused
    assert shape.uncounted == shape.refused
    kept = (shape.near, shape.affinity, shape.tolerations, shape.node_selector, shape.host_ports, shape.claims)
    assert not any(kept)
    assert (dict(shape.labels)["a"], len(shape.apart)) == ("b", 2 if row == "terms" else 0)


def test_what_is_made_of_a_template_within_its_limits_is_read() -> None:
    """The API server, RuntimeClasses and JobSet add to it."""
    spec = {"containers": [c({"cpu": "1"})], "tolerations": [{"key": "k"}] * 1024}
    assert not shape_of({"spec": spec}, NAMES).refused


def test_a_pod_of_others_that_asks_too_much_has_its_domains_to_itself() -> None:
    """What is not read may keep anybody away."""
    keys = [f"key-{i % 40:02}" for i in range(200)]
    selects = {"labelSelector": {"matchLabels": {"a": "b"}}}
    terms = [{"topologyKey": key, **selects} for key in keys]
    asked = anti_affinity({"affinity": {"podAntiAffinity": {REQUIRED: terms}}}, "ns", {})
    assert {one.selector for one in asked} == {LabelSelector()}
    assert {one.namespaces for one in asked} == {()}
    assert [one.key for one in asked] == [*(f"key-{i:02}" for i in range(16)), HOSTNAME_LABEL]
    few = anti_affinity({"affinity": {"podAntiAffinity": {REQUIRED: terms[:128]}}}, "ns", {})
    assert {one.namespaces for one in few} == {("ns",)}


EXCLUSIVE_JOBSET: Json = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "js", "namespace": "ns", "uid": "u"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "w",
                "replicas": 3,
                "template": {
                    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}
                },
            }
        ]
    },
}
TOPOLOGY_KEY, BY_SELECTOR = "alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector"
BY_WEBHOOK = Exclusive("net/rack", 2)
OWN_NODES = Exclusive("alpha.jobset.sigs.k8s.io/namespaced-job", 2, "ns_js-w-")


@pytest.mark.parametrize(
    ("on_set", "on_job", "on_pod", "wanted"),
    [
        ({}, {}, {}, None),
        ({BY_SELECTOR: "true"}, {}, {}, None),
        ({TOPOLOGY_KEY: "net/rack"}, {}, {}, BY_WEBHOOK),
        ({}, {TOPOLOGY_KEY: "net/rack"}, {}, BY_WEBHOOK),
        ({}, {}, {TOPOLOGY_KEY: "net/rack"}, BY_WEBHOOK),
        ({TOPOLOGY_KEY: "zone"}, {TOPOLOGY_KEY: "net/rack"}, {}, BY_WEBHOOK),
        ({TOPOLOGY_KEY: "net/rack"}, {}, {TOPOLOGY_KEY: "zone"}, BY_WEBHOOK),
        ({TOPOLOGY_KEY: "net/rack", BY_SELECTOR: "true"}, {}, {}, OWN_NODES),
        ({TOPOLOGY_KEY: "zone"}, {TOPOLOGY_KEY: "net/rack", BY_SELECTOR: "true"}, {}, OWN_NODES),
    ],
)
def test_exclusive_topology_as_the_pods_will_have_it(
    on_set: Json, on_job: Json, on_pod: Json, wanted: Exclusive | None
) -> None:
    raw = copy.deepcopy(EXCLUSIVE_JOBSET)
    (entry,) = raw["spec"]["replicatedJobs"]
    on_set, on_job, on_pod = dict(on_set), dict(on_job), dict(on_pod)
    raw["metadata"]["annotations"] = on_set
    entry["template"]["metadata"] = {"annotations": on_job}
    entry["template"]["spec"]["template"]["metadata"] = {"annotations": on_pod}
    made, problems = build_workload(JOBSET, raw, NAMES)
    assert problems == ()
    (pod_set,), _ = pod_sets(made["spec"]["podSets"], NAMES, "ns")
    assert (pod_set.shape.exclusive, pod_set.shape.refused, pod_set.shape.of_jobset) == (wanted, "", True)
    reserved = Toleration("alpha.jobset.sigs.k8s.io/no-schedule", "Exists", "", "NoSchedule")
    assert pod_set.shape.tolerations == ((reserved,) if wanted is OWN_NODES else ())
    for notes in (on_set, on_job, on_pod):
        notes.clear()
    plain = build_workload(JOBSET, raw, NAMES)[0]
    hashes = {w["metadata"]["annotations"][NAMES.spec_hash_annotation] for w in (made, plain)}
    assert len(hashes) == (2 if wanted else 1), "a change of it is a change of the job"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completionMode": "NonIndexed"}, "completionMode Indexed"),
        ({"completions": 4}, "completions no higher than parallelism"),
        ({"completions": None}, "without an index"),
    ],
)
def test_exclusive_topology_needs_an_index_for_every_pod(change: Json, said: str) -> None:
    raw = copy.deepcopy(EXCLUSIVE_JOBSET)
    raw["metadata"]["annotations"] = {TOPOLOGY_KEY: "net/rack"}
    raw["spec"]["replicatedJobs"][0]["template"]["spec"] |= change
    (pod_set,), problems = pod_sets(build_workload(JOBSET, raw, NAMES)[0]["spec"]["podSets"], NAMES, "ns")
    assert said in pod_set.shape.refused
    assert problems == (f"pod set w: {pod_set.shape.refused}",)
    assert pod_set.shape.exclusive is None


@pytest.mark.parametrize(
    ("word", "key", "sound"),
    [
        ("podAffinity", "net/block", False),
        ("podAntiAffinity", "net/block", False),
        ("podAntiAffinity", "kubernetes.io/hostname", True),
    ],
)
def test_exclusive_topology_beside_what_a_gang_asks_of_itself(word: str, key: str, sound: bool) -> None:
    raw = copy.deepcopy(EXCLUSIVE_JOBSET)
    raw["metadata"]["annotations"] = {TOPOLOGY_KEY: "net/rack"}
    pod = raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["metadata"] = {"labels": {"app": "x"}}
    own = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}}
    pod["spec"]["affinity"] = {word: {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}
    (pod_set,), _ = pod_sets(build_workload(JOBSET, raw, NAMES)[0]["spec"]["podSets"], NAMES, "ns")
    why = "exclusive topology beside a gang's affinity to itself cannot be honoured: drop the affinity"
    assert pod_set.shape.refused == ("" if sound else why)


@pytest.mark.parametrize(
    ("keys", "asks"), [([JOBSET_JOB_KEY_LABEL], False), ([JOBSET_JOB_KEY_LABEL, "app"], True), ([], True)]
)
def test_of_an_exclusive_pod_the_terms_that_jobset_adds_are_left_out_and_no_others(keys: list[str], asks: bool) -> None:
    needs = [{"key": key, "operator": "Exists"} for key in keys]
    term = {"topologyKey": "rack", "labelSelector": {"matchExpressions": needs}}
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}
    assert bool(anti_affinity(spec, "team", {}, "rack")) is asks
    assert len(anti_affinity(spec, "team", {}, "zone")) == 1


def test_a_pod_says_whether_it_is_of_a_jobset_and_exclusive() -> None:
    pod = {"metadata": {"name": "p", "namespace": "ns", "labels": {}, "annotations": {TOPOLOGY_KEY: "net/rack"}}}
    pod["spec"] = {"nodeName": "n", "containers": []}
    seen = []
    for labels, notes in (({}, {}), ({"jobset.sigs.k8s.io/job-key": "k"}, {}), ({}, {BY_SELECTOR: "true"})):
        pod["metadata"]["labels"].update(labels)  # type: ignore[attr-defined]
        pod["metadata"]["annotations"].update(notes)  # type: ignore[attr-defined]
        usage = pod_usage(pod, NAMES)
        assert usage is not None
        seen.append((usage.of_jobset, usage.exclusive_key))
    assert seen == [(False, ""), (True, "net/rack"), (True, "")]


KEYS = [
    "containers",
    "initContainers",
    "resources",
    "requests",
    "limits",
    "affinity",
    "nodeAffinity",
    "name",
    "podAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
    "ports",
    "cpu",
    "matchExpressions",
    "labelSelector",
    "tolerations",
    "nodeSelector",
    "overhead",
    "key",
    "operator",
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["1", "In", "Always", "cpu"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON)
def test_every_template_has_a_shape(spec: Any, meta: Any) -> None:
    template = {"spec": spec, "metadata": meta}
    hash(shape_of(complete(template, limit_ranges=[{"spec": spec}], runtime_class={"scheduling": spec}), NAMES))
