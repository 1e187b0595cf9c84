"""What comes out of a chat: text in order, stops, limits, counts, and free engines when it is closed."""

from __future__ import annotations

from contextlib import aclosing
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.chat.base import (
    ChatEnd,
    ChatRequest,
    ChatSampling,
    Policy,
    TextDelta,
    TextRequest,
)
from reason_spec.chat.generation import TextOrder
from reason_spec.errors import RequestError
from tests.chat.scripted import answer_of, asks, chat_with, events_of, num_running

BIRDS = "One bird sang.\n\nTwo birds flew off.\n\nNone is left, é."
OTHER = "One bird sang.\n\nNo bird flew off.\n\nNone is left, é."


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(off=True),
        Policy(loss_class="exact"),
        Policy(strategy="prompt_lookup"),
        Policy(strategy="speculative"),
        Policy(strategy="lookahead", depth=2, width=2),
    ],
)
async def test_the_pieces_of_an_answer_are_the_answer(policy: Policy) -> None:
    async with chat_with({"birds": BIRDS}, draft={"birds": OTHER}) as chat:
        *pieces, end = await events_of(chat, asks("birds", policy=policy))
        whole = await answer_of(chat, asks("birds", policy=policy))
        assert await num_running(chat) == 0
    texts = [piece.text for piece in pieces if isinstance(piece, TextDelta)]
    assert "".join(texts) == BIRDS == whole.content
    assert len(texts) > 3
    assert isinstance(end, ChatEnd)
    assert (end.finish, end.stop, end.num_reasoning_tokens) == ("stop", None, 0)
    assert end.num_tokens == whole.end.num_tokens > 10
    assert sum(end.report.steps_by_origin.values()) == 3
    assert end.report.loss_class == "exact"


async def test_text_streams_before_its_step_is_final() -> None:
    async with (
        chat_with({"birds": BIRDS}, seconds_per_pass=0.001) as chat,
        aclosing(chat.stream(await chat.prepare(asks("birds")))) as events,
    ):
        first = await anext(events)
        assert isinstance(first, TextDelta)
        assert BIRDS.startswith(first.text)
        assert len(first.text) < BIRDS.index("\n\n")


@pytest.mark.parametrize("policy", [Policy(), Policy(off=True), Policy(strategy="speculative")])
@pytest.mark.parametrize("num_events", [0, 1, 5])
async def test_closing_a_stream_frees_the_engines(policy: Policy, num_events: int) -> None:
    async with chat_with({"birds": BIRDS}, seconds_per_pass=0.001) as chat:
        async with aclosing(chat.stream(await chat.prepare(asks("birds", policy=policy)))) as events:
            for _ in range(num_events):
                await anext(events)
        assert await num_running(chat) == 0


@pytest.mark.parametrize("policy", [Policy(), Policy(off=True)])
@pytest.mark.parametrize("stop", ["birds flew", ".\n\nTw", "é", "One"])
async def test_a_stop_cuts_inside_a_step_and_is_named(policy: Policy, stop: str) -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        sampling = ChatSampling(stop=("nowhere", stop))
        *pieces, end = await events_of(chat, asks("birds", policy=policy, sampling=sampling))
    streamed = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert streamed == BIRDS[: BIRDS.index(stop)]
    assert isinstance(end, ChatEnd)
    assert (end.finish, end.stop) == ("stop", stop)


async def test_an_answer_ends_at_its_limit() -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        answer = await answer_of(chat, asks("birds", sampling=ChatSampling(max_tokens=3)))
    assert (answer.content, answer.end.finish, answer.end.num_tokens) == ("One bird sang", "length", 3)


async def test_the_context_bounds_answers_and_refuses_prompts() -> None:
    async with chat_with({"birds": BIRDS}, max_context=8) as chat:
        answer = await answer_of(chat, asks("birds", sampling=ChatSampling(max_tokens=100)))
        assert answer.end.num_prompt_tokens + answer.end.num_tokens == 8
        with pytest.raises(RequestError, match="maximum context length is 8 tokens") as error:
            await chat.prepare(asks("birds " * 20))
        assert error.value.param == "messages"
        with pytest.raises(RequestError) as error:
            await chat.prepare(TextRequest(prompt="birds " * 20))
        assert error.value.param == "prompt"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (ChatSampling(stop_token_ids=(1, -1)), "stop_token_ids"),
        (ChatSampling(temperature=-1.0), "temperature"),
        (ChatSampling(top_p=2.0), "top_p"),
        (ChatSampling(top_k=-3), "top_k"),
        (ChatSampling(max_tokens=0), "max_tokens"),
        (ChatSampling(stop=("",)), "stop"),
        (ChatSampling(stop=("\ud800",)), "stop"),
        (ChatSampling(logit_bias={-1: 1.0}), "logit_bias"),
    ],
)
async def test_what_cannot_be_sampled_is_refused_by_name(sampling: ChatSampling, param: str) -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        with pytest.raises(RequestError) as error:
            await chat.prepare(asks("birds", sampling=sampling))
    assert error.value.param == param


