from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from admission.controller import policies
from admission.controller.installation import Settings
from admission.controller.roles import roles
from admission.names import KUEUE_GROUP, Names

ROOT = Path(__file__).parents[2]
NAMES = Names()
WHERE = {"matchLabels": {"muster": "governed"}}
DEFAULTED = {"matchLabels": {"muster": "defaulted"}}
SETTINGS = Settings(governed_namespaces=WHERE, defaulted_namespaces=DEFAULTED)


@pytest.mark.parametrize("part", sorted(policies.PARTS))
def test_the_installed_files_are_in_step(part: str) -> None:
    file = ROOT / "config" / f"{part}.yaml"
    again = f"python -m admission.controller.policies {part} > config/{part}.yaml"
    assert file.read_text() == policies.main([part]), again


def test_everything_is_listed_for_installation() -> None:
    for folder in ("config", "crds"):
        listed = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())["resources"]
        files = {file.name for file in (ROOT / folder).glob("*.yaml")} - {"kustomization.yaml"}
        assert files == {name for name in listed if not name.startswith("..")}


def all_rules() -> list[Any]:
    made = [*roles(NAMES, SETTINGS)]
    return [rule for role in made if role["kind"] in ("Role", "ClusterRole") for rule in role["rules"]]


def test_no_right_is_wider_than_it_must_be() -> None:
    for rule in all_rules():
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["create"] or rule["resourceNames"] in (["muster-webhook"], ["muster-web"])
        if "pods" in rule["resources"]:
            assert not {"create", "deletecollection"} & set(rule["verbs"])
    (viewer,) = [r for r in roles(NAMES, SETTINGS) if r["metadata"]["name"] == "muster-viewer"]
    assert {verb for rule in viewer["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_all_that_the_controller_may_do_with_its_lease_is_served_as_leader_election() -> None:
    made = {(one["kind"], one["metadata"]["name"]): one for one in roles(NAMES, SETTINGS)}
    flow = made["FlowSchema", "muster-leader-election"]["spec"]
    (rule,) = flow["rules"]
    asked = [one for one in made["Role", "muster-controller"]["rules"] if "leases" in one["resources"]]
    for resources in rule["resourceRules"]:
        assert {verb for one in asked for verb in one["verbs"]} == set(resources["verbs"])
        assert resources["apiGroups"] == asked[0]["apiGroups"]
        assert resources["namespaces"] == [made["Role", "muster-controller"]["metadata"]["namespace"]]
    (bound,) = made["RoleBinding", "muster-controller"]["subjects"]
    assert [one["serviceAccount"] for one in rule["subjects"]] == [
        {"name": bound["name"], "namespace": bound["namespace"]}
    ]
    assert flow["matchingPrecedence"] < 9000, "before the schema of all service accounts"


def test_every_policy_is_bound_fails_closed_and_what_holds_takes_no_parameters() -> None:
    made = policies.policies(NAMES, SETTINGS)
    bound = {o["spec"]["policyName"] for o in made if o["kind"].endswith("Binding")}
    for policy in made:
        if policy["kind"].endswith("Binding"):
            continue
        spec = policy["spec"]
        assert policy["metadata"]["name"] in bound
        defaults = policy["metadata"]["name"] == "muster-default-queue"
        assert ("paramKind" in spec) is defaults
        open_ = defaults or policy["metadata"]["name"] in (
            "muster-priority-class",
            "muster-priority-namespaces",
            "muster-pod-deletes",
            "muster-pod-evictions",
        )
        assert spec["failurePolicy"] == ("Ignore" if open_ else "Fail")
    names = [(o["kind"], o["metadata"]["name"]) for o in made]
    assert len(set(names)) == len(names)


def test_what_is_meant_for_some_namespaces_leaves_the_others_alone() -> None:
    for policy in policies.policies(NAMES, SETTINGS):
        name = policy["metadata"]["name"]
        if not policy["kind"].endswith("Binding"):
            where = DEFAULTED if name == "muster-default-queue" else WHERE if name.endswith("-namespaces") else {}
            assert policy["spec"]["matchConstraints"]["namespaceSelector"] == where, name
            asks = {one["name"] for one in policy["spec"].get("matchConditions", ())}
            assert not (where == WHERE and "queued" in asks), "there a job without a label is queued too"


def test_no_expression_asks_the_authorizer_too_often() -> None:
    """A question costs 350,000 of the 1,000,000 that an expression may, and a variable counts where it is used."""
    for policy in policies.policies(NAMES, SETTINGS):
        spec = policy["spec"]
        expressions = [
            v["expression"] for key in ("variables", "validations", "matchConditions") for v in spec.get(key, ())
        ]
        assert all(expression.count("authorizer.") <= 2 for expression in expressions)


def test_in_kueue_mode_pods_of_others_that_kueue_marked_are_not_asked_about() -> None:
    """They have the first label, and not the second."""
    for group, marks in ((NAMES.group, 1), (KUEUE_GROUP, 2)):
        names = Names(group)
        selector = {"matchExpressions": [{"key": mark, "operator": "Exists"} for mark in names.gang_marks]}
        asks = {
            one["metadata"]["name"]: one["spec"]["matchConstraints"]["objectSelector"]
            for one in policies.policies(names, SETTINGS)
            if not one["kind"].endswith("Binding") and one["spec"]["matchConstraints"]["objectSelector"]
        }
        of_gangs = ("muster-pins", "muster-pods", "muster-pod-updates", "muster-pod-deletes")
        assert asks == dict.fromkeys(of_gangs, selector)
        assert len(names.gang_marks) == marks


def test_the_other_group_has_its_own_names() -> None:
    text = yaml.safe_dump_all(policies.policies(Names(KUEUE_GROUP), SETTINGS))
    assert "muster.dev" not in text
    assert "kueue.x-k8s.io/queue-name" in text
