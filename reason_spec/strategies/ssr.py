"""SSR (Speculative Parallel Scaling Reasoning, arXiv 2505.15340): several kinds of solution side by side.

Selective Parallel Module: of a pool of directions the target picks the most promising ones. Here a direction
is the opening sentence of an answer, and its score the mean log-probability of its tokens under the target,
from one pass over each. Step-level Speculative Decoding: in each direction the draft writes steps, and the
target verifies them or writes its own, as under ``specreason``; all directions share their passes. This is
the paper's mode Fast-1: the first direction that ends is the answer, and the others are cancelled. Fast-2
waits for two equal answers; a strategy does not know what a task takes as the answer.

The paper's pool, scores and threshold are not in its abstract; pool and number here are settings, and the
verifier has its own threshold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import ClassVar, Final

from reason_spec.events import Event, Recorder
from reason_spec.segment import StopScanner
from reason_spec.strategies.answer_work import AnswerWork
from reason_spec.strategies.autoregressive import whole_answer
from reason_spec.strategies.base import RoutedStrategy, SolveRequest, check_judges_alone
from reason_spec.strategies.specreason import SpecReasonLoop
from reason_spec.strategies.step_loop import LoopOptions
from reason_spec.types import Step, Usage
from reason_spec.verifiers.base import Verifier

_NUM_PATHS: Final = 3
"""Directions that are followed where ``width`` is 1: one leaves nothing to choose."""


class Ssr(RoutedStrategy):
    """Follows ``width`` of the settings' directions at once; the first that ends is the answer.

    The answer begins with the direction, a step of origin ``inserted``. Where no direction fits, or with
    ``depth`` 0, the target writes the answer, and always what follows a limited thinking.
    """

    name: ClassVar[str] = "ssr"
    default_verifier: ClassVar[str | None] = "likelihood"

    @classmethod
    def check_verifier(cls, verifier: Verifier) -> None:
        check_judges_alone(cls.name, verifier)

    async def _write_steps(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        openings: list[Step] = []
        if self.settings.depth > 0 and request.budget.depth > 0:
            openings = await self._pick_directions(request, recorder)
        if openings:
            for step in await self._first_to_end(openings, request, recorder):
                yield step
            return
        async with aclosing(self._write_answer(request, recorder)) as steps:
            async for step in steps:
                yield step

    def _write_answer(self, request: SolveRequest, recorder: Recorder) -> AsyncGenerator[Step]:
        return whole_answer(self.settings, self.target, self.draft)._write_steps(request, recorder)

    async def _pick_directions(self, request: SolveRequest, recorder: Recorder) -> list[Step]:
        """Return the openings that are most likely to the target, the best first."""
        openings = [step for text in self.settings.directions if (step := self._opening(text, request))]
        scores = await asyncio.gather(
            *(self.target.score(request.target_prompt, step.tokens) for step in openings)
        )
        for score in scores:
            recorder.add_work("target", score.usage, kept=True)
        order = sorted(range(len(openings)), key=lambda index: -fmean(scores[index].logprobs))
        width = self.settings.width if self.settings.width > 1 else _NUM_PATHS
        return [openings[index] for index in order[:width]]

    def _opening(self, direction: str, request: SolveRequest) -> Step | None:
        """Return a direction as a step; None if it holds a stop or leaves no room for an answer."""
        text = f"{direction}\n\n"
        tokenizer = self.target.tokenizer
        tokens = tokenizer.encode(text)
        stopped = StopScanner(request.stops, request.stop_context(request.text_before)).feed(text) is not None
        if stopped or len(tokens) >= request.max_tokens:
            return None
        return Step(text, tokens, "inserted", "length", tokenizer.tokenizer_id)

    async def _first_to_end(
        self, openings: list[Step], request: SolveRequest, recorder: Recorder
    ) -> tuple[Step, ...]:
        paths = [_Path(index, len(openings), [step], recorder) for index, step in enumerate(openings)]
        tasks = {asyncio.ensure_future(self._follow(path, request)): path for path in paths}
        winner: _Path | None = None
        running = set(tasks)
        try:
            while running and winner is None:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                ended = sorted((tasks[task] for task in done), key=lambda path: path.index)
                winner = next((path for path in ended if path.steps[-1].ends_text), None)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Where none ends its text, all were cut: the target likes the first direction best.
            winner = winner or paths[0]
            for path in paths:
                path.hand_in(recorder, kept=path is winner)
            # What follows in the same text is numbered after the works of all paths.
            recorder.num_works = len(paths) * max(path.recorder.num_works for path in paths)
        return tuple(winner.steps)

    async def _follow(self, path: _Path, request: SolveRequest) -> None:
        left = request.after(path.steps, self.target, self.draft)
        # In a direction each step has one draft; ``width`` counts the directions.
        settings = self.settings.model_copy(update={"width": 1})
        loop = SpecReasonLoop(
            AnswerWork(self.target, self.draft, settings, left, path.recorder),
            self.verifier.verify,
            LoopOptions(proposes_known_steps=False),
        )
        async with aclosing(loop.steps()) as steps:
            async for step in steps:
                path.steps.append(step)


@dataclass(eq=False, slots=True)
class _Path:
    """The answer in one direction, with a recorder of its own."""

    index: int
    num_paths: int
    steps: list[Step]
    whole: Recorder
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self._forward, started=self.whole.started)

    def _forward(self, event: Event) -> None:
        """Hand an event to the recorder of the answer; rows and works of several paths must not be equal."""

        def apart(number: int | None) -> int | None:
            return None if number is None else number * self.num_paths + self.index

        event = replace(
            event,
            branch=event.branch * self.num_paths + self.index,
            work=apart(event.work),
            about=apart(event.about),
        )
        self.whole.events.append(event)
        if self.whole.listener is not None:
            self.whole.listener(event)

    def hand_in(self, recorder: Recorder, *, kept: bool) -> None:
        """Add the path's work and verdicts to those of the answer."""
        own = self.recorder
        recorder.add_work("target", own.target_usage if kept else _lost(own.target_usage), kept=True)
        recorder.add_work("draft", own.draft_usage if kept else _lost(own.draft_usage), kept=True)
        recorder.verdicts += own.verdicts
        recorder.num_late_drafts += own.num_late_drafts
        recorder.num_held_back += own.num_held_back
        recorder.draft_failure = recorder.draft_failure or own.draft_failure


def _lost(usage: Usage) -> Usage:
    """Return the work of a path whose tokens are in no answer."""
    return replace(usage, num_discarded_tokens=usage.num_generated_tokens)
