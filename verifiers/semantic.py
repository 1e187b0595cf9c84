"""``semantic``, the default: numbers first, then word-level guards, embeddings for what is left.

Each stage may only refuse what the one before left open, but for the last:

1. ``numbers`` accepts or rejects what arithmetic decides, and gives up where quantities are in doubt;
2. the guards refuse swapped names, opposite directions, negations and changed owners;
3. the embedding accepts from ``threshold`` on. It judges wording only, never quantities.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from reason_spec.types import LossClass, Verdict
from reason_spec.verifiers.claims import read_claims
from reason_spec.verifiers.conflicts import find_conflict
from reason_spec.verifiers.consistency import find_inconsistency
from reason_spec.verifiers.embedding import EncodingVerifier
from reason_spec.verifiers.numbers import compare_numbers
from reason_spec.verifiers.wording import read_wording

DEFAULT_THRESHOLD: Final = 0.75


class SemanticVerifier(EncodingVerifier):
    """Accepts reworded steps that mean the same; a contradiction in numbers rejects, doubt is unknown.

    ``score``: 1 where numbers accept; the cosine where the embedding decided; at most 0.5 where numbers
    or guards spoke against, so that no threshold on it accepts what they refused.
    """

    name: str = "semantic"
    loss_class: LossClass = "verified"
    default_threshold: ClassVar[float] = DEFAULT_THRESHOLD

    async def _compare(self, context: str, drafted: str, target: str) -> Verdict:
        numbers = compare_numbers(drafted, target, context)
        if numbers.decision == "accept":
            return Verdict("accept", 1.0, reason=numbers.reason)
        if numbers.decision == "reject":
            return Verdict("reject", numbers.score / 2, reason=numbers.reason)
        if not numbers.only_words_open:
            return Verdict("unknown", numbers.score / 2, reason=numbers.reason)
        if conflict := _conflict(drafted, target, context):
            return Verdict("unknown", numbers.score / 2, reason=conflict)
        verdict = await self._judge_by_cosine(drafted, target, below="unknown")
        score = max(verdict.score or 0.0, 0.0)
        return replace(verdict, score=score, reason=f"the numbers agree; {verdict.reason}")


def _conflict(drafted: str, target: str, known: str) -> str | None:
    pair = read_wording(drafted, target, known)
    claims = read_claims(drafted), read_claims(target)
    shows_arithmetic = claims[0].main is not None and claims[1].main is not None
    return find_conflict(pair, has_operations=shows_arithmetic) or find_inconsistency(
        pair.drafted, claims[0], pair.target, claims[1]
    )
