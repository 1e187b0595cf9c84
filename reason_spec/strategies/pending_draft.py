"""The target's verified tokens of one generation, and the draft tokens after them."""

from __future__ import annotations

from collections.abc import Sequence

from reason_spec.suffix.base import num_shared
from reason_spec.types import Prefix


class PendingDraft:
    """Draft tokens that wait for verification, after the tokens that the target has verified.

    Args:
        prefix: the text before the target's generation, in the tokens of the draft.
        min_logprob: log-probability, by the draft model, that all pending tokens are right, below which none
            is added.
    """

    def __init__(self, prefix: Prefix, min_logprob: float) -> None:
        self.verified: list[int] = []
        self.tokens: list[int] = []
        """Pending tokens: they follow the verified ones."""
        self.end = 0
        """Tokens from the start of the generation to the end of the draft, which may lie within the verified
        ones."""
        self._logprobs: list[float] = []
        self._min_logprob = min_logprob
        # Ends with the first ``_num_in_prefix`` verified tokens. All runs extend it, so they share its nodes.
        self._prefix = prefix
        self._num_in_prefix = 0

    @property
    def num_ahead(self) -> int:
        """Tokens by which the draft is ahead of the verified ones; negative where it is behind."""
        return self.end - len(self.verified)

    def verify(self, tokens: Sequence[int]) -> tuple[int, bool]:
        """Take verified tokens; return how many pending ones they accept, and whether they reject one."""
        expected = self.tokens[: len(tokens)]
        num_accepted = num_shared(expected, list(tokens))
        self.verified += tokens
        is_rejected = num_accepted < len(expected)
        if is_rejected:
            self.clear()
        else:
            del self.tokens[: len(tokens)], self._logprobs[: len(tokens)]
        return num_accepted, is_rejected

    def replace(self, tokens: Sequence[int]) -> bool:
        """Replace the draft by one of the whole generation; return False where verified tokens reject it."""
        if num_shared(list(tokens), self.verified) < min(len(tokens), len(self.verified)):
            return False
        self.end = len(tokens)
        self.tokens = list(tokens[len(self.verified) :])
        self._logprobs = [0.0] * len(self.tokens)
        return True

    def clear(self) -> None:
        """Drop the pending tokens; the draft ends with the verified ones."""
        self.end = len(self.verified)
        self.tokens, self._logprobs = [], []

    def catch_up(self, tokens: Sequence[int]) -> tuple[int, bool]:
        """Compare new draft tokens with verified ones at the same positions.

        Return how many agree, and whether one differs; (0, False) where all are ahead.
        """
        verified = self.verified[self.end : self.end + len(tokens)]
        num_agreed = num_shared(verified, list(tokens))
        return num_agreed, num_agreed < len(verified)

    def append(self, token: int, logprob: float) -> bool:
        """Add a draft token; return False where all would be right with too small a probability."""
        # One token costs the target next to nothing to verify.
        if self.tokens and sum(self._logprobs) + logprob < self._min_logprob:
            return False
        self.end += 1
        if self.num_ahead > 0:
            self.tokens.append(token)
            self._logprobs.append(logprob)
        return True

    def text(self) -> Prefix:
        """Return the prefix with the verified and the pending tokens."""
        if new := tuple(self.verified[self._num_in_prefix :]):
            self._prefix = self._prefix.extend(new)
            self._num_in_prefix = len(self.verified)
        return self._prefix.extend(tuple(self.tokens)) if self.tokens else self._prefix
