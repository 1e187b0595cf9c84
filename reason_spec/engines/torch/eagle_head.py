"""A draft head on the target's hidden states (EAGLE-3, arXiv 2503.01840).

The head is one decoder layer. At place j it sees the target's hidden states of three layers at place j - 1,
joined by a linear layer to one feature, and the embedding of token j, and predicts token j + 1. While it
drafts, its own hidden state stands for the feature of the next place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.engines.eagle_files import WEIGHTS, HeadConfig, read_head_config
from reason_spec.errors import EngineError

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of [..., heads, head size] queries, keys and values; returns [..., heads, head size]."""


class RmsNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, states: Tensor) -> Tensor:
        return functional.rms_norm(states, self.weight.shape, self.weight.to(states.dtype), self._epsilon)


class _Attention(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._size = config.head_dim
        queries, keys = (
            count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        frequencies = config.rope_theta ** (-torch.arange(0, self._size, 2).float() / self._size)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor

    def forward(self, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        query, key, value = (
            part(states).unflatten(-1, (-1, self._size)) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        angles = positions[..., None, None].float() * self.frequencies
        cos, sin = angles.cos().to(query.dtype), angles.sin().to(query.dtype)
        attended = attend(_rotate(query, cos, sin), _rotate(key, cos, sin), value)
        output: Tensor = self.o_proj(attended.flatten(-2))
        return output


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class _Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return output


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _Mlp(config.hidden_size, config.intermediate_size)


class EagleHead(nn.Module):
    """The head; weights are named as in EAGLE-3's checkpoints."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("tokens", torch.arange(config.draft_vocab_size), persistent=False)
        self.tokens: Tensor
        """Ids of the predicted tokens, ascending."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a head.

        Raises:
            EngineError: a file is missing or damaged.
        """
        head = cls(read_head_config(folder))
        try:
            weights = load_file(folder / WEIGHTS)
            # vLLM takes these two only where the vocabulary is trimmed.
            offsets = weights.pop("d2t", torch.zeros(head.config.draft_vocab_size, dtype=torch.long))
            weights.pop("t2d", None)
            head.load_state_dict(weights)
        except Exception as error:
            raise EngineError(
                f"the head in {str(folder)!r} cannot be loaded ({error}); train it again"
            ) from None
        if len(offsets) != head.config.draft_vocab_size:
            raise EngineError(f"the head in {str(folder)!r} has {len(offsets)} tokens in d2t; train it again")
        head.tokens = torch.arange(len(offsets)) + offsets
        return head.requires_grad_(False).eval()

    def features(self, states: Tensor) -> Tensor:
        """Join hidden states [..., 3 * hidden size] to features [..., hidden size]."""
        features: Tensor = self.fc(states)
        return features

    def forward(self, embedded: Tensor, features: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return hidden states [..., hidden size], which serve as the features of the next positions.

        Args:
            embedded: embeddings [..., hidden size] of the tokens.
            features: those of the positions before.
            positions: [...]; only differences matter.
        """
        layer = self.midlayer
        both = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(features)), -1)
        hidden = features + layer.self_attn(both, positions, attend)
        output: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., predicted tokens]."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits
