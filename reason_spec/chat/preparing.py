"""Requests looked at before anything runs: what is asked of whom, and whether it can be done."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from pydantic import ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.ask import GenerationRequest, Prompts
from reason_spec.chat.base import ChatRequest, ChatSampling, TextRequest
from reason_spec.chat.messages import check_text, normalised
from reason_spec.chat.policy import Writers, writers_for
from reason_spec.chat.thinking import Thinking, thinking_after
from reason_spec.chat.tool_calls import HERMES, CallForm, form_of
from reason_spec.chat.tools import (
    TemplateAbilities,
    abilities_of,
    calls_grammar,
    offered_tools,
    told,
)
from reason_spec.errors import (
    ConstraintError,
    EngineError,
    MissingDependencyError,
    RequestError,
    first_mistake,
)
from reason_spec.settings import SamplingSettings
from reason_spec.types import Constraint, NoiseKey, Sampling

_KEPT_TOKENS: Final = 1 << 20
_NEVER: Final = -100.0
"""A bias that leaves a token no chance."""
_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its prompts and limits; what depends on the choice is left open.

    ``ask`` has all that thinking and answer have in common. ``max_tokens`` fits into the context. Where
    ``form`` is given calls of ``tools`` are looked for in the answer.
    """

    ask: GenerationRequest
    prompts: Prompts
    writers: Writers
    max_tokens: int
    seed: int | None
    thinking: Thinking | None = None
    constraint: Constraint | None = None
    form: CallForm | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    parallel: bool = True

    def sampling(self, index: int) -> Sampling:
        """Return how tokens are chosen for one of several choices; without a seed samples are random."""
        assert self.ask.sampling is not None
        seed = self.seed
        if seed is None:
            seed = 0 if self.ask.sampling.greedy else secrets.randbits(31)
        return replace(self.ask.sampling, noise=NoiseKey(seed, 0, index))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A conversation and the tools that may be called in it."""

    ask: GenerationRequest | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    form: CallForm | None = None
    parallel: bool = True
    is_forced: bool = False


class Preparation:
    """Prepares requests of one accelerator; what was checked is not encoded again when it is written."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._abilities: TemplateAbilities | None = None
        # By identity: requests hold mappings, which have no hash. Kept with it, a request keeps its id.
        self._kept: OrderedDict[int, tuple[ChatRequest | TextRequest, Prepared]] = OrderedDict()

    async def prepare(self, request: ChatRequest | TextRequest) -> Prepared:
        """Return what is asked.

        Raises:
            RequestError: it cannot be done; ``param`` names the field at fault.
        """
        kept = self._kept.get(id(request))
        if kept is not None and kept[0] is request:
            self._kept.move_to_end(id(request))
            return kept[1]
        prepared = await self._prepare(request)
        self._keep(request, prepared)
        return prepared

    def _keep(self, request: ChatRequest | TextRequest, prepared: Prepared) -> None:
        self._kept[id(request)] = (request, prepared)
        num_tokens = sum(len(known.prompts.target) for _, known in self._kept.values())
        while num_tokens > _KEPT_TOKENS and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            num_tokens -= len(oldest.prompts.target)

    async def _prepare(self, request: ChatRequest | TextRequest) -> Prepared:
        accelerator, sampling = self._accelerator, request.sampling
        asked = await self._conversation(request) if isinstance(request, ChatRequest) else _Asked()
        ask = replace(
            asked.ask or GenerationRequest(prompt=_prompt(accelerator, request)),
            sampling=_sampling(accelerator, sampling),
            stops=_stops(accelerator, sampling),
            stop_ids=_stop_ids(accelerator, sampling),
            logit_bias=_logit_bias(accelerator, sampling),
            tenant=request.tenant,
            cache_salt=request.cache_salt,
        )
        constraint = await self._constraint(request, asked)
        prompts = await self._encode(ask)
        thinking = self._thinking(ask, prompts) if ask.messages else None
        draft = accelerator.draft
        writers = writers_for(
            accelerator,
            request.policy,
            thinks=thinking is not None,
            offers_tools=asked.form is not None,
            is_constrained=constraint is not None,
            is_biased=bool(ask.logit_bias),
            ends_at_tokens=bool(ask.stop_ids),
            draft_has_room=draft is None or len(prompts.draft or ()) < draft.max_context,
        )
        num_opening = len(accelerator.target.tokenizer.encode(thinking.opening)) if thinking else 0
        return Prepared(
            ask=ask,
            prompts=prompts,
            writers=writers,
            max_tokens=_max_tokens(accelerator, request, len(prompts.target) + num_opening),
            seed=sampling.seed,
            thinking=thinking,
            constraint=constraint,
            form=asked.form,
            tools=asked.tools,
            parallel=asked.parallel,
        )

    async def _conversation(self, request: ChatRequest) -> _Asked:
        messages = normalised(request.messages)
        if request.continue_final and messages[-1]["role"] != "assistant":
            raise RequestError(
                "only a message of the assistant can be gone on with, and the last one is not",
                param="continue_final_message",
            )
        for name in _RESERVED & request.chat_arguments.keys():
            raise RequestError(
                f"chat_template_kwargs.{name}: it is a field of its own", param=f"chat_template_kwargs.{name}"
            )
        tools = offered_tools(request.tools, request.tool_choice)
        if self._abilities is None:
            self._abilities = await asyncio.to_thread(self._find_abilities)
        abilities = self._abilities
        ask = GenerationRequest(
            messages=told(messages, tools, abilities),
            tools=tools if abilities.tools else (),
            chat_arguments=request.chat_arguments,
            continue_final=request.continue_final,
        )
        if not tools:
            return _Asked(ask)
        is_forced = request.tool_choice not in ("none", "auto")
        template = self._accelerator.target.tokenizer.chat_template if abilities.tools else None
        form = HERMES if is_forced and self._accelerator.target.takes_constraints else form_of(template)
        parallel = request.parallel_tool_calls and request.tool_choice in ("auto", "required")
        return _Asked(ask, tools, form, parallel, is_forced)

    def _find_abilities(self) -> TemplateAbilities:
        # One conversation is for both models.
        abilities = abilities_of(self._accelerator.target.tokenizer)
        if self._accelerator.draft is not None:
            abilities &= abilities_of(self._accelerator.draft.tokenizer)
        return abilities

    async def _constraint(self, request: ChatRequest | TextRequest, asked: _Asked) -> Constraint | None:
        """Return what the answer is bound by, once it is known to be possible."""
        constraint, target = request.constraint, self._accelerator.target
        if asked.is_forced and not target.takes_constraints:
            return None
        if constraint is None and not asked.is_forced:
            return None
        param = "tools" if asked.is_forced else "response_format"
        try:
            if asked.is_forced:
                # There is no answer beside the calls that a format could be of.
                constraint = calls_grammar(asked.tools, parallel=asked.parallel)
            elif asked.tools:
                constraint = _with_calls(constraint, asked)
            assert constraint is not None, "an answer is bound by something"
            await target.check_constraint(constraint)
        except MissingDependencyError as error:
            if asked.is_forced:
                # The model is trusted instead.
                return None
            raise RequestError(str(error), param=param) from None
        except ConstraintError as error:
            raise RequestError(str(error), param=param) from None
        return constraint

    def _thinking(self, ask: GenerationRequest, prompts: Prompts) -> Thinking | None:
        target = self._accelerator.target
        told = {**self._accelerator.settings.target.chat_template, **ask.chat_arguments}
        continued = ask.messages[-1]["content"] if ask.continue_final else None
        return thinking_after(prompts.target.to_tuple(), target.tokenizer, told, continued)

    async def _encode(self, ask: GenerationRequest) -> Prompts:
        param = "messages" if ask.prompt is None else "prompt"
        try:
            prompts = await asyncio.to_thread(self._accelerator.encode, ask)
        except EngineError as error:
            raise RequestError(str(error), param=param) from None
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the prompt holds no proper characters: {error.reason}", param=param
            ) from None
        if not len(prompts.target):
            raise RequestError("the prompt is empty", param=param)
        return prompts


