"""The remote engine: a model on servers with OpenAI's completions interface."""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

from reason_spec.engines.base import Engine
from reason_spec.engines.constraints import BackgroundCompiler, find_break
from reason_spec.engines.generation import EngineRequest, Generation, GenerationResult, Score
from reason_spec.engines.grammars import structured_outputs
from reason_spec.engines.limits import Limits
from reason_spec.engines.remote.completion import (
    RemoteCompletion,
    TextCompletion,
    TokenCompletion,
    tokens_that_end_a_step,
)
from reason_spec.engines.remote.discovery import discover
from reason_spec.engines.remote.scoring import read_score, score_body
from reason_spec.engines.remote.servers import (
    PrioritySemaphore,
    RefusalError,
    RemoteServer,
    ServerError,
    ServerPool,
)
from reason_spec.engines.remote.wire import Wire
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.errors import EngineError, RequestError
from reason_spec.segment import Boundary
from reason_spec.settings import EngineSettings
from reason_spec.types import Constraint, Prefix, Usage

logger = logging.getLogger(__name__)
_AFFINITY_TOKENS = 64
_INVALID_REQUEST = frozenset({400, 422})
"""Status codes with which servers refuse a constraint or a bias."""


class RemoteEngine(Engine):
    """Serves a model through one or several servers.

    A request goes to the server with the fewest requests. If it fails or stalls, it is retried after a
    growing pause at any free server, and continues after its tokens so far. ``settings.remote`` has the URLs
    and the timeouts.

    Raises:
        EngineError: the settings name no server, or the variable of the key is not set.
    """

    has_costs: ClassVar[bool] = False
    takes_hints = False
    takes_constraints = True

    def __init__(self, name: str, settings: EngineSettings) -> None:
        if not settings.remote.base_urls:
            raise EngineError(
                f"engine {name!r} is remote and has no server: set {name}.remote.base_urls, such as "
                "http://localhost:8000/v1"
            )
        self.name = name
        self.settings = settings
        self._remote = settings.remote
        self._wire = Wire(
            f"engine {name!r}", f"{name}.remote.api_key_variable", settings.remote, settings.max_running
        )
        self._pool = ServerPool([url.rstrip("/") for url in self._remote.base_urls])
        self._places = PrioritySemaphore(settings.max_running)
        self._closed = False
        self._tokenizer: HuggingFaceTokenizer | None = None
        self._limits: Limits | None = None
        self.by_tokens = False
        """Whether requests hold token ids; else they hold text."""
        self._step_ends: dict[Boundary | None, frozenset[int]] = {None: frozenset()}
        self._constraints = BackgroundCompiler.of_bytes()
        self._live: dict[asyncio.Task[None], RemoteCompletion] = {}
        self._retired_usage = Usage()

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        assert self._tokenizer is not None, f"engine {self.name!r} is not started"
        return self._tokenizer

    @property
    def max_context(self) -> int:
        """The context of the servers, or ``max_context`` of the settings if that is less."""
        return self._known_limits.max_context

    @property
    def _known_limits(self) -> Limits:
        assert self._limits is not None, f"engine {self.name!r} is not started"
        return self._limits

    # --- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                self.phase = "asking its servers"
                self._tokenizer = await asyncio.to_thread(self._load_tokenizer)
                found = await discover(self.name, self.settings, self._wire, self._pool, self._tokenizer)
                self._limits, self.by_tokens = found
                self.phase = ""
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise self._error(
                    f"the servers did not answer within start_timeout={self.settings.start_timeout:g} seconds"
                ) from None
            if isinstance(error, ServerError):
                raise self._error(str(error)) from None
            raise

    def _error(self, text: str) -> EngineError:
        return EngineError(f"engine {self.name!r}: {text}")

    def _load_tokenizer(self) -> HuggingFaceTokenizer:
        source = self._remote.tokenizer or self.settings.model
        try:
            return load_tokenizer(source, self.settings.revision, self.settings.chat_template)
        except EngineError as error:
            raise self._error(
                f"prompts are built here, with the model's tokenizer, and it cannot be loaded: {error} "
                f"Name its folder or id in {self.name}.remote.tokenizer"
            ) from None

    async def close(self) -> None:
        self._closed = True
        for task in self._live:
            task.cancel()
        await asyncio.gather(*self._live, return_exceptions=True)
        self._constraints.close()
        await self._wire.close()

    @property
    def takes_stop_ids(self) -> bool:
        return self.by_tokens

    # --- requests ----------------------------------------------------------------------------------

    async def check_constraint(self, constraint: Constraint) -> None:
        """Check the form of a constraint; the server checks its content."""
        structured_outputs(constraint)

    def submit(self, request: EngineRequest) -> Generation:
        prompt = request.prefix.to_tuple()
        task: asyncio.Task[None] | None = None

        def cancel() -> None:
            if task is not None:
                task.cancel()

        generation = Generation(request, on_cancel=cancel, on_hint=lambda _: None)
        refusal = self._known_limits.refusal(prompt, num_text=len(prompt), num_needed=1)
        if self._closed or refusal is not None:
            error = str(self._error("it is closed" if refusal is None else refusal))
            generation.finish(GenerationResult((), "", (), "failed", Usage(), error=error))
            return generation
        completion = self._begin(request)
        task = asyncio.get_running_loop().create_task(self._write(completion, generation))
        self._live[task] = completion
        task.add_done_callback(lambda task: self._retire(task, generation))
        return generation

    def _begin(self, request: EngineRequest) -> RemoteCompletion:
        if not self.by_tokens:
            return TextCompletion(request, self.tokenizer, self.max_context)
        # A server that ended a constrained text at a step would begin the constraint again after it.
        boundary = request.boundary if request.constraint is None else None
        if boundary is not None and boundary not in self._step_ends:
            self._step_ends[boundary] = tokens_that_end_a_step(self.tokenizer, boundary)
        return TokenCompletion(request, self.tokenizer, self.max_context, self._step_ends[boundary])

    def _retire(self, task: asyncio.Task[None], generation: Generation) -> None:
        """Deliver the result; the stream is closed by now."""
        completion = self._live.pop(task)
        if task.cancelled():
            result = completion.result("cancelled")
        elif (error := task.exception()) is not None:
            result = completion.result("failed", str(error) or type(error).__name__)
            result = replace(result, is_refused=isinstance(error, RequestError))
        else:
            assert completion.finish is not None
            result = completion.result(completion.finish)
        self._retired_usage += result.usage
        generation.finish(result)

    async def _write(self, completion: RemoteCompletion, generation: Generation) -> None:
        request = generation.request
        affinity = zlib.crc32(repr(request.prefix.to_tuple()[:_AFFINITY_TOKENS]).encode())
        num_failed = 0

        def priority() -> int:
            return generation.priority

        try:
            async with self._places.place(priority), asyncio.timeout(self._remote.total_timeout):
                while completion.finish is None:
                    try:
                        async with self._pool.use(affinity) as server:
                            await self._stream(server, completion, generation)
                    except ServerError as trouble:
                        if request.constraint is not None and completion.usage.num_passes:
                            raise self._error(
                                f"{trouble}; a text under a constraint cannot be continued at another server"
                            ) from None
                        num_failed += 1
                        self._give_up_after(num_failed, trouble)
        except RefusalError as refusal:
            raise _failure_of(self.name, request, refusal) from None
        except TimeoutError:
            seconds = self._remote.total_timeout
            raise self._error(f"not done within remote.total_timeout={seconds:g} seconds") from None
        await self._check_constrained(completion, request)

    async def _check_constrained(self, completion: RemoteCompletion, request: EngineRequest) -> None:
        """Check a whole text of a server that returns no tokens: it may ignore fields that it does not know.

        Raises:
            EngineError: the text is not what its constraint asks for.
        """
        is_whole = completion.finish == "eos" and request.boundary is None
        if not isinstance(completion, TextCompletion) or request.constraint is None or not is_whole:
            return
        matcher = await asyncio.wrap_future(self._constraints.start(request.constraint))
        if broken := find_break(completion.text, matcher):
            raise self._error(
                f"the server's text is not what {request.constraint.kind} asks for: {broken}. It may not "
                "know structured_outputs, vLLM's field for constraints; serve the model with vLLM"
            )

    async def _stream(
        self, server: RemoteServer, completion: RemoteCompletion, generation: Generation
    ) -> None:
        """Read the stream of one request until the generation or the request ends."""
        body = {"model": self._pool.model_at(server), "stream": True, **completion.body()}
        now = asyncio.get_running_loop().time
        timeout = self._remote.first_token_timeout
        try:
            async with (
                asyncio.timeout(timeout) as deadline,
                aclosing(self._wire.stream(server, body)) as choices,
            ):
                async for choice in choices:
                    timeout = self._remote.idle_timeout
                    deadline.reschedule(now() + timeout)
                    deltas = [completion.take(choice)]
                    ended = choice.get("finish_reason")
                    if completion.finish is None and ended is not None:
                        deltas.append(completion.end(ended))
                    for delta in deltas:
                        if delta is not None:
                            generation.push(delta)
                    if completion.finish is not None or ended is not None:
                        return
        except TimeoutError:
            raise ServerError(f"{server.url} sent nothing for {timeout:g} seconds") from None
        raise ServerError(f"{server.url} broke off in the middle of a stream")

    def _give_up_after(self, num_failed: int, last: ServerError) -> None:
        if num_failed > self._remote.max_retries:
            raise self._error(f"tried {num_failed} times (remote.max_retries); at last: {last}") from None

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        text = (*prefix.to_tuple(), *continuation)
        num_text = len(text) if len(prefix) else 0
        if self._closed:
            raise self._error("it is closed")
        if not continuation:
            return Score((), (), Usage())
        if not self.by_tokens:
            raise self._error("scores need a server that takes and returns token ids, as vLLM does")
        if (refusal := self._known_limits.refusal(text, num_text=num_text, num_needed=1)) is not None:
            raise self._error(refusal)
        seconds = self._remote.total_timeout
        try:
            async with asyncio.timeout(seconds):
                choice = await self._complete_anywhere(score_body(prefix, continuation))
        except TimeoutError:
            raise self._error(f"no score within remote.total_timeout={seconds:g} seconds") from None
        score = read_score(choice, prefix, continuation)
        if score is None:
            raise self._error("the server returns no log-probabilities of a prompt")
        self._retired_usage += score.usage
        return score

    async def _complete_anywhere(self, body: dict[str, Any]) -> dict[str, Any]:
        num_failed = 0
        while True:
            try:
                async with self._places.place(), self._pool.use(0) as server:
                    return await self._wire.complete(server, {"model": self._pool.model_at(server), **body})
            except ServerError as trouble:
                num_failed += 1
                self._give_up_after(num_failed, trouble)

    async def stats(self) -> EngineStats:
        usage = sum((completion.usage for completion in self._live.values()), self._retired_usage)
        num_waiting = self._places.num_waiting
        return EngineStats(
            num_running=len(self._live) - num_waiting,
            num_waiting=num_waiting,
            num_cached_tokens=0,
            num_passes=usage.num_passes,
            busy_seconds=0.0,
            usage=usage,
        )

    async def reset_prefix_cache(self) -> None:
        """Ask the servers to; only vLLM in development mode can."""
        await asyncio.gather(*map(self._wire.reset_prefix_cache, self._pool.servers))


def _failure_of(name: str, request: EngineRequest, refusal: RefusalError) -> RequestError | RefusalError:
    """Return the error of a refused request: its own fault where its constraint or bias may be invalid.

    That error reaches clients, so it does not name the server's address.
    """
    asked = ["logit_bias"] if request.logit_bias else []
    asked += [request.constraint.kind] if request.constraint is not None else []
    if not asked or refusal.status not in _INVALID_REQUEST:
        return refusal
    names = " and ".join(asked)
    return RequestError(
        f"the server of {name!r} refused a request with {names}: {refusal.message}; "
        "correct it, or leave it out"
    )
