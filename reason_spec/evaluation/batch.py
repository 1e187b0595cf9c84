"""Answer problems of a run with one strategy: one, or a batch with all its samples at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from reason_spec.accelerator import Accelerator, Generator, Solution
from reason_spec.errors import EngineError, PromptTooLongError
from reason_spec.evaluation.outcome import Outcome, UnitKey, VoteEnd, outcome_from
from reason_spec.evaluation.prompts import ask_for
from reason_spec.evaluation.voting import SampleVotes
from reason_spec.events import Recorder
from reason_spec.settings import Settings
from reason_spec.types import Problem, Usage

AnswerListener: TypeAlias = Callable[[UnitKey, Recorder], None]


class WorkItem(NamedTuple):
    """One sample of a problem; ``position`` is that of the problem in the run."""

    problem: Problem
    sample: int
    position: int

    def key(self, strategy: str) -> UnitKey:
        return UnitKey(self.problem.id, self.sample, strategy)


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that an engine could not generate, such as one whose question fills the context.

    ``failed_tries`` holds the reason of each failed try, the last one included.
    """

    key: UnitKey
    error: Exception
    failed_tries: tuple[str, ...] = ()

    @property
    def blames_engine(self) -> bool:
        """Whether the engine may be at fault, so that another try may help."""
        return isinstance(self.error, EngineError) and not isinstance(self.error, PromptTooLongError)


Results: TypeAlias = list[Outcome | Failure]


