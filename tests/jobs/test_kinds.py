from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.jobs import kinds, values
from admission.jobs.kinds import JOB, JOBSET, KINDS, kind_of, view
from admission.jobs.workload import build_workload
from admission.names import Names

NAMES = Names()
Json = dict[str, Any]


def job(status: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": "c"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "uid": "u", "labels": labels or {NAMES.queue_label: "q"}},
        "spec": {"template": template, **spec},
        "status": status or {},
    }


def jobset(*sets: tuple[str, int, int], status: Json | None = None, **spec: Any) -> Json:
    entries = [
        {
            "name": name,
            "replicas": replicas,
            "template": {"spec": {**job()["spec"], "parallelism": n, "completions": n}},
        }
        for name, replicas, n in sets
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s", "namespace": "a", "uid": "u", "labels": {NAMES.queue_label: "q"}},
        "spec": {"replicatedJobs": entries, **spec},
        "status": status or {},
    }


INDEXED = {"completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("spec", "status", "count", "live"),
    [
        ({}, {}, 1, None),
        ({"parallelism": 4}, {}, 4, None),
        ({"parallelism": 4, "completions": 8}, {}, 4, None),
        ({"parallelism": 4, "completions": 2}, {}, 2, None),
        ({"parallelism": 4, "completions": 8}, {"succeeded": 6}, 2, None),
        ({"parallelism": 4}, {"succeeded": 1}, 0, None),
        ({"parallelism": 0}, {}, 0, None),
        ({"parallelism": 4, "completions": 4, **INDEXED}, {}, 4, [0, 1, 2, 3]),
        ({"parallelism": 8, "completions": 4, **INDEXED}, {}, 4, [0, 1, 2, 3]),
        ({"parallelism": 2, "completions": 4, **INDEXED}, {}, 2, None),
        ({"parallelism": 6, "completions": 6, **INDEXED}, {"completedIndexes": "0,2-3"}, 3, [1, 4, 5]),
        (
            {"parallelism": 6, "completions": 6, **INDEXED},
            {"completedIndexes": "0,2-3", "failedIndexes": "3-4"},
            2,
            [1, 5],
        ),
        ({"parallelism": 3, "completions": 3, **INDEXED}, {"completedIndexes": "rubbish,-,7-99999999999,1"}, 2, [0, 2]),
        ({"parallelism": 2**31 - 1, "completions": None}, {}, 2**31 - 1, None),
        ({"parallelism": -5}, {}, 0, None),
        ({"parallelism": "many"}, {}, 1, None),
    ],
)
def test_a_job_asks_for_what_is_left(spec: Json, status: Json, count: int, live: list[int] | None) -> None:
    (slot,) = JOB.slots(job(status, **spec))
    assert slot.count == count
    assert (slot.live_ranks() if slot.ranks is not None else None) == live


INDEXED_4 = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("spec", "status", "left"),
    [
        ({"parallelism": 4, "completions": 4}, {"active": 4}, ()),
        ({"parallelism": 4, "completions": 4}, {"succeeded": 1, "active": 3}, (("main", 3),)),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 3, "active": 4}, ()),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 7, "active": 3}, (("main", 3),)),
        # One has failed, and another will be made in its place.
        ({"parallelism": 4, "completions": 10}, {"succeeded": 7, "failed": 1, "active": 2}, (("main", 3),)),
        # Indexes have failed whose pods were deleted, and these take their time to end.
        (INDEXED_4, {"failedIndexes": "0-2", "failed": 3, "active": 1, "terminating": 3}, ()),
        (INDEXED_4, {"failedIndexes": "0-2", "failed": 3, "active": 1, "terminating": 1}, (("main", 2),)),
        (INDEXED_4, {"failedIndexes": "0-2", "failed": 3, "active": 1}, (("main", 1),)),
        # A work queue: no more pods are made after the first success, and those that run go on.
        ({"parallelism": 4, "completions": None}, {"active": 4}, ()),
        ({"parallelism": 4, "completions": None}, {"succeeded": 1, "active": 3}, (("main", 3),)),
        ({"parallelism": 4, "completions": None}, {"succeeded": 2, "active": 1, "terminating": 1}, (("main", 2),)),
    ],
)
def test_what_of_a_job_will_not_run_again(spec: Json, status: Json, left: Any) -> None:
    assert view(JOB, job(status, **spec), NAMES).left == left


