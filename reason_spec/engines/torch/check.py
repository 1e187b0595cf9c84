"""The check at the start: passes over slots have the logits of the plain module.

Below float32 the rounding of the plain module is larger than the effect of a slightly wrong position. So the
passes are compared twice:

- in float32 arithmetic, for any dtype of the weights, where only a wrong mask, position or head differs;
- in the model's own dtype, where the passes may be as far from float32 as the plain module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from reason_spec.engines.torch.attention import ATTENTION_NAME, KeyValueStore
from reason_spec.engines.torch.layout import Chain, PassBuilder
from reason_spec.engines.torch.model import Model
from reason_spec.errors import EngineError, UnsupportedModelError

MAX_DIFFERENCE: Final = 2e-3
"""Largest difference of a logit in float32 arithmetic, as a share of the spread of all logits.

SmolLM2-135M, Gemma 3 270M and the demonstration pair are at 2e-5 and below.
"""

MAX_ROUNDING: Final = 3.0
"""How far the passes may be from float32, as a multiple of the plain module's own distance.

Both distances are medians over tokens of the root mean square over the vocabulary. SmolLM2-135M, Gemma 3 270M
and the demonstration pair are between 0.7 and 1.2 in bfloat16 and float16.
"""

MAX_QUANTIZED_DISTANCE: Final = 0.5
"""Largest distance of a token's logits from the plain module's where weights are quantized.

It is a share of the spread. Kernels of quantized weights take no float32. A token that sees what it must not
is about 1 off.
"""

_LOW_PRECISION: Final = (torch.bfloat16, torch.float16)
_LENGTH: Final = 24


class Float32Arithmetic(TorchDispatchMode):
    """Runs every operation in float32, on copies of operands that are stored in lower precision.

    Only one operand at a time is copied, so a large model needs no second copy of its weights. Operations
    that write into a tensor of lower precision would be lost: passes make their tensors within the mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.embedding.default:
            # Looking up a row rounds nothing, and the table may be the largest matrix there is.
            return func(*args, **(kwargs or {})).float()
        return func(*tree_map(_in_float32, args), **tree_map(_in_float32, kwargs or {}))


