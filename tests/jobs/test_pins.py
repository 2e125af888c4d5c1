from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from admission.engine.model import (
    Admission,
    Check,
    CheckState,
    Domain,
    Flavor,
    PodSetAssignment,
    Toleration,
    TopologyAssignment,
)
from admission.jobs import pins
from admission.jobs.hold import Caller, Messages, mutate_pod, validate_job
from admission.jobs.kinds import JOB, JOBSET, JobKind, at, owners_form, view
from admission.jobs.pins import (
    open_hosts,
    pinned_affinity,
    rank_host,
    restore,
    restore_as,
    restore_child,
    start,
    suspend,
    ungate,
    unselect,
)
from admission.jobs.values import flavor
from admission.names import (
    EQUAL_COMPLETIONS,
    HOSTNAME_LABEL,
    JOB_COMPLETION_INDEX,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_NAMESPACED_JOB_LABEL,
    JOBSET_REPLICATED_JOB_LABEL,
    KUEUE_GROUP,
    LABELS_OF_JOB,
    Names,
)

NAMES = Names()
Json = dict[str, Any]
FLAVORS = {
    "gpu": Flavor(
        "gpu",
        node_labels=(("pool", "h100"),),
        tolerations=(Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule"),),
    )
}


QUEUED = {NAMES.queue_label: "q"}


def patched(value: Any, operations: Sequence[Json]) -> Any:
    """RFC 6902, as far as it is used."""
    out = copy.deepcopy(value)
    for operation in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        here = out
        for key in path:
            here = here[int(key)] if isinstance(here, list) else here[key]
        key = int(last) if isinstance(here, list) and last != "-" else last
        match operation["op"]:
            case "test":
                assert here[key] == operation["value"]
            case "remove":
                del here[key]
            case "add" if isinstance(here, list):
                here.insert(len(here) if key == "-" else key, copy.deepcopy(operation["value"]))
            case "add":
                here[key] = copy.deepcopy(operation["value"])
    return out


def job(pods: int = 3, *, template: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "uid": "u", "resourceVersion": "7", "generation": 2},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": template or {"spec": {"containers": [{"name": "c"}]}},
            **spec,
        },
    }


def jobset() -> Json:
    def entry(name: str, replicas: int, pods: int) -> Json:
        return {"name": name, "replicas": replicas, "template": {"metadata": {}, "spec": job(pods)["spec"]}}

    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s", "namespace": "a", "uid": "u", "resourceVersion": "7", "generation": 2},
        "spec": {"suspend": True, "replicatedJobs": [entry("driver", 1, 1), entry("workers", 2, 2)]},
    }


def admission(*, levels: tuple[str, ...] = ("rack", HOSTNAME_LABEL), **hosts: Sequence[str] | int) -> Admission:
    """Pod set -> hosts in rank order, or a count without hosts."""
    assignments = []
    for name, on in hosts.items():
        topology = None
        if not isinstance(on, int):
            topology = TopologyAssignment(levels, tuple(Domain(("r", host)[-len(levels) :], 1) for host in on))
        count = on if isinstance(on, int) else len(on)
        assignments.append(PodSetAssignment(name, (("nvidia.com/gpu", "gpu"),), (), count, topology))
    return Admission("q", tuple(assignments))


def begin(kind: JobKind, raw: Json, given: Admission, *, can_rank: bool = True, checks: Sequence[Check] = ()) -> Json:
    plan = start(kind, raw, "w", given, FLAVORS, NAMES, can_rank=can_rank, checks=checks)
    assert plan.problems == ()
    made: Json = patched(raw, plan.patch)
    return made


def notes(template: Json) -> Json:
    return {key.removeprefix("muster.dev/"): value for key, value in template["metadata"]["annotations"].items()}


