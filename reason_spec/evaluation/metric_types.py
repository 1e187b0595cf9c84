"""What is measured of a run: a row for each task and strategy, and one for each pair of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.statistics import Interval
from reason_spec.types import LossClass, Usage

ALL_TASKS = "all"
"""Stands for a task's name in rows about all tasks together."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How a number is spread over answers."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class StepAcceptance:
    """Verdicts about the steps at one place of the answers, 0 the first.

    Counted is the verdict that decided there: the one that let the drafted step stand, or refused the one in
    whose place the target's step stands. Verdicts about further drafts of the same step, and about steps on
    branches that lost, are in ``alpha_step`` alone.
    """

    step_index: int
    num_accepted: int
    num_rejected: int
    num_unknown: int


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in any currency.

    Prompt tokens that an engine had in its cache cost what ``..._cached_input`` says, as much as others where
    it says nothing. Output is every token written, on branches that lost too; scored tokens are input.
    """

    target_input: float = 0.0
    target_output: float = 0.0
    draft_input: float = 0.0
    draft_output: float = 0.0
    target_cached_input: float | None = None
    draft_cached_input: float | None = None

    def cost(self, target: Usage, draft: Usage) -> float:
        """Return what this work costs."""
        return _price(target, self.target_input, self.target_cached_input, self.target_output) + _price(
            draft, self.draft_input, self.draft_cached_input, self.draft_output
        )


def _price(usage: Usage, new_input: float, cached_input: float | None, output: float) -> float:
    cached = usage.num_cached_prompt_tokens
    read = usage.num_prefilled_tokens + usage.num_scored_tokens
    cached_price = new_input if cached_input is None else cached_input
    return (read * new_input + cached * cached_price + usage.num_generated_tokens * output) / 1e6


@dataclass(frozen=True, slots=True)
class StrategyMetrics:
    """One strategy on one task, or on all of them.

    Problems weigh equally in everything that is a mean over problems; rates and token counts are totals over
    all answers, so that long answers weigh more.

    Attributes:
        num_samples: the least that a graded problem has; of an ungraded task, the least of any.
        num_graded: answers with a reference answer; those left undecided are among them, as not right.
        accuracy: avg@k, the mean over problems of the share of right samples; None where nothing is graded.
        pass_at: by k = 1, 2, 4, ... and ``num_samples``: the chance that one of k samples is right.
        majority_at: the same for the answer that most of k samples give.
        seconds: over answers; so is ``first_step_seconds``, the time until the first step was final.
        target_tokens: tokens that the target wrote, also on branches that lost, for each of the answers.
            Drafted tokens that it confirmed are among them: they cost it no pass, but the target stands for
            them.
        target_prefilled_tokens: tokens that the target read before it wrote, prompts included, likewise.
        target_scored_tokens: tokens that it only read to judge them, likewise.
        tokens_saved: ``1 - target_tokens``: the share of the answers' tokens that the target did not write.
            Below 0 where it wrote more than the answers have.
        alpha_step: share of all verdicts that accepted, those on branches that lost included.
        alpha_step_of_all: the same of all drafts, those included that came too late for a verdict.
        alpha_token: share of the token-level drafts that the target confirmed.
        acceptance_by_step: by place in the answer, up to the last place with a verdict.
        alpha_token_histogram: answers by their own ``alpha_token`` in ten bins from 0 to 1; answers without
            drafts are in none.
        cost: of all answers, None without prices.
        concurrency: the numbers of answers written at once.
    """

    task: str
    strategy: str
    loss_class: LossClass
    num_problems: int
    num_answers: int
    num_samples: int
    num_graded: int
    num_undecided: int
    num_cut: int
    num_retried: int
    accuracy: Estimate | None
    pass_at: Mapping[int, Estimate]
    majority_at: Mapping[int, Estimate]
    seconds: Percentiles
    first_step_seconds: Percentiles
    seconds_per_problem: Estimate
    tokens_per_problem: Estimate
    tokens_per_second: float
    target_tokens: float
    target_prefilled_tokens: float
    target_scored_tokens: float
    tokens_saved: float
    alpha_step: float | None
    alpha_step_of_all: float | None
    alpha_token: float | None
    acceptance_by_step: tuple[StepAcceptance, ...]
    alpha_token_histogram: tuple[int, ...]
    target: Usage
    draft: Usage
    verifier_seconds: float
    cost: float | None
    concurrency: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PairedMetrics:
    """A strategy against the baseline on the problems and samples that both answered.

    Differences are the strategy's minus the baseline's. Intervals and standard errors of seconds and tokens
    are bootstrapped over problems, 10,000 times (expanded percentiles). Intervals of accuracy are score
    intervals, since resampling shows no uncertainty where no problem differs.

    Attributes:
        num_identical: pairs of the same tokens.
        num_apart: pairs whose two sides were timed in different starts of the command.
        accuracy_difference: mean over graded problems of the difference of their shares of right samples.
        loss_upper: upper end of the one-sided 95 % interval of the loss, the difference with its sign turned.
        p_value: of McNemar's exact test, two-sided; None with several samples of a problem, where the
            interval of ``accuracy_difference`` says what there is to say.
        smallest_difference: the difference of accuracy that this many problems would have shown with a power
            of 80 %, had they differed as often as these did.
        speedup: the baseline's mean seconds for each problem divided by the strategy's.
        paired_speedup: the median over pairs of the ratio of seconds.
        warning: in words where the sample is too small for a claim, empty where it is not.
    """

    task: str
    strategy: str
    baseline: str
    num_pairs: int
    num_problems: int
    num_identical: int
    num_apart: int
    accuracy_difference: Estimate | None
    loss_upper: float | None
    p_value: float | None
    smallest_difference: float | None
    speedup: Estimate
    paired_speedup: Estimate
    tokens_difference: Estimate
    warning: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """All rows of a run; those about all tasks together come last, where there are several tasks."""

    strategies: tuple[StrategyMetrics, ...]
    pairs: tuple[PairedMetrics, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON holds them: intervals as objects, maps with their k as text."""
        return {"strategies": _plain(self.strategies), "pairs": _plain(self.pairs)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Interval):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
