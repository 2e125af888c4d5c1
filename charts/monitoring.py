"""Alerts and dashboards, from one source: what is asked of the metrics in `admission.web.metrics`.

`charts.generate` writes them into the chart as files; the reference page is made of the same values, and the tests
parse and try each expression. `@LONG_WAIT@` and `@NAMESPACE@` are put in by the chart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Object = dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """`runbook`: what it means, where to look, what to do."""

    name: str
    expr: str
    after: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    runbook: str


HELD_BACK = "Deactivated|AdmissionGated|OnHold"
"""Reasons of gangs that somebody keeps back: they wait for no room."""


_LED = "({0} or last_over_time({0}[5m]) unless on () (muster_leading == 1 and muster_leading offset 2m == 1))"
"""What only the leader shows; while another one comes to lead, and has not decided yet, what was shown last: an alert
goes on, and does not begin anew. Of what is over under one leader nothing stays."""


def _waiting(mine: str = "", over: str = "{0}") -> str:
    """Gangs of each queue that wait, without those that are kept back."""
    pending = f'muster_pending_workloads{{{mine}reason!~"{HELD_BACK}",cluster_queue!=""}}'
    return f"sum by (cluster_queue) (max by (cluster_queue, reason) ({over.format(pending)}))"


def _evicted(over: str, ago: str = "") -> str:
    """How many gangs of a queue were evicted for reasons of their own, within `over` until `ago`."""
    counter = 'muster_evicted_workloads_total{reason=~"PodsReadyTimeout|AdmissionCheck|NodeFailures"}'
    offset = ago and f" offset {ago}"
    return f"sum by (cluster_queue, reason) (increase({counter}[{over}]{offset}))"


_INACTIVE = 'muster_cluster_queue_inactive{reason!~"Stopped|Terminating"}'
_BEGAN = "process_start_time_seconds"
_ENDS = f"changes({_BEGAN}[2h]) > 3 and changes({_BEGAN}[30m]) > 0"
_LOGS = "kubectl -n @NAMESPACE@ logs -l app.kubernetes.io/component=controller --tail=-1 --prefix --ignore-errors"
"""Of all replicas; one of which has none keeps back none of the others'."""
_WHO = "`muster jobs -A --cluster-queue {{ $labels.cluster_queue }}`"


