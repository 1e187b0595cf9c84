"""The engine with its real worker process: the contract, and what happens when either side dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import psutil
import pytest
import pytest_asyncio

from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.engines.worker.messages import ToWorker
from reason_spec.engines.worker.process import WorkerProcess
from reason_spec.errors import EngineError, UnsupportedModelError
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix
from tests.engines.contract import PROMPT, SUFFIX, WorkerEngineContract, write_much
from tests.engines.tiny_models import Served, prompt
from tests.running_processes import is_alive

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def served(qwen: Served) -> Served:
    return qwen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_folder: Callable[[str], Path]) -> AsyncIterator[TorchEngine]:
    engine = make_engine(model_folder("qwen3"))
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_engine(model_folder: Callable[[str], Path]) -> AsyncIterator[TorchEngine]:
    # A stopped worker is suspect after a third of this.
    engine = make_engine(model_folder("qwen3"), hang_timeout=12)
    await engine.start()
    yield engine
    await engine.close()


def make_engine(folder: Path, hang_timeout: float = 30) -> TorchEngine:
    settings = EngineSettings(model=str(folder), cache_tokens=512, dtype="float32", hang_timeout=hang_timeout)
    engine = create_engine("target", settings, SUFFIX)
    assert isinstance(engine, TorchEngine)
    return engine


async def gone(pid: int, seconds: float = 20.0) -> bool:
    for _ in range(int(seconds / 0.05)):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.05)
    return False


class TestTorchKeepsTheContract(WorkerEngineContract):
    pass


async def test_serves_many_at_once_and_takes_late_hints(engine: TorchEngine, qwen: Served) -> None:
    expected = qwen.generate(PROMPT.to_tuple(), 30)
    generations = [engine.submit(EngineRequest(PROMPT, 30, stream=False)) for _ in range(4)]
    generations[1].offer_hint(expected)
    results = await asyncio.gather(*(generation.result() for generation in generations))
    assert all(result.tokens == expected for result in results)
    assert results[1].usage.num_accepted_draft_tokens > 0


async def test_nothing_computed_for_one_owner_is_used_for_another(engine: TorchEngine) -> None:
    text = tuple(range(20, 50))
    await engine.reset_prefix_cache()

    async def ask(owner: str) -> tuple[int, tuple[int, ...]]:
        result = await engine.submit(EngineRequest(Prefix(text, owner=owner), max_tokens=6)).result()
        return result.usage.num_cached_prompt_tokens, result.tokens

    (first, answer), (own, again) = await ask("ana"), await ask("ana")
    (other, same), (nobody, still) = await ask("ben"), await ask("")
    assert first == other == nobody == 0
    assert own > 0
    assert answer == again == same == still
    # Side by side in one pass as well.
    found = await asyncio.gather(*(ask(owner) for owner in ("ana", "ben", "eva", "eva", "")))
    assert {tokens for _, tokens in found} == {answer}
    assert found[0][0] > 0
    # Of one owner's two, one is computed and the other counts as shared.
    assert min(found[2][0], found[3][0]) == 0
    scores = [await engine.score(Prefix(text, owner=owner), answer) for owner in ("ana", "new")]
    assert scores[0].logprobs == pytest.approx(scores[1].logprobs, abs=1e-4)


async def test_a_text_that_will_not_go_on_makes_room_for_others(engine: TorchEngine) -> None:
    """Three texts of 150 tokens fill a cache of 512; a fourth displaces the one that was given up."""
    await engine.reset_prefix_cache()
    text = tuple(20 + place % 30 for place in range(150))

    async def num_cached(owner: str) -> int:
        result = await engine.submit(EngineRequest(Prefix(text, owner=owner), max_tokens=1)).result()
        return result.usage.num_cached_prompt_tokens

    assert [await num_cached(owner) for owner in ("a", "b", "c")] == [0, 0, 0]
    engine.evict_first(Prefix(text[:50], owner="c"))
    assert await num_cached("d") == 0
    assert await num_cached("a") >= 149
    assert await num_cached("c") < 149


async def test_a_request_sends_as_much_behind_a_long_text_as_behind_a_short_one(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sizes = WorkerProcess.send, [0]

    def counted(self: WorkerProcess, message: ToWorker) -> None:
        sizes[-1] += len(pickle.dumps(message))
        send(self, message)

    monkeypatch.setattr(WorkerProcess, "send", counted)
    steps = []
    for length in (30, 200):
        prefix = Prefix((prompt(0) * 8)[:length])
        for _ in range(3):
            sizes.append(0)
            score = await engine.score(prefix, (1, 2))
            result = await engine.submit(EngineRequest(prefix, 4, stream=False)).result()
            prefix = prefix.extend(result.tokens)
            assert len(score.logprobs) == 2
        steps.append(sizes[-1])
    assert abs(steps[0] - steps[1]) < 64


async def test_scores_and_counts(engine: TorchEngine) -> None:
    before = (await engine.stats()).usage
    score = await engine.score(PROMPT, (1, 2, 3))
    assert len(score.logprobs) == 3
    assert (await engine.stats()).usage == before + score.usage
    with pytest.raises(EngineError, match="no room"):
        await engine.score(PROMPT, (1,) * 300)


async def test_cancelling_in_the_middle_of_a_pass_leaves_the_others_as_they_are(
    engine: TorchEngine, qwen: Served
) -> None:
    """Passes run in another process, so these cancellations come at any place of one."""
    expected = qwen.generate(PROMPT.to_tuple(), 40)
    rng = Random(0)
    num_cut = 0
    for _ in range(30):
        kept = engine.submit(EngineRequest(PROMPT, 40))
        doomed = [engine.submit(EngineRequest(PROMPT.extend((20 + i,)), 200)) for i in range(3)]
        for generation in doomed:
            await asyncio.sleep(rng.uniform(0.0, 0.01))
            generation.offer_hint(expected)
            generation.cancel()
        usages = [await generation.closed() for generation in doomed]
        num_cut += sum(0 < usage.num_generated_tokens < 200 for usage in usages)
        assert (await kept.result()).tokens == expected
        assert (await engine.stats()).num_running == 0
    assert num_cut > 0, "some were to be cancelled while they wrote"
    await engine.reset_prefix_cache()
    assert (await engine.stats()).num_cached_tokens == 0


async def test_a_score_that_nobody_waits_for_is_cancelled(engine: TorchEngine) -> None:
    task = asyncio.create_task(engine.score(PROMPT, (1,) * 200))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Nothing tells the end of a cancelled score; the worker may answer a question before it.
    for _ in range(20):
        stats = await engine.stats()
        if (stats.num_running, stats.num_waiting) == (0, 0):
            break
    assert (stats.num_running, stats.num_waiting) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the platform has no core affinity")
async def test_all_threads_move_to_the_cores_they_are_given(engine: TorchEngine) -> None:
    assert engine.worker_pid is not None
    everywhere = os.sched_getaffinity(0)
    one = {max(everywhere)}

    def cores_of_threads() -> list[set[int]]:
        threads = psutil.Process(engine.worker_pid).threads()
        return [os.sched_getaffinity(thread.id) for thread in threads]

    for cores, expected in [(tuple(one), one), (None, everywhere), (tuple(one), one), (None, everywhere)]:
        await engine.set_cores(cores)
        await engine.submit(EngineRequest(PROMPT, 4)).result()
        assert all(found == expected for found in cores_of_threads())
    with pytest.raises(EngineError, match=r"cores \[4000\] cannot be used"):
        await engine.set_cores((0, 4000))
    # Its threads are where they were, and so they are after a restart.
    await engine.submit(EngineRequest(PROMPT, 4)).result()
    assert all(found == everywhere for found in cores_of_threads())
    assert engine._cores is None


def variables_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_threads_spin_as_the_user_says_and_the_engines_side_keeps_its_environment(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spins() -> str:
        engine = make_engine(model_folder("qwen3"))
        await engine.start()
        assert engine.worker_pid is not None
        found = variables_of(engine.worker_pid)["GOMP_SPINCOUNT"]
        await engine.close()
        return found

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert await spins() == "10000"
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    assert await spins() == "77"


async def test_closing_cancels_what_is_live_and_may_be_repeated(model_folder: Callable[[str], Path]) -> None:
    engine = make_engine(model_folder("qwen3"))
    await engine.start()
    generations = await write_much(engine)
    pid = engine.worker_pid
    assert pid is not None
    await engine.close()
    await engine.close()
    assert (await generations[-1].result()).finish == "cancelled"
    assert await gone(pid)
    with pytest.raises(EngineError, match="closed"):
        await engine.submit(EngineRequest(PROMPT, 2)).result()


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("mamba", UnsupportedModelError, "'target'.*mamba.*plain attention"),
        (None, EngineError, "'target'.*empty"),
    ],
)
async def test_a_model_that_cannot_be_served_is_named(
    kind: str | None,
    error: type[EngineError],
    message: str,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    engine = make_engine(model_folder(kind) if kind else empty)
    with pytest.raises(error, match=message) as caught:
        await engine.start()
    assert "Traceback" not in str(caught.value)
    await engine.close()


async def test_cores_that_this_process_may_not_use_are_named(model_folder: Callable[[str], Path]) -> None:
    settings = EngineSettings(model=str(model_folder("qwen3")), cores=(0, 4000))
    engine = TorchEngine("draft", settings)
    with pytest.raises(EngineError, match=r"cores \[4000\] cannot be used.*set `cores`"):
        await engine.start()
    await engine.close()


async def test_a_slow_start_is_given_up(model_folder: Callable[[str], Path]) -> None:
    settings = EngineSettings(model=str(model_folder("qwen3")), start_timeout=0.2)
    engine = TorchEngine("draft", settings)
    with pytest.raises(EngineError, match=r"start_timeout=0\.2 seconds.*it was starting"):
        await engine.start()


DRIVER = """
import asyncio, signal, sys
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.settings import EngineSettings
from reason_spec.types import Prefix

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No __main__ guard: a user's script need not have one.
async def main():
    engine = TorchEngine("target", EngineSettings(model=sys.argv[1], cache_tokens=512))
    await engine.start()
    print(engine.worker_pid, flush=True)
    while True:
        generation = engine.submit(EngineRequest(Prefix((1, 2, 3)), 200))
        async for _ in generation:
            pass

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_no_worker_outlives_its_engine(
    how: signal.Signals, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(model_folder("qwen3")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert driver.stdout is not None
    try:
        pid = int(await driver.stdout.readline())
        await asyncio.sleep(0.3)
        driver.send_signal(how)
        assert await gone(pid)
    finally:
        if driver.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                driver.kill()
        await driver.wait()
