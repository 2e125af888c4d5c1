"""The chart over a matrix of values: linted, rendered, and judged by what every rendering must be."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import cel
import pytest
import yaml

from admission.api import crd, lint
from admission.api.config import load_config
from admission.api.kinds import BY_NAME, validate_object
from admission.controller import policies, roles
from admission.controller.certificates import service_names
from admission.controller.setup import policy_settings, selector_of
from admission.jobs.hold import Identities
from admission.jobs.requests import Limits
from admission.names import KUEUE_GROUP, Names
from charts import generate, reference
from tests.chart import helm
from tests.chart.helm import CHART, NAMESPACE, Object, RefusedError, needs_binary, needs_helm, template

ROOT = Path(__file__).parents[2]
SELECTOR = {"matchLabels": {"muster": "governed"}}
GOVERNED = {"config": {"namespaceSelector": SELECTOR, "manageJobsWithoutQueueName": True, "defaultQueueName": "main"}}
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))

MATRIX: dict[str, Object] = {
    "defaults": {},
    "policy": {"hold": "policy"},
    "webhook": {"hold": "webhook", "config": {"webhook": {"port": 10250}}},
    "cert-manager": {"hold": "webhook", "webhook": {"certificate": "cert-manager"}},
    "cert-manager-ca": {
        "hold": "webhook",
        "webhook": {
            "certificate": "cert-manager",
            "issuerRef": {"name": "ca", "kind": "ClusterIssuer", "group": "cert-manager.io"},
        },
        "config": {"webhook": {"port": 10250}},
    },
    "kueue": {"apiGroup": KUEUE_GROUP, "hold": "policy"},
    "kueue-webhook": {"apiGroup": KUEUE_GROUP, "hold": "webhook"},
    "kueue-without-defaulting": {"apiGroup": KUEUE_GROUP, "hold": "policy", "config": {"localQueueDefaulting": False}},
    "defaulting": {"hold": "policy", "config": {"localQueueDefaulting": True, "namespaceSelector": SELECTOR}},
    "governed": {"hold": "policy", **GOVERNED, "refuseBarePods": ["nvidia.com/gpu"]},
    "governed-webhook": {"hold": "webhook", **GOVERNED},
    "all-governed": {
        "hold": "policy",
        "config": {"namespaceSelector": {}, "manageJobsWithoutQueueName": True},
        "refuseBarePods": ["nvidia.com/gpu"],
    },
    "governed-by-default": {
        "hold": "policy",
        "config": {"manageJobsWithoutQueueName": True},
        "refuseBarePods": ["nvidia.com/gpu"],
    },
    "bare-pods": {
        "hold": "policy",
        "config": {"namespaceSelector": SELECTOR},
        "refuseBarePods": ["nvidia.com/gpu", "amd.com/gpu"],
    },
    "kueue-bare-pods": {"apiGroup": KUEUE_GROUP, "hold": "policy", "refuseBarePods": ["nvidia.com/gpu"]},
    "priorities": {"hold": "policy", "restrictPriorities": ["urgent", "soon"]},
    "kinds-elsewhere": {"crds": {"install": False}},
    "one-replica": {"replicas": 1, "affinity": {"nodeAffinity": {}}, "priorityClassName": ""},
    "no-ports": {
        "config": {"metrics": {"bindAddress": "0"}, "health": {"bindAddress": "0"}, "web": {"bindAddress": "0"}}
    },
    "visibility": {"visibility": {"enabled": True}},
    "kueue-visibility": {"apiGroup": KUEUE_GROUP, "visibility": {"enabled": True}},
    "page-behind-a-proxy": {"config": {"web": {"bindAddress": "127.0.0.1:8888", "tls": "none"}}},
    "one-port": {"config": {"metrics": {"bindAddress": ":9000"}, "health": {"bindAddress": ":9000"}}},
    "one-closed-port": {
        "config": {"metrics": {"bindAddress": ":9000"}, "health": {"bindAddress": ":9000"}},
        "networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
    },
    "closed": {
        "networkPolicy": {
            "apiServerPorts": [6443],
            "metricsFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}],
            "webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
            "webFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}, {"podSelector": {"matchLabels": {"a": "proxy"}}}],
        }
    },
    "open": {
        "networkPolicy": {"enabled": False},
        "rbac": {"aggregate": False, "showLeader": False, "queueAdmins": ["platform", "oidc:ops"]},
    },
    "prometheus": {
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "p"}, "interval": "15s"},
            "rules": {"enabled": True, "labels": {"release": "p"}},
            "dashboards": {"labels": {"grafana_dashboard": "yes"}, "annotations": {"grafana_folder": "Batch"}},
        }
    },
    "image": {
        "image": {"repository": "registry.example.com/muster", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
    },
    "pods": {
        "podLabels": {"team": "platform", "app.kubernetes.io/version": "ours"},
        "podAnnotations": {"note": "yes", "kubectl.kubernetes.io/default-container": "sidecar"},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "x", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}},
        ],
        "extraArgs": ["--log-level=debug"],
        "extraEnv": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": "api.example.com"},
            {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "serviceAccount": {"annotations": {"a": "b"}},
        "global": {"anything": 1},
    },
    "config": {
        "config": {
            "preset": "kueue",
            "waitForPodsReady": {"timeout": "10m", "requeuingStrategy": {"backoffBaseSeconds": 5}},
            "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
            "resources": {"excludeResourcePrefixes": ["example.com/"], "quotaCheckStrategy": "IgnoreUndeclared"},
            "leaderElection": {"leaseDuration": "30s", "renewDeadline": "20s"},
            "namespaceSelector": {"matchLabels": {"a": "b"}},
            "nodeLossGracePeriod": 0,
            "clientConnection": {"kubeAPIQPS": 50.5},
        }
    },
    "few": {
        "image": {"tag": "1.2.3"},
        "resources": {"requests": {"cpu": "1"}},
        "gangPriorityClass": {"create": False},
        "metrics": {"dashboards": {"enabled": False}, "rules": {"enabled": True, "longWaitSeconds": 60}},
        "quota": {"enabled": False, "queues": {"unseen": {}}},
    },
    "limits": {"hold": "policy", "config": {"maxTerminationGracePeriodSeconds": 60, "maxJobsPerJobSet": 9}},
    "identities": {
        "identities": {"jobControllers": ["system:serviceaccount:kube-system:jobs"], "jobsetControllers": ["a:b"]}
    },
    **{path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES},
    "shared-queue": {
        "quota": {
            "only": True,
            "queues": {"pool": {"quota": [{"flavor": "h100", "resources": {"nvidia.com/gpu": 8}}]}},
            "teams": {"guests": {"queue": "pool"}},
        }
    },
}
ONLY_QUOTA = {row for row, values in MATRIX.items() if values.get("quota", {}).get("only")}
RENDERED: dict[str, list[Object]] = {}


def rendered(row: str) -> list[Object]:
    if row not in RENDERED:
        RENDERED[row] = template(MATRIX[row])
    return copy.deepcopy(RENDERED[row])


def of(objects: Iterable[Object], kind: str, name: str = "") -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and name in ("", o["metadata"]["name"])]
    return found


def bare(objects: Iterable[Object]) -> dict[tuple[str, str], Object]:
    """By kind and name, without labels and annotations."""
    out = {}
    for one in copy.deepcopy(list(objects)):
        one["metadata"].pop("labels", None)
        one["metadata"].pop("annotations", None)
        out[one["kind"], one["metadata"]["name"]] = one
    return out


# ---------------------------------------------------------------- in step with the code


def test_what_is_generated_is_in_step() -> None:
    assert generate.main(["--check"]) == 0


def test_every_value_has_a_default_and_a_word_on_it() -> None:
    """Values of maps by name aside, values.yaml shows all that the schema knows."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    for key, entry in schema["properties"].items():
        if key in (*generate.OF_PARENTS, "config"):
            continue
        assert key in values, key
        if set(entry.get("properties", {})):
            assert set(entry["properties"]) == set(values[key]), key
    assert set(values) <= set(schema["properties"])


