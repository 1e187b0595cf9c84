"""Timelines on the disk, one line for each answer, beside the results that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from reason_spec.errors import DataError
from reason_spec.evaluation.line_file import LineFile
from reason_spec.evaluation.store import drop_torn_line, writing
from reason_spec.evaluation.timeline import TIMELINES, Timeline


class TimelineFile:
    """The file that a run writes its timelines to; a context manager.

    An answer's timeline is written before the answer itself. A kill between the two leaves a timeline
    without an answer, which is then written again: of several lines for one answer the last one counts.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / TIMELINES
        with writing(self.path):
            drop_torn_line(self.path)
            self._file = LineFile(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def append(self, timeline: Timeline) -> None:
        """Store a timeline; it survives a kill from the moment this returns.

        Raises:
            DataError: it cannot be written.
        """
        self._file.append(timeline.to_json())


def read_timelines(folder: Path) -> Iterator[Timeline]:
    """Yield the timelines of a run's folder, none where it stored none. The last one of an answer counts.

    A torn last line, as a run that is being written has it, is passed over.

    Raises:
        DataError: another line is damaged; the message names it.
    """
    path = folder / TIMELINES
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                timeline = Timeline.from_json(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}. Remove the line.") from None
            yield timeline
