"""A local Ray of two workers: equal to one process, and nothing lost where a worker is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.harness

from reason_spec.accelerator import Accelerator
from reason_spec.errors import DataError, EngineError
from reason_spec.evaluation.batch import Failure
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.run import run
from reason_spec.evaluation.sources import generate_problems
from reason_spec.evaluation.store import Identity, RunFolder
from reason_spec.evaluation.timeline import Timeline
from reason_spec.lab.cluster import driver as cluster_driver
from reason_spec.lab.cluster import runner as cluster
from reason_spec.lab.cluster.runner import Cluster, run_on_ray
from reason_spec.settings import Settings, load_settings
from reason_spec.types import Problem
from tests.evaluation.problems import World, build_world

BOTH = ("autoregressive", "lookahead")
TWO = Cluster("local", 2)


@pytest.fixture(scope="module", autouse=True)
def _connected() -> Iterator[None]:
    """One cluster for all tests here: a connection that is there already is used."""
    with cluster.connected(TWO):
        yield


def scripted(world: World, **flags: Any) -> Settings:
    return load_settings(world.config, {"verifier.name": "exact", **flags})


def problems_of(world: World) -> list[Problem]:
    return [item.problem() for item in world.sums]


async def over_ray(
    settings: Settings, problems: Sequence[Problem], **options: Any
) -> list[Outcome | Failure]:
    options = {"strategies": BOTH, "cluster": TWO, **options}
    async with aclosing(run_on_ray(settings, problems, **options)) as results:
        return [result async for result in results]


async def alone(settings: Settings, problems: Sequence[Problem], **options: Any) -> list[Outcome]:
    async with Accelerator.from_settings(settings, strategies=BOTH) as accelerator:
        results = [result async for result in run(accelerator, problems, BOTH, **options)]
    assert all(isinstance(result, Outcome) for result in results)
    return [result for result in results if isinstance(result, Outcome)]


def said(outcomes: Sequence[Outcome | Failure]) -> dict[UnitKey, tuple[Any, ...]]:
    """What does not depend on where and when an answer was written."""
    found: dict[UnitKey, tuple[Any, ...]] = {}
    for outcome in outcomes:
        assert isinstance(outcome, Outcome), outcome
        assert outcome.key not in found
        found[outcome.key] = (
            outcome.index, outcome.response, outcome.token_ids, outcome.finish, outcome.correct,
            outcome.prediction, outcome.loss_class, outcome.order, outcome.settings_hash, outcome.concurrency,
        )  # fmt: skip
    return found


class Killer:
    """Kills the process of the first worker that was ready, soon after so many answers were kept."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.workers: list[int] = []
        self.lost: list[str] = []

    def notify(self, text: str) -> None:
        if found := re.search(r"process (\d+)", text):
            self.workers.append(int(found[1]))
        elif "was lost" in text:
            self.lost.append(text)

    def count(self, num_kept: int) -> None:
        if num_kept == self.after:
            # An answer takes the script longer than that: one is being written.
            asyncio.get_running_loop().call_later(0.1, os.kill, self.workers[0], signal.SIGKILL)


@pytest.mark.parametrize(("samples", "concurrency"), [(1, 1), (2, 4)])
async def test_two_workers_say_what_one_process_says(samples: int, concurrency: int, tmp_path: Path) -> None:
    world = build_world(tmp_path, 7)
    settings, problems = scripted(world), problems_of(world)
    options = {"samples": samples, "concurrency": concurrency}
    here, there = await alone(settings, problems, **options), await over_ray(settings, problems, **options)
    assert said(there) == said(here)


async def test_the_embedded_pair_says_the_same_on_two_workers() -> None:
    problems = generate_problems("validation", 2, 0).problems
    flags = {"strategy.planner": False, "verifier.name": "exact", "sampling.max_tokens": 192}
    settings = load_settings(flags=flags)
    here, there = await alone(settings, problems), await over_ray(settings, problems)
    assert said(there) == said(here)


async def test_strategies_of_one_problem_stay_on_one_worker_in_shuffled_order(tmp_path: Path) -> None:
    world = build_world(tmp_path, 8, target_seconds=0.002)
    timelines: list[Timeline] = []
    results = await over_ray(scripted(world), problems_of(world), keep_timeline=timelines.append)
    orders = defaultdict(list)
    for outcome in results:
        assert isinstance(outcome, Outcome)
        orders[outcome.id].append(outcome.strategy)
    # Each problem's answers come one after the other, as its worker writes them; which is first differs.
    assert set(map(tuple, orders.values())) == {BOTH, BOTH[::-1]}
    assert sorted(timeline.key for timeline in timelines) == sorted(said(results))
    assert all(timeline.marks[-1].kind == "final" for timeline in timelines)


