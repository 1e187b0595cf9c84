"""Speculative Chain-of-Thought (arXiv 2504.19095): the target picks one of several whole drafts, or none.

In the paper a draft model trained to think like the target samples five chains of thought, and the target,
trained to pick, reads all and names the best, or says that all are wrong. After the best chain the target
writes the answer; where all are wrong it thinks itself.

Here no model is trained to pick: a verifier that judges alone reads each draft. Judged step by step while it
is written, a draft is as good as its weakest step, and it ends with the first step that is not accepted.
Judged as a whole (``judge_whole``, nearer to the paper), one wrong step may go unseen among the right ones,
but one doubtful step of a long draft does not reject it. The best accepted draft is picked. The target's part
begins where the thinking ends, or with the draft's last step where no text marks the end of thinking.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple

from reason_spec.engines.generation import EngineRequest
from reason_spec.errors import EngineError
from reason_spec.events import Recorder
from reason_spec.strategies.answer_work import AnswerWork, TimelineRow, TrackedGeneration
from reason_spec.strategies.autoregressive import Autoregressive, whole_answer
from reason_spec.strategies.base import RoutedStrategy, SolveRequest, check_judges_alone
from reason_spec.strategies.draft_ahead import DRAFT_RUN_TOKENS
from reason_spec.strategies.step_cutter import StepCutter
from reason_spec.strategies.step_requests import sampling_of_sibling
from reason_spec.strategies.step_tokens import step_for
from reason_spec.types import Prefix, Step, Usage, Verdict
from reason_spec.verifiers.base import Verifier

_NUM_DRAFTS: Final = 5
"""The paper's number of drafts, used where ``width`` is 1: one draft leaves nothing to pick."""


class Scot(RoutedStrategy):
    """The draft writes ``width`` whole answers; the target picks one and ends it, or writes its own.

    ``depth`` 0 leaves everything to the target; its other values make no difference, nor does
    ``first_by_target``.
    """

    name: ClassVar[str] = "scot"
    default_verifier: ClassVar[str | None] = "likelihood"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        pick = _Pick()
        if self.settings.depth > 0 and request.budget.depth > 0:
            answer = AnswerWork(self.target, self.draft, self.settings, request, recorder)
            try:
                pick = await _WholeDrafts(answer, self.verifier).pick()
            finally:
                await answer.close()
        for step in pick.thinking:
            yield replace(step, verdict=pick.verdict)
        left = request.after(pick.thinking, self.target, self.draft)
        rejected = None if pick.thinking else pick.verdict
        if self.settings.depth > 0:
            writer = whole_answer(self.settings, self.target, self.draft)
        else:
            writer = Autoregressive(self.settings, self.target, None, None)
        async with aclosing(writer._write_steps(left, recorder)) as steps:
            async for step in steps:
                yield replace(step, verdict=rejected)
                rejected = None


class _Pick(NamedTuple):
    """The thinking of the best draft, empty where none was good enough, and the verdict about it."""

    thinking: tuple[Step, ...] = ()
    verdict: Verdict | None = None


@dataclass(eq=False, slots=True)
class _WholeDraft:
    """One chain of thought, its steps in the target's tokens."""

    work: TrackedGeneration
    rest: SolveRequest
    """The rest of the answer after its steps so far."""
    steps: list[Step] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    """Tokens of each step as the draft counts them."""
    verdict: Verdict | None = None
    """The verdict on its weakest step so far, with the costs of all."""

    @property
    def is_accepted(self) -> bool:
        return self.verdict is not None and self.verdict.accepted

    @property
    def is_lost(self) -> bool:
        return self.verdict is not None and not self.verdict.accepted

    def add(self, verdict: Verdict) -> None:
        earlier = self.verdict
        if earlier is None:
            self.verdict = verdict
        elif verdict.accepted and _score(earlier) <= _score(verdict):
            self.verdict = earlier.with_costs_of(verdict)
        else:
            self.verdict = verdict.with_costs_of(earlier)

    def lose(self, reason: str) -> None:
        self.add(Verdict("unknown", reason=reason))


def _score(verdict: Verdict | None) -> float:
    return float("-inf") if verdict is None or verdict.score is None else verdict.score


