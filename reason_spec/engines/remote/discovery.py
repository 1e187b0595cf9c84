"""Asks the servers at the start of an engine for their models, context and form of requests."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from reason_spec.engines.limits import Limits
from reason_spec.engines.remote.servers import RemoteServer, ServerError, ServerPool
from reason_spec.engines.remote.wire import Wire
from reason_spec.engines.tokenizer import HuggingFaceTokenizer
from reason_spec.errors import EngineError
from reason_spec.settings import EngineSettings

logger = logging.getLogger(__name__)
_PROBE = "How many apples are 3 + 4?"


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
    servers = pool.servers
    answers = await asyncio.gather(*map(wire.models, servers), return_exceptions=True)
    lengths = [settings.max_context]
    for server, answer in zip(servers, answers, strict=True):
        if isinstance(answer, ServerError):
            pool.rest(server)
            logger.warning("engine %r: %s; it is left out until it answers", name, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            model = _find_model(name, settings, server, answer)
            server.model = model["id"]
            lengths.append(model.get("max_model_len"))
    first = next((server for server in servers if server.model is not None), None)
    if first is None:
        reasons = "; ".join(map(str, answers))
        raise _error(
            name,
            f"no server answers: {reasons}. Start one (vllm serve MODEL) or correct {name}.remote.base_urls",
        )
    known = [length for length in lengths if length is not None]
    if not known:
        raise _error(name, f"{first.url} does not say how long a text may be; set {name}.max_context")
    limits = Limits(min(known), tokenizer.vocab_size, "max_context, or the server's own")
    send = settings.remote.send
    by_tokens = send != "text" and await _takes_tokens(
        name, first, wire, tokenizer, required=send == "tokens"
    )
    return Discovered(limits, by_tokens)


def _error(name: str, text: str) -> EngineError:
    return EngineError(f"engine {name!r}: {text}")


def _find_model(
    name: str, settings: EngineSettings, server: RemoteServer, models: list[dict[str, Any]]
) -> dict[str, Any]:
    wanted = settings.remote.served_model or settings.model
    found = [model for model in models if model.get("id") == wanted]
    if not found and settings.remote.served_model is None and len(models) == 1:
        found = models
    if not found:
        names = ", ".join(str(model.get("id")) for model in models) or "none"
        raise _error(
            name, f"{server.url} has no model {wanted!r}; it has {names}. Set {name}.remote.served_model"
        )
    return found[0]


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
