"""The probe on a small model's states: no answer is rated by a probe that saw its problem."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from reason_spec.errors import DataError
from reason_spec.exit.policy import Choice, ExitMonitor, ExitPolicy, load_policy
from reason_spec.exit.reading_model import ReadingModel, load_reading_model
from reason_spec.lab.exit import training
from reason_spec.lab.exit.rules import choices
from reason_spec.lab.exit.states import StatementTable
from reason_spec.lab.exit.traces import ReadTrace, read_steps, read_traces
from reason_spec.lab.exit.tuning import PolicyCurve
from tests.lab.exit.answers import write_answers
from tests.pair.tiny import save_tiny


class Read(NamedTuple):
    model: ReadingModel
    reads: list[ReadTrace]
    table: training.LabelledCandidates
    statements: StatementTable
    policy: ExitPolicy


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    folder = tmp_path_factory.mktemp("exit")
    model = load_reading_model(str(save_tiny(folder / "tiny", seed=3)))
    reads = read_steps(read_traces(write_answers(folder / "answers.jsonl", 48)), model=model)
    table = training.LabelledCandidates.of(reads)
    statements = StatementTable.of(reads, model.name, training.final_values(reads))
    policy = training.train(table, load_policy().asked, threshold=0.9, about={}, statements=statements)
    return Read(model, reads, table, statements, policy)


def test_a_policy_with_a_small_model_survives_its_file(read: Read) -> None:
    again = ExitPolicy.model_validate_json(read.policy.to_json())
    assert again == read.policy
    assert again.reading is not None
    with pytest.raises(ValueError, match="other features"):
        ExitPolicy.model_validate({**read.policy.model_dump(), "reading": None})


def test_stored_and_running_answers_are_weighed_alike(read: Read) -> None:
    for one in read.reads[:8]:
        monitor = ExitMonitor(read.policy, one.trace.question)
        assert list(choices(read.policy, one)) == [monitor.weigh(step) for step in one.steps]


def test_a_running_answer_is_followed_beside_the_event_loop(read: Read) -> None:
    async def follow() -> list[Choice | None]:
        monitor = ExitMonitor(read.policy, read.reads[0].trace.question)
        return [await monitor.follow(step) for step in read.reads[0].steps]

    assert asyncio.run(follow()) == list(choices(read.policy, read.reads[0]))


def test_another_rest_of_the_text_changes_no_choice_before_it(read: Read) -> None:
    for one in read.reads[:8]:
        kept = one.trace.thinking[: one.ends[-2]]
        other = replace(one.trace, thinking=kept + "So 5 * 5 = 25. So the answer is 25.")
        changed = read_steps([other], model=read.model)[0]
        num_same = len(one.steps) - 2
        assert list(choices(read.policy, one))[:num_same] == list(choices(read.policy, changed))[:num_same]


def test_a_curve_keeps_the_choices_and_no_states(read: Read) -> None:
    curve = PolicyCurve(read.policy)
    reduced = read_steps([one.trace for one in read.reads[:6]], reduce=curve.reduce, model=read.model)
    assert not any(one.statements or one.candidates for one in reduced)
    rule = PolicyCurve(read.policy).rule(0.9)
    assert [curve.rule(0.9)(one) for one in reduced] == [rule(one) for one in read.reads[:6]]


def test_labels_of_the_own_fold_do_not_change_a_rating(read: Read) -> None:
    seen, fold = np.ones(len(read.reads), bool), training.folds_of(read.table)
    margins = read.statements.cross_rated(seen, fold)
    own = (fold == fold[0])[read.statements.answer]
    flipped = replace(read.statements, final=read.statements.final ^ own)
    np.testing.assert_array_equal(flipped.cross_rated(seen, fold)[own], margins[own])
    assert not np.allclose(flipped.cross_rated(seen, fold)[~own], margins[~own])


def test_a_held_out_policy_has_a_probe_that_saw_neither_problem_nor_model(read: Read) -> None:
    def first(statements: StatementTable) -> ExitPolicy | None:
        asked = read.policy.asked
        found = training.held_out_policies(
            read.table, asked, by_group=True, answers=[0], statements=statements
        )
        return found[0]

    fold = training.folds_of(read.table)
    unseen = (fold == fold[0]) | (read.table.group == read.table.group[0])
    flipped = replace(read.statements, final=read.statements.final ^ unseen[read.statements.answer])
    assert first(flipped) == first(read.statements)


def test_answers_without_a_conclusion_cannot_be_read_along(read: Read) -> None:
    silent = [replace(one, statements=()) for one in read.reads]
    with pytest.raises(DataError, match="nothing to read along"):
        StatementTable.of(silent, read.model.name, training.final_values(silent))
    with pytest.raises(DataError, match="no probe can be fitted"):
        replace(read.statements, final=np.zeros_like(read.statements.final)).fit_probe(
            np.ones(len(read.reads), bool)
        )
