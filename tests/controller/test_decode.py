"""What is kept of a Workload is what its full form says, whatever else it carries."""

from __future__ import annotations

import json

import msgspec
import pytest

from admission.controller import decode
from admission.jobs import values
from admission.jobs.kinds import JOB
from admission.names import (
    CONTROLLER_UID_LABEL,
    JOB_COMPLETION_INDEX,
    JOBSET_NAME_LABEL,
    JOBSET_UID_LABEL,
    KUEUE_GROUP,
    Names,
)

NAMES = Names(KUEUE_GROUP)
MARKS = {NAMES.managed_label: "true", NAMES.workload_uid_label: "u-1", NAMES.pod_set_label: "main"}
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "500m"}}}]}}


def workload(**spec) -> dict:
    return {
        "metadata": {
            "name": "w",
            "namespace": "team",
            "uid": "u-1",
            "resourceVersion": "7",
            "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "somebody", "fieldsV1": {"f:spec": {}}}],
            "labels": {NAMES.job_uid_label: "job-1"},
            "annotations": {NAMES.spec_hash_annotation: "abc"},
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True, "uid": "job-1"}],
        },
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 2, "template": TEMPLATE}], **spec},
    }


CONDITIONS = [
    {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
    {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"},
]
ADMISSION = {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "count": 2, "flavors": {"cpu": "rf"}}]}


def ref(version: str, kind: str, *, controller: bool = True) -> dict:
    return {"apiVersion": version, "kind": kind, "name": "it", "uid": "u", "controller": controller}


@pytest.mark.parametrize(
    ("owners", "unmanaged"),
    [
        ([ref("ray.io/v1", "RayJob")], "RayJob it"),
        ([ref("v1", "Pod", controller=False)] * 2, "Pod it"),
        ([ref("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", controller=False)], "LeaderWorkerSet it"),
        ([ref("apps/v1", "StatefulSet", controller=False)], "StatefulSet it"),
        ([ref("kueue.x-k8s.io/v1beta2", "Workload")], ""),
        ([ref("batch/v1", "Job")], ""),
        ([ref("jobset.x-k8s.io/v1alpha2", "JobSet")], ""),
        ([ref("example.com/v1", "AppWrapper")], ""),
        ([], ""),
    ],
)
def test_what_kueue_alone_starts_is_known_by_its_owners(owners: list, unmanaged: str) -> None:
    obj = workload()
    obj["metadata"]["ownerReferences"] = owners
    raw = msgspec.Raw(json.dumps(obj).encode())
    value = decode.workload(NAMES, raw).view.value
    assert value.unmanaged == unmanaged
    assert value.job_uid == ("" if unmanaged else "job-1"), "it would be deleted, for there is no such Job"
    assert decode.workload(Names(), raw).view.value.unmanaged == "", "in a group of our own whoever made it runs it"


@pytest.mark.parametrize(
    ("owners", "owner"),
    [
        ([ref("v1", "Pod", controller=False), ref("batch/v1", "Job")], ("Job", "it")),
        ([ref("batch.volcano.sh/v1alpha1", "Job")], ("Job.batch.volcano.sh", "it")),  # not the Job of that name
        ([ref("example.com/v1", "AppWrapper")], ("AppWrapper", "it")),
        ([ref("batch/v1", "Job", controller=False)], ("", "")),
    ],
)
def test_for_which_job_a_workload_stands_is_said_by_its_controller(owners: list, owner: tuple[str, str]) -> None:
    obj = workload()
    obj["metadata"]["ownerReferences"] = owners
    assert decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.owner == owner