def work_items(problems: Sequence[Problem], samples: int) -> list[WorkItem]:
    """Return every sample of every problem, in the order of the problems."""
    return [
        WorkItem(problem, sample, index)
        for index, problem in enumerate(problems)
        for sample in range(samples)
    ]


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers items with one strategy on prepared engines, and makes ungraded outcomes of the answers.

    ``settings`` are those of the requests and of the outcomes. ``scope`` names the part of the suffix cache
    that an answer may use. ``on_answer`` is called with all events of an answer before it is an outcome.
    """

    accelerator: Accelerator | Generator
    settings: Settings
    strategy: str
    scope: Callable[[WorkItem], str] | None = None
    concurrency: int = 1
    order: int = 0
    session: str = ""
    on_answer: AnswerListener | None = None

    async def answer(self, item: WorkItem, recorder: Recorder | None = None) -> Solution | Exception:
        """Answer an item, or return the error that kept it from being answered."""
        accelerator, settings = self.accelerator, self.settings
        generator = accelerator if isinstance(accelerator, Generator) else accelerator.generator
        shares_samples = settings.strategy.share_samples
        try:
            asked = ask_for(
                item.problem,
                settings,
                sample=item.sample,
                strategy=self.strategy,
                scope="" if self.scope is None else self.scope(item),
                siblings=f"{settings.hash} {self.strategy} {item.problem.id}" if shares_samples else "",
            )
            solution = await generator.answer(asked, recorder=recorder)
        except Exception as error:
            return error
        if solution.recorder.draft_failure is not None:
            # The target's own answer is no measure of a strategy that has a draft.
            return EngineError(solution.recorder.draft_failure)
        return solution

    def outcome(self, item: WorkItem, solution: Solution, seconds: float) -> Outcome:
        """Return the outcome of an answer that took so many seconds."""
        if self.on_answer is not None:
            self.on_answer(item.key(self.strategy), solution.recorder)
        return outcome_from(
            item.problem,
            item.sample,
            solution,
            self.settings,
            index=item.position,
            seconds=seconds,
            concurrency=self.concurrency,
            order=self.order,
            session=self.session,
        )


async def answer_batch(
    accelerator: Accelerator | Generator,
    items: Sequence[WorkItem],
    settings: Settings,
    *,
    strategy: str,
    scope: Callable[[WorkItem], str] | None = None,
    concurrency: int = 1,
    order: int = 0,
    session: str = "",
    on_answer: AnswerListener | None = None,
    failing: tuple[type[Exception], ...] = (EngineError,),
    votes: SampleVotes | None = None,
) -> Results:
    """Answer items at once; see `Answerer` and `answer_together`."""
    answerer = Answerer(accelerator, settings, strategy, scope, concurrency, order, session, on_answer)
    return await answer_together(answerer, items, failing=failing, votes=votes)


async def answer_together(
    answerer: Answerer,
    items: Sequence[WorkItem],
    *,
    failing: tuple[type[Exception], ...] = (EngineError,),
    votes: SampleVotes | None = None,
) -> Results:
    """Answer items at once; return an ungraded outcome or a failure for each, in order.

    Args:
        failing: errors that fail an answer and not the batch.
        votes: takes the answers as they are finished; samples of a problem whose vote is decided are left out
            or, while they are written, cancelled.
    """
    recorders = {item.key(answerer.strategy): Recorder() for item in items}
    started = time.perf_counter()
    solutions, ends = await _until_decided(items, answerer, recorders, votes)
    share_of_wall = (time.perf_counter() - started) / max(1, len(solutions))
    results: Results = []
    for item in items:
        key = item.key(answerer.strategy)
        solution = solutions.get(key)
        if isinstance(solution, failing):
            results.append(failed(key, solution))
        elif isinstance(solution, Exception):
            raise solution
        elif solution is not None:
            seconds = share_of_wall if answerer.concurrency > 1 else solution.seconds
            outcome = answerer.outcome(item, solution, seconds)
            if key in ends:
                cancelled = [recorders[other] for other in ends[key].cancelled]
                outcome = replace(outcome, vote_end=_vote_end(ends[key].num_drawn, cancelled))
            results.append(outcome)
    return results


class AnswerGroup:
    """Answers that end one after another, and share the time since the group before them was complete."""

    def __init__(self, answerer: Answerer, started: float) -> None:
        self._answerer = answerer
        self._started = started
        self._members: list[tuple[WorkItem, Outcome | Failure]] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, item: WorkItem, solution: Solution | Exception) -> Outcome | Failure:
        """Add an answer, or the error of one; return its result, with the seconds of the answer alone."""
        result = (
            failed(item.key(self._answerer.strategy), solution)
            if isinstance(solution, Exception)
            else self._answerer.outcome(item, solution, solution.seconds)
        )
        self._members.append((item, result))
        return result

    def close(self, now: float) -> tuple[list[WorkItem], Results]:
        """Return the items and their results in the order of the run, and begin the next group."""
        share = (now - self._started) / len(self._members)
        members = sorted(self._members, key=lambda member: (member[0].position, member[0].sample))
        self._started, self._members = now, []
        return [item for item, _ in members], [
            result if isinstance(result, Failure) else replace(result, seconds=share) for _, result in members
        ]


class _End(NamedTuple):
    """The end of a vote: how many samples it has, and those that were cancelled."""

    num_drawn: int
    cancelled: list[UnitKey]


class _Drawn(NamedTuple):
    """What became of a batch: answers or errors, and the ends of votes by the sample that decided."""

    solutions: dict[UnitKey, Solution | Exception]
    ends: dict[UnitKey, _End]


async def _until_decided(
    items: Sequence[WorkItem],
    answerer: Answerer,
    recorders: Mapping[UnitKey, Recorder],
    votes: SampleVotes | None,
) -> _Drawn:
    """Answer all items at once; cancel samples of a problem whose vote is decided meanwhile."""
    strategy, drawn = answerer.strategy, _Drawn({}, {})
    tasks: dict[asyncio.Task[Solution | Exception], WorkItem] = {}
    async with asyncio.TaskGroup() as group:
        for item in items:
            key = item.key(strategy)
            if votes is None or not votes.is_decided(key):
                tasks[group.create_task(answerer.answer(item, recorders[key]))] = item
        running = set(tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            last_of: dict[str, UnitKey] = {}
            for task in done:
                key, solution = tasks[task].key(strategy), task.result()
                drawn.solutions[key] = solution
                if votes is not None and not isinstance(solution, Exception):
                    votes.add(key, solution.text, tasks[task].problem.task)
                    last_of[key.problem_id] = key
            for problem_id, key in last_of.items():
                if votes is not None and votes.is_decided(key):
                    others = {task for task in running if tasks[task].problem.id == problem_id}
                    cancelled = [tasks[task].key(strategy) for task in others]
                    drawn.ends[key] = _End(votes.num_drawn(key), cancelled)
                    for task in others:
                        task.cancel()
                    running -= others
    return drawn


def _vote_end(num_drawn: int, cancelled: Sequence[Recorder]) -> VoteEnd:
    target = Usage.total([recorder.target_usage for recorder in cancelled])
    draft = Usage.total([recorder.draft_usage for recorder in cancelled])
    return VoteEnd(num_drawn, len(cancelled), target, draft)


def failed(key: UnitKey, error: Exception) -> Failure:
    return Failure(key, error, (str(error),))
