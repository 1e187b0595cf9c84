"""Verdicts on pairs of steps in a file: what ``reason-spec verify`` does."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from reason_spec.errors import DataError, SettingsError
from reason_spec.types import Decision, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

# Two texts a pair: one full batch of the encoder. More would only wait, against the deadline.
_CONCURRENCY: Final = 16


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """Counts of a verified file; ``seconds`` is the total time of its verdicts."""

    num_pairs: int
    num_skipped_lines: int
    decisions: dict[Decision, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of the input: all its fields, and the two steps among them."""

    fields: dict[str, Any]
    a: str
    b: str
    context: str = ""


async def verify_file(
    input_path: str | Path, output_path: str | Path, verifier: Verifier, skip_bad: bool = False
) -> VerifySummary:
    """Write every pair of ``input_path`` with its ``verdict`` and ``score`` to ``output_path``.

    The input is jsonl, also gzip, with the drafted step ``a``, the target's step ``b`` and optionally
    ``context``. All fields and the order of lines are kept; ``verdict``, ``score`` and ``verdict_reason`` are
    replaced. The output is written atomically. ``verifier`` is closed at the end.

    Args:
        skip_bad: leave bad lines out and count them, instead of stopping at the first.

    Raises:
        DataError: the file cannot be read, or a line is bad; names file, line, field and remedy.
        SettingsError: the verifier cannot start, or compares nothing.
    """
    if not verifier.compares:
        raise SettingsError(f"verifier {verifier.name!r} compares no steps; choose one that does")
    source, destination = Path(input_path), Path(output_path)
    pairs: list[Pair] = []
    num_skipped = 0
    for line in _read_lines(source):
        try:
            pairs.append(_parse(line, source))
        except DataError:
            if not skip_bad:
                raise
            num_skipped += 1
    try:
        await verifier.start()
        verdicts = await verify_pairs(pairs, verifier)
    finally:
        await verifier.close()
    _write(destination, pairs, verdicts)
    decisions = Counter(verdict.decision for verdict in verdicts)
    return VerifySummary(
        len(pairs), num_skipped, dict(decisions), sum(verdict.cost_seconds for verdict in verdicts)
    )


async def verify_pairs(pairs: Sequence[Pair], verifier: Verifier) -> list[Verdict]:
    """Return the verdicts in order; so many pairs are under way at once that batches form."""
    verdicts: list[Verdict] = []
    for start in range(0, len(pairs), _CONCURRENCY):
        chunk = pairs[start : start + _CONCURRENCY]
        verdicts += await asyncio.gather(*(_verify_pair(pair, verifier) for pair in chunk))
    return verdicts


async def _verify_pair(pair: Pair, verifier: Verifier) -> Verdict:
    context = VerificationContext(prefix_text=pair.context)
    drafted = Step(pair.a, (), "draft", "boundary")
    target = Step(pair.b, (), "target", "boundary")
    return await verifier.verify(context, drafted, target)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    content: bytes


def _read_lines(path: Path) -> Iterator[_Line]:
    try:
        with _open(path) as file:
            for number, content in enumerate(file, start=1):
                if content.strip():
                    yield _Line(number, content)
    except FileNotFoundError:
        raise DataError(f"{str(path)!r} does not exist; give a jsonl file of pairs of steps") from None
    except (OSError, EOFError) as error:
        raise DataError(f"{str(path)!r} cannot be read: {error}") from None


def _open(path: Path) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _parse(line: _Line, path: Path) -> Pair:
    where = f"{path}, line {line.number}"
    try:
        fields = json.loads(line.content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); re-encode it") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); each line holds one object") from None
    if not isinstance(fields, dict):
        raise DataError(f'{where}: {type(fields).__name__}, expected an object {{"a": ..., "b": ...}}')
    return Pair(
        fields, _text(fields, "a", where), _text(fields, "b", where), _text(fields, "context", where, "")
    )


def _text(fields: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if value is None and default is not None:
        return default
    if name not in fields and default is None:
        present = ", ".join(map(repr, list(fields)[:8])) or "none"
        raise DataError(
            f"{where}: field {name!r} is missing (present: {present}); each pair needs 'a' and 'b'"
        )
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name!r} is {value!r:.80}, expected a text")
    return value


def _write(path: Path, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be written: {error}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for pair, verdict in zip(pairs, verdicts, strict=True):
                judged = {
                    "verdict": verdict.decision,
                    "score": verdict.score,
                    "verdict_reason": verdict.reason,
                }
                file.write(json.dumps(pair.fields | judged, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{str(path)!r} cannot be written: {error}") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
