"""Compare lengths of chains and shapes of trees of drafts, on what `draft_places.py` recorded.

    python benchmarks/draft_replay.py FILE... [--budgets 4 8 16] [--json [FILE]]

Every rule sees the same drafts at the same places, so nothing but the rule differs, and no model runs. A pass
takes T(n) for its n tokens and the time of the draft's passes before it, both from the file: ``speedup`` is
that over the target alone, with draft and target on one core, and ``over_chain`` that over the best chain of
fixed length, with the 95 % interval of a bootstrap of texts. Passes over the prompt are left out.

Rows: ``fixed``, chains of ``depth`` tokens; shapes of trees with ``budget`` nodes, for which the draft model
runs ``depth`` levels; ``ours``, the engine's rules for length and size; and rules that end a chain:
``threshold`` (SpecDec++ with the draft's own corrected probability), ``classifier`` (DISCO, Mamou et al.,
arXiv 2405.04304: is the token accepted, by its probability, entropy and place; here a logistic regression,
trained and its threshold chosen on other texts) and ``oracle``, which drafts what will be accepted alone.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from arms import write_rows
from draft_places import CHAIN, Record, Text
from draft_rules import (
    OWN_BUDGET,
    Costs,
    OwnRule,
    Rule,
    TreeRule,
    classifier,
    fixed,
    num_accepted,
    oracle,
    threshold,
    train,
)
from rich.console import Console
from rich.table import Table

from reason_spec.evaluation.statistics import TAIL
from reason_spec.speculation.tree_shapes import DraftTreeName

_TREES: Final[tuple[DraftTreeName, ...]] = ("greedy", "eagle2", "sequoia")
_OWN_SHAPES: Final[tuple[DraftTreeName, ...]] = ("chain", "greedy", "eagle2")
_FOLDS: Final = 3
"""Parts of the texts; a classifier is trained on the others."""
_BOOTSTRAPS: Final = 2000
_REFUSALS: Final = (0.3, 0.5, 0.7)
_LEAST_CHANCES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Thresholds that are tried for the classifier."""


@dataclass(slots=True)
class Work:
    """What one text took."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    levels: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row; ``levels`` are passes of the draft model for one of the target."""

    drafter: str
    name: str
    budget: int
    depth: int | None
    texts: int
    tokens: int
    tokens_per_pass: float
    drafted: float
    levels: float
    ms_per_token: float
    speedup: float
    over_chain: float
    low: float
    high: float
    pass_ms: dict[int, float]
    draft_ms: dict[int, float]


def replay(texts: Sequence[Text], rule: Rule, costs: Costs) -> list[Work]:
    """Return what each text takes; a rule learns from one text for the next."""
    works: list[Work] = []
    for text in texts:
        work = Work(tokens=len(text.tokens) - 1)
        place = 1
        while place < len(text.tokens):
            seen = {one.path: one for one in text.places[place - 1]}
            coming = text.tokens[place:]
            nodes, lanes = rule.draft(seen, place, coming)
            generated = coming[: 1 + num_accepted(nodes, coming[:-1])]
            pass_ms = costs.target(1 + len(nodes.tokens))
            ms = pass_ms + sum(map(costs.draft, lanes))
            rule.learn(generated, len(nodes.tokens), pass_ms, ms)
            place += len(generated)
            work.passes += 1
            work.drafted += len(nodes.tokens)
            work.levels += len(lanes)
            work.ms += ms
        works.append(work)
    return works


def speed(works: Sequence[Work]) -> float:
    """Return tokens a millisecond."""
    return sum(work.tokens for work in works) / sum(work.ms for work in works)


def rows_of(record: Record, budgets: Sequence[int], seed: int) -> list[Row]:
    costs = Costs(record)
    found: list[tuple[str, int, int | None, list[Work]]] = []

    def add(name: str, budget: int, depth: int | None, rule: Rule) -> None:
        found.append((name, budget, depth, replay(record.texts, rule, costs)))

    for number in range(1, CHAIN + 1):
        add("fixed", number, number, fixed(number))
    for shape in _TREES:
        for budget in budgets:
            for depth in range(1, TreeRule(shape, budget, CHAIN).depth + 1):
                add(shape, budget, depth, TreeRule(shape, budget, depth))
    for shape in _OWN_SHAPES:
        add(f"ours:{shape}", OWN_BUDGET, None, OwnRule(shape, costs))
    for refusal in _REFUSALS:
        add(f"threshold {refusal:g}", CHAIN, None, threshold(refusal))
    found.append(("classifier", CHAIN, None, trained_works(record, costs)))
    add("oracle", CHAIN, None, oracle())
    best = max((works for name, _, _, works in found if name == "fixed"), key=speed)
    return [_row(record, costs, *one, best, seed) for one in found]


def trained_works(record: Record, costs: Costs) -> list[Work]:
    """Return what each text takes under a classifier of the texts of other folds."""
    folds = [(place // 2) % _FOLDS for place in range(len(record.texts))]
    works: list[Work] = [Work()] * len(folds)
    for fold in set(folds):
        others = [text for text, own in zip(record.texts, folds, strict=True) if own != fold]
        chances = train(others)
        speeds = {least: speed(replay(others, classifier(chances, least), costs)) for least in _LEAST_CHANCES}
        best = max(speeds, key=speeds.__getitem__)
        own = [place for place, one in enumerate(folds) if one == fold]
        found = replay([record.texts[place] for place in own], classifier(chances, best), costs)
        for place, work in zip(own, found, strict=True):
            works[place] = work
    return works


def _row(
    record: Record,
    costs: Costs,
    name: str,
    budget: int,
    depth: int | None,
    works: Sequence[Work],
    best: Sequence[Work],
    seed: int,
) -> Row:
    passes, tokens = sum(work.passes for work in works), sum(work.tokens for work in works)
    rng = random.Random(seed)
    pairs = list(zip(works, best, strict=True))
    ratios = []
    for _ in range(_BOOTSTRAPS):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(sum(other.ms for _, other in drawn) / sum(own.ms for own, _ in drawn))
    ratios.sort()
    cut = int(TAIL * _BOOTSTRAPS)
    return Row(
        drafter=record.drafter,
        name=name,
        budget=budget,
        depth=depth,
        texts=len(works),
        tokens=tokens,
        tokens_per_pass=tokens / passes,
        drafted=sum(work.drafted for work in works) / passes,
        levels=sum(work.levels for work in works) / passes,
        ms_per_token=1 / speed(works),
        speedup=costs.target(1) * speed(works),
        over_chain=speed(works) / speed(best),
        low=ratios[cut],
        high=ratios[-1 - cut],
        pass_ms=record.pass_ms,
        draft_ms=record.draft_ms,
    )


def show(rows: Sequence[Row]) -> None:
    table = Table()
    headings = "draft|rule|budget|depth|tokens/pass|drafted|levels|ms/token|speed-up|over chain|95 %"
    for heading in headings.split("|"):
        table.add_column(heading, justify="left" if heading in ("draft", "rule") else "right")
    for row in rows:
        numbers = (
            row.tokens_per_pass,
            row.drafted,
            row.levels,
            row.ms_per_token,
            row.speedup,
            row.over_chain,
        )
        shown = [f"{number:.2f}" for number in numbers]
        depth = "-" if row.depth is None else str(row.depth)
        span = f"{row.low:.2f}-{row.high:.2f}"
        table.add_row(row.drafter, row.name, str(row.budget), depth, *shown, span)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    rows = [
        row for file in options.files for row in rows_of(Record.load(file), options.budgets, options.seed)
    ]
    write_rows(rows, options.json, show)


if __name__ == "__main__":
    main()
