"""Steps ahead, or one request for the rest of the answer, as the planner and the load controller allow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

from reason_spec.control.answer_model import NOTHING_CACHED
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.autoregressive import whole_answer, without_draft_model
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.step_loop import StepLoop
from reason_spec.types import Plan, Step


class GatedStrategy(Strategy):
    """A strategy that writes step by step only while steps ahead are allowed.

    A request for each step costs a pass of its own, which a full engine has no time for. An answer whose text
    is streamed or learned before its steps are final does not leave its one request: the step that would take
    the place of a begun one could have other words.
    """

    @abstractmethod
    def _loop(self, answer: AnswerWork) -> StepLoop:
        """Return what writes step by step; it hands over when no steps ahead are allowed any more."""

    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        settings = self.settings
        # A limited thinking and the answer after it are written under one plan.
        recorder.plan = plan = recorder.plan or self._plan(request)
        if plan is not None:
            # The planner knows the accelerator's settings; those of a request may allow less.
            split = {"depth": min(plan.depth, settings.depth)}
            if not self.target.drafts_itself:
                # The plan shares out the tokens of the draft model, not of a head.
                split["num_draft_tokens"] = min(plan.num_draft_tokens, settings.num_draft_tokens)
            settings = settings.model_copy(update=split)
        return self._write(settings, request, recorder)

    def _plan(self, request: SolveRequest) -> Plan | None:
        if not request.budget.is_planned or self.settings.depth == 0:
            return None
        session = request.suffix_session
        tokens = self.settings.num_draft_tokens
        return request.budget.plan(NOTHING_CACHED if session is None else session.forecast(tokens))

    def _write(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        if settings.depth > 0:
            return self._write_gated(settings, request, recorder)
        if settings.num_draft_tokens > 0:
            writer = whole_answer(settings, self.target, self.draft)
        else:
            # The plan's tokens are the draft model's, those of the settings of any drafts.
            writer = without_draft_model(self.settings, self.target)
        return writer._write_steps(request, recorder)

    async def _write_gated(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        budget, left = request.budget, request
        may_return = recorder.on_text is None and request.suffix_session is None
        while True:
            is_stepwise = budget.depth > 0
            if is_stepwise:
                writing = self._loop(AnswerWork(self.target, self.draft, settings, left, recorder)).steps()
            else:
                # One request instead of several has the draft tokens of all of them.
                whole = whole_answer(self.settings, self.target, self.draft)
                writing = whole._write_steps(left, recorder)
            async with aclosing(writing) as steps:
                async for step in steps:
                    yield step
                    left = left.after((step,), self.target, self.draft)
                    if step.ends_text or left.max_tokens < 1:
                        return
                    if not is_stepwise and may_return and budget.depth > 0:
                        break
                else:
                    if not is_stepwise:
                        return
                    # Each change discards what is running, so there is one return at most.
                    may_return = False
