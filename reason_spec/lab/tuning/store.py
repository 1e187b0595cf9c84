"""The folder of a search: every answer, and the identity of the search that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from reason_spec.evaluation.outcome import Outcome
from reason_spec.evaluation.record_folder import RecordFolder
from reason_spec.lab.tuning.halving import Answer

ANSWERS = "answers.jsonl"
IDENTITY = "search.json"


class TuneFolder(RecordFolder[tuple[str, Outcome]]):
    """Answers by candidate and problem, with the hash of the settings that wrote each."""

    records_file: ClassVar[str] = ANSWERS
    identity_file: ClassVar[str] = IDENTITY
    content: ClassVar[str] = "a search"
    option: ClassVar[str] = "--run"

    def __init__(self, path: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        """By the candidate's key and the problem's id, in the order in which they were written."""
        super().__init__(path, identity, fresh=fresh)

    def append(self, key: str, outcome: Outcome) -> None:
        """Store an answer; it survives a kill from the moment this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        assert (key, outcome.id) not in self.outcomes, f"{key} answers {outcome.id} twice"
        self._append({"candidate": key, **json.loads(outcome.to_json())})
        self.outcomes[key, outcome.id] = outcome

    def answer(self, key: str, problem_id: str) -> Answer | None:
        """Return a stored answer; None where there is none."""
        outcome = self.outcomes.get((key, problem_id))
        return None if outcome is None else Answer(outcome.seconds, outcome.correct is True)

    @staticmethod
    def _parse(line: str) -> tuple[str, Outcome]:
        return json.loads(line)["candidate"], Outcome.from_json(line)

    def _take(self, record: tuple[str, Outcome]) -> None:
        key, outcome = record
        if (key, outcome.id) in self.outcomes:
            raise ValueError(f"problem {outcome.id!r} is answered twice")
        self.outcomes[key, outcome.id] = outcome
