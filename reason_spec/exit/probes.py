"""Asks models for trial answers, beside the thinking: one more branch of the running answer.

A trial shares its prefix with the answer, so the engine reads only the prompt of the trial, and writes it in
the passes of the answer. The text of the answer does not depend on trials.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from reason_spec.engines.base import Engine
from reason_spec.engines.generation import EngineRequest, Generation
from reason_spec.events import Recorder
from reason_spec.exit.trials import UNKNOWN, AnswerForm, Trial, read_trial
from reason_spec.types import Prefix, Sampling

logger = logging.getLogger(__name__)
ProbeLane: TypeAlias = Literal["draft", "target"]
_PRIORITY = 1
"""After final steps, beside those that depend on one verdict."""


class Position(NamedTuple):
    """The end of a step: the text so far in the tokens of each model."""

    target: Prefix
    draft: Prefix | None
    step_index: int


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """``max_tokens`` of a trial, seconds for it, and the confidence from which the draft is believed.

    ``draft_first``: the target is asked only where the draft is at least so confident. ``reads_on``: a trial
    continues after its answer, so that its words can be read too.
    """

    max_tokens: int
    deadline: float
    draft_first: bool = False
    confidence: float = 0.0
    reads_on: bool = False


class Prober:
    """Writes the trials of one answer.

    A trial that fails, or misses its deadline, is unknown. ``close`` leaves nothing running.
    """

    def __init__(
        self,
        target: Engine,
        draft: Engine | None,
        form: AnswerForm,
        limits: ProbeLimits,
        sampling: Sampling,
        recorder: Recorder,
        cache_key: tuple[str, str] = ("", ""),
    ) -> None:
        self._engines: dict[ProbeLane, Engine | None] = {"target": target, "draft": draft}
        self._form = form
        self._limits = limits
        self._sampling = sampling
        self._recorder = recorder
        self._cache_key = cache_key
        self._works: list[tuple[ProbeLane, Generation]] = []
        self._tasks: list[asyncio.Task[Trial]] = []
        self._failure: Exception | None = None
        self.num_begun = 0

    def begin(self, position: Position) -> asyncio.Task[Trial]:
        """Start a trial at a position."""
        self.num_begun += 1
        task = asyncio.get_running_loop().create_task(self._within_deadline(position, self.num_begun))
        self._tasks.append(task)
        return task

    async def settle(self) -> None:
        """Wait until no trial runs.

        Raises:
            Exception: that of the first trial that failed.
        """
        await asyncio.gather(*self._tasks)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Cancel what runs, wait until the engines have freed it, and count all tokens."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, generation in self._works:
            generation.cancel()
        for lane, generation in self._works:
            usage = await generation.closed()
            self._recorder.add_probe(lane, usage)
        self._works.clear()

    async def _within_deadline(self, position: Position, number: int) -> Trial:
        try:
            async with asyncio.timeout(self._limits.deadline):
                return await self._ask(position, number)
        except TimeoutError:
            return UNKNOWN
        except Exception as error:
            self._failure = self._failure or error
            logger.warning("a trial answer is unknown: %s: %s", type(error).__name__, error)
            return UNKNOWN

    async def _ask(self, position: Position, number: int) -> Trial:
        if self._limits.draft_first and self._engines["draft"] is not None and position.draft is not None:
            first = await self._write("draft", position.draft, position.step_index, number)
            if first.answer is None or first.confidence < self._limits.confidence:
                return UNKNOWN
        return await self._write("target", position.target, position.step_index, number)

    async def _write(self, lane: ProbeLane, prefix: Prefix, step_index: int, number: int) -> Trial:
        """Let a model write a trial, up to where its answer is whole."""
        engine = self._engines[lane]
        assert engine is not None, "a model without an engine is not asked"
        prompt = engine.tokenizer.encode(self._form.prompt)
        room = engine.max_context - len(prefix) - len(prompt)
        if room < 1:
            return UNKNOWN
        noise = replace(self._sampling.noise, sample=self._sampling.noise.sample + (number << 40))
        request = EngineRequest(
            prefix=prefix.extend(prompt),
            max_tokens=min(self._limits.max_tokens, room),
            sampling=replace(self._sampling, noise=noise),
            cache_key=self._cache_key,
            priority=_PRIORITY,
        )
        work = self._recorder.start(lane, step_index, number, "probe")
        generation = engine.submit(request)
        self._works.append((lane, generation))
        tokens: list[int] = []
        logprobs: list[float] = []
        trial = UNKNOWN
        try:
            async for delta in generation:
                tokens += delta.tokens
                logprobs += delta.logprobs
                trial = read_trial(self._form, tokens, logprobs, engine.tokenizer, is_over=False)
                if trial.answer is not None and not self._limits.reads_on:
                    break
            else:
                is_over = (await generation.result()).finish == "eos"
                trial = read_trial(self._form, tokens, logprobs, engine.tokenizer, is_over=is_over)
        finally:
            generation.cancel()
            kind: Literal["written", "cancelled"] = "written" if tokens else "cancelled"
            self._recorder.emit(
                kind, lane, step_index, number, text=trial.text, num_tokens=len(tokens), work=work
            )
        return trial
