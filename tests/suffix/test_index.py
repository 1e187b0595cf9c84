"""Every match, count and proposal equals that of a naive reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.settings import SuffixSettings
from reason_spec.suffix import draft_kernels as kernels
from reason_spec.suffix import session as session_module
from reason_spec.suffix.base import SOURCES
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.session import CacheSession
from tests.suffix.reference import Reference
from tests.suffix.some_documents import check_index


@pytest.fixture(autouse=True, scope="module")
def chances_stay_as_they_are() -> Iterator[None]:
    """The reference does not learn from what became of proposals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "_RATE", 0.0)
        patch.setattr(session_module, "_OFFSET_RATE", 0.0)
        yield


def random_texts(alphabet: int, size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, alphabet), max_size=size)


@st.composite
def repetitive_texts(draw: st.DrawFn) -> list[int]:
    """Phrases in any order, some with a token changed: long matches, and matches behind a difference."""
    phrases = draw(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20), min_size=1, max_size=4))
    text: list[int] = []
    for number in draw(st.lists(st.integers(0, 3), max_size=8)):
        text += phrases[number % len(phrases)]
        is_changed: bool = draw(st.booleans())
        if text and is_changed:
            text[-1] = draw(st.integers(0, 30))
    return text


texts = st.one_of(random_texts(1, 80), random_texts(4, 80), repetitive_texts())
conversations = st.lists(
    st.lists(st.tuples(texts, st.integers(0, 2)), min_size=1, max_size=3), min_size=1, max_size=4
)


def matches_of(session: CacheSession) -> list[tuple[int, ...]]:
    rows = [
        kernels.PLACE, kernels.LENGTH, kernels.FURTHER, kernels.RANK, kernels.SOURCE, kernels.NEAR,
    ]  # fmt: skip
    draft = session._draft
    count = draft.nodes[kernels.COUNT, 0]
    return sorted(map(tuple, draft.candidates[rows, :count].T.tolist()))


@given(
    talks=conversations,
    after=random_texts(4, 4),
    budget=st.integers(0, 24),
    tree=st.booleans(),
    min_chance=st.sampled_from([0.0, 0.01, 0.2]),
)
@settings(max_examples=300, deadline=None)
def test_matches_and_proposals_equal_the_reference(
    talks: list[list[tuple[list[int], int]]], after: list[int], budget: int, tree: bool, min_chance: float
) -> None:
    cache = SuffixCache(SuffixSettings(min_chance=min_chance))
    reference = Reference()
    for talk in talks:
        reference.open()
        with cache.open_session() as session:
            for tokens, source in talk:
                session.extend(tokens, SOURCES[source])
                reference.extend(tokens, source)
                session.propose_tokens(0, after=after)
                found = matches_of(session)
                expected = reference.matches(after)
                assert found == sorted(
                    (match.place, match.matched, match.further, match.rank, match.source, match.near)
                    for match in expected
                )
                # Asked twice, as here, the answer must be the same.
                proposal = session.propose_tokens(budget, tree=tree, after=after)
                again = reference.propose(budget, tree, min_chance, after)
                assert proposal.tokens == again.tokens
                assert proposal.parents == again.parents
                assert proposal.chances == pytest.approx(again.chances)
                assert proposal.match_length == again.match_length
    check_index(cache._tenants["default"].index)
