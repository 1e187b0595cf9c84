"""Rounding of the torch engine by dtype: distances from float32, and answers that differ at near-ties.

    python benchmarks/dtypes.py [--models NAME ...] [--dtypes NAME ...] [--answers 24] [--json [FILE]]

Distances are those of the check at the start: of the module's own logits and of the engine's passes from
float32, as shares of the spread of all logits. Then the first of the models answers the sample problems with
``prompt_lookup`` and alone, greedily, in float32 and bfloat16. Where the answers differ, the target scores
both tokens at the first different place; the gap is the difference of their log-probabilities.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from arms import printer, write_rows
from gpu_check import compare
from models import Models
from table_columns import GAPS, ROUNDING

from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.torch.check import measure_rounding
from reason_spec.engines.torch.load import load_unpacked
from reason_spec.errors import UnsupportedModelError
from reason_spec.settings import load_settings

MODELS: Final = ("pypi:smollm2-135m", "pypi:gemma3-270m", "embedded")
MAX_TOKENS: Final = 160


@dataclass(frozen=True, slots=True)
class Row:
    """Distances of a model in a dtype; None where the model is refused, with the reason."""

    model: str
    dtype: str
    in_float32: float | None = None
    module: float | None = None
    passes: float | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers with drafts beside plain decoding; ``gaps`` counts those that differ by gap, in nats."""

    model: str
    dtype: str
    answers: int
    differ: int
    gaps: dict[str, int]


def distances(model: str, dtype: str) -> Row:
    path = resolve_model("target", model)
    flags = {"target.model": path, "target.dtype": dtype}
    try:
        found = measure_rounding(load_unpacked(load_settings(flags=flags).target))
    except UnsupportedModelError as error:
        return Row(model, dtype, refused=str(error).replace(path, model))
    return Row(model, dtype, found.in_float32, found.module, found.passes)


def answers(model: str, dtype: str, count: int) -> Answers:
    flags = {"target.dtype": dtype, "sampling.max_tokens": MAX_TOKENS}
    differ, found = asyncio.run(compare(flags, Models("real", model, None), count))
    gaps = Counter("one had ended" if flip.gap is None else f"{flip.gap:.3f}" for flip in found.flips)
    return Answers(model, dtype, count, differ, dict(sorted(gaps.items())))


def print_rows(rows: Sequence[Row | Answers]) -> None:
    printer(*ROUNDING)([row for row in rows if isinstance(row, Row)])
    printer(*GAPS)([row for row in rows if isinstance(row, Answers)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"], metavar="NAME")
    parser.add_argument("--answers", type=int, default=24, help="sample problems (default: 24)")
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    rows: list[Row | Answers] = []
    for model in options.models:
        for dtype in options.dtypes:
            rows.append(distances(model, dtype))
            sys.stderr.write(f"{rows[-1]}\n")
    for dtype in ("float32", "bfloat16"):  # float16 takes ten times as long on most CPUs
        rows.append(answers(options.models[0], dtype, options.answers))
        sys.stderr.write(f"{rows[-1]}\n")
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
