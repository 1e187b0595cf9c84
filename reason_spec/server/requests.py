"""Turns request bodies into requests of the chat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from reason_spec.chat.base import ChatRequest, ChatSampling, Policy, TextRequest
from reason_spec.chat.sampling import read_logit_bias
from reason_spec.errors import RequestError, SettingsError
from reason_spec.server.base import ApiError, Client
from reason_spec.server.predicted_calls import ReadOnlyMarks
from reason_spec.server.protocol import (
    Body,
    ChatBody,
    CompletionBody,
    Function,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    TextFormat,
)
from reason_spec.server.protocol_base import SpeculationOptions
from reason_spec.tools_ahead.calls import ReadOnlyTools, annotated_tools
from reason_spec.types import Constraint

ANY_OBJECT = '{"type": "object"}'


def chat_request(body: ChatBody, client: Client, max_tokens: int | None, session: str) -> ChatRequest:
    """Return the request of a body; ``max_tokens`` is the limit that the operator allows.

    Raises:
        RequestError: two fields do not go together.
        ApiError: the client may not ask for it.
    """
    _check_last_turn(body)
    choice = body.tool_choice or "auto"
    return ChatRequest(
        messages=[message.to_message() for message in body.messages],
        tools=[
            tool.model_dump(exclude_none=True, exclude={"function": {"annotations"}})
            for tool in body.tools or ()
        ],
        tool_choice=choice.function.name if isinstance(choice, NamedTool) else choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        constraint=constraint_of(body.response_format, body.structured_outputs),
        sampling=replace(
            _sampling(body, max_tokens),
            thinking_token_budget=body.thinking_token_budget,
            max_thinking_steps=body.max_thinking_steps,
        ),
        policy=policy_of(body.reason_spec, client, rated=bool(body.logprobs)),
        chat_arguments=_chat_arguments(body),
        reasoning_effort=body.reasoning_effort,
        continue_final=bool(body.continue_final_message),
        tenant=client.tenant,
        cache_salt=body.cache_salt or "",
        session=session,
        logprobs=bool(body.logprobs),
    )


def text_requests(
    body: CompletionBody, client: Client, max_tokens: int | None, session: str
) -> list[TextRequest]:
    """Return the request for each prompt; see `chat_request`."""
    prompts = body.prompts
    if not prompts or any(not prompt for prompt in prompts):
        raise RequestError("a prompt is empty; give text or token ids", param="prompt")
    return [
        TextRequest(
            prompt=prompt,
            constraint=constraint_of(body.response_format, body.structured_outputs),
            sampling=_sampling(body, max_tokens),
            policy=policy_of(body.reason_spec, client, rated=body.logprobs is not None),
            tenant=client.tenant,
            cache_salt=body.cache_salt or "",
            session=session,
        )
        for prompt in prompts
    ]


def policy_of(options: SpeculationOptions | None, client: Client, *, rated: bool = False) -> Policy:
    """Return how an answer may be accelerated.

    Args:
        rated: each token needs the target's log-probability, so no drafted step is accepted.

    Raises:
        ApiError: the client may not choose.
    """
    if options is None:
        # An inserted prompt of the answer has no log-probabilities.
        return Policy(strategy="prompt_lookup", exit="none") if rated else Policy()
    if not client.trusted:
        message = "this key may not choose how answers are sped up; leave 'reason_spec' out"
        raise ApiError(403, message, kind="permission_error", param="reason_spec", code="not_trusted")
    return Policy(**options.model_dump(exclude={"read_only_tools"}))


def read_only_marks(functions: Iterable[Function], options: SpeculationOptions | None) -> ReadOnlyMarks:
    """Return what a request says of tools that only read, by their annotations and by rules.

    Raises:
        RequestError: a rule has another form.
    """
    names = annotated_tools(function.model_dump() for function in functions)
    try:
        rules = ReadOnlyTools((options and options.read_only_tools) or ())
    except SettingsError as error:
        raise RequestError(str(error), param="reason_spec.read_only_tools") from None
    return ReadOnlyMarks(frozenset(names), rules)


def constraint_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> Constraint | None:
    """Return the constraint of the answer; None: it is free.

    Raises:
        RequestError: both are given, or not exactly one way of the second.
    """
    bound = None if isinstance(response_format, TextFormat) else response_format
    if bound is not None and structured is not None:
        message = "both bind the answer; give one of 'response_format' and 'structured_outputs'"
        raise RequestError(message, param="structured_outputs")
    match bound:
        case JsonObjectFormat():
            return Constraint(json_schema=ANY_OBJECT)
        case JsonSchemaFormat():
            return Constraint(json_schema=json.dumps(bound.json_schema.schema_))
    return None if structured is None else _structured(structured)


def _structured(options: StructuredOutputs) -> Constraint:
    schema = options.json_ if isinstance(options.json_, str | None) else json.dumps(options.json_)
    if options.json_object:
        schema = schema or ANY_OBJECT
    try:
        return Constraint(
            json_schema=schema,
            regex=options.regex,
            choice=tuple(options.choice or ()),
            grammar=options.grammar,
        )
    except ValueError:
        message = "give exactly one of json, regex, choice, grammar and json_object"
        raise RequestError(message, param="structured_outputs") from None


def _sampling(body: Body, max_tokens: int | None) -> ChatSampling:
    return ChatSampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=None if body.top_k is None else max(0, body.top_k),
        seed=body.seed,
        max_tokens=max_tokens,
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=read_logit_bias(body.logit_bias or {}),
    )


def _chat_arguments(body: ChatBody) -> dict[str, Any]:
    """Return the free arguments of the chat template."""
    arguments = dict(body.chat_template_kwargs or {})
    if "chat_template" in arguments:
        message = "a chat template comes from the operator alone; leave it out"
        raise RequestError(message, param="chat_template_kwargs.chat_template")
    return arguments


def _check_last_turn(body: ChatBody) -> None:
    begins = body.add_generation_prompt
    if body.continue_final_message and begins:
        message = "the last turn is either gone on with or answered; set one of them to false"
        raise RequestError(message, param="add_generation_prompt")
    if begins is False and not body.continue_final_message:
        message = "set 'continue_final_message' to go on within the last turn, or leave this out"
        raise RequestError(message, param="add_generation_prompt")
    if body.continue_final_message and body.messages[-1].role != "assistant":
        message = "the last turn is not the assistant's; there is nothing to go on within"
        raise RequestError(message, param="continue_final_message")