@pytest.mark.parametrize(
    "obj",
    [
        workload(),
        workload(priority=5, active=False, maximumExecutionTimeSeconds=60),
        workload(preemptionGates=[{"name": "gate"}]),
        workload() | {"status": {"conditions": CONDITIONS, "admission": ADMISSION}},
        workload() | {"status": {"conditions": [{"type": "Finished", "status": "True"}]}},
        {"metadata": {"name": "bare", "namespace": "team"}},
    ],
    ids=["plain", "said more", "gated", "admitted", "finished", "empty"],
)
def test_a_workload_is_read_as_its_full_form_says(obj):
    # An equal spec is read from what is remembered of the first.
    for _ in range(2):
        seen = decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode()))
        assert seen.view.value == values.workload(obj, NAMES)[0]
    meta = obj["metadata"]
    assert (seen.uid, seen.resource_version) == (meta.get("uid", ""), meta.get("resourceVersion", ""))
    assert seen.view.max_execution_s == obj.get("spec", {}).get("maximumExecutionTimeSeconds")
    assert seen.status == ({} if seen.view.value.finished else obj.get("status", {}))


@pytest.mark.parametrize(
    ("kind", "said"), [("WorkloadPriorityClass", "high"), ("PriorityClass", ""), (None, "")], ids=str
)
def test_which_priority_class_a_workload_follows(kind: str | None, said: str) -> None:
    ref = {"priorityClassRef": {"group": "x", "kind": kind, "name": "high"}} if kind else {}
    assert decode.workload(NAMES, msgspec.Raw(json.dumps(workload(**ref)).encode())).view.priority_class == said


@pytest.mark.parametrize(("boost", "wrong"), [("5", ""), ("-5", ""), ("much", "much"), ("", "")])
def test_a_boost_that_is_no_number_is_told(boost: str, wrong: str) -> None:
    obj = workload()
    obj["metadata"]["annotations"][NAMES.priority_boost_annotation] = boost
    assert decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.no_boost == wrong


@pytest.mark.parametrize(("status", "kept_out"), [("False", "Deactivated"), ("True", "")])
def test_who_is_kept_out_is_known_by_its_last_word(status: str, kept_out: str) -> None:
    said = {"type": "Requeued", "status": status, "reason": "Deactivated"}
    obj = workload() | {"status": {"conditions": [said]}}
    assert decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.kept_out == kept_out


def test_a_job_is_kept_that_was_started_and_names_no_queue_any_more() -> None:
    note = {NAMES.inverse_annotation: json.dumps({"for": "w", "forms": [], "undo": []})}
    meta = {"name": "j", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    recent = decode.Recent()
    for uid, notes in (("plain", {}), ("started", note)):
        obj = {"metadata": meta | {"uid": uid, "annotations": notes}, "spec": {"template": TEMPLATE}}
        decode.job(JOB, NAMES, msgspec.Raw(json.dumps(obj).encode()), recent)
    assert [recent.get(uid, "1") is not None for uid in ("plain", "started")] == [False, True]


@pytest.mark.parametrize("more", [{}, {"deletionTimestamp": "2026-01-01T00:00:09Z"}], ids=["stays", "goes"])
def test_an_object_that_is_being_deleted_is_known_as_such(more: dict) -> None:
    raw = msgspec.Raw(json.dumps({"metadata": {"name": "a", "uid": "u"} | more}).encode())
    assert decode.named(raw).deleting is decode.plain(raw).deleting is bool(more)


def with_container(**said) -> dict:
    container = {"name": "c", "image": "c", "resources": {"requests": {"cpu": "500m"}}} | said
    starts = {"name": "i", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"memory": "1Gi"}}}
    template = {"spec": {"containers": [container], "initContainers": [starts]}}
    return workload(podSets=[{"name": "main", "count": 2, "template": template}])


@pytest.mark.parametrize(
    ("said", "alike"),
    [
        ({"image": "d", "args": ["--run=7"], "env": [{"name": "RUN", "value": "7"}], "workingDir": "/"}, True),
        ({"livenessProbe": {"httpGet": {"port": 80}}, "securityContext": {"runAsUser": 1}}, True),
        ({"resources": {"requests": {"cpu": "501m"}}}, False),
        ({"ports": [{"containerPort": 80, "hostPort": 80}]}, False),
    ],
)
def test_pod_sets_are_one_value_where_nothing_differs_that_is_read(said: dict, alike: bool) -> None:
    plain, other = (
        decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.value
        for obj in (with_container(), with_container(**said))
    )
    assert (plain.pod_sets is other.pod_sets) == (plain.pod_sets == other.pod_sets) == alike
    assert other == values.workload(with_container(**said), NAMES)[0]


