from __future__ import annotations

import base64
import csv
import gzip
import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import DataError, SettingsError
from reason_spec.evaluation.outcome import Outcome
from reason_spec.lab.pages import data
from reason_spec.lab.pages.data import page_data
from reason_spec.lab.pages.page import render_page
from reason_spec.lab.pages.runs import chosen_evenly, read_runs
from reason_spec.lab.pages.tables import _escaped, write_csv
from tests.evaluation.runs import write_run

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)> <!-- \u2028 & =1+1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sums"
    write_run(folder, flags={"strategy.planner": False})
    return folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "sums"))


@pytest.fixture(scope="module")
def outcomes(finished: Path) -> tuple[Outcome, ...]:
    return read_runs([finished], max_timelines=0)[0].outcomes


def edit_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


# Reading -------------------------------------------------------------------------------------


def test_a_run_is_read_with_its_settings_measures_and_timelines(finished: Path) -> None:
    (run,) = read_runs([finished], max_timelines=100)
    assert run.strategies == ("autoregressive", "lookahead")
    assert len(run.outcomes) == len(run.timelines) == len(run.shown) == 12
    assert {row.strategy for row in run.metrics.strategies} == set(run.strategies)
    assert run.notices == ()
    assert run.settings["settings"]["strategy"]["planner"] is False


def test_what_is_missing_is_said_and_the_rest_is_shown(run_folder: Path) -> None:
    (run_folder / "timelines.jsonl").unlink()
    (run_folder / "settings.yaml").unlink()
    edit_lines(run_folder / "results.jsonl", lambda lines: [*lines[:-1], lines[-1][:50]])
    (run,) = read_runs([run_folder], max_timelines=100)
    assert len(run.outcomes) == 11
    assert [name for notice in run.notices for name in re.findall(r"\w+\.\w+", notice)] == [
        "settings.yaml",
        "results.jsonl",
        "timelines.jsonl",
    ]
    page = render_page([run])
    assert "timelines.jsonl: timelines and rejected drafts are not shown" in page
    assert "11, 1 missing" in page


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lines: ["{\n", *lines], r"results\.jsonl, line 1: "),
        (
            lambda lines: [lines[0], "[]\n"],
            r"results\.jsonl, line 2: Input should be an object.*Remove the line",
        ),
        (lambda lines: [lines[0], lines[0]], r"results\.jsonl, line 2: .*is there already"),
        (
            lambda lines: [lines[0].replace('"seconds"', '"time"', 1)],
            r"line 1: seconds: Field required.*--fresh",
        ),
        (lambda lines: [], r"holds no answer yet"),
        (lambda lines: [lines[0][:50]], r"holds no answer yet"),
    ],
)
def test_damaged_results_are_refused_by_file_and_line(
    run_folder: Path, spoil: Callable[[list[str]], list[str]], said: str
) -> None:
    edit_lines(run_folder / "results.jsonl", spoil)
    with pytest.raises(DataError, match=said):
        read_runs([run_folder], max_timelines=10)


def test_damaged_timelines_and_settings_are_refused_by_name(run_folder: Path) -> None:
    edit_lines(run_folder / "timelines.jsonl", lambda lines: [lines[0], '{"marks": 1}\n', *lines[1:]])
    with pytest.raises(DataError, match=r"timelines\.jsonl, line 2"):
        read_runs([run_folder], max_timelines=10)
    (run_folder / "timelines.jsonl").unlink()
    (run_folder / "settings.yaml").write_text("a: [")
    with pytest.raises(DataError, match=r"settings\.yaml"):
        read_runs([run_folder], max_timelines=10)


def test_a_folder_that_is_none_and_one_given_twice_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        read_runs([tmp_path / "nowhere"], max_timelines=1)
    with pytest.raises(DataError, match=r"holds no results\.jsonl"):
        read_runs([tmp_path], max_timelines=1)
    with pytest.raises(DataError, match="is a file"):
        read_runs([finished / "results.jsonl"], max_timelines=1)
    with pytest.raises(DataError, match="given twice"):
        read_runs([finished, finished / ".." / "sums"], max_timelines=1)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 100))
