"""SpecReason (arXiv 2504.07891) and its kin: a drafted step is judged before the target writes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar, TypeAlias

from reason_spec.control.answer_model import StepForm
from reason_spec.errors import EngineError, SettingsError
from reason_spec.strategies.answer_work import AnswerWork, TrackedGeneration
from reason_spec.strategies.base import check_judges_alone
from reason_spec.strategies.branch import Branch, Draft, DraftState
from reason_spec.strategies.draft_ahead import can_share_tokens
from reason_spec.strategies.gated import GatedStrategy
from reason_spec.strategies.lookahead import Compare
from reason_spec.strategies.step_loop import LoopOptions, StepLoop
from reason_spec.strategies.step_tokens import ends_within_character
from reason_spec.types import LossClass, Prefix, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

Judge: TypeAlias = Callable[[VerificationContext, Step], Awaitable[Verdict]]
"""Decides about a drafted step without the target's own."""


class SpecReasonLoop(StepLoop):
    """Section 4.1: the draft writes a step, it is judged, and the target writes rejected steps itself.

    Unlike in the paper the draft writes up to ``depth`` steps ahead while a step is judged, several drafts of
    a step (``width``) may be tried, and a rejected draft is the first hint for the target's tokens.

    Args:
        compare: what a judge leaves undecided is compared with the target's own step (`Hybrid`).
        first_by_target: number of first steps that the target writes without a draft (section 4.2).
        max_corrections: tokens of a drafted step that the target replaces before it writes the step itself.
        reads_prompt: the judge asks the target, which therefore reads the prompt while the draft writes.
    """

    def __init__(
        self,
        answer: AnswerWork,
        judge: Judge,
        options: LoopOptions,
        *,
        compare: Compare | None = None,
        first_by_target: int = 0,
        max_corrections: int = 0,
        reads_prompt: bool = False,
    ) -> None:
        super().__init__(answer, options)
        self._judge_alone = judge
        self._compare = compare
        self._first_by_target = first_by_target
        # A corrected token has to be one of the draft's too.
        self._max_corrections = max_corrections if can_share_tokens(answer.draft, answer.target) else 0
        self._reads_prompt = reads_prompt and first_by_target == 0 and answer.settings.depth > 0

    async def _write_position(self, branch: Branch) -> None:
        if self._reads_prompt and branch is self._tree.root and branch.previous is None:
            self._answer.spawn(self._read_prompt())
        # Draft and judge: take the first accepted draft.
        is_first = branch.request.num_written_before < self._first_by_target
        is_drafted = not is_first and await self._tree.may_draft(branch)
        if is_drafted and await self._draft_and_judge(branch):
            self._tree.decide(branch)
            return
        # Target: it writes the step, which may turn out to be the one that was left undecided.
        own = await self._write_target(branch)
        if own is None:
            return
        drafts = branch.drafts_in(DraftState.UNDECIDED)
        await asyncio.gather(*(self._verify(branch, draft, own) for draft in drafts))
        self._tree.decide(branch, saved=False)

    async def _draft_and_judge(self, branch: Branch) -> bool:
        """Try ``width`` drafts in parallel; False if none is accepted."""
        attempts = [
            self._tree.spawn(branch, self._attempt(branch, draft)) for draft in self._begin_drafts(branch)
        ]
        for attempt in asyncio.as_completed(attempts):
            if await attempt:
                for other in attempts:
                    other.cancel()
                return True
        return False

    async def _attempt(self, branch: Branch, draft: Draft) -> bool:
        """Write a draft, judge it, and correct it while the judge names the first wrong token."""
        while await self._write_draft(branch, draft):
            await self._judge(branch, draft)
            if draft.state is DraftState.ACCEPTED:
                return True
            if draft.state is DraftState.REJECTED:
                self._tree.drop_after(draft)
            corrected = await self._correct(branch, draft)
            if corrected is None:
                return False
            step_prefix, works = corrected
            self._tree.drop_after(draft)
            draft = self._begin_draft(branch, self._sampling, step_prefix)
            draft.prefix_works = works
        return False

    async def _judge(self, branch: Branch, draft: Draft) -> None:
        assert draft.step is not None
        unknown = DraftState.REJECTED if self._compare is None else DraftState.UNDECIDED
        judging = self._judge_alone(branch.request.context, draft.step)
        await self._take_verdict(branch, draft, judging, unknown)

    async def _verify(self, branch: Branch, draft: Draft, own: Step) -> None:
        assert self._compare is not None
        assert draft.step is not None
        judging = self._compare(branch.request.context, draft.step, own)
        await self._take_verdict(branch, draft, judging, DraftState.REJECTED)

    async def _correct(
        self, branch: Branch, draft: Draft
    ) -> tuple[tuple[int, ...], tuple[TrackedGeneration, ...]] | None:
        """Return the valid tokens of a draft with the target's next one, and the generations that wrote them.

        None if no correction is possible.
        """
        assert draft.step is not None
        assert draft.verdict is not None
        num_corrections = sum(bool(other.step_prefix) for other in branch.drafts)
        num_valid = draft.verdict.num_valid_tokens
        if num_valid is None or num_corrections >= self._max_corrections:
            return None
        valid = draft.step.tokens[:num_valid]
        works = [*draft.prefix_works, *([] if draft.work is None else [draft.work])]
        request = self._requests.request("target", branch, self._sampling, valid)
        corrected = draft.verdict.replacement if self._sampling.greedy else None
        if corrected is None:
            request = replace(request, max_tokens=1, stream=False, token_drafter="none")
            work = self._tree.submit("target", branch, request, "token")
            try:
                step = await self._answer.finished(work)
            finally:
                work.generation.cancel()
            if step is None or not step.tokens:
                return None
            corrected = step.tokens[0]
            works.append(work)
        step_prefix = (*valid, corrected)
        room = min(self._answer.settings.step_max_tokens, branch.request.max_tokens) - len(step_prefix)
        is_over = room < 1 or self._requests.ends_step(request, corrected)
        # The text of what follows would begin within a character.
        is_over = is_over or ends_within_character(step_prefix, self._answer.target.tokenizer)
        if is_over:
            return None
        if draft.work is not None:
            draft.work.num_used_tokens = max(0, num_valid - len(draft.step_prefix))
        return step_prefix, tuple(works)

    def _is_settled(self, branch: Branch) -> bool:
        return self._options.is_exact or not branch.drafts_in(DraftState.UNDECIDED)

    async def _read_prompt(self) -> None:
        """Let the target read the prompt; else the first verdict would wait for it."""
        prompt = self._answer.request.target_prompt
        *before, last = prompt.to_tuple()
        if not before:
            return
        try:
            scored = await self._answer.target.score(Prefix(tuple(before), owner=prompt.owner), (last,))
        except EngineError:
            # The failure shows where the target is needed.
            return
        self._recorder.add_work("target", scored.usage, kept=True)


