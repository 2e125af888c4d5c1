"""The configuration file: what an operator may set, its defaults, and errors that can be acted on.

    apiVersion: config.muster.dev/v1beta1
    kind: Configuration
    waitForPodsReady:
      timeout: 10m

`load_config` reads it once, at start. All problems are told at once, each with its line; a key that does not exist is
refused with the nearest one that does, because a setting that is silently ignored is worse than none. Durations are
written as Go writes them ("90s", "1h30m") and are seconds here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from admission.api.schema import Amount, LabelSelector, ObjectName, path_text, say
from admission.names import KUEUE_GROUP, MUSTER_GROUP, Names

API_VERSION = "config.muster.dev/v1beta1"

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = (2**63 - 1) / 1e9
"""As in Go; and a time that is so far ahead can still be written."""
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


class ConfigError(ValueError):
    """The file is wrong. `problems` has one line for each thing that is, with its place."""

    def __init__(self, where: str, problems: list[str]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{where}: {count}\n" + "\n".join(f"  {problem}" for problem in problems))


def parse_duration(text: str) -> float:
    """Seconds of a duration as Go writes it: "300ms", "5m", "1h30m". Raises ValueError saying what to write."""
    seconds, at = 0.0, 0
    if text == "0":
        return 0.0
    while at < len(text) and (term := _TERM.match(text, at)):
        seconds += float(term[1]) * _UNITS[term[2]]
        at = term.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is no duration: write for example 30s, 5m or 1h30m")
    if seconds > _LONGEST_S:
        raise ValueError(f"{text[:40]!r} is too long: write at most 292 years (2562047h)")
    return seconds


def _duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str):
        if value == 0 and not isinstance(value, bool):
            return 0.0
        unit = (
            f": write {value}s if seconds are meant" if isinstance(value, int) and not isinstance(value, bool) else ""
        )
        raise PydanticCustomError("duration", "{text} has no unit{unit}", {"text": repr(value), "unit": unit})
    try:
        return parse_duration(value.strip())
    except ValueError as error:
        raise PydanticCustomError("duration", "{message}", {"message": str(error)}) from None


def _address(value: Any) -> str:
    if isinstance(value, str) and value == "0":
        return value
    match = re.fullmatch(r"(.*):(\d{1,5})", value) if isinstance(value, str) else None
    if match is None or int(match[2]) > 65535:
        raise PydanticCustomError(
            "address", "{text} is no address: write host:port or :port, or '0' for none", {"text": repr(value)}
        )
    return str(value)


if TYPE_CHECKING:
    Duration = float
    LongDuration = float
    Address = str
else:
    Duration = Annotated[float, BeforeValidator(_duration)]
    LongDuration = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
    Address = Annotated[str, BeforeValidator(_address)]


class Section(BaseModel):
    """A mapping of the file. Unknown keys are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=False,
        validate_default=False,
    )


class RequeuingStrategy(Section):
    """How a gang that did not get ready is tried again."""

    timestamp: Literal["Eviction", "Creation"] = "Eviction"
    """Place in the queue of a gang that was evicted so: by the time of its eviction, or of its creation."""
    backoff_limit_count: Annotated[int, Field(ge=0)] | None = None
    """The most requeues; after one more the gang is deactivated. If not set: never. A gang that has run whole for an
    hour, and for `backoffMaxSeconds`, is counted anew; not in Kueue mode."""
    backoff_base_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] = 60
    """Wait after the first eviction, doubled with each further one. Each gang waits up to an eighth longer, so that not
    all come back at once; not in Kueue mode."""
    backoff_max_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] = 3600
    """The longest such wait."""

    @model_validator(mode="after")
    def _ordered(self) -> RequeuingStrategy:
        if self.backoff_max_seconds < self.backoff_base_seconds:
            raise PydanticCustomError("order", "backoffMaxSeconds is less than backoffBaseSeconds: swap them", {})
        return self


