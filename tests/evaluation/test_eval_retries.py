"""Answers whose engine fails are tried again, with the reasons kept; engines that died are started anew."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from reason_spec.accelerator import Accelerator
from reason_spec.cli.screen import Screen
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.engines.worker.engine import WorkerEngine
from reason_spec.errors import EngineError
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.job import LocalBackend, RunOptions, run_job
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.run import Retries, Revived, run
from reason_spec.evaluation.sources import generated_sources
from reason_spec.evaluation.store import RunFolder, read_outcomes
from reason_spec.settings import load_settings
from reason_spec.types import Problem
from tests.evaluation.problems import Sum, make_accelerator

AT_ONCE = 0.0


class Troubled(ScriptedEngine):
    """Fails requests, or dies with one: ``trouble`` is told the number of the request, counted from 0."""

    def __init__(self, trouble: Callable[[int], str]) -> None:
        answers = {Sum(number).question: (Sum(number).answer(),) for number in range(6)}
        super().__init__("target", WrittenAnswers(answers))
        self._trouble = trouble
        self.asked: list[int] = []
        self._died: str | None = None

    @property
    def failure(self) -> str | None:
        return self._died

    def submit(self, request: EngineRequest) -> Generation:
        generation = super().submit(request)
        text = self.tokenizer.decode(request.prefix.to_tuple())
        self.asked.append(next(number for number in range(6) if Sum(number).question in text))
        trouble = self._trouble(len(self.asked) - 1)
        if trouble == "dies":
            self._died = "it died"
        running = self._running[-1]
        if trouble or self._died:
            self._retire(running, "failed", self._died or trouble)
        return generation


def troubled(trouble: Callable[[int], str]) -> Accelerator:
    made = make_accelerator()
    return Accelerator(made.settings, Troubled(trouble), made.draft, made.generator.verifier)


def problems(*numbers: int) -> list[Problem]:
    return [Sum(number).problem() for number in numbers]


async def results_of(
    accelerator: Accelerator, retries: Retries, *numbers: int, **options: Any
) -> list[Outcome | Failure]:
    async with accelerator:
        running = run(accelerator, problems(*numbers), ["autoregressive"], retries=retries, **options)
        return [result async for result in running]


async def test_an_answer_that_failed_is_tried_again_and_says_why() -> None:
    fails = {1: "first trouble", 2: "second trouble"}
    accelerator = troubled(lambda number: fails.get(number, ""))
    first, second, third = await results_of(accelerator, Retries(2, AT_ONCE), 1, 2, 3)
    for result, number in ((first, 1), (second, 2), (third, 3)):
        assert isinstance(result, Outcome)
        assert result.response == Sum(number).answer()
        assert result.correct is True
    assert second.failed_tries == ("first trouble", "second trouble")
    assert first.failed_tries == third.failed_tries == ()


async def test_what_goes_on_failing_is_left_out_with_all_reasons() -> None:
    accelerator = troubled(lambda number: f"trouble {number}" if 1 <= number <= 3 else "")
    first, second, third = await results_of(accelerator, Retries(2, AT_ONCE), 1, 2, 3)
    assert isinstance(first, Outcome)
    assert isinstance(third, Outcome)
    assert isinstance(second, Failure)
    assert second.key.problem_id == "p2"
    assert second.failed_tries == ("trouble 1", "trouble 2", "trouble 3")
    assert str(second.error) == "trouble 3"


async def test_in_a_batch_only_what_failed_is_tried_again() -> None:
    accelerator = troubled(lambda number: "trouble" if number == 1 else "")
    results = await results_of(accelerator, Retries(1, AT_ONCE), 1, 2, 3, 4, concurrency=4)
    assert [result.failed_tries for result in results] == [(), ("trouble",), (), ()]
    assert [result.key.problem_id for result in results] == ["p1", "p2", "p3", "p4"]
    assert isinstance(accelerator.target, Troubled)
    assert accelerator.target.asked == [1, 2, 3, 4, 2]


async def test_no_more_answers_begin_until_a_failed_one_was_tried_again() -> None:
    accelerator = troubled(lambda number: {1: "trouble", 2: "more trouble"}.get(number, ""))
    results = await results_of(accelerator, Retries(2, AT_ONCE), 1, 2, 3, 4, 5, concurrency=2)
    assert [result.key.problem_id for result in results] == ["p1", "p2", "p3", "p4", "p5"]
    assert [result.failed_tries for result in results] == [(), ("trouble", "more trouble"), (), (), ()]
    assert isinstance(accelerator.target, Troubled)
    assert accelerator.target.asked == [1, 2, 2, 2, 3, 4, 5]


async def test_without_retries_nothing_is_tried_again() -> None:
    accelerator = troubled(lambda number: "trouble" if number == 0 else "")
    first, second = await results_of(accelerator, Retries(), 1, 2)
    assert isinstance(first, Failure)
    assert isinstance(second, Outcome)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_engines_that_are_not_ready_at_first_answer_later(
    monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    accelerator, prepare = troubled(lambda number: ""), Accelerator.prepare
    tries = iter(["not ready"])

    async def prepare_later(self: Accelerator, strategy: str | None = None) -> None:
        for reason in tries:
            raise EngineError(reason)
        await prepare(self, strategy)

    monkeypatch.setattr(Accelerator, "prepare", prepare_later)
    results = await results_of(accelerator, Retries(1, AT_ONCE), 1, 2, 3, concurrency=concurrency)
    assert [result.key.problem_id for result in results] == ["p1", "p2", "p3"]
    assert [result.failed_tries for result in results] == [
        ("not ready",) if number < concurrency else () for number in range(3)
    ]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_dead_engine_is_replaced_and_the_answer_is_written_by_the_new_one(concurrency: int) -> None:
    accelerator = troubled(lambda number: "dies" if number == 1 else "")
    successor = troubled(lambda number: "")
    revivals: list[str] = []

    async def revive() -> Revived:
        revivals.append("again")
        await successor.start()
        return Revived(successor, "second")

    results = await results_of(
        accelerator, Retries(2, AT_ONCE, revive), 1, 2, 3, session="first", concurrency=concurrency
    )
    await successor.close()
    assert revivals == ["again"]
    assert [isinstance(result, Outcome) for result in results] == [True, True, True]
    assert [(result.session, result.failed_tries) for result in results if isinstance(result, Outcome)] == [
        ("first", ()),
        ("second", ("it died",)),
        ("second", ()),
    ]


async def test_what_was_answered_beside_a_death_is_kept_and_the_reason_ends_the_run() -> None:
    accelerator = troubled(lambda number: "dies" if number == 2 else "")
    kept: list[Outcome | Failure] = []

    async def keep(running: AsyncIterator[Outcome | Failure]) -> None:
        async for result in running:
            kept.append(result)  # noqa: PERF401  what came before the error counts

    async with accelerator:
        running = run(
            accelerator, problems(1, 2, 3, 4), ["autoregressive"], concurrency=3, retries=Retries(2, AT_ONCE)
        )
        with pytest.raises(EngineError, match="it died"):
            await keep(running)
    assert [isinstance(result, Failure) for result in kept] == [False, False, True]


def test_rests_between_tries_double_up_to_half_a_minute() -> None:
    retries = Retries(9, 0.5)
    assert [retries.delay_before(retry) for retry in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert retries.delay_before(9) == 30.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "no sign of life")]
)
async def test_a_lost_worker_is_started_again_and_every_answer_is_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: signal.Signals,
    reason: str,
) -> None:
    """The demonstration pair: its worker process is killed or stopped while the second answer is written."""
    killed: list[int] = []
    store, backend = RunFolder.append, LocalBackend()

    def store_and_kill(self: RunFolder, outcome: Outcome) -> None:
        store(self, outcome)
        if not killed:
            assert backend.accelerator is not None
            engine = backend.accelerator.target
            assert isinstance(engine, WorkerEngine)
            assert engine.worker_pid is not None
            killed.append(engine.worker_pid)
            os.kill(engine.worker_pid, how)

    monkeypatch.setattr(RunFolder, "append", store_and_kill)
    flags = {"strategy.name": "autoregressive", "sampling.max_tokens": 40, "target.hang_timeout": 6}
    settings = load_settings(flags=flags)
    options = RunOptions(("autoregressive",), output=tmp_path / "run", num_retries=2, timelines=True)
    result = await run_job(settings, generated_sources(3, 0), options, Screen(), backend)
    assert not result.failures
    outcomes = list(read_outcomes(tmp_path / "run" / "results.jsonl"))
    assert len(outcomes) == 3
    assert len({outcome.session for outcome in outcomes}) == 2
    (retried,) = [outcome for outcome in outcomes if outcome.failed_tries]
    assert "died" in retried.failed_tries[0]
    assert reason in retried.failed_tries[0]
    assert "an engine died; it is started again" in capsys.readouterr().err
