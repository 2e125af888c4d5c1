"""The rules of hold on rows. That CEL says the same is asked of a real API server, in e2e."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.api.workload import POD_SETS
from admission.engine.model import Admission, Flavor, PodSetAssignment, Toleration
from admission.jobs import hold
from admission.jobs.hold import (
    PATIENCE_S,
    Caller,
    Messages,
    mutate_job,
    mutate_pod,
    validate_delete,
    validate_job,
    validate_pod,
)
from admission.jobs.kinds import JOB, JOBSET
from admission.jobs.pins import Start, start, tolerations_value
from admission.jobs.requests import LIMITS, excess_words
from admission.jobs.workload import build_workload
from admission.names import (
    CONTROLLER_UID_LABEL,
    JOB_COMPLETION_INDEX,
    JOB_TRACKING_FINALIZER,
    JOBSET_REPLICATED_JOB_LABEL,
    KUEUE_GROUP,
    Names,
)
from tests.jobs.test_pins import jobset, patched

NAMES = Names()
SAY = Messages(NAMES)
Json = dict[str, Any]

TENANT = Caller("ann", field_manager="kubectl")
ADMIN = Caller("root", may_admit=True, runs_jobsets=True, field_manager="argocd")
US = Caller("system:serviceaccount:muster-system:muster", may_admit=True, field_manager=NAMES.job_manager)
JOBSETS = Caller(hold.IDENTITIES.jobset_controllers[0])
OTHER_JOBSETS = Caller("system:serviceaccount:elsewhere:jobset", runs_jobsets=True)
CHILD = [{"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2", "controller": True, "uid": "x", "name": "s"}]


def job(*, label: str | None = "q", suspend: bool | None = True, started: bool = False, **more: Any) -> Json:
    meta: Json = {"name": "j", "labels": {} if label is None else {NAMES.queue_label: label}}
    if started:
        meta["annotations"] = {NAMES.inverse_annotation: '{"undo":[]}'}
    spec: Json = {"parallelism": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}
    if suspend is not None:
        spec["suspend"] = suspend
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**meta, **more}, "spec": spec}


def limited(made: Json) -> Json:
    made["metadata"]["labels"][NAMES.max_exec_time_label] = "60"
    return made


def answer(old: Json | None, new: Json, caller: Caller, *, governed: bool = False) -> tuple[str | None, bool]:
    """(refusal, suspended afterwards)"""
    after = patched(new, mutate_job(old, new, caller, NAMES, governed=governed))
    refused = validate_job(old, after, caller, NAMES, governed=governed)
    assert mutate_job(old, after, caller, NAMES, governed=governed) == []
    return refused, after["spec"].get("suspend") is True


@pytest.mark.parametrize("caller", [TENANT, ADMIN, US, JOBSETS], ids=lambda c: c.user)
@pytest.mark.parametrize("suspend", [None, False, True])
def test_a_labelled_job_is_created_suspended(suspend: bool | None, caller: Caller) -> None:
    assert answer(None, job(suspend=suspend), caller) == (None, True)
    assert answer(None, job(label=None, suspend=suspend), caller) == (None, suspend is True)
    assert answer(None, job(label=None, suspend=suspend), caller, governed=True) == (None, True)


@pytest.mark.parametrize("suspend", [False, True])
def test_where_every_job_is_governed_its_maker_may_say_suspend_as_often_as_he_likes(suspend: bool) -> None:
    """As the MPI operator does of its launcher, whenever it looks."""
    held, runs = job(label=None), job(label=None, suspend=False, started=True)
    assert answer(held, job(label=None, suspend=suspend), TENANT, governed=True) == (None, True)
    assert answer(runs, job(label=None, suspend=suspend, started=True), TENANT, governed=True) == (None, False)


@pytest.mark.parametrize(
    ("old", "new", "caller", "refused", "suspended"),
    [
        # spec.suspend is ours
        (job(), job(suspend=False), TENANT, None, True),
        (job(), job(suspend=None), TENANT, None, True),
        (job(), job(suspend=False), ADMIN, None, True),
        (job(), job(suspend=False), Caller("ann", field_manager=NAMES.job_manager), None, True),
        (job(), job(suspend=False), US, None, False),
        (job(suspend=False, started=True), job(started=True), TENANT, None, False),
        (job(suspend=False, started=True), job(started=True), US, None, True),
        # of unlabelled jobs it is not
        (job(label=None), job(label=None, suspend=False), TENANT, None, False),
        # an empty label, as a template without a value renders
        (None, job(label=""), TENANT, SAY.empty_label, True),
        (None, job(label=""), ADMIN, SAY.empty_label, True),
        (job(), job(label=""), TENANT, SAY.empty_label, True),
        (job(label=None), job(label=""), TENANT, SAY.empty_label, True),
        (job(label=""), job(label="", started=False), TENANT, None, True),
        (job(label=""), job(), TENANT, None, True),
        (job(label=""), job(label=None), TENANT, None, True),
        # label games
        (job(), job(label="other"), TENANT, None, True),
        (job(), job(label=None), TENANT, None, True),
        (job(), job(label=None, suspend=False), TENANT, None, True),
        (job(label=None), job(suspend=False), TENANT, None, True),
        (job(label=None, suspend=False), job(suspend=False), TENANT, SAY.label, False),
        (job(suspend=False, started=True), job(label="x", suspend=False, started=True), TENANT, SAY.label, False),
        (job(started=True), job(label=None, started=True), TENANT, SAY.label, True),
        # its time, once it was started
        (job(), limited(job()), TENANT, None, True),
        (limited(job(suspend=False, started=True)), job(suspend=False, started=True), TENANT, SAY.limit, False),
        (job(suspend=False, started=True), limited(job(suspend=False, started=True)), ADMIN, SAY.limit, False),
        (job(started=True), limited(job(started=True)), US, None, True),
        # children of JobSets
        (
            job(label=None, ownerReferences=CHILD),
            job(label=None, suspend=False, ownerReferences=CHILD),
            TENANT,
            None,
            True,
        ),
        (job(label=None, ownerReferences=CHILD), job(label=None, suspend=False), ADMIN, SAY.child_frozen, True),
        (
            job(label=None, ownerReferences=CHILD),
            job(label=None, suspend=False, ownerReferences=CHILD),
            JOBSETS,
            None,
            False,
        ),
        (
            job(label=None, ownerReferences=CHILD),
            job(label=None, suspend=False, ownerReferences=CHILD),
            OTHER_JOBSETS,
            None,
            False,
        ),
        # ... which somebody gave a queue, as a tool may that gives one to every Job
        (None, job(suspend=False, ownerReferences=CHILD), JOBSETS, None, False),
        (job(ownerReferences=CHILD), job(suspend=False, ownerReferences=CHILD), OTHER_JOBSETS, None, False),
        (job(ownerReferences=CHILD), job(suspend=False, ownerReferences=CHILD), TENANT, None, True),
        # our note
        (job(), job(started=True), TENANT, SAY.inverse, True),
        (job(), job(started=True), ADMIN, SAY.inverse, True),  # whoever may admit restores by making a job anew
        (job(suspend=False, started=True), job(suspend=False), ADMIN, SAY.label, False),
    ],
)
def test_updates(old: Json | None, new: Json, caller: Caller, refused: str | None, suspended: bool) -> None:
    if old is not None and refused == SAY.label and new["metadata"]["labels"] == old["metadata"]["labels"]:
        refused = SAY.inverse
    assert answer(old, new, caller) == (refused, suspended)


def _owned(kind: str, *, controller: bool = True) -> list[Json]:
    group, _, name = kind.rpartition("/")
    return [{"apiVersion": f"{group}/v9" if group else "v1", "kind": name, "controller": controller, "name": "x"}]


@pytest.mark.parametrize(
    ("made", "queued"),
    [
        (job(label=None, suspend=None), True),
        (job(label=None), True),
        (job(label=None, labels={"a": "b"}), True),
        (job(label=None, labels=None), True),
        (job(label="q"), False),
        (job(label=""), True),
        (job(label="", ownerReferences=_owned(hold.QUEUED_OWNERS[0])), False),
        (job(label=None, ownerReferences=_owned("batch/CronJob")), True),
        (job(label=None, ownerReferences=_owned("argoproj.io/Workflow")), True),
        (job(label=None, ownerReferences=_owned("batch/Job", controller=False)), True),
        (job(label=None, ownerReferences=_owned("Job")), True),
        *((job(label=None, ownerReferences=_owned(kind)), False) for kind in hold.QUEUED_OWNERS),
    ],
)
def test_a_job_without_a_queue_gets_the_default_one_and_is_held(made: Json, queued: bool) -> None:
    after = patched(made, hold.default_queue(made, NAMES))
    if not queued:
        assert after == made
        return
    assert after["metadata"]["labels"] == {**(made["metadata"]["labels"] or {}), NAMES.queue_label: "default"}
    assert after["spec"]["suspend"] is True
    assert hold.default_queue(after, NAMES) == [] == mutate_job(None, after, TENANT, NAMES)
    assert validate_job(None, after, TENANT, NAMES) is None


def test_without_the_first_net_the_second_refuses() -> None:
    for caller in (TENANT, US):
        assert validate_job(None, job(suspend=None), caller, NAMES) == SAY.created_running
    assert validate_job(job(), job(suspend=False), TENANT, NAMES) == SAY.started
    child = job(label=None, ownerReferences=CHILD)
    assert validate_job(child, {**child, "spec": {**child["spec"], "suspend": False}}, TENANT, NAMES) == SAY.child


@pytest.mark.parametrize(
    "change", [{"parallelism": 3}, {"completions": 1}, {"template": {"spec": {"containers": []}}}], ids=str
)
def test_what_holds_room_keeps_its_size(change: Json) -> None:
    for started, refused in ((True, SAY.frozen), (False, None)):
        old = job(started=started)
        new = {**old, "spec": {**old["spec"], **change}}
        assert validate_job(old, new, TENANT, NAMES) == refused
        assert validate_job(old, new, US, NAMES) is None


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"parallelism": 0}, None),
        ({"parallelism": 0, "completions": 1}, SAY.frozen),
        ({"parallelism": 0, "template": {"spec": {"containers": []}}}, SAY.frozen),
    ],
    ids=str,
)
def test_an_owner_may_end_a_job_by_asking_for_no_pods_any_more(change: Json, refused: str | None) -> None:
    """There are tools that do; and nothing runs for which there is no room."""
    old = job(started=True)
    assert validate_job(old, {**old, "spec": {**old["spec"], **change}}, TENANT, NAMES) == refused
    child = job(label=None, started=True, ownerReferences=CHILD)
    assert validate_job(child, {**child, "spec": {**child["spec"], **change}}, TENANT, NAMES) == SAY.child_frozen


@pytest.mark.parametrize(
    ("meta", "spec"),
    [
        ({"labels": {NAMES.managed_label: "true"}}, {}),
        ({"labels": {NAMES.workload_uid_label: "w"}}, {}),
        ({"annotations": {NAMES.hosts_annotation: "n1"}}, {}),
        ({"annotations": {NAMES.pinned_annotation: "true"}}, {}),
        ({}, {"schedulingGates": [{"name": NAMES.topology_gate}]}),
    ],
)
@pytest.mark.parametrize("label", ["q", None])
def test_our_keys_are_ours(meta: Json, spec: Json, label: str | None) -> None:
    new = job(label=label)
    new["spec"]["template"]["metadata"] = meta
    new["spec"]["template"]["spec"] |= spec
    for caller, refused in ((TENANT, SAY.reserved), (ADMIN, SAY.reserved), (JOBSETS, None)):
        assert validate_job(None, new, caller, NAMES) == refused
        assert validate_job(job(label=label), new, caller, NAMES) == refused
    assert validate_job(new, copy.deepcopy(new), TENANT, NAMES) is None
    assert validate_job(job(label=label), new, US, NAMES) is None
    assert validate_job(None, {**job(), "spec": {**job()["spec"], "template": {"metadata": {"annotations": {
        NAMES.required_topology_annotation: "rack"}}}}}, TENANT, NAMES) is None  # fmt: skip


@pytest.mark.parametrize(
    ("made", "path"), [(job(suspend=False), ("spec",)), (jobset(), ("spec", "replicatedJobs", 0, "template", "spec"))]
)
def test_a_job_is_restored_as_it_was_while_it_ran_by_whoever_may_admit(made: Json, path: tuple[str | int, ...]) -> None:
    made = copy.deepcopy(made)
    made["metadata"] = {"name": "j", "labels": {NAMES.queue_label: "q"}}
    holder = made
    for key in path:
        holder = holder[key]
    template = holder["template"]
    template["metadata"] = {"labels": {NAMES.managed_label: "true"}, "annotations": {NAMES.hosts_annotation: "n1"}}
    made["metadata"]["annotations"] = {NAMES.inverse_annotation: '{"undo":[]}'}
    assert answer(None, made, ADMIN) == (None, True)
    assert answer(None, made, TENANT) == (SAY.reserved, True)
    template["metadata"] = {}
    assert answer(None, made, TENANT) == (SAY.inverse, True)
    made["metadata"]["labels"] = {}
    made["spec"]["suspend"] = False
    assert answer(None, made, ADMIN) == (SAY.inverse, False), "nobody would hold it"


CONTAINERS = [{"name": "c", "resources": {"limits": {"gpu": "64"}}}]
LIMITED = excess_words(LIMITS)
NODE_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"parallelism": 400}},
        {"spec": {"completions": 400}},
        {"spec": {"template": {"spec": {"containers": CONTAINERS}}}},
        {"metadata": {"ownerReferences": []}},
        {"metadata": {"ownerReferences": [*CHILD, {"kind": "Other"}]}},
        # By it the JobSet says of which of its replicated jobs one is done, and the quota of that is given back.
        {"metadata": {"labels": {JOBSET_REPLICATED_JOB_LABEL: "other"}}},
        {"metadata": {"labels": {"jobset.sigs.k8s.io/restart-attempt": "0"}}},
    ],
    ids=str,
)
def test_the_jobs_of_a_jobset_are_the_jobset_controllers(change: Json) -> None:
    old = job(label=None, ownerReferences=CHILD)
    new = {**old, **{key: {**old[key], **value} for key, value in change.items()}}
    garbage = Caller("system:serviceaccount:kube-system:generic-garbage-collector", runs_jobsets=True)
    for caller, refused in (
        (TENANT, SAY.child_frozen),
        (ADMIN, SAY.child_frozen),
        (JOBSETS, None),
        (garbage, None),
        (Caller("system:kube-controller-manager"), None),  # the same, where its controllers have no names of their own
        (US, None),
    ):
        assert validate_job(old, new, caller, NAMES) == refused
    mine = {**old, "metadata": {**old["metadata"], "labels": {"team": "a"}}}
    assert validate_job(old, mine, TENANT, NAMES) is None
    # So they are once they were started, when they are marked.
    marked = copy.deepcopy(old)
    marked["spec"]["template"]["metadata"] = {"labels": {NAMES.managed_label: "true"}}
    smaller = {**marked, "spec": {**marked["spec"], "parallelism": 1}}
    for caller, refused in ((TENANT, SAY.child_frozen), (JOBSETS, None), (garbage, None)):
        assert validate_job(marked, smaller, caller, NAMES) == refused
    # Nor does one come to be a child, which would be started with the others, without being one.
    assert validate_job(None, old, TENANT, NAMES) == SAY.child_frozen
    assert validate_job(job(label=None), old, TENANT, NAMES) == SAY.child_frozen
    assert validate_job(None, old, JOBSETS, NAMES) is None
    # One whose JobSet was deleted and that was left keeps what it was started with, and stays as it runs.
    orphan = job(label=None, suspend=False)
    orphan["spec"]["template"]["metadata"] = {"labels": {NAMES.managed_label: "true"}}
    changed = {**orphan, "spec": {**orphan["spec"], "parallelism": 400, "suspend": True}}
    assert answer(orphan, changed, TENANT) == (SAY.frozen, False)


NOT_SO_OWNED: list[Json] = [{"kind": "Train"}, {"apiVersion": "example.com/v1"}, {"controller": False}]


@pytest.mark.parametrize("change", NOT_SO_OWNED, ids=str)
def test_what_no_jobset_made_is_none_of_its_jobs(change: Json) -> None:
    old = job(label=None, ownerReferences=[{**CHILD[0], **change}])
    on = {**old, "spec": {**old["spec"], "suspend": False, "parallelism": 3}}
    assert answer(None, old, TENANT) == (None, True)
    assert answer(old, on, TENANT) == (None, False)
    held = job(ownerReferences=old["metadata"]["ownerReferences"])
    assert answer(held, {**held, "spec": on["spec"]}, JOBSETS) == (None, True)


def _limited(**spec: Any) -> Json:
    made = job()
    made["spec"]["template"]["spec"] |= spec
    return made


def _terms(count: int, values: int = 0) -> Json:
    term = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["v"] * values}]}
    return {"nodeAffinity": {NODE_TERMS: {"nodeSelectorTerms": [term] * count}}}


def _selects(values: int, **more: Any) -> Json:
    """Of 1 + values + 1 parts, and what there is more."""
    return {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["v"] * values}]}, **more}


def _pods(word: str, *terms: Json) -> Json:
    return {word: {NODE_TERMS: [{"topologyKey": "rack", **term} for term in terms]}}


def _claimed(count: int) -> list[Json]:
    return [{"name": "s", "emptyDir": {}}, *({"name": "v", "persistentVolumeClaim": {"claimName": "c"}},) * count]


def _labelled(count: int) -> Json:
    made = _limited()
    made["spec"]["template"]["metadata"] = {"labels": {f"l{i}": "" for i in range(count)}}
    return made


def _ports(count: int) -> Json:
    half = {"name": "c", "ports": [{"containerPort": 1}] * (count // 2)}
    return {
        "initContainers": [half],
        "containers": [half, {"name": "d", "ports": [{"containerPort": 1}] * (count % 2)}],
    }


@pytest.mark.parametrize(
    ("most", "more", "said"),
    [
        (_limited(terminationGracePeriodSeconds=3600), _limited(terminationGracePeriodSeconds=3601), LIMITED.grace),
        (_labelled(256), _labelled(257), LIMITED.labels),
        (_limited(affinity=_terms(128)), _limited(affinity=_terms(129)), LIMITED.affinity),
        (_limited(affinity=_terms(128, 32)), _limited(affinity=_terms(1, 4097)), LIMITED.affinity),
        *(
            (_limited(affinity=_pods(word, *most)), _limited(affinity=_pods(word, *more)), LIMITED.pod_affinity)
            for word in ("podAffinity", "podAntiAffinity")
            for most, more in (
                ([_selects(6)] * 32, [_selects(0)] * 33),
                ([_selects(254)], [_selects(255)]),
                ([_selects(4, namespaces=["n"] * 250)], [_selects(4, namespaces=["n"] * 251)]),
                ([{"matchLabelKeys": ["k"] * 255}], [{"mismatchLabelKeys": ["k"] * 256}]),
                (
                    [{"labelSelector": {"matchLabels": {str(i): "" for i in range(255)}}}],
                    [{"labelSelector": {"matchLabels": {str(i): "" for i in range(256)}}}],
                ),
            )
        ),
        (
            _limited(topologySpreadConstraints=[_selects(6)] * 32),
            _limited(topologySpreadConstraints=[_selects(0)] * 33),
            LIMITED.spread,
        ),
        (_limited(tolerations=[{}] * 256), _limited(tolerations=[{}] * 257), LIMITED.tolerations),
        (
            _limited(nodeSelector={str(i): "" for i in range(256)}),
            _limited(nodeSelector={str(i): "" for i in range(257)}),
            LIMITED.node_selector,
        ),
        (_limited(**_ports(128)), _limited(**_ports(129)), LIMITED.ports),
        (_limited(volumes=_claimed(64)), _limited(volumes=_claimed(65)), LIMITED.claims),
        (
            job(annotations={"a": "x" * (LIMITS.annotation_bytes - 1)}),
            job(annotations={"a": "x" * LIMITS.annotation_bytes}),
            LIMITED.annotations,
        ),
        (
            job(annotations={"a": "é" * (LIMITS.annotation_bytes // 2 - 1)}),
            job(annotations={"a": "é" * (LIMITS.annotation_bytes // 2)}),
            LIMITED.annotations,
        ),
        (_limited(priorityClassName="systemic"), _limited(priorityClassName="system-node-critical"), LIMITED.priority),
        (_limited(priorityClassName="muster-gangs"), _limited(priorityClassName="muster-gang"), LIMITED.priority),
        (
            {**job(), "spec": {**job()["spec"], "managedBy": "kubernetes.io/job-controller"}},
            {**job(), "spec": {**job()["spec"], "managedBy": "example.com/x"}},
            LIMITED.managed_by,
        ),
    ],
    ids=str,
)
def test_what_could_not_be_started_or_ended_is_refused(most: Json, more: Json, said: str) -> None:
    for caller in (TENANT, ADMIN):
        assert validate_job(None, most, caller, NAMES) is None
        assert validate_job(None, more, caller, NAMES) == said
        assert validate_job(most, more, caller, NAMES) == said
        assert validate_job(more, copy.deepcopy(more), caller, NAMES) is None
        more_unlabelled = {**more, "metadata": {**more["metadata"], "labels": {}}}
        assert validate_job(None, more_unlabelled, caller, NAMES) is None
        assert validate_job(None, more_unlabelled, caller, NAMES, governed=True) == said
    assert said in build_workload(JOB, more, NAMES)[1]


def test_a_child_may_have_more_than_its_jobset_where_every_job_is_governed() -> None:
    """JobSet's controller adds labels, and what a start wrote into its JobSet."""
    template = copy.deepcopy(job()["spec"]["template"])
    template["metadata"] = {
        "labels": {f"l{i}": "" for i in range(LIMITS.labels + 1)},
        "annotations": {"a": "x" * (LIMITS.annotation_bytes + 1)},
    }
    for owners, said in ((CHILD, None), ([], LIMITED.annotations)):
        made = job(label=None, ownerReferences=owners)
        made["spec"]["template"] = template
        assert validate_job(None, made, JOBSETS, NAMES, governed=True) == said