async def test_a_prepared_request_is_encoded_once_for_all_its_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        encode = Mock(wraps=chat.accelerator.encode)
        monkeypatch.setattr(chat.accelerator, "encode", encode)
        request = asks("birds")
        prepared = await chat.prepare(request)
        await chat.answer(prepared)
        await chat.answer(prepared, index=1)
    assert encode.call_count == 1


async def test_choices_have_noise_of_their_own_and_a_seed_repeats_it() -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        warm = asks("birds", sampling=ChatSampling(temperature=1.0, seed=7))
        prepared = await chat.prepare(warm)
        assert prepared.sampling(0) == prepared.sampling(0) != prepared.sampling(1)
        loose = await chat.prepare(asks("birds", sampling=ChatSampling(temperature=1.0)))
        assert loose.sampling(0).noise.seed != loose.sampling(0).noise.seed
        cold = await chat.prepare(asks("birds", sampling=ChatSampling(temperature=0.0)))
        assert cold.sampling(0) == cold.sampling(0)


async def test_a_server_without_room_has_the_target_alone_and_says_so() -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        answer = await answer_of(chat, asks("birds"), speculate=False)
        assert (answer.content, answer.end.report.strategy) == (BIRDS, "autoregressive")
        assert answer.end.report.reason == "load"
        assert answer.end.report.draft_usage.num_passes == 0
        off = await answer_of(chat, asks("birds", policy=Policy(off=True)), speculate=False)
        assert off.end.report.reason is None


@pytest.mark.parametrize("prompt", ["user: birds\n", None])
async def test_a_text_is_gone_on_with_as_it_is(prompt: str | None) -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        tokens = chat.accelerator.target.tokenizer.encode("user: birds\nOne bird")
        answer = await answer_of(chat, TextRequest(prompt=prompt or tokens))
    assert answer.content == (BIRDS if prompt else BIRDS.removeprefix("One bird"))


@pytest.mark.parametrize("prompt", ["", (), (123456789,)])
async def test_a_prompt_without_known_tokens_is_refused(prompt: str | tuple[int, ...]) -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        with pytest.raises(RequestError) as error:
            await chat.prepare(TextRequest(prompt=prompt))
    assert error.value.param == "prompt"


async def test_a_message_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "birds"}, {"role": "assistant", "content": "One bird"}]
    async with chat_with({"assistant: One": " One bird sang."}) as chat:
        prepared = await chat.prepare(ChatRequest(messages=messages, continue_final=True))
        tokenizer = chat.accelerator.target.tokenizer
        assert tokenizer.decode(prepared.prompts.target.to_tuple()).endswith("assistant: One bird")
        with pytest.raises(RequestError, match="assistant"):
            await chat.prepare(asks("birds", continue_final=True))


async def test_the_targets_own_words_come_with_their_logprobs() -> None:
    async with chat_with({"birds": BIRDS}) as chat:
        answer = await answer_of(
            chat, asks("birds", policy=Policy(off=True), sampling=ChatSampling(stop=(" left",)))
        )
        drafted = await answer_of(chat, asks("birds"))
    assert answer.logprobs is not None
    assert b"".join(one.content for one in answer.logprobs).decode() == answer.content
    # Drafted steps stand here, and the target's ratings of them are not known.
    assert drafted.logprobs is None


@given(st.text(max_size=40), st.data())
def test_pieces_in_any_order_are_put_in_place(text: str, data: st.DataObject) -> None:
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=6))})
    pieces = [(start, text[start:end]) for start, end in pairwise(cuts)]
    # Some come twice, and some reach over others.
    pieces += data.draw(st.lists(st.sampled_from(pieces), max_size=3)) if pieces else []
    pieces += [(start, text[start:]) for start in data.draw(st.lists(st.sampled_from(cuts), max_size=2))]
    order = TextOrder()
    streamed = "".join(order.take(*piece) for piece in data.draw(st.permutations(pieces)))
    assert streamed == text
