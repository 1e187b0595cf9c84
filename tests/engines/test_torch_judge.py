"""The judge of draft tokens: it reads the target's state at the token, and decides alone what is accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.torch import products
from reason_spec.engines.torch.judge import WEIGHTS, JudgeWeights, attach_judge
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.errors import EngineError
from reason_spec.lab.verifier_training.token_labels import LabelledDrafts
from reason_spec.lab.verifier_training.token_training import _StateReader
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import TorchSettings
from reason_spec.types import Acceptance, NoiseKey, Prefix, Sampling
from tests.engines.tiny_models import LENGTH, prompt, save_model, spoiled, write

HIDDEN = 32
JUDGE = Acceptance("judge", 0.5)


@pytest.fixture(params=["fused", "module", "packed"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Model]:
    """The output layer of a real model is large enough to be packed; then its weight holds no values."""
    packed = request.param == "packed"
    if packed:
        monkeypatch.setattr(products, "MIN_PACKED", 1)
        if products.try_packing(torch.zeros(HIDDEN, HIDDEN), None) is None:
            pytest.skip("this processor packs no weights")
    folder = str(save_model("llama", tmp_path / "target"))
    layers = TorchSettings(layers="fused" if packed else request.param)
    model = load_model(EngineSettings(model=folder, cache_tokens=2048, torch=layers, device="cpu"))
    assert isinstance(model.module.get_output_embeddings(), products.PackedLinear) == packed
    return folder, model


def stored(folder: Path, weight: torch.Tensor, bias: float = 0.0) -> Path:
    folder.mkdir(exist_ok=True)
    JudgeWeights(weight, torch.tensor(bias)).save(folder)
    return folder


def scheduler_of(target: tuple[str, Model], judge: Path) -> Scheduler:
    folder, model = target
    # A kept prediction would choose the first token without a pass, so without a draft.
    return Scheduler(
        model,
        load_tokenizer(folder, None),
        num_slots=2048,
        kept_prediction_bytes=0,
        debug=True,
        judge=attach_judge(model, judge),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_judge_that_accepts_all_takes_the_hint_and_one_that_accepts_none_is_exact(
    target: tuple[str, Model], temperature: float, tmp_path: Path
) -> None:
    plain_request = EngineRequest(
        Prefix(prompt(0)), LENGTH, sampling=Sampling(temperature, noise=NoiseKey(2))
    )
    folder, model = target
    plain = write(Scheduler(model, load_tokenizer(folder, None), num_slots=2048), plain_request)
    hint = spoiled(plain.tokens, 3)[:10]
    drafted = replace(plain_request, hint=hint, acceptance=JUDGE)
    taken = write(scheduler_of(target, stored(tmp_path / "all", torch.zeros(HIDDEN), 9.0)), drafted)
    assert taken.tokens[:10] == hint != plain.tokens[:10]
    never = scheduler_of(target, stored(tmp_path / "none", torch.zeros(HIDDEN), -9.0))
    assert write(never, drafted).tokens == plain.tokens
    strict = scheduler_of(target, stored(tmp_path / "strict", torch.zeros(HIDDEN), 99.0))
    assert write(strict, replace(drafted, acceptance=Acceptance("judge", 1.0))).tokens == plain.tokens


def test_a_judge_reads_the_state_that_it_was_trained_on(target: tuple[str, Model], tmp_path: Path) -> None:
    """The state of the draft token itself, in the engine's own pass, is that of the training's forward."""
    folder, model = target
    weight = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1))
    reader = _StateReader(folder)
    plain = write(Scheduler(model, load_tokenizer(folder, None), num_slots=2048), request())
    wrong = [token for token in range(40, 200) if token != plain.tokens[0]]
    scores = []
    for token in wrong:
        one = LabelledDrafts(prompt(0), plain.tokens, (token, *plain.tokens[1:]), ((0, True),))
        read = reader.tokens(one)
        assert read.refused.nonzero().flatten().tolist() == [len(read.refused) - 1]
        scores.append(float(read.states[-1] @ weight))
    middle = float(np.median(scores))
    judged = scheduler_of(target, stored(tmp_path / "judge", weight, -middle))
    for number, (token, score) in enumerate(zip(wrong, scores, strict=True)):
        if abs(score - middle) < 1e-3:
            continue
        first = write(judged, replace(request(2), hint=(token,), acceptance=JUDGE), number).tokens[0]
        assert (first == token) == (score > middle)


def request(max_tokens: int = 8) -> EngineRequest:
    return EngineRequest(Prefix(prompt(0)), max_tokens)


def test_a_missing_damaged_or_foreign_judge_is_refused(target: tuple[str, Model], tmp_path: Path) -> None:
    _, model = target
    with pytest.raises(EngineError, match=r"holds no judge.*verifier train --level token"):
        attach_judge(model, tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"no tensors")
    with pytest.raises(EngineError, match="holds no judge"):
        attach_judge(model, tmp_path)
    save_file({"weight": torch.full((HIDDEN,), torch.nan), "bias": torch.tensor(0.0)}, tmp_path / WEIGHTS)
    with pytest.raises(EngineError, match="damaged"):
        attach_judge(model, tmp_path)
    with pytest.raises(EngineError, match=f"hidden states of 16.*have {HIDDEN}"):
        attach_judge(model, stored(tmp_path / "other", torch.zeros(16)))
