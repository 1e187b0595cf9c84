"""A vote ends when its majority is likely enough to last, and what is then under way is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc

from reason_spec.accelerator import Accelerator
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import EngineError, SettingsError
from reason_spec.evaluation.job import LocalBackend, RunOptions, RunResult, run_job
from reason_spec.evaluation.metrics import StrategyMetrics, measure
from reason_spec.evaluation.outcome import Confidence, Outcome, VoteEnd
from reason_spec.evaluation.run import run
from reason_spec.evaluation.sources import Sources
from reason_spec.evaluation.view import SilentView
from reason_spec.evaluation.voting import SampleVotes, StopRule, certainty_of_majority, weighted_majority
from reason_spec.settings import load_settings
from reason_spec.types import Problem, Sampling, Step, Usage
from tests.evaluation.synthetic import make_outcome

# The rule ----------------------------------------------------------------------------------------

counts = st.lists(st.integers(1, 9), max_size=5)


@given(st.integers(0, 30), st.integers(0, 30))
def test_with_two_answers_the_certainty_is_the_papers_beta_criterion(a: int, b: int) -> None:
    first, second = max(a, b), min(a, b)
    assert certainty_of_majority([a, b]) == pytest.approx(1 - betainc(first + 1, second + 1, 0.5))


@given(counts)
def test_the_certainty_is_never_above_that_of_the_dirichlet_posterior(sizes: list[int]) -> None:
    """Of the answers that came: the posterior of their chances is Dirichlet(count + 1)."""
    chances = np.random.default_rng(0).dirichlet([size + 1 for size in sizes] or [1, 1], 4000)
    exact = float((chances.argmax(axis=1) == np.argmax(sizes or [0])).mean())
    assert certainty_of_majority(sizes) <= exact + 0.03


@given(counts, st.integers(0, 4))
def test_an_answer_more_for_the_majority_makes_it_no_less_certain(sizes: list[int], place: int) -> None:
    leading = [*sizes, max(sizes, default=0) + 1]
    assert certainty_of_majority([*leading[:-1], leading[-1] + 1]) >= certainty_of_majority(leading)


answers = st.lists(st.sampled_from(["a", "a", "a", "b", "c", None]), min_size=2, max_size=12)


def stop_of(drawn: Sequence[str | None], rule: StopRule) -> int:
    """Return after how many samples the rule ends the vote; all where it does not."""
    for num_drawn in range(1, len(drawn)):
        votes = Counter(answer for answer in drawn[:num_drawn] if answer)
        if rule.decides(list(votes.values()), num_drawn):
            return num_drawn
    return len(drawn)


@given(answers)
def test_at_certainty_one_the_vote_is_that_of_all_samples(drawn: list[str | None]) -> None:
    stop = stop_of(drawn, StopRule(len(drawn), 1.0))
    before, after = (Counter(answer for answer in part if answer) for part in (drawn[:stop], drawn))
    if stop < len(drawn):
        ((first, most),) = before.most_common(1)
        assert after[first] > max((n for answer, n in after.items() if answer != first), default=0)
        assert after[first] >= most


@given(answers, st.floats(0.51, 1), st.floats(0.51, 1))
def test_a_lower_certainty_never_draws_more(drawn: list[str | None], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert stop_of(drawn, StopRule(len(drawn), low)) <= stop_of(drawn, StopRule(len(drawn), high))


def test_decided_votes_are_right_as_often_as_they_say() -> None:
    """With chances from the prior the bound holds whenever the drawing ends."""
    generator = np.random.default_rng(1)
    num_decided = num_lasting = 0
    for chance in generator.uniform(size=1500):
        drawn = ["a" if hit else "b" for hit in generator.uniform(size=40) < chance]
        stop = stop_of(drawn, StopRule(40, 0.9))
        if stop < 40:
            num_decided += 1
            num_lasting += (Counter(drawn[:stop]).most_common(1)[0][0] == "a") == (chance > 0.5)
    assert num_decided > 1000
    assert num_lasting / num_decided > 0.9 - 0.02


@pytest.mark.parametrize(("num_samples", "certainty"), [(8, 0.5), (8, 1.01), (8, 0.0), (1, 0.9)])
def test_a_rule_that_decides_nothing_is_refused(num_samples: int, certainty: float) -> None:
    with pytest.raises(SettingsError, match="--stop-samples"):
        StopRule.checked(num_samples, certainty)


def test_votes_count_equal_numbers_together_and_problems_apart() -> None:
    votes = SampleVotes(StopRule(8, 0.95))
    keys = [make_outcome(problem, sample=sample).key for problem in range(2) for sample in range(5)]
    for key in keys[:4]:
        votes.add(key, f"The answer is {'3.0' if key.sample % 2 else '3'}.", "gsm8k")
    assert votes.is_decided(keys[4])
    assert not votes.is_decided(keys[5])
    assert not votes.is_decided(keys[4]._replace(strategy="lookahead"))


# A run -------------------------------------------------------------------------------------------

SURE, SPLIT = Problem("sure", "Of what are you sure?", "7"), Problem("split", "What splits you?", "5")
LONG = "It is long.\n\n" * 400


def accelerator_of(
    sure: Sequence[str], *, seconds_per_pass: float = 0.0, failing: Problem | None = None
) -> Accelerator:
    """Return an accelerator that fails to write the first sample of a problem."""
    settings = load_settings(flags={"target.kind": "scripted", "draft.kind": "scripted"})
    written = {
        SURE.question: tuple(sure),
        SPLIT.question: tuple(f"The answer is {5 + sample % 2}." for sample in range(8)),
    }
    script = WrittenAnswers(written)

    def write(text: str, sampling: Sampling) -> str:
        if failing is not None and failing.question in text and sampling.noise.sample == 0:
            raise EngineError("no answer")
        return script(text, sampling)

    target = ScriptedEngine("target", write, seconds_per_pass=seconds_per_pass)
    return Accelerator(settings, target, None, None)


async def draw(accelerator: Accelerator, certainty: float, concurrency: int = 1) -> list[Outcome]:
    votes = SampleVotes(StopRule(8, certainty))
    results = run(
        accelerator,
        [SURE, SPLIT],
        ["autoregressive"],
        samples=8,
        concurrency=concurrency,
        votes=votes,
    )
    async with accelerator:
        outcomes = [result async for result in results]
        assert (await accelerator.target.stats()).num_running == 0
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


def samples_of(outcomes: Sequence[Outcome], problem: Problem) -> list[int]:
    return [outcome.sample for outcome in outcomes if outcome.id == problem.id]


async def test_no_more_samples_are_drawn_once_the_vote_is_decided() -> None:
    same = ["The answer is 7."] * 8
    outcomes = await draw(accelerator_of(same), 0.95)
    assert samples_of(outcomes, SURE) == [0, 1, 2, 3]
    assert samples_of(outcomes, SPLIT) == list(range(8))
    assert [outcome.vote_end for outcome in outcomes[:4]] == [None, None, None, VoteEnd(4)]
    certain = await draw(accelerator_of(same), 1.0)
    assert samples_of(certain, SURE) == [0, 1, 2, 3, 4]


async def test_samples_under_way_are_cancelled_and_their_work_is_counted() -> None:
    sure = ["The answer is 7."] * 4 + [f"{LONG}The answer is {number}." for number in range(4)]
    outcomes = await draw(accelerator_of(sure, seconds_per_pass=0.001), 0.95, concurrency=8)
    assert samples_of(outcomes, SURE) == [0, 1, 2, 3]
    (end,) = [outcome.vote_end for outcome in outcomes if outcome.vote_end is not None]
    assert end.num_cancelled == 4
    assert 4 <= end.target.num_generated_tokens < 4 * 400
    (row,) = measure(outcomes).strategies
    assert row.vote is not None
    written = sum(outcome.usage.target.num_generated_tokens for outcome in outcomes)
    assert row.vote.tokens.value == pytest.approx((written + end.target.num_generated_tokens) / 2)
    assert (row.vote.num_samples.value, row.vote.num_stopped, row.vote.num_cancelled) == (6, 1, 4)


async def test_an_interrupt_leaves_no_sample_running() -> None:
    accelerator = accelerator_of([LONG] * 8, seconds_per_pass=0.001)
    async with accelerator:
        results = run(accelerator, [SURE], ["autoregressive"], samples=8, concurrency=8)
        task = asyncio.ensure_future(anext(results))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await accelerator.target.stats()).num_running == 0


async def stored(folder: Path, accelerator: Accelerator, **options: object) -> RunResult:
    wanted = RunOptions(("autoregressive",), 8, output=folder, **options)  # type: ignore[arg-type]
    sources = Sources("votes", (SURE, SPLIT), only_questions=False)
    async with accelerator:
        return await run_job(accelerator.settings, sources, wanted, SilentView(), LocalBackend(accelerator))


def vote_row(result: RunResult) -> StrategyMetrics:
    (row,) = result.metrics.strategies
    return row


async def test_a_stopped_vote_stays_stopped_and_can_be_opened_again(tmp_path: Path) -> None:
    same = ["The answer is 7."] * 8
    first = await stored(tmp_path, accelerator_of(same), stop_samples=0.95)
    assert (first.num_missing, vote_row(first).num_answers) == (0, 12)
    assert set(vote_row(first).majority_at) == {1}
    again = await stored(tmp_path, accelerator_of(same), stop_samples=0.95)
    assert (again.num_missing, vote_row(again).num_answers) == (0, 12)
    surer = await stored(tmp_path, accelerator_of(same), stop_samples=0.98)
    assert (surer.num_missing, vote_row(surer).num_answers) == (0, 13)
    every = await stored(tmp_path, accelerator_of(same))
    assert (every.num_missing, vote_row(every).num_answers) == (0, 16)


@pytest.mark.parametrize(("failing", "num_missing"), [(SURE, 0), (SPLIT, 1)])
async def test_a_failed_sample_that_its_vote_did_not_need_is_no_failure_of_the_run(
    tmp_path: Path, failing: Problem, num_missing: int
) -> None:
    accelerator = accelerator_of(["The answer is 7."] * 8, failing=failing)
    found = await stored(tmp_path, accelerator, stop_samples=0.95, concurrency=8)
    assert (len(found.failures), found.num_missing) == (num_missing, num_missing)


# Confidence --------------------------------------------------------------------------------------


def step(*logprobs: float) -> Step:
    return Step("text", tuple(range(len(logprobs))), "target", "boundary", logprobs=logprobs)


def test_the_confidence_of_an_answer_is_that_of_its_tokens() -> None:
    sure, unsure = float(np.log(0.9)), float(np.log(0.5))
    found = Confidence.of_steps([step(*[sure] * 64), step(*[unsure] * 64), step(*[sure] * 64)])
    assert found is not None
    assert found.lowest_group == pytest.approx(0.5)
    assert found.mean == pytest.approx((0.9 * 0.9 * 0.5) ** (1 / 3))
    short = Confidence.of_steps([step(sure, unsure)])
    assert short is not None
    assert short.lowest_group == short.mean == pytest.approx((0.9 * 0.5) ** 0.5)
    assert Confidence.of_steps([step(sure), replace(step(unsure), logprobs=None)]) is None


def sample(number: int, confidence: float, prediction: str | None) -> Outcome:
    return make_outcome(
        sample=number,
        correct=prediction == "1",
        prediction=prediction,
        confidence=Confidence(confidence, confidence),
        target=Usage(num_generated_tokens=10),
    )


def test_one_sure_sample_outvotes_two_unsure_ones() -> None:
    samples = [sample(0, 0.3, "2"), sample(1, 0.3, "2.0"), sample(2, 0.9, "1"), sample(3, 0.95, None)]
    assert weighted_majority(samples, 1.0) == 1.0
    assert weighted_majority([*samples[:2], sample(2, 0.6, "1")], 1.0) == 0.5
    assert weighted_majority([sample(0, 0.9, None)], 1.0) == 0.0
    # Only the sample without an answer is among the surest.
    assert weighted_majority(samples, 0.25) == 0.0
    assert weighted_majority([*samples, make_outcome(sample=4)], 1.0) is None


@given(st.lists(st.tuples(st.sampled_from(["1", "2", "3", None])), min_size=1, max_size=9))
def test_with_equal_confidence_the_weighted_vote_is_the_plain_one(drawn: list[tuple[str | None]]) -> None:
    samples = [sample(number, 0.5, prediction) for number, (prediction,) in enumerate(drawn)]
    (row,) = measure([*samples, make_outcome(1), make_outcome(1, sample=1)]).strategies
    assert row.vote is not None
    assert row.vote.accuracy is not None
    weighted = weighted_majority(samples, 1.0)
    assert weighted is not None
    assert (weighted + 1) / 2 == pytest.approx(row.vote.accuracy.value)