@pytest.mark.parametrize(
    ("spec", "status", "ready"),
    [
        ({"parallelism": 4, "completions": 4}, {"ready": 4}, 4),
        ({"parallelism": 4, "completions": 4}, {"ready": 2, "succeeded": 2}, 4),
        ({"parallelism": 8, "completions": 1000}, {"ready": 7, "succeeded": 345}, 7),
        ({"parallelism": 8, "completions": 1000}, {"ready": 3, "succeeded": 997}, 8),
        ({"parallelism": 4, "completions": 4, **INDEXED}, {"ready": 3, "failedIndexes": "1"}, 3),
    ],
)
def test_how_many_pods_of_a_job_are_ready_of_those_that_it_was_given(spec: Json, status: Json, ready: int) -> None:
    assert view(JOB, job(status, **spec), NAMES).ready_of(spec["parallelism"]) == ready


@pytest.mark.parametrize(
    ("spec", "due"),
    [({"parallelism": 4, "completions": 9}, 4), ({"parallelism": 9, "completions": 4}, 1), ({"parallelism": 4}, 0)],
)
def test_how_many_pods_of_a_job_are_due_of_those_that_it_has_at_a_time(spec: Json, due: int) -> None:
    seen = view(JOB, job({"succeeded": 3}, **spec), NAMES)
    assert (seen.pods_expected, seen.pods_at_once) == (due, 4)


def test_a_jobset_asks_for_every_replica_of_every_set() -> None:
    driver, workers = JOBSET.slots(jobset(("driver", 1, 1), ("workers", 3, 4)))
    assert (driver.pod_set, driver.count, driver.ranks, driver.stride) == ("driver", 1, 1, 1)
    assert (workers.pod_set, workers.count, workers.ranks, workers.stride) == ("workers", 12, 12, 4)


@pytest.mark.parametrize(
    ("spec", "states", "due", "left"),
    [
        ({}, [], 5, ()),
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, [], 1, ()),
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, [{"name": "driver", "ready": 1}], 5, ()),
        # The first is not ready any more, and the others run on.
        ({"startupPolicy": {"startupPolicyOrder": "InOrder"}}, [{"name": "workers", "active": 2, "ready": 2}], 5, ()),
        ({}, [{"name": "driver", "succeeded": 1}], 4, (("driver", 0),)),
        ({"failurePolicy": {"maxRestarts": 2}}, [{"name": "driver", "succeeded": 1}], 4, ()),
        (
            {"failurePolicy": {"rules": [{"name": "r", "action": "RestartJobSetAndIgnoreMaxRestarts"}]}},
            [{"name": "driver", "succeeded": 1}],
            4,
            (),
        ),
        (
            {"failurePolicy": {"rules": [{"name": "r", "action": "FailJobSet"}]}},
            [{"name": "driver", "succeeded": 1}],
            4,
            (("driver", 0),),
        ),
    ],
)
def test_what_of_a_jobset_is_due(spec: Json, states: list[Json], due: int, left: Any) -> None:
    seen = view(
        JOBSET, jobset(("driver", 1, 1), ("workers", 2, 2), status={"replicatedJobsStatus": states}, **spec), NAMES
    )
    assert (seen.pods_expected, seen.pods_at_once) == (due, 5)
    assert seen.left == left


@pytest.mark.parametrize(
    ("spec", "child", "states", "counts"),
    [
        ({}, {}, [], (4, 4)),
        ({}, {}, [{"name": "data", "succeeded": 2}], (0, 4)),
        # Of a few that are done nobody says which.
        ({}, {}, [{"name": "data", "succeeded": 1}], (4, 4)),
        # These make what is done anew.
        ({"failurePolicy": {"maxRestarts": 1}}, {}, [{"name": "data", "succeeded": 2}], (4, 4)),
        ({}, {"ttlSecondsAfterFinished": 60}, [{"name": "data", "succeeded": 2}], (4, 4)),
    ],
)
def test_a_jobset_asks_for_what_its_controller_would_still_run(
    spec: Json, child: Json, states: list[Json], counts: tuple[int, int]
) -> None:
    raw = jobset(("data", 2, 2), ("train", 1, 4), status={"replicatedJobsStatus": states}, **spec)
    raw["spec"]["replicatedJobs"][0]["template"]["spec"] |= child
    template = _pods_of(raw, 0)
    template["metadata"] = {"annotations": {NAMES.required_topology_annotation: "rack"}}
    seen, (made, problems) = view(JOBSET, raw, NAMES), build_workload(JOBSET, raw, NAMES)
    data, train = made["spec"]["podSets"]
    assert seen.counts == (("data", counts[0]), ("train", counts[1]))
    assert (data["count"], train["count"], problems) == (*counts, ())
    assert (data.get("topologyRequest") is not None) == (counts[0] > 0)
    told = bool(states) and not spec and not child
    assert seen.left == ((("data", 4 - 2 * states[0]["succeeded"]),) if told else ())
    assert len(JOBSET.slots(raw)[0].live_ranks()) == counts[0]


