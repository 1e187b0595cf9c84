from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import SettingsError
from reason_spec.settings import VerifierSettings
from reason_spec.types import FinishReason, Step, Verdict
from reason_spec.verifiers.base import (
    Models,
    VerificationContext,
    Verifier,
    create_verifier,
    measure_verdict,
    verifier_names,
)
from reason_spec.verifiers.exact import ExactVerifier
from reason_spec.verifiers.numbers import NumbersVerifier

CONTEXT = VerificationContext()
FINISHES: tuple[FinishReason, ...] = ("boundary", "eos", "length", "stop", "cancelled", "failed")
CUT = ("length", "cancelled", "failed")


def make(
    text: str, finish: FinishReason = "boundary", tokens: tuple[int, ...] = (), tokenizer: str = "t"
) -> Step:
    return Step(text, tokens, "draft", finish, tokenizer)


class Yes(Verifier):
    name = "yes"
    loss_class = "verified"

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        return Verdict("accept", 1.0, cost_tokens=7)


class Fails(Yes):
    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        raise ZeroDivisionError("a broken judge")


class NeverLoads(Yes):
    async def start(self) -> None:
        raise SettingsError("no such model")


class Hangs(Yes):
    cancelled = False

    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Verdict("accept")


MODELS = Models(
    ScriptedEngine("target", WrittenAnswers({}, None)), load_reward=lambda: lambda texts: [0.5 for _ in texts]
)


class NeedsNoTarget(Yes):
    judges_draft_only = True


async def test_a_failing_judge_is_unknown_with_its_reason() -> None:
    verdict = await Fails().verify(CONTEXT, make("a"), make("b"))
    assert (verdict.decision, verdict.score) == ("unknown", None)
    assert "ZeroDivisionError: a broken judge" in verdict.reason


async def test_a_model_that_does_not_load_is_unknown_in_verify_and_raises_in_start() -> None:
    assert (await NeverLoads().verify(CONTEXT, make("a"), make("b"))).decision == "unknown"
    with pytest.raises(SettingsError):
        await NeverLoads().start()


async def test_a_judge_past_its_deadline_is_stopped_and_unknown() -> None:
    verifier = Hangs(deadline_seconds=0.02)
    verdict = await verifier.verify(CONTEXT, make("a"), make("b"))
    assert verdict.decision == "unknown"
    assert "0.02 s" in verdict.reason
    assert verifier.cancelled


