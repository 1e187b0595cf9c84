"""One streamed completion of a server, from its choices to tokens."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.remote.completion import TokenCompletion, tokens_that_end_a_step
from reason_spec.engines.remote.servers import ServerError
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.segment import Boundary
from reason_spec.types import Prefix


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"text": "a", "token_ids": ["x"]}, "it sent ['x'] as token ids"),
        ({"text": "a", "token_ids": {"0": 5}}, "it sent {'0': 5} as token ids"),
        ({"text": "a", "token_ids": [20], "logprobs": ["high"]}, "as log-probabilities"),
        ({"text": "a", "token_ids": [20], "logprobs": {"token_logprobs": "-1"}}, "as log-probabilities"),
    ],
)
def test_a_choice_of_another_form_is_an_error_of_the_server(
    prompt: Prefix, tokenizer: HuggingFaceTokenizer, choice: dict[str, Any], expected: str
) -> None:
    completion = TokenCompletion(EngineRequest(prompt, 5), tokenizer, 512, frozenset())
    with pytest.raises(ServerError, match=re.escape(expected)):
        completion.take(choice)


def test_ids_that_end_a_step_are_those_that_hold_its_end(tokenizer: HuggingFaceTokenizer) -> None:
    ends = tokens_that_end_a_step(tokenizer, Boundary())
    assert {tokenizer.token_bytes(token) for token in ends} == {b"\n\n", b".\n\n"}
    assert tokens_that_end_a_step(tokenizer, Boundary(delimiter="123")) == {tokenizer.encode("123")[0]}
