from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_texts import TextRun, Vocabulary, read_runs, split_by_task

from reason_spec.errors import DataError


class Bytes:
    """A tokenizer of bytes, with a token of its own for each special name."""

    def encode(self, text: str, *, bos: bool, eos: bool) -> list[int]:
        return list(text.encode())

    def get_special_token(self, name: str) -> int:
        return 256 + len(name)


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_all_tasks_of_one_trial_come_before_the_next_trial(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = [{"task_id": task, "trial": trial, "messages": said} for task in (7, 8) for trial in (0, 1)]
    runs = read_runs([written(tmp_path / "traces.jsonl", *lines)], Vocabulary(Bytes()))
    assert [(run.task, run.trial) for run in runs] == [("7", "0"), ("8", "0"), ("7", "1"), ("8", "1")]
    assert [segment.source for segment in runs[0].segments] == ["prompt", "output"]


def test_each_chosen_model_is_a_trial_of_a_problem_with_solutions(tmp_path: Path) -> None:
    lines = [
        {"id": number, "question": "q", "answer": "1", "solutions": {"one": "x", "two": "y"}}
        for number in ("p", "r")
    ]
    file = written(tmp_path / "solved.jsonl", *lines)
    runs = read_runs([file], Vocabulary(Bytes()), ["two", "one"])
    assert [(run.task, run.trial) for run in runs] == [("p", "two"), ("r", "two"), ("p", "one"), ("r", "one")]
    with pytest.raises(DataError, match="no run is of trial 'three'"):
        read_runs([file], Vocabulary(Bytes()), ["three"])


def test_a_trajectory_is_one_run_named_by_its_file(tmp_path: Path) -> None:
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "a", "action": "ls"},
    ]
    (run,) = read_runs([written(tmp_path / "django-1.traj", {"history": history})], Vocabulary(Bytes()))
    assert run.task == "django-1"
    assert [segment.source for segment in run.segments] == ["prompt", "prompt", "output"]
    assert ord("u") in run.segments[1].tokens


@pytest.mark.parametrize("line", ['{"text": "a"}', "[1]", "{"])
def test_a_line_of_no_known_kind_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError, match=r"bad\.jsonl, line 1"):
        read_runs([file], Vocabulary(Bytes()))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40))
def test_no_task_is_both_fitted_and_tested(found: list[tuple[int, int]]) -> None:
    runs = [TextRun(str(task), str(trial), []) for task, trial in found]
    split = split_by_task(runs)
    assert not {run.task for run in split.fit} & {run.task for run in split.test}
    assert len(split.fit) + len(split.test) == len(runs)
    assert len({run.task for run in split_by_task(runs, 1, 1).fit}) == 1