def at(values: Object, path: str) -> object:
    """The value at a path as `metrics.rules.enabled`; None where it is not said."""
    found: object = values
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


DEFAULTS: Object = yaml.safe_load((CHART / "values.yaml").read_text())
TRIED: dict[str, list[str]] = {
    path: [row for row, values in MATRIX.items() if at(values, path) not in (None, at(DEFAULTS, path))]
    for path, _ in reference.leaves(generate.values_schema())
}
"""Each value, and the rows of the matrix that change it."""


def test_every_value_is_explained_and_tried() -> None:
    """Each leaf of the schema has words in the reference, and a row of the matrix, or an example, that changes it."""
    for path, rows in TRIED.items():
        assert rows, path
    for line in reference.values().splitlines():
        assert not line.endswith("|  |"), line


@needs_helm
@pytest.mark.parametrize("row", sorted({rows[-1] for rows in TRIED.values() if rows}))
def test_each_value_of_a_row_changes_what_is_rendered(row: str) -> None:
    """Against the same row without it; or it is what makes the row possible at all."""
    for path in (path for path, rows in TRIED.items() if rows[-1:] == [row]):
        values = copy.deepcopy(MATRIX[row])
        *above, last = path.split(".")
        holder = at(values, ".".join(above)) if above else values
        assert isinstance(holder, dict)
        del holder[last]
        try:
            without = template(values)
        except RefusedError:
            continue
        assert rendered(row) != without, path


def test_the_reference_writes_values_as_people_do() -> None:
    page = reference.values()
    assert "`auto`, `true`, `false`" in page
    assert "lets nothing through. `webhook`: a webhook" in page, "items of a list are told apart"


def test_what_people_may_write_on_jobs_and_workloads_is_explained() -> None:
    page, names = reference.labels(), Names()
    for key in (*frozenset().union(*names.said_by_owners.values()), *names.said_of_workloads):
        assert re.search(rf"(?m)^[|] `{re.escape(key)}` [|] (label|annotation) [|] \w", page), key
    for line in page.splitlines():
        assert not line.endswith("|  |"), line


def test_the_guide_tells_all_that_the_controller_may() -> None:
    """Each resource of its roles, by its kind, in the section on rights."""
    page = (ROOT / "docs" / "install.md").read_text()
    said = re.sub(r"[^a-z]", "", page.partition("\n## Rights\n")[2].partition("\n## ")[0].lower())
    named = {
        resource.partition("/")[0]
        for role in roles.roles_by_mode(Names())
        if role["metadata"]["name"] in ("muster-controller", "muster-hold-proof", "muster-front-proxy")
        for rule in role.get("rules", ())
        if rule["apiGroups"] != [Names().group]
        for resource in rule["resources"]
    }
    for resource in sorted(named):
        assert resource.replace("policybindings", "policies").removesuffix("s") in said, resource
    assert "deletepods" in said
    assert "createjobsinthenamespacedefault" in said


def test_the_reference_is_in_step() -> None:
    assert reference.main(["--check"]) == 0


def test_every_key_of_the_configuration_is_explained() -> None:
    for line in reference.configuration().splitlines():
        assert not line.endswith("|  |") or line.startswith(("| `apiVersion`", "| `kind`")), line


def test_the_version_is_that_of_the_program() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in project


