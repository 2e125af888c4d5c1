"""The command line, as `muster` and as `kubectl muster`: parse, wire, print.

The commands that ask or change a cluster are in `commands`; here is what runs the controller and the demo.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from admission.commands import changes, local, questions
from admission.commands.options import BAD_USE, NO_CLUSTER, Program, configure_logs, fail
from admission.names import KUEUE_GROUP, MUSTER_GROUP

COLLECTED_AFTER = (10_000, 5, 1_000)
"""Garbage (`gc.set_threshold`). As often as Python collects by itself it would take a tenth of the time: most of what
is made here lives long, and no decision leaves any. A little is looked at at a time, for everything else stands still
meanwhile: 10 ms for 10,000 objects, a tenth of a second and more for all of a large cluster."""

UNUSED = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OPENBLAS_NUM_THREADS": "1"}
"""In the environment, before libraries are loaded, to have them leave off what nothing here uses: plugins of pydantic,
for which the metadata of everything that is installed would be read, and threads of OpenBLAS, one for each core of the
node."""


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli() -> None:
    """Gang admission and quota for Kubernetes: a job starts whole, when quota and nodes allow it."""


for command in (*questions.COMMANDS, *changes.COMMANDS, *local.COMMANDS):
    cli.add_command(command)


@cli.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file.")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Default: in-cluster, else $KUBECONFIG, else ~/.kube/config."
)
@click.option("--namespace", default="", help="Namespace of the Lease. Default: that of the pod, or context.")
@click.option("--identity", help="Name of this replica in the Lease.")
@click.option("--webhook-url", help="URL at which the API server reaches this replica's webhook, without a Service.")
@click.option("--log-format", type=click.Choice(["json", "console"]), help="Default: that of the configuration.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="Default: that of the configuration.",
)
@click.option("--api-group", type=click.Choice([MUSTER_GROUP, KUEUE_GROUP]), help="Default: that of the configuration.")
@click.option("--workloads-only", is_flag=True, help="Admit bare Workloads only: no jobs, no hold, no Lease.")
@click.option("--metricsPort", "metrics_port", default=0, help="Port for metrics and health.")
@click.option("--zap-log-level", default="", hidden=True)
@click.option("--enableTAS", "enable_tas", is_flag=True, hidden=True)
@click.option("--cpuprofile", type=click.Path(path_type=Path), hidden=True)
@click.option("--memprofile", type=click.Path(path_type=Path), hidden=True)
def controller(
    config: Path | None,
    kubeconfig: Path | None,
    namespace: str,
    identity: str | None,
    webhook_url: str | None,
    log_format: str | None,
    log_level: str | None,
    api_group: str | None,
    workloads_only: bool,
    metrics_port: int,
    zap_log_level: str,
    enable_tas: bool,
    cpuprofile: Path | None,
    memprofile: Path | None,
) -> None:
    """Run the controller."""
    from admission.api.config import ConfigError, load_config

    # Until the loop runs and answers signals itself, there is nothing to be wound up. The first process of a container
    # hears none that it does not handle: it would begin, and perhaps lead, to be killed in the middle of it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    # What tools made for Kueue's controller say: topologies always count, and memory is not profiled.
    del enable_tas, memprofile
    if log_level is None and zap_log_level:
        log_level = {"0": "info", "1": "info", "error": "error", "info": "info"}.get(zap_log_level, "debug")

    try:
        loaded = load_config(config) if config is not None else load_config("")
        if api_group is not None:
            loaded = loaded.of_group(api_group)
    except (ConfigError, ValueError) as error:
        print(error, file=sys.stderr)
        raise click.exceptions.Exit(2) from None
    configure_logs(log_format or loaded.logging.format, log_level or loaded.logging.level)
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
        raise click.exceptions.Exit(run(work))
    import cProfile

    with cProfile.Profile() as profile:
        code = run(work)
    profile.dump_stats(cpuprofile)
    raise click.exceptions.Exit(code)


async def _controller(
    config: Any,
    kubeconfig: Path | None,
    namespace: str,
    identity: str | None,
    webhook_url: str | None,
    *,
    workloads_only: bool = False,
) -> int:
    from admission.controller.serve import Replica, serve, serve_workloads, told_by_loop
    from admission.controller.setup import counted_by_itself, flow_of
    from admission.kube.client import Client
    from admission.web import health
    from admission.web.metrics import Metrics

    options: dict[str, Any] = {"flow": flow_of(config)}
    if workloads_only:
        options["write_timeout"] = 60.0  # there is no next leader to wait for their end
    try:
        if kubeconfig is not None:
            client = await Client.from_kubeconfig(str(kubeconfig), **options)
        else:
            client = await Client.from_environment(**options)
    except Exception as error:  # a kubeconfig, and its plugins, can be wrong in every way there is
        raise fail(NO_CLUSTER, f"no usable kubeconfig: {error}") from None
    loop = asyncio.get_running_loop()
    out_of_memory: asyncio.Future[None] = loop.create_future()

    def unasked(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(error := context.get("exception"), MemoryError):
            told_by_loop(loop, context)
        elif not out_of_memory.done():  # it breaks connections, one after the other, before anybody else is told
            out_of_memory.set_exception(error)

    loop.set_exception_handler(unasked)
    stop, told = asyncio.Event(), list[str]()

    def stopped(by: signal.Signals) -> None:
        told.append(by.name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped, number)
    led: list[Callable[[], bool]] = []
    """Does it lead, once it may."""
    async with client:
        runners: list[Any] = []
        showing: list[asyncio.Future[None]] = []
        shows: list[tuple[Callable[[], str], Callable[[], Iterable[bytes]]]] = []
        """(why it is not ready, its metrics), once there is something to be shown."""

        async def run() -> None:
            # First of all: an API server that does not answer yet is no reason to end a process that waits for it.
            app = health.application(
                ready=lambda: shows[0][0]() if shows else "starting", metrics=lambda: shows[0][1]() if shows else ()
            )
            addresses = dict.fromkeys((config.health.bind_address, config.metrics.bind_address))
            runners.extend([await health.serve(app, address) for address in addresses if address not in ("", "0")])
            if workloads_only:
                await serve_workloads(client, config, started=started)
            else:
                await serve(client, config, namespace=home, identity=identity, webhook_url=webhook_url, started=started)

        async def started(replica: Replica) -> None:
            shown = replica.controller
            metrics = Metrics(
                shown.numbers,
                version=local.version_number(),
                by_resource=config.metrics.enable_cluster_queue_resources,
                local_queues=counted_by_itself(config),
            )
            metrics.follow(shown.watchers)
            shows.append((replica.ready, metrics.parts))
            led.append(shown.numbers.leading)
            if config.web.bind_address != "0" and not workloads_only:
                showing.append(asyncio.ensure_future(_show(client, config, shown, home, runners)))

        gc.freeze()  # what was imported stays
        home = (
            namespace
            or os.environ.get("POD_NAMESPACE")
            or config.leader_election.resource_namespace
            or client.namespace
        )
        serving = asyncio.ensure_future(run())
        stopping = asyncio.ensure_future(stop.wait())
        tasks: list[asyncio.Future[Any]] = [out_of_memory, serving, stopping]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        leads = any(one() for one in led)
        tasks += showing
        for task in tasks:
            task.cancel()
        short, result, *_ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(short, MemoryError):
            result = short
        for runner in runners:
            await runner.cleanup()
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            if (taken := _cannot_listen(result)) is not None:
                where = (
                    "health.bindAddress, metrics.bindAddress and webhook of the configuration file say where it listens"
                )
                raise fail(BAD_USE, f"{taken.strerror or taken}; {where}")
            if (why := _anew(result)) is not None:
                import structlog

                structlog.get_logger("muster").error("ends, to begin anew", **why)
                raise click.exceptions.Exit(1)
            raise result
    if told:
        import structlog

        left = {"unanswered_writes": client.cut_off} if client.cut_off else {}
        structlog.get_logger("muster").info("ended", why=told[0], led=leads, **left)
    return 0


E = TypeVar("E", bound=BaseException)


def _cannot_listen(error: BaseException) -> OSError | None:
    """What kept it from listening at an address, if that is why it ended."""
    found = _first(error, OSError)
    listening = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
    return found if found is not None and found.errno in listening else None


def _anew(error: BaseException) -> dict[str, str] | None:
    """Why what is known in memory is worth nothing any more, if that is why it ended."""
    from admission.kube.informer import StoreWentBack

    if _first(error, MemoryError) is not None:
        return {"why": "there is no more memory: give it more (resources.limits.memory of the chart)"}
    if (back := _first(error, StoreWentBack)) is not None:
        why = "the API server's store was put back to an earlier moment: what is known of it is worth nothing"
        return {"why": why, "seen": str(back)}
    return None


def _first(error: BaseException, kind: type[E]) -> E | None:
    """The first of a kind among errors that came together."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _first(each, kind)) is not None), None)
    return error if isinstance(error, kind) else None


