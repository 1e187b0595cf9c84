"""What a draft is trained for in which part of the time (DistillSpec, arXiv 2310.08461)."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

ScheduleName = Literal["cross-entropy", "kl", "on-policy", "phased"]
Objective = Literal["cross-entropy", "kl", "on-policy"]
"""``kl``: on the target's answers; ``on-policy``: the same divergence, on answers that the draft writes."""


class Phase(NamedTuple):
    """An objective, and the share of the training time at which it ends."""

    objective: Objective
    end: float


# A batch of the others takes several times as long, so each begins with cross-entropy.
SCHEDULES: Final[dict[ScheduleName, tuple[Phase, ...]]] = {
    "cross-entropy": (Phase("cross-entropy", 1.0),),
    "kl": (Phase("cross-entropy", 0.6), Phase("kl", 1.0)),
    "on-policy": (Phase("cross-entropy", 0.6), Phase("on-policy", 1.0)),
    "phased": (Phase("cross-entropy", 0.6), Phase("kl", 0.85), Phase("on-policy", 1.0)),
}


def objective_at(schedule: ScheduleName, share_done: float) -> Objective:
    """Return the objective after a share of the training time."""
    phases = SCHEDULES[schedule]
    return next((phase.objective for phase in phases if share_done < phase.end), phases[-1].objective)
