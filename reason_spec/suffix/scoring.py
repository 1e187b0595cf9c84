"""Initial weights for the probabilities of drafted tokens, and the minimum probability of a draft."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from reason_spec.suffix.draft_kernels import NUM_FEATURES
from reason_spec.suffix.index_kernels import Floats

_INITIAL: Final = (
    -1.749, 0.487, 0.190, 0.487, -0.383, 0.142, -0.322, -0.196, -0.508, 0.110, -0.013, 0.126, 0.683, -0.103,
    0.166, 1.118, 0.929,
)  # fmt: skip
"""Fitted to accepted and rejected proposals on the last 50 runs of tau-bench airline, by gpt-4o."""


def initial_model() -> Floats:
    """Return the initial weights of a node's features, in the order of the kernels."""
    assert len(_INITIAL) == NUM_FEATURES
    return np.array(_INITIAL)


@lru_cache
def least_chance(budget: int) -> float:
    """Return the minimum probability of a drafted token, given the number of draft tokens of a pass.

    The larger the budget, the less a rejected token costs. Measured on agent traces: more accepted tokens a
    pass than the best settings of arctic-inference's cache, and at least a quarter fewer rejected ones.
    """
    return min(0.1, max(0.05, 0.8 / max(1, budget)))
