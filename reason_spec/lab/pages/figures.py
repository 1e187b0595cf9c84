"""Figures of runs for papers and slides, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reason_spec.errors import DataError
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.records import writing
from reason_spec.lab.pages.data import Series, all_series, metrics_row, step_shares, tasks_of
from reason_spec.lab.pages.runs import Run
from reason_spec.lab.pages.spans import LANES, Span, State, TimelineView, view_of
from reason_spec.lab.pictures import new_figure, require_matplotlib
from reason_spec.types import Origin

_COLOURS = ("#4d5561", "#0b6fb8", "#d98200", "#0a8f63", "#b8508f", "#c2410c", "#7a5fc0", "#3aa6b9")
_MARKERS = ("o", "s", "^", "D", "v")
_STATE_STYLE: dict[State, dict[str, Any]] = {
    "kept": {"facecolor": "#0a8f63", "edgecolor": "#0a8f63"},
    "matched": {"facecolor": "white", "edgecolor": "#4a9ad4", "hatch": "---"},
    "rejected": {"facecolor": "white", "edgecolor": "#d0541a", "hatch": "////"},
    "undecided": {"facecolor": "white", "edgecolor": "#c99700", "hatch": "..."},
    "unused": {"facecolor": "white", "edgecolor": "#8a94a3", "hatch": "|||"},
    "cancelled": {"facecolor": "white", "edgecolor": "#a3a9b3", "hatch": "xxx"},
}
_ORIGIN_COLOURS: dict[Origin, str] = {
    "draft": "#d98200",
    "target": "#0b6fb8",
    "cache": "#b8508f",
    "inserted": "#6b7280",
}
_ROW_INCHES = 0.24


def write_figures(runs: Sequence[Run], folder: Path, problem: str | None = None) -> tuple[Path, ...]:
    """Draw accuracy against speed, acceptance by step, and the timelines of a problem's answers.

    ``problem`` None takes the first one with a timeline; without any timeline that figure is left out.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        DataError: the folder cannot be written, or the problem has no timeline among those that were read.
    """
    require_matplotlib("reason-spec report --png")
    figures = {"accuracy_speed.png": _accuracy_speed(runs), "acceptance_by_step.png": _by_step(runs)}
    if (chosen := _chosen_problem(runs, problem)) is not None:
        figures["timeline.png"] = _timelines(*chosen)
    with writing(folder, "Name another folder with --png."):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=150)
    return tuple(folder / name for name in figures)


def _chosen_problem(runs: Sequence[Run], problem: str | None) -> tuple[Run, list[UnitKey]] | None:
    for run in runs:
        wanted = problem if problem is not None else next((key.problem_id for key in run.timelines), None)
        keys = [key for key in run.timelines if key.problem_id == wanted]
        if keys:
            keys = [key for key in keys if key.sample == keys[0].sample]
            return run, sorted(keys, key=lambda key: -run.strategies.index(key.strategy))
    if problem is None:
        return None
    raise DataError(f"problem {problem!r} has no timeline among those that were read.")


def _style(series: Series, num_runs: int) -> dict[str, Any]:
    marker = series.run if num_runs > 1 else series.colour
    colour = _COLOURS[series.colour % len(_COLOURS)]
    return {"color": colour, "marker": _MARKERS[marker % len(_MARKERS)], "label": series.label, "capsize": 2}


def _accuracy_speed(runs: Sequence[Run]) -> Any:
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = new_figure(6.4, 4.2)
    for series in all_series(runs):
        row = metrics_row(runs[series.run].metrics, tasks_of([runs[series.run]])[0], series.strategy)
        if row is None or row.accuracy is None:
            continue
        axes.errorbar(
            row.seconds_per_problem.value,
            100 * row.accuracy.value,
            # A logarithmic axis does not reach 0.
            xerr=_whiskers(row.seconds_per_problem, 1, lowest=row.seconds_per_problem.value / 4),
            yerr=_whiskers(row.accuracy, 100),
            markersize=7,
            linestyle="none",
            **_style(series, len(runs)),
        )
    axes.set(xlabel="seconds per problem (faster to the right)", ylabel="right answers (%)", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.invert_xaxis()
    return _with_legend(figure, axes)


def _whiskers(estimate: Estimate, factor: float, lowest: float = 0.0) -> list[list[float]]:
    """Return the lengths of both sides of an interval, cut at ``lowest``."""
    low, high = estimate.interval or (estimate.value, estimate.value)
    below, above = max(0.0, estimate.value - max(low, lowest)), max(0.0, high - estimate.value)
    return [[factor * below], [factor * above]]


def _by_step(runs: Sequence[Run]) -> Any:
    figure, axes = new_figure(6.4, 3.8)
    for series in all_series(runs):
        row = metrics_row(runs[series.run].metrics, tasks_of([runs[series.run]])[0], series.strategy)
        shares = step_shares(row)
        if shares:
            values = [share.value for share in shares.values()]
            below = [max(0.0, share.value - share.low) for share in shares.values()]
            above = [max(0.0, share.high - share.value) for share in shares.values()]
            axes.errorbar(list(shares), values, yerr=[below, above], **_style(series, len(runs)))
    axes.set(xlabel="step of the answer", ylabel="accepted drafts", ylim=(0, 1.05))
    return _with_legend(figure, axes)


def _with_legend(figure: Any, axes: Any) -> Any:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _timelines(run: Run, keys: Sequence[UnitKey]) -> Any:
    """Draw the answers to one problem below each other, the baseline last, on one axis."""
    from matplotlib.patches import Patch

    shown = [(key, view_of(run.timelines[key])) for key in keys]
    heights = [sum(view.num_rows(lane) for lane in LANES) + 2.5 for _, view in shown]
    figure, panels = new_figure(
        9.0,
        0.9 + _ROW_INCHES * sum(heights),
        nrows=len(shown),
        sharex=True,
        height_ratios=heights,
        squeeze=False,
    )
    longest = max(view.seconds for _, view in shown)
    for axes, (key, view) in zip(panels[:, 0], shown, strict=True):
        _draw_view(axes, view, longest)
        axes.set_title(f"{key.problem_id}, {key.strategy}: {view.seconds:.2f} s", loc="left", fontsize=9)
    panels[-1, 0].set_xlabel("seconds")
    states = dict.fromkeys(span.state for _, view in shown for span in view.spans)
    patches = [Patch(label=state, linewidth=0.8, **_STATE_STYLE[state]) for state in states]
    figure.legend(handles=patches, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _draw_view(axes: Any, view: TimelineView, longest: float) -> None:
    ticks, labels, top = [0.0], ["final"], 1.0
    for final in view.finals:
        axes.plot(final.at, 0.0, "o", markersize=5, color=_ORIGIN_COLOURS[final.origin])
    for lane in LANES:
        rows = view.num_rows(lane)
        if rows:
            ticks.append(top + (rows - 1) / 2)
            labels.append(lane)
        for span in (span for span in view.spans if span.lane == lane):
            height = 0.4 if span.purpose in ("ahead", "token") else 0.8
            place = (top + span.row - height / 2, height)
            axes.broken_barh([_extent(span, longest)], place, linewidth=0.8, **_STATE_STYLE[span.state])
        top += rows
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(top - 0.3, -0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _extent(span: Span, seconds: float) -> tuple[float, float]:
    """Return start and length, with a gap to the next span, and a visible minimum."""
    return span.start, max(span.end - span.start - 0.002 * seconds, 0.001 * seconds)
