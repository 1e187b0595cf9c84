"""Answer one batch of a run with one strategy, all its samples at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from reason_spec.accelerator import Accelerator, GenerationRequest, Generator, Solution
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


def work_items(problems: Sequence[Problem], samples: int) -> list[WorkItem]:
    """Return every sample of every problem, in the order of the problems."""
    return [
        WorkItem(problem, sample, index)
        for index, problem in enumerate(problems)
        for sample in range(samples)
    ]


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
) -> list[Outcome | Failure]:
    """Answer items at once on prepared engines; return an ungraded outcome or a failure for each, in order.

    Args:
        settings: of the requests and of the outcomes.
        scope: part of the suffix cache that the answers may use.
        failing: errors that fail an answer and not the batch.
        votes: takes the answers as they are finished; samples of a problem whose vote is decided are left out
            or, while they are written, cancelled.
    """
    generator = accelerator if isinstance(accelerator, Generator) else accelerator.generator
    recorders = {item.key(strategy): Recorder() for item in items}

    async def answer(item: WorkItem) -> Solution | Exception:
        asked = ask_for(
            item.problem,
            settings,
            sample=item.sample,
            strategy=strategy,
            scope="" if scope is None else scope(item),
            siblings=f"{settings.hash} {strategy} {item.problem.id}"
            if settings.strategy.share_samples
            else "",
        )
        return await _answer_or_error(generator, asked, recorders[item.key(strategy)])

    started = time.perf_counter()
    solutions, ends = await _until_decided(items, strategy, answer, votes)
    share_of_wall = (time.perf_counter() - started) / max(1, len(solutions))
    results: list[Outcome | Failure] = []
    for item in items:
        key = item.key(strategy)
        solution = solutions.get(key)
        if isinstance(solution, failing):
            results.append(failed(key, solution))
        elif isinstance(solution, Exception):
            raise solution
        elif solution is not None:
            if on_answer is not None:
                on_answer(key, solution.recorder)
            outcome = outcome_from(
                item.problem,
                item.sample,
                solution,
                settings,
                index=item.position,
                seconds=share_of_wall if concurrency > 1 else solution.seconds,
                concurrency=concurrency,
                order=order,
                session=session,
            )
            if key in ends:
                cancelled = [recorders[other] for other in ends[key].cancelled]
                outcome = replace(outcome, vote_end=_vote_end(ends[key].num_drawn, cancelled))
            results.append(outcome)
    return results


async def _answer_or_error(
    generator: Generator, asked: GenerationRequest, recorder: Recorder
) -> Solution | Exception:
    try:
        solution = await generator.answer(asked, recorder=recorder)
    except Exception as error:
        return error
    if solution.recorder.draft_failure is not None:
        # The target's own answer is no measure of a strategy that has a draft.
        return EngineError(solution.recorder.draft_failure)
    return solution


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
    strategy: str,
    answer: Callable[[WorkItem], Coroutine[Any, Any, Solution | Exception]],
    votes: SampleVotes | None,
) -> _Drawn:
    """Answer all items at once; cancel samples of a problem whose vote is decided meanwhile."""
    drawn = _Drawn({}, {})
    tasks: dict[asyncio.Task[Solution | Exception], WorkItem] = {}
    async with asyncio.TaskGroup() as group:
        for item in items:
            if votes is None or not votes.is_decided(item.key(strategy)):
                tasks[group.create_task(answer(item))] = item
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