@needs_helm
@pytest.mark.parametrize("row", ["policy", "kueue"])
def test_kinds_and_policies_are_the_programs(row: str) -> None:
    names = Names(MATRIX[row].get("apiGroup", "muster.dev"))
    made = bare(rendered(row))
    for text in crd.files(names).values():
        wanted = yaml.safe_load(text)
        got = of(rendered(row), "CustomResourceDefinition", wanted["metadata"]["name"])
        assert got["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert got["spec"] == wanted["spec"]
    for key, wanted in bare([*policies.policies(names), policies.priority_class(names)]).items():
        assert made[key] == wanted, key


@needs_helm
@pytest.mark.parametrize("namespace", [NAMESPACE, "elsewhere"])
@pytest.mark.parametrize(
    "row",
    [
        "policy",
        "governed",
        "all-governed",
        "governed-by-default",
        "kueue",
        "kueue-without-defaulting",
        "defaulting",
        "webhook",
        "governed-webhook",
        "kueue-webhook",
    ],
)
def test_the_policies_are_those_that_the_program_looks_for(row: str, namespace: str) -> None:
    made = bare(objects := template(MATRIX[row], namespace=namespace))
    file = load_config(of(objects, "ConfigMap", "muster-controller")["data"]["config.yaml"])
    wanted = policies.policies if file.hold == "policy" else policies.beside_webhook
    expected = bare(wanted(file.names, policy_settings(file, namespace)))
    there = {key: one for key, one in made.items() if "AdmissionPolicy" in key[0]}
    asked_for = {name for _, name in there} - {name for _, name in expected}
    assert {key: one for key, one in there.items() if key in expected} == expected
    assert asked_for == set(file.required_policies)
    if MATRIX[row].get("refuseBarePods"):
        pods = made["ValidatingAdmissionPolicy", "muster-bare-pods"]["spec"]["matchConstraints"]["namespaceSelector"]
        assert pods == selector_of(file, namespace)


def looks_at(policy: Object, pod: Object) -> bool:
    """Does a policy of pods look at this one?"""
    spec = policy["spec"]
    wanted, labels = spec["matchConstraints"].get("objectSelector", {}).get("matchExpressions", ()), pod["metadata"]
    there = labels.get("labels", {})
    context = cel.Context(variables={"object": pod})
    return all((one["key"] in there) is (one["operator"] == "Exists") for one in wanted) and all(
        cel.compile(one["expression"]).execute(context) is True for one in spec.get("matchConditions", ())
    )


@needs_helm
@pytest.mark.parametrize("row", ["bare-pods", "kueue-bare-pods"])
def test_every_pod_is_of_a_gang_or_bare(row: str) -> None:
    names = Names(MATRIX[row].get("apiGroup", "muster.dev"))
    made = {one["metadata"]["name"]: one for one in rendered(row) if one["kind"] == "ValidatingAdmissionPolicy"}
    keys = (names.managed_label, names.workload_uid_label, "app")
    for labels in (dict.fromkeys(some, "x") for n in range(len(keys) + 1) for some in combinations(keys, n)):
        of_gang = labels.keys() >= set(names.gang_marks)
        pod = {"metadata": {"labels": labels} if labels else {}}
        assert looks_at(made["muster-pods"], pod) is of_gang, labels
        assert looks_at(made["muster-bare-pods"], pod) is not of_gang, labels


def lets_by(policy: Object, pod: Object, old: Object | None = None) -> bool:
    """Does a policy that looks at this pod let it by?"""
    said: Object = {}
    for one in policy["spec"]["variables"]:
        context = cel.Context(variables={"object": pod, "oldObject": old, "variables": said})
        said[one["name"]] = cel.compile(one["expression"]).execute(context)
    context = cel.Context(variables={"object": pod, "oldObject": old, "variables": said})
    return all(cel.compile(one["expression"]).execute(context) is True for one in policy["spec"]["validations"])


@needs_helm
def test_a_bare_pod_that_is_there_is_resized_but_for_what_it_may_not_ask_for() -> None:
    def pod(*asked: Object, whole: Object | None = None, init: Object | None = None) -> Object:
        spec: Object = {"containers": [{"name": f"c{i}", "resources": one} for i, one in enumerate(asked)]}
        spec |= {"resources": whole} if whole else {}
        return {"spec": spec | ({"initContainers": [{"name": "i", "resources": init}]} if init else {})}

    objects = template({"hold": "policy", "refuseBarePods": ["nvidia.com/gpu", "memory"]})
    policy = of(objects, "ValidatingAdmissionPolicy", "muster-bare-pods")
    cpu: Object = {"requests": {"cpu": "1"}}
    large, small = ({"limits": {"nvidia.com/gpu": "1", "memory": size, "cpu": "1"}} for size in ("2Gi", "1Gi"))
    there = pod(large, small, {})
    assert lets_by(policy, pod(cpu))
    for asks in (pod(small), pod(cpu, {"requests": small["limits"]}), pod(cpu, whole=small), pod(cpu, init=small)):
        assert not lets_by(policy, asks)
        assert not lets_by(policy, asks, pod(cpu)), "it did not before"
        assert lets_by(policy, asks, asks)
    more_cpu = {"limits": {**large["limits"], "cpu": "9"}}
    assert lets_by(policy, pod(more_cpu, small, cpu), there)
    for asks in (pod(large, large, {}), pod(large, small, small), pod(large, small, {}, whole=large)):
        assert not lets_by(policy, asks, there)


@needs_helm
def test_identities_reach_the_policies() -> None:
    said = MATRIX["identities"]["identities"]
    settings = policies.Settings(identities=Identities(tuple(said["jobControllers"]), tuple(said["jobsetControllers"])))
    made = bare(template({**MATRIX["identities"], "hold": "policy"}))
    for key, wanted in bare(policies.policies(Names(), settings)).items():
        assert made[key] == wanted, key


@needs_helm
def test_limits_reach_the_policies_and_the_controller() -> None:
    made = bare(objects := rendered("limits"))
    file = load_config(of(objects, "ConfigMap", "muster-controller")["data"]["config.yaml"])
    assert (file.max_termination_grace_period_seconds, file.max_jobs_per_job_set) == (60, 9)
    for key, wanted in bare(policies.policies(Names(), policies.Settings(limits=Limits(60, 9)))).items():
        assert made[key] == wanted, key


def rights(objects: Iterable[Object]) -> set[tuple[str, str, str, str, str]]:
    """(role, group, resource, verb, name) of all rules."""
    return {
        (role["metadata"]["name"], group, resource, verb, name)
        for role in objects
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ("",))
    }


