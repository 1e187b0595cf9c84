"""Prices of tokens, and the text that gives them on a command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from reason_spec.errors import SettingsError, did_you_mean
from reason_spec.types import Usage


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in any currency.

    ``..._cached_input`` is for prompt tokens that an engine had in its cache, None where they cost as much as
    others. Output is every generated token, on rejected branches too; scored tokens are input.
    """

    target_input: float = 0.0
    target_output: float = 0.0
    draft_input: float = 0.0
    draft_output: float = 0.0
    target_cached_input: float | None = None
    draft_cached_input: float | None = None

    def cost(self, target: Usage, draft: Usage) -> float:
        """Return the cost of the work of both models."""
        return _cost(target, self.target_input, self.target_cached_input, self.target_output) + _cost(
            draft, self.draft_input, self.draft_cached_input, self.draft_output
        )


def _cost(usage: Usage, new_input: float, cached_input: float | None, output: float) -> float:
    cached = usage.num_cached_prompt_tokens
    read = usage.num_prefilled_tokens + usage.num_scored_tokens
    cached_price = new_input if cached_input is None else cached_input
    return (read * new_input + cached * cached_price + usage.num_generated_tokens * output) / 1e6


PRICE_NAMES = tuple(field.name for field in fields(Prices))


def read_prices(text: str) -> Prices:
    """Read ``NAME=NUMBER,...``; names are those of `Prices`, others are 0.

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
