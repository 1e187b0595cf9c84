"""What the chances of drafted tokens are judged by before a cache has seen what became of any."""

from __future__ import annotations

from typing import Final

import numpy as np

from reason_spec.suffix.kernels import NUM_FEATURES, Floats

_INITIAL: Final = (
    -1.55, 0.557, 0.069, 0.382, -0.885, 0.016, -0.854, -0.457, -0.504, 0.196, 0.031, 0.125, 0.685, -0.069,
)  # fmt: skip


def initial_model() -> Floats:
    """Return the weights of the features of a node, in the order in which the kernels write them."""
    assert len(_INITIAL) == NUM_FEATURES
    return np.array(_INITIAL)
