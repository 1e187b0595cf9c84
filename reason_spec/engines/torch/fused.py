"""The layers of Llama, Qwen2 and Qwen3 in few operations, for passes of a few tokens.

The time of a pass of one token through a small model is that of launching its operations. So queries, keys
and values are one product, gate and up another; norms and rotations of queries and keys are done together;
and the product adds the residual. Matrices are stored as [in, out], the order in which they are read. The
module's own matrices become views of them, so none is in memory twice. On a CPU large ones are then packed
(`products`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from reason_spec.engines.torch.attention import ActivePass
from reason_spec.engines.torch.products import PackedLinear, Product, release, try_packing, with_least_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHANGING_ROPE = ("dynamic", "longrope")
"""Rotations that depend on the length of the text, so that a table cannot hold them."""


class _RmsNorm:
    """Root-mean-square norm over the last dimension.

    On a CPU ``rms_norm`` has no kernel, and takes a dozen operations. There the layer norm of
    (x, -x) replaces it: its mean is zero, so its variance is the mean square of x.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon
        self._size = len(weight)
        self._doubled = torch.cat((weight, weight)).detach()
        self._has_kernel = weight.device.type != "cpu"

    def __call__(self, states: Tensor) -> Tensor:
        if self._has_kernel:
            return functional.rms_norm(states, (self._size,), self._weight, self._epsilon)
        mirrored = torch.cat((states, -states), dim=-1)
        normed = functional.layer_norm(mirrored, (2 * self._size,), self._doubled, None, self._epsilon)
        return normed[..., : self._size]


def _norm_like(norm: Any) -> _RmsNorm:
    return _RmsNorm(norm.weight, norm.variance_epsilon)


class Rotations(NamedTuple):
    """Cosines and signed sines of every position, [positions, 1, head size]."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer."""

    input_norm: _RmsNorm
    qkv: Product | PackedLinear
    qk_norm: Tensor | None
    """[heads + key-value heads, head size]."""
    output: Product | PackedLinear
    mlp_norm: _RmsNorm
    gate_up: Product | PackedLinear
    down: Product | PackedLinear


