"""Seeds for engines with a random generator for each request."""

from __future__ import annotations

import hashlib

from reason_spec.types import Sampling


def seed_at(sampling: Sampling, position: int) -> int:
    """Return the seed of a request that begins at ``position`` of a sample's text.

    Without the position, every step of an answer would draw the same numbers.
    """
    key = sampling.noise
    text = f"{key.seed} {key.problem} {key.sample} {position}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
