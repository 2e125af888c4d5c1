"""Commands that ask a cluster and change nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from admission.commands.options import (
    BAD_USE,
    EVERY_S,
    NO,
    Scope,
    Session,
    answer,
    asking,
    examples,
    fail,
    goes_on,
    names_of_kind,
    run,
)

WAITS = ("waiting", "paused", "held", "reserved", "leaving")


@click.command(
    epilog=examples(
        "muster why train",
        "muster why jobset/llm -n team-a",
        "until muster why train; do sleep 5; done",
        codes="0 it goes on (admitted, running, finished, not governed); 1 it waits; 2 bad use; 3 no such job; "
        "4 no cluster, or no rights.",
    )
)
@click.argument("job", shell_complete=names_of_kind("jobs"))
@asking()
def why(scope: Scope, job: str) -> None:
    """Say why a job waits, with numbers, and what would have to change.

    JOB is NAME, job/NAME or jobset/NAME. For a job that was started, it says which pods are not ready and why.
    """
    from admission.controller import tell
    from admission.jobs.kinds import ENDED

    found = answer(
        scope,
        lambda ask, where: ask.why(job, where),
        lambda answer, now: (tell.why(answer, now), [tell.job_name(answer.standing)]),
        f"asking about {job}",
    )
    waits = found.standing.state.value in WAITS and found.standing.reason not in ENDED
    raise click.exceptions.Exit(NO if waits else 0)


@click.command(
    epilog=examples("muster queues", "muster queues -A -o wide", "muster queues team-a team-b", "muster queues --watch")
)
@click.argument("queue", nargs=-1, shell_complete=names_of_kind("clusterqueues", "cohorts", "localqueues"))
@asking(everywhere=True)
def queues(scope: Scope, queue: tuple[str, ...]) -> None:
    """Show the cohort tree: # used, . free, - lent, + borrowed beyond one's own.

    The row of a cohort sums up all below it. LocalQueues (>) are those of one namespace, or of all with -A. QUEUE is
    NAME, cohort/NAME, clusterqueue/NAME or localqueue/NAME: it shows only these, with what is below them.
    """
    from admission.controller import tell

    answer(
        scope,
        lambda ask, where: ask.queues(None if scope.all_namespaces else where, queue),
        lambda answer, _now: (
            tell.queues(answer, scope.output),
            [f"{row.kind.lower()}/{row.name}" for row in answer.rows],
        ),
        "reading queues",
    )


@click.command(
    epilog=examples(
        "muster jobs",
        "muster jobs -A -o wide",
        "muster jobs -A --cluster-queue team-a",
        "muster jobs -A --by namespace",
        "muster jobs --by team",
        "muster jobs -o json",
    )
)
@click.option("--cluster-queue", default="", metavar="NAME", help="Only jobs whose LocalQueue points to it.")
@click.option("--by", default="", metavar="WHAT", help="Show sums by namespace, queue, or this label of the jobs.")
@asking(everywhere=True)
def jobs(scope: Scope, cluster_queue: str, by: str) -> None:
    """List jobs that name a queue: state, place in the queue, reason, and where they run.

    A job is held (not in the queue yet), waiting, paused (by its owner), reserved (it has quota and nodes, and waits
    for admission checks), starting (not all of its pods are ready), running, leaving (its pods are ending), finished,
    or released (it runs without Muster).

    The place is among the waiting jobs of the same LocalQueue: in the controller's own order if the visibility API is
    served, else by priority and age.

    With --by it sums up, for each resource, what jobs hold, how much of that is idle (the jobs wait for admission
    checks, start or leave), and what waiting jobs request.
    """
    from admission.controller import tell

    if by:
        answer(
            scope,
            lambda ask, where: ask.sums(None if scope.all_namespaces else where, by, cluster_queue),
            lambda answer, _now: (tell.sums(answer), [row.who for row in answer.rows]),
            "reading jobs",
        )
        return
    answer(
        scope,
        lambda ask, where: ask.jobs(None if scope.all_namespaces else where, cluster_queue),
        lambda answer, now: (
            tell.jobs(answer, now, scope.output),
            [tell.job_name(row) for row in answer.rows],
        ),
        "reading jobs",
    )


@click.command(epilog=examples("muster nodes", "muster nodes --per-pod nvidia.com/gpu=8,cpu=64"))
@click.option("--per-pod", default="", help="Requests of each pod of a gang, for example nvidia.com/gpu=8,cpu=64.")
@asking(namespace=False)
def nodes(scope: Scope, per_pod: str) -> None:
    """Show which jobs run on each node, what is free, and the largest gang that fits now."""
    from admission import quantity
    from admission.controller import tell

    wanted: dict[str, int] | None = None
    if per_pod:
        try:
            pairs = dict(part.split("=", 1) for part in per_pod.split(","))
            wanted = quantity.parse_resources(pairs)
            if wrong := [name for name, amount in wanted.items() if amount <= 0]:
                raise ValueError(f"{wrong[0]} must be more than 0")
        except ValueError as error:
            raise fail(BAD_USE, f"--per-pod {per_pod}: {error}; write resource=amount,...") from None
    answer(
        scope,
        lambda ask, _where: ask.nodes(wanted),
        lambda answer, _now: (tell.nodes(answer, scope.output), [f"node/{row.name}" for row in answer.rows]),
        "reading nodes and pods",
    )


@click.command(epilog=examples("muster top", "muster top -n team-a", "muster top --svg now.svg    # a picture, once"))
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Draw the screen once, into an SVG file.")
@asking(unsaid="all that may be seen", watch=False, form=False)
def top(scope: Scope, svg: str | None) -> None:
    """Watch queues, nodes and jobs on one screen, until interrupted.

    It shows what you may see: all namespaces, or else that of the context or of -n. If the output is no terminal, it
    prints the screen once.
    """

    async def work(session: Session) -> str:
        from dataclasses import replace

        from rich.live import Live

        from admission.controller import tell
        from admission.controller.ask import NotThere
        from admission.kube.client import Unavailable

        seen: tuple[Any, ...] = ()

        async def look(height: int) -> Any:
            nonlocal seen
            try:
                seen = await asked()
            except Unavailable as error:
                if not seen:
                    raise
                found, *rest = seen
                return tell.top(replace(found, leaderless=goes_on(error)), *rest, height=height)
            return tell.top(*seen, height=height)

        async def asked() -> tuple[Any, ...]:
            ask, own = session.ask(), session.ask()
            found = await ask.queues(scope.namespace)
            jobs = await ask.jobs(scope.namespace)
            if not jobs.rows and jobs.hidden:
                found, jobs = await own.queues(session.namespace), await own.jobs(session.namespace)
            try:
                nodes = await session.ask().nodes()
            except NotThere:
                nodes = None
            return found, jobs, nodes, ask.now

        if svg is not None:
            return tell.picture(await look(36), "muster top", height=36)
        console = tell.console()
        if not console.is_terminal:
            tell.show(tell.console(width=160, height=40), await look(40))
            return ""
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(await look(console.size.height), refresh=True)
                await asyncio.sleep(EVERY_S)

    if svg is not None and not Path(svg).parent.is_dir():
        raise fail(BAD_USE, f"--svg {svg}: there is no folder {Path(svg).parent}")
    drawn = run(scope, work, "reading queues, jobs and nodes")
    if svg is not None:
        try:
            Path(svg).write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise fail(BAD_USE, f"--svg {error}") from None


COMMANDS = (why, queues, jobs, nodes, top)
