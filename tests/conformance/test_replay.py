"""Known answers as tests, one per table; and the replay itself on a case of its own.

The cases are read in place: from $CASES, or from `shared/conformance/cases` beside the checkout. Without them there is
nothing to replay, and this says so by skipping.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance import replay, skips
from tests.conformance.registry import TABLES, differences

CASES = Path(os.environ.get("CASES") or Path(__file__).parents[3] / "shared" / "conformance" / "cases")
FILES = sorted(CASES.glob("*.json")) if CASES.is_dir() else []
replay.load()


@pytest.mark.parametrize("path", FILES or [None], ids=lambda path: path.stem if path else "no-cases")
def test_table(path: Path | None) -> None:
    if path is None:
        pytest.skip(f"no cases in {CASES}")
    content = json.loads(path.read_text())
    table = content["meta"]["test"]
    if table not in TABLES:
        pytest.skip("not replayed yet")
    failed = {
        case["name"]: differs
        for case in content["cases"]
        if skips.reason(table, case) is None and (differs := replay.run_case(table, case))
    }
    assert not failed


def write(directory: Path, quota: str, want: int) -> None:
    case = {
        "name": "one queue",
        "config": {},
        "inputs": {
            "clusterQueues": [
                {
                    "kind": "ClusterQueue",
                    "metadata": {"name": "q"},
                    "spec": {
                        "resourceGroups": [
                            {
                                "coveredResources": ["cpu"],
                                "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": quota}]}],
                            }
                        ]
                    },
                }
            ],
            "usage": {"q": {"f/cpu": 500}},
        },
        "expected": {"wantAvailable": {"q": {"f/cpu": want}}, "wantPotentiallyAvailable": {"q": {"f/cpu": 2000}}},
    }
    (directory / "TestAvailable.json").write_text(json.dumps({"meta": {"test": "TestAvailable"}, "cases": [case]}))


@pytest.mark.parametrize(("want", "code", "last"), [(1500, 0, "1 passed, 0 failed"), (1499, 1, "0 passed, 1 failed")])
def test_replay_counts_what_it_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], want: int, code: int, last: str
) -> None:
    write(tmp_path, "2", want)
    assert replay.main(["--cases", str(tmp_path), "--verbose"]) == code
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"{last}, 0 skipped"
    if code:
        assert out[1] == "  FAILED one queue: wantAvailable.q.f/cpu: expected 1499, got 1500"


def test_replay_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["--cases", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 passed, 0 failed, 0 skipped\n"
    assert replay.main(["--cases", str(tmp_path / "none")]) == 2


def test_differences_are_found_wherever_they_are() -> None:
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a[1].b: expected 2, got 3"]
    assert differences({"a": 1}, {"b": 1}) == ["a: expected 1, got nothing", "b: expected nothing, got 1"]
    assert differences([1], [1, 2]) == ["result: expected [1], got [1, 2]"]
