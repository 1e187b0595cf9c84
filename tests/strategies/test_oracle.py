"""The oracle lets the better of two steps stand, and does all of the target's work."""

from __future__ import annotations

import pytest

from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import SettingsError
from reason_spec.settings import StrategySettings
from reason_spec.strategies.base import Strategy
from reason_spec.strategies.oracle import Oracle
from reason_spec.types import Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.strategies.scripts import StoryScript
from tests.strategies.solving import Outcome, autoregressive, solve

SCRIPTS = StoryScript(5), StoryScript(5, 0.5)


class Prefers(Verifier):
    """Finds a step worth 1 where it has this word in it, else 0; worth nothing known without a word."""

    name = "prefers"
    loss_class = "routed"
    judges_draft_only, compares = True, False

    def __init__(self, word: str | None) -> None:
        super().__init__()
        self.word, self.num_asked = word, 0

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        self.num_asked += 1
        if self.word is None:
            raise ZeroDivisionError("a broken judge")
        return Verdict("reject", float(self.word in drafted.text), cost_tokens=3)


def with_judge(judge: Verifier, depth: int = 4, draft_seconds: float = 0.0) -> Outcome:
    def make(target: ScriptedEngine, draft: ScriptedEngine) -> Strategy:
        return Oracle(StrategySettings(depth=depth), target, draft, judge)

    return solve(make, *SCRIPTS, target_seconds=0.01, draft_seconds=draft_seconds, virtual_time=True)


def test_the_better_step_stands_and_the_drafts_where_they_are_worth_the_same() -> None:
    drafted = with_judge(Prefers("Otherwise"))
    assert drafted.text == solve(autoregressive, SCRIPTS[1], SCRIPTS[1]).text
    own = with_judge(Prefers("Then"))
    assert own.tokens == solve(autoregressive, *SCRIPTS).tokens
    indifferent = with_judge(Prefers("a word that neither has"))
    assert indifferent.text == drafted.text


def test_a_draft_that_is_slower_than_the_target_may_be_the_better_one() -> None:
    fast = with_judge(Prefers("Otherwise"), draft_seconds=0.001)
    slow = with_judge(Prefers("Otherwise"), draft_seconds=0.05)
    assert slow.tokens == fast.tokens
    assert slow.recorder.num_late_drafts == 0
    assert any(step.origin == "draft" for step in slow.steps)


def test_the_target_writes_every_step_whatever_stands() -> None:
    drafted = with_judge(Prefers("Otherwise"))
    steps = len(drafted.steps)
    assert drafted.recorder.target_usage.num_generated_tokens >= steps
    assert drafted.left_running == 0


def test_a_judge_that_fails_leaves_the_targets_step() -> None:
    failed = with_judge(Prefers(None))
    assert failed.tokens == solve(autoregressive, *SCRIPTS).tokens


def test_what_both_judgements_cost_is_counted() -> None:
    judge = Prefers("Then")
    outcome = with_judge(judge)
    paid = [verdict.cost_tokens for verdict in outcome.recorder.verdicts if verdict.cost_tokens]
    assert paid
    assert set(paid) == {6}
    assert judge.num_asked >= 2 * len(paid)


def test_a_judge_that_only_compares_is_refused() -> None:
    with pytest.raises(SettingsError, match="oracle judges drafted steps alone"):
        with_judge(ExactVerifier())


def test_without_drafts_the_oracle_is_the_target() -> None:
    assert with_judge(Prefers("Otherwise"), depth=0).tokens == solve(autoregressive, *SCRIPTS).tokens
