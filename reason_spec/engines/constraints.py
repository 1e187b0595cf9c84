"""Constraints on a text, token by token: what may come next, and whether the text may end.

The grammars are llguidance's (https://github.com/guidance-ai/llguidance). A matcher is built for one
vocabulary, from the bytes of its tokens, so it constrains the text that will be decoded. A matcher that
exceeds a limit of llguidance reports it, and the generation fails.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from reason_spec.engines.grammars import grammar_of, llguidance_module
from reason_spec.errors import ConstraintError
from reason_spec.types import Constraint

CHECK_SECONDS: Final = 10.0
"""The most seconds to compile a constraint."""
_POLL_SECONDS: Final = 0.05
_LIMITS: Final = {
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
_NUM_KEPT: Final = 16
"""Compiled constraints in the cache."""


class ConstraintVocabulary(Protocol):
    """The part of a tokenizer that a matcher needs."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def token_bytes(self, token: int) -> bytes: ...


class ByteVocabulary:
    """Bytes as tokens, and an end of the text, to check texts without a tokenizer."""

    end: Final = 256
    size: Final = 257
    eos_ids: Final = frozenset({end})

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == self.end else bytes([token])


def require_end(eos_ids: frozenset[int]) -> None:
    """Raise ConstraintError for a model without an end-of-text token: its texts could not be complete."""
    if not eos_ids:
        raise ConstraintError(
            "the model's tokenizer names no token that ends the text, so nothing can be constrained; "
            "set eos_token in its tokenizer_config.json"
        )


# --- matchers --------------------------------------------------------------------------------------------