def test_a_job_is_started_by_rank_in_one_write() -> None:
    raw = job(template={"spec": {"nodeSelector": {"pool": "h100", "x": "y"}, "containers": []}})
    made = begin(JOB, raw, admission(main=["n2", "n0", "n2"]))
    template = made["spec"]["template"]
    assert made["spec"]["suspend"] is False
    assert notes(template) == {"pin": "ranks", "hosts": "n2,n0,n2"}
    assert template["metadata"]["labels"] == {
        NAMES.managed_label: "true",
        NAMES.workload_uid_label: "w",
        NAMES.pod_set_label: "main",
    }
    assert template["spec"]["nodeSelector"] == {"pool": "h100", "x": "y"}
    assert template["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    seen = view(JOB, made, NAMES)
    assert (seen.started, seen.started_for, seen.gates) == (True, "w", False)


def test_pods_bear_a_taint_for_as_long_as_their_flavor_says() -> None:
    said = {"key": "drain", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    raw = {"metadata": {"name": "gpu"}, "spec": {"tolerations": [said]}}
    flavors = {"gpu": flavor(raw, NAMES)[0]}
    plan = start(JOB, job(), "w", admission(main=["a"] * 3), flavors, NAMES, can_rank=True)
    assert patched(job(), plan.patch)["spec"]["template"]["spec"]["tolerations"] == [said]
    placed = admission(driver=["a"], workers=["b", "c", "d", "e"])
    made = patched(jobset(), start(JOBSET, jobset(), "w", placed, flavors, NAMES, can_rank=True).patch)
    pod = copy.deepcopy(made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
    pod["metadata"]["labels"] |= {JOB_COMPLETION_INDEX: "0", JOBSET_JOB_INDEX_LABEL: "0"}
    assert said in patched(pod, mutate_pod(pod, NAMES))["spec"]["tolerations"]


@pytest.mark.parametrize(
    ("elastic", "tainted", "hosts", "bears"),
    [
        (True, ("gpu",), {"driver": 1, "workers": 4}, False),
        (True, ("other",), {"driver": 1, "workers": 4}, True),
        (False, ("gpu",), {"driver": 1, "workers": 4}, True),
        (True, ("gpu",), {"driver": ["a"], "workers": ["b", "c", "d", "e"]}, True),
    ],
)
def test_pods_whose_nodes_are_not_chosen_are_kept_from_tainted_ones(
    elastic: bool, tainted: Sequence[str], hosts: dict[str, Any], bears: bool
) -> None:
    """kube-scheduler puts a pod onto a node whose taint it bears for some minutes."""
    flavors = {"gpu": replace(FLAVORS["gpu"], elastic=elastic)}
    plan = start(JOBSET, jobset(), "w", admission(**hosts), flavors, NAMES, can_rank=True, tainted=tainted)
    for entry in patched(jobset(), plan.patch)["spec"]["replicatedJobs"]:
        pod = copy.deepcopy(entry["template"]["spec"]["template"])
        pod["metadata"]["labels"] |= {JOB_COMPLETION_INDEX: "0", JOBSET_JOB_INDEX_LABEL: "0"}
        given = patched(pod, mutate_pod(pod, NAMES))["spec"]["tolerations"]
        assert any("tolerationSeconds" in one for one in given) == bears


def test_a_jobset_gets_the_same_keys_at_every_start() -> None:
    first = begin(JOBSET, jobset(), admission(driver=["n9"], workers=["a", "b", "c", "d"]))
    second = begin(JOBSET, jobset(), admission(driver=1, workers=["d", "c", "b", "a"]), can_rank=False)
    for made in (first, second):
        for entry in made["spec"]["replicatedJobs"]:
            template = entry["template"]["spec"]["template"]
            assert set(template["metadata"]["annotations"]) == set(pins.template_annotations(NAMES))
            assert set(template["metadata"]["labels"]) == set(pins.template_labels(NAMES))
            assert set(template["spec"]) == {"containers"}
    workers = [made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"] for made in (first, second)]
    assert notes(workers[0]) == {
        "pin": "ranks",
        "hosts": "a,b,c,d",
        "node-selector": "pool=h100",
        "tolerations": "nvidia.com/gpu=:NoSchedule",
        "rank-stride": "2",
    }
    assert (notes(workers[1])["pin"], notes(workers[1])["hosts"]) == ("gates", "")


NODE_NAMED = {"spec": {"nodeName": "a", "containers": [{"name": "c"}]}}


def surviving() -> Json:
    raw = job(backoffLimit=6)
    raw["metadata"]["annotations"] = {NAMES.replace_lost_pods_annotation: "true"}
    return raw


FORMS = [
    (job(), ["a"] * 3, True, "ranks"),
    (job(), ["a"] * 3, False, "gates"),
    (job(), 3, True, "domain"),
    (job(completionMode="NonIndexed"), ["a"] * 3, True, "gates"),
    (job(2, completions=4), ["a"] * 2, True, "gates"),
    (job(5, completions=3), ["a"] * 3, True, "ranks"),
    (job(), ["x" * 40_000] * 3, True, "gates"),
    (surviving(), ["a"] * 3, True, "gates"),  # a pod that is replaced gets another host
    (job(template=NODE_NAMED), ["a"] * 3, True, "domain"),
    (job(template=NODE_NAMED, completionMode="NonIndexed"), ["a"] * 3, True, "domain"),
]


@pytest.mark.parametrize(("raw", "hosts", "can_rank", "form"), FORMS)
def test_the_least_form_that_leaves_no_choice(raw: Json, hosts: Any, can_rank: bool, form: str) -> None:
    plan = start(JOB, raw, "w", admission(main=hosts), FLAVORS, NAMES, can_rank=can_rank)
    made = patched(raw, plan.patch)
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"][NAMES.pin_form_annotation] == form
    assert view(JOB, made, NAMES).gates == (form == "gates")
    assert ("schedulingGates" in template["spec"]) == (form == "gates")


def test_one_domain_that_is_wider_than_a_node_is_a_selector() -> None:
    made = begin(JOB, job(2), admission(levels=("rack",), main=["r1", "r1"]))
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "h100", "rack": "r1"}
    assert notes(made["spec"]["template"])["pin"] == "domain"
    several = admission(levels=("rack",), main=["r1", "r2"])
    template = begin(JOB, job(2), several)["spec"]["template"]
    assert (notes(template)["pin"], template["spec"]["nodeSelector"]) == ("gates", {"pool": "h100"})
    assert pins.places_of(several.pod_sets[0]) == [{"rack": "r1"}, {"rack": "r2"}]


def test_pods_that_ask_for_no_quota_get_what_the_others_get_where_their_nodes_were_chosen() -> None:
    given = admission(main=["a"])
    for topology, selector, tolerations in ((given.pod_sets[0].topology, {"pool": "h100"}, 1), (None, {}, 0)):
        bare = replace(given.pod_sets[0], flavors=(), usage=(), topology=topology)
        both = replace(given, pod_sets=(bare, replace(given.pod_sets[0], name="other")))
        spec = begin(JOB, job(1), both)["spec"]["template"]["spec"]
        got = {key: value for key, value in spec.get("nodeSelector", {}).items() if key != HOSTNAME_LABEL}
        assert (got, len(spec.get("tolerations", []))) == (selector, tolerations)


def test_a_job_resumed_half_done_keeps_its_ranks() -> None:
    raw = job(5)
    raw["status"] = {"completedIndexes": "0,3"}
    made = begin(JOB, raw, admission(main=["a", "b", "c"]))
    listed = notes(made["spec"]["template"])["hosts"]
    assert listed == ",a,b,,c"
    assert [rank_host({JOB_COMPLETION_INDEX: str(i)}, listed, 0) for i in range(6)] == [None, "a", "b", None, "c", None]


def test_checks_add_to_the_pods() -> None:
    check = Check(
        "c",
        CheckState.READY,
        node_selectors=(("main", (("zone", "z"),)), ("other", (("no", "no"),))),
        tolerations=(("main", (Toleration("t", "Exists"),)),),
        labels=(("main", (("booking", "7"),)), ("other", (("app", "serve"),))),
        annotations=(("main", (("example.com/request", "r1"),)), ("other", (("no", "no"),))),
    )
    raw = job(template={"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [{"name": "c"}]}})
    made = begin(JOB, raw, admission(main=3), checks=[check])
    template = made["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "h100", "zone": "z"}
    assert len(template["spec"]["tolerations"]) == 2
    assert {"app": "train", "booking": "7"}.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"]["example.com/request"] == "r1"
    assert owners_form(made, NAMES)["spec"] == {**raw["spec"], "suspend": False}
    again = patched(made, suspend(made, NAMES))
    back = patched(again, restore(again, NAMES) or [])
    assert back["spec"] == raw["spec"]


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"labels": (("main", (("app", "serve"),)),)}, "the label app=serve to pod set main, and the job says train"),
        ({"annotations": (("main", (("note", "b"),)),)}, "the annotation note=b to pod set main, and the job says a"),
        ({"node_selectors": (("main", (("disk", "hdd"),)),)}, "disk=hdd to pod set main, and the job says ssd"),
        ({"node_selectors": (("main", (("pool", "a100"),)),)}, "pool=a100 to pod set main, and flavor gpu says h100"),
        ({"labels": (("main", (("zone", "2"),)),)}, "zone=2 to pod set main, and check first says 1"),
        ({"labels": (("main", ((NAMES.managed_label, "true"),)),)}, "only the controller writes that key"),
    ],
)
def test_what_a_check_adds_must_not_contradict_the_job(update: Json, says: str) -> None:
    raw = job(
        template={
            "metadata": {"labels": {"app": "train"}, "annotations": {"note": "a"}},
            "spec": {"containers": [{"name": "c"}], "nodeSelector": {"disk": "ssd"}},
        }
    )
    agrees = Check("first", CheckState.READY, labels=(("main", (("app", "train"), ("zone", "1"))),))
    plan = start(
        JOB,
        raw,
        "w",
        admission(main=3),
        FLAVORS,
        NAMES,
        can_rank=True,
        checks=[agrees, Check("c", CheckState.READY, **update)],
    )
    assert plan.patch == []
    assert plan.refused.startswith("check c adds the ")
    assert says in plan.refused


def test_fewer_pods_than_asked_for() -> None:
    raw = job(4)
    made = begin(JOB, raw, admission(main=["a", "b"]))
    assert made["spec"]["parallelism"] == 2
    assert notes(made["spec"]["template"])["pin"] == "gates"
    assert owners_form(made, NAMES)["spec"] == {**raw["spec"], "suspend": False}
    ended = {**made, "spec": {**made["spec"], "parallelism": 0}}
    assert owners_form(ended, NAMES)["spec"]["parallelism"] == 0, "that its owner has written since"
    # What is due and what is done is told of what runs, what it asks for as its owner wrote it.
    seen = view(JOB, made, NAMES)
    assert (seen.pods_expected, seen.counts, seen.left) == (2, (("main", 4),), ())
    assert seen.spec_hash == view(JOB, {**raw, "metadata": {**raw["metadata"], "labels": QUEUED}}, NAMES).spec_hash
    made["status"] = {"succeeded": 2, "completedIndexes": "0,1", "active": 2}
    assert view(JOB, made, NAMES).left == ()
    made["status"] = {"succeeded": 3, "completedIndexes": "0-2", "active": 1}
    assert view(JOB, made, NAMES).left == (("main", 1),)


@pytest.mark.parametrize("hosts", [["a", "b", "c"], 3])
def test_a_job_that_outlived_its_jobset_starts_as_it_is_admitted_now(hosts: Sequence[str] | int) -> None:
    """JobSet's controller has put into its Jobs what the start of the JobSet says of its pods."""
    (_, left) = begin(JOBSET, jobset(), admission(driver=["a"], workers=list("bcde")))["spec"]["replicatedJobs"]
    raw = job(template=left["template"]["spec"]["template"])
    assert {"node-selector", "tolerations", "rank-stride", "hosts"} <= notes(raw["spec"]["template"]).keys()
    fresh = begin(JOB, job(), admission(main=hosts))
    made = begin(JOB, raw, admission(main=hosts))
    assert notes(made["spec"]["template"]) == notes(fresh["spec"]["template"])
    made["spec"]["suspend"] = True
    assert patched(made, restore(made, NAMES) or [])["spec"] == raw["spec"]


@pytest.mark.parametrize(
    ("kind", "raw", "given_"),
    [
        (JOB, job(), admission(other=3)),
        (JOB, job(), admission(main=4)),
        (JOB, job(suspend=False), admission(main=3)),
        (JOBSET, jobset(), admission(driver=1, workers=3)),
    ],
)
def test_what_is_not_what_was_admitted_is_not_started(kind: JobKind, raw: Json, given_: Admission) -> None:
    plan = start(kind, raw, "w", given_, FLAVORS, NAMES, can_rank=True)
    assert plan.problems
    assert plan.patch == []


def test_nothing_is_started_twice() -> None:
    made = begin(JOB, job(), admission(main=3))
    made["spec"]["suspend"] = True
    assert "earlier start" in start(JOB, made, "w", admission(main=3), FLAVORS, NAMES, can_rank=True).problems[0]


@pytest.mark.parametrize("change", [{"resourceVersion": "8"}, {"uid": "another"}], ids=str)
def test_a_changed_job_takes_no_start(change: Json) -> None:
    plan = start(JOB, job(), "w", admission(main=3), FLAVORS, NAMES, can_rank=True)
    changed = job()
    changed["metadata"] |= change
    with pytest.raises(AssertionError):
        patched(changed, plan.patch)


def test_what_a_flavor_tolerates_and_the_owner_too_stands_once() -> None:
    borne = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    raw = job(template={"spec": {"containers": [], "tolerations": [borne]}})
    made = begin(JOB, raw, admission(main=3))
    assert made["spec"]["template"]["spec"]["tolerations"] == [borne]


def test_a_template_is_put_back_in_the_job_that_was_looked_at_alone() -> None:
    """It was started again meanwhile, say."""
    stopped = begin(JOB, job(), admission(main=["a", "b", "c"]))
    stopped["spec"]["suspend"] = True
    late = pins.restore(stopped, NAMES)
    assert late is not None
    for change in ({"generation": stopped["metadata"]["generation"] + 1}, {"uid": "another"}):
        changed = copy.deepcopy(stopped)
        changed["metadata"] |= change
        with pytest.raises(AssertionError):
            patched(changed, late)
    assert patched(stopped, late)["spec"]["template"] == job()["spec"]["template"]


def _late(what: str) -> tuple[Json, list[Json] | None]:
    """An object, and a write of it by how it was."""
    marked = {"labels": {NAMES.managed_label: "true"}}
    child = job(1, template={"metadata": marked, "spec": {"nodeSelector": {"a": "b"}}})
    child["metadata"]["labels"] = {JOBSET_REPLICATED_JOB_LABEL: "driver"}
    gated = job()
    gated["spec"]["schedulingGates"] = [{"name": NAMES.topology_gate}]
    match what:
        case "put back as another controller found it":
            return child, restore_as(JOB, child, [], NAMES)
        case "a Job of a JobSet put back":
            return child, restore_child(child, jobset(), NAMES)
        case "a Job of a JobSet whose owner selects no more":
            return child, unselect(child, jobset())
        case _:
            return gated, ungate(gated, "n1", NAMES)


@pytest.mark.parametrize(
    ("what", "field"),
    [
        *(
            (what, field)
            for what in (
                "put back as another controller found it",
                "a Job of a JobSet put back",
                "a Job of a JobSet whose owner selects no more",
            )
            for field in ("uid", "generation")
        ),
        ("a pod let go to its node", "uid"),
    ],
)
def test_what_is_written_late_is_written_to_what_was_looked_at_alone(what: str, field: str) -> None:
    seen, late = _late(what)
    assert late
    assert patched(seen, late) != seen
    changed = copy.deepcopy(seen)
    changed["metadata"][field] = "another"
    with pytest.raises(AssertionError):
        patched(changed, late)


def test_a_pod_that_is_let_go_to_a_domain_keeps_its_own_selector() -> None:
    gated = job()
    gated["spec"] |= {"schedulingGates": [{"name": NAMES.topology_gate}], "nodeSelector": {"x": "y"}}
    assert patched(gated, ungate(gated, {"rack": "r1"}, NAMES))["spec"]["nodeSelector"] == {"rack": "r1", "x": "y"}


def test_a_former_leader_cannot_stop_a_later_start() -> None:
    first = begin(JOB, job(), admission(main=["a", "b", "c"]))
    late = suspend(first, NAMES)
    again = job()
    again["metadata"]["resourceVersion"] = "99"
    second = begin(JOB, again, admission(main=["a", "b", "c"]))
    with pytest.raises(AssertionError):
        patched(second, late)
    assert patched(first, late)["spec"]["suspend"] is True
    # Nor one that saw it run as nobody had started it: it slipped past the hold, was held, and then admitted.
    slipped = job(suspend=False)
    late = suspend(slipped, NAMES)
    held = patched(slipped, late)
    assert held["spec"]["suspend"] is True
    held["metadata"] |= {"generation": 3, "resourceVersion": "8"}
    third = begin(JOB, held, admission(main=["a", "b", "c"]))
    third["metadata"] |= {"generation": 4}
    with pytest.raises(AssertionError):
        patched(third, late)
    # Nor can one of another job, by a name that was given again.
    other = {**job(), "metadata": {**job()["metadata"], "uid": "another"}}
    with pytest.raises(AssertionError):
        patched(other, suspend(job(), NAMES))
    with pytest.raises(AssertionError):
        patched({**first, "metadata": {**first["metadata"], "uid": "another"}}, suspend(first, NAMES))


META = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(st.sampled_from(["a", "b/c", NAMES.managed_label]), st.text(max_size=3)),
        "annotations": st.none()
        | st.dictionaries(st.sampled_from(["x~y", NAMES.hosts_annotation]), st.text(max_size=3)),
    },
)
TEMPLATES = st.builds(
    lambda meta, spec: {"spec": {"containers": [], **spec}} | ({} if meta is None else {"metadata": meta}),
    META,
    st.fixed_dictionaries(
        {},
        optional={
            "nodeSelector": st.dictionaries(st.sampled_from(["pool", "z"]), st.text(max_size=3)),
            "tolerations": st.lists(st.fixed_dictionaries({"key": st.text(max_size=3)}), max_size=2),
            "schedulingGates": st.lists(st.just({"name": "g"}), max_size=1),
        },
    ),
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(TEMPLATES, min_size=2, max_size=2),
    st.none() | st.dictionaries(st.just("n"), st.text(max_size=3)),
    st.booleans(),
    st.booleans(),
)
def test_stop_gives_back_what_its_owner_wrote(
    templates: list[Json], annotations: Json | None, can_rank: bool, hosts: bool
) -> None:
    """I6: byte for byte, for both kinds, whatever was there."""
    one = job(2, template=templates[0])
    many = jobset()
    for entry, template in zip(many["spec"]["replicatedJobs"], templates, strict=True):
        entry["template"]["spec"]["template"] = template
    for kind, raw, given_ in (
        (JOB, one, admission(main=["a", "b"] if hosts else 2)),
        (JOBSET, many, admission(driver=["d"] if hosts else 1, workers=["a", "b", "c", "d"] if hosts else 4)),
    ):
        if annotations is not None:
            raw["metadata"]["annotations"] = annotations
        before = view(kind, raw, NAMES)
        made = begin(kind, raw, given_, can_rank=can_rank)
        assert json.dumps(owners_form(made, NAMES)["spec"]["suspend"]) == "false"
        running = view(kind, made, NAMES)
        assert running.counts == before.counts
        stopped = patched(made, suspend(made, NAMES))
        back = patched(stopped, restore(stopped, NAMES) or [])
        assert json.dumps(back["spec"], sort_keys=True) == json.dumps(raw["spec"], sort_keys=True)
        assert (back["metadata"].get("annotations") or {}) == (annotations or {})
        assert restore(back, NAMES) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "suspend"], False),
        (["spec", "completions"], 400),
        (["metadata", "ownerReferences"], []),
        (["metadata", "labels"], {}),
        (["spec", "template"], {"spec": {"containers": []}}),
        (["spec", "template", "spec"], {"containers": []}),
        (["spec", "template", "spec", "containers"], []),
        (["spec", "template", "metadata", "finalizers"], ["a"]),
        ([], {}),
    ],
    ids=str,
)
def test_a_note_that_somebody_else_wrote_takes_back_no_more_than_a_start_writes(path: list[str], value: Any) -> None:
    """A tool that applies what tenants wrote may have all rights, and so makes jobs with any note. What that says would
    be written by the controller: its job would start, or count for less than it asks for."""
    note = json.dumps({"for": "w", "undo": [[path, value], [["spec", "template", "metadata", "labels"]]]})
    raw = job(template={"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}})
    raw["metadata"] |= {"labels": QUEUED, "annotations": {NAMES.inverse_annotation: note}}
    assert validate_job(None, raw, Caller(user="gitops", may_admit=True), NAMES) is None
    wanted = copy.deepcopy(raw)
    wanted["metadata"]["annotations"] = {}
    wanted["spec"]["template"]["metadata"] = {}
    assert patched(raw, restore(raw, NAMES) or []) == wanted
    assert owners_form(raw, NAMES) == wanted


@pytest.mark.parametrize(
    ("kind", "raw", "given_"),
    [(JOB, job(2), admission(main=["a", "b"])), (JOBSET, jobset(), admission(driver=["d"], workers=list("abcd")))],
    ids=["Job", "JobSet"],
)
def test_a_job_that_is_being_stopped_is_let_go_by_nobody_before_it_is_restored(
    kind: JobKind, raw: Json, given_: Admission
) -> None:
    """Its pods, or its Jobs, still say what was given to it: without its queue label its owner would start it again."""
    queued = {**raw, "metadata": {**raw["metadata"], "labels": QUEUED}}
    stopped = patched(begin(kind, queued, given_), suspend(begin(kind, queued, given_), NAMES))
    back = patched(stopped, restore(stopped, NAMES) or [])
    tenant = Caller(user="tenant")
    for old, said in ((stopped, Messages(NAMES).label), (back, None)):
        free = copy.deepcopy(old)
        free["metadata"]["labels"] = {}
        assert validate_job(old, free, tenant, NAMES) == said


@pytest.mark.parametrize(
    ("labels", "hosts", "stride", "host"),
    [
        ({JOB_COMPLETION_INDEX: "1"}, "a,b", 0, "b"),
        ({JOB_COMPLETION_INDEX: "1", JOBSET_JOB_INDEX_LABEL: "1"}, "a,b,c,d", 2, "d"),
        ({JOB_COMPLETION_INDEX: "1", JOBSET_JOB_INDEX_LABEL: "9"}, "a,b", 0, "b"),
        ({JOB_COMPLETION_INDEX: "2"}, "a,b", 0, None),
        ({}, "a", 0, None),
        ({JOB_COMPLETION_INDEX: "0"}, "", 0, None),
        ({JOB_COMPLETION_INDEX: "x"}, "a", 0, None),
    ],
)
def test_the_host_of_a_rank(labels: Json, hosts: str, stride: int, host: str | None) -> None:
    assert rank_host(labels, hosts, stride) == host


def test_hosts_that_have_no_pod_yet() -> None:
    (assignment,) = admission(main=["a", "a", "b", "c"]).pod_sets
    assert open_hosts(assignment, []) == ["a", "a", "b", "c"]
    assert open_hosts(assignment, ["a", "c", "elsewhere"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("taken", "ranks", "hosts"),
    [
        ([], [0, 1, 2, 3], ["a", "a", "b", "c"]),
        ([], [3, 2], ["c", "b"]),  # whoever comes first gets its own, not the first in the list
        (["c"], [3, 0], ["a", "a"]),  # its own is taken: the first that is left
        (["a"], [None, None, None], ["a", "b", "c"]),
        (["a", "a", "b"], [0, 7], ["c", None]),
        ([], [2, None, None, None], ["b", "a", "a", "c"]),  # what one gets by its rank no other gets
    ],
)
def test_gated_pods_get_the_hosts_of_their_ranks(taken: list[str], ranks: list[Any], hosts: list[Any]) -> None:
    where = TopologyAssignment((HOSTNAME_LABEL,), (Domain(("a",), 2), Domain(("b",), 1), Domain(("c",), 1)))
    assert pins.hosts_for(PodSetAssignment("main", (), (), 4, where), taken, ranks) == hosts


def test_a_list_that_is_too_long_for_an_annotation_goes_by_gates() -> None:
    long = "n" * 100
    fits, over = pins.HOSTS_LIMIT // (len(long) + 1), pins.HOSTS_LIMIT // (len(long) + 1) + 2
    for pods, form in ((fits, pins.RANKS), (over, pins.GATES)):
        where = TopologyAssignment((HOSTNAME_LABEL,), (Domain((long,), pods),))
        admission = Admission("q", (PodSetAssignment("main", (), (), pods, where),))
        raw = job(parallelism=pods, completions=pods)
        started = pins.start(JOB, raw, "w1", admission, {}, NAMES, can_rank=True)
        notes = patched(raw, started.patch)["spec"]["template"]["metadata"]["annotations"]
        assert notes[NAMES.pin_form_annotation] == form
        size = len(json.dumps([entry for entry in started.patch if "hosts" in entry["path"]]))
        assert size < pins.HOSTS_LIMIT + 200


def test_the_lists_of_all_pod_sets_together_are_no_longer_than_an_annotation_may_be() -> None:
    """Each alone would be: what does not fit beside those before it goes by gates."""
    host, raw = "n" * (pins.HOSTS_LIMIT // 4), jobset()
    for entry, replicas in zip(raw["spec"]["replicatedJobs"], (3, 1), strict=True):
        entry["replicas"] = replicas
    started = begin(JOBSET, raw, admission(driver=[host] * 3, workers=[host] * 2))
    templates = [entry["template"]["spec"]["template"] for entry in started["spec"]["replicatedJobs"]]
    assert [template["metadata"]["annotations"][NAMES.pin_form_annotation] for template in templates] == [
        pins.RANKS,
        pins.GATES,
    ]


def test_a_pin_is_added_to_each_term_of_the_users() -> None:
    expression = {"key": "a", "operator": "Exists"}
    terms = [{"matchExpressions": [expression]}, {}, {"matchFields": [{"key": "metadata.name"}]}]
    made = pinned_affinity({"podAffinity": {}, "nodeAffinity": {pins.REQUIRED: {"nodeSelectorTerms": terms}}}, "n")
    pin = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    assert made["nodeAffinity"][pins.REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [expression], "matchFields": [pin]},
        {"matchFields": [{"key": "metadata.name"}, pin]},
    ]
    assert made["podAffinity"] == {}
    assert pinned_affinity(None, "n") == {
        "nodeAffinity": {pins.REQUIRED: {"nodeSelectorTerms": [{"matchFields": [pin]}]}}
    }


@pytest.mark.parametrize("long", [False, True], ids=["pinned by rank", "gated until placed"])
@pytest.mark.parametrize("others", [[], [{"name": "x"}]], ids=["alone", "beside its owner's"])
def test_an_elastic_job_of_kueues_starts_without_the_gate_that_nobody_takes_off(long: bool, others: list[Json]) -> None:
    names, host = Names(KUEUE_GROUP), "n" * (pins.HOSTS_LIMIT + 1 if long else 1)
    template = {"spec": {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}, *others]}}
    raw = job(1, template=template)
    where = TopologyAssignment((HOSTNAME_LABEL,), (Domain((host,), 1),))
    given_ = Admission("q", (PodSetAssignment("main", (), (), 1, where),))
    made = patched(raw, start(JOB, raw, "w", given_, {}, names, can_rank=True).patch)
    placed = [{"name": names.topology_gate}] if long else []
    assert made["spec"]["template"]["spec"].get("schedulingGates", []) == [*others, *placed]
    stopped = patched(made, suspend(made, names))
    back = patched(stopped, restore(stopped, names) or [])
    assert back["spec"]["template"] == raw["spec"]["template"], "Kueue, when it comes back, finds it as it wrote it"


@pytest.mark.parametrize("said", [None, "True", "False"])
@pytest.mark.parametrize("others", [[], [{"type": "Other", "status": "True"}]])
def test_a_reminder_says_nothing_new_of_a_job(said: str | None, others: list[Json]) -> None:
    mine = [] if said is None else [{"type": "Suspended", "status": said, "reason": "R", "lastProbeTime": "before"}]
    status: Json = {"conditions": [*others, *mine]} if others or mine else {}
    raw = {"metadata": {"resourceVersion": "7"}, "status": status}
    last = patched(raw, pins.remind(raw, "now"))["status"]["conditions"]
    assert last[:-1] == others
    assert (last[-1]["type"], last[-1]["status"]) == ("Suspended", said or "False")
    assert last[-1]["lastProbeTime"] == "now"
    with pytest.raises(AssertionError):
        patched({**raw, "metadata": {"resourceVersion": "8"}}, pins.remind(raw, "now"))


@pytest.mark.parametrize(("end", "at"), [({"lastTransitionTime": "then"}, "then"), ({}, "now")])
@pytest.mark.parametrize("kind", ["SuccessCriteriaMet", "FailureTarget"])
def test_a_job_that_ended_while_it_was_held_has_started_when_it_ended(kind: str, end: Json, at: str) -> None:
    conditions = [{"type": "Suspended", "status": "True", "lastTransitionTime": "before"}]
    conditions.append({"type": kind, "status": "True", **end})
    raw = {"metadata": {"resourceVersion": "7"}, "status": {"conditions": conditions}}
    assert patched(raw, pins.say_started(raw, "now"))["status"] == {"conditions": conditions, "startTime": at}
    with pytest.raises(AssertionError):
        patched({**raw, "metadata": {"resourceVersion": "8"}}, pins.say_started(raw, "now"))


def test_a_gate_goes_once() -> None:
    pod = {"metadata": {"uid": "p"}, "spec": {"schedulingGates": [{"name": "x"}, {"name": NAMES.topology_gate}]}}
    freed = patched(pod, ungate(pod, "n1", NAMES))
    assert freed["spec"]["schedulingGates"] == [{"name": "x"}]
    assert "n1" in json.dumps(freed["spec"]["affinity"])
    assert ungate(freed, "n1", NAMES) == []
    assert patched(pod, ungate(pod, {"rack": "r"}, NAMES))["spec"]["nodeSelector"] == {"rack": "r"}


def test_a_pod_that_waits_keeps_as_many_terms_as_it_has() -> None:
    """The API server takes no others of one with a gate."""
    asked = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {pins.REQUIRED: {"nodeSelectorTerms": [{}, asked]}}}
    pod = {"metadata": {"uid": "p"}, "spec": {"schedulingGates": [{"name": NAMES.topology_gate}], "affinity": affinity}}
    pin = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    freed = patched(pod, ungate(pod, "n1", NAMES))["spec"]["affinity"]["nodeAffinity"][pins.REQUIRED]
    assert freed == {"nodeSelectorTerms": [{}, {**asked, "matchFields": [pin]}]}


