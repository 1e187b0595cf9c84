"""Which models the torch engine serves, and that it serves them as transformers does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reason_spec.engines.generation import EngineRequest, GenerationResult
from reason_spec.engines.torch.load import load_model
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix
from tests.engines.tiny_models import Served, drain

SERVED = ["qwen3", "llama", "gpt2", "mistral-sliding", "gemma2-sliding-softcap", "mixtral"]


@pytest.mark.parametrize("kind", SERVED)
def test_greedy_writes_what_transformers_writes(kind: str, serve: Callable[[str], Served]) -> None:
    served = serve(kind)
    rng = np.random.default_rng(1)
    scheduler = served.scheduler()
    prompts = [rng.integers(0, 260, size).tolist() for size in (1, 7, 40, 100)]
    expected = [served.generate(prompt, 40) for prompt in prompts]
    for number, prompt in enumerate(prompts):
        hint = expected[number] if number % 2 else ()
        scheduler.submit(number, EngineRequest(Prefix(tuple(prompt)), 40, hint=hint, num_draft_tokens=7))
    results = drain(scheduler)
    for number in range(len(prompts)):
        result = results[number]
        assert isinstance(result, GenerationResult)
        assert result.tokens == expected[number]
    assert len({token for tokens in expected for token in tokens}) > 20, "the model repeats itself"


@pytest.mark.parametrize("kind", ["mamba", "bloom", "t5", "lfm2"])
def test_models_without_plain_attention_are_refused(kind: str, model_folder: Callable[[str], Path]) -> None:
    folder = model_folder(kind)
    with pytest.raises(UnsupportedModelError, match="torch engine"):
        load_model(EngineSettings(model=str(folder), cache_tokens=512))


def test_a_wrong_attention_fails_the_check(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout that lets a branch see its sibling must be noticed before anything is served."""
    from reason_spec.engines.torch import layout

    def see_everything(runs: object, shared: int, start: int, end: int) -> None:
        return None

    monkeypatch.setattr(layout.PassBuilder, "_mask", staticmethod(see_everything))
    with pytest.raises(UnsupportedModelError, match="other logits"):
        load_model(EngineSettings(model=str(model_folder("qwen3")), cache_tokens=512))


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nowhere"):
        load_model(EngineSettings(model=str(tmp_path / "nowhere")))


def test_a_context_beyond_the_models_is_refused(model_folder: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="max_context=300"):
        load_model(EngineSettings(model=str(model_folder("qwen3")), max_context=300))


def test_an_unusable_device_is_refused(model_folder: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="device 'nonsense'"):
        load_model(EngineSettings(model=str(model_folder("qwen3")), device="nonsense"))
