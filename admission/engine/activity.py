"""Which queues take part, and why the others do not: the condition Active of ClusterQueues, LocalQueues and Cohorts.

A ClusterQueue is active when all that it names is there: its flavors, their topologies, its admission checks, a chain
of cohorts that ends. Nobody stands in the line of one that is not; what is admitted goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from admission.engine.model import AdmissionCheck, ClusterQueue, Flavor, LocalQueue, StopPolicy, Topology
from admission.engine.quota import QuotaNode

Activity = tuple[bool, str, str]
"""(active, reason, message), as the condition has them."""

READY: Activity = (True, "Ready", "Can admit new workloads")


def of_queue(
    queue: ClusterQueue,
    node: QuotaNode | None,
    flavors: Mapping[str, Flavor],
    topologies: Mapping[str, Topology],
    checks: Mapping[str, AdmissionCheck],
) -> Activity:
    """Of a ClusterQueue; `node` is its place in the tree."""
    if queue.terminating:
        why = "Can't admit new workloads; clusterQueue is terminating, and goes when no gang holds quota of it"
        return (False, "Terminating", why)
    if node is not None and node.in_cycle:
        return (False, "CohortCycle", f"Cohort {queue.cohort} is part of a cycle; remove the loop of parents")
    if queue.stop_policy is not StopPolicy.NONE:
        return (False, "Stopped", "Can't admit new workloads: is stopped")
    names = queue.flavor_names
    missing = sorted({name for name in names if name not in flavors})
    if missing:
        return (False, "FlavorNotFound", f"references missing ResourceFlavor(s): {', '.join(missing)}")
    for name in names:
        topology = flavors[name].topology
        if topology and topology not in topologies:
            return (False, "TopologyNotFound", f"flavor {name} names topology {topology}, which does not exist")
    gone = sorted({check.name for check in queue.checks if check.name not in checks})
    if gone:
        return (False, "AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {', '.join(gone)}")
    idle = sorted({check.name for check in queue.checks if not checks[check.name].active})
    if idle:
        whose = ", ".join(sorted({checks[name].controller for name in idle}))
        why = f"references inactive AdmissionCheck(s): {', '.join(idle)}; {whose} has to set their condition Active"
        return (False, "AdmissionCheckInactive", why)
    return READY


def of_local(local: LocalQueue | None, of_its_queue: Activity | None) -> Activity:
    """Of a LocalQueue, by that of its ClusterQueue; each None where it does not exist."""
    if local is None:
        return (False, "Unknown", "The LocalQueue does not exist")
    if local.stop_policy is not StopPolicy.NONE:
        return (False, "Stopped", "LocalQueue is stopped")
    if of_its_queue is None:
        return (False, "ClusterQueueDoesNotExist", f"ClusterQueue {local.cluster_queue} does not exist")
    active, _, why = of_its_queue
    if not active:
        return (False, "ClusterQueueIsInactive", f"ClusterQueue {local.cluster_queue} is not active: {why}")
    return (True, "Ready", "Can submit new workloads to ClusterQueue")


def of_cohort(node: QuotaNode | None) -> Activity:
    if node is not None and node.in_cycle:
        return (False, "CohortCycle", "Its chain of parents runs into a cycle; nothing below is admitted")
    return (True, "Ready", "Quota is shared among its members")
