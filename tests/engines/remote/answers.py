"""The answer that the upstream servers write, and a remote engine for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from reason_spec.engines.factory import create_engine
from reason_spec.engines.generation import EngineRequest
from reason_spec.engines.remote.engine import RemoteEngine
from reason_spec.settings import EngineSettings
from reason_spec.settings.engines import RemoteSettings
from reason_spec.types import Prefix
from tests.engines.upstream import Upstream

ANSWER = "Ana has 3 of the 123 é.\n\n{\n\n}\n\nThe rest\nis 12.\n \nThe answer is 7."
STEPS = ["Ana has 3 of the 123 é.\n\n", "{\n\n}\n\n", "The rest\nis 12.\n \n", "The answer is 7."]


@asynccontextmanager
async def remote(folder: Path, *upstreams: Upstream, **settings: Any) -> AsyncIterator[RemoteEngine]:
    urls = tuple(upstream.url for upstream in upstreams)
    own = RemoteSettings(base_urls=urls, **settings.pop("remote", {}))
    engine = create_engine("target", EngineSettings(model=str(folder), kind="remote", remote=own, **settings))
    assert isinstance(engine, RemoteEngine)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def whole(engine: RemoteEngine, prompt: Prefix, **options: Any) -> tuple[int, ...]:
    return (await engine.submit(EngineRequest(prompt, 200, **options)).result()).tokens
