"""One conversation: its turns, and what it is offered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.index_kernels import END
from reason_spec.suffix.session import CacheSession, least_chance
from tests.suffix.some_documents import check_index

texts = st.lists(st.integers(0, 3), max_size=120)


def make_cache(min_chance: float = 0.0) -> SuffixCache:
    return SuffixCache(SuffixSettings(min_chance=min_chance))


@pytest.fixture
def session() -> CacheSession:
    return make_cache().open_session()


def num_kept(cache: SuffixCache) -> int:
    return cache.size("default").num_tokens


def test_nothing_is_proposed_behind_nothing(session: CacheSession) -> None:
    assert session.propose_tokens(8).tokens == ()
    session.extend([])
    assert session.propose_tokens(8).tokens == ()


def test_nothing_is_proposed_for_no_budget(session: CacheSession) -> None:
    session.extend([1, 2, 1, 2, 1])
    assert session.propose_tokens(0).tokens == ()


def test_the_more_room_a_pass_has_the_less_likely_a_draft_may_be() -> None:
    floors = [least_chance(budget) for budget in range(1, 65)]
    assert floors == sorted(floors, reverse=True)
    assert (floors[0], floors[-1]) == (0.1, 0.05)
    cache = SuffixCache(SuffixSettings())
    session = cache.open_session()
    session.extend([1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 3, 1, 2, 3, 1, 2])
    for budget in (4, 8, 16, 64):
        assert all(c >= least_chance(budget) for c in session.propose_tokens(budget, tree=True).chances)


def test_a_text_that_repeats_itself_keeps_its_period(session: CacheSession) -> None:
    session.extend([9, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert session.propose_tokens(8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)
    assert session.propose_tokens(4, after=[1, 2]).tokens == (3, 1, 2, 3)


def test_tokens_behind_the_text_count_and_are_not_learnt(session: CacheSession) -> None:
    session.extend([5, 6, 7, 8, 9])
    assert session.propose_tokens(2, after=[1, 5, 6]).tokens == (7, 8)
    assert len(session) == 5
    assert session.propose_tokens(2, after=[1]).tokens == ()


def test_a_tree_holds_several_continuations(session: CacheSession) -> None:
    session.extend([1, 2, 3, 1, 2, 4, 1, 2])
    proposal = session.propose_tokens(16, tree=True)
    first = {token for token, parent in zip(proposal.tokens, proposal.parents, strict=True) if parent == -1}
    assert first == {3, 4}
    assert list(proposal.chances) == sorted(proposal.chances, reverse=True)


@given(texts, st.integers(1, 20), st.booleans())
@settings(max_examples=100, deadline=None)
def test_proposals_are_well_formed(text: list[int], budget: int, tree: bool) -> None:
    with make_cache().open_session() as session:
        session.extend(text)
        proposal = session.propose_tokens(budget, tree=tree)
    assert len(proposal.tokens) == len(proposal.parents) == len(proposal.chances) <= budget
    paths = set()
    for node, (token, parent, chance) in enumerate(
        zip(proposal.tokens, proposal.parents, proposal.chances, strict=True)
    ):
        assert -1 <= parent < node
        assert tree or parent == node - 1
        assert 0.0 <= chance <= (proposal.chances[parent] if parent >= 0 else 1.0)
        paths.add((parent, token))
    assert len(paths) == len(proposal.tokens)


def test_the_next_turn_teaches_only_what_is_new() -> None:
    cache = make_cache()
    with cache.open_session() as session:
        session.begin([("prompt", range(100))])
        session.extend(range(100, 120))
        session.begin([("prompt", range(100)), ("output", range(100, 120)), ("tool", range(500, 550))])
        assert len(session) == 170
        assert num_kept(cache) == 170
        session.extend(range(90, 95))
        assert session.propose_tokens(3).tokens == (95, 96, 97)


def test_a_changed_beginning_is_found_again() -> None:
    cache = make_cache()
    with cache.open_session() as session:
        session.begin([("prompt", range(1000))])
        changed = [*range(2000, 2010), *range(1000)]
        session.begin([("prompt", changed)])
        assert len(session) == 1010
        assert num_kept(cache) <= 1000 + 10 + 16


def test_a_summarised_middle_is_found_again() -> None:
    cache = make_cache()
    with cache.open_session() as session:
        session.begin([("prompt", range(1000))])
        session.begin([("prompt", [*range(300), *range(3000, 3020), *range(700, 1000)])])
        assert num_kept(cache) <= 1000 + 20 + 16
        session.extend([*range(290, 300), 3000, 3001])
        assert session.propose_tokens(2).tokens == (3002, 3003)


def test_a_shortened_prompt_goes_on_where_it_ends() -> None:
    cache = make_cache()
    with cache.open_session() as session:
        session.begin([("prompt", range(200))])
        session.begin([("prompt", range(50))])
        session.extend([900, 901])
        assert len(session) == 52
        session.extend([*range(40, 50), 900])
        assert session.propose_tokens(1).tokens == (901,)


def test_a_prompt_that_another_conversation_had_is_kept_once() -> None:
    cache = make_cache()
    for _ in range(5):
        with cache.open_session() as session:
            session.begin([("prompt", range(1000))])
    assert num_kept(cache) <= 1000 + 4 * 16


@given(st.lists(st.tuples(texts, st.integers(0, 200), st.integers(0, 60)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_context_of_an_edited_prompt_is_known(edits: list[tuple[list[int], int, int]]) -> None:
    """What is passed over is truly in the cache: each token of the prompt, behind the 16 before it."""
    cache = make_cache()
    prompt: list[int] = []
    with cache.open_session() as session:
        for inserted, at, dropped in edits:
            prompt = [*prompt[:at], *inserted, *prompt[at + dropped :]]
            session.begin([("prompt", prompt)])
            assert len(session) == len(prompt)
        index = cache._tenants["default"].index
        check_index(index)
    known = set(foretold(index))
    for at in range(16, len(prompt)):
        assert tuple(prompt[at - 16 : at + 1]) in known


def foretold(index: TokenIndex) -> Iterator[tuple[int, ...]]:
    """Return each token of the log behind the 16 that stand before it, read along the links."""
    log = index.log.tolist()
    for piece in index.pieces:
        for place in range(piece.start, piece.stop):
            run = [log[place]]
            at = place
            while len(run) < 17 and log[at - 1] != END:
                at = at - 1 if log[at - 1] >= 0 else -2 - log[at - 1]
                run.append(log[at])
            yield tuple(reversed(run))


def ends_at(token: int) -> object:
    def find_end(tokens: Sequence[int]) -> int | None:
        return tokens.index(token) + 1 if token in tokens else None

    return find_end


def test_a_step_is_proposed_up_to_its_boundary(session: CacheSession) -> None:
    for _ in range(6):
        session.extend([1, 2, 3, 4, 5, 6, 7, 8, 0, 20, 21])
    session.extend([1, 2, 3, 4])
    step = session.propose_step(ends_at(0), 32, min_chance=0.05)  # type: ignore[arg-type]
    assert step is not None
    assert step.tokens == (5, 6, 7, 8, 0)
    assert 0.05 <= step.chance <= 1.0
    assert step.match_length >= 4


def test_no_step_is_proposed_that_is_unlikely_or_has_no_end(session: CacheSession) -> None:
    session.extend([1, 2, 3, 4, 0, 1, 2])
    assert session.propose_step(ends_at(0), 32, min_chance=0.99) is None  # type: ignore[arg-type]
    assert session.propose_step(ends_at(9), 32, min_chance=0.0) is None  # type: ignore[arg-type]


def test_chances_follow_what_became_of_proposals() -> None:
    cache = make_cache()
    with cache.open_session() as session:
        session.extend(range(40))
        before = session.propose_tokens(1, after=range(20)).chances[0]
        for number in range(30):
            session.extend(range(20))
            session.propose_tokens(1)
            session.extend([1000 + number])
        session.extend(range(40, 80))
        after = session.propose_tokens(1, after=range(40, 60)).chances[0]
    assert after < before


def test_negative_tokens_are_refused(session: CacheSession) -> None:
    with pytest.raises(ValueError, match="negative: -1"):
        session.begin([("prompt", [1, -1])])
    with pytest.raises(ValueError, match="negative: -2"):
        session.extend([-2])
    with pytest.raises(ValueError, match="negative: -3"):
        session.propose_tokens(4, after=[-3])
