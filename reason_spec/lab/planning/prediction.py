"""Predict speed-ups: each level alone, both, the best split, and the step level by depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reason_spec.control.formulas import (
    asynchronous_speedup,
    step_ceiling,
    synchronous_speedup,
    token_speedup,
    tree_branches,
    width_rate,
)
from reason_spec.errors import SettingsError
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.splits import Split, best_split, expected_split
from reason_spec.lab.planning.workload import Workload

SIMULATED_STEPS = 10_000
"""Steps of a simulation: the sampling error is then about 1 %."""
MAX_TREE = 255
"""Largest tree of target steps that is simulated."""
_SHOWN_TREE = 64


@dataclass(frozen=True, slots=True)
class DepthRow:
    """Speed-ups of the step level alone at one depth; ``parallel`` is the papers' k1.

    The formulas are theorems 1 and 2 of Lookahead Reasoning with verification: equal steps, equal passes.
    """

    depth: int
    parallel: int
    synchronous: float
    asynchronous: float
    simulated: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected speed-ups over the target alone.

    ``product`` is the papers' law for both levels, ``both`` the same split with the draft's cost over the
    shortened target step and with T(n), ``simulated`` its simulation. ``best`` is the fastest split within
    the budget, ``best_simulated`` its simulation. ``hinted`` is the simulation with hints, None without
    ``identical``.
    """

    step: DepthRow
    ceiling: float
    token: float
    product: float
    both: float
    simulated: float
    hinted: float | None
    best: Split
    best_simulated: float
    rows: tuple[DepthRow, ...]


def last_depth(depth: int, width: int, max_depth: int) -> int:
    """Return the largest depth to show: with several drafts a step the tree soon grows too large.

    Raises:
        SettingsError: ``depth`` itself makes too large a tree.
    """
    if (size := tree_branches(depth + 1, width)) > MAX_TREE:
        raise SettingsError(
            f"width {width} and depth {depth} make {size} target steps at once: up to {MAX_TREE} are "
            "simulated. Try less of one of them; more than two drafts a step hardly ever pay"
        )
    deeper = [ahead for ahead in range(1, max_depth + 1) if tree_branches(ahead + 1, width) <= _SHOWN_TREE]
    return max([depth, 1, *deeper])


def predict(
    workload: Workload,
    *,
    depth: int,
    width: int = 1,
    max_width: int = 1,
    num_drafts: int = 0,
    budget: int = 16,
    max_depth: int = 10,
    num_steps: int | None = None,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Prediction:
    """Predict the speed-up of ``depth`` and ``num_drafts``, and find the best split.

    ``num_steps`` None is `SIMULATED_STEPS`. ``advance`` is called once for each of the depths up to
    `last_depth`, twice more, and for hints.

    Raises:
        SettingsError: a depth, width, budget or number of drafts is impossible.
    """

    def simulated(scheme: Scheme) -> float:
        steps = num_steps or SIMULATED_STEPS
        steps = max(300, min(steps, 32 * steps // tree_branches(scheme.at_once, scheme.width)))
        speedup = simulate(workload, scheme, num_steps=steps, seed=seed).speedup
        advance()
        return speedup

    rate = width_rate(workload.alpha_step, width)
    costs = workload.c_step, workload.verification

    def row(ahead: int) -> DepthRow:
        return DepthRow(
            depth=ahead,
            parallel=ahead + 1,
            synchronous=synchronous_speedup(rate, ahead + 1, *costs),
            asynchronous=asynchronous_speedup(rate, ahead + 1, *costs),
            simulated=simulated(Scheme(ahead, width=width)),
        )

    max_depth = last_depth(depth, width, max_depth)
    best = best_split(workload, budget, max_parallel=max_depth + 1, max_width=max_width)
    rows = tuple(row(ahead) for ahead in range(1, max_depth + 1))
    # Hints need tokens in the pass, also where nothing else is drafted inside a step.
    hinted = Scheme(depth, width=width, num_drafts=max(num_drafts, budget // (depth + 1) - 1), hints=True)
    return Prediction(
        step=next((found for found in rows if found.depth == depth), DepthRow(0, 1, 1.0, 1.0, 1.0)),
        ceiling=step_ceiling(rate),
        token=token_speedup(workload.alpha_token, num_drafts, workload.c_token),
        product=expected_split(workload, depth + 1, width, num_drafts, law="product").speedup,
        both=expected_split(workload, depth + 1, width, num_drafts).speedup,
        simulated=simulated(Scheme(depth, width=width, num_drafts=num_drafts)),
        hinted=simulated(hinted) if workload.identical > 0 else None,
        best=best,
        best_simulated=simulated(Scheme(best.depth, width=best.width, num_drafts=best.num_drafts)),
        rows=rows,
    )
