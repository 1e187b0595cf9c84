"""The weights that reason-spec uses by default, and where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from reason_spec.errors import DataError

_PACKAGE: Final = Path(__file__).resolve().parent
_IN_CHECKOUT: Final = {
    "pair": _PACKAGE / "pair" / "weights",
    "semantic": _PACKAGE / "verifiers" / "weights",
}


def shipped_weights(part: Literal["pair", "semantic"]) -> Path:
    """Return a folder of weights: beside the code in a checkout, else in the package ``reason_spec_weights``.

    Raises:
        DataError: there is neither.
    """
    folder = _IN_CHECKOUT[part]
    if folder.is_dir():
        return folder
    try:
        from reason_spec_weights import FOLDER
    except ModuleNotFoundError:
        raise DataError(
            f"The weights {part!r} need the package 'reason-spec-weights', which is not installed. "
            "Install it with: pip install reason-spec-weights, or in a checkout: "
            "pip install ./reason-spec-weights"
        ) from None
    return FOLDER / part
