"""Decoding of many problems at once by one model of the pair, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from reason_spec.pair.model import load_model
from reason_spec.pair.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

MAX_SOLUTION_TOKENS = 640


class LoadedModel(NamedTuple):
    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast


def load_pair_model(folder: Path) -> LoadedModel:
    """Load one model of the pair, in float32, with its tokenizer."""
    return LoadedModel(load_model(folder), load_tokenizer(folder))


@torch.inference_mode()
def complete(
    loaded: LoadedModel,
    prompts: Sequence[str],
    *,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    batch_rows: int = 64,
) -> list[str]:
    """Return the continuation of each prompt up to the end of the text.

    ``max_new_tokens`` is by default what a worked solution can need. ``temperature`` 0 is greedy;
    else the global random state of torch decides.
    """
    model, tokenizer = loaded
    limit = max_new_tokens or MAX_SOLUTION_TOKENS
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for start in range(0, len(order), batch_rows):
        chosen = order[start : start + batch_rows]
        encoded = tokenizer(
            [prompts[i] for i in chosen], padding=True, padding_side="left", return_tensors="pt"
        )
        encoded = encoded.to(model.device)
        output = model.generate(**encoded, max_new_tokens=limit, **sampling)
        new = output[:, encoded["input_ids"].shape[1] :]
        for i, text in zip(chosen, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            texts[i] = text
    return texts
