"""The judge's training: it separates tokens that can be separated, and refuses too few labels."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from reason_spec.engines.torch.judge import JudgeWeights
from reason_spec.errors import DataError
from reason_spec.lab.verifier_training.token_labels import LabelledDrafts
from reason_spec.lab.verifier_training.token_training import _StateReader, fit, train_judge
from tests.engines.tiny_models import save_model


def test_a_fit_finds_the_direction_that_tells_right_from_wrong_in_any_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(600, 16, generator=generator) * torch.logspace(-2, 2, 16) + 5.0
    right = (states[:, 3] - states[:, 3].mean()) > 0
    refused = torch.rand(600, generator=generator) < 0.6
    # Accepted tokens are right, and look like it.
    states[:, 3] = torch.where(refused, states[:, 3], 5.0 + (states[:, 3] - 5.0).abs())
    right |= ~refused
    weights = fit(states[:400], right[:400], refused[:400])
    judged = states[400:] @ weights.weight + weights.bias > 0
    held_out = refused[400:]
    agreement = (judged == right[400:])[held_out].float().mean()
    assert agreement > 0.9
    # Labels without a pattern are not learnt.
    shuffled = right[torch.randperm(600, generator=generator)] | ~refused
    chance = fit(states[:400], shuffled[:400], refused[:400])
    judged = states[400:] @ chance.weight + chance.bias > 0
    assert (judged == shuffled[400:])[held_out].float().mean() < 0.75


def test_a_judge_is_trained_and_written_for_the_engine(tmp_path: Path) -> None:
    """Right are drafted tokens with low ids, which a model's state at the token tells."""
    folder = save_model("llama", tmp_path / "target")
    rng = random.Random(1)

    def labelled() -> LabelledDrafts:
        answer = tuple(rng.randrange(40, 250) for _ in range(12))
        places = sorted(rng.sample(range(12), 4))
        drafted = list(answer)
        for place in places:
            drafted[place] = rng.choice([45, 60, 75, 200, 215, 230])
        return LabelledDrafts((41, 42), answer, tuple(drafted), tuple((p, drafted[p] < 100) for p in places))

    found = train_judge([labelled() for _ in range(60)], str(folder), tmp_path / "judge")
    assert found.num_problems == 60
    assert found.num_trained == 4 * 48
    assert found.num_right + found.num_wrong == 4 * 12
    assert found.num_right_accepted > 0.8 * found.num_right
    assert found.num_wrong_accepted < 0.2 * found.num_wrong
    assert JudgeWeights.load(tmp_path / "judge").weight.shape == (32,)


def test_states_are_those_of_each_drafted_token_after_the_answer_before_it(tmp_path: Path) -> None:
    reader = _StateReader(str(save_model("llama", tmp_path / "target")))
    answer, drafted = (50, 60, 70, 80, 90), (51, 60, 71, 80, 91)
    found = reader.tokens(LabelledDrafts((41, 42), answer, drafted, ((0, True), (2, False), (4, True))))
    assert found.refused.tolist() == [False] * 2 + [True] * 3
    by_right = {True: [4, 0], False: [2]}
    for right, places in by_right.items():
        states = found.states[found.refused & (found.right == right)]
        alone = [
            reader.tokens(LabelledDrafts((41, 42, *answer[:place]), (9,), (drafted[place],), ((0, right),)))
            for place in places
        ]
        expected = torch.cat([one.states for one in alone])
        assert torch.allclose(states, expected, atol=1e-5)


def test_one_kind_of_label_is_not_enough(tmp_path: Path) -> None:
    only_right = LabelledDrafts((1,), (2, 3), (2, 4), ((1, True),))
    with pytest.raises(DataError, match="Give more problems"):
        train_judge([only_right] * 10, "unused", tmp_path)
