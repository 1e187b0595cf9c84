from __future__ import annotations

import pytest

from reason_spec.errors import SettingsError
from reason_spec.evaluation.prices import Prices, read_prices


def test_prices_are_read_and_what_is_not_named_costs_nothing() -> None:
    assert read_prices("target_input=0.5, target_output = 1.5,draft_output=0") == Prices(0.5, 1.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target_ouput=1", "unknown price 'target_ouput'; did you mean 'target_output'"),
        ("target_output", "'target_output' is not NAME=NUMBER"),
        ("target_output=cheap", "target_output='cheap' is not a number"),
        ("target_output=-1", "'-1' is not a number of 0 or more"),
        ("target_output=nan", "is not a number"),
        ("target_output=1,target_output=2", "given twice"),
        (" , ", "names no price"),
    ],
)
def test_what_is_no_price_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_prices(text)
