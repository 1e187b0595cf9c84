"""A folder of replayed answers, one line for each: a kill loses only those under way."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final

from reason_spec.engines.weights import digest_weights
from reason_spec.evaluation.record_folder import RecordFolder
from reason_spec.lab.exit.live_rules import LiveStop
from reason_spec.lab.exit.rules import Stop
from reason_spec.lab.exit.traces import Trace
from reason_spec.settings import Settings
from reason_spec.settings.tree import identifying

_PARTS: Final = ("target", "draft", "exit", "sampling", "thinking", "boundary", "task")
"""Sections of the settings that decide where a live rule stops."""


class StopFolder(RecordFolder[tuple[str, LiveStop]]):
    """Where live rules stopped stored answers, by `answer_key`; a stopped replay goes on where it was.

    Args:
        settings: the models, and the rule with its settings.
    """

    records_file: ClassVar[str] = "stops.jsonl"
    identity_file: ClassVar[str] = "stops.json"
    content: ClassVar[str] = "stops"

    def __init__(self, path: Path, settings: Settings, *, fresh: bool = False) -> None:
        self.stops: dict[str, LiveStop] = {}
        super().__init__(path, _identity(settings), fresh=fresh)

    def append(self, key: str, found: LiveStop) -> None:
        """Store the stop of an answer; it survives a kill from the moment this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        self._append({"key": key, **found._asdict()})
        self.stops[key] = found

    @staticmethod
    def _parse(line: str) -> tuple[str, LiveStop]:
        record = json.loads(line)
        stop = None if record["stop"] is None else Stop(*record["stop"])
        return record["key"], LiveStop(stop, record["end"], tuple(record["trials"]), record["fits"])

    def _take(self, record: tuple[str, LiveStop]) -> None:
        key, found = record
        self.stops[key] = found


def answer_key(trace: Trace) -> str:
    """Return the name of a stored answer; ids alone may be those of several files."""
    content = json.dumps([trace.question, trace.response]).encode()
    return f"{trace.id}-{hashlib.sha256(content).hexdigest()[:12]}"


def _identity(settings: Settings) -> dict[str, Any]:
    # A replay has no deadline.
    tree = identifying(settings.model_dump(mode="json", exclude={"exit": {"deadline"}}))
    parts = {name: tree[name] for name in _PARTS}
    longest = settings.strategy.step_max_tokens
    return {"weights": asdict(digest_weights(settings)), "step_max_tokens": longest, **parts}
