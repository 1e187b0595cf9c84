"""Thinking is written apart from the answer."""

from __future__ import annotations

import pytest

from reason_spec.accelerator.thinking import Thinking
from reason_spec.chat.base import ChatEnd, ChatRequest, ChatSampling, Policy, TextDelta, TextRequest
from reason_spec.engines.chat_template import Message
from reason_spec.strategies.thinking import CLOSING
from reason_spec.types import Constraint
from tests.chat.scripted import ADD, answer_of, asks, chat_with, events_of, num_running

THOUGHT = "Two and two.\n\nThat makes four.\n"
SAID = "It is 4.\n\nReally."
WRITTEN = f"{THOUGHT}</think>\n\n{SAID}"
ANSWERS = {"two and two": WRITTEN}
QUESTION: list[Message] = [{"role": "user", "content": "two and two"}]


async def test_thinking_and_answer_come_in_channels_of_their_own() -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        *pieces, end = await events_of(chat, asks("two and two"))
        answer = await answer_of(chat, asks("two and two"))
    texts = {"reasoning": "", "content": ""}
    for piece in pieces:
        assert isinstance(piece, TextDelta)
        texts[piece.channel] += piece.text
    assert texts == {"reasoning": THOUGHT, "content": SAID}
    assert (answer.reasoning, answer.content) == (THOUGHT, SAID)
    assert isinstance(end, ChatEnd)
    tokenizer = chat.accelerator.target.tokenizer
    assert end.num_reasoning_tokens == len(tokenizer.encode(THOUGHT))
    assert end.num_tokens == len(tokenizer.encode(WRITTEN)) + 1


async def test_thinking_is_written_by_the_strategy_and_the_answer_exactly() -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        usual = (await answer_of(chat, asks("two and two"))).end.report
        off = (await answer_of(chat, asks("two and two", policy=Policy(off=True)))).end.report
        named = Policy(strategy="lookahead", loss_class="verified")
        loose = (await answer_of(chat, asks("two and two", policy=named))).end.report
        token = (
            await answer_of(chat, asks("two and two", policy=Policy(strategy="prompt_lookup")))
        ).end.report
        shed = (await answer_of(chat, asks("two and two"), speculate=False)).end.report
    assert (usual.strategy, usual.exact_answer_by) == ("lookahead", "speculative")
    assert (off.strategy, off.exact_answer_by, off.reason) == ("autoregressive", "autoregressive", None)
    assert (loose.strategy, loose.exact_answer_by) == ("lookahead", "lookahead")
    assert (token.strategy, token.exact_answer_by) == ("prompt_lookup", "prompt_lookup")
    assert (shed.strategy, shed.exact_answer_by, shed.reason) == ("autoregressive", "autoregressive", "load")


@pytest.mark.parametrize(
    "stops",
    [
        ("\n\n",),
        ("\n",),
        ("That",),
        ("4",),
        (">\n\nIt",),
        ("\n", "Observation:"),
        ("four", "4", "a stop that is longer than the tag"),
    ],
)
async def test_stops_are_for_the_answer_alone(stops: tuple[str, ...]) -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        answer = await answer_of(chat, asks("two and two", sampling=ChatSampling(stop=stops)))
    assert answer.reasoning == THOUGHT
    found, stop = min(((SAID.find(stop), stop) for stop in stops if stop in SAID), default=(len(SAID), None))
    assert (answer.content, answer.end.stop) == (SAID[:found], stop)


async def test_stop_tokens_are_for_the_answer_alone_and_may_be_its_first() -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        whole = await answer_of(chat, asks("two and two"))
        tokens = chat.accelerator.target.tokenizer.encode(whole.content or "")
        for place, stop in enumerate(tokens):
            sampling = ChatSampling(stop_token_ids=(stop,))
            answer = await answer_of(chat, asks("two and two", sampling=sampling))
            assert answer.reasoning == whole.reasoning
            assert (whole.content or "").startswith(answer.content or "")
            assert (answer.end.finish, answer.end.stop) == ("stop", stop)
            assert place or not answer.content


