"""The commands ``grade`` and ``verify``: answers and pairs of steps that exist already."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reason_spec.cli.command import run_interruptible, waiting
from reason_spec.cli.flags import Flags, takes_flags
from reason_spec.cli.options import JsonOption, QuietOption

if TYPE_CHECKING:
    from reason_spec.tasks.regrade import GradeCounts
    from reason_spec.verifiers.pairs import VerifySummary


@takes_flags("task", "skip_bad")
def grade(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Responses: jsonl with question, answer, response.")
    ],
    output: Annotated[Path, typer.Option(help="Output: the same lines with prediction and correct.")],
    flags: Flags,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Grade existing responses against their reference answers."""
    from reason_spec.tasks.regrade import grade_file

    settings, skip_bad = flags.resolve(), flags.given["skip_bad"]
    with waiting("Grading", quiet or as_json):
        counts = grade_file(file, output, settings.task.name, skip_bad)
    if as_json:
        record = {**counts._asdict(), "accuracy": counts.accuracy, "output": str(output)}
        del record["shares"]
        record["bad_lines"] = [line._asdict() for line in counts.bad_lines]
        typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        typer.echo(_grade_line(counts))


@takes_flags("verifier", "skip_bad")
def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Pairs of steps: jsonl with a, b and optionally context.")
    ],
    output: Annotated[Path, typer.Option(help="Output: the same lines with verdict and score, in order.")],
    flags: Flags,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Judge pairs of steps: can the first replace the second?"""
    from reason_spec.accelerator.verifier_models import models_to_ask
    from reason_spec.verifiers.base import create_verifier
    from reason_spec.verifiers.pairs import verify_file

    settings, skip_bad = flags.resolve(), flags.given["skip_bad"]
    judge = create_verifier(settings=settings.verifier, models=models_to_ask(settings))
    with waiting(f"Verifying with {judge.name}", quiet or as_json):
        summary = run_interruptible(verify_file(file, output, judge, skip_bad))
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "output": str(output)}))
    else:
        typer.echo(_verify_line(summary))


def _grade_line(counts: GradeCounts) -> str:
    from reason_spec.evaluation.amounts import counted, percent, percent_range
    from reason_spec.evaluation.estimates import estimate_share

    if not counts.num_responses:
        return "0 of 0 responses are correct: the file holds none" + _left_out(len(counts.bad_lines))
    mean, num_questions = estimate_share(counts.shares, counts.num_responses), len(counts.shares)
    # Responses to one question are not independent, so the interval is that of the mean over questions.
    over = ""
    if num_questions < counts.num_responses:
        over = f"mean over {counted(num_questions, 'question')} {percent(mean.value)}, "
    return (
        f"{counts.num_correct} of {counts.num_responses} responses are correct: {percent(counts.accuracy)} "
        f"({over}95 % interval {percent_range(mean.interval)}); "
        f"{counts.num_without_answer} without an answer, {counts.num_ungraded} undecided"
        + _left_out(len(counts.bad_lines))
    )


def _verify_line(summary: VerifySummary) -> str:
    from reason_spec.evaluation.amounts import counted
    from reason_spec.evaluation.outcome import DECISIONS

    verdicts = ", ".join(f"{summary.decisions.get(name, 0)} {name}" for name in DECISIONS)
    each = 1000 * summary.seconds / summary.num_pairs if summary.num_pairs else 0.0
    pairs = counted(summary.num_pairs, "pair")
    return f"{pairs}: {verdicts}; {each:.1f} ms each" + _left_out(summary.num_skipped_lines)


def _left_out(count: int) -> str:
    return f"; {count} unusable line{'' if count == 1 else 's'} left out" if count else ""
