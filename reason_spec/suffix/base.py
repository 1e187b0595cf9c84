"""What the suffix cache is told and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

Source: TypeAlias = Literal["prompt", "tool", "output"]
"""Where tokens come from: what a model was told, what a tool returned, what the model itself wrote."""

SOURCES: tuple[Source, ...] = ("prompt", "tool", "output")
"""In the order of their numbers in arrays and files."""


class Proposal(NamedTuple):
    """Tokens that may come next, as a draft tree.

    Parents stand before their children; ``parents[i]`` is the place of a node's parent, -1 where it follows
    the text itself. A chain has the parents -1, 0, 1, ... ``chances[i]`` estimates how likely the text goes
    on through node i, all its ancestors included. ``match_length`` counts the tokens of the text's end that
    stood before the continuations.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    match_length: int = 0


@dataclass(frozen=True, slots=True)
class StepProposal:
    """The rest of a step with its boundary, and the chance that the text goes on with all of it."""

    tokens: tuple[int, ...]
    chance: float
    match_length: int


def num_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts, both tuples or both lists, have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    # Comparing slices is much faster than going through the tokens one by one.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


FindEnd: TypeAlias = Callable[[Sequence[int]], int | None]
"""Returns how many of the tokens complete the step; None where they do not."""


class Session(Protocol):
    """One conversation with a model: its text so far, turn after turn."""

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        """Take the whole prompt of the next turn.

        What it shares with the text so far is found again, wherever the two part, and only what is new
        is learnt.
        """

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        """Take tokens that became certain."""

    def propose_tokens(self, budget: int, *, tree: bool = False, behind: Sequence[int] = ()) -> Proposal:
        """Return up to ``budget`` tokens that may come next, behind the text and ``behind``."""

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, behind: Sequence[int] = ()
    ) -> StepProposal | None:
        """Return the rest of the step where its chance is ``min_chance`` or more, else None."""

    def close(self) -> None:
        """End the conversation; what was learnt from it stays in the cache."""
