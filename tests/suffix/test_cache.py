"""Tenants apart from each other, each within its bound, under several threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason_spec.settings import SuffixSettings
from reason_spec.suffix import index as index_module
from reason_spec.suffix.base import Proposal, Session
from reason_spec.suffix.cache import SuffixCache, warm_up
from reason_spec.suffix.index import TokenIndex
from reason_spec.suffix.rebuild import Rebuild
from tests.suffix.some_documents import assert_equal, check_index

SMALL = 1 << 16


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    warm_up()


def make_cache(**changes: object) -> SuffixCache:
    # A clock that stands still: what is evicted must not depend on how fast a test runs.
    return SuffixCache(SuffixSettings.model_validate({"min_chance": 0.0, **changes}), clock=lambda: 0.0)


def index_of(cache: SuffixCache, tenant: str = "default") -> TokenIndex:
    return cache._tenants[tenant].index


def learn(cache: SuffixCache, tokens: Sequence[int], tenant: str | None = None) -> None:
    with cache.open_session(tenant) as session:
        session.extend(tokens)


def ask(cache: SuffixCache, tokens: Sequence[int], tenant: str | None = None) -> Proposal:
    with cache.open_session(tenant) as session:
        session.extend(tokens, "prompt")
        return session.propose_tokens(8)


def test_sessions_keep_to_the_contract() -> None:
    cache = make_cache()
    session: Session = cache.open_session()
    assert cache._tenants["default"].num_sessions == 1
    session.close()
    session.close()
    assert cache._tenants["default"].num_sessions == 0


def test_what_one_conversation_taught_is_proposed_in_the_next() -> None:
    cache = make_cache()
    learn(cache, [1, 2, 3, 4, 5, 6])
    assert ask(cache, [2, 3]).tokens == (4, 5, 6)


def test_a_match_does_not_cross_the_start_of_a_conversation() -> None:
    cache = make_cache()
    learn(cache, [1, 2])
    learn(cache, [3, 4])
    proposal = ask(cache, [1, 2, 3])
    assert proposal.tokens == (4,)
    assert proposal.match_length == 1


def test_a_tenant_is_not_offered_what_another_was_taught() -> None:
    cache = make_cache()
    learn(cache, range(50), "one")
    assert ask(cache, range(20), "two").tokens == ()


def test_a_tenant_that_may_read_another_is_offered_its_texts() -> None:
    cache = make_cache(reads=("library",), tenant="reader")
    learn(cache, range(50), "library")
    assert ask(cache, range(20)).tokens == tuple(range(20, 28))
    assert ask(cache, range(20), "library").tokens == tuple(range(20, 28))


@st.composite
def actions(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(st.lists(st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 2**16)), max_size=12))


def play(cache: SuffixCache, tenant: str, seed: int, size: int) -> list[Proposal]:
    rng = Random(seed)
    offered = []
    with cache.open_session(tenant) as session:
        session.begin([("prompt", [rng.randrange(4) for _ in range(size)])])
        for _ in range(5):
            proposal = session.propose_tokens(6, tree=True)
            offered.append(proposal)
            session.extend([*proposal.tokens[:1], rng.randrange(4), rng.randrange(1000)])
    return offered


@given(actions(), st.sampled_from([20, 700]))
@settings(max_examples=25, deadline=None)
def test_no_tenant_influences_what_another_is_offered(acts: list[tuple[str, int]], size: int) -> None:
    """Evictions included: with 700 tokens a conversation, the bound is met after a few."""
    reads = {"reads": ("one",), "max_bytes": SMALL}
    together, alone = make_cache(**reads), make_cache(**reads)
    for tenant, seed in acts:
        offered = play(together, tenant, seed, size)
        if tenant == "one":
            assert offered == play(alone, tenant, seed, size)


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(2, 5000), st.booleans()), max_size=25),
    st.integers(0, 2**32),
)
@settings(max_examples=25, deadline=None)
def test_a_tenant_stays_within_its_bound(acts: list[tuple[int, int, bool]], seed: int) -> None:
    rng = Random(seed)
    cache = make_cache(max_bytes=SMALL)
    sessions = [cache.open_session() for _ in range(3)]
    for size, vocabulary, prompted in acts:
        tokens = [rng.randrange(vocabulary) for _ in range(size)]
        session = rng.choice(sessions)
        if prompted:
            session.begin([("prompt", tokens[: size // 2]), ("tool", tokens[size // 2 :])])
        else:
            session.extend(tokens)
        session.propose_tokens(8)
        check_index(index_of(cache), SMALL)
        assert index_of(cache).num_bytes <= SMALL


def test_a_conversation_longer_than_the_bound_goes_on() -> None:
    cache = make_cache(max_bytes=SMALL)
    with cache.open_session() as session:
        for _ in range(20):
            session.extend(range(1000))
            assert session.propose_tokens(4, after=[800, 801]).tokens == (802, 803, 804, 805)
    check_index(index_of(cache), SMALL)


def random_texts(number: int, size: int) -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(1000) for _ in range(size)] for _ in range(number)]


def knows(cache: SuffixCache, text: list[int]) -> bool:
    with cache.open_session() as session:
        return session.propose_tokens(8, after=text[:20]).tokens == tuple(text[20:28])


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_an_index_that_threads_rebuild_keeps_the_latest_texts(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    monkeypatch.setattr(index_module, "LARGE", 2000)
    cache = make_cache(max_bytes=1 << 19)
    texts = random_texts(150, 200)
    with cache.open_session() as other:
        for number, text in enumerate(texts):
            learn(cache, text)
            if is_interrupted:
                other.extend([number, 2000 + number, 4000 + number])
            check_index(index_of(cache), 1 << 20)
    index = index_of(cache)
    if index._rebuild is not None:
        index._replace_by(index._rebuild)
    check_index(index, 1 << 19)
    assert 5_000 < index.num_tokens < 15_000
    assert all(knows(cache, text) for text in texts[-20:])
    assert not any(knows(cache, text) for text in texts[:20])


def test_texts_are_learned_and_proposed_while_a_thread_rebuilds_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "LARGE", 20_000)
    may_end, run = threading.Event(), Rebuild.run

    def run_later(rebuild: Rebuild) -> None:
        if threading.current_thread() is not threading.main_thread():
            may_end.wait(60)
        run(rebuild)

    monkeypatch.setattr(Rebuild, "run", run_later)
    cache = make_cache()
    texts = iter(random_texts(1000, 50))
    learned: list[list[int]] = []
    while not learned or index_of(cache)._rebuild is None:
        learned.append(next(texts))
        learn(cache, learned[-1])
    for _ in range(3):
        learned.append(next(texts))
        learn(cache, learned[-1])
    assert all(knows(cache, text) for text in learned)
    rebuild = index_of(cache)._rebuild
    assert rebuild is not None
    assert not rebuild.is_done
    may_end.set()
    rebuild.wait()
    learned.append(next(texts))
    learn(cache, learned[-1])
    assert index_of(cache)._rebuild is None
    assert all(knows(cache, text) for text in learned)
    check_index(index_of(cache))


def test_an_index_near_its_limit_is_not_rebuilt_for_each_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_rebuilds = 0

    def counted(rebuild: Rebuild) -> None:
        nonlocal num_rebuilds
        num_rebuilds += 1
        run(rebuild)

    run = Rebuild.run
    monkeypatch.setattr(Rebuild, "run", counted)
    cache = make_cache(max_bytes=1 << 18)
    for text in random_texts(200, 50):
        learn(cache, text)
    assert num_rebuilds < 20


def test_the_least_recently_used_tenants_go_where_all_take_too_much() -> None:
    cache = make_cache(max_total_bytes=SMALL, reads=("1",))
    for number in range(12):
        learn(cache, range(50), str(number))
    learn(cache, range(50), "0")
    with cache.open_session("2"):
        dropped = cache.drop_excess()
    assert dropped == [str(number) for number in range(3, 3 + len(dropped))]
    kept = [index_of(cache, tenant).num_bytes for tenant in cache._tenants]
    assert SMALL - max(kept) < sum(kept) <= SMALL
    assert cache.drop_excess() == []
    assert ask(cache, range(20), "0").tokens == tuple(range(20, 28))
    assert cache.size("3").num_tokens == 0


def test_the_oldest_and_least_useful_go_first() -> None:
    now = 0.0
    cache = SuffixCache(SuffixSettings(max_bytes=SMALL, min_chance=0.0), clock=lambda: now)
    for number in range(3):
        learn(cache, range(1000 * number, 1000 * number + 100))
        now += 1.0
    with cache.open_session() as session:
        session.extend([0, 1, 2, 3])
        assert session.propose_tokens(90).tokens == tuple(range(4, 94))
        session.extend(range(4, 95))
    for number in range(3, 12):
        now += 1.0
        learn(cache, range(1000 * number, 1000 * number + 100))
    assert ask(cache, [0, 1, 2]).tokens[0] == 3
    assert ask(cache, [1000, 1001, 1002]).tokens == ()
    assert ask(cache, [11000, 11001, 11002]).tokens[0] == 11003


def test_erasing_a_tenant_leaves_nothing_and_touches_no_other() -> None:
    cache = make_cache()
    learn(cache, range(50), "one")
    learn(cache, range(50), "two")
    with cache.open_session("one") as session:
        session.extend(range(10))
        cache.erase("one")
        assert session.propose_tokens(4).tokens == ()
        assert len(session) == 0
        assert cache.size("one").num_tokens == 0
    cache.erase("one")
    assert list(cache._tenants) == ["two"]
    assert cache.snapshot("one") == []
    assert ask(cache, range(20), "two").tokens == tuple(range(20, 28))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_restored_tenant_proposes_the_same(conversations: list[list[int]]) -> None:
    cache, other = make_cache(), make_cache()
    for tokens in conversations:
        learn(cache, tokens)
    documents = cache.snapshot("default")
    other.restore("default", documents)
    assert_equal(documents, other.snapshot("default"))
    for tokens in conversations:
        assert ask(cache, tokens[:5]) == ask(other, tokens[:5])


def test_a_snapshot_joins_a_conversation_that_others_interrupted() -> None:
    cache = make_cache()
    with cache.open_session() as one, cache.open_session() as two:
        for start in range(0, 900, 90):
            one.extend(range(start, start + 90))
            two.extend(range(start + 1000, start + 1090), "tool")
    first, second = cache.snapshot("default")
    assert first.tokens.tolist() == list(range(900))
    assert second.tokens.tolist() == list(range(1000, 1900))
    assert [source for source, _ in (*first.segments, *second.segments)] == ["output", "tool"]


@pytest.mark.parametrize("max_bytes", [SMALL, 1 << 24])
def test_threads_share_a_cache(max_bytes: int) -> None:
    cache = make_cache(max_bytes=max_bytes, reads=("tenant 0", "tenant 1"))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rng = Random(number)
            for _ in range(10):
                with cache.open_session(f"tenant {number % 2}") as session:
                    text = [rng.randrange(50) for _ in range(100)]
                    session.begin([("prompt", text)])
                    for _ in range(20):
                        proposal = session.propose_tokens(8, tree=True)
                        assert all(parent < place for place, parent in enumerate(proposal.parents))
                        session.extend([*proposal.tokens[:1], rng.randrange(50)])
                    cache.size("tenant 1")
                    cache.snapshot("tenant 0")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for tenant in cache._tenants:
        check_index(index_of(cache, tenant), max_bytes)
