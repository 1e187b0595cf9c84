"""From steps ahead to one request for the rest of the answer, and back, as the load controller allows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

from reason_spec.engines.base import Engine
from reason_spec.events import Recorder
from reason_spec.strategies.base import SolveRequest
from reason_spec.strategies.step_tokens import tokens_for
from reason_spec.types import Step

Writer: TypeAlias = Callable[[SolveRequest], AsyncGenerator[Step]]


async def write_gated(
    stepwise: Writer, whole: Writer, request: SolveRequest, recorder: Recorder, target: Engine, draft: Engine
) -> AsyncGenerator[Step]:
    """Yield an answer's steps, written stepwise while steps ahead are allowed, else in one request.

    A request for each step costs a pass of its own, which a full engine has no time for. An answer whose text
    streams before its steps are final, or is learnt, does not leave its one request: the step that would take
    the place of a begun one could have other words.

    Args:
        stepwise: ends before the text does where no steps ahead are allowed any more.
        whole: writes all the rest.
    """
    budget = request.budget
    if budget is None:
        async with aclosing(stepwise(request)) as steps:
            async for step in steps:
                yield step
        return
    may_return = recorder.on_text is None and request.suffix_session is None
    left = request
    while True:
        is_stepwise = budget.depth > 0
        async with aclosing(stepwise(left) if is_stepwise else whole(left)) as steps:
            async for step in steps:
                yield step
                if step.ends_text or left.max_tokens - len(tokens_for(step, target)) < 1:
                    return
                left = left.behind((step,), target, draft)
                if not is_stepwise and may_return and budget.depth > 0:
                    break
            else:
                if not is_stepwise:
                    return
                # Each change discards what is running, so there is one return at most.
                may_return = False
