"""The draft model as the token-level drafter of a generation of the target, each on its own cores.

Speculative decoding (arXiv 2211.17192) drafts, verifies, drafts again. Here neither model waits: while
the target verifies a hint, the draft writes on after it, and it restarts after the last verified token only
where the target rejects a draft token (PEARL's post-verify, arXiv 2408.11850). With no draft pending, the
target's pass over no draft verifies the draft's first token while the draft writes the ones after it
(pre-verify); a rejected one ends the run. A hint ends where the probability that all of it is right, by the
draft's own probabilities, falls below a threshold: the stopping rule of SpecDec++ (arXiv 2405.19715) without
its trained head.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import log

from reason_spec.control.budget import SpeculationBudget
from reason_spec.engines.base import Engine
from reason_spec.engines.generation import Delta, EngineRequest, Generation
from reason_spec.errors import EngineError
from reason_spec.events import EventKind, Recorder
from reason_spec.strategies.pending_draft import PendingDraft
from reason_spec.types import Usage

DRAFT_RUN_TOKENS = 4
"""Tokens by which a hint grows."""
_MIN_PROBABILITY = 0.1
"""The draft model stops where the probability that all its tokens are right falls below this."""
_RUN_LENGTH = 2
"""Length of a run in multiples of ``max_ahead``."""
_NEVER = sys.maxsize


def can_share_tokens(draft: Engine, target: Engine) -> bool:
    """Return whether the target can verify the draft's token ids as they are."""
    return draft.tokenizer.tokenizer_id == target.tokenizer.tokenizer_id


@dataclass(eq=False, slots=True)
class DraftRun:
    """A generation of the draft from token ``start`` of the target's generation on."""

    start: int
    generation: Generation
    tokens: list[int] = field(default_factory=list)
    work: int | None = None
    usage: Usage | None = None
    """Its work, once it is over."""
    verified: bool = False
    """Whether the target has accepted or rejected its first token."""

    def agrees_with(self, verified: Sequence[int]) -> bool:
        """Return whether the target accepted its first token."""
        return self.tokens[:1] == list(verified[self.start : self.start + 1]) != []


