"""Servers that several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reason_spec.settings import load_settings
from tests.server.serving import Serving, serve


@pytest.fixture(scope="session")
def pair() -> Iterator[Serving]:
    """A server over the demonstration pair."""
    with serve(load_settings(flags={"sampling.max_tokens": 64, "server.max_output_tokens": 64})) as serving:
        yield serving
