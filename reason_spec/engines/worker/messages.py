"""What crosses between an engine and its worker: tokens and numbers, never tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from reason_spec.engines.base import Delta, EngineRequest, GenerationResult, Hint, Score
from reason_spec.engines.stats import EngineStats, PassTime
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.settings import EngineSettings, SuffixSettings

# --- to the worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what to load, and the cores to run on (None: all that are allowed).

    ``suffix`` None: no token is drafted from earlier texts. ``texts_of`` names the model whose texts these
    are where it is another one.
    """

    settings: EngineSettings
    cores: tuple[int, ...] | None
    suffix: SuffixSettings | None = None
    texts_of: EngineSettings | None = None


@dataclass(frozen=True, slots=True)
class PrefixParts:
    """A prefix as it is sent: the last node that the worker knows, and the new nodes behind it.

    ``known`` is the number of that node, None if the worker knows none. ``parts`` holds number and tokens of
    each new node; the last one ends the prefix.
    """

    owner: str
    known: int | None
    parts: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """``request.prefix`` is empty: ``prefix`` stands for it."""

    number: int
    request: EngineRequest
    prefix: PrefixParts


@dataclass(frozen=True, slots=True)
class SubmitScore:
    """``alternatives``: each token of ``continuation`` may come next, and none is behind another."""

    number: int
    prefix: PrefixParts
    continuation: tuple[int, ...]
    alternatives: bool = False


@dataclass(frozen=True, slots=True)
class ForgetPrefixes:
    """No request will name these nodes any more."""

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
class AskStats:
    number: int


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    number: int


@dataclass(frozen=True, slots=True)
class SetCores:
    number: int
    cores: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Cancel everything, report it, and end."""


ToWorker: TypeAlias = (
    Start
    | Submit
    | SubmitScore
    | ForgetPrefixes
    | Cancel
    | OfferHint
    | SetPriority
    | TextUpdate
    | AskStats
    | ResetPrefixCache
    | SetCores
    | Shutdown
)

# --- from the worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and checked."""

    vocab_size: int
    max_context: int
    tokenizer_id: str
    device: str
    dtype: str
    num_threads: int
    seconds_per_token_pass: float


@dataclass(frozen=True, slots=True)
class Phase:
    """What the worker is doing on the way to `Ready`."""

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
    """What one step of the loop made certain; at most one message a pass.

    ``pass_times`` and ``batch_times`` come with results; without any they are empty.
    """

    deltas: tuple[tuple[int, Delta], ...]
    results: tuple[tuple[int, GenerationResult | Score | str], ...]
    pass_times: tuple[PassTime, ...] = ()
    batch_times: tuple[PassTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question, with its number; ``error`` says why it could not be done."""

    number: int
    stats: EngineStats | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """The worker's last words before it ends on an error of its own."""

    message: str


FromWorker: TypeAlias = Phase | Ready | Heartbeat | StartFailed | Report | Reply | Died
