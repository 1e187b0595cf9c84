"""Speculative Chain-of-Thought (arXiv 2504.19095): the target picks one of several whole drafts, or none.

There a draft model trained to think like the target samples five chains of thought, and the target, trained
to pick, reads them all and names the best, or says that all are wrong. Behind the best it writes the answer;
where all are wrong it thinks itself.

Here nobody was trained to pick: a verifier that judges alone reads each draft, by default the target's own
likelihood of it. Step by step while it is written, a draft is as good as its weakest step, and with the
first that is not accepted it has lost and writes no more. Read whole (``judge_whole``), nearer to the paper,
one wrong step may drown among the right ones, but one doubtful step of a long draft does not lose it.

The best accepted draft is picked; where there is none the target writes all, with the draft model as its
token-level drafter. Its part behind a picked draft begins where the thinking ends, and with the last step
where no text says so: a model that does not think apart has its answer there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from reason_spec.engines.base import Engine, EngineRequest, Generation
from reason_spec.errors import EngineError
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive, whole_answer
from reason_spec.strategies.base import RoutedStrategy, SolveRequest, step_for
from reason_spec.strategies.draft_ahead import DRAFT_RUN_TOKENS
from reason_spec.strategies.specreason import check_judges_alone
from reason_spec.strategies.step_cutter import StepCutter
from reason_spec.strategies.step_requests import sampling_of_sibling
from reason_spec.types import Prefix, Step, Usage, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

_NUM_DRAFTS = 5
"""So many as in the paper where ``width`` is 1: one draft leaves nothing to pick."""


class Scot(RoutedStrategy):
    """The draft writes ``width`` whole answers; the target picks one and ends it, or writes its own.

    ``depth`` 0 leaves everything to the target, other values are all the same; ``first_by_target`` is not
    used.
    """

    name: ClassVar[str] = "scot"
    default_verifier: ClassVar[str | None] = "likelihood"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        drafted = self.settings.depth > 0 and (request.live is None or request.live.depth > 0)
        pick = await self._pick(request, recorder) if drafted else _Pick()
        for step in pick.thinking:
            yield replace(step, verdict=pick.verdict)
        left = request.behind(pick.thinking, self.target, self.draft) if pick.thinking else request
        refused = None if pick.thinking else pick.verdict
        async with aclosing(self._writer()._write_steps(left, recorder)) as steps:
            async for step in steps:
                yield replace(step, verdict=refused)
                refused = None

    async def _pick(self, request: SolveRequest, recorder: Recorder) -> _Pick:
        drafts = _WholeDrafts(self.target, self.draft, self.verifier, self.settings, request, recorder)
        try:
            return await drafts.pick()
        finally:
            await drafts.close()

    def _writer(self) -> Autoregressive:
        if self.settings.depth == 0:
            return Autoregressive(self.settings, self.target, None, None)
        return whole_answer(self.settings, self.target, self.draft)


class _Pick(NamedTuple):
    """The thinking of the best draft, empty where none was good enough, and the verdict about it."""

    thinking: tuple[Step, ...] = ()
    verdict: Verdict | None = None


@dataclass(eq=False, slots=True)
class _WholeDraft:
    """One chain of thought under way, its steps in the target's tokens."""

    index: int
    generation: Generation
    behind: SolveRequest
    """What is left to write behind the steps that were judged."""
    work: int
    """Its number in the timeline."""
    place: int = 0
    """The number of its steps so far: drafts that begin alike have the same."""
    steps: list[Step] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    """Tokens of each step as the draft counts them."""
    verdict: Verdict | None = None
    """On all steps so far: that on the weakest, with the costs of all."""

    @property
    def num_tokens(self) -> int:
        return sum(self.num_drafted)

    @property
    def accepted(self) -> bool:
        return self.verdict is not None and self.verdict.accepted

    @property
    def lost(self) -> bool:
        return self.verdict is not None and not self.verdict.accepted

    @property
    def rank(self) -> tuple[float, int]:
        """The best draft has the highest; of equal ones it is the first."""
        return (_score(self.verdict), -self.index)

    def add(self, verdict: Verdict) -> None:
        earlier = self.verdict
        if earlier is None:
            self.verdict = verdict
        elif verdict.accepted and _score(earlier) <= _score(verdict):
            self.verdict = earlier.after(verdict)
        else:
            self.verdict = verdict.after(earlier)

    def lose(self, reason: str) -> None:
        self.add(Verdict("unknown", reason=reason))


