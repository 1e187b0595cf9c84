"""The model of the shop, as in the tests of the predictor."""

from __future__ import annotations

from tests.tools_ahead.conftest import shop_model

__all__ = ["shop_model"]
