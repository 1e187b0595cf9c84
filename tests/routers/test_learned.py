"""A trained router's file is checked whole, belongs to its models, and gives what scikit-learn gave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.errors import DataError, SettingsError
from reason_spec.routers import PairIdentity, StepFeatures, create_router
from reason_spec.routers.features import FEATURE_NAMES
from reason_spec.routers.learned import LearnedRouter, Logistic, RouterModel, Tree, load_model, shipped_model
from reason_spec.settings import RouterSettings

PAIR = PairIdentity("sha256 target", "sha256 draft")
STEP = StepFeatures.of_step(
    "3 + 4 = 7 apples",
    [-0.1, -2.0, -0.3],
    [True, False, True],
    question="Ana has 3 apples and Tom has 4. How many have they?",
    text_before="",
    step_index=1,
    num_prefix_tokens=40,
)
LEAST_DIGIT = FEATURE_NAMES.index("least_digit_logprob")


def logistic(weight: float = -1.0) -> RouterModel:
    """Doubts a step the more, the less likely its least likely digit is."""
    weights = [0.0] * len(FEATURE_NAMES)
    weights[LEAST_DIGIT] = weight
    ones, zeros = (1.0,) * len(weights), (0.0,) * len(weights)
    model = Logistic(mean=zeros, scale=ones, weights=tuple(weights), intercept=-2.0)
    return RouterModel(
        pair=PAIR, features=FEATURE_NAMES, model=model, slope=1.0, intercept=0.0, threshold=0.3
    )


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(logistic().to_json()) | changes))
    return path


def boosting(**tree: Any) -> dict[str, Any]:
    whole = {"feature": [0, 0, 0], "threshold": [1.0, 0, 0], "left": [1, -1, -1], "right": [2, -1, -1]}
    return {"kind": "boosting", "base": 0, "rate": 1, "trees": [{**whole, "value": [0, -1, 1], **tree}]}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    assert load_model(write(tmp_path / "router.json")) == logistic()
    settings = RouterSettings(name="learned", file=tmp_path / "router.json")
    router = create_router(settings, PAIR)
    assert router.threshold == 0.3
    assert create_router(settings.model_copy(update={"threshold": 0.9}), PAIR).threshold == 0.9
    assert router.score(STEP) == logistic().chance(STEP)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version"),
        ({"features": ["length"]}, "other features"),
        ({"threshold": 1.5}, "threshold"),
        ({"slope": -1.0}, "slope"),
        ({"model": {"kind": "pickle"}}, "model"),
        ({"model": {"kind": "logistic", "mean": [0], "scale": [1], "weights": [1], "intercept": 0}}, "sizes"),
        ({"model": boosting(left=[0, -1, -1])}, "leads to"),
        ({"model": boosting(right=[9, -1, -1])}, "leads to"),
        ({"model": boosting(value=[])}, "length"),
        ({"model": boosting(feature=[99, 0, 0])}, "sizes"),
        ({"secret": "import os"}, "secret"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "router.json", **changes)
    with pytest.raises(DataError, match=message) as failure:
        load_model(path)
    assert str(path) in str(failure.value)
    assert "router train" in str(failure.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\x80\x04\x95", b"[1]", b'{"threshold": NaN}'])
def test_what_is_no_router_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "router.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"router\.json"):
        load_model(path)
    with pytest.raises(DataError, match="no router can be read"):
        load_model(tmp_path / "missing.json")


def test_another_pair_is_refused_unless_it_is_forced(tmp_path: Path) -> None:
    settings = RouterSettings(name="learned", file=write(tmp_path / "router.json"))
    with pytest.raises(SettingsError, match=r"another draft\. .*router\.any_pair"):
        create_router(settings, PAIR._replace(draft="sha256 other"))
    with pytest.raises(SettingsError, match="another target and another draft"):
        create_router(settings, PairIdentity("x", "y"))
    with pytest.raises(SettingsError, match="other models"):
        create_router(settings)
    forced = settings.model_copy(update={"any_pair": True})
    assert create_router(forced, PairIdentity("x", "y")).name == "learned"


@given(st.floats(-50, 0), st.floats(-50, 0))
def test_the_less_likely_a_digit_the_higher_the_score(one: float, other: float) -> None:
    router = LearnedRouter(logistic())
    scores = [router.score(replace(STEP, least_digit_logprob=value)) for value in sorted((one, other))]
    assert 0 <= scores[1] <= scores[0] <= 1


def test_a_tree_goes_left_where_a_feature_is_at_most_its_threshold() -> None:
    tree = Tree(
        feature=(1, 0, 0), threshold=(0.5, 0, 0), left=(1, -1, -1), right=(2, -1, -1), value=(0, -1, 1)
    )
    assert [tree.evaluate((9.0, x)) for x in (0.4, 0.5, 0.6)] == [-1, -1, 1]


def test_by_itself_a_trained_router_is_used_for_its_own_models_alone(tmp_path: Path) -> None:
    shipped = load_model(shipped_model())
    assert create_router(None, shipped.pair).name == "learned"
    assert create_router(None, PairIdentity("x", "y")).name == "threshold"
    assert create_router().name == "threshold"
    named = RouterSettings(file=write(tmp_path / "router.json"))
    with pytest.raises(SettingsError, match="another target"):
        create_router(named, PairIdentity("x", PAIR.draft))
