"""The command ``solve``: questions step by step, files as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.flags import (
    MODEL_FLAGS,
    PROBLEM_FLAGS,
    SAMPLING_FLAGS,
    STRATEGY_FLAGS,
    Flags,
    takes_flags,
)
from reason_spec.cli.options import (
    OUTPUT,
    CompareOption,
    ConcurrencyOption,
    FreshOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SamplesOption,
    SourcesArgument,
    compared_strategies,
    option,
)
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.evaluation.job import RunOptions

SOLVE_HELP = (
    "Solve problems step by step with a draft and a target.\n\n"
    "A question streams its steps as they become final. A file, or questions with --output, are solved as a "
    "whole: their results are written to a folder and summarized in a table. A stopped run continues with "
    "the same command."
)

ShowRejectedOption = Annotated[bool, option("--show-rejected", "Show rejected drafted steps too.", OUTPUT)]


@takes_flags(*PROBLEM_FLAGS, "prompt", *STRATEGY_FLAGS, *MODEL_FLAGS, *SAMPLING_FLAGS)
def solve(
    flags: Flags,
    sources: SourcesArgument = None,
    samples: SamplesOption = 1,
    compare: CompareOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    show_rejected: ShowRejectedOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.results_table import show_result
    from reason_spec.cli.screen import Screen
    from reason_spec.evaluation.job import RunOptions, run_job
    from reason_spec.evaluation.sources import read_sources

    flags.refuse_strategy_beside(compare)
    settings = flags.resolve()
    strategies = compared_strategies(compare) if compare is not None else (settings.strategy.name,)
    options = RunOptions(strategies, samples, concurrency, output, fresh)
    chosen = flags.problems(settings, sources, read_sources)
    streams = chosen.only_questions and len(strategies) == 1 and output is None
    _refuse_contradictions(options, streams, show_rejected)
    screen = Screen(quiet=quiet, as_json=as_json)
    if streams:
        from reason_spec.cli.questions import answer_questions

        run_interruptible(answer_questions(settings, chosen, options, screen, show_rejected=show_rejected))
        return
    result = run_interruptible(run_job(settings, chosen, options, screen))
    raise typer.Exit(show_result(result, screen))


def _refuse_contradictions(options: RunOptions, streams: bool, show_rejected: bool) -> None:
    if streams and options.concurrency > 1:
        raise SettingsError("--concurrency needs --output: without it questions are answered in turn")
    if streams and options.fresh:
        raise SettingsError("--fresh needs --output: without it the answer to a question is not stored")
    if show_rejected and not streams:
        raise SettingsError("--show-rejected is for a question; the verdicts on a file are in its results")
