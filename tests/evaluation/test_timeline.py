from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import DataError
from reason_spec.evaluation.outcome import UnitKey
from reason_spec.evaluation.records import RecordFile
from reason_spec.evaluation.timeline import TIMELINES, Mark, Timeline, read_timelines


def timeline(number: int, text: str = "So.\u2028Then\r\n") -> Timeline:
    marks = (
        Mark("started", "target", 0.0, 0, 0),
        Mark("verified", "verifier", 0.25, 0, 1, 3, text, "draft", "accept", 0.9, "said so", 0.01),
    )
    return Timeline(UnitKey(f"p{number}", number, "lookahead"), marks)


def write(folder: Path, *timelines: Timeline) -> Path:
    with RecordFile(folder / TIMELINES) as file:
        for item in timelines:
            file.append(item.to_json())
    return folder / TIMELINES


def by_key(folder: Path) -> dict[UnitKey, Timeline]:
    return {item.key: item for item in read_timelines(folder)}


def test_what_was_stored_is_read_and_the_last_line_of_an_answer_counts(tmp_path: Path) -> None:
    write(tmp_path, timeline(0, "first"), timeline(1))
    write(tmp_path, timeline(0, "again"))
    assert by_key(tmp_path) == {item.key: item for item in (timeline(1), timeline(0, "again"))}


def test_a_folder_without_timelines_has_none(tmp_path: Path) -> None:
    assert by_key(tmp_path) == {}


@given(cut=st.integers(1, 100))
def test_a_torn_last_line_is_dropped_when_a_run_goes_on(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = write(folder, timeline(0), timeline(1))
    path.write_bytes(path.read_bytes()[:-cut])
    assert by_key(folder) == {timeline(0).key: timeline(0)}
    write(folder, timeline(2))
    assert by_key(folder) == {item.key: item for item in (timeline(0), timeline(2))}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, timeline(0))
    path.write_text('{"problem_id": "p"}\n' + path.read_text())
    with pytest.raises(DataError, match=r"timelines\.jsonl, line 1: is no timeline"):
        by_key(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / TIMELINES).mkdir()
    with pytest.raises(DataError, match=r"timelines\.jsonl: cannot be written"):
        RecordFile(tmp_path / TIMELINES)