def _in_float32(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _LOW_PRECISION:
        return value.float()
    return torch.float32 if value in _LOW_PRECISION and isinstance(value, torch.dtype) else value


@dataclass(frozen=True, slots=True)
class _Probe:
    """A random text, and a branch that leaves it at token ``fork``; the text is run in two chunks."""

    trunk: list[int]
    branch: list[int]
    fork: int
    middle: int

    @classmethod
    def of(cls, model: Model) -> _Probe:
        rng = np.random.default_rng(0)
        length = min(_LENGTH, model.max_context - 1)
        fork = length // 3
        trunk = rng.integers(0, model.vocab_size, length).tolist()
        # The activations of a begin-of-text token are the largest: a dtype that overflows does so there.
        begins_with = model.module.config.bos_token_id
        trunk[0] = begins_with if isinstance(begins_with, int) else trunk[0]
        branch = trunk[:fork] + rng.integers(0, model.vocab_size, length - fork).tolist()
        return cls(trunk, branch, fork, length // 2)


@torch.no_grad()
def check_against_plain_forward(name: str, model: Model) -> None:
    """Compare passes over slots with the module's own forward, and refuse a model that differs.

    A random text is run in two chunks, the second together with a branch that leaves the text
    in the middle of it: what every later pass is made of.

    Raises:
        UnsupportedModelError: the logits differ, are no numbers in the model's dtype, or attention does not
            go through the interface.
    """
    probe = _Probe.of(model)
    plain = _plain_logits(model, probe)
    if not bool(plain.isfinite().all()):
        raise UnsupportedModelError(
            f"model {name!r} gives logits that are no numbers in {_name(model.dtype)}; set dtype: bfloat16 "
            "or float32"
        )
    try:
        difference = _compare(model, probe, plain, _slot_logits(model, probe))
    except EngineError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"model {name!r} ({type(model.module).__name__}) does not run on the torch engine: "
            f"{type(error).__name__}: {error}. It serves causal LMs made of plain attention layers."
        ) from error
    if difference is not None:
        raise UnsupportedModelError(
            f"model {name!r} ({type(model.module).__name__}) gives other logits with cached keys and "
            f"values than without ({difference}), so it is not made of plain attention layers; the torch "
            "engine cannot serve it."
        )


def _compare(model: Model, probe: _Probe, plain: Tensor, found: Tensor) -> str | None:
    """Return by how much the passes are wrong; None where they are right."""
    spread = _spread(plain)
    if model.dtype not in _LOW_PRECISION:
        return _difference(plain, found, spread)
    if not _computes_in_floats(model):
        off = float(_distances(plain, found).max())
        wrong = not off <= MAX_QUANTIZED_DISTANCE * spread
        return f"a token's logits are off by {off:.3g}, spread {spread:.3g}" if wrong else None
    rounding = _rounding(model, probe, plain, found)
    if not rounding.in_float32 <= MAX_DIFFERENCE:
        return f"largest difference {rounding.in_float32 * spread:.3g}, spread {spread:.3g}"
    if rounding.passes <= MAX_ROUNDING * rounding.module + MAX_DIFFERENCE:
        return None
    own, ours = rounding.module * spread, rounding.passes * spread
    return f"in {_name(model.dtype)} off by {ours:.3g}, where the module itself is off by {own:.3g}"


@dataclass(frozen=True, slots=True)
class Rounding:
    """Distances of logits, as shares of the spread of all logits.

    Attributes:
        in_float32: largest difference between passes and module, both in float32 arithmetic.
        module: distance of the module from its float32 logits, in the model's own dtype.
        passes: that of the passes.
    """

    in_float32: float
    module: float
    passes: float


@torch.no_grad()
def measure_rounding(model: Model) -> Rounding:
    """Return the distances that the check at the start compares, for weights that are not packed."""
    probe = _Probe.of(model)
    return _rounding(model, probe, _plain_logits(model, probe), _slot_logits(model, probe))


def _rounding(model: Model, probe: _Probe, plain: Tensor, found: Tensor) -> Rounding:
    spread = _spread(plain)
    with Float32Arithmetic(), _slots_of_its_own(model), _precise_rotations(model):
        exact = _plain_logits(model, probe)
        largest = float((_slot_logits(model, probe) - exact).abs().max())
    own, ours = (float(_distances(logits, exact).median()) for logits in (plain, found))
    return Rounding(largest / spread, own / spread, ours / spread)


def _spread(logits: Tensor) -> float:
    return max(float(logits.std()), 1e-6)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _computes_in_floats(model: Model) -> bool:
    """Say whether the weights are plain numbers, not quantized ones that only kernels of their own read."""
    if getattr(model.module.config, "quantization_config", None) is not None:
        return False
    return all(parameter.is_floating_point() for parameter in model.module.parameters())


def _difference(plain: Tensor, found: Tensor, spread: float) -> str | None:
    largest = float((found - plain).abs().max())
    if largest <= MAX_DIFFERENCE * spread:
        return None
    return f"largest difference {largest:.3g}, spread {spread:.3g}"


def _distances(logits: Tensor, others: Tensor) -> Tensor:
    """Return the root mean square of the differences over the vocabulary, [tokens]."""
    return (logits - others).pow(2).mean(-1).sqrt()


def _plain_logits(model: Model, probe: _Probe) -> Tensor:
    """Return the module's own logits [tokens, vocabulary]: the trunk's, then the branch's after the fork."""
    model.module.config._attn_implementation = "eager"
    trunk, branch = (
        model.module(input_ids=torch.tensor([text], device=model.device), use_cache=False).logits[0].float()
        for text in (probe.trunk, probe.branch)
    )
    model.module.set_attn_implementation(ATTENTION_NAME)
    return torch.cat([trunk, branch[probe.fork :]])


def _slot_logits(model: Model, probe: _Probe) -> Tensor:
    """Return the logits of two passes over slots, in the order of ``_plain_logits``."""
    trunk, branch, fork, middle = probe.trunk, probe.branch, probe.fork, probe.middle
    length = len(trunk)
    slots = np.arange(2 * length, dtype=np.int64)
    first = Chain(trunk[:middle], slots[:0], 0, middle, 0, 0)
    opening = model.run(PassBuilder().build([first], slots[:middle].tolist()))
    rest = Chain(trunk[middle:], slots[:middle], 1, length - middle, 0, fork)
    side = Chain(branch[fork:], slots[:fork], 2, length - fork, 0, fork)
    rest_slots = slots[middle : middle + 2 * length - middle - fork].tolist()
    closing = model.run(PassBuilder().build([rest, side], rest_slots))
    return torch.cat([opening, closing]).float()


@contextmanager
def _slots_of_its_own(model: Model) -> Iterator[None]:
    """Let the model write to other keys and values, of the precision that it computes in."""
    store = model.store
    model.store = KeyValueStore(2 * _LENGTH)
    try:
        yield
    finally:
        model.store = store


@contextmanager
def _precise_rotations(model: Model) -> Iterator[None]:
    """Let fused layers use a table of rotations that was not rounded to the model's dtype."""
    if model.fused is None:
        yield
        return
    rounded = model.fused.rotations
    model.fused.rotations = model.fused.make_rotations(_LENGTH)
    try:
        yield
    finally:
        model.fused.rotations = rounded
