"""Workers that are stopped, killed or slow: engines tell them apart, wait for none, and start them again."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import psutil
import pytest

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.engines.worker import supervisor
from reason_spec.engines.worker.messages import FromWorker, GetStats, Ready, Shutdown, ToWorker
from reason_spec.engines.worker.process import Ending, WorkerProcess
from reason_spec.engines.worker.pulse import TICK_SECONDS, Pulse
from reason_spec.engines.worker.supervisor import Supervisor
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings
from tests.engines.contract import PROMPT
from tests.engines.tiny_models import Served
from tests.running_processes import is_alive

ModelFolder = Callable[[str], Path]

PATIENCE_SECONDS = 60.0
HANG_SECONDS = 6.0


def settings_for(folder: Path, **more: Any) -> EngineSettings:
    return EngineSettings(
        model=str(folder), dtype="float32", cache_tokens=2048, hang_timeout=HANG_SECONDS, **more
    )


@asynccontextmanager
async def running(folder: Path, kind: type[TorchEngine] = TorchEngine) -> AsyncIterator[TorchEngine]:
    engine = kind("target", settings_for(folder))
    await engine.start()
    try:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            yield engine
    finally:
        await engine.close()


def worker_of(engine: TorchEngine) -> psutil.Process:
    assert engine.worker_pid is not None
    return psutil.Process(engine.worker_pid)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not what():  # noqa: ASYNC110 - a process tells nobody
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_stopped_worker_shows_before_it_is_killed(model_folder: ModelFolder) -> None:
    async with running(model_folder("qwen3")) as engine:
        worker = worker_of(engine)
        assert engine.trouble is None
        worker.suspend()
        await until(lambda: engine.trouble is not None)
        assert "no sign of life" in str(engine.trouble)
        assert engine.failure is None
        await until(lambda: engine.failure is not None)
        assert not worker.is_running()
        with pytest.raises(EngineError, match="no sign of life for 6 seconds"):
            await engine.stats()


async def test_a_worker_that_goes_on_is_trusted_again_and_one_that_does_not_is_closed(
    model_folder: ModelFolder,
) -> None:
    async with running(model_folder("qwen3")) as engine:
        worker = worker_of(engine)
        worker.suspend()
        await until(lambda: engine.trouble is not None)
        worker.resume()
        await until(lambda: engine.trouble is None)
        assert (await engine.submit(EngineRequest(PROMPT, 3)).result()).finish == "length"
        worker.suspend()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.close()
        assert not worker.is_running()


async def test_what_a_stopped_worker_does_not_read_stops_nobody_else(model_folder: ModelFolder) -> None:
    async with running(model_folder("qwen3")) as engine:
        generation = engine.submit(EngineRequest(PROMPT, 200))
        worker_of(engine).suspend()
        for _ in range(8):
            # Together they are more than what fits into the pipe.
            generation.offer_hint(tuple(range(260)) * 400)
            await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="no sign of life"):
            await generation.result()


@pytest.mark.parametrize(
    ("how", "times"), [(signal.SIGKILL, 1), pytest.param(signal.SIGSTOP, 2, marks=pytest.mark.slow)]
)
async def test_a_worker_that_is_lost_is_started_again_and_writes_the_same(
    model_folder: ModelFolder, qwen: Served, how: signal.Signals, times: int
) -> None:
    expected = qwen.generate(PROMPT.to_tuple(), 20)
    async with running(model_folder("qwen3")) as engine:
        engine.keep_alive()
        await engine.set_cores((min(psutil.Process().cpu_affinity() or [0]),))
        for number in range(1, times + 1):
            lost = worker_of(engine)
            generation = engine.submit(EngineRequest(PROMPT, 200))
            lost.send_signal(how)
            with pytest.raises(EngineError, match="it is being started again"):
                await generation.result()
            assert (engine.trouble, engine.num_deaths) == ("died and is being started again", number)
            await engine.recovered()
            assert (engine.trouble, engine.failure) == (None, None)
            assert (await engine.submit(EngineRequest(PROMPT, 20)).result()).tokens == expected
            assert not lost.is_running()
            assert len(worker_of(engine).cpu_affinity() or [0]) == 1


async def test_a_worker_that_does_not_come_back_is_given_up(
    model_folder: ModelFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervisor, "_MAX_RESTARTS", 2)
    folder = tmp_path / "model"
    shutil.copytree(model_folder("qwen3"), folder)
    async with running(folder) as engine:
        engine.keep_alive()
        shutil.rmtree(folder)
        with caplog.at_level(logging.WARNING):
            worker_of(engine).kill()
            await until(lambda: engine.failure is not None)
            with pytest.raises(EngineError, match="2 restarts failed"):
                await engine.recovered()
        assert engine.trouble == "died"
        assert engine.worker_pid is None
        assert sum("could not be started again" in record.message for record in caplog.records) == 2
        with pytest.raises(EngineError, match="restarts failed"):
            await engine.submit(EngineRequest(PROMPT, 2)).result()


class ScriptedWorker:
    """A worker process that sends one batch of messages a turn of the event loop; None: it has ended."""

    pid, running = 1, True

    def __init__(self, *batches: list[FromWorker] | None) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._batches: list[list[FromWorker] | None] = []
        self.say(*batches)

    def say(self, *batches: list[FromWorker] | None) -> None:
        self._batches += batches
        self._theirs.send(b"." * len(batches))

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> list[FromWorker] | None:
        self._ours.recv(1)
        return self._batches.pop(0)

    def send(self, message: ToWorker) -> None:
        if isinstance(message, Shutdown):
            self.say(None)

    def detach(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fileno())

    def kill(self) -> None:
        raise AssertionError("it does not hang")

    def end(self) -> Ending:
        self._ours.close()
        self._theirs.close()
        return Ending(0, "")


async def test_a_new_worker_that_dies_as_soon_as_it_is_ready_is_no_recovery() -> None:
    ready: list[FromWorker] = [Ready(64, "float32", 0.01)]
    first, last = ScriptedWorker(ready), ScriptedWorker(ready)
    workers = [first, ScriptedWorker(ready, None), last]
    launched: list[ScriptedWorker] = []

    def launch() -> tuple[WorkerProcess, ToWorker]:
        launched.append(workers[len(launched)])
        return cast("WorkerProcess", launched[-1]), GetStats(0)

    waiting: list[asyncio.Task[None]] = []

    def lose(reason: str | None) -> None:
        if reason is not None:
            waiting.append(asyncio.create_task(served.recovered()))

    served = Supervisor(
        "target", EngineSettings(model="none"), launch=launch, handle=lambda message: None, lost=lose
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        served.open()
        await served.ready()
        served.keep_alive()
        first.say(None)
        await until(lambda: bool(waiting))
        await asyncio.gather(*waiting)
        assert launched == workers
        assert (served.num_deaths, served.trouble, served.failure) == (2, None, None)
        await served.close()


async def test_an_engine_closes_while_its_worker_is_started_again(model_folder: ModelFolder) -> None:
    async with running(model_folder("qwen3")) as engine:
        engine.keep_alive()
        worker_of(engine).kill()
        await until(lambda: engine.num_deaths == 1 and engine.worker_pid is not None)
        second = worker_of(engine)
        await engine.close()
        assert not second.is_running()


SLOW_HOST = """
import time
from reason_spec.engines.torch.host import load as load_torch

