"""The commands of ``tune``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from reason_spec.cli.command import run_interruptible
from reason_spec.cli.exit import tune_exit
from reason_spec.cli.flags import GENERATE_FLAGS, MODEL_FLAGS, PROBLEM_FLAGS, SERVER_FLAGS, Flags, takes_flags
from reason_spec.cli.options import (
    ConcurrencyOption,
    FreshOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SourcesArgument,
    complete_strategies,
)
from reason_spec.errors import DataError, SettingsError

if TYPE_CHECKING:
    from reason_spec.evaluation.sources import Sources
    from reason_spec.lab.tuning.candidates import Grid

_PAIR = "pair"
_GENERATED_SEED = 800_000
"""Differs from the seed of ``tune verifier``, so that the problems differ."""
_T = TypeVar("_T")


class _TuneGroup(TyperGroup):
    """Takes ``pair`` where no command is named: ``tune FILE`` is ``tune pair FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx):
            args = [_PAIR, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        completed = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return completed
        pair = self.commands[_PAIR]
        return completed + pair.shell_complete(pair.context_class(pair, parent=ctx), incomplete)


tune_app = typer.Typer(
    cls=_TuneGroup,
    no_args_is_help=True,
    help="Choose settings on problems with known answers: all of them, or a verifier's threshold.\n\n"
    "The default command is pair: reason-spec tune problems.jsonl --loss 1. Its options: "
    "reason-spec tune pair --help.",
)


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...",
        help="Files of problems with known answers (jsonl, json, also gzip).",
        show_default=False,
    ),
]
LossOption = Annotated[
    float,
    typer.Option(
        help="Allowed loss in points of answers: right with the target alone, wrong with speculation."
    ),
]
ConfidenceOption = Annotated[float, typer.Option(help="Confidence that the loss is no higher.")]
StrategiesOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Strategies to try. Default: all that the models support.",
        autocompletion=complete_strategies,
    ),
]
DepthsOption = Annotated[str | None, typer.Option(metavar="A,B", help="Steps ahead to try. Default: 2,4,8.")]
WidthsOption = Annotated[str | None, typer.Option(metavar="A,B", help="Drafts of a step to try. Default: 1.")]
DraftTokensOption = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Draft tokens in one pass to try. Default: strategy.num_draft_tokens."),
]
VerifiersOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Verifiers to try under each strategy that can use them. Default: exact and semantic under "
        "lookahead, else the strategy's own.",
    ),
]
ThresholdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B", help="Thresholds to try for verifiers that judge drafts only. Default: 0.95,0.9,0.7."
    ),
]
BudgetOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Time limit for all answers.", min=1)
]
NumProblemsOption = Annotated[
    int | None,
    typer.Option("--problems", help="Use only the first problems.", min=1),
]
HalvingOption = Annotated[int, typer.Option(help="Each rung keeps one in this many candidates.", min=2)]
PairOutputOption = Annotated[
    Path | None, typer.Option(help="The settings file. Default: tuned.yaml in the run's folder.")
]
RunFolderOption = Annotated[
    Path | None, typer.Option("--run", help="Folder for the answers. Default: runs/NAME-tuning-HASH.")
]
PngOption = Annotated[
    Path | None, typer.Option(help="Draw speed against loss into this file; needs the extra plots.")
]
PairFreshOption = Annotated[bool, typer.Option("--fresh", help="Replace the answers in the run's folder.")]
VerifierThresholdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B", help="Thresholds to try, strictest first. Default: 0.99,0.95,0.9,0.8,0.7,0.5."
    ),
]
WholeCurveOption = Annotated[
    bool, typer.Option("--whole-curve", help="Try all thresholds, also after the first failure.")
]
PlotOption = Annotated[bool, typer.Option(help="Draw the curves; needs the extra plots.")]
JudgingStrategyOption = Annotated[
    str | None, typer.Option(help="specreason, rsd or hybrid. Default: hybrid, if the verifier supports it.")
]


