"""The cost of a token, measured in the torch engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reason_spec.errors import SettingsError
from reason_spec.lab.pair.cost import measure_cost
from reason_spec.pair.model import load_model, new_model, save_model
from reason_spec.pair.tokenizer import build_tokenizer
from tests.pair.tiny import TINY, save_tiny


@pytest.mark.slow
async def test_a_deeper_model_costs_more(tmp_path: Path) -> None:
    deep = new_model(replace(TINY, layers=24), build_tokenizer(), 0, 24)
    # Text of any length: a random model might end it at once.
    deep.generation_config.eos_token_id = None
    save_model(deep, build_tokenizer(), tmp_path / "deep")
    cost = await measure_cost(tmp_path / "deep", save_tiny(tmp_path / "shallow", 0))
    assert cost.target_ms > 0
    assert cost.c == cost.draft_ms / cost.target_ms
    assert 0 < cost.c < 1


async def test_a_context_that_is_too_short_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path / "short", 0)
    model = load_model(tmp_path / "short")
    model.config.max_position_embeddings = 128
    save_model(model, build_tokenizer(), tmp_path / "short")
    with pytest.raises(SettingsError, match="cannot hold a context"):
        await measure_cost(tmp_path / "short", tmp_path / "short")
