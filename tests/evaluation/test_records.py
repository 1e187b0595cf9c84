"""Lines on a disk that gets full: each is there as a whole or not at all, and the file goes on later."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason_spec.errors import DataError
from reason_spec.evaluation.records import RecordFile
from tests.evaluation.test_store import begun, make_outcome, open_folder
from tests.full_disk import full_beyond


def test_a_line_that_does_not_fit_leaves_no_part_and_the_next_one_follows(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    file = RecordFile(path)
    file.append("first")
    with full_beyond(20):
        with pytest.raises(DataError, match=r"lines\.jsonl: cannot be written .*make room"):
            file.append("x" * 100)
        assert path.read_text() == "first\n"
        file.append("fits")
    file.append("y" * 100)
    file.close()
    assert path.read_text().splitlines() == ["first", "fits", "y" * 100]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_file_that_takes_nothing_can_still_be_closed(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    file = RecordFile(tmp_path / "full")
    with pytest.raises(DataError, match="No space left on device"):
        file.append("line")
    file.close()


def test_a_full_disk_costs_a_run_folder_only_what_did_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "run"
    begun(path, count=2)
    before = (path / "results.jsonl").read_bytes()
    with open_folder(path) as folder:
        folder.begin_session("two", ["lookahead"], {"order_seed": 0})
        settings = (path / "settings.yaml").read_bytes()
        with full_beyond(len(before) + 10):
            with pytest.raises(DataError, match=r"results\.jsonl: cannot be written"):
                folder.append(make_outcome(2))
            with pytest.raises(DataError, match=r"settings\.yaml: cannot be written"):
                folder.end_session({"note": "x" * len(before)})
        assert len(folder.outcomes) == 2
    assert (path / "results.jsonl").read_bytes() == before
    assert (path / "settings.yaml").read_bytes() == settings
    assert [file.name for file in path.iterdir() if file.suffix == ".tmp"] == []


def test_a_new_folder_that_could_hold_nothing_is_not_left_behind(tmp_path: Path) -> None:
    with (
        full_beyond(0),
        pytest.raises(DataError, match=r"settings\.yaml: cannot be written"),
        open_folder(tmp_path / "run") as folder,
    ):
        folder.begin_session("one", ["lookahead"], {"order_seed": 0})
    assert not (tmp_path / "run").exists()
