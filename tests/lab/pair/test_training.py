"""Training: repeatable, and growing without a jump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reason_spec.lab.pair import data
from reason_spec.lab.pair.data import CURRICULUM, FLAW, FLAWED, NOT_JUDGED, SOUND, Stage, make_pool, stage_at
from reason_spec.lab.pair.optimizer import orthogonalize, trapezoid
from reason_spec.lab.pair.recipe import Recipe
from reason_spec.lab.pair.train import Trainer, main
from reason_spec.pair.model import append_new_layers, deepen, load_model, new_model
from reason_spec.pair.tokenizer import END_TOKEN, build_tokenizer
from tests.pair.tiny import TINY

GROWING = replace(TINY, layers=4, judge_layers=1)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    stages = tuple(replace(stage, batch_tokens=512) for stage in CURRICULUM)
    monkeypatch.setattr(data, "CURRICULUM", stages)
    monkeypatch.setattr(data, "_JUDGING_BATCH_TOKENS", 512)
    monkeypatch.setattr(data, "POOL_BATCHES", 2)
    monkeypatch.setattr(data, "_EXAMPLES_AT_ONCE", 8)


def recipe(tokens: int = 16_000) -> Recipe:
    return Recipe("target", GROWING, seed=3, tokens=tokens, judge_at=0.4, settle_at=0.6, grow_at=0.8)


def trainer(tokens: int = 16_000) -> Trainer:
    return Trainer(recipe(tokens), "cpu", compiled=False)


def weights(found: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in found.model.state_dict().items()}


def assert_equal_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_same_recipe_gives_the_same_weights() -> None:
    first, second = trainer(), trainer()
    for run in (first, second):
        run.run()
    assert_equal_weights(weights(first), weights(second))


@pytest.mark.parametrize("num_pools", [1, 100])
def test_a_model_is_written_at_its_full_depth(tmp_path: Path, num_pools: int) -> None:
    run = trainer()
    while run.share_done < 1 and run.num_pools < num_pools:
        run.train_pool()
    run.save(tmp_path / "target")
    loaded = load_model(tmp_path / "target")
    assert loaded.config.num_hidden_layers == GROWING.layers
    tokens = torch.arange(5, 25)[None]
    for parameter in run.model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    torch.testing.assert_close(loaded(tokens).logits, run.model(tokens).logits)


def test_deepening_does_not_change_what_a_model_computes() -> None:
    model = new_model(TINY, build_tokenizer(), seed=1, layers=2).eval()
    tokens = torch.arange(5, 25)[None]
    before = model(tokens).logits
    names = deepen(model, 6)
    torch.testing.assert_close(model(tokens).logits, before)
    assert len(model.model.layers) == 6
    assert names["model.layers.1.mlp.up_proj.weight"] == "model.layers.3.mlp.up_proj.weight"
    assert len(set(names.values())) == len(names)


def test_new_layers_learn_from_their_first_step() -> None:
    model = new_model(replace(TINY, start_layers=1), build_tokenizer(), seed=1)
    deepen(model, 2)
    model(torch.arange(5, 25)[None]).logits.square().sum().backward()
    gradient = model.model.layers[1].mlp.down_proj.weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_the_loss_falls() -> None:
    run = trainer(tokens=60_000)
    first = run.train_pool()
    for _ in range(25):
        last = run.train_pool()
    assert last < first - 1


def test_only_the_solution_is_learnt() -> None:
    tokenizer = build_tokenizer()
    end = tokenizer.convert_tokens_to_ids(END_TOKEN)
    batches = make_pool(tokenizer, 0, 0, 0.9, "target")
    assert sum(len(batch.labels) for batch in batches) > 0
    for batch in batches:
        rows = zip(batch.inputs.tolist(), batch.labels.tolist(), batch.weights.tolist(), strict=True)
        for inputs, labels, weights in rows:
            learned = [i for i, weight in enumerate(weights) if weight > 0]
            assert [inputs[i + 1] for i in learned] == [labels[i] for i in learned]
            assert labels[learned[-1]] == end
            prompt = tokenizer.decode(inputs[: learned[0] + 1])
            assert prompt.endswith("<|im_start|>assistant\n") or "Wait, " in tokenizer.decode(inputs)


def test_rows_beside_solutions_come_late_and_are_a_small_share() -> None:
    tokenizer = build_tokenizer()

    def answers(progress: float) -> list[str]:
        batches = [batch for pool in range(40) for batch in make_pool(tokenizer, 0, pool, progress, "target")]
        rows = [
            [token for token, weight in zip(labels, weights, strict=True) if weight > 0]
            for batch in batches
            for labels, weights in zip(batch.labels.tolist(), batch.weights.tolist(), strict=True)
        ]
        decoded: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
        return decoded

    late, early = answers(0.9), answers(0.1)
    scores = sum(text.isdigit() for text in late)
    judgements = sum("aligned" in text for text in late)
    corrected = sum("Wait, " in text for text in late)
    checked = sum("Let me check" in text for text in late)
    assert 0 < scores < 0.08 * len(late)
    assert 0 < judgements < 0.06 * len(late)
    assert 0 < corrected < 0.1 * len(late)
    assert 0 < checked < 0.06 * len(late)
    assert not any(text.isdigit() or "aligned" in text or "Wait, " in text for text in early)


def test_what_is_judged_is_flawed_from_the_first_wrong_token_on() -> None:
    tokenizer = build_tokenizer()
    found: list[str] = []
    batches = [
        batch for pool in range(8) for batch in make_pool(tokenizer, 0, pool, 0.9, "target", "judging")
    ]
    for batch in batches:
        for inputs, flaws in zip(batch.inputs.tolist(), batch.flaws.tolist(), strict=True):
            for place in (i for i, flaw in enumerate(flaws) if flaw == FLAW):
                assert flaws[place - 1] == SOUND, "what stands before a mistake is judged and sound"
                assert flaws[place + 1] == FLAWED, "what follows a mistake stays flawed"
                found.append(tokenizer.decode(inputs[place]))
            pairs = zip(inputs, flaws, strict=True)
            assert {flaw for token, flaw in pairs if token == tokenizer.pad_token_id} <= {NOT_JUDGED}
    # A mistake shows in a number or a sign, or in what is carried.
    shown = [text for text in found if text.strip(" :,.")[:1] in (*"0123456789+-*/",)]
    assert len(shown) > 0.8 * len(found) > 10


def test_new_layers_learn_to_judge_before_all_go_on_together() -> None:
    """At a trunk rate of zero only the new ones move while they learn to judge, and all do after it."""
    slow = replace(recipe(48_000), trunk_rate=0.0)
    run = Trainer(slow, "cpu", compiled=False)
    depths: list[int] = []
    moved: dict[str, set[str]] = {"solving": set(), "judging": set(), "settling": set()}
    before = weights(run)
    while run.share_done < 1:
        part = run.phase
        run.train_pool()
        after = weights(run)
        if depths and depths[-1] == run.num_layers:
            moved[part] |= {name for name in before if not torch.equal(before[name], after[name])}
        depths.append(run.num_layers)
        before = after
    assert list(dict.fromkeys(depths)) == [1, 2, 4]
    assert moved["judging"]
    assert all(name.startswith(("model.layers.1.", "model.norm.")) for name in moved["judging"])
    assert {name for name in moved["settling"] if name.startswith("model.layers.0.")}
    assert run.flaw_head.weight.abs().sum() > 0


def test_layers_added_to_judge_change_nothing_until_they_are_trained() -> None:
    model = new_model(TINY, build_tokenizer(), seed=1, layers=2).eval()
    tokens = torch.arange(5, 25)[None]
    before = model(tokens).logits
    append_new_layers(model, 3)
    torch.testing.assert_close(model(tokens).logits, before)
    assert model.config.num_hidden_layers == 3
    model(tokens).logits.square().sum().backward()
    gradient = model.model.layers[2].mlp.down_proj.weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_a_pool_depends_on_its_arguments_alone() -> None:
    tokenizer = build_tokenizer()
    first, again = (make_pool(tokenizer, 5, 2, 0.3, "draft") for _ in range(2))
    assert first
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    other = make_pool(tokenizer, 5, 3, 0.3, "draft")
    assert not all(
        a.inputs.shape == b.inputs.shape and torch.equal(a.inputs, b.inputs)
        for a, b in zip(first, other, strict=False)
    )


def test_measuring_in_between_does_not_change_the_training() -> None:
    undisturbed = make_pool(build_tokenizer(), 0, 1, 0.5, "target")
    tokenizer = build_tokenizer()
    tokenizer(["Ana has 3 cards.", "Ana has"], padding=True, padding_side="left")
    disturbed = make_pool(tokenizer, 0, 1, 0.5, "target")
    assert disturbed
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(undisturbed, disturbed, strict=True))


def test_the_curriculum_covers_the_whole_training() -> None:
    assert [stage.until for stage in CURRICULUM] == sorted(stage.until for stage in CURRICULUM)
    assert stage_at(0.0).operations == (1, 2)
    final: Stage = stage_at(1.0)
    assert final.operations == (1, 8)


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 12, 40), (2, 40, 12)])
def test_orthogonalised_steps_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_the_learning_rate_falls_to_a_tenth_before_each_growth_and_to_nothing_after_the_last() -> None:
    parts = (0.0, 0.005, 0.01, 0.4, 0.8, 0.9999)
    falls = pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.1], abs=1e-3)
    grown = Recipe.of("target")
    assert [grown.rate_at(p * grown.grow_at) for p in parts] == falls
    assert [grown.rate_at(p) for p in (grown.grow_at, 1.0)] == pytest.approx([0.1, 0.0])
    assert [grown.layers_at(p) for p in (0.0, grown.judge_at, grown.grow_at, 1.0)] == [4, 4, 24, 24]
    judge = Recipe.of("judge")
    assert [judge.rate_at(p * judge.judge_at) for p in parts] == falls
    length = judge.settle_at - judge.judge_at
    assert [judge.rate_at(judge.judge_at + p * length) for p in parts] == falls
    last = [judge.rate_at(p) for p in (judge.settle_at, judge.grow_at, 1.0)]
    assert last == pytest.approx([0.3, 0.1, 0.0])
    assert [judge.layers_at(p) for p in (0.0, judge.judge_at, judge.grow_at, 1.0)] == [4, 8, 8, 8]
    straight = Recipe.of("draft")
    assert [straight.rate_at(progress) for progress in (0.0, 0.5, 0.8, 1.0)] == pytest.approx(
        [0.0, 1.0, 0.5, 0.0]
    )


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    rates = [trapezoid(progress, 0.1, 0.25) for progress in (0.0, 0.05, 0.1, 0.5, 0.75, 0.875, 1.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0])


def test_a_budget_that_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path), "--tokens", "-5"])
    assert stopped.value.code == 2
    assert "--tokens must be above 0" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path), "--tokens", "10", "--device", "cuda"])
    assert stopped.value.code == 2
    assert "use one of: cpu" in capsys.readouterr().err
