"""A small language model that reads a question and the statements of a thinking along."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reason_spec.engines.machine import bfloat16_time_on_cpu
from reason_spec.engines.model_files import not_loadable, resolve_model
from reason_spec.errors import ReasonSpecError
from reason_spec.loading import LOADING, load_causal_lm

States = NDArray[np.float32]
READING_LAYERS: Final = 0.7
"""Share of the layers whose states are read. Of SmolLM2-135M's 30 the states behind 21 tell most."""
_MOST_TOKENS: Final = 2000
"""Of question and statements; what is beyond is not read."""
_INSTRUCTION: Final = (
    "\n\nWork through the problem step by step and finish with the final answer in \\boxed{}."
)
"""That of the prompt `boxed`, which `models:smollm2-gsm8k` was trained with."""
_KEPT_QUESTIONS: Final = 8


class ReadingModel:
    """The lower layers of a causal language model, on the CPU; ``width`` is that of its states.

    In bfloat16 where this machine is faster at it, else in float32.

    Raises:
        EngineError: the model is not installed, or cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        import torch
        from transformers import AutoTokenizer

        folder = resolve_model("target", name)
        dtype = torch.bfloat16 if bfloat16_time_on_cpu() < 1 else torch.float32
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            module: Any = load_causal_lm(folder, dtype).get_decoder()
            layers = round(READING_LAYERS * len(module.layers))
            # What follows the layer is not computed. Its states are read before any norm.
            module.layers = module.layers[:layers]
            module.norm = torch.nn.Identity()
        except Exception as error:
            raise not_loadable(name, error) from error
        self._module, self._tokenizer, self.num_layers = module.eval(), tokenizer, layers
        self.name, self.width = name, int(module.config.hidden_size)
        self._questions: dict[str, tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def begin(self, question: str) -> Reading:
        """Read a question; one of the last few is not computed again."""
        with self._lock:
            kept = self._questions.pop(question, None)
        if kept is None:
            from transformers import DynamicCache

            tokens, cache = self._prompt(question)[:_MOST_TOKENS], DynamicCache()
            self.states_of(tokens, cache)
            kept = cache, len(tokens)
        with self._lock:
            self._questions[question] = kept
            while len(self._questions) > _KEPT_QUESTIONS:
                del self._questions[next(iter(self._questions))]
        return Reading(self, copy.deepcopy(kept[0]), kept[1])

    def _prompt(self, question: str) -> list[int]:
        content = question.strip() + _INSTRUCTION
        if not self._tokenizer.chat_template:
            return self.tokens_of(f"{content}\n")
        chat = [{"role": "user", "content": content}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return self.tokens_of(text)

    def tokens_of(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def states_of(self, tokens: Sequence[int], cache: Any) -> States:
        """Read tokens behind those of a cache: ``[tokens, width]``."""
        import torch

        with torch.inference_mode():
            read = self._module(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
            return np.asarray(read.last_hidden_state[0].float().numpy(), np.float32)


class Reading:
    """One thinking that is read along."""

    def __init__(self, model: ReadingModel, cache: Any, num_tokens: int) -> None:
        self._model, self._cache, self._num_tokens = model, cache, num_tokens
        self._is_full = False

    def read(self, lines: Sequence[str]) -> States:
        """Read lines; return the state behind each, ``[lines, width]``: fewer once there is no room."""
        tokens: list[int] = []
        ends = []
        for line in lines:
            encoded = self._model.tokens_of(line)
            self._is_full = self._is_full or self._num_tokens + len(encoded) > _MOST_TOKENS
            if self._is_full:
                break
            tokens += encoded
            self._num_tokens += len(encoded)
            ends.append(len(tokens) - 1)
        if not tokens:
            return np.zeros((0, self._model.width), np.float32)
        return self._model.states_of(tokens, self._cache)[ends]


@cache
def _load(name: str) -> ReadingModel:
    return ReadingModel(name)


def load_reading_model(name: str) -> ReadingModel:
    """Return a small model, loaded once.

    Raises:
        EngineError: it is not installed, or cannot be loaded.
    """
    with LOADING:
        return _load(name)


def is_installed(name: str) -> bool:
    """Return whether a small model and what it is made of are on this machine."""
    try:
        resolve_model("target", name)
    except ReasonSpecError:
        return False
    return True
