"""Prepares a request: checks it against the models, encodes its prompt and chooses its strategies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.requests import GenerationRequest, Prompts
from reason_spec.accelerator.thinking import EFFORT, UNLIMITED, Thinking, ThinkingOptions, early_exit_limit
from reason_spec.chat.base import CallListener, ChatRequest, TextRequest
from reason_spec.chat.call_forms import HARMONY, HERMES, CallForm, form_of
from reason_spec.chat.messages import normalised
from reason_spec.chat.policy import AnswerStrategies, choose_strategies
from reason_spec.chat.sampling import has_tokens, logit_bias_of, sampling_of, stop_ids_of, stops_of
from reason_spec.chat.tools import (
    TemplateAbilities,
    abilities_of,
    calls_grammar,
    offered_tools,
    render_messages,
)
from reason_spec.errors import (
    ConstraintError,
    EngineError,
    MissingDependencyError,
    RequestError,
    SettingsError,
)
from reason_spec.settings import ExitSettings
from reason_spec.strategies.thinking import ThinkingLimit
from reason_spec.types import Constraint, NoiseKey, Sampling

_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request and the form in which their calls are written.

    ``is_forced``: the answer has to be a call. ``parallel``: it may hold several. ``on_drafted`` takes calls
    in drafted steps.
    """

    tools: tuple[Mapping[str, Any], ...]
    form: CallForm
    parallel: bool
    is_forced: bool
    on_drafted: CallListener | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be answered, for any number of choices.

    Args:
        request: the part shared by thinking and answer. The stops apply only to the answer.
        max_tokens: tokens of one answer; they fit into the context.
        seed: the noise of all choices; None: random noise for each.
        thinking: None if the model does not think.
        limit: limits the thinking, or the answer of a model that does not think; None: nothing does.
        constraint: restricts the answer, not the thinking.
        tools: None if calls in the answer are not parsed.
        logprobs: see `ChatRequest`.
    """

    request: GenerationRequest
    prompts: Prompts
    strategies: AnswerStrategies
    max_tokens: int
    seed: int | None
    thinking: Thinking | None
    limit: ThinkingLimit | None
    constraint: Constraint | None
    tools: OfferedTools | None
    logprobs: bool

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompts.target)

    @property
    def prompt_field(self) -> str:
        """The field of the wire form that holds the prompt."""
        return _prompt_field(self.request)

    def sampling(self, index: int) -> Sampling:
        """Return how tokens of choice ``index`` are chosen."""
        assert self.request.sampling is not None
        seed = self.seed
        if seed is None:
            seed = 0 if self.request.sampling.greedy else secrets.randbits(31)
        return replace(self.request.sampling, noise=NoiseKey(seed, 0, index))


class Preparation:
    """Prepares the requests of one accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._abilities: TemplateAbilities | None = None

    async def prepare(self, asked: ChatRequest | TextRequest) -> PreparedRequest:
        """Return the prepared request.

        Raises:
            RequestError: it cannot be answered; ``param`` names the field at fault.
        """
        accelerator, target, sampling = self._accelerator, self._accelerator.target, asked.sampling
        tools = None
        if isinstance(asked, ChatRequest):
            request, tools = await self._conversation(asked)
        else:
            request = GenerationRequest(prompt=self._known_prompt(asked.prompt))
        request = replace(
            request,
            sampling=sampling_of(accelerator, sampling),
            stops=stops_of(accelerator, sampling),
            stop_ids=stop_ids_of(target, sampling),
            logit_bias=logit_bias_of(target, sampling),
            tenant=asked.tenant,
            cache_salt=asked.cache_salt,
            session=asked.session,
        )
        constraint = await self._constraint(asked.constraint, tools)
        prompts = await self._encode(request)
        thinking = accelerator.generator.thinking_of(request, prompts)
        if tools is not None:
            tools = replace(tools, form=_form_of(tools, thinking, constraint))
            if thinking is not None and tools.form == HARMONY:
                thinking = thinking.without_final_channel()
        draft = accelerator.draft
        strategies = choose_strategies(
            accelerator,
            asked.policy,
            thinks=thinking is not None,
            offers_tools=tools is not None,
            is_constrained=constraint is not None,
            is_biased=bool(request.logit_bias),
            ends_at_tokens=bool(request.stop_ids),
            draft_has_room=draft is None or len(prompts.draft or ()) < draft.max_context,
            # A bare text is continued; it need not be a question.
            may_exit=bool(request.messages),
        )
        room = self._room(request, prompts, thinking)
        max_tokens = min(sampling.max_tokens or accelerator.settings.sampling.max_tokens, room)
        if thinking is not None:
            limit = self._limit(request, thinking, constraint, tools, strategies.exit)
        elif strategies.exit.is_on:
            limit = early_exit_limit(strategies.exit, accelerator.settings.target)
        else:
            limit = None
        return PreparedRequest(
            replace(request, thinking=None),
            prompts,
            strategies,
            max_tokens,
            sampling.seed,
            thinking,
            limit,
            constraint,
            tools,
            isinstance(asked, ChatRequest) and asked.logprobs,
        )

    def _limit(
        self,
        request: GenerationRequest,
        thinking: Thinking,
        constraint: Constraint | None,
        tools: OfferedTools | None,
        ends_early: ExitSettings,
    ) -> ThinkingLimit | None:
        """Return the limit of a thinking; the prompt of a free answer is no part of a call or of a format."""
        assert isinstance(request.thinking, ThinkingOptions)
        try:
            limit = request.thinking.limit(
                thinking,
                self._accelerator.settings.thinking,
                self._accelerator.target.tokenizer.chat_template,
                stands_alone=True,
                prompts_answer=constraint is None and tools is None,
                ends_early=ends_early,
            )
        except SettingsError as error:
            raise RequestError(str(error), param=EFFORT) from None
        # The opening tag is written before it.
        return None if limit is None else replace(limit, opening="")

    async def _conversation(self, asked: ChatRequest) -> tuple[GenerationRequest, OfferedTools | None]:
        messages = normalised(asked.messages)
        if asked.continue_final and messages[-1]["role"] != "assistant":
            raise RequestError(
                "only a message of the assistant can be gone on with, and the last one is not",
                param="continue_final_message",
            )
        for name in _RESERVED & asked.chat_arguments.keys():
            raise RequestError(
                f"chat_template_kwargs.{name}: it is a field of its own", param=f"chat_template_kwargs.{name}"
            )
        tools = offered_tools(asked.tools, asked.tool_choice)
        if self._abilities is None:
            self._abilities = await asyncio.to_thread(self._find_abilities)
        abilities = self._abilities
        request = GenerationRequest(
            messages=render_messages(messages, tools, abilities),
            tools=tools if abilities.tools else (),
            chat_arguments=asked.chat_arguments,
            continue_final=asked.continue_final,
            thinking=_thinking_options(asked),
        )
        if not tools:
            return request, None
        template = self._accelerator.target.tokenizer.chat_template if abilities.tools else None
        is_forced = asked.tool_choice not in ("none", "auto")
        parallel = asked.parallel_tool_calls and asked.tool_choice in ("auto", "required")
        return request, OfferedTools(tools, form_of(template), parallel, is_forced, asked.on_drafted_call)

    def _find_abilities(self) -> TemplateAbilities:
        # Both models read one conversation.
        abilities = abilities_of(self._accelerator.target.tokenizer)
        if self._accelerator.draft is not None:
            abilities &= abilities_of(self._accelerator.draft.tokenizer)
        return abilities

    def _known_prompt(self, prompt: str | tuple[int, ...]) -> str | tuple[int, ...]:
        """Return the prompt, after checking that the target has its tokens.

        Raises:
            RequestError: the target lacks one of them.
        """
        if isinstance(prompt, str):
            return prompt
        target = self._accelerator.target
        try:
            target.tokenizer.decode_prompt(prompt)
            known = has_tokens(target, prompt)
        except KeyError:
            known = False
        if not known:
            raise RequestError("the prompt holds tokens that the model does not have", param="prompt")
        return prompt

    async def _constraint(
        self, constraint: Constraint | None, tools: OfferedTools | None
    ) -> Constraint | None:
        """Return the constraint on the answer, after the target has accepted it."""
        target = self._accelerator.target
        is_forced = tools is not None and tools.is_forced
        if (constraint is None and not is_forced) or (is_forced and not target.takes_constraints):
            return None
        param = "tools" if is_forced else "response_format"
        try:
            if tools is not None:
                # A forced call leaves no text that a format could restrict.
                schema = None if is_forced else _schema_beside_tools(constraint)
                constraint = calls_grammar(tools.tools, parallel=tools.parallel, answer_schema=schema)
            assert constraint is not None, "a forced call has tools"
            await target.check_constraint(constraint)
        except MissingDependencyError as error:
            if is_forced:
                # The model is trusted to call.
                return None
            raise RequestError(str(error), param=param) from None
        except ConstraintError as error:
            raise RequestError(str(error), param=param) from None
        return constraint

    async def _encode(self, request: GenerationRequest) -> Prompts:
        param = _prompt_field(request)
        try:
            prompts = await asyncio.to_thread(self._accelerator.encode, request)
        except EngineError as error:
            raise RequestError(str(error), param=param) from None
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the prompt holds no proper characters: {error.reason}", param=param
            ) from None
        if not len(prompts.target):
            raise RequestError("the prompt is empty", param=param)
        return prompts

    def _room(self, request: GenerationRequest, prompts: Prompts, thinking: Thinking | None) -> int:
        """Return the tokens that the context leaves for the answer, at least 1."""
        target = self._accelerator.target
        num_opening = len(target.tokenizer.encode(thinking.opening)) if thinking else 0
        num_prompt_tokens = len(prompts.target) + num_opening
        room = target.max_context - num_prompt_tokens
        if room < 1:
            raise RequestError(
                f"the model's maximum context length is {target.max_context} tokens; the prompt has "
                f"{num_prompt_tokens} and leaves no room for an answer: shorten it",
                param=_prompt_field(request),
            )
        return room


