"""A replayed vote never writes more than all samples, and at certainty 1 it is theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vote_replay import Sample, vote_of

samples = st.lists(
    st.builds(Sample, st.sampled_from(["a", "a", "b", None]), st.integers(1, 50)), min_size=2, max_size=9
)


@given(samples, st.floats(0.51, 1), st.integers(1, 9))
def test_a_vote_writes_no_more_than_all_samples(drawn: list[Sample], certainty: float, batch: int) -> None:
    vote = vote_of(drawn, certainty, batch)
    assert 0 < vote.written <= 1
    assert vote.passes > 0
    if batch >= len(drawn):
        assert vote.passes <= 1
    assert 1 <= vote.num_drawn <= len(drawn)
    assert vote_of(drawn, 1.0, batch).same


def test_samples_at_once_are_written_until_the_vote() -> None:
    drawn = [Sample("a", 4), Sample("a", 2), Sample("b", 8), Sample("a", 3), Sample("a", 1)]
    vote = vote_of(drawn, 0.95, 5)
    # Three of five cannot be outvoted by the two that are left.
    assert vote.num_drawn == 3
    assert vote.passes == pytest.approx(3 / 8)
    assert vote.written == pytest.approx((1 + 2 + 3 + 3 + 3) / 18)
    in_turn = vote_of(drawn, 0.95, 1)
    assert in_turn.num_drawn == 4
    assert in_turn.passes == pytest.approx((4 + 2 + 8 + 3) / 8)
    by_two = vote_of(drawn, 0.95, 2)
    assert by_two.num_drawn == 3
    assert by_two.passes == pytest.approx((4 + 3) / 8)
    assert by_two.written == pytest.approx((4 + 2 + 3 + 3) / 18)
