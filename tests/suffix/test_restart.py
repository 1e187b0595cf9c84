"""The cache over a restart: what is saved and loaded proposes what it did before, to the same tenant only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.settings import SuffixSettings
from reason_spec.suffix.base import Source
from reason_spec.suffix.cache import SuffixCache
from reason_spec.suffix.documents import content_ids
from reason_spec.suffix.store import SuffixStore, erase
from tests.suffix.some_documents import KEY, ROOMY, num_tokens

PROMPT: list[tuple[Source, list[int]]] = [("prompt", list(range(100, 160)))]
ANSWER = [7, 8, 9, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]

turns = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.lists(st.integers(0, 5), max_size=40)),
    min_size=1,
    max_size=5,
)


def new_cache(max_bytes: int = 1 << 24) -> SuffixCache:
    return SuffixCache(SuffixSettings(max_bytes=max_bytes))


def talk(cache: SuffixCache, tenant: str, prompt: list[int], answer: list[int]) -> None:
    with cache.open_session(tenant) as session:
        session.begin([("prompt", prompt)])
        session.extend(answer)


def proposed(cache: SuffixCache, tenant: str, start: list[int]) -> tuple[int, ...]:
    with cache.open_session(tenant) as session:
        session.begin([("prompt", [1, 2, 3]), ("output", start)])
        return session.propose_tokens(8).tokens


def restarted(folder: Path, *tenants: str) -> SuffixCache:
    cache = new_cache()
    store = SuffixStore(folder, KEY, max_bytes=ROOMY)
    for tenant in tenants:
        cache.restore(tenant, store.load(tenant))
    return cache


def save(cache: SuffixCache, folder: Path, *tenants: str) -> None:
    store = SuffixStore(folder, KEY, max_bytes=ROOMY)
    for tenant in tenants:
        store.load(tenant)
        assert not store.save(tenant, cache.snapshot(tenant)).erased


def test_after_a_restart_the_same_is_proposed(tmp_path: Path) -> None:
    cache = new_cache()
    for _ in range(3):
        talk(cache, "a", PROMPT[0][1], ANSWER)
    save(cache, tmp_path, "a")
    before = proposed(cache, "a", ANSWER[:8])
    assert before == tuple(ANSWER[8:16])
    assert proposed(restarted(tmp_path, "a"), "a", ANSWER[:8]) == before


@settings(max_examples=40, deadline=None)
@given(spoken=turns)
def test_texts_come_back_as_they_were(
    spoken: list[tuple[list[int], list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("restart")
    cache = new_cache()
    for prompt, answer in spoken:
        talk(cache, "a", prompt, answer)
    save(cache, folder, "a")
    kept = restarted(folder, "a")
    assert content_ids(kept.snapshot("a")) == content_ids(cache.snapshot("a"))
    assert num_tokens(kept.snapshot("a")) == num_tokens(cache.snapshot("a"))


def test_over_restarts_too_tenants_are_apart(tmp_path: Path) -> None:
    cache = new_cache()
    talk(cache, "a", PROMPT[0][1], ANSWER * 2)
    talk(cache, "b", [1, 2], [3, 4])
    save(cache, tmp_path, "a", "b")
    kept = restarted(tmp_path, "a", "b")
    assert proposed(kept, "a", ANSWER[:8])
    assert proposed(kept, "b", ANSWER[:8]) == ()


def test_after_an_erasure_nothing_is_proposed_any_more(tmp_path: Path) -> None:
    cache = new_cache()
    talk(cache, "a", PROMPT[0][1], ANSWER)
    save(cache, tmp_path, "a")
    erase(tmp_path, "a")
    assert proposed(restarted(tmp_path, "a"), "a", ANSWER[:8]) == ()


def test_what_is_kept_may_be_more_than_a_smaller_cache_holds(tmp_path: Path) -> None:
    cache = new_cache()
    for number in range(100):
        talk(cache, "a", [number], list(range(1000 * number, 1000 * number + 100)))
    save(cache, tmp_path, "a")
    small = new_cache(1 << 17)
    small.restore("a", SuffixStore(tmp_path, KEY, max_bytes=ROOMY).load("a"))
    assert small.size("a").num_bytes <= 1 << 17
    assert 500 < num_tokens(small.snapshot("a")) < 10_000