def test_a_jobset_has_at_most_as_many_sets_as_a_workload() -> None:
    assert LIMITS.pod_sets == POD_SETS
    wide = jobset()
    wide["metadata"]["labels"] = {NAMES.queue_label: "q"}
    one = wide["spec"]["replicatedJobs"][0]
    wide["spec"] |= {"suspend": True, "replicatedJobs": [{**one, "name": f"r{i}"} for i in range(POD_SETS)]}
    assert validate_job(None, wide, TENANT, NAMES) is None
    wide["spec"]["replicatedJobs"].append({**one, "name": "more"})
    assert validate_job(None, wide, TENANT, NAMES) == LIMITED.pod_sets


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda spec: spec["replicatedJobs"][1]["template"]["spec"].update(managedBy="kubernetes.io/job-controller"),
            None,
        ),
        (lambda spec: spec["replicatedJobs"][1]["template"]["spec"].update(managedBy="a/b"), LIMITED.managed_by),
        (lambda spec: spec["replicatedJobs"][1]["template"]["spec"].update(managedBy=""), LIMITED.managed_by),
        (lambda spec: spec.update(volumeClaimPolicies=[{"templates": [{}] * 32}] * 2), None),
        (lambda spec: replicate(spec, 1, 4095), None),
        (lambda spec: replicate(spec, None, 4095), None),
        (lambda spec: replicate(spec, 2, 4095), LIMITED.child_jobs),
        (lambda spec: replicate(spec, None, 4096), LIMITED.child_jobs),
        (lambda spec: replicate(spec, 4096, 0), None),
        (lambda spec: replicate(spec, -(2**31), 2**31 - 1), LIMITED.child_jobs),
        (lambda spec: spec.update(volumeClaimPolicies=[{"templates": [{}] * 33}] * 2), LIMITED.claims),
    ],
)
def test_what_a_jobset_says_beside_its_templates(change: Callable[[Json], object], said: str | None) -> None:
    made = jobset()
    made["metadata"]["labels"] = {NAMES.queue_label: "q"}
    made["spec"]["suspend"] = True
    change(made["spec"])
    assert validate_job(None, made, TENANT, NAMES) == said
    assert build_workload(JOBSET, made, NAMES)[1] == ((said,) if said else ())


