"""Draft tokens that a model inside the target's engine writes between the target's passes.

The target itself with fewer layers (`layer_skipping`) and a head on its hidden states (`eagle_drafts`) draft
between passes: a token of every request at a time, in temporary slots. The target's next pass verifies them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import count, islice
from typing import Protocol, runtime_checkable

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
from reason_spec.speculation.draft_tree import NextTokens, Path
from reason_spec.speculation.recycling import WIDTH, with_noise
from reason_spec.speculation.tree_shapes import BEAM_DEPTH, BEAM_WIDTH
from reason_spec.suffix.base import Proposal

_TRY_EVERY = 64
"""Passes without drafts after which one is tried."""
_LEAST_CHANCE = 0.1
"""A less likely token is not drafted, also where the times of passes are not known yet."""
_TIME_DECAY = 0.9


@dataclass(slots=True)
class DraftLane:
    """A path of drafts of one sequence for its next pass.

    ``slots`` are temporary: that of the last token of the text, which has no keys and values yet, then those
    of the drafted tokens. Lanes of one sequence share those of their common tokens. ``chances`` are the draft
    model's probabilities, multiplied along the path.
    """

    number: int
    sequence: GenerationSequence
    slots: list[int]
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    @property
    def chance(self) -> float:
        return self.chances[-1] if self.chances else 1.0

    def child(self, number: int, slot: int, token: int, chance: float) -> DraftLane:
        """Return the lane with one more token, which shares the slots so far."""
        tokens, chances = [*self.tokens, token], [*self.chances, chance]
        return DraftLane(number, self.sequence, [*self.slots, slot], tokens, chances)

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


class SequenceDraft:
    """What a draft model writes for one sequence: a chain, or under ``eagle2`` a beam, level by level.

    ``lanes`` are the paths that the next pass of the draft model continues; ``predicted`` are its most likely
    tokens after each path.

    Args:
        numbers: of the lanes, over all sequences of a pass.
    """

    def __init__(self, sequence: GenerationSequence, numbers: Iterator[int]) -> None:
        self.sequence = sequence
        budget = sequence.drafter.model_budget
        self._is_beam = sequence.request.draft_tree == "eagle2"
        self._depth = min(budget, 1 + BEAM_DEPTH) if self._is_beam else budget
        self._width = min(budget, BEAM_WIDTH) if self._is_beam else 1
        # One more for the last token of the text, whose keys and values are not computed yet.
        self.num_slots = 1 + self._depth * self._width
        self._numbers = numbers
        self._slots: Iterator[int] = iter(())
        self.lanes: list[DraftLane] = []
        self.predicted: dict[Path, NextTokens] = {}

    def begin(self, slots: SequenceOf[int]) -> None:
        self._slots = iter(slots)
        self.best = DraftLane(next(self._numbers), self.sequence, [next(self._slots)])
        self.lanes = [self.best]

    def grow(self, rows: SequenceOf[tuple[Tensor, NextTokens]]) -> None:
        """Continue the lanes by their logits ``[vocabulary]`` and their most likely tokens."""
        children: list[tuple[float, int, DraftLane, int]] = []
        for lane, (logits, top_tokens) in zip(self.lanes, rows, strict=True):
            for token, share in self._choices(lane, logits, top_tokens):
                children.append((lane.chance * share, -len(children), lane, token))
        best = nlargest(self._width, children, key=lambda child: child[:2])
        self.lanes = [
            lane.child(next(self._numbers), next(self._slots), token, chance)
            for chance, _, lane, token in best
        ]
        self.best = self.lanes[0]
        if len(self.best.tokens) >= self._depth:
            self.lanes = []

    @property
    def has_threshold(self) -> bool:
        return self.sequence.request.refusal_threshold is not None

    @property
    def is_long_enough(self) -> bool:
        return self.sequence.drafter.is_long_enough(self.best.proposal)

    @property
    def gain_of_next(self) -> float:
        """The expected tokens by which one more level makes a pass longer."""
        drafted = self.best.proposal
        # A level of a beam is reached if any of its lanes is right.
        reached = min(1.0, sum(lane.chance for lane in self.lanes))
        return self.sequence.drafter.gain_of_next(
            drafted._replace(chances=(*drafted.chances[:-1], reached)) if self._is_beam else drafted
        )

    def _choices(
        self, lane: DraftLane, logits: Tensor, top_tokens: NextTokens
    ) -> Iterable[tuple[int, float]]:
        """Return the next tokens; sampled ones take the noise that the target will take there."""
        position = len(lane.sequence.tokens) + len(lane.tokens)
        sampling = lane.sequence.request.sampling
        found = with_noise(top_tokens, sampling, position, logits.shape[-1])
        self.predicted[tuple(lane.tokens)] = found
        if self._is_beam:
            return zip(*found, strict=True)
        token = found.tokens[0]
        if not sampling.greedy:
            token = choose_token(logits.float().cpu().numpy(), sampling, position)
        return [(token, dict(zip(*found, strict=True)).get(token, 0.0))]


class DraftModel(Protocol):
    """Writes draft tokens after texts of the target."""

    def run(self, lanes: SequenceOf[DraftLane]) -> Tensor:
        """Return logits [lanes, vocabulary] of the token after each lane's last one."""

    def improve(self, sequences: SequenceOf[GenerationSequence], trie: PrefixTrie) -> None:
        """Improve the draft model by what the target has written; called between passes.

        Args:
            trie: lends slots for passes of its own.
        """


