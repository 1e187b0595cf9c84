"""Tokens drafted from earlier texts: the suffix cache beside the requests of one engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reason_spec.speculation.draft_calibration import Calibration, entry_of
from reason_spec.suffix.base import Proposal, Session, Source
from reason_spec.suffix.scopes import SuffixCaches

logger = logging.getLogger(__name__)
_NOTHING = Proposal()


@dataclass(slots=True)
class _Text:
    """``length`` tokens are in the session, ``told`` of them known to be final from outside."""

    tenant: str
    session: Session
    length: int
    told: int
    calibration: Calibration


class EarlierTexts:
    """The texts that requests go on from, and what followed in earlier ones.

    A text is told of as it becomes final: of several requests for one place only one is in the end right,
    and what the others write must not be learnt. What such a request has beyond the text so far is looked
    up and forgotten; a request that writes all the rest of an answer is learnt as it goes on. A tenant's
    cache that fails is left out from then on, and the requests go on without it.

    Args:
        own: whether the texts are of the model that drafts are made for. Where they are another's, nothing
            that this one writes is certain of them.
    """

    def __init__(self, caches: SuffixCaches, *, own: bool = True) -> None:
        self._caches = caches
        self._own = own
        self._texts: dict[int, _Text] = {}
        # What one tenant's texts are like is nobody else's business.
        self._calibrations: dict[tuple[str, str], Calibration] = {}
        self._failed: set[str] = set()

    def begin(
        self, text: int, scope: str, tenant: str, segments: Sequence[tuple[Source, Sequence[int]]]
    ) -> None:
        """Take a text, or, under a number in use, the prompt of its next turn."""
        if tenant in self._failed:
            return
        try:
            known = self._texts.get(text)
            session = self._caches.open_session(scope, tenant) if known is None else known.session
            session.begin(segments)
        except Exception as error:
            self._fail(tenant, error)
        else:
            length = sum(len(tokens) for _, tokens in segments)
            calibration = entry_of(self._calibrations, (scope, tenant), Calibration)
            self._texts[text] = _Text(tenant, session, length, length, calibration)

    def extend(self, text: int, tokens: Sequence[int]) -> None:
        """Take tokens that became final."""
        if (known := self._texts.get(text)) is None:
            return
        known.told += len(tokens)
        num_new = known.told - known.length
        if num_new > 0:
            self._learn(known, tokens[-num_new:])

    def close(self, text: int) -> None:
        if (known := self._texts.pop(text, None)) is not None:
            known.session.close()

    def forget(self, scope: str) -> None:
        """Let a scope begin anew; its texts are closed by now."""
        self._caches.forget(scope)
        for key in [key for key in self._calibrations if key[0] == scope]:
            del self._calibrations[key]

    def calibration(self, text: int) -> Calibration | None:
        """Return how the chances of a text's proposals turned out; None where the text is not known."""
        return None if (known := self._texts.get(text)) is None else known.calibration

    def propose(
        self,
        text: int,
        tokens: Sequence[int] | npt.NDArray[np.int64],
        budget: int,
        *,
        tree: bool,
        final: bool = False,
        drafted: Sequence[int] = (),
    ) -> Proposal:
        """Return up to ``budget`` tokens that may come next behind a request's ``tokens`` and ``drafted``.

        Args:
            tokens: all of the request's text, prompt included.
            final: whether what it writes is the rest of the answer, and so learnt at once.
        """
        known = self._texts.get(text)
        if known is None or budget < 1 or known.length > len(tokens):
            return _NOTHING
        # They may be a row of an array, whose items are no plain numbers.
        new = [int(token) for token in tokens[known.length :]]
        if final and self._own and new:
            self._learn(known, new)
            new = []
        behind = (*new, *drafted)
        try:
            return known.session.propose_tokens(budget, tree=tree, behind=behind)
        except Exception as error:
            self._fail(known.tenant, error)
            return _NOTHING

    def _learn(self, known: _Text, tokens: Sequence[int]) -> None:
        try:
            known.session.extend(tokens)
        except Exception as error:
            self._fail(known.tenant, error)
        else:
            known.length += len(tokens)

    def _fail(self, tenant: str, error: Exception) -> None:
        if tenant not in self._failed:
            logger.warning(
                "no more tokens are drafted from earlier texts of tenant %s: %s: %s",
                tenant,
                type(error).__name__,
                error,
            )
        self._failed.add(tenant)
        self._texts = {text: known for text, known in self._texts.items() if known.tenant != tenant}
