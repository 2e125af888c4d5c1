"""python -m tests.conformance.replay --cases DIR [--only REGEX] [--verbose]

Prints one line per table, one per failing case with what differs, and `N passed, N failed, N skipped` at the end. Exit
code 1 when any failed. `--only` matches "Table/case name".
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import skips
from tests.conformance.registry import TABLES, Json

MODULES = ("tables_quota", "tables_cycle", "tables_topology")


@dataclass
class Result:
    table: str
    passed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, list[str]]] = field(default_factory=list)


def load() -> None:
    """Import the tables that there are."""
    for name in MODULES:
        module = f"{__package__}.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)


def run_case(table: str, case: Json) -> list[str]:
    function = TABLES.get(table)
    if function is None:
        return ["no table of that name is registered"]
    try:
        return function(case)
    except Exception as error:
        return [f"{type(error).__name__}: {error}", *traceback.format_exc().splitlines()[-12:]]


def run(directory: Path, only: str = "") -> Iterator[Result]:
    """Replay every case file of a directory, in order of their names."""
    load()
    pattern = re.compile(only) if only else None
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text())
        table = content["meta"]["test"]
        result = Result(table)
        for case in content["cases"]:
            if pattern is not None and not pattern.search(f"{table}/{case['name']}"):
                continue
            why = skips.reason(table, case)
            if why is not None:
                result.skipped.append((case["name"], why))
                continue
            differs = run_case(table, case)
            if differs:
                result.failed.append((case["name"], differs))
            else:
                result.passed += 1
        if result.passed or result.failed or result.skipped:
            yield result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.replay")
    parser.add_argument("--cases", type=Path, required=True, help="directory of case files")
    parser.add_argument("--only", default="", help="regular expression on Table/case name")
    parser.add_argument("--verbose", action="store_true", help="all differences, and the skipped cases")
    args = parser.parse_args(argv)
    if not args.cases.is_dir():
        print(f"{args.cases} is no directory of case files", file=sys.stderr)
        return 2
    passed = failed = skipped = 0
    for result in run(args.cases, args.only):
        passed += result.passed
        failed += len(result.failed)
        skipped += len(result.skipped)
        print(f"{result.table}: {result.passed} passed, {len(result.failed)} failed, {len(result.skipped)} skipped")
        for name, differs in result.failed:
            print(f"  FAILED {name}: {differs[0]}" + (f" (+{len(differs) - 1})" if len(differs) > 1 else ""))
            if args.verbose:
                for line in differs[1:]:
                    print(f"      {line}")
        if args.verbose:
            for name, why in result.skipped:
                print(f"  skipped {name}: {why}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
