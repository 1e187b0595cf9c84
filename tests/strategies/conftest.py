"""The real pair, started once for each module that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reason_spec.settings import load_settings
from reason_spec.sync import SyncAccelerator


@pytest.fixture(scope="module")
def accelerator() -> Iterator[SyncAccelerator]:
    with SyncAccelerator.from_settings(
        load_settings(flags={"verifier.name": "exact", "load_control.use": "off"}),
        strategies=("autoregressive", "lookahead"),
    ) as running:
        yield running
