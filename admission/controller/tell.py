"""The `answers` and the findings of the linter, as people read them on a terminal.

Plain text where nobody watches (no TTY), colours and bars where somebody does; the words are the same. Times are shown
as ages beside `now`, which is that of the API server in ms since the epoch.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from admission import quantity
from admission.controller.answers import Jobs, NodeRow, Nodes, QueueRow, Queues, Room, Standing, State, Sums, Why
from admission.controller.line import Lack
from admission.controller.printable import printable
from admission.jobs.kinds import DELETED, ENDED

if TYPE_CHECKING:
    from admission.api.lint import Finding
    from admission.controller.change import Changes
    from admission.controller.whatif import Foreseen, Outlook

_BAR = 20
_COLOUR = {
    State.WAITING: "yellow",
    State.HELD: "yellow",
    State.PAUSED: "yellow",
    State.RESERVED: "cyan",
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.RELEASED: "dim",
    State.LEAVING: "magenta",
    State.FINISHED: "dim",
    State.UNMANAGED: "dim",
}
_WORDS = {
    State.UNMANAGED: "is not governed by Muster",
    State.HELD: "is held, and not in the queue yet",
    State.WAITING: "waits",
    State.PAUSED: "is paused by its owner",
    State.RESERVED: "has its quota, and waits for admission checks",
    State.STARTING: "is admitted; its pods are starting",
    State.RUNNING: "runs",
    State.RELEASED: "runs without Muster",
    State.LEAVING: "was evicted; its pods are leaving",
    State.FINISHED: "has finished",
}

_LEAVES = {DELETED: "was deleted", **dict(zip(ENDED, ("has ended", "has failed"), strict=True))}


def _failed(seen: Standing) -> bool:
    return seen.state is State.FINISHED and seen.reason == "Failed"


class _Console(Console):
    """Prints text as it is written: [words] are no markup, and the control characters of others are left out."""

    def __init__(self, **given: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            own = part.control  # rich's: it moves the cursor
            yield part if own or part.text.isprintable() else Segment(printable(part.text), part.style)


def console(*, width: int | None = None, height: int | None = None) -> Console:
    """Of standard output. Without a TTY: no colours, and lines as long as they are."""
    found = _Console(soft_wrap=False, width=width, height=height)
    if not found.is_terminal and width is None:
        return _Console(no_color=True, width=10_000, legacy_windows=False)
    return found


def show(to: Console, what: RenderableType) -> None:
    """Print; where nobody watches, without the spaces that fill lines up."""
    if to.is_terminal:
        to.print(what)
        return
    with to.capture() as captured:
        to.print(what)
    to.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
    to.file.flush()


def written(form: str, answer: Any, names: Iterable[str]) -> str | None:
    """The answer for programs: json, yaml or name; None for the forms that people read."""
    if form == "json":
        return json.dumps(answer, indent=2)
    if form == "yaml":
        return yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=120).rstrip()
    if form == "name":
        return "\n".join(names)
    return None


def age(at: int, now: int) -> str:
    """A span as kubectl shows it: 42s, 5m, 3h20m, 2d."""
    seconds = max(0, now - at) // 1000
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    if seconds < 48 * 3600:
        return f"{seconds // 3600}h{seconds // 60 % 60}m" if seconds < 8 * 3600 else f"{seconds // 3600}h"
    return f"{seconds // 86400}d"


def amounts(given: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{short(name, amount)} {name}" for name, amount in given)


def short(resource: str, amount: int) -> str:
    return quantity.words(resource, amount)[0]


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold", no_wrap=False)
    return table


def _facts() -> Table:
    """Of rows that each say what they are."""
    facts = _table("", "")
    facts.show_header = False
    return facts


def _hidden(hidden: Sequence[str]) -> list[RenderableType]:
    return [Text(f"You may not see: {', '.join(hidden)}.", style="dim")] if hidden else []


def _first_of_all(leaderless: str, silent: str = "") -> list[RenderableType]:
    said = [Text(leaderless, style="bold red")] if leaderless else [Text(silent, style="yellow")] if silent else []
    return [*said, Text("")] if said else []


# ---------------------------------------------------------------- why


def why(answer: Why, now: int) -> RenderableType:
    seen = answer.standing
    out: list[RenderableType] = _first_of_all(answer.leaderless, answer.silent)
    word = ("has failed", "red") if _failed(seen) else (_WORDS[seen.state], _COLOUR[seen.state])
    if seen.state is State.LEAVING and seen.reason in _LEAVES:
        word = (f"{_LEAVES[seen.reason]}; its pods are leaving", _COLOUR[seen.state])
    head = Text.assemble((f"{seen.kind} {seen.namespace}/{seen.name} ", "bold"), word)
    if seen.since and seen.state is State.FINISHED:
        head.append(f", {age(seen.since, now)} ago")
    elif seen.since and seen.state is not State.UNMANAGED:
        head.append(f", for {age(seen.since, now)}")
    if seen.state in (State.STARTING, State.RUNNING) and seen.ready is not None:
        head.append(f" ({seen.ready} of {seen.given} pods ready)")
    out.append(head)
    facts = _facts()
    if seen.queue:
        place = f", place {seen.position} of {seen.waiting}" if seen.position else ""
        target = f" -> ClusterQueue {seen.cluster_queue}" if seen.cluster_queue else ""
        facts.add_row("queue", f"LocalQueue {seen.queue}{target}{place}")
    if seen.requests:
        facts.add_row("asks for", f"{amounts(seen.requests)} in {seen.pods} pod{'' if seen.pods == 1 else 's'}")
    if seen.given is not None and seen.given < seen.pods:
        facts.add_row("has", f"room for {seen.given} of {seen.pods} pods at a time, for it may start with less")
    if seen.reason and seen.state in (State.WAITING, State.HELD, State.PAUSED):
        facts.add_row("reason", seen.reason + (f" ({seen.detail})" if seen.detail else ""))
    if seen.message:
        facts.add_row("because" if seen.state is not State.FINISHED else "result", seen.message)
    if answer.so_far:
        facts.add_row("so far", answer.so_far)
    for place_ in seen.where:
        facts.add_row(f"pods {place_.pod_set}", _where(place_.count, place_.flavors, place_.nodes, wide=True))
    for name, state, message in answer.checks:
        facts.add_row(f"check {name}", f"{state}{f': {message}' if message else ''}")
    if facts.row_count:
        out += [Text(""), facts]
    if answer.unready:
        leaving = seen.state is State.LEAVING
        out += [Text(""), Text("Pods that are still there" if leaving else "Pods that are not ready", style="bold")]
        pods = _table("PODS", "REASON", "WHICH", "", right=("PODS",))
        for group in answer.unready:
            which = ", ".join(group.pods[:3]) + (f" and {len(group.pods) - 3} more" if len(group.pods) > 3 else "")
            on = f" on {', '.join(group.nodes[:3])}" if group.nodes else ""
            more = " ..." if len(group.nodes) > 3 else ""
            pods.add_row(str(group.count), Text(group.reason, style="yellow"), which + on + more, group.message)
        out.append(pods)
    if answer.means or answer.owner or answer.platform:
        out += [Text(""), Text("What it means, and what would have to change", style="bold")]
        out += [Text(f"  {line}") for line in (answer.means,) if line]
        todo = _facts()
        if answer.owner:
            todo.add_row("  you:", answer.owner)
        if answer.platform:
            todo.add_row("  platform team:", answer.platform)
        out.append(todo)
    if answer.lacks:
        out += [Text(""), Text("What it lacks now", style="bold"), _lacks_table(answer.lacks)]
    elif answer.room:
        out += [Text(""), Text(f"Quota of ClusterQueue {seen.cluster_queue} now", style="bold")]
        out.append(_room_table(answer.room))
    if answer.history:
        out += [Text(""), Text("History", style="bold")]
        table = _table("AGE", "WHAT", "")
        for event in answer.history:
            times = f" (x{event.count})" if event.count > 1 else ""
            table.add_row(
                age(event.at, now), Text(event.reason + times, style="red" if event.warning else ""), event.message
            )
        out.append(table)
    if answer.hidden:
        out += [Text(""), *_hidden(answer.hidden)]
    return Group(*out)


def _lacks_table(lacks: Sequence[Lack]) -> Table:
    table = _table("FLAVOR", "OF", "ASKED", "FREE NOW", "OWN", "USED", "ENDS AT", right=("ASKED", "FREE NOW"))
    for lack in lacks:
        if lack.pod_set:
            table.add_row(
                lack.flavor, f"nodes for pods {lack.pod_set}", str(lack.pods), str(lack.placeable), "", "", ""
            )
        else:
            said = (lack.requested, lack.available, lack.nominal, lack.used)
            asked, *there = (quantity.parse(lack.resource, one or "0") for one in said)
            numbers = quantity.words(lack.resource, asked, *there, up=(asked,))
            table.add_row(lack.flavor, f"quota of {lack.resource}", *numbers, lack.limited_by)
    return table


def _room_table(rooms: Sequence[Room]) -> Table:
    table = _table(
        "FLAVOR", "RESOURCE", "ASKED", "FREE NOW", "AT MOST", "OWN", "USED", "VERDICT", right=("ASKED", "FREE NOW")
    )
    for room in rooms:
        missing = max(0, room.asked - room.free)
        *cells, short_of = quantity.words(
            room.resource, room.asked, room.free, room.most, room.nominal, room.used, missing, up=(room.asked, missing)
        )
        ends = f": ends at {room.limited_by}" if room.limited_by else ""
        if room.least > room.most:
            verdict = Text(f"can never fit{ends}", style="red")
        elif room.asked > room.most:
            verdict = Text(f"fits with fewer pods alone{ends}", style="yellow")
        elif room.asked > room.free:
            verdict = Text(
                f"{short_of} short" + (f", ends at {room.limited_by}" if room.limited_by else ""), style="yellow"
            )
        else:
            verdict = Text("quota is there", style="green")
        table.add_row(room.flavor, room.resource, *cells, verdict)
    return table


def _where(count: int, flavors: Sequence[str], nodes: Sequence[tuple[str, int]], *, wide: bool) -> str:
    on = ", ".join(flavors)
    if not nodes:
        return f"{count} on {on}" if on else str(count)
    most = len(nodes) if wide else 2
    named = ", ".join(f"{node}x{pods}" if pods > 1 else node for node, pods in nodes[:most])
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return f"{named}{more}" + (f" ({on})" if on and wide else "")


# ---------------------------------------------------------------- queues


def bar(room: Room, width: int = _BAR) -> Text:
    """Used of own quota as `#`, what is lent as `-`, and what is borrowed, beyond the end, as `+`."""
    if room.nominal <= 0:
        return Text("+" * (width // 4) if room.borrowed else "", style="magenta")
    scale = max(room.nominal + room.borrowed, room.used) / width
    used = round(min(room.used - room.borrowed, room.nominal) / scale)
    lent = min(round(room.lent / scale), max(0, round(room.nominal / scale) - used))
    own = round(room.nominal / scale)
    borrowed = max(1, round(room.borrowed / scale)) if room.borrowed else 0
    return Text.assemble(
        ("#" * used, "green"),
        ("." * max(0, own - used - lent), "dim"),
        ("-" * lent, "yellow"),
        ("|", "dim"),
        ("+" * borrowed, "magenta"),
    )


def queues(answer: Queues, form: str = "text") -> RenderableType:
    wide = form == "wide"
    table = _table("NAME", "FLAVOR", "RESOURCE", "USED", "OWN", "", "WAIT", "RUN", right=("USED", "OWN", "WAIT", "RUN"))
    for column in ("BORROWED", "LENT", "FREE", "SHARE") if wide else ():
        table.add_column(column, justify="right")
    table.add_column("STATE")
    for row in answer.rows:
        first = True
        for room in row.room or (None,):
            cells: list[Any] = [_label(row) if first else ""]
            if room is None:
                cells += ["", "", "", "", ""]
            else:
                used, own = quantity.words(room.resource, room.used, room.nominal)
                cells += [room.flavor, room.resource, used, own if row.kind != "LocalQueue" else ""]
                cells.append(bar(room) if row.kind != "LocalQueue" else "")
            cells += [str(row.pending) if first else "", str(row.admitted) if first else ""]
            if wide:
                many = (room.borrowed, room.lent, room.free) if room is not None and row.kind != "LocalQueue" else ()
                cells += [short(room.resource, n) for n in many] if room is not None and many else ["", "", ""]
                cells.append(_share(row.share) if row.share is not None and first else "")
            cells.append(_state(row) if first else "")
            table.add_row(*cells)
            first = False
    return Group(*_first_of_all(answer.leaderless, answer.unheld), table, *_hidden(answer.hidden))


def _share(thousandths: int) -> str:
    """Who borrows with weight 0 comes after everybody else."""
    return "infinite" if thousandths >= quantity.INT64_MAX else f"{thousandths / 1000:.3f}"


def _label(row: QueueRow) -> Text:
    name = f"{row.namespace}/{row.name}" if row.namespace else row.name
    style = {"Cohort": "bold", "ClusterQueue": "", "LocalQueue": "dim"}[row.kind]
    mark = {"Cohort": "", "ClusterQueue": "", "LocalQueue": "> "}[row.kind]
    return Text("  " * row.depth + mark + name, style=style)


def _state(row: QueueRow) -> Text:
    if row.stopped:
        return Text("stopped", style="yellow")
    if not row.active:
        return Text(f"inactive: {row.why_not}" if row.why_not else "inactive", style="red")
    return Text("")


# ---------------------------------------------------------------- jobs


def jobs(answer: Jobs, now: int, form: str = "text") -> RenderableType:
    wide, namespaces = form == "wide", not answer.namespace
    table = _table(*(("NAMESPACE",) if namespaces else ()), "NAME", "QUEUE", "STATE", "PLACE", "AGE", "REASON", "WHERE")
    if wide:
        for column in ("PODS", "ASKS FOR", "PRIORITY", "BECAUSE"):
            table.add_column(column, overflow="fold")
    for row in answer.rows:
        cells: list[Any] = [row.namespace] if namespaces else []
        cells += [
            job_name(row),
            row.queue,
            Text("failed", style="red") if _failed(row) else Text(row.state.value, style=_COLOUR[row.state]),
            f"{row.position}/{row.waiting}" if row.position else "",
            age(row.created, now),
            (row.detail or row.reason) if row.state in (State.WAITING, State.HELD, State.PAUSED, State.LEAVING) else "",
            "; ".join(_where(place.count, place.flavors, place.nodes, wide=wide) for place in row.where)
            if row.state is not State.FINISHED
            else "",
        ]
        if wide:
            ready = f"{row.ready}/{row.given}" if row.ready is not None else str(row.pods)
            cells += [ready, amounts(row.requests), str(row.priority), row.message]
        table.add_row(*cells)
    head = _first_of_all(answer.leaderless, answer.silent)
    if answer.rows:
        return Group(*head, table, *_hidden(answer.hidden))
    if answer.hidden and namespaces:
        return Group(*head, *_hidden(answer.hidden), Text("Name a namespace with -n to see its jobs."))
    where = f" in namespace {answer.namespace}: -A shows those of all namespaces" if answer.namespace else ""
    return Group(*head, Text(f"No jobs that name a queue{where}."), *_hidden(answer.hidden))


def sums(answer: Sums) -> RenderableType:
    head = {"namespace": "NAMESPACE", "queue": "QUEUE"}.get(answer.by, answer.by)
    table = _table(
        head, "HOLD", "WAIT", "RESOURCE", "HELD", "IDLE", "ASKED", right=("HOLD", "WAIT", "HELD", "IDLE", "ASKED")
    )
    for row in answer.rows:
        first = [row.who or "(without)", str(row.holding), str(row.waiting)]
        for one in row.amounts or (None,):
            many = () if one is None else quantity.words(one.resource, one.held, one.idle, one.asked)
            table.add_row(*first, *(("", "", "", "") if one is None else (one.resource, *many)))
            first = ["", "", ""]
    rows = [table] if answer.rows else [Text("No jobs hold quota or wait for it.")]
    return Group(*_first_of_all(answer.leaderless), *rows, *_hidden(answer.hidden))


def job_name(row: Standing) -> str:
    return f"{row.kind.lower()}/{row.name}"


# ---------------------------------------------------------------- nodes


def nodes(answer: Nodes, form: str = "text") -> RenderableType:
    table = _table("NODE", "FLAVOR", "RESOURCE", "FREE", "OF", "", "WHO", right=("FREE", "OF"))
    for row in answer.rows:
        free = dict(row.free)
        first = True
        for resource, whole in row.capacity or (("", 0),):
            held = [(who, n) for who, parts in row.gangs if (n := dict(parts).get(resource, 0))]
            name = Text(row.name + _ails(row), style=_node_colour(row))
            left = free.get(resource, 0)
            said, of, *parts_said = quantity.words(resource, left, whole, *(n for _, n in held))
            table.add_row(
                name if first else "",
                ", ".join(row.flavors) if first else "",
                resource,
                *((said, of) if resource else ("", "")),
                _cells(whole, left),
                ", ".join(f"{who} {part}" for (who, _), part in zip(held, parts_said, strict=True)),
            )
            first = False
    out: list[RenderableType] = [table]
    if answer.largest:
        out += [Text(""), Text("Largest gang that fits now, quota aside", style="bold")]
        sizes = _table("FLAVOR", "PODS", "OF", right=("PODS",))
        for size in answer.largest:
            sizes.add_row(size.flavor or "any node", str(size.pods), f"{amounts(size.per_pod)} each")
        out.append(sizes)
    return Group(*out, *_hidden(answer.hidden))


def _ails(row: NodeRow) -> str:
    """Why a node, or a part of it, takes no gang."""
    said = ["not ready"] if not row.ready else ["cordoned"] if row.cordoned else []
    said += [f"taint {key}" for key in row.taints]
    said += [f"{short(resource, amount)} {resource} not allocatable" for resource, amount in row.lost]
    for resource, amount, other in row.renamed:
        since = f"count as {other} now" if other else "are of a DeviceClass that is gone"
        said.append(f"{short(resource, amount)} {resource} {since}")
    return f" ({', '.join(said)})" if said else ""


def _node_colour(row: NodeRow) -> str:
    return "red" if not row.ready else "yellow" if row.cordoned or row.taints or row.lost else ""


def _cells(whole: int, free: int) -> Text:
    """One cell per device where they are few, else a bar of ten."""
    if whole <= 0:
        return Text("")
    width = whole if whole <= 16 else 10
    used = round((whole - max(0, free)) * width / whole)
    return Text.assemble(("#" * used, "green"), ("." * (width - used), "dim"))


# ---------------------------------------------------------------- lint


def findings(found: Sequence[Finding]) -> RenderableType:
    from admission.api.lint import Severity

    colour = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
    out: list[RenderableType] = []
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in found:
        alike.setdefault((finding.file, finding.subject, finding.rule, finding.message, finding.fix), []).append(
            finding
        )
    for finding, *others in alike.values():
        head = Text.assemble(
            (f"{finding.place()}: ", "bold"),
            (f"{finding.severity.value}: ", colour[finding.severity]),
            f"{finding.subject}: " if finding.subject else "",
            finding.message,
            (f" [{finding.rule}]", "dim"),
        )
        out += [head, Text(f"    fix: {finding.fix}" + (f" ({finding.path})" if finding.path else ""), style="dim")]
        if others:
            places = [f"line {other.line}" if other.line else other.path for other in others]
            shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
            out.append(Text(f"    the same at {shown}", style="dim"))
    counted = ", ".join(
        f"{count} {severity.value}{'s' if count != 1 and severity is not Severity.INFO else ''}"
        for severity in Severity
        if (count := sum(f.severity is severity for f in found))
    )
    out.append(Text(counted or "Nothing found.", style="bold"))
    return Group(*out)


# ---------------------------------------------------------------- what was changed, or would be


def changes(answer: Changes) -> RenderableType:
    colour = {"created": "green", "changed": "yellow", "unchanged": "dim", "refused": "red", "skipped": "dim"}
    out: list[RenderableType] = []
    for row in answer.rows:
        where = f" -n {row.namespace}" if row.namespace else ""
        head = Text.assemble(f"{row.subject}{where} ", (row.did.value, colour[row.did.value]))
        if row.message:
            head.append(f": {row.message}")
        out.append(head)
        out += [Text(f"    {line}", style="dim") for line in row.lines]
    if not answer.rows:
        out.append(Text("Nothing to do."))
    refused = [row.subject for row in answer.rows if row.did.value == "refused"]
    named = ", ".join(refused[:3]) + (f" and {len(refused) - 3} more" if len(refused) > 3 else "")
    if answer.dry_run and refused:
        out.append(Text(f"Nothing was changed: {len(refused)} refused ({named}).", style="bold"))
    elif refused:
        out.append(Text(f"{len(refused)} refused ({named}); the rest was done, and can be repeated.", style="bold"))
    elif answer.dry_run:
        out.append(Text("Dry run: nothing was changed.", style="bold"))
    return Group(*_first_of_all(answer.leaderless), *out, *_hidden(answer.hidden))


def foreseen(answers: Sequence[Foreseen], form: str = "text") -> RenderableType:
    words = {
        "starts": ("would start now", "green"),
        "waits": ("would wait", "yellow"),
        "refused": ("would be refused", "red"),
        "unknown": ("cannot be foreseen", "yellow"),
        "unmanaged": ("is not governed by Muster", "dim"),
    }
    out: list[RenderableType] = []
    for seen in answers:
        word, colour = words[seen.answer.value]
        out.append(Text.assemble((f"{seen.kind} {seen.namespace}/{seen.name} ", "bold"), (word, colour)))
        facts = _facts()
        if seen.queue:
            place = f", place {seen.position}" if seen.position else ""
            target = f" -> ClusterQueue {seen.cluster_queue}" if seen.cluster_queue else ""
            facts.add_row("  queue", f"LocalQueue {seen.queue}{target}{place}")
        if seen.requests:
            facts.add_row("  asks for", amounts(seen.requests))
        for place_ in seen.where:
            placed = _where(place_.count, place_.flavors, place_.nodes, wide=True)
            facts.add_row(f"  pods {place_.pod_set}", placed)
        if seen.reason:
            facts.add_row("  reason", seen.reason + (f" ({seen.detail})" if seen.detail else ""))
        if seen.message:
            facts.add_row("  because", seen.message)
        if seen.evicts:
            facts.add_row("  evicts", ", ".join(seen.evicts))
        for check in seen.checks:
            facts.add_row("  check", check)
        for said in seen.without:
            facts.add_row("  goes on without", said)
        for who, what in (("  you", seen.owner), ("  platform team", seen.platform)):
            if what:
                facts.add_row(who, what)
        if form == "wide" and seen.hidden:
            facts.add_row("  hidden", ", ".join(seen.hidden))
        if facts.row_count:
            out.append(facts)
        if seen.created:
            out.append(Text("  created", style="green"))
    return Group(*out)


def outlook(answer: Outlook) -> RenderableType:
    if answer.refused:
        return Group(*(Text(f"The API server refuses {one}", style="red") for one in answer.refused))
    table = _table("JOB", "QUEUE", "ASKS FOR", "WHAT")
    for rows, word, colour in (
        (answer.starts, "starts", "green"),
        (answer.evicts, "is evicted", "red"),
        (answer.waits, "waits, and would start as it is now", "yellow"),
        (answer.spares, "stays, and would be evicted as it is now", "green"),
    ):
        for one in rows:
            table.add_row(one.name, one.cluster_queue, amounts(one.requests), Text(word, style=colour))
    if not table.row_count:
        return Group(Text("No job would start or be evicted for it at once."), *_hidden(answer.hidden))
    return Group(table, Text("At once, if nobody came and nobody ended.", style="bold"), *_hidden(answer.hidden))


# ---------------------------------------------------------------- all of it on one screen


def top(queues: Queues, jobs: Jobs, nodes: Nodes | None, now: int, *, height: int) -> Layout:
    """A screen of `height` lines: the tree of queues, the nodes, the jobs. What does not fit is counted."""
    screen = Layout()
    wrong = queues.leaderless or jobs.leaderless or queues.unheld or jobs.silent
    summary = Group(_summary(jobs, nodes, now), *([Text(wrong, style="bold red")] if wrong else []))
    head = 5 if wrong else 3
    body = max(8, height - head)
    above = max(4, body // 2)
    screen.split_column(Layout(Panel(summary), size=head), Layout(name="above", size=above), Layout(name="jobs"))
    screen["above"].split_row(
        Layout(Panel(_tree(queues, above - 3), title="queues", title_align="left"), ratio=3),
        Layout(Panel(_map(nodes, above - 2), title="nodes", title_align="left"), ratio=2),
    )
    screen["jobs"].update(Panel(_line_up(jobs, now, body - above - 3), title="jobs", title_align="left"))
    return screen


def _summary(jobs: Jobs, nodes: Nodes | None, now: int) -> Text:
    line = Text("Muster  ", style="bold")
    line.append(f"{datetime.fromtimestamp(now / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC   ", style="dim")
    counts = {state: sum(row.state is state for row in jobs.rows) for state in State}
    shown = (State.RUNNING, State.STARTING, State.RESERVED, State.WAITING, State.HELD, State.PAUSED, State.LEAVING)
    for state in shown:
        if counts[state]:
            line.append(f"{counts[state]} {state.value}   ", style=_COLOUR[state])
    rows = nodes.rows if nodes is not None else ()
    for resource in nodes.resources if nodes is not None else ():
        whole = sum(dict(row.capacity).get(resource, 0) for row in rows)
        free = sum(max(0, dict(row.free).get(resource, 0)) for row in rows)
        used, of = quantity.words(resource, whole - free, whole)
        line.append(f"{used} of {of} {resource} in use   ")
    return line


def _tree(queues: Queues, most: int) -> RenderableType:
    table = _table("", "", "USED", "OWN", "", "WAIT", "RUN", right=("USED", "OWN", "WAIT", "RUN"))
    lines = 0
    left = 0
    of_tenant = all(row.kind == "LocalQueue" for row in queues.rows)  # who sees no others
    for row in queues.rows:
        if row.kind == "LocalQueue" and not of_tenant:
            continue
        for i, room in enumerate(row.room or (None,)):
            if lines >= most:
                left += 1
                continue
            lines += 1
            counts = (str(row.pending), str(row.admitted)) if row.kind != "Cohort" and i == 0 else ("", "")
            off = "stopped" if row.stopped else "" if row.active else "inactive"
            name = Text.assemble(_label(row), (f" {off}", "yellow")) if i == 0 else ""
            if room is None:
                table.add_row(name, "", "", "", "", *counts)
                continue
            used = short(room.resource, room.used)
            own = short(room.resource, room.nominal) if row.kind != "LocalQueue" else ""
            filled = bar(room, 12) if row.kind != "LocalQueue" else ""
            table.add_row(name, f"{room.flavor} {room.resource.rpartition('/')[2]}", used, own, filled, *counts)
    more = [Text(f"and {left} more", style="dim")] if left else []
    return Group(table, *more, *_hidden(queues.hidden))


def _map(nodes: Nodes | None, most: int) -> RenderableType:
    if nodes is None:
        return Text("You may not see nodes.", style="dim")
    lines: list[Text] = []
    for row in nodes.rows:
        free = dict(row.free)
        line = Text(f"{row.name:<18.18} ", style=_node_colour(row))
        for resource, whole in row.capacity:
            line.append_text(_cells(whole, free.get(resource, 0)))
            line.append(" ")
        line.append(", ".join(who for who, held in row.gangs if held), style="dim")
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    if len(lines) > most:
        lines = [*lines[: most - 1], Text(f"and {len(lines) - most + 1} more", style="dim")]
    return Group(*lines)


def _line_up(jobs: Jobs, now: int, most: int) -> RenderableType:
    open_ones = [row for row in jobs.rows if row.state not in (State.FINISHED, State.UNMANAGED)]
    table = _table("NAMESPACE", "NAME", "QUEUE", "STATE", "PLACE", "AGE", "REASON OR WHERE")
    table.expand = True
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    table.columns[-1].ratio = 1
    shown = open_ones if len(open_ones) <= most else open_ones[: most - 1]
    for row in shown:
        where = "; ".join(_where(place.count, place.flavors, place.nodes, wide=False) for place in row.where)
        table.add_row(
            row.namespace,
            job_name(row),
            row.queue,
            Text("failed", style="red") if _failed(row) else Text(row.state.value, style=_COLOUR[row.state]),
            f"{row.position}/{row.waiting}" if row.position else "",
            age(row.created, now),
            where or f"{row.detail or row.reason}: {row.message}",
        )
    more = [Text(f"and {len(open_ones) - len(shown)} more", style="dim")] if len(shown) < len(open_ones) else []
    return Group(table, *more, *_hidden(jobs.hidden))


def picture(shown: RenderableType, title: str, *, width: int = 120, height: int = 36) -> str:
    """A terminal of this size as SVG, in the reader's own fonts."""
    to = _Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    to.print(shown)
    return re.sub(r"\s*@font-face \{.*?\}", "", to.export_svg(title=title), flags=re.DOTALL)