@needs_helm
def test_rights_are_those_of_the_program_or_fewer() -> None:
    whole = rights(roles.roles(Names()))
    by_mode = {mode: rights(rendered(mode)) for mode in ("policy", "webhook")}
    assert by_mode["policy"] | by_mode["webhook"] <= whole
    less = {(resource, verb) for _, _, resource, verb, _ in whole - (by_mode["policy"] | by_mode["webhook"])}
    assert less == {(resource, "create") for resource in roles.MADE_BEFORE}
    only = {resource for _, _, resource, _, _ in by_mode["webhook"] - by_mode["policy"]}
    assert only == roles.BY_WEBHOOK
    assert {resource for _, _, resource, _, _ in by_mode["policy"] - by_mode["webhook"]} == roles.BY_POLICY
    assert bare(rendered("policy"))["ServiceAccount", "muster-controller"]["metadata"]["namespace"] == NAMESPACE


@needs_helm
def test_without_helm_one_gets_the_chart_with_policies_but_for_its_dashboards() -> None:
    """`kubectl apply -k config`, but for labels and what the file says that is the default anyway."""
    files = yaml.safe_load((ROOT / "config" / "kustomization.yaml").read_text())["resources"]
    texts = [(ROOT / "config" / file).read_text() for file in files if file != "../crds"]
    base = bare(one for text in texts for one in yaml.safe_load_all(text))
    chart = bare(one for one in rendered("policy") if one["kind"] != "CustomResourceDefinition")
    assert set(chart) - set(base) == {("ConfigMap", "muster-dashboards")}
    assert set(base) - set(chart) == {("Namespace", NAMESPACE)}
    for key in set(base) & set(chart):
        for side in (base[key], chart[key]):
            if key == ("ConfigMap", "muster-controller"):
                side["data"] = load_config(side["data"]["config.yaml"])
            if key[0] == "Deployment":
                side["spec"]["template"].pop("metadata")
        assert base[key] == chart[key], key


# ---------------------------------------------------------------- every rendering


@needs_helm
@pytest.mark.parametrize("row", sorted(MATRIX))
def test_it_is_lawful(row: str) -> None:
    assert helm.lint(MATRIX[row]) == []
    objects = rendered(row)
    assert "@" not in re.sub(
        r"@sha256:", "", json.dumps([o for o in objects if o["kind"] != "CustomResourceDefinition"])
    )
    seen = set()
    for one in objects:
        meta = one["metadata"]
        key = (one["apiVersion"], one["kind"], meta.get("namespace"), meta["name"])
        assert key not in seen
        seen.add(key)
        assert meta["labels"]["app.kubernetes.io/name"] == "muster"
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        if one["kind"] in BY_NAME:
            names = Names(MATRIX[row].get("apiGroup", "muster.dev"))
            assert validate_object(one, names, strict=True) == []
        if one["kind"] in ("Role", "ClusterRole"):
            assert not any("*" in [*r["apiGroups"], *r["resources"], *r["verbs"]] or "when" in r for r in one["rules"])


