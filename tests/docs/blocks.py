"""What README and docs show their reader: every fenced block and every command within a sentence, and who tries it.

    python -m tests.docs.blocks     print each block with what tries it

Nothing has to be marked in a page. What a block is follows from its language:

sh        played by e2e/test_docs.py in the order of the page, on a real control plane
yaml      a manifest or values of the chart: judged by tests/docs/test_blocks.py, and offered to an API server by
          e2e/test_docs.py
text      help of the commands, made from them; their examples are played by e2e/test_docs.py
promql    an alert, made from charts/monitoring.py, or a question of docs/tasks/watch.md: tests/chart/test_monitoring.py
          parses and tries both
scenario  played by the engine, tests/docs/test_fairness_doc.py

ELSEWHERE has the exceptions, each with the test that plays it or the reason why nothing here can. A block that is none
of these fails tests/docs/test_blocks.py.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "charts" / "muster" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
)
COMMANDS = "docs/commands.md"
WATCH = "docs/tasks/watch.md"
_FENCE = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$")
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line of its fence, the heading above it, and its text without indentation."""

    page: str
    line: int
    heading: str
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Elsewhere:
    """A block of a page, known by how it begins: the test that plays it (FILE::FUNCTION), or why there is none."""

    page: str
    begins: str
    by: str = ""
    because: str = ""


_GUIDE = "e2e/test_chart.py::test_the_guide_followed_from_install_to_removal_leaves_no_job_stuck"
_TAKEN_OVER = "e2e/test_chart.py::test_kinds_that_were_applied_before_are_taken_over_and_nothing_is_lost"
_GITOPS = "e2e/test_gitops.py::test_what_is_applied_again_writes_nothing_and_stops_nobody"
_MIGRATE = "e2e/test_migrate.py::test_what_kueue_admitted_goes_on_and_what_it_held_is_admitted_by_muster"
_BACK = "e2e/test_migrate.py::test_from_muster_back_to_kueue"
_KUEUE_MODE = "e2e/test_chart.py::test_in_kueue_mode_a_job_of_kueues_runs_with_what_the_chart_gives"
_RACKS = "e2e/test_docs.py::test_two_racks_before_and_after"
_HOURS = "minutes to hours of a whole machine; .ci/run plays the small forms"

ELSEWHERE = (
    Elsewhere("README.md", "$ make demo", because="40 s of a whole machine; .ci/run plays it"),
    Elsewhere("README.md", "helm install muster charts/muster", by=_GUIDE),
    Elsewhere("docs/architecture.md", "   API server", because="a drawing"),
    Elsewhere("docs/install.md", "helm install muster charts/muster", by=_GUIDE),
    Elsewhere("docs/install.md", "for team in", by=_GUIDE),
    Elsewhere("docs/install.md", "kind create cluster", because="needs Docker"),
    Elsewhere("docs/install.md", "docker build --tag REGISTRY", because="needs Docker, and a registry"),
    Elsewhere("docs/install.md", "python3 -m venv", because="asks a package index; .ci/run plays it"),
    Elsewhere(
        "docs/install.md",
        "kubectl apply --server-side -k config",
        by="e2e/test_hold.py::test_the_installation_is_taken_as_it_is",
    ),
    Elsewhere("docs/install.md", "kubectl wait", by=_GITOPS),
    Elsewhere("docs/install.md", "local hs", because="Argo CD runs it; the conditions are those of e2e/test_gitops.py"),
    Elsewhere("docs/install.md", "kubectl apply --server-side -k crds", by=_TAKEN_OVER),
    Elsewhere("docs/install.md", "helm upgrade muster", by=_GUIDE),
    Elsewhere("docs/install.md", "for queue in", by=_GUIDE),
    Elsewhere("docs/install.md", "helm uninstall", by=_GUIDE),
    Elsewhere("docs/install.md", "held() {", by=_GUIDE),
    Elsewhere("docs/install.md", "for kind in", by=_GUIDE),
    Elsewhere("docs/migrate.md", "kubectl apply --server-side -k crds", by=_TAKEN_OVER),
    Elsewhere("docs/migrate.md", "helm install muster charts/muster", by=_TAKEN_OVER),
    Elsewhere("docs/migrate.md", "muster import --from kueue", by=_MIGRATE),
    Elsewhere("docs/migrate.md", "kubectl -n kueue-system scale", by=_MIGRATE),
    Elsewhere("docs/migrate.md", "kubectl get workloads.kueue.x-k8s.io", by=_MIGRATE),
    Elsewhere("docs/migrate.md", "kubectl -n NAMESPACE patch workloads.kueue.x-k8s.io", by=_MIGRATE),
    Elsewhere("docs/migrate.md", "kubectl -n NAMESPACE patch pod", by=_MIGRATE),
    Elsewhere("docs/migrate.md", "helm install --set apiGroup", by=_KUEUE_MODE),
    Elsewhere("docs/migrate.md", "for queue in", by=_BACK),
    Elsewhere("docs/migrate.md", "helm uninstall muster", by=_KUEUE_MODE),
    Elsewhere("docs/migrate.md", "for kind in jobs.batch", by=_BACK),
    Elsewhere("docs/migrate.md", "kubectl --namespace kueue-system scale", by=_BACK),
    Elsewhere("docs/migrate.md", "muster controller --workloads-only", by="e2e/test_kueue_mode.py::admitter"),
    Elsewhere("docs/page.md", "kubectl --namespace muster-system port-forward", because="needs kubelets"),
    Elsewhere(
        "docs/page.md",
        "kubectl get --raw /apis/visibility",
        by="e2e/test_visibility.py::test_the_api_server_shows_where_pending_gangs_stand",
    ),
    Elsewhere("docs/placement.md", "NODE   FLAVOR", by=_RACKS),
    Elsewhere(
        "docs/tasks/nodes.md",
        "kubectl taint nodes NODE...",
        by="e2e/test_placement.py::test_a_taint_or_a_node_that_is_deleted_moves_whole_gangs_and_fails_nobody",
    ),
    Elsewhere("docs/scale.md", "make bench ", because=_HOURS),
    Elsewhere("docs/scale.md", "make bench-cluster", because=_HOURS),
    Elsewhere(
        "docs/scale.md",
        "make bench-kueue",
        because="hours of a whole machine; e2e/test_kueue_mode.py plays a small load",
    ),
    Elsewhere("docs/scale.md", "make soak", because=_HOURS),
    Elsewhere("docs/scale.md", "#!/bin/sh\nexec muster controller", by="e2e/test_kueue_mode.py::admitter"),
    Elsewhere(
        "docs/tasks/watch.md",
        '{"kind": "Job"',
        by="e2e/test_docs.py::test_a_decision_is_found_again_from_a_line_of_the_log",
    ),
    Elsewhere(
        "docs/tasks/watch.md",
        "kubectl get events",
        by="e2e/test_docs.py::test_a_decision_is_found_again_from_a_line_of_the_log",
    ),
)


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    out = []
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        headings = re.findall(r"(?m)^#+ (.*)$", before)
        inner = textwrap.dedent(found["text"]) if found["indent"] else found["text"]
        line = before.count("\n") + 1
        out.append(Block(page, line, headings[-1] if headings else "", found["language"], inner))
    return tuple(out)


