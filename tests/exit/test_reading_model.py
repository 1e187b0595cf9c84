"""A small model reads along: the state behind a line depends on what precedes it, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reason_spec.errors import DataError, EngineError
from reason_spec.exit import reading_model
from reason_spec.exit.policy import SHIPPED, SHIPPED_READING, ExitMonitor, load_policy, shipped_policy
from reason_spec.exit.reading_model import ReadingModel, load_reading_model
from tests.engines.real_models import real_model
from tests.pair.tiny import save_tiny

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
LINES = ["She has 3 * 4 = 12 apples.\n", "So 12 - 2 = 10 apples are left.\n", "So the answer is 10.\n"]
READER = "models:smollm2-gsm8k"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ReadingModel:
    return ReadingModel(str(save_tiny(tmp_path_factory.mktemp("tiny"), seed=3)))


def test_lines_give_the_same_states_one_by_one_and_together(model: ReadingModel) -> None:
    reading = model.begin(QUESTION)
    one_by_one = np.concatenate([reading.read([line]) for line in LINES])
    together = model.begin(QUESTION).read(LINES)
    assert one_by_one.shape == (3, model.width)
    np.testing.assert_allclose(one_by_one, together, rtol=0.05, atol=0.05)


def test_readings_of_one_question_do_not_disturb_each_other(model: ReadingModel) -> None:
    alone = model.begin(QUESTION).read(LINES[:1])
    first, second = model.begin(QUESTION), model.begin(QUESTION)
    second.read(LINES[1:])
    np.testing.assert_array_equal(first.read(LINES[:1]), alone)


def test_the_question_changes_the_states(model: ReadingModel) -> None:
    other = model.begin(QUESTION.replace("left", "eaten")).read(LINES[:1])
    assert not np.allclose(model.begin(QUESTION).read(LINES[:1]), other)


def test_what_has_no_room_is_not_read(model: ReadingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    room = len(model._prompt(QUESTION)) + len(model.tokens_of(LINES[0])) + 1
    monkeypatch.setattr(reading_model, "_MOST_TOKENS", room)
    reading = model.begin(QUESTION)
    assert len(reading.read(LINES)) == 1
    assert reading.read(["1\n"]).shape == (0, model.width), "nothing after a gap"


def test_a_missing_model_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nothing-here"):
        load_reading_model(str(tmp_path / "nothing-here"))


def test_a_model_of_another_size_than_the_probe_is_refused(tmp_path: Path) -> None:
    policy = load_policy(SHIPPED_READING)
    assert policy.reading is not None
    other = policy.reading.model_copy(update={"model": str(save_tiny(tmp_path / "tiny", seed=3))})
    monitor = ExitMonitor(policy.model_copy(update={"reading": other}), QUESTION)
    with pytest.raises(DataError, match=r"states have 576 numbers, and those of .* have 16"):
        monitor.weigh(LINES[0])


def test_the_shipped_policy_reads_along_where_its_model_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason_spec.exit.policy.is_installed", lambda name: name == READER)
    assert shipped_policy() == load_policy(SHIPPED_READING)
    assert shipped_policy(text_only=True) == load_policy(SHIPPED)
    monkeypatch.setattr("reason_spec.exit.policy.is_installed", lambda name: False)
    assert shipped_policy() == load_policy(SHIPPED)


def test_the_shipped_policy_prefers_the_asked_quantity_to_an_intermediate_one() -> None:
    real_model(READER)
    monitor = ExitMonitor(load_policy(SHIPPED_READING), QUESTION)
    chances = {}
    for line in LINES:
        best = monitor.weigh(line + "\n")
        assert best is not None
        chances[best.answer] = best.chance
    assert list(chances) == ["12", "10"]
    assert chances["10"] > 0.9 > chances["12"]
