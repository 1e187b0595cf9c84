"""The remote engine: the same contract, on servers with OpenAI's completions interface."""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import aclosing
from typing import Any, ClassVar

from reason_spec.engines.base import Engine, EngineRequest, Generation, GenerationResult, Score
from reason_spec.engines.grammars import structured_outputs
from reason_spec.engines.limits import Limits
from reason_spec.engines.remote.servers import PriorityGate, RemoteServer, ServerError, ServerPool
from reason_spec.engines.remote.wire import Wire
from reason_spec.engines.remote.writing import (
    TextWriting,
    TokenWriting,
    Writing,
    cache_salt_of,
    tokens_that_end_a_step,
)
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.errors import EngineError
from reason_spec.segment import Boundary
from reason_spec.settings import EngineSettings
from reason_spec.types import Constraint, Prefix, Usage

logger = logging.getLogger(__name__)
_AFFINITY_TOKENS = 64
_PROBE = "How many apples are 3 + 4?"


class RemoteEngine(Engine):
    """Serves a model through one server or several that hold the same one.

    Requests go to the server with the fewest of them. One that fails or stalls is tried again, with
    growing pauses, at whichever server is free, and goes on from the tokens that are certain.
    ``settings.remote`` says where the servers are and how long each part may take.

    Raises:
        EngineError: the settings name no server, or a variable for the key that is not set.
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
        self._gate = PriorityGate(settings.max_running)
        self._closed = False
        self._tokenizer: HuggingFaceTokenizer | None = None
        self._limits: Limits | None = None
        self._by_tokens = False
        self._step_ends: dict[Boundary | None, frozenset[int]] = {None: frozenset()}
        self._live: dict[asyncio.Task[None], Writing] = {}
        self._retired_usage = Usage()

    @property
    def tokenizer(self) -> HuggingFaceTokenizer:
        assert self._tokenizer is not None, f"engine {self.name!r} is not started"
        return self._tokenizer

    @property
    def max_context(self) -> int:
        """What the servers say, or ``max_context`` in the settings where that is less."""
        return self._known_limits.max_context

    @property
    def by_tokens(self) -> bool:
        """Whether token ids cross; else text does."""
        return self._by_tokens

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
                await self._meet_servers()
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

    async def _meet_servers(self) -> None:
        """Ask every server for its models, and the first that answers what language it speaks."""
        servers = self._pool.servers
        answers = await asyncio.gather(*map(self._wire.models, servers), return_exceptions=True)
        lengths = [self.settings.max_context]
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, ServerError):
                self._pool.rest(server)
                logger.warning("engine %r: %s; it is left out until it answers", self.name, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                model = self._find_model(server, answer)
                server.model = model["id"]
                lengths.append(model.get("max_model_len"))
        first = next((server for server in servers if server.model is not None), None)
        if first is None:
            reasons = "; ".join(map(str, answers))
            raise self._error(
                f"no server answers: {reasons}. Start one (vllm serve MODEL) or correct "
                f"{self.name}.remote.base_urls"
            )
        known = [length for length in lengths if length is not None]
        if not known:
            raise self._error(f"{first.url} does not say how long a text may be; set {self.name}.max_context")
        self._limits = Limits(min(known), self.tokenizer.vocab_size, "max_context, or the server's own")
        self._by_tokens = self._remote.send != "text" and await self._takes_tokens(first)

    def _find_model(self, server: RemoteServer, models: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._remote.served_model or self.settings.model
        found = [model for model in models if model.get("id") == wanted]
        if not found and self._remote.served_model is None and len(models) == 1:
            found = models
        if not found:
            names = ", ".join(str(model.get("id")) for model in models) or "none"
            raise self._error(
                f"{server.url} has no model {wanted!r}; it has {names}. Set {self.name}.remote.served_model"
            )
        return found[0]

    async def _takes_tokens(self, server: RemoteServer) -> bool:
        """Find out whether a server takes and returns token ids, and whether they are our tokenizer's.

        Raises:
            EngineError: its tokenizer is another one, or ``remote.send`` asks for what it cannot do.
        """
        tokens = list(self.tokenizer.encode(_PROBE))
        body = {"model": server.model, "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
        try:
            returned = (await self._wire.complete(server, {**body, "prompt": tokens})).get("token_ids")
        except EngineError:
            returned = None
        if not returned:
            if self._remote.send == "tokens":
                raise self._error(
                    f"{server.url} does not take and return token ids; set {self.name}.remote.send to text"
                )
            text = "engine %r: %s does not return token ids; text crosses, and is encoded anew"
            logger.warning(text, self.name, server.url)
            return False
        choice = await self._wire.complete(server, {**body, "prompt": _PROBE, "add_special_tokens": False})
        theirs = choice.get("prompt_token_ids")
        if theirs is not None and theirs != tokens:
            raise self._error(
                f"{server.url} encodes {_PROBE!r} as {theirs}, our tokenizer as {tokens}: another model's. "
                f"Name the right one in {self.name}.remote.tokenizer"
            )
        return True

    async def close(self) -> None:
        self._closed = True
        for task in self._live:
            task.cancel()
        await asyncio.gather(*self._live, return_exceptions=True)
        await self._wire.close()

    @property
    def takes_stop_ids(self) -> bool:
        return self._by_tokens

    # --- requests ----------------------------------------------------------------------------------

    async def check_constraint(self, constraint: Constraint) -> None:
        """Find out whether a constraint is one at all: what the server knows of it, it says itself."""
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
        writing = self._begin(request)
        task = asyncio.get_running_loop().create_task(self._write(writing, generation))
        self._live[task] = writing
        task.add_done_callback(lambda task: self._retire(task, generation))
        return generation

    def _begin(self, request: EngineRequest) -> Writing:
        if not self._by_tokens:
            return TextWriting(request, self.tokenizer, self.max_context)
        # A server that ended a text under a constraint at a step would begin the constraint anew behind it.
        boundary = request.boundary if request.constraint is None else None
        if boundary is not None and boundary not in self._step_ends:
            self._step_ends[boundary] = tokens_that_end_a_step(self.tokenizer, boundary)
        return TokenWriting(request, self.tokenizer, self.max_context, self._step_ends[boundary])

    def _retire(self, task: asyncio.Task[None], generation: Generation) -> None:
        """Deliver the end, however it came: its stream is closed by now."""
        writing = self._live.pop(task)
        if task.cancelled():
            result = writing.result("cancelled")
        elif (error := task.exception()) is not None:
            result = writing.result("failed", str(error) or type(error).__name__)
        else:
            assert writing.finish is not None
            result = writing.result(writing.finish)
        self._retired_usage += result.usage
        generation.finish(result)

    async def _write(self, writing: Writing, generation: Generation) -> None:
        request = generation.request
        affinity = zlib.crc32(repr(request.prefix.to_tuple()[:_AFFINITY_TOKENS]).encode())
        num_failed = 0

        def priority() -> int:
            return generation.priority

        try:
            async with self._gate.place(priority), asyncio.timeout(self._remote.total_timeout):
                while writing.finish is None:
                    try:
                        async with self._pool.use(affinity) as server:
                            await self._stream(server, writing, generation)
                    except ServerError as trouble:
                        if request.constraint is not None and writing.usage.num_generated_tokens:
                            raise self._error(
                                f"{trouble}; a text under a constraint cannot be gone on with elsewhere"
                            ) from None
                        num_failed += 1
                        self._give_up_after(num_failed, trouble)
        except TimeoutError:
            seconds = self._remote.total_timeout
            raise self._error(f"not done within remote.total_timeout={seconds:g} seconds") from None

    async def _stream(self, server: RemoteServer, writing: Writing, generation: Generation) -> None:
        """Read one request's stream until the generation is over, or the server ends it."""
        body = {"model": self._name_at(server), "stream": True, **writing.body()}
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
                    deltas = [writing.take(choice)]
                    ended = choice.get("finish_reason")
                    if writing.finish is None and ended is not None:
                        deltas.append(writing.end(ended))
                    for delta in deltas:
                        if delta is not None:
                            generation.push(delta)
                    if writing.finish is not None or ended is not None:
                        return
        except TimeoutError:
            raise ServerError(f"{server.url} sent nothing for {timeout:g} seconds") from None
        raise ServerError(f"{server.url} broke off in the middle of a stream")

    def _name_at(self, server: RemoteServer) -> str:
        """Return what a server calls the model; one that was away at the start is taken to say as others."""
        return server.model or next(other.model for other in self._pool.servers if other.model)

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
        if not self._by_tokens:
            raise self._error("scores need a server that takes and returns token ids, as vLLM does")
        if (refusal := self._known_limits.refusal(text, num_text=num_text, num_needed=1)) is not None:
            raise self._error(refusal)
        body: dict[str, Any] = {
            "prompt": list(text),
            "max_tokens": 1,
            "prompt_logprobs": 1,
            "temperature": 0.0,
        }
        body |= cache_salt_of(prefix)
        rows = (await self._complete_anywhere(body)).get("prompt_logprobs")
        if not rows or len(rows) != len(text):
            raise self._error("the server returns no log-probabilities of a prompt")
        wanted = rows[len(prefix) :]
        usage = Usage(num_prompt_tokens=len(prefix), num_passes=1, num_scored_tokens=len(continuation))
        self._retired_usage += usage
        logprobs = tuple(float(row[str(t)]["logprob"]) for row, t in zip(wanted, continuation, strict=True))
        best = tuple(int(max(row, key=lambda token, row=row: row[token]["logprob"])) for row in wanted)  # type: ignore[misc]
        return Score(logprobs, best, usage)

    async def _complete_anywhere(self, body: dict[str, Any]) -> dict[str, Any]:
        num_failed = 0
        while True:
            try:
                async with self._gate.place(), self._pool.use(0) as server:
                    return await self._wire.complete(server, {"model": self._name_at(server), **body})
            except ServerError as trouble:
                num_failed += 1
                self._give_up_after(num_failed, trouble)

    async def stats(self) -> EngineStats:
        usage = sum((writing.usage for writing in self._live.values()), self._retired_usage)
        num_waiting = self._gate.num_waiting
        return EngineStats(
            num_running=len(self._live) - num_waiting,
            num_waiting=num_waiting,
            num_cached_tokens=0,
            num_passes=usage.num_passes,
            busy_seconds=0.0,
            usage=usage,
        )

    async def reset_prefix_cache(self) -> None:
        """Ask the servers to; those keep what they cached that are not vLLM in development mode."""
        await asyncio.gather(*map(self._wire.reset_prefix_cache, self._pool.servers))
