"""Answers of the real pair: one accelerator for a module of tests, with other settings for each answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import reason_spec.pair
from reason_spec.accelerator import Solution
from reason_spec.settings import load_settings
from reason_spec.sync import SyncAccelerator

SAMPLE = Path(reason_spec.pair.__file__).parent / "sample.jsonl"
PROBLEMS = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
QUESTIONS = [problem["question"] for problem in PROBLEMS]
ANSWERS = [problem["answer"] for problem in PROBLEMS]


def answer(running: SyncAccelerator, question: str, strategy: str, sample: int = 0, **flags: Any) -> Solution:
    """Answer under other settings than the engines were started with; engines do not mind."""
    names = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load_settings(flags={"verifier.name": "exact", "strategy.planner": False, **names})
    generator = replace(running.accelerator.generator, settings=settings)
    return running.run(generator.answer(generator.request(question, strategy=strategy, sample=sample)))


def tokens_of(solution: Solution) -> list[int]:
    return [token for step in solution.steps for token in step.tokens]


def running_requests(running: SyncAccelerator) -> int:
    engines = (running.accelerator.target, running.accelerator.draft)
    return sum(running.run(engine.stats()).num_running for engine in engines if engine is not None)


def last_number(text: str) -> str:
    number: str = re.findall(r"\d+", text)[-1]
    return number
