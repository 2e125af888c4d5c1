"""python -m tests.bench.plots: draws docs/scale.svg from build/bench/engine.json.

Cost of the first decision after a finish against gangs that wait, nodes, depth of the cohort tree and queues in it;
measured points alone, lines only lead the eye. The file is the same for the same figures.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FIGURES = Path("build/bench/engine.json")
OUT = Path("docs/scale.svg")
PANELS = (
    ("gangs that wait", r"first_decision_at_(\d+)_pending_ms", "log"),
    ("nodes", r"first_decision_at_(\d+)_nodes_ms", "log"),
    ("cohorts above a queue", r"first_decision_at_depth_(\d+)_ms", "linear"),
    ("queues in a tree", r"first_decision_at_(\d+)_queues_in_a_tree_ms", "log"),
)


def points(figures: dict[str, float], pattern: str) -> list[tuple[int, float]]:
    return sorted((int(found[1]), value) for key, value in figures.items() if (found := re.fullmatch(pattern, key)))


def draw(figures: dict[str, float], out: Path) -> None:
    import matplotlib as mpl  # of the group `bench` alone

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "muster", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 2.8), layout="constrained")
    for axis, (label, pattern, scale) in zip(axes, PANELS, strict=True):
        held = points(figures, pattern)
        axis.plot([x for x, _ in held], [y for _, y in held], marker="o", color="#2b6cb0")
        axis.set_xscale(scale)
        axis.set_xlabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("first decision after a finish, CPU ms")
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    try:
        draw(json.loads(FIGURES.read_text()), OUT)
    except (ImportError, FileNotFoundError) as missing:
        print(f"no plots: {missing}", file=sys.stderr)
        return 0
    print(f"plots: {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
