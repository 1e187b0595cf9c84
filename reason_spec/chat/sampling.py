"""Checks how a request is sampled and where it ends, against the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

from pydantic import ValidationError

from reason_spec.accelerator import Accelerator
from reason_spec.chat.base import ChatSampling
from reason_spec.chat.messages import check_text
from reason_spec.engines.base import Engine
from reason_spec.errors import RequestError, first_mistake
from reason_spec.settings import SamplingSettings
from reason_spec.types import Sampling

_NEVER: Final = -100.0
"""A bias that leaves a token no chance."""


def sampling_of(accelerator: Accelerator, asked: ChatSampling) -> Sampling:
    """Return how tokens are chosen; the noise of single choices is left open.

    Raises:
        RequestError: a value is out of range.
    """
    given = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    given |= {"max_tokens": asked.max_tokens, "seed": asked.seed}
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        settings = SamplingSettings.model_validate({**accelerator.settings.sampling.model_dump(), **changes})
    except ValidationError as error:
        raise RequestError(first_mistake(error), param=str(error.errors()[0]["loc"][0])) from None
    return settings.for_sample(0, 0)


def stops_of(accelerator: Accelerator, asked: ChatSampling) -> tuple[str, ...]:
    """Return the stop strings.

    Raises:
        RequestError: one is empty, or no text.
    """
    if not all(asked.stop):
        raise RequestError("a stop string is empty", param="stop")
    return tuple(check_text(stop, "stop") for stop in asked.stop) or accelerator.settings.sampling.stop


def stop_ids_of(target: Engine, asked: ChatSampling) -> frozenset[int]:
    """Return the tokens at which the answer ends.

    Raises:
        RequestError: the model has no such token, or its engine returns none.
    """
    if not asked.stop_token_ids:
        return frozenset()
    if not target.takes_stop_ids:
        raise RequestError(
            f"the server of {target.name!r} takes and returns no token ids: give stop, which is text",
            param="stop_token_ids",
        )
    size = _vocab_size(target)
    known = "0 or more" if size is None else f"0 to {size - 1}"
    for index, token in enumerate(asked.stop_token_ids):
        if not has_tokens(target, [token]):
            raise RequestError(
                f"stop_token_ids[{index}]: the model has no token {token}; its ids are {known}: "
                "correct it or leave it out",
                param="stop_token_ids",
            )
    ends = frozenset() if asked.ignore_eos else target.tokenizer.eos_ids
    # A token that ends the text by itself is not reported as a stop.
    return frozenset(asked.stop_token_ids) - ends


def logit_bias_of(target: Engine, asked: ChatSampling) -> tuple[tuple[int, float], ...]:
    """Return the biases, those of ``ignore_eos`` included.

    Raises:
        RequestError: the engine has no biases, the model has no such token, or a bias is not finite.
    """
    if not (asked.logit_bias or asked.ignore_eos):
        return ()
    if not target.takes_biases:
        param = "logit_bias" if asked.logit_bias else "ignore_eos"
        raise RequestError(
            f"the engine of {target.name!r} does not support biases: leave {param} out", param=param
        )
    for token, bias in asked.logit_bias.items():
        if not has_tokens(target, [token]):
            raise RequestError(f"logit_bias: the model has no token {token}", param="logit_bias")
        if not isfinite(bias):
            raise RequestError(f"logit_bias of token {token} is {bias}, not a number", param="logit_bias")
    # A token of `stop_token_ids` stays possible, because it ends the answer as a stop.
    ignored = target.tokenizer.eos_ids - set(asked.stop_token_ids) if asked.ignore_eos else ()
    return tuple({**asked.logit_bias, **dict.fromkeys(ignored, _NEVER)}.items())


def read_logit_bias(given: Mapping[Any, Any]) -> dict[int, float]:
    """Return biases by token id; in OpenAI's form the ids are texts.

    Raises:
        RequestError: a token is no number, or a bias is not between -100 and 100.
    """
    biases: dict[int, float] = {}
    for token, bias in given.items():
        name = str(token)
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise RequestError(f"{name[:40]!r} is not a token id; give numbers", param="logit_bias")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise RequestError(f"a bias is between -100 and 100, not {bias!r}", param="logit_bias")
        biases[int(name)] = bias
    return biases


def has_tokens(target: Engine, tokens: Sequence[int]) -> bool:
    """Return whether the target's vocabulary holds these ids."""
    size = _vocab_size(target)
    return all(token >= 0 and (size is None or token < size) for token in tokens)


def _vocab_size(target: Engine) -> int | None:
    return getattr(target.tokenizer, "vocab_size", None)
