"""Live rules of early exit on stored answers: the code of a running answer reads the stored steps.

Models write only the trial answers that a rule asks for. A trial is known one step boundary after it was
asked, as in a running answer whose trials end within a step.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from math import nan
from typing import Final, NamedTuple

from reason_spec.accelerator import Generator
from reason_spec.engines.base import Tokenizer
from reason_spec.evaluation.prompts import ask_for
from reason_spec.events import Recorder
from reason_spec.lab.exit.rules import Stop
from reason_spec.lab.exit.traces import Trace
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.early_exit import ExitWatch
from reason_spec.strategies.step_cutter import StepCutter
from reason_spec.strategies.thinking import LimitedThinking
from reason_spec.types import Problem, Step

_TAIL_TOKENS: Final = 8


class LiveStop(NamedTuple):
    """Where a live rule stopped a stored thinking.

    ``stop`` is None where it did not. ``end`` counts the characters that are kept, ``trials`` are the texts
    of the trial answers. ``fits``: the context of the target had room for the text up to there.
    """

    stop: Stop | None
    end: int
    trials: tuple[str, ...]
    fits: bool


async def follow(generator: Generator, trace: Trace) -> LiveStop:
    """Show a stored thinking to the rule of the settings, as if the target were writing it.

    Args:
        generator: its models have started, and its settings name a rule.

    Raises:
        EngineError: a trial answer fails.
    """
    settings, target, recorder = generator.settings, generator.target, Recorder()
    problem = Problem(trace.id, trace.question, trace.answer, settings.task.name)
    # The text is stored already: room for an answer must not end it.
    request = replace(generator.resolve(ask_for(problem, settings)), max_tokens=sys.maxsize)
    assert request.thinking is not None, "a rule of early exit is on"
    limit = replace(request.thinking, max_tokens=None, max_steps=None)
    thinking = LimitedThinking(limit, request, target, generator.draft, recorder)
    watch = thinking.monitor
    assert isinstance(watch, ExitWatch)
    skipped = _num_opened(trace, limit.opening, request, target.tokenizer)

    async def write(asked: SolveRequest) -> AsyncGenerator[Step]:
        longest = settings.strategy.step_max_tokens
        cutter = StepCutter(target.tokenizer, asked.boundary, longest, "target", asked.begins_in)
        for step in _steps(trace.thinking[skipped:], limit.closer, cutter, target.tokenizer):
            yield step
            # It continues once the rule has read the step.
            await watch.settle()

    try:
        async with aclosing(thinking.steps(write)) as steps:
            kept = [step async for step in steps if step.origin != "inserted"]
    finally:
        await thinking.close()
    found = recorder.early_exit
    return LiveStop(
        None if found is None else Stop(len(kept) - 1, found.answer),
        skipped + sum(len(step.text) for step in kept),
        tuple(event.text for event in recorder.events if event.kind == "written"),
        len(thinking.left.target_prompt) < target.max_context,
    )


def _num_opened(trace: Trace, opening: str, request: SolveRequest, tokenizer: Tokenizer) -> int:
    """Return how many characters of a stored thinking belong to its opening tag: a line break, or none."""
    opened = opening or tokenizer.decode_prompt(request.target_prompt.to_tuple()[-_TAIL_TOKENS:])
    return int(opened.endswith("\n") and trace.thinking.startswith("\n"))


def _steps(text: str, closer: str, cutter: StepCutter, tokenizer: Tokenizer) -> Iterator[Step]:
    """Cut a whole text into steps; a step before its end is known to be over by the tokens of the end."""
    end: tuple[int, ...] = () if tokenizer.end_id is None else (tokenizer.end_id,)
    if closer:
        end = tokenizer.encode(closer)
    for token in (*tokenizer.encode(text), *end):
        if (step := cutter.feed(token, nan)) is not None:
            yield step
    yield cutter.last(text, "stop" if closer else "eos", 0)