class WaitForPodsReady(Section):
    """A gang whose pods are not all ready in time is evicted and requeued."""

    enable: bool = True
    """False: no gang is evicted because its pods do not get ready; only because kube-scheduler cannot place them
    (podsUnschedulableTimeout)."""
    timeout: LongDuration = 1800.0
    """Time from the creation of the last pod until all are ready. It ends earlier if the API server has refused pods
    for a minute (not in Kueue mode), and later while pods are created for no gang at all."""
    recovery_timeout: Duration | None = None
    """The same after a pod of a running gang was lost; 0: the gang is evicted at once. If not set: as timeout. In Kueue
    mode it counts from the loss, and 0 means for ever."""
    requeuing_strategy: RequeuingStrategy = RequeuingStrategy()

    @property
    def recovery_seconds(self) -> float:
        return self.timeout if self.recovery_timeout is None else self.recovery_timeout


_STRATEGIES = (
    ("LessThanOrEqualToFinalShare", "LessThanInitialShare"),
    ("LessThanInitialShare",),
    ("LessThanOrEqualToFinalShare",),
)


class FairSharing(Section):
    preemption_strategies: list[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]] | None = None
    """When a queue may evict for fairness: if its share, with the gang, is at most that of the victim's queue after the
    eviction (LessThanOrEqualToFinalShare), or less than that before it (LessThanInitialShare). If not set: the first;
    with the preset kueue both, one after the other."""
    min_runtime: Duration | None = None
    """Time after its admission in which a gang is not evicted for fairness. If not set: 5m. Only with the preset
    muster."""
    max_evictions_per_hour: Annotated[int, Field(ge=1)] | None = None
    """After so many evictions for fairness within an hour a gang has none until the first is an hour ago. If not set:
    2. Only with the preset muster."""

    @model_validator(mode="after")
    def _legal(self) -> FairSharing:
        if self.preemption_strategies is not None and tuple(self.preemption_strategies) not in _STRATEGIES:
            legal = ", or ".join(f"[{', '.join(one)}]" for one in _STRATEGIES)
            raise PydanticCustomError("strategies", "preemptionStrategies: write {legal}", {"legal": legal})
        return self


class AdmissionFairSharing(Section):
    """Turns between the LocalQueues of a ClusterQueue, by what they used of late."""

    usage_half_life_time: Duration = 0.0
    """Time after which usage counts half. 0: past usage does not count."""
    usage_sampling_interval: LongDuration = 300.0
    """Time between samples of usage, which are written to the LocalQueue."""
    resource_weights: dict[str, Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)]] = {}
    """How much a unit of each resource counts. If not set: 1."""


class Transformation(Section):
    """Counts `input` as other resources."""

    input: Annotated[str, Field(min_length=1)]
    strategy: Literal["Retain", "Replace"] = "Retain"
    multiply_by: Annotated[str, Field(min_length=1)] | None = None
    outputs: dict[str, Amount] = {}


class Resources(Section):
    """How requests are counted. What a gang holds stays as it was counted when the gang got it."""

    exclude_resource_prefixes: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=64)] = []
    """Prefixes of the names of resources that no quota counts. For a gang that requests nothing else no nodes are
    reserved."""
    exclude_device_classes: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=64)] = []
    """DeviceClasses whose claims are counted neither in quota nor on nodes."""
    transformations: Annotated[list[Transformation], Field(max_length=64)] = []
    """Requests that count as other resources: {input, strategy, multiplyBy, outputs}. `outputs` says how much of each
    resource one of `input` counts as; with `multiplyBy` that times what the pod requests of this resource; beside the
    input itself (strategy `Retain`, the default) or in its place (`Replace`)."""
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"
    """What happens to a request for a resource without quota: the gang waits (BlockUndeclared), or the request is not
    counted (IgnoreUndeclared)."""

    @model_validator(mode="after")
    def _once(self) -> Resources:
        inputs = [t.input for t in self.transformations]
        for name in inputs:
            if inputs.count(name) > 1:
                raise PydanticCustomError("twice", "transformations: {name} is transformed twice", {"name": name})
        return self


