from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_replay import ceilings, longest_continuations
from suffix_texts import Segment, TextRun
from suffix_writers import Draft, Ours, Replay, count_taken, fitted_weights

from reason_spec.settings import SuffixSettings
from reason_spec.suffix import draft_kernels as kernels


def runs_of(num_tasks: int) -> list[TextRun]:
    """Two trials of each task; the second repeats the first but for one token of an answer."""
    rng = random.Random(3)
    runs = []
    for trial in (0, 1):
        for task in range(num_tasks):
            own = random.Random(task)
            phrases = [[own.randrange(1, 500) for _ in range(12)] for _ in range(6)]
            phrases[3][trial * rng.randrange(12)] = 600 + trial
            segments = [
                Segment("prompt" if place % 2 == 0 else "output", phrase)
                for place, phrase in enumerate(phrases)
            ]
            runs.append(TextRun(str(task), str(trial), segments))
    return runs


@pytest.mark.parametrize("rule", ["ours", "published"])
def test_a_known_task_takes_fewer_passes_and_every_token_is_written(rule: str) -> None:
    replay = Replay(rule, "", 8, Ours(True, SuffixSettings.model_validate({"rule": rule})))
    runs = runs_of(3)
    for run in runs:
        replay.run(run)
    new, known = replay.rows()
    assert (new.case, known.case) == ("new_task", "known_task")
    assert new.num_runs == known.num_runs == 3
    assert new.num_tokens == known.num_tokens == 3 * 36
    assert known.tokens_per_pass > 2 * new.tokens_per_pass


def test_no_chain_takes_fewer_passes_than_the_ceiling_allows_after_known_contexts() -> None:
    runs = runs_of(3)
    new, known = ceilings(8, runs, longest_continuations(runs, 8))
    assert known.tokens_per_pass > new.tokens_per_pass >= 1.0
    assert known.tokens_per_pass <= 9.0


def test_fitted_weights_tell_repeated_text_from_chance() -> None:
    weights = fitted_weights(runs_of(4))
    assert weights.shape == (kernels.NUM_FEATURES,)
    assert np.isfinite(weights).all()
    assert weights[1] > 0, "a longer match is more likely to go on"


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_what_is_taken_of_a_chain_is_the_common_beginning(chain: list[int], answer: list[int]) -> None:
    common = 0
    while common < min(len(chain), len(answer)) and chain[common] == answer[common]:
        common += 1
    assert count_taken(Draft(chain, [place - 1 for place in range(len(chain))]), answer) == common
