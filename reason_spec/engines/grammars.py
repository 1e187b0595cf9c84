"""Constraints as grammars of llguidance, and as fields of vLLM's requests.

Clients send schemas and grammars, so their sizes, the sizes of their automata and the time to compile them
are bounded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from reason_spec.errors import ConstraintError, MissingDependencyError
from reason_spec.types import Constraint

MAX_CHARS: Final = 1 << 16
"""The most characters of a schema, an expression, a grammar, or all choices together."""
MAX_CHOICES: Final = 4096
_MAX_MULTIPLE: Final = 10_000
"""The automaton of ``multipleOf`` has a state for each remainder, and no limit of llguidance counts them."""
_WHITESPACE: Final = r"( |\n {0,20}|\n\t{0,10})?"
"""Whitespace in JSON: a space or an indented line. Without a bound some models generate blanks for ever."""
_JSON_OPTIONS: Final = {"whitespace_pattern": _WHITESPACE, "lenient": False}
_LARK_TOKEN: Final = re.compile(r""""(?:[^"\\\n]|\\.)*"?|(?://|#)[^\n]*|/(?:[^/\\]|\\.)+/?|%json\s*""")
"""The beginning of a schema in a Lark grammar, and tokens that may contain the same word.

A token that is not closed, which llguidance refuses, matches too: else each of its quotes or slashes would be
tried as a beginning, each time to the end of the text."""


def grammar_of(constraint: Constraint) -> str:
    """Return a constraint as a grammar of llguidance, which may still fail to compile.

    Raises:
        ConstraintError: it is too large, or its schema is no JSON schema.
        MissingDependencyError: llguidance is not installed.
    """
    matcher = llguidance_module().LLMatcher
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
    """Return a constraint as the field ``structured_outputs`` of vLLM's requests.

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
    """Parse a JSON schema without checking its keywords.

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
    """Return a JSON schema with our options for llguidance; they replace its own.

    Raises:
        ConstraintError: it is no JSON, no schema, or asks for multiples of a number that is too large.
    """
    schema = read_schema(text)
    _check_multiples(schema, "json_schema")
    return _with_options(schema)


def bounded_grammar(text: str) -> str:
    """Return a Lark grammar with the schemas after ``%json`` bounded as `bounded_schema` does.

    Raises:
        ConstraintError: one of them is no JSON schema, or their ``multipleOf`` numbers are too large
            together.
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
    """Return the schema that begins at a place of a grammar, and the place of its end."""
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
    except (RecursionError, ArithmeticError, ValueError):
        raise ConstraintError(f"{kind}: it is nested too deeply, or a multipleOf is no number") from None
    if bound > _MAX_MULTIPLE:
        raise ConstraintError(
            f"{kind}: multipleOf: the numbers of a schema may have {_MAX_MULTIPLE} as their least "
            "common multiple at most, in units of their last decimal place"
        )


def _with_options(schema: dict[str, Any] | bool) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema)


def _multiples(schema: Any) -> Iterator[Decimal]:
    """Yield the values of all keys ``multipleOf``."""
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


def llguidance_module() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingDependencyError("llguidance", "a constraint on the text") from None
    return llguidance
