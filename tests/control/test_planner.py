"""What the planner chooses, and what it learns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.control.answer_model import AssumedRates, CacheForecast, StepForm
from reason_spec.control.constants import PLANNER_CONSTANTS
from reason_spec.control.costs import Costs, PassCost
from reason_spec.control.planner import Planner
from reason_spec.engines.stats import PassTime
from reason_spec.events import Event, Recorder
from reason_spec.lab.planning.simulator import Scheme, simulate
from reason_spec.lab.planning.workload import Workload
from reason_spec.types import Plan, Step, Usage, Verdict

FLAT = Costs(PassCost(((1, 0.020), (64, 0.021))), draft_token=0.001)
STEEP = Costs(PassCost(((1, 0.020), (2, 0.040), (64, 1.280))), draft_token=0.002)
STEEP_LATER = Costs(PassCost(((1, 0.020), (4, 0.022), (64, 0.200))), draft_token=0.006)
SLOW_DRAFT = Costs(PassCost(((1, 0.020), (64, 0.021))), draft_token=0.060)


def planner(
    costs: Costs,
    step_rate: float = 0.8,
    token_rate: float = 0.9,
    max_depth: int = 4,
    form: StepForm = "compared",
) -> Planner:
    assumed = AssumedRates(step_rate, token_rate)
    return Planner(costs, max_depth=max_depth, max_draft_tokens=16, assumed=assumed, form=form)


def answer(plan: Plan, *, all_stand: bool, speed: float | None = None, num_late: int = 0) -> Recorder:
    """An answer of 100 tokens in five steps, written at ``speed`` or at what was expected."""
    recorder = Recorder(plan=plan, num_late_drafts=num_late)
    seconds = 100 / (speed or plan.tokens_per_second or 1.0)
    recorder.events = [Event("final", "target", seconds, 4, 0)]
    recorder.steps = [Step("x", tuple(range(20)), "target", "boundary", "t") for _ in range(5)]
    verdict = Verdict("accept" if all_stand else "reject", cost_seconds=0.001)
    recorder.verdicts = [verdict] * (5 if plan.depth else 0)
    recorder.num_drafted_positions = len(recorder.verdicts) + num_late
    recorder.num_filled_positions = recorder.num_accepted_steps
    recorder.target_usage = Usage(num_accepted_draft_tokens=50, num_rejections=5)
    return recorder


def depths_over(
    chosen: Planner, num_answers: int, *, all_stand: bool, speeds: tuple[float, float] | None = None
) -> list[int]:
    """Let answers be planned and written; return their depths.

    ``speeds`` are those of answers without steps ahead and with them; None: as these rates give by the costs.
    """
    depths: list[int] = []
    world = planner(chosen.costs, step_rate=float(all_stand), form=chosen.form)
    for _ in range(num_answers):
        plan = chosen.plan()
        depths.append(plan.depth)
        speed = speeds[plan.depth > 0] if speeds else world.expect(plan.depth, plan.num_draft_tokens)
        chosen.learn(answer(plan, all_stand=all_stand, speed=speed))
    return depths


def test_passes_that_cost_the_same_whatever_they_hold_are_filled_from_both_layers() -> None:
    plan = planner(FLAT).plan()
    assert plan.depth >= 1
    assert plan.num_draft_tokens >= 4


def test_where_every_token_costs_a_pass_nothing_is_drafted_that_is_seldom_right() -> None:
    plan = planner(STEEP, step_rate=0.2, token_rate=0.3).plan()
    assert (plan.depth, plan.num_draft_tokens) == (0, 0)


def test_a_draft_as_slow_as_the_target_is_left_alone() -> None:
    plan = planner(SLOW_DRAFT, step_rate=0.5, token_rate=0.5).plan()
    assert plan.depth == 0


def test_judged_steps_are_drafted_at_the_depth_of_the_settings_or_not_at_all() -> None:
    assert planner(STEEP, step_rate=0.9, form="judged").plan().depth == 4
    assert planner(STEEP, step_rate=0.05, form="judged").plan().depth == 0
    assert planner(SLOW_DRAFT, step_rate=0.9, form="judged").plan().depth == 0


def test_where_judged_steps_are_refused_the_answer_is_written_without_them() -> None:
    depths = depths_over(planner(STEEP, form="judged"), 60, all_stand=False)
    assert depths[0] > 0
    assert depths[30:].count(0) > 25


def test_steps_that_never_stand_are_not_drafted_any_more_but_tried_again() -> None:
    depths = depths_over(planner(FLAT), 60, all_stand=False)
    assert depths[0] > 0
    assert depths[30:].count(0) > 25
    assert max(depths[30:]) > 0


def test_drafts_that_come_too_late_count_as_steps_that_do_not_stand() -> None:
    """All that are judged in time stand; most are not, and each of those ends a run of steps ahead."""
    chosen, world = planner(FLAT), planner(FLAT, step_rate=5 / 95)
    for _ in range(30):
        plan = chosen.plan()
        speed = world.expect(plan.depth, plan.num_draft_tokens)
        chosen.learn(answer(plan, all_stand=True, num_late=90 if plan.depth else 0, speed=speed))
    assert chosen.plan().depth == 0


def test_rates_that_were_assumed_too_high_do_not_speak_against_steps_that_pay() -> None:
    """The first answer is far slower than predicted; with its own rates in the prediction, it is not."""
    chosen, world = planner(FLAT, step_rate=0.95), planner(FLAT, step_rate=0.2)
    best = max((world.expect(depth, 16), depth) for depth in range(5))[1]
    assert best > 0
    depths = []
    for _ in range(24):
        plan = chosen.plan()
        depths.append(plan.depth)
        finished = answer(plan, all_stand=True, speed=world.expect(plan.depth, plan.num_draft_tokens))
        finished.num_drafted_positions, finished.num_filled_positions = (
            20 * (plan.depth > 0),
            4 * (plan.depth > 0),
        )
        chosen.learn(finished)
    assert depths[8:].count(0) <= 4


def test_a_rate_that_rises_again_brings_the_steps_back() -> None:
    chosen = planner(FLAT, step_rate=0.0)
    assert chosen.plan().depth == 0
    depths_over(chosen, 40, all_stand=True)
    assert chosen.plan().depth > 0


def test_a_layer_that_is_slower_than_predicted_is_left_out() -> None:
    """Whatever the formulas leave out shows in the speeds, and the planner goes by those."""
    depths = depths_over(planner(FLAT), 30, all_stand=True, speeds=(150.0, 60.0))
    assert depths[0] > 0
    assert depths[15:].count(0) >= 12


@pytest.mark.parametrize("form", ["compared", "judged"])
def test_a_layer_that_pays_is_not_left_out_for_one_slow_answer(form: StepForm) -> None:
    chosen, depths = planner(FLAT, form=form), []
    for _ in range(24):
        plan = chosen.plan()
        depths.append(plan.depth)
        usual = 200.0 if any(depths[:-1]) else 80.0
        chosen.learn(answer(plan, all_stand=True, speed=usual if plan.depth else 150.0))
    assert depths[0] > 0
    assert depths[4:].count(0) <= 6


def test_depths_are_corrected_apart_so_that_a_better_one_is_found() -> None:
    """Where the formulas name the wrong depth, trials of it lead to the others."""
    chosen = planner(FLAT)
    best = 4 if chosen.plan().depth != 4 else 1
    depths: list[int] = []
    for _ in range(120):
        plan = chosen.plan()
        depths.append(plan.depth)
        chosen.learn(answer(plan, all_stand=True, speed=400.0 if plan.depth == best else 150.0))
    assert depths[0] != best
    assert depths[-20:].count(best) >= 18


def test_numbers_of_draft_tokens_are_corrected_apart_where_they_are_nearly_as_fast() -> None:
    """The formulas name the most; where another number is faster, one trial of it shows that."""
    chosen, world = planner(STEEP_LATER), planner(STEEP_LATER)
    first = chosen.plan()
    close = [
        num
        for num in (1, 2, 4, 8, 16)
        if num != first.num_draft_tokens
        and chosen.expect(first.depth, num) > 0.92 * chosen.expect(first.depth, first.num_draft_tokens)
    ]
    assert close
    sizes = []
    for _ in range(60):
        plan = chosen.plan()
        sizes.append(plan.num_draft_tokens)
        faster = 1.2 if plan.num_draft_tokens in close else 1.0
        speed = faster * world.expect(plan.depth, plan.num_draft_tokens)
        chosen.learn(answer(plan, all_stand=True, speed=speed))
    assert sum(size in close for size in sizes[20:]) >= 32


def test_close_numbers_of_draft_tokens_are_not_tried_where_nothing_is_learned_from_the_answer() -> None:
    chosen = planner(STEEP_LATER)
    chosen.learn(answer(chosen.plan(), all_stand=True))
    assert len({chosen.plan(may_explore=False).num_draft_tokens for _ in range(8)}) == 1


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("drafting", [0.05, 0.2, 0.6])
def test_the_speed_expected_of_a_depth_is_what_is_simulated(depth: int, drafting: float) -> None:
    """The draft waits at its depth, which theorem 2 leaves out: up to a quarter of the speed."""
    level = Costs(PassCost(((1, 0.02), (64, 0.02))), draft_token=drafting * 0.02)
    chosen = planner(level, step_rate=0.9)
    expected = chosen.expect(depth, 0) / chosen.expect(0, 0)
    simulated = simulate(Workload(0.9, drafting), Scheme(depth), num_steps=10_000)
    assert expected == pytest.approx(simulated, rel=0.03)


def test_an_answer_without_a_step_teaches_nothing() -> None:
    chosen = planner(FLAT)
    before = chosen.plan()
    chosen.learn(Recorder(plan=before))
    assert chosen.plan() == before


def test_passes_that_became_dear_for_many_tokens_take_the_drafts_out_again() -> None:
    """A target that shares its cores with something new: T(n) of the start holds no more."""
    chosen = planner(FLAT)
    before = chosen.plan()
    slow = [PassTime(1, 0.020, 1000), PassTime(8, 0.4, 1000), PassTime(64, 3.2, 1000)]
    busy = planner(Costs(PassCost(((1, 0.020), (8, 0.4), (64, 3.2))), draft_token=0.001))
    speed = busy.expect(before.depth, before.num_draft_tokens)
    chosen.learn(answer(before, all_stand=True, speed=speed), target=slow)
    after = chosen.plan()
    assert (after.depth + 1) * (after.num_draft_tokens + 1) < (before.depth + 1) * (
        before.num_draft_tokens + 1
    )
    assert chosen.costs.target.seconds(64) > 3


def test_drafts_that_were_left_out_while_the_machine_was_busy_come_back() -> None:
    """Without drafts no pass of many tokens is seen: a trial has to find out that they are cheap again."""
    chosen = planner(FLAT, max_depth=0)
    alone = PassTime(1, 0.020, 100)
    busy = [alone, *(PassTime(size, 3.0, 100) for size in (2, 4, 8, 16))]
    quiet = [alone, *(PassTime(size, 0.021, 100) for size in (2, 4, 8, 16))]
    for _ in range(10):
        plan = chosen.plan()
        chosen.learn(answer(plan, all_stand=True, speed=5.0 if plan.num_draft_tokens else 50.0), target=busy)
    assert chosen.plan().num_draft_tokens == 0
    sizes = []
    for _ in range(90):
        plan = chosen.plan()
        sizes.append(plan.num_draft_tokens)
        speed = 200.0 if plan.num_draft_tokens else 50.0
        chosen.learn(answer(plan, all_stand=True, speed=speed), target=quiet if any(sizes) else busy)
    assert sizes[:5] == [0] * 5
    assert min(sizes[70:]) > 0


def test_a_layer_that_is_much_slower_is_tried_a_quarter_as_often() -> None:
    chosen, tried = planner(FLAT, max_depth=0), {}
    for speed in (45.0, 5.0):
        sizes = []
        for _ in range(400):
            plan = chosen.plan()
            sizes.append(plan.num_draft_tokens)
            chosen.learn(answer(plan, all_stand=True, speed=speed if plan.num_draft_tokens else 50.0))
        tried[speed] = sum(size > 0 for size in sizes[40:])
    assert tried[45.0] > 2 * tried[5.0] >= 2 * (360 // 65)


def test_dear_verdicts_count_from_the_first_answer_on() -> None:
    dear = Costs(FLAT.target, FLAT.draft_token, verdict=2.0)
    assert planner(FLAT).plan().depth > 0
    assert planner(dear).plan().depth == 0


def test_depth_is_bounded_by_what_was_asked_for() -> None:
    assert planner(FLAT, max_depth=0).plan().depth == 0
    assert planner(FLAT, step_rate=0.99, max_depth=2).plan().depth <= 2


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.0005, 0.05), st.floats(0.0, 0.01))
def test_the_plan_is_the_fastest_split_and_has_steps_ahead_where_these_pay_clearly(
    step_rate: float, token_rate: float, draft_token: float, slope: float
) -> None:
    costs = Costs(PassCost(((1, 0.020), (64, 0.020 + 63 * slope))), draft_token)
    chosen = planner(costs, step_rate, token_rate)
    plan = chosen.plan()
    assert plan.tokens_per_second == chosen.expect(plan.depth, plan.num_draft_tokens)
    assert chosen.expect(0, 0) == pytest.approx(1 / 0.020)
    sizes = (0, 1, 2, 4, 8, 16)
    flat = max(chosen.expect(0, size) for size in sizes)
    ahead = max(chosen.expect(depth, size) for depth in range(1, 5) for size in sizes)
    assert plan.tokens_per_second == (ahead if plan.depth else flat)
    assert (plan.depth > 0) == (ahead > PLANNER_CONSTANTS.steps_margin * flat)


def test_what_the_suffix_cache_knows_is_written_as_one_request() -> None:
    """Steps ahead bring nothing where one pass checks what several branches would."""
    linear = Costs(PassCost(((1, 0.009), (16, 0.015), (64, 0.032))), draft_token=0.0007)
    chosen = planner(linear, step_rate=0.6, token_rate=0.8)
    assert chosen.plan().depth > 0
    plan = chosen.plan(CacheForecast(48, 30.0))
    assert plan.depth == 0
    assert (plan.num_known, plan.known_tokens) == (48, 30.0)


def test_a_cache_that_expects_next_to_nothing_changes_no_plan() -> None:
    chosen = planner(FLAT)
    plain, barely = chosen.plan(), chosen.plan(CacheForecast(num_drafted=8, num_accepted=0.5))
    assert (plain.depth, plain.num_draft_tokens) == (barely.depth, barely.num_draft_tokens)
    assert plain.tokens_per_second == barely.tokens_per_second


def test_answers_that_are_known_teach_nothing_about_others() -> None:
    chosen = planner(FLAT)
    before = chosen.plan()
    for _ in range(10):
        plan = chosen.plan(CacheForecast(48, 40.0))
        chosen.learn(answer(plan, all_stand=False, speed=10_000.0))
    assert chosen.plan() == before


def test_known_answers_that_are_slower_than_expected_are_planned_otherwise_once_that_was_tried() -> None:
    chosen, known = planner(FLAT), CacheForecast(48, 40.0)
    depths = []
    for _ in range(24):
        plan = chosen.plan(known)
        depths.append(plan.depth)
        chosen.learn(answer(plan, all_stand=True, speed=500.0 if plan.depth else 20.0))
    assert depths[:16] == [0] * 16
    assert min(depths[16:]) > 0


def test_what_is_known_in_part_is_written_without_steps_ahead_until_these_were_tried() -> None:
    chosen, in_part = planner(FLAT), CacheForecast(num_drafted=4, num_accepted=2.0)
    assert chosen.plan().depth > 0
    assert chosen.plan(in_part).depth == 0
    assert chosen.expect(4, 16, in_part) > chosen.expect(0, 16, in_part)


def test_steps_ahead_that_were_tried_and_did_not_pay_are_left_out_again() -> None:
    chosen, known = planner(FLAT), CacheForecast(48, 40.0)
    depths = []
    for _ in range(40):
        plan = chosen.plan(known)
        depths.append(plan.depth)
        chosen.learn(answer(plan, all_stand=False, speed=20.0 if plan.depth else 500.0))
    assert 1 <= sum(depth > 0 for depth in depths) <= 3


def test_an_engine_that_takes_no_draft_tokens_is_planned_for_any_number_of_answers() -> None:
    """There is no token level to explore."""
    chosen = Planner(FLAT, max_depth=2, max_draft_tokens=0)
    for _ in range(40):
        planned = chosen.plan()
        assert planned.num_draft_tokens == 0
        chosen.learn(answer(planned, all_stand=True))


@pytest.mark.parametrize(("gain", "chosen_at_the_end"), [(2.5, True), (1.0, False)])
def test_what_needs_no_draft_model_is_tried_early_and_kept_where_it_is_faster(
    gain: float, chosen_at_the_end: bool
) -> None:
    """The draft model predicts 1.5 times the target alone; what drafts without it shows in answers alone."""
    chosen, alone = planner(STEEP_LATER, step_rate=0.1, token_rate=0.6, max_depth=0), 50.0
    drafted = chosen.expect(0, chosen.plan().num_draft_tokens)
    assert 1.2 < drafted / alone < 2
    without = []
    for _ in range(60):
        plan = chosen.plan()
        without.append(plan.num_draft_tokens == 0)
        written = answer(plan, all_stand=True, speed=gain * alone if without[-1] else drafted)
        written.target_usage = Usage(num_accepted_draft_tokens=30, num_rejections=20)
        chosen.learn(written)
    assert without[:5] == [False, True, True, True, chosen_at_the_end]
    assert (sum(without[-10:]) >= 9) == chosen_at_the_end
    assert sum(without[5:]) <= 3 or chosen_at_the_end


def test_a_draft_model_that_is_many_times_as_fast_is_hardly_ever_left_out() -> None:
    chosen = planner(FLAT)
    fast = chosen.expect(0, 16)
    assert fast > 4 * chosen.expect(0, 0)
    plans = []
    for _ in range(120):
        plans.append(chosen.plan())
        speed = fast if plans[-1].num_draft_tokens else 60.0
        chosen.learn(answer(plans[-1], all_stand=True, speed=speed))
    assert all(plan.num_draft_tokens for plan in plans)


def test_a_trial_is_left_to_answers_that_are_learned_from() -> None:
    """It stays due until one is, and would be the plan of every answer that is not."""
    chosen = planner(STEEP_LATER, step_rate=0.1, token_rate=0.6, max_depth=0)
    first = chosen.plan()
    chosen.learn(answer(first, all_stand=True))
    trial = chosen.plan()
    assert trial.num_draft_tokens == 0 < first.num_draft_tokens
    assert chosen.plan(may_explore=False).num_draft_tokens > 0
    assert chosen.plan() == trial
