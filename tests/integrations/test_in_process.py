"""The models on their own thread, requests from what frameworks pass, and plain functions over both."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from reason_spec.chat.base import ChatEnd, ChatRequest, TextDelta
from reason_spec.errors import EngineError, MissingDependencyError, RequestError
from reason_spec.integrations.base import OPTIONS, InProcess, chat_request, missing
from reason_spec.integrations.callable import Answerer, wrap
from tests.integrations.conftest import SCRIPT

APPLES = "How many apples does Ben have?"
SOLUTION = "Ana has 12 apples.\n\nBen has 5 more, so 12 + 5 = 17.\n\nThe answer is 17."
WEATHER = "How warm is it in Paris?"
WARM = "It is 21 degrees in Paris."
TOOL = {
    "type": "function",
    "function": {
        "name": "temperature",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def scripted(**flags: Any) -> InProcess:
    return InProcess(
        target__model=str(SCRIPT), target__kind="scripted", strategy__name="autoregressive", **flags
    )


def asked(question: str, **options: object) -> ChatRequest:
    return chat_request([{"role": "user", "content": question}], options)


# --- the thread ----------------------------------------------------------------------------------------


def test_models_start_with_the_first_call_and_serve_any_thread_and_loop() -> None:
    ends: list[ChatEnd] = []
    with scripted(on_end=ends.append) as models:
        assert models.chat(asked(APPLES)).content == SOLUTION

        async def twice() -> list[str | None]:
            answers = await asyncio.gather(models.achat(asked(APPLES)), models.achat(asked("What?")))
            return [answer.content for answer in answers]

        assert asyncio.run(twice()) == [SOLUTION, "I do not know."]
        found: list[str | None] = []
        thread = threading.Thread(target=lambda: found.append(models.chat(asked(APPLES)).content))
        thread.start()
        thread.join()
        assert found == [SOLUTION]
    assert [end.finish for end in ends] == ["stop"] * 4


def test_streams_end_where_they_are_closed_and_the_models_go_on() -> None:
    with scripted() as models:
        stream = models.stream(asked(APPLES))
        assert isinstance(next(stream), TextDelta)
        stream.close()

        async def first() -> None:
            events = models.astream(asked(APPLES))
            assert isinstance(await anext(events), TextDelta)
            await events.aclose()

        asyncio.run(first())
        texts = [event.text for event in models.stream(asked(APPLES)) if isinstance(event, TextDelta)]
        assert "".join(texts) == SOLUTION


def test_thinking_comes_apart_from_the_answer_streamed_and_not(thinker: InProcess) -> None:
    answer = thinker.chat(asked("?"))
    events = [event for event in thinker.stream(asked("?")) if isinstance(event, TextDelta)]
    silent = thinker.chat(asked("?", chat_arguments={"enable_thinking": False}))
    assert ((answer.reasoning or "").strip(), answer.content) == ("Hm.", "Yes.")
    assert answer.end.num_reasoning_tokens > 0
    for channel, whole in (("reasoning", answer.reasoning), ("content", answer.content)):
        assert "".join(event.text for event in events if event.channel == channel) == whole
    assert (silent.reasoning, silent.content) == (None, "Yes.")


def test_limits_of_the_thinking_are_options_of_every_wrapper(thinker: InProcess) -> None:
    for name, value, ended_by, most in (
        ("thinking_token_budget", 1, "tokens", 1),
        ("max_thinking_steps", 0, "steps", 0),
        ("thinking_token_budget", 500, "model", 500),
        ("reasoning_effort", "low", "model", 1024),
    ):
        answer = thinker.chat(asked("?", **{name: value}))
        assert answer.content == "Yes."
        assert answer.end.report.thinking_ended_by == ended_by
        assert answer.end.num_reasoning_tokens <= most
    with pytest.raises(RequestError, match="thinking_token_budget"):
        thinker.chat(asked("?", thinking_token_budget="1"))


def test_a_cancelled_call_leaves_nothing_running_and_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with scripted() as models:

        async def cancelled() -> None:
            task = asyncio.create_task(models.achat(asked(APPLES)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stream = models.astream(asked(APPLES))
            await anext(stream)
            await stream.aclose()

        asyncio.run(cancelled())
        gc.collect()
        assert not caplog.records
        assert models.chat(asked(APPLES)).content == SOLUTION
        assert models._thread is not None
        assert not models._thread.tasks


def test_closing_ends_what_is_under_way_and_no_call_follows(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text('{answers: {"?": "one two three four"}, seconds_per_pass: 0.2}')
    models = InProcess(target__model=str(slow), target__kind="scripted", strategy__name="autoregressive")
    stream = models.stream(asked("?"))
    next(stream)
    models.close()
    models.close()
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    with pytest.raises(EngineError, match="closed; make a new"):
        models.chat(asked(APPLES))


def test_errors_reach_whoever_called() -> None:
    with scripted() as models:
        with pytest.raises(RequestError, match="unknown strategy"):
            models.chat(asked(APPLES, strategy="none such"))
        with pytest.raises(RequestError, match="unknown strategy"):
            list(models.stream(asked(APPLES, strategy="none such")))
        assert models.chat(asked(APPLES)).content == SOLUTION


# --- requests ------------------------------------------------------------------------------------------


def test_options_go_where_they_belong() -> None:
    request = asked(APPLES, temperature=0.5, stop="x", strategy="prompt_lookup", off=None, tenant="ann")
    assert (request.sampling.temperature, request.sampling.stop) == (0.5, ("x",))
    assert (request.policy.strategy, request.policy.off, request.tenant) == ("prompt_lookup", False, "ann")


def test_biases_are_taken_in_the_form_of_openai_too() -> None:
    assert asked(APPLES, logit_bias={"5": -100, 7: 2.5}).sampling.logit_bias == {5: -100, 7: 2.5}
    for bias in ({"five": 1}, {"5": "1"}, {"5": 101}, {"-5": 1}):
        with pytest.raises(RequestError, match=r"token id|a bias is between"):
            asked(APPLES, logit_bias=bias)


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(RequestError, match=r"unknown option 'max_token'; did you mean 'max_tokens'\?"):
        asked(APPLES, max_token=3)
    with pytest.raises(RequestError, match="unknown option"):
        Answerer(temprature=1)
    assert {"strategy", "verifier", "depth", "loss_class", "seed", "tenant"} <= OPTIONS


@pytest.mark.parametrize(
    ("choice", "passed_on"),
    [
        (None, "auto"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "temperature"}}, "temperature"),
    ],
)
def test_a_choice_of_tools_is_read_in_all_its_forms(choice: object, passed_on: str) -> None:
    assert chat_request([], {"tools": [TOOL], "tool_choice": choice}).tool_choice == passed_on


def test_a_response_format_becomes_a_constraint() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    constraint = chat_request([], {"response_format": form}).constraint
    assert constraint is not None
    assert constraint.json_schema == '{"type": "integer"}'
    assert chat_request([], {"response_format": {"type": "text"}}).constraint is None
    with pytest.raises(RequestError, match="its type is text, json_object or json_schema"):
        chat_request([], {"response_format": {"type": "xml"}})


def test_a_framework_that_is_missing_is_named_with_its_install_line() -> None:
    found = missing(ModuleNotFoundError(name="pydantic_ai"), "pydantic-ai-slim", "pydantic-ai")
    assert isinstance(found, MissingDependencyError)
    assert "pip install 'reason-spec[pydantic-ai]'" in str(found)
    broken = ModuleNotFoundError(name="something_else")
    assert missing(broken, "litellm", "litellm") is broken


# --- plain functions -----------------------------------------------------------------------------------


def test_a_wrapped_function_calls_the_models_with_no_change_to_it() -> None:
    def solve(ask: Callable[..., str], question: str, *, loud: bool) -> str:
        """Solves."""
        return ask(question).upper() if loud else ask([{"role": "user", "content": question}])

    async def solve_later(ask: Callable[..., Awaitable[object]], question: str) -> object:
        return await ask(question)

    with scripted() as models:
        fast = wrap(solve, models)
        assert fast(APPLES, loud=True) == SOLUTION.upper()
        assert fast(APPLES, loud=False) == SOLUTION
        assert fast.__doc__ == "Solves."
        assert asyncio.run(wrap(solve_later, models)(APPLES)) == SOLUTION


def test_messages_of_a_plain_loop_with_a_tool_go_back_as_they_are() -> None:
    with scripted() as models:
        ask = Answerer(models, max_tokens=64)
        messages: list[dict[str, Any]] = [{"role": "user", "content": WEATHER}]
        messages.append(ask.message(messages, tools=[TOOL]))
        (call,) = messages[-1]["tool_calls"]
        assert call["function"]["name"] == "temperature"
        result = "Paris: 21 degrees, measured at noon"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        assert ask(messages, tools=[TOOL]) == WARM
        assert "".join(ask.stream(messages, tools=[TOOL])) == WARM
        assert asyncio.run(ask.acall(messages, max_tokens=2)) == "It is"


def test_the_pair_answers_and_says_what_speculation_did(pair: InProcess) -> None:
    ask = Answerer(pair)
    question = "Ana has 12 apples. Ben has 5 more apples than Ana. How many apples does Ben have?"
    fast, alone = ask.answer(question, loss_class="exact"), ask.answer(question, off=True)
    assert fast.content == alone.content
    assert fast.end.report.loss_class == "exact"
    assert alone.end.report.strategy == "autoregressive"
