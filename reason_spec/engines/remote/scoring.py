"""Scores of a continuation by vLLM's log-probabilities of a prompt."""

from __future__ import annotations

from typing import Any

from reason_spec.engines.generation import Score
from reason_spec.engines.remote.completion import cache_salt_of
from reason_spec.types import Prefix, Usage


def score_body(prefix: Prefix, continuation: tuple[int, ...]) -> dict[str, Any]:
    """Return the body of a request for a score, without the model's name."""
    return {
        "prompt": [*prefix.to_tuple(), *continuation],
        "max_tokens": 1,
        "prompt_logprobs": 1,
        "temperature": 0.0,
        **cache_salt_of(prefix),
    }


def read_score(choice: dict[str, Any], prefix: Prefix, continuation: tuple[int, ...]) -> Score | None:
    """Return the score that a server's choice holds; None without log-probabilities of the prompt."""
    rows = choice.get("prompt_logprobs")
    if not rows or len(rows) != len(prefix) + len(continuation):
        return None
    logprobs, best = [], []
    for row, token in zip(rows[len(prefix) :], continuation, strict=True):
        of_token = {int(key): float(entry["logprob"]) for key, entry in row.items()}
        logprobs.append(of_token[token])
        best.append(max(of_token, key=of_token.__getitem__))
    usage = Usage(num_prompt_tokens=len(prefix), num_passes=1, num_scored_tokens=len(continuation))
    return Score(tuple(logprobs), tuple(best), usage)
