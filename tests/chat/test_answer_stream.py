"""A budget holds to the token in a chat, the tag is the template's own, and the answer follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatAnswer, ChatEnd, ChatSampling, Policy, TextDelta
from reason_spec.chat.service import Chat
from reason_spec.engines.chat_template import render_template
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.errors import RequestError
from reason_spec.segment import split_steps
from reason_spec.settings import load_settings
from reason_spec.types import Constraint, Sampling
from reason_spec.verifiers.base import Verifier
from reason_spec.verifiers.exact import ExactVerifier
from tests.chat.scripted import answer_of, asks, events_of, num_running
from tests.engines.thinking_templates import TEMPLATES, TemplateTokenizer
from tests.strategies.solving import Agrees

THOUGHT = "Two and two.\n\nThat makes four.\n\nLet me check: four.\n"
ANSWER = "It is 4.\n\nReally."
QUESTION = "two and two?"
TAGS = {
    "qwen3": ("<think>\n", "</think>", "\n\n"),
    "deepseek-r1": ("<think>\n", "</think>", "\n\n"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>",
    ),
}
every_template = pytest.mark.parametrize("name", TEMPLATES)


@dataclass
class Speaks:
    """A script that thinks and answers in the form of a template, and notes the texts it continues."""

    name: str
    thought: str = THOUGHT
    answer: str = ANSWER
    closes: bool = True
    texts: list[str] = field(default_factory=list)

    def __call__(self, text: str, sampling: Sampling) -> str:
        self.texts.append(text)
        opening, closer, lead = TAGS[self.name]
        turn = text.rpartition(QUESTION)[2]
        if opening not in turn:
            return self.answer[len(turn.rpartition("\n")[2]) :]
        thought, closed, answer = turn.partition(opening)[2].partition(closer)
        if closed:
            whole = lead + self.answer
            return whole[len(answer) :] if whole.startswith(answer) else self.answer
        ending = closer + lead + self.answer if self.closes else ""
        return self.thought[len(thought) :] + ending


@asynccontextmanager
async def speaking(
    name: str,
    target: Speaks | None = None,
    draft: Speaks | None = None,
    verifier: Verifier | None = None,
    **flags: Any,
) -> AsyncIterator[Chat]:
    target = target or Speaks(name)

    def engine(role: str, script: Speaks) -> ScriptedEngine:
        return ScriptedEngine(role, script, tokenizer=TemplateTokenizer(TEMPLATES[name]))

    accelerator = Accelerator(
        load_settings(flags={"strategy.planner": False, **flags}),
        engine("target", target),
        engine("draft", draft or Speaks(name, target.thought, target.answer)),
        verifier or ExactVerifier(),
    )
    async with accelerator:
        yield Chat(accelerator)


def budgeted(tokens: int | None = None, steps: int | None = None, **more: Any) -> Any:
    sampling = ChatSampling(thinking_token_budget=tokens, max_thinking_steps=steps, **more)
    return asks(QUESTION, sampling=sampling)


def ended_by(answer: ChatAnswer) -> str | None:
    return answer.end.report.thinking_ended_by


@every_template
async def test_a_budget_ends_the_thinking_at_a_step_and_tokens_are_counted_apart(name: str) -> None:
    tokenizer = TemplateTokenizer(TEMPLATES[name])
    ends = [0, *accumulate(len(tokenizer.encode(step)) for step in split_steps(THOUGHT))]
    async with speaking(name) as chat:
        for budget in range(ends[1], ends[-1] + 3):
            answer = await answer_of(chat, budgeted(budget))
            fitting = max(end for end in ends if end <= budget)
            assert answer.reasoning == tokenizer.decode(tokenizer.encode(THOUGHT)[:fitting])
            assert answer.content == ANSWER
            assert answer.end.num_reasoning_tokens == fitting
            assert answer.end.finish == "stop"
            assert ended_by(answer) == ("model" if fitting == ends[-1] else "tokens")


@every_template
@pytest.mark.parametrize("budget", [0, 1, 3, 7])
async def test_what_was_written_is_what_the_template_writes_of_the_turn(name: str, budget: int) -> None:
    target = Speaks(name)
    async with speaking(name, target) as chat:
        answer = await answer_of(chat, budgeted(budget))
    turns: list[Any] = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": ANSWER,
            "reasoning_content": answer.reasoning or "",
            "thinking": answer.reasoning or "",
        },
    ]
    opening, closer, lead = TAGS[name]

    def cut(text: str) -> tuple[str, str, str]:
        before, _, turn = text.partition(opening)
        thought, _, after = turn.partition(closer)
        return before, thought.rstrip("\n"), after

    before, thought, after = cut(max(target.texts, key=len))
    assert thought == (answer.reasoning or "").rstrip("\n")
    assert after.startswith(lead)
    assert ANSWER.startswith(after.removeprefix(lead))
    if name != "deepseek-r1":
        # That template leaves the thinking out of earlier turns.
        written = cut(render_template(TEMPLATES[name], turns, {"add_generation_prompt": False}))
        assert written[:2] == (before, thought)
        assert written[2].startswith(lead + ANSWER)


@every_template
async def test_a_stream_gives_the_same_text_and_only_final_text(name: str) -> None:
    async with speaking(name) as chat:
        for budget in (0, 2, 8, 40):
            whole = await answer_of(chat, budgeted(budget))
            *pieces, end = await events_of(chat, budgeted(budget))
            texts = {"reasoning": "", "content": ""}
            for piece in pieces:
                assert isinstance(piece, TextDelta)
                texts[piece.channel] += piece.text
            assert texts == {"reasoning": whole.reasoning or "", "content": whole.content}
            assert isinstance(end, ChatEnd)
            assert (end.num_tokens, end.num_reasoning_tokens) == (
                whole.end.num_tokens,
                whole.end.num_reasoning_tokens,
            )


@every_template
async def test_steps_are_counted_and_a_thinking_without_an_end_is_closed(name: str) -> None:
    async with speaking(name) as chat:
        two = await answer_of(chat, budgeted(steps=2))
    assert two.reasoning == "".join(split_steps(THOUGHT)[:2])
    assert (two.content, ended_by(two)) == (ANSWER, "steps")
    async with speaking(name, Speaks(name, closes=False)) as chat:
        closed = await answer_of(chat, budgeted(1000))
    assert (closed.reasoning, closed.content, ended_by(closed)) == (THOUGHT, ANSWER, "model")


@every_template
async def test_an_effort_is_a_budget_or_goes_to_the_template(name: str) -> None:
    flags: dict[str, Any] = {"thinking.effort_tokens": {"low": 5}}
    async with speaking(name, **flags) as chat:
        low = await answer_of(chat, asks(QUESTION, reasoning_effort="low"))
        none = await answer_of(chat, asks(QUESTION, reasoning_effort="none"))
        prepared = await chat.prepare(asks(QUESTION, reasoning_effort="low"))
    tokenizer = chat.accelerator.target.tokenizer
    prompt = tokenizer.decode(prepared.prompts.target.to_tuple())
    assert none.content == ANSWER
    assert not none.reasoning
    if name == "gpt-oss":
        assert "Reasoning: low" in prompt
        assert (low.reasoning, ended_by(low)) == (THOUGHT, None)
    else:
        assert (low.reasoning, ended_by(low)) == (split_steps(THOUGHT)[0], "tokens")


async def test_an_effort_that_nothing_knows_and_bad_numbers_are_refused_by_name() -> None:
    async with speaking("qwen3") as chat:
        for request, param in (
            (asks(QUESTION, reasoning_effort="huge"), "reasoning_effort"),
            (budgeted(-2), "thinking_token_budget"),
            (budgeted(True), "thinking_token_budget"),
            (budgeted(steps=-1), "max_thinking_steps"),
        ):
            with pytest.raises(RequestError) as refused:
                await chat.prepare(request)
            assert refused.value.param == param


async def test_an_answer_prompt_begins_the_answer_and_no_format() -> None:
    target, flags = Speaks("qwen3", answer="4"), {"thinking.answer_prompt": "The answer is "}
    async with speaking("qwen3", target, None, None, **flags) as chat:
        limited = await answer_of(chat, budgeted(6))
        whole = await answer_of(chat, budgeted(1000))
        bound = await answer_of(
            chat,
            asks(
                QUESTION,
                sampling=ChatSampling(thinking_token_budget=6),
                constraint=Constraint(regex=r"\d"),
            ),
        )
    assert limited.content == "The answer is 4"
    assert whole.content == bound.content == "4"
    assert bound.reasoning == limited.reasoning


async def test_the_closing_tag_is_in_the_text_where_another_models_step_ended_the_thinking() -> None:
    target, draft = Speaks("qwen3"), Speaks("qwen3")
    other = TemplateTokenizer(TEMPLATES["qwen3"])
    async with speaking("qwen3", target, draft, Agrees()) as chat:
        drafting = chat.accelerator.draft
        assert isinstance(drafting, ScriptedEngine)
        # The draft's tokens are not the target's.
        drafting._tokenizer = other
        other.tokenizer_id = "other"
        for sampling in (ChatSampling(), ChatSampling(thinking_token_budget=1000)):
            answer = await answer_of(chat, asks(QUESTION, sampling=sampling))
            assert (answer.reasoning, answer.content) == (THOUGHT, ANSWER)
    assert all(text.count("</think>") <= 1 for text in target.texts)
    assert any("</think>" in text for text in target.texts)


pieces = st.sampled_from(["Two", " and", ".\n\n", "\n", "<", "</", "<|", "é", " 4", "ok.\n\n", "```\n"])
texts = st.lists(pieces, max_size=25).map("".join)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    own=texts,
    drafted=texts,
    accepts=st.booleans(),
    budget=st.none() | st.integers(0, 30),
    steps=st.none() | st.integers(0, 4),
    closes=st.booleans(),
    max_tokens=st.integers(16, 80),
    strategy=st.sampled_from(["autoregressive", "prompt_lookup", "speculative", "lookahead"]),
)
async def test_never_a_token_over_never_a_broken_tag_and_always_an_answer(
    name: str,
    own: str,
    drafted: str,
    accepts: bool,
    budget: int | None,
    steps: int | None,
    closes: bool,
    max_tokens: int,
    strategy: str,
) -> None:
    target, draft = Speaks(name, own, closes=closes), Speaks(name, drafted)
    async with speaking(name, target, draft, Agrees() if accepts else None) as chat:
        request = asks(
            QUESTION,
            sampling=ChatSampling(
                thinking_token_budget=budget, max_thinking_steps=steps, max_tokens=max_tokens
            ),
            policy=Policy(strategy=strategy),
        )
        answer = await answer_of(chat, request)
        assert await num_running(chat) == 0
    assert answer.end.num_tokens <= max_tokens
    if budget is not None:
        assert answer.end.num_reasoning_tokens <= budget
        tokenizer = TemplateTokenizer(TEMPLATES[name])
        assert len(tokenizer.encode(answer.reasoning or "")) <= budget
    if budget is not None or steps is not None:
        assert answer.content
        assert ANSWER.startswith(answer.content)
        opening, closer, lead = TAGS[name]
        # The target also continues drafted steps that are rejected, so not every text is the answer's.
        continued = [text.partition(opening)[2].partition(closer) for text in target.texts]
        wanted = (answer.reasoning or "").removesuffix("\n")
        assert any(
            closed
            and thought.removesuffix("\n") == wanted
            and (rest.startswith(lead) or lead.startswith(rest))
            for thought, closed, rest in continued
        )
