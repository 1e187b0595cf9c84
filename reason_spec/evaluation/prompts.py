"""How a problem is put to the models."""

from __future__ import annotations

import zlib

from reason_spec.engines.base import Message
from reason_spec.settings import Settings
from reason_spec.tasks.base import PromptStyle, get_task
from reason_spec.types import Problem


def prompt_style(settings: Settings) -> PromptStyle:
    """Return the prompt style of a run: the one that is set, or the one that fits the target.

    The embedded pair was trained on bare questions; other models are asked for a boxed answer.
    """
    if settings.task.prompt != "auto":
        return settings.task.prompt
    target = settings.target
    return "plain" if target.kind == "scripted" or target.model == "embedded" else "boxed"


def messages_for(problem: Problem, settings: Settings) -> list[Message]:
    """Return the conversation that asks a problem.

    Raises:
        SettingsError: the problem's task is unknown.
    """
    content = get_task(problem.task).prompt(problem.question, prompt_style(settings))
    asked: Message = {"role": "user", "content": content}
    if settings.task.system is None:
        return [asked]
    return [{"role": "system", "content": settings.task.system}, asked]


def noise_key(problem: Problem) -> int:
    """Return the number that keys the sampling noise of a problem, the same on every machine."""
    return zlib.crc32(problem.id.encode())
