"""``draft train`` from a target's folder and a file of questions to a draft that is served."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from reason_spec.accelerator.answer_store import AnswerStore, StoredAnswer
from reason_spec.cli.draft_screens import TrainOptions, _vocabulary, parse_layers
from reason_spec.cli.main import app
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.weights import identify_model
from reason_spec.evaluation.records import LOCK, lock_folder
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.lab.drafts.student import Student
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.settings import EngineSettings
from reason_spec.suffix.tenant_file import StoreKey
from tests.engines.tiny_models import save_model

CPU = torch.device("cpu")


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


class KeptDraft(NamedTuple):
    config: dict[str, Any]
    weights: dict[str, torch.Tensor]


def kept_draft(kind: Literal["model", "head"], folder: Path) -> KeptDraft:
    if kind == "model":
        names = "pruned_draft.json", "layers.safetensors"
    else:
        names = "config.json", "model.safetensors"
    return KeptDraft(json.loads((folder / names[0]).read_text()), load_file(folder / names[1]))


def test_a_draft_is_trained_continued_and_loaded(arguments: list[str], tmp_path: Path) -> None:
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "Use it with --draft" in first.output
    assert "Training 1 layer (1) on" in first.output
    assert {path.name for path in (tmp_path / "draft").iterdir()} >= {
        "answers", "curve.jsonl", "curve.png", "layers.safetensors", "pruned_draft.json",
    }  # fmt: skip
    assert (Path(resolve_model("draft", str(tmp_path / "draft"))) / "config.json").exists()
    kept = json.loads((tmp_path / "draft" / "pruned_draft.json").read_text())["vocabulary"]
    questions = tmp_path / "questions.jsonl"
    questions.write_text(questions.read_text() + json.dumps({"question": "WHY WAS IT ZERO?"}) + "\n")
    again = CliRunner().invoke(app, [*arguments, "--hours", "0.0006", "--json"])
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout)
    assert found["best"]["num_tokens"] > 0
    assert len(found["best"]["accepted"]) == 8
    after = json.loads((tmp_path / "draft" / "pruned_draft.json").read_text())["vocabulary"]
    assert after == kept, "more questions have other frequent tokens"


def test_a_temperature_that_is_added_is_answered_at_beside_the_stored_answers(
    arguments: list[str], tmp_path: Path
) -> None:
    draft, questions = tmp_path / "draft", tmp_path / "questions.jsonl"
    only = CliRunner().invoke(app, [*arguments, "--temperature", "0.6", "--hours", "0", "--json"])
    assert json.loads(only.stdout)["num_answers"] == 6
    stored = (draft / "answers" / "results.jsonl").read_text()

    questions.write_text(questions.read_text() + json.dumps({"question": "WHY WAS IT ZERO?"}) + "\n")
    both = CliRunner().invoke(app, [*arguments, "--temperature", "0.6", "--temperature", "0", "--json"])
    assert both.exit_code == 0, both.output
    sampled = (draft / "answers" / "results.jsonl").read_text()
    assert sampled.startswith(stored)
    greedy = (draft / "answers" / "temperature-0.0" / "results.jsonl").read_text()
    texts = [[json.loads(line)["response"] for line in part.splitlines()] for part in (sampled, greedy)]
    assert list(map(len, texts)) == [7, 7]
    assert texts[0] != texts[1]
    assert list(json.loads(both.stdout)["accepted_at"]) == ["0", "0.6"]
    assert json.loads((draft / "pruned_draft.json").read_text())["temperatures"] == [0.0, 0.6]

    refused = " ".join(CliRunner().invoke(app, [*arguments, "--temperature", "0"]).output.split())
    assert "holds answers at temperature 0.6; give --temperature 0.6 as well" in refused


def test_a_head_is_trained_for_each_temperature_and_says_so(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, [*arguments, "--kind", "head", "--temperature", "0", "--temperature", "0.6"]
    )
    assert result.exit_code == 0, result.output
    for temperature in ("0", "0.6"):
        assert f"held-out answers at temperature {temperature}: 1: " in " ".join(result.output.split())
    assert json.loads((tmp_path / "draft" / "config.json").read_text())["temperatures"] == [0.0, 0.6]


def test_a_training_begins_anew_only_with_fresh_which_keeps_the_answers(
    arguments: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "draft"
    assert CliRunner().invoke(app, arguments).exit_code == 0
    answers, other = (folder / "answers" / "results.jsonl").read_text(), folder / "notes.txt"
    other.write_text("mine")

    refused = CliRunner().invoke(app, [*arguments, "--fresh", "--max-tokens", "13"])
    shown = " ".join(refused.output.split())
    assert "sampling.max_tokens was 12 and is now 13" in shown
    assert f"or delete {folder / 'answers'} to have them written anew." in shown
    assert (folder / "layers.safetensors").exists(), "nothing is deleted before the training begins"

    (folder / "checkpoint.pt").unlink()
    lost = CliRunner().invoke(app, arguments)
    assert "holds a draft without checkpoint.pt" in " ".join(lost.output.split())
    answered = CliRunner().invoke(app, [*arguments, "--hours", "0", "--json"])
    assert json.loads(answered.stdout)["num_answers"] == 6, "nothing is trained in no time"

    before = (folder / "curve.jsonl").read_text()
    anew = CliRunner().invoke(app, [*arguments, "--fresh", "--vocabulary", "90"])
    assert anew.exit_code == 0, anew.output
    assert len(json.loads((folder / "pruned_draft.json").read_text())["vocabulary"]) == 90
    assert not (folder / "curve.jsonl").read_text().startswith(before)
    assert (folder / "answers" / "results.jsonl").read_text() == answers
    assert other.exists()


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_training_that_continues_keeps_the_tokens_that_its_draft_predicts(
    kind: Literal["model", "head"], tmp_path: Path
) -> None:
    target, kept = str(save_model("llama", tmp_path / "target")), list(range(30, 130))
    if kind == "head":
        HeadStudent(target, target, kept, CPU).save(tmp_path)
    else:
        Student(target, target, (1,), kept, CPU).save(tmp_path)
    options = TrainOptions(kind, 1.0, 1, 100, "cross-entropy", 1, 1, "cpu", None, fresh=False)
    texts = [TrainingText((1, 2), (200,))]

    def chosen(options: TrainOptions) -> list[int] | None:
        return _vocabulary(texts, (), 272, options, tmp_path)

    frequent = [*range(99), 200]
    assert chosen(options) == kept
    assert chosen(replace(options, fresh=True)) == frequent
    assert chosen(replace(options, vocabulary=99)) == [*range(98), 200]
    assert chosen(replace(options, vocabulary=0)) is None


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("llama", ["--layers", "0,99"], "--layers names 99, and the target has 2 layers"),
        ("llama", ["--device", "nowhere"], "device 'nowhere' cannot be used"),
        ("gpt2", [], "has no list of layers like Llama's"),
        ("gpt2", ["--kind", "head"], "are not made like Llama's"),
        ("mixtral", [], "other names for its weights than its files, as for a mixture of experts"),
    ],
)
def test_a_training_that_must_fail_is_refused_before_the_target_answers(
    arguments: list[str], model: str, more: list[str], message: str, tmp_path: Path
) -> None:
    target = save_model(model, tmp_path / "other")
    result = CliRunner().invoke(app, [*arguments, "--target", str(target), *more])
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "draft").exists()


def test_a_phased_training_says_what_it_turns_to(arguments: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, [*arguments, "--objective", "phased", "--hours", "0.0006"])
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
        (["--temperature", "0", "--temperature", "-1"], "sampling.temperature"),
        (["--temperature", "0.6", "--temperature", "0.60"], "--temperature 0.6 is given 2 times; give it"),
        (["--temperature", "1", "--set", "sampling.temperature=0"], "sampling.temperature is given twice"),
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


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_training_begins_with_the_weights_layers_and_tokens_of_a_trained_draft(
    kind: Literal["model", "head"], arguments: list[str], tmp_path: Path
) -> None:
    first, second = tmp_path / "draft", tmp_path / "second"
    trained = CliRunner().invoke(app, [*arguments, "--kind", kind, "--vocabulary", "60"])
    assert trained.exit_code == 0, trained.output
    kept = kept_draft(kind, first)
    # In its least time a training measures after one batch, at a rate of almost nothing.
    short = [*arguments, "--kind", kind, "--output", str(second), "--hours", "1e-9", "--layers", "2"]
    started = CliRunner().invoke(app, [*short, "--start-from", str(first)])
    assert started.exit_code == 0, started.output
    found = kept_draft(kind, second)
    assert found.config == kept.config
    for name, weight in kept.weights.items():
        assert torch.allclose(found.weights[name].float(), weight.float(), atol=2e-3), name


@pytest.mark.parametrize(
    ("kind", "start", "expected"),
    [
        ("model", "target", "this is no draft model; give a folder of draft train"),
        ("head", "target", "this is no head; give a folder of draft train --kind head"),
        ("model", "models:smollm2-gsm8k-draft", "it drafts for models:smollm2-gsm8k, and --target is"),
        ("head", "models:smollm2-gsm8k-head", "it drafts for models:smollm2-gsm8k, and --target is"),
    ],
)
def test_a_draft_to_start_from_is_checked_before_the_target_answers(
    kind: str, start: str, expected: str, arguments: list[str], tmp_path: Path
) -> None:
    named = start if ":" in start else str(tmp_path / start)
    refused = CliRunner().invoke(app, [*arguments, "--kind", kind, "--start-from", named])
    assert expected in " ".join(refused.output.split())
    assert not (tmp_path / "draft" / "answers").exists()


def test_fresh_does_not_delete_the_draft_to_start_from(arguments: list[str], tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, [*arguments, "--fresh", "--start-from", str(tmp_path / "draft")])
    said = " ".join(f"{refused.exception or ''} {refused.output}".split())
    assert "would delete the draft that --start-from names" in said


def test_two_trainings_into_one_folder_are_refused(arguments: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    lock = lock_folder(folder)
    try:
        refused = CliRunner().invoke(app, arguments)
    finally:
        lock.release()
    said = " ".join(f"{refused.exception or ''} {refused.output}".split())
    assert "is in use by another run" in said
    assert not (folder / "layers.safetensors").exists()


def test_resume_needs_something_to_continue(arguments: list[str], tmp_path: Path) -> None:
    empty = CliRunner().invoke(app, [*arguments, "--resume"])
    assert empty.exit_code != 0
    assert "nothing to continue" in " ".join(str(empty.exception or "").split() + empty.output.split())
    both = CliRunner().invoke(app, [*arguments, "--resume", "--fresh"])
    assert both.exit_code != 0
    assert "--fresh" in both.output + str(both.exception or "")
    assert not (tmp_path / "draft").exists()


def test_problems_named_by_prompts_are_those_of_positional_files(
    arguments: list[str], tmp_path: Path
) -> None:
    command = [*arguments[:2], "--prompts", *arguments[2:], "--hours", "0"]
    missing = CliRunner().invoke(app, [*arguments, "--prompts", "no-such-file"])
    assert "no-such-file" in missing.output
    assert "does not exist" in missing.output
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, [*arguments, "--hours", "0", "--resume", "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["num_answers"] == 6


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
    Student(target, target, (1,), None, CPU).save(draft)
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


def test_a_draft_that_another_process_trains_is_not_adapted(served_draft: Path, tmp_path: Path) -> None:
    before = sorted(file.name for file in served_draft.iterdir())
    with lock_folder(served_draft):
        command = ["draft", "adapt", str(served_draft), "--from", str(tmp_path / "answers"), "--once"]
        result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "is in use by another run; wait for it, or name another folder with DRAFT" in " ".join(
        result.output.split()
    )
    assert {file.name for file in served_draft.iterdir()} - set(before) <= {LOCK}


def test_folders_without_draft_or_answers_are_refused(served_draft: Path, tmp_path: Path) -> None:
    answers = str(tmp_path / "answers")
    for draft, folder, message in (
        (tmp_path / "target", answers, "holds no draft; name a folder that 'draft train' made"),
        (served_draft, str(tmp_path), "there is no such file; name the folder of server.learn_folder"),
    ):
        result = CliRunner().invoke(app, ["draft", "adapt", str(draft), "--from", folder, "--once"])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())