def elsewhere(block: Block) -> Elsewhere | None:
    """The entry of a block in ELSEWHERE."""
    return next((one for one in ELSEWHERE if one.page == block.page and block.text.startswith(one.begins)), None)


def played(page: str) -> tuple[Block, ...]:
    """The blocks of commands that e2e/test_docs.py plays, in order."""
    return tuple(one for one in blocks(page) if one.language == "sh" and elsewhere(one) is None)


def block(page: str, begins: str) -> Block:
    """The one block of a page that begins so."""
    (found,) = [one for one in blocks(page) if one.text.startswith(begins)]
    return found


def examples() -> tuple[tuple[str, str], ...]:
    """(command, line) of each example in the help of the commands."""
    out = []
    for one in blocks(COMMANDS):
        _, _, told = one.text.partition("\n  Examples:\n")
        lines = told.partition("\n\n")[0].splitlines()
        out += [(one.heading, line.strip()) for line in lines if line.strip()]
    return tuple(out)


def spans(page: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each piece of code within a sentence of a page."""
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / page).read_text("utf-8"))
    for found in _SPAN.finditer(text):
        yield text[: found.start()].count("\n") + 1, " ".join(found[1].replace("\\|", "|").split())


def tried_by(block: Block) -> str:
    """What tries a block, or the reason why nothing does; "" when that is not known."""
    if (known := elsewhere(block)) is not None:
        return known.by or f"not run: {known.because}"
    return {
        "sh": "e2e/test_docs.py::test_what_a_page_says_runs",
        "yaml": "tests/docs/test_blocks.py, and a real API server in e2e/test_docs.py",
        "text": "e2e/test_docs.py::test_every_example_of_a_command_runs" if block.page == COMMANDS else "",
        "promql": "tests/chart/test_monitoring.py" if block.page in ("docs/reference/metrics.md", WATCH) else "",
        "scenario": "tests/docs/test_fairness_doc.py",
    }.get(block.language, "")


def main() -> None:
    for page in PAGES:
        for one in blocks(page):
            first = one.text.strip().partition("\n")[0]
            sys.stdout.write(f"{one.where:32} {one.language:8} {first[:60]:60}  {tried_by(one) or 'NOTHING'}\n")


if __name__ == "__main__":
    main()
