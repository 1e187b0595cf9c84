"""Replay given samples of problems as a target would write them, and count what they save each other.

    python benchmarks/sample_replay.py FILE [--field response] [--problems 8] [--max-tokens 400]
        [--budgets 8 24] [--json [FILE]]

Each line of FILE is a problem with its ``question``, and its samples as a list of texts. All samples of a
problem are written in turn, one pass of each at a time: sources draft, the path that the sample follows and
one token more are taken. No model runs, so the tables of ``samples`` hold the tokens that came, with a chance
of 1, where the engine keeps whole predictions. Tokens are those of ``models:smollm2-gsm8k``.

Rows draft by prompt lookup, and beside it:

- ``apart``: from a table of each sample's own tokens; ``samples``: from one table for all samples of a
  problem, with each shape of the tree;
- ``suffix`` and ``suffix:published`` (alpha 1 and 4): from a suffix cache that all samples and problems
  share, where it proposes something alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from arms import write_rows
from rich.console import Console
from rich.table import Table

from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.settings import SuffixSettings
from reason_spec.speculation.draft_calibration import DraftCalibration, LookupRate
from reason_spec.speculation.draft_tree import (
    ChainSource,
    NextTokens,
    PredictedSource,
    Source,
    TreeSource,
    united,
)
from reason_spec.speculation.draft_tree import Path as Drafted
from reason_spec.speculation.drafters import look_up
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.speculation.recycling import RecycledTokens, sibling_table
from reason_spec.speculation.tree_shapes import DraftTreeName, RankRates, beam, chain, fixed_shape
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey

_LEAST: Final = 0.02


class Problem(NamedTuple):
    """A question and its samples, in tokens."""

    question: list[int]
    samples: list[list[int]]


class RowSpec(NamedTuple):
    """A row: which samples share a table of tokens, the shape of the tree, and the suffix cache."""

    name: str
    table: str = "none"
    shape: DraftTreeName = "greedy"
    suffix: SuffixSettings | None = None


ROWS: Final = (
    RowSpec("prompt_lookup"),
    RowSpec("apart", "sample"),
    *(RowSpec(f"samples:{shape}", "problem", shape) for shape in ("greedy", "chain", "eagle2", "sequoia")),
    RowSpec("suffix", suffix=SuffixSettings()),
    *(
        RowSpec(
            f"suffix:published, alpha {alpha}", suffix=SuffixSettings(rule="published", max_spec_factor=alpha)
        )
        for alpha in (1, 4)
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The printed row."""

    name: str
    budget: int
    tokens: int
    tokens_per_pass: float
    drafted: float
    accepted: float


