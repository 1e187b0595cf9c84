"""Asks the servers of a model, at the start, for its name, its context and the form of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from reason_spec.engines.limits import Limits
from reason_spec.engines.remote.servers import RemoteServer, ServerError, ServerPool
from reason_spec.engines.remote.wire import Wire
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings

logger = logging.getLogger(__name__)
_PROBE = "How many apples are 3 + 4?"
_Answer = TypeVar("_Answer")


class Discovered(NamedTuple):
    """The limits of the model, and whether requests hold token ids."""

    limits: Limits
    by_tokens: bool


async def discover(
    name: str, settings: EngineSettings, wire: Wire, pool: ServerPool, tokenizer: HuggingFaceTokenizer
) -> Discovered:
    """Ask every server for its models, and the first that answers for the form of its requests.

    Servers that do not answer rest, and are used once they do.

    Raises:
        EngineError: no server answers, or one has another model or tokenizer.
    """

    async def ask(server: RemoteServer) -> int | None:
        remedy = f"Set {name}.remote.served_model"
        model = await ask_model(wire, server, settings.remote.served_model, remedy, default=settings.model)
        length: int | None = model.get("max_model_len")
        return length

    remedy = f"Start one (vllm serve MODEL) or correct {name}.remote.base_urls"
    lengths = [settings.max_context, *await ask_all(wire, pool, ask, remedy)]
    first = next(server for server in pool.servers if server.model is not None)
    known = [length for length in lengths if length is not None]
    if not known:
        raise _error(name, f"{first.url} does not say how long a text may be; set {name}.max_context")
    limits = Limits(min(known), tokenizer.vocab_size, "max_context, or the server's own")
    send = settings.remote.send
    by_tokens = send != "text" and await _takes_tokens(
        name, first, wire, tokenizer, required=send == "tokens"
    )
    return Discovered(limits, by_tokens)


async def ask_all(
    wire: Wire, pool: ServerPool, ask: Callable[[RemoteServer], Awaitable[_Answer]], remedy: str
) -> list[_Answer]:
    """Return what ``ask`` returns of each server that answers; the others rest, and are used once they do.

    Args:
        ask: raises `ServerError` where a server does not answer.
        remedy: a sentence for the error message.

    Raises:
        EngineError: no server answers, or ``ask`` refused one.
    """
    answers = await asyncio.gather(*map(ask, pool.servers), return_exceptions=True)
    found: list[_Answer] = []
    failures: list[ServerError] = []
    for server, answer in zip(pool.servers, answers, strict=True):
        if isinstance(answer, ServerError):
            pool.rest(server, answer.after)
            failures.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.append(answer)
    if not found:
        raise EngineError(f"{wire.owner}: no server answers: {'; '.join(map(str, failures))}. {remedy}")
    for failure in failures:
        logger.warning("%s: %s; it is left out until it answers", wire.owner, failure)
    return found


async def ask_model(
    wire: Wire, server: RemoteServer, wanted: str | None, remedy: str, *, default: str | None = None
) -> dict[str, Any]:
    """Return a server's entry of the model, and store its name there.

    Args:
        wanted: the model's name on servers; None: ``default``, or else the only model.
        remedy: a sentence for the error message.

    Raises:
        EngineError: the server has no such model.
    """
    models = await wire.models(server)
    name = wanted or default
    found = [model for model in models if model.get("id") == name]
    if not found and wanted is None and len(models) == 1:
        found = models
    if not found:
        names = ", ".join(str(model.get("id")) for model in models) or "none"
        asked = "several models" if name is None else f"no model {name!r}"
        raise EngineError(f"{wire.owner}: {server.url} has {asked}; it has {names}. {remedy}")
    server.model = str(found[0].get("id"))
    return found[0]


def _error(name: str, text: str) -> EngineError:
    return EngineError(f"engine {name!r}: {text}")


async def _takes_tokens(
    name: str, server: RemoteServer, wire: Wire, tokenizer: HuggingFaceTokenizer, *, required: bool
) -> bool:
    """Return whether a server takes and returns token ids, after comparing its tokenizer with ours."""
    tokens = list(tokenizer.encode(_PROBE))
    body = {"model": server.model, "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    try:
        returned = (await wire.complete(server, {**body, "prompt": tokens})).get("token_ids")
    except EngineError:
        returned = None
    if not returned:
        if required:
            raise _error(
                name, f"{server.url} does not take and return token ids; set {name}.remote.send to text"
            )
        text = "engine %r: %s does not return token ids; text is sent, and encoded again"
        logger.warning(text, name, server.url)
        return False
    choice = await wire.complete(server, {**body, "prompt": _PROBE, "add_special_tokens": False})
    theirs = choice.get("prompt_token_ids")
    if theirs is not None and theirs != tokens:
        raise _error(
            name,
            f"{server.url} encodes {_PROBE!r} as {theirs}, our tokenizer as {tokens}: another model's. "
            f"Name the right one in {name}.remote.tokenizer",
        )
    return True
