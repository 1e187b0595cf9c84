"""A folder of labelled steps, one line for each problem: a kill loses only those under way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from reason_spec.engines.weights import identify_model
from reason_spec.errors import DataError
from reason_spec.evaluation.record_folder import RecordFolder
from reason_spec.evaluation.records import read_records
from reason_spec.lab.router_training.advantage import LabelledStep, LabelOptions
from reason_spec.routers.base import PairIdentity
from reason_spec.settings import Settings

LABELS, ABOUT = "labels.jsonl", "labels.json"
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
    """Labelled steps by the key of their problem, and their models and settings."""

    about: About
    problems: dict[str, list[LabelledStep]]

    @property
    def steps(self) -> list[LabelledStep]:
        return [step for steps in self.problems.values() for step in steps]


class LabelFolder(RecordFolder[tuple[str, list[LabelledStep]]]):
    """A folder to add labels to."""

    records_file: ClassVar[str] = LABELS
    identity_file: ClassVar[str] = ABOUT
    content: ClassVar[str] = "labels"

    def __init__(self, path: Path, about: About, *, fresh: bool = False) -> None:
        self.problems: dict[str, list[LabelledStep]] = {}
        super().__init__(path, about.to_json(), fresh=fresh)

    def append(self, problem: str, steps: Sequence[LabelledStep]) -> None:
        """Store the steps of a problem; they survive a kill from the moment this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        self._append({"problem": problem, "steps": [asdict(step) for step in steps]})
        self.problems[problem] = list(steps)

    @staticmethod
    def _parse(line: str) -> tuple[str, list[LabelledStep]]:
        return _parse(line)

    def _take(self, record: tuple[str, list[LabelledStep]]) -> None:
        problem, steps = record
        self.problems[problem] = steps


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
        DataError: one cannot be read, or two belong to different models or were labelled in different ways.
    """
    first, *others = [read_labels(path) for path in paths]
    problems = dict(first.problems)
    for path, labels in zip(paths[1:], others, strict=True):
        if labels.about.pair != first.about.pair:
            raise DataError(
                f"{path} holds labels of other models than {paths[0]}; train on one pair at a time."
            )
        for name, value in asdict(first.about.options).items():
            if (own := getattr(labels.about.options, name)) != value:
                raise DataError(
                    f"{path} was labelled with {name} {own!r}, and {paths[0]} with {value!r}; name "
                    "folders with the same options."
                )
        problems |= labels.problems
    return Labels(first.about, problems)