class Replay:
    """Writes samples with the sources of one row, and counts."""

    def __init__(self, spec: RowSpec, budget: int) -> None:
        self._spec, self._budget = spec, budget
        self._calibration, self._lookups, self._ranks = DraftCalibration(), LookupRate(), RankRates()
        self._earlier: EarlierTexts | None = None
        if spec.suffix is not None:
            self._earlier = EarlierTexts(open_caches(spec.suffix, StoreKey("", "")), rule=spec.suffix.rule)
        self._numbers = itertools.count()
        self.passes = self.tokens = self.drafted = 0

    def write(self, problem: Problem) -> None:
        """Write all samples of a problem in turn."""
        shared = sibling_table()
        live = [
            self._passes(
                problem.question, sample, shared if self._spec.table == "problem" else sibling_table()
            )
            for sample in problem.samples
        ]
        while live:
            live = [writing for writing in live if next(writing, None) is not None]

    def row(self) -> Row:
        right = self.tokens - self.passes
        return Row(
            self._spec.name,
            self._budget,
            self.tokens,
            self.tokens / self.passes,
            self.drafted / self.passes,
            right / max(1, self.drafted),
        )

    def _passes(self, question: list[int], sample: list[int], table: RecycledTokens) -> Iterator[int]:
        number, text, done = next(self._numbers), list(question), 0
        if self._earlier is not None:
            self._earlier.begin(number, "", "", [("prompt", question)])
        while done < len(sample):
            sources = list(self._sources(text, table, number))
            drafts = self._tree(sources)
            generated = sample[done : done + 1 + _count_taken(drafts, sample[done:])]
            if self._spec.shape == "sequoia":
                self._ranks.learn(sources, generated)
            for source in sources:
                source.learn(generated)
            self.passes, self.tokens = self.passes + 1, self.tokens + len(generated)
            self.drafted += len(drafts.tokens)
            for token in generated:
                table.learn(text[-table.num_read :], NextTokens((token,), (1.0,)))
                text.append(token)
            done += len(generated)
            if self._earlier is not None:
                self._earlier.extend(number, generated)
            yield len(generated)
        if self._earlier is not None:
            self._earlier.close(number)

    def _sources(self, text: list[int], table: RecycledTokens, number: int) -> Iterator[Source]:
        if self._earlier is not None:
            found = self._earlier.propose(number, text, self._budget, tree=True)
            calibration = self._earlier.calibration(number)
            if found.tokens and calibration is not None:
                yield TreeSource(found, calibration)
                return
        if looked_up := look_up(np.asarray(text, np.int64), self._budget):
            yield ChainSource(looked_up, self._lookups)
        if self._spec.table != "none":
            yield PredictedSource(_after(text, table), self._calibration)

    def _tree(self, sources: Sequence[Source]) -> Proposal:
        match self._spec.shape:
            case "greedy":
                return united(sources, self._budget, _LEAST, self._budget, 1.0)
            case "chain":
                return chain(sources, self._budget, _LEAST)
            case "eagle2":
                return beam(sources, self._budget, _LEAST)
            case "sequoia":
                return fixed_shape(sources, self._budget, _LEAST, self._ranks.rates)


def _after(text: list[int], table: RecycledTokens) -> Callable[[Drafted], NextTokens]:
    tail = text[-table.num_read :]
    return lambda path: table.find([*tail, *path])


def _count_taken(drafts: Proposal, rest: Sequence[int]) -> int:
    """Return how many tokens of the rest lie on a path of the drafts; all but its last can be drafted."""
    at, taken = -1, 0
    for node, (token, parent) in enumerate(zip(drafts.tokens, drafts.parents, strict=True)):
        # Parents stand before children, and siblings differ: one walk finds the path.
        if parent == at and taken < len(rest) - 1 and token == rest[taken]:
            at, taken = node, taken + 1
    return taken


def read_problems(file: Path, field: str, count: int, max_tokens: int) -> list[Problem]:
    tokenizer = load_tokenizer(resolve_model("target", "models:smollm2-gsm8k"), None)
    lines = file.read_text(encoding="utf-8").splitlines()[:count]
    return [
        Problem(
            list(tokenizer.encode(fields["question"])),
            [list(tokenizer.encode(text))[:max_tokens] for text in fields[field]],
        )
        for fields in map(json.loads, lines)
    ]


def show(rows: Sequence[Row]) -> None:
    table = Table()
    for heading in ("row", "budget", "tokens", "tokens/pass", "drafted/pass", "accepted"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    for row in rows:
        counts = f"{row.tokens_per_pass:.3f}", f"{row.drafted:.1f}", f"{row.accepted:.1%}"
        table.add_row(row.name, str(row.budget), str(row.tokens), *counts)
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--field", default="response", help="field with the samples of a problem")
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=400, help="tokens of a sample that are written")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    problems = read_problems(options.file, options.field, options.problems, options.max_tokens)
    rows: list[Row] = []
    for budget, spec in itertools.product(options.budgets, ROWS):
        replay = Replay(spec, budget)
        for problem in problems:
            replay.write(problem)
        rows.append(replay.row())
        sys.stderr.write(f"{rows[-1]}\n")
    write_rows(rows, options.json, show)


if __name__ == "__main__":
    main()
