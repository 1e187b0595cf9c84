"""A small world of scripted models and their problems, as files that the command line reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reason_spec.accelerator import Accelerator
from reason_spec.engines.script import WrittenAnswers
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.settings import load_settings
from reason_spec.types import Problem
from reason_spec.verifiers.exact import ExactVerifier


@dataclass(frozen=True)
class Sum:
    """A problem whose number decides what is wrong with its answers."""

    number: int

    @property
    def question(self) -> str:
        return f"Box {self.number} holds {self.number + 2} pens and gets 5 more. How many pens are in it?"

    @property
    def total(self) -> int:
        return self.number + 7

    @property
    def reference(self) -> str:
        """Every fifth reference is not what the target answers."""
        return str(self.total if self.number % 5 else -1)

    def answer(self, *, draft: bool = False) -> str:
        """The draft miscalculates every third problem and rewords the first step of every fourth."""
        total = self.total + 1 if draft and self.number % 3 == 0 else self.total
        first = f"The box holds {self.number + 2} pens.\n\n"
        if draft and self.number % 4 == 0:
            first = f"In the box there are {self.number + 2} pens.\n\n"
        return f"{first}{self.number + 2} + 5 = {total}.\n\nThe answer is {total}."

    def problem(self) -> Problem:
        return Problem(f"p{self.number}", self.question, self.reference)


@dataclass(frozen=True)
class World:
    """Files in a folder: problems, a settings file and the scripts it names."""

    problems: Path
    config: Path
    sums: tuple[Sum, ...]

    def arguments(self, *more: str) -> list[str]:
        """Arguments of `solve` for the file of problems."""
        return ["solve", str(self.problems), *self.options(*more)]

    def options(self, *more: str) -> list[str]:
        return ["--config", str(self.config), "--verifier", "exact", *more]


def build_world(folder: Path, count: int = 6, *, target_seconds: float = 0.0, **extra: Any) -> World:
    sums = tuple(Sum(number) for number in range(count))
    folder.mkdir(parents=True, exist_ok=True)
    for role, seconds in (("target", target_seconds), ("draft", target_seconds / 5)):
        answers = {item.question: item.answer(draft=role == "draft") for item in sums}
        script = {"answers": answers, "seconds_per_pass": seconds, **extra}
        (folder / f"{role}.json").write_text(json.dumps(script))
    engines = {
        role: {"kind": "scripted", "model": str(folder / f"{role}.json")} for role in ("target", "draft")
    }
    (folder / "scripted.yaml").write_text(json.dumps(engines))
    write_problems(folder / "sums.jsonl", sums)
    return World(folder / "sums.jsonl", folder / "scripted.yaml", sums)


def write_problems(path: Path, sums: tuple[Sum, ...]) -> None:
    records = [
        {"id": f"p{item.number}", "question": item.question, "answer": item.reference} for item in sums
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_accelerator(count: int = 6, flags: Mapping[str, Any] | None = None) -> Accelerator:
    """An accelerator over scripts in memory; not started."""
    kinds = {"target.kind": "scripted", "draft.kind": "scripted"}
    settings = load_settings(flags={**kinds, **(flags or {})})
    sums = [Sum(number) for number in range(count)]
    answers = {item.question: (item.answer(),) for item in sums}
    drafts = {item.question: (item.answer(draft=True),) for item in sums}
    target = ScriptedEngine("target", WrittenAnswers(answers))
    draft = ScriptedEngine("draft", WrittenAnswers(drafts, otherwise=""))
    return Accelerator(settings, target, draft, ExactVerifier())
