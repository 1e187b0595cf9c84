from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.sources import names_file, read_sources
from reason_spec.pair import SAMPLE_PATH


@pytest.mark.parametrize(
    "argument",
    [
        "missing.jsonl",
        "missing.json",
        "missing.jsonl.gz",
        "MISSING.JSONL",
        "data/problems",
        "../problems",
        "/tmp",
        "problems.csv",
        "my-problems.v2.txt",
    ],
)
def test_what_looks_like_a_path_is_a_file(argument: str) -> None:
    assert names_file(argument)


@pytest.mark.parametrize(
    "argument",
    [
        "How many?",
        "What is 3/4 of 8?",
        "17",
        "3*4.5",
        "12.x",
        "1+1=?",
        "Why?",
        "-",
        "",
        " ",
        "x" * 5000,
        "a\0b",
        "Which .json file is it, then?",
    ],
)
def test_everything_else_is_a_question(argument: str) -> None:
    assert not names_file(argument)


def test_a_file_of_any_name_is_a_file_once_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not names_file("problems")
    Path("problems").write_text("{}")
    assert names_file("problems")


def test_questions_keep_their_ids_wherever_they_stand() -> None:
    (alone,) = read_sources(["How many?"], "auto").problems
    several = read_sources(["What else?", "How many?"], "auto")
    assert several.problems[1] == alone
    assert several.only_questions
    assert alone.answer is None


def test_other_questions_have_another_name() -> None:
    names = {read_sources(asked, "auto").name for asked in (["Why?"], ["Why?", "How?"], ["How?"])}
    assert len(names) == 3
    assert read_sources(["Why?"], "auto").name in names


def test_a_dash_reads_a_question_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("  How many\nare there?\n"))
    (problem,) = read_sources(["-"], "auto").problems
    assert problem.question == "How many\nare there?"


@pytest.mark.parametrize("argument", ["", "   \n"])
def test_an_empty_question_is_refused(argument: str) -> None:
    with pytest.raises(DataError, match="question is empty"):
        read_sources([argument], "auto")


def test_a_question_that_is_no_text_is_refused() -> None:
    with pytest.raises(DataError, match="not UTF-8"):
        read_sources(["How \udcff many?"], "auto")


def test_nothing_to_solve_says_what_could_be() -> None:
    with pytest.raises(DataError, match="--sample"):
        read_sources([], "auto")


def test_several_files_keep_their_problems_apart(tmp_path: Path) -> None:
    record = {"id": "1", "question": "How many?", "answer": "2"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as packed:
        packed.write(json.dumps(record))
    sources = read_sources([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")], "gsm8k")
    assert [problem.id for problem in sources.problems] == ["a:1", "b:1"]
    assert sources.name == "a+b"
    assert {problem.task for problem in sources.problems} == {"gsm8k"}


def test_files_of_one_name_are_numbered(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "test.jsonl" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text('{"question": "How many?", "answer": "2"}\n')
    sources = read_sources([*map(str, paths)], "auto")
    assert [problem.id for problem in sources.problems] == ["test:1", "test-2:1"]
    assert sources.name == "test+test-2"


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "How many?", "answer": "2"}\n')
    with pytest.raises(DataError, match="given twice"):
        read_sources([str(tmp_path / "a.jsonl"), str(tmp_path / ".." / tmp_path.name / "a.jsonl")], "auto")


def test_bad_lines_and_missing_answers_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "How many?"}\nnot json\n{"question": "And now?", "answer": "3"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2"):
        read_sources([str(path)], "auto")
    sources = read_sources([str(path)], "auto", skip_bad=True)
    assert (len(sources.problems), sources.num_without_answer) == (2, 1)
    (bad,) = sources.bad_lines
    assert "a.jsonl, line 2: is not valid JSON" in bad


def test_the_sample_comes_with_the_package() -> None:
    sources = read_sources([], "auto", sample=SAMPLE_PATH, limit=5)
    assert sources.name == "sample"
    assert len(sources.problems) == 5
    assert sources.num_without_answer == 0


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "How many?", "answer": "2"}\n')
    with pytest.raises(SettingsError, match="gsm8k"):
        read_sources([str(tmp_path / "a.jsonl")], "gsm9k")


def test_a_problem_that_comes_again_is_left_out_where_each_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2"}\n' * 3 + '{"question": "1+2?", "answer": "3"}\n')
    assert len(read_sources([str(path)], "auto").problems) == 4
    once = read_sources([str(path)], "auto", once=True)
    assert len(once.problems) == 2
    assert "2 repeated problems" in once.notices[0]
