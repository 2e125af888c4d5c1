"""The configuration file: defaults, what is refused and in which words."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.api.config import ConfigError, Configuration, load_config, parse_duration


def test_an_empty_file_is_the_default() -> None:
    config = load_config("")
    assert config == Configuration()
    assert (config.api_group, config.preset, config.hold) == ("muster.dev", "muster", "auto")
    assert config.names.queue_label == "muster.dev/queue-name"
    assert config.wait_for_pods_ready.recovery_seconds == config.wait_for_pods_ready.timeout
    assert config.client_connection.kube_api_qps is None


def test_the_group_picks_the_preset_and_no_more() -> None:
    assert load_config("apiGroup: kueue.x-k8s.io").preset == "kueue"
    assert load_config("apiGroup: kueue.x-k8s.io\npreset: muster").preset == "muster"
    assert load_config("preset: kueue").names.group == "muster.dev"


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("""\
apiVersion: config.muster.dev/v1beta1
kind: Configuration
apiGroup: kueue.x-k8s.io
hold: webhook
namespaceSelector:
  matchLabels: {queues: "on"}
manageJobsWithoutQueueName: true
waitForPodsReady:
  timeout: 1h30m
  recoveryTimeout: 90s
  requeuingStrategy: {timestamp: Creation, backoffLimitCount: 3, backoffBaseSeconds: 1, backoffMaxSeconds: 5}
fairSharing:
  preemptionStrategies: [LessThanInitialShare]
admissionFairSharing:
  usageHalfLifeTime: 168h
  resourceWeights: {cpu: 0, nvidia.com/gpu: 1.5}
resources:
  excludeResourcePrefixes: [networking.example.com/]
  quotaCheckStrategy: IgnoreUndeclared
  transformations:
  - {input: nvidia.com/mig-4g.20gb, strategy: Replace, outputs: {example.com/gpu-memory: 20Gi}}
