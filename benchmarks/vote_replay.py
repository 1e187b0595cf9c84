"""Replay given samples of problems, and count what a decided vote saves.

    python benchmarks/vote_replay.py FILE [--field response] [--task math500] [--certainties 1 0.95 0.9]
        [--orders 20] [--seed 0] [--json [FILE]]

Each line of FILE is a problem with its samples, a list of texts in ``--field``. No model runs. The rule is
that of `eval --stop-samples`. ``in turn``: samples are drawn one after another, in ``--orders`` random orders
of each problem. ``at once``: all are written at the same pace, so the shortest end first, and the others are
cancelled when the vote is decided.

``written`` is the share of all characters that are written until the vote, those of cancelled samples
included. ``passes`` is, at once, the length of the longest sample that ended over that of the longest of
all: the share of the time. ``same`` is the share of votes with an answer of the vote of all samples.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from arms import write_rows
from rich.console import Console
from rich.table import Table

from reason_spec.evaluation.repeated import normal_form
from reason_spec.evaluation.voting import StopRule
from reason_spec.tasks.base import Task, get_task


class Sample(NamedTuple):
    """The answer of a sample, None without one, and its length in characters."""

    answer: object
    length: int


class Vote(NamedTuple):
    """A vote: finished samples, shares of ``written`` and ``passes``, and whether it is the same."""

    num_drawn: int
    written: float
    passes: float
    same: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Means over problems, and over orders where samples are drawn in turn."""

    drawing: str
    certainty: float
    num_problems: int
    num_samples: float
    drawn: float
    written: float
    passes: float | None
    same: float


def winners(samples: Iterable[Sample]) -> set[object]:
    """Return the answers that most samples give."""
    counts = Counter(sample.answer for sample in samples if sample.answer is not None)
    most = max(counts.values(), default=0)
    return {answer for answer, count in counts.items() if count == most}


def num_needed(samples: Sequence[Sample], certainty: float) -> int:
    """Return after how many samples, in this order, the vote is decided."""
    rule = StopRule(len(samples), certainty)
    counts: Counter[object] = Counter()
    for number, sample in enumerate(samples, start=1):
        if sample.answer is not None:
            counts[sample.answer] += 1
        if rule.decides(list(counts.values()), number):
            return number
    return len(samples)


def vote_of(samples: Sequence[Sample], certainty: float, *, at_once: bool) -> Vote:
    """Return the vote of samples that end in this order."""
    number = num_needed(samples, certainty)
    finished = samples[:number]
    longest = max(sample.length for sample in finished)
    written = sum(sample.length for sample in finished)
    if at_once:
        written = sum(min(sample.length, longest) for sample in samples)
    every = winners(samples)
    return Vote(
        number,
        written / sum(sample.length for sample in samples),
        longest / max(sample.length for sample in samples),
        not every or not every.isdisjoint(winners(finished)),
    )


def read_samples(path: Path, field: str, task: Task) -> list[list[Sample]]:
    """Read the samples of each problem.

    Raises:
        SystemExit: a line has no list of texts in the field.
    """
    problems = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        texts = json.loads(line).get(field)
        if not isinstance(texts, list) or len(texts) < 2:
            sys.exit(f"error: {path}, line {number}: {field!r} is no list of at least two texts")
        samples = []
        for text in texts:
            prediction = task.extract(text)
            samples.append(Sample(None if prediction is None else normal_form(prediction), max(1, len(text))))
        problems.append(samples)
    return problems


def rows_of(problems: Sequence[Sequence[Sample]], options: argparse.Namespace) -> list[Row]:
    rng = random.Random(options.seed)
    orders = [rng.sample(samples, len(samples)) for samples in problems for _ in range(options.orders)]
    by_length = [sorted(samples, key=lambda sample: sample.length) for samples in problems]
    rows = []
    for drawing, drawn in (("in turn", orders), ("at once", by_length)):
        for certainty in options.certainties:
            votes = [vote_of(samples, certainty, at_once=drawing == "at once") for samples in drawn]
            rows.append(
                Row(
                    drawing,
                    certainty,
                    len(problems),
                    statistics.fmean(map(len, problems)),
                    statistics.fmean(vote.num_drawn for vote in votes),
                    statistics.fmean(vote.written for vote in votes),
                    statistics.fmean(vote.passes for vote in votes) if drawing == "at once" else None,
                    statistics.fmean(vote.same for vote in votes),
                )
            )
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    table = Table()
    for heading in ("samples", "certainty", "drawn", "written", "passes", "same"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.drawing,
            f"{row.certainty:g}",
            f"{row.drawn:.2f} of {row.num_samples:g}",
            f"{row.written:.1%}",
            "-" if row.passes is None else f"{row.passes:.1%}",
            f"{row.same:.1%}",
        )
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--field", default="response")
    parser.add_argument("--task", default="math500", help="how answers are read (default: math500)")
    parser.add_argument("--certainties", type=float, nargs="+", default=[1.0, 0.95, 0.9])
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, nargs="?", const=Path("-"))
    options = parser.parse_args()
    if options.orders < 1 or not all(0.5 < certainty <= 1 for certainty in options.certainties):
        parser.error("--orders is at least 1, and a certainty lies above 0.5, up to 1")
    write_rows(
        rows_of(read_samples(options.file, options.field, get_task(options.task)), options),
        options.json,
        print_rows,
    )


if __name__ == "__main__":
    main()
