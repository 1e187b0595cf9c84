from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.evaluation.metrics import ALL_TASKS, RunMetrics, StrategyMetrics, measure
from reason_spec.evaluation.outcome import AnswerUsage, Outcome, StepRecord
from reason_spec.evaluation.paired import PairedMetrics
from reason_spec.evaluation.statistics import exact_interval, mcnemar_exact, paired_loss_upper
from reason_spec.types import Plan, Usage
from tests.evaluation.synthetic import make_outcome, random_run

ORDER = ("autoregressive", "lookahead")


def row(metrics: RunMetrics, strategy: str, task: str = "gsm8k") -> StrategyMetrics:
    (found,) = [item for item in metrics.strategies if (item.strategy, item.task) == (strategy, task)]
    return found


def only_pair(metrics: RunMetrics) -> PairedMetrics:
    (found,) = metrics.pairs
    return found


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


# One strategy ----------------------------------------------------------------------------------


def test_accuracy_is_the_mean_over_problems_of_right_samples() -> None:
    outcomes = [make_outcome(0, sample=sample, correct=sample == 0) for sample in range(4)]
    outcomes += [make_outcome(1, sample=sample, correct=True) for sample in range(2)]
    found = row(measure(outcomes), "autoregressive")
    assert (found.num_problems, found.num_answers, found.num_samples) == (2, 6, 2)
    assert found.accuracy is not None
    assert found.accuracy.value == pytest.approx((1 / 4 + 1) / 2)
    assert list(found.pass_at) == [1, 2]
    assert found.pass_at[2].value == pytest.approx((1 - 3 / 6 + 1) / 2)
    assert found.accuracy.standard_error == pytest.approx(np.std([0.25, 1], ddof=1) / 2**0.5)


def test_one_sample_of_each_problem_gives_the_exact_interval() -> None:
    found = row(measure([make_outcome(number, correct=number > 2) for number in range(30)]), "autoregressive")
    assert found.accuracy is not None
    assert found.accuracy.interval == exact_interval(27, 30)


def test_undecided_answers_are_not_right_and_counted_apart() -> None:
    outcomes = [make_outcome(0), make_outcome(1, correct=None, prediction="x"), make_outcome(2, answer=None)]
    found = row(measure(outcomes), "autoregressive")
    assert (found.num_graded, found.num_undecided, found.num_answers) == (2, 1, 3)
    assert found.accuracy is not None
    assert found.accuracy.value == 0.5


def test_a_vote_is_taken_over_the_samples_of_a_problem() -> None:
    predictions = [("1", True), ("2", False), ("2.0", False)]
    outcomes = [
        make_outcome(0, sample=sample, correct=correct, prediction=prediction)
        for sample, (prediction, correct) in enumerate(predictions)
    ]
    found = row(measure(outcomes), "autoregressive")
    assert found.majority_at[1].value == pytest.approx(1 / 3)
    # Two of three: right with a wrong one is a tie, twice; both wrong ones win once.
    assert found.majority_at[2].value == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert found.majority_at[3].value == 0


def test_times_tokens_and_rates_are_totals_and_percentiles() -> None:
    outcomes = [
        make_outcome(number, seconds=float(number + 1), tokens=10, finish="length" if number == 3 else "eos")
        for number in range(11)
    ]
    outcomes[0] = replace(outcomes[0], failed_tries=("timed out",), concurrency=4)
    found = row(measure(outcomes), "autoregressive")
    assert (found.seconds.mean, found.seconds.p50, found.seconds.p90) == (6.0, 6.0, 10.0)
    assert found.seconds.p95 == pytest.approx(10.5)
    assert found.first_step_seconds.p50 == 3.0
    assert found.seconds_per_problem.value == 6.0
    assert found.tokens_per_problem.value == 10.0
    assert found.tokens_per_second == pytest.approx(110 / 66)
    assert (found.num_cut, found.num_retried, found.concurrency) == (1, 1, (1, 4))
    assert found.verifier_seconds == pytest.approx(11 * 0.25)