def replicate(spec: Json, *replicas: int | None) -> None:
    for entry, count in zip(spec["replicatedJobs"], replicas, strict=True):
        entry.pop("replicas")
        if count is not None:
            entry["replicas"] = count


def test_templates_of_jobsets() -> None:
    labelled = jobset()
    labelled["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"labels": {NAMES.queue_label: "q"}}
    assert validate_job(None, labelled, TENANT, NAMES) == SAY.template_label
    # One that was there before goes on.
    assert validate_job(labelled, copy.deepcopy(labelled), TENANT, NAMES) is None
    # The JobSet controller could make none of its Jobs, time and again.
    noted = jobset()
    noted["spec"]["replicatedJobs"][0]["template"]["metadata"] = {"annotations": {NAMES.inverse_annotation: "{}"}}
    child = job(label=None, ownerReferences=CHILD, annotations={NAMES.inverse_annotation: "{}"})
    assert validate_job(None, child, JOBSETS, NAMES) == SAY.inverse
    assert validate_job(None, noted, TENANT, NAMES) == SAY.inverse
    assert validate_job(noted, copy.deepcopy(noted), TENANT, NAMES) is None
    marked = jobset()
    marked["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["metadata"] = {
        "labels": {NAMES.managed_label: "t"}
    }
    assert validate_job(None, marked, TENANT, NAMES) == SAY.reserved


def test_lists_written_anew_keep_our_keys() -> None:
    old = jobset()
    old["metadata"]["annotations"] = {NAMES.inverse_annotation: "{}"}
    old["spec"]["suspend"] = False
    for entry in old["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["template"]["metadata"] = {"labels": {NAMES.managed_label: "true"}}
    applied = copy.deepcopy(old)
    applied["spec"] = {**jobset()["spec"], "suspend": False}
    replaced, annotated = copy.deepcopy(applied), copy.deepcopy(applied)
    del replaced["metadata"]["annotations"]
    annotated["metadata"]["annotations"] = {"a/b": "c"}
    for written in (applied, replaced, annotated):
        after = patched(written, mutate_job(old, written, TENANT, NAMES))
        assert after["spec"] == old["spec"]
        own = written["metadata"].get("annotations", {})
        assert after["metadata"]["annotations"] == {**own, NAMES.inverse_annotation: "{}"}
        assert validate_job(old, after, TENANT, NAMES) is None
        assert mutate_job(old, written, US, NAMES) == []
    other = copy.deepcopy(old)
    other["metadata"]["annotations"] = {NAMES.inverse_annotation: "mine"}
    assert validate_job(old, other, TENANT, NAMES) == SAY.inverse
    changed = copy.deepcopy(old)
    changed["spec"]["replicatedJobs"][0]["replicas"] = 7
    assert validate_job(old, changed, TENANT, NAMES) == SAY.frozen
    restarts = copy.deepcopy(old)  # what is done of it was given back, and would run again
    restarts["spec"]["failurePolicy"] = {"maxRestarts": 3}
    assert validate_job(old, restarts, TENANT, NAMES) == SAY.frozen
    assert validate_job(restarts, old, TENANT, NAMES) == SAY.frozen
    assert validate_job(restarts, restarts, TENANT, NAMES) is None


@pytest.mark.parametrize(
    ("written", "after", "told"),
    [
        ({"parallelism": 8}, 4, None),
        ({"parallelism": 4}, 4, None),
        ({"parallelism": 5}, 5, SAY.frozen),
        ({"parallelism": 80}, 80, SAY.frozen),
        ({}, None, SAY.frozen),
        ({"parallelism": 8, "completions": 9}, 4, SAY.frozen),
    ],
)
def test_a_job_that_started_with_less_may_be_applied_again_as_it_was_written(
    written: Json, after: int | None, told: str | None
) -> None:
    raw = job()
    raw["metadata"] |= {"namespace": "a", "uid": "u", "resourceVersion": "7"}
    raw["spec"] |= {"parallelism": 8, "completions": 8, "completionMode": "Indexed"}
    given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (), 4),))
    plan = start(JOB, raw, "w", given, {"f": Flavor("f")}, NAMES, can_rank=True)
    assert isinstance(plan, Start)
    old = patched(raw, plan.patch)
    assert old["spec"]["parallelism"] == 4
    new = copy.deepcopy(old)
    del new["spec"]["parallelism"]
    new["spec"] |= written
    seen = patched(new, mutate_job(old, new, TENANT, NAMES))
    assert seen["spec"].get("parallelism") == after
    assert validate_job(old, seen, TENANT, NAMES) == told
    assert mutate_job(old, new, US, NAMES) == []


