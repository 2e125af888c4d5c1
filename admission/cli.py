"""The command line: parse, wire, print. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

cli = typer.Typer(
    name="muster",
    help="Gang admission and quota for Kubernetes: a job starts whole, when its share and the nodes allow it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


@cli.command()
def version() -> None:
    """Print the version."""
    print(_version())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("muster-admission")
    except PackageNotFoundError:
        return "0.1.0 (from source)"


@cli.command()
def controller(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: in-cluster, else $KUBECONFIG.")] = None,
    namespace: Annotated[str, typer.Option(help="Where the lease lives.")] = "",
    identity: Annotated[str | None, typer.Option(help="Name of this replica in the lease.")] = None,
    webhook_url: Annotated[
        str | None, typer.Option(help="How the API server reaches this replica's webhook without a Service.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="json or console.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    api_group: Annotated[str | None, typer.Option(help="muster.dev or kueue.x-k8s.io.")] = None,
    workloads_only: Annotated[
        bool, typer.Option("--workloads-only", help="Admit bare Workloads: no kinds of jobs, no hold, no lease.")
    ] = False,
    metrics_port: Annotated[int, typer.Option("--metricsPort", help="Serve metrics and health here.")] = 0,
    zap_log_level: Annotated[str, typer.Option("--zap-log-level", hidden=True)] = "",
    enable_tas: Annotated[bool, typer.Option("--enableTAS", hidden=True)] = False,
    cpuprofile: Annotated[Path | None, typer.Option("--cpuprofile", hidden=True)] = None,
    memprofile: Annotated[Path | None, typer.Option("--memprofile", hidden=True)] = None,
) -> None:
    """Run the controller."""
    from admission.api.config import ConfigError, load_config

    # What tools made for Kueue's controller say: topologies always count, and memory is not profiled.
    del enable_tas, memprofile
    if log_level is None and zap_log_level:
        log_level = {"0": "info", "1": "info", "error": "error", "info": "info"}.get(zap_log_level, "debug")

    try:
        loaded = load_config(config) if config is not None else load_config("")
        if api_group is not None:
            changed = (
                {"apiGroup": api_group}
                if config is None
                else {**loaded.model_dump(by_alias=True), "apiGroup": api_group}
            )
            loaded = type(loaded).model_validate(changed)
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    _configure_logs(log_format or loaded.logging.format, log_level or loaded.logging.level)
    try:
        import uvloop

        run: Any = uvloop.run
    except ImportError:
        run = asyncio.run
    if metrics_port or workloads_only:
        at = {"bind_address": f":{metrics_port}" if metrics_port else "0"}
        shown = {"metrics": loaded.metrics.model_copy(update=at), "health": loaded.health.model_copy(update=at)}
        loaded = loaded.model_copy(update=shown)
    work = _controller(loaded, kubeconfig, namespace, identity, webhook_url, workloads_only=workloads_only)
    if cpuprofile is None:
        raise typer.Exit(run(work))
    import cProfile

    with cProfile.Profile() as profile:
        code = run(work)
    profile.dump_stats(cpuprofile)
    raise typer.Exit(code)


async def _controller(
    config: Any,
    kubeconfig: Path | None,
    namespace: str,
    identity: str | None,
    webhook_url: str | None,
    *,
    workloads_only: bool = False,
) -> int:
    from admission.controller.serve import Replica, serve, serve_workloads
    from admission.kube.client import Client
    from admission.kube.flow import Flow
    from admission.web import health
    from admission.web.metrics import Metrics

    limits = config.client_connection
    flow = Flow(qps=limits.kube_api_qps, burst=limits.burst)
    if kubeconfig is not None:
        client = await Client.from_kubeconfig(str(kubeconfig), flow=flow)
    else:
        client = await Client.from_environment(flow=flow)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with client:
        runners: list[Any] = []

        async def started(replica: Replica) -> None:
            shown = replica.controller
            metrics = Metrics(
                shown.numbers, version=_version(), by_resource=config.metrics.enable_cluster_queue_resources
            )
            shown.watchers.plan.append(metrics.plan)
            shown.watchers.decision.append(metrics.decision)
            shown.watchers.step.append(metrics.step)
            shown.watchers.failure.append(metrics.failure)
            shown.watchers.drift.append(metrics.drift)

            def ready() -> str:
                missing = [name for name, informer in shown.informers.items() if not informer.synced.is_set()]
                return f"waiting for the first list of {', '.join(missing)}" if missing else ""

            app = health.application(ready=ready, metrics=metrics.text)
            addresses = dict.fromkeys((config.health.bind_address, config.metrics.bind_address))
            runners.extend([await health.serve(app, address) for address in addresses if address not in ("", "0")])

        home = (
            namespace
            or config.leader_election.resource_namespace
            or os.environ.get("POD_NAMESPACE")
            or client.namespace
        )
        serving = asyncio.ensure_future(
            serve_workloads(client, config, started=started)
            if workloads_only
            else serve(client, config, namespace=home, identity=identity, webhook_url=webhook_url, started=started)
        )
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, stopping):
            task.cancel()
        result, _ = await asyncio.gather(serving, stopping, return_exceptions=True)
        for runner in runners:
            await runner.cleanup()
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
    return 0


def _configure_logs(form: str, level: str) -> None:
    import logging

    import structlog

    number = getattr(logging, level.upper(), logging.INFO)
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # Asked for at each line: who runs a command inside a program may have put another stream there.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


@cli.command()
def demo(
    serve: Annotated[bool, typer.Option(help="Stay up afterwards and print a kubeconfig.")] = False,
    real: Annotated[bool, typer.Option(help="On a real control plane instead of the sandbox.")] = False,
    seconds: Annotated[float, typer.Option(help="How long the day lasts.")] = 35.0,
) -> None:
    """Play a day of three teams on a small GPU cluster."""
    from admission.sandbox.play import play

    raise typer.Exit(play(serve=serve, real=real, seconds=seconds))


# ---------------------------------------------------------------- questions to a cluster

_KUBECONFIG = typer.Option(help="Default: $KUBECONFIG, else ~/.kube/config.")
_CONTEXT = typer.Option(help="Context of the kubeconfig.")
_GROUP = typer.Option(help="muster.dev or kueue.x-k8s.io. Default: the one that the cluster serves.")
_OUTPUT = typer.Option("-o", "--output", help="text, wide, json, yaml or name.")
_WATCH = typer.Option("-w", "--watch", help="Ask again every two seconds, until interrupted.")
_NAMESPACE = typer.Option("-n", "--namespace", help="Default: that of the context.")
_EVERYWHERE = typer.Option("-A", "--all-namespaces", help="In all namespaces.")

Kubeconfig = Annotated[Path | None, _KUBECONFIG]
Context = Annotated[str | None, _CONTEXT]
Group = Annotated[str | None, _GROUP]
Output = Annotated[str, _OUTPUT]
Watch = Annotated[bool, _WATCH]
Namespace = Annotated[str | None, _NAMESPACE]
Everywhere = Annotated[bool, _EVERYWHERE]

BAD_USE, NOT_THERE, NO_CLUSTER = 2, 3, 4


def _fail(code: int, message: str) -> typer.Exit:
    print(f"muster: {message}", file=sys.stderr)
    return typer.Exit(code)


def _ask(
    question: Any,
    show: Any,
    *,
    kubeconfig: Path | None,
    context: str | None,
    group: str | None,
    output: str,
    watch: bool = False,
    namespace: str | None = None,
) -> Any:
    """Put `question(ask, namespace)` to a cluster and print the answer. `show(answer, now)` gives what people read and
    the names; the answer is returned."""
    from admission.controller import tell

    if output not in tell.FORMS:
        raise _fail(BAD_USE, f"-o {output}: use one of {', '.join(tell.FORMS)}")
    _configure_logs("console", "error")
    try:
        return asyncio.run(_asking(question, show, kubeconfig, context, group, output, watch, namespace))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _asking(
    question: Any,
    show: Any,
    kubeconfig: Path | None,
    context: str | None,
    group: str | None,
    output: str,
    watch: bool,
    namespace: str | None,
) -> Any:
    from datetime import UTC, datetime

    from rich.live import Live

    from admission.controller import tell
    from admission.controller.ask import Ask, NotThere, names_of
    from admission.kube.client import ApiError, Client

    try:
        client = await Client.from_kubeconfig(str(kubeconfig) if kubeconfig else None, context, user_agent="muster-cli")
    except Exception as error:  # a kubeconfig, and its plugins, can be wrong in every way there is
        raise _fail(NO_CLUSTER, f"no usable kubeconfig: {error}") from None
    console = tell.console()
    live: Live | None = None
    try:
        async with client:
            names = await names_of(client, group)
            while True:
                now = int(datetime.now(UTC).timestamp() * 1000)  # noqa: TID251  # shown beside ages, decides nothing
                answer = await question(Ask(client, names, now), namespace or client.namespace)
                shown, called = show(answer, now)
                text = tell.written(output, answer.as_json(), called)
                if text is not None:
                    print(text, flush=True)
                elif watch and console.is_terminal:
                    if live is None:
                        live = Live(console=console, auto_refresh=False)
                        live.start()
                    live.update(shown, refresh=True)
                else:
                    tell.show(console, shown)
                if not watch:
                    return answer
                await asyncio.sleep(2)
    except NotThere as error:
        raise _fail(NOT_THERE, str(error)) from None
    except ApiError as error:
        raise _fail(NO_CLUSTER, f"{client.url}: {error.message or error.reason}") from None
    finally:
        if live is not None:
            live.stop()


@cli.command(
    epilog="Examples: muster why train  |  muster why jobset/llm -n team-a  |  until muster why train; do sleep 5; done"
    "  --  Exit codes: 0 it goes on (admitted, running, finished, not governed); 1 it waits; 2 bad use; 3 no such job; "
    "4 no cluster, or no rights."
)
def why(
    job: Annotated[str, typer.Argument(help="NAME, job/NAME or jobset/NAME.")],
    namespace: Namespace = None,
    output: Output = "text",
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    api_group: Group = None,
) -> None:
    """Say why a job waits, with numbers, and what would have to change."""
    from admission.controller import tell

    answer = _ask(
        lambda ask, where: ask.why(job, where),
        lambda answer, now: (tell.why(answer, now), [tell.job_name(answer.standing)]),
        kubeconfig=kubeconfig,
        context=context,
        group=api_group,
        output=output,
        watch=watch,
        namespace=namespace,
    )
    waits = answer.standing.state.value in ("waiting", "held", "reserved", "leaving")
    raise typer.Exit(1 if waits else 0)


@cli.command(epilog="Examples: muster queues  |  muster queues -A -o wide  |  muster queues --watch")
def queues(
    namespace: Namespace = None,
    all_namespaces: Everywhere = False,
    output: Output = "text",
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    api_group: Group = None,
) -> None:
    """Show the cohort tree: # used, . free, - lent, + borrowed beyond one's own.

    LocalQueues (>) are those of one namespace, or of all with -A.
    """
    from admission.controller import tell

    _ask(
        lambda ask, where: ask.queues(None if all_namespaces else where),
        lambda answer, _now: (tell.queues(answer, output), [f"{row.kind.lower()}/{row.name}" for row in answer.rows]),
        kubeconfig=kubeconfig,
        context=context,
        group=api_group,
        output=output,
        watch=watch,
        namespace=namespace,
    )


@cli.command(epilog="Examples: muster jobs  |  muster jobs -A -o wide  |  muster jobs -o json")
def jobs(
    namespace: Namespace = None,
    all_namespaces: Everywhere = False,
    output: Output = "text",
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    api_group: Group = None,
) -> None:
    """List jobs that name a queue: state, place in the queue, reason, and where they run.

    The place is counted by priority and age among those that wait in the same LocalQueue.
    """
    from admission.controller import tell

    _ask(
        lambda ask, where: ask.jobs(None if all_namespaces else where),
        lambda answer, now: (
            tell.jobs(answer, now, output, namespaces=all_namespaces),
            [tell.job_name(row) for row in answer.rows],
        ),
        kubeconfig=kubeconfig,
        context=context,
        group=api_group,
        output=output,
        watch=watch,
        namespace=namespace,
    )


@cli.command(epilog="Examples: muster nodes  |  muster nodes --per-pod nvidia.com/gpu=8,cpu=64")
def nodes(
    per_pod: Annotated[str, typer.Option(help="What each pod of a gang takes, as nvidia.com/gpu=8,cpu=64.")] = "",
    output: Output = "text",
    watch: Watch = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    api_group: Group = None,
) -> None:
    """Show who sits where, what is free, and the largest gang that fits now."""
    from admission import quantity
    from admission.controller import tell

    wanted: dict[str, int] | None = None
    if per_pod:
        try:
            pairs = dict(part.split("=", 1) for part in per_pod.split(","))
            wanted = quantity.parse_resources(pairs)
        except ValueError as error:
            raise _fail(BAD_USE, f"--per-pod {per_pod}: {error}; write resource=amount,...") from None
    _ask(
        lambda ask, _where: ask.nodes(wanted),
        lambda answer, _now: (tell.nodes(answer, output), [f"node/{row.name}" for row in answer.rows]),
        kubeconfig=kubeconfig,
        context=context,
        group=api_group,
        output=output,
        watch=watch,
    )


@cli.command(
    epilog="Examples: muster lint quota/  |  helm template charts/muster | muster lint -  |  muster lint --cluster  |  "
    "muster lint new.yaml --cluster (as if it were applied)  --  Exit codes: 0 clean (infos aside); 1 findings; "
    "2 bad use; 4 no cluster, or no rights."
)
def lint(
    files: Annotated[list[str] | None, typer.Argument(help="Files, folders, or - for standard input.")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="What the cluster holds, with the files over it.")] = False,
    output: Annotated[str, typer.Option("-o", "--output", help="text, json or yaml.")] = "text",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    api_group: Group = None,
) -> None:
    """Find quota that does not do what its author thinks, each with the line and the fix."""
    from admission.api.lint import Severity
    from admission.api.lint import lint as judged
    from admission.controller import tell

    if output not in ("text", "json", "yaml"):
        raise _fail(BAD_USE, f"-o {output}: use one of text, json, yaml")
    if not files and not cluster:
        raise _fail(BAD_USE, "nothing to lint: name files, or --cluster")
    documents, found = _manifests(files or [])
    hidden: tuple[str, ...] = ()
    if cluster:
        _configure_logs("console", "error")
        held, hidden = asyncio.run(_cluster_documents(kubeconfig, context, api_group))
        if hidden and not held:
            raise _fail(NO_CLUSTER, f"you may not see {', '.join(hidden)}")
        documents = [*held, *documents]
    found = [*found, *judged(documents, live=cluster and not hidden)]
    text = tell.written(output, [finding.as_json() for finding in found], ())
    if text is not None:
        print(text)
    else:
        tell.show(tell.console(), tell.findings(found))
    if hidden:
        print(f"muster: you may not see {', '.join(hidden)}: what they hold was not judged", file=sys.stderr)
    raise typer.Exit(1 if any(finding.severity is not Severity.INFO for finding in found) else 0)


def _manifests(files: list[str]) -> tuple[list[Any], list[Any]]:
    from admission.api.lint import read

    documents: list[Any] = []
    found: list[Any] = []
    for name in files:
        path = Path(name)
        if name != "-" and not path.exists():
            raise _fail(BAD_USE, f"{name}: no such file or folder")
        if name == "-":
            texts = [("stdin", sys.stdin.read())]
        else:
            paths = [path]
            if path.is_dir():
                paths = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json") and p.is_file())
            try:
                texts = [(str(one), one.read_text(encoding="utf-8")) for one in paths]
            except (OSError, UnicodeDecodeError) as error:
                raise _fail(BAD_USE, f"{name}: {error}") from None
        for label, text in texts:
            more, wrong = read(text, label)
            documents += more
            found += wrong
    return documents, found


async def _cluster_documents(
    kubeconfig: Path | None, context: str | None, group: str | None
) -> tuple[list[Any], tuple[str, ...]]:
    from admission.controller.ask import Ask, NotThere, names_of
    from admission.kube.client import ApiError, Client

    try:
        client = await Client.from_kubeconfig(str(kubeconfig) if kubeconfig else None, context, user_agent="muster-cli")
    except Exception as error:
        raise _fail(NO_CLUSTER, f"no usable kubeconfig: {error}") from None
    try:
        async with client:
            ask = Ask(client, await names_of(client, group), 0)
            return await ask.documents(), ask.hidden
    except NotThere as error:
        raise _fail(NO_CLUSTER, str(error)) from None
    except ApiError as error:
        raise _fail(NO_CLUSTER, f"{client.url}: {error.message or error.reason}") from None


@cli.command("explain-reasons", epilog="Examples: muster explain-reasons  |  muster explain-reasons CohortShort")
def explain_reasons(
    word: Annotated[
        str | None, typer.Argument(help="A reason or detail, as conditions and `muster why` name it.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The whole reference, as docs/reasons.md.")] = False,
) -> None:
    """Say what each reason for waiting means, and what to do about it."""
    from admission.api import reasons

    if markdown:
        print(reasons.reference(), end="")
        return
    table = {
        entry.value: advice for entry, advice in [*reasons.REASONS.items(), *reasons.DETAILS.items()] if entry.value
    }
    if word is not None:
        found = {name: advice for name, advice in table.items() if name.lower() == word.lower()}
        if not found:
            import difflib

            near = difflib.get_close_matches(word, table, n=1)
            raise _fail(NOT_THERE, f"no reason {word!r}" + (f": did you mean {near[0]}?" if near else ""))
        table = found
    for name, advice in table.items():
        print(f"{name}: {advice.means}")
        for who, what in (("you", advice.owner), ("platform team", advice.platform)):
            if what:
                print(f"    {who}: {what}")


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