@runtime_checkable
class ReadingModel(Protocol):
    """A draft model that computes keys and values of its own for the whole text."""

    def read(self, sequences: SequenceOf[GenerationSequence]) -> list[GenerationSequence]:
        """Read one more piece of their texts at most; return the sequences that can be drafted for."""


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
        # The first token of a text has nothing before it, from which a draft model could continue.
        waiting = [
            one for one in generating if one.num_pending == 1 and len(one.path) and one.drafter.model_budget
        ]
        if not waiting:
            return 0.0
        started = time.perf_counter()
        with torch.inference_mode():
            self._model.improve(waiting, self._trie)
            if self._begins(waiting):
                self._write_next(waiting)
        return time.perf_counter() - started

    def _begins(self, sequences: SequenceOf[GenerationSequence]) -> bool:
        """Return whether to draft at all."""
        if any(one.request.refusal_threshold is not None for one in sequences):
            return True
        if self._pays([one.drafter.gain_of_next(Proposal()) for one in sequences]):
            self._num_passes_without = 0
            return True
        self._num_passes_without = (self._num_passes_without + 1) % _TRY_EVERY
        return self._num_passes_without == 0

    def _write_next(self, sequences: SequenceOf[GenerationSequence]) -> None:
        """Draft for the sequences whose texts the draft model has read; the others wait until it has."""
        if isinstance(self._model, ReadingModel):
            sequences = self._model.read(sequences)
        if sequences:
            self._write(sequences)
        else:
            # What began as a trial goes on with the next pass.
            self._num_passes_without = _TRY_EVERY - 1

    def _write(self, sequences: SequenceOf[GenerationSequence]) -> None:
        numbers = count()
        drafts = [SequenceDraft(one, numbers) for one in sequences]
        slots = self._trie.take(sum(draft.num_slots for draft in drafts))
        if slots is None:
            return
        left = iter(slots)
        for draft in drafts:
            draft.begin(list(islice(left, draft.num_slots)))
        live = drafts
        while live:
            started = time.perf_counter()
            lanes = [lane for draft in live for lane in draft.lanes]
            logits = self._model.run(lanes)
            rows = iter(zip(logits, _top_tokens(logits), strict=True))
            for draft in live:
                draft.grow(list(islice(rows, len(draft.lanes))))
            # The first pass may hold a whole prompt.
            if len(live[0].best.tokens) > 1:
                self._record(time.perf_counter() - started)
            live = self._continuing(live)
        self._trie.give_back(slots)
        for draft in drafts:
            draft.sequence.drafter.offer_model_draft(ModelDraft(draft.best.proposal, draft.predicted))

    def _continuing(self, drafts: SequenceOf[SequenceDraft]) -> list[SequenceDraft]:
        """Return the drafts that one more token is added to, each by the rule of its request."""
        live = [draft for draft in drafts if draft.lanes and not draft.is_long_enough]
        by_gain = [draft for draft in live if not draft.has_threshold]
        if self._pays([draft.gain_of_next for draft in by_gain]):
            return live
        return [draft for draft in live if draft.has_threshold]

    def _pays(self, gains: SequenceOf[float]) -> bool:
        """Return whether one more draft token of each sequence, with its expected gain, saves time."""
        cost = self._pass_times.tokens_in(self.seconds_per_token)
        least = max(_LEAST_CHANCE, self._pass_times.least_chance)
        return sum(gains) > cost + least * len(gains)

    def _record(self, seconds: float) -> None:
        before = self.seconds_per_token or seconds
        self.seconds_per_token = _TIME_DECAY * before + (1 - _TIME_DECAY) * seconds


def _top_tokens(logits: Tensor) -> list[NextTokens]:
    rows = range(len(logits))
    return Predictions.of_pass(logits, rows).top_tokens(rows, WIDTH)
