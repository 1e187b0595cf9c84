"""The draft model as the token-level drafter of a generation of the target, each on its own cores.

Speculative decoding (arXiv 2211.17192) drafts, verifies, drafts again. Here neither model waits: while
the target checks what it was handed, the draft writes on after it, and it begins anew from what is
certain only where the two part (PEARL's post-verify, arXiv 2408.11850). Where nothing is ahead, the target's
pass over no draft checks the draft's first token while the draft writes the ones after it (pre-verify); a
refused one ends the run. What is handed over ends where the chance that all of it is right, by the draft's
own probabilities, falls below a threshold: the stopping rule of SpecDec++ (arXiv 2405.19715) without its
trained head.
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
from reason_spec.suffix.base import num_shared
from reason_spec.types import Prefix, Usage

DRAFT_RUN_TOKENS = 4
"""Tokens by which a hint grows."""
_LEAST_CHANCE = 0.1
"""The draft model stops where the probability that all its tokens are right falls below this."""
_RUN_LENGTH = 2
"""Length of a run in multiples of ``max_ahead``."""


def can_share_tokens(draft: Engine, target: Engine) -> bool:
    """Tell whether the draft's tokens can be handed to the target as they are."""
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
    settled: bool = False
    """Whether it is known that the target chose its first token too, or another."""

    def agrees_with(self, certain: Sequence[int]) -> bool:
        """Tell whether its first token is the one that the target chose."""
        return self.tokens[:1] == list(certain[self.start : self.start + 1]) != []


