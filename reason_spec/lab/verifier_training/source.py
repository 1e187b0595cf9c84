"""Files to train a verifier on: labelled pairs, or solutions that pairs are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from reason_spec.jsonl import BadLine, FieldError, JsonItem, parse_items, read_records
from reason_spec.lab.verifier_training.mining import StepPair, mine_pairs

_WANTED: Final = "one object a line: a question and its solutions by writer, or steps a and b and same"


def read_pairs(
    paths: Sequence[Path],
    *,
    seed: int = 0,
    leave_out: Sequence[str] = (),
    most_a_kind: int = 24,
    skip_bad: bool = False,
    each: Callable[[], None] | None = None,
) -> list[StepPair]:
    """Return the pairs of all files.

    A line is ``{"question", "solutions": {writer: text}}``, of which pairs are made (`mine_pairs`), or one
    pair ``{"a", "b", "same"}`` with, where known, ``question``, ``before``, ``problem`` and ``kind``.

    Args:
        leave_out: writers whose solutions are not used.
        skip_bad: leave unusable lines out instead of stopping at the first.
        each: called after each line.

    Raises:
        DataError: a file cannot be read, or a line is unusable and ``skip_bad`` is not set.
    """
    pairs: list[StepPair] = []
    bad_lines: list[BadLine] = []
    for path in paths:

        def parse(item: JsonItem, path: Path = path) -> Iterator[StepPair]:
            return _parse(item, f"{path.name}:{item.line}", seed, frozenset(leave_out), most_a_kind)

        for found in parse_items(read_records(path, _WANTED), path, parse, bad_lines, skip_bad=skip_bad):
            pairs += found
            if each is not None:
                each()
    return pairs


def _parse(
    item: JsonItem, place: str, seed: int, leave_out: frozenset[str], most_a_kind: int
) -> Iterator[StepPair]:
    question = _text(item, "question", "")
    # Pairs of one question must not be divided between training and report, whatever their ids are.
    named = (item.value.get(name) for name in ("problem", "question", "id"))
    problem = str(next((name for name in named if name not in (None, "")), place))
    solutions = item.value.get("solutions")
    if solutions is None:
        return iter([_pair(item, problem, question)])
    if not isinstance(solutions, dict) or not all(isinstance(text, str) for text in solutions.values()):
        raise FieldError("solutions", "is not an object of texts by writer", solutions)
    used = {writer: text for writer, text in solutions.items() if writer not in leave_out}
    return mine_pairs(problem, question, used, seed, most_a_kind)


def _pair(item: JsonItem, problem: str, question: str) -> StepPair:
    same = item.value.get("same")
    if not isinstance(same, bool):
        raise FieldError("same", "is neither true nor false (and there are no solutions)", same)
    return StepPair(
        problem,
        question,
        _text(item, "before", ""),
        _text(item, "a"),
        _text(item, "b"),
        same,
        _text(item, "kind", "given"),
        ("", ""),
    )


def _text(item: JsonItem, name: str, default: str | None = None) -> str:
    value = item.value.get(name, default)
    if not isinstance(value, str):
        raise FieldError(name, "is missing or no text", value)
    return value
