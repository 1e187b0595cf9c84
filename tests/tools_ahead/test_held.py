"""Results of calls that ran ahead: what is used, what is dropped, and what the limits stop."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import SettingsError
from reason_spec.tools_ahead.calls import Call
from reason_spec.tools_ahead.held import AheadBudget, AheadLimits, HeldResults, size_of
from reason_spec.tools_ahead.predictor import Prediction

A, B, C = (Call.of("get", {"key": key}) for key in "abc")


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Runs:
    """Futures of the calls that were started, to be ended by the test."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}
        self.all: list[Future[Any]] = []

    def __call__(self, call: Call) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures[call.key] = future
        self.all.append(future)
        return future


def start(held: HeldResults, runs: Runs, *calls: Call, chance: float = 0.9) -> list[Call]:
    return held.start([Prediction(call, chance) for call in calls], 0.5, runs)


def test_a_result_is_used_once_for_the_same_call_alone() -> None:
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    assert start(held, runs, A) == [A]
    assert start(held, runs, A) == [], "it runs already"
    runs.futures[A.key].set_result("found")
    assert held.take(B) is None
    used = held.take(Call.of("get", {"key": "a"}))
    assert used is not None
    assert used.result().result == "found"
    assert held.take(A) is None
    report = held.close()
    assert (report.num_read_only, report.num_started, report.num_used) == (3, 1, 1)


def test_nothing_starts_after_the_end() -> None:
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    held.close()
    assert start(held, runs, A) == []
    assert runs.all == []


def test_a_call_that_still_runs_is_waited_for() -> None:
    time = Time()
    held, runs = HeldResults(AheadBudget(AheadLimits(), time)), Runs()
    start(held, runs, A)
    time.now = 2.0
    used = held.take(A)
    assert used is not None
    assert not used.done()
    time.now = 5.0
    runs.futures[A.key].set_result(1)
    assert used.result(1).age == 5.0
    assert held.report().saved_seconds == 2.0, "it was started two seconds before it was asked for"


def test_unlikely_calls_do_not_run() -> None:
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    assert start(held, runs, A, chance=0.49) == []
    assert runs.futures == {}


def test_old_results_and_those_before_a_change_are_dropped() -> None:
    time = Time()
    held, runs = HeldResults(AheadBudget(AheadLimits(max_age=10.0), time)), Runs()
    start(held, runs, A, B)
    for future in runs.futures.values():
        future.set_result(1)
    time.now = 10.5
    assert held.take(A) is None
    start(held, runs, C)
    held.begin_write()
    assert held.take(C) is None
    assert start(held, runs, A) == [], "nothing starts while something may change"
    held.end_write()
    assert start(held, runs, A) == [A]
    assert held.close().dropped == {"stale": 2, "changed": 1, "unused": 1}


def test_a_result_that_arrives_after_a_change_is_not_used() -> None:
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    start(held, runs, A)
    before = runs.futures[A.key]
    held.begin_write()
    held.end_write()
    assert before.cancelled()
    assert held.take(A) is None


def test_failures_are_dropped_and_handed_to_who_waits() -> None:
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    start(held, runs, A, B)
    runs.futures[A.key].set_exception(OSError("down"))
    assert held.take(A) is None
    waiting = held.take(B)
    assert waiting is not None
    runs.futures[B.key].set_exception(OSError("down"))
    with pytest.raises(OSError, match="down"):
        waiting.result(1)
    assert held.close().dropped == {"failed": 2}


def test_limits_of_calls_seconds_and_bytes() -> None:
    time = Time()
    limits = AheadLimits(max_calls=2, max_seconds=5.0, max_bytes=100)
    held, runs = HeldResults(AheadBudget(limits, time)), Runs()
    assert start(held, runs, A, B, C) == [A, B]
    runs.futures[A.key].set_result("x" * 60)
    runs.futures[B.key].set_result("x" * 60)
    assert held.take(B) is None, "both results are larger than the limit"
    time.now = 6.0
    held.drop_all()
    assert start(held, runs, C) == [C]
    time.now = 12.0
    held.drop_all()
    assert start(held, runs, A) == [], "calls have run in vain for longer than the limit"
    assert held.close().dropped == {"too_large": 1, "changed": 2}


def test_a_dropped_call_that_runs_on_takes_its_place_and_wastes_its_time_until_it_ends() -> None:
    time = Time()
    held, runs = HeldResults(AheadBudget(AheadLimits(max_calls=1, max_seconds=30.0), time)), Runs()
    start(held, runs, A)
    # A thread that runs it cannot be cancelled.
    runs.futures[A.key].set_running_or_notify_cancel()
    time.now = 1.0
    held.drop_all()
    assert start(held, runs, B) == []
    time.now = 20.0
    assert held.report().wasted_seconds == 20.0
    runs.futures[A.key].set_result("late")
    time.now = 40.0
    assert held.report().wasted_seconds == 20.0
    assert start(held, runs, B) == [B]
    runs.futures[B.key].set_running_or_notify_cancel()
    held.drop_all()
    time.now = 50.0
    runs.futures[B.key].set_exception(OSError("down"))
    assert start(held, runs, A) == [], "calls have run in vain for as long as the limit"
    assert held.close().dropped == {"changed": 2}


@pytest.mark.parametrize(
    "limits", [AheadLimits(max_calls=1), AheadLimits(max_seconds=5.0), AheadLimits(max_bytes=100)]
)
def test_sessions_with_one_budget_share_its_limits(limits: AheadLimits) -> None:
    time = Time()
    budget = AheadBudget(limits, time)
    first, second, runs = HeldResults(budget), HeldResults(budget), Runs()
    other = HeldResults(AheadBudget(limits, time))
    start(first, runs, A)
    time.now = 6.0
    runs.futures[A.key].set_result("x" * 100)
    if limits.max_seconds == 5.0:
        first.drop_all()
    assert start(second, runs, B) == [], "the first session has used what both may use"
    assert start(other, runs, B) == [B]
    first.close()
    assert start(second, runs, C) == [C]


