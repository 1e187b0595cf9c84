"""Stop strings in content: what is handed on, in which order, and where it ends."""

from __future__ import annotations

import pytest

from reason_spec.chat.base import ChatSampling, TextDelta, ToolCallDelta
from reason_spec.chat.call_forms import Found
from reason_spec.chat.content_stops import ContentStops
from tests.chat.channel_agent import FINAL, HEADER, NEXT, OSLO, THOUGHT, agent, asks
from tests.chat.scripted import answer_of
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer

CALL = ToolCallDelta(0, "{}", "call_0", "wait")
THINKS = TextDelta("reasoning", "Hm.")
GAP = TextDelta("content", "\n\n")


@pytest.mark.parametrize(
    ("fed", "handed_on", "closed", "hit"),
    [
        (["one two"], ["one two"], [], None),
        (["one STOP two"], ["one "], [], "STOP"),
        (["one S", "TOP two"], ["one "], [], "STOP"),
        (["one ST", "ONE"], ["one ", "STONE"], [], None),
        (["one ST"], ["one "], ["ST"], None),
        (["STOP"], [], [], "STOP"),
        (["one ST", CALL, "OP two"], ["one ", "ST", CALL, "OP two"], [], None),
        (["one ST", THINKS, "OP two"], ["one ", "ST", THINKS, "OP two"], [], None),
        (["one ST", GAP, "OP two"], ["one ", "ST", GAP, "OP two"], [], None),
        (["one.", GAP, "two"], ["one", ".", GAP, "two"], [], None),
        (["one ST", CALL, "two STOP three"], ["one ", "ST", CALL, "two "], [], "STOP"),
        (["one STOP two", CALL, THINKS, "three"], ["one "], [], "STOP"),
    ],
)
def test_content_ends_at_the_first_stop_of_one_message(
    fed: list[Found], handed_on: list[Found], closed: list[str], hit: str | None
) -> None:
    stops = ContentStops(("STOP", ".\n\ntwo"))
    assert [one for found in fed for one in stops.feed([found])] == handed_on
    assert list(stops.close()) == closed
    assert stops.hit == hit
    content = [one for one in (*handed_on, *closed) if isinstance(one, str)]
    assert stops.num_passed_on == len("".join(content))


SAID = "It is 18 degrees."
BEFORE = f"{THOUGHT}<|end|>{FINAL}"
"""The tokens that the model generates before the content."""


def num_tokens(text: str) -> int:
    return len(TemplateTokenizer(GPT_OSS).encode(text))


@pytest.mark.parametrize("logprobs", [False, True])
async def test_an_answer_with_a_stop_has_the_tokens_up_to_it(logprobs: bool) -> None:
    async with agent(f"{FINAL}{SAID}\n\nOr not.") as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop=("18",)), logprobs=logprobs))
    assert (answer.content, answer.end.finish, answer.end.stop) == ("It is ", "stop", "18")
    assert answer.end.num_tokens == num_tokens(f"{BEFORE}It is 18")


async def test_a_stop_that_is_found_at_the_end_is_one() -> None:
    async with agent(f"{FINAL}Yes <|en") as (chat, _):
        whole = await answer_of(chat, asks())
        stopped = await answer_of(chat, asks(sampling=ChatSampling(stop=("<|en",))))
    assert (whole.content, whole.end.stop) == ("Yes <|en", None)
    assert (stopped.content, stopped.end.finish, stopped.end.stop) == ("Yes ", "stop", "<|en")
    assert stopped.end.num_tokens == whole.end.num_tokens


async def test_a_stop_at_the_limit_is_no_cut() -> None:
    most = num_tokens(f"{BEFORE}Yes <|en")
    async with agent(f"{FINAL}Yes <|en") as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop=("<|en",), max_tokens=most)))
    assert (answer.content, answer.end.finish, answer.end.stop) == ("Yes ", "stop", "<|en")
    assert answer.end.num_tokens == most


async def test_the_empty_line_between_two_messages_is_no_stop() -> None:
    text = f"<|channel|>commentary<|message|>I look.{NEXT}{FINAL}Warm."
    async with agent(text) as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop=("\n\n", ".\n\nWarm"))))
    assert (answer.content, answer.end.stop) == ("I look.\n\nWarm.", None)


async def test_a_call_before_a_stop_stays() -> None:
    async with agent(f"{HEADER}{OSLO}{NEXT}{FINAL}{SAID}") as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop=("18",))))
    assert [call.arguments for call in answer.tool_calls] == [OSLO]
    assert (answer.content, answer.end.finish, answer.end.stop) == ("It is ", "tool_calls", "18")


async def test_a_stop_token_cuts_a_header() -> None:
    tokenizer = TemplateTokenizer(GPT_OSS)
    (stop,) = tokenizer.encode("commentary")
    async with agent(f"{FINAL}Yes.<|end|>{HEADER}{OSLO}") as (chat, _):
        answer = await answer_of(chat, asks(sampling=ChatSampling(stop_token_ids=(stop,))))
    assert (answer.content, answer.tool_calls, answer.end.stop) == ("Yes.", (), stop)
