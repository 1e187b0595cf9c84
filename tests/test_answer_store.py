"""Answers on disk: they come back as they were, within the limit, and only for their own target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reason_spec.accelerator.answer_store import ANSWERS, AnswerStore, StoredAnswer
from reason_spec.errors import DataError
from reason_spec.suffix.tenant_file import StoreKey

KEY = StoreKey("sha256 a", "b")
ANSWER = StoredAnswer((1, 2, 300_000), (4, 5), "ana", version=3, num_accepted=6, num_rejected=2)


def test_answers_come_back_in_order_while_the_file_is_written(tmp_path: Path) -> None:
    writer = AnswerStore.create(tmp_path / "answers", KEY)
    reader = AnswerStore.open(tmp_path / "answers", KEY)
    answers = [replace(ANSWER, answer=(number,)) for number in range(1, 9)]
    for answer in answers:
        writer.add(answer)
    found = reader.newest(3, after=4)
    assert found == [replace(answers[number - 1], number=number) for number in (6, 7, 8)]
    assert reader.id == writer.id != AnswerStore.create(tmp_path / "other", KEY).id
    assert {answer.number for answer in reader.sample(9, up_to=4)} == {1, 2, 3, 4}
    assert found[0].acceptance_rate == 0.75
    assert replace(ANSWER, num_accepted=0, num_rejected=0).acceptance_rate is None
    assert (tmp_path / "answers").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "answers" / ANSWERS).stat().st_mode & 0o777 == 0o600


def test_the_oldest_answers_are_deleted_at_the_limit(tmp_path: Path) -> None:
    limit = 200_000
    store = AnswerStore.create(tmp_path, KEY, limit)
    for number in range(400):
        store.add(replace(ANSWER, answer=tuple(range(number, number + 500))))
    found = store.newest(1000)
    assert found[-1].number == 400
    assert 50 < len(found) < 100
    store.close()
    assert (tmp_path / ANSWERS).stat().st_size < 1.5 * limit


def test_a_tenants_answers_can_be_deleted(tmp_path: Path) -> None:
    store = AnswerStore.create(tmp_path, KEY)
    for tenant in ("ana", "ben", "ana"):
        store.add(replace(ANSWER, prompt=tuple(b"secret"), tenant=tenant))
    store.forget(["ana"])
    assert [answer.tenant for answer in store.newest(9)] == ["ben"]


def test_a_file_of_another_target_or_of_none_is_refused(tmp_path: Path) -> None:
    AnswerStore.create(tmp_path, KEY).close()
    for open_it in (AnswerStore.create, AnswerStore.open):
        with pytest.raises(DataError, match=r"answers\.sqlite has answers of another target"):
            open_it(tmp_path, StoreKey("sha256 c", "b"))
    with pytest.raises(DataError, match=r"no such file; name the folder of server\.learn_folder"):
        AnswerStore.open(tmp_path / "other", KEY)
    (tmp_path / ANSWERS).write_bytes(b"damaged" * 1000)
    for open_it in (AnswerStore.create, AnswerStore.open):
        with pytest.raises(DataError, match=r"cannot be used.*Delete it"):
            open_it(tmp_path, KEY)