PATIENT = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE_S}
NO_SUCH_TAINT = f"{NAMES.group}/no-such-taint"
OWN = {"key": "own", "operator": "Exists"}
PLACED = Flavor("f", node_labels=(("type", "h100"), ("zone", "a")), tolerations=(Toleration("gpu", "Exists"),))


@pytest.mark.parametrize(
    ("place", "applied", "told"),
    [
        # As it was written: a node selector is one value to server-side apply, tolerations are to all clients.
        ({"nodeSelector": {"a": "b", "zone": "a"}, "tolerations": [OWN, PATIENT]}, {}, None),
        ({"nodeSelector": {"a": "b"}}, {}, None),
        ({"tolerations": [OWN]}, {}, None),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, {}, None),
        ({}, {}, None),
        # Otherwise.
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "c"}}, SAY.frozen),
        ({"nodeSelector": {"a": "b", "c": "d"}}, {"nodeSelector": {"a": "b"}}, SAY.frozen),
        ({"nodeSelector": {"a": "b", "zone": "a"}}, {"nodeSelector": {"a": "b"}}, SAY.frozen),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "b", "c": "d"}}, SAY.frozen),
        ({"tolerations": [OWN, PATIENT]}, {"tolerations": [OWN]}, SAY.frozen),
        ({"tolerations": [OWN]}, {"tolerations": [PATIENT]}, SAY.frozen),
        ({"tolerations": [OWN]}, {"tolerations": [OWN, PATIENT]}, SAY.frozen),
    ],
)
def test_a_job_that_selects_nodes_or_bears_taints_may_be_applied_again_as_it_was_written(
    place: Json, applied: Json, told: str | None
) -> None:
    raw = job()
    raw["metadata"] |= {"namespace": "a", "uid": "u", "resourceVersion": "7"}
    raw["spec"]["template"]["spec"] |= place
    given = Admission("q", (PodSetAssignment("main", (("gpu", "f"),), (), 2),))
    plan = start(JOB, raw, "w", given, {"f": PLACED}, NAMES, can_rank=True)
    old = patched(raw, plan.patch)
    assert old["spec"]["template"]["spec"]["nodeSelector"]["type"] == "h100"
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"] |= place | applied
    seen = patched(new, mutate_job(old, new, TENANT, NAMES))
    assert (seen["spec"] == old["spec"]) == (told is None)
    assert validate_job(old, seen, TENANT, NAMES) == told
    assert mutate_job(old, seen, TENANT, NAMES) == []
    assert mutate_job(old, new, US, NAMES) == []


