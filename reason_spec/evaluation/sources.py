"""Reads the problems of a run: files, questions, data sets by id, generated ones."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Literal

from reason_spec.errors import DataError
from reason_spec.evaluation.dataset_source import PREFIX, DatasetSource
from reason_spec.settings import Settings
from reason_spec.tasks import REAL_SAMPLE_PATH
from reason_spec.tasks.base import get_task
from reason_spec.tasks.loading import LoadedProblems, collect_problems, load_problems
from reason_spec.types import Problem

_FILE_ENDINGS = (".jsonl", ".ndjson", ".json", ".gz")
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{1,7}")
_TASK_AND_PLACE = re.compile(r"(?P<task>[A-Za-z][\w-]*)=(?P<place>.+)")
_MAX_NAME_CHARACTERS = 80
GENERATED_SEED = 900_000
"""Apart from the problems that thresholds are chosen on."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The problems of a run; ``name`` is short and fit for a folder."""

    name: str
    problems: tuple[Problem, ...]
    only_questions: bool
    bad_lines: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def num_without_answer(self) -> int:
        return sum(problem.answer is None for problem in self.problems)


@dataclass(frozen=True, slots=True)
class _Place:
    """A file or a data set, the task of its problems, and a label for their ids."""

    text: str
    task: str
    label: str
    dataset: DatasetSource | None = None

    @property
    def name(self) -> str:
        return stem(Path(self.text)) if self.dataset is None else self.dataset.label

    def load(self, limit: int | None, skip_bad: bool, *, once: bool = False) -> LoadedProblems:
        options = {"require_answer": False, "once": once}
        if self.dataset is None:
            return load_problems(self.text, self.task, limit, skip_bad, **options)
        return collect_problems(self.dataset.records(), self.text, self.task, limit, skip_bad, **options)


def read_sources(
    arguments: Sequence[str],
    task: str,
    *,
    sample: Path | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    once: bool = False,
) -> Sources:
    """Read files and questions; ``-`` is a question on standard input.

    An argument is a file if there is one of that name or if it looks like a path; everything else
    is a question. ``sample`` adds a file of problems that come with the package. With ``once`` a question
    that comes again with the same answer is left out, with a notice.

    Raises:
        DataError: nothing was given, a file is missing, damaged or given twice, or a question is empty.
        SettingsError: the task is unknown.
    """
    files = [Path(argument) for argument in arguments if names_file(argument)]
    if sample:
        files.insert(0, sample)
    texts = [_question(argument) for argument in arguments if not names_file(argument)]
    if not files and not texts:
        raise DataError("nothing to solve: give a file of problems, a question, or --sample")
    for file in files:
        if not file.exists() and not file.name.lower().endswith(_FILE_ENDINGS):
            raise DataError(
                f"{str(file)!r} looks like a path, and there is no such file; a question of this form can "
                "be given on standard input, with - in its place"
            )
    places = _with_unique_labels([_Place(str(file), get_task(task).name, stem(file)) for file in files])
    loaded = [place.load(limit, skip_bad, once=once) for place in places]
    asked = tuple(Problem(_question_id(text), text, None, task) for text in dict.fromkeys(texts))
    return _sources(places, loaded, asked)


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
        limit: most problems of each place.

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
    places = _with_unique_labels(places)
    return _sources(places, [place.load(limit, skip_bad, once=True) for place in places])


def _sources(
    places: Sequence[_Place], loaded: Sequence[LoadedProblems], questions: Sequence[Problem] = ()
) -> Sources:
    problems: list[Problem] = []
    bad_lines, notices = [], []
    for place, part in zip(places, loaded, strict=True):
        prefix = f"{place.label}:" if len(places) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in part.problems]
        bad_lines += [f"{place.text}, line {bad.line}: {bad.reason}" for bad in part.bad_lines]
        if part.num_repeated:
            notices.append(
                f"{place.text}: {part.num_repeated} repeated problems are left out; for several answers to "
                "each problem there is --samples"
            )
    problems += questions
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise DataError(f"problem {problem.id!r} is given twice; name each file once")
        seen.add(problem.id)
    names = [place.label for place in places]
    if questions:
        # Other questions are another run.
        ids = "\n".join(problem.id for problem in questions)
        names.append(f"questions-{hashlib.sha256(ids.encode()).hexdigest()[:8]}")
    name = "+".join(names)[:_MAX_NAME_CHARACTERS]
    return Sources(name, tuple(problems), not places, tuple(bad_lines), tuple(notices))


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


def _with_unique_labels(places: Sequence[_Place]) -> list[_Place]:
    """Return the places with unique labels: names are appended to those of one task, then numbers.

    Raises:
        DataError: a place is given twice.
    """
    counts = Counter(place.label for place in places)
    labelled: dict[str, _Place] = {}
    known: set[tuple[str, str]] = set()
    for place in places:
        key = place.task, str(Path(place.text).resolve()) if place.dataset is None else place.text
        if key in known:
            raise DataError(f"{place.text} is given twice; name each file once")
        known.add(key)
        is_shared = counts[place.label] > 1 and place.label != place.name
        wanted = f"{place.label}-{place.name}" if is_shared else place.label
        numbered = (f"{wanted}-{number}" for number in count(2))
        label = next(label for label in chain([wanted], numbered) if label not in labelled)
        labelled[label] = replace(place, label=label)
    return list(labelled.values())


def sample_of(settings: Settings, wanted: bool = True) -> Path | None:
    """Return the problems of the package that fit the target; None where none are ``wanted``.

    The demonstration pair was trained on problems of one kind. Other models get problems that people wrote.
    """
    if not wanted:
        return None
    if settings.target.model == "embedded":
        from reason_spec.pair import SAMPLE_PATH

        return SAMPLE_PATH
    return REAL_SAMPLE_PATH


def generate_problems(split: Literal["train", "validation"], number: int, seed: int) -> Sources:
    """Make problems of the kind that the demonstration pair solves; those of the test split are left out."""
    from reason_spec.pair.generator import problems

    made = (
        Problem(item.id, item.question, str(item.answer), level=str(item.operations))
        for item in islice(problems(split, seed), number)
    )
    return Sources(f"generated-{seed}", tuple(made), only_questions=False)


def names_file(argument: str) -> bool:
    """Whether an argument is meant as a file: it exists, or has the form of a path."""
    if argument == "-":
        return False
    try:
        if Path(argument).exists():
            return argument.strip() != ""
    except (OSError, ValueError):  # longer than a file name can be, or with a null character
        return False
    if argument.lower().endswith(_FILE_ENDINGS) or _FILE_NAME.fullmatch(argument):
        return True
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    return any(separator in argument for separator in separators) and not any(map(str.isspace, argument))


def _question(argument: str) -> str:
    text = (sys.stdin.read() if argument == "-" else argument).strip()
    if not text:
        raise DataError("the question is empty" + (" (read from standard input)" if argument == "-" else ""))
    try:
        text.encode()
    except UnicodeEncodeError:  # Python keeps bytes that it cannot decode as surrogates.
        raise DataError("the question is not UTF-8 text") from None
    return text


def _question_id(text: str) -> str:
    # By content, so that a question draws the same noise at any place.
    return "question-" + hashlib.sha256(text.encode()).hexdigest()[:8]


def stem(file: Path) -> str:
    return file.name.partition(".")[0] or "problems"
