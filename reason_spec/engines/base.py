"""The contract of an engine: one model that serves many requests in shared passes."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias

from reason_spec.engines.chat_template import PLAIN_CHAT, ChatOptions, Message
from reason_spec.engines.stats import EngineStats, PassTime
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.errors import ConstraintError, EngineError
from reason_spec.segment import NOTHING_OPEN, Boundary, BoundaryScanner, OpenBlocks
from reason_spec.speculation.tree_shapes import DraftTreeName
from reason_spec.types import Acceptance, AcceptanceRule, Constraint, FinishReason, Prefix, Sampling, Usage

TokenDrafterName: TypeAlias = Literal["none", "prompt_lookup", "recycling", "stand"]
"""The token-level drafter beside hints and models."""
TIMES_IF_LIKELY = 3
"""Factor of ``num_draft_tokens`` for drafts that are likely to be accepted."""


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
        """Encode a whole prompt; names of special tokens stand for the tokens."""

    def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> tuple[int, ...]:
        """Encode a conversation up to the beginning of the assistant's answer."""

    def encode_turn(self, question: str) -> tuple[int, ...]:
        """Encode the end of an unfinished answer and a question, up to the beginning of the reply."""


def has_digit(tokenizer: Tokenizer, token: int) -> bool:
    """Return whether the text of a token has a decimal digit."""
    return any(48 <= byte <= 57 for byte in tokenizer.token_bytes(token))


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation: the prefix to continue, how to choose tokens, and where to end.

    Attributes:
        prefix: the text before the generation, prompt included.
        max_tokens: the most tokens to generate, at least 1.
        sampling: how tokens are chosen.
        boundary: ends the generation with its step; None generates to the end of the text.
        stops: strings that end the generation, left out of its text.
        stop_context: the end of the prefix as text, in which a stop string may begin.
        stop_ids: tokens that end the generation, left out of its text.
        step_context: the beginning of the step, where the prefix ends within one.
        begins_in: the open blocks (fences, tags, JSON) in which the step begins.
        hint: draft tokens from another layer. They are verified like any draft.
        text: number of a text in the suffix cache (`text_updates`), which drafts after hints and where no
            hint applies. Without a ``boundary`` the tokens of the request are final, and learnt at once.
        cache_key: tenant and scope; acceptance rates of hints are kept for each pair.
        siblings: requests of one tenant with this name draft for each other (torch): samples of one problem.
            Empty: with none.
        token_drafter: drafts beside hints and models.
        model_drafts: whether the model in the engine that drafts (`TorchSettings.drafter`) is asked.
        draft_tree: how the nodes of the draft tree are chosen (torch).
        refusal_threshold: the model in the engine drafts until the chance that one of its tokens is refused
            exceeds this. None: as long as one more is expected to save time.
        num_draft_tokens: the most draft tokens of a pass. The torch engine takes up to `TIMES_IF_LIKELY`
            times as many where they are likely.
        acceptance: when a draft token is accepted; one of the engine's ``acceptance_rules``. With a
            ``constraint`` it is exact.
        limit_drafts: lets the engine take fewer drafts where more would reduce the throughput of the batch.
        priority: smaller numbers go first, ties by arrival. Strategies use the number of undecided steps
            before this one, so that certain steps of all answers go before speculative ones.
        constraint: the grammar of the text, from the first token on. The text may end only where it is
            complete; ``max_tokens`` may cut it. Drafts that break it are not verified.
        logit_bias: pairs of a token id and a number that is added to its logit; each id once.
        stream: False delivers no tokens before the result, which saves a message a pass.
        delta_tokens: tokens that a delta holds at least, except the last.
        first_delta_tokens: the first delta holds only so many, and the second what lacks to
            ``delta_tokens``; None: as the others.

    Raises:
        ValueError: ``max_tokens`` is below 1, or a bias is not finite.
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
    siblings: str = ""
    token_drafter: TokenDrafterName = "none"
    model_drafts: bool = False
    draft_tree: DraftTreeName = "greedy"
    refusal_threshold: float | None = None
    num_draft_tokens: int = 16
    acceptance: Acceptance = field(default_factory=Acceptance)
    limit_drafts: bool = False
    priority: int = 0
    constraint: Constraint | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    stream: bool = True
    delta_tokens: int = 1
    first_delta_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise ValueError(f"logit_bias must hold finite numbers, not {self.logit_bias}")

    def boundary_scanner(self) -> BoundaryScanner | None:
        """Return a scanner that has read the beginning of the step; None without a boundary."""
        if self.boundary is None:
            return None
        scanner = BoundaryScanner(self.boundary, self.begins_in)
        scanner.feed(self.step_context.encode())
        return scanner


