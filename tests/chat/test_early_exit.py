"""In a chat the thinking ends early and the answer follows; other text is shortened only where it is free."""

from __future__ import annotations

import pytest

from reason_spec.chat.base import ChatSampling, Policy, TextDelta
from reason_spec.settings import load_settings
from tests.chat.scripted import ADD, answer_of, asks, chat_with, events_of, num_running

QUESTION = "Ana has 3 boxes of 4 apples. She eats 2 apples. How many apples are left?"
STEPS = (
    "Ana has 3 boxes of 4 apples, so she has 3 * 4 = 12 apples.\n\n",
    "She eats 2 of them: 12 - 2 = 10. So 10 apples are left.\n\n",
    "Wait, let me check that again. 3 * 4 = 12 and 12 - 2 = 10. Correct.\n\n",
    "Therefore, the answer is 10 apples.\n\n",
    "I have checked it twice now.\n\n",
)
THOUGHT = "".join(STEPS)
ANSWER = "There are 10 apples left."
THINKS = {QUESTION: f"{THOUGHT}</think>\n\n{ANSWER}"}
TALKS = {QUESTION: THOUGHT + "That is all."}
EARLY = Policy(exit="policy", exit_threshold=0.5)


def settings(**flags: object):  # type: ignore[no-untyped-def]
    return load_settings(flags={"strategy.planner": False, **flags})


@pytest.mark.parametrize("strategy", ["autoregressive", "prompt_lookup", "lookahead"])
async def test_a_request_ends_its_thinking_and_gets_the_whole_answer(strategy: str) -> None:
    policy = Policy(exit="policy", exit_threshold=0.5, strategy=strategy)
    async with chat_with(THINKS, thinking=True) as chat:
        whole = await answer_of(chat, asks(QUESTION))
        short = await answer_of(chat, asks(QUESTION, policy=policy))
        assert await num_running(chat) == 0
    assert whole.reasoning == THOUGHT
    assert short.reasoning is not None
    assert THOUGHT.startswith(short.reasoning)
    assert len(short.reasoning) < len(THOUGHT)
    assert short.content == whole.content == ANSWER
    assert short.end.finish == "stop"
    assert short.end.num_reasoning_tokens < whole.end.num_reasoning_tokens
    report = short.end.report
    assert (report.loss_class, report.step_loss_class, report.exit_rule) == ("shortened", "exact", "policy")
    assert report.early_exit is not None
    assert report.early_exit.answer == "10"
    assert report.thinking_ended_by == "monitor"
    assert (whole.end.report.loss_class, whole.end.report.exit_rule) == ("exact", None)


async def test_the_settings_end_every_thinking_and_a_request_may_refuse() -> None:
    early = settings(**{"exit.rule": "policy", "exit.threshold": 0.5})
    async with chat_with(THINKS, thinking=True, settings=early) as chat:
        short = await answer_of(chat, asks(QUESTION))
        whole = await answer_of(chat, asks(QUESTION, policy=Policy(exit="none")))
        exact = await answer_of(chat, asks(QUESTION, policy=Policy(loss_class="exact")))
    assert short.end.report.early_exit is not None
    assert whole.reasoning == exact.reasoning == THOUGHT
    assert exact.end.report.loss_class == "exact"


async def test_trials_are_reported_and_leave_the_thinking_as_it_is() -> None:
    policy = Policy(exit="dynasor")
    early = settings(**{"exit.probe_every": 10, "exit.agreeing": 50})
    async with chat_with(THINKS, thinking=True, settings=early) as chat:
        probed = await answer_of(chat, asks(QUESTION, policy=policy))
    assert probed.reasoning == THOUGHT
    assert probed.content == ANSWER
    assert probed.end.report.early_exit is None
    assert probed.end.report.num_probes > 0
    assert probed.end.report.num_probe_tokens > 0


async def test_an_answer_without_thinking_is_led_to_its_end() -> None:
    early = settings(**{"exit.answer_prompt": "In short: the answer is 10."})
    async with chat_with(TALKS, settings=early) as chat:
        short = await answer_of(chat, asks(QUESTION, policy=EARLY))
        events = await events_of(chat, asks(QUESTION, policy=EARLY))
        bound = await answer_of(chat, asks(QUESTION, policy=EARLY, tools=[ADD]))
    assert short.content is not None
    assert "In short: the answer is 10." in short.content
    assert short.end.report.loss_class == "shortened"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == short.content
    assert bound.content == TALKS[QUESTION]
    assert bound.end.report.exit_rule is None


async def test_a_budget_still_holds_beside_a_rule() -> None:
    sampling = ChatSampling(thinking_token_budget=30)
    async with chat_with(THINKS, thinking=True) as chat:
        short = await answer_of(chat, asks(QUESTION, policy=Policy(exit="deer"), sampling=sampling))
    assert short.end.num_reasoning_tokens <= 30
    assert short.end.report.thinking_ended_by == "tokens"
    assert short.content == ANSWER