@pytest.mark.parametrize(
    ("was", "written", "equal"),
    [
        ("2", 2, True),
        ("500m", 0.5, True),
        ("1Gi", "1024Mi", True),
        ("1k", "1e3", True),
        (2, "2", True),
        ("2", 3, False),
        ("2", "2m", False),
        ("1Gi", "1G", False),
        ("2", "two", False),
        ("2", None, False),
    ],
)
@pytest.mark.parametrize(
    ("group", "field"), [("volumes", "sizeLimit"), *itertools.product(hold.CONTAINERS, ("requests", "limits"))]
)
def test_amounts_of_a_running_jobset_are_the_same_however_they_are_written(
    was: Any, written: Any, equal: bool, group: str, field: str
) -> None:
    def asking(amount: Any) -> Json:
        made = jobset()
        made["metadata"]["annotations"] = {NAMES.inverse_annotation: "{}"}
        spec = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
        # The one that is looked at stands behind another, and its resource has a name to escape.
        it = (
            {"emptyDir": {field: amount}} if group == "volumes" else {"resources": {field: {"a/b": amount, "cpu": "1"}}}
        )
        spec[group] = [{"name": "other"}, {"name": "it", **it}]
        return made

    old, new = asking(was), asking(written)
    after = patched(new, mutate_job(old, new, TENANT, NAMES))
    assert after == (old if equal else new)
    assert validate_job(old, after, TENANT, NAMES) == (None if equal else SAY.frozen)
    # While nothing is reserved what its owner writes stands as it is written.
    for free in (old, new):
        del free["metadata"]["annotations"]
    assert mutate_job(old, new, TENANT, NAMES) == []


