"""Costs of passes: measured on an engine, and read between what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.measuring import PASS_SIZES, measure_costs
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.engines.stats import PassTime
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


times = st.lists(
    st.builds(PassTime, st.floats(1, 90), st.floats(0.001, 1), st.floats(1, 100)), min_size=1, max_size=7
)


@given(times)
def test_what_passes_took_since_leaves_larger_ones_no_cheaper(seen: list[PassTime]) -> None:
    points = COST.remeasured(seen).points
    assert [size for size, _ in points] == [size for size, _ in COST.points]
    assert all(0 < a[1] <= b[1] for a, b in pairwise(points))


def test_passes_that_take_what_was_measured_change_nothing() -> None:
    seen = [PassTime(n, COST.seconds(n), 50) for n in (1, 2, 5, 16)]
    assert [seconds for _, seconds in COST.remeasured(seen).points] == pytest.approx(
        [0.010, 0.017, 0.033], rel=0.02
    )
    assert COST.remeasured([]) is COST


def test_a_size_moves_by_its_own_passes_and_others_with_all() -> None:
    points = dict(COST.remeasured([PassTime(1, 0.030, 1e6)]).points)
    assert points[1] == pytest.approx(0.030, rel=0.01)
    assert points[16] == pytest.approx(0.099, rel=0.01)
    points = dict(COST.remeasured([PassTime(1, 0.010, 100), PassTime(16, 0.066, 100)]).points)
    assert points[1] == pytest.approx(0.010, rel=0.01)
    assert points[16] == pytest.approx(0.066, rel=0.01)
    few = dict(COST.remeasured([PassTime(1, 0.030, 2)]).points)
    assert 0.010 < few[1] < 0.030, "two passes replace a measurement"


def test_a_draft_that_slows_down_costs_more_a_token() -> None:
    costs = Costs(COST, 0.002, draft=PassCost(((1, 0.001),)), verdict=0.001)
    slower = costs.remeasured([], [PassTime(1, 0.003, 1e6)])
    assert slower.draft_token == pytest.approx(0.006, rel=0.01)
    assert slower.target == COST
    assert slower.verdict == 0.001
    unknown = Costs(COST, 0.002)
    assert unknown.remeasured([], [PassTime(1, 0.003, 1e6)]) == unknown


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
    assert costs.draft is not None
    assert 0 < costs.draft.seconds(1) < costs.target.seconds(1)


async def test_a_small_context_is_measured_with_what_fits() -> None:
    engine = ScriptedEngine("target", lambda _text, _sampling: "word " * 50, max_context=20)
    await engine.start()
    costs = await measure_costs(engine, engine)
    await engine.close()
    sizes = [size for size, _ in costs.target.points]
    assert sizes == [size for size in PASS_SIZES if size <= 18]
    assert costs.draft_token > 0
