"""Tasks: how to read a record, prompt a question and extract the answer of one kind of problem file.

``get_task("gsm8k")`` returns a task; ``auto`` reads every file with a question and an answer under one of
the usual names. ``register_task`` adds a custom task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from string import ascii_uppercase
from typing import Any, Final, Literal, TypeAlias, get_args

from reason_spec.errors import SettingsError, unknown_name
from reason_spec.jsonl import FieldError, shorten
from reason_spec.tasks.extract import AnswerKind, find_answer, find_boxes
from reason_spec.tasks.numerals import parse_number

PromptStyle: TypeAlias = Literal["plain", "boxed", "examples"]
"""``plain``: the question alone. ``boxed``: with a request for the final answer in ``\\boxed{}``.
``examples``: after three solved questions, for base models without instruction tuning."""

EXAMPLES_END: Final = "\nQuestion:"
"""Stop string of the style ``examples``: the model has answered and starts another question."""

_EXAMPLES: Final = """\
Question: A baker has 24 rolls. He sells 9 at dawn and bakes 15 more at noon. How many rolls are there?
Answer:
Then he has 24 - 9 = 15 rolls.
With those baked at noon there are 15 + 15 = 30 rolls.
The answer is \\boxed{30}.

Question: Tickets cost $6 for adults and half as much for children. How much do 3 adults and 4 children pay?
Answer:
A child's ticket costs 6 / 2 = $3.
The adults pay 3 * 6 = $18.
The children pay 4 * 3 = $12.
Together they pay 18 + 12 = $30.
The answer is \\boxed{30}.

Question: Omar reads 20 pages a day for 5 days. The book has 140 pages. How many pages are left?
Answer:
In 5 days Omar reads 5 * 20 = 100 pages.
There are 140 - 100 = 40 pages left.
The answer is \\boxed{40}.

