"""A draft that is trained further agrees better with what its target is asked now, and is written if so."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest
import torch

from reason_spec.accelerator.answer_store import AnswerStore, StoredAnswer
from reason_spec.engines.draft_versions import DraftVersions, VersionVerdict
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.pruned import CONFIG, WEIGHTS, PrunedDraft, find_pruned
from reason_spec.errors import DataError
from reason_spec.lab.drafts.adapting import LEAST_NEW, AdaptationRound, DraftAdapter, RoundResult
from reason_spec.lab.drafts.student import Student
from reason_spec.suffix.tenant_file import StoreKey
from tests.engines.tiny_models import save_model

CPU = torch.device("cpu")
KEY = StoreKey("a", "b")


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrunedDraft:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = save_model("llama", tmp_path / "base")
    (tmp_path / "draft").mkdir()
    Student(str(base), str(base), (1,), None, CPU, temperatures=(0.0,)).save(tmp_path / "draft")
    found = find_pruned(str(tmp_path / "draft"))
    assert found is not None
    return found


@pytest.fixture
def store(tmp_path: Path) -> AnswerStore:
    return AnswerStore.create(tmp_path / "answers", KEY)


def ask(store: AnswerStore, count: int, *, task: int = 0, seed: int = 0) -> None:
    """Store answers of a task: they count on from the prompt, each task in its own tokens."""
    rng = Random(seed)
    for _ in range(count):
        first = rng.randrange(40)
        answer = tuple(60 * task + (first + (1 + 6 * task) * place) % 40 for place in range(1, 13))
        prompt = (rng.randrange(130, 260), rng.randrange(130, 260), 60 * task + first)
        store.add(StoredAnswer(prompt, answer, "ana", num_accepted=3, num_rejected=1))


def adapter(draft: PrunedDraft, store: AnswerStore, num_batches: int = 100) -> DraftAdapter:
    times = itertools.count()
    # A random model has to learn faster than one that is good already. Every batch takes a second.
    return DraftAdapter(draft, store, CPU, num_batches, 1e-2, lambda: float(next(times)))


def run(adapting: DraftAdapter) -> RoundResult:
    chosen = adapting.next_round()
    assert isinstance(chosen, AdaptationRound)
    *_, result = adapting.run(chosen)
    assert isinstance(result, RoundResult)
    return result


def test_a_shifted_task_is_learnt_from_what_the_server_stores(draft: PrunedDraft, store: AnswerStore) -> None:
    versions, adapting = DraftVersions(draft), adapter(draft, store)
    ask(store, 64)
    first = run(adapting).version
    assert first is not None
    assert adapting.next_round() == "version 1 has not been tried by the server yet"
    versions.decide(first, VersionVerdict(accepted=True, reason="tried"))
    ask(store, 64, task=1)
    result = run(adapting)
    assert result.after > 1.2 * result.before
    (_, second) = versions.all()
    assert second == result.version
    versions.check(second)
    assert second.info is not None
    assert second.info.parent == 1
    assert versions.last_seen(store.id) == 128
    assert {path.name for path in second.folder.iterdir()} == {CONFIG, WEIGHTS, "version.json"}
    assert not (draft.versions / "unfinished").exists()
    assert (Path(resolve_model("draft", str(second.folder))) / "config.json").exists()


def test_training_goes_on_from_the_accepted_version_and_only_with_new_answers(
    draft: PrunedDraft, store: AnswerStore
) -> None:
    versions, adapting = DraftVersions(draft), adapter(draft, store)
    ask(store, LEAST_NEW - 1)
    assert adapting.next_round() == f"{LEAST_NEW - 1} of {LEAST_NEW} new answers"
    ask(store, 1, seed=1)
    version = run(adapting).version
    assert version is not None
    versions.decide(version, VersionVerdict(accepted=False, reason="worse"))
    for one in (adapting, adapter(draft, store)):
        assert one.next_round() == f"0 of {LEAST_NEW} new answers"
    ask(store, LEAST_NEW, seed=2)
    chosen = adapting.next_round()
    assert isinstance(chosen, AdaptationRound)
    assert chosen.start.number == 0
    assert chosen.acceptance_rate == 0.75
    assert chosen.num_new == LEAST_NEW < len(chosen.trained)
    assert not {text.prompt for text in chosen.trained} & {text.prompt for text in chosen.held_out}
    versions.decide(version, VersionVerdict(accepted=True, reason="better"))
    again = adapting.next_round()
    assert isinstance(again, AdaptationRound)
    assert again.start.number == 1


def test_a_version_that_is_not_better_is_not_written(draft: PrunedDraft, store: AnswerStore) -> None:
    # Noise: nothing is learned from it that holds for other answers.
    rng = Random(3)
    for _ in range(LEAST_NEW):
        tokens = tuple(rng.randrange(10, 260) for _ in range(15))
        store.add(StoredAnswer(tokens[:3], tokens[3:], "ana"))
    adapting = adapter(draft, store, 5)
    assert run(adapting).version is None
    assert DraftVersions(draft).all() == []
    for one in (adapting, adapter(draft, store)):
        assert one.next_round() == f"0 of {LEAST_NEW} new answers"


def test_answers_of_another_store_are_new_whatever_their_numbers(
    draft: PrunedDraft, store: AnswerStore, tmp_path: Path
) -> None:
    ask(store, 2 * LEAST_NEW)
    DraftVersions(draft).note_seen(store.id, 2 * LEAST_NEW)
    assert adapter(draft, store).next_round() == f"0 of {LEAST_NEW} new answers"
    other = AnswerStore.create(tmp_path / "other", KEY)
    ask(other, LEAST_NEW)
    assert isinstance(adapter(draft, other).next_round(), AdaptationRound)


def test_answers_to_one_prompt_wait_for_others(draft: PrunedDraft, store: AnswerStore) -> None:
    for _ in range(LEAST_NEW):
        store.add(StoredAnswer((60,), (61, 62), "ana"))
    assert adapter(draft, store).next_round() == "new answers to more than one prompt"


def test_damaged_layers_are_named(draft: PrunedDraft, store: AnswerStore) -> None:
    ask(store, LEAST_NEW)
    adapting = adapter(draft, store)
    (draft.folder / WEIGHTS).write_bytes(b"damaged")
    chosen = adapting.next_round()
    assert isinstance(chosen, AdaptationRound)
    with pytest.raises(DataError, match=rf"{WEIGHTS}: cannot be read.*train the draft again"):
        next(adapting.run(chosen))
    Student(str(draft.config.base), draft.config.base, (0, 1), None, CPU).save(draft.folder)
    with pytest.raises(DataError, match=rf"{WEIGHTS}: has other layers than {CONFIG} says"):
        next(adapting.run(chosen))
