"""Log-probabilities beside tools of gpt-oss: those of the content, and no others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from reason_spec.chat.base import ChatRequest, ChatSampling, Policy, TextDelta, TokenLogprob
from reason_spec.chat.channel_calls import ChannelParser
from reason_spec.chat.content_logprobs import ContentLogprobs
from reason_spec.chat.content_stops import ContentStops
from reason_spec.chat.service import Chat
from tests.chat import scripted
from tests.chat.channel_agent import FINAL, HEADER, NEXT, OSLO, THINKING, THOUGHT, agent, asks
from tests.chat.scripted import ADD, answer_of, chat_with, events_of
from tests.engines.thinking_templates import GPT_OSS, TemplateTokenizer


def tokens_of(logprobs: Iterable[TokenLogprob] | None) -> list[str] | None:
    return None if logprobs is None else [one.content.decode() for one in logprobs]


def spell(text: str) -> list[str]:
    tokenizer = TemplateTokenizer(GPT_OSS)
    return [tokenizer.decode((token,)) for token in tokenizer.encode(text)]


SAID = "It is 18 <b>degrees</b>."
CONTENTS = {
    f"{FINAL}{SAID}": SAID,
    SAID: SAID,
    f"{THINKING}Once more.{NEXT}{FINAL}{SAID}": SAID,
    f"<|channel|>commentary<|message|>I look it up.{NEXT}{HEADER}{OSLO}": "I look it up.",
    f"<|channel|>commentary<|message|>I see.{NEXT}{FINAL}{SAID}": f"I see.\n\n{SAID}",
    f"<|channel|>final {SAID}\nYes.": f"<|channel|>final {SAID}\nYes.",
    f"{FINAL}Yes.<|end|>No.": "Yes.\n\nNo.",
    "\n\nYes.": "Yes.",
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
    assert tokens_of([token for one in texts for token in one.logprobs or ()]) == expected


async def test_a_call_alone_has_no_log_probabilities() -> None:
    async with agent() as (chat, _):
        answer = await answer_of(chat, asks(policy=Policy(strategy="autoregressive")))
    assert (answer.content, answer.logprobs) == (None, None)


PLAIN = Policy(strategy="autoregressive")
VERIFIED = Policy(strategy="lookahead", loss_class="verified")


@pytest.mark.parametrize(
    "policy", [PLAIN, Policy(strategy="lookahead"), VERIFIED], ids=["plain", "exact", "steps"]
)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("degrees", spell("First.\n\nIt is 18 <b>")),
        (" is", spell("First.\n\nIt")),
        ("It", spell("First.\n\n")),
        (".\n\nIt", spell("First")),
        ("\nIt", spell("First.\n\n")),
        ("egrees", [*spell("First.\n\nIt is 18 <b>"), "degrees"]),
        ("First", []),
    ],
)
async def test_the_tokens_up_to_a_stop_have_log_probabilities(
    stop: str, expected: list[str], policy: Policy
) -> None:
    said = f"First.\n\n{SAID}"
    asked = asks(policy=policy, sampling=ChatSampling(stop=(stop,)), logprobs=True)
    async with agent(f"{FINAL}{said}\n\nSo.\n\nYes.", drafted="Wrong.\n\nWrong again.") as (chat, _):
        answer = await answer_of(chat, asked)
        content, streamed = await content_of(chat, asked)
    assert answer.content == content == said.partition(stop)[0]
    assert streamed == expected
    assert tokens_of(answer.logprobs) == (expected or None)


async def test_the_content_before_the_only_call_has_log_probabilities() -> None:
    text = f"<|channel|>commentary<|message|>I look.{NEXT}{HEADER}{OSLO}{NEXT}{FINAL}{SAID}"
    async with agent(text) as (chat, _):
        answer = await answer_of(chat, asks(policy=PLAIN, parallel_tool_calls=False, logprobs=True))
    assert len(answer.tool_calls) == 1
    assert (answer.content, tokens_of(answer.logprobs)) == ("I look.", spell("I look."))


async def test_an_answer_without_wanted_log_probabilities_does_not_wait_for_them() -> None:
    text = f"{FINAL}{SAID} It stays so."
    async with agent(text) as (chat, _):
        stop = ChatSampling(stop=("18",))
        alone, waited = [
            (await answer_of(chat, asks(policy=PLAIN, sampling=stop, logprobs=logprobs))).end
            for logprobs in (False, True)
        ]
    generated = [end.report.target_usage.num_generated_tokens for end in (alone, waited)]
    assert generated[0] < generated[1]
    assert alone.num_tokens == waited.num_tokens


@pytest.mark.parametrize("num_cut", [0, 1])
async def test_what_was_held_back_at_the_end_has_log_probabilities(num_cut: int) -> None:
    text = f"{FINAL}It is 1<{'2' * num_cut}"
    most = None if not num_cut else len(spell(f"{THOUGHT}<|end|>{text}")) - num_cut
    async with agent(text) as (chat, _):
        answer = await answer_of(chat, asks(policy=PLAIN, sampling=ChatSampling(max_tokens=most)))
    assert answer.end.finish == ("length" if num_cut else "stop")
    assert (answer.content, tokens_of(answer.logprobs)) == ("It is 1<", spell("It is 1<"))


async def test_a_header_in_a_drafted_step_is_read() -> None:
    begun = f"{THINKING}Once more.\n\n"
    text = f"{begun}Twice.{NEXT}{FINAL}{SAID}"
    async with agent(text, drafted=f"{begun}Wrong.") as (chat, _):
        answer = await answer_of(chat, asks(policy=VERIFIED))
        _, streamed = await content_of(chat, asks(policy=VERIFIED))
    assert answer.end.report.steps_by_origin.keys() == {"draft", "target"}
    assert streamed == tokens_of(answer.logprobs) == spell(SAID)


async def content_of(chat: Chat, asked: ChatRequest) -> tuple[str, list[str]]:
    """Return the content of a streamed answer, and its tokens with log-probabilities."""
    texts = [
        one for one in await events_of(chat, asked) if isinstance(one, TextDelta) and one.channel == "content"
    ]
    tokens = tokens_of([token for text in texts for token in text.logprobs or ()])
    return "".join(one.text for one in texts), tokens or []


class Steps:
    """An answer that is read text by text, and step by step."""

    def __init__(self) -> None:
        self._parser = ChannelParser(["weather"])
        self._stops = ContentStops(())
        self._logprobs = ContentLogprobs(self._parser.content_places, self._stops)

    def read(self, text: str) -> list[bytes]:
        """Read text whose step is not over; return the tokens that are content for certain now."""
        list(self._stops.feed(self._parser.feed(text)))
        return [one.content for one in self._logprobs.release()]

    def end(self, text: str, *tokens: bytes) -> list[bytes]:
        """End a step that was read; return the tokens that are content for certain now."""
        found = [TokenLogprob(place, token, -0.1) for place, token in enumerate(tokens)]
        self._logprobs.take(text, found or None)
        return [one.content for one in self._logprobs.release()]


def test_headers_in_steps_without_log_probabilities_are_read() -> None:
    steps = Steps()
    texts = [f"{THINKING}One.\n\n", "Two.", f"{NEXT}{FINAL}", "Three", f"{NEXT}{HEADER}", OSLO]
    found: list[bytes] = []
    for text, has_logprobs in zip(texts, [False, True] * 3, strict=True):
        found += steps.read(text)
        found += steps.end(text, *(one.encode() for one in spell(text) if has_logprobs))
    assert found == [b"Three"]


def test_a_character_that_a_step_cuts_keeps_its_tokens() -> None:
    steps = Steps()
    assert steps.read("It €s.<|end|>No") == []
    assert steps.end("It \ufffd", b"It", b" ", b"\xe2") == [b"It", b" ", b"\xe2"]
    tokens = [b"\x82", b"\xac", b"s", b".", b"<|end|>", b"No"]
    assert steps.end("\ufffd\ufffds.<|end|>No", *tokens) == [b"\x82", b"\xac", b"s", b".", b"No"]


def test_a_step_without_log_probabilities_may_end_a_cut_character() -> None:
    steps = Steps()
    assert steps.read("1€2<|end|>No") == []
    assert steps.end("1\ufffd", b"1", b"\xe2") == [b"1", b"\xe2"]
    assert steps.end("\ufffd") == []
    assert steps.end("2<|end|>No", b"2", b"<|end|>", b"No") == [b"2", b"No"]


def test_a_token_that_may_begin_a_tag_waits_for_what_follows() -> None:
    steps = Steps()
    assert steps.read("1") + steps.read(" <") == []
    assert steps.end("1 <", b"1", b" ", b"<") == [b"1", b" "]
    assert (steps.read("b"), steps.read(">")) == ([b"<"], [])
    assert steps.end("b>", b"b", b">") == [b"b", b">"]


def test_a_tag_between_two_texts_is_no_content() -> None:
    steps = Steps()
    assert steps.read("\n\nYes.<|end|>No.") == []
    tokens = [b"\n\n", b"Yes", b".", b"<|end|>", b"No", b"."]
    assert steps.end("\n\nYes.<|end|>No.", *tokens) == [b"Yes", b".", b"No", b"."]


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
BESIDE_CALLS = {
    f"Let me see.\n{CALL}": "Let me see.",
    f"First.\n\nLet me see.\n\n{CALL}": "First.\n\nLet me see.",
    f"{CALL}\nDone now.": "\nDone now.",
    "No call at all.": "No call at all.",
}


@pytest.mark.parametrize(("text", "content"), BESIDE_CALLS.items())
async def test_content_beside_a_call_keeps_its_log_probabilities(text: str, content: str) -> None:
    asked = scripted.asks("go", tools=[ADD], logprobs=True, policy=Policy(strategy="autoregressive"))
    async with chat_with({"go": text}, with_draft=False) as chat:
        answer = await answer_of(chat, asked)
        events = await events_of(chat, asked)
    assert answer.content == content
    assert "".join(tokens_of(answer.logprobs) or ()) == content
    found = [token for one in events if isinstance(one, TextDelta) for token in one.logprobs or ()]
    assert "".join(tokens_of(found) or ()) == content
