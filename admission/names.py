"""Every name that Muster shares with the API server, derived from one value: the API group.

Muster's kinds have the JSON shape of Kueue's `v1beta2`. With `Names(group="muster.dev")`, the default, the controller
stands beside an existing Kueue; with `Names(group="kueue.x-k8s.io")` it reads and writes Kueue's group, labels,
annotations, conditions, reasons and field managers. No other module spells a group or a label, and none asks which of
the two it has: what is decided differently lives in `engine.model.Rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

MUSTER_GROUP = "muster.dev"
KUEUE_GROUP = "kueue.x-k8s.io"
DEFAULT_QUEUE = "default"
"""The LocalQueue that jobs without a queue label get, in a namespace that has it, where that is asked for."""

EQUAL_COMPLETIONS = f"{KUEUE_GROUP}/job-completions-equal-parallelism"
"""On a job, for Kueue: with less parallelism it is to have as many fewer completions."""

# Names that Kubernetes and JobSet own.
HOSTNAME_LABEL = "kubernetes.io/hostname"
JOB_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
JOB_TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"
LABELS_OF_JOB = (CONTROLLER_UID_LABEL, "controller-uid", JOB_NAME_LABEL, "job-name")
"""What the API server gives each Job's pods: no two Jobs share a value."""
JOBSET_GROUP = "jobset.x-k8s.io"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
JOBSET_JOB_INDEX_LABEL = "jobset.sigs.k8s.io/job-index"
JOBSET_REPLICAS_LABEL = "jobset.sigs.k8s.io/replicatedjob-replicas"
JOBSET_JOB_KEY_LABEL = "jobset.sigs.k8s.io/job-key"
JOBSET_LABELS = "jobset.sigs.k8s.io/"
"""How the labels begin by which JobSet's controller tells its Jobs apart: which is of which replicated job, and run."""
JOBSET_EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
"""With the annotation above: nodes were labelled for each child job, and the JobSet controller selects them."""
JOBSET_NAMESPACED_JOB_LABEL = "alpha.jobset.sigs.k8s.io/namespaced-job"
JOBSET_NO_SCHEDULE_TAINT = "alpha.jobset.sigs.k8s.io/no-schedule"
OF_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
"""With the name of a DeviceClass behind it: the resource by which pods may ask for its devices in any case."""

# A name that Karpenter owns.
NODEPOOL_LABEL = "karpenter.sh/nodepool"
"""On nodes that Karpenter makes when pods wait for them, and removes when none need them."""

JOBS_OF_KUEUE = (
    "kubeflow.org/JAXJob",
    "kubeflow.org/MPIJob",
    "kubeflow.org/PaddleJob",
    "kubeflow.org/PyTorchJob",
    "kubeflow.org/TFJob",
    "kubeflow.org/XGBoostJob",
    "ray.io/RayCluster",
    "ray.io/RayJob",
    "ray.io/RayService",
    "trainer.kubeflow.org/TrainJob",
    "workload.codeflare.dev/AppWrapper",
)
"""GROUP/KIND of jobs that Kueue's own controller starts and stops, and Muster does not."""
STARTED_BY_KUEUE = frozenset(
    {
        *JOBS_OF_KUEUE,
        "/Pod",
        "apps/Deployment",
        "apps/StatefulSet",
        "leaderworkerset.x-k8s.io/LeaderWorkerSet",
        "sparkoperator.k8s.io/SparkApplication",
    }
)
"""The same of all that Workloads stand for."""

# Condition types of a Workload, ClusterQueue and LocalQueue (the same in both groups).
QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
BLOCKED_ON_GATES = "BlockedOnPreemptionGates"
PODS_READY = "PodsReady"
FINISHED = "Finished"
ACTIVE = "Active"
INVALID_JOB = "InvalidJob"
"""Of an Event: a job that is held and gets no Workload, for what it says cannot be queued."""
UNKNOWN_KEY = "UnknownKey"
"""Of an Event: a job goes on without a label or annotation of our group that says nothing where it stands."""
REFUSED = "Refused"
"""Of an Event: the API server refuses what is due for a job."""
STEP_FAILED = "StepFailed"
"""Of an Event: what was due for a job failed, by a defect of the controller."""
JOBS_HELD = "JobsHeld"
"""On a ClusterQueue: was it proven that labelled jobs are held until they are admitted?"""


_NOT_IN_KUEUE = {
    "Workload": frozenset({"claim", "avoidNodes", "outOfStock", "fairEvictions", "decision"}),
    "Cohort": frozenset(
        {
            "conditions",
            "flavorsReservation",
            "flavorsUsage",
            "pendingWorkloads",
            "reservingWorkloads",
            "admittedWorkloads",
        }
    ),
}


