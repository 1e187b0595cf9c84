"""What a draft's rates and costs promise beside what was measured, and whether steps ahead pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final, TypeAlias

from reason_spec.accelerator.engine_drafter import only_drafts_tokens
from reason_spec.control.costs import Costs
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.grouping import BASELINE, pair_up
from reason_spec.evaluation.metrics import ALL_TASKS
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.paired import compare_pairs
from reason_spec.lab.drafts.step_acceptance import StepAcceptance
from reason_spec.lab.drafts.token_acceptance import TokenAcceptance
from reason_spec.lab.planning.prediction import SIMULATED_STEPS
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Split, Workload, expected_split, steps_pay_from
from reason_spec.settings import Settings

SPECULATING: Final = ("speculative", "lookahead")
"""Strategies that a model is measured with; a head drafts inside the target's engine."""
OF_HEADS: Final = ("self_speculative",)
Answers: TypeAlias = Mapping[str, Sequence[Outcome]]
"""Answers by strategy, each up to where it begins to loop."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """The speed-up of a strategy over the target alone: expected by the rates and costs, and measured.

    Attributes:
        split: the fastest division of a pass by the formulas of ``plan``; its ``speedup`` is theirs.
        simulated: speed-up of that division in the simulation of ``plan``.
        measured: median over problems of the ratio of seconds, with the interval of the sign test.
        num_identical: answers with the tokens of the target alone, of ``num_problems``.
    """

    strategy: str
    split: Split
    simulated: float
    measured: Estimate
    num_problems: int
    num_identical: int


@dataclass(frozen=True, slots=True)
class StepLevel:
    """Whether steps ahead pay beside draft tokens.

    Attributes:
        verifier: that of ``lookahead``, with its ``alpha_step``.
        pays_from: least alpha_step at which steps pay by the formulas of ``plan``; None: at none.
        measured: speed of ``lookahead``, as its planner chose, over ``speculative``; with the interval of the
            sign test. None where a strategy has no answer.
    """

    verifier: str
    alpha_step: Estimate
    pays_from: float | None
    measured: Estimate | None

    @property
    def pays(self) -> bool:
        return self.pays_from is not None and self.alpha_step.value >= self.pays_from


def workload_of(kept: Answers, token: TokenAcceptance, step: StepAcceptance | None, costs: Costs) -> Workload:
    """Return what ``plan`` starts from; draft tokens are written before the pass that checks them."""
    outcomes = kept[BASELINE]
    lengths = [step.tokens for outcome in outcomes for step in outcome.steps]
    return Workload(
        alpha_step=0.0 if step is None else step.alpha.value,
        c_step=min(1.0, costs.c),
        alpha_token=token.alpha.value,
        c_token=costs.c,
        verification=costs.verdict / (costs.target.seconds(1) * fmean(lengths)),
        step_tokens=fmean(lengths),
        step_tokens_std=pstdev(lengths),
        answer_steps=len(lengths) / sum(outcome.tokens > 0 for outcome in outcomes),
        pass_cost=costs.target,
    )


def expected_and_measured(settings: Settings, kept: Answers, workload: Workload) -> tuple[Speedup, ...]:
    """Return the speed-ups of the strategies that have answers."""
    most = settings.strategy.num_draft_tokens
    depths = {"lookahead": range(1, max(1, settings.strategy.depth) + 1)}
    found: list[Speedup] = []
    for name in OF_HEADS if only_drafts_tokens(settings) else SPECULATING:
        pairs = pair_up(kept[BASELINE], kept.get(name, ()))
        if not pairs:
            continue
        compared = compare_pairs(ALL_TASKS, pairs)
        splits = (
            expected_split(workload, depth, num_drafts)
            for depth in depths.get(name, (0,))
            for num_drafts in range(0 if name in depths else 1, most + 1)
        )
        split = max(splits, key=lambda one: one.speedup)
        scheme = Scheme(split.depth, num_drafts=split.num_drafts)
        simulated = simulate(workload, scheme, num_steps=SIMULATED_STEPS)
        found.append(
            Speedup(name, split, simulated, compared.paired_speedup, len(pairs), compared.num_identical)
        )
    return tuple(found)


def step_level_of(
    settings: Settings, kept: Answers, verifier: StepAcceptance, workload: Workload
) -> StepLevel:
    """Return whether steps ahead pay with a verifier, by the formulas, beside what was measured."""
    strategy = settings.strategy
    pays_from = steps_pay_from(workload, max(1, strategy.depth), strategy.num_draft_tokens)
    pairs = pair_up(*(kept.get(name, ()) for name in SPECULATING))
    measured = compare_pairs(ALL_TASKS, pairs).paired_speedup if pairs else None
    return StepLevel(verifier.verifier, verifier.alpha, pays_from, measured)
