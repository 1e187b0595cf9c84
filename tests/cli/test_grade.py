"""`reason-spec grade`: existing responses against their reference answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_runner import fail, succeed


def test_grade_adds_prediction_and_correct(tmp_path: Path) -> None:
    answers = ["A: 18", "The answer is $18.00.", "So \\boxed{18}", "#### 18", "It is 19.", "no idea"]
    records = [
        {"question": f"q{number}", "answer": "18", "response": response}
        for number, response in enumerate(answers)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out.jsonl"
    arguments = ["grade", str(tmp_path / "in.jsonl"), "--task", "gsm8k", "--output", str(out)]
    result = succeed(*arguments)
    assert result.stdout.startswith(
        "4 of 6 responses are correct: 66.7 % (95 % interval 22.3-95.7 %); 1 without"
    )
    graded = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["correct"] for record in graded] == [True] * 4 + [False] * 2
    assert [record["question"] for record in graded] == [record["question"] for record in records]
    printed = json.loads(succeed(*arguments, "--json").stdout)
    assert (printed["num_correct"], printed["accuracy"]) == (4, pytest.approx(2 / 3))
    assert "shares" not in printed


@pytest.mark.parametrize("one_record", [True, False])
def test_responses_to_one_question_narrow_no_interval_as_independent_ones_would(
    tmp_path: Path, one_record: bool
) -> None:
    """Of five questions with 16 equal responses each, two are answered right."""
    path = tmp_path / "in.jsonl"
    responses = {f"q{number}": ["18" if number < 2 else "19"] * 16 for number in range(5)}
    records = [
        {"question": question, "answer": "18", "response": response}
        for question, texts in responses.items()
        for response in ([texts] if one_record else texts)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    result = succeed("grade", str(path), "--output", str(tmp_path / "out.jsonl"))
    assert result.stdout.startswith(
        "32 of 80 responses are correct: 40.0 % (mean over 5 questions 40.0 %, 95 % interval 5.3-85.3 %)"
    )


def test_grade_names_bad_lines_or_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "q", "answer": "1", "response": "1"}\n{"question": "q", "answer": "1"}\n')
    arguments = ["grade", str(path), "--output", str(tmp_path / "out.jsonl")]
    assert "in.jsonl, line 2: field 'response' is missing" in fail(*arguments)
    assert not (tmp_path / "out.jsonl").exists()
    assert "1 unusable line left out" in succeed(*arguments, "--skip-bad").stdout
    assert "unknown task" in fail(*arguments, "--task", "nothing")


def test_grade_of_records_without_responses_divides_by_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "q", "answer": "1", "response": []}\n')
    result = succeed("grade", str(path), "--output", str(tmp_path / "out.jsonl"))
    assert result.stdout == "0 of 0 responses are correct: the file holds none\n"
