"""A replayed vote never writes more than all samples, and at certainty 1 it is theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vote_replay import Sample, vote_of

samples = st.lists(
    st.builds(Sample, st.sampled_from(["a", "a", "b", None]), st.integers(1, 50)), min_size=2, max_size=9
)


@given(samples, st.floats(0.51, 1), st.booleans())
def test_a_vote_writes_no_more_than_all_samples(drawn: list[Sample], certainty: float, at_once: bool) -> None:
    if at_once:
        drawn.sort(key=lambda sample: sample.length)
    vote = vote_of(drawn, certainty, at_once=at_once)
    assert 0 < vote.written <= 1
    assert 0 < vote.passes <= 1
    assert 1 <= vote.num_drawn <= len(drawn)
    assert vote_of(drawn, 1.0, at_once=at_once).same


def test_samples_at_once_are_written_until_the_vote() -> None:
    drawn = [Sample("a", 1), Sample("a", 2), Sample("a", 3), Sample("a", 4), Sample("b", 8)]
    vote = vote_of(drawn, 0.95, at_once=True)
    # Three of five cannot be outvoted by the two that are left.
    assert (vote.num_drawn, vote.passes) == (3, pytest.approx(3 / 8))
    assert vote.written == pytest.approx((1 + 2 + 3 + 3 + 3) / 18)
    assert vote_of(drawn, 0.95, at_once=False).written == pytest.approx(6 / 18)
