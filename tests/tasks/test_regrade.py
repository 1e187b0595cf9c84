from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reason_spec.errors import DataError
from reason_spec.tasks import Grader, grade_file

RESPONSES = ["A: 18", "The answer is $18.00.", "so \\boxed{18}", "#### 18", "It is 17.", "No idea."]


def _records() -> list[dict[str, Any]]:
    return [
        {
            "id": f"p{i}",
            "question": "How many? ½ é",
            "answer": "work\n#### 18",
            "response": text,
            "seconds": 1.5,
            "n": [i],
        }
        for i, text in enumerate(RESPONSES)
    ]


def _write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_prediction_and_correct_are_added_and_all_else_is_kept(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", _records())
    counts = grade_file(source, tmp_path / "out.jsonl", "gsm8k")
    graded = _read(tmp_path / "out.jsonl")
    assert [record.pop("correct") for record in graded] == [True, True, True, True, False, False]
    assert [record.pop("prediction") for record in graded] == ["18", "18.00", "18", "18", "17", None]
    assert graded == _records()
    assert (counts.num_records, counts.num_correct, counts.num_wrong, counts.num_ungraded) == (6, 4, 2, 0)
    assert counts.num_without_answer == 1
    assert counts.accuracy == pytest.approx(4 / 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_earlier_grades_are_replaced_and_the_input_may_be_the_output(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "in.jsonl", [{**record, "correct": "stale", "prediction": 5} for record in _records()]
    )
    grade_file(path, path, "gsm8k")
    first = path.read_bytes()
    assert [record["correct"] for record in _read(path)] == [True, True, True, True, False, False]
    grade_file(path, path, "gsm8k")
    assert path.read_bytes() == first


def test_list_of_responses_gets_lists(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", [{"question": "q", "answer": 18, "response": RESPONSES}])
    counts = grade_file(source, tmp_path / "out.jsonl", "gsm8k")
    assert _read(tmp_path / "out.jsonl")[0]["correct"] == [True, True, True, True, False, False]
    assert counts.num_records == 1
    assert counts.num_responses == 6


def test_shares_are_of_questions_whatever_lines_hold_their_responses(tmp_path: Path) -> None:
    lines = [("a", "18"), ("b", ["18", "17"]), ("a", "17"), ("c", []), ("a", "18")]
    records: list[Any] = [{"question": name, "answer": 18, "response": text} for name, text in lines]
    records += [{"answer": 18, "response": "18"}, {"answer": 18, "response": "17"}]
    counts = grade_file(_write(tmp_path / "in.jsonl", records), tmp_path / "out.jsonl", "gsm8k")
    assert counts.shares == pytest.approx((2 / 3, 1 / 2, 1, 0))
    assert (counts.num_records, counts.num_responses) == (7, 7)


def test_gzip_is_read_and_written(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress(json.dumps(_records()[0]).encode()))
    grade_file(source, tmp_path / "out.jsonl.gz", "gsm8k")
    assert json.loads(gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()))["correct"] is True


def test_half_a_surrogate_pair_in_a_response_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"question": "q", "answer": 18, "response": "\\ud83d A: 18"}\n')
    grade_file(source, tmp_path / "out.jsonl", "gsm8k")
    record = _read(tmp_path / "out.jsonl")[0]
    assert record["response"] == "\ud83d A: 18"
    assert record["correct"] is True


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"question": "q", "answer": "18"}, "'response' is missing"),
        ({"question": "q", "answer": "18", "response": None}, "'response' is null"),
        ({"question": "q", "answer": "18", "response": 18}, "'response' holds something that is not text"),
        (
            {"question": "q", "answer": "18", "response": ["18", 18]},
            "'response' holds something that is not text",
        ),
        ({"question": "q", "response": "18"}, "'answer' is missing"),
        ({"question": "q", "answer": "a few", "response": "18"}, "'answer' is not a number"),
        (["18"], "not a JSON object"),
    ],
)
def test_bad_line_is_reported_or_left_out_and_nothing_is_half_written(
    tmp_path: Path, record: object, part: str
) -> None:
    good = _records()
    source = _write(tmp_path / "in.jsonl", [good[0], record, good[4]])
    output = tmp_path / "out.jsonl"
    output.write_text("earlier\n")
    with pytest.raises(DataError, match=r"in\.jsonl, line 2: .*--skip-bad") as raised:
        grade_file(source, output, "gsm8k")
    assert part in str(raised.value)
    assert output.read_text() == "earlier\n"
    assert len(list(tmp_path.iterdir())) == 2

    counts = grade_file(source, output, "gsm8k", skip_bad=True)
    assert [bad.line for bad in counts.bad_lines] == [2]
    assert [record["id"] for record in _read(output)] == ["p0", "p4"]


def test_empty_input_and_impossible_outputs_are_refused(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", _records())
    with pytest.raises(DataError, match="empty"):
        grade_file(_write(tmp_path / "empty.jsonl", []), tmp_path / "out.jsonl")
    with pytest.raises(DataError, match="none of its 1 lines"):
        grade_file(_write(tmp_path / "bad.jsonl", [5]), tmp_path / "out.jsonl", skip_bad=True)
    assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(DataError, match="folder that exists"):
        grade_file(source, tmp_path / "missing" / "out.jsonl")
    with pytest.raises(DataError, match="not a regular file"):
        grade_file(source, tmp_path)


def test_undecided_grade_is_null_and_counted(tmp_path: Path) -> None:
    record = {"question": "q", "answer": "x+1", "response": "\\boxed{(x+1)^{1000000}}"}
    source = _write(tmp_path / "in.jsonl", [record])
    with Grader(deadline_seconds=1) as grader:
        counts = grade_file(
            source,
            tmp_path / "out.jsonl",
            "math500",
            grader=grader,
        )
    assert _read(tmp_path / "out.jsonl")[0]["correct"] is None
    assert (counts.num_ungraded, counts.num_correct, counts.num_wrong) == (1, 0, 0)
