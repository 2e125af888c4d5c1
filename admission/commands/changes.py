"""Commands that change a cluster, each with a dry run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from admission.commands.local import manifests
from admission.commands.options import (
    BAD_USE,
    NO,
    NO_CLUSTER,
    OK,
    Scope,
    Session,
    agreed,
    asking,
    end_in_order,
    examples,
    fail,
    names_of_kind,
    run,
    say,
    steps,
)

SOURCES: dict[str, str] = {"kueue": "admission.controller.migrate"}
"""What `import --from` can read: its name -> the module whose `from_files` carries over objects, and whose
`from_cluster` all that is in a cluster."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Let the API server check it, and change nothing.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
queues_argument = click.argument(
    "queues",
    metavar="QUEUE...",
    nargs=-1,
    required=True,
    shell_complete=names_of_kind("clusterqueues", "localqueues"),
)


def tell_changes(scope: Scope, changes: Any) -> None:
    """Print what was done, and end with 1 where something was refused."""
    from admission.controller import tell

    say(scope.output, changes.as_json(), [row.subject for row in changes.rows], tell.changes(changes))
    if changes.refused:
        raise click.exceptions.Exit(NO)


# ---------------------------------------------------------------- queues


@click.command(
    epilog=examples(
        "muster stop team-a                       # the ClusterQueue admits nothing; what runs goes on",
        "muster stop team-a --drain               # and what runs is evicted, to wait in the queue",
        "muster stop team-a team-b",
        "muster stop localqueue/main -n team-a",
    )
)
@queues_argument
@click.option("--drain", is_flag=True, help="Also evict what runs (HoldAndDrain).")
@dry_run_option
@yes_option
@asking(watch=False)
def stop(scope: Scope, queues: tuple[str, ...], drain: bool, dry_run: bool, yes: bool) -> None:
    """Stop queues: they admit nothing until they are resumed.

    QUEUE is the NAME of a ClusterQueue, or localqueue/NAME. With --drain their running jobs are evicted and requeued.
    """

    async def work(session: Session) -> Any:
        from admission.controller import change

        ask = session.ask()
        if drain and not dry_run:
            running = sum([await change.admitted_in(ask, queue, session.namespace) for queue in queues])
            if running:
                which = ", ".join(queues)
                agreed(f"This stops {running} running job(s) of {which}, which then wait in the queue.", yes=yes)
        policy = "HoldAndDrain" if drain else "Hold"
        return await change.stop_policy(ask, queues, session.namespace, policy, dry_run=dry_run)

    tell_changes(scope, run(scope, work, f"stopping {', '.join(queues)}"))


@click.command(
    epilog=examples(
        "muster resume team-a",
        "muster resume team-a team-b              # together, so that neither borrows what is the other's",
        "muster resume localqueue/main -n team-a",
    )
)
@queues_argument
@dry_run_option
@asking(watch=False)
def resume(scope: Scope, queues: tuple[str, ...], dry_run: bool) -> None:
    """Resume stopped queues.

    QUEUE is the NAME of a ClusterQueue, or localqueue/NAME.
    """

    async def work(session: Session) -> Any:
        from admission.controller import change

        return await change.stop_policy(session.ask(), queues, session.namespace, "None", dry_run=dry_run)

    tell_changes(scope, run(scope, work, f"resuming {', '.join(queues)}"))


@click.command(
    epilog=examples(
        "muster requeue train                     # paused, switched off or in backoff: back into the queue",
        "muster requeue jobset/llm -n team-a --yes  # runs: stopped, and queued again",
        codes="0 done, or in the queue already; 2 bad use; 3 no such job; 4 no cluster, or no rights.",
    )
)
@click.argument("job", shell_complete=names_of_kind("jobs"))
@dry_run_option
@yes_option
@asking(watch=False)
def requeue(scope: Scope, job: str, dry_run: bool, yes: bool) -> None:
    """Put a job back into its queue, whatever keeps it out.

    It lifts the owner's pause, activates an inactive Workload, and ends a backoff. A job that runs is stopped and
    requeued, after you confirm.
    """

    async def work(session: Session) -> Any:
        from admission.controller import change

        ask = session.ask()
        what = await change.again(ask, job, session.namespace)
        if what.step == "restart" and not dry_run:
            agreed(f"{job} holds its room: this stops its pods, and it waits in the queue again.", yes=yes)
        end_in_order()
        return await change.requeue(ask, what, dry_run=dry_run, told=_tell)

    tell_changes(scope, run(scope, work, f"queueing {job} again"))


