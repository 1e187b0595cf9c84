"""What the folder of a run says about rates and costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from reason_spec.control.costs import PassCost
from reason_spec.errors import DataError
from reason_spec.lab.planning.measured import measured_runs, pass_cost_of, prompt_share, read_pass_times
from reason_spec.lab.planning.workload import Workload
from tests.evaluation.run_folders import answer_of, write_run


def test_rates_costs_and_lengths_are_those_of_the_answers(tmp_path: Path) -> None:
    (found,) = measured_runs(write_run(tmp_path / "run"))
    assert (found.strategy, found.mode, found.depth, found.num_drafts) == ("lookahead", "asynchronous", 3, 8)
    assert found.has_baseline
    assert found.speedup == pytest.approx(2.0)
    load = found.workload
    assert load.alpha_step == pytest.approx(0.75)
    assert load.alpha_token == pytest.approx(0.8)
    assert load.c_step == 0.1
    # 0.08 s for 4 verdicts; the target alone writes a step of 30 tokens in 0.6 s.
    assert load.verification == pytest.approx(0.02 / 0.6)
    assert (load.step_tokens, load.step_tokens_std, load.answer_steps) == (30.0, 10.0, 4.0)
    assert load.pass_cost == PassCost(((1, 10.0), (4, 12.0), (16, 16.0)))
    assert found.pass_tokens == pytest.approx(140 / 60)
    assert found.pass_drafts == pytest.approx(2.0)


def test_prompts_are_counted_as_the_target_alone_read_them(tmp_path: Path) -> None:
    (found,) = measured_runs(write_run(tmp_path / "run"))
    # T(60) / T(1) on the line through T(4) and T(16), and 119 passes of one token.
    reading = 1.2 + (60 - 4) * 0.4 / 12
    assert found.prompt_share == pytest.approx(reading / (reading + 119))
    (alone,) = measured_runs(write_run(tmp_path / "alone", answers=[answer_of("lookahead", 0, 1.2)]))
    assert alone.prompt_share == 0.0, "nobody measured how long the target alone reads"


def test_answers_at_once_wait_for_each_others_prompts() -> None:
    workload = Workload(0.63, 0.1, pass_cost=PassCost(((1, 1.0), (101, 101.0))), requests=4)
    # Fifty tokens more in a pass take 50; a hundred passes of four tokens are shared by four answers.
    share = prompt_share(workload, prompt_tokens=50.0, answer_tokens=101.0)
    assert share == pytest.approx(50 / (50 + 100))


def test_what_passes_took_at_work_is_kept_apart(tmp_path: Path) -> None:
    at_work = {"target_pass_ms": {1: 10.0, 4: 14.0, 16: 24.0}}
    (found,) = measured_runs(write_run(tmp_path / "run", at_work=at_work))
    assert found.workload.pass_ratio(16) == pytest.approx(1.6)
    assert found.pass_cost_at_work == PassCost(((1, 10.0), (4, 14.0), (16, 24.0)))
    (given,) = measured_runs(tmp_path / "run", pass_cost=PassCost(((1, 1.0), (8, 2.0))))
    assert given.pass_cost_at_work is None


def test_what_is_given_replaces_what_was_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", costs=None)
    with pytest.raises(DataError, match=r"measured no costs.*--c-step"):
        measured_runs(folder)
    (found,) = measured_runs(folder, c_step=0.3, pass_cost=PassCost(((1, 1.0), (8, 2.0))))
    assert found.workload.c_step == 0.3
    assert found.workload.pass_ratio(8) == 2.0


def test_without_the_target_alone_its_pass_is_the_measure(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", answers=[answer_of("lookahead", 0, 1.2)])
    (found,) = measured_runs(folder)
    assert not found.has_baseline
    # 120 tokens at 10 ms each.
    assert found.speedup == pytest.approx(1.0)


def test_steps_that_are_judged_alone_have_another_model(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", answers=[answer_of("hybrid", 0, 1.0), answer_of("scot", 0, 1.0)])
    assert [(run.strategy, run.mode) for run in measured_runs(folder)] == [("hybrid", "judged")]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"id": "to')
    assert [run.num_answers for run in measured_runs(folder)] == [2]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_an_answer_with_a_line_separator_of_unicode_is_one_line(tmp_path: Path, separator: str) -> None:
    answers = [replace(answer_of("lookahead", n, 1.2), response=f"x{separator}y") for n in range(2)]
    assert [run.num_answers for run in measured_runs(write_run(tmp_path / "run", answers=answers))] == [2]


def test_damaged_folders_are_refused_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no results\.jsonl"):
        measured_runs(tmp_path)
    folder = write_run(tmp_path / "run")
    (folder / "results.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: id: "):
        measured_runs(folder)
    alone = write_run(tmp_path / "alone", answers=[answer_of("autoregressive", 0, 2.4)])
    with pytest.raises(DataError, match="no answers of a strategy that can be explained"):
        measured_runs(alone)
    without = write_run(tmp_path / "without")
    (without / "settings.yaml").unlink()
    with pytest.raises(DataError, match=r"holds no settings\.yaml"):
        measured_runs(without, c_step=0.1, pass_cost=PassCost(((1, 1.0),)))
    wide = write_run(tmp_path / "wide")
    changed = (wide / "settings.yaml").read_text().replace("width: 1", "width: 2")
    (wide / "settings.yaml").write_text(changed)
    with pytest.raises(DataError, match="2 drafts of each step is not modelled"):
        measured_runs(wide)


def test_pass_times_are_read_from_mappings_and_runs(tmp_path: Path) -> None:
    expected = PassCost(((1, 10.0), (4, 12.0), (16, 16.0)))
    as_json, as_yaml = tmp_path / "times.json", tmp_path / "times.yaml"
    times: dict[Any, float] = {16: 16.0, 1: 10.0, 4: 12.0}
    as_json.write_text(json.dumps(times))
    as_yaml.write_text(yaml.safe_dump(times))
    run = write_run(tmp_path / "run") / "settings.yaml"
    assert [read_pass_times(path) for path in (as_json, as_yaml, run)] == [expected] * 3


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "pass of 1 token is missing"),
        ({4: 1.0}, "pass of 1 token is missing"),
        ({1: "fast"}, r"times\.yaml: 1: .*valid number"),
        ({1: -1.0}, "greater than 0"),
        ({0: 1.0, 1: 1.0}, "greater than 0"),
        ({1: float("nan")}, "above 0"),
    ],
)
def test_impossible_times_are_refused(times: dict[Any, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pass_cost_of(times, "times.yaml")
