"""Read the rates, costs and lengths that a run measured from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from reason_spec.control.costs import PassCost
from reason_spec.errors import DataError, first_mistake
from reason_spec.evaluation.grouping import BASELINE, by_strategy
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.store import RESULTS, SETTINGS
from reason_spec.lab.planning.diagnosis import MeasuredRun
from reason_spec.lab.planning.simulator import Mode
from reason_spec.lab.planning.workload import FLAT, Workload
from reason_spec.lab.run_folder import read_mapping, read_results, read_settings
from reason_spec.types import Usage

MODES: Mapping[str, Mode | None] = {
    "prompt_lookup": None,
    "speculative": None,
    "lookahead": "asynchronous",
    "specreason": "judged",
    "rsd": "judged",
    "atts": "judged",
    "hybrid": "judged",
    "arbitrage": "judged",
}
"""How each strategy that is modelled speculates on steps; None: not at all."""
_PASS_TIMES = TypeAdapter(dict[PositiveInt, Annotated[PositiveFloat, Field(allow_inf_nan=False)]])


def measured_runs(
    folder: Path, *, c_step: float | None = None, pass_cost: PassCost | None = None
) -> list[MeasuredRun]:
    """Return the measurements of each strategy of a run; ``c_step`` and ``pass_cost`` replace measured costs.

    Strategies without a model here, such as ``scot``, are left out.

    Raises:
        DataError: the folder has no results, none of a strategy that is modelled, or no costs.
    """
    groups = by_strategy(read_results(folder)[0])
    settings = read_settings(folder)
    names = [name for name in groups if name in MODES]
    if not names:
        raise DataError(
            f"{folder / RESULTS}: has no answers of a strategy that can be explained. "
            f"Solve with one of {', '.join(MODES)}."
        )
    if not settings:
        raise DataError(f"{folder} holds no {SETTINGS}, which has the depth of the run.")
    costs = _costs(folder / SETTINGS, settings, c_step, pass_cost)
    at_work = None if pass_cost is not None else _costs_at_work(folder / SETTINGS, settings)
    strategy = settings["settings"]["strategy"]
    if "lookahead" in names and strategy["width"] > 1:
        raise DataError(f"{folder}: lookahead with {strategy['width']} drafts of each step is not modelled.")
    baseline = groups.get(BASELINE, [])
    return [_measured(name, groups[name], baseline, strategy, costs, at_work) for name in names]


def read_pass_times(path: Path) -> PassCost:
    """Read T(n) from a mapping of sizes to times (JSON or YAML), or from the settings of a run.

    Raises:
        DataError: the file has no times, or an impossible one.
    """
    content = read_mapping(path)
    return _session_costs(path, content)[0] if "sessions" in content else pass_cost_of(content, str(path))


def pass_cost_of(times: Mapping[Any, Any], place: str) -> PassCost:
    """Make T(n) of a mapping of sizes to times.

    Raises:
        DataError: it is empty, has no size 1, or a size or time is impossible.
    """
    try:
        seconds = _PASS_TIMES.validate_python(times)
    except ValidationError as error:
        raise DataError(
            f"{place}: {first_mistake(error)}. Write sizes and times above 0, as in 1: 10.1, 4: 12.7"
        ) from None
    if 1 not in seconds:
        raise DataError(f"{place}: the time of a pass of 1 token is missing; all others are measured by it")
    return PassCost(tuple(sorted(seconds.items())))


def _costs(
    path: Path, settings: Mapping[str, Any], c_step: float | None, pass_cost: PassCost | None
) -> tuple[PassCost, float]:
    """Return T(n) and c: those given, else those that the run's last session measured."""
    try:
        measured, c = _session_costs(path, settings)
    except DataError:
        if c_step is None:
            raise
        return pass_cost or FLAT, c_step
    return pass_cost or measured, c if c_step is None else c_step


def _session_costs(path: Path, settings: Mapping[str, Any]) -> tuple[PassCost, float]:
    sessions = settings.get("sessions") or []
    measured = [session["costs"] for session in sessions if session.get("costs")]
    if not measured:
        raise DataError(
            f"{path}: the run measured no costs: it had no planner (strategy.planner), or no strategy with "
            "one. Give --c-step, and --pass-times if they are known."
        )
    return pass_cost_of(measured[-1]["target_pass_ms"], str(path)), float(measured[-1]["c"])


