"""An engine whose model runs in a worker process, as its callers see it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

from reason_spec.engines.base import Engine, Tokenizer
from reason_spec.engines.constraints import BackgroundCompiler, require_end
from reason_spec.engines.generation import EngineRequest, Generation, Score
from reason_spec.engines.stats import EngineStats, PassTime
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.engines.worker.messages import (
    EvictFirst,
    ForgetPrefixes,
    FromWorker,
    GetStats,
    LoadLayers,
    OfferHint,
    Phase,
    PrefixDelta,
    Ready,
    Reply,
    Report,
    ResetPrefixCache,
    SetCores,
    SetPriority,
    Start,
    Submit,
    SubmitScore,
    ToWorker,
)
from reason_spec.engines.worker.pass_times import merge_batch_times
from reason_spec.engines.worker.pending import PendingRequests, without_tokens
from reason_spec.engines.worker.prefixes import SentPrefixes
from reason_spec.engines.worker.process import WorkerProcess
from reason_spec.engines.worker.supervisor import Supervisor
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings, SuffixSettings
from reason_spec.types import Constraint, Prefix

_EMPTY = Prefix()


class WorkerEngine(Engine):
    """Serves a model from a worker process of its own.

    Args:
        suffix: settings for drafts from earlier texts; None for none.
        texts_of: the model of those texts, if it is another one with the same vocabulary.
    """

    host: ClassVar[str]
    """The module that loads the model in the worker; see `loop.Loader`."""
    takes_constraints = True
    reports_batch_times = True

    def __init__(
        self,
        name: str,
        settings: EngineSettings,
        suffix: SuffixSettings | None = None,
        texts_of: EngineSettings | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._suffix = suffix
        self._texts_of = texts_of
        self._tokenizer: HuggingFaceTokenizer | None = None
        self._info: Ready | None = None
        self._cores = settings.cores
        self._supervisor = Supervisor(
            name, settings, launch=self._launch, handle=self._handle, lost=self._lose_all
        )
        self._pending = PendingRequests(name)
        self._prefixes = SentPrefixes()
        self._pass_times: tuple[PassTime, ...] = ()
        self._batch_times: tuple[PassTime, ...] = ()
        self._constraints = BackgroundCompiler.of_bytes()

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, f"engine {self.name!r} is not started"
        return self._tokenizer

    @property
    def info(self) -> Ready:
        """The worker's description of the loaded model."""
        assert self._info is not None, f"engine {self.name!r} is not started"
        return self._info

    @property
    def dtype(self) -> str:
        return self.info.dtype

    @property
    def max_context(self) -> int:
        """The model's context, or ``cache_tokens`` if that is less."""
        return self.info.max_context

    @property
    def failure(self) -> str | None:
        return None if self._supervisor.closing else self._supervisor.failure

    @property
    def trouble(self) -> str | None:
        return self._supervisor.trouble

    @property
    def num_deaths(self) -> int:
        return self._supervisor.num_deaths

    @property
    def pass_times(self) -> tuple[PassTime, ...]:
        return self._pass_times

    @property
    def batch_times(self) -> tuple[PassTime, ...]:
        return self._batch_times

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None without a worker."""
        return self._supervisor.pid

    # --- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert not self._supervisor.was_opened, f"engine {self.name!r} was started twice"
        self._supervisor.open()
        self.phase = "starting"
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                self._tokenizer = await asyncio.to_thread(self._load_tokenizer)
                self._info = await self._supervisor.ready()
            self.phase = ""
        except BaseException as error:
            phase, self.phase = self.phase, ""
            await self.close()
            if isinstance(error, TimeoutError):
                last = self._supervisor.last_output
                raise EngineError(
                    f"engine {self.name!r}: model {self.settings.model!r} was not loaded within "
                    f"start_timeout={self.settings.start_timeout:g} seconds; set a longer start_timeout "
                    f"(it was {phase})" + (f". Its last output: {last}" if last else "")
                ) from None
            raise

    def _launch(self) -> tuple[WorkerProcess, Start]:
        # A new worker has no prefixes.
        self._prefixes = SentPrefixes()
        worker = WorkerProcess(self.host, self._cores, self._environment())
        return worker, Start(self.settings, self._cores, self._suffix, self._texts_of)

    def _environment(self) -> dict[str, str]:
        """Return environment variables of the worker."""
        return {}

    def _load_tokenizer(self) -> HuggingFaceTokenizer:
        try:
            return load_tokenizer(self.settings.model, self.settings.revision, self.settings.chat_template)
        except EngineError as error:
            raise type(error)(f"engine {self.name!r}: {error}") from None

    async def close(self) -> None:
        self._constraints.close()
        await self._supervisor.close()

    def keep_alive(self) -> None:
        self._supervisor.keep_alive()

    async def recovered(self) -> None:
        await self._supervisor.recovered()

    # --- requests ----------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> Generation:
        number = self._pending.next_number()
        generation = Generation(
            request,
            on_cancel=lambda: self._supervisor.cancel(number),
            on_hint=lambda hint: self._send(OfferHint(number, hint)),
            on_priority=lambda priority: self._send(SetPriority(number, priority)),
        )
        if self._supervisor.failure is not None:
            generation.finish(without_tokens("failed", self._supervisor.failure))
            return generation
        assert self._info is not None, f"engine {self.name!r} is not started"
        self._pending.generations[number] = generation
        self._send(Submit(number, replace(request, prefix=_EMPTY), self._encode(request.prefix)))
        return generation

    async def check_constraint(self, constraint: Constraint) -> None:
        await self._supervisor.recovered()
        require_end(self.tokenizer.eos_ids)
        await self._constraints.check(constraint)

    @property
    def takes_texts(self) -> bool:
        return self._suffix is not None and self.takes_hints

    def update_text(self, update: TextUpdate) -> None:
        if self.takes_texts:
            self._send(update)

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        return await self._score(prefix, continuation, alternatives=False)

    async def score_next(self, prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        return await self._score(prefix, tokens, alternatives=True)

    async def _score(self, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool) -> Score:
        self._supervisor.raise_if_failed()
        number = self._pending.next_number()
        future: asyncio.Future[Score] = asyncio.get_running_loop().create_future()
        self._pending.scores[number] = future
        self._send(SubmitScore(number, self._encode(prefix), continuation, alternatives))
        try:
            return await future
        finally:
            if self._pending.scores.pop(number, None) is not None:
                self._supervisor.cancel(number)

    async def stats(self) -> EngineStats:
        reply = await self._call(GetStats(self._pending.next_number()))
        assert reply.stats is not None
        return reply.stats

    async def reset_prefix_cache(self) -> None:
        await self._call(ResetPrefixCache(self._pending.next_number()))

    def evict_first(self, prefix: Prefix) -> None:
        self._send(EvictFirst(prefix.owner, prefix.to_tuple()))

    async def set_cores(self, cores: tuple[int, ...] | None) -> None:
        """Bind all threads of the worker to other cores; None for all that it started with.

        From its next pass on it computes with one thread for each core.
        """
        before, self._cores = self._cores, cores
        try:
            await self._call(SetCores(self._pending.next_number(), cores))
        except EngineError:
            # Restarted, it is where the caller believes it to be.
            self._cores = before
            raise

    # --- the pipe ----------------------------------------------------------------------------------

    async def _call(self, message: GetStats | ResetPrefixCache | SetCores | LoadLayers) -> Reply:
        self._supervisor.raise_if_failed()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.calls[message.number] = future
        self._send(message)
        try:
            reply = await future
        finally:
            self._pending.calls.pop(message.number, None)
        if reply.error is not None:
            raise EngineError(f"engine {self.name!r}: {reply.error}")
        return reply

    def _encode(self, prefix: Prefix) -> PrefixDelta:
        if dropped := self._prefixes.take_dropped():
            self._send(ForgetPrefixes(dropped))
        return self._prefixes.encode(prefix)

    def _send(self, message: ToWorker) -> None:
        self._supervisor.send(message)

    def _handle(self, message: FromWorker) -> None:
        match message:
            case Report(deltas, results, pass_times, batch_times):
                self._pass_times = pass_times or self._pass_times
                if self.num_deaths:
                    # A restarted worker has measured few batches.
                    batch_times = merge_batch_times(self._batch_times, batch_times)
                self._batch_times = batch_times or self._batch_times
                for number, delta in deltas:
                    if (generation := self._pending.generations.get(number)) is not None:
                        generation.push(delta)
                for number, result in results:
                    self._supervisor.confirmed(number)
                    self._pending.finish(number, result)
            case Reply():
                self._pending.reply(message)
            case Phase(text):
                # Progress is for the first start only, not for restarts.
                self.phase = self.phase and text
            case _:
                raise AssertionError(f"unexpected message {message!r}")

    def _lose_all(self, failure: str | None) -> None:
        self.phase = ""
        self._pending.fail_all(failure)
