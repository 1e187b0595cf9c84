"""Stored answers are read with their groups, and thinking is found in every form of marking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reason_spec.errors import DataError
from reason_spec.lab.exit.traces import read_steps, read_traces, split_thinking
from tests.lab.exit.answers import write_answers

RECORD = {"id": 7, "question": "How many?", "answer": "3"}


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({**RECORD, **fields}) + "\n")
    return path


@pytest.mark.parametrize(
    ("response", "thinking"),
    [
        ("<think>a\n\nb</think>c", "a\n\nb"),
        ("a</think>c", "a"),
        ("<think>cut off", "cut off"),
        ("think\na\nanswer\nAnswer: c", "a"),
        ("no thinking", "no thinking"),
    ],
)
def test_thinking_is_what_may_be_shortened(response: str, thinking: str) -> None:
    assert split_thinking(response) == thinking


def test_responses_lists_and_solutions_by_model_are_read(tmp_path: Path) -> None:
    one = read_traces(write(tmp_path / "a.jsonl", response="3", group="g"))
    assert [(t.id, t.group, t.response) for t in one] == [("7", "g", "3")]
    assert [t.response for t in read_traces(write(tmp_path / "b.jsonl", response=["3", "4"]))] == ["3", "4"]
    path = write(tmp_path / "c.jsonl", solutions={"m": "3", "n": "4"})
    assert [t.group for t in read_traces(path)] == ["m", "n"]
    assert [t.response for t in read_traces(path, groups=["n"])] == ["4"]
    with pytest.raises(DataError, match=r"no answers of x\. Its groups: m, n"):
        read_traces(path, groups=["x"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "line 1: field 'response' is missing"),
        ({"response": 3}, "field 'response' holds something that is not text"),
        ({"response": "3", "question": None}, "'question'"),
        ({"solutions": {"m": None}}, "field 'solutions' holds something that is not text"),
    ],
)
def test_errors_name_file_line_and_field(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_traces(write(tmp_path / "bad.jsonl", **fields))


def test_steps_and_their_ends_cover_the_thinking(tmp_path: Path) -> None:
    for read in read_steps(read_traces(write_answers(tmp_path / "a.jsonl", 3))):
        assert "".join(read.steps) == read.trace.thinking
        assert read.ends[-1] == len(read.trace.thinking)
        assert len(read.candidates) == len(read.steps)
