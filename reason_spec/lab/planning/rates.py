"""The rates, costs and lengths that a run measured: what its folder says to the planner's diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import yaml

from reason_spec.control.costs import PassCost
from reason_spec.errors import DataError
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.store import RESULTS, SETTINGS
from reason_spec.lab.planning.diagnosis import MeasuredRun
from reason_spec.lab.planning.simulator import Mode
from reason_spec.lab.planning.workload import FLAT, Workload
from reason_spec.types import Usage

BASELINE = "autoregressive"
MODES: Mapping[str, Mode | None] = {
    "prompt_lookup": None,
    "speculative": None,
    "lookahead": "asynchronous",
    "specreason": "judged",
    "rsd": "judged",
    "hybrid": "judged",
    "arbitrage": "judged",
}
"""How the strategies that are modelled speculate on steps; None: not at all."""


def measured_runs(
    folder: Path, *, c_step: float | None = None, pass_cost: PassCost | None = None
) -> list[MeasuredRun]:
    """Read what each strategy of a run showed; ``c_step`` and ``pass_cost`` replace what was measured.

    Strategies that no model here is made for, such as ``scot``, are left out.

    Raises:
        DataError: the folder has no results, or none of a strategy that is modelled, or no costs.
    """
    outcomes = _read_outcomes(folder / RESULTS)
    settings = read_yaml(folder / SETTINGS)
    baseline = [outcome for outcome in outcomes if outcome.strategy == BASELINE]
    names = dict.fromkeys(outcome.strategy for outcome in outcomes if outcome.strategy in MODES)
    if not names:
        raise DataError(
            f"{folder / RESULTS}: has no answers of a strategy that can be explained. "
            f"Solve with one of {', '.join(MODES)}."
        )
    costs = _costs(folder, settings, c_step, pass_cost)
    at_work = None if pass_cost is not None else _costs_at_work(folder / SETTINGS, settings)
    return [
        _measured(
            name,
            [outcome for outcome in outcomes if outcome.strategy == name],
            baseline,
            settings,
            costs,
            at_work,
        )
        for name in names
    ]


def read_pass_times(path: Path) -> PassCost:
    """Read T(n) from a mapping of sizes to times (JSON or YAML), or from the settings of a run.

    Raises:
        DataError: the file has no times, or one that is impossible.
    """
    content = read_yaml(path)
    if "sessions" in content:
        return _session_costs(path, content)[0]
    return pass_cost_of(content, str(path))


def pass_cost_of(times: Mapping[Any, Any], place: str) -> PassCost:
    """Make T(n) of a mapping of sizes to times.

    Raises:
        DataError: it is empty, has no size 1, or a size or time is impossible.
    """
    points: list[tuple[int, float]] = []
    for size, seconds in times.items():
        try:
            point = int(size), float(seconds)
        except (TypeError, ValueError):
            raise DataError(
                f"{place}: {size!r}: {seconds!r} is no size and time. Write numbers, as in 1: 10.1, 4: 12.7"
            ) from None
        if point[0] < 1 or not 0 < point[1] < float("inf"):
            raise DataError(f"{place}: {size}: {seconds} is impossible: sizes and times are above 0")
        points.append(point)
    points.sort()
    if not points or points[0][0] != 1:
        raise DataError(f"{place}: the time of a pass of 1 token is missing; all others are measured by it")
    return PassCost(tuple(points))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file that holds one mapping.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).replace("\n", " ")
        raise DataError(f"{path}: cannot be read ({reason}). Name a file or folder of a run.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds no mapping of names to values")
    return content


def _read_outcomes(path: Path) -> list[Outcome]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Name the folder that a run wrote, as in runs/sample."
        ) from None
    outcomes: list[Outcome] = []
    # What is behind the last line break is a line that a running or killed command has not finished.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            outcomes.append(Outcome.from_json(line.decode()))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    return outcomes


def _costs(
    folder: Path, settings: Mapping[str, Any], c_step: float | None, pass_cost: PassCost | None
) -> tuple[PassCost, float]:
    """Return T(n) and c: those given, else those that the run's last session measured."""
    if c_step is not None and pass_cost is not None:
        return pass_cost, c_step
    try:
        target, c = _session_costs(folder / SETTINGS, settings)
    except DataError:
        if c_step is None:
            raise
        return FLAT, c_step
    return pass_cost or target, c if c_step is None else c_step


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
    """Return T(n) while answers were written, where the last session was brought to its end."""
    sessions = settings.get("sessions") or [{}]
    found = sessions[-1].get("costs_at_work")
    return pass_cost_of(found["target_pass_ms"], str(path)) if found else None


