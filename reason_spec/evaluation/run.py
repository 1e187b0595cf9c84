"""Solve many problems with one or several strategies, one strategy at a time on the engines."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeAlias

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.errors import EngineError
from reason_spec.evaluation.outcome import Outcome, UnitKey, outcome_from
from reason_spec.evaluation.prompts import ask_for
from reason_spec.events import Event, Recorder
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

MAX_FAILURES_IN_A_ROW = 3
"""So many answers that fail one after another are the engine's failure, not the problems'."""

_LONGEST_DELAY_SECONDS = 30.0

UnitListener: TypeAlias = Callable[[UnitKey, Event], None]
AnswerListener: TypeAlias = Callable[[UnitKey, Recorder], None]


class Ask(NamedTuple):
    """A problem, which of its samples is wanted, and its place among all problems."""

    problem: Problem
    sample: int
    place: int

    def key(self, strategy: str) -> UnitKey:
        return UnitKey(self.problem.id, self.sample, strategy)


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that an engine could not write, such as one whose question fills the context.

    ``failed_tries`` says why each try failed, the last one included.
    """

    key: UnitKey
    error: EngineError
    failed_tries: tuple[str, ...] = ()


class Revived(NamedTuple):
    """Engines in the place of dead ones, started, and the name of the session that begins with them."""

    accelerator: Accelerator
    session: str


@dataclass(frozen=True, slots=True)
class Retries:
    """How often an answer whose engine fails is tried again, and when.

    ``first_delay`` is in seconds and doubles with each try. ``revive`` starts engines anew where one died;
    without it, a dead engine ends the run.
    """

    num_retries: int = 0
    first_delay: float = 0.5
    revive: Callable[[], Awaitable[Revived]] | None = None

    def delay_before(self, retry: int) -> float:
        """Return the seconds of rest before a retry, counted from 1."""
        return min(_LONGEST_DELAY_SECONDS, self.first_delay * 2.0 ** (retry - 1))


def new_session() -> str:
    """Return a name for one start of a run."""
    return uuid.uuid4().hex[:8]


async def run(
    accelerator: Accelerator | Generator,
    problems: Sequence[Problem],
    strategies: Sequence[str] = (),
    *,
    samples: int = 1,
    concurrency: int = 1,
    order_seed: int = 0,
    done: Collection[UnitKey] = frozenset(),
    grader: Grader | None = None,
    calibrate: bool = True,
    session: str | None = None,
    listener: UnitListener | None = None,
    on_answer: AnswerListener | None = None,
    retries: Retries | None = None,
) -> AsyncGenerator[Outcome | Failure]:
    """Yield each answer as soon as it is finished and graded.

    Problems are taken in batches of ``concurrency``; each batch is solved by one strategy after
    another, in an order shuffled for the batch with ``order_seed``. Before each strategy the
    engines forget cached prefixes and take the cores they have under it, so that no strategy
    lives on another one's work.

    Args:
        accelerator: started, with a draft where a strategy needs one.
        strategies: names; none takes the one in the settings.
        samples: answers to each problem, with sampling noise of their own.
        done: answers that exist already and are left out.
        grader: used instead of a grader of its own; stays open.
        calibrate: first measure which cores the target is fastest on when it is alone.
        listener: called with each event of each answer at once.
        on_answer: called with all events of an answer before its outcome is yielded.
        retries: None: an answer whose engine fails is not tried again.

    Raises:
        EngineError: an engine died and is not started anew, or `MAX_FAILURES_IN_A_ROW` answers failed in a
            row.
        SettingsError: a strategy or task is unknown.
    """
    names = tuple(dict.fromkeys(strategies)) or (accelerator.settings.strategy.name,)
    turns = list(_turns(all_asks(problems, samples), names, concurrency, order_seed, done))
    apart = len(names) > 1 or samples > 1
    runner = _Runner(
        accelerator,
        concurrency,
        session or new_session(),
        listener,
        on_answer,
        retries or Retries(),
        apart=apart,
    )
    if calibrate and turns and len(names) > 1:
        await accelerator.calibrate()
    num_failures = 0
    with Grader() if grader is None else nullcontext(grader) as active:
        for turn in turns:
            for ask, result in zip(turn.asks, await runner.solve(turn), strict=True):
                if isinstance(result, Failure):
                    num_failures += 1
                    if num_failures >= MAX_FAILURES_IN_A_ROW:
                        raise result.error
                    yield result
                else:
                    num_failures = 0
                    yield await _graded(result, ask.problem, active)


def all_asks(problems: Sequence[Problem], samples: int) -> list[Ask]:
    """Return every sample of every problem, in the order of the problems."""
    return [
        Ask(problem, sample, index) for index, problem in enumerate(problems) for sample in range(samples)
    ]


class _Turn(NamedTuple):
    """One strategy's work on one batch; ``order`` is its place among the strategies there."""

    asks: Sequence[Ask]
    strategy: str
    order: int