@pytest.mark.parametrize("notes", [{}, {"alpha.jobset.sigs.k8s.io/node-selector": "true"}])
def test_of_a_set_that_is_done_nothing_is_refused(notes: Json) -> None:
    """Exclusive placement wants to know how many pods each child job has."""
    raw = jobset(("data", 2, 2), ("train", 1, 4))
    for entry in raw["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["completionMode"] = "Indexed"
    raw["metadata"]["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack", **notes}
    for succeeded in (0, 2):
        raw["status"]["replicatedJobsStatus"] = [{"name": "data", "succeeded": succeeded}]
        value, problems = values.workload(build_workload(JOBSET, raw, NAMES)[0], NAMES)
        assert problems == ()
        assert [part.shape.refused for part in value.pod_sets] == ["", ""]
        assert value.pod_sets[1].shape.exclusive is not None


@pytest.mark.parametrize(("status", "due"), [(None, 1), ("Ready", 1), ("Complete", 1)])
def test_a_set_that_depends_on_another_is_not_due_before_it(status: str | None, due: int) -> None:
    raw = jobset(("driver", 1, 1), ("workers", 2, 2))
    raw["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "driver", "status": status or "Ready"}]
    assert view(JOBSET, raw, NAMES).pods_expected == due
    raw["status"] = {"replicatedJobsStatus": [{"name": "driver", "ready": 1}]}
    assert view(JOBSET, raw, NAMES).pods_expected == (1 if status == "Complete" else 5)
    raw["status"] = {"replicatedJobsStatus": [{"name": "workers", "active": 1}]}
    assert view(JOBSET, raw, NAMES).pods_expected == 5, "it was reached, and is no more"


def test_the_view_of_a_running_job() -> None:
    raw = job(
        {
            "startTime": "2026-01-01T00:00:00Z",
            "active": 2,
            "ready": 1,
            "terminating": 1,
            "conditions": [{"type": "Suspended", "status": "False"}],
        },
        parallelism=3,
    )
    raw["metadata"] |= {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [
            {"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2", "uid": "o", "controller": True}
        ],
    }
    seen = view(JOB, raw, NAMES)
    assert (seen.suspended, seen.suspended_condition, seen.start_time_set) == (False, False, True)
    assert (seen.active, seen.ready, seen.terminating, seen.finished) == (2, 1, 1, None)
    assert seen.owner == ("jobset.x-k8s.io/v1alpha2", "JobSet", "o")
    assert seen.created_ms == 1_767_225_600_000
    assert seen.counts == (("main", 3),)
    assert seen.problems == ()


@pytest.mark.parametrize(
    ("kind", "conditions", "finished", "ending"),
    [
        (JOB, ["SuccessCriteriaMet", "Complete"], "Succeeded", None),
        (JOB, ["FailureTarget", "Failed"], "Failed", None),
        (JOB, ["SuccessCriteriaMet"], None, "Succeeded"),
        (JOB, ["FailureTarget"], None, "Failed"),
        (JOB, ["Suspended"], None, None),
        (JOBSET, ["Completed"], "Succeeded", None),
        (JOBSET, ["Failed"], "Failed", None),
    ],
)
def test_how_it_ended(kind: Any, conditions: list[str], finished: str | None, ending: str | None) -> None:
    raw = job() if kind is JOB else jobset(("a", 1, 1))
    raw["status"] = {"conditions": [{"type": one, "status": "True", "message": "so it was"} for one in conditions]}
    seen = view(kind, raw, NAMES)
    assert (seen.finished, seen.ending) == (finished, ending)
    assert seen.message == ("so it was" if finished or ending else "")


def test_what_is_left_of_one_that_ends_are_the_pods_that_still_end() -> None:
    over = {"conditions": [{"type": "FailureTarget", "status": "True"}], "terminating": 1, "active": 0}
    assert view(JOB, job(over, parallelism=3, completions=3), NAMES).left == (("main", 1),)


DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget"}]}

FAILS = {"action": "FailJob", **DISRUPTED}
IGNORES_CODES = {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [137, 143]}}


def _by_codes(operator: str, values: list[int], action: str = "FailJob", *, backoff_limit: int = 0) -> Json:
    rules = [{"action": action, "onExitCodes": {"operator": operator, "values": values}}]
    return {"backoffLimit": backoff_limit, "podFailurePolicy": {"rules": [*rules, {"action": "Ignore", **DISRUPTED}]}}


@pytest.mark.parametrize(
    ("spec", "failed", "survives"),
    [
        ({}, 0, True),  # six failures, unless it says otherwise
        ({}, 6, False),
        ({"backoffLimit": 0}, 0, False),
        ({"backoffLimit": 2}, 1, True),
        ({"backoffLimit": 2}, 2, False),
        ({"backoffLimitPerIndex": 1}, 9, True),
        ({"backoffLimitPerIndex": 0}, 0, False),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": "Ignore", **DISRUPTED}]}}, 0, True),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": "FailJob", **DISRUPTED}]}}, 0, False),
        (_by_codes("In", [42]), 0, True),
        (_by_codes("In", [42, 143]), 0, False),  # as a pod ends that is told to
        (_by_codes("NotIn", [42]), 0, False),
        (_by_codes("In", [137, 143], "Ignore"), 0, True),
        ({"backoffLimit": 2, "backoffLimitPerIndex": 1}, 3, False),
        (_by_codes("In", [143], backoff_limit=6), 0, False),  # whatever is left of it
        (_by_codes("In", [143], "FailIndex", backoff_limit=6) | {"backoffLimitPerIndex": 1}, 0, False),
        (_by_codes("In", [143], "Count", backoff_limit=6), 0, True),
        (_by_codes("In", [143], "Count"), 0, False),
        ({"podFailurePolicy": {"rules": [FAILS]}}, 0, False),
        ({"podFailurePolicy": {"rules": [{"action": "Count", **DISRUPTED}]}}, 0, True),
        ({"podFailurePolicy": {"rules": [{"action": "Ignore", **DISRUPTED}, FAILS]}}, 0, True),
        ({"podFailurePolicy": {"rules": [IGNORES_CODES, FAILS]}}, 0, False),
    ],
)
def test_who_survives_the_loss_of_a_pod(spec: Json, failed: int, survives: bool) -> None:
    said = job({"failed": failed}, **spec)
    assert not view(JOB, said, NAMES).survives, "not without being asked for"
    said["metadata"].setdefault("annotations", {})[NAMES.replace_lost_pods_annotation] = "true"
    assert view(JOB, said, NAMES).survives is survives
    whole = jobset(("a", 1, 1))
    whole["metadata"].setdefault("annotations", {})[NAMES.replace_lost_pods_annotation] = "true"
    whole["spec"]["replicatedJobs"][0]["template"]["spec"].update(spec)
    if not failed:
        assert view(JOBSET, whole, NAMES).survives is survives


