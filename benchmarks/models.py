"""Models of the benchmarks: the demonstration pair on generated problems, or a real model on real ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from reason_spec.pair.generator import Example, problems
from reason_spec.tasks import REAL_SAMPLE_PATH, extract_answer, get_task, load_problems
from reason_spec.tasks.numerals import parse_number
from reason_spec.types import Problem

ModelsName: TypeAlias = Literal["demo", "real"]
REAL_TARGET: Final = "pypi:smollm2-135m"


class Task(NamedTuple):
    """A question as the model is asked it, and whether a text answers it."""

    question: str
    is_right: Callable[[str], bool]


def target_flags(models: ModelsName) -> dict[str, Any]:
    """Return the settings that name the target."""
    return {"target.model": REAL_TARGET} if models == "real" else {}


def tasks_for(models: ModelsName, number: int, seed: int) -> Sequence[Task]:
    """Return ``number`` problems; there are 24 real ones, for any seed."""
    if models == "real":
        return [_real_task(problem) for problem in load_problems(REAL_SAMPLE_PATH, "gsm8k", number).problems]
    return [_generated_task(example) for example in islice(problems("test", seed), number)]


def parse_answer(solution: str) -> int | None:
    """Return the number of the answer step that ends a solution of the demonstration pair."""
    match = re.search(r"The answer is (\d+)\.$", solution)
    return int(match[1]) if match else None


def _generated_task(example: Example) -> Task:
    return Task(example.question, lambda text: parse_answer(text) == example.answer)


def _real_task(problem: Problem) -> Task:
    def is_right(text: str) -> bool:
        found = extract_answer(text, "gsm8k")
        return found is not None and parse_number(found) == parse_number(str(problem.answer))

    return Task(get_task("gsm8k").prompt(problem.question, "boxed"), is_right)
