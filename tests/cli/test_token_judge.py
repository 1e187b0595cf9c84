"""`reason-spec verifier train --level token` on the demonstration pair: labels, resumed and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_runner import fail

TRAIN = (
    "verifier", "train", "--level", "token", "--output", "judge", "--labels", "2", "--max-tokens", "256",
    "--set", "strategy.planner=false", "--set", 'load_control.use="off"',
)  # fmt: skip


def test_labels_are_kept_and_a_second_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Give more problems" in fail(*TRAIN, "--generate", "2")
    before = Path("judge/labels.jsonl").read_text()
    lines = [json.loads(line) for line in before.splitlines()]
    assert len(lines) == 2
    for line in lines:
        drafts = line["drafts"]
        assert len(drafts["labels"]) <= 2
        assert all(drafts["answer"][place] != drafts["drafted"][place] for place, _ in drafts["labels"])
    fail(*TRAIN, "--generate", "3")
    assert Path("judge/labels.jsonl").read_text().startswith(before)
    assert "holds labels with other" in fail(*TRAIN, "--generate", "3", "--prompt", "boxed")


def test_problems_without_answers_are_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"id": "a", "question": "How many are 3 and 4?"}\n')
    assert "Give more problems" in fail(*TRAIN, "questions.jsonl")
    assert len(Path("judge/labels.jsonl").read_text().splitlines()) == 1


def test_a_training_of_steps_needs_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "needs FILES" in fail("verifier", "train", "--output", "judge")
