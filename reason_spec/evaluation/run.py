"""Answer many problems with one or several strategies, one strategy at a time on the engines."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import NamedTuple

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import (
    Answerer,
    AnswerGroup,
    AnswerListener,
    Failure,
    Results,
    WorkItem,
    answer_together,
    failed,
    work_items,
)
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.voting import SampleVotes
from reason_spec.tasks.grading import Grader
from reason_spec.types import Problem

MAX_FAILURES_IN_A_ROW = 3
"""A run ends after this many failed problems in a row: then the engine is at fault, not the problems."""

_LONGEST_DELAY_SECONDS = 30.0
_GROUPS_AHEAD = 2
"""Finished groups that may wait for the caller, who grades and stores them: a kill loses no more."""


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

    Of one strategy without ``votes`` there is nothing to compare: where an answer ends, the next begins, so
    that ``concurrency`` answers of a task are always under way. Results are then yielded in groups of
    ``concurrency``, as they finish, and in the order of the problems within a group; before another try of
    failed answers, and at the end of a task, a group has another size. The seconds of each outcome are the
    time since the previous group was complete, divided by the size of its group.

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

    runner = _Runner(
        accelerator,
        concurrency,
        session or new_session(),
        on_answer,
        retries or Retries(),
        votes,
        apart=len(names) > 1 or samples > 1,
    )
    items = work_items(problems, samples)
    if len(names) == 1 and votes is None and concurrency > 1:
        (name,) = names
        batches = _ahead(runner.flow([item for item in items if is_needed(item.key(name))], name))
    else:
        batches = runner.compare(_batches(items, names, concurrency, order_seed, is_needed))
    with Grader() if grader is None else nullcontext(grader) as active:
        async with aclosing(batches):
            async for results in batches:
                for result in results:
                    if not isinstance(result, Failure):
                        yield await graded(result, problems[result.index], active)
                    elif isinstance(result.error, EngineError):
                        yield result


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


async def _ahead(batches: AsyncGenerator[Results]) -> AsyncGenerator[Results]:
    """Yield what a generator yields, which goes on while the caller works on that, up to `_GROUPS_AHEAD`."""
    queue: asyncio.Queue[Results | None] = asyncio.Queue()
    places = asyncio.Semaphore(_GROUPS_AHEAD)

    async def take() -> None:
        async with aclosing(batches):
            async for batch in batches:
                await places.acquire()
                queue.put_nowait(batch)

    taking = asyncio.create_task(take())
    taking.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (batch := await queue.get()) is not None:
            yield batch
            places.release()
        taking.result()
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


class _Batch(NamedTuple):
    """Items that one strategy answers at once; ``order`` is its position among the strategies that do."""

    items: Sequence[WorkItem]
    strategy: str
    order: int


def _batches(
    items: Sequence[WorkItem],
    names: Sequence[str],
    size: int,
    seed: int,
    is_needed: Callable[[UnitKey], bool],
) -> Iterator[_Batch]:
    """Yield each batch for one strategy after another; an item is taken into it if it is needed by then."""
    # Answers of one batch share its time, so a batch holds problems of one task.
    for _, group in groupby(items, key=lambda item: item.problem.task):
        needed = (item for item in group if any(is_needed(item.key(name)) for name in names))
        while taken := list(islice(needed, size)):
            # Seeded by the problem's name, so that a resumed run keeps the order of every problem.
            shuffled = list(names)
            random.Random(f"{seed}:{taken[0].problem.id}:{taken[0].sample}").shuffle(shuffled)
            for order, name in enumerate(shuffled):
                left = [item for item in taken if is_needed(item.key(name))]
                if left:
                    yield _Batch(left, name, order)


class _Runner:
    """Answers items with one strategy after another or with one alone, and retries failed answers."""

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
        self._failed_problems: set[str] = set()

    async def compare(self, batches: Iterable[_Batch]) -> AsyncGenerator[Results]:
        """Yield the results of each batch, in the order of its items; samples that a vote ends have none.

        Raises:
            EngineError: an engine died in an earlier batch, and could not be replaced.
            Exception: the error that ends the run.
        """
        for batch in batches:
            self._raise_if_dead()
            results = await self._retried(batch, await self._try(batch))
            yield results
            # Only now, so that the other answers of the batch are kept.
            self._raise_if_fatal(results)

    async def flow(self, items: Sequence[WorkItem], strategy: str) -> AsyncGenerator[Results]:
        """Yield the results of items in groups, and keep as many answers under way as may be at once.

        Raises:
            EngineError: an engine died, and could not be replaced.
            Exception: the error that ends the run.
        """
        # Answers of one group share its time, so a group holds problems of one task.
        for _, of_task in groupby(items, key=lambda item: item.problem.task):
            left = deque(of_task)
            while left:
                self._raise_if_dead()
                async with aclosing(self._until_failure(left, strategy)) as groups:
                    async for results in groups:
                        yield results
                        self._raise_if_fatal(results)

    def _raise_if_dead(self) -> None:
        if self._dead is not None:
            raise self._dead

    def _raise_if_fatal(self, results: Results) -> None:
        if (error := _fatal_error(results, self._failed_problems)) is not None:
            raise error

    async def _until_failure(self, left: deque[WorkItem], strategy: str) -> AsyncGenerator[Results]:
        """Yield groups of results of items taken off ``left`` until all have ended or one is to be retried.

        Then those under way are awaited, and what failed is tried again.
        """
        if (error := await self._prepare(strategy)) is not None:
            first = [left.popleft() for _ in range(min(self._concurrency, len(left)))]
            yield await self._retried(
                _Batch(first, strategy, 0), [failed(item.key(strategy), error) for item in first]
            )
            return
        answerer = self._answerer(strategy)
        running: dict[asyncio.Task[Solution | Exception], WorkItem] = {}
        group = AnswerGroup(answerer, time.perf_counter())
        held = False
        try:
            while True:
                while left and not held and len(running) < self._concurrency:
                    item = left.popleft()
                    running[asyncio.create_task(answerer.answer(item))] = item
                if not running:
                    break
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    held |= self._holds(group.add(running.pop(task), task.result()))
                    if len(group) == self._concurrency and not held:
                        yield group.close(time.perf_counter())[1]
            if len(group):
                items, results = group.close(time.perf_counter())
                yield await self._retried(_Batch(items, strategy, 0), results)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _holds(self, result: Outcome | Failure) -> bool:
        """Return whether no more answers begin: this one is to be retried, or its error ends the run."""
        if not isinstance(result, Failure):
            return False
        if result.blames_engine:
            return self._retries.num_retries > 0
        return not isinstance(result.error, EngineError)

    async def _retried(self, batch: _Batch, tried: Results) -> Results:
        """Try failed answers of a batch again; return the results in the order of its items."""
        results = {result.key: result for result in tried}
        for retry in range(1, self._retries.num_retries + 1):
            failed = {
                key: result
                for key, result in results.items()
                if isinstance(result, Failure) and result.blames_engine
            }
            if not failed or not await self._revive(self._retries.delay_before(retry)):
                break
            left = [item for item in batch.items if item.key(batch.strategy) in failed]
            for result in await self._try(batch._replace(items=left)):
                reasons = failed[result.key].failed_tries + result.failed_tries
                results[result.key] = replace(result, failed_tries=reasons)
        return [results[key] for item in batch.items if (key := item.key(batch.strategy)) in results]

    async def _try(self, batch: _Batch) -> Results:
        if (error := await self._prepare(batch.strategy)) is not None:
            return [failed(item.key(batch.strategy), error) for item in batch.items]
        answerer = self._answerer(batch.strategy, batch.order)
        return await answer_together(answerer, batch.items, failing=(Exception,), votes=self._votes)

    async def _prepare(self, strategy: str) -> EngineError | None:
        """Prepare the engines; return the error where another try may help."""
        try:
            await self._accelerator.prepare(strategy)
        except EngineError as error:
            if not self._retries.num_retries:
                raise
            return error
        return None

    def _answerer(self, strategy: str, order: int = 0) -> Answerer:
        return Answerer(
            self._accelerator,
            self._accelerator.settings,
            strategy,
            # Compared answers must not learn from each other.
            (lambda item: f"{strategy} {item.sample}") if self._apart else None,
            self._concurrency,
            order,
            self._session,
            self._on_answer,
        )

    async def _revive(self, delay: float) -> bool:
        """Wait, and replace dead engines; return whether all are alive.

        If that fails, the next batch raises the reason, so that the results of this one are kept.
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
