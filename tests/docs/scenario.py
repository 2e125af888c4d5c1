"""The worked examples of the documentation, played by the engine.

A fenced block ```scenario holds one example, a line for each fact or step:

    cohort NAME [under COHORT] [AMOUNTS] [weight W]
    queue NAME [under COHORT] [AMOUNTS] [weight W] [strict] [KEY=VALUE ...]
    node NAME AMOUNTS
    run QUEUE N x AMOUNTS [priority P]
    submit QUEUE N x AMOUNTS [priority P]
    finish QUEUE N
    wait SECONDS
    then PRESET: OUTCOME; OUTCOME; ...

AMOUNTS are `8 gpu` or `8 gpu + 64 cpu`; of a queue or cohort they are nominal quota. A KEY of a queue is `borrow` or
`lend` (limits on its one resource), `reclaim`, `within` or `borrowing` (policies of its preemption). `run` submits
gangs and lets them be admitted (ten minutes pass, so that nobody is spared for being young); N gangs, each of one pod.
An OUTCOME is `QUEUE AMOUNTS` (what it holds now), `QUEUE nothing`, `evicted N` (since the last `then`), or `no rest`
(the evictions go on for ever). PRESET is `muster`, `kueue` (classical), `kueue-fair` (Kueue's fair sharing), or left
out for muster. A line of another preset is not looked at; what follows `#` is a remark.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from msgspec.structs import replace

from admission.engine.model import (
    KUEUE,
    MUSTER,
    Preemption,
    PreemptionPolicy,
    Quota,
    Rules,
    Strategy,
    Workload,
)
from tests.engine.town import SECOND, Town, cohort, elastic, gang, node, queue

PRESETS = {"muster": MUSTER, "kueue": KUEUE, "kueue-fair": replace(KUEUE, fair_sharing=True)}
DOCS = Path(__file__).resolve().parents[2] / "docs"
_AMOUNTS = r"\d+ [a-z]+(?: \+ \d+ [a-z]+)*"


@dataclass(frozen=True)
class Example:
    """One block: where it stands, under which heading, and its lines."""

    page: str
    line: int
    title: str
    lines: tuple[str, ...]

    @property
    def presets(self) -> list[str]:
        said = [re.match(r"then(?: ([a-z-]+))?:", line) for line in self.lines]
        return list(dict.fromkeys((one.group(1) or "muster") for one in said if one))


def examples(page: str) -> list[Example]:
    """All blocks of a page of docs/."""
    out: list[Example] = []
    title, began = "", 0
    held: list[str] | None = None
    for number, line in enumerate((DOCS / page).read_text().splitlines(), 1):
        if held is None and line.startswith("#"):
            title = line.lstrip("# ")
        elif line.strip() == "```scenario":
            held, began = [], number
        elif held is not None and line.strip() == "```":
            out.append(Example(page, began, title, tuple(held)))
            held = None
        elif held is not None and (text := line.split("#")[0].strip()):
            held.append(text)
    return out


def amounts(text: str) -> dict[str, int]:
    return {name: int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", text)}


class Player:
    """A Town that an example is played in."""

    def __init__(self, example: Example, preset: str) -> None:
        self.example = example
        self.preset = preset
        self.rules: Rules = PRESETS[preset]
        self.town = Town(*elastic("f"), rules=self.rules)
        self.count: Counter[str] = Counter()
        self.evicted = 0
        self.rest = True

    def play(self) -> int:
        """All lines in turn; how many outcomes were compared."""
        compared = 0
        for line in self.example.lines:
            verb, _, said = line.partition(" ")
            if verb in ("then", "then:"):
                who, _, outcomes = line.partition(":")
                if (who.split()[1:] or ["muster"])[0] == self.preset:
                    for outcome in outcomes.split(";"):
                        self.compare(outcome.strip(), line)
                        compared += 1
                    self.evicted = 0
                continue
            step = getattr(self, f"do_{verb}", None)
            assert step is not None, f"{self.example.page}:{self.example.line}: what does {line!r} mean?"
            step(said)
        return compared

    # -- facts

    def do_cohort(self, said: str) -> None:
        name, rest = _first(said)
        quota: dict[str, int | Quota] = {**amounts(_cut(rest, "weight"))}
        value = cohort(name, _after(rest, "under"), [("f", quota)] if quota else [])
        self.town.put(replace(value, weight=_weight(rest)))
        self.settle()

    def do_queue(self, said: str) -> None:
        name, rest = _first(said)
        keys = dict(re.findall(r"([a-z]+)=(\w+)", rest))
        found = re.search(_AMOUNTS, _cut(rest, "weight"))
        quota: dict[str, int | Quota] = {
            resource: Quota(number, *(int(keys[key]) if key in keys else None for key in ("borrow", "lend")))
            for resource, number in amounts(found.group() if found else "").items()
        }
        value = queue(name, _after(rest, "under"), [("f", quota)])
        self.town.put(
            replace(
                value,
                weight=_weight(rest),
                strategy=Strategy.STRICT_FIFO if "strict" in rest.split() else Strategy.BEST_EFFORT_FIFO,
                preemption=Preemption(
                    within_cluster_queue=PreemptionPolicy(keys.get("within", "Never")),
                    reclaim_within_cohort=PreemptionPolicy(keys["reclaim"]) if "reclaim" in keys else None,
                    borrow_within_cohort=PreemptionPolicy(keys.get("borrowing", "Never")),
                ),
            )
        )
        self.settle()

    def do_node(self, said: str) -> None:
        """The first node makes the flavor one of real nodes."""
        name, rest = _first(said)
        self.town.put(*(replace(one, elastic=False) for one in elastic("f")), node(name, **amounts(rest)))

    # -- steps

    def do_submit(self, said: str) -> None:
        self._submit(said)
        self.settle()

    def do_run(self, said: str) -> None:
        self.do_submit(said)
        self.do_wait("600")

    def do_finish(self, said: str) -> None:
        name, number = said.split()
        running = sorted(
            (one for one in self.town.gangs() if one.queue == name and one.admission is not None),
            key=lambda one: one.created,
        )
        for one in running[: int(number)]:
            self.town.remove(Workload, one.key)
        self.settle()

    def do_wait(self, said: str) -> None:
        self.town.now += int(said) * SECOND
        self.settle()

    def _submit(self, said: str) -> None:
        found = re.fullmatch(rf"([\w-]+) (\d+) x ({_AMOUNTS})(?: priority (\d+))?", said)
        assert found, f"{self.example.page}:{self.example.line}: {said!r}"
        name, count, each, priority = found.groups()
        for _ in range(int(count)):
            self.count[name] += 1
            one = gang(f"{name}-{self.count[name]:02}", name, each=amounts(each), priority=int(priority or 0))
            self.town.put(replace(one, created=self.town.now + self.count[name]))

    def settle(self) -> None:
        """To rest, or 40 rounds."""
        before = self.town.evictions.total()
        self.rest = self.town.rests(40) and self.rest
        self.evicted += self.town.evictions.total() - before

    # -- outcomes

    def compare(self, outcome: str, line: str) -> None:
        where = f"{self.example.page}:{self.example.line}, {self.preset}: {line!r}"
        if outcome == "no rest":
            assert not self.rest, f"{where}: it comes to rest"
            return
        assert self.rest, f"{where}: it does not come to rest"
        name, said = _first(outcome)
        if name == "evicted":
            assert self.evicted == int(said), f"{where}: {self.evicted} were evicted"
            return
        assert ("ClusterQueue", name) in self.town.objects, f"{where}: there is no queue {name}"
        used: Counter[str] = Counter()
        for one in self.town.gangs():
            if one.queue == name and one.admission is not None and not one.evicted:
                for part in one.admission.pod_sets:
                    used.update(dict(part.usage))
        wanted = {} if said == "nothing" else amounts(said)
        assert {r: n for r, n in used.items() if n} == {r: n for r, n in wanted.items() if n}, f"{where}: {dict(used)}"


def _first(text: str) -> tuple[str, str]:
    name, _, rest = text.partition(" ")
    return name, rest.strip()


def _after(text: str, word: str) -> str:
    found = re.search(rf"\b{word} (\S+)", text)
    return found.group(1) if found else ""


def _cut(text: str, word: str) -> str:
    """Without `word` and what follows it, nor the parent."""
    return re.sub(rf"\b(?:{word}|under) \S+", "", text)


def _weight(text: str) -> Fraction:
    return Fraction(_after(text, "weight") or 1)