def test_what_the_target_wrote_prefilled_and_scored_is_counted_apart() -> None:
    work = Usage(
        num_generated_tokens=4, num_prompt_tokens=30, num_cached_prompt_tokens=22, num_scored_tokens=6
    )
    found = row(
        measure([make_outcome(0, tokens=10, target=work), make_outcome(1, tokens=10, target=work)]),
        "autoregressive",
    )
    assert found.target_tokens == pytest.approx(0.4)
    assert found.target_prefilled_tokens == pytest.approx(0.8)
    assert found.target_scored_tokens == pytest.approx(0.6)


def test_acceptance_is_counted_by_place_and_by_answer() -> None:
    outcomes = [
        make_outcome(0, decisions=["accept", "reject", None, "unknown"]),
        make_outcome(1, decisions=["accept"],
                     target=Usage(num_drafted_tokens=10, num_accepted_draft_tokens=10)),
        make_outcome(2, decisions=["reject", None],
                     target=Usage(num_drafted_tokens=30, num_accepted_draft_tokens=5)),
    ]  # fmt: skip
    outcomes[1] = replace(outcomes[1], usage=replace(outcomes[1].usage, num_late_drafts=3))
    found = row(measure(outcomes), "autoregressive")
    counts = [(at.num_accepted, at.num_rejected, at.num_unknown) for at in found.acceptance_by_step]
    assert counts == [(2, 1, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)]
    assert [at.step_index for at in found.acceptance_by_step] == [0, 1, 2, 3]
    assert found.alpha_step == pytest.approx(2 / 5)
    assert found.alpha_step_of_all == pytest.approx(2 / 8)
    assert found.alpha_token == pytest.approx(15 / 40)


def test_tokens_saved_are_those_that_the_target_did_not_write() -> None:
    saved = [make_outcome(number, tokens=100, target=Usage(num_generated_tokens=30)) for number in range(3)]
    more = [make_outcome(number, tokens=100, target=Usage(num_generated_tokens=150)) for number in range(3)]
    assert row(measure(saved), "autoregressive").tokens_saved == pytest.approx(0.7)
    assert row(measure(more), "autoregressive").target_tokens == pytest.approx(1.5)
    assert row(measure(more), "autoregressive").tokens_saved == pytest.approx(-0.5)


def test_steps_plans_and_passes_are_rates_over_all_answers() -> None:
    drafted, written = (
        StepRecord("x", origin, 2, "boundary", None, (1, 2)) for origin in ("draft", "target")
    )
    cached = replace(drafted, origin="cache")
    work = AnswerUsage(
        Usage(num_passes=3),
        Usage(),
        {"accept": 2, "reject": 1, "unknown": 0},
        0.0,
        cache_verdicts={"accept": 1, "reject": 1, "unknown": 0},
        num_late_drafts=2,
    )
    base = random_run(3, 1)[0]
    outcomes = [
        replace(base, id="a", steps=(drafted, written), usage=work, tokens=4, plan=Plan(3, 8)),
        replace(base, id="b", steps=(cached, written), usage=work, tokens=4, plan=None),
    ]
    (item,) = measure(outcomes).strategies
    assert (item.drafted_steps, item.cached_steps) == (0.25, 0.25)
    assert item.planned_depth == 3, "one answer has no plan"
    assert item.target_passes == pytest.approx(6 / 8)
    assert item.alpha_step == pytest.approx(4 / 6)
    assert item.alpha_step_of_all == pytest.approx(4 / 10)
    assert item.alpha_step_of_cache == pytest.approx(0.5)
    assert item.num_correct == sum(outcome.correct is True for outcome in outcomes)


# Tasks -----------------------------------------------------------------------------------------


def test_tasks_have_rows_of_their_own_and_one_together() -> None:
    outcomes = random_run(1, 30, tasks=("math", "gsm8k"))
    metrics = measure(outcomes, ORDER)
    assert [(item.task, item.strategy) for item in metrics.strategies] == [
        (task, strategy) for task in ("math", "gsm8k", ALL_TASKS) for strategy in ORDER
    ]
    assert [item.task for item in metrics.pairs] == ["math", "gsm8k", ALL_TASKS]
    together = row(metrics, "lookahead", ALL_TASKS)
    parts = [row(metrics, "lookahead", task) for task in ("math", "gsm8k")]
    assert together.num_problems == sum(part.num_problems for part in parts) == 30
    assert together.accuracy is not None
    assert together.accuracy.value == pytest.approx(
        sum(part.accuracy.value * part.num_problems for part in parts if part.accuracy) / 30
    )