async def test_cancelling_verify_cancels_the_judge() -> None:
    verifier = Hangs(deadline_seconds=3600)
    task = asyncio.create_task(verifier.verify(CONTEXT, make("a"), make("b")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert verifier.cancelled


class Slow(Yes):
    async def _judge(self, context: VerificationContext, drafted: Step, target: Step | None) -> Verdict:
        await asyncio.sleep(0.02)
        return Verdict("accept", 1.0)


async def test_the_measured_cost_of_a_verdict_is_that_of_judging() -> None:
    """The two wordings must reach the judge: a rule that decided them first would cost nothing."""
    assert await measure_verdict(Slow()) >= 0.02


async def test_a_verdict_carries_its_cost() -> None:
    verdict = await Yes().verify(CONTEXT, make("a"), make("b"))
    assert verdict.cost_seconds > 0
    assert verdict.cost_tokens == 7


@pytest.mark.parametrize("ending", ["eos", "stop"])
async def test_a_step_that_ends_the_text_never_matches_one_that_goes_on(ending: FinishReason) -> None:
    ends, goes_on = make("x", ending, (1, 2)), make("x", "boundary", (1, 2))
    for verifier in (Yes(), ExactVerifier(), NumbersVerifier()):
        assert (await verifier.verify(CONTEXT, ends, goes_on)).decision == "reject"
        assert (await verifier.verify(CONTEXT, goes_on, ends)).decision == "reject"


@pytest.mark.parametrize("finish", CUT)
async def test_a_cut_step_matches_by_tokens_only(finish: FinishReason) -> None:
    cut = make("x", finish, (1, 2))
    for verifier in (Yes(), ExactVerifier(), NumbersVerifier()):
        assert (await verifier.verify(CONTEXT, cut, make("x", "boundary", (1, 2)))).decision == "accept"
        assert (await verifier.verify(CONTEXT, cut, make("x", "boundary", (3,)))).decision == "unknown"
        assert (await verifier.verify(CONTEXT, make("x", "boundary", (3,)), cut)).decision == "unknown"
        assert (await verifier.verify(CONTEXT, make("x", finish), make("x", finish))).decision == "unknown"


async def test_a_missing_target_step_is_unknown_unless_none_is_needed() -> None:
    assert (await Yes().verify(CONTEXT, make("x"))).decision == "unknown"
    assert (await NeedsNoTarget().verify(CONTEXT, make("x"))).decision == "accept"


async def test_exact_compares_tokens_within_a_tokenizer_and_text_across() -> None:
    verifier = ExactVerifier()
    same_text_other_tokens = await verifier.verify(
        CONTEXT, make("ab", tokens=(1, 2)), make("ab", tokens=(3,))
    )
    assert same_text_other_tokens.decision == "reject"
    across = await verifier.verify(CONTEXT, make("ab", tokens=(1, 2)), make("ab", tokens=(1,), tokenizer="u"))
    assert across.decision == "accept"
    other = await verifier.verify(
        CONTEXT, make("ab", tokens=(1, 2)), make("ac", tokens=(1, 2), tokenizer="u")
    )
    assert other.decision == "reject"


TEXTS = st.text(max_size=80) | st.lists(
    st.sampled_from(
        ["7", "8", "15", "+", "-", "=", "/", " Ben", " has", " carry ", ",", ".", "$", "\\frac{1}"]
    ),
    max_size=16,
).map("".join)


@given(
    TEXTS,
    TEXTS,
    st.sampled_from(FINISHES),
    st.sampled_from(FINISHES),
    st.text(max_size=40),
)
def test_verify_never_raises_and_scores_stay_in_range(
    a: str, b: str, finish_a: FinishReason, finish_b: FinishReason, context: str
) -> None:
    for verifier in (ExactVerifier(), NumbersVerifier()):
        verdict = asyncio.run(
            verifier.verify(VerificationContext(context, a), make(a, finish_a), make(b, finish_b))
        )
        assert verdict.decision in ("accept", "reject", "unknown")
        assert "Error" not in verdict.reason
        assert verdict.score is None or (0 <= verdict.score <= 1 and not math.isnan(verdict.score))


@given(st.text(max_size=200))
def test_a_whole_step_equals_itself(text: str) -> None:
    for verifier in (ExactVerifier(), NumbersVerifier()):
        for finish in ("boundary", "eos"):
            assert asyncio.run(verifier.verify(CONTEXT, make(text, finish), make(text, finish))).accepted


async def test_very_long_steps_are_unknown_but_for_equal_ones() -> None:
    long = "47 + 8 = 55. " * 5000
    verifier = NumbersVerifier()
    assert (await verifier.verify(CONTEXT, make(long), make(long + "x"))).decision == "unknown"
    assert (await verifier.verify(CONTEXT, make(long), make(long))).decision == "accept"


def test_the_factory_knows_its_names_and_the_settings_default() -> None:
    for name in verifier_names():
        verifier = create_verifier(name, VerifierSettings(deadline=1.5), MODELS)
        assert verifier.name == name
        assert verifier.deadline_seconds == 1.5
    assert create_verifier().name == verifier_names()[0]
    with pytest.raises(SettingsError, match=r"'nonsense'.*semantic"):
        create_verifier("nonsense")


def test_a_deadline_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="deadline"):
        ExactVerifier(0)


@pytest.mark.parametrize("name", verifier_names())
def test_a_threshold_is_kept_or_refused_never_ignored(name: str) -> None:
    settings = VerifierSettings(threshold=0.75)
    bare = create_verifier(name, models=MODELS)
    if bare.threshold is None:
        refused = rf"0\.75 is set for verifier {name}, which has none"
        with pytest.raises(SettingsError, match=refused):
            create_verifier(name, settings, MODELS)
        with pytest.raises(SettingsError, match=refused):
            bare.with_thresholds({name: 0.75})
    else:
        assert create_verifier(name, settings, MODELS).threshold == 0.75
        assert bare.with_thresholds({name: 0.75}).threshold == 0.75


def test_thresholds_of_verifiers_that_are_not_in_use_may_stay_in_the_settings() -> None:
    assert create_verifier("exact", VerifierSettings(thresholds={"semantic": 0.9})).name == "exact"
