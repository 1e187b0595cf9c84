"""How a problem is put to the models."""

from __future__ import annotations

import zlib

from reason_spec.accelerator.requests import GenerationRequest
from reason_spec.engines.chat_template import Message
from reason_spec.engines.model_files import resolve_model
from reason_spec.engines.tokenizer import lacks_chat_template
from reason_spec.settings import EngineSettings, Settings
from reason_spec.tasks.base import EXAMPLES_END, PromptStyle, get_task
from reason_spec.types import Problem


def prompt_style(settings: Settings) -> PromptStyle:
    """Return the prompt style of a run: the one that is set, or the one that fits the target.

    The demonstration pair was trained on bare questions. A model without a chat template is a base model,
    which continues text rather than answering, so it is shown solved examples. Others are asked for a boxed
    answer.

    Raises:
        EngineError: the target's files cannot be read.
    """
    if settings.task.prompt != "auto":
        return settings.task.prompt
    target = settings.target
    if target.kind == "scripted" or target.model == "embedded":
        return "plain"
    return "examples" if _is_base_model(target) else "boxed"


def _is_base_model(target: EngineSettings) -> bool:
    named = target.remote.tokenizer if target.kind == "remote" else None
    return lacks_chat_template(resolve_model("target", named or target.model), target.revision)


def messages_for(problem: Problem, settings: Settings) -> list[Message]:
    """Return the conversation that asks a problem.

    Raises:
        SettingsError: the problem's task is unknown.
        EngineError: the target's files cannot be read.
    """
    content = get_task(problem.task).prompt(problem.question, prompt_style(settings))
    asked: Message = {"role": "user", "content": content}
    if settings.task.system is None:
        return [asked]
    return [{"role": "system", "content": settings.task.system}, asked]


def ask_for(
    problem: Problem,
    settings: Settings,
    *,
    sample: int = 0,
    strategy: str | None = None,
    scope: str = "",
    siblings: str = "",
) -> GenerationRequest:
    """Return the request for one sample of a problem.

    Raises:
        SettingsError: the problem's task is unknown.
        EngineError: the target's files cannot be read.
    """
    return GenerationRequest(
        messages=messages_for(problem, settings),
        strategy=strategy,
        sampling=settings.sampling.for_sample(noise_key(problem), sample),
        stops=stops_for(settings),
        scope=scope,
        siblings=siblings,
    )


def stops_for(settings: Settings) -> tuple[str, ...]:
    """Return the texts that end an answer: after examples a model continues with a new question."""
    stops = settings.sampling.stop
    return (*stops, EXAMPLES_END) if prompt_style(settings) == "examples" else stops


def noise_key(problem: Problem) -> int:
    """Return the number that keys the sampling noise of a problem, the same on every machine."""
    return zlib.crc32(problem.id.encode())
