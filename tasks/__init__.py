"""Problem files: loading, prompting, answer extraction and grading."""

from __future__ import annotations

from reason_spec.tasks.base import (
    FieldError,
    PromptStyle,
    Task,
    extract_answer,
    get_task,
    register_task,
    task_names,
)
from reason_spec.tasks.grading import Grade, Grader
from reason_spec.tasks.loading import BadLine, LoadedProblems, load_problems
from reason_spec.tasks.regrade import GradeCounts, grade_file

__all__ = [
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
