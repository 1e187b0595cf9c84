"""How problems are put to models of different kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from reason_spec.engines.tokenizer import load_tokenizer
from reason_spec.errors import EngineError
from reason_spec.evaluation.prompts import ask_for, messages_for, prompt_style
from reason_spec.settings import Settings, load_settings
from reason_spec.tasks.base import EXAMPLES_END, PromptStyle, task_names
from reason_spec.types import Problem
from tests.engines.real_models import GEMMA3, SMOLLM2, real_model
from tests.engines.tiny_models import byte_level_tokenizer

PROBLEM = Problem(id="one", question="What is 2 + 3?", answer="5", task="gsm8k")


def settings_of(model: Path | str, **flags: str) -> Settings:
    return load_settings(flags={"target.model": str(model), **flags})


def base_model(folder: Path) -> Path:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_without_a_chat_template_is_shown_solved_examples(tmp_path: Path) -> None:
    settings = settings_of(base_model(tmp_path))
    (message,) = messages_for(PROBLEM, settings)
    assert prompt_style(settings) == "examples"
    assert message["content"].count("\\boxed{") == 3
    assert message["content"].endswith("Question: What is 2 + 3?\nAnswer:")
    assert load_tokenizer(str(tmp_path)).encode_chat([message])


def test_its_answer_ends_before_a_question_of_its_own(tmp_path: Path) -> None:
    settings = settings_of(base_model(tmp_path)).model_copy(
        update={"sampling": Settings().sampling.model_copy(update={"stop": ("END",)})}
    )
    assert ask_for(PROBLEM, settings).stops == ("END", EXAMPLES_END)


def test_a_model_with_one_is_asked_for_a_boxed_answer(tmp_path: Path) -> None:
    byte_level_tokenizer().save_pretrained(tmp_path)
    settings = settings_of(tmp_path)
    assert prompt_style(settings) == "boxed"
    assert ask_for(PROBLEM, settings).stops == ()


@pytest.mark.parametrize("task", task_names())
@pytest.mark.parametrize("style", get_args(PromptStyle))
def test_verifiers_see_the_bare_question_under_every_style(style: str, task: str) -> None:
    settings = load_settings(flags={"target.kind": "scripted", "target.model": "none", "task.prompt": style})
    question = "Line one.\n\nWhat is 2 + 3?"
    assert ask_for(replace(PROBLEM, question=question, task=task), settings).question == question


def test_the_style_that_is_set_is_taken(tmp_path: Path) -> None:
    assert prompt_style(settings_of(base_model(tmp_path), **{"task.prompt": "plain"})) == "plain"


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="elsewhere"):
        prompt_style(settings_of(tmp_path / "elsewhere"))


def test_of_the_real_models_the_instructed_one_is_asked_and_the_base_one_is_shown_examples() -> None:
    for model, style in ((SMOLLM2, "boxed"), (GEMMA3, "examples")):
        real_model(model)
        assert prompt_style(settings_of(model)) == style
