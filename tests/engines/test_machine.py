"""What the machine is asked for."""

from __future__ import annotations

import pytest
import torch

from reason_spec.engines import machine
from reason_spec.engines.machine import mixed_precision


@pytest.mark.parametrize(("relative_time", "dtype"), [(0.5, torch.bfloat16), (1.1, torch.float32)])
def test_products_are_in_bfloat16_only_where_the_cpu_is_faster_at_them(
    relative_time: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "bfloat16_time_on_cpu", lambda: relative_time)
    layer = torch.nn.Linear(8, 8)
    with mixed_precision(torch.device("cpu")):
        assert layer(torch.ones(2, 8)).dtype == dtype


def test_the_time_of_products_is_measured_once() -> None:
    assert 0 < machine.bfloat16_time_on_cpu() == machine.bfloat16_time_on_cpu()
