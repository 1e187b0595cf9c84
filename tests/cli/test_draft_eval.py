"""``draft eval`` from a trained draft, or a pair of models, to a table or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reason_spec.cli import draft_eval_screens
from reason_spec.cli.draft_eval_screens import show_report
from reason_spec.cli.main import app
from reason_spec.cli.screen import Screen
from reason_spec.engines.pruned import CONFIG
from reason_spec.lab.drafts.evaluation import DraftReport
from tests.engines.tiny_models import save_model


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"How many is {n}?"}) + "\n" for n in range(3)))
    return file


@pytest.fixture
def draft(questions: Path, tmp_path: Path) -> Path:
    """A draft of a tiny target, as ``draft train`` leaves it."""
    target, output = save_model("llama", tmp_path / "target"), tmp_path / "draft"
    result = CliRunner().invoke(app, [
        "draft", "train", str(questions), "--target", str(target), "--max-tokens", "12", "--prompt", "plain",
        "--output", str(output), "--hours", "0.0003", "--layers", "1", "--vocabulary", "100",
    ])  # fmt: skip
    assert result.exit_code == 0, result.output
    return output


def evaluate(draft: Path, questions: Path, *more: str) -> Any:
    return CliRunner().invoke(app, [
        "draft", "eval", str(draft), str(questions), "--max-tokens", "16", "--prompt", "plain", *more,
    ])  # fmt: skip


def test_a_trained_draft_is_measured_on_the_target_that_it_names(
    draft: Path, questions: Path, tmp_path: Path
) -> None:
    result = evaluate(draft, questions, "--json", "--output", "measured")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["target"] == str(tmp_path / "target")
    greedy, sampled = found["alpha_token"]
    assert (greedy["temperature"], sampled["temperature"]) == (0.0, 0.6)
    assert len(greedy["in_a_row"]) == 8
    assert found["tokens_per_pass"] == pytest.approx(1 + sum(greedy["in_a_row"]))
    assert 0 < sampled["alpha"]["value"] < 1
    verifiers = {each["verifier"]: each for each in found["alpha_step"]}
    assert {"semantic", "exact", "numbers", "likelihood"} <= verifiers.keys()
    assert verifiers["likelihood"]["alone"]
    assert not verifiers["exact"]["alone"]
    assert "reward" in found["left_out"]
    assert found["c"] == pytest.approx(found["draft_token_ms"] / found["target_token_ms"])
    speeds = {each["strategy"]: each for each in found["speedups"]}
    assert speeds["speculative"]["num_identical"] == 3
    assert speeds["speculative"]["split"]["depth"] == 0
    assert speeds["lookahead"]["measured"]["value"] > 0
    level = found["step_level"]
    assert (level["verifier"], level["alpha_step"]) == ("semantic", verifiers["semantic"]["alpha"])
    assert level["measured"]["value"] > 0
    steps = [json.loads(line) for line in (tmp_path / "measured" / "steps.jsonl").read_text().splitlines()]
    assert len(steps) == verifiers["exact"]["num_steps"]
    accepted = sum(step["verdicts"]["exact"]["decision"] == "accept" for step in steps)
    assert verifiers["exact"]["alpha"]["value"] == pytest.approx(accepted / len(steps))
    assert all(
        (step["drafted"] == step["own"]) <= (step["verdicts"]["exact"]["decision"] == "accept")
        for step in steps
    )
    results = tmp_path / "measured" / "results.jsonl"
    before = results.read_text()
    again = CliRunner().invoke(app, [
        "plan", "--measure", str(questions), "--max-tokens", "16", "--prompt", "plain", "--draft", str(draft),
        "--output", "measured",
    ])  # fmt: skip
    assert again.exit_code == 0, again.output
    assert "All 9 answers are in measured already" in " ".join(again.output.split()), "it is draft eval"
    assert "Speed-up over the target alone, 3 problems, T = 0" in again.stdout
    assert "Steps ahead " in again.stdout
    assert "semantic accepts " in again.stdout
    assert results.read_text() == before


def test_a_head_is_measured_without_steps(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports: list[DraftReport] = []

    def keep(report: DraftReport, screen: Screen) -> None:
        reports.append(report)
        show_report(report, screen)

    monkeypatch.setattr(draft_eval_screens, "show_report", keep)
    target, head = save_model("llama", tmp_path / "target"), tmp_path / "head"
    trained = CliRunner().invoke(app, [
        "draft", "train", str(questions), "--target", str(target), "--max-tokens", "12", "--prompt", "plain",
        "--output", str(head), "--hours", "0.0005", "--kind", "head", "--vocabulary", "100",
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    result = evaluate(head, questions, "--json", "--output", "measured")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["target"] == str(target)
    assert found["alpha_step"] == []
    greedy, sampled = found["alpha_token"]
    assert found["tokens_per_pass"] == pytest.approx(1 + sum(greedy["in_a_row"]))
    assert 0 < sampled["alpha"]["value"] < 1
    assert found["c"] > 0
    (speed,) = found["speedups"]
    assert (speed["strategy"], speed["num_identical"]) == ("self_speculative", 3)
    show_report(reports[0], Screen())
    shown = capsys.readouterr().out
    assert "Draft tokens" in shown
    assert "Draft steps" not in shown


def test_what_cannot_be_measured_is_refused_by_name(questions: Path, tmp_path: Path) -> None:
    target = save_model("llama", tmp_path / "target")
    unnamed = evaluate(target, questions)
    assert unnamed.exit_code != 0
    assert "does not say what its target is; name it with --target" in " ".join(unnamed.output.split())
    inside = CliRunner().invoke(app, ["draft", "eval", "self"])
    assert "before that there is nothing to measure" in " ".join(inside.output.split())
    other = evaluate(target, questions, "--target", "embedded")
    assert other.exit_code != 0
    assert "another tokenizer than target 'embedded'" in " ".join(other.output.split())
    kind = evaluate(target, questions, "--target", str(target), "--set", "target.kind=vllm")
    assert kind.exit_code != 0
    assert "drafts are measured with kind: torch" in " ".join(kind.output.split())
    missing = evaluate(target, tmp_path / "none.jsonl", "--target", str(target))
    assert missing.exit_code != 0
    assert "none.jsonl" in missing.output
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / CONFIG).write_text("{}")
    result = evaluate(damaged, questions)
    assert result.exit_code != 0
    assert "train the draft again" in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()
