"""What passes take while an engine works."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.worker.pass_times import PassTimes, merge_batch_times


@given(st.lists(st.tuples(st.integers(0, 600), st.floats(0.001, 1.0)), max_size=60))
def test_means_lie_among_what_was_measured_and_everything_is_counted(passes: list[tuple[int, float]]) -> None:
    times = PassTimes()
    for num_tokens, seconds in passes:
        times.add(num_tokens, seconds)
    assert times.num_passes == len(passes)
    assert times.busy_seconds == pytest.approx(sum(seconds for _, seconds in passes))
    kept = [(tokens, seconds) for tokens, seconds in passes if 1 <= tokens <= 96]
    means = times.means()
    assert bool(means) == bool(kept)
    for mean in means:
        assert min(seconds for _, seconds in kept) - 1e-9 <= mean.seconds
        assert mean.seconds <= max(seconds for _, seconds in kept) + 1e-9
    sizes = [mean.num_tokens for mean in means]
    assert sizes == sorted(sizes)


def test_a_machine_that_has_become_slower_shows_after_some_passes() -> None:
    times = PassTimes()
    for seconds in [0.01] * 200 + [0.03] * 300:
        times.add(1, seconds)
    (mean,) = times.means()
    assert mean.seconds > 0.028


def test_a_size_that_is_not_seen_any_more_tells_less_and_less() -> None:
    """Or passes that were dear once, beside other work, would never be tried again."""
    times = PassTimes()
    for _ in range(100):
        times.add(16, 3.0)
    at_first = times.means()[-1].count
    for _ in range(500):
        times.add(1, 0.02)
    small, large = times.means()
    assert large.seconds == pytest.approx(3.0)
    assert large.count < 0.1 * at_first < small.count
    for _ in range(2000):
        times.add(1, 0.02)
    assert [round(mean.num_tokens) for mean in times.means()] == [1]


def test_passes_on_other_cores_do_not_count() -> None:
    """What the target takes alone on all cores says nothing of passes beside a draft."""
    times = PassTimes()
    for num_threads, seconds in ((1, 0.02), (2, 0.05), (1, 0.02)):
        times.num_threads = num_threads
        for _ in range(100):
            times.add(1, seconds)
    assert [mean.seconds for mean in times.means()] == [pytest.approx(0.02)]
    times.num_threads = 2
    assert [mean.seconds for mean in times.means()] == [pytest.approx(0.05)]


def test_sizes_near_each_power_of_two_are_kept_apart() -> None:
    times = PassTimes()
    for num_tokens in (1, 2, 3, 4, 6, 17, 64, 96, 97):
        times.add(num_tokens, 0.01 * num_tokens)
    means = times.means()
    assert [round(mean.num_tokens, 1) for mean in means] == [1, 2, 3.5, 6, 17, 64, 96]
    assert [round(mean.seconds, 3) for mean in means] == [0.01, 0.02, 0.035, 0.06, 0.17, 0.64, 0.96]


def told(token_seconds: float, written: int, count: int = 40) -> PassTimes:
    times = PassTimes()
    for size in (1, 8, 32):
        for _ in range(count):
            times.add(size, 0.010 + token_seconds * size)
    for _ in range(100):
        times.add_generated(written, 0.020)
    return times


def test_a_token_is_worth_its_time_where_it_is_likelier_than_what_is_written_meanwhile() -> None:
    # 200 tokens a second: in the millisecond of a drafted token the engine writes 0.2 others.
    assert told(0.001, written=4).least_chance == pytest.approx(0.2, rel=0.01)
    assert told(0.002, written=4).least_chance == pytest.approx(0.4, rel=0.01)
    assert told(0.001, written=8).least_chance == pytest.approx(0.4, rel=0.01)


def test_where_tokens_cost_nothing_every_draft_is_worth_it() -> None:
    assert told(0.0, written=4).least_chance == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_left_out_before_it_is_known_what_a_token_costs() -> None:
    assert told(0.001, written=4, count=5).least_chance == 0.0
    assert PassTimes().least_chance == 0.0
    one_size = PassTimes()
    for _ in range(50):
        one_size.add(1, 0.01)
        one_size.add_generated(1, 0.01)
    assert one_size.least_chance == 0.0


def test_batches_are_kept_apart_by_threads_tokens_and_requests() -> None:
    times = PassTimes()
    for threads, factor in ((1, 1.0), (2, 0.5)):
        times.num_threads = threads
        for tokens, requests in ((1, 1), (8, 8), (64, 8), (64, 64)):
            for _ in range(5):
                times.add_batch(tokens, requests, factor * (0.01 + 0.001 * tokens + 0.0005 * requests))
    batches = times.batches()
    assert [(b.num_threads, round(b.num_tokens), round(b.num_requests)) for b in batches] == [
        (threads, *size) for threads in (1, 2) for size in ((1, 1), (8, 8), (64, 8), (64, 64))
    ]
    assert times.batch_time.of_one(64, 8) == pytest.approx(0.5 * 0.078, rel=0.02)
    times.num_threads = 1
    assert times.batch_time.of_one(64, 8) == pytest.approx(0.078, rel=0.02)


def test_what_a_new_worker_has_not_timed_yet_is_what_the_old_one_did() -> None:
    old, new = PassTimes(), PassTimes()
    old.num_threads = new.num_threads = 2
    for num_tokens, num_requests in ((1, 1), (9, 3), (32, 8)):
        old.add_batch(num_tokens, num_requests, 1.0)
    new.add_batch(8, 3, 2.0)
    told = merge_batch_times(old.batches(), new.batches())
    assert [(time.num_tokens, time.seconds) for time in told] == [(1, 1.0), (8, 2.0), (32, 1.0)]
    assert merge_batch_times(old.batches(), ()) == old.batches()
    assert merge_batch_times((), new.batches()) == new.batches()