def _thinking_options(asked: ChatRequest) -> ThinkingOptions:
    sampling = asked.sampling
    for name, least in (("thinking_token_budget", UNLIMITED), ("max_thinking_steps", 0)):
        value = getattr(sampling, name)
        if value is not None and (type(value) is not int or value < least):
            raise RequestError(f"{name} is {value!r}: give a number of at least {least}", param=name)
    return ThinkingOptions(
        token_budget=sampling.thinking_token_budget,
        max_steps=sampling.max_thinking_steps,
        effort=asked.reasoning_effort,
    )


def _form_of(tools: OfferedTools, thinking: Thinking | None, constraint: Constraint | None) -> CallForm:
    """Return the form in which calls are written in an answer."""
    if constraint is not None:
        # Its grammar is of this form.
        return HERMES
    # Without a thinking before it, the channel of an answer is chosen already, or not shown.
    return HERMES if tools.form == HARMONY and thinking is None else tools.form


def _prompt_field(request: GenerationRequest) -> str:
    return "messages" if request.prompt is None else "prompt"


def _schema_beside_tools(constraint: Constraint | None) -> str:
    assert constraint is not None, "without a format calls are not restricted"
    if constraint.json_schema is None:
        raise RequestError(
            "beside tools only a json_schema can bind the answer: leave out one of the two",
            param="response_format",
        )
    return constraint.json_schema