# ---------------------------------------------------------------- pods

BY_JOB = Caller(hold.IDENTITIES.job_controllers[0])
OWNED = [{"kind": "Job", "apiVersion": "batch/v1", "controller": True}]


def pod(form: str | None = "domain", owned: bool = True, **notes: str) -> Json:
    annotations = {f"{NAMES.group}/{key.replace('_', '-')}": value for key, value in notes.items()}
    if form is not None:
        annotations[NAMES.pin_form_annotation] = form
    labels = {NAMES.managed_label: "true", JOB_COMPLETION_INDEX: "1"}
    meta = {"labels": labels, "annotations": annotations, "ownerReferences": OWNED if owned else []}
    return {"metadata": meta, "spec": {"containers": []}}


@pytest.mark.parametrize(
    "made",
    [
        pod(),
        pod("ranks", hosts="a,b"),
        pod("gates", hosts="", node_selector="a=b", tolerations="c=:,d=e:NoSchedule"),
        pod("ranks", hosts="a,b,c,d", rank_stride="2", node_selector="", tolerations=""),
    ],
)
def test_a_pod_is_pinned_once_and_then_good(made: Json) -> None:
    pinned = patched(made, mutate_pod(made, NAMES))
    assert validate_pod(None, pinned, BY_JOB, NAMES) is None
    assert mutate_pod(pinned, NAMES) == []
    assert NAMES.hosts_annotation not in pinned["metadata"]["annotations"]
    assert pinned["spec"]["preemptionPolicy"] == "Never"
    assert validate_pod(None, made, BY_JOB, NAMES) == SAY.pod_unpinned
    assert validate_pod(None, pinned, TENANT, NAMES) == SAY.pod_marker
    assert validate_pod(None, pinned, ADMIN, NAMES) is None
    alone = copy.deepcopy(pinned)
    del alone["metadata"]["ownerReferences"]
    assert validate_pod(None, alone, ADMIN, NAMES) == SAY.pod_marker, "as a backup has it that leaves owners out"
    assert validate_pod(None, {**pinned, "metadata": {**pinned["metadata"], "ownerReferences": []}}, BY_JOB, NAMES)
    for change in ({"priorityClassName": ""}, {"affinity": {}, "schedulingGates": []}):
        less = {**pinned, "spec": {**pinned["spec"], **change}}
        left = "affinity" in change and made["metadata"]["annotations"][NAMES.pin_form_annotation] == "domain"
        assert validate_pod(None, less, BY_JOB, NAMES) == (None if left else SAY.pod_unpinned)
    for notes in ({NAMES.hosts_annotation: "a"}, {NAMES.pinned_annotation: "false"}, {NAMES.pin_form_annotation: "x"}):
        again = copy.deepcopy(pinned)
        again["metadata"]["annotations"] |= notes
        assert validate_pod(None, again, BY_JOB, NAMES) == SAY.pod_unpinned
    for change in NOT_SO_OWNED:
        forged = {**pinned, "metadata": {**pinned["metadata"], "ownerReferences": [{**OWNED[0], **change}]}}
        for caller in (BY_JOB, ADMIN):
            assert validate_pod(None, forged, caller, NAMES) == SAY.pod_marker


