"""The limits of a model: the length of its context and the tokens of its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a model; ``settings`` names the settings that bound the context."""

    max_context: int
    vocab_size: int
    settings: str

    def refusal(self, tokens: Sequence[int], *, num_text: int, num_needed: int) -> str | None:
        """Return why a request can never be served, or None.

        Args:
            tokens: the tokens to validate.
            num_text: the length of the text.
            num_needed: tokens that must fit after it.
        """
        if num_text == 0:
            return "the prefix is empty; a model needs at least one token to continue"
        if num_text + num_needed > self.max_context:
            return (
                f"a text of {num_text} tokens leaves no room for another one: the model's context is "
                f"{self.max_context} tokens ({self.settings})"
            )
        lowest, highest = min(tokens, default=0), max(tokens, default=0)
        if lowest < 0 or highest >= self.vocab_size:
            return (
                f"the text holds token {lowest if lowest < 0 else highest}, but the model's "
                f"vocabulary has {self.vocab_size}; the tokens are another model's"
            )
        return None

    def bias_refusal(self, logit_bias: Sequence[tuple[int, float]]) -> str | None:
        """Return why a bias cannot be applied, or None."""
        for token, _ in logit_bias:
            if not 0 <= token < self.vocab_size:
                return f"logit_bias names token {token}, but the model's vocabulary has {self.vocab_size}"
        return None

    def known_tokens(self, hint: tuple[int, ...]) -> tuple[int, ...]:
        """Return a hint up to its first token outside of the vocabulary."""
        for index, token in enumerate(hint):
            if not 0 <= token < self.vocab_size:
                return hint[:index]
        return hint
