"""What the load controller decides, when it changes its mind, and what it learns."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.control.budget import RequestedBudget
from reason_spec.control.constants import LOAD_CONSTANTS
from reason_spec.control.costs import BatchCosts
from reason_spec.settings import SpeculationMode
from reason_spec.speculation.goodput import BatchTime
from tests.control.load import REQUESTED, World, costs


def test_one_answer_is_left_to_the_planner_and_a_full_engine_to_the_target() -> None:
    world = World(costs(token=0.004, alone=0.5))
    world.load(1)
    assert (world.live[0].depth, world.live[0].num_draft_tokens) == REQUESTED
    world.load(64)
    world.wait(3)
    assert world.controller.mode == "none"
    assert all((live.depth, live.num_draft_tokens) == (0, 0) for live in world.live)
    assert world.cores[-1], "the target has not got the draft's core"


def test_how_one_answer_was_written_alone_is_not_held_on_to_beside_another() -> None:
    world = World(costs(draft=0.004, token=0.002), hold_seconds=100.0)
    world.load(1)
    modes = [world.controller.mode]
    world.load(2)
    modes.append(world.controller.mode)
    world.wait(10)
    assert [*modes, world.controller.mode] == ["steps", "tokens", "tokens"]


def test_steps_ahead_are_not_begun_where_an_answer_alone_is_mostly_joined_by_another() -> None:
    world = World(costs(draft=0.004, token=0.002))
    for _ in range(3):
        world.load(1)
        world.load(2)
    world.load(1)
    assert (world.controller.mode, world.live[0].depth) == ("tokens", 0)
    assert world.live[0].num_draft_tokens == REQUESTED.num_draft_tokens
    for _ in range(20):
        world.load(0)
        world.load(1)
    assert (world.controller.mode, world.live[0].depth) == ("steps", REQUESTED.depth)
    assert world.live[0].follows_plan


def test_where_steps_are_held_back_the_next_answer_begins_without_them() -> None:
    """Though the last round was a moment ago."""
    world = World(costs(draft=0.004, token=0.002))
    for _ in range(3):
        world.load(1)
        world.load(2)
    world.load(0)
    with world.controller.admit(REQUESTED) as live:
        assert live.share.depth == 0
        assert not live.follows_plan


def test_an_answer_that_can_only_use_steps_is_left_them_whoever_joins() -> None:
    world = World(costs())
    for _ in range(5):
        world.load(1, RequestedBudget(2, 0))
        world.load(2, RequestedBudget(2, 0))
    world.load(1, RequestedBudget(2, 0))
    assert world.live[0].depth == 2


def test_it_comes_back_after_a_spike() -> None:
    world = World(costs(token=0.002))
    world.load(2)
    modes = [world.controller.mode]
    for num_answers in (64, 2):
        world.load(num_answers)
        world.wait(5)
        modes.append(world.controller.mode)
    assert modes == [modes[0], "none", modes[0]]
    assert modes[0] != "none"
    assert world.drafted > 0
    assert not world.cores[-1]


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 48), min_size=1, max_size=4),
    st.floats(0.0, 0.01),
    st.floats(0.3, 1.0),
    st.floats(0.0005, 0.02),
)
def test_nothing_is_chosen_that_is_expected_to_be_slower_than_the_target_alone(
    loads: list[int], token: float, alone: float, draft: float
) -> None:
    world = World(costs(token, alone=alone, draft=draft))
    for load in loads:
        world.load(load)
        expected = world.controller.expected
        if load > 1:
            assert expected[world.controller.mode] >= expected["none"] / (1 + LOAD_CONSTANTS.margin) - 1e-9
        world.wait(0.6)


@settings(max_examples=12)
@given(st.integers(2, 32), st.lists(st.floats(0.98, 1.02), min_size=10, max_size=20))
def test_small_changes_of_costs_do_not_make_it_waver(load: int, noise: list[float]) -> None:
    world = World(costs(0.002, alone=0.6))
    world.load(load)
    world.wait(2)
    before = world.controller.num_mode_changes
    for factor in noise:
        world.costs = costs(0.002 * factor, alone=0.6)
        world.wait(0.3)
    assert world.controller.num_mode_changes - before <= 1


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(2, 8), st.floats(0.01, 0.5)), min_size=1, max_size=12))
def test_speculation_comes_back_no_more_often_than_the_settings_say(changes: list[tuple[int, float]]) -> None:
    world = World(costs(0.002), hold_seconds=2.0)
    began: list[float] = []
    # The last changes are slow enough for speculation to return at least twice.
    for load, seconds in [*changes, (2, 3.0), (2, 3.0), (2, 3.0)]:
        for number in (load, 32):
            before = world.controller.mode
            world.load(number)
            for _ in range(max(1, round(seconds / 0.1))):
                world.wait(0.1, 0.1)
                if before == "none" and world.controller.mode != "none":
                    began.append(world.now)
                before = world.controller.mode
    assert len(began) >= 2
    for first, second in pairwise(began):
        assert second - first >= 2.0 - 1e-9


@settings(max_examples=25)
@given(st.integers(1, 48), st.integers(1, 48), st.floats(0.0005, 0.01))
def test_more_answers_at_once_never_get_more_drafts_each(first: int, second: int, token: float) -> None:
    few, many = sorted((first, second))
    most = []
    for load in (few, many):
        world = World(costs(token, alone=1.0), at_most="tokens")
        world.load(max(2, load))
        most.append(max(live.num_draft_tokens for live in world.live))
    assert most[1] <= most[0]


@pytest.mark.parametrize("known", [None, BatchCosts(BatchTime([]), BatchTime([]), BatchTime([]))])
def test_where_costs_are_not_known_nothing_is_held_back(known: BatchCosts | None) -> None:
    world = World(known)
    world.load(50)
    world.wait(3)
    assert all((live.depth, live.num_draft_tokens) == REQUESTED for live in world.live)


@pytest.mark.parametrize(("at_most", "expected"), [("none", (0, 0)), ("tokens", (0, 8)), ("steps", (2, 8))])
@pytest.mark.parametrize("known", [None, costs(0.0001)])
def test_the_settings_bound_what_is_speculated_whatever_is_known(
    known: BatchCosts | None, at_most: SpeculationMode, expected: tuple[int, int]
) -> None:
    world = World(known, at_most=at_most)
    world.load(1)
    assert (world.live[0].depth, world.live[0].num_draft_tokens) == expected


def test_one_answer_alone_speculates_at_once_whatever_was_before_it() -> None:
    world = World(costs(0.1, alone=0.1, draft=1.0), hold_seconds=100.0)
    world.load(1, RequestedBudget())
    assert world.controller.mode == "none"
    world.load(0)
    world.load(1)
    assert (world.live[0].depth, world.live[0].num_draft_tokens) == REQUESTED


def test_answers_that_draft_nothing_count_as_load_and_leave_the_target_all_cores() -> None:
    world = World(costs(0.004))
    world.load(3, RequestedBudget())
    assert (world.controller.mode, world.cores[-1]) == ("none", True)
    world.load(4, REQUESTED)
    world.load(3)
    assert world.controller.mode == "none"
    plain = World(costs(0.004, alone=1.2))
    plain.load(3, RequestedBudget())
    assert not plain.cores[-1], "all cores are slower here"


def test_of_many_that_begin_at_once_none_begins_as_one_alone_would() -> None:
    """Steps ahead that are opened and then given up cost more than they could bring."""
    world = World(costs(0.001, alone=1.0))
    with ExitStack() as stack:
        begun = [stack.enter_context(world.controller.admit(REQUESTED)) for _ in range(16)]
        assert world.controller.mode == "tokens"
        assert [live.depth for live in begun] == [0] * 16


def test_an_answer_whose_drafts_are_wrong_gets_fewer_of_them_and_the_others_keep_theirs() -> None:
    world = World(costs(0.002, alone=1.0), at_most="tokens")
    world.load(4)
    good, bad = world.live[:3], world.live[3]
    for _ in range(60):
        for live in good:
            live.record_draft_tokens(8, rejected=False)
        bad.record_draft_tokens(0, rejected=True)
    world.wait(2)
    assert bad.num_draft_tokens < min(live.num_draft_tokens for live in good)
    assert min(live.num_draft_tokens for live in good) > 0


def test_twice_what_a_pass_is_to_hold_may_be_ahead_and_no_more_than_was_asked_for() -> None:
    """Or half of the share would be checked while the other half is written."""
    world = World(costs(0.002, alone=1.0), at_most="tokens")
    world.load(8)
    world.wait(2)
    for live in world.live:
        share = live.share.num_draft_tokens
        assert share > 0
        assert live.num_draft_tokens == min(REQUESTED.num_draft_tokens, 2 * share)
    assert any(live.share.num_draft_tokens < live.num_draft_tokens for live in world.live)


def test_it_knows_whether_an_answer_was_left_to_the_planner_throughout() -> None:
    world = World(costs())
    world.load(1)
    assert world.live[0].follows_plan
    world.load(2)
    world.load(1)
    assert not world.live[0].follows_plan


def test_idle_time_is_not_time_in_a_mode() -> None:
    world = World(costs())
    world.load(1)
    world.wait(3)
    world.load(0)
    world.now += 1000
    world.load(1)
    world.wait(3)
    world.load(0)
    assert sum(world.controller.seconds_in_mode.values()) < 10


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_tokens_recorded_before_their_step_is_final_count_once(steps: list[tuple[int, int]]) -> None:
    counted = []
    for early in (True, False):
        world = World(costs(token=0.0001))
        world.load(4)
        live = world.live[0]
        live.record_step(1)
        total: list[int] = []
        world.controller.record_tokens = total.append  # type: ignore[assignment, method-assign]
        for num_tokens, num_early in steps:
            if early:
                live.record_early_tokens(min(num_early, num_tokens))
            live.record_step(num_tokens)
        counted.append(sum(total))
    assert counted == [sum(num_tokens for num_tokens, _ in steps)] * 2