class _WholeDrafts:
    """The drafts of one answer, written and judged side by side."""

    def __init__(self, answer: AnswerWork, verifier: Verifier) -> None:
        self._answer = answer
        self._request = answer.request
        self._settings = answer.settings
        self._recorder = answer.recorder
        self._verifier = verifier
        self._verdicts: dict[tuple[str, tuple[int, ...]], asyncio.Task[Verdict]] = {}

    async def pick(self) -> _Pick:
        """Write and judge all drafts, and return the best accepted one."""
        prompt = self._request.draft_prompt
        assert prompt is not None
        if len(prompt) >= self._answer.draft.max_context:
            return _Pick()
        num_drafts = self._settings.width if self._settings.width > 1 else _NUM_DRAFTS
        drafts = [self._begin(index, prompt) for index in range(num_drafts)]
        await asyncio.gather(*(self._answer.spawn(self._write_and_judge(draft)) for draft in drafts))
        accepted = [draft for draft in drafts if draft.is_accepted]
        # The first of equal ones.
        best = max(accepted, key=lambda draft: _score(draft.verdict), default=None)
        for draft in drafts:
            self._decide(draft, best)
        if best is None:
            return _Pick((), drafts[0].verdict)
        best.work.kept = True
        # The target writes what the draft wrote after its thinking.
        best.work.num_used_tokens = sum(best.num_drafted)
        return _Pick(tuple(best.steps), best.verdict)

    def _begin(self, index: int, prompt: Prefix) -> _WholeDraft:
        request = EngineRequest(
            prefix=prompt,
            max_tokens=self._request.max_tokens,
            sampling=sampling_of_sibling(self._request.sampling, index),
            stops=self._request.stops,
            stop_context=self._request.stop_context(self._request.text_before),
            num_draft_tokens=self._settings.num_draft_tokens,
            delta_tokens=DRAFT_RUN_TOKENS,
        )
        row = TimelineRow(self._request.num_steps_before, index)
        return _WholeDraft(self._answer.submit("draft", row, request, "answer"), self._request)

    async def _write_and_judge(self, draft: _WholeDraft) -> None:
        try:
            answer = await self._write(draft)
        except EngineError as error:
            self._recorder.lose_draft(error)
            self._recorder.emit("cancelled", "draft", *draft.work.row, work=draft.work.number)
            draft.lose("the draft's engine failed")
            return
        if self._settings.judge_whole and not draft.is_lost:
            steps = (*draft.steps, *answer)
            text = "".join(step.text for step in steps)
            tokens = tuple(token for step in steps for token in step.tokens)
            whole = replace(steps[-1], text=text, tokens=tokens, logprobs=None)
            draft.add(await self._judge(self._request, whole, draft.work.number))

    async def _write(self, draft: _WholeDraft) -> tuple[Step, ...]:
        """Write to the end of the thinking, or until the draft is lost; return the steps after that."""
        generation, request = draft.work.generation, self._request
        cutter = StepCutter(
            self._answer.draft.tokenizer,
            request.boundary,
            self._settings.step_max_tokens,
            "draft",
            request.begins_in,
        )
        async for delta in generation:
            for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
                step = cutter.feed(token, logprob)
                if step is not None and not await self._goes_on(draft, step):
                    self._answer.cancel(draft.work)
                    return ()
        result = await generation.result()
        return self._end(draft, cutter.last(result.text, result.finish, result.num_stop_overlap))

    async def _goes_on(self, draft: _WholeDraft, drafted: Step) -> bool:
        """Take a step of the thinking and judge it while the next is written; False where it is the last."""
        step = self._in_target_tokens(draft, drafted)
        if not self._settings.judge_whole:
            draft.add(await self._judge(draft.rest, step, draft.work.number))
        draft.steps.append(step)
        draft.num_drafted.append(len(drafted.tokens))
        draft.rest = draft.rest.after((step,), self._answer.target, self._answer.draft)
        if draft.rest.max_tokens < 1:
            draft.lose("the draft leaves no room for an answer")
        return not draft.is_lost and self._settings.end_of_thinking not in step.text

    def _end(self, draft: _WholeDraft, last: Step) -> tuple[Step, ...]:
        """Return the answer with which the draft ended; the steps before it are its thinking."""
        answer = [self._in_target_tokens(draft, last)]
        if not last.text.strip() and draft.steps:
            answer.insert(0, draft.steps.pop())
            draft.num_drafted.pop()
        if not last.ends_text:
            draft.lose(f"the draft was cut ({last.finish})")
        elif not draft.steps:
            draft.lose("the draft has no step before its answer")
        return tuple(answer)

    def _in_target_tokens(self, draft: _WholeDraft, drafted: Step) -> Step:
        step = step_for(drafted, self._answer.target)
        row = TimelineRow(self._request.num_steps_before + len(draft.steps), draft.work.row.branch)
        self._answer.note_written("draft", row, draft.work.number, step.text, len(step.tokens))
        return step

    async def _judge(self, before: SolveRequest, step: Step, written_by: int) -> Verdict:
        """Return the verdict on a step; drafts that begin alike share verdicts, and pay for them once."""
        key = before.text_before, step.tokens
        if (shared := self._verdicts.get(key)) is not None:
            return replace(await shared, cost_seconds=0.0, cost_tokens=0, work=Usage())
        row = TimelineRow(before.num_steps_before, 0)
        number = self._recorder.start("verifier", *row, "verdict", about=written_by)
        self._verdicts[key] = self._answer.spawn(self._verifier.verify(before.context, step))
        verdict = await self._verdicts[key]
        self._recorder.add_work("target", verdict.work, kept=True)
        self._recorder.emit(
            "checked", "verifier", *row, text=step.text, verdict=verdict, work=number, about=written_by
        )
        return verdict

    def _decide(self, draft: _WholeDraft, best: _WholeDraft | None) -> None:
        """Record the verdict that decides about a draft."""
        assert draft.verdict is not None, "a draft ended without a verdict"
        if draft.is_accepted and draft is not best:
            reason = f"another draft is better: {draft.verdict.reason}"
            draft.verdict = replace(draft.verdict, decision="reject", reason=reason)
        text = "".join(step.text for step in draft.steps)
        row = TimelineRow(self._request.num_steps_before, 0)
        self._recorder.emit(
            "verified", "verifier", *row, text=text, verdict=draft.verdict, about=draft.work.number
        )
