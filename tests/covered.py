"""Which tests cover each value of the chart, each key of the configuration, each metric and each command.

    python -m tests.covered     print the table, as Markdown

A test covers a value when a row of the chart's matrix changes it (which is rendered, judged, compared with what is
rendered without it, and offered to a real API server); a key of the configuration file when it says it to what
runs by it (not to the parser alone, nor to the chart); a metric when it names one of its series, or tries an alert or a
panel that asks for it; a command, or an option, when it runs it with it. What is read is the source of the tests, so
that it costs seconds; tests/test_covered.py fails where a line of the table would be empty.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import yaml
from pydantic import BaseModel

from admission.api.config import Configuration, Section
from admission.cli import cli
from admission.web.metrics import FAMILIES
from charts.monitoring import ALERTS, DASHBOARDS
from tests.chart.test_chart import TRIED
from tests.docs.blocks import PAGES, blocks, examples, tried_by

ROOT = Path(__file__).parents[1]
RUNNERS = {"run", "people", "seen", "invoke", "commanded", "standing", "guide", "start", "make_context"}
"""What tests call to run a command, with its words as arguments."""


@dataclass(frozen=True)
class Test:
    """One test function: FILE::NAME, with all that it says: itself, and what it uses of its module."""

    name: str
    strings: frozenset[str]
    commands: tuple[tuple[tuple[str, ...], frozenset[str]], ...]
    """(the words of a command that it runs, those that may be options of it)"""
    keys: frozenset[tuple[str, ...]]
    """Paths of keys in the configurations that it says, as YAML or as a mapping."""


@cache
def tests() -> tuple[Test, ...]:
    paths = [path for folder in ("tests", "e2e") for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(one for path in paths if path.stem not in ("covered", "test_covered") for one in _of(path))


FIXTURES = {"e2e/installed.py": "Installed"}
"""What runs a command for the tests of other files."""


@dataclass(frozen=True)
class _Part:
    """A function, class or table of a module: what it says and runs, and whom it names."""

    strings: frozenset[str]
    names: frozenset[str]
    ran: tuple[tuple[tuple[str, ...], bool], ...]
    """(words, is it a list): a list is added to and handed on, so that its options may be anything that is said."""
    keys: frozenset[tuple[str, ...]]


@cache
def _parts(path: Path) -> dict[str, _Part]:
    out: dict[str, _Part] = {}
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            out[node.name] = _part(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            out |= {name.id: _part(node) for name in names if isinstance(name, ast.Name)}
    return out


def _part(node: ast.AST) -> _Part:
    """Commands are calls of RUNNERS, lists, and lines of shell with `muster` in them."""
    strings, names = set(), set()
    keys: set[tuple[str, ...]] = set()
    ran: list[tuple[tuple[str, ...], bool]] = []
    for one in ast.walk(node):
        if isinstance(one, ast.Dict):
            keys.update(_paths(_said_in(one)))
        elif isinstance(one, ast.JoinedStr):
            keys.update(
                _in_yaml("".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in one.values))
            )
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            strings.add(one.value)
            keys.update(_in_yaml(one.value))
            ran += [(words, False) for words in _shell(one.value)]
        elif isinstance(one, ast.Name):
            names.add(one.id)
        elif isinstance(one, ast.arg):  # fixtures
            names.add(one.arg)
        elif isinstance(one, ast.List | ast.Tuple):
            ran.append((tuple(_words(one.elts)), True))
        elif isinstance(one, ast.Call):
            called = one.func.id if isinstance(one.func, ast.Name) else getattr(one.func, "attr", "")
            if called in RUNNERS:
                ran.append((tuple(_words(one.args)), False))
    return _Part(frozenset(strings), frozenset(names), tuple(one for one in ran if one[0]), frozenset(keys))


def _said_in(node: ast.expr) -> object:
    """What is written there, as far as it is written: names and calls are None."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {key.value: _said_in(value) for key, value in pairs if isinstance(key, ast.Constant)}
    return [_said_in(one) for one in node.elts] if isinstance(node, ast.List) else None


def _in_yaml(text: str) -> Iterator[tuple[str, ...]]:
    if not any(f"{key}:" in text for key in SECTIONS):
        return
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            return  # within itself it has no end
        for document in yaml.safe_load_all(text):
            yield from _paths(document)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError):  # `!!bool maybe`, and worse
        return


def _paths(said: object) -> Iterator[tuple[str, ...]]:
    """Paths of keys in a configuration, or a part of one; none of any other mapping."""
    if not isinstance(said, dict) or not said or not said.keys() <= SECTIONS:
        return
    left: list[tuple[tuple[str, ...], object]] = [((), said)]
    while left:
        path, found = left.pop()
        yield path
        left += [((*path, str(key)), value) for key, value in found.items()] if isinstance(found, dict) else []
        left += [(path, one) for one in found] if isinstance(found, list) else []


def _of(path: Path) -> Iterator[Test]:
    file = str(path.relative_to(ROOT))
    for name in _parts(path):
        if name.startswith("test_") or FIXTURES.get(file) == name:
            used = _used(path, name)
            strings = frozenset[str]().union(*(part.strings for part in used))
            ran = [(words, strings if listed else frozenset(words)) for part in used for words, listed in part.ran]
            keys = frozenset[tuple[str, ...]]().union(*(part.keys for part in used))
            yield Test(f"{file}::{name}", strings, tuple(ran), keys)


