"""Answer many problems with one or several strategies, one strategy at a time on the engines."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import NamedTuple

from reason_spec.accelerator import Accelerator, Generator
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import AnswerListener, Failure, WorkItem, answer_batch, failed, work_items
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.voting import SampleVotes
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

MAX_FAILURES_IN_A_ROW = 3
"""A run ends after this many failed problems in a row: then the engine is at fault, not the problems."""

_LONGEST_DELAY_SECONDS = 30.0


class Revived(NamedTuple):
    """Started engines that replace dead ones, and the name of the session that begins with them."""

    accelerator: Accelerator
    session: str


@dataclass(frozen=True, slots=True)
class Retries:
    """How often an answer whose engine fails is tried again, and after which delay.

    ``first_delay`` is in seconds and doubles with each try. ``revive`` replaces dead engines; without it, a
    dead engine ends the run.
    """

    num_retries: int = 0
    first_delay: float = 0.5
    revive: Callable[[], Awaitable[Revived]] | None = None

    def delay_before(self, retry: int) -> float:
        """Return the seconds to wait before a retry, counted from 1."""
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
    session: str | None = None,
    on_answer: AnswerListener | None = None,
    retries: Retries | None = None,
    votes: SampleVotes | None = None,
) -> AsyncGenerator[Outcome | Failure]:
    """Yield each answer when it is finished and graded.

    Problems are taken in batches of ``concurrency``; each batch is solved by one strategy after
    another, in an order shuffled for the batch with ``order_seed``. Before each strategy the
    engines drop cached prefixes and take the cores they have under it, so that no strategy
    profits from another one's work.

    Args:
        accelerator: started, with a draft where a strategy needs one.
        strategies: names; empty takes the one in the settings.
        samples: answers to each problem, with sampling noise of their own.
        done: answers that exist already and are left out.
        grader: used instead of a grader of its own; stays open.
        on_answer: called with all events of an answer before its outcome is yielded.
        retries: None: an answer whose engine fails is not tried again.
        votes: ends the drawing of samples where a vote is decided; holds those of ``done``.

    Raises:
        EngineError: an engine died and was not replaced, or `MAX_FAILURES_IN_A_ROW` problems in a row failed.
        SettingsError: a strategy or task is unknown.
    """
    names = tuple(dict.fromkeys(strategies)) or (accelerator.settings.strategy.name,)

    def is_needed(key: UnitKey) -> bool:
        return key not in done and not (votes is not None and votes.is_decided(key))

    apart = len(names) > 1 or samples > 1
    runner = _Runner(
        accelerator,
        concurrency,
        session or new_session(),
        on_answer,
        retries or Retries(),
        votes,
        apart=apart,
    )
    failed_problems: set[str] = set()
    with Grader() if grader is None else nullcontext(grader) as active:
        for turn in _turns(work_items(problems, samples), names, concurrency, order_seed, is_needed):
            problem_of = {item.key(turn.strategy): item.problem for item in turn.items}
            results = await runner.solve(turn)
            for result in results:
                if not isinstance(result, Failure):
                    yield await graded(result, problem_of[result.key], active)
                elif isinstance(result.error, EngineError):
                    yield result
            # Only now, so that the other answers of the turn are kept.
            if (error := _fatal_error(results, failed_problems)) is not None:
                raise error


def _fatal_error(results: Sequence[Outcome | Failure], failed_problems: set[str]) -> Exception | None:
    """Return the error that ends a run after these results, None where it goes on.

    ``failed_problems`` takes the problems that failed since the last answer: one that fails under several
    strategies or in several samples counts once.
    """
    error: Exception | None = None
    for result in results:
        if not isinstance(result, Failure):
            failed_problems.clear()
        elif not isinstance(result.error, EngineError):
            return result.error
        elif result.blames_engine:
            failed_problems.add(result.key.problem_id)
            error = result.error
    return error if len(failed_problems) >= MAX_FAILURES_IN_A_ROW else None


class _Turn(NamedTuple):
    """One strategy's work on one batch; ``order`` is its position among the strategies of the batch."""

    items: Sequence[WorkItem]
    strategy: str
    order: int


