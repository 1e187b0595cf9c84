"""The contract of an engine: one model, its step loop, and the generations that run in it."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NotRequired, Protocol, TypeAlias, TypedDict

from reason_spec.errors import ConstraintError, EngineError
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.base import Source
from reason_spec.types import Constraint, FinishReason, Prefix, Sampling, Usage

TokenDrafterName: TypeAlias = Literal["none", "prompt_lookup"]
"""Which token-level drafter works where no hint applies."""
TIMES_IF_LIKELY = 3
"""Drafts that are likely to be right may be so many times the budget of others, where the engine knows."""


class Message(TypedDict):
    """One turn of a chat, in OpenAI's form; calls have their arguments as objects."""

    role: str
    content: str
    name: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat template is told beside the conversation.

    ``tools`` are JSON objects of OpenAI's form. ``continue_final`` leaves the last message open: what is
    written goes on within it.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final: bool = False


PLAIN_CHAT = ChatOptions()


class Tokenizer(Protocol):
    """Text to token ids and back, for one model."""

    @property
    def tokenizer_id(self) -> str:
        """A hash of the vocabulary's content: equal ids mean that tokens may be exchanged."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end the text."""

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template; None where the model has none."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode text by itself, without special tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode exactly, special tokens left out; damaged UTF-8 is replaced."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; special tokens add none."""

    def decode_prompt(self, tokens: Sequence[int]) -> str:
        """Decode with special tokens by their names."""

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Encode a whole prompt as the model was made to read it, special tokens by their names."""

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        """Encode a conversation up to where the assistant's answer begins."""

    def encode_turn(self, question: str) -> tuple[int, ...]:
        """Encode what ends an answer under way and asks something more, up to where the reply begins."""