def _used(path: Path, name: str) -> list[_Part]:
    """A test, and what it names of its module, and what that names."""
    parts, left, seen = _parts(path), [name], {name}
    out = []
    while left:
        out.append(parts[left.pop()])
        more = sorted((out[-1].names & parts.keys()) - seen)
        left += more
        seen |= set(more)
    return out


def said_by(test: str) -> frozenset[str]:
    """All that FILE::NAME says, a test or a fixture; LookupError where there is none."""
    file, _, name = test.partition("::")
    return frozenset(text for part in _used(ROOT / file, name) for text in part.strings) if name else frozenset()


def _words(nodes: list[ast.expr]) -> Iterator[str]:
    for one in nodes:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        elif isinstance(one, ast.List | ast.Tuple):
            yield from _words(one.elts)
        elif isinstance(one, ast.IfExp):
            yield from _words([one.body])


def _shell(text: str) -> Iterator[tuple[str, ...]]:
    if "muster " not in text:
        return
    for found in re.finditer(r"(?m)(?:^|[\s(/])muster +([a-z-]+[^|;)\n]*)", text):
        try:
            yield tuple(shlex.split(found[1], comments=True))
        except ValueError:
            yield tuple(found[1].split())


# ---------------------------------------------------------------- the lists


def values() -> dict[str, list[str]]:
    """Value of the chart -> rows of tests/chart/test_chart.py that change it."""
    return {path: [f"tests/chart/test_chart.py::MATRIX[{row}]" for row in rows] for path, rows in TRIED.items()}


def _settings(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        inner = [
            one
            for one in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(one, type) and issubclass(one, Section)
        ]
        if inner:
            yield from _settings(inner[0], path)
        else:
            yield path


SECTIONS = frozenset(field.alias or name for name, field in Configuration.model_fields.items())
PARSED = ("tests/api/test_config.py", "tests/chart/test_chart.py", "tests/docs/")
"""Tests that read a configuration and run nothing by it."""


def settings() -> dict[str, list[str]]:
    """Key of the configuration file -> tests that run something by it."""
    saying = [one for one in tests() if not one.name.startswith(PARSED)]
    return {
        ".".join(path): [one.name for one in saying if path in one.keys]
        for path in _settings(Configuration)
        if path not in (("apiVersion",), ("kind",))
    }


def metrics() -> dict[str, list[str]]:
    """Metric -> tests."""
    asked = [
        *((f"tests/chart/test_monitoring.py::FAULTS[{one.name}]", one.expr) for one in ALERTS),
        *(
            (f"tests/chart/test_monitoring.py::PANELS[{board.name}: {panel.title}]", expression)
            for board in DASHBOARDS
            for panel in board.panels
            for expression, _ in panel.queries
        ),
    ]
    out: dict[str, list[str]] = {}
    for family in FAMILIES:
        series = set(family.series())
        by_name = [one.name for one in tests() if series & one.strings]
        by_query = [where for where, text in asked if series & set(re.findall(r"\w+", text))]
        out[family.name] = [*by_name, *dict.fromkeys(by_query)]
    return out


def _leaves(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _leaves(command, (*above, name))
        elif not command.hidden:
            yield (*above, name), command


def commands() -> dict[str, list[str]]:
    """Command, and each of its options (`muster stop --drain`; of those that most have: `muster ... --watch`) -> tests
    that run it."""
    ran = [(one.name, words, options) for one in tests() for words, options in one.commands]
    for _, line in examples():
        ran += [(f"e2e/test_docs.py: {line}", words, frozenset(words)) for words in _shell(line)]
    for block in (one for page in PAGES for one in blocks(page) if one.language == "sh"):
        by = tried_by(block)
        said = {word for text in said_by(by) for word in text.split()}  # what it adds to the page's words
        ran += [(f"{by} ({block.where})", words, said | frozenset(words)) for words in _shell(block.text)]
    leaves = list(_leaves(cli))
    often = Counter(option.opts[-1] for _, command in leaves for option in command.params)
    out: dict[str, list[str]] = {}
    for path, command in leaves:
        called = f"muster {' '.join(path)}"
        mine = [(name, options) for name, words, options in ran if _follows(words, path)]
        out[called] = list(dict.fromkeys(name for name, _ in mine))
        for option in command.params:
            if not isinstance(option, click.Option) or option.hidden:
                continue
            shared = often[option.opts[-1]] > len(leaves) // 2
            forms = {*option.opts, *option.secondary_opts}
            by = [name for name, said in mine if any(word.partition("=")[0] in forms for word in said)]
            row = out.setdefault(f"muster ... {option.opts[-1]}" if shared else f"{called} {option.opts[-1]}", [])
            row += [name for name in dict.fromkeys(by) if name not in row]
    return out


def _follows(words: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Is that command among the words: at their begin, or after the program?"""
    start = next((i + 1 for i, word in enumerate(words) if word in ("muster", "admission.cli")), 0)
    return words[start : start + len(path)] == path


def table() -> str:
    """All of it, as Markdown."""
    parts = []
    for title, rows in (("value", values()), ("key", settings()), ("metric", metrics()), ("command", commands())):
        lines = [f"| `{name}` | {len(by)} | {'<br>'.join(by[:4]) or '**nothing**'} |" for name, by in rows.items()]
        parts.append(f"| {title} | tests | the first of them |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(table())