def _tell(message: str) -> None:
    print(f"muster: {message}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- create


@click.group()
def create() -> None:
    """Create objects for the common cases."""


@create.command(
    "queue",
    epilog=examples(
        "muster create queue team-a --quota h100:nvidia.com/gpu=64 --cohort research --for team-a",
        "muster create queue team-b --quota h100:nvidia.com/gpu=64,cpu=768 --cohort research --borrow 16 "
        "--for team-b:main",
        "muster create queue ml --quota h100:nvidia.com/gpu=8 --node-label gpu=h100 --dry-run -o yaml > ml.yaml",
    ),
)
@click.argument("name")
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    required=True,
    metavar="FLAVOR:RESOURCE=AMOUNT,...",
    help="Nominal quota of a flavor. Repeat it for further flavors, in order of preference.",
)
@click.option("--cohort", help="Cohort in which the queue borrows and lends.", shell_complete=names_of_kind("cohorts"))
@click.option("--borrow", metavar="AMOUNT", help="borrowingLimit of each device. Default: whatever is idle.")
@click.option("--lend", metavar="AMOUNT", help="lendingLimit of each device. Default: all of it.")
@click.option("--weight", metavar="NUMBER", help="Weight in fair sharing. Default: 1.")
@click.option("--strict", is_flag=True, help="StrictFIFO: no job passes the first. Default: BestEffortFIFO.")
@click.option(
    "--for",
    "users",
    multiple=True,
    metavar="NAMESPACE[:LOCALQUEUE]",
    help="Create a LocalQueue (default: main) there. Only these namespaces may use the queue.",
)
@click.option("--node-label", "labels", multiple=True, metavar="KEY=VALUE", help="Create the flavor, for these nodes.")
@dry_run_option
@asking(namespace=False, watch=False)
def create_queue(
    scope: Scope,
    name: str,
    quotas: tuple[str, ...],
    cohort: str | None,
    borrow: str | None,
    lend: str | None,
    weight: str | None,
    strict: bool,
    users: tuple[str, ...],
    labels: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Create a ClusterQueue with its quota, and the LocalQueues of those who use it.

    If any of them is refused or exists already, it creates none. With --dry-run -o yaml it prints the objects, for a
    repository.
    """
    made: list[dict[str, Any]] = []

    async def work(session: Session) -> Any:
        from admission.controller import change

        spec = _queue_spec(quotas, cohort, borrow, lend, weight, strict, users)
        api = session.names.api_version
        if labels:
            flavor, *more = [one["name"] for one in spec["resourceGroups"][0]["flavors"]]
            if more:
                said = f"{', '.join([flavor, *more])} would be of the same nodes, which count once for each"
                raise fail(BAD_USE, f"--node-label: {said}: create the flavors first, each with its own labels")
            of_nodes = {"nodeLabels": dict(_pair(label) for label in labels)}
            made.append(_object(api, "ResourceFlavor", flavor, of_nodes))
        made.append(_object(api, "ClusterQueue", name, spec))
        for user in users:
            namespace, _, local = user.partition(":")
            made.append(_object(api, "LocalQueue", local or "main", {"clusterQueue": name}, namespace))
        return await change.create(session.ask(), made, "ClusterQueue", dry_run=dry_run)

    changes = run(scope, work, f"creating {name}")
    if dry_run and scope.output in ("json", "yaml") and not changes.refused:
        _print_objects(made, scope.output)
        return
    tell_changes(scope, changes)


def _queue_spec(
    quotas: tuple[str, ...],
    cohort: str | None,
    borrow: str | None,
    lend: str | None,
    weight: str | None,
    strict: bool,
    users: tuple[str, ...],
) -> dict[str, Any]:
    flavors: list[dict[str, Any]] = []
    covered: list[str] = []
    for said in quotas:
        flavor, colon, amounts = said.partition(":")
        if not colon or not amounts:
            raise fail(BAD_USE, f"--quota {said}: write FLAVOR:RESOURCE=AMOUNT,...")
        resources = []
        for part in amounts.split(","):
            resource, amount = _pair(part)
            entry = {"name": resource, "nominalQuota": amount}
            if borrow is not None and "/" in resource:
                entry["borrowingLimit"] = borrow
            if lend is not None and "/" in resource:
                entry["lendingLimit"] = lend
            resources.append(entry)
        named = [entry["name"] for entry in resources]
        if covered and covered != named:
            raise fail(BAD_USE, f"--quota {said}: every flavor must name the same resources ({', '.join(covered)})")
        covered = named
        flavors.append({"name": flavor, "resources": resources})
    for option, limit in (("--borrow", borrow), ("--lend", lend)):
        if limit is not None and not any("/" in resource for resource in covered):
            told = f"it limits devices, and --quota names none ({', '.join(covered)})"
            raise fail(BAD_USE, f"{option} {limit}: {told}: print the queue by --dry-run -o yaml, and write it there")
    namespaces = sorted({user.partition(":")[0] for user in users})
    wanted = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}]
    spec: dict[str, Any] = {
        "namespaceSelector": {"matchExpressions": wanted} if namespaces else {},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
    }
    if cohort:
        spec["cohortName"] = cohort
    if weight:
        spec["fairSharing"] = {"weight": weight}
    if strict:
        spec["queueingStrategy"] = "StrictFIFO"
    return spec


def _pair(said: str) -> tuple[str, str]:
    key, equals, value = said.partition("=")
    if not key or not equals or not value:
        raise fail(BAD_USE, f"{said}: write KEY=VALUE")
    return key, value


def _object(api: str, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}


# ---------------------------------------------------------------- quota as files


@click.command(epilog=examples("muster export > quota.yaml", "muster export -n team-a", "muster export -o name"))
@asking(unsaid="all of them", watch=False)
def export(scope: Scope) -> None:
    """Print all quota objects as YAML that can be applied again.

    It prints the LocalQueues of all namespaces, or with -n of one.
    """

    async def work(session: Session) -> Any:
        from admission.controller import change

        return await change.export(session.ask(), scope.namespace)

    objects, hidden = run(scope, work, "reading quota")
    if scope.output == "name":
        for one in objects:
            print(f"{one['kind'].lower()}/{one['metadata']['name']}")
    else:
        _print_objects(objects, "json" if scope.output == "json" else "yaml")
    if hidden:
        print(f"muster: you may not see {', '.join(hidden)}: left out", file=sys.stderr)
        raise click.exceptions.Exit(NO_CLUSTER if not objects else OK)


def _print_objects(objects: list[dict[str, Any]], form: str) -> None:
    import json

    from admission.api.lint import write

    if form == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    elif objects:
        print(write(objects), end="")


@click.command(
    "import",
    epilog=examples(
        "muster import quota.yaml                 # what would change; nothing is written",
        "muster import quota/ --apply",
        "muster export --context old | muster import - --context new --apply",
        "muster import --from kueue                # quota and jobs of this cluster: what would change",
        codes="0 nothing refused; 1 something was, and with --apply nothing was written, or it says so; 2 bad use; "
        "4 no cluster.",
    ),
)
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--apply", is_flag=True, help="Write the changes, if the dry run refuses nothing.")
@click.option(
    "--from", "source", help="From another system (kueue): translate files; without files, carry over jobs too."
)
@asking(watch=False)
def import_(scope: Scope, files: tuple[str, ...], apply: bool, source: str | None) -> None:
    """Apply quota objects from files, after a dry run that shows what would change.

    An object is refused if the change would take over fields that another tool manages (GitOps, for example).
    """
    documents, wrong = manifests(files)
    for finding in wrong:
        print(f"muster: {finding.place()}: {finding.message}", file=sys.stderr)
    if wrong:
        raise click.exceptions.Exit(BAD_USE)
    objects = [document.obj for document in documents]
    if source is not None:
        if source not in SOURCES:
            known = ", ".join(sorted(SOURCES)) or "none yet"
            raise fail(BAD_USE, f"--from {source}: known are {known}")
        other = importlib.import_module(SOURCES[source])
    elif not files:
        raise fail(BAD_USE, "name files, or - for standard input, or another system with --from")

    async def work(session: Session) -> Any:
        from admission.controller import change

        if source is not None:
            ask = session.ask()
            if not files:
                return await other.from_cluster(ask, apply=apply)
            return await other.from_files(ask, objects, session.namespace, apply=apply)
        tried = await change.put(session.ask(), objects, session.namespace, dry_run=True)
        if tried.refused or not apply:
            return tried
        return await change.put(session.ask(), objects, session.namespace, dry_run=False)

    tell_changes(scope, run(scope, work, "applying quota" if apply else "trying"))


# ---------------------------------------------------------------- submit


def _objects(files: tuple[str, ...]) -> list[Any]:
    """The linter's Documents of files of which each can be read, and at least one has an object."""
    documents, wrong = manifests(files)
    for finding in wrong:
        raise fail(BAD_USE, f"{finding.place()}: {finding.message}")
    if not documents:
        raise fail(BAD_USE, "no object in these files")
    return documents


@click.command(
    epilog=examples(
        "muster submit train.yaml                 # would it start now, and where?",
        "muster submit train.yaml -o json | jq '.[0].where'",
        "muster submit train.yaml --create",
        codes="0 it would start now (with --create: it was created); 1 it would wait; 2 bad use; 3 refused; "
        "4 no cluster, or no rights to know.",
    )
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--create", is_flag=True, help="Create it afterwards, whether it would start or wait.")
@click.option(
    "--config", type=click.Path(), help="The controller's configuration file, where you may not read its ConfigMap."
)
@asking(watch=False)
def submit(scope: Scope, files: tuple[str, ...], create: bool, config: str | None) -> None:
    """Say whether a job would start now and on which nodes, else why not; then create it, with --create.

    The API server checks the manifest by a dry run, and also the Jobs of a JobSet, which it would otherwise see only
    when they are created. Then the engine decides on the cluster as it is now, by the rules in the controller's
    ConfigMap, if you may read it. A full answer needs the right to read nodes, pods and queues of the whole cluster;
    without it you are told what can be known. Of several jobs, each is judged as if those before it were created.
    """
    documents = _objects(files)

    from admission.controller import whatif

    for document in documents:  # all, before the first is created
        try:
            whatif.job_kind(document.obj)
        except ValueError as error:
            raise fail(BAD_USE, f"{document.file}: {error}") from None
    seen: list[Any] = []

    async def work(session: Session) -> None:
        from admission.api.config import ConfigError, load_config

        unread = ""
        if config is None:
            rules, governed, unread = await rules_in_use(session)
        else:
            try:
                rules, governed = _said_by(load_config(Path(config)), session, known=True)
            except (ConfigError, ValueError, OSError) as error:
                raise fail(BAD_USE, str(error)) from None
        earlier: list[whatif.Earlier] = []
        for document in documents:
            ask = session.ask()
            one = await whatif.foresee(ask, document.obj, session.namespace, rules, governed, earlier)
            if create and one.answer is not whatif.Foresight.REFUSED:
                one = await whatif.create(ask, document.obj, one, earlier)
            seen.append(one)
        if unread and any(one.answer.value in ("starts", "waits") for one in seen):
            print(f"muster: {unread}", file=sys.stderr)

    try:
        run(scope, work, "asking the engine")
    except click.exceptions.Exit:
        if any(one.created for one in seen):  # whoever runs it again must know
            _tell_foreseen(scope, seen)
        raise
    _tell_foreseen(scope, seen)
    codes = {"starts": 0, "unmanaged": 0, "waits": NO, "refused": 3, "unknown": NO_CLUSTER}
    raise click.exceptions.Exit(max(0 if one.created else codes[one.answer.value] for one in seen))


def _said_by(config: Any, session: Session, *, known: bool) -> tuple[Any, Any]:
    """(rules by which is decided, whose jobs are, and which may be) of a configuration."""
    from admission.controller.setup import default_queue, limits_of, looked_at, rules_of
    from admission.controller.whatif import Governed

    queued = looked_at(config, session.home), default_queue(config), known, limits_of(config)
    return rules_of(config), Governed(*queued)


async def rules_in_use(session: Session) -> tuple[Any, Any, str]:
    """Those that the controller decides by, as its ConfigMap says, or of the preset; whose jobs it queues; and why that
    is not what a ConfigMap says that is there."""
    from admission.api.config import ConfigError, Configuration, load_config
    from admission.controller.resources import CONFIG_MAPS
    from admission.kube.client import Forbidden, NotFound

    name, said, unread, known = session.names.config_map, Configuration(), "", False
    try:
        found = await session.client.get(CONFIG_MAPS.path(session.home, name))
        said, known = load_config(str((found.get("data") or {}).get("config.yaml", ""))), True
    except NotFound:
        pass
    except (Forbidden, ConfigError) as error:
        why = "you may not read" if isinstance(error, Forbidden) else "this version cannot read"
        unread = f"{why} ConfigMap {session.home}/{name}: judged by the rules of the preset, see --config"
    return *_said_by(said.of_group(session.names.group), session, known=known), unread


def _tell_foreseen(scope: Scope, seen: list[Any]) -> None:
    from admission.controller import tell

    names = [f"{one.kind.lower()}/{one.name}" for one in seen]
    say(scope.output, [one.as_json() for one in seen], names, tell.foreseen(seen, scope.output))


@click.command(
    epilog=examples(
        "muster export | sed 's/nominalQuota: 64/nominalQuota: 80/' > quota.yaml",
        "muster foresee quota.yaml",
        "muster foresee quota.yaml -o json | jq .evicts",
        codes="0 it was foreseen; 2 bad use; 3 an object would be refused; 4 no cluster, or no rights to know.",
    )
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@asking(watch=False)
def foresee(scope: Scope, files: tuple[str, ...]) -> None:
    """Say which jobs would start, and which be evicted, if quota were as in these files; nothing is written.

    The API server checks the objects by a dry run. Then the engine decides on the cluster as it is now, by the
    controller's rules, until nothing changes any more: once with the quota that is there, and once with that of the
    files. The difference is shown. It assumes that no job comes or ends, and leaves out what only time brings (an
    eviction for fairness of a gang that has just started). Where one of several gangs may be evicted, it may be
    another one in the end. You need the right to read nodes, pods and queues of the whole cluster, and to change these
    objects.
    """
    documents = _objects(files)

    async def work(session: Session) -> Any:
        from admission.controller import whatif

        rules, _, unread = await rules_in_use(session)
        seen = await whatif.outlook(session.ask(), [one.obj for one in documents], session.namespace, rules)
        if unread and not seen.refused:
            print(f"muster: {unread}", file=sys.stderr)
        return seen

    from admission.controller import tell

    seen = run(scope, work, "asking the engine")
    if not seen.known:
        raise fail(NO_CLUSTER, f"you may not see {', '.join(seen.hidden)}, which decide about it")
    names = [one.name for one in (*seen.starts, *seen.evicts, *seen.waits, *seen.spares)]
    say(scope.output, seen.as_json(), names, tell.outlook(seen))
    raise click.exceptions.Exit(3 if seen.refused else OK)


# ---------------------------------------------------------------- release-all


@click.command(
    "release-all",
    epilog=examples(
        "kubectl -n muster-system scale deployment muster-controller --replicas=0",
        "muster release-all                       # what would be done",
        "muster release-all --yes",
        "muster release-all --yes --unlabel       # and Muster will not take them back if it is installed again",
        codes="0 done, or nothing refused; 1 something was refused, or a controller leads; 4 no cluster, or no rights.",
    ),
)
@click.option("-y", "--yes", is_flag=True, help="Do it.")
@click.option("--unlabel", is_flag=True, help="Also remove the queue label.")
@asking(unsaid="all of them", watch=False)
def release_all(scope: Scope, yes: bool, unlabel: bool) -> None:
    """Give back every job that Muster holds, before it is uninstalled; without --yes, only say what would be done.

    It restores and unsuspends jobs that wait: they all start at once, as far as nodes have room. Jobs that run go on,
    and paused jobs stay paused. Without -n it does so in all namespaces, and also removes the finalizers that keep
    quota objects from being deleted. It does nothing while a controller leads. If you may not look for its Lease in all
    namespaces, name the namespace with --controller-namespace.
    """

    async def work(session: Session) -> Any:
        from dataclasses import replace

        from admission.controller import change
        from admission.kube.client import ApiError

        ask = session.ask()
        not_yet, wrong = await change.leaderless(ask, sure=named)
        if not_yet and yes:
            raise fail(NO, not_yet)
        jobs = await change.held_back(ask, scope.namespace)
        if scope.namespace is None:
            await change.kept(ask)
        if ask.hidden:  # what is not seen would stay held for ever, with nobody to tell
            unseen = ", ".join(ask.hidden)
            raise fail(NO_CLUSTER, f"nothing was changed: you may not see {unseen}, which may have to be given back")
        with steps("giving back", len(jobs)) as step:
            done = await change.release_all(ask, jobs, unlabel=unlabel, dry_run=not yes, step=step)
        done = replace(done, leaderless=f"With --yes it is refused: {not_yet}" if not_yet else wrong)
        if scope.namespace is not None or done.refused:
            return done
        try:
            freed = await change.unkeep(ask, await change.kept(ask), dry_run=not yes)
        except ApiError as error:
            if not yes:
                raise
            freed = (change.Change("quota/*", change.Did.REFUSED, message=change.not_tried(error)),)
        return replace(done, rows=(*done.rows, *freed), hidden=ask.hidden)

    asked_as = click.get_current_context().get_parameter_source("controller_namespace")
    named = asked_as is not click.core.ParameterSource.DEFAULT
    changes = run(scope, work, "looking for jobs")
    tell_changes(scope, changes)


COMMANDS = (stop, resume, requeue, create, export, import_, submit, foresee, release_all)