@needs_helm
@pytest.mark.parametrize("row", sorted(set(MATRIX) - ONLY_QUOTA))
def test_the_controller_starts_with_what_it_is_given(row: str) -> None:
    objects, values = rendered(row), MATRIX[row]
    file = load_config(of(objects, "ConfigMap", "muster-controller")["data"]["config.yaml"])
    mode = "policy" if values.get("hold") == "policy" else "webhook"
    assert (file.hold, file.api_group) == (mode, values.get("apiGroup", "muster.dev"))
    own = {one["metadata"]["name"] for one in policies.policies(file.names, policies.Settings(governed_namespaces={}))}
    there = {name for kind, name in bare(objects) if kind.startswith("ValidatingAdmissionPolicy")}
    assert set(file.required_policies) == there - own, "what was asked for is what is missed when it goes"
    deployment = of(objects, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    # No number: some clusters (OpenShift) let no pod have one that is not of its namespace.
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"] or ()}
    assert len(set(ports.values())) == len(ports)
    health = file.health.bind_address.rpartition(":")[2]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert (probe in container) == (health != "0")
        if probe in container:
            assert container[probe]["httpGet"]["port"] == int(health)
            assert container[probe]["timeoutSeconds"] >= 5, "with little CPU it answers after a second or two"
            assert int(health) in ports.values()
    assert ("lifecycle" in container) == (mode == "webhook")
    if mode == "webhook":
        assert ports["webhook"] == file.webhook.port
        wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert 0 < wait < spec["terminationGracePeriodSeconds"] / 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for service in (o for o in objects if o["kind"] == "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for one in (o for o in objects if o["kind"] == kind):
            selector = one["spec"].get("selector") or one["spec"]["podSelector"]
            assert selector["matchLabels"].items() <= labels.items()
    open_ports = {
        port["port"]
        for one in objects
        if one["kind"] == "NetworkPolicy"
        for rule in one["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert not open_ports or open_ports == set(ports.values())


@needs_helm
@pytest.mark.parametrize(
    ("row", "there", "absent"),
    [
        ("defaults", {"Service/muster-webhook", "Secret/muster-webhook", "MutatingWebhookConfiguration/muster"}, set()),
        ("policy", {"MutatingAdmissionPolicy/muster-hold"}, {"Service/muster-webhook", "Secret/muster-webhook"}),
        ("policy", {"ResourceQuota/muster-controller"}, set()),
        ("one-replica", set(), {"ResourceQuota/muster-controller"}),
        ("policy", {"ValidatingAdmissionPolicy/muster-priority-class"}, {"ValidatingWebhookConfiguration/muster"}),
        ("webhook", {"ValidatingAdmissionPolicy/muster-priority-class"}, {"MutatingAdmissionPolicy/muster-hold"}),
        ("webhook", {"ValidatingAdmissionPolicy/muster-jobset-templates"}, {"ValidatingAdmissionPolicy/muster-jobs"}),
        ("webhook", set(), {"MutatingAdmissionPolicy/muster-jobset-templates", "MutatingAdmissionPolicy/muster-pins"}),
        ("webhook", set(), {"ValidatingAdmissionPolicy/muster-priority-namespaces"}),
        ("governed-webhook", {"ValidatingAdmissionPolicyBinding/muster-priority-namespaces"}, set()),
        ("governed-webhook", set(), {"ValidatingAdmissionPolicy/muster-jobs-namespaces"}),
        *((mode, {"ValidatingAdmissionPolicyBinding/muster-kinds"}, set()) for mode in ("webhook", "policy", "kueue")),
        ("cert-manager", {"Certificate/muster-webhook", "Issuer/muster-webhook"}, {"Secret/muster-webhook"}),
        ("cert-manager-ca", set(), {"Certificate/muster-webhook-ca", "Issuer/muster-webhook-ca"}),
        ("cert-manager-ca", {"Certificate/muster-webhook"}, {"Issuer/muster-webhook", "Secret/muster-webhook"}),
        ("webhook", {"Secret/muster-webhook"}, {"Certificate/muster-webhook"}),
        ("few", set(), {"PriorityClass/muster-gang", "ConfigMap/muster-dashboards", "ClusterQueue/unseen"}),
        ("priorities", {"ValidatingAdmissionPolicyBinding/muster-priorities"}, set()),
        ("policy", set(), {"ValidatingAdmissionPolicy/muster-priorities"}),
        ("organisation", {"Role/muster-priorities-vision", "RoleBinding/muster-priorities-vision"}, set()),
        ("organisation", set(), {"Role/muster-priorities-speech"}),
        ("kinds-elsewhere", {"PriorityClass/muster-gang"}, {"CustomResourceDefinition/workloads.muster.dev"}),
        (
            "kueue",
            {"CustomResourceDefinition/workloads.kueue.x-k8s.io"},
            {"CustomResourceDefinition/workloads.muster.dev"},
        ),
        (
            "defaults",
            {"ConfigMap/muster-dashboards"},
            {"ServiceMonitor/muster-controller", "PrometheusRule/muster-controller"},
        ),
        ("prometheus", {"ServiceMonitor/muster-controller", "PrometheusRule/muster-controller"}, set()),
        (
            "no-ports",
            set(),
            {"Service/muster-metrics", "ConfigMap/muster-dashboards", "Service/muster-web", "Secret/muster-web"},
        ),
        ("defaults", {"Service/muster-web", "Secret/muster-web"}, {"APIService/v1beta1.visibility.muster.dev"}),
        ("visibility", {"APIService/v1beta1.visibility.muster.dev"}, set()),
        ("kueue-visibility", {"APIService/v1beta2.visibility.kueue.x-k8s.io"}, set()),
        ("page-behind-a-proxy", {"Service/muster-web"}, {"Secret/muster-web"}),
        ("open", {"ClusterRoleBinding/muster-queue-admins"}, {"NetworkPolicy/muster-controller"}),
        ("bare-pods", {"ValidatingAdmissionPolicyBinding/muster-bare-pods"}, set()),
        (
            "policy",
            set(),
            {"MutatingAdmissionPolicy/muster-hold-namespaces", "ValidatingAdmissionPolicy/muster-bare-pods"},
        ),
        ("governed", {"MutatingAdmissionPolicy/muster-hold-namespaces"}, set()),
        ("one-team", {"ClusterQueue/research", "LocalQueue/main"}, {"Deployment/muster-controller"}),
        ("three-teams", {"Namespace/interns-b", "Cohort/research"}, {"Namespace/vision"}),
    ],
)
def test_what_is_there(row: str, there: set[str], absent: set[str]) -> None:
    names = {f"{o['kind']}/{o['metadata']['name']}" for o in rendered(row)}
    assert there <= names
    assert not absent & names


@needs_helm
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"hold": "polices"}, "/hold"),
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "/replicas"),
        ({"config": {"waitForPodReady": {}}}, "waitForPodReady"),
        ({"config": {"waitForPodsReady": {"timeout": "5 minutes"}}}, "timeout"),
        ({"config": {"waitForPodsReady": {"timeout": 5}}}, "timeout"),
        ({"config": {"hold": "policy"}}, "hold"),
        ({"identities": {"jobControllers": ["a' || true || 'b"]}}, "jobControllers"),
        ({"config": {"namespaceSelector": {"matchLabel": {"a": "b"}}}}, "matchLabel"),
        ({"quota": {"teams": {"Vision Team": {}}}}, "Vision Team"),
        ({"quota": {"teams": {"a": {"queue": "b"}}}}, "there is no queue b"),
        ({"quota": {"queues": {"b": {}}, "teams": {"a": {"queue": "b", "weight": 2}}}}, "shares the queue b"),
        ({"quota": {"queues": {"a": {}}, "teams": {"a": {}}}}, "write queue: a to share it"),
        ({"quota": {"teams": {"a": {"quota": [{"flavor": "x", "resources": {"cpu": {"max": 1}}}]}}}}, "resources"),
        ({"quota": {"teams": {"a": {"quota": [{"flavor": "x", "resources": {"cpu": -4}}]}}}}, "resources/cpu"),
        ({"quota": {"teams": {"a": {"quota": [{"flavor": "x", "resources": {"cpu": "4x"}}]}}}}, "resources/cpu"),
        ({"quota": {"teams": {"a": {"quota": [{"flavor": "x", "resources": {"cpu": {"nominal": "-4"}}}]}}}}, "cpu"),
        ({"quota": {"teams": {"a": {"weight": -1}}}}, "weight"),
        ({"quota": {"flavors": {"h100": {"nodeLabel": {"gpu": "h100"}}}}}, "nodeLabel"),
        ({"quota": {"queues": {"a": {"spec": {"preemptions": {}}}}}}, "preemptions"),
        ({"quota": {"cohorts": {"a": {"spec": {"cohort": "b"}}}}}, "cohort"),
        ({"image": {"digest": "sha256:1"}}, "digest"),
        ({"resources": {"limit": {"memory": "1Gi"}}}, "limit"),
        ({"resources": {"limits": {"memory": "1GB"}}}, "/resources/limits/memory"),
        ({"affinity": {"nodeAfinity": {}}}, "nodeAfinity"),
        ({"tolerations": [{"key": "x", "operator": "Exist"}]}, "/tolerations/0/operator"),
        ({"tolerations": [{"keys": "x"}]}, "keys"),
        ({"refuseBarePods": ["nvidia.com/gpu' || true"]}, "/refuseBarePods/0"),
        (
            {"quota": {"teams": {"a": {"namespace": {"labels": {"muster": "governed"}}}}}},
            "quota.teams.a.namespace: it says",
        ),
        # What would be refused half-way, by the API server.
        (
            {"quota": {"teams": {"a": {"namespaces": ["ml"]}, "b": {"namespaces": ["web", "ml"]}}}},
            "quota.teams.b: namespace ml has a LocalQueue main of team a",
        ),
        ({"webhook": {"issuerRef": {"kind": "ClusterIssuer"}}}, "properties 'name' required, if 'kind' exists"),
        ({"podLabels": {"app.kubernetes.io/name": "muster-prod"}}, "app.kubernetes.io/name"),
        ({"podLabels": {"app.kubernetes.io/component": "prod"}}, "app.kubernetes.io/component"),
        ({"podAnnotations": {"checksum/config": "1"}}, "checksum/config"),
        ({"extraEnv": [{"name": "POD_NAMESPACE", "value": "other"}]}, "/extraEnv/0/name"),
        ({"extraEnv": [{"value": "other"}]}, "name"),
        ({"topologySpreadConstraints": [{"topologyKeys": "zone"}]}, "topologyKeys"),
        ({"enabled": False}, "enabled"),
        ({"metrics": {"serviceMonitor": {"interval": "30"}}}, "/metrics/serviceMonitor/interval"),
        ({"metrics": {"rules": {"longWaitSeconds": 604800}}}, "longWaitSeconds"),
        ({"config": {"leaderElection": {"leaderElect": False}}}, "leaderElect"),
        ({"visibility": {"enabled": True}, "config": {"web": {"tls": "none"}}}, "visibility.enabled: the API server"),
        ({"visibility": {"enabled": True}, "config": {"web": {"bindAddress": "0"}}}, "visibility.enabled: the API"),
        # What the program would refuse when its pods start.
        ({"config": {"leaderElection": {"leaseDuration": "8s"}}}, "leaseDuration > renewDeadline > retryPeriod"),
        ({"config": {"leaderElection": {"renewDeadline": "0m15s"}}}, "leaseDuration > renewDeadline > retryPeriod"),
        ({"config": {"leaderElection": {"retryPeriod": "1m"}}}, "leaseDuration > renewDeadline > retryPeriod"),
        ({"config": {"leaderElection": {"leaseDuration": "900ms"}}}, "leaseDuration > renewDeadline > retryPeriod"),
        ({"config": {"waitForPodsReady": {"requeuingStrategy": {"backoffBaseSeconds": 7200}}}}, "backoffMaxSeconds"),
        ({"config": {"waitForPodsReady": {"requeuingStrategy": {"backoffMaxSeconds": 30}}}}, "backoffMaxSeconds"),
        ({"config": {"waitForPodsReady": {"timeout": "0s"}}}, "timeout"),
        ({"config": {"statusInterval": 0}}, "statusInterval"),
        (
            {"config": {"resources": {"transformations": [{"input": "a/b"}, {"input": "c/d"}, {"input": "a/b"}]}}},
            "a/b is transformed twice",
        ),
        ({"config": {"health": {"bindAddress": "127.0.0.1:8081"}}}, "bindAddress"),
        ({"config": {"namespaceSelector": {"matchLabels": {"a b": "c"}}}}, "a b"),
    ],
)
def test_what_is_wrong_is_refused_and_named(values: Object, told: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(told)):
        template(values)


