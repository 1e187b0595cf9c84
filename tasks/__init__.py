"""Problem files: loading, prompting, answer extraction and grading."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from reason_spec.jsonl import BadLine, FieldError
from reason_spec.tasks.base import (
    PromptStyle,
    Task,
    extract_answer,
    get_task,
    register_task,
    task_names,
)
from reason_spec.tasks.grading import Grade, Grader
from reason_spec.tasks.loading import LoadedProblems, load_problems
from reason_spec.tasks.regrade import GradeCounts, grade_file

REAL_SAMPLE_PATH: Final = Path(__file__).resolve().parent / "real_sample.jsonl"
"""24 problems of SVAMP and GSM8K; see ``REAL_SAMPLE.md`` beside it."""

__all__ = [
    "REAL_SAMPLE_PATH",
    "BadLine",
    "FieldError",
    "Grade",
    "GradeCounts",
    "Grader",
    "LoadedProblems",
    "PromptStyle",
    "Task",
    "extract_answer",
    "get_task",
    "grade_file",
    "load_problems",
    "register_task",
    "task_names",
]
