"""The acceptance of draft tokens is that of the two models' distributions, on texts that the target wrote."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from reason_spec.engines.model_files import resolve_model
from reason_spec.lab.drafts.head_acceptance import HeadPair
from reason_spec.lab.drafts.head_student import HeadStudent
from reason_spec.lab.drafts.student import Student, accepted_in_a_row
from reason_spec.lab.drafts.texts import TrainingText
from reason_spec.lab.drafts.token_acceptance import ModelPair
from reason_spec.settings import Settings, load_settings
from tests.engines.tiny_models import save_model

TEXTS = [TrainingText((60, start, 61), tuple(range(start, start + 12))) for start in range(65, 71)]
VOCABULARY = list(range(40, 200))


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return save_model("llama", tmp_path / "target")


def settings_of(target: Path, draft: Path) -> Settings:
    return load_settings(
        flags={"target.model": str(target), "draft.model": str(draft), "target.device": "cpu"}
    )


def pruned(target: Path, folder: Path) -> Path:
    folder.mkdir()
    Student(str(target), str(target), (1,), VOCABULARY, torch.device("cpu")).save(folder)
    return folder


def logits(model: str, text: TrainingText) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(model)
    with torch.inference_mode():
        found: torch.Tensor = module(torch.tensor([text.prompt + text.answer])).logits
    return found[0, len(text.prompt) - 1 : -1]


def test_a_target_accepts_everything_of_itself(target: Path) -> None:
    pair = ModelPair(settings_of(target, target))
    greedy, sampled = (pair.acceptance(TEXTS, temperature, 4) for temperature in (0.0, 0.6))
    assert greedy.alpha.value == 1.0
    assert sampled.alpha.value == pytest.approx(1.0, abs=1e-5)
    # From the last positions of a text fewer tokens follow.
    assert greedy.in_a_row == tuple((12 - place) / 12 for place in range(4))
    assert greedy.num_tokens == 12 * len(TEXTS)


def test_rates_are_those_of_the_distributions_of_the_trimmed_draft(target: Path, tmp_path: Path) -> None:
    draft = pruned(target, tmp_path / "draft")
    pair = ModelPair(settings_of(target, draft))
    kept = torch.full((272,), float("-inf"))
    kept[VOCABULARY] = 0.0
    overlaps, same = [], []
    for text in TEXTS:
        p, q = logits(str(target), text), logits(resolve_model("draft", str(draft)), text) + kept
        overlaps += torch.minimum(torch.softmax(p / 0.6, -1), torch.softmax(q / 0.6, -1)).sum(-1).tolist()
        same.append((p.argmax(-1) == q.argmax(-1)).tolist())
    sampled, greedy = pair.acceptance(TEXTS, 0.6, 4), pair.acceptance(TEXTS, 0.0, 4)
    assert sampled.alpha.value == pytest.approx(sum(overlaps) / len(overlaps), abs=1e-5)
    assert sampled.in_a_row == ()
    assert greedy.in_a_row == accepted_in_a_row(same, 4)
    assert greedy.alpha.value == greedy.in_a_row[0]
    assert all(later <= earlier for earlier, later in pairwise(greedy.in_a_row))
    assert greedy.alpha.interval is not None
    assert 0.0 <= greedy.alpha.interval.low <= greedy.alpha.value <= greedy.alpha.interval.high <= 1.0


def test_tokens_in_a_row_are_counted_from_every_position() -> None:
    assert accepted_in_a_row([[True, True, False, True]], 3) == (3 / 4, 1 / 4, 0.0)


def test_rates_of_a_head_are_those_of_its_first_draft_and_of_chains(target: Path, tmp_path: Path) -> None:
    student = HeadStudent(str(target), str(target), VOCABULARY, torch.device("cpu"))
    folder = tmp_path / "head"
    folder.mkdir()
    student.save(folder)
    pair = HeadPair(settings_of(target, folder))
    greedy, sampled = (pair.acceptance(TEXTS, temperature, 4) for temperature in (0.0, 0.6))
    together = pair._student.agreement([TEXTS], 4)
    assert greedy.in_a_row == pytest.approx(together.accepted, abs=0.02)
    assert greedy.alpha.value == pytest.approx(greedy.in_a_row[0])
    expected = []
    for text in TEXTS:
        drafted = torch.softmax(pair._student.draft_steps([text], 1)[0][0].float() / 0.6, -1)
        written = torch.softmax(logits(str(target), text) / 0.6, -1)
        expected.append(torch.minimum(drafted.detach(), written[:, VOCABULARY]).sum(-1))
    # The target's states are in bfloat16 there.
    assert sampled.alpha.value == pytest.approx(float(torch.cat(expected).mean()), abs=0.02)
    assert sampled.in_a_row == ()