def _with_calls(constraint: Constraint | None, asked: _Asked) -> Constraint:
    """Return what allows calls beside an answer that is bound."""
    assert constraint is not None, "without a format calls are not bound"
    if constraint.json_schema is None:
        raise RequestError(
            "beside tools only a json_schema can bind the answer: leave out one of the two",
            param="response_format",
        )
    return calls_grammar(asked.tools, parallel=asked.parallel, answer_schema=constraint.json_schema)


def _sampling(accelerator: Accelerator, asked: ChatSampling) -> Sampling:
    given = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    given |= {"max_tokens": asked.max_tokens, "seed": asked.seed}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        settings = SamplingSettings.model_validate({**accelerator.settings.sampling.model_dump(), **changes})
    except ValidationError as error:
        raise RequestError(first_mistake(error), param=str(error.errors()[0]["loc"][0])) from None
    return settings.for_sample(0, 0)


def _stops(accelerator: Accelerator, asked: ChatSampling) -> tuple[str, ...]:
    if not all(asked.stop):
        raise RequestError("a stop string is empty", param="stop")
    return tuple(check_text(stop, "stop") for stop in asked.stop) or accelerator.settings.sampling.stop


def _stop_ids(accelerator: Accelerator, asked: ChatSampling) -> frozenset[int]:
    target = accelerator.target
    if not asked.stop_token_ids:
        return frozenset()
    if not target.takes_stop_ids:
        raise RequestError(
            f"the server behind {target.name!r} takes and returns no token ids: give stop, which is text",
            param="stop_token_ids",
        )
    size = getattr(target.tokenizer, "vocab_size", None)
    known = "0 or more" if size is None else f"0 to {size - 1}"
    for index, token in enumerate(asked.stop_token_ids):
        if token < 0 or (size is not None and token >= size):
            raise RequestError(
                f"stop_token_ids[{index}]: the model has no token {token}; its ids are {known}: "
                "correct it or leave it out",
                param="stop_token_ids",
            )
    ends = frozenset() if asked.ignore_eos else target.tokenizer.eos_ids
    # Where the end of the text ends it anyway nobody is told of a stop.
    return frozenset(asked.stop_token_ids) - ends