class LeaderElection(Section):
    """Which replica decides and writes."""

    leader_elect: bool = True
    """False: this replica leads at once. Only for a single replica."""
    resource_name: Literal["muster-controller"] = "muster-controller"
    """Name of the Lease. The controller's roles and the commands know no other."""
    resource_namespace: ObjectName | None = None
    """Namespace of the Lease. If not set: the one that the controller runs in."""
    lease_duration: LongDuration = 15.0
    """Time without a renewal after which another replica takes the Lease."""
    renew_deadline: LongDuration = 10.0
    """Time without a renewal after which a leader writes no more."""
    retry_period: LongDuration = 2.0
    """Time between renewals, and between tries to become leader."""

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElection:
        if not self.lease_duration > self.renew_deadline > self.retry_period:
            raise PydanticCustomError(
                "order", "write leaseDuration > renewDeadline > retryPeriod, for example 15s, 10s and 2s", {}
            )
        return self


class ClientConnection(Section):
    """Limits on requests to the API server. If not set: only those of the API server's priority and fairness."""

    kube_api_qps: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = Field(
        default=None, alias="kubeAPIQPS"
    )
    """The most requests a second, without watches and the Lease."""
    kube_api_burst: Annotated[int, Field(gt=0)] | None = Field(default=None, alias="kubeAPIBurst")
    """Burst above kubeAPIQPS. If not set: twice kubeAPIQPS."""

    @property
    def burst(self) -> int:
        """Left out: twice what a second allows, as client libraries do."""
        return self.kube_api_burst or max(1, round(2 * (self.kube_api_qps or 50.0)))


class LocalQueueMetrics(Section):
    """Metrics of each LocalQueue."""

    enable: bool = True
    """Export amounts of each LocalQueue, flavor and resource, if those of ClusterQueues are exported."""
    local_queue_selector: LabelSelector = LabelSelector()
    """Selects the LocalQueues that are exported: with many thousands, select those of interest."""


class Metrics(Section):
    """For Prometheus."""

    bind_address: Address = ":8080"
    """Address of /metrics. "0": none."""
    enable_cluster_queue_resources: bool = True
    """Export amounts of each queue, cohort, flavor and resource."""
    local_queue_metrics: LocalQueueMetrics = LocalQueueMetrics()


class Health(Section):
    """For the kubelet."""

    bind_address: Address = ":8081"
    """Address of /healthz and /readyz. "0": none."""


class Web(Section):
    """The page and the visibility API."""

    bind_address: Address = ":8082"
    """Address of both. "0": neither."""
    tls: Literal["self", "none"] = "self"
    """`self`: the controller issues and renews a certificate. `none`: plain HTTP, and only the page, for a proxy in the
    same pod that has a certificate."""


class Webhook(Section):
    """The webhook, if no policies hold jobs."""

    host: str = ""
    """Address to listen on. Empty: all."""
    port: Annotated[int, Field(ge=1, le=65535)] = 9443
    """Port to listen on."""
    certificate: Literal["self", "files"] = "self"
    """`self`: the controller issues and rotates it. `files`: tls.crt and tls.key in certDir, issued by somebody
    else."""
    cert_dir: str | None = None
    """Folder of tls.crt and tls.key, and of ca.crt if callers should trust it. It is read every ten seconds."""

    @model_validator(mode="after")
    def _files(self) -> Webhook:
        if self.certificate == "files" and not self.cert_dir:
            raise PydanticCustomError(
                "files", "certificate: files needs certDir, the folder of tls.crt and tls.key", {}
            )
        return self


class Logging(Section):
    """The log, which goes to standard error."""

    format: Literal["json", "console"] = "json"
    """`json`: one object per line. `console`: for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""


NEVER_GOVERNED = ("kube-system", "kube-public", "kube-node-lease", "muster-system")
"""Namespaces in which nothing is held for want of a label, whatever the selector says: a hold fails closed, and a
cluster mends itself by what runs there. The controller's own is one of them, too."""