class FusedDecoder:
    """Runs the layers of a module whose weights it has taken over.

    Raises:
        ValueError: ``can_fuse`` is false for the module.
    """

    def __init__(self, module: PreTrainedModel, max_context: int) -> None:
        if not can_fuse(module):
            raise ValueError(f"{type(module).__name__} has no fused layers")
        inner: Any = module.model
        attention = inner.layers[0].self_attn
        self._embedding: Tensor = inner.embed_tokens.weight
        self.head: nn.Module = module.get_output_embeddings()
        self._head_size: int = attention.head_dim
        self._num_kv_heads = attention.k_proj.out_features // self._head_size
        self._num_heads = attention.q_proj.out_features // self._head_size
        self._scaling: float = attention.scaling
        self._norm = _norm_like(inner.norm)
        unit = torch.ones(self._head_size, device=self._embedding.device, dtype=self._embedding.dtype)
        self._unit = _RmsNorm(unit, inner.norm.variance_epsilon)
        self._modules: list[Any] = list(inner.layers)
        self._layers = [self._take_over(layer) for layer in self._modules]
        self._is_packed = False
        self._rotary: Any = inner.rotary_emb
        self.rotations = self.make_rotations(max_context)

    def run(self, tokens: Tensor, positions: Tensor, active: ActivePass, logits_entries: Tensor) -> Tensor:
        """Return the logits [logits entries, vocabulary] of a pass over [entries] tokens and positions."""
        rows, wanted = len(tokens), len(logits_entries)
        if self._is_packed:
            tokens, positions, logits_entries = map(with_least_rows, (tokens, positions, logits_entries))
        states = functional.embedding(tokens, self._embedding)
        cos, sin = self.rotations.cos[positions], self.rotations.sin[positions]
        for index, layer in enumerate(self._layers):
            if index in active.states:
                active.states[index] = states[:rows]
            if (index, "attention") not in active.skipped:
                attended = self._attend(index, layer, states, cos, sin, active, rows)
                states = layer.output.add_to(states, attended)
            if (index, "mlp") in active.skipped:
                continue
            gate, up = layer.gate_up(layer.mlp_norm(states)).chunk(2, dim=-1)
            states = layer.down.add_to(states, functional.silu(gate) * up)
        logits: Tensor = self.head(self._norm(states[logits_entries]))
        return logits[:wanted]

    def _attend(
        self,
        index: int,
        layer: _Layer,
        states: Tensor,
        cos: Tensor,
        sin: Tensor,
        active: ActivePass,
        rows: int,
    ) -> Tensor:
        """Return what ``rows`` states attend to; those after them are padding."""
        projected = layer.qkv(layer.input_norm(states)).view(len(states), -1, self._head_size)
        rotated = projected[:, : self._num_heads + self._num_kv_heads]
        if layer.qk_norm is not None:
            rotated = self._unit(rotated) * layer.qk_norm
        # The first half of sin carries the sign, so that a roll does for the rotation by a quarter.
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_size // 2, -1), sin)
        query, key = rotated[:rows].split([self._num_heads, self._num_kv_heads], dim=1)
        value = projected[:rows, self._num_heads + self._num_kv_heads :]
        attended = active.attend(index, query, key, value, self._scaling, None, None).flatten(1)
        return attended if rows == len(states) else with_least_rows(attended)

    def _take_over(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qk_norm = None
        if hasattr(attention, "q_norm"):
            norms = [attention.q_norm.weight] * self._num_heads + [
                attention.k_norm.weight
            ] * self._num_kv_heads
            qk_norm = torch.stack(norms).detach()
        return _Layer(
            input_norm=_norm_like(layer.input_layernorm),
            qkv=_take_over(attention.q_proj, attention.k_proj, attention.v_proj),
            qk_norm=qk_norm,
            output=_take_over(attention.o_proj),
            mlp_norm=_norm_like(layer.post_attention_layernorm),
            gate_up=_take_over(mlp.gate_proj, mlp.up_proj),
            down=_take_over(mlp.down_proj),
        )

    def pack(self) -> None:
        """Store the weights in oneDNN's order where that is faster; those of the module are freed."""
        packed = []
        for layer, own in zip(self._layers, self._modules, strict=True):
            attention, mlp = own.self_attn, own.mlp
            packed.append(
                replace(
                    layer,
                    qkv=_pack(layer.qkv, attention.q_proj, attention.k_proj, attention.v_proj),
                    output=_pack(layer.output, attention.o_proj),
                    gate_up=_pack(layer.gate_up, mlp.gate_proj, mlp.up_proj),
                    down=_pack(layer.down, mlp.down_proj),
                )
            )
        self._layers = packed
        self._is_packed = any(isinstance(layer.gate_up, PackedLinear) for layer in packed)

    def make_rotations(self, max_context: int) -> Rotations:
        """Return the rotations of the first positions."""
        positions = torch.arange(max_context, device=self._embedding.device)[None]
        cos, sin = self._rotary(self._embedding[:1], positions)
        sin = sin[0].clone()
        sin[:, : self._head_size // 2].neg_()
        return Rotations(cos[0].unsqueeze(1).contiguous(), sin.unsqueeze(1))


def can_fuse(module: PreTrainedModel) -> bool:
    """Return whether ``FusedDecoder`` can run the module."""
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

    if type(module) not in (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM):
        return False
    inner: Any = module.model
    config = module.config
    products = [part for part in inner.layers.modules() if isinstance(part, nn.Linear)]
    return (
        config.hidden_act in ("silu", "swish")
        and inner.rotary_emb.rope_type not in _CHANGING_ROPE
        and all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
        # Quantized weights have other classes; without them there are fewer than seven a layer.
        and all(type(part) is nn.Linear for part in products)
        and len(products) == 7 * len(inner.layers)
    )


def _take_over(*products: nn.Module) -> Product:
    """Join linear modules into one product; their weights become views of its weight."""
    linears: list[Any] = list(products)
    joined = torch.cat([linear.weight.detach() for linear in linears]).t().contiguous()
    start = 0
    for linear in linears:
        linear.weight.data = joined[:, start : start + linear.out_features].t()
        start += linear.out_features
    if all(linear.bias is None for linear in linears):
        return Product(joined, None)
    biases = [
        joined.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return Product(joined, torch.cat(biases))


def _pack(product: Product | PackedLinear, *linears: Any) -> Product | PackedLinear:
    """Pack a product, if that is faster, and free the weights of its modules."""
    packed = try_packing(product.weight.t(), product.bias) if isinstance(product, Product) else None
    if packed is None:
        return product
    for linear in linears:
        release(linear)
    return packed