def has_digit(tokenizer: Tokenizer, token: int) -> bool:
    """Tell whether a token writes a decimal digit."""
    return any(48 <= byte <= 57 for byte in tokenizer.token_bytes(token))


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is asked to write.

    ``boundary`` None writes to the end of the text; else the generation ends with its step.
    ``stop_context`` is the end of the text already written, in which a stop may have begun;
    ``step_context`` the beginning of a step that the prefix ends within, and ``begins_in`` what that step
    itself begins within where the one before it was cut.
    ``stop_ids`` are tokens of the model that end the generation as a stop does; their text is left out.
    ``hint`` holds tokens that another layer expects here; they are checked, never trusted. ``text`` names
    a text that the engine was told of, and that the prefix goes on from: where no hint applies, and behind
    one, the suffix cache proposes what followed in earlier texts. Without a ``boundary`` all that such a
    request writes is final. ``cache_key`` names tenant and scope of the answer: how often hints are right is
    counted for each apart.
    ``num_draft_tokens`` bounds the drafts of one pass (the torch engine takes three times as many that the
    suffix cache finds likely), ``num_lookup_paths`` the continuations that prompt lookup proposes side by
    side.
    ``priority``: smaller numbers go first when a pass cannot hold every live request; ties go by arrival. It
    is the number of undecided steps before this one in its answer, so that the certain steps of all answers
    go before speculative ones.
    ``constraint`` says what may be written, from the first token on: the text may end only where it is
    fulfilled, and ``max_tokens`` may cut it before. Drafts that break it are not checked. ``logit_bias``
    holds pairs of a token id and what is added to its logit before a token is chosen; each id once.
    ``limit_drafts`` lets the engine check fewer drafts than that where more of them, beside what else is in
    the pass, would make all requests together slower.
    ``stream`` False delivers nothing before the result, which saves a message for each pass; with
    ``delta_tokens`` a delta waits until it holds that many, or the generation ends.
    """

    prefix: Prefix
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    boundary: Boundary | None = None
    stops: tuple[str, ...] = ()
    stop_context: str = ""
    stop_ids: frozenset[int] = frozenset()
    step_context: str = ""
    begins_in: OpenBlocks = NOTHING_OPEN
    hint: tuple[int, ...] = ()
    text: int | None = None
    cache_key: tuple[str, str] = ("", "")
    token_drafter: TokenDrafterName = "none"
    num_draft_tokens: int = 16
    num_lookup_paths: int = 1
    limit_drafts: bool = False
    priority: int = 0
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stream: bool = True
    delta_tokens: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise ValueError(f"logit_bias must hold finite numbers, not {self.logit_bias}")

    def boundary_scanner(self) -> BoundaryScanner | None:
        """Return what finds the end of the step, its beginning read; None where no end is looked for."""
        if self.boundary is None:
            return None
        scanner = BoundaryScanner(self.boundary, self.begins_in)
        scanner.feed(self.step_context.encode())
        return scanner


@dataclass(frozen=True, slots=True)
class Opening:
    """A prompt that answers go on from, and whose suffix cache is to propose and to learn.

    Texts of one ``tenant`` and ``scope`` share what is learnt. A tenant is somebody whose texts are nobody
    else's business; scopes are what is compared and must not learn from each other.
    """

    tenant: str
    scope: str
    segments: tuple[tuple[Source, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class BeginText:
    """A text that requests go on from or, under a number in use, the prompt of its next turn.

    What that shares with the text so far is not learnt again.
    """

    text: int
    opening: Opening


@dataclass(frozen=True, slots=True)
class ExtendText:
    """What became final of a text."""

    text: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseText:
    """The number is free again; what was learnt from the text stays."""

    text: int


@dataclass(frozen=True, slots=True)
class ForgetTexts:
    """A scope begins anew. Its texts are closed by now."""

    scope: str


TextNews: TypeAlias = BeginText | ExtendText | CloseText | ForgetTexts


def tell_texts(texts: EarlierTexts, news: TextNews) -> None:
    """Hand news to what tokens are drafted from."""
    match news:
        case BeginText(text, opening):
            texts.begin(text, opening.scope, opening.tenant, opening.segments)
        case ExtendText(text, tokens):
            texts.extend(text, tokens)
        case CloseText(text):
            texts.close(text)
        case ForgetTexts(scope):
            texts.forget(scope)


@dataclass(frozen=True, slots=True)
class Hint:
    """Tokens expected behind the first ``start`` ones of a generation, in the place of hint ``index``."""

    tokens: tuple[int, ...]
    start: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that became certain in one pass."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation.

    ``tokens`` ends with the end-of-text token where ``finish`` is ``eos``, and with the token that
    completed the stop where it is ``stop``; ``text`` has neither. Where a stop began before the
    request's prefix ended, ``num_stop_overlap`` counts its characters in that earlier text.
    ``logprobs`` are those of the model at temperature 1, one for each token: neither a constraint nor a
    bias changes them (vLLM and servers may count both in).
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: FinishReason
    usage: Usage
    num_stop_overlap: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probabilities of a given continuation, one for each of its tokens, from one pass.

    ``best`` holds the token that the model finds most likely at each of these places.
    """

    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class PassTime:
    """How long passes over about ``num_tokens`` new tokens took lately; ``count`` weighs the mean.

    ``num_requests`` wrote in them, and ``num_threads`` computed them; 0: not told.
    """

    num_tokens: float
    seconds: float
    count: float
    num_requests: float = 1.0
    num_threads: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine holds and has done. ``usage`` covers everything since it started."""

    num_running: int
    num_waiting: int
    num_cached_tokens: int
    num_passes: int
    busy_seconds: float
    usage: Usage


class Generation:
    """A piece of writing under way.

    Iterating gives deltas as they become certain; ``result`` waits for the end. ``cancel`` may be
    called at any time, any number of times. Dropping the iterator does not cancel.
    """

    def __init__(
        self,
        request: EngineRequest,
        *,
        on_cancel: Callable[[], None],
        on_hint: Callable[[Hint], None],
        on_priority: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.request = request
        self.priority = request.priority
        self._on_cancel = on_cancel
        self._on_hint = on_hint
        self._on_priority = on_priority
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._result: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        self._cancel_requested = False

    @property
    def done(self) -> bool:
        return self._result.done()

    @property
    def cancel_requested(self) -> bool:
        return self._cancel_requested

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Delta]:
        while (delta := await self._deltas.get()) is not None:
            yield delta
        self._deltas.put_nowait(None)

    async def result(self) -> GenerationResult:
        """Wait for the end. A cancelled generation has a result too, of what it had written.

        Raises:
            EngineError: the engine failed; the message holds its own words.
        """
        result = await asyncio.shield(self._result)
        if result.finish == "failed":
            raise EngineError(result.error or "the engine failed without saying why")
        return result

    async def closed(self) -> Usage:
        """Wait until the engine holds nothing of this generation; return the work it took."""
        return (await asyncio.shield(self._result)).usage

    def cancel(self) -> None:
        """Ask the engine to stop this generation; returns at once."""
        if not self.done and not self._cancel_requested:
            self._cancel_requested = True
            self._on_cancel()

    def offer_hint(self, tokens: tuple[int, ...], *, start: int = 0, index: int = 0) -> None:
        """Hand over tokens that another layer expects behind the first ``start`` ones of this generation.

        May come at any time: it helps from where the tokens written so far agree with it. A hint
        replaces the earlier one with its ``index``; hints with different ones are checked side by side.
        """
        if not self.done and tokens:
            self._on_hint(Hint(tokens, start, index))

    def set_priority(self, priority: int) -> None:
        """Change the priority, for example when the steps before this one were decided."""
        if not self.done and priority != self.priority:
            self.priority = priority
            self._on_priority(priority)

    def push(self, delta: Delta) -> None:
        """For engines: deliver tokens."""
        if not self.done:
            self._deltas.put_nowait(delta)

    def finish(self, result: GenerationResult) -> None:
        """For engines: deliver the end; the slot must be free by now."""
        if not self.done:
            self._result.set_result(result)
            self._deltas.put_nowait(None)


class Engine(ABC):
    """Hosts one model and batches all live requests in its own step loop.

    All methods are called from one asyncio event loop. ``submit`` does not wait: admission is the
    engine's business. Whoever submits keeps the generation and cancels what it no longer needs.
    """

    name: str
    has_costs: ClassVar[bool] = True
    """Whether timing this engine tells what is fast; a planner is of use only then."""
    phase: str = ""
    """What the engine is doing on its way to be ready; empty before and after."""
    takes_hints: bool = True
    """Whether hints reach what drafts tokens here; where they do not, none need be written."""

    tells_batches: ClassVar[bool] = False
    """Whether ``batch_times`` come of this engine."""
    takes_constraints: bool = False
    """Whether requests may have a constraint; where not, one that has fails its generation."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; usable after ``start``."""

    @property
    @abstractmethod
    def max_context(self) -> int:
        """The largest number of tokens, prefix and continuation together."""

    @property
    def takes_stop_ids(self) -> bool:
        """Whether requests end at their ``stop_ids``; not where the engine sees text alone."""
        return True

    @property
    def dtype(self) -> str | None:
        """The dtype that the model computes in, such as ``bfloat16``; None if it is unknown."""
        return None

    @property
    def failure(self) -> str | None:
        """Why the engine cannot go on, None while it can; see `keep_alive`."""
        return None

    @property
    def trouble(self) -> str | None:
        """What is wrong with the engine now, for health checks; None if it works."""
        return None if self.failure is None else "died"

    @property
    def num_deaths(self) -> int:
        """How often the engine died since its start."""
        return 0

    @property
    def pass_times(self) -> tuple[PassTime, ...]:
        """How long passes take now, smaller ones first; empty where the engine does not tell."""
        return ()

    @property
    def batch_times(self) -> tuple[PassTime, ...]:
        """How long passes take in which requests only write, by tokens, requests and threads."""
        return ()

    @abstractmethod
    async def start(self) -> None:
        """Load the model and be ready to serve.

        Raises:
            EngineError: it could not be loaded; the message names the model and the remedy.
        """

    @abstractmethod
    async def close(self) -> None:
        """Cancel everything and free the model; may be called twice."""

    def keep_alive(self) -> None:  # noqa: B027 - not every engine has what could die
        """From now on restart the engine whenever it dies. Requests in flight still fail."""

    async def recovered(self) -> None:  # noqa: B027 - as above
        """Wait until an engine that died and is being started again is back; return at once if it works.

        After it returns, each death makes `num_deaths` grow before it fails a request.

        Raises:
            EngineError: it is dead and stays so.
        """

    @abstractmethod
    def submit(self, request: EngineRequest) -> Generation:
        """Start writing. A prefix without room for one token fails the generation, not the call."""

    async def check_constraint(self, constraint: Constraint) -> None:
        """Find out whether a constraint can be kept to, before anything is written under it.

        It is compiled outside of the event loop, within limits of size and time. To submit a request whose
        constraint was not checked is safe: the generation fails.

        Raises:
            ConstraintError: it cannot; the message says what is wrong in it.
        """
        raise ConstraintError(f"engine {self.name!r} cannot constrain what it writes")

    @property
    def takes_texts(self) -> bool:
        """Whether token drafts here may come from earlier texts; else it needs no news of them."""
        return False

    def tell(self, news: TextNews) -> None:  # noqa: B027 - nothing to do is an answer
        """Take what became of texts. What requests write is not learnt by itself: not all of it stays."""

    @abstractmethod
    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        """Return the log-probability of each token of ``continuation``, in one pass.

        Raises:
            EngineError: the text is longer than the model's context, or the engine failed.
        """

    async def score_next(self, prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        """Return the log-probability of each of ``tokens`` as the next one; ``best`` is the likeliest token.

        This default makes one request a token. Engines override it to read all from one prediction.

        Raises:
            EngineError: the text is longer than the model's context, or the engine failed.
        """
        scores = await asyncio.gather(*(self.score(prefix, (token,)) for token in tokens))
        logprobs = tuple(logprob for score in scores for logprob in score.logprobs)
        usage = sum((score.usage for score in scores), Usage())
        return Score(logprobs, scores[0].best if scores else (), usage)

    @abstractmethod
    async def stats(self) -> EngineStats:
        """Return what is running and waiting now, and the work done so far."""

    @abstractmethod
    async def reset_prefix_cache(self) -> None:
        """Forget all keys and values that no live request uses.

        Raises:
            EngineError: the engine cannot do that now, because requests are live.
        """

    async def set_cores(self, cores: tuple[int, ...]) -> None:  # noqa: B027 - nothing to do is an answer
        """Run on these CPU cores from now on; engines that do no work on the CPU ignore it."""
