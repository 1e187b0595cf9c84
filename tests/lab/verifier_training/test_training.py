"""An encoder is trained, goes on where it was stopped, and is written as it was trained."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reason_spec.errors import DataError, SettingsError
from reason_spec.lab.verifier_training import training
from reason_spec.lab.verifier_training.encoder import PairClassifier, prune_encoder
from reason_spec.lab.verifier_training.export import calibrate, export_encoder, load_written, read_logits
from reason_spec.lab.verifier_training.hard_pairs import draw_hard_pairs
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.lab.verifier_training.recipe import split_by_problem, train_verifier
from reason_spec.lab.verifier_training.source import read_pairs
from reason_spec.lab.verifier_training.training import TrainingPlan, train_encoder
from reason_spec.shipped import shipped_weights
from reason_spec.verifiers.encoder import find_packaged_model
from reason_spec.verifiers.evidence import find_evidence
from reason_spec.verifiers.pair_encoder import TOKENIZER, PairEncoder, encode_pair, load_model
from tests.cli_runner import fail, succeed

NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Hugo")


def solutions(a: int, b: int) -> dict[str, str]:
    name, other = NAMES[a % 6], NAMES[(a + 1) % 6]
    return {
        "one": f"First, {name} has {a} boxes of {b} pens: {a} * {b} = {a * b} pens.\n\n"
        f"Then {other} takes 2 pens from {name}: {a * b} - 2 = {a * b - 2} pens.",
        "two": f"{name} has \\({a} \\times {b} = {a * b}\\) pens in the boxes.\n\n"
        f"As {other} takes 2, {name} still has {a * b} - 2 = {a * b - 2} pens.",
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solutions of two writers to 24 problems."""
    path = tmp_path_factory.mktemp("solutions") / "solutions.jsonl"
    lines = [
        {
            "id": n,
            "question": f"Boxes of {n + 5} pens. How many are left?",
            "solutions": solutions(n + 3, n + 5),
        }
        for n in range(24)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of MiniLM."""
    folder = tmp_path_factory.mktemp("start")
    prune_encoder(find_packaged_model(), folder, [0])
    return folder


def test_pruned_word_pieces_still_write_any_word(start: Path) -> None:
    from tokenizers import Tokenizer

    small, whole = (Tokenizer.from_file(str(f / TOKENIZER)) for f in (start, find_packaged_model()))
    assert (small.padding, small.truncation) == (None, None)
    assert small.get_vocab_size() < 0.6 * whole.get_vocab_size()
    for text in ("thermodynamically", "Patchy's zebrafish × \\frac{3}{4}", "a [SEP] b"):
        assert "[UNK]" not in small.encode(text).tokens
    frequent = "the number of people in each group"
    assert small.encode(frequent, add_special_tokens=False).tokens == frequent.split()
    assert small.token_to_id("[SEP]") == whole.token_to_id("[SEP]")


def test_a_stopped_training_goes_on_to_the_same_weights(
    file: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_SAVE_STEPS", 2)
    pairs = read_pairs([file])[:100]

    def stop(step: int, _: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_encoder(start, pairs, tmp_path / "stopped", TrainingPlan(), stop)
    steps: list[int] = []
    again = train_encoder(
        start, pairs, tmp_path / "stopped", TrainingPlan(), lambda step, _: steps.append(step)
    )
    assert steps[0] == 3
    # A kill may leave a checkpoint without its state, which is written last.
    last = max((tmp_path / "stopped").glob("**/checkpoint-*"), key=lambda path: int(path.name[11:]))
    (last / "trainer_state.json").unlink()
    steps.clear()
    train_encoder(start, pairs, tmp_path / "stopped", TrainingPlan(), lambda step, _: steps.append(step))
    assert steps
    assert (last / "trainer_state.json").exists()
    whole = train_encoder(start, pairs, tmp_path / "whole", TrainingPlan())
    for one, other in zip(again.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_what_is_written_gives_nearly_the_logits_that_were_trained(
    file: Path, start: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = PairClassifier(start)
    export_encoder(model, start / TOKENIZER, tmp_path)
    pairs = read_pairs([file])[:50]
    written = read_logits(tmp_path, pairs)
    tokenizer, _ = load_model(tmp_path)
    expected = []
    for pair in pairs:
        given = encode_pair(tokenizer, pair.question, pair.a, pair.b)
        ids, types = torch.tensor([given.ids]), torch.tensor([given.types])
        with torch.inference_mode():
            expected.append(float(model(ids, torch.ones_like(ids), types)))
    # Weights in 8 bits.
    assert np.abs(written - np.array(expected)).max() < 0.1 * np.std(expected) + 0.02


def test_a_written_encoder_can_be_trained_further(start: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, again = PairClassifier(start), PairClassifier(start)
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    export_encoder(model, start / TOKENIZER, tmp_path)
    load_written(again, tmp_path)
    for (name, one), other in zip(model.named_parameters(), again.parameters(), strict=True):
        # Seven bits for the range of a column.
        assert float((one - other).abs().max()) <= float(one.abs().max()) / 100, name
    with pytest.raises(SettingsError, match="another shape"):
        load_written(again, shipped_weights("semantic"))
    with pytest.raises(SettingsError, match="holds no encoder"):
        load_written(again, tmp_path / "none")


def test_no_problem_is_in_two_parts(file: Path) -> None:
    parts = split_by_problem(read_pairs([file]))
    problems = [{pair.problem for pair in part} for part in parts]
    assert not problems[0] & problems[1]
    assert not (problems[0] | problems[1]) & problems[2]
    with pytest.raises(DataError, match="too few"):
        split_by_problem([StepPair("1", "", "", "a", "b", True, "given", ("", ""))])


def test_pairs_of_one_question_are_of_one_problem_whatever_their_ids_are(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pair = {"a": "It is 5.", "b": "So 5.", "same": True}
    lines = [{**pair, "id": 1, "question": "Q?"}, {**pair, "id": 2, "question": "Q?"}, {**pair, "id": None}]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**pair, "id": None}]))
    assert len({made.problem for made in read_pairs([path])}) == 3


def test_pairs_that_numbers_decide_or_that_are_too_long_do_not_calibrate(start: Path, tmp_path: Path) -> None:
    def pairs(changed: str) -> list[StepPair]:
        steps = (("So Ana has 5.", True), (changed, False))
        return [
            StepPair(str(n), "?", "", "Ana has 5 pens.", step, same, "given", ("", ""))
            for n in range(9)
            for step, same in steps
        ]

    with pytest.raises(DataError, match="the part for calibration"):
        train_verifier(pairs("So Ana has 6."), tmp_path / "out", TrainingPlan(), start=start)
    assert not (tmp_path / "out").exists()
    export_encoder(PairClassifier(start).eval(), start / TOKENIZER, tmp_path)
    with pytest.raises(DataError, match="9 are too long"):
        calibrate(tmp_path, pairs("So Ana has 5 of the pens. " * 90), 0.1)


def test_a_trained_folder_is_used_by_the_verifier(file: Path, start: Path, tmp_path: Path) -> None:
    found = train_verifier(read_pairs([file]), tmp_path / "out", TrainingPlan(0.3), start=start)
    assert found.num_same > 0
    assert found.num_changed > 0
    assert 0.5 <= found.calibration.threshold <= 1
    with pytest.raises(SettingsError, match="differs in epochs"):
        train_verifier(read_pairs([file]), tmp_path / "out", TrainingPlan(0.4), start=start)
    others = [replace(pair, question="Others?") for pair in read_pairs([file])]
    with pytest.raises(SettingsError, match="differs in pairs"):
        train_verifier(others, tmp_path / "out", TrainingPlan(0.3), start=start)
    encoder = PairEncoder(tmp_path / "out")
    assert encoder.calibration == found.calibration
    again = train_verifier(
        read_pairs([file]), tmp_path / "again", TrainingPlan(0.0), trained=tmp_path / "out"
    )
    assert again == replace(found, num_trained=0)
    in_place = train_verifier(
        read_pairs([file]), tmp_path / "out", TrainingPlan(0.0), trained=tmp_path / "out"
    )
    assert in_place == again
    with pytest.raises(SettingsError, match="trained encoder"):
        train_verifier(read_pairs([file]), tmp_path / "none", TrainingPlan(0.0))

    with pytest.raises(SettingsError, match="trained encoder"):
        train_verifier(read_pairs([file]), tmp_path / "none", TrainingPlan(hard_pairs=9), start=start)

    async def probability() -> float | None:
        await encoder.start()
        try:
            return await encoder.probability("?", "Ana has 5 pens.", "So Ana has 5.")
        finally:
            await encoder.close()

    assert asyncio.run(probability()) is not None


def test_pairs_that_are_wrong_are_drawn_more_often(file: Path, start: Path, tmp_path: Path) -> None:
    pairs = read_pairs([file])
    export_encoder(PairClassifier(start).eval(), start / TOKENIZER, tmp_path)
    calibration = calibrate(tmp_path, pairs, 0.1)
    scored: list[tuple[int, int]] = []
    drawn = draw_hard_pairs(pairs, tmp_path, 1001, 0, lambda *done: scored.append(done))
    assert scored[-1] == (len(pairs), len(pairs))
    assert sum(pair.same for pair in drawn) == 500
    assert len(drawn) == 1001

    def mean_mistake(of: list[StepPair]) -> float:
        logits = read_logits(tmp_path, of)
        return statistics.fmean(
            abs(
                pair.same
                - calibration.probability(float(logit), find_evidence(pair.a, pair.b, pair.question))
            )
            for pair, logit in zip(of, logits, strict=True)
        )

    for same in (True, False):
        of_label = [pair for pair in drawn if pair.same is same]
        assert mean_mistake(of_label) > 1.05 * mean_mistake([pair for pair in pairs if pair.same is same])
    assert drawn == draw_hard_pairs(pairs, tmp_path, 1001, 0)
    with pytest.raises(SettingsError, match="both kinds"):
        draw_hard_pairs([pair for pair in pairs if pair.same], tmp_path, 9, 0)


def test_the_command_trains_and_bad_lines_are_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = succeed("verifier", "train", str(file), "--output", "out", "--epochs", "0.02", "--json")
    assert json.loads(said.stdout)["num_same"] > 0
    asked = succeed(
        "verify",
        str(pairs_file()),
        "--verifier",
        "semantic",
        "--output",
        "v.jsonl",
        "--set",
        "verifier.semantic_model=out",
    )
    assert "1 pair" in asked.stdout + asked.stderr
    Path("bad.jsonl").write_text('{"a": "x", "b": "y", "same": "yes"}\n')
    assert "bad.jsonl, line 1: field 'same'" in fail("verifier", "train", "bad.jsonl", "--output", "o")
    assert "0 pairs" in fail("verifier", "train", "bad.jsonl", "--output", "o", "--skip-bad")
    Path("few.jsonl").write_text('{"a": "x", "b": "y", "same": true}\n')
    assert "too few" in fail("verifier", "train", "few.jsonl", "--output", "o")
    assert "'nowhere' holds no encoder" in fail(
        "verifier", "train", str(file), "--output", "o", "--start", "nowhere"
    )
    Path("taken").write_text("")
    assert "taken/o: cannot be written" in fail("verifier", "train", str(file), "--output", "taken/o")
    for option, level in (("--limit", "step"), ("--risk", "token")):
        message = fail(
            "verifier",
            "train",
            str(file),
            "--output",
            "o",
            "--level",
            level,
            option,
            "0.1" if level == "token" else "1",
        )
        assert f"{option} is of --level" in message


def pairs_file() -> Path:
    path = Path("pairs.jsonl")
    path.write_text('{"a": "Ana has 5 pens.", "b": "So Ana has 5."}\n')
    return path
