"""Strategies under the load controller: they obey it at any time, and the answer stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.control.budget import RequestedBudget, SpeculationBudget
from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.load_controller import LoadController
from reason_spec.control.planner import Planner
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import LoadControlSettings, StrategySettings
from reason_spec.speculation.goodput import Share
from reason_spec.strategies.autoregressive import DraftModelSpeculation
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.specreason import SpecReason
from reason_spec.types import NoiseKey, Sampling
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import Agrees, Says, autoregressive, solve

CONFIG = StrategySettings(depth=4)
Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
MAKES: dict[str, Make] = {
    "lookahead": lambda target, draft: Lookahead(CONFIG, target, draft, ExactVerifier()),
    "speculative": lambda target, draft: DraftModelSpeculation(CONFIG, target, draft, None),
    "specreason": lambda target, draft: SpecReason(CONFIG, target, draft, Says("reject")),
}


class Told(SpeculationBudget):
    """Allows what a plan says for each final step, the last entry from there on."""

    def __init__(self, plan: Sequence[tuple[int, int]]) -> None:
        super().__init__(RequestedBudget(4, 16))
        self.shares = plan
        self.num_final = 0

    @property
    def _now(self) -> Share:
        return Share(*self.shares[min(self.num_final, len(self.shares) - 1)])

    @property
    def depth(self) -> int:
        return self._now.depth

    @property
    def num_draft_tokens(self) -> int:
        return self._now.num_draft_tokens

    def record_step(self, num_tokens: int) -> None:
        self.num_final += 1


plans = st.lists(st.sampled_from([(0, 0), (0, 4), (1, 0), (1, 2), (4, 16)]), min_size=1, max_size=6)


@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    agreement=st.sampled_from([0.0, 0.5, 1.0]),
    plan=plans,
    budget=st.integers(1, 120),
    temperature=st.sampled_from([0.0, 0.8]),
)
def test_whatever_the_load_controller_says_and_when_the_answer_is_the_targets(
    name: str, seed: int, agreement: float, plan: list[tuple[int, int]], budget: int, temperature: float
) -> None:
    scripts = StoryScript(seed), StoryScript(seed, agreement)
    sampling = Sampling(temperature, noise=NoiseKey(seed))
    alone = solve(autoregressive, *scripts, max_tokens=budget, sampling=sampling)
    gated = solve(MAKES[name], *scripts, max_tokens=budget, sampling=sampling, budget=Told(plan))
    assert gated.tokens == alone.tokens
    assert gated.text == alone.text
    assert gated.left_running == 0


@pytest.mark.parametrize("name", MAKES)
def test_where_nothing_is_allowed_the_draft_is_not_asked_and_the_target_writes_in_one_request(
    name: str,
) -> None:
    gated = solve(MAKES[name], StoryScript(3), StoryScript(3), budget=Told([(0, 0)]))
    assert gated.recorder.draft_usage.num_passes == 0
    assert [event.lane for event in gated.recorder.events if event.kind == "started"] == ["target"]


def test_load_that_rises_in_the_middle_of_an_answer_ends_drafting_there() -> None:
    at = 1
    gated = solve(MAKES["lookahead"], StoryScript(5), StoryScript(5), budget=Told([(2, 8)] * at + [(0, 0)]))
    events = gated.recorder.events
    finals = [place for place, event in enumerate(events) if event.kind == "final"]
    assert len(finals) > at + 4, "the story is too short to tell"
    drafted = [
        place for place, event in enumerate(events) if (event.kind, event.lane) == ("started", "draft")
    ]
    assert any(place < finals[at] for place in drafted)
    # What was under way may open one more; then nothing does.
    assert all(place < finals[at + 3] for place in drafted)
    started = [
        place for place, event in enumerate(events) if (event.kind, event.lane) == ("started", "target")
    ]
    assert sum(place > finals[at + 3] for place in started) == 0


def test_speculation_comes_back_in_the_middle_of_an_answer() -> None:
    gated = solve(MAKES["lookahead"], StoryScript(5), StoryScript(5), budget=Told([(0, 0)] * 3 + [(2, 8)]))
    assert gated.recorder.draft_usage.num_passes > 0
    assert any(verdict.accepted for verdict in gated.recorder.verdicts)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_draft_is_never_further_ahead_than_is_allowed(depth: int) -> None:
    gated = solve(
        MAKES["lookahead"],
        StoryScript(7),
        StoryScript(7),
        budget=Told([(depth, 8)]),
        target_seconds=0.01,
        virtual_time=True,
    )
    final, ahead = 0, []
    for event in gated.recorder.events:
        final += event.kind == "final"
        if (event.kind, event.lane) == ("started", "draft"):
            ahead.append(event.step_index - final)
    assert max(ahead) == depth - 1


def test_outcomes_reach_the_load_controller() -> None:
    controller = LoadController(LoadControlSettings(), lambda: None)
    before = controller.step_rate.value, controller.token_rate.value
    with controller.admit(RequestedBudget(4, 16)) as live:
        solve(MAKES["lookahead"], StoryScript(5), StoryScript(5), budget=live)
        solve(MAKES["speculative"], StoryScript(5), StoryScript(5), budget=live)
    assert (controller.step_rate.value, controller.token_rate.value) > before


@pytest.mark.parametrize(("depth", "num_draft_tokens"), [(0, 8), (1, 2), (6, 64)])
def test_a_plan_stays_within_the_settings_of_the_request(depth: int, num_draft_tokens: int) -> None:
    config = StrategySettings(depth=depth, num_draft_tokens=num_draft_tokens)
    flat = Costs(PassCost(((1, 0.05), (64, 0.0501))), draft_token=0.001)
    budget = SpeculationBudget(planner=Planner(flat, max_depth=4, max_draft_tokens=24))
    outcome = solve(
        lambda target, draft: Lookahead(config, target, draft, Agrees()),
        StoryScript(3),
        StoryScript(3, 0.0),
        budget=budget,
        target_seconds=0.05,
        draft_seconds=0.001,
        virtual_time=True,
    )
    if depth == 0:
        # The loss class of these settings is exact.
        assert outcome.tokens == solve(autoregressive, StoryScript(3), StoryScript(3, 0.0)).tokens
        assert {step.origin for step in outcome.steps} == {"target"}
    started = [
        event for event in outcome.recorder.events if event.kind == "started" and event.lane == "draft"
    ]
    assert all(event.step_index <= max(depth, 4) for event in started[:1])


@pytest.mark.parametrize("use_hint", [True, False])
def test_draft_tokens_alone_do_not_depend_on_hints_of_steps(use_hint: bool) -> None:
    config = StrategySettings(depth=4, use_hint=use_hint)

    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        strategy = Lookahead(config, target, draft, ExactVerifier())
        assert strategy.requested_budget.num_draft_tokens == config.num_draft_tokens
        return strategy

    outcome = solve(make, StoryScript(4), StoryScript(4), budget=Told([(0, 16)]))
    assert outcome.recorder.draft_usage.num_generated_tokens > 0
