"""The contract of an engine: one model that serves many requests in shared passes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from reason_spec.engines.chat_template import PLAIN_CHAT, ChatOptions, Message
from reason_spec.engines.generation import EngineRequest, Generation, Score
from reason_spec.engines.stats import EngineStats, PassTime
from reason_spec.engines.text_updates import TextUpdate
from reason_spec.errors import ConstraintError
from reason_spec.types import AcceptanceRule, Constraint, Prefix, Usage


class Tokenizer(Protocol):
    """Text to token ids and back, for one model."""

    @property
    def tokenizer_id(self) -> str:
        """A hash of the vocabulary's content: equal ids mean that tokens may be exchanged."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end the text."""

    @property
    def end_id(self) -> int | None:
        """The one of them that the model's chats end with; None where the model has none."""

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
    def drafts_itself(self) -> bool:
        """Whether a model inside the engine drafts tokens for the requests that ask for it."""
        return False

    @property
    def takes_biases(self) -> bool:
        """Whether requests may have a ``logit_bias``; a generation with one fails otherwise."""
        return self.takes_constraints

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

        Generated tokens are not learned by themselves, as a step may be rejected.
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

        For texts that will not continue. Until the room is needed they stay, and what other texts share stays
        as it is. Engines whose cache they cannot order ignore it.
        """

    async def set_cores(self, cores: tuple[int, ...]) -> None:  # noqa: B027 - optional
        """Run on these CPU cores from now on; engines that do not compute on the CPU ignore it."""
