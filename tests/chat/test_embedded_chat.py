"""Chats with the real pair: what streams is the answer, and closing a stream frees both engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

import reason_spec.pair
from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatEnd, ChatSampling, Policy, TextDelta
from reason_spec.chat.service import Chat
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import RequestError
from reason_spec.settings import load_settings
from tests.chat.scripted import ADD, answer_of, asks, events_of, num_running

SAMPLE = Path(reason_spec.pair.__file__).parent / "sample.jsonl"
QUESTION = json.loads(SAMPLE.read_text().splitlines()[3])["question"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat() -> AsyncIterator[Chat]:
    settings = load_settings(
        flags={"strategy.planner": False, "load_control.use": "off", "sampling.max_tokens": 160}
    )
    async with Accelerator.from_settings(settings) as accelerator:
        yield Chat(accelerator)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "policy",
    [
        Policy(loss_class="exact"),
        Policy(strategy="speculative"),
        Policy(off=True),
        Policy(verifier="numbers"),
        Policy(strategy="hybrid"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_what_streams_is_the_answer(chat: Chat, policy: Policy, temperature: float) -> None:
    request = asks(QUESTION, policy=policy, sampling=ChatSampling(temperature=temperature, seed=5))
    *pieces, end = await events_of(chat, request)
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert isinstance(end, ChatEnd)
    assert await num_running(chat) == 0
    if end.report.loss_class == "exact":
        alone = await answer_of(
            chat,
            asks(QUESTION, policy=Policy(off=True), sampling=ChatSampling(temperature=temperature, seed=5)),
        )
        assert text == alone.content
        assert end.num_tokens == alone.end.num_tokens
    assert end.finish == "stop"
    assert end.report.target_alone_seconds is None or end.report.target_alone_seconds > 0


async def test_a_second_turn_finds_its_prompt(chat: Chat) -> None:
    first = await answer_of(chat, asks(QUESTION, policy=Policy(off=True)))
    again = await answer_of(chat, asks(QUESTION, policy=Policy(off=True)))
    assert again.content == first.content
    assert 0 < again.end.num_cached_tokens <= again.end.num_prompt_tokens


async def test_a_stop_inside_a_step_cuts_the_same_everywhere(chat: Chat) -> None:
    whole = (await answer_of(chat, asks(QUESTION, policy=Policy(off=True)))).content
    assert whole is not None
    stop = whole[len(whole) // 2 :][:3]
    for policy in (Policy(off=True), Policy(loss_class="exact"), Policy(strategy="speculative")):
        answer = await answer_of(chat, asks(QUESTION, policy=policy, sampling=ChatSampling(stop=(stop,))))
        assert answer.content == whole[: whole.index(stop)]
        assert answer.end.stop == stop


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
async def test_a_token_that_ends_an_answer_cuts_the_targets_own_text(
    chat: Chat, share: float, temperature: float
) -> None:
    tokenizer = chat.accelerator.target.tokenizer
    sampling = ChatSampling(temperature=temperature, seed=5)
    request = asks(QUESTION, policy=Policy(off=True), sampling=sampling)
    whole = (await answer_of(chat, request)).content or ""
    tokens = tokenizer.encode(whole)
    assert tokenizer.decode(tokens) == whole
    stop = tokens[int(share * len(tokens))]
    expected = tokenizer.decode(tokens[: tokens.index(stop)])
    sampling = replace(sampling, stop_token_ids=(stop,))
    for policy in (
        Policy(off=True),
        Policy(loss_class="exact"),
        Policy(strategy="speculative"),
        Policy(strategy="prompt_lookup"),
        Policy(verifier="numbers"),
        Policy(strategy="hybrid"),
    ):
        request = asks(QUESTION, policy=policy, sampling=sampling)
        *pieces, end = await events_of(chat, request)
        assert isinstance(end, ChatEnd)
        assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == expected
        assert (end.finish, end.stop, end.num_tokens) == ("stop", stop, tokens.index(stop) + 1)
        assert end.report.loss_class == "exact"
        was_whole = policy.off or policy.strategy in ("speculative", "prompt_lookup")
        assert end.report.reason == (None if was_whole else "stop token ids")
    assert await num_running(chat) == 0


async def test_the_end_of_a_text_is_a_stop_where_it_is_ignored_and_asked_for(chat: Chat) -> None:
    free = await answer_of(chat, asks(QUESTION, policy=Policy(off=True)))
    (end,) = chat.accelerator.target.tokenizer.eos_ids
    for ignore_eos in (False, True):
        sampling = ChatSampling(stop_token_ids=(end,), ignore_eos=ignore_eos)
        answer = await answer_of(chat, asks(QUESTION, policy=Policy(off=True), sampling=sampling))
        assert (answer.content, answer.end.finish) == (free.content, "stop")
        assert answer.end.stop == (end if ignore_eos else None)


async def test_a_token_that_there_is_not_ends_nothing(chat: Chat) -> None:
    tokenizer = chat.accelerator.target.tokenizer
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    size = tokenizer.vocab_size
    for wrong in (size, -1):
        sampling = ChatSampling(stop_token_ids=(1, wrong))
        with pytest.raises(
            RequestError, match=rf"stop_token_ids\[1\]: .* {wrong}; .* 0 to {size - 1}: .*leave"
        ):
            await chat.prepare(asks(QUESTION, sampling=sampling))


@pytest.mark.parametrize("num_events", [1, 6])
async def test_closing_a_stream_frees_both_engines(chat: Chat, num_events: int) -> None:
    async with aclosing(
        chat.stream(await chat.prepare(asks(QUESTION, policy=Policy(loss_class="exact"))))
    ) as events:
        for _ in range(num_events):
            await anext(events)
    assert await num_running(chat) == 0


async def test_an_answer_with_tools_is_exact(chat: Chat) -> None:
    answer = await answer_of(chat, asks(QUESTION, tools=[ADD]))
    assert answer.end.report.loss_class == "exact"
    assert answer.content


async def test_with_the_end_ignored_an_answer_has_all_its_tokens(chat: Chat) -> None:
    free = await answer_of(chat, asks(QUESTION, policy=Policy(off=True)))
    sampling = ChatSampling(ignore_eos=True, max_tokens=free.end.num_tokens + 9)
    answer = await answer_of(chat, asks(QUESTION, sampling=sampling))
    assert (answer.end.finish, answer.end.num_tokens) == ("length", free.end.num_tokens + 9)
    assert (answer.content or "").startswith(free.content or "")
    assert answer.end.report.reason == "logit bias"


async def test_prompts_of_tenants_and_salts_share_no_prefix(chat: Chat) -> None:
    sampling = ChatSampling(max_tokens=4)

    async def num_cached(**whose: str) -> int:
        request = asks("Whose prompt is this?", sampling=sampling, policy=Policy(off=True), **whose)
        return (await answer_of(chat, request)).end.num_cached_tokens

    for whose in (
        {"tenant": "ana"},
        {"tenant": "ben"},
        {"tenant": "ben", "cache_salt": "x"},
        {"cache_salt": "x"},
    ):
        assert await num_cached(**whose) == 0
        assert await num_cached(**whose) > 0
