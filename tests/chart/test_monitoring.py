"""Alerts and dashboards: parsed by Prometheus' parser, held to the metrics that there are, and tried on a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping

import click
import pytest

from admission.cli import cli
from admission.engine.model import Reason
from admission.web.metrics import FAMILIES, Metrics
from charts.monitoring import ALERTS, DASHBOARDS, Alert, Panel, grafana
from tests.chart.helm import CHART, needs_helm, template
from tests.chart.promql import Scrape, evaluate, names, needs_parser, scrape
from tests.chart.runbooks import logged, quoted
from tests.docs.blocks import WATCH, blocks
from tests.web.test_metrics import Small, played, seen

PUT = {
    "$__rate_interval": "5m",
    "$cluster_queue": "team-a",
    "$cohort": ".*",
    "$resource": "nvidia.com/gpu",
    "@LONG_WAIT@": "3600",
}
NOW = 1_800_000_000.0
OF_THE_PROCESS = {
    f"process_{name}": set[str]() for name in ("resident_memory_bytes", "cpu_seconds_total", "start_time_seconds")
}
KNOWN = {series: set(family.labels) | {"le"} for family in FAMILIES for series in family.series()} | OF_THE_PROCESS
KNOWN["up"] = set()  # Prometheus' own
BY_SCRAPER = {"pod", "instance", "job", "service", "namespace"}


def asked(expression: str) -> str:
    for name, value in PUT.items():
        expression = expression.replace(name, value)
    return expression


PANELS = [pytest.param(panel, id=f"{board.name}: {panel.title}") for board in DASHBOARDS for panel in board.panels]
ASKED = [block.text for block in blocks(WATCH) if block.language == "promql"]
EXPRESSIONS = [
    *((f"{WATCH}: {expr[:30]}", expr) for expr in ASKED),
    *((one.name, one.expr) for one in ALERTS),
    *(
        (f"{board.name}/{panel.title}", expr)
        for board in DASHBOARDS
        for panel in board.panels
        for expr, _ in panel.queries
    ),
]


@pytest.fixture(scope="module")
def run() -> tuple[Scrape, Scrape]:
    """Before and after a run: one gang was admitted, one waits, one was evicted."""
    small = Small()
    before = Metrics(small)
    before.workload(None, seen(small.state.workloads["a", "first"]))
    return scrape(before.text().decode()), scrape(played(Small()).text().decode())


@needs_parser
@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_it_asks_for_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    found = list(names(asked(expression)))
    assert found, where
    for metric, labels in found:
        assert metric in KNOWN, metric
        assert labels - BY_SCRAPER <= KNOWN[metric], (metric, labels)


@needs_parser
@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_shows_something_of_a_run(panel: Panel, run: tuple[Scrape, Scrape]) -> None:
    for expression, legend in panel.queries:
        answer = evaluate(asked(expression), *run, now=NOW)
        assert answer, expression
        assert not any(math.isnan(value) for value in answer.values()), expression
        for labels in answer:
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) - BY_SCRAPER <= {name for name, _ in labels}, legend


@needs_parser
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("query", [query for board in DASHBOARDS for _, query, _ in board.variables])
def test_what_is_chosen_on_a_dashboard_has_values(query: str, run: tuple[Scrape, Scrape], *, elastic: bool) -> None:
    """Also where an autoscaler makes all nodes: of an elastic flavor none are counted."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    assert found is not None
    shown = {key: value for key, value in run[1].items() if not elastic or not key[0].startswith("muster_flavor_")}
    assert [labels for labels in evaluate(asked(found[1]), shown, shown) if found[2] in dict(labels)]


@needs_parser
@pytest.mark.parametrize("expression", [expr for _, expr in EXPRESSIONS if "process_" in expr])
def test_other_programs_of_the_same_prometheus_are_no_replicas(expression: str, run: tuple[Scrape, Scrape]) -> None:
    at = frozenset({("job", "other"), ("instance", "2")})
    before, after = ({**one, **{(name, at): NOW for name in OF_THE_PROCESS}, ("up", at): 0.0} for one in run)
    assert evaluate(asked(expression), before, after, now=NOW) == evaluate(asked(expression), *run, now=NOW)