"""

QUESTION_FIELDS: Final = ("question", "problem", "query", "input", "prompt", "instruction")
ANSWER_FIELDS: Final = (
    "answer", "final_answer", "target", "expected_answer", "ground_truth", "reference_answer", "gold", "gt",
    "label", "output", "solution",
)  # fmt: skip
ID_FIELDS: Final = ("id", "unique_id", "problem_id", "question_id", "uid", "idx", "index", "problem_idx")
_TURN_FIELDS: Final = ("turns", "messages")
CHOICE_FIELDS: Final = ("choices", "options")
_LETTER: Final = re.compile(r"^\(?[A-J][).:]\s*")
LEVEL_FIELDS: Final = ("level", "difficulty", "operations")
"""``operations`` is the field of the demonstration pair's files."""


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one line that a task uses."""

    question: str
    answer: str | None
    id: str | None
    level: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of problem file.

    Field names are matched case-insensitively; the first one with a value is used. The text of
    ``context_field`` precedes the question (SVAMP's ``Body``), and choices follow it with their letters. With
    a ``category_field``, each category is a task of its own in results, named ``NAME/CATEGORY``;
    ``category_groups`` joins some. Of several turns or messages the first is the question. Without a
    ``boxed_instruction`` the question alone is asked.
    """

    name: str
    description: str
    kind: AnswerKind
    question_fields: tuple[str, ...] = QUESTION_FIELDS
    answer_fields: tuple[str, ...] = ANSWER_FIELDS
    context_field: str | None = None
    category_field: str | None = None
    category_groups: Mapping[str, str] = field(default_factory=dict)
    boxed_instruction: str = (
        "Work through the problem step by step and finish with the final answer in \\boxed{}."
    )

    def read_record(self, record: Mapping[str, Any], *, require_answer: bool = True) -> Record:
        """Return question, answer, id and level of a record.

        Raises:
            FieldError: a field is missing, empty or of a wrong type, or the reference answer of a task
                with numbers is not a number.
        """
        question = self._read_question(record)
        answer = self.read_answer(record)
        if self.kind == "expression" and (choices := _choices(record)):
            question = "\n".join([question, *(f"{letter}) {text}" for letter, text in choices.items())])
        if answer is None and require_answer:
            expected = ", ".join(self.answer_fields[:4])
            raise FieldError(
                "answer", f"is missing or empty (looked for {expected}, ...; found {_names(record)})"
            )
        return Record(question, answer, _read_id(record), _read_level(record), self._read_category(record))

    def read_answer(self, record: Mapping[str, Any]) -> str | None:
        """Return the reference answer of a record, None if it has none.

        Raises:
            FieldError: the answer is of a wrong type, or is not a number as the task requires.
        """
        for name, value in _fields(record, self.answer_fields):
            if text := _answer_text(name, value):
                answer = reference_answer(text)
                if (
                    isinstance(value, int)
                    and self.kind == "expression"
                    and value in range(len(_choices(record)))
                ):
                    # Data sets such as MMLU count the choices from 0.
                    return list(_choices(record))[value]
                if self.kind == "number" and parse_number(answer) is None:
                    raise FieldError(name, f"is not a number, as answers of {self.name} are", value)
                return answer
        return None

    def prompt(self, question: str, style: PromptStyle = "plain") -> str:
        """Return the user's message for a question.

        Raises:
            SettingsError: ``style`` is unknown.
        """
        if style not in get_args(PromptStyle):
            raise SettingsError(
                f"Unknown prompt style {style!r}; choose one of: {', '.join(get_args(PromptStyle))}."
            )
        if style == "plain" or not self.boxed_instruction:
            return question
        if style == "boxed":
            return f"{question}\n\n{self.boxed_instruction}"
        return f"{_EXAMPLES}Question: {question}\nAnswer:"

    def extract(self, response: str) -> str | None:
        """Return the final answer of a response as it is written there, None if there is none."""
        return find_answer(response, self.kind)

    def _read_category(self, record: Mapping[str, Any]) -> str | None:
        for name, value in _fields(record, (self.category_field,) if self.category_field else ()):
            text = _answer_text(name, value)
            return self.category_groups.get(text, text) or None
        return None

    def _read_question(self, record: Mapping[str, Any]) -> str:
        empty: str | None = None
        for name, given in _fields(record, self.question_fields):
            value = _first_turn(given) if name.lower() in _TURN_FIELDS else given
            if value is None or (isinstance(value, str) and not value.strip()):
                empty = empty or name
            elif isinstance(value, str):
                return self._with_context(value.strip(), record)
            else:
                raise FieldError(name, f"is {_type_name(value)}, not text", value)
        if empty is not None:
            raise FieldError(empty, "is empty")
        expected = ", ".join(self.question_fields)
        raise FieldError("question", f"is missing (looked for {expected}; found {_names(record)})")

    def _with_context(self, question: str, record: Mapping[str, Any]) -> str:
        for name, value in _fields(record, (self.context_field,) if self.context_field else ()):
            if value is None or value == "":
                continue
            if not isinstance(value, str):
                raise FieldError(name, f"is {_type_name(value)}, not text", value)
            context = value.strip()
            return f"{context}{'' if context[-1:] in '.!?:' else '.'} {question}"
        return question


def reference_answer(text: str) -> str:
    """Return the final answer of a reference text: after ``####``, inside the last box, or all of it."""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    box = next(find_boxes(text), None)
    return (box if box is not None else text).strip()


