"""The search that all stepwise strategies share: who writes each position, and which steps stand.

The draft runs up to ``depth`` steps ahead of what is final. A position is decided in one of two ways:

- the target writes its own step at once, and the verifier compares the two (Lookahead Reasoning,
  arXiv 2506.19830, section 3). Drafts that stand let several positions be checked in parallel;
- the verifier first judges the drafted step alone. Where it accepts, the target writes nothing there; where
  it does not, the target writes the step, and what was only left open is compared (``alone``: SpecReason,
  arXiv 2504.07891, section 4.1, without its turns: the draft writes on while its step is judged).

Where no draft stands the target's step does, and everything built on the drafts is cancelled. Each decision
makes one step final.

Added to the papers: the drafted step is also handed to the target's token level as a hint, so that a step
both models write alike costs the target one or two passes; where the target parts from it, the draft model
writes the rest of the step anew in the target's words, as a hint again; and a position refused ahead of
time goes on from the target's step at once, without waiting for those before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from reason_spec.engines.base import Engine, EngineRequest, Generation
from reason_spec.errors import EngineError
from reason_spec.events import Lane, Purpose, Recorder
from reason_spec.segment import OpenBlocks
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import SolveRequest, blocks_behind, step_from_result, tokens_for
from reason_spec.strategies.branch import MOST_BRANCHES, Branch, Draft
from reason_spec.strategies.certain_text import CertainText
from reason_spec.strategies.draft_ahead import DraftAhead, RunNotes, can_share_tokens
from reason_spec.strategies.step_requests import ModelLane, StepRequests, sampling_of_sibling
from reason_spec.types import Prefix, Sampling, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

logger = logging.getLogger(__name__)


class Search:
    """The live branches of one solution.

    Args:
        alone: whether a drafted step is judged before the target writes anything.
        by_target: number of first steps that are the target's without any draft.
        max_corrections: how many tokens of a drafted step the target mends before it writes its own.
        takeover_tokens: how much the target writes at the most where a draft does not stand; None: the step.
        known_steps: whether the suffix cache may propose in the draft's place.
        hands_over: end before the text does where the load gate allows no steps ahead any more; what
            follows is one request for somebody else.
    """

    def __init__(
        self,
        target: Engine,
        draft: Engine,
        verifier: Verifier,
        settings: StrategySettings,
        request: SolveRequest,
        recorder: Recorder,
        *,
        alone: bool = False,
        by_target: int = 0,
        max_corrections: int = 0,
        takeover_tokens: int | None = None,
        known_steps: bool = True,
        hands_over: bool = False,
    ) -> None:
        self._settings = settings
        self._live = request.live
        self._hands_over = hands_over
        self._known_steps = known_steps
        self._target = target
        self._draft = draft
        self._verifier = verifier
        self._request = request
        self._recorder = recorder
        self._alone = alone
        self._by_target = by_target
        self._reads_ahead = alone and by_target == 0 and settings.depth > 0 and verifier.asks_target
        # A mended token has to be one of the draft's too.
        self._max_corrections = max_corrections if can_share_tokens(draft, target) else 0
        hinted = settings.use_hint and settings.depth > 0 and settings.num_draft_tokens > 0
        hinted = hinted and self._target.takes_hints
        # Without the hint there is nothing that the target could part from.
        self._redrafts = hinted and settings.use_redraft and can_share_tokens(self._draft, self._target)
        self._requests = StepRequests(request, settings, target, self._redrafts, takeover_tokens)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: list[tuple[ModelLane, Generation]] = []
        self._numbers: dict[Generation, int] = {}
        self._kept: set[Generation] = set()
        self._aheads: list[DraftAhead] = []
        self._num_branches = 0
        self._most_branches = max(MOST_BRANCHES, settings.depth + 1)
        self._root: Branch | None = None
        self._root_index = request.num_steps_before

    async def steps(self) -> AsyncGenerator[Step]:
        """Yield the steps as they become final; cancel what is left when closed."""
        try:
            if self._reads_ahead:
                self._spawn(self._read_prompt())
            root = self._open_root()
            while True:
                self._root = root
                step = await self._decided(root)
                yield step
                if step.ends_text or root.num_tokens_left <= len(step.tokens):
                    return
                if self._hands_over and self._held_back and root.successor is None:
                    return
                root = self._advance(root)
        finally:
            await self._close()

    def _open_root(self) -> Branch:
        assert self._request.draft_prompt is not None
        return self._open(
            step_index=self._request.num_steps_before,
            target_prefix=self._request.target_prompt,
            draft_prefix=self._request.draft_prompt,
            num_tokens_left=self._request.max_tokens,
            previous=None,
            text_before=self._request.text_before,
            begins_in=self._request.begins_in,
        )

    async def _decided(self, root: Branch) -> Step:
        """Wait for the final step of a position, or for the failure of any work on it."""
        waiting: set[asyncio.Future[Any]] = {root.decision, self._failure}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        if root.target_generation is not None:
            self._kept.add(root.target_generation)
        if root.chosen is not None and root.chosen.generation is not None:
            self._kept.add(root.chosen.generation)
        return root.decision.result()

    def _advance(self, root: Branch) -> Branch:
        """Return the position behind a decided one, and let the draft look further ahead."""
        self._root_index += 1
        if root.successor is None:
            root.successor = self._open_behind(root, root.decision.result())
        self._learn(root.successor)
        for branch in [root.successor, *root.successor.descendants()]:
            self._come_nearer(branch)
            if branch.decided:
                self._go_on_from(branch)
            else:
                self._start(branch)
        return root.successor

    def _come_nearer(self, branch: Branch) -> None:
        """Update the priorities of live requests after a position became final."""
        branch.distance = branch.step_index - self._root_index
        for generation in branch.generations:
            generation.set_priority(branch.distance)
        if branch.ahead is not None:
            branch.ahead.set_priority(branch.distance)

    async def _close(self) -> None:
        """Cancel all work, wait until the engines are free of it, and count it."""
        if self._recorder.num_held_back:
            logger.warning(
                "%d drafted steps were not looked behind: an answer has %d open positions at the most, and "
                "width %d with depth %d wants more; set a smaller width or depth",
                self._recorder.num_held_back,
                self._most_branches,
                self._settings.width,
                self._settings.depth,
            )
        for task in self._tasks:
            task.cancel()
        for _, generation in self._work:
            generation.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        begins_in: OpenBlocks,
    ) -> Branch:
        decision: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        branch = Branch(
            self._num_branches,
            step_index,
            target_prefix,
            draft_prefix,
            num_tokens_left,
            previous,
            text_before,
            begins_in,
            decision,
            distance=step_index - self._root_index,
        )
        self._num_branches += 1
        self._start(branch)
        return branch

    def _open_behind(self, branch: Branch, step: Step) -> Branch:
        target_tokens = tokens_for(step, self._target)
        return self._open(
            step_index=branch.step_index + 1,
            target_prefix=branch.target_prefix.extend(target_tokens),
            draft_prefix=branch.draft_prefix.extend(tokens_for(step, self._draft)),
            num_tokens_left=branch.num_tokens_left - len(target_tokens),
            previous=step,
            text_before=branch.text_before + step.text,
            begins_in=blocks_behind(step, self._request.boundary, branch.begins_in),
        )

    def _start(self, branch: Branch) -> None:
        """Let those write that can and may; called again when the root has come nearer."""
        if not self._alone:
            self._start_target(branch)
        if branch.drafting_started or branch.target_step is not None:
            return
        drafted = branch.step_index >= self._by_target and self._depth > 0
        if not drafted or len(branch.draft_prefix) >= self._draft.max_context:
            self._start_target(branch)
        elif self._within_depth(branch):
            self._start_drafting(branch)
        elif not self._within_depth(branch, behind=self._root is not None and self._root.decided):
            branch.held_back = True

    def _start_target(self, branch: Branch) -> None:
        if not branch.target_started:
            branch.target_started = True
            self._spawn(self._write_target(branch))

    def _start_drafting(self, branch: Branch) -> None:
        branch.drafting_started = True
        if (known := self._known_step(branch)) is not None:
            self._take_known(branch, known)
            return
        for index in range(self._settings.width):
            self._try_draft(branch, sampling_of_sibling(self._request.sampling, index))

    def _known_step(self, branch: Branch) -> Step | None:
        """Return the step that the suffix cache expects at a position."""
        memory = self._request.memory
        if memory is None or not (self._known_steps and memory.proposes_steps):
            return None
        self._recorder.num_cache_asked += 1
        return memory.next_step(self._requests.request("target", branch, self._request.sampling))

    def _take_known(self, branch: Branch, step: Step) -> None:
        """Let a step of the cache stand where a drafted one would; the draft writes nothing there."""
        work = self._recorder.start("cache", branch.step_index, branch.number, "step")
        draft = Draft(None, work=work)
        branch.drafts.append(draft)
        self._note_written("cache", branch, work, step.text, len(step.tokens))
        self._take_drafted(branch, draft, step)

    def _try_draft(self, branch: Branch, sampling: Sampling, begun: tuple[int, ...] = ()) -> None:
        request = self._requests.request("draft", branch, sampling, begun)
        if self._alone:
            # Nobody is handed a part of it.
            request = replace(request, stream=False)
        generation = self._submit("draft", branch, request)
        draft = Draft(generation, begun, work=self._numbers[generation])
        branch.drafts.append(draft)
        self._spawn(self._write_draft(branch, draft, generation))

    def _submit(
        self, lane: ModelLane, branch: Branch, request: EngineRequest, purpose: Purpose = "step"
    ) -> Generation:
        engine = self._target if lane == "target" else self._draft
        generation = engine.submit(request)
        self._work.append((lane, generation))
        branch.generations.append(generation)
        work = self._recorder.start(lane, branch.step_index, branch.number, purpose)
        self._numbers[generation] = work
        return generation

    async def _read_prompt(self) -> None:
        """Let the target read the prompt while the draft writes; else the first step to judge would wait."""
        prompt = self._request.target_prompt
        *before, last = prompt.to_tuple()
        if not before:
            return
        try:
            scored = await self._target.score(Prefix(tuple(before), owner=prompt.owner), (last,))
        except EngineError:
            # Nothing hangs on it; what does not work says so where it is needed.
            return
        self._recorder.add_work("target", scored.usage, kept=True)

    # --- the three kinds of work on a position ---------------------------------------------------

    async def _write_target(self, branch: Branch) -> None:
        request = self._requests.request("target", branch, self._request.sampling)
        request = replace(request, stream=request.stream or self._recorder.on_text is not None)
        generation = self._submit("target", branch, request)
        branch.target_generation = generation
        branch.ahead = self._start_ahead(branch, generation)
        tell = self._teller(branch, request)
        if branch.ahead is not None:
            self._spawn(branch.ahead.follow(tell))
        elif tell is not None:
            self._spawn(_follow(generation, tell))
        for draft in branch.drafts:
            self._hint_step(branch, draft)
        step = await self._finished("target", branch, generation)
        if step is None or branch.dropped:
            return
        branch.target_step = step
        for draft in branch.drafts:
            # A draft that is slower than the target itself has nothing left to save.
            if draft.step is None:
                self._cancel_draft(branch, draft)
                # A twin of another draft has that one's verdict.
                self._recorder.num_late_drafts += not draft.settled
                self._recorder.num_held_drafts += not draft.settled and branch.held_back
        await asyncio.gather(*(self._verify(branch, draft) for draft in self._comparable(branch)))
        if not branch.dropped:
            self._decide(branch)

    def _teller(self, branch: Branch, request: EngineRequest) -> Callable[[Sequence[int]], None] | None:
        """Return what tells of the target's words while they are written; None where nobody listens.

        They are certain where no draft can take their place: none is left to compare, or one that stands has
        the same tokens.
        """
        if self._recorder.on_text is None:
            return None
        start = self._request.chars_before + len(branch.text_before) - len(self._request.text_before)
        certain = CertainText(self._recorder.on_text, self._target.tokenizer, request, start)

        def tell(tokens: Sequence[int]) -> None:
            certain.feed(tokens)
            unrivalled = self._alone and not self._comparable(branch)
            certain_so_far = branch.step_index == self._root_index and not branch.dropped
            if certain_so_far and (unrivalled or self._verifier.loss_class == "exact"):
                certain.tell()

        return tell

    def _start_ahead(self, branch: Branch, generation: Generation) -> DraftAhead | None:
        """Let the draft model write the rest of a step anew where the target parts from the drafted one."""
        if not self._redrafts:
            return None
        request = self._requests.request("draft", branch, self._request.sampling)
        ahead = DraftAhead(
            self._draft,
            generation,
            request,
            max_ahead=self._settings.num_draft_tokens,
            waits=True,
            notes=RunNotes(self._recorder, branch.step_index, branch.number),
            live=self._live,
        )
        self._aheads.append(ahead)
        return ahead

    async def _write_draft(self, branch: Branch, draft: Draft, generation: Generation) -> None:
        if draft is branch.drafts[0] and generation.request.stream:
            written: list[int] = []
            async for delta in generation:
                written += delta.tokens
                self._hint(branch, tuple(written))
        try:
            step = await self._finished("draft", branch, generation)
        except EngineError as error:
            self._recorder.lose_draft(error)
            self._recorder.emit("cancelled", "draft", branch.step_index, branch.number, work=draft.work)
            self._settle(branch, draft)
            return
        if step is None or branch.dropped or branch.decided or branch.target_step is not None:
            return
        whole = self._requests.for_target(step, draft.begun)
        if self._has_twin(branch, whole):
            self._settle(branch, draft)
            return
        self._take_drafted(branch, draft, whole)

    def _take_drafted(self, branch: Branch, draft: Draft, step: Step) -> None:
        """Hand the target a whole step, look beyond it, and let it be judged."""
        draft.step = step
        self._hint_step(branch, draft)
        repeats = branch.previous is not None and branch.previous.text == step.text
        tokens_left = branch.num_tokens_left - len(step.tokens)
        if not (step.ends_text or repeats) and tokens_left > 0:
            if self._has_room:
                draft.successor = self._open_behind(branch, step)
            else:
                # It is opened once the step stands.
                self._recorder.num_held_back += 1
        if self._alone:
            draft.judging = self._spawn(self._judge(branch, draft))

    async def _judge(self, branch: Branch, draft: Draft) -> None:
        """Let a drafted step stand, or leave it to the target, before the target has written anything."""
        await self._verify(branch, draft)
        if branch.dropped or branch.decided:
            return
        if draft.verdict is not None and draft.verdict.accepted:
            self._decide(branch)
            return
        if draft not in self._comparable(branch) and draft.successor is not None:
            self._drop(draft.successor)
            draft.successor = None
        if draft.verdict is None or not await self._correct(branch, draft, draft.verdict):
            self._settle(branch, draft)

    async def _correct(self, branch: Branch, draft: Draft, verdict: Verdict) -> bool:
        """Let the target write the token at which a step goes wrong, and the draft go on behind it.

        Return False where that is of no use: the target is to write the step then.
        """
        num_corrections = sum(bool(other.begun) for other in branch.drafts)
        if verdict.num_sound is None or draft.step is None or num_corrections >= self._max_corrections:
            return False
        sound = draft.step.tokens[: verdict.num_sound]
        request = self._requests.request("target", branch, self._request.sampling, sound)
        if self._request.sampling.greedy and verdict.instead is not None:
            mended = verdict.instead
        else:
            request = replace(request, max_tokens=1, stream=False, token_drafter="none")
            generation = self._submit("target", branch, request, "token")
            try:
                result = await generation.result()
            finally:
                generation.cancel()
            written = result.tokens
            self._note_written("target", branch, self._numbers[generation], result.text, len(written))
            if branch.dropped or branch.decided or not written:
                return False
            mended = written[0]
        begun = (*sound, mended)
        room = min(self._settings.step_max_tokens, branch.num_tokens_left) - len(begun)
        if room < 1 or self._requests.ends_step(request, mended):
            return False
        draft.settled = True
        if draft.successor is not None:
            self._drop(draft.successor)
            draft.successor = None
        self._try_draft(branch, self._request.sampling, begun)
        return True

    def _settle(self, branch: Branch, draft: Draft) -> None:
        """Leave the position to the target where none of its drafts can stand by itself any more."""
        draft.settled = True
        wanted = self._alone and not (branch.dropped or branch.decided)
        if wanted and all(other.settled for other in branch.drafts):
            self._start_target(branch)

    def _comparable(self, branch: Branch) -> list[Draft]:
        """Return the drafts that may still turn out to be the same step as the target's own."""
        return [
            draft
            for draft in branch.drafts
            if draft.step is not None
            and self._verifier.compares
            and (draft.verdict is None or draft.verdict.decision == "unknown")
        ]

    async def _verify(self, branch: Branch, draft: Draft) -> None:
        assert draft.step is not None
        context = VerificationContext(
            self._request.question, branch.text_before, branch.target_prefix, branch.step_index
        )
        earlier = draft.verdict
        place = (branch.step_index, branch.number)
        work = self._recorder.start("verifier", *place, "verdict", about=draft.work)
        try:
            verdict = await self._verifier.verify(context, draft.step, branch.target_step)
        except asyncio.CancelledError:
            self._recorder.emit("cancelled", "verifier", *place, work=work)
            raise
        self._recorder.add_work("target", verdict.work, kept=True)
        draft.verdict = verdict if earlier is None else verdict.after(earlier)
        # An undecided step that the target's own may still be compared with has its verdict to come.
        still_open = branch.target_step is None and draft in self._comparable(branch)
        if self._live is not None and not still_open:
            self._live.judged(draft.verdict.accepted)
        self._recorder.emit(
            "checked" if still_open else "verified",
            "verifier",
            *place,
            text=draft.step.text,
            verdict=draft.verdict,
            origin=draft.step.origin,
            work=work,
            about=draft.work,
        )

    def _decide(self, branch: Branch) -> None:
        """Let the first accepted draft stand, else the target's step; drop what follows the others."""
        judged = [draft for draft in branch.drafts if draft.verdict is not None]
        branch.chosen = next((draft for draft in judged if draft.verdict and draft.verdict.accepted), None)
        for draft in branch.drafts:
            if draft is branch.chosen:
                continue
            if draft.judging is not None:
                draft.judging.cancel()
            self._cancel_draft(branch, draft)
            if draft.successor is not None:
                self._drop(draft.successor)
        if branch.chosen is not None and branch.chosen.step is not None:
            step = replace(branch.chosen.step, verdict=branch.chosen.verdict)
            branch.successor = branch.chosen.successor
        else:
            assert branch.target_step is not None, "a position was decided without a step"
            step = replace(branch.target_step, verdict=judged[0].verdict if judged else None)
        branch.decision.set_result(step)
        self._learn(branch)
        self._go_on_from(branch)

    def _learn(self, branch: Branch) -> None:
        """Tell the suffix cache of a step that is final before it is asked what follows."""
        memory = self._request.memory
        if memory is not None and branch.decided and branch.step_index == self._root_index:
            memory.learn(branch.step_index, branch.decision.result())

    def _go_on_from(self, branch: Branch) -> None:
        """Open the position behind a decided one, ahead of time where the depth allows it."""
        step = branch.decision.result()
        over = step.ends_text or branch.num_tokens_left <= len(step.tokens)
        if branch.successor is None and not over and self._within_depth(branch) and self._has_room:
            branch.successor = self._open_behind(branch, step)

    @property
    def _depth(self) -> int:
        """How far ahead the draft may be now."""
        return self._settings.depth if self._live is None else min(self._settings.depth, self._live.depth)

    @property
    def _held_back(self) -> bool:
        return self._live is not None and self._live.depth == 0

    @property
    def _has_room(self) -> bool:
        """Whether one more position may be open."""
        return self._root is None or sum(1 for _ in self._root.descendants()) + 1 < self._most_branches

    def _within_depth(self, branch: Branch, *, behind: bool = False) -> bool:
        """Tell whether the draft may write a position now; ``behind``: when the root has moved on by one."""
        return branch.step_index - self._root_index - behind < self._depth

    # --- helpers -----------------------------------------------------------------------------------

    async def _finished(self, lane: ModelLane, branch: Branch, generation: Generation) -> Step | None:
        """Wait for a generation; None where it was cancelled."""
        result = await generation.result()
        if result.finish == "cancelled":
            return None
        engine: Engine = self._target if lane == "target" else self._draft
        self._note_written(lane, branch, self._numbers[generation], result.text, len(result.tokens))
        return step_from_result(result, lane, engine)

    def _note_written(self, lane: Lane, branch: Branch, work: int, text: str, num_tokens: int) -> None:
        place = (branch.step_index, branch.number)
        self._recorder.emit("written", lane, *place, text=text, num_tokens=num_tokens, work=work)

    def _hint_step(self, branch: Branch, draft: Draft) -> None:
        """Hand the target a drafted step; a sibling of the first may be right where that is not."""
        if draft.step is None or branch.target_generation is None:
            return
        if draft is branch.drafts[0]:
            self._hint(branch, draft.step.tokens)
            self._recorder.emit("hinted", "target", branch.step_index, branch.number, about=draft.work)
        elif self._settings.use_hint:
            branch.target_generation.offer_hint(draft.step.tokens, index=branch.drafts.index(draft))

    def _hint(self, branch: Branch, drafted: tuple[int, ...]) -> None:
        """Hand the target what the draft has written of the step, unless the two have parted."""
        if not self._settings.use_hint or branch.target_generation is None:
            return
        if branch.ahead is None or branch.ahead.expect(drafted):
            branch.target_generation.offer_hint(drafted)

    @staticmethod
    def _has_twin(branch: Branch, step: Step) -> bool:
        return any(other.step is not None and other.step.text == step.text for other in branch.drafts)

    def _drop(self, branch: Branch) -> None:
        for lost in [branch, *branch.descendants()]:
            lost.dropped = True
            if lost.ahead is not None:
                lost.ahead.stop()
            if lost.target_generation is not None:
                self._cancel("target", lost, lost.target_generation)
            for draft in lost.drafts:
                self._cancel_draft(lost, draft)
                if draft.judging is not None:
                    draft.judging.cancel()

    def _cancel_draft(self, branch: Branch, draft: Draft) -> None:
        if draft.generation is not None:
            self._cancel("draft", branch, draft.generation)

    def _cancel(self, lane: ModelLane, branch: Branch, generation: Generation) -> None:
        if not generation.done and not generation.cancel_requested:
            generation.cancel()
            work = self._numbers[generation]
            self._recorder.emit("cancelled", lane, branch.step_index, branch.number, work=work)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None or self._failure.done():
            return
        error = task.exception()
        assert error is not None
        self._failure.set_exception(error)


async def _follow(generation: Generation, tell: Callable[[Sequence[int]], None]) -> None:
    async for delta in generation:
        tell(delta.tokens)
