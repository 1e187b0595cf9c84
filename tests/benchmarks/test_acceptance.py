from __future__ import annotations

import json
from collections.abc import Callable

import acceptance
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.speculation.acceptance import FloatArray


def summed_over_pairs(p: FloatArray, q: FloatArray) -> float:
    """The chance of equal tokens under shared Gumbel noise, as it is defined (arXiv 2408.07978)."""
    both = np.flatnonzero((p > 0) & (q > 0))
    return float(sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in both))


weights = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30).filter(
    lambda pairs: any(p for p, _ in pairs) and any(q for _, q in pairs)
)


@given(weights)
def test_chance_under_shared_noise_equals_the_sum_over_pairs_of_tokens(
    weights: list[tuple[int, int]],
) -> None:
    p, q = (np.array(side, dtype=float) / sum(side) for side in zip(*weights, strict=True))
    chances: Callable[[FloatArray, FloatArray], dict[str, float]] = acceptance.chances
    assert chances(p, q)["shared_noise"] == pytest.approx(summed_over_pairs(p, q), abs=1e-12)


def test_demonstration_draft_is_accepted_most_by_rejection(capsys: pytest.CaptureFixture[str]) -> None:
    acceptance.main(["--problems", "1", "--temperatures", "0.6", "--max-tokens", "24", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert 0.8 < row["own_noise"] <= row["shared_noise"] <= row["rejection"] <= 1


def test_real_models_without_a_draft_are_refused_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        acceptance.main(["--models", "real"])
    assert "--draft FOLDER" in capsys.readouterr().err
