"""What each reason means and what to do about it: one table for the command line, the web page and `docs/reasons.md`.

The table is total over the engine's enums (a test holds it to that). A condition carries the reason as a word and the
detail only in its sentence; `detail_of` reads it back, and a test renders a sentence of every detail and reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from admission.engine.model import Detail, EvictReason, Reason


@dataclass(frozen=True, slots=True)
class Advice:
    means: str
    owner: str
    """What the owner of the job can do; "" when nothing."""
    platform: str = ""
    """What the platform team can do; "" when nothing."""
    says: str = ""
    """Of a detail: a regular expression that its sentence alone matches."""
    under: tuple[Reason, ...] = ()
    """Of a detail: the reasons that it may stand behind."""


_NOTHING = "Nothing: the job goes on by itself."
_NONE_COME = (
    "If an autoscaler is to add nodes, set elastic: true in the flavor: a gang has no pods while it waits, so that "
    "none are added for it."
)

REASONS: Mapping[Reason, Advice] = {
    Reason.QUOTA_RESERVED: Advice(
        "Quota and nodes are reserved for the whole gang. It starts, or waits only for its admission checks.",
        _NOTHING,
    ),
    Reason.NO_MATCHING_FLAVOR: Advice(
        "The pods can run on no flavor of the ClusterQueue.",
        "Compare node selector, affinity and tolerations of the pod template with the flavors of the queue, or send "
        "the job to a queue that has the right one.",
        "Add a flavor to the ClusterQueue that these pods can run on.",
    ),
    Reason.EXCEEDS_MAX_QUOTA: Advice(
        "The gang requests more than its ClusterQueue can ever have, borrowing included. As it is, it never starts.",
        "Request less (fewer pods, or smaller ones), or use a queue with more quota.",
        "Raise nominalQuota or borrowingLimit, or the quota that the cohort can lend.",
    ),
    Reason.WAITING_FOR_QUOTA: Advice(
        "Others now use the quota that the gang could have. The message names every resource that is short. Whether "
        "the nodes have room is checked only when quota allows the gang.",
        "Wait, request less, or raise the priority, if your queue lets a higher priority evict others.",
        "Raise quota or limits, or let the queue preempt.",
    ),
    Reason.PLACEMENT_FAILED: Advice(
        "Quota allows the gang, but the nodes cannot hold all of its pods at once.",
        "Wait, request less for each pod, or loosen what the template requires of nodes and topology.",
        "Add nodes, or repair those that are excluded; `muster nodes` shows what runs where.",
    ),
    Reason.WAITING_FOR_PREEMPTED: Advice(
        "Other gangs were evicted to make room for this one. It starts when their pods are gone; the room is kept for "
        "it.",
        _NOTHING,
        "If this lasts, look for pods that do not terminate (a long grace period, a finalizer, a dead node).",
    ),
    Reason.MISCONFIGURED: Advice(
        "A queue is missing, does not work, or is not for this namespace; or the job itself cannot be queued.",
        "Check the queue-name label of the job against the LocalQueues of the namespace.",
        "Repair the queue; `muster lint --cluster` finds most of these.",
    ),
    Reason.SUSPENDED: Advice(
        "The gang was requeued, and is not tried before a set time, or before an admission check changes its answer.",
        _NOTHING,
    ),
    Reason.PENDING_EVALUATION: Advice("The gang has not been looked at yet, or will be again soon.", _NOTHING),
    Reason.GATED: Advice(
        "The owner of the job, or a program, holds it out of the queue by a gate; or something that its pods need is "
        "missing, as the detail says.",
        "If no detail says otherwise, remove the gate. The annotation admission-gated-by names who set it.",
    ),
    Reason.ON_HOLD: Advice(
        "The LocalQueue or ClusterQueue is stopped and admits nothing.",
        "Wait, or use another queue.",
        "Set stopPolicy of the queue to None.",
    ),
    Reason.DEACTIVATED: Advice(
        "The Workload is not active: the job was paused, ran for its maximum time, failed too often to get ready, was "
        "rejected by a check, or somebody set spec.active to false. If it held quota, the condition Evicted says "
        "which.",
        "Remove the label pause from the job, or create the job again.",
        "Set spec.active of the Workload to true.",
    ),
}

_OFF = Reason.DEACTIVATED
_MIS, _QUOTA, _PLACE = Reason.MISCONFIGURED, Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED
_FLAVOR = Reason.NO_MATCHING_FLAVOR

DETAILS: Mapping[Detail, Advice] = {
    Detail.NONE: Advice("No finer reason.", _NOTHING),
    Detail.QUEUE_MISSING: Advice(
        "The namespace has no LocalQueue with the name that the job's queue-name label gives.",
        "Correct the label; `muster queues` lists the LocalQueues of your namespace.",
        "Create the LocalQueue.",
        r"^LocalQueue .* does not exist",
        (_MIS,),
    ),
    Detail.CLUSTER_QUEUE_MISSING: Advice(
        "The LocalQueue points to a ClusterQueue that does not exist.",
        "Use another LocalQueue.",
        "Create the ClusterQueue, or a LocalQueue that points to an existing one.",
        r"which the LocalQueue points to, does not exist",
        (_MIS,),
    ),
    Detail.CLUSTER_QUEUE_INACTIVE: Advice(
        "The ClusterQueue does not work: a flavor, topology or admission check that it names is missing, a check is "
        "not active, or the queue is being deleted.",
        "Wait, or use another queue.",
        "Create what the message names, or remove it from the ClusterQueue. For a check, see whether its controller "
        "runs. To have a queue that is being deleted back at once, remove its finalizer and create it again.",
        r"^ClusterQueue [^ ]+: (?!.*part of a cycle)",
        (_MIS,),
    ),
    Detail.NAMESPACE_NOT_SELECTED: Advice(
        "The ClusterQueue takes no workloads of this namespace.",
        "Use a queue that is meant for your namespace.",
        "Widen namespaceSelector of the ClusterQueue, or label the namespace. A missing selector selects nothing.",
        r"takes no workloads of this namespace",
        (_MIS,),
    ),
    Detail.NAMESPACE_TERMINATING: Advice(
        "The namespace is being deleted. No pods can be created there, so no job of it gets quota.",
        "Create the job in another namespace.",
        "If the namespace does not go, its status says what is left in it, and whose finalizers keep that.",
        r"^Namespace .* is being deleted",
        (_MIS,),
    ),
    Detail.RESOURCE_NOT_COVERED: Advice(
        "The pods request a resource for which the ClusterQueue has no quota at all.",
        "Remove the resource from requests and limits, or use a queue that covers it.",
        "Add the resource to coveredResources of the ClusterQueue, or leave it out of quota in the configuration file "
        "(resources.excludeResourcePrefixes).",
        r"^Needs .*, for which the ClusterQueue has no quota",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_TAINT: Advice(
        "The flavor has a taint that the pods do not tolerate.",
        "Add a toleration to the pod template, if the job belongs on those nodes.",
        "If every job that gets the flavor may run there, replace the taint in nodeTaints of the ResourceFlavor by a "
        "toleration in tolerations.",
        r"which the pods do not tolerate",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_AFFINITY: Advice(
        "The node selector or affinity of the pods excludes the flavor's nodes.",
        "Change nodeSelector or affinity, or use a queue with the flavor that they select.",
        "Add a flavor with these node labels to the ClusterQueue.",
        r"is not what the pods select",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_MISSING: Advice(
        "The ClusterQueue names a ResourceFlavor that does not exist.",
        "Wait, or use another queue.",
        "Create the ResourceFlavor, or remove it from the ClusterQueue.",
        r"^ResourceFlavor .* does not exist",
        (_FLAVOR,),
    ),
    Detail.NEVER_FITS_QUOTA: Advice(
        "The gang requests more than the queue could have even if no other gang held quota.",
        "Request at most what the ClusterQueue can ever have, as the message says.",
        "Raise the limit of the ClusterQueue or Cohort that the message names.",
        r"can never have more than",
        (Reason.EXCEEDS_MAX_QUOTA,),
    ),
    Detail.QUOTA_SHORT: Advice(
        "The queue's own quota is in use, and there is no queue to borrow from.",
        "Wait until a job of your queue ends, request less, or raise the priority.",
        "Raise nominalQuota, put the queue into a cohort, or set preemption.withinClusterQueue.",
        r"its ClusterQueue has .* left of (?!.*(borrowing limit of|cohort ))",
        (_QUOTA,),
    ),
    Detail.BORROWING_LIMIT: Advice(
        "A borrowing limit keeps the missing quota from the queue, whatever is free in the cohort.",
        "Wait until a job of your queue ends, or request less.",
        "Raise the borrowingLimit that the message names, or nominalQuota.",
        r"the borrowing limit of .* allows only",
        (_QUOTA,),
    ),
    Detail.COHORT_SHORT: Advice(
        "The queue would have to borrow, or has lent its own quota, and other queues of the cohort use all of it.",
        "Wait until a job in the cohort ends. Muster reclaims your nominal quota, unless the message says that the "
        "queue takes nothing back; it does not reclaim what is beyond.",
        "Add quota to the cohort, or to this queue. If reclaimWithinCohort is Never and the queue should reclaim its "
        "own, set it to Any.",
        r"cohort [^ ]+ has .* free",
        (_QUOTA,),
    ),
    Detail.NODES_SHORT: Advice(
        "The nodes of the flavor have room for only some of the pods now. A gang starts whole or not at all.",
        "Wait, or request less: the message says how many pods fit.",
        f"See the excluded nodes in the message (cordoned, not ready, tainted), and `muster nodes`. {_NONE_COME}",
        r"the nodes of flavor .* hold (?!.*(if they were empty|with none of them kept out))|would fit alone, but not "
        r"beside",
        (_PLACE,),
    ),
    Detail.NO_NODES: Advice(
        "No node has the labels of the flavor that has the quota.",
        "Wait, or use another queue.",
        "Label the nodes as nodeLabels of the ResourceFlavor says. If an autoscaler creates them, set elastic: true "
        "in the flavor.",
        r"^No node belongs to flavor",
        (_PLACE,),
    ),
    Detail.NODES_UNUSABLE: Advice(
        "The flavor has enough nodes, but some are cordoned, not ready, tainted or avoided. Without these the gang "
        "does not fit, even if all others are empty.",
        "Wait, or request less. If the message names a taint and the job belongs on those nodes, add a toleration to "
        "the pod template.",
        "Bring back the nodes that the message counts: `kubectl uncordon NODE`, repair what is not ready, remove the "
        "taint. `muster nodes` marks them.",
        r"with none of them kept out, and empty, they could take",
        (_PLACE,),
    ),
    Detail.NODES_TAKEN: Advice(
        "Pods that Muster does not manage hold room on these nodes, and it does not evict them. Even if all gangs "
        "ended, this one would not fit.",
        "Wait until such pods end, or request fewer or smaller pods.",
        "`muster nodes` shows them as others, `kubectl get pods -A --field-selector spec.nodeName=NODE` names them: "
        "delete those that should not be there. refuseBarePods keeps pods that no queue admitted away from devices.",
        r"pods that are no gang's hold room there",
        (_PLACE,),
    ),
    Detail.NEVER_FITS_NODES: Advice(
        "The gang would not fit even if all these nodes were empty. As it is, it never starts.",
        "Request fewer or smaller pods, or loosen the required topology.",
        f"Add nodes, or larger ones. {_NONE_COME}",
        r"would not fit if they were empty",
        (_PLACE,),
    ),
    Detail.CONSTRAINT_REFUSED: Advice(
        "The pod template has a placement requirement that Muster cannot honour, so it cannot promise room.",
        "Change the template as the message says.",
        "",
        "",
        (_PLACE,),
    ),
    Detail.CLAIMED: Advice(
        "The room is kept for a gang that others were evicted for, or that was passed over for too long. This may be "
        "another gang, or this one itself.",
        "Wait: the message says for whom the room is kept, and until when.",
        "If devices are idle for it, run `muster why` with the name in the message: it says what that gang lacks. "
        "While that job is paused (label pause) the room goes to others.",
        r"^(The room it needs|Room) is kept for",
        (_QUOTA, _PLACE),
    ),
    Detail.BEHIND_HEAD: Advice(
        "The queue is StrictFIFO, and its first gang does not fit yet.",
        "See why the first gang waits: `muster why` with its name.",
        "If later gangs may pass the first, set queueingStrategy: BestEffortFIFO.",
        r"the first of a StrictFIFO queue",
        (_QUOTA,),
    ),
    Detail.BACKOFF: Advice(
        "The gang was evicted because it did not get ready in time, or because a check asked to try later. It is "
        "tried again at a set time.",
        "Fix the cause, which `muster why` and the condition Evicted name (an image, volumes, crashing pods, pods "
        "that the API server refuses), else the same happens again. Then `muster requeue JOB` ends the wait.",
        "See whether a policy, a ResourceQuota or the nodes are in the way.",
        r"before it is tried again",
        (Reason.SUSPENDED,),
    ),
    Detail.VICTIMS_LEAVING: Advice(
        "The gangs that were evicted for this one are still terminating. The room that they free is kept for it.",
        _NOTHING,
        "If this lasts, look for pods that do not terminate.",
        r"to leave; the room they free is kept for it",
        (Reason.WAITING_FOR_PREEMPTED,),
    ),
    Detail.NEXT_CYCLE: Advice(
        "The gang is looked at in the next cycle, as a rule within a second.",
        _NOTHING,
        "If this lasts, see whether a controller leads, and look for `write failed` and `reason not written` in its "
        "log: these lines quote what the API server refuses. `helm upgrade` of the chart gives back a right that was "
        "taken from its ClusterRole.",
        r"looked at in the next cycle",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.CHECKS_PENDING: Advice(
        "An admission check asked to try again, or rejected the gang.",
        "See the message of the check in the Workload's status.admissionChecks.",
        "See the controller that answers the check.",
        r"admission check",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.INVALID: Advice(
        "Something in the job or its Workload cannot be read; the message says what.",
        "Correct the job as the message says.",
        "",
        r"^Its placement requirements cannot be read",
        (_MIS, _PLACE),
    ),
    Detail.PREEMPTION_GATED: Advice(
        "The gang could start only by evicting others, and its preemption gate is closed.",
        "Open the gate, or wait for room.",
        "",
        r"which its preemption gate forbids",
        (Reason.GATED,),
    ),
    Detail.COHORT_CYCLE: Advice(
        "The cohorts above the ClusterQueue form a cycle: each is below the other.",
        "Wait, or use another queue.",
        "Remove parentName from the Cohort that should be the root.",
        r"^ClusterQueue [^ ]+: .*part of a cycle",
        (_MIS,),
    ),
    Detail.FLAVOR_TOPOLOGY: Advice(
        "The job requests a topology level that the flavor's Topology does not have, or the flavor is elastic.",
        "Request a level that the Topology has, or none.",
        "Give the flavor a Topology with this level. A job that requires a level needs a flavor that is not elastic.",
        r"^Flavor [^ ]+: ",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_NOT_ALLOWED: Advice(
        "An annotation restricts the Workload to other flavors.",
        "See who set the annotation workload-allowed-resource-flavors.",
        "",
        r"is not among those it may use",
        (_FLAVOR,),
    ),
    Detail.WORKLOAD_DELETED: Advice(
        "The job's Workload was deleted, and somebody's finalizer keeps it. The job was stopped and holds nothing. It "
        "gets a new Workload when the old one is gone.",
        "Wait, or ask the owner of the finalizer that the message names.",
        "See why the controller of that finalizer does not remove it. If that controller no longer exists, remove the "
        "finalizer by hand: `kubectl edit` the Workload.",
        r"^Its Workload was deleted and is kept by",
        (_OFF,),
    ),
    Detail.PAUSED: Advice(
        "The owner paused the job. While it has the label, it is neither queued nor started, whatever else changes.",
        "Remove the label that the message names from the job.",
        "",
        r"^Its owner paused it",
        (_OFF,),
    ),
    Detail.VARIANT_ADMITTED: Advice(
        "The job has several variants in the queue, and one with a better flavor is already admitted.",
        _NOTHING,
        "",
        r"^Another variant of this job is admitted",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.VOLUME_PENDING: Advice(
        "A PersistentVolumeClaim that the pods name does not exist or is not bound; or its access mode is "
        "ReadWriteOncePod, and another pod or gang uses it. The job holds nothing meanwhile, and is queued by itself "
        "when the claim can be used.",
        "Create the claim that the message names, or see with `kubectl describe pvc` why it is not bound. If it is in "
        "use, wait until the pod or job that the message names has ended, or use a claim with the access mode "
        "ReadWriteOnce.",
        "Check the volumes or the StorageClass that the message names.",
        r"^PersistentVolumeClaim [^ ]+ ",
        (Reason.GATED,),
    ),
    Detail.CLAIMS_UNCLEAR: Advice(
        "A ResourceClaimTemplate or DeviceClass by which the pods request devices does not exist or cannot be "
        "counted. The job holds nothing meanwhile, and goes on by itself once it can be counted.",
        "Create the template that the message names, or create the job again with one that requests whole devices of "
        "one class.",
        "Create the DeviceClass that the message names, or leave its claims out of quota in the configuration file "
        "(resources.excludeDeviceClasses).",
        r"its pods ask for (by claims )?cannot be counted",
        (Reason.GATED,),
    ),
    Detail.PODS_LINGER: Advice(
        "Pods of the last start are still ending on a node that does not answer, and the Job creates no others "
        "meanwhile: it has a podFailurePolicy or podReplacementPolicy: Failed, or it has ended and its JobSet cannot "
        "create it again. The job holds nothing, and is queued by itself when these pods are gone.",
        "Wait, or create the job again under another name.",
        "Bring back the node that the message names. If it is off for good, delete it, or taint it "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute: its pods are then deleted.",
        r"its Job makes no others before",
        (Reason.GATED,),
    ),
    Detail.NOT_MANAGED: Advice(
        "Kueue created this Workload for an object that is neither a Job nor a JobSet. Muster cannot start that "
        "object or see it end, so the Workload would hold its quota for ever.",
        "Run it as a Job or a JobSet, or delete it.",
        "Kueue's controller started it: docs/migrate.md, What Kueue alone starts.",
        r"^It stands for [^,]+, which Kueue's own controller starts",
        (Reason.MISCONFIGURED,),
    ),
}

EVICTIONS: Mapping[EvictReason, str] = {
    EvictReason.IN_CLUSTER_QUEUE: "A gang of the same ClusterQueue comes before this one (withinClusterQueue).",
    EvictReason.IN_COHORT_RECLAMATION: "The gang ran on borrowed quota, and the queue that owns the quota reclaimed "
    "it (reclaimWithinCohort).",
    EvictReason.IN_COHORT_FAIR_SHARING: "The gang's queue held a larger weighted share than the queue of the other "
    "gang.",
    EvictReason.IN_COHORT_RECLAIM_WHILE_BORROWING: "A gang of higher priority took the room while borrowing itself "
    "(borrowWithinCohort, with the preset kueue).",
    EvictReason.FLAVOR_MIGRATION: "Another variant of the same job has room in a better flavor.",
}


_QUEUED_AGAIN = "Nothing: the job is requeued by itself."
EVICTED: Mapping[str, Advice] = {
    "Preempted": Advice(
        "Another gang had a right to the room. The condition Preempted names that gang, and its reason says by which "
        "right.",
        _QUEUED_AGAIN,
        "Give the queue more quota: a gang that keeps its queue within nominal quota is never evicted for another "
        "queue.",
    ),
    "PodsReadyTimeout": Advice(
        "The pods were not all ready in time (waitForPodsReady), the API server refused them, or kube-scheduler could "
        "not place one of them. The message says which.",
        "Fix what the message names (an image, a volume, pods that crash, what refuses them). The job is tried again "
        "after a backoff that grows with each try.",
        "If starts take longer, raise waitForPodsReady.timeout. `muster requeue JOB` ends the backoff.",
    ),
    "NodeFailures": Advice(
        "The gang lost a node that it ran on: the node is gone or silent, lacks its devices, is tainted NoExecute, or "
        "is closed to a pod that should come back to it. The gang was stopped whole, and starts again on its other "
        "nodes and new ones.",
        _QUEUED_AGAIN,
        "Repair the nodes that the message names, or delete them.",
    ),
    "AdmissionCheck": Advice(
        "An admission check asked to try again.",
        "Wait, and see the message of the check in the Workload's status.admissionChecks.",
        "See the controller that answers the check.",
    ),
    "OutOfSync": Advice(
        "What runs, or was to start, is not what was reserved: somebody suspended, moved or changed the job, it has "
        "more pods than were admitted, or its room was given away twice when the leader changed. The message says "
        "which.",
        "Nothing: quota and nodes are reserved again. To change a job, pause it first.",
    ),
    **{
        f"{kind}Stopped": Advice(
            f"The {kind} is stopped{more}. HoldAndDrain also evicts what runs.",
            "Wait, or use another queue.",
            "Resume the queue: `muster resume QUEUE`.",
        )
        for kind, more in (("ClusterQueue", ", or is being deleted"), ("LocalQueue", ""))
    },
    "Deactivated": Advice(
        "The Workload was made inactive: the owner paused the job or set its parallelism to 0, somebody set "
        "spec.active to false, the Workload or the namespace is being deleted, or such jobs are no longer queued. The "
        "message says which.",
        "Remove the label pause from the job, give it a parallelism, or ask the platform team to requeue it.",
        "Queue it again: `muster requeue JOB`.",
    ),
    "DeactivatedDueToRequeuingLimitExceeded": Advice(
        "The gang failed to get ready more often than requeuingStrategy.backoffLimitCount, and is not tried again.",
        "Fix what the message names, and create the job again or ask the platform team to requeue it.",
        "Queue it again: `muster requeue JOB`.",
    ),
    "DeactivatedDueToMaximumExecutionTimeExceeded": Advice(
        "The job has run for as long as its label max-exec-time-seconds allows, earlier starts included.",
        "Create the job again, with more time.",
    ),
    "DeactivatedDueToAdmissionCheck": Advice(
        "An admission check rejected the gang, or would add something to its pods that contradicts their template or "
        "flavor.",
        "See the message of the check in the Workload's status.admissionChecks, and create the job again as it asks.",
        "See the controller that answers the check.",
    ),
}
"""By the reason of the condition Evicted."""


def reason_of(word: str) -> Reason | None:
    """The reason that a condition names, or None for a word of somebody else's."""
    return next((reason for reason in Reason if reason.value == word), None)


