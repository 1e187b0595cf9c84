"""Check the torch engine on an accelerator: its tests, bfloat16 against itself, speed, and memory.

    python benchmarks/gpu_check.py [--models real] [--problems 60] [--accuracy 500] [--out docs/measurements]

Runs the engine tests in float32 on the device, the rows of ``embedded.py`` in bfloat16, and a
comparison of ``lookahead`` under the exact verifier (without a draft: ``prompt_lookup``) with plain
decoding in bfloat16. Rounding differs with the number of tokens in a pass, so there the two may part
where two tokens are all but equally likely: every parting is listed with the difference of their
log-probabilities. What was found is written to one JSON file. ``--device cpu`` tries the check itself out
where there is no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from embedded import measure, print_rows
from models import Models, add_models_arguments, models_of

from reason_spec.accelerator import Accelerator
from reason_spec.evaluation.grouping import BASELINE
from reason_spec.evaluation.outcome import outcome_from
from reason_spec.evaluation.rounding import EXACT_DTYPE, Rounding, find_rounding
from reason_spec.settings import load_settings
from reason_spec.types import Problem

_ROOT = Path(__file__).resolve().parents[1]
_SAMPLE_SECONDS = 0.05
NEAR_TIE = 0.25
"""Difference of log-probabilities up to which rounding to bfloat16 can decide between two tokens."""


class PeakMemory:
    """The most memory in use on a CUDA device while this is entered, in bytes; 0 elsewhere."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def __enter__(self) -> PeakMemory:
        if self._device.startswith("cuda"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            free, total = torch.cuda.mem_get_info(self._device)
            self.peak = max(self.peak, total - free)


async def compare(flags: dict[str, Any], models: Models, count: int) -> tuple[int, Rounding]:
    """Return how many answers with drafts differ from plain decoding, and where; float32 has no gaps."""
    drafting = "prompt_lookup" if models.draft is None else "lookahead"
    own = {"task.prompt": "plain", "verifier.name": "exact", "strategy.planner": False}
    settings = load_settings(flags={**models.flags, **flags, **own})
    strategies = (BASELINE, drafting)
    problems = [Problem(str(n), task.question) for n, task in enumerate(models.tasks(count, seed=5))]
    async with Accelerator.from_settings(settings, strategies=strategies) as accelerator:
        outcomes = []
        for problem, strategy in product(problems, strategies):
            solution = await accelerator.answer(problem.question, strategy=strategy)
            outcomes.append(outcome_from(problem, 0, solution, accelerator.settings))
        rounding = await find_rounding(accelerator, problems, outcomes) or Rounding(EXACT_DTYPE, {}, ())
    differ = sum(
        alone.token_ids != own.token_ids for alone, own in zip(outcomes[::2], outcomes[1::2], strict=True)
    )
    return differ, rounding


def run_engine_tests() -> int:
    """Run the engine tests where ``device: auto`` puts them; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/engines", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=_ROOT, check=False).returncode


def describe(device: str) -> dict[str, Any]:
    """Say on what this was measured."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor()
    return {"device": device, "name": name, "torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_models_arguments(parser)
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--dtype", default="bfloat16", help="default: %(default)s")
    parser.add_argument("--problems", type=int, default=60, help="problems that are timed (default: 60)")
    parser.add_argument("--accuracy", type=int, default=500, help="problems for accuracy (default: 500)")
    parser.add_argument("--partings", type=int, default=60, help="problems compared token by token")
    parser.add_argument("--no-tests", action="store_true", help="leave the engine tests out")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "measurements")
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(
            "torch sees no CUDA device; install a CUDA build (make install TORCH=gpu), or --device cpu"
        )
    started = time.time()
    code = None if arguments.no_tests else run_engine_tests()
    models = models_of(arguments)
    flags = {
        f"{engine}.{name}": value
        for engine in ("target", "draft")
        for name, value in (("device", arguments.device), ("dtype", arguments.dtype))
    }
    with PeakMemory(arguments.device) as memory:
        rows = asyncio.run(
            measure(
                problems_timed=arguments.problems,
                problems_graded=arguments.accuracy,
                flags=flags,
                models=models,
            )
        )
        _, rounding = asyncio.run(compare(flags, models, arguments.partings))
    print_rows(rows)
    num_compared = sum(rounding.num_pairs.values())
    gaps = [flip.gap for flip in rounding.flips if flip.gap is not None]
    ties = sum(gap <= NEAR_TIE for gap in gaps)
    sys.stdout.write(
        f"{len(gaps)} of {num_compared} answers part from plain decoding, {ties} of them at a near-tie\n"
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"gpu_check_{arguments.device.replace(':', '')}_{arguments.dtype}.json"
    report = {
        **describe(arguments.device),
        "models": asdict(models),
        "dtype": arguments.dtype,
        "engine_tests_exit_code": code,
        "rows": [asdict(row) for row in rows],
        "compared": num_compared,
        "partings": [asdict(flip) for flip in rounding.flips],
        "peak_memory_bytes": memory.peak,
        "seconds": time.time() - started,
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(f"written to {path}\n")
    sys.exit(int(bool(code) or ties < len(gaps)))


if __name__ == "__main__":
    main()