def affinity(word: str, **selects: str) -> dict:
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": selects}}
    return {"affinity": {word: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


OF_JOB_1 = {"matchLabels": {"job-name": "1"}}
SPREAD = {"topologyKey": "rack", "maxSkew": 1, "labelSelector": {"matchLabels": {"app": "a"}}}


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        (({"app": "a", "job-name": "x"},), ({},)),
        (({},), ({},)),
        (({"app": "a"}, {"app": "b"}), ({}, {})),
        (({"app": "a"},), (affinity("podAntiAffinity", app="a"),)),
        (({"app": "a"}, {"app": "b"}), (affinity("podAntiAffinity", app="b"), {})),
        (({"app": "a"}, {"app": "b"}), ({}, affinity("podAffinity", app="a"))),
        (({"app": "a"}, {"app": "a"}), ({}, {"topologySpreadConstraints": [SPREAD]})),
        (({JOBSET_NAME_LABEL: "set"},), ({},)),
        (({"app": "a"},), ({"topologySpreadConstraints": [SPREAD | {"labelSelector": OF_JOB_1}]},)),
    ],
    ids=["own", "none", "two", "itself", "apart from", "beside", "spread", "JobSet", "spread of its Job"],
)
def test_templates_that_differ_in_labels_are_read_as_they_say(labels: tuple, spec: tuple) -> None:
    """Each Job's template has labels of its own, and what is read of the rest is shared."""

    def made(**more: str) -> dict:
        return workload(
            podSets=[
                {
                    "name": f"set-{i}",
                    "count": 2,
                    "template": {"metadata": {"labels": own | more}, "spec": TEMPLATE["spec"] | said},
                }
                for i, (own, said) in enumerate(zip(labels, spec, strict=True))
            ]
        )

    for obj in (made(**{"job-name": "1"}), made(**{"job-name": "2"}), made()):
        seen = decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.value
        whole = values.workload(obj, NAMES)[0]
        assert seen == whole
        assert [part.shape.labels for part in seen.pod_sets] == [part.shape.labels for part in whole.pod_sets]


def test_what_is_remembered_is_bounded_by_bytes() -> None:
    asked = []
    read = decode.Read(lambda names, namespace, raw: asked.append(raw) or len(raw), limit_bytes=100)
    small, large = [b"%d" % i * 40 for i in range(2)], b"x" * 101
    assert [read(NAMES, "a", raw) for raw in (*small, *small, large, *small)] == [40, 40, 40, 40, 101, 40, 40]
    assert asked == [*small, large, *small]
    read(NAMES, "a", small[0])
    read(NAMES, "b", small[0])  # the one that was asked for longest ago goes
    read(NAMES, "a", small[0])
    assert asked[5:] == [small[0]]


def test_the_jobs_seen_last_are_kept_in_their_last_version() -> None:
    recent = decode.Recent(limit_bytes=30)
    for uid, version in (("a", "1"), ("b", "2"), *(("a", str(n)) for n in range(3, 9))):
        recent.put(uid, version, b'{"v":%b}' % version.encode())
    assert [recent.get(*of) for of in (("a", "8"), ("a", "7"), ("b", "2"))] == [{"v": 8}, None, {"v": 2}]
    for uid in ("c", "d", "e"):
        recent.put(uid, "9", b'{"v":"012"}')
    assert [recent.get(uid, "9") is None for uid in ("c", "d", "e")] == [True, False, False]
    assert recent.get("b", "2") is None


