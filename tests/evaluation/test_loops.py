"""A text is measured up to where it begins to loop, in tokens and in seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.evaluation.loops import (
    LOOP_TIMES,
    LOOP_TOKENS,
    LoopScanner,
    loop_start,
    seconds_until,
    until_loop,
)
from reason_spec.evaluation.timeline import Mark, Timeline
from tests.evaluation.synthetic import make_outcome

BEFORE = tuple(range(1000, 1040))


@given(st.integers(1, 60), st.integers(0, 40))
def test_a_loop_of_any_length_is_found_where_it_comes_for_the_third_time(period: int, before: int) -> None:
    loop = tuple(range(period))
    start = loop_start(BEFORE[:before] + loop * 200)
    assert start == before + (LOOP_TIMES - 1) * period


@given(st.lists(st.integers(0, 2), max_size=120))
def test_only_what_is_cut_occurs_a_third_time(tokens: list[int]) -> None:
    start = LoopScanner(length=3).feed(tokens)
    end = len(tokens) if start is None else start + 2
    windows = [tuple(tokens[place : place + 3]) for place in range(max(0, end - 2))]
    assert max(map(windows.count, windows), default=0) < LOOP_TIMES
    if start is not None:
        assert windows.count(tuple(tokens[start : start + 3])) == LOOP_TIMES - 1


@pytest.mark.parametrize(("count", "seconds"), [(5, 0.5), (10, 1.0), (15, 2.0), (20, 3.0)])
def test_seconds_lie_on_straight_lines_between_final_tokens(count: int, seconds: float) -> None:
    assert seconds_until([(10, 1.0), (20, 3.0)], count) == pytest.approx(seconds)


def test_an_answer_keeps_the_tokens_and_the_seconds_before_its_loop() -> None:
    whole = make_outcome()
    record = whole.steps[0]
    tokens = BEFORE + tuple(range(LOOP_TOKENS)) * 5
    steps = tuple(
        replace(record, token_ids=part, tokens=len(part))
        for part in (tokens[:50], tokens[50:90], tokens[90:])
    )
    looping = replace(whole, steps=steps, tokens=len(tokens), seconds=14.0)
    marks = [Mark("final", "target", at, index, 0, step.tokens) for index, (at, step) in enumerate(
        zip((5.0, 9.0, 14.0), steps, strict=True)
    )]  # fmt: skip
    cut = until_loop(looping, Timeline(looping.key, tuple(marks)))
    assert cut.token_ids == tokens[:80]
    assert [step.tokens for step in cut.steps] == [50, 30]
    assert cut.tokens == 80
    assert cut.seconds == pytest.approx(8.0)
    assert until_loop(looping, None).seconds == pytest.approx(8.0)
    assert until_loop(whole, None) is whole
