"""The composition root: settings in, a running system out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack

from reason_spec.accelerator.bundle import ModelBundle, create_engines
from reason_spec.accelerator.engine_drafter import with_fitting_strategy
from reason_spec.accelerator.generator import Generator, Solution
from reason_spec.accelerator.load import (
    measure_planners,
    open_controller,
)
from reason_spec.accelerator.requests import GenerationRequest, Prompts, RequestOptions
from reason_spec.control.controller import SpeculationController
from reason_spec.control.load_controller import LoadController
from reason_spec.control.planner import Planner
from reason_spec.engines.base import Engine
from reason_spec.engines.chat_template import Message
from reason_spec.events import Listener, Recorder
from reason_spec.settings import Settings, load_settings
from reason_spec.strategies.early_exit import policy_of
from reason_spec.strategies.factory import strategy_class
from reason_spec.strategies.suffix_session import SuffixCacheSessions
from reason_spec.types import Step
from reason_spec.verifiers.base import Verifier


class Accelerator:
    """A target, and where a strategy needs them a draft and a verifier, ready to solve.

    Use it as an asynchronous context manager: entering starts the engines, leaving frees them.

    ::

        async with Accelerator.from_settings() as accelerator:
            async for step in accelerator.solve("Ana has 3 apples ..."):
                print(step.origin, step.text)

    ``bundle`` holds the models. ``generator`` writes under the settings; answers under other settings, over
    the same models, come from a copy of it: ``replace(accelerator.generator, settings=other)``.
    """

    def __init__(
        self,
        settings: Settings,
        target: Engine,
        draft: Engine | None,
        verifier: Verifier | None,
        strategies: Sequence[str] = (),
    ) -> None:
        """Args:
        verifier: decides for every strategy; None: each strategy's own, by the settings.
        strategies: those that will be used; empty: the one in the settings.
        """
        self.strategies = tuple(strategies) or (settings.strategy.name,)
        self.bundle = ModelBundle(settings, target, draft, verifier)
        self.generator = Generator(self.bundle, settings, verifier=verifier)

    @classmethod
    def from_settings(
        cls, settings: Settings | None = None, *, strategies: Sequence[str] = (), **flags: Any
    ) -> Self:
        """Make an accelerator from settings, the environment and flags; nothing is loaded yet.

        Args:
            settings: a resolved tree; None resolves it from defaults, environment and ``flags``.
            strategies: the strategies that will be used; empty: the one in the settings. Without one that
                needs a draft there is no draft.
            flags: single settings, with two underscores for the dot: ``strategy__depth=6``.

        Raises:
            SettingsError: a name is unknown or a value is out of range.
            MissingDependencyError: a part needs a package that is not installed.
            DataError: the file of a router or of an exit policy is missing or damaged.
        """
        if settings is None:
            settings = load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})
        elif flags:
            raise TypeError("give either settings or flags, not both")
        settings = with_fitting_strategy(settings)
        names = tuple(strategies) or (settings.strategy.name,)
        accelerator = cls(settings, *create_engines(settings, names), None, names)
        for name in names:
            # What does not exist is found before anything is loaded.
            accelerator.verifier_for(name)
            strategy_class(name).check_acceptance(settings.strategy, accelerator.target)
        if any(strategy_class(name).needs_router for name in names):
            accelerator.bundle.router(settings.router)
        if settings.exit.rule in ("policy", "probes"):
            policy_of(settings.exit)
        return accelerator

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start engines and verifiers side by side, and measure what the control of speculation needs.

        Raises:
            EngineError: one of them could not start; the others are freed again.
        """
        if self.bundle.is_started:
            return
        await self.bundle.start()
        try:
            controller = await open_controller(self.bundle, self.settings.load_control)
            planners: dict[str, Planner] = {}
            if self.settings.strategy.planner:
                verifiers = {name: self.verifier_for(name) for name in self.strategies}
                planners = await measure_planners(self.bundle, self.settings.strategy, verifiers)
        except BaseException:
            await self.close()
            raise
        control = SpeculationController(controller, planners, self.bundle.cores.follow_plan)
        self.generator = replace(self.generator, control=control)

    async def close(self) -> None:
        """Stop everything and save the suffix cache; may be called twice."""
        await self.bundle.close()

    @property
    def settings(self) -> Settings:
        return self.generator.settings

    @property
    def target(self) -> Engine:
        return self.bundle.target

    @property
    def draft(self) -> Engine | None:
        return self.bundle.draft

    @property
    def load_controller(self) -> LoadController | None:
        """Bounds speculation under load; made by `start`, None where the settings switch it off."""
        return self.generator.control.load

    @property
    def planner(self) -> Planner | None:
        """Chooses how far ahead an answer goes, of the first strategy that is planned; made by `start` where
        the settings ask for it."""
        return next(iter(self.generator.control.planners.values()), None)

    @property
    def suffix_sessions(self) -> SuffixCacheSessions | None:
        """The suffix cache; opened by `start`, None without one."""
        return self.bundle.suffix_sessions

    def verifier_for(self, strategy: str) -> Verifier | None:
        """Return the verifier of a strategy; see `Generator.verifier_for`."""
        return self.generator.verifier_for(strategy)

    def target_cores(self, strategy: str) -> tuple[int, ...]:
        """Return the cores of the target under a strategy; see `Generator.target_cores`."""
        return self.generator.target_cores(strategy)

    async def calibrate(self) -> None:
        """Measure on which cores the target is fastest; see `CoreAllocator.calibrate`."""
        await self.bundle.cores.calibrate()

    async def prepare(self, strategy: str | None = None) -> None:
        """Make the engines ready for a timed run of a strategy; see `Generator.prepare`."""
        await self.generator.prepare(strategy)

    def encode(self, request: GenerationRequest) -> Prompts:
        """Return the prompts of a request; see `Generator.encode`."""
        return self.generator.encode(request)

    def solve(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        recorder: Recorder | None = None,
        listener: Listener | None = None,
        prompts: Prompts | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[Step]:
        """Yield each step of the answer as soon as it is final.

        Args:
            prompt: a question, a conversation whose last turn is the user's, or a complete request.
            recorder: takes the work and the events of the solution.
            listener: called with every event at once.
            prompts: what `encode` returned for the request; None: encoded here.
            options: of a question or a conversation.
        """
        request = self.generator.request(prompt, **options)
        return self.generator.solve(request, recorder=recorder or Recorder(listener), prompts=prompts)

    async def answer(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        listener: Listener | None = None,
        **options: Unpack[RequestOptions],
    ) -> Solution:
        """Write the whole answer; arguments as in `solve`."""
        return await self.generator.answer(self.generator.request(prompt, **options), listener=listener)