async def test_a_worker_killed_half_way_loses_nothing_and_doubles_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = build_world(tmp_path, 8, target_seconds=0.02)
    settings, problems = scripted(world), problems_of(world)
    killer = Killer(after=4)
    results: list[Outcome | Failure] = []
    running = run_on_ray(settings, problems, BOTH, cluster=TWO, notify=killer.notify)
    async with aclosing(running):
        async for result in running:
            results.append(result)
            killer.count(len(results))
    assert said(results) == said(await alone(settings, problems))
    assert len(killer.lost) == 1
    assert len(killer.workers) in (2, 3)
    retried = [result.failed_tries for result in results if result.failed_tries]
    assert 1 <= len(retried) <= len(BOTH), "only the answers that the killed worker had not finished"
    assert all(len(reasons) == 1 and " was lost: " in reasons[0] for reasons in retried)
    assert not any("\n" in reason for reasons in retried for reason in reasons)
    assert capsys.readouterr().out == ""


async def test_a_stored_run_goes_on_where_a_driver_stopped(tmp_path: Path) -> None:
    world = build_world(tmp_path / "world", 6)
    settings, problems = scripted(world), problems_of(world)
    for stop_after in (5, 100):
        identity = Identity.of(settings, problems, 1)
        with RunFolder(tmp_path / "run", identity, problems) as folder:
            folder.begin_session("s", BOTH, {})
            running = run_on_ray(settings, problems, BOTH, cluster=TWO, done=set(folder.outcomes))
            async with aclosing(running):
                async for result in running:
                    assert isinstance(result, Outcome)
                    folder.append(result)
                    if len(folder.outcomes) == stop_after:
                        break
            kept = list(folder.outcomes.values())
    assert said(kept) == said(await alone(settings, problems))


async def test_what_kills_each_worker_is_a_failure_in_the_end_and_the_rest_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build_world(tmp_path, 4, target_seconds=0.05)
    settings, problems = scripted(world), problems_of(world)
    killer = Killer(after=-1)
    begin = cluster_driver.Driver._take

    async def take(self: Any) -> Any:
        unit = await begin(self)
        if unit.problems[0].id == "p2":
            os.kill(killer.workers[-1], signal.SIGKILL)
        return unit

    monkeypatch.setattr(cluster_driver.Driver, "_take", take)
    results = await over_ray(settings, problems, cluster=Cluster("local", 1), notify=killer.notify)
    failed = [result for result in results if isinstance(result, Failure)]
    assert {result.key for result in failed} == {UnitKey("p2", 0, name) for name in BOTH}
    assert len(killer.lost) == 3
    assert len(said([result for result in results if isinstance(result, Outcome)])) == 6


async def test_an_answer_that_fails_is_tried_again_and_then_a_failure(tmp_path: Path) -> None:
    world = build_world(tmp_path, 3)
    for role in ("target", "draft"):
        script = json.loads((tmp_path / f"{role}.json").read_text())
        del script["answers"][world.sums[1].question]
        script["otherwise"] = None
        (tmp_path / f"{role}.json").write_text(json.dumps(script))
    results = await over_ray(scripted(world), problems_of(world), retries=1)
    failed = {result.key: result for result in results if isinstance(result, Failure)}
    assert failed.keys() == {UnitKey("p1", 0, name) for name in BOTH}
    assert all(isinstance(result.error, EngineError) for result in failed.values())
    assert {len(result.failed_tries) for result in failed.values()} == {2}
    assert len(results) == 6


async def test_models_that_no_worker_can_load_end_the_run(tmp_path: Path) -> None:
    world = build_world(tmp_path, 3)
    settings = scripted(world)
    (tmp_path / "target.json").unlink()
    with pytest.raises(EngineError, match=r"target\.json"):
        await over_ray(settings, problems_of(world))


async def test_workers_with_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"target": "0" * 64, "draft": None, "verifier": None, "router": None}
    monkeypatch.setattr("reason_spec.lab.cluster.runner.asdict", lambda _: other)
    with pytest.raises(DataError, match="other weights of the target"):
        await over_ray(load_settings(), [Problem("q", "1 + 1?", "2")], strategies=["autoregressive"])


async def test_nothing_is_left_running_when_the_results_are_closed(tmp_path: Path) -> None:
    world = build_world(tmp_path, 6, target_seconds=0.01)
    killer = Killer(after=-1)
    running = run_on_ray(scripted(world), problems_of(world), BOTH, cluster=TWO, notify=killer.notify)
    async for _ in running:
        break
    await running.aclose()
    assert 1 <= len(killer.workers) <= 2, "the first answer came from a worker that was announced"
    for process in killer.workers:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(process).wait(20)
        assert not psutil.pid_exists(process)