def load(start, num_threads, tell):
    loaded = load_torch(start, num_threads, tell)
    step = loaded.loop.step

    def slow_step():
        time.sleep(SECONDS)
        return step()

    loaded.loop.step = slow_step
    return loaded
"""


class SlowEngine(TorchEngine):
    host: ClassVar[str] = "slow_host"


@pytest.mark.slow
async def test_one_long_pass_is_not_taken_for_hanging(
    model_folder: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where a request is cancelled meanwhile."""
    (tmp_path / "slow_host.py").write_text(SLOW_HOST.replace("SECONDS", str(2 * HANG_SECONDS)))
    monkeypatch.syspath_prepend(tmp_path)
    async with running(model_folder("qwen3"), SlowEngine) as engine:
        pid = engine.worker_pid
        generations = [engine.submit(EngineRequest(PROMPT, 1)) for _ in range(2)]
        await asyncio.sleep(1.0)
        generations[1].cancel()
        assert (await generations[0].result()).finish == "length"
        await generations[1].closed()
        assert engine.worker_pid == pid
        assert engine.failure is None


DRIVER = """
import asyncio, signal, sys
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.settings import EngineSettings

async def main():
    engine = TorchEngine("target", EngineSettings(model=sys.argv[1]))
    await engine.start()
    print(engine.worker_pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stopped process sees no end of its parent")
async def test_a_stopped_worker_does_not_outlive_a_parent_that_is_killed(model_folder: ModelFolder) -> None:
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, str(model_folder("qwen3")), stdout=asyncio.subprocess.PIPE
    )
    assert driver.stdout is not None
    try:
        worker = psutil.Process(int(await driver.stdout.readline()))
        worker.suspend()
    finally:
        driver.kill()
        await driver.wait()
    await until(lambda: not is_alive(worker))


# --- what counts as hanging ---------------------------------------------------------------------------


def ticks(pulse: Pulse, seconds: float) -> list[str]:
    reasons = [pulse.tick() for _ in range(round(seconds / TICK_SECONDS))]
    return [reason for reason in reasons if reason is not None]


def test_silence_is_trouble_first_and_then_a_reason_to_kill() -> None:
    pulse = Pulse(hang_timeout=30)
    assert (ticks(pulse, 9), pulse.silence) == ([], None)
    assert (ticks(pulse, 3), pulse.silence) == ([], 12)
    pulse.beat()
    assert pulse.silence is None
    assert not ticks(pulse, 30)
    assert "no sign of life" in ticks(pulse, 1)[0]


def test_a_silent_worker_confirms_a_cancellation_within_seconds_or_is_killed() -> None:
    pulse = Pulse(hang_timeout=30)
    pulse.cancelled(1)
    pulse.cancelled(2)
    pulse.confirmed(1)
    assert not ticks(pulse, 10)
    assert "no sign of life" in ticks(pulse, 1)[0]


def test_a_worker_with_heartbeats_has_minutes_for_a_cancellation() -> None:
    pulse = Pulse(hang_timeout=30)
    pulse.cancelled(1)
    reasons = []
    for _ in range(700):
        pulse.beat()
        reasons += ticks(pulse, 1)
    assert "no cancellation for 600 seconds" in reasons[0]
    assert 90 <= len(reasons) / 2 <= 110


def test_a_signal_is_described_with_a_remedy_where_memory_may_have_run_out() -> None:
    killed = Ending(-signal.SIGKILL, "").describe()
    assert killed.startswith("it was ended by SIGKILL")
    assert "smaller cache_tokens" in killed
    assert "reason-spec doctor" in killed
    assert Ending(-40, "").describe() == "it was ended by signal 40"
