"""Requests looked at before anything runs: what is asked of whom, and whether it can be done."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.ask import Ask, Prompts
from reason_spec.chat.base import ChatRequest, ChatSampling, TextRequest
from reason_spec.chat.messages import check_text, normalised
from reason_spec.chat.policy import Writer, exact_writer, writer_for
from reason_spec.errors import EngineError, RequestError, first_mistake
from reason_spec.settings import SamplingSettings
from reason_spec.types import NoiseKey, Sampling

_KEPT_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its prompts and limits; what depends on the choice is left open.

    ``ask`` has all that thinking and answer have in common. ``max_tokens`` fits into the context.
    """

    ask: Ask
    prompts: Prompts
    writer: Writer
    answer_writer: Writer
    max_tokens: int
    seed: int | None
    reason: str | None = None

    def sampling(self, index: int) -> Sampling:
        """Return how tokens are chosen for one of several choices; without a seed samples are random."""
        assert self.ask.sampling is not None
        seed = self.seed
        if seed is None:
            seed = 0 if self.ask.sampling.greedy else secrets.randbits(31)
        return replace(self.ask.sampling, noise=NoiseKey(seed, 0, index))


class Preparation:
    """Prepares requests of one accelerator; what was checked is not encoded again when it is written."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        # By identity: requests hold mappings, which have no hash. The request is kept so that its id stays its own.
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
        accelerator = self._accelerator
        _refuse_what_engines_cannot(request.sampling)
        writer = writer_for(accelerator, request.policy)
        sampling = _sampling(accelerator, request.sampling)
        ask = Ask(
            messages=normalised(request.messages) if isinstance(request, ChatRequest) else (),
            prompt=request.prompt if isinstance(request, TextRequest) else None,
            sampling=sampling,
            stops=_stops(accelerator, request.sampling),
            logit_bias=tuple(request.sampling.logit_bias.items()),
            tenant=request.tenant,
        )
        prompts = await self._encode(ask)
        return Prepared(
            ask=ask,
            prompts=prompts,
            writer=writer,
            answer_writer=exact_writer(accelerator),
            max_tokens=_max_tokens(accelerator, request.sampling, len(prompts.target)),
            seed=request.sampling.seed,
        )

    async def _encode(self, ask: Ask) -> Prompts:
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


def _refuse_what_engines_cannot(sampling: ChatSampling) -> None:
    if sampling.stop_token_ids:
        raise RequestError(
            "stop_token_ids cannot be honoured: use stop, which is text", param="stop_token_ids"
        )
    if sampling.ignore_eos:
        raise RequestError("ignore_eos cannot be honoured: the model's end ends the text", param="ignore_eos")


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


def _max_tokens(accelerator: Accelerator, asked: ChatSampling, num_prompt_tokens: int) -> int:
    room = accelerator.target.max_context - num_prompt_tokens
    if room < 1:
        raise RequestError(
            f"the model's maximum context length is {accelerator.target.max_context} tokens; the prompt has "
            f"{num_prompt_tokens} and leaves no room for an answer. Shorten it.",
            param="messages",
        )
    return min(asked.max_tokens or accelerator.settings.sampling.max_tokens, room)