def test_equal_ids_of_different_tasks_are_different_problems() -> None:
    outcomes = [make_outcome(0, task="a"), make_outcome(0, task="b", correct=False)]
    assert row(measure(outcomes), "autoregressive", ALL_TASKS).num_problems == 2


def test_differences_between_tasks_are_no_uncertainty_of_all_together() -> None:
    """The speed-up differs by task and hardly within: that of so many problems of each is known well."""
    generator = np.random.default_rng(2)
    outcomes = []
    for number in range(60):
        easy = number % 2 == 0
        for strategy, factor in [("autoregressive", 1.0), ("lookahead", 1 / 2 if easy else 1 / 1.2)]:
            seconds = (20 if easy else 30) * factor * generator.normal(1, 0.02)
            outcomes.append(make_outcome(number, strategy, seconds=seconds, task="easy" if easy else "hard"))
    *_, apart = measure(outcomes).pairs
    together = only_pair(measure([replace(outcome, task="one") for outcome in outcomes]))
    assert apart.task == ALL_TASKS
    assert apart.speedup.value == pytest.approx(together.speedup.value)
    assert apart.speedup.standard_error is not None
    assert together.speedup.standard_error is not None
    assert apart.speedup.standard_error < 0.3 * together.speedup.standard_error


# Pairs -----------------------------------------------------------------------------------------


def test_a_pair_is_compared_with_the_tests_for_one_sample() -> None:
    outcomes = [make_outcome(number, correct=number >= 10) for number in range(100)]
    outcomes += [
        make_outcome(number, "lookahead", correct=number >= 16 or number < 2, seconds=1.0, tokens=12)
        for number in range(100)
    ]
    pair = only_pair(measure(outcomes))
    assert (pair.strategy, pair.baseline, pair.num_pairs, pair.num_problems) == (
        "lookahead", "autoregressive", 100, 100,
    )  # fmt: skip
    assert pair.accuracy_difference is not None
    assert pair.accuracy_difference.value == pytest.approx(-0.04)
    assert pair.p_value == mcnemar_exact(2, 6)
    assert pair.loss_upper == pytest.approx(paired_loss_upper(6, 2, 100))
    assert pair.speedup.value == pair.paired_speedup.value == pytest.approx(2.0)
    assert pair.num_identical == 0


def test_several_samples_have_no_mcnemar_test() -> None:
    pair = only_pair(measure(random_run(5, 40, 4)))
    assert pair.p_value is None
    assert pair.loss_upper is not None
    assert (pair.num_pairs, pair.num_problems) == (160, 40)


def test_the_speed_up_is_the_ratio_of_means_over_problems() -> None:
    outcomes = [make_outcome(0, sample=sample, seconds=6.0) for sample in range(2)] + [
        make_outcome(1, seconds=2.0)
    ]
    outcomes += [make_outcome(0, "lookahead", sample, seconds=float(sample + 1)) for sample in range(2)] + [
        make_outcome(1, "lookahead", seconds=2.0)
    ]
    pair = only_pair(measure(outcomes))
    assert pair.speedup.value == pytest.approx((6 + 2) / (1.5 + 2))
    assert pair.paired_speedup.value == pytest.approx(3.0)


def test_only_what_both_answered_is_compared() -> None:
    outcomes = [make_outcome(number) for number in range(3)]
    outcomes += [make_outcome(number, "lookahead") for number in range(1, 9)]
    pair = only_pair(measure(outcomes))
    assert (pair.num_pairs, pair.num_identical) == (2, 2)
    assert measure([make_outcome(0), make_outcome(1, "lookahead")]).pairs == ()


def test_without_the_target_alone_the_first_strategy_is_the_baseline() -> None:
    outcomes = [make_outcome(0, "prompt_lookup"), make_outcome(0, "lookahead")]
    assert only_pair(measure(outcomes, ["lookahead", "prompt_lookup"])).baseline == "lookahead"