def _key(end: str) -> cached_property[str]:
    """A name in the API group."""
    return cached_property(lambda names: f"{names.group}/{end}")


@dataclass(frozen=True)
class Names:
    """All names that derive from the API group. Cheap to build; pass it where names are needed."""

    group: str = MUSTER_GROUP

    @property
    def version(self) -> str:
        return "v1beta2" if self.group == KUEUE_GROUP else "v1beta1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def as_kueue(self) -> bool:
        """Do readers of conditions expect what Kueue's controller says of them, and when?"""
        return self.group == KUEUE_GROUP

    @property
    def visibility_group(self) -> str:
        """The aggregated API, of the same version, that tells where pending gangs stand."""
        return f"visibility.{self.group}"

    # Labels and annotations on jobs.
    queue_label = _key("queue-name")
    """On a Job or JobSet: the LocalQueue in which it waits."""
    priority_class_label = _key("priority-class")
    """On a job: its WorkloadPriorityClass."""
    max_exec_time_label = _key("max-exec-time-seconds")
    """On a job: the most seconds that it may run, earlier starts included. Then it is stopped for good."""
    pause_label = _key("pause")
    """On a job, by its owner: "true" stops it and keeps it out of the queue, until the label is removed."""
    prebuilt_label = _key("prebuilt-workload-name")
    """On a job, label or annotation: the Workload that somebody else makes for it. Nobody looks for that here."""
    ungoverned_label = _key("ungoverned")
    """On a held job without a queue label that is not queued: such jobs are no longer governed, or this one cannot be
    queued as it is written."""
    min_parallelism_annotation = _key("job-min-parallelism")
    """On a Job: the parallelism with which it may start if there is no room for all pods."""
    replace_lost_pods_annotation = _key("replace-lost-pods")
    """On a job, by its owner: "true" says that it survives the loss of a pod. When a node dies, only the pods on it are
    replaced."""
    inverse_annotation = _key("restore")
    """On a started job: its template from before the start, to restore it byte for byte."""

    # Labels and annotations on pod templates and pods (the marker is what policies select on).
    managed_label = _key("managed")
    """On pods of admitted gangs: "true". The pod policies select on it."""
    workload_uid_label = _key("workload-uid")
    """On pods: the uid of the Workload that is charged for them."""
    pod_set_label = _key("podset")
    """On pods: their pod set in the Workload."""
    pin_form_annotation = _key("pin")
    """On a pod template: `domain`, `ranks` or `gates`."""
    hosts_annotation = _key("hosts")
    """On a pod template: node names in rank order, joined by commas (form `ranks`)."""
    selector_annotation = _key("node-selector")
    """On a pod template: node selector to add, as `k=v,k=v`."""
    tolerations_annotation = _key("tolerations")
    """On a pod template: tolerations to add, as `key=value:effect,...`, or `key=value:effect:seconds`; an empty
    value or effect means any, and `=` for a value the empty one (`key==:effect`)."""
    rank_stride_annotation = _key("rank-stride")
    """On a JobSet's pod template: pods per child job, so that rank = job index x stride + completion index."""
    pinned_annotation = _key("pinned")
    """On a pod, by the pod policy: "true" once its pin is in place."""
    topology_gate = _key("placement")
    """The scheduling gate of the form `gates`."""
    elastic_gate = _key("elastic-job")
    """The scheduling gate that Kueue puts into the template of an elastic job when that is created, and takes off
    each pod."""
    required_topology_annotation = _key("podset-required-topology")
    """On a pod template: the whole pod set is placed in one domain of this level (a label of nodes), or waits."""
    preferred_topology_annotation = _key("podset-preferred-topology")
    """On a pod template: the pod set is placed in one domain of this level if possible, else of the next wider one."""
    unconstrained_topology_annotation = _key("podset-unconstrained-topology")
    """On a pod template: "true" lets its pods be placed anywhere in the topology."""
    slice_required_topology_annotation = _key("podset-slice-required-topology")
    """On a pod template: each slice of the pod set is placed in one domain of this level."""
    slice_size_annotation = _key("podset-slice-size")
    """On a pod template: how many pods a slice has."""
    slice_layers_annotation = _key("podset-slice-required-topology-constraints")
    """On a pod template: slices of several layers, the widest first, as JSON: `[{"topology": LEVEL, "size": PODS},
    ...]`."""
    group_name_annotation = _key("podset-group-name")
    """On a pod template: pod sets with the same name share a domain."""

    # Labels, annotations and finalizer of Workloads.
    job_uid_label = _key("job-uid")
    """On a Workload: the uid of the job it stands for."""
    spec_hash_annotation = _key("spec-hash")
    """On a Workload: hash of what its job requested when the spec was written."""
    defaults_annotation = _key("defaults-hash")
    """On a Workload: hash of what was added to the pods of its job when its spec was written."""
    queued_since_annotation = _key("queued-since")
    """On a Workload: since when it has waited, if that is not its creation; an RFC 3339 time."""
    arrival_annotation = _key("arrival")
    """On a Workload: when its job came, so that jobs of one second keep the order of their creation: the time of
    creation, and the version in which the job was first seen."""
    added_annotation = _key("added-to-pods")
    """On a pod template in a Workload of Kueue's kind: what the API server adds to the pods, as JSON: fields of
    their spec, and in place of containers what each of them requests and is limited to."""
    claimed_devices_annotation = _key("claimed-devices")
    """On a pod template in a Workload: [[DeviceClass, extended resource, devices], ...], what each pod requests by its
    claims, without classes that it requests by their own name; or, also as JSON, a sentence why that is not known."""
    allowed_flavors_annotation = _key("workload-allowed-resource-flavors")
    """On a Workload: the only flavors that it may get, joined by commas."""
    gated_by_annotation = _key("admission-gated-by")
    """On a job and its Workload: names of those who hold it out of the queue, joined by commas. Absent or empty:
    none."""
    decision_annotation = _key("decision")
    """On an Event: its decision, as logs and the Workload's status.decision name it."""
    priority_boost_annotation = _key("priority-boost")
    """On a Workload: a whole number that is added to its priority, wherever priorities are compared."""
    finalizer = _key("resource-in-use")

    @cached_property
    def gang_marks(self) -> tuple[str, ...]:
        """Labels by which policies know a pod of a gang: it has all of them. In Kueue's group pods of others have the
        first, too: Kueue writes it into the templates of Deployments, and on the pods of others that it queues."""
        return (self.managed_label, self.workload_uid_label) if self.as_kueue else (self.managed_label,)

    @cached_property
    def topology_annotations(self) -> tuple[str, ...]:
        """Of a pod template: where its pods may stand to each other."""
        return (
            self.required_topology_annotation,
            self.preferred_topology_annotation,
            self.unconstrained_topology_annotation,
            self.slice_required_topology_annotation,
            self.slice_size_annotation,
            self.slice_layers_annotation,
            self.group_name_annotation,
        )

    @cached_property
    def said_by_owners(self) -> dict[tuple[str, str], frozenset[str]]:
        """What an owner of jobs may write, by where it is read: ("label" or "annotation", "job" or "pods")."""
        return {
            ("label", "job"): frozenset(
                (self.queue_label, self.priority_class_label, self.max_exec_time_label, self.pause_label)
            ),
            ("label", "pods"): frozenset(),
            ("annotation", "job"): frozenset(
                (self.min_parallelism_annotation, self.replace_lost_pods_annotation, self.gated_by_annotation)
            ),
            ("annotation", "pods"): frozenset(self.topology_annotations),
        }

    @cached_property
    def said_of_workloads(self) -> frozenset[str]:
        """Annotations of a Workload that other programs, and people, write."""
        return frozenset((self.priority_boost_annotation, self.allowed_flavors_annotation))

    @cached_property
    def all_keys(self) -> frozenset[str]:
        """Every label and annotation that is read or written anywhere."""
        said = (name for name in dir(type(self)) if name.endswith(("_label", "_annotation")))
        return frozenset(str(getattr(self, name)) for name in said)

    # Field managers, one per concern.
    @cached_property
    def admission_manager(self) -> str:
        return "kueue-admission" if self.group == KUEUE_GROUP else "muster-admission"

    @cached_property
    def job_manager(self) -> str:
        return "kueue-job-controller" if self.group == KUEUE_GROUP else "muster-job-controller"

    @cached_property
    def event_source(self) -> str:
        return "kueue" if self.group == KUEUE_GROUP else "muster"

    def stored(self, kind: str, status: dict[str, Any]) -> dict[str, Any]:
        """A status without the fields for which Kueue's CRDs have no place (an apply that names one is refused). In
        Kueue mode what they remember lasts as long as the process."""
        absent = _NOT_IN_KUEUE.get(kind, frozenset()) if self.group == KUEUE_GROUP else frozenset()
        return {name: value for name, value in status.items() if name not in absent} if absent else status

    @property
    def lease_name(self) -> str:
        return "muster-controller"

    @property
    def config_map(self) -> str:
        """Of the chart, with the controller's configuration file as `config.yaml`."""
        return "muster-controller"

    @property
    def rival_lease(self) -> str:
        """Of the leader of Kueue's controller, where its objects are managed here; "" in Muster's own group."""
        return f"c1f6bfd2.{KUEUE_GROUP}" if self.group == KUEUE_GROUP else ""

    @property
    def priority_class(self) -> str:
        """The PriorityClass of managed pods: above what tenants may use, never preempting."""
        return "muster-gang"
