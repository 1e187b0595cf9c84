"""Explain the gap between the formulas' speed-up and a run's, term by term.

Starting from the ideal, one effect that the formulas leave out is added after another, in a fixed order, and
the speed-up is simulated again. The share of a term depends on the terms before it, so the order is part of
the result. The gap between the last simulation and the run is not explained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import asynchronous_speedup, judged_ahead_speedup, tokens_per_pass
from reason_spec.lab.planning.simulator import Mode, Scheme, simulate
from reason_spec.lab.planning.workload import Workload

SIMULATED_STEPS = 10_000
_UNLIMITED_DEPTH = 30
"""A depth at which the draft never waits."""
_SMALLEST_SHORTFALL = 0.02
"""Smaller gaps, on a logarithmic scale, are not divided into shares."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The measurements of one strategy in a run.

    ``mode`` None is the token level alone. ``num_drafts`` tokens were planned for each branch of a pass,
    ``pass_drafts`` were in one on average, and a pass brought ``pass_tokens``. ``speedup`` is over the run's
    ``autoregressive`` answers where ``has_baseline``, else over T(1). ``pass_cost_at_work`` is T(n) while
    both models worked (None: unknown). ``prompt_share`` is the share of the target's time, without
    speculation, in which it reads the prompt (0: unknown).
    """

    strategy: str
    mode: Mode | None
    workload: Workload
    depth: int
    num_drafts: int
    pass_drafts: float
    pass_tokens: float
    speedup: float
    has_baseline: bool
    num_answers: int
    pass_cost_at_work: PassCost | None = None
    prompt_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Term:
    """One effect that the formulas leave out; ``speedup`` is left with it and all terms before it.

    ``share`` is its part of the shortfall on a logarithmic scale, below 0 for an effect that helps: all
    shares and the unexplained one add up to 1. None where the shortfall is too small to divide.
    """

    name: str
    meaning: str
    speedup: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``ideal`` by the formulas, ``terms`` in their order, and the share that no term explains."""

    run: MeasuredRun
    ideal: float
    terms: tuple[Term, ...]
    unexplained: float | None

    @property
    def worst(self) -> Term | None:
        """The term with the largest share above 0."""
        terms = [term for term in self.terms if term.share is not None and term.share > 0]
        return max(terms, key=lambda term: term.share or 0.0, default=None)


def diagnose(run: MeasuredRun) -> Diagnosis:
    """Divide the shortfall of a run into terms."""
    ideal = before = _ideal(run)
    shortfall = log(ideal / run.speedup)
    terms: list[Term] = []

    def share(speedup: float) -> float | None:
        return log(before / speedup) / shortfall if abs(shortfall) >= _SMALLEST_SHORTFALL else None

    def add(name: str, meaning: str, speedup: float) -> None:
        nonlocal before
        terms.append(Term(name, meaning, speedup, share(speedup)))
        before = speedup

    for name, meaning, workload, scheme in _simulations(run):
        add(name, meaning, simulate(workload, scheme, num_steps=SIMULATED_STEPS))
    if run.prompt_share:
        # Amdahl's law: prompts take as long with speculation as without.
        meaning = f"the target alone reads the prompt for {run.prompt_share:.1%} of its time"
        add("prompts", meaning, 1.0 / (run.prompt_share + (1.0 - run.prompt_share) / before))
    return Diagnosis(run, ideal, tuple(terms), share(run.speedup))


def _ideal(run: MeasuredRun) -> float:
    """Return h = f g with the run's rates, costs of one token, no verification and no limit but depth."""
    workload = run.workload
    token_level = tokens_per_pass(workload.alpha_token, run.num_drafts)
    if run.mode == "judged":
        return judged_ahead_speedup(workload.alpha_step, workload.c_step, 0.0, token_level)
    if run.mode is None:
        return token_level
    return token_level * asynchronous_speedup(workload.alpha_step, run.depth + 1, workload.c_step)


def _simulations(run: MeasuredRun) -> list[tuple[str, str, Workload, Scheme]]:
    """Return each term with the simulation for it: the one before, and one more effect."""
    full, steps = run.workload, run.mode is not None
    supplied = max(1.0, min(run.pass_tokens, run.num_drafts + 1.0))
    planned = tokens_per_pass(full.alpha_token, run.num_drafts)
    workload, scheme = _start(run, supplied)
    found: list[tuple[str, str, Workload, Scheme]] = []

    def add(name: str, meaning: str) -> None:
        found.append((name, meaning, workload, scheme))

    add("token drafts", f"a pass brought {supplied:.2f} tokens, and {planned:.2f} were planned")
    if run.mode == "asynchronous":
        workload = replace(workload, c_step=full.c_step)
        add("draft's pace", "the draft is no faster where the token level speeds up the target")
    if steps:
        workload = replace(workload, verification=full.verification)
        add("verification", f"a verdict takes {full.verification:.2f} of a target step")
        scheme = replace(scheme, depth=run.depth)
        add("draft limits", f"the draft waits when it is {run.depth} steps ahead")
        if full.answer_steps is not None:
            workload = replace(workload, answer_steps=full.answer_steps)
            add(
                "short answers",
                f"an answer has {full.answer_steps:.1f} steps, and nothing is ahead of its end",
            )
        workload = replace(workload, step_tokens_std=full.step_tokens_std)
        add("uneven steps", f"steps have {full.step_tokens:.0f} ± {full.step_tokens_std:.0f} tokens")
    workload = replace(workload, pass_cost=full.pass_cost)
    add("pass time", f"a pass of 16 tokens takes {workload.pass_ratio(16):.2f} times one of 1 token")
    if run.pass_cost_at_work is not None:
        workload = replace(workload, pass_cost=run.pass_cost_at_work)
        ratio = workload.pass_ratio(16)
        add("passes at work", f"while both models work it takes {ratio:.2f} times one of 1 token")
    if full.requests > 1:
        workload = replace(workload, requests=full.requests)
        add("answers at once", f"{full.requests} at once share the passes")
    return found


def _start(run: MeasuredRun, supplied: float) -> tuple[Workload, Scheme]:
    """Return the simulation that is nearest to the formulas, with ``supplied`` tokens out of a pass."""
    full = run.workload
    drafts = min(run.num_drafts, max(ceil(supplied - 1.0), round(run.pass_drafts)))
    # By the product law the draft gets faster with the target. Judged steps are never written by both at
    # once.
    pace = 1.0 if run.mode == "judged" else supplied
    workload = Workload(
        alpha_step=full.alpha_step,
        c_step=full.c_step / pace,
        alpha_token=_acceptance_for(supplied, drafts),
        step_tokens=full.step_tokens,
    )
    # In the papers the draft runs one step beyond those of the target, or without a limit.
    depth = {"judged": _UNLIMITED_DEPTH, None: 0}.get(run.mode, run.depth + 1)
    return workload, Scheme(depth, run.depth + 1, drafts, run.mode or "asynchronous")


def _acceptance_for(pass_tokens: float, num_drafts: int) -> float:
    """Return the acceptance of token drafts at which a pass brings ``pass_tokens`` on average."""
    from scipy.optimize import brentq

    if pass_tokens <= 1.0 or pass_tokens >= num_drafts + 1.0:
        return 0.0 if pass_tokens <= 1.0 else 1.0
    return float(brentq(lambda alpha: tokens_per_pass(alpha, num_drafts) - pass_tokens, 0.0, 1.0, xtol=1e-6))
