"""A generation followed token by token: where it ends does not depend on how its tokens arrive."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.output import RequestOutput
from reason_spec.engines.scripted import END_OF_TEXT, ScriptedTokenizer
from reason_spec.types import Prefix, Usage

TOKENIZER = ScriptedTokenizer()
TOKENS = (*TOKENIZER.encode("a b c.\n\n7"), END_OF_TEXT)


@given(
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=20),
    st.frozensets(st.sampled_from(TOKENS[:-1]), max_size=3),
    st.integers(1, 5),
)
def test_a_text_ends_before_its_first_stop_token_however_it_comes(
    tokens: list[int], stop_ids: frozenset[int], size: int
) -> None:
    written = RequestOutput(EngineRequest(Prefix((1,)), 100, stop_ids=stop_ids), TOKENIZER, 100)
    ends = {*stop_ids, END_OF_TEXT}
    before = list(takewhile(lambda token: token not in ends, tokens))
    foreseen = written.length_to_end(tokens)
    for start in range(0, len(tokens), size):
        if written.finish is None:
            run = tokens[start : start + size]
            written.extend(run, [0.0] * len(run))
    assert written.tokens == tokens[: len(before) + 1]
    assert written.result(written.finish or "length", Usage()).text == TOKENIZER.decode(before)
    if len(before) == len(tokens):
        assert (written.finish, foreseen) == (None, None)
    else:
        assert foreseen == len(before) + 1
        assert written.finish == ("stop" if tokens[len(before)] in stop_ids else "eos")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 6)),
)
def test_deltas_hold_all_tokens_and_only_the_first_may_come_early(
    sizes: list[int], delta_tokens: int, first: int | None
) -> None:
    request = EngineRequest(Prefix((1,)), 100, delta_tokens=delta_tokens, first_delta_tokens=first)
    written = RequestOutput(request, TOKENIZER, 100)
    token = TOKENIZER.encode("a")[0]
    delivered = []
    for size in sizes:
        written.extend([token] * size, [0.0] * size)
        if (delta := written.take_delta()) is not None:
            delivered.append(len(delta.tokens))
    waiting = sum(sizes) - sum(delivered)
    assert waiting < max(delta_tokens, first or 0)
    if delivered:
        assert delivered[0] >= (delta_tokens if first is None else first)
    if first is None:
        assert all(size >= delta_tokens for size in delivered)
    else:
        assert all(size >= delta_tokens for size in delivered[2:])
