"""How far a run fell short of what the formulas promise of its rates, and which term is to blame.

From the ideal on, one thing after another that the formulas leave out is added, in a fixed order, and the
speed-up is simulated anew. What a term takes depends on what was there before it, so the order is part of
the result. What is between the last simulation and what was measured is explained by no term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log

from reason_spec.control.costs import PassCost
from reason_spec.control.formulas import (
    asynchronous_speedup,
    judged_ahead_speedup,
    tokens_per_pass,
    width_rate,
)
from reason_spec.lab.planning.simulator import Mode, Scheme, simulate
from reason_spec.lab.planning.workload import Workload

SIMULATED_STEPS = 10_000
_FAR_AHEAD = 30
"""A depth that holds no draft up."""
_SMALLEST_SHORTFALL = 0.02
"""Where reality comes so near to the ideal there is nothing to divide into shares."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What a run showed of one strategy.

    ``workload`` holds its rates, costs and lengths; ``alpha_token`` in it is the chance of a drafted token.
    ``mode`` None is the token level alone. ``num_drafts`` tokens were planned for each branch of a pass,
    ``pass_drafts`` were in one on average, and ``pass_tokens`` came out of it. ``speedup`` is over the
    target alone: by the same run's ``autoregressive`` answers where ``has_baseline``, else by T(1).
    ``pass_cost_at_work`` is T(n) while both models worked (None: not known). Before it writes an answer of
    ``answer_tokens`` tokens the target reads ``prompt_tokens`` (0: not known).
    """

    strategy: str
    mode: Mode | None
    workload: Workload
    depth: int
    width: int
    num_drafts: int
    pass_drafts: float
    pass_tokens: float
    speedup: float
    has_baseline: bool
    num_answers: int
    pass_cost_at_work: PassCost | None = None
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0

    @property
    def prompt_share(self) -> float:
        """The share of the target's time, alone, that it reads the prompt."""
        if not self.prompt_tokens:
            return 0.0
        ratio, requests = self.workload.pass_ratio, self.workload.requests
        others = ratio(requests - 1) if requests > 1 else 0.0
        reading = ratio(self.prompt_tokens + requests - 1) - others
        return reading / (reading + max(0.0, self.answer_tokens - 1.0) * ratio(requests) / requests)


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that the formulas leave out; ``speedup`` is what is left with it and all before it.

    ``share`` is its part in the shortfall on a logarithmic scale: the shares of all terms and of what is
    unexplained add up to 1, and one that helps is below 0. None where there is no shortfall to speak of.
    """

    name: str
    meaning: str
    speedup: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``ideal`` by the formulas, ``terms`` in their order, and ``measured``."""

    run: MeasuredRun
    ideal: float
    terms: tuple[Term, ...]
    unexplained: float | None

    @property
    def measured(self) -> float:
        return self.run.speedup

    @property
    def simulated(self) -> float:
        """The speed-up with all terms."""
        return self.terms[-1].speedup if self.terms else self.ideal

    @property
    def worst(self) -> Term | None:
        """The term with the largest share; None where no term takes anything."""
        terms = [term for term in self.terms if term.share is not None and term.share > 0]
        return max(terms, key=lambda term: term.share or 0.0, default=None)


