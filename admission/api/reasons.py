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


_NOTHING = "Nothing: it goes on by itself."

REASONS: Mapping[Reason, Advice] = {
    Reason.QUOTA_RESERVED: Advice(
        "Quota and nodes are set aside for the whole gang; it starts, or waits only for its admission checks.",
        _NOTHING,
    ),
    Reason.NO_MATCHING_FLAVOR: Advice(
        "No flavor of the ClusterQueue is one that the pods can run on.",
        "Compare node selector, affinity and tolerations of the pod template with the flavors of the queue, or send "
        "the job to a queue that has the right one.",
        "Name a flavor that these pods can run on in the ClusterQueue.",
    ),
    Reason.EXCEEDS_MAX_QUOTA: Advice(
        "The gang asks for more than its ClusterQueue can ever have, borrowing included: it never starts as it is.",
        "Ask for less (fewer pods, or smaller ones), or use a queue with more quota.",
        "Raise nominalQuota or borrowingLimit, or the quota that the cohort can lend.",
    ),
    Reason.WAITING_FOR_QUOTA: Advice(
        "The quota that it could have is in use by others right now. The sentence names every resource that is short; "
        "whether nodes have room now is looked at, and said, once quota allows it.",
        "Wait, ask for less, or raise its priority where your queue lets that evict others.",
        "Raise quota or limits, or let the queue preempt.",
    ),
    Reason.PLACEMENT_FAILED: Advice(
        "Quota would allow it, but the nodes cannot hold all of its pods at once.",
        "Wait, ask for less on each pod, or loosen what the template demands of nodes and topology.",
        "Add nodes, or repair those that are excluded; `muster nodes` shows who sits where.",
    ),
    Reason.WAITING_FOR_PREEMPTED: Advice(
        "Others were evicted to make room for it, and it starts when their pods are gone. The room is kept for it.",
        _NOTHING,
        "If it lasts: look for pods that do not terminate (a long grace period, a finalizer, a dead node).",
    ),
    Reason.MISCONFIGURED: Advice(
        "A queue is missing, stopped working, or is not for this namespace; or the job itself cannot be queued.",
        "Check the queue-name label of the job against the LocalQueues of the namespace.",
        "Repair the queue; `muster lint --cluster` finds most of these.",
    ),
    Reason.SUSPENDED: Advice(
        "It was set back and is not tried before a time, or before an admission check changes its answer.",
        _NOTHING,
    ),
    Reason.PENDING_EVALUATION: Advice("It has not been looked at yet, or is looked at again.", _NOTHING),
    Reason.GATED: Advice(
        "Its owner, or a program of theirs, holds it back from the queue; or what its pods need first is not there, "
        "as the detail says.",
        "Where no detail says otherwise: take the gate away. The annotation admission-gated-by names who put it there.",
    ),
    Reason.ON_HOLD: Advice(
        "Its LocalQueue or ClusterQueue is stopped and admits nothing.",
        "Wait, or use another queue.",
        "Set stopPolicy of the queue to None.",
    ),
    Reason.DEACTIVATED: Advice(
        "The Workload is not active: it was paused, ran for its maximum time, did not get ready too often, a check "
        "refused it, or somebody set spec.active to false. If it held quota, its condition Evicted says which.",
        "Take the label pause off the job, or create the job anew.",
        "Set spec.active of the Workload to true.",
    ),
}

_OFF = Reason.DEACTIVATED
_MIS, _QUOTA, _PLACE = Reason.MISCONFIGURED, Reason.WAITING_FOR_QUOTA, Reason.PLACEMENT_FAILED
_FLAVOR = Reason.NO_MATCHING_FLAVOR

