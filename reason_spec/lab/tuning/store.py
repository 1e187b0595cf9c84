"""The folder of a search: every answer, and the identity of the search that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from reason_spec.errors import ResumeError
from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.records import RecordFile, lock_folder, read_records, write_text, writing
from reason_spec.lab.tuning.halving import Answer

ANSWERS = "answers.jsonl"
IDENTITY = "search.json"
_OTHER_FOLDER = "Name another folder with --run."
_REMEDY = "Name another folder with --run, or start anew with --fresh."


class TuneFolder:
    """Answers by candidate and problem; a context manager that holds the folder's lock.

    ``answers.jsonl`` grows by a line for each answer, with the hash of the settings that wrote it, written
    through to the disk. A last line torn by a kill is dropped when the folder is opened again.

    Args:
        path: created where it does not exist.
        identity: of the search that the answers belong to, as JSON holds it.
        fresh: ignore stored answers, and replace them with the first new one.

    Raises:
        DataError: the folder cannot be written.
        ResumeError: it is in use, damaged, or holds another search.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self._identity = identity
        self._file: RecordFile | None = None
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        """By the candidate's key and the problem's id, in the order in which they were written."""
        with writing(path, _OTHER_FOLDER):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path, "--run")
        try:
            self._replaces = fresh or not (path / IDENTITY).exists()
            if not self._replaces:
                self._resume()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def append(self, key: str, outcome: Outcome) -> None:
        """Store an answer; it survives a kill from the moment this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        assert (key, outcome.id) not in self.outcomes, f"{key} answers {outcome.id} twice"
        line = json.dumps({"candidate": key, **json.loads(outcome.to_json())}, ensure_ascii=False)
        self._file = self._file or self._open()
        self._file.append(line)
        self.outcomes[key, outcome.id] = outcome

    def answer(self, key: str, problem_id: str) -> Answer | None:
        """Return a stored answer; None where there is none."""
        outcome = self.outcomes.get((key, problem_id))
        return None if outcome is None else Answer(outcome.seconds, outcome.correct is True)

    def _open(self) -> RecordFile:
        if self._replaces:
            with writing(self.path, _OTHER_FOLDER):
                (self.path / ANSWERS).unlink(missing_ok=True)
            write_text(self.path / IDENTITY, json.dumps(self._identity, indent=2) + "\n", _OTHER_FOLDER)
            self._replaces = False
        return RecordFile(self.path / ANSWERS, _OTHER_FOLDER)

    def _resume(self) -> None:
        try:
            earlier = json.loads((self.path / IDENTITY).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ResumeError(f"{self.path / IDENTITY} cannot be read ({error}). {_REMEDY}") from None
        now = json.loads(json.dumps(self._identity))
        changed = [name for name in now if not isinstance(earlier, dict) or earlier.get(name) != now[name]]
        if changed:
            raise ResumeError(f"{self.path} holds a search with other {', '.join(changed)}. {_REMEDY}")
        path = self.path / ANSWERS
        self._file = RecordFile(path, _OTHER_FOLDER)
        for number, (key, outcome) in read_records(path, _parse, ResumeError, _REMEDY):
            if (key, outcome.id) in self.outcomes:
                raise ResumeError(
                    f"{path}, line {number}: problem {outcome.id!r} is answered twice. {_REMEDY}"
                )
            self.outcomes[key, outcome.id] = outcome


def _parse(line: str) -> tuple[str, Outcome]:
    return json.loads(line)["candidate"], Outcome.from_json(line)
