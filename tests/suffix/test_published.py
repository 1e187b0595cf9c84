"""SuffixDecoding as published: counts are those of all texts, and the best score wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.documents import Document, make_document
from reason_spec.suffix.published import MAX_PATTERN, PublishedCache, TextSet, best_tree

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)


def ends_with(text: Sequence[int], pattern: Sequence[int]) -> bool:
    return list(text[len(text) - len(pattern) :]) == list(pattern) and len(text) >= len(pattern)


def counted(texts: Sequence[Sequence[int]], context: Sequence[int]) -> Counter[int]:
    """Count what follows a context, place by place."""
    return Counter(
        text[place] for text in texts for place in range(len(context), len(text))
        if ends_with(text[:place], context)
    )  # fmt: skip


def best_score(texts: Sequence[Sequence[int]], pattern: Sequence[int], budget: int, factor: float) -> float:
    """Grow the tree of every length of match by the paper's rule, and return the largest score."""
    best = 0.0
    for length in range(1, len(pattern) + 1):
        suffix = tuple(pattern[len(pattern) - length :])
        nodes: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(min(budget, int(factor * length))):
            open_nodes = {
                (*path, token): chance * count / followers.total()
                for path, chance in nodes.items()
                if (followers := counted(texts, (*suffix, *path)))
                for token, count in followers.items()
                if (*path, token) not in nodes
            }
            if not open_nodes:
                break
            path = max(open_nodes, key=lambda path: open_nodes[path])
            nodes[path] = open_nodes[path]
        best = max(best, sum(nodes.values()) - 1.0)
    return best


def made(texts: Sequence[Sequence[int]]) -> TextSet:
    found = TextSet(1 << 20)
    for text in texts:
        found.extend(-1, text)
    return found


@given(st.lists(TOKENS, max_size=3), st.lists(TOKENS, max_size=2), TOKENS, st.integers(0, 8), st.floats(1, 4))
def test_the_tree_has_the_largest_score_of_all_lengths_and_sets(
    past: list[list[int]], own: list[list[int]], pattern: list[int], budget: int, factor: float
) -> None:
    found = best_tree([made(own), made(past)], pattern, budget, factor, 0.0, tree=True)
    expected = max(best_score(texts, pattern, budget, factor) for texts in (own, past))
    assert sum(found.chances) == pytest.approx(expected)
    assert len(found.tokens) <= min(budget, factor * max(found.match_length, 1))
    assert all(parent < node for node, parent in enumerate(found.parents))
    assert list(found.chances) == sorted(found.chances, reverse=True)


@given(st.lists(TOKENS, min_size=1, max_size=3), TOKENS)
def test_chances_are_shares_of_what_followed(texts: list[list[int]], pattern: list[int]) -> None:
    found = best_tree([made(texts)], pattern, 8, 4.0, 0.0, tree=True)
    suffix = pattern[len(pattern) - found.match_length :]
    paths: list[tuple[int, ...]] = []
    for token, parent, chance in zip(*found[:3], strict=True):
        path, before = (paths[parent], found.chances[parent]) if parent >= 0 else ((), 1.0)
        followers = counted(texts, (*suffix, *path))
        assert chance == pytest.approx(before * followers[token] / followers.total())
        paths.append((*path, token))


def test_texts_that_grow_by_turns_stay_apart() -> None:
    texts = TextSet(1 << 20)
    first = texts.extend(-1, [1, 2])
    second = texts.extend(-1, [7, 8])
    texts.extend(first, [3, 4])
    texts.extend(second, [9])
    assert best_tree([texts], [1, 2], 4, 1.0, 0.0, tree=True).tokens == (3, 4)
    assert best_tree([texts], [7, 8], 4, 1.0, 0.0, tree=True).tokens == (9,)


def test_the_oldest_tokens_go_first() -> None:
    texts = TextSet(64 * 4)
    texts.extend(-1, [1, 2, 3])
    texts.extend(-1, [5, 6, 7, 8])
    assert not best_tree([texts], [1], 4, 4.0, 0.0, tree=True).tokens
    assert best_tree([texts], [5], 4, 4.0, 0.0, tree=True).tokens == (6, 7, 8)


def test_a_full_set_takes_no_more_memory_and_knows_its_last_tokens() -> None:
    texts, last = TextSet(64 * 300), -1
    stream = [number * number % 251 for number in range(3000)]
    for start in range(0, len(stream), 50):
        last = texts.extend(last, stream[start : start + 50])
    assert texts.size.num_tokens == 300
    assert len(texts._tokens) == 512
    kept = made([stream[-300:]])
    for pattern in (stream[-20:-4], stream[-300:-290], stream[:3]):
        found = best_tree([texts], pattern, 8, 4.0, 0.0, tree=True)
        assert found.tokens
        assert found == best_tree([kept], pattern, 8, 4.0, 0.0, tree=True)


def cache(**options: float) -> PublishedCache:
    return PublishedCache(SuffixSettings(rule="published", **options))  # type: ignore[arg-type]


def proposed(found: PublishedCache, text: Sequence[int], tenant: str = "a") -> Proposal:
    with found.open_session(tenant) as session:
        session.begin([("prompt", text)])
        return session.propose_tokens(8, tree=True)


def test_past_outputs_are_proposed_to_their_tenant_and_prompts_to_their_request() -> None:
    found = cache()
    with found.open_session("a") as session:
        session.begin([("prompt", [1, 2, 3, 1, 2])])
        assert session.propose_tokens(8).tokens == (3, 1), "two tokens are matched, so two are drafted"
        session.extend([6, 7, 8])
    assert proposed(found, [9, 6, 7]).tokens == (8,)
    assert not proposed(found, [9, 1, 2]).tokens, "a prompt is not a past output"
    assert not proposed(found, [9, 6, 7], tenant="b").tokens


def test_a_draft_that_scores_no_more_than_tau_is_left_to_others() -> None:
    documents = [make_document([("output", list(range(40)))], last_used=0.0)]
    for min_score, count in ((0.0, 3), (2.5, 3), (3.0, 0)):
        found = cache_with(documents, min_score=min_score)
        assert len(proposed(found, [90, 5, 6, 7]).tokens) == count
    assert len(proposed(cache_with(documents, max_spec_factor=2.0), [90, 5, 6, 7]).tokens) == 6


def cache_with(documents: Sequence[Document], **options: float) -> PublishedCache:
    found = cache(**options)
    found.restore("a", documents)
    return found


def test_a_step_is_proposed_where_its_end_is_likely_enough() -> None:
    found = cache_with([make_document([("output", [*range(40)])], last_used=0.0)])
    with found.open_session("a") as session:
        session.begin([("prompt", [5, 6, 7])])
        step = session.propose_step(lambda tokens: 2, 8, min_chance=0.6)
        assert step is not None
        assert (step.tokens, step.chance, step.match_length) == ((8, 9), 1.0, 3)
        assert session.propose_step(lambda tokens: None, 8, min_chance=0.6) is None
        with pytest.raises(ValueError, match="negative"):
            session.extend([-1])


def test_long_patterns_are_cut() -> None:
    text = list(range(3 * MAX_PATTERN))
    found = best_tree([made([text])], text[:-8], 1000, 1.0, 0.0, tree=True)
    assert found.match_length == MAX_PATTERN
    assert found.tokens == tuple(text[-8:])