class DraftAhead:
    """Drafts tokens for one generation of the target, until that is over.

    Both models must have one tokenizer. ``request`` says how the draft writes; its prefix is what
    stands before the target's generation, and its ``delta_tokens`` is how many tokens a hint grows by. With
    ``first_delta_tokens`` so many come earlier, to be compared with the target's and not handed over alone: a
    pass over one drafted token would begin too early for the others.
    No run begins while more than ``max_ahead`` tokens wait to be checked: what the target can take in
    one pass, so that the next pass has as many.
    With ``waits`` the draft writes nothing until the target parts from what ``expect`` was told.
    It writes no further ahead than ``budget`` allows at the time.
    The cost of a run does not depend on the length of the generation. ``place`` is the row of the timeline.
    The owner passes on certain tokens with ``confirm`` or lets ``follow`` do it, and closes the object.
    Where the draft's engine fails, nothing more is handed over, and the target goes on alone.
    """

    def __init__(
        self,
        draft: Engine,
        generation: Generation,
        request: EngineRequest,
        recorder: Recorder,
        *,
        max_ahead: int,
        min_chance: float = _LEAST_CHANCE,
        waits: bool = False,
        place: tuple[int, int] = (0, 0),
        budget: SpeculationBudget | None = None,
    ) -> None:
        self._draft = draft
        self._budget = budget or SpeculationBudget()
        self._generation = generation
        self._request = replace(request, max_tokens=_RUN_LENGTH * max_ahead)
        self._max_ahead = max_ahead
        self._min_logprob = log(min_chance) if min_chance > 0 else float("-inf")
        self._certain: list[int] = []
        # Ends with the first ``_num_placed`` certain tokens. Runs go on from it, so that all share its nodes.
        self._prefix = request.prefix
        self._num_placed = 0
        # What is expected agrees with what is certain as far as both go. Its end may be behind, with nothing
        # ahead, or so many tokens ahead.
        self._end = 0
        self._ahead: list[int] = []
        self._logprobs: list[float] = []
        self._go_on_at = sys.maxsize if waits else 0
        self._parted = False
        self._changed = asyncio.Event()
        self._running: DraftRun | None = None
        # Those that are not over, or of which it is not known whether they were of use.
        self._open_runs: list[DraftRun] = []
        self._kept_work = self._lost_work = Usage()
        self._recorder = recorder
        self._place = place
        self._task = asyncio.get_running_loop().create_task(self._write_ahead())

    def confirm(self, tokens: Sequence[int]) -> None:
        """Take tokens of the target's generation that became certain."""
        expected = self._ahead[: len(tokens)]
        self._certain += tokens
        num_accepted = num_shared(expected, list(tokens))
        self._budget.record_draft_tokens(num_accepted, rejected=num_accepted < len(expected))
        if self._running is not None and self._num_allowed == 0:
            self._running.generation.cancel()
        if expected != list(tokens[: len(expected)]):
            self._part()
        else:
            del self._ahead[: len(tokens)], self._logprobs[: len(tokens)]
        self._settle_runs()
        self._changed.set()

    def expect(self, tokens: Sequence[int]) -> bool:
        """Take what the target is to be handed from the start of its generation on, and add nothing to it.

        Return False where the target has parted from it: then the draft writes on in its words.
        """
        if not self._parted:
            length = min(len(tokens), len(self._certain))
            if list(tokens[:length]) == self._certain[:length]:
                self._expect(tokens)
                self._go_on_at = sys.maxsize
            else:
                self._part()
                self._changed.set()
        return not self._parted

    def set_priority(self, priority: int) -> None:
        """Change the priority of the current run and of later ones."""
        self._request = replace(self._request, priority=priority)
        if self._running is not None:
            self._running.generation.set_priority(priority)

    async def follow(self, tell: Callable[[Sequence[int]], None] | None = None) -> None:
        """Confirm the tokens of the target's generation, to its end; it has no other reader.

        ``tell`` is called with the same tokens.
        """
        async for delta in self._generation:
            self.confirm(delta.tokens)
            if tell is not None:
                tell(delta.tokens)
        self.stop()

    def stop(self) -> None:
        """Write nothing more."""
        self._task.cancel()
        for run in self._open_runs:
            run.generation.cancel()

    async def close(self) -> None:
        """Stop, wait until the draft's engine holds nothing of this, and count the work.

        A run is of use where the target confirmed its first token.
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
        """How many tokens may wait to be checked now."""
        return min(self._max_ahead, self._budget.num_draft_tokens)

    async def _write_ahead(self) -> None:
        while not self._generation.done:
            self._changed.clear()
            num_ahead = self._end - len(self._certain)
            allowed = self._num_allowed
            if len(self._certain) < self._go_on_at or num_ahead > allowed or allowed == 0:
                await self._changed.wait()
            else:
                await self._write_run()

    def _expect(self, tokens: Sequence[int]) -> None:
        self._end = len(tokens)
        self._ahead = list(tokens[len(self._certain) :])
        self._logprobs = [0.0] * len(self._ahead)

    def _expect_nothing(self) -> None:
        """Expect the confirmed tokens and nothing after them."""
        self._end = len(self._certain)
        self._ahead, self._logprobs = [], []

    def _part(self) -> None:
        """Restart after the certain tokens."""
        self._parted = True
        self._expect_nothing()
        self._go_on_at = 0
        if self._running is not None:
            self._running.generation.cancel()
            self._running = None

    async def _write_run(self) -> None:
        """Continue after the expected tokens, and hint each piece while the next is written."""
        if self._end < len(self._certain):
            self._expect_nothing()
        prefix = self._certain_prefix()
        if self._ahead:
            prefix = prefix.extend(tuple(self._ahead))
        if len(prefix) >= self._draft.max_context:
            self._go_on_at = sys.maxsize
            return
        longest = min(self._request.max_tokens, _RUN_LENGTH * self._num_allowed)
        request = replace(self._request, prefix=prefix, max_tokens=max(1, longest))
        run = DraftRun(self._end, self._draft.submit(request))
        self._open_runs.append(run)
        self._running = run
        run.work = self._recorder.start("draft", *self._place, "ahead")
        try:
            async for delta in run.generation:
                run.tokens += delta.tokens
                if self._running is not run or not self._take(run, delta):
                    break
        except asyncio.CancelledError:
            self._note(run, "cancelled")
            raise
        ended = self._running is run
        self._note(run, "written" if ended else "cancelled")
        self._running = None
        result = await run.generation.result()
        run.usage = result.usage
        self._settle_runs()
        if ended and result.finish not in ("length", "cancelled"):
            # The text or the step is over for the draft; only a parting makes it write again.
            self._go_on_at = sys.maxsize

    def _certain_prefix(self) -> Prefix:
        """Return the request's prefix and the confirmed tokens."""
        if new := tuple(self._certain[self._num_placed :]):
            self._prefix = self._prefix.extend(new)
            self._num_placed = len(self._certain)
        return self._prefix

    def _note(self, run: DraftRun, kind: EventKind) -> None:
        text = "" if kind == "confirmed" else self._draft.tokenizer.decode(run.tokens)
        self._recorder.emit(kind, "draft", *self._place, text=text, num_tokens=len(run.tokens), work=run.work)

    def _settle_runs(self) -> None:
        """Note which runs the target confirmed, and keep of those that are over nothing but their work."""
        still_open: list[DraftRun] = []
        for run in self._open_runs:
            reached = run.start < len(self._certain)
            if reached and run.tokens and not run.settled:
                run.settled = True
                if run.agrees_with(self._certain):
                    self._note(run, "confirmed")
            if reached and run.usage is not None:
                self._add_work(run, run.usage)
            else:
                still_open.append(run)
        self._open_runs = still_open

    def _add_work(self, run: DraftRun, usage: Usage) -> None:
        if run.agrees_with(self._certain):
            self._kept_work += usage
        else:
            self._lost_work += usage

    def _take(self, run: DraftRun, delta: Delta) -> bool:
        """Hand over what the draft has written; False where it is to stop.

        It ends where the chance that all of it is right falls below the threshold: what is certain
        counts no more.
        """
        start = len(self._certain)
        # The target may have gone on past the end of what the draft had written so far.
        overtaken = self._certain[self._end : self._end + len(delta.tokens)]
        num_agreed = num_shared(overtaken, list(delta.tokens))
        self._budget.record_late_draft_tokens(num_agreed, rejected=num_agreed < len(overtaken))
        if num_agreed < len(overtaken):
            self._part()
            return False
        for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
            # One token costs the target next to nothing to check.
            likely = sum(self._logprobs) + logprob >= self._min_logprob
            if not likely and self._ahead:
                self._go_on_at = self._end
                run.generation.cancel()
                break
            self._end += 1
            if self._end > start:
                self._ahead.append(token)
                self._logprobs.append(logprob)
        if len(run.tokens) > (self._request.first_delta_tokens or 0) or run.generation.done:
            self._generation.offer_hint(tuple(self._ahead), start=start)
        return len(self._certain) >= self._go_on_at