async def _show(client: Any, config: Any, shown: Any, namespace: str, runners: list[Any]) -> None:
    """Serve the page and the visibility API, off the way of decisions; until cancelled."""
    import structlog

    from admission.web import health
    from admission.web.server import Web

    try:
        web = Web(shown.numbers, client, config.names)
        shown.watchers.workload.append(web.stories.seen)

        async def serve(tls: Any) -> None:
            runners.append(await health.serve(web.app, config.web.bind_address, tls))

        if config.web.tls == "none":
            await serve(None)
        else:
            from admission.controller.aggregate import Aggregate

            aggregate = Aggregate(client, config.names, namespace=namespace, believe=web.believe)
            shown.certificates["web"] = lambda: aggregate.ends_at
            await aggregate.run(serve)
    except Exception as error:  # whatever it is: decisions go on without a page
        structlog.get_logger("muster.web").warning("the page is not served", error=f"{type(error).__name__}: {error}")


@cli.command()
@click.option("--serve", is_flag=True, help="Stay up afterwards and print a kubeconfig.")
@click.option("--real", is_flag=True, help="On a real control plane instead of the sandbox.")
@click.option("--seconds", default=35.0, show_default=True, help="How long the day lasts.")
def demo(serve: bool, real: bool, seconds: float) -> None:
    """Play a day of three teams on a small GPU cluster."""
    from admission.sandbox.play import play

    raise click.exceptions.Exit(play(serve=serve, real=real, seconds=seconds))


def _have_streams() -> None:
    """Of those that are closed (`2>&-`) there is none at all, and what is opened next would take their numbers; and
    what cannot be written in the encoding of the others is written as it is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # as long as it runs
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):  # who runs it inside a program may have put another
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    _have_streams()
    gc.set_threshold(*COLLECTED_AFTER)
    for name, value in UNUSED.items():
        os.environ.setdefault(name, value)
    cli(prog_name="kubectl muster" if Path(sys.argv[0]).name.startswith("kubectl-") else "muster")


def complete_for_kubectl() -> None:
    """The program kubectl_complete-muster, which kubectl asks to complete `kubectl muster ...`: words, then what the
    shell is to do with them (4: offer no file names)."""
    from click.shell_completion import ShellComplete

    *before, typed = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, "kubectl muster", "_MUSTER_COMPLETE").get_completions(before, typed):
        print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(":4")


if __name__ == "__main__":
    main()
