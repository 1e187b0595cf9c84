"""Constraints on a text, token by token: what may come next, and whether the text may end.

The grammars are llguidance's (https://github.com/guidance-ai/llguidance). A matcher is built for one
vocabulary, from the bytes of its tokens, so that what it allows is what the text will hold.

Schemas come from strangers: their size, the size of the grammar they make and the time they take are
bounded. A matcher that runs into a bound while a text is written says so, and the generation fails.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from decimal import Decimal
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from reason_spec.errors import ConstraintError, MissingDependencyError
from reason_spec.types import Constraint

MAX_CHARS: Final = 1 << 16
"""Characters of a schema, an expression, a grammar, or all choices together."""
MAX_CHOICES: Final = 4096
CHECK_SECONDS: Final = 10.0
_MAX_MULTIPLE: Final = 10_000
"""The automaton of ``multipleOf`` has a state for each remainder, and no limit of llguidance counts them."""
_WHITESPACE: Final = r"( |\n {0,20}|\n\t{0,10})?"
"""Between the parts of JSON: a space or an indented line, as JSON is written. Models that were not trained on
JSON would write blanks for ever."""
_JSON_OPTIONS: Final = {"whitespace_pattern": _WHITESPACE, "lenient": False}
_LIMITS: Final = {
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
_LARK_TOKEN: Final = re.compile(r""""(?:[^"\\\n]|\\.)*"|(?://|#)[^\n]*|/(?:[^/\\\n]|\\.)+/|%json\s*""")
"""A schema's beginning in a Lark grammar, and what may hold the same word: texts, comments, expressions."""
_NUM_KEPT: Final = 16


class Vocabulary(Protocol):
    """What a matcher needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def token_bytes(self, token: int) -> bytes: ...


class ByteVocabulary:
    """Bytes as tokens, and an end of the text: checks texts that have no tokens yet."""

    end: Final = 256
    size: Final = 257
    eos_ids: Final = frozenset({end})

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == self.end else bytes([token])


# --- grammars --------------------------------------------------------------------------------------------


def grammar_of(constraint: Constraint) -> str:
    """Return a constraint as llguidance reads it; whether it compiles is not known yet.

    Raises:
        ConstraintError: it is too large, or its schema is no JSON schema.
        MissingDependencyError: llguidance is not installed.
    """
    matcher = _llguidance().LLMatcher
    _check_size(constraint)
    if constraint.json_schema is not None:
        return str(matcher.grammar_from_json_schema(bounded_schema(constraint.json_schema)))
    if constraint.regex is not None:
        return str(matcher.grammar_from_regex(constraint.regex))
    if constraint.choice:
        words = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in constraint.choice)
        return str(matcher.grammar_from_lark(f"start: {words}"))
    assert constraint.grammar is not None
    return str(matcher.grammar_from_lark(bounded_grammar(constraint.grammar)))


def structured_outputs(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as vLLM's server has it in a request, under ``structured_outputs``.

    Raises:
        ConstraintError: it is too large, or its schema is no JSON schema.
    """
    _check_size(constraint)
    if constraint.json_schema is not None:
        return {"json": read_schema(constraint.json_schema)}
    if constraint.choice:
        return {"choice": list(constraint.choice)}
    return {constraint.kind: getattr(constraint, constraint.kind)}


def _check_size(constraint: Constraint) -> None:
    texts = (constraint.json_schema, constraint.regex, constraint.grammar, *constraint.choice)
    num_chars = sum(len(text) for text in texts if text is not None)
    if num_chars > MAX_CHARS:
        raise ConstraintError(f"{constraint.kind} has {num_chars} characters; at most {MAX_CHARS} are read")
    if len(constraint.choice) > MAX_CHOICES:
        raise ConstraintError(f"choice has {len(constraint.choice)} texts; at most {MAX_CHOICES} are read")