class SpecReason(GatedStrategy):
    """SpecReason: the target scores drafted steps and writes those that it rejects."""

    name: ClassVar[str] = "specreason"
    default_verifier: ClassVar[str | None] = "likelihood"

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else self.verifier.loss_class

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    def _loop(self, answer: AnswerWork) -> SpecReasonLoop:
        return SpecReasonLoop(
            answer,
            self.verifier.verify,
            LoopOptions(is_exact=self.verifier.loss_class == "exact", hands_over=True),
            compare=self.verifier.verify if self.verifier.compares else None,
            first_by_target=self.settings.first_by_target,
            max_corrections=self._max_corrections,
            reads_prompt=self.verifier.runs_on_target,
        )

    @property
    def _max_corrections(self) -> int:
        return 0


class Rsd(SpecReason):
    """Reward-guided speculation (arXiv 2501.19324): as ``specreason``, with the verdict of a reward model."""

    name: ClassVar[str] = "rsd"
    default_verifier: ClassVar[str | None] = "reward"


class Atts(SpecReason):
    """ATTS (arXiv 2509.15148): the target writes the steps that surprise it most, by rank.

    A chain of the paper is a sample of a problem here (`eval --samples`): chains share the earlier scores and
    wait for no other.
    """

    name: ClassVar[str] = "atts"
    default_verifier: ClassVar[str | None] = "conformal"


class Hybrid(SpecReason):
    """SpecReason and lookahead joined: the target writes only the steps that the judge does not accept.

    A step that the judge leaves undecided is compared with the target's own, as in lookahead. If the judge
    names the first wrong token, the target replaces it and the draft continues after it.
    """

    name: ClassVar[str] = "hybrid"
    default_verifier: ClassVar[str | None] = "likelihood+semantic"
    planned: ClassVar[StepForm | None] = "judged"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        super().check_verifier(verifier)
        if not verifier.compares:
            raise SettingsError(
                f"strategy {cls.name} compares what {verifier.name} leaves open, and that verifier cannot: "
                f"join it with one that does ({verifier.name}+semantic), or use strategy specreason"
            )

    @property
    def _max_corrections(self) -> int:
        return self.settings.max_corrections