class TextMatcher:
    """Follows one text under a constraint.

    The end of the text is allowed where the grammar accepts, and is never consumed. ``error`` says why the
    matcher gave up; from then on it allows nothing.
    """

    def __init__(self, matcher: Any, eos_ids: frozenset[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size

    def copy(self) -> TextMatcher:
        return TextMatcher(self._matcher.deep_copy(), self._eos_ids, self._vocab_size)

    @property
    def error(self) -> str | None:
        return _shortened(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def may_end(self) -> bool:
        """Whether the text is complete."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, [vocabulary]; none if the matcher gave up."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return np.zeros(self._vocab_size, dtype=np.bool_)
        mask = np.unpackbits(packed, count=self._vocab_size, bitorder="little").astype(np.bool_)
        mask[list(self._eos_ids)] = self.may_end
        return mask

    def allows(self, token: int) -> bool:
        return self.num_allowed([token]) == 1

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of the next tokens are allowed, up to the first that is not."""
        end = next((place for place, token in enumerate(tokens) if token in self._eos_ids), None)
        before_end = list(tokens if end is None else tokens[:end])
        count = int(self._matcher.validate_tokens(before_end)) if before_end else 0
        if count == end and self._may_end_after(before_end):
            return count + 1
        return count

    def _may_end_after(self, tokens: list[int]) -> bool:
        if not tokens:
            return self.may_end
        trial = self.copy()
        trial.advance(tokens)
        return trial.may_end

    def forced(self) -> list[int]:
        """Return the tokens that the grammar forces; empty if it leaves a choice."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def advance(self, tokens: Sequence[int]) -> None:
        """Take allowed tokens; an end of the text changes nothing."""
        written = [token for token in tokens if token not in self._eos_ids]
        if written:
            self._matcher.consume_tokens(written)


class ConstraintCompiler:
    """Makes matchers for one vocabulary. Not thread-safe; its matchers may be used in other threads.

    Making a compiler takes most of a second with 150,000 tokens, and holds the GIL.

    Args:
        vocabulary: encodes in any thread, one call at a time.
        vocab_size: the size of the model's predictions.

    Raises:
        ConstraintError: the model has no token to end a text with.
        MissingDependencyError: llguidance is not installed.
    """

    def __init__(self, vocabulary: ConstraintVocabulary, vocab_size: int) -> None:
        guidance = llguidance_module()
        self._guidance = guidance
        self._eos_ids = frozenset(token for token in vocabulary.eos_ids if 0 <= token < vocab_size)
        self._vocab_size = vocab_size
        require_end(self._eos_ids)
        self._tokenizer = guidance.LLTokenizer(
            guidance.TokenizerWrapper(_Tokens(vocabulary, vocab_size, self._eos_ids)),
            eos_token=sorted(self._eos_ids),
        )
        self._kept: OrderedDict[Constraint, TextMatcher] = OrderedDict()

    def compile(self, constraint: Constraint) -> TextMatcher:
        """Return a matcher at the beginning of a text.

        Raises:
            ConstraintError: the constraint cannot be compiled; the message says why.
        """
        if constraint in self._kept:
            self._kept.move_to_end(constraint)
        else:
            self._kept[constraint] = self._compile(constraint)
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
        return self._kept[constraint].copy()

    def _compile(self, constraint: Constraint) -> TextMatcher:
        guidance = self._guidance
        limits = guidance.LLParserLimits(**_LIMITS)
        try:
            grammar = grammar_of(constraint)
            compiled = guidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        except UnicodeEncodeError as broken:
            character = broken.object[broken.start]
            raise ConstraintError(f"{constraint.kind}: holds {character!r}, which is no character") from None
        matcher = TextMatcher(compiled, self._eos_ids, self._vocab_size)
        if (error := matcher.error) is not None:
            raise ConstraintError(f"{constraint.kind}: {error}")
        if not matcher.copy().allowed().any():
            raise ConstraintError(f"{constraint.kind}: no text fits it, or it is too large to follow")
        return matcher


class _Tokens:
    """A vocabulary in the form of ``llguidance.TokenizerWrapper``."""

    bos_token_id = None

    def __init__(self, vocabulary: ConstraintVocabulary, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._lock = Lock()
        self.eos_token_id = min(eos_ids)
        self.special_token_ids = sorted(eos_ids)
        # Tokens without bytes are never allowed: special ones, and padding of the vocabulary.
        self.tokens = [
            b"" if token in eos_ids else vocabulary.token_bytes(token) for token in range(vocab_size)
        ]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            # llguidance tries bytes first; after this error it passes text.
            raise TypeError("text is encoded, not bytes")
        with self._lock:
            return list(self._vocabulary.encode(text))


# --- off the event loop ------------------------------------------------------------------------------------


def find_break(text: str, matcher: TextMatcher) -> str | None:
    """Say where a whole text breaks a constraint on bytes, or ends before it is fulfilled; None: nowhere."""
    content = text.encode()
    num_allowed = matcher.num_allowed([*content, ByteVocabulary.end])
    if num_allowed > len(content):
        return None
    good = content[:num_allowed].decode(errors="ignore")
    place = f"behind {good[-40:]!r}" if good else "at its beginning"
    how = "breaks off too early" if num_allowed == len(content) else "breaks it"
    return f"it {how} {place}"


class BackgroundCompiler:
    """Compiles constraints in a thread, one after another.

    Args:
        make: makes the compiler, in that thread, at its first use.
    """

    def __init__(self, make: Callable[[], ConstraintCompiler]) -> None:
        self._make = make
        self._compiler: ConstraintCompiler | None = None
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def of_bytes(cls) -> BackgroundCompiler:
        """Return a compiler of constraints on bytes, which needs no model."""
        return cls(lambda: ConstraintCompiler(ByteVocabulary(), ByteVocabulary.size))

    def prepare(self) -> None:
        """Make the compiler now, and wait for it. If that fails, so does each constraint."""
        wait([self._thread().submit(self._get_compiler)])

    def start(self, constraint: Constraint) -> Future[TextMatcher]:
        """Start compiling; the future raises the errors of `ConstraintCompiler.compile`."""
        return self._thread().submit(lambda: self._get_compiler().compile(constraint))

    async def check(self, constraint: Constraint) -> None:
        """Compile a constraint.

        Raises:
            ConstraintError: it cannot be compiled, or not within `CHECK_SECONDS` of its turn.
        """
        compiling = self.start(constraint)
        result = asyncio.wrap_future(compiling)
        try:
            # One thread compiles for all, and the time of the others' constraints is not this one's.
            while not (compiling.running() or result.done()):
                await asyncio.wait({result}, timeout=_POLL_SECONDS)
            await asyncio.wait_for(result, CHECK_SECONDS)
        except asyncio.CancelledError:
            result.cancel()
            raise
        except TimeoutError:
            raise ConstraintError(
                f"{constraint.kind}: too large: compiling it takes longer than {CHECK_SECONDS:g} seconds"
            ) from None

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _thread(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="constraints")
        return self._executor

    def _get_compiler(self) -> ConstraintCompiler:
        if self._compiler is None:
            self._compiler = self._make()
        return self._compiler


def _shortened(error: str) -> str:
    """Return the first line of an error, and the reasons below the picture of an expression."""
    first, _, rest = error.strip().partition("\n")
    reasons = [line.removeprefix("error: ") for line in rest.splitlines() if line.startswith("error: ")]
    return " ".join([first, *reasons])[:300]
