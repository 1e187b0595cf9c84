"""A model of the next call that is trained on the shop's conversations, and the shop."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason_spec.lab.tools_ahead.replay import Clock
from reason_spec.lab.tools_ahead.training import train
from reason_spec.tools_ahead.model import CallModel
from tests.tools_ahead.shop_client import Shop
from tests.tools_ahead.some_conversations import READ_ONLY, conversations


@pytest.fixture(scope="session")
def shop_model() -> CallModel:
    clock = Clock(lambda text: len(text) // 4)
    pool = [one for whole in conversations(0, 30) for one in (whole, whole.calls_only)]
    return train(pool, READ_ONLY, clock, precision=0.8, with_trials=False)


@pytest.fixture
def shop(tmp_path: Path, shop_model: CallModel) -> Shop:
    return Shop(tmp_path, shop_model)
