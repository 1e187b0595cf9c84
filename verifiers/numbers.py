"""``numbers``: the numbers and calculations of two steps, without a model.

- ``reject``: the numbers contradict each other: another result, arithmetic that is wrong in one step only;
- ``accept``: the same words and numbers but for notation;
- ``unknown``: numbers cannot tell (`semantic` goes on from there).
"""

from __future__ import annotations

import re
from typing import Final

from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.notation import ARTICLE, SIGNED_ITEM, normalize
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.words import exact_terms

_FULLY_READ: Final = re.compile(r"(?:[A-Za-z0-9\s.,;$=+\-−*×·÷/()%]|(?<=[a-z])'(?=[a-z])|:(?!\d))*")
"""Texts in which `read_terms` reads every sign. 5! and 5², a ratio 3:2 and a question are not."""
_LETTER: Final = re.compile(rf"(?<![A-Za-z])(?!{ARTICLE})[A-Za-z](?![A-Za-z])|,(?=[-+])")


class NumbersVerifier(Verifier):
    """Judges by numbers alone. ``score``: 1 if accepted, 0 if rejected, 0.5 where words would decide."""

    name: str = "numbers"
    loss_class: LossClass = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        if drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        objection = find_objection(drafted.text, target.text, context.question, context.prefix_text)
        if objection is not None:
            contradicts = objection.contradicts
            return Verdict("reject" if contradicts else "unknown", 0.0, reason=objection.reason)
        if _reads_the_same(drafted.text, target.text):
            return Verdict("accept", 1.0, reason="the same words and numbers")
        return Verdict("unknown", 0.5, reason="the numbers agree, the words are open")


def _reads_the_same(one: str, other: str) -> bool:
    """Whether two texts have the same words, numbers and signs in the same order, in whatever notation."""
    is_read = all(_FULLY_READ.fullmatch(text) for text in (one, other))
    return is_read and exact_terms(one) == exact_terms(other) and _variables(one) == _variables(other)


def _variables(text: str) -> list[str]:
    """Return the single letters of a text, in their case, and the marks before numbers with a sign."""
    return _LETTER.findall(SIGNED_ITEM.sub(",", normalize(text)))
