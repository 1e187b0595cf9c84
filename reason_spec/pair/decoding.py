"""Greedy decoding of many problems at once, for measuring the models while and after they train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from reason_spec.pair.generator import STEP_SEPARATOR
from reason_spec.pair.model import load_model
from reason_spec.pair.tokenizer import chat_prompt, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

MAX_SOLUTION_TOKENS = 640
_MAX_STEP_TOKENS = 120


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
    ends: Sequence[int] = (),
    temperature: float = 0.0,
    batch_rows: int = 64,
    note: Callable[[int], None] | None = None,
) -> list[str]:
    """Return the continuation of each prompt up to the end of the text or a token of ``ends``.

    ``max_new_tokens`` is by default what a worked solution can need. ``temperature`` 0 is greedy;
    else the global random state of torch decides. ``note`` is called with the number of finished prompts.
    """
    model, tokenizer = loaded
    limit = max_new_tokens or MAX_SOLUTION_TOKENS
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
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
        output = model.generate(**encoded, max_new_tokens=limit, eos_token_id=[eos, *ends], **sampling)
        new = output[:, encoded["input_ids"].shape[1] :]
        for i, text in zip(chosen, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            texts[i] = text
        if note is not None:
            note(min(start + batch_rows, len(order)))
    return texts


def solve_greedily(
    loaded: LoadedModel, questions: Sequence[str], note: Callable[[int], None] | None = None
) -> list[str]:
    """Return the greedy solution of each question."""
    return complete(loaded, [chat_prompt(question) for question in questions], note=note)


def next_steps(
    loaded: LoadedModel, prefixes: Sequence[str], note: Callable[[int], None] | None = None
) -> list[str]:
    """Return the greedy next step after each prefix, without its separator."""
    vocabulary = loaded.tokenizer.get_vocab().values()
    ends = [token for token in vocabulary if STEP_SEPARATOR in loaded.tokenizer.decode([token])]
    texts = complete(loaded, prefixes, max_new_tokens=_MAX_STEP_TOKENS, ends=ends, note=note)
    return [text.split(STEP_SEPARATOR)[0] for text in texts]
