"""The messages between an engine and its worker: tokens and numbers, never tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from reason_spec.engines.generation import Delta, EngineRequest, GenerationResult, Hint, Score
from reason_spec.engines.stats import EngineStats, PassTime
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.settings import EngineSettings, SuffixSettings

# --- to the worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: the model to load.

    Attributes:
        cores: the cores to run on; None for all that are allowed.
        suffix: settings for drafts from earlier texts; None for none.
        texts_of: the model of those texts, if it is another one.
        layers: the weights of a pruned draft that replace those of the model; None for none.
    """

    settings: EngineSettings
    cores: tuple[int, ...] | None
    suffix: SuffixSettings | None = None
    texts_of: EngineSettings | None = None
    layers: Path | None = None


@dataclass(frozen=True, slots=True)
class PrefixDelta:
    """A prefix as it is sent: the last node that the worker has, and the new nodes after it.

    ``base`` is the number of that node, None if the worker has none. ``nodes`` holds number and tokens of
    each new node; the last one ends the prefix.
    """

    owner: str
    base: int | None
    nodes: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a generation. ``request.prefix`` is empty; ``prefix`` replaces it."""

    number: int
    request: EngineRequest
    prefix: PrefixDelta


@dataclass(frozen=True, slots=True)
class SubmitScore:
    """Score ``continuation``; with ``alternatives`` each of its tokens as the next one."""

    number: int
    prefix: PrefixDelta
    continuation: tuple[int, ...]
    alternatives: bool = False


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """Drop nodes that no later request names."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    number: int


@dataclass(frozen=True, slots=True)
class OfferHint:
    number: int
    hint: Hint


@dataclass(frozen=True, slots=True)
class SetPriority:
    number: int
    priority: int


@dataclass(frozen=True, slots=True)
class GetStats:
    number: int


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    number: int


@dataclass(frozen=True, slots=True)
class EvictFirst:
    """Evict the keys and values of an owner's texts that begin with ``tokens`` before those of others."""

    owner: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetCores:
    number: int
    cores: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class LoadLayers:
    """Replace the layers of a pruned draft by those of a file, and forget all cached prefixes."""

    number: int
    file: Path


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel everything, report the results, and end."""


ToWorker: TypeAlias = (
    Start
    | Submit
    | SubmitScore
    | ForgetPrefixes
    | Cancel
    | OfferHint
    | SetPriority
    | TextUpdate
    | GetStats
    | ResetPrefixCache
    | EvictFirst
    | SetCores
    | LoadLayers
    | Shutdown
)

# --- from the worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and checked."""

    max_context: int
    dtype: str
    seconds_per_token_pass: float


@dataclass(frozen=True, slots=True)
class Phase:
    """The current part of loading, before `Ready`."""

    text: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent every `TICK_SECONDS`, also during a long pass."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    message: str
    unsupported: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The tokens and results of one step of the loop. Pass times come with results only."""

    deltas: tuple[tuple[int, Delta], ...]
    results: tuple[tuple[int, GenerationResult | Score | str], ...]
    pass_times: tuple[PassTime, ...] = ()
    batch_times: tuple[PassTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call, with its number; ``error`` says why it failed."""

    number: int
    stats: EngineStats | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """The last message of a worker that ends by an exception."""

    message: str


FromWorker: TypeAlias = Phase | Ready | Heartbeat | StartFailed | Report | Reply | Died