@pytest.mark.parametrize("terms", [None, [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]])
def test_a_pod_is_not_good_by_an_affinity_that_names_no_node(terms: list[Json] | None) -> None:
    made = pod("ranks", hosts="a,b")
    pinned = patched(made, mutate_pod(made, NAMES))
    assert validate_pod(None, pinned, BY_JOB, NAMES) is None
    pinned["spec"]["affinity"]["nodeAffinity"][NODE_TERMS]["nodeSelectorTerms"] = terms
    assert validate_pod(None, pinned, BY_JOB, NAMES) == SAY.pod_unpinned


def test_a_pod_keeps_what_its_owner_says_of_its_place() -> None:
    made = pod("gates", node_selector="a=b,c=d")
    made["spec"] |= {"nodeSelector": {"own": "x"}, "schedulingGates": [{"name": "example.com/own"}]}
    pinned = patched(made, mutate_pod(made, NAMES))["spec"]
    assert pinned["nodeSelector"] == {"own": "x", "a": "b", "c": "d"}
    assert [gate["name"] for gate in pinned["schedulingGates"]] == ["example.com/own", NAMES.topology_gate]


@pytest.mark.parametrize(
    ("own", "by_flavor", "given"),
    [
        ([], "", [PATIENT]),
        ([{"key": "a", "operator": "Exists", "effect": "NoSchedule"}], "b=:NoSchedule", [PATIENT]),
        ([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}], "", [PATIENT]),
        # Some are borne for good: of the tolerations that bear a taint Kubernetes takes the first.
        ([{"key": "a", "operator": "Exists", "effect": "NoExecute"}], "", [PATIENT]),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], "", [PATIENT]),
        ([], "a=b:NoExecute", [PATIENT]),
        ([], "a=b:", [PATIENT]),
        ([], "a=b:NoExecute:60", [PATIENT]),
        # All are.
        ([{"operator": "Exists"}], "", []),
        ([{"operator": "Exists", "effect": "NoExecute"}], "", []),
        ([{"operator": "Exists", "effect": "NoSchedule"}], "", [PATIENT]),
        ([], "=:", []),
        ([], "=:NoExecute", []),
        # Its nodes are not chosen, and some are tainted.
        ([], f"{NO_SUCH_TAINT}=:NoExecute", []),
        ([{"key": NO_SUCH_TAINT, "operator": "Exists", "effect": "NoExecute"}], "", []),
    ],
)
def test_taints_are_borne_for_a_while_unless_all_are_for_good(
    own: list[Json], by_flavor: str, given: list[Json]
) -> None:
    made = pod(tolerations=by_flavor)
    made["spec"]["tolerations"] = own
    assert patched(made, mutate_pod(made, NAMES))["spec"]["tolerations"] == [
        *own,
        *tolerations_value(by_flavor),
        *given,
    ]


@pytest.mark.parametrize(
    "made",
    [
        pod(None),
        pod("magic"),
        pod("ranks"),
        pod("ranks", hosts="a"),
        pod("ranks", hosts="a,"),
        pod("ranks", hosts="a,b,c", rank_stride="1"),
    ],
)
def test_a_pod_without_a_place_is_refused(made: Json) -> None:
    with pytest.raises(hold.UnpinnableError):
        mutate_pod(made, NAMES)


def test_pods_of_others() -> None:
    plain: Json = {"metadata": {}, "spec": {"priorityClassName": "high"}}
    assert mutate_pod(plain, NAMES) == []
    assert validate_pod(None, plain, TENANT, NAMES) is None
    grand = {"metadata": {}, "spec": {"priorityClassName": NAMES.priority_class}}
    assert validate_pod(None, grand, TENANT, NAMES) == SAY.priority_class
    assert validate_pod(None, grand, ADMIN, NAMES) is None
    assert validate_pod(None, plain, TENANT, NAMES, governed=True) is None, "nobody has said its priority yet"


