"""The requests and calls that wait for a worker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import TypeVar

from reason_spec.engines.generation import Generation, GenerationResult, Score
from reason_spec.engines.worker.messages import Reply
from reason_spec.errors import EngineError
from reason_spec.types import FinishReason, Usage

_T = TypeVar("_T")


class PendingRequests:
    """Generations, scores and calls by their numbers, and how each of them ends.

    Args:
        name: the engine, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = count(1)
        self.generations: dict[int, Generation] = {}
        self.scores: dict[int, asyncio.Future[Score]] = {}
        self.calls: dict[int, asyncio.Future[Reply]] = {}

    def next_number(self) -> int:
        return next(self._numbers)

    def finish(self, number: int, result: GenerationResult | Score | str) -> None:
        """End a generation or a score; a string is the error of a score."""
        if isinstance(result, GenerationResult):
            if (generation := self.generations.pop(number, None)) is not None:
                if result.error is not None:
                    result = replace(result, error=f"engine {self._name!r}: {result.error}")
                generation.finish(result)
        elif (future := self.scores.pop(number, None)) is not None and not future.done():
            if isinstance(result, Score):
                future.set_result(result)
            else:
                future.set_exception(EngineError(f"engine {self._name!r}: {result}"))

    def reply(self, reply: Reply) -> None:
        if (call := self.calls.get(reply.number)) is not None and not call.done():
            call.set_result(reply)

    def fail_all(self, failure: str | None) -> None:
        """Fail everything; None if the engine was closed, which cancels generations."""
        error = failure or f"engine {self._name!r} is closed"
        _fail(self.scores, error)
        _fail(self.calls, error)
        finish: FinishReason = "cancelled" if failure is None else "failed"
        for generation in list(self.generations.values()):
            generation.finish(without_tokens(finish, failure))
        self.generations.clear()


def without_tokens(finish: FinishReason, error: str | None) -> GenerationResult:
    """Return the result of a generation that had no tokens."""
    return GenerationResult((), "", (), finish, Usage(), error=error)


def _fail(futures: dict[int, asyncio.Future[_T]], error: str) -> None:
    for future in futures.values():
        if not future.done():
            future.set_exception(EngineError(error))
    # A request left here would later be cancelled at the next worker, which cannot confirm it.
    futures.clear()