def test_plain_lists_come_back_as_they_were() -> None:
    selector = {"a": "b", "c.d/e": "", "f": "1"}
    assert pins.selector_value(pins.selector_text(selector)) == selector
    tolerations = [
        Toleration("a", "Equal", "b", "NoSchedule"),
        Toleration("c", "Exists"),
        Toleration("d", "Equal", "e"),
        Toleration("f", "Exists", "", "NoExecute", 60),
        Toleration("g", "Equal", "h", "NoExecute", 0),
        Toleration("i", "Equal", "", "NoSchedule"),  # of a taint without a value, and of no other
    ]
    said = pins.tolerations_text(tolerations)
    assert said == "a=b:NoSchedule,c=:,d=e:,f=:NoExecute:60,g=h:NoExecute:0,i==:NoSchedule"
    assert pins.tolerations_value(said) == [pins.toleration_object(t) for t in tolerations]


def test_what_a_start_leaves_in_the_jobs_of_a_jobset_is_taken_out_again() -> None:
    raw = jobset()
    workers = raw["spec"]["replicatedJobs"][1]
    own = {"labels": {"app": "train"}, "annotations": {"note": "mine"}}
    workers["template"]["spec"]["template"]["metadata"] = own
    check = Check(
        "c",
        CheckState.READY,
        labels=(("workers", (("booking", "7"), ("app", "train"))),),
        annotations=(("workers", (("request", "r1"),)), ("driver", (("other", "r2"),))),
    )
    made = begin(JOBSET, raw, admission(driver=["n9"], workers=["a", "b", "c", "d"]), checks=[check])
    started = made["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["metadata"]
    theirs = {"jobset.sigs.k8s.io/jobset-name": "set"}
    # As JobSet's controller makes it, merges maps into it at a start, and leaves it.
    child = job(
        template={"metadata": {"labels": own["labels"] | theirs, "annotations": own["annotations"]}, "spec": {}}
    )
    left = job(
        template={
            "metadata": {
                "labels": child["spec"]["template"]["metadata"]["labels"] | started["labels"],
                "annotations": own["annotations"] | started["annotations"],
            },
            "spec": {},
        }
    )
    assert {"booking": "7", NAMES.managed_label: "true"}.items() <= left["spec"]["template"]["metadata"][
        "labels"
    ].items()
    patch = pins.restore_child(left, raw, NAMES, checks=[check])
    assert patch is not None
    assert patched(left, patch) == child
    assert pins.restore_child(child, raw, NAMES, checks=[check]) is None


# ---------------------------------------------------------------- what another controller has started

KUEUE = Names(KUEUE_GROUP)
MADE = {"mine": "x", **dict.fromkeys(LABELS_OF_JOB, "j")}
"""Labels of a Job's template before a start."""
ASKS = {KUEUE.required_topology_annotation: "rack", "note": "y"}
WAS: Json = {
    "metadata": {"labels": {"mine": "x", LABELS_OF_JOB[2]: "j"}, "annotations": ASKS},
    "spec": {"containers": [{"name": "c"}], "nodeSelector": {"zone": "a"}},
}
"""The template in its Workload, as Kueue makes that."""


def started_by_kueue(template: Json, **more: Any) -> Json:
    """What Kueue's start leaves of a template."""
    meta = template.get("metadata", {})
    wrote = {KUEUE.pod_set_label: "main", f"{KUEUE_GROUP}/cluster-queue-name": "q", "of-check": "z"}
    gates = [{"name": f"{KUEUE_GROUP}/topology"}]
    return {
        "metadata": {
            "labels": {**meta.get("labels", {}), **MADE, **wrote},
            "annotations": {**meta.get("annotations", {}), f"{KUEUE_GROUP}/workload": "w"},
        },
        "spec": {
            **template["spec"],
            "nodeSelector": {**template["spec"].get("nodeSelector", {}), "pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "schedulingGates": [*template["spec"].get("schedulingGates", ()), *gates],
            **more,
        },
    }


@pytest.mark.parametrize("known", [True, False], ids=["its Workload says how it was", "nobody knows how it was"])
@pytest.mark.parametrize("kind", [JOB, JOBSET], ids=["Job", "JobSet"])
def test_what_another_controllers_start_wrote_is_taken_out(kind: JobKind, known: bool) -> None:
    raw = job() if kind is JOB else jobset()
    for slot in kind.slots(raw):
        at(raw, slot.path[:-1])["template"] = started_by_kueue(WAS)
    pod_sets = [{"name": slot.pod_set, "count": slot.count, "template": WAS} for slot in kind.slots(raw)]
    assert view(kind, raw, KUEUE).started_by_another
    assert not view(kind, raw, NAMES).started_by_another
    after = patched(raw, restore_as(kind, raw, pod_sets if known else (), KUEUE))
    assert not view(kind, after, KUEUE).started_by_another
    for slot in kind.slots(after):
        meta, spec = slot.template["metadata"], slot.template["spec"]
        assert (meta["labels"], meta["annotations"]) == (MADE if known else MADE | {"of-check": "z"}, ASKS)
        left = {k: v for k, v in started_by_kueue(WAS)["spec"].items() if k != "schedulingGates"}
        assert spec == (WAS["spec"] if known else left), "nobody takes the gate off its pods"
    # Its parallelism, and what it asks of its place, are as they were.
    assert [slot.count for slot in kind.slots(after)] == [slot.count for slot in kind.slots(raw)]


def test_what_another_controllers_start_wrote_is_taken_out_of_the_jobs_of_a_jobset() -> None:
    parent = jobset()
    of_jobset = {"jobset.sigs.k8s.io/jobset-name": "s"}
    for entry in parent["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["template"] = copy.deepcopy(WAS)
    child = job(template=started_by_kueue(WAS))
    meta = child["spec"]["template"]["metadata"]
    meta["labels"] |= {KUEUE.pod_set_label: "workers", **of_jobset}
    after = patched(child, restore_child(child, parent, KUEUE) or ())
    assert after["spec"]["template"]["spec"] == WAS["spec"]
    said = after["spec"]["template"]["metadata"]
    assert of_jobset.items() <= said["labels"].items()
    assert KUEUE.pod_set_label not in said["labels"]
    assert said["annotations"] == ASKS
    assert not restore_child(after, parent, KUEUE)


@pytest.mark.parametrize(
    ("says", "of", "left"),
    [
        ({"a": "b", "c.d/e": "f"}, "workers", None),
        ({"a": "z", "c.d/e": "f", "x": "y"}, "workers", None),  # the rest is written at its start
        ({"a": "b"}, "workers", {"a": "b", JOBSET_NAMESPACED_JOB_LABEL: "ns_w-0"}),
        ({}, "workers", {JOBSET_NAMESPACED_JOB_LABEL: "ns_w-0"}),
        ({}, "gone", None),
    ],
)
def test_a_child_selects_nodes_no_more_by_what_its_jobset_has_given_up(says: Any, of: str, left: Any) -> None:
    """But by what JobSet's controller adds for itself."""
    parent = jobset()
    for entry in parent["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["template"]["spec"]["nodeSelector"] = says if entry["name"] == "workers" else {}
    selector = {"a": "b", "c.d/e": "f", JOBSET_NAMESPACED_JOB_LABEL: "ns_w-0"}
    child = job(template={"spec": {"nodeSelector": selector, "containers": []}})
    child["metadata"]["labels"] = {"jobset.sigs.k8s.io/replicatedjob-name": of}
    ops = unselect(child, parent)
    assert (ops is None) == (left is None)
    assert patched(child, ops or ())["spec"]["template"]["spec"]["nodeSelector"] == (left or selector)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (None, {}),
        ({("workers", "a")}, {"pool": "of a webhook"}),
        ({("workers", "a"), ("workers", "x")}, {"pool": "of a webhook"}),
        ({("driver", "a")}, None),
        (set(), None),
    ],
    ids=["not known", "one", "more", "another pod set", "nothing"],
)
def test_where_it_is_known_what_a_jobset_has_given_up_its_jobs_lose_nothing_else(said: Any, left: Any) -> None:
    child = job(template={"spec": {"nodeSelector": {"a": "b", "pool": "of a webhook"}, "containers": []}})
    child["metadata"]["labels"] = {JOBSET_REPLICATED_JOB_LABEL: "workers"}
    ops = unselect(child, jobset(), said)
    assert (ops is None) == (left is None)
    if left is not None:
        assert patched(child, ops)["spec"]["template"]["spec"]["nodeSelector"] == left


def test_the_note_of_a_start_before_that_of_another_controller_says_nothing_any_more() -> None:
    raw = begin(JOB, job(template=copy.deepcopy(WAS)), admission(main=3))
    note = raw["metadata"]["annotations"][NAMES.inverse_annotation]
    assert view(JOB, raw, NAMES).started
    raw = job(template=started_by_kueue(WAS))
    raw["metadata"]["annotations"] = {KUEUE.inverse_annotation: note}
    seen = view(JOB, raw, KUEUE)
    assert (seen.started, seen.started_by_another, restore(raw, KUEUE)) == (False, True, None)
    pod_sets = [{"name": "main", "count": 3, "template": WAS}]
    after = patched(raw, restore_as(JOB, raw, pod_sets, KUEUE))
    assert after["metadata"]["annotations"] == {}
    assert after["spec"]["template"]["spec"] == WAS["spec"]
    assert start(JOB, raw, "w", admission(main=3), FLAVORS, KUEUE, can_rank=True).problems == ()


@pytest.mark.parametrize(
    ("notes", "more", "after"),
    [
        ({}, {}, (3, 3)),
        ({KUEUE.min_parallelism_annotation: "2"}, {}, (8, 3)),
        ({KUEUE.min_parallelism_annotation: "2", EQUAL_COMPLETIONS: "true"}, {}, (8, 8)),
        ({KUEUE.min_parallelism_annotation: "2", EQUAL_COMPLETIONS: "true"}, {"completionMode": "NonIndexed"}, (8, 3)),
    ],
    ids=["nobody asked for it", "in parts", "in parts, completions and all", "what may not be changed stays"],
)
def test_a_job_that_another_controller_ran_in_parts_is_whole_again(
    notes: Json, more: Json, after: tuple[int, int]
) -> None:
    raw = job(3, template=started_by_kueue(WAS), **more)
    raw["metadata"]["annotations"] = notes
    spec = patched(raw, restore_as(JOB, raw, [{"name": "main", "count": 8, "template": WAS}], KUEUE))["spec"]
    assert (spec["parallelism"], spec["completions"]) == after
