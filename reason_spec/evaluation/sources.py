"""Turns what stands on a command line, files and questions, into problems."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from reason_spec.errors import DataError
from reason_spec.settings import Settings
from reason_spec.tasks import REAL_SAMPLE_PATH
from reason_spec.tasks.loading import load_problems
from reason_spec.types import Problem

_FILE_ENDINGS = (".jsonl", ".ndjson", ".json", ".gz")
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{1,7}")


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


def read_sources(
    arguments: Sequence[str],
    task: str,
    *,
    sample: Path | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> Sources:
    """Read files and questions; ``-`` is a question on standard input.

    An argument is a file if there is one of that name or if it looks like a path; everything else
    is a question. ``sample`` adds a file of problems that come with the package.

    Raises:
        DataError: nothing was given, a file is missing or damaged, or a question is empty.
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
    loaded = [load_problems(file, task, limit, skip_bad, require_answer=False) for file in files]
    problems: list[Problem] = []
    for file, part in zip(files, loaded, strict=True):
        prefix = f"{stem(file)}:" if len(files) > 1 else ""
        problems += [replace(problem, id=prefix + problem.id) for problem in part.problems]
    problems += [Problem(_question_id(text), text, None, task) for text in dict.fromkeys(texts)]
    refuse_repeated_ids(problems)
    return Sources(
        name="+".join(dict.fromkeys(map(stem, files))) or "questions",
        problems=tuple(problems),
        only_questions=not files,
        bad_lines=tuple(
            f"{file}, line {bad.line}: {bad.reason}"
            for file, part in zip(files, loaded, strict=True)
            for bad in part.bad_lines
        ),
    )


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
    return Sources("generated", tuple(made), only_questions=False)


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
        # Under a locale without UTF-8, Python keeps the bytes it cannot decode as surrogates.
        return os.fsencode(text).decode() if any(map(_is_surrogate, text)) else text
    except UnicodeError:
        raise DataError("the question is not UTF-8 text") from None


def _is_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _question_id(text: str) -> str:
    # By content, so that a question draws the same noise wherever it stands.
    return "question-" + hashlib.sha256(text.encode()).hexdigest()[:8]


def stem(file: Path) -> str:
    return file.name.partition(".")[0] or "problems"


def refuse_repeated_ids(problems: Sequence[Problem]) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise DataError(f"problem {problem.id!r} is given twice; name each file once")
        seen.add(problem.id)
