"""The choice of a request's tokens, by its sampling, biases and constraint."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from reason_spec.engines.constraints import TextMatcher
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.torch.predictions import Predictions
from reason_spec.errors import ReasonSpecError
from reason_spec.speculation.acceptance import FloatArray, choose_token, truncated_probabilities
from reason_spec.speculation.relaxed_acceptance import OWN_STREAM
from reason_spec.speculation.tree import TokenTree
from reason_spec.types import Acceptance, Sampling


class TokenChoice:
    """Chooses the tokens of one text in order.

    Logits are biased and masked before truncation and noise. The predictions themselves, which other requests
    share, are not changed.

    Args:
        compiling: the future matcher of the request's constraint; None without a constraint.
    """

    def __init__(self, request: EngineRequest, compiling: Future[TextMatcher] | None = None) -> None:
        self._sampling = request.sampling
        # A matcher advances with each choice, and relaxed rules look ahead.
        self.acceptance = request.acceptance if request.constraint is None else Acceptance()
        independent = self.acceptance.rule == "cascade" and not self.acceptance.is_exact
        self._stream = OWN_STREAM if independent else 0
        self._bias = dict(request.logit_bias)
        self.compiling = compiling
        self._matcher: TextMatcher | None = None
        self.error: str | None = None
        """Why the constraint cannot be followed."""

    @property
    def ready(self) -> bool:
        """Whether tokens can be chosen; False while the constraint is compiled. Sets ``error``."""
        if self.compiling is not None and self.compiling.done():
            try:
                self._matcher = self.compiling.result()
            except ReasonSpecError as error:
                self.error = str(error)
            self.compiling = None
        return self.compiling is None

    def drafts(self, proposed: TokenTree, longest: int) -> TokenTree:
        """Return the drafts that the constraint allows, or the tokens that it forces if these are more.

        ``longest`` bounds the number of forced tokens.
        """
        if self._matcher is None:
            return proposed
        matcher = self._matcher

        def first_wrong(tokens: Sequence[int]) -> int | None:
            count = matcher.num_allowed(tokens)
            return count if count < len(tokens) else None

        allowed = proposed.pruned(first_wrong)
        forced = matcher.forced()[: max(0, longest)]
        return allowed if len(allowed) >= len(forced) else TokenTree.chain(forced)

    def choose(self, predictions: Predictions, entry: int, position: int) -> int:
        """Return the token at ``position`` of the text and advance; call it in order."""
        token = self._choose(predictions, entry, position)
        if self._matcher is not None:
            self._matcher.advance([token])
            self.error = self.error or self._matcher.error
        return token

    def _choose(self, predictions: Predictions, entry: int, position: int) -> int:
        if self._sampling.greedy and not self._bias:
            best = predictions.best(entry)
            if self._matcher is None or self._matcher.allows(best):
                return best
        logits = predictions.row(entry)
        if self._bias or self._matcher is not None:
            logits = self._narrowed(logits)
        return choose_token(logits, self._sampling, position, self._stream)

    def distribution(self, predictions: Predictions, entry: int) -> FloatArray:
        """Return the probabilities [vocabulary] of the tokens after an entry; see `accept_relaxed`."""
        logits = predictions.row(entry)
        if self._bias:
            logits = self._narrowed(logits)
        sampling = Sampling(temperature=1.0) if self._sampling.greedy else self._sampling
        return truncated_probabilities(logits, sampling)

    def _narrowed(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the logits with biases, and minus infinity for forbidden tokens."""
        logits = logits.copy()
        for token, bias in self._bias.items():
            logits[token] += bias
        if self._matcher is not None:
            allowed = self._matcher.allowed()
            if not allowed.any():
                self.error = self._matcher.error or "the constraint allows no token here"
                return logits
            logits[~allowed] = -np.inf
        return logits
