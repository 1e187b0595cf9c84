"""Runs the real application under a real uvicorn, on a free port of this machine, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import openai
import uvicorn
import yaml
from fastapi import FastAPI

from reason_spec.accelerator import Accelerator
from reason_spec.chat.service import Chat
from reason_spec.engines.scripted import ScriptedEngine
from reason_spec.server.app import create_app
from reason_spec.server.base import Client
from reason_spec.settings import Settings, load_settings

_T = TypeVar("_T")


class Serving:
    """A server that runs. ``run`` does something in its event loop."""

    def __init__(self, accelerator: Accelerator, app: FastAPI, loop: asyncio.AbstractEventLoop, port: int):
        self.accelerator = accelerator
        self.app = app
        self._loop = loop
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx2.Client(base_url=self.url, timeout=60)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60, **options)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def num_running(self) -> int:
        """Return how many requests the engines work on."""

        async def count() -> int:
            engines = [self.accelerator.target, self.accelerator.draft]
            stats = [await engine.stats() for engine in engines if engine is not None]
            return sum(one.num_running + one.num_waiting for one in stats)

        return self.run(count())


@contextmanager
def serve(
    settings: Settings,
    *,
    trusted: bool = True,
    change: Callable[[Accelerator], Accelerator] = lambda accelerator: accelerator,
) -> Iterator[Serving]:
    """Serve until the block ends; ``change`` may put other engines in before they start."""
    listening = socket.create_server(("127.0.0.1", 0))
    ready: list[Serving] = []
    failures: list[BaseException] = []
    is_up = threading.Event()
    server: list[uvicorn.Server] = []

    async def main() -> None:
        async with change(Accelerator.from_settings(settings)) as accelerator:
            app = create_app(Chat(accelerator), accelerator, settings.server)
            guarded = as_client(app, Client("tests", trusted))
            config = uvicorn.Config(guarded, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
            server.append(uvicorn.Server(config))
            loop = asyncio.get_running_loop()
            ready.append(Serving(accelerator, app, loop, listening.getsockname()[1]))
            is_up.set()
            await server[0].serve([listening])

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as failure:
            failures.append(failure)
        finally:
            is_up.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert is_up.wait(120)
    try:
        if not ready:
            raise failures[0]
        yield ready[0]
    finally:
        if server:
            server[0].should_exit = True
        thread.join(60)
        listening.close()
    if failures:
        raise failures[0]


def as_client(app: FastAPI, client: Client) -> Any:
    """Put in front of an app what a guard says of a request."""
    numbers = iter(range(1, 1_000_000))

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"client": client, "request_id": f"req-{next(numbers)}"}
        await app(scope, receive, send)

    return guarded


def scripted(
    folder: Path, answers: dict[str, Any], *, seconds: float = 0.0, thinking: bool = False, **settings: Any
) -> Settings:
    """Return settings of a target that says what is written, alone; settings have ``__`` for the dot."""
    file = folder / "says.yaml"
    written = {"answers": answers, "seconds_per_pass": seconds, "thinking": thinking}
    file.write_text(yaml.safe_dump(written))
    flags = {
        "target.kind": "scripted",
        "target.model": str(file),
        "strategy.name": "autoregressive",
        "server.served_models": ["says"],
    }
    return load_settings(
        flags={**flags, **{name.replace("__", "."): value for name, value in settings.items()}}
    )


def failing(after: int, answer: str) -> Callable[[Accelerator], Accelerator]:
    """Put a target in that fails after so many passes."""

    def change(accelerator: Accelerator) -> Accelerator:
        target = ScriptedEngine("target", lambda text, sampling: answer, fail_after=after)
        verifier = accelerator.generator.verifier
        return Accelerator(accelerator.settings, target, accelerator.draft, verifier, accelerator.strategies)

    return change
