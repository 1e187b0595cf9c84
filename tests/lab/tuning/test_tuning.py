"""Successive halving on candidates whose speed and loss are known, and the grid that it searches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator
from reason_spec.errors import DataError, SettingsError
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.lab.tuning.candidates import Grid, make_search_space
from reason_spec.lab.tuning.halving import (
    BASELINE_KEY,
    MIN_PROBLEMS,
    Answer,
    Answers,
    Candidate,
    Choice,
    SearchPlan,
    choose,
    make_plan,
    speedup_of,
    trial_of,
)
from reason_spec.lab.tuning.report import drift_of
from reason_spec.settings import load_settings
from tests.evaluation.problems import build_world

ACCURACY = 0.8


@dataclass(frozen=True)
class Truth:
    """What a candidate is: so much faster, and the share of all answers that it loses."""

    speed: float
    loss: float | None = None

    @property
    def is_exact(self) -> bool:
        return self.loss is None


class DrawnBench:
    """Draws all answers beforehand; remembers which problems were measured at which stage."""

    def __init__(self, truths: Mapping[str, Truth], num_problems: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        difficulty = generator.lognormal(0, 0.5, num_problems)
        right = generator.random(num_problems) < ACCURACY
        self._answers = {BASELINE_KEY: list(zip(difficulty.tolist(), right.tolist(), strict=True))}
        for key, truth in truths.items():
            seconds = difficulty / truth.speed * generator.lognormal(0, 0.15, num_problems)
            kept = right & (generator.random(num_problems) >= (truth.loss or 0.0) / ACCURACY)
            self._answers[key] = list(zip(seconds.tolist(), kept.tolist(), strict=True))
        self.stages: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = []

    @property
    def seconds_spent(self) -> float:
        return 0.0

    async def measure(
        self, stage: str, candidates: Sequence[Candidate], problems: Sequence[int], seconds: float | None
    ) -> Answers:
        self.stages.append((stage, tuple(item.key for item in candidates), tuple(problems)))
        keys = [BASELINE_KEY, *(candidate.key for candidate in candidates)]
        return {key: {number: Answer(*self._answers[key][number]) for number in problems} for key in keys}


def candidates_of(truths: Mapping[str, Truth]) -> list[Candidate]:
    return [Candidate(key, key, truth.is_exact) for key, truth in truths.items()]


def search(
    truths: Mapping[str, Truth], num_problems: int, test: LossTest, seed: int
) -> tuple[Choice, DrawnBench]:
    candidates = candidates_of(truths)
    bench = DrawnBench(truths, num_problems, seed)
    plan = make_plan(candidates, range(num_problems), test)
    return asyncio.run(choose(candidates, plan, bench)), bench


def name_of(choice: Choice) -> str | None:
    return None if choice.chosen is None else choice.chosen.candidate.key


# What is found -------------------------------------------------------------------------------

MANY = {
    **{f"exact {number}": Truth(1 + 0.1 * number) for number in range(6)},
    **{f"safe {number}": Truth(1.3 + 0.15 * number, 0.0) for number in range(5)},
    **{f"lossy {number}": Truth(1.9 + 0.2 * number, 0.06) for number in range(5)},
}


def test_the_fastest_within_the_loss_is_found_among_faster_ones_that_lose_more() -> None:
    found = [name_of(search(MANY, 800, LossTest(0.01, 0.95), seed)[0]) for seed in range(60)]
    assert found.count("safe 4") >= 57


def test_where_no_loss_can_be_shown_the_fastest_exact_one_is_found() -> None:
    found = [name_of(search(MANY, 240, LossTest(0.01, 0.95), seed)[0]) for seed in range(40)]
    assert found.count("exact 5") >= 38


def test_where_all_that_is_faster_loses_too_much_the_best_exact_one_is_the_fallback() -> None:
    truths = {key: truth for key, truth in MANY.items() if not key.startswith("safe")}
    found = [name_of(search(truths, 800, LossTest(0.01, 0.95), seed)[0]) for seed in range(40)]
    assert found.count("exact 5") >= 38


def test_where_nothing_is_faster_the_target_alone_is_chosen() -> None:
    truths = {"slow": Truth(0.7), "slower": Truth(0.5, 0.0), "same": Truth(1.0)}
    found = [name_of(search(truths, 200, LossTest(0.05, 0.95), seed)[0]) for seed in range(40)]
    assert found.count(None) >= 37


def test_a_loss_just_above_the_allowed_one_passes_no_more_often_than_promised() -> None:
    """Seven candidates, each a little too lossy and much faster: none may be chosen in 95 % of searches."""
    truths = {
        "exact": Truth(1.2),
        **{f"lossy {number}": Truth(2 + 0.01 * number, 0.11) for number in range(7)},
    }
    found = [name_of(search(truths, 160, LossTest(0.1, 0.95), seed)[0]) for seed in range(300)]
    assert sum(name != "exact" and name is not None for name in found) <= 0.05 * 300 + 2 * 3.8


# What always holds ---------------------------------------------------------------------------

truth_sets = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.builds(Truth, st.floats(0.5, 3), st.none() | st.floats(0, 0.4)),
    min_size=1,
    max_size=12,
)
loss_tests = st.builds(LossTest, st.floats(0.05, 0.4), st.floats(0.6, 0.99))


@settings(max_examples=60)
@given(truth_sets, st.integers(2 * MIN_PROBLEMS, 150), loss_tests, st.integers(0, 1000))
def test_what_is_chosen_is_shown_to_hold_the_loss_on_problems_that_did_not_choose_it(
    truths: dict[str, Truth], num_problems: int, test: LossTest, seed: int
) -> None:
    choice, bench = search(truths, num_problems, test, seed)
    chosen_on = {
        number for stage, _, problems in bench.stages if stage != "final test" for number in problems
    }
    tested_on = {
        number for stage, _, problems in bench.stages if stage == "final test" for number in problems
    }
    assert not chosen_on & tested_on
    if choice.chosen is None:
        return
    speed = choice.chosen.speedup
    assert speed is not None
    assert speed.low > 1
    assert choice.chosen.num_problems == len(tested_on)
    if not choice.chosen.candidate.is_exact:
        assert choice.chosen.loss_upper <= test.loss + 1e-9
        assert choice.plan.final_test.passes(trial_of(choice.chosen))
        assert choice.plan.final_test.confidence >= test.confidence


@settings(max_examples=60)
@given(truth_sets, st.integers(2 * MIN_PROBLEMS, 400), loss_tests, st.integers(2, 5))
def test_rungs_grow_and_leave_problems_for_the_final_test(
    truths: dict[str, Truth], num_problems: int, test: LossTest, halving: int
) -> None:
    plan = make_plan(candidates_of(truths), range(num_problems), test, halving=halving)
    assert sorted((*plan.selection, *plan.final)) == list(range(num_problems))
    assert len(plan.final) >= num_problems // 2
    assert list(plan.rungs) == sorted(set(plan.rungs))
    if plan.rungs:
        assert MIN_PROBLEMS <= plan.rungs[0] <= plan.rungs[-1] == len(plan.selection)
    if plan.tests_loss:
        assert len(plan.final) >= plan.final_test.least_problems


@settings(max_examples=40)
@given(truth_sets, st.integers(20, 150), loss_tests, st.integers(0, 1000))
def test_candidates_only_ever_leave_and_each_says_why(
    truths: dict[str, Truth], num_problems: int, test: LossTest, seed: int
) -> None:
    choice, bench = search(truths, num_problems, test, seed)
    for (_, before, _), (_, after, _) in zip(bench.stages, bench.stages[1:], strict=False):
        assert set(after) <= set(before)
    if not bench.stages:
        assert not choice.plan.tests_loss, "all are lossy, and there are too few problems to show any loss"
        assert choice.chosen is None
        return
    left = set(bench.stages[0][1])
    for rung in choice.rungs:
        assert {item.candidate.key for item in rung.results} == left
        left = {item.candidate.key for item in rung.results if not item.dropped}
    if choice.final is not None:
        assert {item.candidate.key for item in choice.final.results} == left
        assert len(left) <= choice.plan.num_finalists
        assert sum(not truths[key].is_exact for key in left) <= choice.plan.num_tested


def plan_of(num_problems: int, loss: float, truths: Mapping[str, Truth] = MANY) -> SearchPlan:
    return make_plan(candidates_of(truths), range(num_problems), LossTest(loss, 0.95))


def test_a_loss_is_tested_only_where_enough_problems_are_left_to_choose_on() -> None:
    needed = plan_of(100, 0.01).num_needed
    assert needed == 368 + 12, "368 = ceil(log(0.025) / log(0.99)), for two that are tested"
    assert not plan_of(needed - 1, 0.01).tests_loss
    assert plan_of(needed, 0.01).tests_loss


def test_where_there_is_nothing_to_choose_from_all_problems_are_for_the_test() -> None:
    plan = plan_of(60, 0.1, {"exact": Truth(1.5), "lossy": Truth(2.0, 0.0)})
    assert (plan.selection, len(plan.final), plan.num_tested) == ((), 60, 1)
    assert plan.final_test.confidence == pytest.approx(0.95)


def test_rungs_end_where_all_that_are_left_can_be_in_the_final_test() -> None:
    truths = {"exact": Truth(1.5), "safe": Truth(2.0, 0.0), "safer": Truth(1.9, 0.0)}
    truths |= {f"slow {number}": Truth(0.4) for number in range(6)}
    choice, bench = search(truths, 400, LossTest(0.1, 0.95), 0)
    assert len(choice.plan.rungs) == 2
    assert [stage for stage, _, _ in bench.stages] == ["rung 1 of 2", "final test"]
    assert name_of(choice) == "safe"


@pytest.mark.parametrize("exact", [{}, {"exact": Truth(0.5)}])
def test_no_more_losses_are_tested_than_the_confidence_is_corrected_for(exact: dict[str, Truth]) -> None:
    truths = exact | {f"lossy {number}": Truth(2 + 0.1 * number, 0.0) for number in range(9)}
    choice, bench = search(truths, 400, LossTest(0.1, 0.95), 0)
    stage, tested, _ = bench.stages[-1]
    assert (stage, len(tested)) == ("final test", choice.plan.num_tested)


def test_too_few_problems_are_refused() -> None:
    with pytest.raises(DataError, match=r"7 problems with known answers are too few .* give 8 or more"):
        plan_of(7, 0.1)


def test_answers_that_could_not_be_written_are_lost_and_have_no_time() -> None:
    class Failing(DrawnBench):
        async def measure(
            self, stage: str, candidates: Sequence[Candidate], problems: Sequence[int], seconds: float | None
        ) -> Answers:
            answers = dict(await super().measure(stage, candidates, problems, seconds))
            return {**answers, "broken": {number: Answer(None, False) for number in problems}}

    truths = {"broken": Truth(9.0, 0.0), "exact": Truth(1.5)}
    plan = make_plan(candidates_of(truths), range(60), LossTest(0.1, 0.95))
    choice = asyncio.run(choose(candidates_of(truths), plan, Failing(truths, 60, 0)))
    assert name_of(choice) == "exact"
    assert choice.final is not None
    broken = next(item for item in choice.final.results if item.candidate.key == "broken")
    assert broken.speedup is None
    assert broken.num_lost == choice.final.baseline_right


# The speed-up --------------------------------------------------------------------------------


def test_the_interval_of_a_speedup_holds_the_ratio_of_means_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        base = generator.lognormal(0, 0.5, 40)
        own = base / 1.7 * generator.lognormal(0, 0.2, 40)
        speed = speedup_of(list(zip(base.tolist(), own.tolist(), strict=True)))
        assert speed is not None
        held += speed.low <= 1.7 / np.exp(0.02) <= speed.high
    assert 0.92 <= held / 600 <= 0.98


def test_equal_ratios_leave_no_doubt() -> None:
    speed = speedup_of([(2.0, 1.0), (4.0, 2.0), (3.0, 1.5)])
    assert speed == pytest.approx((2.0, 2.0, 2.0))
    assert speedup_of([(2.0, 1.0)]) is None


def test_a_machine_that_slows_down_is_noticed() -> None:
    assert drift_of([1.0] * 10 + [1.3] * 10) == pytest.approx(0.3)
    assert drift_of([1.0] * 7) is None


# The grid ------------------------------------------------------------------------------------


@pytest.fixture
def scripted(tmp_path: Path) -> Accelerator:
    settings = load_settings(build_world(tmp_path).config)
    return Accelerator.from_settings(settings, strategies=("autoregressive", "speculative"))


@pytest.fixture(scope="module")
def embedded() -> Accelerator:
    return Accelerator.from_settings(load_settings(), strategies=("autoregressive", "speculative"))


def test_no_two_candidates_have_the_same_settings_or_name(embedded: Accelerator) -> None:
    space = make_search_space(embedded, Grid(widths=(1, 2), draft_tokens=(8, 16)))
    assert set(space.left_out) == {"self_speculative"}
    assert len({entry.settings.hash for entry in space.by_key.values()}) == len(space.by_key)
    assert len({entry.candidate.name for entry in space.by_key.values()}) == len(space.by_key)


def test_a_strategy_is_varied_in_what_it_uses_alone(embedded: Accelerator) -> None:
    space = make_search_space(embedded, Grid(depths=(2, 4), widths=(1, 2), thresholds=(0.9, 0.7)))
    counts: dict[str, int] = {}
    for entry in space.by_key.values():
        counts[entry.settings.strategy.name] = counts.get(entry.settings.strategy.name, 0) + 1
    assert counts == {
        "prompt_lookup": 1, "token_recycling": 1, "speculative": 1, "lookahead": 2 * (2 + 1) * 2,
        "specreason": 8, "rsd": 8,
        "hybrid": 8, "arbitrage": 12, "speculative_thinking": 2, "scot": 4,
    }  # fmt: skip


def test_a_named_strategy_that_is_not_tuned_is_refused_with_the_reason(embedded: Accelerator) -> None:
    with pytest.raises(SettingsError, match="ssr is not tuned: its directions"):
        make_search_space(embedded, Grid(strategies=("speculative", "ssr")))


def test_only_what_writes_the_targets_own_tokens_is_exact(embedded: Accelerator) -> None:
    space = make_search_space(embedded, Grid())
    exact = {entry.candidate.name.split(" depth")[0].split(" planned")[0] for entry in space.by_key.values()
             if entry.candidate.is_exact}  # fmt: skip
    assert exact == {"prompt_lookup", "token_recycling", "speculative", "lookahead exact"}


def test_a_threshold_is_written_where_the_verifier_reads_it(embedded: Accelerator) -> None:
    space = make_search_space(embedded, Grid(strategies=("hybrid",), depths=(4,), thresholds=(0.7,)))
    (entry,) = space.by_key.values()
    assert entry.settings.verifier.name == "likelihood+semantic"
    assert entry.settings.verifier.thresholds == {"likelihood": 0.7}


def test_each_strategy_takes_those_of_the_named_verifiers_that_it_can_use(embedded: Accelerator) -> None:
    grid = Grid(
        ("lookahead", "specreason"), depths=(4,), thresholds=(0.9,), verifiers=("numbers", "likelihood")
    )
    used = {
        (entry.settings.strategy.name, entry.settings.verifier.name)
        for entry in make_search_space(embedded, grid).by_key.values()
    }
    assert used == {("lookahead", "numbers"), ("specreason", "likelihood")}
    with pytest.raises(SettingsError, match="strategy specreason cannot be tried"):
        make_search_space(embedded, Grid(("specreason",), verifiers=("numbers",)))


def test_what_a_pair_does_not_allow_is_left_out_with_the_reason_and_refused_where_it_is_named(
    scripted: Accelerator,
) -> None:
    space = make_search_space(scripted, Grid())
    assert "reward model" in space.left_out["rsd"]
    assert "rsd" not in {entry.settings.strategy.name for entry in space.by_key.values()}
    with pytest.raises(SettingsError, match=r"strategy rsd cannot be tried: .*reward model"):
        make_search_space(scripted, Grid(strategies=("prompt_lookup", "rsd")))


def test_an_engine_that_plans_nothing_has_no_planned_candidates(scripted: Accelerator) -> None:
    space = make_search_space(scripted, Grid(strategies=("lookahead",)))
    assert {entry.settings.strategy.planner for entry in space.by_key.values()} == {False}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"depths": (0,)}, "--depths '0': name one or more values from 1 to 64"),
        ({"widths": (9,)}, "--widths '9'"),
        ({"thresholds": (0.9, 1.5)}, "--thresholds '0.9,1.5'"),
        ({"strategies": ("lookahed",)}, "did you mean"),
    ],
)
def test_values_that_no_setting_takes_are_refused(grid: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Grid(**grid)  # type: ignore[arg-type]
