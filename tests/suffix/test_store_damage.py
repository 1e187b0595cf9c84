"""Damaged, foreign and unwritable files of texts: set aside or named, and never read as wrong texts."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save as save_tensors

from reason_spec.errors import DataError
from reason_spec.suffix import tenant_file
from reason_spec.suffix.store import (
    list_files,
)
from reason_spec.suffix.tenant_file import FileHeader, UnreadableFileError
from tests.suffix.some_documents import (
    KEY,
    assert_equal,
    contents,
    documents_of,
    num_tokens,
    open_store,
    random_documents,
    the_file,
)


def places_in(size: int) -> list[int]:
    """Every byte of the beginning, where each has its own meaning, and some of all the rest."""
    return [*range(min(40, size)), *range(40, size, 7), size - 1]


def test_a_damaged_file_is_set_aside_and_never_gives_a_wrong_text(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = random_documents(60, 13)
    open_store(folder).save("a", documents)
    file = the_file(folder)
    sound = file.read_bytes()
    for place in places_in(len(sound)):
        for mask in (0x01, 0x80):
            damaged = bytearray(sound)
            damaged[place] ^= mask
            file.write_bytes(bytes(damaged))
            caplog.clear()
            assert_equal(open_store(folder).load("a"), [])
            assert not file.exists()
            (aside,) = folder.glob("*.damaged-1")
            assert aside.read_bytes() == bytes(damaged)
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert str(file) in record.getMessage()
            assert aside.name in record.getMessage()
            aside.unlink()
    file.write_bytes(sound)
    assert_equal(open_store(folder).load("a"), documents)


@pytest.mark.parametrize("more", [b"", b"\0", b"more"])
def test_a_file_of_another_length_is_damaged(folder: Path, more: bytes) -> None:
    open_store(folder).save("a", random_documents(60, 13))
    file = the_file(folder)
    sound = file.read_bytes()
    cuts = [sound + more] if more else [sound[:end] for end in range(0, len(sound), 5)]
    for number, content in enumerate(cuts, start=1):
        file.write_bytes(content)
        assert num_tokens(open_store(folder).load("a")) == 0
        assert (folder / f"{file.name}.damaged-{number}").read_bytes() == content


def test_a_save_over_a_damaged_file_sets_it_aside(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1]))
    the_file(folder).write_bytes(b"rubbish")
    store.save("a", documents_of([1], [2]))
    assert "set aside" in caplog.text
    assert contents(open_store(folder).load("a")) == {(1,), (2,)}


def test_a_damaged_file_in_a_folder_that_cannot_be_written_costs_only_what_it_held(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(folder).save("a", documents_of([1]))
    the_file(folder).write_bytes(b"rubbish")

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "rename", refuse)
    assert_equal(open_store(folder).load("a"), [])
    assert "by hand" in caplog.text


def test_a_file_of_a_later_version_is_set_aside_unharmed(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_file, "FORMAT", 9)
    open_store(folder).save("a", documents_of([1]))
    monkeypatch.undo()
    content = the_file(folder).read_bytes()
    assert_equal(open_store(folder).load("a"), [])
    assert "its format is 9" in caplog.text
    assert "Delete it" in caplog.text
    (aside,) = folder.glob("*.damaged-1")
    assert aside.read_bytes() == content


def test_a_full_disk_leaves_the_file_before_and_nothing_beside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder)
    store.save("a", documents_of([1]))
    names = {file.name for file in folder.iterdir()}

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match="No space left on device"):
        store.save("a", documents_of([1], [2]))
    assert {file.name for file in folder.iterdir()} == names
    assert contents(open_store(folder).load("a")) == {(1,)}


@pytest.mark.parametrize(
    "metadata", [{}, {"reason_spec": "{}"}, {"reason_spec": "5"}, {"reason_spec": '{"format": 2}'}]
)
def test_a_header_that_lacks_something_is_damaged(tmp_path: Path, metadata: dict[str, str]) -> None:
    (tmp_path / "file").write_bytes(save_tensors({"tokens": np.zeros(1, np.int32)}, metadata))
    with pytest.raises(UnreadableFileError, match="header lacks something"):
        tenant_file.read_file(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", np.array([-5], np.int32)),
        ("tokens", np.array([1, 2], np.int64)),
        ("starts", np.array([1], np.int64)),
        ("starts", np.array([0, 0], np.int64)),
        ("sources", np.array([3], np.uint8)),
        ("sources", np.array([0, 0], np.uint8)),
        ("last_used", np.array([1.0, 2.0])),
    ],
)
def test_impossible_arrays_are_refused_whatever_their_checksum(
    tmp_path: Path, name: str, value: npt.NDArray[Any]
) -> None:
    header = FileHeader("a", KEY, "0", "1", 2.0)
    arrays = {**tenant_file._to_arrays(documents_of([7])), name: value}
    about = json.dumps({"format": tenant_file.FORMAT, **asdict(header)})
    metadata = {"reason_spec": about, "blake2b": tenant_file._checksum(about, arrays)}
    (tmp_path / "file").write_bytes(save_tensors(arrays, metadata))
    with pytest.raises(UnreadableFileError, match="contradict each other"):
        tenant_file.read_file(tmp_path / "file")


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    for work in (lambda: open_store(place).load("a"), lambda: open_store(place).save("a", documents_of([1]))):
        with pytest.raises(DataError, match=r"file.*suffix\.path"):
            work()
    with pytest.raises(DataError, match="folder"):
        list_files(tmp_path / "missing")
