"""A generation followed token by token: where it ends does not depend on how its tokens arrive."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from reason_spec.engines.base import EngineRequest
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