class DraftAhead:
    """Drafts tokens for one generation of the target, until that is over.

    The owner passes on verified tokens by ``confirm``, or lets ``follow`` do it, and closes the object.
    If the draft's engine fails, the target continues alone. The cost of a run does not depend on the length
    of the generation.

    Args:
        draft: has the tokenizer of the target.
        request: how the draft writes. Its prefix is the text before the target's generation; a hint grows by
            its ``delta_tokens``. ``first_delta_tokens`` come earlier, to be compared with the target's, and
            are not offered alone: a pass over one draft token would begin too early for the others.
        max_ahead: no run begins with more pending tokens than this, the most that the target verifies in one
            pass.
        min_probability: bound on the probability that all pending tokens are right.
        waits: the draft writes nothing until the target rejects a token of what ``expect`` was given.
        row: the row of the timeline.
        budget: bounds the pending tokens at any time.
    """

    def __init__(
        self,
        draft: Engine,
        generation: Generation,
        request: EngineRequest,
        recorder: Recorder,
        *,
        max_ahead: int,
        min_probability: float = _MIN_PROBABILITY,
        waits: bool = False,
        row: tuple[int, int] = (0, 0),
        budget: SpeculationBudget | None = None,
    ) -> None:
        self._draft = draft
        self._budget = budget or SpeculationBudget()
        self._generation = generation
        self._request = replace(request, max_tokens=_RUN_LENGTH * max_ahead)
        self._max_ahead = max_ahead
        min_logprob = log(min_probability) if min_probability > 0 else float("-inf")
        self._pending = PendingDraft(request.prefix, min_logprob)
        # The number of verified tokens at which the next run may begin.
        self._resume_at = _NEVER if waits else 0
        self._has_diverged = False
        self._changed = asyncio.Event()
        self._running: DraftRun | None = None
        # Runs that are not over, or whose first token is not verified.
        self._open_runs: list[DraftRun] = []
        self._kept_work = self._lost_work = Usage()
        self._recorder = recorder
        self._row = row
        self._task = asyncio.get_running_loop().create_task(self._write_ahead())

    def confirm(self, tokens: Sequence[int]) -> None:
        """Take new tokens of the target's generation."""
        num_accepted, is_rejected = self._pending.verify(tokens)
        self._budget.record_draft_tokens(num_accepted, rejected=is_rejected)
        if self._running is not None and self._num_allowed == 0:
            self._running.generation.cancel()
        if is_rejected:
            self._restart()
        self._settle_runs()
        self._changed.set()

    def expect(self, tokens: Sequence[int]) -> bool:
        """Take a draft of the whole generation, which the target will be offered, and add nothing to it.

        Return False where the target has rejected one of its tokens: then the draft continues the verified
        tokens.
        """
        if not self._has_diverged:
            if self._pending.replace(tokens):
                self._resume_at = _NEVER
            else:
                self._restart()
                self._changed.set()
        return not self._has_diverged

    def set_priority(self, priority: int) -> None:
        """Change the priority of the current run and of later ones."""
        self._request = replace(self._request, priority=priority)
        if self._running is not None:
            self._running.generation.set_priority(priority)

    async def follow(self, listener: Callable[[Sequence[int]], None] | None = None) -> None:
        """Confirm the tokens of the target's generation, to its end; it has no other reader.

        ``listener`` is called with the same tokens.
        """
        async for delta in self._generation:
            self.confirm(delta.tokens)
            if listener is not None:
                listener(delta.tokens)
        self.stop()

    def stop(self) -> None:
        """Write nothing more."""
        self._task.cancel()
        for run in self._open_runs:
            run.generation.cancel()

    async def close(self) -> None:
        """Stop, wait until the draft's engine has freed all runs, and count the work.

        The work of a run is kept if the target accepted its first token.
        """
        self.stop()
        (failure,) = await asyncio.gather(self._task, return_exceptions=True)
        for run in self._open_runs:
            run.usage = await run.generation.closed()
            self._add_work(run, run.usage)
        self._open_runs = []
        self._recorder.add_work("draft", self._kept_work, kept=True)
        self._recorder.add_work("draft", self._lost_work, kept=False)
        self._kept_work = self._lost_work = Usage()
        if isinstance(failure, EngineError):
            self._recorder.lose_draft(failure)
        elif isinstance(failure, Exception):
            raise failure

    @property
    def _num_allowed(self) -> int:
        """How many tokens may be pending now."""
        return min(self._max_ahead, self._budget.num_draft_tokens)

    async def _write_ahead(self) -> None:
        while not self._generation.done:
            self._changed.clear()
            pending, allowed = self._pending, self._num_allowed
            if len(pending.verified) < self._resume_at or pending.num_ahead > allowed or allowed == 0:
                await self._changed.wait()
            else:
                await self._write_run()

    def _restart(self) -> None:
        """Cancel the run and draft again from the last verified token on."""
        self._has_diverged = True
        self._pending.clear()
        self._resume_at = 0
        if self._running is not None:
            self._running.generation.cancel()
            self._running = None

    async def _write_run(self) -> None:
        """Continue the pending tokens, and offer each piece while the next is written."""
        if self._pending.num_ahead < 0:
            self._pending.clear()
        prefix = self._pending.text()
        if len(prefix) >= self._draft.max_context:
            self._resume_at = _NEVER
            return
        longest = min(self._request.max_tokens, _RUN_LENGTH * self._num_allowed)
        request = replace(self._request, prefix=prefix, max_tokens=max(1, longest))
        run = DraftRun(self._pending.end, self._draft.submit(request))
        self._open_runs.append(run)
        self._running = run
        run.work = self._recorder.start("draft", *self._row, "ahead")
        try:
            async for delta in run.generation:
                run.tokens += delta.tokens
                if self._running is not run or not self._take(run, delta):
                    break
        except asyncio.CancelledError:
            self._note(run, "cancelled")
            raise
        self._note(run, "written" if self._running is run else "cancelled")
        is_taken_whole = self._pending.end == run.start + len(run.tokens)
        result = await run.generation.result()
        run.usage = result.usage
        self._settle_runs()
        if self._running is run and is_taken_whole and result.finish not in ("length", "cancelled"):
            # The text or the step is over for the draft; only a rejection makes it write again.
            self._resume_at = _NEVER
        self._running = None

    def _note(self, run: DraftRun, kind: EventKind) -> None:
        text = "" if kind == "confirmed" else self._draft.tokenizer.decode(run.tokens)
        self._recorder.emit(kind, "draft", *self._row, text=text, num_tokens=len(run.tokens), work=run.work)

    def _settle_runs(self) -> None:
        """Note which runs the target confirmed, and drop those that are over, except for their work."""
        verified = self._pending.verified
        still_open: list[DraftRun] = []
        for run in self._open_runs:
            is_reached = run.start < len(verified)
            if is_reached and run.tokens and not run.verified:
                run.verified = True
                if run.agrees_with(verified):
                    self._note(run, "confirmed")
            if is_reached and run.usage is not None:
                self._add_work(run, run.usage)
            else:
                still_open.append(run)
        self._open_runs = still_open

    def _add_work(self, run: DraftRun, usage: Usage) -> None:
        if run.agrees_with(self._pending.verified):
            self._kept_work += usage
        else:
            self._lost_work += usage

    def _take(self, run: DraftRun, delta: Delta) -> bool:
        """Add new tokens of the draft and offer all pending ones; return False where the run is to end."""
        pending = self._pending
        # The target may have passed the end of the draft.
        num_agreed, is_rejected = pending.catch_up(delta.tokens)
        self._budget.record_late_draft_tokens(num_agreed, rejected=is_rejected)
        if is_rejected:
            self._restart()
            return False
        for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
            if not pending.append(token, logprob):
                self._resume_at = pending.end
                run.generation.cancel()
                break
        if len(run.tokens) > (self._request.first_delta_tokens or 0) or run.generation.done:
            self._generation.offer_hint(tuple(pending.tokens), start=len(pending.verified))
        return len(pending.verified) >= self._resume_at
