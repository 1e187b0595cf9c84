"""The judge of draft tokens: a linear head on the target's last state (Judge Decoding, arXiv 2501.19309).

The state is the input of the output layer at the draft token itself, so the judge has read the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor, nn

from reason_spec.engines.torch.model import Model
from reason_spec.errors import EngineError

WEIGHTS: Final = "judge.safetensors"
_REMEDY: Final = "Train one for this target: reason-spec verifier train --level token"


@dataclass(frozen=True, slots=True)
class JudgeWeights:
    """P(right) = sigmoid(state . ``weight`` + ``bias``); ``weight`` is [hidden size], both are float32."""

    weight: Tensor
    bias: Tensor

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        save_file({"weight": self.weight.contiguous(), "bias": self.bias}, folder / WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the weights from the folder of a training.

        Raises:
            EngineError: they are missing or damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            found = load_file(folder / WEIGHTS)
            weight, bias = found["weight"].float(), found["bias"].float()
        except (OSError, SafetensorError, KeyError) as error:
            raise EngineError(
                f"{str(folder)!r} holds no judge of draft tokens ({error}). {_REMEDY}"
            ) from None
        if weight.ndim != 1 or bias.ndim != 0 or not bool(weight.isfinite().all() and bias.isfinite()):
            raise EngineError(f"the judge in {str(folder)!r} is damaged. {_REMEDY}")
        return cls(weight, bias)


class TokenJudge(nn.Module):
    """An output layer that judges the tokens of its last call beside predicting what follows them."""

    def __init__(self, output: nn.Module, weights: JudgeWeights) -> None:
        super().__init__()
        self._output = output
        self.register_buffer("weight", weights.weight)
        self.register_buffer("bias", weights.bias)
        self._chances: Tensor | None = None

    def forward(self, states: Tensor) -> Tensor:
        judged = states.float() @ self.get_buffer("weight") + self.get_buffer("bias")
        self._chances = torch.sigmoid(judged).flatten()
        logits: Tensor = self._output(states)
        return logits

    def last(self, count: int) -> list[float]:
        """Return P(right) of the first ``count`` rows of the last call; rows after them are padding."""
        assert self._chances is not None, "no pass has run"
        chances: list[float] = self._chances[:count].tolist()
        return chances


def attach_judge(model: Model, folder: Path) -> TokenJudge:
    """Put a judge beside the output layer of a loaded model.

    Raises:
        EngineError: the judge is missing, damaged or of a model with other hidden states.
    """
    weights = JudgeWeights.load(folder.expanduser())
    size = int(model.module.get_input_embeddings().weight.shape[1])
    if len(weights.weight) != size:
        raise EngineError(
            f"the judge in {str(folder)!r} reads hidden states of {len(weights.weight)}, and the target's "
            f"have {size}: it was trained for another model. {_REMEDY}"
        )
    # Only the judge moves: a packed output layer has no weight that could.
    weights = JudgeWeights(weights.weight.to(model.device), weights.bias.to(model.device))
    judge = TokenJudge(model.module.get_output_embeddings(), weights)
    model.module.set_output_embeddings(judge)
    if model.fused is not None:
        model.fused.head = judge
    return judge
