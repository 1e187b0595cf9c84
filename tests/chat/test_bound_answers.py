"""Answers that have to be of a form: the target writes them alone, and the report says so."""

from __future__ import annotations

from typing import Any

import pytest

from reason_spec.chat.base import ChatRequest, ChatSampling, Policy
from reason_spec.errors import EngineError, RequestError
from reason_spec.types import Constraint
from tests.chat.scripted import ADD, LOOK, answer_of, asks, chat_with

ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
TWO = '\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'
SCHEMA = '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}'
JSON = '{"x": 4}'
TOOLS = [ADD, LOOK]


def needs_llguidance() -> None:
    pytest.importorskip("llguidance")


@pytest.mark.parametrize(
    ("text", "more", "names"),
    [
        (ONE, {"tool_choice": "add"}, ["add"]),
        (ONE, {"tool_choice": "required", "parallel_tool_calls": False}, ["add"]),
        (ONE + TWO, {"tool_choice": "required"}, ["add", "look"]),
    ],
)
async def test_an_answer_that_has_to_call_calls(text: str, more: dict[str, Any], names: list[str]) -> None:
    async with chat_with({"sums": text}) as chat:
        answer = await answer_of(chat, asks("sums", tools=TOOLS, **more))
    assert [call.name for call in answer.tool_calls] == names
    assert (answer.content, answer.end.finish) == (None, "tool_calls")


async def test_a_model_that_is_trusted_to_call_and_does_not_has_said_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chat_with({"sums": "No."}) as chat:
        monkeypatch.setattr(chat.accelerator.target, "takes_constraints", False)
        answer = await answer_of(chat, asks("sums", tools=TOOLS, tool_choice="required"))
    assert (answer.content, answer.tool_calls, answer.end.finish) == ("No.", (), "stop")


async def test_a_format_binds_the_answer_and_not_the_thinking() -> None:
    needs_llguidance()
    request = asks("sums", constraint=Constraint(json_schema=SCHEMA))
    async with chat_with({"sums": JSON}) as chat:
        answer = await answer_of(chat, request)
    assert answer.content == JSON
    assert (answer.end.report.strategy, answer.end.report.reason) == ("autoregressive", "bound output")
    async with chat_with({"sums": f"Four it is.\n\n</think>\n\n{JSON}"}, thinking=True) as chat:
        answer = await answer_of(chat, request)
    assert (answer.content, answer.reasoning) == (JSON, "Four it is.\n\n")
    report = answer.end.report
    assert (report.strategy, report.exact_answer_by, report.reason) == (
        "lookahead",
        "autoregressive",
        "bound output",
    )


@pytest.mark.parametrize("text", [JSON, ONE + TWO])
async def test_beside_tools_a_format_leaves_room_for_calls(text: str) -> None:
    needs_llguidance()
    async with chat_with({"sums": text}) as chat:
        answer = await answer_of(chat, asks("sums", tools=TOOLS, constraint=Constraint(json_schema=SCHEMA)))
        with pytest.raises(EngineError, match="breaks"):
            await answer_of(
                chat,
                asks("sums", tools=TOOLS, constraint=Constraint(json_schema='{"type": "boolean"}'))
                if text == JSON
                else asks("sums", tools=[ADD], constraint=Constraint(json_schema=SCHEMA)),
            )
    assert answer.content == (JSON if text == JSON else None)
    assert len(answer.tool_calls) == (0 if text == JSON else 2)


@pytest.mark.parametrize(
    ("constraint", "tools", "choice", "param"),
    [
        (Constraint(json_schema="[}"), (), "auto", "response_format"),
        (Constraint(json_schema='{"type": "no such"}'), (), "auto", "response_format"),
        (Constraint(regex="("), (), "auto", "response_format"),
        (Constraint(json_schema="[}"), TOOLS, "auto", "response_format"),
        (Constraint(regex="a"), TOOLS, "auto", "response_format"),
        (
            None,
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "no such"}}}],
            "required",
            "tools",
        ),
    ],
)
async def test_what_cannot_bind_is_refused_before_anything_runs(
    constraint: Constraint | None, tools: Any, choice: str, param: str
) -> None:
    needs_llguidance()
    async with chat_with({"sums": JSON}) as chat:
        with pytest.raises(RequestError) as error:
            await chat.prepare(asks("sums", constraint=constraint, tools=tools, tool_choice=choice))
    assert error.value.param == param


async def test_an_engine_that_cannot_bind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chat_with({"sums": JSON}) as chat:
        monkeypatch.setattr(chat.accelerator.target, "takes_constraints", False)
        monkeypatch.delattr(type(chat.accelerator.target), "check_constraint")
        with pytest.raises(RequestError, match="cannot") as error:
            await chat.prepare(asks("sums", constraint=Constraint(json_schema=SCHEMA)))
        assert error.value.param == "response_format"
        with pytest.raises(RequestError) as error:
            await chat.prepare(asks("sums", sampling=ChatSampling(logit_bias={1: 1.0})))
        assert error.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [(ChatSampling(logit_bias={1: 1.0}), "logit_bias"), (ChatSampling(ignore_eos=True), "ignore_eos")],
)
async def test_an_engine_that_takes_constraints_and_no_biases_refuses_biases(
    monkeypatch: pytest.MonkeyPatch, sampling: ChatSampling, param: str
) -> None:
    async with chat_with({"sums": JSON}) as chat:
        monkeypatch.setattr(type(chat.accelerator.target), "takes_biases", False)
        with pytest.raises(RequestError, match=f"leave {param} out") as error:
            await chat.prepare(asks("sums", sampling=sampling))
    assert error.value.param == param


async def test_biases_leave_the_target_alone() -> None:
    request = asks("sums", sampling=ChatSampling(logit_bias={1: 1.0}))
    async with chat_with({"sums": JSON}) as chat:
        answer = await answer_of(chat, request)
        off = await answer_of(
            chat, ChatRequest(messages=request.messages, sampling=request.sampling, policy=Policy(off=True))
        )
    assert (answer.end.report.strategy, answer.end.report.reason) == ("autoregressive", "logit bias")
    assert off.end.report.reason is None


@pytest.mark.parametrize("bias", [{-1: 1.0}, {1: float("nan")}])
async def test_biases_of_no_token_or_without_a_number_are_refused(bias: dict[int, float]) -> None:
    async with chat_with({"sums": JSON}) as chat:
        with pytest.raises(RequestError) as error:
            await chat.prepare(asks("sums", sampling=ChatSampling(logit_bias=bias)))
    assert error.value.param == "logit_bias"