def detail_of(reason: Reason | None, message: str) -> Detail:
    """The detail behind the sentence of a condition; `Detail.NONE` when it says none.

    >>> detail_of(Reason.PLACEMENT_FAILED, "No node belongs to flavor h100; 4 pod(s) of main need one")
    <Detail.NO_NODES: 'NoNodesOfFlavor'>
    """
    message = message.partition(". Also needs ")[0]  # what the reason speaks of comes first
    fitting = [detail for detail, advice in DETAILS.items() if advice.says and re.search(advice.says, message)]
    for detail in fitting:
        if reason in DETAILS[detail].under:
            return detail
    if fitting:
        return fitting[0]
    if reason is Reason.MISCONFIGURED:
        return Detail.INVALID
    if reason is Reason.PLACEMENT_FAILED:
        return Detail.CONSTRAINT_REFUSED
    return Detail.NONE


def advice_for(reason: Reason | None, detail: Detail) -> Advice | None:
    """The finest advice there is."""
    if detail is not Detail.NONE:
        return DETAILS.get(detail)
    return REASONS.get(reason) if reason is not None else None


_OPENING = (
    "A waiting Workload has one reason, in the condition `QuotaReserved`, in its Events and metrics, and in `muster "
    "why JOB`. The message of the condition has the numbers. Most reasons have a finer *detail*, which `muster why` "
    "shows. Find the reason or the detail below; if both have advice, follow that of the detail."
)