def _turns(
    items: Sequence[WorkItem],
    names: Sequence[str],
    size: int,
    seed: int,
    is_needed: Callable[[UnitKey], bool],
) -> Iterator[_Turn]:
    """Yield the turns; an item is taken into a batch, and into a turn, if it is needed by then."""
    # Answers of one batch share its time, so a batch holds problems of one task.
    for _, group in groupby(items, key=lambda item: item.problem.task):
        needed = (item for item in group if any(is_needed(item.key(name)) for name in names))
        while batch := list(islice(needed, size)):
            # Seeded by the problem's name, so that a resumed run keeps the order of every problem.
            shuffled = list(names)
            random.Random(f"{seed}:{batch[0].problem.id}:{batch[0].sample}").shuffle(shuffled)
            for order, name in enumerate(shuffled):
                left = [item for item in batch if is_needed(item.key(name))]
                if left:
                    yield _Turn(left, name, order)


class _Runner:
    """Answers one batch with one strategy, and retries failed answers."""

    def __init__(
        self,
        accelerator: Accelerator | Generator,
        concurrency: int,
        session: str,
        on_answer: AnswerListener | None,
        retries: Retries,
        votes: SampleVotes | None,
        *,
        apart: bool,
    ) -> None:
        self._accelerator = accelerator
        self._concurrency = concurrency
        self._session = session
        self._on_answer = on_answer
        self._retries = retries
        self._votes = votes
        self._apart = apart
        self._dead: EngineError | None = None

    async def solve(self, turn: _Turn) -> list[Outcome | Failure]:
        """Return the results of a turn, in the order of its items; samples that a vote ends have none.

        Raises:
            EngineError: an engine died in an earlier turn, and could not be replaced.
        """
        if self._dead is not None:
            raise self._dead
        results = {result.key: result for result in await self._try(turn)}
        for retry in range(1, self._retries.num_retries + 1):
            failed = {
                key: result
                for key, result in results.items()
                if isinstance(result, Failure) and result.blames_engine
            }
            if not failed or not await self._revive(self._retries.delay_before(retry)):
                break
            left = [item for item in turn.items if item.key(turn.strategy) in failed]
            for result in await self._try(turn._replace(items=left)):
                reasons = failed[result.key].failed_tries + result.failed_tries
                results[result.key] = replace(result, failed_tries=reasons)
        return [results[key] for item in turn.items if (key := item.key(turn.strategy)) in results]

    async def _try(self, turn: _Turn) -> list[Outcome | Failure]:
        try:
            await self._accelerator.prepare(turn.strategy)
        except EngineError as error:
            if not self._retries.num_retries:
                raise
            return [failed(item.key(turn.strategy), error) for item in turn.items]
        return await answer_batch(
            self._accelerator,
            turn.items,
            self._accelerator.settings,
            strategy=turn.strategy,
            # Compared answers must not learn from each other.
            scope=(lambda item: f"{turn.strategy} {item.sample}") if self._apart else None,
            concurrency=self._concurrency,
            order=turn.order,
            session=self._session,
            on_answer=self._on_answer,
            failing=(Exception,),
            votes=self._votes,
        )

    async def _revive(self, delay: float) -> bool:
        """Wait, and replace dead engines; return whether all are alive.

        If that fails, the next turn raises the reason, so that the results of this one are kept.
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


async def graded(outcome: Outcome, problem: Problem, grader: Grader) -> Outcome:
    """Grade an outcome; without a reference answer it stays ungraded."""
    if problem.answer is None:
        return outcome
    return outcome.graded(await grader.grade_async(outcome.response, problem.answer, problem.task))
