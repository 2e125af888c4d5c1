"""What merges do to a list to which everybody adds."""

import re
from collections import Counter
from pathlib import Path


def test_no_entry_stands_there_twice() -> None:
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8")
    begins = Counter(entry[:60] for entry in re.findall(r"^- (.+)$", text, re.MULTILINE))
    assert len(begins) > 100
    assert not [begin for begin, times in begins.items() if times > 1]