@pytest.mark.parametrize(
    ("spec", "waits"),
    [
        ({}, False),
        ({"podReplacementPolicy": "TerminatingOrFailed"}, False),
        ({"podReplacementPolicy": "Failed"}, True),
        ({"podFailurePolicy": {"rules": []}}, True),
    ],
)
def test_who_makes_no_pod_beside_one_that_ends(spec: Json, waits: bool) -> None:
    assert view(JOB, job(**spec), NAMES).waits_for_failed is waits
    whole = jobset(("a", 1, 1), ("b", 1, 1))
    whole["spec"]["replicatedJobs"][1]["template"]["spec"].update(spec)
    assert view(JOBSET, whole, NAMES).waits_for_failed is waits


def test_the_hash_follows_what_is_asked_for_and_nothing_else() -> None:
    base = view(JOB, job(parallelism=2), NAMES).spec_hash
    assert base == view(JOB, job({"active": 2}, parallelism=2, suspend=True), NAMES).spec_hash
    assert base != view(JOB, job(parallelism=3), NAMES).spec_hash
    other = job(parallelism=2)
    other["spec"]["template"]["spec"]["containers"][0]["image"] = "x"
    assert base != view(JOB, other, NAMES).spec_hash
    one, two = jobset(("a", 1, 2)), jobset(("a", 2, 1))
    assert view(JOBSET, one, NAMES).spec_hash != view(JOBSET, two, NAMES).spec_hash


