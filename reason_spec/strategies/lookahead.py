"""Lookahead Reasoning (arXiv 2506.19830): the draft thinks ahead, the target checks steps in parallel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar

from reason_spec.control.planner import NOTHING_KNOWN
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.settings import StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive, whole_answer
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.gated import write_gated
from reason_spec.strategies.search import Search
from reason_spec.types import LossClass, Plan, Step
from reason_spec.verifiers.base import Verifier


class Lookahead(Strategy):
    """The target writes every step; drafted steps that are the same let it write several at once."""

    name: ClassVar[str] = "lookahead"
    default_verifier: ClassVar[str | None] = "semantic"
    planned: ClassVar[bool] = True

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else self.verifier.loss_class

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        if not verifier.compares:
            raise SettingsError(
                f"strategy {cls.name} compares steps, and verifier {verifier.name} judges them alone: use "
                "strategy specreason, or a verifier that compares (semantic)"
            )

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        if self.planner is None:
            writing = self._write_split(self.settings, request, recorder)
        else:
            memory = request.memory
            known = NOTHING_KNOWN if memory is None else memory.known(self.settings.num_draft_tokens)
            recorder.plan = self.planner.plan(known)
            writing = self._write_planned(recorder.plan, request, recorder)
        async with aclosing(writing) as steps:
            async for step in steps:
                yield step
        # The planner's costs are those of one answer alone.
        as_planned = request.live is None or request.live.left_to_planner
        if self.planner is not None and as_planned and recorder.draft_failure is None:
            self.planner.learn(recorder, self.target.pass_times, self.draft.pass_times)

    def _write_planned(self, plan: Plan, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Write under a plan; without steps ahead the answer is one request, with all there is for tokens."""
        split = {"depth": plan.depth, "num_draft_tokens": plan.num_draft_tokens}
        settings = self.settings.model_copy(update=split)
        return self._write_split(settings, request, recorder)

    def _write_split(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        if settings.depth == 0:
            return self._whole(settings, request, recorder)
        return write_gated(
            lambda left: self._search(settings, left, recorder),
            # One request instead of several has the tokens of all of them.
            lambda left: self._whole(self.settings, left, recorder),
            request,
            recorder,
            self.target,
            self.draft,
        )

    def _whole(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        if settings.num_draft_tokens > 0:
            writer = whole_answer(settings, self.target, self.draft)
        else:
            writer = Autoregressive(settings, self.target, self.draft, None)
        return writer._write_steps(request, recorder)

    def _search(
        self, settings: StrategySettings, request: SolveRequest, recorder: Recorder
    ) -> AsyncGenerator[Step]:
        return Search(
            self.target, self.draft, self.verifier, settings, request, recorder, hands_over=True
        ).steps()