class Configuration(Section):
    """The whole file. `Configuration()` is what an empty one means."""

    api_version: Literal["config.muster.dev/v1beta1"] = "config.muster.dev/v1beta1"
    kind: Literal["Configuration"] = "Configuration"
    api_group: Literal["muster.dev", "kueue.x-k8s.io"] = "muster.dev"
    """API group of the kinds."""
    preset: Literal["muster", "kueue"] = "muster"
    """Whose rules decide. If not set: kueue with apiGroup kueue.x-k8s.io, else muster."""
    hold: Literal["auto", "policy", "webhook"] = "auto"
    """What holds jobs: the API server's policies, or a webhook. auto: policies if the API server has them."""
    namespace_selector: LabelSelector = LabelSelector()
    """Namespaces whose jobs are governed. Never those of Kubernetes and Muster's own, whatever is selected."""
    manage_jobs_without_queue_name: bool = False
    """Also hold jobs without a queue label."""
    default_queue_name: ObjectName = "default"
    """LocalQueue of their namespace in which jobs without a queue label wait."""
    local_queue_defaulting: bool = False
    """A job that is created without a queue label gets the LocalQueue `default` of its namespace, if there is one. If
    not set: true with apiGroup kueue.x-k8s.io, else false."""
    wait_for_pods_ready: WaitForPodsReady = WaitForPodsReady()
    fair_sharing: FairSharing | None = None
    """Fair sharing between queues and cohorts. If not set: as the preset says."""
    admission_fair_sharing: AdmissionFairSharing | None = None
    """Turns between the LocalQueues of a ClusterQueue, by their recent usage. If not set: none."""
    resources: Resources = Resources()
    leader_election: LeaderElection = LeaderElection()
    kueue_namespace: ObjectName = "kueue-system"
    """With apiGroup kueue.x-k8s.io: namespace of Kueue's controller. While the Lease of its leader is renewed, Muster
    decides nothing."""
    client_connection: ClientConnection = ClientConnection()
    metrics: Metrics = Metrics()
    health: Health = Health()
    web: Web = Web()
    webhook: Webhook = Webhook()
    logging: Logging = Logging()
    status_interval: LongDuration = 1.0
    """Least time between two writes of the status of a queue."""
    job_controller_users: list[Annotated[str, Field(min_length=1)]] = [
        "system:serviceaccount:kube-system:job-controller",
        "system:kube-controller-manager",
    ]
    """Users that create the pods of Jobs."""
    jobset_controller_users: list[Annotated[str, Field(min_length=1)]] = [
        "system:serviceaccount:jobset-system:jobset-controller-manager",
    ]
    """Users that create the Jobs of JobSets, and delete them."""
    pods_unschedulable_timeout: Duration = 60.0
    """A gang is evicted if kube-scheduler cannot place one of its pinned pods for so long, or if for so long more of
    its pods are on nodes than were admitted, those that are still ending included."""
    node_loss_grace_period: Duration = 120.0
    """Time after which a lost node's pods no longer hold quota."""
    max_termination_grace_period_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] = 3600
    """The longest terminationGracePeriodSeconds of a queued job: for so long an evicted gang may keep what others wait
    for."""
    max_jobs_per_job_set: Annotated[int, Field(ge=1, le=2**31 - 1)] = 4096
    """The most Jobs of a queued JobSet, counted over the replicas of its replicatedJobs: JobSet's controller builds all
    of them at once, while the JobSet waits."""
    hold_proof_period: Annotated[Duration, Field(gt=0)] = 30.0
    """Time between two proofs by the leader that labelled jobs are held. The condition JobsHeld has the result."""
    required_policies: list[ObjectName] = []
    """ValidatingAdmissionPolicies, each with a binding of its name, that must exist beside those that hold jobs. Where
    policies hold, the condition JobsHeld names missing ones."""

    @model_validator(mode="before")
    @classmethod
    def _as_group(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("apiGroup") == KUEUE_GROUP:
            return {"preset": "kueue", "localQueueDefaulting": True, **raw}
        return raw

    @model_validator(mode="after")
    def _of_preset(self) -> Configuration:
        if self.preset == "kueue" and self.fair_sharing is not None:
            for field, key in (("min_runtime", "minRuntime"), ("max_evictions_per_hour", "maxEvictionsPerHour")):
                if getattr(self.fair_sharing, field) is not None:
                    message = "fairSharing.{key}: the preset kueue spares nobody; leave it out, or write preset: muster"
                    raise PydanticCustomError("preset", message, {"key": key})
        return self

    def of_group(self, group: str) -> Configuration:
        """As if the file said this apiGroup. Raises ValidationError."""
        whole = Configuration.model_validate({"apiGroup": group})
        changed = {name: getattr(whole, name) for name in whole.model_fields_set - self.model_fields_set}
        return self.model_copy(update={**changed, "api_group": whole.api_group})

    @property
    def names(self) -> Names:
        return Names(KUEUE_GROUP if self.api_group == KUEUE_GROUP else MUSTER_GROUP)


def load_config(source: Path | str) -> Configuration:
    """The configuration in a file (a Path) or in YAML text (a str). Raises ConfigError with all that is wrong."""
    where = str(source) if isinstance(source, Path) else "configuration"
    try:
        text = source.read_text("utf-8") if isinstance(source, Path) else source
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(where, [f"cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    lines: dict[tuple[str | int, ...], int] = {}
    try:
        found = list(_walk(yaml.compose(text, yaml.SafeLoader), (), lines))
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(where, [f"{at}no YAML: {getattr(error, 'problem', None) or error}"]) from None
    except (ValueError, LookupError, AttributeError, RecursionError) as error:  # `!!bool maybe`, or within itself
        raise ConfigError(where, [f"no YAML: {error}"]) from None
    if raw is None:
        return Configuration()
    if not isinstance(raw, dict):
        raise ConfigError(where, ["write a mapping, beginning with apiVersion: " + API_VERSION])
    try:
        config = Configuration.model_validate(_without_nulls(raw))
    except ValidationError as error:
        found += [
            (_line(lines, e["loc"]), f"{path_text(e['loc'])}: {_told(e, Configuration)}")
            for e in error.errors(include_url=False)
        ]
        config = None
    found += [(_line(lines, path), problem) for path, problem in _selector_keys(raw)]
    if found or config is None:
        raise ConfigError(where, [f"line {line}: {text}" for line, text in sorted(found)])
    return config


def _walk(
    node: yaml.Node | None, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]
) -> Iterator[tuple[int, str]]:
    """Notes the line of every path, and yields the keys that stand twice (of which YAML would keep the last)."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*path, str(key.value))
            if str(key.value) in seen:
                yield key.start_mark.line + 1, f"{path_text(here)}: stands twice"
            seen.add(str(key.value))
            lines[here] = key.start_mark.line + 1
            yield from _walk(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*path, i)] = item.start_mark.line + 1
            yield from _walk(item, (*path, i), lines)


def _line(lines: Mapping[tuple[str | int, ...], int], path: tuple[str | int, ...]) -> int:
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _without_nulls(raw: Any) -> Any:
    """A key without a value means its default, as in Kubernetes."""
    if isinstance(raw, dict):
        return {str(key): _without_nulls(value) for key, value in raw.items() if value is not None}
    if isinstance(raw, list):
        return [_without_nulls(item) for item in raw]
    return raw


def _keys(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _section_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model of the mapping at a path."""
    for step in path:
        if isinstance(step, int):
            continue
        info = next((i for name, i in model.model_fields.items() if (i.alias or name) == step), None)
        inner = next(iter(_models(info.annotation)), None) if info is not None else None
        if inner is None:
            return None
        model = inner
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def _unknown_key(key: str, known: list[str]) -> str:
    lower = {k.lower(): k for k in known}
    near = [lower[k] for k in difflib.get_close_matches(key.lower(), lower, n=1)]
    return "unknown key: " + (f"did you mean {near[0]}?" if near else f"write one of {', '.join(known)}")


def _told(error: Any, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        section = _section_at(model, error["loc"][:-1])
        return _unknown_key(str(error["loc"][-1]), _keys(section) if section is not None else [])
    return say(error)


def _selector_keys(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A label selector is a type of the API, which drops what it does not know; a file must not."""
    known = _keys(LabelSelector)
    for path in (("namespaceSelector",), ("metrics", "localQueueMetrics", "localQueueSelector")):
        selector: Any = raw
        for step in path:
            selector = selector.get(step) if isinstance(selector, dict) else None
        for key in selector if isinstance(selector, dict) else ():
            if key not in known:
                at = (*path, str(key))
                yield at, f"{path_text(at)}: {_unknown_key(str(key), known)}"
