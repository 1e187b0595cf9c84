"""Packed products are the products of the layers that they replace, and their weights are in memory once."""

from __future__ import annotations

import platform

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reason_spec.engines.torch.products import MIN_PACKED, PackedLinear, Product, pack_linears, try_packing

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available(),
    reason="weights are packed on x86 with oneDNN only",
)
# oneDNN packs bfloat16 on processors with AVX-512 or its like; elsewhere such layers stay as they are.
DTYPES = [torch.float32] + [torch.bfloat16] * torch.ops.mkldnn._is_mkldnn_bf16_supported()
LARGE = 512
assert LARGE * LARGE >= MIN_PACKED


@given(
    entries=st.integers(0, 9),
    has_bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_a_packed_product_is_the_plain_one(
    entries: int, has_bias: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, states, residual = torch.randn(40, 33), torch.randn(entries, 33), torch.randn(entries, 40)
    bias = torch.randn(40).to(dtype) if has_bias else None
    weight, states, residual = weight.to(dtype), states.to(dtype), residual.to(dtype)
    plain, packed = Product(weight.t(), bias), PackedLinear(weight, bias)
    exact = states.double() @ weight.double().t() + (0 if bias is None else bias.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    before = residual.clone()
    for product in (plain, packed):
        torch.testing.assert_close(product(states).double(), exact, atol=tolerance, rtol=0)
        added = product.add_to(residual, states).double()
        torch.testing.assert_close(added, exact + residual.double(), atol=tolerance, rtol=0)
    assert torch.equal(residual, before)


def test_large_layers_are_packed_and_freed_but_not_a_weight_that_others_read() -> None:
    embedding = nn.Embedding(LARGE, LARGE)
    model = nn.ModuleDict(
        {"layer": nn.Linear(LARGE, LARGE), "small": nn.Linear(8, 8), "embedding": embedding}
    )
    model["head"] = nn.Linear(LARGE, LARGE, bias=False)
    model["head"].weight = embedding.weight
    layer, small, head = model["layer"], model["small"], model["head"]
    states = torch.randn(3, LARGE)
    with torch.inference_mode():
        expected = head(layer(states))
        pack_linears(model, shared=embedding.weight)
        found = model["head"](model["layer"](states))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert isinstance(model["head"], PackedLinear)
    # Layer skipping weighs sublayers by the number of their weights.
    assert [weight.shape for weight in model["layer"].parameters()] == [(LARGE, LARGE)]
    assert model["small"] is small
    assert layer.weight.device.type == "meta"
    assert layer.weight.shape == (LARGE, LARGE)
    assert embedding.weight.device.type == "cpu"


def test_what_onednn_cannot_do_or_does_not_speed_up_stays_as_it_is() -> None:
    assert try_packing(torch.zeros(8, 8), None) is None
    assert try_packing(torch.zeros(LARGE, LARGE, dtype=torch.float16), None) is None
    assert try_packing(torch.zeros(LARGE, LARGE, device="meta"), None) is None
    assert try_packing(torch.zeros(LARGE, LARGE), None) is not None
