from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import DataError, SettingsError
from reason_spec.tasks import Task, get_task, load_problems, register_task, task_names
from reason_spec.tasks.loading import _UniqueIds

GOOD = b'{"question": "1+1?", "answer": "2"}\n'


def _write(tmp_path: Path, content: bytes, name: str = "problems.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"question": "x", "answer"', ["line 2", "not valid JSON", "column"]),
        (b"[1, 2]", ["line 2", "not a JSON object", "[1, 2]"]),
        (b"17", ["line 2", "not a JSON object"]),
        (b'{"answer": "2"}', ["line 2", "'question'", "missing", "answer"]),
        (b'{"question": "", "answer": "2"}', ["line 2", "'question'", "empty"]),
        (b'{"question": " \\n ", "answer": "2"}', ["line 2", "'question'", "empty"]),
        (b'{"question": 5, "answer": "2"}', ["line 2", "'question'", "a number", "5"]),
        (b'{"question": ["a"], "answer": "2"}', ["line 2", "'question'", "a list"]),
        (b'{"question": "x"}', ["line 2", "'answer'", "missing", "question"]),
        (b'{"question": "x", "answer": ""}', ["line 2", "'answer'"]),
        (b'{"question": "x", "answer": null}', ["line 2", "'answer'"]),
        (b'{"question": "x", "answer": true}', ["line 2", "'answer'", "true or false"]),
        (b'{"question": "x", "answer": {"a": 1}}', ["line 2", "'answer'", "an object"]),
        (b'{"question": "x", "answer": NaN}', ["line 2", "'answer'", "finite"]),
        (b'{"question": "caf\xe9", "answer": "2"}', ["line 2", "UTF-8", "0xe9"]),
        (b'{"question": "\\ud800", "answer": "2"}', ["line 2", "'question'", "surrogate"]),
        (b'{"id": "\\ud800", "question": "x", "answer": "2"}', ["line 2", "'id'", "surrogate"]),
        (b'{"question": "x", "answer": ' + b"9" * 5000 + b"}", ["line 2", "not usable JSON"]),
        (b"[" * 100_000, ["line 2", "not usable JSON", "RecursionError"]),
    ],
)
def test_bad_line_is_reported_with_place_and_remedy_or_skipped(
    tmp_path: Path, line: bytes, parts: list[str]
) -> None:
    path = _write(tmp_path, GOOD + line + b"\n" + GOOD)
    with pytest.raises(DataError) as raised:
        load_problems(path)
    for part in [str(path), "--skip-bad", *parts]:
        assert part in str(raised.value)
    assert len(str(raised.value)) < 500

    loaded = load_problems(path, skip_bad=True)
    assert [problem.id for problem in loaded.problems] == ["1", "3"]
    assert [bad.line for bad in loaded.bad_lines] == [2]
    assert loaded.bad_lines[0].reason in str(raised.value)


def test_reference_that_is_no_number_is_refused_where_the_task_has_numbers(tmp_path: Path) -> None:
    path = _write(tmp_path, b'{"question": "x", "answer": "a few"}\n')
    with pytest.raises(DataError, match=r"line 1: field 'answer' is not a number.*gsm8k.*'a few'"):
        load_problems(path, "gsm8k")
    assert load_problems(path).problems[0].answer == "a few"


def test_missing_answer_is_allowed_where_nothing_is_graded(tmp_path: Path) -> None:
    path = _write(tmp_path, b'{"question": "x"}\n')
    assert load_problems(path, require_answer=False).problems[0].answer is None


