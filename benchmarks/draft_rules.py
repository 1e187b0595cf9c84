"""Rules for drafts at recorded places: how long chains are, and which nodes trees have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from draft_places import CHAIN, Found, Record, Text

from reason_spec.engines.torch.sequence_drafter import _LEAST, _LEAST_OF_THRESHOLD, DraftRates
from reason_spec.engines.torch.token_drafts import _LEAST_CHANCE, _TRY_EVERY
from reason_spec.engines.worker.pass_times import PassTimes
from reason_spec.speculation.draft_calibration import ModelDraftRates
from reason_spec.speculation.draft_tree import NextTokens, Path, PredictedSource, Source, united
from reason_spec.speculation.tree_shapes import (
    BEAM_DEPTH,
    BEAM_WIDTH,
    DraftTreeName,
    beam,
    chain,
    fixed_shape,
)
from reason_spec.suffix.base import Proposal

OWN_BUDGET: Final = 24
"""The default of ``strategy.num_draft_tokens``."""

Seen: TypeAlias = dict[Path, Found]


class Costs:
    """Milliseconds of passes, on straight lines between the measured ones."""

    def __init__(self, record: Record) -> None:
        self._passes, self._drafts = record.pass_ms, record.draft_ms

    def target(self, num_tokens: int) -> float:
        return float(np.interp(num_tokens, list(self._passes), list(self._passes.values())))

    def draft(self, num_lanes: int) -> float:
        return float(np.interp(num_lanes, list(self._drafts), list(self._drafts.values())))


class Draft(NamedTuple):
    """Draft tokens of a pass, and how many paths each pass of the draft model had."""

    nodes: Proposal = Proposal()
    lanes: tuple[int, ...] = ()


class Rule(Protocol):
    """Says what is drafted."""

    def draft(self, seen: Seen, place: int, coming: Sequence[int]) -> Draft:
        """Return the draft of a place.

        Args:
            coming: the rest of the text. Its last token cannot be drafted, since a pass adds one of its own.
        """

    def learn(self, generated: Sequence[int], num_drafted: int, pass_ms: float, ms: float) -> None:
        """Take the tokens of a pass, its time, and its time with that of the draft model."""


def grown(seen: Seen, width: int, depth: int) -> tuple[Seen, tuple[int, ...], list[tuple[float, Proposal]]]:
    """Return what the draft model predicts in a beam, the paths of each level, and what grew by each.

    The last is the sum of the chances of the level's paths, and the likeliest of them as a chain.
    """
    level: list[tuple[float, Path, tuple[float, ...]]] = [(1.0, (), ())]
    predicted: Seen = {}
    lanes: list[int] = []
    best: list[tuple[float, Proposal]] = []
    while len(lanes) < depth:
        # A narrow beam may go where the recorded one did not: unlikely paths, which end there.
        known = [one for one in level if one[1] in seen]
        if not known:
            break
        lanes.append(len(level))
        children = []
        for chance, path, chances in known:
            found = predicted[path] = seen[path]
            for token, share in zip(found.tokens, found.chances, strict=True):
                children.append((chance * share, (*path, token), (*chances, chance * share)))
        level = sorted(children, key=lambda child: -child[0])[:width]
        best.append((min(1.0, sum(one[0] for one in level)), as_chain(*level[0][1:])))
    return predicted, tuple(lanes), best


def as_chain(tokens: Sequence[int], chances: Sequence[float]) -> Proposal:
    return Proposal(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(chances))


def num_accepted(nodes: Proposal, coming: Sequence[int]) -> int:
    """Return how many tokens of a text its drafts have in a row."""
    right = {-1: 0}
    for node, (token, parent) in enumerate(zip(nodes.tokens, nodes.parents, strict=True)):
        depth = right.get(parent)
        if depth is not None and depth < len(coming) and coming[depth] == token:
            right[node] = depth + 1
    return max(right.values())


class ChainRule:
    """Drafts the likeliest chain, as far as ``length`` says.

    Args:
        length: number of tokens, of the chain, the drafts' predictions along it, and the coming text.
    """

    def __init__(self, length: Callable[[Proposal, Sequence[Found], Sequence[int]], int]) -> None:
        self._length = length
        self._drafted = Proposal()
        self.rates = ModelDraftRates()

    def draft(self, seen: Seen, place: int, coming: Sequence[int]) -> Draft:
        predicted, _, best = grown(seen, 1, min(CHAIN, len(coming) - 1))
        found = best[-1][1] if best else Proposal()
        length = self._length(found, list(predicted.values()), coming)
        self._drafted = as_chain(found.tokens[:length], found.chances[:length])
        return Draft(self._drafted, (1,) * len(self._drafted.tokens))

    def learn(self, generated: Sequence[int], num_drafted: int, pass_ms: float, ms: float) -> None:
        self.rates.learn(self._drafted, generated)


def fixed(number: int) -> ChainRule:
    return ChainRule(lambda found, _, __: min(number, len(found.tokens)))


def oracle() -> ChainRule:
    return ChainRule(lambda found, _, coming: num_accepted(found, coming[:-1]))


def threshold(refusal: float) -> ChainRule:
    """Return SpecDec++'s rule, as `SequenceDrafter.is_long_enough` has it."""

    def length(found: Proposal, _: Sequence[Found], __: Sequence[int]) -> int:
        for number in range(_LEAST_OF_THRESHOLD, len(found.tokens)):
            if 1.0 - rule.rates.chance_of(as_chain(found.tokens[:number], found.chances[:number])) > refusal:
                return number
        return len(found.tokens)

    rule = ChainRule(length)
    return rule


