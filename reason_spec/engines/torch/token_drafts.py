"""Draft tokens that a model inside the target's engine writes between the target's passes.

The target itself with fewer layers (`layer_skipping`) and a head on its hidden states (`eagle_drafts`) draft
in this way: a token of every request at a time, in temporary slots. The target's next pass verifies them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from reason_spec.engines.torch.generation import GenerationSequence
from reason_spec.engines.torch.kv import PrefixTrie
from reason_spec.engines.torch.layout import Chain
from reason_spec.engines.torch.sequence import Sequence
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.acceptance import choose_token
from reason_spec.suffix.base import Proposal

_TRY_EVERY = 64
"""Passes without drafts after which drafts are tried again: the acceptance rate may have risen."""
_TIME_DECAY = 0.9
_TYPICAL_CHANCE = 0.5
"""Assumed share of accepted drafts after an accepted one, where there is no draft yet."""


@dataclass(slots=True)
class DraftLane:
    """The drafts of one sequence for its next pass.

    ``slots`` are temporary: that of the last token of the text, which has no keys and values yet, then those
    of the drafted tokens. ``chances`` are the draft model's probabilities, multiplied along the chain.
    """

    number: int
    sequence: GenerationSequence
    slots: list[int]
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    @property
    def proposal(self) -> Proposal:
        return Proposal(tuple(self.tokens), tuple(range(-1, len(self.tokens) - 1)), tuple(self.chances))

    @property
    def expected_next(self) -> float:
        """The estimated chance that one more drafted token is accepted."""
        if not self.chances:
            return _TYPICAL_CHANCE
        return self.sequence.drafter.corrected_chance(self.chances[-1])

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

    def attach(self, trie: PrefixTrie) -> None:
        """Take the slots of the target."""

    def run(self, lanes: SequenceOf[DraftLane]) -> Tensor:
        """Return logits [lanes, vocabulary] of the token after each lane's last one."""

    def improve(self, sequences: SequenceOf[GenerationSequence]) -> None:
        """Improve the draft model by what the target has written; called between passes."""


class TokenDrafts:
    """Lets a draft model write draft tokens for the sequences that ask for it."""

    def __init__(self, model: DraftModel, trie: PrefixTrie, pass_times: PassTimes) -> None:
        self._model = model
        model.attach(trie)
        self._trie = trie
        self._pass_times = pass_times
        self._seconds_per_pass = 0.0
        self._num_passes_without = 0

    def draft(self, running: Iterable[Sequence]) -> float:
        """Draft for the next pass; return the seconds it took."""
        waiting = [
            one for one in running if isinstance(one, GenerationSequence) and one.drafter.model_budget > 0
        ]
        waiting = [one for one in waiting if one.num_pending == 1 and len(one.path) and not one.finished]
        if not waiting:
            return 0.0
        started = time.perf_counter()
        with torch.inference_mode():
            self._model.improve(waiting)
            if self._is_worth_it([DraftLane(0, one, []) for one in waiting]):
                self._write(waiting)
        return time.perf_counter() - started

    def _write(self, sequences: SequenceOf[GenerationSequence]) -> None:
        budgets = [one.drafter.model_budget for one in sequences]
        slots = self._trie.take(sum(budget + 1 for budget in budgets))
        if slots is None:
            return
        lanes, start = [], 0
        for number, (one, budget) in enumerate(zip(sequences, budgets, strict=True)):
            lanes.append(DraftLane(number, one, slots[start : start + budget + 1]))
            start += budget + 1
        live = lanes
        while live and self._is_worth_it(live):
            started = time.perf_counter()
            _choose(live, self._model.run(live))
            self._record(time.perf_counter() - started, is_first=live is lanes)
            live = [lane for lane in live if len(lane.tokens) < len(lane.slots) - 1]
        self._trie.give_back(slots)
        for lane in lanes:
            lane.sequence.drafter.offer_model_draft(lane.proposal)

    def _is_worth_it(self, lanes: SequenceOf[DraftLane]) -> bool:
        """Return whether one more token of each lane is expected to save more time than it takes.

        In the time that it takes to draft and to verify them the target would make some tokens certain.
        """
        expected = sum(lane.expected_next for lane in lanes)
        cost = self._pass_times.tokens_in(self._seconds_per_pass)
        cost += self._pass_times.least_chance * len(lanes)
        if expected > cost:
            self._num_passes_without = 0
            return True
        if any(lane.tokens for lane in lanes):
            return False
        self._num_passes_without = (self._num_passes_without + 1) % _TRY_EVERY
        return self._num_passes_without == 0

    def _record(self, seconds: float, *, is_first: bool) -> None:
        # The first pass may have a prompt; it counts where it is as short as the others.
        if self._seconds_per_pass == 0.0 or (is_first and seconds > 2 * self._seconds_per_pass):
            self._seconds_per_pass = self._seconds_per_pass or (0.0 if is_first else seconds)
            return
        self._seconds_per_pass = _TIME_DECAY * self._seconds_per_pass + (1 - _TIME_DECAY) * seconds


def _choose(lanes: SequenceOf[DraftLane], logits: Tensor) -> None:
    """Append each lane's next token; sampled tokens take the noise that the target will take there."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    greedy = logits.argmax(dim=-1).tolist()
    for row, lane in enumerate(lanes):
        position = len(lane.sequence.tokens) + len(lane.tokens)
        sampling = lane.sequence.request.sampling
        token = greedy[row]
        if not sampling.greedy:
            token = choose_token(logits[row].float().cpu().numpy(), sampling, position)
        before = lane.chances[-1] if lane.chances else 1.0
        lane.tokens.append(token)
        lane.chances.append(before * float(probabilities[row, token]))
