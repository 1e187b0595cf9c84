"""The step loop that a worker drives, and what an engine brings to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from reason_spec.engines.generation import Delta, EngineRequest, GenerationResult, Hint, Score
from reason_spec.engines.stats import EngineStats
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.engines.weights import identify_model
from reason_spec.engines.worker.messages import Ready, Start
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.scopes import open_caches
from reason_spec.suffix.tenant_file import StoreKey
from reason_spec.types import Prefix

logger = logging.getLogger(__name__)

Result: TypeAlias = GenerationResult | Score | str
"""The end of a request; a string is the error of a score."""


@dataclass(slots=True)
class StepReport:
    """The tokens and results of one step, with the numbers of their requests."""

    deltas: list[tuple[int, Delta]] = field(default_factory=list)
    results: list[tuple[int, Result]] = field(default_factory=list)


class EngineLoop(Protocol):
    """Admits requests, batches them into passes and retires them. Called from one thread."""

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
        """Change the priority of a request; unknown numbers are ignored."""

    def step(self) -> StepReport:
        """Run one pass over the live requests, with the work before and after it."""

    def stats(self) -> EngineStats: ...

    def reset_prefix_cache(self) -> str | None:
        """Free what no live request uses; return why that is impossible now, or None."""

    def evict_first(self, owner: str, tokens: tuple[int, ...]) -> None:
        """See `Engine.evict_first`."""

    def set_num_threads(self, num_threads: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model.

    ``update_text`` is None if it does not draft from earlier texts. ``load_layers`` replaces the layers of a
    pruned draft, or raises an EngineError and leaves them; None if the engine cannot.
    """

    ready: Ready
    loop: EngineLoop
    update_text: Callable[[TextUpdate], None] | None = None
    load_layers: Callable[[Path], None] | None = None


Loader: TypeAlias = Callable[[Start, int, Callable[[str], None]], Loaded]
"""Loads the model of ``Start`` for a number of threads, and reports the current phase.

Its module imports torch, so it is imported in the worker after the cores are set.
"""


def open_earlier_texts(start: Start, tokenizer_id: str, report: Callable[[str], None]) -> EarlierTexts | None:
    """Open the suffix cache to draft from; None if there is none, or it cannot be read."""
    if start.suffix is None:
        return None
    report("preparing the suffix cache")
    try:
        key = StoreKey(identify_model("target", start.texts_of or start.settings), tokenizer_id)
        # The main process learns the same tokens, and saves them.
        caches = open_caches(start.suffix, key, saves=False)
        return EarlierTexts(caches, own=start.texts_of is None, rule=start.suffix.rule)
    except Exception as error:
        logger.warning("no tokens are drafted from earlier texts: %s: %s", type(error).__name__, error)
        return None