ALERTS: tuple[Alert, ...] = (
    Alert(
        "MusterNotLeading",
        "absent(muster_leading) or sum(muster_leading) != 1",
        "3m",
        "critical",
        "No replica of Muster leads, or more than one says so",
        "No jobs are admitted; gangs that run go on. Look at the replicas and the Lease (kubectl -n @NAMESPACE@ "
        "get pods,lease), and at the logs. A replica that cannot reach the API server, or cannot write the Lease "
        "muster-controller, does not lead: 'lease not reached' in its log says why ('database space exceeded' is "
        "an etcd that is full). A replica that is not READY may not read, or does not get, all that it needs: see "
        "'list failed' in its log; or it 'waits for' Kueue, or for another Muster, that leads and is to be removed. "
        "If HOLDER is a pod that is READY, Muster leads, and Prometheus does not reach its /metrics. If the sum of "
        "muster_leading is more than 1, Prometheus scrapes more than one installation (another cluster, or Muster in "
        "Kueue mode beside this one): these alerts are for one. Two replicas of one installation that say so for "
        "minutes are a bug: only the holder of the Lease writes, but "
        "please report it.",
    ),
    Alert(
        "MusterRestarts",
        f"count(({_ENDS} or time() - last_over_time({_BEGAN}[10m]) < 600) "
        "and on (job, instance) last_over_time(muster_build_info[10m]) "
        "or avg_over_time(up[10m]) < 0.5 and on (job, instance) up "
        "and on (job, namespace, service) muster_build_info) > 0",
        "30m",
        "critical",
        "A replica of Muster ends again and again, or is not reached",
        "For half an hour some replica was always less than ten minutes old, or had begun anew more than three times "
        "in two hours, or was mostly not reached by Prometheus, as one that ends at once. "
        "kubectl -n @NAMESPACE@ "
        "describe pods -l app.kubernetes.io/component=controller says why, under Last State and in its Events. "
        "OOMKilled: raise "
        "resources.limits.memory of the chart (some 160 MB, and 7 KB for each job with one pod, finished jobs "
        f"too: ttlSecondsAfterFinished deletes jobs). Liveness probe failed: give it more CPU. Error: {_LOGS} "
        "--previous has the reason in its last lines. If all pods are READY, and none began anew, Prometheus cannot "
        "scrape one of them: its page of targets says why. See whether networkPolicy.metricsFrom of the chart lets it "
        "in, and whether the pod's node is reached from where Prometheus runs (kubectl -n @NAMESPACE@ get pods -o "
        "wide). Nothing is lost or given away twice by restarts, and gangs "
        "that run go on; but each new leader first reads all lists, and others wait.",
    ),
    Alert(
        "MusterJobsNotHeld",
        f"max{_LED.format('muster_jobs_held')} == 0",
        "5m",
        "critical",
        "What holds jobs with a queue back is gone, or not whole",
        "Install the chart again (helm upgrade). `muster queues` first names what is missing: policies, bindings "
        "or webhooks of the chart (those of refuseBarePods and restrictPriorities too), or the PriorityClass "
        "muster-gang; or somebody else's admission undoes the hold. If it quotes somebody else's policy that "
        "refuses the dry run in the namespace default, exempt the ServiceAccount muster-controller from it. Until "
        "this is repaired, Muster suspends jobs that slip through after the fact; without the class, pods of "
        "gangs are refused.",
    ),
    Alert(
        "MusterLedgerDrift",
        "max(muster_ledger_drift) > 0",
        "5m",
        "critical",
        "The books of Muster differ from what the API server says",
        f"Quota or nodes may be counted wrong. Keep what {_LOGS} | grep differs prints: the lines 'the ledger "
        "differs from its recomputation' and 'the copy differs from the server' have the difference. Then delete "
        "the leader's pod (its name is the first part of HOLDER in kubectl -n @NAMESPACE@ get lease "
        "muster-controller): the next leader counts again from lists. Please report the lines. 'the copy differs "
        "from the server' without this alert says only that a watch lost events, and that a new list made up for "
        "them.",
    ),
    Alert(
        "MusterDecisionsFail",
        "sum(increase(muster_cycle_failures_total[4m])) > 2",
        "5m",
        "critical",
        "Decisions of Muster fail: nobody is admitted or evicted",
        f"This is a defect of Muster: please report it. Gangs that run go on. {_LOGS} | grep 'decision failed' has "
        "the traceback and, under about, the gang that is the cause, if it is one: pause or delete its job. Else "
        "undo what changed last (quota, nodes). Muster tries again at least each minute, and goes on by itself "
        "when the cause is gone.",
    ),
    Alert(
        "MusterWebhookCertificate",
        "min(muster_webhook_certificate_expiry_timestamp_seconds) - time() < 7 * 86400",
        "1h",
        "critical",
        "The webhook's certificate ends in less than a week",
        "When it has expired, no job with a queue can be created. If the controller issues it, it is renewed at "
        f"two thirds of its 90 days: {_LOGS} | grep 'certificate not looked after' says why it was not (the right "
        "to update the Secret muster-webhook). If cert-manager issues it: kubectl -n @NAMESPACE@ describe "
        "certificate muster-webhook.",
    ),
    Alert(
        "MusterWebCertificate",
        "min(muster_web_certificate_expiry_timestamp_seconds) - time() < 7 * 86400",
        "1h",
        "warning",
        "The certificate of the page and the visibility API ends in less than a week",
        f"It is renewed at two thirds of its 90 days: {_LOGS} | grep -e 'certificate not looked after' -e "
        "'visibility API not looked after' says why it was not (the right to update the Secret muster-web). When "
        "it has expired, the API server no longer asks the visibility API, and commands read places and reasons "
        "from the objects, which say less. Jobs are admitted as before.",
    ),
    Alert(
        "MusterQueueBlocked",
        f'({_waiting(over=_LED)} > 0 or max by (cluster_queue) (muster_workloads{{state="reserved"}}) > 0) '
        'unless on (cluster_queue) max by (cluster_queue) (muster_workloads{state="admitted"}) > 0 '
        "unless on (cluster_queue) max by (cluster_queue) (increase(muster_admitted_workloads_total[30m])) > 0",
        "30m",
        "warning",
        "Gangs wait in {{ $labels.cluster_queue }}, and none of them runs",
        f"{_WHO} lists them, each with its reason, and `muster why JOB -n NAMESPACE` says what to do. Often the "
        "cause is a quota into which no gang fits, a flavor without nodes, an inactive queue "
        "(MusterQueueInactive), or an admission check that never answers or always asks to try again "
        "(status.admissionChecks of the Workload). Gangs that are paused, gated or inactive, and those of stopped "
        "queues, are not counted.",
    ),
    Alert(
        "MusterQueueInactive",
        f"max by (cluster_queue, reason) {_LED.format(_INACTIVE)} > 0",
        "10m",
        "warning",
        "ClusterQueue {{ $labels.cluster_queue }} admits nothing: {{ $labels.reason }}",
        "What it has admitted goes on, and new jobs wait. `muster queues {{ $labels.cluster_queue }}` names in "
        "STATE what is missing or not active: a flavor, a topology, an admission check (see whether its "
        "controller runs), or a cycle of cohorts. If a name is mistyped, `muster lint --cluster` says what was "
        "meant. Queues that are stopped, or being deleted, are not counted.",
    ),
    Alert(
        "MusterGangStarved",
        f"(max by (cluster_queue) {_LED.format('muster_oldest_pending_seconds')} > @LONG_WAIT@) "
        "> on (cluster_queue) 2 * sum by (cluster_queue) (increase(muster_admission_wait_seconds_sum[6h])) "
        "/ on (cluster_queue) sum by (cluster_queue) (increase(muster_admission_wait_seconds_count[6h]))",
        "15m",
        "warning",
        "A gang of {{ $labels.cluster_queue }} waits for {{ $value | humanizeDuration }} while others are admitted",
        "Smaller or more important gangs pass it: it has waited twice as long as those that were admitted in the "
        f"last six hours, on average. {_WHO} lists the waiting gangs in their order, and `muster why JOB -n "
        "NAMESPACE` says what is missing. Give it a higher priority or more quota, or set queueingStrategy: "
        "StrictFIFO if order matters more than use. Not counted are gangs that no other passes: those that "
        "request more than they can ever have, or what is not honoured, and those whose nodes are held by pods of "
        "others (a DaemonSet, for example). If all gangs of a queue wait long, MusterLongWait fires.",
    ),
    Alert(
        "MusterChecksWait",
        f"max by (cluster_queue) {_LED.format('muster_oldest_reserved_seconds')} > 3600",
        "5m",
        "warning",
        "A gang of {{ $labels.cluster_queue }} holds quota and waits for admission checks for "
        "{{ $value | humanizeDuration }}",
        f"{_WHO} lists it as reserved, and `muster why JOB -n NAMESPACE` says which check has not answered, and "
        "which controller should: see whether that controller runs, and its log. What the gang holds is idle: to "
        "give the quota to others meanwhile, pause the job.",
    ),
    Alert(
        "MusterPodsStandStill",
        f"max by (step) {_LED.format('muster_standstill_gangs')} > 0",
        "1m",
        "critical",
        "Pods are {{ $labels.step }} for nobody: {{ $value }} admitted gangs wait for that",
        "Placed: see whether kube-scheduler runs. Made: `muster why JOB -n NAMESPACE` of a job that `muster jobs "
        "-A` lists as starting quotes who refuses the pods, for example somebody's webhook that does not answer: "
        "repair it, or delete its configuration (kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations). If it quotes no refusal, see whether "
        "kube-controller-manager and JobSet's controller run. The gangs are not to blame: they keep their quota, "
        "and are not evicted.",
    ),
    Alert(
        "MusterPodsLinger",
        f"max by (cluster_queue) {_LED.format('muster_oldest_overdue_seconds')} > 600",
        "5m",
        "warning",
        "Pods of an evicted gang of {{ $labels.cluster_queue }} ought to have ended {{ $value | humanizeDuration }} "
        "ago, and have not",
        f"{_WHO} lists it as leaving, and `muster why JOB -n NAMESPACE` names the pods and their nodes. Their "
        "terminationGracePeriodSeconds are over: look for a kubelet that does not answer, or a volume that does "
        "not unmount. If the containers have surely ended, or the machine is off: kubectl delete pod POD -n "
        "NAMESPACE --force. Until the pods are gone, the gang holds its quota and nodes, and others wait.",
    ),
    Alert(
        "MusterLongWait",
        "histogram_quantile(0.95, sum by (cluster_queue, le) (rate(muster_admission_wait_seconds_bucket[6h]))) "
        "> @LONG_WAIT@",
        "10m",
        "info",
        "Gangs of {{ $labels.cluster_queue }} waited {{ $value | humanizeDuration }}",
        "The quota of the queue is small for what its jobs request, or it gets back late what others borrowed. "
        "`muster queues {{ $labels.cluster_queue }} -A` shows what it has, uses, lends and borrows now; the team "
        "dashboard shows since when.",
    ),
    Alert(
        "MusterQuotaAboveCapacity",
        "max by (flavor, resource) (muster_flavor_nominal_quota) "
        "> on (flavor, resource) max by (flavor, resource) (muster_flavor_capacity)",
        "30m",
        "warning",
        "More {{ $labels.resource }} of flavor {{ $labels.flavor }} is promised than its nodes have",
        "Not all teams can have their own quota at once: some wait for nodes within their quota. Either nodes are "
        "cordoned or not ready (`muster nodes`), or the quotas add up to too much (`muster lint --cluster` names "
        "them). Flavors whose nodes an autoscaler creates are marked elastic: true, and are not counted.",
    ),
    Alert(
        "MusterEvictionsRepeat",
        # A node that dies, or a pool that has no stock, evicts many at a time, once: it is asked whether it came again.
        # The longer pair is for gangs that fail in step with the longest backoff between.
        f"{_evicted('1h')} > 5 "
        f"and {_evicted('35m')} > 0 "
        f"and {_evicted('35m', '35m')} > 0 "
        f"or {_evicted('75m')} > 5 "
        f"and {_evicted('75m', '75m')} > 5",
        "10m",
        "warning",
        "Gangs of {{ $labels.cluster_queue }} are evicted again and again: {{ $labels.reason }}",
        "`kubectl get events -A --field-selector reason=EvictedDueTo{{ $labels.reason }}` names the jobs, and "
        "why. PodsReadyTimeout: images, volumes, or pinned nodes that do not take the pods; the Workload's "
        "condition Evicted names them. NodeFailures: nodes that come and go. AdmissionCheck: a check that asks to "
        "try again; see its message in status.admissionChecks of the Workload, and the controller that answers "
        "it.",
    ),
    Alert(
        "MusterForbidden",
        'sum by (verb, resource) (increase(muster_api_requests_total{code="403"}[15m])) > 0',
        "5m",
        "warning",
        "Muster may not {{ $labels.verb }} {{ $labels.resource }}",
        "Its ClusterRole lacks a right, or somebody else's policy refuses its writes. The log quotes the refusal "
        "('write failed', 'not written'; 'list failed' for what it reads), and so does an Event Refused of the job, if "
        "it is about one. Compare the role with that of the chart's version, or install the chart again (helm "
        "upgrade).",
    ),
    Alert(
        "MusterWritesFail",
        "sum by (error) (rate(muster_write_failures_total[5m])) > 0.01",
        "15m",
        "warning",
        "Writes of Muster fail with {{ $labels.error }}",
        f"{_LOGS} | grep -E 'write failed|step failed|not written|not known|not told|too old a version' names the "
        "job or the queue, and quotes the refusal (of Events at level debug). Conflict and NotFound: another "
        "controller writes the same objects; these count only when a write comes too late five times in a row. Invalid "
        "and Forbidden: the API server refuses the writes, often by somebody else's policy. Unavailable and "
        "TimeoutError: it does not answer. Another one, with a traceback, is a defect of Muster: please report it. "
        "Writes of jobs, Workloads, statuses of queues and Events are counted.",
    ),
    Alert(
        "MusterWatchSilent",
        "max by (kind) (muster_watch_age_seconds) > 900 and on () max(max_over_time(muster_leading[5m])) == 1",
        "5m",
        "warning",
        "Nothing heard of {{ $labels.kind }} for 15 minutes",
        "Decisions rest on old objects. Look at the connection to the API server, and at its flow control "
        f"(priority and fairness): {_LOGS} | grep -E 'list failed|watch broke' has its answer. (If it answers "
        "nothing at all, no replica leads, and MusterNotLeading fires.)",
    ),
    Alert(
        "MusterCycleSlow",
        "histogram_quantile(0.99, sum by (le) (rate(muster_cycle_duration_seconds_bucket[10m]))) > 1",
        "15m",
        "warning",
        "One decision in a hundred takes longer than a second",
        "Admissions come late, but are not wrong. Give the controller more CPU, and see how many gangs of "
        "different shape wait: gangs of one shape are tried once.",
    ),
)


