from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from reason_spec.verifiers.encoder import SentenceEncoder


@pytest.fixture(scope="session")
def minilm() -> Iterator[SentenceEncoder]:
    """The packaged MiniLM, loaded once; an encoder may serve one event loop after another."""
    encoder = SentenceEncoder()
    asyncio.run(encoder.start())
    yield encoder
    asyncio.run(encoder.close())
