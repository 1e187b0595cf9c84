"""Folders of runs with known rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from reason_spec.evaluation.outcome import AnswerUsage, Outcome, StepRecord
from reason_spec.settings import Settings
from reason_spec.types import Plan, Usage

COSTS = {"target_pass_ms": {1: 10.0, 4: 12.0, 16: 16.0}, "draft_token_ms": 1.0, "c": 0.1}
_LENGTHS = (20, 40, 20, 40)


def answer_of(strategy: str, number: int, seconds: float) -> Outcome:
    """An answer of four steps, three of which the draft wrote."""
    alone = strategy == "autoregressive"
    steps = tuple(
        StepRecord("x", "target", tokens, "boundary", None, tuple(range(tokens))) for tokens in _LENGTHS
    )
    written = Usage(
        num_prompt_tokens=70, num_cached_prompt_tokens=10, num_generated_tokens=120, num_passes=120
    )
    speculated = Usage(
        num_generated_tokens=140, num_passes=60, num_rejections=20, num_drafted_tokens=120,
        num_accepted_draft_tokens=80,
    )  # fmt: skip
    work = AnswerUsage(speculated, Usage(), {"accept": 3, "reject": 1, "unknown": 0}, verifier_seconds=0.08)
    if alone:
        work = replace(work, target=written, verdicts=dict.fromkeys(work.verdicts, 0), verifier_seconds=0.0)
    return Outcome(
        id=f"p{number}", index=number, question="?", answer="1", response="x", prediction="1", correct=True,
        strategy=strategy, sample=0, seed=0, seconds=seconds, first_step_seconds=0.1, tokens=120, steps=steps,
        usage=work, plan=None if alone else Plan(3, 8), finish="eos", loss_class="exact", concurrency=1,
        order=0, session="one", settings_hash="",
    )  # fmt: skip


def write_run(
    folder: Path,
    *,
    answers: Sequence[Outcome] = (),
    costs: Mapping[str, Any] | None = COSTS,
    at_work: Mapping[str, Any] | None = None,
) -> Path:
    """Write a folder as a run does: the target alone and lookahead, twice as fast, or ``answers``."""
    folder.mkdir()
    answers = answers or [
        answer_of(strategy, number, seconds)
        for number in range(2)
        for strategy, seconds in (("autoregressive", 2.4), ("lookahead", 1.2))
    ]
    (folder / "results.jsonl").write_text("".join(answer.to_json() + "\n" for answer in answers))
    measured = {"costs": costs, "costs_at_work": at_work}
    session = {"session": "one"} | {name: dict(found) for name, found in measured.items() if found}
    content = {"settings": Settings().model_dump(mode="json"), "sessions": [session]}
    (folder / "settings.yaml").write_text(yaml.safe_dump(content))
    return folder
