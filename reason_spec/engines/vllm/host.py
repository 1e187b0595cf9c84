"""Loads a model into vLLM in the worker process."""

from __future__ import annotations

import time
from typing import Any

import torch

from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.engines.vllm.arguments import engine_arguments, require_vllm
from reason_spec.engines.vllm.loop import VllmLoop
from reason_spec.engines.worker.loop import Loaded
from reason_spec.engines.worker.messages import Ready, Start
from reason_spec.errors import EngineError

_TIMED_PASSES = 8


def load(start: Start, num_threads: int) -> Loaded:
    """Load the model.

    Raises:
        EngineError: vLLM refuses the model or an argument; the message holds its own words.
    """
    settings = start.settings
    # vLLM replaces it by a function that does nothing.
    set_num_threads = torch.set_num_threads
    set_num_threads(num_threads)
    tokenizer = load_tokenizer(settings.model, settings.revision)
    arguments = engine_arguments(settings, require_vllm())
    engine = _make_engine(arguments)
    takes_hints = "worker_extension_cls" in arguments
    if takes_hints:
        engine.collective_rpc("reason_spec_bind")
    config = engine.vllm_config.model_config
    loop = VllmLoop(
        engine,
        tokenizer,
        vocab_size=config.get_vocab_size(),
        max_context=config.max_model_len,
        takes_hints=takes_hints,
        set_num_threads=set_num_threads,
    )
    ready = Ready(
        vocab_size=config.get_vocab_size(),
        max_context=config.max_model_len,
        tokenizer_id=tokenizer.tokenizer_id,
        device=str(engine.vllm_config.device_config.device_type),
        dtype=str(config.dtype).removeprefix("torch."),
        num_threads=num_threads,
        seconds_per_token_pass=_time_pass(engine),
    )
    return Loaded(ready, loop)


def _make_engine(arguments: dict[str, Any]) -> Any:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except TypeError as error:
        raise EngineError(f"vLLM does not know an argument of the setting `vllm`: {error}") from None
    except Exception as error:
        raise EngineError(f"vLLM could not be started: {type(error).__name__}: {error}") from error


def _time_pass(engine: Any) -> float:
    """Return the seconds of a pass with one token, the median over a short text."""
    from vllm import SamplingParams

    parameters = SamplingParams(
        temperature=0.0, max_tokens=_TIMED_PASSES + 1, ignore_eos=True, detokenize=False
    )
    engine.add_request("timing", {"prompt_token_ids": [1]}, parameters)
    seconds = []
    while engine.has_unfinished_requests():
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[len(seconds[1:]) // 2]
