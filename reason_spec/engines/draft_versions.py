"""Versions of a pruned draft: what `draft adapt` writes, and what a server says of them.

A version is a folder ``versions/N`` in that of the draft: a pruned draft of the same layers and vocabulary,
`INFO`, and `VERDICT` once a server has tried it. A folder appears whole or not at all. Versions of
packaged drafts are in the user's data folder.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from reason_spec.engines.digests import digest_file
from reason_spec.engines.pruned import WEIGHTS, PrunedDraft, find_pruned
from reason_spec.errors import EngineError
from reason_spec.jsonl import atomic_output

INFO: Final = "version.json"
VERDICT: Final = "verdict.json"
_SEEN: Final = "seen.json"
_REMEDY: Final = "Make room, or change the permissions."
_Record = TypeVar("_Record", bound=BaseModel)


class VersionInfo(BaseModel):
    """How a version was made.

    Attributes:
        parent: the version that it was trained from; 0: the draft itself.
        tokens_per_pass_before, tokens_per_pass: of the parent and of the version, on held-out answers; see
            `reason_spec.lab.drafts.student.Agreement`.
        draft: digest of the draft's `WEIGHTS`; versions of a draft that was trained again are not used.
    """

    model_config = ConfigDict(frozen=True)

    parent: int
    tokens_per_pass_before: float
    tokens_per_pass: float
    draft: str = ""


class _SeenAnswers(BaseModel):
    """The newest answer that a draft was trained on: its number, and the id of the store that it is in."""

    model_config = ConfigDict(frozen=True)

    draft: str
    store: int
    number: int


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
    """The versions of one draft on disk; one process writes them, and one server tries them.

    Versions of the draft before it was trained again do not count.
    """

    def __init__(self, draft: PrunedDraft) -> None:
        self._draft = draft
        self._folder = draft.versions
        self._digest = digest_file(draft.folder / WEIGHTS)

    def all(self) -> list[DraftVersion]:
        """Return the versions in order, without the draft itself."""
        return [one for one in self._on_disk() if one.info is not None and one.info.draft == self._digest]

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
        with atomic_output(version.folder / VERDICT, remedy=_REMEDY) as file:
            file.write(verdict.model_dump_json().encode())

    def publish(self, made: Path, info: VersionInfo) -> DraftVersion:
        """Move a folder with a pruned draft to the next number; delete versions that are not needed any more.

        Raises:
            OSError: it cannot be moved.
        """
        info = info.model_copy(update={"draft": self._digest})
        (made / INFO).write_text(info.model_dump_json(), encoding="utf-8")
        earlier = self._on_disk()
        number = earlier[-1].number + 1 if earlier else 1
        self._folder.mkdir(parents=True, exist_ok=True)
        made.rename(self._folder / str(number))
        kept = self.current.number
        for one in earlier:
            if one.number != kept:
                shutil.rmtree(one.folder)
        return self._version(number)

    def last_seen(self, store: int) -> int:
        """Return the number of the newest answer of a store that the draft was trained on; 0: of none."""
        seen = _read(self._folder / _SEEN, _SeenAnswers)
        if seen is None or (seen.draft, seen.store) != (self._digest, store):
            return 0
        return seen.number

    def note_seen(self, store: int, number: int) -> None:
        """Write down that the draft was trained on a store's answers up to a number.

        Raises:
            DataError: it cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_output(self._folder / _SEEN, remedy=_REMEDY) as file:
            seen = _SeenAnswers(draft=self._digest, store=store, number=number)
            file.write(seen.model_dump_json().encode())

    def _on_disk(self) -> list[DraftVersion]:
        if not self._folder.is_dir():
            return []
        numbers = sorted(int(one.name) for one in self._folder.iterdir() if one.name.isdecimal())
        return [self._version(number) for number in numbers]

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
