"""What a worker drives: the step loop of one model, whoever runs the passes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from reason_spec.engines.base import Delta, EngineRequest, GenerationResult, Hint, Score
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.engines.weights import identify_model
from reason_spec.engines.worker.messages import Ready, Start
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.file_format import StoreKey
from reason_spec.suffix.scopes import open_caches
from reason_spec.types import Prefix

logger = logging.getLogger(__name__)

Result: TypeAlias = GenerationResult | Score | str
"""What a request ends with; a string is the error of a score."""


@dataclass(slots=True)
class StepReport:
    """What became certain in one step of the loop."""

    deltas: list[tuple[int, Delta]] = field(default_factory=list)
    results: list[tuple[int, Result]] = field(default_factory=list)


class StepLoop(Protocol):
    """Admit, batch, run, deliver, retire. Called from one thread; requests are known by their number."""

    @property
    def has_work(self) -> bool: ...

    @property
    def pass_times(self) -> PassTimes: ...

    def submit(self, number: int, request: EngineRequest) -> None: ...

    def score(
        self, number: int, prefix: Prefix, continuation: tuple[int, ...], *, alternatives: bool = False
    ) -> None: ...

    def cancel(self, number: int) -> None:
        """Stop a request; the next step reports its end. Unknown numbers are ignored."""

    def cancel_all(self) -> None: ...

    def offer_hint(self, number: int, hint: Hint) -> None: ...

    def set_priority(self, number: int, priority: int) -> None:
        """Change whom a request waits for; unknown numbers are ignored."""

    def step(self) -> StepReport:
        """Run one pass over all live requests, with what comes before and after it."""

    def stats(self) -> EngineStats: ...

    def reset_prefix_cache(self) -> str | None:
        """Forget what no live request uses; return why that could not be done, None where it was."""

    def set_num_threads(self, num_threads: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model: its description, its step loop, and the callback for updates of texts, if it has one."""

    ready: Ready
    loop: StepLoop
    update_text: Callable[[TextUpdate], None] | None = None


Loader: TypeAlias = Callable[[Start, int, Callable[[str], None]], Loaded]
"""Loads what ``Start`` names, to run with so many threads, and tells what it is doing.

Its module, and so torch, is imported in the worker, after the cores are set.
"""


def open_earlier_texts(start: Start, tokenizer_id: str, tell: Callable[[str], None]) -> EarlierTexts | None:
    """Return what the engine's token drafts come from, None where they come from no earlier texts."""
    if start.suffix is None:
        return None
    tell("preparing the suffix cache")
    try:
        key = StoreKey(identify_model("target", start.texts_of or start.settings), tokenizer_id)
        # What is learnt here is kept by the accelerator, which learns it too.
        caches = open_caches(start.suffix, key, saves=False)
        return EarlierTexts(caches, own=start.texts_of is None)
    except Exception as error:
        logger.warning("no tokens are drafted from earlier texts: %s: %s", type(error).__name__, error)
        return None
