"""HTTP requests to servers, and their answers and event streams."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

import httpx2

from reason_spec.engines.remote.servers import RefusalError, RemoteServer, ServerError, retry_after
from reason_spec.errors import EngineError
from reason_spec.settings import RemoteSettings

_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
"""Status codes below 500 after which a retry may succeed."""
_SHOWN_CHARS = 500
_CONNECT_SECONDS = 10.0


class Wire:
    """The connections of an engine, or of a verifier, to all its servers.

    Failures that a retry may resolve are `ServerError`, refusals `RefusalError`, all others `EngineError`.

    Args:
        owner: the name in messages, such as ``engine 'target'``.
        key_setting: the setting that names the variable of the key.

    Raises:
        EngineError: the variable of the key is not set.
    """

    def __init__(self, owner: str, key_setting: str, settings: RemoteSettings, max_connections: int) -> None:
        self.owner = owner
        self._settings = settings
        self._key = _read_key(owner, key_setting, settings.api_key_variable)
        self._client = httpx2.AsyncClient(
            headers={} if self._key is None else {"Authorization": f"Bearer {self._key}"},
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=max_connections),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def models(self, server: RemoteServer) -> list[dict[str, Any]]:
        """Return a server's list of models."""
        answer = await self._ask("GET", server, f"{server.url}/models")
        try:
            return [dict(model) for model in answer["data"]]
        except (KeyError, TypeError, ValueError):
            raise EngineError(
                f"{self.owner}: {server.url}/models does not list models; a base URL ends with /v1"
            ) from None

    async def complete(self, server: RemoteServer, body: dict[str, Any]) -> dict[str, Any]:
        """Return the choice of a completion without streaming."""
        answer = await self._ask("POST", server, f"{server.url}/completions", body)
        try:
            return dict(answer["choices"][0])
        except (KeyError, TypeError, IndexError):
            raise ServerError(f"{server.url} answered without a choice: {self._shown(answer, 80)}") from None

    async def stream(self, server: RemoteServer, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Yield the choices of a streamed completion; closing the iterator closes the connection."""
        try:
            async with self._client.stream("POST", f"{server.url}/completions", json=body) as response:
                if response.status_code >= 400:
                    self._raise_for(server, response, await response.aread())
                async for line in _lines(response):
                    # Other lines are empty or comments.
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    for choice in self._choices(server, data):
                        yield choice
        except httpx2.HTTPError as error:
            raise _unreachable(server, error) from None

    def _choices(self, server: RemoteServer, data: str) -> list[dict[str, Any]]:
        """Return the choices of one event."""
        try:
            event = dict(json.loads(data))
            choices = [dict(choice) for choice in event.get("choices") or ()]
        except (ValueError, TypeError):
            raise ServerError(f"{server.url} sent {self._shown(data, 80)!r}, which is no event") from None
        if "error" in event:
            self._raise_error(server, event["error"], data)
        return choices

    async def pool(self, server: RemoteServer, task: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the one answer of a pooling model, to ``task`` ``classify`` or ``pooling``."""
        answer = await self._ask("POST", server, f"{_root(server)}/{task}", body)
        try:
            return dict(answer["data"][0])
        except (KeyError, TypeError, IndexError, ValueError):
            raise ServerError(f"{server.url} answered without data: {self._shown(answer, 80)}") from None

    async def tokenize(self, server: RemoteServer, text: str) -> list[int]:
        """Return the token ids of a text by itself."""
        body = {"model": server.model, "prompt": text, "add_special_tokens": False}
        answer = await self._ask("POST", server, f"{_root(server)}/tokenize", body)
        try:
            return list(map(int, answer["tokens"]))
        except (KeyError, TypeError, ValueError):
            raise ServerError(f"{server.url} answered without tokens: {self._shown(answer, 80)}") from None

    async def reset_prefix_cache(self, server: RemoteServer) -> None:
        """Ask a server to empty its prefix cache; errors are ignored."""
        with suppress(httpx2.HTTPError, TimeoutError):
            async with asyncio.timeout(self._settings.first_token_timeout):
                await self._client.post(f"{_root(server)}/reset_prefix_cache")

    async def _ask(
        self, method: str, server: RemoteServer, url: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        seconds = self._settings.first_token_timeout
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(method, url, json=body)
        except httpx2.HTTPError as error:
            raise _unreachable(server, error) from None
        except TimeoutError:
            raise ServerError(f"{server.url} sent nothing for {seconds:g} seconds") from None
        if response.status_code >= 400:
            self._raise_for(server, response, response.content)
        try:
            answer: dict[str, Any] = response.json()
        except ValueError:
            sent = self._shown(response.text, 80)
            raise ServerError(f"{server.url} sent {sent!r}, which is not JSON") from None
        return answer

    def _raise_for(self, server: RemoteServer, response: httpx2.Response, content: bytes) -> NoReturn:
        text = content.decode(errors="replace")
        error: Any = text
        with suppress(ValueError, AttributeError):
            error = json.loads(text).get("error", text)
        self._raise_error(
            server, error, text, response.status_code, retry_after(response.headers.get("retry-after"))
        )

    def _raise_error(
        self,
        server: RemoteServer,
        error: Any,
        text: str,
        status: int | None = None,
        after: float | None = None,
    ) -> NoReturn:
        message, code = error, status
        if isinstance(error, dict):
            message = error.get("message")
            code = status or error.get("code")
        shown = self._shown(" ".join(str(message or text).split()), _SHOWN_CHARS)
        reason = f"{server.url} answered {code}: {shown}"
        if isinstance(code, int) and 400 <= code < 500 and code not in _WORTH_ANOTHER_TRY:
            raise RefusalError(f"{self.owner}: {reason}", code, shown)
        raise ServerError(reason, after)

    def _shown(self, answer: Any, num_chars: int) -> str:
        """Return the beginning of an answer without the key, which some servers repeat."""
        text = str(answer)
        if self._key is not None:
            text = text.replace(self._key, "(the key)")
        return text[:num_chars]


def _read_key(owner: str, key_setting: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    # A key that was read from a file may end with a newline.
    key = os.environ.get(variable, "").strip()
    named = f"{owner}: the environment variable {variable}, named in {key_setting},"
    if not key:
        raise EngineError(f"{named} is not set")
    if not (key.isascii() and key.isprintable()):
        # The error of the HTTP client would show the key.
        raise EngineError(f"{named} holds characters that no key has")
    return key


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield the lines of an event stream; `aiter_lines` also splits at U+2028 and others within JSON."""
    rest = b""
    async for received in response.aiter_bytes():
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


def _root(server: RemoteServer) -> str:
    """Return the URL of vLLM's own routes."""
    return server.url.removesuffix("/v1")


def _unreachable(server: RemoteServer, error: Exception) -> ServerError:
    return ServerError(f"{server.url} cannot be reached: {str(error) or type(error).__name__}")
