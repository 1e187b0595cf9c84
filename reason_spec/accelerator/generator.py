"""Writes answers over a bundle of models."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from reason_spec.accelerator.bundle import ModelBundle
from reason_spec.accelerator.requests import GenerationRequest, Prompts, RequestOptions
from reason_spec.accelerator.thinking import Thinking, ThinkingOptions, early_exit_limit, thinking_after
from reason_spec.control.controller import SpeculationController
from reason_spec.engines.base import Engine
from reason_spec.engines.chat_template import Message
from reason_spec.events import Listener, Recorder, ThinkingOutcome
from reason_spec.settings import Settings, StrategySettings
from reason_spec.strategies.autoregressive import Autoregressive
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.factory import create_strategy, strategy_class
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.strategies.suffix_session import SuffixCacheSession, segments_of
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import LossClass, Prefix, Step
from reason_spec.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class Solution:
    """A finished answer. ``seconds`` runs from the question to the last step, clean-up included."""

    text: str
    steps: tuple[Step, ...]
    seconds: float
    strategy: str
    loss_class: LossClass
    recorder: Recorder

    @property
    def num_tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    @property
    def thinking(self) -> ThinkingOutcome | None:
        """The size of the thinking and what ended it; None where nothing limited it."""
        return self.recorder.thinking


@dataclass(frozen=True, slots=True)
class Generator:
    """Writes answers under one set of settings.

    It is cheap and immutable: make one for each set of settings with `dataclasses.replace`. All generators
    of a bundle share its loaded models and may write at once.

    Args:
        settings: sampling, strategy, verifier and router; the models are those of the bundle.
        control: what bounds speculation.
        verifier: decides for every strategy; None: the verifier of the settings.
    """

    bundle: ModelBundle
    settings: Settings
    control: SpeculationController = field(default_factory=SpeculationController)
    verifier: Verifier | None = None

    @property
    def target(self) -> Engine:
        return self.bundle.target

    @property
    def draft(self) -> Engine | None:
        return self.bundle.draft

    async def prepare(self, strategy: str | None = None) -> None:
        """Give the target the cores of a strategy, load its verifier, and forget all cached prefixes.

        Between timed runs this keeps one strategy from reusing the work of another.
        """
        name = strategy or self.settings.strategy.name
        await self.bundle.cores.use(self.target_cores(name))
        if (verifier := self.verifier_for(name)) is not None:
            await verifier.start()
        await self.bundle.reset_prefix_caches()

    def target_cores(self, strategy: str) -> tuple[int, ...]:
        """Return the cores of the target under a strategy."""
        chosen = strategy_class(strategy)
        drafts = chosen is not Autoregressive
        return self.bundle.cores.under(needs_draft=chosen.needs_draft, drafts=drafts)

    def verifier_for(self, strategy: str, named: str | None = None) -> Verifier | None:
        """Return the verifier of a strategy; None where it uses none.

        Args:
            named: the name of the verifier in the place of that of the settings.

        Raises:
            SettingsError: there is no such verifier, or it does not fit the strategy.
        """
        chosen = strategy_class(strategy)
        name = chosen.verifier_name(named or self.settings.verifier.name)
        if name is None:
            return None
        verifier = self.verifier if named is None else None
        if verifier is None:
            verifier = self.bundle.verifier(name, self.settings.verifier)
        chosen.check_verifier(verifier)
        return verifier

    def strategy(self, name: str | StrategySettings | None = None, verifier: str | None = None) -> Strategy:
        """Build a strategy over these models; None for the one in the settings.

        Raises:
            SettingsError: a name is unknown, or strategy and verifier do not fit.
        """
        settings = self.settings.strategy
        if isinstance(name, StrategySettings):
            settings = name
        elif name is not None:
            settings = settings.model_copy(update={"name": name})
        router = None
        if strategy_class(settings.name).needs_router:
            router = self.bundle.router(self.settings.router)
        judge = self.verifier_for(settings.name, verifier)
        return create_strategy(settings, self.target, self.draft, judge, router)

    def strategy_for(self, request: GenerationRequest) -> Strategy:
        """Return the strategy that writes a request: the target alone where no other can."""
        strategy = request.strategy
        if request.is_restricted:
            strategy = "autoregressive"
        if not isinstance(strategy, Strategy):
            strategy = self.strategy(strategy, request.verifier)
        if request.stop_ids and not strategy.takes_stop_ids:
            return self.strategy("autoregressive")
        return strategy

    def request(
        self, prompt: str | Sequence[Message] | GenerationRequest, **options: Unpack[RequestOptions]
    ) -> GenerationRequest:
        """Return the request for a question or a conversation; a complete request is returned as it is."""
        if isinstance(prompt, GenerationRequest):
            return prompt
        sampling = self.settings.sampling.for_sample(options.get("problem", 0), options.get("sample", 0))
        return GenerationRequest(
            messages=({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt,
            strategy=options.get("strategy"),
            thinking=options.get("thinking", ThinkingOptions()),
            sampling=sampling,
            tenant=options.get("tenant"),
            scope=options.get("scope", ""),
        )

    def encode(self, request: GenerationRequest) -> Prompts:
        """Return the prompts of a request, without its ``written`` steps. May be called in any thread.

        Raises:
            EngineError: the chat template refuses the conversation.
        """
        request = replace(request, chat_arguments=self.chat_arguments(request))
        target = request.tokens_for(self.target, self.target)
        owner = request.owner_under(self.settings)
        draft = None
        if self.draft is not None:
            draft = Prefix(request.tokens_for(self.draft, self.target), owner=owner)
        learns = self.bundle.suffix_sessions is not None
        segments = segments_of(request.messages, target, self.target.tokenizer) if learns else ()
        return Prompts(Prefix(target, owner=owner), draft, segments)

    def chat_arguments(self, request: GenerationRequest) -> dict[str, Any]:
        """Return a request's arguments of the chat template, with those of its reasoning effort."""
        options = request.thinking if isinstance(request.thinking, ThinkingOptions) else ThinkingOptions()
        return options.chat_arguments(request.chat_arguments, self.settings.thinking)

    def thinking_of(self, request: GenerationRequest, prompts: Prompts) -> Thinking | None:
        """Return how the target thinks after the prompt of a conversation; None where it does not."""
        if not request.messages:
            return None
        arguments = {**self.settings.target.chat_template, **self.chat_arguments(request)}
        continued = request.messages[-1]["content"] if request.continue_final else None
        return thinking_after(prompts.target.to_tuple(), self.target.tokenizer, arguments, continued)

    def _thinking_limit(self, request: GenerationRequest, prompts: Prompts) -> ThinkingLimit | None:
        options = request.thinking
        if not isinstance(options, ThinkingOptions):
            return options
        ends_early = request.exit_under(self.settings.exit)
        is_limited = ends_early.is_on or options.ask_for_limits(self.settings.thinking)
        if request.written or not is_limited:
            return None
        thinking = self.thinking_of(request, prompts)
        if thinking is None:
            is_free = ends_early.is_on and not request.is_restricted
            return early_exit_limit(ends_early, self.settings.target) if is_free else None
        template = self.target.tokenizer.chat_template
        return options.limit(thinking, self.settings.thinking, template, ends_early=ends_early)

    def loss_class(self, strategy: Strategy, request: GenerationRequest) -> LossClass:
        """Return what may change in the answer that a strategy writes to a request."""
        return "shortened" if request.exit_under(self.settings.exit).is_on else strategy.loss_class

    def resolve(self, request: GenerationRequest, prompts: Prompts | None = None) -> SolveRequest:
        """Return a request in the tokens of both models. May be called in any thread.

        Args:
            prompts: what `encode` returned for the conversation; None: encoded here.

        Raises:
            EngineError: the chat template refuses the conversation.
            SettingsError: no budget is set for the reasoning effort.
        """
        prompts = prompts or self.encode(request)
        sampling = self.settings.sampling
        num_written = sum(len(tokens_for(step, self.target)) for step in request.written)
        max_tokens = (request.max_tokens or sampling.max_tokens) + num_written
        # At least one new token is asked for: of a prompt without room for it the engine says so.
        room = max(self.target.max_context - len(prompts.target), num_written + 1)
        resolved = SolveRequest(
            question=request.question,
            target_prompt=prompts.target,
            draft_prompt=prompts.draft,
            max_tokens=min(max_tokens, room),
            sampling=request.sampling or sampling.for_sample(0, 0),
            boundary=self.settings.boundary.to_boundary(),
            stops=sampling.stop if request.stops is None else request.stops,
            stop_ids=request.stop_ids,
            constraint=request.constraint,
            logit_bias=request.logit_bias,
            cache_key=(request.tenant or self.settings.suffix.tenant, request.scope),
            siblings=request.siblings,
            thinking=self._thinking_limit(request, prompts),
        )
        resolved = resolved.after(request.written, self.target, self.draft)
        return replace(resolved, chars_before=0, answer_start=len(resolved.text_before))

    async def solve(
        self,
        request: GenerationRequest,
        *,
        recorder: Recorder | None = None,
        prompts: Prompts | None = None,
        strategy: Strategy | None = None,
    ) -> AsyncGenerator[Step]:
        """Yield each step of the answer as soon as it is final.

        Args:
            recorder: takes the work and the events of the solution.
            prompts: what `encode` returned for the request; None: encoded here.
            strategy: what `strategy_for` returned for the request; None: built here.
        """
        assert self.bundle.is_started, "solve was called before start: use 'async with accelerator'"
        strategy = strategy or self.strategy_for(request)
        if strategy.uses_verifier:
            await strategy.verifier.start()
        prompts = prompts or self.encode(request)
        prompts.check_room(self.target)
        resolved = self.resolve(request, prompts)
        session = self._open_suffix_session(request, prompts)
        try:
            planned_as = strategy.name if strategy.settings.planner else None
            with self.control.admit(strategy.requested_budget, planned_as=planned_as) as budget:
                resolved = replace(resolved, suffix_session=session, budget=budget)
                adaptation = self.bundle.adaptation
                learned = None if adaptation is None else adaptation.begin(resolved, strategy)
                async with aclosing(strategy.solve(resolved, recorder or Recorder())) as steps:
                    async for step in steps:
                        if learned is not None:
                            learned.add(step)
                        yield step
                if learned is not None:
                    learned.finish(budget)
        finally:
            if session is not None:
                session.close()

    def _open_suffix_session(self, request: GenerationRequest, prompts: Prompts) -> SuffixCacheSession | None:
        sessions = self.bundle.suffix_sessions
        if sessions is None:
            return None
        written = tuple(token for step in request.written for token in tokens_for(step, self.target))
        segments, of_draft = prompts.segments_with(written)
        return sessions.open(
            segments, of_draft, tenant=request.tenant, scope=request.scope, name=request.session
        )

    async def answer(
        self,
        request: GenerationRequest,
        *,
        listener: Listener | None = None,
        recorder: Recorder | None = None,
    ) -> Solution:
        """Write the whole answer; its events go to ``listener`` at once.

        A ``recorder`` of the caller has the work of an answer that was cancelled, too.
        """
        recorder = recorder or Recorder(listener)
        strategy = self.strategy_for(request)
        steps = [step async for step in self.solve(request, recorder=recorder, strategy=strategy)]
        seconds = time.perf_counter() - recorder.started
        text = "".join(step.text for step in steps)
        loss_class = self.loss_class(strategy, request)
        return Solution(text, tuple(steps), seconds, strategy.name, loss_class, recorder)
