"""``draft train`` from a target's folder and a file of questions to a draft that is served."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from reason_spec.accelerator.answer_store import AnswerStore, StoredAnswer
from reason_spec.cli.draft_screens import parse_layers
from reason_spec.cli.main import app
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.weights import identify_model
from reason_spec.lab.drafts.student import Student
from reason_spec.settings import EngineSettings
from reason_spec.suffix.tenant_file import StoreKey
from tests.engines.tiny_models import save_model


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = save_model("llama", tmp_path / "target")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": f"How many is {n}?"}) + "\n" for n in range(6)))
    return [
        "draft", "train", str(questions), "--target", str(target), "--max-tokens", "12", "--prompt", "plain",
        "--output", str(tmp_path / "draft"), "--hours", "0.0003", "--layers", "1", "--vocabulary", "100",
    ]  # fmt: skip


def test_a_draft_is_trained_continued_and_loaded(arguments: list[str], tmp_path: Path) -> None:
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "Use it with --draft" in first.output
    assert "Training 1 layer (1) on" in first.output
    assert {path.name for path in (tmp_path / "draft").iterdir()} >= {
        "answers", "curve.jsonl", "curve.png", "layers.safetensors", "pruned_draft.json",
    }  # fmt: skip
    assert (Path(resolve_model("draft", str(tmp_path / "draft"))) / "config.json").exists()
    again = CliRunner().invoke(app, [*arguments, "--json"])
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout)
    assert found["best"]["num_tokens"] > 0
    assert len(found["best"]["accepted"]) == 8
    other = tmp_path / "draft" / "notes.txt"
    other.write_text("mine")
    anew = CliRunner().invoke(app, [*arguments, "--fresh", "--hours", "0", "--json"])
    assert anew.exit_code == 0, anew.output
    assert json.loads(anew.stdout)["num_answers"] == 6, "nothing is trained in no time"
    assert other.exists()
    assert not (tmp_path / "draft" / "layers.safetensors").exists()


def test_a_phased_training_says_what_it_turns_to(arguments: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, [*arguments, "--objective", "phased", "--hours", "0.001"])
    assert found.exit_code == 0, found.output
    assert "Now on-policy" in found.output
    lines = (tmp_path / "draft" / "curve.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["objective"] == "cross-entropy"
    assert json.loads(lines[-1])["objective"] == "on-policy"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layers", "x"], "--layers is 'x'; give a number"),
        (["--layers", "0"], "a draft has 1 layer or more"),
        (["--layers", "1,0"], "layers must ascend"),
        (["--objective", "mse"], "'mse' is not one of"),
        (
            ["--set", "target.kind=remote", "--set", "target.remote.base_urls=[http://localhost:1/v1]"],
            "the training reads the target's weights: use --engine torch or vllm",
        ),
    ],
)
def test_impossible_options_are_refused_before_anything_runs(
    arguments: list[str], more: list[str], message: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [*arguments, *more])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "draft").exists()


def test_a_head_is_trained_and_drafts_for_its_target(arguments: list[str], tmp_path: Path) -> None:
    over_the_target = [*arguments, "--output", str(tmp_path / "target"), "--fresh"]
    kept = CliRunner().invoke(app, over_the_target)
    assert "holds another model" in " ".join(kept.output.split())
    assert (tmp_path / "target" / "model.safetensors").exists()
    refused = CliRunner().invoke(app, [*arguments, "--kind", "head", "--objective", "kl"])
    assert "a head is trained on its own drafts" in " ".join(refused.output.split())
    trained = CliRunner().invoke(app, [*arguments, "--kind", "head"])
    assert trained.exit_code == 0, trained.output
    assert "Training a head on" in trained.output
    target, head = str(tmp_path / "target"), str(tmp_path / "draft")
    common = ["solve", "How many?", "--target", target, "--prompt", "plain", "--max-tokens", "12", "--json"]
    own = CliRunner().invoke(app, [*common, "--strategy", "autoregressive"])
    drafted = CliRunner().invoke(app, [*common, "--draft", head])
    assert drafted.exit_code == 0, drafted.output
    assert json.loads(drafted.stdout)["response"] == json.loads(own.stdout)["response"]


def test_layers_are_a_number_or_a_list() -> None:
    assert parse_layers("4") == 4
    assert parse_layers("0,9,29") == (0, 9, 29)


@pytest.fixture
def served_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A draft, and in ``answers`` what a server stored of its target."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The priority of this process cannot be raised again.
    monkeypatch.setattr(os, "nice", lambda increment: increment)
    target = str(save_model("llama", tmp_path / "target"))
    draft = tmp_path / "draft"
    draft.mkdir()
    Student(target, target, (1,), None, torch.device("cpu")).save(draft)
    key = StoreKey(
        identify_model("target", EngineSettings(model=target)), load_tokenizer(target).tokenizer_id
    )
    store = AnswerStore.create(tmp_path / "answers", key)
    for number in range(40):
        answer = tuple(range(61 + number, 73 + number))
        store.add(StoredAnswer((60 + number,), answer, "ana", num_accepted=1, num_rejected=1))
    store.close()
    return draft


def test_a_draft_is_adapted_to_what_a_server_stored(served_draft: Path, tmp_path: Path) -> None:
    command = ["draft", "adapt", str(served_draft), "--from", str(tmp_path / "answers"), "--once"]
    result = CliRunner().invoke(app, [*command, "--minutes", "0.05"])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "Training version 0 on 30 answers (40 new ones, of whose draft tokens 50% were accepted)" in shown
    assert "10 held out" in shown
    assert "tokens a pass" in shown
    assert "Waiting: " in shown


def test_folders_without_draft_or_answers_are_refused(served_draft: Path, tmp_path: Path) -> None:
    answers = str(tmp_path / "answers")
    for draft, folder, message in (
        (tmp_path / "target", answers, "holds no draft; name a folder that 'draft train' made"),
        (served_draft, str(tmp_path), "there is no such file; name the folder of server.learn_folder"),
    ):
        result = CliRunner().invoke(app, ["draft", "adapt", str(draft), "--from", folder, "--once"])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
