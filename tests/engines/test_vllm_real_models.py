"""SmolLM2 and Gemma 3 in vLLM, from their GGUF files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.vllm.arguments import installed_version
from reason_spec.engines.vllm.engine import VllmEngine
from reason_spec.errors import EngineError
from reason_spec.settings import DTypeName, EngineSettings
from reason_spec.settings.engines import VllmSettings
from reason_spec.types import Prefix
from tests.engines.real_models import GEMMA3, SMOLLM2, real_model
from tests.engines.tiny_models import spoiled

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed; `make cpu` installs it"),
    pytest.mark.timeout(600),
]
QUESTION = "A baker has 24 rolls. She sells 9 of them and bakes 15 more. How many rolls does she have?"
NUM_TOKENS = 24


@asynccontextmanager
async def serving(name: str, dtype: DTypeName) -> AsyncIterator[VllmEngine]:
    real_model(name)
    settings = EngineSettings(
        model=name,
        kind="vllm",
        dtype=dtype,
        max_context=1024,
        cache_tokens=4096,
        vllm=VllmSettings(arguments={"enforce_eager": True}),
    )
    engine = create_engine("target", settings)
    assert isinstance(engine, VllmEngine)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def asked(engine: VllmEngine) -> tuple[int, ...]:
    return engine.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])


def written_by_transformers(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(real_model(name), dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False
        )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", [SMOLLM2, GEMMA3])
async def test_in_float32_it_writes_what_transformers_writes_with_drafts_and_without(name: str) -> None:
    async with serving(name, "float32") as engine:
        prompt = asked(engine)
        expected = written_by_transformers(name, prompt)
        for hint in ((), expected, spoiled(expected, 9)):
            request = EngineRequest(Prefix(prompt), NUM_TOKENS, hint=hint, num_draft_tokens=8)
            result = await engine.submit(request).result()
            assert result.tokens == expected


async def test_in_bfloat16_drafts_change_a_token_at_near_ties_alone() -> None:
    async with serving(SMOLLM2, "bfloat16") as engine:
        prompt = asked(engine)
        alone = (await engine.submit(EngineRequest(Prefix(prompt), NUM_TOKENS)).result()).tokens
        for hint in (alone, spoiled(alone, 5)):
            request = EngineRequest(Prefix(prompt), NUM_TOKENS, hint=hint, num_draft_tokens=8)
            drafted = (await engine.submit(request).result()).tokens
            pairs = zip(alone, drafted, strict=False)
            place = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
            if place is not None:
                text = Prefix((*prompt, *alone[:place]))
                score = await engine.score_next(text, (alone[place], drafted[place]))
                assert abs(score.logprobs[0] - score.logprobs[1]) <= 0.5


async def test_the_batch_invariant_mode_is_refused_on_a_cpu() -> None:
    settings = EngineSettings(
        model=SMOLLM2, kind="vllm", vllm=VllmSettings(batch_invariant=True), device="cpu"
    )
    real_model(SMOLLM2)
    with pytest.raises(EngineError, match="batch_invariant needs an NVIDIA GPU"):
        await create_engine("target", settings).start()
