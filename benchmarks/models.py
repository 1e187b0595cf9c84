"""Models of the benchmarks: the demonstration pair on generated problems, or real models on real ones."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from reason_spec.engines.model_files import resolve_model
from reason_spec.pair.generator import Example, problems
from reason_spec.strategies.factory import strategy_class
from reason_spec.tasks import REAL_SAMPLE_PATH, extract_answer, get_task, load_problems
from reason_spec.tasks.numerals import parse_number
from reason_spec.types import Problem

ModelsName: TypeAlias = Literal["demo", "real"]
RowT = TypeVar("RowT", bound=str | tuple[Any, ...])
_EMBEDDED: Final = "embedded"
_REAL_TARGET: Final = "pypi:smollm2-135m"


class Task(NamedTuple):
    """A question as the model is asked it, and whether a text answers it."""

    question: str
    is_right: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a benchmark and the problems that they solve.

    Attributes:
        name: ``demo`` for generated problems, ``real`` for the 24 real ones.
        target: name of the target, as in the settings.
        draft: name of the draft; None: there is none.
    """

    name: ModelsName = "demo"
    target: str = _EMBEDDED
    draft: str | None = _EMBEDDED

    @property
    def is_embedded(self) -> bool:
        """Whether the target is the demonstration pair's, which alone has a reward head."""
        return self.target == _EMBEDDED

    @property
    def flags(self) -> dict[str, Any]:
        """The settings that name the models, as far as they are not the defaults."""
        named = {"target.model": self.target, "draft.model": self.draft}
        return {key: model for key, model in named.items() if model not in (None, _EMBEDDED)}

    def usable(self, rows: Sequence[RowT], needs_draft: Callable[[RowT], bool]) -> list[RowT]:
        """Return the rows that can run, and name those that lack a draft on standard error.

        A row is its name, or a tuple that begins with it.
        """
        left_out = [row for row in rows if self.draft is None and needs_draft(row)]
        if left_out:
            names = "; ".join(str(row if isinstance(row, str) else row[0]) for row in left_out)
            sys.stderr.write(f"left out, no draft is given (--draft FOLDER): {names}\n")
        return [row for row in rows if row not in left_out]

    def tasks(self, number: int, seed: int) -> Sequence[Task]:
        """Return ``number`` problems; there are 24 real ones, for any seed."""
        if self.name == "real":
            return [
                _real_task(problem) for problem in load_problems(REAL_SAMPLE_PATH, "gsm8k", number).problems
            ]
        return [_generated_task(example) for example in islice(problems("test", seed), number)]


def needs_draft(strategy: str) -> bool:
    return strategy_class(strategy).needs_draft


def model_folder(role: Literal["target", "draft"], model: str) -> Path:
    """Return the folder of a model's files.

    Raises:
        EngineError, MissingDependencyError: as `resolve_model`.
    """
    return Path(resolve_model(role, model))


def add_models_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose models and problems; `models_of` reads them."""
    parser.add_argument(
        "--models",
        choices=("demo", "real"),
        default="demo",
        help="demo: the demonstration pair on generated problems; real: SmolLM2-135M on 24 real problems, "
        "without a draft (default: demo)",
    )
    parser.add_argument("--target", metavar="MODEL", help="another target on the same problems")
    parser.add_argument(
        "--draft", metavar="FOLDER", help="another draft, such as one made by `reason-spec draft train`"
    )


def models_of(options: argparse.Namespace) -> Models:
    """Return the models that the options of `add_models_arguments` name."""
    target, draft = (_REAL_TARGET, None) if options.models == "real" else (_EMBEDDED, _EMBEDDED)
    return Models(options.models, options.target or target, options.draft or draft)


def _parse_answer(solution: str) -> int | None:
    """Return the number of the answer step that ends a solution of the demonstration pair."""
    match = re.search(r"The answer is (\d+)\.$", solution)
    return int(match[1]) if match else None


def _generated_task(example: Example) -> Task:
    return Task(example.question, lambda text: _parse_answer(text) == example.answer)


def _real_task(problem: Problem) -> Task:
    def is_right(text: str) -> bool:
        found = extract_answer(text, "gsm8k")
        return found is not None and parse_number(found) == parse_number(str(problem.answer))

    return Task(get_task("gsm8k").prompt(problem.question, "boxed"), is_right)
