"""Train the judge of draft tokens on labelled ones, and report on problems left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reason_spec.engines.torch.judge import JudgeWeights
from reason_spec.errors import DataError
from reason_spec.evaluation.statistics import Interval, exact_interval
from reason_spec.lab.verifier_training.token_labels import LabelledDrafts

_REPORTED: Final = 5
"""Every fifth problem is only reported on."""
_PENALTY: Final = 1e-2
"""Weight of the squared norm of the head, over standardized states."""
_ITERATIONS: Final = 200


@dataclass(frozen=True, slots=True)
class TrainedJudge:
    """What came of a training; the counts are of refused draft tokens of problems left out, at 0.5."""

    num_problems: int
    num_trained: int
    num_right: int
    num_right_accepted: int
    num_wrong: int
    num_wrong_accepted: int
    right_interval: Interval
    wrong_interval: Interval


class _Tokens(NamedTuple):
    """States [tokens, hidden size] of draft tokens, whether each is right, and whether it is refused."""

    states: Tensor
    right: Tensor
    refused: Tensor


def train_judge(
    labelled: Sequence[LabelledDrafts], model: str, output: Path, advance: Callable[[], None] = lambda: None
) -> TrainedJudge:
    """Train a judge, write it to ``output`` and return its figures.

    Args:
        model: folder of the target.
        advance: called when the states of an answer with labels were read.

    Raises:
        DataError: there are too few labels of one kind.
    """
    used = [one for one in labelled if one.labels]
    parts = [one for place, one in enumerate(used) if place % _REPORTED], used[::_REPORTED]
    for part in parts:
        found = [right for one in part for _, right in one.labels]
        if len(set(found)) < 2:
            raise DataError(
                f"{len(used)} problems with refused draft tokens are too few: the part for training or for "
                "the report has no right or no wrong token. Give more problems"
            )
    read = _StateReader(model)
    trained, reported = (_joined([_tokens(read, one, advance) for one in part]) for part in parts)
    weights = fit(trained.states, trained.right, trained.refused)
    output.mkdir(parents=True, exist_ok=True)
    weights.save(output)
    accepted = torch.sigmoid(reported.states @ weights.weight + weights.bias) > 0.5
    right, wrong = (reported.refused & (reported.right == kind) for kind in (True, False))
    num_right, num_wrong = int(right.sum()), int(wrong.sum())
    num_right_accepted, num_wrong_accepted = int((accepted & right).sum()), int((accepted & wrong).sum())
    return TrainedJudge(
        num_problems=len(used),
        num_trained=int(trained.refused.sum()),
        num_right=num_right,
        num_right_accepted=num_right_accepted,
        num_wrong=num_wrong,
        num_wrong_accepted=num_wrong_accepted,
        right_interval=exact_interval(num_right_accepted, num_right),
        wrong_interval=exact_interval(num_wrong_accepted, num_wrong),
    )


def fit(states: Tensor, right: Tensor, refused: Tensor) -> JudgeWeights:
    """Fit the head by logistic regression.

    Right and wrong tokens have the same total weight; half of the right ones' is that of accepted tokens.

    Args:
        states: [tokens, hidden size].
        right: [tokens], whether each is right.
        refused: [tokens], whether the target would choose another; accepted ones are right.
    """
    weights = torch.zeros(len(states))
    for group, share in ((refused & ~right, 1.0), (refused & right, 0.5), (~refused, 0.5)):
        weights[group] = share / max(1, int(group.sum()))
    mean, deviation = states.mean(0), states.std(0) + 1e-6
    standardized = (states - mean) / deviation
    weight = torch.zeros(states.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        losses = functional.binary_cross_entropy_with_logits(
            standardized @ weight + bias, right.float(), reduction="none"
        )
        value: Tensor = (losses * weights).sum() + _PENALTY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    own = (weight / deviation).detach()
    return JudgeWeights(own, (bias - (mean * own).sum()).detach())


def _tokens(reader: _StateReader, one: LabelledDrafts, advance: Callable[[], None]) -> _Tokens:
    found = reader.tokens(one)
    advance()
    return found


class _StateReader:
    """Reads the input of the target's output layer with transformers' own forward."""

    def __init__(self, model: str) -> None:
        from transformers import AutoModelForCausalLM, DynamicCache
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        module: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        # Without the output layer: the logits of all places of a long text would be larger than the model.
        self._module = module.base_model
        self._new_cache = DynamicCache

    def tokens(self, one: LabelledDrafts) -> _Tokens:
        """Return the draft tokens of an answer: all that the target accepts, and the labelled ones."""
        start = len(one.prompt)
        accepted = [place for place, token in enumerate(one.answer) if one.drafted[place] == token]
        cache = self._new_cache()
        states = [self._read((*one.prompt, *one.answer), cache)[[start + place for place in accepted]]]
        # From the last place on: the cache of the answer holds what is before each.
        labels = sorted(one.labels, reverse=True)
        for place, _ in labels:
            cache.crop(start + place - cache.get_seq_length())
            states.append(self._read((one.drafted[place],), cache))
        rights = [True] * len(accepted) + [right for _, right in labels]
        refused = [False] * len(accepted) + [True] * len(labels)
        return _Tokens(torch.cat(states), torch.tensor(rights), torch.tensor(refused))

    @torch.inference_mode()
    def _read(self, tokens: tuple[int, ...], cache: Any) -> Tensor:
        """Return the states [tokens, hidden size] of what follows the text in the cache."""
        output = self._module(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        states: Tensor = output.last_hidden_state
        return states[0]


def _joined(parts: Sequence[_Tokens]) -> _Tokens:
    columns: Iterator[tuple[Tensor, ...]] = zip(*parts, strict=True)
    return _Tokens(*(torch.cat(column).clone() for column in columns))