@needs_helm
@pytest.mark.parametrize("missing", ["visibility", "rbac.showLeader", "metrics.dashboards.enabled", "quota.only"])
def test_defaults_of_an_older_chart_are_refused_where_they_lack_something(missing: str, tmp_path: Path) -> None:
    """As --reuse-values has them. What is off without a word would else be noticed late."""
    older = copy.deepcopy(DEFAULTS)
    *above, last = missing.split(".")
    holder = at(older, ".".join(above)) if above else older
    assert isinstance(holder, dict)
    del holder[last]
    shutil.copytree(CHART, tmp_path / "muster")
    (tmp_path / "muster" / "values.yaml").write_text(yaml.safe_dump(older))
    for values in ({}, {"quota": {"flavors": {"any": {}}}}):
        with pytest.raises(RefusedError, match=rf"the value {missing}[.a-z]* is missing: .*--reset-then-reuse-values"):
            template(values, path=tmp_path / "muster")


@needs_helm
@pytest.mark.parametrize(
    "path",
    [
        "identities",
        "identities.jobControllers",
        "identities.jobsetControllers",
        "networkPolicy.apiServerPorts",
        "image",
        "metrics.rules.longWaitSeconds",
    ],
)
def test_what_has_to_be_said_cannot_be_taken_away(path: str) -> None:
    """Of nobody's pods a policy would let none be made, and without ports a NetworkPolicy means all."""
    taken: Object | None = None  # as a key is read below which all is comments
    for key in reversed(path.split(".")):
        taken = {key: taken}
    with pytest.raises(RefusedError, match=rf"the value {path}[.a-zA-Z]* is missing: null takes"):
        template({"hold": "policy", **(taken or {})})


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {"serviceAccount": None},
        {"webhook": {"certificate": "cert-manager", "issuerRef": None}},
        {"metrics": {"dashboards": {"labels": None}}},
        {"config": None},
    ],
)
def test_what_may_be_left_out_may_be_taken_away(values: Object) -> None:
    assert bare(template({**MATRIX["cert-manager"], **values})) == bare(template(MATRIX["cert-manager"]))


