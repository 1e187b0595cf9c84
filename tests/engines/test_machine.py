"""What the machine is asked for."""

from __future__ import annotations

import pytest
import torch

from reason_spec.engines.machine import mixed_precision


@pytest.mark.parametrize("supported", [True, False])
def test_products_are_in_bfloat16_only_where_the_cpu_has_it(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: supported)
    layer = torch.nn.Linear(8, 8)
    with mixed_precision(torch.device("cpu")):
        assert layer(torch.ones(2, 8)).dtype == (torch.bfloat16 if supported else torch.float32)
