"""The contract of a strategy, and what every strategy shares."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

from reason_spec.control.answer_model import StepForm
from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.engines.base import Engine
from reason_spec.errors import SettingsError
from reason_spec.events import Recorder
from reason_spec.routers.base import Router
from reason_spec.segment import NOTHING_OPEN, Boundary, OpenBlocks, StopScanner
from reason_spec.settings import StrategySettings
from reason_spec.strategies.step_tokens import open_blocks_after, tokens_for
from reason_spec.strategies.suffix_session import SuffixCacheSession
from reason_spec.strategies.thinking import LimitedThinking, ThinkingLimit
from reason_spec.types import Acceptance, Constraint, LossClass, Prefix, Sampling, Step
from reason_spec.verifiers.base import AUTO, VerificationContext, Verifier


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """One answer to write: the prompt in the tokens of each model, and the limits.

    ``text_before`` is the answer so far, in ``num_steps_before`` steps, of which ``num_inserted_before``
    were inserted: the prompts end with it, and ``begins_in`` is what it ends within. ``after`` makes such a
    request.
    ``suffix_session`` connects it to the suffix cache, None without one;
    ``cache_key`` names tenant and scope, which must not influence others. Answers of one tenant with the
    same ``siblings`` draft for each other, none if it is empty.
    ``budget`` is what it may speculate, everything by default. ``chars_before`` are
    characters of this answer that an earlier part of the strategy wrote.
    ``answer_start`` is where the answer begins in ``text_before``: stops do not reach into the thinking.
    ``constraint`` and ``logit_bias`` are for the target alone: strategies that let others write know neither.
    ``stop_ids`` are tokens of the target at which the answer ends, for strategies that take them.
    ``thinking`` limits the thinking with which the text begins, None: it is part of the answer. Stops and the
    constraint are then for what follows it.
    ``may_be_cut``: steps that were written may be left out of the answer.
    """

    question: str
    target_prompt: Prefix
    draft_prompt: Prefix | None
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    boundary: Boundary = field(default_factory=Boundary)
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    text_before: str = ""
    num_steps_before: int = 0
    num_inserted_before: int = 0
    begins_in: OpenBlocks = NOTHING_OPEN
    suffix_session: SuffixCacheSession | None = None
    cache_key: tuple[str, str] = ("", "")
    siblings: str = ""
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    budget: SpeculationBudget = field(default_factory=SpeculationBudget)
    chars_before: int = 0
    answer_start: int = 0
    thinking: ThinkingLimit | None = None
    may_be_cut: bool = False

    @property
    def text(self) -> int | None:
        """The number of the answer's text in the target's engine; see `Request`."""
        return None if self.suffix_session is None else self.suffix_session.text

    @property
    def draft_text(self) -> int | None:
        """The number of the answer's text in the draft's engine."""
        return None if self.suffix_session is None else self.suffix_session.draft_text

    @property
    def num_written_before(self) -> int:
        """Steps before that a model wrote."""
        return self.num_steps_before - self.num_inserted_before

    @property
    def context(self) -> VerificationContext:
        """The context of the next step, for verifiers."""
        return VerificationContext(self.question, self.text_before, self.target_prompt, self.num_steps_before)

    def stop_context(self, text: str) -> str:
        """Return the end of earlier text of the answer that may belong to a stop string."""
        length = max((len(stop) for stop in self.stops), default=1) - 1
        return text[max(self.answer_start, len(text) - length) :]

    def after(self, steps: Sequence[Step], target: Engine, draft: Engine | None) -> SolveRequest:
        """Return the request for the text after these steps; it must have room for a token."""
        request = self
        for step in steps:
            tokens = tokens_for(step, target)
            draft_prompt = request.draft_prompt
            if draft_prompt is not None and draft is not None:
                draft_prompt = draft_prompt.extend(tokens_for(step, draft))
            request = replace(
                request,
                target_prompt=request.target_prompt.extend(tokens),
                draft_prompt=draft_prompt,
                max_tokens=request.max_tokens - len(tokens),
                text_before=request.text_before + step.text,
                num_steps_before=request.num_steps_before + 1,
                num_inserted_before=request.num_inserted_before + (step.origin == "inserted"),
                begins_in=open_blocks_after(step, request.boundary, request.begins_in),
                chars_before=request.chars_before + len(step.text),
            )
        return request


UseOfAcceptance: TypeAlias = Literal["refused", "ignored", "applied"]
"""What a strategy does where ``strategy.acceptance`` is other than ``exact``."""


class Strategy(ABC):
    """Writes an answer step by step.

    A strategy holds no state of a solution: one object serves any number of solutions at once.
    """

    name: ClassVar[str]
    needs_draft: ClassVar[bool] = True
    default_verifier: ClassVar[str | None] = None
    """The verifier it uses where none is named; None: it needs none."""
    needs_router: ClassVar[bool] = False
    takes_stop_ids: ClassVar[bool] = False
    """Whether an answer ends at ``stop_ids``: the target writes every token of it, in its own numbers."""
    planned: ClassVar[StepForm | None] = None
    """What it does with steps, where a planner chooses how far ahead it goes; None: there is no planner."""
    relaxed_acceptance: ClassVar[UseOfAcceptance] = "refused"

    def __init__(
        self,
        settings: StrategySettings,
        target: Engine,
        draft: Engine | None,
        verifier: Verifier | None,
        router: Router | None = None,
    ) -> None:
        self.settings = settings
        self._router = router
        self.target = target
        self._draft = draft
        self._verifier = verifier
        if verifier is not None:
            self.check_verifier(verifier)
        self.check_acceptance(settings, target)

    @classmethod
    def check_acceptance(cls, settings: StrategySettings, target: Engine) -> None:
        """Raise `SettingsError` if strategy or engine have not the rule of acceptance of the settings."""
        if settings.accepts.is_exact or cls.relaxed_acceptance == "ignored":
            return
        if cls.relaxed_acceptance == "refused":
            raise SettingsError(
                f"strategy.acceptance is {settings.acceptance}, and strategy {cls.name} accepts draft tokens "
                "only exactly: use exact, or strategy speculative or self_speculative"
            )
        rules = target.acceptance_rules
        if settings.acceptance not in rules:
            needed = "target.kind: torch"
            if len(rules) > 1:
                needed = "the folder of reason-spec verifier train --level token as target.torch.judge"
            raise SettingsError(
                f"strategy.acceptance is {settings.acceptance}, and the target's engine has only "
                f"{', '.join(rules)}: use one of these, or {needed}"
            )

    @property
    def acceptance(self) -> Acceptance:
        """When a draft token that is not the target's choice is accepted."""
        return Acceptance()

    @property
    def draft(self) -> Engine:
        assert self._draft is not None, f"strategy {self.name} was built without a draft engine"
        return self._draft

    @property
    def router(self) -> Router:
        assert self._router is not None, f"strategy {self.name} was built without a router"
        return self._router

    @property
    def uses_verifier(self) -> bool:
        return self._verifier is not None

    @property
    def verifier(self) -> Verifier:
        assert self._verifier is not None, f"strategy {self.name} was built without a verifier"
        return self._verifier

    @classmethod
    def verifier_name(cls, named: str) -> str | None:
        """Return the verifier it uses where ``named`` is asked for; None: it needs none."""
        return cls.default_verifier if named == AUTO else cls.default_verifier and named

    @classmethod  # noqa: B027 - most need nothing of it
    def check_verifier(cls, verifier: Verifier) -> None:
        """Check that a verifier can do what this strategy asks of it.

        Raises:
            SettingsError: it cannot; the message says which ones can.
        """

    @property
    @abstractmethod
    def loss_class(self) -> LossClass:
        """The loss class of this strategy with its verifier."""

    @property
    def requested_budget(self) -> RequestedBudget:
        """The speculation that a single answer would use: steps ahead and draft tokens."""
        if not self.needs_draft:
            return RequestedBudget()
        # `use_hint` is about drafted steps: without steps ahead the draft model drafts tokens all the same.
        hints = self.target.takes_hints and not self.target.drafts_itself
        return RequestedBudget(self.settings.depth, self.settings.num_draft_tokens if hints else 0)

    @abstractmethod
    def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Yield the steps as they become final.

        The generator cancels what it started when it is closed, and ends only when the engines
        hold nothing of it any more.
        """

    async def solve(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Yield each step as soon as it is final; work and events go to ``recorder``.

        Close the iterator (``aclosing``) to abandon a solution.
        """
        write = self._write_trimmed if request.thinking is None else self._write_limited
        async with aclosing(write(request, recorder)) as steps:
            reader_seconds = 0.0
            async for step in steps:
                recorder.reader_seconds += reader_seconds
                self._commit(step, request, recorder)
                asked = time.perf_counter()
                yield step
                reader_seconds = time.perf_counter() - asked
        if recorder.plan is not None and recorder.draft_failure is None:
            request.budget.record_answer(recorder, self.target.pass_times, self.draft.pass_times)

    def _write_answer(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Yield the steps of the answer after a limited thinking, as ``_write_steps`` does."""
        return self._write_steps(request, recorder)

    async def _write_trimmed(
        self, request: SolveRequest, recorder: Recorder, *, is_answer: bool = False
    ) -> AsyncGenerator[Step]:
        """Yield the steps without the stop string that ended them."""
        write = self._write_answer if is_answer else self._write_steps
        async with (
            aclosing(write(request, recorder)) as written,
            aclosing(_trim_straddling_stops(written, request.stops)) as steps,
        ):
            async for step in steps:
                yield step

    async def _write_limited(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        """Yield the steps of a limited thinking, and then of the answer."""
        assert request.thinking is not None
        thinking = LimitedThinking(request.thinking, request, self.target, self._draft, recorder)
        # A step may still be left out after its text has been streamed.
        on_text, recorder.on_text = recorder.on_text, None
        try:
            async with aclosing(thinking.steps(lambda asked: self._write_trimmed(asked, recorder))) as steps:
                async for step in steps:
                    yield step
        finally:
            recorder.on_text = on_text
            await thinking.close()
        recorder.thinking = thinking.outcome
        if thinking.is_answered:
            left = replace(thinking.left, answer_start=len(thinking.left.text_before))
            async with aclosing(self._write_trimmed(left, recorder, is_answer=True)) as steps:
                async for step in steps:
                    yield step

    def _commit(self, step: Step, request: SolveRequest, recorder: Recorder) -> None:
        """Make a step final: the only place where recorder, budget and suffix cache learn of it."""
        recorder.add_step(step)
        request.budget.record_step(len(step.tokens))
        if request.suffix_session is not None:
            request.suffix_session.learn(step)


class RoutedStrategy(Strategy):
    """A strategy of loss class ``routed`` with any verifier; without drafts it is the target alone."""

    @property
    def loss_class(self) -> LossClass:
        return "exact" if self.settings.depth == 0 else "routed"


def check_judges_alone(strategy: str, verifier: Verifier) -> None:
    """Check that a verifier can judge a drafted step before the target has written its own.

    Raises:
        SettingsError: it needs the target's own words.
    """
    if not verifier.judges_draft_only:
        raise SettingsError(
            f"strategy {strategy} judges drafted steps alone, and verifier {verifier.name} needs the "
            "target's step beside them: use strategy lookahead, or a verifier such as likelihood"
        )


async def _trim_straddling_stops(steps: AsyncIterator[Step], stops: tuple[str, ...]) -> AsyncGenerator[Step]:
    """Hold steps back while their end may begin a stop string, and cut it off if it does.

    A step that ends with ``stop`` and is empty has its stop wholly in earlier text.
    """
    held: list[Step] = []
    scanner = StopScanner(stops)
    async for step in steps:
        if step.finish == "stop":
            overlap = step.num_stop_overlap
            for index in range(len(held) - 1, -1, -1):
                cut = min(overlap, len(held[index].text))
                held[index] = replace(held[index], text=held[index].text[: len(held[index].text) - cut])
                overlap -= cut
        else:
            scanner.feed(step.text)
        held.append(step)
        if step.finish == "stop" or not scanner.held_back():
            for ready in held:
                yield ready
            held.clear()
    for ready in held:
        yield ready