def test_a_workload_of_others_that_says_too_much_is_refused_in_words() -> None:
    template = {"spec": {**TEMPLATE["spec"], "nodeSelector": {f"k{i}": "v" for i in range(1025)}}}
    obj = workload(podSets=[{"name": "main", "count": 2, "template": template}])
    (pod_set,) = decode.workload(NAMES, msgspec.Raw(json.dumps(obj).encode())).view.value.pod_sets
    assert pod_set.shape.uncounted == "the nodeSelector of a queued job's template has at most 1024 labels"


def pod(spec: dict | None = None, status: dict | None = None, **meta) -> dict:
    return {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u-2",
            "resourceVersion": "8",
            "creationTimestamp": "2026-01-01T00:00:01Z",
            "labels": MARKS,
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True, "uid": "job-1"}],
            "managedFields": [{"manager": "somebody", "fieldsV1": {"f:spec": {}}}],
            **meta,
        },
        "spec": {"containers": TEMPLATE["spec"]["containers"], "tolerations": [{"key": "x"}], **(spec or {})},
        "status": status or {},
    }


OF_OTHERS = {CONTROLLER_UID_LABEL: "theirs", JOBSET_UID_LABEL: "set"}


def pinned(*nodes: str) -> dict:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


INIT = {"name": "i", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
PORT = {"name": "c", "ports": [{"hostPort": 80}]}


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        (pod(), {"node": "", "created_at": 1767225601000, "owner_uid": "job-1", "pod_set": "main"}),
        (pod({"nodeName": "n"}, {"phase": "Running"}), {"node": "n", "done": False}),
        (pod({"nodeName": "n"}, {"phase": "Succeeded"}), {"done": True}),
        (pod({"nodeName": "n", "initContainers": [INIT], "overhead": {"cpu": "1"}}), {"node": "n"}),
        (pod({"nodeName": "n", "containers": [PORT], "resources": {"requests": {"cpu": "3"}}}), {"node": "n"}),
        (pod({"nodeName": "n"}, deletionTimestamp="2026-01-01T00:00:09Z"), {"terminating": True}),
        (pod(None, {"nominatedNodeName": "n"}, labels={"a": "b"}), {"workload_uid": "", "node": ""}),
        (
            pod({"nodeName": "n"}, labels={NAMES.workload_uid_label: "u-1", NAMES.pod_set_label: "main"}),
            {"workload_uid": "", "pod_set": ""},  # anybody may write these; who may write our mark is guarded
        ),
        (
            pod({"nodeName": "n"}, labels=OF_OTHERS),
            {"workload_uid": "", "owner_uid": "job-1", "jobset_uid": ""},  # and whose it is, no more
        ),
        (pod({"nodeName": "n"}, labels=MARKS | OF_OTHERS), {"owner_uid": "theirs", "jobset_uid": "set"}),
        (pod({"affinity": pinned("n")}), {"pinned": "n"}),
        (pod({"affinity": pinned("n", "m")}), {"pinned": ""}),  # its owner leaves it a choice
        (
            pod(
                {"nodeName": "n", "containers": [PORT], "initContainers": [INIT | {"restartPolicy": "Always"}]},
                {
                    "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
                    "resize": "Deferred",
                    "containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "5"}}, "ready": True}],
                    "initContainerStatuses": [{"name": "i", "allocatedResources": {"cpu": "7"}}],
                },
            ),
            {"node": "n"},
        ),
        (
            pod(
                {"nodeName": "n", "containers": [PORT], "resources": {"requests": {"cpu": "3"}}},
                {"resize": "Infeasible", "resources": {"requests": {"cpu": "5"}}, "allocatedResources": {"cpu": "4"}},
            ),
            {"node": "n"},
        ),
        (pod({"schedulingGates": [{"name": NAMES.topology_gate}]}), {"gated": True}),
        (
            pod({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "b"}}, {"name": "x", "emptyDir": {}},
                             {"name": "w", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}}]}),
            {"claims": ("a", "b")},
        ),
        (
            pod(None, {"conditions": [{"type": "Ready", "status": "True"}]}, labels=None, ownerReferences=None),
            {"ready": True, "held_by": ""},
        ),
        (
            pod(None, {"conditions": [CONDITIONS[0] | {"type": "PodScheduled", "status": "False"}]}),
            {"unschedulable_since": None},
        ),
        (
            pod(None, {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                       "lastTransitionTime": "2026-01-01T00:00:05Z", "message": "no"}]}),
            {"unschedulable_since": 1767225605000, "unschedulable_message": "no"},
        ),
    ],
)  # fmt: skip
def test_a_pod_holds_what_its_full_form_says(obj: dict, said: dict) -> None:
    seen = decode.pod(NAMES, msgspec.Raw(json.dumps(obj).encode()))
    assert seen.usage == values.pod_usage(obj, NAMES)
    assert {name: getattr(seen, name) for name in said} == said


