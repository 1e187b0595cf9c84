"""The judge's training: what can be told apart is told apart, and few labels are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reason_spec.errors import DataError
from reason_spec.lab.verifier_training.token_labels import LabelledDrafts
from reason_spec.lab.verifier_training.token_training import fit, train_judge


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


def test_one_kind_of_label_is_not_enough(tmp_path: Path) -> None:
    only_right = LabelledDrafts((1,), (2, 3), (2, 4), ((1, True),))
    with pytest.raises(DataError, match="Give more problems"):
        train_judge([only_right] * 10, "unused", tmp_path)
