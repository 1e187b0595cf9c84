"""Predict speed-ups: each level alone, both, the best split, and the step level by depth."""

from __future__ import annotations

from dataclasses import dataclass

from reason_spec.control.formulas import asynchronous_speedup, step_ceiling, token_speedup
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Split, Workload, best_split, expected_split

SIMULATED_STEPS = 10_000
"""Steps of a simulation: the sampling error is then about 1 %."""
_SHOWN_DEPTH = 10


@dataclass(frozen=True, slots=True)
class DepthRow:
    """Speed-ups of the step level alone at one depth, by theorem 2 of Lookahead Reasoning and simulated."""

    depth: int
    formula: float
    simulated: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected speed-ups over the target alone.

    ``step`` and ``token`` are each level alone. ``both`` is both levels by the formulas, with T(n) and all
    requests, ``both_simulated`` its simulation. ``best`` is the fastest split within the budget. ``ceiling``
    is that of the step level at any depth, infinite where every draft is accepted.
    """

    step: DepthRow
    ceiling: float
    token: float
    both: Split
    both_simulated: float
    best: Split
    best_simulated: float
    rows: tuple[DepthRow, ...]


def predict(workload: Workload, *, depth: int, num_drafts: int | None, budget: int) -> Prediction:
    """Predict the speed-up of ``depth`` and ``num_drafts``, and find the best split of ``budget`` tokens.

    ``num_drafts`` None is that of the best split.
    """

    def simulated(depth: int, num_drafts: int = 0) -> float:
        return simulate(workload, Scheme(depth, num_drafts=num_drafts), num_steps=SIMULATED_STEPS)

    def row(depth: int) -> DepthRow:
        formula = asynchronous_speedup(workload.alpha_step, depth + 1, workload.c_step, workload.verification)
        return DepthRow(depth, formula, simulated(depth))

    best = best_split(workload, budget)
    num_drafts = best.num_drafts if num_drafts is None else num_drafts
    rows = {ahead: row(ahead) for ahead in sorted({*range(1, _SHOWN_DEPTH + 1), depth})}
    return Prediction(
        step=rows[depth],
        ceiling=step_ceiling(workload.alpha_step),
        token=token_speedup(workload.alpha_token, num_drafts, workload.c_token),
        both=expected_split(workload, depth, num_drafts),
        both_simulated=simulated(depth, num_drafts),
        best=best,
        best_simulated=simulated(best.depth, best.num_drafts),
        rows=tuple(rows.values()),
    )
