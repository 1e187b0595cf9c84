"""``semantic``, the default: numbers first, then word-level guards, then embeddings.

Each stage handles the steps that the one before left undecided:

1. ``numbers`` accepts or rejects by arithmetic, and is undecided if quantities are in doubt;
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
FORMULA_ALLOWANCE: Final = 0.25
"""How much lower the cosine may be where both steps state the same formulas."""
SURELY_ABOVE: Final = 0.9
SURELY_BELOW: Final = 0.6
"""Cosines of word vectors beyond which the model's own is on the same side of the default threshold."""


class SemanticVerifier(EncodingVerifier):
    """Accepts reworded steps that mean the same; a contradiction in numbers rejects, doubt is unknown.

    ``score``: 1 where numbers accept; the cosine where the embedding decided; at most 0.5 where numbers
    objected and at most 0.25 where guards did, so that no threshold accepts steps that they refused.
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
            return Verdict("unknown", numbers.score / 4, reason=conflict)
        threshold = self.threshold - (FORMULA_ALLOWANCE if _same_formulas(drafted, target) else 0.0)
        verdict = self._judge_by_words(drafted, target, threshold) or await self._judge_by_cosine(
            drafted, target, below="unknown", threshold=threshold
        )
        score = max(verdict.score or 0.0, 0.0)
        return replace(verdict, score=score, reason=f"the numbers agree; {verdict.reason}")

    def _judge_by_words(self, drafted: str, target: str, threshold: float) -> Verdict | None:
        """Decide by word vectors if their cosine is far from the threshold; None in between."""
        estimate = self._encoder.estimate(drafted, target)
        if estimate is None:
            return None
        reason = f"word vectors {estimate:.3f}"
        if estimate >= SURELY_ABOVE and threshold <= DEFAULT_THRESHOLD:
            return Verdict("accept", min(estimate, 1.0), reason=reason)
        if estimate <= SURELY_BELOW and threshold >= DEFAULT_THRESHOLD:
            return Verdict("unknown", max(estimate, 0.0), reason=reason)
        return None


def _same_formulas(drafted: str, target: str) -> bool:
    """Whether both steps state the same formulas, so that their words matter little."""
    formulas = [frozenset(r.canonical for r in read_claims(text).relations) for text in (drafted, target)]
    return formulas[0] == formulas[1] != frozenset()


def _conflict(drafted: str, target: str, known: str) -> str | None:
    pair = read_wording(drafted, target, known)
    claims = read_claims(drafted), read_claims(target)
    shows_arithmetic = claims[0].main is not None and claims[1].main is not None
    return find_conflict(pair, has_operations=shows_arithmetic) or find_inconsistency(
        pair.drafted, claims[0], pair.target, claims[1]
    )
