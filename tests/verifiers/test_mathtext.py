"""What reading saves - passes that cannot apply, paragraphs read before - changes no token."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.verifiers import mathtext
from reason_spec.verifiers.claims import read_claims, read_known
from reason_spec.verifiers.latex import normalize
from reason_spec.verifiers.scanner import Token, scan

STEPS = [
    text.strip()
    for file in ("reworded_pairs.jsonl", "changed_pairs.jsonl")
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    for text in (json.loads(line)["a"], json.loads(line)["b"])
]
WORDS = sorted(
    {*mathtext._UNITS, *mathtext._TENS, *mathtext._SCALES, *mathtext._MULTIPLES, *mathtext._PLURAL_PARTS}
)
PIECES = (
    "a I x twice half three twenty-five dozen percent degree degrees % $ 50 cent cents dollar dollars "
    "squared cubed of every each out in plus minus divided multiplied equal gives makes yields are 2 1/2 "
    "3^2 10^-3 4.5 1,000 -3 - + * / ^ = ≈ ( ) ! _ ** per by times equals is about first km apples Tom's "
    "root floor A \\frac{1}{2} \\times \\[ \\] $x$ . , ; :"
).split()


def tokens_with_every_pass(text: str) -> tuple[Token, ...]:
    """Every pass, tried at every token."""
    tokens = scan(normalize(text))
    for fold, _ in mathtext._PASSES:
        tokens = mathtext._rewrite(tokens, fold)
    return tuple(tokens)


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PIECES) | st.sampled_from(WORDS), st.sampled_from(["", " "])), max_size=14
    )
)
def test_passes_are_skipped_only_where_they_would_change_nothing(pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece + space for piece, space in pieces)
    assert mathtext._tokenize_paragraph(text) == tokens_with_every_pass(text)


def test_real_steps_are_read_alike_by_all_passes_and_by_those_that_apply() -> None:
    for text in STEPS:
        assert mathtext._tokenize_paragraph(text) == tokens_with_every_pass(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5))
def test_steps_are_read_one_by_one_as_they_are_read_together(steps: list[str]) -> None:
    text = "\n\n".join(steps)
    assert mathtext.tokenize(text) == tokens_with_every_pass(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5))
def test_a_context_claims_what_it_claims_read_as_one_text(steps: list[str]) -> None:
    text = "\n\n".join(steps)
    known, claims = read_known(text), read_claims(text)
    assert known.quantities == claims.quantities
    assert known.symbols == claims.symbols
    assert known.open_relations == {r.canonical for r in claims.relations if r.truth == "open"}
    assert known.expressions == {e.canonical for e in claims.expressions}
