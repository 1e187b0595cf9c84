"""What the chances of drafted tokens are judged by before a cache has seen what became of any."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from reason_spec.suffix.kernels import NUM_FEATURES, Floats

_INITIAL: Final = (
    -1.749, 0.487, 0.190, 0.487, -0.383, 0.142, -0.322, -0.196, -0.508, 0.110, -0.013, 0.126, 0.683, -0.103,
    0.166, 1.118, 0.929,
)  # fmt: skip
"""Fitted to what became of proposals on agent traces: the last 50 runs of tau-bench airline, by gpt-4o."""


def initial_model() -> Floats:
    """Return the weights of the features of a node, in the order in which the kernels write them."""
    assert len(_INITIAL) == NUM_FEATURES
    return np.array(_INITIAL)


@lru_cache
def least_chance(budget: int) -> float:
    """Return how likely a drafted token must be to be worth its place among ``budget`` of one pass.

    Who checks many tokens in a pass has room to spare. On agent traces these chances take more tokens a
    pass than the best settings of arctic-inference's cache, with a quarter fewer in vain or better.
    """
    return min(0.1, max(0.05, 0.8 / max(1, budget)))