def _fields(record: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record with one of these lower-case names, in the order of the names."""
    lowered = {str(name).lower(): name for name in reversed(list(record))}
    for name in names:
        if name in lowered:
            yield lowered[name], record[lowered[name]]


def _answer_text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise FieldError(name, f"is {_type_name(value)}, not text or a number", value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FieldError(name, "is not a finite number", str(value))
        if abs(value) < 1e15 and value.is_integer():
            return str(int(value))
    return str(value).strip()


def _choices(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a multiple choice by letter; empty where a record has none."""
    for _, value in _fields(record, CHOICE_FIELDS):
        texts = value.get("text") if isinstance(value, dict) else value
        if isinstance(texts, list) and 2 <= len(texts) <= len(ascii_uppercase):
            # Some have their letter: "A)21".
            named = [_LETTER.sub("", str(text)).strip() for text in texts]
            return dict(zip(ascii_uppercase, named, strict=False))
    return {}


def _first_turn(value: object) -> object:
    """Return the text of the first turn; the value itself where there is none, to be refused."""
    first = value[0] if isinstance(value, list) and value else value
    return first.get("content", value) if isinstance(first, dict) else first


def _read_id(record: Mapping[str, Any]) -> str | None:
    for _, value in _fields(record, ID_FIELDS):
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return None


def _read_level(record: Mapping[str, Any]) -> str | None:
    for _, value in _fields(record, LEVEL_FIELDS):
        # It only sorts results, so that a line is no worse for another form of it.
        if isinstance(value, str | int | float):
            return str(value).strip() or None
    return None


def _type_name(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _names(record: Mapping[str, Any]) -> str:
    return shorten(", ".join(map(str, record)) or "no field at all", 120).strip("'\"")


_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> Task:
    """Add a task under its name and return it.

    Raises:
        SettingsError: the name is taken, or is not made of lower-case letters, digits, - and _.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", task.name):
        raise SettingsError(
            f"A task cannot be named {task.name!r}: use lower-case letters, digits, '-' and '_'."
        )
    if task.name in _TASKS:
        raise SettingsError(f"There is a task named {task.name!r} already; choose another name.")
    _TASKS[task.name] = task
    return task


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, in the order in which they were registered."""
    return tuple(_TASKS)


def get_task(name: str | Task) -> Task:
    """Return the task with this name, or of this category (``spec_bench/qa``); a ``Task`` as it is.

    Raises:
        SettingsError: there is no such task; the message lists the names.
    """
    if isinstance(name, Task):
        return name
    task = _TASKS.get(name.strip().lower().partition("/")[0])
    if task is None:
        raise unknown_name("task", name, _TASKS)
    return task


def extract_answer(response: str, task: str | Task = "auto") -> str | None:
    """Return the final answer of a response as it is written there, None if there is none.

    Raises:
        SettingsError: there is no such task.
    """
    return get_task(task).extract(response)


register_task(
    Task("auto", "any file with a question and an answer under one of the usual names", "expression",
         context_field="body")
)  # fmt: skip
register_task(Task("gsm8k", "grade-school word problems; the reference answer follows ####", "number"))
register_task(
    Task(
        "aime",
        "American Invitational Mathematics Examination; answers are integers from 000 to 999",
        "number",
        boxed_instruction=(
            "Work through the problem step by step. The answer is an integer from 0 to 999; "
            "finish with it in \\boxed{}."
        ),
    )
)
register_task(Task("math500", "competition mathematics; answers are expressions", "expression"))
register_task(Task("amc", "American Mathematics Competitions; answers are numbers", "number"))
register_task(
    Task("svamp", "elementary word problems: Body, Question, Answer", "number", context_field="body")
)
register_task(Task("multiarith", "word problems of several operations: input, target", "number"))
_SPEC_BENCH: Final = Task(
    "spec_bench",
    "Spec-Bench: speed alone, by its six tasks (arXiv 2401.07851)",
    "expression",
    question_fields=_TURN_FIELDS,
    answer_fields=(),
    category_field="category",
    category_groups=dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "mt_bench"
    ),
    boxed_instruction="",
)
register_task(_SPEC_BENCH)
register_task(
    replace(
        _SPEC_BENCH,
        name="speed_bench",
        description="SPEED-Bench, its qualitative split as JSON lines: speed alone, by its categories",
        question_fields=("messages", "turns"),
        category_groups={},
    )
)
