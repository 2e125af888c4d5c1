"""Commands that need no cluster, or only to read what files say against it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from admission.commands.options import (
    BAD_USE,
    NO,
    NO_CLUSTER,
    NOT_THERE,
    Scope,
    Session,
    asking,
    examples,
    fail,
    form_option,
    run,
    say,
)


def version_number() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("muster-admission")
    except PackageNotFoundError:
        return "0.1.0 (from source)"


@click.command(epilog=examples("muster version", "muster version -o json"))
@form_option
def version(output: str) -> None:
    """Print the version."""
    number = version_number()
    print({"json": json.dumps({"version": number}), "yaml": f"version: {number}", "name": "muster"}.get(output, number))


@click.command(
    epilog=examples(
        "muster lint quota/",
        "helm template charts/muster | muster lint -",
        "muster lint --cluster",
        "muster lint new.yaml --cluster       # as if it were applied",
        codes="0 clean (infos aside); 1 findings; 2 bad use; 4 no cluster, or no rights.",
    )
)
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--cluster", is_flag=True, help="Check what the cluster holds, as if the files were applied.")
@asking(namespace=False, watch=False)
def lint(scope: Scope, files: tuple[str, ...], cluster: bool) -> None:
    """Find mistakes in quota, each with its line and the fix.

    FILES are files, folders, or - for standard input.
    """
    from admission.api.lint import Severity
    from admission.api.lint import lint as judged
    from admission.controller import tell

    if not files and not cluster:
        raise fail(BAD_USE, "nothing to lint: name files, or --cluster")
    documents, found = manifests(files)
    if files and not documents and not found:
        of_values = "values of the chart are linted as `helm template` renders them"
        raise fail(BAD_USE, f"no object in these files; {of_values}")
    hidden: tuple[str, ...] = ()
    made: frozenset[str] = frozenset()
    by_shares: bool | None = None
    if cluster:
        held, hidden, made, by_shares = run(scope, _cluster_documents, "reading the cluster")
        if hidden and not held:
            raise fail(NO_CLUSTER, f"you may not see {', '.join(hidden)}")
        documents = [*held, *documents]
    found = [*found, *judged(documents, live=cluster and not hidden, made=made, by_shares=by_shares)]
    say(scope.output, [finding.as_json() for finding in found], _called(found), tell.findings(found))
    if hidden:
        print(f"muster: you may not see {', '.join(hidden)}: what they hold was not judged", file=sys.stderr)
    raise click.exceptions.Exit(NO if any(finding.severity is not Severity.INFO for finding in found) else 0)


def _called(found: Iterable[Any]) -> list[str]:
    """kind/name of what the findings are about, each once; of a file as such, its name."""
    subjects = [(finding.file, *finding.subject.partition(" ")) for finding in found]
    named = [f"{kind.lower()}/{name.rpartition('/')[2]}" if name else file for file, kind, _, name in subjects]
    return list(dict.fromkeys(named))


def manifests(files: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """(the linter's Documents, its Findings about what cannot be read) of files, folders and standard input."""
    from admission.api.lint import read

    documents: list[Any] = []
    found: list[Any] = []
    for name in files:
        path = Path(name)
        if name != "-" and not path.exists():
            raise fail(BAD_USE, f"{name}: no such file or folder")
        try:
            if name == "-":
                texts = [("stdin", sys.stdin.buffer.read().decode("utf-8"))]
            else:
                paths = [path]
                if path.is_dir():
                    paths = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json") and p.is_file())
                texts = [(str(one), one.read_text(encoding="utf-8")) for one in paths]
        except (OSError, UnicodeDecodeError) as error:
            raise fail(BAD_USE, f"{name}: {error}") from None
        for label, text in texts:
            more, wrong = read(text, label)
            documents += more
            found += wrong
    return documents, found


async def _cluster_documents(session: Session) -> tuple[list[Any], tuple[str, ...], frozenset[str], bool]:
    """What the cluster holds; what may not be seen of it; resources that only the configuration makes; whether it has
    those who borrow evict by shares."""
    from admission.commands.changes import rules_in_use

    ask = session.ask()
    rules, *_ = await rules_in_use(session)
    made = {output for one in rules.transformations for output, _ in one.outputs}
    return await ask.documents(), ask.hidden, frozenset(made), rules.promises or rules.fair_sharing


@click.command("explain-reasons", epilog=examples("muster explain-reasons", "muster explain-reasons CohortShort"))
@click.argument("word", required=False)
@click.option("--markdown", is_flag=True, help="The whole reference, as docs/reasons.md.")
@form_option
def explain_reasons(word: str | None, markdown: bool, output: str) -> None:
    """Say what each reason for waiting or for an eviction means, and what to do about it.

    WORD is a reason or detail from a condition or from `muster why`.
    """
    from admission.api import reasons
    from admission.controller import tell

    if markdown:
        print(reasons.reference(), end="")
        return
    of_waiting = [*reasons.REASONS.items(), *reasons.DETAILS.items()]
    for_others = {reason.value: reasons.Advice(means, "") for reason, means in reasons.EVICTIONS.items()}
    table = {entry.value: advice for entry, advice in of_waiting if entry.value}
    table = {**table, **reasons.EVICTED, **for_others, **table}  # of a word that is either, why it waits
    if word is not None:
        found = {name: advice for name, advice in table.items() if name.lower() == word.lower()}
        if not found:
            import difflib

            near = difflib.get_close_matches(word, table, n=1)
            raise fail(NOT_THERE, f"no reason {word!r}" + (f": did you mean {near[0]}?" if near else ""))
        table = found
    rows = [
        {"reason": name, "means": advice.means, "owner": advice.owner, "platform": advice.platform}
        for name, advice in table.items()
    ]
    text = tell.written(output, rows, table)
    if text is not None:
        print(text)
        return
    for name, advice in table.items():
        print(f"{name}: {advice.means}")
        for who, what in (("you", advice.owner), ("platform team", advice.platform)):
            if what:
                print(f"    {who}: {what}")


@click.command(
    epilog=examples(
        'eval "$(muster completion bash)"                                # in ~/.bashrc',
        'eval "$(muster completion zsh)"                                 # in ~/.zshrc',
        "muster completion fish > ~/.config/fish/completions/muster.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, and names of jobs, queues and namespaces from the cluster. `kubectl muster` needs
    no script: kubectl finds the program kubectl_complete-muster beside this one.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    print(found(click.get_current_context().find_root().command, {}, "muster", "_MUSTER_COMPLETE").source())


@click.command("reference", hidden=True)
def reference() -> None:
    """Print docs/commands.md."""
    from admission.commands.reference import text

    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    print(text(group), end="")


COMMANDS = (lint, explain_reasons, version, completion, reference)
