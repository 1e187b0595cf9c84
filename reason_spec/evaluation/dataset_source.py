"""Data sets by their Hugging Face id, or as a folder of files that the package ``datasets`` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from reason_spec.errors import DataError, MissingDependencyError
from reason_spec.jsonl import JsonItem

PREFIX: Final = "hf:"
_SPEC = re.compile(r"hf:(?P<name>[^:@]+)(:(?P<config>[^:@]+))?(@(?P<split>[^@]+))?")
_TEST_SPLITS: Final = ("test", "validation")


class _Known(NamedTuple):
    task: str
    config: str | None = None


_KNOWN: Final = {
    "openai/gsm8k": _Known("gsm8k", "main"),
    "huggingfaceh4/aime_2024": _Known("aime"),
    "maxwell-jia/aime_2024": _Known("aime"),
    "math-ai/aime25": _Known("aime"),
    "yentinglin/aime_2025": _Known("aime"),
    "huggingfaceh4/math-500": _Known("math500"),
}
"""Tasks of data sets whose names differ from the task, by id in lower case."""


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """The parts of ``hf:NAME[:CONFIG][@SPLIT]``; NAME is an id on the hub or a folder."""

    text: str
    name: str
    config: str | None
    split: str | None

    @classmethod
    def parse(cls, text: str) -> DatasetSource:
        """Read the form that the command line takes.

        Raises:
            DataError: it has another form.
        """
        found = _SPEC.fullmatch(text)
        if found is None:
            raise DataError(f"{text!r}: write hf:NAME, hf:NAME:CONFIG or hf:NAME@SPLIT")
        known = _KNOWN.get(found["name"].lower())
        return cls(text, found["name"], found["config"] or (known and known.config), found["split"])

    @property
    def label(self) -> str:
        """A short name."""
        return Path(self.name).name or "data"

    @property
    def task(self) -> str | None:
        """The task that the data set is known to be of, None where it is not known here."""
        known = _KNOWN.get(self.name.lower())
        return known and known.task

    def records(self) -> Iterator[JsonItem]:
        """Yield the rows, counted from 1. Where no split is named it is the test split, or the only one.

        Raises:
            DataError: there is no such data set, configuration or split, or it cannot be reached.
            MissingDependencyError: the package ``datasets`` is not installed.
        """
        if find_spec("datasets") is None:
            raise MissingDependencyError("datasets", f"{self.text}: a data set by id", extra="hf")
        try:
            rows = self._load()
            for number, row in enumerate(rows, start=1):
                yield JsonItem(number, dict(row))
        except DataError:
            raise
        # The package, the hub's client and the readers of files each raise errors of their own.
        except Exception as error:
            raise DataError(
                f"{self.text}: cannot be loaded ({_first_line(error)}). {self._remedy()}"
            ) from error

    def _load(self) -> Any:
        import datasets

        datasets.disable_progress_bars()
        split = self.split
        if split is None:
            split = self._choose_split(datasets.get_dataset_split_names(self.name, self.config))
        return datasets.load_dataset(self.name, self.config, split=split)

    def _choose_split(self, names: list[str]) -> str:
        chosen = names[0] if len(names) == 1 else next((name for name in _TEST_SPLITS if name in names), None)
        if chosen is None:
            raise DataError(
                f"{self.text}: name one of its splits ({', '.join(names)}), as {self.text}@{names[0]}"
            )
        return chosen

    def _remedy(self) -> str:
        if Path(self.name).exists():
            return "Check the files in the folder, or name one of them without hf:."
        return (
            "Check the name, the configuration, the split and the network; without one, download the file "
            "elsewhere and name it here."
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
