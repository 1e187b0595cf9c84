"""Products with weights that are stored as oneDNN reads them.

PyTorch's own product of matrices on a CPU copies parts of the weights at each call with more than one row. A
pass that verifies a few draft tokens then takes several times as long as one of a single token. A weight that
was stored in oneDNN's order once is read once for all rows. Float16 is left as it is: few processors compute
in it.
"""

from __future__ import annotations

import platform
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_PACKED: Final = 1 << 18
"""Weights of a product from which on it is packed: a call takes about ten microseconds longer."""

_LEAST_ROWS: Final = 4
"""oneDNN takes longer for one row, and a third longer for two, than for four."""


class Product:
    """A linear layer for states [entries, in], with its weight as [in, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, states: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(states, self.weight)
        return torch.addmm(self.bias, states, self.weight)

    def add_to(self, residual: Tensor, states: Tensor) -> Tensor:
        """Return the residual [entries, out] plus the product."""
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, states, self.weight)


class PackedLinear(nn.Module):
    """A linear layer for states [..., in], with its weight [out, in] in oneDNN's order.

    Raises:
        RuntimeError: oneDNN cannot do this product on this processor.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # Its shape and dtype, which others read; the values are in the packed one, which can be no parameter.
        self.weight = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self._bias = None if bias is None else bias.detach()
        self(weight.new_zeros(1, self.in_features))

    def forward(self, states: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            states, self._packed, self._bias, "none", [], ""
        )
        return product

    def add_to(self, residual: Tensor, states: Tensor) -> Tensor:
        """Return the residual [..., out] plus the product."""
        added: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            states, residual, self._packed, self._bias, "add"
        )
        return added


def with_least_rows(states: Tensor) -> Tensor:
    """Return [entries, ...] with rows of zeros where there are too few for a fast packed product."""
    missing = _LEAST_ROWS - len(states)
    if missing <= 0 or not len(states):
        return states
    return functional.pad(states, (0, 0) * (states.ndim - 1) + (0, missing))


def try_packing(weight: Tensor, bias: Tensor | None) -> PackedLinear | None:
    """Return the packed layer of a weight [out, in]; None where it would not be faster, or cannot be had."""
    if weight.device.type != "cpu" or weight.numel() < MIN_PACKED or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype not in (torch.float32, torch.bfloat16) or platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        with torch.inference_mode():
            return PackedLinear(weight, bias)
    except (AttributeError, RuntimeError):  # Some builds of PyTorch lack the operations.
        return None


def pack_linears(module: nn.Module, *, shared: Tensor | None = None) -> None:
    """Replace the linear layers within a module by packed ones, where that is faster.

    Args:
        shared: a weight that others read too, such as that of the embeddings. All others lose their values,
            so that none is in memory twice.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            # Subclasses may do something else.
            if type(child) is not nn.Linear:
                continue
            packed = try_packing(child.weight, child.bias)
            if packed is not None:
                setattr(parent, name, packed)
                if shared is None or child.weight is not shared:
                    release(child)


def release(linear: nn.Linear) -> None:
    """Free the weight of a layer; its shape stays."""
    linear.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
