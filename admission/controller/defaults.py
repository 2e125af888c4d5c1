"""What a cluster adds to the pods of a job that do not say it themselves: LimitRanges, RuntimeClasses, what claims made
from ResourceClaimTemplates ask for, and priority; and what ResourceQuotas allow them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from admission.jobs.devices import Devices
from admission.jobs.kinds import JobView
from admission.jobs.requests import class_mark, defaults_mark, limits_mark, quotas_mark


def named_in_vain(
    job: JobView,
    ours: Collection[str] | None,
    of_pods: Collection[str] | None,
    accounts_lacking: Collection[str],
) -> tuple[str, ...]:
    """What a job names that is not there, in words; there are these WorkloadPriorityClasses, and these PriorityClasses
    (None: nobody can see which), and not these ServiceAccounts."""
    problems = []
    if ours is not None and job.priority_class and job.priority_class not in ours:
        known = ", ".join(sorted(ours)[:10]) or "none"
        problems.append(f"WorkloadPriorityClass {job.priority_class!r} does not exist; there are: {known}")
    problems += [
        f"PriorityClass {name!r} (priorityClassName of its pods) does not exist: none of them can be made"
        for name in job.pod_priority_classes
        if of_pods is not None and name not in of_pods
    ]
    problems += [
        f"ServiceAccount {name!r} (serviceAccountName of its pods) does not exist in namespace {job.namespace}: "
        "none of them can be made; create it, or name another"
        for name in accounts_lacking
    ]
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class PriorityClassSeen:
    """A WorkloadPriorityClass (`ours`) or a PriorityClass."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    value: int
    default: bool = False


class Defaults:
    """See the module."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self.has_account: Callable[[str, str], bool] = lambda _namespace, _name: True
        """Is there such a ServiceAccount? True where nobody can see which there are."""
        self.workload_priorities: dict[str, int] = {}
        self.pod_priorities: dict[str, int] = {}
        self._pod_priority_defaults: dict[str, int] = {}
        self._limit_ranges: dict[str, dict[str, dict[str, Any]]] = {}
        """By namespace and name."""
        self._quotas: dict[str, dict[str, dict[str, Any]]] = {}
        """The same of ResourceQuotas."""
        self.runtime_classes: dict[str, dict[str, Any]] = {}
        self._limits_marks: dict[str, str] = {}
        """By namespace, where LimitRanges add something, or ResourceQuotas allow something ..."""
        self._class_marks: dict[str, str] = {}
        """... and of RuntimeClasses; see `requests.defaults_mark`."""

    def limit_range_changed(self, namespace: str, name: str, value: dict[str, Any] | None) -> bool:
        """A LimitRange came, changed or (None) went: do those of its namespace add something else to pods now?"""
        return self._changed(self._limit_ranges, namespace, name, value)

    def quota_changed(self, namespace: str, name: str, value: dict[str, Any] | None) -> bool:
        """The same of a ResourceQuota and what it allows pods."""
        return self._changed(self._quotas, namespace, name, value)

    def _changed(
        self, kept: dict[str, dict[str, dict[str, Any]]], namespace: str, name: str, value: dict[str, Any] | None
    ) -> bool:
        here = kept.setdefault(namespace, {})
        if value is not None:
            here[name] = value
        else:
            here.pop(name, None)
        if not here:
            del kept[namespace]
        before = self._limits_marks.pop(namespace, "")
        after = limits_mark(self.limits_of(namespace)) + quotas_mark(self.quotas_of(namespace))
        if after:
            self._limits_marks[namespace] = after
        return before != after

    def runtime_class_changed(self, name: str, value: dict[str, Any] | None) -> bool:
        """The same of a RuntimeClass."""
        before = self._class_marks.pop(name, class_mark(None))
        if value is not None:
            self.runtime_classes[name] = value
            self._class_marks[name] = class_mark(value)
        else:
            self.runtime_classes.pop(name, None)
        return before != self._class_marks.get(name, class_mark(None))

    def priority_seen(self, seen: PriorityClassSeen, *, ours: bool) -> None:
        if ours:
            self.workload_priorities[seen.name] = seen.value
        else:
            self.pod_priorities[seen.name] = seen.value
            self._pod_priority_defaults.pop(seen.name, None)
            if seen.default:
                self._pod_priority_defaults[seen.name] = seen.value

    def priority_lost(self, seen: PriorityClassSeen, *, ours: bool) -> None:
        (self.workload_priorities if ours else self.pod_priorities).pop(seen.name, None)
        if not ours:
            self._pod_priority_defaults.pop(seen.name, None)

    def limits_of(self, namespace: str) -> list[dict[str, Any]]:
        """LimitRanges of a namespace, in order of name."""
        return _in_order(self._limit_ranges, namespace)

    def quotas_of(self, namespace: str) -> list[dict[str, Any]]:
        """ResourceQuotas of a namespace, in order of name."""
        return _in_order(self._quotas, namespace)

    def accounts_lacking(self, job: JobView) -> tuple[str, ...]:
        """ServiceAccounts that its pods name and that are not there."""
        return tuple(name for name in job.service_accounts if not self.has_account(job.namespace, name))

    def mark_of(self, job: JobView) -> str:
        """What is added to its pods, but for priority, as a mark; "" for nothing. Another where it names a
        ServiceAccount in vain, for which no Workload is made."""
        limits = self._limits_marks.get(job.namespace, "")
        vain = self.accounts_lacking(job)
        if not (limits or vain or job.runtime_classes or job.claim_templates or job.device_classes):
            return ""
        absent = class_mark(None)
        return "/".join(vain) + defaults_mark(
            limits,
            [(name, self._class_marks.get(name, absent)) for name in job.runtime_classes],
            self._devices.marks(job.namespace, job.claim_templates, job.device_classes).items(),
        )

    def priority(self, job: JobView) -> tuple[int, str, str]:
        """(value, kind, name) of the class that gives the job its priority. A class nobody has counts 0; a job that
        names a WorkloadPriorityClass which nobody has is not queued, and keeps what it had if it was."""
        if job.priority_class:
            return self.workload_priorities.get(job.priority_class, 0), "WorkloadPriorityClass", job.priority_class
        if job.pod_priority_class:
            value = self.pod_priorities.get(job.pod_priority_class, 0)
            return value, "PriorityClass", job.pod_priority_class
        # Of pods that name no class: the smallest, as the API server takes it where several say so.
        return min(self._pod_priority_defaults.values(), default=0), "", ""


def _in_order(kept: Mapping[str, Mapping[str, dict[str, Any]]], namespace: str) -> list[dict[str, Any]]:
    return [value for _, value in sorted(kept.get(namespace, {}).items(), key=lambda one: one[0])]
