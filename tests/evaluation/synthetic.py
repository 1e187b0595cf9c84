"""Outcomes of runs that never were, whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reason_spec.evaluation.outcome import AnswerUsage, Outcome, StepRecord
from reason_spec.types import Decision, Usage, Verdict

DECISIONS: tuple[Decision, ...] = ("accept", "reject", "unknown")


def make_outcome(
    problem: int = 0,
    strategy: str = "autoregressive",
    sample: int = 0,
    *,
    correct: bool | None = True,
    seconds: float = 2.0,
    tokens: int = 10,
    target: Usage | None = None,
    draft: Usage | None = None,
    decisions: Sequence[Decision | None] = (None,),
    **changes: object,
) -> Outcome:
    """Make an outcome with one step for each of ``decisions``, all its tokens in the first."""
    steps = tuple(
        StepRecord(
            "text", "target", 0 if place else tokens, "eos", decision and Verdict(decision),
            () if place else tuple(range(tokens)),
        )
        for place, decision in enumerate(decisions)
    )  # fmt: skip
    verdicts = {decision: list(decisions).count(decision) for decision in DECISIONS}
    fields: dict[str, object] = {
        "id": f"p{problem}", "index": problem, "question": "?", "answer": "1", "response": "text",
        "prediction": "1" if correct else "2", "correct": correct, "strategy": strategy, "sample": sample,
        "seed": 0, "seconds": seconds, "first_step_seconds": seconds / 2, "tokens": tokens, "steps": steps,
        "usage": AnswerUsage(target or Usage(num_generated_tokens=tokens), draft or Usage(), verdicts, 0.25),
        "plan": None, "finish": "eos", "loss_class": "exact", "concurrency": 1, "order": 0, "session": "s",
        "settings_hash": "h", "task": "gsm8k",
    }  # fmt: skip
    return Outcome(**{**fields, **changes})  # type: ignore[arg-type]


def random_run(
    seed: int,
    num_problems: int = 40,
    num_samples: int = 1,
    *,
    accuracy: float = 0.8,
    speedups: Mapping[str, float] | None = None,
    tasks: Sequence[str] = ("gsm8k",),
) -> list[Outcome]:
    """Draw the outcomes of a run; the mean seconds of a strategy are the baseline's by its speed-up."""
    generator = np.random.default_rng(seed)
    outcomes = []
    speedups = speedups or {"autoregressive": 1.0, "lookahead": 1.5}
    for problem in range(num_problems):
        difficulty = generator.lognormal(0, 0.5)
        chance = generator.beta(4 * accuracy, 4 * (1 - accuracy))
        for sample in range(num_samples):
            for strategy, speedup in speedups.items():
                seconds = difficulty * generator.lognormal(0, 0.2) / speedup
                right = bool(generator.random() < chance)
                outcomes.append(
                    make_outcome(
                        problem, strategy, sample, correct=right, seconds=float(seconds),
                        prediction="1" if right else str(generator.integers(2, 5)),
                        tokens=int(generator.integers(5, 50)), task=tasks[problem % len(tasks)],
                    )
                )  # fmt: skip
    return outcomes