@needs_parser
@pytest.mark.parametrize("expression", ASKED)
def test_what_a_page_asks_is_answered(expression: str, run: tuple[Scrape, Scrape]) -> None:
    answer = evaluate(expression, *run, now=NOW)
    assert any(value > 0 for value in answer.values()), answer


H100 = frozenset({("flavor", "h100"), ("resource", "nvidia.com/gpu")})
A = ("cluster_queue", "team-a")


def _without(scraped: Scrape, name: str) -> Scrape:
    return {key: value for key, value in scraped.items() if key[0] != name}


def _slow(scraped: Scrape, name: str, bound: float) -> Scrape:
    """All observations in the last buckets."""
    return {
        (metric, labels): 0.0 if metric == f"{name}_bucket" and float(dict(labels)["le"]) <= bound else value
        for (metric, labels), value in scraped.items()
    }


def _with(name: str, value: float, *labels: tuple[str, str]):  # type: ignore[no-untyped-def]
    return lambda scraped: {**scraped, (name, frozenset(labels)): value}


FAULTS: Mapping[str, Callable[[Scrape], Scrape]] = {
    "MusterNotLeading": lambda scraped: _without(scraped, "muster_leading"),
    "MusterRestarts": _with("process_start_time_seconds", NOW - 599),
    "MusterJobsNotHeld": _with("muster_jobs_held", 0, ("mode", "policy")),
    "MusterPodsStandStill": _with("muster_standstill_gangs", 3, ("step", "made")),
    "MusterLedgerDrift": _with("muster_ledger_drift", 1),
    "MusterWebhookCertificate": _with("muster_webhook_certificate_expiry_timestamp_seconds", NOW + 6 * 86400),
    "MusterWebCertificate": _with("muster_web_certificate_expiry_timestamp_seconds", NOW + 6 * 86400),
    "MusterDecisionsFail": _with("muster_cycle_failures_total", 6 + 1),
    "MusterQueueInactive": _with("muster_cluster_queue_inactive", 1, A, ("reason", "FlavorNotFound")),
    "MusterQueueBlocked": lambda scraped: {
        **_without(scraped, "muster_admitted_workloads_total"),
        ("muster_workloads", frozenset({A, ("state", "admitted")})): 0.0,
    },
    "MusterGangStarved": _with("muster_oldest_pending_seconds", 3601, A),
    "MusterChecksWait": _with("muster_oldest_reserved_seconds", 3601, A),
    "MusterPodsLinger": _with("muster_oldest_overdue_seconds", 601, A),
    "MusterLongWait": lambda scraped: _slow(scraped, "muster_admission_wait_seconds", 4000),
    "MusterQuotaAboveCapacity": _with("muster_flavor_capacity", 27, *H100),
    "MusterForbidden": _with(
        "muster_api_requests_total",
        1,
        ("verb", "PATCH"),
        ("resource", "workloads"),
        ("subresource", "status"),
        ("code", "403"),
    ),
    "MusterWritesFail": _with("muster_write_failures_total", 5, ("error", "Invalid")),  # of one job, in 5 minutes
    "MusterWatchSilent": _with("muster_watch_age_seconds", 901, ("kind", "Node")),
    "MusterCycleSlow": lambda scraped: _slow(scraped, "muster_cycle_duration_seconds", 2.5),
}


@needs_parser
@pytest.mark.parametrize("alert", [one for one in ALERTS if one.name in FAULTS], ids=lambda alert: alert.name)
def test_an_alert_is_silent_on_a_healthy_run_and_fires_on_its_fault(alert: Alert, run: tuple[Scrape, Scrape]) -> None:
    before, after = run
    healthy = {
        **after,
        ("muster_flavor_capacity", H100): 64.0,
        ("muster_flavor_nominal_quota", H100): 28.0,
        ("process_start_time_seconds", frozenset()): NOW - 86400,
    }
    assert evaluate(asked(alert.expr), before, healthy, seconds=300, now=NOW) == {}
    told = evaluate(asked(alert.expr), before, FAULTS[alert.name](healthy), seconds=300, now=NOW)
    assert told
    for labels in told:
        asked_of = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.runbook))
        assert asked_of <= {name for name, _ in labels}


