"""From the configuration file to rules, and the usage of LocalQueues over time as it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from admission import quantity
from admission.api.config import NEVER_GOVERNED, Configuration, load_config
from admission.controller import queue_status
from admission.controller.decode import Item
from admission.controller.setup import flow_of, looked_at, rules_of, selector_of, settings_of, tuning_of
from admission.controller.webhook import configurations
from admission.engine.model import (
    KUEUE,
    Admission,
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PodSetAssignment,
    Put,
    Quota,
    ResourceGroup,
    Strategies,
    Transformation,
    UsageFairness,
    Workload,
    matches,
)
from admission.engine.state import State
from admission.jobs.kinds import millis
from admission.jobs.requests import label_selector
from admission.jobs.values import local_queue, rfc3339
from admission.names import Names
from tests.kube.virtual import virtually

HEAD = "apiVersion: config.muster.dev/v1beta1\nkind: Configuration\n"


def test_resources_of_the_file_reach_the_rules() -> None:
    rules = rules_of(
        load_config(
            HEAD
            + """\
resources:
  excludeResourcePrefixes: [networking.example.com/, example.org/]
  excludeDeviceClasses: [channel.example.com]
  transformations:
  - {input: nvidia.com/mig-4g.20gb, strategy: Replace, outputs: {example.com/gpu-memory: 20Gi, credits: 500m}}
  - {input: credits-per-gpu, multiplyBy: nvidia.com/gpu, outputs: {credits: 1}}
