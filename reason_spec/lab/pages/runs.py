"""Read the folders of runs for a report: results, settings, and the timelines of some answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from reason_spec.errors import DataError, unknown_name
from reason_spec.evaluation.grouping import baseline_among
from reason_spec.evaluation.metrics import RunMetrics, measure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.store import RESULTS, SETTINGS, flattened
from reason_spec.evaluation.timeline import TIMELINES, Timeline, read_timelines
from reason_spec.lab.run_folder import read_results, read_settings

_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a report.

    ``label`` names it among the runs of the report, and ``letter`` is a short form of it where there are
    several. ``settings`` is the content of ``settings.yaml``. ``shown`` are the answers shown one by one,
    ``timelines`` their events, and ``notices`` say what the folder lacks.
    """

    path: Path
    label: str
    settings: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    metrics: RunMetrics
    shown: Set[UnitKey] = frozenset()
    timelines: Mapping[UnitKey, Timeline] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    letter: str = ""

    @property
    def title(self) -> str:
        return f"{self.letter}: {self.label}" if self.letter else self.label

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies in the order of the command line, the baseline first."""
        given = (name for session in self.sessions for name in session.get("strategies") or ())
        present = {outcome.strategy: None for outcome in self.outcomes}
        names = [name for name in dict.fromkeys([*given, *present]) if name in present]
        baseline = baseline_among(names)
        return (baseline, *(name for name in names if name != baseline))

    @property
    def baseline(self) -> str:
        return self.strategies[0]

    @property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self.settings.get("sessions") or ())


def read_runs(
    paths: Sequence[Path], *, max_timelines: int, shown_problem: str | None = None
) -> tuple[Run, ...]:
    """Read the folders of runs.

    Args:
        max_timelines: number of answers of each run to show one by one, chosen evenly.
        shown_problem: id of a problem to show in any case.

    Raises:
        DataError: a folder is missing, has no results, or holds a damaged line; the message names it.
        SettingsError: there is no such problem.
    """
    for place, path in enumerate(paths):
        if any(path.resolve() == earlier.resolve() for earlier in paths[:place]):
            raise DataError(f"{path} is given twice. Name each run once.")
    settings = [read_settings(path) for path in paths]
    runs = [
        _read_run(path, label, content, max_timelines, shown_problem)
        for path, label, content in zip(paths, _labels(paths, settings), settings, strict=True)
    ]
    known = {outcome.id for run in runs for outcome in run.outcomes}
    if shown_problem is not None and shown_problem not in known:
        raise unknown_name("problem", shown_problem, sorted(known)[:_MAX_NAMES])
    if len(runs) == 1:
        return tuple(runs)
    letters = ascii_uppercase if len(runs) <= len(ascii_uppercase) else map(str, range(1, len(runs) + 1))
    return tuple(replace(run, letter=letter) for run, letter in zip(runs, letters, strict=False))


def _read_run(
    path: Path, label: str, settings: Mapping[str, Any], max_timelines: int, shown_problem: str | None
) -> Run:
    notices = [] if settings else [f"{SETTINGS} is missing: models, settings and versions are not known."]
    outcomes, torn = read_results(path)
    if torn:
        notices.append(
            f"The last line of {RESULTS} is incomplete and was left out. Does the run still go on?"
        )
    wanted = chosen_evenly(outcomes, max_timelines)
    wanted |= {outcome.key for outcome in outcomes if outcome.id == shown_problem}
    timelines = {timeline.key: timeline for timeline in read_timelines(path) if timeline.key in wanted}
    if not (path / TIMELINES).exists():
        notices.append(
            f"There is no {TIMELINES}: timelines and rejected drafts are not shown. 'reason-spec eval' "
            "stores them."
        )
    elif missing := len(wanted) - len(timelines):
        notices.append(f"{TIMELINES} lacks {missing} of the {len(wanted)} answers shown.")
    run = Run(path, label, settings, outcomes, RunMetrics((), ()), wanted, timelines, tuple(notices))
    return replace(run, metrics=measure(outcomes, run.strategies))


def chosen_evenly(outcomes: Sequence[Outcome], limit: int) -> set[UnitKey]:
    """Choose at most ``limit`` answers: whole problems with all strategies, evenly over the run.

    Above 0 at least one problem is chosen, also where its answers alone exceed the limit.
    """
    if limit < 1:
        return set()
    by_problem: dict[tuple[str, int], list[UnitKey]] = {}
    for outcome in outcomes:
        by_problem.setdefault((outcome.id, outcome.sample), []).append(outcome.key)
    groups = list(by_problem.values())
    most = max(map(len, groups), default=1)
    num_groups = min(len(groups), max(1, limit // most))
    return {key for place in range(num_groups) for key in groups[place * len(groups) // num_groups]}


def differing_settings(contents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each run, the settings in which it differs from another one, by dotted name."""
    trees = [dict(flattened(content.get("settings") or {})) for content in contents]
    names = sorted({name for tree in trees for name in tree})
    differing = [
        name
        for name in names
        if not name.startswith("server.")
        and name != "strategy.name"
        and any(tree.get(name) != trees[0].get(name) for tree in trees)
    ]
    return [{name: tree.get(name) for name in differing} for tree in trees]


def _labels(paths: Sequence[Path], contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each run by the shortest unique end of its path and by up to three differing settings."""
    resolved = [path.resolve() for path in paths]
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(set(resolved)):
        depth += 1
    labels = []
    for path, differing in zip(resolved, differing_settings(contents), strict=True):
        shown = [f"{key.split('.')[-1]} {value}" for key, value in list(differing.items())[:3]]
        labels.append("/".join(path.parts[-depth:]) + (f" ({', '.join(shown)})" if shown else ""))
    return labels
