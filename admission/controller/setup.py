"""From the configuration file to the values that the controller runs on."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from admission.api.config import NEVER_GOVERNED, Configuration
from admission.controller import installation
from admission.controller.app import Tuning
from admission.controller.lifecycle import Settings
from admission.engine.model import KUEUE, MUSTER, LabelSelector, Rules, Strategies, Transformation, UsageFairness
from admission.jobs.requests import LIMITS, Limits, label_selector
from admission.kube.flow import Flow
from admission.quantity import parse_plain


def rules_of(config: Configuration) -> Rules:
    """The preset, changed by what the file says of fairness and resources."""
    rules = KUEUE if config.preset == "kueue" else MUSTER
    if config.fair_sharing is not None:
        rules = replace(rules, fair_sharing=True)
        if config.fair_sharing.preemption_strategies is not None:
            chosen = tuple(Strategies(name) for name in config.fair_sharing.preemption_strategies)
            rules = replace(rules, strategies=chosen)
        if config.fair_sharing.min_runtime is not None:
            rules = replace(rules, spare_first_ms=round(config.fair_sharing.min_runtime * 1000))
        if config.fair_sharing.max_evictions_per_hour is not None:
            rules = replace(rules, spare_after=config.fair_sharing.max_evictions_per_hour)
    usage = config.admission_fair_sharing
    if usage is not None:
        rules = replace(
            rules,
            usage_fairness=UsageFairness(
                half_life_ms=round(usage.usage_half_life_time * 1000),
                sampling_ms=round(usage.usage_sampling_interval * 1000),
                weights=tuple(sorted(usage.resource_weights.items())),
            ),
        )
    transformations = tuple(
        Transformation(
            input=one.input,
            outputs=tuple((name, Fraction(parse_plain(factor))) for name, factor in sorted(one.outputs.items())),
            retain=one.strategy == "Retain",
            multiply_by=one.multiply_by or "",
        )
        for one in config.resources.transformations
    )
    return replace(
        rules,
        ignore_undeclared=config.resources.quota_check_strategy == "IgnoreUndeclared",
        excluded_prefixes=tuple(config.resources.exclude_resource_prefixes),
        excluded_classes=frozenset(config.resources.exclude_device_classes),
        transformations=transformations,
        evict_stamp=config.wait_for_pods_ready.requeuing_strategy.timestamp == "Eviction",
    )


def settings_of(config: Configuration) -> Settings:
    wait = config.wait_for_pods_ready
    again = wait.requeuing_strategy
    forever = wait.recovery_seconds == 0 and config.names.as_kueue  # as Kueue reads it
    return Settings(
        pods_ready_ms=round(wait.timeout * 1000) if wait.enable else None,
        recovery_ms=round(wait.recovery_seconds * 1000) if wait.enable and not forever else None,
        unschedulable_ms=round(config.pods_unschedulable_timeout * 1000),
        backoff_base_ms=again.backoff_base_seconds * 1000,
        backoff_max_ms=again.backoff_max_seconds * 1000,
        backoff_limit=again.backoff_limit_count,
        as_kueue=config.names.as_kueue,
    )


def selector_of(config: Configuration, home: str = "muster-system") -> dict[str, Any]:
    """The label selector of namespaces, as the API writes it: what the file selects, but for `NEVER_GOVERNED` and the
    controller's own."""
    said = config.namespace_selector.model_dump(by_alias=True, exclude_none=True)
    names = list(dict.fromkeys((*NEVER_GOVERNED, home)))
    but = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": names}
    return {**said, "matchExpressions": [*said.get("matchExpressions", ()), but]}


def looked_at(config: Configuration, home: str = "muster-system") -> LabelSelector | None:
    """Namespaces whose jobs are queued."""
    return label_selector(selector_of(config, home), "namespaceSelector", [])


def counted_by_itself(config: Configuration) -> LabelSelector | None:
    """LocalQueues that have metrics of their own."""
    asked = config.metrics.local_queue_metrics
    selected = asked.local_queue_selector.model_dump(by_alias=True, exclude_none=True)
    return label_selector(selected, "localQueueSelector", []) if asked.enable else None


def policy_settings(config: Configuration, home: str = "muster-system") -> installation.Settings:
    """Whose jobs are held, or get a queue, without a label."""
    selected = selector_of(config, home)
    return installation.Settings(
        governed_namespaces=selected if config.manage_jobs_without_queue_name else None,
        defaulted_namespaces=selected if config.local_queue_defaulting else None,
    )


def limits_of(config: Configuration) -> Limits:
    """Of what a queued job may say."""
    grace, jobs = config.max_termination_grace_period_seconds, config.max_jobs_per_job_set
    return dataclasses.replace(LIMITS, grace_s=grace, child_jobs=jobs)


def default_queue(config: Configuration) -> str:
    """LocalQueue of jobs without a label; "" where such jobs are left alone."""
    return config.default_queue_name if config.manage_jobs_without_queue_name else ""


def tuning_of(config: Configuration) -> Tuning:
    return Tuning(queue_status_s=config.status_interval)


def flow_of(config: Configuration) -> Flow:
    """The limits of this client's requests."""
    return Flow(qps=config.client_connection.kube_api_qps, burst=config.client_connection.burst)