@needs_helm
def test_keys_that_are_all_comments_are_no_keys(tmp_path: Path) -> None:
    """`config:` with nothing below it takes the default away."""
    shutil.copytree(CHART, tmp_path / "muster")
    (tmp_path / "muster" / "values.yaml").write_text(yaml.safe_dump({**DEFAULTS, "config": None}))
    for values in ({}, {"hold": "policy"}, MATRIX["three-teams"]):
        assert template(values, path=tmp_path / "muster") == template(values)


@needs_helm
def test_it_may_be_a_part_of_another_chart(tmp_path: Path) -> None:
    """Which switches it on by a value of it, and has values for all of its parts."""
    part = {"name": "muster", "version": "*", "repository": "", "condition": "muster.enabled"}
    whole = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [part]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(whole))
    shutil.copytree(CHART, tmp_path / "charts" / "muster")
    values = {"global": {"registry": "r"}, "muster": {"enabled": True, "replicas": 3}}
    assert of(template(values, path=tmp_path), "Deployment")["spec"]["replicas"] == 3


@needs_helm
def test_values_reach_the_pods() -> None:
    """What is given of the replicas' pods stands there."""

    def container(row: str) -> Object:
        (found,) = pod(row)["spec"]["containers"]
        return dict(found)

    def pod(row: str) -> Object:
        return dict(of(rendered(row), "Deployment")["spec"]["template"])

    assert container("few")["image"].endswith(":1.2.3")
    assert container("few")["resources"]["requests"]["cpu"] == "1"
    assert container("image")["image"] == "registry.example.com/muster@sha256:" + "0" * 64
    assert container("image")["imagePullPolicy"] == "Always"
    assert pod("image")["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    given = MATRIX["pods"]
    assert given["podLabels"].items() <= pod("pods")["metadata"]["labels"].items()
    assert given["podAnnotations"].items() <= pod("pods")["metadata"]["annotations"].items()
    assert pod("pods")["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", **given["nodeSelector"]}
    spread, asked = pod("pods")["spec"]["topologySpreadConstraints"], given["topologySpreadConstraints"]
    ours = of(rendered("pods"), "Deployment")["spec"]["selector"]
    assert spread == [{**asked[0], "labelSelector": ours}, asked[1]]
    assert container("pods")["env"][1:] == given["extraEnv"]
    assert pod("pods")["spec"]["tolerations"] == given["tolerations"]
    assert container("pods")["args"][-1] == "--log-level=debug"
    account = of(rendered("pods"), "ServiceAccount")
    assert account["metadata"]["annotations"] == {"a": "b"}
    assert of(rendered("one-replica"), "Deployment")["spec"]["replicas"] == 1
    assert "priorityClassName" not in pod("one-replica")["spec"]
    assert pod("one-replica")["spec"]["affinity"] == {"nodeAffinity": {}}
    closed = of(rendered("closed"), "NetworkPolicy", "muster-controller")["spec"]
    assert [port["port"] for port in closed["egress"][-1]["ports"]] == [6443]
    assert closed["ingress"][0]["from"] == MATRIX["closed"]["networkPolicy"]["metricsFrom"]
    said = MATRIX["closed"]["networkPolicy"]
    assert [rule.get("from") for rule in closed["ingress"]] == [said["metricsFrom"], None, said["webhookFrom"]]
    (page,) = of(rendered("closed"), "NetworkPolicy", "muster-web")["spec"]["ingress"]
    assert page["from"] == said["webFrom"]
    one = of(rendered("one-closed-port"), "NetworkPolicy", "muster-controller")["spec"]["ingress"]
    assert [rule.get("from") for rule in one if rule["ports"][0]["port"] == 9000] == [closed["ingress"][0]["from"]]
    admins = of(rendered("open"), "ClusterRoleBinding", "muster-queue-admins")
    assert [one["name"] for one in admins["subjects"]] == ["platform", "oidc:ops"]
    viewer = of(rendered("open"), "ClusterRole", "muster-viewer")["metadata"]["labels"]
    assert not [label for label in viewer if "aggregate-to" in label]
    names = [{one["metadata"]["name"] for one in rendered(row)} for row in ("open", "one-replica")]
    assert ["muster-leader-viewer" in found for found in names] == [False, True]
    monitor, rules = (of(rendered("prometheus"), kind) for kind in ("ServiceMonitor", "PrometheusRule"))
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["interval"] == "15s"
    assert [one["action"] for one in endpoint["relabelings"]] == ["drop"], "who ends is no target"
    assert monitor["metadata"]["labels"]["release"] == rules["metadata"]["labels"]["release"] == "p"
    boards = of(rendered("prometheus"), "ConfigMap", "muster-dashboards")["metadata"]
    assert boards["labels"]["grafana_dashboard"] == "yes"
    assert boards["annotations"] == {"grafana_folder": "Batch"}


@needs_helm
@pytest.mark.parametrize(
    ("row", "issuer"),
    [
        ("cert-manager", {"kind": "Issuer", "name": "muster-webhook"}),
        ("cert-manager-ca", {"kind": "ClusterIssuer", "name": "ca", "group": "cert-manager.io"}),
    ],
)
def test_cert_manager_makes_the_certificate_and_the_controller_reads_files(row: str, issuer: Object) -> None:
    objects = rendered(row)
    file = load_config(of(objects, "ConfigMap", "muster-controller")["data"]["config.yaml"])
    assert (file.webhook.certificate, file.webhook.port) == ("files", 10250 if row.endswith("ca") else 9443)
    made = of(objects, "Certificate", "muster-webhook")["spec"]
    assert made["issuerRef"] == issuer
    assert set(made["dnsNames"]) <= set(service_names("muster-webhook", NAMESPACE))
    pod = of(objects, "Deployment")["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == file.webhook.cert_dir]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == made["secretName"]
    assert {right[4] for right in rights(objects) if right[2] == "secrets"} == {"muster-web"}  # that of the page
    for kind in ("Mutating", "Validating"):
        hook = of(objects, f"{kind}WebhookConfiguration")
        assert hook["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/muster-webhook"}


@needs_helm
def test_the_authority_of_the_webhook_outlives_its_certificate() -> None:
    """The API server trusts a new one at once, and replicas have its leaf when their nodes do: meanwhile no job could
    be created, with each renewal."""
    objects = rendered("cert-manager")

    def signed_by(made: Object) -> Object:
        return of(objects, made["issuerRef"]["kind"], made["issuerRef"]["name"])["spec"]

    def hours(made: Object) -> int:
        return int(made["duration"].partition("h")[0])

    leaf = of(objects, "Certificate", "muster-webhook")["spec"]
    assert "selfSigned" not in signed_by(leaf)
    made = [one["spec"] for one in objects if one["kind"] == "Certificate" and one["spec"] != leaf]
    (authority,) = [one for one in made if one["secretName"] == signed_by(leaf)["ca"]["secretName"]]
    assert authority["isCA"]
    assert hours(authority) > 10 * hours(leaf)
    assert "selfSigned" in signed_by(authority)


# ---------------------------------------------------------------- quota


@needs_helm
def test_quota_is_what_the_short_form_says() -> None:
    objects = template(
        {
            "quota": {
                "only": True,
                "flavors": {"h100": {}, "a100": {}, "plain": {}},
                "cohorts": {"all": {"weight": 2.5}},
                "queues": {"pool": {"quota": [{"flavor": "plain", "resources": {"cpu": 1e9}}]}},
                "teams": {
                    "vision": {
                        "namespaces": ["v1", "v2"],
                        "localQueues": ["main", "night"],
                        "cohort": "all",
                        "weight": 3,
                        "quota": [
                            {
                                "flavor": "h100",
                                "resources": {"nvidia.com/gpu": {"nominal": 64, "borrow": 8, "lend": 0}},
                            },
                            {"flavor": "a100", "resources": {"nvidia.com/gpu": 128}},
                            {"flavor": "plain", "resources": {"memory": "1Ti", "cpu": 0.5}},
                        ],
                        "spec": {"queueingStrategy": "StrictFIFO", "fairSharing": {"weight": "4"}},
                    },
                    "guests": {"queue": "pool"},
                },
            }
        }
    )
    vision = of(objects, "ClusterQueue", "vision")["spec"]
    assert vision == {
        "cohortName": "all",
        "fairSharing": {"weight": "4"},
        "queueingStrategy": "StrictFIFO",
        "namespaceSelector": {
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["v1", "v2"]}]
        },
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [
                    {
                        "name": "h100",
                        "resources": [
                            {"name": "nvidia.com/gpu", "nominalQuota": "64", "borrowingLimit": "8", "lendingLimit": "0"}
                        ],
                    },
                    {"name": "a100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "128"}]},
                ],
            },
            {
                "coveredResources": ["cpu", "memory"],
                "flavors": [
                    {
                        "name": "plain",
                        "resources": [
                            {"name": "cpu", "nominalQuota": "0.5"},
                            {"name": "memory", "nominalQuota": "1Ti"},
                        ],
                    }
                ],
            },
        ],
    }
    pool = of(objects, "ClusterQueue", "pool")["spec"]
    assert pool["namespaceSelector"] == {}
    assert pool["resourceGroups"][0]["flavors"][0]["resources"] == [{"name": "cpu", "nominalQuota": "1000000000"}]
    assert of(objects, "Cohort", "all")["spec"] == {"fairSharing": {"weight": "2.5"}}
    queues = {
        (o["metadata"]["namespace"], o["metadata"]["name"]): o["spec"]["clusterQueue"]
        for o in objects
        if o["kind"] == "LocalQueue"
    }
    assert queues == {(ns, q): "vision" for ns in ("v1", "v2") for q in ("main", "night")} | {
        ("guests", "main"): "pool"
    }


