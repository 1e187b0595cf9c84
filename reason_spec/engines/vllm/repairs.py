"""Repairs sampling in vLLM's CPU build.

vLLM 0.32 samples a token for a prompt of which only a part is read so far, and takes its random numbers back
by the offset of the request's generator, which generators of CPUs do not have: a request with a seed whose
prompt is read in parts ends the engine.

It also expands the temperature, top-k and top-p of each request to its drafted tokens. On CPUs its kernel
writes into a copy if the tensor is not int64, so the result is uninitialized memory: samples above
temperature 0 are drawn at an arbitrary temperature, and top-k or top-p end the engine with an index out of
bounds. A pass with truncation and without drafts ends it too.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("vllm.reason_spec")
"""vLLM prints what is logged below its own name."""

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_RUNNER = "vllm.v1.worker.gpu_model_runner"


def repair_worker(_: Any) -> list[str]:
    """Repair the process of one of vLLM's workers."""
    return repair_sampling()


def repair_sampling() -> list[str]:
    """Replace the faulty functions in this process; return their names."""
    return [*repair_seeds_of_partly_read_prompts(), *repair_sampling_with_drafts()]


def repair_seeds_of_partly_read_prompts() -> list[str]:
    """Have a model runner take random numbers back by the state of the generator; return what was replaced.

    Versions of vLLM without these methods are left as they are.
    """
    try:
        runner: Any = importlib.import_module(_RUNNER).GPUModelRunner
        sample, keep_books = runner._sample, runner._bookkeeping_sync
    except (ImportError, AttributeError):
        logger.warning("vLLM has no %s as it was tested with; seeds are not checked", _RUNNER)
        return []
    if sample.__module__ == __name__:
        return []

    def sample_and_take_back(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = _generators_of_partly_read(self).values()
        states = [generator.get_state() for generator in generators]
        output = sample(self, *args, **kwargs)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        return output

    def keep_books_without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        held, taken = self.input_batch.generators, _generators_of_partly_read(self)
        for row in taken:
            del held[row]
        try:
            return keep_books(self, *args, **kwargs)
        finally:
            held.update(taken)

    runner._sample, runner._bookkeeping_sync = sample_and_take_back, keep_books_without_offsets
    return ["_sample", "_bookkeeping_sync"]


def _generators_of_partly_read(runner: Any) -> dict[int, torch.Generator]:
    """Return the generators of a pass's rows whose prompt is not read to its end, by row."""
    discarded = runner.discard_request_mask.np
    return {row: held for row, held in runner.input_batch.generators.items() if discarded[row]}


def repair_sampling_with_drafts() -> list[str]:
    """Replace the functions that sample beside drafts; return their names.

    Versions of vLLM without these functions are left as they are. The kernel is tried when it is first
    needed: vLLM may fork this process, and threads of OpenMP do not survive that.
    """
    try:
        sampler: Any = importlib.import_module(_SAMPLER)
        expand, constrain = sampler.expand_batch_to_tokens, sampler.apply_sampling_constraints
    except (ImportError, AttributeError):
        logger.warning("vLLM has no %s as it was tested with; samples with drafts are not checked", _SAMPLER)
        return []
    if constrain.__module__ == __name__:
        return []

    def constrain_unless_empty(logits: Tensor, cu_num_draft_tokens: Tensor, sampling_metadata: Any) -> Tensor:
        if logits.shape[0] == 0:
            return logits
        constrained: Tensor = constrain(logits, cu_num_draft_tokens, sampling_metadata)
        return constrained

    @lru_cache(maxsize=1)
    def right_expand() -> Callable[..., Tensor]:
        if _expands_rightly(expand):
            kernel: Callable[..., Tensor] = expand
            return kernel
        logger.info("vLLM's expand_batch_to_tokens is replaced: it computes wrong values on this machine")
        return expand_batch_to_tokens

    def expand_rightly(*args: Any, **kwargs: Any) -> Tensor:
        return right_expand()(*args, **kwargs)

    sampler.apply_sampling_constraints = constrain_unless_empty
    sampler.expand_batch_to_tokens = expand_rightly
    return ["apply_sampling_constraints", "expand_batch_to_tokens"]


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Return ``x`` [requests] repeated for the tokens of each request, [tokens].

    ``cu_num_tokens`` [requests] are running totals; ``replace_from`` becomes ``replace_to``.
    """
    counts = torch.diff(cu_num_tokens.long(), prepend=cu_num_tokens.new_zeros(1, dtype=torch.long))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def _expands_rightly(expand: Callable[[Tensor, Tensor, int], Tensor]) -> bool:
    """Try it twice with different values: uninitialized memory may hold the first ones by chance."""
    totals = torch.tensor([2, 5], dtype=torch.int32)
    try:
        return all(
            torch.equal(expand(given, totals, 5), expand_batch_to_tokens(given, totals, 5))
            for given in (torch.tensor([0.25, 0.5]), torch.tensor([0.75, 1.5]))
        )
    except (RuntimeError, AttributeError) as error:
        # A missing or failing kernel would end the engine at the first sample with drafts.
        logger.warning("vLLM's expand_batch_to_tokens fails and is replaced: %s", error)
        return False
