"""``exact``: the same tokens, or the same text where two tokenizers meet."""

from __future__ import annotations

from reason_spec.types import LossClass, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier


class ExactVerifier(Verifier):
    """Accepts a step that equals the target's; changes nothing in the output.

    Tokens decide where both steps come from one tokenizer: two segmentations of one text are two
    different continuations for the model. Across tokenizers the texts decide.
    """

    name: str = "exact"
    loss_class: LossClass = "exact"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        assert target is not None
        comparable = drafted.tokenizer_id == target.tokenizer_id and drafted.tokens and target.tokens
        if not comparable and drafted.text == target.text:
            return Verdict("accept", 1.0, reason="same text")
        return Verdict("reject", 0.0, reason="other tokens" if comparable else "other text")