@pytest.mark.parametrize("max_tokens", [1, 4, 9])
async def test_thinking_without_an_end_leaves_no_answer(max_tokens: int) -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        answer = await answer_of(chat, asks("two and two", sampling=ChatSampling(max_tokens=max_tokens)))
    assert not answer.content
    assert THOUGHT.startswith(answer.reasoning or "")
    assert (answer.end.finish, answer.end.num_tokens) == ("length", max_tokens)


async def test_the_limit_covers_thinking_and_answer() -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        whole = await answer_of(chat, asks("two and two"))
        num_closing = len(chat.accelerator.target.tokenizer.encode(CLOSING))
        limit = whole.end.num_reasoning_tokens + num_closing + 3
        cut = await answer_of(chat, asks("two and two", sampling=ChatSampling(max_tokens=limit)))
        bare = await answer_of(
            chat, asks("two and two", sampling=ChatSampling(max_tokens=limit - num_closing))
        )
    assert (cut.end.num_tokens, cut.end.finish) == (limit, "length")
    assert SAID.startswith(cut.content or "?")
    assert (bare.content, bare.end.finish) == ("", "length")


async def test_thinking_that_is_switched_off_is_not_looked_for() -> None:
    async with chat_with(ANSWERS, thinking=True) as chat:
        answer = await answer_of(chat, asks("two and two", chat_arguments={"enable_thinking": False}))
        text = await answer_of(chat, TextRequest(prompt="user: two and two\n<think>\n"))
    assert (answer.reasoning, answer.content) == (None, SAID)
    # A text has no channels.
    assert (text.reasoning, text.content) == (None, WRITTEN)


async def test_calls_are_found_behind_thinking() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    answers = {"two and two": f"Let me <tool_call>.</think>\n\n{call}"}
    async with chat_with(answers, thinking=True) as chat:
        answer = await answer_of(chat, asks("two and two", tools=[ADD]))
    assert answer.reasoning == "Let me <tool_call>."
    assert (answer.content, answer.end.finish) == (None, "tool_calls")
    assert [(one.name, one.arguments) for one in answer.tool_calls] == [("add", '{"a": 2}')]


@pytest.mark.parametrize("num_events", [2, 14])
async def test_closing_frees_the_engines_in_thinking_and_answer(num_events: int) -> None:
    async with chat_with(ANSWERS, thinking=True, seconds_per_pass=0.001) as chat:
        stream = chat.stream(await chat.prepare(asks("two and two")))
        for _ in range(num_events):
            await anext(stream)
        await stream.aclose()
        assert await num_running(chat) == 0


@pytest.mark.parametrize(
    ("continued", "thinks"), [("<think>\nTwo and", True), ("<think>\nx</think>\n\nIt", False), ("It", False)]
)
async def test_a_message_is_gone_on_with_where_it_stands(continued: str, thinks: bool) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": continued}]
    async with chat_with(ANSWERS, thinking=True) as chat:
        request = ChatRequest(messages=messages, continue_final=True)
        prepared = await chat.prepare(request)
    assert prepared.thinking == (Thinking() if thinks else None)


@pytest.mark.parametrize("room", range(1, 6))
async def test_a_thinking_that_fills_the_context_is_kept_without_an_answer(room: int) -> None:
    asked = asks("go", policy=Policy(strategy="autoregressive"), constraint=Constraint(choice=("4",)))
    thought = "So it is.</think>"
    async with chat_with({"go": f"{thought}4"}, thinking=True, with_draft=False) as chat:
        num_prompt = (await chat.prepare(asked)).num_prompt_tokens
        num_thought = len(chat.accelerator.target.tokenizer.encode(thought))
    context = num_prompt + num_thought + room
    async with chat_with({"go": f"{thought}4"}, thinking=True, with_draft=False, max_context=context) as chat:
        answer = await answer_of(chat, asked)
    # The gap before a constrained answer is inserted, and takes room.
    assert answer.reasoning == "So it is."
    assert (answer.content, answer.end.finish) in [("", "length"), ("4", "length"), ("4", "stop")]
