"""``embedding``: cosine similarity of sentence embeddings, as in Lookahead Reasoning, section 4.3.

Alone it is blind to numbers: a changed result keeps a similarity near 0.99, where a true rewording has
about 0.92. Use ``semantic`` for reasoning; this one is here for comparison and for texts without numbers.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from reason_spec.types import Decision, LossClass, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.encoder import MINILM_PACKAGE, MINILM_SHA256, Embedding, SentenceEncoder
from reason_spec.verifiers.encoding import EncodingVerifier

__all__ = ["MINILM_PACKAGE", "MINILM_SHA256", "EmbeddingVerifier", "Similarity", "compare_texts"]

PAPER_THRESHOLD: Final = 0.85


class Similarity(NamedTuple):
    """``cosine`` is the lowest over the windows of both texts; ``aligned``: all of them have a partner."""

    cosine: float
    aligned: bool
    num_encoded_tokens: int


async def compare_texts(encoder: SentenceEncoder, a: str, b: str) -> Similarity:
    """Return the cosine similarity of two texts.

    A text longer than the model's input is compared window by window. Where the numbers of windows
    differ, a tail has no partner, and the texts are not ``aligned``.
    """
    x, y = await asyncio.gather(encoder.encode(a), encoder.encode(b))
    return Similarity(
        _lowest_cosine(x, y), len(x.windows) == len(y.windows), x.num_encoded_tokens + y.num_encoded_tokens
    )


def _lowest_cosine(x: Embedding, y: Embedding) -> float:
    cosine = min(float(u @ v) for u, v in zip(x.windows, y.windows, strict=False))
    return max(-1.0, min(1.0, cosine))


class EmbeddingVerifier(EncodingVerifier[SentenceEncoder]):
    """Accepts from ``threshold`` on, rejects below; ``score`` is the cosine."""

    name: str = "embedding"
    loss_class: LossClass = "verified"
    least_threshold = -1.0

    def __init__(
        self, encoder: SentenceEncoder, threshold: float | None = None, deadline_seconds: float = 2.0
    ) -> None:
        super().__init__(encoder, PAPER_THRESHOLD if threshold is None else threshold, deadline_seconds)

    async def _compare(self, context: VerificationContext, drafted: str, target: str) -> Verdict:
        cosine, aligned, num_tokens = await compare_texts(self._encoder, drafted, target)
        reason = f"cosine {cosine:.3f}, threshold {self.threshold:g}"
        decision: Decision = "accept" if cosine >= self.threshold else "reject"
        if decision == "accept" and not aligned:
            decision, reason = "unknown", f"{reason}; one step is longer than the model's input"
        return Verdict(decision, cosine, cost_tokens=num_tokens, reason=reason)
