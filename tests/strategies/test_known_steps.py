"""Steps from the suffix cache in the stepwise strategies: asked before the draft, judged like the draft's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from reason_spec.control.answer_model import NOTHING_CACHED, CacheForecast
from reason_spec.control.budget import SpeculationBudget
from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.planner import Planner
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.lookahead import Lookahead
from reason_spec.strategies.oracle import Oracle
from reason_spec.strategies.specreason import SpecReason
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.suffix.base import FindEnd, StepProposal
from reason_spec.suffix.scopes import SuffixCaches
from reason_spec.types import Plan
from reason_spec.verifiers.base import Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.naive_suffix import NaiveCache, NaiveSession, naive_caches
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import AnyBirds, Outcome, Says, autoregressive, solve

Make = Callable[[ScriptedEngine, ScriptedEngine], Strategy]
TARGET, DRAFT = StoryScript(5), StoryScript(5, agreement=0.6)


def lookahead(verifier: Verifier | None = None, depth: int = 3, **settings: Any) -> Make:
    chosen = StrategySettings(depth=depth, **settings)
    return lambda target, draft: Lookahead(chosen, target, draft, verifier or ExactVerifier())


def origins(outcome: Outcome) -> list[str]:
    return [step.origin for step in outcome.steps]


def drafts_started(outcome: Outcome) -> list[int]:
    events = outcome.recorder.events
    return [event.step_index for event in events if (event.kind, event.lane) == ("started", "draft")]


def test_a_repeated_answer_is_made_of_known_steps_and_the_draft_is_not_asked() -> None:
    suffix = naive_caches()
    cold = solve(lookahead(), TARGET, DRAFT, suffix=suffix)
    warm = solve(lookahead(), TARGET, DRAFT, suffix=suffix)
    plain = solve(autoregressive, TARGET, DRAFT)
    assert cold.tokens == warm.tokens == plain.tokens
    assert "cache" not in origins(cold)
    assert set(origins(warm)) == {"cache"}
    assert drafts_started(warm) == []
    assert warm.recorder.draft_usage.num_generated_tokens == 0
    assert warm.recorder.target_usage.num_passes < cold.recorder.target_usage.num_passes
    assert warm.left_running == cold.left_running == 0


def test_a_thinking_is_limited_where_its_steps_are_known() -> None:
    suffix = naive_caches()
    whole = solve(lookahead(), TARGET, DRAFT, suffix=suffix)
    first = whole.steps[0]
    for budget in (len(first.tokens) + 1, len(first.tokens) - 1):
        limit = ThinkingLimit(max_tokens=budget, closer="", closing="So it is.\n\n")
        known = solve(lookahead(), TARGET, DRAFT, suffix=suffix, thinking=limit)
        plain = solve(autoregressive, TARGET, DRAFT, thinking=limit)
        assert known.tokens == plain.tokens
        assert known.recorder.thinking == plain.recorder.thinking
        assert origins(known).count("inserted") == 1


class TakesTexts(ScriptedEngine):
    """Would draft tokens from earlier texts, were it told of any."""

    takes_texts = True


def test_the_planner_is_told_what_the_cache_would_draft() -> None:
    asked: list[CacheForecast] = []

    class Listening(Planner):
        def plan(self, cached: CacheForecast = NOTHING_CACHED, *, may_explore: bool = True) -> Plan:
            asked.append(cached)
            return super().plan(cached)

    costs = Costs(PassCost(((1, 0.02), (64, 0.05))), draft_token=0.01)
    chosen = Listening(costs, max_depth=3, max_draft_tokens=16)

    def planned(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        return Lookahead(StrategySettings(depth=3), target, draft, ExactVerifier())

    suffix = naive_caches()
    answers = [
        solve(
            planned,
            TARGET,
            DRAFT,
            suffix=suffix,
            target_kind=TakesTexts,
            budget=SpeculationBudget(planner=chosen),
        )
        for _ in range(2)
    ]
    assert asked[0] == NOTHING_CACHED
    assert asked[1].num_accepted >= 2
    plan = answers[1].recorder.plan
    assert plan is not None
    assert (plan.depth, plan.known_tokens) == (0, asked[1].num_accepted)
    assert answers[0].tokens == answers[1].tokens == solve(autoregressive, TARGET, DRAFT).tokens


def test_verdicts_on_known_steps_are_counted_apart() -> None:
    suffix = naive_caches()
    cold = solve(lookahead(), TARGET, DRAFT, suffix=suffix)
    warm = solve(lookahead(), TARGET, DRAFT, suffix=suffix)
    assert cold.recorder.cache_verdicts == []
    assert cold.recorder.num_cache_asked > 0
    assert len(warm.recorder.cache_verdicts) == len(warm.recorder.verdicts) == len(warm.steps)
    written = [event for event in warm.recorder.events if (event.kind, event.lane) == ("written", "cache")]
    assert len(written) == len(warm.steps)
    finals = [event for event in warm.recorder.events if event.kind == "final"]
    assert {event.lane for event in finals} == {event.origin for event in finals} == {"cache"}


def test_known_steps_that_the_target_writes_otherwise_are_refused_and_what_trusted_them_is_cancelled() -> (
    None
):
    suffix = naive_caches()
    solve(lookahead(), replace(TARGET, other="Elsewhere", agreement=0.0), DRAFT, suffix=suffix)
    # The same story up to where this one departs, under the same prompt.
    half = StoryScript(5, agreement=0.4)
    solve(lookahead(), half, half, suffix=suffix)
    outcome = solve(lookahead(depth=3), TARGET, DRAFT, suffix=suffix, target_seconds=0.001, virtual_time=True)
    assert outcome.tokens == solve(autoregressive, TARGET, DRAFT).tokens
    refused = [verdict for verdict in outcome.recorder.cache_verdicts if not verdict.accepted]
    assert refused
    cancelled = [e for e in outcome.recorder.events if (e.kind, e.lane) == ("cancelled", "target")]
    assert cancelled
    assert outcome.recorder.target_usage.num_discarded_tokens > 0
    assert outcome.left_running == 0


def test_the_draft_writes_where_the_cache_knows_nothing() -> None:
    suffix = naive_caches()
    short = replace(TARGET, num_steps=3)
    solve(lookahead(), short, DRAFT, suffix=suffix)
    outcome = solve(lookahead(), TARGET, TARGET, suffix=suffix, target_seconds=0.002, virtual_time=True)
    assert outcome.tokens == solve(autoregressive, TARGET, DRAFT).tokens
    assert origins(outcome)[:3] == ["cache"] * 3
    assert "draft" in origins(outcome)[3:]
    assert set(drafts_started(outcome)) <= set(range(3, 7))


def test_a_verifier_that_takes_other_words_takes_them_from_the_cache_too() -> None:
    suffix = naive_caches()
    reworded = replace(TARGET, agreement=0.0)
    solve(lookahead(), reworded, reworded, suffix=suffix)
    outcome = solve(lookahead(AnyBirds()), TARGET, DRAFT, suffix=suffix)
    assert outcome.steps[0].origin == "cache"
    assert outcome.steps[0].text.startswith("Otherwise")
    assert outcome.steps[0].verdict is not None


@pytest.mark.parametrize("decision", ["accept", "reject", "unknown"])
def test_known_steps_are_judged_alone_where_drafted_ones_are(decision: str) -> None:
    def specreason(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        return SpecReason(StrategySettings(depth=2), target, draft, Says(decision))  # type: ignore[arg-type]

    suffix = naive_caches()
    solve(lookahead(), TARGET, TARGET, suffix=suffix)
    outcome = solve(specreason, TARGET, DRAFT, suffix=suffix)
    assert outcome.tokens == solve(autoregressive, TARGET, DRAFT).tokens
    assert set(origins(outcome)) == ({"cache"} if decision == "accept" else {"target"})
    assert outcome.left_running == 0
    assert (outcome.recorder.target_usage.num_generated_tokens == 0) == (decision == "accept")


def test_an_answer_that_is_abandoned_leaves_nothing_running_and_teaches_what_was_final() -> None:
    suffix = naive_caches()
    first = solve(lookahead(), TARGET, TARGET, suffix=suffix, stop_after=2)
    outcome = solve(lookahead(), TARGET, TARGET, suffix=suffix)
    assert first.left_running == 0
    assert origins(outcome)[:2] == ["cache", "cache"]


class Breaking(NaiveSession):
    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        raise ZeroDivisionError("a broken cache")


class BreakingCache(NaiveCache):
    def open_session(self, tenant: str) -> NaiveSession:
        return Breaking(self, tenant, [])


def test_a_cache_that_breaks_costs_a_warning_and_not_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    outcome = solve(lookahead(), TARGET, TARGET, suffix=SuffixCaches(lambda scope: BreakingCache()))
    assert outcome.tokens == solve(autoregressive, TARGET, DRAFT).tokens
    assert "draft" in origins(outcome)
    assert [record.message for record in caplog.records] == [
        "the suffix cache of tenant default is left out from now on: ZeroDivisionError: a broken cache"
    ]


def test_strategies_that_are_about_the_drafts_own_steps_ask_no_cache() -> None:
    def oracle(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        return Oracle(StrategySettings(depth=2), target, draft, Says("accept"))

    suffix = naive_caches()
    solve(lookahead(), TARGET, TARGET, suffix=suffix)
    outcome = solve(oracle, TARGET, DRAFT, suffix=suffix)
    assert outcome.recorder.num_cache_asked == 0
    assert "cache" not in origins(outcome)
