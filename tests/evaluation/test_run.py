from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator, GenerationRequest, Generator
from reason_spec.accelerator.requests import Prompts
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine, _Running
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import Failure, work_items
from reason_spec.evaluation.job import LocalBackend, RunOptions, run_job
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import Retries, _batches, run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.store import RESULTS, read_outcomes
from reason_spec.evaluation.view import CountAnswer, SilentView, Totals
from reason_spec.events import Recorder
from reason_spec.types import Problem
from tests.evaluation.problems import Sum, make_accelerator

BOTH = ("autoregressive", "lookahead")


def problems(count: int) -> list[Problem]:
    return [Sum(number).problem() for number in range(count)]


class Noting(Accelerator):
    """Notes which strategy was prepared for, and what was asked after that."""

    log: list[str]

    async def prepare(self, strategy: str | None = None) -> None:
        self.log.append(f"prepare {strategy}")
        await super().prepare(strategy)

    async def calibrate(self) -> None:
        self.log.append("calibrate")


def noting() -> Noting:
    made = make_accelerator()
    accelerator = Noting(made.settings, made.target, made.draft, made.generator.verifier)
    accelerator.log = []
    return accelerator


async def outcomes_of(accelerator: Accelerator, count: int = 6, **options: Any) -> list[Outcome]:
    async with accelerator:
        results = [result async for result in run(accelerator, problems(count), **options)]
    assert not any(isinstance(result, Failure) for result in results)
    return [result for result in results if isinstance(result, Outcome)]


async def test_every_answer_of_every_strategy_comes_once_and_graded() -> None:
    outcomes = await outcomes_of(make_accelerator(), strategies=BOTH, samples=2)
    keys = [outcome.key for outcome in outcomes]
    assert sorted(keys) == sorted(
        UnitKey(f"p{number}", sample, name) for number in range(6) for sample in range(2) for name in BOTH
    )
    for outcome in outcomes:
        number = int(outcome.id[1:])
        assert outcome.prediction == str(Sum(number).total)
        assert outcome.correct is (number % 5 != 0)
        assert outcome.response == Sum(number).answer()
        assert outcome.tokens == sum(step.tokens for step in outcome.steps) > 0


async def test_without_names_the_strategy_of_the_settings_runs() -> None:
    outcomes = await outcomes_of(make_accelerator(flags={"strategy.name": "prompt_lookup"}), count=2)
    assert {outcome.strategy for outcome in outcomes} == {"prompt_lookup"}


async def test_a_problem_without_a_reference_answer_is_solved_and_not_graded() -> None:
    question = Problem("q", Sum(1).question)
    async with make_accelerator() as accelerator:
        (outcome,) = [result async for result in run(accelerator, [question], ["autoregressive"])]
    assert isinstance(outcome, Outcome)
    assert outcome.response
    assert outcome.correct is None
    assert outcome.prediction is None


async def test_caches_are_reset_before_each_turn() -> None:
    accelerator = noting()
    outcomes = await outcomes_of(accelerator, count=3, strategies=BOTH)
    assert accelerator.log == [f"prepare {outcome.strategy}" for outcome in outcomes]


@pytest.mark.parametrize(("strategies", "measured"), [(BOTH, 1), (("lookahead",), 0)])
async def test_a_job_measures_cores_once_where_strategies_are_compared(
    strategies: tuple[str, ...], measured: int, tmp_path: Path
) -> None:
    accelerator = noting()
    sources = Sources("sums", tuple(problems(3)), only_questions=False)
    options = RunOptions(strategies, output=tmp_path / "run")
    async with accelerator:
        result = await run_job(
            accelerator.settings, sources, options, SilentView(), LocalBackend(accelerator)
        )
    assert accelerator.log.count("calibrate") == measured
    assert accelerator.log[:measured] == ["calibrate"] * measured
    assert (result.num_missing, len(result.metrics.strategies)) == (0, len(strategies))