class TreeRule:
    """Drafts trees of one shape, budget and depth, as the engine makes them of a head's predictions."""

    def __init__(self, shape: DraftTreeName, budget: int, depth: int) -> None:
        self._shape, self._budget = shape, budget
        self._is_beam = shape == "eagle2"
        self.depth = min(depth, budget, 1 + BEAM_DEPTH if self._is_beam else CHAIN)
        self._sources: list[Source] = []
        # The size of the vocabulary matters to sampled texts alone.
        self.rates = DraftRates(0)

    def draft(self, seen: Seen, place: int, coming: Sequence[int]) -> Draft:
        room = len(coming) - 1
        predicted, lanes, _ = grown(seen, self.width(room), min(self.depth, room))
        return self.of(predicted, lanes, min(self._budget, room))

    def width(self, room: int) -> int:
        """Return how many paths a level has; near its end a text has room for fewer draft tokens."""
        return max(1, min(self._budget, room, BEAM_WIDTH)) if self._is_beam else 1

    def of(self, predicted: Seen, lanes: tuple[int, ...], budget: int) -> Draft:
        def find(path: Path) -> NextTokens:
            return predicted[path].next if path in predicted else NextTokens()

        self._sources = [PredictedSource(find, self.rates.predicted)] if predicted else []
        match self._shape:
            case "chain":
                nodes = chain(self._sources, budget, _LEAST)
            case "eagle2":
                nodes = beam(self._sources, budget, _LEAST)
            case "sequoia":
                nodes = fixed_shape(self._sources, budget, _LEAST, self.rates.by_rank.rates)
            case "greedy":
                nodes = united(self._sources, budget, _LEAST, budget, 1.0)
        return Draft(nodes, lanes)

    def learn(self, generated: Sequence[int], num_drafted: int, pass_ms: float, ms: float) -> None:
        self.rates.by_rank.learn(self._sources, generated)
        for source in self._sources:
            source.learn(generated)


