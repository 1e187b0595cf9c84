"""``reward`` on servers: a pooling model of vLLM (``vllm serve MODEL --runner pooling``) rates the steps.

Forms as in vLLM 0.32: ``/classify`` returns the chances of one text's classes, ``/pooling`` with task
``token_classify`` a row of them for every token, or for the step tokens alone where the model is one that
pools those. The conversation is sent as messages and left open after the last step token, so that the last
row is that of the last step in both cases.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from reason_spec.engines.remote.discovery import ask_all, ask_model
from reason_spec.engines.remote.servers import RemoteServer, ServerError, ServerPool
from reason_spec.engines.remote.wire import Wire
from reason_spec.errors import EngineError
from reason_spec.settings import RemoteSettings
from reason_spec.verifiers.reward import PROBE, ByReward, SoFar, StepToken, check_reward

_OWNER: Final = "verifier reward"
_START_SECONDS: Final = 60.0
_OUR_SHARE: Final = 0.9
"""Share of the deadline for requests; after the deadline the verdict would not name the error."""
_ROUNDING: Final = 0.02
"""Tolerance for the sum of two probabilities in half precision."""


class ServedRewardVerifier(ByReward):
    """Asks a reward model on one or several servers, with concurrent requests.

    A request that fails temporarily is tried again on any free server, within the deadline. A failure gives
    the verdict ``unknown`` with the server's message.

    Args:
        urls: base URLs, which end with ``/v1``.
        model: the model's name there; None: the only one.
        step_token: the token after each step at which the model is read. None: a sequence classifier.
        api_key_variable: environment variable that holds the key.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str | None = None,
        step_token: StepToken | None = None,
        threshold: float | None = None,
        deadline_seconds: float = 5.0,
        *,
        api_key_variable: str | None = None,
    ) -> None:
        super().__init__(threshold, deadline_seconds)
        urls = [f"{url.rstrip('/').removesuffix('/v1')}/v1" for url in urls]
        remote = RemoteSettings(api_key_variable=api_key_variable)
        self._connect = partial(_RewardServers, urls, model, step_token, remote)
        # One list, of one entry at most, for all copies with other thresholds.
        self._connected: list[_RewardServers] = []

    async def start(self) -> None:
        """Ask every server for its model and a first reward.

        Raises:
            EngineError: none answers, one has another model or rates nothing, or there is no key.
        """
        if not self._connected or self._connected[0].loop is not asyncio.get_running_loop():
            # Connections belong to the loop that opened them.
            self._connected[:] = [self._connect()]
        await self._connected[0].meet()

    async def close(self) -> None:
        connected, self._connected[:] = list(self._connected), []
        if connected and connected[0].loop is asyncio.get_running_loop():
            await connected[0].close()

    async def _rate(self, so_far: SoFar) -> float:
        assert self._connected, "a reward was asked for before start"
        return await self._connected[0].rate(so_far, _OUR_SHARE * self.deadline_seconds)


class _RewardServers:
    """The connections of one event loop to the servers."""

    def __init__(
        self, urls: Sequence[str], model: str | None, step_token: StepToken | None, remote: RemoteSettings
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._model = model
        self._step_token = step_token
        self._max_tries = remote.max_retries + 1
        self._wire = Wire(_OWNER, "verifier.reward_api_key_variable", remote, max_connections=64)
        self._pool = ServerPool(urls)
        self._meeting = asyncio.Lock()
        self._met = False
        self._last_trouble: ServerError | None = None
        """Of any request: while no server is ready, it says why."""

    async def close(self) -> None:
        await self._wire.close()

    async def meet(self) -> None:
        async with self._meeting:
            if not self._met:
                remedy = "Start one (vllm serve MODEL --runner pooling) or correct verifier.reward_url"
                await ask_all(self._wire, self._pool, self._greet, remedy)
                self._met = True

    async def _greet(self, server: RemoteServer) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                remedy = "Set verifier.reward_model to the one that is meant"
                await ask_model(self._wire, server, self._model, remedy)
                await self._check_token(server)
                await self._probe(server)
        except TimeoutError:
            raise ServerError(f"{server.url} did not answer within {_START_SECONDS:g} seconds") from None

    async def _check_token(self, server: RemoteServer) -> None:
        """Refuse an unknown step token: the model would read it as plain text."""
        if self._step_token is None:
            return
        try:
            ids = await self._wire.tokenize(server, self._step_token.text)
        except (EngineError, ServerError):
            return  # Not every server lists its tokens.
        if len(ids) != 1:
            raise EngineError(
                f"{_OWNER}: verifier.reward_step_token = {self._step_token.text!r} is no token of "
                f"{server.model!r} at {server.url}; its card names the one that it was trained with"
            )

    async def _probe(self, server: RemoteServer) -> None:
        try:
            await self._ask(server, PROBE)
        except EngineError as error:
            task = "classify" if self._step_token is None else "token_classify"
            raise EngineError(
                f"{error}. It has to serve a classifier with one output or two and a chat template: "
                f"vllm serve MODEL --runner pooling, with pooling task {task}"
            ) from None

    async def rate(self, so_far: SoFar, seconds: float) -> float:
        """Return the reward of the last step within so many seconds.

        Raises:
            EngineError: the server gave no usable reward.
        """
        end = self.loop.time() + seconds
        affinity = zlib.crc32(so_far.question.encode("utf-8", "surrogatepass"))
        trouble: ServerError | None = None
        try:
            async with asyncio.timeout_at(end):
                for _ in range(self._max_tries):
                    if self.loop.time() + self._pool.seconds_until_ready() > end:
                        break
                    try:
                        async with self._pool.use(affinity) as server:
                            return await self._ask(server, so_far)
                    except ServerError as error:
                        trouble = self._last_trouble = error
        except TimeoutError:
            last = "" if trouble is None else f"; at last: {trouble}"
            raise EngineError(f"{_OWNER}: no reward within {seconds:g} seconds{last}") from None
        raise EngineError(f"{_OWNER}: {trouble or self._last_trouble or 'no server is ready'}")

    async def _ask(self, server: RemoteServer, so_far: SoFar) -> float:
        answer = so_far.answer if self._step_token is None else self._step_token.mark(so_far.answer)
        turns = [{"role": "user", "content": so_far.question}, {"role": "assistant", "content": answer}]
        body = {"model": self._pool.model_at(server), "messages": turns, "use_activation": True}
        if self._step_token is None:
            probs = (await self._wire.pool(server, "classify", body)).get("probs")
        else:
            body |= {"task": "token_classify", "continue_final_message": True}
            rows = (await self._wire.pool(server, "pooling", body)).get("data")
            if rows == []:
                token = self._step_token.text
                raise EngineError(f"{_OWNER}: {server.url} has no reward at {token!r}, but at another token")
            probs = rows[-1] if isinstance(rows, list) else rows
        try:
            return _chance(probs)
        except ValueError as error:
            raise EngineError(f"{_OWNER}: {server.url} answered {str(probs)[:80]}: {error}") from None


def _chance(outputs: Any) -> float:
    """Return the reward in the outputs of one text or token: the only one, or the second of two chances."""
    if not isinstance(outputs, list) or len(outputs) not in (1, 2):
        raise ValueError("one or two chances are known")
    if not all(isinstance(output, float | int) for output in outputs):
        raise ValueError("a chance is a number")
    if len(outputs) == 2 and not abs(sum(outputs) - 1) <= _ROUNDING:
        raise ValueError("two chances make one; these have seen no softmax")
    check_reward(outputs[-1])
    return float(outputs[-1])