def test_problems_are_said_in_words() -> None:
    seen = view(JOBSET, jobset(("a", 1, 1), ("a", 1, 1)), NAMES)
    assert "twice" in seen.problems[0]
    assert view(JOB, {"spec": {}}, NAMES).problems


@pytest.mark.parametrize("note", ["[" * 50_000, '{"undo":' + "[" * 900 + "]" * 900 + "}", "9" * 5000])
def test_a_note_that_cannot_be_read_is_told(note: str) -> None:
    raw = job(labels={NAMES.queue_label: "q"})
    raw["metadata"]["annotations"] = {NAMES.inverse_annotation: note}
    assert "the annotation that says how to restore the template cannot be read" in view(JOB, raw, NAMES).problems


def test_a_jobset_of_many_sets_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks at the others by name, and at what is made for all of them: once."""
    asked = []
    made = kinds.claims_made
    monkeypatch.setattr(kinds, "claims_made", lambda raw: asked.append(1) or made(raw))

    def costs(sets: int) -> float:
        many = jobset(*((f"r{i}", 1, 1) for i in range(sets)))
        for entry in many["spec"]["replicatedJobs"]:
            entry["dependsOn"] = [{"name": f"r{sets - 1}", "status": "Ready"}]
        asked.clear()
        began = time.process_time()
        assert view(JOBSET, many, NAMES).problems == ()
        assert len(asked) == 1
        return time.process_time() - began

    costs(10)
    # Ten times as much, and eighty times if each looked at each other one.
    assert costs(10_000) < 40 * costs(1_000)


@pytest.mark.parametrize(
    ("said", "limit", "wrong"),
    [
        ({}, None, None),
        ({NAMES.max_exec_time_label: "300"}, 300, None),
        ({NAMES.max_exec_time_label: "5m"}, None, "no number of seconds"),
        ({NAMES.max_exec_time_label: "0"}, None, "no number of seconds"),
        ({NAMES.max_exec_time_label: "-1"}, None, "no number of seconds"),
        ({NAMES.max_exec_time_label: "9999999999"}, None, "no number of seconds"),
        ({NAMES.max_exec_time_label: ""}, None, "no number of seconds"),
        ({NAMES.pause_label: "true"}, None, None),
        ({NAMES.pause_label: "false"}, None, None),
        ({NAMES.pause_label: "True"}, None, "neither 'true' nor 'false'"),
        ({NAMES.pause_label: "yes"}, None, "neither 'true' nor 'false'"),
        ({NAMES.pause_label: ""}, None, "neither 'true' nor 'false'"),
    ],
)
def test_labels_that_say_how_long_a_job_runs(said: dict[str, str], limit: int | None, wrong: str | None) -> None:
    """What cannot be read is told, here and where its Workload would be made: it would run without a limit."""
    raw = job(labels={NAMES.queue_label: "q", **said})
    seen, (made, problems) = view(JOB, raw, NAMES), build_workload(JOB, raw, NAMES)
    assert seen.problems == problems
    assert [wrong in one for one in problems] == [True] if wrong else not problems
    assert (seen.max_execution_s, made["spec"].get("maximumExecutionTimeSeconds")) == (limit, limit)


TOPOLOGY, REPLACE = NAMES.required_topology_annotation, NAMES.replace_lost_pods_annotation


@pytest.mark.parametrize(
    ("meta", "pods", "told"),
    [
        ({}, {"annotations": {TOPOLOGY: "rack", "example.com/x": "y"}}, []),
        ({"annotations": {REPLACE: "true", NAMES.inverse_annotation: "{}"}}, {}, []),
        # The API server takes the labels of the template for a Job that has none.
        ({}, {"labels": {NAMES.queue_label: "q"}}, []),
        (
            {},
            {"annotations": {f"{TOPOLOGY[:-2]}": "rack"}},
            [f"annotation {TOPOLOGY[:-2]} of pods, which is not known"],
        ),
        ({"labels": {"muster.dev/priority-clas": "x"}}, {}, [f"(did you mean {NAMES.priority_class_label}?)"]),
        ({"annotations": {NAMES.pause_label: "true"}}, {}, [f"annotation {NAMES.pause_label}, which is read as label"]),
        ({}, {"labels": {TOPOLOGY: "rack"}}, [f"label {TOPOLOGY} of pods, which is read as annotation only"]),
        ({"labels": {"muster.dev/zzz": "x"}}, {}, ["label muster.dev/zzz, which is not known"]),
        ({"annotations": {TOPOLOGY: "rack"}}, {}, [f"annotation {TOPOLOGY}, which is read of pod templates only"]),
        # Some tools put the same on a job and its pods.
        ({"annotations": {TOPOLOGY: "rack"}}, {"annotations": {TOPOLOGY: "rack"}}, []),
        ({}, {"annotations": {REPLACE: "true"}}, [f"annotation {REPLACE} of pods, which is read of the job only"]),
        ({}, {"labels": {NAMES.pause_label: "true"}}, [f"label {NAMES.pause_label} of pods, which is read of the job"]),
        (
            {"annotations": {NAMES.priority_boost_annotation: "5", NAMES.selector_annotation: "a=b"}},
            {},
            [f"annotation {NAMES.priority_boost_annotation}, which is read of Workloads only"],
        ),
    ],
)
def test_what_says_nothing_where_it_stands(meta: Json, pods: Json, told: list[str]) -> None:
    made = job()
    made["metadata"] |= meta
    made["spec"]["template"]["metadata"] = pods
    found = view(JOB, made, NAMES, every=True).unknown_keys
    assert len(found) == len(told)
    assert all(part in one for part, one in zip(told, found, strict=True))
    assert view(JOB, made, Names("kueue.x-k8s.io"), every=True).unknown_keys == ()
    of_two = jobset(("a", 1, 1), ("b", 1, 1))
    for entry in of_two["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["template"] = made["spec"]["template"]
    of_two["metadata"] |= meta
    assert view(JOBSET, of_two, NAMES, every=True).unknown_keys == found


@pytest.mark.parametrize(
    ("form", "key", "told"),
    [
        ("annotations", TOPOLOGY, ", which is read of pod templates only"),
        ("annotations", TOPOLOGY[:-2], f", which is not known (did you mean {TOPOLOGY}?)"),
        ("annotations", REPLACE, ", which is read of the JobSet only"),
        ("labels", NAMES.priority_class_label, ", which is read of the JobSet only"),
        ("labels", TOPOLOGY, ", which is read as annotation only"),
        ("labels", "example.com/x", None),
    ],
)
def test_what_says_nothing_on_the_jobs_of_a_jobset(form: str, key: str, told: str | None) -> None:
    made = jobset(("a", 1, 1), ("b", 1, 1))
    made["spec"]["replicatedJobs"][1]["template"]["metadata"] = {form: {key: "x"}}
    found = view(JOBSET, made, NAMES, every=True).unknown_keys
    assert found == ((f"{form[:-1]} {key} of replicatedJobs[].template{told}",) if told else ())
    assert view(JOBSET, made, Names("kueue.x-k8s.io"), every=True).unknown_keys == ()


def test_of_thousands_of_unknown_keys_a_few_are_told() -> None:
    """What each may mean is a look at all that are known, whenever the job changes, while nobody else's is decided."""
    made = job()
    made["metadata"]["labels"] = {f"muster.dev/podset-required-topologies-{i}": "x" for i in range(2000)}
    assert len(view(JOB, made, NAMES, every=True).unknown_keys) == 16