def test_too_few_problems_are_said_in_words() -> None:
    warning = only_pair(measure(random_run(1, 30))).warning
    assert warning.startswith("30 problems: a difference of accuracy below ")
    assert "; the speed-up rests on 30 problems; take 60 or more" in warning
    large = random_run(1, 400, accuracy=0.98)
    assert only_pair(measure(large)).warning == ""
    moved = [replace(o, session="later") if o.strategy == "lookahead" and o.index < 7 else o for o in large]
    assert only_pair(measure(moved)).num_apart == 7
    assert only_pair(measure(moved)).warning == "7 of 400 pairs were timed in different starts of the command"


def test_equal_texts_of_an_exact_strategy_need_no_large_sample() -> None:
    outcomes = [make_outcome(number, strategy) for number in range(80) for strategy in ORDER]
    assert only_pair(measure(outcomes)).warning == ""
    freer = [replace(outcome, loss_class="verified") for outcome in outcomes]
    assert "would not be seen" in only_pair(measure(freer)).warning


def test_speed_up_intervals_hold_the_true_one() -> None:
    held = 0
    for seed in range(60):
        found = only_pair(measure(random_run(seed, 25, 2))).speedup.interval
        assert found is not None
        held += found.low <= 1.5 <= found.high
    assert held >= 52


def batched_run(seed: int, num_batches: int, size: int = 8) -> list[Outcome]:
    """Answers of batches whose strategies are 1.5 apart in speed; the last batch has one problem."""
    generator = np.random.default_rng(seed)
    outcomes = []
    for batch in range(num_batches):
        difficulty = generator.lognormal(0, 0.5)
        for strategy, speedup in (("autoregressive", 1.0), ("lookahead", 1.5)):
            seconds = float(difficulty * generator.lognormal(0, 0.2) / speedup)
            for number in range(1 if batch == num_batches - 1 else size):
                place = batch * size + number
                outcomes.append(make_outcome(place, strategy, seconds=seconds, concurrency=size))
    return outcomes


def test_intervals_of_concurrent_seconds_count_batches() -> None:
    held = {"speed-up": 0, "median": 0, "seconds": 0}
    mean = float(np.exp((0.5**2 + 0.2**2) / 2))
    for seed in range(60):
        metrics = measure(batched_run(seed, 26))
        pair = only_pair(metrics)
        found = row(metrics, "autoregressive").seconds_per_problem
        for name, estimate, true in (
            ("speed-up", pair.speedup, 1.5), ("median", pair.paired_speedup, 1.5), ("seconds", found, mean),
        ):  # fmt: skip
            assert estimate.interval is not None
            held[name] += estimate.interval.low <= true <= estimate.interval.high
    assert min(held.values()) >= 52


def test_batches_change_no_value_and_are_what_the_warning_counts() -> None:
    outcomes = batched_run(3, 10)
    found, alone = (
        measure([replace(outcome, concurrency=at_once) for outcome in outcomes]) for at_once in (8, 1)
    )
    one, other = only_pair(found), only_pair(alone)
    assert one.speedup.value == pytest.approx(other.speedup.value)
    assert one.paired_speedup.value == other.paired_speedup.value
    seconds, others = (row(item, "lookahead").seconds_per_problem for item in (found, alone))
    assert seconds.value == pytest.approx(others.value)
    assert seconds.standard_error is not None
    assert others.standard_error is not None
    assert seconds.standard_error > 2 * others.standard_error
    assert "the speed-up rests on 10 batches of problems; take 60 or more" in one.warning
    assert "speed-up" not in other.warning
    assert "1 batch of problems" in only_pair(measure(outcomes[:16])).warning
    assert only_pair(measure(outcomes[:16])).speedup.interval is None


