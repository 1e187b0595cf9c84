"""Sublayers of a module that passes can leave out, and hidden states that passes can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reason_spec.engines.torch.attention import Sublayer, active_pass
from reason_spec.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def prepare_sublayers(name: str, module: PreTrainedModel) -> None:
    """Let the layers of a module follow ``skipped`` and ``states`` of the active pass.

    The output of a skipped sublayer is zero, so that the residual stream passes it by.

    Raises:
        UnsupportedModelError: the module's layers are not made like Llama's.
    """
    for index, layer in enumerate(layers_of(name, module)):
        attention, mlp = layer.self_attn, layer.mlp
        attention.forward = _skippable(
            attention.forward, Sublayer(index, "attention"), lambda zero: (zero, None)
        )
        mlp.forward = _skippable(mlp.forward, Sublayer(index, "mlp"), lambda zero: zero)
        layer.register_forward_pre_hook(_tap(index), with_kwargs=True)


def layers_of(name: str, module: PreTrainedModel) -> list[Any]:
    """Return the decoder layers of a model.

    Raises:
        UnsupportedModelError: they are not made like Llama's.
    """
    layers = getattr(getattr(module, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(
        hasattr(layer, "self_attn") and hasattr(layer, "mlp") for layer in layers
    ):
        raise UnsupportedModelError(
            f"the layers of model {name!r} ({type(module).__name__}) are not made like Llama's (model.layers "
            "with self_attn and mlp), so nothing drafts inside its engine; use a draft model"
        )
    return list(layers)


def _skippable(
    forward: Callable[..., Any], sublayer: Sublayer, output: Callable[[Tensor], Any]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        active = active_pass()
        if active is None or sublayer not in active.skipped:
            return forward(*args, **kwargs)
        return output(torch.zeros_like(args[0] if args else kwargs["hidden_states"]))

    return run


def _tap(index: int) -> Callable[..., None]:
    def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        active = active_pass()
        if active is not None and index in active.states:
            active.states[index] = (args[0] if args else kwargs["hidden_states"])[0]

    return take