_OF_EVICTIONS = (
    "The condition `Evicted` of the Workload has one of these reasons, and a message with names and numbers. The "
    "reasons are also in the Events `EvictedDueTo...` of the job, and `muster why JOB` counts them under `so far`."
)


_OF_PREEMPTIONS = "After `Evicted: Preempted`, the condition `Preempted` of the Workload has one of these reasons."


def reference() -> str:
    """`docs/reasons.md`."""
    lines = [
        "# Why a job waits",
        "",
        "<!-- Generated by `muster explain-reasons --markdown`; a test holds it to the code. -->",
        "",
        _OPENING,
        "",
        "## Reasons",
        "",
    ]
    for reason, advice in REASONS.items():
        lines += [f"### {reason.value}", "", advice.means, ""]
        behind = [detail.value for detail, entry in DETAILS.items() if reason in entry.under]
        if behind:
            lines += ["Details: " + ", ".join(f"[{name}](#{name.lower()})" for name in behind) + ".", ""]
        lines += _todo(advice)
    lines += ["## Details", ""]
    for detail, advice in DETAILS.items():
        if detail is Detail.NONE:
            continue
        behind = [f"[{reason.value}](#{reason.value.lower()})" for reason in advice.under]
        lines += [f"### {detail.value}", "", advice.means, "", f"Detail of: {', '.join(behind)}.", ""]
        lines += _todo(advice)
    lines += ["## Why a job was evicted", "", _OF_EVICTIONS, ""]
    for word, advice in EVICTED.items():
        lines += [f"### Evicted: {word}", "", advice.means, "", *_todo(advice)]
    lines += ["## Why a running job was evicted for another", "", _OF_PREEMPTIONS, ""]
    lines += [f"- `{reason.value}`: {text}" for reason, text in EVICTIONS.items()]
    return "\n".join(lines) + "\n"


def _todo(advice: Advice) -> list[str]:
    out = []
    if advice.owner:
        out.append(f"- Owner of the job: {advice.owner}")
    if advice.platform:
        out.append(f"- Platform team: {advice.platform}")
    return [*out, ""] if out else []
