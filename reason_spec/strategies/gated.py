"""From steps ahead to one request for the rest of the answer, and back, as the load gate says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

from reason_spec.engines.base import Engine
from reason_spec.events import Recorder
from reason_spec.strategies.base import SolveRequest, tokens_for
from reason_spec.types import Step

Writes: TypeAlias = Callable[[SolveRequest], AsyncGenerator[Step]]


async def write_gated(
    search: Writes, whole: Writes, request: SolveRequest, recorder: Recorder, target: Engine, draft: Engine
) -> AsyncGenerator[Step]:
    """Yield an answer's steps, searched for while the gate allows steps ahead, else written in one request.

    A step asked for by itself costs a request and a pass of its own, which a full engine has no time for.
    Where words are told before their step is final, or learnt, what is one request stays one: a step in the
    place of a begun one could have other words.

    Args:
        search: writes stepwise, and ends before the text does where no steps ahead are allowed any more.
        whole: writes all the rest.
    """
    live = request.live
    if live is None:
        async with aclosing(search(request)) as steps:
            async for step in steps:
                yield step
        return
    may_return = recorder.on_text is None and request.memory is None
    left = request
    while True:
        stepwise = live.depth > 0
        async with aclosing(search(left) if stepwise else whole(left)) as steps:
            async for step in steps:
                yield step
                num_left = left.max_tokens - len(tokens_for(step, target))
                if step.ends_text or num_left < 1:
                    return
                left = left.behind((step,), target, draft)
                if not stepwise and may_return and live.depth > 0:
                    break
            else:
                if not stepwise:
                    return
                # Once is enough: each change costs what is under way.
                may_return = False