leaderElection:
clientConnection: {kubeAPIQPS: 50, kubeAPIBurst: 100}
metrics: {bindAddress: "[::1]:9090"}
webhook: {port: 8443, certificate: files, certDir: /certs}
logging: {format: console, level: debug}
statusInterval: 250ms
jobControllerUsers: []
defaultQueueName: batch
""")
    config = load_config(path)
    assert config.preset == "kueue"
    assert config.wait_for_pods_ready.timeout == 5400
    assert config.wait_for_pods_ready.recovery_seconds == 90
    assert config.admission_fair_sharing is not None
    assert config.admission_fair_sharing.resource_weights["nvidia.com/gpu"] == 1.5
    assert config.resources.transformations[0].outputs == {"example.com/gpu-memory": "20Gi"}
    assert config.leader_election.lease_duration == 15
    assert config.status_interval == 0.25
    assert config.namespace_selector.match_labels == {"queues": "on"}


@pytest.mark.parametrize(
    ("text", "group", "preset", "defaulting"),
    [
        ("", "", "muster", False),
        ("localQueueDefaulting: true", "", "muster", True),
        ("apiGroup: kueue.x-k8s.io", "", "kueue", True),
        ("apiGroup: kueue.x-k8s.io\npreset:\nlocalQueueDefaulting:", "", "kueue", True),
        ("apiGroup: kueue.x-k8s.io\npreset: muster\nlocalQueueDefaulting: false", "", "muster", False),
        ("", "kueue.x-k8s.io", "kueue", True),
        ("statusInterval: 250ms", "kueue.x-k8s.io", "kueue", True),
        ("preset: muster\nlocalQueueDefaulting: false", "kueue.x-k8s.io", "muster", False),
    ],
)
def test_what_follows_from_the_group(text: str, group: str, preset: str, defaulting: bool) -> None:
    """Whether the file says it, or the command (`group`)."""
    config = load_config(text)
    config = config.of_group(group) if group else config
    assert (config.preset, config.local_queue_defaulting) == (preset, defaulting)
    assert config.status_interval == (0.25 if "250ms" in text else 1.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("apiVersion: config.muster.dev/v1", "line 1: apiVersion: Unsupported value 'config.muster.dev/v1': write"),
        ("kind: Config", "write 'Configuration'"),
        ("apiGroup: example.com", "write 'muster.dev' or 'kueue.x-k8s.io'"),
        ("hold: policies", "write 'auto', 'policy' or 'webhook'"),
        ("hodl: auto", "line 1: hodl: unknown key: did you mean hold?"),
        ("zzz: 1", "unknown key: write one of apiVersion, kind"),
        ("waitForPodsReady:\n  timout: 5m", "line 2: waitForPodsReady.timout: unknown key: did you mean timeout?"),
        ("clientConnection: {kubeApiQps: 1}", "did you mean kubeAPIQPS?"),
        (
            "resources:\n  transformations:\n  - input: x\n    output: {}",
            "line 4: resources.transformations[0].output: unknown key: did you mean outputs?",
        ),
        ("namespaceSelector: {matchLabel: {}}", "did you mean matchLabels?"),
        ("namespaceSelector: {matchLabels: {a: 1}}", "write text"),
        ("metrics: {localQueueMetrics: {localQueueSelector: {matchLabel: {}}}}", "did you mean matchLabels?"),
        ("metrics: {localQueueMetrics: {enabled: false}}", "did you mean enable?"),
        ("statusInterval: 5", "write 5s if seconds are meant"),
        ("statusInterval: 5 minutes", "write for example 30s, 5m or 1h30m"),
        ("statusInterval: 0s", "statusInterval: '0s': write more than 0"),
        ("statusInterval: -5s", "is no duration"),
        ("statusInterval: ''", "is no duration"),
        ("statusInterval: true", "no unit"),
        ("manageJobsWithoutQueueName: 'yes'", "write true or false"),
        ("waitForPodsReady: {requeuingStrategy: {backoffBaseSeconds: 9, backoffMaxSeconds: 5}}", "swap them"),
        ("waitForPodsReady: {requeuingStrategy: {backoffLimitCount: -1}}", "write 0 or more"),
        # Beyond what a time can say.
        ("waitForPodsReady: {requeuingStrategy: {backoffMaxSeconds: 1000000000000}}", "write 2147483647 or less"),
        ("waitForPodsReady: {timeout: 9999999h}", "at most 292 years"),
        (f"waitForPodsReady: {{timeout: {'9' * 400}h}}", "at most 292 years"),
        ("clientConnection: {kubeAPIQPS: .inf}", "kubeAPIQPS: inf is no number"),
        ("admissionFairSharing: {resourceWeights: {cpu: .inf}}", "resourceWeights.cpu: inf is no number"),
        (
            "fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}",
            "preemptionStrategies: write [",
        ),
        ("fairSharing: {preemptionStrategies: []}", "preemptionStrategies: write ["),
        ("fairSharing: {minRuntime: 5}", "write 5s if seconds are meant"),
        ("fairSharing: {maxEvictionsPerHour: 0}", "fairSharing.maxEvictionsPerHour: 0 is too small"),
        ("preset: kueue\nfairSharing: {minRuntime: 5m}", "fairSharing.minRuntime: the preset kueue spares nobody"),
        ("preset: kueue\nfairSharing: {minRuntime: 0s}", "fairSharing.minRuntime: the preset kueue spares nobody"),
        ("apiGroup: kueue.x-k8s.io\nfairSharing: {maxEvictionsPerHour: 1}", "leave it out, or write preset: muster"),
        (
            "admissionFairSharing: {resourceWeights: {cpu: -1}}",
            "admissionFairSharing.resourceWeights.cpu: -1 is too small",
        ),
        # It begins every name, so that nothing would be counted at all.
        ("resources: {excludeResourcePrefixes: ['']}", "resources.excludeResourcePrefixes[0]: empty"),
        ("resources: {excludeDeviceClasses: ['']}", "resources.excludeDeviceClasses[0]: empty"),
        ("resources: {transformations: [{input: a}, {input: a}]}", "a is transformed twice"),
        ("resources: {transformations: [{input: a, outputs: {b: -1}}]}", "write an amount from 0"),
        ("leaderElection: {leaseDuration: 5s}", "leaseDuration > renewDeadline > retryPeriod"),
        # Nobody has rights to it, and `muster release-all` would release what its holder leads.
        ("leaderElection: {resourceName: other}", "resourceName: Unsupported value 'other': write 'muster-contr"),
        ("leaderElection: {leaseDuration: 10s}", "leaseDuration > renewDeadline > retryPeriod"),
        ("leaderElection: {retryPeriod: 10s}", "leaseDuration > renewDeadline > retryPeriod"),
        ("clientConnection: {kubeAPIQPS: 0}", "kubeAPIQPS"),
        ("metrics: {bindAddress: 8080}", "write host:port or :port"),
        ("metrics: {bindAddress: ':65536'}", "write host:port or :port"),
        ("webhook: {port: 70000}", "webhook.port: 70000 is too large: write 65535 or less"),
        ("webhook: {certificate: files}", "needs certDir"),
        ("logging: {level: verbose}", "Unsupported value 'verbose'"),
        ("logging: json", "write a mapping"),
        ("jobControllerUsers: [1]", "jobControllerUsers[0]"),
        ("defaultQueueName: High", "is no object name"),
        ("priorityClassName: high", "unknown key"),
        ("hold: auto\nhold: policy", "line 2: hold: stands twice"),
        ("- a", "write a mapping"),
        ("a: [", "no YAML"),
        ("a: b: c", "line 1: no YAML"),
        ("!!python/object:os.system {}", "no YAML"),
        ("hold: !!bool maybe", "no YAML"),
        ("hold: !!int ''", "no YAML"),
        ("hold: !!timestamp soon", "no YAML"),
        ("logging: &it {format: *it}", "no YAML"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text)
    assert says in str(caught.value)
    assert len(caught.value.problems) == 1


def test_what_is_just_allowed() -> None:
    config = load_config("""\
waitForPodsReady:
  recoveryTimeout: 0
  requeuingStrategy: {backoffBaseSeconds: 5, backoffMaxSeconds: 5}
clientConnection: {kubeAPIQPS: 0.2}
metrics: {bindAddress: ":65535"}
""")
    assert config.wait_for_pods_ready.recovery_seconds == 0, "at once, and not as the start"
    assert config.wait_for_pods_ready.requeuing_strategy.backoff_max_seconds == 5
    assert config.client_connection.burst == 1, "with none nothing would ever be asked"
    assert config.metrics.bind_address == ":65535"


def test_all_problems_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("logging: {level: loud}\nhodl: auto\nmetrics:\n  bindAddress: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["line 1", "line 2", "line 4"]
    assert str(caught.value).startswith(f"{path}: 3 problems\n")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("300ms", 0.3), ("1.5h", 5400), ("1h30m", 5400), ("2m3.5s", 123.5), (".5s", 0.5), ("10us", 1e-5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_is_an_exception(text: str) -> None:
    with contextlib.suppress(ConfigError):
        load_config(text)