def test_exchanged_strategies_change_signs_and_turn_ratios() -> None:
    outcomes = random_run(8, 30, 2, speedups={"prompt_lookup": 1.0, "lookahead": 1.4})
    one, other = (only_pair(measure(outcomes, order)) for order in (["prompt_lookup"], ["lookahead"]))
    assert one.accuracy_difference is not None
    assert other.accuracy_difference is not None
    assert one.accuracy_difference.value == pytest.approx(-other.accuracy_difference.value)
    assert one.speedup.value == pytest.approx(1 / other.speedup.value)
    assert one.smallest_difference == other.smallest_difference


# What is always so -----------------------------------------------------------------------------

runs = st.builds(
    random_run,
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.integers(1, 4),
    accuracy=st.floats(0.05, 0.95),
    tasks=st.sampled_from([("gsm8k",), ("gsm8k", "math")]),
)


@settings(max_examples=15)
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_outcomes_does_not_matter(outcomes: list[Outcome], shuffler: random.Random) -> None:
    shuffled = list(outcomes)
    shuffler.shuffle(shuffled)
    assert measure(shuffled, ORDER) == measure(outcomes, ORDER)


@settings(max_examples=30)
@given(runs)
def test_rates_by_k_begin_with_accuracy_and_rise(outcomes: list[Outcome]) -> None:
    baseline = [outcome for outcome in outcomes if outcome.strategy == "autoregressive"]
    measured = measure(baseline).strategies
    assert {found.task for found in measured} >= {outcome.task for outcome in baseline}
    for found in measured:
        assert found.accuracy is not None
        assert found.pass_at[1].value == pytest.approx(found.accuracy.value)
        assert found.majority_at[1].value == pytest.approx(found.accuracy.value)
        assert found.pass_at[1].interval == pytest.approx(found.accuracy.interval)
        rates = [estimate.value for estimate in found.pass_at.values()]
        assert rates == sorted(rates)
        for estimate in (found.accuracy, *found.pass_at.values(), *found.majority_at.values()):
            assert estimate.interval is not None
            assert 0 <= estimate.interval.low <= estimate.value <= estimate.interval.high <= 1


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["autoregressive", "lookahead", "hybrid"]), st.integers(0, 2),
            st.sampled_from([True, False, None]), st.sampled_from(["1", None]),
            st.sampled_from([0.0, 1e-9, 3.0]), st.sampled_from([0, 7]), st.sampled_from(["a", "b"]),
        ),
        max_size=12, unique_by=lambda item: item[:3],
    )
)  # fmt: skip
def test_whatever_a_run_holds_its_metrics_are_json(items: list[tuple[Any, ...]]) -> None:
    outcomes = [
        make_outcome(number, strategy, sample, correct=correct, answer=answer, seconds=seconds, tokens=tokens,
                     task=task, prediction=None if correct is None else "1")
        for number, strategy, sample, correct, answer, seconds, tokens, task in items
    ]  # fmt: skip
    record = measure(outcomes).to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert {type(leaf) for leaf in leaves(record)} <= {int, float, str, bool, type(None)}


def test_nothing_measured_is_an_empty_table() -> None:
    assert measure([], ORDER).to_dict() == {"strategies": [], "pairs": []}


def test_one_problem_has_values_and_no_spread() -> None:
    outcomes = [
        make_outcome(0, strategy, seconds=seconds)
        for strategy, seconds in zip(ORDER, (3.0, 2.0), strict=True)
    ]
    metrics = measure(outcomes)
    pair = only_pair(metrics)
    assert (pair.speedup.value, pair.speedup.interval) == (1.5, None)
    assert pair.paired_speedup.interval is None
    assert row(metrics, "lookahead").seconds_per_problem.interval is None
    assert pair.smallest_difference == 1.0
    assert pair.warning == "the speed-up rests on 1 problem; take 60 or more"


def test_the_record_has_every_field_with_intervals_and_k_by_name() -> None:
    record = measure(random_run(0, 12, 2)).to_dict()
    first, pair = record["strategies"][0], record["pairs"][0]
    assert set(first) == {field.name for field in fields(StrategyMetrics)}
    assert set(pair) == {field.name for field in fields(PairedMetrics)}
    assert set(first["accuracy"]["interval"]) == {"low", "high"}
    assert list(first["pass_at"]) == ["1", "2"]
    assert first["target"]["num_generated_tokens"] > 0
