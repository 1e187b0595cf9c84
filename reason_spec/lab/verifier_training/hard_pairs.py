"""Pairs that an encoder has wrong, or is unsure of, are drawn more often than those that it knows.

Reading a pair with the written encoder takes a tenth of the time of training on it, so most of the time
goes to pairs from which something is learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import numpy as np

from reason_spec.errors import SettingsError
from reason_spec.lab.verifier_training.mining import StepPair
from reason_spec.verifiers.evidence import find_evidence
from reason_spec.verifiers.pair_encoder import PairEncoder, encode_pair, load_model, run_model

_KNOWN: Final = 0.06
"""Weight of a pair that the encoder has wholly right; one that it has wholly wrong weighs one more."""
_CHUNK: Final = 200

OnPairs: TypeAlias = Callable[[int, int], None]


def draw_hard_pairs(
    pairs: Sequence[StepPair],
    trained: Path,
    number: int,
    seed: int,
    on_pairs: OnPairs = lambda _done, _all: None,
) -> list[StepPair]:
    """Draw pairs with replacement, half of each label, by how wrong an encoder has them.

    The weight of a pair is 0.06 + sqrt(|label - p|), with p the encoder's calibrated probability. The root
    keeps changed pairs with 0.02 and 0.2 apart, both far below the threshold and yet not equally easy.

    Args:
        trained: folder of the encoder, with its calibration.
        on_pairs: called with the number of pairs that are scored and that of all.

    Raises:
        SettingsError: the folder holds no calibrated encoder, or all pairs are of one label.
    """
    if len({pair.same for pair in pairs}) < 2:
        raise SettingsError("a verifier is trained on pairs of both kinds: same true and same false")
    calibration = PairEncoder(trained).calibration
    tokenizer, session = load_model(trained)
    weights: list[float] = []
    for first in range(0, len(pairs), _CHUNK):
        chunk = pairs[first : first + _CHUNK]
        inputs = [encode_pair(tokenizer, pair.question, pair.a, pair.b) for pair in chunk]
        for pair, logit in zip(chunk, run_model(session, inputs), strict=True):
            if np.isnan(logit):
                # Pairs that are too long are not trained on.
                weights.append(0.0)
                continue
            known = calibration.probability(float(logit), find_evidence(pair.a, pair.b, pair.question))
            weights.append(_KNOWN + math.sqrt(abs(pair.same - known)))
        on_pairs(len(weights), len(pairs))
    return _draw(pairs, weights, number, Random(seed))


def _draw(pairs: Sequence[StepPair], weights: Sequence[float], number: int, rng: Random) -> list[StepPair]:
    same = [place for place, pair in enumerate(pairs) if pair.same]
    changed = [place for place, pair in enumerate(pairs) if not pair.same]
    drawn = rng.choices(same, [weights[place] for place in same], k=number // 2)
    drawn += rng.choices(changed, [weights[place] for place in changed], k=number - number // 2)
    rng.shuffle(drawn)
    return [pairs[place] for place in drawn]
