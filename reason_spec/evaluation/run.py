"""Solve many problems with one or several strategies, one strategy at a time on the engines."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from reason_spec.accelerator import Accelerator, Solution
from reason_spec.errors import EngineError
from reason_spec.evaluation.outcome import Outcome, UnitKey, outcome_from
from reason_spec.evaluation.prompts import messages_for, noise_key
from reason_spec.events import Event
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

MAX_FAILURES_IN_A_ROW = 3
"""So many answers that fail one after another are the engine's failure, not the problems'."""

UnitListener: TypeAlias = Callable[[UnitKey, Event], None]


class Ask(NamedTuple):
    """A problem, which of its samples is wanted, and its place among all problems."""

    problem: Problem
    sample: int
    place: int

    def key(self, strategy: str) -> UnitKey:
        return UnitKey(self.problem.id, self.sample, strategy)


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that an engine could not write, such as one whose question fills the context."""

    key: UnitKey
    error: EngineError


def new_session() -> str:
    """Return a name for one start of a run."""
    return uuid.uuid4().hex[:8]


async def run(
    accelerator: Accelerator,
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

    Raises:
        EngineError: an engine died, or failed `MAX_FAILURES_IN_A_ROW` answers in a row.
        SettingsError: a strategy or task is unknown.
    """
    names = tuple(dict.fromkeys(strategies)) or (accelerator.settings.strategy.name,)
    turns = list(_turns(all_asks(problems, samples), names, concurrency, order_seed, done))
    apart = len(names) > 1 or samples > 1
    runner = _Runner(accelerator, concurrency, session or new_session(), listener, apart=apart)
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
    for start in range(0, len(pending), size):
        batch = pending[start : start + size]
        # Seeded by the problem's name, so that a resumed run keeps the order of every problem.
        shuffled = list(names)
        random.Random(f"{seed}:{batch[0].problem.id}:{batch[0].sample}").shuffle(shuffled)
        for order, name in enumerate(shuffled):
            left = [ask for ask in batch if ask.key(name) not in done]
            if left:
                yield _Turn(left, name, order)


class _Runner:
    """Solves one batch with one strategy."""

    def __init__(
        self,
        accelerator: Accelerator,
        concurrency: int,
        session: str,
        listener: UnitListener | None,
        *,
        apart: bool,
    ) -> None:
        self._accelerator = accelerator
        self._concurrency = concurrency
        self._session = session
        self._listener = listener
        self._apart = apart

    async def solve(self, turn: _Turn) -> list[Outcome | Failure]:
        await self._accelerator.prepare(turn.strategy)
        started = time.perf_counter()
        answers = [self._answer(ask, turn.strategy) for ask in turn.asks]
        solutions = await asyncio.gather(*answers, return_exceptions=True)
        share_of_wall = (time.perf_counter() - started) / len(turn.asks)
        results: list[Outcome | Failure] = []
        for ask, solution in zip(turn.asks, solutions, strict=True):
            if isinstance(solution, EngineError):
                results.append(Failure(ask.key(turn.strategy), solution))
            elif isinstance(solution, BaseException):
                raise solution
            else:
                results.append(self._outcome(ask, solution, turn.order, share_of_wall))
        return results

    async def _answer(self, ask: Ask, strategy: str) -> Solution:
        key, listener = ask.key(strategy), self._listener
        return await self._accelerator.answer(
            messages_for(ask.problem, self._accelerator.settings),
            strategy=strategy,
            problem=noise_key(ask.problem),
            sample=ask.sample,
            # What is compared must not learn from each other.
            scope=f"{strategy} {ask.sample}" if self._apart else "",
            listener=None if listener is None else lambda event: listener(key, event),
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


async def _graded(outcome: Outcome, problem: Problem, grader: Grader) -> Outcome:
    if problem.answer is None:
        return outcome
    return outcome.graded(await grader.grade_async(outcome.response, problem.answer, problem.task))
