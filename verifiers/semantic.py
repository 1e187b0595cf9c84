"""``semantic``: the numbers and names of both steps are compared, then an encoder reads both.

1. Steps that are equal but for white space, marks and the capitals of words are accepted.
2. Numbers that contradict each other reject (`find_objection`); a number that one step lacks, and names
   that differ, leave the step unknown.
3. A small encoder, trained on steps of real models, gives the probability that both say the same.
"""

from __future__ import annotations

import re
from typing import Final

from reason_spec.types import LossClass, Verdict
from reason_spec.verifiers.base import VerificationContext
from reason_spec.verifiers.encoding import EncodingVerifier
from reason_spec.verifiers.notation import ARTICLE, BOLD, SIGNED_ITEM, WORD
from reason_spec.verifiers.objections import find_objection
from reason_spec.verifiers.pair_encoder import PairEncoder

# A minus or a star before a number or a variable is no mark of Markdown.
_FRAMES: Final = re.compile(rf"(?m:^[ \t]*(?:•|#+|[-*](?=[ \t]+{WORD}))[ \t]+)|\\[()\[\]]")
_ITEM: Final = re.compile(
    r"(?<=[A-Za-z\d)\]}])(?<![A-Za-z]{2})([,;.:])[ \t]+(?=[$(]*(?:\d|[A-Za-z](?![A-Za-z])))"
)
"""The mark between numbers or variables: 2, 1/2 is not 2 1/2."""
_MARKS: Final = re.compile(r"(?<!\s)[,;.:](?=\s|$)")
_SPACE: Final = re.compile(r"(?<=\d)\s+(?=\d)|(?<=[^\W\d_])\s+(?=[^\W\d_])|(?P<other>\s+)")
_WORD: Final = re.compile(rf"(?<![^\W_])[^\W\d_]{{2,}}|{ARTICLE}")
_SURELY_OTHER: Final = 0.05
"""A probability at which the steps are said to differ."""


class SemanticVerifier(EncodingVerifier[PairEncoder]):
    """Accepts steps that say the same in other words.

    ``score`` is the probability that they do: 1 for equal steps, 0 where numbers or names object.
    """

    name: str = "semantic"
    loss_class: LossClass = "verified"

    def __init__(
        self, encoder: PairEncoder, threshold: float | None = None, deadline_seconds: float = 2.0
    ) -> None:
        """Args:
        threshold: least probability that is accepted; None: the encoder's own.
        """
        given = encoder.calibration.threshold if threshold is None else threshold
        super().__init__(encoder, given, deadline_seconds)

    async def _compare(self, context: VerificationContext, drafted: str, target: str) -> Verdict:
        if squeezed(drafted) == squeezed(target):
            return Verdict("accept", 1.0, reason="same text")
        objection = find_objection(drafted, target, context.question, context.prefix_text)
        if objection is not None:
            return Verdict("reject" if objection.contradicts else "unknown", 0.0, reason=objection.reason)
        question = context.question or context.prefix_text
        probability = await self._encoder.probability(question, drafted, target)
        if probability is None:
            return Verdict("unknown", reason="the steps are longer than the encoder's input")
        reason = f"the same with probability {probability:.3f}, threshold {self.threshold:g}"
        if probability >= self.threshold:
            return Verdict("accept", probability, reason=reason)
        return Verdict("reject" if probability <= _SURELY_OTHER else "unknown", probability, reason=reason)


def squeezed(text: str) -> str:
    """Return a text without white space, Markdown, the frames of formulas, marks and capitals of words.

    A space between two numbers or two words stays, as does the mark between two numbers or before a sign.
    Case stays in single letters, in words with capitals inside and behind numbers: those are variables,
    symbols and units (5 mW, 5 MW).
    """
    text = _FRAMES.sub("", BOLD.sub(r"\1", text))
    text = _MARKS.sub("", _ITEM.sub(r"\1;", SIGNED_ITEM.sub(",", text)))
    text = _SPACE.sub(lambda found: "" if found["other"] else " ", text)
    return _WORD.sub(_small, text)


def _small(word: re.Match[str]) -> str:
    """Return a word in small letters; as it is where a capital stands behind its first letter."""
    rest = word[0][1:]
    return word[0].casefold() if rest == rest.casefold() else word[0]
