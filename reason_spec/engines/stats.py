"""Measurements of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from reason_spec.types import Usage


@dataclass(frozen=True, slots=True)
class PassTime:
    """The mean time of recent passes of about one size.

    Attributes:
        num_tokens: mean number of new tokens of a pass.
        seconds: mean time of a pass.
        count: weight of the mean, in passes.
        num_requests: mean number of requests in a pass.
        num_threads: threads that computed the passes; 0 if unknown.
    """

    num_tokens: float
    seconds: float
    count: float
    num_requests: float = 1.0
    num_threads: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The state of an engine now, and its work (passes, seconds, ``usage``) since it started.

    ``draft_token_seconds``: what a draft token takes that a model inside the engine writes, such as a head; 0
    if none was written yet.
    """

    num_running: int
    num_waiting: int
    num_cached_tokens: int
    num_passes: int
    busy_seconds: float
    usage: Usage
    draft_token_seconds: float = 0.0