@needs_helm
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_without_fault(example: Path) -> None:
    text = yaml.safe_dump_all(rendered(example.stem))
    documents, findings = lint.read(text, example.name)
    assert findings == []
    assert [f for f in lint.lint(documents) if f.severity is lint.Severity.ERROR] == []


# ---------------------------------------------------------------- what only the binary can be asked


@needs_binary
@pytest.mark.parametrize(("apis", "mode"), [((), "webhook"), ((helm.POLICY_API,), "policy")])
def test_auto_means_policies_where_the_api_server_has_them(apis: tuple[str, ...], mode: str) -> None:
    objects = helm.template_with({}, apis=apis)
    assert load_config(of(objects, "ConfigMap", "muster-controller")["data"]["config.yaml"]).hold == mode
    assert ("MutatingAdmissionPolicy" in {o["kind"] for o in objects}) == (mode == "policy")


@needs_binary
@pytest.mark.parametrize("version", ["1.31.0", "1.33.4", "1.34.0", "1.36.3"])
def test_older_api_servers_get_kinds_without_rules(version: str) -> None:
    kinds = [o for o in helm.template_with({}, kube_version=version) if o["kind"] == "CustomResourceDefinition"]
    assert len(kinds) == 8
    assert ("x-kubernetes-validations" in json.dumps(kinds)) == (version >= "1.34")


@needs_binary
def test_prometheus_kinds_are_written_where_they_are_served() -> None:
    there = helm.template_with(
        {}, apis=["monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PrometheusRule"]
    )
    assert {"ServiceMonitor", "PrometheusRule"} <= {o["kind"] for o in there}
