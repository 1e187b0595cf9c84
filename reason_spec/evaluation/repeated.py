"""pass@k over several samples of a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return the chance that one of k samples is right, estimated without bias from n of them.

    ``1 - C(n - c, k) / C(n, k)`` (Chen et al., arXiv 2107.03374, equation 1).
    """
    if not 0 <= num_right <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"{k} of {num_samples} samples, {num_right} of them right")
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def sizes_up_to(num_samples: int) -> Sequence[int]:
    """Return the k that are shown: 1, 2, 4, ... and the number of samples itself."""
    powers = [1 << exponent for exponent in range(num_samples.bit_length())]
    return sorted({*powers, num_samples}) if num_samples else []