def rules() -> list[Object]:
    """The rules of the PrometheusRule."""
    return [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.after,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "description": one.runbook},
        }
        for one in ALERTS
    ]


# ---------------------------------------------------------------- dashboards


@dataclass(frozen=True)
class Panel:
    """`queries`: (expression, legend). Widths are of 24."""

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table", "bargauge"] = "timeseries"
    width: int = 12
    stacked: bool = False


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    about: str
    variables: tuple[tuple[str, str, bool], ...]
    """(name, query of its values, all of them at first)."""
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


_OURS = "{} and on (job, instance) muster_build_info"
"""Of what every program shows, that of Muster's replicas."""
_COUNTED = '{__name__=~"muster_flavor_nominal_quota|muster_cluster_queue_nominal_quota"}'
"""The first is shown of flavors that are not elastic, the second where amounts of queues are."""
_WAITS = "muster_admission_wait_seconds_bucket"
_IDLE = (
    "Devices of gangs that do not all run. reserved: admission checks are open; starting: pods are not all ready yet; "
    "recovering: they were; leaving: evicted, and pods end."
)


def _quantiles(of: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({of}[$__rate_interval])))", name)
        for q, name in ((0.5, "median"), (0.95, "95 %"))
    )


PLATFORM = Dashboard(
    "muster-platform",
    "Muster: fleet and fairness",
    "Whether the controller is well, how full the fleet is, and who has which share of it.",
    (
        ("cohort", "label_values(muster_cluster_queue_weighted_share, cohort)", True),
        ("resource", f"label_values({_COUNTED}, resource)", False),
    ),
    (
        (
            "Is it well",
            (
                Panel("Leaders", "One, always.", (("sum(muster_leading)", ""),), kind="stat", width=4),
                Panel(
                    "Jobs are held",
                    "1: proven again every half minute.",
                    (("min(muster_jobs_held)", ""),),
                    kind="stat",
                    width=4,
                ),
                Panel("Ledger drift", "0, always.", (("max(muster_ledger_drift)", ""),), kind="stat", width=4),
                Panel(
                    "Oldest watch",
                    "How old the picture of the cluster may be.",
                    (("max(muster_watch_age_seconds)", ""),),
                    unit="s",
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Gangs that run",
                    "Admitted now.",
                    (('sum(max by (cluster_queue) (muster_workloads{state="admitted"}))', ""),),
                    kind="stat",
                    width=4,
                ),
                Panel(
                    "Gangs that wait",
                    "Now; without those that are paused, gated, switched off or in a stopped queue.",
                    ((f"sum({_waiting()}) or vector(0)", ""),),
                    kind="stat",
                    width=4,
                ),
            ),
        ),
        (
            "The fleet",
            (
                Panel(
                    "Nodes and promises",
                    "What nodes that are well have, what quota promises, and what is in use. Promised above what there "
                    "is means that teams wait within their quota.",
                    (
                        (
                            'max by (flavor) (muster_flavor_capacity{resource=~"$resource"})',
                            "{{flavor}} nodes",
                        ),
                        (
                            'max by (flavor) (muster_flavor_nominal_quota{resource=~"$resource"})',
                            "{{flavor}} quota",
                        ),
                        (
                            (
                                "sum by (flavor) (max by (cluster_queue, flavor) "
                                '(muster_cluster_queue_used{resource=~"$resource"}))'
                            ),
                            "{{flavor}} used",
                        ),
                    ),
                ),
                Panel(
                    "Used by queue",
                    "Held by admitted gangs.",
                    (
                        (
                            (
                                "sum by (cluster_queue) (max by (cluster_queue, flavor) "
                                '(muster_cluster_queue_used{resource=~"$resource",cohort=~"$cohort"}))'
                            ),
                            "{{cluster_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Hours used",
                    "In a day: amount times hours that admitted gangs held.",
                    (
                        (
                            (
                                "sum by (cluster_queue) "
                                '(increase(muster_cluster_queue_used_seconds_total{resource=~"$resource"}[1d])) / 3600'
                            ),
                            "{{cluster_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Hours used by LocalQueue",
                    "In a day: the twenty that used most.",
                    (
                        (
                            (
                                "topk(20, sum by (queue_namespace, local_queue) "
                                '(increase(muster_local_queue_used_seconds_total{resource=~"$resource"}[1d]))) / 3600'
                            ),
                            "{{queue_namespace}}/{{local_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Devices given away that stand idle",
                    _IDLE,
                    (
                        (
                            (
                                "sum by (state) (rate(muster_cluster_queue_idle_seconds_total"
                                '{resource=~"$resource"}[$__rate_interval]))'
                            ),
                            "{{state}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Hours that stood idle",
                    "In a day, by queue: of devices held by gangs that did not all run.",
                    (
                        (
                            (
                                "sum by (cluster_queue) "
                                '(increase(muster_cluster_queue_idle_seconds_total{resource=~"$resource"}[1d])) / 3600'
                            ),
                            "{{cluster_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Hours that evictions cost",
                    "In a day: of those used, what gangs that were evicted had held. What they lose at most, for some "
                    "had written a checkpoint.",
                    (
                        (
                            (
                                "sum by (cluster_queue, reason) "
                                '(increase(muster_evicted_seconds_total{resource=~"$resource"}[1d])) / 3600'
                            ),
                            "{{cluster_queue}} {{reason}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Asked for by those that wait",
                    "For quota or nodes.",
                    (
                        (
                            'max by (cluster_queue) (muster_pending_requests{resource=~"$resource"})',
                            "{{cluster_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Waiting, by reason",
                    "Why gangs wait; docs/reasons.md says what to do.",
                    (
                        (
                            "sum by (reason) (max by (cluster_queue, reason) (muster_pending_workloads))",
                            "{{reason}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Wait for admission",
                    "Of those that were admitted.",
                    _quantiles(_WAITS),
                    unit="s",
                ),
            ),
        ),
        (
            "Fairness",
            (
                Panel(
                    "Weighted share",
                    "What each queue borrows, in thousandths of what could be lent, divided by its weight: the lowest "
                    "goes next.",
                    (
                        (
                            'max by (cluster_queue) (muster_cluster_queue_weighted_share{cohort=~"$cohort"})',
                            "{{cluster_queue}}",
                        ),
                        ("max by (cohort) (muster_cohort_weighted_share)", "cohort {{cohort}}"),
                    ),
                ),
                Panel(
                    "Borrowed and lent",
                    "Above zero: beyond its own. Below: of its own, in use by others.",
                    (
                        (
                            (
                                "sum by (cluster_queue) (max by (cluster_queue, flavor) "
                                '(muster_cluster_queue_borrowed{resource=~"$resource",cohort=~"$cohort"}))'
                            ),
                            "{{cluster_queue}} borrows",
                        ),
                        (
                            (
                                "-sum by (cluster_queue) (max by (cluster_queue, flavor) "
                                '(muster_cluster_queue_lent{resource=~"$resource",cohort=~"$cohort"}))'
                            ),
                            "{{cluster_queue}} lends",
                        ),
                    ),
                ),
                Panel(
                    "Evictions",
                    "By reason and cause, in an hour.",
                    (
                        (
                            "sum by (reason, cause) (increase(muster_evicted_workloads_total[1h]))",
                            "{{reason}} {{cause}}",
                        ),
                    ),
                ),
                Panel(
                    "Admissions",
                    "In an hour.",
                    (
                        (
                            "sum by (cluster_queue) (increase(muster_admitted_workloads_total[1h]))",
                            "{{cluster_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
            ),
        ),
        (
            "What it costs",
            (
                Panel("Time of a decision", "One cycle.", _quantiles("muster_cycle_duration_seconds_bucket"), unit="s"),
                Panel(
                    "Writes by kind",
                    "To the API server, per second.",
                    (
                        (
                            'sum by (verb, resource) (rate(muster_api_requests_total{verb!="GET"}[$__rate_interval]))',
                            "{{verb}} {{resource}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    "Failed writes",
                    "Per second, by error.",
                    (
                        (
                            "sum by (error) (rate(muster_write_failures_total[$__rate_interval]))",
                            "{{error}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    "Memory",
                    "Of each replica.",
                    ((_OURS.format("process_resident_memory_bytes"), "{{pod}}"),),
                    unit="bytes",
                ),
                Panel(
                    "CPU",
                    "Of each replica, in cores.",
                    ((_OURS.format("rate(process_cpu_seconds_total[$__rate_interval])"), "{{pod}}"),),
                ),
            ),
        ),
    ),
)

_MINE = 'cluster_queue=~"$cluster_queue"'

TEAM = Dashboard(
    "muster-team",
    "Muster: my queue",
    "What a team has, uses, borrows and waits for.",
    (
        ("cluster_queue", "label_values(muster_workloads, cluster_queue)", False),
        (
            "resource",
            'label_values(muster_cluster_queue_nominal_quota{cluster_queue=~"$cluster_queue"}, resource)',
            False,
        ),
    ),
    (
        (
            "Now",
            (
                Panel(
                    "Running",
                    "Gangs that are admitted.",
                    ((f'sum(max by (cluster_queue) (muster_workloads{{{_MINE},state="admitted"}}))', ""),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Waiting",
                    "Gangs in the queue; without those that are paused, gated, switched off or in a stopped queue.",
                    ((f"sum({_waiting(f'{_MINE},')}) or vector(0)", ""),),
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Waits longest",
                    "Since its creation or eviction.",
                    ((f"max(muster_oldest_pending_seconds{{{_MINE}}}) or vector(0)", ""),),
                    unit="s",
                    kind="stat",
                    width=6,
                ),
                Panel(
                    "Weighted share",
                    "Zero: within its own. The lower, the sooner it is its turn to borrow.",
                    ((f"max(muster_cluster_queue_weighted_share{{{_MINE}}})", ""),),
                    kind="stat",
                    width=6,
                ),
            ),
        ),
        (
            "Quota",
            (
                Panel(
                    "Own, used, borrowed, lent",
                    "Used above its own is borrowed, and goes back when its owner comes for it.",
                    tuple(
                        (
                            f'max by (flavor) (muster_cluster_queue_{what}{{{_MINE},resource=~"$resource"}})',
                            f"{{{{flavor}}}} {word}",
                        )
                        for what, word in (
                            ("nominal_quota", "own"),
                            ("used", "used"),
                            ("borrowed", "borrowed"),
                            ("lent", "lent"),
                        )
                    ),
                    width=24,
                ),
                Panel(
                    "Hours used by LocalQueue",
                    "In a day: amount times hours that admitted gangs of each namespace held.",
                    (
                        (
                            (
                                "sum by (queue_namespace, local_queue) (increase("
                                f'muster_local_queue_used_seconds_total{{{_MINE},resource=~"$resource"}}[1d])) / 3600'
                            ),
                            "{{queue_namespace}}/{{local_queue}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Devices held that stand idle",
                    _IDLE,
                    (
                        (
                            (
                                f"sum by (state) (rate(muster_cluster_queue_idle_seconds_total{{{_MINE},"
                                'resource=~"$resource"}[$__rate_interval]))'
                            ),
                            "{{state}}",
                        ),
                    ),
                    stacked=True,
                ),
            ),
        ),
        (
            "Waiting",
            (
                Panel(
                    "By reason",
                    "`muster why JOB` has the numbers.",
                    (
                        (
                            f"sum by (reason) (max by (cluster_queue, reason) (muster_pending_workloads{{{_MINE}}}))",
                            "{{reason}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Wait for admission",
                    "Of those that were admitted.",
                    _quantiles(f"{_WAITS}{{{_MINE}}}"),
                    unit="s",
                ),
                Panel(
                    "Admissions",
                    "In an hour.",
                    ((f"sum(increase(muster_admitted_workloads_total{{{_MINE}}}[1h]))", "admitted"),),
                ),
                Panel(
                    "Evictions",
                    "In an hour, by reason and cause.",
                    (
                        (
                            f"sum by (reason, cause) (increase(muster_evicted_workloads_total{{{_MINE}}}[1h]))",
                            "{{reason}} {{cause}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

DASHBOARDS = (PLATFORM, TEAM)
_SOURCE: Object = {"type": "prometheus", "uid": "${datasource}"}


def grafana(dashboard: Dashboard) -> Object:
    """The model that Grafana imports."""
    panels: list[Object] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append(_placed({"type": "row", "title": title, "collapsed": False}, len(panels), 0, y, 24, 1))
        x, y = 0, y + 1
        for panel in row:
            height = 4 if panel.kind == "stat" else 8
            if x + panel.width > 24:
                x, y = 0, y + height
            panels.append(_placed(_panel(panel), len(panels), x, y, panel.width, height))
            x += panel.width
        y += 4 if row[-1].kind == "stat" else 8
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["muster"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [_variable("datasource", "prometheus", False), *(_asked(*v) for v in dashboard.variables)]
        },
        "panels": panels,
    }


def _variable(name: str, query: str, every: bool) -> Object:
    return {"name": name, "type": "datasource", "query": query, "includeAll": every, "multi": False}


def _asked(name: str, query: str, every: bool) -> Object:
    asked: Object = {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "includeAll": every,
        "multi": every,
    }
    return asked | ({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if every else {})


def _placed(panel: Object, number: int, x: int, y: int, width: int, height: int) -> Object:
    return {"id": number + 1, **panel, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> Object:
    defaults: Object = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }
