"""Turns what stands behind ``eval``, files and data sets of several tasks, into problems."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reason_spec.errors import DataError
from reason_spec.evaluation.dataset_source import PREFIX, DatasetSource
from reason_spec.evaluation.sources import Sources, generate_problems, refuse_repeated_ids, stem
from reason_spec.tasks.base import get_task
from reason_spec.tasks.loading import LoadedProblems, collect_problems, load_problems
from reason_spec.types import Problem

_TASK_AND_PLACE = re.compile(r"(?P<task>[A-Za-z][\w-]*)=(?P<place>.+)")
_MAX_NAME_CHARACTERS = 80
GENERATED_SEED = 900_000
"""Apart from the problems that thresholds are chosen on."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One argument: a file or a data set, the task of its problems, and a label for their ids."""

    text: str
    task: str
    label: str
    dataset: DatasetSource | None = None

    def load(self, limit: int | None, skip_bad: bool) -> LoadedProblems:
        options = {"require_answer": False, "once": True}
        if self.dataset is None:
            return load_problems(self.text, self.task, limit, skip_bad, **options)
        return collect_problems(self.dataset.records(), self.text, self.task, limit, skip_bad, **options)


def read_task_sources(
    arguments: Sequence[str],
    task: str,
    *,
    sample: Path | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> Sources:
    """Read files and data sets, each as ``PLACE`` or ``TASK=PLACE``.

    A question that comes again with the same answer is left out, with a notice. With several places, ids
    begin with the task that was named for a place, else with its name.

    Args:
        task: of places without one of their own.
        sample: adds this file of problems that come with the package.
        limit: problems of each place at the most.

    Raises:
        DataError: nothing was given, a place is missing or damaged, or is given twice.
        MissingDependencyError: a data set is named by id, and ``datasets`` is not installed.
        SettingsError: a task is unknown.
    """
    places = [_parse(argument, task) for argument in arguments]
    if sample:
        places.insert(0, _Place(str(sample), get_task(task).name, stem(sample)))
    if not places:
        raise DataError("nothing to solve: give files of problems, --sample, or --generate N")
    places = _told_apart(places)
    loaded = [place.load(limit, skip_bad) for place in places]
    problems: list[Problem] = []
    for place, part in zip(places, loaded, strict=True):
        prefix = f"{place.label}:" if len(places) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in part.problems]
    refuse_repeated_ids(problems)
    together = list(zip(places, loaded, strict=True))
    return Sources(
        name="+".join(dict.fromkeys(place.label for place in places))[:_MAX_NAME_CHARACTERS],
        problems=tuple(problems),
        only_questions=False,
        bad_lines=tuple(
            f"{place.text}, line {bad.line}: {bad.reason}"
            for place, part in together
            for bad in part.bad_lines
        ),
        notices=tuple(
            f"{place.text}: {part.num_repeated} repeated problems are left out; for several answers to each "
            "problem there is --samples"
            for place, part in together
            if part.num_repeated
        ),
    )


def generated_sources(number: int, seed: int) -> Sources:
    """Return problems of the kind that the demonstration pair solves, made anew; other seeds make others."""
    return generate_problems("validation", number, GENERATED_SEED + seed)


def _parse(argument: str, task: str) -> _Place:
    found = None if Path(argument).exists() else _TASK_AND_PLACE.fullmatch(argument)
    named, text = (None, argument) if found is None else (get_task(found["task"]).name, found["place"])
    if not text.startswith(PREFIX):
        return _Place(text, named or get_task(task).name, named or stem(Path(text)))
    dataset = DatasetSource.parse(text)
    chosen = named or (dataset.task if get_task(task).name == "auto" else None) or get_task(task).name
    return _Place(text, chosen, named or dataset.label, dataset)


def _told_apart(places: Sequence[_Place]) -> list[_Place]:
    """Return the places with labels of their own: two files of one task are told apart by their names."""
    counts = Counter(place.label for place in places)
    return [
        replace(place, label=f"{place.label}-{_name_of(place)}") if counts[place.label] > 1 else place
        for place in places
    ]


def _name_of(place: _Place) -> str:
    return stem(Path(place.text)) if place.dataset is None else place.dataset.label
