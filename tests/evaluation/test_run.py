from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator, GenerationRequest, Generator
from reason_spec.accelerator.requests import Prompts
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import Failure, work_items
from reason_spec.evaluation.job import LocalBackend, RunOptions, run_job
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import Retries, _turns, run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.view import SilentView
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
def test_turns_cover_what_is_not_done_exactly_once(
    count: int, samples: int, size: int, seed: int, data: st.DataObject
) -> None:
    items = work_items(problems(count), samples)
    wanted = {item.key(name) for item in items for name in BOTH}
    done = data.draw(st.sets(st.sampled_from(sorted(wanted))))
    turns = list(_turns(items, BOTH, size, seed, lambda key: key not in done))
    planned = [item.key(turn.strategy) for turn in turns for item in turn.items]
    assert sorted(planned) == sorted(wanted - done)
    assert all(1 <= len(turn.items) <= size for turn in turns)


def test_the_order_of_strategies_is_shuffled_by_problem_and_survives_a_resume() -> None:
    items = work_items(problems(60), 1)
    turns = list(_turns(items, BOTH, 1, 0, lambda _: True))
    first = {turn.items[0].problem.id: turn.strategy for turn in turns if turn.order == 0}
    assert 15 < sum(name == "lookahead" for name in first.values()) < 45
    done = {item.key(name) for item in items[:30] for name in BOTH}
    for turn in _turns(items, BOTH, 1, 0, lambda key: key not in done):
        if turn.order == 0:
            assert first[turn.items[0].problem.id] == turn.strategy
    other_seed = {
        turn.items[0].problem.id: turn.strategy
        for turn in _turns(items, BOTH, 1, 1, lambda _: True)
        if not turn.order
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
    ("make", "error", "kept"),
    [
        (partial(failing_accelerator, 3), EngineError, ["p0", "p1", "p2"]),
        (defective_accelerator, ZeroDivisionError, ["p0", "p2", "p3", "p4", "p5"]),
    ],
)
async def test_finished_answers_of_a_batch_are_kept_when_others_end_the_run(
    make: Callable[[], Accelerator], error: type[Exception], kept: list[str]
) -> None:
    accelerator, results = make(), list[Outcome | Failure]()

    async def keep() -> None:
        async for result in run(accelerator, problems(6), ["autoregressive"], concurrency=6):
            results.append(result)

    async with accelerator:
        with pytest.raises(error):
            await keep()
    assert [result.id for result in results if isinstance(result, Outcome)] == kept


async def test_leaving_a_run_early_leaves_nothing_running() -> None:
    async with make_accelerator() as accelerator:
        running = run(accelerator, problems(6), ["lookahead"])
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
