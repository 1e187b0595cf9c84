"""What tokens cost, as it is given on a command line."""

from __future__ import annotations

import math
from dataclasses import fields

from reason_spec.errors import SettingsError, did_you_mean
from reason_spec.evaluation.metrics import Prices

PRICE_NAMES = tuple(field.name for field in fields(Prices))


def read_prices(text: str) -> Prices:
    """Read ``NAME=NUMBER,...``; names are those of `Prices`, what is not named costs nothing.

    Raises:
        SettingsError: a name is unknown or comes twice, or a price is no number of 0 or more.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, price = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SettingsError(f"--prices: {part!r} is not NAME=NUMBER, such as target_output=0.6")
        if name not in PRICE_NAMES:
            guess = did_you_mean(name, PRICE_NAMES) or "."
            raise SettingsError(f"--prices: unknown price {name!r}{guess} Known: {', '.join(PRICE_NAMES)}")
        if name in values:
            raise SettingsError(f"--prices: {name} is given twice")
        values[name] = _price(name, price)
    if not values:
        raise SettingsError("--prices names no price; write target_output=0.6, for a million tokens")
    return Prices(**values)


def _price(name: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise SettingsError(f"--prices: {name}={text!r} is not a number of 0 or more, for a million tokens")
    return price
