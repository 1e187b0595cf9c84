"""The numbers that the control of speculation decides by.

Where a number was measured, the page of ``docs/measurements`` is named; the others were chosen by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostConstants:
    """How pass times are measured and kept up to date."""

    start_weight: float = 8.0
    """Passes that a measurement at the start counts for."""
    size_bandwidth: float = 0.25
    """Kernel bandwidth of T(n) in log2(tokens): a measured size has its own time, a size between takes
    both."""


@dataclass(frozen=True, slots=True)
class PlannerConstants:
    """How one answer is planned."""

    rate_weight: float = 8.0
    """Weight of an assumed rate, in observations."""
    rate_memory: float = 0.98
    """Weight of an observation after each later answer."""
    correction_weight: float = 0.5
    """Weight of a prediction beside measured speeds, in answers."""
    correction_half_life: float = 6.6
    """Half-life of a measured speed, in answers: the rates it was predicted from change."""
    depth_weight: float = 2.0
    """Weight of all depths beside one depth, in answers: a depth may be the fastest so far by chance."""
    split_weight: float = 0.5
    """Weight of all numbers of draft tokens of a depth beside one number, in answers."""
    explore_every: int = 16
    """Answers after which a layer that was left out is tried again."""
    steps_margin: float = 1.05
    """Predicted speed-up of draft steps over draft tokens alone that is needed to use draft steps."""
    least_known_tokens: float = 2.0
    """Accepted tokens the suffix cache must expect of the first pass for an answer to count as known."""
    pass_rounds: int = 4
    """Iterations in which the size of a pass and the number of tokens drafted during it settle."""


@dataclass(frozen=True, slots=True)
class LoadConstants:
    """How all live answers together are controlled; times are in seconds."""

    round_seconds: float = 0.25
    """Time between two decisions."""
    least_seconds: float = 0.02
    """Least time between two decisions when an answer has begun or ended."""
    least_seconds_per_answer: float = 0.0005
    """What each live answer adds to that: many may begin at once, and all wait for the decision."""
    draft_ahead_factor: int = 2
    """Draft tokens that may wait, in shares of a pass: one share is verified while the next is generated."""
    step_rate: float = 0.6
    """Acceptance rate of draft steps until verdicts show another."""
    token_rate: float = 0.9
    """Acceptance rate of draft tokens until passes show another."""
    step_rate_weight: float = 8.0
    token_rate_weight: float = 64.0
    """Weights of these assumptions, in steps and in tokens."""
    rate_memory: float = 0.98
    """Weight of an observation after each later one."""
    own_steps_weight: float = 4.0
    own_tokens_weight: float = 32.0
    """Weights of the rates of all answers beside an answer's own."""
    joined_weight: float = 4.0
    joined_memory: float = 0.9
    """Assumed single answers that no other joined, and the weight of an observed one after each later one."""
    most_joined: float = 0.25
    """Share of single answers that were joined by another above which a single answer gets no draft steps: to
    leave them costs what they gain (docs/measurements/load.md)."""
    margin: float = 0.05
    """Relative gain in goodput that another mode must promise before the mode changes."""
    hold_seconds: float = 1.0
    """Least time between two changes of the mode; a change to the target alone is never delayed."""
    window_seconds: float = 2.0
    window_tokens: int = 64
    """The least that measured goodput is taken from."""
    settling_seconds: float = 0.3
    """Time after a change of the mode that counts for neither mode."""
    least_generating: float = 0.75
    """Share of live answers that must be past their prompts for measured goodput to count."""
    correction_weight: float = 1.5
    """Weight of a prediction beside measured goodput, in seconds."""
    correction_half_life: float = 60.0
    """Half-life of measured goodput: a mode that was slow once is tried again."""
    assumed_log_of_steps: float = math.log(0.55)
    """Goodput over prediction assumed of draft steps: each is a request of its own, and rejected steps still
    cost generation time (docs/measurements/load.md)."""
    least_log_of_none: float = math.log(0.8)
    """Down to this, goodput that draft tokens miss counts as lost between passes, in every mode."""
    trial_after: float = 30.0
    """Time of speculation after which the target alone is tried, where its goodput at the load is unknown."""
    trial_seconds: float = 4.0
    trial_answers: int = 4
    """Length of a trial, and the least number of live answers."""
    trial_share: float = 0.65
    """Share of the best goodput that must be expected of the target alone for a trial."""
    known_seconds: float = 600.0
    """Time for which a measured goodput of the target alone counts as known."""
    all_cores_share: float = 0.97
    """Share of the pass time on the shared cores below which the target takes all cores."""


COST_CONSTANTS = CostConstants()
PLANNER_CONSTANTS = PlannerConstants()
LOAD_CONSTANTS = LoadConstants()