class OwnRule(TreeRule):
    """Ends drafts where one more token is not expected to save time, as the engine does (`TokenDrafts`)."""

    def __init__(self, shape: DraftTreeName, costs: Costs) -> None:
        super().__init__(shape, OWN_BUDGET, CHAIN)
        self._costs = costs
        self._times = PassTimes()
        self._chain = Proposal()
        self._place = self._num_without = 0

    def draft(self, seen: Seen, place: int, coming: Sequence[int]) -> Draft:
        self._place = place
        room = len(coming) - 1
        width = self.width(room)
        _, lanes, best = grown(seen, width, min(self.depth, room))
        depth, so_far = 0, Proposal()
        while depth < len(lanes) and (self._pays(so_far, width) or (not depth and self._is_tried())):
            reached, self._chain = best[depth]
            # A level of a beam is reached if any of its paths is right.
            chances = (*self._chain.chances[:-1], reached) if self._is_beam else self._chain.chances
            so_far = self._chain._replace(chances=chances)
            depth += 1
        if not depth:
            self._chain = Proposal()
        predicted, lanes, _ = grown(seen, width, depth)
        found = self.of(predicted, lanes, min(self._budget, room))
        least = self._times.least_chance
        number = max(1, sum(chance >= least for chance in found.nodes.chances))
        tokens, parents, chances, _ = found.nodes
        return Draft(Proposal(tokens[:number], parents[:number], chances[:number]), found.lanes)

    def learn(self, generated: Sequence[int], num_drafted: int, pass_ms: float, ms: float) -> None:
        super().learn(generated, num_drafted, pass_ms, ms)
        self.rates.by_model.learn(self._chain, generated, self._place)
        self._times.add(1 + num_drafted, pass_ms / 1e3)
        self._times.add_generated(len(generated), ms / 1e3)

    def _pays(self, so_far: Proposal, width: int) -> bool:
        cost = self._times.tokens_in(self._costs.draft(width) / 1e3)
        gain = self.rates.gain_of_next(so_far, text_length=self._place)
        return gain > cost + max(_LEAST_CHANCE, self._times.least_chance)

    def _is_tried(self) -> bool:
        self._num_without = (self._num_without + 1) % _TRY_EVERY
        return self._num_without == 0


# The classifier ------------------------------------------------------------------------------


def features(found: Found, chance: float, place: int) -> list[float]:
    """Return what DISCO's classifier reads of a drafted token, and the probability of its whole chain."""
    own = min(max(found.chances[0], 1e-6), 1.0 - 1e-6)
    assert found.entropy is not None, "the entropy along the chain is recorded"
    return [math.log(own), math.log1p(-own), found.entropy, float(place), math.log(max(chance, 1e-6))]


def train(texts: Sequence[Text]) -> Callable[[list[list[float]]], list[float]]:
    """Return the chances that drafted tokens are accepted, by their features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows: list[list[float]] = []
    rights: list[bool] = []
    for text in texts:
        for place, seen in enumerate(text.places, start=1):
            coming = text.tokens[place:]
            predicted, _, best = grown({one.path: one for one in seen}, 1, min(CHAIN, len(coming)))
            drafted = best[-1][1]
            right = num_accepted(drafted, coming)
            for number, found in enumerate(predicted.values()):
                rows.append(features(found, drafted.chances[number], number))
                rights.append(number < right)
    if len(set(rights)) < 2:
        return lambda wanted: [float(rights[0])] * len(wanted)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(rows, rights)

    def chances(wanted: list[list[float]]) -> list[float]:
        found: list[float] = model.predict_proba(wanted)[:, 1].tolist()
        return found

    return chances


def classifier(chances: Callable[[list[list[float]]], list[float]], least: float) -> ChainRule:
    def length(found: Proposal, predicted: Sequence[Found], _: Sequence[int]) -> int:
        if not found.tokens:
            return 0
        rows = [features(one, found.chances[place], place) for place, one in enumerate(predicted)]
        for number, chance in enumerate(chances(rows), start=1):
            if chance < least:
                return number
        return len(found.tokens)

    return ChainRule(length)
