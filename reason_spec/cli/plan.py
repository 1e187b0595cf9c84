"""The command ``plan``: the expected speed-up, before a run and after one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reason_spec.cli.flags import Flags, takes_flags
from reason_spec.cli.options import (
    FreshOption,
    JsonOption,
    OutputOption,
    QuietOption,
    SourcesArgument,
    option,
)
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.control.costs import PassCost

PLAN_HELP = (
    "Predict the speed-up from acceptance rates and costs, and the best split of a pass between steps and "
    "tokens.\n\n"
    "It needs no models: reason-spec plan --alpha-step 0.63 --c-step 0.1 --depth 6. With --run it "
    "reads the measured rates of a run, and explains the difference from the formulas term by term. With "
    "--measure it measures your models on problems (by default those of the package), and says whether steps "
    "ahead pay."
)
_RATES, _SIZES, _RUN, _MEASURE = "Rates and costs", "What to try", "After a run", "With your models"
_DEFAULT_DEPTH = 6
_DEFAULT_BUDGET, _MAX_BUDGET = 16, 1024

AlphaStepOption = Annotated[
    float | None, option("--alpha-step", "Share of drafted steps that are accepted, 0 to 1.", _RATES)
]
CStepOption = Annotated[
    float | None, option("--c-step", "Time of a drafted step over that of a target step, 0 to 1.", _RATES)
]
AlphaTokenOption = Annotated[
    float | None,
    option("--alpha-token", "Chance of a drafted token to be right. Default: no token level.", _RATES),
]
CTokenOption = Annotated[
    float | None,
    option(
        "--c-token",
        "Time of a drafted token over that of a target token, beside the target. Default: 0.",
        _RATES,
    ),
]
VerifyOption = Annotated[
    float | None, option("--verify", "Time of a verdict over that of a target step. Default: 0.", _RATES)
]
StepTokensOption = Annotated[
    str | None,
    option(
        "--step-tokens",
        "Tokens of a step: mean, or mean and standard deviation. Default: 100,0.",
        _RATES,
        metavar="MEAN[,STD]",
    ),
]
PassTimesOption = Annotated[
    str | None,
    option(
        "--pass-times",
        "Times of passes by their tokens, in any unit: a list, or a file (a mapping, or "
        "settings.yaml of a run). Default: all passes take the same.",
        _RATES,
        metavar="FILE|1:1,4:1.2,16:1.6",
    ),
]
DepthOption = Annotated[
    int | None,
    option(
        "--depth",
        "Steps that the draft runs ahead. Default: 6; with --measure at most those of the settings.",
        _SIZES,
        min=0,
        max=64,
    ),
]
NumDraftsOption = Annotated[
    int | None,
    option(
        "--num-drafts",
        "Draft tokens in each branch of a pass. Default: those of the best split.",
        _SIZES,
        min=0,
        max=_MAX_BUDGET - 1,
    ),
]
BudgetOption = Annotated[
    int | None,
    option(
        "--budget",
        "Tokens of one answer that a pass may hold. Default: the largest of --pass-times, else 16.",
        _SIZES,
        min=1,
        max=_MAX_BUDGET,
    ),
]
RequestsOption = Annotated[
    int | None, option("--requests", "Answers at once. Default: 1.", _SIZES, min=1, max=256)
]
RunOption = Annotated[
    Path | None, option("--run", "Folder of a run: explain its speed-up.", _RUN, metavar="FOLDER")
]
MeasureOption = Annotated[
    bool, option("--measure", "Measure --target and --draft on problems, as draft eval does.", _MEASURE)
]


@takes_flags("task", "limit", "skip_bad", "prompt", "target", "draft", "verifier", "seed", "max_tokens")
def plan(
    flags: Flags,
    sources: SourcesArgument = None,
    measure: MeasureOption = False,
    output: OutputOption = None,
    fresh: FreshOption = False,
    alpha_step: AlphaStepOption = None,
    c_step: CStepOption = None,
    alpha_token: AlphaTokenOption = None,
    c_token: CTokenOption = None,
    verify: VerifyOption = None,
    step_tokens: StepTokensOption = None,
    pass_times: PassTimesOption = None,
    depth: DepthOption = None,
    num_drafts: NumDraftsOption = None,
    budget: BudgetOption = None,
    requests: RequestsOption = None,
    run: RunOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import plan_screens
    from reason_spec.cli.draft_eval_screens import measure_draft
    from reason_spec.cli.screen import Screen
    from reason_spec.lab.planning.workload import FLAT, Workload

    screen = Screen(as_json=as_json, quiet=quiet)
    sizes = (alpha_step, alpha_token, c_token, verify, step_tokens, num_drafts, budget, requests)
    if measure:
        _refuse(
            (run, c_step, pass_times, *sizes),
            "--measure finds rates, costs and the best split itself: leave out --run and what gives them",
        )
        draft = flags.given["draft"] or ("embedded" if flags.given["target"] is None else None)
        if draft is None:
            raise SettingsError("--measure needs a draft for this target: name it with --draft")
        measure_draft(flags, draft, sources, screen, output=output, fresh=fresh, depth=depth)
        return
    _refuse(
        (sources or None, output, fresh, *flags.given.values()),
        "problems, models, --output and --fresh are for --measure, which solves problems with your models",
    )
    cost = _pass_cost(pass_times)
    if run is not None:
        _refuse((depth, *sizes), "--run reads rates and numbers from the folder: leave out what gives them")
        plan_screens.show_run(screen, run, c_step=c_step, pass_cost=cost)
        return
    if alpha_step is None or c_step is None:
        raise SettingsError(
            "--alpha-step and --c-step are needed. 'reason-spec plan --measure' measures your models, and "
            "'reason-spec plan --run FOLDER' reads a run; or give them, as in 'reason-spec plan "
            "--alpha-step 0.63 --c-step 0.1'"
        )
    if num_drafts and alpha_token is None:
        raise SettingsError("--num-drafts needs --alpha-token: how often is a drafted token right?")
    mean, std = _mean_and_std(step_tokens or "100,0")
    workload = Workload(
        alpha_step=alpha_step,
        c_step=c_step,
        alpha_token=alpha_token or 0.0,
        c_token=c_token or 0.0,
        verification=verify or 0.0,
        step_tokens=mean,
        step_tokens_std=std,
        pass_cost=cost or FLAT,
        requests=requests or 1,
    )
    if budget is None:
        budget = _DEFAULT_BUDGET if cost is None else min(cost.points[-1][0], _MAX_BUDGET)
    depth = _DEFAULT_DEPTH if depth is None else depth
    plan_screens.show_prediction(screen, workload, depth=depth, num_drafts=num_drafts, budget=budget)


def _refuse(values: Iterable[object], message: str) -> None:
    """Raise where an option is given that has no meaning beside another one."""
    if any(value is not None and value is not False for value in values):
        raise SettingsError(message)


def _mean_and_std(text: str) -> tuple[float, float]:
    try:
        mean, std = (*map(float, text.split(",")), 0.0)[:2]
        if text.count(",") > 1:
            raise ValueError
    except ValueError:
        raise SettingsError(
            f"--step-tokens is {text!r}: write the mean, or mean and standard deviation, as in 40,20"
        ) from None
    return mean, std


def _pass_cost(text: str | None) -> PassCost | None:
    if text is None:
        return None
    from reason_spec.lab.planning.measured import pass_cost_of, read_pass_times

    if Path(text).exists() or ":" not in text:
        return read_pass_times(Path(text))
    pairs = [pair.split(":") for pair in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise SettingsError(f"--pass-times is {text!r}: write sizes and times, as in 1:1,4:1.2,16:1.6")
    return pass_cost_of({size.strip(): seconds.strip() for size, seconds in pairs}, "--pass-times")
