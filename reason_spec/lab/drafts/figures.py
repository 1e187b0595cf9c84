"""The picture of a draft's training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from reason_spec.lab.drafts.training import CurvePoint
from reason_spec.lab.pictures import new_figure


def draw_curve(curve: Sequence[CurvePoint], path: Path) -> None:
    """Draw losses and accepted tokens against the training time."""
    figure, (losses, accepted) = new_figure(8, 3.4, ncols=2)
    minutes = [point.seconds / 60 for point in curve]
    losses.plot(minutes, [point.train_loss for point in curve], label=f"training: {curve[0].objective}")
    losses.plot(minutes, [point.held_out_loss for point in curve], label="held out: cross-entropy")
    for before, point in pairwise(curve):
        if before.objective != point.objective:
            losses.axvline(point.seconds / 60, color="grey", linestyle=":", label=f"then {point.objective}")
    losses.set(xlabel="minutes of training", ylabel="loss (nats a token)", ylim=(0, None))
    losses.legend()
    for place in (0, 1, 3, 7):
        shares = [point.accepted[place] for point in curve]
        accepted.plot(minutes, shares, label=f"{place + 1} in a row" if place else "first token")
    accepted.set(xlabel="minutes of training", ylabel="accepted drafts, held out", ylim=(0, 1))
    accepted.legend()
    figure.savefig(path, dpi=120)
