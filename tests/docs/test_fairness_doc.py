"""Every worked example of the pages on fairness comes out as the page says."""

from __future__ import annotations

import pytest

from tests.docs.scenario import PRESETS, Example, Player, examples

PAGES = ("fairness.md", "differences.md")
CASES = [(one, preset) for page in PAGES for one in examples(page) for preset in one.presets]


@pytest.mark.parametrize(("example", "preset"), CASES, ids=[f"{one.page}-{one.line}-{preset}" for one, preset in CASES])
def test_it_comes_out_as_written(example: Example, preset: str) -> None:
    assert preset in PRESETS
    assert Player(example, preset).play() > 0


def test_each_difference_is_shown_with_both() -> None:
    for one in examples("differences.md"):
        assert "muster" in one.presets, one
        assert {"kueue", "kueue-fair"} & set(one.presets), one
