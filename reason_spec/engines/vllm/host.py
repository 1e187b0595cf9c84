"""Loads a model into vLLM in the worker process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from pydantic import ValidationError

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.vllm.arguments import engine_arguments, require_vllm
from reason_spec.engines.vllm.loop import VllmLoop
from reason_spec.engines.vllm.repairs import repair_worker
from reason_spec.engines.worker.loop import Loaded
from reason_spec.engines.worker.messages import Ready, Start
from reason_spec.errors import EngineError
from reason_spec.types import Prefix, Sampling

_TIMED_PASSES = 8
_WARM_TOKENS = 16
"""Passes of up to so many tokens are run once: oneDNN keeps the threads with which it made the first."""


def load(start: Start, num_threads: int, report: Callable[[str], None]) -> Loaded:
    """Load the model.

    Raises:
        EngineError: vLLM refuses the model or an argument; the message quotes it.
    """
    settings = start.settings
    # vLLM replaces this function by one that does nothing.
    set_num_threads = torch.set_num_threads
    set_num_threads(num_threads)
    tokenizer = load_tokenizer(settings.model, settings.revision)
    arguments = engine_arguments(settings, require_vllm())
    compiles = not arguments.get("enforce_eager")
    report("loading the weights" + (" and compiling, which takes a minute or more" if compiles else ""))
    engine = _make_engine(arguments)
    report("timing passes")
    if engine.vllm_config.device_config.device_type == "cpu":
        engine.collective_rpc(repair_worker)
    takes_hints = "worker_extension_cls" in arguments
    if takes_hints:
        if start.suffix is not None:
            report("preparing the suffix cache")
        engine.collective_rpc("reason_spec_bind", args=(start, tokenizer.tokenizer_id))
    config = engine.vllm_config.model_config

    def make_loop() -> VllmLoop:
        return VllmLoop(
            engine,
            tokenizer,
            vocab_size=config.get_vocab_size(),
            max_context=config.max_model_len,
            takes_hints=takes_hints,
            set_num_threads=set_num_threads,
        )

    def update_text(update: TextUpdate) -> None:
        engine.collective_rpc("reason_spec_update_text", args=(update,))

    ready = Ready(
        max_context=config.max_model_len,
        dtype=str(config.dtype).removeprefix("torch."),
        seconds_per_token_pass=_warm_up(make_loop(), config.max_model_len),
    )
    return Loaded(ready, make_loop(), update_text if takes_hints else None)


def _make_engine(arguments: dict[str, Any]) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except TypeError as error:
        raise EngineError(f"vLLM does not know an argument of the setting `vllm`: {error}") from None
    except Exception as error:
        raise EngineError(f"vLLM could not be started: {_reason_of(error)}") from error


def _reason_of(error: Exception) -> str:
    """Return vLLM's reason for a refusal, in one line."""
    if isinstance(error, ValidationError):
        return "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
    return " ".join(f"{type(error).__name__}: {error}".split())


def _warm_up(loop: VllmLoop, max_context: int) -> float:
    """Do all kinds of work once, since the first time is slow; return the seconds of a pass of one token."""
    prefix = Prefix(tuple(range(1, max(2, min(41, max_context - _TIMED_PASSES - 1)))))
    hint = tuple(range(1, 9))
    loop.score(0, prefix, hint)
    for num_tokens in range(1, min(_WARM_TOKENS, max_context - 1) + 1):
        loop.submit(4, EngineRequest(Prefix(tuple(range(1, num_tokens + 1))), 1))
        _run(loop)
    loop.submit(1, EngineRequest(prefix, 6, hint=hint, token_drafter="prompt_lookup"))
    loop.submit(
        2, EngineRequest(prefix, 6, sampling=Sampling(temperature=0.6, top_k=4, top_p=0.9), hint=hint)
    )
    _run(loop)
    loop.submit(3, EngineRequest(prefix, _TIMED_PASSES + 1))
    seconds = _run(loop)[1:]
    loop.reset_prefix_cache()
    return statistics.median(seconds)


def _run(loop: VllmLoop) -> list[float]:
    """Run to the end of all work; return the seconds of each pass."""
    seconds = []
    while loop.has_work:
        started = time.perf_counter()
        loop.step()
        seconds.append(time.perf_counter() - started)
    return seconds
