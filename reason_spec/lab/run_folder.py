"""Read the folder of a run: its results and its settings, without a lock, also while the run continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from reason_spec.errors import DataError
from reason_spec.evaluation.outcome import Outcome, UnitKey
from reason_spec.evaluation.store import RESULTS, SETTINGS

_REMEDY = "Name the folder that 'eval' or 'solve' wrote with --output."


def read_results(folder: Path) -> tuple[tuple[Outcome, ...], bool]:
    """Return the outcomes of a run, and whether an incomplete last line was left out.

    Raises:
        DataError: the folder does not exist or has no results, or a line is damaged, of an earlier version of
            the format, or a duplicate.
    """
    path = folder / RESULTS
    if not folder.is_dir():
        what = "is a file, not the folder of a run" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {what}. {_REMEDY}")
    if not path.exists():
        raise DataError(f"{folder} holds no {RESULTS}. {_REMEDY}")
    try:
        # str.splitlines would also split an answer at U+2028, U+2029 and U+0085.
        with path.open(encoding="utf-8") as file:
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from None
    outcomes: dict[UnitKey, Outcome] = {}
    torn = False
    for number, line in enumerate(lines, start=1):
        try:
            outcome = Outcome.from_json(line)
        except ValueError as error:
            if not line.endswith("\n"):
                torn = True
                break
            remedy = "Remove the line, or run anew with --fresh if another version wrote it."
            raise DataError(f"{path}, line {number}: {error}. {remedy}") from None
        if outcome.key in outcomes:
            raise DataError(
                f"{path}, line {number}: sample {outcome.sample} of problem {outcome.id!r} by "
                f"{outcome.strategy} is there already. Remove one of the two lines."
            )
        outcomes[outcome.key] = outcome
    if not outcomes:
        raise DataError(f"{path} holds no answer yet. Continue the run first.")
    return tuple(outcomes.values()), torn


def read_settings(folder: Path) -> Mapping[str, Any]:
    """Return the content of ``settings.yaml``, empty where the file is missing.

    Raises:
        DataError: the file cannot be read.
    """
    path = folder / SETTINGS
    return read_mapping(path) if path.exists() else {}


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read ({reason}). Remove or repair it.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds no mapping of names to values.")
    return content
