"""A folder of labelled steps, one line for each problem: a kill loses only those under way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock

from reason_spec.engines.weights import identify_model
from reason_spec.errors import DataError, ResumeError
from reason_spec.evaluation.records import RecordFile, drop_torn_line, lock_folder, read_records, writing
from reason_spec.lab.router_training.advantage import LabelledStep, LabelOptions
from reason_spec.routers.base import PairIdentity
from reason_spec.settings import Settings

LABELS, ABOUT = "labels.jsonl", "labels.json"
_REMEDY = "Name another folder with --output, or start anew with --fresh."
_PARTS = ("target", "draft", "sampling", "boundary", "task")
_REWARD_PARTS = ("reward_model", "reward_step_token")


@dataclass(frozen=True, slots=True)
class About:
    """The models, options and settings of all labels in a folder."""

    pair: PairIdentity
    options: LabelOptions
    settings: dict[str, Any]

    @classmethod
    def of(cls, settings: Settings, options: LabelOptions) -> About:
        """Return the identity of the models and the settings that decide their output."""
        pair = PairIdentity(
            identify_model("target", settings.target), identify_model("draft", settings.draft)
        )
        tree = settings.model_dump(mode="json")
        parts = {name: tree[name] for name in _PARTS}
        return cls(pair, options, parts | {name: tree["verifier"][name] for name in _REWARD_PARTS})

    def to_json(self) -> dict[str, Any]:
        return {"pair": self.pair._asdict(), "options": asdict(self.options), "settings": self.settings}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> About:
        return cls(PairIdentity(**record["pair"]), LabelOptions(**record["options"]), record["settings"])


@dataclass(frozen=True, slots=True)
class Labels:
    """Labelled steps by problem, and their models and settings."""

    about: About
    problems: dict[str, list[LabelledStep]]

    @property
    def steps(self) -> list[LabelledStep]:
        return [step for steps in self.problems.values() for step in steps]


class LabelFolder:
    """A folder to add labels to, locked while it is open; a context manager.

    With ``fresh`` the first new label replaces those of an earlier run.

    Raises:
        DataError: it cannot be written.
        ResumeError: it is in use, damaged, or holds labels of other models or settings.
    """

    def __init__(self, path: Path, about: About, *, fresh: bool = False) -> None:
        self.path = path
        self._about = about
        self._replaces = fresh
        self.problems: dict[str, list[LabelledStep]] = {}
        self._lines: RecordFile | None = None
        self._lock: FileLock | None = None
        with contextlib.ExitStack() as on_error, writing(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(path)
            on_error.callback(self.close)
            if not fresh:
                drop_torn_line(path / LABELS)
                if (path / LABELS).exists():
                    self.problems = self._resume(about)
            on_error.pop_all()

    def _begin(self) -> RecordFile:
        if self._replaces:
            (self.path / LABELS).unlink(missing_ok=True)
        (self.path / ABOUT).write_text(json.dumps(self._about.to_json(), indent=1) + "\n", encoding="utf-8")
        return RecordFile(self.path / LABELS)

    def _resume(self, about: About) -> dict[str, list[LabelledStep]]:
        try:
            earlier = read_labels(self.path)
        except DataError as error:
            raise ResumeError(f"{error} {_REMEDY}") from None
        if earlier.about != about:
            before, now = earlier.about.to_json(), about.to_json()
            changed = [name for name in now if before[name] != now[name]]
            raise ResumeError(f"{self.path} holds labels with other {' and '.join(changed)}. {_REMEDY}")
        return earlier.problems

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder; may be called twice."""
        if self._lines is not None:
            self._lines.close()
        if self._lock is not None:
            self._lock.release()
        self._lines = self._lock = None

    def append(self, problem: str, steps: Sequence[LabelledStep]) -> None:
        """Store the steps of a problem; they survive a kill from the moment this returns."""
        assert self._lock is not None, "the folder is closed"
        record = {"problem": problem, "steps": [asdict(step) for step in steps]}
        with writing(self.path / LABELS):
            self._lines = self._lines or self._begin()
        self._lines.append(json.dumps(record, ensure_ascii=False))
        self.problems[problem] = list(steps)


def read_labels(path: Path) -> Labels:
    """Read a folder of labels.

    Raises:
        DataError: there is none, or a line is damaged; the message names file and line.
    """
    try:
        about = About.from_json(json.loads((path / ABOUT).read_text(encoding="utf-8")))
        (path / LABELS).stat()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: no labels can be read there ({error}). Make some with: reason-spec router collect"
        ) from None
    return Labels(about, dict(record for _, record in read_records(path / LABELS, _parse, DataError, "")))


def _parse(line: str) -> tuple[str, list[LabelledStep]]:
    record = json.loads(line)
    return record["problem"], [LabelledStep.from_json(step) for step in record["steps"]]


def read_all_labels(paths: Sequence[Path]) -> Labels:
    """Read several folders as one.

    Raises:
        DataError: one cannot be read, or two belong to different models.
    """
    first, *others = [read_labels(path) for path in paths]
    problems = dict(first.problems)
    for path, labels in zip(paths[1:], others, strict=True):
        if labels.about.pair != first.about.pair:
            raise DataError(
                f"{path} holds labels of other models than {paths[0]}; train on one pair at a time."
            )
        problems |= labels.problems
    return Labels(first.about, problems)
