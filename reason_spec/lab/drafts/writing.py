"""Answers that a draft in training writes itself, to be trained on what the target would say there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reason_spec.engines.machine import mixed_precision
from reason_spec.lab.drafts.texts import TrainingText


def written_at(temperatures: Sequence[float]) -> tuple[float, ...]:
    """Return the temperatures at which a draft writes, by those of the target's answers.

    With a single one half of what it writes is greedy, and half is not.
    """
    return tuple(temperatures) if len(temperatures) > 1 else (0.0, temperatures[0] or 1.0)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a draft writes answers.

    Attributes:
        end_ids: tokens that end an answer.
        max_tokens: tokens of an answer at most.
        temperatures: of the answers, as many at each; 0 is greedy.
    """

    end_ids: tuple[int, ...]
    max_tokens: int
    temperatures: tuple[float, ...]

    @torch.no_grad()
    def answers(
        self, module: Any, prompts: Sequence[tuple[int, ...]], rng: random.Random
    ) -> list[TrainingText]:
        """Return an answer to each prompt, all written at once with a KV cache, and at one temperature.

        Args:
            module: a language model of transformers.
            rng: decides which, and what is sampled.
        """
        from transformers import GenerationConfig

        longest = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        temperature = rng.choice(self.temperatures)
        sampling = {"temperature": temperature, "top_k": 0} if temperature else {}
        config = GenerationConfig(
            do_sample=temperature > 0,
            max_new_tokens=self.max_tokens,
            eos_token_id=list(self.end_ids) or None,
            pad_token_id=0,
            **sampling,
        )
        device = module.device
        with torch.random.fork_rng(), mixed_precision(device):
            torch.manual_seed(rng.getrandbits(32))
            written = module.generate(
                tokens.to(device), attention_mask=mask.to(device), generation_config=config
            )
        return [
            TrainingText(prompt, self._until_end(row))
            for prompt, row in zip(prompts, written[:, longest:].tolist(), strict=True)
        ]

    def _until_end(self, tokens: list[int]) -> tuple[int, ...]:
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), len(tokens))
        return tuple(tokens[: end + 1])
