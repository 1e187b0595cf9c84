"""The divergence brings a draft closer to its target; tokens that it cannot predict are left out."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reason_spec.lab.drafts.objectives import cross_entropy, forward_kl
from reason_spec.lab.drafts.schedule import SCHEDULES, ScheduleName, objective_at
from reason_spec.lab.drafts.student import Student
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.lab.drafts.training import DraftTraining, TrainedDraft
from reason_spec.lab.drafts.writing import Writing, written_at
from tests.engines.tiny_models import save_model

CPU = torch.device("cpu")
# Texts that the target would not write, so that cross-entropy leads away from it.
TEXTS = [TrainingText((60, start, 61), tuple(range(start, start + 12))) for start in range(65, 95)]
HELD_OUT = TEXTS[::10]
TRAINED = [text for text in TEXTS if text not in HELD_OUT]
WRITING = Writing(end_ids=(270,), max_tokens=12, temperatures=(0.0, 1.0))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_model("llama", tmp_path / "base")


def student(base: Path, layers: tuple[int, ...] = (1,), vocabulary: list[int] | None = None) -> Student:
    return Student(str(base), str(base), layers, vocabulary, CPU, keep_target=True)


def training(base: Path, folder: Path, schedule: ScheduleName, seconds: float = 100) -> DraftTraining:
    folder.mkdir(exist_ok=True)
    seen = itertools.count()
    return DraftTraining(student(base), folder, seconds, schedule, WRITING, lambda: float(next(seen)))


@torch.no_grad()
def divergence(draft: TrainedDraft) -> float:
    assert isinstance(draft, Student)
    logits, labels = draft.predict(HELD_OUT)
    total, count = forward_kl(logits, draft.target_logits(HELD_OUT), labels)
    return float(total) / count


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_the_divergence_brings_a_draft_closer_to_the_target(
    schedule: ScheduleName, base: Path, tmp_path: Path
) -> None:
    run = training(base, tmp_path / "draft", schedule, 200)
    after_cross_entropy = 0.0
    for _ in run.run(TRAINED, HELD_OUT):
        if run.spent == 0.6 * run.seconds:
            after_cross_entropy = divergence(run.student)
    ratio = divergence(run.student) / after_cross_entropy
    assert ratio > 1.02 if schedule == "cross-entropy" else ratio < 0.95
    assert {point.objective for point in run.curve} == {phase.objective for phase in SCHEDULES[schedule]}


def test_a_training_stopped_while_the_draft_writes_continues_there(base: Path, tmp_path: Path) -> None:
    first = training(base, tmp_path / "draft", "on-policy")
    for point in first.run(TRAINED, HELD_OUT):
        if point is not None and point.seconds >= 80:
            break
    resumed = training(base, tmp_path / "draft", "on-policy")
    assert resumed.objective == "on-policy"
    assert resumed.curve == first.curve
    before = divergence(resumed.student)
    assert before == pytest.approx(divergence(first.student), rel=1e-4)
    for _ in resumed.run(TRAINED, HELD_OUT):
        assert resumed.objective == "on-policy"
    assert resumed.spent == 100
    assert divergence(resumed.student) < before


def test_the_divergence_of_the_target_from_itself_is_zero_and_else_positive(base: Path) -> None:
    assert divergence(student(base, (0, 1))) == pytest.approx(0, abs=1e-5)
    assert divergence(student(base, (1,))) > 0.1


def test_tokens_outside_the_vocabulary_are_left_out(base: Path) -> None:
    whole, trimmed = student(base), student(base, vocabulary=list(range(70)))
    batch = [TrainingText((60, 61), (65, 200, 66))]
    logits, labels = trimmed.predict(batch)
    kept = [0, 2]
    with torch.no_grad():
        draft, target = (
            part[kept, :70].float().log_softmax(-1)
            for part in (whole.predict(batch).logits, whole.target_logits(batch))
        )
    found = forward_kl(logits, trimmed.target_logits(batch), labels)
    assert found.num_tokens == cross_entropy(logits, labels).num_tokens == 2
    torch.testing.assert_close(found.total, (target.exp() * (target - draft)).sum(), rtol=1e-3, atol=1e-3)
    assert cross_entropy(*whole.predict(batch)).num_tokens == 3


def test_a_draft_writes_tokens_of_its_vocabulary_as_it_predicts_them(base: Path) -> None:
    draft = student(base, vocabulary=list(range(70)))
    prompts = [(60, 61), (60, 61, 62, 63, 64), (65,)]
    greedy = None
    for seed in range(6):
        found = WRITING.answers(draft.module, prompts, random.Random(seed))
        assert found == WRITING.answers(draft.module, prompts, random.Random(seed))
        assert [text.prompt for text in found] == prompts
        assert all(token < 70 for text in found for token in text.answer)
        assert all(1 <= len(text.answer) <= WRITING.max_tokens for text in found)
        if random.Random(seed).choice(WRITING.temperatures) == 0.0:
            greedy = found
    assert greedy is not None
    assert share_of_greedy(draft, greedy) > 0.9


def share_of_greedy(draft: Student, texts: list[TrainingText]) -> float:
    """Share of the tokens that the draft finds likeliest, when it reads the whole text at once."""
    logits, labels = draft.predict(texts)
    hits: Tensor = logits.argmax(-1) == labels
    return float(hits.float().mean())


def test_an_answer_ends_with_its_end(base: Path) -> None:
    draft = student(base)
    prompts = [text.prompt for text in TRAINED]
    ends = tuple({text.answer[2] for text in WRITING.answers(draft.module, prompts, random.Random(1))})
    for text in Writing(ends, 12, WRITING.temperatures).answers(draft.module, prompts, random.Random(1)):
        assert all(token not in ends for token in text.answer[:-1])
        assert len(text.answer) <= 3


@pytest.mark.parametrize(
    ("named", "drawn"),
    [((0.0,), (0.0, 1.0)), ((0.6,), (0.0, 0.6)), ((0.0, 0.6), (0.0, 0.6)), ((0.6, 1.0), (0.6, 1.0))],
)
def test_a_draft_writes_at_the_temperatures_of_the_answers(
    named: tuple[float, ...], drawn: tuple[float, ...]
) -> None:
    assert written_at(named) == drawn


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_covers_the_whole_time_and_begins_with_cross_entropy(schedule: ScheduleName) -> None:
    ends = [phase.end for phase in SCHEDULES[schedule]]
    assert ends == sorted(ends)
    assert ends[-1] == 1.0
    assert objective_at(schedule, 0.0) == "cross-entropy"
    assert objective_at(schedule, 1.0) == SCHEDULES[schedule][-1].objective


def test_a_student_without_its_target_cannot_learn_its_distribution(base: Path, tmp_path: Path) -> None:
    alone = Student(str(base), str(base), (1,), None, CPU)
    with pytest.raises(ValueError, match="kl takes a student that keeps its target"):
        DraftTraining(alone, tmp_path, 10, "kl")
    with pytest.raises(ValueError, match="phased takes a way of writing"):
        DraftTraining(student(base), tmp_path, 10, "phased")
