"""What the controller may do, and people: RBAC of an installation. No wildcard, no pod creation. And that its lease is
served beside what else service accounts ask for.

A cluster is held by policies or by webhooks, and each needs rights that the other does not (`roles_by_mode`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from admission.controller.installation import PROVEN_IN, Settings
from admission.names import JOBSET_GROUP, Names

Object = dict[str, Any]
LEADER_VIEWER = "muster-leader-viewer"
_READ = ["get", "list", "watch"]
_WATCH = ["list", "watch"]
_HOOKS = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]


def roles(names: Names, settings: Settings | None = None) -> list[Object]:
    """ServiceAccount, what the controller may do, roles for people, and the FlowSchema of the lease."""
    settings = settings or Settings()
    group, visibility = names.group, names.visibility_group
    kinds = [
        "admissionchecks",
        "clusterqueues",
        "cohorts",
        "localqueues",
        "resourceflavors",
        "topologies",
        "workloadpriorityclasses",
        "workloads",
    ]

    def rule(api_group: str, resources: Sequence[str], verbs: Sequence[str], names_: Sequence[str] = ()) -> Object:
        out: Object = {"apiGroups": [api_group], "resources": list(resources), "verbs": list(verbs)}
        return out | {"resourceNames": list(names_)} if names_ else out

    def role(kind: str, name: str, rules: list[Object], namespace: str = "", **labels: str) -> Object:
        meta: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
        meta["labels"] = {**settings.labels, **labels}
        return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta, "rules": rules}

    def binding(kind: str, name: str, role: str, namespace: str = "") -> Object:
        meta: Object = {"name": name, "labels": dict(settings.labels)}
        if namespace:
            meta["namespace"] = namespace
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": meta,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role" if kind == "RoleBinding" else "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "ServiceAccount", "name": settings.service_account, "namespace": settings.namespace}],
        }

    controller = role(
        "ClusterRole",
        "muster-controller",
        [
            rule(group, [kind for kind in kinds if kind != "workloads"], _WATCH),
            # Their finalizers.
            rule(group, ["admissionchecks", "clusterqueues", "resourceflavors", "topologies"], ["patch"]),
            rule(group, ["workloads"], [*_READ, "create", "patch", "delete", "admit"]),
            rule(
                group,
                [f"{kind}/status" for kind in ("clusterqueues", "cohorts", "localqueues", "workloads")],
                ["patch"],
            ),
            rule("batch", ["jobs"], [*_READ, "patch"]),
            rule("batch", ["jobs/status"], ["patch"]),
            rule(JOBSET_GROUP, ["jobsets"], [*_READ, "patch"]),
            # So that its Workloads may block the deletion of their owners.
            rule("batch", ["jobs/finalizers"], ["update"]),
            rule(JOBSET_GROUP, ["jobsets/finalizers"], ["update"]),
            # To delete is for pods that nobody else stops: of a gang that must go while its job is being deleted, or
            # that were taken from it. A budget of their owner's does not keep them.
            rule("", ["pods"], [*_READ, "patch", "delete"]),
            rule("", ["pods/eviction"], ["create"]),
            rule("", ["nodes", "namespaces", "limitranges", "resourcequotas"], _WATCH),
            # Whether those that pods name are there: else no pod is made. What they hold are names.
            rule("", ["serviceaccounts"], _WATCH),
            # Where volumes are, and so the pods that name them.
            rule("", ["persistentvolumeclaims", "persistentvolumes"], _WATCH),
            rule("storage.k8s.io", ["storageclasses"], _WATCH),
            # Which devices nodes have, where drivers list them, and what pods ask for by claims.
            rule(
                "resource.k8s.io",
                ["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"],
                _WATCH,
            ),
            rule("node.k8s.io", ["runtimeclasses"], _WATCH),
            rule("scheduling.k8s.io", ["priorityclasses"], _WATCH),
            # Whether another Muster leads, in whatever namespace it is; and whether Kueue does, over the same objects.
            rule("coordination.k8s.io", ["leases"], ["list"], [names.lease_name]),
            *([rule("coordination.k8s.io", ["leases"], ["get"], [names.rival_lease])] if names.rival_lease else []),
            # To list those of one namespace, when pods of a gang that was started there are not made: who refuses them.
            rule("", ["events"], ["create", "patch", "list"]),
            # Whoever asks the webhook, the page or the visibility API: who it is, and what it may.
            rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
            rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
            rule("apiregistration.k8s.io", ["apiservices"], ["get", "update"], [f"{names.version}.{visibility}"]),
            rule(
                "admissionregistration.k8s.io",
                ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
                ["get", "list"],
            ),
            rule(
                "admissionregistration.k8s.io",
                ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
                ["list"],
            ),
            # Where it holds by webhook: its own two configurations. To create cannot be limited by name.
            rule("admissionregistration.k8s.io", _HOOKS, ["create"]),
            rule("admissionregistration.k8s.io", _HOOKS, ["get", "update"], ["muster"]),
        ],
    )
    own = role(
        "Role",
        "muster-controller",
        [
            rule("coordination.k8s.io", ["leases"], ["create"]),
            rule("coordination.k8s.io", ["leases"], ["get", "update"], [names.lease_name]),
            rule("", ["secrets"], ["create"]),
            rule("", ["secrets"], ["get", "update"], ["muster-webhook"]),
            rule("", ["secrets"], ["get", "update"], ["muster-web"]),
        ],
        settings.namespace,
    )
    # Whether a controller leads, and since when: for everybody who has a job in a queue. It names a pod, and no more.
    of_lease = [rule("coordination.k8s.io", ["leases"], ["get"], [names.lease_name])]
    leader = role("Role", LEADER_VIEWER, of_lease, settings.namespace)
    everybody = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}
    # The proof of hold offers a Job there, as a dry run.
    proof = role("Role", "muster-hold-proof", [rule("batch", ["jobs"], ["create"])], PROVEN_IN)
    # Which front proxy speaks for the callers of the visibility API.
    of_proxy = [rule("", ["configmaps"], ["get"], ["extension-apiserver-authentication"])]
    front_proxy = role("Role", "muster-front-proxy", of_proxy, "kube-system")
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    viewer = role(
        "ClusterRole",
        "muster-viewer",
        [
            rule(group, ["localqueues", "workloads"], _READ),
            rule(visibility, ["localqueues/pendingworkloads"], ["get"]),
        ],
        **{f"{aggregate}{role}": "true" for role in ("view", "edit", "admin")},
    )
    admin = role(
        "ClusterRole",
        "muster-queue-admin",
        [
            rule(
                group,
                [kind for kind in kinds if kind != "workloads"],
                [*_READ, "create", "update", "patch", "delete"],
            ),
            # To delete one sends its gang back to the queue, or frees what nothing else frees.
            rule(group, ["workloads"], [*_READ, "delete"]),
            rule(visibility, ["clusterqueues/pendingworkloads", "localqueues/pendingworkloads"], ["get"]),
        ],
    )
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": settings.service_account,
            "namespace": settings.namespace,
            "labels": dict(settings.labels),
        },
    }
    # Else renewals wait in the level of all service accounts, behind the controller's own writes and whoever fills it.
    lease_flow = {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "muster-leader-election", "labels": dict(settings.labels)},
        "spec": {
            "priorityLevelConfiguration": {"name": "leader-election"},
            "matchingPrecedence": 200,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {
                    "subjects": [
                        {
                            "kind": "ServiceAccount",
                            "serviceAccount": {"name": settings.service_account, "namespace": settings.namespace},
                        }
                    ],
                    "resourceRules": [
                        {
                            "verbs": ["get", "create", "update"],
                            "apiGroups": ["coordination.k8s.io"],
                            "resources": ["leases"],
                            "namespaces": [settings.namespace],
                        }
                    ],
                }
            ],
        },
    }
    return [
        account,
        controller,
        binding("ClusterRoleBinding", "muster-controller", "muster-controller"),
        own,
        binding("RoleBinding", "muster-controller", "muster-controller", settings.namespace),
        leader,
        binding("RoleBinding", LEADER_VIEWER, LEADER_VIEWER, settings.namespace) | {"subjects": [everybody]},
        proof,
        binding("RoleBinding", "muster-hold-proof", "muster-hold-proof", PROVEN_IN),
        front_proxy,
        binding("RoleBinding", "muster-front-proxy", "muster-front-proxy", "kube-system"),
        viewer,
        admin,
        lease_flow,
    ]


BY_WEBHOOK = {"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "secrets"}
BY_POLICY = {"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}

MADE_BEFORE = {"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "secrets"}
"""The chart and `config/` make these, empty, and the controller fills them: nobody needs the right to create them,
which no name can limit; and they go with the installation, so that no webhook is left behind that nobody answers."""


def roles_by_mode(names: Names, settings: Settings | None = None) -> list[Object]:
    """`roles` as they are installed: without the rights to create what is made before, and a rule that only one mode of
    holding needs with that mode, by the key `when`."""
    made = roles(names, settings)
    for role in made:
        if role["metadata"]["name"] in ("muster-controller", "muster-hold-proof") and "rules" in role:
            role["rules"] = [marked for rule in role["rules"] if (marked := _by_mode(rule)) is not None]
    return made


def _by_mode(rule: Object) -> Object | None:
    resources = set(rule["resources"])
    if rule["verbs"] == ["create"] and resources <= MADE_BEFORE:
        return None
    if rule.get("resourceNames") == ["muster-webhook"] and resources == {"secrets"}:
        return {"when": "own-certificate", **rule}
    if resources <= BY_WEBHOOK and "muster-web" not in rule.get("resourceNames", ()):
        return {"when": "webhook", **rule}
    if resources <= BY_POLICY:
        return {"when": "policy", **rule}
    return rule


def roles_by_policy(names: Names, settings: Settings | None = None) -> list[Object]:
    """What is needed where policies hold."""
    made = roles_by_mode(names, settings)
    for role in made:
        if "rules" in role:
            role["rules"] = [
                {key: value for key, value in rule.items() if key != "when"}
                for rule in role["rules"]
                if rule.get("when") in (None, "policy")
            ]
    return made