async def test_in_batches_one_strategy_works_at_a_time_and_shares_the_wall_time() -> None:
    accelerator = noting()
    outcomes = await outcomes_of(accelerator, count=5, strategies=BOTH, concurrency=2)
    assert accelerator.log.count("prepare lookahead") == 3
    batches: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        batches[outcome.strategy, int(outcome.id[1:]) // 2].append(outcome)
    for batch in batches.values():
        assert len({outcome.seconds for outcome in batch}) == 1
        assert {outcome.concurrency for outcome in batch} == {2}


@given(
    count=st.integers(1, 12),
    samples=st.integers(1, 3),
    size=st.integers(1, 5),
    seed=st.integers(0, 100),
    data=st.data(),
)
def test_batches_cover_what_is_not_done_exactly_once(
    count: int, samples: int, size: int, seed: int, data: st.DataObject
) -> None:
    items = work_items(problems(count), samples)
    wanted = {item.key(name) for item in items for name in BOTH}
    done = data.draw(st.sets(st.sampled_from(sorted(wanted))))
    batches = list(_batches(items, BOTH, size, seed, lambda key: key not in done))
    planned = [item.key(batch.strategy) for batch in batches for item in batch.items]
    assert sorted(planned) == sorted(wanted - done)
    assert all(1 <= len(batch.items) <= size for batch in batches)


def test_the_order_of_strategies_is_shuffled_by_problem_and_survives_a_resume() -> None:
    items = work_items(problems(60), 1)
    batches = list(_batches(items, BOTH, 1, 0, lambda _: True))
    first = {batch.items[0].problem.id: batch.strategy for batch in batches if batch.order == 0}
    assert 15 < sum(name == "lookahead" for name in first.values()) < 45
    done = {item.key(name) for item in items[:30] for name in BOTH}
    for batch in _batches(items, BOTH, 1, 0, lambda key: key not in done):
        if batch.order == 0:
            assert first[batch.items[0].problem.id] == batch.strategy
    other_seed = {
        batch.items[0].problem.id: batch.strategy
        for batch in _batches(items, BOTH, 1, 1, lambda _: True)
        if not batch.order
    }
    assert other_seed != first


def failing_accelerator(known: int) -> Accelerator:
    """The target answers only the first problems."""
    made = make_accelerator()
    answers = {Sum(number).question: (Sum(number).answer(),) for number in range(known)}
    return Accelerator(
        made.settings,
        ScriptedEngine("target", WrittenAnswers(answers, None)),
        made.draft,
        made.generator.verifier,
    )


async def test_an_answer_that_fails_does_not_end_the_run() -> None:
    asked = [problems(6)[index] for index in (0, 5, 1, 4, 2)]
    async with failing_accelerator(3) as accelerator:
        results = [result async for result in run(accelerator, asked, ["autoregressive"])]
    assert [isinstance(result, Failure) for result in results] == [False, True, False, True, False]
    failure = results[1]
    assert isinstance(failure, Failure)
    assert failure.key.problem_id == "p5"
    assert "no answer to" in str(failure.error)


async def test_failures_in_a_row_are_the_engines_and_end_the_run() -> None:
    async with failing_accelerator(0) as accelerator:
        with pytest.raises(EngineError, match="no answer to"):
            [result async for result in run(accelerator, problems(6), ["autoregressive"])]


async def test_a_problem_that_fails_under_every_strategy_counts_as_one_failure() -> None:
    asked = [problems(6)[index] for index in (0, 5, 1)]
    async with failing_accelerator(3) as accelerator:
        results = [result async for result in run(accelerator, asked, BOTH, samples=3)]
    assert len(results) == 3 * 3 * len(BOTH)
    failures = [result.key.problem_id for result in results if isinstance(result, Failure)]
    assert failures == ["p5"] * 3 * len(BOTH)


async def test_questions_that_fill_the_context_are_neither_tried_again_nor_do_they_end_the_run() -> None:
    made = make_accelerator()
    answers = {Sum(0).question: (Sum(0).answer(),)}
    target = ScriptedEngine("target", WrittenAnswers(answers), max_context=400)
    accelerator = Accelerator(made.settings, target, made.draft, made.generator.verifier)
    asked = [*(Problem(f"long {number}", "Why? " * 1000) for number in range(4)), *problems(1)]
    async with accelerator:
        running = run(accelerator, asked, ["autoregressive"], retries=Retries(2, first_delay=0.0))
        results = [result async for result in running]
    *failures, answered = results
    assert isinstance(answered, Outcome)
    for failure in failures:
        assert isinstance(failure, Failure)
        assert len(failure.failed_tries) == 1
        assert "leaves no room for an answer: the context of engine 'target' is 400" in str(failure.error)


class Defective(ScriptedEngine):
    """Fails with an exception that no engine should raise when it is asked one of the problems."""

    def submit(self, request: EngineRequest) -> Generation:
        if Sum(1).question in self.tokenizer.decode(request.prefix.to_tuple()):
            raise ZeroDivisionError
        return super().submit(request)


def defective_accelerator() -> Accelerator:
    made = make_accelerator()
    answers = {Sum(number).question: (Sum(number).answer(),) for number in range(6)}
    target = Defective("target", WrittenAnswers(answers))
    return Accelerator(made.settings, target, made.draft, made.generator.verifier)


@pytest.mark.parametrize(
    ("make", "error", "concurrency", "kept"),
    [
        (partial(failing_accelerator, 3), EngineError, 6, ["p0", "p1", "p2"]),
        (defective_accelerator, ZeroDivisionError, 6, ["p0", "p2", "p3", "p4", "p5"]),
        (defective_accelerator, ZeroDivisionError, 3, ["p0", "p2"]),
    ],
)
async def test_finished_answers_are_kept_when_others_end_the_run(
    make: Callable[[], Accelerator], error: type[Exception], concurrency: int, kept: list[str]
) -> None:
    accelerator, results = make(), list[Outcome | Failure]()

    async def keep() -> None:
        async for result in run(accelerator, problems(6), ["autoregressive"], concurrency=concurrency):
            results.append(result)

    async with accelerator:
        with pytest.raises(error):
            await keep()
    assert [result.id for result in results if isinstance(result, Outcome)] == kept


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_leaving_a_run_early_leaves_nothing_running(concurrency: int) -> None:
    async with make_accelerator() as accelerator:
        running = run(accelerator, problems(6), ["lookahead"], concurrency=concurrency)
        await anext(running)
        await running.aclose()
        assert (await accelerator.target.stats()).num_running == 0


async def test_what_is_compared_has_caches_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scopes: list[str] = []

    def note(generator: Generator, request: GenerationRequest, prompts: Prompts) -> None:
        scopes.append(request.scope)

    monkeypatch.setattr(Generator, "_open_suffix_session", note)
    for strategies, samples in ((BOTH, 2), (("lookahead",), 1)):
        await outcomes_of(make_accelerator(), count=2, strategies=strategies, samples=samples)
    assert set(scopes[:-2]) == {f"{name} {sample}" for name in BOTH for sample in range(2)}
    assert scopes[-2:] == ["", ""]


# One strategy, several answers at once ------------------------------------------------------------


class Watched(ScriptedEngine):
    """Notes which problems it is asked, and how many are then under way.

    Args:
        held: the number of the problem whose answer does not go on until ``until`` was asked.
        failing: the numbers of the requests that fail.
    """

    def __init__(self, held: int | None = None, until: int = 0, failing: Collection[int] = ()) -> None:
        self.sums = [Sum(number) for number in range(6)]
        super().__init__("target", WrittenAnswers({item.question: (item.answer(),) for item in self.sums}))
        self.asked: list[int] = []
        self.num_under_way: list[int] = []
        self.all_asked = asyncio.Event()
        self._held, self._until, self._failing = held, until, failing

    def _number(self, request: EngineRequest) -> int:
        text = self.tokenizer.decode(request.prefix.to_tuple())
        return next(item.number for item in self.sums if item.question in text)

    def submit(self, request: EngineRequest) -> Generation:
        self.asked.append(self._number(request))
        generation = super().submit(request)
        self.num_under_way.append(len(self._running))
        if len(set(self.asked)) == len(self.sums):
            self.all_asked.set()
        if len(self.asked) - 1 in self._failing:
            self._retire(self._running[-1], "failed", "trouble")
        return generation

    def _advance(self, running: _Running, drafts: tuple[int, ...]) -> None:
        if self._number(running.generation.request) != self._held or self._until in self.asked:
            super()._advance(running, drafts)


def watched(**options: Any) -> tuple[Accelerator, Watched]:
    made, target = make_accelerator(), Watched(**options)
    return Accelerator(made.settings, target, made.draft, made.generator.verifier), target


async def test_a_long_answer_holds_up_no_other() -> None:
    accelerator, target = watched(held=0, until=5)
    async with asyncio.timeout(30):
        outcomes = await outcomes_of(accelerator, strategies=["autoregressive"], concurrency=2)
    assert target.asked == [0, 1, 2, 3, 4, 5]
    assert target.num_under_way == [1, 2, 2, 2, 2, 2]
    assert [outcome.id for outcome in outcomes] == ["p1", "p2", "p3", "p4", "p0", "p5"]


async def test_answers_go_on_while_the_caller_works_on_a_group() -> None:
    accelerator, target = watched()
    async with accelerator:
        running = run(accelerator, problems(6), ["autoregressive"], concurrency=2)
        await anext(running)
        async with asyncio.timeout(30):
            await target.all_asked.wait()
        assert len([result async for result in running]) == 5


async def test_answers_wait_for_a_caller_who_is_behind() -> None:
    accelerator, target = watched()
    async with accelerator:
        running = run(accelerator, problems(6), ["autoregressive"], samples=3, concurrency=2)
        await anext(running)
        for _ in range(5000):
            await asyncio.sleep(0)
        assert 6 <= len(target.asked) <= 8
        assert len([result async for result in running]) == 17


async def test_caches_are_reset_once_for_all_answers_of_one_strategy() -> None:
    accelerator = noting()
    await outcomes_of(accelerator, strategies=["lookahead"], concurrency=2)
    assert accelerator.log == ["prepare lookahead"]


async def test_groups_share_the_wall_time() -> None:
    made = make_accelerator()
    first_begun, last_ended = float("inf"), 0.0

    def note(key: UnitKey, recorder: Recorder) -> None:
        nonlocal first_begun, last_ended
        first_begun, last_ended = min(first_begun, recorder.started), time.perf_counter()

    started = time.perf_counter()
    outcomes = await outcomes_of(made, 5, strategies=["autoregressive"], concurrency=2, on_answer=note)
    wall = time.perf_counter() - started
    sizes = Counter(outcome.seconds for outcome in outcomes)
    assert list(sizes.values()) == [2, 2, 1]
    assert last_ended - first_begun <= sum(outcome.seconds for outcome in outcomes) + 1e-9 <= wall
    assert {outcome.concurrency for outcome in outcomes} == {2}


@given(
    count=st.integers(1, 6),
    samples=st.integers(1, 2),
    size=st.integers(2, 5),
    failing=st.sets(st.integers(0, 8), max_size=3),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_flowing_answers_hold_what_is_not_done_exactly_once(
    count: int, samples: int, size: int, failing: set[int], data: st.DataObject
) -> None:
    """Also where engines fail meanwhile; a group has problems of one task."""
    asked = [
        Problem(f"p{number}", Sum(number).question, task="gsm8k" if number < 3 else "auto")
        for number in range(count)
    ]
    wanted = {item.key("autoregressive") for item in work_items(asked, samples)}
    done = data.draw(st.sets(st.sampled_from(sorted(wanted))))
    accelerator, target = watched(failing=failing)

    async def results() -> list[Outcome | Failure]:
        async with accelerator:
            running = run(
                accelerator,
                asked,
                ["autoregressive"],
                samples=samples,
                concurrency=size,
                done=done,
                retries=Retries(3, first_delay=0.0),
            )
            return [result async for result in running]

    outcomes = [result for result in asyncio.run(results()) if isinstance(result, Outcome)]
    assert sorted(outcome.key for outcome in outcomes) == sorted(wanted - done)
    groups: dict[float, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.seconds].append(outcome)
    for members in groups.values():
        assert len(members) < 2 * size if failing else len(members) <= size
        assert len({outcome.task for outcome in members}) == 1
    assert max(target.num_under_way, default=0) <= size


async def test_failures_beside_answers_do_not_end_the_run() -> None:
    asked = [problems(6)[index] for index in (5, 4, 3, 0, 1, 2)]
    async with failing_accelerator(3) as accelerator:
        retries = Retries(1, first_delay=0.0)
        running = run(accelerator, asked, ["autoregressive"], concurrency=6, retries=retries)
        results = [result async for result in running]
    assert [isinstance(result, Failure) for result in results] == [True] * 3 + [False] * 3


class Leaving(SilentView):
    """Ends a run after so many answers, as an interrupt does."""

    def __init__(self, after: int) -> None:
        self._left = after

    @contextmanager
    def progress(self, totals: Totals, done: Sequence[Outcome]) -> Iterator[CountAnswer]:
        def count(outcome: Outcome) -> None:
            self._left -= 1
            if not self._left:
                raise InterruptedError

        yield count


async def test_a_stopped_run_keeps_what_was_yielded_and_goes_on(tmp_path: Path) -> None:
    sources = Sources("sums", tuple(problems(6)), only_questions=False)
    options = RunOptions(("autoregressive",), concurrency=2, output=tmp_path / "run")
    accelerator, target = watched(held=0, until=5)
    async with accelerator:
        backend = LocalBackend(accelerator)
        with pytest.raises(InterruptedError):
            await run_job(accelerator.settings, sources, options, Leaving(3), backend)
        assert (await target.stats()).num_running == 0
        kept = list(read_outcomes(tmp_path / "run" / RESULTS))
        assert [outcome.id for outcome in kept] == ["p1", "p2", "p3"]
        result = await run_job(accelerator.settings, sources, options, SilentView(), backend)
    stored = list(read_outcomes(tmp_path / "run" / RESULTS))
    assert stored[:3] == kept
    assert sorted(outcome.id for outcome in stored) == [f"p{number}" for number in range(6)]
    assert result.num_missing == 0
