"""Muon for the hidden matrices, and the learning-rate schedule.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") replaces the
momentum of a matrix by the nearest orthogonal one, found by Newton-Schulz iterations. Here all
matrices of one shape are orthogonalised together, in float32, which CPUs need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return the approximate orthogonal factor of each matrix, [n, rows, columns]."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised steps for two-dimensional parameters."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_shape(parameters, group)

    def _step_shape(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        updates = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum = state["momentum"]
            momentum.lerp_(parameter.grad, 1 - group["momentum"])
            updates.append(torch.lerp(parameter.grad, momentum, group["momentum"]))
        rows, columns = parameters[0].shape
        scale = group["lr"] * max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(parameters, orthogonalize(torch.stack(updates)), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update, alpha=scale)


def trapezoid(progress: float, warm_up: float, decay: float) -> float:
    """Return the share of the full learning rate at ``progress`` in 0..1 of the training."""
    return max(0.0, min(1.0, progress / warm_up, (1 - progress) / decay))
