"""Replay given samples of problems, and count what a decided vote saves.

    python benchmarks/vote_replay.py FILE [--field response] [--task math500] [--certainties 1 0.95 0.9]
        [--batches 1 4 8] [--orders 20] [--seed 0] [--json [FILE]]

Each line of FILE is a problem with its samples, a list of texts in ``--field``. No model runs. The rule is
that of `eval --stop-samples`. Samples are drawn in ``--orders`` random orders of each problem, in batches as
by `--concurrency`: those of a batch are written at the same pace, so the shortest end first, and the others
are cancelled when the vote is decided.

``written`` is the share of all characters that are written until the vote, those of cancelled samples
included. ``passes`` adds the lengths of the longest texts of the batches, over that of the longest sample:
the time beside that of all samples in one batch, if a pass takes as long for one sample as for all. ``same``
is the share of votes with an answer of the vote of all samples.
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

from arms import printer, write_rows
from text_columns import VOTES

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
    """Means over problems and orders."""

    batch: int
    certainty: float
    num_problems: int
    num_samples: float
    drawn: float
    written: float
    passes: float
    same: float


def winners(samples: Iterable[Sample]) -> set[object]:
    """Return the answers that most samples give."""
    counts = Counter(sample.answer for sample in samples if sample.answer is not None)
    most = max(counts.values(), default=0)
    return {answer for answer, count in counts.items() if count == most}


def vote_of(samples: Sequence[Sample], certainty: float, batch: int) -> Vote:
    """Return the vote of samples that are drawn in this order, so many at a time."""
    rule = StopRule(len(samples), certainty)
    counts: Counter[object] = Counter()
    finished: list[Sample] = []
    written = passes = 0
    for start in range(0, len(samples), batch):
        running = sorted(samples[start : start + batch], key=lambda sample: sample.length)
        last = running[-1]
        is_decided = False
        for sample in running:
            finished.append(sample)
            if sample.answer is not None:
                counts[sample.answer] += 1
            if is_decided := rule.decides(list(counts.values()), len(finished)):
                last = sample
                break
        written += sum(min(sample.length, last.length) for sample in running)
        passes += last.length
        if is_decided:
            break
    every = winners(samples)
    return Vote(
        len(finished),
        written / sum(sample.length for sample in samples),
        passes / max(sample.length for sample in samples),
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
    rows = []
    for batch in options.batches:
        for certainty in options.certainties:
            votes = [vote_of(samples, certainty, batch) for samples in orders]
            rows.append(
                Row(
                    batch,
                    certainty,
                    len(problems),
                    statistics.fmean(map(len, problems)),
                    statistics.fmean(vote.num_drawn for vote in votes),
                    statistics.fmean(vote.written for vote in votes),
                    statistics.fmean(vote.passes for vote in votes),
                    statistics.fmean(vote.same for vote in votes),
                )
            )
    return rows


print_rows = printer(*VOTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--field", default="response")
    parser.add_argument("--task", default="math500", help="how answers are read (default: math500)")
    parser.add_argument("--certainties", type=float, nargs="+", default=[1.0, 0.95, 0.9])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8], help="samples at once")
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, nargs="?", const=Path("-"))
    options = parser.parse_args()
    if min(options.orders, *options.batches) < 1 or not all(
        0.5 < certainty <= 1 for certainty in options.certainties
    ):
        parser.error("--orders and --batches are at least 1, and a certainty lies above 0.5, up to 1")
    write_rows(
        rows_of(read_samples(options.file, options.field, get_task(options.task)), options),
        options.json,
        print_rows,
    )


if __name__ == "__main__":
    main()
