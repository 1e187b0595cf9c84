"""Measuring the pair: what counts as a right step, and a report on real models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.pair import CARD_PATH
from reason_spec.pair.decoding import complete_greedily, parse_answer
from reason_spec.pair.evaluate import ByOperations, PairReport, evaluate, is_right_step, main, update_card
from reason_spec.pair.generator import make_problem
from reason_spec.pair.model import Shape, load_model, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer, chat_prompt

TINY = Shape(layers=2, width=16, intermediate=32, heads=2, kv_heads=1, start_layers=2, head_dim=8)


@given(st.integers(0, 10**6))
def test_a_step_in_other_words_is_right_and_one_with_another_result_is_not(seed: int) -> None:
    target = make_problem("test", seed, 0, wording="target")
    draft = make_problem("test", seed, 0, wording="draft")
    for a, b in zip(target.steps, draft.steps, strict=True):
        assert is_right_step(b, a)
    step = target.steps[0]
    result = step.rsplit(" ", 2)[-2]
    if result.isdigit():
        wrong = step.rsplit(" ", 2)[0] + f" {int(result) + 1} things."
        assert not is_right_step(wrong, step)


def test_steps_without_a_calculation_must_be_equal() -> None:
    assert is_right_step("The answer is 12.", "The answer is 12.")
    assert not is_right_step("The answer is 13.", "The answer is 12.")
    assert not is_right_step("The answer is 12.", "Ben has 8 more than Ana, 4+8=12. Ben has 12 cards.")


def test_only_the_answer_step_at_the_end_gives_an_answer() -> None:
    assert parse_answer("Ben has 3 cards.\n\nThe answer is 47.") == 47
    assert parse_answer("The answer is 47.\n\nBen has 3 cards.") is None
    assert parse_answer("The answer is") is None


def _save(folder: Path, seed: int) -> Path:
    save_model(new_model(TINY, build_tokenizer(), seed), build_tokenizer(), folder)
    return folder


def test_batched_decoding_equals_decoding_alone(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, tokenizer = load_model(_save(tmp_path / "model", 0)), build_tokenizer()
    prompts = [chat_prompt(make_problem("test", 0, i).question) for i in range(5)]
    together = complete_greedily(model, tokenizer, prompts, max_new_tokens=12, batch_rows=3)
    alone = [complete_greedily(model, tokenizer, [prompt], max_new_tokens=12)[0] for prompt in prompts]
    assert together == alone


def test_a_report_covers_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("reason_spec.pair.decoding.MAX_SOLUTION_TOKENS", 8)
    report = evaluate(_save(tmp_path / "target", 0), _save(tmp_path / "draft", 1), n=6, seed=0)
    assert report.n == 6 == sum(row.n for row in report.by_ops.values())
    assert report.target_accuracy == report.draft_accuracy == 0.0
    assert report.c == pytest.approx(report.draft_ms_per_token / report.target_ms_per_token)
    assert all(isinstance(row, ByOperations) for row in report.by_ops.values())


def test_the_command_prints_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reason_spec.pair.decoding.MAX_SOLUTION_TOKENS", 8)
    folders = ["--target", str(_save(tmp_path / "t", 0)), "--draft", str(_save(tmp_path / "d", 1))]
    main([*folders, "--n", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert {
        "target_accuracy",
        "draft_accuracy",
        "draft_step_accuracy",
        "draft_wording",
        "c",
        "n",
        "by_ops",
    } <= set(report)


def test_the_card_takes_new_figures_and_keeps_its_text(tmp_path: Path) -> None:
    report = PairReport(40, 0.85, 0.6, 0.9, 0.7, 120, 10.0, 1.5, 0.15, {3: ByOperations(40, 0.85, 0.6)})
    card = tmp_path / "MODEL_CARD.md"
    card.write_text(CARD_PATH.read_text(encoding="utf-8"), encoding="utf-8")
    update_card(card, report)
    once = card.read_text(encoding="utf-8")
    update_card(card, report)
    assert card.read_text(encoding="utf-8") == once
    assert "| all | 40 | 85.0% | 60.0% |" in once
    assert once.startswith("---\nlicense: apache-2.0")
    assert once.rstrip().endswith("Apache-2.0, as the rest of the project.")


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--target", str(tmp_path), "--draft", str(tmp_path), "--n", "1"])
    assert stopped.value.code == 2
    assert "config.json is missing" in capsys.readouterr().err
