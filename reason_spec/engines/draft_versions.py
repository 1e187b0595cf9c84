"""Versions of a pruned draft: what `draft adapt` writes, and what a server says of them.

A version is a folder ``versions/N`` in that of the draft: a pruned draft of the same layers and vocabulary,
`INFO`, and `VERDICT` once a server has tried it. A folder appears whole or not at all.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from reason_spec.engines.pruned import WEIGHTS, PrunedDraft, find_pruned
from reason_spec.errors import EngineError
from reason_spec.jsonl import atomic_output

FOLDER: Final = "versions"
INFO: Final = "version.json"
VERDICT: Final = "verdict.json"
_Record = TypeVar("_Record", bound=BaseModel)


class VersionInfo(BaseModel):
    """How a version was made.

    Attributes:
        parent: the version that it was trained from; 0: the draft itself.
        last_answer: number of the newest answer that it was trained on.
        tokens_per_pass_before, tokens_per_pass: of the parent and of the version, on held-out answers; see
            `reason_spec.lab.drafts.student.Agreement`.
    """

    model_config = ConfigDict(frozen=True)

    parent: int
    last_answer: int
    tokens_per_pass_before: float
    tokens_per_pass: float


class VersionVerdict(BaseModel):
    """What became of a version on a server; rates are shares of accepted draft tokens, None if unknown."""

    model_config = ConfigDict(frozen=True)

    accepted: bool
    reason: str
    rate_before: float | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class DraftVersion:
    """A version; number 0 is the draft itself. ``verdict`` is None while no server has tried it."""

    number: int
    folder: Path
    verdict: VersionVerdict | None = None

    @property
    def layers(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def info(self) -> VersionInfo | None:
        """How it was made; None for the draft itself, or if that is not known."""
        return _read(self.folder / INFO, VersionInfo)


class DraftVersions:
    """The versions of one draft on disk; one process writes them, and one server tries them."""

    def __init__(self, draft: PrunedDraft) -> None:
        self._draft = draft
        self._folder = draft.folder / FOLDER

    def all(self) -> list[DraftVersion]:
        """Return the versions in order, without the draft itself."""
        if not self._folder.is_dir():
            return []
        numbers = sorted(int(one.name) for one in self._folder.iterdir() if one.name.isdecimal())
        return [self._version(number) for number in numbers]

    @property
    def current(self) -> DraftVersion:
        """The newest accepted version, or the draft itself."""
        accepted = [one for one in self.all() if one.verdict is not None and one.verdict.accepted]
        return accepted[-1] if accepted else self.original

    @property
    def original(self) -> DraftVersion:
        """The draft itself."""
        return DraftVersion(0, self._draft.folder)

    @property
    def untried(self) -> DraftVersion | None:
        """The newest version, if no server has tried it."""
        newest = self.all()[-1:]
        return newest[0] if newest and newest[0].verdict is None else None

    def check(self, version: DraftVersion) -> None:
        """Check that a version has the layers and the vocabulary of the draft.

        Raises:
            EngineError: it has others, or its configuration is missing or damaged.
        """
        found = find_pruned(str(version.folder))
        if found is None or found.config != self._draft.config:
            raise EngineError(
                f"{str(version.folder)!r} has other layers or another vocabulary than the draft"
            )

    def decide(self, version: DraftVersion, verdict: VersionVerdict) -> None:
        """Write a verdict.

        Raises:
            DataError: it cannot be written.
        """
        with atomic_output(version.folder / VERDICT, remedy="Make room, or change the permissions.") as file:
            file.write(verdict.model_dump_json().encode())

    def publish(self, made: Path, info: VersionInfo) -> DraftVersion:
        """Move a folder with a pruned draft to the next number; delete versions that are not needed any more.

        Raises:
            OSError: it cannot be moved.
        """
        (made / INFO).write_text(info.model_dump_json(), encoding="utf-8")
        earlier = self.all()
        number = earlier[-1].number + 1 if earlier else 1
        self._folder.mkdir(exist_ok=True)
        made.rename(self._folder / str(number))
        kept = self.current.number
        for one in earlier:
            if one.number != kept:
                shutil.rmtree(one.folder)
        return self._version(number)

    def _version(self, number: int) -> DraftVersion:
        folder = self._folder / str(number)
        verdict = _read(folder / VERDICT, VersionVerdict)
        if verdict is None and (folder / VERDICT).exists():
            verdict = VersionVerdict(accepted=False, reason=f"{VERDICT} is damaged")
        return DraftVersion(number, folder, verdict)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
