from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.tasks import extract_answer
from reason_spec.tasks.extract import find_boxes

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "extraction_cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['task']}-{case['response'][:40]!r}")
def test_answer_is_found_in_a_response(case: dict[str, Any]) -> None:
    assert extract_answer(case["response"], case["task"]) == case["expected"]


PIECES = [
    "\\boxed{", "\\boxed{{", "The answer is ", "#### ", "\nQ: ", "$", "1,111", "111,", "<think>", "A: = ",
    "\n", " ", "answer ", "\\(", "\\[", "1/", "1 ", "1", "=", "****", "answer\n \n", "\\frac{1}",
]  # fmt: skip

RESPONSES = st.text(max_size=300) | st.lists(
    st.sampled_from([*PIECES, "18", "}", "$", ".", "</think>"]), max_size=12
).map("".join)


@given(RESPONSES, st.sampled_from(["gsm8k", "math500", "auto"]))
def test_any_text_is_searched_without_an_exception(response: str, task: str) -> None:
    answer = extract_answer(response, task)
    assert answer is None or answer.strip() == answer != ""


@given(st.text("{}\\ab1 $", max_size=60), st.integers(min_value=0, max_value=10**9))
def test_last_box_wins_whatever_stands_before_it(noise: str, number: int) -> None:
    assert next(find_boxes(f"{noise}\n .\\boxed{{{number}}}"), None) == str(number)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("task", ["gsm8k", "math500"])
def test_the_answer_behind_a_long_degenerate_text_is_found(piece: str, task: str) -> None:
    # 1 MB: a quadratic search would take hours and run into the test time-out.
    response = piece * (1_000_000 // len(piece)) + "\n\n</think>\\boxed{7}"
    assert extract_answer(response, task) == "7"
