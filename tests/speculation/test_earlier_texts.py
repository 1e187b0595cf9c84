"""Drafts from earlier texts: told what is final, asked behind what is not, silent when the cache breaks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from reason_spec.speculation.draft_calibration import MAX_CACHE_KEYS
from reason_spec.speculation.earlier_texts import EarlierTexts
from reason_spec.suffix.base import Proposal
from reason_spec.suffix.scopes import SuffixCaches
from tests.naive_suffix import NaiveCache, NaiveSession

TEXT = tuple(range(100, 160))


def make() -> tuple[EarlierTexts, dict[str, NaiveCache]]:
    caches: dict[str, NaiveCache] = {}

    def make_cache(scope: str) -> NaiveCache:
        caches[scope] = NaiveCache()
        return caches[scope]

    return EarlierTexts(SuffixCaches(make_cache)), caches


def learn(earlier: EarlierTexts, text: int, *, scope: str = "", tenant: str = "a") -> None:
    earlier.begin(text, scope, tenant, [("prompt", TEXT[:20])])
    earlier.extend(text, TEXT[20:])
    earlier.close(text)


def propose(earlier: EarlierTexts, text: int, tokens: Sequence[int], **options: object) -> tuple[int, ...]:
    return earlier.propose(text, tokens, 5, tree=False, **options).tokens  # type: ignore[arg-type]


def test_what_a_request_wrote_beyond_the_text_is_looked_up_and_not_learnt() -> None:
    earlier, caches = make()
    learn(earlier, 1)
    earlier.begin(2, "", "a", [("prompt", TEXT[:20])])
    assert propose(earlier, 2, TEXT[:30]) == TEXT[30:35]
    assert propose(earlier, 2, TEXT[:30], drafted=TEXT[30:33]) == TEXT[33:38]
    assert caches[""].documents["a"] == [list(TEXT), list(TEXT[:20])]


def test_how_chances_turn_out_is_kept_for_the_tenants_used_last() -> None:
    earlier, _ = make()
    for number in range(MAX_CACHE_KEYS + 50):
        for tenant in ("regular", f"tenant {number}"):
            earlier.begin(1, "", tenant, [("prompt", TEXT[:2])])
            earlier.close(1)
    assert len(earlier._calibrations) == MAX_CACHE_KEYS
    assert ("", "regular") in earlier._calibrations


def test_a_request_behind_its_text_gets_nothing() -> None:
    earlier, _ = make()
    learn(earlier, 1)
    earlier.begin(2, "", "a", [("prompt", TEXT[:20])])
    earlier.extend(2, TEXT[20:30])
    assert propose(earlier, 2, TEXT[:25]) == ()
    assert propose(earlier, 2, TEXT[:30]) == TEXT[30:35]


def test_the_rest_of_an_answer_is_learnt_as_it_is_written_and_only_once() -> None:
    earlier, caches = make()
    earlier.begin(1, "", "a", [("prompt", TEXT[:20])])
    propose(earlier, 1, TEXT[:30], final=True)
    assert caches[""].documents["a"] == [list(TEXT[:30])]
    earlier.extend(1, TEXT[20:28])
    propose(earlier, 1, TEXT[:34], final=True)
    earlier.extend(1, TEXT[28:40])
    assert caches[""].documents["a"] == [list(TEXT[:40])]


@pytest.mark.parametrize(("scope", "tenant"), [("other", "a"), ("", "b")])
def test_neither_scopes_nor_tenants_mix(scope: str, tenant: str) -> None:
    earlier, _ = make()
    learn(earlier, 1)
    earlier.begin(2, scope, tenant, [("prompt", TEXT[:20])])
    assert propose(earlier, 2, TEXT[:30]) == ()


def test_unknown_texts_and_forgotten_scopes_give_nothing() -> None:
    earlier, _ = make()
    learn(earlier, 1)
    assert propose(earlier, 7, TEXT[:30]) == ()
    earlier.forget("")
    earlier.begin(2, "", "a", [("prompt", TEXT[:20])])
    assert propose(earlier, 2, TEXT[:30]) == ()


class Breaking(NaiveSession):
    def propose_tokens(self, budget: int, *, tree: bool = False, after: Sequence[int] = ()) -> Proposal:
        raise MemoryError("full")


class BreakingCache(NaiveCache):
    def open_session(self, tenant: str) -> NaiveSession:
        return Breaking(self, tenant, [])


def test_a_cache_that_breaks_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    earlier = EarlierTexts(SuffixCaches(lambda scope: BreakingCache()))
    earlier.begin(1, "", "a", [("prompt", TEXT)])
    assert propose(earlier, 1, TEXT) == ()
    assert propose(earlier, 1, TEXT) == ()
    earlier.begin(2, "", "a", [("prompt", TEXT)])
    earlier.extend(2, TEXT)
    earlier.close(2)
    assert [record.message for record in caplog.records] == [
        "no more tokens are drafted from earlier texts of tenant a: MemoryError: full"
    ]


def test_what_a_model_writes_of_anothers_text_is_never_learnt() -> None:
    caches: dict[str, NaiveCache] = {}
    earlier = EarlierTexts(SuffixCaches(lambda scope: caches.setdefault(scope, NaiveCache())), own=False)
    learn(earlier, 1)
    earlier.begin(2, "", "a", [("prompt", TEXT[:20])])
    assert propose(earlier, 2, TEXT[:30], final=True) == TEXT[30:35]
    assert caches[""].documents["a"] == [list(TEXT), list(TEXT[:20])]
