"""Offers the drafted step to the target's generation as hints, and redrafts after a rejected token.

Added to the papers: a step that both models write alike then costs the target one or two passes. Where the
target rejects a token of the drafted step, the draft model writes the rest of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TypeAlias

from reason_spec.engines.generation import EngineRequest
from reason_spec.strategies.answer_work import AnswerWork, TrackedGeneration
from reason_spec.strategies.draft_ahead import DraftAhead

TokenListener: TypeAlias = Callable[[Sequence[int]], None]


class TargetHints:
    """The token drafts of one generation of the target.

    Args:
        redraft: how the draft model writes the step; None: it does not write again.
    """

    def __init__(self, answer: AnswerWork, target: TrackedGeneration, redraft: EngineRequest | None) -> None:
        self._recorder = answer.recorder
        self._target = target
        self._is_used = answer.settings.use_hint
        self._ahead: DraftAhead | None = None
        if redraft is not None:
            self._ahead = DraftAhead(
                answer.draft,
                target.generation,
                redraft,
                answer.recorder,
                max_ahead=answer.settings.num_draft_tokens,
                waits=True,
                row=target.row,
                budget=answer.request.budget,
            )
            answer.drafters.append(self._ahead)

    def offer(self, drafted: tuple[int, ...]) -> None:
        """Offer the first draft's tokens so far, unless the target has rejected one of them."""
        if self._is_used and (self._ahead is None or self._ahead.expect(drafted)):
            self._target.generation.offer_hint(drafted)

    def offer_step(self, index: int, drafted: tuple[int, ...], number: int) -> None:
        """Offer a whole draft; a sibling may be right where the first one (``index`` 0) is not.

        ``number`` is the draft's in the timeline.
        """
        if index == 0:
            self.offer(drafted)
            self._recorder.emit("hinted", "target", *self._target.row, about=number)
        elif self._is_used:
            self._target.generation.offer_hint(drafted, index=index)

    def follow(self, listener: TokenListener | None) -> Coroutine[None, None, None] | None:
        """Return what reads the target's tokens, for redrafting and the listener; None if nothing has to."""
        if self._ahead is not None:
            return self._ahead.follow(listener)
        return None if listener is None else self._read(listener)

    async def _read(self, listener: TokenListener) -> None:
        async for delta in self._target.generation:
            listener(delta.tokens)

    def set_priority(self, priority: int) -> None:
        if self._ahead is not None:
            self._ahead.set_priority(priority)

    def stop(self) -> None:
        """Redraft nothing more."""
        if self._ahead is not None:
            self._ahead.stop()
