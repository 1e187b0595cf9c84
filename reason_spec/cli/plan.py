"""The command ``plan``: the expected speed-up, before a run and after one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reason_spec.cli.options import JsonOption, QuietOption, option
from reason_spec.errors import SettingsError

if TYPE_CHECKING:
    from reason_spec.control.costs import PassCost
    from reason_spec.lab.planning.workload import Workload

PLAN_HELP = (
    "Predict the speed-up from acceptance rates and costs, and the best split of a pass between steps and "
    "tokens.\n\n"
    "It needs no models: reason-spec plan --alpha-step 0.63 --c-step 0.1 --depth 6. With --run it reads the "
    "measured rates of a run, and explains the difference from the formulas term by term. With --paper it "
    "compares the formulas with table 1 of the Lookahead Reasoning paper."
)
_RATES, _SIZES, _QUESTIONS = "Rates and costs", "What to try", "Other questions"
_MAX_DEPTH, _MAX_WIDTH, _MAX_BUDGET, _MAX_REQUESTS = 64, 8, 1024, 256
_DEFAULT_BUDGET = 16


def _complete_tokens(incomplete: str) -> list[str]:
    return [text for text in ("1:1,4:1.2,16:1.6",) if text.startswith(incomplete)]


AlphaStepOption = Annotated[
    float | None, option("--alpha-step", "Share of drafted steps that are accepted, 0 to 1.", _RATES)
]
CStepOption = Annotated[
    float | None, option("--c-step", "Time of a drafted step over that of a target step, 0 to 1.", _RATES)
]
AlphaTokenOption = Annotated[
    float | None,
    option(
        "--alpha-token", "Share of draft tokens that are accepted, 0 to 1. Default: no token level.", _RATES
    ),
]
CTokenOption = Annotated[
    float,
    option(
        "--c-token",
        "Time of a draft token over that of a target token. Default: 0.",
        _RATES,
    ),
]
VerifyOption = Annotated[
    float, option("--verify", "Time of a verdict over that of a target step. Default: 0.", _RATES)
]
IdenticalOption = Annotated[
    float,
    option(
        "--identical",
        "Share of steps that both models write alike; as hints they are only checked. Default: 0.",
        _RATES,
    ),
]
StepTokensOption = Annotated[
    str,
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
        "Times of passes by their number of tokens, in any unit: a list, or a file (a mapping, or "
        "settings.yaml of a run). Default: constant.",
        _RATES,
        metavar="FILE|1:1,4:1.2,16:1.6",
        autocompletion=_complete_tokens,
    ),
]
DepthOption = Annotated[int, option("--depth", "Steps that the draft runs ahead. Default: 6.", _SIZES)]
WidthOption = Annotated[int, option("--width", "Drafts of each step. Default: 1.", _SIZES)]
NumDraftsOption = Annotated[
    int | None,
    option(
        "--num-drafts", "Draft tokens in each branch of a pass. Default: those of the best split.", _SIZES
    ),
]
BudgetOption = Annotated[
    int | None,
    option(
        "--budget",
        "Tokens of one answer that a pass may hold. Default: the largest of --pass-times, else 16.",
        _SIZES,
    ),
]
RequestsOption = Annotated[int, option("--requests", "Answers at once. Default: 1.", _SIZES)]
RunOption = Annotated[
    Path | None, option("--run", "Folder of a run: explain its speed-up.", _QUESTIONS, metavar="FOLDER")
]
PaperOption = Annotated[
    bool, option("--paper", "Compare the formulas with table 1 of the Lookahead Reasoning paper.", _QUESTIONS)
]
PngOption = Annotated[
    Path | None, option("--png", "Draw the result; needs the extra plots.", "Output", metavar="FILE")
]
SeedOption = Annotated[int, option("--seed", "Seed of the simulation. Default: 0.", "Output")]


def plan(
    alpha_step: AlphaStepOption = None,
    c_step: CStepOption = None,
    alpha_token: AlphaTokenOption = None,
    c_token: CTokenOption = 0.0,
    verify: VerifyOption = 0.0,
    identical: IdenticalOption = 0.0,
    step_tokens: StepTokensOption = "100,0",
    pass_times: PassTimesOption = None,
    depth: DepthOption = 6,
    width: WidthOption = 1,
    num_drafts: NumDraftsOption = None,
    budget: BudgetOption = None,
    requests: RequestsOption = 1,
    run: RunOption = None,
    paper: PaperOption = False,
    png: PngOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    from reason_spec.cli import plan_screens
    from reason_spec.cli.screen import Screen
    from reason_spec.lab.pictures import require_matplotlib

    if run is not None and paper:
        raise SettingsError("--run and --paper exclude each other: each is a question of its own")
    if seed < 0:
        raise SettingsError(f"--seed is {seed}: it is 0 or more")
    if png is not None:
        require_matplotlib("--png")
        if run is not None:
            raise SettingsError("--png draws predictions and the paper's table: with --run leave it out")
    screen = Screen(as_json=as_json, quiet=quiet)
    if paper:
        plan_screens.show_paper(screen, png)
        return
    cost = _pass_cost(pass_times)
    if run is not None:
        plan_screens.show_run(screen, run, c_step=c_step, pass_cost=cost, seed=seed)
        return
    workload = _workload(
        alpha_step, c_step, alpha_token, c_token, verify, identical, step_tokens, cost, requests
    )
    _between("--depth", depth, 0, _MAX_DEPTH)
    _between("--width", width, 1, _MAX_WIDTH)
    largest = _DEFAULT_BUDGET if cost is None else cost.points[-1][0]
    budget = min(largest, _MAX_BUDGET) if budget is None else budget
    _between("--budget", budget, 1, _MAX_BUDGET)
    if num_drafts is not None:
        _between("--num-drafts", num_drafts, 0, _MAX_BUDGET - 1)
        if num_drafts and alpha_token is None:
            raise SettingsError("--num-drafts needs --alpha-token: how often is a drafted token right?")
    plan_screens.show_prediction(
        screen, workload, depth=depth, width=width, num_drafts=num_drafts, budget=budget, seed=seed, png=png
    )


def _workload(
    alpha_step: float | None,
    c_step: float | None,
    alpha_token: float | None,
    c_token: float,
    verify: float,
    identical: float,
    step_tokens: str,
    cost: PassCost | None,
    requests: int,
) -> Workload:
    from reason_spec.lab.planning.workload import FLAT, Workload

    if alpha_step is None or c_step is None:
        flags = {"--alpha-step": alpha_step, "--c-step": c_step}
        lacking = [flag for flag, value in flags.items() if value is None]
        missing = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'}"
        raise SettingsError(
            f"{missing} missing. A run measures both: 'reason-spec plan --run FOLDER' reads them; or give "
            "them, as in 'reason-spec plan --alpha-step 0.63 --c-step 0.1'"
        )
    _between("--requests", requests, 1, _MAX_REQUESTS)
    mean, std = _mean_and_std(step_tokens)
    return Workload(
        alpha_step=alpha_step,
        c_step=c_step,
        alpha_token=alpha_token or 0.0,
        c_token=c_token,
        verification=verify,
        identical=identical,
        step_tokens=mean,
        step_tokens_std=std,
        pass_cost=cost or FLAT,
        requests=requests,
    )


def _between(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise SettingsError(f"{flag} is {value}: it is from {low} to {high}")


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
