"""What the chances of drafted tokens are judged by before a cache has seen what became of any."""

from __future__ import annotations

from typing import Final

import numpy as np

from reason_spec.suffix.kernels import NUM_FEATURES, Floats

_INITIAL: Final = (
    -1.700, 0.459, 0.226, 0.390, -0.376, 0.160, -0.343, -0.242, -0.505, 0.102, -0.050, 0.121, 0.598, -0.100,
    0.186, 1.151, 0.931,
)  # fmt: skip


def initial_model() -> Floats:
    """Return the weights of the features of a node, in the order in which the kernels write them."""
    assert len(_INITIAL) == NUM_FEATURES
    return np.array(_INITIAL)
