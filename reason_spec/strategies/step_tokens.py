"""Steps in the tokens of either model."""

from __future__ import annotations

from dataclasses import replace

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import GenerationResult
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.types import Origin, Step


def step_from_result(result: GenerationResult, origin: Origin, engine: Engine) -> Step:
    """Turn a finished generation of ``engine`` into a step."""
    return Step(
        text=result.text,
        tokens=result.tokens,
        origin=origin,
        finish=result.finish,
        tokenizer_id=engine.tokenizer.tokenizer_id,
        logprobs=result.logprobs,
        num_stop_overlap=result.num_stop_overlap,
        first_entropy=result.first_entropy,
    )


def tokens_for(step: Step, engine: Engine) -> tuple[int, ...]:
    """Return a step in the tokens of ``engine``'s model, encoding its text only where it must.

    The ids of the model that wrote the step are kept as they are: encoding its text again could
    give other tokens than the ones its keys and values belong to.
    """
    tokenizer = engine.tokenizer
    if step.tokenizer_id == tokenizer.tokenizer_id:
        return step.tokens
    tokens = tokenizer.encode(step.text)
    if step.finish == "eos":
        tokens = (*tokens, min(tokenizer.eos_ids))
    return tokens


def step_for(step: Step, engine: Engine) -> Step:
    """Return a step in the tokens of ``engine``'s model; log-probabilities of other tokens are left out."""
    tokenizer_id = engine.tokenizer.tokenizer_id
    if step.tokenizer_id == tokenizer_id:
        return step
    return replace(step, tokens=tokens_for(step, engine), tokenizer_id=tokenizer_id, logprobs=None)


def open_blocks_after(step: Step, boundary: Boundary, begins_in: OpenBlocks) -> OpenBlocks:
    """Return the blocks that are open after a step; only a step that was cut leaves any open."""
    if step.finish != "length":
        return NOTHING_OPEN
    scanner = BoundaryScanner(boundary, begins_in)
    scanner.feed(step.text.encode())
    return scanner.open_blocks
