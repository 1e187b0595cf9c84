"""Ranks of surprise: the share that is rejected is bounded, whatever the scale of the scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator
from reason_spec.engines.generation import Score
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import SettingsError
from reason_spec.settings import load_settings
from reason_spec.types import Prefix, Step, Usage, Verdict
from reason_spec.verifiers.base import VerificationContext, create_verifier
from reason_spec.verifiers.conformal import ConformalVerifier


class Surprised(ScriptedEngine):
    """Gives each token of a step the log-probability minus its id."""

    def __init__(self) -> None:
        super().__init__("target", WrittenAnswers({}))

    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        return Score(tuple(-float(token) for token in continuation), continuation, Usage(num_scored_tokens=1))


def step(surprise: int) -> Step:
    return Step("A step.", (surprise,), "draft", "boundary")


def context(owner: str = "") -> VerificationContext:
    return VerificationContext("?", "", Prefix((1,), owner=owner))


def verdicts(surprises: Sequence[int], threshold: float) -> list[Verdict]:
    verifier = ConformalVerifier(Surprised(), threshold)

    async def judge() -> list[Verdict]:
        return [await verifier.verify(context(), step(surprise)) for surprise in surprises]

    return asyncio.run(judge())


@pytest.mark.parametrize("threshold", [0.1, 0.4])
def test_the_target_writes_the_share_of_the_threshold_and_the_most_surprising_steps(threshold: float) -> None:
    generator = np.random.default_rng(0)
    surprises = generator.permutation(1500).tolist()
    judged = [
        (surprise, verdict.decision)
        for surprise, verdict in zip(surprises, verdicts(surprises, threshold), strict=True)
    ][20:]
    rejected = [surprise for surprise, decision in judged if decision == "reject"]
    accepted = [surprise for surprise, decision in judged if decision == "accept"]
    assert len(rejected) + len(accepted) == len(judged)
    assert threshold - 0.05 < len(rejected) / len(judged) < threshold + 0.03
    assert np.median(rejected) > max(np.quantile(accepted, 0.9), 1500 * (1 - threshold) - 50)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 50), min_size=25, max_size=60), st.integers(2, 9))
def test_only_the_order_of_scores_matters(surprises: list[int], factor: int) -> None:
    decided = [verdict.decision for verdict in verdicts(surprises, 0.4)]
    rescaled = [surprise * surprise * factor + factor for surprise in surprises]
    assert [verdict.decision for verdict in verdicts(rescaled, 0.4)] == decided
    assert decided[:20] == ["unknown"] * 20
    assert "unknown" not in decided[20:]


async def test_owners_do_not_share_ranks() -> None:
    verifier = ConformalVerifier(Surprised(), 0.4)
    for _ in range(30):
        await verifier.verify(context("a"), step(1))
    assert (await verifier.verify(context("a"), step(9))).decision == "reject"
    assert (await verifier.verify(context("b"), step(9))).decision == "unknown"
    # Another threshold goes on from the same earlier steps.
    other = verifier.with_thresholds({"conformal": 0.01})
    assert (await other.verify(context("a"), step(8))).decision == "accept"


async def test_a_target_that_cannot_score_leaves_the_step_to_itself() -> None:
    class Breaks(Surprised):
        async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
            raise ZeroDivisionError("a broken engine")

    verifier = ConformalVerifier(Breaks(), 0.0)
    for _ in range(30):
        assert (await verifier.verify(context(), step(1))).decision == "unknown"


def test_it_needs_a_target_and_its_threshold_is_not_tuned_by_replay() -> None:
    from reason_spec.lab.tuning.verifier import judging_part

    with pytest.raises(SettingsError, match="conformal needs a target"):
        create_verifier("conformal")
    with pytest.raises(SettingsError, match="cannot be replayed"):
        judging_part(ConformalVerifier(Surprised()))


def test_atts_is_judged_by_ranks() -> None:
    settings = load_settings(flags={"target.kind": "scripted", "draft.kind": "scripted"})
    accelerator = Accelerator(settings, Surprised(), Surprised(), None)
    strategy = accelerator.generator.strategy("atts")
    assert (strategy.verifier.name, strategy.loss_class) == ("conformal", "routed")