@dataclass(frozen=True, slots=True)
class Hint:
    """Draft tokens that follow the first ``start`` tokens of a generation; replaces hint ``index``."""

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

    Attributes:
        tokens: with the end-of-text token if ``finish`` is ``eos``, and with the token that completed the
            stop if it is ``stop``.
        text: without the end of the text and without the stop.
        logprobs: of the model at temperature 1, one a token. Constraints and biases do not change them,
            except in vLLM and remote servers.
        finish: why the generation ended.
        usage: the work of this generation.
        num_stop_overlap: characters of the stop string that lie in the prefix.
        error: why the engine failed; None unless ``finish`` is ``failed``.
        first_entropy: entropy of the model at temperature 1 before the first token, in nats; None where the
            engine does not report it, and for requests without a boundary.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: FinishReason
    usage: Usage
    num_stop_overlap: int = 0
    error: str | None = None
    first_entropy: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probabilities of the tokens of a given continuation, and the most likely token at each position."""

    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    usage: Usage


class Generation:
    """A request that an engine has taken.

    Iterating gives deltas as tokens become certain; ``result`` waits for the end. ``cancel`` may be called at
    any time, any number of times. Dropping the iterator does not cancel.
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
        """Wait for the end. A cancelled generation has a result too, with its tokens so far.

        Raises:
            EngineError: the engine failed; the message says why.
        """
        result = await asyncio.shield(self._result)
        if result.finish == "failed":
            raise EngineError(result.error or "the engine failed without saying why")
        return result

    async def closed(self) -> Usage:
        """Wait until the engine has freed this generation; return its work."""
        return (await asyncio.shield(self._result)).usage

    def cancel(self) -> None:
        """Ask the engine to stop this generation; returns at once."""
        if not self.done and not self._cancel_requested:
            self._cancel_requested = True
            self._on_cancel()

    def offer_hint(self, tokens: tuple[int, ...], *, start: int = 0, index: int = 0) -> None:
        """Give draft tokens that follow the first ``start`` tokens of this generation.

        May be called at any time: the engine drafts from where the generated tokens agree with the hint. A
        hint replaces the earlier one of its ``index``; those of several indices are verified as one tree.
        """
        if not self.done and tokens:
            self._on_hint(Hint(tokens, start, index))

    def set_priority(self, priority: int) -> None:
        """Change the priority, for example once the steps before this one are decided."""
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
    """Serves one model and batches all live requests in its own step loop.

    All methods are called from one asyncio event loop. ``submit`` does not wait: the engine admits requests
    itself. The caller keeps the generation, and cancels it if it is no longer needed.
    """

    name: str
    has_costs: ClassVar[bool] = True
    """Whether measured times of this engine are those of a model, so that a planner can use them."""
    phase: str = ""
    """The current part of ``start``, for progress; empty before and after."""
    takes_hints: bool = True
    """Whether the engine drafts from hints."""
    takes_constraints: bool = False
    """Whether requests may have a constraint; a generation with one fails otherwise."""
    reports_batch_times: ClassVar[bool] = False
    """Whether the engine measures ``batch_times``."""
    reports_entropy: ClassVar[bool] = False
    """Whether results of requests with a boundary have a ``first_entropy``."""

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
        """Whether requests end at their ``stop_ids``; False if the engine receives text, not tokens."""
        return True

    @property
    def acceptance_rules(self) -> tuple[AcceptanceRule, ...]:
        """The rules by which the engine accepts draft tokens."""
        return ("exact",)

    @property
    def dtype(self) -> str | None:
        """The dtype of the model's arithmetic, such as ``bfloat16``; None if it is unknown."""
        return None

    @property
    def failure(self) -> str | None:
        """Why requests fail now, None while they do not; see `keep_alive`."""
        return None

    @property
    def trouble(self) -> str | None:
        """Why the engine is unhealthy now; None if it works."""
        return None if self.failure is None else "died"

    @property
    def num_deaths(self) -> int:
        """How often the engine died since its start."""
        return 0

    @property
    def pass_times(self) -> tuple[PassTime, ...]:
        """Recent times of passes, smaller passes first; empty if the engine does not measure them."""
        return ()

    @property
    def batch_times(self) -> tuple[PassTime, ...]:
        """Recent times of passes without prompts, by tokens, requests and threads."""
        return ()

    @abstractmethod
    async def start(self) -> None:
        """Load the model.

        Raises:
            EngineError: it could not be loaded; the message names the model and the remedy.
        """

    @abstractmethod
    async def close(self) -> None:
        """Cancel everything and free the model; may be called twice."""

    def keep_alive(self) -> None:  # noqa: B027 - not every engine has a process
        """From now on restart the engine whenever it dies. Requests in flight still fail."""

    async def recovered(self) -> None:  # noqa: B027 - as above
        """Wait until an engine that died and is being started again is back; return at once if it works.

        After it returns, each death makes `num_deaths` grow before it fails a request.

        Raises:
            EngineError: it will not be restarted.
        """

    @abstractmethod
    def submit(self, request: EngineRequest) -> Generation:
        """Start a generation. A prefix without room for one token fails the generation, not the call."""

    async def check_constraint(self, constraint: Constraint) -> None:
        """Compile a constraint outside of the event loop, within limits of size and time.

        A request whose constraint was not checked is safe: if the constraint is bad, the generation fails.

        Raises:
            ConstraintError: it cannot be compiled; the message says why.
        """
        raise ConstraintError(f"engine {self.name!r} cannot constrain what it writes")

    @property
    def takes_texts(self) -> bool:
        """Whether the engine drafts from earlier texts, and so needs `update_text`."""
        return False

    def update_text(self, update: TextUpdate) -> None:  # noqa: B027 - optional
        """Pass on that a text began, grew or ended.

        Generated tokens are not learnt by themselves, as a step may be rejected.
        """

    @abstractmethod
    async def score(self, prefix: Prefix, continuation: tuple[int, ...]) -> Score:
        """Return the log-probability of each token of ``continuation``, in one pass.

        Raises:
            EngineError: the text is longer than the model's context, or the engine failed.
        """

    async def score_next(self, prefix: Prefix, tokens: tuple[int, ...]) -> Score:
        """Return the log-probability of each of ``tokens`` as the next one; ``best`` has the most likely.

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
        """Return the numbers of live requests and the work done so far."""

    @abstractmethod
    async def reset_prefix_cache(self) -> None:
        """Free all keys and values that no live request uses.

        Raises:
            EngineError: the engine can do that only without live requests, and there are some.
        """

    def evict_first(self, prefix: Prefix) -> None:  # noqa: B027 - optional
        """Let the keys and values of texts that begin with a prefix be evicted before others.

        For texts that will not go on. Until the room is needed they stay, and what other texts share stays
        as it is. Engines whose cache they cannot order ignore it.
        """

    async def set_cores(self, cores: tuple[int, ...]) -> None:  # noqa: B027 - optional
        """Run on these CPU cores from now on; engines that do not compute on the CPU ignore it."""
