"""How many positions of one answer are open at once."""

from __future__ import annotations

import pytest

from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.step_tree import MOST_BRANCHES
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import Outcome, autoregressive, solve


def solve_counted(width: int, depth: int) -> tuple[Outcome, int]:
    """Return the outcome, and how many requests of the target were open at once."""
    opened: list[Generation] = []
    most = 0

    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Lookahead:
        submit = target.submit

        def counted(request: EngineRequest) -> Generation:
            nonlocal most
            opened.append(submit(request))
            most = max(most, sum(not (one.done or one.cancel_requested) for one in opened))
            return opened[-1]

        target.submit = counted  # type: ignore[method-assign]
        return Lookahead(StrategySettings(width=width, depth=depth), target, draft, ExactVerifier())

    return solve(make, StoryScript(3), StoryScript(3), target_seconds=0.02), most


def test_width_to_the_power_of_depth_is_bounded_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    outcome, most = solve_counted(width=4, depth=4)
    assert outcome.tokens == solve(autoregressive, StoryScript(3), StoryScript(3)).tokens
    assert 8 < most <= MOST_BRANCHES
    assert outcome.recorder.num_held_back > 0
    assert "width 4 with depth 4 wants more" in caplog.text
    assert outcome.left_running == 0


def test_what_is_within_the_bound_is_not_held_back(caplog: pytest.LogCaptureFixture) -> None:
    for width, depth in ((2, 4), (1, 64)):
        outcome, _ = solve_counted(width, depth)
        assert outcome.recorder.num_held_back == 0
    assert not caplog.text