def _costs_at_work(path: Path, settings: Mapping[str, Any]) -> PassCost | None:
    """Return T(n) while answers were written, where the last session ended regularly."""
    sessions = settings.get("sessions") or [{}]
    found = sessions[-1].get("costs_at_work")
    return pass_cost_of(found["target_pass_ms"], str(path)) if found else None


def _measured(
    name: str,
    outcomes: Sequence[Outcome],
    baseline: Sequence[Outcome],
    strategy: Mapping[str, Any],
    costs: tuple[PassCost, float],
    at_work: PassCost | None,
) -> MeasuredRun:
    ids = {outcome.id for outcome in outcomes}
    paired = [outcome for outcome in baseline if outcome.id in ids]
    # FLAT only has ratios; a measured T(1) is in milliseconds.
    alone = 0.0 if costs[0] is FLAT else costs[0].seconds(1) / 1000
    own = _seconds_per_token(outcomes)
    per_token = (_seconds_per_token(paired) if paired else alone) or own
    usage = Usage.total([outcome.usage.target for outcome in outcomes])
    workload = _workload(outcomes, usage, costs, per_token)
    plans = [outcome.plan for outcome in outcomes if outcome.plan is not None]
    depth = round(fmean(plan.depth for plan in plans)) if plans else strategy["depth"]
    drafts = round(fmean(plan.num_draft_tokens for plan in plans)) if plans else strategy["num_draft_tokens"]
    mode = MODES[name] if depth and any(outcome.usage.num_verdicts for outcome in outcomes) else None
    # A pass that writes brings one token that was not drafted. Judged steps also have passes that only
    # verify, whose time is the verifier's.
    num_writing = max(1, usage.num_generated_tokens - usage.num_accepted_draft_tokens)
    if mode != "judged":
        num_writing = max(num_writing, usage.num_passes)
    return MeasuredRun(
        strategy=name,
        mode=mode,
        workload=workload,
        depth=depth if mode else 0,
        num_drafts=drafts,
        pass_drafts=usage.num_drafted_tokens / num_writing,
        pass_tokens=usage.num_generated_tokens / num_writing,
        speedup=per_token / own,
        has_baseline=bool(paired),
        num_answers=len(outcomes),
        pass_cost_at_work=at_work,
        prompt_share=prompt_share(
            workload,
            prompt_tokens=fmean([outcome.usage.target.num_prefilled_tokens for outcome in paired] or [0.0]),
            answer_tokens=fmean(outcome.tokens for outcome in outcomes),
        ),
    )


def _workload(
    outcomes: Sequence[Outcome], usage: Usage, costs: tuple[PassCost, float], per_token: float
) -> Workload:
    """Return the rates and lengths of these answers; ``per_token`` are the target's seconds alone."""
    lengths = [step.tokens for outcome in outcomes for step in outcome.steps] or [1]
    num_verdicts = sum(outcome.usage.num_verdicts for outcome in outcomes)
    num_proposed = sum(outcome.usage.num_proposed for outcome in outcomes)
    num_accepted = sum(outcome.usage.verdicts["accept"] for outcome in outcomes)
    verifier_seconds = sum(outcome.usage.verifier_seconds for outcome in outcomes)
    tokens = usage.num_accepted_draft_tokens
    return Workload(
        # Late drafts count as rejected: the formulas take the target's step where no draft is accepted in
        # time.
        alpha_step=num_accepted / num_proposed if num_proposed else 0.0,
        c_step=min(1.0, costs[1]),
        alpha_token=tokens / (tokens + usage.num_rejections) if tokens else 0.0,
        verification=verifier_seconds / max(1, num_verdicts) / (per_token * fmean(lengths)),
        step_tokens=fmean(lengths),
        step_tokens_std=pstdev(lengths),
        answer_steps=max(1.0, len(lengths) / len(outcomes)),
        pass_cost=costs[0],
        requests=max((outcome.concurrency for outcome in outcomes), default=1),
    )


def prompt_share(workload: Workload, *, prompt_tokens: float, answer_tokens: float) -> float:
    """Return the share of the target's time, without speculation, in which it reads the prompt."""
    if not prompt_tokens:
        return 0.0
    ratio, requests = workload.pass_ratio, workload.requests
    others = ratio(requests - 1) if requests > 1 else 0.0
    reading = ratio(prompt_tokens + requests - 1) - others
    return reading / (reading + max(0.0, answer_tokens - 1.0) * ratio(requests) / requests)


def _seconds_per_token(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.seconds for outcome in outcomes) / max(1, sum(outcome.tokens for outcome in outcomes))
