"""Matchers: what they allow is what fits, and what cannot be compiled is refused with its reason."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.engines import constraints
from reason_spec.engines.constraints import (
    BackgroundCompiler,
    ByteVocabulary,
    ConstraintCompiler,
    TextMatcher,
)
from reason_spec.engines.grammars import MAX_CHARS, bounded_grammar, bounded_schema, structured_outputs
from reason_spec.errors import ConstraintError, RequestError
from reason_spec.types import Constraint

END = ByteVocabulary.end
NAMED = {
    "type": "object",
    "properties": {"name": {"enum": ["é", "b"]}, "n": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    Constraint(json_schema=json.dumps(NAMED)),
    Constraint(json_schema="{}"),
    Constraint(regex=r"[a-c]{2,4}([0-9]|é)?"),
    Constraint(choice=("yes", 'a "b"\n😀', "")),
    Constraint(grammar='start: "a" /b{2,3}/'),
]


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(ByteVocabulary(), ByteVocabulary.size)


@settings(max_examples=40)
@given(st.sampled_from(CONSTRAINTS), st.integers(0, 2**32), st.integers(0, 40))
def test_any_way_along_the_masks_is_a_text_that_fits(
    compiler: ConstraintCompiler, constraint: Constraint, seed: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    matcher = compiler.compile(constraint)
    written: list[int] = []
    while len(written) < length:
        allowed = matcher.allowed()
        assert allowed[END] == matcher.may_end
        token = int(rng.choice(np.flatnonzero(allowed)))
        assert matcher.allows(token)
        wrong = int(rng.integers(256))
        assert matcher.allows(wrong) == allowed[wrong]
        written.append(token)
        if token == END:
            break
        matcher.advance([token])
        assert matcher.error is None
    fresh = compiler.compile(constraint)
    assert fresh.num_allowed(written) == len(written)
    assert fresh.num_allowed([*written, END, END]) == len(written) + (
        written[-1:] != [END] and matcher.may_end
    )
    if written[-1:] == [END]:
        text = bytes(written[:-1]).decode()
        if constraint.json_schema is not None:
            json.loads(text)
        elif constraint.choice:
            assert text in constraint.choice
        else:
            assert re.fullmatch(constraint.regex or "ab{2,3}", text)


def test_what_has_to_come_is_forced_and_nothing_else(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(Constraint(choice=("one half", "one third")))
    assert bytes(matcher.forced()) == b"one "
    matcher.advance(list(b"one t"))
    assert bytes(matcher.forced()) == b"hird"
    matcher.advance(list(b"hird"))
    assert matcher.forced() == []
    assert matcher.may_end


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint(json_schema='{"type": "objekt"}'), "json_schema: Invalid type: objekt"),
        (Constraint(json_schema='{"type":'), "this is no JSON"),
        (Constraint(json_schema='{}}], "x": [{'), "this is no JSON"),
        (Constraint(json_schema="[1]"), "a schema is an object or a boolean"),
        (Constraint(json_schema='{"not": {}}'), 'Unimplemented keys: ."not".'),
        (Constraint(json_schema='{"not": {}, "x-guidance": {"lenient": true}}'), "Unimplemented keys"),
        (Constraint(json_schema='{"enum": []}'), "Unsatisfiable"),
        (Constraint(json_schema='{"$ref": "https://example.org/a"}'), "https://example.org/a"),
        (Constraint(json_schema='{"a":' * 5000 + "1" + "}" * 5000), "nested too deeply"),
        (Constraint(json_schema='{"items": {"multipleOf": 99991}}'), "multipleOf"),
        (Constraint(json_schema='{"allOf": [{"multipleOf": 0.01}, {"multipleOf": 101}]}'), "multipleOf"),
        (Constraint(json_schema='{"multipleOf": 1e-300}'), "multipleOf"),
        (Constraint(json_schema='{"multipleOf": NaN}'), "a multipleOf is no number"),
        (Constraint(regex="(a"), "regex: .*unclosed group"),
        (Constraint(regex=r"[^\s\S]"), "regex: no text fits"),
        (Constraint(regex="a" * (MAX_CHARS + 1)), f"at most {MAX_CHARS}"),
        (Constraint(choice=("a",) * 5000), "choice has 5000 texts"),
        (Constraint(grammar='start: %json {"items": {"multipleOf": 99991}}'), "grammar: multipleOf"),
        (
            Constraint(grammar='start: a | b\na: %json{"multipleOf": 101}\nb: %json{"multipleOf": 103}'),
            "multipleOf",
        ),
        (Constraint(grammar='start: /"/ %json\n{"multipleOf": 99991} /"/'), "grammar: multipleOf"),
        (Constraint(grammar='start: /a\nb/ %json {"multipleOf": 99991} /c/'), "grammar: multipleOf"),
        (Constraint(grammar="start: %json [1]"), "a schema is an object or a boolean"),
        (Constraint(grammar="start: %json {"), "behind %json stands no JSON"),
        (Constraint(grammar='start: %json {"not": {}, "x-guidance": {"lenient": true}}'), "Unimplemented"),
        (Constraint(grammar="start: foo"), 'grammar: .*unknown name: "foo"'),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else None,
)
async def test_what_cannot_be_kept_to_is_refused_with_its_reason(constraint: Constraint, reason: str) -> None:
    background = BackgroundCompiler.of_bytes()
    with pytest.raises(ConstraintError, match=reason) as caught:
        await background.check(constraint)
    assert isinstance(caught.value, RequestError)
    assert len(str(caught.value)) < 400
    background.close()


class WaitingCompiler(ConstraintCompiler):
    """Compiles once it is let go."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__(ByteVocabulary(), ByteVocabulary.size)
        self.go = go

    def compile(self, constraint: Constraint) -> TextMatcher:
        assert self.go.wait(30), "the event loop waits for what it compiles"
        return super().compile(constraint)