@pytest.mark.parametrize("content", [b"", b"\n\n \n"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_empty_file_is_refused(tmp_path: Path, content: bytes, skip_bad: bool) -> None:
    with pytest.raises(DataError, match="is empty"):
        load_problems(_write(tmp_path, content), skip_bad=skip_bad)
    with pytest.raises(DataError, match="is empty"):
        load_problems(_write(tmp_path, gzip.compress(content), "empty.jsonl.gz"), skip_bad=skip_bad)


def test_file_without_one_usable_line_is_refused_even_when_skipping(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of its 2 lines"):
        load_problems(_write(tmp_path, b"a\nb\n"), skip_bad=True)


def test_missing_file_folder_and_foreign_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_problems(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="is a folder"):
        load_problems(tmp_path)
    for name in ("questions.txt", "table.csv", "data.parquet"):
        with pytest.raises(DataError, match="JSON lines"):
            load_problems(_write(tmp_path, GOOD, name))
    with pytest.raises(DataError, match="not a gzip file"):
        load_problems(_write(tmp_path, GOOD, "plain.jsonl.gz"))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.gz", "a.JSONL.GZ", "a.jsonl"])
def test_gzip_is_read_whatever_the_name_says(tmp_path: Path, name: str) -> None:
    loaded = load_problems(_write(tmp_path, gzip.compress(GOOD * 3), name))
    assert len(loaded.problems) == 3


def test_gzip_that_is_cut_off_is_reported_and_its_start_can_be_used(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"question": f"{i}" * 50, "answer": i}).encode() + b"\n" for i in range(5000))
    packed = gzip.compress(lines)
    path = _write(tmp_path, packed[: len(packed) // 2], "cut.jsonl.gz")
    with pytest.raises(DataError, match="cut off"):
        load_problems(path)
    loaded = load_problems(path, skip_bad=True)
    assert 0 < len(loaded.problems) < 5000
    assert len(loaded.bad_lines) == 1


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_json_array_is_read_item_by_item(tmp_path: Path, name: str) -> None:
    items = json.dumps([{"question": "a", "answer": 1}, 5, {"question": "b", "answer": 2}], indent=1).encode()
    path = _write(tmp_path, gzip.compress(items) if name.endswith("gz") else b"\xef\xbb\xbf" + items, name)
    with pytest.raises(DataError, match="line 2"):
        load_problems(path)
    assert [problem.answer for problem in load_problems(path, skip_bad=True).problems] == ["1", "2"]


def test_damaged_json_array_is_refused_whole(tmp_path: Path) -> None:
    path = _write(tmp_path, b'[{"question": "a", "answer": 1},\n', "a.json")
    with pytest.raises(DataError, match="line 2, column 1"):
        load_problems(path, skip_bad=True)


def test_line_breaks_of_all_systems_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    content = (
        b"\xef\xbb\xbf"
        + GOOD.replace(b"\n", b"\r\n")
        + b"\r\n"
        + '{"question": "a\u2028b", "answer": 1}'.encode()
    )
    problems = load_problems(_write(tmp_path, content)).problems
    assert [problem.id for problem in problems] == ["1", "3"]
    assert problems[1].question == "a\u2028b"


@pytest.mark.parametrize(
    ("record", "question", "answer"),
    [
        ({"problem": "q", "answer": "1"}, "q", "1"),
        ({"Question": "q", "Answer": 145.0}, "q", "145"),
        ({"input": "q", "target": 39}, "q", "39"),
        ({"prompt": "q", "final_answer": ["7"]}, "q", "7"),
        ({"question": "", "problem": "q", "answer": 0.5}, "q", "0.5"),
        ({"question": "q", "answer": "work\n#### 1,080"}, "q", "1,080"),
        ({"problem": "q", "solution": "so \\boxed{\\frac{1}{2}}"}, "q", "\\frac{1}{2}"),
        ({"Body": "Tom has 3 pens", "Question": "How many?", "Answer": 3}, "Tom has 3 pens. How many?", "3"),
        ({"Body": "Tom has 3 pens.", "Question": "How many?", "Answer": 3}, "Tom has 3 pens. How many?", "3"),
    ],
)
def test_usual_field_names_are_understood(
    tmp_path: Path, record: dict[str, object], question: str, answer: str
) -> None:
    problem = load_problems(_write(tmp_path, json.dumps(record).encode())).problems[0]
    assert (problem.question, problem.answer) == (question, answer)


def test_ids_come_from_the_file_and_repeated_ones_are_told_apart(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"id": 7},
        {"unique_id": "a/b"},
        {"ID": "7"},
        {},
        {"id": "7#2"},
        {"idx": 0},
        {"id": "7"},
    ]
    lines = [json.dumps({"question": "q", "answer": 1, **record}) for record in records]
    problems = load_problems(_write(tmp_path, "\n".join(lines).encode())).problems
    assert [problem.id for problem in problems] == ["7", "a/b", "7#2", "4", "7#2#2", "0", "7#3"]


@given(st.lists(st.sampled_from(["a", "a#2", "a#2#2", "b", "b#3"]), max_size=30))
def test_ids_are_unique_and_the_same_each_time(wanted: list[str]) -> None:
    first, second = _UniqueIds(), _UniqueIds()
    ids = [first.take(name) for name in wanted]
    assert len(set(ids)) == len(ids)
    assert ids == [second.take(name) for name in wanted]


def test_limit_stops_before_later_lines_are_looked_at(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD * 2 + b"broken\n")
    assert len(load_problems(path, limit=2).problems) == 2
    for limit in (0, -1):
        with pytest.raises(SettingsError, match="at least 1"):
            load_problems(path, limit=limit)


def test_unknown_task_lists_the_names_and_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"'gsm8'.*did you mean 'gsm8k'.*aime.*math500"):
        get_task("gsm8")
    assert {"gsm8k", "aime", "math500", "amc", "svamp", "multiarith", "auto"} <= set(task_names())


def test_a_task_of_ones_own_can_be_registered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.tasks.base._TASKS", {})
    register_task(
        Task("riddles", "riddles", "expression", question_fields=("riddle",), answer_fields=("solved",))
    )
    path = _write(tmp_path, b'{"riddle": "What has keys?", "solved": "a piano"}')
    assert load_problems(path, "riddles").problems[0].answer == "a piano"
    with pytest.raises(SettingsError, match="already"):
        register_task(Task("riddles", "riddles", "expression"))
    with pytest.raises(SettingsError, match="lower-case"):
        register_task(Task("My Task", "", "expression"))


def test_prompt_styles() -> None:
    for name in set(task_names()) - {"spec_bench", "speed_bench"}:
        assert get_task(name).prompt("How many?", "plain") == "How many?"
        boxed = get_task(name).prompt("How many?", "boxed")
        assert boxed.startswith("How many?\n\n")
        assert "\\boxed{}" in boxed
    with pytest.raises(SettingsError, match="plain, boxed"):
        get_task("auto").prompt("How many?", "loud")  # type: ignore[arg-type]


def test_categories_of_spec_bench_are_tasks_and_its_first_turns_are_the_questions() -> None:
    sample = Path(__file__).parents[2] / "benchmarks" / "spec_bench_sample.jsonl"
    problems = load_problems(sample, "spec_bench", require_answer=False).problems
    counts = Counter(problem.task for problem in problems)
    names = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
    assert counts == {f"spec_bench/{name}": 10 for name in names}
    first = json.loads(sample.read_text().splitlines()[0])
    assert problems[0].question == first["turns"][0].strip()
    assert all(problem.answer is None for problem in problems)
    for style in ("plain", "boxed"):
        assert get_task(problems[0].task).prompt("Why?", style) == "Why?"


def test_speed_bench_is_read_by_messages_or_turns(tmp_path: Path) -> None:
    lines = [
        {
            "category": "coding",
            "messages": [{"role": "user", "content": "Sort."}, {"role": "user", "content": "?"}],
        },
        {"category": "math", "turns": ["Add.", "Again."]},
    ]
    path = _write(tmp_path, "\n".join(map(json.dumps, lines)).encode())
    problems = load_problems(path, "speed_bench", require_answer=False).problems
    assert [(problem.task, problem.question) for problem in problems] == [
        ("speed_bench/coding", "Sort."),
        ("speed_bench/math", "Add."),
    ]
    broken = _write(tmp_path, b'{"category": "math", "turns": []}', "broken.jsonl")
    with pytest.raises(DataError, match=r"'turns'.*a list"):
        load_problems(broken, "speed_bench", require_answer=False)


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Which is prime?", "choices": ["4", "7"], "answer": 1},
        {"question": "Which is prime?", "options": ["A)4", "B)7"], "answer": "B"},
        {"question": "Which is prime?", "choices": {"text": ["4", "7"], "label": ["A", "B"]}, "answer": "B"},
    ],
)
def test_choices_follow_the_question_with_their_letters(record: dict[str, object], tmp_path: Path) -> None:
    (problem,) = load_problems(_write(tmp_path, json.dumps(record).encode() + b"\n")).problems
    assert problem.question == "Which is prime?\nA) 4\nB) 7"
    assert problem.answer == "B"


def test_a_difficulty_of_another_form_spoils_no_line(tmp_path: Path) -> None:
    line = b'{"question": "1+1?", "answer": 2, "difficulty": {"human": 3}, "level": null}\n'
    (problem,) = load_problems(_write(tmp_path, line)).problems
    assert problem.level is None
