"""Measuring the pair: reports on real, if ignorant, models, and on solutions that are known."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from reason_spec.lab.pair.cost import PairCost
from reason_spec.lab.pair.evaluate import evaluate, main, update_card
from reason_spec.lab.pair.measure import (
    DraftedSteps,
    SolvedProblems,
    area_under_curve,
    by_operations,
    share,
    step_cases,
)
from reason_spec.pair import CARD_PATH
from reason_spec.pair.decoding import complete, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR, make_problem, problems
from reason_spec.pair.tokenizer import chat_prompt
from tests.pair.tiny import save_tiny


@pytest.fixture(autouse=True)
def short_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("reason_spec.pair.decoding.MAX_SOLUTION_TOKENS", 8)


def test_batched_decoding_equals_decoding_alone(tmp_path: Path) -> None:
    loaded = load_pair_model(save_tiny(tmp_path / "model", 0))
    prompts = [chat_prompt(make_problem("test", 0, i).question) for i in range(5)]
    together = complete(loaded, prompts, max_new_tokens=12, batch_rows=3)
    assert together == [complete(loaded, [prompt], max_new_tokens=12)[0] for prompt in prompts]


def test_a_solution_is_cut_into_cases_up_to_its_first_wrong_step() -> None:
    problem = make_problem("test", 0, 0, operations=(4, 4))
    right = SolvedProblems([problem], [problem.solution])
    cases = step_cases(right)
    assert [case.reference for case in cases] == list(problem.steps[:-1])
    assert cases[2].prefix == chat_prompt(problem.question) + "".join(
        s + STEP_SEPARATOR for s in problem.steps[:2]
    )
    steps = [problem.steps[0], "This is wrong.", *problem.steps[2:]]
    wrong = SolvedProblems([problem], [STEP_SEPARATOR.join(steps)])
    assert step_cases(wrong) == cases[:1]
    assert right.right == [True]


def test_steps_are_counted_by_kind_words_and_fault() -> None:
    chosen = list(islice(problems("test", 2), 12))
    cases = step_cases(SolvedProblems(chosen, [p.solution for p in chosen]))
    same = DraftedSteps(cases, [case.target_step for case in cases])
    assert all(same.right)
    assert all(same.in_target_words)
    assert all(row.n == row.right == row.same_words for row in same.by_kind().values())
    assert sum(same.faults().values()) == 0
    nonsense = DraftedSteps(cases, ["What?" for _ in cases])
    assert not any(nonsense.right)
    assert nonsense.in_target_words == []
    assert nonsense.faults()["other"] == len(cases) == sum(row.n for row in nonsense.by_kind().values())


def test_accuracy_is_grouped_by_the_number_of_operations() -> None:
    chosen = list(islice(problems("test", 3), 30))
    right = SolvedProblems(chosen, [p.solution for p in chosen])
    wrong = SolvedProblems(chosen, ["" for _ in chosen])
    table = by_operations(right, wrong)
    assert sum(row.n for row in table.values()) == 30
    assert {(row.target_accuracy, row.draft_accuracy) for row in table.values()} == {(1.0, 0.0)}


def test_the_area_under_the_curve_needs_both_sorts() -> None:
    assert area_under_curve([True, False, True], [0.9, 0.1, 0.8]) == 1.0
    assert area_under_curve([True, False], [0.1, 0.9]) == 0.0
    assert area_under_curve([True, True], [0.1, 0.9]) is None
    assert share([]) == 0.0


def test_a_report_covers_every_problem(tmp_path: Path) -> None:
    target, draft = (load_pair_model(save_tiny(tmp_path / role, seed)) for seed, role in enumerate("td"))
    report = evaluate(target, draft, None, None, PairCost(10.0, 1.0), n=6, seed=0)
    assert report.n == 6 == sum(row.n for row in report.by_ops.values())
    assert report.target_accuracy == report.draft_accuracy == 0.0
    assert report.num_steps == 0
    assert report.c == 0.1
    assert report.reward_auc is report.score_auc is None


def test_the_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--target", str(save_tiny(tmp_path / "t", 0)), "--draft", str(save_tiny(tmp_path / "d", 1))]
    main([*folders, "--n", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    wanted = "target_accuracy draft_accuracy draft_step_accuracy draft_wording c n by_ops by_kind faults"
    assert set(wanted.split()) <= set(report)
    assert report["n"] == 2


def test_the_card_takes_new_figures_and_keeps_its_text(tmp_path: Path) -> None:
    target, draft = (load_pair_model(save_tiny(tmp_path / role, seed)) for seed, role in enumerate("td"))
    report = evaluate(target, draft, None, None, PairCost(12.5, 1.5), n=4, seed=0)
    card = tmp_path / "MODEL_CARD.md"
    card.write_text(CARD_PATH.read_text(encoding="utf-8"), encoding="utf-8")
    update_card(card, report)
    once = card.read_text(encoding="utf-8")
    update_card(card, report)
    assert card.read_text(encoding="utf-8") == once
    assert "| all | 4 | 0.0% | 0.0% |" in once
    assert "target 12.5 ms, draft 1.5 ms, c = 0.120" in once
    assert once.startswith("---\nlicense: apache-2.0")
    assert once.rstrip().endswith("Apache-2.0, as the rest of the project.")


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--target", str(tmp_path), "--draft", str(tmp_path), "--n", "1"])
    assert stopped.value.code == 2
    assert "config.json is missing" in capsys.readouterr().err