def _turns(
    asks: Sequence[Ask], names: Sequence[str], size: int, seed: int, done: Collection[UnitKey]
) -> Iterator[_Turn]:
    pending = [ask for ask in asks if any(ask.key(name) not in done for name in names)]
    # Answers of one batch share its time, so a batch holds problems of one task.
    for _, group in groupby(pending, key=lambda ask: ask.problem.task):
        of_task = list(group)
        for start in range(0, len(of_task), size):
            batch = of_task[start : start + size]
            # Seeded by the problem's name, so that a resumed run keeps the order of every problem.
            shuffled = list(names)
            random.Random(f"{seed}:{batch[0].problem.id}:{batch[0].sample}").shuffle(shuffled)
            for order, name in enumerate(shuffled):
                left = [ask for ask in batch if ask.key(name) not in done]
                if left:
                    yield _Turn(left, name, order)


class _Runner:
    """Solves one batch with one strategy, and tries again what failed."""

    def __init__(
        self,
        accelerator: Accelerator | Generator,
        concurrency: int,
        session: str,
        listener: UnitListener | None,
        on_answer: AnswerListener | None,
        retries: Retries,
        *,
        apart: bool,
    ) -> None:
        self._accelerator = accelerator
        self._concurrency = concurrency
        self._session = session
        self._listener = listener
        self._on_answer = on_answer
        self._retries = retries
        self._apart = apart
        self._dead: EngineError | None = None

    async def solve(self, turn: _Turn) -> list[Outcome | Failure]:
        """Return what became of each ask of a turn, in their order.

        Raises:
            EngineError: an engine died in an earlier turn, and did not come back.
        """
        if self._dead is not None:
            raise self._dead
        results = {ask.key(turn.strategy): result for ask, result in await self._try(turn)}
        for retry in range(1, self._retries.num_retries + 1):
            failed = {key: result for key, result in results.items() if isinstance(result, Failure)}
            if not failed or not await self._revive(self._retries.delay_before(retry)):
                break
            left = [ask for ask in turn.asks if ask.key(turn.strategy) in failed]
            for ask, result in await self._try(turn._replace(asks=left)):
                key = ask.key(turn.strategy)
                reasons = failed[key].failed_tries + result.failed_tries
                results[key] = replace(result, failed_tries=reasons)
        return [results[ask.key(turn.strategy)] for ask in turn.asks]

    async def _try(self, turn: _Turn) -> list[tuple[Ask, Outcome | Failure]]:
        try:
            await self._accelerator.prepare(turn.strategy)
        except EngineError as error:
            if not self._retries.num_retries:
                raise
            return [(ask, _failure(ask.key(turn.strategy), error)) for ask in turn.asks]
        started = time.perf_counter()
        answers = [self._answer(ask, turn.strategy) for ask in turn.asks]
        solutions = await asyncio.gather(*answers, return_exceptions=True)
        share_of_wall = (time.perf_counter() - started) / len(turn.asks)
        results: list[tuple[Ask, Outcome | Failure]] = []
        for ask, solution in zip(turn.asks, solutions, strict=True):
            key = ask.key(turn.strategy)
            if isinstance(solution, EngineError):
                results.append((ask, _failure(key, solution)))
            elif isinstance(solution, BaseException):
                raise solution
            elif solution.recorder.draft_failure is not None:
                # The target's own answer is no measure of a strategy that has a draft.
                results.append((ask, _failure(key, EngineError(solution.recorder.draft_failure))))
            else:
                if self._on_answer is not None:
                    self._on_answer(key, solution.recorder)
                results.append((ask, self._outcome(ask, solution, turn.order, share_of_wall)))
        return results

    async def _revive(self, delay: float) -> bool:
        """Wait, and put living engines in the place of dead ones; return whether all live.

        Where they do not, the next turn raises the reason: what this one has is not lost.
        """
        await asyncio.sleep(delay)
        accelerator = self._accelerator
        engines = (accelerator.target, accelerator.draft)
        failure = next((engine.failure for engine in engines if engine and engine.failure), None)
        if failure is None:
            return True
        try:
            if self._retries.revive is None:
                raise EngineError(failure)
            self._accelerator, self._session = await self._retries.revive()
        except EngineError as error:
            self._dead = error
        return self._dead is None

    async def _answer(self, ask: Ask, strategy: str) -> Solution:
        key, listener = ask.key(strategy), self._listener
        asked = ask_for(
            ask.problem,
            self._accelerator.settings,
            sample=ask.sample,
            strategy=strategy,
            # What is compared must not learn from each other.
            scope=f"{strategy} {ask.sample}" if self._apart else "",
        )
        return await self._accelerator.answer(
            asked, listener=None if listener is None else lambda event: listener(key, event)
        )

    def _outcome(self, ask: Ask, solution: Solution, order: int, share_of_wall: float) -> Outcome:
        return outcome_from(
            ask.problem,
            ask.sample,
            solution,
            self._accelerator.settings,
            index=ask.place,
            seconds=share_of_wall if self._concurrency > 1 else solution.seconds,
            concurrency=self._concurrency,
            order=order,
            session=self._session,
        )


def _failure(key: UnitKey, error: EngineError) -> Failure:
    return Failure(key, error, (str(error),))


async def _graded(outcome: Outcome, problem: Problem, grader: Grader) -> Outcome:
    if problem.answer is None:
        return outcome
    return outcome.graded(await grader.grade_async(outcome.response, problem.answer, problem.task))
