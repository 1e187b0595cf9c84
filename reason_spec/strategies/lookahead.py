"""Asynchronous Lookahead Reasoning (arXiv 2506.19830, section 3), with two additions.

The draft runs up to ``depth`` steps ahead of the target. As soon as a drafted step exists, the
target starts on the step behind it, so that several positions are checked at once. A drafted step
stands where the verifier finds it the same as the target's own step; where none does, the target's
step stands and everything built on the drafts is cancelled. Each decision makes one step final.

Added to the paper: the drafted step is also handed to the target's token level as a hint, so that
a step both models write alike costs the target one or two passes; where the target parts from it, the
draft model writes the rest of the step anew in the target's words, as a hint again; and a position
refused ahead of time goes on from the target's step at once, without waiting for those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from reason_spec.engines.base import Engine, Generation, Request
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive, DraftModelSpeculation, TokenSpeculation
from reason_spec.strategies.base import SolveRequest, Strategy, step_from_result, tokens_for
from reason_spec.strategies.draft_ahead import DraftAhead, can_share_tokens
from reason_spec.types import LossClass, Plan, Prefix, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext

_SIBLING_TEMPERATURE = 0.8
"""Siblings of the first draft are sampled at least this warm: a second greedy draft is the same."""


class Lookahead(Strategy):
    """The draft thinks ahead; the target checks several steps in parallel."""

    name: ClassVar[str] = "lookahead"

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else self.verifier.loss_class

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        if self.planner is None:
            writing = self._search(self.settings, request, recorder)
        else:
            recorder.plan = self.planner.plan()
            writing = self._write_planned(recorder.plan, request, recorder)
        async with aclosing(writing) as steps:
            async for step in steps:
                yield step
        if self.planner is not None:
            self.planner.learn(recorder, self.target.pass_times, self.draft.pass_times)

    def _write_planned(self, plan: Plan, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Write under a plan; without steps ahead the answer is one request, with all there is for tokens."""
        split = {"depth": plan.depth, "num_draft_tokens": plan.num_draft_tokens}
        settings = self.settings.model_copy(update=split)
        if plan.depth > 0:
            return self._search(settings, request, recorder)
        kind: type[Autoregressive] = Autoregressive
        if plan.num_draft_tokens > 0:
            handed_over = self.target.takes_hints and can_share_tokens(self.draft, self.target)
            kind = DraftModelSpeculation if handed_over else TokenSpeculation
        return kind(settings, self.target, self.draft, self.verifier)._write_steps(request, recorder)

    async def _search(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        search = _Search(self, settings, request, recorder)
        try:
            root = search.open_root()
            while True:
                step = await search.decided(root)
                yield step
                if step.ends_text or root.num_tokens_left <= len(step.tokens):
                    return
                root = search.advance(root)
        finally:
            await search.close()


@dataclass(eq=False, slots=True)
class _Draft:
    """One attempt of the draft at a position, and the branch that trusts it."""

    generation: Generation
    step: Step | None = None
    verdict: Verdict | None = None
    successor: _Branch | None = None


@dataclass(eq=False, slots=True)
class _Branch:
    """A position of the solution: what is assumed before it, and the steps written for it."""

    number: int
    step_index: int
    target_prefix: Prefix
    draft_prefix: Prefix
    num_tokens_left: int
    previous: Step | None
    text_before: str
    decision: asyncio.Future[Step]
    target_generation: Generation | None = None
    ahead: DraftAhead | None = None
    target_step: Step | None = None
    drafts: list[_Draft] = field(default_factory=list)
    drafting_started: bool = False
    chosen: _Draft | None = None
    successor: _Branch | None = None
    dropped: bool = False

    @property
    def decided(self) -> bool:
        return self.decision.done()

    def descendants(self) -> Iterator[_Branch]:
        """Yield the branches behind this one: behind the chosen step, or behind every draft."""
        behind = [self.successor] if self.decided else [draft.successor for draft in self.drafts]
        for branch in behind:
            if branch is not None:
                yield branch
                yield from branch.descendants()


class _Search:
    """The live branches of one solution."""

    def __init__(
        self, strategy: Lookahead, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> None:
        self._settings = settings
        self._target = strategy.target
        self._draft = strategy.draft
        self._verifier = strategy.verifier
        self._request = request
        self._recorder = recorder
        hinted = settings.use_hint and settings.depth > 0 and settings.num_draft_tokens > 0
        hinted = hinted and self._target.takes_hints
        # Without the hint there is nothing that the target could part from.
        self._redrafts = hinted and settings.use_redraft and can_share_tokens(self._draft, self._target)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: list[tuple[Literal["draft", "target"], Generation]] = []
        self._kept: set[Generation] = set()
        self._aheads: list[DraftAhead] = []
        self._num_branches = 0
        self._root_index = 0

    def open_root(self) -> _Branch:
        assert self._request.draft_prompt is not None
        return self._open(
            step_index=0,
            target_prefix=self._request.target_prompt,
            draft_prefix=self._request.draft_prompt,
            num_tokens_left=self._request.max_tokens,
            previous=None,
            text_before="",
        )

    async def decided(self, root: _Branch) -> Step:
        """Wait for the final step of a position, or for the failure of any work on it."""
        waiting: set[asyncio.Future[Any]] = {root.decision, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        if root.target_generation is not None:
            self._kept.add(root.target_generation)
        if root.chosen is not None:
            self._kept.add(root.chosen.generation)
        return root.decision.result()

    def advance(self, root: _Branch) -> _Branch:
        """Return the position behind a decided one, and let the draft look further ahead."""
        self._root_index += 1
        if root.successor is None:
            root.successor = self._open_behind(root, root.decision.result())
        for branch in [root.successor, *root.successor.descendants()]:
            if branch.decided:
                self._go_on_from(branch)
            else:
                self._start_drafting(branch)
        return root.successor

    async def close(self) -> None:
        """Cancel all work, wait until the engines are free of it, and count it."""
        for task in self._tasks:
            task.cancel()
        for _, generation in self._work:
            generation.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A failure of the draft's engine was noted when it came; here all work is only counted.
        closing = (ahead.close(self._recorder) for ahead in self._aheads)
        await asyncio.gather(*closing, return_exceptions=True)
        for lane, generation in self._work:
            usage = await generation.closed()
            self._recorder.add_work(lane, usage, kept=generation in self._kept)
        if self._failure.done():
            self._failure.exception()

    # --- a position opens: the target writes, the draft tries -----------------------------------

    def _open(
        self,
        *,
        step_index: int,
        target_prefix: Prefix,
        draft_prefix: Prefix,
        num_tokens_left: int,
        previous: Step | None,
        text_before: str,
    ) -> _Branch:
        decision: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        branch = _Branch(
            self._num_branches,
            step_index,
            target_prefix,
            draft_prefix,
            num_tokens_left,
            previous,
            text_before,
            decision,
        )
        self._num_branches += 1
        self._spawn(self._write_target(branch))
        self._start_drafting(branch)
        return branch

    def _open_behind(self, branch: _Branch, step: Step) -> _Branch:
        target_tokens = tokens_for(step, self._target)
        return self._open(
            step_index=branch.step_index + 1,
            target_prefix=branch.target_prefix.extend(target_tokens),
            draft_prefix=branch.draft_prefix.extend(tokens_for(step, self._draft)),
            num_tokens_left=branch.num_tokens_left - len(target_tokens),
            previous=step,
            text_before=branch.text_before + step.text,
        )

    def _start_drafting(self, branch: _Branch) -> None:
        has_room = len(branch.draft_prefix) < self._draft.max_context
        if branch.drafting_started or branch.target_step is not None:
            return
        if not (self._within_depth(branch) and has_room):
            return
        branch.drafting_started = True
        for index in range(self._settings.width):
            generation = self._submit("draft", branch, self._sibling_sampling(index))
            draft = _Draft(generation)
            branch.drafts.append(draft)
            self._spawn(self._write_draft(branch, draft))

    def _sibling_sampling(self, index: int) -> Sampling:
        sampling = self._request.sampling
        if index == 0:
            return sampling
        noise = replace(sampling.noise, sample=sampling.noise.sample + (index << 32))
        return replace(sampling, temperature=max(sampling.temperature, _SIBLING_TEMPERATURE), noise=noise)

    def _request_for(self, lane: Literal["draft", "target"], branch: _Branch, sampling: Sampling) -> Request:
        context_length = self._request.stop_context_length
        return Request(
            prefix=branch.target_prefix if lane == "target" else branch.draft_prefix,
            max_tokens=min(self._settings.step_max_tokens, branch.num_tokens_left),
            sampling=sampling,
            boundary=self._request.boundary,
            stops=self._request.stops,
            stop_context=branch.text_before[-context_length:] if context_length else "",
            # Where the draft model hands over what it expects, guesses from the text only cost room.
            token_drafter="none" if lane == "target" and self._redrafts else self._settings.token_drafter,
            num_draft_tokens=self._settings.num_draft_tokens,
            num_lookup_paths=self._settings.lookup_paths,
            priority=branch.step_index,
            stream=self._redrafts,
            delta_tokens=1 if lane == "target" else self._settings.draft_run_tokens,
        )

    def _submit(self, lane: Literal["draft", "target"], branch: _Branch, sampling: Sampling) -> Generation:
        engine = self._target if lane == "target" else self._draft
        generation = engine.submit(self._request_for(lane, branch, sampling))
        self._work.append((lane, generation))
        self._recorder.emit("started", lane, branch.step_index, branch.number)
        return generation

    # --- the three kinds of work on a position ---------------------------------------------------

    async def _write_target(self, branch: _Branch) -> None:
        generation = self._submit("target", branch, self._request.sampling)
        branch.target_generation = generation
        branch.ahead = self._start_ahead(branch, generation)
        if branch.ahead is not None:
            self._spawn(branch.ahead.follow())
        step = await self._finished("target", branch, generation)
        if step is None or branch.dropped:
            return
        branch.target_step = step
        for draft in branch.drafts:
            # A draft that is slower than the target itself has nothing left to save.
            if draft.step is None:
                self._cancel("draft", branch, draft.generation)
        await asyncio.gather(*(self._verify(branch, draft) for draft in branch.drafts if draft.step))
        if not branch.dropped:
            self._decide(branch)

    def _start_ahead(self, branch: _Branch, generation: Generation) -> DraftAhead | None:
        """Let the draft model write the rest of a step anew where the target parts from the drafted one."""
        if not self._redrafts:
            return None
        request = self._request_for("draft", branch, self._request.sampling)
        ahead = DraftAhead(
            self._draft,
            generation,
            request,
            max_ahead=self._settings.num_draft_tokens,
            min_chance=self._settings.min_draft_chance,
            waits=True,
        )
        self._aheads.append(ahead)
        return ahead

    async def _write_draft(self, branch: _Branch, draft: _Draft) -> None:
        if draft is branch.drafts[0] and self._redrafts:
            written: list[int] = []
            async for delta in draft.generation:
                written += delta.tokens
                self._hint(branch, tuple(written))
        step = await self._finished("draft", branch, draft.generation)
        if step is None or branch.dropped or branch.target_step is not None:
            return
        if self._has_twin(branch, step):
            return
        draft.step = replace(
            step, tokens=tokens_for(step, self._target), tokenizer_id=self._target.tokenizer.tokenizer_id
        )
        if draft is not branch.drafts[0]:
            self._hint_sibling(branch, draft)
        else:
            self._hint(branch, draft.step.tokens)
            self._recorder.emit("hinted", "target", branch.step_index, branch.number)
        repeats = branch.previous is not None and branch.previous.text == step.text
        tokens_left = branch.num_tokens_left - len(draft.step.tokens)
        if not (step.ends_text or repeats) and tokens_left > 0:
            draft.successor = self._open_behind(branch, draft.step)

    async def _verify(self, branch: _Branch, draft: _Draft) -> None:
        assert draft.step is not None
        context = VerificationContext(self._request.question, branch.text_before)
        draft.verdict = await self._verifier.verify(context, draft.step, branch.target_step)
        self._recorder.emit(
            "verified",
            "verifier",
            branch.step_index,
            branch.number,
            text=draft.step.text,
            verdict=draft.verdict,
        )

    def _decide(self, branch: _Branch) -> None:
        """Let the first accepted draft stand, else the target's step; drop what follows the others."""
        assert branch.target_step is not None
        compared = [draft for draft in branch.drafts if draft.verdict is not None]
        branch.chosen = next((draft for draft in compared if draft.verdict and draft.verdict.accepted), None)
        for draft in branch.drafts:
            if draft is not branch.chosen and draft.successor is not None:
                self._drop(draft.successor)
        if branch.chosen is not None and branch.chosen.step is not None:
            step = replace(branch.chosen.step, verdict=branch.chosen.verdict)
            branch.successor = branch.chosen.successor
        else:
            step = replace(branch.target_step, verdict=compared[0].verdict if compared else None)
        branch.decision.set_result(step)
        self._go_on_from(branch)

    def _go_on_from(self, branch: _Branch) -> None:
        """Open the position behind a decided one, ahead of time where the depth allows it."""
        step = branch.decision.result()
        over = step.ends_text or branch.num_tokens_left <= len(step.tokens)
        if branch.successor is None and not over and self._within_depth(branch):
            branch.successor = self._open_behind(branch, step)

    def _within_depth(self, branch: _Branch) -> bool:
        return branch.step_index - self._root_index < self._settings.depth

    # --- helpers -----------------------------------------------------------------------------------

    async def _finished(
        self, lane: Literal["draft", "target"], branch: _Branch, generation: Generation
    ) -> Step | None:
        """Wait for a generation; None where it was cancelled."""
        result = await generation.result()
        if result.finish == "cancelled":
            return None
        engine: Engine = self._target if lane == "target" else self._draft
        self._recorder.emit(
            "written", lane, branch.step_index, branch.number, text=result.text, num_tokens=len(result.tokens)
        )
        return step_from_result(result, lane, engine)

    def _hint_sibling(self, branch: _Branch, sibling: _Draft) -> None:
        """Hand the target a sibling of the first draft as well: it may be right where the first is not."""
        assert sibling.step is not None
        if self._settings.use_hint and branch.target_generation is not None:
            index = branch.drafts.index(sibling)
            branch.target_generation.offer_hint(sibling.step.tokens, index=index)

    def _hint(self, branch: _Branch, drafted: tuple[int, ...]) -> None:
        """Hand the target what the draft has written of the step, unless the two have parted."""
        if not self._settings.use_hint or branch.target_generation is None:
            return
        if branch.ahead is None or branch.ahead.expect(drafted):
            branch.target_generation.offer_hint(drafted)

    @staticmethod
    def _has_twin(branch: _Branch, step: Step) -> bool:
        return any(other.step is not None and other.step.text == step.text for other in branch.drafts)

    def _drop(self, branch: _Branch) -> None:
        for lost in [branch, *branch.descendants()]:
            lost.dropped = True
            if lost.ahead is not None:
                lost.ahead.stop()
            if lost.target_generation is not None:
                self._cancel("target", lost, lost.target_generation)
            for draft in lost.drafts:
                self._cancel("draft", lost, draft.generation)

    def _cancel(self, lane: Literal["draft", "target"], branch: _Branch, generation: Generation) -> None:
        if not generation.done and not generation.cancel_requested:
            generation.cancel()
            self._recorder.emit("cancelled", lane, branch.step_index, branch.number)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None or self._failure.done():
            return
        error = task.exception()
        assert error is not None
        self._failure.set_exception(error)