def test_results_of_all_sessions_count_against_the_bytes_of_their_budget() -> None:
    budget = AheadBudget(AheadLimits(max_bytes=100))
    first, second, runs = HeldResults(budget), HeldResults(budget), Runs()
    start(first, runs, A)
    start(second, runs, B)
    for future in runs.all:
        future.set_result("x" * 60)
    assert first.take(A) is not None
    assert second.take(B) is None
    assert second.close().dropped == {"too_large": 1}


def test_an_idle_session_keeps_no_place_with_old_results() -> None:
    time = Time()
    budget = AheadBudget(AheadLimits(max_calls=1, max_age=10.0), time)
    idle, busy, runs = HeldResults(budget), HeldResults(budget), Runs()
    start(idle, runs, A)
    runs.futures[A.key].set_result(1)
    assert start(busy, runs, B) == []
    time.now = 10.5
    assert start(busy, runs, B) == [B]
    assert idle.report().dropped == {"stale": 1}


def test_calls_of_a_closed_session_take_their_place_until_they_end() -> None:
    time = Time()
    budget = AheadBudget(AheadLimits(max_calls=1, max_seconds=5.0), time)
    closed, open_one, runs = HeldResults(budget), HeldResults(budget), Runs()
    start(closed, runs, A)
    runs.futures[A.key].set_running_or_notify_cancel()
    closed.close()
    time.now = 4.0
    assert start(open_one, runs, B) == []
    assert budget.used() == (1, 4.0, 0)
    time.now = 8.0
    runs.futures[A.key].set_result("late")
    assert start(open_one, runs, B) == [B]
    assert budget.used() == (1, 0.0, 0)
    assert closed.report().wasted_seconds == 8.0


def test_a_session_that_was_never_closed_takes_no_place_once_it_is_gone() -> None:
    budget = AheadBudget(AheadLimits(max_calls=1))
    gone, runs = HeldResults(budget), Runs()
    start(gone, runs, A)
    runs.futures.pop(A.key).set_result(1)
    runs.all.clear()
    del gone
    gc.collect()
    assert start(HeldResults(budget), runs, B) == [B]


def test_threads_of_several_sessions_start_no_more_calls_than_their_budget_has() -> None:
    budget = AheadBudget(AheadLimits(max_calls=5))
    sessions, runs = [HeldResults(budget) for _ in range(8)], Runs()
    together = threading.Barrier(len(sessions))

    def start_all(held: HeldResults) -> int:
        together.wait()
        return len(start(held, runs, A, B, C))

    with ThreadPoolExecutor(len(sessions)) as pool:
        assert sum(pool.map(start_all, sessions)) == 5
    assert budget.used().num_calls == len(runs.all) == 5


@pytest.mark.parametrize(
    ("result", "size"),
    [("für", 4), ("\ud83d", 3), (b"abc", 3), ({"a": "ü"}, 11), (np.zeros(1000, np.float32), 4000)],
)
def test_the_size_of_a_result_is_in_bytes(result: object, size: int) -> None:
    assert size_of(result) == size


def test_what_becomes_of_calls_is_logged_without_their_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    held, runs = HeldResults(AheadBudget(AheadLimits())), Runs()
    secret, other = Call.of("search", {"text": "secret"}), Call.of("search", {"text": "another secret"})
    start(held, runs, secret, other)
    runs.futures[secret.key].set_result("secret")
    held.take(secret)
    held.begin_write()
    started, _, used, dropped = caplog.messages
    assert started == "a call of search runs ahead, chance 0.90"
    assert used.startswith("a call of search that ran ahead is used")
    assert dropped == "a call of search that ran ahead is dropped: changed"
    assert "secret" not in caplog.text


@pytest.mark.parametrize("field", ["max_calls", "max_seconds", "max_bytes", "max_age"])
def test_negative_limits_are_refused_by_name(field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        AheadLimits(**{field: -1})


@given(st.lists(st.sampled_from(["start", "finish", "fail", "take", "write", "later"]), max_size=30))
def test_every_call_is_used_or_dropped_once(actions: list[str]) -> None:
    time = Time()
    held, runs = HeldResults(AheadBudget(AheadLimits(max_age=3.0), time)), Runs()
    waiting = []
    for number, action in enumerate(actions):
        call = (A, B, C)[number % 3]
        if action == "start":
            start(held, runs, A, B, C)
        elif action == "take":
            waiting.append(held.take(call))
        elif action == "write":
            held.begin_write()
            held.end_write()
        elif action == "later":
            time.now += 1.0
        elif (future := runs.futures.get(call.key)) is not None and not future.done():
            future.set_result(1) if action == "finish" else future.set_exception(OSError())
    for future in runs.all:
        if not future.done():
            future.set_result(1)
    report = held.close()
    assert report.num_started == report.num_used + sum(report.dropped.values())
    assert report.num_used == sum(one is not None and one.exception() is None for one in waiting)


def test_threads_do_not_use_a_result_twice() -> None:
    held = HeldResults(AheadBudget(AheadLimits(max_calls=1)))
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            held.start([Prediction(A, 1.0)], 0.5, lambda call: pool.submit(str, call.key))
            together = threading.Barrier(4)

            def take(together: threading.Barrier = together) -> bool:
                together.wait()
                return held.take(A) is not None

            assert sum(one.result() for one in [pool.submit(take) for _ in range(4)]) == 1
