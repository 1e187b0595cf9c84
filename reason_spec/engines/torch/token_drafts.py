"""Draft tokens that a model inside the target's engine writes between the target's passes.

The target itself with fewer layers (`layer_skipping`) and a head on its hidden states (`eagle_drafts`) draft
between passes: a token of every request at a time, in temporary slots. The target's next pass verifies them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain
from reason_spec.engines.torch.predictions import Predictions
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.engines.torch.sequence_drafter import ModelDraft
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.acceptance import choose_token
from reason_spec.speculation.draft_tree import NextTokens
from reason_spec.speculation.recycling import WIDTH, with_noise
from reason_spec.suffix.base import Proposal

_TRY_EVERY = 64
"""Passes without drafts after which one is tried."""
_LEAST_CHANCE = 0.1
"""A less likely token is not drafted, also where the times of passes are not known yet."""
_TIME_DECAY = 0.9


@dataclass(slots=True)
class DraftLane:
    """The drafts of one sequence for its next pass.

    ``slots`` are temporary: that of the last token of the text, which has no keys and values yet, then those
    of the drafted tokens. ``chances`` are the draft model's probabilities, multiplied along the chain;
    ``predicted`` are its likeliest tokens at each place of it.
    """

    number: int
    sequence: GenerationSequence
    slots: list[int]
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    predicted: list[NextTokens] = field(default_factory=list)

    @property
    def proposal(self) -> Proposal:
        return Proposal(tuple(self.tokens), tuple(range(-1, len(self.tokens) - 1)), tuple(self.chances))

    def chain(self, first: int, start: int) -> tuple[Chain, list[int]]:
        """Return the tokens of text and drafts from place ``start`` on as a chain, and their slots.

        Args:
            first: the first place whose keys and values the draft model attends to.
        """
        path, text = self.sequence.path, self.sequence.tokens.values
        slots = np.concatenate([path.slots, np.asarray(self.slots[: 1 + len(self.tokens)], dtype=np.int64)])
        chain = Chain(
            tokens=[*text[start:].tolist(), *self.tokens[max(0, start - len(text)) :]],
            context=slots[first:start],
            # A key and a group of its own: lanes share no entries.
            prefix_key=self.number,
            num_logits=1,
            group=self.number,
            shared_context=0,
            in_order=path.in_order and bool((np.diff(slots[max(0, len(path) - 1) : start]) == 1).all()),
        )
        return chain, slots[start:].tolist()


class DraftModel(Protocol):
    """Writes draft tokens after texts of the target."""

    def run(self, lanes: SequenceOf[DraftLane]) -> Tensor:
        """Return logits [lanes, vocabulary] of the token after each lane's last one."""

    def improve(self, sequences: SequenceOf[GenerationSequence], trie: PrefixTrie) -> None:
        """Improve the draft model by what the target has written; called between passes.

        Args:
            trie: lends slots for passes of its own.
        """


class TokenDrafts:
    """Lets a draft model write draft tokens for the sequences that ask for it.

    One more token of each sequence is drafted as long as that is expected to save time: the chance that they
    are accepted is compared with the tokens that the target would write in the time of drafting and verifying
    them. Without drafts for some passes one token is tried, as the acceptance rate may have risen.
    """

    def __init__(self, model: DraftModel, trie: PrefixTrie, pass_times: PassTimes) -> None:
        self._model = model
        self._trie = trie
        self._pass_times = pass_times
        self.seconds_per_token = 0.0
        """What a draft token takes; 0 if two in a row were never drafted."""
        self._num_passes_without = 0

    def draft(self, running: Iterable[Sequence]) -> float:
        """Draft for the next pass; return the seconds it took."""
        generating = [one for one in running if isinstance(one, GenerationSequence) and not one.finished]
        # The first token of a text has nothing before it, from which a draft model could go on.
        waiting = [
            one for one in generating if one.num_pending == 1 and len(one.path) and one.drafter.model_budget
        ]
        if not waiting:
            return 0.0
        started = time.perf_counter()
        with torch.inference_mode():
            self._model.improve(waiting, self._trie)
            if self._begins(waiting):
                self._write(waiting)
        return time.perf_counter() - started

    def _begins(self, sequences: SequenceOf[GenerationSequence]) -> bool:
        """Return whether to draft at all."""
        if self._pays([one.drafter.gain_of_next(Proposal()) for one in sequences]):
            self._num_passes_without = 0
            return True
        self._num_passes_without = (self._num_passes_without + 1) % _TRY_EVERY
        return self._num_passes_without == 0

    def _write(self, sequences: SequenceOf[GenerationSequence]) -> None:
        budgets = [one.drafter.model_budget for one in sequences]
        # One more each for the last token of the text, whose keys and values are not computed yet.
        slots = self._trie.take(sum(budget + 1 for budget in budgets))
        if slots is None:
            return
        left = iter(slots)
        lanes = [
            DraftLane(number, one, list(islice(left, budget + 1)))
            for number, (one, budget) in enumerate(zip(sequences, budgets, strict=True))
        ]
        live = lanes
        while live:
            started = time.perf_counter()
            _choose(live, self._model.run(live))
            # The first pass may hold a whole prompt.
            if len(live[0].tokens) > 1:
                self._record(time.perf_counter() - started)
            live = [lane for lane in live if len(lane.tokens) < len(lane.slots) - 1]
            if not self._pays([lane.sequence.drafter.gain_of_next(lane.proposal) for lane in live]):
                break
        self._trie.give_back(slots)
        for lane in lanes:
            lane.sequence.drafter.offer_model_draft(ModelDraft(lane.proposal, tuple(lane.predicted)))

    def _pays(self, gains: SequenceOf[float]) -> bool:
        """Return whether one more draft token of each sequence, with its expected gain, saves time."""
        cost = self._pass_times.tokens_in(self.seconds_per_token)
        least = max(_LEAST_CHANCE, self._pass_times.least_chance)
        return sum(gains) > cost + least * len(gains)

    def _record(self, seconds: float) -> None:
        before = self.seconds_per_token or seconds
        self.seconds_per_token = _TIME_DECAY * before + (1 - _TIME_DECAY) * seconds


def _choose(lanes: SequenceOf[DraftLane], logits: Tensor) -> None:
    """Append each lane's next token; sampled tokens take the noise that the target will take there."""
    vocab_size = logits.shape[-1]
    rows = Predictions.of_pass(logits, range(len(lanes))).likeliest(range(len(lanes)), WIDTH)
    for row, (lane, likeliest) in enumerate(zip(lanes, rows, strict=True)):
        position = len(lane.sequence.tokens) + len(lane.tokens)
        sampling = lane.sequence.request.sampling
        found = with_noise(likeliest, sampling, position, vocab_size)
        token = found.tokens[0]
        if not sampling.greedy:
            token = choose_token(logits[row].float().cpu().numpy(), sampling, position)
        share = dict(zip(found.tokens, found.chances, strict=True)).get(token, 0.0)
        lane.predicted.append(found)
        lane.chances.append((lane.chances[-1] if lane.chances else 1.0) * share)
        lane.tokens.append(token)
