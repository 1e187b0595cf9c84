"""Pictures of runs for papers and slides, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reason_spec.errors import DataError
from reason_spec.evaluation.estimates import Estimate
from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.records import writing
from reason_spec.evaluation.statistics import exact_interval
from reason_spec.lab.pages.data import MAX_STEPS, Series, all_series, metrics_row, tasks_of
from reason_spec.lab.pages.runs import Run
from reason_spec.lab.pages.spans import LANES, Picture, Span, State, picture
from reason_spec.lab.pictures import require_matplotlib
from reason_spec.types import Origin

_COLOURS = ("#4d5561", "#0b6fb8", "#d98200", "#0a8f63", "#b8508f", "#c2410c", "#7a5fc0", "#3aa6b9")
_MARKERS = ("o", "s", "^", "D", "v")
_STATE_STYLE: dict[State, tuple[str, str, bool]] = {
    "stands": ("#0a8f63", "", True),
    "compared": ("#4a9ad4", "---", False),
    "refused": ("#d0541a", "////", False),
    "open": ("#c99700", "...", False),
    "unused": ("#8a94a3", "|||", False),
    "cancelled": ("#a3a9b3", "xxx", False),
}
"""Colour, hatching, and whether a span is filled."""
_ORIGIN_COLOURS: dict[Origin, str] = {
    "draft": "#d98200",
    "target": "#0b6fb8",
    "cache": "#b8508f",
    "inserted": "#6b7280",
}
_ROW_INCHES = 0.24


def write_figures(runs: Sequence[Run], folder: Path, problem: str | None = None) -> tuple[Path, ...]:
    """Draw accuracy against speed, acceptance by step, and the timelines of a problem's answers.

    Without ``problem`` it is the first one with a timeline; where there is none that picture is left out.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        DataError: the folder cannot be written, or the problem has no timeline among those that were read.
    """
    require_matplotlib("reason-spec report --png")
    pictures = {"accuracy_speed.png": _accuracy_speed(runs), "acceptance_by_step.png": _by_step(runs)}
    if (chosen := _chosen_problem(runs, problem)) is not None:
        run, keys = chosen
        pictures["timeline.png"] = _timelines(run, keys)
    files = []
    with writing(folder, "Name another folder with --png."):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            figure.savefig(folder / name, dpi=150)
            files.append(folder / name)
    return tuple(files)


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


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _style(series: Series, num_runs: int) -> dict[str, Any]:
    marker = series.run if num_runs > 1 else series.colour
    colour = _COLOURS[series.colour % len(_COLOURS)]
    return {"color": colour, "marker": _MARKERS[marker % len(_MARKERS)], "label": series.label}


def _accuracy_speed(runs: Sequence[Run]) -> Any:
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    for series in all_series(runs):
        run = runs[series.run]
        row = metrics_row(run.metrics, tasks_of([run])[0], series.strategy)
        if row is None or row.accuracy is None:
            continue
        axes.errorbar(
            row.seconds_per_problem.value,
            100 * row.accuracy.value,
            # A logarithmic axis does not reach 0.
            xerr=_whiskers(row.seconds_per_problem, 1, lowest=row.seconds_per_problem.value / 4),
            yerr=_whiskers(row.accuracy, 100),
            capsize=2,
            markersize=7,
            linestyle="none",
            **_style(series, len(runs)),
        )
    axes.set(xlabel="seconds per problem (faster to the right)", ylabel="right answers (%)", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    _add_legend(figure, axes)
    return figure


def _whiskers(estimate: Estimate, factor: float, lowest: float = 0.0) -> list[list[float]]:
    """Return the lengths of both sides of an interval; none reaches below ``lowest``."""
    low, high = estimate.interval or (estimate.value, estimate.value)
    below, above = max(0.0, estimate.value - max(low, lowest)), max(0.0, high - estimate.value)
    return [[factor * below], [factor * above]]


def _by_step(runs: Sequence[Run]) -> Any:
    figure = _figure(6.4, 3.8)
    axes = figure.subplots()
    for series in all_series(runs):
        run = runs[series.run]
        row = metrics_row(run.metrics, tasks_of([run])[0], series.strategy)
        places, shares, below, above = [], [], [], []
        for step in row.acceptance_by_step[:MAX_STEPS] if row is not None else ():
            whole = step.num_accepted + step.num_rejected + step.num_unknown
            if not whole:
                continue
            share = step.num_accepted / whole
            low, high = exact_interval(step.num_accepted, whole)
            places.append(step.step_index + 1)
            shares.append(share)
            below.append(max(0.0, share - low))
            above.append(max(0.0, high - share))
        if places:
            axes.errorbar(places, shares, yerr=[below, above], capsize=2, **_style(series, len(runs)))
    axes.set(xlabel="step of the answer", ylabel="drafts that stood", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    _add_legend(figure, axes)
    return figure


def _add_legend(figure: Any, axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)


def _timelines(run: Run, keys: Sequence[UnitKey]) -> Any:
    """Draw the answers to one problem below each other, the baseline last, on one axis."""
    shown = [(key, picture(run.timelines[key])) for key in keys]
    heights = [sum(part.num_rows(lane) for lane in LANES) + 2.5 for _, part in shown]
    figure = _figure(9.0, 0.9 + _ROW_INCHES * sum(heights))
    panels = figure.subplots(len(shown), 1, sharex=True, height_ratios=heights, squeeze=False)
    for axes, (key, part) in zip(panels[:, 0], shown, strict=True):
        _draw_picture(axes, part, max(other.seconds for _, other in shown))
        axes.set_title(f"{key.problem_id}, {key.strategy}: {part.seconds:.2f} s", loc="left", fontsize=9)
    panels[-1, 0].set_xlabel("seconds")
    states = dict.fromkeys(span.state for _, part in shown for span in part.spans)
    figure.legend(
        handles=[_patch(state) for state in states], loc="outside lower center", ncols=6, fontsize=8
    )
    return figure


def _draw_picture(axes: Any, part: Picture, longest: float) -> None:
    ticks, labels, top = [0.0], ["final"], 1.0
    for final in part.finals:
        axes.plot(final.at, 0.0, "o", markersize=5, color=_ORIGIN_COLOURS[final.origin])
    for lane in LANES:
        rows = part.num_rows(lane)
        if rows:
            ticks.append(top + (rows - 1) / 2)
            labels.append(lane)
        for span in (span for span in part.spans if span.lane == lane):
            height = 0.4 if span.purpose in ("ahead", "token") else 0.8
            place = (top + span.row - height / 2, height)
            axes.broken_barh([_extent(span, longest)], place, **_fill(span.state))
        top += rows
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(top - 0.3, -0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _extent(span: Span, seconds: float) -> tuple[float, float]:
    """Return start and length, with a gap to what follows, and long enough to be seen."""
    return span.start, max(span.end - span.start - 0.002 * seconds, 0.001 * seconds)


def _fill(state: State) -> dict[str, Any]:
    colour, hatch, filled = _STATE_STYLE[state]
    return {"facecolor": colour if filled else "white", "edgecolor": colour, "hatch": hatch, "linewidth": 0.8}


def _patch(state: State) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=state, **_fill(state))
