"""The picture of loss against saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reason_spec.lab.exit.replay import ReplayReport
from reason_spec.lab.pictures import new_figure


def draw_curve(policy: Sequence[ReplayReport], others: Mapping[str, ReplayReport], file: Path) -> None:
    """Plot the points of a policy, strict to lax, and single points of other rules beside it."""
    figure, axes = new_figure(8, 5)
    saved = [100 * (1 - report.tokens_kept) for report in policy]
    axes.plot(saved, [100 * report.loss for report in policy], marker="o", label="policy, by threshold")
    axes.fill_between(
        saved,
        [100 * report.loss for report in policy],
        [100 * report.loss_upper95 for report in policy],
        alpha=0.2,
        label="95 % bound",
    )
    for (name, report), marker in zip(others.items(), "*sD^v<>PX", strict=False):
        axes.plot(100 * (1 - report.tokens_kept), 100 * report.loss, marker, label=name, markersize=9)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("thinking saved, % of tokens")
    axes.set_ylabel("answers made wrong, points")
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(f"{policy[0].n} answers to {policy[0].num_problems} problems")
    figure.savefig(file, dpi=150)
