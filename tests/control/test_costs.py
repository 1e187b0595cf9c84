"""Costs of passes: measured on an engine, and read between what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.costs import PASS_SIZES, Costs, PassCost, measure_costs
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.engines.torch.engine import TorchEngine
from reason_spec.pair import embedded_path
from reason_spec.settings import EngineSettings

COST = PassCost(((1, 0.010), (8, 0.017), (16, 0.033)))


@given(st.floats(0, 40), st.floats(0, 5))
def test_a_pass_costs_no_less_for_more_tokens(num_tokens: float, more: float) -> None:
    assert COST.seconds(num_tokens) <= COST.seconds(num_tokens + more)


def test_costs_go_through_the_points_and_on_behind_them() -> None:
    assert [COST.seconds(n) for n in (0.5, 1, 8, 12, 16, 24)] == pytest.approx(
        [0.010, 0.010, 0.017, 0.025, 0.033, 0.049]
    )
    assert PassCost(((1, 0.5),)).seconds(9) == 0.5
    assert Costs(COST, 0.002).c == pytest.approx(0.2)


async def test_the_costs_of_the_embedded_pair_are_measured_in_place() -> None:
    engines = [
        TorchEngine(name, EngineSettings(model=str(embedded_path(name)), device="cpu"))
        for name in ("target", "draft")
    ]
    try:
        for engine in engines:
            await engine.start()
        costs = await measure_costs(*engines)
    finally:
        for engine in engines:
            await engine.close()
    assert [size for size, _ in costs.target.points] == list(PASS_SIZES)
    assert all(0 < a[1] <= b[1] for a, b in pairwise(costs.target.points))
    assert 0 < costs.c < 1


async def test_a_small_context_is_measured_with_what_fits() -> None:
    engine = ScriptedEngine("target", lambda _text, _sampling: "word " * 50, max_context=20)
    await engine.start()
    costs = await measure_costs(engine, engine)
    await engine.close()
    sizes = [size for size, _ in costs.target.points]
    assert sizes == [size for size in PASS_SIZES if size <= 18]
    assert costs.draft_token > 0
