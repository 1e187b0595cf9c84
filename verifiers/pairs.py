"""Verdicts on pairs of steps in a file, for the command ``verify``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reason_spec.errors import SettingsError
from reason_spec.jsonl import (
    BadLine,
    FieldError,
    JsonItem,
    atomic_output,
    check_unicode,
    parse_items,
    read_records,
)
from reason_spec.types import Decision, Step, Verdict
from reason_spec.verifiers.base import VerificationContext, Verifier

_CONCURRENCY: Final = 16
"""Pairs judged at once: their texts are one batch of the encoder. More would wait against the deadline."""


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """Counts of a verified file; ``seconds`` is the time that all its verdicts took."""

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
    ``context``: the question and, behind a blank line, the steps before.
    All fields and the order of lines are kept; ``verdict``, ``score`` and ``verdict_reason`` are
    replaced. The output is written atomically. ``verifier`` is closed at the end.

    Args:
        skip_bad: leave unusable lines out and count them, instead of stopping at the first.

    Raises:
        DataError: the file cannot be read or written, or a line is unusable.
        SettingsError: the verifier cannot start, or compares nothing.
    """
    if not verifier.compares:
        raise SettingsError(f"verifier {verifier.name!r} compares no steps; choose one that does")
    bad_lines: list[BadLine] = []
    records = read_records(input_path, "one object a line with the steps a and b")
    pairs = list(parse_items(records, input_path, _parse, bad_lines, skip_bad=skip_bad))
    try:
        await verifier.start()
        started = time.perf_counter()
        verdicts = await verify_pairs(pairs, verifier)
        seconds = time.perf_counter() - started
    finally:
        await verifier.close()
    _write(Path(output_path), pairs, verdicts)
    decisions = Counter(verdict.decision for verdict in verdicts)
    return VerifySummary(len(pairs), len(bad_lines), dict(decisions), seconds)


async def verify_pairs(pairs: Sequence[Pair], verifier: Verifier) -> list[Verdict]:
    """Return the verdicts in order; several pairs are judged at once, so that batches form."""
    verdicts: list[Verdict] = []
    for start in range(0, len(pairs), _CONCURRENCY):
        chunk = pairs[start : start + _CONCURRENCY]
        verdicts += await asyncio.gather(*(_verify_pair(pair, verifier) for pair in chunk))
    return verdicts


async def _verify_pair(pair: Pair, verifier: Verifier) -> Verdict:
    question, _, before = pair.context.partition("\n\n")
    context = VerificationContext(question, before)
    drafted = Step(pair.a, (), "draft", "boundary")
    target = Step(pair.b, (), "target", "boundary")
    return await verifier.verify(context, drafted, target)


def _parse(item: JsonItem) -> Pair:
    texts = {name: item.value.get(name) for name in ("a", "b", "context")}
    texts["context"] = texts["context"] or ""
    for name, text in texts.items():
        if text is None:
            raise FieldError(name, f"is missing or null (found {', '.join(item.value) or 'no field at all'})")
        if not isinstance(text, str):
            raise FieldError(name, "is not text", text)
        check_unicode(name, text)
    return Pair(item.value, **texts)


def _write(path: Path, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(path) as output:
        for pair, verdict in zip(pairs, verdicts, strict=True):
            judged = {
                "verdict": verdict.decision,
                "score": verdict.score,
                "verdict_reason": verdict.reason,
            }
            output.write(json.dumps(pair.fields | judged, ensure_ascii=False).encode() + b"\n")