def diagnose(
    run: MeasuredRun,
    *,
    num_steps: int | None = None,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Diagnosis:
    """Divide the shortfall of a run into terms.

    ``num_steps`` None is `SIMULATED_STEPS`. ``advance`` is called after each term.
    """
    ideal = _ideal(run)
    left: list[tuple[str, str, float]] = []
    for name, meaning, workload, scheme in _ablations(run):
        speedup = simulate(workload, scheme, num_steps=num_steps or SIMULATED_STEPS, seed=seed).speedup
        left.append((name, meaning, speedup))
        advance()
    if run.prompt_share:
        meaning = f"the target alone reads the prompt for {run.prompt_share:.1%} of its time"
        left.append(("prompts", meaning, _with_prompts(left[-1][2], run.prompt_share)))
    shortfall = log(ideal / run.speedup)
    divisible = abs(shortfall) >= _SMALLEST_SHORTFALL
    terms: list[Term] = []
    before = ideal
    for name, meaning, speedup in left:
        terms.append(Term(name, meaning, speedup, log(before / speedup) / shortfall if divisible else None))
        before = speedup
    return Diagnosis(run, ideal, tuple(terms), log(before / run.speedup) / shortfall if divisible else None)


def _ideal(run: MeasuredRun) -> float:
    """Return h = f g with the run's rates, costs of one token, no verification and no limit but depth."""
    workload = run.workload
    rate = width_rate(workload.alpha_step, run.width)
    token_level = tokens_per_pass(workload.alpha_token, run.num_drafts)
    if run.mode == "judged":
        return judged_ahead_speedup(rate, workload.c_step, 0.0, token_level)
    if run.mode is None:
        return token_level
    return token_level * asynchronous_speedup(rate, run.depth + 1, workload.c_step)


def _ablations(run: MeasuredRun) -> list[tuple[str, str, Workload, Scheme]]:
    """Return each term with what is simulated for it: the one before, and one thing more."""
    full = run.workload
    found: list[tuple[str, str, Workload, Scheme]] = []
    planned = tokens_per_pass(full.alpha_token, run.num_drafts)
    supplied = max(1.0, min(run.pass_tokens, run.num_drafts + 1.0))
    drafts = min(run.num_drafts, max(ceil(supplied - 1.0), round(run.pass_drafts)))
    # The product law has the draft as much faster as the token level makes the target; where a step is judged
    # first the two never work on the same one, and the law has nothing to leave out.
    pace = 1.0 if run.mode == "judged" else supplied
    workload = Workload(
        alpha_step=full.alpha_step,
        c_step=full.c_step / pace,
        alpha_token=_rate_of(supplied, drafts),
        step_tokens=full.step_tokens,
    )
    # The papers let the draft write one step beyond those that the target works on, or as far as it likes.
    unbounded = {"judged": _FAR_AHEAD, None: 0}.get(run.mode, run.depth + 1)
    mode = run.mode or "asynchronous"
    scheme = Scheme(unbounded, parallel=run.depth + 1, width=run.width, num_drafts=drafts, mode=mode)

    def add(name: str, meaning: str) -> None:
        found.append((name, meaning, workload, scheme))

    add("token drafts", f"a pass brought {supplied:.2f} tokens, and {planned:.2f} were planned")
    if run.mode != "judged" and run.mode is not None:
        workload = replace(workload, c_step=full.c_step)
        add("draft's pace", "the draft is no faster where the token level makes the target so")
    if run.mode is not None:
        workload = replace(workload, verification=full.verification)
        add("verification", f"a verdict takes {full.verification:.2f} of a target step")
        scheme = replace(scheme, depth=run.depth)
        add("draft limits", f"the draft waits when it is {run.depth} steps ahead")
    if run.mode is not None and full.answer_steps is not None:
        workload = replace(workload, answer_steps=full.answer_steps)
        add("short answers", f"an answer has {full.answer_steps:.1f} steps, and nothing is ahead of its end")
    if run.mode is not None:
        workload = replace(workload, step_tokens_std=full.step_tokens_std)
        add("uneven steps", f"steps have {full.step_tokens:.0f} ± {full.step_tokens_std:.0f} tokens")
    workload = replace(workload, pass_cost=full.pass_cost, draft_pass_cost=full.draft_pass_cost)
    add("pass time", f"a pass of 16 tokens takes {full.pass_ratio(16):.2f} times one of 1 token")
    if run.pass_cost_at_work is not None:
        workload = replace(workload, pass_cost=run.pass_cost_at_work)
        add(
            "passes at work",
            f"while both models work it takes {workload.pass_ratio(16):.2f} times one of 1 token",
        )
    if full.requests > 1:
        workload = replace(workload, requests=full.requests)
        add("answers at once", f"{full.requests} at once share the passes")
    return found


def _with_prompts(speedup: float, share: float) -> float:
    """Return the speed-up where a share of the time is as long as before (Amdahl's law)."""
    return 1.0 / (share + (1.0 - share) / speedup)


def _rate_of(pass_tokens: float, num_drafts: int) -> float:
    """Return the chance of a draft at which ``pass_tokens`` come out of a pass on average."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if tokens_per_pass(middle, num_drafts) < pass_tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2
