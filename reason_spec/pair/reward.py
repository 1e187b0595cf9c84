"""The reward head: the chance that a solution is right so far, from the hidden state at a step's end.

A process reward model (Lightman et al. 2023, "Let's Verify Step by Step") in the smallest form: two
layers on top of the target's last hidden state. `reason_spec.lab.pair.reward_training` makes it.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache

from reason_spec.errors import DataError
from reason_spec.pair import embedded_path, reward_path
from reason_spec.pair.decoding import LoadedModel, load_pair_model
from reason_spec.pair.generator import STEP_SEPARATOR
from reason_spec.pair.tokenizer import chat_prompt

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

WEIGHTS_NAME, CONFIG_NAME = "reward.safetensors", "config.json"
_WIDTH = 128


class RewardHead(nn.Module):
    """Hidden states [n, width] to the logit [n] of "right so far"."""

    def __init__(self, hidden_size: int, width: int = _WIDTH) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.outer(functional.gelu(self.inner(hidden)))
        return logits[..., 0]


def fingerprint(model: Qwen3ForCausalLM) -> str:
    """Return a digest of the weights that decide the hidden states, in bfloat16, as they are stored."""
    digest = hashlib.sha256()
    for name, value in sorted(model.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.to(torch.bfloat16).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


@torch.inference_mode()
def hidden_where_steps_end(target: LoadedModel, texts: Sequence[str], rows: int = 32) -> list[Tensor]:
    """Return, for each text, the last hidden state at each token that ends a step: [steps, width]."""
    tokenizer = target.tokenizer
    ends = [i for i in tokenizer.get_vocab().values() if STEP_SEPARATOR in tokenizer.decode([i])]
    found: list[Tensor] = []
    for start in range(0, len(texts), rows):
        encoded = tokenizer(
            list(texts[start : start + rows]), padding=True, padding_side="right", return_tensors="pt"
        )
        tokens = encoded["input_ids"].to(target.model.device)
        # Padding stands on the right, where causal attention never sees it.
        hidden = target.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        is_end = torch.isin(tokens, torch.tensor(ends, device=tokens.device))
        found += [row[mask].float().cpu() for row, mask in zip(hidden, is_end, strict=True)]
    return found


class _CachedText(NamedTuple):
    """The tokens of the text read last, and their KV cache."""

    tokens: list[int]
    cache: DynamicCache


class RewardReader:
    """Rates answers as they grow: only the tokens new since the last call are read.

    Args:
        target: the model whose states the head reads.
        head: what rates them.
        max_questions: number of questions whose KV caches are kept; the least recently used goes first.
    """

    def __init__(self, target: LoadedModel, head: RewardHead, max_questions: int = 64) -> None:
        self._target = target
        self._head = head
        self._max_questions = max_questions
        self._read: OrderedDict[str, _CachedText] = OrderedDict()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[tuple[str, str]]) -> list[float]:
        """Return the chance that each answer is right so far; texts are pairs of question and answer.

        A last step without its blank line is read as if it had one.
        """
        states = [self._state_at_end(*text) for text in texts]
        chances: list[float] = self._head(torch.stack(states)).sigmoid().tolist()
        return chances

    def _state_at_end(self, question: str, answer: str) -> Tensor:
        """Return the last hidden state at the end of an answer, [width]."""
        model, tokenizer = self._target
        text = chat_prompt(question) + answer.removesuffix(STEP_SEPARATOR) + STEP_SEPARATOR
        tokens: list[int] = tokenizer(text)["input_ids"]
        before = self._read.pop(question, None) or _CachedText([], DynamicCache(config=model.config))
        # The last token is always read again, for its hidden state.
        pairs = enumerate(zip(tokens, before.tokens, strict=False))
        num_shared = next((place for place, (new, old) in pairs if new != old), len(before.tokens))
        num_known = min(num_shared, len(tokens) - 1)
        if num_known < len(before.tokens):
            before.cache.crop(num_known - len(before.tokens))
        output = model.model(
            input_ids=torch.tensor([tokens[num_known:]], device=model.device),
            past_key_values=before.cache,
            use_cache=True,
        )
        self._read[question] = _CachedText(tokens, before.cache)
        if len(self._read) > self._max_questions:
            self._read.popitem(last=False)
        return cast("Tensor", output.last_hidden_state[0, -1].float().cpu())


def load_embedded_reward() -> RewardReader:
    """Load the embedded target and its head.

    Raises:
        DataError: weights are missing, or belong to another target.
    """
    target = load_pair_model(embedded_path("target"))
    return RewardReader(target, load_reward_head(reward_path(), target.model))


def load_reward_head(folder: Path, target: Qwen3ForCausalLM) -> RewardHead:
    """Load a head for ``target``.

    Raises:
        DataError: a file is missing or unreadable, or the head was trained on another target.
    """
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        head = RewardHead(config["hidden_size"], config["width"])
        head.load_state_dict(load_file(folder / WEIGHTS_NAME))
        trained_on = config["target"]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{folder} holds no reward head: {error}. Make one with: "
            "python -m reason_spec.lab.pair.reward_training --out DIR"
        ) from error
    if trained_on != fingerprint(target):
        raise DataError(
            f"The reward head in {folder} was trained on another target. Make one for this target with: "
            "python -m reason_spec.lab.pair.reward_training --target FOLDER --out DIR"
        )
    return head.eval()
