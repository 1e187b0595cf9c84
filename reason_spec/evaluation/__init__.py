"""Solve whole problem files: runs that resume, and what their results say."""

from __future__ import annotations

from reason_spec.evaluation.outcome import Outcome, StepRecord, UnitKey, Work
from reason_spec.evaluation.run import Failure, run
from reason_spec.evaluation.store import RunFolder
from reason_spec.evaluation.summary import Comparison, StrategySummary, Summary, summarize

__all__ = [
    "Comparison",
    "Failure",
    "Outcome",
    "RunFolder",
    "StepRecord",
    "StrategySummary",
    "Summary",
    "UnitKey",
    "Work",
    "run",
    "summarize",
]
