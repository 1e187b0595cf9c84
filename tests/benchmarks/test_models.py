from __future__ import annotations

import argparse
import random

import pytest
from changed_questions import change_a_name, change_a_number, has_name
from models import Models, add_models_arguments, models_of, needs_draft

from reason_spec.settings import Settings, load_settings
from reason_spec.tasks import REAL_SAMPLE_PATH, load_problems


def chosen(*arguments: str) -> Models:
    parser = argparse.ArgumentParser()
    add_models_arguments(parser)
    return models_of(parser.parse_args(arguments))


def test_without_options_the_models_are_those_of_default_settings() -> None:
    assert chosen().is_embedded
    assert load_settings(flags=chosen().flags) == Settings()


@pytest.mark.parametrize("models", ["demo", "real"])
def test_named_models_reach_the_settings(models: str) -> None:
    settings = load_settings(
        flags=chosen("--models", models, "--target", "a-target", "--draft", "a-draft").flags
    )
    assert (settings.target.model, settings.draft.model) == ("a-target", "a-draft")


def test_without_a_draft_the_rows_that_need_one_are_left_out_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[tuple[str, str, dict[str, object]]] = [
        ("plain", "autoregressive", {}),
        ("ahead", "lookahead", {}),
        ("copied", "prompt_lookup", {}),
    ]

    def lacks(row: tuple[str, str, dict[str, object]]) -> bool:
        return needs_draft(row[1])

    assert chosen("--models", "real").usable(rows, lacks) == [rows[0], rows[2]]
    assert capsys.readouterr().err == "left out, no draft is given (--draft FOLDER): ahead\n"
    assert chosen("--models", "real", "--draft", "a-draft").usable(rows, lacks) == rows
    assert chosen().usable(rows, lacks) == rows
    assert not capsys.readouterr().err


def test_real_problems_accept_their_reference_answer_and_no_other() -> None:
    tasks = Models("real", "a-target", None).tasks(100, seed=3)
    problems = load_problems(REAL_SAMPLE_PATH, "gsm8k").problems
    assert len(tasks) == len(problems)
    for task, problem in zip(tasks, problems, strict=True):
        assert problem.question in task.question
        assert task.is_right(f"So it is \\boxed{{{problem.answer}}}.")
        assert not task.is_right(f"So it is \\boxed{{{problem.answer}1}}.")
        assert not task.is_right("So it is")


@pytest.mark.parametrize("models", [Models(), Models("real", "a-target", None)], ids=["demo", "real"])
def test_a_question_changes_in_one_name_or_one_number(models: Models) -> None:
    rng = random.Random(0)
    questions = [task.question for task in models.tasks(24, seed=0)]
    named = [question for question in questions if has_name(question)]
    assert len(named) >= 22
    for question in named:
        assert change_a_name(question, rng) != question
    for question in questions:
        changed = change_a_number(question, rng)
        assert changed != question
        assert len(changed) == len(question)
