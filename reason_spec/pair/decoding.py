"""Greedy decoding of many problems at once, for measuring the models while and after they train."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from reason_spec.pair.tokenizer import chat_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

_ANSWER = re.compile(r"The answer is (\d+)\.$")
MAX_SOLUTION_TOKENS = 480


def parse_answer(solution: str) -> int | None:
    """Return the number of the answer step that ends ``solution``, None where there is none."""
    match = _ANSWER.search(solution)
    return int(match[1]) if match else None


@torch.inference_mode()
def complete_greedily(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    max_new_tokens: int | None = None,
    batch_rows: int = 64,
) -> list[str]:
    """Return the greedy continuation of each prompt up to the end of the text.

    ``max_new_tokens`` is by default what a worked solution can need.
    """
    limit = max_new_tokens or MAX_SOLUTION_TOKENS
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for start in range(0, len(order), batch_rows):
        chosen = order[start : start + batch_rows]
        encoded = tokenizer(
            [prompts[i] for i in chosen], padding=True, padding_side="left", return_tensors="pt"
        )
        encoded = encoded.to(model.device)
        output = model.generate(**encoded, max_new_tokens=limit, do_sample=False)
        new = output[:, encoded["input_ids"].shape[1] :]
        for i, text in zip(chosen, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            texts[i] = text
    return texts


def solve_greedily(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str]
) -> list[str]:
    """Return the greedy solution of each question."""
    return complete_greedily(model, tokenizer, [chat_prompt(question) for question in questions])