def _measured(
    name: str,
    outcomes: Sequence[Outcome],
    baseline: Sequence[Outcome],
    settings: Mapping[str, Any],
    costs: tuple[PassCost, float],
    at_work: PassCost | None,
) -> MeasuredRun:
    pass_cost, c_step = costs
    strategy = settings["settings"]["strategy"]
    usage = sum((outcome.usage.target for outcome in outcomes), Usage())
    lengths = [step.tokens for outcome in outcomes for step in outcome.steps] or [1]
    num_verdicts = sum(outcome.usage.num_verdicts for outcome in outcomes)
    num_proposed = sum(outcome.usage.num_proposed for outcome in outcomes)
    accepted = sum(outcome.usage.verdicts["accept"] for outcome in outcomes)
    verifier_seconds = sum(outcome.usage.verifier_seconds for outcome in outcomes)
    plans = [outcome.plan for outcome in outcomes if outcome.plan is not None]
    num_drafts = (
        round(fmean(plan.num_draft_tokens for plan in plans)) if plans else strategy["num_draft_tokens"]
    )
    depth = round(fmean(plan.depth for plan in plans)) if plans else strategy["depth"]
    mode = MODES[name] if num_verdicts and depth else None
    paired = [outcome for outcome in baseline if any(outcome.id == other.id for other in outcomes)]
    alone = _seconds_per_token(paired) if paired else _milliseconds(pass_cost)
    per_token = alone or _seconds_per_token(outcomes)
    confirmed = usage.num_accepted_draft_tokens
    # A pass that writes brings one token that was not drafted. Where steps are judged alone there are also
    # passes that only judge, whose time is the verifier's.
    num_writing = max(1, usage.num_generated_tokens - confirmed)
    if mode != "judged":
        num_writing = max(num_writing, usage.num_passes)
    workload = Workload(
        # The formulas and the simulator take the target's step where none of the drafts stands in time.
        alpha_step=accepted / num_proposed if num_proposed else 0.0,
        c_step=min(1.0, c_step),
        alpha_token=confirmed / (confirmed + usage.num_partings) if confirmed else 0.0,
        verification=verifier_seconds / max(1, num_verdicts) / (per_token * fmean(lengths)),
        step_tokens=fmean(lengths),
        step_tokens_std=pstdev(lengths),
        answer_steps=max(1.0, len(lengths) / len(outcomes)),
        pass_cost=pass_cost,
        requests=max((outcome.concurrency for outcome in outcomes), default=1),
    )
    return MeasuredRun(
        strategy=name,
        mode=mode,
        workload=workload,
        depth=depth if mode else 0,
        width=strategy["width"] if mode == "asynchronous" else 1,
        num_drafts=num_drafts,
        pass_drafts=usage.num_drafted_tokens / num_writing,
        pass_tokens=usage.num_generated_tokens / num_writing,
        speedup=per_token / _seconds_per_token(outcomes),
        has_baseline=bool(paired),
        num_answers=len(outcomes),
        pass_cost_at_work=at_work,
        prompt_tokens=_prompt_tokens_read(paired),
        answer_tokens=fmean(outcome.tokens for outcome in outcomes),
    )


def _prompt_tokens_read(baseline: Sequence[Outcome]) -> float:
    """Return how many tokens the target alone read before it wrote, 0 where it did not take part."""
    if not baseline:
        return 0.0
    usages = [outcome.usage.target for outcome in baseline]
    return fmean(usage.num_prefilled_tokens for usage in usages)


def _seconds_per_token(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.seconds for outcome in outcomes) / max(1, sum(outcome.tokens for outcome in outcomes))


def _milliseconds(cost: PassCost) -> float:
    """Return the seconds of a target token by a cost in milliseconds, 0 where it only has ratios."""
    return cost.seconds(1) / 1000 if cost is not FLAT else 0.0
