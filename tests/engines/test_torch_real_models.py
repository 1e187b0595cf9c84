"""SmolLM2 and Gemma 3 on the torch engine, in every dtype.

Gemma 3 has windows of 512 tokens, norms of queries and keys, and a vocabulary of 262,144.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from reason_spec.engines.generation import EngineRequest, Hint
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.engines.torch.load import load_model
from reason_spec.engines.torch.model import Model
from reason_spec.engines.torch.scheduler import Scheduler
from reason_spec.errors import UnsupportedModelError
from reason_spec.settings import DTypeName, EngineSettings
from reason_spec.types import NoiseKey, Prefix, Sampling
from tests.engines.real_models import GEMMA3, SMOLLM2, real_model
from tests.engines.tiny_models import spoiled, write

QUESTION = "A baker has 24 rolls. She sells 9 of them and bakes 15 more. How many rolls does she have?"
NUM_TOKENS = 24
BOTH = [SMOLLM2, pytest.param(GEMMA3, marks=pytest.mark.slow)]
ROUNDING_NATS = {"bfloat16": 0.5, "float16": 0.0625}
"""Four steps of a logit between 16 and 32."""


@cache
def loaded(name: str, dtype: DTypeName) -> tuple[Model, HuggingFaceTokenizer]:
    folder = real_model(name)
    model = load_model(EngineSettings(model=folder, dtype=dtype, cache_tokens=2048, max_context=1024))
    return model, load_tokenizer(folder)


def scheduler(name: str, dtype: DTypeName) -> Scheduler:
    model, tokenizer = loaded(name, dtype)
    return Scheduler(model, tokenizer, num_slots=2048, debug=True, prefill_chunk=256)


def prompt(name: str, num_repeats: int = 1) -> tuple[int, ...]:
    _, tokenizer = loaded(name, "float32")
    return tokenizer.encode_chat([{"role": "user", "content": " ".join([QUESTION] * num_repeats)}])


def request(tokens: tuple[int, ...], num_tokens: int = NUM_TOKENS, **options: Any) -> EngineRequest:
    return EngineRequest(Prefix(tokens), num_tokens, **options)


@cache
def plain(name: str, dtype: DTypeName, num_repeats: int = 1) -> tuple[int, ...]:
    """What the engine writes without a draft."""
    return write(scheduler(name, dtype), request(prompt(name, num_repeats))).tokens


@pytest.fixture(scope="module")
def reference() -> Callable[[str], Any]:
    """Loads a plain module in float32, once."""
    from transformers import AutoModelForCausalLM

    return cache(lambda name: AutoModelForCausalLM.from_pretrained(real_model(name), dtype=torch.float32))


@pytest.mark.parametrize("num_repeats", [1, 24])
@pytest.mark.parametrize("name", [SMOLLM2, GEMMA3])
def test_in_float32_it_writes_what_transformers_writes(
    name: str, num_repeats: int, reference: Callable[[str], Any]
) -> None:
    """The longer text is beyond Gemma's window of 512 tokens."""
    asked = prompt(name, num_repeats)
    assert (len(asked) > 512) == (num_repeats > 1)
    with torch.inference_mode():
        ids = torch.tensor([asked])
        output = reference(name).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False
        )
    assert plain(name, "float32", num_repeats) == tuple(output[0, len(asked) :].tolist())


@pytest.mark.parametrize("name", BOTH)
def test_in_float32_drafts_change_nothing(name: str) -> None:
    expected = plain(name, "float32")
    for place in range(0, NUM_TOKENS, 11):
        hinted = request(prompt(name), hint=spoiled(expected, place), num_draft_tokens=7)
        assert write(scheduler(name, "float32"), hinted).tokens == expected
    looked_up = request(prompt(name), token_drafter="prompt_lookup", num_draft_tokens=7)
    assert write(scheduler(name, "float32"), looked_up).tokens == expected


@pytest.mark.parametrize("name", BOTH)
def test_in_float32_drafts_change_no_sample(name: str) -> None:
    sampling = Sampling(0.8, 0, 0.95, NoiseKey(0, 1, 2))
    alone = write(scheduler(name, "float32"), request(prompt(name), sampling=sampling)).tokens
    hint = spoiled(alone, 9)
    drafted = request(prompt(name), sampling=sampling, hint=hint, num_draft_tokens=7)
    assert write(scheduler(name, "float32"), drafted).tokens == alone
    assert alone != plain(name, "float32")


@pytest.mark.parametrize(
    ("name", "dtype", "num_prompt_tokens", "num_tokens"),
    [
        (SMOLLM2, "bfloat16", 100, NUM_TOKENS),
        # Processors without instructions for it take a second or more for a pass.
        (SMOLLM2, "float16", 8, 8),
        pytest.param(GEMMA3, "bfloat16", 100, NUM_TOKENS, marks=pytest.mark.slow),
    ],
)
def test_off_float32_drafts_change_a_token_at_near_ties_alone(
    name: str, dtype: DTypeName, num_prompt_tokens: int, num_tokens: int
) -> None:
    asked = prompt(name)[-num_prompt_tokens:]
    alone = write(scheduler(name, dtype), request(asked, num_tokens)).tokens
    for hint in (alone, spoiled(alone, 5), spoiled(alone, 20)):
        hinted = request(asked, num_tokens, hint=hint, num_draft_tokens=7)
        drafted = write(scheduler(name, dtype), hinted).tokens
        pairs = zip(alone, drafted, strict=False)
        place = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if place is not None:
            gap = gap_between(name, dtype, (*asked, *alone[:place]), alone[place], drafted[place])
            assert gap <= ROUNDING_NATS[dtype], f"token {place} differs by {gap} nats"


def test_gemma_overflows_in_float16_and_that_is_said_at_the_start() -> None:
    """Its activations at the begin-of-text token are beyond 65,504, in the plain module too."""
    with pytest.raises(UnsupportedModelError, match="no numbers in float16; set dtype: bfloat16"):
        loaded(GEMMA3, "float16")


def gap_between(name: str, dtype: DTypeName, text: tuple[int, ...], one: int, other: int) -> float:
    """Return by how many nats the plain module prefers one token to the other."""
    from transformers import AutoModelForCausalLM

    # That of the engine has given its weights away.
    module = AutoModelForCausalLM.from_pretrained(real_model(name), dtype=getattr(torch, dtype))
    with torch.inference_mode():
        logits = module(torch.tensor([text]), use_cache=False).logits[0, -1].float()
    return abs(float(logits[one] - logits[other]))


@pytest.mark.parametrize("name", BOTH)
def test_bfloat16_writes_nearly_what_float32_writes(name: str) -> None:
    """A wrong scale or a lost bit would part them at once, not at a close choice."""
    exact, rounded = (plain(name, dtype)[:4] for dtype in ("float32", "bfloat16"))
    place = next((place for place in range(4) if exact[place] != rounded[place]), None)
    if place is not None:
        gap = gap_between(name, "float32", (*prompt(name), *exact[:place]), exact[place], rounded[place])
        assert gap <= ROUNDING_NATS["bfloat16"], f"token {place} differs by {gap} nats"


def test_a_hint_may_come_while_the_real_model_writes() -> None:
    expected = plain(SMOLLM2, "float32")
    running = scheduler(SMOLLM2, "float32")
    running.submit(0, request(prompt(SMOLLM2)))
    running.step()
    running.offer_hint(0, Hint(expected))
    steps = 0
    results: dict[int, Any] = {}
    while running.has_work:
        results.update(running.step().results)
        steps += 1
    assert results[0].tokens == expected
    assert steps < NUM_TOKENS / 2