WORKS, PROBED, STARTS = ({"running": {}}, True), ({"running": {}}, False), ({"waiting": {"reason": "Error"}}, False)
DONE, FAILED = (({"terminated": {"exitCode": code}}, False) for code in (0, 1))
SIDECAR = {"name": "s", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("containers", "started_by", "said", "ready"),
    [
        ({"a": WORKS, "b": DONE}, {}, {}, True),
        ({"a": DONE, "b": WORKS}, {"s": WORKS, "i": DONE}, {}, True),
        ({"a": DONE, "b": DONE}, {"s": WORKS}, {}, True),
        ({"a": WORKS, "b": FAILED}, {}, {}, False),
        ({"a": WORKS, "b": STARTS}, {}, {}, False),
        ({"a": PROBED, "b": DONE}, {}, {}, False),
        ({"a": WORKS, "b": DONE}, {"s": PROBED}, {}, False),
        ({"a": WORKS}, {}, {}, False),  # nothing is known of the other
        ({"a": WORKS, "b": DONE}, {"i": DONE}, {}, False),  # nor of the sidecar
        ({"a": WORKS, "b": DONE}, {}, {"reason": "ReadinessGatesNotReady"}, False),
        ({"a": WORKS, "b": DONE}, {}, {"reason": None}, False),  # its node is silent
    ],
)
def test_a_pod_is_ready_whose_other_containers_are_done(
    containers: dict, started_by: dict, said: dict, ready: bool
) -> None:
    """A kubelet calls it not ready for as long as the others work, and its gang would be sent back for that."""
    statuses = [
        [{"name": name, "state": state, "ready": is_ready} for name, (state, is_ready) in group.items()]
        for group in (containers, started_by)
    ]
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:05Z"}
    unready |= {"reason": "ContainersNotReady"} | said
    spec = {"nodeName": "n", "containers": [{"name": "a"}, {"name": "b"}]}
    spec["initContainers"] = [{"name": "i"}, SIDECAR] if started_by else []
    status = {"phase": "Running", "conditions": [unready], "containerStatuses": statuses[0]}
    obj = pod(spec, status | {"initContainerStatuses": statuses[1]})
    seen = decode.pod(NAMES, msgspec.Raw(json.dumps(obj).encode()))
    assert (seen.ready, seen.unready_since) == (ready, 0 if ready else 1767225605000)


def ended(code: int, second: int) -> dict:
    return {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}}


