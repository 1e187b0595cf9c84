"""The draft model as the token-level drafter of a generation of the target, each on its own cores.

Speculative decoding (arXiv 2211.17192) drafts, verifies, drafts again. Here neither model waits: while
the target checks what it was handed, the draft writes on behind it, and it begins anew from what is
certain only where the two part (as in PEARL, arXiv 2408.11850). What is handed over ends where the
chance that all of it is right, by the draft's own probabilities, falls below a threshold: the stopping
rule of SpecDec++ (arXiv 2405.19715) without its trained head.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log

from reason_spec.engines.base import Engine, Generation, GenerationResult, Request
from reason_spec.events import Recorder


def can_share_tokens(draft: Engine, target: Engine) -> bool:
    """Tell whether the draft's tokens can be handed to the target as they are."""
    return draft.tokenizer.tokenizer_id == target.tokenizer.tokenizer_id


@dataclass(eq=False, slots=True)
class DraftRun:
    """A generation of the draft from token ``start`` of the target's generation on."""

    start: int
    generation: Generation
    tokens: tuple[int, ...] = ()


class DraftAhead:
    """Hands one generation of the target what the draft expects next, until it is over.

    Both models must have one tokenizer. ``request`` says how the draft writes; its prefix is what
    stands before the target's generation, and its length is that of one run. With ``waits`` the draft
    writes nothing until the target parts from what ``expect`` was told. The owner tells of certain
    tokens with ``confirm`` or lets ``follow`` do it, and closes the object.
    """

    def __init__(
        self,
        draft: Engine,
        generation: Generation,
        request: Request,
        *,
        max_ahead: int,
        min_chance: float,
        waits: bool = False,
    ) -> None:
        self._draft = draft
        self._generation = generation
        self._request = request
        self._max_ahead = max_ahead
        self._min_logprob = log(min_chance) if min_chance > 0 else float("-inf")
        self._certain: list[int] = []
        self._expected: list[int] = []
        self._go_on_at = sys.maxsize if waits else 0
        self._changed = asyncio.Event()
        self._running: DraftRun | None = None
        self._runs: list[DraftRun] = []
        self._task = asyncio.get_running_loop().create_task(self._write_ahead())

    def confirm(self, tokens: Sequence[int]) -> None:
        """Take tokens of the target's generation that became certain.

        Raises:
            EngineError: the draft's engine failed meanwhile.
        """
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        self._certain += tokens
        if not _agree(self._expected, self._certain):
            self._begin_anew()
            if self._running is not None:
                self._running.generation.cancel()
        self._changed.set()

    def expect(self, tokens: Sequence[int]) -> None:
        """Take what the target was handed from the start of its generation on; nothing is to be added."""
        if _agree(tokens, self._certain):
            self._expected = list(tokens)
            self._go_on_at = sys.maxsize
        else:
            self._begin_anew()
            self._changed.set()

    async def follow(self) -> None:
        """Confirm what the target's generation writes, to its end; nobody else may iterate over it."""
        async for delta in self._generation:
            self.confirm(delta.tokens)
        self.stop()

    def stop(self) -> None:
        """Write nothing more."""
        self._task.cancel()
        for run in self._runs:
            run.generation.cancel()

    async def close(self, recorder: Recorder) -> None:
        """Stop, wait until the draft's engine holds nothing of this, and count the work.

        A run is of use where the target confirmed its first token.

        Raises:
            EngineError: the draft's engine failed.
        """
        self.stop()
        results = await asyncio.gather(self._task, return_exceptions=True)
        for run in self._runs:
            confirmed = self._certain[run.start : run.start + 1]
            recorder.add_work(
                "draft", await run.generation.closed(), kept=[*run.tokens[:1]] == confirmed != []
            )
        if isinstance(results[0], Exception):
            raise results[0]

    async def _write_ahead(self) -> None:
        while not self._generation.done:
            self._changed.clear()
            num_ahead = len(self._expected) - len(self._certain)
            if len(self._certain) < self._go_on_at or num_ahead >= self._max_ahead:
                await self._changed.wait()
            else:
                await self._write_run()

    def _begin_anew(self) -> None:
        self._expected = list(self._certain)
        self._go_on_at = 0

    async def _write_run(self) -> None:
        if len(self._expected) < len(self._certain):
            self._begin_anew()
        before = list(self._expected)
        prefix = self._request.prefix.extend(tuple(before))
        if len(prefix) >= self._draft.max_context:
            self._go_on_at = sys.maxsize
            return
        run = DraftRun(len(before), self._draft.submit(replace(self._request, prefix=prefix)))
        self._runs.append(run)
        self._running = run
        result = await run.generation.result()
        self._running = None
        if result.finish == "cancelled":
            return
        run.tokens = result.tokens
        if not _agree([*before, *result.tokens], self._certain):
            self._begin_anew()
            return
        likely = self._likely_part(result)
        self._expected = [*before, *likely]
        if len(likely) < len(result.tokens):
            self._go_on_at = len(self._expected)
        elif result.finish != "length":
            # The text or the step is over for the draft; only a parting makes it write again.
            self._go_on_at = sys.maxsize
        start = len(self._certain)
        self._generation.offer_hint(tuple(self._expected[start:]), start=start)

    def _likely_part(self, result: GenerationResult) -> tuple[int, ...]:
        """Return the tokens up to where the chance of all of them falls below the threshold."""
        chances = accumulate(result.logprobs)
        num_likely = next((i for i, chance in enumerate(chances) if chance < self._min_logprob), None)
        # One token costs the target next to nothing to check.
        return result.tokens if num_likely is None else result.tokens[: max(1, num_likely)]


def _agree(expected: Sequence[int], certain: Sequence[int]) -> bool:
    length = min(len(expected), len(certain))
    return list(expected[:length]) == list(certain[:length])
