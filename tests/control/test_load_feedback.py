"""How measured goodput and trials correct the modes that the load controller predicts."""

from __future__ import annotations

import pytest

from reason_spec.engines.stats import PassTime
from reason_spec.speculation.goodput import BatchTime
from tests.control.load import SIZES, World, costs, write, written


def test_a_mode_that_turns_out_slower_than_expected_is_left_and_tried_again_later() -> None:
    world = World(costs(0.0005, alone=0.5))
    world.load(8)
    mode = world.controller.mode
    assert mode != "none"
    for _ in range(20):
        if world.controller.mode != mode:
            break
        write(world, 1, of_expected=0.1)
    assert world.controller.mode != mode
    for _ in range(100):
        if world.controller.mode == mode:
            break
        write(world, 6, of_expected=1.0)
    assert world.controller.mode == mode


def test_the_target_alone_is_tried_where_nobody_knows_how_fast_it_is_at_such_a_load() -> None:
    """It is expected to be somewhat slower here, and is in truth twice as fast."""
    world = World(costs(0.002, alone=0.9, draft=0.004))
    world.load(8)
    expected = world.controller.expected
    assert world.controller.mode != "none"
    assert expected["none"] > 0.65 * expected[world.controller.mode]
    modes = written(world, 60, none=2.0)
    assert "none" in modes
    assert modes[-1] == "none"


@pytest.mark.parametrize(("slower", "least", "most"), [(1.0, 3.5, 5.0), (3.0, 0.3, 1.5)])
def test_a_trial_ends_once_passes_without_drafts_turn_out_too_slow(
    slower: float, least: float, most: float
) -> None:
    world = World(costs(0.002, alone=0.9, draft=0.004))
    world.load(8)
    assert "none" not in written(world, 29, none=1.0)
    while world.controller.mode != "none":
        written(world, 0.3, none=1.0)
    passes = [PassTime(n, (0.02 + 0.002 * n) * (slower if n == r else 1.0), 50, r) for n, r in SIZES]
    world.costs = costs(0.002, draft=0.004)._replace(alone=BatchTime(passes), shared=BatchTime(passes))
    assert least <= 0.3 * written(world, 8, none=1.0).count("none") <= most


def test_while_prompts_are_read_nothing_is_tried() -> None:
    """They fill the passes, whatever the mode."""
    world = World(costs(0.002, alone=0.9, draft=0.004))
    world.load(2)
    written(world, 5, none=1.0)
    world.load(8)
    for live in world.live:
        live.has_first_token = False
    for _ in range(200):
        world.now += 0.3
        world.controller.refresh()
        assert world.controller.mode != "none"
    assert "none" not in written(world, 20, none=1.0)
    assert "none" in written(world, 20, none=1.0)


def test_a_load_that_comes_and_goes_does_not_put_a_trial_off_for_ever() -> None:
    world = World(costs(0.002, alone=0.9, draft=0.004))
    modes = []
    for _ in range(12):
        world.load(8)
        modes += written(world, 5, none=1.0)
        world.load(1)
        written(world, 5, none=1.0)
    assert "none" in modes


@pytest.mark.parametrize(("of_expected", "left"), [(0.85, False), (0.3, True)])
def test_what_is_lost_between_passes_is_expected_to_be_lost_without_drafts_as_well(
    of_expected: float, left: bool
) -> None:
    world = World(costs(0.002, alone=0.9, draft=0.004))
    world.load(8)
    before = world.controller.expected["none"] / world.controller.expected["tokens"]
    for _ in range(70):
        write(world, 0.3, of_expected=of_expected if world.controller.mode == "tokens" else 1.0)
        if world.controller.mode == "none":
            break
    assert (world.controller.mode == "none") == left
    if not left:
        expected = world.controller.expected
        assert expected["none"] / expected["tokens"] == pytest.approx(before, rel=0.1)


def test_a_mode_is_not_judged_while_most_answers_read_their_prompts() -> None:
    world = World(costs(token=0.0001, draft=0.0002))
    world.load(16)
    mode = world.controller.mode
    assert mode != "none"
    world.wait(1.5)
    before = world.controller.expected[mode]
    # A few answers write slowly beside the prompts of all others.
    for live in world.live[:4]:
        live.record_step(1)
    for _ in range(20):
        world.now += 0.3
        for live in world.live[:4]:
            live.record_step(5)
    assert world.controller.mode == mode
    assert world.controller.expected[mode] == pytest.approx(before)
    write(world, 5.0, of_expected=0.3)
    assert world.controller.expected[mode] < 0.8 * before