def _as_one_step(steps: Sequence[Step]) -> Step:
    text = "".join(step.text for step in steps)
    tokens = tuple(token for step in steps for token in step.tokens)
    return replace(steps[-1], text=text, tokens=tokens, logprobs=None)


def _score(verdict: Verdict | None) -> float:
    return float("-inf") if verdict is None or verdict.score is None else verdict.score


class _WholeDrafts:
    """The drafts of one solution, written and judged side by side."""

    def __init__(
        self,
        target: Engine,
        draft: Engine,
        verifier: Verifier,
        settings: StrategySettings,
        request: SolveRequest,
        recorder: Recorder,
    ) -> None:
        self._target = target
        self._draft = draft
        self._verifier = verifier
        self._settings = settings
        self._request = request
        self._recorder = recorder
        self._drafts: list[_WholeDraft] = []
        self._tasks: list[asyncio.Task[None]] = []
        # By the place that a step stands behind, and its tokens.
        self._places: dict[tuple[int, tuple[int, ...]], int] = {}
        self._verdicts: dict[tuple[int, tuple[int, ...]], asyncio.Task[Verdict]] = {}
        self._picked: _WholeDraft | None = None

    async def pick(self) -> _Pick:
        """Write and judge all drafts, and return the best accepted one."""
        assert self._request.draft_prompt is not None
        if len(self._request.draft_prompt) >= self._draft.max_context:
            return _Pick()
        num_drafts = self._settings.width if self._settings.width > 1 else _NUM_DRAFTS
        self._drafts = [self._begin(index, self._request.draft_prompt) for index in range(num_drafts)]
        self._tasks = [asyncio.create_task(self._write_and_judge(draft)) for draft in self._drafts]
        await asyncio.gather(*self._tasks)
        self._decide()
        if self._picked is None:
            return _Pick((), self._drafts[0].verdict)
        return _Pick(tuple(self._picked.steps), self._picked.verdict)

    async def close(self) -> None:
        """Cancel what is under way, wait until the engines are free of it, and count the work."""
        tasks = (*self._tasks, *self._verdicts.values())
        for task in tasks:
            task.cancel()
        for draft in self._drafts:
            draft.generation.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for draft in self._drafts:
            usage, kept = await draft.generation.closed(), draft is self._picked
            if kept:
                # What the draft wrote behind its thinking is for the target to write.
                behind = usage.num_generated_tokens - draft.num_tokens
                usage = replace(usage, num_discarded_tokens=usage.num_discarded_tokens + behind)
            self._recorder.add_work("draft", usage, kept=kept)

    def _begin(self, index: int, prompt: Prefix) -> _WholeDraft:
        generation = self._draft.submit(
            EngineRequest(
                prefix=prompt,
                max_tokens=self._request.max_tokens,
                sampling=sampling_of_sibling(self._request.sampling, index),
                stops=self._request.stops,
                num_draft_tokens=self._settings.num_draft_tokens,
                delta_tokens=DRAFT_RUN_TOKENS,
            )
        )
        work = self._recorder.start("draft", self._request.num_steps_before, index, "answer")
        return _WholeDraft(index, generation, self._request, work)

    async def _write_and_judge(self, draft: _WholeDraft) -> None:
        try:
            answer = await self._write(draft)
        except EngineError as error:
            self._recorder.lose_draft(error)
            self._recorder.emit("cancelled", "draft", len(draft.steps), draft.index, work=draft.work)
            draft.lose("the draft's engine failed")
            return
        if self._settings.judge_whole and not draft.lost:
            whole = _as_one_step((*draft.steps, *answer))
            draft.add(await self._judge(self._request, 0, whole, draft.work))

    async def _write(self, draft: _WholeDraft) -> tuple[Step, ...]:
        """Write to the end of the thinking, or of its chances; return the steps behind that."""
        boundary, longest = self._request.boundary, self._settings.step_max_tokens
        begins_in = self._request.begins_in
        cutter = StepCutter(self._draft.tokenizer, boundary, longest, "draft", begins_in)
        async for delta in draft.generation:
            for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
                step = cutter.feed(token, logprob)
                if step is not None and not await self._goes_on(draft, step):
                    draft.generation.cancel()
                    self._recorder.emit("cancelled", "draft", len(draft.steps), draft.index, work=draft.work)
                    return ()
        result = await draft.generation.result()
        return self._end(draft, cutter.last(result.text, result.finish, result.num_stop_overlap))

    async def _goes_on(self, draft: _WholeDraft, drafted: Step) -> bool:
        """Take a step of the thinking, judged while the next is written; False where it is the last."""
        step = step_for(drafted, self._target)
        self._note_written(draft, step)
        if not self._settings.judge_whole:
            draft.add(await self._judge(draft.behind, draft.place, step, draft.work))
        draft.place = self._places.setdefault((draft.place, step.tokens), len(self._places) + 1)
        draft.steps.append(step)
        draft.num_drafted.append(len(drafted.tokens))
        draft.behind = draft.behind.behind((step,), self._target, self._draft)
        if draft.behind.max_tokens < 1:
            draft.lose("the draft leaves no room for an answer")
        return not draft.lost and self._settings.end_of_thinking not in step.text

    def _end(self, draft: _WholeDraft, last: Step) -> tuple[Step, ...]:
        """Tell the answer, with which the draft ended, from the thinking; return it."""
        answer = [step_for(last, self._target)]
        self._note_written(draft, answer[0])
        if not last.text.strip() and draft.steps:
            answer.insert(0, draft.steps.pop())
            draft.num_drafted.pop()
        if not last.ends_text:
            draft.lose(f"the draft was cut ({last.finish})")
        elif not draft.steps:
            draft.lose("the draft has no step before its answer")
        return tuple(answer)

    def _note_written(self, draft: _WholeDraft, step: Step) -> None:
        place = (self._request.num_steps_before + len(draft.steps), draft.index)
        text, length = step.text, len(step.tokens)
        self._recorder.emit("written", "draft", *place, text=text, num_tokens=length, work=draft.work)

    async def _judge(self, before: SolveRequest, place_before: int, step: Step, written_by: int) -> Verdict:
        """Return the verdict on a step; drafts that begin alike share the verdicts and their costs."""
        key = place_before, step.tokens
        if (shared := self._verdicts.get(key)) is not None:
            return replace(await shared, cost_seconds=0.0, cost_tokens=0, work=Usage())
        context = VerificationContext(
            before.question, before.text_before, before.target_prompt, before.num_steps_before
        )
        place = (before.num_steps_before, 0)
        work = self._recorder.start("verifier", *place, "verdict", about=written_by)
        self._verdicts[key] = asyncio.create_task(self._verifier.verify(context, step))
        verdict = await self._verdicts[key]
        self._recorder.add_work("target", verdict.work, kept=True)
        self._recorder.emit(
            "checked", "verifier", *place, text=step.text, verdict=verdict, work=work, about=written_by
        )
        return verdict

    def _decide(self) -> None:
        """Pick the best of the drafts whose steps were all accepted; the others are refused."""
        left = [draft for draft in self._drafts if draft.accepted]
        self._picked = max(left, key=lambda draft: draft.rank, default=None)
        for draft in self._drafts:
            assert draft.verdict is not None, "a draft ended without a verdict"
            if draft.accepted and draft is not self._picked:
                reason = f"another draft is better: {draft.verdict.reason}"
                draft.verdict = replace(draft.verdict, decision="reject", reason=reason)
            text = "".join(step.text for step in draft.steps)
            place = (self._request.num_steps_before, 0)
            self._recorder.emit(
                "verified", "verifier", *place, text=text, verdict=draft.verdict, about=draft.work
            )
