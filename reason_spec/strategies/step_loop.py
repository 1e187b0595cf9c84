"""The phases that lookahead and SpecReason share: draft a step, let the target write one, take a verdict."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from reason_spec.engines.generation import EngineRequest
from reason_spec.errors import EngineError
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.branch import Branch, BranchState, Draft, DraftState
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.strategies.step_requests import StepRequests, sampling_of_sibling
from reason_spec.strategies.step_tree import StepTree
from reason_spec.strategies.target_hints import TargetHints, TokenListener
from reason_spec.strategies.text_stream import TextStream
from reason_spec.types import Sampling, Step, Verdict


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """Differences between strategies that share a loop."""

    is_exact: bool = False
    """A draft is only accepted if the target wrote the same tokens."""
    proposes_known_steps: bool = True
    """The suffix cache may propose a step in the draft's place."""
    hands_over: bool = False
    """The loop ends before the text does when the load controller allows no steps ahead."""
    takeover_tokens: int | None = None
    """Tokens that the target writes at most in the place of a drafted step; None: a whole step."""


class StepLoop(ABC):
    """Writes one answer step by step. Each open position runs `_write_position` as a task of its own."""

    _streams_drafts: ClassVar[bool] = False
    """Whether the target gets the tokens of a draft as hints before the draft is complete."""

    def __init__(self, answer: AnswerWork, options: LoopOptions) -> None:
        settings, target = answer.settings, answer.target
        hinted = settings.use_hint and settings.depth > 0 and settings.num_draft_tokens > 0
        hinted = hinted and target.takes_hints
        # A head is cheaper than the draft model, which then writes the next steps meanwhile.
        redrafts = settings.use_redraft and not target.drafts_itself
        self._redrafts = hinted and redrafts and can_share_tokens(answer.draft, target)
        self._answer = answer
        self._recorder = answer.recorder
        self._sampling = answer.request.sampling
        self._requests = StepRequests(settings, target, answer.draft, self._redrafts, options.takeover_tokens)
        self._tree = StepTree(answer, self._write_position)
        self._options = options

    async def steps(self) -> AsyncGenerator[Step]:
        """Yield the steps as they become final; cancel the remaining work when closed.

        A caller that commits each step before it asks for the next one lets the suffix cache know the step
        when it is asked what follows.
        """
        try:
            root = self._tree.open_root()
            while True:
                step = await self._answer.wait_for(root.decision)
                chosen = root.chosen
                drafted = () if chosen is None else (*chosen.prefix_works, chosen.work)
                for work in (root.target, *drafted):
                    if work is not None:
                        work.kept = True
                yield step
                if self._tree.is_last(root, step):
                    return
                if self._options.hands_over and self._tree.is_stopped and root.successor is None:
                    return
                root = self._tree.advance()
        finally:
            self._tree.warn_of_bound()
            await self._answer.close()

    @abstractmethod
    async def _write_position(self, branch: Branch) -> None:
        """Write a position and decide it."""

    # --- Draft -------------------------------------------------------------------------------------

    def _begin_drafts(self, branch: Branch) -> list[Draft]:
        """Begin ``width`` drafts of a step; where the suffix cache proposes one it is the only draft."""
        if (known := self._known_step(branch)) is not None:
            number = self._recorder.start("cache", *branch.row, "step")
            self._answer.note_written("cache", branch.row, number, known.text, len(known.tokens))
            branch.drafts.append(Draft(number, step=known))
        else:
            for index in range(self._answer.settings.width):
                self._begin_draft(branch, sampling_of_sibling(self._sampling, index))
        return branch.drafts

    def _begin_draft(self, branch: Branch, sampling: Sampling, step_prefix: tuple[int, ...] = ()) -> Draft:
        request = self._requests.request("draft", branch, sampling, step_prefix)
        request = replace(request, stream=request.stream and self._streams_drafts)
        work = self._tree.submit("draft", branch, request)
        draft = Draft(work.number, work, step_prefix)
        branch.drafts.append(draft)
        return draft

    def _known_step(self, branch: Branch) -> Step | None:
        session = self._answer.request.suffix_session
        if session is None or not (self._options.proposes_known_steps and session.proposes_steps):
            return None
        self._recorder.num_cache_asked += 1
        return session.next_step(self._requests.request("target", branch, self._sampling))

    async def _write_draft(self, branch: Branch, draft: Draft) -> bool:
        """Wait for a drafted step, hint it to the target and look ahead after it; False if it is lost."""
        step = draft.step or await self._drafted_step(branch, draft)
        if branch.state is not BranchState.OPEN:
            return False
        others = (other.step for other in branch.drafts if other is not draft)
        if step is None or any(other is not None and other.text == step.text for other in others):
            draft.state = DraftState.LOST
            return False
        draft.step, draft.state = step, DraftState.WRITTEN
        if branch.hints is not None:
            branch.hints.offer_step(branch.drafts.index(draft), step.tokens, draft.number)
        self._tree.look_ahead(branch, draft)
        return True

    async def _drafted_step(self, branch: Branch, draft: Draft) -> Step | None:
        """Return the step in the target's tokens; None where it is lost.

        It is lost if it was cancelled, its engine failed, or the answer has no room for it.
        """
        assert draft.work is not None
        generation = draft.work.generation
        if generation.request.stream and draft is branch.drafts[0]:
            written: list[int] = []
            async for delta in generation:
                written += delta.tokens
                if branch.hints is not None:
                    branch.hints.offer(tuple(written))
        try:
            step = await self._answer.finished(draft.work)
        except EngineError as error:
            self._recorder.lose_draft(error)
            self._recorder.emit("cancelled", "draft", *branch.row, work=draft.number)
            return None
        step = step and self._requests.for_target(step, draft.step_prefix)
        # In the target's tokens a step may be longer than in the draft's.
        return None if step is None or len(step.tokens) > branch.request.max_tokens else step

    # --- Target ------------------------------------------------------------------------------------

    async def _write_target(self, branch: Branch) -> Step | None:
        """Let the target write its own step, with the drafts as hints; None where the branch was dropped."""
        request = self._requests.request("target", branch, self._sampling)
        request = replace(request, stream=request.stream or self._recorder.on_text is not None)
        branch.target = self._tree.submit("target", branch, request)
        redraft = self._requests.request("draft", branch, self._sampling) if self._redrafts else None
        branch.hints = TargetHints(self._answer, branch.target, redraft)
        if (reading := branch.hints.follow(self._listener(branch, request))) is not None:
            self._tree.spawn(branch, reading)
        for index, draft in enumerate(branch.drafts):
            if draft.step is not None:
                branch.hints.offer_step(index, draft.step.tokens, draft.number)
        branch.target_step = await self._answer.finished(branch.target)
        if branch.target_step is not None:
            branch.state = BranchState.VERIFYING
        return branch.target_step

    def _listener(self, branch: Branch, request: EngineRequest) -> TokenListener | None:
        """Return a listener that streams the target's text while no draft can take its place."""
        on_text, start = self._recorder.on_text, branch.request.chars_before
        if on_text is None:
            return None
        stream = TextStream(on_text, self._answer.target.tokenizer, request, start)

        def listen(tokens: Sequence[int]) -> None:
            stream.feed(tokens)
            if branch is self._tree.root and self._is_settled(branch):
                stream.flush()

        return listen

    def _is_settled(self, branch: Branch) -> bool:
        """Whether no draft can replace what the target is writing at the root."""
        return self._options.is_exact

    # --- Verify ------------------------------------------------------------------------------------

    async def _take_verdict(
        self, branch: Branch, draft: Draft, judging: Awaitable[Verdict], unknown: DraftState
    ) -> None:
        """Wait for a verdict on a draft and record it; ``unknown`` is the draft's state without a result."""
        assert draft.step is not None
        number = self._recorder.start("verifier", *branch.row, "verdict", about=draft.number)
        try:
            verdict = await judging
        except asyncio.CancelledError:
            self._recorder.emit("cancelled", "verifier", *branch.row, work=number)
            raise
        self._recorder.add_work("target", verdict.work, kept=True)
        draft.verdict = verdict if draft.verdict is None else verdict.with_costs_of(draft.verdict)
        states = {"accept": DraftState.ACCEPTED, "reject": DraftState.REJECTED, "unknown": unknown}
        draft.state = states[verdict.decision]
        is_open = draft.state is DraftState.UNDECIDED
        self._recorder.emit(
            "checked" if is_open else "verified",
            "verifier",
            *branch.row,
            text=draft.step.text,
            verdict=draft.verdict,
            origin=draft.step.origin,
            work=number,
            about=draft.number,
        )
