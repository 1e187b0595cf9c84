"""The index and its proposals once more, naively: lists, dictionaries and scans, for small texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from reason_spec.suffix.base import Proposal
from reason_spec.suffix.session import initial_model

ORDERS = (1, 2, 4, 8, 16)
PER_ORDER = 8
WINDOW = 32


@dataclass
class Candidate:
    conversation: int
    at: int
    """Where in the conversation its next token stands."""
    matched: int
    further: int
    rank: int
    source: int
    near: int
    place: int


@dataclass(eq=False)
class Node:
    token: int
    parent: Node | None
    depth: int
    candidates: list[Candidate]
    features: list[float]
    conditional: float = 1.0
    chance: float = 1.0
    number: int | None = None

    def path(self) -> list[int]:
        return [] if self.parent is None else [*self.parent.path(), self.token]


@dataclass
class Reference:
    """All conversations so far; the last one is being written."""

    conversations: list[list[int]] = field(default_factory=list)
    sources: list[list[int]] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    trail: list[tuple[int, int]] = field(default_factory=list)
    """What was followed, at which length; the latest last."""

    def open(self) -> None:
        self.conversations.append([])
        self.sources.append([])
        self.places.append([])
        self.trail = []

    def extend(self, tokens: Sequence[int], source: int) -> None:
        for token in tokens:
            earlier = [place for places in self.places[:-1] for place in places]
            # A link stands before and behind each conversation in the log.
            first = max(earlier, default=-2) + 3
            self.places[-1].append(first + len(self.places[-1]))
            self.conversations[-1].append(token)
            self.sources[-1].append(source)

    def matches(self, after: Sequence[int]) -> list[Candidate]:
        """Return the latest places behind each of the last contexts."""
        text = [*self.conversations[-1], *after]
        expected = None
        followed = [entry for entry in self.trail[-2:] if entry[1] < len(text)]
        if followed and len(text) - followed[-1][1] < 64:
            expected = followed[-1][0] + len(text) - followed[-1][1]
        found = []
        for number, order in reversed(list(enumerate(ORDERS))):
            if order > len(text):
                continue
            for rank, (conversation, at) in enumerate(self._latest(text[-order:])):
                tokens = self.conversations[conversation]
                equal = [
                    tokens[at - back] == text[-back] for back in range(1, min(WINDOW, at, len(text)) + 1)
                ]
                matched = equal.index(False) if False in equal else len(equal)
                if number + 1 < len(ORDERS) and matched >= ORDERS[number + 1]:
                    continue
                place = self.places[conversation][at]
                far = math.inf if expected is None else abs(place - expected)
                near = 2 if far == 0 else 1 if far <= 8 else 0
                source = self.sources[conversation][at]
                further = sum(equal) - matched
                found.append(Candidate(conversation, at, matched, further, rank, source, near, place))
        if found:
            best = max(found, key=lambda candidate: candidate.matched)
            if best.matched >= 6:
                if self.trail and self.trail[-1][1] == len(text):
                    self.trail.pop()
                self.trail.append((best.place, len(text)))
        return found

    def _latest(self, context: list[int]) -> list[tuple[int, int]]:
        size = len(context)
        everywhere = [
            (conversation, at)
            for conversation, tokens in enumerate(self.conversations)
            for at in range(size, len(tokens))
            if tokens[at - size : at] == context
        ]
        return everywhere[::-1][:PER_ORDER]

    def propose(self, budget: int, tree: bool, min_chance: float, after: Sequence[int]) -> Proposal:
        found = self.matches(after)
        longest = max((candidate.matched for candidate in found), default=0)
        root = Node(-1, None, -1, found, [])
        fresh = self._children(root, after)
        opened: list[Node] = list(fresh)
        drafted: list[Node] = []
        while len(drafted) < budget and opened:
            best = max(opened, key=lambda node: node.chance)
            if best.chance < min_chance or best.chance == 0.0:
                break
            best.number = len(drafted)
            drafted.append(best)
            opened.remove(best)
            if not tree:
                opened = []
            self._move_on(best)
            opened += self._children(best, after)
        if not drafted:
            return Proposal()
        return Proposal(
            tuple(node.token for node in drafted),
            tuple(-1 if node.parent is root else node.parent.number for node in drafted),  # type: ignore[union-attr, misc]
            tuple(node.chance for node in drafted),
            longest,
        )

    def _token_of(self, candidate: Candidate, node: Node, after: Sequence[int]) -> int:
        tokens = self.conversations[candidate.conversation]
        if candidate.at < len(tokens):
            return tokens[candidate.at]
        return [*tokens, *after, *node.path()][candidate.at]

    def _move_on(self, node: Node) -> None:
        at = 0
        while at < len(node.candidates):
            candidate = node.candidates[at]
            own = candidate.conversation == len(self.conversations) - 1
            if own or candidate.at + 1 < len(self.conversations[candidate.conversation]):
                candidate.at += 1
                at += 1
            else:
                node.candidates[at], node.candidates[-1] = node.candidates[-1], node.candidates[at]
                node.candidates.pop()

    def _children(self, node: Node, after: Sequence[int]) -> list[Node]:
        depth = node.depth + 1
        left = node.candidates
        everything = sum(_weight(candidate, depth) for candidate in left)
        longest = max((candidate.matched + depth for candidate in left), default=0)
        children = []
        while left:
            token = self._token_of(left[0], node, after)
            stop = 0
            for at in range(len(left)):
                if self._token_of(left[at], node, after) == token:
                    left[at], left[stop] = left[stop], left[at]
                    stop += 1
            group, left = left[:stop], left[stop:]
            share = sum(_weight(candidate, depth) for candidate in group) / everything
            alone = len(group) == len(node.candidates)
            features = _features(group, depth, share, longest, alone, node.conditional)
            children.append(Node(token, node, depth, group, features))
        _judge(children, node)
        return children


def _weight(candidate: Candidate, depth: int) -> float:
    recency = 1 / math.sqrt(1 + candidate.rank)
    return (candidate.matched + depth) ** 3 * recency * math.sqrt(1 + candidate.further)


def _features(
    group: list[Candidate], depth: int, share: float, longest: int, alone: bool, before: float
) -> list[float]:
    best = max(group, key=lambda candidate: candidate.matched)
    length, odds = math.log(best.matched + depth), math.log((share + 0.02) / (1.02 - share))
    near = max(candidate.near for candidate in group)
    return [
        1.0,
        length,
        odds,
        math.log(len(group)),
        math.log(longest) - length,
        math.log(1 + depth),
        float(best.source == 0),
        float(best.source == 1),
        math.log(1 + min(candidate.rank for candidate in group)),
        length * odds,
        0.0 if depth == 0 else math.log(before + 1e-3),
        math.log(len(group)) * odds,
        float(alone),
        length * length,
        math.log(1 + max(candidate.further for candidate in group)),
        float(near == 2),
        float(near == 1),
    ]


def _judge(children: list[Node], parent: Node) -> None:
    weights = initial_model().tolist()
    for child in children:
        score = sum(weight * value for weight, value in zip(weights, child.features, strict=True))
        child.conditional = 1 / (1 + math.exp(-score))
    total = sum(child.conditional for child in children)
    for child in children:
        child.conditional /= max(total, 1.0)
        child.chance = parent.chance * child.conditional
