"""An output layer that predicts some tokens of the vocabulary (FR-Spec, arXiv 2502.14856, section 3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from reason_spec.engines.pruned import VOCABULARY
from reason_spec.errors import EngineError


class TrimmedHead(nn.Module):
    """Logits [..., vocabulary] that are minus infinity outside ``tokens``.

    Args:
        head: the whole output layer; its weights stay where they are, and the trimmed ones are copied.
        tokens: ids of the predicted tokens.
    """

    def __init__(self, head: nn.Linear, tokens: Sequence[int]) -> None:
        super().__init__()
        self._size = head.out_features
        self._tokens = torch.tensor(tokens, device=head.weight.device)
        # Annotated as a tensor, and None without one.
        bias: Tensor | None = head.bias
        self.trimmed = nn.Linear(head.in_features, len(self._tokens), bias=bias is not None, device="meta")
        """States to the logits [..., predicted tokens] alone."""
        self.trimmed.weight = nn.Parameter(head.weight.detach()[self._tokens], requires_grad=False)
        if bias is not None:
            self.trimmed.bias = nn.Parameter(bias.detach()[self._tokens], requires_grad=False)

    def forward(self, states: Tensor) -> Tensor:
        predicted: Tensor = self.trimmed(states)
        logits = predicted.new_full((*states.shape[:-1], self._size), float("-inf"))
        return logits.index_copy_(-1, self._tokens, predicted)


def read_vocabulary(model: str) -> list[int] | None:
    """Return the ids that a composed draft predicts, None for other models.

    Raises:
        EngineError: the file is damaged.
    """
    path = Path(model) / VOCABULARY
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{str(path)!r} cannot be read: {error}; delete its folder") from None
    if not isinstance(content, list) or not all(isinstance(token, int) for token in content):
        raise EngineError(f"{str(path)!r} is no list of token ids; delete its folder")
    return content