"""
        )
    )
    assert rules.excluded_prefixes == ("networking.example.com/", "example.org/")
    assert rules.excluded_classes == {"channel.example.com"}
    assert rules.transformations == (
        Transformation(
            input="nvidia.com/mig-4g.20gb",
            outputs=(("credits", Fraction(1, 2)), ("example.com/gpu-memory", Fraction(20 * 2**30))),
            retain=False,
        ),
        Transformation(
            input="credits-per-gpu", outputs=(("credits", Fraction(1)),), retain=True, multiply_by="nvidia.com/gpu"
        ),
    )


REACHED: dict[str, tuple[Callable[[Configuration], Any], dict[str, Any]]] = {
    "preset: kueue": (rules_of, {"reclaim_default": KUEUE.reclaim_default, "promises": False}),
    "fairSharing: {preemptionStrategies: [LessThanInitialShare]}": (
        rules_of,
        {"strategies": (Strategies.INITIAL,)},
    ),
    "fairSharing: {minRuntime: 30m, maxEvictionsPerHour: 1}": (
        rules_of,
        {"spare_first_ms": 1_800_000, "spare_after": 1, "fair_sharing": True},
    ),
    "admissionFairSharing: {usageHalfLifeTime: 2h, usageSamplingInterval: 1m, resourceWeights: {cpu: 0.5}}": (
        rules_of,
        {"usage_fairness": UsageFairness(half_life_ms=7_200_000, sampling_ms=60_000, weights=(("cpu", 0.5),))},
    ),
    "resources: {quotaCheckStrategy: IgnoreUndeclared}": (rules_of, {"ignore_undeclared": True}),
    "waitForPodsReady: {recoveryTimeout: 90s, requeuingStrategy: {backoffBaseSeconds: 2, backoffMaxSeconds: 9, "
    "backoffLimitCount: 3, timestamp: Creation}}": (
        lambda config: (rules_of(config).evict_stamp, settings_of(config)),
        {"backoff_limit": 3, "backoff_base_ms": 2_000, "backoff_max_ms": 9_000, "recovery_ms": 90_000},
    ),
    "podsUnschedulableTimeout: 7s": (settings_of, {"unschedulable_ms": 7_000}),
    "statusInterval: 250ms": (tuning_of, {"queue_status_s": 0.25}),
}
"""A line of the file -> what is made of it, and what it then says."""


@pytest.mark.parametrize("text", REACHED)
def test_a_line_of_the_file_reaches_what_runs(text: str) -> None:
    made, says = REACHED[text]
    found, without = made(load_config(HEAD + text)), made(load_config(HEAD))
    assert found != without
    if isinstance(found, tuple):
        assert (found[0], without[0]) == (False, True), "as of its creation, not of its eviction"
        found = found[1]
    assert {name: getattr(found, name) for name in says} == says


@pytest.mark.parametrize(("group", "recovery"), [("", 0), ("apiGroup: kueue.x-k8s.io\n", None)])
def test_no_time_to_recover_means_for_ever_in_kueue_mode(group: str, recovery: int | None) -> None:
    assert settings_of(load_config(HEAD + group + "waitForPodsReady: {recoveryTimeout: 0s}")).recovery_ms == recovery


@pytest.mark.parametrize(
    "selector",
    [
        "",
        "namespaceSelector: {}",
        "namespaceSelector: {matchLabels: {team: a}}",
        "namespaceSelector: {matchExpressions: [{key: free, operator: DoesNotExist}]}",
    ],
)
def test_no_selector_governs_the_namespaces_of_kubernetes_and_our_own(selector: str) -> None:
    """Neither the controller, nor a webhook that fails closed."""
    config = load_config(HEAD + selector)
    asked = looked_at(config, "home")
    made = configurations(Names(), ca_bundle=b"ca", url="x", governed_namespaces=selector_of(config, "home"))
    read = [
        label_selector(hook["namespaceSelector"], "", [])
        for one in made
        for hook in one["webhooks"]
        if hook["name"].startswith("namespaces.")
    ]
    assert read == [asked, asked]
    for name, governed in (*((name, False) for name in (*NEVER_GOVERNED, "home")), ("any", True)):
        labels = {"kubernetes.io/metadata.name": name, "team": "a"}
        assert matches(asked, labels) is governed, name


def test_requests_keep_to_the_rate_of_the_file() -> None:
    async def main() -> None:
        flow = flow_of(load_config(HEAD + "clientConnection: {kubeAPIQPS: 10, kubeAPIBurst: 5}"))
        times = []
        for _ in range(25):
            await flow.enter()
            times.append(asyncio.get_running_loop().time())
            flow.leave()
        assert (times[4], round(times[-1], 3)) == (0.0, 2.0)

    virtually(main)


# ---------------------------------------------------------------- usage over time

QUEUE = ClusterQueue(
    name="q",
    groups=(ResourceGroup(covered=("gpu",), flavors=(FlavorQuotas("f", (("gpu", Quota(100)),)),)),),
    usage_based_fairness=True,
)
LOCAL = LocalQueue(namespace="ns", name="main", cluster_queue="q")


def running(state: State, gpus: int, name: str = "w", since: int = 1, flavor: str = "f") -> None:
    given = Admission("q", (PodSetAssignment("main", (("gpu", flavor),), (("gpu", gpus),), 1),))
    state.apply(
        Put(
            Workload(
                "ns", name, uid=name, queue="main", pod_sets=(PodSet("main", 1),), admission=given, reserved_at=since,
                admitted=True, admitted_at=since,
            )
        )
    )  # fmt: skip


def stored(status: dict[str, Any], value: LocalQueue = LOCAL) -> Item[LocalQueue]:
    """The LocalQueue as it comes back from the API server."""
    raw = {
        "metadata": {"namespace": value.namespace, "name": value.name},
        "spec": {"clusterQueue": value.cluster_queue},
        "status": status,
    }
    read, problems = local_queue(raw, Names())
    assert not problems
    return Item(value.namespace, value.name, "uid", "1", read, status=status)


def test_usage_is_noted_once_an_interval_and_halves_in_a_half_life() -> None:
    config = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 10m}\n"
    rules = rules_of(load_config(HEAD + config))
    state = State(rules)
    state.apply(Put(QUEUE))
    state.apply(Put(LOCAL))
    running(state, 10)
    seen = stored({})
    values = []
    at = 1_000_000_500
    for _ in range(4):
        status = queue_status.local_queue_status(state, seen, at)
        seen = stored(status)
        state.apply(Put(seen.value))
        assert queue_status.local_queue_status(state, seen, at + 599_000) == status, "between samples nothing moves"
        due = queue_status.next_sample(state, seen, at)
        assert due == at - at % 1000 + 600_000
        values.append(dict(seen.value.consumed).get("gpu", 0.0))
        assert millis(status["fairSharing"]["admissionFairSharingStatus"]["lastUpdate"]) == at - at % 1000
        at = due
    assert values == [0.0, 5.0, 7.5, 8.75]


def test_usage_is_that_of_all_flavors() -> None:
    config = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 10m}\n"
    state = State(rules_of(load_config(HEAD + config)))
    flavors = tuple(FlavorQuotas(name, (("gpu", Quota(100)),)) for name in ("f", "g"))
    state.apply(Put(replace(QUEUE, groups=(ResourceGroup(covered=("gpu",), flavors=flavors),))))
    state.apply(Put(LOCAL))
    running(state, 10)
    running(state, 30, "other", flavor="g")
    at = 1_000_000_000
    seen = stored(queue_status.local_queue_status(state, stored({}), at))
    state.apply(Put(seen.value))
    seen = stored(queue_status.local_queue_status(state, seen, at + 600_000))
    assert dict(seen.value.consumed) == {"gpu": 20.0}


@pytest.mark.parametrize(("made_anew", "noted"), [(QUEUE, 5.0), (replace(QUEUE, usage_based_fairness=False), None)])
def test_usage_outlasts_a_queue_that_is_made_anew(made_anew: ClusterQueue, noted: float | None) -> None:
    config = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 10m}\n"
    state = State(rules_of(load_config(HEAD + config)))
    state.apply(Put(LOCAL))
    said = {"consumedResources": {"gpu": "10"}, "lastUpdate": rfc3339(1_000_000_000)}
    seen = stored({"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": said}})
    status = queue_status.local_queue_status(state, seen, 1_000_300_000)
    assert status["fairSharing"]["admissionFairSharingStatus"] == said
    state.apply(Put(made_anew))
    seen = stored(queue_status.local_queue_status(state, stored(status), 1_000_600_000))
    assert dict(seen.value.consumed).get("gpu") == noted


def test_usage_is_noted_anew_where_the_time_of_the_last_note_cannot_be_read() -> None:
    config = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 10m}\n"
    state = State(rules_of(load_config(HEAD + config)))
    state.apply(Put(QUEUE))
    state.apply(Put(LOCAL))
    said = {"fairSharing": {"admissionFairSharingStatus": {"lastUpdate": "soon"}}}
    seen = Item(LOCAL.namespace, LOCAL.name, "uid", "1", LOCAL, status=said)
    noted = queue_status.local_queue_status(state, seen, 5_000)["fairSharing"]["admissionFairSharingStatus"]
    assert (noted["consumedResources"], millis(noted["lastUpdate"])) == ({}, 5_000)


@pytest.mark.parametrize(("ahead_s", "noted_at"), [(599, 1_000_000_599_000), (365 * 86_400, 1_000_000_000_000)])
def test_usage_that_was_noted_by_a_clock_far_ahead_is_noted_again(ahead_s: int, noted_at: int) -> None:
    """Else it would stand still until then, and one LocalQueue have all turns."""
    config = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 10m}\n"
    state = State(rules_of(load_config(HEAD + config)))
    state.apply(Put(QUEUE))
    state.apply(Put(LOCAL))
    running(state, 20)
    now = 1_000_000_000_000
    said = {"consumedResources": {"gpu": "10"}, "lastUpdate": rfc3339(now + ahead_s * 1000)}
    seen = stored({"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": said}})
    state.apply(Put(seen.value))
    status = queue_status.local_queue_status(state, seen, now)
    seen = stored(status)
    assert dict(seen.value.consumed) == {"gpu": 10.0}
    assert seen.value.consumed_at == noted_at
    assert queue_status.next_sample(state, seen, now) == noted_at + 600_000


def test_while_nobody_noted_usage_a_gang_counts_for_as_long_as_it_has_run() -> None:
    """Nobody led for three days: who was admitted a minute ago counts for an interval, and not for all of them."""
    config = "admissionFairSharing: {usageHalfLifeTime: 72h, usageSamplingInterval: 24h}\n"
    state = State(rules_of(load_config(HEAD + config)))
    state.apply(Put(QUEUE))
    state.apply(Put(LOCAL))
    now, day = 1_000_000_000_000, 86_400_000
    running(state, 10)
    running(state, 20, "two-days", now - 2 * day)
    running(state, 40, "a-minute", now - 60_000)
    said = {"consumedResources": {"gpu": "10"}, "lastUpdate": rfc3339(now - 3 * day)}
    seen = stored({"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": said}})
    state.apply(Put(seen.value))
    seen = stored(queue_status.local_queue_status(state, seen, now))
    expected = 10 + 20 * (1 - 0.5 ** (2 / 3)) + 40 * (1 - 0.5 ** (1 / 3))
    assert dict(seen.value.consumed)["gpu"] == pytest.approx(expected)


def test_without_it_nothing_is_noted() -> None:
    state = State(replace(rules_of(load_config(HEAD)), usage_fairness=None))
    state.apply(Put(QUEUE))
    state.apply(Put(LOCAL))
    assert queue_status.next_sample(state, stored({}), 5_000) is None
    assert "fairSharing" not in queue_status.local_queue_status(state, stored({}), 5_000)


@given(st.sampled_from(["cpu", "memory", "gpu"]), st.floats(0, 1e12))
def test_a_fraction_comes_back_to_a_billionth(resource: str, amount: float) -> None:
    text = quantity.format_fraction(resource, amount)
    assert quantity.parse_fraction(resource, text) == pytest.approx(amount, rel=1e-12, abs=1e-6)
