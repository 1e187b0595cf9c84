"""One HTTP request: its client, its limits, its place, and the answers of the chat to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatEvent, ChatRequest, TextRequest
from reason_spec.chat.preparing import PreparedRequest
from reason_spec.chat.service import Chat
from reason_spec.errors import EngineError, RequestError, did_you_mean
from reason_spec.server.admission import Admission
from reason_spec.server.base import ApiError, Client, StreamEvent
from reason_spec.server.deadline import Deadline, while_connected
from reason_spec.server.metrics import Metrics
from reason_spec.server.pacing import Pace
from reason_spec.server.predicted_calls import CallPredictions, ReadOnlyMarks, RequestPrediction
from reason_spec.server.protocol_base import MAX_SESSION_CHARACTERS, WholeBody
from reason_spec.server.replies import ReplyStyle
from reason_spec.server.reply_bodies import ErrorBody
from reason_spec.server.sessions import SESSION_HEADER, Sessions
from reason_spec.server.streaming import EventFormat, EventStream, merged, together
from reason_spec.settings import EngineSettings, ServerSettings
from reason_spec.tools_ahead.followed import Origin

_RETRY_SECONDS = 5.0
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request cannot be done; the message says why."},
    "5XX": {"model": ErrorBody, "description": "The server failed, is full, or stops."},
}
"""The errors of every endpoint, for the OpenAPI document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """State shared by all endpoints; ``models`` are the names of the target."""

    chat: Chat
    accelerator: Accelerator
    settings: ServerSettings
    admission: Admission
    metrics: Metrics
    models: tuple[str, ...]
    started: float
    sessions: Sessions
    predictions: CallPredictions | None = None

    @property
    def fingerprint(self) -> str:
        return f"rs-{self.accelerator.settings.hash}"

    @property
    def max_context(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self.accelerator.target.max_context


def target_name(target: EngineSettings) -> str:
    """Return the default name of a model; never a path of this machine."""
    name = target.remote.served_model or target.model
    path = Path(name)
    return path.name if path.exists() else name


@dataclass(frozen=True, slots=True)
class _Choice:
    """One answer to write: choice ``index`` of a request."""

    request: PreparedRequest
    index: int


class _Admitted(NamedTuple):
    choices: list[_Choice]
    speculate: bool


class ApiRequest:
    """An HTTP request that is being answered."""

    def __init__(self, request: Request) -> None:
        self.context: AppContext = request.app.state.context
        settings = self.context.accelerator.settings
        # Without a guard in front, only the operator reaches the server.
        operator = Client(settings.suffix.tenant, trusted=True)
        self.client: Client = getattr(request.state, "client", None) or operator
        if not hasattr(request.state, "request_id"):
            request.state.request_id = uuid.uuid4().hex
        self.id: str = request.state.request_id
        self._notes: dict[str, Any] = getattr(request.state, "notes", {})
        self._request = request
        self._arrived = time.monotonic()
        self._deadline = Deadline(self.context.settings)
        self._ends_session = False

    def enter_session(self, body: WholeBody) -> str:
        """Return the name of the request's session: the body's, else the header's; empty without one.

        Raises:
            RequestError: the header's is too long.
        """
        self._ends_session = body.agent_hint is not None and body.agent_hint.ends_session
        named = body.session or self._request.headers.get(SESSION_HEADER, "")
        if len(named) > MAX_SESSION_CHARACTERS:
            message = f"the name of a session has at most {MAX_SESSION_CHARACTERS} characters"
            raise RequestError(message, param=SESSION_HEADER)
        return named

    def check_model(self, name: str) -> None:
        """Raises:
        ApiError: 404, no such model is served.
        """
        known = self.context.models
        if name not in known:
            hint = did_you_mean(name, known) or ";"
            message = f"no model {name[:200]!r} is served here{hint} served: {', '.join(known)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_choices(self, number: int) -> None:
        """Raises:
        RequestError: more answers than the operator allows.
        """
        most = self.context.settings.max_n
        if number > most:
            raise RequestError(f"{number} answers are asked for; the most is {most}", param="n")

    def max_tokens(self, number: int | None, param: str = "max_tokens") -> int | None:
        """Return the limit of an answer's tokens, from the requested one; None: as the settings say.

        Raises:
            RequestError: it is more than the operator allows.
        """
        most = self.context.settings.max_output_tokens
        if most is not None and number is not None and number > most:
            raise RequestError(f"{number} tokens are asked for; the most is {most} here", param=param)
        if most is None or number is not None:
            return number
        return min(most, self.context.accelerator.settings.sampling.max_tokens)

    def style(self, prefix: str, model: str, **options: Any) -> ReplyStyle:
        """Return the common fields of the answers to this request."""
        return ReplyStyle(
            id=f"{prefix}{self.id}",
            created=int(time.time()),
            model=model,
            fingerprint=self.context.fingerprint,
            reasoning_field=self.context.settings.reasoning_field,
            with_report=self.client.trusted,
            num_draft_tokens=self.context.accelerator.settings.strategy.num_draft_tokens,
            **options,
        )

    def prediction(self, request: ChatRequest, marks: ReadOnlyMarks) -> RequestPrediction | None:
        """Return the prediction of the answer's calls; None where the client may not see one."""
        if self.context.predictions is None or not self.client.trusted:
            return None
        origin = Origin(self.client.tenant, request.cache_salt, request.session)
        return self.context.predictions.of(request, marks, origin)

    async def answers(
        self,
        requests: Sequence[ChatRequest | TextRequest],
        each: int,
        prediction: RequestPrediction | None = None,
    ) -> list[ChatAnswer]:
        """Return ``each`` answers to every request, those to one side by side.

        Raises:
            RequestError, ApiError, EngineError, ClientGoneError: all work has ended, or keeps its place until
                it has.
        """
        async with while_connected(self._request.receive), AsyncExitStack() as held:
            admitted = await self._enter(requests, each, held)
            if prediction is not None:
                prediction.start()
            answers = await self._deadline.whole(
                together([self._answer(choice, admitted.speculate) for choice in admitted.choices])
            )
            if prediction is not None:
                answers = prediction.whole(answers)
        for answer in answers:
            self.count(answer.end)
        return answers

    async def stream(
        self,
        requests: Sequence[ChatRequest | TextRequest],
        each: int,
        form: EventFormat,
        prediction: RequestPrediction | None = None,
    ) -> EventStream:
        """Return a response that streams ``each`` answers to every request.

        It returns with the first event or after ``PING_SECONDS``, so that an earlier failure has a status of
        its own. A prediction is such an event.

        Args:
            form: encodes the events of the chat.

        Raises:
            RequestError, ApiError, EngineError, ClientGoneError: as ``answers``.
        """
        async with while_connected(self._request.receive), AsyncExitStack() as held:
            admitted = await self._enter(requests, each, held)
            answers = [self._stream(choice, admitted.speculate) for choice in admitted.choices]
            if prediction is not None:
                prediction.start()
                answers = [prediction.watched(index, answer) for index, answer in enumerate(answers)]
            streams: list[AsyncGenerator[StreamEvent]] = [self._counted(answer) for answer in answers]
            if prediction is not None:
                streams.append(prediction.events())
            events = merged(streams, self._deadline)
            held.push_async_callback(events.aclose)
            first = await anext(events)
            return EventStream(first, events, form, held.pop_all(), self.id, self._pace())
        raise AssertionError("the block returns")

    async def _answer(self, choice: _Choice, speculate: bool) -> ChatAnswer:
        """Return one answer; if the target died meanwhile it is written anew, once."""
        chat, target = self.context.chat, self.context.accelerator.target
        # The target may have died since `_enter` looked: in the queue, or while the prompt was encoded.
        await target.recovered()
        num_deaths = target.num_deaths
        try:
            return await chat.answer(choice.request, index=choice.index, speculate=speculate)
        except EngineError:
            if target.num_deaths == num_deaths:
                raise
            await target.recovered()
        return await chat.answer(choice.request, index=choice.index, speculate=speculate)

    async def _stream(self, choice: _Choice, speculate: bool) -> AsyncGenerator[ChatEvent]:
        """Yield the events of one answer; see `_answer`. A stream that has begun is not written anew."""
        target = self.context.accelerator.target
        await target.recovered()
        num_deaths, may_retry = target.num_deaths, True
        while True:
            stream = self.context.chat.stream(choice.request, index=choice.index, speculate=speculate)
            try:
                async with aclosing(stream) as events:
                    async for event in events:
                        may_retry = False
                        yield event
                return
            except EngineError:
                if not may_retry or target.num_deaths == num_deaths:
                    raise
                may_retry = False
                await target.recovered()

    def _pace(self) -> Pace | None:
        settings = self.context.settings
        at_once = settings.pace_streams == "none" or (
            settings.pace_streams == "untrusted" and self.client.trusted
        )
        return None if at_once else Pace()

    async def _enter(
        self, requests: Sequence[ChatRequest | TextRequest], each: int, held: AsyncExitStack
    ) -> _Admitted:
        """Take a place, prepare the requests and check their limits."""
        context = self.context
        if (trouble := context.accelerator.target.trouble) is not None:
            message = f"the target {trouble}; ask again in a moment"
            raise ApiError(
                503, message, kind="server_error", code="engine_unavailable", retry_after=_RETRY_SECONDS
            )
        waiting = context.admission.place(self.client, size=len(requests) * each, deadline=self._deadline)
        speculate = await held.enter_async_context(waiting)
        # The check of a constraint waits for a target that is being restarted.
        async with self._deadline.first():
            prepared = [self._checked(await context.chat.prepare(request)) for request in requests]
        if session := requests[0].session:
            for request in prepared:
                context.sessions.note(self.client.tenant, session, request.prompts)
            if self._ends_session:
                held.callback(context.sessions.end, self.client.tenant, session)
        choices = [_Choice(request, index) for request in prepared for index in range(each)]
        return _Admitted(choices, speculate)

    def _checked(self, request: PreparedRequest) -> PreparedRequest:
        most, number = self.context.settings.max_prompt_tokens, request.num_prompt_tokens
        if most is not None and number > most:
            message = f"the prompt has {number} tokens; the most is {most} here. Shorten it."
            raise RequestError(message, param=request.prompt_field)
        return request

    async def _counted(self, events: AsyncGenerator[ChatEvent]) -> AsyncGenerator[StreamEvent]:
        first: float | None = None
        async with aclosing(events):
            async for event in events:
                if first is None:
                    first = time.monotonic() - self._arrived
                if isinstance(event, ChatEnd):
                    self.count(event, first)
                yield event

    def count(self, end: ChatEnd, first_token: float | None = None) -> None:
        """Count a whole answer, and note it for the access log."""
        seconds = time.monotonic() - self._arrived
        self.context.metrics.observe(end, seconds=seconds, first_token=first_token)
        self._notes["prompt_tokens"] = end.num_prompt_tokens
        self._notes["completion_tokens"] = self._notes.get("completion_tokens", 0) + end.num_tokens
        self._notes["strategy"] = end.report.strategy
        if end.report.predicted_calls is not None:
            self._notes["predicted_calls"] = len(end.report.predicted_calls)