def read_schema(text: str) -> dict[str, Any] | bool:
    """Read a JSON schema; what its keywords say is not looked at.

    Raises:
        ConstraintError: it is no JSON, or no schema.
    """
    try:
        schema = json.loads(text)
    except RecursionError:
        raise ConstraintError("json_schema: it is nested too deeply") from None
    except ValueError as error:
        raise ConstraintError(f"json_schema: this is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise ConstraintError(f"json_schema: a schema is an object or a boolean, not {text[:40]!r}")
    return schema


def bounded_schema(text: str) -> str:
    """Return a JSON schema with our options for llguidance in the place of any of its own.

    Raises:
        ConstraintError: it is no JSON, no schema, or asks for multiples of a number that is too large.
    """
    schema = read_schema(text)
    _check_multiples(schema, "json_schema")
    return _with_options(schema)


def bounded_grammar(text: str) -> str:
    """Return a Lark grammar with the schemas behind ``%json`` bounded as `bounded_schema` does.

    Raises:
        ConstraintError: what stands there is no JSON schema, or asks for multiples of numbers that are too
            large together.
    """
    schemas: list[Any] = []
    parts: list[str] = []
    place = 0
    while (found := _LARK_TOKEN.search(text, place)) is not None:
        start, place = place, found.end()
        parts.append(text[start:place])
        if found[0].startswith("%json"):
            schema, place = _schema_at(text, place)
            schemas.append(schema)
            parts.append(_with_options(schema))
    _check_multiples(schemas, "grammar")
    return "".join([*parts, text[place:]])


def _schema_at(text: str, place: int) -> tuple[dict[str, Any] | bool, int]:
    """Return the schema that begins at a place of a grammar, and where it ends."""
    try:
        schema, end = json.JSONDecoder().raw_decode(text, place)
    except (ValueError, RecursionError):
        raise ConstraintError("grammar: behind %json stands no JSON, or it is nested too deeply") from None
    if not isinstance(schema, dict | bool):
        raise ConstraintError(
            f"grammar: %json: a schema is an object or a boolean, not {text[place:end][:40]!r}"
        )
    return schema, end


def _check_multiples(schema: Any, kind: str) -> None:
    try:
        bound = math.lcm(*_scaled(list(_multiples(schema))))
    except (RecursionError, ArithmeticError):
        raise ConstraintError(f"{kind}: it is nested too deeply, or a multipleOf is no number") from None
    if bound > _MAX_MULTIPLE:
        raise ConstraintError(
            f"{kind}: multipleOf: the numbers of a schema may have {_MAX_MULTIPLE} as their least "
            "common multiple at most, in units of their last decimal place"
        )


def _with_options(schema: dict[str, Any] | bool) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema)


