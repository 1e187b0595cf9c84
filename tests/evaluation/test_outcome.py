from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.outcome import AnswerUsage, Outcome, StepRecord
from reason_spec.evaluation.run import run
from reason_spec.events import EarlyExit
from reason_spec.types import Decision, FinishReason, LossClass, Origin, Plan, Usage, Verdict
from tests.evaluation.problems import Sum, make_accelerator

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
counts = st.integers(0, 10_000)
seconds = st.floats(0, 1e4, allow_nan=False)
usages = st.builds(Usage, *[counts] * 8)
verdicts = st.builds(
    Verdict, st.sampled_from(get_args(Decision)), st.none() | st.floats(-1, 1), seconds, counts, texts
)


@st.composite
def steps(draw: st.DrawFn) -> StepRecord:
    ids = tuple(draw(st.lists(counts, max_size=5)))
    origin = draw(st.sampled_from(get_args(Origin)))
    finish = draw(st.sampled_from(get_args(FinishReason)))
    return StepRecord(draw(texts), origin, len(ids), finish, draw(st.none() | verdicts), ids)


works = st.builds(
    AnswerUsage,
    usages,
    usages,
    st.fixed_dictionaries(dict.fromkeys(get_args(Decision), counts)),
    seconds,
    st.none() | st.floats(-1, 1),
    num_late_drafts=counts,
)
# Left to the annotations, a plan's rates may be NaN, which is unequal to itself.
plans = st.builds(
    Plan,
    depth=counts,
    num_draft_tokens=counts,
    tokens_per_second=st.none() | seconds,
    known_tokens=seconds,
    num_known=counts,
)
outcomes = st.builds(
    Outcome,
    plan=st.none() | plans,
    id=texts,
    index=counts,
    question=texts,
    answer=st.none() | texts,
    response=texts,
    prediction=st.none() | texts,
    correct=st.none() | st.booleans(),
    strategy=texts,
    sample=counts,
    seed=counts,
    seconds=seconds,
    first_step_seconds=seconds,
    tokens=counts,
    steps=st.lists(steps(), max_size=3).map(tuple),
    usage=works,
    finish=st.sampled_from(get_args(FinishReason)),
    loss_class=st.sampled_from(get_args(LossClass)),
    concurrency=counts,
    order=counts,
    session=texts,
    settings_hash=texts,
    early_exit=st.none() | st.builds(EarlyExit, texts, counts, texts, st.floats(0, 1)),
)


@given(outcomes)
def test_a_line_holds_all_of_an_outcome(outcome: Outcome) -> None:
    line = outcome.to_json()
    assert "\n" not in line
    assert Outcome.from_json(line) == outcome


@given(outcomes)
def test_a_line_also_holds_the_rates_that_its_counts_give(outcome: Outcome) -> None:
    record = json.loads(outcome.to_json())
    assert record["alpha_step"] == outcome.alpha_step
    assert record["alpha_token"] == outcome.alpha_token
    accepted, proposed = outcome.usage.verdicts["accept"], outcome.usage.num_proposed
    assert proposed == outcome.usage.num_verdicts + outcome.usage.num_late_drafts
    assert record["alpha_step_of_all"] == (accepted / proposed if proposed else None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "should be an object"),
        ("{", "Invalid JSON"),
        ('{"id": "1"}', "index: Field required"),
    ],
)
def test_a_damaged_line_says_what_is_wrong(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Outcome.from_json(line)


async def test_a_step_that_lacks_a_field_and_a_count_that_is_none_are_damage() -> None:
    outcome = await solved()
    record = json.loads(outcome.to_json())
    del record["steps"][0]["origin"]
    with pytest.raises(ValueError, match="origin"):
        Outcome.from_json(json.dumps(record))
    record = json.loads(outcome.to_json())
    record["usage"]["target"]["num_passes"] = "many"
    with pytest.raises(ValueError, match="num_passes"):
        Outcome.from_json(json.dumps(record))


async def test_the_outcome_of_a_solution_counts_what_was_done() -> None:
    outcome = await solved()
    assert outcome.response == Sum(3).answer() == "".join(step.text for step in outcome.steps)
    assert outcome.finish == "eos"
    assert outcome.usage.num_verdicts >= 1
    assert outcome.usage.verdicts["reject"] >= 1
    assert 0 < outcome.first_step_seconds <= outcome.seconds
    assert sum(outcome.num_steps_by_origin.values()) == len(outcome.steps) == 3
    assert outcome.tokens_per_second == pytest.approx(outcome.tokens / outcome.seconds)
    assert replace(outcome, seconds=0.0).tokens_per_second == 0.0


async def solved() -> Outcome:
    async with make_accelerator() as accelerator:
        (outcome,) = [result async for result in run(accelerator, [Sum(3).problem()], ["lookahead"])]
    assert isinstance(outcome, Outcome)
    return outcome
