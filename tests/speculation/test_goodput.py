"""How much is drafted for each request of a batch, and what passes are thought to take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.stats import PassTime
from reason_spec.speculation.goodput import (
    BatchTime,
    Demand,
    Floats,
    Share,
    allot,
    draft_limits,
    mean_rate,
    uniform_limit,
)


class Flat:
    """Passes that cost the same up to ``knee`` tokens, and ``steep`` times their share beyond it."""

    def __init__(self, knee: int, steep: float = 2.0) -> None:
        self.knee, self.steep = knee, steep

    def seconds(self, num_tokens: object, num_requests: object) -> Floats:
        beyond = np.maximum(np.asarray(num_tokens, np.float64) - self.knee, 0.0)
        return np.asarray(1.0 + self.steep * beyond / self.knee, np.float64)


demands = st.builds(
    Demand,
    token_rate=st.floats(0.0, 0.99),
    max_tokens=st.integers(0, 12),
    step_rate=st.floats(0.0, 0.99),
    max_depth=st.integers(0, 3),
)
batches = st.lists(demands, min_size=1, max_size=12)
times = st.builds(
    lambda base, token, request: BatchTime(
        [PassTime(n * r, base + token * n * r + request * r, 20, r) for n in (1, 4, 8) for r in (1, 4, 16)]
    ),
    st.floats(0.001, 0.1),
    st.floats(0.0, 0.01),
    st.floats(0.0, 0.01),
)


@given(times, st.lists(st.integers(1, 64), min_size=1, max_size=5).map(sorted), st.integers(1, 64))
def test_one_size_may_be_asked_with_many_of_the_other(time: BatchTime, many: list[int], one: int) -> None:
    ones = [one] * len(many)
    assert time.seconds(many, one) == pytest.approx(time.seconds(many, ones))
    assert time.seconds(one, many) == pytest.approx(time.seconds(ones, many))


@given(batches, times, st.floats(0.0, 0.01))
def test_no_batch_is_expected_to_be_slower_than_without_drafts(
    batch: list[Demand], time: BatchTime, draft_seconds: float
) -> None:
    chosen = allot(batch, time, draft_seconds=draft_seconds)
    alone = len(batch) / time.of_one(len(batch), len(batch))
    assert chosen.goodput >= alone * (1 - 1e-9)


@given(batches, times)
def test_no_request_gets_more_than_it_can_use_and_all_keep_their_own_token(
    batch: list[Demand], time: BatchTime
) -> None:
    chosen = allot(batch, time)
    assert chosen.num_tokens >= len(batch)
    assert chosen.num_generated >= len(batch)
    for share, demand in zip(chosen.shares, batch, strict=True):
        assert 0 <= share.depth <= demand.max_depth
        assert 0 <= share.num_draft_tokens <= demand.max_tokens


@given(demands, st.integers(1, 10), times)
def test_equal_requests_get_shares_that_differ_by_one_token_at_the_most(
    demand: Demand, number: int, time: BatchTime
) -> None:
    shares = allot([demand._replace(max_depth=0)] * number, time).shares
    tokens = [share.num_draft_tokens for share in shares]
    assert max(tokens) - min(tokens) <= 1


@given(batches, demands, times)
def test_a_likelier_request_takes_nothing_from_anybodys_own_token(
    batch: list[Demand], greedy: Demand, time: BatchTime
) -> None:
    with_it = allot([*batch, greedy._replace(token_rate=0.99)], time)
    assert with_it.num_tokens >= len(batch) + 1


@given(st.floats(0.3, 0.99), st.integers(4, 16), st.integers(16, 128), st.data())
def test_the_fuller_a_batch_the_less_is_drafted_for_each_of_it_and_in_all_once_passes_are_full(
    rate: float, most: int, knee: int, data: st.DataObject
) -> None:
    few = data.draw(st.integers(1, knee))
    many = data.draw(st.integers(few, 2 * knee))
    drafted = {}
    for number in (few, many):
        chosen = allot([Demand(rate, most)] * number, Flat(knee))
        drafted[number] = chosen.num_tokens - number, max(s.num_draft_tokens for s in chosen.shares)
    assert drafted[many][1] <= drafted[few][1]
    if few * (1 + most) >= knee:
        assert drafted[many][0] <= drafted[few][0]
    if many >= knee:
        assert drafted[many][0] == 0


def test_what_passes_take_for_nothing_is_filled() -> None:
    chosen = allot([Demand(0.9, 16)] * 4, Flat(64))
    assert 64 <= chosen.num_tokens <= 64 / 0.95
    assert allot([Demand(0.9, 16)], Flat(64)).shares == (Share(0, 16),)


def test_steps_ahead_are_opened_where_they_are_likelier_than_further_tokens() -> None:
    (share,) = allot([Demand(0.5, 8, 0.9, 4)], Flat(12)).shares
    assert share.depth > 0
    (share,) = allot([Demand(0.99, 8, 0.1, 4)], Flat(8)).shares
    assert share.depth == 0


def test_a_pass_holds_no_more_drafts_than_are_written_during_it() -> None:
    time = Flat(64)
    assert allot([Demand(0.9, 16)] * 2, time, draft_seconds=0.1).num_tokens <= 2 + 10
    assert allot([Demand(0.9, 16)] * 2, time, draft_seconds=5.0).num_tokens == 2


@given(
    st.floats(0.001, 0.1), st.floats(0.0, 0.01), st.floats(0.0, 0.01), st.integers(1, 64), st.integers(1, 8)
)
def test_the_time_of_a_batch_is_found_between_and_beyond_what_was_measured(
    base: float, token: float, request: float, requests: int, each: int
) -> None:
    def truth(n: float, r: float) -> float:
        return base + token * n + request * r

    measured = [PassTime(r * k, truth(r * k, r), 30, r) for r in (1, 4, 16) for k in (1, 3, 8)]
    found = BatchTime(measured).of_one(requests * each, requests)
    assert found == pytest.approx(truth(requests * each, requests), rel=0.02)


def test_a_knee_in_the_time_of_passes_is_followed() -> None:
    time = BatchTime(
        [PassTime(n, 0.01 if n <= 16 else 0.01 * n / 16, 50, 1) for n in (1, 2, 4, 8, 16, 32, 64)]
    )
    assert time.of_one(4, 1) == pytest.approx(0.01, rel=0.1)
    assert time.of_one(64, 1) == pytest.approx(0.04, rel=0.1)


def test_with_too_little_measured_nothing_is_limited() -> None:
    batch = [Demand(0.1, 7), Demand(0.9, 3)]
    for measured in ([], [PassTime(8, 0.1, 9, 8)]):
        assert draft_limits(batch, BatchTime(measured)) == [7, 3]


def test_the_limit_of_equal_requests_tells_of_their_number_alone() -> None:
    time = BatchTime([PassTime(n, 0.01 + 0.01 * n, 50, 1) for n in (1, 4, 16, 64)])
    limits = [uniform_limit(number, 16, 0.7, time) for number in (1, 2, 8, 32)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 0


@given(st.floats(0.01, 0.99), st.integers(1, 24))
def test_the_mean_rate_of_a_chain_of_one_rate_is_that_rate(rate: float, num_tokens: int) -> None:
    assert mean_rate([rate**number for number in range(1, num_tokens + 1)]) == pytest.approx(rate, abs=1e-4)


@given(st.lists(st.floats(0, 1), max_size=24))
def test_a_chain_of_the_mean_rate_expects_as_many_tokens(chances: list[float]) -> None:
    rate = mean_rate(chances)
    expected = sum(rate**number for number in range(1, len(chances) + 1))
    assert expected == pytest.approx(sum(chances), abs=1e-2)
