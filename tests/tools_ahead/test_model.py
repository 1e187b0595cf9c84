"""The model's file: read whole, refused where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reason_spec.errors import DataError
from reason_spec.tools_ahead.features import FEATURE_NAMES
from reason_spec.tools_ahead.model import CallModel, load_model


def test_a_model_survives_its_file(shop_model: CallModel, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(shop_model.to_json())
    rows = [[float(place == feature) for place in range(len(FEATURE_NAMES))] for feature in range(5)]
    assert load_model(path).chances(rows) == shop_model.chances(rows)
    assert load_model(path).threshold == shop_model.threshold


def test_the_shipped_model_is_read_and_gives_chances() -> None:
    model = load_model()
    (chance,) = model.chances([[0.0] * len(FEATURE_NAMES)])
    assert 0 < chance < 1
    assert 0.3 < model.threshold < 1
    assert model.chances([]) == []


@pytest.mark.parametrize("change", [{"features": ["x"]}, {"threshold": 2}, {"version": 2}, {"more": 1}])
def test_another_file_is_refused(shop_model: CallModel, tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**json.loads(shop_model.to_json()), **change}))
    with pytest.raises(DataError, match=r"model\.json"):
        load_model(path)