def _logit_bias(accelerator: Accelerator, asked: ChatSampling) -> tuple[tuple[int, float], ...]:
    target = accelerator.target
    if not (asked.logit_bias or asked.ignore_eos):
        return ()
    if not target.takes_constraints:
        param = "logit_bias" if asked.logit_bias else "ignore_eos"
        raise RequestError(f"the engine of {target.name!r} knows no biases: leave {param} out", param=param)
    size = getattr(target.tokenizer, "vocab_size", None)
    for token, bias in asked.logit_bias.items():
        if token < 0 or (size is not None and token >= size):
            raise RequestError(f"logit_bias: the model has no token {token}", param="logit_bias")
        if not isfinite(bias):
            raise RequestError(f"logit_bias of token {token} is {bias}, not a number", param="logit_bias")
    # An end of the text that is asked for as a stop is one.
    ignored = target.tokenizer.eos_ids - set(asked.stop_token_ids) if asked.ignore_eos else ()
    ends = dict.fromkeys(ignored, _NEVER)
    return tuple({**asked.logit_bias, **ends}.items())


def _prompt(accelerator: Accelerator, request: ChatRequest | TextRequest) -> str | tuple[int, ...]:
    assert isinstance(request, TextRequest)
    if isinstance(request.prompt, str):
        return request.prompt
    tokenizer = accelerator.target.tokenizer
    size = getattr(tokenizer, "vocab_size", None)
    try:
        tokenizer.decode_prompt(request.prompt)
        known = all(token >= 0 and (size is None or token < size) for token in request.prompt)
    except KeyError:
        known = False
    if not known:
        raise RequestError("the prompt holds tokens that the model does not have", param="prompt")
    return request.prompt


def _max_tokens(accelerator: Accelerator, request: ChatRequest | TextRequest, num_prompt_tokens: int) -> int:
    room = accelerator.target.max_context - num_prompt_tokens
    if room < 1:
        raise RequestError(
            f"the model's maximum context length is {accelerator.target.max_context} tokens; the prompt has "
            f"{num_prompt_tokens} and leaves no room for an answer: shorten it",
            param="messages" if isinstance(request, ChatRequest) else "prompt",
        )
    return min(request.sampling.max_tokens or accelerator.settings.sampling.max_tokens, room)