@pytest.mark.parametrize(
    ("second", "since"),
    [
        ({"state": ended(1, 40)}, 40),
        ({"state": {"waiting": {}}, "lastState": ended(1, 30)}, 30),
        ({"state": {"running": {}}}, 5),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_a_pod_is_unready_since_what_failed(second: dict, since: int, code: int) -> None:
    """Its kubelet has one time for all of it: that of the container that ended first, though it ended well."""
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    unready["lastTransitionTime"] = "2026-01-01T00:00:05Z"
    statuses = [{"name": "a", "ready": False, "state": ended(code, 5)}, {"name": "b", "ready": False, **second}]
    status = {"phase": "Running", "conditions": [unready], "containerStatuses": statuses}
    obj = pod({"nodeName": "n", "containers": [{"name": "a"}, {"name": "b"}]}, status)
    seen = decode.pod(NAMES, msgspec.Raw(json.dumps(obj).encode()))
    assert (seen.ready, seen.unready_since) == (False, 1767225600000 + 1000 * (5 if code else since))
    assert seen.turned_at == 1767225605000


MANY = {f"example.com/{i:05}": "x" * 63 for i in range(10_000)}
GATED = {"schedulingGates": [{"name": NAMES.topology_gate}]}
RANK = {
    "batch.kubernetes.io/job-completion-index": "1",
    "jobset.sigs.k8s.io/job-index": "2",
    "jobset.sigs.k8s.io/replicatedjob-replicas": "3",
}


@pytest.mark.parametrize(
    ("spec", "labels", "kept"),
    [
        ({"nodeName": "n"}, MANY, sorted(MANY.items())[:256]),
        ({"nodeName": "n"}, {"a": "b"}, [("a", "b")]),
        (None, MANY, []),  # it stands nowhere yet
        ({"nodeName": "n", **GATED}, pod()["metadata"]["labels"] | MANY | RANK, sorted(RANK.items())),
        ({"nodeName": "n"}, pod()["metadata"]["labels"] | MANY, sorted((MARKS | MANY).items())[:256]),
        ({}, MARKS, []),
    ],
)
def test_of_the_labels_of_pods_so_many_are_kept(spec: dict | None, labels: dict, kept: list) -> None:
    """Kubernetes knows no bound: a few hundred pods with all that an object may have would fill the memory."""
    seen = decode.pod(NAMES, msgspec.Raw(json.dumps(pod(spec, labels=labels)).encode()))
    assert list(seen.labels) == kept


@pytest.mark.parametrize(
    ("alike", "own"),
    [
        ({"app": "x", "job-name": "a"}, {JOB_COMPLETION_INDEX: "3"}),
        ({"app": "x", JOBSET_NAME_LABEL: "s"}, {"jobset.sigs.k8s.io/job-index": "7", "job-name": "s-w-7"}),
    ],
)
def test_of_the_labels_of_a_gangs_pod_those_are_kept_that_all_of_them_have(alike: dict, own: dict) -> None:
    """There are many: each by itself would be held with all that it says."""
    seen = decode.pod(NAMES, msgspec.Raw(json.dumps(pod({"nodeName": "n"}, labels=MARKS | alike | own)).encode()))
    assert dict(seen.labels) == MARKS | alike | dict.fromkeys(own, "")


def lost(taint: str, seconds: int | None, effect: str = "NoExecute") -> dict:
    """A toleration of a node that is not-ready, or unreachable."""
    made = {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": effect}
    return made if seconds is None else made | {"tolerationSeconds": seconds}


@pytest.mark.parametrize(
    ("tolerations", "stays_ms"),
    [
        ([lost("not-ready", 300), lost("unreachable", 300)], 300_000),
        ([lost("not-ready", 300), lost("unreachable", 20)], 20_000),
        ([lost("not-ready", 300), lost("unreachable", 300), {"operator": "Exists", "tolerationSeconds": 60}], 60_000),
        ([{"operator": "Exists"}], None),
        ([lost("not-ready", None), lost("unreachable", 40)], 40_000),
        ([lost("not-ready", 300)], 0),  # nobody has filled in the other: deleted at once
        ([lost("not-ready", 300), lost("unreachable", 300, "NoSchedule")], 0),
        ([lost("not-ready", -5), lost("unreachable", 300)], 0),
    ],
)
def test_how_long_a_pod_stays_on_a_node_that_is_lost(tolerations: list, stays_ms: int | None) -> None:
    """As the taint-eviction controller of Kubernetes reckons: the shortest of those that tolerate the taint."""
    obj = pod({"nodeName": "n", "tolerations": tolerations})
    assert decode.pod(NAMES, msgspec.Raw(json.dumps(obj).encode())).stays_ms == stays_ms