@tune_app.command(
    _PAIR,
    no_args_is_help=True,
    help="Find the fastest settings for a pair of models within a stated loss of answers.\n\n"
    "Strategies, depths, widths, draft tokens, verifiers and thresholds are compared with the target alone, "
    "on the same problems and engines, by successive halving. The choice is tested on held-out problems, "
    "and written to a settings file for --config. A stopped run continues with the same command.",
)
@takes_flags(*PROBLEM_FLAGS, *GENERATE_FLAGS, *MODEL_FLAGS, "seed")
def tune_pair(
    flags: Flags,
    sources: FilesArgument = None,
    loss: LossOption = 1.0,
    confidence: ConfidenceOption = 0.95,
    strategies: StrategiesOption = None,
    depths: DepthsOption = None,
    widths: WidthsOption = None,
    draft_tokens: DraftTokensOption = None,
    verifiers: VerifiersOption = None,
    thresholds: ThresholdsOption = None,
    budget: BudgetOption = None,
    num_problems: NumProblemsOption = None,
    halving: HalvingOption = 3,
    output: PairOutputOption = None,
    run_folder: RunFolderOption = None,
    png: PngOption = None,
    fresh: PairFreshOption = False,
    concurrency: ConcurrencyOption = 1,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.tune_screens import TuneScreen, show_tuning
    from reason_spec.evaluation.job import RunOptions
    from reason_spec.evaluation.sources import read_sources
    from reason_spec.lab.tuning.calibration import LossTest
    from reason_spec.lab.tuning.search import TuneOptions, tune

    settings = flags.resolve()
    grid = _grid(strategies, depths, widths, thresholds, draft_tokens, verifiers)
    if not sources and not flags.given["sample"] and flags.given["generate"] is None:
        raise DataError("nothing to tune on: give a file of problems, --sample, or --generate N")
    chosen = flags.problems(settings, sources, partial(read_sources, once=True), _generated)
    if num_problems is not None:
        chosen = replace(chosen, problems=chosen.problems[:num_problems])
    run = RunOptions(concurrency=concurrency, output=run_folder, fresh=fresh)
    options = TuneOptions(LossTest(loss / 100, confidence), grid, run, halving, budget, output, png)
    screen = TuneScreen(as_json=as_json, quiet=quiet)
    found = run_interruptible(tune(settings, chosen, options, screen))
    show_tuning(found, screen, quiet=quiet)


def _generated(number: int, seed: int) -> Sources:
    from reason_spec.evaluation.sources import generate_problems

    return generate_problems("validation", number, _GENERATED_SEED + seed)


def _grid(
    strategies: str | None,
    depths: str | None,
    widths: str | None,
    thresholds: str | None,
    draft_tokens: str | None,
    verifiers: str | None,
) -> Grid:
    from reason_spec.lab.tuning import candidates

    return candidates.Grid(
        strategies=comma_values("--strategies", strategies, str),
        depths=comma_values("--depths", depths, int) or candidates.DEPTHS,
        widths=comma_values("--widths", widths, int) or candidates.WIDTHS,
        thresholds=comma_values("--thresholds", thresholds, float) or candidates.THRESHOLDS,
        draft_tokens=comma_values("--draft-tokens", draft_tokens, int),
        verifiers=comma_values("--verifiers", verifiers, str),
    )


def comma_values(option: str, text: str | None, read: Callable[[str], _T]) -> tuple[_T, ...]:
    """Read values separated by commas, each once; none where the option was not given.

    Raises:
        SettingsError: one of them cannot be read, or none is there.
    """
    if text is None:
        return ()
    try:
        values = tuple(dict.fromkeys(read(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError:
        values = ()
    if not values:
        example = "2,4" if read is int else "0.95,0.9" if read is float else "A,B"
        raise SettingsError(f"{option} {text!r}: name values separated by commas, such as {example}")
    return values


@tune_app.command(
    "verifier",
    help="Find the lowest threshold of a verifier that keeps a stated loss of answers.\n\n"
    "The verifier must judge drafted steps alone, as likelihood does. Without a file the demonstration pair "
    "gets generated problems. A stopped run continues with the same command.",
)
@takes_flags(*PROBLEM_FLAGS, "verifier", *SERVER_FLAGS)
def tune_verifier(
    flags: Flags,
    sources: SourcesArgument = None,
    loss: LossOption = 1.0,
    confidence: ConfidenceOption = 0.95,
    thresholds: VerifierThresholdsOption = None,
    whole_curve: WholeCurveOption = False,
    plot: PlotOption = True,
    strategy: JudgingStrategyOption = None,
    output: OutputOption = None,
    fresh: FreshOption = False,
    concurrency: ConcurrencyOption = 1,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli.screen import Screen
    from reason_spec.cli.tune_screens import show_verifier_tuning
    from reason_spec.evaluation.job import RunOptions
    from reason_spec.lab.tuning import verifier as tuning
    from reason_spec.lab.tuning.calibration import LossTest

    # Under load the load controller lets the target write alone, and there would be nothing to judge.
    settings = flags.resolve({"strategy.name": strategy}, {"load_control.use": "off"})
    settings = tuning.with_judging_strategy(settings, strategy)
    options = tuning.VerifierTuneOptions(
        LossTest(loss / 100, confidence),
        RunOptions(concurrency=concurrency, output=output, fresh=fresh),
        comma_values("--thresholds", thresholds, float) or tuning.THRESHOLDS,
        whole_curve=whole_curve,
        plot=plot,
    )
    chosen = flags.problems(settings, sources, partial(tuning.read_problems, settings, options.test))
    screen = Screen(as_json=as_json, quiet=quiet)
    found = run_interruptible(tuning.tune_verifier(settings, chosen, options, screen))
    raise typer.Exit(show_verifier_tuning(found, screen, plot=plot))


tune_app.command("exit")(tune_exit)