DETAILS: Mapping[Detail, Advice] = {
    Detail.NONE: Advice("No finer reason.", _NOTHING),
    Detail.QUEUE_MISSING: Advice(
        "The namespace has no LocalQueue of the name that the job's queue-name label gives.",
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
        "The ClusterQueue does not work: a flavor, a topology or an admission check that it names is missing, a check "
        "is not active, or it is being deleted.",
        "Wait, or use another queue.",
        "Create what the sentence names, or take it out of the ClusterQueue; see whether the controller of a check "
        "runs. To have a queue that is being deleted back at once, take its finalizer off and create it anew.",
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
        "The namespace is being deleted: no pods can be made there, so that nothing of it gets quota.",
        "Create the job in another namespace.",
        "If the namespace does not go: its status says what is left in it, and whose finalizers keep that.",
        r"^Namespace .* is being deleted",
        (_MIS,),
    ),
    Detail.RESOURCE_NOT_COVERED: Advice(
        "The pods ask for a resource for which the ClusterQueue has no quota at all.",
        "Drop the resource from requests and limits, or use a queue that covers it.",
        "Add the resource to coveredResources of the ClusterQueue, or leave it out of quota in the configuration file "
        "(resources.excludeResourcePrefixes).",
        r"^Needs .*, for which the ClusterQueue has no quota",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_TAINT: Advice(
        "The flavor has a taint that the pods do not tolerate.",
        "Add a toleration to the pod template, if the job belongs on those nodes.",
        "Move the taint from nodeTaints to tolerations of the ResourceFlavor, if everybody who gets it may run there.",
        r"which the pods do not tolerate",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_AFFINITY: Advice(
        "Node selector or affinity of the pods exclude the flavor's nodes.",
        "Change nodeSelector or affinity, or use a queue with the flavor that they select.",
        "Name a flavor with these node labels in the ClusterQueue.",
        r"is not what the pods select",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_MISSING: Advice(
        "The ClusterQueue names a ResourceFlavor that does not exist.",
        "Wait, or use another queue.",
        "Create the ResourceFlavor, or take it out of the ClusterQueue.",
        r"^ResourceFlavor .* does not exist",
        (_FLAVOR,),
    ),
    Detail.NEVER_FITS_QUOTA: Advice(
        "The gang asks for more than the queue could have with nobody else there.",
        "Ask for at most what the sentence says the ClusterQueue can ever have.",
        "Raise the limit at the ClusterQueue or Cohort where the sentence says that it ends.",
        r"can never have more than",
        (Reason.EXCEEDS_MAX_QUOTA,),
    ),
    Detail.QUOTA_SHORT: Advice(
        "The queue's own quota is in use, and it has nobody to borrow from.",
        "Wait until a job of your queue ends, ask for less, or raise the priority.",
        "Raise nominalQuota, put the queue into a cohort, or set preemption.withinClusterQueue.",
        r"its ClusterQueue has .* left of (?!.*(borrowing limit of|cohort ))",
        (_QUOTA,),
    ),
    Detail.BORROWING_LIMIT: Advice(
        "What is missing could be borrowed, but a borrowing limit forbids it.",
        "Wait until a job of your queue ends, or ask for less.",
        "Raise borrowingLimit where the sentence says, or nominalQuota.",
        r"the borrowing limit of .* ends it at",
        (_QUOTA,),
    ),
    Detail.COHORT_SHORT: Advice(
        "The queue would have to borrow, or has lent of its own, and others of the cohort use it.",
        "Wait until a job in the cohort ends. What is nominally yours comes back by reclaim, unless the sentence says "
        "that the queue takes nothing back; what is beyond it does not.",
        "Add quota to the cohort, or to this queue. Where reclaimWithinCohort is Never and it is to have its own back, "
        "write Any.",
        r"cohort [^ ]+ has .* free",
        (_QUOTA,),
    ),
    Detail.NODES_SHORT: Advice(
        "The nodes of the flavor hold only some of the pods now. A gang starts whole or not at all.",
        "Wait, or ask for less: the sentence says how many pods fit.",
        "See the excluded nodes in the sentence (cordoned, not ready, tainted), and `muster nodes`.",
        r"the nodes of flavor .* hold (?!.*(if they were empty|with none of them kept out))|would fit alone, but not "
        r"beside",
        (_PLACE,),
    ),
    Detail.NO_NODES: Advice(
        "No node belongs to the flavor that has the quota.",
        "Wait, or use another queue.",
        "Label the nodes as nodeLabels of the ResourceFlavor says. Where an autoscaler brings them: elastic: true.",
        r"^No node belongs to flavor",
        (_PLACE,),
    ),
    Detail.NODES_UNUSABLE: Advice(
        "The flavor has nodes enough, but some of them are cordoned, not ready, tainted or avoided, and without these "
        "the gang does not fit even when all others are empty.",
        "Wait, or ask for less. Where the sentence names a taint and the job belongs on those nodes, add a toleration "
        "to the pod template.",
        "Bring back the nodes that the sentence counts: `kubectl uncordon NODE`, repair what is not ready, take the "
        "taint off. `muster nodes` marks them.",
        r"with none of them kept out, and empty, they could take",
        (_PLACE,),
    ),
    Detail.NODES_TAKEN: Advice(
        "Pods that Muster does not manage hold room on these nodes, and it evicts none of them: had all gangs ended, "
        "this one would still not fit.",
        "Wait until such pods end, or ask for fewer or smaller pods.",
        "`muster nodes` shows them as others, `kubectl get pods -A --field-selector spec.nodeName=NODE` names them: "
        "delete what should not be there. refuseBarePods keeps pods that no queue admitted from devices.",
        r"pods that are no gang's hold room there",
        (_PLACE,),
    ),
    Detail.NEVER_FITS_NODES: Advice(
        "Even with all these nodes empty, the gang would not fit: it never starts as it is.",
        "Ask for fewer or smaller pods, or loosen required topology.",
        "Add nodes, or larger ones.",
        r"would not fit if they were empty",
        (_PLACE,),
    ),
    Detail.CONSTRAINT_REFUSED: Advice(
        "The pod template demands something of its place that Muster cannot honour, so that it cannot promise room.",
        "Change the template as the sentence says.",
        "",
        "",
        (_PLACE,),
    ),
    Detail.CLAIMED: Advice(
        "The room is kept for a gang that others were evicted for, or that was passed over for too long: another, or "
        "this one itself.",
        "Wait: the sentence says for whom, and until when.",
        "Where devices stand idle for it: `muster why` with the name that the sentence gives says what that one lacks. "
        "While it is paused (its label pause) the room goes to others.",
        r"^(The room it needs|Room) is kept for",
        (_QUOTA, _PLACE),
    ),
    Detail.BEHIND_HEAD: Advice(
        "The queue is StrictFIFO, and the first in it cannot go yet.",
        "See why the first one waits: `muster why` with its name.",
        "Where passing is fine, set queueingStrategy: BestEffortFIFO.",
        r"the first of a StrictFIFO queue",
        (_QUOTA,),
    ),
    Detail.BACKOFF: Advice(
        "It was evicted because it did not get ready, or a check asked for time; it is tried again at a set time.",
        "Mend what it was evicted for, as `muster why` and the condition Evicted say (an image, volumes, crashing "
        "pods, pods that the API server refuses): else the same comes again. Then `muster requeue JOB` ends the wait.",
        "See whether a policy, a ResourceQuota or the nodes are in the way.",
        r"before it is tried again",
        (Reason.SUSPENDED,),
    ),
    Detail.VICTIMS_LEAVING: Advice(
        "Those evicted for it are still terminating; the room that they free is kept for it.",
        _NOTHING,
        "If it lasts: look for pods that do not terminate.",
        r"to leave; the room they free is kept for it",
        (Reason.WAITING_FOR_PREEMPTED,),
    ),
    Detail.NEXT_CYCLE: Advice(
        "It is looked at in the next cycle, within a second as a rule.",
        _NOTHING,
        "If it lasts: see that a controller leads, and `write failed` and `reason not written` in its log, which quote "
        "what the API server refuses. A right that its ClusterRole lacks comes back when the chart is installed again "
        "(helm upgrade).",
        r"looked at in the next cycle",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.CHECKS_PENDING: Advice(
        "An admission check asked to try again, or refused.",
        "See the message of the check in the Workload's status.admissionChecks.",
        "See the controller that answers the check.",
        r"admission check",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.INVALID: Advice(
        "Something in the job or its Workload cannot be read; the sentence says what.",
        "Correct the job as the sentence says.",
        "",
        r"^What it asks of its place cannot be read",
        (_MIS, _PLACE),
    ),
    Detail.PREEMPTION_GATED: Advice(
        "It would have to evict others, and its preemption gate is closed.",
        "Open the gate, or wait for room.",
        "",
        r"which its preemption gate forbids",
        (Reason.GATED,),
    ),
    Detail.COHORT_CYCLE: Advice(
        "The cohorts above its ClusterQueue name each other in a circle.",
        "Wait, or use another queue.",
        "Take parentName out of the Cohort that is meant to be the root.",
        r"^ClusterQueue [^ ]+: .*part of a cycle",
        (_MIS,),
    ),
    Detail.FLAVOR_TOPOLOGY: Advice(
        "The flavor's topology does not have what the job's topology request names, or the flavor is elastic.",
        "Request a level that the Topology has, or none.",
        "Give the flavor a Topology with this level. Who demands a level needs a flavor that is not elastic.",
        r"^Flavor [^ ]+: ",
        (_FLAVOR,),
    ),
    Detail.FLAVOR_NOT_ALLOWED: Advice(
        "The Workload is restricted to other flavors by an annotation.",
        "See who set the annotation workload-allowed-resource-flavors.",
        "",
        r"is not among those it may use",
        (_FLAVOR,),
    ),
    Detail.WORKLOAD_DELETED: Advice(
        "Somebody deleted its Workload, and a finalizer of somebody else's keeps it. It was stopped, holds nothing, "
        "and gets a new Workload when the old one is gone.",
        "Wait, or ask whoever owns the finalizer that the sentence names.",
        "See why the controller of that finalizer does not take it off; where there is none any more, take it off by "
        "hand: `kubectl edit` the Workload.",
        r"^Its Workload was deleted and is kept by",
        (_OFF,),
    ),
    Detail.PAUSED: Advice(
        "Its owner paused it: while the label stands it is neither queued nor started, whatever else changes.",
        "Take the label that the sentence names off the job.",
        "",
        r"^Its owner paused it",
        (_OFF,),
    ),
    Detail.VARIANT_ADMITTED: Advice(
        "The job has several variants in the queue, and one with a better flavor runs already.",
        _NOTHING,
        "",
        r"^Another variant of this job is admitted",
        (Reason.PENDING_EVALUATION,),
    ),
    Detail.VOLUME_PENDING: Advice(
        "A PersistentVolumeClaim that its pods name is not there, not bound, or ReadWriteOncePod and in use, so that "
        "kube-scheduler would bind none of them. It holds nothing meanwhile, and goes on by itself once the claim is "
        "ready.",
        "Make the claim that the sentence names, or see with `kubectl describe pvc` why it is not bound. One that is "
        "in use is free when who uses it has ended.",
        "Look after the volumes or the StorageClass that the sentence names.",
        r"^PersistentVolumeClaim [^ ]+ ",
        (Reason.GATED,),
    ),
    Detail.CLAIMS_UNCLEAR: Advice(
        "A ResourceClaimTemplate or DeviceClass by which its pods ask for devices is not there, or cannot be counted. "
        "It holds nothing meanwhile, and goes on by itself once it can be.",
        "Make the template that the sentence names, or make the job anew with one that asks for whole devices of one "
        "class.",
        "Make the DeviceClass that the sentence names, or leave its claims out of quota in the configuration file "
        "(resources.excludeDeviceClasses).",
        r"its pods ask for (by claims )?cannot be counted",
        (Reason.GATED,),
    ),
    Detail.PODS_LINGER: Advice(
        "Pods of its last start are still ending, on a node that does not answer, and its Job makes no others before "
        "they are gone: it has a podFailurePolicy, or podReplacementPolicy: Failed. It holds nothing meanwhile, and "
        "goes on by itself once they are.",
        "Wait, or make the job anew under another name.",
        "Bring back the node that the sentence names, or, where it is off for good, delete it or taint it "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute: its pods are then deleted.",
        r"its Job makes no others before",
        (Reason.GATED,),
    ),
    Detail.NOT_MANAGED: Advice(
        "Kueue made this Workload for something that is no Job and no JobSet. Quota would stay with it for ever, for "
        "nobody here starts what it stands for, or sees it end.",
        "Make a Job or a JobSet of it, or delete it.",
        "Kueue's controller started it: docs/migrate.md, What Kueue alone starts.",
        r"^It stands for [^,]+, which Kueue's own controller starts",
        (Reason.MISCONFIGURED,),
    ),
}

EVICTIONS: Mapping[EvictReason, str] = {
    EvictReason.IN_CLUSTER_QUEUE: "A gang of the same ClusterQueue comes before it (withinClusterQueue).",
    EvictReason.IN_COHORT_RECLAMATION: "It ran on borrowed quota, and the queue that owns it took it back "
    "(reclaimWithinCohort).",
    EvictReason.IN_COHORT_FAIR_SHARING: "Its queue held a larger weighted share than the queue of the other gang.",
    EvictReason.IN_COHORT_RECLAIM_WHILE_BORROWING: "A gang of higher priority took the room while borrowing itself "
    "(borrowWithinCohort, with the preset kueue).",
    EvictReason.FLAVOR_MIGRATION: "Another variant of the same job has room in a better flavor.",
}


_QUEUED_AGAIN = "Nothing: it is queued again by itself."
EVICTED: Mapping[str, Advice] = {
    "Preempted": Advice(
        "Another gang had a right to its room: the condition Preempted says by its reason which, and for whom.",
        _QUEUED_AGAIN,
        "Nobody goes for another queue who runs within the quota of their own: give the queue more.",
    ),
    "PodsReadyTimeout": Advice(
        "Its pods were not all ready in time (waitForPodsReady), the API server refused them, or kube-scheduler placed "
        "one of them nowhere. The message says which.",
        "Mend what the message names (an image, a volume, pods that crash, what refuses them): it is tried again after "
        "a backoff that grows with each try.",
        "Raise waitForPodsReady.timeout where starts take longer. `muster requeue JOB` ends the backoff.",
    ),
    "NodeFailures": Advice(
        "It lost a node that it ran on: that is gone or silent, lacks its devices, is tainted NoExecute, or is closed "
        "to a pod that was to come back to it. It was stopped whole, and starts again on the nodes it has left and "
        "others.",
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
        "more pods than were admitted, or its room was given away twice as the leader changed. The message says which.",
        "Nothing: it is reserved anew. To change a job, pause it first.",
    ),
    **{
        f"{kind}Stopped": Advice(
            f"Its {kind} is stopped{more}: with HoldAndDrain what runs leaves it, too.",
            "Wait, or use another queue.",
            "Let the queue go on: `muster resume QUEUE`.",
        )
        for kind, more in (("ClusterQueue", ", or is being deleted"), ("LocalQueue", ""))
    },
    "Deactivated": Advice(
        "Its Workload was switched off: its owner paused it, somebody set spec.active to false, its Workload or its "
        "namespace is being deleted, or jobs like it are not queued any more. The message says which.",
        "Take the label pause off the job, or ask the platform team to queue it again.",
        "Queue it again: `muster requeue JOB`.",
    ),
    "DeactivatedDueToRequeuingLimitExceeded": Advice(
        "It did not get ready, once more than requeuingStrategy.backoffLimitCount, and was given up.",
        "Mend what the message names, and create the job anew or ask the platform team to queue it again.",
        "Queue it again: `muster requeue JOB`.",
    ),
    "DeactivatedDueToMaximumExecutionTimeExceeded": Advice(
        "It has run for as long as its label max-exec-time-seconds says, earlier starts included.",
        "Create the job anew, with more time.",
    ),
    "DeactivatedDueToAdmissionCheck": Advice(
        "An admission check refused it, or would add to its pods what contradicts their template or flavor.",
        "See the message of the check in the Workload's status.admissionChecks; create the job anew as it asks.",
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
    "A waiting Workload has one reason, in the condition `QuotaReserved`, in its events and metrics, and in "
    "`muster why JOB`. The message of the condition is a sentence with the numbers; what exactly stands behind the "
    "reason is called its detail."
)


_OF_EVICTIONS = (
    "The condition `Evicted` of the Workload has one of these reasons, and a message with names and numbers. The same "
    "stand in the Events `EvictedDueTo...` of the job, and in what `muster why JOB` counts under `so far`."
)


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
        lines += [f"### {detail.value}", "", advice.means, "", f"Stands behind: {', '.join(behind)}.", ""]
        lines += _todo(advice)
    lines += ["## Why a job was evicted", "", _OF_EVICTIONS, ""]
    for word, advice in EVICTED.items():
        lines += [f"### Evicted: {word}", "", advice.means, "", *_todo(advice)]
    lines += ["## Why a running job was evicted for another", ""]
    lines += [f"- `{reason.value}`: {text}" for reason, text in EVICTIONS.items()]
    return "\n".join(lines) + "\n"


def _todo(advice: Advice) -> list[str]:
    out = []
    if advice.owner:
        out.append(f"- Owner of the job: {advice.owner}")
    if advice.platform:
        out.append(f"- Platform team: {advice.platform}")
    return [*out, ""] if out else []
