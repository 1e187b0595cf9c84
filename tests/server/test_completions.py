"""Texts that are gone on with over HTTP, from the demonstration pair."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from reason_spec.server.replies import TextOffsets
from tests.server.serving import Serving

PROMPTS = ["The answer is", "First: 12+3=15. Then"]


def go_on(pair: Serving, prompt: Any, **more: Any) -> Any:
    """Return an answer with its fields that the client does not know."""
    more = {"max_tokens": 12, **more}
    return pair.client().completions.create(model="embedded", prompt=prompt, **more)


def tokens_of(pair: Serving, text: str) -> list[int]:
    return list(pair.accelerator.target.tokenizer.encode_prompt(text))


def test_text_and_its_tokens_are_one_prompt(pair: Serving) -> None:
    by_text = go_on(pair, PROMPTS[1])
    by_tokens = go_on(pair, tokens_of(pair, PROMPTS[1]))
    assert by_text.choices[0].text == by_tokens.choices[0].text != ""
    assert by_text.usage.prompt_tokens == by_tokens.usage.prompt_tokens == len(tokens_of(pair, PROMPTS[1]))


def test_several_prompts_have_their_choices_side_by_side(pair: Serving) -> None:
    alone = [go_on(pair, prompt).choices[0].text for prompt in PROMPTS]
    answer = go_on(pair, PROMPTS, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [alone[0], alone[0], alone[1], alone[1]]
    assert answer.usage.prompt_tokens == sum(len(tokens_of(pair, prompt)) for prompt in PROMPTS)
    by_tokens = go_on(pair, [tokens_of(pair, prompt) for prompt in PROMPTS])
    assert [choice.text for choice in by_tokens.choices] == alone


def test_a_stream_says_the_same_for_every_prompt(pair: Serving) -> None:
    whole = go_on(pair, PROMPTS)
    *chunks, last = go_on(pair, PROMPTS, stream=True, stream_options={"include_usage": True})
    for index, choice in enumerate(whole.choices):
        own = [one for chunk in chunks for one in chunk.choices if one.index == index]
        assert "".join(one.text for one in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_token_ends_a_text(pair: Serving) -> None:
    tokenizer = pair.accelerator.target.tokenizer
    tokens = tokenizer.encode(go_on(pair, PROMPTS[1]).choices[0].text)
    stop = tokens[4]
    expected = tokenizer.decode(tokens[: tokens.index(stop)])
    choice = go_on(pair, PROMPTS[1], extra_body={"stop_token_ids": [stop]}).choices[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (expected, "stop", stop)
    *_, last = chunks = list(go_on(pair, PROMPTS[1], extra_body={"stop_token_ids": [stop]}, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert last.choices[0].stop_reason == stop


def test_logprobs_are_those_of_the_tokens(pair: Serving) -> None:
    choice = go_on(pair, PROMPTS[0], logprobs=0).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens)
    assert choice.logprobs.text_offset[0] == 0
    pieces = [
        one.logprobs
        for chunk in go_on(pair, PROMPTS[0], logprobs=0, stream=True)
        for one in chunk.choices
        if one.logprobs
    ]
    assert [token for piece in pieces for token in piece.tokens] == choice.logprobs.tokens
    assert [place for piece in pieces for place in piece.text_offset] == choice.logprobs.text_offset


@pytest.mark.parametrize("prompt", [[2**40], [-1], [[1, 10**9]]])
def test_tokens_that_there_are_not_are_refused(pair: Serving, prompt: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        go_on(pair, prompt)
    assert caught.value.param == "prompt"


def test_the_tokens_of_one_character_have_one_place() -> None:
    offsets = TextOffsets()
    pieces = [*(bytes([byte]) for byte in "😀".encode()), b" a", b"b"]
    assert [offsets.next(piece) for piece in pieces] == [0, 0, 0, 0, 1, 3]
