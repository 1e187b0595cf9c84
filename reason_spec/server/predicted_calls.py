"""Predicts the calls of an answer while the model prepares it, for clients that can run them ahead."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from reason_spec.chat.base import (
    ChatAnswer,
    ChatEnd,
    ChatEvent,
    ChatRequest,
    PredictedCall,
    ToolCall,
    ToolCallDelta,
)
from reason_spec.chat.service import Gathered
from reason_spec.chat.tools import names_of
from reason_spec.server.base import PredictedCallsEvent, StreamEvent
from reason_spec.server.metrics import Metrics
from reason_spec.settings import PredictedCallsSettings
from reason_spec.suffix.traces import TraceCall
from reason_spec.tools_ahead.calls import Call, ReadOnlyTools, call_of
from reason_spec.tools_ahead.followed import Followed, FollowedConversations, Origin, PredictedCalls
from reason_spec.tools_ahead.model import load_model
from reason_spec.tools_ahead.predictor import IsReadOnly

logger = logging.getLogger(__name__)
_MAX_WAITING: Final = 32
"""Requests that wait for a prediction; further ones get none."""


class ReadOnlyMarks(NamedTuple):
    """What a request says of tools that only read: the names of some, and rules for calls."""

    names: frozenset[str]
    rules: ReadOnlyTools


class CallPredictions:
    """The predictions of one server. One thread follows all conversations.

    Raises:
        SettingsError: a rule of the settings has an unknown form.
        DataError: the model's file is missing or damaged.
    """

    def __init__(self, settings: PredictedCallsSettings, metrics: Metrics) -> None:
        model = load_model() if settings.model is None else load_model(settings.model)
        self._rules = ReadOnlyTools(settings.read_only)
        self._followed = FollowedConversations(
            model,
            threshold=model.threshold if settings.threshold is None else settings.threshold,
            max_conversations=settings.max_conversations,
        )
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predicted-calls")
        self._num_waiting = 0

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def of(self, request: ChatRequest, marks: ReadOnlyMarks, origin: Origin) -> RequestPrediction | None:
        """Return the prediction for a request; None where it offers no tool that only reads."""
        offered = set(names_of(request.tools))
        if request.tool_choice not in ("auto", "required"):
            offered &= {request.tool_choice}

        def is_read_only(call: Call) -> bool:
            return call.name in offered and (
                call.name in marks.names or marks.rules(call) or self._rules(call)
            )

        may_read = marks.names | {*marks.rules.names, *self._rules.names}
        if not offered & may_read:
            return None
        return RequestPrediction(self, request, origin, is_read_only)

    async def predict(
        self, origin: Origin, request: ChatRequest, is_read_only: IsReadOnly
    ) -> PredictedCalls | None:
        """Return the likely calls of a request's conversation; None where it cannot be followed, or too
        many requests wait."""
        if self._num_waiting >= _MAX_WAITING:
            return None
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._followed.predict, origin, request.messages, is_read_only
            )
        except Exception:
            # The answer is written without it.
            logger.exception("no call is predicted here")
            return None
        finally:
            self._num_waiting -= 1

    def sent(self, predicted: PredictedCalls) -> None:
        """Count the calls that were sent to a client."""
        followed, calls = predicted.followed, [one.call for one in predicted.likely]
        self._later(lambda: self._metrics.calls_predicted(followed.await_calls(calls)))

    def answered(self, followed: Followed, calls: Sequence[Call]) -> None:
        """Compare the calls of an answer with the predicted ones, and learn from idle conversations."""

        def compare() -> None:
            right = followed.answered(calls)
            self._metrics.calls_made([call for call in calls if followed.is_read_only(call)], right)

        self._later(compare)
        self._later(self._learn_idle)

    def end(self, tenant: str, session: str) -> None:
        """Learn from the conversations of a session, which has ended."""
        self._later(lambda: self._followed.end(tenant, session))

    def _learn_idle(self) -> None:
        if self._followed.learn_idle():
            # Requests that came meanwhile go first.
            self._later(self._learn_idle)

    def _later(self, work: Callable[[], None]) -> None:
        # The server may be closing.
        with suppress(RuntimeError):
            self._thread.submit(work).add_done_callback(_log_failure)


def open_predictions(settings: PredictedCallsSettings, metrics: Metrics) -> CallPredictions | None:
    """Return the predictions that the settings ask for; see `CallPredictions`."""
    return CallPredictions(settings, metrics) if settings.use else None


class RequestPrediction:
    """The predicted calls of one request."""

    def __init__(
        self, predictions: CallPredictions, request: ChatRequest, origin: Origin, is_read_only: IsReadOnly
    ) -> None:
        self._predictions = predictions
        self._predict = partial(predictions.predict, origin, request, is_read_only)
        self._work: asyncio.Task[PredictedCalls | None] | None = None
        self._has_begun = asyncio.Event()
        self._sent: tuple[PredictedCall, ...] | None = None

    def start(self) -> None:
        """Begin to predict calls, beside the work for the answer."""
        self._work = asyncio.create_task(self._predict())

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Yield the predicted calls, if there are any before the answer begins."""
        assert self._work is not None, "it was started"
        begun = asyncio.create_task(self._has_begun.wait())
        try:
            await asyncio.wait({self._work, begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()
        if not self._has_begun.is_set() and self._choose():
            yield PredictedCallsEvent(self._sent or ())

    async def watched(self, index: int, events: AsyncGenerator[ChatEvent]) -> AsyncGenerator[ChatEvent]:
        """Yield the events of choice ``index``; the report at its end has the predicted calls."""
        gathered = Gathered()
        async with aclosing(events):
            async for event in events:
                self._has_begun.set()
                if isinstance(event, ToolCallDelta | ChatEnd):
                    gathered.take(event)
                if isinstance(event, ChatEnd):
                    yield self._reported(index, event, gathered.answer().tool_calls)
                else:
                    yield event

    def whole(self, answers: Sequence[ChatAnswer]) -> list[ChatAnswer]:
        """Return the answers; their reports have the predicted calls."""
        self._choose()
        return [
            replace(answer, end=self._reported(index, answer.end, answer.tool_calls))
            for index, answer in enumerate(answers)
        ]

    def _predicted(self) -> PredictedCalls | None:
        return self._work.result() if self._work is not None and self._work.done() else None

    def _choose(self) -> bool:
        """Choose the calls predicted by now as those sent to the client; return whether there are any."""
        predicted = self._predicted()
        if predicted is None:
            return False
        self._sent = tuple(
            # Escaped: a value of a tool's result may hold half a surrogate pair.
            PredictedCall(call.name, json.dumps(call.arguments), chance)
            for call, chance in predicted.likely
        )
        self._predictions.sent(predicted)
        return bool(self._sent)

    def _reported(self, index: int, end: ChatEnd, written: Sequence[ToolCall]) -> ChatEnd:
        calls = [call for one in written if (call := _call_of(one.name, one.arguments)) is not None]
        predicted = self._predicted()
        if index == 0 and predicted is not None:
            self._predictions.answered(predicted.followed, calls)
        if self._sent is None:
            return end
        sent = tuple(replace(one, is_made=_call_of(one.name, one.arguments) in calls) for one in self._sent)
        return replace(end, report=replace(end.report, predicted_calls=sent))


def _call_of(name: str, arguments: str) -> Call | None:
    """Return a call; None if its arguments are no JSON object, or hold half a surrogate pair."""
    try:
        return call_of(TraceCall(name=name, arguments=arguments))
    except (ValueError, RecursionError):
        return None


def _log_failure(done: Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.warning("a conversation's calls are not learned", exc_info=error)
