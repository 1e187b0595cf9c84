"""Steps in the tokens of either model."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from math import isnan

from reason_spec.engines.base import Engine, Tokenizer
from reason_spec.engines.generation import GenerationResult
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.types import FinishReason, Origin, Step


def step_from_result(result: GenerationResult, origin: Origin, engine: Engine) -> Step:
    """Turn a finished generation of ``engine`` into a step; one that was cut ends with a whole character."""
    text, tokens, logprobs = result.text, result.tokens, result.logprobs
    if result.finish == "length" and (count := num_whole(tokens, engine.tokenizer)) < len(tokens):
        tokens, logprobs = tokens[:count], logprobs[:count]
        text = engine.tokenizer.decode(tokens)
    return Step(
        text=text,
        tokens=tokens,
        origin=origin,
        finish=result.finish,
        tokenizer_id=engine.tokenizer.tokenizer_id,
        logprobs=known_logprobs(logprobs, text, result.finish),
        num_stop_overlap=result.num_stop_overlap,
        first_entropy=result.first_entropy,
    )


def known_logprobs(logprobs: Sequence[float], text: str, finish: FinishReason) -> tuple[float, ...] | None:
    """Return the log-probabilities of a step's tokens; None where that of a token of its text is NaN.

    The last one may be NaN where it ends the text: a server may omit that token.
    """
    ends_with_token = finish in ("eos", "stop") and (len(logprobs) > 1 or not text)
    of_text = logprobs[:-1] if ends_with_token else logprobs
    return None if any(map(isnan, of_text)) else tuple(logprobs)


def ends_within_character(tokens: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Return whether the last character of tokens is incomplete."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(b"".join(map(tokenizer.token_bytes, tokens)))
    return bool(decoder.getstate()[0])


def num_whole(tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """Return how many tokens there are up to the last whole character; all, where none is whole."""
    count = len(tokens)
    while count and ends_within_character(tokens[:count], tokenizer):
        count -= 1
    return count or len(tokens)


def tokens_for(step: Step, engine: Engine) -> tuple[int, ...]:
    """Return a step in the tokens of ``engine``'s model, encoding its text only where it must.

    The ids of the model that wrote the step are kept as they are: encoding its text again could
    give other tokens than the ones its keys and values belong to.
    """
    tokenizer = engine.tokenizer
    if step.tokenizer_id == tokenizer.tokenizer_id:
        return step.tokens
    tokens = tokenizer.encode(step.text)
    if step.finish == "eos" and tokenizer.end_id is not None:
        tokens = (*tokens, tokenizer.end_id)
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