def _multiples(schema: Any) -> Iterator[Decimal]:
    """Yield each number that stands behind a key ``multipleOf``, wherever that is."""
    if isinstance(schema, dict):
        value = schema.get("multipleOf")
        if isinstance(value, int | float) and value:
            yield Decimal(str(value))
        for child in schema.values():
            yield from _multiples(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _multiples(child)


def _scaled(numbers: Sequence[Decimal]) -> list[int]:
    """Return numbers in units of the last decimal place of any."""
    exponents = [number.as_tuple().exponent for number in numbers]
    places = -min([0, *(exponent for exponent in exponents if isinstance(exponent, int))])
    if places > 30 or any(number.adjusted() > 30 for number in numbers):
        return [_MAX_MULTIPLE + 1]
    return [abs(int(number.scaleb(places))) for number in numbers]


def require_end(eos_ids: frozenset[int]) -> None:
    """Raise ConstraintError for a model that cannot end a text: it could fulfil no constraint."""
    if not eos_ids:
        raise ConstraintError(
            "the model's tokenizer names no token that ends the text, so nothing can be constrained; "
            "set eos_token in its tokenizer_config.json"
        )


# --- matchers --------------------------------------------------------------------------------------------


class TextMatcher:
    """Follows one text under a constraint.

    The end of the text is allowed where the grammar accepts, and is never consumed: a text that ended
    has nothing to follow. ``error`` says why the matcher gave up; it allows nothing from then on.
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
        """Whether the text fulfils the constraint as it is."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, [vocabulary]; none where the matcher gave up."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return np.zeros(self._vocab_size, dtype=np.bool_)
        mask = np.unpackbits(packed, count=self._vocab_size, bitorder="little").astype(np.bool_)
        mask[list(self._eos_ids)] = self.may_end
        return mask

    def allows(self, token: int) -> bool:
        return self.num_allowed([token]) == 1

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens, from the first on, may come next; an end counts as the last."""
        end = next((place for place, token in enumerate(tokens) if token in self._eos_ids), None)
        behind = list(tokens if end is None else tokens[:end])
        count = int(self._matcher.validate_tokens(behind)) if behind else 0
        if count == end and self._may_end_behind(behind):
            return count + 1
        return count

    def _may_end_behind(self, tokens: list[int]) -> bool:
        if not tokens:
            return self.may_end
        trial = self.copy()
        trial.advance(tokens)
        return trial.may_end

    def forced(self) -> list[int]:
        """Return the tokens that write what must come next; empty where there is a choice."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def advance(self, tokens: Sequence[int]) -> None:
        """Take tokens that are allowed; an end changes nothing."""
        written = [token for token in tokens if token not in self._eos_ids]
        if written:
            self._matcher.consume_tokens(written)


class ConstraintCompiler:
    """Makes matchers for one vocabulary. Not thread-safe, while its matchers may be used elsewhere.

    To make one takes most of a second with 150,000 tokens, in which no other thread of Python runs.

    Args:
        vocabulary: encodes in any thread, so that nothing else may encode with it meanwhile.
        vocab_size: how many tokens the model predicts.

    Raises:
        ConstraintError: the model has no token to end a text with.
        MissingDependencyError: llguidance is not installed.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        guidance = _llguidance()
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
            ConstraintError: the constraint cannot be kept to; the message says what is wrong in it.
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
        grammar = grammar_of(constraint)
        limits = guidance.LLParserLimits(**_LIMITS)
        compiled = guidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        matcher = TextMatcher(compiled, self._eos_ids, self._vocab_size)
        if (error := matcher.error) is not None:
            raise ConstraintError(f"{constraint.kind}: {error}")
        if not matcher.copy().allowed().any():
            raise ConstraintError(f"{constraint.kind}: no text fits it, or it is too large to follow")
        return matcher


class _Tokens:
    """A vocabulary in the form of ``llguidance.TokenizerWrapper``."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._lock = Lock()
        self.eos_token_id = min(eos_ids)
        self.special_token_ids = sorted(eos_ids)
        # Without bytes a token is never allowed: special ones, and the padding of the model.
        self.tokens = [
            b"" if token in eos_ids else vocabulary.token_bytes(token) for token in range(vocab_size)
        ]

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            # llguidance tries bytes once, and then passes text alone.
            raise TypeError("text is encoded, not bytes")
        with self._lock:
            return list(self._vocabulary.encode(text))


# --- off the event loop ------------------------------------------------------------------------------------


class BackgroundCompiler:
    """Compiles in a thread of its own, one constraint after another, so that nothing else waits.

    Args:
        make: makes the compiler, in that thread, when it is needed first.
    """

    def __init__(self, make: Callable[[], ConstraintCompiler]) -> None:
        self._make = make
        self._compiler: ConstraintCompiler | None = None
        self._executor: ThreadPoolExecutor | None = None

    @classmethod
    def of_bytes(cls) -> BackgroundCompiler:
        """Return one that checks constraints, and texts under them, without a model's vocabulary."""
        return cls(lambda: ConstraintCompiler(ByteVocabulary(), ByteVocabulary.size))

    def prepare(self) -> None:
        """Make the compiler now, and wait for it. Where that fails, each constraint will say why."""
        wait([self._thread().submit(self._get_compiler)])

    def start(self, constraint: Constraint) -> Future[TextMatcher]:
        """Begin to compile; the future raises what `ConstraintCompiler.compile` does."""
        return self._thread().submit(lambda: self._get_compiler().compile(constraint))

    async def check(self, constraint: Constraint) -> None:
        """Wait until a constraint is known to compile.

        Raises:
            ConstraintError: it does not, or not within `CHECK_SECONDS`.
        """
        try:
            await asyncio.wait_for(asyncio.wrap_future(self.start(constraint)), CHECK_SECONDS)
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
    """Return the first line of an error, and what a parser of expressions says below its picture."""
    first, _, rest = error.strip().partition("\n")
    reasons = [line.removeprefix("error: ") for line in rest.splitlines() if line.startswith("error: ")]
    return " ".join([first, *reasons])[:300]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingDependencyError("llguidance", "a constraint on the text") from None
    return llguidance
