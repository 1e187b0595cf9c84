"""The folders of runs, read for a report: results, settings, and the timelines of some answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml

from reason_spec.errors import DataError, unknown_name
from reason_spec.evaluation.grouping import baseline_among
from reason_spec.evaluation.metrics import RunMetrics, measure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.prices import Prices
from reason_spec.evaluation.store import RESULTS, SETTINGS, SUMMARY
from reason_spec.evaluation.timeline import TIMELINES, Timeline, read_timelines

_METRICS = "metrics.json"
"""Holds the prices of runs of earlier versions."""
_MAX_NAMES = 20
_NO_SETTINGS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its folder holds it. ``label`` tells it apart from the others of a report, and where there are
    others ``letter`` does so in little room.

    ``shown`` are the answers that a report shows one by one, ``timelines`` what happened when in them,
    ``notices`` what the folder lacks.
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
        """The letter, if any, and the label."""
        return f"{self.letter}: {self.label}" if self.letter else self.label

    @property
    def strategies(self) -> tuple[str, ...]:
        """The names of the strategies in the order in which they were given, the baseline first."""
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
        max_timelines: so many answers of each run, chosen evenly, are shown one by one, with their timelines.
        shown_problem: the id of a problem that is shown too, whatever is chosen.

    Raises:
        DataError: a folder is missing, has no results, or holds a damaged line; the message names it.
        SettingsError: there is no such problem.
    """
    for place, path in enumerate(paths):
        if any(path.resolve() == earlier.resolve() for earlier in paths[:place]):
            raise DataError(f"{path} is given twice. Name each run once.")
    settings = [read_settings(path) for path in paths]
    labels = _labels(paths, settings)
    runs = [
        _read_run(path, label, content, max_timelines, shown_problem)
        for path, label, content in zip(paths, labels, settings, strict=True)
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
            f"The last line of {RESULTS} is incomplete and was left out: is the run still going on?"
        )
    wanted = chosen_evenly(outcomes, max_timelines)
    wanted |= {outcome.key for outcome in outcomes if outcome.id == shown_problem}
    timelines = {timeline.key: timeline for timeline in read_timelines(path) if timeline.key in wanted}
    if not (path / TIMELINES).exists():
        notices.append(
            f"There is no {TIMELINES}: what happened when is not shown, nor the drafts that were refused. "
            "'reason-spec eval' stores them."
        )
    elif missing := len(wanted) - len(timelines):
        notices.append(f"{TIMELINES} has nothing about {missing} of the {len(wanted)} answers shown.")
    run = Run(path, label, settings, outcomes, RunMetrics((), ()), wanted, timelines, tuple(notices))
    seed = ((settings.get("settings") or {}).get("sampling") or {}).get("seed", 0)
    return replace(run, metrics=measure(outcomes, run.strategies, prices=read_prices(path), seed=seed))


def read_results(folder: Path) -> tuple[tuple[Outcome, ...], bool]:
    """Return the outcomes of a run, and whether a torn last line was left out.

    Raises:
        DataError: there is no such folder, it has no results, or a line is damaged, of an earlier version of
            the format, or about an answer that is there already.
    """
    path = folder / RESULTS
    if not folder.is_dir():
        what = "is a file, not the folder of a run" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {what}. Name the folder that 'eval' or 'solve' wrote with --output.")
    if not path.exists():
        raise DataError(
            f"{folder} holds no {RESULTS}. Name the folder that 'eval' or 'solve' wrote with --output."
        )
    outcomes: dict[UnitKey, Outcome] = {}
    torn = False
    for number, line in _lines(path):
        try:
            outcome = Outcome.from_json(line)
        except (ValueError, AttributeError) as error:
            if not line.endswith("\n"):
                torn = True
                break
            older = "lacks the field" in str(error)
            remedy = (
                "It was written by another version: run anew with --fresh" if older else "Remove the line"
            )
            raise DataError(f"{path}, line {number}: {error}. {remedy}.") from None
        if outcome.key in outcomes:
            raise DataError(
                f"{path}, line {number}: sample {outcome.sample} of problem {outcome.id!r} by "
                f"{outcome.strategy} is there already. Remove one of the two lines."
            )
        outcomes[outcome.key] = outcome
    if not outcomes:
        raise DataError(f"{path} holds no answer yet. Go on with the run, and report it then.")
    return tuple(outcomes.values()), torn


def read_prices(folder: Path) -> Prices | None:
    """Return the prices that the run was measured with, None where there are none.

    Raises:
        DataError: the file of measures is damaged.
    """
    for path in (folder / SUMMARY, folder / _METRICS):
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if "prices" in content:
                return None if content["prices"] is None else Prices(**content["prices"])
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read ({error}). Remove it.") from None
    return None


def read_settings(folder: Path) -> Mapping[str, Any]:
    """Return what a run says about itself, nothing where it has no such file.

    Raises:
        DataError: the file cannot be read.
    """
    path = folder / SETTINGS
    if not path.exists():
        return _NO_SETTINGS
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Remove it, or mend it.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: was not written by a run. Remove it, or mend it.")
    return content


def chosen_evenly(outcomes: Sequence[Outcome], limit: int) -> set[UnitKey]:
    """Choose at most ``limit`` answers, evenly over the run and all strategies of a problem together.

    Where there is room for one problem only, it is shown even if its answers are more than the limit.
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
    trees = [dict(_flattened(content.get("settings") or {})) for content in contents]
    names = sorted({name for tree in trees for name in tree if not name.startswith("server.")})
    differing = [
        name
        for name in names
        if name != "strategy.name" and any(tree.get(name) != trees[0].get(name) for tree in trees)
    ]
    return [{name: tree.get(name) for name in differing} for tree in trees]


def _labels(paths: Sequence[Path], contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name runs by their folders, as far up as is needed, and say in which settings they differ."""
    resolved = [path.resolve() for path in paths]
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(set(resolved)):
        depth += 1
    names = ["/".join(path.parts[-depth:]) for path in resolved]
    if len(paths) == 1:
        return names
    labels = []
    for name, differing in zip(names, differing_settings(contents), strict=True):
        shown = [f"{key.split('.')[-1]} {value}" for key, value in list(differing.items())[:3]]
        labels.append(f"{name} ({', '.join(shown)})" if shown else name)
    return labels


def _flattened(tree: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            yield from enumerate(lines, start=1)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None
