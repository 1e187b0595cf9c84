"""Training, replay and thresholds on stored answers: what is claimed is what the replay does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.errors import DataError
from reason_spec.exit.policy import ExitPolicy, load_policy, question_key
from reason_spec.lab.exit import training
from reason_spec.lab.exit.replay import Replay, ReplayReport, report_dict
from reason_spec.lab.exit.rules import (
    PUBLISHED,
    Rule,
    Stop,
    deer_text,
    dynasor_text,
    oracle,
    policy_rule,
    same_number_twice,
)
from reason_spec.lab.exit.traces import ReadTrace, Trace, read_steps, read_traces
from reason_spec.lab.exit.tuning import PolicyCurve, tune_exit
from reason_spec.lab.tuning.calibration import LossTest
from reason_spec.tasks.grading import Grader
from tests.lab.exit.answers import write_answers


class Trained(NamedTuple):
    reads: list[ReadTrace]
    replay: Replay
    table: training.LabelledCandidates
    policy: ExitPolicy


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    path = write_answers(tmp_path_factory.mktemp("exit") / "answers.jsonl", 48)
    reads = read_steps(read_traces(path))
    table = training.LabelledCandidates.of(reads)
    policy = training.train(table, load_policy().asked, threshold=0.9, about={})
    with Grader(deadline_seconds=60) as grader:
        yield Trained(reads, Replay(reads, grader), table, policy)


def test_a_trained_policy_stops_early_at_the_final_answer(trained: Trained) -> None:
    report = ReplayReport.of(trained.replay.run(policy_rule(trained.policy)))
    assert report.tokens_kept < 0.9
    assert report.lost <= 2
    assert report.accuracy_before == pytest.approx(44 / 48)


def test_held_out_policies_have_not_seen_the_problem_nor_the_model(trained: Trained) -> None:
    table, asked = trained.table, trained.policy.asked
    answers = [0, 1]
    policies = training.held_out_policies(table, asked, by_group=True, answers=answers)
    assert policies[0] is not None
    assert policies[0] != policies[1], "two models, two policies"
    # Other answers of the same model and to the same fold of problems must not change a policy.
    unseen = (training.folds_of(table) == training.folds_of(table)[0]) | (table.group == table.group[0])
    flipped = replace(table, final=table.final ^ unseen[table.answer])
    again = training.held_out_policies(flipped, asked, by_group=True, answers=[0])
    assert again[0] == policies[0]
    one_fold = training.folds_of(table)
    assert all(one_fold[a] == one_fold[a + 1] for a in range(0, len(one_fold), 2)), "one question, one fold"


def test_a_second_model_needs_rows_of_which_the_first_is_wrongly_sure(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trained.policy.second is None, "96 short answers have few"
    monkeypatch.setattr(training, "_SECOND_WRONG", 1)
    policy = training.train(trained.table, trained.policy.asked, threshold=0.9, about={})
    assert policy.second is not None
    assert policy.model == trained.policy.model


@settings(max_examples=25, deadline=None)
@given(st.data(), st.text(max_size=150), st.sampled_from([0.3, 0.6, 0.9]))
def test_another_rest_of_the_text_gives_the_same_stops(
    trained: Trained, data: st.DataObject, rest: str, threshold: float
) -> None:
    read = data.draw(st.sampled_from(trained.reads))
    policy = trained.policy.model_copy(update={"threshold": threshold})
    stop = policy_rule(policy)(read)
    if stop is None or stop.step == len(read.steps) - 1:
        return
    kept = read.trace.thinking[: read.ends[stop.step]]
    changed = replace(read.trace, thinking=kept + rest, response=rest, answer="0")
    assert policy_rule(policy)(read_steps([changed])[0]) == stop


def test_a_curve_gives_the_stops_of_its_thresholds(trained: Trained) -> None:
    curve = PolicyCurve(trained.policy)
    for threshold in (0.2, 0.8, 0.99):
        rule = policy_rule(trained.policy.model_copy(update={"threshold": threshold}))
        assert [curve.rule(threshold)(read) for read in trained.reads] == [
            rule(read) for read in trained.reads
        ]


def test_an_answer_that_is_reduced_to_its_choices_has_the_same_stops(trained: Trained) -> None:
    curve, policy = PolicyCurve(trained.policy), trained.policy
    reads = read_steps([read.trace for read in trained.reads], reduce=curve.reduce)
    assert not any(read.candidates for read in reads)
    assert list(map(curve.rule(policy.threshold), reads)) == list(map(policy_rule(policy), trained.reads))


def test_a_policy_knows_the_questions_that_it_was_trained_on(trained: Trained) -> None:
    learned = [question_key("How many  pears?")]
    policy = training.train(trained.table, trained.policy.asked, threshold=0.9, about={}, learned=learned)
    assert all(policy.has_seen(read.trace.question) for read in trained.reads)
    assert policy.has_seen("How many pears?\n")
    assert not policy.has_seen("How many plums?")


def test_no_rule_keeps_less_than_the_oracle_without_a_loss(trained: Trained) -> None:
    best = oracle(lambda read, answer: trained.replay.is_right(read, answer) is True)
    found = trained.replay.run(best)
    assert not any(answer.is_lost for answer in found)
    for rule in (*PUBLISHED.values(), policy_rule(trained.policy)):
        for ours, other in zip(found, trained.replay.run(rule), strict=True):
            assert ours.num_kept <= other.num_kept or other.right_after is not True


def test_lost_answers_are_counted_and_won_ones_do_not_offset_them(trained: Trained) -> None:
    def nonsense(read: ReadTrace) -> Stop:
        return Stop(0, "-1")

    answers = trained.replay.run(nonsense)
    report = ReplayReport.of(answers)
    assert (report.lost, report.won, report.accuracy_after) == (88, 0, 0.0)
    assert report.loss_upper95 > report.loss
    found = report_dict(answers, threshold=0.5)
    assert set(found["groups"]) == {"brief", "wordy"}
    assert sum(part["lost"] for part in found["groups"].values()) == found["lost"]
    assert found["n"] == 96


def test_nothing_is_kept_or_lost_by_a_rule_that_never_stops(trained: Trained) -> None:
    report = ReplayReport.of(trained.replay.run(lambda read: None))
    assert (report.tokens_kept, report.lost, report.stopped) == (1.0, 0, 0.0)


def read_of(*steps: str) -> ReadTrace:
    thinking = "\n\n".join(steps)
    return read_steps([Trace("1", "q", "How many apples?", "7", thinking, thinking)])[0]


@pytest.mark.parametrize(
    ("rule", "stop"),
    [
        (same_number_twice, Stop(2, "7")),
        (deer_text, Stop(2, "7")),
        (dynasor_text(2), None),
    ],
)
def test_published_rules_stop_where_they_say(rule: Rule, stop: Stop | None) -> None:
    read = read_of("So 2 + 3 = 5 apples.", "Then 5 + 2 = 7.", "So it is 7.", "Wait, is it so?", "So it is 7.")
    assert rule(read) == stop


def test_dynasor_counts_agreeing_probes_without_doubt() -> None:
    sure = "So we see here that all of the many apples that are there are 7. " * 5
    assert dynasor_text(2)(read_of(sure, sure, sure)) == Stop(1, "7")
    assert dynasor_text(2)(read_of(sure, "Hmm, wait. " + sure, sure, sure)) == Stop(3, "7")


def test_a_threshold_is_chosen_by_its_test_on_whole_problems(trained: Trained) -> None:
    curve = PolicyCurve(trained.policy)
    found = tune_exit(curve, trained.replay, LossTest(0.2, 0.95), num_problems=48)
    assert found.policy is not None
    assert found.trials.chosen is not None
    assert found.policy.threshold == found.trials.chosen.threshold
    assert found.to_dict()["loss_class"] == "shortened"
    last = found.trials.trials[-1]
    assert found.trials.test.passes(found.trials.chosen)
    assert last.threshold == 0.5 or not found.trials.test.passes(last)
    with pytest.raises(DataError, match="48 problems with known answers are too few"):
        tune_exit(curve, trained.replay, LossTest(0.01, 0.95), num_problems=48)


def test_too_few_answers_are_refused(trained: Trained) -> None:
    with pytest.raises(DataError, match="at least 50 such answers"):
        training.LabelledCandidates.of(trained.reads[:20])
