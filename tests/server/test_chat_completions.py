"""Chats over HTTP as OpenAI's own client has them, answered by the demonstration pair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.server.base import Client
from reason_spec.server.protocol import ChatBody
from reason_spec.server.requests import chat_request
from tests.server.serving import Serving


def question(marbles: int) -> list[ChatCompletionMessageParam]:
    story = f"Tom has {marbles} marbles. He buys 3 bags with 6 marbles each. Then he gives 5 marbles to Mia. "
    return [{"role": "user", "content": f"{story}How many marbles does Tom have now?"}]


QUESTION = question(14)
SPECULATES = {"strategy": "lookahead", "verifier": "exact"}


def ask(pair: Serving, **more: Any) -> Any:
    """Return an answer with its fields that the client does not know."""
    return pair.client().chat.completions.create(model="embedded", messages=QUESTION, **more)


def streamed(pair: Serving, **more: Any) -> list[Any]:
    return list(ask(pair, stream=True, **more))


def text_of(chunks: Sequence[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_stream_says_what_the_whole_answer_says(pair: Serving) -> None:
    chunks = streamed(pair)
    assert text_of(chunks) == ask(pair).choices[0].message.content
    assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_last_chunk_says_why_it_ended(pair: Serving) -> None:
    assert streamed(pair)[-1].choices[0].finish_reason == "stop"
    assert streamed(pair, max_tokens=3)[-1].choices[0].finish_reason == "length"


def test_tokens_are_bounded_under_both_names(pair: Serving) -> None:
    for bound in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        answer = ask(pair, **bound)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5


def test_a_stop_cuts_inside_a_step(pair: Serving) -> None:
    whole = ask(pair).choices[0].message.content
    stop = whole[7:11]
    assert stop.strip()
    for cut in (ask(pair, stop=stop), ask(pair, stop=["never said", stop])):
        assert cut.choices[0].message.content == whole[: whole.index(stop)]
        assert cut.choices[0].finish_reason == "stop"
        assert cut.choices[0].stop_reason == stop
    assert text_of(streamed(pair, stop=[stop])) == whole[: whole.index(stop)]


def tokenizer_of(pair: Serving) -> HuggingFaceTokenizer:
    tokenizer = pair.accelerator.target.tokenizer
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return tokenizer


def test_a_stop_token_cuts_inside_a_step_and_is_named(pair: Serving) -> None:
    tokenizer = tokenizer_of(pair)
    whole = ask(pair).choices[0].message.content
    tokens = tokenizer.encode(whole)
    stop = tokens[len(tokens) // 2]
    expected = tokenizer.decode(tokens[: tokens.index(stop)])
    body = {"stop_token_ids": [tokenizer.vocab_size - 1, stop]}
    cut = ask(pair, extra_body=body, logprobs=True).choices[0]
    assert (cut.message.content, cut.finish_reason, cut.stop_reason) == (expected, "stop", stop)
    assert "".join(one.token for one in cut.logprobs.content) == expected
    chunks = streamed(pair, extra_body=body)
    assert text_of(chunks) == expected
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].choices[0].stop_reason) == ("stop", stop)


def test_a_stop_token_that_there_is_not_is_refused(pair: Serving) -> None:
    size = tokenizer_of(pair).vocab_size
    with pytest.raises(openai.BadRequestError, match=rf"stop_token_ids\[1\].* no token {size}") as error:
        ask(pair, extra_body={"stop_token_ids": [0, size]})
    assert error.value.param == "stop_token_ids"


def test_usage_comes_in_a_chunk_of_its_own_if_asked_for(pair: Serving) -> None:
    usage = ask(pair).usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    *others, last = streamed(pair, stream_options={"include_usage": True})
    assert not last.choices
    assert all(chunk.usage is None for chunk in others)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
    assert all(chunk.usage is None for chunk in streamed(pair))


def test_choices_of_one_request_differ_and_a_seed_repeats_them(pair: Serving) -> None:
    how = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 24}
    answer = ask(pair, **how)
    first = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(first)) > 1
    assert [choice.message.content for choice in ask(pair, **how).choices] == first
    assert [text_of(streamed(pair, **how), index) for index in range(3)] == first
    assert answer.usage.prompt_tokens == ask(pair).usage.prompt_tokens


def test_more_choices_than_the_operator_allows_are_refused(pair: Serving) -> None:
    with pytest.raises(openai.BadRequestError, match="the most is 8") as caught:
        ask(pair, n=9)
    assert caught.value.param == "n"


def test_logprobs_are_those_of_the_tokens(pair: Serving) -> None:
    how = {"logprobs": True}
    answer = ask(pair, **how)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    assert all(token.logprob <= 0 for token in tokens)
    found = [choice.logprobs for chunk in streamed(pair, **how) for choice in chunk.choices]
    streamed_tokens = [token for one in found if one and one.content for token in one.content]
    assert [token.token for token in streamed_tokens] == [token.token for token in tokens]
    assert ask(pair).choices[0].logprobs is None


@pytest.mark.parametrize("logprobs", [True, False])
def test_wanted_logprobs_are_part_of_the_request(logprobs: bool) -> None:
    body = ChatBody.model_validate({"model": "embedded", "messages": QUESTION, "logprobs": logprobs})
    assert chat_request(body, Client("ana"), None, "").logprobs == logprobs


def test_trusted_clients_choose_and_get_a_report(pair: Serving) -> None:
    answer = ask(pair, extra_body={"reason_spec": SPECULATES})
    report = answer.reason_spec
    assert (report["strategy"], report["loss_class"]) == ("lookahead", "exact")
    assert sum(report["steps"].values()) >= 1
    assert report["tokens"]["target"]["generated"] > 0
    accepted = answer.metrics["speculative_decoding"]
    work = report["tokens"]["target"]
    assert accepted["num_draft_tokens"] == work["drafted"] > 0
    assert accepted["draft_acceptance_rate"] == work["accepted"] / work["drafted"]
    histogram = accepted["acceptance_histogram"]
    assert sum(histogram) == accepted["num_spec_steps"] <= work["passes"]
    assert sum(stood * count for stood, count in enumerate(histogram)) == work["accepted"]
    assert len(histogram) == accepted["num_spec_tokens"] + 1
    assert accepted["mean_acceptance_length"] == 1 + work["accepted"] / sum(histogram)
    proposed, stood = accepted["num_proposed_steps"], accepted["num_accepted_steps"]
    judged = proposed - accepted["num_late_steps"]
    assert report["alpha_step_of_all"] == (stood / proposed if proposed else None)
    assert report["alpha_step"] == (stood / judged if judged else None)
    off = ask(pair, extra_body={"reason_spec": {"off": True}})
    assert off.reason_spec["strategy"] == "autoregressive"
    assert off.metrics == {"speculative_decoding": None}
    assert off.choices[0].message.content == answer.choices[0].message.content
    last = streamed(pair, extra_body={"reason_spec": SPECULATES})[-1]
    assert last.reason_spec["strategy"] == "lookahead"
    assert last.metrics["speculative_decoding"]["num_draft_tokens"] > 0


def test_trusted_clients_may_have_an_answer_end_early(pair: Serving) -> None:
    question = "Ivan has 7 dolls and buys 5 more. Max has twice as many dolls as Ivan. How many has Max?"

    def answer(**options: Any) -> Any:
        return pair.client().chat.completions.create(
            model="embedded",
            messages=[{"role": "user", "content": question}],
            extra_body={"reason_spec": {"strategy": "autoregressive", **options}},
        )

    whole, short = answer(), answer(exit="policy", exit_threshold=0.0)
    report = short.reason_spec
    assert (report["loss_class"], report["step_loss_class"]) == ("shortened", "exact")
    assert (report["early_exit"]["rule"], report["early_exit"]["step"]) == ("policy", 1)
    assert 0 <= report["early_exit"]["chance"] <= 1
    assert short.choices[0].message.content.rpartition("\n\n")[2].startswith("The answer is ")
    assert len(short.choices[0].message.content) < len(whole.choices[0].message.content)
    assert whole.reason_spec["early_exit"] is None


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"strategy": "lookahed"}, "reason_spec.strategy"),
        ({"verifier": "semantc"}, "reason_spec.verifier"),
        ({"depht": 2}, "reason_spec.depht"),
        ({"exit": "perhaps"}, "reason_spec.exit"),
        ({"exit": "policy", "loss_class": "exact"}, "reason_spec.exit"),
        ({"exit_threshold": 2}, "reason_spec.exit_threshold"),
        ({"depth": -1}, "reason_spec.depth"),
    ],
)
def test_what_is_asked_of_speculation_is_checked(pair: Serving, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(pair, extra_body={"reason_spec": options})
    assert caught.value.param == param


def test_an_unknown_model_is_not_found(pair: Serving) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean 'embedded'") as caught:
        pair.client().chat.completions.create(model="embeded", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def test_a_conversation_that_does_not_fit_is_refused_before_a_stream_begins(pair: Serving) -> None:
    long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "three pens and " * 4000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="context"):
            pair.client().chat.completions.create(model="embedded", messages=long, stream=stream)


def test_many_clients_at_once_have_their_own_answers(pair: Serving) -> None:
    numbers = range(11, 19)

    async def main() -> list[str | None]:
        async with pair.async_client() as client:

            async def one(number: int) -> str | None:
                create = client.chat.completions.create
                if number % 2:
                    answer = await create(model="embedded", messages=question(number))
                    return answer.choices[0].message.content
                stream = await create(model="embedded", messages=question(number), stream=True)
                return text_of([chunk async for chunk in stream])

            return await asyncio.gather(*[one(number) for number in numbers])

    alone = [
        pair.client().chat.completions.create(model="embedded", messages=question(number))
        for number in numbers
    ]
    assert asyncio.run(main()) == [answer.choices[0].message.content for answer in alone]
