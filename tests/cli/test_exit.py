"""`reason-spec exit` and `tune exit`: from stored answers to a policy, its replay and its threshold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_runner import fail, succeed
from tests.lab.exit.answers import write_answers, write_solved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exit")
    write_answers(folder / "answers.jsonl", 48)
    write_answers(folder / "others.jsonl", 48, "Ben")
    write_solved(folder / "solved.jsonl", 60)
    succeed(
        "exit", "train", str(folder / "answers.jsonl"), "--solved", str(folder / "solved.jsonl"),
        "--loss", "5", "--output", str(folder / "policy.json"),
    )  # fmt: skip
    return folder


def test_eval_replays_with_a_trained_policy(folder: Path) -> None:
    out = folder / "report.json"
    arguments = ["exit", "eval", str(folder / "others.jsonl"), "--policy", str(folder / "policy.json")]
    result = succeed(*arguments, "--json", str(out), "--png", str(folder / "curve.png"))
    assert "wordy" in result.stdout
    assert "was trained" not in result.stderr
    report = json.loads(out.read_text())
    assert report["n"] == 96
    assert 0 < report["tokens_kept"] < 1
    assert report["accuracy_before"] == pytest.approx(44 / 48)
    assert report["loss_upper95"] >= report["loss"]
    assert report["groups"]["brief"]["n"] == 48
    assert (folder / "curve.png").stat().st_size > 1000
    succeed(*arguments, "--threshold", "1", "--json", str(out), "--group", "brief")
    report = json.loads(out.read_text())
    assert (report["n"], report["tokens_kept"], report["lost"]) == (48, 1.0, 0)


def test_eval_uses_the_shipped_policy_by_default(folder: Path) -> None:
    assert "tokens kept" in succeed("exit", "eval", str(folder / "answers.jsonl")).stdout


def test_tune_exit_writes_the_policy_with_the_chosen_threshold(folder: Path) -> None:
    arguments = ["tune", "exit", str(folder / "others.jsonl"), "--policy", str(folder / "policy.json")]
    out = folder / "tuned.json"
    found = json.loads(succeed(*arguments, "--loss", "20", "--output", str(out), "--json").stdout)
    assert found["loss_class"] == "shortened"
    assert json.loads(out.read_text())["threshold"] == found["threshold"]
    assert "loses at most 20 points of answers" in succeed(*arguments, "--loss", "20").stdout
    assert "48 problems with known answers are too few" in fail(*arguments, "--loss", "1")


def test_errors_name_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n')
    assert "bad.jsonl, line 1: field 'response' is missing" in fail("exit", "eval", str(path))
    output = str(tmp_path / "p.json")
    assert "bad.jsonl, line 1" in fail("exit", "train", str(path), "--output", output)
    assert "no exit policy can be read" in fail("exit", "eval", str(path), "--policy", output)


def test_answers_that_taught_a_policy_are_refused_for_its_threshold_and_warned_of_in_its_replay(
    folder: Path,
) -> None:
    arguments = [str(folder / "answers.jsonl"), "--policy", str(folder / "policy.json")]
    seen = "answers.jsonl: the policy was trained on answers to 48 of the 48 questions"
    assert seen in fail("tune", "exit", *arguments, "--loss", "20")
    assert seen in " ".join(succeed("exit", "eval", *arguments).stderr.split())


def ask(folder: Path, *more: str) -> list[str]:
    """Arguments of a replay with a scripted model, which answers every trial with 7."""
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": {"apples are left?": "{7}\n\n" * 40}}))
    config = folder / "scripted.yaml"
    config.write_text(json.dumps({"target": {"kind": "scripted", "model": str(script)}}))
    return ["exit", "eval", str(folder / "others.jsonl"), "--config", str(config), *more]


def test_eval_asks_a_model_for_the_trial_answers_of_a_rule(folder: Path) -> None:
    out = folder / "asked.json"
    result = succeed(*ask(folder, "--rule", "deer", "--limit", "10", "--json", str(out)))
    assert "wordy" in result.stdout
    report = json.loads(out.read_text())
    assert (report["rule"], report["n"], report["groups"]["brief"]["n"]) == ("deer", 10, 5)
    assert 0 < report["num_trials"] <= 10
    assert report["num_trial_tokens"] > 0
    assert 0 < report["tokens_kept"] < 1
    assert report["lost"] > 0
    assert report["accuracy_after"] < report["accuracy_before"]
    assert report["loss_upper95"] >= report["loss"]


def test_eval_refuses_what_a_rule_does_not_use(folder: Path, tmp_path: Path) -> None:
    answers = str(folder / "others.jsonl")
    assert "--target is for rules that ask a model" in fail("exit", "eval", answers, "--target", "embedded")
    unnamed = fail("exit", "eval", answers, "--rule", "deer")
    assert "name the one that wrote the answers with --target" in unnamed
    for name, value in (("--png", "curve.png"), ("--threshold", "0.5"), ("--policy", "policy.json")):
        assert f"{name} " in fail(*ask(folder, "--rule", "dynasor", name, value))
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"id": "a7", "question": "q", "answer": "1", "response": "</think>1"}) + "\n")
    message = fail("exit", "eval", str(empty), *ask(folder, "--rule", "probes")[3:])
    assert "empty.jsonl: the response of answer 'a7' has no thinking" in message