def test_in_kueue_mode_pods_of_others_that_kueue_marked_are_let_be() -> None:
    """It writes its label into the template of every Deployment that it queues, and no other one that is ours."""
    names = Names(KUEUE_GROUP)
    say = Messages(names)
    made: Json = {"metadata": {"labels": {names.managed_label: "true"}}, "spec": {"containers": []}}
    assert mutate_pod(made, names) == []
    assert validate_pod(None, made, TENANT, names) is None
    assert validate_pod(made, {**made, "spec": {"containers": CONTAINERS}}, TENANT, names) is None
    assert validate_delete(made, {"gracePeriodSeconds": 3601}, TENANT, names) is None
    grand = {**made, "spec": {"priorityClassName": names.priority_class}}
    assert validate_pod(None, grand, TENANT, names) == say.priority_class
    claims: Json = {"metadata": {"labels": dict.fromkeys(names.gang_marks, "u")}, "spec": {"containers": []}}
    assert validate_pod(None, claims, TENANT, names) == say.pod_marker
    for old, new in ((made, claims), (claims, made)):
        assert validate_pod(old, new, TENANT, names) == say.pod_gate
    assert NAMES.gang_marks == (NAMES.managed_label,)


def test_only_we_change_labels_and_gates_of_admitted_pods() -> None:
    old = pod("gates")
    old = patched(old, mutate_pod(old, NAMES))
    freed = copy.deepcopy(old)
    freed["spec"]["schedulingGates"] = []
    unmarked = copy.deepcopy(old)
    unmarked["metadata"]["labels"].pop(NAMES.managed_label)
    for changed in (freed, unmarked):
        assert validate_pod(old, changed, TENANT, NAMES) == SAY.pod_gate
        assert validate_pod(old, changed, US, NAMES) is None
    touched = copy.deepcopy(old)
    touched["metadata"]["annotations"]["a"] = "b"
    assert validate_pod(old, touched, TENANT, NAMES) is None


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": []},
        {"finalizers": []},
        {"labels": {CONTROLLER_UID_LABEL: "other"}},
        {"labels": {JOB_COMPLETION_INDEX: "7"}},
        {"annotations": {NAMES.pinned_annotation: "false"}},
        {"annotations": {NAMES.hosts_annotation: "a"}},
    ],
    ids=str,
)
def test_a_pod_of_a_gang_stays_its_own(change: Json) -> None:
    old = patched(pod(), mutate_pod(pod(), NAMES))
    old["metadata"]["finalizers"] = [JOB_TRACKING_FINALIZER]
    new = copy.deepcopy(old)
    for key, value in change.items():
        new["metadata"][key] = {**new["metadata"][key], **value} if isinstance(value, dict) else value
    assert validate_pod(old, new, TENANT, NAMES) == SAY.pod_owner
    assert validate_pod(old, new, BY_JOB, NAMES) is None
    assert validate_pod(old, new, Caller("gc", runs_pods=True), NAMES) is None
    assert validate_pod(old, new, US, NAMES) is None
    for where in ("containers", "initContainers", "resources"):
        bigger = copy.deepcopy(old)
        bigger["spec"][where] = {"limits": {"cpu": "9"}} if where == "resources" else CONTAINERS
        assert validate_pod(old, bigger, TENANT, NAMES) == SAY.pod_resize


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, None),
        ({"gracePeriodSeconds": 0}, None),
        ({"gracePeriodSeconds": 3600}, None),
        ({"gracePeriodSeconds": 3601}, SAY.pod_grace),
    ],
    ids=str,
)
def test_a_pod_of_a_gang_ends_in_time(options: Json, refused: str | None) -> None:
    assert validate_delete(pod(), options, TENANT, NAMES) == refused
    assert validate_delete(pod(), options, ADMIN, NAMES) is None
    assert validate_delete({"metadata": {}}, options, TENANT, NAMES) is None
    # An Eviction does not say whose pod it is: who drains nodes gives pods of others the time that they have.
    drainer = Caller("system:serviceaccount:kube-system:cluster-autoscaler", evicts_all=True)
    for caller, said in ((TENANT, refused), (ADMIN, None), (drainer, None)):
        assert validate_delete(None, options, caller, NAMES) == said
    assert validate_delete(pod(), options, drainer, NAMES) == refused


def test_where_every_job_is_governed_no_pod_is_above_gangs() -> None:
    for priority, refused in ((hold.PRIORITY, None), (hold.PRIORITY + 1, SAY.priority_above)):
        made = {"metadata": {}, "spec": {"priorityClassName": "x", "priority": priority}}
        assert validate_pod(None, made, TENANT, NAMES, governed=True) == refused
        assert validate_pod(None, made, TENANT, NAMES) is None
        assert validate_pod(None, made, ADMIN, NAMES, governed=True) is None


def test_names_follow_the_group() -> None:
    names = Names(KUEUE_GROUP)
    made = job()
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    made["spec"]["suspend"] = False
    assert mutate_job(None, made, TENANT, names)
    assert mutate_job(None, made, TENANT, NAMES) == []


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "labels", "spec"]), inner, max_size=2)
    ),
    max_leaves=4,
)
OBJECT = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["Job", "JobSet"]),
        "apiVersion": st.sampled_from(["batch/v1", "jobset.x-k8s.io/v1alpha2"]),
    },
    optional={
        "metadata": ANY
        | st.fixed_dictionaries(
            {"labels": st.just({NAMES.managed_label: "t", NAMES.queue_label: "q"}), "annotations": ANY}
        ),
        "spec": ANY | st.fixed_dictionaries({"template": ANY, "replicatedJobs": ANY, "schedulingGates": ANY}),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.none() | OBJECT, OBJECT, st.sampled_from([TENANT, ADMIN, US, JOBSETS]))
def test_the_rules_answer_about_anything(old: Json | None, new: Json, caller: Caller) -> None:
    mutate_job(old, new, caller, NAMES)
    validate_job(old, new, caller, NAMES)
    validate_pod(old, new, caller, NAMES)
    with contextlib.suppress(hold.UnpinnableError):
        mutate_pod(new, NAMES)
