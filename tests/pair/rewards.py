"""Rewards of whole texts, each read anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reason_spec.pair.decoding import LoadedModel
from reason_spec.pair.reward import RewardHead, hidden_where_steps_end


def rewards(target: LoadedModel, head: RewardHead, prefixes: Sequence[str]) -> list[float]:
    """Return the chance that each prefix, which ends with a step, is right so far."""
    last = [hidden[-1] for hidden in hidden_where_steps_end(target, prefixes)]
    with torch.inference_mode():
        chances: list[float] = head(torch.stack(last)).sigmoid().tolist()
    return chances
