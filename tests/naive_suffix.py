"""A suffix cache of a few lines, for what is built on one: the latest of the longest matches is right.

A match is all of the text, or enough of its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reason_spec.suffix.base import FindEnd, Proposal, Source, StepProposal
from reason_spec.suffix.scopes import SuffixCaches

MIN_MATCH = 12
NUM_SEARCHED = 20


@dataclass
class NaiveCache:
    documents: dict[str, list[list[int]]] = field(default_factory=dict)
    begun: list[tuple[str, list[tuple[Source, tuple[int, ...]]]]] = field(default_factory=list)

    def open_session(self, tenant: str) -> NaiveSession:
        document: list[int] = []
        self.documents.setdefault(tenant, []).append(document)
        return NaiveSession(self, tenant, document)

    def save(self) -> None:
        return None

    def take_erased(self) -> list[str]:
        return []

    def erase(self, tenant: str) -> None:
        self.documents.pop(tenant, None)


@dataclass
class NaiveSession:
    cache: NaiveCache
    tenant: str
    text: list[int]

    def begin(self, segments: Sequence[tuple[Source, Sequence[int]]]) -> None:
        self.cache.begun.append((self.tenant, [(source, tuple(tokens)) for source, tokens in segments]))
        self.text[:] = [token for _, tokens in segments for token in tokens]

    def extend(self, tokens: Sequence[int], source: Source = "output") -> None:
        self.text += tokens

    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        chain = self._follow([*self.text, *after], budget)
        parents = tuple(range(-1, len(chain) - 1))
        return Proposal(tuple(chain), parents, (1.0,) * len(chain), MIN_MATCH)

    def propose_step(
        self, find_end: FindEnd, max_tokens: int, *, min_chance: float, after: Sequence[int] = ()
    ) -> StepProposal | None:
        chain = self._follow([*self.text, *after], max_tokens)
        end = find_end(chain)
        return None if end is None else StepProposal(tuple(chain[:end]), 1.0, MIN_MATCH)

    def close(self) -> None:
        return None

    def _follow(self, text: list[int], budget: int) -> list[int]:
        end = text[-MIN_MATCH:]
        best, found = 0, []
        for document in self.cache.documents[self.tenant][-NUM_SEARCHED:]:
            for place in range(len(end), len(document)):
                if document[place - len(end) : place] == end:
                    length = _common_end(document[:place], text)
                    if length >= best:
                        best, found = length, document[place : place + budget]
        return found


def _common_end(left: list[int], right: list[int]) -> int:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return next(
        (count for count, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right))
    )


def naive_caches() -> SuffixCaches:
    return SuffixCaches(lambda scope: NaiveCache())
