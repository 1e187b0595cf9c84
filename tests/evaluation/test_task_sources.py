from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.sources import generate_problems, generated_sources, read_task_sources
from reason_spec.pair import SAMPLE_PATH


def write(path: Path, *records: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def word_problem(number: int) -> dict[str, Any]:
    return {"question": f"{number} + 1?", "answer": f"{number}+1 makes #### {number + 1}"}


def aime(number: int) -> dict[str, Any]:
    return {
        "ID": f"2024-{number}",
        "Problem": f"What is {number}?",
        "Answer": number,
        "difficulty": number / 2,
    }


def test_each_file_is_of_its_own_task_and_ids_say_which(tmp_path: Path) -> None:
    gsm8k = write(tmp_path / "g" / "test.jsonl", word_problem(1), word_problem(2))
    aime24 = write(tmp_path / "a" / "test.jsonl", aime(25))
    plain = write(tmp_path / "mine.jsonl", {"question": "Why?", "answer": "so"})
    sources = read_task_sources([f"gsm8k={gsm8k}", f"AIME={aime24}", plain], "math500")
    assert [(item.id, item.task, item.answer, item.level) for item in sources.problems] == [
        ("gsm8k:1", "gsm8k", "2", None),
        ("gsm8k:2", "gsm8k", "3", None),
        ("aime:2024-25", "aime", "25", "12.5"),
        ("mine:1", "math500", "so", None),
    ]
    assert sources.name == "gsm8k+aime+mine"
    assert not sources.only_questions


def test_one_file_keeps_its_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", aime(3))
    assert [item.id for item in read_task_sources([f"aime={path}"], "auto").problems] == ["2024-3"]


def test_two_files_of_one_task_are_told_apart_by_their_names(tmp_path: Path) -> None:
    places = [f"gsm8k={write(tmp_path / f'{name}.jsonl', word_problem(1))}" for name in ("easy", "hard")]
    sources = read_task_sources(places, "auto")
    assert [item.id for item in sources.problems] == ["gsm8k-easy:1", "gsm8k-hard:1"]


def test_files_of_one_name_and_task_are_numbered(tmp_path: Path) -> None:
    places = [write(tmp_path / folder / "test.jsonl", word_problem(1)) for folder in ("a", "b")]
    plain = read_task_sources(places, "auto")
    assert [item.id for item in plain.problems] == ["test:1", "test-2:1"]
    named = read_task_sources([f"gsm8k={place}" for place in places], "auto")
    assert [item.id for item in named.problems] == ["gsm8k-test:1", "gsm8k-test-2:1"]


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", word_problem(1))
    with pytest.raises(DataError, match=r"test\.jsonl is given twice"):
        read_task_sources([path, path], "auto")


def test_repeated_problems_are_left_out_before_the_limit_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "aime.jsonl", *[aime(number) for _ in range(32) for number in range(3)])
    sources = read_task_sources([path], "auto")
    assert [item.id for item in sources.problems] == ["2024-0", "2024-1", "2024-2"]
    (notice,) = sources.notices
    assert notice.startswith(f"{path}: 93 repeated problems are left out")
    assert len(read_task_sources([path], "auto", limit=2).problems) == 2


def test_the_same_question_with_another_answer_is_another_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", {"question": "x?", "answer": 1}, {"question": "x?", "answer": 2})
    sources = read_task_sources([path], "auto")
    assert len(sources.problems) == 2
    assert sources.notices == ()


def test_a_file_whose_name_has_the_sign_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("lr=3.jsonl"), word_problem(1))
    assert [item.task for item in read_task_sources(["lr=3.jsonl"], "gsm8k").problems] == ["gsm8k"]


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("gsm9k=a.jsonl", SettingsError, "did you mean 'gsm8k'"),
        ("gsm8k=missing.jsonl", DataError, r"missing\.jsonl: there is no such file"),
        ("hf:", DataError, "write hf:NAME"),
        ("hf:a:b:c", DataError, "write hf:NAME"),
    ],
)
def test_what_cannot_be_meant_is_refused(argument: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_task_sources([argument], "auto")


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to solve"):
        read_task_sources([], "auto")


def test_bad_lines_are_named_or_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", word_problem(1), {**word_problem(2), "answer": ["hard", 5]})
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: field 'answer' is a list.*--skip-bad"):
        read_task_sources([path], "auto")
    sources = read_task_sources([path], "auto", skip_bad=True)
    assert len(sources.problems) == 1
    assert sources.bad_lines[0].startswith(f"{path}, line 2: field 'answer'")


def test_the_shipped_problems_know_how_hard_they_are() -> None:
    sources = read_task_sources([], "auto", sample=SAMPLE_PATH, limit=30)
    assert {item.level for item in sources.problems} <= {str(number) for number in range(1, 9)}


def test_generated_problems_are_fresh_and_know_how_hard_they_are() -> None:
    problems = generated_sources(20, 0).problems
    assert len({item.question for item in problems}) == 20
    assert all(item.level in {str(number) for number in range(1, 9)} for item in problems)
    assert generated_sources(20, 0).problems == problems
    assert generated_sources(20, 1).problems != problems
    assert generated_sources(20, 1).name != generated_sources(20, 0).name
    assert problems != generate_problems("validation", 20, 0).problems