async def test_checks_do_not_wait_on_the_event_loop() -> None:
    go = threading.Event()
    background = BackgroundCompiler(lambda: WaitingCompiler(go))
    checks = [asyncio.create_task(background.check(constraint)) for constraint in CONSTRAINTS]
    await asyncio.sleep(0)
    assert not any(check.done() for check in checks)
    # Reached only where the loop is free while constraints are compiled.
    go.set()
    assert await asyncio.gather(*checks) == [None] * len(CONSTRAINTS)
    background.close()


async def test_a_constraint_that_takes_too_long_is_given_up_and_its_time_is_not_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constraints, "CHECK_SECONDS", 0.2)
    go = threading.Event()
    background = BackgroundCompiler(lambda: WaitingCompiler(go))
    first, second = (asyncio.create_task(background.check(constraint)) for constraint in CONSTRAINTS[:2])
    with pytest.raises(ConstraintError, match=r"longer than 0\.2 seconds"):
        await first
    await asyncio.sleep(0.2)
    # Long enough for a busy machine; counted from its start the time of the second is over by now.
    monkeypatch.setattr(constraints, "CHECK_SECONDS", 60.0)
    go.set()
    await second
    background.close()


def test_a_matcher_beyond_its_limits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(constraints._LIMITS, "step_max_items", 60)
    words = " | ".join(f'"{chr(97 + i % 26)}" x{i}' for i in range(100))
    rules = "\n".join(f'x{i}: "{i}"' for i in range(100))
    compiler = ConstraintCompiler(ByteVocabulary(), ByteVocabulary.size)
    matcher = compiler.compile(Constraint(grammar=f"start: /[0-9]{{3}}/ word\nword: {words}\n{rules}"))
    assert matcher.allowed().any()
    matcher.advance(list(b"123"))
    assert not matcher.allowed().any()
    assert "oo many items" in (matcher.error or "")
    assert matcher.num_allowed([97]) == 0


def test_blanks_between_the_parts_of_json_come_to_an_end(compiler: ConstraintCompiler) -> None:
    matcher = compiler.compile(CONSTRAINTS[0])
    assert matcher.num_allowed(list(b"{" + b" " * 50)) == 2
    assert matcher.num_allowed(list(b"{\n\n")) == 2
    assert matcher.num_allowed(list(b"{\n" + b" " * 50)) == 22
    assert matcher.num_allowed(list(b'{\n    "name" : "b"\n}')) == 20
    assert json.loads(bounded_schema("true")) is True


def test_a_schema_within_a_grammar_binds_as_one_by_itself(compiler: ConstraintCompiler) -> None:
    grammar = f'start: "// %json {{" /x"/ n // %json {{\nn: "n: " %json {json.dumps(NAMED)} "!"'
    matcher = compiler.compile(Constraint(grammar=grammar))
    text = '// %json {x"n: {"name": "b"}!'
    assert matcher.num_allowed(list(text.encode())) == len(text)
    spaced = '// %json {x"n: {' + " " * 50
    assert matcher.num_allowed(list(spaced.encode())) == len(spaced) - 49
    assert bounded_grammar(bounded_grammar(grammar)) == bounded_grammar(grammar)


@pytest.mark.parametrize("opened", [r'"' + r"\"" * 32_700, r"/" + r"\/" * 32_700])
def test_a_token_that_is_not_closed_is_read_once(opened: str) -> None:
    grammar = f"start: {opened}"
    started = time.process_time()
    assert bounded_grammar(grammar) == grammar
    assert time.process_time() - started < 0.5


def test_exactly_one_kind_is_given() -> None:
    with pytest.raises(ValueError, match="none of them"):
        Constraint()
    with pytest.raises(ValueError, match="json_schema, choice"):
        Constraint(json_schema="{}", choice=("a",))
    assert Constraint(regex="").kind == "regex"


def test_a_model_without_an_end_of_text_is_told_so() -> None:
    vocabulary = ByteVocabulary()
    with pytest.raises(ConstraintError, match="names no token that ends the text"):
        ConstraintCompiler(vocabulary, ByteVocabulary.end)


def test_servers_are_told_the_constraint_as_it_was_given() -> None:
    assert [structured_outputs(constraint) for constraint in CONSTRAINTS] == [
        {"json": NAMED},
        {"json": {}},
        {"regex": r"[a-c]{2,4}([0-9]|é)?"},
        {"choice": ["yes", 'a "b"\n😀', ""]},
        {"grammar": 'start: "a" /b{2,3}/'},
    ]


@pytest.mark.parametrize(
    "text", [{"regex": "\ud800"}, {"choice": ("\ud800", "a")}, {"grammar": 'start: "\ud800"'}]
)
def test_half_a_character_is_an_error_of_the_constraint(text: dict[str, Any]) -> None:
    compiler = ConstraintCompiler(ByteVocabulary(), 257)
    with pytest.raises(ConstraintError, match="which is no character"):
        compiler.compile(Constraint(**text))
