"""What crosses to vLLM's workers where they are processes of their own; vLLM itself is not needed."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reason_spec.engines.text_updates import BeginText, CloseText, ExtendText, ForgetTexts, Opening
from reason_spec.engines.vllm import host
from reason_spec.engines.vllm.loop import VllmLoop
from reason_spec.engines.vllm.proposer import HintProposer, WorkerExtension
from reason_spec.engines.worker.messages import Start
from reason_spec.settings import EngineSettings, SuffixSettings
from reason_spec.settings.engines import VllmSettings
from reason_spec.speculation.goodput import BatchTime

TEXT = tuple(range(20, 60))


class Worker(WorkerExtension):
    def __init__(self) -> None:
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=8),
            model_config=SimpleNamespace(max_model_len=256),
        )
        self.proposer = HintProposer(config)
        self.model_runner = SimpleNamespace(drafter=self.proposer, requests={})


class ParallelEngine:
    """A ``vllm.LLMEngine`` with two workers, which get copies of what is sent."""

    def __init__(self) -> None:
        self.workers = [Worker(), Worker()]
        scheduler = SimpleNamespace(schedule=self._schedule, requests={})
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.vllm_config = SimpleNamespace(
            device_config=SimpleNamespace(device_type="cuda"),
            model_config=SimpleNamespace(
                max_logprobs=20, get_vocab_size=lambda: 272, max_model_len=256, dtype="torch.float32"
            ),
        )

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(worker, method)(*pickle.loads(pickle.dumps(args))) for worker in self.workers]

    def step(self) -> list[Any]:
        self.engine_core.engine_core.scheduler.schedule()
        return []

    def _schedule(self) -> Any:
        drafts = {"a": [1, 2, 3], "b": []}
        return SimpleNamespace(
            total_num_scheduled_tokens=5,
            scheduled_spec_decode_tokens=drafts,
            num_scheduled_tokens={name: 1 + len(tokens) for name, tokens in drafts.items()},
        )


@pytest.fixture
def engine() -> ParallelEngine:
    return ParallelEngine()


def test_earlier_texts_are_opened_and_told_of_in_each_worker(
    engine: ParallelEngine, model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_make_engine", lambda _: engine)
    monkeypatch.setattr(host, "require_vllm", lambda: "0.32.0")
    monkeypatch.setattr(host, "_warm_up", lambda *_: 0.01)
    settings = EngineSettings(
        model=str(model_folder("qwen3-wide")),
        kind="vllm",
        vllm=VllmSettings(arguments={"tensor_parallel_size": 2}),
    )
    loaded = host.load(Start(settings, None, SuffixSettings(use="tokens")), 1, lambda _: None)
    assert loaded.update_text is not None
    loaded.update_text(BeginText(1, Opening("a", "", (("prompt", TEXT[:4]),))))
    loaded.update_text(ExtendText(1, TEXT[4:]))
    loaded.update_text(CloseText(1))
    loaded.update_text(BeginText(2, Opening("a", "", (("prompt", TEXT[:20]),))))
    for worker in engine.workers:
        earlier = worker.proposer._earlier
        assert earlier is not None
        assert earlier.propose(2, TEXT[:20], 4, tree=False).tokens == TEXT[20:24]
    first, second = (worker.proposer._earlier for worker in engine.workers)
    assert first is not second
    loaded.update_text(CloseText(2))
    loaded.update_text(ForgetTexts(""))
    loaded.update_text(BeginText(3, Opening("a", "", (("prompt", TEXT[:20]),))))
    assert all(
        worker.proposer._earlier is not None
        and not worker.proposer._earlier.propose(3, TEXT[:20], 4, tree=False).tokens
        for worker in engine.workers
    )


def test_workers_know_how_long_passes_take_now(
    engine: ParallelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * next(clock))  # each pass takes 1 ms
    loop = VllmLoop(
        engine,
        tokenizer=SimpleNamespace(),
        vocab_size=272,
        max_context=256,
        takes_hints=True,
        set_num_threads=lambda _: None,
    )
    loop._scores[0] = SimpleNamespace()  # type: ignore[assignment]
    times: list[BatchTime | None] = []
    for _ in range(200):
        loop.step()
        for worker in engine.workers:
            if worker.proposer._time not in times:
                times.append(worker.proposer._time)
    # Two workers, each with the times at the start, and then after every 16 of the 200 passes.
    assert len(times) == 2 * 13
    assert None not in times
    newest = engine.workers[0].proposer._time
    assert newest is not None
    assert newest.seconds(5, 2) == loop.pass_times.batch_time.seconds(5, 2) > 0
