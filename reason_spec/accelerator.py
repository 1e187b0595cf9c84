"""The composition root: settings in, a running system out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from reason_spec.ask import GenerationRequest, Prompts
from reason_spec.control.costs import measure_batches, measure_costs
from reason_spec.control.load_controller import LoadController, LoadCosts
from reason_spec.control.planner import Planner
from reason_spec.engines.base import Engine, EngineRequest
from reason_spec.engines.chat_template import ChatOptions, Message
from reason_spec.engines.weights import identify_model
from reason_spec.errors import EngineError
from reason_spec.events import Listener, Recorder
from reason_spec.routers.base import PairIdentity, Router, create_router
from reason_spec.settings import EngineSettings, RouterSettings, Settings, StrategySettings, load_settings
from reason_spec.strategies.base import SolveRequest, Strategy
from reason_spec.strategies.factory import create_strategy, strategy_class
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.strategies.suffix_session import SuffixCacheSession, SuffixCacheSessions, segments_of
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.types import LossClass, Prefix, Step
from reason_spec.verifiers.base import Models, Verifier, create_verifier, measure_verdict

if TYPE_CHECKING:
    from reason_spec.verifiers.reward import Reward

_CALIBRATION_TOKENS = 48
logger = logging.getLogger(__name__)


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


class Accelerator:
    """A target, and where a strategy needs them a draft and a verifier, ready to solve.

    Use it as an asynchronous context manager: entering starts the engines, leaving frees them.

    ::

        async with Accelerator.from_settings() as accelerator:
            async for step in accelerator.solve("Ana has 3 apples ..."):
                print(step.origin, step.text)
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
        strategies: those that will be used; none stands for the one in the settings.
        """
        self.settings = settings
        self.target = target
        self.draft = draft
        self.verifier = verifier
        self.strategies = tuple(strategies) or (settings.strategy.name,)
        self._verifiers: dict[tuple[str, str], Verifier] = {}
        self._ready: set[Verifier] = set()
        self._making_ready = asyncio.Lock()
        self._routers: dict[RouterSettings, Router] = {}
        self._cores = available_cores()
        self._shared_target_cores, self._draft_cores = share_out_cores(
            settings, self._cores, draft is not None
        )
        self._lone_target_cores = settings.target.cores or self._shared_target_cores
        self._cores_now = self._wanted_cores = self._shared_target_cores
        self._giving_cores: asyncio.Task[None] | None = None
        self._is_calibrated = False
        self.gate: LoadController | None = None
        """Decides how much is speculated under load; made at the start, None where the settings want none."""
        self._started = False
        self.planner: Planner | None = None
        """Made at the start where the settings ask for one; its ``costs`` are what was measured."""
        self.memories: SuffixCacheSessions | None = None
        """What is proposed from earlier texts, and learns from each; made at the start, if at all."""

    @classmethod
    def from_settings(
        cls, settings: Settings | None = None, *, strategies: Sequence[str] = (), **flags: Any
    ) -> Self:
        """Make an accelerator from settings, the environment and flags; nothing is loaded yet.

        Args:
            settings: a resolved tree; None resolves it from defaults, environment and ``flags``.
            strategies: strategies that will be used beside the one in the settings. The draft is
                left out where none of them needs it.
            flags: single settings, with two underscores for the dot: ``strategy__depth=6``.

        Raises:
            SettingsError: a name is unknown or a value is out of range.
            MissingDependencyError: a part needs a package that is not installed.
        """
        from reason_spec.engines.factory import create_engine

        if settings is None:
            settings = load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})
        elif flags:
            raise TypeError("give either settings or flags, not both")
        names = tuple(strategies) or (settings.strategy.name,)
        with_draft = any(strategy_class(name).needs_draft for name in names)
        cores = share_out_cores(settings, available_cores(), with_draft)
        suffix = settings.suffix if settings.suffix.use in ("tokens", "both") else None
        target = create_engine("target", settings.target.model_copy(update={"cores": cores[0]}), suffix)
        draft = None
        if with_draft:
            with_cores = settings.draft.model_copy(update={"cores": cores[1]})
            draft = create_engine("draft", with_cores, suffix, texts_of=settings.target)
        accelerator = cls(settings, target, draft, None, names)
        for name in names:
            accelerator.verifier_for(name)
        if any(strategy_class(name).needs_router for name in names):
            accelerator.router()
        return accelerator

    def verifier_for(self, strategy: str, named: str | None = None) -> Verifier | None:
        """Return what decides about drafted steps under a strategy; None where it asks nobody.

        ``named`` is asked in the place of the verifier in the settings.

        Raises:
            SettingsError: there is no such verifier, or it cannot do what the strategy asks of it.
        """
        chosen = strategy_class(strategy)
        name = chosen.verifier_name(named or self.settings.verifier.name)
        if name is None:
            return None
        verifier = self.verifier if named is None else None
        if verifier is None:
            key = (name, self.settings.verifier.model_dump_json())
            if key not in self._verifiers:
                models = models_to_ask(self.settings, self.target, self._shared_target_cores)
                self._verifiers[key] = create_verifier(name, self.settings.verifier, models)
            verifier = self._verifiers[key]
        chosen.check_verifier(verifier)
        return verifier

    def router(self) -> Router:
        """Return the router that the settings name, made once.

        Raises:
            SettingsError: there is none of that name, or it was trained on other models.
            DataError: its file is missing or damaged.
        """
        if self._routers.get(self.settings.router) is None:
            models = (
                identify_model("target", self.settings.target),
                identify_model("draft", self.settings.draft),
            )
            self._routers[self.settings.router] = create_router(self.settings.router, PairIdentity(*models))
        return self._routers[self.settings.router]

    @property
    def _parts(self) -> list[Engine | Verifier]:
        parts = (self.target, self.draft, self.verifier, *self._verifiers.values())
        return [part for part in parts if part is not None]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start engines and verifier side by side.

        Raises:
            EngineError: one of them could not start; the others are freed again.
        """
        if self._started:
            return
        results = await asyncio.gather(*(part.start() for part in self._parts), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
        self._started = True
        self._ready = {part for part in self._parts if isinstance(part, Verifier)}
        if self.settings.suffix.use != "none":
            self.memories = await asyncio.to_thread(self._open_memories)
        try:
            await self._open_gate()
        except BaseException:
            await self.close()
            raise
        planned = any(strategy_class(name).planned for name in self.strategies)
        wants_planner = planned and self.settings.strategy.planner and self.target.has_costs
        if self.draft is not None and wants_planner and self.draft.has_costs:
            try:
                self.planner = await self._make_planner(self.draft)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Stop everything, and keep what was learnt from texts; may be called twice."""
        self._started = False
        if self._giving_cores is not None:
            # An engine that hangs takes none.
            self._giving_cores.cancel()
            await asyncio.wait({self._giving_cores})
        memories, self.memories = self.memories, None
        if memories is not None:
            await asyncio.to_thread(memories.save)
        await asyncio.gather(*(part.close() for part in self._parts), return_exceptions=True)

    async def _make_planner(self, draft: Engine) -> Planner:
        strategy = self.settings.strategy
        verifier = self.verifier_for(next(name for name in self.strategies if strategy_class(name).planned))
        verdict = 0.0 if verifier is None else await measure_verdict(verifier)
        costs = await measure_costs(self.target, draft, verdict=verdict)
        # Where the target drafts by itself its tokens are no part of the budget.
        max_draft_tokens = strategy.num_draft_tokens if self.target.takes_hints else 0
        return Planner(costs, max_depth=strategy.depth, max_draft_tokens=max_draft_tokens)

    async def _open_gate(self) -> None:
        """Make the load gate, and let the engines find out what batches cost."""
        if self.settings.load_control.use == "off":
            return
        self.gate = LoadController(self.settings.load_control, self._load_costs, self._give_cores)
        if self.draft is None or self.settings.load_control.at_most == "none":
            return
        engines = [engine for engine in (self.target, self.draft) if engine.reports_batch_times]
        for engine in engines:
            await measure_batches(engine, with_drafts=engine is self.target and engine.takes_hints)
        if self.target.reports_batch_times and self.all_target_cores != self._shared_target_cores:
            await self.use_cores(self.all_target_cores)
            await measure_batches(self.target, with_drafts=False)
            await self.use_cores(self._shared_target_cores)
        for engine in engines:
            await engine.reset_prefix_cache()

    @property
    def all_target_cores(self) -> tuple[int, ...]:
        """The cores of a target beside which nobody drafts."""
        return self.settings.target.cores or self._cores

    def _load_costs(self) -> LoadCosts:
        draft = () if self.draft is None else self.draft.batch_times
        threads = len(self._shared_target_cores), len(self.all_target_cores)
        return LoadCosts.of(self.target.batch_times, draft, *threads)

    def _give_cores(self, all_cores: bool) -> None:
        """Let the target have all cores or its share of them, without waiting for it."""
        if self.draft is None or self.gate is None:
            return
        self._wanted_cores = self.all_target_cores if all_cores else self._shared_target_cores
        if self._is_calibrated and self.gate.way == "none" and self.gate.num_live == 1:
            # What is compared with one answer alone runs on what was measured for that.
            self._wanted_cores = self._lone_target_cores
        idle = self._giving_cores is None or self._giving_cores.done()
        if idle and self._wanted_cores != self._cores_now:
            self._giving_cores = asyncio.get_running_loop().create_task(self._follow_wanted_cores())

    async def _follow_wanted_cores(self) -> None:
        # They may change again while the engine is told.
        while self._cores_now != self._wanted_cores:
            try:
                await self.use_cores(self._wanted_cores)
            except EngineError:
                # Whoever asks the engine for a text is told.
                return

    def _open_memories(self) -> SuffixCacheSessions | None:
        try:
            model = identify_model("target", self.settings.target)
            caches = open_caches(self.settings.suffix, StoreKey(model, self.target.tokenizer.tokenizer_id))
        except Exception as error:
            logger.warning("nothing is proposed from earlier texts: %s: %s", type(error).__name__, error)
            return None
        return SuffixCacheSessions(self.settings.suffix, caches, self.target, self.draft)

    async def calibrate(self) -> None:
        """Measure on how many cores the target is fastest alone, and use them when it is alone.

        While the draft works the target keeps to its share of the cores; a baseline that kept to
        it too would be slower than it has to be.
        """
        candidates = {self._shared_target_cores, self._cores}
        if self.settings.target.cores is not None or len(candidates) < 2:
            return
        seconds = {cores: await self._time_target(cores) for cores in candidates}
        self._lone_target_cores = min(seconds, key=seconds.__getitem__)
        self._is_calibrated = True
        await self.use_cores(self._shared_target_cores)

    async def _time_target(self, cores: tuple[int, ...]) -> float:
        await self.use_cores(cores)
        prefix = Prefix(self.target.tokenizer.encode_chat([{"role": "user", "content": "How many?"}]))
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            result = await self.target.submit(
                EngineRequest(prefix, _CALIBRATION_TOKENS, stream=False)
            ).result()
            best = min(best, (time.perf_counter() - started) / len(result.tokens))
        return best

    async def use_cores(self, cores: tuple[int, ...]) -> None:
        """Let the target run on these cores from its next pass on; the load gate may give it others later."""
        self._wanted_cores = cores
        if self._giving_cores is not None and asyncio.current_task() is not self._giving_cores:
            await asyncio.wait([self._giving_cores])
        if cores != self._cores_now:
            await self.target.set_cores(cores)
            self._cores_now = cores

    def target_cores(self, strategy: str) -> tuple[int, ...]:
        """Return the cores the target runs on under a strategy."""
        return self._shared_target_cores if strategy_class(strategy).needs_draft else self._lone_target_cores

    async def prepare(self, strategy: str) -> None:
        """Give the target the cores that a strategy leaves it, and forget all cached prefixes.

        A verifier that was not needed before is loaded.
        Between timed runs this keeps one strategy from living on another one's work.
        """
        await self.use_cores(self.target_cores(strategy))
        if (verifier := self.verifier_for(strategy)) is not None:
            await self._make_ready(verifier)
        await self.target.reset_prefix_cache()
        if self.draft is not None:
            await self.draft.reset_prefix_cache()

    def strategy(self, name: str | StrategySettings | None = None, verifier: str | None = None) -> Strategy:
        """Return a strategy over these engines; None for the one in the settings.

        Args:
            name: its name, or with everything set.
            verifier: the verifier's name; None for the one in the settings.
        """
        settings = self.settings.strategy
        if isinstance(name, StrategySettings):
            settings = name
        elif name is not None:
            settings = settings.model_copy(update={"name": name})
        planner = self.planner if settings.planner and strategy_class(settings.name).planned else None
        judge = self.verifier_for(settings.name, verifier)
        router = self.router() if strategy_class(settings.name).needs_router else None
        return create_strategy(settings, self.target, self.draft, judge, planner, router)

    async def solve(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        strategy: str | None = None,
        problem: int = 0,
        sample: int = 0,
        tenant: str | None = None,
        scope: str = "",
        recorder: Recorder | None = None,
        listener: Listener | None = None,
        prompts: Prompts | None = None,
    ) -> AsyncGenerator[Step]:
        """Yield each step of the answer as soon as it is final.

        Args:
            prompt: a question, a conversation whose last turn is the user's, or all there is to say: then
                only ``recorder``, ``listener`` and ``prompts`` are looked at beside it.
            strategy: a strategy's name; None for the one in the settings.
            problem, sample: key the sampling noise; equal keys draw equal noise.
            tenant: whose texts the suffix cache learns and proposes; None for the settings' own.
            scope: what is compared has a suffix cache of its own for each scope.
            recorder: takes the work and the events of the solution.
            listener: called with every event at once.
            prompts: what `encode` returned for it; None: encoded here.
        """
        assert self._started, "solve was called before start: use 'async with accelerator'"
        ask = self._ask(prompt, strategy, problem, sample, tenant, scope)
        recorder = recorder or Recorder(listener)
        writer = await self._writer(ask)
        prompts = prompts or self.encode(ask)
        request = self.resolve(ask, prompts)
        memory = self._open_memory(ask, prompts)
        try:
            request = replace(request, suffix_session=memory)
            with ExitStack() as held:
                if self.gate is not None:
                    live = held.enter_context(self.gate.enter(writer.wish))
                    request = replace(request, budget=live)
                async with aclosing(writer.solve(request, recorder)) as steps:
                    async for step in steps:
                        yield step
        finally:
            if memory is not None:
                memory.close()

    def _ask(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        strategy: str | None,
        problem: int,
        sample: int,
        tenant: str | None,
        scope: str,
    ) -> GenerationRequest:
        if isinstance(prompt, GenerationRequest):
            return prompt
        messages: Sequence[Message] = prompt if not isinstance(prompt, str) else _question(prompt)
        sampling = self.settings.sampling.for_sample(problem, sample)
        return GenerationRequest(
            messages=messages, strategy=strategy, sampling=sampling, tenant=tenant, scope=scope
        )

    async def _writer(self, ask: GenerationRequest) -> Strategy:
        """Return the strategy that is asked for, its verifier ready."""
        writer = self._writer_of(ask)
        if writer.uses_verifier:
            await self._make_ready(writer.verifier)
        return writer

    def _writer_of(self, ask: GenerationRequest) -> Strategy:
        writer = self.strategy("autoregressive" if ask.is_bound else ask.strategy, ask.verifier)
        if ask.stop_ids and not writer.takes_stop_ids:
            return self.strategy("autoregressive")
        return writer

    async def _make_ready(self, verifier: Verifier) -> None:
        async with self._making_ready:
            if verifier not in self._ready:
                await verifier.start()
                self._ready.add(verifier)

    def encode(self, ask: GenerationRequest) -> Prompts:
        """Return the prompts of an ask, without what is ``written``. May be called in any thread.

        Raises:
            EngineError: the chat template refuses the conversation.
        """
        tokenizer = self.target.tokenizer
        target = _encode(ask, self.target, self.target)
        owner = self._owner_of(ask)
        draft = None
        if self.draft is not None:
            draft = Prefix(_encode(ask, self.draft, self.target), owner=owner)
        segments = segments_of(ask.messages, target, tokenizer) if self.memories is not None else ()
        return Prompts(Prefix(target, owner=owner), draft, segments)

    def _owner_of(self, ask: GenerationRequest) -> str:
        """Return whose prefixes an ask may be answered from: those of its tenant, and of its salt."""
        is_own = ask.tenant in (None, self.settings.suffix.tenant) or self.settings.server.share_prefixes
        tenant = "" if is_own else ask.tenant
        return f"{tenant}\0{ask.cache_salt}" if tenant or ask.cache_salt else ""

    def resolve(self, ask: GenerationRequest, prompts: Prompts | None = None) -> SolveRequest:
        """Return what is asked in the tokens of both models. May be called in any thread.

        Args:
            prompts: what `encode` returned for the ask, or for one of the same conversation; None: encoded
                here.

        Raises:
            EngineError: the chat template refuses the conversation.
        """
        prompts = prompts or self.encode(ask)
        sampling = self.settings.sampling
        num_written = sum(len(tokens_for(step, self.target)) for step in ask.written)
        request = SolveRequest(
            question=ask.question,
            target_prompt=prompts.target,
            draft_prompt=prompts.draft,
            max_tokens=(ask.max_tokens or sampling.max_tokens) + num_written,
            sampling=ask.sampling or sampling.for_sample(0, 0),
            boundary=self.settings.boundary.to_boundary(),
            stops=sampling.stop if ask.stops is None else ask.stops,
            stop_ids=ask.stop_ids,
            constraint=ask.constraint,
            logit_bias=ask.logit_bias,
            cache_key=(ask.tenant or self.settings.suffix.tenant, ask.scope),
        )
        return replace(request.behind(ask.written, self.target, self.draft), chars_before=0)

    def _open_memory(self, ask: GenerationRequest, prompts: Prompts) -> SuffixCacheSession | None:
        if self.memories is None:
            return None
        segments, of_draft = prompts.segments, prompts.segments
        if prompts.draft is not None and prompts.draft.to_tuple() != prompts.target.to_tuple():
            of_draft = (("prompt", prompts.draft.to_tuple()),)
        written = tuple(token for step in ask.written for token in tokens_for(step, self.target))
        if written:
            segments, of_draft = (*segments, ("output", written)), (*of_draft, ("output", written))
        return self.memories.open(segments, of_draft, tenant=ask.tenant, scope=ask.scope)

    async def answer(
        self,
        prompt: str | Sequence[Message] | GenerationRequest,
        *,
        strategy: str | None = None,
        problem: int = 0,
        sample: int = 0,
        tenant: str | None = None,
        scope: str = "",
        listener: Listener | None = None,
    ) -> Solution:
        """Solve and return the whole answer with everything counted; see ``solve``."""
        recorder = Recorder(listener)
        ask = self._ask(prompt, strategy, problem, sample, tenant, scope)
        steps = [step async for step in self.solve(ask, recorder=recorder)]
        seconds = time.perf_counter() - recorder.started
        writer = self._writer_of(ask)
        text = "".join(step.text for step in steps)
        return Solution(text, tuple(steps), seconds, writer.name, writer.loss_class, recorder)


def _question(text: str) -> Sequence[Message]:
    return ({"role": "user", "content": text},)


def _encode(ask: GenerationRequest, engine: Engine, target: Engine) -> tuple[int, ...]:
    """Return an ask's prompt in the tokens of an engine's model."""
    tokenizer = engine.tokenizer
    if ask.prompt is None:
        return tokenizer.encode_chat(
            ask.messages, ChatOptions(ask.tools, ask.chat_arguments, ask.continue_final)
        )
    if isinstance(ask.prompt, str):
        return tokenizer.encode_prompt(ask.prompt)
    if tokenizer.tokenizer_id == target.tokenizer.tokenizer_id:
        return ask.prompt
    return tokenizer.encode_prompt(target.tokenizer.decode_prompt(ask.prompt))


def available_cores() -> tuple[int, ...]:
    """Return the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def share_out_cores(
    settings: Settings, cores: tuple[int, ...], with_draft: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the target's and the draft's cores: the draft gets one, the target all others.

    Where one of them is served elsewhere, the other gets all.

    Two workers with threads on the same cores wait for each other in every parallel region; with
    a single core they have to share it.
    """
    if "remote" in (settings.target.kind, settings.draft.kind):
        return settings.target.cores or cores, settings.draft.cores or cores
    free = tuple(core for core in cores if core not in (settings.target.cores or ())) or cores
    draft = settings.draft.cores or free[-1:]
    rest = tuple(core for core in cores if not with_draft or core not in draft) or cores
    return settings.target.cores or rest, draft


def models_to_ask(
    settings: Settings, target: Engine | None = None, cores: tuple[int, ...] | None = None
) -> Models:
    """Return the models that verifiers may ask beside a target, and how they want to be asked.

    Beside the embedded target these are the embedded judge and reward head; beside another the target itself
    is asked where no judge is set.

    Args:
        cores: where a judge of its own runs; None: it takes what its settings say.
    """
    from reason_spec.engines.factory import create_engine
    from reason_spec.pair import wording
    from reason_spec.verifiers.asking import Questions

    boundary = settings.boundary.to_boundary()
    judge = judge_settings(settings)
    if judge is None:
        return Models(target, boundary=boundary)
    if judge.cores is None:
        # It works while the target waits for it.
        judge = judge.model_copy(update={"cores": cores})
    trained = Questions(wording.SCORE_QUESTION, "", wording.JUDGE_QUESTION, "")
    return Models(
        target,
        make_judge=lambda: create_engine("judge", judge),
        questions=trained if judge.model == "embedded" else None,
        load_reward=_load_embedded_reward if _is_embedded(settings.target) else None,
        boundary=boundary,
    )


def judge_settings(settings: Settings) -> EngineSettings | None:
    """Return the model that verifiers ``utility`` and ``judge`` ask; None: the target itself."""
    own = settings.target
    if settings.verifier.judge is not None or not _is_embedded(own):
        return settings.verifier.judge
    return EngineSettings(kind=own.kind, dtype=own.dtype, device=own.device)


def _is_embedded(target: EngineSettings) -> bool:
    return target.model == "embedded" and target.kind in ("torch", "vllm")


def _load_embedded_reward() -> Reward:
    from reason_spec.pair.reward import load_embedded_reward
    from reason_spec.verifiers.batching import no_progress_bars

    with no_progress_bars():
        return load_embedded_reward()