def test_shown_answers_are_whole_problems_spread_evenly(
    outcomes: tuple[Outcome, ...], problems: int, strategies: int, limit: int
) -> None:
    many = [
        replace(outcomes[0], id=f"p{place}", strategy=f"s{number}")
        for place in range(problems)
        for number in range(strategies)
    ]
    chosen = chosen_evenly(many, limit)
    ids = {key.problem_id for key in chosen}
    assert len(chosen) == len(ids) * strategies
    assert len(chosen) <= max(limit, strategies if limit else 0)
    assert len(ids) == (min(problems, max(1, limit // strategies)) if limit else 0)
    assert not limit or "p0" in ids


# The page ------------------------------------------------------------------------------------


def embedded_data(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/gzip\+base64" id="data">([\w+/=]*)</script>', page)
    assert found is not None
    content = json.loads(gzip.decompress(base64.b64decode(found.group(1))))
    assert isinstance(content, dict)
    return content


def test_the_page_holds_all_it_needs_and_says_so_to_the_browser(finished: Path) -> None:
    runs = read_runs([finished], max_timelines=100)
    page = render_page(runs)
    assert "default-src 'none'" in html.unescape(page)
    assert "unsafe-inline" not in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert embedded_data(page) == json.loads(json.dumps(page_data(runs)))


def test_texts_of_models_cannot_leave_their_place(finished: Path) -> None:
    (run,) = read_runs([finished], max_timelines=100)
    spoiled = [
        replace(
            outcome,
            question=HOSTILE,
            prediction=HOSTILE,
            response=HOSTILE,
            steps=tuple(replace(step, text=HOSTILE) for step in outcome.steps),
        )
        for outcome in run.outcomes
    ]
    page = render_page([replace(run, outcomes=tuple(spoiled), label=HOSTILE, notices=(HOSTILE,))])
    assert page.count("<script") == 2
    assert "<img" not in page
    problems = embedded_data(page)["problems"]
    assert isinstance(problems, list)
    assert all(problem["question"] == HOSTILE for problem in problems)


def test_the_page_grows_with_what_is_shown_and_tells_how_much_that_is(finished: Path) -> None:
    few, all_ = (render_page(read_runs([finished], max_timelines=limit)) for limit in (2, 100))
    assert len(few) < len(all_)
    assert "1 of 6 problems, chosen evenly" in few
    assert "All 6 problems" in all_


def test_answers_hold_their_steps_and_spans(finished: Path) -> None:
    (run,) = read_runs([finished], max_timelines=100)
    found = page_data([run])
    assert len(found["problems"]) == 6
    for problem in found["problems"]:
        for answer in problem["answers"]:
            strategy = found["series"][answer["series"]]["strategy"]
            (outcome,) = [o for o in run.outcomes if (o.id, o.strategy) == (problem["id"], strategy)]
            assert "".join(step["text"] for step in answer["steps"]) == outcome.response
            assert answer["baseline"] is (strategy == "autoregressive")
            lanes = {span["lane"] for span in answer["timeline"]["spans"]}
            assert lanes == ({"target"} if answer["baseline"] else {"draft", "target", "verifier"})


def test_the_text_of_single_answers_is_limited(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = read_runs([finished], max_timelines=100)
    num_characters = sum(len(outcome.response) for outcome in run.outcomes)
    monkeypatch.setattr(data, "MAX_CHARACTERS", num_characters // 2)
    assert 0 < len(page_data([run])["problems"]) < 6


def test_runs_of_other_settings_are_told_apart_by_them(finished: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "deep", 2, flags={"strategy.planner": False, "strategy.depth": 7})
    page = render_page(read_runs([finished, tmp_path / "deep"], max_timelines=100))
    series = embedded_data(page)["series"]
    assert isinstance(series, list)
    assert [item["label"] for item in series] == [
        "autoregressive A",
        "lookahead A",
        "autoregressive B",
        "lookahead B",
    ]
    assert embedded_data(page)["runs"] == ["A: sums (depth 4)", "B: deep (depth 7)"]
    assert series[0]["colour"] == series[2]["colour"]
    assert "Settings in which the runs differ" in page


# Files ---------------------------------------------------------------------------------------


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_hold_every_answer_with_every_digit(finished: Path, tmp_path: Path) -> None:
    (run,) = read_runs([finished], max_timelines=100)
    files = {path.stem: read_csv(path) for path in write_csv([run], tmp_path / "csv")}
    assert [float(row["seconds"]) for row in files["answers"]] == [item.seconds for item in run.outcomes]
    assert {row["strategy"] for row in files["strategies"]} == set(run.strategies)
    assert float(files["pairs"][0]["speedup"]) > 0


def test_a_table_never_hands_a_spreadsheet_a_formula(finished: Path, tmp_path: Path) -> None:
    (run,) = read_runs([finished], max_timelines=0)
    spoiled = tuple(replace(item, prediction="=1+1") for item in run.outcomes)
    write_csv([replace(run, outcomes=spoiled)], tmp_path)
    assert {row["prediction"] for row in read_csv(tmp_path / "answers.csv")} == {"'=1+1"}


@pytest.mark.parametrize("text", ["-5", "+3", "-\\frac{1}{2}", "-1,200"])
def test_a_negative_number_is_no_formula(text: str) -> None:
    assert _escaped(text) == text
    assert _escaped(f"{text}+cmd()") == f"'{text}+cmd()"


def test_a_named_problem_is_shown_and_an_unknown_one_refused(finished: Path) -> None:
    (run,) = read_runs([finished], max_timelines=2, shown_problem="p5")
    assert {key.problem_id for key in run.shown} == {"p0", "p5"}
    with pytest.raises(SettingsError, match="unknown problem 'p11'; did you mean"):
        read_runs([finished], max_timelines=4, shown_problem="p11")