def test_what_unknown_keys_may_mean_is_looked_for_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is read whenever it changes, and its owner may change all of its keys each time."""
    looked_for: list[str] = []

    def close(key: str, *_: Any) -> list[str]:
        looked_for.append(key)
        return []

    monkeypatch.setattr("difflib.get_close_matches", close)
    made = job(parallelism=1)
    made["metadata"]["annotations"] = {f"muster.dev/seldom-{i}": "x" for i in range(1000)}
    assert len(view(JOB, made, NAMES, every=True).unknown_keys) == 16
    assert len(looked_for) == 2


IGNORING = {"rules": [{"action": "Ignore", **DISRUPTED}]}
FAILING = {"rules": [FAILS]}


@pytest.mark.parametrize("group", ["muster.dev", "kueue.x-k8s.io"])
@pytest.mark.parametrize(
    ("kind", "spec", "key", "written", "told"),
    [
        (JOB, {}, "replace_lost_pods", ("true", "false", ""), ""),
        (JOB, {}, "replace_lost_pods", ("yes", "True", "1"), "is neither 'true' nor 'false'"),
        (JOB, {"backoffLimit": 0}, "replace_lost_pods", ("false", ""), ""),
        (JOB, {"backoffLimit": 0}, "replace_lost_pods", ("true",), "give that a backoffLimit above 0"),
        (JOB, {"podFailurePolicy": FAILING}, "replace_lost_pods", ("true",), "and no rule that fails it"),
        (JOB, {"backoffLimit": 0, "podFailurePolicy": IGNORING}, "replace_lost_pods", ("true",), ""),
        (JOB, {}, "min_parallelism", ("1",), ""),
        (JOBSET, {}, "min_parallelism", ("1",), "which is read of Jobs only"),
        (JOB, {}, "unconstrained_topology", (*kinds.KUEUES_YES_OR_NO, ""), ""),
        (JOB, {}, "unconstrained_topology", ("yes", "tRue"), "is neither 'true' nor 'false'"),
    ],
)
def test_a_value_that_is_none_is_told(
    group: str, kind: kinds.JobKind, spec: Json, key: str, written: tuple[str, ...], told: str
) -> None:
    names = Names(group)
    annotation = getattr(names, f"{key}_annotation")
    for value in written:
        made = job() if kind is JOB else jobset(("a", 1, 1))
        pods = made["spec"]["template"] if kind is JOB else _pods_of(made, 0)
        made["spec"] |= spec
        holder = pods if key == "unconstrained_topology" else made
        holder.setdefault("metadata", {})["annotations"] = {annotation: value}
        found = view(kind, made, names, every=True).unknown_keys
        assert bool(found) == bool(told)
        assert all(told in one and annotation in one for one in found)


def _pods_of(made: Json, index: int) -> Json:
    pods: Json = made["spec"]["replicatedJobs"][index]["template"]["spec"]["template"]
    return pods


def test_kind_of() -> None:
    assert [kind_of(job()), kind_of(jobset()), kind_of({"kind": "Job", "apiVersion": "v1"})] == [JOB, JOBSET, None]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def broken(draw: st.DrawFn) -> Json:
    """A job of either kind with a few places replaced by anything."""
    raw: Any = copy.deepcopy(draw(st.sampled_from([job(parallelism=2), jobset(("a", 1, 2), ("b", 2, 1))])))
    raw["metadata"]["annotations"] = {
        NAMES.inverse_annotation: draw(st.sampled_from(["{}", "[", '{"undo":[[["a"]],3]}']))
    }
    for _ in range(draw(st.integers(1, 3))):
        here: Any = raw
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(here[key], dict | list) and here[key] and draw(st.booleans()):
                here = here[key]
                continue
            here[key] = draw(JSON)
            break
    return raw if isinstance(raw, dict) else {}


@settings(max_examples=150, deadline=None)
@given(broken())
def test_whatever_an_object_says_there_is_a_view(raw: Json) -> None:
    for kind in KINDS:
        seen = view(kind, raw, NAMES)
        assert all(count >= 0 for _, count in seen.counts)
        hash(seen)


@pytest.mark.parametrize(
    ("told", "active", "ready", "succeeded", "count"),
    [
        ({"active": 2}, 6, 0, 0, 6),
        ({"active": 2, "ready": 1}, 6, 3, 0, 6),
        ({"active": 1, "ready": 1, "succeeded": 1}, 3, 3, 3, 6),
        ({"succeeded": 2}, 0, 0, 6, 0),
    ],
)
def test_a_jobset_counts_pods_and_not_its_child_jobs(
    told: dict[str, int], active: int, ready: int, succeeded: int, count: int
) -> None:
    raw = jobset(("workers", 2, 3), status={"replicatedJobsStatus": [{"name": "workers", **told}]})
    seen = view(JOBSET, raw, NAMES)
    assert (seen.active, seen.ready, seen.succeeded, seen.counts) == (active, ready, succeeded, (("workers", count),))