@needs_parser
@pytest.mark.parametrize(
    ("ages", "fires"), [((86400, 599), True), ((86400, 601), False), ((599, None), True)], ids=["one", "none", "down"]
)
def test_a_replica_that_ends_again_and_again_is_told_though_others_do_not(
    run: tuple[Scrape, Scrape], ages: tuple[int, int | None], *, fires: bool
) -> None:
    """And though it is down at the moment (None), or another program of the same Prometheus has just begun."""
    (alert,) = [one for one in ALERTS if one.name == "MusterRestarts"]
    began = {}
    for number, age in enumerate(ages):
        at = frozenset({("job", "muster"), ("instance", str(number))})
        if age is not None:
            began |= {("process_start_time_seconds", at): NOW - age, ("muster_build_info", at): 1.0}
    other = {("process_start_time_seconds", frozenset({("job", "other"), ("instance", "2")})): NOW - 1}
    down = {} if ages[1] is None else began
    assert bool(evaluate(asked(alert.expr), began | other, down | other, now=NOW)) == fires


def test_how_much_memory_a_job_takes_is_told_as_it_was_measured() -> None:
    """By the alert as by the page: whoever raises the limit goes by one of them."""
    page = (CHART.parents[1] / "docs" / "scale.md").read_text("utf-8")
    asked = r"(\d+) MB, and for each Workload ([\d.]+) KB, .* each pod ([\d.]+) KB and each Job ([\d.]+) KB"
    measured = re.search(asked, page)
    assert measured is not None
    base, workload, pod, job = map(float, measured.groups())
    (alert,) = [one for one in ALERTS if one.name == "MusterRestarts"]
    told = re.search(r"some (\d+) MB, and (\d+) KB for each job with one pod", alert.runbook)
    assert told is not None
    assert [float(one) for one in told.groups()] == [base, math.ceil(workload + pod + job)]


@needs_parser
@pytest.mark.parametrize(
    "name",
    [
        "MusterQueueBlocked",
        "MusterGangStarved",
        "MusterChecksWait",
        "MusterPodsLinger",
        "MusterJobsNotHeld",
        "MusterPodsStandStill",
        "MusterQueueInactive",
    ],
)
def test_an_alert_goes_on_while_another_comes_to_lead(name: str, run: tuple[Scrape, Scrape]) -> None:
    """Else each change of leaders would end it, and tell of it anew when its time is over again."""
    (alert,) = [one for one in ALERTS if one.name == name]
    fault = FAULTS[name](run[1])
    by_the_leader = (
        "muster_pending",
        "muster_oldest",
        "muster_jobs_held",
        "muster_standstill",
        "muster_cluster_queue_inactive",
    )
    shown = {key: value for key, value in fault.items() if key[0].startswith(by_the_leader)}
    nobody_leads = {key: value for key, value in fault.items() if key not in shown}
    nobody_leads["muster_leading", frozenset()] = 0.0
    told = evaluate(asked(alert.expr), run[0] | shown, nobody_leads)
    assert told == evaluate(asked(alert.expr), run[0], fault) != {}


@needs_parser
@pytest.mark.parametrize(
    ("admitted", "waited", "fires"),
    [(10, 10 * 600.0, True), (10, 10 * 3500.0, False), (0, 0.0, False)],
    ids=["others pass it", "all wait so long", "nobody is admitted"],
)
def test_who_waits_no_longer_than_others_is_not_starved(
    run: tuple[Scrape, Scrape], admitted: int, waited: float, *, fires: bool
) -> None:
    """A queue with more work than quota has a line, and its last has waited as long as its first did."""
    (alert,) = [one for one in ALERTS if one.name == "MusterGangStarved"]
    wait = "muster_admission_wait_seconds"
    since = {(f"{wait}_{what}", frozenset({A})): 0.0 for what in ("sum", "count")}
    later = {
        (f"{wait}_sum", frozenset({A})): waited,
        (f"{wait}_count", frozenset({A})): float(admitted),
        ("muster_oldest_pending_seconds", frozenset({A})): 3700.0,
    }
    assert bool(evaluate(asked(alert.expr), {**run[0], **since}, {**run[1], **later})) == fires


