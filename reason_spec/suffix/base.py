"""The interface of the suffix cache: a session learns final tokens and proposes the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

Source: TypeAlias = Literal["prompt", "tool", "output"]
"""The origin of tokens: the prompt, a tool's result, or the model's output."""

SOURCES: tuple[Source, ...] = ("prompt", "tool", "output")
"""All sources; arrays and files hold indices into it."""


class Proposal(NamedTuple):
    """A draft tree of tokens.

    Parents precede their children. ``parents[i]`` is the index of a node's parent, -1 for a child of the
    text; a chain has the parents -1, 0, 1, ... ``chances[i]`` is the estimated probability that the text goes
    on through node i and all its ancestors. ``match_length`` is the length of the longest match, in tokens.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    match_length: int = 0


class CacheSize(NamedTuple):
    """Allocated bytes and number of tokens of a tenant's index."""

    num_bytes: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepProposal:
    """The rest of a step with its boundary, and the estimated probability of all its tokens."""

    tokens: tuple[int, ...]
    chance: float
    match_length: int


def num_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts, both tuples or both lists."""
    low, high = 0, min(len(first), len(second))
    # Bisection: comparing slices is much faster than a loop over the tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


FindEnd: TypeAlias = Callable[[Sequence[int]], int | None]
"""Returns the number of tokens that complete the step, None if they do not complete it."""


class Session(Protocol):
    """One conversation with a model, turn after turn.

    All methods raise ValueError for a negative token.
    """

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        """Start the next turn with its whole prompt.

        Keeps the common prefix with the text so far. After it, long runs of tokens that the cache already
        holds are skipped; the rest is learned.
        """

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        """Append final tokens and learn them."""

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        """Draft up to ``budget`` tokens after the text and ``after``, tokens that are not final yet."""

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        """Return the rest of the step if its probability is at least ``min_chance``, else None."""

    def close(self) -> None:
        """End the conversation; the cache keeps its tokens."""
