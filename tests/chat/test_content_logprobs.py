"""Log-probabilities beside tools of gpt-oss: those of the content, and no others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from reason_spec.chat.base import ChatSampling, Policy, TextDelta, TokenLogprob
from reason_spec.chat.channel_calls import ChannelParser
from reason_spec.chat.content_logprobs import ContentLogprobs
from reason_spec.chat.service import Chat
from tests.chat.channel_agent import FINAL, HEADER, NEXT, OSLO, THINKING, agent, asks
from tests.chat.scripted import answer_of, events_of
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer


def tokens_of(rated: Iterable[TokenLogprob] | None) -> list[str] | None:
    return None if rated is None else [one.content.decode() for one in rated]


SAID = "It is 18 <b>degrees</b>."
CONTENTS = {
    f"{FINAL}{SAID}": SAID,
    SAID: SAID,
    f"{THINKING}Once more.{NEXT}{FINAL}{SAID}": SAID,
    f"<|channel|>commentary<|message|>I look it up.{NEXT}{HEADER}{OSLO}": "I look it up.",
    f"<|channel|>commentary<|message|>I see.{NEXT}{FINAL}{SAID}": f"I see.\n\n{SAID}",
    f"<|channel|>final {SAID}\nYes.": f"<|channel|>final {SAID}\nYes.",
}


@pytest.mark.parametrize("budget", [0, None])
@pytest.mark.parametrize(("text", "content"), CONTENTS.items())
async def test_log_probabilities_are_those_of_the_content(
    text: str, content: str, budget: int | None
) -> None:
    asked = asks(
        policy=Policy(strategy="autoregressive"), sampling=ChatSampling(thinking_token_budget=budget)
    )
    async with agent(text) as (chat, _):
        answer = await answer_of(chat, asked)
        events = await events_of(chat, asked)
    assert answer.content == content
    expected = [token for part in content.split("\n\n") for token in spell(part)]
    assert tokens_of(answer.logprobs) == expected
    texts = [one for one in events if isinstance(one, TextDelta) and one.channel == "content"]
    assert tokens_of([rated for one in texts for rated in one.logprobs or ()]) == expected


def spell(text: str) -> list[str]:
    tokenizer = TemplateTokenizer(GPT_OSS)
    return [tokenizer.decode((token,)) for token in tokenizer.encode(text)]


async def test_a_call_alone_has_no_log_probabilities() -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(policy=Policy(strategy="autoregressive")))
    assert (answer.content, answer.logprobs) == (None, None)


VERIFIED = Policy(strategy="lookahead", loss_class="verified")


@pytest.mark.parametrize("policy", [Policy(strategy="autoregressive"), VERIFIED], ids=["plain", "steps"])
@pytest.mark.parametrize("stop", ["degrees", " is"])
async def test_no_token_behind_a_stop_is_rated(stop: str, policy: Policy) -> None:
    text = f"{FINAL}First.\n\n{SAID}"
    async with agent(text, drafted="Wrong.\n\nWrong again.") as (chat, _):
        content, rated = await content_of(chat, policy, stop)
    assert content == f"First.\n\n{SAID}".partition(stop)[0]
    assert content.startswith("".join(rated))


async def test_a_header_in_a_drafted_step_is_read() -> None:
    begun = f"{THINKING}Once more.\n\n"
    text = f"{begun}Twice.{NEXT}{FINAL}{SAID}"
    async with agent(text, drafted=f"{begun}Wrong.") as (chat, _):
        answer = await answer_of(chat, asks(policy=VERIFIED))
        _, rated = await content_of(chat, VERIFIED)
    assert answer.end.report.steps_by_origin.keys() == {"draft", "target"}
    assert rated == tokens_of(answer.logprobs) == spell(SAID)


async def content_of(chat: Chat, policy: Policy, *stops: str) -> tuple[str, list[str]]:
    """Return the content of a streamed answer, and its rated tokens."""
    events = await events_of(chat, asks(policy=policy, sampling=ChatSampling(stop=stops)))
    texts = [one for one in events if isinstance(one, TextDelta) and one.channel == "content"]
    rated = tokens_of([one for text in texts for one in text.logprobs or ()])
    return "".join(one.text for one in texts), rated or []


def test_headers_in_steps_without_log_probabilities_are_read() -> None:
    def rated(text: str) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(place, one.encode(), -0.1) for place, one in enumerate(spell(text)))

    logprobs = ContentLogprobs(ChannelParser(["weather"]))
    logprobs.skip(f"{THINKING}One.\n\n")
    assert logprobs.take(rated("Two.")) == ()
    logprobs.skip(f"{NEXT}{FINAL}")
    assert logprobs.take(rated("Three")) == rated("Three")
    logprobs.skip(f"{NEXT}{HEADER}")
    assert logprobs.take(rated(OSLO)) == ()


def test_a_character_of_several_tokens_is_rated_whole() -> None:
    logprobs = ContentLogprobs(ChannelParser([]))
    tokens = tuple(
        TokenLogprob(place, one, -0.1) for place, one in enumerate([b"It", b" ", b"\xc3", b"\xa9"])
    )
    assert logprobs.take(tokens) == tokens