def _only(count: int, reason: str, reserved: int) -> Callable[[Scrape], Scrape]:
    """Gangs of team-a that wait for this reason, and that hold a reservation; nobody else, and none that runs."""

    def change(scraped: Scrape) -> Scrape:
        left = _without(_without(scraped, "muster_pending_workloads"), "muster_admitted_workloads_total")
        return {
            **left,
            ("muster_pending_workloads", frozenset({A, ("reason", reason)})): float(count),
            ("muster_workloads", frozenset({A, ("state", "pending")})): float(count),
            ("muster_workloads", frozenset({A, ("state", "reserved")})): float(reserved),
            ("muster_workloads", frozenset({A, ("state", "admitted")})): 0.0,
        }

    return change


@needs_parser
@pytest.mark.parametrize(
    ("pending", "reason", "reserved", "fires"),
    [
        (1, "WaitingForQuota", 0, True),
        (1, "Misconfigured", 0, True),
        (1, "Suspended", 0, True),
        (0, "WaitingForQuota", 1, True),
        (1, "Deactivated", 0, False),
        (1, "OnHold", 0, False),
        (1, "AdmissionGated", 0, False),
        (1, "Deactivated", 1, True),
    ],
)
def test_a_queue_is_blocked_by_who_could_run_and_not_by_who_is_kept_back(
    run: tuple[Scrape, Scrape], pending: int, reason: str, reserved: int, *, fires: bool
) -> None:
    (alert,) = [one for one in ALERTS if one.name == "MusterQueueBlocked"]
    now = _only(pending, reason, reserved)(run[1])
    told = evaluate(asked(alert.expr), now, now)
    assert bool(told) == fires
    assert reason in {one.value for one in Reason}


def test_each_alert_says_what_to_do() -> None:
    assert len({one.name for one in ALERTS}) == len(ALERTS)
    for one in ALERTS:
        assert one.name.startswith("Muster")
        assert len(one.runbook) > 80
        assert re.fullmatch(r"\d+[mh]", one.after)
        # Of several pods kubectl ends at the first that has no (earlier) log, unless it is told to go on.
        assert one.runbook.count("logs -l ") == one.runbook.count("--ignore-errors")


OF_OTHERS = {"database space exceeded"}
"""Quoted, and said by the API server."""


def test_what_runbooks_quote_of_the_log_is_logged() -> None:
    events = logged()
    words = {word for alert in ALERTS for word in quoted(alert.name)} - OF_OTHERS
    assert len(words) > 10
    assert not [word for word in words if not any(word in event for event in events)]


def test_the_commands_of_runbooks_are_understood() -> None:
    assert isinstance(cli, click.Group)
    asked = {
        line
        for alert in ALERTS
        for line in re.findall(r"`muster ([^`]+)`", re.sub(r"\{\{.*?\}\}", "NAME", alert.runbook))
    }
    assert len(asked) > 5
    for line in asked:
        name, *arguments = line.split()
        with click.Context(cli, **cli.context_settings) as context:  # commands remember their help option
            command = cli.get_command(context, name)
            assert command is not None, line
            command.make_context(name, arguments, context)  # raises where it is not understood


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.name)
def test_a_dashboard_is_laid_out_without_overlap(board) -> None:  # type: ignore[no-untyped-def]
    made = grafana(board)
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    variables = {one["name"] for one in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(made["panels"])))
    assert used <= variables
    assert {name for name, _, _ in board.variables} <= used


@needs_helm
def test_the_chart_carries_them() -> None:
    objects = template({"metrics": {"rules": {"enabled": True, "longWaitSeconds": 7200}}}, namespace="elsewhere")
    (rules,) = [one for one in objects if one["kind"] == "PrometheusRule"]
    (group,) = rules["spec"]["groups"]
    assert [one["alert"] for one in group["rules"]] == [one.name for one in ALERTS]
    assert "@" not in json.dumps(group)
    assert "> 7200" in json.dumps(group)
    assert "-n elsewhere get pods" in json.dumps(group)
    (boards,) = [one for one in objects if one["metadata"]["name"] == "muster-dashboards"]
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        f"{board.name}.json": grafana(board) for board in DASHBOARDS
    }
    files = {path.name: json.loads(path.read_text()) for path in (CHART / "files" / "dashboards").iterdir()}
    assert files == {name: json.loads(text) for name, text in boards["data"].items()}
